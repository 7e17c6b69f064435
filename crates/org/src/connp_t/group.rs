//! What a protocol thread owns, and how it works off what was sent to it.

use super::cell::Keep;
use super::inbox::Outlet;
use super::message::{At, Job, Msg, NOBODY, Next};
use super::{ConnpT, Kd};
use perimeter_stack::{Commons, Ctx, Shard, SockId};
use perimeter_wire::FlowKey;
use std::collections::VecDeque;

/// How many messages a thread runs before it rings doorbells and wakes sleepers.
const BATCH: usize = 64;

/// A protocol thread's own: nobody else touches it.
pub(super) struct Group<C: Keep> {
    /// The thread's number.
    pub(super) index: usize,
    pub(super) shard: Shard<Kd<C::P>, C>,
    pub(super) outlet: Outlet<C>,
    /// The answer to the thread that runs this group in its own name.
    pub(super) mine: Option<Box<dyn Job<C>>>,
    /// Thread 0: connections being opened whose owner is not known yet.
    incomplete: Vec<FlowKey>,
    /// To be sent on when this thread has worked off its own.
    held: VecDeque<(usize, Msg<C>)>,
    /// Messages taken and not yet run; empty between turns.
    batch: Vec<Msg<C>>,
    /// Connections with timers due; empty between turns.
    due: Vec<SockId>,
}

impl<C: Keep> Group<C> {
    pub(super) fn new(index: usize, shard: Shard<Kd<C::P>, C>, outlet: Outlet<C>) -> Group<C> {
        Group {
            index,
            shard,
            outlet,
            mine: None,
            incomplete: Vec::new(),
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

    /// Sends timer messages that are due, then runs messages, first in, first out; returns how
    /// many of both, and of those that wait to be sent on.
    pub(super) fn turn(
        &mut self,
        org: &ConnpT<C>,
        sh: &Commons<Kd<C::P>>,
        cx: &mut Ctx<Kd<C::P>>,
    ) -> usize {
        let fired = self.expire(org, sh, cx);
        let mut batch = core::mem::take(&mut self.batch);
        let inbox = &org.owners[self.index].inbox;
        let n = inbox.take(&mut self.outlet, &mut batch, BATCH);
        for msg in batch.drain(..) {
            self.run(msg, org, sh, cx);
        }
        self.batch = batch;
        while let Some((to, msg)) = self.held.pop_front() {
            if n > 0 && org.owners[to].inbox.is_crowded() {
                self.held.push_front((to, msg));
                break;
            }
            org.send(sh, to, msg);
        }
        n + fired + self.held.len()
    }

    /// What DragonFly's callout does on the owner's core: marks in the message of each
    /// connection what is due, and sends it unless it is on its way.
    fn expire(&mut self, org: &ConnpT<C>, sh: &Commons<Kd<C::P>>, cx: &mut Ctx<Kd<C::P>>) -> usize {
        let now = cx.now(&sh.p);
        if now < self.shard.next_timer() {
            return 0;
        }
        let mut due = core::mem::take(&mut self.due);
        self.shard.expire(sh, cx, |c| {
            let bits = c.peek().tcb.timers_due(now);
            let id = c.peek().meta.id;
            let timers = c.message();
            if *timers == 0 {
                due.push(id);
            }
            *timers |= bits;
        });
        let fired = due.len();
        for id in due.drain(..) {
            // To itself, and it is awake.
            let _ = org.owners[self.index].inbox.put(Msg::Timers(id));
        }
        self.due = due;
        fired
    }

    fn run(
        &mut self,
        msg: Msg<C>,
        org: &ConnpT<C>,
        sh: &Commons<Kd<C::P>>,
        cx: &mut Ctx<Kd<C::P>>,
    ) {
        match msg {
            Msg::Packet(mut seg) => {
                self.shard.input(sh, cx, &mut seg);
                cx.pool.put(core::mem::take(&mut seg.payload));
                org.segs.put(seg);
            }
            Msg::Burst(mut segs) => {
                segs.drain(|seg| self.shard.input(sh, cx, seg));
                org.bursts.put(segs);
            }
            Msg::Timers(id) => self.shard.timer(sh, cx, id, |c| *c.message() = 0),
            Msg::Job(mut job, who) => {
                let next = job.run(&mut At {
                    group: self,
                    org,
                    sh,
                    cx,
                });
                match next {
                    Next::To(thread) => self.forward(org, sh, thread, Msg::Job(job, who)),
                    Next::Done if who == NOBODY => {}
                    Next::Done if who as usize == cx.lane => self.mine = Some(job),
                    Next::Done => org.answer(who, job),
                }
            }
        }
    }

    /// Sends a message on, unless there are too many before it: then this thread works off its
    /// own first, lest two of them wait for each other.
    fn forward(&mut self, org: &ConnpT<C>, sh: &Commons<Kd<C::P>>, to: usize, msg: Msg<C>) {
        if self.held.is_empty() && !org.owners[to].inbox.is_crowded() {
            org.send(sh, to, msg);
        } else {
            self.held.push_back((to, msg));
        }
    }
}
