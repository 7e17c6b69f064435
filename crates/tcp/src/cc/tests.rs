//! Against RFC 9438 in floating point, and against what Linux was seen to do by Google's
//! packetdrill scripts (numbers only).

use super::*;

const MSS: u32 = 1000;

/// A sender with unlimited data behind a receiver that acknowledges when the test says so.
struct Flow {
    cc: Cc,
    now: Time,
    una: Seq,
    nxt: Seq,
}

impl Flow {
    fn new(kind: CcKind, start: Seq) -> Flow {
        let mut f = Flow {
            cc: Cc::new(kind, MSS, 10),
            now: Time::from_millis(5_000),
            una: start,
            nxt: start,
        };
        f.fill();
        f
    }

    fn fill(&mut self) {
        self.nxt = self.nxt.max(self.una + self.cc.cwnd() / MSS * MSS);
    }

    /// After `ms`, an acknowledgment of `segs` segments with an RTT sample of `rtt_ms`.
    fn ack(&mut self, ms: u64, segs: u32, rtt_ms: u64) {
        self.now = self.now.plus(ms * 1_000_000);
        self.una += segs * MSS;
        self.cc.on_ack(&Ack {
            acked: segs * MSS,
            cwnd_limited: true,
            rtt_ns: Some(rtt_ms * 1_000_000),
            snd_una: self.una,
            snd_nxt: self.nxt,
            segs: 1,
            now: self.now,
        });
        self.fill();
    }

    fn segs(&self) -> u32 {
        self.cc.cwnd() / MSS
    }
}

/// Both a quiet start and one that wraps within the first window.
fn starts() -> [Seq; 2] {
    [Seq(1), Seq(u32::MAX - 3 * MSS)]
}

#[test]
fn slow_start_grows_by_what_was_acknowledged() {
    for start in starts() {
        let mut f = Flow::new(CcKind::NewReno, start);
        for _ in 0..5 {
            f.ack(0, 2, 100);
        }
        assert_eq!(f.segs(), 20);
        f.ack(100, 20, 100);
        assert_eq!(f.segs(), 40);
    }
}

#[test]
fn acknowledgment_division_gains_nothing() {
    let mut f = Flow::new(CcKind::NewReno, Seq(0));
    for _ in 0..MSS {
        f.una += 1;
        f.cc.on_ack(&Ack {
            acked: 1,
            cwnd_limited: true,
            rtt_ns: None,
            snd_una: f.una,
            snd_nxt: f.nxt,
            segs: 1,
            now: f.now,
        });
    }
    assert_eq!(f.segs(), 11);
}

#[test]
fn an_unused_window_does_not_grow() {
    for kind in [CcKind::Cubic, CcKind::NewReno] {
        let mut cc = Cc::new(kind, MSS, 10);
        for i in 0..100 {
            cc.on_ack(&Ack {
                acked: MSS,
                cwnd_limited: false,
                rtt_ns: Some(1_000_000),
                snd_una: Seq(i * MSS),
                snd_nxt: Seq((i + 1) * MSS),
                segs: 1,
                now: Time::from_millis(u64::from(i)),
            });
        }
        assert_eq!(cc.cwnd(), 10 * MSS);
    }
}

#[test]
fn usage_follows_the_fuller_half() {
    let cc = Cc::new(CcKind::Cubic, MSS, 10);
    // (segments sent at once, does an acknowledgment grow the window): Linux grows it in slow
    // start only if more than half of it was used.
    for (sent, grows) in [(5, false), (6, true), (9, true), (10, true)] {
        for start in starts() {
            let mut u = CwndUsage::new(start);
            let nxt = start + sent * MSS;
            u.on_send(start, nxt, sent * MSS, sent == 10);
            assert_eq!(u.is_limited(&cc), grows, "{sent} segments");
            // A smaller burst later in the round does not take that back.
            u.on_send(start + MSS, nxt + MSS, MSS, false);
            assert_eq!(u.is_limited(&cc), grows, "{sent} segments, then one");
            // One in the next round does.
            u.on_send(nxt + MSS, nxt + 2 * MSS, MSS, false);
            assert!(!u.is_limited(&cc));
        }
    }
}

