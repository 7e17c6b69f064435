//! The functions of the table. All of them are `unsafe` for the same reason: they rely on
//! packetdrill's contract (see the parent module).
#![allow(
    clippy::missing_safety_doc,
    reason = "one contract, stated in the parent module"
)]

use std::ffi::{c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::ptr;
use std::slice;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};
use perimeter_base::Time;

use super::CURRENT;
use super::raw::{
    MOST_PARTS, address_in, address_out, count, length, option_out, part, placeholder,
    queue_control, receive, receive_one, shell, status, transmit, with_placeholder,
};
use crate::backend::Errno;
use crate::options;
use crate::shell::{PollFd, Shell};

/// What `gettimeofday` shows at virtual time zero, in seconds since 1970.
const EPOCH_SECONDS: i64 = 1_000_000_000;
/// Linux's queue ioctls.
const SIOCOUTQNSD: c_ulong = 0x894b;
/// Most bytes that one splice moves.
const SPLICE_AT_MOST: usize = 65_536;

pub unsafe extern "C" fn free(ud: *mut c_void) {
    *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = None;
    // Descriptors stay: packetdrill has closed some of them through libc, and their numbers may
    // be somebody else's by now.
    // SAFETY: gives back the count that `interface_of` took.
    drop(unsafe { Arc::from_raw(ud.cast::<Shell>()) });
}

pub unsafe extern "C" fn socket(
    ud: *mut c_void,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    // SAFETY: packetdrill's contract.
    let shell = unsafe { shell(ud) };
    let made = with_placeholder(|fd| shell.open(fd, domain, kind, protocol));
    count(made.map(|(fd, ())| fd))
}

pub unsafe extern "C" fn bind(
    ud: *mut c_void,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: packetdrill's contract.
    let (shell, addr) = unsafe { (shell(ud), address_in(addr, len)) };
    status(addr.and_then(|addr| shell.bind(fd, addr)))
}

pub unsafe extern "C" fn listen(ud: *mut c_void, fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: packetdrill's contract.
    status(unsafe { shell(ud) }.listen(fd, backlog))
}

pub unsafe extern "C" fn accept(
    ud: *mut c_void,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: packetdrill's contract.
    let shell = unsafe { shell(ud) };
    let made = with_placeholder(|new_fd| shell.accept(fd, new_fd));
    count(made.map(|(fd, peer)| {
        // SAFETY: packetdrill's contract.
        unsafe { address_out(peer, addr, len) };
        fd
    }))
}

pub unsafe extern "C" fn connect(
    ud: *mut c_void,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: packetdrill's contract.
    let (shell, addr) = unsafe { (shell(ud), address_in(addr, len)) };
    status(addr.and_then(|addr| shell.connect(fd, addr)))
}

pub unsafe extern "C" fn read(ud: *mut c_void, fd: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    // SAFETY: packetdrill's contract; other descriptors are the kernel's.
    unsafe {
        let shell = shell(ud);
        if !shell.owns(fd) {
            return libc::read(fd, buf, len);
        }
        receive_one(shell, fd, buf, len, 0)
    }
}

pub unsafe extern "C" fn readv(ud: *mut c_void, fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    // SAFETY: packetdrill's contract; other descriptors are the kernel's.
    unsafe {
        let shell = shell(ud);
        if !shell.owns(fd) {
            return libc::readv(fd, iov, n);
        }
        receive(shell, fd, iov, n, 0)
    }
}

pub unsafe extern "C" fn recv(
    ud: *mut c_void,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: packetdrill's contract.
    unsafe { receive_one(shell(ud), fd, buf, len, flags) }
}

pub unsafe extern "C" fn recvfrom(
    ud: *mut c_void,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    _addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: packetdrill's contract.
    unsafe {
        let n = receive_one(shell(ud), fd, buf, len, flags);
        // A connected socket names no source.
        if n >= 0 && !addr_len.is_null() {
            *addr_len = 0;
        }
        n
    }
}

pub unsafe extern "C" fn recvmsg(
    ud: *mut c_void,
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    if msg.is_null() {
        return length(Err(Errno(libc::EFAULT)));
    }
    // SAFETY: packetdrill's contract.
    unsafe {
        let shell = shell(ud);
        let n = c_int::try_from((*msg).msg_iovlen).unwrap_or(c_int::MAX);
        if n > MOST_PARTS {
            return length(Err(Errno(libc::EMSGSIZE)));
        }
        let got = receive(shell, fd, (*msg).msg_iov, n, flags);
        if got >= 0 {
            (*msg).msg_namelen = 0;
            (*msg).msg_flags = 0;
            queue_control(shell, fd, &mut *msg);
        }
        got
    }
}

