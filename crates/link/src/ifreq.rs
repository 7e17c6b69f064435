//! Requests about interfaces of the host: the system calls behind [`host`](crate::host) and TAP.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of an interface name with its terminating zero.
const NAME: usize = libc::IFNAMSIZ;

/// `struct ifreq`: a name and 24 bytes whose meaning depends on the request.
#[repr(C)]
pub(crate) struct IfReq {
    name: [u8; NAME],
    pub data: [u8; 24],
}

const _: () = assert!(size_of::<IfReq>() == size_of::<libc::ifreq>());

impl IfReq {
    /// A request about the interface `name`.
    pub(crate) fn new(name: &str) -> io::Result<IfReq> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.len() >= NAME || bytes.contains(&0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut req = IfReq {
            name: [0; NAME],
            data: [0; 24],
        };
        req.name[..bytes.len()].copy_from_slice(bytes);
        Ok(req)
    }

    pub(crate) fn name(&self) -> String {
        let end = self.name.iter().position(|&b| b == 0).unwrap_or(NAME);
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }
}

/// Whether an interface can have that name.
pub(crate) fn is_name(name: &str) -> bool {
    let bad = |b: u8| b == b'/' || b == 0 || b.is_ascii_whitespace();
    let dots = name == "." || name == "..";
    !name.is_empty() && name.len() < NAME && !dots && !name.bytes().any(bad)
}

/// `ioctl` with a request that reads or writes an `IfReq`.
pub(crate) fn ifreq_ioctl(fd: c_int, request: libc::Ioctl, req: &mut IfReq) -> io::Result<()> {
    // SAFETY: all requests used in this crate take a `struct ifreq`, whose size and layout
    // `IfReq` has; it is valid for reads and writes during the call.
    check(unsafe { libc::ioctl(fd, request, std::ptr::from_mut(req)) })
}

/// The error behind a negative result.
pub(crate) fn check(result: c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A socket to make interface requests with.
pub(crate) fn control_socket() -> io::Result<OwnedFd> {
    socket_of(libc::AF_INET)
}

fn socket_of(family: c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(family, kind, 0) };
    check(fd)?;
    // SAFETY: the call has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `struct in6_ifreq`: what requests about addresses of IPv6 take.
#[repr(C)]
struct In6IfReq {
    addr: [u8; 16],
    prefix: u32,
    index: c_int,
}

const _: () = assert!(size_of::<In6IfReq>() == size_of::<libc::in6_ifreq>());

/// Gives the kernel an address of IPv6 on the interface of that number.
pub(crate) fn add_in6(index: c_int, addr: [u8; 16], prefix: u32) -> io::Result<()> {
    let socket = socket_of(libc::AF_INET6)?;
    let mut req = In6IfReq {
        addr,
        prefix,
        index,
    };
    // SAFETY: on a socket of this family the request takes a `struct in6_ifreq`, whose size and
    // layout `In6IfReq` has; it is valid for reads and writes during the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR, &raw mut req) })
}

/// A request of ethtool's that takes and gives one number.
pub(crate) fn ethtool(name: &str, cmd: u32, data: u32) -> io::Result<u32> {
    let mut value = [cmd, data];
    ethtool_words(name, &mut value)?;
    Ok(value[1])
}

/// A request of ethtool's with its argument, a struct of words whose first is the command. It has
/// as many as the command's struct.
fn ethtool_words(name: &str, words: &mut [u32]) -> io::Result<()> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let socket = control_socket()?;
    let mut req = IfReq::new(name)?;
    let at = words.as_mut_ptr().expose_provenance().to_ne_bytes();
    req.data[..at.len()].copy_from_slice(&at);
    // SAFETY: the request takes a `struct ifreq` whose data is a pointer to the command's struct,
    // which is valid for reads and writes during the call: all commands in this file have the
    // words of theirs.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut req) })
}

/// The name of the interface's driver, if it tells.
pub(crate) fn driver(name: &str) -> Option<String> {
    const ETHTOOL_GDRVINFO: u32 = 0x03;
    // `struct ethtool_drvinfo`: the command and 192 octets, of which the first 32 are the name.
    let mut words = [0u32; 49];
    words[0] = ETHTOOL_GDRVINFO;
    ethtool_words(name, &mut words).ok()?;
    let octets: Vec<u8> = words[1..9].iter().flat_map(|w| w.to_ne_bytes()).collect();
    let end = octets.iter().position(|&b| b == 0).unwrap_or(octets.len());
    Some(String::from_utf8_lossy(&octets[..end]).into_owned())
}

/// How many receive queues the interface has, if it tells.
pub(crate) fn receive_queues(name: &str) -> Option<u32> {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    // `struct ethtool_channels`: the most of rx, tx, other and combined, then how many there are.
    let mut words = [0u32; 9];
    words[0] = ETHTOOL_GCHANNELS;
    ethtool_words(name, &mut words).ok()?;
    Some(words[5] + words[8])
}
