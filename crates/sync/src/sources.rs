//! Which source files of this crate do what, for accounts of where a program's work happens: as
//! `file!()` gives them. A file stands for those in the folder of its module, too.

/// The virtual platform, which stands for the machine.
pub const SIMULATION: &[&str] = &[crate::virt::FILE];
/// Handing values from thread to thread.
pub const HAND_OVER: &[&str] = &[crate::queue::FILE];
/// What keeps threads out of each other's state, on virtual cores too.
pub const LOCKS: &[&str] = &[crate::solo::FILE, crate::owned::FILE];
