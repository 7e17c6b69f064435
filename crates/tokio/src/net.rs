//! The stack as async code sees it, and which one it is where code runs.

use crate::addr::{Resolve, ToSocketAddrs, each, resolve, target};
use crate::tcp::{TcpListener, TcpStream};
use crate::udp::UdpSocket;
use perimeter::{Stack, TcpConfig, Undelivered};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::runtime;

/// A stack, for async code. Cheap to clone: a handle. Sockets hold the stack too, so it ends with
/// the last of them.
///
/// When the last handle goes, the thread that drops it waits until everything is delivered that was
/// written (see [`Stack`]). In a runtime that would hold up the tasks of that thread: await
/// [`Net::shutdown`] before.
///
/// ```
#[doc = include_str!("examples/net.txt")]
/// let listener = net.listen("10.0.0.1:80").await?;
/// let mut client = net.connect("10.0.0.1:80").await?;
/// let (mut server, _peer) = listener.accept().await?;
/// client.write_all(b"hello").await?;
/// let mut text = [0; 5];
/// server.read_exact(&mut text).await?;
/// assert_eq!(&text, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
#[derive(Clone)]
pub struct Net {
    stack: Stack,
    resolver: Option<Arc<dyn Resolve>>,
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net")
            .field("stack", &self.stack)
            .finish_non_exhaustive()
    }
}

/// The stacks of runtimes.
static RUNTIMES: RwLock<Option<HashMap<runtime::Id, Net>>> = RwLock::new(None);

thread_local! {
    /// The stack that this thread has entered.
    static ENTERED: RefCell<Option<Net>> = const { RefCell::new(None) };
}

/// While it lives, the thread that made it is in a [`Net`].
/// See [`Net::enter`].
#[derive(Debug)]
#[must_use = "dropped at once it leaves again"]
pub struct Entered {
    before: Option<Net>,
    /// It belongs to its thread.
    _here: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.before.take();
        // When the thread ends its place may have gone already.
        let _ = ENTERED.try_with(|e| e.replace(before));
    }
}

/// While it lives, a runtime has a [`Net`] of its own.
/// See [`Net::serve_runtime`].
#[derive(Debug)]
#[must_use = "dropped at once the runtime has none again"]
pub struct Serving {
    id: runtime::Id,
    before: Option<Net>,
}

fn runtimes<R>(f: impl FnOnce(&mut HashMap<runtime::Id, Net>) -> R) -> R {
    let mut all = RUNTIMES.write().unwrap_or_else(PoisonError::into_inner);
    f(all.get_or_insert_default())
}

impl Drop for Serving {
    fn drop(&mut self) {
        let before = self.before.take();
        // The stack may end with it: not under the lock.
        let gone = runtimes(|all| match before {
            Some(net) => all.insert(self.id, net),
            None => all.remove(&self.id),
        });
        drop(gone);
    }
}

