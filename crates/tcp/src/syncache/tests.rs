//! Against a list that models the cache, and under a flood.

use super::*;
use core::net::{IpAddr, Ipv4Addr};
use perimeter_wire::{SackBlocks, TcpOptions};
use proptest::prelude::*;

const SEC: u64 = 1_000_000_000;

pub(super) fn key(host: u32, port: u16) -> FlowKey {
    FlowKey {
        local: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        remote: IpAddr::V4(Ipv4Addr::from(0x0a01_0000 + host)),
        local_port: 80,
        remote_port: port,
    }
}

pub(super) fn listen() -> ListenParams {
    ListenParams {
        mss: 1460,
        rcv_wnd: 1 << 20,
        wscale: Some(7),
        timestamps: true,
        sack: true,
        full: false,
        reuse: false,
        tag: 1,
        origin: 0,
        from: None,
    }
}

pub(super) fn seg(flags: TcpFlags, seq: Seq, ack: Seq) -> TcpHdr {
    SegOut {
        seq,
        ack,
        flags,
        window: 1000,
        urgent: 0,
        opts: TcpOptions::default(),
    }
    .to_hdr(1, 2)
}

pub(super) fn syn(seq: Seq) -> TcpHdr {
    let mut s = seg(TcpFlags::SYN, seq, Seq(0));
    s.opts = TcpOptions {
        mss: Some(1400),
        wscale: Some(5),
        sack_permitted: true,
        ts: Some((777, 0)),
        sack: SackBlocks::default(),
    };
    s
}

fn cache() -> SynCache {
    SynCache::new(512, 30, 1, 2)
}

/// Sends a SYN that must be answered.
fn open(c: &mut SynCache, k: FlowKey, irs: Seq, iss: Seq, now: Time) -> SegOut {
    match c.on_syn(k, &syn(irs), &listen(), iss, 5, now) {
        SynAction::SendSynAck(s) | SynAction::SendCookie(s) => s,
        SynAction::Drop(why) => panic!("dropped: {why:?}"),
    }
}

#[test]
fn a_handshake_carries_everything_over() {
    for (irs, iss) in [(Seq(100), Seq(9_000)), (Seq(u32::MAX), Seq(u32::MAX))] {
        let mut c = cache();
        let t0 = Time::from_millis(1_000);
        let s = open(&mut c, key(1, 1), irs, iss, t0);
        assert_eq!((s.seq, s.ack), (iss, irs + 1));
        assert_eq!(s.flags, TcpFlags::SYN | TcpFlags::ACK);
        assert_eq!(s.window, 65_535, "not scaled on a SYN");
        assert_eq!((s.opts.mss, s.opts.wscale), (Some(1460), Some(7)));
        assert!(s.opts.sack_permitted);
        assert_eq!(s.opts.ts, Some((1_005, 777)));
        assert_eq!(c.deadline(), Time::from_millis(2_000));
        let mut ack = seg(TcpFlags::ACK, irs + 1, iss + 1);
        ack.opts.ts = Some((790, 1_005));
        let now = Time::from_millis(1_030);
        let AckAction::Established(e) = c.on_ack(&key(1, 1), &ack, now) else {
            panic!("not established")
        };
        let want = Established {
            at: now,
            origin: 0,
            iss,
            irs,
            mss: 1400,
            wscale: Some((5, 7)),
            timestamps: true,
            ts_recent: 790,
            ts_offset: 5,
            sack: true,
            snd_wnd: 32_000,
            rcv_wnd: 1 << 20,
            rcv_mss: 1460,
            rtt_ns: Some(30_000_000),
            retransmitted: false,
        };
        assert_eq!(e, want);
        assert!(c.live == 0);
        assert_eq!(c.deadline(), Time::NEVER);
        assert!(matches!(c.on_ack(&key(1, 1), &ack, now), AckAction::None));
    }
}

/// The thread that brings the acknowledgment read the clock before the one that sent the SYN-ACK.
#[test]
fn a_connection_does_not_begin_before_its_syn_ack() {
    let mut c = cache();
    let sent = Time::from_millis(1_000);
    open(&mut c, key(1, 1), Seq(100), Seq(9_000), sent);
    let mut ack = seg(TcpFlags::ACK, Seq(101), Seq(9_001));
    ack.opts.ts = Some((790, 1_005));
    let AckAction::Established(e) = c.on_ack(&key(1, 1), &ack, Time::from_millis(990)) else {
        panic!("not established")
    };
    assert_eq!((e.at, e.rtt_ns), (sent, Some(0)));
}

