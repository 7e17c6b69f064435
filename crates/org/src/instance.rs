//! One organization on one platform with its devices: what a stack is, behind its facade.

use crate::Org;
use crate::made::Made;
use crate::mailbox::Mailbox;
use crate::protocol::Protocol;
use crate::spec::OrgSpec;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use perimeter_base::Time;
use perimeter_stack::aside::{Aside, Wanted};
use perimeter_stack::datagram::Datagram;
use perimeter_stack::hold::{Serial, Verdict};
use perimeter_stack::input;
use perimeter_stack::kind::lock;
use perimeter_stack::listener::ListenSpec;
use perimeter_stack::ops::{AddressGone, Close, InterfaceGone, NoNeighbour, Output, Shed};
use perimeter_stack::poller::Alarm;
use perimeter_stack::port::{RxSide, TxPort};
use perimeter_stack::ready;
use perimeter_stack::shared::AddrInUseError;
use perimeter_stack::steer::NO_QUEUE;
use perimeter_stack::{
    Count, Ctx, Flow, IfaceSpec, Kind, Lk, Offload, Own, Route, SharedState, SockError, SockId,
};
use perimeter_sync::{Lock, LockClass, OwnerGate, PerLane, Platform, Touched, WrongThreadError};
use perimeter_wire::FlowKey;
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, OnceLock, Weak};

mod batch;
mod keepers;
mod park;
mod patience;
mod sleepers;
mod steer;

use keepers::Keepers;
use sleepers::Sleepers;

/// How long a queue counts as attended to after it was driven, ns: longer than an application works
/// between two polls, mostly.
const ATTENDED: u64 = 1_000_000;
/// How often at most leaving a perimeter lets connections go on that wait for room.
const RESUME_TURNS: usize = 64;

type Pf<O> = <<O as Org>::K as Kind>::P;
/// A place where a thread of this instance parks.
pub type Ev<O> = Arc<<Pf<O> as Platform>::Event>;

/// A stack: an organization, what its threads share, and what they carry.
pub struct Instance<O: Org> {
    /// What all threads share.
    pub sh: SharedState<O::K>,
    /// The organization.
    pub org: O,
    /// Which one it is.
    pub spec: OrgSpec,
    /// Protocols beside TCP.
    protocols: Vec<Arc<dyn Protocol<O>>>,
    /// Their numbers.
    numbers: Vec<u8>,
    own: PerLane<Pf<O>, Own<O::K>>,
    events: PerLane<Pf<O>, Ev<O>>,
    /// For organizations of one thread.
    gate: Option<OwnerGate<Pf<O>>>,
    /// Who sleeps until a receive queue has something, by queue.
    sleepers: Vec<Arc<Sleepers<Pf<O>>>>,
    /// Which of them see to the timers.
    keepers: Keepers<Pf<O>>,
    /// Housekeeping is due at this time.
    chores: Lk<O::K, Time>,
    /// The same, to look at without the lock.
    chores_at: AtomicU64,
    /// Protocol threads made while it runs.
    pub(crate) made: Made<Pf<O>>,
    /// What other threads ask of a stack of one thread.
    pub(crate) mailbox: Mailbox<Pf<O>, Instance<O>>,
    /// Who waits outside, in a poll of the host's: in stacks of one thread.
    alarm: Arc<OnceLock<Arc<dyn Alarm>>>,
    /// When the alarm goes off by itself, ns.
    alarm_at: AtomicU64,
    /// Every event that a thread of this instance may be parked on, to wake all of them when the
    /// stack ends; nobody else needs it.
    parked: Mutex<Vec<Weak<<Pf<O> as Platform>::Event>>>,
}

/// Fails the stack unless it is forgotten: for the time that a thread is inside, of which a panic
/// may leave anything half done.
struct Inside<'a, O: Org>(&'a Instance<O>);

impl<O: Org> Drop for Inside<'_, O> {
    #[cold]
    fn drop(&mut self) {
        self.0.fail();
    }
}

