//! The stack's side of device queues.

use crate::id::SockId;
use crate::kind::{Kind, Lk, Tag, lock};
use crate::planted::{Bug, planted};
use crate::steer::Ways;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::str::FromStr;
use perimeter_base::{Completions, Time, TxRing, TxStage};
use perimeter_link::device::LARGEST;
use perimeter_link::{Capabilities, RxQueue, TxQueue};
use perimeter_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use perimeter_sync::{Lock, LockClass, LockStats, Locks, Platform, Touched};
use perimeter_tcp::{Large, SegPlan};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Descriptors in a transmit ring, unless the stack's settings say otherwise.
pub const TX_RING: usize = 1024;

/// How soon a device is asked again that left frames without saying when, ns.
const RETRY: u64 = 10_000;
/// How many segments a connection may place while others wait: enough that fetching its state
/// is a small part of the cost.
const SHARE: u64 = 32;
/// How many connections that waited for room go on at once.
pub const RESUME: usize = 8;

/// Who cuts bursts of TCP into segments of the MSS.
///
/// ```
/// use perimeter_stack::{Config, Offload};
///
/// // Segments one by one, as in the papers.
/// let offload: Offload = "off".parse()?;
/// let config = Config::default().with_offload(offload);
/// assert_eq!(config.offload, Offload::Off);
/// assert_eq!(Offload::default().to_string(), "device");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Offload {
    /// Nobody: each segment is planned by itself.
    Off,
    /// The stack, where a burst enters the transmit ring.
    Software,
    /// The device, if it can; else the stack.
    #[default]
    Device,
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Offload::Off => "off",
            Offload::Software => "software",
            Offload::Device => "device",
        })
    }
}

impl FromStr for Offload {
    type Err = String;

    fn from_str(s: &str) -> Result<Offload, String> {
        let all = [Offload::Off, Offload::Software, Offload::Device];
        let found = all.into_iter().find(|o| o.to_string() == s);
        found.ok_or_else(|| format!("`{s}` is none of off, software, device"))
    }
}

impl Offload {
    /// What that means for a device.
    pub(crate) fn cutting(self, device: &Capabilities) -> Option<Cutting> {
        let by_device = self == Offload::Device && device.large > 0;
        let octets = if by_device {
            device.large.min(LARGEST)
        } else {
            LARGEST
        };
        (self != Offload::Off).then_some(Cutting { octets, by_device })
    }

    /// What a descriptor of several datagrams may hold, octets. They are never cut here, where each
    /// may as well have its own.
    pub(crate) fn datagrams(self, device: &Capabilities) -> u32 {
        match self {
            Offload::Device => device.large_datagrams.min(LARGEST),
            _ => 0,
        }
    }
}

/// How large segments leave by a queue.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Cutting {
    /// Payload of one, octets at most.
    pub octets: u32,
    /// The device cuts them; else they are cut where they enter the ring, and a descriptor is one
    /// segment.
    pub by_device: bool,
}

impl Cutting {
    /// What a large segment may hold where the ring has `room` for so many descriptors.
    #[inline]
    pub fn most(&self, room: u64) -> Large {
        let segs = match self.by_device {
            true => u16::MAX,
            false => room.min(u16::MAX.into()) as u16,
        };
        Large {
            octets: self.octets,
            segs,
        }
    }
}

/// One transmit queue. Whoever emits places descriptors on its stage, inside their protection;
/// whoever rings the doorbell hands them over to the device's ring, and lets the device work on it
/// while others go on placing. On cache lines of its own, as its neighbour may belong to another
/// core.
#[repr(align(128))]
pub struct TxPort<K: Kind> {
    /// The receive queue whose server looks after this one: rings again for a device that was
    /// full, lets connections go on that wait.
    pub rxq: u16,
    /// Large segments; `None`: every segment is planned by itself.
    pub large: Option<Cutting>,
    /// Payload of a descriptor that stands for several datagrams, octets at most; 0: each has its own.
    pub large_datagrams: u32,
    /// Descriptors placed by the stack.
    stage: Lk<K, TxStage>,
    device: Lk<K, DeviceSide>,
    /// Somebody has found the device taken: who has it rings once more.
    wanted: AtomicBool,
    completions: Completions,
    /// What the device has spent on the other end's work, ns; and descriptors that it left. As of
    /// the last doorbell, so that who asks does not stand in the way of who rings.
    peer_ns: AtomicU64,
    left: AtomicUsize,
    /// When a doorbell is wanted though nothing new is placed: ns; `u64::MAX`, never.
    again: AtomicU64,
    stuck: AtomicBool,
    /// Connections whose output stopped here, in order of arrival: each goes on when its turn
    /// comes, so none starves.
    stalled: Lk<K, VecDeque<Stalled>>,
    /// Length of `stalled`; written under its lock, read without it as a hint.
    stalled_len: AtomicUsize,
    /// Places in the ring that are set aside for segments on their way to it. Others than resets
    /// take theirs under the ring's lock.
    aside: AtomicU64,
    /// Cache lines of the ring's descriptors.
    pub(crate) lines: Tag<K>,
}

