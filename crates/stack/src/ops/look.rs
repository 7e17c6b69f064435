//! Looking at a connection, and waiting for it.

use super::{Op, Step};
use crate::conn::{Access, Bufs, ConnInfo, Ran};
use crate::ctx::Ctx;
use crate::kind::Kind;
use crate::ready::{self, RegWord};
use crate::segment::NOWHERE;
use crate::tasks::Tasks;
use perimeter_base::Time;
use perimeter_sync::Platform;
use perimeter_tcp::{State, TcpError};
use std::sync::Arc;

/// Looks at a connection.
pub struct Look;

impl<K: Kind> Op<K> for Look {
    type Out = ConnInfo;

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) -> ConnInfo {
        look(a, cx.now())
    }
}

/// What there is to say about a connection.
pub fn look<A: Access>(a: &mut A, now: Time) -> ConnInfo {
    let t = a.tcb();
    let now = now.max(t.meta.now);
    let (id, key, tcp, orphan) = (t.meta.id, t.meta.key, t.tcb.info(now), t.meta.orphan);
    let (tos, device) = (t.meta.tos, t.meta.device);
    let ttl = t.meta.ttl.unwrap_or_else(|| t.meta.template.ttl());
    let core = |core| (core != NOWHERE).then_some(core);
    let mut ran = Ran {
        ip: core(t.meta.ip_core),
        tcp: core(t.meta.tcp_core),
        ..Ran::default()
    };
    let (snd_queued, snd_limit, snd_memory, acked) = {
        let snd = a.snd();
        ran.send = core(snd.core);
        (snd.buf.len(), snd.buf.limit(), snd.memory(), snd.acked)
    };
    let rcv = a.rcv();
    ran.receive = core(rcv.core);
    ConnInfo {
        id,
        key,
        tcp,
        snd_queued,
        snd_limit,
        rcv_queued: rcv.buf.len(),
        rcv_limit: rcv.buf.limit(),
        memory: snd_memory + rcv.buf.memory(),
        acked,
        tos,
        ttl,
        device,
        orphan,
        ran,
    }
}

/// SO_ERROR: yields the pending error and clears it. Also tells whether the handshake is still
/// under way.
pub struct TakeError;

impl<K: Kind> Op<K> for TakeError {
    type Out = (Option<TcpError>, State);

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, _: &mut Ctx<K>) -> Self::Out {
        let t = a.tcb();
        (t.tcb.take_error(), t.tcb.state())
    }
}

/// What a connection is ready for now, as in [`crate::ready`].
pub struct Readiness;

impl<K: Kind> Op<K> for Readiness {
    type Out = u8;

    fn sock<B: Bufs<K = K>>(&mut self, b: &mut B, _: &mut Ctx<K>) -> Step<u8> {
        let out = b.snd().side.bits();
        Step::Done(out | b.rcv().side.bits())
    }

    fn tcp<A: Access<K = K>>(&mut self, _: &mut A, _: &mut Ctx<K>) -> u8 {
        0
    }
}

/// Adds or removes a poller's registration.
pub enum Watching {
    /// Add it.
    Add(Arc<RegWord>),
    /// Remove it.
    Remove(Arc<RegWord>),
    /// Add tasks of a runtime instead.
    Tasks(Arc<Tasks>),
}

impl<K: Kind> Op<K> for Watching {
    type Out = ();

    fn sock<B: Bufs<K = K>>(&mut self, b: &mut B, cx: &mut Ctx<K>) -> Step<()> {
        match self {
            Watching::Add(reg) => {
                b.snd().side.register(reg, &mut cx.deferred.wakes);
                b.rcv().side.register(reg, &mut cx.deferred.wakes);
            }
            Watching::Remove(r) => {
                b.snd().side.deregister(r.poller, r.slot, r.generation);
                b.rcv().side.deregister(r.poller, r.slot, r.generation);
            }
            Watching::Tasks(tasks) => {
                b.snd().side.add_tasks(tasks, &mut cx.deferred.wakes);
                b.rcv().side.add_tasks(tasks, &mut cx.deferred.wakes);
            }
        }
        Step::Done(())
    }

    fn tcp<A: Access<K = K>>(&mut self, _: &mut A, _: &mut Ctx<K>) {}
}

/// A blocked call announces itself, or takes itself off. Yields whether the direction is ready
/// already (then nothing was announced).
pub struct Wait<K: Kind> {
    /// [`ready::OUT`], [`ready::IN`], or [`ready::HUP`] for the end alone.
    pub direction: u8,
    /// Where the caller will park.
    pub event: Arc<<K::P as Platform>::Event>,
    /// Take off instead of announce.
    pub off: bool,
}

impl<K: Kind> Op<K> for Wait<K> {
    type Out = bool;

    fn sock<B: Bufs<K = K>>(&mut self, b: &mut B, _: &mut Ctx<K>) -> Step<bool> {
        let done = match (self.direction == ready::OUT, self.off) {
            (true, false) => b.snd().side.wait(ready::OUT, &self.event),
            (false, false) => b.rcv().side.wait(self.direction, &self.event),
            (true, true) => {
                b.snd().side.unwait(&self.event);
                true
            }
            (false, true) => {
                b.rcv().side.unwait(&self.event);
                true
            }
        };
        Step::Done(done)
    }

    fn tcp<A: Access<K = K>>(&mut self, _: &mut A, _: &mut Ctx<K>) -> bool {
        true
    }
}
