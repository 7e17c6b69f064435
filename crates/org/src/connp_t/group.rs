//! How a protocol thread works off what was sent to it.

use super::cell::Keep;
use super::inbox::{ALONE, Outlet};
use super::jobs::{Accept, Followed, Strayed, TakeOver};
use super::thread::{At, ConnpT, Gathering, Group, Msg, NOBODY, Next};
use crate::Kd;
use perimeter_stack::{Count, Ctx, Seg, Shard, SharedState, SockId};
use perimeter_sync::{Platform, Work};
use perimeter_wire::{FlowKey, Seq, TcpFlags};
use std::collections::VecDeque;

/// How many messages a thread runs before it rings doorbells and wakes sleepers.
const BATCH: usize = 64;

impl<C: Keep> Group<C> {
    pub(super) fn new(index: usize, shard: Shard<Kd<C::P>, C>, outlet: Outlet<Msg<C>>) -> Group<C> {
        Group {
            index,
            shard,
            outlet,
            mine: None,
            incomplete: Vec::new(),
            gathering: Vec::new(),
            held: VecDeque::new(),
            batch: Vec::with_capacity(BATCH),
            due: Vec::new(),
        }
    }

    /// Links a connection whose owner is not known yet.
    pub(super) fn bind(&mut self, key: &FlowKey) {
        self.incomplete.push(*key);
    }

    /// Its owner is known: it leaves this table.
    pub(super) fn unlink(&mut self, key: &FlowKey) {
        if let Some(i) = self.incomplete.iter().position(|k| k == key) {
            self.incomplete.swap_remove(i);
        }
    }

    /// Whether there is nothing that its thread would be needed for, beside messages.
    pub(super) fn is_idle(&self) -> bool {
        self.shard.is_empty() && self.gathering.is_empty() && self.held.is_empty()
    }

    /// Sends timer messages that are due, then runs messages, first in, first out; returns how
    /// many of both, and of those that wait to be sent on.
    pub(super) fn turn(&mut self, org: &ConnpT<C>, cx: &mut Ctx<Kd<C::P>>) -> usize {
        let fired = self.expire(org, cx);
        let mut batch = core::mem::take(&mut self.batch);
        let inbox = &org.owners[self.index].inbox;
        let n = inbox.take(&mut self.outlet, &mut batch, BATCH);
        for msg in batch.drain(..) {
            self.run(msg, org, cx);
        }
        self.batch = batch;
        while let Some((to, msg)) = self.held.pop_front() {
            if n > 0 && org.owners[to].inbox.is_crowded() {
                self.held.push_front((to, msg));
                break;
            }
            org.send(cx.sh, to, msg);
        }
        n + fired + self.held.len()
    }

    /// What DragonFly's callout does on the owner's core: marks in the message of each
    /// connection what is due, and sends it unless it is on its way.
    fn expire(&mut self, org: &ConnpT<C>, cx: &mut Ctx<Kd<C::P>>) -> usize {
        let now = cx.now();
        if now < self.shard.next_timer() {
            return 0;
        }
        let mut due = core::mem::take(&mut self.due);
        self.shard.expire(cx, |c, _| {
            let bits = c.peek().tcb.timers_due(now);
            let id = c.peek().meta.id;
            let timers = c.message();
            if *timers == 0 {
                due.push(id);
            }
            *timers |= bits;
            false
        });
        let fired = due.len();
        for id in due.drain(..) {
            // To itself, and it is awake.
            let _ = org.owners[self.index].inbox.put(Msg::Timers(id));
        }
        self.due = due;
        fired
    }

    fn run(&mut self, msg: Msg<C>, org: &ConnpT<C>, cx: &mut Ctx<Kd<C::P>>) {
        match msg {
            Msg::Packet(seg) if org.demux.is_some() => self.packet(seg, org, cx),
            Msg::Packet(mut seg) => {
                self.shard.input(cx, &mut seg);
                seg.release(&mut cx.pool);
                org.segs.put(seg);
            }
            Msg::Burst(mut segs) => {
                segs.drain(|seg| self.shard.input(cx, seg));
                org.bursts.put(segs);
                // A batch of bursts is thousands of segments: what one pins bounds the next.
                cx.sh.book(cx.own);
            }
            Msg::Timers(id) => self.shard.timer(cx, id, |c| *c.message() = 0),
            Msg::Job(mut job, who) => {
                let next = job.run(&mut At {
                    group: self,
                    org,
                    cx: cx.again(),
                });
                match next {
                    Next::To(thread) => self.forward(org, cx.sh, thread, Msg::Job(job, who)),
                    Next::Done if who == NOBODY => {}
                    Next::Done if who as usize == cx.lane => self.mine = Some(job),
                    Next::Done => org.answer(who, job),
                }
            }
        }
    }

    /// `per-connection`: a segment came from a device. If older ones of its flow may still be on
    /// their way here by its former thread, it waits for them.
    fn packet(&mut self, seg: Box<Seg>, org: &ConnpT<C>, cx: &mut Ctx<Kd<C::P>>) {
        let key = seg.frame.key;
        match self.gathering.iter().position(|g| g.key == key) {
            Some(i) => self.gather(i, seg, org, cx),
            None => self.segment(seg, None, org, cx),
        }
    }