/// What a listener offers (scaling, timestamps and SACK, if 0, 1 and 2 are on), and a SYN (3 to 5).
pub(super) fn offers(on: impl Fn(u8) -> bool) -> (ListenParams, TcpHdr) {
    let l = ListenParams {
        wscale: on(0).then_some(3),
        timestamps: on(1),
        sack: on(2),
        ..listen()
    };
    let mut s = seg(TcpFlags::SYN, Seq(0), Seq(0));
    s.opts.wscale = on(3).then_some(200);
    s.opts.ts = on(4).then_some((1, 0));
    s.opts.sack_permitted = on(5);
    (l, s)
}

/// What one end does not offer, the other must not see.
#[test]
fn options_need_both_ends() {
    for bits in 0..64u8 {
        let on = |i: u8| bits >> i & 1 != 0;
        let mut c = cache();
        let (l, s) = offers(on);
        let SynAction::SendSynAck(r) = c.on_syn(key(1, 1), &s, &l, Seq(0), 0, Time::ZERO) else {
            panic!("dropped")
        };
        assert_eq!(r.opts.wscale.is_some(), on(0) && on(3));
        assert_eq!(r.opts.ts.is_some(), on(1) && on(4));
        assert_eq!(r.opts.sack_permitted, on(2) && on(5));
        let ack = seg(TcpFlags::ACK, Seq(1), Seq(1));
        let AckAction::Established(e) = c.on_ack(&key(1, 1), &ack, Time::ZERO) else {
            panic!("not established")
        };
        let both = on(0) && on(3);
        assert_eq!(e.wscale, both.then_some((14, 3)));
        assert_eq!(e.snd_wnd, if both { 1000 << 14 } else { 1000 });
        assert_eq!((e.timestamps, e.sack), (on(1) && on(4), on(2) && on(5)));
        assert_eq!(e.mss, 536, "none announced");
    }
}

#[test]
fn the_mss_has_a_floor() {
    for (mss, want) in [(0, 48), (1, 48), (48, 48), (49, 49), (65_535, 65_535)] {
        let mut c = cache();
        let mut s = syn(Seq(0));
        s.opts.mss = Some(mss);
        c.on_syn(key(1, 1), &s, &listen(), Seq(0), 0, Time::ZERO);
        let ack = seg(TcpFlags::ACK, Seq(1), Seq(1));
        let AckAction::Established(e) = c.on_ack(&key(1, 1), &ack, Time::ZERO) else {
            panic!("not established")
        };
        assert_eq!(e.mss, want);
    }
}

#[test]
fn only_a_plain_syn_opens() {
    let mut c = cache();
    for flags in 0..=255u8 {
        let s = seg(TcpFlags(flags), Seq(0), Seq(0));
        let a = c.on_syn(
            key(1, u16::from(flags)),
            &s,
            &listen(),
            Seq(0),
            0,
            Time::ZERO,
        );
        // SYN, with or without PSH, URG and the ECN flags.
        let plain = flags & 0b1_0111 == 0b0_0010;
        assert_eq!(matches!(a, SynAction::SendSynAck(_)), plain, "{flags:#x}");
    }
    // LAND.
    let me = FlowKey {
        remote: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        ..key(0, 80)
    };
    let a = c.on_syn(me, &syn(Seq(0)), &listen(), Seq(0), 0, Time::ZERO);
    assert!(matches!(a, SynAction::Drop(SynDrop::Malformed)));
}