pub unsafe extern "C" fn write(
    ud: *mut c_void,
    fd: c_int,
    buf: *const c_void,
    len: usize,
) -> ssize_t {
    // SAFETY: packetdrill's contract; other descriptors are the kernel's.
    unsafe {
        let shell = shell(ud);
        if !shell.owns(fd) {
            return libc::write(fd, buf, len);
        }
        transmit(shell, fd, &part(buf, len), 1, 0)
    }
}

pub unsafe extern "C" fn writev(
    ud: *mut c_void,
    fd: c_int,
    iov: *const iovec,
    n: c_int,
) -> ssize_t {
    // SAFETY: packetdrill's contract; other descriptors are the kernel's.
    unsafe {
        let shell = shell(ud);
        if !shell.owns(fd) {
            return libc::writev(fd, iov, n);
        }
        transmit(shell, fd, iov, n, 0)
    }
}

pub unsafe extern "C" fn send(
    ud: *mut c_void,
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: packetdrill's contract.
    unsafe { transmit(shell(ud), fd, &part(buf, len), 1, flags) }
}

/// The address is not looked at: on a TCP socket it only matters to fast open.
pub unsafe extern "C" fn sendto(
    ud: *mut c_void,
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    _addr: *const sockaddr,
    _addr_len: socklen_t,
) -> ssize_t {
    // SAFETY: packetdrill's contract.
    unsafe { transmit(shell(ud), fd, &part(buf, len), 1, flags) }
}

pub unsafe extern "C" fn sendmsg(
    ud: *mut c_void,
    fd: c_int,
    msg: *const msghdr,
    flags: c_int,
) -> ssize_t {
    if msg.is_null() {
        return length(Err(Errno(libc::EFAULT)));
    }
    // SAFETY: packetdrill's contract.
    unsafe {
        let n = c_int::try_from((*msg).msg_iovlen).unwrap_or(c_int::MAX);
        if n > MOST_PARTS {
            return length(Err(Errno(libc::EMSGSIZE)));
        }
        transmit(shell(ud), fd, (*msg).msg_iov, n, flags)
    }
}

pub unsafe extern "C" fn fcntl(ud: *mut c_void, fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    // SAFETY: packetdrill's contract.
    let shell = unsafe { shell(ud) };
    let Ok(socket) = shell.socket(fd) else {
        // SAFETY: packetdrill passes no pointer here; the kernel checks the rest.
        return unsafe { libc::fcntl(fd, cmd, arg) };
    };
    count(match cmd {
        libc::F_GETFL => Ok(libc::O_RDWR
            | if socket.is_nonblocking() {
                libc::O_NONBLOCK
            } else {
                0
            }),
        libc::F_SETFL => {
            socket.set_nonblocking(arg as c_int & libc::O_NONBLOCK != 0);
            Ok(0)
        }
        // Descriptor flags are the placeholder's.
        // SAFETY: no pointers.
        libc::F_GETFD | libc::F_SETFD => return unsafe { libc::fcntl(fd, cmd, arg) },
        _ => Err(Errno(libc::EINVAL)),
    })
}

pub unsafe extern "C" fn ioctl(
    ud: *mut c_void,
    fd: c_int,
    request: c_ulong,
    value: *mut c_int,
) -> c_int {
    // SAFETY: packetdrill's contract.
    let shell = unsafe { shell(ud) };
    let Ok(socket) = shell.socket(fd) else {
        // SAFETY: the same call, passed on.
        return unsafe { libc::ioctl(fd, request, value) };
    };
    let queue = match request {
        libc::FIONREAD => shell.backend().memory(socket.id).map(|m| m.readable),
        libc::TIOCOUTQ => shell.backend().memory(socket.id).map(|m| m.unacknowledged),
        SIOCOUTQNSD => shell.backend().memory(socket.id).map(|m| m.unsent),
        libc::FIONBIO if !value.is_null() => {
            // SAFETY: not null, so an int by ioctl's contract.
            socket.set_nonblocking(unsafe { *value } != 0);
            return 0;
        }
        _ => Err(Errno(libc::ENOTTY)),
    };
    status(queue.and_then(|bytes| {
        if socket.is_listening() {
            return Err(Errno(libc::EINVAL));
        }
        if value.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: not null, so valid.
        unsafe { *value = c_int::try_from(bytes).unwrap_or(c_int::MAX) };
        Ok(())
    }))
}

