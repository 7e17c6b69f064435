//! Segments that are out of place, and connections that nobody wants any more: what RFC 9293
//! and RFC 5961 ask for, and how often at most.
#![allow(missing_docs)]

#[path = "common/script.rs"]
mod script;

use perimeter_tcp::{State, TcpError};
use perimeter_wire::TcpFlags;
use script::{OPEN_SACK, Script, hdr, with};

/// Segments sent while `n` times the same segment arrives at once.
fn answers(s: &mut Script, n: u32, line: &str) -> u32 {
    let before = s.info().segs_out;
    for _ in 0..n {
        s.go(line);
    }
    s.forget_sent();
    s.info().segs_out - before
}

/// RFC 9293, section 3.10.7.4: "If the ACK acks something not yet sent, send an ACK"; RFC 5961,
/// section 5.2.
#[test]
fn an_acknowledgment_of_what_was_never_sent_is_answered() {
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +1 < . 1:101(100) ack 5000 win 400
    +0 > . 1:1(0) ack 1
            ");
            assert_eq!(s.delivered, 0, "nothing of the segment is used");
            let n = answers(s, 1000, "+0 < . 1:101(100) ack 5000 win 400");
            assert!(n <= 12, "{n} answers");
        },
    );
}

const CROSSED: &str = "
    0 connect(3) = 0
    +0 > S 0:0(0) <...>
    +.01 < S 0:0(0) win 40000 <mss 1000,sackOK>
    +0 > S. 0:0(0) ack 1 <...>
";

/// RFC 5961, section 3.2 and RFC 9293, section 3.10.7.4, in SYN-RECEIVED.
#[test]
fn after_syns_have_crossed_strays_get_challenges() {
    with(
        |_| {},
        |s| {
            s.go(CROSSED);
            s.go("
    +.01 < R 500:500(0) win 0
    +0 > . 1:1(0) ack 1
    +.01 < . 900000:900100(100) ack 1 win 400
    +0 > . 1:1(0) ack 1
            ");
            // The SYN-ACK of the host that was called, when the SYN that crossed was a
            // stranger's.
            s.go("
    +.01 < S. 70000:70000(0) ack 1 win 400
    +0 > . 1:1(0) ack 1
            ");
            let n = answers(s, 1000, "+0 < R 500:500(0) win 0");
            assert!(n <= 12, "{n} answers");
            s.go("
    +.01 < . 1:1(0) ack 1 win 400
            ");
            assert_eq!(s.info().state, State::Established);
            assert_eq!(s.error, None);
        },
    );
    // A reset at RCV.NXT is one.
    with(
        |_| {},
        |s| {
            s.go(CROSSED);
            s.go("+.01 < R 1:1(0) win 0");
            assert_eq!(s.error, Some(TcpError::Refused));
        },
    );
}

const TIME_WAIT: &str = "
    +0 close(4) = 0
    +0 > F. 1:1(0) ack 1
    +.1 < F. 1:1(0) ack 2 win 400
    +0 > . 2:2(0) ack 2
";

/// RFC 9293, section 3.10.7.4: only the peer's own FIN, come again, starts the wait anew.
#[test]
fn time_wait_is_not_prolonged_by_strangers() {
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            s.go(TIME_WAIT);
            let n = answers(s, 300, "+0 < F. 50000:50000(0) ack 2 win 400");
            assert!(n <= 12, "{n} answers");
            let n = answers(s, 300, "+0 < F. 1:1(0) ack 900000 win 400");
            assert!(n <= 12, "{n} answers");
            s.go("
    +50 < F. 50000:50000(0) ack 2 win 400
    +0 > . 2:2(0) ack 2
            ");
            s.advance(s.now + core::time::Duration::from_secs(11));
            assert_eq!(s.info().state, State::Closed, "60 s are over");
        },
    );
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            s.go(TIME_WAIT);
            s.go("
    +50 < F. 1:1(0) ack 2 win 400
    +0 > . 2:2(0) ack 2
            ");
            s.advance(s.now + core::time::Duration::from_secs(50));
            assert_eq!(s.info().state, State::TimeWait, "60 s from the last FIN");
            let n = answers(s, 300, "+0 < F. 1:1(0) ack 2 win 400");
            assert!(n <= 12, "{n} answers");
            s.advance(s.now + core::time::Duration::from_secs(61));
            assert_eq!(s.info().state, State::Closed);
        },
    );
}

/// Linux's `tcp_orphan_retries`: while an application holds the connection, a peer that answers
/// may keep its window shut; once nobody does, the back-off is the limit.
#[test]
fn an_orphan_does_not_wait_for_a_shut_window_for_ever() {
    for orphan in [true, false] {
        with(
            |_| {},
            |s| {
                s.go(OPEN_SACK);
                s.go("
    +0 write(4, ..., 4000) = 4000
    +0 > P. 1:4001(4000) ack 1
    +.1 < . 1:1(0) ack 4001 win 0
    +0 write(4, ..., 4000) = 4000
                ");
                if orphan {
                    s.go("+0 close(4) = 0");
                }
                let start = s.now;
                let mut probes = 0;
                while s.info().state != State::Closed && s.now.since(start).as_secs() < 1000 {
                    let sent = s.info().segs_out;
                    let due = s.tcb.as_ref().map(|t| t.deadline()).expect("connection");
                    s.advance(due);
                    if s.info().segs_out > sent && s.info().state != State::Closed {
                        probes += 1;
                        let mut h = hdr(s, 0, 0, TcpFlags::ACK);
                        h.window = 0;
                        s.segment(&h, None);
                    }
                }
                let lived = s.now.since(start).as_secs();
                if orphan {
                    assert_eq!(s.error, Some(TcpError::TimedOut), "{lived} s");
                    assert!((100..=400).contains(&lived), "{lived} s, {probes} probes");
                } else {
                    assert_eq!(s.info().state, State::Established);
                }
            },
        );
    }
}

/// RFC 1191, section 6.3: what a router said about the path holds for ten minutes.
#[test]
fn a_path_mtu_is_tried_again_after_ten_minutes() {
    with(
        |c| c.keepalive = None,
        |s| {
            s.go(OPEN_SACK);
            s.go("
    +0 write(4, ..., 2000) = 2000
    +0 > P. 1:2001(2000) ack 1
            ");
            let now = s.now;
            let t = s.tcb.as_mut().expect("connection");
            assert!(t.on_packet_too_big(600, t.snd_una(), now));
            s.output();
            s.go("
    +0 > . 1:561(560) ack 1
    +0 > P. 561:2001(1440) ack 1
    +.1 < . 1:1(0) ack 2001 win 400
    +300 write(4, ..., 1000) = 1000
    +0 > P. 2001:3001(1000) ack 1
    +.1 < . 1:1(0) ack 3001 win 400
            ");
            assert_eq!(s.info().snd_mss, 560, "five minutes are too early");
            s.advance(s.now + core::time::Duration::from_secs(301));
            assert_eq!(s.info().snd_mss, 1000, "ten minutes are over");
            // It is still too big: the same again.
            s.go("
    +0 write(4, ..., 1000) = 1000
    +0 > P. 3001:4001(1000) ack 1
            ");
            let now = s.now;
            let t = s.tcb.as_mut().expect("connection");
            assert!(t.on_packet_too_big(600, t.snd_una(), now));
            assert_eq!(s.info().snd_mss, 560);
        },
    );
}