impl<O: Org> Instance<O> {
    /// Takes the devices and starts nothing.
    pub fn new(
        p: Pf<O>,
        spec: OrgSpec,
        config: perimeter_stack::Config,
        (ifaces, routes): (Vec<IfaceSpec>, Vec<Route>),
        protocols: Vec<Arc<dyn Protocol<O>>>,
    ) -> Instance<O> {
        let sh = SharedState::new(p.clone(), config, ifaces, routes);
        let org = O::new(&spec, &sh);
        let sleepers: Vec<_> = (0..sh.loopback().1)
            .map(|_| Arc::new(Sleepers::new(&p)))
            .collect();
        let alarm: Arc<OnceLock<Arc<dyn Alarm>>> = Arc::default();
        for (port, list) in sh.rx.iter().zip(&sleepers) {
            let (list, alarm) = (list.clone(), alarm.clone());
            port.queue.lock().set_waker(Arc::new(move || {
                list.wake_all();
                if let Some(a) = alarm.get() {
                    a.raise();
                }
            }));
        }
        // What comes by the loopback is for whoever serves a device: one of them is enough.
        let (lists, outside) = (sleepers.clone(), alarm.clone());
        let port = &sh.rx[usize::from(sh.loopback().1)];
        port.queue.lock().set_waker(Arc::new(move || {
            lists.iter().any(|list| list.wake_all());
            if let Some(a) = outside.get() {
                a.raise();
            }
        }));
        Instance {
            own: PerLane::new(p.clone()),
            events: PerLane::new(p.clone()),
            gate: spec.single_threaded().then(|| OwnerGate::new(p.clone())),
            chores: lock::<O::K, _>(&p, LockClass::Control, Time::ZERO),
            chores_at: AtomicU64::new(0),
            made: Made::new(&p, org.workers(), org.most_workers()),
            mailbox: Mailbox::new(&p),
            sleepers,
            keepers: Keepers::new(&p),
            alarm,
            alarm_at: AtomicU64::new(u64::MAX),
            parked: Mutex::new(Vec::new()),
            numbers: protocols.iter().map(|p| p.number()).collect(),
            protocols,
            sh,
            org,
            spec,
        }
    }

    /// The devices' receive queues.
    pub(crate) fn queues(&self) -> Vec<u16> {
        (0..self.sh.loopback().1).collect()
    }

    /// Whether the calling thread may enter.
    ///
    /// # Errors
    /// The organization has one thread, and it is another.
    pub fn admit(&self) -> Result<(), WrongThreadError> {
        self.gate.as_ref().map_or(Ok(()), OwnerGate::enter)
    }

    /// Runs `f` on behalf of any thread: where it is if that thread may enter, else on the thread
    /// that may, at its next look at the devices. `None`: that did not happen until `deadline`.
    pub fn anywhere<R: Send + 'static>(
        &self,
        deadline: Time,
        f: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> Option<R> {
        if self.is_here() {
            return Some(f(self));
        }
        self.mailbox
            .ask(&self.sh.p, f, || self.wake_idle(), deadline)
    }

    /// Whether the calling thread may enter now: it is the stack's own, or any may.
    pub fn is_here(&self) -> bool {
        self.gate.as_ref().is_none_or(OwnerGate::is_owner)
    }

    /// The lane of the thread that the stack belongs to, where it belongs to one.
    pub(crate) fn owner(&self) -> Option<usize> {
        self.gate.as_ref().and_then(OwnerGate::owner)
    }

    /// Leaves `f` for the thread that the stack belongs to, which does it at its next look at the
    /// devices, and does not wait for that.
    pub(crate) fn leave(&self, f: impl FnOnce(&Self) + Send + 'static) {
        self.mailbox.leave(f);
        self.wake_idle();
    }

    /// Leaves it to the stack's thread to wake a poller.
    pub(crate) fn leave_wake(&self, poller: u32) {
        self.mailbox.wake(poller);
        self.wake_idle();
    }

    /// The stack's thread answers what others have left for it.
    #[cold]
    pub(crate) fn answer(&self) {
        let wakes = self.mailbox.answer(self);
        for p in wakes.iter().filter_map(|n| self.sh.pollers.get(*n)) {
            p.wake();
        }
    }

