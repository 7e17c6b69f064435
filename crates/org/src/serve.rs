//! Threads of the stack's own: inbound protocol threads, and the one that looks around when no
//! application thread does.

use crate::Org;
use crate::instance::Instance;
use crate::made::Making;
use core::time::Duration;
use perimeter_base::Time;
use perimeter_stack::Sleeper;
use perimeter_sync::{Event, Platform, Priority, Thread, Work};
use std::sync::{Arc, Weak};

/// Who takes packets from the devices.
///
/// ```
/// use perimeter_org::Inbound;
///
/// // Where application threads always wait for sockets, they may serve the devices meanwhile.
/// let inbound = |always_waiting: bool| match always_waiting {
///     true => Inbound::Inline,
///     false => Inbound::default(),
/// };
/// assert_eq!(inbound(false), Inbound::Thread);
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Inbound {
    /// Pinned, interrupt-driven threads of the stack's own, one for each interface: what the
    /// papers' kernels do.
    #[default]
    Thread,
    /// Application threads, while they poll or wait. A service thread fills in within 10 ms
    /// when none does.
    Inline,
}

/// How long a thread that serves devices sleeps when it has found nothing to do. Who is wanted is
/// woken; that it looks around at all is for housekeeping, and so that an application thread which
/// arms a timer soon after traffic need not wake it. So it does that ever more rarely while nothing happens: an
/// idle process sleeps.
struct Nap {
    shortest: u64,
    next: u64,
}

/// The longest sleep of threads that serve devices, ns.
const LONGEST: u64 = 10_000_000_000;

impl Nap {
    fn new(shortest: Duration) -> Nap {
        let shortest = u64::try_from(shortest.as_nanos()).unwrap_or(u64::MAX);
        Nap {
            shortest,
            next: shortest,
        }
    }

    /// When the thread is to look around: each time twice as long.
    fn until(&mut self, now: Time) -> Time {
        let ns = self.next;
        self.next = ns.saturating_mul(2).min(LONGEST.max(self.shortest));
        now.plus(ns)
    }

    /// There was something to do.
    fn over(&mut self) {
        self.next = self.shortest;
    }
}

/// Priorities of threads that take their core from the application's, as kernels have them: who serves
/// a device goes before who runs protocols.
const DEVICE: Priority = Priority::new(60);
const PROTOCOL: Priority = Priority::new(50);

/// Threads to be joined when the stack goes.
pub(crate) type Joins = Vec<Box<dyn FnOnce() -> Result<(), String> + Send>>;

/// Starts the threads that `inbound` asks for.
pub(crate) fn start<O: Org>(instance: &Arc<Instance<O>>, inbound: Inbound) -> Joins {
    if instance.spec.single_threaded() {
        return Vec::new();
    }
    let p = instance.sh.p.clone();
    let [device, protocol] = priorities(instance);
    let mut joins: Joins = Vec::new();
    offer(instance);
    for worker in 0..instance.org.workers() {
        let i = instance.clone();
        let body = Box::new(move || guarded(&i, |i| work(i, worker)));
        let core = instance.org.worker_core(worker);
        let t = p.spawn_at(protocol, &format!("protocol-{worker}"), core, body);
        joins.push(Box::new(move || t.join()));
    }
    let mut spawn = |name: String, core: Option<usize>, queues: Vec<u16>, polite: bool| {
        let i = instance.clone();
        let body = Box::new(move || guarded(&i, |i| serve(i, &queues, polite)));
        let t = p.spawn_at(device, &name, core, body);
        joins.push(Box::new(move || t.join()));
    };
    match inbound {
        Inbound::Thread => {
            // Whoever serves a device serves the loopback as well.
            let devices = usize::from(instance.sh.loopback().0);
            for (n, iface) in instance.sh.ifaces[..devices].iter().enumerate() {
                spawn(
                    format!("inbound-{n}"),
                    Some(n),
                    iface.rx.clone().collect(),
                    false,
                );
            }
        }
        Inbound::Inline => {
            spawn("service".to_string(), None, instance.queues(), true);
        }
    }
    // Last: the others may have had some made until they ended.
    let i = instance.clone();
    joins.push(Box::new(move || {
        i.made.join();
        Ok(())
    }));
    joins
}

/// Tells the organization how to have protocol threads made. What it keeps of the instance does not
/// keep that alive.
fn offer<O: Org>(instance: &Arc<Instance<O>>) {
    let weak = Arc::downgrade(instance);
    instance.org.may_make(Box::new(move |worker| {
        let instance = Weak::upgrade(&weak);
        instance.map_or(Making::Over, |i| make(&i, worker))
    }));
}

