//! What a cookie brings back, and what is not taken for one.

use super::super::tests::{key, listen, offers, seg, syn};
use super::super::*;
use super::*;

const MINUTE: u64 = 60_000_000_000;

fn always() -> SynCache {
    SynCache::new(4, 4, 1, 2).with_cookies(Cookies::Always)
}

fn send(c: &mut SynCache, k: FlowKey, syn: &TcpHdr, l: &ListenParams, now: Time) -> SegOut {
    match c.on_syn(k, syn, l, Seq(4_711), 5, now) {
        SynAction::SendCookie(s) => s,
        other => panic!("{other:?}"),
    }
}

/// The acknowledgment that a peer sends.
fn answer(syn: &TcpHdr, r: &SegOut) -> TcpHdr {
    let mut ack = seg(TcpFlags::ACK, syn.seq + 1, r.seq + 1);
    ack.opts.ts = r.opts.ts.map(|(val, _)| (790, val));
    ack
}

#[test]
fn everything_comes_back() {
    for irs in [Seq(100), Seq(u32::MAX)] {
        let mut c = always();
        let t0 = Time::from_millis(1_000_003);
        let s = syn(irs);
        let r = send(&mut c, key(1, 1), &s, &listen(), t0);
        assert!(
            c.live == 0 && c.deadline() == Time::NEVER,
            "nothing is kept"
        );
        assert_eq!((r.ack, r.flags), (irs + 1, TcpFlags::SYN | TcpFlags::ACK));
        assert_eq!((r.opts.mss, r.opts.wscale), (Some(1460), Some(7)));
        assert!(r.opts.sack_permitted);
        let (val, echo) = r.opts.ts.unwrap();
        let clock = ts_clock(t0, 5);
        assert!(
            val <= clock && val + 32 > clock && echo == 777,
            "{val} at {clock}"
        );
        let now = Time::from_millis(1_000_203);
        let ack = answer(&s, &r);
        let e = c.on_cookie(&key(1, 1), &ack, &listen(), 5, now).unwrap();
        let want = Established {
            at: now,
            origin: 0,
            iss: r.seq,
            irs,
            mss: 1360,
            wscale: Some((5, 7)),
            timestamps: true,
            ts_recent: 790,
            ts_offset: 5,
            sack: true,
            snd_wnd: 32_000,
            rcv_wnd: 1 << 20,
            rcv_mss: 1460,
            rtt_ns: None,
            retransmitted: false,
        };
        assert_eq!(e, want, "the MSS of 1400 is rounded down");
        assert_eq!((c.stats().cookies_sent, c.stats().cookies_accepted), (1, 1));
    }
}

/// What one end does not offer the other does not see, and without timestamps there is neither
/// scaling nor SACK.
#[test]
fn options_need_both_ends_and_timestamps() {
    for bits in 0..64u8 {
        let on = |i: u8| bits >> i & 1 != 0;
        let mut c = always();
        let (l, s) = offers(on);
        let r = send(&mut c, key(1, 1), &s, &l, Time(9));
        let ts = on(1) && on(4);
        let (scale, sack) = (ts && on(0) && on(3), ts && on(2) && on(5));
        assert_eq!(r.opts.wscale, scale.then_some(3));
        assert_eq!((r.opts.ts.is_some(), r.opts.sack_permitted), (ts, sack));
        let ack = answer(&s, &r);
        let e = c.on_cookie(&key(1, 1), &ack, &l, 5, Time(9)).unwrap();
        assert_eq!(e.wscale, scale.then_some((14, 3)));
        assert_eq!(e.snd_wnd, if scale { 1000 << 14 } else { 1000 });
        assert_eq!((e.timestamps, e.sack, e.mss), (ts, sack, 536));
        // Timestamps that were not agreed on, and agreed ones that are missing.
        let mut other = ack;
        other.opts.ts = ack.opts.ts.xor(Some((1, 1)));
        let taken = c.on_cookie(&key(1, 1), &other, &l, 5, Time(9));
        assert_eq!(taken.is_some(), !on(1), "{bits:b}");
    }
}

