//! Calls: what the socket layer makes of them in the user's context, and how they come to TCP.
//!
//! The socket layer settles what it can without a perimeter: reading from the receive queue, and
//! sends from its account of room. What TCP must do goes down the transmit list: a send is a
//! packet with data, other calls go the same way so that they keep their place behind it.

use super::event::Direction;
use super::framework::{Body, Call, Env, Inner, Job, Msg, Pef};
use super::link::Way;
use super::moving::at_home;
use crate::Kd;
use crate::answer::{Answer, Pending, question};
use crate::outer::Doors;
use crate::squeue::cell::{Start, give_back, start};
use crate::squeue::counted;
use crate::squeue::queue::{Entered, Who};
use perimeter_stack::ops::{self, Op};
use perimeter_stack::{Count, Ctx, SockId};
use perimeter_sync::{Platform, Work};

/// Which phase of an operation is left for TCP.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Phase {
    /// The second.
    Tcp,
    /// What follows from the first.
    Kick,
    /// Both: the stack itself has posted it.
    All,
}

/// An operation on its way to TCP.
struct Task<P: Platform, Q: Op<Kd<P>> + 'static> {
    id: SockId,
    op: Q,
    phase: Phase,
    /// Room that is reserved for it, bytes; charged, too, if the caller has its answer.
    reserved: u32,
    answer: Option<Answer<P, Option<Q::Out>>>,
}

impl<P: Platform, Q: Op<Kd<P>> + 'static> Task<P, Q> {
    /// As a message to the squeue that has its connection.
    fn job(self) -> Job<P> {
        at_home(self.id, move |pef, env, _, inner| {
            Call::run(Box::new(self), pef, env, inner);
        })
    }

    /// TCP's turn.
    fn perform(
        &mut self,
        pef: &Pef<P>,
        env: &mut Env<'_, P>,
        inner: &mut Inner<P>,
    ) -> Option<Q::Out> {
        self.pay_back(env);
        let (id, op) = (self.id, &mut self.op);
        let orphans = self.phase != Phase::Tcp;
        // What nobody asked for may come late without harm.
        if orphans && inner.shard.peek(id).is_none() {
            return None;
        }
        let out = inner
            .shard
            .with(&mut env.cx, id, orphans, |m, cx| match self.phase {
                Phase::Tcp => Some(op.tcp(m, cx)),
                Phase::Kick => {
                    op.kick(m, cx);
                    None
                }
                Phase::All => Some(ops::phases(m, op, cx)),
            });
        let out = out.flatten();
        self.give_back(pef, env, out.as_ref());
        out
    }

    /// What was charged when the caller was answered, the buffer pays from here on.
    fn pay_back(&self, env: &mut Env<'_, P>) {
        if self.answer.is_none() {
            env.cx.charge(self.reserved as usize, 0);
        }
    }

    fn give_back(&self, pef: &Pef<P>, env: &mut Env<'_, P>, out: Option<&Q::Out>) {
        if self.reserved > 0
            && let Some(place) = pef.place(self.id)
        {
            let unused = out.map_or(self.reserved, |out| Q::unused(out, self.reserved));
            give_back(place, self.id.generation(), unused, &mut env.cx);
        }
    }
}

impl<P: Platform, Q: Op<Kd<P>> + 'static> Call<P> for Task<P, Q> {
    fn data(&mut self) -> Option<&mut [u8]> {
        self.op.data()
    }

    fn socket(&mut self, pef: &Pef<P>, env: &mut Env<'_, P>) -> bool {
        env.cx.sh.p.charge(Work::SockCall, 1);
        let place = pef.place(self.id);
        let there = place.is_some_and(|place| place.snd(self.id.generation()).is_some());
        if there {
            self.op.called_by(env.cx.caller());
        } else {
            env.cx.count(Count::StaleHandle, 1);
        }
        there
    }

    fn run(mut self: Box<Self>, pef: &Pef<P>, env: &mut Env<'_, P>, inner: &mut Inner<P>) {
        let out = self.perform(pef, env, inner);
        if let Some(answer) = self.answer.take() {
            answer.give(out);
        }
    }

    fn dropped(mut self: Box<Self>, pef: &Pef<P>, env: &mut Env<'_, P>) {
        self.pay_back(env);
        self.give_back(pef, env, None);
        if let Some(answer) = self.answer.take() {
            answer.give(None);
        }
    }
}

