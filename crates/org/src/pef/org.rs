//! PEF as an organization.

use super::bind::Bind;
use super::cell::{Defaults, Manner, MemberTables};
use super::classify::Route;
use super::event::{Direction, Events, Layer};
use super::flows::Flows;
use super::framework::{self, Body, Env, Inner, Msg, Pef, Pkt};
use super::home::Vacated;
use super::link::{Version, Way};
use super::list::{List, ListRef};
use super::spec::{Arrangement, Pef as Spec};
use crate::due::DueLine;
use crate::outer::Places;
use crate::spec::{MAX_GROUPS, OrgSpec};
use crate::squeue::cell::OuterTable;
use crate::squeue::counted;
use crate::squeue::queue::{Entered, Proc, Settings, Squeue, Who};
use crate::squeue::rings::Ring;
use crate::{Arrivals, Binding, Departures, Job, Kd, Org};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use perimeter_base::Time;
use perimeter_stack::ops::Op;
use perimeter_stack::shard::ExistsError;
use perimeter_stack::{
    BURST, ConnInfo, Ctx, Flow, Listener, Seg, Shard, SharedState, SockId, Sockets, late,
};
use perimeter_sync::{Lock, LockClass, LockStats, Platform};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;
use std::sync::Arc;

/// Quanta of inbound thread, writer and worker, ns (FireEngine's of 2006).
const QUANTA: [u64; 3] = [20_000_000, 10_000_000, 10_000_000];

/// How often the stack, when it is dropped, works off what its own last words have left.
const LAST_ROUNDS: usize = 1000;

impl<P: Platform> Pef<P> {
    /// The squeue for the TCP layer of a connection that is opened here.
    fn opener(&self, sh: &SharedState<Kd<P>>, flow: &Flow) -> u16 {
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

    /// The segments of a burst begin, in their order.
    fn input(&self, cx: &mut Ctx<Kd<P>>, who: Who, segs: &mut [Seg]) {
        let mut env = Env::new(cx, who);
        let mut held = None;
        let mut rest = segs;
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
                Route::Whole(id) => {
                    self.whole(env, held, id, seg, more);
                    return;
                }
                // Those are on no list: IP has its turn here, outside any perimeter.
                Route::NoSocket(_) if !late::input(&mut env.cx, seg) => {}
                Route::NoSocket(q) => {
                    let taken = self.hold(env, held, q, &mut |_| {
                        Msg::NoSocket(core::mem::take(seg), None)
                    });
                    if let Some(proc) = taken {
                        self.no_socket_here(env, q, proc, seg, None);
                        self.after(env, q, proc);
                    }
                }
                Route::List(mut pkt) => self.listed(env, held, &mut pkt),
            }
            rest = more;
        }
    }

    /// A packet begins with its list, under the squeue that is held if that is its first event's.
    fn listed<'a>(
        &'a self,
        env: &mut Env<'_, P>,
        held: &mut Option<(u16, Proc<'a, P, Inner<P>>)>,
        pkt: &mut Pkt<P>,
    ) {
        let Some(q) = Self::first_under(pkt) else {
            if let Some((q, proc)) = held.take() {
                self.release(env, q, proc);
            }
            self.go(env, None, pkt);
            return self.finish(env);
        };
        let taken = self.hold(env, held, q, &mut |pef| {
            pef.departed(pkt);
            Msg::Packet(pkt.take())
        });
        if let Some(proc) = taken {
            self.go(env, Some((q, proc)), pkt);
            self.after(env, q, proc);
        }
    }

    /// Segments of a connection that has no lists to run, under `lists=off`: one after the other.
    /// The room that they make is told of once.
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
                let body = Body::Seg(core::mem::take(seg));
                let v = pef.first_version(id);
                Msg::Packet(pef.packet(id, &v, Direction::Receive, Way::In, body))
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
        env.cx.count_own(counted::INLINE, 1);
        held.as_mut().map(|(_, proc)| proc)
    }
}

impl<P: Platform> Org for Pef<P> {
    type K = Kd<P>;

