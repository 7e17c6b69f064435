//! Who sleeps in a stack, and who wakes them: threads that wait for frames, for timers or for an
//! event of their own, and those who wait outside in a poll of the host's.

use super::{Ev, Instance};
use crate::Org;
use core::sync::atomic::Ordering;
use perimeter_base::Time;
use perimeter_link::RxStatus;
use perimeter_stack::Sleeper;
use perimeter_stack::poller::Alarm;
use perimeter_stack::port::TxPort;
use perimeter_sync::{Event, Lock, Platform};
use std::sync::{Arc, PoisonError, Weak};

/// The shortest sleep of who looks around only now and then, ns.
const DOZE: u64 = 200_000;

/// How long a thread that goes before others of its core sleeps so that they run, ns.
const ASIDE: u64 = 20_000;

impl<O: Org> Instance<O> {
    /// Wakes every thread that waits for frames.
    pub(super) fn wake_idle(&self) {
        for list in &self.sleepers {
            list.wake_all();
        }
        if let Some(a) = self.alarm.get() {
            a.raise();
        }
    }

    /// Who waits for this stack in a poll of the host's is woken by the alarm from now on: that of
    /// the first call, which `make` made.
    pub(crate) fn set_alarm(&self, make: &dyn Fn() -> Arc<dyn Alarm>) -> Arc<dyn Alarm> {
        self.alarm.get_or_init(make).clone()
    }

    /// The thread of the stack leaves it, perhaps to wait for the alarm: what [`Instance::idle`]
    /// does, but for the wait.
    #[inline]
    pub(crate) fn arm_alarm(&self, queues: &[u16]) {
        if let Some(alarm) = self.alarm.get() {
            self.arm_for(&**alarm, queues);
        }
    }

    #[cold]
    fn arm_for(&self, alarm: &dyn Alarm, queues: &[u16]) {
        alarm.lower();
        let now = self.sh.p.now();
        let mut due = self.next_due(queues);
        let mut ready = self.mailbox.any() || self.sh.looped();
        for &q in queues {
            if let Some(mut rx) = self.sh.rx[usize::from(q)].queue.try_lock() {
                match rx.arm(now) {
                    RxStatus::Ready => ready = true,
                    RxStatus::Armed(at) => due = due.min(at),
                    RxStatus::Gone => {}
                }
            }
        }
        if ready || due <= now {
            alarm.raise();
        }
        self.alarm_by(alarm, due);
    }

    fn alarm_by(&self, alarm: &dyn Alarm, due: Time) {
        self.alarm_at.store(due.0, Ordering::Relaxed);
        let left = due.nanos_since(self.sh.p.now());
        alarm.after((due < Time::NEVER).then_some(left));
    }

    /// Wakes every thread that is parked in this stack, whatever it waits for: it looks again,
    /// and finds that the stack has ended.
    pub(crate) fn wake_all(&self) {
        self.org.wake_workers();
        let events = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        for e in events.iter().filter_map(Weak::upgrade) {
            e.set();
        }
        drop(events);
        self.sh.tasks.end();
    }

    /// A timer was armed for `timer`: one of those who sleep for longer looks again. Nobody needs to
    /// where each looks around before that by itself, as with the usual settings and timers.
    pub(super) fn rouse(&self, timer: Time) {
        self.alarm_at_latest(timer);
        self.keepers.rouse(timer, || self.next_timer());
    }

    /// If `port` wants its doorbell again though nothing new is placed, who serves it looks in time.
    pub(super) fn rouse_for(&self, port: &TxPort<O::K>) {
        let again = port.rings_again();
        if again == Time::NEVER {
            return;
        }
        self.alarm_at_latest(again);
        let home = self.sleepers.get(usize::from(port.rxq));
        if !home.is_some_and(|s| s.rouse(again)) {
            self.keepers.rouse_dozer(again);
        }
    }

    /// As [`Instance::rouse_for`], for every device.
    pub(crate) fn rouse_for_devices(&self) {
        for port in &self.sh.tx {
            self.rouse_for(port);
        }
    }

    fn alarm_at_latest(&self, at: Time) {
        if let Some(alarm) = self.alarm.get()
            && at.0 < self.alarm_at.load(Ordering::Relaxed)
        {
            self.alarm_by(&**alarm, at);
        }
    }

    /// When timers are due, or chores that somebody waits for.
    fn next_timer(&self) -> Time {
        self.org.next_timer().min(self.sh.ask_at())
    }

    /// When devices of `queues` have something to do without a frame, or the loopback has.
    fn device_due(&self, queues: &[u16]) -> Time {
        match self.sh.looped() {
            true => Time::ZERO,
            false => {
                let ready = self.home_ports(queues).map(TxPort::ready_at);
                ready.min().unwrap_or(Time::NEVER)
            }
        }
    }

