//! A connection whose segments go to IP's queue: TCP makes them, IP places them in the transmit
//! ring.

use crate::Kd;
use crate::squeue::cell::{OuterTable, Parted};
use crate::squeue::collecting::{Collecting, Points};
use perimeter_stack::conn::TcbSide;
use perimeter_stack::segment::{Outgoing, Up};
use perimeter_stack::{Cell, Conn, Ctx, SharedState};
use perimeter_sync::Platform;
use perimeter_tcp::Config;
use std::sync::Arc;

/// A connection.
pub(crate) type Above<P> = Collecting<P, ForIp>;

/// Segments that were made since its perimeter was entered.
#[derive(Default)]
pub(crate) struct ForIp(Outgoing);

impl Points for ForIp {
    #[inline]
    fn out(&mut self) -> Option<&mut Outgoing> {
        Some(&mut self.0)
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
            points: ForIp::default(),
        })
    }

    #[inline]
    fn peek(&self) -> &TcbSide<Kd<P>> {
        self.conn.peek()
    }

    #[inline]
    fn left(&mut self, cx: &mut Ctx<Kd<P>>) {
        self.conn.left(cx);
        let ForIp(out) = &mut self.points;
        if !out.segs.is_empty() {
            let meta = &self.conn.peek().meta;
            let both = (Up::default(), core::mem::take(out));
            cx.apart((meta.id, meta.key), (&meta.template, meta.txq), both);
        }
    }

    fn leave(self, outer_table: &mut Arc<OuterTable<P>>) -> Conn<Kd<P>> {
        self.conn.leave(outer_table)
    }
}
