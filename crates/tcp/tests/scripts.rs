//! Packet scripts against one connection: what it sends when.
#![allow(missing_docs)]

#[path = "common/script.rs"]
mod script;

use std::time::Duration;

use perimeter_tcp::{Events, Keepalive, State, TcpError};
use script::{OPEN_SACK, Options, Script, reno, sack, with};

/// Runs the scripts (files with the suffix `.pkt`) in the directories that `TCP_SCRIPTS`
/// lists, separated by colons, and prints a verdict for each: a tool for trying the connection
/// against foreign scripts without the adapter.
#[test]
fn foreign_scripts() {
    let Some(dirs) = std::env::var_os("TCP_SCRIPTS") else {
        return;
    };
    let mut passed = 0;
    let mut total = 0;
    for dir in std::env::split_paths(&dirs) {
        let mut files: Vec<_> = std::fs::read_dir(&dir)
            .expect("directory of scripts")
            .filter_map(|e| e.ok().map(|e| e.path()))
            .filter(|p| p.extension().is_some_and(|e| e == "pkt"))
            .collect();
        files.sort();
        for file in files {
            let text = std::fs::read_to_string(&file).expect("script");
            let mut o = Options::default();
            o.cfg.rcv_buf = 540_000 / 2;
            o.cfg.loss_probe = true;
            o.cfg.reorder_timer = true;
            o.cfg.slow_start_after_idle = text.contains("slow_start_after_idle=1");
            o.cfg.timestamps = !text.contains("tcp_timestamps=0");
            total += 1;
            match Script::new(o).run(&text) {
                Ok(()) => {
                    passed += 1;
                    println!("ok   {}", file.display());
                }
                Err(e) => println!("FAIL {}\n  {e}", file.display()),
            }
        }
    }
    println!("{passed} of {total}");
}