    /// Interface `n` has gone for good: its connections fail, and where no other is left, those
    /// who wait for new ones hear of it.
    #[cold]
    fn interface_gone(&self, n: u16) {
        if self.sh.ifaces[usize::from(n)]
            .gone
            .swap(true, Ordering::AcqRel)
        {
            return;
        }
        let mut all = Vec::new();
        self.org.inspect(self.sh.p.now(), &mut all);
        self.with(|i, cx| {
            i.sh.count(cx.lane, Count::IfacesGone, 1);
            for c in &all {
                i.org.post(cx, c.id, InterfaceGone(n));
            }
            if i.sh.all_gone() {
                for l in i.sh.listeners() {
                    l.with_sides(|side, _| side.raise(ready::IN, &mut cx.deferred.wakes));
                }
                i.datagrams_down(cx);
            }
        });
    }

    /// The calling thread panics, or has: calls fail from now on, and who waits is woken. What is
    /// half done stays so, as nobody enters any more.
    #[cold]
    pub(crate) fn fail(&self) {
        if self.sh.p.torn_down() {
            return;
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        if self
            .sh
            .life
            .fail(&format!("thread `{name}` panicked in the stack"))
        {
            self.wake_all();
        }
    }

    /// Runs `f` with this thread's context, then does what was put off until the perimeter is
    /// left.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&Self, &mut Ctx<O::K>) -> R) -> R {
        let lane = self.sh.p.lane();
        let new = || Box::new(Own::new(lane, self.sh.packets.clone()));
        let mut own = self.own.take().unwrap_or_else(new);
        own.lane = lane;
        own.core = self.sh.p.core() as u16;
        let inside = Inside(self);
        let mut cx = Ctx::new(&self.sh, &mut own);
        let out = f(self, &mut cx);
        self.finish(&mut cx);
        core::mem::forget(inside);
        self.own.put(own);
        out
    }

    /// The perimeter is left: accepts are delivered, doorbells rung, sleepers woken; once per
    /// burst.
    #[inline]
    pub fn finish(&self, cx: &mut Ctx<O::K>) {
        if !cx.deferred.is_empty() {
            self.finish_slow(cx);
        }
        self.sh.book(cx);
        cx.forget_now();
    }

    fn finish_slow(&self, cx: &mut Ctx<O::K>) {
        if !cx.deferred.backlogs.is_empty() {
            let backlogs = core::mem::take(&mut cx.deferred.backlogs);
            self.relieve(cx, backlogs);
        }
        // A doorbell makes room for connections that wait, whose output rings it again. The
        // bound keeps this thread from working for others for ever: in the last turn nobody
        // goes on, so nothing is left behind.
        for turn in 0..RESUME_TURNS {
            #[cfg(feature = "testing")]
            perimeter_stack::output::fill_late(cx);
            self.hand_over(cx);
            let full = !cx.deferred.blocked.is_empty();
            for (q, who) in core::mem::take(&mut cx.deferred.blocked) {
                self.sh.tx[usize::from(q)].stall(who);
                self.sh.count(cx.lane, Count::TxWaits, 1);
                cx.deferred.ring(q);
            }
            if cx.deferred.doorbells.is_empty() || self.keep(cx, full) {
                break;
            }
            let now = cx.now();
            let mut bells = core::mem::take(&mut cx.deferred.doorbells);
            for q in bells.drain(..) {
                self.sh.p.charge(perimeter_sync::Work::Doorbell, 1);
                self.sh.count(cx.lane, Count::Doorbells, 1);
                let port = &self.sh.tx[usize::from(q)];
                port.doorbell(now);
                self.rouse_for(port);
                if port.stalled() > 0 && turn + 1 < RESUME_TURNS {
                    self.resume(cx, port);
                }
            }
            // What was placed meanwhile stands in a new list.
            if cx.deferred.doorbells.is_empty() {
                cx.deferred.doorbells = bells;
            }
        }
        debug_assert!(cx.deferred.blocked.is_empty() && cx.deferred.doorbells.is_empty());
        let armed = core::mem::replace(&mut cx.deferred.armed, Time::NEVER);
        // A neighbour that was asked for is asked again.
        let armed = armed.min(self.sh.ask_at());
        if armed < Time::NEVER {
            self.rouse(armed);
        }
        self.sh.pollers.wake_threads(&mut cx.deferred.wakes);
        for (tasks, half) in cx.deferred.wakes.tasks.drain(..) {
            tasks.wake(half);
        }
    }

