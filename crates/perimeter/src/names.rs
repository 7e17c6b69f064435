//! What stands for an address, and who is asked for the addresses of names: the host's resolver, or
//! the stack's own where it has name servers (feature `dns`).

use perimeter_org::engine::Engine;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::Arc;

/// What an address parameter stands for.
///
/// ```
/// use perimeter::{Target, ToSocketAddrs};
///
/// // A proxy that resolves names itself is given the name; else the address will do.
/// let shown = |to: &str| std::io::Result::Ok(match to.target()? {
///     Target::Addr(addr) => addr.to_string(),
///     Target::Addrs(all) => format!("one of {all:?}"),
///     Target::Name(host, port) => format!("port {port} of {host}, to be looked up"),
/// });
/// assert_eq!(shown("[2001:db8::1]:443")?, "[2001:db8::1]:443");
/// assert_eq!(shown("example.org:443")?, "port 443 of example.org, to be looked up");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// One address.
    Addr(SocketAddr),
    /// Several.
    Addrs(Vec<SocketAddr>),
    /// A host's, by name, and a port.
    Name(String, u16),
}

/// What can be given where an address is asked for: the types that [`std::net::ToSocketAddrs`] has,
/// and any that says what it stands for. Text is an address with a port, or a host's name with one.
/// Unlike std's this finds no addresses itself: names are looked up by the stack's own resolver
/// where it has name servers ([`Builder::name_servers`](crate::Builder::name_servers)), else by the
/// host's.
///
/// ```
/// use perimeter::{Target, ToSocketAddrs};
///
/// assert_eq!("10.0.0.1:80".target()?, Target::Addr("10.0.0.1:80".parse()?));
/// assert_eq!(("::1", 80).target()?, Target::Addr("[::1]:80".parse()?));
/// assert_eq!("example.org:80".target()?, Target::Name("example.org".into(), 80));
///
/// struct Upstream;
///
/// impl ToSocketAddrs for Upstream {
///     fn target(&self) -> std::io::Result<Target> {
///         Ok(Target::Name("upstream.example".into(), 8080))
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ToSocketAddrs {
    /// What it stands for.
    /// See [`ToSocketAddrs`].
    ///
    /// # Errors
    /// `InvalidInput`: it is neither an address nor a name with a port.
    fn target(&self) -> Result<Target>;
}

fn name(text: &str, port: u16) -> Target {
    match text.parse::<IpAddr>() {
        Ok(ip) => Target::Addr(SocketAddr::new(ip, port)),
        Err(_) => Target::Name(text.to_string(), port),
    }
}

