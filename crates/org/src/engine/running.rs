//! A running stack: an instance with its threads, and how a call comes in.

use crate::Org;
use crate::error::EngineError;
use crate::instance::Instance;
use crate::serve::Joins;
use core::time::Duration;
use perimeter_stack::{Ctx, Op, Over, SockError, SockId};
use perimeter_sync::Platform;
use perimeter_sync::native::Profiling;
use std::sync::{Arc, Mutex};

/// An instance with its threads.
pub struct Running<O: Org> {
    pub(crate) i: Arc<Instance<O>>,
    pub(crate) joins: Mutex<Joins>,
    /// Application threads serve the devices themselves.
    pub(crate) inline: bool,
    /// Dropped last: what the instance is made of notes for it.
    pub(crate) _profiling: Option<Profiling>,
}

impl<O: Org> Running<O> {
    /// Runs `f` with the organization, on behalf of the calling thread: how a call comes to a
    /// protocol beside TCP.
    ///
    /// # Errors
    /// The stack has ended, or takes calls of another thread only.
    pub fn with<R>(&self, f: impl FnOnce(&O, &mut Ctx<O::K>) -> R) -> Result<R, EngineError> {
        Ok(self.enter()?.with(|i, cx| f(&i.org, cx)))
    }

    /// For a call: the instance, if the calling thread may enter it.
    #[inline]
    pub(crate) fn enter(&self) -> Result<&Instance<O>, EngineError> {
        if !self.i.sh.life.on() {
            return Err(self.over());
        }
        self.i.admit().map_err(|_| EngineError::WrongThread)?;
        Ok(&self.i)
    }

    /// Why no call is taken. A thread that finds its stack stopped by another first does what that
    /// one has left for it.
    #[cold]
    pub(crate) fn over(&self) -> EngineError {
        let over = self.i.sh.life.over();
        if over == Over::Stopped && self.i.is_here() && self.i.mailbox.any() {
            self.i.answer();
        }
        over.into()
    }

    /// Why a socket can't be found.
    #[cold]
    pub(crate) fn gone(&self) -> EngineError {
        if self.i.sh.life.on() {
            EngineError::Sock(SockError::Closed)
        } else {
            self.over()
        }
    }

    /// Runs an operation on a connection.
    pub(crate) fn call<Q: Op<O::K> + 'static>(
        &self,
        id: SockId,
        op: Q,
    ) -> Result<Q::Out, EngineError> {
        self.enter_conn(id)?
            .with(|i, cx| i.org.call(cx, id, op))
            .ok_or_else(|| self.gone())
    }

    /// As [`Running::enter`], for what only connections know.
    #[inline]
    pub(crate) fn enter_conn(&self, id: SockId) -> Result<&Instance<O>, EngineError> {
        let i = self.enter()?;
        if !id.is_connection() {
            return Err(SockError::Invalid.into());
        }
        Ok(i)
    }

    /// The receive queues that the calling thread serves while it waits.
    pub(crate) fn own_queues(&self) -> Vec<u16> {
        if self.inline {
            self.i.queues()
        } else {
            Vec::new()
        }
    }

    /// Whether the calling thread may look at what is behind locks, which it also may when the
    /// stack has stopped.
    pub(crate) fn may_look(&self) -> bool {
        !self.i.sh.life.forked() && !self.i.sh.life.failed() && self.i.admit().is_ok()
    }

    /// Looks at what is behind locks, or has it looked at by the thread that may; `None`: nobody
    /// did within a second.
    pub(crate) fn look_inside<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Instance<O>) -> R + Send + 'static,
    ) -> Option<R> {
        if self.may_look() {
            return Some(f(&self.i));
        }
        if !self.i.sh.life.on() {
            return None;
        }
        let deadline = self.i.sh.p.now() + Duration::from_secs(1);
        self.i.anywhere(deadline, f)
    }
}
