//! What is behind the gateway: servers in a namespace of their own.

use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::Sender;
use std::thread;

/// Where they listen.
pub const PORT: u16 = 7_000;
/// Where nothing is answered.
pub const GONE: u16 = 7_777;
/// What a connection is for: its first byte.
pub const ECHO: u8 = b'E';
pub const RESET: u8 = b'R';
pub const WAIT: u8 = b'W';
pub const SOURCE: u8 = b'S';
pub const SINK: u8 = b'D';
/// What the resolver says.
pub const DNS_ANSWER: &[u8] = b"an answer";

/// So many bytes that no two blocks repeat.
pub fn pattern(n: u64) -> impl Read {
    Pattern(0).take(n)
}

struct Pattern(u64);

impl Read for Pattern {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        for b in buf.iter_mut() {
            *b = (self.0 ^ self.0 >> 8 ^ self.0 >> 17) as u8;
            self.0 += 1;
        }
        Ok(buf.len())
    }
}

fn serve(mut s: TcpStream, tell: &Sender<&'static str>) -> std::io::Result<()> {
    let mut first = [0];
    s.read_exact(&mut first)?;
    match first[0] {
        ECHO => {
            std::io::copy(&mut s.try_clone()?, &mut s)?;
        }
        RESET => super::world::reset(s),
        WAIT => {
            let how = match s.read(&mut first) {
                Ok(0) => "end",
                Err(e) if e.kind() == ErrorKind::ConnectionReset => "reset",
                _ => "something else",
            };
            let _ = tell.send(how);
        }
        SOURCE => {
            let mut n = [0; 8];
            s.read_exact(&mut n)?;
            std::io::copy(&mut pattern(u64::from_be_bytes(n)), &mut s)?;
        }
        SINK => {
            let (mut sum, mut buf) = (Sha256::new(), vec![0; 1 << 16]);
            loop {
                match s.read(&mut buf)? {
                    0 => break,
                    n => sum.update(&buf[..n]),
                }
            }
            s.write_all(&sum.finalize())?;
        }
        _ => {}
    }
    Ok(())
}

/// Starts them all at `addr`; what those that wait have heard goes to `tell`.
pub fn start(addr: IpAddr, tell: &Sender<&'static str>) {
    let l = TcpListener::bind((addr, PORT)).expect("a listener");
    let tell = tell.clone();
    thread::spawn(move || {
        for s in l.incoming().flatten() {
            let tell = tell.clone();
            let small = thread::Builder::new().stack_size(1 << 17);
            // Its end is the peer's to see.
            let _ = small.spawn(move || serve(s, &tell));
        }
    });
    let echo = UdpSocket::bind((addr, PORT)).expect("a socket");
    thread::spawn(move || {
        let mut buf = vec![0; 65_536];
        while let Ok((n, from)) = echo.recv_from(&mut buf) {
            let _ = echo.send_to(&buf[..n], from);
        }
    });
    let whoami = UdpSocket::bind((addr, PORT + 1)).expect("a socket");
    thread::spawn(move || {
        while let Ok((_, from)) = whoami.recv_from(&mut [0; 100]) {
            let _ = whoami.send_to(from.to_string().as_bytes(), from);
        }
    });
    let dns = UdpSocket::bind((addr, 5300)).expect("a socket");
    thread::spawn(move || {
        while let Ok((_, from)) = dns.recv_from(&mut [0; 100]) {
            let _ = dns.send_to(DNS_ANSWER, from);
        }
    });
}
