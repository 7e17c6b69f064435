//! What protocol threads are asked to do.

use super::cell::Keep;
use super::thread::{At, Job, Next};
use crate::Kd;
use perimeter_stack::ops::{self, Op};
use perimeter_stack::shard::ExistsError;
use perimeter_stack::{Ctx, Flow, Listener, Seg, SockId, Sockets};
use perimeter_sync::Platform;
use perimeter_tcp::Config;
use perimeter_tcp::syncache::Established;
use perimeter_wire::{FlowKey, Seq};
use std::sync::Arc;

/// This file, for [`Family::hand_over`](crate::spec::Family).
pub(super) const FILE: &str = file!();

/// Which part of an operation is left to the protocol.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// The second phase.
    Tcp,
    /// What follows from the first.
    Kick,
    /// Both.
    Whole,
}

/// A socket call, or what the buffers have left of it.
pub(super) struct Call<P: Platform, Q: Op<Kd<P>> + 'static> {
    pub(super) id: SockId,
    pub(super) part: Phase,
    pub(super) op: Option<Q>,
    /// Filled in by the protocol thread, unless the connection has gone.
    pub(super) out: Option<Q::Out>,
}

/// Runs `f` on a connection; if that was the application's letting go, its name no longer opens
/// the buffers.
fn with<C: Keep, R>(
    at: &mut At<'_, C>,
    id: SockId,
    orphans: bool,
    f: impl FnOnce(&mut C, &mut Ctx<Kd<C::P>>) -> R,
) -> Option<R> {
    at.group.shard.with(&mut at.cx, id, orphans, |c, cx| {
        let was = c.tcb().meta.orphan;
        let out = f(c, cx);
        if c.tcb().meta.orphan && !was {
            c.shut_out();
        }
        out
    })
}

impl<C: Keep, Q: Op<Kd<C::P>> + 'static> Job<C> for Call<C::P, Q> {
    fn run(&mut self, at: &mut At<'_, C>) -> Next {
        let part = self.part;
        if let Some(mut op) = self.op.take() {
            self.out = with(at, self.id, false, |c, cx| match part {
                Phase::Whole => Some(ops::run(c, op, cx)),
                Phase::Tcp => Some(op.tcp(c, cx)),
                Phase::Kick => {
                    op.kick(c, cx);
                    None
                }
            })
            .flatten();
        }
        Next::Done
    }
}

/// What the stack asks of a connection by itself, whether an application holds it or not.
pub(super) struct Post<Q> {
    pub(super) id: SockId,
    pub(super) op: Option<Q>,
}

impl<C: Keep, Q: Op<Kd<C::P>, Out = ()> + 'static> Job<C> for Post<Q> {
    fn run(&mut self, at: &mut At<'_, C>) -> Next {
        if let Some(op) = self.op.take() {
            with(at, self.id, true, |c, cx| ops::run(c, op, cx));
        }
        Next::Done
    }
}

/// connect(2). Its tuple is incomplete as far as the protocol knows, so it begins on thread 0,
/// which binds it, hashes the complete tuple, unlinks it and forwards it to its owner.
pub(super) struct Connect {
    pub(super) flow: Flow,
    pub(super) config: Config,
    pub(super) stage: Stage,
    pub(super) out: Option<Result<SockId, ExistsError>>,
}

/// How far a connect has come.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    /// On its way to thread 0, or there.
    Incomplete,
    /// To the thread that its hash names.
    Hashed,
    /// `per-connection`: to one that has no connection yet, where a place is kept.
    Placed,
}

impl<C: Keep> Job<C> for Connect {
    fn run(&mut self, at: &mut At<'_, C>) -> Next {
        let key = self.flow.key;
        let me = at.group.index;
        if self.stage == Stage::Incomplete {
            self.stage = Stage::Hashed;
            at.group.bind(&key);
            let home = at.org.home(at.cx.sh.flow_hash(&key));
            at.group.unlink(&key);
            if home != me {
                return Next::To(home);
            }
        }
        if self.stage == Stage::Hashed
            && let Some(d) = &at.org.demux
        {
            let to = d.pick(at.org.preferred(self.flow.hash));
            if at.group.shard.lookup(&key).is_some() || !d.claim(key, to) {
                d.left(to);
                self.out = Some(Err(ExistsError));
                return Next::Done;
            }
            self.stage = Stage::Placed;
            if to != me {
                return Next::To(to);
            }
        }
        let shard = &mut at.group.shard;
        let out = shard.connect(&mut at.cx, self.flow, &self.config);
        if let (Stage::Placed, Some(d)) = (self.stage, &at.org.demux) {
            if out.is_err() {
                d.release(&key, me);
            }
            d.left(me);
            at.group.all_here(&key, at.org, &mut at.cx);
        }
        self.out = Some(out);
        Next::Done
    }
}

