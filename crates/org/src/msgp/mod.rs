//! `msgp`, `msgp:netisr`, `msgp:workers=K`, `msgp:locks=coarse`, `msgp:wake=inside`, `msgp-modern`:
//! message parallelism.
//!
//! **Background.** FreeBSD 7 as Willmann, Rixner, Cox describe and measure it (sections 3.1 and
//! 4): any thread may process any packet, and locks per structure keep them apart. `workers=K` is
//! the packet-level parallelism of Nahum, Yates, Kurose, Towsley (OSDI 1994), and `locks=coarse`
//! their question.
//!
//! **Binding.** None: a connection runs on whatever core a call or a packet comes by.
//!
//! **Processing.** Application threads run the protocol in their calls. A packet is run by the
//! thread that took it from the NIC, to the socket (`msgp`); or it goes to one bounded queue that
//! all NIC threads share, and one worker runs it (`:netisr`), or one of K (`:workers=K`). Those
//! draw a ticket together with the packet and enter TCP in the order of tickets, so that packets
//! of a connection are not reordered.
//!
//! The locks, in their order: `conn_hashtable` (global), `connection`, `sndbuf` or `rcvbuf`; on
//! output `route_hashtable` (global), `route`. The table's lock is *held while waiting* for the
//! connection's, and the route table's while waiting for the route's: these locks stand in for
//! reference counts, and are the bottleneck that the paper is about. How long the table is held:
//!
//! | what | `conn_hashtable` is held |
//! |---|---|
//! | send | through the append to the send buffer; let go before output |
//! | receive, when it opens the window; options | until the connection is held |
//! | segment, header prediction | until prediction has taken it |
//! | any other segment, also the one that completes a handshake | until output, or to the end if there is none |
//! | SYN, and what the SYN cache does | to the end, the SYN-ACK included |
//! | retransmission and delayed-ACK timer | until output |
//! | persist, keepalive and 2MSL timer | to the end, output included |
//! | listen, connect, shutdown, close | to the end, output included |
//!
//! and what one of each takes and gives back, in order, where nobody is in the way (`+` takes, `-`
//! gives back; `ht` conn_hashtable, `c` connection, `s` sndbuf, `r` rcvbuf, `l` a listener's queue).
//! `TX` is a visit to the transmit queue's ring, `+tx -tx`; `ROUTE` is `+RH +R -RH -R`, with
//! route_hashtable and route; `SEG` a segment on its way, sized, routed and placed: `TX +s -s ROUTE
//! TX` (with one lock for all of a connection, `TX ROUTE TX`). The last `TX +s -s` of output finds
//! that there is no more. What is innermost and belongs to no protocol structure (allocation,
//! wheel, pollers) is left out, and so are doorbells and chores before and after. The workers of
//! `:netisr` and `:workers=K` take what the NIC's thread would.
//!
//! | what | `msgp` | `msgp:locks=coarse` | `msgp-modern` |
//! |---|---|---|---|
#![doc = include_str!("trace.md")]
//!
//! **Limits.** The shared queue holds [`QUEUE`] segments; what does not fit is dropped. The SYN
//! cache has 512 buckets of 30 unless set otherwise (under `msgp-modern` each table has its share
//! of them); a SYN whose bucket is full is answered by a cookie, where the paper's kernel drops the
//! oldest entry, as it is here with cookies off.
//!
//! **Inferences.** Read and write acquisition of the table's lock were one recursive mutex: here
//! there is one kind of acquisition too, and code that has the table hands its hold on instead of
//! taking it again, so that recursion never shows. Prediction has updated the connection when it
//! lets the table go: deciding and doing are one step of the state machine. A receive call asks
//! for TCP only when the window has opened enough to be told (the paper's kernel asks at each).
//! Ports are handed out under a lock of their own before the table is entered. Accepted connections
//! reach their listener when the locks have been left, as under all organizations. What fires
//! together is held for as long as the longest. The queue of the day held 50 packets, one an
//! interrupt; here they come in bursts. Tickets are drawn by flow hash, so that one connection does
//! not hold up all others; the workers of `workers=K` are fed by the NIC's thread, which stands for
//! the memory driver.
//!
//! The paper's kernel wakes whoever waits for a socket while the connection's lock is held, and
//! takes the scheduler's one lock for it, which makes the connection's lock be held longer, and
//! waited for longer, than its own work takes (section 5.1). So does `:wake=inside`: threads are woken
//! at the end of a visit to the connection, and tasks, whose wakers may do anything, later. Without
//! it all are woken once nothing is held, as under all organizations.
//!
//! `msgp-modern` is the cure of the bottleneck: [`SHARDS`] tables, each with its listeners, SYN
//! cache and timers; a lookup lets go of the table before it waits for the connection, and then
//! looks whether that is still the one it looked for. Places of connections are never given back
//! to the system, and carry generations, so nothing has to be counted. A call, whose handle says
//! where the connection is, takes no table at all. A table's lock is held together with a
//! connection's only where a connection is made or goes away.

pub(crate) mod coupled;
mod enter;
mod inbound;
mod locks;
mod spec;
mod table;

