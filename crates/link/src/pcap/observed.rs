//! A device whose frames somebody sees as they pass.

use super::format::Direction;
use crate::csum;
use crate::device::{
    Capabilities, Device, Medium, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker,
};
use perimeter_base::{PktPool, Time, TxRing};
use std::os::fd::RawFd;

/// Who sees frames. Each queue has a clone of its own.
pub(crate) trait Observer: Clone + Send + 'static {
    /// Whether frames are wanted now: asked once a burst, before anything is copied.
    fn on(&self) -> bool;

    /// Frames that have passed, with complete checksums.
    fn saw(&mut self, at: Time, direction: Direction, frames: Frames<'_>);
}

/// Frames one behind the other.
#[derive(Default)]
struct Staged {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Staged {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Adds a frame, which `write` appends; `finish` gets the frame alone.
    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>), finish: impl FnOnce(&mut [u8])) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        finish(&mut self.bytes[start..]);
        self.ends.push(self.bytes.len());
    }

    fn first(&self, n: usize) -> Frames<'_> {
        Frames {
            staged: self,
            next: 0,
            n: n.min(self.ends.len()),
        }
    }
}

/// The frames of a burst.
pub(crate) struct Frames<'a> {
    staged: &'a Staged,
    next: usize,
    n: usize,
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.next == self.n {
            return None;
        }
        let start = match self.next {
            0 => 0,
            i => self.staged.ends[i - 1],
        };
        let end = self.staged.ends[self.next];
        self.next += 1;
        Some(&self.staged.bytes[start..end])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.n - self.next, Some(self.n - self.next))
    }
}

impl ExactSizeIterator for Frames<'_> {}

/// The device.
pub(crate) struct Observed<O> {
    pub inner: Box<dyn Device>,
    pub observer: O,
}

impl<O: Observer> Device for Observed<O> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let medium = self.inner.capabilities().medium;
        let observer = self.observer;
        let (rx, tx) = self.inner.open();
        let rx = rx.into_iter().map(|inner| {
            Box::new(Rx {
                inner,
                medium,
                observer: observer.clone(),
                staged: Staged::default(),
            }) as Box<dyn RxQueue>
        });
        let tx = tx.into_iter().map(|inner| {
            Box::new(Tx {
                inner,
                observer: observer.clone(),
                staged: Staged::default(),
            }) as Box<dyn TxQueue>
        });
        (rx.collect(), tx.collect())
    }
}

struct Rx<O> {
    inner: Box<dyn RxQueue>,
    medium: Medium,
    observer: O,
    staged: Staged,
}

impl<O: Observer> RxQueue for Rx<O> {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let before = out.len();
        let n = self.inner.poll(now, pool, out, max);
        if n == 0 || !self.observer.on() {
            return n;
        }
        self.staged.clear();
        for f in &out[before..] {
            let write = |to: &mut Vec<u8>| to.extend_from_slice(f.buf.as_slice());
            self.staged.add(write, |frame| {
                if f.csum_ok {
                    // It may hold a partial checksum, which readers would call wrong.
                    csum::renew(frame, self.medium);
                }
            });
        }
        let frames = self.staged.first(n);
        self.observer.saw(now, Direction::Inbound, frames);
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        self.inner.arm(now)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.inner.set_waker(waker);
    }

    fn fd(&self) -> Option<RawFd> {
        self.inner.fd()
    }

    fn peer_ns(&self) -> u64 {
        self.inner.peer_ns()
    }
}

struct Tx<O> {
    inner: Box<dyn TxQueue>,
    observer: O,
    staged: Staged,
}

impl<O: Observer> TxQueue for Tx<O> {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        if !self.observer.on() {
            return self.inner.doorbell(now, ring);
        }
        self.staged.clear();
        for d in ring.pending() {
            let write = |to: &mut Vec<u8>| csum::gather(d, to);
            self.staged
                .add(write, |frame| csum::complete(frame, d.offload));
        }
        let before = ring.len();
        self.inner.doorbell(now, ring);
        // Only what the device took has been sent.
        match before - ring.len() {
            0 => {}
            taken => {
                let frames = self.staged.first(taken);
                self.observer.saw(now, Direction::Outbound, frames);
            }
        }
    }

    fn carrier(&self) -> bool {
        self.inner.carrier()
    }

    fn ready_at(&self) -> Time {
        self.inner.ready_at()
    }

    fn peer_ns(&self) -> u64 {
        self.inner.peer_ns()
    }
}
