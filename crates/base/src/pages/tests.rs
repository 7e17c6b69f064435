use super::*;
use crate::ring::{TxRing, TxStage};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A page that tells when it goes.
struct Told(Vec<u8>, std::sync::Arc<AtomicUsize>);

impl AsRef<[u8]> for Told {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.1.fetch_add(1, Relaxed);
    }
}

/// Pages of those lengths, filled with their numbers, and how many have gone.
fn pages(lengths: &[usize]) -> (TxPages, std::sync::Arc<AtomicUsize>) {
    let gone = std::sync::Arc::new(AtomicUsize::new(0));
    let mut pages = TxPages::default();
    for (i, len) in lengths.iter().enumerate() {
        let page = Told(vec![i as u8; *len], gone.clone());
        pages.push(Bytes::from_owner(page));
    }
    (pages, gone)
}

fn pool() -> PktPool {
    PktPool::new(4)
}

fn place(stage: &mut TxStage, pages: &mut TxPages, off: usize, len: usize) {
    let mut slot = stage.push().expect("room");
    pages.refer(off, len, &mut slot, &mut pool());
}

fn payload(ring: &TxRing, n: usize) -> Vec<u8> {
    ring.pending()[n].payload().collect::<Vec<_>>().concat()
}

#[test]
fn a_buffer_that_is_dropped_frees_only_at_completion() {
    let (mut stage, mut ring) = TxRing::staged(4);
    let (mut pages, gone) = pages(&[10, 10]);
    place(&mut stage, &mut pages, 5, 10);
    place(&mut stage, &mut pages, 15, 5);
    drop(pages);
    assert_eq!(gone.load(Relaxed), 0, "in the stage");
    stage.hand_over(&mut ring);
    assert_eq!(payload(&ring, 0), [[0u8; 5], [1; 5]].concat());
    ring.consume(1);
    assert_eq!(gone.load(Relaxed), 0);
    assert_eq!(payload(&ring, 0), [1; 5]);
    ring.consume(1);
    assert_eq!(gone.load(Relaxed), 2);
}

#[test]
fn pages_taken_off_go_when_the_ring_is_done_with_them() {
    let (mut stage, mut ring) = TxRing::staged(4);
    let (mut pages, gone) = pages(&[10, 10, 10]);
    place(&mut stage, &mut pages, 0, 20);
    pages.take_off(15);
    assert_eq!((gone.load(Relaxed), pages.released()), (0, 0));
    assert!(pages.memory() >= 30);
    stage.hand_over(&mut ring);
    ring.clear();
    pages.release();
    assert_eq!((gone.load(Relaxed), pages.released()), (1, 10));
    // Nothing is out: they go at once.
    pages.take_off(10);
    assert_eq!((gone.load(Relaxed), pages.released()), (2, 20));
    drop(pages);
    assert_eq!(gone.load(Relaxed), 3);
}

#[test]
fn a_device_that_reads_later_keeps_pages() {
    let mut ring = TxRing::new(4);
    ring.complete_to(0);
    let (mut pages, gone) = pages(&[10]);
    let mut slot = ring.push().expect("room");
    pages.refer(0, 10, &mut slot, &mut pool());
    ring.clear();
    drop(pages);
    assert_eq!(gone.load(Relaxed), 0);
    // It still reads when the ring is dropped, and has a handle.
    let completions = ring.completions().clone();
    drop(ring);
    assert_eq!((gone.load(Relaxed), completions.done()), (0, 0));
    drop(completions);
    assert_eq!(gone.load(Relaxed), 1);
}

#[test]
fn pages_in_two_rings_wait_for_both() {
    for order in [[0, 1], [1, 0]] {
        let mut rings = [TxRing::new(4), TxRing::new(4)];
        let (mut pages, gone) = pages(&[10, 10]);
        for n in [0, 1, 0] {
            let mut slot = rings[n].push().expect("room");
            pages.refer(5, 10, &mut slot, &mut pool());
        }
        pages.take_off(10);
        rings[order[0]].clear();
        pages.release();
        assert_eq!(gone.load(Relaxed), 0);
        if order[0] == 0 {
            drop(pages);
            rings[order[1]].clear();
            assert_eq!(gone.load(Relaxed), 2);
        } else {
            rings[order[1]].clear();
            pages.release();
            assert_eq!(gone.load(Relaxed), 1);
        }
    }
}

