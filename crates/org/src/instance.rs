//! One organization on one platform with its devices: what a stack is, behind its facade.

use crate::desk::Desk;
use crate::spec::OrgSpec;
use crate::{Flow, Org};
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use perimeter_base::Time;
use perimeter_link::{RxQueue, RxStatus};
use perimeter_stack::commons::AddrInUse;
use perimeter_stack::input;
use perimeter_stack::kind::lock;
use perimeter_stack::ops::{Close, NoNeighbour, Output};
use perimeter_stack::planted::{Bug, planted};
use perimeter_stack::port::TxPort;
use perimeter_stack::{Commons, Count, Ctx, IfaceSpec, Kind, Lk, Route, SockError, SockId};
use perimeter_sync::{Event, Lock, LockClass, OwnerGate, PerLane, Platform, WrongThread};
use perimeter_wire::FlowKey;
use smallvec::SmallVec;
use std::sync::Arc;

/// How often at most leaving a perimeter lets connections go on that wait for room.
const RESUME_TURNS: usize = 64;

type Pf<O> = <<O as Org>::K as Kind>::P;
/// A place where a thread of this instance parks.
pub type Ev<O> = Arc<<Pf<O> as Platform>::Event>;
type Sleepers<O> = Arc<<Pf<O> as Platform>::Lock<Vec<Ev<O>>>>;

/// A stack: an organization, what its threads share, and what they carry.
pub struct Instance<O: Org> {
    /// What all threads share.
    pub sh: Commons<O::K>,
    /// The organization.
    pub org: O,
    /// Which one it is.
    pub spec: OrgSpec,
    ctxs: PerLane<Pf<O>, Ctx<O::K>>,
    events: PerLane<Pf<O>, Ev<O>>,
    /// For organizations of one thread.
    gate: Option<OwnerGate<Pf<O>>>,
    /// Who sleeps until a receive queue has something, by queue.
    sleepers: Vec<Sleepers<O>>,
    /// How many threads are in [`Instance::idle`].
    idlers: AtomicUsize,
    /// One of them looks at the timers again by then, ns; `u64::MAX`: that is not known. Never
    /// earlier than one really does.
    looks_at: AtomicU64,
    /// Housekeeping is due at this time.
    chores: Lk<O::K, Time>,
    /// The same, to look at without the lock.
    chores_at: AtomicU64,
    /// What other threads ask of a stack of one thread.
    desk: Desk<O>,
    pub(crate) stop: AtomicBool,
}

impl<O: Org> Instance<O> {
    /// Takes the devices and starts nothing.
    pub fn new(
        p: Pf<O>,
        spec: OrgSpec,
        config: perimeter_stack::Config,
        ifaces: Vec<IfaceSpec>,
        routes: Vec<Route>,
    ) -> Instance<O> {
        let sh = Commons::new(p.clone(), config, ifaces, routes);
        let org = O::new(&spec, &sh);
        let sleepers: Vec<Sleepers<O>> = sh
            .rx
            .iter()
            .map(|_| Arc::new(p.lock(LockClass::Leaf, Vec::new())))
            .collect();
        for (port, list) in sh.rx.iter().zip(&sleepers) {
            let list = list.clone();
            port.queue.lock().set_waker(Arc::new(move || {
                let woken = core::mem::take(&mut *list.lock());
                for e in woken {
                    e.set();
                }
            }));
        }
        Instance {
            ctxs: PerLane::new(p.clone()),
            events: PerLane::new(p.clone()),
            gate: spec.single_threaded().then(|| OwnerGate::new(p.clone())),
            chores: lock::<O::K, _>(&p, LockClass::Control, Time::ZERO),
            chores_at: AtomicU64::new(0),
            desk: Desk::new(&p),
            idlers: AtomicUsize::new(0),
            looks_at: AtomicU64::new(u64::MAX),
            sleepers,
            stop: AtomicBool::new(false),
            sh,
            org,
            spec,
        }
    }

    /// Whether the calling thread may enter.
    ///
    /// # Errors
    /// The organization has one thread, and it is another.
    pub fn admit(&self) -> Result<(), WrongThread> {
        self.gate.as_ref().map_or(Ok(()), OwnerGate::enter)
    }