pub use inbound::QUEUE;
pub use spec::{Msgp as Spec, MsgpInbound};

use crate::open::{Options, Visit};
use crate::spec::{Family, OrgSpec};
use crate::{Binding, Job, Kd, Org};
use coupled::{Core, Manner};
use inbound::Inbound;
use perimeter_base::Time;
use perimeter_stack::ops::Op;
use perimeter_stack::shard::ExistsError;
use perimeter_stack::{ConnInfo, Ctx, Flow, SharedState, SockId, Sockets};
use perimeter_sync::{LockClass, LockStats, Platform};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;

/// The families of this module.
pub(crate) const FAMILIES: &[&Family] = &[&spec::FAMILY, &spec::MODERN];

/// Which type each of them is.
pub(crate) fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
    visitor.visit::<Msgp<P>>(p, o)
}

/// Tables of `msgp-modern`.
pub const SHARDS: u16 = 32;

/// Message parallelism.
pub struct Msgp<P: Platform> {
    spec: Spec,
    core: Core<P>,
    inbound: Option<Inbound<P>>,
}

impl<P: Platform> Org for Msgp<P> {
    type K = Kd<P>;

    fn new(spec: &OrgSpec, sh: &SharedState<Self::K>) -> Self {
        let spec: Spec = *spec.expect_params();
        let manner = Manner {
            coarse: spec.coarse,
            modern: if spec.modern { SHARDS } else { 0 },
            wakes_held: spec.wakes_held,
        };
        Msgp {
            spec,
            core: Core::new(manner, sh),
            inbound: match spec.inbound {
                MsgpInbound::Direct => None,
                MsgpInbound::Netisr => Some(Inbound::new(&sh.p, 1, false)),
                MsgpInbound::Workers(k) => Some(Inbound::new(&sh.p, k.into(), true)),
            },
        }
    }

    fn on_packets(&self, cx: &mut Ctx<Self::K>) {
        let mut segs = core::mem::take(&mut cx.segs);
        match &self.inbound {
            None => segs.drain(|seg| self.core.input(cx, seg, || ())),
            Some(inbound) => segs.drain(|seg| inbound.put(&self.core, cx, seg)),
        }
        cx.segs = segs;
    }

    const HERE: bool = true;

    fn call_here<Q: Op<Self::K>>(
        &self,
        cx: &mut Ctx<Self::K>,
        id: SockId,
        op: Q,
    ) -> Result<Option<Q::Out>, Q> {
        Ok(self.core.call(cx, id, op))
    }

    fn post<Q: Op<Self::K, Out = ()>>(&self, cx: &mut Ctx<Self::K>, id: SockId, op: Q) {
        self.core.posted(cx, id, op);
    }

    fn connect(
        &self,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, ExistsError> {
        self.core.connect(cx, flow, config)
    }

    fn perimeters(&self) -> u16 {
        self.core.perimeters()
    }

    fn perimeter_of(&self, sh: &SharedState<Self::K>, key: &FlowKey) -> Option<u16> {
        Some(self.core.perimeter_of(sh, key))
    }

    fn inside<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        n: u16,
        job: impl Job<Self::K, R>,
    ) -> Option<R> {
        Some(job(&mut self.core.sockets(n), cx))
    }

    fn on_timers(&self, cx: &mut Ctx<Self::K>) {
        self.core.on_timers(cx);
    }

    fn next_timer(&self) -> Time {
        self.core.next_timer()
    }

    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        self.core.inspect(now, out);
    }

    fn live(&self) -> usize {
        self.core.live()
    }

    fn abort_all(&self, cx: &mut Ctx<Self::K>) {
        // What is answered now finds its listener gone; later nobody would answer it.
        if let Some(inbound) = &self.inbound {
            inbound.run_out(&self.core, cx);
        }
        for n in 0..self.perimeters() {
            self.core.sockets(n).abort_all(cx);
        }
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        self.core.lock_stats(add);
        if let Some(inbound) = &self.inbound {
            inbound.lock_stats(add);
        }
    }

    fn binding(&self, id: SockId) -> Binding {
        let slot = id.slot();
        let tcp = format!("connection {slot}");
        let socket = if self.spec.coarse {
            tcp.clone()
        } else {
            format!("sndbuf, rcvbuf {slot}")
        };
        Binding {
            perimeters: [String::new(), tcp, socket],
            ..Binding::default()
        }
    }

    fn workers(&self) -> usize {
        self.inbound.as_ref().map_or(0, Inbound::workers)
    }

    fn work(&self, worker: usize, cx: &mut Ctx<Self::K>) -> usize {
        match &self.inbound {
            Some(inbound) => inbound.work(worker, &self.core, cx),
            None => 0,
        }
    }

    fn park(&self, worker: usize, deadline: Time) {
        if let Some(inbound) = &self.inbound {
            inbound.park(worker, deadline);
        }
    }

    fn wake_workers(&self) {
        if let Some(inbound) = &self.inbound {
            inbound.wake_workers();
        }
    }

    fn pending(&self) -> usize {
        self.inbound.as_ref().map_or(0, Inbound::len)
    }
}