#[test]
fn what_is_lent_stays_until_it_has_gone_through_the_ring() {
    for owner_first in [false, true] {
        let (mut stage, mut ring) = TxRing::staged(4);
        let (mut pages, gone) = pages(&[10, 10]);
        let mut lease = Lease::new();
        let to = stage.completions().clone();
        let lent: Vec<u32> = (0..3)
            .map(|i| pages.lend(i * 5, 5, &to, &mut pool(), &mut lease))
            .collect();
        assert_eq!(lent, [0, 1, 2]);
        pages.take_off(10);
        assert_eq!(gone.load(Relaxed), 0, "on its way");
        let mut pages = Some(pages);
        if owner_first {
            pages = None;
        }
        // The second is dropped on the way.
        for n in [0, 2] {
            lease.place(n, &mut stage.push().expect("room"));
        }
        drop(lease);
        if let Some(p) = &mut pages {
            p.release();
        }
        assert_eq!(gone.load(Relaxed), 0, "in the ring");
        stage.hand_over(&mut ring);
        assert_eq!(
            (payload(&ring, 0), payload(&ring, 1)),
            (vec![0; 5], vec![1; 5])
        );
        ring.clear();
        if let Some(p) = &mut pages {
            p.release();
            assert_eq!(gone.load(Relaxed), 1);
        }
        drop(pages);
        assert_eq!(gone.load(Relaxed), 2);
    }
}

#[test]
fn a_lease_that_is_dropped_or_forgotten_frees_nothing_too_early() {
    let stage = TxRing::staged(1).0;
    let (mut pages, gone) = pages(&[10]);
    let mut lease = Lease::new();
    pages.lend(0, 10, stage.completions(), &mut pool(), &mut lease);
    pages.take_off(10);
    assert_eq!(gone.load(Relaxed), 0);
    drop(lease);
    pages.release();
    assert_eq!(gone.load(Relaxed), 1, "nothing was placed");
}

#[test]
fn in_another_ring_and_for_another_lease_payload_is_copied() {
    let (a, mut other) = (TxRing::new(1), TxRing::new(2));
    let (mut first, gone) = pages(&[10]);
    let (mut second, _) = pages(&[20, 20]);
    let mut lease = Lease::new();
    first.lend(0, 10, a.completions(), &mut pool(), &mut lease);
    second.lend(10, 20, a.completions(), &mut pool(), &mut lease);
    for n in [0, 1] {
        lease.place(n, &mut other.push().expect("room"));
    }
    drop((lease, first, second));
    assert_eq!(gone.load(Relaxed), 1, "nothing refers to it");
    assert_eq!(payload(&other, 0), [0; 10]);
    assert_eq!(payload(&other, 1), [[0u8; 10], [1; 10]].concat());
}

#[test]
fn a_segment_has_as_many_parts_as_it_needs() {
    let mut ring = TxRing::new(4);
    let lengths = [1000, 3000, 500, 2000, 4000];
    let (mut pages, gone) = pages(&lengths);
    let all: Vec<u8> = (0..5u8)
        .flat_map(|i| vec![i; lengths[usize::from(i)]])
        .collect();
    // Long, by reference; short, copied; and very many pieces, copied.
    for (off, len) in [(500, 9000), (900, 2048)] {
        let mut slot = ring.push().expect("room");
        pages.refer(off, len, &mut slot, &mut pool());
    }
    assert_eq!(payload(&ring, 0), all[500..9500]);
    assert_eq!(ring.pending()[0].payload_len(), 9000);
    assert!(ring.pending()[0].owned.is_none());
    assert_eq!(payload(&ring, 1), all[900..2948]);
    let mut bits = TxPages::default();
    (0..2100u32).for_each(|i| bits.push(Bytes::copy_from_slice(&[i as u8])));
    let mut slot = ring.push().expect("room");
    bits.refer(7, 2080, &mut slot, &mut pool());
    assert!(ring.pending()[2].owned.is_some());
    assert_eq!(payload(&ring, 2)[..3], [7, 8, 9]);
    drop((pages, bits));
    ring.consume(1);
    assert_eq!(gone.load(Relaxed), 0);
    ring.clear();
    assert_eq!(gone.load(Relaxed), 5);
}

