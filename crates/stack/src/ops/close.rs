//! The ends of a connection, as the application asks for them.

use super::{Op, SockError, Step};
use crate::conn::{Access, Bufs};
use crate::ctx::Ctx;
use crate::glue;
use crate::kind::Kind;
use crate::output;
use crate::ready;
use core::time::Duration;
use perimeter_tcp::State;

/// Which directions to shut down.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// No more reading.
    Read,
    /// No more writing: FIN after what is queued.
    Write,
    /// Neither.
    Both,
}

/// Shuts down one or both directions.
pub struct Shutdown(pub How);

impl<K: Kind> Op<K> for Shutdown {
    type Out = Result<(), SockError>;

    const ENDS: bool = true;

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) -> Self::Out {
        if matches!(
            a.tcb().tcb.state(),
            State::Closed | State::TimeWait | State::SynSent
        ) {
            return Err(SockError::NotConnected);
        }
        if self.0 != How::Write {
            let mut rcv = a.rcv();
            rcv.shut = true;
            rcv.side
                .raise(ready::IN | ready::RDHUP, &mut cx.deferred.wakes);
        }
        if self.0 != How::Read {
            {
                let mut snd = a.snd();
                snd.shut = true;
                snd.side.raise(ready::OUT, &mut cx.deferred.wakes);
            }
            let now = glue::now(a, cx);
            a.tcb().tcb.shutdown_write(now);
            a.before_output();
            output::output(a, cx);
        }
        Ok(())
    }
}

/// The application lets go of the connection. Unread data, or a linger time of zero, turns it
/// into a reset (RFC 2525, section 2.17; RFC 1122, section 4.2.2.13).
pub struct Close {
    /// Reset whatever the state.
    pub abort: bool,
}

impl<K: Kind> Op<K> for Close {
    type Out = ();

    const ENDS: bool = true;

    fn sock<B: Bufs<K = K>>(&mut self, b: &mut B, cx: &mut Ctx<K>) -> Step<()> {
        {
            let mut rcv = b.rcv();
            self.abort |= !rcv.buf.is_empty();
            rcv.shut = true;
            rcv.left = true;
            rcv.side.leave(&mut cx.deferred.wakes);
        }
        let mut snd = b.snd();
        snd.shut = true;
        snd.side.leave(&mut cx.deferred.wakes);
        Step::Tcp
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) {
        // Where the buffers are protected apart, data may have come in between the phases; and
        // the first may have seen no more of the send side than its readiness.
        self.abort |= !a.rcv().buf.is_empty();
        a.snd().shut = true;
        let now = glue::now(a, cx);
        let t = a.tcb();
        t.meta.orphan = true;
        if self.abort || t.meta.linger == Some(Duration::ZERO) {
            return glue::abort(a, cx);
        }
        t.tcb.close(now);
        if t.tcb.state() == State::Closed {
            t.meta.closed = true;
        }
        a.before_output();
        output::output(a, cx);
    }
}