pub unsafe extern "C" fn close(ud: *mut c_void, fd: c_int) -> c_int {
    // SAFETY: packetdrill's contract.
    let shell = unsafe { shell(ud) };
    let result = if shell.owns(fd) {
        shell.close(fd)
    } else {
        Ok(())
    };
    // SAFETY: the caller gives the descriptor up.
    let closed = unsafe { libc::close(fd) };
    match result {
        Ok(()) => closed,
        Err(error) => status(Err(error)),
    }
}

pub unsafe extern "C" fn shutdown(ud: *mut c_void, fd: c_int, how: c_int) -> c_int {
    // SAFETY: packetdrill's contract.
    status(unsafe { shell(ud) }.shutdown(fd, how))
}

pub unsafe extern "C" fn getsockopt(
    ud: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: packetdrill's contract.
    unsafe { option_out(shell(ud), fd, level, name, value, len) }
}

pub unsafe extern "C" fn setsockopt(
    ud: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: packetdrill's contract.
    let shell = unsafe { shell(ud) };
    let Ok(len) = usize::try_from(len.cast_signed()) else {
        return status(Err(Errno(libc::EINVAL)));
    };
    if value.is_null() && len > 0 {
        return status(Err(Errno(libc::EFAULT)));
    }
    let bytes = match len {
        0 => &[],
        // SAFETY: not null, so valid for `len` bytes.
        _ => unsafe { slice::from_raw_parts(value.cast(), len) },
    };
    let socket = shell.socket(fd);
    status(socket.and_then(|socket| options::set(shell, &socket, level, name, bytes)))
}

pub unsafe extern "C" fn poll(
    ud: *mut c_void,
    fds: *mut libc::pollfd,
    n: libc::nfds_t,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: packetdrill's contract.
    let shell = unsafe { shell(ud) };
    if fds.is_null() && n > 0 {
        return status(Err(Errno(libc::EFAULT)));
    }
    let fds = match n as usize {
        0 => &mut [],
        // SAFETY: not null, so valid for `n` elements.
        n => unsafe { slice::from_raw_parts_mut(fds, n) },
    };
    let mut ours: Vec<PollFd> = fds
        .iter()
        .map(|p| PollFd {
            fd: p.fd,
            events: p.events,
            revents: 0,
        })
        .collect();
    let result = shell.poll(&mut ours, timeout_ms, |other| {
        let mut one = libc::pollfd {
            fd: other.fd,
            events: other.events,
            revents: 0,
        };
        // SAFETY: one element, on this stack; it doesn't wait.
        unsafe { libc::poll(&raw mut one, 1, 0) };
        one.revents
    });
    for (theirs, ours) in fds.iter_mut().zip(&ours) {
        theirs.revents = ours.revents;
    }
    count(result.map(|n| n as c_int))
}

pub unsafe extern "C" fn netdev_send(ud: *mut c_void, packet: *const c_void, len: usize) -> c_int {
    if packet.is_null() {
        return status(Err(Errno(libc::EFAULT)));
    }
    // SAFETY: packetdrill's contract.
    let (shell, packet) = unsafe { (shell(ud), slice::from_raw_parts(packet.cast(), len)) };
    shell.inject(packet);
    0
}

pub unsafe extern "C" fn netdev_receive(
    ud: *mut c_void,
    buf: *mut c_void,
    len: *mut usize,
    time_us: *mut c_longlong,
) -> c_int {
    // SAFETY: packetdrill's contract.
    let shell = unsafe { shell(ud) };
    let found = shell.next_packet();
    // SAFETY: packetdrill's contract: both valid, `buf` for `*len` bytes.
    unsafe {
        match found {
            Some(emitted) if emitted.packet.len() <= *len => {
                ptr::copy_nonoverlapping(emitted.packet.as_ptr(), buf.cast(), emitted.packet.len());
                *len = emitted.packet.len();
                *time_us = EPOCH_SECONDS * 1_000_000 + emitted.at.micros().cast_signed();
            }
            // An empty packet fails the script; an error would make packetdrill ask for ever.
            _ => {
                *len = 0;
                *time_us = EPOCH_SECONDS * 1_000_000 + shell.backend().now().micros().cast_signed();
                eprintln!("perimeter: no packet comes any more");
            }
        }
    }
    0
}

