//! A perimeter whole: connection table, connections, timers, SYN cache and wildcard listeners
//! that one owner, or one lock, protects together. Organizations that group connections own
//! one or many.

use crate::conn::{Cell, Conn, ConnInfo};
use crate::count::Count;
use crate::ctx::Ctx;
use crate::ends::Ends;
use crate::glue;
pub use crate::hash::table_hash;
use crate::hold::Syn;
use crate::id::{Slots, SockId};
use crate::kind::Kind;
use crate::lifecycle::{self, Flow};
use crate::listener::Listener;
use crate::ops::{self, Icmp, Op};
use crate::passive::Passive;
use crate::segment::Seg;
use crate::shared::SharedState;
use crate::sockets::{Others, Sockets};
use crate::wheel::{Due, Wheel};
use hashbrown::{HashMap, HashTable};
use perimeter_base::Time;
use perimeter_sync::{Platform, Work};
use perimeter_tcp::syncache::Established;
use perimeter_tcp::{Config, Tcb};
use perimeter_wire::{FlowKey, Seq};
use std::sync::Arc;

mod moving;

/// Connections and all that belongs to them.
pub struct Shard<K: Kind, C: Cell<K = K> = Conn<K>> {
    index: u16,
    conns: Slots<C>,
    outside: C::Outside,
    table: HashTable<u32>,
    secret: [u64; 2],
    wheel: Wheel,
    passive: Passive<K>,
    /// Somebody listens where the next SYN goes to, though not in this shard.
    elsewhere: bool,
    ends: Ends,
    others: Others,
    /// Connections that were made in other shards and have moved here: their slots. Their names
    /// stay what they were.
    guests: HashMap<SockId, u32>,
}

/// What became of a segment whose connection was looked up elsewhere.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Met {
    /// The connection took it.
    Taken,
    /// There is no such connection any more.
    Gone,
    /// It is a SYN that took over a connection in TIME-WAIT, which is no more: the segment
    /// belongs to no connection, and the new one is to start with this sequence number.
    Reused(Seq),
}

/// The flow exists already.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ExistsError;

impl<K: Kind, C: Cell<K = K>> Shard<K, C> {
    /// An empty shard, number `index` of so many: those share out the SYN cache's room.
    pub fn new((index, of): (u16, usize), sh: &SharedState<K>) -> Shard<K, C>
    where
        C::Outside: Default,
    {
        Shard::with_outside((index, of), sh, C::Outside::default())
    }

    /// An empty shard, number `index` of so many, parts of whose connections live in `outside`.
    pub fn with_outside(
        (index, of): (u16, usize),
        sh: &SharedState<K>,
        outside: C::Outside,
    ) -> Shard<K, C> {
        Shard {
            index,
            conns: Slots::default(),
            outside,
            table: HashTable::new(),
            secret: sh.secret,
            wheel: Wheel::new(sh.p.now()),
            elsewhere: false,
            passive: Passive::new(sh, of),
            ends: Ends::default(),
            others: Others::default(),
            guests: HashMap::new(),
        }
    }

    fn find(&self, key: &FlowKey) -> Option<u32> {
        let conns = &self.conns;
        self.table
            .find(table_hash(self.secret, key), |&s| {
                conns.peek(s).is_some_and(|c| c.peek().meta.key == *key)
            })
            .copied()
    }

    /// The connection of a flow.
    #[must_use]
    pub fn lookup(&self, key: &FlowKey) -> Option<SockId> {
        let slot = self.find(key)?;
        self.conns.peek(slot).map(|c| c.peek().meta.id)
    }

    /// A segment arrived.
    pub fn input(&mut self, cx: &mut Ctx<K>, seg: &mut Seg) {
        cx.sh.p.charge(Work::Lookup, 1);
        let iss = match self.find(&seg.frame.key) {
            Some(slot) => match self.deliver(slot, cx, seg) {
                Ok(()) => return,
                Err(iss) => iss,
            },
            None => None,
        };
        self.no_connection(cx, seg, iss);
    }

