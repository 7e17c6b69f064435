//! epoll sets over the sockets of the table, evaluated when somebody asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::backend::{Backend, Errno, Readiness, Result};
use crate::shell::Socket;

/// The bits of `poll`, which are those of epoll too.
pub fn poll_bits(ready: Readiness) -> u32 {
    let mut bits = 0;
    for (on, mask) in [
        (ready.readable, libc::POLLIN | libc::POLLRDNORM),
        (ready.writable, libc::POLLOUT | libc::POLLWRNORM),
        (ready.error, libc::POLLERR),
        (ready.hang_up, libc::POLLHUP),
        (ready.read_closed, libc::POLLRDHUP),
        (ready.urgent, libc::POLLPRI),
    ] {
        bits |= if on { mask as u32 } else { 0 };
    }
    bits
}

/// Bits that are reported without being asked for.
pub const ALWAYS: u32 = (libc::POLLERR | libc::POLLHUP) as u32;

const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;

/// One registration.
struct Interest {
    socket: Weak<Socket>,
    events: u32,
    data: u64,
    /// Cleared by a report under `EPOLLONESHOT`, set again by `EPOLL_CTL_MOD`.
    armed: bool,
    /// What the last evaluation saw, for edges.
    seen_bits: u32,
    seen_activity: (u64, u64),
    reported: bool,
}

/// The registrations of one epoll descriptor.
#[derive(Default)]
pub struct Set {
    interests: BTreeMap<i32, Interest>,
}

impl Set {
    /// `EPOLL_CTL_ADD`.
    pub fn add(&mut self, fd: i32, socket: &Arc<Socket>, events: u32, data: u64) -> Result<()> {
        self.interests
            .retain(|_, known| known.socket.strong_count() > 0);
        if self.interests.contains_key(&fd) {
            return Err(Errno(libc::EEXIST));
        }
        self.interests.insert(
            fd,
            Interest {
                socket: Arc::downgrade(socket),
                events,
                data,
                armed: true,
                seen_bits: 0,
                seen_activity: (0, 0),
                reported: false,
            },
        );
        Ok(())
    }

    /// `EPOLL_CTL_MOD`: also arms again, and reports what is ready though it is no news.
    pub fn modify(&mut self, fd: i32, events: u32, data: u64) -> Result<()> {
        let interest = self.interests.get_mut(&fd).ok_or(Errno(libc::ENOENT))?;
        interest.events = events;
        interest.data = data;
        interest.armed = true;
        interest.reported = false;
        Ok(())
    }

    /// `EPOLL_CTL_DEL`.
    pub fn remove(&mut self, fd: i32) -> Result<()> {
        let known = self.interests.remove(&fd);
        known.map(drop).ok_or(Errno(libc::ENOENT))
    }

    /// Up to `most` pairs of ready bits and the caller's data.
    pub fn collect(&mut self, backend: &dyn Backend, most: usize) -> Vec<(u32, u64)> {
        let mut out = Vec::new();
        self.interests
            .retain(|_, known| known.socket.strong_count() > 0);
        for interest in self.interests.values_mut() {
            if out.len() == most {
                break;
            }
            let Some(socket) = interest.socket.upgrade() else {
                continue;
            };
            let ready = poll_bits(backend.readiness(socket.id));
            let bits = ready & (interest.events | ALWAYS);
            let activity = backend.activity(socket.id);
            let news = !interest.reported
                || bits & !interest.seen_bits != 0
                || activity != interest.seen_activity;
            interest.seen_bits = bits;
            interest.seen_activity = activity;
            if !interest.armed || bits == 0 || (interest.events & EDGE != 0 && !news) {
                continue;
            }
            interest.reported = true;
            interest.armed = interest.events & ONE_SHOT == 0;
            out.push((bits, interest.data));
        }
        out
    }
}
