//! How a stack ends: in order, with everything delivered that was written; at once; or because
//! a thread panicked in it.

use crate::Org;
use crate::engine::{Engine, Fault, Running};
use crate::instance::Instance;
use core::time::Duration;
use perimeter_stack::ops::{Close, How, Shutdown, Watching};
use perimeter_stack::{ConnInfo, Over, SockId};
use perimeter_sync::Platform;
use perimeter_tcp::State;
use std::sync::Arc;

/// What peers have not acknowledged.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Undelivered {
    /// Connections with data or a FIN that is not acknowledged.
    pub connections: usize,
    /// Bytes in their send buffers.
    pub bytes: u64,
}

impl Undelivered {
    /// Whether there is nothing.
    pub fn is_none(&self) -> bool {
        self.connections == 0
    }

    fn add(&mut self, c: &ConnInfo) {
        // TIME-WAIT and FIN-WAIT-2 come after the acknowledgment of our FIN.
        let owes = match c.tcp.state {
            State::Closed | State::TimeWait | State::FinWait2 => false,
            State::FinWait1 | State::Closing | State::LastAck => true,
            _ => c.snd_queued > 0,
        };
        if owes {
            self.connections += 1;
            self.bytes += u64::from(c.snd_queued);
        }
    }
}

impl core::fmt::Display for Undelivered {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (n, bytes) = (self.connections, self.bytes);
        write!(
            f,
            "{n} connections with {bytes} bytes that were not delivered"
        )
    }
}

/// How long who drains waits without progress where all data is acknowledged and only FINs are not:
/// some four of them get lost until then, or, more likely, the peer has gone after its own.
const FINS: Duration = Duration::from_secs(3);

/// How soon who drains looks again at first, ns; doubled at each look that finds no progress.
const LOOK: u64 = 100_000;
/// The longest between two looks, ns.
const LOOK_MOST: u64 = 10_000_000;

impl From<Over> for Fault {
    fn from(o: Over) -> Fault {
        match o {
            Over::Stopped => Fault::Stopped,
            Over::Failed(cause) => Fault::Failed(cause),
            Over::Forked => Fault::Forked,
        }
    }
}

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
        self.with(|i, cx| i.org.abort_all(cx));
        self.sh.pollers.raise_all();
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
        } else {
            let close = Close { abort: false };
            self.with(|i, cx| i.org.call(cx, id, close));
        }
    }
}

impl<O: Org> Running<O> {
    /// Why no call is taken. A thread that finds its stack stopped by another first does what that
    /// one has left for it.
    #[cold]
    pub(crate) fn over(&self) -> Fault {
        let over = self.i.sh.life.over();
        if over == Over::Stopped && self.i.is_here() && self.i.mailbox.any() {
            self.i.mailbox.answer(&self.i);
        }
        over.into()
    }

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

    /// As [`Engine::finish`].
    pub(crate) fn finish_all(&self, limit: Duration) -> Result<Undelivered, Fault> {
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
        self.stop();
        Ok(left)
    }

    /// As [`Engine::stop`].
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

/// Fails the stack if the thread that it belongs to panics, and says so to nobody else: the
/// panic's own message has been printed.
pub(crate) fn guarded<O: Org>(i: &Arc<Instance<O>>, body: impl FnOnce(&Instance<O>)) {
    let run = std::panic::AssertUnwindSafe(|| body(i));
    if let Err(cause) = std::panic::catch_unwind(run) {
        i.fail();
        // The platform tells who joins the thread, and may unwind a thread for reasons of its
        // own.
        std::panic::resume_unwind(cause);
    }
}

/// Closes a poller and takes its registrations off their sockets.
pub(crate) fn close_poller<O: Org>(i: &Instance<O>, poller: u32) {
    for (sock, word) in i.sh.pollers.close(poller) {
        // A socket that has gone has taken its side of the registration along.
        if sock.is_listener() {
            if let Some(l) = i.sh.listener(sock) {
                l.with_side(|side| side.deregister(word.poller, word.slot, word.generation));
            }
        } else {
            i.with(|i, cx| i.org.call(cx, sock, Watching::Remove(word)));
        }
    }
}

impl<O: Org> Drop for Running<O> {
    fn drop(&mut self) {
        self.last();
    }
}
