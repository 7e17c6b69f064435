use super::*;
use crate::pool::PktPool;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory that says when it is given back.
fn watched(frames: usize) -> (Memory, std::sync::Arc<AtomicBool>) {
    let gone = std::sync::Arc::new(AtomicBool::new(false));
    let inner = Memory::heap(size(64, frames));
    let (at, len, tell) = (inner.at, inner.len, gone.clone());
    let release = move || {
        tell.store(true, Ordering::SeqCst);
        drop(inner);
    };
    // SAFETY: memory of the heap, as it is asked for, which `release` keeps.
    (unsafe { Memory::new(at, len, release) }, gone)
}

fn one(frames: usize) -> Stock {
    divide(Memory::heap(size(64, frames)), 64, &[frames])
        .pop()
        .expect("a stock")
}

#[test]
fn a_received_frame_stays_where_it_is_and_comes_home() {
    let mut s = one(2);
    let at = s.lend().expect("a frame");
    assert_eq!((s.home(), s.out()), (1, 0));
    let mut buf = s.filled(at + 16, 20).expect("lent");
    assert!(s.filled(at, 1).is_none(), "once");
    assert_eq!((buf.len(), buf.capacity(), s.out()), (20, 64, 1));
    assert_eq!(
        buf.as_slice().as_ptr().addr(),
        s.frames().cast::<u8>().addr() + at as usize + 16
    );
    buf.as_mut_slice().fill(7);
    assert_eq!(buf.append(&[8; 64]), 28, "to the frame's end");
    buf.trim_front(4);
    assert_eq!(buf.before(4), Some(&[7; 4][..]));
    assert!(buf.is_of_region());
    let buf = buf.into_vec().expect_err("the device's memory");
    drop(buf);
    assert_eq!(s.home(), 1);
    s.reclaim();
    assert_eq!((s.home(), s.out()), (2, 0));
    s.reclaim();
    assert_eq!(s.home(), 2);
}

#[test]
fn a_frame_to_send_is_taken_filled_and_given() {
    let mut s = one(1);
    let mut buf = s.take().expect("a frame");
    assert!(s.take().is_none() && s.lend().is_none());
    buf.raw_mut()[..3].copy_from_slice(b"abc");
    let at = s.give(buf).expect("of this stock");
    assert_eq!((s.home(), s.out()), (0, 0));
    assert!(s.done(at) && !s.done(at));
    assert_eq!(s.home(), 1);
    let b = s.take().expect("a frame");
    assert_eq!(b.raw()[..3], *b"abc");
}

#[test]
fn what_is_not_the_kernels_is_not_taken_from_it() {
    let mut stocks = divide(Memory::heap(size(64, 5)), 64, &[2, 3]);
    let mut second = stocks.pop().expect("two");
    let mut first = stocks.pop().expect("two");
    assert_eq!((first.len(), second.len()), (2, 3));
    let at = second.lend().expect("a frame");
    assert_eq!(at, 2 * 64, "behind the first stock's");
    for wrong in [0, 64, 3 * 64, 5 * 64, u64::MAX] {
        assert!(!second.done(wrong) && second.filled(wrong, 1).is_none());
    }
    assert!(!first.done(at));
    assert_eq!(second.filled(at + 60, 100).expect("lent").len(), 4);
    let buf = first.take().expect("a frame");
    let buf = second.give(buf).expect_err("another stock's");
    assert!(first.give(PktBuf::with_capacity(64)).is_err(), "the heap's");
    let other = one(4).take().expect("a frame");
    assert!(first.give(other).is_err(), "another region's");
    assert!(first.give(buf).is_ok());
}

#[test]
fn pools_and_descriptors_give_frames_back() {
    let mut s = divide(Memory::heap(size(2048, 2)), 2048, &[2]);
    let s = &mut s[0];
    let mut pool = PktPool::new(4);
    pool.put(s.take().expect("a frame"));
    assert!(pool.is_empty(), "not for the stock of the heap's");
    let mut ring = crate::TxRing::new(1);
    ring.push().expect("room").owned = s.take();
    s.reclaim();
    assert_eq!((s.home(), s.out()), (1, 1));
    ring.clear();
    ring.push().expect("room");
    s.reclaim();
    assert_eq!((s.home(), s.out()), (2, 0));
}

#[test]
fn the_region_goes_with_the_last_frame() {
    let (memory, gone) = watched(4);
    let is_gone = || gone.load(Ordering::SeqCst);
    let mut stocks = divide(memory, 64, &[2, 2]);
    let (a, b) = (stocks[0].take(), stocks[1].take());
    let c = stocks[1].take();
    stocks[1].lend();
    drop(c);
    drop(stocks.pop());
    drop(b);
    assert!(!is_gone(), "a stock is left");
    drop(stocks);
    assert!(!is_gone(), "a frame is out");
    assert_eq!(a.expect("a frame").raw().len(), 64);
    assert!(is_gone());
}

#[test]
fn the_region_goes_with_the_last_stock() {
    let (memory, gone) = watched(2);
    let mut stocks = divide(memory, 64, &[2]);
    let frames = [stocks[0].take(), stocks[0].take()];
    drop(frames);
    assert!(!gone.load(Ordering::SeqCst));
    stocks.clear();
    assert!(gone.load(Ordering::SeqCst));
}

#[test]
fn frames_come_home_from_many_threads() {
    const FRAMES: usize = 16;
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    let (memory, gone) = watched(FRAMES);
    let mut stock = divide(memory, 64, &[FRAMES]).pop().expect("a stock");
    let (tx, rx) = std::sync::mpsc::sync_channel::<PktBuf>(FRAMES);
    let rx = std::sync::Mutex::new(rx);
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                loop {
                    let got = rx.lock().expect("whole").recv();
                    let Ok(mut buf) = got else { return };
                    buf.raw_mut().fill(9);
                }
            });
        }
        for _ in 0..rounds {
            while stock.home() == 0 {
                stock.reclaim();
                std::thread::yield_now();
            }
            let mut buf = stock.take().expect("at home");
            buf.raw_mut().fill(3);
            tx.send(buf).expect("sent");
        }
        drop(stock);
        drop(tx);
    });
    assert!(gone.load(Ordering::SeqCst), "with the last frame");
}

#[test]
#[should_panic = "room for all frames"]
fn frames_lie_within_the_memory() {
    divide(Memory::heap(size(64, 2)), 64, &[3]);
}