    /// Lets connections go on that waited for room in `port`.
    fn resume(&self, cx: &mut Ctx<O::K>, port: &TxPort<O::K>) -> bool {
        let mut ids = SmallVec::new();
        let any = port.resume(&mut ids);
        for id in ids {
            self.go_on(cx, id);
        }
        any
    }

    /// A socket's output goes on that has stopped.
    fn go_on(&self, cx: &mut Ctx<O::K>, id: SockId) {
        match id.is_datagram() {
            true => self.datagram_output(cx, id),
            false => self.org.post(cx, id, Output),
        }
    }

    /// Accepted connections go to their listeners, or are aborted where those have gone.
    fn hand_over(&self, cx: &mut Ctx<O::K>) {
        while let Some((listener, id, key)) = cx.deferred.accepts.pop() {
            if !listener.deliver(id, key, &mut cx.deferred.wakes) {
                self.sh.count(cx.lane, Count::AcceptGone, 1);
                cx.deferred.aborts.push(id);
            }
        }
        while let Some(id) = cx.deferred.aborts.pop() {
            self.org.post(cx, id, Close { abort: true });
        }
    }

    /// Serves the given receive queues and the timers once; returns how many frames that were.
    /// A queue that another thread is at is that thread's.
    pub fn drive(&self, cx: &mut Ctx<O::K>, queues: &[u16]) -> usize {
        cx.serves = queues.first().copied().unwrap_or(NO_QUEUE);
        let batches = self.leave_batches(cx);
        let mut frames = 0;
        for &q in queues {
            let port = &self.sh.rx[usize::from(q)];
            let Some(mut rx) = port.queue.try_lock() else {
                continue;
            };
            frames += self.receive(cx, q, &mut rx, queues);
            drop(rx);
            self.finish(cx);
        }
        if self.sh.looped() {
            frames += self.loop_back(cx);
        }
        self.timers(cx, queues);
        if self.mailbox.any() {
            self.answer();
        }
        cx.kept.batches = batches;
        frames
    }

    /// As [`Instance::drive`]; and whether the thread has taken as much in a row as it may before
    /// others of its core run, for which a new row begins then.
    pub(crate) fn drive_within_budget(&self, cx: &mut Ctx<O::K>, queues: &[u16]) -> (usize, bool) {
        let budget = self.sh.config.budget;
        if budget > 0 {
            cx.left.get_or_insert(budget);
        }
        let n = self.drive(cx, queues);
        let enough = cx.left == Some(0);
        if n == 0 || enough {
            cx.left = None;
        }
        (n, enough)
    }

    /// A thread that drives queue `q` was there a moment ago: how long that holds.
    pub(crate) fn attended(&self, q: u16) -> Option<Time> {
        let at = Time(self.sh.rx[usize::from(q)].looked_at.load(Ordering::Relaxed));
        let to = at.plus(ATTENDED);
        (at > Time::ZERO && self.sh.p.now() < to).then_some(to)
    }

    /// Drives those of `queues` that nobody attends to; how many frames that were.
    pub(crate) fn fill_in(&self, cx: &mut Ctx<O::K>, queues: &[u16]) -> usize {
        let free = queues
            .iter()
            .copied()
            .filter(|q| self.attended(*q).is_none());
        let free: SmallVec<[u16; 8]> = free.collect();
        let n = match free.is_empty() {
            true => 0,
            false => self.drive(cx, &free),
        };
        // Its own visit is none that others need not make.
        for q in free {
            self.sh.rx[usize::from(q)]
                .looked_at
                .store(0, Ordering::Relaxed);
        }
        n
    }

