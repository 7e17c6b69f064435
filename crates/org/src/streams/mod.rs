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
//! each module.
//!
//! **Limits.** Flow control is between modules: IP and the STREAM head look whether TCP's queue
//! has room (`canput`) before they put a message there (`putnext`). If it has not, they keep what
//! they have in their own queue (`putq`), in order, and are enabled again when TCP has taken its
//! queue. A queue is full at [`HIGH`] messages. Packets beyond [`ROOM`] in IP's queue are dropped;
//! writers are held back by the room in the send buffer.
//!
//! **Inferences.** (1) There is one perimeter for each module, not one for each queue pair: TCP's
//! connection table is one. (2) No perimeter is entered within another: a module leaves its
//! message in the next one's queue, and the thread goes on there when it has left. (3) On the way
//! out IP is called by TCP within TCP's perimeter, since a connection's segments must reach the
//! transmit ring in order. (4) The STREAM head's read queue is the receive buffer behind its own
//! lock, and writes are answered from an account of room, both as under `squeue`. (5) TCP takes
//! its whole queue at once, so that below the low-water mark means empty. (6) Who has waited
//! `PATIENCE` (`answer.rs`) for an answer moves messages on itself.

mod org;

use crate::Kd;
use crate::answer::question;
use crate::due::DueLine;
use crate::open::{Options, Visit};
use crate::spec::{Colour, Family, Look, Marker, Occupancy, OrgSpec, Params, Variant};
use crate::squeue::cell::{Manner, OuterTable, Parted};
use crate::squeue::queue::{ANY_CORE, Inside, Protected, Settings, Squeue, Who};
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use perimeter_stack::shard::Shard;
use perimeter_stack::{Count, Ctx, Seg, SharedState};
use perimeter_sync::{PerLane, Platform};
use std::collections::VecDeque;
use std::sync::Arc;

/// `streams`.
static FAMILY: Family = Family {
    name: "streams",
    title: "STREAMS",
    takes: "it takes no parameters",
    variants: &[Variant {
        name: "streams",
        usual: "streams",
        summary: "before FireEngine: each layer a module with its own queue, on any core",
    }],
    tested: &[],
    recommend: None,
    parse: |parts| {
        parts.end(())?;
        Ok(OrgSpec::new(&FAMILY, Name))
    },
    look: Look {
        colour: Colour {
            light: "#8c7a00",
            dark: "#e0d040",
            terminal: Some(142),
        },
        marker: Marker::Circle,
    },
    hand_over: &[],
};

/// The families of this module.
pub(crate) const FAMILIES: &[&Family] = &[&FAMILY];

/// Which type each of them is.
pub(crate) fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
    visitor.visit::<Streams<P>>(p, o)
}

/// There are no parameters.
#[derive(Debug)]
struct Name;

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("streams")
    }
}

impl Params for Name {
    fn occupancy(&self) -> Occupancy {
        Occupancy::Stack
    }
}

/// Messages at which TCP's queue is full.
pub const HIGH: usize = 64;

/// Packets in IP's queue at most.
pub const ROOM: usize = 16_384;

/// The longest that a thread works in one module, ns.
const QUANTUM: u64 = 10_000_000;

/// How often at most a thread goes through the modules before it leaves the rest to the service
/// procedures.
const TURNS: usize = 64;

/// Bits of those who wait for room in TCP's queue.
const IP: u8 = 1;
const HEAD: u8 = 2;

/// TCP, for who is in its perimeter.
type InTcp<P> = Inside<Tcp<P>>;

/// What TCP is asked to do.
type Call<P> = Box<dyn FnOnce(&Streams<P>, &mut Ctx<Kd<P>>, &mut InTcp<P>) + Send>;

/// A message on the stream.
pub(crate) enum Msg<P: Platform> {
    /// A packet, upwards.
    Packet(Box<Seg>),
    /// A call, downwards.
    Call(Call<P>),
    /// Timers are due.
    Timers,
    /// The next queue has room again.
    Enable,
}

/// TCP: everything that belongs to connections.
pub(crate) struct Tcp<P: Platform> {
    shard: Shard<Kd<P>, Parted<P>>,
}

/// IP or the STREAM head: what could not be put to TCP.
pub(crate) struct Module<P: Platform> {
    kept: VecDeque<Msg<P>>,
}

impl<P: Platform> Protected for Tcp<P> {
    type Message = Msg<P>;
}

impl<P: Platform> Protected for Module<P> {
    type Message = Msg<P>;
}

/// The modules.
pub struct Streams<P: Platform> {
    ip: Squeue<P, Module<P>>,
    head: Squeue<P, Module<P>>,
    tcp: Squeue<P, Tcp<P>>,
    outer_table: Arc<OuterTable<P>>,
    /// Messages that IP and the STREAM head keep.
    kept: AtomicUsize,
    due: DueLine,
    /// Messages, to be used again: one thread makes them, and another may run TCP.
    packets: PerLane<P, Seg>,
}