/// A copied page grows while a descriptor refers to what it has.
#[test]
fn a_page_grows_behind_what_is_read() {
    let mut ring = TxRing::new(4);
    let mut pages = TxPages::default();
    pages.push_copy(b"abc");
    let mut slot = ring.push().expect("room");
    pages.refer(0, 3, &mut slot, &mut pool());
    let first: Vec<&[u8]> = ring.pending()[0].payload().collect();
    pages.push_copy(b"def");
    assert_eq!(first[0], b"abc");
    let mut slot = ring.push().expect("room");
    pages.refer(1, 4, &mut slot, &mut pool());
    assert_eq!(payload(&ring, 1), b"bcde");
    pages.take_off(6);
    assert_eq!(payload(&ring, 0), b"abc");
}

/// A small write after the other through a ring, while another thread consumes: everything that is
/// read is what was written there. Miri would see a race, or a page that is gone.
#[test]
fn one_thread_refers_while_another_reads() {
    let rounds = if cfg!(miri) { 40 } else { 1000u32 };
    let (stage, mut ring) = TxRing::staged(2);
    let stage = std::sync::Mutex::new(stage);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut expected = 0u32;
            while expected < rounds {
                stage.lock().expect("no panic").hand_over(&mut ring);
                for d in ring.pending() {
                    let bytes = d.payload().collect::<Vec<_>>().concat();
                    assert_eq!(bytes, [(expected % 251) as u8; 700]);
                    expected += 1;
                }
                ring.clear();
                std::thread::yield_now();
            }
        });
        let mut pages = TxPages::default();
        let mut sent = 0;
        while sent < rounds {
            pages.push_copy(&[(sent % 251) as u8; 700]);
            loop {
                let mut stage = stage.lock().expect("no panic");
                if let Some(mut slot) = stage.push() {
                    pages.refer(0, 700, &mut slot, &mut pool());
                    break;
                }
                drop(stage);
                std::thread::yield_now();
            }
            sent += 1;
            pages.take_off(700);
            if sent % 7 == 0 {
                // Another connection's, in the same ring.
                pages = TxPages::default();
            }
        }
    });
}

#[test]
fn what_is_noted_elsewhere_is_noted_once() {
    let (mut a, mut b) = (TxRing::new(8), TxRing::new(8));
    let (mut pages, gone) = pages(&[10, 10]);
    for first in [false, true] {
        if first {
            pages.refer(0, 1, &mut b.push().expect("room"), &mut pool());
        }
        let mut lease = Lease::new();
        pages.lend(0, 10, a.completions(), &mut pool(), &mut lease);
        lease.place(0, &mut a.push().expect("room"));
        drop(lease);
        (0..5).for_each(|_| pages.release());
        assert!(pages.elsewhere.len() <= 2 * usize::from(first));
    }
    pages.take_off(20);
    b.clear();
    pages.release();
    assert_eq!(gone.load(Relaxed), 0);
    a.clear();
    pages.release();
    assert_eq!(gone.load(Relaxed), 2);
}

#[test]
fn a_lease_that_comes_back_frees_what_it_placed_at_completion() {
    let (mut stage, mut ring) = TxRing::staged(4);
    let to = stage.completions().clone();
    let (mut pages, gone) = pages(&[10, 10, 10]);
    for n in 0..3 {
        let mut lease = Lease::new();
        pages.lend(0, 10, &to, &mut pool(), &mut lease);
        pages.take_off(10);
        lease.place(0, &mut stage.push().expect("room"));
        pages.take_back(lease);
        pages.release();
        assert_eq!(gone.load(Relaxed), n, "in the ring");
        stage.hand_over(&mut ring);
        assert_eq!(payload(&ring, 0), [n as u8; 10]);
        ring.clear();
        pages.release();
        assert_eq!(gone.load(Relaxed), n + 1);
    }
}