#[test]
fn the_mss_is_rounded_down() {
    let mut before = 0;
    for mss in [
        0, 48, 215, 216, 535, 536, 1219, 1220, 1399, 1440, 1459, 1460, 8960, 65_535,
    ] {
        let mut c = always();
        let mut s = syn(Seq(0));
        s.opts.mss = Some(mss);
        let r = send(&mut c, key(1, 1), &s, &listen(), Time::ZERO);
        let ack = answer(&s, &r);
        let e = c
            .on_cookie(&key(1, 1), &ack, &listen(), 5, Time::ZERO)
            .unwrap();
        assert!(
            e.mss <= mss.max(MIN_MSS) && e.mss >= before.max(MIN_MSS),
            "{mss}: {}",
            e.mss
        );
        assert!(MSS.contains(&e.mss));
        before = e.mss;
    }
}

#[test]
fn the_timestamp_is_not_ahead() {
    for clock in [0, 1, 31, 32, 63, 1_000, u32::MAX] {
        for bits in 0..=TS_BITS {
            let val = stamp(clock, bits);
            assert_eq!(val & TS_BITS, bits);
            assert!(clock.wrapping_sub(val) <= TS_BITS);
        }
    }
}

/// Changing anything that the hash covers makes another number.
#[test]
fn what_is_changed_is_refused() {
    let now = Time::from_millis(200_000);
    let mut c = always();
    let s = syn(Seq(100));
    let r = send(&mut c, key(1, 1), &s, &listen(), now);
    let good = answer(&s, &r);
    let taken = |c: &mut SynCache, k: FlowKey, s: &TcpHdr, l: &ListenParams| {
        c.on_cookie(&k, s, l, 5, now).is_some()
    };
    for bit in 0..32 {
        let mut s = good;
        s.ack = Seq((good.ack - 1).0 ^ 1 << bit) + 1;
        assert!(!taken(&mut c, key(1, 1), &s, &listen()), "bit {bit} of ACK");
        let mut s = good;
        s.seq = Seq(good.seq.0 ^ 1 << bit);
        assert!(!taken(&mut c, key(1, 1), &s, &listen()), "bit {bit} of SEQ");
    }
    let v = key(1, 1);
    let others = [
        key(2, 1),
        key(1, 2),
        FlowKey {
            local_port: 81,
            ..v
        },
        FlowKey {
            local: key(9, 9).remote,
            ..v
        },
    ];
    for k in others {
        assert!(!taken(&mut c, k, &good, &listen()));
    }
    let l = listen();
    let offers = [
        ListenParams { tag: 2, ..l },
        ListenParams { sack: false, ..l },
        ListenParams {
            wscale: Some(8),
            ..l
        },
        ListenParams { wscale: None, ..l },
        ListenParams {
            timestamps: false,
            ..l
        },
    ];
    for l in offers {
        assert!(!taken(&mut c, v, &good, &l), "{l:?}");
    }
    let mut stranger = SynCache::new(4, 4, 1, 3).with_cookies(Cookies::Always);
    send(&mut stranger, key(7, 7), &s, &listen(), now);
    assert!(!taken(&mut stranger, v, &good, &listen()), "another secret");
    assert!(taken(&mut c, v, &good, &listen()));
}

/// A number is good for this period and the next one, not for those before and after.
#[test]
fn a_cookie_is_accepted_for_at_most_two_periods() {
    let second = 1_000_000_000;
    for at in 0..140 {
        let mut c = always();
        let sent = Time(10 * MINUTE + at * second);
        let s = syn(Seq(100));
        let r = send(&mut c, key(1, 1), &s, &listen(), sent);
        let ack = answer(&s, &r);
        for later in (0..400).step_by(3) {
            let now = sent.plus(later * second);
            // Another peer's keeps cookies expected.
            send(&mut c, key(2, 2), &s, &listen(), now);
            let taken = c.on_cookie(&key(1, 1), &ack, &listen(), 5, now).is_some();
            assert!(taken || later > 68, "{at} {later}");
            assert!(!taken || later < 138, "{at} {later}");
        }
    }
}

