//! The machine's parking place: a futex word that can also stand behind an eventfd.
//!
//! | state | meaning | `set` does |
//! |---|---|---|
//! | EMPTY | not set, nobody waits | → SET |
//! | SET | set, nobody waits | (stays) |
//! | PARKED | not set, the waiter sleeps on the word | → SET, futex wake |
//! | POLLING | not set, the waiter sleeps in `poll` with the eventfd | → SET, writes the eventfd |
//!
//! `set` is one swap and acts on what it replaced. Only the waiter leaves SET, and only it makes
//! PARKED and POLLING; it looks at the word again after every return from the kernel, so a wake
//! or an eventfd token that comes late, from a `set` whose effect was consumed already, costs one
//! more turn of its loop and nothing else.

use core::time::Duration;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use perimeter_base::Time;

use super::Native;
use super::futex;
use super::mark::Parked;
use crate::platform::{Event, Platform, Woken};
use crate::profile::Path;
use crate::shim::{AtomicU32, Ordering};

const EMPTY: u32 = 0;
const SET: u32 = 1;
const PARKED: u32 = 2;
const POLLING: u32 = 3;

/// How a sleep in `poll` ended.
#[doc(hidden)]
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Polled {
    /// Nothing sure: look at the state again.
    Look,
    /// A descriptor of the caller's is readable.
    Readable,
    /// The deadline has passed.
    Timeout,
}

/// What the state machine asks of the kernel; the loom models put their own in its place.
#[doc(hidden)]
pub trait Kernel {
    /// A point in time.
    type Deadline: Copy;
    /// Descriptors.
    type Fds: ?Sized;

    /// Sleeps while `word` is `expected`, until [`Kernel::wake`] or the deadline; may return
    /// early for no reason. False: the deadline has passed.
    fn sleep(&self, word: &AtomicU32, expected: u32, deadline: Self::Deadline) -> bool;
    /// Wakes the sleeper on `word`.
    fn wake(&self, word: &AtomicU32);
    /// Sleeps until a token is there (and takes it), a descriptor is readable, or the deadline.
    fn poll(&self, fds: &Self::Fds, deadline: Self::Deadline) -> Polled;
    /// Leaves a token.
    fn signal(&self);
}

/// The state machine.
#[doc(hidden)]
#[derive(Debug)]
pub struct Core<K> {
    word: AtomicU32,
    kernel: K,
}

impl<K: Kernel> Core<K> {
    pub fn new(kernel: K) -> Self {
        Core {
            word: AtomicU32::new(EMPTY),
            kernel,
        }
    }

    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    #[inline]
    pub fn set(&self) {
        // Release: the waiter sees what was written before. Also when it is SET already, so no
        // load first: the waiter may be about to consume the earlier set.
        match self.word.swap(SET, Ordering::AcqRel) {
            PARKED => self.kernel.wake(&self.word),
            POLLING => self.kernel.signal(),
            _ => {}
        }
    }

    #[inline]
    pub fn take(&self) -> bool {
        self.change(SET, EMPTY)
    }

    #[inline]
    fn change(&self, from: u32, to: u32) -> bool {
        self.word
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// EMPTY → `to`. False: it was set, and is taken.
    ///
    /// # Panics
    /// If somebody waits already.
    fn enter(&self, to: u32) -> bool {
        if self.change(EMPTY, to) {
            return true;
        }
        // The waiter, and there is one, is the only one that leaves SET.
        assert!(self.take(), "two threads wait for one event");
        false
    }

    /// `from` → EMPTY. True: it was set meanwhile, and is taken.
    fn leave(&self, from: u32) -> bool {
        !self.change(from, EMPTY) && self.take()
    }

    pub fn wait(&self, deadline: K::Deadline) -> bool {
        if !self.enter(PARKED) {
            return true;
        }
        loop {
            let in_time = self.kernel.sleep(&self.word, PARKED, deadline);
            if self.take() {
                return true;
            }
            if !in_time {
                return self.leave(PARKED);
            }
        }
    }

    pub fn wait_fds(&self, fds: &K::Fds, deadline: K::Deadline) -> Woken {
        if !self.enter(POLLING) {
            return Woken::Set;
        }
        loop {
            let woken = match self.kernel.poll(fds, deadline) {
                Polled::Look if self.take() => return Woken::Set,
                Polled::Look => continue,
                Polled::Readable => Woken::Readable,
                Polled::Timeout => Woken::Timeout,
            };
            return if self.leave(POLLING) {
                Woken::Set
            } else {
                woken
            };
        }
    }
}

/// Linux.
#[derive(Debug)]
struct Linux {
    platform: Native,
    /// Made by the first `wait_fds`, before the state can be POLLING.
    eventfd: OnceLock<OwnedFd>,
}

impl Linux {
    /// The eventfd, made if need be; `None` if there is no descriptor left.
    fn eventfd(&self) -> Option<RawFd> {
        if let Some(fd) = self.eventfd.get() {
            return Some(fd.as_raw_fd());
        }
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return None;
        }
        // SAFETY: just opened, and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Some(self.eventfd.get_or_init(|| fd).as_raw_fd())
    }

    /// What is left until `deadline`: `Ok(None)` for ever, `Err` nothing.
    fn left(&self, deadline: Time) -> Result<Option<libc::timespec>, ()> {
        if deadline == Time::NEVER {
            return Ok(None);
        }
        match deadline.since(self.platform.now()) {
            Duration::ZERO => Err(()),
            left => Ok(Some(timespec(left))),
        }
    }
}

fn timespec(d: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(d.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(d.subsec_nanos() as i32),
    }
}

