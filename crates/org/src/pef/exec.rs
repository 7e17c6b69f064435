//! The executor (section 3.2.4): runs the events of a packet's list in order, each under its
//! perimeter.
//!
//! A perimeter is never entered from within another. The packet is left as a message with the
//! next perimeter, *inside* the present one, so that packets of a connection are left in their
//! order; and the thread turns to the perimeters where it has left messages once it has released
//! the present one, if they are its core's. Otherwise their workers do.

use super::event::{Direction, Layer, Verdict};
use super::framework::{Body, Env, Inner, Msg, Pef, Pkt};
use super::link::{Version, Way};
use super::list::Callback;
use crate::squeue::counted;
use crate::squeue::queue::{Entered, Inside, Proc, SqueueEntry, Who};
use core::sync::atomic::Ordering;
use perimeter_stack::segment::Apart;
use perimeter_stack::{SockId, late, output};
use perimeter_sync::Platform;

impl<P: Platform> Pef<P> {
    /// Whether this thread may run squeue `q`: any thread may where all layers of a connection
    /// share one; where they are spread, each squeue runs on its own core, as long as the
    /// workers are there.
    fn may_run(&self, env: &Env<'_, P>, q: u16) -> bool {
        !self.spread
            || env.cx.sh.p.core() == self.squeues[usize::from(q)].core()
            || self.stopped.load(Ordering::Relaxed)
    }