/// `cubic-bulk-166k`: two segments acknowledged every 100 ms. HyStart leaves slow start at 48,
/// then growth starts by the floor of one in twenty, follows the cubic and ends at one in two.
#[test]
fn linux_cubic_at_166_kbit() {
    for start in starts() {
        let mut f = Flow::new(CcKind::Cubic, start);
        let rounds = |f: &mut Flow, n: u32| {
            for _ in 0..n {
                // The queue builds: a segment waits for those before it, two per 100 ms.
                let behind = u64::from(f.nxt.since(f.una) / MSS);
                f.ack(100, 2, (behind * 50).max(100));
            }
            f.segs()
        };
        f.ack(0, 0, 100); // the handshake's sample
        assert_eq!(rounds(&mut f, 5), 20);
        assert_eq!(rounds(&mut f, 5), 30);
        assert_eq!(rounds(&mut f, 5), 40);
        assert_eq!(rounds(&mut f, 4), 48);
        assert_eq!(rounds(&mut f, 1), 48);
        assert_eq!(f.cc.ssthresh(), 48 * MSS);
        for want in [49, 50, 52, 58] {
            assert_eq!(rounds(&mut f, 10), want);
        }
        for i in 1..=120 {
            assert_eq!(rounds(&mut f, 1), 58 + i);
        }
    }
}

/// `cubic-bulk-166k-idle-restart`: four idle seconds are no credit.
#[test]
fn idle_time_is_not_credited() {
    let mut f = Flow::new(CcKind::Cubic, Seq(1));
    f.ack(0, 0, 100);
    for _ in 0..20 {
        let behind = u64::from(f.nxt.since(f.una) / MSS);
        f.ack(100, 2, (behind * 50).max(100));
    }
    assert_eq!(f.segs(), 48);
    f.now = f.now.plus(4_000_000_000);
    f.cc.on_tx_start(4_000_000_000, 300_000_000, false, f.now);
    for want in [48, 49, 52, 58] {
        for _ in 0..10 {
            f.ack(100, 2, 500);
        }
        assert!(f.segs().abs_diff(want) <= 1, "{} for {want}", f.segs());
    }
}

#[test]
fn hystart_leaves_when_a_round_is_slow() {
    let mut f = Flow::new(CcKind::Cubic, Seq(1));
    f.ack(200, 0, 200);
    f.ack(200, 10, 200);
    assert_eq!(f.segs(), 20);
    f.ack(240, 2, 240);
    for i in 1..=8 {
        assert_eq!((f.segs(), f.cc.ssthresh()), (20 + 2 * i, SSTHRESH_INFINITE));
        f.ack(1, 2, 240 + u64::from(i));
    }
    assert_eq!((f.segs(), f.cc.ssthresh()), (36, 36 * MSS));
    f.ack(1, 2, 249);
    assert_eq!(f.segs(), 36);
}

#[test]
fn hystart_is_not_fooled_by_a_falling_rtt() {
    let mut f = Flow::new(CcKind::Cubic, Seq(1));
    f.ack(200, 0, 200);
    f.ack(200, 10, 200);
    f.ack(200, 2, 200);
    for i in 1..=8 {
        f.ack(1, 2, 200 + i);
    }
    f.ack(1, 2, 29);
    assert_eq!((f.segs(), f.cc.ssthresh()), (40, SSTHRESH_INFINITE));
}

#[test]
fn newreno_does_not_leave() {
    let mut f = Flow::new(CcKind::NewReno, Seq(1));
    f.ack(0, 0, 10);
    for _ in 0..100 {
        f.ack(1, 2, 400);
    }
    assert_eq!((f.segs(), f.cc.ssthresh()), (210, SSTHRESH_INFINITE));
}

/// `cubic-rto-ss-ca-cwnd-bump`, the window after each acknowledgment.
#[test]
fn linux_cubic_after_a_timeout() {
    let mut f = Flow::new(CcKind::Cubic, Seq(u32::MAX - 5_000));
    f.ack(100, 0, 100);
    f.cc.on_rto(MSS, true);
    assert_eq!((f.cc.cwnd(), f.cc.ssthresh()), (MSS, 7 * MSS));
    f.ack(100, 1, 100);
    assert_eq!(f.segs(), 2);
    for (gap, want) in [(100, 3), (2, 4), (98, 5), (2, 6), (2, 7)] {
        f.ack(gap, 1, 100);
        assert_eq!(f.segs(), want);
    }
    let gaps = [2, 98, 2, 2, 2, 2, 2, 2, 98, 2, 2, 2, 2, 2, 2];
    for gap in gaps {
        f.ack(gap, 1, 100);
        assert_eq!(f.segs(), 7);
    }
    f.ack(98, 1, 100);
    assert_eq!(f.segs(), 8);
}

