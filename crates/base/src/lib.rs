//! What every room shares: time, packet buffers, transmit descriptors and the memory behind them.
//!
//! This crate knows no protocol and no thread. It is one of the few rooms where `unsafe` is
//! allowed, for one reason: descriptors refer to payload the way a DMA engine does, without
//! counting references per segment. Who may be reading which page is this crate's to know
//! ([`ring`], [`pages`], [`region`]); nobody else can make a reference, nor free what one refers
//! to.
//!
//! It builds without std, for whoever has an allocator and no operating system: turn the default
//! feature `std` off. It then needs a target with atomics of 64 bits, and spins where it would
//! wait for a lock.
#![cfg_attr(not(test), no_std)]

extern crate alloc;
#[cfg(all(not(test), feature = "std"))]
extern crate std;

/// Makes `Debug` of an error say what `Display` does: `?` in `main` prints errors by `Debug`, and what
/// helps is their text.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_is_text {
    ($error:ty) => {
        impl core::fmt::Debug for $error {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        }
    };
}

/// Setters that can be chained, `with_FIELD`, for public fields of a struct that is
/// `#[non_exhaustive]`: who writes one elsewhere begins with a default and says what is different.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($options:ident { $($with:ident($field:ident: $value:ty),)* }) => {
        impl $options {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
                #[must_use]
                pub fn $with(mut self, $field: $value) -> Self {
                    // A name may be given as it is: see the setters that take `impl Into`.
                    self.$field = $field.into();
                    self
                }
            )*
        }
    };
}

mod atomics;
pub mod buf;
pub mod desc;
pub mod pages;
#[cfg(loom)]
pub mod planted;
pub mod pool;
pub mod region;
pub mod ring;
pub mod rng;
pub mod time;

pub use buf::PktBuf;
pub use bytes::Bytes;
pub use desc::{TxDesc, TxHead};
pub use pages::{Lease, Lent, TxPages};
pub use pool::{PktDepot, PktPool, PktQueue};
pub use ring::{Completions, TxRing, TxSlot, TxStage};
pub use time::Time;
