//! ConnP-T as an organization.

use super::cell::{Before, Keep};
use super::demux::Demux;
use super::inbox::Inbox;
use super::jobs::{Call, Connect, Do, Phase, Post, Stage, Wildcard};
use super::places;
use super::presence::Presence;
use super::spec::{ConnpT as Spec, ConnpThreads, Waiting};
use super::thread::{ConnpT, GRACE, Group, Job, Msg, NOBODY, Owner};
use crate::due::DueLine;
use crate::outer::Places;
use crate::spec::OrgSpec;
use crate::{Binding, Kd, MakeThread, Org};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use perimeter_base::Time;
use perimeter_stack::ops::{Op, Step};
use perimeter_stack::shard::ExistsError;
use perimeter_stack::{ConnInfo, Ctx, Flow, Listener, Seg, Shard, SharedState, SockId, Sockets};
use perimeter_sync::{Event, LockClass, LockStats, Owned, PerLane, Platform};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock};

/// `fold`: how many turns a thread works in the protocol's role before it goes on in its own.
const TURNS: usize = 16;

impl<C: Keep> ConnpT<C> {
    /// After something was put that nobody waits for: its thread is woken, or this one plays its
    /// role, or does what is left when threads have ended.
    fn see_to(&self, cx: &mut Ctx<Kd<C::P>>, to: usize) {
        if self.is_here(to) {
            // Nobody waits for an answer here.
            let _ = self.fold(cx, to);
        } else {
            self.wake(to);
        }
        self.after_the_end(cx);
    }

    /// Plays the role of a protocol thread of this core: runs what waits for it, in order, unless
    /// another thread is at it, which then does. Yields the answer to this thread, if that was
    /// among it.
    pub(super) fn fold(&self, cx: &mut Ctx<Kd<C::P>>, thread: usize) -> Option<Box<dyn Job<C>>> {
        let owner = &self.owners[thread];
        let mut group = match owner.group.try_own() {
            Some(group) => group,
            None => {
                // Whoever has it looks at the inbox once more after letting go. If that was
                // before the message could be seen there, it can be had now.
                fence(Ordering::SeqCst);
                owner.group.try_own()?
            }
        };
        for _ in 0..TURNS {
            if group.turn(self, cx) == 0 {
                break;
            }
        }
        let earlier = owner.publish(&self.p, &group);
        let mine = group.mine.take();
        let held = !group.held.is_empty();
        drop(group);
        // Against `wake`, which leaves it to whoever has the group.
        fence(Ordering::SeqCst);
        // What is left, or came just now and found this thread at it; and who plays this role
        // need not be back by the time that the group's timers are due.
        if held || !owner.inbox.is_empty() || (earlier && owner.oversleeps()) {
            owner.bell.set();
        }
        mine
    }

    /// What is left of a call for the protocol: a message to the owner.
    fn protocol<Q: Op<Kd<C::P>> + 'static>(
        &self,
        cx: &mut Ctx<Kd<C::P>>,
        id: SockId,
        (op, part): (Q, Phase),
    ) -> Option<Q::Out> {
        let mut job = self.used::<Call<C::P, Q>>().unwrap_or_else(|| {
            Box::new(Call {
                id,
                part,
                op: None,
                out: None,
            })
        });
        (job.id, job.part, job.op, job.out) = (id, part, Some(op), None);
        let mut job = self.ask(Some(cx), usize::from(id.shard()), job)?;
        let out = job.out.take();
        self.keep(job);
        out
    }

    /// Hands over a burst: as one message if it is all one thread's, else each segment as one.
    fn burst(&self, cx: &mut Ctx<Kd<C::P>>) {
        let Some(first) = cx.segs.iter().next() else {
            return;
        };
        let to = self.home(first.hash);
        if !self.is_here(to) && self.owners[to].inbox.is_crowded() {
            for thread in self.roles() {
                let _ = self.fold(cx, thread);
            }
        }
        if cx.segs.iter().all(|seg| self.home(seg.hash) == to) {
            let mut own = self.bursts.take().unwrap_or_default();
            core::mem::swap(&mut *own, &mut cx.segs);
            self.put(cx.sh, to, Msg::Burst(own));
            return self.see_to(cx, to);
        }
        let mut told: SmallVec<[usize; 8]> = SmallVec::new();
        let mut segs = core::mem::take(&mut cx.segs);
        segs.drain(|seg| {
            let to = self.home(seg.hash);
            self.put(cx.sh, to, Msg::Packet(self.own(seg)));
            if !told.contains(&to) {
                told.push(to);
            }
        });
        cx.segs = segs;
        for to in told {
            self.see_to(cx, to);
        }
    }

    /// A segment as a message of its own.
    fn own(&self, seg: &mut Seg) -> Box<Seg> {
        let mut own = self.segs.take().unwrap_or_default();
        core::mem::swap(seg, &mut *own);
        own
    }
}