#[test]
fn linux_restarts_after_idle() {
    let mut cc = Cc::new(CcKind::Cubic, MSS, 10);
    cc.set_cwnd(36 * MSS);
    let now = Time::from_millis(10_000);
    cc.on_tx_start(200_000_000, 300_000_000, true, now);
    assert_eq!(cc.cwnd(), 36 * MSS, "less than a timeout");
    cc.on_tx_start(2_000_000_000, 300_000_000, false, now);
    assert_eq!(cc.cwnd(), 36 * MSS, "restart not wanted");
    cc.on_tx_start(400_000_000, 300_000_000, true, now);
    assert_eq!(cc.cwnd(), 18 * MSS);
    cc.on_tx_start(u64::MAX, 1, true, now);
    assert_eq!(cc.cwnd(), 10 * MSS);
    assert_eq!(cc.ssthresh(), SSTHRESH_INFINITE);
    cc.set_cwnd(4 * MSS);
    cc.on_tx_start(2_000_000_000, 0, true, now);
    assert_eq!(cc.cwnd(), 4 * MSS, "the floor is not a raise");
}

#[test]
fn cube_root_is_exact() {
    for y in [0u64, 1, 2, 3, 10, 999, 1 << 20, 2_642_244] {
        let cube = y * y * y;
        assert_eq!(u64::from(cubic::cbrt(cube)), y);
        assert_eq!(u64::from(cubic::cbrt(cube + 3 * y * y)), y);
        if y > 0 {
            assert_eq!(u64::from(cubic::cbrt(cube - 1)), y - 1);
        }
    }
    assert_eq!(cubic::cbrt(u64::MAX), 2_642_245);
    assert_eq!(cubic::ticks(0), 0);
    assert_eq!(cubic::ticks(1_000_000_000), 1024);
    assert_eq!(cubic::ticks(976_562), 0);
    assert_eq!(cubic::ticks(976_563), 1);
}

/// CUBIC as RFC 9438 writes it, in segments and seconds.
struct Rfc9438 {
    cwnd: f64,
    w_max: f64,
    cwnd_prior: f64,
    w_est: f64,
    k: f64,
    start: f64,
}

impl Rfc9438 {
    const C: f64 = 0.4;
    const BETA: f64 = 0.7;

    /// After a congestion event at a window of `cwnd` at time `now`, recovery over.
    fn after_loss(cwnd: f64, w_max_before: f64, now: f64) -> Rfc9438 {
        let w_max = if cwnd < w_max_before {
            cwnd * (1.0 + Self::BETA) / 2.0
        } else {
            cwnd
        };
        let epoch = (cwnd * Self::BETA).max(2.0);
        let k = if w_max > epoch {
            ((w_max - epoch) / Self::C).cbrt()
        } else {
            0.0
        };
        Rfc9438 {
            cwnd: epoch,
            w_max: w_max.max(epoch),
            cwnd_prior: cwnd,
            w_est: epoch,
            k,
            start: now,
        }
    }

    fn on_ack(&mut self, segs: f64, rtt: f64, now: f64) {
        let alpha = if self.w_est >= self.cwnd_prior {
            1.0
        } else {
            3.0 * (1.0 - Self::BETA) / (1.0 + Self::BETA)
        };
        self.w_est += alpha * segs / self.cwnd;
        let w = |t: f64| Self::C * (t - self.k).powi(3) + self.w_max;
        let t = now - self.start;
        if w(t) < self.w_est {
            self.cwnd = self.cwnd.max(self.w_est);
        } else {
            let target = w(t + rtt).clamp(self.cwnd, 1.5 * self.cwnd);
            self.cwnd += (target - self.cwnd) / self.cwnd * segs;
        }
    }
}

