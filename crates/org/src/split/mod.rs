//! `split`: the organization that exists to test the seam. Not for use.
//!
//! **Background.** It has the shape of the organizations that are hardest to serve: the locks
//! of message parallelism (Willmann, Rixner, Cox, section 3.1: a global connection table, the
//! connections, and both socket buffers apart) together with the deferred calls of connection
//! groups owned by threads (section 3.2).
//!
//! **Binding.** None: any thread may run any connection.
//!
//! **Processing.** The table's lock is held while waiting for a connection's, and released in
//! the middle of input: on the header-prediction paths, else just before output. A call's
//! first phase takes nothing but a buffer's lock. One call in [`DEFER`] is run by the
//! organization's own thread while the caller waits for the answer, and everything posted is.
//!
//! **Limits.** It is slow, and meant to be: the share of deferred calls is there to be felt.
//!
//! **Inferences.** A place keeps its three locks for ever, so that a late holder of a name
//! never meets freed memory; each part carries the generation that may use it. Nobody waits
//! for the organization's thread without a limit: after `PATIENCE` (`answer.rs`) a caller works the queue
//! off itself, so that a stack which is being dropped answers too.

mod messages;

use crate::answer::question;
use crate::msgp::coupled::{Core, Manner};
use crate::open::{Options, Visit};
use crate::spec::{Family, Look, Occupancy, OrgSpec, Params};
use crate::{Job, Kd, Org};
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use messages::Messages;
use perimeter_base::Time;
use perimeter_stack::ops::Op;
use perimeter_stack::shard::ExistsError;
use perimeter_stack::{ConnInfo, Ctx, Flow, SharedState, SockId, Sockets};
use perimeter_sync::{LockClass, LockStats, Platform};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;

/// `split`. Not listed: it is run by the suites alone.
static FAMILY: Family = Family {
    name: "split",
    title: "split",
    takes: "it takes no parameters",
    variants: &[],
    tested: &[("", "split")],
    recommend: None,
    parse: |parts| {
        parts.end(())?;
        Ok(OrgSpec::new(&FAMILY, Name))
    },
    look: Look::UNKNOWN,
    counts: &[],
    hand_over: &[messages::FILE],
};

/// The families of this module.
pub(crate) const FAMILIES: &[&Family] = &[&FAMILY];

/// Which type each of them is.
pub(crate) fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
    visitor.visit::<Split<P>>(p, o)
}

/// There are no parameters.
#[derive(Debug)]
struct Name;

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("split")
    }
}

impl Params for Name {
    fn occupancy(&self) -> Occupancy {
        Occupancy::Lock(LockClass::ConnHashtable)
    }
}

/// One call in this many is deferred.
pub const DEFER: u32 = 4;

/// The locks of message parallelism, and the messages.
pub struct Split<P: Platform> {
    core: Core<P>,
    messages: Messages<P, Split<P>>,
    calls: AtomicU32,
}

impl<P: Platform> Org for Split<P> {
    type K = Kd<P>;

    fn new(_: &OrgSpec, sh: &SharedState<Self::K>) -> Self {
        Split {
            core: Core::new(Manner::default(), sh),
            messages: Messages::new(&sh.p),
            calls: AtomicU32::new(0),
        }
    }

    fn on_packets(&self, cx: &mut Ctx<Self::K>) {
        let mut segs = core::mem::take(&mut cx.segs);
        segs.drain(|seg| self.core.input(cx, seg, || ()));
        cx.segs = segs;
    }

    fn call<Q: Op<Self::K> + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        id: SockId,
        op: Q,
    ) -> Option<Q::Out> {
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        if !n.wrapping_add(id.slot()).is_multiple_of(DEFER) {
            return self.core.call(cx, id, op);
        }
        let (pending, answer) = question(&cx.sh.p);
        self.messages.put(Box::new(move |org, cx| {
            answer.give(org.core.call(cx, id, op));
        }));
        pending.wait(cx, |cx| {
            self.messages.run(self, cx);
        })?
    }

    fn post<Q: Op<Self::K, Out = ()> + 'static>(&self, _: &mut Ctx<Self::K>, id: SockId, op: Q) {
        self.messages
            .put(Box::new(move |org, cx| org.core.posted(cx, id, op)));
    }

    fn connect(
        &self,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, ExistsError> {
        self.core.connect(cx, flow, config)
    }

    fn perimeters(&self) -> u16 {
        self.core.perimeters()
    }

    fn perimeter_of(&self, sh: &SharedState<Self::K>, key: &FlowKey) -> Option<u16> {
        Some(self.core.perimeter_of(sh, key))
    }

    fn inside<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        n: u16,
        job: impl Job<Self::K, R>,
    ) -> Option<R> {
        Some(job(&mut self.core.sockets(n), cx))
    }

    fn leave(&self, _: &mut Ctx<Self::K>, n: u16, job: impl Job<Self::K, ()>) {
        self.messages
            .put(Box::new(move |org, cx| job(&mut org.core.sockets(n), cx)));
    }

    fn on_timers(&self, cx: &mut Ctx<Self::K>) {
        self.core.on_timers(cx);
    }

    fn next_timer(&self) -> Time {
        self.core.next_timer()
    }

    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        self.core.inspect(now, out);
    }

    fn live(&self) -> usize {
        self.core.live()
    }

    fn abort_all(&self, cx: &mut Ctx<Self::K>) {
        // Its own thread may have ended already.
        self.messages.run(self, cx);
        self.core.sockets(0).abort_all(cx);
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        self.core.lock_stats(add);
        add(LockClass::Leaf, self.messages.stats());
    }

    fn workers(&self) -> usize {
        1
    }

    fn work(&self, _: usize, cx: &mut Ctx<Self::K>) -> usize {
        self.messages.run(self, cx)
    }

    fn park(&self, _: usize, deadline: Time) {
        self.messages.park(deadline);
    }

    fn wake_workers(&self) {
        self.messages.wake();
    }

    fn pending(&self) -> usize {
        self.messages.len()
    }
}
