//! Floods, with the round trips of those who mean it.

use super::tests::{key, listen, seg, syn};
use super::*;
use perimeter_base::Time;

/// Where the flood comes from: hosts that never answer.
const STRANGERS: u32 = 1 << 17;

/// 100 handshakes during a second of flood, each acknowledged a round trip later; how many
/// complete.
fn survivors(c: &mut SynCache, per_second: u64, rtt_ms: u64) -> usize {
    let (start, gap) = (Time::from_millis(5_000), 1_000_000_000 / per_second);
    let mut under_way = std::collections::VecDeque::new();
    let (mut opened, mut done, mut n) = (0u16, 0, 0);
    // The cache is full by the time that the first begins.
    while done < 100 && n < per_second * 2 {
        let now = start.plus(n * gap);
        let from = key(STRANGERS + (n as u32 & 0xffff), (n >> 16) as u16);
        c.on_syn(from, &syn(Seq(n as u32)), &listen(), Seq(n as u32), 5, now);
        if opened < 100 && now >= start.plus(500_000_000 + u64::from(opened) * 10_000_000) {
            let k = key(1, opened);
            let s = syn(Seq(77 + u32::from(opened)));
            match c.on_syn(k, &s, &listen(), Seq(9_000), 5, now) {
                SynAction::SendSynAck(r) | SynAction::SendCookie(r) => {
                    under_way.push_back((now.plus(rtt_ms * 1_000_000), k, s.seq, r));
                }
                SynAction::Drop(why) => panic!("{why:?}"),
            }
            opened += 1;
        }
        while let Some((at, k, irs, r)) = under_way.front()
            && *at <= now
        {
            let mut ack = seg(TcpFlags::ACK, *irs + 1, r.seq + 1);
            ack.opts.ts = r.opts.ts.map(|(val, _)| (800, val));
            done += usize::from(complete(c, k, &ack, now));
            under_way.pop_front();
        }
        if n % 1_000 == 0 {
            c.on_timer(now, &mut |_, _, _| ());
        }
        n += 1;
    }
    done
}

fn complete(c: &mut SynCache, k: &FlowKey, ack: &TcpHdr, now: Time) -> bool {
    matches!(c.on_ack(k, ack, now), AckAction::Established(_))
        || c.on_cookie(k, ack, &listen(), 5, now).is_some()
}

#[test]
fn handshakes_survive_a_flood_whatever_their_round_trip() {
    for per_second in [100_000, 200_000] {
        for rtt_ms in [20, 80, 200] {
            let mut c = SynCache::new(512, 30, 1, 2).with_cookies(Cookies::WhenFull);
            let n = survivors(&mut c, per_second, rtt_ms);
            assert_eq!(n, 100, "{per_second} SYNs/s, {rtt_ms} ms");
        }
    }
}

/// What the table above looks like to those who hold it: without cookies the oldest entry goes, and
/// with it whoever is far away.
#[test]
fn without_cookies_far_handshakes_are_lost() {
    let mut c = SynCache::new(512, 30, 1, 2);
    assert_eq!(survivors(&mut c, 100_000, 20), 100);
    let mut c = SynCache::new(512, 30, 1, 2);
    assert!(survivors(&mut c, 100_000, 200) < 20);
}

/// Memory follows what is held: up with a flood, and back when its entries have run out, also with
/// a few left.
#[test]
fn memory_is_given_back() {
    for cookies in [Cookies::Off, Cookies::WhenFull] {
        let mut c = SynCache::new(512, 30, 1, 2).with_cookies(cookies);
        let fresh = c.memory();
        let mut peak = 0;
        for round in 0..3u64 {
            let start = Time::from_millis(round * 100_000);
            for i in 0..40_000 {
                let now = start.plus(u64::from(i) * 10_000);
                c.on_syn(key(i, 1), &syn(Seq(i)), &listen(), Seq(i), 5, now);
            }
            assert!(c.live > 15_000 && c.memory() <= 3 << 20, "{}", c.memory());
            assert!(c.pinned() > 1 << 20);
            peak = peak.max(c.memory());
            let late = start.plus(63_200_000_000);
            while c.deadline() <= late {
                c.on_timer(c.deadline(), &mut |_, _, _| ());
            }
            for i in 0..40 {
                let s = syn(Seq(i));
                c.on_syn(key(50_000 + i, 1), &s, &listen(), Seq(i), 5, late);
            }
            let end = start.plus(64_100_000_000);
            while c.deadline() <= end {
                c.on_timer(c.deadline(), &mut |_, _, _| ());
            }
            let left = c.live;
            assert_eq!(left, 40);
            assert!(c.memory() < fresh + (64 << 10), "{}", c.memory());
            // They are the same as before they moved.
            for i in 0..40 {
                let mut ack = seg(TcpFlags::ACK, Seq(i + 1), Seq(i + 1));
                ack.opts.ts = Some((800, 0));
                let k = key(50_000 + i, 1);
                let done = c.on_ack(&k, &ack, end);
                assert!(matches!(done, AckAction::Established(_)), "{done:?}");
            }
            assert_eq!((c.live, c.pinned(), c.deadline()), (0, 0, Time::NEVER));
        }
        assert!(peak > 1 << 20);
    }
}
