//! A connection as its thread keeps it: TCP state private, and socket buffers shared with the
//! application, each behind its lock; or whole, where the application's role and the protocol's
//! are one thread's.

use super::demux::Demux;
use crate::Kd;
use crate::outer::{Doors, Opened, Outer, Places, first_phase, no_rcv, no_snd};
use perimeter_stack::conn::{Cell, RcvSide, SndSide, TcbSide};
use perimeter_stack::ops::{Op, Step};
use perimeter_stack::{Access, Bufs, Conn, Ctx, SharedState, SockId};
use perimeter_sync::{Lock, LockClass, LockStats, Platform, Work};
use perimeter_tcp::Config;
use std::sync::Arc;

/// How a protocol thread keeps a connection.
pub(crate) trait Keep: Cell<K = Kd<Self::P>, Outside: Clone + Sync> {
    /// The platform.
    type P: Platform;

    /// What thread `index` keeps apart.
    fn outside(index: usize, demux: Option<&Arc<Demux<Self::P>>>) -> Self::Outside;

    /// Its timer message: what was due when it was sent, one bit for each timer. Not 0: it is on
    /// its way.
    fn message(&mut self) -> &mut u8;

    /// The application has let go: from now on its name does not open the buffers.
    fn shut_out(&mut self);

    /// What a socket call does before it enters the protocol.
    fn before<Q: Op<Kd<Self::P>>>(
        outside: &Self::Outside,
        id: SockId,
        op: &mut Q,
        cx: &mut Ctx<Kd<Self::P>>,
    ) -> Before<Q::Out>;

    /// Adds the counts of the buffers' locks.
    fn lock_stats(outside: &Self::Outside, add: &mut dyn FnMut(LockClass, LockStats));
}

/// What [`Keep::before`] leaves to do.
pub(crate) enum Before<O> {
    /// The first phase is done.
    Step(Step<O>),
    /// Both phases are the protocol thread's.
    Nothing,
    /// The connection has gone.
    Stale,
}

/// The socket buffers of one connection after another: the locks stay where they are, so that a
/// thread that comes late, with an old handle, never meets freed memory.
pub(crate) struct Sides<P: Platform> {
    snd: P::Lock<Outer<SndSide<Kd<P>>>>,
    rcv: P::Lock<Outer<RcvSide<Kd<P>>>>,
}

impl<P: Platform> Sides<P> {
    fn new(p: &P) -> Sides<P> {
        Sides {
            snd: p.lock(LockClass::Sndbuf, Outer::closed(no_snd())),
            rcv: p.lock(LockClass::Rcvbuf, Outer::closed(no_rcv())),
        }
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::Sndbuf, self.snd.stats());
        add(LockClass::Rcvbuf, self.rcv.stats());
    }
}

/// What thread `index` keeps apart of its connections.
pub(crate) struct SideTable<P: Platform> {
    /// The buffers, by slot.
    places: Arc<Places<Sides<P>>>,
    demux: Option<Arc<Demux<P>>>,
    index: usize,
}

impl<P: Platform> Clone for SideTable<P> {
    fn clone(&self) -> Self {
        SideTable {
            places: self.places.clone(),
            demux: self.demux.clone(),
            index: self.index,
        }
    }
}

/// A connection without its buffers.
pub(crate) struct Apart<P: Platform> {
    tcb: TcbSide<Kd<P>>,
    places: Arc<Places<Sides<P>>>,
    timers: u8,
}

impl<P: Platform> Apart<P> {
    fn sides(&self) -> &Sides<P> {
        sides(&self.places, self.tcb.meta.id.slot())
    }
}

impl<P: Platform> Keep for Apart<P> {
    type P = P;

    fn outside(index: usize, demux: Option<&Arc<Demux<P>>>) -> SideTable<P> {
        SideTable {
            places: Arc::default(),
            demux: demux.cloned(),
            index,
        }
    }

    fn message(&mut self) -> &mut u8 {
        &mut self.timers
    }

    fn shut_out(&mut self) {
        let sides = self.sides();
        sides.snd.lock().generation = 0;
        sides.rcv.lock().generation = 0;
    }

    fn before<Q: Op<Kd<P>>>(
        outside: &SideTable<P>,
        id: SockId,
        op: &mut Q,
        cx: &mut Ctx<Kd<P>>,
    ) -> Before<Q::Out> {
        let Some(sides) = outside.places.get(id.slot()) else {
            return Before::Stale;
        };
        cx.sh.p.charge(Work::SockCall, 1);
        first_phase(sides, id.generation(), op, cx).map_or(Before::Stale, Before::Step)
    }

    fn lock_stats(outside: &SideTable<P>, add: &mut dyn FnMut(LockClass, LockStats)) {
        outside.places.each(|sides| sides.lock_stats(add));
    }
}

impl<P: Platform> Cell for Apart<P> {
    type Outside = SideTable<P>;

    fn make(
        outside: &mut SideTable<P>,
        (sh, _): (&SharedState<Kd<P>>, &Config),
        conn: Conn<Kd<P>>,
    ) -> Option<Self> {
        let id = conn.tcb.meta.id;
        let sides = outside
            .places
            .get_or_make(id.slot(), || Sides::new(&sh.p))?;
        *sides.snd.lock() = Outer {
            generation: id.generation(),
            value: conn.snd,
        };
        *sides.rcv.lock() = Outer {
            generation: id.generation(),
            value: conn.rcv,
        };
        if let Some(d) = &outside.demux {
            d.there(outside.index);
        }
        Some(Apart {
            tcb: conn.tcb,
            places: outside.places.clone(),
            timers: 0,
        })
    }

