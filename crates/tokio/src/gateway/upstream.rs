//! How destinations are reached: by the host's own sockets, or through a proxy.

use crate::gateway::http;
use crate::gateway::socks::{self, Credentials};
use core::fmt;
use core::str::FromStr;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream, UdpSocket, lookup_host};
use tokio::time::timeout;

/// What the host's sockets are to have, so that their packets do not come back into the gateway.
///
/// ```
#[doc = include_str!("../examples/host.txt")]
/// // For all interfaces and without a mark: nobody needs a privilege for that.
/// let options = SocketOptions::default();
/// options.check()?;
/// let mut s = options.connect(here).await?;
/// s.write_all(b"hello").await?;
/// let mut text = [0; 5];
/// s.read_exact(&mut text).await?;
/// assert_eq!(&text, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SocketOptions {
    /// `SO_MARK`, for policy routing.
    pub mark: Option<u32>,
    /// `SO_BINDTODEVICE`: the interface that they leave by.
    pub device: Option<String>,
}

perimeter_base::setters! {
    SocketOptions {
        with_mark(mark: Option<u32>),
        with_device(device: Option<String>),
    }
}

/// Lets this process have as many files open as it may: every connection and session needs one.
/// How many that are, if it is known.
///
/// ```
/// if let Some(files) = perimeter_tokio::gateway::upstream::raise_file_limit() {
///     println!("{files} connections and sessions, less some");
/// }
/// ```
pub fn raise_file_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

impl SocketOptions {
    fn apply(&self, s: &Socket) -> io::Result<()> {
        let named = |what: String, e: Error| Error::new(e.kind(), format!("{what}: {e}"));
        #[cfg(target_os = "linux")]
        if let Some(mark) = self.mark {
            s.set_mark(mark).map_err(|e| {
                named(
                    format!("marking a socket with {mark} (needs CAP_NET_ADMIN)"),
                    e,
                )
            })?;
        }
        #[cfg(target_os = "linux")]
        if let Some(device) = &self.device {
            s.bind_device(Some(device.as_bytes()))
                .map_err(|e| named(format!("binding a socket to device `{device}`"), e))?;
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (s, named);
        Ok(())
    }

    /// Whether sockets can have these options: tried on one.
    /// See [`SocketOptions`].
    ///
    /// # Errors
    /// The privilege is missing, or there is no such device.
    pub fn check(&self) -> io::Result<()> {
        self.apply(&Socket::new(
            Domain::IPV4,
            Type::DGRAM,
            Some(Protocol::UDP),
        )?)
    }

    /// Connects the host's socket.
    /// See [`SocketOptions`].
    ///
    /// # Errors
    /// As `connect`.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let domain = Domain::for_address(to);
        let s = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        s.set_nonblocking(true)?;
        s.set_keepalive(true)?;
        self.apply(&s)?;
        let s = TcpSocket::from_std_stream(s.into()).connect(to).await?;
        s.set_nodelay(true)?;
        Ok(s)
    }

    /// A socket for datagrams of that family.
    ///
    /// ```
    #[doc = include_str!("../examples/host.txt")]
    /// let server = UdpSocket::bind("127.0.0.1:0").await?;
    /// let client = SocketOptions::default().udp(false)?;
    /// client.send_to(b"hello", server.local_addr()?).await?;
    /// let mut buf = [0; 2000];
    /// assert_eq!(server.recv_from(&mut buf).await?.0, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// As `socket` and `bind`.
    pub fn udp(&self, ipv6: bool) -> io::Result<UdpSocket> {
        let (domain, any): (_, IpAddr) = match ipv6 {
            true => (Domain::IPV6, Ipv6Addr::UNSPECIFIED.into()),
            false => (Domain::IPV4, Ipv4Addr::UNSPECIFIED.into()),
        };
        let s = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        s.set_nonblocking(true)?;
        self.apply(&s)?;
        s.bind(&SocketAddr::new(any, 0).into())?;
        UdpSocket::from_std(s.into())
    }
}

/// A proxy's protocol.
/// See [`Target`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Speaks {
    /// SOCKS5.
    Socks5,
    /// HTTP with CONNECT: carries no datagrams.
    Http,
}

