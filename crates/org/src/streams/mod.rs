//! `streams`: the horizontal baseline before FireEngine.
//!
//! **Background.** The STREAMS stack of Solaris up to 9 (Packet Event Framework, section 3.1):
//! every layer is a module with a queue and a perimeter of its own, and the stack is a stream of
//! modules.
//!
//! **Binding.** None. Any thread may run any module; the threads that run service procedures are
//! bound to no core. The paper names the consequence: a packet's layers run on whatever cores,
//! with poor locality of data and code.
//!
//! **Processing.** IP, TCP and the STREAM head are modules. A packet enters IP's queue, a call
//! that TCP must see enters the STREAM head's. Whoever put it there moves it on inline, module by
//! module, as long as nobody else is in the module's perimeter; else whoever is there takes it
//! along, and what a thread leaves after its quantum is the service procedure's, one thread for
//! each queue. TCP's segments go down through IP's queue.
//!
//! **Perimeters.** `streams` has one for each module (`D_MTPERMOD`): TCP's connection table is
//! one. `streams:pairs=N` has one for each queue pair (`D_MTQPAIR`), of N streams and of the one to
//! the devices: packets arrive in that one's IP, and go from there to the TCP of the stream that
//! their flow falls to; segments go down through that stream's own IP.
//!
//! **Limits.** Flow control is between modules: IP and the STREAM head look whether TCP's queue
//! has room (`canput`) before they put a message there (`putnext`). If it has not, they keep what
//! they have in their own queue (`putq`), in order, and are enabled again when TCP has taken its
//! queue. A queue is full at [`HIGH`] messages. Packets beyond [`ROOM`] that IP keeps are dropped;
//! writers are held back by the room in the send buffer, which also bounds the segments in IP's
//! queue.
//!
//! **Inferences.** (1) STREAMS has a stream for each connection, here N serve all: a queue pair is
//! of the connections whose flows fall to it. (2) No perimeter is entered within another: a module
//! leaves its message in the next one's queue, and the thread goes on there when it has left.
//! (3) A segment that answers a packet of no connection goes out by TCP itself. (4) The STREAM
//! head's read queue is the receive buffer behind its own lock, and writes are answered from an
//! account of room, both as under `squeue`. (5) TCP takes its whole queue at once, so that below
//! the low-water mark means empty. (6) Who has waited `PATIENCE` (`answer.rs`) for an answer moves
//! messages on itself.

mod cell;
mod org;

use crate::Kd;
use crate::answer::question;
use crate::due::DueLine;
use crate::open::{Options, Visit};
use crate::spec::{Colour, Family, Look, Marker, Occupancy, OrgSpec, Params, Variant};
use crate::squeue::cell::{Manner, OuterTable};
use crate::squeue::queue::{ANY_CORE, Inside, Protected, Settings, Squeue, Who};
use cell::Above;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use perimeter_stack::segment::Apart;
use perimeter_stack::shard::Shard;
use perimeter_stack::{Ctx, Seg, SharedState, output};
use perimeter_sync::{PerLane, Platform};
use std::collections::VecDeque;
use std::sync::Arc;

/// `streams`.
static FAMILY: Family = Family {
    name: "streams",
    title: "STREAMS",
    takes: "it takes `pairs=N` (a perimeter for each queue pair of N streams, up to 16)",
    variants: &[
        Variant {
            name: "streams",
            usual: "streams",
            summary: "before FireEngine: each layer a module with its own queue, on any core",
        },
        Variant {
            name: "streams:pairs=N",
            usual: "streams:pairs=4",
            summary: "the same, with a perimeter for each queue pair in place of each module",
        },
    ],
    tested: &[("streams:pairs=4", "streams:pairs=2")],
    recommend: None,
    parse: |mut parts| {
        let pairs = parts.count("pairs", 1, MOST)?;
        parts.end(OrgSpec::new(&FAMILY, Perimeters(pairs)))
    },
    look: Look {
        colour: Colour {
            light: "#8c7a00",
            dark: "#e0d040",
            terminal: Some(142),
        },
        marker: Marker::Circle,
    },
    counts: &COUNTS,
    hand_over: &[],
};

/// What it counts: times that a module found the next one's queue full, and packets that found no
/// room in the queue of a module.
const COUNTS: [&str; 2] = ["module_queue_waits", "drop_module_queue_full"];
const QUEUE_WAITS: usize = 0;
const QUEUE_FULL: usize = 1;

/// The families of this module.
pub(crate) const FAMILIES: &[&Family] = &[&FAMILY];