    fn new(spec: &OrgSpec, sh: &SharedState<Self::K>) -> Self {
        let spec: Spec = *spec.expect_params();
        let cores = sh.p.cores().clamp(1, usize::from(MAX_GROUPS));
        let n = match spec.arrangement {
            Arrangement::Horizontal => cores.max(3),
            _ => cores,
        };
        let first = match spec.lists {
            true => ListRef::initial(spec.fine),
            false => ListRef::direct(),
        };
        let defaults = Defaults {
            lists: first.clone(),
            datagrams: ListRef::datagrams(),
            unbound: ListRef::new(List::unbound()),
        };
        let arrangement = spec.arrangement;
        let manner = Arc::new(Manner {
            defaults: sh.p.lock(LockClass::Leaf, defaults),
            first,
            light_queue: spec.light_queue,
            light_tcp: spec.light_tcp,
            bind: Box::new(move |tcp| Bind::new(arrangement, tcp, n as u16)),
        });
        let flows = Arc::new(Flows::new(&sh.p, sh.secret));
        let of_squeue = |_| MemberTables {
            outer: Arc::new(OuterTable::new(&sh.p, None, Default::default())),
            vacated: Arc::new(Vacated::new(&sh.p)),
            links: Arc::new(Places::default()),
            flows: flows.clone(),
            manner: manner.clone(),
        };
        let tables: Box<[MemberTables<P>]> = (0..n).map(of_squeue).collect();
        let settings = Settings {
            quanta: QUANTA,
            delay: 0,
        };
        let squeue = |(q, tables): (usize, &MemberTables<P>)| {
            let shard = Shard::with_outside((q as u16, n), sh, tables.clone());
            Squeue::new(&sh.p, q, settings, Inner { shard })
        };
        let rings = if spec.fanout { cores } else { 0 };
        let squeues = tables.iter().enumerate().map(squeue).collect();
        Pef {
            spec,
            squeues,
            tables,
            due: (0..n).map(|_| DueLine::default()).collect(),
            spread: !Bind::new(arrangement, 0, n as u16).is_whole()
                || matches!(arrangement, Arrangement::At { .. }),
            flows,
            manner,
            opened: AtomicBool::new(false),
            looking: Arc::default(),
            rings: (0..rings).map(|_| Ring::new(&sh.p)).collect(),
            listeners_tell: AtomicBool::new(false),
            moved: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            watched: Default::default(),
            draws: AtomicU64::new(sh.secret[0]),
            stopped: AtomicBool::new(false),
        }
    }

    fn on_packets(&self, cx: &mut Ctx<Self::K>) {
        let mut segs = core::mem::take(&mut cx.segs);
        if self.rings.is_empty() {
            self.input(cx, Who::Inbound, segs.as_mut_slice());
        } else {
            let all = segs.as_mut_slice();
            for seg in all.iter_mut() {
                late::hash(cx.sh, seg);
            }
            let n = self.rings.len();
            for (i, ring) in self.rings.iter().enumerate() {
                if all.iter().any(|s| s.hash as usize % n == i) {
                    let mine = all.iter_mut().filter(|s| s.hash as usize % n == i);
                    let dropped = ring.put(mine);
                    cx.count_own(counted::RING_FULL, dropped);
                }
            }
        }
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
    ) -> Result<SockId, ExistsError> {
        self.opened.store(true, Ordering::Release);
        let told = config.layers.tcp.map(|q| q % self.n());
        let q = told.unwrap_or_else(|| self.opener(cx.sh, &flow));
        let config = config.clone();
        let made = self.under(cx, q, move |env, inner| {
            inner.shard.connect(&mut env.cx, flow, &config)
        });
        made.unwrap_or(Err(ExistsError))
    }

    fn listen(&self, cx: &mut Ctx<Self::K>, l: &Arc<Listener<Self::K>>) {
        if l.config().layers.tcp.is_some() {
            self.listeners_tell.store(true, Ordering::Release);
        }
        for n in 0..self.n() {
            let l = l.clone();
            self.inside(cx, n, |sockets, _| sockets.listen(l));
        }
    }

    fn perimeters(&self) -> u16 {
        self.n()
    }

