//! The one type parameter of this crate, and what a thread carries while it works.

use crate::commons::Commons;
use crate::conn::{Apart, Segs};
use crate::count::Count;
use crate::id::SockId;
use crate::limit::Limits;
use crate::listener::Listener;
use crate::merge::Latest;
use crate::ready::Wakes;
use crate::wheel::Due;
use core::ops::{Deref, DerefMut};
use perimeter_base::{PktPool, Time};
use perimeter_link::RxFrame;
use perimeter_sync::{LockClass, Locks, Platform};
use perimeter_wire::FlowKey;
use std::sync::Arc;

/// A platform together with the kind of lock that the organization puts around what all its
/// threads share: real ones, or none where one thread does everything.
pub trait Kind: Sized + Send + Sync + 'static {
    /// The platform.
    type P: Platform;
    /// The locks around shared services.
    type L: Locks<Self::P>;
}

/// A lock of the kind's choosing.
pub type Lk<K, T> = <<K as Kind>::L as Locks<<K as Kind>::P>>::Of<T>;

/// A new lock of the kind's choosing.
pub fn lock<K: Kind, T: Send + 'static>(p: &K::P, class: LockClass, value: T) -> Lk<K, T> {
    <K::L as Locks<K::P>>::new(p, class, value)
}

/// What every piece of work in the stack is given: what all threads share, and what this thread
/// carries. Fields of [`Own`] are reached through it.
pub struct Ctx<'a, K: Kind> {
    /// What all threads share.
    pub sh: &'a Commons<K>,
    /// What this thread carries.
    pub own: &'a mut Own<K>,
}

impl<K: Kind> Deref for Ctx<'_, K> {
    type Target = Own<K>;

    #[inline(always)]
    fn deref(&self) -> &Own<K> {
        self.own
    }
}

impl<K: Kind> DerefMut for Ctx<'_, K> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Own<K> {
        self.own
    }
}

/// What a thread carries through the stack: stocks, scratch space, and what is to be done once
/// the perimeter is left. One per thread at a time, never shared.
pub struct Own<K: Kind> {
    /// Packet buffers.
    pub pool: PktPool,
    /// The burst being taken from a device.
    pub frames: Vec<RxFrame>,
    /// The TCP segments of the burst, parsed.
    pub segs: Segs,
    /// Which of them is the last of its flow.
    pub latest: Latest,
    /// Timer entries that came due.
    pub due: Vec<Due>,
    /// What TCP has left for layers that have turns of their own, in organizations where they
    /// have.
    pub apart: Vec<Apart>,
    /// What waits until the perimeter is left.
    pub deferred: Deferred<K>,
    /// How much of what strangers can ask for is still sent.
    pub limits: Limits,
    /// The thread's number.
    pub lane: usize,
    /// The core that this burst or call runs on; [`crate::conn::NOWHERE`] where nobody has said.
    pub core: u16,
    /// This thread's next segment is for the connection of the present one, and nothing comes
    /// between: what others are told of the connection can wait for that.
    pub more: bool,
    /// Segments that header prediction took in this burst, not counted yet.
    pub(crate) predicted: u32,
    /// Bytes charged to the stack in this burst or call; [`Commons::book`](crate::Commons::book)
    /// counts them.
    pub(crate) charged: i64,
    /// Bytes counted that the stack's account does not know of yet.
    pub(crate) unreported: i64,
    /// [`Time::NEVER`]: not read yet.
    clock: Time,
}

/// What is done once the perimeter is left: doorbells, accepts, wake-ups, and calls that were
/// put off.
pub struct Deferred<K: Kind> {
    /// Transmit queues that got descriptors.
    pub doorbells: Vec<u16>,
    /// Registrations and blocked calls to tell.
    pub wakes: Wakes<K>,
    /// Connections to hand to their listeners.
    pub accepts: Vec<(Arc<Listener<K>>, SockId, FlowKey)>,
    /// Connections to abort: accepted ones whose listener has gone.
    pub aborts: Vec<SockId>,
    /// Connections whose output stopped at a full transmit queue.
    pub blocked: Vec<(u16, SockId)>,
    /// The earliest timer that was armed; [`Time::NEVER`]: none. Who sleeps for a later one is to
    /// be woken.
    pub armed: Time,
    /// Segments that a planted bug keeps back ([`crate::planted::Bug::RingFilledLate`]).
    #[cfg(feature = "testing")]
    pub late: Vec<(u16, perimeter_base::TxHead)>,
}