    /// Enters squeue `q` to run `f` there if it is idle and this thread may; else gives the door
    /// to leave a message at.
    pub(super) fn enter(&self, env: &Env<'_, P>, q: u16) -> Entered<'_, P, Inner<P>> {
        let entry = if self.may_run(env, q) {
            SqueueEntry::Process
        } else {
            SqueueEntry::Fill
        };
        self.squeues[usize::from(q)].enter(entry)
    }

    /// Brings a message to squeue `q`, from outside any perimeter.
    pub(super) fn bring(&self, env: &mut Env<'_, P>, q: u16, msg: Msg<P>) {
        match self.enter(env, q) {
            Entered::In(mut proc) => {
                env.cx.count_own(counted::INLINE, 1);
                self.message(env, q, &mut proc, msg);
                self.release(env, q, proc);
            }
            Entered::Busy(door) => {
                if let Some(proc) = door.put(msg) {
                    self.release(env, q, proc);
                }
            }
        }
    }

    /// Releases squeue `q`, after what came meanwhile.
    pub(super) fn release(&self, env: &mut Env<'_, P>, q: u16, proc: Proc<'_, P, Inner<P>>) {
        let who = env.who;
        let n = proc.leave(who, |inside, msg| self.message(env, q, inside, msg));
        if n > 0 {
            env.cx.count_own(counted::DRAINED, n as u64);
        }
    }

    /// Works off what waits at squeue `q`, if nobody else is at it.
    pub(super) fn work_off(&self, env: &mut Env<'_, P>, q: u16) -> usize {
        let who = env.who;
        let squeue = &self.squeues[usize::from(q)];
        let n = squeue.work(who, |inside, msg| self.message(env, q, inside, msg));
        let count = match who {
            Who::Worker => counted::WORKER,
            Who::Inbound | Who::Writer => counted::DRAINED,
        };
        if n > 0 {
            env.cx.count_own(count, n as u64);
        }
        n
    }

    /// No perimeter is held any more: turns to those where messages were left, and to packets
    /// whose next event runs outside any.
    pub(super) fn finish(&self, env: &mut Env<'_, P>) {
        loop {
            if let Some(q) = env.visits.pop() {
                self.work_off(env, q);
            } else if let Some(mut pkt) = env.outside.pop_front() {
                self.go(env, None, &mut pkt);
            } else {
                break;
            }
        }
    }

    /// Leaves a message at squeue `q` from within another, or from outside any. The thread sees
    /// to it after release, or the worker is told.
    pub(super) fn post(&self, env: &mut Env<'_, P>, q: u16, msg: Msg<P>) {
        let squeue = &self.squeues[usize::from(q)];
        if self.may_run(env, q) {
            squeue.push(msg);
            if !env.visits.contains(&q) {
                env.visits.push(q);
            }
        } else if let Entered::Busy(door) = squeue.enter(SqueueEntry::Fill) {
            let _ = door.put(msg);
        }
    }

    /// A message has its turn.
    fn message(&self, env: &mut Env<'_, P>, q: u16, inside: &mut Inside<Inner<P>>, msg: Msg<P>) {
        match msg {
            Msg::Packet(mut pkt) => self.go(env, Some((q, inside)), &mut pkt),
            Msg::NoSocket(mut seg, iss) => self.no_socket_here(env, q, inside, &mut seg, iss),
            Msg::Job(f) => f(self, env, q, inside),
        }
        self.after(env, q, inside);
    }

    /// After anything that ran under squeue `q`: what TCP has left for other layers goes on its
    /// way, and timers are noted.
    #[inline]
    pub(super) fn after(&self, env: &mut Env<'_, P>, q: u16, inner: &mut Inner<P>) {
        if !env.cx.apart.is_empty() {
            self.hand_on(env, q, inner);
        }
        let due = inner.shard.next_timer();
        // Also where nothing was armed: the inbound thread has left the timers to this one, and
        // knows of none meanwhile.
        if self.due[usize::from(q)].publish(&env.cx.sh.p, due) {
            env.cx.deferred.armed = env.cx.deferred.armed.min(due);
        }
    }

    /// What TCP has left by itself (after timers, calls) goes on its way.
    fn hand_on(&self, env: &mut Env<'_, P>, q: u16, inner: &mut Inner<P>) {
        let mut all = core::mem::take(&mut env.cx.apart);
        for mut a in all.drain(..) {
            let version = self.version_of(inner, a.id);
            let up = core::mem::take(&mut a.up);
            let (id, key) = (a.id, a.key);
            self.start_chain(env, (q, &mut *inner), &version, a);
            if !up.is_empty() {
                let body = Body::Up(key, None, up);
                self.start_up(env, (q, inner), &version, id, body);
            }
        }
        env.cx.apart = all;
    }

    /// By which version TCP hands on. A connection that is over already hands on its last words
    /// by that which it started with.
    pub(super) fn version_of(&self, inner: &Inner<P>, id: SockId) -> Version {
        match inner.shard.peek(id) {
            Some(m) => m.points.version().clone(),
            None => self.first_version(id),
        }
    }

    /// Segments that TCP has made start behind it on the transmit list.
    pub(super) fn start_chain(
        &self,
        env: &mut Env<'_, P>,
        at: (u16, &mut Inner<P>),
        version: &Version,
        a: Box<Apart>,
    ) {
        if a.out.segs.is_empty() {
            return env.cx.spare(a);
        }
        let id = a.id;
        let body = Body::Chain(a);
        let mut pkt = self.packet(id, version, Direction::Transmit, Way::On, body);
        pkt.next = version.transmit.after_tcp();
        self.go(env, Some(at), &mut pkt);
    }

    /// A packet at the beginning of its list.
    pub(super) fn packet(
        &self,
        id: SockId,
        version: &Version,
        direction: Direction,
        way: Way,
        body: Body<P>,
    ) -> Pkt<P> {
        let list = match direction {
            Direction::Receive | Direction::Datagram | Direction::Unbound => &version.receive,
            Direction::Transmit | Direction::SentDatagram => &version.transmit,
        };
        Pkt {
            id,
            list: list.clone(),
            direction,
            next: 0,
            bind: version.bind,
            counted: None,
            way,
            turns: 0,
            offsets: [0; 4],
            iss: None,
            input: None,
            body,
        }
    }

    /// Runs a packet's events until it is finished or has another perimeter before it. Nothing is
    /// left of it here in either case.
    pub(super) fn go(
        &self,
        env: &mut Env<'_, P>,
        mut at: Option<(u16, &mut Inner<P>)>,
        pkt: &mut Pkt<P>,
    ) {
        let list = pkt.list.clone();
        let here = at.as_ref().map(|(q, _)| *q);
        while let Some(event) = list.at(pkt.next) {
            let under = pkt.bind.under(event.layer, event.under);
            if under != here {
                return self.hand_over(env, under, pkt);
            }
            if let Some(here) = here
                && event.is_tcps()
                && let Some(home) = self.elsewhere(here, pkt.id)
            {
                // TCP has moved: the packet follows it, behind those that were here before.
                pkt.bind = pkt.bind.with(Layer::Tcp, home);
                return self.hand_over(env, Some(home), pkt);
            }
            if event.callback.wants_each()
                && let Body::Seg(seg) = &pkt.body
                && seg.is_merged()
            {
                return self.go_apart(env, at, pkt);
            }
            pkt.next += 1;
            // A tombstone is passed by; but where it stood the packet went to, so that it does
            // not overtake those that went before.
            if event.is_off() {
                continue;
            }
            let inner = at.as_mut().map(|(q, inner)| (*q, &mut **inner));
            let verdict = match &event.callback {
                Callback::Own => self.own(env, inner, event, pkt),
                Callback::Predict | Callback::Full => match inner {
                    Some((_, inner)) => self.tcp_part(env, inner, event, pkt),
                    None => Verdict::Done,
                },
                Callback::Output => match inner {
                    Some(at) => self.tcp_in(env, at, pkt),
                    None => Verdict::Done,
                },
                Callback::Foreign(_) => self.foreign(env, inner, event, pkt),
            };
            match verdict {
                Verdict::Next => {}
                Verdict::Done => break,
                Verdict::Reclassify if pkt.direction == Direction::Receive => {
                    return self.reclassify(env, at, pkt);
                }
                Verdict::Reclassify => {}
            }
        }
        self.end(env, pkt);
    }

    /// The next event wants each packet: merged segments go on from here one after the other.
    #[cold]
    fn go_apart(
        &self,
        env: &mut Env<'_, P>,
        mut at: Option<(u16, &mut Inner<P>)>,
        pkt: &mut Pkt<P>,
    ) {
        let Body::Seg(mut merged) = core::mem::replace(&mut pkt.body, Body::Nothing) else {
            return;
        };
        late::apart(&mut merged, |seg| {
            let mut one = Pkt {
                list: pkt.list.clone(),
                counted: None,
                input: None,
                body: Body::Seg(seg),
                ..*pkt
            };
            if pkt.counted.is_some() {
                self.departed(&mut one);
            }
            let at = at.as_mut().map(|(q, inner)| (*q, &mut **inner));
            self.go(env, at, &mut one);
        });
        // Only now, so that nothing that comes behind takes over a newer version meanwhile.
        self.arrived(env, pkt);
    }

    /// The packet goes on under another perimeter.
    fn hand_over(&self, env: &mut Env<'_, P>, under: Option<u16>, pkt: &mut Pkt<P>) {
        self.departed(pkt);
        match under {
            Some(q) => self.post(env, q, Msg::Packet(pkt.take())),
            None => env.outside.push_back(pkt.take()),
        }
    }

    /// A packet begins outside any perimeter, and its first event runs under `under`.
    pub(super) fn set_out(&self, env: &mut Env<'_, P>, under: Option<u16>, pkt: &mut Pkt<P>) {
        let Some(q) = under else {
            return self.go(env, None, pkt);
        };
        match self.enter(env, q) {
            // Before who brings it turns to the next, it is done or counted as under way.
            Entered::In(mut proc) => {
                env.cx.count_own(counted::INLINE, 1);
                self.go(env, Some((q, &mut proc)), pkt);
                self.after(env, q, &mut proc);
                self.release(env, q, proc);
            }
            Entered::Busy(door) => {
                self.departed(pkt);
                if let Some(proc) = door.put(Msg::Packet(pkt.take())) {
                    self.release(env, q, proc);
                }
            }
        }
    }

    /// The perimeter of a packet's first event.
    pub(super) fn first_under(pkt: &Pkt<P>) -> Option<u16> {
        let first = pkt.list.at(0).map(|e| (e.layer, e.under));
        first.and_then(|(layer, under)| pkt.bind.under(layer, under))
    }

    /// About to be left somewhere, a packet of a connection is under way.
    pub(super) fn departed(&self, pkt: &mut Pkt<P>) {
        if pkt.counted.is_none()
            && pkt.direction.is_of_connection()
            && let Some(link) = self.tables(pkt.id).links.get(pkt.id.slot())
        {
            link.departed(pkt.way);
            pkt.counted = Some(pkt.way);
        }
    }

    /// No longer under way: what comes behind may take over a newer version.
    pub(super) fn arrived(&self, env: &mut Env<'_, P>, pkt: &mut Pkt<P>) {
        if let Some(way) = pkt.counted.take()
            && let Some(link) = self.tables(pkt.id).links.get(pkt.id.slot())
            && link.arrived(way)
        {
            self.go_on_moving(env, pkt.id);
        }
    }

    /// The packet is finished: who owns it lets go of it.
    pub(super) fn end(&self, env: &mut Env<'_, P>, pkt: &mut Pkt<P>) {
        self.arrived(env, pkt);
        match core::mem::replace(&mut pkt.body, Body::Nothing) {
            Body::Seg(mut seg) => seg.release(&mut env.cx.pool),
            Body::Frame(_, b) => env.cx.pool.put(b),
            Body::Datagrams(mut all) => all.look(&mut env.cx, &mut |_, _, _| false),
            Body::Up(_, _, up) => {
                for b in up.data {
                    env.cx.pool.put(b);
                }
            }
            Body::Chain(mut apart) => {
                output::discard(&mut env.cx, &mut apart);
                env.cx.spare(apart);
            }
            Body::Call(call) => call.dropped(self, env),
            Body::Sent(sent) => sent.answer(),
            Body::Nothing => {}
        }
    }
}
