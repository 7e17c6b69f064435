//! How the glue reaches the parts of a connection, and which locks that takes.

use super::locks::{ConnLocks, Fine, Reach, Whole};
use super::table::TableGuard;
use crate::Kd;
use crate::outer::{Doors, Guard, Opened, Outer, Side, no_rcv, no_snd};
use perimeter_stack::conn::{RcvSide, SndSide, TcbSide};
use perimeter_stack::ops::Op;
use perimeter_stack::{Access, Bufs, Conn, SharedState, SockId};
use perimeter_sync::{Lock, Platform};
use perimeter_tcp::Timers;
use perimeter_wire::FlowKey;

/// Timers that hold the table to their end (the others let go before output).
const HOLD: Timers = Timers(Timers::PERSIST.0 | Timers::KEEPALIVE.0 | Timers::TWO_MSL.0);

impl<P: Platform> Doors for ConnLocks<P> {
    type K = Kd<P>;
    type Snd<'a> = Reach<'a, P, SndSide<Kd<P>>>;
    type Rcv<'a> = Reach<'a, P, RcvSide<Kd<P>>>;

    fn snd(&self, generation: u32) -> Option<Self::Snd<'_>> {
        match self {
            ConnLocks::Fine(f) => Opened::by(f.snd.lock(), generation).map(Reach::Near),
            ConnLocks::Coarse(c) => Reach::through(c.lock(), generation),
        }
    }

    fn rcv(&self, generation: u32) -> Option<Self::Rcv<'_>> {
        match self {
            ConnLocks::Fine(f) => Opened::by(f.rcv.lock(), generation).map(Reach::Near),
            ConnLocks::Coarse(c) => Reach::through(c.lock(), generation),
        }
    }
}

/// How long the table is held while TCP runs an operation.
#[derive(Copy, Clone)]
pub(super) enum TableHold {
    /// Until the connection is held.
    Entry,
    /// Until output starts.
    Output,
    /// To the end.
    Throughout,
}

impl TableHold {
    pub(super) const fn of<P: Platform, Q: Op<Kd<P>>>() -> TableHold {
        match (Q::ENDS, Q::SENDS) {
            (true, _) => TableHold::Throughout,
            (false, true) => TableHold::Output,
            (false, false) => TableHold::Entry,
        }
    }
}

/// What is held of a connection.
enum Held<'a, P: Platform> {
    Fine(&'a Fine<P>, Guard<'a, P, Option<TcbSide<Kd<P>>>>),
    Coarse(Guard<'a, P, Whole<P>>),
}

impl<P: Platform> Held<'_, P> {
    fn tcb(&mut self) -> &mut Option<TcbSide<Kd<P>>> {
        match self {
            Held::Fine(_, tcb) => tcb,
            Held::Coarse(whole) => &mut whole.tcb,
        }
    }
}

/// A connection whose TCP state is held, and the table with it until the hooks release that.
pub(super) struct Entered<'a, P: Platform> {
    held: Held<'a, P>,
    id: SockId,
    table: Option<TableGuard<'a, P>>,
    /// The hooks do not release the table.
    throughout: bool,
}

/// Entered only while a connection has these locks.
const LIVES: &str = "a connection that was entered is there";

