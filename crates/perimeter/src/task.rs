//! Readiness for async runtimes: what `perimeter-tokio` is made of.
//!
//! A socket tells [`Tasks`] its readiness, and the thread that made it ready wakes who waits there,
//! through [`std::task::Waker`]: no descriptor, no poller and no thread in between. So any runtime
//! will do, one in virtual time too.
//!
//! ```
//! # use perimeter::task::{Half, Tasks, watch};
//! # use std::{future::poll_fn, sync::Arc};
//! # async fn example(stream: perimeter::TcpStream) -> std::io::Result<()> {
//! stream.set_nonblocking(true)?;
//! let tasks = Arc::new(Tasks::default());
//! watch(&stream, &tasks)?;
//! // Ready for reading, once or for good: the level, as with `poll(2)`.
//! poll_fn(|cx| tasks.poll(Half::Read, cx)).await;
//! # Ok(())
//! # }
//! ```

use crate::error::io;
use crate::poll::Source;
pub use perimeter_stack::ready::{ERR, HUP, IN, OUT, RDHUP};
pub use perimeter_stack::tasks::{Half, Place, Tasks};
use std::io::Result;
use std::sync::Arc;

/// Has a socket tell `tasks` of its readiness from now on, until it is closed; beside its
/// registrations with pollers.
///
/// ```
#[doc = include_str!("examples/pair.txt")]
/// use perimeter::task::{Half, Tasks, watch};
/// use std::{sync::Arc, task::Context};
///
/// client.set_nonblocking(true)?;
/// let tasks = Arc::new(Tasks::default());
/// watch(&client, &tasks)?;
/// // A future of the runtime asks by its own context, and is woken by that.
/// let mut cx = Context::from_waker(std::task::Waker::noop());
/// assert!(tasks.poll(Half::Write, &mut cx).is_ready());
/// assert!(tasks.poll(Half::Read, &mut cx).is_pending());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The socket has gone, or its stack belongs to another thread (`up`) or has ended.
pub fn watch(source: &impl Source, tasks: &Arc<Tasks>) -> Result<()> {
    let (engine, id) = source.source();
    engine.watch(id, tasks.clone()).map_err(io)
}
