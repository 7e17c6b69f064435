//! `connp-t:N`: connection groups owned by threads.
//!
//! **Background.** Willmann, Rixner, Cox, section 3.2.1: connection parallelism serialized by
//! threads, in the style of DragonFly BSD; its remedy of light messages from the end of
//! section 4.3 of the long version; and Yates et al. for a thread for each connection.
//!
//! **Binding.** A connection belongs to thread `hash mod N` for life, by the symmetric flow
//! hash. Thread `n` runs on core `n mod cores`. Under `per-connection` the hash names one of 384
//! threads (`per-connection=K`: of K), and where that one has a connection already, a new one gets
//! a thread that has none, as long as there are any; then they are shared.
//!
//! **Processing.** Every entry to the protocol is a message to that thread, which runs what was
//! sent to it strictly first in, first out, whoever sent it. A thread's connection table,
//! timers, SYN cache and wildcard listeners are its own, and no lock of the protocol is taken.
//! *Synchronous:* the requester of a socket call parks until the thread has filled in the return
//! value and signals it; a send that does not block waits like that for its result code, never
//! for room. *Asynchronous:* inbound threads enqueue packets and go on. The socket layer runs in
//! its caller: the socket buffers are shared, each behind its lock, and a call which they alone
//! settle sends no message. *Timers:* each connection has a message of its own and a mask of the
//! timers that are due; it gets in line behind what was sent before, so a timer that fires while
//! the acknowledgment that cancels it is queued does nothing when its turn comes.
//! *Incomplete tuples* are thread 0's: connect is bound and hashed there, unlinked, and forwards
//! itself to its owner, where it is linked again.
//!
//! *`wait=spin`:* each sender has a ring to each thread, and a thread is woken only if it is not
//! looking at its rings already. A requester looks for its answer for at most [`SPIN`] if the
//! owner is on another core, and then parks. A thread whose way to another is over half full
//! works off its own messages first. A burst that is all one thread's is one message.
//!
//! *`fold`:* a thread of the application, or one that polls a device, plays the role of the
//! protocol threads of its core: it puts its message into its ring, takes the ownership that
//! the protocol thread would take, runs what waits in order, its own message among it, and lets
//! go. Ownership is tried for and never waited for; whoever lets go looks at the rings once more
//! and wakes the protocol thread if something is left, so a message that finds another owner at
//! work is not forgotten. As both roles are one thread's, connections are kept whole and a call
//! runs both its phases there. A group's timers are run by who plays its role, or, late by
//! [`GRACE`], by its own thread, which is woken if it would sleep longer.
//!
//! *`per-connection`:* the thread that the hash names shakes hands. When that is done, a free
//! thread is picked, the map from flows to threads is changed, which inbound threads look at under
//! its lock, and three messages follow each other to the connection's thread: the handshake with
//! the segment that completed it; what the flow's former thread still has of it, in order; and the
//! word that this was all. Until that word has come, what arrives directly waits, so no segment
//! overtakes another. connect goes to thread 0, then to the hash's, which alone decides whether
//! the flow exists, then to the one picked. When a connection leaves its table its flow is the
//! hash's again, TIME-WAIT that a SYN takes over included. A thread without connection sleeps
//! until it is told something, and is not asked when connections are listed.
//!
//! **Limits.** Without `fold` each call costs two switches of threads. listen adds a wildcard
//! entry to the table of one thread after another, and closing a listener removes them likewise
//! and detaches it last: both cost time in proportion to N (`perimeter-bench`, `listen`). A SYN
//! that reaches a thread before its wildcard entry is refused, as before listen; one that comes
//! during the removal is taken by threads that still have the entry: its handshake is forgotten
//! there, or its connection reset when the listener is detached. With rings, first in, first out
//! holds for each sender, not across them. `per-connection` has the price of its map: a lock, one
//! of 64, for each packet.
//!
//! **Inferences.** The paper's message queues have no limit; here a full queue drops packets, as
//! a full interface queue does, and keeps everything else. DragonFly's timers fire on the
//! owner's core outside the protocol thread, which is why it sends a message; here the thread
//! looks at its wheel between two messages and sends the message to itself, for the order that
//! this gives. A window update that follows from reading is a call like others: it is waited
//! for. The threads' SYN caches are one cache divided, with cookies for what finds its share full
//! (see `connp-l`). `fold` is in force only where it is named, so that it can be measured against
//! plain `wait=spin`. Rings belong to pairs of thread and thread rather than of cores: a program's
//! threads may be preempted while they send. Yates et al. create a connection's thread with it;
//! here all 384 are there from the beginning and listeners are in all their tables, as threads that
//! come and go would need a second kind of shoot-down. After the threads have ended with the stack,
//! or one by a panic, whoever waits for an answer runs what they left.

