//! Parts of connections that are reached without entering what protects the connection: by
//! number, without a lock around the table of them, and with the generation that may use them.

use core::ops::{Deref, DerefMut};
use perimeter_stack::Kind;
use perimeter_stack::conn::{RcvSide, SndSide};
use perimeter_sync::{Lock, Platform};

pub(crate) use perimeter_stack::places::Places;

/// A part of a connection and who may use it from outside: the generation of the handle. 0: no
/// application.
pub(crate) struct Part<T> {
    pub(crate) generation: u32,
    pub(crate) value: T,
}

impl<T> Part<T> {
    /// `value`, closed to applications.
    pub(crate) fn closed(value: T) -> Part<T> {
        Part {
            generation: 0,
            value,
        }
    }
}

/// What holding one of the platform's locks looks like.
pub(crate) type Guard<'a, P, T> = <<P as Platform>::Lock<T> as Lock<T>>::Guard<'a>;

/// A buffer's side for as long as its lock is held; or one that needs no lock: of who holds all
/// of the connection, or a dead one, for who came too late.
pub(crate) enum Side<'a, P: Platform, T: Send + 'static> {
    Held(Guard<'a, P, Part<T>>),
    Gone(&'a mut T),
}

impl<P: Platform, T: Send + 'static> Deref for Side<'_, P, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Side::Held(g) => &g.value,
            Side::Gone(t) => t,
        }
    }
}

impl<P: Platform, T: Send + 'static> DerefMut for Side<'_, P, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Side::Held(g) => &mut g.value,
            Side::Gone(t) => t,
        }
    }
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
    RcvSide {
        shut: true,
        eof: true,
        ..RcvSide::new(0, 0)
    }
}
