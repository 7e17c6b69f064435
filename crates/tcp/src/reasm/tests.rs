//! Against a map of one cell per octet, and against scripted attacks.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const NO_LIMIT: usize = 1 << 30;

fn buf(bytes: &[u8]) -> PktBuf {
    PktBuf::copy_of(bytes)
}

/// As it comes from a device: a small payload in a large buffer.
fn packet(bytes: &[u8]) -> PktBuf {
    let mut b = PktBuf::with_capacity(2048);
    b.set_window(54, 0);
    b.append(bytes);
    b
}

/// The octet that segment number `version` carries at stream position `at`.
fn octet(at: u32, version: u8) -> u8 {
    (at as u8).wrapping_mul(31) ^ version
}

#[derive(Clone, Debug)]
enum Step {
    /// A segment at this distance from RCV.NXT (may be before it), of this length.
    Insert(i32, u16, bool),
    /// Direct delivery of so many octets at RCV.NXT, then whatever became in order.
    Deliver(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (-40i32..600, prop_oneof![1u16..8, 1u16..120], any::<bool>())
            .prop_map(|(d, n, p)| Step::Insert(d, n, p)),
        1 => (0u16..60).prop_map(Step::Deliver),
    ]
}

struct World {
    base: Seq,
    nxt: u32,
    cells: BTreeMap<u32, u8>,
    real: Reassembly,
    version: u8,
}

impl World {
    fn new(base: Seq) -> World {
        World {
            base,
            nxt: 0,
            cells: BTreeMap::new(),
            real: Reassembly::new(),
            version: 0,
        }
    }

    fn rcv_nxt(&self) -> Seq {
        self.base + self.nxt
    }

    fn insert(&mut self, distance: i32, len: u16, large: bool) {
        self.version = self.version.wrapping_add(1);
        let start = i64::from(self.nxt) + i64::from(distance);
        let cell = |i: i64| octet((start + i) as u32, self.version);
        let bytes: Vec<u8> = (0..i64::from(len)).map(cell).collect();
        let b = if large { packet(&bytes) } else { buf(&bytes) };
        let seq = Seq(self.base.0.wrapping_add(start as u32));
        let out = self.real.insert(seq, b, self.rcv_nxt(), NO_LIMIT);
        let mut fresh = 0;
        let mut held = None;
        for (i, &v) in bytes.iter().enumerate() {
            let at = start + i as i64;
            if at < i64::from(self.nxt) {
                continue;
            }
            let at = at as u32;
            match self.cells.entry(at) {
                std::collections::btree_map::Entry::Vacant(e) => {
                    e.insert(v);
                    fresh += 1;
                }
                std::collections::btree_map::Entry::Occupied(_) => {
                    held.get_or_insert(self.base + at);
                }
            }
        }
        assert_eq!(out.stored, fresh);
        assert!(!out.dropped);
        // The duplicate starts at the first octet held before and covers only such.
        assert_eq!(out.duplicate.map(|d| d.0), held);
    }

    fn runs(&self) -> Vec<(Seq, Seq)> {
        let mut out: Vec<(u32, u32)> = Vec::new();
        for &at in self.cells.keys() {
            match out.last_mut() {
                Some(r) if r.1 == at => r.1 = at + 1,
                _ => out.push((at, at + 1)),
            }
        }
        out.iter()
            .map(|r| (self.base + r.0, self.base + r.1))
            .collect()
    }

    fn deliver(&mut self, n: u16) {
        // What arrives in order overrides nothing that is held; only gaps take it.
        for _ in 0..n {
            if self.cells.contains_key(&self.nxt) {
                break;
            }
            self.nxt += 1;
        }
        while let Some(b) = self.real.pop(self.rcv_nxt()) {
            assert!(!b.is_empty());
            for &v in b.as_slice() {
                assert_eq!(self.cells.remove(&self.nxt), Some(v), "octet {}", self.nxt);
                self.nxt += 1;
            }
        }
        assert!(!self.cells.contains_key(&self.nxt), "left behind");
    }

    fn check(&self) {
        assert_eq!(self.real.len() as usize, self.cells.len());
        let runs = self.runs();
        let mut blocks = SackBlocks::default();
        self.real.sack_blocks(&mut blocks);
        for b in blocks.as_slice() {
            assert!(runs.contains(b), "{b:?} of {runs:?}");
        }
        // Every run is reported until there are more than fit.
        let mut distinct: Vec<_> = blocks.as_slice().to_vec();
        distinct.dedup();
        assert_eq!(distinct.len(), blocks.len());
        let charged: usize = self
            .real
            .segs
            .values()
            .map(|b| b.capacity() + OVERHEAD)
            .sum();
        assert_eq!(self.real.memory(), charged);
        assert_eq!(self.real.is_empty(), self.cells.is_empty());
    }
}