/// `ppoll` for readability; how many descriptors have something (errors and hang-ups too: a read
/// will tell which), 0 also after a signal.
fn ppoll(fds: &mut [libc::pollfd], timeout: Option<&libc::timespec>) -> usize {
    // SAFETY: `fds` is writable for its length; the timeout is null or valid for the call; no
    // signal mask.
    let n = unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            timeout.map_or(core::ptr::null(), core::ptr::from_ref),
            core::ptr::null(),
        )
    };
    usize::try_from(n).unwrap_or(0)
}

/// Calls `f` with `fds`, and room for one more at the end, as poll entries: on the stack when
/// they are few.
fn with_entries<R>(
    fds: &[RawFd],
    extra: Option<RawFd>,
    f: impl FnOnce(&mut [libc::pollfd]) -> R,
) -> R {
    const FEW: usize = 16;
    let entry = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let all = fds.iter().copied().chain(extra).map(entry);
    let count = fds.len() + usize::from(extra.is_some());
    if count <= FEW {
        let mut entries = [entry(-1); FEW];
        for (place, e) in entries.iter_mut().zip(all) {
            *place = e;
        }
        f(&mut entries[..count])
    } else {
        f(&mut all.collect::<Vec<_>>())
    }
}

impl Linux {
    /// Runs `f`, which enters the kernel: timed where the platform is profiled.
    fn timed<R>(&self, path: Path, f: impl FnOnce() -> R) -> R {
        match self.platform.profiled.meter() {
            None => f(),
            Some(m) => m.by_cpu(path, f),
        }
    }
}

impl Kernel for Linux {
    type Deadline = Time;
    type Fds = [RawFd];

    fn sleep(&self, word: &AtomicU32, expected: u32, deadline: Time) -> bool {
        let Ok(timeout) = self.left(deadline) else {
            return false;
        };
        let _parked = Parked::new();
        self.timed(Path::Park, || futex::wait(word, expected, timeout.as_ref()));
        true
    }

    fn wake(&self, word: &AtomicU32) {
        self.timed(Path::Wake, || futex::wake(word, 1));
    }

    fn poll(&self, fds: &[RawFd], deadline: Time) -> Polled {
        let Ok(timeout) = self.left(deadline) else {
            return Polled::Timeout;
        };
        let eventfd = self.eventfd.get().map(AsRawFd::as_raw_fd);
        let _parked = Parked::new();
        with_entries(fds, eventfd, |entries| {
            if self.timed(Path::Park, || ppoll(entries, timeout.as_ref())) == 0 {
                return Polled::Look;
            }
            let (own, theirs) = entries.split_last().expect("at least the eventfd");
            if own.revents != 0 {
                let mut token = [0u8; 8];
                // SAFETY: eight writable bytes. Non-blocking; only the waiter reads.
                unsafe { libc::read(own.fd, token.as_mut_ptr().cast(), token.len()) };
            }
            if theirs.iter().any(|e| e.revents != 0) {
                Polled::Readable
            } else {
                Polled::Look
            }
        })
    }

    fn signal(&self) {
        if let Some(fd) = self.eventfd.get() {
            let token = 1u64.to_ne_bytes();
            // SAFETY: eight readable bytes. Non-blocking: it fails only when 2^64 - 2 tokens
            // wait, and then there is one.
            let write =
                || unsafe { libc::write(fd.as_raw_fd(), token.as_ptr().cast(), token.len()) };
            self.timed(Path::Wake, write);
        }
    }
}

/// How often a waiter looks that could get no eventfd.
const LOOK: Duration = Duration::from_millis(1);

/// The machine's [`Event`].
///
/// [`Event::wait_fds`] answers [`Woken::Set`] when both the event and a descriptor are ready. If
/// the process has no descriptor left for the eventfd, it looks every millisecond instead.
///
/// # Panics
/// If two threads wait at once.
#[derive(Debug)]
#[repr(align(64))]
pub struct NativeEvent(Core<Linux>);

impl NativeEvent {
    pub(super) fn new(platform: Native) -> NativeEvent {
        NativeEvent(Core::new(Linux {
            platform,
            eventfd: OnceLock::new(),
        }))
    }

    /// One look at the descriptors, for at most `timeout`.
    fn readable(fds: &[RawFd], timeout: Duration) -> bool {
        with_entries(fds, None, |entries| {
            ppoll(entries, Some(&timespec(timeout))) != 0
        })
    }

    /// `wait_fds` without an eventfd.
    #[cold]
    fn wait_fds_looking(&self, fds: &[RawFd], deadline: Time) -> Woken {
        let now = || self.0.kernel.platform.now();
        loop {
            if self.take() {
                return Woken::Set;
            }
            let left = deadline.since(now());
            if Self::readable(fds, left.min(LOOK)) {
                return Woken::Readable;
            }
            if left.is_zero() {
                return Woken::Timeout;
            }
        }
    }
}

impl Event for NativeEvent {
    #[inline]
    fn set(&self) {
        self.0.set();
    }

    fn wait(&self, deadline: Time) -> bool {
        self.0.wait(deadline)
    }

    #[inline]
    fn take(&self) -> bool {
        self.0.take()
    }

    fn wait_fds(&self, fds: &[RawFd], deadline: Time) -> Woken {
        if self.take() {
            return Woken::Set;
        }
        // A deadline that has passed is a question, not a wait: no eventfd, no state.
        if deadline != Time::NEVER && deadline <= self.0.kernel.platform.now() {
            return match Self::readable(fds, Duration::ZERO) {
                true => Woken::Readable,
                false => Woken::Timeout,
            };
        }
        match self.0.kernel.eventfd() {
            Some(_) => self.0.wait_fds(fds, deadline),
            None => self.wait_fds_looking(fds, deadline),
        }
    }
}
