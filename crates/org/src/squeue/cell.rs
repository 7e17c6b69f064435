//! A connection of which applications reach two things without entering the squeue: the receive
//! side, which has the semantics of a STREAM-head read queue, and an account of the room in the
//! send buffer, from which a writer is answered before its data has entered.
//!
//! TCP state and send side live in the perimeter. The account is kept true by
//! [`Parted::left`](Cell::left), after everything that TCP did for the connection.

use crate::Kd;
use crate::outer::{Doors, Guard, Opened, Outer, Places, first_phase, no_rcv, no_snd};
use crate::squeue::ipcl::Ipcl;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use perimeter_stack::conn::{RcvSide, SndSide, TcbSide};
use perimeter_stack::ops::{Op, Reserved, Step};
use perimeter_stack::{Access, Bufs, Cell, Conn, Count, Ctx, SharedState, ready};
use perimeter_sync::{Lock, LockClass, LockStats, Platform, Work};
use perimeter_tcp::{CHUNK, Config};
use std::sync::Arc;

/// The bytes of a send buffer that nobody has reserved, and whether a writer wants to be told of
/// more: one word, so that both are looked at and changed in the same step.
struct Room(AtomicI64);

/// A writer was sent away.
const WANT: i64 = 1;

impl Room {
    /// Adds `bytes`, which may be negative; the bytes there are now, and whether a writer wants
    /// to know.
    #[inline]
    fn add(&self, bytes: i64) -> (i64, bool) {
        let word = self.0.fetch_add(2 * bytes, Ordering::AcqRel) + 2 * bytes;
        (word >> 1, word & WANT != 0)
    }

    /// Bytes; below zero when the buffer's limit was lowered.
    fn bytes(&self) -> i64 {
        self.0.load(Ordering::Acquire) >> 1
    }

    /// Notes that a writer wants to know, from the moment at which there are the bytes that it
    /// returns.
    fn want(&self) -> i64 {
        self.0.fetch_or(WANT, Ordering::AcqRel) >> 1
    }

    /// The writer is told.
    fn told(&self) {
        self.0.fetch_and(!WANT, Ordering::AcqRel);
    }

    fn set(&self, bytes: i64) {
        self.0.store(2 * bytes, Ordering::Release);
    }
}

/// Whether a writer is told of `room` bytes.
fn is_roomy<P: Platform>(sh: &SharedState<Kd<P>>, room: i64, limit: u32) -> bool {
    u32::try_from(room).is_ok_and(|room| sh.config.is_roomy(room, limit))
}

/// What applications see of a send side: its readiness.
pub(crate) struct Front<P: Platform> {
    /// Readiness, and whoever waits for it. The buffer in it stays empty.
    pub(crate) snd: SndSide<Kd<P>>,
    limit: u32,
    /// Connected: data may be promised, unless the direction was shut or has failed.
    open: bool,
}

impl<P: Platform> Front<P> {
    fn nobody() -> Front<P> {
        Front {
            snd: no_snd(),
            limit: 0,
            open: false,
        }
    }

    /// Whether what is written now will be taken.
    fn takes(&self) -> bool {
        self.open && !self.snd.shut && self.snd.side.bits() & ready::ALWAYS == 0
    }

    /// Tells writers if they want to know and there is room again.
    fn tell(&mut self, room: &Room, cx: &mut Ctx<Kd<P>>) {
        if self.open && is_roomy(cx.sh, room.bytes(), self.limit) {
            room.told();
            if self.snd.side.bits() & ready::OUT == 0 {
                self.snd.side.raise(ready::OUT, &mut cx.deferred.wakes);
            }
        }
    }
}

/// The parts of a connection that live outside the squeue.
pub(crate) struct OuterParts<P: Platform> {
    pub(crate) rcv: P::Lock<Outer<RcvSide<Kd<P>>>>,
    pub(crate) front: P::Lock<Outer<Front<P>>>,
    /// Changed by writers under the lock of `front`, and by TCP without it.
    room: Room,
    /// References to the connection: messages for it that wait or run.
    refs: AtomicU32,
}

/// Where the connections of one squeue have their outer parts.
pub(crate) struct OuterTable<P: Platform> {
    p: P,
    pub(crate) places: Places<OuterParts<P>>,
    /// The classifier that is told of a connection's end. `None`: packets are not classified by it.
    ipcl: Option<Arc<Ipcl<P>>>,
    manner: Manner,
}

