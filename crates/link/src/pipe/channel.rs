//! Frames as values, through two bounded queues.

use super::PipeConfig;
use crate::csum;
use crate::device::{Capabilities, Device, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker};
use crate::irq::{Irq, Moderation};
use core::fmt;
use core::task::{Context, Poll};
use perimeter_base::{PktBuf, PktPool, Time, TxRing, buf::roomy};
use perimeter_sync::{Lock, LockClass, Platform};
use std::collections::VecDeque;
use std::sync::Arc;

/// When the stack looks again after the queue to the other end was full, ns.
const AGAIN: u64 = 1_000_000;

struct State {
    to_stack: VecDeque<PktBuf>,
    from_stack: VecDeque<PktBuf>,
    /// Buffers that the stack is done with, for those that it sends.
    spare: Vec<PktBuf>,
    /// The other end waits for a frame, and for room.
    reader: Option<core::task::Waker>,
    writer: Option<core::task::Waker>,
    notify: Option<Waker>,
    /// The stack has dropped its end, or the program has.
    stack_gone: bool,
    program_gone: bool,
}

struct Inner<P: Platform> {
    config: PipeConfig,
    queues: P::Lock<State>,
    irq: Irq<P>,
}

/// The stack's end: one queue each way.
pub struct Pipe<P: Platform> {
    inner: Arc<Inner<P>>,
}

/// The program's end. When the last clone goes, the interface has gone.
pub struct PipeEnd<P: Platform> {
    end: Arc<End<P>>,
}

struct End<P: Platform>(Arc<Inner<P>>);

impl<P: Platform> Clone for PipeEnd<P> {
    fn clone(&self) -> Self {
        PipeEnd {
            end: self.end.clone(),
        }
    }
}

/// A frame found no room: the stack has not taken what was sent before. It comes back.
#[derive(Debug)]
pub struct Full(pub PktBuf);

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the pipe to the stack is full")
    }
}

impl core::error::Error for Full {}

/// The stack has gone.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the stack at the other end of the pipe has gone")
    }
}

impl core::error::Error for Closed {}

/// A pair of ends.
pub fn channel<P: Platform>(platform: &P, config: PipeConfig) -> (Pipe<P>, PipeEnd<P>) {
    let state = State {
        to_stack: VecDeque::new(),
        from_stack: VecDeque::new(),
        spare: Vec::new(),
        reader: None,
        writer: None,
        notify: None,
        stack_gone: false,
        program_gone: false,
    };
    let config = PipeConfig {
        queue: config.queue.max(1),
        ..config
    };
    let inner = Arc::new(Inner {
        config,
        queues: platform.lock(LockClass::Leaf, state),
        irq: Irq::new(platform, true, Moderation::default()),
    });
    let end = PipeEnd {
        end: Arc::new(End(inner.clone())),
    };
    (Pipe { inner }, end)
}

impl<P: Platform> PipeEnd<P> {
    /// Gives the stack a frame.
    ///
    /// # Errors
    /// There is no room, or the stack has gone: then it never will be.
    pub fn send(&self, frame: PktBuf) -> Result<(), Full> {
        let inner = &self.end.0;
        {
            let mut q = inner.queues.lock();
            if q.stack_gone || q.to_stack.len() >= inner.config.queue {
                return Err(Full(frame));
            }
            q.to_stack.push_back(frame);
        }
        inner.irq.raise(Time(1));
        Ok(())
    }

    /// Whether there is room for a frame; if not, the task is woken when there is.
    ///
    /// # Errors
    /// The stack has gone.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        let inner = &self.end.0;
        let mut q = inner.queues.lock();
        if q.stack_gone {
            return Poll::Ready(Err(Closed));
        }
        if q.to_stack.len() < inner.config.queue {
            return Poll::Ready(Ok(()));
        }
        note(&mut q.writer, cx);
        Poll::Pending
    }

    /// The next frame that the stack has sent. [`Platform`]'s device looks for room once a
    /// millisecond while there was none.
    pub fn try_recv(&self) -> Option<PktBuf> {
        self.end.0.queues.lock().from_stack.pop_front()
    }

    /// As [`PipeEnd::try_recv`]; the task is woken when there is one. `None`: the stack has gone, and
    /// all that it had sent is taken.
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Option<PktBuf>> {
        let mut q = self.end.0.queues.lock();
        match q.from_stack.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None if q.stack_gone => Poll::Ready(None),
            None => {
                note(&mut q.reader, cx);
                Poll::Pending
            }
        }
    }

    /// Frames of the stack that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.end.0.queues.lock().from_stack.len()
    }

    /// Gives a buffer back that a frame came in: the next one that the stack sends will.
    pub fn recycle(&self, mut frame: PktBuf) {
        let inner = &self.end.0;
        frame.set_window(0, 0);
        let mut q = inner.queues.lock();
        if q.spare.len() < inner.config.queue && frame.capacity() >= inner.config.frame() {
            q.spare.push(frame);
        }
    }

    /// Sets who is told when the stack has sent something: called inside the doorbell, once per
    /// doorbell; must not block.
    pub fn set_notify(&self, notify: Waker) {
        self.end.0.queues.lock().notify = Some(notify);
    }

    /// Largest frame, bytes.
    pub fn frame_size(&self) -> usize {
        self.end.0.config.frame()
    }
}

