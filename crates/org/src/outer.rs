//! Parts of connections that are reached without entering what protects the connection: by
//! number, without a lock around the table of them, and with the generation that may use them.

use core::ops::{Deref, DerefMut};
use perimeter_stack::conn::{RcvSide, SndSide};
use perimeter_stack::ops::{Op, Step};
use perimeter_stack::{Bufs, Ctx, Kind};
use perimeter_sync::{Lock, Platform};

pub(crate) use perimeter_sync::places::Places;

/// A part of a connection and who may use it from outside: the generation of the handle. 0: no
/// application.
pub(crate) struct Outer<T> {
    pub(crate) generation: u32,
    pub(crate) value: T,
}

impl<T> Outer<T> {
    /// `value`, closed to applications.
    pub(crate) fn closed(value: T) -> Outer<T> {
        Outer {
            generation: 0,
            value,
        }
    }
}

/// What holding one of the platform's locks looks like.
pub(crate) type Guard<'a, P, T> = <<P as Platform>::Lock<T> as Lock<T>>::Guard<'a>;

/// A part whose lock is held, as what it is.
pub(crate) struct Opened<'a, P: Platform, T: Send + 'static>(Guard<'a, P, Outer<T>>);

impl<'a, P: Platform, T: Send + 'static> Opened<'a, P, T> {
    /// The part, whoever may use it: for those who are inside.
    pub(crate) fn any(part: Guard<'a, P, Outer<T>>) -> Opened<'a, P, T> {
        Opened(part)
    }

    /// The part, if `generation` may use it.
    pub(crate) fn by(part: Guard<'a, P, Outer<T>>, generation: u32) -> Option<Opened<'a, P, T>> {
        (part.generation == generation).then_some(Opened(part))
    }
}

impl<P: Platform, T: Send + 'static> Deref for Opened<'_, P, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<P: Platform, T: Send + 'static> DerefMut for Opened<'_, P, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}

/// A buffer's side for as long as a lock is held; or one that needs no lock: of who holds all
/// of the connection, or a dead one, for who came too late.
pub(crate) enum Side<'a, G: DerefMut<Target: Sized>> {
    Held(G),
    Free(&'a mut G::Target),
}

impl<G: DerefMut<Target: Sized>> Deref for Side<'_, G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        match self {
            Side::Held(g) => g,
            Side::Free(t) => t,
        }
    }
}

impl<G: DerefMut<Target: Sized>> DerefMut for Side<'_, G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        match self {
            Side::Held(g) => g,
            Side::Free(t) => t,
        }
    }
}

/// The parts of a connection that an application reaches by its handle, without entering what
/// protects the rest.
pub(crate) trait Doors {
    type K: Kind;
    type Snd<'a>: DerefMut<Target = SndSide<Self::K>>
    where
        Self: 'a;
    type Rcv<'a>: DerefMut<Target = RcvSide<Self::K>>
    where
        Self: 'a;

    /// The send side, if `generation` may use it.
    fn snd(&self, generation: u32) -> Option<Self::Snd<'_>>;

    /// The receive side, if `generation` may use it.
    fn rcv(&self, generation: u32) -> Option<Self::Rcv<'_>>;
}

/// The buffers behind the doors, entered by the application's thread.
struct Outside<'a, D: Doors> {
    doors: &'a D,
    generation: u32,
    /// The connection had gone when one of its buffers was entered.
    stale: bool,
    snd: Option<SndSide<D::K>>,
    rcv: Option<RcvSide<D::K>>,
}

impl<D: Doors> Bufs for Outside<'_, D> {
    type K = D::K;
    type Snd<'b>
        = Side<'b, D::Snd<'b>>
    where
        Self: 'b;
    type Rcv<'b>
        = Side<'b, D::Rcv<'b>>
    where
        Self: 'b;

    fn snd(&mut self) -> Self::Snd<'_> {
        match self.doors.snd(self.generation) {
            Some(snd) => Side::Held(snd),
            None => {
                self.stale = true;
                Side::Free(self.snd.get_or_insert_with(no_snd))
            }
        }
    }

    fn rcv(&mut self) -> Self::Rcv<'_> {
        match self.doors.rcv(self.generation) {
            Some(rcv) => Side::Held(rcv),
            None => {
                self.stale = true;
                Side::Free(self.rcv.get_or_insert_with(no_rcv))
            }
        }
    }
}

/// An operation's first phase, from outside. `None`: the connection had gone when one of its
/// buffers was entered, and what the operation made of that means nothing.
pub(crate) fn first_phase<D: Doors, Q: Op<D::K>>(
    doors: &D,
    generation: u32,
    op: &mut Q,
    cx: &mut Ctx<D::K>,
) -> Option<Step<Q::Out>> {
    let mut outside = Outside {
        doors,
        generation,
        stale: false,
        snd: None,
        rcv: None,
    };
    let step = op.sock(&mut outside, cx);
    (!outside.stale).then_some(step)
}

/// A send side that belongs to nobody: nothing can be sent.
pub(crate) fn no_snd<K: Kind>() -> SndSide<K> {
    SndSide {
        shut: true,
        ..SndSide::new(0)
    }
}

/// A receive side that belongs to nobody: nothing will come.
pub(crate) fn no_rcv<K: Kind>() -> RcvSide<K> {
    let mut nothing = RcvSide::new(0, 0);
    nothing.shut = true;
    nothing.eof = true;
    nothing
}
