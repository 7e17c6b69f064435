//! The client's side of SOCKS version 5 (RFC 1928), with user name and password (RFC 1929): CONNECT
//! and UDP ASSOCIATE.

use std::io::{self, Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const VERSION: u8 = 5;
const NO_AUTH: u8 = 0;
const USER_PASS: u8 = 2;
const CONNECT: u8 = 1;
const UDP_ASSOCIATE: u8 = 3;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Octets in front of a datagram at most, as this client sends them.
pub const UDP_HEADER: usize = 4 + 16 + 2;

/// User name and password, 1 to 255 octets each.
///
/// ```
/// use perimeter_tokio::gateway::socks::Credentials;
///
/// let me = Credentials::new("me", "secret")?;
/// assert_eq!((me.user(), me.password()), ("me", "secret"));
/// // Where it is printed, the password is not.
/// assert_eq!(format!("{me:?}"), "me:…");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
}

impl core::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:…", self.user)
    }
}

impl Credentials {
    /// Both.
    /// See [`Credentials`].
    ///
    /// # Errors
    /// One is empty, or longer than 255 octets.
    pub fn new(user: &str, password: &str) -> Result<Credentials, String> {
        for (what, s) in [("user name", user), ("password", password)] {
            if !(1..=255).contains(&s.len()) {
                return Err(format!("the {what} must have 1 to 255 octets"));
            }
        }
        Ok(Credentials {
            user: user.to_owned(),
            password: password.to_owned(),
        })
    }

    /// The user's name.
    /// See [`Credentials`].
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The password.
    /// See [`Credentials`].
    pub fn password(&self) -> &str {
        &self.password
    }
}

fn bad(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, format!("SOCKS5: {}", what.into()))
}

/// Asks the proxy at the other end of `s` for a connection to `to`, which `s` is from then on.
///
/// ```
#[doc = include_str!("../examples/proxy.txt")]
/// let mut s = TcpStream::connect(socks_proxy).await?;
/// let me = socks::Credentials::new("me", "secret")?;
/// socks::connect(&mut s, Some(&me), "192.0.2.7:80".parse()?).await?;
/// // What comes from here on is from there: a greeting.
/// let mut text = [0; 5];
/// s.read_exact(&mut text).await?;
/// assert_eq!(&text, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
///
/// # Errors
/// What the proxy says, as the error that a connection would give: `ConnectionRefused`,
/// `HostUnreachable`, `NetworkUnreachable`, `TimedOut`, `PermissionDenied`; `InvalidData` if it does
/// not speak SOCKS5; or those of `s`.
pub async fn connect<S>(s: &mut S, auth: Option<&Credentials>, to: SocketAddr) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    greet(s, auth).await?;
    request(s, CONNECT, to).await.map(drop)
}

/// Asks the proxy to carry datagrams for as long as `s` lasts. Yields where they are to be sent:
/// behind a [header](udp_header) each. An unspecified address stands for the proxy's own.
///
/// ```
#[doc = include_str!("../examples/proxy.txt")]
/// let mut s = TcpStream::connect(socks_proxy).await?;
/// let relay = socks::associate(&mut s, None, false).await?;
/// let socket = UdpSocket::bind("127.0.0.1:0").await?;
/// let mut datagram = Vec::new();
/// socks::udp_header(&mut datagram, "192.0.2.7:53".parse()?);
/// datagram.extend_from_slice(b"question");
/// socket.send_to(&datagram, relay).await?;
///
/// let mut buf = [0; 2000];
/// let (len, _) = socket.recv_from(&mut buf).await?;
/// let (from, data) = socks::parse_udp(&buf[..len]).ok_or("no header")?;
/// assert_eq!(from.to_string(), "192.0.2.7:53");
/// assert_eq!(&buf[data..len], b"question");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
///
/// # Errors
/// As [`connect`].
pub async fn associate<S>(
    s: &mut S,
    auth: Option<&Credentials>,
    ipv6: bool,
) -> io::Result<SocketAddr>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    greet(s, auth).await?;
    // From which address they will come is not known yet.
    let any: IpAddr = match ipv6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    let relay = request(s, UDP_ASSOCIATE, SocketAddr::new(any, 0)).await?;
    relay.ok_or_else(|| bad("the proxy names its relay for datagrams instead of its address"))
}

