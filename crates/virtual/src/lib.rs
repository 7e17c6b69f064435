//! Every organization, compiled for virtual cores.
//!
//! The organizations are generic code over a platform. `perimeter_org` holds them for threads of
//! this machine; this crate holds them for [`Virtual`], so that the two are compiled side by side
//! and whoever builds them can choose how well each is optimised.
#![forbid(unsafe_code)]

use perimeter_org::{Engine, Options};
use perimeter_sync::Virtual;
use std::sync::Arc;

/// Opens a stack whose threads run on virtual cores, as [`perimeter_org::open()`] does on this
/// machine.
///
/// # Panics
/// The organization is [`perimeter_org::OrgSpec::outside`].
pub fn open(platform: Virtual, options: Options) -> Arc<dyn Engine> {
    perimeter_org::open_on(platform, options)
}