    fn gather(&mut self, at: usize, mut seg: Box<Seg>, org: &ConnpT<C>, cx: &mut Ctx<Kd<C::P>>) {
        let segs = &mut self.gathering[at].segs;
        if segs.len() < ALONE {
            return segs.push(seg);
        }
        cx.count(Count::NetisrFull, 1);
        seg.release(&mut cx.pool);
        org.segs.put(seg);
    }

    /// A connection is about to be made here whose flow came to this thread a moment ago.
    pub(super) fn await_others(&mut self, key: FlowKey) {
        if !self.gathering.iter().any(|g| g.key == key) {
            self.gathering.push(Gathering {
                key,
                segs: Vec::new(),
            });
        }
    }

    /// What came by the flow's former thread is here: what came directly is next.
    pub(super) fn all_here(&mut self, key: &FlowKey, org: &ConnpT<C>, cx: &mut Ctx<Kd<C::P>>) {
        if let Some(i) = self.gathering.iter().position(|g| g.key == *key) {
            for seg in self.gathering.swap_remove(i).segs {
                self.segment(seg, None, org, cx);
            }
        }
    }

    /// `per-connection`: runs a segment here, or sends it to where its connection is. `iss`: it
    /// takes over a connection in TIME-WAIT.
    pub(super) fn segment(
        &mut self,
        seg: Box<Seg>,
        iss: Option<Seq>,
        org: &ConnpT<C>,
        cx: &mut Ctx<Kd<C::P>>,
    ) {
        if iss.is_none() && self.index >= org.permanent && self.would_take_over(&seg) {
            let to = org.home(seg.hash);
            let ask = Msg::Job(Box::new(TakeOver::new(seg, self.index)), NOBODY);
            return self.forward(org, cx.sh, to, ask);
        }
        self.arrived(seg, iss, org, cx);
    }

    /// Whether it is a SYN that takes over a connection of this thread in TIME-WAIT, if somebody
    /// listens.
    fn would_take_over(&self, seg: &Seg) -> bool {
        let hdr = &seg.frame.hdr;
        hdr.flags.contains(TcpFlags::SYN)
            && self
                .shard
                .lookup(&seg.frame.key)
                .and_then(|id| self.shard.peek(id))
                .is_some_and(|c| c.peek().tcb.time_wait_reuse(hdr).is_some())
    }

    /// As [`Group::segment`], where it is known whether somebody listens for it.
    pub(super) fn arrived(
        &mut self,
        mut seg: Box<Seg>,
        mut iss: Option<Seq>,
        org: &ConnpT<C>,
        cx: &mut Ctx<Kd<C::P>>,
    ) {
        let Some(d) = &org.demux else { return };
        let (key, me) = (seg.frame.key, self.index);
        cx.sh.p.charge(Work::Lookup, 1);
        let nobody = SockId::conn(me as u16, 0, 0);
        match self.shard.input_for(cx, nobody, &mut seg) {
            Ok(()) => {
                seg.release(&mut cx.pool);
                return org.segs.put(seg);
            }
            Err(over) => iss = iss.or(over),
        }
        let to = match d.find(&key) {
            // The flow comes here, but the message is still on its way that makes the connection.
            Some(to) if to == me => {
                self.await_others(key);
                return self.packet(seg, org, cx);
            }
            Some(to) => to,
            // Handshakes are the business of the thread that the hash names.
            None => org.home(seg.hash),
        };
        if to != me {
            let strayed = Box::new(Strayed(Some(seg), iss));
            return self.forward(org, cx.sh, to, Msg::Job(strayed, NOBODY));
        }
        if let Some((listener, e)) = self.shard.passive().segment(cx, &seg, iss) {
            let to = d.pick(org.preferred(seg.hash));
            if to != me && d.claim(key, to) {
                let seg = Some(seg);
                let accept = Box::new(Accept { listener, e, seg });
                self.forward(org, cx.sh, to, Msg::Job(accept, NOBODY));
                // Behind the segments of this flow that are here.
                let last = Msg::Job(Box::new(Followed { key, to }), NOBODY);
                return org.send(cx.sh, me, last);
            }
            // Somebody has connected from here to there at the same moment: the flow exists.
            if to == me {
                self.shard.establish(cx, listener, &e, &mut seg);
            }
            d.left(to);
        }
        seg.release(&mut cx.pool);
        org.segs.put(seg);
    }

    /// Sends a message on, unless there are too many before it: then this thread works off its
    /// own first, lest two of them wait for each other.
    fn forward(&mut self, org: &ConnpT<C>, sh: &SharedState<Kd<C::P>>, to: usize, msg: Msg<C>) {
        if self.held.is_empty() && !org.owners[to].inbox.is_crowded() {
            org.send(sh, to, msg);
        } else {
            self.held.push_back((to, msg));
        }
    }
}
