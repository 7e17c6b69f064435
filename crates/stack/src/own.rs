//! What a thread carries while it works.

use crate::burst::Bursts;
use crate::id::SockId;
use crate::kept::Kept;
use crate::kind::Kind;
use crate::limit::Limits;
use crate::listener::Listener;
use crate::merge::Latest;
use crate::patience::Patience;
use crate::port::Stalled;
use crate::ready::Wakes;
use crate::received::{Addressed, Datagram};
use crate::segment::{Apart, Outgoing, Segs, Up};
use crate::steer::Given;
use crate::wheel::Due;
use perimeter_base::{PktDepot, PktPool, Time};
use perimeter_link::RxFrame;
use perimeter_sync::Platform;
use perimeter_wire::{FlowKey, Template};
use std::sync::Arc;

/// The most [`Apart`] that a thread keeps to use again.
const SPARES: usize = 16;

/// What a thread carries through the stack: stocks, scratch space, and what is to be done once
/// the perimeter is left. One per thread at a time, never shared.
pub struct Own<K: Kind> {
    /// Packet buffers.
    pub pool: PktPool,
    /// The burst being taken from a device.
    pub frames: Vec<RxFrame>,
    /// How long it may be.
    pub bursts: Bursts,
    /// The TCP segments of the burst, parsed.
    pub segs: Segs,
    /// Which of them is the last of its flow.
    pub latest: Latest,
    /// Room for the datagrams of a burst.
    pub datagrams: Vec<Datagram>,
    /// Room for those of UDP that are on their way to sockets of one perimeter.
    pub udp: Vec<Addressed>,
    /// Timer entries that came due.
    pub due: Vec<Due>,
    /// What TCP has left for layers that have turns of their own, in organizations where they
    /// have.
    pub apart: Vec<Box<Apart>>,
    /// Such, to be used again.
    #[expect(clippy::vec_box, reason = "they are handed on in their boxes")]
    spares: Vec<Box<Apart>>,
    /// What waits until the perimeter is left.
    pub deferred: Deferred<K>,
    /// What waits for more of the batch that the thread sends.
    pub kept: Kept,
    /// How much of what strangers can ask for is still sent.
    pub limits: Limits,
    /// The thread's number.
    pub lane: usize,
    /// The core that this burst or call runs on; [`crate::segment::NOWHERE`] where nobody has said.
    pub core: u16,
    /// The receive queue that the thread serves while it waits; [`crate::steer::NO_QUEUE`]: none.
    pub serves: u16,
    /// This thread's next segment is for the connection of the present one, and nothing comes
    /// between: what others are told of the connection can wait for that.
    pub more: bool,
    /// How long the thread looks around before it sleeps.
    pub patience: Patience,
    /// Octets of payload that it may still take before it lets other threads of its core run; `None`
    /// where nobody counts.
    pub left: Option<usize>,
    /// Segments that header prediction took in this burst, not counted yet.
    pub(crate) predicted: u32,
    /// Bytes charged to the stack in this burst or call; [`SharedState::book`](crate::SharedState::book)
    /// counts them.
    pub(crate) charged: i64,
    /// Bytes counted that the stack's account does not know of yet.
    pub(crate) unreported: i64,
    /// How many of those it may keep to itself.
    pub(crate) batch: u64,
    /// [`Time::NEVER`]: not read yet.
    clock: Time,
}

/// Who makes a call.
#[derive(Copy, Clone, Debug)]
pub struct Caller {
    /// The core; [`crate::segment::NOWHERE`].
    pub core: u16,
    /// The receive queue that the thread serves; [`crate::steer::NO_QUEUE`].
    pub serves: u16,
}

impl Caller {
    /// Nobody.
    pub const NOBODY: Caller = Caller {
        core: crate::segment::NOWHERE,
        serves: crate::steer::NO_QUEUE,
    };
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
    /// Sockets whose output stopped at a full transmit queue, and its number.
    pub blocked: Vec<(u16, Stalled)>,
    /// Receive queues whose backlogs hold more than enough, or are not attended to.
    pub backlogs: Given,
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
            && self.wakes.is_empty()
            && self.accepts.is_empty()
            && self.aborts.is_empty()
            && self.blocked.is_empty()
            && self.backlogs.is_empty()
            && self.armed == Time::NEVER
    }
}

impl<K: Kind> Own<K> {
    /// For the thread of number `lane`, with nothing in it; it exchanges packet buffers with the
    /// stack's other threads by `depot`.
    pub fn new(lane: usize, depot: PktDepot) -> Own<K> {
        Own {
            pool: PktPool::of(depot),
            frames: Vec::with_capacity(crate::BURST),
            bursts: Bursts::default(),
            segs: Segs::default(),
            latest: Latest::default(),
            datagrams: Vec::new(),
            udp: Vec::new(),
            due: Vec::new(),
            apart: Vec::new(),
            spares: Vec::new(),
            patience: Patience::default(),
            left: None,
            deferred: Deferred {
                doorbells: Vec::new(),
                wakes: Wakes::default(),
                accepts: Vec::new(),
                aborts: Vec::new(),
                blocked: Vec::new(),
                backlogs: Given::new(),
                armed: Time::NEVER,
                #[cfg(feature = "testing")]
                late: Vec::new(),
            },
            kept: Kept::default(),
            limits: Limits::default(),
            lane,
            core: crate::segment::NOWHERE,
            serves: crate::steer::NO_QUEUE,
            more: false,
            predicted: 0,
            charged: 0,
            unreported: 0,
            batch: 0,
            clock: Time::NEVER,
        }
    }

    /// Who makes the call that this thread is in.
    #[inline]
    pub fn caller(&self) -> Caller {
        Caller {
            core: self.core,
            serves: self.serves,
        }
    }

    /// Notes what TCP has left of connection `id` for layers that have turns of their own.
    #[inline]
    pub fn apart(
        &mut self,
        (id, key): (SockId, FlowKey),
        (template, txq): (&Template, u16),
        (up, out): (Up, Outgoing),
    ) {
        let apart = match self.spares.pop() {
            Some(mut a) => {
                if !out.segs.is_empty() {
                    a.template.clone_from(template);
                }
                (a.id, a.key, a.up, a.out, a.txq) = (id, key, up, out, txq);
                a
            }
            None => Box::new(Apart {
                id,
                key,
                up,
                out,
                template: template.clone(),
                txq,
            }),
        };
        self.apart.push(apart);
    }

    /// What is left of an [`Apart`] whose news and segments were taken is kept, to be used again.
    #[inline]
    pub fn spare(&mut self, apart: Box<Apart>) {
        if self.spares.len() < SPARES {
            self.spares.push(apart);
        }
    }

    /// As [`crate::Ctx::now`], on platform `p`.
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

    /// Whether something is not counted yet: see [`crate::SharedState::book`].
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