/// Which type each of them is.
pub(crate) fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
    visitor.visit::<Streams<P>>(p, o)
}

/// For how many streams each queue pair has a perimeter of its own; `None`: each module has one.
#[derive(Copy, Clone, Debug)]
struct Perimeters(Option<u16>);

impl fmt::Display for Perimeters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("streams")?;
        self.0.map_or(Ok(()), |n| write!(f, ":pairs={n}"))
    }
}

impl Params for Perimeters {
    fn occupancy(&self) -> Occupancy {
        Occupancy::Stack
    }
}

/// Messages at which a queue of TCP's is full.
pub const HIGH: usize = 64;

/// Packets that IP keeps at most.
pub const ROOM: usize = 16_384;

/// Streams at most: each of their queues has a thread.
const MOST: u16 = 16;

/// The longest that a thread works under one perimeter, ns.
const QUANTUM: u64 = 10_000_000;

/// How often at most a thread goes through the modules before it leaves the rest to the service
/// procedures.
const TURNS: usize = 64;

/// Bits of those who wait for room in a queue of TCP's.
const IP: u8 = 1;
const HEAD: u8 = 2;

/// TCP, for who is in its perimeter.
type InTcp<P> = Inside<Tcp<P>>;

/// What TCP is asked to do.
type Call<P> = Box<dyn FnOnce(&Streams<P>, &mut Ctx<Kd<P>>, &mut InTcp<P>) + Send>;

/// A message in a queue of TCP's.
pub(crate) enum ToTcp<P: Platform> {
    /// A packet, upwards.
    Packet(Box<Seg>),
    /// A call, downwards.
    Call(Call<P>),
    /// Timers are due.
    Timers,
}

/// A message in a queue of IP's.
pub(crate) enum ToIp {
    /// A packet, upwards.
    Packet(Box<Seg>),
    /// Segments of a connection, downwards.
    Out(Box<Apart>),
    /// TCP's queue of that stream has room again.
    Enable(u16),
}

/// A message in a queue of a STREAM head.
pub(crate) enum ToHead<P: Platform> {
    /// A call, downwards.
    Call(Call<P>),
    /// TCP's queue has room again.
    Enable,
}

/// TCP: everything that belongs to connections.
pub(crate) struct Tcp<P: Platform> {
    shard: Shard<Kd<P>, Above<P>>,
}

/// What could not be put to TCP, in order.
type Kept<P> = VecDeque<ToTcp<P>>;

/// IP: what could not be put to TCP, by stream.
pub(crate) struct Ip<P: Platform> {
    kept: Box<[Kept<P>]>,
}

/// A STREAM head: what could not be put to TCP.
pub(crate) struct Head<P: Platform> {
    kept: Kept<P>,
}

impl<P: Platform> Protected for Tcp<P> {
    type Message = ToTcp<P>;
}

impl<P: Platform> Protected for Ip<P> {
    type Message = ToIp;
}

impl<P: Platform> Protected for Head<P> {
    type Message = ToHead<P>;
}

/// The modules of the connections that fall to a stream.
struct Stream<P: Platform> {
    ip: Squeue<P, Ip<P>>,
    head: Squeue<P, Head<P>>,
    tcp: Squeue<P, Tcp<P>>,
    outer_table: Arc<OuterTable<P>>,
    due: DueLine,
}

/// Streams, a bit for each.
#[derive(Copy, Clone, Default)]
struct Set(u16);

impl Set {
    fn add(&mut self, n: u16) {
        self.0 |= 1 << n;
    }

    /// Takes all.
    fn take(&mut self) -> impl Iterator<Item = u16> + use<> {
        let all = core::mem::take(&mut self.0);
        (0..MOST).filter(move |n| all & (1 << n) != 0)
    }
}

/// Queues that a thread has to look at, as it has put something there. Where somebody is in the
/// perimeter, that one takes it along.
#[derive(Copy, Clone, Default)]
struct Todo {
    /// IP's, where packets arrive.
    arrivals: bool,
    head: Set,
    tcp: Set,
    /// IP's of a stream.
    ip: Set,
}

impl Todo {
    /// Where packets arrive only.
    fn arrivals() -> Todo {
        Todo {
            arrivals: true,
            ..Todo::default()
        }
    }

    /// Every queue of a stream, and where packets arrive.
    fn all(n: u16) -> Todo {
        let of = Set(1 << n);
        Todo {
            arrivals: true,
            head: of,
            tcp: of,
            ip: of,
        }
    }

