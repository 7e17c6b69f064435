//! The platform seam. All time, locking, queueing, parking and thread creation of the stack and
//! of the organizations goes through [`Platform`], so the same code runs on the machine
//! ([`Native`]) and on N virtual cores in virtual time ([`Virtual`]).

pub mod class;
pub mod counters;
pub mod lane;
#[cfg(loom)]
pub mod model;
pub mod native;
pub mod order;
pub mod owned;
pub mod places;
pub mod platform;
pub mod policy;
pub mod process;
pub mod profile;
pub mod queue;
mod shim;
pub mod solo;
pub mod sources;
pub mod virt;

pub use class::{Guards, Layer, LockClass, LockStats, Touched, Work};
pub use counters::PerLaneCounters;
pub use lane::PerLane;
pub use native::Native;
pub use owned::{Owned, OwnedGuard};
pub use platform::{Beacon, Event, Lock, Locks, Platform, Shared, Solo, Thread, Woken};
pub use policy::{Lending, LockPolicy, Priority};
pub use profile::Profile;
pub use queue::{Fanin, FaninConsumer, Mpsc, Spill};
pub use shim::{atomic, mutex};
pub use solo::{OwnerGate, SoloLock, WrongThreadError};
pub use virt::Virtual;
