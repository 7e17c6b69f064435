//! `up`, `up:shared`: the uniprocessor stack.
//!
//! **Background.** The FreeBSD 7 kernel built without SMP, the baseline of every speed-up in
//! Willmann, Rixner, Cox, section 4 (`organizations.md`, "up").
//!
//! **Binding.** None: there is one perimeter, and all of the stack is in it.
//!
//! **Processing.** One thread runs application, protocol and inbound work to completion. Input
//! runs when polled. `up` has no atomic read-modify-write on its data path: its lock is a
//! plain flag and an owner, checked at each entry, as the paper's UP kernel keeps its lock
//! calls as plain test-and-set.
//!
//! **Limits.** A call from another thread is an error. `up:shared` is the same behind one
//! platform lock, for programs with several threads; it is never the baseline.
//!
//! **Inferences.** The owner is the first thread that enters (the paper's kernel has one
//! processor and so no choice).

use crate::{Flow, On, Org, OrgSpec};
use perimeter_base::Time;
use perimeter_stack::kind::lock;
use perimeter_stack::ops::{Icmp, Op};
use perimeter_stack::shard::Exists;
use perimeter_stack::{Commons, ConnInfo, Ctx, Listener, Lk, Shard, SockId};
use perimeter_sync::{Lock, LockClass, LockStats, Locks, Platform, Solo};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;
use std::sync::Arc;

/// One perimeter around everything, behind a lock of kind `L`.
pub struct Whole<P: Platform, L: Locks<P>> {
    stack: Lk<On<P, L>, Shard<On<P, L>>>,
}

/// `up`: no lock.
pub type Up<P> = Whole<P, Solo>;

/// `up:shared`: one lock.
pub type UpShared<P> = Whole<P, perimeter_sync::Shared>;

impl<P: Platform, L: Locks<P>> Org for Whole<P, L> {
    type K = On<P, L>;

    fn new(_: &OrgSpec, sh: &Commons<Self::K>) -> Self {
        Whole {
            stack: lock::<Self::K, _>(&sh.p, LockClass::Group, Shard::new(0, sh)),
        }
    }

    fn on_packets(&self, sh: &Commons<Self::K>, cx: &mut Ctx<Self::K>) {
        let mut segs = core::mem::take(&mut cx.segs);
        let mut stack = self.stack.lock();
        segs.drain(|seg| stack.input(sh, cx, seg));
        drop(stack);
        cx.segs = segs;
    }

    fn call<Q: Op<Self::K>>(
        &self,
        sh: &Commons<Self::K>,
        cx: &mut Ctx<Self::K>,
        id: SockId,
        op: Q,
    ) -> Option<Q::Out> {
        self.stack.lock().call(sh, cx, id, op)
    }

    fn post<Q: Op<Self::K, Out = ()>>(
        &self,
        sh: &Commons<Self::K>,
        cx: &mut Ctx<Self::K>,
        id: SockId,
        op: Q,
    ) {
        self.stack.lock().posted(sh, cx, id, op);
    }

    fn connect(
        &self,
        sh: &Commons<Self::K>,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, Exists> {
        self.stack
            .lock()
            .connect(sh, cx, flow.key, flow.hash, flow.iface, config)
    }

    fn listen(&self, _: &Commons<Self::K>, _: &mut Ctx<Self::K>, l: &Arc<Listener<Self::K>>) {
        self.stack.lock().listen(l.clone());
    }

    fn unlisten(&self, _: &Commons<Self::K>, _: &mut Ctx<Self::K>, l: &Arc<Listener<Self::K>>) {
        self.stack.lock().unlisten(l);
    }

    fn icmp(&self, sh: &Commons<Self::K>, cx: &mut Ctx<Self::K>, key: &FlowKey, what: Icmp) {
        self.stack.lock().icmp(sh, cx, key, what);
    }

    fn on_timers(&self, sh: &Commons<Self::K>, cx: &mut Ctx<Self::K>) {
        self.stack.lock().on_timers(sh, cx);
    }

    fn next_timer(&self) -> Time {
        self.stack.lock().next_timer()
    }

    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        self.stack.lock().inspect(now, out);
    }

    fn live(&self) -> usize {
        self.stack.lock().len()
    }

    fn abort_all(&self, sh: &Commons<Self::K>, cx: &mut Ctx<Self::K>) {
        self.stack.lock().abort_all(sh, cx);
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::Group, self.stack.stats());
    }
}

/// The kind of `up` on platform `P`.
pub type SoloKind<P> = On<P, Solo>;
