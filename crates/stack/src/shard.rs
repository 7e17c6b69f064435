//! A perimeter whole: connection table, connections, timers, SYN cache and wildcard listeners
//! that one owner, or one lock, protects together. Organizations that group connections own
//! one or many.

use crate::commons::Commons;
use crate::conn::{Conn, Meta, RcvSide, Seg, SndSide, TcbSide, on_events};
use crate::count::Count;
use crate::glue;
use crate::id::{SockId, Slots};
use crate::kind::{Ctx, Kind};
use crate::listener::{Listener, Wildcards};
use crate::ops::{self, Icmp, Op};
use crate::ready;
use crate::wheel::{Due, Wheel};
use core::net::IpAddr;
use hashbrown::HashTable;
use perimeter_base::{Bytes, Time};
use perimeter_sync::{Platform, Work};
use perimeter_tcp::syncache::{AckAction, Established, SynAction};
use perimeter_tcp::{Config, Events, SynCache, Tcb};
use perimeter_wire::{FlowKey, MacAddr, Seq, TcpFlags, Template};
use std::sync::Arc;

/// Connections and all that belongs to them.
pub struct Shard<K: Kind> {
    index: u16,
    conns: Slots<Conn<K>>,
    table: HashTable<u32>,
    secret: [u64; 2],
    wheel: Wheel,
    syn: SynCache,
    wildcards: Wildcards<K>,
    orphans: usize,
    /// Pages of connections that have gone, which a device may still be reading.
    graveyard: Vec<(u16, u64, Bytes)>,
}

/// The flow exists already.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Exists;

/// A keyed hash of a flow for a table: two multiplications for IPv4. Keyed, so that chosen
/// tuples do not slow the lookup.
pub fn table_hash(secret: [u64; 2], key: &FlowKey) -> u64 {
    let ports = u64::from(key.local_port) << 16 | u64::from(key.remote_port);
    let fold = |a: u64, b: u64| {
        let m = u128::from(a) * u128::from(b);
        (m >> 64) as u64 ^ m as u64
    };
    match (key.local, key.remote) {
        (IpAddr::V4(l), IpAddr::V4(r)) => {
            let addrs = u64::from(u32::from(l)) << 32 | u64::from(u32::from(r));
            fold(fold(addrs ^ secret[0], ports ^ secret[1]), secret[0] | 1)
        }
        (l, r) => {
            let wide = |ip: IpAddr| match ip {
                IpAddr::V4(a) => u128::from(a.to_ipv6_mapped()),
                IpAddr::V6(a) => u128::from(a),
            };
            let mut h = ports ^ secret[1];
            for word in [wide(l), wide(r)] {
                h = fold((word >> 64) as u64 ^ secret[0], h ^ word as u64);
            }
            fold(h, secret[0] | 1)
        }
    }
}

impl<K: Kind> Shard<K> {
    /// An empty shard, number `index`.
    pub fn new(index: u16, sh: &Commons<K>) -> Shard<K> {
        let [k0, k1] = sh.secret;
        Shard {
            index,
            conns: Slots::default(),
            table: HashTable::new(),
            secret: sh.secret,
            wheel: Wheel::new(sh.p.now()),
            syn: SynCache::new(sh.config.syn_buckets, sh.config.syn_depth, k0 ^ 0x5a5a, k1),
            wildcards: Wildcards::default(),
            orphans: 0,
            graveyard: Vec::new(),
        }
    }

    fn find(&self, key: &FlowKey) -> Option<u32> {
        let conns = &self.conns;
        self.table
            .find(table_hash(self.secret, key), |&s| {
                conns.peek(s).is_some_and(|c| c.tcb.meta.key == *key)
            })
            .copied()
    }

    /// A segment arrived.
    pub fn input(&mut self, sh: &Commons<K>, cx: &mut Ctx<K>, seg: Seg) {
        sh.p.charge(Work::Lookup, 1);
        let Some(slot) = self.find(&seg.key) else {
            return self.no_connection(sh, cx, seg, None);
        };
        let Some(conn) = self.conns.at(slot) else {
            return;
        };
        // RFC 9293, section 3.10.7.4, and RFC 6191: a new SYN may take over a connection that
        // waits in TIME-WAIT.
        if seg.hdr.flags.contains(TcpFlags::SYN)
            && let Some(iss) = conn.tcb.tcb.time_wait_reuse(&seg.hdr)
        {
            on_events(conn, Events::CLOSED, cx);
            self.settle(slot, sh, cx);
            return self.no_connection(sh, cx, seg, Some(iss));
        }
        glue::input(conn, sh, cx, seg);
        self.settle(slot, sh, cx);
    }