    /// Runs `f` on behalf of any thread: where it is if that thread may enter, else on the thread
    /// that may, at its next look at the devices. `None`: that did not happen until `deadline`.
    pub fn anywhere<R: Send + 'static>(
        &self,
        deadline: Time,
        f: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> Option<R> {
        if self.gate.as_ref().is_none_or(OwnerGate::is_owner) {
            return Some(f(self));
        }
        let wake = || {
            for list in &self.sleepers {
                let woken = core::mem::take(&mut *list.lock());
                for e in woken {
                    e.set();
                }
            }
        };
        self.desk.ask(&self.sh.p, f, wake, deadline)
    }

    /// Runs `f` with this thread's context, then does what was put off until the perimeter is
    /// left.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&Self, &mut Ctx<O::K>) -> R) -> R {
        let mut cx = self
            .ctxs
            .take()
            .unwrap_or_else(|| Box::new(Ctx::new(self.sh.p.lane())));
        cx.lane = self.sh.p.lane();
        cx.core = self.sh.p.core() as u16;
        let out = f(self, &mut cx);
        self.finish(&mut cx);
        self.ctxs.put(cx);
        out
    }

    /// The perimeter is left: accepts are delivered, doorbells rung, sleepers woken; once per
    /// burst.
    #[inline]
    pub fn finish(&self, cx: &mut Ctx<O::K>) {
        if !cx.after.is_empty() {
            self.finish_slow(cx);
        }
        cx.forget_now();
    }

    fn finish_slow(&self, cx: &mut Ctx<O::K>) {
        // A doorbell makes room for connections that wait, whose output rings it again. The
        // bound keeps this thread from working for others for ever: in the last turn nobody
        // goes on, so nothing is left behind.
        for turn in 0..RESUME_TURNS {
            #[cfg(feature = "testing")]
            perimeter_stack::glue::fill_late(&self.sh, cx);
            self.hand_over(cx);
            for (q, id) in core::mem::take(&mut cx.after.blocked) {
                self.sh.tx[usize::from(q)].stall(id);
                self.sh.count(cx.lane, Count::TxWaits, 1);
                cx.after.ring(q);
            }
            if cx.after.doorbells.is_empty() {
                break;
            }
            let now = cx.now(&self.sh.p);
            let mut bells = core::mem::take(&mut cx.after.doorbells);
            for q in bells.drain(..) {
                self.sh.p.charge(perimeter_sync::Work::Doorbell, 1);
                self.sh.count(cx.lane, Count::Doorbells, 1);
                let port = &self.sh.tx[usize::from(q)];
                port.doorbell(now);
                if port.stalled() > 0 && turn + 1 < RESUME_TURNS {
                    self.resume(cx, port);
                }
            }
            // What was placed meanwhile stands in a new list.
            if cx.after.doorbells.is_empty() {
                cx.after.doorbells = bells;
            }
        }
        debug_assert!(cx.after.blocked.is_empty() && cx.after.doorbells.is_empty());
        let armed = core::mem::replace(&mut cx.after.armed, Time::NEVER);
        if armed < Time::NEVER {
            self.rouse(armed);
        }
        let mut wakes = core::mem::take(&mut cx.after.wakes);
        self.sh.pollers.deliver(&mut wakes);
        cx.after.wakes = wakes;
        let told = match planted(Bug::WakesDropped) {
            true => 1,
            false => usize::MAX,
        };
        for e in cx.after.events.drain(..).take(told) {
            e.set();
        }
    }

    /// A timer was armed for `at`: threads that sleep for a later one look again. Nobody needs to
    /// where each looks around before that by itself, as with the usual settings and timers.
    fn rouse(&self, at: Time) {
        // The timer is published, see `idle`.
        fence(Ordering::SeqCst);
        if self.idlers.load(Ordering::SeqCst) == 0 {
            return;
        }
        let looks_at = Time(self.looks_at.load(Ordering::SeqCst));
        // The timer may be one that its own thread sees to.
        if at >= looks_at || self.org.next_timer() >= looks_at {
            return;
        }
        for list in &self.sleepers {
            let woken = core::mem::take(&mut *list.lock());
            let any = !woken.is_empty();
            for e in woken {
                e.set();
            }
            if any {
                break;
            }
        }
    }

    /// Lets connections go on that waited for room in `port`.
    fn resume(&self, cx: &mut Ctx<O::K>, port: &TxPort<O::K>) -> bool {
        let mut ids = SmallVec::new();
        let any = port.resume(&mut ids);
        for id in ids {
            self.org.post(&self.sh, cx, id, Output);
        }
        any
    }

    /// Accepted connections go to their listeners, or are aborted where those have gone.
    fn hand_over(&self, cx: &mut Ctx<O::K>) {
        while let Some((listener, id)) = cx.after.accepts.pop() {
            if !listener.deliver(id, cx) {
                self.sh.count(cx.lane, Count::AcceptGone, 1);
                cx.after.aborts.push(id);
            }
        }
        while let Some(id) = cx.after.aborts.pop() {
            self.org.post(&self.sh, cx, id, Close { abort: true });
        }
    }

    /// Serves the given receive queues and the timers once; returns how many frames that were.
    /// A queue that another thread is at is that thread's.
    pub fn drive(&self, cx: &mut Ctx<O::K>, queues: &[u16]) -> usize {
        let mut frames = 0;
        for &q in queues {
            let port = &self.sh.rx[usize::from(q)];
            let Some(mut rx) = port.queue.try_lock() else {
                continue;
            };
            frames += self.receive(cx, q, &mut **rx);
            drop(rx);
            self.finish(cx);
        }
        self.timers(cx, queues);
        if self.desk.any() {
            self.desk.answer(self);
        }
        frames
    }

    /// Takes a burst of frames from queue `q`, which is `rx`, and runs them; how many. Its lock is
    /// held until they have reached the perimeters, for their order.
    #[inline]
    fn receive(&self, cx: &mut Ctx<O::K>, q: u16, rx: &mut dyn RxQueue) -> usize {
        let now = self.sh.p.now();
        cx.set_now(now);
        let n = rx.poll(now, &mut cx.pool, &mut cx.frames, perimeter_stack::BURST);
        if n > 0 {
            let iface = self.sh.rx[usize::from(q)].iface;
            let aside = input::parse(&self.sh, cx, iface, self.org.wants_unbound());
            if !cx.segs.is_empty() {
                self.org.on_packets(&self.sh, cx);
            }
            for frame in aside.unbound {
                self.org.unbound(&self.sh, cx, iface, frame);
            }
            for (key, what) in aside.icmp {
                self.org.icmp(&self.sh, cx, &key, what);
            }
            for id in aside.resolved {
                self.org.post(&self.sh, cx, id, Output);
            }
        }
        n
    }

    /// Runs timers that are due, and chores.
    fn timers(&self, cx: &mut Ctx<O::K>, queues: &[u16]) {
        let now = cx.now(&self.sh.p);
        if self.org.next_timer() <= now {
            self.org.on_timers(&self.sh, cx);
            cx.after.armed = cx.after.armed.min(self.org.next_timer());
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
        for id in self.sh.retry_neighbours(cx) {
            self.org.post(&self.sh, cx, id, NoNeighbour);
        }
        self.finish(cx);
        // Also queues whose own thread is away.
        self.unstall(cx, now, self.sh.tx.iter());
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
        self.sh.tx.iter().filter(|t| queues.contains(&t.home))
    }

    /// When whoever serves `queues` has something to do without a frame: timers, paced
    /// devices, chores that somebody waits for.
    pub fn next_due(&self, queues: &[u16]) -> Time {
        let mut t = self.org.next_timer().min(self.sh.ask_at());
        for port in self.home_ports(queues) {
            t = t.min(port.ready_at());
        }
        t
    }

    /// Parks the calling thread until one of `queues` has frames, `event` is set, something
    /// is due, or `deadline` has passed. If frames wait, serves them and returns.
    pub fn idle(&self, event: &Ev<O>, queues: &[u16], deadline: Time) {
        for &q in queues {
            self.sleepers[usize::from(q)].lock().push(event.clone());
        }
        self.idlers.fetch_add(1, Ordering::SeqCst);
        // Who arms a timer that is not seen here sees this thread.
        fence(Ordering::SeqCst);
        let mut until = deadline.min(self.next_due(queues));
        let mut fds = Vec::new();
        let now = self.sh.p.now();
        // Whoever has left a question wakes those who are on the lists by now, or is seen here.
        let mut ready = until <= now || self.desk.any();
        if ready {
            // What was due a moment ago and still is waits for a thread that is at the device
            // or at the timers.
            self.sh.p.yield_now();
        }
        for &q in queues {
            let port = &self.sh.rx[usize::from(q)];
            match port.queue.try_lock() {
                Some(mut rx) => {
                    // Asked for each time: a device that has gone has none, and waiting for its
                    // old one would return at once for ever.
                    fds.extend(rx.fd());
                    match rx.arm(now) {
                        RxStatus::Ready => {
                            // Taken at once: threads that left them to their next turn, when
                            // each tries for the queue, could find it for ever with another who
                            // only looks.
                            ready = true;
                            self.with(|i, cx| {
                                i.receive(cx, q, &mut **rx);
                                drop(rx);
                            });
                        }
                        RxStatus::Armed(at) => until = until.min(at),
                    }
                }
                // Another thread is at it; look again soon in case it leaves something.
                None => {
                    fds.extend(port.fd);
                    until = until.min(now + self.sh.config.service / 10);
                }
            }
        }
        if !ready {
            self.looks_at.fetch_min(until.0, Ordering::SeqCst);
            self.sh.asleep(|| {
                if fds.is_empty() {
                    event.wait(until);
                } else {
                    event.wait_fds(&fds, until);
                }
            });
            // Those who sleep on are woken once too often at worst.
            self.looks_at.store(u64::MAX, Ordering::SeqCst);
        }
        self.idlers.fetch_sub(1, Ordering::SeqCst);
        for &q in queues {
            self.sleepers[usize::from(q)]
                .lock()
                .retain(|e| !Arc::ptr_eq(e, event));
        }
    }

    /// Runs `f` with an event for the calling thread to park on.
    pub fn with_event<R>(&self, f: impl FnOnce(&Ev<O>) -> R) -> R {
        let e = self
            .events
            .take()
            .unwrap_or_else(|| Box::new(Arc::new(self.sh.p.event())));
        e.take();
        let out = f(&e);
        self.events.put(e);
        out
    }

    /// Opens a connection; the handshake goes on by itself.
    ///
    /// # Errors
    /// No route, or no free port.
    pub fn open_flow(
        &self,
        cx: &mut Ctx<O::K>,
        local: (Option<IpAddr>, u16),
        remote: (IpAddr, u16),
        config: &perimeter_tcp::Config,
    ) -> Result<SockId, OpenError> {
        let sh = &self.sh;
        let (iface, addr) = sh.source(remote.0, local.0).ok_or(OpenError::NoRoute)?;
        let mut config = config.clone();
        config.mss = config.mss.min(sh.ifaces[usize::from(iface)].mss());
        let mut key = FlowKey {
            local: addr,
            remote: remote.0,
            local_port: local.1,
            remote_port: remote.1,
        };
        let attempts = if local.1 == 0 {
            sh.ephemeral_count()
        } else {
            1
        };
        for _ in 0..attempts {
            if local.1 == 0 {
                key.local_port = sh.ephemeral_port(&key);
            }
            if key.local == key.remote && key.local_port == key.remote_port {
                continue;
            }
            let flow = Flow {
                key,
                hash: sh.flow_hash(&key),
                iface,
            };
            if let Ok(id) = self.org.connect(sh, cx, flow, &config) {
                return Ok(id);
            }
        }
        Err(OpenError::InUse)
    }

    /// Makes a listener.
    ///
    /// # Errors
    /// The port is taken.
    pub fn listen(
        &self,
        cx: &mut Ctx<O::K>,
        addr: Option<IpAddr>,
        port: u16,
        backlog: u32,
        mut config: perimeter_tcp::Config,
    ) -> Result<SockId, AddrInUse> {
        let mss = self
            .sh
            .ifaces
            .iter()
            .map(|i| i.mss())
            .min()
            .unwrap_or(config.mss);
        config.mss = config.mss.min(mss);
        let l = self.sh.bind_listener(addr, port, backlog, config)?;
        self.org.listen(&self.sh, cx, &l);
        Ok(l.id)
    }

    /// Closes a listener: its SYNs are refused, handshakes under way forgotten, connections
    /// that nobody accepted reset. Detached last.
    ///
    /// # Errors
    /// It has gone already.
    pub fn close_listener(&self, cx: &mut Ctx<O::K>, id: SockId) -> Result<(), SockError> {
        let l = self.sh.listener(id).ok_or(SockError::Closed)?;
        self.org.unlisten(&self.sh, cx, &l);
        for conn in l.close(cx) {
            self.org.post(&self.sh, cx, conn, Close { abort: true });
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
        let pending = self.org.pending();
        if pending > 0 {
            return Err(format!("{pending} messages were not run"));
        }
        Ok(())
    }

    /// Whether the stack is being dropped.
    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// Why a connection can't be opened.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// No route to the remote address, or the local address is not ours.
    NoRoute,
    /// The flow, or every ephemeral port, is in use.
    InUse,
}
