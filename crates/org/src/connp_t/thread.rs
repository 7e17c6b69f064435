//! The protocol threads, what each of them owns, and the messages that they send each other.

use super::cell::Keep;
use super::demux::Demux;
use super::inbox::{Inbox, Letter, Outlet};
use super::presence::Presence;
use super::spec::{ConnpT as Spec, Waiting};
use crate::due::DueLine;
use crate::outer::Places;
use crate::{Kd, MakeThread};
use core::any::{Any, TypeId};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use perimeter_base::Time;
use perimeter_stack::{Count, Ctx, Seg, Segs, Shard, SharedState, SockId};
use perimeter_sync::{Event, Mpsc, Owned, PerLane, Platform, Work};
use perimeter_wire::FlowKey;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// `fold`: how late timers are before the protocol thread runs them itself, ns.
pub(super) const GRACE: u64 = 1_000_000;

/// What a protocol thread is asked to do.
pub(super) enum Msg<C: Keep> {
    /// A segment arrived. Nobody waits.
    Packet(Box<Seg>),
    /// A burst of segments arrived that are all this thread's. Nobody waits.
    Burst(Box<Segs>),
    /// The timers of a connection that are due: the message itself is in the connection, which is
    /// why this is only its name. Nobody waits.
    Timers(SockId),
    /// Anything else, and the lane of who waits for the answer; [`NOBODY`]: no one.
    Job(Box<dyn Job<C>>, u32),
}

impl<C: Keep> Letter for Msg<C> {
    #[inline]
    fn is_packet(&self) -> bool {
        matches!(self, Msg::Packet(_) | Msg::Burst(_))
    }
}

/// No lane.
pub(super) const NOBODY: u32 = u32::MAX;

/// Where a message goes when a thread has done its part.
pub(super) enum Next {
    /// Back to who waits.
    Done,
    /// On to that thread.
    To(usize),
}

/// What a job runs on: the thread's own state, and what all threads carry.
pub(super) struct At<'a, C: Keep> {
    pub(super) group: &'a mut Group<C>,
    pub(super) org: &'a ConnpT<C>,
    pub(super) cx: Ctx<'a, Kd<C::P>>,
}

/// A request. It owns all that it needs and carries its answer back.
pub(super) trait Job<C: Keep>: Any + Send {
    fn run(&mut self, at: &mut At<'_, C>) -> Next;
}

/// A protocol thread's own: nobody else touches it.
pub(super) struct Group<C: Keep> {
    /// The thread's number.
    pub(super) index: usize,
    pub(super) shard: Shard<Kd<C::P>, C>,
    pub(super) outlet: Outlet<Msg<C>>,
    /// The answer to the thread that runs this group in its own name.
    pub(super) mine: Option<Box<dyn Job<C>>>,
    /// Thread 0: connections being opened whose owner is not known yet.
    pub(super) incomplete: Vec<FlowKey>,
    /// `per-connection`: flows that have just come to this thread.
    pub(super) gathering: Vec<Gathering>,
    /// To be sent on when this thread has worked off its own.
    pub(super) held: VecDeque<(usize, Msg<C>)>,
    /// Messages taken and not yet run; empty between turns.
    pub(super) batch: Vec<Msg<C>>,
    /// Connections with timers due; empty between turns.
    pub(super) due: Vec<SockId>,
}

/// Segments of a flow that came directly before all that had to come by its former thread.
pub(super) struct Gathering {
    pub(super) key: FlowKey,
    #[expect(clippy::vec_box, reason = "messages, which are used again as they are")]
    pub(super) segs: Vec<Box<Seg>>,
}

/// Where a thread of the application gets its answers: it waits for one at a time.
#[repr(align(128))]
pub(super) struct Reply<C: Keep> {
    pub(super) answer: Mpsc<C::P, Box<dyn Job<C>>>,
    pub(super) event: <C::P as Platform>::Event,
}

/// Messages of one thread, to be used again: at most one of each type.
pub(super) struct Stock<C: Keep>(pub(super) Vec<(TypeId, Box<dyn Job<C>>)>);

/// A protocol thread, as others see it.
#[repr(align(128))]
pub(super) struct Owner<C: Keep> {
    pub(super) inbox: Inbox<C::P, Msg<C>>,
    /// What is the thread's own. It takes it for each batch, and unless roles are folded nobody
    /// else tries while it lives.
    pub(super) group: Owned<C::P, Group<C>>,
    /// Where it parks.
    pub(super) bell: <C::P as Platform>::Event,
    /// `wait=spin`: it is parked there, or about to be.
    pub(super) asleep: AtomicBool,
    /// `fold`: until when it is parked, ns; 0: it is not.
    pub(super) until: AtomicU64,
    /// It has ended.
    pub(super) gone: AtomicBool,
    /// The buffers of its connections.
    pub(super) outside: C::Outside,
    pub(super) due: DueLine,
    /// How many connections it has, as of its last turn.
    pub(super) live: AtomicUsize,
    /// `made`, a place for connections: whether it has a thread.
    pub(super) presence: Presence,
    /// `made`, a permanent thread: how many places it looks after whose thread the host refuses.
    pub(super) adopted: AtomicUsize,
}

impl<C: Keep> Owner<C> {
    /// Lets others know how it stands, after a turn. Whether timers are due earlier than they were.
    pub(super) fn publish(&self, p: &C::P, group: &Group<C>) -> bool {
        let earlier = self.due.publish(p, group.shard.next_timer());
        let live = group.shard.len();
        if self.live.load(Ordering::Relaxed) != live {
            self.live.store(live, Ordering::Release);
        }
        earlier
    }