#[test]
fn an_active_open() {
    with(
        |_| {},
        |s| {
            s.go("
    0 connect(3) = 0
    +0 > S 0:0(0) win 65535 <mss 1460,sackOK,TS val 1 ecr 0,nop,wscale 8>
    +.05 < S. 0:0(0) ack 1 win 5000 <mss 1200,sackOK,TS val 7 ecr 1,nop,wscale 2>
    +0 > . 1:1(0) ack 1 <TS val 51 ecr 7>
            ");
            assert_eq!(s.events, Events::CONNECTED);
            let i = s.info();
            assert_eq!(
                (i.state, i.snd_mss, i.snd_wnd),
                (State::Established, 1188, 5000)
            );
            assert_eq!((i.snd_wscale, i.rcv_wscale), (Some(2), Some(8)));
            assert_eq!(i.srtt, Duration::from_millis(50));
        },
    );
}

#[test]
fn options_that_the_peer_does_not_echo_are_off() {
    with(
        |_| {},
        |s| {
            s.go("
    0 connect(3) = 0
    +0 > S 0:0(0) <mss 1460,sackOK,TS val 1 ecr 0,nop,wscale 8>
    +.05 < S. 0:0(0) ack 1 win 5000
    +0 > . 1:1(0) ack 1 win 65535
            ");
            let i = s.info();
            assert_eq!((i.timestamps, i.sack, i.snd_wscale), (false, false, None));
            assert_eq!(i.snd_mss, 536);
        },
    );
}

#[test]
fn a_syn_is_repeated_with_backoff_until_the_end() {
    with(
        |c| c.syn_retries = 3,
        |s| {
            s.go("
    0 connect(3) = 0
    +0 > S 0:0(0) <...>
    +1 > S 0:0(0) <...>
    +2 > S 0:0(0) <...>
    +4 > S 0:0(0) <...>
    +7.9 %{ assert tcpi_unacked == 1 }%
            ");
            assert_eq!(s.error, None);
            s.go("+.2 accept(3) = 0");
            assert_eq!(s.error, Some(TcpError::TimedOut));
            assert_eq!(s.events, Events::ERROR | Events::CLOSED);
        },
    );
}

#[test]
fn a_lost_syn_means_one_segment_and_no_sample() {
    with(
        |c| c.timestamps = false,
        |s| {
            s.go("
    0 connect(3) = 0
    +0 > S 0:0(0) <...>
    +1 > S 0:0(0) <...>
    +.1 < S. 0:0(0) ack 1 win 40000 <mss 1000>
    +0 > . 1:1(0) ack 1
    +0 %{ assert tcpi_snd_cwnd == 1 }%
            ");
            assert_eq!(s.info().srtt, Duration::ZERO);
            assert_eq!(
                s.info().rto,
                Duration::from_secs(3),
                "RFC 6298, section 5.7"
            );
        },
    );
}

#[test]
fn simultaneous_open() {
    with(
        |_| {},
        |s| {
            s.go("
    0 connect(3) = 0
    +0 > S 0:0(0) <...>
    +.01 < S 0:0(0) win 40000 <mss 1000,sackOK,nop,wscale 7>
    +0 > S. 0:0(0) ack 1 <mss 1460,sackOK,nop,wscale 8>
    +.01 < S. 0:0(0) ack 1 win 40000 <mss 1000,sackOK,nop,wscale 7>
    +0 write(3, ..., 1000) = 1000
    +0 > P. 1:1001(1000) ack 1
            ");
            assert_eq!(s.events, Events::CONNECTED);
        },
    );
}

#[test]
fn refused_and_reset() {
    with(
        |_| {},
        |s| {
            s.go("
    0 connect(3) = 0
    +0 > S 0:0(0) <...>
    +0 < R. 0:0(0) ack 77 win 0
    +0 < S. 0:0(0) ack 77 win 100
    +0 > R 77:77(0)
            ");
            assert_eq!(s.error, None, "neither acknowledges our SYN");
            s.go("+0 < R. 0:0(0) ack 1 win 0");
            assert_eq!(s.error, Some(TcpError::Refused));
        },
    );
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            s.go("+0 < R 1:1(0) win 0");
            assert_eq!(s.error, Some(TcpError::Reset));
            s.go("
    +0 < . 1:1(0) ack 1 win 100
    +0 > R 1:1(0)
            ");
        },
    );
}

#[test]
fn acknowledgments_are_quick_at_first_and_delayed_later() {
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            let mut at = 1;
            for _ in 0..16 {
                s.go(&format!(
                    "
    +.001 < . {at}:{}(100) ack 1 win 400
    +0 > . 1:1(0) ack {}
                ",
                    at + 100,
                    at + 100
                ));
                at += 100;
            }
            // Delayed, then by the second full segment. 1601..
            s.go("
    +.001 < . 1601:2601(1000) ack 1 win 400
    +.040 > . 1:1(0) ack 2601
    +.01 < . 2601:3601(1000) ack 1 win 400
    +.01 < . 3601:4601(1000) ack 1 win 400
    +0 > . 1:1(0) ack 4601
    +.01 < . 4601:5601(1000) ack 1 win 400
    +.01 write(4, ..., 10) = 10
    +0 > P. 1:11(10) ack 5601
            ");
            // After a pause the peer is in slow start again: quick.
            s.go("
    +.1 < . 5601:5601(0) ack 11 win 400
    +1 < . 5601:6601(1000) ack 11 win 400
    +0 > . 11:11(0) ack 6601
            ");
        },
    );
}

#[test]
fn data_out_of_order_is_reported_at_once() {
    sack(
        "
    +.01 < . 2001:3001(1000) ack 1 win 400
    +0 > . 1:1(0) ack 1 <sack 2001:3001>
    +.01 < . 5001:6001(1000) ack 1 win 400
    +0 > . 1:1(0) ack 1 <sack 5001:6001 2001:3001>
    +.01 < . 1001:2001(1000) ack 1 win 400
    +0 > . 1:1(0) ack 1 <sack 1001:3001 5001:6001>
    +.01 < . 1:1001(1000) ack 1 win 400
    +0 > . 1:1(0) ack 3001 <sack 5001:6001>
    +0 write(4, ..., 2000) = 2000
    +0 > . 1:989(988) ack 3001 <sack 5001:6001>
    +0 > P. 989:1977(988) ack 3001 <sack 5001:6001>
    +0 > P. 1977:2001(24) ack 3001 <sack 5001:6001>
    +.01 < F. 6001:6001(0) ack 2001 win 400
    +0 > . 2001:2001(0) ack 3001 <sack 5001:6001>
    +.01 < . 3001:5001(2000) ack 2001 win 400
    +0 > . 2001:2001(0) ack 6002
    ",
    );
}

#[test]
fn fast_retransmit_with_sack() {
    sack(
        "
    +0 write(4, ..., 6000) = 6000
    +0 > P. 1:6001(6000) ack 1
    +.1 < . 1:1(0) ack 1 win 400 <sack 1001:2001>
    +0 %{ assert tcpi_ca_state == TCP_CA_Disorder }%
    +0 < . 1:1(0) ack 1 win 400 <sack 1001:3001>
    +0 < . 1:1(0) ack 1 win 400 <sack 1001:4001>
    +0 > . 1:1001(1000) ack 1
    +0 %{ assert tcpi_ca_state == TCP_CA_Recovery
assert tcpi_snd_ssthresh == 7
assert tcpi_sacked == 3
assert tcpi_lost == 1
assert tcpi_retrans == 1 }%
    +.1 < . 1:1(0) ack 6001 win 400
    +0 %{ assert tcpi_ca_state == TCP_CA_Open
assert tcpi_snd_cwnd == 7
assert tcpi_unacked == 0 }%
    ",
    );
}

#[test]
fn holes_are_filled_in_order_and_nothing_sacked_is_sent_again() {
    sack(
        "
    +0 write(4, ..., 10000) = 10000
    +0 > P. 1:10001(10000) ack 1
    +.1 < . 1:1(0) ack 1 win 400 <sack 1001:2001 3001:10001>
    +0 > . 1:1001(1000) ack 1
    +0 > . 2001:3001(1000) ack 1
    +.1 < . 1:1(0) ack 10001 win 400
    ",
    );
}

#[test]
fn newreno_fills_one_hole_per_round_trip() {
    reno(
        "
    +0 write(4, ..., 10000) = 10000
    +0 > P. 1:10001(10000) ack 1
    +.1 < . 1:1(0) ack 1 win 400
    +0 < . 1:1(0) ack 1 win 400
    +0 < . 1:1(0) ack 1 win 400
    +0 > . 1:1001(1000) ack 1
    +0 < . 1:1(0) ack 1 win 400
    +.1 < . 1:1(0) ack 4001 win 400
    +0 > . 4001:5001(1000) ack 1
    +0 %{ assert tcpi_ca_state == TCP_CA_Recovery }%
    +.1 < . 1:1(0) ack 10001 win 400
    +0 %{ assert tcpi_ca_state == TCP_CA_Open
assert tcpi_snd_cwnd == 7 }%
    ",
    );
}

#[test]
fn duplicate_acknowledgments_of_the_last_recovery_start_no_other() {
    // RFC 6582, section 3.2, step 1.
    reno(
        "
    +0 write(4, ..., 10000) = 10000
    +0 > P. 1:10001(10000) ack 1
    +.3 > . 1:1001(1000) ack 1
    +.1 < . 1:1(0) ack 1001 win 400
    +0 > . 1001:3001(2000) ack 1
    +0 < . 1:1(0) ack 1001 win 400
    +0 < . 1:1(0) ack 1001 win 400
    +0 < . 1:1(0) ack 1001 win 400
    +0 %{ assert tcpi_ca_state == TCP_CA_Loss }%
    +.1 < . 1:1(0) ack 10001 win 400
    ",
    );
}

#[test]
fn a_window_update_is_no_duplicate() {
    reno(
        "
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
    +.1 < . 1:1(0) ack 1 win 401
    +0 < . 1:1(0) ack 1 win 402
    +0 < . 1:1(0) ack 1 win 403
    +0 < . 1:101(100) ack 1 win 403
    +0 > . 4001:4001(0) ack 101
    +0 %{ assert tcpi_ca_state == TCP_CA_Open }%
    ",
    );
}

#[test]
fn the_retransmission_timer_backs_off_and_slow_start_follows() {
    sack(
        "
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
    +.3 > . 1:1001(1000) ack 1
    +.6 > . 1:1001(1000) ack 1
    +1.2 > . 1:1001(1000) ack 1
    +0 %{ assert tcpi_ca_state == TCP_CA_Loss
assert tcpi_snd_cwnd == 1
assert tcpi_snd_ssthresh == 7
assert tcpi_lost == 4
assert tcpi_backoff == 3 }%
    +.1 < . 1:1(0) ack 1001 win 400
    +0 > . 1001:3001(2000) ack 1
    +.1 < . 1:1(0) ack 3001 win 400
    +0 > P. 3001:4001(1000) ack 1
    +.1 < . 1:1(0) ack 4001 win 400
    +0 %{ assert tcpi_ca_state == TCP_CA_Open }%
    ",
    );
}

#[test]
fn after_a_timeout_what_was_sacked_is_not_sent_again() {
    sack(
        "
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
    +.1 < . 1:1(0) ack 1 win 400 <sack 2001:3001>
    +.2 > . 1:1001(1000) ack 1
    +.1 < . 1:1(0) ack 1001 win 400 <sack 2001:3001>
    +0 > . 1001:2001(1000) ack 1
    +0 > P. 3001:4001(1000) ack 1
    ",
    );
}

#[test]
fn a_connection_that_nobody_answers_ends() {
    with(
        |c| c.data_retries = 2,
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +0 write(4, ..., 1000) = 1000
    +0 > P. 1:1001(1000) ack 1
    +.3 > P. 1:1001(1000) ack 1
    +.6 > P. 1:1001(1000) ack 1
    +1.2 > R. 1001:1001(0) ack 1
            ");
            assert_eq!(s.error, Some(TcpError::TimedOut));
        },
    );
}

#[test]
fn the_user_timeout_ends_it_sooner() {
    with(
        |c| c.user_timeout = Some(Duration::from_millis(1500)),
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +0 write(4, ..., 1000) = 1000
    +0 > P. 1:1001(1000) ack 1
    +.3 > P. 1:1001(1000) ack 1
    +.6 > P. 1:1001(1000) ack 1
    +.6 > R. 1001:1001(0) ack 1
            ");
            assert_eq!(s.error, Some(TcpError::TimedOut));
        },
    );
}

#[test]
fn a_closed_window_is_probed() {
    sack(
        "
    +0 write(4, ..., 1000) = 1000
    +0 > P. 1:1001(1000) ack 1
    +.1 < . 1:1(0) ack 1001 win 0
    +0 write(4, ..., 500) = 500
    +.3 > . 1000:1000(0) ack 1
    +.1 < . 1:1(0) ack 1001 win 0
    +.5 > . 1000:1000(0) ack 1
    +1.2 > . 1000:1000(0) ack 1
    +0 < . 1:1(0) ack 1001 win 10
    +0 > P. 1001:1501(500) ack 1
    +.3 > P. 1001:1501(500) ack 1
    ",
    );
}

#[test]
fn a_peer_may_keep_its_window_shut_only_as_long_as_the_user_timeout() {
    with(
        |c| c.user_timeout = Some(Duration::from_secs(2)),
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +0 write(4, ..., 1000) = 1000
    +0 > P. 1:1001(1000) ack 1
    +.1 < . 1:1(0) ack 1001 win 0
    +0 write(4, ..., 500) = 500
    +.3 > . 1000:1000(0) ack 1
    +0 < . 1:1(0) ack 1001 win 0
    +.6 > . 1000:1000(0) ack 1
    +0 < . 1:1(0) ack 1001 win 0
    +1.1 > R. 1001:1001(0) ack 1
            ");
            assert_eq!(s.error, Some(TcpError::TimedOut));
        },
    );
}

#[test]
fn small_windows_are_not_filled_with_small_segments() {
    // RFC 9293, section 3.8.6.2.1: at least half of the largest window seen, or everything.
    reno(
        "
    +0 write(4, ..., 60000) = 60000
    +0 > P. 1:10001(10000) ack 1
    +.1 < . 1:1(0) ack 10001 win 3
    +.3 > P. 10001:10385(384) ack 1
    ",
    );
}

#[test]
fn the_window_closes_and_opens_with_the_buffer() {
    with(
        |c| {
            c.rcv_buf = 4000;
            c.window_scale = false;
        },
        |s| {
            s.go("
    0 listen(3, 1) = 0
    +0 < S 0:0(0) win 40000 <mss 1000>
    +0 > S. 0:0(0) ack 1 win 4000 <mss 1460>
    +.1 < . 1:1(0) ack 1 win 40000
    +.1 < . 1:2001(2000) ack 1 win 40000
    +0 > . 1:1(0) ack 2001 win 2000
    +0 < P. 2001:4001(2000) ack 1 win 40000
    +0 > . 1:1(0) ack 4001 win 0
    +0 < . 4001:4002(1) ack 1 win 40000
    +0 > . 1:1(0) ack 4001 win 0
    +0 < . 4000:4000(0) ack 1 win 40000
    +0 > . 1:1(0) ack 4001 win 0
    +0 read(4, ..., 1000) = 1000
    +0 read(4, ..., 1000) = 1000
    +0 > . 1:1(0) ack 4001 win 2000
            ");
            assert_eq!(s.delivered, 4000);
        },
    );
}

#[test]
fn nagle_cork_and_more() {
    reno(
        "
    +0 write(4, ..., 100) = 100
    +0 > P. 1:101(100) ack 1
    +0 write(4, ..., 100) = 100
    +0 write(4, ..., 100) = 100
    +.1 < . 1:1(0) ack 101 win 400
    +0 > P. 101:301(200) ack 1
    +.1 < . 1:1(0) ack 301 win 400
    +0 setsockopt(4, SOL_TCP, TCP_CORK, [1], 4) = 0
    +0 write(4, ..., 100) = 100
    +0 write(4, ..., 1000) = 1000
    +0 > . 301:1301(1000) ack 1
    +.1 < . 1:1(0) ack 1301 win 400
    +.3 > P. 1301:1401(100) ack 1
    +.1 < . 1:1(0) ack 1401 win 400
    +0 write(4, ..., 100) = 100
    +0 setsockopt(4, SOL_TCP, TCP_CORK, [0], 4) = 0
    +0 > P. 1401:1501(100) ack 1
    +0 setsockopt(4, SOL_TCP, TCP_NODELAY, [1], 4) = 0
    +0 write(4, ..., 1) = 1
    +0 > P. 1501:1502(1) ack 1
    +0 send(4, ..., 5, MSG_MORE) = 5
    +.01 write(4, ..., 5) = 5
    +0 > P. 1502:1512(10) ack 1
    ",
    );
}

#[test]
fn closing_first() {
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +0 write(4, ..., 500) = 500
    +0 > P. 1:501(500) ack 1
    +0 close(4) = 0
    +0 > F. 501:501(0) ack 1
            ");
            assert_eq!(s.info().state, State::FinWait1);
            s.go("+.1 < . 1:1(0) ack 501 win 400");
            assert_eq!(s.info().state, State::FinWait1);
            s.go("+0 < . 1:1(0) ack 502 win 400");
            assert_eq!(s.info().state, State::FinWait2);
            s.go("
    +.1 < F. 1:1(0) ack 502 win 400
    +0 > . 502:502(0) ack 2
            ");
            assert_eq!(s.info().state, State::TimeWait);
            assert!(s.events.contains(Events::EOF | Events::TIME_WAIT));
            // The FIN again; a reset is ignored (RFC 1337).
            s.go("
    +30 < F. 1:1(0) ack 502 win 400
    +0 > . 502:502(0) ack 2
    +0 < R 2:2(0) win 0
    +59.9 < F. 1:1(0) ack 502 win 400
    +0 > . 502:502(0) ack 2
            ");
            assert_eq!(s.info().state, State::TimeWait);
            s.go("+60.1 accept(3) = 4");
            assert_eq!(s.info().state, State::Closed);
            assert_eq!(s.error, None);
        },
    );
}

#[test]
fn closing_last_and_at_once() {
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +.1 < FP. 1:101(100) ack 1 win 400
    +0 > . 1:1(0) ack 102
            ");
            assert_eq!(s.info().state, State::CloseWait);
            assert_eq!(s.events, Events::CONNECTED | Events::EOF);
            s.go("
    +0 write(4, ..., 300) = 300
    +0 > P. 1:301(300) ack 102
    +0 shutdown(4, SHUT_WR) = 0
    +0 > F. 301:301(0) ack 102
            ");
            assert_eq!(s.info().state, State::LastAck);
            s.go("+.1 < . 102:102(0) ack 302 win 400");
            assert_eq!(s.info().state, State::Closed);
            assert!(s.events.contains(Events::CLOSED));
        },
    );
    // FINs cross.
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +0 shutdown(4, SHUT_WR) = 0
    +0 > F. 1:1(0) ack 1
    +.1 < F. 1:1(0) ack 1 win 400
    +0 > . 2:2(0) ack 2
            ");
            assert_eq!(s.info().state, State::Closing);
            s.go("+0 < . 2:2(0) ack 2 win 400");
            assert_eq!(s.info().state, State::TimeWait);
        },
    );
}