    /// A segment that a classifier outside has found a connection for.
    ///
    /// # Errors
    /// That connection is over and the segment belongs to no other: it is for a listener, or
    /// nobody. If it is a SYN that takes over the connection's flow from TIME-WAIT, with the
    /// initial sequence number to use.
    #[inline]
    pub fn input_for(
        &mut self,
        cx: &mut Ctx<K>,
        id: SockId,
        seg: &mut Seg,
    ) -> Result<(), Option<Seq>> {
        let (slot, generation) = self.place(id);
        let conn = self.conns.get(slot, generation);
        if let Some(c) = conn
            && !c.peek().meta.closed
        {
            // A name is never given to another flow.
            debug_assert!(c.peek().meta.key == seg.frame.key);
            return self.deliver(slot, cx, seg);
        }
        match self.find(&seg.frame.key) {
            Some(slot) => self.deliver(slot, cx, seg),
            None => Err(None),
        }
    }

    #[inline]
    fn deliver(&mut self, slot: u32, cx: &mut Ctx<K>, seg: &mut Seg) -> Result<(), Option<Seq>> {
        self.take(slot, cx, seg, |c, cx, seg| glue::input(c, cx, seg))
    }

    /// Runs `f` on the connection in `slot` for a segment of its flow, or fails as
    /// [`Shard::input_for`] does.
    #[inline]
    fn take(
        &mut self,
        slot: u32,
        cx: &mut Ctx<K>,
        seg: &mut Seg,
        f: impl FnOnce(&mut C, &mut Ctx<K>, &mut Seg),
    ) -> Result<(), Option<Seq>> {
        let conn = self.conns.at(slot).ok_or(None)?;
        if let Some(iss) = lifecycle::reuse(conn, seg)
            && (self.elsewhere || self.passive.listens(seg))
        {
            lifecycle::give_way(conn, cx);
            self.update(slot, cx);
            return Err(Some(iss));
        }
        conn.entered();
        f(conn, cx, seg);
        self.update(slot, cx);
        Ok(())
    }

    /// A segment arrived for the connection `id`, looked up elsewhere.
    #[inline]
    pub fn segment(&mut self, cx: &mut Ctx<K>, id: SockId, seg: &mut Seg) -> Met {
        self.meet(cx, id, seg, |c, cx, seg| glue::input(c, cx, seg))
    }

    /// As [`Shard::segment`], for organizations that cut TCP's processing: `f` is a part of it.
    #[inline]
    pub fn meet(
        &mut self,
        cx: &mut Ctx<K>,
        id: SockId,
        seg: &mut Seg,
        f: impl FnOnce(&mut C, &mut Ctx<K>, &mut Seg),
    ) -> Met {
        let (slot, generation) = self.place(id);
        match self.conns.get(slot, generation) {
            Some(c) if !c.peek().meta.closed => {}
            _ => return Met::Gone,
        }
        match self.take(slot, cx, seg, f) {
            Ok(()) => Met::Taken,
            Err(Some(iss)) => Met::Reused(iss),
            Err(None) => Met::Gone,
        }
    }

    /// A segment of a flow that has no connection, as far as the table knows from which it was
    /// looked up: for the SYN cache, a listener, or nobody. `iss` is given when it took over a
    /// connection in TIME-WAIT.
    pub fn no_socket(&mut self, cx: &mut Ctx<K>, seg: &mut Seg, iss: Option<Seq>) {
        match iss {
            Some(_) if self.find(&seg.frame.key).is_none() => {
                self.no_connection(cx, seg, iss);
            }
            _ => self.input(cx, seg),
        }
    }

    /// The connection of that name, to look at.
    pub fn peek(&self, id: SockId) -> Option<&C> {
        let (slot, generation) = self.place(id);
        self.conns.get(slot, generation)
    }

    /// After anything that may have moved a connection's deadline or ended it.
    #[inline]
    fn update(&mut self, slot: u32, cx: &mut Ctx<K>) {
        let Some(conn) = self.conns.at(slot) else {
            return;
        };
        conn.left(cx);
        let side = conn.tcb();
        if side.meta.orphan || side.meta.closed {
            return self.update_end(slot, cx);
        }
        if side.tcb.deadline() < side.meta.armed {
            self.arm(slot, cx);
        }
    }

    /// As [`Shard::update`], for a connection that is over or that no application holds.
    #[cold]
    fn update_end(&mut self, slot: u32, cx: &mut Ctx<K>) {
        let Some(conn) = self.conns.at(slot) else {
            return;
        };
        let meta = &conn.peek().meta;
        if meta.closed {
            return self.unlink(slot, cx);
        }
        let id = meta.id;
        if let Some(end) = lifecycle::end_changed(conn, cx) {
            self.ends.note(cx, (slot, id), end);
        }
        self.arm(slot, cx);
    }

