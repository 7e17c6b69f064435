//! The organization seam: who may touch connection state, when, and under what.
//!
//! An organization takes the pieces of `perimeter_stack` (tables, connections, buffers, timers),
//! puts its own protection around them, and says where a packet or a call runs. The protocol
//! is the same under all of them.
#![forbid(unsafe_code)]

mod answer;
mod arrivals;
mod departures;
mod due;
mod end;
pub mod engine;
mod error;
mod flows;
pub mod instance;
mod made;
mod mailbox;
pub mod open;
#[macro_use]
pub mod organizations;
mod outer;
pub mod protocol;
mod scheduler;
mod serve;
pub mod spec;
pub mod udp;
mod wait;

// The organizations of this build: one line declares the module of one and registers it. `cargo
// fmt` does not look into such a list; `cargo xtask fmt` does.
organizations! {
    pub mod up;
    pub mod msgp;
    pub mod connp_l;
    mod connp_t;
    pub mod squeue;
    pub mod streams;
    pub mod pef;
    #[cfg(feature = "testing")] pub mod split;
    #[cfg(test)] mod one_lock;
}

pub use arrivals::Arrivals;
pub use departures::Departures;
pub use engine::{Engine, Running, Stats, Undelivered};
pub use made::{MakeThread, Making};
pub use open::{Inbound, Options, Visit, open_as, open_with};
#[cfg(not(test))]
pub use organizations::open;
pub use organizations::{open_on, visit};
pub use protocol::Protocol;
pub use spec::{OrgSpec, SpecError};

use core::marker::PhantomData;
use perimeter_base::Time;
use perimeter_stack::ops::{Icmp, Op};
use perimeter_stack::shard::ExistsError;
use perimeter_stack::{ConnInfo, Ctx, Flow, Kind, Listener, SharedState, SockId, Sockets};
use perimeter_sync::{LockClass, LockStats, Locks, Platform, Shared};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;
use std::sync::Arc;

/// Platform `P` with locks `L` around what is shared.
pub struct On<P, L>(PhantomData<fn() -> (P, L)>);

impl<P: Platform, L: Locks<P>> Kind for On<P, L> {
    type P = P;
    type L = L;
}

/// The kind of organizations that several threads enter.
pub(crate) type Kd<P> = On<P, Shared>;

/// Something to be done inside a perimeter, with the sockets that it protects. Any thread may run
/// it, so it owns all that it needs.
pub trait Job<K: Kind, R>: FnOnce(&mut dyn Sockets<K>, &mut Ctx<K>) -> R + Send + 'static {}

impl<K, R, F> Job<K, R> for F
where
    K: Kind,
    F: FnOnce(&mut dyn Sockets<K>, &mut Ctx<K>) -> R + Send + 'static,
{
}