#[test]
fn of_two_leases_the_one_that_is_still_out_keeps_pages() {
    for first_back in [false, true] {
        let (mut stage, mut ring) = TxRing::staged(4);
        let to = stage.completions().clone();
        let (mut pages, gone) = pages(&[10, 10]);
        let mut leases = [Lease::new(), Lease::new()];
        for (n, lease) in leases.iter_mut().enumerate() {
            pages.lend(n * 10, 10, &to, &mut pool(), lease);
        }
        pages.take_off(20);
        let [first, second] = leases;
        let (mut back, mut out) = match first_back {
            true => (first, second),
            false => (second, first),
        };
        back.place(0, &mut stage.push().expect("room"));
        pages.take_back(back);
        stage.hand_over(&mut ring);
        ring.clear();
        pages.release();
        assert_eq!(gone.load(Relaxed), 0, "one is out");
        out.place(0, &mut stage.push().expect("room"));
        drop(out);
        pages.release();
        assert_eq!(gone.load(Relaxed), 0, "in the ring");
        stage.hand_over(&mut ring);
        assert_eq!(payload(&ring, 0), [u8::from(first_back); 10]);
        ring.clear();
        pages.release();
        assert_eq!(gone.load(Relaxed), 2);
    }
}

/// A page that says that it is gone.
struct Marked(Vec<u8>, std::sync::Arc<std::sync::atomic::AtomicBool>);

impl AsRef<[u8]> for Marked {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        self.1.store(true, Relaxed);
    }
}

/// References, leases that are dropped or come back, in two rings, in any order: what a ring has
/// is what was there, of pages that are not gone; and in the end all are.
#[test]
fn any_order_of_references_and_leases_keeps_pages() {
    const LEN: usize = 8;
    for seed in 0..if cfg!(miri) { 3 } else { 400 } {
        let mut rng = crate::rng::SplitMix64::new(seed);
        let mut below = |n: usize| rng.below(n as u64) as usize;
        let mut rings = [TxRing::new(16), TxRing::new(16)];
        let mut pages = TxPages::default();
        let (mut marks, mut first) = (Vec::new(), 0);
        // Leases: where they go, what they hold and whether that is placed.
        let mut out: Vec<(usize, usize, Lease)> = Vec::new();
        let mut expected = [Vec::new(), Vec::new()];
        for _ in 0..300 {
            let queued = marks.len() - first;
            let ring = below(2);
            match below(7) {
                0 | 1 if queued < 6 => {
                    let mark = std::sync::Arc::default();
                    let bytes = vec![marks.len() as u8; LEN];
                    marks.push(std::sync::Arc::clone(&mark));
                    pages.push(Bytes::from_owner(Marked(bytes, mark)));
                }
                2 if queued > 0 && rings[ring].room() > 0 => {
                    let n = below(queued);
                    let mut slot = rings[ring].push().expect("room");
                    pages.refer(n * LEN, LEN, &mut slot, &mut pool());
                    expected[ring].push(first + n);
                }
                3 if queued > 0 && out.len() < 3 => {
                    let n = below(queued);
                    let mut lease = Lease::new();
                    let to = rings[ring].completions().clone();
                    pages.lend(n * LEN, LEN, &to, &mut pool(), &mut lease);
                    out.push((ring, first + n, lease));
                }
                4 if !out.is_empty() => {
                    let (ring, n, mut lease) = out.swap_remove(below(out.len()));
                    if let Some(mut slot) = rings[ring].push() {
                        lease.place(0, &mut slot);
                        expected[ring].push(n);
                    }
                    match below(3) {
                        0 => drop(lease),
                        _ => pages.take_back(lease),
                    }
                }
                5 if queued > 0 => {
                    pages.take_off(LEN);
                    first += 1;
                }
                6 => {
                    for (i, n) in expected[ring].drain(..).enumerate() {
                        assert_eq!(payload(&rings[ring], i), [n as u8; LEN], "seed {seed}");
                        // It may have been copied.
                        let by_reference = rings[ring].pending()[i].owned.is_none();
                        let gone = marks[n].load(Relaxed);
                        assert!(!(by_reference && gone), "seed {seed}: page {n} is gone");
                    }
                    rings[ring].clear();
                }
                _ => pages.release(),
            }
        }
        drop(out);
        rings.iter_mut().for_each(TxRing::clear);
        pages.release();
        for (n, mark) in marks.iter().enumerate() {
            assert_eq!(mark.load(Relaxed), n < first, "seed {seed}: page {n}");
        }
        drop(pages);
        assert!(marks.iter().all(|m| m.load(Relaxed)), "seed {seed}");
    }
}