impl Net {
    /// For a stack.
    ///
    /// ```
    #[doc = include_str!("examples/net.txt")]
    /// let net = Net::new(stack);
    /// assert_eq!(net.stack().organization().to_string(), "up:shared");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn new(stack: Stack) -> Net {
        Net {
            stack,
            resolver: None,
        }
    }

    /// With a resolver for host names, instead of the host's own.
    ///
    /// ```
    #[doc = include_str!("examples/net.txt")]
    /// struct Fixed;
    ///
    /// impl Resolve for Fixed {
    ///     fn resolve(&self, host: &str, port: u16) -> Resolved {
    ///         let found = match host {
    ///             "server" => Ok(vec![SocketAddr::from(([10, 0, 0, 1], port))]),
    ///             _ => Err(ErrorKind::NotFound.into()),
    ///         };
    ///         Box::pin(async { found })
    ///     }
    /// }
    ///
    /// let net = net.with_resolver(Fixed);
    /// let listener = net.listen("server:80").await?;
    /// let client = net.connect("server:80").await?;
    /// assert_eq!(client.peer_addr()?, "10.0.0.1:80".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    #[must_use]
    pub fn with_resolver(mut self, resolver: impl Resolve + 'static) -> Net {
        self.resolver = Some(Arc::new(resolver));
        self
    }

    pub(crate) fn resolver(&self) -> Option<&Arc<dyn Resolve>> {
        self.resolver.as_ref()
    }

    /// The stack.
    ///
    /// ```
    #[doc = include_str!("examples/net.txt")]
    /// assert_eq!(net.stack().addresses()[0][0].to_string(), "10.0.0.1/24");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The addresses of a host, in the order in which [`Net::connect`] tries them: by the resolver
    /// given with [`Net::with_resolver`], else by the stack's name servers (feature `dns`, as
    /// [`Stack::lookup_host`]), else by the host's resolver.
    ///
    /// ```
    #[doc = include_str!("examples/net.txt")]
    /// let mut addrs = net.lookup_host("10.0.0.1:80").await?;
    /// assert_eq!(addrs.next(), Some("10.0.0.1:80".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As [`Stack::lookup_host`]; or what the resolver says.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn lookup_host<H: ToSocketAddrs>(
        &self,
        host: H,
    ) -> Result<impl Iterator<Item = SocketAddr>> {
        let target = target(host)?;
        Ok(resolve(Some(self), target).await?.into_iter())
    }

    /// Connects to `addr`. Several addresses, or those of a name, are tried one after another.
    ///
    /// ```
    #[doc = include_str!("examples/net.txt")]
    /// let listener = net.listen("10.0.0.1:80").await?;
    /// let stream = net.connect("10.0.0.1:80").await?;
    /// assert_eq!(stream.peer_addr()?.port(), 80);
    ///
    /// let error = net.connect("10.0.0.1:81").await.expect_err("nobody listens there");
    /// assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, `HostUnreachable`, … of the last address; or what the
    /// resolver says.
    ///
    /// # Cancel safety
    /// When the future is dropped the attempt is given up, and the peer told if it had answered.
    pub async fn connect(&self, addr: impl ToSocketAddrs) -> Result<TcpStream> {
        let target = target(addr)?;
        each(self, target, |a| self.connect_to(None, a, None)).await
    }

    pub(crate) async fn connect_to(
        &self,
        local: Option<SocketAddr>,
        addr: SocketAddr,
        config: Option<&TcpConfig>,
    ) -> Result<TcpStream> {
        let usual;
        let config = match config {
            Some(c) => c,
            None => {
                usual = self.stack.tcp_config();
                &usual
            }
        };
        let stream = TcpStream::new(self.stack.connect_with(local, addr, config)?)?;
        stream.connected().await?;
        Ok(stream)
    }

    /// Listens on `addr`; port 0 picks a free one. Of several addresses the first that can be had.
    /// The backlog is 1024.
    ///
    /// ```
    #[doc = include_str!("examples/net.txt")]
    /// let listener = net.listen("10.0.0.1:0").await?;
    /// let client = net.connect(listener.local_addr()?).await?;
    /// assert_eq!(listener.accept().await?.1, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; or what the resolver says.
    ///
    /// # Cancel safety
    /// When the future is dropped, nobody listens.
    pub async fn listen(&self, addr: impl ToSocketAddrs) -> Result<TcpListener> {
        let target = target(addr)?;
        let listen = async |a| TcpListener::from_perimeter(self.stack.listen(a)?);
        each(self, target, listen).await
    }

    /// A UDP socket bound to `addr`; port 0 picks a free one. Of several addresses the first that
    /// can be had.
    ///
    /// ```
    #[doc = include_str!("examples/net.txt")]
    /// let server = net.bind_udp("10.0.0.1:53").await?;
    /// let client = net.bind_udp("10.0.0.1:0").await?;
    /// client.send_to(b"question", "10.0.0.1:53").await?;
    /// let (len, from) = server.recv_from(&mut [0; 100]).await?;
    /// assert_eq!((len, from), (8, client.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; or what the resolver says.
    ///
    /// # Cancel safety
    /// When the future is dropped, nothing is bound.
    pub async fn bind_udp(&self, addr: impl ToSocketAddrs) -> Result<UdpSocket> {
        let target = target(addr)?;
        let bind = async |a| UdpSocket::from_perimeter(self.stack.bind_udp(a)?);
        each(self, target, bind).await
    }

    /// The stack of the code that calls: the one that this thread has entered, else that of the
    /// runtime that it runs on.
    ///
    /// ```
    #[doc = include_str!("examples/net.txt")]
    /// let error = Net::current().expect_err("there is none yet");
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// let _serving = net.serve_runtime(&tokio::runtime::Handle::current());
    /// assert_eq!(Net::current()?.stack().addresses(), stack.addresses());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// There is none.
    pub fn current() -> Result<Net> {
        let entered = ENTERED.try_with(|e| e.borrow().clone()).ok().flatten();
        if let Some(net) = entered {
            return Ok(net);
        }
        let all = RUNTIMES.read().unwrap_or_else(PoisonError::into_inner);
        let here = runtime::Handle::try_current().ok();
        let net = here.and_then(|h| all.as_ref()?.get(&h.id()).cloned());
        net.ok_or_else(|| {
            let text = "no stack here: enter one with `Net::enter`, give the runtime one with \
                        `Net::serve_runtime`, or use the methods of `Net`";
            Error::new(ErrorKind::NotFound, text)
        })
    }

    /// Makes this the stack of the code that this thread runs, until what is returned is dropped:
    /// around `block_on`, or on the threads of a runtime. In tasks use it in stretches without an
    /// `.await` only, as another task would see it otherwise.
    ///
    /// ```
    /// # use perimeter_tokio::{Net, TcpListener};
    /// # fn example(net: Net) -> std::io::Result<()> {
    /// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// let _in_it = net.enter();
    /// runtime.block_on(async {
    ///     let listener = TcpListener::bind("0.0.0.0:80").await?;
    ///     # drop(listener);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn enter(&self) -> Entered {
        Entered {
            before: ENTERED.with(|e| e.replace(Some(self.clone()))),
            _here: PhantomData,
        }
    }

    /// Makes this the stack of a runtime: of all code on its threads that has entered no other,
    /// until what is returned is dropped. It holds the stack until then.
    ///
    /// ```
    /// # use perimeter_tokio::{Net, TcpStream};
    /// # fn example(net: Net) -> std::io::Result<()> {
    /// let runtime = tokio::runtime::Runtime::new()?;
    /// let _serving = net.serve_runtime(runtime.handle());
    /// runtime.block_on(async {
    ///     tokio::spawn(TcpStream::connect("10.0.0.1:80")).await??;
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn serve_runtime(&self, runtime: &runtime::Handle) -> Serving {
        let id = runtime.id();
        Serving {
            id,
            before: runtimes(|all| all.insert(id, self.clone())),
        }
    }

    /// Ends the stack in order, as [`Stack::shutdown`]: everything that was written is delivered,
    /// for which it waits at most `timeout`, on a thread for blocking calls. What was left then.
    ///
    /// ```
    #[doc = include_str!("examples/pair.txt")]
    /// client.write_all(b"that is all").await?;
    /// // All that was written arrives, if the peer takes it within 10 s.
    /// let undelivered = net.shutdown(Duration::from_secs(10)).await?;
    /// assert!(undelivered.is_none(), "{undelivered}");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// The stack has ended already; under `up` it is ended on its own thread, by
    /// [`Stack::shutdown`].
    ///
    /// # Cancel safety
    /// When the future is dropped, the stack ends all the same.
    pub async fn shutdown(&self, timeout: Duration) -> Result<Undelivered> {
        let stack = self.stack.clone();
        let ended = tokio::task::spawn_blocking(move || stack.shutdown(timeout)).await;
        ended.map_err(Error::other)?
    }
}

impl From<Stack> for Net {
    fn from(stack: Stack) -> Net {
        Net::new(stack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net() -> Net {
        let native = perimeter::Native::default();
        let ([a, _], _) = perimeter::link::wire::pair(&native, Default::default());
        let stack = Stack::builder()
            .on_native(native)
            .interface(a, &["10.0.0.1/24"]);
        Net::new(stack.unwrap().build().unwrap())
    }

    fn is(a: &Net) -> bool {
        Net::current().is_ok_and(|b| Arc::ptr_eq(a.stack.engine(), b.stack.engine()))
    }

    #[test]
    fn the_entered_comes_before_the_runtimes() {
        let (a, b) = (net(), net());
        assert!(Net::current().is_err());
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        let serving = a.serve_runtime(runtime.handle());
        assert!(Net::current().is_err());
        runtime.block_on(async {
            assert!(is(&a));
            {
                let _b = b.enter();
                assert!(is(&b));
                let _a = a.enter();
                assert!(is(&a));
            }
            assert!(is(&a));
        });
        drop(serving);
        runtime.block_on(async { assert!(Net::current().is_err()) });
    }
}