    /// Puts the connection's deadline on the wheel, if it is earlier than the one that is there.
    fn arm(&mut self, slot: u32, cx: &mut Ctx<K>) {
        let conn = self.conns.at(slot);
        if let Some(at) = conn.and_then(|c| lifecycle::arm(c, cx)) {
            let generation = self.conns.generation(slot);
            self.wheel.insert(Due {
                slot,
                generation,
                at,
            });
        }
    }

    /// The connection is over: out of the table; and away, if no application holds it.
    fn unlink(&mut self, slot: u32, cx: &mut Ctx<K>) {
        let Some(conn) = self.conns.at(slot) else {
            return;
        };
        let meta = &conn.peek().meta;
        let (key, id, orphan) = (meta.key, meta.id, meta.orphan);
        if self.strike(&key, slot)
            && let Some(conn) = self.conns.peek(slot)
        {
            conn.unlinked(&mut self.outside);
        }
        if !orphan {
            return;
        }
        if let Some(cell) = self.conns.remove(slot, self.conns.generation(slot)) {
            if id.shard() != self.index {
                self.guests.remove(&id);
            }
            let conn = cell.leave(&mut self.outside);
            self.ends.note(cx, (slot, id), None);
            lifecycle::gone(&conn, cx);
        }
    }

    /// A segment without a connection. `iss` is given when it takes over a connection in
    /// TIME-WAIT.
    #[cold]
    fn no_connection(&mut self, cx: &mut Ctx<K>, seg: &mut Seg, iss: Option<Seq>) {
        if let Some((l, e)) = self.passive.segment(cx, seg, iss) {
            self.establish(cx, l, &e, seg);
        }
    }

    /// Says of the segment that comes next whether somebody listens where it goes to: for
    /// organizations in which listeners and connections are in different shards.
    pub fn listened_elsewhere(&mut self, yes: bool) {
        self.elsewhere = yes;
    }

    /// The listeners and handshakes of this shard.
    pub fn passive(&mut self) -> &mut Passive<K> {
        &mut self.passive
    }

    /// Makes the connection of a handshake that `seg` completed, and gives it the segment; its
    /// name, unless the flow exists.
    #[cold]
    pub fn establish(
        &mut self,
        cx: &mut Ctx<K>,
        l: Arc<Listener<K>>,
        e: &Established,
        seg: &mut Seg,
    ) -> Option<SockId> {
        let (config, tcb) = lifecycle::accept(cx, &l, e);
        let Ok(id) = self.insert(cx.sh, &config, Flow::of(seg, &l), tcb) else {
            cx.sh.refuse(cx, seg);
            return None;
        };
        let conn = self.conns.at(id.slot())?;
        conn.entered();
        lifecycle::accepted(conn, cx, l, seg);
        self.update(id.slot(), cx);
        Some(id)
    }

    fn insert(
        &mut self,
        sh: &SharedState<K>,
        config: &Config,
        flow: Flow,
        tcb: Tcb,
    ) -> Result<SockId, ExistsError> {
        let key = flow.key;
        if self.find(&key).is_some() {
            return Err(ExistsError);
        }
        while let Some(slot) = C::vacated(&mut self.outside) {
            self.conns.vacate(slot);
        }
        let shard = self.index;
        let outside = &mut self.outside;
        let make = |slot, generation| {
            let id = SockId::conn(shard, slot, generation);
            let conn = Conn::new(sh, config, id, flow, tcb);
            C::make(outside, (sh, config), conn)
        };
        let (slot, generation) = self.conns.insert_with(make).ok_or(ExistsError)?;
        self.enter(&key, slot);
        Ok(SockId::conn(shard, slot, generation))
    }

    /// Enters the connection in `slot` into the table.
    fn enter(&mut self, key: &FlowKey, slot: u32) {
        let (secret, conns) = (self.secret, &self.conns);
        self.table
            .insert_unique(table_hash(secret, key), slot, |&s| {
                conns
                    .peek(s)
                    .map_or(0, |c| table_hash(secret, &c.peek().meta.key))
            });
    }