/// How connections are made.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Manner {
    /// Between TCP and the socket is a STREAM-head read queue: a message for each put, and a round
    /// of the queue's lock for each of `canputnext`, `putnext` and `getq`.
    pub(crate) messages: bool,
    /// TCP has header prediction.
    pub(crate) prediction: bool,
}

impl Default for Manner {
    fn default() -> Manner {
        Manner {
            messages: false,
            prediction: true,
        }
    }
}

impl<P: Platform> OuterTable<P> {
    pub(crate) fn new(p: &P, ipcl: Option<Arc<Ipcl<P>>>, manner: Manner) -> OuterTable<P> {
        OuterTable {
            p: p.clone(),
            places: Places::default(),
            ipcl,
            manner,
        }
    }

    /// All places that were ever made.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &OuterParts<P>> {
        (0..).map_while(|slot| self.places.get(slot))
    }
}

impl<P: Platform> OuterParts<P> {
    pub(crate) fn new(p: &P) -> OuterParts<P> {
        OuterParts {
            rcv: p.lock(LockClass::Rcvbuf, Outer::closed(no_rcv())),
            front: p.lock(LockClass::Sndbuf, Outer::closed(Front::nobody())),
            room: Room(AtomicI64::new(0)),
            refs: AtomicU32::new(0),
        }
    }

    /// So many messages for the connection are on their way.
    #[inline]
    pub(crate) fn hold(&self, refs: u32) {
        self.refs.fetch_add(refs, Ordering::Relaxed);
    }

    /// They were run.
    #[inline]
    pub(crate) fn release(&self, refs: u32) {
        let before = self.refs.fetch_sub(refs, Ordering::Relaxed);
        debug_assert!(before >= refs, "a reference was dropped twice");
    }

    /// Messages for it that wait or run.
    pub(crate) fn refs(&self) -> u32 {
        self.refs.load(Ordering::Relaxed)
    }

    pub(crate) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::Rcvbuf, self.rcv.stats());
        add(LockClass::Sndbuf, self.front.stats());
    }
}

/// What a call has left to do once its first phase is over.
pub(crate) enum Start<O> {
    /// Nothing; this is its result.
    Over(Option<O>),
    /// The caller has its answer, and both phases are to be run. So many bytes are charged until
    /// then.
    Answered(O, u32),
    /// So many bytes are reserved, and both phases are to be run for the answer.
    Asks(u32),
    /// The caller has its answer, and TCP something to do as a consequence.
    Kick(O),
    /// The second phase.
    Tcp,
}

/// Settles a send from the account, if it can be. `None`: it takes no room, as other operations.
fn promise<P: Platform, Q: Op<Kd<P>>>(
    place: &OuterParts<P>,
    generation: u32,
    op: &mut Q,
    cx: &mut Ctx<Kd<P>>,
) -> Option<Start<Q::Out>> {
    if !op.takes_room() {
        return None;
    }
    let mut part = place.front.lock();
    if part.generation != generation {
        drop(part);
        return Some(Start::Over(cx.sh.stale(cx)));
    }
    let front = &mut part.value;
    let takes = front.takes();
    cx.sh.p.checkpoint();
    let mut free = u32::try_from(place.room.bytes()).unwrap_or(0);
    // Short memory holds senders back, but never quite one that has nothing under way: it could
    // wait for ever.
    let short = takes && cx.sh.memory_short() && free > 0;
    if short {
        let held = front.limit.saturating_sub(free) as usize;
        let trusted = front.snd.trust.bytes(held == 0, cx.now());
        let room = cx.sh.room_to_write(held, held == 0, CHUNK, trusted);
        if room < free as usize {
            cx.count(Count::MemRefused, 1);
        }
        free = free.min(u32::try_from(room).unwrap_or(u32::MAX));
    }
    let Reserved { out, bytes, all } = op.reserve(free)?;
    op.called_by(cx.caller());
    // Others only add.
    place.room.add(-i64::from(bytes));
    if !takes {
        return Some(Start::Asks(bytes));
    }
    if !all {
        cx.sh.p.checkpoint();
        let now = place.room.want();
        // Perhaps TCP has added some since. If there is nothing under way, it won't any more.
        let enough = if short {
            now >= i64::from(front.limit)
        } else {
            is_roomy(cx.sh, now, front.limit)
        };
        // Lowered in either case: who is told of changes only must see one.
        front.snd.side.lower(ready::OUT);
        if enough {
            place.room.told();
            front.snd.side.raise(ready::OUT, &mut cx.deferred.wakes);
        }
    }
    if bytes == 0 {
        return Some(Start::Over(Some(out)));
    }
    op.answered();
    cx.charge(0, bytes as usize);
    Some(Start::Answered(out, bytes))
}

