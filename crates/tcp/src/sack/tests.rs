//! Against a scoreboard that keeps one cell per octet, and against scripted attacks.

use super::*;
use proptest::prelude::*;

const MSS: u32 = 10;

/// One cell per octet from `base`.
struct Naive {
    base: Seq,
    una: u32,
    nxt: u32,
    sacked: Vec<bool>,
    resent: Vec<bool>,
    lost_end: u32,
    reordering: u32,
    reordering_seen: bool,
    recovery: bool,
    rescued: bool,
}

impl Naive {
    fn new(base: Seq, nxt: u32) -> Naive {
        Naive {
            base,
            una: 0,
            nxt,
            sacked: vec![false; nxt as usize + 1],
            resent: vec![false; nxt as usize + 1],
            lost_end: 0,
            reordering: DUP_THRESH,
            reordering_seen: false,
            recovery: false,
            rescued: false,
        }
    }

    fn seq(&self, at: u32) -> Seq {
        self.base + at
    }

    fn highest(&self) -> Option<u32> {
        (self.una..self.nxt)
            .rev()
            .find(|&i| self.sacked[i as usize])
    }

    fn runs(&self) -> Vec<(u32, u32)> {
        let mut out: Vec<(u32, u32)> = Vec::new();
        for i in self.una..self.nxt {
            if !self.sacked[i as usize] {
                continue;
            }
            match out.last_mut() {
                Some(r) if r.1 == i => r.1 = i + 1,
                _ => out.push((i, i + 1)),
            }
        }
        out
    }

    fn late(&mut self, distance: u32) {
        self.reordering = self
            .reordering
            .max(distance.div_ceil(MSS).min(MAX_REORDERING));
        self.reordering_seen = true;
    }

    fn ack(&mut self, una: u32, blocks: &[(u32, u32)]) -> u32 {
        let mut delivered = 0;
        let highest = self.highest();
        if una > self.una {
            for i in self.una..una {
                delivered += u32::from(!self.sacked[i as usize]);
            }
            let hole = !self.sacked[self.una as usize] && !self.resent[self.una as usize];
            let passed = self.runs().iter().any(|r| r.1 <= una);
            if hole
                && passed
                && let Some(h) = highest
            {
                self.late(h + 1 - self.una);
            }
            self.una = una;
            self.lost_end = self.lost_end.max(una);
        }
        for &(l, r) in blocks {
            let l = l.max(self.una);
            if l >= r || r > self.nxt {
                continue;
            }
            let mut fresh = 0;
            let first = (l..r).find(|&i| !self.sacked[i as usize]).unwrap_or(r);
            for i in l..r {
                fresh += u32::from(!self.sacked[i as usize]);
                self.sacked[i as usize] = true;
            }
            delivered += fresh;
            if let Some(h) = highest
                && fresh > 0
                && first < h + 1
                && (first..self.nxt).all(|i| !self.resent[i as usize])
            {
                self.late(h + 1 - first);
            }
        }
        self.update_lost();
        delivered
    }

    /// Octet by octet: the highest point with enough SACKed above it.
    fn update_lost(&mut self) {
        let runs = self.runs();
        let end = (self.una..self.nxt).rev().find(|&i| {
            let above: u32 = runs.iter().map(|r| r.1.max(i) - r.0.max(i)).sum();
            let count = runs.iter().filter(|r| r.1 > i).count() as u32;
            above > (self.reordering - 1) * MSS || count >= self.reordering
        });
        if let Some(i) = end {
            // The whole range that tips the balance is not lost, it is SACKed.
            let start = if self.reordering_seen {
                runs.iter()
                    .find(|r| r.0 <= i && i < r.1)
                    .map_or(i + 1, |r| r.0)
            } else {
                runs[runs.len() - 1].0
            };
            self.lost_end = self.lost_end.max(start);
        }
    }

    fn lost(&self, i: u32) -> bool {
        i >= self.una && i < self.lost_end && !self.sacked[i as usize]
    }

