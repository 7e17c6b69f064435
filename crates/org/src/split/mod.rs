//! `split`: the organization that exists to test the seam. Not for use.
//!
//! **Background.** It has the shape of the organizations that are hardest to serve: the locks
//! of message parallelism (Willmann, Rixner, Cox, section 3.1: a global connection table, the
//! connections, and both socket buffers apart) together with the deferred calls of connection
//! groups owned by threads (section 3.2).
//!
//! **Binding.** None: any thread may run any connection.
//!
//! **Processing.** The table's lock is held while waiting for a connection's, and released in
//! the middle of input: on the header-prediction paths, else just before output. A call's
//! first phase takes nothing but a buffer's lock. One call in [`DEFER`] is run by the
//! organization's own thread while the caller waits for the answer, and everything posted is.
//!
//! **Limits.** It is slow, and meant to be: the share of deferred calls is there to be felt.
//!
//! **Inferences.** A place keeps its three locks for ever, so that a late holder of a name
//! never meets freed memory; each part carries the generation that may use it. Nobody waits
//! for the organization's thread without a limit: after [`PATIENCE`] a caller works the queue
//! off itself, so that a stack which is being dropped answers too.

mod enter;
mod home;
mod messages;

use crate::place::Places;
use crate::{Flow, On, Org, OrgSpec};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use enter::{Entered, Outside};
use hashbrown::HashTable;
use home::Place;
use messages::Messages;
use perimeter_base::Time;
use perimeter_stack::conn::on_events;
use perimeter_stack::ops::{self, Icmp, Op, Step};
use perimeter_stack::passive::Passive;
use perimeter_stack::shard::{Exists, table_hash};
use perimeter_stack::wheel::{Due, Wheel};
use perimeter_stack::{Access, Bufs, Commons, Conn, ConnInfo, Count, Ctx, Listener, Seg, SockId};
use perimeter_stack::{glue, ready};
use perimeter_sync::{Event, Lock, LockClass, LockStats, Platform, Shared, Work};
use perimeter_tcp::{Config, Events, Tcb};
use perimeter_wire::{FlowKey, Seq, TcpFlags};
use std::sync::Arc;

/// One call in this many is deferred.
pub const DEFER: u32 = 4;

/// How long a caller waits for the organization's thread before it helps, ns.
pub const PATIENCE: u64 = 1_000_000;

pub(crate) type Kd<P> = On<P, Shared>;

/// What the table's lock protects.
pub(crate) struct Table<P: Platform> {
    by_flow: HashTable<(FlowKey, u32)>,
    secret: [u64; 2],
    /// Places without a connection, with the generation of the next one.
    free: Vec<(u32, u32)>,
    places: u32,
    live: usize,
    passive: Passive<Kd<P>>,
}

impl<P: Platform> Table<P> {
    fn find(&self, key: &FlowKey) -> Option<u32> {
        let hash = table_hash(self.secret, key);
        self.by_flow
            .find(hash, |(k, _)| k == key)
            .map(|(_, slot)| *slot)
    }

    fn link(&mut self, key: FlowKey, slot: u32) {
        let secret = self.secret;
        let hash = table_hash(secret, &key);
        self.by_flow
            .insert_unique(hash, (key, slot), |(k, _)| table_hash(secret, k));
    }

    fn unlink(&mut self, key: &FlowKey, slot: u32) {
        let hash = table_hash(self.secret, key);
        if let Ok(e) = self.by_flow.find_entry(hash, |(_, s)| *s == slot) {
            e.remove();
        }
    }
}

/// The table, the connections, and the messages.
pub struct Split<P: Platform> {
    table: P::Lock<Table<P>>,
    places: Places<Place<P>>,
    /// Innermost: entered while a connection is held.
    wheel: P::Lock<Wheel>,
    messages: Messages<P>,
    orphans: AtomicUsize,
    calls: AtomicU32,
    /// When the wheel, and the SYN cache, have something to do; written under their locks.
    wheel_due: AtomicU64,
    syn_due: AtomicU64,
}

