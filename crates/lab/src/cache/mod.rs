//! Cache misses of the stack: counted by the processor where it can be asked
//! ([`counted`](perimeter_measure::counted)), and modelled: by component, per KB of payload sent, as in the paper's
//! Table 2 and Figure 6.
//!
//! The real stack sends over virtual cores in a process of its own (`subject`) that valgrind's
//! lackey traces; the trace is read as it comes (`lackey`, `observer`), each access attributed by
//! the source file of its instruction (`places`) and put through the data caches of as many cores
//! (`model`), of the paper's machine and of this one ([`geometry`](crate::misses::geometry)).
//!
//! What the model leaves out: instruction fetches, prefetching, page walks, the kernel (waking and
//! switching threads), and what the device reads. What the ideal peer does is not the machine's
//! under test; the frames that it sends arrive as if by DMA.

mod lackey;
pub mod model;
mod observer;
pub mod places;
mod subject;
mod trace;

pub use subject::run as run_subject;
pub use trace::{Backend, arguments, available, first_guess, of_program};