impl<P: Platform> Streams<P> {
    fn make(sh: &SharedState<Kd<P>>) -> Streams<P> {
        let settings = Settings {
            quanta: [QUANTUM; 3],
            delay: 0,
        };
        let module = || {
            let kept = VecDeque::new();
            Squeue::new(&sh.p, ANY_CORE, settings, Module { kept })
        };
        let outer_table = Arc::new(OuterTable::new(&sh.p, None, Manner::default()));
        let shard = Shard::with_outside((0, 1), sh, outer_table.clone());
        Streams {
            ip: module(),
            head: module(),
            tcp: Squeue::new(&sh.p, ANY_CORE, settings, Tcp { shard }),
            outer_table,
            kept: AtomicUsize::new(0),
            due: DueLine::default(),
            packets: PerLane::new(sh.p.clone()),
        }
    }

    /// The put and service procedures of IP and the STREAM head.
    fn module(&self, cx: &mut Ctx<Kd<P>>, who: u8, module: &mut Inside<Module<P>>, m: Msg<P>) {
        if !matches!(m, Msg::Enable) {
            // Behind what is kept already, if there is any.
            if matches!(m, Msg::Packet(_)) && module.kept.len() >= ROOM {
                return cx.count(Count::ModuleQueueFull, 1);
            }
            module.kept.push_back(m);
            self.kept.fetch_add(1, Ordering::Relaxed);
        }
        while let Some(m) = module.kept.pop_front() {
            if let Err(m) = self.tcp.push_below(HIGH, who, m) {
                module.kept.push_front(m);
                return cx.count(Count::ModuleWaits, 1);
            }
            self.kept.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// TCP's put and service procedure.
    fn tcp(&self, cx: &mut Ctx<Kd<P>>, tcp: &mut InTcp<P>, m: Msg<P>) {
        cx.forget_now();
        match m {
            Msg::Packet(mut seg) => {
                tcp.shard.input(cx, &mut seg);
                cx.pool.put(core::mem::take(&mut seg.payload));
                self.packets.put(seg);
            }
            Msg::Call(call) => call(self, cx, tcp),
            Msg::Timers => {
                tcp.shard.on_timers(cx);
                // The inbound thread has left them to this one, and knows of none meanwhile.
                cx.deferred.armed = cx.deferred.armed.min(tcp.shard.next_timer());
            }
            Msg::Enable => {}
        }
        self.refresh(cx.sh, tcp);
    }

    /// What others read without entering TCP is made true.
    fn refresh(&self, sh: &SharedState<Kd<P>>, tcp: &InTcp<P>) {
        self.due.publish(&sh.p, tcp.shard.next_timer());
    }

    /// Goes through the modules until there is nothing to do in any that is free.
    fn move_on(&self, cx: &mut Ctx<Kd<P>>, who: Who) -> usize {
        let mut total = 0;
        for _ in 0..TURNS {
            let mut n = self
                .ip
                .work(who, |inside, m| self.module(cx, IP, inside, m));
            n += self
                .head
                .work(who, |inside, m| self.module(cx, HEAD, inside, m));
            n += self.tcp.work(who, |inside, m| self.tcp(cx, inside, m));
            let enabled = self.tcp.take_enabled();
            for (bit, module) in [(IP, &self.ip), (HEAD, &self.head)] {
                if enabled & bit != 0 {
                    module.push(Msg::Enable);
                }
            }
            total += n;
            if n == 0 && enabled == 0 {
                return total;
            }
        }
        self.ip.nudge();
        self.head.nudge();
        self.tcp.nudge();
        total
    }

    /// Leaves a call to TCP, by way of the STREAM head or directly.
    fn tell(&self, cx: &mut Ctx<Kd<P>>, by_head: bool, call: Call<P>) {
        if by_head {
            self.head.push(Msg::Call(call));
        } else {
            self.tcp.push(Msg::Call(call));
        }
        self.move_on(cx, Who::Writer);
    }

    /// As [`Streams::tell`], and waits for the answer. `None`: whoever ran it was stopped by a
    /// panic.
    fn ask<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        by_head: bool,
        f: impl FnOnce(&Self, &mut Ctx<Kd<P>>, &mut InTcp<P>) -> R + Send + 'static,
    ) -> Option<R> {
        let (ticket, answer) = question(&cx.sh.p);
        self.tell(
            cx,
            by_head,
            Box::new(|org, cx, tcp| answer.give(f(org, cx, tcp))),
        );
        ticket.wait(cx, |cx| {
            self.move_on(cx, Who::Writer);
        })
    }
}
