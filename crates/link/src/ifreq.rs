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
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_INET, kind, 0) };
    check(fd)?;
    // SAFETY: the call has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

/// A request of ethtool's that takes and gives one number.
pub(crate) fn ethtool(name: &str, cmd: u32, data: u32) -> io::Result<u32> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let socket = control_socket()?;
    let mut value = EthtoolValue { cmd, data };
    let mut req = IfReq::new(name)?;
    let at = (&raw mut value).expose_provenance().to_ne_bytes();
    req.data[..at.len()].copy_from_slice(&at);
    // SAFETY: the request takes a `struct ifreq` whose data is a pointer to a `struct
    // ethtool_value`, which is valid for reads and writes during the call, as all the requests
    // made by this take one.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut req) })?;
    Ok(value.data)
}
