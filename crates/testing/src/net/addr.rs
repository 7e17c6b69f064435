//! Addresses, and the names of hosts.

use crate::sim::world;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// What addresses a socket: as `std::net::ToSocketAddrs`, with hosts of the simulation for names.
/// Nothing outside of the simulation is asked.
pub trait ToSocketAddrs: sealed::Sealed {
    /// The addresses, in the order in which they are to be tried.
    #[doc(hidden)]
    fn resolve(&self) -> Result<Vec<SocketAddr>>;
}

mod sealed {
    pub trait Sealed {}
}

fn named(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let bare = host
        .strip_prefix('[')
        .and_then(|h| h.strip_suffix(']'))
        .unwrap_or(host);
    if let Ok(addr) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(addr, port)]);
    }
    let addr = world::within(|here| here.world.address(host));
    let addr = addr.ok_or_else(|| {
        let text = format!("there is no host `{host}` in this simulation");
        Error::new(ErrorKind::NotFound, text)
    })?;
    Ok(vec![SocketAddr::new(addr, port)])
}

impl sealed::Sealed for str {}
impl ToSocketAddrs for str {
    fn resolve(&self) -> Result<Vec<SocketAddr>> {
        let split = self.rsplit_once(':');
        let split = split.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let Some((host, port)) = split else {
            let text = format!("`{self}` is not an address or a host with a port");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        };
        named(host, port)
    }
}

impl sealed::Sealed for String {}
impl ToSocketAddrs for String {
    fn resolve(&self) -> Result<Vec<SocketAddr>> {
        (**self).resolve()
    }
}

impl sealed::Sealed for (&str, u16) {}
impl ToSocketAddrs for (&str, u16) {
    fn resolve(&self) -> Result<Vec<SocketAddr>> {
        named(self.0, self.1)
    }
}

impl sealed::Sealed for (String, u16) {}
impl ToSocketAddrs for (String, u16) {
    fn resolve(&self) -> Result<Vec<SocketAddr>> {
        named(&self.0, self.1)
    }
}

impl sealed::Sealed for [SocketAddr] {}
impl ToSocketAddrs for [SocketAddr] {
    fn resolve(&self) -> Result<Vec<SocketAddr>> {
        Ok(self.to_vec())
    }
}

impl<T: sealed::Sealed + ?Sized> sealed::Sealed for &T {}
impl<T: ToSocketAddrs + ?Sized> ToSocketAddrs for &T {
    fn resolve(&self) -> Result<Vec<SocketAddr>> {
        (**self).resolve()
    }
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        impl sealed::Sealed for $t {}
        impl ToSocketAddrs for $t {
            fn resolve(&self) -> Result<Vec<SocketAddr>> {
                Ok(vec![SocketAddr::from(*self)])
            }
        }
    )*};
}

plain!(
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16)
);