/// Where to, as users write it: `direct`, `socks5://[user:password@]host:port`, `http://…`.
///
/// ```
/// use perimeter_tokio::gateway::Target;
///
/// let target: Target = "socks5://me:secret@proxy.example:1080".parse()?;
/// // Without the password, as it may be shown.
/// assert_eq!(target.to_string(), "socks5://proxy.example:1080");
/// assert_eq!("direct".parse(), Ok(Target::Direct));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// To each destination itself.
    Direct,
    /// By a proxy.
    Proxy {
        /// What it speaks.
        speaks: Speaks,
        /// Its name or address.
        host: String,
        /// Its port.
        port: u16,
        /// Who we are there.
        auth: Option<Credentials>,
    },
}

impl FromStr for Target {
    type Err = String;

    fn from_str(s: &str) -> Result<Target, String> {
        if s == "direct" {
            return Ok(Target::Direct);
        }
        let (speaks, rest, default) = if let Some(rest) = s.strip_prefix("socks5://") {
            (Speaks::Socks5, rest, 1080)
        } else if let Some(rest) = s.strip_prefix("http://") {
            (Speaks::Http, rest, 8080)
        } else {
            return Err(format!(
                "`{s}` is not `direct`, `socks5://[user:password@]host:port` or \
                 `http://[user:password@]host:port`"
            ));
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (auth, at) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((auth, at)) => {
                let (user, password) = auth
                    .split_once(':')
                    .ok_or_else(|| format!("`{s}`: there is a user name without a password"))?;
                let both = Credentials::new(&decoded(user)?, &decoded(password)?);
                (Some(both.map_err(|e| format!("`{s}`: {e}"))?), at)
            }
        };
        let (host, port) = match at.strip_prefix('[') {
            Some(v6) => {
                let (host, rest) = v6
                    .split_once(']')
                    .ok_or_else(|| format!("`{s}`: there is no `]`"))?;
                (host, rest.strip_prefix(':'))
            }
            None => match at.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (at, None),
            },
        };
        let bad_host = |c: char| c.is_whitespace() || "/?#[]@".contains(c);
        if host.is_empty() || host.contains(bad_host) {
            return Err(format!("`{s}`: `{host}` is no host"));
        }
        let port = match port {
            None => default,
            Some(p) => p
                .parse()
                .ok()
                .filter(|p| *p > 0)
                .ok_or_else(|| format!("`{s}`: `{p}` is no port from 1 to 65535"))?,
        };
        Ok(Target::Proxy {
            speaks,
            host: host.to_owned(),
            port,
            auth,
        })
    }
}

impl fmt::Display for Target {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target::Proxy {
            speaks, host, port, ..
        } = self
        else {
            return f.write_str("direct");
        };
        let scheme = match speaks {
            Speaks::Socks5 => "socks5",
            Speaks::Http => "http",
        };
        match host.contains(':') {
            true => write!(f, "{scheme}://[{host}]:{port}"),
            false => write!(f, "{scheme}://{host}:{port}"),
        }
    }
}

/// `%41` is `A` (RFC 3986, section 2.1).
fn decoded(s: &str) -> Result<String, String> {
    let bad = || format!("`{s}`: `%` is to be followed by two hexadecimal digits");
    let mut out = Vec::with_capacity(s.len());
    let mut rest = s.as_bytes();
    while let Some((b, after)) = rest.split_first() {
        rest = after;
        if *b != b'%' {
            out.push(*b);
            continue;
        }
        let (digits, after) = rest.split_first_chunk::<2>().ok_or_else(bad)?;
        let digits = core::str::from_utf8(digits).map_err(|_| bad())?;
        out.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
        rest = after;
    }
    String::from_utf8(out).map_err(|_| format!("`{s}` is not UTF-8"))
}

