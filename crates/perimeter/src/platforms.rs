//! The platforms that a stack can run on.

use perimeter_org::{Engine, Options};
#[cfg(any(feature = "dns", feature = "virtual"))]
use perimeter_sync::Platform as _;
use perimeter_sync::{Lending, Native};
use std::sync::Arc;

/// Where a stack's threads run.
#[derive(Clone)]
pub(crate) enum Platforms {
    /// On this machine.
    Native(Native),
    /// On virtual cores.
    #[cfg(feature = "virtual")]
    Virtual(perimeter_sync::Virtual),
}

impl Platforms {
    /// Whether one who waits for a lock lends its priority to the holder.
    pub(crate) fn lending(&self) -> Lending {
        match self {
            Platforms::Native(p) => p.lending(),
            #[cfg(feature = "virtual")]
            Platforms::Virtual(p) => p.lending(),
        }
    }

    /// This machine, unless the platform is another.
    pub(crate) fn native(&self) -> Option<Native> {
        match self {
            Platforms::Native(p) => Some(*p),
            #[cfg(feature = "virtual")]
            Platforms::Virtual(_) => None,
        }
    }

    /// A number that nobody outside can guess.
    #[cfg(feature = "dns")]
    pub(crate) fn secret(&self) -> [u64; 2] {
        match self {
            Platforms::Native(p) => p.secret(),
            #[cfg(feature = "virtual")]
            Platforms::Virtual(p) => p.secret(),
        }
    }

    /// Opens a stack of one of the organizations of this build.
    pub(crate) fn open(self, options: Options) -> Arc<dyn Engine> {
        match self {
            Platforms::Native(p) => perimeter_org::open(p, options),
            #[cfg(feature = "virtual")]
            Platforms::Virtual(p) => perimeter_virtual::open(p, options),
        }
    }
}