    /// Takes a burst of what the stack has sent to itself, as from a device; how many.
    #[cold]
    fn loop_back(&self, cx: &mut Ctx<O::K>) -> usize {
        let q = self.sh.loopback().1;
        let Some(mut rx) = self.sh.rx[usize::from(q)].queue.try_lock() else {
            return 0;
        };
        let frames = self.receive(cx, q, &mut rx, &[q]);
        drop(rx);
        self.finish(cx);
        // There is room now for what found none, and for who waits.
        let now = cx.now();
        for t in self.home_ports(&[q]) {
            if t.backlogged() {
                t.doorbell(now);
            }
            if self.resume(cx, t) {
                self.finish(cx);
            }
        }
        frames
    }

    /// Takes a burst of frames from queue `q`, which is `rx`, and runs them; and what others have left
    /// for who serves it. How many. Its lock is held until they have reached the perimeters, for their
    /// order. The calling thread serves `queues`.
    #[inline]
    fn receive(&self, cx: &mut Ctx<O::K>, q: u16, rx: &mut RxSide, queues: &[u16]) -> usize {
        let now = self.sh.p.now();
        cx.set_now(now);
        let left = self.take_steered(cx, q);
        let port = &self.sh.rx[usize::from(q)];
        port.looked_at.store(now.0, Ordering::Relaxed);
        let own = &mut *cx.own;
        let most = own.bursts.most(self.sh.config.budget);
        let n = rx.poll(now, &mut own.pool, &mut own.frames, most);
        if n > 0 {
            let octets = own.bursts.took(&own.frames);
            self.sh.p.touch(&port.payload, Touched::Payload, 0, true);
            if let Some(left) = &mut own.left {
                *left = left.saturating_sub(octets);
            }
            self.steer(cx, rx, port.iface, queues);
            self.process(cx, port.iface);
        }
        left + n
    }

    /// Runs the burst in `cx.frames`, which came by interface `iface`.
    #[inline]
    fn process(&self, cx: &mut Ctx<O::K>, iface: u16) {
        let wanted = Wanted {
            unbound: self.org.wants_unbound(),
            protocols: &self.numbers,
            large: self.sh.config.offload != Offload::Off,
            merged: match self.org.merges() && self.sh.config.offload != Offload::Off {
                true => self.sh.config.most_merged(),
                false => 0,
            },
            late: self.org.wants_late(),
        };
        let mut aside = input::parse(cx, iface, wanted);
        if !cx.segs.is_empty() {
            self.org.on_packets(cx);
        }
        if !(aside.datagrams.is_empty() && aside.errors.is_empty()) {
            for protocol in &self.protocols {
                self.beside(cx, &**protocol, &mut aside);
            }
        }
        aside.datagrams.clear();
        cx.datagrams = aside.datagrams;
        for frame in aside.unbound {
            self.org.unbound(cx, iface, frame);
        }
        for (key, what) in aside.icmp {
            self.org.icmp(cx, &key, what);
        }
        for id in aside.resolved {
            self.go_on(cx, id);
        }
        for id in aside.failed {
            self.in_vain(cx, id);
        }
    }

    /// A socket has waited in vain for a neighbour, or for an address of ours.
    fn in_vain(&self, cx: &mut Ctx<O::K>, id: SockId) {
        match id.is_datagram() {
            true => self.datagram_lost(cx, id),
            false => self.org.post(cx, id, NoNeighbour),
        }
    }

    /// What a burst held for a protocol beside TCP.
    fn beside(&self, cx: &mut Ctx<O::K>, protocol: &dyn Protocol<O>, aside: &mut Aside) {
        let number = protocol.number();
        if self.protocols.len() == 1 {
            protocol.input(&self.org, cx, &mut aside.datagrams);
        } else {
            let mine = |d: &mut Datagram| d.ip.protocol == number;
            let mut datagrams: Vec<Datagram> = aside.datagrams.extract_if(.., mine).collect();
            protocol.input(&self.org, cx, &mut datagrams);
        }
        for (_, ends, what) in aside.errors.iter().filter(|e| e.0 == number) {
            protocol.error(&self.org, cx, ends, *what);
        }
    }

