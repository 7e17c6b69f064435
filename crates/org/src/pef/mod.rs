//! `pef`: the Packet Event Framework.
//!
//! **Background.** Yu and Curtis, "Packet Event Framework for the OpenSolaris Operating System":
//! layer-based parallelism on top of FireEngine's squeues.
//!
//! **Binding.** A connection has two lists of events, to receive (IP, TCP, SOCKFS) and to
//! transmit (SOCKFS, TCP, IP), and each major layer an squeue that its events run under.
//! `pef:random`: one drawn squeue for all layers of a connection, the paper's default.
//! `pef:vertical`: one for all, that of the core which opened the connection; an accepted one is
//! fanned out. `pef:horizontal`: three different ones, so that one connection spreads over
//! cores as a pipeline. `pef:ip=A:tcp=B:sockfs=C`: those of designated cores. TCP's state stays
//! with the squeue that it was made under; IP and socket layer can be moved (SO_SETSQP).
//!
//! **Processing.** A received packet is classified once, at the bottom of IP, and starts with
//! its connection's receive list; a sent one starts in the socket layer, in the user's context,
//! and is never classified. The executor (`exec.rs`) runs event after event: under the present
//! perimeter at once, under another one by leaving the packet there as a message, outside any
//! after releasing. Perimeters never nest.
//!
//! **Limits.** Packets keep their order along the perimeters of their list. An event outside any
//! perimeter may be run by two threads at once, and packets may overtake each other there. UDP
//! does not exist in this stack, and so has no events.
//!
//! **Inferences.** (1) Where layers are spread over squeues, each squeue runs on its own core
//! only: a thread of another core leaves a message and the worker is woken. Where a connection
//! has one squeue, entry is FireEngine's `process`: run at once if it is idle. (2) A drawn
//! squeue is a keyed hash of the flow for accepted connections, so that all segments of a
//! handshake meet; a connection that is opened here draws freely under `random`. (3) `horizontal`
//! has at least three squeues, also on fewer cores: TCP's, the next for IP, and the next for the
//! socket layer. (4) Water marks are STREAMS': [`perimeter_stack::marks`]. Without the light
//! queue TCP is told of free space after reads, as by `squeue`, and each message costs a round of
//! the queue's lock for `canputnext`, `putnext` and `getq`. (5) A packet is classified again at
//! most four times. (6) A changed list is taken over at once where packets on it can't come
//! before those on the old one at any event that both have, else when no packet of the connection
//! is between perimeters. (7)
//! TCP's event on the transmit list makes the segments; those that it sends by itself, by timers
//! or in answer, enter the list behind it. (8) While IP and TCP share a perimeter, and nothing
//! stands between them on the list, IP's transmit event runs within TCP's, segment by segment,
//! and the socket's receive event likewise. (9) A callback that panics is caught: its event is
//! taken off wherever it is, and the packet goes on.

mod alter;
mod bind;
mod call;
mod cell;
mod classify;
pub mod event;
mod exec;
mod flows;
mod link;
mod list;
mod pkt;
mod spec;
pub mod trace;

use crate::due::Due;
use crate::open::{Options, Visit};
use crate::place::Places;
use crate::spec::{Family, MAX_GROUPS, OrgSpec};
use crate::squeue::cell::{Home, Place};
use crate::squeue::ipcl::Ipcl;
use crate::squeue::queue::{Entered, Proc, Settings, Squeue, Who};
use crate::{Binding, Flow, Job, Kd, Org};
use bind::Bind;
use cell::{Defaults, Homes, Manner};
use classify::Route;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use event::{Direction, Layer};
use exec::{Env, Inner};
use flows::Flows;
use link::Version;
use list::List;
use perimeter_base::Time;
use perimeter_stack::ops::Op;
use perimeter_stack::shard::Exists;
use perimeter_stack::{Commons, ConnInfo, Count, Ctx, Seg, Shard, SockId, Sockets};
use perimeter_sync::{Lock, LockClass, LockStats, Platform};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;
use pkt::Msg;
pub use spec::{Arrangement, Pef as Spec};
use std::sync::Arc;

