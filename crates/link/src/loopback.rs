//! A stack's way to itself: what it sends to one of its own addresses comes back in, like a frame
//! from any device, and never reaches a wire.

use core::sync::atomic::{AtomicUsize, Ordering, fence};
use perimeter_base::{PktBuf, PktPool, Time, TxRing, buf::roomy};
use perimeter_sync::{Lock, LockClass, Platform};
use perimeter_wire::MacAddr;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::csum;
use crate::device::{
    Capabilities, Device, Medium, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker,
};

/// Packets on their way at most; what finds no room waits in the transmit ring.
pub const LIMIT: usize = 512;
/// Largest packet, bytes: the largest of IPv4.
const MTU: u32 = 65_535;

#[derive(Default)]
struct State {
    packets: VecDeque<PktBuf>,
    /// Buffers that the receiving side has posted.
    posted: Vec<PktBuf>,
    waker: Option<Waker>,
}

struct Inner<P: Platform> {
    queue: P::Lock<State>,
    /// Packets in the queue; written under its lock.
    waiting: AtomicUsize,
}

/// The device: one queue each way, [`Medium::Ip`]. Checksums are neither made nor looked at, as
/// nothing lies between the two ends.
///
/// Nobody is told by [`RxQueue::arm`]: whoever may sleep looks at [`LoopbackHandle::waiting`] after
/// it has made itself known to the waker, which is called at every doorbell.
pub struct Loopback<P: Platform> {
    inner: Arc<Inner<P>>,
}

/// Looks into a [`Loopback`]. Cheap to clone.
pub struct LoopbackHandle<P: Platform> {
    inner: Arc<Inner<P>>,
}

/// A loopback and a look into it.
pub fn loopback<P: Platform>(platform: &P) -> (Loopback<P>, LoopbackHandle<P>) {
    let inner = Arc::new(Inner {
        queue: platform.lock(LockClass::Leaf, State::default()),
        waiting: AtomicUsize::new(0),
    });
    let handle = LoopbackHandle {
        inner: inner.clone(),
    };
    (Loopback { inner }, handle)
}

impl<P: Platform> LoopbackHandle<P> {
    /// How many packets wait to be received.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.inner.waiting.load(Ordering::Acquire)
    }
}

impl<P: Platform> Device for Loopback<P> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "lo".to_owned(),
            medium: Medium::Ip,
            mac: MacAddr::default(),
            mtu: MTU,
            tx_checksum: true,
            large: 0,
            large_datagrams: 0,
            hands_on: false,
        }
    }

    fn open(self: Box<Self>) -> Queues {
        let rx = LoopRx {
            inner: self.inner.clone(),
        };
        let tx = LoopTx { inner: self.inner };
        (vec![Box::new(rx)], vec![Box::new(tx)])
    }
}

struct LoopRx<P: Platform> {
    inner: Arc<Inner<P>>,
}

impl<P: Platform> RxQueue for LoopRx<P> {
    fn poll(&mut self, _: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let mut q = self.inner.queue.lock();
        let n = q.packets.len().min(max);
        for _ in 0..n {
            // A buffer for a buffer.
            q.posted.push(pool.take(perimeter_base::buf::POOLED));
        }
        let frames = q.packets.drain(..n).map(|buf| RxFrame {
            buf,
            hash: None,
            csum_ok: true,
            segment_size: 0,
        });
        out.extend(frames);
        q.posted.truncate(LIMIT);
        self.inner.waiting.store(q.packets.len(), Ordering::Release);
        n
    }

    fn arm(&mut self, _: Time) -> RxStatus {
        match self.inner.queue.lock().packets.is_empty() {
            true => RxStatus::Armed(Time::NEVER),
            false => RxStatus::Ready,
        }
    }

    fn set_waker(&mut self, waker: Waker) {
        self.inner.queue.lock().waker = Some(waker);
    }
}

struct LoopTx<P: Platform> {
    inner: Arc<Inner<P>>,
}

impl<P: Platform> TxQueue for LoopTx<P> {
    fn doorbell(&mut self, _: Time, ring: &mut TxRing) {
        let mut q = self.inner.queue.lock();
        let n = LIMIT.saturating_sub(q.packets.len()).min(ring.len());
        for d in &ring.pending()[..n] {
            let len = d.frame_len();
            let mut buf = match q.posted.pop() {
                Some(b) if b.capacity() >= len => b,
                _ => PktBuf::with_capacity(roomy(len)),
            };
            if csum::copy_out(d, buf.raw_mut()).is_some() {
                buf.set_window(0, len);
                q.packets.push_back(buf);
            }
        }
        ring.consume(n);
        self.inner.waiting.store(q.packets.len(), Ordering::Release);
        let waker = (n > 0).then(|| q.waker.clone()).flatten();
        drop(q);
        if let Some(waker) = waker {
            // Who is about to sleep shows itself to the waker, fences, and looks at `waiting`.
            fence(Ordering::SeqCst);
            waker();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perimeter_sync::Native;

    #[test]
    fn what_goes_in_comes_out_in_order_and_what_is_too_much_waits() {
        let (device, handle) = loopback(&Native::default());
        let (mut rx, mut tx) = Box::new(device).open();
        let (rx, tx) = (&mut rx[0], &mut tx[0]);
        let rung = Arc::new(AtomicUsize::new(0));
        let told = rung.clone();
        rx.set_waker(Arc::new(move || {
            told.fetch_add(1, Ordering::Relaxed);
        }));
        let mut ring = TxRing::new(2 * LIMIT);
        for n in 0..LIMIT + 5 {
            let mut d = ring.push().unwrap();
            d.hdr_len = 0;
            d.owned = Some(PktBuf::copy_of(&(n as u32).to_be_bytes()));
        }
        tx.doorbell(Time::ZERO, &mut ring);
        assert_eq!((ring.len(), handle.waiting()), (5, LIMIT));
        assert_eq!(ring.completions().done(), LIMIT as u64);
        assert_eq!(rx.arm(Time::ZERO), RxStatus::Ready);
        let (mut pool, mut out) = (PktPool::default(), Vec::new());
        assert_eq!(rx.poll(Time::ZERO, &mut pool, &mut out, 10), 10);
        tx.doorbell(Time::ZERO, &mut ring);
        assert_eq!(
            (ring.len(), ring.completions().done()),
            (0, LIMIT as u64 + 5)
        );
        assert_eq!(rung.load(Ordering::Relaxed), 2);
        while rx.poll(Time::ZERO, &mut pool, &mut out, 100) > 0 {}
        assert_eq!((out.len(), handle.waiting()), (LIMIT + 5, 0));
        for (n, f) in out.iter().enumerate() {
            assert_eq!(f.buf.as_slice(), (n as u32).to_be_bytes());
        }
        assert_eq!(rx.arm(Time::ZERO), RxStatus::Armed(Time::NEVER));
    }
}