impl<P: Platform> Split<P> {
    /// Enters the connection of that name, orphans included.
    fn enter(&self, id: SockId) -> Option<Entered<'_, P>> {
        let table = self.table.lock();
        let place = self.places.get(id.slot())?;
        Entered::new(place, table).filter(|e| e.id() == id)
    }

    fn input(&self, sh: &Commons<Kd<P>>, cx: &mut Ctx<Kd<P>>, seg: &mut Seg) {
        sh.p.charge(Work::Lookup, 1);
        let table = self.table.lock();
        let Some(slot) = table.find(&seg.frame.key) else {
            return self.no_connection(table, sh, cx, seg, None);
        };
        let Some(mut e) = self.places.get(slot).and_then(|p| Entered::new(p, table)) else {
            return;
        };
        // RFC 9293, section 3.10.7.4, and RFC 6191.
        if seg.frame.hdr.flags.contains(TcpFlags::SYN)
            && let Some(iss) = e.tcb().tcb.time_wait_reuse(&seg.frame.hdr)
        {
            on_events(&mut e, Events::CLOSED, cx);
            self.settle(e, sh, cx);
            return self.no_connection(self.table.lock(), sh, cx, seg, Some(iss));
        }
        glue::input(&mut e, sh, cx, seg);
        self.settle(e, sh, cx);
    }

    fn no_connection<'a>(
        &'a self,
        mut table: enter::TableGuard<'a, P>,
        sh: &Commons<Kd<P>>,
        cx: &mut Ctx<Kd<P>>,
        seg: &mut Seg,
        iss: Option<Seq>,
    ) {
        let done = table.passive.segment(sh, cx, seg, iss);
        self.syn_due
            .store(table.passive.deadline().0, Ordering::Relaxed);
        let Some((l, established)) = done else {
            return;
        };
        let config = l.config();
        let tcb = Tcb::accept(&config, &established, cx.now(&sh.p));
        let flow = Flow {
            key: seg.frame.key,
            hash: seg.hash,
            iface: seg.iface,
        };
        let Some(mut e) = self.insert(table, sh, &config, flow, tcb) else {
            return sh.refuse(cx, seg);
        };
        let id = e.id();
        e.snd().side.raise(ready::OUT, cx);
        glue::input(&mut e, sh, cx, seg);
        cx.after.accepts.push((l, id));
        self.settle(e, sh, cx);
    }

    /// Makes a connection and enters it; `None`: the flow exists.
    fn insert<'a>(
        &'a self,
        mut table: enter::TableGuard<'a, P>,
        sh: &Commons<Kd<P>>,
        config: &Config,
        flow: Flow,
        tcb: Tcb,
    ) -> Option<Entered<'a, P>> {
        if table.find(&flow.key).is_some() {
            return None;
        }
        let (slot, generation) = match table.free.pop() {
            Some(place) => place,
            None => {
                table.places += 1;
                (table.places - 1, 1)
            }
        };
        let place = self.places.get_or_make(slot, || Place::new(&sh.p))?;
        let id = SockId::conn(0, slot, generation);
        place.fill(Conn::new(
            sh,
            config,
            id,
            flow.key,
            (flow.hash, flow.iface),
            tcb,
        ));
        table.link(flow.key, slot);
        table.live += 1;
        Entered::new(place, table)
    }

    /// After anything that may have moved a connection's deadline or ended it. Leaves it.
    fn settle<'a>(&'a self, mut e: Entered<'a, P>, sh: &Commons<Kd<P>>, cx: &mut Ctx<Kd<P>>) {
        let t = e.tcb();
        if t.meta.closed {
            return self.unlink(e, sh, cx);
        }
        let deadline = t.tcb.deadline();
        if deadline < t.meta.armed {
            t.meta.armed = deadline;
            let (slot, generation) = (t.meta.id.slot(), t.meta.id.generation());
            let mut wheel = self.wheel.lock();
            wheel.insert(Due {
                slot,
                generation,
                at: deadline,
            });
            self.wheel_due.store(wheel.next().0, Ordering::Relaxed);
        }
    }

    /// The connection is over: out of the table; and away, if no application holds it. Input
    /// and output may have released the table, which comes first in the order: then both are
    /// entered anew, and another thread may have been here meanwhile.
    fn unlink<'a>(&'a self, e: Entered<'a, P>, sh: &Commons<Kd<P>>, cx: &mut Ctx<Kd<P>>) {
        let e = if e.has_table() {
            Some(e)
        } else {
            let id = e.id();
            drop(e);
            self.enter(id)
        };
        let Some((mut e, mut table)) = e.and_then(Entered::part) else {
            return;
        };
        let meta = &e.tcb().meta;
        let (key, id, orphan, sent) = (meta.key, meta.id, meta.orphan, (meta.txq, meta.ticket));
        table.unlink(&key, id.slot());
        if !orphan {
            return;
        }
        self.orphans.fetch_sub(1, Ordering::Relaxed);
        let (mut snd, rcv) = e.vacate();
        sh.bury(cx, sent, &mut snd, &rcv);
        table.live -= 1;
        table
            .free
            .push((id.slot(), id.generation().wrapping_add(1) & 0xff_ffff));
    }

    /// The application has let go: its name for the buffers is no longer good, and there may be
    /// too many like this.
    fn orphaned(&self, e: &mut Entered<'_, P>, sh: &Commons<Kd<P>>, cx: &mut Ctx<Kd<P>>) {
        e.shut_out();
        let orphans = self.orphans.fetch_add(1, Ordering::Relaxed) + 1;
        if orphans > sh.config.orphans && !e.tcb().meta.closed {
            sh.count(cx.lane, Count::OrphansReset, 1);
            glue::abort(e, sh, cx);
        }
    }

    /// Runs an operation, or a phase of it, with the connection entered, and leaves it.
    fn run<'a, R>(
        &'a self,
        mut e: Entered<'a, P>,
        sh: &Commons<Kd<P>>,
        cx: &mut Ctx<Kd<P>>,
        f: impl FnOnce(&mut Entered<'a, P>, &mut Ctx<Kd<P>>) -> R,
    ) -> R {
        let before = e.tcb().meta.orphan;
        let out = f(&mut e, cx);
        if e.tcb().meta.orphan && !before {
            self.orphaned(&mut e, sh, cx);
        }
        self.settle(e, sh, cx);
        out
    }

    /// A socket call, by whichever thread: the first phase with the buffers only.
    fn call_now<Q: Op<Kd<P>>>(
        &self,
        sh: &Commons<Kd<P>>,
        cx: &mut Ctx<Kd<P>>,
        id: SockId,
        mut op: Q,
    ) -> Option<Q::Out> {
        sh.p.charge(Work::SockCall, 1);
        let place = self.places.get(id.slot());
        let mut outside = place.map(|p| Outside::new(p, id.generation()));
        let step = outside.as_mut().map(|o| op.sock(o, sh, cx));
        let stale = outside.is_none_or(|o| o.is_stale());
        let entered = match step {
            Some(Step::Done(out)) if !stale => return Some(out),
            Some(_) if !stale => self.enter(id).filter(|e| !e.is_orphan()),
            _ => None,
        };
        match (step, entered) {
            (Some(Step::Kick(out)), Some(e)) => self
                .run(e, sh, cx, |e, cx| {
                    op.kick(e, sh, cx);
                    out
                })
                .into(),
            // What the buffers gave was good when they gave it.
            (Some(Step::Kick(out)), None) if !stale => Some(out),
            (Some(Step::Tcp), Some(e)) => self.run(e, sh, cx, |e, cx| op.tcp(e, sh, cx)).into(),
            _ => {
                sh.count(cx.lane, Count::StaleHandle, 1);
                None
            }
        }
    }

    fn posted<Q: Op<Kd<P>, Out = ()>>(
        &self,
        sh: &Commons<Kd<P>>,
        cx: &mut Ctx<Kd<P>>,
        id: SockId,
        op: Q,
    ) {
        match self.enter(id) {
            Some(e) => self.run(e, sh, cx, |e, cx| ops::run(e, op, sh, cx)),
            None => sh.count(cx.lane, Count::StaleHandle, 1),
        }
    }

    fn each<'a>(&'a self, f: &mut dyn FnMut(Entered<'a, P>)) {
        let places = self.table.lock().places;
        for slot in 0..places {
            let table = self.table.lock();
            if let Some(e) = self.places.get(slot).and_then(|p| Entered::new(p, table)) {
                f(e);
            }
        }
    }
}

