//! The client's side of an HTTP proxy: CONNECT (RFC 9110, section 9.3.6) with basic authentication
//! (RFC 7617).

use crate::gateway::socks::Credentials;
use std::io::{self, Error, ErrorKind};
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest answer that is read, octets.
const LONGEST: usize = 8 * 1024;

/// Asks the proxy at the other end of `s` for a tunnel to `to`, which `s` is from then on.
///
/// ```
#[doc = include_str!("../examples/proxy.txt")]
/// let mut s = TcpStream::connect(http_proxy).await?;
/// http::connect(&mut s, None, "192.0.2.7:80".parse()?).await?;
/// // What comes from here on is from there: a greeting.
/// let mut text = [0; 5];
/// s.read_exact(&mut text).await?;
/// assert_eq!(&text, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
///
/// # Errors
/// `PermissionDenied` (401, 403, 407), `HostUnreachable` (502, 503), `TimedOut` (504) or
/// `ConnectionRefused` as the proxy answers; `InvalidData` if it does not speak HTTP; or those of `s`.
pub async fn connect<S>(s: &mut S, auth: Option<&Credentials>, to: SocketAddr) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut out = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
    if let Some(auth) = auth {
        let pair = format!("{}:{}", auth.user(), auth.password());
        out += &format!("Proxy-Authorization: Basic {}\r\n", base64(pair.as_bytes()));
    }
    out += "\r\n";
    s.write_all(out.as_bytes()).await?;
    let status = head(s).await?;
    let kind = match status {
        200..300 => return Ok(()),
        401 | 403 | 407 => ErrorKind::PermissionDenied,
        502 | 503 => ErrorKind::HostUnreachable,
        504 => ErrorKind::TimedOut,
        _ => ErrorKind::ConnectionRefused,
    };
    Err(Error::new(
        kind,
        format!("the HTTP proxy answers with status {status}"),
    ))
}

/// Reads an answer's head and no octet more: what follows is the tunnel's. Its status.
async fn head<S: AsyncRead + Unpin>(s: &mut S) -> io::Result<u16> {
    let mut head = Vec::with_capacity(256);
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= LONGEST {
            return Err(bad("its answer has no end"));
        }
        head.push(s.read_u8().await?);
        if head.len() == 7 && !head.starts_with(b"HTTP/1.") {
            return Err(bad("this is no HTTP/1 proxy"));
        }
    }
    let line = head.split(|b| *b == b'\r').next().unwrap_or_default();
    let status = line.get(9..12).and_then(|s| core::str::from_utf8(s).ok());
    let status = status.and_then(|s| s.parse().ok());
    status.ok_or_else(|| bad("its answer has no status"))
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("HTTP proxy: {what}"))
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let at = |n: usize| u32::from(three.get(n).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for n in 0..4 {
            out.push(match n <= three.len() {
                true => DIGITS[(bits >> (18 - 6 * n) & 63) as usize] as char,
                false => '=',
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_64() {
        for (bytes, want) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
            ("Aladdin:open sesame", "QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), want);
        }
    }

    async fn answered(
        answer: &'static [u8],
        auth: Option<Credentials>,
    ) -> (io::Result<()>, String, Vec<u8>) {
        let (mut ours, mut theirs) = tokio::io::duplex(16 * 1024);
        let proxy = tokio::spawn(async move {
            let mut got = Vec::new();
            while !got.ends_with(b"\r\n\r\n") {
                got.push(theirs.read_u8().await.unwrap());
            }
            theirs.write_all(answer).await.unwrap();
            String::from_utf8(got).unwrap()
        });
        let out = connect(
            &mut ours,
            auth.as_ref(),
            "[2001:db8::1]:80".parse().unwrap(),
        )
        .await;
        let asked = proxy.await.unwrap();
        let mut rest = Vec::new();
        ours.read_to_end(&mut rest).await.unwrap();
        (out, asked, rest)
    }

    #[tokio::test]
    async fn a_tunnel() {
        let auth = Credentials::new("me", "secret").unwrap();
        let answer = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nhello";
        let (out, asked, rest) = answered(answer, Some(auth)).await;
        out.unwrap();
        assert_eq!(
            asked,
            "CONNECT [2001:db8::1]:80 HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\
             Proxy-Authorization: Basic bWU6c2VjcmV0\r\n\r\n"
        );
        assert_eq!(rest, b"hello", "the tunnel's own");
    }

    #[tokio::test]
    async fn refusals() {
        for (answer, kind) in [
            (
                &b"HTTP/1.1 407 Who?\r\n\r\n"[..],
                ErrorKind::PermissionDenied,
            ),
            (b"HTTP/1.0 502 Bad\r\n\r\n", ErrorKind::HostUnreachable),
            (b"HTTP/1.1 504 Late\r\n\r\n", ErrorKind::TimedOut),
            (b"HTTP/1.1 400 No\r\n\r\n", ErrorKind::ConnectionRefused),
            (b"HTTP/1.1 abc\r\n\r\n", ErrorKind::InvalidData),
            (b"SSH-2.0-x\r\n\r\n", ErrorKind::InvalidData),
            (b"HTTP/1.1 200 OK\r\n", ErrorKind::UnexpectedEof),
            (b"HTTP/1.", ErrorKind::UnexpectedEof),
        ] {
            let (out, ..) = answered(answer, None).await;
            assert_eq!(out.unwrap_err().kind(), kind);
        }
        let mut long = b"HTTP/1.1 200 OK\r\n".to_vec();
        long.resize(LONGEST + 10, b'x');
        let (out, ..) = answered(Box::leak(long.into_boxed_slice()), None).await;
        assert_eq!(out.unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
