//! `squeue`: under construction.

use crate::On;
use perimeter_sync::Shared;

#[allow(dead_code, reason = "the organization follows")]
pub(crate) mod cell;
#[allow(dead_code, reason = "the organization follows")]
pub(crate) mod queue;

/// The kind of `squeue` on platform `P`.
pub(crate) type Kd<P> = On<P, Shared>;