    /// Takes it out of the table, where it is.
    fn strike(&mut self, key: &FlowKey, slot: u32) -> bool {
        let hash = table_hash(self.secret, key);
        let entry = self.table.find_entry(hash, |&s| s == slot);
        entry.map(|e| e.remove()).is_ok()
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// The flow exists.
    pub fn connect(
        &mut self,
        cx: &mut Ctx<K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, ExistsError> {
        let tcb = lifecycle::connect(cx, &flow.key, config);
        let id = self.insert(cx.sh, config, flow, tcb)?;
        if let Some(conn) = self.conns.at(id.slot()) {
            conn.entered();
            lifecycle::connected(conn, cx);
        }
        self.update(id.slot(), cx);
        Ok(id)
    }

    /// Runs a socket operation; `None`: the socket has gone.
    pub fn call<Q: Op<K>>(&mut self, cx: &mut Ctx<K>, id: SockId, op: Q) -> Option<Q::Out> {
        self.with(cx, id, false, |c, cx| ops::run(c, op, cx))
    }

    /// Runs an operation that the stack itself posted, also on orphans.
    pub fn posted<Q: Op<K, Out = ()>>(&mut self, cx: &mut Ctx<K>, id: SockId, op: Q) {
        self.with(cx, id, true, |c, cx| ops::run(c, op, cx));
    }

    /// Runs `f` on a connection and keeps table, timers and orphans true afterwards: for
    /// organizations that cut operations between their phases. `None`: it has gone, or is an
    /// orphan and `orphans` is not set.
    #[inline]
    pub fn with<R>(
        &mut self,
        cx: &mut Ctx<K>,
        id: SockId,
        orphans: bool,
        f: impl FnOnce(&mut C, &mut Ctx<K>) -> R,
    ) -> Option<R> {
        let (slot, generation) = self.place(id);
        let conn = self.conns.get_mut(slot, generation);
        let Some(conn) = conn.filter(|c| orphans || !c.peek().meta.orphan) else {
            return cx.sh.stale(cx);
        };
        conn.entered();
        let out = f(conn, cx);
        self.update(slot, cx);
        Some(out)
    }

    /// Runs what is due.
    pub fn on_timers(&mut self, cx: &mut Ctx<K>) {
        self.expire(cx, |conn, cx| {
            glue::timer(conn, cx);
            true
        });
    }

    /// As [`Shard::on_timers`], for organizations that run a connection's timers by a message of
    /// their own: `fire` is told of each connection that has timers due, and says whether it ran
    /// them, or sees to it that [`Shard::timer`] is called for it. Deadlines that have moved are
    /// armed again.
    pub fn expire(&mut self, cx: &mut Ctx<K>, mut fire: impl FnMut(&mut C, &mut Ctx<K>) -> bool) {
        let now = cx.now();
        let mut due = core::mem::take(&mut cx.due);
        self.wheel.expire(now, &mut due);
        for d in due.drain(..) {
            let conn = self.conns.get_mut(d.slot, d.generation);
            if let Some(conn) = conn
                && lifecycle::disarm(conn, d.at)
            {
                conn.entered();
                if conn.peek().tcb.deadline() > now || fire(conn, cx) {
                    self.update(d.slot, cx);
                }
            } else {
                cx.count(Count::StaleTimer, 1);
            }
        }
        cx.due = due;
        self.passive.on_timer(cx);
    }

    /// Runs a connection's timers that are due, after `begin`; counts it as stale if it has gone,
    /// or nothing is due any more.
    pub fn timer(&mut self, cx: &mut Ctx<K>, id: SockId, begin: impl FnOnce(&mut C)) {
        let now = cx.now();
        let (slot, generation) = self.place(id);
        let Some(conn) = self.conns.get_mut(slot, generation) else {
            return cx.count(Count::StaleTimer, 1);
        };
        conn.entered();
        begin(conn);
        if conn.peek().tcb.deadline() <= now {
            glue::timer(conn, cx);
        } else {
            cx.count(Count::StaleTimer, 1);
        }
        self.update(slot, cx);
    }

    /// When [`Shard::on_timers`] has something to do.
    pub fn next_timer(&self) -> Time {
        self.wheel.next().min(self.passive.deadline())
    }

    /// How many connections there are, those that linger included.
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }
}

impl<K: Kind, C: Cell<K = K>> Sockets<K> for Shard<K, C> {
    fn listen(&mut self, l: Arc<Listener<K>>) {
        self.passive.listen(l);
    }

