//! `one-lock`: an organization that tests alone register, to show that this file and its line in
//! `lib.rs` are all that one takes. As `crates/perimeter/examples/tiny_org.rs` it is a lock
//! around the whole stack.

use crate::open::{Options, Visit};
use crate::spec::{
    Colour, Family, Look, MAX_GROUPS, Marker, Occupancy, OrgSpec, Params, Parts, SpecError, Variant,
};
use crate::{Job, Kd, Org};
use core::fmt;
use perimeter_base::Time;
use perimeter_stack::ops::Op;
use perimeter_stack::shard::ExistsError;
use perimeter_stack::{ConnInfo, Ctx, Flow, Shard, SharedState, SockId, Sockets};
use perimeter_sync::{Lock, LockClass, LockStats, Platform};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;

/// `one-lock`. The parameter does nothing but stand in the name.
static FAMILY: Family = Family {
    name: "one-lock",
    title: "One lock",
    takes: "it takes a number from 1 to 1024",
    variants: &[Variant {
        name: "one-lock:N",
        usual: "one-lock:64",
        summary: "one lock around the whole stack",
    }],
    tested: &[("one-lock:64", "one-lock:2")],
    recommend: Some("one-lock:N"),
    parse: Marked::parse,
    look: Look {
        colour: Colour {
            light: "#5b3a1a",
            dark: "#d8b48c",
            terminal: Some(137),
        },
        marker: Marker::Cross,
    },
    counts: &["one_lock_calls"],
    hand_over: &[file!()],
};

/// The families of this module.
pub(crate) const FAMILIES: &[&Family] = &[&FAMILY];

/// Which type each of them is.
pub(crate) fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
    visitor.visit::<OneLock<P>>(p, o)
}

#[derive(Debug)]
struct Marked(u16);

impl Marked {
    fn parse(mut parts: Parts<'_>) -> Result<OrgSpec, SpecError> {
        let n = parts.number(MAX_GROUPS)?.unwrap_or(64);
        parts.end(())?;
        Ok(OrgSpec::new(&FAMILY, Marked(n)))
    }
}

impl fmt::Display for Marked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one-lock:{}", self.0)
    }
}

impl Params for Marked {
    fn occupancy(&self) -> Occupancy {
        Occupancy::Lock(LockClass::Group)
    }
}

/// The stack, and its lock.
pub(crate) struct OneLock<P: Platform> {
    stack: P::Lock<Shard<Kd<P>>>,
}

impl<P: Platform> Org for OneLock<P> {
    type K = Kd<P>;

    fn new(spec: &OrgSpec, sh: &SharedState<Self::K>) -> Self {
        let Marked(_) = spec.expect_params();
        OneLock {
            stack: sh.p.lock(LockClass::Group, Shard::new((0, 1), sh)),
        }
    }

    fn on_packets(&self, cx: &mut Ctx<Self::K>) {
        let mut segs = core::mem::take(&mut cx.segs);
        let mut stack = self.stack.lock();
        segs.drain(|seg| stack.input(cx, seg));
        drop(stack);
        cx.segs = segs;
    }

    fn call<Q: Op<Self::K>>(&self, cx: &mut Ctx<Self::K>, id: SockId, op: Q) -> Option<Q::Out> {
        cx.count_own(0, 1);
        self.stack.lock().call(cx, id, op)
    }

    fn post<Q: Op<Self::K, Out = ()>>(&self, cx: &mut Ctx<Self::K>, id: SockId, op: Q) {
        self.stack.lock().posted(cx, id, op);
    }

    fn connect(
        &self,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, ExistsError> {
        self.stack.lock().connect(cx, flow, config)
    }

    fn perimeters(&self) -> u16 {
        1
    }

    fn perimeter_of(&self, _: &SharedState<Self::K>, _: &FlowKey) -> Option<u16> {
        Some(0)
    }

    fn inside<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        _: u16,
        job: impl Job<Self::K, R>,
    ) -> Option<R> {
        Some(job(&mut *self.stack.lock(), cx))
    }

    fn on_timers(&self, cx: &mut Ctx<Self::K>) {
        self.stack.lock().on_timers(cx);
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

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::Group, self.stack.stats());
    }
}