/// Reaches destinations.
///
/// ```
#[doc = include_str!("../examples/proxy.txt")]
/// let target: Target = format!("socks5://{socks_proxy}").parse()?;
/// let limit = Duration::from_secs(20);
/// let upstream = Upstream::new(target, SocketOptions::default(), limit).await?;
/// assert!(upstream.carries_datagrams());
/// let mut s = upstream.connect("192.0.2.7:80".parse()?).await?;
/// let mut text = [0; 5];
/// s.read_exact(&mut text).await?;
/// assert_eq!(&text, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
#[derive(Clone, Debug)]
pub struct Upstream {
    target: Target,
    /// The proxy's addresses.
    proxy: Vec<SocketAddr>,
    options: SocketOptions,
    /// How long a connection may take to come about, its proxy's answer too.
    limit: Duration,
}

/// How datagrams get to their destinations.
/// See [`Upstream::datagrams`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Datagrams {
    /// By a socket, each to its destination.
    Direct(UdpSocket),
    /// By a socket that is connected to the proxy's relay, each behind a
    /// [header](socks::udp_header); for as long as the proxy keeps the stream open.
    Relay(UdpSocket, TcpStream),
}

impl Upstream {
    /// To `target`, whose name is looked up now. A connection has `limit` to come about.
    /// See [`Upstream`].
    ///
    /// # Errors
    /// The proxy's name can't be resolved, or the options can't be had.
    pub async fn new(
        target: Target,
        options: SocketOptions,
        limit: Duration,
    ) -> io::Result<Upstream> {
        options.check()?;
        let mut proxy = Vec::new();
        if let Target::Proxy { host, port, .. } = &target {
            let found = lookup_host((host.as_str(), *port)).await;
            let found =
                found.map_err(|e| Error::new(e.kind(), format!("resolving `{host}`: {e}")))?;
            proxy.extend(found);
            if proxy.is_empty() {
                let what = format!("`{host}` has no address");
                return Err(Error::new(ErrorKind::NotFound, what));
            }
        }
        Ok(Upstream {
            target,
            proxy,
            options,
            limit,
        })
    }

    /// Where to.
    ///
    /// ```
    #[doc = include_str!("../examples/host.txt")]
    /// let direct = Upstream::new(Target::Direct, SocketOptions::default(), Duration::from_secs(20));
    /// assert_eq!(direct.await?.target().to_string(), "direct");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Whether datagrams get there.
    /// See [`Upstream`].
    pub fn carries_datagrams(&self) -> bool {
        !matches!(
            self.target,
            Target::Proxy {
                speaks: Speaks::Http,
                ..
            }
        )
    }

    /// A stream to the proxy.
    async fn to_proxy(&self) -> io::Result<TcpStream> {
        let mut last = Error::new(ErrorKind::NotFound, "the proxy has no address");
        for at in &self.proxy {
            match self.options.connect(*at).await {
                Ok(s) => return Ok(s),
                Err(e) => last = e,
            }
        }
        // The proxy is out of reach, whatever is true of the destination.
        let what = format!("connecting to the proxy: {last}");
        Err(Error::new(ErrorKind::HostUnreachable, what))
    }

