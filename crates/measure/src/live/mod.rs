//! What a run does while it is under way, for somebody who watches: goodput, processor time, lock
//! contention and how occupied the perimeters are, by organization.
//!
//! A few times a second the thread that controls a run asks its event loops what they did since
//! they were asked before ([`Watch`]). Each answers at its next turn, by its own counters; the first
//! thread of a stack of ours reads the stack's besides. So nobody counts or shares anything more on
//! the way of a segment, and what is seen in between is made by the code that makes the result. What
//! remains is a load in each turn of an event loop, and the readings: they are made the more rarely
//! the longer they take, so that they use at most [`SHARE`] of a thread. That time falls into the
//! application's share of a result.
//!
//! | file | what |
//! |---|---|
//! | `seen.rs` | what a session sees of its run |
//! | `watch.rs` | when workers are asked, and what is made of their answers |
//! | `occupancy.rs` | what a perimeter is in each organization, and how occupied it is |
//! | `figures.rs` | what is shown, of a moment or of complete runs |
//! | `feed.rs` | how it gets from those who run to a view |
//! | `board.rs` | all that has been told, in order, for a view |

mod board;
mod feed;
mod figures;
mod occupancy;
mod seen;
#[cfg(test)]
mod tests;
mod watch;

pub use board::{Board, Now, Row};
pub use feed::{Feed, Glance, News};
pub use figures::{Figures, LockRates};
pub use occupancy::Perimeter;
pub use seen::Seen;
pub(crate) use seen::rate;
pub use watch::{SHARE, Watch};
