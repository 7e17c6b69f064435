//! Waiting for a stack in a poll of the host's: descriptors that become readable when a stack
//! that has no threads of its own has something to do.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

fn made(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A bell that can be rung now or for a time from now.
#[derive(Debug)]
pub struct Bell {
    event: OwnedFd,
    timer: OwnedFd,
}

impl Bell {
    /// One that is silent.
    ///
    /// # Errors
    /// There are too many descriptors.
    pub fn new() -> io::Result<Bell> {
        // SAFETY: no memory is passed.
        let event = made(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: no memory is passed.
        let timer = made(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        Ok(Bell { event, timer })
    }

    /// Makes it readable until [`Bell::lower`].
    pub fn raise(&self) {
        let one = 1u64;
        // SAFETY: reads the eight bytes of `one`. Refused when it has been rung 2^64 − 2 times:
        // then it is readable.
        let _ = unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Silences it; what [`Bell::after`] has set stays set, unless it has passed.
    pub fn lower(&self) {
        for fd in [&self.event, &self.timer] {
            let mut count = 0u64;
            // SAFETY: writes at most the eight bytes of `count`. Refused where it is silent.
            let _ = unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
    }

    /// Makes it readable after `ns`, and not before by time; `None`: not at all.
    pub fn after(&self, ns: Option<u64>) {
        // All zero would mean never.
        let ns = ns.map_or(0, |ns| ns.max(1));
        let mut spec: libc::itimerspec = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
        };
        spec.it_value.tv_sec = (ns / 1_000_000_000) as libc::time_t;
        spec.it_value.tv_nsec = (ns % 1_000_000_000) as libc::c_long;
        // SAFETY: `spec` is read during the call; no place for the old value is given.
        unsafe {
            libc::timerfd_settime(
                self.timer.as_raw_fd(),
                0,
                &raw const spec,
                core::ptr::null_mut(),
            )
        };
    }

    /// What becomes readable.
    pub fn fds(&self) -> [RawFd; 2] {
        [self.event.as_raw_fd(), self.timer.as_raw_fd()]
    }
}

/// A descriptor that is readable while any of `fds` is. They are to outlive it; one that does not
/// falls off by itself.
///
/// # Errors
/// There are too many descriptors, or one of these can't be waited for.
pub fn any_of(fds: &[RawFd]) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let epoll = made(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    for fd in fds {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: `event` is read during the call.
        let r =
            unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, *fd, &raw mut event) };
        if r != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(epoll)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn readable(fd: &OwnedFd, ms: i32) -> bool {
        let mut p = libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, which the kernel writes to during the call.
        unsafe { libc::poll(&raw mut p, 1, ms) == 1 }
    }

    #[test]
    fn a_bell_rings_at_once_or_later() {
        let bell = Bell::new().unwrap();
        let all = any_of(&bell.fds()).unwrap();
        assert!(!readable(&all, 0));
        bell.raise();
        bell.raise();
        assert!(readable(&all, 0));
        bell.lower();
        assert!(!readable(&all, 0));
        bell.after(Some(20_000_000));
        assert!(!readable(&all, 0));
        assert!(readable(&all, 10_000));
        bell.lower();
        assert!(!readable(&all, 0));
        bell.after(Some(0));
        assert!(readable(&all, 1000));
        bell.after(None);
        assert!(!readable(&all, 0));
    }
}
