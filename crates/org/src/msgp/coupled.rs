//! The family without its dispatch: tables, connections and timers, and the order in which their
//! locks are taken. `split` is made of this too.

use super::enter::{Entered, TableHold};
use super::locks::ConnLocks;
use super::table::{Shard, TableGuard};
use crate::Kd;
use crate::outer::{Guard, Places, first_phase};
use crate::scheduler::Scheduler;
use core::sync::atomic::{AtomicU64, Ordering};
use perimeter_base::Time;
use perimeter_stack::ends::{self, Ends};
use perimeter_stack::hold::Syn;
use perimeter_stack::id::Slots;
use perimeter_stack::ops::{self, Icmp, Op, Step};
use perimeter_stack::planted::{Bug, planted};
use perimeter_stack::shard::ExistsError;
use perimeter_stack::wheel::Due;
use perimeter_stack::{
    Access, Conn, ConnInfo, Count, Ctx, Flow, Listener, Others, Seg, SharedState, SockId, Sockets,
};
use perimeter_stack::{glue, lifecycle};
use perimeter_sync::{Lock, LockClass, LockStats, Platform, Work};
use perimeter_tcp::{Config, Tcb};
use perimeter_wire::{FlowKey, Seq};
use std::sync::Arc;

/// How often a lookup without the table is tried again when the connection that it found had
/// moved out meanwhile; then the segment is dropped.
const LOOKUPS: usize = 16;

/// How a family member protects itself.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Manner {
    /// One lock for all of a connection.
    pub(crate) coarse: bool,
    /// Lookups let go of the table before they wait for the connection; that many tables. 0: one
    /// table, held while waiting.
    pub(crate) modern: u16,
    /// Sleepers are woken while the connection is held, under one lock for all who wake; else once
    /// nothing is held.
    pub(crate) wakes_held: bool,
}

/// Tables, connections and timers.
pub(crate) struct Core<P: Platform> {
    manner: Manner,
    shards: Box<[Shard<P>]>,
    places: Places<ConnLocks<P>>,
    /// Which places are free.
    slots: P::Lock<Slots<()>>,
    /// Connections that no application holds, of all tables.
    ends: P::Lock<Ends>,
    /// Not later than the earliest of the shards' timers.
    next: AtomicU64,
    /// Wakes sleepers, where that is done within a connection.
    scheduler: Scheduler<P>,
}