/// A million made-up acknowledgments, with every bit at random.
#[test]
fn what_is_made_up_is_refused() {
    let mut c = always();
    send(&mut c, key(1, 1), &syn(Seq(0)), &listen(), Time(MINUTE));
    let mut x = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 16) as u32
    };
    for _ in 0..1_000_000 {
        let mut s = seg(TcpFlags::ACK, Seq(random()), Seq(random()));
        s.opts.ts = Some((random(), random()));
        let k = key(random() & 0xffff, random() as u16);
        assert!(c.on_cookie(&k, &s, &listen(), 5, Time(MINUTE)).is_none());
    }
    let s = c.stats();
    assert_eq!((s.cookies_refused, s.cookies_accepted), (1_000_000, 0));
}

/// While none was sent for two periods, nothing is looked at.
#[test]
fn cookies_are_expected_only_after_they_were_sent() {
    let mut c = SynCache::new(1, 1, 1, 2).with_cookies(Cookies::WhenFull);
    let ack = seg(TcpFlags::ACK, Seq(1), Seq(1));
    let look = |c: &mut SynCache, now| {
        assert!(c.on_cookie(&key(1, 1), &ack, &listen(), 5, now).is_none());
        c.stats().cookies_refused
    };
    let now = Time(MINUTE);
    assert!(!c.expects_cookie(now) && look(&mut c, now) == 0);
    let first = c.on_syn(key(1, 1), &syn(Seq(5)), &listen(), Seq(8), 5, now);
    assert!(matches!(first, SynAction::SendSynAck(_)) && !c.expects_cookie(now));
    send(&mut c, key(2, 2), &syn(Seq(5)), &listen(), now);
    assert!(c.expects_cookie(now) && look(&mut c, now) == 1);
    let end = now.plus(LIFE);
    assert!(c.expects_cookie(Time(end.0 - 1)) && !c.expects_cookie(end));
    assert_eq!(look(&mut c, end), 1);
}

/// The cookie's answer meets the entry of the SYN that its peer has sent again meanwhile.
#[test]
fn a_repeated_syn_does_not_spoil_the_cookie() {
    let mut c = SynCache::new(1, 1, 1, 2).with_cookies(Cookies::WhenFull);
    let (now, s) = (Time(MINUTE), syn(Seq(5)));
    c.on_syn(key(9, 9), &s, &listen(), Seq(8), 5, now);
    let r = send(&mut c, key(1, 1), &s, &listen(), now);
    assert!(c.on_rst(&key(9, 9), &seg(TcpFlags::RST, Seq(6), Seq(0))));
    let again = c.on_syn(key(1, 1), &s, &listen(), Seq(8), 5, now);
    assert!(matches!(again, SynAction::SendSynAck(_)) && c.live == 1);
    let ack = answer(&s, &r);
    assert!(matches!(c.on_ack(&key(1, 1), &ack, now), AckAction::Rst(_)));
    assert!(c.on_cookie(&key(1, 1), &ack, &listen(), 5, now).is_some());
    assert!(c.live == 0);
}

/// What takes over a connection in TIME-WAIT follows its numbers: an entry, whoever has to go.
#[test]
fn a_reused_flow_gets_an_entry() {
    let mut c = SynCache::new(1, 1, 1, 2).with_cookies(Cookies::Always);
    let reuse = ListenParams {
        reuse: true,
        ..listen()
    };
    for port in 1..3 {
        match c.on_syn(key(1, port), &syn(Seq(5)), &reuse, Seq(8), 5, Time::ZERO) {
            SynAction::SendSynAck(r) => assert_eq!(r.seq, Seq(8)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((c.live, c.stats().evicted), (1, 1));
}

#[test]
fn a_full_listener_takes_no_cookie() {
    let mut c = always();
    let (now, s) = (Time(MINUTE), syn(Seq(5)));
    let full = ListenParams {
        full: true,
        ..listen()
    };
    let dropped = c.on_syn(key(1, 1), &s, &full, Seq(8), 5, now);
    assert!(matches!(dropped, SynAction::Drop(SynDrop::Backlog)));
    let r = send(&mut c, key(1, 1), &s, &listen(), now);
    let ack = answer(&s, &r);
    assert!(c.on_cookie(&key(1, 1), &ack, &full, 5, now).is_some());
    let stats = c.stats();
    assert_eq!((stats.backlog_full, stats.cookies_accepted), (2, 0));
}
