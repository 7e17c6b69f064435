//! Addresses, and names that are resolved to them.

use crate::net::Net;
use std::future::Future;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::pin::Pin;

pub use perimeter::{Target, ToSocketAddrs};

/// The addresses that a name was found to have, some time.
pub type Resolved = Pin<Box<dyn Future<Output = Result<Vec<SocketAddr>>> + Send>>;

/// Finds the addresses of host names, for calls of a [`Net`] ([`Net::with_resolver`]). Without one the
/// name servers of the stack are asked, if it has any (`Builder::name_servers`, feature `dns`), else
/// the host's resolver, as `tokio::net` does.
/// See [`Net::with_resolver`].
pub trait Resolve: Send + Sync {
    /// The addresses of `host`, with `port`.
    /// See [`Net::with_resolver`].
    fn resolve(&self, host: &str, port: u16) -> Resolved;
}

/// What `addr` stands for.
pub(crate) fn target(addr: impl ToSocketAddrs) -> Result<Target> {
    addr.target()
}

/// The addresses of `target`; names by the resolver of `net`, its stack's name servers, or the
/// host's resolver.
pub(crate) async fn resolve(net: Option<&Net>, target: Target) -> Result<Vec<SocketAddr>> {
    let (host, port) = match target {
        Target::Addr(addr) => return Ok(vec![addr]),
        Target::Addrs(addrs) => return Ok(addrs),
        Target::Name(host, port) => (host, port),
    };
    if let Some(r) = net.and_then(Net::resolver) {
        return r.resolve(&host, port).await;
    }
    #[cfg(feature = "dns")]
    if let Some(net) = net
        && let Some(found) = crate::dns::ask(net.stack(), &host).await
    {
        let with_port = found?.into_iter().map(|ip| SocketAddr::new(ip, port));
        return Ok(with_port.collect());
    }
    Ok(tokio::net::lookup_host((host.as_str(), port))
        .await?
        .collect())
}

/// The addresses of a host, as `tokio::net::lookup_host`: as [`Net::lookup_host`] of the current
/// [`Net`], or by the host's resolver where there is none.
///
/// ```
#[doc = include_str!("examples/net.txt")]
/// let mut addrs = lookup_host("10.0.0.1:80").await?;
/// assert_eq!(addrs.next(), Some("10.0.0.1:80".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
///
/// # Errors
/// What the resolver says, or what parsing says.
///
/// # Cancel safety
/// Nothing is lost when the future is dropped.
pub async fn lookup_host<T: ToSocketAddrs>(host: T) -> Result<impl Iterator<Item = SocketAddr>> {
    let target = target(host)?;
    let net = Net::current().ok();
    Ok(resolve(net.as_ref(), target).await?.into_iter())
}

/// Tries `f` with one address after another until one does; else the last one's error.
pub(crate) async fn each<T, F: Future<Output = Result<T>>>(
    net: &Net,
    target: Target,
    mut f: impl FnMut(SocketAddr) -> F,
) -> Result<T> {
    let mut failed = None;
    for addr in resolve(Some(net), target).await? {
        match f(addr).await {
            Ok(v) => return Ok(v),
            Err(e) => failed = Some(e),
        }
    }
    Err(failed.unwrap_or_else(none))
}

pub(crate) fn none() -> Error {
    Error::new(ErrorKind::InvalidInput, "no address given")
}
