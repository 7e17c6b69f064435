//! A connection whose segments go to IP's queue: TCP makes them, IP places them in the transmit
//! ring.

use crate::Kd;
use crate::squeue::cell::{OuterTable, Parted};
use perimeter_stack::conn::TcbSide;
use perimeter_stack::segment::{Outgoing, Up};
use perimeter_stack::{Access, Bufs, Cell, Conn, Ctx, SharedState};
use perimeter_sync::Platform;
use perimeter_tcp::Config;
use std::sync::Arc;

/// A connection.
pub(crate) struct Above<P: Platform> {
    conn: Parted<P>,
    /// Segments that were made since its perimeter was entered.
    out: Outgoing,
}

impl<P: Platform> Bufs for Above<P> {
    type K = Kd<P>;
    type Snd<'a> = <Parted<P> as Bufs>::Snd<'a>;
    type Rcv<'a> = <Parted<P> as Bufs>::Rcv<'a>;

    #[inline]
    fn snd(&mut self) -> Self::Snd<'_> {
        self.conn.snd()
    }

    #[inline]
    fn rcv(&mut self) -> Self::Rcv<'_> {
        self.conn.rcv()
    }
}

impl<P: Platform> Access for Above<P> {
    #[inline]
    fn tcb(&mut self) -> &mut TcbSide<Kd<P>> {
        self.conn.tcb()
    }

    #[inline]
    fn tcb_snd(&mut self) -> (&mut TcbSide<Kd<P>>, Self::Snd<'_>) {
        self.conn.tcb_snd()
    }

    #[inline]
    fn tcb_rcv(&mut self) -> (&mut TcbSide<Kd<P>>, Self::Rcv<'_>) {
        self.conn.tcb_rcv()
    }

    #[inline]
    fn out(&mut self) -> Option<&mut Outgoing> {
        Some(&mut self.out)
    }
}

impl<P: Platform> Cell for Above<P> {
    type Outside = Arc<OuterTable<P>>;

    fn make(
        outer_table: &mut Arc<OuterTable<P>>,
        made: (&SharedState<Kd<P>>, &Config),
        conn: Conn<Kd<P>>,
    ) -> Option<Self> {
        Some(Above {
            conn: Parted::make(outer_table, made, conn)?,
            out: Outgoing::default(),
        })
    }

    #[inline]
    fn peek(&self) -> &TcbSide<Kd<P>> {
        self.conn.peek()
    }

    #[inline]
    fn left(&mut self, cx: &mut Ctx<Kd<P>>) {
        self.conn.left(cx);
        if !self.out.segs.is_empty() {
            let meta = &self.conn.peek().meta;
            let both = (Up::default(), core::mem::take(&mut self.out));
            cx.apart((meta.id, meta.key), (&meta.template, meta.txq), both);
        }
    }

    fn leave(self, outer_table: &mut Arc<OuterTable<P>>) -> Conn<Kd<P>> {
        self.conn.leave(outer_table)
    }
}