#[test]
fn a_fin_rides_on_the_last_data_and_is_sent_again_with_it() {
    sack(
        "
    +0 write(4, ..., 10500) = 10500
    +0 > P. 1:10001(10000) ack 1
    +0 shutdown(4, SHUT_WR) = 0
    +.1 < . 1:1(0) ack 10001 win 400
    +0 > FP. 10001:10501(500) ack 1
    +.3 > FP. 10001:10501(500) ack 1
    +.1 < . 1:1(0) ack 10502 win 400
    ",
    );
}

#[test]
fn data_for_a_closed_socket_is_answered_with_a_reset() {
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +0 close(4) = 0
    +0 > F. 1:1(0) ack 1
    +0 < . 1:1(0) ack 2 win 400
    +.1 < . 1:101(100) ack 2 win 400
    +0 > R 2:2(0)
            ");
            assert_eq!(s.info().state, State::Closed);
        },
    );
    // Unread data: RFC 2525, section 2.17.
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +.1 < . 1:101(100) ack 1 win 400
    +0 > . 1:1(0) ack 101
    +0 close(4) = 0
    +0 > R. 1:1(0) ack 101
            ");
        },
    );
}

#[test]
fn fin_wait_2_is_limited_for_a_closed_socket_only() {
    for closed in [true, false] {
        with(
            |_| {},
            |s| {
                s.go(OPEN_SACK);
                s.go(if closed {
                    "+0 close(4) = 0"
                } else {
                    "+0 shutdown(4, SHUT_WR) = 0"
                });
                s.go("
    +0 > F. 1:1(0) ack 1
    +.1 < . 1:1(0) ack 2 win 400
    +59 accept(3) = 4
                ");
                assert_eq!(s.info().state, State::FinWait2);
                s.go("+2 accept(3) = 4");
                let gone = s.info().state == State::Closed;
                assert_eq!(gone, closed);
            },
        );
    }
}

#[test]
fn keepalive() {
    let keep = Keepalive::default()
        .with_idle(Duration::from_secs(10))
        .with_interval(Duration::from_secs(2))
        .with_probes(3);
    with(
        |c| c.keepalive = Some(keep),
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +5 < . 1:11(10) ack 1 win 400
    +0 > . 1:1(0) ack 11
    +10 > . 0:0(0) ack 11
    +.1 < . 11:11(0) ack 1 win 400
    +10 > . 0:0(0) ack 11
    +2 > . 0:0(0) ack 11
    +2 > . 0:0(0) ack 11
    +2 > R. 1:1(0) ack 11
            ");
            assert_eq!(s.error, Some(TcpError::TimedOut));
        },
    );
}

#[test]
fn a_keepalive_probe_is_answered() {
    sack(
        "
    +5 < . 0:0(0) ack 1 win 400
    +0 > . 1:1(0) ack 1
    ",
    );
}

#[test]
fn the_window_restarts_after_idling() {
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +0 write(4, ..., 10000) = 10000
    +0 > P. 1:10001(10000) ack 1
    +.1 < . 1:1(0) ack 10001 win 400
    +0 write(4, ..., 20000) = 20000
    +0 > P. 10001:30001(20000) ack 1
    +.1 < . 1:1(0) ack 30001 win 400
    +0 %{ assert tcpi_snd_cwnd == 40 }%
    +.1 write(4, ..., 1000) = 1000
    +0 > P. 30001:31001(1000) ack 1
    +0 %{ assert tcpi_snd_cwnd == 40 }%
    +.1 < . 1:1(0) ack 31001 win 400
    +10 write(4, ..., 1000) = 1000
    +0 > P. 31001:32001(1000) ack 1
    +0 %{ assert tcpi_snd_cwnd == 10 }%
            ");
        },
    );
}