    /// Runs timers that are due, and chores.
    pub(crate) fn timers(&self, cx: &mut Ctx<O::K>, queues: &[u16]) {
        let now = cx.now();
        if self.org.next_timer() <= now {
            self.org.on_timers(cx);
            cx.deferred.armed = cx.deferred.armed.min(self.org.next_timer());
            self.finish(cx);
        }
        if self.chores_at.load(Ordering::Acquire) <= now.0 || self.sh.ask_at() <= now {
            // Whoever comes first does them.
            let first = self.chores.try_lock().is_some_and(|mut at| {
                let due = *at <= now || self.sh.ask_at() <= now;
                if due {
                    *at = now + self.sh.config.service;
                    self.chores_at.store(at.0, Ordering::Release);
                }
                due
            });
            if first {
                self.chores(cx, now);
            }
        }
        self.unstall(cx, now, self.home_ports(queues));
        cx.forget_now();
    }

    fn chores(&self, cx: &mut Ctx<O::K>, now: Time) {
        self.sh.watch_memory();
        cx.set_now(now);
        for t in &self.sh.tx {
            t.refresh(now);
        }
        self.sh.sweep();
        perimeter_stack::fragment::expire(cx, now);
        self.sh.report_due(cx, now);
        let (hoarders, drop) = self.sh.hoarders();
        for id in hoarders {
            self.org.post(cx, id, Shed { drop });
        }
        let settled = self.sh.retry_neighbours(cx);
        for id in settled.ready {
            self.go_on(cx, id);
        }
        for id in settled.failed {
            self.in_vain(cx, id);
        }
        for ip in settled.lost {
            self.address_gone(cx, ip);
        }
        self.finish(cx);
        // Also queues whose own thread is away.
        self.unstall(cx, now, self.sh.tx.iter());
    }

    /// An address is the stack's no more: connections from it fail.
    #[cold]
    fn address_gone(&self, cx: &mut Ctx<O::K>, ip: IpAddr) {
        let mut all = Vec::new();
        self.org.inspect(self.sh.p.now(), &mut all);
        for c in all.iter().filter(|c| c.key.local == ip) {
            self.org.post(cx, c.id, AddressGone(ip));
        }
    }