    fn unlisten(&mut self, cx: &mut Ctx<K>, l: &Listener<K>) {
        self.passive.unlisten(cx, l);
    }

    fn admit(&mut self, cx: &mut Ctx<K>, l: &Listener<K>, syn: &Syn) {
        self.passive.admit(cx, l, syn);
    }

    fn icmp(&mut self, cx: &mut Ctx<K>, key: &FlowKey, what: Icmp) {
        let Some(slot) = self.find(key) else {
            return self.passive.icmp(cx, key, what);
        };
        if let Some(conn) = self.conns.at(slot) {
            cx.count(Count::IcmpErrors, 1);
            conn.entered();
            ops::icmp(conn, what, cx);
            self.update(slot, cx);
        }
    }

    fn inspect(&mut self, now: Time, out: &mut Vec<ConnInfo>) {
        for slot in 0..self.conns.places() {
            if let Some(c) = self.conns.at(slot) {
                out.push(ops::look(c, now));
            }
        }
    }

    fn abort_all(&mut self, cx: &mut Ctx<K>) {
        for slot in 0..self.conns.places() {
            if let Some(conn) = self.conns.at(slot) {
                conn.entered();
                lifecycle::abort(conn, cx);
                conn.left(cx);
                self.unlink(slot, cx);
            }
        }
        self.others = Others::default();
    }

    fn others(&mut self) -> &mut Others {
        &mut self.others
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{IpAddr, Ipv4Addr};

    /// The most comparisons that a lookup needs in a table of `keys` under `secret`.
    fn dearest(secret: [u64; 2], keys: &[FlowKey]) -> usize {
        let mut table = HashTable::new();
        for key in keys {
            table.insert_unique(table_hash(secret, key), *key, |k| table_hash(secret, k));
        }
        let lookup = |key| {
            let mut n = 0;
            let found = table.find(table_hash(secret, key), |k| {
                n += 1;
                k == key
            });
            assert!(found.is_some());
            n
        };
        keys.iter().map(lookup).max().unwrap_or(0)
    }

    /// Flows to one listener whose hashes under `secret` agree in all bits that a table of them
    /// looks at: the lowest choose the place, the highest are compared first.
    fn chosen(secret: [u64; 2], n: usize, wide: bool) -> Vec<FlowKey> {
        let flow = |i: u32| {
            let (remote, port) = (0x0a00_0000 + (i >> 14), 1024 + (i & 0x3fff) as u16);
            let ip = |a: u32| match wide {
                false => IpAddr::V4(Ipv4Addr::from(a)),
                true => IpAddr::V6((0x2001_0db8_u128 << 96 | u128::from(a)).into()),
            };
            FlowKey {
                local: ip(0x0a00_0001),
                remote: ip(remote),
                local_port: 80,
                remote_port: port,
            }
        };
        let bits = |h: u64| (h & 0x3f, h >> 57);
        let first = bits(table_hash(secret, &flow(0)));
        let same = |k: &FlowKey| bits(table_hash(secret, k)) == first;
        (0..).map(flow).filter(same).take(n).collect()
    }

    #[test]
    fn chosen_tuples_collide_only_under_the_key_that_they_were_chosen_for() {
        for wide in [false, true] {
            let known = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
            let keys = chosen(known, 200, wide);
            // Who knows the key makes a list of the table.
            let flooded = dearest(known, &keys);
            assert!(flooded >= 20, "{flooded}: the tuples were not chosen well");
            // The table's own key is drawn by chance, for each stack anew.
            let mut x = 1u64;
            for _ in 0..100 {
                let mut next = || {
                    x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    x ^ x >> 29
                };
                let secret = [next(), next()];
                let n = dearest(secret, &keys);
                assert!(n <= 6, "{secret:x?}: {n}");
            }
        }
    }

    #[test]
    fn each_stack_draws_a_key_of_its_own() {
        use crate::kind::OneThread;
        use perimeter_sync::Native;
        let shared = || {
            let config = crate::shared::Config::default();
            SharedState::<OneThread>::new(Native::default(), config, Vec::new(), Vec::new())
        };
        let (a, b) = (shared(), shared());
        assert!(a.secret[0] != b.secret[0] && a.secret[1] != b.secret[1]);
    }
}
