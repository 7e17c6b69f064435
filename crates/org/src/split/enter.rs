//! How the glue reaches the parts of a connection, and which locks that takes.

use super::home::Place;
use super::{Kd, Table};
use crate::place::{Guard, Part, Side, no_rcv, no_snd};
use perimeter_base::Time;
use perimeter_stack::conn::{RcvSide, SndSide, TcbSide};
use perimeter_stack::{Access, Bufs, SockId};
use perimeter_sync::{Lock, Platform};

/// The table, held.
pub(crate) type TableGuard<'a, P> = Guard<'a, P, Table<P>>;

/// The buffers of the connection that a handle names, without its TCP state.
pub(super) struct Outside<'a, P: Platform> {
    place: &'a Place<P>,
    generation: u32,
    stale: bool,
    snd: Option<SndSide<Kd<P>>>,
    rcv: Option<RcvSide<Kd<P>>>,
}

impl<'a, P: Platform> Outside<'a, P> {
    pub(super) fn new(place: &'a Place<P>, generation: u32) -> Outside<'a, P> {
        Outside {
            place,
            generation,
            stale: false,
            snd: None,
            rcv: None,
        }
    }

    /// Whether the connection had gone when one of its buffers was entered.
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }
}

impl<P: Platform> Bufs for Outside<'_, P> {
    type K = Kd<P>;
    type Snd<'b>
        = Side<'b, P, SndSide<Kd<P>>>
    where
        Self: 'b;
    type Rcv<'b>
        = Side<'b, P, RcvSide<Kd<P>>>
    where
        Self: 'b;

    fn snd(&mut self) -> Self::Snd<'_> {
        let guard = self.place.snd.lock();
        if guard.generation == self.generation {
            return Side::Held(guard);
        }
        self.stale = true;
        Side::Gone(self.snd.get_or_insert_with(no_snd))
    }

    fn rcv(&mut self) -> Self::Rcv<'_> {
        let guard = self.place.rcv.lock();
        if guard.generation == self.generation {
            return Side::Held(guard);
        }
        self.stale = true;
        Side::Gone(self.rcv.get_or_insert_with(no_rcv))
    }
}

/// A connection whose TCP state is held, and the table with it until the hooks release that.
pub(crate) struct Entered<'a, P: Platform> {
    place: &'a Place<P>,
    table: Option<TableGuard<'a, P>>,
    tcb: Guard<'a, P, Option<TcbSide<Kd<P>>>>,
}

impl<'a, P: Platform> Entered<'a, P> {
    /// Takes the connection's lock while the table's is held. `None`: nobody lives there.
    pub(super) fn new(place: &'a Place<P>, table: TableGuard<'a, P>) -> Option<Entered<'a, P>> {
        let tcb = place.tcb.lock();
        tcb.is_some().then_some(Entered {
            place,
            table: Some(table),
            tcb,
        })
    }

    fn side(&self) -> &TcbSide<Kd<P>> {
        self.tcb
            .as_ref()
            .expect("entered only when there, and left when vacated")
    }

    pub(super) fn id(&self) -> SockId {
        self.side().meta.id
    }

    pub(super) fn armed(&self) -> Time {
        self.side().meta.armed
    }

    pub(super) fn is_orphan(&self) -> bool {
        self.side().meta.orphan
    }

    pub(super) fn has_table(&self) -> bool {
        self.table.is_some()
    }

    /// The table apart, if it is held.
    pub(super) fn part(mut self) -> Option<(Entered<'a, P>, TableGuard<'a, P>)> {
        let table = self.table.take()?;
        Some((self, table))
    }

    /// From now on the application's name does not open the buffers.
    pub(super) fn shut_out(&mut self) {
        self.place.snd.lock().generation = 0;
        self.place.rcv.lock().generation = 0;
    }

    /// The connection moves out.
    pub(super) fn vacate(mut self) -> (SndSide<Kd<P>>, RcvSide<Kd<P>>) {
        *self.tcb = None;
        let nobody = Part::closed(no_snd());
        let snd = core::mem::replace(&mut *self.place.snd.lock(), nobody).value;
        let nobody = Part::closed(no_rcv());
        let rcv = core::mem::replace(&mut *self.place.rcv.lock(), nobody).value;
        (snd, rcv)
    }
}

impl<P: Platform> Bufs for Entered<'_, P> {
    type K = Kd<P>;
    type Snd<'b>
        = Side<'b, P, SndSide<Kd<P>>>
    where
        Self: 'b;
    type Rcv<'b>
        = Side<'b, P, RcvSide<Kd<P>>>
    where
        Self: 'b;

    fn snd(&mut self) -> Self::Snd<'_> {
        Side::Held(self.place.snd.lock())
    }

    fn rcv(&mut self) -> Self::Rcv<'_> {
        Side::Held(self.place.rcv.lock())
    }
}

impl<P: Platform> Access for Entered<'_, P> {
    const SPLIT: bool = true;

    fn tcb(&mut self) -> &mut TcbSide<Kd<P>> {
        self.tcb
            .as_mut()
            .expect("entered only when there, and left when vacated")
    }

    fn tcb_snd(&mut self) -> (&mut TcbSide<Kd<P>>, Self::Snd<'_>) {
        let snd = Side::Held(self.place.snd.lock());
        (
            self.tcb
                .as_mut()
                .expect("entered only when there, and left when vacated"),
            snd,
        )
    }

    fn tcb_rcv(&mut self) -> (&mut TcbSide<Kd<P>>, Self::Rcv<'_>) {
        let rcv = Side::Held(self.place.rcv.lock());
        (
            self.tcb
                .as_mut()
                .expect("entered only when there, and left when vacated"),
            rcv,
        )
    }

    fn fast_path(&mut self) {
        self.table = None;
    }

    fn before_output(&mut self) {
        self.table = None;
    }
}