    fn is_done(self) -> bool {
        !self.arrivals && self.head.0 | self.tcp.0 | self.ip.0 == 0
    }
}

/// All modules.
pub struct Streams<P: Platform> {
    /// One, where a module has one perimeter.
    streams: Box<[Stream<P>]>,
    /// IP's queue where packets arrive, if each queue has a perimeter: the stream to the devices
    /// has its own.
    below: Option<Squeue<P, Ip<P>>>,
    /// Messages that IP and the STREAM heads keep.
    kept: AtomicUsize,
    /// Messages, to be used again: one thread makes them, and another may run TCP.
    packets: PerLane<P, Seg>,
}

impl<P: Platform> Streams<P> {
    fn make(spec: &OrgSpec, sh: &SharedState<Kd<P>>) -> Streams<P> {
        let Perimeters(pairs) = *spec.expect_params();
        let n = pairs.unwrap_or(1);
        let settings = Settings {
            quanta: [QUANTUM; 3],
            delay: 0,
        };
        let ip = |streams| {
            let kept = (0..streams).map(|_| Kept::new()).collect();
            Squeue::new(&sh.p, ANY_CORE, settings, Ip { kept })
        };
        let stream = |i| {
            let outer_table = Arc::new(OuterTable::new(&sh.p, None, Manner::default()));
            let shard = Shard::with_outside((i, usize::from(n)), sh, outer_table.clone());
            let kept = Kept::new();
            Stream {
                ip: ip(if pairs.is_some() { 0 } else { 1 }),
                head: Squeue::new(&sh.p, ANY_CORE, settings, Head { kept }),
                tcp: Squeue::new(&sh.p, ANY_CORE, settings, Tcp { shard }),
                outer_table,
                due: DueLine::default(),
            }
        };
        Streams {
            streams: (0..n).map(stream).collect(),
            below: pairs.map(ip),
            kept: AtomicUsize::new(0),
            packets: PerLane::new(sh.p.clone()),
        }
    }

    /// The stream that a flow falls to.
    #[inline]
    fn index(&self, hash: u32) -> u16 {
        (hash % self.streams.len() as u32) as u16
    }

    fn stream(&self, n: u16) -> &Stream<P> {
        &self.streams[usize::from(n)]
    }

    /// IP's queue where packets arrive.
    fn arrivals(&self) -> &Squeue<P, Ip<P>> {
        self.below.as_ref().unwrap_or(&self.streams[0].ip)
    }

