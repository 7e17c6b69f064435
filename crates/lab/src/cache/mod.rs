//! Cache misses of the stack: counted by the processor where it can be asked
//! ([`counted`](perimeter_measure::counted)), and modelled: by component, per KB of payload sent, as in the paper's
//! Table 2 and Figure 6.
//!
//! The real stack sends over virtual cores in a process of its own (`subject`), of a program that
//! the compiler has instrumented (`instrumented`), so that it writes a trace of its accesses to
//! memory. The trace is read as it comes (`observer`), each access attributed by the source file
//! of its instruction (`places`) and put through the data caches of as many cores (`model`), of
//! the paper's machine and of this one ([`geometry`](crate::misses::geometry)).
//!
//! What the model leaves out: instruction fetches, prefetching, page walks, the kernel (waking and
//! switching threads), what the device reads, and what libraries do that come built: the memory
//! allocator's own words. What the ideal peer does is not the machine's under test; the frames
//! that it sends arrive as if by DMA.

pub mod instrumented;
pub mod model;
mod observer;
pub mod places;
mod subject;
mod trace;

pub use subject::{Extent, run as run_subject};
pub use trace::{Backend, arguments, first_guess, on_one_core};