/// The families of this module.
pub(crate) const FAMILIES: &[&Family] = &[&spec::FAMILY];

/// Which type each of them is.
pub(crate) fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
    visitor.visit::<Pef<P>>(p, o)
}

/// Quanta of inbound thread, writer and worker, ns (FireEngine's of 2006).
const QUANTA: [u64; 3] = [20_000_000, 10_000_000, 10_000_000];

/// How often the stack, when it is dropped, works off what its own last words have left.
const LAST_ROUNDS: usize = 1000;

/// The framework.
pub struct Pef<P: Platform> {
    spec: Spec,
    squeues: Box<[Squeue<P, Inner<P>>]>,
    homes: Box<[Homes<P>]>,
    due: Box<[Due]>,
    /// Layers of a connection are under different squeues.
    spread: bool,
    flows: Arc<Flows<P>>,
    manner: Arc<Manner<P>>,
    /// Lists of the layers' own events only; for each squeue its own, as counting references
    /// writes to them.
    plain: Box<[(Arc<List>, Arc<List>)]>,
    /// There were sockets.
    opened: AtomicBool,
    /// There are events for packets without a connection.
    wanted: AtomicBool,
    draws: AtomicU64,
    /// The stack is being dropped: its workers go.
    stopped: AtomicBool,
}

impl<P: Platform> Pef<P> {
    fn n(&self) -> u16 {
        self.squeues.len() as u16
    }

    fn place(&self, id: SockId) -> Option<&Place<P>> {
        self.homes
            .get(usize::from(id.shard()))?
            .outer
            .places
            .get(id.slot())
    }

    /// What a connection starts with whose lists were never altered.
    fn first_version(&self, id: SockId) -> Version {
        let tcp = id.shard();
        let (receive, transmit) = &self.plain[usize::from(tcp) % self.plain.len()];
        let bind = Bind::new(self.spec.arrangement, tcp, self.n());
        Version::first(receive.clone(), transmit.clone(), bind)
    }

    /// The squeue of a flow that has no connection.
    fn no_socket_home(&self, key: &FlowKey) -> u16 {
        match self.spec.arrangement {
            Arrangement::At { tcp, .. } => tcp % self.n(),
            _ => (self.flows.draw(key) % u64::from(self.n())) as u16,
        }
    }

