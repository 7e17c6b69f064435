//! `up`, `up:netisr`, `up:shared`: the uniprocessor stack.
//!
//! **Background.** The FreeBSD 7 kernel built without SMP, the baseline of every speed-up in
//! Willmann, Rixner, Cox, section 4.
//!
//! **Binding.** None: there is one perimeter, and all of the stack is in it.
//!
//! **Processing.** One thread runs application, protocol and inbound work to completion. Input
//! runs when polled (direct dispatch); under `up:netisr` polling queues the segments, and the
//! same thread runs them when it has polled all devices, as FreeBSD's software interrupt runs
//! after the hardware's. Neither has an atomic read-modify-write on its data path: the lock is a
//! plain flag and an owner, checked at each entry, as the paper's UP kernel keeps its lock
//! calls as plain test-and-set.
//!
//! **Limits.** A call from another thread is an error. `up:shared` is `up` behind one platform
//! lock, for programs with several threads; it is never the baseline. The queue of `up:netisr`
//! is bounded ([`NETISR_QUEUE`]): what does not fit is dropped and counted.
//!
//! **Inferences.** The owner is the first thread that enters (the paper's kernel has one
//! processor and so no choice). A segment is queued when it has been parsed: the parser is part
//! of polling under every organization.

use crate::open::{Options, Visit};
use crate::spec::{
    Colour, Family, Look, Marker, Occupancy, OrgSpec, Params, Parts, SpecError, Variant,
};
use crate::{Binding, Job, On, Org};
use core::fmt;
use perimeter_base::Time;
use perimeter_stack::kind::lock;
use perimeter_stack::ops::Op;
use perimeter_stack::shard::ExistsError;
use perimeter_stack::{
    ConnInfo, Count, Ctx, Flow, Kind, Lk, Seg, Shard, SharedState, SockId, Sockets,
};
use perimeter_sync::{Lock, LockClass, LockStats, Locks, Platform, Solo, Work};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;
use std::collections::VecDeque;

/// `up`.
static FAMILY: Family = Family {
    name: "up",
    title: "UP",
    takes: "it is `up`, `up:netisr` or `up:shared`",
    variants: &[
        Variant {
            name: "up",
            usual: "up",
            summary: "uniprocessor: one thread runs application, protocol and input",
        },
        Variant {
            name: "up:netisr",
            usual: "up:netisr",
            summary: "uniprocessor; polling queues packets, the same thread runs them afterwards",
        },
        Variant {
            name: "up:shared",
            usual: "up:shared",
            summary: "uniprocessor behind one lock, for programs with several threads",
        },
    ],
    tested: &[],
    recommend: Some("up"),
    parse: Mode::parse,
    look: Look {
        colour: Colour {
            light: "#1b1f24",
            dark: "#e6e9ec",
            terminal: None,
        },
        marker: Marker::Circle,
    },
    counts: &[],
    hand_over: &[],
};

/// The families of this module.
pub(crate) const FAMILIES: &[&Family] = &[&FAMILY];

/// Which type each of them is.
pub(crate) fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
    match o.org.params() {
        Some(Mode::Shared) => visitor.visit::<UpShared<P>>(p, o),
        _ => visitor.visit::<Up<P>>(p, o),
    }
}

/// How the uniprocessor stack dispatches.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Mode {
    Direct,
    Netisr,
    Shared,
}

impl Mode {
    fn parse(mut parts: Parts<'_>) -> Result<OrgSpec, SpecError> {
        let mode = if parts.flag("shared") {
            Mode::Shared
        } else if parts.flag("netisr") {
            Mode::Netisr
        } else {
            Mode::Direct
        };
        parts.end(())?;
        Ok(OrgSpec::new(&FAMILY, mode))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Direct => "up",
            Mode::Netisr => "up:netisr",
            Mode::Shared => "up:shared",
        })
    }
}

impl Params for Mode {
    fn single_threaded(&self) -> bool {
        *self != Mode::Shared
    }

