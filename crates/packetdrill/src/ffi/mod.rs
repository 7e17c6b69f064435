//! The C side: packetdrill's structure of functions, raw pointers, errno.
//!
//! Everything `unsafe` of the adapter is in this module. What packetdrill owes us, and what each
//! `SAFETY` comment means by "packetdrill's contract": `userdata` is the pointer that
//! [`packetdrill_interface_init`] stored and is not used after `free`; other pointers are null or
//! valid for the sizes that POSIX gives for the call, and not shared with another thread.

mod calls;
mod raw;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use std::sync::{Arc, PoisonError, RwLock};

use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};

use calls::*;

use crate::flags::Flags;
use crate::shell::Shell;

/// The structure that packetdrill hands over to be filled, field for field.
#[repr(C)]
#[allow(clippy::type_complexity, reason = "the C types of the calls")]
pub struct Interface {
    userdata: *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    socket: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int) -> c_int,
    bind: unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    listen: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    accept: unsafe extern "C" fn(*mut c_void, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    connect: unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    read: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, usize) -> ssize_t,
    readv: unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    recv: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, usize, c_int) -> ssize_t,
    recvfrom: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut c_void,
        usize,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    recvmsg: unsafe extern "C" fn(*mut c_void, c_int, *mut msghdr, c_int) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize) -> ssize_t,
    writev: unsafe extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    send: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize, c_int) -> ssize_t,
    sendto: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *const c_void,
        usize,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    sendmsg: unsafe extern "C" fn(*mut c_void, c_int, *const msghdr, c_int) -> ssize_t,
    // Variadic on the caller's side; the ABIs that we support pass these the same way.
    fcntl: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_long) -> c_int,
    ioctl: unsafe extern "C" fn(*mut c_void, c_int, c_ulong, *mut c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    shutdown: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    getsockopt: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        c_int,
        c_int,
        *mut c_void,
        *mut socklen_t,
    ) -> c_int,
    setsockopt:
        unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    poll: unsafe extern "C" fn(*mut c_void, *mut libc::pollfd, libc::nfds_t, c_int) -> c_int,
    netdev_send: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int,
    netdev_receive:
        unsafe extern "C" fn(*mut c_void, *mut c_void, *mut usize, *mut c_longlong) -> c_int,
    usleep: unsafe extern "C" fn(*mut c_void, c_uint) -> c_int,
    gettimeofday: unsafe extern "C" fn(*mut c_void, *mut libc::timeval, *mut c_void) -> c_int,
    epoll_create: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    epoll_ctl:
        unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *mut libc::epoll_event) -> c_int,
    epoll_wait:
        unsafe extern "C" fn(*mut c_void, c_int, *mut libc::epoll_event, c_int, c_int) -> c_int,
    pipe: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int,
    splice: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut libc::loff_t,
        c_int,
        *mut libc::loff_t,
        usize,
        c_uint,
    ) -> ssize_t,
}

/// The shell that the preloaded `getsockopt` asks; there is one at a time.
static CURRENT: RwLock<Option<Arc<Shell>>> = RwLock::new(None);

/// packetdrill's entry point: fills `interface`. Bad flags end the process with status 2 and one
/// line, since the call has no result.
///
/// # Safety
/// `flags` is null or a C string, `interface` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    interface: *mut Interface,
) {
    let text = if flags.is_null() {
        ""
    } else {
        // SAFETY: not null, and then a C string by the caller's promise.
        unsafe { CStr::from_ptr(flags) }
            .to_str()
            .unwrap_or("flags=\u{fffd}")
    };
    let made = Flags::parse(text).and_then(|flags| Ok((crate::make_backend(&flags)?, flags.limit)));
    let shell = match made {
        Ok((backend, limit)) => Arc::new(Shell::new(backend, limit)),
        Err(why) => {
            eprintln!("perimeter: {why}");
            std::process::exit(2);
        }
    };
    let table = interface_of(shell);
    // SAFETY: valid for writes by the caller's promise.
    unsafe { interface.write(table) }
}

/// The table for `shell`, which becomes the one that the preloaded `getsockopt` asks.
fn interface_of(shell: Arc<Shell>) -> Interface {
    *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = Some(shell.clone());
    Interface {
        userdata: Arc::into_raw(shell).cast_mut().cast(),
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    }
}

/// libc's `getsockopt`, for whoever preloads this object: ours for our descriptors, the kernel's
/// for all others.
///
/// # Safety
/// As getsockopt(2): `value` and `len` are null or valid for what they say.
#[cfg(not(test))]
#[unsafe(export_name = "getsockopt")]
pub unsafe extern "C" fn preloaded_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let shell = CURRENT
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    match shell {
        // SAFETY: the pointers are as getsockopt(2) wants them, by the caller's promise.
        Some(shell) if shell.owns(fd) => unsafe {
            raw::option_out(&shell, fd, level, name, value, len)
        },
        // SAFETY: the same promise, passed on to the kernel; not through libc, whose symbol this
        // function hides.
        _ => unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) as c_int },
    }
}