    /// After anything that may have moved a connection's deadline or ended it.
    #[inline]
    fn settle(&mut self, slot: u32, sh: &Commons<K>, cx: &mut Ctx<K>) {
        let Some(conn) = self.conns.at(slot) else {
            return;
        };
        let meta = &mut conn.tcb.meta;
        if meta.closed {
            return self.unlink(slot, sh, cx);
        }
        let deadline = conn.tcb.tcb.deadline();
        if deadline < meta.armed {
            meta.armed = deadline;
            let due = Due { slot, generation: meta.id.generation(), at: deadline };
            self.wheel.insert(due);
        }
    }

    /// The connection is over: out of the table; and away, if no application holds it.
    fn unlink(&mut self, slot: u32, sh: &Commons<K>, cx: &mut Ctx<K>) {
        let Some(conn) = self.conns.at(slot) else {
            return;
        };
        let (key, id, orphan) = (conn.tcb.meta.key, conn.tcb.meta.id, conn.tcb.meta.orphan);
        let entry = self.table.find_entry(table_hash(self.secret, &key), |&s| s == slot);
        if let Ok(e) = entry {
            e.remove();
        }
        if !orphan {
            return;
        }
        if let Some(conn) = self.conns.remove(slot, id.generation()) {
            self.orphans = self.orphans.saturating_sub(1);
            self.bury(conn, sh, cx);
        }
    }

    /// Gives back what a connection held, keeping pages that a device may still read.
    fn bury(&mut self, mut conn: Conn<K>, sh: &Commons<K>, cx: &mut Ctx<K>) {
        let memory = conn.snd.memory() + conn.rcv.buf.memory();
        sh.charge(cx.lane, memory, 0);
        let (txq, ticket) = (conn.tcb.meta.txq, conn.tcb.meta.ticket);
        let completed = sh.tx[usize::from(txq)].completed();
        if completed < ticket {
            let graveyard = &mut self.graveyard;
            conn.snd.buf.clear(&mut |page| graveyard.push((txq, ticket, page)));
            for (ticket, _, page) in conn.snd.held.drain(..) {
                graveyard.push((txq, ticket, page));
            }
        }
        self.graveyard.retain(|(q, t, _)| sh.tx[usize::from(*q)].completed() < *t);
    }

