//! What a connection must survive: each test fails without the defence that it names.
#![allow(missing_docs)]

#[path = "common/script.rs"]
mod script;

use std::time::Duration;

use perimeter_base::{PktBuf, Time};
use perimeter_tcp::{CaState, Config, Events, Input, SndBuf, Tcb, TcpError, Unreachable};
use perimeter_wire::{Seq, TcpFlags, TcpHdr};
use script::{OPEN_SACK, OPEN_TS, Options, Script, hdr, with};

#[test]
fn timestamps_measure_and_protect() {
    with(
        |_| {},
        |s| {
            s.go(OPEN_TS);
            // PAWS: dropped and answered. A later timestamp below the window doesn't count.
            s.go("
    +.1 < . 1:101(100) ack 1 win 40000 <TS val 199 ecr 1>
    +0 > . 1:1(0) ack 1 <TS val 201 ecr 200>
    +0 < . 1:101(100) ack 1 win 40000 <TS val 300 ecr 1>
    +0 > . 1:1(0) ack 101 <TS val 201 ecr 300>
    +0 < . 300000:300100(100) ack 1 win 40000 <TS val 400 ecr 1>
    +0 > . 1:1(0) ack 101 <TS val 201 ecr 300>
    +0 < . 301:401(100) ack 1 win 40000 <TS val 500 ecr 1>
    +0 > . 1:1(0) ack 101 <TS val 201 ecr 300,sack 301:401>
    +0 < . 101:201(100) ack 9999 win 40000 <TS val 600 ecr 1>
    +0 > . 1:1(0) ack 101 <TS val 201 ecr 300,sack 301:401>
    +0 < . 101:201(100) ack 1 win 40000 <TS val 550 ecr 1>
    +0 > . 1:1(0) ack 201 <TS val 201 ecr 550,sack 301:401>
            ");
            assert_eq!(s.delivered, 200);
        },
    );
}

#[test]
fn blind_attacks_get_challenges() {
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            // RFC 5961: a reset in the window, a SYN, an acknowledgment from long ago.
            s.go("
    +1 < R 100:100(0) win 0
    +0 > . 1:1(0) ack 1
    +0 < S 1:1(0) win 0
    +0 > . 1:1(0) ack 1
    +0 < S 900000:900000(0) win 0
    +0 > . 1:1(0) ack 1
            ");
            let old = (1u32.wrapping_sub(60_000)) as i64;
            s.go(&format!(
                "
    +0 < . 1:101(100) ack {old} win 400
    +0 > . 1:1(0) ack 1
            "
            ));
            assert_eq!((s.delivered, s.error), (0, None));
            // A reset outside is not even answered.
            s.go("
    +0 < R 900000:900000(0) win 0
    +0 write(4, ..., 1) = 1
    +0 > P. 1:2(1) ack 1
            ");
        },
    );
}

#[test]
fn challenges_are_few() {
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            let before = s.info().segs_out;
            for _ in 0..1000 {
                s.go("+0 < S 1:1(0) win 0");
            }
            let per_second = s.info().segs_out - before;
            assert!((1..=24).contains(&per_second), "{per_second}");
            s.go("+1 < S 1:1(0) win 0");
            assert!(
                s.info().segs_out > before + per_second,
                "again a second later"
            );
        },
    );
}