    /// Offers the devices again what they could not take, and lets connections go on whose
    /// queue has room.
    fn unstall<'a>(
        &'a self,
        cx: &mut Ctx<O::K>,
        now: Time,
        ports: impl Iterator<Item = &'a TxPort<O::K>>,
    ) {
        for t in ports {
            t.looked_after(&self.sh.p);
            if t.ready_at() <= now {
                t.doorbell(now);
                if self.resume(cx, t) {
                    self.finish(cx);
                }
            }
        }
    }

    /// The transmit queues that whoever serves these receive queues looks after. Others are
    /// left alone, not even looked at: their cache lines belong to another core.
    fn home_ports<'a>(&'a self, queues: &'a [u16]) -> impl Iterator<Item = &'a TxPort<O::K>> + 'a {
        self.sh.tx.iter().filter(|t| queues.contains(&t.rxq))
    }

    /// Opens a connection, bound to interface `device` if one is given; the handshake goes on by
    /// itself.
    ///
    /// # Errors
    /// No route, a local address that is not ours, no free port, or no memory.
    pub fn open_flow(
        &self,
        cx: &mut Ctx<O::K>,
        local: (Option<IpAddr>, u16),
        remote: (IpAddr, u16),
        device: Option<u16>,
        config: &perimeter_tcp::Config,
    ) -> Result<SockId, OpenError> {
        let sh = &self.sh;
        if sh.memory_full() {
            sh.count(cx.lane, Count::MemRefused, 1);
            return Err(OpenError::NoMemory);
        }
        if local.0.is_some_and(|ours| !sh.may_bind(ours)) {
            return Err(OpenError::NotOurs);
        }
        let found = sh.source(remote.0, local.0, device);
        let (iface, addr) = found.ok_or(OpenError::NoRoute)?;
        if sh.ifaces[usize::from(iface)].is_gone() {
            return Err(OpenError::Gone);
        }
        let mut config = config.clone();
        config.mss = config.mss.min(sh.ifaces[usize::from(iface)].mss(remote.0));
        let any_port = FlowKey {
            local: addr,
            remote: remote.0,
            local_port: local.1,
            remote_port: remote.1,
        };
        let mut open = |port| {
            let key = FlowKey {
                local_port: port,
                ..any_port
            };
            if key.local == key.remote && key.local_port == key.remote_port {
                return None;
            }
            let flow = Flow {
                key,
                hash: sh.flow_hash(&key),
                iface,
                device,
            };
            self.org.connect(cx, flow, &config).ok()
        };
        let id = match local.1 {
            0 => sh.ports.pick(&any_port, open),
            port => open(port),
        };
        id.ok_or(OpenError::InUse)
    }

    /// Makes a listener.
    ///
    /// # Errors
    /// The port is taken.
    pub fn listen(&self, cx: &mut Ctx<O::K>, spec: &ListenSpec) -> Result<SockId, AddrInUseError> {
        let l = self.sh.bind_listener(spec)?;
        self.org.listen(cx, &l);
        Ok(l.id)
    }

    /// Decides a SYN that a listener holds; whether it was still there. What is allowed is answered
    /// in the perimeter of its flow; a reset needs none.
    ///
    /// # Errors
    /// The listener has gone.
    pub fn decide(
        &self,
        cx: &mut Ctx<O::K>,
        listener: SockId,
        (key, serial): (&FlowKey, Serial),
        verdict: Verdict,
    ) -> Result<bool, SockError> {
        let l = self.sh.listener(listener).ok_or(SockError::Closed)?;
        let Some(syn) = l.decide(key, serial, verdict, cx.now()) else {
            return Ok(false);
        };
        match verdict {
            Verdict::Drop => {}
            Verdict::Reset => self.sh.refuse_held(cx, &syn, l.leaving()),
            Verdict::Allow => {
                if let Some(n) = self.org.perimeter_of_request(cx.sh, key, listener) {
                    self.org
                        .leave(cx, n, move |sockets, cx| sockets.admit(cx, &l, &syn));
                }
            }
        }
        Ok(true)
    }

    /// Closes a listener: its SYNs are refused, handshakes under way and connections that nobody
    /// accepted are reset. Detached last.
    ///
    /// # Errors
    /// It has gone already.
    pub fn close_listener(&self, cx: &mut Ctx<O::K>, id: SockId) -> Result<(), SockError> {
        let l = self.sh.listener(id).ok_or(SockError::Closed)?;
        self.org.unlisten(cx, &l);
        for conn in l.close(&mut cx.deferred.wakes) {
            self.org.post(cx, conn, Close { abort: true });
        }
        self.sh.unbind_listener(id);
        Ok(())
    }

    /// Nothing is left lying: no descriptor waits for a doorbell, no connection for a queue.
    /// For the end of a simulation.
    ///
    /// # Errors
    /// What is left.
    pub fn quiescent(&self) -> Result<(), String> {
        for (i, t) in self.sh.tx.iter().enumerate() {
            if t.pending() > 0 {
                return Err(format!(
                    "transmit queue {i} holds {} descriptors",
                    t.pending()
                ));
            }
        }
        let stalled: usize = self.sh.tx.iter().map(TxPort::stalled).sum();
        if stalled > 0 {
            return Err(format!("{stalled} connections wait for a transmit queue"));
        }
        if self.sh.looped() {
            return Err("packets wait in the loopback".to_string());
        }
        if self.queues().into_iter().any(|q| self.waits(q)) {
            return Err("frames wait for who answers them".to_string());
        }
        let pending = self.org.pending();
        if pending > 0 {
            return Err(format!("{pending} messages were not run"));
        }
        Ok(())
    }

    /// Whether the stack has stopped or failed.
    #[inline]
    pub fn stopping(&self) -> bool {
        self.sh.life.ended()
    }
}

/// Why a connection can't be opened.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// No route to the remote address.
    NoRoute,
    /// The local address is not ours.
    NotOurs,
    /// The flow, or every ephemeral port, is in use.
    InUse,
    /// Connections pin all the memory that they may.
    NoMemory,
    /// The interface that leads there has gone.
    Gone,
}