    /// A segment without a connection: for the SYN cache, a listener, or nobody. `iss` is given
    /// when it takes over a connection in TIME-WAIT.
    #[cold]
    fn no_connection(
        &mut self,
        sh: &Commons<K>,
        cx: &mut Ctx<K>,
        seg: Seg,
        iss: Option<Seq>,
    ) {
        let now = cx.now(&sh.p);
        let (key, flags) = (seg.key, seg.hdr.flags);
        if flags.contains(TcpFlags::RST) {
            self.syn.on_rst(&key, &seg.hdr);
            sh.count(cx.lane, Count::NoConnection, 1);
            return;
        }
        if flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK) {
            let Some(l) = self.wildcards.find(key.local, key.local_port) else {
                return sh.refuse(cx, &seg);
            };
            let iss = iss.unwrap_or_else(|| sh.isn.iss(&key, now));
            let ts = sh.isn.ts_offset(&key);
            match self.syn.on_syn(key, &seg.hdr, &l.params(), iss, ts, now) {
                SynAction::SendSynAck(out) => sh.reply(cx, &key, seg.hash, &out),
                SynAction::Drop(_) => sh.count(cx.lane, Count::SynDropped, 1),
            }
            return;
        }
        match self.syn.on_ack(&key, &seg.hdr, now) {
            AckAction::Established(e) => self.accept(sh, cx, seg, &e),
            AckAction::Rst(seq) => {
                let rst = perimeter_tcp::Rst::new(seq, None);
                sh.reply(cx, &key, seg.hash, &rst.seg());
            }
            AckAction::Ignore => {}
            AckAction::None => sh.refuse(cx, &seg),
        }
    }

    /// The handshake of a passive open is complete.
    fn accept(&mut self, sh: &Commons<K>, cx: &mut Ctx<K>, seg: Seg, e: &Established) {
        let now = cx.now(&sh.p);
        let Some(l) = self.wildcards.find(seg.key.local, seg.key.local_port).cloned() else {
            return sh.refuse(cx, &seg);
        };
        if l.full() {
            self.syn.put_back(seg.key, e, now);
            sh.count(cx.lane, Count::SynDropped, 1);
            return;
        }
        let tcb = Tcb::accept(&l.config, e, now);
        let Ok(id) = self.insert(sh, &l.config, seg.key, seg.hash, seg.iface, tcb) else {
            return sh.refuse(cx, &seg);
        };
        let Some(conn) = self.conns.at(id.slot()) else {
            return;
        };
        conn.snd.side.raise(ready::OUT, cx);
        glue::input(conn, sh, cx, seg);
        cx.after.accepts.push((l, id));
        self.settle(id.slot(), sh, cx);
    }

    fn insert(
        &mut self,
        sh: &Commons<K>,
        config: &Config,
        key: FlowKey,
        hash: u32,
        iface: u16,
        tcb: Tcb,
    ) -> Result<SockId, Exists> {
        if self.find(&key).is_some() {
            return Err(Exists);
        }
        let shard = self.index;
        let txq = sh.ifaces[usize::from(iface)].txq(hash);
        let make = |slot, generation| Conn {
            tcb: TcbSide {
                tcb,
                meta: Meta {
                    id: SockId::conn(shard, slot, generation),
                    key,
                    hash,
                    template: Template::new_v4(
                        Some((MacAddr::UNSPECIFIED, MacAddr::UNSPECIFIED)),
                        &key,
                        sh.config.ttl,
                        0,
                        true,
                    ),
                    tos: 0,
                    txq,
                    net_generation: 0,
                    ident: hash as u16 ^ sh.secret[1] as u16,
                    ticket: 0,
                    armed: Time::NEVER,
                    orphan: false,
                    closed: false,
                    blocked: false,
                    linger: None,
                    listener: None,
                    ephemeral: false,
                },
            },
            snd: SndSide::new(config.snd_buf),
            rcv: RcvSide::new(config.rcv_buf, config.mss),
        };
        let (slot, generation) = self.conns.insert_with(make).ok_or(Exists)?;
        let (secret, conns) = (self.secret, &self.conns);
        self.table.insert_unique(table_hash(secret, &key), slot, |&s| {
            conns.peek(s).map_or(0, |c| table_hash(secret, &c.tcb.meta.key))
        });
        Ok(SockId::conn(shard, slot, generation))
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// The flow exists.
    pub fn connect(
        &mut self,
        sh: &Commons<K>,
        cx: &mut Ctx<K>,
        key: FlowKey,
        hash: u32,
        iface: u16,
        config: &Config,
    ) -> Result<SockId, Exists> {
        let now = cx.now(&sh.p);
        let tcb = Tcb::connect(config, sh.isn.iss(&key, now), sh.isn.ts_offset(&key), now);
        let id = self.insert(sh, config, key, hash, iface, tcb)?;
        if let Some(conn) = self.conns.at(id.slot()) {
            glue::output(conn, sh, cx);
        }
        self.settle(id.slot(), sh, cx);
        Ok(id)
    }

    /// Runs a socket operation; `None`: the socket has gone.
    pub fn call<Q: Op<K>>(
        &mut self,
        sh: &Commons<K>,
        cx: &mut Ctx<K>,
        id: SockId,
        op: Q,
    ) -> Option<Q::Out> {
        let conn = self.conns.get_mut(id.slot(), id.generation());
        let Some(conn) = conn.filter(|c| !c.tcb.meta.orphan) else {
            sh.count(cx.lane, Count::StaleHandle, 1);
            return None;
        };
        let out = ops::run(conn, op, sh, cx);
        if conn.tcb.meta.orphan {
            let now = cx.now(&sh.p);
            self.orphans += 1;
            if self.orphans > sh.config.orphans && !conn.tcb.meta.closed {
                sh.count(cx.lane, Count::OrphansReset, 1);
                if let Some(rst) = conn.tcb.tcb.abort(now) {
                    glue::reset(conn, sh, cx, rst);
                }
                conn.tcb.meta.closed = true;
            }
        }
        self.settle(id.slot(), sh, cx);
        Some(out)
    }

    /// Runs an operation that the stack itself posted, also on orphans.
    pub fn posted<Q: Op<K, Out = ()>>(
        &mut self,
        sh: &Commons<K>,
        cx: &mut Ctx<K>,
        id: SockId,
        op: Q,
    ) {
        match self.conns.get_mut(id.slot(), id.generation()) {
            Some(conn) => {
                let orphan = conn.tcb.meta.orphan;
                ops::run(conn, op, sh, cx);
                self.orphans += usize::from(conn.tcb.meta.orphan && !orphan);
                self.settle(id.slot(), sh, cx);
            }
            None => sh.count(cx.lane, Count::StaleHandle, 1),
        }
    }

    /// An ICMP error for the flow `key`.
    pub fn icmp(&mut self, sh: &Commons<K>, cx: &mut Ctx<K>, key: &FlowKey, what: Icmp) {
        let Some(slot) = self.find(key) else {
            if let Icmp::Unreachable(_, seq) = what {
                self.syn.on_unreachable(key, seq);
            }
            return;
        };
        if let Some(conn) = self.conns.at(slot) {
            sh.count(cx.lane, Count::IcmpErrors, 1);
            ops::icmp(conn, what, sh, cx);
            self.settle(slot, sh, cx);
        }
    }

    /// Adds a listener's wildcard entry.
    pub fn listen(&mut self, l: Arc<Listener<K>>) {
        self.wildcards.insert(l);
    }

    /// Removes a listener's wildcard entry, and the handshakes under way for it.
    pub fn unlisten(&mut self, l: &Listener<K>) {
        self.wildcards.remove(l.id, l.port);
        let (port, wildcards) = (l.port, &self.wildcards);
        self.syn.remove_if(&mut |key| {
            key.local_port == port
                && l.matches(key.local)
                && wildcards.find(key.local, port).is_none()
        });
    }

    /// Runs what is due.
    pub fn on_timers(&mut self, sh: &Commons<K>, cx: &mut Ctx<K>) {
        let now = cx.now(&sh.p);
        let mut due = core::mem::take(&mut cx.due);
        self.wheel.expire(now, &mut due);
        for d in due.drain(..) {
            let conn = self.conns.get_mut(d.slot, d.generation);
            let Some(conn) = conn.filter(|c| c.tcb.meta.armed == d.at) else {
                sh.count(cx.lane, Count::StaleTimer, 1);
                continue;
            };
            conn.tcb.meta.armed = Time::NEVER;
            if conn.tcb.tcb.deadline() <= now {
                glue::timer(conn, sh, cx);
            }
            self.settle(d.slot, sh, cx);
        }
        cx.due = due;
        if self.syn.deadline() <= now {
            self.syn.on_timer(now, &mut |key, out| {
                sh.reply(cx, key, sh.flow_hash(key), &out);
            });
        }
        if !self.graveyard.is_empty() {
            self.graveyard.retain(|(q, t, _)| sh.tx[usize::from(*q)].completed() < *t);
        }
    }

    /// When [`Shard::on_timers`] has something to do.
    pub fn next_timer(&self) -> Time {
        self.wheel.next().min(self.syn.deadline())
    }

    /// Runs `f` on every connection.
    pub fn for_each(&mut self, f: &mut dyn FnMut(&mut Conn<K>)) {
        for slot in 0..self.conns.places() {
            if let Some(c) = self.conns.at(slot) {
                f(c);
            }
        }
    }

    /// Resets every connection: the stack is being dropped.
    pub fn abort_all(&mut self, sh: &Commons<K>, cx: &mut Ctx<K>) {
        let now = cx.now(&sh.p);
        for slot in 0..self.conns.places() {
            if let Some(conn) = self.conns.at(slot) {
                if let Some(rst) = conn.tcb.tcb.abort(now) {
                    glue::reset(conn, sh, cx, rst);
                }
                conn.snd.side.finish(cx);
                conn.rcv.side.finish(cx);
                conn.tcb.meta.closed = true;
                conn.tcb.meta.orphan = true;
                self.orphans += 1;
                self.unlink(slot, sh, cx);
            }
        }
    }

    /// How many connections there are, those that linger included.
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// Handshakes under way.
    pub fn half_open(&self) -> usize {
        self.syn.len()
    }
}