/// An organization: a point in the grid of placement, dispatch and protection.
///
/// All methods may be called from any thread that the organization allows; each call leaves
/// what is to be done outside the perimeter in `cx.deferred`.
pub trait Org: Send + Sync + Sized + 'static {
    /// Platform, and the locks around shared services.
    type K: Kind;

    /// Makes it.
    fn new(spec: &OrgSpec, sh: &SharedState<Self::K>) -> Self;

    /// An inbound thread hands over a burst: the segments in `cx.segs`, in order of arrival.
    fn on_packets(&self, cx: &mut Ctx<Self::K>);

    /// Whether IP's part of plain segments is for the organization to do, in a turn of its own:
    /// [`perimeter_stack::late::input`]. Asked once a burst.
    fn wants_late(&self) -> bool {
        false
    }

    /// Synchronous: runs the operation on that connection and gives the result; `None` if the
    /// connection has gone.
    fn call<Q: Op<Self::K> + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        id: SockId,
        op: Q,
    ) -> Option<Q::Out> {
        let ran = self.call_here(cx, id, op);
        debug_assert!(ran.is_ok(), "an organization has one of these two methods");
        ran.ok().flatten()
    }

    /// Whether segments that follow each other in a burst may come as one
    /// ([`perimeter_stack::merge`]); not where something looks at each packet. Asked once a burst.
    fn merges(&self) -> bool {
        true
    }

    /// Whether the calling thread runs operations itself: [`Org::call_here`].
    const HERE: bool = false;

    /// As [`Org::call`], for an operation that borrows its arguments; asked only where
    /// [`Org::HERE`] is set.
    ///
    /// # Errors
    /// It comes back: operations are handed over here, and have to own their arguments.
    fn call_here<Q: Op<Self::K>>(
        &self,
        cx: &mut Ctx<Self::K>,
        id: SockId,
        op: Q,
    ) -> Result<Option<Q::Out>, Q> {
        let _ = (cx, id);
        Err(op)
    }

    /// Asynchronous: runs the operation some time soon, also on connections that no
    /// application holds any more.
    fn post<Q: Op<Self::K, Out = ()> + 'static>(&self, cx: &mut Ctx<Self::K>, id: SockId, op: Q);

    /// Opens a connection for a complete flow.
    ///
    /// # Errors
    /// The flow exists.
    fn connect(
        &self,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, ExistsError>;

    /// How many perimeters it has, numbered from 0. [`SockId::shard`] is the one of a connection.
    fn perimeters(&self) -> u16;

    /// The perimeter that a flow belongs to, and what has no socket of its own: a SYN, an ICMP
    /// error. `None`: nobody wants such packets.
    fn perimeter_of(&self, sh: &SharedState<Self::K>, key: &FlowKey) -> Option<u16>;

    /// As [`Org::perimeter_of`], of a SYN that is held for a listener.
    fn perimeter_of_request(
        &self,
        sh: &SharedState<Self::K>,
        key: &FlowKey,
        listener: SockId,
    ) -> Option<u16> {
        let _ = listener;
        self.perimeter_of(sh, key)
    }

    /// The perimeter for a socket without a flow that the calling thread opens; `hash` is of its
    /// address.
    fn home(&self, hash: u32) -> u16 {
        (hash % u32::from(self.perimeters())) as u16
    }

    /// Runs `job` inside perimeter `n`, by whatever thread that is there, and waits for its
    /// result. `None`: a panic has stopped that thread.
    fn inside<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        n: u16,
        job: impl Job<Self::K, R>,
    ) -> Option<R>;

    /// Has `job` run inside perimeter `n`, now or when its turn comes. Nobody waits for it.
    fn leave(&self, cx: &mut Ctx<Self::K>, n: u16, job: impl Job<Self::K, ()>) {
        let _ = self.inside(cx, n, job);
    }

    /// Datagrams have come for sockets of perimeter `n`, checked unless [`Org::wants_late`]. An inbound
    /// thread brings them.
    fn arrive(&self, cx: &mut Ctx<Self::K>, n: u16, mut all: impl Arrivals<Self::K>) {
        self.leave(cx, n, move |sockets, cx| all.deliver(sockets, cx));
    }

    /// Whether IP has a turn of its own where datagrams are sent, by [`Org::depart`]; else they are
    /// sent by a call inside.
    fn departs(&self) -> bool {
        false
    }

    /// The application sends datagrams by sockets of perimeter `n`, and waits until that is done.
    /// `None`: a panic has stopped whoever was to do it.
    fn depart<D: Departures<Self::K>>(
        &self,
        cx: &mut Ctx<Self::K>,
        n: u16,
        mut all: D,
    ) -> Option<D> {
        self.inside(cx, n, move |sockets, cx| {
            if all.call(sockets, cx) && all.place(cx) {
                all.rest(sockets, cx);
            }
            all
        })
    }

    /// Adds a listener wherever its SYNs may arrive.
    fn listen(&self, cx: &mut Ctx<Self::K>, l: &Arc<Listener<Self::K>>) {
        for n in 0..self.perimeters() {
            let l = l.clone();
            self.inside(cx, n, |sockets, _| sockets.listen(l));
        }
    }

    /// Removes it there, with the handshakes under way.
    fn unlisten(&self, cx: &mut Ctx<Self::K>, l: &Arc<Listener<Self::K>>) {
        for n in 0..self.perimeters() {
            let l = l.clone();
            self.inside(cx, n, move |sockets, cx| sockets.unlisten(cx, &l));
        }
    }

    /// An ICMP error about a flow.
    fn icmp(&self, cx: &mut Ctx<Self::K>, key: &FlowKey, what: Icmp) {
        if let Some(n) = self.perimeter_of(cx.sh, key) {
            let key = *key;
            self.leave(cx, n, move |sockets, cx| sockets.icmp(cx, &key, what));
        }
    }

    /// Resets all connections: the stack is being dropped.
    fn abort_all(&self, cx: &mut Ctx<Self::K>) {
        for n in 0..self.perimeters() {
            self.inside(cx, n, |sockets, cx| sockets.abort_all(cx));
        }
    }

    /// Runs timers that are due.
    fn on_timers(&self, cx: &mut Ctx<Self::K>);

    /// Whether somebody wants packets that belong to no connection and that the stack does not
    /// answer itself.
    fn wants_unbound(&self) -> bool {
        false
    }

    /// Such a packet, a whole frame, came in by interface `iface`.
    fn unbound(&self, cx: &mut Ctx<Self::K>, iface: u16, frame: perimeter_base::PktBuf) {
        let _ = (cx.sh, iface);
        cx.pool.put(frame);
    }

    /// When timers are due: not later than the earliest. Where another thread than those that
    /// ask makes this earlier, it says so in [`Deferred::armed`](perimeter_stack::own::Deferred).
    fn next_timer(&self) -> Time;

    /// Appends what there is to say about every connection.
    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>);

    /// Connections, those that linger included.
    fn live(&self) -> usize;

    /// Lock counts by class.
    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats));

    /// What there is to know of where the layers of a connection run.
    fn binding(&self, id: SockId) -> Binding {
        let _ = id;
        Binding::default()
    }

    /// The connections' lists of events, in organizations that have them.
    fn events(&self) -> Option<&dyn pef::event::Events> {
        None
    }

    /// How many protocol threads of its own it runs on, numbered from 0. The stack starts them on
    /// the cores that [`Org::worker_core`] tells, and joins them.
    fn workers(&self) -> usize {
        0
    }

    /// How many there may be with those that it has made while the stack runs
    /// ([`Org::may_make`]), which have the numbers from [`Org::workers`] on.
    fn most_workers(&self) -> usize {
        self.workers()
    }

    /// How a protocol thread is made beside those that are there from the beginning. Told once,
    /// before any of those begins. Such a thread ends when it [leaves](Org::leaves), and may then
    /// be made again; the stack joins all of them.
    fn may_make(&self, make: MakeThread) {
        let _ = make;
    }

    /// Protocol thread `worker` has found nothing to do: whether it ends. Only of one that was made
    /// while the stack runs, and that says so to whoever may have to make the next.
    fn leaves(&self, worker: usize, cx: &mut Ctx<Self::K>) -> bool {
        let _ = (worker, cx);
        false
    }

    /// The core that protocol thread `worker` is bound to; `None`: none.
    fn worker_core(&self, worker: usize) -> Option<usize> {
        Some(worker)
    }

    /// Protocol thread `worker` does what was handed to it; returns how much that was.
    fn work(&self, worker: usize, cx: &mut Ctx<Self::K>) -> usize {
        let _ = (worker, cx);
        0
    }

    /// Parks protocol thread `worker` until something is handed to it, or `deadline`. It does not
    /// look around in between: whoever leaves something for it, or lets go of what kept it from
    /// working, has to wake it.
    fn park(&self, worker: usize, deadline: Time) {
        let _ = (worker, deadline);
    }

    /// The stack has ended: protocol threads that are parked, or about to be, return from
    /// [`Org::park`] and look. They may sleep without a deadline, so an organization that has any
    /// must wake each of them.
    fn wake_workers(&self) {
        debug_assert_eq!(self.workers(), 0, "protocol threads would sleep for ever");
    }

    /// Protocol thread `worker` has ended, with the stack or by a panic: nobody may wait for it
    /// any more. Not told of one that [leaves](Org::leaves).
    fn retire(&self, worker: usize) {
        let _ = worker;
    }

    /// Messages handed over and not yet run.
    fn pending(&self) -> usize {
        0
    }
}

/// Where the layers of a connection run.
///
/// ```
/// use perimeter_org::Binding;
///
/// // As `perimeter ss` shows it.
/// let binding = Binding {
///     perimeters: ["squeue 0", "squeue 1", "squeue 1"].map(String::from),
///     cores: [Some(0), Some(1), None],
///     ..Binding::default()
/// };
/// let moves = binding.perimeters.windows(2).filter(|w| w[0] != w[1]).count();
/// assert_eq!(moves, 1, "a segment is handed on once");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// The perimeter of each layer, IP, TCP and socket, by the organization's own name for it
    /// (`group 17`, `squeue 0`); empty: none.
    pub perimeters: [String; 3],
    /// The core that each perimeter is bound to, if it is.
    pub cores: [Option<usize>; 3],
    /// Under PEF the events of the receive list and of the transmit list, in order.
    pub events: [Vec<String>; 2],
}