impl<C: Keep> Org for ConnpT<C> {
    type K = Kd<C::P>;

    fn new(spec: &OrgSpec, sh: &SharedState<Self::K>) -> Self {
        let spec: Spec = *spec.expect_params();
        let cores = sh.p.cores().max(1);
        let (permanent, places) = match spec.threads {
            ConnpThreads::Cores => (cores, 0),
            ConnpThreads::Groups(n) => (n.into(), 0),
            ConnpThreads::PerConnection(most) if spec.made => (cores, usize::from(most)),
            ConnpThreads::PerConnection(most) => (most.into(), 0),
        };
        let n = permanent + places;
        // Who takes the connections: the places, where there are any.
        let first = if places > 0 { permanent } else { 0 };
        let alone = matches!(spec.threads, ConnpThreads::PerConnection(_));
        let demux = alone.then(|| Arc::new(Demux::new(&sh.p, n, first)));
        let owner = |i| {
            let outside = C::outside(i, demux.as_ref());
            let shard = Shard::with_outside((i as u16, permanent), sh, outside.clone());
            let few = alone && i >= first;
            let (inbox, outlet) = Inbox::new(&sh.p, spec.wait == Waiting::Spin, few);
            Owner {
                inbox,
                group: Owned::new(sh.p.clone(), Group::new(i, shard, outlet)),
                bell: sh.p.event(),
                asleep: AtomicBool::new(false),
                until: AtomicU64::new(0),
                gone: AtomicBool::new(false),
                outside,
                due: DueLine::default(),
                live: AtomicUsize::new(0),
                presence: Presence::default(),
                adopted: AtomicUsize::new(0),
            }
        };
        ConnpT {
            p: sh.p.clone(),
            spec,
            cores,
            owners: (0..n).map(owner).collect(),
            permanent,
            make: OnceLock::new(),
            demux,
            replies: Places::default(),
            stock: PerLane::new(sh.p.clone()),
            segs: PerLane::new(sh.p.clone()),
            bursts: PerLane::new(sh.p.clone()),
            ended: AtomicBool::new(false),
        }
    }

    fn on_packets(&self, cx: &mut Ctx<Self::K>) {
        if self.spec.wait == Waiting::Spin {
            return self.burst(cx);
        }
        let mut segs = core::mem::take(&mut cx.segs);
        segs.drain(|seg| {
            let (key, home) = (seg.frame.key, self.home(seg.hash));
            let own = Msg::Packet(self.own(seg));
            let to = match &self.demux {
                None => {
                    self.put(cx.sh, home, own);
                    home
                }
                Some(d) => d.route(&key, home, |to| {
                    self.put(cx.sh, to, own);
                    to
                }),
            };
            self.wake(to);
        });
        cx.segs = segs;
        self.after_the_end(cx);
    }