impl<P: Platform> Org for Split<P> {
    type K = Kd<P>;

    fn new(_: &OrgSpec, sh: &Commons<Self::K>) -> Self {
        let table = Table {
            by_flow: HashTable::new(),
            secret: sh.secret,
            free: Vec::new(),
            places: 0,
            live: 0,
            passive: Passive::new(sh),
        };
        Split {
            table: sh.p.lock(LockClass::ConnHashtable, table),
            places: Places::default(),
            wheel: sh.p.lock(LockClass::Leaf, Wheel::new(sh.p.now())),
            messages: Messages::new(&sh.p),
            orphans: AtomicUsize::new(0),
            calls: AtomicU32::new(0),
            wheel_due: AtomicU64::new(u64::MAX),
            syn_due: AtomicU64::new(u64::MAX),
        }
    }

    fn on_packets(&self, sh: &Commons<Self::K>, cx: &mut Ctx<Self::K>) {
        let mut segs = core::mem::take(&mut cx.segs);
        segs.drain(|seg| self.input(sh, cx, seg));
        cx.segs = segs;
    }

    fn call<Q: Op<Self::K>>(
        &self,
        sh: &Commons<Self::K>,
        cx: &mut Ctx<Self::K>,
        id: SockId,
        op: Q,
    ) -> Option<Q::Out> {
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        if !n.wrapping_add(id.slot()).is_multiple_of(DEFER) {
            return self.call_now(sh, cx, id, op);
        }
        let answer = Arc::new((sh.p.lock(LockClass::Leaf, None), sh.p.event()));
        let reply = answer.clone();
        self.messages.put(Box::new(move |org, sh, cx| {
            let out = org.call_now(sh, cx, id, op);
            *reply.0.lock() = Some(out);
            reply.1.set();
        }));
        loop {
            if !answer.1.wait(sh.p.now().plus(PATIENCE)) {
                self.messages.run(self, sh, cx);
            }
            if let Some(out) = answer.0.lock().take() {
                return out;
            }
        }
    }