    /// A stream to `to`.
    /// See [`Upstream`].
    ///
    /// # Errors
    /// `ConnectionRefused`, `HostUnreachable`, `TimedOut`, … as the destination or the proxy
    /// says.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let connect = async {
            let Target::Proxy { speaks, auth, .. } = &self.target else {
                return self.options.connect(to).await;
            };
            let mut s = self.to_proxy().await?;
            match speaks {
                Speaks::Socks5 => socks::connect(&mut s, auth.as_ref(), to).await?,
                Speaks::Http => http::connect(&mut s, auth.as_ref(), to).await?,
            }
            Ok(s)
        };
        match timeout(self.limit, connect).await {
            Ok(done) => done,
            Err(_) => Err(ErrorKind::TimedOut.into()),
        }
    }

    /// A way for datagrams of one sender, to destinations of that family.
    ///
    /// ```
    #[doc = include_str!("../examples/proxy.txt")]
    /// let target: Target = format!("socks5://{socks_proxy}").parse()?;
    /// let limit = Duration::from_secs(20);
    /// let upstream = Upstream::new(target, SocketOptions::default(), limit).await?;
    /// let (socket, _open) = match upstream.datagrams(false).await? {
    ///     Datagrams::Relay(socket, open) => (socket, open),
    ///     other => panic!("not by a proxy: {other:?}"),
    /// };
    /// let mut datagram = Vec::new();
    /// socks::udp_header(&mut datagram, "192.0.2.7:53".parse()?);
    /// datagram.extend_from_slice(b"question");
    /// socket.send(&datagram).await?;
    /// let mut buf = [0; 2000];
    /// assert_eq!(socket.recv(&mut buf).await?, datagram.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// `Unsupported` by an HTTP proxy; no socket is to be had; or what the proxy says.
    pub async fn datagrams(&self, ipv6: bool) -> io::Result<Datagrams> {
        let Target::Proxy { speaks, auth, .. } = &self.target else {
            return Ok(Datagrams::Direct(self.options.udp(ipv6)?));
        };
        if *speaks == Speaks::Http {
            let what = "an HTTP proxy carries no datagrams";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let associate = async {
            let mut s = self.to_proxy().await?;
            let peer = s.peer_addr()?;
            let relay = socks::associate(&mut s, auth.as_ref(), peer.is_ipv6()).await?;
            let at = match relay.ip().is_unspecified() {
                true => SocketAddr::new(peer.ip(), relay.port()),
                false => relay,
            };
            let socket = self.options.udp(at.is_ipv6())?;
            socket.connect(at).await?;
            Ok(Datagrams::Relay(socket, s))
        };
        match timeout(self.limit, associate).await {
            Ok(done) => done,
            Err(_) => Err(ErrorKind::TimedOut.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        let socks = |s: &str| match s.parse() {
            Ok(Target::Proxy {
                speaks,
                host,
                port,
                auth,
            }) => (
                speaks,
                host,
                port,
                auth.map(|a| (a.user().to_owned(), a.password().to_owned())),
            ),
            other => panic!("{s}: {other:?}"),
        };
        let host = |h: &str| h.to_owned();
        assert_eq!("direct".parse(), Ok(Target::Direct));
        assert_eq!(
            socks("socks5://127.0.0.1:1080"),
            (Speaks::Socks5, host("127.0.0.1"), 1080, None)
        );
        assert_eq!(
            socks("socks5://a%40b:c%3Ad:e@[2001:db8::1]:9/"),
            (
                Speaks::Socks5,
                host("2001:db8::1"),
                9,
                Some((host("a@b"), host("c:d:e")))
            )
        );
        assert_eq!(
            socks("http://proxy"),
            (Speaks::Http, host("proxy"), 8080, None)
        );
        for bad in [
            "",
            "socks4://x:1",
            "proxy:80",
            "socks5://",
            "socks5://:80",
            "socks5://x:0",
            "socks5://x:99999",
            "socks5://me@x:1",
            "socks5://:p@x:1",
            "http://x/y",
            "http://[::1:5",
            "socks5://a%4:b@x:1",
        ] {
            let e = bad.parse::<Target>().unwrap_err();
            assert!(!e.is_empty(), "{bad}");
        }
        // Nothing that is shown has the password.
        let t: Target = "socks5://me:secret@x:1".parse().unwrap();
        assert!(!format!("{t} {t:?}").contains("secret"));
    }

    #[tokio::test]
    async fn a_refusal_and_a_black_hole_are_told_apart() {
        let limit = Duration::from_millis(200);
        let direct = Upstream::new(Target::Direct, SocketOptions::default(), limit);
        let direct = direct.await.unwrap();
        let l = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = l.local_addr().unwrap();
        direct.connect(at).await.unwrap();
        drop(l);
        let e = direct.connect(at).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
        // A proxy that never answers.
        let l = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("socks5://{}", l.local_addr().unwrap());
        let by = Upstream::new(target.parse().unwrap(), SocketOptions::default(), limit);
        let by = by.await.unwrap();
        let e = by.connect(at).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::TimedOut);
        let options = SocketOptions {
            device: Some("no-such-device".to_owned()),
            ..SocketOptions::default()
        };
        let e = Upstream::new(Target::Direct, options, limit)
            .await
            .unwrap_err();
        assert!(e.to_string().contains("no-such-device"), "{e}");
    }
}
