//! `connp-l:N`: connection groups behind locks.
//!
//! **Background.** Willmann, Rixner, Cox, section 3.3: connection-level parallelism without
//! protocol threads.
//!
//! **Binding.** A connection belongs to group `hash mod N` for life, by the symmetric flow
//! hash. N may far exceed the number of threads: 4 to 128 in the paper.
//!
//! **Processing.** The calling thread, be it the application's or the inbound one, takes the
//! *one* lock of the group and runs the protocol itself. Private to a group: connection table,
//! connections, timers, SYN cache and wildcard listeners. No other lock of the protocol is
//! taken inside.
//!
//! **Limits.** Bookkeeping visits every group, also empty ones: SYN-cache updates are
//! broadcast lazily by a timer, [`BOOKKEEPING`] apart. It is why the paper's contention at 6
//! connections keeps falling as N grows. The rounds pause when two in a row have found that no
//! timer of any group was due, until one is: they would find nothing, and wake an idle process.
//!
//! **Inferences.** Listeners are replicated into every group (the paper names the table but
//! not its wildcard entries). Nobody waits for buffer space inside a group. Accepted
//! connections leave the group like wake-ups and reach their listener after release; if it has
//! gone, the connection is posted back to be aborted. Transmit rings, route table and pollers
//! have locks of their own, as the driver and the socket layer of the paper's kernel have.
//! Sleepers are woken after a burst, once no group is held. With `:wake=inside` they are woken
//! before the group is left, under one lock for all who wake, as the paper's kernel wakes under
//! its locks.
//! Whether timers are due is read from an unlocked hint, so that polling does not visit groups
//! that have nothing to do. The SYN caches of all groups are one cache divided (512 buckets of 30,
//! and at least 2 for a group), where the paper's groups have a whole one each: a thousand would
//! be half a gigabyte for a flood to fill. A SYN whose bucket is full is answered by a cookie
//! unless those are off; then the oldest entry goes, as in the paper's kernel.

use crate::due::Due;
use crate::open::{Options, Visit};
use crate::scheduler::Scheduler;
use crate::spec::{
    Colour, Family, Look, MAX_GROUPS, Marker, Occupancy, OrgSpec, Params, Parts, SpecError, Variant,
};
use crate::{Binding, Job, Kd, Org};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use perimeter_base::Time;
use perimeter_stack::ops::Op;
use perimeter_stack::shard::ExistsError;
use perimeter_stack::{ConnInfo, Ctx, Flow, Shard, SharedState, SockId, Sockets};
use perimeter_sync::{Lock, LockClass, LockStats, Platform};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;

/// `connp-l`.
static FAMILY: Family = Family {
    name: "connp-l",
    title: "ConnP-L",
    takes: "it takes a number of groups from 1 to 1024, and `wake=after` or `wake=inside`",
    variants: &[
        Variant {
            name: "connp-l:N",
            usual: "connp-l:128",
            summary: "connection groups, each behind one lock; any thread may run",
        },
        Variant {
            name: "connp-l:N:wake=inside",
            usual: "connp-l:128:wake=inside",
            summary: "connection groups that wake sleepers under their locks, as published",
        },
    ],
    tested: &[
        ("connp-l:128", "connp-l:8"),
        ("connp-l:128:wake=inside", "connp-l:8:wake=inside"),
    ],
    recommend: Some("connp-l:128"),
    parse: Groups::parse,
    look: Look {
        colour: Colour {
            light: "#0072b2",
            dark: "#4aa3e8",
            terminal: Some(32),
        },
        marker: Marker::Up,
    },
    counts: &[],
    hand_over: &[],
};

/// The families of this module.
pub(crate) const FAMILIES: &[&Family] = &[&FAMILY];

/// Which type each of them is.
pub(crate) fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
    visitor.visit::<ConnpL<P>>(p, o)
}

/// How many groups there are, and where sleepers are woken.
#[derive(Copy, Clone, Debug)]
struct Groups {
    n: u16,
    /// While the group is held.
    wakes_held: bool,
}

impl Groups {
    fn parse(mut parts: Parts<'_>) -> Result<OrgSpec, SpecError> {
        let n = parts.number(MAX_GROUPS)?.unwrap_or(128);
        let wakes_held = parts.wakes_held()?;
        let groups = Groups { n, wakes_held };
        parts.end(OrgSpec::new(&FAMILY, groups))
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connp-l:{}", self.n)?;
        f.write_str(if self.wakes_held { ":wake=inside" } else { "" })
    }
}

impl Params for Groups {
    fn defers(&self) -> bool {
        false
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy::Lock(LockClass::Group)
    }
}

/// Time between the rounds that visit every group, ns (FreeBSD's SYN-cache timer: 500 ms).
pub const BOOKKEEPING: u64 = 500_000_000;

/// A group: its lock, and when its timers are due. On cache lines of its own.
#[repr(align(128))]
struct Group<P: Platform> {
    shard: P::Lock<Shard<Kd<P>>>,
    due: Due,
}

/// The groups.
pub struct ConnpL<P: Platform> {
    p: P,
    groups: Box<[Group<P>]>,
    hints: Hints,
    scheduler: Scheduler<P>,
}

/// When the groups' timers are due. Written now and then by any thread, so apart from what all
/// read for every packet.
#[repr(align(128))]
struct Hints {
    /// Not later than the earliest `due` of all groups.
    next: AtomicU64,
    /// When the last bookkeeping round was.
    round: AtomicU64,
    /// So many rounds since a timer was due.
    alone: AtomicU64,
}