    /// Puts what is kept for a stream to its TCP, as far as there is room (`canput`, `putnext`).
    fn put_next(&self, cx: &mut Ctx<Kd<P>>, (n, who): (u16, u8), kept: &mut Kept<P>) {
        while let Some(m) = kept.pop_front() {
            if let Err(m) = self.stream(n).tcp.push_below(HIGH, who, m) {
                kept.push_front(m);
                return cx.count_own(QUEUE_WAITS, 1);
            }
            self.kept.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Puts a message behind what is kept already, if there is any.
    fn keep(&self, kept: &mut Kept<P>, m: ToTcp<P>) {
        kept.push_back(m);
        self.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// IP's put and service procedures. Returns the stream whose TCP has something to do now.
    fn ip(&self, cx: &mut Ctx<Kd<P>>, ip: &mut Ip<P>, m: ToIp) -> Option<u16> {
        let n = match m {
            ToIp::Out(mut apart) => {
                output::place(cx, &mut apart);
                cx.spare(apart);
                return None;
            }
            ToIp::Packet(seg) => {
                let n = self.index(seg.hash);
                let kept = &mut ip.kept[usize::from(n)];
                if kept.len() >= ROOM / self.streams.len() {
                    cx.count_own(QUEUE_FULL, 1);
                    return None;
                }
                self.keep(kept, ToTcp::Packet(seg));
                n
            }
            ToIp::Enable(n) => n,
        };
        self.put_next(cx, (n, IP), &mut ip.kept[usize::from(n)]);
        Some(n)
    }

    /// The STREAM head's put and service procedures.
    fn head(&self, cx: &mut Ctx<Kd<P>>, n: u16, head: &mut Head<P>, m: ToHead<P>) {
        if let ToHead::Call(call) = m {
            self.keep(&mut head.kept, ToTcp::Call(call));
        }
        self.put_next(cx, (n, HEAD), &mut head.kept);
    }

    /// TCP's put and service procedures.
    fn tcp(&self, cx: &mut Ctx<Kd<P>>, n: u16, tcp: &mut InTcp<P>, m: ToTcp<P>) {
        cx.forget_now();
        match m {
            ToTcp::Packet(mut seg) => {
                tcp.shard.input(cx, &mut seg);
                seg.release(&mut cx.pool);
                self.packets.put(seg);
            }
            ToTcp::Call(call) => call(self, cx, tcp),
            ToTcp::Timers => {
                tcp.shard.on_timers(cx);
                // The inbound thread has left them to this one, and knows of none meanwhile.
                cx.deferred.armed = cx.deferred.armed.min(tcp.shard.next_timer());
            }
        }
        self.leave_tcp(cx, n, tcp);
    }

    /// TCP's perimeter may be left: its segments are in IP's queue, in their order, and what
    /// others read without entering is true.
    fn leave_tcp(&self, cx: &mut Ctx<Kd<P>>, n: u16, tcp: &InTcp<P>) {
        let stream = self.stream(n);
        for apart in cx.apart.drain(..) {
            stream.ip.push(ToIp::Out(apart));
        }
        stream.due.publish(&cx.sh.p, tcp.shard.next_timer());
    }

    /// Goes through queues, and through those that something is put to meanwhile, until there is
    /// nothing to do in any that is free; how many messages it ran.
    fn move_on(&self, cx: &mut Ctx<Kd<P>>, who: Who, mut todo: Todo) -> usize {
        let mut total = 0;
        for _ in 0..TURNS {
            if todo.is_done() {
                return total;
            }
            if core::mem::take(&mut todo.arrivals) {
                total += self.arrivals().work(who, |ip, m| {
                    if let Some(n) = self.ip(cx, ip, m) {
                        todo.tcp.add(n);
                    }
                });
            }
            for n in todo.head.take() {
                let head = &self.stream(n).head;
                total += head.work(who, |head, m| self.head(cx, n, head, m));
                todo.tcp.add(n);
            }
            for n in todo.tcp.take() {
                total += self.run_tcp(cx, who, n, &mut todo);
            }
            for n in todo.ip.take() {
                total += self.stream(n).ip.work(who, |ip, m| {
                    self.ip(cx, ip, m);
                });
            }
        }
        if todo.arrivals {
            self.arrivals().nudge();
        }
        todo.head.take().for_each(|n| self.stream(n).head.nudge());
        todo.tcp.take().for_each(|n| self.stream(n).tcp.nudge());
        todo.ip.take().for_each(|n| self.stream(n).ip.nudge());
        total
    }

    /// What waits in a queue of TCP's; and what follows from that in others.
    fn run_tcp(&self, cx: &mut Ctx<Kd<P>>, who: Who, n: u16, todo: &mut Todo) -> usize {
        let stream = self.stream(n);
        let ran = stream.tcp.work(who, |tcp, m| self.tcp(cx, n, tcp, m));
        if ran > 0 && self.below.is_some() {
            todo.ip.add(n);
        }
        let enabled = stream.tcp.take_enabled();
        if enabled & IP != 0 {
            self.arrivals().push(ToIp::Enable(n));
        }
        todo.arrivals |= enabled & IP != 0 || (ran > 0 && self.below.is_none());
        if enabled & HEAD != 0 {
            stream.head.push(ToHead::Enable);
            todo.head.add(n);
        }
        ran
    }

    /// Leaves a call to TCP, by way of the STREAM head or directly.
    fn tell(
        &self,
        cx: &mut Ctx<Kd<P>>,
        (n, by_head): (u16, bool),
        f: impl FnOnce(&Self, &mut Ctx<Kd<P>>, &mut InTcp<P>) + Send + 'static,
    ) {
        let (stream, call) = (self.stream(n), Box::new(f));
        let mut todo = Todo::default();
        if by_head {
            stream.head.push(ToHead::Call(call));
            todo.head.add(n);
        } else {
            stream.tcp.push(ToTcp::Call(call));
            todo.tcp.add(n);
        }
        self.move_on(cx, Who::Writer, todo);
    }

    /// As [`Streams::tell`] by way of the STREAM head, and waits for the answer. `None`: whoever
    /// ran it was stopped by a panic.
    fn ask<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        n: u16,
        f: impl FnOnce(&Self, &mut Ctx<Kd<P>>, &mut InTcp<P>) -> R + Send + 'static,
    ) -> Option<R> {
        let (ticket, answer) = question(&cx.sh.p);
        self.tell(cx, (n, true), |org, cx, tcp| answer.give(f(org, cx, tcp)));
        ticket.wait(cx, |cx| {
            self.move_on(cx, Who::Writer, Todo::all(n));
        })
    }
}
