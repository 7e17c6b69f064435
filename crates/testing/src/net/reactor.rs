//! Which tasks wait for which sockets of a host.

use perimeter::{Events, Interest, Poll, Registry, Source, Stack, Token};
use std::io::Result;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

/// Events that are asked for at a time.
const EVENTS: usize = 64;

/// A direction of a socket.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Reading, and accepting.
    Read,
    /// Writing, and connecting.
    Write,
}

/// Tasks that wait for one socket, by direction.
#[derive(Default)]
struct Waiting([Vec<Waker>; 2]);

#[derive(Default)]
struct Sockets {
    all: Vec<Option<Waiting>>,
    free: Vec<usize>,
}

/// The tasks of one host that wait for its sockets. All of it is used by one thread, but sockets
/// go into tasks that could be moved to another.
pub(crate) struct Reactor {
    poll: Poll,
    registry: Registry,
    sockets: Mutex<Sockets>,
}

impl Reactor {
    pub(crate) fn new(stack: &Stack) -> Result<Arc<Reactor>> {
        let mut poll = stack.poll()?;
        // The simulation serves the stack.
        poll.serve(&[]);
        Ok(Arc::new(Reactor {
            registry: poll.registry(),
            poll,
            sockets: Mutex::default(),
        }))
    }

    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes who waits for sockets that have become ready; whether anybody did.
    pub(crate) fn dispatch(&self) -> bool {
        let mut events = Events::with_capacity(EVENTS);
        let mut any = false;
        loop {
            // A stack that has ended has told everybody so.
            if self.poll.poll(&mut events, Some(Duration::ZERO)).is_err() || events.is_empty() {
                return any;
            }
            let mut woken = Vec::new();
            let mut sockets = self.sockets();
            for e in events.iter() {
                let Some(Some(Waiting([read, write]))) = sockets.all.get_mut(e.token().0) else {
                    continue;
                };
                if e.is_readable() {
                    woken.append(read);
                }
                if e.is_writable() {
                    woken.append(write);
                }
            }
            drop(sockets);
            any |= !woken.is_empty();
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// From now on tasks can wait for `source`, by the number that this yields.
    pub(super) fn add(&self, source: &impl Source) -> Result<usize> {
        let mut sockets = self.sockets();
        let number = sockets.free.pop().unwrap_or(sockets.all.len());
        if number == sockets.all.len() {
            sockets.all.push(None);
        }
        sockets.all[number] = Some(Waiting::default());
        drop(sockets);
        let added = self
            .registry
            .register(source, Token(number), Interest::BOTH.edge());
        if added.is_err() {
            self.forget(number);
        }
        added.map(|()| number)
    }

    pub(super) fn remove(&self, source: &impl Source, number: usize) {
        // It may have gone with its stack.
        let _ = self.registry.deregister(source);
        self.forget(number);
    }

    fn forget(&self, number: usize) {
        let mut sockets = self.sockets();
        let waiting = sockets.all[number].take();
        sockets.free.push(number);
        drop(sockets);
        drop(waiting);
    }

    /// The task of `cx` is woken when that direction becomes ready.
    pub(super) fn wait(&self, number: usize, direction: Direction, cx: &Context<'_>) {
        if let Some(waiting) = &mut self.sockets().all[number] {
            let list = &mut waiting.0[direction as usize];
            if !list.iter().any(|w| w.will_wake(cx.waker())) {
                list.push(cx.waker().clone());
            }
        }
    }
}