/// So many bookkeeping rounds without a timer that was due, and they pause.
const ALONE: u64 = 2;

impl<P: Platform> ConnpL<P> {
    fn index(&self, hash: u32) -> usize {
        hash as usize % self.groups.len()
    }

    /// Runs `f` under the group's lock; afterwards the timer hints are true again.
    #[inline]
    fn enter<R>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        index: usize,
        f: impl FnOnce(&mut Shard<Kd<P>>, &mut Ctx<Kd<P>>) -> R,
    ) -> R {
        let group = &self.groups[index];
        let mut shard = group.shard.lock();
        let out = f(&mut shard, cx);
        self.scheduler.wake(cx);
        let at = shard.next_timer();
        // Published first, against `on_timers`: of a store here and a store there, at least one
        // side sees the other's.
        if group.due.publish(&self.p, at) && at.0 < self.hints.next.load(Ordering::SeqCst) {
            self.hints.next.fetch_min(at.0, Ordering::SeqCst);
        }
        out
    }
}

impl<P: Platform> Org for ConnpL<P> {
    type K = Kd<P>;

    fn new(spec: &OrgSpec, sh: &SharedState<Self::K>) -> Self {
        let Groups { n, wakes_held } = *spec.expect_params();
        let group = |i| Group {
            shard: sh
                .p
                .lock(LockClass::Group, Shard::new((i, usize::from(n)), sh)),
            due: Due::default(),
        };
        ConnpL {
            p: sh.p.clone(),
            groups: (0..n).map(group).collect(),
            hints: Hints {
                next: AtomicU64::new(u64::MAX),
                round: AtomicU64::new(sh.p.now().0),
                alone: AtomicU64::new(0),
            },
            scheduler: Scheduler::new(wakes_held, sh),
        }
    }

    fn on_packets(&self, cx: &mut Ctx<Self::K>) {
        let mut segs = core::mem::take(&mut cx.segs);
        segs.drain(|seg| {
            self.enter(cx, self.index(seg.hash), |shard, cx| shard.input(cx, seg));
        });
        cx.segs = segs;
    }

    const HERE: bool = true;

    fn call_here<Q: Op<Self::K>>(
        &self,
        cx: &mut Ctx<Self::K>,
        id: SockId,
        op: Q,
    ) -> Result<Option<Q::Out>, Q> {
        Ok(self.enter(cx, id.shard().into(), |shard, cx| shard.call(cx, id, op)))
    }

    fn post<Q: Op<Self::K, Out = ()>>(&self, cx: &mut Ctx<Self::K>, id: SockId, op: Q) {
        self.enter(cx, id.shard().into(), |shard, cx| shard.posted(cx, id, op));
    }

    fn connect(
        &self,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, ExistsError> {
        self.enter(cx, self.index(flow.hash), |shard, cx| {
            shard.connect(cx, flow, config)
        })
    }

    fn perimeters(&self) -> u16 {
        self.groups.len() as u16
    }

    fn perimeter_of(&self, sh: &SharedState<Self::K>, key: &FlowKey) -> Option<u16> {
        Some(self.index(sh.flow_hash(key)) as u16)
    }

    fn inside<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        n: u16,
        job: impl Job<Self::K, R>,
    ) -> Option<R> {
        Some(self.enter(cx, n.into(), |shard, cx| job(shard, cx)))
    }

    fn on_timers(&self, cx: &mut Ctx<Self::K>) {
        let now = cx.now().0;
        let round = self.hints.round.load(Ordering::Relaxed);
        let bookkeeping = now >= round.saturating_add(BOOKKEEPING)
            && self
                .hints
                .round
                .compare_exchange(round, now, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        // Whoever lowers a group's hint from here on lowers this too, so nothing is lost
        // between here and the end of the walk.
        let due = self.hints.next.swap(u64::MAX, Ordering::SeqCst) <= now;
        if due {
            self.hints.alone.store(0, Ordering::Relaxed);
        } else if bookkeeping {
            self.hints.alone.fetch_add(1, Ordering::Relaxed);
        }
        let mut earliest = u64::MAX;
        for (i, g) in self.groups.iter().enumerate() {
            if bookkeeping || g.due.at().0 <= now {
                self.enter(cx, i, |shard, cx| shard.on_timers(cx));
            }
            earliest = earliest.min(g.due.at().0);
        }
        self.hints.next.fetch_min(earliest, Ordering::SeqCst);
    }

    fn next_timer(&self) -> Time {
        let next = self.hints.next.load(Ordering::Acquire);
        if self.hints.alone.load(Ordering::Relaxed) >= ALONE {
            return Time(next);
        }
        let round = self.hints.round.load(Ordering::Relaxed);
        Time(next.min(round.saturating_add(BOOKKEEPING)))
    }

    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        for g in &self.groups {
            g.shard.lock().inspect(now, out);
        }
    }

    fn live(&self) -> usize {
        self.groups.iter().map(|g| g.shard.lock().len()).sum()
    }

    fn binding(&self, id: SockId) -> Binding {
        let group = || format!("group {}", id.shard());
        Binding {
            perimeters: [group(), group(), group()],
            ..Binding::default()
        }
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        for g in &self.groups {
            add(LockClass::Group, g.shard.stats());
        }
        self.scheduler.lock_stats(add);
    }
}