macro_rules! addresses {
    ($($type:ty: $this:ident => $addr:expr),* $(,)?) => {$(
        impl ToSocketAddrs for $type {
            #[inline]
            fn target(&self) -> Result<Target> {
                let $this = self;
                Ok(Target::Addr($addr))
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

impl ToSocketAddrs for [SocketAddr] {
    fn target(&self) -> Result<Target> {
        Ok(Target::Addrs(self.to_vec()))
    }
}

impl ToSocketAddrs for Vec<SocketAddr> {
    fn target(&self) -> Result<Target> {
        Ok(Target::Addrs(self.clone()))
    }
}

impl ToSocketAddrs for (&str, u16) {
    fn target(&self) -> Result<Target> {
        Ok(name(self.0, self.1))
    }
}

impl ToSocketAddrs for (String, u16) {
    fn target(&self) -> Result<Target> {
        Ok(name(&self.0, self.1))
    }
}

impl ToSocketAddrs for str {
    fn target(&self) -> Result<Target> {
        if let Ok(addr) = self.parse() {
            return Ok(Target::Addr(addr));
        }
        let bad = |what| Error::new(ErrorKind::InvalidInput, format!("`{self}`: {what}"));
        let (host, port) = self
            .rsplit_once(':')
            .ok_or_else(|| bad("an address or a name, a colon and a port are needed"))?;
        let port = port.parse().map_err(|_| bad("the port is no number"))?;
        Ok(name(host, port))
    }
}

impl ToSocketAddrs for String {
    fn target(&self) -> Result<Target> {
        self.as_str().target()
    }
}

impl<T: ToSocketAddrs + ?Sized> ToSocketAddrs for &T {
    #[inline]
    fn target(&self) -> Result<Target> {
        (**self).target()
    }
}

/// Who is asked for names: a part of a stack, and of sockets that take names.
#[derive(Clone, Default)]
pub(crate) struct Names {
    /// `None`: the host.
    #[cfg(feature = "dns")]
    own: Option<Arc<perimeter_dns::Resolver>>,
    /// It asks whom servers of DHCP tell of.
    #[cfg(feature = "dns")]
    learns: bool,
}

impl Names {
    /// The addresses that `target` stands for.
    ///
    /// # Errors
    /// What the resolver says.
    pub(crate) fn addrs(
        &self,
        engine: &Arc<dyn Engine>,
        target: Target,
    ) -> Result<std::vec::IntoIter<SocketAddr>> {
        let (host, port) = match target {
            Target::Addr(addr) => return Ok(vec![addr].into_iter()),
            Target::Addrs(addrs) => return Ok(addrs.into_iter()),
            Target::Name(host, port) => (host, port),
        };
        #[cfg(feature = "dns")]
        if let Some(own) = self.own(engine) {
            let found = crate::dns::ask(own, engine, &host)?;
            let with_port = found.into_iter().map(|ip| SocketAddr::new(ip, port));
            return Ok(with_port.collect::<Vec<_>>().into_iter());
        }
        let _ = engine;
        std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), port))
    }

    /// The first address of `target`.
    ///
    /// # Errors
    /// There is none; or what the resolver says.
    #[inline]
    pub(crate) fn first(&self, engine: &Arc<dyn Engine>, target: Target) -> Result<SocketAddr> {
        match target {
            Target::Addr(addr) => Ok(addr),
            target => self.addrs(engine, target)?.next().ok_or_else(none),
        }
    }

    /// Tries `f` with one address after another until one does; else the last one's error, as
    /// `std::net`.
    ///
    /// # Errors
    /// That; or what the resolver says.
    pub(crate) fn each<T>(
        &self,
        engine: &Arc<dyn Engine>,
        addrs: impl ToSocketAddrs,
        mut f: impl FnMut(SocketAddr) -> Result<T>,
    ) -> Result<T> {
        let target = addrs.target()?;
        if let Target::Addr(addr) = target {
            return f(addr);
        }
        let mut failed = None;
        for addr in self.addrs(engine, target)? {
            match f(addr) {
                Ok(v) => return Ok(v),
                Err(e) => failed = Some(e),
            }
        }
        Err(failed.unwrap_or_else(none))
    }
}

#[cfg(feature = "dns")]
impl Names {
    /// The stack's own resolver.
    pub(crate) fn of(own: Arc<perimeter_dns::Resolver>, learns: bool) -> Names {
        let own = Some(own);
        Names { own, learns }
    }

    /// The stack's own resolver, which knows the name servers that there are now.
    pub(crate) fn own(&self, engine: &Arc<dyn Engine>) -> Option<&Arc<perimeter_dns::Resolver>> {
        let own = self.own.as_ref()?;
        if self.learns {
            let told = engine.leases().into_iter().flat_map(|l| l.name_servers);
            let told: Vec<_> = told.map(|ip| SocketAddr::new(ip.into(), 53)).collect();
            own.set_servers(&told);
        }
        Some(own)
    }
}

fn none() -> Error {
    Error::new(ErrorKind::InvalidInput, "no address given")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_for_an_address() {
        let addr: SocketAddr = "10.0.0.1:80".parse().unwrap();
        for t in [
            "10.0.0.1:80".target(),
            "10.0.0.1:80".to_string().target(),
            ("10.0.0.1", 80).target(),
            ("10.0.0.1".to_string(), 80).target(),
            addr.target(),
            ToSocketAddrs::target(&&addr),
            (Ipv4Addr::new(10, 0, 0, 1), 80).target(),
        ] {
            assert_eq!(t.unwrap(), Target::Addr(addr));
        }
        assert_eq!([addr][..].target().unwrap(), Target::Addrs(vec![addr]));
        let v6 = "[fe80::1%3]:80".target();
        assert!(matches!(v6.unwrap(), Target::Addr(a) if a.is_ipv6()));
        assert_eq!(
            "server:80".target().unwrap(),
            Target::Name("server".into(), 80)
        );
        for bad in ["server", "server:http", "10.0.0.1", ""] {
            assert_eq!(bad.target().unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