fn note(place: &mut Option<core::task::Waker>, cx: &Context<'_>) {
    match place {
        Some(w) => w.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

impl<P: Platform> Drop for End<P> {
    fn drop(&mut self) {
        {
            let mut q = self.0.queues.lock();
            q.program_gone = true;
            q.from_stack = VecDeque::new();
            q.spare = Vec::new();
        }
        self.0.irq.raise(Time(1));
    }
}

impl<P: Platform> Device for Pipe<P> {
    fn capabilities(&self) -> Capabilities {
        self.inner.config.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let rx = PipeRx {
            inner: self.inner.clone(),
        };
        let tx = PipeTx {
            inner: self.inner,
            ready_at: Time::ZERO,
        };
        (vec![Box::new(rx)], vec![Box::new(tx)])
    }
}

struct PipeRx<P: Platform> {
    inner: Arc<Inner<P>>,
}

impl<P: Platform> RxQueue for PipeRx<P> {
    fn poll(&mut self, _: Time, _: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let inner = &self.inner;
        inner.irq.disarm();
        let (n, writer) = {
            let mut q = inner.queues.lock();
            let n = q.to_stack.len().min(max);
            let frames = q.to_stack.drain(..n).map(|buf| RxFrame {
                buf,
                hash: None,
                csum_ok: inner.config.trusted,
                segment_size: 0,
            });
            out.extend(frames);
            (n, if n > 0 { q.writer.take() } else { None })
        };
        if let Some(w) = writer {
            w.wake();
        }
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        let inner = &self.inner;
        let mut gone = false;
        let armed = inner.irq.arm(now, || {
            let q = inner.queues.lock();
            gone = q.program_gone;
            match q.to_stack.is_empty() && !gone {
                true => Time::NEVER,
                false => Time::ZERO,
            }
        });
        if gone && inner.queues.lock().to_stack.is_empty() {
            return RxStatus::Gone;
        }
        armed
    }

    fn set_waker(&mut self, waker: Waker) {
        self.inner.irq.set_waker(waker);
    }
}

impl<P: Platform> Drop for PipeRx<P> {
    fn drop(&mut self) {
        let wakers = {
            let mut q = self.inner.queues.lock();
            q.stack_gone = true;
            q.to_stack = VecDeque::new();
            [q.reader.take(), q.writer.take()]
        };
        for w in wakers.into_iter().flatten() {
            w.wake();
        }
    }
}

struct PipeTx<P: Platform> {
    inner: Arc<Inner<P>>,
    ready_at: Time,
}

impl<P: Platform> TxQueue for PipeTx<P> {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        let inner = &self.inner;
        let mut q = inner.queues.lock();
        let room = match q.program_gone {
            // Nobody is there: as on a link without carrier.
            true => ring.len(),
            false => inner.config.queue.saturating_sub(q.from_stack.len()),
        };
        let n = room.min(ring.len());
        let kept = if q.program_gone { 0 } else { n };
        for d in &ring.pending()[..kept] {
            let len = d.frame_len();
            let mut buf = match q.spare.pop() {
                Some(b) if b.capacity() >= len => b,
                _ => PktBuf::with_capacity(roomy(len)),
            };
            if csum::copy_out(d, buf.raw_mut()).is_some() {
                buf.set_window(0, len);
                csum::complete(buf.as_mut_slice(), d.offload);
                q.from_stack.push_back(buf);
            }
        }
        ring.consume(n);
        self.ready_at = match ring.is_empty() {
            true => Time::ZERO,
            false => now.plus(AGAIN),
        };
        let (reader, notify) = match n {
            0 => (None, None),
            _ => (q.reader.take(), q.notify.clone()),
        };
        drop(q);
        if let Some(w) = reader {
            w.wake();
        }
        if let Some(notify) = notify {
            notify();
        }
    }

    fn ready_at(&self) -> Time {
        self.ready_at
    }

    fn carrier(&self) -> bool {
        !self.inner.queues.lock().program_gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Medium;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use perimeter_sync::Native;
    use std::task::Wake;

    struct Told(AtomicUsize);

    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn pipe(queue: usize) -> (Queues, PipeEnd<Native>) {
        let config = PipeConfig {
            queue,
            medium: Medium::Ip,
            ..PipeConfig::default()
        };
        let (pipe, end) = channel(&Native::default(), config);
        (Box::new(pipe).open(), end)
    }

    fn place(ring: &mut TxRing, byte: u8) {
        let mut d = ring.push().expect("room");
        d.hdr_len = 0;
        d.owned = Some(PktBuf::copy_of(&[byte]));
    }

    #[test]
    fn what_is_too_much_waits_either_way() {
        let ((mut rx, mut tx), end) = pipe(2);
        let told = Arc::new(Told(AtomicUsize::new(0)));
        let waker = told.clone().into();
        let mut cx = Context::from_waker(&waker);
        for n in 0..2 {
            assert!(end.poll_ready(&mut cx).is_ready());
            end.send(PktBuf::copy_of(&[n])).unwrap();
        }
        assert!(end.poll_ready(&mut cx).is_pending());
        let Full(back) = end.send(PktBuf::copy_of(&[7])).unwrap_err();
        assert_eq!(back.as_slice(), [7]);
        assert_eq!(rx[0].arm(Time(5)), RxStatus::Ready);
        let (mut pool, mut out) = (PktPool::default(), Vec::new());
        assert_eq!(rx[0].poll(Time(5), &mut pool, &mut out, 1), 1);
        assert_eq!(told.0.load(Ordering::SeqCst), 1);
        assert_eq!(rx[0].poll(Time(5), &mut pool, &mut out, 9), 1);
        assert!(out.iter().all(|f| !f.csum_ok) && out[1].buf.as_slice() == [1]);

        let mut ring = TxRing::new(4);
        assert!(end.poll_recv(&mut cx).is_pending());
        (0..3).for_each(|n| place(&mut ring, n));
        tx[0].doorbell(Time(9), &mut ring);
        assert_eq!((ring.len(), end.waiting()), (1, 2));
        assert_eq!(told.0.load(Ordering::SeqCst), 2);
        assert!(tx[0].ready_at() > Time(9));
        assert_eq!(end.try_recv().unwrap().as_slice(), [0]);
        let again = tx[0].ready_at();
        tx[0].doorbell(again, &mut ring);
        assert_eq!((ring.len(), tx[0].ready_at()), (0, Time::ZERO));
        let rest: Vec<u8> =
            std::iter::from_fn(|| end.try_recv().map(|f| f.as_slice()[0])).collect();
        assert_eq!(rest, [1, 2]);
    }

    #[test]
    fn either_end_hears_that_the_other_has_gone() {
        let ((mut rx, mut tx), end) = pipe(2);
        assert_eq!(rx[0].arm(Time(5)), RxStatus::Armed(Time::NEVER));
        let rung = Arc::new(AtomicUsize::new(0));
        let by = rung.clone();
        rx[0].set_waker(Arc::new(move || {
            by.fetch_add(1, Ordering::SeqCst);
        }));
        assert!(tx[0].carrier());
        drop(end.clone());
        assert_eq!(rung.load(Ordering::SeqCst), 0);
        drop(end);
        assert_eq!(rung.load(Ordering::SeqCst), 1);
        assert_eq!(rx[0].arm(Time(6)), RxStatus::Gone);
        assert!(!tx[0].carrier());
        let mut ring = TxRing::new(4);
        place(&mut ring, 1);
        tx[0].doorbell(Time(9), &mut ring);
        assert!(ring.is_empty());

        let (queues, end) = pipe(2);
        let told = Arc::new(Told(AtomicUsize::new(0)));
        let waker = told.clone().into();
        let mut cx = Context::from_waker(&waker);
        assert!(end.poll_recv(&mut cx).is_pending());
        drop(queues);
        assert_eq!(told.0.load(Ordering::SeqCst), 1);
        assert!(matches!(end.poll_recv(&mut cx), Poll::Ready(None)));
        assert!(matches!(end.poll_ready(&mut cx), Poll::Ready(Err(Closed))));
        assert!(end.send(PktBuf::copy_of(&[1])).is_err());
    }
}
