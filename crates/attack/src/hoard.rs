//! Attacks by peers with a TCP of their own, the kernel's, that do not take what they asked for;
//! and the one that needs no ill will: many connections that the server closes.

use crate::client::request;
use crate::flood::Running;
use crate::handle::{ALIASES, alias};
use crate::victim::{PORT, VICTIM, op};
use crate::wire::Pace;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Connects from one of the kernel's addresses, with a receive buffer of that size if any.
fn connect_from(addr: Ipv4Addr, buffer: Option<usize>) -> io::Result<TcpStream> {
    let fd = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // Connecting takes the sending limit.
    setsockopt(&fd, sockopt::SendTimeout, &TimeVal::new(3, 0))?;
    setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(3, 0))?;
    if let Some(bytes) = buffer {
        setsockopt(&fd, sockopt::RcvBuf, &bytes)?;
    }
    bind(
        fd.as_raw_fd(),
        &SockaddrIn::from(SocketAddrV4::new(addr, 0)),
    )?;
    connect(
        fd.as_raw_fd(),
        &SockaddrIn::from(SocketAddrV4::new(VICTIM, PORT)),
    )?;
    Ok(TcpStream::from(fd))
}

/// Opens `peers` connections with small receive buffers and asks for a lot on each. `take` bytes
/// of each are read five times a second, none if it is 0.
fn greedy(peers: usize, what: impl Fn(usize) -> (u8, u32), take: usize) -> Running {
    let mut running = Running::new();
    let meter = running.meter();
    let end = Instant::now() + Duration::from_secs(20);
    let mut open = Vec::with_capacity(peers);
    for n in 0..peers {
        if Instant::now() > end {
            break;
        }
        let (op, len) = what(n);
        let Ok(mut s) = connect_from(alias(n as u8), Some(4096)) else {
            continue;
        };
        meter.frames.fetch_add(3, Ordering::Relaxed);
        if request(&mut s, op, len).is_ok() && s.set_nonblocking(true).is_ok() {
            open.push(s);
        }
    }
    running.thread(move |meter| {
        let mut buf = vec![0; take];
        while !meter.over() {
            for s in &mut open {
                if take > 0 && s.read(&mut buf).is_ok() {
                    meter.frames.fetch_add(1, Ordering::Relaxed);
                }
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    running
}

/// Peers that shut their window for good: half of them on an endless answer, half on one whose
/// socket the server drops.
pub fn zero_window(peers: usize) -> Running {
    let what = |n| {
        if n % 2 == 0 {
            (op::STREAM, 0)
        } else {
            (op::DROP, 200_000)
        }
    };
    greedy(peers, what, 0)
}

/// Peers that read 2.5 kB a second.
pub fn slow_readers(peers: usize) -> Running {
    greedy(peers, |_| (op::STREAM, 0), 512)
}

/// `rate` connections a second that the server closes, so that it has the TIME-WAIT; returns when
/// it has gone on for `length`.
pub fn closes(rate: u64, length: Duration) -> Running {
    const THREADS: u64 = 8;
    let mut running = Running::new();
    for t in 0..THREADS {
        running.thread(move |meter| {
            let mut pace = Pace::new((rate / THREADS).max(1));
            let mut n = t;
            while !meter.over() {
                for _ in 0..pace.due() {
                    n += THREADS;
                    let from = alias((n % u64::from(ALIASES)) as u8);
                    let once = || -> io::Result<()> {
                        let mut s = connect_from(from, None)?;
                        request(&mut s, op::DROP, 100)?;
                        let mut buf = [0; 128];
                        while s.read(&mut buf)? > 0 {}
                        Ok(())
                    };
                    let closed = once().is_ok();
                    meter.frames.fetch_add(u64::from(closed), Ordering::Relaxed);
                    if meter.over() {
                        break;
                    }
                }
            }
        });
    }
    std::thread::sleep(length);
    running
}