    fn call<Q: Op<Self::K> + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        id: SockId,
        mut op: Q,
    ) -> Option<Q::Out> {
        let before = match self.owners.get(usize::from(id.shard())) {
            Some(owner) => C::before(&owner.outside, id, &mut op, cx),
            None => Before::Stale,
        };
        match before {
            Before::Step(Step::Done(out)) => Some(out),
            Before::Step(Step::Kick(out)) => {
                // What the buffers gave was good when they gave it.
                self.protocol(cx, id, (op, Phase::Kick));
                Some(out)
            }
            Before::Step(Step::Tcp) => self.protocol(cx, id, (op, Phase::Tcp)),
            Before::Nothing => self.protocol(cx, id, (op, Phase::Whole)),
            Before::Stale => cx.sh.stale(cx),
        }
    }

    fn post<Q: Op<Self::K, Out = ()> + 'static>(&self, cx: &mut Ctx<Self::K>, id: SockId, op: Q) {
        let (to, op) = (usize::from(id.shard()), Some(op));
        self.put(cx.sh, to, Msg::Job(Box::new(Post { id, op }), NOBODY));
        self.see_to(cx, to);
    }

    fn connect(
        &self,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, ExistsError> {
        let job = Connect {
            flow,
            config: config.clone(),
            stage: Stage::Incomplete,
            out: None,
        };
        let job = self.ask(Some(cx), 0, Box::new(job));
        job.and_then(|j| j.out).unwrap_or(Err(ExistsError))
    }

    fn perimeters(&self) -> u16 {
        self.owners.len() as u16
    }

    /// Sockets without a flow, as datagrams have, are with threads that stay.
    fn home(&self, hash: u32) -> u16 {
        ConnpT::home(self, hash) as u16
    }

    fn perimeter_of(&self, sh: &SharedState<Self::K>, key: &FlowKey) -> Option<u16> {
        Some(self.index(key, sh.flow_hash(key)) as u16)
    }

    /// Handshakes are the business of the thread that the hash names, wherever the flow is now.
    fn perimeter_of_request(
        &self,
        sh: &SharedState<Self::K>,
        key: &FlowKey,
        _: SockId,
    ) -> Option<u16> {
        Some(ConnpT::home(self, sh.flow_hash(key)) as u16)
    }

    fn inside<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        n: u16,
        job: impl crate::Job<Self::K, R>,
    ) -> Option<R> {
        self.ask(Some(cx), n.into(), Box::new(Do::new(job)))?.out
    }

    fn leave(&self, cx: &mut Ctx<Self::K>, n: u16, job: impl crate::Job<Self::K, ()>) {
        self.put(cx.sh, n.into(), Msg::Job(Box::new(Do::new(job)), NOBODY));
        self.see_to(cx, n.into());
    }

    fn listen(&self, cx: &mut Ctx<Self::K>, l: &Arc<Listener<Self::K>>) {
        let (listener, add) = (l.clone(), true);
        self.ask(Some(cx), 0, Box::new(Wildcard { listener, add }));
    }

    fn unlisten(&self, cx: &mut Ctx<Self::K>, l: &Arc<Listener<Self::K>>) {
        let (listener, add) = (l.clone(), false);
        self.ask(Some(cx), 0, Box::new(Wildcard { listener, add }));
    }

    fn abort_all(&self, cx: &mut Ctx<Self::K>) {
        // No thread is made for a place that has nothing.
        for n in (0..self.owners.len()).filter(|n| *n < self.permanent || !self.is_deserted(*n)) {
            self.inside(cx, n as u16, |sockets, cx| sockets.abort_all(cx));
        }
    }

    /// Threads look after their own timers, while they live; or who plays their role does.
    fn on_timers(&self, cx: &mut Ctx<Self::K>) {
        let now = cx.now();
        for thread in self.roles() {
            if self.owners[thread].due() <= now {
                let _ = self.fold(cx, thread);
            }
        }
        self.after_the_end(cx);
    }

    fn next_timer(&self) -> Time {
        let due = |thread: usize| {
            let owner = &self.owners[thread];
            match owner.group.is_owned() {
                // Whoever is at it may have been preempted: who is told to come at once would look
                // again and again, and not let it go on.
                true => owner.due().max(self.p.now().plus(GRACE)),
                false => owner.due(),
            }
        };
        let mut next = self.roles().map(due).min().unwrap_or(Time::NEVER);
        if self.ended.load(Ordering::SeqCst) {
            let gone = self.owners.iter();
            let gone = gone.filter(|o| o.gone.load(Ordering::SeqCst));
            next = gone.map(Owner::due).fold(next, Time::min);
        }
        next
    }

    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        for to in 0..self.owners.len() {
            if self.demux.is_some() && self.is_deserted(to) {
                continue;
            }
            let mut all = core::mem::take(out);
            let look = move |sockets: &mut dyn Sockets<Self::K>, _: &mut Ctx<Self::K>| {
                sockets.inspect(now, &mut all);
                all
            };
            let done = self.ask(None, to, Box::new(Do::new(look)));
            *out = done.and_then(|job| job.out).unwrap_or_default();
        }
    }

    fn live(&self) -> usize {
        let live = self.owners.iter().map(|o| o.live.load(Ordering::Acquire));
        live.sum()
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        for o in &self.owners {
            add(LockClass::Leaf, o.inbox.stats());
            C::lock_stats(&o.outside, add);
        }
        if let Some(d) = &self.demux {
            d.lock_stats(add);
        }
    }

    fn binding(&self, id: SockId) -> Binding {
        let thread = usize::from(id.shard());
        let mut binding = Binding::default();
        binding.perimeters[1] = format!("thread {thread}");
        binding.cores[1] = Some(self.core(thread));
        binding
    }

    fn workers(&self) -> usize {
        self.permanent
    }

    fn most_workers(&self) -> usize {
        self.owners.len()
    }

    fn may_make(&self, make: MakeThread) {
        // Told once.
        let _ = self.make.set(make);
    }

    fn work(&self, worker: usize, cx: &mut Ctx<Self::K>) -> usize {
        let n = self.turn(worker, cx);
        match self.adopts(worker) {
            true => n + self.work_for_others(worker, cx),
            false => n,
        }
    }

    fn leaves(&self, worker: usize, cx: &mut Ctx<Self::K>) -> bool {
        let leaves = worker >= self.permanent && self.leave_place(worker);
        if leaves {
            cx.count_own(places::ENDED, 1);
        }
        leaves
    }

    fn park(&self, worker: usize, deadline: Time) {
        let owner = &self.owners[worker];
        if self.spec.wait == Waiting::Condvar {
            let mut until = deadline.min(owner.due());
            if self.adopts(worker) {
                let others = self.adopted(worker).map(|place| self.owners[place].due());
                until = others.fold(until, Time::min);
            }
            owner.bell.wait(until);
            return;
        }
        if !self.spec.fold && self.look(|| !owner.inbox.is_empty()) {
            return;
        }
        owner.asleep.store(true, Ordering::SeqCst);
        owner.until.store(deadline.0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.p.checkpoint();
        let owned = owner.group.is_owned();
        let mut due = owner.due();
        if self.spec.fold {
            if owned {
                // Whoever has it runs what is due by now: to come back at once for that would be
                // to spin, on that thread's core.
                due = due.max(self.p.now());
            }
            // Who plays this role comes first.
            due = due.plus(GRACE);
        }
        // Whoever has the group will look at the inbox again.
        if owned || owner.inbox.is_empty() {
            let until = deadline.min(due);
            owner.until.store(until.0, Ordering::SeqCst);
            owner.bell.wait(until);
        }
        owner.until.store(0, Ordering::SeqCst);
        owner.asleep.store(false, Ordering::SeqCst);
    }

    fn wake_workers(&self) {
        for owner in &self.owners {
            owner.bell.set();
        }
    }

    fn retire(&self, worker: usize) {
        self.owners[worker].gone.store(true, Ordering::SeqCst);
        // Against `tell`, which leaves it a place and then looks whether it has gone.
        fence(Ordering::SeqCst);
        if self.adopts(worker) {
            for place in self.adopted(worker) {
                self.owners[place].gone.store(true, Ordering::SeqCst);
            }
        }
        self.ended.store(true, Ordering::SeqCst);
        // Whoever waits looks for what was left.
        self.replies.each(|r| r.event.set());
    }

    fn pending(&self) -> usize {
        self.owners.iter().map(|o| o.inbox.len()).sum()
    }
}