    fn post<Q: Op<Self::K, Out = ()>>(
        &self,
        _: &Commons<Self::K>,
        _: &mut Ctx<Self::K>,
        id: SockId,
        op: Q,
    ) {
        self.messages
            .put(Box::new(move |org, sh, cx| org.posted(sh, cx, id, op)));
    }

    fn connect(
        &self,
        sh: &Commons<Self::K>,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, Exists> {
        let now = cx.now(&sh.p);
        let key = flow.key;
        let tcb = Tcb::connect(config, sh.isn.iss(&key, now), sh.isn.ts_offset(&key), now);
        let mut e = self
            .insert(self.table.lock(), sh, config, flow, tcb)
            .ok_or(Exists)?;
        let id = e.id();
        glue::output(&mut e, sh, cx);
        self.settle(e, sh, cx);
        Ok(id)
    }

    fn listen(&self, _: &Commons<Self::K>, _: &mut Ctx<Self::K>, l: &Arc<Listener<Self::K>>) {
        self.table.lock().passive.listen(l.clone());
    }

    fn unlisten(&self, _: &Commons<Self::K>, _: &mut Ctx<Self::K>, l: &Arc<Listener<Self::K>>) {
        self.table.lock().passive.unlisten(l);
    }

    fn icmp(&self, sh: &Commons<Self::K>, cx: &mut Ctx<Self::K>, key: &FlowKey, what: Icmp) {
        let mut table = self.table.lock();
        let Some(slot) = table.find(key) else {
            if let Icmp::Unreachable(_, seq) = what {
                table.passive.unreachable(key, seq);
            }
            return;
        };
        if let Some(mut e) = self.places.get(slot).and_then(|p| Entered::new(p, table)) {
            sh.count(cx.lane, Count::IcmpErrors, 1);
            ops::icmp(&mut e, what, sh, cx);
            self.settle(e, sh, cx);
        }
    }

    fn on_timers(&self, sh: &Commons<Self::K>, cx: &mut Ctx<Self::K>) {
        let now = cx.now(&sh.p);
        let mut due = core::mem::take(&mut cx.due);
        {
            let mut wheel = self.wheel.lock();
            wheel.expire(now, &mut due);
            self.wheel_due.store(wheel.next().0, Ordering::Relaxed);
        }
        for d in due.drain(..) {
            let e = self.enter(SockId::conn(0, d.slot, d.generation));
            let Some(mut e) = e.filter(|e| e.armed() == d.at) else {
                sh.count(cx.lane, Count::StaleTimer, 1);
                continue;
            };
            e.tcb().meta.armed = Time::NEVER;
            if e.tcb().tcb.deadline() <= now {
                glue::timer(&mut e, sh, cx);
            }
            self.settle(e, sh, cx);
        }
        cx.due = due;
        let mut table = self.table.lock();
        table.passive.on_timer(sh, cx);
        self.syn_due
            .store(table.passive.deadline().0, Ordering::Relaxed);
    }

    fn next_timer(&self) -> Time {
        let wheel = self.wheel_due.load(Ordering::Relaxed);
        Time(wheel.min(self.syn_due.load(Ordering::Relaxed)))
    }

    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        self.each(&mut |mut e| out.push(ops::look(&mut e, now)));
    }

    fn live(&self) -> usize {
        self.table.lock().live
    }

    fn abort_all(&self, sh: &Commons<Self::K>, cx: &mut Ctx<Self::K>) {
        self.each(&mut |mut e| {
            glue::abort(&mut e, sh, cx);
            e.snd().side.finish(cx);
            e.rcv().side.finish(cx);
            e.tcb().meta.orphan = true;
            self.orphans.fetch_add(1, Ordering::Relaxed);
            self.unlink(e, sh, cx);
        });
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::ConnHashtable, self.table.stats());
        add(LockClass::Leaf, self.wheel.stats());
        add(LockClass::Leaf, self.messages.stats());
        let places = self.table.lock().places;
        for p in (0..places).filter_map(|slot| self.places.get(slot)) {
            p.lock_stats(add);
        }
    }

    fn workers(&self) -> usize {
        1
    }

    fn work(&self, _: usize, sh: &Commons<Self::K>, cx: &mut Ctx<Self::K>) -> usize {
        self.messages.run(self, sh, cx)
    }

    fn park(&self, _: usize, deadline: Time) {
        self.messages.park(deadline);
    }

    fn pending(&self) -> usize {
        self.messages.len()
    }
}