/// `per-connection`: a segment that did not find its connection where it was sent.
pub(super) struct Strayed(pub(super) Option<Box<Seg>>, pub(super) Option<Seq>);

impl<C: Keep> Job<C> for Strayed {
    fn run(&mut self, at: &mut At<'_, C>) -> Next {
        if let Some(seg) = self.0.take() {
            at.group.segment(seg, self.1, at.org, &mut at.cx);
        }
        Next::Done
    }
}

/// `made`: a SYN that takes over a connection in TIME-WAIT if somebody listens, which the place
/// does not know that has the connection. It asks at the thread that the hash names, and comes back.
pub(super) struct TakeOver {
    seg: Option<Box<Seg>>,
    place: usize,
    listened: bool,
}

impl TakeOver {
    pub(super) fn new(seg: Box<Seg>, place: usize) -> TakeOver {
        TakeOver {
            seg: Some(seg),
            place,
            listened: false,
        }
    }
}

impl<C: Keep> Job<C> for TakeOver {
    fn run(&mut self, at: &mut At<'_, C>) -> Next {
        let Some(seg) = &self.seg else {
            return Next::Done;
        };
        if at.group.index != self.place {
            self.listened = at.group.shard.passive().listens(seg);
            return Next::To(self.place);
        }
        if let Some(seg) = self.seg.take() {
            at.group.shard.listened_elsewhere(self.listened);
            at.group.arrived(seg, None, at.org, &mut at.cx);
            at.group.shard.listened_elsewhere(false);
        }
        Next::Done
    }
}

/// `per-connection`: the connection of a handshake that `seg` completed comes to its thread.
pub(super) struct Accept<P: Platform> {
    pub(super) listener: Arc<Listener<Kd<P>>>,
    pub(super) e: Established,
    pub(super) seg: Option<Box<Seg>>,
}

impl<C: Keep> Job<C> for Accept<C::P> {
    fn run(&mut self, at: &mut At<'_, C>) -> Next {
        let (Some(mut seg), Some(d)) = (self.seg.take(), &at.org.demux) else {
            return Next::Done;
        };
        let (key, me) = (seg.frame.key, at.group.index);
        at.group.await_others(key);
        let listener = self.listener.clone();
        let shard = &mut at.group.shard;
        let made = shard.establish(&mut at.cx, listener, &self.e, &mut seg);
        if made.is_none() {
            d.release(&key, me);
        }
        d.left(me);
        seg.release(&mut at.cx.pool);
        at.org.segs.put(seg);
        Next::Done
    }
}

/// `per-connection`: goes behind the last segment that came to the thread which a flow has left,
/// and behind it to the thread `to` where the flow is now.
pub(super) struct Followed {
    pub(super) key: FlowKey,
    pub(super) to: usize,
}

impl<C: Keep> Job<C> for Followed {
    fn run(&mut self, at: &mut At<'_, C>) -> Next {
        if at.group.index != self.to {
            return Next::To(self.to);
        }
        at.group.all_here(&self.key, at.org, &mut at.cx);
        Next::Done
    }
}

/// listen(2), and the shoot-down of a listener's wildcard entries: one thread after another.
pub(super) struct Wildcard<P: Platform> {
    pub(super) listener: Arc<Listener<Kd<P>>>,
    pub(super) add: bool,
}

impl<C: Keep> Job<C> for Wildcard<C::P> {
    fn run(&mut self, at: &mut At<'_, C>) -> Next {
        if self.add {
            at.group.shard.listen(self.listener.clone());
        } else {
            at.group.shard.unlisten(&mut at.cx, &self.listener);
        }
        let next = at.group.index + 1;
        if next < at.org.permanent {
            Next::To(next)
        } else {
            Next::Done
        }
    }
}

/// Anything else that is to be done with what a thread owns.
pub(super) struct Do<F, R> {
    job: Option<F>,
    pub(super) out: Option<R>,
}

impl<F, R> Do<F, R> {
    pub(super) fn new(job: F) -> Do<F, R> {
        Do {
            job: Some(job),
            out: None,
        }
    }
}

impl<C, F, R> Job<C> for Do<F, R>
where
    C: Keep,
    F: crate::Job<Kd<C::P>, R>,
    R: Send + 'static,
{
    fn run(&mut self, at: &mut At<'_, C>) -> Next {
        if let Some(job) = self.job.take() {
            self.out = Some(job(&mut at.group.shard, &mut at.cx));
        }
        Next::Done
    }
}