mod answer;
mod cell;
mod demux;
mod group;
mod inbox;
mod message;
mod spec;

use crate::due::Due;
use crate::open::{Options, Visit};
use crate::place::Places;
use crate::spec::{Family, OrgSpec};
use crate::{Binding, Flow, On, Org};
use answer::{Reply, Stock};
use cell::Before;
use cell::{Apart, Keep, Whole};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use demux::Demux;
use group::Group;
use inbox::Inbox;
use message::{Call, Connect, Do, Job, Msg, NOBODY, Part, Post, Stage, Wildcard};
use perimeter_base::Time;
use perimeter_stack::ops::{Op, Step};
use perimeter_stack::shard::Exists;
use perimeter_stack::{Commons, ConnInfo, Count, Ctx, Listener, Seg, Segs, Shard, SockId, Sockets};
use perimeter_sync::{Event, LockClass, LockStats, Owned, PerLane, Platform, Shared};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;
use smallvec::SmallVec;
use spec::{ConnpT as Spec, ConnpThreads, Waiting};
use std::sync::Arc;

/// The families of this module.
pub(crate) const FAMILIES: &[&Family] = &[&spec::FAMILY];

/// Which type each of them is.
pub(crate) fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
    match o.org.expect_params::<Spec>().fold {
        true => visitor.visit::<ConnpT<Whole<P>>>(p, o),
        false => visitor.visit::<ConnpT<Apart<P>>>(p, o),
    }
}

/// `fold`: how many turns a thread works in the protocol's role before it goes on in its own.
const TURNS: usize = 16;
/// `fold`: how late timers are before the protocol thread runs them itself, ns.
const GRACE: u64 = 1_000_000;

type Kd<P> = On<P, Shared>;

/// A protocol thread, as others see it.
#[repr(align(128))]
struct Owner<C: Keep> {
    inbox: Inbox<C>,
    /// What is the thread's own. It takes it for each batch, and unless roles are folded nobody
    /// else tries while it lives.
    group: Owned<C::P, Group<C>>,
    /// Where it parks.
    bell: <C::P as Platform>::Event,
    /// `wait=spin`: it is parked there, or about to be.
    asleep: AtomicBool,
    /// `fold`: until when it is parked, ns; 0: it is not.
    until: AtomicU64,
    /// It has ended.
    gone: AtomicBool,
    /// The buffers of its connections.
    home: C::Home,
    due: Due,
    /// How many connections it has, as of its last turn.
    live: AtomicUsize,
}

impl<C: Keep> Owner<C> {
    /// Lets others know how it stands, after a turn. Whether timers are due earlier than they were.
    fn publish(&self, p: &C::P, group: &Group<C>) -> bool {
        let earlier = self.due.publish(p, group.shard.next_timer());
        let live = group.shard.len();
        if self.live.load(Ordering::Relaxed) != live {
            self.live.store(live, Ordering::Release);
        }
        earlier
    }

    /// `fold`: whether the protocol thread sleeps longer than the group's timers allow.
    fn oversleeps(&self) -> bool {
        // Against `park`, which says how long it will sleep and then looks when timers are due.
        fence(Ordering::SeqCst);
        self.due().plus(GRACE).0 < self.until.load(Ordering::SeqCst)
    }