#[test]
fn a_device_that_hands_on_gets_the_memory_itself() {
    let (mut stage, mut ring) = TxRing::staged_to_hand_on(4);
    let (mut pages, gone) = pages(&[1000, 2000]);
    pages.push_copy(&[2; 3000]);
    let memory = pages.memory();
    // Of two pages of the application's and one of small writes; and too little to be worth it.
    place(&mut stage, &mut pages, 500, 5000);
    place(&mut stage, &mut pages, 0, POOLED);
    assert_eq!(pages.memory(), memory, "as it was charged for");
    // Small writes go on elsewhere: what was shared changes no more.
    pages.push_copy(&[3; 3000]);
    assert!(pages.memory() > memory, "another page");
    place(&mut stage, &mut pages, 5500, 3500);
    stage.hand_over(&mut ring);
    let before: Vec<_> = (0..3).map(|n| payload(&ring, n)).collect();
    let taken: Vec<_> = (0..3).map(|n| ring.take_pages(n)).collect();
    assert_eq!(taken.iter().map(Vec::len).collect::<Vec<_>>(), [3, 0, 2]);
    for n in [0, 2] {
        assert_eq!(taken[n].concat(), before[n]);
        let places = ring.pending()[n].payload().filter(|b| !b.is_empty());
        assert!(
            places
                .map(<[u8]>::as_ptr)
                .eq(taken[n].iter().map(|b| b.as_ptr()))
        );
        assert_eq!(
            (payload(&ring, n), ring.take_pages(n).len()),
            (before[n].clone(), 0)
        );
    }
    // Nobody waits for who has them, and they for nobody.
    ring.clear();
    pages.take_off(9000);
    drop(pages);
    assert_eq!(
        (gone.load(Relaxed), taken[0].concat()),
        (0, before[0].clone())
    );
    drop(taken);
    assert_eq!(gone.load(Relaxed), 2);
}

#[test]
fn what_is_lent_to_a_device_that_hands_on_is_handed_on() {
    let (mut stage, mut ring) = TxRing::staged_to_hand_on(4);
    let (mut other, mut elsewhere) = TxRing::staged(1);
    let (mut pages, gone) = pages(&[4000]);
    let to = stage.completions().clone();
    let mut lease = Lease::new();
    let n = pages.lend(0, 3000, &to, &mut pool(), &mut lease);
    lease.place(n, &mut stage.push().expect("room"));
    pages
        .lend_here(1000, 3000, &to, &mut pool(), &mut lease)
        .place(&mut stage.push().expect("room"));
    // Into another ring than the one that it was lent for: copied.
    let n = pages.lend(0, 3000, &to, &mut pool(), &mut lease);
    lease.place(n, &mut other.push().expect("room"));
    pages.take_back(lease);
    stage.hand_over(&mut ring);
    other.hand_over(&mut elsewhere);
    let taken = [ring.take_pages(0), ring.take_pages(1)];
    assert_eq!(taken.each_ref().map(|t| t.concat().len()), [3000, 3000]);
    assert!(elsewhere.take_pages(0).is_empty() && payload(&elsewhere, 0).len() == 3000);
    ring.clear();
    drop(pages);
    assert_eq!(gone.load(Relaxed), 0);
    drop(taken);
    assert_eq!(gone.load(Relaxed), 1);
}