impl<K: Kind> Deferred<K> {
    /// Notes that queue `q` got descriptors.
    #[inline]
    pub fn ring(&mut self, q: u16) {
        if !self.doorbells.contains(&q) {
            self.doorbells.push(q);
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.doorbells.is_empty()
            && self.wakes.regs.is_empty()
            && self.wakes.events.is_empty()
            && self.accepts.is_empty()
            && self.aborts.is_empty()
            && self.blocked.is_empty()
            && self.armed == Time::NEVER
    }
}

impl<'a, K: Kind> Ctx<'a, K> {
    /// The calling thread's way through the stack `sh`, with what it carries.
    #[inline]
    pub fn new(sh: &'a Commons<K>, own: &'a mut Own<K>) -> Ctx<'a, K> {
        Ctx { sh, own }
    }

    /// The same, for as long as this one is lent.
    #[inline]
    pub fn again(&mut self) -> Ctx<'_, K> {
        Ctx::new(self.sh, self.own)
    }

    /// Both parts: for loops that stay here, whose compiler then keeps both in registers.
    #[inline(always)]
    pub fn split(&mut self) -> (&'a Commons<K>, &mut Own<K>) {
        (self.sh, self.own)
    }

    /// Counts `n` of what `what` says.
    #[inline]
    pub fn count(&self, what: Count, n: u64) {
        self.sh.count(self.own.lane, what, n);
    }

    /// The time of this burst or call: the clock is read once, when first asked for.
    #[inline]
    pub fn now(&mut self) -> Time {
        self.own.now(&self.sh.p)
    }

    /// As [`now`](Ctx::now), and not before `at`, which another thread has read already.
    #[inline]
    pub fn now_from(&mut self, at: Time) -> Time {
        let now = self.now().max(at);
        self.own.clock = now;
        now
    }
}

impl<K: Kind> Own<K> {
    /// For the thread of number `lane`, with nothing in it.
    pub fn new(lane: usize) -> Own<K> {
        Own {
            pool: PktPool::default(),
            frames: Vec::with_capacity(crate::BURST),
            segs: Segs::default(),
            latest: Latest::default(),
            due: Vec::new(),
            apart: Vec::new(),
            deferred: Deferred {
                doorbells: Vec::new(),
                wakes: Wakes::default(),
                accepts: Vec::new(),
                aborts: Vec::new(),
                blocked: Vec::new(),
                armed: Time::NEVER,
                #[cfg(feature = "testing")]
                late: Vec::new(),
            },
            limits: Limits::default(),
            lane,
            core: crate::conn::NOWHERE,
            more: false,
            predicted: 0,
            charged: 0,
            unreported: 0,
            clock: Time::NEVER,
        }
    }

    /// As [`Ctx::now`], on platform `p`.
    #[inline]
    pub(crate) fn now(&mut self, p: &K::P) -> Time {
        if self.clock == Time::NEVER {
            self.clock = p.now();
        }
        self.clock
    }

    /// Charges `after - before` bytes to the stack, or gives them back.
    #[inline]
    pub fn charge(&mut self, before: usize, after: usize) {
        self.charged += after as i64 - before as i64;
    }

    /// Whether something is not counted yet: see [`Commons::book`].
    #[inline]
    pub fn owes(&self) -> bool {
        self.charged != 0 || self.predicted != 0
    }

    /// Sets the time of this burst, when it is known already.
    #[inline]
    pub fn set_now(&mut self, now: Time) {
        self.clock = now;
    }

    /// The burst or call is over: the next one reads the clock anew.
    #[inline]
    pub fn forget_now(&mut self) {
        self.clock = Time::NEVER;
    }
}

/// One thread of the machine, no locks: for tests of parts.
#[cfg(test)]
pub(crate) struct OneThread;

#[cfg(test)]
impl Kind for OneThread {
    type P = perimeter_sync::Native;
    type L = perimeter_sync::Solo;
}