/// What a lookup found.
enum Found<'a, P: Platform> {
    Conn(Entered<'a, P>),
    Nobody(TableGuard<'a, P>),
    /// Somebody else whenever one looked.
    Moving,
}

impl<P: Platform> Core<P> {
    pub(crate) fn new(manner: Manner, sh: &SharedState<Kd<P>>) -> Core<P> {
        Core {
            manner,
            shards: (0..manner.modern.max(1))
                .map(|_| Shard::new(sh, usize::from(manner.modern.max(1))))
                .collect(),
            places: Places::default(),
            slots: sh.p.lock(LockClass::Leaf, Slots::default()),
            ends: sh
                .p
                .lock(LockClass::Leaf, Ends::with_limits(sh.config.ends())),
            next: AtomicU64::new(u64::MAX),
            scheduler: Scheduler::new(manner.wakes_held, sh),
        }
    }

    fn is_modern(&self) -> bool {
        self.manner.modern > 0
    }

    fn shard_of(&self, hash: u32) -> u16 {
        (hash as usize % self.shards.len()) as u16
    }

    fn shard(&self, id: SockId) -> &Shard<P> {
        &self.shards[usize::from(id.shard()) % self.shards.len()]
    }

    fn table(&self, shard: u16) -> TableGuard<'_, P> {
        self.shards[usize::from(shard)].table.lock()
    }

    /// Enters the connection of that name, orphans included: while the table is held, unless
    /// lookups do without.
    fn enter(&self, id: SockId) -> Option<Entered<'_, P>> {
        if self.is_modern() {
            let e = Entered::new(self.places.get(id.slot())?, None)?;
            return (e.id() == id).then_some(e);
        }
        self.enter_held(id)
    }

    /// As [`Core::enter`], and the table is held in any case.
    fn enter_held(&self, id: SockId) -> Option<Entered<'_, P>> {
        let table = self.shard(id).table.lock();
        let e = Entered::new(self.places.get(id.slot())?, Some(table))?;
        (e.id() == id).then_some(e)
    }

    /// The connection of a flow.
    fn find(&self, shard: u16, key: &FlowKey) -> Found<'_, P> {
        for _ in 0..LOOKUPS {
            let table = self.table(shard);
            let Some(&slot) = table.places.find(key) else {
                return Found::Nobody(table);
            };
            let Some(locks) = self.places.get(slot) else {
                break;
            };
            let held = if self.is_modern() {
                drop(table);
                None
            } else {
                Some(table)
            };
            if let Some(mut e) = Entered::new(locks, held)
                && e.key() == *key
            {
                return Found::Conn(e);
            }
        }
        Found::Moving
    }

    /// A segment arrived. `entered` is called once its connection, or the table if it has none,
    /// is held: whoever comes behind comes later.
    #[inline]
    pub(crate) fn input(&self, cx: &mut Ctx<Kd<P>>, seg: &mut Seg, entered: impl FnOnce()) {
        cx.sh.p.charge(Work::Lookup, 1);
        let shard = self.shard_of(seg.hash);
        let found = self.find(shard, &seg.frame.key);
        entered();
        let mut e = match found {
            Found::Conn(e) => e,
            Found::Nobody(table) => return self.no_connection(shard, table, cx, seg, None),
            Found::Moving => return seg.release(&mut cx.pool),
        };
        if let Some(iss) = lifecycle::reuse(&mut e, seg) {
            return self.reuse(shard, e, iss, cx, seg);
        }
        glue::input(&mut e, cx, seg);
        self.update(e, cx);
    }

    /// A new SYN takes over a connection in TIME-WAIT, if there is a listener to take it. Listeners
    /// are found in the table, which comes before the connection.
    #[cold]
    fn reuse<'a>(
        &'a self,
        shard: u16,
        e: Entered<'a, P>,
        iss: Seq,
        cx: &mut Ctx<Kd<P>>,
        seg: &mut Seg,
    ) {
        if let Some((mut e, table)) = self.with_table(e).and_then(Entered::part)
            && !e.tcb().meta.closed
        {
            let listens = table.passive.listens(seg);
            drop(table);
            if !listens {
                glue::input(&mut e, cx, seg);
                return self.update(e, cx);
            }
            lifecycle::give_way(&mut e, cx);
            self.update(e, cx);
        }
        self.no_connection(shard, self.table(shard), cx, seg, Some(iss));
    }

    /// The same connection, with its table: where that was released, which comes first in the
    /// order, both are entered anew, and another thread may have been here meanwhile.
    fn with_table<'a>(&'a self, e: Entered<'a, P>) -> Option<Entered<'a, P>> {
        if e.has_table() {
            return Some(e);
        }
        let id = e.id();
        drop(e);
        self.enter_held(id)
    }

    fn no_connection<'a>(
        &'a self,
        shard: u16,
        mut table: TableGuard<'a, P>,
        cx: &mut Ctx<Kd<P>>,
        seg: &mut Seg,
        iss: Option<Seq>,
    ) {
        let done = table.passive.segment(cx, seg, iss);
        self.syn_due(shard, &table);
        let Some((l, established)) = done else {
            return;
        };
        let (config, tcb) = lifecycle::accept(cx, &l, &established);
        let Some(mut e) = self.insert(shard, table, cx.sh, &config, Flow::of(seg, &l), tcb) else {
            return cx.sh.refuse(cx, seg);
        };
        lifecycle::accepted(&mut e, cx, l, seg);
        self.update(e, cx);
    }

    /// Makes a connection and enters it; `None`: the flow exists.
    fn insert<'a>(
        &'a self,
        shard: u16,
        mut table: TableGuard<'a, P>,
        sh: &SharedState<Kd<P>>,
        config: &Config,
        flow: Flow,
        tcb: Tcb,
    ) -> Option<Entered<'a, P>> {
        if table.places.find(&flow.key).is_some() {
            return None;
        }
        let (slot, generation) = self.slots.lock().insert_with(|_, _| Some(()))?;
        let make = || ConnLocks::new(&sh.p, self.manner.coarse);
        let Some(locks) = self.places.get_or_make(slot, make) else {
            self.slots.lock().remove(slot, generation);
            return None;
        };
        let id = SockId::conn(shard, slot, generation);
        table.places.insert(flow.key, slot);
        let conn = Conn::new(sh, config, id, flow, tcb);
        let mut e = Entered::new_connection(locks, conn, table);
        if self.is_modern() {
            e.hold(TableHold::Entry);
        }
        Some(e)
    }

    /// After anything that may have moved a connection's deadline or ended it. Leaves it.
    fn update<'a>(&'a self, mut e: Entered<'a, P>, cx: &mut Ctx<Kd<P>>) {
        if planted(Bug::OrderSwapped) && !e.has_table() {
            drop(self.table(e.id().shard()));
        }
        self.scheduler.wake(cx);
        let t = e.tcb();
        if t.meta.closed {
            return self.unlink(e, cx);
        }
        let id = t.meta.id;
        if let Some(end) = lifecycle::end_changed(&mut e, cx) {
            let ended = self.ends.lock().set(id, end);
            ends::tell(cx, ended);
        }
        if let Some(at) = lifecycle::arm(&mut e, cx) {
            let shard = self.shard(id);
            let mut wheel = shard.wheel.lock();
            let (slot, generation) = (id.slot(), id.generation());
            wheel.insert(Due {
                slot,
                generation,
                at,
            });
            self.due(&shard.wheel_due, wheel.next());
        }
    }

    /// A shard's timers are due at `at`; the lock is held that protects `hint`.
    fn due(&self, hint: &AtomicU64, at: Time) {
        if hint.load(Ordering::Relaxed) == at.0 {
            return;
        }
        // Sequentially consistent, against `on_timers`: of a store here and a store there, at
        // least one side sees the other's.
        hint.store(at.0, Ordering::SeqCst);
        if at.0 < self.next.load(Ordering::SeqCst) {
            self.next.fetch_min(at.0, Ordering::SeqCst);
        }
    }

    fn syn_due(&self, shard: u16, table: &TableGuard<'_, P>) {
        let hint = &self.shards[usize::from(shard)].syn_due;
        self.due(hint, table.passive.deadline());
    }

    /// The connection is over: out of the table; and away, if no application holds it. Input
    /// and output may have released the table.
    fn unlink<'a>(&'a self, e: Entered<'a, P>, cx: &mut Ctx<Kd<P>>) {
        let Some((mut e, mut table)) = self.with_table(e).and_then(Entered::part) else {
            return;
        };
        let meta = &e.tcb().meta;
        let (key, id, orphan) = (meta.key, meta.id, meta.orphan);
        // Unless that was done before.
        table.places.remove(&key, |slot| *slot == id.slot());
        if !orphan {
            return;
        }
        self.ends.lock().set(id, None);
        lifecycle::gone(&e.vacate(), cx);
        self.slots.lock().remove(id.slot(), id.generation());
    }

    /// Runs an operation, or a phase of it, with the connection entered, and leaves it.
    fn run<'a, R>(
        &'a self,
        mut e: Entered<'a, P>,
        hold: TableHold,
        cx: &mut Ctx<Kd<P>>,
        f: impl FnOnce(&mut Entered<'a, P>, &mut Ctx<Kd<P>>) -> R,
    ) -> R {
        e.hold(hold);
        let before = e.is_orphan();
        let out = f(&mut e, cx);
        if e.is_orphan() && !before {
            // The application has let go: its name does not open the buffers any more.
            e.shut_out();
        }
        self.update(e, cx);
        out
    }

    /// A socket call: the first phase with the buffers only.
    pub(crate) fn call<Q: Op<Kd<P>>>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        id: SockId,
        mut op: Q,
    ) -> Option<Q::Out> {
        cx.sh.p.charge(Work::SockCall, 1);
        let locks = self.places.get(id.slot());
        let step = locks.and_then(|p| first_phase(p, id.generation(), &mut op, cx));
        match step {
            None => cx.sh.stale(cx),
            Some(Step::Done(out)) => Some(out),
            Some(Step::Kick(out)) => {
                if let Some(e) = self.enter_owned(id) {
                    self.run(e, TableHold::Entry, cx, |e, cx| op.kick(e, cx));
                }
                // What the buffers gave was good when they gave it.
                Some(out)
            }
            Some(Step::Tcp) => match self.enter_owned(id) {
                Some(e) => self
                    .run(e, TableHold::of::<P, Q>(), cx, |e, cx| op.tcp(e, cx))
                    .into(),
                None => cx.sh.stale(cx),
            },
        }
    }

    /// Enters a connection that an application still holds.
    fn enter_owned(&self, id: SockId) -> Option<Entered<'_, P>> {
        let mut entered = self.enter(id)?;
        (!entered.is_orphan()).then_some(entered)
    }

    /// An operation that the stack itself posted, also on orphans.
    pub(crate) fn posted<Q: Op<Kd<P>, Out = ()>>(&self, cx: &mut Ctx<Kd<P>>, id: SockId, op: Q) {
        match self.enter(id) {
            Some(e) => self.run(e, TableHold::of::<P, Q>(), cx, |e, cx| ops::run(e, op, cx)),
            None => cx.count(Count::StaleHandle, 1),
        }
    }

    pub(crate) fn connect(
        &self,
        cx: &mut Ctx<Kd<P>>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, ExistsError> {
        let tcb = lifecycle::connect(cx, &flow.key, config);
        let shard = self.shard_of(flow.hash);
        let mut e = self
            .insert(shard, self.table(shard), cx.sh, config, flow, tcb)
            .ok_or(ExistsError)?;
        let id = e.id();
        lifecycle::connected(&mut e, cx);
        self.update(e, cx);
        Ok(id)
    }

    /// Perimeters, which are tables here.
    pub(crate) fn perimeters(&self) -> u16 {
        self.shards.len() as u16
    }

    /// The table of a flow.
    pub(crate) fn perimeter_of(&self, sh: &SharedState<Kd<P>>, key: &FlowKey) -> u16 {
        self.shard_of(sh.flow_hash(key))
    }

    /// The sockets of table `n`, none of which is locked yet.
    pub(crate) fn sockets(&self, n: u16) -> InTable<'_, P> {
        InTable {
            core: self,
            n,
            others: None,
        }
    }

    fn icmp(&self, cx: &mut Ctx<Kd<P>>, key: &FlowKey, what: Icmp) {
        match self.find(self.shard_of(cx.sh.flow_hash(key)), key) {
            Found::Conn(mut e) => {
                cx.count(Count::IcmpErrors, 1);
                ops::icmp(&mut e, what, cx);
                self.update(e, cx);
            }
            Found::Nobody(mut table) => table.passive.icmp(cx, key, what),
            Found::Moving => {}
        }
    }

    pub(crate) fn on_timers(&self, cx: &mut Ctx<Kd<P>>) {
        let now = cx.now();
        // Whoever lowers a shard's hint from here on lowers this too, so nothing is lost
        // between here and the end of the walk.
        self.next.store(u64::MAX, Ordering::SeqCst);
        cx.sh.p.checkpoint();
        let mut earliest = u64::MAX;
        for (n, shard) in self.shards.iter().enumerate() {
            if shard.wheel_due.load(Ordering::SeqCst) <= now.0 {
                self.wheel(n as u16, now, cx);
            }
            if shard.syn_due.load(Ordering::SeqCst) <= now.0 {
                let mut table = shard.table.lock();
                table.passive.on_timer(cx);
                self.syn_due(n as u16, &table);
            }
            earliest = earliest.min(shard.wheel_due.load(Ordering::SeqCst));
            earliest = earliest.min(shard.syn_due.load(Ordering::SeqCst));
        }
        self.next.fetch_min(earliest, Ordering::SeqCst);
    }

    /// Runs the connections' timers that are due.
    fn wheel(&self, n: u16, now: Time, cx: &mut Ctx<Kd<P>>) {
        let shard = &self.shards[usize::from(n)];
        let mut due = core::mem::take(&mut cx.due);
        {
            let mut wheel = shard.wheel.lock();
            wheel.expire(now, &mut due);
            self.due(&shard.wheel_due, wheel.next());
        }
        for d in due.drain(..) {
            let e = self.enter(SockId::conn(n, d.slot, d.generation));
            let Some(mut e) = e.and_then(|mut e| lifecycle::disarm(&mut e, d.at).then_some(e))
            else {
                cx.count(Count::StaleTimer, 1);
                continue;
            };
            if e.tcb().tcb.deadline() <= now {
                glue::timer(&mut e, cx);
            }
            self.update(e, cx);
        }
        cx.due = due;
    }

    pub(crate) fn next_timer(&self) -> Time {
        Time(self.next.load(Ordering::Acquire))
    }

    fn each<'a>(&'a self, f: &mut dyn FnMut(Entered<'a, P>)) {
        let places = self.slots.lock().places();
        for slot in 0..places {
            let Some(locks) = self.places.get(slot) else {
                continue;
            };
            let table = (!self.is_modern()).then(|| self.table(0));
            if let Some(e) = Entered::new(locks, table) {
                f(e);
            }
        }
    }

    pub(crate) fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        self.each(&mut |mut e| out.push(ops::look(&mut e, now)));
    }

    pub(crate) fn live(&self) -> usize {
        self.slots.lock().len()
    }

    fn abort_all(&self, cx: &mut Ctx<Kd<P>>) {
        self.each(&mut |mut e| {
            lifecycle::abort(&mut e, cx);
            self.unlink(e, cx);
        });
    }

    pub(crate) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        for shard in &self.shards {
            add(LockClass::ConnHashtable, shard.table.stats());
            add(LockClass::Leaf, shard.wheel.stats());
            add(LockClass::Connection, shard.others.stats());
        }
        add(LockClass::Leaf, self.slots.stats());
        add(LockClass::Leaf, self.ends.stats());
        self.scheduler.lock_stats(add);
        let places = self.slots.lock().places();
        for p in (0..places).filter_map(|slot| self.places.get(slot)) {
            p.lock_stats(add);
        }
    }
}