    /// When whoever serves `queues` has something to do without a frame: timers, paced
    /// devices, chores that somebody waits for.
    pub fn next_due(&self, queues: &[u16]) -> Time {
        self.next_timer().min(self.device_due(queues))
    }

    /// Parks the calling thread, which is `who`'s, until one of `queues` has frames, `event` is set, something
    /// is due, or `deadline` has passed. If frames wait, serves them and returns. It looks around for a
    /// moment first, if that has paid lately.
    pub fn idle(&self, who: Sleeper, event: &Ev<O>, queues: &[u16], deadline: Time) {
        self.patiently(event, queues, deadline, || {
            self.idle_at_once(who, event, queues, deadline);
        });
    }

    fn idle_at_once(&self, who: Sleeper, event: &Ev<O>, queues: &[u16], deadline: Time) {
        for &q in queues {
            self.sleepers[usize::from(q)].add(event);
        }
        let keeper = self.keepers.join(&self.sh.p, event);
        // Who arms a timer, or a device, that is not seen here sees this thread.
        let mut until = deadline.min(self.device_due(queues));
        if keeper.is_some() {
            until = until.min(self.next_timer());
        }
        let mut fds = Vec::new();
        let mut gone = None;
        let now = self.sh.p.now();
        // Whoever has left a question wakes those who are on the lists by now, or is seen here.
        let mut ready = until <= now || self.mailbox.any() || self.sh.looped();
        if ready {
            // What was due a moment ago and still is waits for a thread that is at the device
            // or at the timers.
            if self.sh.config.preemptive {
                // That one may be behind this one on its core, for as long as this one does not sleep.
                ready = false;
                until = now.plus(ASIDE);
            } else {
                self.sh.p.yield_now();
            }
        }
        for &q in queues {
            let port = &self.sh.rx[usize::from(q)];
            ready |= self.waits(q);
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
                                i.receive(cx, q, &mut rx, queues);
                                drop(rx);
                            });
                        }
                        RxStatus::Armed(at) => until = until.min(at),
                        RxStatus::Gone => gone = Some(port.iface),
                    }
                }
                // Another thread is at it; look again soon in case it leaves something.
                None => {
                    fds.extend(port.fd);
                    until = until.min(now + self.sh.config.service / 10);
                }
            }
        }
        if let Some(n) = gone
            && !self.sh.ifaces[usize::from(n)].is_gone()
        {
            self.interface_gone(n);
            ready = true;
        }
        if !ready {
            for &q in queues {
                self.sleepers[usize::from(q)].sleeps(until);
            }
            if let Some(k) = &keeper {
                self.keepers.sleeps(k, until);
            }
            self.sh.asleep(who, || {
                if fds.is_empty() {
                    event.wait(until);
                } else {
                    event.wait_fds(&fds, until);
                }
            });
        }
        if let Some(k) = keeper {
            self.keepers.leave(k);
        }
        for &q in queues {
            self.sleepers[usize::from(q)].remove(event);
        }
    }

    /// Asks the host's devices behind `queues` whether they have gone. Some say so once only, to the
    /// thread that reads first: the service thread may read before one that sleeps in
    /// [`Instance::idle`] has woken up.
    pub(crate) fn notice_gone(&self, queues: &[u16]) {
        for &q in queues {
            let port = &self.sh.rx[usize::from(q)];
            if port.fd.is_none() || self.sh.ifaces[usize::from(port.iface)].is_gone() {
                continue;
            }
            let status = port.queue.try_lock().map(|mut rx| rx.arm(self.sh.p.now()));
            if matches!(status, Some(RxStatus::Gone)) {
                self.interface_gone(port.iface);
            }
        }
    }

    /// Parks the calling thread until `deadline`, or something that `queues`' server sees to is
    /// due; frames alone do not wake it.
    pub(crate) fn doze(&self, event: &Ev<O>, queues: &[u16], deadline: Time) {
        let keeper = self.keepers.doze(&self.sh.p, event);
        // What is due and stays due waits for a thread that is at it.
        let soonest = self.sh.p.now().plus(DOZE);
        let until = deadline.min(self.next_due(queues).max(soonest));
        if let Some(k) = &keeper {
            self.keepers.sleeps(k, until);
        }
        // Who only looks around now and then is not idle: nothing waits for it to work.
        event.wait(until);
        if let Some(k) = keeper {
            self.keepers.leave(k);
        }
    }

    /// Runs `f` with an event for the calling thread to park on. What it has sent goes before that.
    pub fn with_event<R>(&self, f: impl FnOnce(&Ev<O>) -> R) -> R {
        self.ring_kept();
        let e = self
            .events
            .take()
            .unwrap_or_else(|| Box::new(self.new_event()));
        e.take();
        let out = f(&e);
        self.events.put(e);
        out
    }

    #[cold]
    fn new_event(&self) -> Ev<O> {
        let e = Arc::new(self.sh.p.event());
        let mut all = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|e| e.strong_count() > 0);
        all.push(Arc::downgrade(&e));
        e
    }
}
