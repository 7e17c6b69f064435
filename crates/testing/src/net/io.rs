//! What streams and listeners have in common: a call that would block waits for readiness.

use super::reactor::{Direction, Reactor};
use perimeter::Source;
use std::future::poll_fn;
use std::io::{ErrorKind, Result};
use std::sync::Arc;
use std::task::{Context, Poll};

/// A socket that tasks can wait for.
pub(super) struct Io<S: Source> {
    pub(super) socket: S,
    reactor: Arc<Reactor>,
    number: usize,
}

impl<S: Source> Io<S> {
    /// `socket` must not block.
    pub(super) fn new(socket: S, reactor: &Arc<Reactor>) -> Result<Io<S>> {
        Ok(Io {
            number: reactor.add(&socket)?,
            socket,
            reactor: reactor.clone(),
        })
    }

    pub(super) fn reactor(&self) -> &Arc<Reactor> {
        &self.reactor
    }

    /// Calls `f`; if it would block, the task of `cx` is woken when another try may succeed.
    ///
    /// Nothing can become ready between the two: the stack runs when no task does.
    pub(super) fn poll<R>(
        &self,
        direction: Direction,
        cx: &Context<'_>,
        mut f: impl FnMut(&S) -> Result<R>,
    ) -> Poll<Result<R>> {
        match f(&self.socket) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.reactor.wait(self.number, direction, cx);
                Poll::Pending
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            done => Poll::Ready(done),
        }
    }

    /// Calls `f` until it does not block.
    pub(super) async fn call<R>(
        &self,
        direction: Direction,
        mut f: impl FnMut(&S) -> Result<R>,
    ) -> Result<R> {
        poll_fn(|cx| self.poll(direction, cx, &mut f)).await
    }
}

impl<S: Source> Drop for Io<S> {
    fn drop(&mut self) {
        self.reactor.remove(&self.socket, self.number);
    }
}
