//! Addresses, and names that are resolved to them.

use crate::net::Net;
use std::future::Future;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::pin::Pin;

/// The addresses that a name was found to have, some time.
pub type Resolved = Pin<Box<dyn Future<Output = Result<Vec<SocketAddr>>> + Send>>;

/// Finds the addresses of host names, for calls of a [`Net`] ([`Net::with_resolver`]). Without one
/// the host's resolver is asked, as `tokio::net` does.
/// See [`Net::with_resolver`].
pub trait Resolve: Send + Sync {
    /// The addresses of `host`, with `port`.
    /// See [`Net::with_resolver`].
    fn resolve(&self, host: &str, port: u16) -> Resolved;
}

/// What an address parameter stands for.
#[derive(Clone, Debug)]
pub enum Target {
    /// These addresses.
    Addrs(Vec<SocketAddr>),
    /// A host's, by name.
    Name(String, u16),
}

mod sealed {
    /// Outside this crate `ToSocketAddrs` is used, not implemented.
    pub trait Sealed {
        fn target(&self) -> std::io::Result<super::Target>;
    }
}

/// What can be given where an address is asked for: the types that `tokio::net::ToSocketAddrs` has.
/// Text is an address with a port, or a host's name with one.
///
/// ```
#[doc = include_str!("examples/net.txt")]
/// let listener = net.listen(("10.0.0.1", 80)).await?;
/// for addr in ["10.0.0.1:80".to_string(), listener.local_addr()?.to_string()] {
///     net.connect(addr).await?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
pub trait ToSocketAddrs: sealed::Sealed {}

impl<T: sealed::Sealed + ?Sized> ToSocketAddrs for T {}

fn name(text: &str, port: u16) -> Target {
    match text.parse::<IpAddr>() {
        Ok(ip) => Target::Addrs(vec![SocketAddr::new(ip, port)]),
        Err(_) => Target::Name(text.to_string(), port),
    }
}

macro_rules! addresses {
    ($($type:ty: $this:ident => $addr:expr),* $(,)?) => {$(
        impl sealed::Sealed for $type {
            fn target(&self) -> Result<Target> {
                let $this = self;
                Ok(Target::Addrs(vec![$addr]))
            }
        }
    )*};
}

addresses! {
    SocketAddr: a => *a,
    SocketAddrV4: a => SocketAddr::V4(*a),
    SocketAddrV6: a => SocketAddr::V6(*a),
    (IpAddr, u16): a => SocketAddr::new(a.0, a.1),
    (Ipv4Addr, u16): a => SocketAddr::new(a.0.into(), a.1),
    (Ipv6Addr, u16): a => SocketAddr::new(a.0.into(), a.1),
}

impl sealed::Sealed for [SocketAddr] {
    fn target(&self) -> Result<Target> {
        Ok(Target::Addrs(self.to_vec()))
    }
}

impl sealed::Sealed for Vec<SocketAddr> {
    fn target(&self) -> Result<Target> {
        Ok(Target::Addrs(self.clone()))
    }
}

impl sealed::Sealed for (&str, u16) {
    fn target(&self) -> Result<Target> {
        Ok(name(self.0, self.1))
    }
}

impl sealed::Sealed for (String, u16) {
    fn target(&self) -> Result<Target> {
        Ok(name(&self.0, self.1))
    }
}

impl sealed::Sealed for str {
    fn target(&self) -> Result<Target> {
        if let Ok(addr) = self.parse() {
            return Ok(Target::Addrs(vec![addr]));
        }
        let bad = |what| Error::new(ErrorKind::InvalidInput, format!("`{self}`: {what}"));
        let (host, port) = self
            .rsplit_once(':')
            .ok_or_else(|| bad("an address or a name, a colon and a port are needed"))?;
        let port = port.parse().map_err(|_| bad("the port is no number"))?;
        Ok(name(host, port))
    }
}

impl sealed::Sealed for String {
    fn target(&self) -> Result<Target> {
        self.as_str().target()
    }
}

impl<T: sealed::Sealed + ?Sized> sealed::Sealed for &T {
    fn target(&self) -> Result<Target> {
        (**self).target()
    }
}

/// What `addr` stands for.
pub(crate) fn target(addr: impl ToSocketAddrs) -> Result<Target> {
    sealed::Sealed::target(&addr)
}

/// The addresses of `target`; names by the resolver of `net`, or the host's.
pub(crate) async fn resolve(net: Option<&Net>, target: Target) -> Result<Vec<SocketAddr>> {
    let (host, port) = match target {
        Target::Addrs(addrs) => return Ok(addrs),
        Target::Name(host, port) => (host, port),
    };
    match net.and_then(Net::resolver) {
        Some(r) => r.resolve(&host, port).await,
        None => Ok(tokio::net::lookup_host((host.as_str(), port))
            .await?
            .collect()),
    }
}

/// The addresses of a host, as `tokio::net::lookup_host`: by the resolver of the current [`Net`],
/// if there is one that has one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_for_an_address() {
        let addr: SocketAddr = "10.0.0.1:80".parse().unwrap();
        for t in [
            target("10.0.0.1:80"),
            target("10.0.0.1:80".to_string()),
            target(("10.0.0.1", 80)),
            target(("10.0.0.1".to_string(), 80)),
            target(addr),
            target(&[addr][..]),
            target((Ipv4Addr::new(10, 0, 0, 1), 80)),
        ] {
            assert!(matches!(t.unwrap(), Target::Addrs(a) if a == [addr]));
        }
        let v6 = target("[fe80::1%3]:80");
        assert!(matches!(v6.unwrap(), Target::Addrs(a) if a[0].is_ipv6()));
        let name = target("server:80").unwrap();
        assert!(matches!(name, Target::Name(h, 80) if h == "server"));
        for bad in ["server", "server:http", "10.0.0.1", ""] {
            assert_eq!(target(bad).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