async fn greet<S>(s: &mut S, auth: Option<&Credentials>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let hello: &[u8] = match auth {
        Some(_) => &[VERSION, 2, NO_AUTH, USER_PASS],
        None => &[VERSION, 1, NO_AUTH],
    };
    s.write_all(hello).await?;
    let mut reply = [0; 2];
    s.read_exact(&mut reply).await?;
    match (reply, auth) {
        ([VERSION, NO_AUTH], _) => Ok(()),
        ([VERSION, USER_PASS], Some(auth)) => log_in(s, auth).await,
        ([VERSION, _], _) => Err(Error::new(
            ErrorKind::PermissionDenied,
            match auth {
                Some(_) => "SOCKS5: the proxy takes no user name and password",
                None => "SOCKS5: the proxy wants a user name and password",
            },
        )),
        ([other, _], _) => Err(bad(format!("the proxy speaks version {other}"))),
    }
}

/// RFC 1929, section 2.
async fn log_in<S>(s: &mut S, auth: &Credentials) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut out = vec![1];
    for part in [&auth.user, &auth.password] {
        out.push(part.len() as u8);
        out.extend_from_slice(part.as_bytes());
    }
    s.write_all(&out).await?;
    let mut reply = [0; 2];
    s.read_exact(&mut reply).await?;
    match reply[1] {
        0 => Ok(()),
        _ => Err(Error::new(
            ErrorKind::PermissionDenied,
            "SOCKS5: the proxy does not accept this user name and password",
        )),
    }
}

/// A request and its reply; the address in it, unless it is a name.
async fn request<S>(s: &mut S, command: u8, to: SocketAddr) -> io::Result<Option<SocketAddr>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut out = vec![VERSION, command, 0];
    put_addr(&mut out, to);
    s.write_all(&out).await?;
    let mut head = [0; 4];
    s.read_exact(&mut head).await?;
    let [version, reply, _, kind] = head;
    if version != VERSION {
        return Err(bad(format!("the proxy answers in version {version}")));
    }
    if reply != 0 {
        return Err(refused(reply));
    }
    let ip: Option<IpAddr> = match kind {
        IPV4 => {
            let mut ip = [0; 4];
            s.read_exact(&mut ip).await?;
            Some(ip.into())
        }
        IPV6 => {
            let mut ip = [0; 16];
            s.read_exact(&mut ip).await?;
            Some(ip.into())
        }
        NAME => {
            let len = s.read_u8().await?;
            let mut name = vec![0; len.into()];
            s.read_exact(&mut name).await?;
            None
        }
        kind => return Err(bad(format!("an address of kind {kind}"))),
    };
    let port = s.read_u16().await?;
    Ok(ip.map(|ip| SocketAddr::new(ip, port)))
}

/// RFC 1928, section 6.
fn refused(reply: u8) -> Error {
    let (kind, what) = match reply {
        1 => (ErrorKind::Other, "general failure"),
        2 => (ErrorKind::PermissionDenied, "not allowed by its rules"),
        3 => (ErrorKind::NetworkUnreachable, "network unreachable"),
        4 => (ErrorKind::HostUnreachable, "host unreachable"),
        5 => (ErrorKind::ConnectionRefused, "connection refused"),
        6 => (ErrorKind::TimedOut, "time to live expired"),
        7 => (ErrorKind::Unsupported, "command not supported"),
        8 => (ErrorKind::Unsupported, "kind of address not supported"),
        _ => (ErrorKind::Other, "it gives a reason that is none"),
    };
    Error::new(kind, format!("SOCKS5: the proxy says: {what}"))
}