/// Begins a call outside of the perimeter. Unless it is `charged` already, it is here; one that was
/// promised is by its later part then.
pub(crate) fn start<P: Platform, Q: Op<Kd<P>>>(
    place: &OuterParts<P>,
    generation: u32,
    op: &mut Q,
    cx: &mut Ctx<Kd<P>>,
    charged: bool,
) -> Start<Q::Out> {
    if let Some(settled) = promise(place, generation, op, cx) {
        return settled;
    }
    if !charged {
        cx.sh.p.charge(Work::SockCall, 1);
    }
    match first_phase(place, generation, op, cx) {
        None => Start::Over(cx.sh.stale(cx)),
        Some(Step::Done(out)) => Start::Over(Some(out)),
        Some(Step::Kick(out)) => Start::Kick(out),
        Some(Step::Tcp) => Start::Tcp,
    }
}

/// Gives back what a promise did not use.
pub(crate) fn give_back<P: Platform>(
    place: &OuterParts<P>,
    generation: u32,
    unused: u32,
    cx: &mut Ctx<Kd<P>>,
) {
    let mut part = place.front.lock();
    if unused > 0 && part.generation == generation {
        let (_, wanted) = place.room.add(i64::from(unused));
        if wanted {
            part.value.tell(&place.room, cx);
        }
    }
}

/// What the account was last told.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Told {
    acked: u64,
    limit: u32,
    bits: u8,
    shut: bool,
    orphan: bool,
}

/// A connection, as its squeue has it.
pub(crate) struct Parted<P: Platform> {
    tcb: TcbSide<Kd<P>>,
    snd: SndSide<Kd<P>>,
    outer_table: Arc<OuterTable<P>>,
    told: Told,
}

impl<P: Platform> Parted<P> {
    fn slot(&self) -> u32 {
        self.tcb.meta.id.slot()
    }

    fn now(&self) -> Told {
        Told {
            acked: self.snd.acked,
            limit: self.snd.buf.limit(),
            bits: self.snd.side.bits(),
            shut: self.snd.shut,
            orphan: self.tcb.meta.orphan,
        }
    }

    /// Tells the account what has changed.
    fn tell(&mut self, now: Told, cx: &mut Ctx<Kd<P>>) {
        let was = core::mem::replace(&mut self.told, now);
        let place = place(&self.outer_table, self.slot());
        let more = (now.acked - was.acked) as i64 + i64::from(now.limit) - i64::from(was.limit);
        if more != 0 {
            self.outer_table.p.checkpoint();
            let (room, wanted) = place.room.add(more);
            self.outer_table.p.checkpoint();
            let only = Told {
                acked: now.acked,
                ..was
            };
            if now == only && !(wanted && is_roomy(cx.sh, room, now.limit)) {
                return;
            }
        }
        let mut part = place.front.lock();
        let front = &mut part.value;
        front.limit = now.limit;
        let fresh = now.bits & !was.bits;
        let ended = now.shut && !was.shut;
        front.snd.shut |= now.shut;
        front.open |= now.bits & ready::OUT != 0;
        if ended || fresh & ready::ALWAYS != 0 {
            front
                .snd
                .side
                .raise(fresh | ready::OUT, &mut cx.deferred.wakes);
        } else if fresh != 0 {
            front.snd.side.raise(fresh, &mut cx.deferred.wakes);
        } else {
            front.tell(&place.room, cx);
        }
        if now.orphan {
            front.snd.side.finish(&mut cx.deferred.wakes);
            part.generation = 0;
            drop(part);
            place.rcv.lock().generation = 0;
        }
    }
}

/// The place of a connection that is there.
fn place<P: Platform>(outer_table: &OuterTable<P>, slot: u32) -> &OuterParts<P> {
    outer_table
        .places
        .get(slot)
        .expect("a connection is in its place")
}

impl<P: Platform> Bufs for Parted<P> {
    type K = Kd<P>;
    type Snd<'a> = &'a mut SndSide<Kd<P>>;
    type Rcv<'a> = Opened<'a, P, RcvSide<Kd<P>>>;

    #[inline]
    fn snd(&mut self) -> &mut SndSide<Kd<P>> {
        &mut self.snd
    }

    #[inline]
    fn rcv(&mut self) -> Self::Rcv<'_> {
        Opened::any(place(&self.outer_table, self.slot()).rcv.lock())
    }
}

