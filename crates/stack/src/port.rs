//! The stack's side of device queues.

use crate::kind::{Kind, Lk, lock};
use perimeter_base::{Time, TxRing};
use perimeter_link::{RxQueue, TxQueue};
use perimeter_sync::{Lock, LockClass, LockStats};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Descriptors in a transmit ring.
pub const TX_RING: usize = 1024;

/// How soon a device is asked again that left frames without saying when, ns.
const RETRY: u64 = 10_000;

/// One transmit queue. Whoever emits appends to `ring` inside its protection; whoever rings the
/// doorbell swaps the ring out and lets the device work on it while others go on appending.
pub struct TxPort<K: Kind> {
    /// Descriptors placed by the stack.
    pub ring: Lk<K, TxRing>,
    device: Lk<K, DeviceSide>,
    completed: AtomicU64,
    /// When a doorbell is wanted though nothing new is placed: ns; `u64::MAX`, never.
    again: AtomicU64,
    stuck: AtomicBool,
}

struct DeviceSide {
    queue: Box<dyn TxQueue>,
    /// Descriptors that the device has not taken yet.
    taken: TxRing,
}

impl<K: Kind> TxPort<K> {
    /// Around a device's queue.
    pub fn new(p: &K::P, queue: Box<dyn TxQueue>) -> TxPort<K> {
        let side = DeviceSide { queue, taken: TxRing::new(TX_RING) };
        TxPort {
            ring: lock::<K, _>(p, LockClass::TxRing, TxRing::new(TX_RING)),
            device: lock::<K, _>(p, LockClass::NicTx, side),
            completed: AtomicU64::new(0),
            again: AtomicU64::new(u64::MAX),
            stuck: AtomicBool::new(false),
        }
    }

    /// Tickets that the device has completed.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// Whether descriptors are left that the device could not take at the last doorbell.
    pub fn backlogged(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Rings the doorbell. If another thread is at the device it is that thread's turn to take
    /// what was placed meanwhile: it looks again after it has let go, so nothing is left lying.
    pub fn doorbell(&self, now: Time) {
        loop {
            let Some(mut device) = self.device.try_lock() else {
                return;
            };
            let DeviceSide { queue, taken } = &mut *device;
            if taken.is_empty() {
                self.ring.lock().swap_out(taken);
            }
            queue.doorbell(now, taken);
            self.completed.store(queue.completed(), Ordering::Release);
            let stuck = !taken.is_empty();
            self.stuck.store(stuck, Ordering::Relaxed);
            let again = match queue.ready_at() {
                Time::ZERO if stuck => now.0 + RETRY,
                Time::ZERO => u64::MAX,
                at => at.0,
            };
            self.again.store(again, Ordering::Release);
            drop(device);
            if stuck || self.ring.lock().is_empty() {
                return;
            }
        }
    }

    /// When a doorbell is wanted though nothing new is placed: the device is paced, or holds
    /// frames back itself. [`Time::NEVER`]: it is not.
    pub fn ready_at(&self) -> Time {
        Time(self.again.load(Ordering::Acquire))
    }

    /// Time that the other end spent inside this queue, ns.
    pub fn peer_ns(&self) -> u64 {
        self.device.lock().queue.peer_ns()
    }

    /// Descriptors that the device has not taken.
    pub fn pending(&self) -> usize {
        let taken = self.device.lock().taken.len();
        taken + self.ring.lock().len()
    }

    /// Lock counts of ring and device.
    pub fn stats(&self) -> [(LockClass, LockStats); 2] {
        [(LockClass::TxRing, self.ring.stats()), (LockClass::NicTx, self.device.stats())]
    }
}

/// One receive queue.
pub struct RxPort<K: Kind> {
    /// The device's queue; held while a burst is taken and processed, so that bursts of one
    /// queue stay in order.
    pub queue: Lk<K, Box<dyn RxQueue>>,
    /// Interface that its frames belong to.
    pub iface: u16,
    /// The descriptor to wait for, if the device belongs to the host.
    pub fd: Option<std::os::fd::RawFd>,
}

impl<K: Kind> RxPort<K> {
    /// Around a device's queue.
    pub fn new(p: &K::P, queue: Box<dyn RxQueue>, iface: u16) -> RxPort<K> {
        let fd = queue.fd();
        RxPort { queue: lock::<K, _>(p, LockClass::NicRx, queue), iface, fd }
    }
}