    fn peek(&self) -> &TcbSide<Kd<P>> {
        &self.tcb
    }

    fn unlinked(&self, outside: &mut SideTable<P>) {
        if let Some(d) = &outside.demux {
            d.release(&self.tcb.meta.key, outside.index);
            d.left(outside.index);
        }
    }

    fn leave(self, _: &mut SideTable<P>) -> Conn<Kd<P>> {
        let sides = self.sides();
        let snd = core::mem::replace(&mut *sides.snd.lock(), Outer::closed(no_snd())).value;
        let rcv = core::mem::replace(&mut *sides.rcv.lock(), Outer::closed(no_rcv())).value;
        Conn {
            tcb: self.tcb,
            snd,
            rcv,
        }
    }
}

impl<P: Platform> Bufs for Apart<P> {
    type K = Kd<P>;
    type Snd<'b>
        = Opened<'b, P, SndSide<Kd<P>>>
    where
        Self: 'b;
    type Rcv<'b>
        = Opened<'b, P, RcvSide<Kd<P>>>
    where
        Self: 'b;

    fn snd(&mut self) -> Self::Snd<'_> {
        Opened::any(self.sides().snd.lock())
    }

    fn rcv(&mut self) -> Self::Rcv<'_> {
        Opened::any(self.sides().rcv.lock())
    }
}

/// The buffers' place, borrowed apart from the TCP state.
fn sides<P: Platform>(places: &Places<Sides<P>>, slot: u32) -> &Sides<P> {
    places.get(slot).expect("made when the connection was")
}

impl<P: Platform> Access for Apart<P> {
    const SPLIT: bool = true;

    fn tcb(&mut self) -> &mut TcbSide<Kd<P>> {
        &mut self.tcb
    }

    fn tcb_snd(&mut self) -> (&mut TcbSide<Kd<P>>, Self::Snd<'_>) {
        let sides = sides(&self.places, self.tcb.meta.id.slot());
        (&mut self.tcb, Opened::any(sides.snd.lock()))
    }

    fn tcb_rcv(&mut self) -> (&mut TcbSide<Kd<P>>, Self::Rcv<'_>) {
        let sides = sides(&self.places, self.tcb.meta.id.slot());
        (&mut self.tcb, Opened::any(sides.rcv.lock()))
    }
}

impl<P: Platform> Doors for Sides<P> {
    type K = Kd<P>;
    type Snd<'a> = Opened<'a, P, SndSide<Kd<P>>>;
    type Rcv<'a> = Opened<'a, P, RcvSide<Kd<P>>>;

    fn snd(&self, generation: u32) -> Option<Self::Snd<'_>> {
        Opened::by(self.snd.lock(), generation)
    }

    fn rcv(&self, generation: u32) -> Option<Self::Rcv<'_>> {
        Opened::by(self.rcv.lock(), generation)
    }
}

/// A connection whole.
pub(crate) struct Whole<P: Platform> {
    conn: Conn<Kd<P>>,
    timers: u8,
}

impl<P: Platform> Keep for Whole<P> {
    type P = P;

    fn outside(_: usize, _: Option<&Arc<Demux<P>>>) {}

    fn message(&mut self) -> &mut u8 {
        &mut self.timers
    }

    fn shut_out(&mut self) {}

    fn before<Q: Op<Kd<P>>>((): &(), _: SockId, _: &mut Q, _: &mut Ctx<Kd<P>>) -> Before<Q::Out> {
        Before::Nothing
    }

    fn lock_stats((): &(), _: &mut dyn FnMut(LockClass, LockStats)) {}
}

impl<P: Platform> Cell for Whole<P> {
    type Outside = ();

    #[inline]
    fn make((): &mut (), _: (&SharedState<Kd<P>>, &Config), conn: Conn<Kd<P>>) -> Option<Self> {
        Some(Whole { conn, timers: 0 })
    }

    #[inline]
    fn peek(&self) -> &TcbSide<Kd<P>> {
        &self.conn.tcb
    }

    fn leave(self, (): &mut ()) -> Conn<Kd<P>> {
        self.conn
    }
}

impl<P: Platform> Bufs for Whole<P> {
    type K = Kd<P>;
    type Snd<'b> = &'b mut SndSide<Kd<P>>;
    type Rcv<'b> = &'b mut RcvSide<Kd<P>>;

    #[inline]
    fn snd(&mut self) -> &mut SndSide<Kd<P>> {
        &mut self.conn.snd
    }

    #[inline]
    fn rcv(&mut self) -> &mut RcvSide<Kd<P>> {
        &mut self.conn.rcv
    }
}

impl<P: Platform> Access for Whole<P> {
    #[inline]
    fn tcb(&mut self) -> &mut TcbSide<Kd<P>> {
        &mut self.conn.tcb
    }

    #[inline]
    fn tcb_snd(&mut self) -> (&mut TcbSide<Kd<P>>, &mut SndSide<Kd<P>>) {
        (&mut self.conn.tcb, &mut self.conn.snd)
    }

    #[inline]
    fn tcb_rcv(&mut self) -> (&mut TcbSide<Kd<P>>, &mut RcvSide<Kd<P>>) {
        (&mut self.conn.tcb, &mut self.conn.rcv)
    }
}
