//! Tests of networked programs in virtual time: hosts with a TCP/IP stack of their own each, links
//! that delay, lose and are cut, hosts that crash. A test runs on one thread and waits for nothing,
//! so a minute of its own time takes some milliseconds; and the same seed gives the same run.
//!
//! ```
//! use perimeter_testing::net::{TcpListener, TcpStream};
//! use perimeter_testing::{Link, Sim};
//! use std::time::Duration;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! let mut sim = Sim::builder(7)
//!     .link(Link::default().with_delay(Duration::from_millis(30)).with_loss(0.05))
//!     .build();
//!
//! sim.host("server", || async {
//!     let listener = TcpListener::bind("0.0.0.0:80").await?;
//!     loop {
//!         let (mut stream, _) = listener.accept().await?;
//!         tokio::spawn(async move { stream.write_all(b"hello").await });
//!     }
//! });
//!
//! sim.client("client", async {
//!     loop {
//!         let mut text = String::new();
//!         if let Ok(mut stream) = TcpStream::connect("server:80").await {
//!             if stream.read_to_string(&mut text).await.is_ok() {
//!                 assert_eq!(text, "hello");
//!                 return Ok(());
//!             }
//!         }
//!         tokio::time::sleep(Duration::from_secs(1)).await;
//!     }
//! });
//!
//! // The server is away for the first three seconds.
//! sim.at(Duration::ZERO, |sim| sim.crash("server"));
//! sim.at(Duration::from_secs(3), |sim| sim.restart("server"));
//!
//! sim.run()?;
//! assert!(sim.elapsed() > Duration::from_secs(3));
//! # Ok::<(), perimeter_testing::SimError>(())
//! ```
//!
//! Programs are written for tokio. `tokio::net` in them becomes [`net`], TCP and UDP; `tokio::time`,
//! `tokio::sync`, `tokio::spawn`, `select!` and so on are tokio's own. TCP is Perimeter's: handshakes,
//! congestion control, retransmission timeouts, windows and resets are those that the program will
//! meet, and not a model of them.
//!
//! Programs with blocking calls and threads, under any organization, run in [`threads`].
//!
//! # Faults
//!
//! - [`Sim::link`]: delay, jitter, rate, loss, duplication, reordering, corruption ([`Link`]).
//! - [`Sim::partition`] and [`Sim::heal`]; one way with [`Sim::partition_one_way`].
//! - [`Sim::crash`] is a power failure: the tasks of the host are dropped where they stand, its
//!   connections vanish without a packet, and nothing answers until [`Sim::restart`]. Then a new
//!   program runs there, and segments of connections from before are answered by resets.
//!
//! What a test keeps outside of its programs survives a crash: a disk, for example, in an `Rc` that
//! the closure given to [`Sim::host`] clones.
//!
//! Faults come by themselves (loss, jitter), from the test ([`Sim::at`]), or from programs under test
//! ([`partition`], [`crash`], …).
//!
//! # Many seeds
//!
//! One run shows little. [`seeds::check`] runs a test with many seeds and says with which it failed;
//! `PERIMETER_SEED=17 cargo test …` brings that run back.
//!
//! # Time
//!
//! Stacks and links are exact to the nanosecond. Programs run at whole milliseconds, because tokio's
//! timers count those: a task sees a packet at the next one. A simulation costs real time for what
//! happens in it, and a little for each shortest delay of its links that passes while programs of
//! more than one host wait: a network in which every packet takes 5 ms and more is cheap. Much of
//! that time is tokio's, so in a workspace that is tested unoptimised this helps:
//!
//! ```toml
//! [profile.dev.package.tokio]
//! opt-level = 3
//! ```
//!
//! # What a seed does not cover
//!
//! - The order in which a `HashMap` of `std` is iterated, and anything else that a program draws from
//!   the operating system's randomness.
//! - `std::time`, threads, files. `tokio::task::spawn_blocking` works, but when it comes back is
//!   up to the machine.
//! - Which branch `tokio::select!` tries first, where several are ready: unless it is `biased;`, or
//!   everything is compiled with `--cfg tokio_unstable`, where tokio lets the seed decide.
//! - What programs of different hosts tell each other past the network. They may share what the test
//!   reads in the end; a channel between two hosts can wake a task late.
//!
//! # Rules
//!
//! A simulation runs in a plain `#[test]` function, not in a runtime of tokio. Programs must not
//! pause, resume or advance tokio's clock.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod error;
mod link;
pub mod net;
pub mod seeds;
mod sim;
pub mod threads;

pub use error::{Result, SimError, What};
pub use link::Link;
pub use sim::{Builder, Sim, crash, elapsed, heal, host_name, lookup, partition, restart};