    /// The squeue for the TCP layer of a connection that is opened here.
    fn opener(&self, sh: &Commons<Kd<P>>, flow: &Flow) -> u16 {
        match self.spec.arrangement {
            Arrangement::At { tcp, .. } => tcp % self.n(),
            Arrangement::Vertical => sh.p.core() as u16 % self.n(),
            Arrangement::Random | Arrangement::Horizontal => {
                let n = self
                    .draws
                    .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
                let mixed = (n ^ self.flows.draw(&flow.key)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                ((mixed >> 32) % u64::from(self.n())) as u16
            }
        }
    }

    /// The flow of a connection, from its place.
    fn key_of(&self, id: SockId) -> Option<FlowKey> {
        self.home(id).links.get(id.slot())?.key(id)
    }

    /// Runs a burst's segments of one flow, which follow each other, under the squeue that is held,
    /// or as it can be.
    fn receive<'a>(
        &'a self,
        env: &mut Env<'_, P>,
        held: &mut Option<(u16, Proc<'a, P, Inner<P>>)>,
        run: &mut [Seg],
    ) {
        let mut rest = run;
        while let Some((seg, more)) = core::mem::take(&mut rest).split_first_mut() {
            match self.classified(env, seg) {
                // Their list has nothing that could keep a packet of theirs back or change it.
                Route::Whole(id) => {
                    self.whole(env, held, id, seg, more);
                    return;
                }
                Route::NoSocket(q) => {
                    let taken = self.hold(env, held, q, &mut |_| {
                        Msg::NoSocket(core::mem::take(seg), None)
                    });
                    if let Some(proc) = taken {
                        proc.shard.no_socket(&mut env.cx, seg, None);
                        self.after(env, q, proc);
                    }
                }
                Route::List(pkt) => {
                    if let Some((q, proc)) = held.take() {
                        self.release(env, q, proc);
                    }
                    let first = pkt.list.at(0).map(|e| (e.layer, e.under));
                    let under = first.and_then(|(l, u)| pkt.bind.under(l, u));
                    match under {
                        Some(q) => self.bring(env, q, Msg::Packet(self.counted(pkt))),
                        None => self.go(env, None, pkt),
                    }
                    self.finish(env);
                }
            }
            rest = more;
        }
    }

    /// Segments of a connection whose layers are all under one squeue, and on whose lists are the
    /// layers' own events only: one after the other, as IP's event has nothing to do and the
    /// socket's runs within TCP's. The room that they make is told of once.
    fn whole<'a>(
        &'a self,
        env: &mut Env<'_, P>,
        held: &mut Option<(u16, Proc<'a, P, Inner<P>>)>,
        id: SockId,
        first: &mut Seg,
        rest: &mut [Seg],
    ) {
        let q = id.shard();
        let last = rest.len();
        for (i, seg) in core::iter::once(first).chain(rest).enumerate() {
            let taken = self.hold(env, held, q, &mut |pef| {
                let body = pkt::Body::Seg(core::mem::take(seg));
                let v = pef.first_version(id);
                Msg::Packet(pef.packet(id, &v, Direction::Receive, link::Way::In, body))
            });
            if let Some(proc) = taken {
                env.cx.more = i < last;
                let met = proc.shard.segment(&mut env.cx, id, seg);
                env.cx.more = false;
                self.met(env, q, proc, seg, met);
                self.after(env, q, proc);
            }
        }
    }

    /// A packet that is about to be left somewhere is under way.
    fn counted(&self, mut pkt: pkt::Pkt<P>) -> pkt::Pkt<P> {
        if pkt.counted.is_none()
            && let Some(link) = self.home(pkt.id).links.get(pkt.id.slot())
        {
            link.departed(pkt.way);
            pkt.counted = Some(pkt.way);
        }
        pkt
    }

    /// Squeue `q`, entered anew unless it is the one that is held; or `message` is left there.
    fn hold<'a, 'b>(
        &'a self,
        env: &mut Env<'_, P>,
        held: &'b mut Option<(u16, Proc<'a, P, Inner<P>>)>,
        q: u16,
        message: &mut dyn FnMut(&Pef<P>) -> Msg<P>,
    ) -> Option<&'b mut Proc<'a, P, Inner<P>>> {
        if held.as_ref().is_none_or(|(h, _)| *h != q) {
            if let Some((h, proc)) = held.take() {
                self.release(env, h, proc);
            }
            match self.enter(env, q) {
                Entered::In(proc) => *held = Some((q, proc)),
                Entered::Busy(door) => {
                    if let Some(proc) = door.put(message(self)) {
                        self.release(env, q, proc);
                    }
                    return None;
                }
            }
        }
        env.cx.count(Count::SqueueInline, 1);
        held.as_mut().map(|(_, proc)| proc)
    }
}

impl<P: Platform> Org for Pef<P> {
    type K = Kd<P>;