/// Runs both for `seconds` after a loss at `cwnd` segments, an acknowledgment of a tenth of a
/// window at a time, and returns the largest relative distance.
fn distance(cwnd: u32, w_max_before: u32, rtt_ms: u64, seconds: u64) -> f64 {
    let mut f = Flow::new(CcKind::Cubic, Seq(u32::MAX - 77));
    f.ack(0, 0, rtt_ms);
    f.cc.cubic.w_max = w_max_before * MSS;
    f.cc.set_cwnd(cwnd * MSS);
    f.cc.on_loss(cwnd * MSS);
    f.cc.on_recovery_exit();
    let t0 = f.now.nanos() as f64 / 1e9;
    let mut rfc = Rfc9438::after_loss(f64::from(cwnd), f64::from(w_max_before), t0);
    let mut worst = 0f64;
    let end = f.now.plus(seconds * 1_000_000_000);
    let step = (rtt_ms / 10).max(1);
    let mut first = true;
    while f.now < end {
        let segs = (f.segs() / 10).max(1);
        if first {
            // The epoch starts with the first acknowledgment, as in Linux.
            rfc.start += step as f64 / 1e3;
            first = false;
        }
        f.ack(step, segs, rtt_ms);
        let now = f.now.nanos() as f64 / 1e9;
        rfc.on_ack(f64::from(segs), rtt_ms as f64 / 1e3, now);
        let ours = f64::from(f.cc.cwnd()) / f64::from(MSS);
        // Whole segments round off by up to two.
        let apart = ((ours - rfc.cwnd).abs() - 2.0).max(0.0) / rfc.cwnd;
        worst = worst.max(apart);
    }
    worst
}

#[test]
fn cubic_follows_rfc_9438() {
    // (window at the loss, W_max before it, RTT ms, seconds, tolerance beyond two segments)
    for (cwnd, before, rtt, secs) in [
        (20, 0, 20, 10),
        (100, 0, 100, 12),
        (100, 150, 100, 12),
        (400, 0, 50, 14),
        (1000, 0, 100, 16),
        (1000, 2000, 200, 16),
        (5000, 0, 100, 25),
    ] {
        let d = distance(cwnd, before, rtt, secs);
        assert!(d < 0.002, "{cwnd} segments, {rtt} ms: {d:.3} apart");
    }
}

#[test]
fn reductions_are_what_the_rfcs_say() {
    let mut cc = Cc::new(CcKind::Cubic, MSS, 10);
    cc.set_cwnd(100 * MSS);
    cc.on_loss(90 * MSS);
    assert_eq!((cc.ssthresh(), cc.cubic.w_max), (70 * MSS, 100 * MSS));
    cc.on_recovery_exit();
    assert_eq!(cc.cwnd(), 70 * MSS);
    // Fast convergence: below the last W_max, release more.
    cc.on_loss(70 * MSS);
    assert_eq!((cc.ssthresh(), cc.cubic.w_max), (49 * MSS, 59 * MSS));

    let mut cc = Cc::new(CcKind::NewReno, MSS, 10);
    cc.set_cwnd(100 * MSS);
    cc.on_loss(80 * MSS);
    assert_eq!(cc.ssthresh(), 40 * MSS);
    cc.on_loss(0);
    assert_eq!(cc.ssthresh(), 2 * MSS);
}

#[test]
fn a_repeated_timeout_keeps_the_threshold() {
    for kind in [CcKind::Cubic, CcKind::NewReno] {
        let mut cc = Cc::new(kind, MSS, 10);
        cc.on_rto(10 * MSS, true);
        let ssthresh = cc.ssthresh();
        cc.on_rto(MSS, false);
        assert_eq!((cc.cwnd(), cc.ssthresh()), (MSS, ssthresh));
    }
}

#[test]
fn nothing_overflows() {
    for kind in [CcKind::Cubic, CcKind::NewReno] {
        for mss in [0, 1, 48, 65_535, u32::MAX] {
            let mut cc = Cc::new(kind, mss, u32::MAX);
            for i in 0..2_000u64 {
                cc.on_ack(&Ack {
                    acked: u32::MAX >> (i % 32),
                    cwnd_limited: true,
                    rtt_ns: Some(u64::MAX >> (i % 64)),
                    snd_una: Seq((i as u32).wrapping_mul(0x9E37_79B9)),
                    snd_nxt: Seq(u32::MAX),
                    segs: 1,
                    now: Time(i.wrapping_mul(u64::MAX / 1999)),
                });
                match i % 97 {
                    13 => cc.on_loss(u32::MAX),
                    31 => cc.on_rto(u32::MAX, true),
                    61 => cc.on_mss_change((i as u32).wrapping_mul(77)),
                    83 => cc.on_tx_start(u64::MAX, i, true, Time(u64::MAX)),
                    _ => {}
                }
                assert!(cc.cwnd() >= cc.mss() && cc.cwnd() <= CWND_MAX);
            }
        }
    }
}