/// Who waits for room in the ring.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// The socket.
    pub id: SockId,
    /// Places that it needs at once, at least 1: a datagram's fragments go together.
    pub places: u16,
}

struct DeviceSide {
    queue: Box<dyn TxQueue>,
    /// The time of the last doorbell. Threads read the clock before they get here, and may get
    /// here in another order: time does not go back for the device.
    clock: Time,
    /// Descriptors that the device has not taken yet.
    taken: TxRing,
}

impl<K: Kind> TxPort<K> {
    /// Around a device's queue, with the rings' both ends, looked after by whoever serves receive
    /// queue `rxq`.
    pub fn new(
        p: &K::P,
        queue: Box<dyn TxQueue>,
        (stage, taken): (TxStage, TxRing),
        rxq: u16,
    ) -> TxPort<K> {
        let completions = stage.completions().clone();
        let side = DeviceSide {
            queue,
            clock: Time::ZERO,
            taken,
        };
        TxPort {
            rxq,
            large: None,
            large_datagrams: 0,
            stage: lock::<K, _>(p, LockClass::TxRing, stage),
            device: lock::<K, _>(p, LockClass::NicTx, side),
            wanted: AtomicBool::new(false),
            completions,
            peer_ns: AtomicU64::new(0),
            left: AtomicUsize::new(0),
            again: AtomicU64::new(u64::MAX),
            stuck: AtomicBool::new(false),
            stalled: lock::<K, _>(p, LockClass::Control, VecDeque::with_capacity(1024)),
            stalled_len: AtomicUsize::new(0),
            aside: AtomicU64::new(0),
            lines: Tag::<K>::default(),
        }
    }

    /// The same, with large segments, and frames of several datagrams of so many octets.
    pub fn cutting(self, large: Option<Cutting>, large_datagrams: u32) -> TxPort<K> {
        TxPort {
            large,
            large_datagrams,
            ..self
        }
    }

    /// How many descriptors a segment takes: a large one that is cut here takes several.
    #[inline]
    pub fn descriptors(&self, plan: &SegPlan) -> u16 {
        match self.large {
            Some(cutting) if !cutting.by_device => plan.segs,
            _ => 1,
        }
    }

    /// What goes into the `i`th of those.
    #[inline]
    pub fn part(&self, plan: &SegPlan, i: u16) -> SegPlan {
        match self.descriptors(plan) {
            1 => *plan,
            _ => plan.segment(i),
        }
    }