    fn perimeter_of(&self, _: &SharedState<Self::K>, key: &FlowKey) -> Option<u16> {
        Some(match self.flows.with(key, |found| *found) {
            Some(found) => self.squeue_of(&found),
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
        let job: framework::Job<P> =
            Box::new(|_, env, _, inner| job(&mut inner.shard, &mut env.cx));
        let mut env = Env::new(cx, Who::Inbound);
        self.bring(&mut env, n, Msg::Job(job));
        self.finish(&mut env);
    }

    fn arrive(&self, cx: &mut Ctx<Self::K>, n: u16, mut all: impl Arrivals<Self::K>) {
        match self.lists_datagrams(Direction::Datagram) {
            true => self.datagrams_in(cx, n, all),
            false => self.leave(cx, n, move |sockets, cx| all.deliver(sockets, cx)),
        }
    }

    fn departs(&self) -> bool {
        self.lists_datagrams(Direction::SentDatagram)
    }

    fn depart<D: Departures<Self::K>>(&self, cx: &mut Ctx<Self::K>, n: u16, all: D) -> Option<D> {
        self.datagrams_out(cx, n, all)
    }

    fn on_timers(&self, cx: &mut Ctx<Self::K>) {
        let now = cx.now();
        for q in 0..self.n() {
            if !self.due[usize::from(q)].take(&cx.sh.p, now) {
                continue;
            }
            let mut env = Env::new(cx, Who::Inbound);
            let job: framework::Job<P> =
                Box::new(|_, env, _, inner| inner.shard.on_timers(&mut env.cx));
            self.bring(&mut env, q, Msg::Job(job));
            self.finish(&mut env);
        }
    }

    /// The layers' own events take merged segments; others see packets as they came.
    fn merges(&self) -> bool {
        !self.spec.fine && Arc::strong_count(&self.looking) == 1
    }

    fn wants_late(&self) -> bool {
        self.spec.lists
    }

    fn wants_unbound(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    fn unbound(&self, cx: &mut Ctx<Self::K>, iface: u16, frame: perimeter_base::PktBuf) {
        let mut env = Env::new(cx, Who::Inbound);
        let q = iface % self.n();
        let list = self.manner.defaults.lock().unbound.clone();
        let version = Version::first([list.clone(), list], Bind::whole(q, self.n()));
        let body = Body::Frame(iface, frame);
        let way = Way::In;
        let id = SockId::conn(q, 0, 0);
        let mut pkt = self.packet(id, &version, Direction::Unbound, way, body);
        self.go(&mut env, None, &mut pkt);
        self.finish(&mut env);
    }

    fn next_timer(&self) -> Time {
        self.due
            .iter()
            .map(|due| due.at())
            .min()
            .unwrap_or(Time::NEVER)
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
        for ring in &self.rings {
            add(LockClass::Leaf, ring.stats());
        }
        for h in &self.tables {
            for p in h.outer.iter() {
                p.lock_stats(add);
            }
        }
    }

    fn binding(&self, id: SockId) -> Binding {
        let link = self.tables.get(usize::from(id.shard()));
        let link = link.and_then(|h| h.links.get(id.slot()));
        let Some((link, v)) =
            link.and_then(|l| Some((l, l.published(id, self.first_version(id))?)))
        else {
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

    fn events(&self) -> Option<&dyn Events> {
        Some(self)
    }

    fn workers(&self) -> usize {
        self.squeues.len() + self.rings.len()
    }

    fn work(&self, worker: usize, cx: &mut Ctx<Self::K>) -> usize {
        if let Some(ring) = worker
            .checked_sub(self.squeues.len())
            .and_then(|n| self.rings.get(n))
        {
            let mut burst = Vec::new();
            ring.take(&mut burst, BURST);
            self.input(cx, Who::Inbound, &mut burst);
            return burst.len();
        }
        let mut env = Env::new(cx, Who::Worker);
        let n = self.work_off(&mut env, worker as u16);
        self.finish(&mut env);
        n
    }

    fn park(&self, worker: usize, deadline: Time) {
        match self.squeues.get(worker) {
            Some(squeue) => squeue.park(deadline),
            None => {
                if let Some(ring) = self.rings.get(worker - self.squeues.len()) {
                    ring.park(deadline);
                }
            }
        }
    }

    fn wake_workers(&self) {
        self.squeues.iter().for_each(Squeue::end);
        self.rings.iter().for_each(Ring::wake);
    }

    fn pending(&self) -> usize {
        let squeues: usize = self.squeues.iter().map(Squeue::pending).sum();
        let rings: usize = self.rings.iter().map(Ring::len).sum();
        squeues + rings
    }
}