pub unsafe extern "C" fn usleep(ud: *mut c_void, us: c_uint) -> c_int {
    // SAFETY: packetdrill's contract.
    unsafe { shell(ud) }.pass(Duration::from_micros(us.into()));
    0
}

pub unsafe extern "C" fn gettimeofday(
    ud: *mut c_void,
    tv: *mut libc::timeval,
    _tz: *mut c_void,
) -> c_int {
    // SAFETY: packetdrill's contract.
    let now: Time = unsafe { shell(ud) }.read_clock();
    if !tv.is_null() {
        let us = now.micros();
        // SAFETY: not null, so valid.
        unsafe {
            tv.write(libc::timeval {
                tv_sec: EPOCH_SECONDS + (us / 1_000_000).cast_signed(),
                tv_usec: (us % 1_000_000).cast_signed(),
            });
        }
    }
    0
}

pub unsafe extern "C" fn epoll_create(ud: *mut c_void, size: c_int) -> c_int {
    // SAFETY: packetdrill's contract.
    let shell = unsafe { shell(ud) };
    if size <= 0 {
        return count(Err(Errno(libc::EINVAL)));
    }
    count(placeholder().inspect(|&fd| shell.epoll_create(fd)))
}

pub unsafe extern "C" fn epoll_ctl(
    ud: *mut c_void,
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: packetdrill's contract.
    let (shell, event) = unsafe {
        let event = (!event.is_null()).then(|| event.read_unaligned());
        (shell(ud), event)
    };
    status(shell.epoll_ctl(epfd, op, fd, event.map(|e| (e.events, e.u64))))
}

pub unsafe extern "C" fn epoll_wait(
    ud: *mut c_void,
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: packetdrill's contract.
    let shell = unsafe { shell(ud) };
    if events.is_null() {
        return status(Err(Errno(libc::EFAULT)));
    }
    count(shell.epoll_wait(epfd, most, timeout_ms).map(|ready| {
        for (at, &(bits, data)) in ready.iter().enumerate() {
            let event = libc::epoll_event {
                events: bits,
                u64: data,
            };
            // SAFETY: valid for `most` elements, of which `epoll_wait` gives no more.
            unsafe { events.add(at).write_unaligned(event) };
        }
        ready.len() as c_int
    }))
}

pub unsafe extern "C" fn pipe(_ud: *mut c_void, fds: *mut c_int) -> c_int {
    // SAFETY: packetdrill's contract: room for two.
    unsafe { libc::pipe(fds) }
}

/// Between one of our sockets and a pipe; the bytes are copied. The offsets are for files and
/// not looked at.
pub unsafe extern "C" fn splice(
    ud: *mut c_void,
    fd_in: c_int,
    _off_in: *mut libc::loff_t,
    fd_out: c_int,
    _off_out: *mut libc::loff_t,
    len: usize,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: packetdrill's contract.
    let shell = unsafe { shell(ud) };
    let mut buf = vec![0u8; len.min(SPLICE_AT_MOST)];
    let wait = if flags & libc::SPLICE_F_NONBLOCK != 0 {
        libc::MSG_DONTWAIT
    } else {
        0
    };
    if shell.owns(fd_in) {
        let bufs = &mut [IoSliceMut::new(&mut buf)];
        let n = match shell.recv(fd_in, bufs, wait | libc::MSG_PEEK) {
            Ok(n) => n,
            Err(error) => return length(Err(error)),
        };
        // SAFETY: `n` bytes of our own buffer.
        let moved = unsafe { libc::write(fd_out, buf.as_ptr().cast(), n) };
        let Ok(taken) = usize::try_from(moved) else {
            return moved;
        };
        let bufs = &mut [IoSliceMut::new(&mut buf[..taken])];
        return match taken {
            0 => 0,
            _ => length(shell.recv(fd_in, bufs, libc::MSG_DONTWAIT)),
        };
    }
    if shell.owns(fd_out) {
        // SAFETY: our own buffer.
        let n = unsafe { libc::read(fd_in, buf.as_mut_ptr().cast(), buf.len()) };
        let Ok(n) = usize::try_from(n) else { return n };
        let more = if flags & libc::SPLICE_F_MORE != 0 {
            libc::MSG_MORE
        } else {
            0
        };
        return length(shell.send(fd_out, &mut [IoSlice::new(&buf[..n])], more));
    }
    // SAFETY: no pointers that matter: pipes have no offset.
    unsafe { libc::splice(fd_in, ptr::null_mut(), fd_out, ptr::null_mut(), len, flags) }
}