#[test]
fn a_duplicate_syn_repeats_the_answer() {
    let mut c = cache();
    let first = open(&mut c, key(1, 1), Seq(100), Seq(7), Time::ZERO);
    // Also one with another sequence number: the old answer makes a restarted peer reset.
    for irs in [100, 5_000] {
        let again = open(&mut c, key(1, 1), Seq(irs), Seq(99), Time::from_millis(3));
        assert_eq!((again.seq, again.ack), (first.seq, first.ack));
    }
    assert_eq!(c.live, 1);
    assert_eq!(c.stats().retransmitted, 2);
    // Karn: which of the three was answered cannot be told without timestamps...
    let mut ack = seg(TcpFlags::ACK, Seq(101), Seq(8));
    let probe = |ack: &TcpHdr| {
        let mut c2 = cache();
        open(&mut c2, key(1, 1), Seq(100), Seq(7), Time::ZERO);
        open(&mut c2, key(1, 1), Seq(100), Seq(7), Time::from_millis(3));
        match c2.on_ack(&key(1, 1), ack, Time::from_millis(40)) {
            AckAction::Established(e) => e,
            other => panic!("{other:?}"),
        }
    };
    let e = probe(&ack);
    assert_eq!((e.rtt_ns, e.retransmitted), (None, true));
    // ...and can be with them.
    ack.opts.ts = Some((800, 3 + 5));
    assert_eq!(probe(&ack).rtt_ns, Some(37_000_000));
    ack.opts.ts = Some((800, 6_000));
    assert_eq!(probe(&ack).rtt_ns, None, "an echo from the future");
}