impl<P: Platform> Pef<P> {
    /// A socket call.
    pub(super) fn call_op<Q: Op<Kd<P>> + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        id: SockId,
        mut op: Q,
    ) -> Option<Q::Out> {
        let Some(place) = self.place(id) else {
            return cx.sh.stale(cx);
        };
        let (answered, phase, reserved) = match start(place, id.generation(), &mut op, cx, true) {
            Start::Over(out) => {
                cx.sh.p.charge(Work::SockCall, 1);
                return out;
            }
            Start::Answered(out, bytes) => (Some(out), Phase::Tcp, bytes),
            Start::Asks(bytes) => (None, Phase::Tcp, bytes),
            Start::Kick(out) => (Some(out), Phase::Kick, 0),
            Start::Tcp => (None, Phase::Tcp, 0),
        };
        let task = Task {
            id,
            op,
            phase,
            reserved,
            answer: None,
        };
        match answered {
            Some(out) => {
                self.carry_on(cx, task);
                Some(out)
            }
            None => self.carry_out(cx, task),
        }
    }

    /// An operation that the stack itself has posted.
    pub(super) fn post_op<Q: Op<Kd<P>, Out = ()> + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        id: SockId,
        op: Q,
    ) {
        let task = Task {
            id,
            op,
            phase: Phase::All,
            reserved: 0,
            answer: None,
        };
        self.carry_on(cx, task);
    }

    /// Takes a task to TCP; nobody waits for it.
    fn carry_on<Q: Op<Kd<P>> + 'static>(&self, cx: &mut Ctx<Kd<P>>, task: Task<P, Q>) {
        let mut env = Env::new(cx, Who::Writer);
        let _ = self.start(&mut env, task);
        self.finish(&mut env);
    }

    /// Takes a task to TCP and waits for the result.
    fn carry_out<Q: Op<Kd<P>> + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        mut task: Task<P, Q>,
    ) -> Option<Q::Out> {
        let (pending, answer) = question(&cx.sh.p);
        task.answer = Some(answer);
        let mut env = Env::new(cx, Who::Writer);
        let done = self.start(&mut env, task);
        self.finish(&mut env);
        match done {
            Some(out) => out,
            None => self.wait(cx, pending)?,
        }
    }

    /// Brings a task on its way. The result, if it was run here and now.
    fn start<Q: Op<Kd<P>> + 'static>(
        &self,
        env: &mut Env<'_, P>,
        mut task: Task<P, Q>,
    ) -> Option<Option<Q::Out>> {
        let id = task.id;
        let link = self.tables(id).links.get(id.slot());
        let altered = link.is_some_and(|l| l.is_altered());
        let q = self.home(id);
        // What has no place among the calls needs none of their way.
        let straight = task.phase != Phase::Tcp;
        if straight || (!altered && !self.spec.lists && !self.spread) {
            if task.phase != Phase::All {
                env.cx.sh.p.charge(Work::SockCall, 1);
            }
            return match self.enter(env, q) {
                Entered::In(mut proc) => {
                    if let Some(home) = self.elsewhere(q, id) {
                        self.post(env, home, Msg::Job(task.job()));
                        self.release(env, q, proc);
                        return None;
                    }
                    env.cx.count_own(counted::INLINE, 1);
                    let out = task.perform(self, env, &mut proc);
                    self.after(env, q, &mut proc);
                    self.release(env, q, proc);
                    Some(out)
                }
                Entered::Busy(door) => {
                    if let Some(proc) = door.put(Msg::Job(task.job())) {
                        self.release(env, q, proc);
                    }
                    None
                }
            };
        }
        let (version, counted) = match link.filter(|_| altered) {
            Some(l) => match l.start(Way::Call, id) {
                Some(v) => (v, Some(Way::Call)),
                None => (self.first_version(id), None),
            },
            None => (self.first_version(id), None),
        };
        let body = Body::Call(Box::new(task));
        let mut pkt = self.packet(id, &version, Direction::Transmit, Way::Call, body);
        pkt.counted = counted;
        let under = Self::first_under(&pkt);
        self.set_out(env, under, &mut pkt);
        None
    }

    /// Waits for an answer. Whoever was to give it may have gone: then the caller works off what
    /// waits itself. `None`: a panic has stopped whoever was to give it.
    pub(super) fn wait<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        pending: Pending<P, R>,
    ) -> Option<R> {
        pending.wait(cx, |cx| {
            self.help(cx, Who::Writer);
        })
    }

    /// Works off what waits at any squeue.
    pub(super) fn help(&self, cx: &mut Ctx<Kd<P>>, who: Who) -> usize {
        let mut env = Env::new(cx, who);
        let mut n = 0;
        for q in 0..self.n() {
            n += self.work_off(&mut env, q);
            self.finish(&mut env);
        }
        n
    }

    /// Runs `f` under squeue `q` and waits for what it gives. `None`: it was stopped by a panic.
    pub(super) fn under<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        q: u16,
        f: impl FnOnce(&mut Env<'_, P>, &mut Inner<P>) -> R + Send + 'static,
    ) -> Option<R> {
        let (pending, answer) = question(&cx.sh.p);
        let mut env = Env::new(cx, Who::Writer);
        let job: Job<P> = Box::new(move |_, env, _, inner| {
            let out = f(env, inner);
            answer.give(out);
        });
        self.bring(&mut env, q, Msg::Job(job));
        self.finish(&mut env);
        self.wait(cx, pending)
    }
}
