//! Sockets of [Perimeter](perimeter), a user-space TCP/IP stack, for async Rust on tokio.
//!
//! [`TcpStream`], [`TcpListener`] and [`UdpSocket`] have the names and the meaning of `tokio::net`'s. What is
//! different is where they come from: a socket belongs to a stack, which [`Net`] is a handle of.
//!
//! ```
//! use perimeter::{Stack, link};
//! use perimeter_tokio::Net;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two stacks, back to back over a wire in memory.
//! let native = perimeter::Native::default();
//! let ([a, b], _) = link::wire::pair(&native, link::wire::WireConfig::default());
//! let net = |org: &str, end, addr: &str| -> Result<Net, perimeter::BuildError> {
//!     let builder = Stack::builder().on_native(native).organization(org)?;
//!     Ok(Net::new(builder.interface(end, &[addr])?.build()?))
//! };
//! let server = net("connp-l:4", a, "10.0.0.1/24")?;
//! let client = net("up:shared", b, "10.0.0.2/24")?;
//!
//! let listener = server.listen("10.0.0.1:80").await?;
//! let echo = tokio::spawn(async move {
//!     let (mut s, _peer) = listener.accept().await?;
//!     let (mut r, mut w) = s.split();
//!     tokio::io::copy(&mut r, &mut w).await
//! });
//! let mut s = client.connect("10.0.0.1:80").await?;
//! s.write_all(b"hello").await?;
//! s.shutdown().await?;
//! let mut text = String::new();
//! s.read_to_string(&mut text).await?;
//! assert_eq!((text.as_str(), echo.await??), ("hello", 5));
//! # Ok(())
//! # }
//! ```
//!
//! # Which stack
//!
//! Given explicitly, as above, or taken from where the code runs, so that a program written for
//! `tokio::net` changes no more than its imports: [`TcpStream::connect`],
//! [`TcpListener::bind`], [`TcpSocket::new_v4`] and [`UdpSocket::bind`] take the stack that the thread has entered ([`Net::enter`]), else that of the runtime
//! ([`Net::serve_runtime`]).
//!
//! # How readiness reaches a task
//!
//! The thread that makes a socket ready, most often the stack's own that has processed a received
//! segment, wakes the task itself once it has left the connection: one hop, no lock held, no
//! descriptor, no poller, and no thread or timer of this crate's. The socket's readiness stands in
//! a word that follows its level, so who waits does not enter the stack to find that there is
//! nothing, and there is no false readiness. It does not depend on tokio's I/O driver either.
//!
//! # Who serves the devices
//!
//! * With [`Inbound::Thread`](perimeter::Inbound), the default, threads of the stack's own: one for
//!   each interface, which sleep while there is nothing. Use this on the multi-thread runtime.
//! * With [`Inbound::Inline`](perimeter::Inbound), threads that wait in blocking calls, of which a
//!   runtime has none; the stack's service thread fills in, but only every
//!   [`Config::service`](perimeter::Config::service), 5 ms. Prefer threads.
//! * Under the organization `up`, the one thread that the stack belongs to: use a current-thread
//!   runtime and keep [`Net::drive`] running on it.
//!
//! # Names
//!
//! Where a call takes a name, the stack's own name servers are asked for its addresses if it was built
//! with any (`Builder::name_servers`, feature `dns`), over the stack, with timers of the runtime's
//! (`enable_time`); else the host's resolver. [`Net::with_resolver`] puts another in their place.
//!
//! # Cancellation
//!
//! Every method is cancellation-safe: when its future is dropped before it is done, nothing was
//! read, written or accepted that is lost. `AsyncReadExt::read_exact` and the like of tokio's, which
//! make several calls, are as safe as tokio says.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod addr;
#[cfg(feature = "dns")]
mod dns;
mod drive;
#[cfg(feature = "gateway")]
pub mod gateway;
mod net;
mod socket;
mod tcp;
mod udp;

pub use addr::{Resolve, Resolved, Target, ToSocketAddrs, lookup_host};
pub use net::{Entered, Net, Serving};
pub use perimeter;
pub use tcp::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use tcp::{TcpListener, TcpSocket, TcpStream};
pub use udp::UdpSocket;