#[test]
fn it_stays_small() {
    assert!(size_of::<Cc>() <= 96, "{}", size_of::<Cc>());
    assert!(size_of::<Prr>() <= 16);
    assert!(size_of::<CwndUsage>() <= 16);
}

/// `prr-ss-10pkt-lost-1`: one segment out for every one delivered.
#[test]
fn linux_prr_conserves_at_the_threshold() {
    let mut cc = Cc::new(CcKind::Cubic, MSS, 10);
    cc.on_loss(10 * MSS);
    let mut prr = Prr::new(&cc);
    // Three SACKed, one lost.
    let mut pipe = 6 * MSS;
    prr.on_ack(&mut cc, MSS, pipe, false, false);
    assert_eq!(cc.cwnd(), 7 * MSS);
    prr.on_send(MSS);
    pipe += MSS;
    for _ in 0..6 {
        pipe -= MSS;
        prr.on_ack(&mut cc, MSS, pipe, false, false);
        assert_eq!(cc.cwnd(), pipe + MSS);
        prr.on_send(MSS);
        pipe += MSS;
    }
}

/// `prr-ss-30pkt-lost-1_4-11_16`: how much each acknowledgment lets out.
#[test]
fn linux_prr_catches_up_only_with_progress() {
    let mut cc = Cc::new(CcKind::Cubic, MSS, 10);
    cc.on_loss(10 * MSS);
    let mut prr = Prr::new(&cc);
    // (delivered, in flight, SND.UNA advanced, new losses) → segments that may leave.
    let table = [
        // 12 sent, 4 lost, 3 SACKed.
        (1, 5, false, true, 1),
        (1, 5, false, false, 1),
        (1, 5, false, false, 1),
        (1, 5, false, false, 1),
        (1, 5, false, false, 1),
        (1, 5, false, false, 1),
        // Progress without new losses: one more.
        (1, 5, true, false, 2),
    ];
    for (i, (delivered, pipe, una, lost, out)) in table.into_iter().enumerate() {
        prr.on_ack(&mut cc, delivered * MSS, pipe * MSS, una, lost);
        assert_eq!(cc.cwnd(), (pipe + out) * MSS, "step {i}");
        prr.on_send(out * MSS);
    }
}

/// With nothing lost but the first segment of a large window, what leaves over the round trip
/// is the reduced window, evenly.
#[test]
fn prr_is_proportional_above_the_threshold() {
    let mut cc = Cc::new(CcKind::Cubic, MSS, 10);
    cc.set_cwnd(100 * MSS);
    cc.on_loss(100 * MSS);
    let mut prr = Prr::new(&cc);
    let mut pipe = 97 * MSS;
    let mut sent = 0;
    for delivered in 1..=99u32 {
        pipe -= MSS;
        prr.on_ack(&mut cc, MSS, pipe, false, false);
        while pipe + MSS <= cc.cwnd() {
            pipe += MSS;
            sent += 1;
            prr.on_send(MSS);
        }
        if pipe > cc.ssthresh() {
            let fair = f64::from(delivered) * 0.7;
            assert!((f64::from(sent) - fair).abs() <= 2.0, "{sent} of {fair}");
        }
    }
    assert!(pipe.abs_diff(70 * MSS) <= 2 * MSS, "{pipe}");
    cc.on_recovery_exit();
    assert_eq!(cc.cwnd(), 70 * MSS);
}

#[test]
fn names_round_trip() {
    for kind in [CcKind::Cubic, CcKind::NewReno] {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert_eq!("reno".parse(), Ok(CcKind::NewReno));
    assert!("bbr".parse::<CcKind>().is_err());
}

/// RFC 5681, section 3.1: one segment per window acknowledged, in whatever portions.
#[test]
fn newreno_adds_one_segment_per_round_trip() {
    for portion in [1, 2, 5, 20] {
        let mut f = Flow::new(CcKind::NewReno, Seq(u32::MAX - 30_000));
        f.cc.set_cwnd(40 * MSS);
        f.cc.on_loss(40 * MSS);
        f.cc.on_recovery_exit();
        assert_eq!(f.segs(), 20);
        for acked in (portion..2_000).step_by(portion as usize) {
            f.ack(1, portion, 100);
            // Every step from 20 on took its own window of acknowledgments.
            let paid: u32 = (20..f.segs()).sum();
            assert!(paid <= acked, "too fast: {} after {acked}", f.segs());
            assert!(
                acked - paid <= f.segs(),
                "too slow: {} after {acked}",
                f.segs()
            );
        }
    }
}
