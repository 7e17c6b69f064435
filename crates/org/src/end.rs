//! How a stack ends: in order, with everything delivered that was written; at once; or because
//! a thread panicked in it.

use crate::Org;
use crate::engine::{Running, Undelivered};
use crate::error::EngineError;
use crate::instance::Instance;
use core::time::Duration;
use perimeter_stack::fragment;
use perimeter_stack::ops::{Close, How, Shutdown};
use perimeter_stack::{ConnInfo, SockId};
use perimeter_sync::Platform;

/// How long who drains waits without progress where all data is acknowledged and only FINs are not:
/// some four of them get lost until then, or, more likely, the peer has gone after its own.
const FINS: Duration = Duration::from_secs(3);

/// How soon who drains looks again at first, ns; doubled at each look that finds no progress.
const LOOK: u64 = 100_000;
/// The longest between two looks, ns.
const LOOK_MOST: u64 = 10_000_000;

impl<O: Org> Instance<O> {
    /// Closes all listeners: nothing new comes in.
    fn close_listeners(&self) {
        for l in self.sh.listeners() {
            let _ = self.with(|i, cx| i.close_listener(cx, l.id));
        }
    }

    /// Ends all connections, now.
    pub(crate) fn reset(&self) {
        self.close_listeners();
        self.close_datagrams();
        self.with(|i, cx| i.org.abort_all(cx));
        self.abandon_fragments();
        self.with(|i, cx| i.sh.release_leases(cx.own));
        self.sh.pollers.raise_all();
    }

    /// What a late fragment pins is given back, as all else is.
    fn abandon_fragments(&self) {
        self.with(|_, cx| fragment::abandon(cx));
    }

    /// What peers have not acknowledged. `all` is scratch space.
    fn undelivered(&self, all: &mut Vec<ConnInfo>) -> Undelivered {
        let mut left = Undelivered::default();
        all.clear();
        self.org.inspect(self.sh.p.now(), all);
        for c in all.iter() {
            left.add(c);
        }
        left
    }

    /// Lets go of a socket of any kind on behalf of an application thread that may enter.
    pub(crate) fn let_go(&self, id: SockId) {
        if id.is_listener() {
            let _ = self.with(|i, cx| i.close_listener(cx, id));
        } else if id.is_datagram() {
            self.with(|i, cx| i.close_datagram(cx, id));
        } else {
            let close = Close { abort: false };
            self.with(|i, cx| i.org.call(cx, id, close));
        }
    }
}

impl<O: Org> Running<O> {
    /// Waits until peers have acknowledged everything, the FINs too; for at most `limit`, and for
    /// `stall` without any progress. What is left then.
    pub(crate) fn drain(&self, limit: Duration, stall: Duration) -> Undelivered {
        let i = &*self.i;
        let queues = self.own_queues();
        let mut all = Vec::new();
        let (mut best, mut step) = (None, LOOK);
        let end = i.sh.p.now() + limit;
        let mut stalled = end;
        loop {
            if !queues.is_empty() {
                i.with(|i, cx| i.drive(cx, &queues));
            }
            let left = i.undelivered(&mut all);
            let now = i.sh.p.now();
            // Messages that nobody has run may hold data, too.
            if left.is_none() && i.org.pending() == 0 {
                return left;
            }
            if best != Some(left) {
                best = Some(left);
                step = LOOK;
                stalled = now
                    + if left.bytes == 0 {
                        stall.min(FINS)
                    } else {
                        stall
                    };
            }
            let until = end.min(stalled);
            if now >= until || i.stopping() || i.sh.p.torn_down() || !i.sh.carrier() {
                return left;
            }
            let until = until.min(now.plus(step));
            i.with_event(|event| self.rest(event, &queues, until));
            step = (2 * step).min(LOOK_MOST);
        }
    }

    /// As [`Engine::finish`](crate::Engine::finish).
    pub(crate) fn finish_all(&self, limit: Duration) -> Result<Undelivered, EngineError> {
        let i = self.enter()?;
        i.sh.life.close();
        i.close_listeners();
        let mut all = Vec::new();
        i.org.inspect(i.sh.p.now(), &mut all);
        for c in all.iter().filter(|c| !c.orphan) {
            let _ = i.with(|i, cx| i.org.call(cx, c.id, Shutdown(How::Write)));
        }
        let left = self.drain(limit, limit);
        if i.sh.life.failed() {
            return Err(self.over());
        }
        self.stop_now();
        Ok(left)
    }

    /// As [`Engine::stop`](crate::Engine::stop).
    pub(crate) fn stop_now(&self) {
        let i = &self.i;
        if i.sh.life.forked() || !i.sh.life.stop() {
            return;
        }
        if i.admit().is_ok() {
            i.reset();
        } else {
            // Its own thread does it when it enters, or wakes, the next time.
            i.leave(Instance::reset);
        }
        i.wake_all();
        self.join();
        if i.admit().is_ok() {
            // Those that the stack's threads took in until they ended.
            i.abandon_fragments();
        }
    }

    /// Waits for the end of the stack's threads.
    fn join(&self) {
        let joins = self
            .joins
            .lock()
            .map(|mut j| core::mem::take(&mut *j))
            .unwrap_or_default();
        for j in joins {
            // A thread that panicked has said so already.
            let _ = j();
        }
    }

    /// The last handle goes.
    pub(crate) fn last(&mut self) {
        let i = &self.i;
        if i.sh.life.forked() {
            // Threads, locks' owners and devices are the parent's: nothing is touched, not even
            // to give its memory back.
            core::mem::forget(i.clone());
            if let Ok(mut joins) = self.joins.lock() {
                core::mem::forget(core::mem::take(&mut *joins));
            }
            core::mem::forget(self._profiling.take());
            return;
        }
        let config = &i.sh.config;
        if !i.stopping() && !config.drain.is_zero() {
            self.deliver(config.drain, config.drain_stall);
        }
        self.stop_now();
        self.join();
    }

    /// Drains, and says on standard error what was lost: nobody is left who could be told.
    fn deliver(&self, limit: Duration, stall: Duration) {
        let i = &self.i;
        if i.sh.p.torn_down() {
            return;
        }
        if i.admit().is_ok() {
            return self.deliver_here(limit, stall);
        }
        // Of a stack of one thread that has ended, another one takes the place.
        let mut stand_in = || {
            self.deliver_here(limit, stall);
            self.stop_now();
        };
        let lane = i.owner().unwrap_or(usize::MAX);
        let memory = i.sh.memory();
        if !i.sh.p.stand_in(lane, &mut stand_in) && memory > 0 {
            eprintln!(
                "perimeter: a stack of organization `{}` was dropped by another thread than its \
                 own, which alone can deliver what was written; its connections held {memory} \
                 bytes",
                i.spec
            );
        }
    }

    fn deliver_here(&self, limit: Duration, stall: Duration) {
        let left = self.drain(limit, stall);
        if !left.is_none() && self.i.sh.carrier() {
            eprintln!("perimeter: a stack ended with {left}");
        }
    }
}

impl<O: Org> Drop for Running<O> {
    fn drop(&mut self) {
        self.last();
    }
}