    fn due(&self) -> Time {
        self.due.at()
    }
}

/// The protocol threads. `C`: how they keep connections.
pub(crate) struct ConnpT<C: Keep> {
    p: C::P,
    spec: Spec,
    cores: usize,
    owners: Box<[Owner<C>]>,
    /// `per-connection`: who has moved where.
    demux: Option<Arc<Demux<C::P>>>,
    /// By lane.
    replies: Places<Reply<C>>,
    stock: PerLane<C::P, Stock<C>>,
    segs: PerLane<C::P, Seg>,
    bursts: PerLane<C::P, Segs>,
    /// A protocol thread has ended.
    ended: AtomicBool,
}

impl<C: Keep> ConnpT<C> {
    /// The thread that a hash names.
    fn home(&self, hash: u32) -> usize {
        hash as usize % self.owners.len()
    }

    /// The thread that a flow belongs to.
    fn index(&self, key: &FlowKey, hash: u32) -> usize {
        let moved = self.demux.as_ref().and_then(|d| d.find(key));
        moved.unwrap_or_else(|| self.home(hash))
    }

    fn core(&self, thread: usize) -> usize {
        thread % self.cores
    }

    /// The protocol threads whose role the calling thread may play: those of its core.
    fn roles(&self) -> impl Iterator<Item = usize> {
        let first = if self.spec.fold {
            self.p.core()
        } else {
            usize::MAX
        };
        (first..self.owners.len()).step_by(self.cores)
    }

    /// Whether the calling thread may play the role of that protocol thread.
    fn is_here(&self, thread: usize) -> bool {
        self.spec.fold && self.core(thread) == self.p.core()
    }

    /// Sees to it that a thread looks at its inbox.
    fn wake(&self, to: usize) {
        let owner = &self.owners[to];
        if self.spec.wait == Waiting::Spin {
            // Against `park`, which says that it sleeps and then looks at the inbox, and against
            // who lets go of the group and then does: one side sees the other.
            fence(Ordering::SeqCst);
            self.p.checkpoint();
            if !owner.asleep.load(Ordering::SeqCst) || owner.group.is_owned() {
                return;
            }
        }
        owner.bell.set();
    }

    /// Appends a message to what waits for a thread; whether there was room.
    fn put(&self, sh: &Commons<Kd<C::P>>, to: usize, msg: Msg<C>) {
        match self.owners[to].inbox.put(msg) {
            Ok(()) => {}
            Err(Msg::Burst(mut segs)) => {
                sh.count(sh.p.lane(), Count::NetisrFull, segs.len() as u64);
                segs.drain(|_| {});
                self.bursts.put(segs);
            }
            Err(Msg::Packet(seg)) => {
                sh.count(sh.p.lane(), Count::NetisrFull, 1);
                self.segs.put(seg);
            }
            Err(_) => debug_assert!(false, "only packets are refused"),
        }
    }

    /// The same, and wakes the thread.
    fn send(&self, sh: &Commons<Kd<C::P>>, to: usize, msg: Msg<C>) {
        self.put(sh, to, msg);
        self.wake(to);
    }

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
    fn fold(&self, cx: &mut Ctx<Kd<C::P>>, thread: usize) -> Option<Box<dyn Job<C>>> {
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
        drop(group);
        // What is left, or came just now and found this thread at it; and who plays this role
        // need not be back by the time that the group's timers are due.
        if !owner.inbox.is_empty() || (earlier && owner.oversleeps()) {
            owner.bell.set();
        }
        mine
    }

    /// What is left of a call for the protocol: a message to the owner.
    fn protocol<Q: Op<Kd<C::P>> + 'static>(
        &self,
        cx: &mut Ctx<Kd<C::P>>,
        id: SockId,
        (op, part): (Q, Part),
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