    /// Where descriptors are placed.
    #[inline]
    pub fn stage(&self) -> impl DerefMut<Target = TxStage> + use<'_, K> {
        self.stage.lock()
    }

    /// How far the device has come.
    #[inline]
    pub fn completions(&self) -> &Completions {
        &self.completions
    }

    /// Declares that who serves the port looks at what the device is done with. A kernel's driver
    /// frees that then; in this stack who needs places in the ring does. So it does nothing but on
    /// virtual cores, for machines whose table says what it takes there.
    #[inline]
    pub fn looked_after(&self, p: &K::P) {
        p.touch(&self.lines, Touched::Completion, 1, true);
    }

    /// Whether descriptors are left that the device could not take at the last doorbell.
    pub fn backlogged(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Rings the doorbell. If another thread is at the device it is that thread's turn to take
    /// what was placed meanwhile: it is told to, and looks for that after it has let go, so nothing is
    /// left lying.
    pub fn doorbell(&self, now: Time) {
        loop {
            let again = || {
                self.ask();
                self.device.try_lock()
            };
            let Some(mut device) = self.device.try_lock().or_else(again) else {
                return;
            };
            let DeviceSide {
                queue,
                clock,
                taken,
            } = &mut *device;
            let now = now.max(*clock);
            *clock = now;
            // What the device has left comes first, and what was placed since in the next turn.
            let all = taken.is_empty();
            if all {
                self.stage.lock().hand_over(taken);
            }
            queue.doorbell(now, taken);
            self.peer_ns.store(queue.peer_ns(), Ordering::Relaxed);
            self.left.store(taken.len(), Ordering::Relaxed);
            let stuck = !taken.is_empty();
            self.stuck.store(stuck, Ordering::Relaxed);
            let rings_again = match queue.ready_at() {
                Time::ZERO if stuck => now.0 + RETRY,
                Time::ZERO => u64::MAX,
                at => at.0,
            };
            self.again.store(rings_again, Ordering::Release);
            drop(device);
            if stuck || planted(Bug::DoorbellLeavesLate) {
                return;
            }
            if all && !self.asked() {
                return;
            }
        }
    }

    /// Asks who is at the device to ring once more. The caller tries the device again after that, and
    /// who lets go of it looks whether somebody has asked, so that one of the two sees the other.
    #[cold]
    fn ask(&self) {
        self.wanted.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Whether somebody has asked to ring once more, since the last look.
    #[inline]
    fn asked(&self) -> bool {
        if !K::L::SHARED {
            return false;
        }
        fence(Ordering::SeqCst);
        // Read first: who finds nothing leaves the line to all who read it.
        self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::Acquire)
    }

    /// Learns what the device has completed since the last doorbell, if anything is out.
    pub fn refresh(&self, now: Time) {
        let placed = self.stage.lock().position();
        if self.completions.done() < placed {
            self.doorbell(now);
        }
    }

    /// A socket waits for room.
    pub fn stall(&self, who: Stalled) {
        let mut s = self.stalled.lock();
        s.push_back(who);
        // `put_back` relies on this: counted first, then this thread looks for room.
        self.stalled_len.store(s.len(), Ordering::SeqCst);
    }

    /// How many segments a connection may place in one go: no limit, unless others wait for
    /// room. Without it those with a large window crowd out those with a small one.
    #[inline]
    pub fn share(&self) -> u64 {
        if self.stalled() > 0 { SHARE } else { u64::MAX }
    }

    /// How many connections wait for room.
    pub fn stalled(&self) -> usize {
        self.stalled_len.load(Ordering::Acquire)
    }

    /// Whether the ring is half empty, and has so many places.
    fn has_room(&self, places: u16) -> bool {
        let ring = self.stage.lock();
        let aside = self.aside.load(Ordering::SeqCst) as usize;
        ring.len() + aside <= ring.capacity() / 2 && ring.room() >= places.into()
    }

    /// Whether there is room worth it for who waits first. Who needs more than half of the ring does
    /// not try again and again meanwhile.
    fn may_resume(&self) -> bool {
        let first = self.stalled.lock().front().map(|s| s.places);
        first.is_some_and(|places| self.has_room(places))
    }

    /// Sets places in the ring aside, at most `want`; how many. To be given back by
    /// [`TxPort::put_back`], when they are used or not needed.
    pub fn set_aside(&self, want: u64) -> u64 {
        let ring = self.stage.lock();
        let room = (ring.room() as u64).saturating_sub(self.aside.load(Ordering::Relaxed));
        let n = room.min(want);
        if planted(Bug::AsideUnlocked) {
            drop(ring);
            let _ring = self.stage.lock();
            self.aside.fetch_add(n, Ordering::Relaxed);
            return n;
        }
        self.aside.fetch_add(n, Ordering::Relaxed);
        n
    }

    /// Sets one place aside, whether it is there or not: for a reset, which nobody sends again. The
    /// places that others have set aside are more than they will need, most of the time.
    pub fn set_aside_one(&self) {
        self.aside.fetch_add(1, Ordering::Relaxed);
    }

    /// `n` places are set aside no longer. Returns whether connections wait for room: the caller
    /// then rings the doorbell, because those may have found no room while these places were
    /// aside.
    ///
    /// A connection that waits is counted before its thread looks for room, and this thread looks
    /// for waiting connections after the places are back, so that one of the two sees the other.
    #[must_use]
    pub fn put_back(&self, n: u64) -> bool {
        if n == 0 {
            return false;
        }
        let before = self.aside.fetch_sub(n, Ordering::SeqCst);
        debug_assert!(before >= n, "more was put back than set aside");
        self.stalled_len.load(Ordering::SeqCst) > 0
    }

    /// Takes the next few connections to go on, if there is room worth it; whether any did.
    pub fn resume(&self, out: &mut SmallVec<[SockId; RESUME]>) -> bool {
        if self.stalled() == 0 || self.backlogged() || !self.may_resume() {
            return false;
        }
        let mut s = self.stalled.lock();
        let n = s.len().min(RESUME);
        out.extend(s.drain(..n).map(|s| s.id));
        self.stalled_len.store(s.len(), Ordering::Release);
        n > 0
    }

    /// When a doorbell is wanted though nothing new is placed: the device is paced, or holds
    /// frames back itself, or connections wait that could go on. [`Time::NEVER`]: it is not.
    pub fn ready_at(&self) -> Time {
        // While the ring is full somebody has a doorbell to ring, or is at it, and sees to them.
        if self.stalled() > 0 && !self.backlogged() && self.may_resume() {
            return Time::ZERO;
        }
        self.rings_again()
    }

    /// When the device itself wants the doorbell again, as of the last one: it is paced, or has left
    /// frames or holds some back. [`Time::NEVER`]: it does not.
    pub fn rings_again(&self) -> Time {
        Time(self.again.load(Ordering::Acquire))
    }

    /// Whether frames can get anywhere, as far as the device knows; asked of a device that is not
    /// busy.
    pub fn carrier(&self) -> bool {
        let carrier = self.device.try_lock().is_none_or(|d| d.queue.carrier());
        self.make_up();
        carrier
    }

    /// The calling thread has held the device for another reason than to ring: who wanted to ring
    /// meanwhile has left that to it, and whoever looks at the queue next does it.
    fn make_up(&self) {
        if !planted(Bug::CountsHideDoorbell) && !self.stage.lock().is_empty() {
            self.again.store(0, Ordering::Release);
        }
    }

    /// Time that the other end spent inside this queue, ns.
    pub fn peer_ns(&self) -> u64 {
        self.peer_ns.load(Ordering::Relaxed)
    }

    /// Descriptors that the device has not taken, and places set aside for more.
    pub fn pending(&self) -> usize {
        let aside = self.aside.load(Ordering::Relaxed) as usize;
        self.left.load(Ordering::Relaxed) + self.stage.lock().len() + aside
    }

    /// Lock counts of ring and device.
    pub fn stats(&self) -> [(LockClass, LockStats); 2] {
        let device = self.device.stats();
        self.make_up();
        [
            (LockClass::TxRing, self.stage.stats()),
            (LockClass::NicTx, device),
        ]
    }
}