    /// `fold`: whether the protocol thread sleeps longer than the group's timers allow.
    pub(super) fn oversleeps(&self) -> bool {
        // Against `park`, which says how long it will sleep and then looks when timers are due.
        fence(Ordering::SeqCst);
        self.due().plus(GRACE).0 < self.until.load(Ordering::SeqCst)
    }

    pub(super) fn due(&self) -> Time {
        self.due.at()
    }
}

/// The protocol threads. `C`: how they keep connections.
pub(crate) struct ConnpT<C: Keep> {
    pub(super) p: C::P,
    pub(super) spec: Spec,
    pub(super) cores: usize,
    pub(super) owners: Box<[Owner<C>]>,
    /// How many of them have a thread from the beginning to the end. Those behind are `made`'s
    /// places for connections.
    pub(super) permanent: usize,
    /// `made`: how a place gets a thread.
    pub(super) make: OnceLock<MakeThread>,
    /// `per-connection`: who has moved where.
    pub(super) demux: Option<Arc<Demux<C::P>>>,
    /// By lane.
    pub(super) replies: Places<Reply<C>>,
    pub(super) stock: PerLane<C::P, Stock<C>>,
    pub(super) segs: PerLane<C::P, Seg>,
    pub(super) bursts: PerLane<C::P, Segs>,
    /// A protocol thread has ended.
    pub(super) ended: AtomicBool,
}

impl<C: Keep> ConnpT<C> {
    /// The thread that a hash names.
    pub(super) fn home(&self, hash: u32) -> usize {
        hash as usize % self.permanent
    }

    /// `per-connection`: the thread that a new connection gets, if it has none.
    pub(super) fn preferred(&self, hash: u32) -> usize {
        match self.owners.len() - self.permanent {
            0 => self.home(hash),
            places => self.permanent + hash as usize % places,
        }
    }

    /// The thread that a flow belongs to.
    pub(super) fn index(&self, key: &FlowKey, hash: u32) -> usize {
        let moved = self.demux.as_ref().and_then(|d| d.find(key));
        moved.unwrap_or_else(|| self.home(hash))
    }

    pub(super) fn core(&self, thread: usize) -> usize {
        thread % self.cores
    }

    /// The protocol threads whose role the calling thread may play: those of its core.
    pub(super) fn roles(&self) -> impl Iterator<Item = usize> {
        let first = if self.spec.fold {
            self.p.core()
        } else {
            usize::MAX
        };
        (first..self.owners.len()).step_by(self.cores)
    }

    /// Whether the calling thread may play the role of that protocol thread.
    pub(super) fn is_here(&self, thread: usize) -> bool {
        self.spec.fold && self.core(thread) == self.p.core()
    }

    /// Sees to it that a thread looks at its inbox.
    pub(super) fn wake(&self, to: usize) {
        let owner = &self.owners[to];
        if self.spec.wait == Waiting::Spin {
            // Against `park`, which says that it sleeps and then looks at the inbox, and against
            // who lets go of the group and then does: one side sees the other.
            fence(Ordering::SeqCst);
            self.p.checkpoint();
            if !owner.asleep.load(Ordering::SeqCst) || owner.group.is_owned() {
                return;
            }
        }
        if to >= self.permanent {
            return self.tell(to);
        }
        owner.bell.set();
    }

    /// Appends a message to what waits for a thread; whether there was room.
    pub(super) fn put(&self, sh: &SharedState<Kd<C::P>>, to: usize, msg: Msg<C>) {
        let packets = match &msg {
            Msg::Burst(segs) => segs.len(),
            _ => 1,
        };
        sh.p.charge(Work::Mail, packets as u64);
        match self.owners[to].inbox.put(msg) {
            Ok(()) => {}
            Err(Msg::Burst(mut segs)) => {
                sh.count(sh.p.lane(), Count::NetisrFull, segs.len() as u64);
                segs.drain(|_| {});
                self.bursts.put(segs);
            }
            Err(Msg::Packet(mut seg)) => {
                sh.count(sh.p.lane(), Count::NetisrFull, 1);
                *seg = Seg::default();
                self.segs.put(seg);
            }
            Err(_) => debug_assert!(false, "only packets are refused"),
        }
    }

    /// The same, and wakes the thread.
    pub(super) fn send(&self, sh: &SharedState<Kd<C::P>>, to: usize, msg: Msg<C>) {
        self.put(sh, to, msg);
        self.wake(to);
    }
}
