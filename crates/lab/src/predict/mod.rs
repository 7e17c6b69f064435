//! Predictions for machines that are not there: the real code on virtual cores, with costs that
//! were measured.
//!
//! A [`Machine`] is a table: what classes of work, locks, wakes and cache lines take there.
//! [`calibrate()`] makes that of this machine from single operations and from runs of one thread;
//! others ship with the program and say where their numbers come from. [`simulate()`] is one run;
//! [`validate()`] holds a table against runs of several threads that it was not fitted to, and
//! [`predict()`] carries a plan out. What a validation does not bear out, predictions say.

mod advise;
mod calibrate;
mod effort;
mod figure;
mod file;
mod fit;
mod instead;
mod lines;
pub mod loads;
mod machine;
mod made;
mod micro;
mod missed;
mod pool;
mod scale;
mod simulate;
mod told;
mod validate;

pub use advise::{Advice, advise};
pub use calibrate::{Time, Watcher, calibrate, refit};
pub use effort::Effort;
pub use figure::{Figure, Finding, Judged, Place, Published, predict, run_all};
pub use file::{Predictions, SCHEMA};
pub use instead::Instead;
pub use lines::lines;
pub use machine::{Group, Machine, names};
pub use made::{Made, Question};
pub use scale::{OneCore, scale};
pub use simulate::{Simulated, simulate};
pub use validate::{Validation, Verdict, validate};
