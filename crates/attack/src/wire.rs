//! Raw frames on the kernel's side of the TAP interface.

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

fn link(name: &str) -> io::Result<LinkAddr> {
    let mut all = getifaddrs()?.filter(|a| a.interface_name == name);
    all.find_map(|a| a.address?.as_link_addr().copied())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no interface {name}")))
}

/// A socket that only sends: nothing that passes is copied for it.
pub struct Sender {
    fd: OwnedFd,
}

impl Sender {
    /// Opens it on the interface `name` of the calling thread's namespace.
    ///
    /// # Errors
    /// Without privilege, or such an interface.
    pub fn open(name: &str) -> io::Result<Sender> {
        let fd = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        bind(fd.as_raw_fd(), &link(name)?)?;
        Ok(Sender { fd })
    }

    /// Sends a whole frame. Whether it went: a full queue drops it, as a wire would.
    pub fn send(&self, frame: &[u8]) -> bool {
        send(self.fd.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT).is_ok()
    }
}

/// A socket that hears what comes out of the victim in IPv4. Each frame is copied for it, in
/// the victim's system call: open it only for as long as needed.
pub struct Ear {
    fd: OwnedFd,
}

impl Ear {
    /// Opens it on the interface `name` of the calling thread's namespace.
    ///
    /// # Errors
    /// Without privilege, or such an interface.
    pub fn open(name: &str) -> io::Result<Ear> {
        let fd = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::EthIp,
        )?;
        bind(fd.as_raw_fd(), &link(name)?)?;
        // Room for the answers to a flood, among which are those that are waited for.
        setsockopt(&fd, sockopt::RcvBufForce, &(64 << 20))?;
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(0, 1000))?;
        Ok(Ear { fd })
    }

    /// The next frame, if one comes within a millisecond.
    pub fn next<'a>(&self, buf: &'a mut [u8]) -> Option<&'a [u8]> {
        match recv(self.fd.as_raw_fd(), buf, MsgFlags::empty()) {
            Ok(n) => Some(&buf[..n.min(buf.len())]),
            Err(_) => None,
        }
    }
}

/// Waits so that what is done keeps to a rate.
pub struct Pace {
    start: std::time::Instant,
    rate: f64,
    done: u64,
}

impl Pace {
    /// So many a second, from now on.
    pub fn new(rate: u64) -> Pace {
        Pace {
            start: std::time::Instant::now(),
            rate: rate as f64,
            done: 0,
        }
    }

    /// How many are due now, at most 50 ms' worth: what the machine had no time for is not made
    /// up. Sleeps for a little if none is.
    pub fn due(&mut self) -> u64 {
        let due = (self.start.elapsed().as_secs_f64() * self.rate) as u64;
        let most = ((self.rate / 20.0) as u64).max(1);
        if due <= self.done {
            std::thread::sleep(Duration::from_micros(500));
            return 0;
        }
        let n = (due - self.done).min(most);
        self.done = due;
        n
    }
}