    fn new(spec: &OrgSpec, sh: &Commons<Self::K>) -> Self {
        let spec: Spec = *spec.expect_params();
        let cores = sh.p.cores().clamp(1, usize::from(MAX_GROUPS));
        let n = match spec.arrangement {
            Arrangement::Horizontal => cores.max(3),
            _ => cores,
        };
        let plain = || {
            let list = |direction| Arc::new(List::initial(direction));
            (list(Direction::Receive), list(Direction::Transmit))
        };
        let (mut receive, transmit) = plain();
        if spec.fine {
            receive = Arc::new(List::fine());
        }
        let unbound = Arc::new(List::unbound());
        let defaults = Defaults {
            receive,
            transmit,
            unbound,
        };
        let arrangement = spec.arrangement;
        let manner = Arc::new(Manner {
            defaults: sh.p.lock(LockClass::Leaf, defaults),
            light_queue: spec.light_queue,
            light_tcp: spec.light_tcp,
            bind: Box::new(move |tcp| Bind::new(arrangement, tcp, n as u16)),
        });
        let flows = Arc::new(Flows::new(&sh.p, sh.secret));
        // The classifier is `flows`: that of `squeue` knows nothing here.
        let ipcl = Arc::new(Ipcl::new(&sh.p, sh.secret));
        let home = |_| Homes {
            outer: Arc::new(Home::new(&sh.p, ipcl.clone())),
            links: Arc::new(Places::default()),
            flows: flows.clone(),
            manner: manner.clone(),
        };
        let homes: Box<[Homes<P>]> = (0..n).map(home).collect();
        let settings = Settings {
            quanta: QUANTA,
            delay: 0,
        };
        let squeue = |(q, home): (usize, &Homes<P>)| {
            let shard = Shard::at_home((q as u16, n), sh, home.clone());
            Squeue::new(&sh.p, q, settings, Inner { shard })
        };
        let squeues = homes.iter().enumerate().map(squeue).collect();
        Pef {
            spec,
            squeues,
            homes,
            due: (0..n).map(|_| Due::default()).collect(),
            spread: !Bind::new(arrangement, 0, n as u16).is_whole()
                || matches!(arrangement, Arrangement::At { .. }),
            flows,
            manner,
            plain: (0..n).map(|_| plain()).collect(),
            opened: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            draws: AtomicU64::new(sh.secret[0]),
            stopped: AtomicBool::new(false),
        }
    }

    fn on_packets(&self, cx: &mut Ctx<Self::K>) {
        let mut segs = core::mem::take(&mut cx.segs);
        let mut env = Env::new(cx, Who::Inbound);
        let mut held = None;
        let mut rest = segs.as_mut_slice();
        while let Some(first) = rest.first() {
            let key = first.frame.key;
            let n = rest.iter().take_while(|s| s.frame.key == key).count();
            let (run, others) = rest.split_at_mut(n);
            self.receive(&mut env, &mut held, run);
            rest = others;
        }
        if let Some((q, proc)) = held {
            self.release(&mut env, q, proc);
        }
        self.finish(&mut env);
        segs.clear();
        cx.segs = segs;
    }