#[test]
fn unacceptable_acknowledgments_leave_the_entry() {
    for (irs, iss) in [(Seq(100), Seq(9_000)), (Seq(u32::MAX - 1), Seq(u32::MAX))] {
        let mut c = cache();
        open(&mut c, key(1, 1), irs, iss, Time::ZERO);
        let wrong = [iss, iss + 2, iss + (1 << 31), Seq(0) - 5];
        for ack in wrong {
            let s = seg(TcpFlags::ACK, irs + 1, ack);
            let a = c.on_ack(&key(1, 1), &s, Time::ZERO);
            assert!(matches!(a, AckAction::Rst(seq) if seq == ack), "{a:?}");
        }
        for seq in [irs, irs - 1, irs + 1 + (1 << 20), irs + (1 << 31)] {
            let s = seg(TcpFlags::ACK, seq, iss + 1);
            assert!(matches!(
                c.on_ack(&key(1, 1), &s, Time::ZERO),
                AckAction::Ignore
            ));
        }
        let mut s = seg(TcpFlags::ACK, irs + 1, iss + 1);
        s.opts.ts = Some((776, 0));
        let paws = c.on_ack(&key(1, 1), &s, Time::ZERO);
        assert!(matches!(paws, AckAction::Ignore));
        assert_eq!(c.live, 1);
        // Data that overtook the acknowledgment completes; its timestamp is not yet ours.
        let mut s = seg(TcpFlags::ACK, irs + 1_000, iss + 1);
        s.opts.ts = Some((900, 5));
        match c.on_ack(&key(1, 1), &s, Time::ZERO) {
            AckAction::Established(e) => assert_eq!(e.ts_recent, 777),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn resets_and_icmp_must_be_exact() {
    let mut c = cache();
    let (irs, iss) = (Seq(u32::MAX), Seq(40));
    open(&mut c, key(1, 1), irs, iss, Time::ZERO);
    for seq in [irs, irs + 2, irs + 1000] {
        assert!(!c.on_rst(&key(1, 1), &seg(TcpFlags::RST, seq, Seq(0))));
    }
    assert!(!c.on_rst(&key(2, 1), &seg(TcpFlags::RST, irs + 1, Seq(0))));
    for seq in [iss - 1, iss + 1] {
        assert!(!c.on_unreachable(&key(1, 1), seq));
    }
    assert!(c.on_rst(&key(1, 1), &seg(TcpFlags::RST, irs + 1, Seq(0))));
    open(&mut c, key(1, 1), irs, iss, Time::ZERO);
    assert!(c.on_unreachable(&key(1, 1), iss));
    assert!(c.live == 0);
    assert_eq!(c.stats().aborted, 2);
}

#[test]
fn syn_acks_repeat_at_1_3_7_15_31_and_end_at_63() {
    let mut c = cache();
    open(&mut c, key(1, 1), Seq(0), Seq(0), Time::ZERO);
    let mut sent = Vec::new();
    while c.live > 0 {
        let now = c.deadline();
        assert!(now < Time::NEVER);
        c.on_timer(Time(now.0 - 1), &mut |_, _, _| panic!("early"));
        c.on_timer(now, &mut |k, _, s| {
            assert_eq!((*k, s.ack), (key(1, 1), Seq(1)));
            sent.push(now.nanos() / SEC);
        });
        if c.live == 0 {
            assert_eq!(now.nanos() / SEC, 63);
        }
    }
    assert_eq!(sent, [1, 3, 7, 15, 31]);
    assert_eq!(c.stats().timed_out, 1);
}

#[test]
fn a_late_timer_sends_each_once() {
    let mut c = cache();
    for i in 0..100 {
        open(&mut c, key(i, 1), Seq(0), Seq(0), Time(u64::from(i)));
    }
    let mut n = 0;
    c.on_timer(Time(1_000 * SEC), &mut |_, _, _| n += 1);
    assert_eq!(n, 100);
    assert_eq!(c.deadline(), Time(1_002 * SEC));
}

#[test]
fn a_full_accept_queue_keeps_the_handshake() {
    let mut c = cache();
    let (irs, iss) = (Seq(9), Seq(70));
    open(&mut c, key(1, 1), irs, iss, Time::ZERO);
    let ack = seg(TcpFlags::ACK, irs + 1, iss + 1);
    let AckAction::Established(e) = c.on_ack(&key(1, 1), &ack, Time(SEC / 10)) else {
        panic!("not established")
    };
    c.put_back(key(1, 1), &e, None, Time(SEC / 10));
    assert_eq!((c.live, c.stats().completed), (1, 0));
    let mut again = None;
    c.on_timer(Time(2 * SEC), &mut |_, _, s| again = Some(s));
    let s = again.expect("sent again");
    assert_eq!((s.seq, s.ack, s.opts.mss), (iss, irs + 1, Some(1460)));
    assert_eq!((s.opts.wscale, s.opts.sack_permitted), (Some(7), true));
    let AckAction::Established(e2) = c.on_ack(&key(1, 1), &ack, Time(3 * SEC)) else {
        panic!("not established")
    };
    assert_eq!((e2.rtt_ns, e2.retransmitted), (None, true));
    // New SYNs are refused meanwhile.
    let full = ListenParams {
        full: true,
        origin: 0,
        from: None,
        ..listen()
    };
    let a = c.on_syn(key(2, 2), &syn(Seq(0)), &full, Seq(0), 0, Time::ZERO);
    assert!(matches!(a, SynAction::Drop(SynDrop::Backlog)));
}

/// A million spoofed SYNs, a legitimate handshake every ten thousand.
#[test]
fn a_flood_is_bounded_and_a_handshake_survives_it() {
    let (buckets, depth) = (512, 30);
    let mut c = SynCache::new(buckets, depth, 3, 4);
    let mut done = 0;
    let mut now = Time::ZERO;
    for i in 0..1_000_000u32 {
        now = now.plus(1_000);
        if i % 10_000 == 0 {
            open(&mut c, key(0xffff, i as u16), Seq(i), Seq(i), now);
        }
        open(&mut c, key(i, (i >> 16) as u16), Seq(i), Seq(0), now);
        // The client answers 1,000 spoofed SYNs later.
        if i % 10_000 == 1_000 {
            let from = i - 1_000;
            let ack = seg(TcpFlags::ACK, Seq(from + 1), Seq(from + 1));
            let a = c.on_ack(&key(0xffff, from as u16), &ack, now);
            done += u32::from(matches!(a, AckAction::Established(_)));
        }
        if i % 50_000 == 0 {
            c.on_timer(now, &mut |_, _, _| {});
        }
    }
    assert_eq!(done, 100, "every legitimate handshake");
    assert!(c.live <= c.capacity());
    assert!(c.memory() <= 3 << 20, "{}", c.memory());
    assert!(c.stats().evicted > 900_000);
}

#[test]
fn a_full_bucket_evicts_its_oldest() {
    let mut c = SynCache::new(1, 3, 0, 0);
    for i in 0..4 {
        open(&mut c, key(i, 1), Seq(0), Seq(0), Time(u64::from(i)));
    }
    assert_eq!((c.live, c.stats().evicted), (3, 1));
    let ack = seg(TcpFlags::ACK, Seq(1), Seq(1));
    assert!(matches!(
        c.on_ack(&key(0, 1), &ack, Time(9)),
        AckAction::None
    ));
    assert!(matches!(
        c.on_ack(&key(1, 1), &ack, Time(9)),
        AckAction::Established(_)
    ));
    let n = c.remove_if(&mut |k, _| k.remote_port == 1, &mut |_, _, _| {});
    assert_eq!((n, c.live, c.deadline()), (2, 0, Time::NEVER));
}

#[derive(Clone, Debug)]
enum Step {
    Syn(u32),
    Ack(u32, bool),
    Rst(u32, bool),
    Tick(u64),
    Remove(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let host = 0u32..40;
    prop_oneof![
        5 => host.clone().prop_map(Step::Syn),
        2 => (host.clone(), any::<bool>()).prop_map(|(h, ok)| Step::Ack(h, ok)),
        1 => (host.clone(), any::<bool>()).prop_map(|(h, ok)| Step::Rst(h, ok)),
        2 => (0u64..3_000).prop_map(Step::Tick),
        1 => host.prop_map(Step::Remove),
    ]
}

/// The model: hosts with their retransmissions and deadlines, in the order of creation.
#[derive(Default)]
struct Model {
    live: Vec<(u32, u8, u64)>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn agrees_with_a_list(steps in prop::collection::vec(step(), 1..120)) {
        const DEPTH: usize = 8;
        let mut c = SynCache::new(1, DEPTH, 0, 0);
        let mut m = Model::default();
        let mut ms = 0;
        let base = Seq(u32::MAX);
        for s in steps {
            let now = Time::from_millis(ms);
            match s {
                Step::Syn(h) => {
                    open(&mut c, key(h, 1), base, base, now);
                    if !m.live.iter().any(|e| e.0 == h) {
                        if m.live.len() == DEPTH {
                            m.live.remove(0);
                        }
                        m.live.push((h, 0, ms + 1_000));
                    }
                }
                Step::Ack(h, ok) => {
                    let ack = if ok { base + 1 } else { base };
                    let a = c.on_ack(&key(h, 1), &seg(TcpFlags::ACK, base + 1, ack), now);
                    let known = m.live.iter().any(|e| e.0 == h);
                    match a {
                        AckAction::None => prop_assert!(!known),
                        AckAction::Rst(_) => prop_assert!(known && !ok),
                        AckAction::Established(_) => prop_assert!(known && ok),
                        AckAction::Ignore => prop_assert!(false),
                    }
                    m.live.retain(|e| e.0 != h || !ok);
                }
                Step::Rst(h, ok) => {
                    let seq = if ok { base + 1 } else { base };
                    let known = m.live.iter().any(|e| e.0 == h);
                    let gone = c.on_rst(&key(h, 1), &seg(TcpFlags::RST, seq, Seq(0)));
                    prop_assert_eq!(gone, known && ok);
                    m.live.retain(|e| e.0 != h || !ok);
                }
                Step::Tick(by) => {
                    ms += by;
                    let mut sent = Vec::new();
                    c.on_timer(Time::from_millis(ms), &mut |k, _, _| sent.push(*k));
                    let mut want = Vec::new();
                    m.live.retain_mut(|e| {
                        if e.2 > ms {
                            return true;
                        }
                        e.1 += 1;
                        e.2 = ms + (1_000 << e.1);
                        if e.1 <= RETRIES {
                            want.push(key(e.0, 1));
                        }
                        e.1 <= RETRIES
                    });
                    sent.sort_by_key(|k| k.remote);
                    want.sort_by_key(|k| k.remote);
                    prop_assert_eq!(sent, want);
                }
                Step::Remove(h) => {
                    let n = c.remove_if(&mut |k, _| *k == key(h, 1), &mut |_, _, _| {});
                    prop_assert_eq!(n, m.live.iter().filter(|e| e.0 == h).count());
                    m.live.retain(|e| e.0 != h);
                }
            }
            prop_assert_eq!(c.live, m.live.len());
            let next = m.live.iter().map(|e| Time::from_millis(e.2)).min();
            prop_assert_eq!(c.deadline(), next.unwrap_or(Time::NEVER));
            prop_assert!(c.entries.len() <= DEPTH);
        }
    }
}