/// The sockets of a table. Each call takes the locks that it needs; those of other protocols are
/// locked from the first look at them on.
pub(crate) struct InTable<'a, P: Platform> {
    core: &'a Core<P>,
    n: u16,
    others: Option<Guard<'a, P, Others>>,
}

impl<P: Platform> Sockets<Kd<P>> for InTable<'_, P> {
    fn listen(&mut self, l: Arc<Listener<Kd<P>>>) {
        self.core.table(self.n).passive.listen(l);
    }

    fn unlisten(&mut self, cx: &mut Ctx<Kd<P>>, l: &Listener<Kd<P>>) {
        self.core.table(self.n).passive.unlisten(cx, l);
    }

    fn admit(&mut self, cx: &mut Ctx<Kd<P>>, l: &Listener<Kd<P>>, syn: &Syn) {
        let mut table = self.core.table(self.n);
        table.passive.admit(cx, l, syn);
        self.core.syn_due(self.n, &table);
    }

    fn icmp(&mut self, cx: &mut Ctx<Kd<P>>, key: &FlowKey, what: Icmp) {
        self.core.icmp(cx, key, what);
    }

    /// All tables' connections are in the same places: the first tells of them.
    fn inspect(&mut self, now: Time, out: &mut Vec<ConnInfo>) {
        if self.n == 0 {
            self.core.inspect(now, out);
        }
    }

    fn abort_all(&mut self, cx: &mut Ctx<Kd<P>>) {
        if self.n == 0 {
            self.core.abort_all(cx);
        }
        *self.others() = Others::default();
    }

    fn others(&mut self) -> &mut Others {
        let shard = &self.core.shards[usize::from(self.n)];
        self.others.get_or_insert_with(|| shard.others.lock())
    }
}