fn put_addr(out: &mut Vec<u8>, to: SocketAddr) {
    match to.ip() {
        IpAddr::V4(ip) => {
            out.push(IPV4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(IPV6);
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&to.port().to_be_bytes());
}

/// Appends the header of a datagram to `to` (RFC 1928, section 7).
/// See [`associate`].
pub fn udp_header(out: &mut Vec<u8>, to: SocketAddr) {
    out.extend_from_slice(&[0, 0, 0]);
    put_addr(out, to);
}

/// A datagram from the proxy: where it came from, and where its data begins. `None`: it is
/// malformed, a fragment, or from a name.
/// See [`associate`].
pub fn parse_udp(datagram: &[u8]) -> Option<(SocketAddr, usize)> {
    let (head, rest) = datagram.split_first_chunk::<4>()?;
    let [_, _, frag, kind] = *head;
    if frag != 0 {
        return None;
    }
    let (ip, rest): (IpAddr, &[u8]) = match kind {
        IPV4 => {
            let (ip, rest) = rest.split_first_chunk::<4>()?;
            ((*ip).into(), rest)
        }
        IPV6 => {
            let (ip, rest) = rest.split_first_chunk::<16>()?;
            ((*ip).into(), rest)
        }
        _ => return None,
    };
    let (port, data) = rest.split_first_chunk::<2>()?;
    let from = SocketAddr::new(ip, u16::from_be_bytes(*port));
    Some((from, datagram.len() - data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a proxy does: it expects and answers, in turns.
    async fn play(
        script: &'static [(&'static [u8], &'static [u8])],
        auth: Option<Credentials>,
        to: &str,
    ) -> io::Result<()> {
        let (mut ours, mut theirs) = tokio::io::duplex(1024);
        let to = to.parse().unwrap();
        let proxy = tokio::spawn(async move {
            for (expect, answer) in script {
                let mut got = vec![0; expect.len()];
                theirs.read_exact(&mut got).await.unwrap();
                assert_eq!(got, *expect);
                theirs.write_all(answer).await.unwrap();
            }
        });
        let out = connect(&mut ours, auth.as_ref(), to).await;
        proxy.await.unwrap();
        out
    }

    #[tokio::test]
    async fn connections() {
        let ok4 = (
            &b"\x05\x01\x00\x01\xc0\x00\x02\x07\x01\xbb"[..],
            &b"\x05\x00\x00\x01\x0a\x00\x00\x01\x12\x34"[..],
        );
        play(
            Box::leak(Box::new([(&b"\x05\x01\x00"[..], &b"\x05\x00"[..]), ok4])),
            None,
            "192.0.2.7:443",
        )
        .await
        .unwrap();
        let log_in = Credentials::new("me", "secret").unwrap();
        let script: &'static [_] = Box::leak(Box::new([
            (&b"\x05\x02\x00\x02"[..], &b"\x05\x02"[..]),
            (&b"\x01\x02me\x06secret"[..], &b"\x01\x00"[..]),
            (
                &b"\x05\x01\x00\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50"[..],
                &b"\x05\x00\x00\x03\x05proxy\x00\x50"[..],
            ),
        ]));
        play(script, Some(log_in.clone()), "[2001:db8::1]:80")
            .await
            .unwrap();
        let script: &'static [_] = Box::leak(Box::new([
            (&b"\x05\x02\x00\x02"[..], &b"\x05\x02"[..]),
            (&b"\x01\x02me\x06secret"[..], &b"\x01\x01"[..]),
        ]));
        let e = play(script, Some(log_in), "192.0.2.7:443")
            .await
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied);
    }

    #[tokio::test]
    async fn refusals_have_the_reason_that_a_connection_would_give() {
        for (reply, kind) in [
            (
                b"\x05\x05\x00\x01\0\0\0\0\0\0",
                ErrorKind::ConnectionRefused,
            ),
            (b"\x05\x04\x00\x01\0\0\0\0\0\0", ErrorKind::HostUnreachable),
            (
                b"\x05\x03\x00\x01\0\0\0\0\0\0",
                ErrorKind::NetworkUnreachable,
            ),
            (b"\x05\x02\x00\x01\0\0\0\0\0\0", ErrorKind::PermissionDenied),
            (b"\x05\x63\x00\x01\0\0\0\0\0\0", ErrorKind::Other),
            (b"\x04\x00\x00\x01\0\0\0\0\0\0", ErrorKind::InvalidData),
        ] {
            let script: &'static [_] = Box::leak(Box::new([
                (&b"\x05\x01\x00"[..], &b"\x05\x00"[..]),
                (&b"\x05\x01\x00\x01\x01\x02\x03\x04\x00\x05"[..], &reply[..]),
            ]));
            let e = play(script, None, "1.2.3.4:5").await.unwrap_err();
            assert_eq!(e.kind(), kind, "{e}");
        }
        for (answer, kind) in [
            (&b"\x05\xff"[..], ErrorKind::PermissionDenied),
            (b"\x05\x02", ErrorKind::PermissionDenied),
            (b"HT", ErrorKind::InvalidData),
            (b"\x05", ErrorKind::UnexpectedEof),
        ] {
            let script: &'static [_] = Box::leak(Box::new([(&b"\x05\x01\x00"[..], answer)]));
            let e = play(script, None, "1.2.3.4:5").await.unwrap_err();
            assert_eq!(e.kind(), kind, "{e}");
        }
    }

    #[test]
    fn datagrams() {
        for at in ["192.0.2.7:53", "[2001:db8::1]:443"] {
            let at: SocketAddr = at.parse().unwrap();
            let mut out = Vec::new();
            udp_header(&mut out, at);
            let head = out.len();
            assert!(head <= UDP_HEADER);
            out.extend_from_slice(b"data");
            assert_eq!(parse_udp(&out), Some((at, head)));
            for n in 0..head {
                assert_eq!(parse_udp(&out[..n]), None, "{n}");
            }
            out[2] = 1;
            assert_eq!(parse_udp(&out), None, "a fragment");
        }
    }
}