/// Makes protocol thread `worker` while the stack runs.
fn make<O: Org>(instance: &Arc<Instance<O>>, worker: usize) -> Making {
    let over = || instance.stopping();
    instance.made.make(worker, over, |follows| {
        let i = instance.clone();
        let body = Box::new(move || {
            if follows {
                i.made.await_the_one_before(worker);
            }
            guarded(&i, |i| work(i, worker));
        });
        let [_, protocol] = priorities(instance);
        let core = instance.org.worker_core(worker);
        let name = format!("protocol-{worker}");
        instance.sh.p.try_spawn_at(protocol, &name, core, body)
    })
}

/// Those of threads that serve devices, and of threads that run the protocol.
fn priorities<O: Org>(instance: &Instance<O>) -> [Priority; 2] {
    match instance.sh.config.preemptive {
        true => [DEVICE, PROTOCOL],
        false => [Priority::ORDINARY; 2],
    }
}

/// Fails the stack if the thread that it belongs to panics, and says so to nobody else: the
/// panic's own message has been printed.
fn guarded<O: Org>(i: &Arc<Instance<O>>, body: impl FnOnce(&Instance<O>)) {
    let run = std::panic::AssertUnwindSafe(|| body(i));
    if let Err(cause) = std::panic::catch_unwind(run) {
        i.fail();
        // The platform tells who joins the thread, and may unwind a thread for reasons of its
        // own.
        std::panic::resume_unwind(cause);
    }
}

/// Serves `queues` until the stack stops. A polite server looks around only now and then, and in
/// between sees to timers that are due. While application threads poll, they do all of that: then it
/// stays away, as it would only take connections to its own core.
fn serve<O: Org>(i: &Instance<O>, queues: &[u16], polite: bool) {
    let mut nap = Nap::new(i.sh.config.service);
    i.with_event(|event| {
        while !i.stopping() {
            i.sh.p.charge(Work::Poll, 1);
            let (n, enough) = match polite {
                true => (i.with(|i, cx| i.fill_in(cx, queues)), false),
                false => i.with(|i, cx| i.drive_within_budget(cx, queues)),
            };
            if i.stopping() {
                break;
            }
            if polite {
                i.notice_gone(queues);
                let until = i.sh.p.now() + i.sh.config.service;
                while !i.stopping() && i.sh.p.now() < until {
                    let attended = queues.iter().filter_map(|q| i.attended(*q)).max();
                    if let Some(to) = attended {
                        event.wait(until.min(to));
                        continue;
                    }
                    i.doze(event, queues, until);
                    i.with(|i, cx| i.timers(cx, queues));
                }
            } else if n == 0 {
                let until = nap.until(i.sh.p.now());
                i.idle(Sleeper::Server, event, queues, until);
                let now = i.sh.p.now();
                // Woken for a timer that somebody has armed: the next one need not.
                if now < until && now < i.next_due(queues) {
                    nap.over();
                }
            } else {
                nap.over();
                i.sh.p.checkpoint();
                if enough {
                    i.sh.p.yield_now();
                }
            }
        }
    });
}

/// Tells the organization that a protocol thread ends, also when it panics.
struct Leaving<'a, O: Org>(&'a Instance<O>, usize);

impl<O: Org> Drop for Leaving<'_, O> {
    fn drop(&mut self) {
        self.0.org.retire(self.1);
    }
}

/// The life of a protocol thread. It sleeps until something is handed to it, timers of its own are
/// due, or the stack ends: whoever ends it says so first, and then wakes it. One that was made
/// while the stack runs may end before.
fn work<O: Org>(i: &Instance<O>, worker: usize) {
    let leaving = Leaving(i, worker);
    while !i.stopping() {
        i.sh.p.charge(Work::Poll, 1);
        let (n, leaves) = i.with(|i, cx| {
            let n = i.org.work(worker, cx);
            (n, n == 0 && i.org.leaves(worker, cx))
        });
        if leaves {
            // No end of the stack, and nothing to be told of.
            core::mem::forget(leaving);
            return;
        }
        if n == 0 {
            i.sh.asleep(Sleeper::Server, || i.org.park(worker, Time::NEVER));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_until_there_is_something_to_do() {
        let mut nap = Nap::new(Duration::from_millis(5));
        let mut at = Time::ZERO;
        let mut naps = 0;
        while at < Time::from_millis(60_000) {
            at = nap.until(at);
            naps += 1;
        }
        assert!(naps < 18, "{naps} in the first minute");
        assert_eq!(nap.until(at), at.plus(LONGEST));
        nap.over();
        assert_eq!(nap.until(at), at.plus(5_000_000));
        // Who is to look around rarely does.
        let mut rarely = Nap::new(Duration::from_secs(1000));
        assert_eq!(rarely.until(at), rarely.until(at));
    }
}