    fn defers(&self) -> bool {
        *self == Mode::Netisr
    }

    fn occupancy(&self) -> Occupancy {
        match self {
            Mode::Shared => Occupancy::Lock(LockClass::Group),
            Mode::Direct | Mode::Netisr => Occupancy::Stack,
        }
    }
}

/// Segments that a netisr queue holds: eight times what one interface hands over at once.
pub const NETISR_QUEUE: usize = 256;

/// One perimeter around everything, behind a lock of kind `L`.
pub struct Whole<P: Platform, L: Locks<P>> {
    stack: Lk<On<P, L>, Inside<On<P, L>>>,
    netisr: bool,
}

struct Inside<K: Kind> {
    shard: Shard<K>,
    /// Polled and not run yet.
    queue: VecDeque<Seg>,
}

/// `up`: no lock.
pub type Up<P> = Whole<P, Solo>;

/// `up:shared`: one lock.
pub type UpShared<P> = Whole<P, perimeter_sync::Shared>;

impl<P: Platform, L: Locks<P>> Org for Whole<P, L> {
    type K = On<P, L>;

    fn new(spec: &OrgSpec, sh: &SharedState<Self::K>) -> Self {
        let inside = Inside {
            shard: Shard::new((0, 1), sh),
            queue: VecDeque::new(),
        };
        Whole {
            stack: lock::<Self::K, _>(&sh.p, LockClass::Group, inside),
            netisr: spec.params() == Some(&Mode::Netisr),
        }
    }

    fn on_packets(&self, cx: &mut Ctx<Self::K>) {
        let mut segs = core::mem::take(&mut cx.segs);
        let mut stack = self.stack.lock();
        if self.netisr {
            segs.drain(|seg| {
                if stack.queue.len() < NETISR_QUEUE {
                    cx.sh.p.charge(Work::HandOver, 1);
                    stack.queue.push_back(core::mem::take(seg));
                } else {
                    cx.count(Count::NetisrFull, 1);
                    seg.release(&mut cx.pool);
                }
            });
        } else {
            segs.drain(|seg| stack.shard.input(cx, seg));
        }
        drop(stack);
        cx.segs = segs;
    }

    const HERE: bool = true;

    fn call_here<Q: Op<Self::K>>(
        &self,
        cx: &mut Ctx<Self::K>,
        id: SockId,
        op: Q,
    ) -> Result<Option<Q::Out>, Q> {
        Ok(self.stack.lock().shard.call(cx, id, op))
    }

    fn post<Q: Op<Self::K, Out = ()>>(&self, cx: &mut Ctx<Self::K>, id: SockId, op: Q) {
        self.stack.lock().shard.posted(cx, id, op);
    }

    fn connect(
        &self,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, ExistsError> {
        self.stack.lock().shard.connect(cx, flow, config)
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
        Some(job(&mut self.stack.lock().shard, cx))
    }

    fn on_timers(&self, cx: &mut Ctx<Self::K>) {
        let mut stack = self.stack.lock();
        while let Some(mut seg) = stack.queue.pop_front() {
            stack.shard.input(cx, &mut seg);
        }
        stack.shard.on_timers(cx);
    }

    fn next_timer(&self) -> Time {
        let stack = self.stack.lock();
        if stack.queue.is_empty() {
            stack.shard.next_timer()
        } else {
            Time::ZERO
        }
    }

    fn binding(&self, _: SockId) -> Binding {
        let name = || "stack".to_string();
        Binding {
            perimeters: [name(), name(), name()],
            ..Binding::default()
        }
    }

    fn pending(&self) -> usize {
        self.stack.lock().queue.len()
    }

    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        self.stack.lock().shard.inspect(now, out);
    }

    fn live(&self) -> usize {
        self.stack.lock().shard.len()
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::Group, self.stack.stats());
    }
}

/// The kind of `up` on platform `P`.
pub type SoloKind<P> = On<P, Solo>;