fn run(base: Seq, steps: &[Step]) {
    let mut w = World::new(base);
    for s in steps {
        match *s {
            Step::Insert(d, n, large) => {
                w.insert(d, n, large);
                // A segment at RCV.NXT is delivered at once, as the connection does.
                if w.cells.contains_key(&w.nxt) {
                    w.deliver(0);
                }
            }
            Step::Deliver(n) => w.deliver(n),
        }
        w.check();
    }
    // Fill every gap: all that was held comes out.
    for _ in 0..1000 {
        w.deliver(1);
    }
    assert!(w.real.is_empty());
    assert_eq!(w.real.memory(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn agrees_with_one_cell_per_octet(steps in prop::collection::vec(step(), 1..60)) {
        run(Seq(1_000), &steps);
    }

    #[test]
    fn agrees_across_the_wrap(
        steps in prop::collection::vec(step(), 1..60),
        before in 0u32..700,
    ) {
        run(Seq(0) - before, &steps);
    }
}

fn blocks(r: &Reassembly, base: Seq) -> Vec<(u32, u32)> {
    let mut out = SackBlocks::default();
    r.sack_blocks(&mut out);
    let rel = |b: &(Seq, Seq)| (b.0.since(base), b.1.since(base));
    out.as_slice().iter().map(rel).collect()
}

#[test]
fn sack_reports_the_latest_first() {
    for base in [Seq(1), Seq(u32::MAX - 30)] {
        let mut r = Reassembly::new();
        let put = |r: &mut Reassembly, at: u32| {
            r.insert(base + at, buf(&[0; 10]), base, NO_LIMIT);
            blocks(r, base)
        };
        assert_eq!(put(&mut r, 10), [(10, 20)]);
        assert_eq!(put(&mut r, 50), [(50, 60), (10, 20)]);
        assert_eq!(put(&mut r, 90), [(90, 100), (50, 60), (10, 20)]);
        assert_eq!(put(&mut r, 20), [(10, 30), (90, 100), (50, 60)]);
        assert_eq!(
            put(&mut r, 130),
            [(130, 140), (10, 30), (90, 100), (50, 60)]
        );
        // A fifth: the oldest is no longer repeated.
        assert_eq!(
            put(&mut r, 170),
            [(170, 180), (130, 140), (10, 30), (90, 100)]
        );
        // A duplicate brings its run to the front (RFC 2883, section 4.2).
        assert_eq!(
            put(&mut r, 95),
            [(90, 105), (170, 180), (130, 140), (10, 30)]
        );
        let out = r.insert(base + 15, buf(&[0; 5]), base, NO_LIMIT);
        assert_eq!(out.duplicate, Some((base + 15, base + 20)));
        assert_eq!(blocks(&r, base)[0], (10, 30));
        // What was delivered is no longer reported.
        let mut nxt = base + 10;
        while let Some(b) = r.pop(nxt) {
            nxt += b.len() as u32;
        }
        assert_eq!(nxt, base + 30);
        assert_eq!(blocks(&r, base), [(90, 105), (170, 180), (130, 140)]);
    }
}

#[test]
fn the_first_octets_win() {
    let mut r = Reassembly::new();
    let nxt = Seq(0);
    r.insert(Seq(10), buf(b"AAAA"), nxt, NO_LIMIT);
    r.insert(Seq(20), buf(b"BB"), nxt, NO_LIMIT);
    r.insert(Seq(5), packet(b"cccccccccccccccccccccccccc"), nxt, NO_LIMIT);
    let mut at = Seq(5);
    let mut got = Vec::new();
    while let Some(b) = r.pop(at) {
        at += b.len() as u32;
        got.extend_from_slice(b.as_slice());
    }
    assert_eq!(got, b"cccccAAAAccccccBBccccccccc");
}

#[test]
fn the_fin_waits_for_its_place() {
    for base in [Seq(100), Seq(u32::MAX - 12)] {
        let mut r = Reassembly::new();
        r.insert(base + 10, buf(&[1; 5]), base, NO_LIMIT);
        r.set_fin(base + 15);
        r.set_fin(base + 99);
        assert!(!r.fin_reached(base));
        // Data beyond the FIN does not exist.
        let out = r.insert(base + 12, buf(&[2; 50]), base, NO_LIMIT);
        assert_eq!(out.stored, 0);
        let out = r.insert(base + 20, buf(&[2; 5]), base, NO_LIMIT);
        assert_eq!(out, Inserted::default());
        let mut nxt = base + 10;
        while let Some(b) = r.pop(nxt) {
            nxt += b.len() as u32;
        }
        assert!(r.fin_reached(nxt));
        assert!(!r.is_empty());
        r.clear();
        assert!(r.is_empty());
    }
}

/// CVE-2018-5390: every second octet of the window, one octet each, in an order that defeats
/// a list.
#[test]
fn a_hundred_thousand_tiny_segments() {
    let base = Seq(u32::MAX - 50_000);
    let limit = 4 << 20;
    let mut r = Reassembly::new();
    let mut dropped = 0;
    let mut most = 0;
    for i in 0..100_000u32 {
        let at = 2 + (i.wrapping_mul(48_271) % 100_003) * 2;
        r.work = 0;
        let out = r.insert(base + at, packet(&[7]), base, limit);
        most = most.max(r.work);
        dropped += u32::from(out.dropped);
        assert!(r.memory() <= limit);
        assert!(r.segs.len() <= MAX_SEGMENTS);
    }
    assert_eq!(r.len() + dropped, 100_000);
    assert!(most <= 4, "{most} operations for one segment");
    // The same again, all of them held or refused: no growth.
    let before = (r.memory(), r.segs.len());
    for i in 0..100_000u32 {
        let at = 2 + (i.wrapping_mul(48_271) % 100_003) * 2;
        r.insert(base + at, packet(&[7]), base, limit);
    }
    assert_eq!((r.memory(), r.segs.len()), before);
    // One large segment sweeps up what it covers, at a cost that those who put it there
    // have paid for.
    let all = vec![9u8; 65_000];
    r.work = 0;
    let out = r.insert(base + 1, buf(&all), base, NO_LIMIT);
    assert!(!out.dropped);
    assert!(r.work <= 3 * 32_500, "{}", r.work);
    let b = r.pop(base + 1).expect("in order");
    assert_eq!(b.len(), 65_000);
    assert!(b.as_slice()[0] == 9 && b.as_slice().contains(&7));
}

/// Tiny segments side by side share buffers: memory stays near twice the octets.
#[test]
fn neighbours_are_gathered() {
    const N: u32 = 10_000;
    let base = Seq(0);
    for reverse in [false, true] {
        let mut r = Reassembly::new();
        for i in 0..N {
            let i = if reverse { N - 1 - i } else { i };
            let out = r.insert(base + 1 + i, packet(&[i as u8]), base, NO_LIMIT);
            assert_eq!(out.stored, 1);
        }
        // A few tree operations each; an octet is copied when it comes and as its buffer
        // doubles.
        assert!(r.work <= 8 * u64::from(N), "{}", r.work);
        if !reverse {
            assert!(
                r.memory() <= 2 * N as usize + 10 * OVERHEAD,
                "{}",
                r.memory()
            );
            assert!(r.segs.len() <= 10);
        }
        assert_eq!(blocks(&r, base), [(1, N + 1)]);
        let mut nxt = base + 1;
        while let Some(b) = r.pop(nxt) {
            for &v in b.as_slice() {
                assert_eq!(v, (nxt.0 - 1) as u8);
                nxt += 1;
            }
        }
        assert_eq!(nxt, base + N + 1);
    }
}

#[test]
fn a_full_queue_refuses_and_keeps_what_it_acknowledged() {
    let base = Seq(0);
    let mut r = Reassembly::new();
    let limit = 10 * (2048 + OVERHEAD);
    for i in 0..20u32 {
        let out = r.insert(base + 10_000 + i * 2_000, packet(&[1; 1400]), base, limit);
        assert_eq!(out.dropped, i >= 10, "{i}");
    }
    assert_eq!(r.len(), 14_000);
    let out = r.insert(base + 5, packet(&[1; 1400]), base, limit);
    assert!(
        out.dropped,
        "even in front: nothing that was SACKed is given up"
    );
    assert_eq!(r.len(), 14_000);
}

#[test]
fn old_data_is_nothing() {
    for base in [Seq(10), Seq(u32::MAX - 3)] {
        let mut r = Reassembly::new();
        let out = r.insert(base - 50, buf(&[0; 50]), base, NO_LIMIT);
        assert_eq!(out, Inserted::default());
        assert!(r.is_empty());
        let out = r.insert(base + 5, buf(&[]), base, NO_LIMIT);
        assert_eq!(out, Inserted::default());
        // RCV.NXT moved past held data: it is dropped, not delivered.
        r.insert(base + 5, buf(&[0; 5]), base, NO_LIMIT);
        assert!(r.pop(base + 20).is_none());
        assert!(r.is_empty() && r.memory() == 0);
        assert_eq!(blocks(&r, base), []);
    }
}