/// What who polls a receive queue holds.
pub struct RxSide {
    queue: Box<dyn RxQueue>,
    /// Where its frames go, if they are steered.
    pub ways: Option<Ways>,
}

impl Deref for RxSide {
    type Target = dyn RxQueue;

    fn deref(&self) -> &(dyn RxQueue + 'static) {
        &*self.queue
    }
}

impl DerefMut for RxSide {
    fn deref_mut(&mut self) -> &mut (dyn RxQueue + 'static) {
        &mut *self.queue
    }
}

/// One receive queue.
#[repr(align(128))]
pub struct RxPort<K: Kind> {
    /// When somebody drove the queue last, ns; written by who holds it.
    pub looked_at: AtomicU64,
    /// The device's queue; held while a burst is taken and processed, so that bursts of one
    /// queue stay in order.
    pub queue: Lk<K, RxSide>,
    /// Interface that its frames belong to.
    pub iface: u16,
    /// The descriptor to wait for, if the device belongs to the host.
    pub fd: Option<std::os::fd::RawFd>,
    /// Cache lines of payload that arrives.
    pub payload: Tag<K>,
}

impl<K: Kind> RxPort<K> {
    /// Around a device's queue.
    pub fn new(p: &K::P, queue: Box<dyn RxQueue>, iface: u16) -> RxPort<K> {
        let fd = queue.fd();
        RxPort {
            looked_at: AtomicU64::new(0),
            queue: lock::<K, _>(p, LockClass::NicRx, RxSide { queue, ways: None }),
            iface,
            fd,
            payload: Tag::<K>::default(),
        }
    }
}
