//! A connection for organizations in which what TCP has made waits for a turn of another layer:
//! [`Parted`], with points where it is collected meanwhile.

use super::cell::Parted;
use crate::Kd;
use perimeter_stack::conn::TcbSide;
use perimeter_stack::segment::{Outgoing, Up};
use perimeter_stack::{Access, Bufs};
use perimeter_sync::Platform;

/// Where what a layer takes in a turn of its own is collected. `None`: TCP hands it on itself.
pub(crate) trait Points {
    /// News for the socket layer.
    #[inline]
    fn up(&mut self) -> Option<&mut Up> {
        None
    }

    /// Segments for IP.
    fn out(&mut self) -> Option<&mut Outgoing>;
}

/// A connection with such points.
pub(crate) struct Collecting<P: Platform, C> {
    pub(crate) conn: Parted<P>,
    pub(crate) points: C,
}

impl<P: Platform, C> Bufs for Collecting<P, C> {
    type K = Kd<P>;
    type Snd<'a>
        = <Parted<P> as Bufs>::Snd<'a>
    where
        C: 'a;
    type Rcv<'a>
        = <Parted<P> as Bufs>::Rcv<'a>
    where
        C: 'a;

    #[inline]
    fn snd(&mut self) -> Self::Snd<'_> {
        self.conn.snd()
    }

    #[inline]
    fn rcv(&mut self) -> Self::Rcv<'_> {
        self.conn.rcv()
    }
}

impl<P: Platform, C: Points> Access for Collecting<P, C> {
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
    fn up(&mut self) -> Option<&mut Up> {
        self.points.up()
    }

    #[inline]
    fn out(&mut self) -> Option<&mut Outgoing> {
        self.points.out()
    }
}