    fn pipe(&self) -> u32 {
        (self.una..self.nxt)
            .filter(|&i| !self.sacked[i as usize])
            .map(|i| u32::from(!self.lost(i)) + u32::from(self.resent[i as usize]))
            .sum()
    }

    fn high_rxt(&self) -> u32 {
        (self.una..self.nxt)
            .rev()
            .find(|&i| self.resent[i as usize])
            .map_or(self.una, |i| i + 1)
    }

    fn segment(&self, from: u32, to: u32) -> u32 {
        (from..to)
            .take(MSS as usize)
            .take_while(|&i| !self.sacked[i as usize])
            .count() as u32
    }

    fn next(&self, new_data: bool) -> Option<NextSeg> {
        let from = (self.high_rxt()..self.nxt).find(|&i| !self.sacked[i as usize]);
        if let Some(i) = from
            && self.lost(i)
        {
            let len = self.segment(i, self.lost_end.min(self.nxt));
            return Some(NextSeg::Retransmit {
                seq: self.seq(i),
                len,
            });
        }
        if new_data {
            return Some(NextSeg::New);
        }
        let highest = self.highest()?;
        if let Some(i) = from
            && i < highest
        {
            let len = self.segment(i, highest);
            return Some(NextSeg::Retransmit {
                seq: self.seq(i),
                len,
            });
        }
        if self.rescued || !self.recovery {
            return None;
        }
        let end = (self.una..self.nxt)
            .rev()
            .find(|&i| !self.sacked[i as usize])?
            + 1;
        if end <= self.high_rxt() {
            return None;
        }
        let len = (self.una..end)
            .rev()
            .take(MSS as usize)
            .take_while(|&i| !self.sacked[i as usize])
            .count() as u32;
        Some(NextSeg::Rescue {
            seq: self.seq(end - len),
            len,
        })
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Advance SND.UNA by so much, then these blocks relative to it.
    Ack(u32, Vec<(u32, u32)>),
    Recover,
    Send(bool),
    Timeout,
    End,
}

fn step() -> impl Strategy<Value = Step> {
    let block = (0u32..400, 1u32..60).prop_map(|(l, n)| (l, l + n));
    prop_oneof![
        8 => (prop_oneof![3 => Just(0u32), 1 => 0u32..60], prop::collection::vec(block, 0..4))
            .prop_map(|(a, b)| Step::Ack(a, b)),
        1 => Just(Step::Recover),
        6 => any::<bool>().prop_map(Step::Send),
        1 => Just(Step::Timeout),
        1 => Just(Step::End),
    ]
}

fn compare(b: &Scoreboard, n: &Naive) {
    let runs: Vec<_> = n.runs().iter().map(|r| (n.seq(r.0), n.seq(r.1))).collect();
    assert_eq!(b.ranges, runs);
    assert_eq!(
        b.sacked(),
        n.sacked[n.una as usize..]
            .iter()
            .map(|&s| u32::from(s))
            .sum::<u32>()
    );
    for i in n.una..n.nxt {
        assert_eq!(b.is_lost(n.seq(i)), n.lost(i), "octet {i}");
        assert_eq!(b.is_sacked(n.seq(i)), n.sacked[i as usize], "octet {i}");
    }
    assert_eq!(b.pipe(n.seq(n.nxt)), n.pipe());
    for new_data in [true, false] {
        assert_eq!(b.next_seg(n.seq(n.nxt), new_data), n.next(new_data));
    }
}

fn run(base: Seq, steps: &[Step]) {
    let mut n = Naive::new(base, 400);
    let mut b = Scoreboard::new(MSS, base);
    let nxt = n.seq(n.nxt);
    // The oracle does not model the extra rule about lost retransmissions.
    let settle = |b: &mut Scoreboard| b.resend = false;
    for s in steps {
        match s {
            Step::Ack(by, blocks) => {
                let una = (n.una + by).min(n.nxt - 1);
                let mut una_free = una;
                // A receiver does not acknowledge into the middle of what it holds.
                while una_free < n.nxt - 1 && n.sacked[una_free as usize] {
                    una_free += 1;
                }
                let una = una_free;
                let blocks: Vec<_> = blocks
                    .iter()
                    .map(|r| (una + 1 + r.0, una + 1 + r.1))
                    .filter(|r| r.1 <= n.nxt)
                    .collect();
                let wire: Vec<_> = blocks.iter().map(|r| (n.seq(r.0), n.seq(r.1))).collect();
                let dsack = wire.len() > 1 && wire[0].0.ge(wire[1].0) && wire[0].1.le(wire[1].1);
                let u = b.on_ack(n.seq(una), n.seq(una), &wire, nxt);
                assert_eq!(u.dsack.is_some(), dsack);
                let delivered = n.ack(una, &blocks[usize::from(dsack)..]);
                assert_eq!(u.delivered, delivered);
                settle(&mut b);
            }
            Step::Recover if !n.recovery => {
                b.start_recovery(nxt);
                n.recovery = true;
                n.rescued = false;
                n.resent.fill(false);
                n.lost_end = n.lost_end.max(n.una + n.segment(n.una, n.nxt));
            }
            Step::Send(new_data) if n.recovery => {
                let Some(what) = b.next_seg(nxt, *new_data) else {
                    continue;
                };
                b.on_sent(what, nxt);
                match what {
                    NextSeg::Retransmit { seq, len } => {
                        let at = seq.since(n.base) as usize;
                        // Cells below count as sent again, whether SACKed or not.
                        n.resent[n.una as usize..at + len as usize].fill(true);
                    }
                    NextSeg::Rescue { .. } => n.rescued = true,
                    NextSeg::New => {}
                }
            }
            Step::Timeout => {
                if n.sacked[n.una as usize] {
                    n.sacked.fill(false);
                }
                b.mark_all_lost(nxt);
                n.recovery = true;
                n.rescued = false;
                n.resent.fill(false);
                n.lost_end = n.nxt;
            }
            Step::End => {
                b.end_recovery();
                n.recovery = false;
                n.resent.fill(false);
                n.lost_end = n.una;
            }
            _ => continue,
        }
        compare(&b, &n);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn agrees_with_one_cell_per_octet(steps in prop::collection::vec(step(), 1..40)) {
        run(Seq(5), &steps);
    }

    #[test]
    fn agrees_across_the_wrap(
        steps in prop::collection::vec(step(), 1..40),
        before in 1u32..400,
    ) {
        run(Seq(0) - before, &steps);
    }
}

fn seqs(base: Seq, blocks: &[(u32, u32)]) -> Vec<(Seq, Seq)> {
    blocks.iter().map(|b| (base + b.0, base + b.1)).collect()
}

#[test]
fn nonsense_blocks_are_ignored() {
    for base in [Seq(1000), Seq(u32::MAX - 50)] {
        let mut b = Scoreboard::new(MSS, base);
        let nxt = base + 100;
        for (l, r) in [
            (base + 20, base + 20),   // empty
            (base + 30, base + 20),   // backwards
            (base + 90, base + 101),  // beyond what was sent
            (base + 101, base + 120), // above it altogether
            (base + 20, base + 20 + (1 << 31)),
            (base - 40, base + 200), // around everything
        ] {
            // Second place: the first could be a D-SACK.
            let u = b.on_ack(base, base, &[(base + 50, base + 60), (l, r)], nxt);
            assert_eq!(u.ignored, 1, "{l}..{r}");
            assert_eq!(b.sacked(), 10);
        }
    }
}

#[test]
fn d_sack_is_reported_and_not_counted() {
    let base = Seq(u32::MAX - 5);
    let mut b = Scoreboard::new(MSS, base);
    let nxt = base + 100;
    // Below the cumulative acknowledgment (RFC 2883, section 4.1).
    let u = b.on_ack(base + 20, base + 20, &seqs(base, &[(0, 10), (40, 50)]), nxt);
    assert_eq!(u.dsack, Some((base, base + 10)));
    assert_eq!((u.newly_sacked, u.delivered, b.sacked()), (10, 30, 10));
    // Within the second block (section 4.2).
    let u = b.on_ack(
        base + 20,
        base + 20,
        &seqs(base, &[(40, 50), (40, 60)]),
        nxt,
    );
    assert_eq!(u.dsack, Some((base + 40, base + 50)));
    assert_eq!((u.newly_sacked, b.sacked()), (10, 20));
}

/// `prr-ss-ack-below-snd_una`: blocks of an overtaken acknowledgment count.
#[test]
fn an_old_acknowledgment_still_informs() {
    let base = Seq(u32::MAX - 35);
    let mut b = Scoreboard::new(MSS, base);
    let nxt = base + 100;
    b.on_ack(base + 40, base + 40, &seqs(base, &[(80, 90)]), nxt);
    let u = b.on_ack(base + 40, base + 30, &seqs(base, &[(50, 70)]), nxt);
    assert_eq!((u.delivered, u.dsack), (20, None));
    assert_eq!(b.ranges, seqs(base, &[(50, 70), (80, 90)]));
}

/// `sack-shift-sacked-2-6-8-3-9`: what counts as lost after each acknowledgment.
#[test]
fn linux_marks_every_hole_at_the_third_sacked_segment() {
    for base in [Seq(0), Seq(u32::MAX - 44)] {
        let mut b = Scoreboard::new(MSS, base);
        let nxt = base + 100;
        b.on_ack(base, base, &seqs(base, &[(20, 30)]), nxt);
        b.on_ack(base, base, &seqs(base, &[(20, 30), (60, 70)]), nxt);
        assert!(!b.first_is_lost());
        let u = b.on_ack(
            base,
            base,
            &seqs(base, &[(20, 30), (60, 70), (80, 90)]),
            nxt,
        );
        assert!(b.first_is_lost() && u.newly_lost);
        assert_eq!(b.lost(base), 60);
        b.start_recovery(nxt);
        let first = b.next_seg(nxt, true).expect("first");
        assert_eq!(first, NextSeg::Retransmit { seq: base, len: 10 });
        b.on_sent(first, nxt);
        // 3001:4001 was late, not lost, by six segments.
        let u = b.on_ack(
            base,
            base,
            &seqs(base, &[(20, 40), (60, 70), (80, 90)]),
            nxt,
        );
        assert!(u.reordered);
        assert_eq!((b.lost(base), b.reordering()), (50, 6));
        let second = b.next_seg(nxt, true).expect("second");
        let seq = base + 10;
        assert_eq!(second, NextSeg::Retransmit { seq, len: 10 });
        b.on_sent(second, nxt);
        b.on_ack(
            base,
            base,
            &seqs(base, &[(20, 40), (60, 70), (80, 100)]),
            nxt,
        );
        assert_eq!(b.lost(base), 50);
        for (ack, blocks, lost) in [
            (10, &[(20, 40), (60, 70), (80, 100)][..], 40),
            (40, &[(60, 70), (80, 100)], 30),
            (70, &[(80, 100)], 10),
        ] {
            b.on_ack(base + ack, base + ack, &seqs(base, blocks), nxt);
            assert_eq!(b.lost(base + ack), lost);
        }
        b.on_ack(nxt, nxt, &[], nxt);
        b.end_recovery();
        assert_eq!((b.sacked(), b.lost(nxt), b.pipe(nxt)), (0, 0, 0));
    }
}

#[test]
fn reordering_seen_raises_the_threshold() {
    let base = Seq(0);
    let mut b = Scoreboard::new(MSS, base);
    let nxt = base + 300;
    b.on_ack(base, base, &seqs(base, &[(50, 60)]), nxt);
    let u = b.on_ack(base + 60, base + 60, &[], nxt);
    assert!(u.reordered, "the hole closed by itself");
    assert_eq!(b.reordering(), 6);
    // Three SACKed segments are no longer enough; six are.
    b.on_ack(base + 60, base + 60, &seqs(base, &[(70, 100)]), nxt);
    assert!(!b.first_is_lost());
    b.on_ack(base + 60, base + 60, &seqs(base, &[(70, 130)]), nxt);
    assert!(b.first_is_lost());
}

#[test]
fn a_lost_retransmission_is_noticed() {
    let base = Seq(u32::MAX - 60);
    let mut b = Scoreboard::new(MSS, base);
    let mut nxt = base + 100;
    b.on_ack(base, base, &seqs(base, &[(10, 100)]), nxt);
    b.start_recovery(nxt);
    let first = b.next_seg(nxt, true).expect("first");
    b.on_sent(first, nxt);
    assert_eq!(b.pipe(nxt), 10);
    nxt += 40;
    b.on_ack(base, base, &seqs(base, &[(10, 120)]), nxt);
    let quiet = b.next_seg(nxt, true);
    assert_eq!(quiet, Some(NextSeg::New), "two newer segments prove little");
    let u = b.on_ack(base, base, &seqs(base, &[(10, 130)]), nxt);
    assert!(u.newly_lost);
    assert_eq!(
        b.pipe(nxt),
        10,
        "the retransmission is gone, the newest segment is not"
    );
    let again = b.next_seg(nxt, true).expect("again");
    assert_eq!(again, first);
    b.on_sent(again, nxt);
    assert_eq!(
        (b.pipe(nxt), b.next_seg(nxt, true)),
        (20, Some(NextSeg::New))
    );
    // The same evidence does not count twice.
    b.on_ack(base, base, &seqs(base, &[(10, 140)]), nxt);
    assert_eq!(b.next_seg(nxt, true), Some(NextSeg::New));
}

#[test]
fn reneging_is_noticed_on_timeout() {
    let base = Seq(u32::MAX - 15);
    let mut b = Scoreboard::new(MSS, base);
    let nxt = base + 100;
    b.on_ack(base, base, &seqs(base, &[(20, 60)]), nxt);
    // The peer acknowledges up to data it said it held, but not that.
    b.on_ack(base + 20, base + 20, &[], nxt);
    b.mark_all_lost(nxt);
    assert!(b.is_empty());
    let all: Vec<_> = core::iter::from_fn(|| {
        let s = b.next_seg(nxt, false)?;
        b.on_sent(s, nxt);
        matches!(s, NextSeg::Retransmit { .. }).then_some(s)
    })
    .collect();
    assert_eq!(all.len(), 8);
}

/// CVE-2019-11477 and -11478: one octet in two SACKed, at the smallest MSS, again and again.
#[test]
fn a_comb_of_blocks_costs_bounded_work() {
    let base = Seq(u32::MAX - 10_000);
    let mut b = Scoreboard::new(48, base);
    let nxt = base + 1_000_000;
    let mut most = 0;
    for i in 0..100_000u32 {
        let at = |k: u32| {
            let l = base + 2 + (i.wrapping_mul(7919).wrapping_add(k * 104_729) % 499_990) * 2;
            (l, l + 1)
        };
        b.work.set(0);
        b.on_ack(base, base, &[at(0), at(1), at(2), at(3)], nxt);
        b.pipe(nxt);
        b.next_seg(nxt, false);
        most = most.max(b.work.get());
    }
    assert_eq!(b.ranges.len(), MAX_RANGES);
    // Four passes over the ranges, and searches.
    assert!(most <= 5 * MAX_RANGES as u64 + 200, "{most}");
}

#[test]
fn sacking_everything_but_the_first_is_one_range() {
    let base = Seq(77);
    let mut b = Scoreboard::new(MSS, base);
    let nxt = base + 100_000;
    let mut work = 0;
    for i in (1..10_000u32).rev() {
        b.work.set(0);
        b.on_ack(base, base, &[(base + i * MSS, base + (i + 1) * MSS)], nxt);
        work += b.work.get();
    }
    assert_eq!(b.ranges.len(), 1);
    assert_eq!(b.sacked(), 99_990);
    assert!(work < 40 * 10_000, "{work}");
}
