//! Who serves a stack of one thread: a task on the runtime of that thread.

use crate::net::Net;
use perimeter::{Events, Poll};
use rustix::event::{PollFd, PollFlags, poll};
use std::convert::Infallible;
use std::future::pending;
use std::io::Result;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How many bursts the driver takes before other tasks have a turn.
const BURSTS: usize = 4;

impl Net {
    /// Serves the devices and the timers of a stack of one thread (`up`), for as long as it is
    /// awaited: on that thread, so on a current-thread runtime. It sleeps, on the host's I/O driver
    /// (`enable_io`), until a frame comes, a timer is due, or another thread asks something of the
    /// stack. Of other stacks it has nothing to do, as they have threads of their own, and waits for
    /// ever.
    ///
    /// ```
    /// # use perimeter::{Stack, link};
    /// # use perimeter_tokio::Net;
    /// # fn example(device: impl link::Device + 'static) -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// runtime.block_on(async {
    ///     let stack = Stack::builder().organization("up")?.interface(device, &["10.0.0.1/24"])?;
    ///     let net = Net::new(stack.build()?);
    ///     let driver = net.clone();
    ///     let driver = tokio::spawn(async move { driver.drive().await });
    ///     let stream = net.connect("10.0.0.2:80").await?;
    ///     // …
    ///     # drop(stream);
    ///     driver.abort();
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Another thread owns the stack, the stack has ended, or no descriptor can be had.
    ///
    /// # Cancel safety
    /// When the future is dropped, nobody serves the devices; it may be called again.
    pub async fn drive(&self) -> Result<Infallible> {
        if !self.stack().organization().single_threaded() {
            return pending().await;
        }
        let poller = watched(self.stack().poll()?)?;
        let mut events = Events::with_capacity(1);
        loop {
            // The poll of the stack arms its devices and the alarm for its timers.
            serve(poller.get_ref(), &mut events)?;
            let mut guard = poller.readable().await?;
            // What tokio notes are edges; the descriptor tells a level. So after a note is taken
            // back the level is looked at, and nothing can stay unseen.
            guard.clear_ready();
            drop(guard);
            for turn in 1.. {
                serve(poller.get_ref(), &mut events)?;
                if !readable(poller.get_ref())? {
                    break;
                }
                if turn % BURSTS == 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

/// The poller with tokio's reactor.
#[allow(
    deprecated,
    reason = "what its successor asks in an `unsafe` block holds: a `Poll` has one descriptor for \
              its life, and owns it"
)]
fn watched(poller: Poll) -> Result<AsyncFd<Poll>> {
    AsyncFd::with_interest(poller, Interest::READABLE)
}

fn serve(poller: &Poll, events: &mut Events) -> Result<()> {
    poller.poll(events, Some(Duration::ZERO))
}

/// Whether there is something to do now.
fn readable(poller: &Poll) -> Result<bool> {
    let mut fds = [PollFd::new(poller, PollFlags::IN)];
    let now = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    Ok(poll(&mut fds, Some(&now))? > 0)
}