    fn new(spec: &OrgSpec, sh: &Commons<Self::K>) -> Self {
        let spec: Spec = *spec.expect_params();
        let n = match spec.threads {
            ConnpThreads::Cores => sh.p.cores(),
            ConnpThreads::Groups(n) => usize::from(n),
            ConnpThreads::PerConnection(most) => usize::from(most),
        };
        let alone = matches!(spec.threads, ConnpThreads::PerConnection(_));
        let demux = alone.then(|| Arc::new(Demux::new(&sh.p, n)));
        let owner = |i| {
            let home = C::home(i, demux.as_ref());
            let shard = Shard::at_home((i as u16, n), sh, home.clone());
            let (inbox, outlet) = Inbox::new(&sh.p, spec.wait == Waiting::Spin, alone);
            Owner {
                inbox,
                group: Owned::new(sh.p.clone(), Group::new(i, shard, outlet)),
                bell: sh.p.event(),
                asleep: AtomicBool::new(false),
                until: AtomicU64::new(0),
                gone: AtomicBool::new(false),
                home,
                due: Due::default(),
                live: AtomicUsize::new(0),
            }
        };
        ConnpT {
            p: sh.p.clone(),
            spec,
            cores: sh.p.cores().max(1),
            owners: (0..n).map(owner).collect(),
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
            Some(owner) => C::before(&owner.home, id, &mut op, cx),
            None => Before::Stale,
        };
        match before {
            Before::Step(Step::Done(out)) => Some(out),
            Before::Step(Step::Kick(out)) => {
                // What the buffers gave was good when they gave it.
                self.protocol(cx, id, (op, Part::Kick));
                Some(out)
            }
            Before::Step(Step::Tcp) => self.protocol(cx, id, (op, Part::Tcp)),
            Before::Nothing => self.protocol(cx, id, (op, Part::Whole)),
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
    ) -> Result<SockId, Exists> {
        let job = Connect {
            flow,
            config: config.clone(),
            stage: Stage::Incomplete,
            out: None,
        };
        let job = self.ask(Some(cx), 0, Box::new(job));
        job.and_then(|j| j.out).unwrap_or(Err(Exists))
    }

    fn perimeters(&self) -> u16 {
        self.owners.len() as u16
    }

    fn perimeter_of(&self, sh: &Commons<Self::K>, key: &FlowKey) -> Option<u16> {
        Some(self.index(key, sh.flow_hash(key)) as u16)
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
        for (to, owner) in self.owners.iter().enumerate() {
            // Where nothing waits and nobody is at work, what was last told is so.
            if self.demux.is_some()
                && owner.inbox.is_empty()
                && !owner.group.is_owned()
                && owner.live.load(Ordering::Acquire) == 0
            {
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
            C::lock_stats(&o.home, add);
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
        self.owners.len()
    }

    fn work(&self, worker: usize, cx: &mut Ctx<Self::K>) -> usize {
        let owner = &self.owners[worker];
        let Some(mut group) = owner.group.try_own() else {
            return 0;
        };
        let n = group.turn(self, cx);
        let _ = owner.publish(&self.p, &group);
        n
    }

    fn park(&self, worker: usize, deadline: Time) {
        let owner = &self.owners[worker];
        if self.spec.wait == Waiting::Condvar {
            // Hundreds of threads need not look around: each is told of the end.
            let deadline = match self.demux {
                Some(_) => Time::NEVER,
                None => deadline,
            };
            owner.bell.wait(deadline.min(owner.due()));
            return;
        }
        if !self.spec.fold && self.look(|| !owner.inbox.is_empty()) {
            return;
        }
        owner.asleep.store(true, Ordering::SeqCst);
        owner.until.store(deadline.0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.p.checkpoint();
        let mut due = owner.due();
        if self.spec.fold {
            // Who plays this role comes first.
            due = due.plus(GRACE);
        }
        // Whoever has the group will look at the inbox again.
        if owner.inbox.is_empty() || owner.group.is_owned() {
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
        self.ended.store(true, Ordering::SeqCst);
        // Whoever waits looks for what was left.
        self.replies.each(|r| r.event.set());
    }

    fn pending(&self) -> usize {
        self.owners.iter().map(|o| o.inbox.len()).sum()
    }
}
