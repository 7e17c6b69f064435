//! Between C's types and ours: addresses, vectors, results, options.

use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::ptr;
use std::slice;

use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};

use crate::backend::{Errno, Opt, Result};
use crate::options;
use crate::shell::Shell;

/// Most parts of one vectored call (`UIO_MAXIOV`).
pub const MOST_PARTS: c_int = 1024;
/// Most bytes that one discarding receive takes.
const DISCARD_AT_MOST: usize = 1 << 20;
/// Linux's control message of `TCP_INQ`.
const TCP_CM_INQ: c_int = 36;

/// The shell behind `userdata`.
///
/// # Safety
/// packetdrill's contract.
pub unsafe fn shell<'a>(userdata: *mut c_void) -> &'a Shell {
    // SAFETY: `userdata` came from `Arc::into_raw` in `interface_of` and its count is given back
    // by `free` only.
    unsafe { &*userdata.cast::<Shell>() }
}

pub fn set_errno(error: Errno) {
    // SAFETY: libc gives a valid pointer to this thread's errno.
    unsafe { *libc::__errno_location() = error.0 }
}

/// The C result of a call that gives no number.
pub fn status(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// The C result of a call that gives a length.
pub fn length(result: Result<usize>) -> ssize_t {
    match result {
        Ok(n) => ssize_t::try_from(n).unwrap_or(ssize_t::MAX),
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// The C result of a call that gives a small number.
pub fn count(result: Result<c_int>) -> c_int {
    match result {
        Ok(n) => n,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// A real descriptor that stands for one of ours: packetdrill keys its state by it and closes it
/// through libc in the end.
pub fn placeholder() -> Result<c_int> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(fd)
}

/// Opens a placeholder for what `make` puts behind it.
pub fn with_placeholder<T>(make: impl FnOnce(c_int) -> Result<T>) -> Result<(c_int, T)> {
    let fd = placeholder()?;
    make(fd).map(|made| (fd, made)).inspect_err(|_| {
        // SAFETY: our own descriptor, which nobody else knows yet.
        unsafe { libc::close(fd) };
    })
}

/// Reads a socket address.
///
/// # Safety
/// `addr` is null or valid for `len` bytes.
pub unsafe fn address_in(addr: *const sockaddr, len: socklen_t) -> Result<SocketAddr> {
    if addr.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let len = len as usize;
    if len < size_of::<libc::sa_family_t>() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: at least the family is there; packetdrill's storage is aligned for any address.
    let family = unsafe { (*addr).sa_family };
    match c_int::from(family) {
        libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: the family says so and the length is enough.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddr::new(ip, u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: the family says so and the length is enough.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Ok(SocketAddrV6::new(
                v6.sin6_addr.s6_addr.into(),
                u16::from_be(v6.sin6_port),
                v6.sin6_flowinfo,
                v6.sin6_scope_id,
            )
            .into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(Errno(libc::EINVAL)),
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

pub fn address_bytes(addr: SocketAddr) -> Vec<u8> {
    let mut out = Vec::with_capacity(28);
    let family = |f: c_int| (f as libc::sa_family_t).to_ne_bytes();
    match addr {
        SocketAddr::V4(v4) => {
            out.extend(family(libc::AF_INET));
            out.extend(v4.port().to_be_bytes());
            out.extend(v4.ip().octets());
            out.extend([0; 8]);
        }
        SocketAddr::V6(v6) => {
            out.extend(family(libc::AF_INET6));
            out.extend(v6.port().to_be_bytes());
            out.extend(v6.flowinfo().to_ne_bytes());
            out.extend(v6.ip().octets());
            out.extend(v6.scope_id().to_ne_bytes());
        }
    }
    out
}

/// Writes a socket address as accept(2) does: cut to the room, with its whole length.
///
/// # Safety
/// `len` is null or valid; `addr` is null or valid for `*len` bytes.
pub unsafe fn address_out(addr: SocketAddr, to: *mut sockaddr, len: *mut socklen_t) {
    if to.is_null() || len.is_null() {
        return;
    }
    let bytes = address_bytes(addr);
    // SAFETY: both valid by the caller's promise, and no more than `*len` bytes are written.
    unsafe {
        let room = (*len as usize).min(bytes.len());
        ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), room);
        *len = bytes.len() as socklen_t;
    }
}

/// The parts of a vectored call.
///
/// # Safety
/// `iov` is null or valid for `n` parts.
pub unsafe fn parts<'a>(iov: *const iovec, n: c_int) -> Result<&'a [iovec]> {
    let n = usize::try_from(n.min(MOST_PARTS + 1)).map_err(|_| Errno(libc::EINVAL))?;
    if n > MOST_PARTS as usize {
        return Err(Errno(libc::EINVAL));
    }
    if n == 0 {
        return Ok(&[]);
    }
    if iov.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: valid for `n` parts by the caller's promise.
    let parts = unsafe { slice::from_raw_parts(iov, n) };
    for part in parts {
        if part.iov_len > ssize_t::MAX as usize {
            return Err(Errno(libc::EINVAL));
        }
        if part.iov_base.is_null() && part.iov_len > 0 {
            return Err(Errno(libc::EFAULT));
        }
    }
    Ok(parts)
}

/// # Safety
/// Each part is valid for reads of its length.
pub unsafe fn readable<'a>(parts: &[iovec]) -> Vec<IoSlice<'a>> {
    let nonempty = parts.iter().filter(|part| part.iov_len > 0);
    nonempty
        // SAFETY: not null (checked by `parts`) and valid by the caller's promise.
        .map(|p| IoSlice::new(unsafe { slice::from_raw_parts(p.iov_base.cast(), p.iov_len) }))
        .collect()
}

/// # Safety
/// Each part is valid for writes of its length and initialised.
pub unsafe fn writable<'a>(parts: &[iovec]) -> Vec<IoSliceMut<'a>> {
    let nonempty = parts.iter().filter(|part| part.iov_len > 0);
    nonempty
        .map(|p| {
            // SAFETY: not null (checked by `parts`) and valid by the caller's promise.
            let buf = unsafe { slice::from_raw_parts_mut(p.iov_base.cast(), p.iov_len) };
            IoSliceMut::new(buf)
        })
        .collect()
}

// ---- receive and send, in their common forms ----

/// # Safety
/// packetdrill's contract.
pub unsafe fn receive(
    shell: &Shell,
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    flags: c_int,
) -> ssize_t {
    // SAFETY: packetdrill's contract.
    let parts = match unsafe { parts(iov, n) } {
        Ok(parts) => parts,
        Err(error) => return length(Err(error)),
    };
    // SAFETY: packetdrill's contract.
    let mut bufs = unsafe { writable(parts) };
    length(shell.recv(fd, &mut bufs, flags))
}

/// A receive into one buffer.
///
/// # Safety
/// packetdrill's contract.
pub unsafe fn receive_one(
    shell: &Shell,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    if buf.is_null() && flags & libc::MSG_TRUNC != 0 {
        // A TCP socket throws away what this flag asks for, so a null buffer is as good.
        let mut scratch = vec![0; len.min(DISCARD_AT_MOST)];
        return length(shell.recv(fd, &mut [IoSliceMut::new(&mut scratch)], flags));
    }
    // SAFETY: packetdrill's contract.
    unsafe { receive(shell, fd, &part(buf, len), 1, flags) }
}

/// # Safety
/// packetdrill's contract.
pub unsafe fn transmit(
    shell: &Shell,
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    flags: c_int,
) -> ssize_t {
    // SAFETY: packetdrill's contract.
    let parts = match unsafe { parts(iov, n) } {
        Ok(parts) => parts,
        Err(error) => return length(Err(error)),
    };
    // SAFETY: packetdrill's contract.
    let mut bufs = unsafe { readable(parts) };
    length(shell.send(fd, &mut bufs, flags))
}

pub fn part(base: *const c_void, len: usize) -> iovec {
    iovec {
        iov_base: base.cast_mut(),
        iov_len: len,
    }
}

/// # Safety
/// As getsockopt(2).
pub unsafe fn option_out(
    shell: &Shell,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if len.is_null() {
        return status(Err(Errno(libc::EFAULT)));
    }
    // SAFETY: not null, so valid.
    let room = unsafe { *len };
    // A length is a socklen_t in the call, an int to the kernel.
    let Ok(room) = usize::try_from(room.cast_signed()) else {
        return status(Err(Errno(libc::EINVAL)));
    };
    let result = shell
        .socket(fd)
        .and_then(|socket| options::get(shell, &socket, level, name, room))
        .and_then(|bytes| match value.is_null() && !bytes.is_empty() {
            true => Err(Errno(libc::EFAULT)),
            false => Ok(bytes),
        });
    status(result.map(|bytes| {
        // SAFETY: valid for `room` bytes by the caller's promise, of which `get` used no more;
        // null only when there is nothing to copy.
        unsafe {
            if !bytes.is_empty() {
                ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), bytes.len());
            }
            *len = bytes.len() as socklen_t;
        }
    }))
}

/// The control message of `TCP_INQ`, if it is on and there is room, else none.
///
/// # Safety
/// `msg_control` is null or valid for `msg_controllen` bytes.
pub unsafe fn queue_control(shell: &Shell, fd: c_int, msg: &mut msghdr) {
    let room = std::mem::replace(&mut msg.msg_controllen, 0);
    let Ok(socket) = shell.socket(fd) else { return };
    let backend = shell.backend();
    if !matches!(backend.option(socket.id, Opt::Inq), Ok(on) if on != 0) {
        return;
    }
    let Ok(memory) = backend.memory(socket.id) else {
        return;
    };
    // At the end of the stream one byte is announced, so that the reader comes for the zero.
    let ended = backend.readiness(socket.id).read_closed;
    let queued = memory.readable.max(u32::from(ended));
    // SAFETY: the sizes are checked against the room that the caller promises.
    unsafe {
        let space = libc::CMSG_SPACE(4) as usize;
        if msg.msg_control.is_null() || room < space {
            msg.msg_flags |= libc::MSG_CTRUNC;
            return;
        }
        let header = msg.msg_control.cast::<libc::cmsghdr>();
        header.write_unaligned(libc::cmsghdr {
            cmsg_len: libc::CMSG_LEN(4) as usize,
            cmsg_level: libc::SOL_TCP,
            cmsg_type: TCP_CM_INQ,
        });
        libc::CMSG_DATA(header)
            .cast::<u32>()
            .write_unaligned(queued);
        msg.msg_controllen = space;
    }
}
