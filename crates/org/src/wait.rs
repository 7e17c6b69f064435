//! Calls that block: announcing them, parking, and looking again.

use crate::Org;
use crate::engine::Running;
use crate::error::EngineError;
use crate::instance::Ev;
use perimeter_base::Time;
use perimeter_stack::ops::Wait;
use perimeter_stack::poller::Ready;
use perimeter_stack::{Sleeper, SockError, SockId, ready};
use perimeter_sync::{Event, Platform, Work};

impl<O: Org> Running<O> {
    /// Announces a blocked call, or takes it off; whether it need not block.
    pub(crate) fn announce(
        &self,
        id: SockId,
        direction: u8,
        event: &Ev<O>,
        off: bool,
    ) -> Result<bool, EngineError> {
        if id.is_datagram() {
            return self.announce_datagram(id, direction, event, off);
        }
        if !id.is_listener() {
            let event = event.clone();
            return self.call(
                id,
                Wait::<O::K> {
                    direction,
                    event,
                    off,
                },
            );
        }
        let l = self.i.sh.listener(id).ok_or_else(|| self.gone())?;
        Ok(l.with_sides(|accept, ask| {
            let side = match direction == ready::OUT {
                true => ask,
                false => accept,
            };
            if off {
                side.unwait(event);
                return true;
            }
            side.wait(direction & (ready::IN | ready::OUT), event)
        }))
    }

    /// Parks until `event` is set, serving the devices meanwhile if that is this thread's job.
    pub(crate) fn park(&self, event: &Ev<O>, queues: &[u16], deadline: Time) {
        if queues.is_empty() || self.i.with(|i, cx| i.drive(cx, queues)) == 0 {
            self.rest(event, queues, deadline);
        }
    }

    /// As [`Running::park`], for a thread that has just served `queues`.
    pub(crate) fn rest(&self, event: &Ev<O>, queues: &[u16], deadline: Time) {
        if queues.is_empty() {
            self.i.patiently(event, queues, deadline, || {
                self.i.sh.asleep(Sleeper::Caller, || event.wait(deadline));
            });
        } else {
            self.i.idle(Sleeper::Caller, event, queues, deadline);
        }
    }

    /// Whether a blocked call's direction is ready now, though its event was not set: it may
    /// have been told by a thread that has not got around to setting it.
    fn told(&self, id: SockId, direction: u8, event: &Ev<O>) -> Result<bool, EngineError> {
        self.announce(id, direction, event, true)?;
        self.announce(id, direction, event, false)
    }

    /// `Engine::wait`, serving `queues`.
    pub(crate) fn wait_for(
        &self,
        id: SockId,
        direction: u8,
        queues: &[u16],
        deadline: Time,
    ) -> Result<(), EngineError> {
        self.i.with_event(|event| {
            if self.announce(id, direction, event, false)? {
                return Ok(());
            }
            loop {
                // Whoever stops the stack wakes those who are parked; who comes later sees it
                // here.
                if self.i.stopping() {
                    return Err(self.over());
                }
                self.park(event, queues, deadline);
                // Told: the announcement is off by itself. Otherwise take it off, and learn
                // whether readiness came at the same moment.
                if event.take() || self.told(id, direction, event)? {
                    return Ok(());
                }
                if self.i.sh.p.now() >= deadline {
                    self.announce(id, direction, event, true)?;
                    return Err(EngineError::TimedOut);
                }
            }
        })
    }

    /// `Engine::poll`, whoever waits outside.
    pub(crate) fn poll_for(
        &self,
        poller: u32,
        queues: &[u16],
        out: &mut Vec<Ready>,
        max: usize,
        deadline: Time,
    ) -> Result<usize, EngineError> {
        let i = self.enter()?;
        let p = i.sh.pollers.get(poller).ok_or(SockError::Closed)?;
        let mut frames = if queues.is_empty() {
            i.ring_kept();
            0
        } else {
            i.with(|i, cx| i.drive(cx, queues))
        };
        loop {
            i.sh.p.charge(Work::Poll, 1);
            let n = p.take(out, max);
            if n > 0 || deadline <= Time::ZERO {
                return Ok(n);
            }
            if i.stopping() {
                return Err(self.over());
            }
            if p.woken() || (deadline < Time::NEVER && i.sh.p.now() >= deadline) {
                return Ok(0);
            }
            if frames == 0 {
                i.with_event(|event| {
                    if !p.wait(event) {
                        return;
                    }
                    if i.stopping() {
                        return p.unwait(event);
                    }
                    self.rest(event, queues, deadline);
                    p.unwait(event);
                });
            }
            if !queues.is_empty() {
                frames = i.with(|i, cx| i.drive(cx, queues));
            }
        }
    }
}