impl<P: Platform> Access for Parted<P> {
    #[inline]
    fn tcb(&mut self) -> &mut TcbSide<Kd<P>> {
        &mut self.tcb
    }

    #[inline]
    fn tcb_snd(&mut self) -> (&mut TcbSide<Kd<P>>, &mut SndSide<Kd<P>>) {
        (&mut self.tcb, &mut self.snd)
    }

    #[inline]
    fn tcb_rcv(&mut self) -> (&mut TcbSide<Kd<P>>, Self::Rcv<'_>) {
        let rcv = place(&self.outer_table, self.tcb.meta.id.slot()).rcv.lock();
        (&mut self.tcb, Opened::any(rcv))
    }
}

impl<P: Platform> Cell for Parted<P> {
    type Outside = Arc<OuterTable<P>>;

    fn make(
        outer_table: &mut Arc<OuterTable<P>>,
        (sh, _): (&SharedState<Kd<P>>, &Config),
        mut conn: Conn<Kd<P>>,
    ) -> Option<Self> {
        let id = conn.tcb.meta.id;
        let place = outer_table
            .places
            .get_or_make(id.slot(), || OuterParts::new(&sh.p))?;
        let manner = outer_table.manner;
        conn.rcv.messages |= manner.messages;
        if !manner.prediction {
            conn.tcb.tcb.set_prediction(false);
        }
        let mut cell = Parted {
            tcb: conn.tcb,
            snd: conn.snd,
            outer_table: outer_table.clone(),
            told: Told {
                acked: 0,
                limit: 0,
                bits: 0,
                shut: false,
                orphan: false,
            },
        };
        cell.told.limit = cell.snd.buf.limit();
        *place.rcv.lock() = Outer {
            generation: id.generation(),
            value: conn.rcv,
        };
        let mut front = place.front.lock();
        place.room.set(i64::from(cell.told.limit));
        *front = Outer {
            generation: id.generation(),
            value: Front {
                snd: SndSide::new(0),
                limit: cell.told.limit,
                open: false,
            },
        };
        drop(front);
        Some(cell)
    }

    #[inline]
    fn peek(&self) -> &TcbSide<Kd<P>> {
        &self.tcb
    }

    #[inline]
    fn left(&mut self, cx: &mut Ctx<Kd<P>>) {
        let now = self.now();
        if now == self.told {
            return;
        }
        // Room alone is told once for the packets of a chain that follow each other: whoever
        // runs the last of them tells of all.
        let room = Told {
            acked: now.acked,
            ..self.told
        };
        if cx.more && now == room {
            return;
        }
        self.tell(now, cx);
    }

    fn unlinked(&self, outer_table: &mut Arc<OuterTable<P>>) {
        if let Some(ipcl) = &outer_table.ipcl {
            let meta = &self.tcb.meta;
            ipcl.remove(&meta.key, meta.id.shard(), Some(meta.id));
        }
    }

    fn leave(self, outer_table: &mut Arc<OuterTable<P>>) -> Conn<Kd<P>> {
        let place = place(outer_table, self.slot());
        *place.front.lock() = Outer::closed(Front::nobody());
        let rcv = core::mem::replace(&mut *place.rcv.lock(), Outer::closed(no_rcv())).value;
        Conn {
            tcb: self.tcb,
            snd: self.snd,
            rcv,
        }
    }
}

/// The send side's front, as the send side.
pub(crate) struct FrontSide<'a, P: Platform>(Guard<'a, P, Outer<Front<P>>>);

impl<P: Platform> Deref for FrontSide<'_, P> {
    type Target = SndSide<Kd<P>>;

    fn deref(&self) -> &SndSide<Kd<P>> {
        &self.0.value.snd
    }
}

impl<P: Platform> DerefMut for FrontSide<'_, P> {
    fn deref_mut(&mut self) -> &mut SndSide<Kd<P>> {
        &mut self.0.value.snd
    }
}

impl<P: Platform> Doors for OuterParts<P> {
    type K = Kd<P>;
    type Snd<'a> = FrontSide<'a, P>;
    type Rcv<'a> = Opened<'a, P, RcvSide<Kd<P>>>;

    fn snd(&self, generation: u32) -> Option<FrontSide<'_, P>> {
        let front = self.front.lock();
        (front.generation == generation).then_some(FrontSide(front))
    }

    fn rcv(&self, generation: u32) -> Option<Self::Rcv<'_>> {
        Opened::by(self.rcv.lock(), generation)
    }
}