/// CVE-2016-5696: how many challenge ACKs one connection still has says nothing about another.
/// Each has a limit of its own, which varies by connection and by second, and what is spent on one
/// is not missing on the other.
#[test]
fn challenges_to_one_connection_tell_nothing_about_another() {
    let plain = |flags| TcpHdr {
        seq: Seq(1000),
        flags,
        window: 60_000,
        ..TcpHdr::default()
    };
    // Per second: the challenge ACKs that 40 SYNs draw, on a connection with that clock and ISS.
    let limits = |probes_before: usize, offset: u32, iss: u32| -> Vec<u32> {
        let cfg = Config::default();
        let start = Time::from_millis(10_000);
        let open = |iss, offset| {
            let mut t = Tcb::connect(&cfg, Seq(iss), offset, start);
            sent(&mut t, start);
            let syn_ack = TcpHdr {
                ack: Seq(iss) + 1,
                ..plain(TcpFlags::SYN | TcpFlags::ACK)
            };
            t.input(&syn_ack, None, start, &mut Input::default());
            sent(&mut t, start);
            t
        };
        let probe = |t: &mut Tcb, now| {
            t.input(&plain(TcpFlags::SYN), None, now, &mut Input::default());
            sent(t, now)
        };
        let (mut ours, mut other) = (open(iss, offset), open(77, 99));
        (0..8)
            .map(|sec| {
                let now = start + Duration::from_millis(sec * 1000 + 500);
                for _ in 0..probes_before {
                    probe(&mut other, now);
                }
                (0..40).map(|_| probe(&mut ours, now)).sum()
            })
            .collect()
    };
    let alone = limits(0, 1234, 5678);
    assert!(alone.iter().all(|n| (1..=24).contains(n)), "{alone:?}");
    assert_eq!(limits(1000, 1234, 5678), alone, "probes elsewhere show");
    // Nor can it be foretold from another connection's.
    let others: Vec<_> = (0..8u32)
        .map(|i| limits(0, i * 999_983, i * 777_767))
        .collect();
    assert!(others.iter().all(|o| *o != alone), "{others:?}");
    let first: std::collections::HashSet<u32> = others.iter().map(|o| o[0]).collect();
    assert!(first.len() > 1, "{others:?}");
}

/// Runs the output loop; how many segments that were.
fn sent(t: &mut Tcb, now: Time) -> u32 {
    let empty = SndBuf::new(1000);
    let mut n = 0;
    while t.plan(empty.queued(), now).is_some() {
        n += 1;
    }
    n
}

#[test]
fn two_ends_that_disagree_do_not_loop() {
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            let before = s.info().segs_out;
            for _ in 0..1000 {
                s.go("+0 < . 500000:500000(0) ack 1 win 400");
            }
            assert!(s.info().segs_out <= before + 1);
        },
    );
}

#[test]
fn optimistic_and_divided_acknowledgments_gain_nothing() {
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +0 write(4, ..., 10000) = 10000
    +0 > P. 1:10001(10000) ack 1
    +.1 < . 1:1(0) ack 10002 win 400
    +0 < . 1:1(0) ack 30000 win 400
    +0 %{ assert tcpi_snd_cwnd == 10
assert tcpi_unacked == 10 }%
            ");
            for ack in 2..=1001 {
                s.go(&format!("+0 < . 1:1(0) ack {ack} win 400"));
            }
            assert_eq!(s.info().cwnd_bytes, 11_000);
        },
    );
}