    fn call<Q: Op<Self::K> + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        id: SockId,
        op: Q,
    ) -> Option<Q::Out> {
        self.call_op(cx, id, op)
    }

    fn post<Q: Op<Self::K, Out = ()> + 'static>(&self, cx: &mut Ctx<Self::K>, id: SockId, op: Q) {
        self.post_op(cx, id, op);
    }

    fn connect(
        &self,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, Exists> {
        self.opened.store(true, Ordering::Release);
        let q = self.opener(cx.sh, &flow);
        let config = config.clone();
        let made = self.under(cx, q, move |env, inner| {
            let Flow { key, hash, iface } = flow;
            inner.shard.connect(&mut env.cx, key, hash, iface, &config)
        });
        made.unwrap_or(Err(Exists))
    }

    fn perimeters(&self) -> u16 {
        self.n()
    }

    fn perimeter_of(&self, _: &Commons<Self::K>, key: &FlowKey) -> Option<u16> {
        Some(match self.flows.find(key) {
            Some(found) => found.id.shard(),
            None => self.no_socket_home(key),
        })
    }

    fn inside<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        n: u16,
        job: impl Job<Self::K, R>,
    ) -> Option<R> {
        self.opened.store(true, Ordering::Release);
        self.under(cx, n, |env, inner| job(&mut inner.shard, &mut env.cx))
    }

    fn leave(&self, cx: &mut Ctx<Self::K>, n: u16, job: impl Job<Self::K, ()>) {
        let job: pkt::Job<P> = Box::new(|_, env, _, inner| job(&mut inner.shard, &mut env.cx));
        let mut env = Env::new(cx, Who::Inbound);
        self.bring(&mut env, n, Msg::Job(job));
        self.finish(&mut env);
    }

    fn on_timers(&self, cx: &mut Ctx<Self::K>) {
        let now = cx.now();
        for q in 0..self.n() {
            if !self.due[usize::from(q)].take(&cx.sh.p, now) {
                continue;
            }
            let mut env = Env::new(cx, Who::Inbound);
            let job: pkt::Job<P> = Box::new(|_, env, _, inner| inner.shard.on_timers(&mut env.cx));
            self.bring(&mut env, q, Msg::Job(job));
            self.finish(&mut env);
        }
    }

    fn wants_unbound(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    fn unbound(&self, cx: &mut Ctx<Self::K>, iface: u16, frame: perimeter_base::PktBuf) {
        let mut env = Env::new(cx, Who::Inbound);
        let q = iface % self.n();
        let list = self.manner.defaults.lock().unbound.clone();
        let version = Version::first(list.clone(), list, Bind::whole(q, self.n()));
        let body = pkt::Body::Frame(iface, frame);
        let way = link::Way::In;
        let id = SockId::conn(q, 0, 0);
        let pkt = self.packet(id, &version, Direction::Unbound, way, body);
        self.go(&mut env, None, pkt);
        self.finish(&mut env);
    }

    fn next_timer(&self) -> Time {
        self.due.iter().map(Due::at).min().unwrap_or(Time::NEVER)
    }

    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        for s in &self.squeues {
            s.seize().shard.inspect(now, out);
        }
    }

    fn live(&self) -> usize {
        self.squeues.iter().map(|s| s.seize().shard.len()).sum()
    }

    fn abort_all(&self, cx: &mut Ctx<Self::K>) {
        self.stopped.store(true, Ordering::Relaxed);
        for q in 0..self.n() {
            self.inside(cx, q, |sockets, cx| sockets.abort_all(cx));
        }
        // The workers may have gone before what they were told of.
        for _ in 0..LAST_ROUNDS {
            if self.help(cx, Who::Writer) == 0 && self.pending() == 0 {
                break;
            }
            cx.sh.p.yield_now();
        }
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        for s in &self.squeues {
            add(LockClass::Squeue, s.stats());
        }
        self.flows.lock_stats(add);
        for h in &self.homes {
            for p in h.outer.iter() {
                p.lock_stats(add);
            }
        }
    }

    fn binding(&self, id: SockId) -> Binding {
        let link = self.homes.get(usize::from(id.shard()));
        let link = link.and_then(|h| h.links.get(id.slot()));
        let Some((link, v)) = link.and_then(|l| Some((l, l.published(id)?))) else {
            return Binding::default();
        };
        let swept = link.panicked(id);
        let names = |list: &List, receive| {
            let gone = swept.iter().filter(|p| p.receive == receive);
            let gone = gone.map(|p| &*p.name);
            list.names(gone.chain(list.panicked().map(|e| &*e.name)))
        };
        let squeue = |layer| usize::from(v.bind.of(layer));
        Binding {
            perimeters: Layer::ALL.map(|l| format!("squeue {}", squeue(l))),
            cores: Layer::ALL.map(|l| self.squeues.get(squeue(l)).map(Squeue::core)),
            events: [names(&v.receive, true), names(&v.transmit, false)],
        }
    }

    fn events(&self) -> Option<&dyn event::Events> {
        Some(self)
    }

    fn workers(&self) -> usize {
        self.squeues.len()
    }

    fn work(&self, worker: usize, cx: &mut Ctx<Self::K>) -> usize {
        let mut env = Env::new(cx, Who::Worker);
        let n = self.work_off(&mut env, worker as u16);
        self.finish(&mut env);
        n
    }

    fn park(&self, worker: usize, deadline: Time) {
        self.squeues[worker].park(deadline);
    }

    fn pending(&self) -> usize {
        self.squeues.iter().map(Squeue::pending).sum()
    }
}