impl<'a, P: Platform> Entered<'a, P> {
    /// Takes the connection's lock, while the table's is held if it is given. `None`: no
    /// connection has these locks.
    pub(super) fn new(
        locks: &'a ConnLocks<P>,
        table: Option<TableGuard<'a, P>>,
    ) -> Option<Entered<'a, P>> {
        let mut held = match locks {
            ConnLocks::Fine(f) => Held::Fine(f, f.tcb.lock()),
            ConnLocks::Coarse(c) => Held::Coarse(c.lock()),
        };
        let id = held.tcb().as_ref()?.meta.id;
        Some(Entered {
            held,
            id,
            table,
            throughout: false,
        })
    }

    /// A new connection gets these locks. No connection has them, so nobody else looks for it; a
    /// thread that comes late, by its predecessor's name, may still be at one of them.
    pub(super) fn new_connection(
        locks: &'a ConnLocks<P>,
        conn: Conn<Kd<P>>,
        table: TableGuard<'a, P>,
    ) -> Entered<'a, P> {
        let id = conn.tcb.meta.id;
        let generation = id.generation();
        let snd = Outer {
            generation,
            value: conn.snd,
        };
        let rcv = Outer {
            generation,
            value: conn.rcv,
        };
        let tcb = Some(conn.tcb);
        let held = match locks {
            ConnLocks::Fine(f) => {
                let mut guard = f.tcb.lock();
                *f.snd.lock() = snd;
                *f.rcv.lock() = rcv;
                *guard = tcb;
                Held::Fine(f, guard)
            }
            ConnLocks::Coarse(c) => {
                let mut guard = c.lock();
                *guard = Whole { tcb, snd, rcv };
                Held::Coarse(guard)
            }
        };
        Entered {
            held,
            id,
            table: Some(table),
            throughout: false,
        }
    }

    pub(super) fn id(&self) -> SockId {
        self.id
    }

    pub(super) fn key(&mut self) -> FlowKey {
        self.tcb().meta.key
    }

    pub(super) fn is_orphan(&mut self) -> bool {
        self.tcb().meta.orphan
    }

    pub(super) fn has_table(&self) -> bool {
        self.table.is_some()
    }

    /// Says how long the table is held from here on.
    pub(super) fn hold(&mut self, hold: TableHold) {
        match hold {
            TableHold::Entry => self.table = None,
            TableHold::Output => {}
            TableHold::Throughout => self.throughout = true,
        }
    }

    /// The table apart, if it is held.
    pub(super) fn part(mut self) -> Option<(Entered<'a, P>, TableGuard<'a, P>)> {
        let table = self.table.take()?;
        Some((self, table))
    }

    /// From now on the application's name does not open the buffers.
    pub(super) fn shut_out(&mut self) {
        match &mut self.held {
            Held::Fine(locks, _) => {
                locks.snd.lock().generation = 0;
                locks.rcv.lock().generation = 0;
            }
            Held::Coarse(whole) => {
                whole.snd.generation = 0;
                whole.rcv.generation = 0;
            }
        }
    }

    /// The connection moves out.
    pub(super) fn vacate(mut self) -> Conn<Kd<P>> {
        let (snd, rcv) = (Outer::closed(no_snd()), Outer::closed(no_rcv()));
        let tcb = self.held.tcb().take().expect(LIVES);
        match &mut self.held {
            Held::Fine(locks, _) => {
                let snd = core::mem::replace(&mut *locks.snd.lock(), snd).value;
                let rcv = core::mem::replace(&mut *locks.rcv.lock(), rcv).value;
                Conn { tcb, snd, rcv }
            }
            Held::Coarse(whole) => {
                let snd = core::mem::replace(&mut whole.snd, snd).value;
                let rcv = core::mem::replace(&mut whole.rcv, rcv).value;
                Conn { tcb, snd, rcv }
            }
        }
    }

    fn let_go(&mut self) {
        if !self.throughout {
            self.table = None;
        }
    }
}

impl<P: Platform> Bufs for Entered<'_, P> {
    type K = Kd<P>;
    type Snd<'b>
        = Side<'b, Opened<'b, P, SndSide<Kd<P>>>>
    where
        Self: 'b;
    type Rcv<'b>
        = Side<'b, Opened<'b, P, RcvSide<Kd<P>>>>
    where
        Self: 'b;

    fn snd(&mut self) -> Self::Snd<'_> {
        self.tcb_snd().1
    }

    fn rcv(&mut self) -> Self::Rcv<'_> {
        self.tcb_rcv().1
    }
}

impl<P: Platform> Access for Entered<'_, P> {
    const SPLIT: bool = true;

    fn tcb(&mut self) -> &mut TcbSide<Kd<P>> {
        self.held.tcb().as_mut().expect(LIVES)
    }

    // Inlined: what it yields, written in pieces and read whole, would wait for all stores before.
    #[inline(always)]
    fn tcb_snd(&mut self) -> (&mut TcbSide<Kd<P>>, Self::Snd<'_>) {
        match &mut self.held {
            Held::Fine(locks, tcb) => {
                let snd = Side::Held(Opened::any(locks.snd.lock()));
                (tcb.as_mut().expect(LIVES), snd)
            }
            Held::Coarse(whole) => {
                let whole = &mut **whole;
                let snd = Side::Free(&mut whole.snd.value);
                (whole.tcb.as_mut().expect(LIVES), snd)
            }
        }
    }

    // Inlined: what it yields, written in pieces and read whole, would wait for all stores before.
    #[inline(always)]
    fn tcb_rcv(&mut self) -> (&mut TcbSide<Kd<P>>, Self::Rcv<'_>) {
        match &mut self.held {
            Held::Fine(locks, tcb) => {
                let rcv = Side::Held(Opened::any(locks.rcv.lock()));
                (tcb.as_mut().expect(LIVES), rcv)
            }
            Held::Coarse(whole) => {
                let whole = &mut **whole;
                let rcv = Side::Free(&mut whole.rcv.value);
                (whole.tcb.as_mut().expect(LIVES), rcv)
            }
        }
    }

    fn fast_path(&mut self) {
        self.let_go();
    }

    fn before_output(&mut self) {
        self.let_go();
    }

    fn timers(&mut self, fired: Timers) {
        self.throughout |= fired.intersects(HOLD);
    }

    fn route(&mut self, sh: &SharedState<Kd<P>>) {
        let meta = &mut self.tcb().meta;
        let to = (meta.key.remote, meta.by);
        if let Some(mac) = sh.routes.segment(to) {
            meta.template.set_l2_dst(mac);
        }
    }
}