#[test]
fn icmp_is_believed_only_about_what_is_out() {
    with(
        |_| {},
        |s| {
            s.go("
    0 connect(3) = 0
    +0 > S 0:0(0) <...>
            ");
            let t = s.tcb.as_mut().expect("connection");
            let iss = t.snd_una();
            assert_eq!(t.on_unreachable(Unreachable::Port, iss + 1), Events::NONE);
            let e = t.on_unreachable(Unreachable::Host, iss);
            assert_eq!(e, Events::ERROR | Events::CLOSED);
            assert_eq!(t.take_error(), Some(TcpError::HostUnreachable));
            assert_eq!(t.take_error(), None, "reported once");
        },
    );
    with(
        |c| c.data_retries = 1,
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
            ");
            let now = s.now;
            let t = s.tcb.as_mut().expect("connection");
            let una = t.snd_una();
            assert_eq!(t.on_unreachable(Unreachable::Port, una), Events::NONE);
            assert!(
                !t.on_packet_too_big(600, una + 4000, now),
                "not outstanding"
            );
            assert!(!t.on_packet_too_big(1500, una, now), "not smaller");
            assert_eq!(t.mss(), 1000);
            assert!(t.on_packet_too_big(68, una, now));
            assert_eq!(t.mss(), 512, "not below the floor");
            s.output();
            s.go("
    +0 > . 1:513(512) ack 1
    +0 > . 513:3585(3072) ack 1
    +0 > P. 3585:4001(416) ack 1
    +.3 > . 1:513(512) ack 1
    +.6 > R. 4001:4001(0) ack 1
            ");
            assert_eq!(
                s.error,
                Some(TcpError::Refused),
                "the soft error explains it"
            );
        },
    );
}

#[test]
fn tiny_announced_segments_are_raised() {
    with(
        |_| {},
        |s| {
            s.go("
    0 listen(3, 1) = 0
    +0 < S 0:0(0) win 40000 <mss 1>
    +0 > S. 0:0(0) ack 1 <mss 1460>
    +.1 < . 1:1(0) ack 1 win 40000
    +0 write(4, ..., 96) = 96
    +0 > . 1:49(48) ack 1
    +0 > P. 49:97(48) ack 1
            ");
        },
    );
}

#[test]
fn urgent_pointers_leave_the_stream_alone() {
    for (pointer, len) in [
        (0u16, 10),
        (1, 10),
        (10, 10),
        (11, 10),
        (u16::MAX, 10),
        (5, 0),
    ] {
        with(
            |_| {},
            |s| {
                s.go(OPEN_SACK);
                let mut h = hdr(s, 0, 0, TcpFlags::ACK | TcpFlags::URG);
                h.urgent = pointer;
                let data = (len > 0).then(|| PktBuf::copy_of(&vec![7; len]));
                s.segment(&h, data);
                assert_eq!(s.delivered, len as u64, "{pointer}");
            },
        );
    }
}

#[test]
fn time_wait_gives_way_to_what_is_new() {
    for ts in [false, true] {
        with(
            |_| {},
            |s| {
                s.go(if ts { OPEN_TS } else { OPEN_SACK });
                let opt = if ts { "<TS val 300 ecr 1>" } else { "" };
                s.go(&format!(
                    "
    +0 close(4) = 0
    +0 > F. 1:1(0) ack 1 {}
    +0 < F. 1:1(0) ack 2 win 400 {opt}
    +0 > . 2:2(0) ack 2 {}
                ",
                    if ts { "<TS val 101 ecr 200>" } else { "" },
                    if ts { "<TS val 101 ecr 300>" } else { "" }
                ));
                let t = s.tcb.as_ref().expect("connection");
                let syn = |seq: u32, val: Option<u32>| {
                    let mut h = hdr(s, seq, 0, TcpFlags::SYN);
                    h.ack = Seq(0);
                    h.opts.ts = val.map(|v| (v, 0));
                    h
                };
                assert!(t.time_wait_reuse(&hdr(s, 0, 0, TcpFlags::ACK)).is_none());
                let least = Some(t.snd_nxt() + 65_537);
                let old = 0u32.wrapping_sub(10);
                if ts {
                    assert_eq!(t.time_wait_reuse(&syn(old, Some(301))), least);
                    assert_eq!(t.time_wait_reuse(&syn(10, Some(299))), None);
                } else {
                    assert_eq!(t.time_wait_reuse(&syn(10, None)), least);
                    assert_eq!(t.time_wait_reuse(&syn(old, None)), None);
                }
            },
        );
    }
}

/// CVE-2018-5390.
#[test]
fn a_hundred_thousand_tiny_segments_out_of_order() {
    let mut s = Script::new(Options::default());
    s.go(OPEN_SACK);
    s.go("
    +0 < . 1:2(1) ack 1 win 400
    +0 > . 1:1(0) ack 2
    ");
    let started = std::time::Instant::now();
    for i in 0..100_000u32 {
        let h = hdr(
            &s,
            2 + (i.wrapping_mul(7919) % 65_000) * 2,
            0,
            TcpFlags::ACK,
        );
        s.segment(&h, Some(PktBuf::copy_of(b"x")));
    }
    let t = s.tcb.as_ref().expect("connection");
    let limit = Config::default().max_reassembly_bytes as usize;
    assert!(t.memory() <= limit, "{}", t.memory());
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(s.delivered, 1);
    assert_eq!(s.info().ca_state, CaState::Open);
}
