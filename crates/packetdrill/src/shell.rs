//! POSIX socket calls in safe Rust, over a [`Backend`].
//!
//! Whoever waits, waits on the virtual clock. The driver can't sleep for it, since it is the one
//! that moves it; a call of the driver that would block therefore runs the clock forward from
//! event to event until the call succeeds. Other threads sleep in the [`Gate`] (or inside a
//! backend that can do that itself).

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use perimeter_base::Time;

use crate::backend::{Backend, Emitted, Errno, Mode, RecvFlags, Result, SendFlags, SocketId};
use crate::epoll;
use crate::gate::Gate;

/// Virtual time within which some timer of the stack has ended a call that a timer can end:
/// longer than keepalive takes by default, 2 h 11 min.
const TIMERS_AT_MOST: Duration = Duration::from_secs(3 * 3600);

/// Real time that a thread gets to begin a call which packetdrill says has begun, before a
/// packet that only this call can bring is given up.
const ENTRY_AT_MOST: Duration = Duration::from_millis(100);

/// A socket behind a descriptor.
pub struct Socket {
    /// The backend's name for it.
    pub id: SocketId,
    v6: bool,
    nonblocking: AtomicBool,
    listening: AtomicBool,
    receive_timeout: Mutex<Option<Duration>>,
    send_timeout: Mutex<Option<Duration>>,
}

impl Socket {
    fn new(id: SocketId, v6: bool, nonblocking: bool) -> Socket {
        Socket {
            id,
            v6,
            nonblocking: AtomicBool::new(nonblocking),
            listening: AtomicBool::new(false),
            receive_timeout: Mutex::default(),
            send_timeout: Mutex::default(),
        }
    }

    /// A blocking IPv4 socket around one that the test has made.
    #[cfg(test)]
    pub fn accepted(id: SocketId) -> Socket {
        Socket::new(id, false, false)
    }

    /// `AF_INET` or `AF_INET6`.
    pub fn domain(&self) -> i32 {
        if self.v6 {
            libc::AF_INET6
        } else {
            libc::AF_INET
        }
    }

    /// Whether `listen` succeeded on it.
    pub fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Relaxed)
    }

    /// `O_NONBLOCK`.
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// `O_NONBLOCK`.
    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    /// `SO_RCVTIMEO`; `None` waits for ever.
    pub fn receive_timeout(&self) -> Option<Duration> {
        *lock(&self.receive_timeout)
    }

    /// `SO_RCVTIMEO`; `None` waits for ever.
    pub fn set_receive_timeout(&self, timeout: Option<Duration>) {
        *lock(&self.receive_timeout) = timeout;
    }

    /// `SO_SNDTIMEO`; `None` waits for ever.
    pub fn send_timeout(&self) -> Option<Duration> {
        *lock(&self.send_timeout)
    }

    /// `SO_SNDTIMEO`; `None` waits for ever.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) {
        *lock(&self.send_timeout) = timeout;
    }
}

/// What a descriptor stands for.
#[derive(Clone)]
pub enum Entry {
    /// A TCP socket.
    Socket(Arc<Socket>),
    /// An epoll set.
    Epoll(Arc<Mutex<epoll::Set>>),
}

/// One descriptor of a `poll` call.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PollFd {
    /// The descriptor; negative ones are skipped.
    pub fd: i32,
    /// What the caller asks for.
    pub events: i16,
    /// What is ready.
    pub revents: i16,
}

/// The adapter's state.
pub struct Shell {
    backend: Arc<dyn Backend>,
    gate: Gate,
    entries: Mutex<BTreeMap<i32, Entry>>,
    /// Virtual time without a packet after which a script that waits for one has failed.
    limit: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const AGAIN: Errno = Errno(libc::EAGAIN);

impl Shell {
    /// A shell whose driver is the calling thread.
    pub fn new(backend: Arc<dyn Backend>, limit: Duration) -> Shell {
        Shell {
            backend,
            gate: Gate::new(),
            entries: Mutex::default(),
            limit,
        }
    }

    /// The stack.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    // ---- descriptors ----

    /// Whether `fd` is one of ours.
    pub fn owns(&self, fd: i32) -> bool {
        lock(&self.entries).contains_key(&fd)
    }

    /// Puts `entry` behind `fd`, a real descriptor that the caller opened for it.
    pub fn install(&self, fd: i32, entry: Entry) {
        lock(&self.entries).insert(fd, entry);
    }

    /// The socket behind `fd`.
    pub fn socket(&self, fd: i32) -> Result<Arc<Socket>> {
        match lock(&self.entries).get(&fd) {
            Some(Entry::Socket(socket)) => Ok(socket.clone()),
            Some(Entry::Epoll(_)) => Err(Errno(libc::ENOTSOCK)),
            None => Err(Errno(libc::EBADF)),
        }
    }

    fn epoll(&self, fd: i32) -> Result<Arc<Mutex<epoll::Set>>> {
        match lock(&self.entries).get(&fd) {
            Some(Entry::Epoll(set)) => Ok(set.clone()),
            Some(Entry::Socket(_)) => Err(Errno(libc::EINVAL)),
            None => Err(Errno(libc::EBADF)),
        }
    }

    // ---- the clock ----

    /// What `gettimeofday` shows. A reading takes a microsecond, as packetdrill spins on the clock
    /// for the last twenty before an event, but for the one that takes the time of a call's end.
    pub fn read_clock(&self) -> Time {
        let now = self.backend.now();
        if self.gate.stamp() {
            return now;
        }
        self.run_until(now + Duration::from_micros(1));
        self.backend.now()
    }

    /// Waits until another thread is inside a call; whether one is.
    #[cfg(test)]
    pub fn await_call(&self) -> bool {
        self.gate.await_entry(Duration::from_secs(10))
    }

    /// `usleep`: lets virtual time pass, running what is due.
    pub fn pass(&self, time: Duration) {
        self.run_until(self.backend.now() + time);
    }

    fn run_until(&self, end: Time) {
        self.settle();
        while self.backend.now() < end {
            self.step(end);
        }
    }

    /// Advances to the next event, but not past `end`; false when there is neither.
    fn step(&self, end: Time) -> bool {
        let due = [self.backend.next_deadline(), self.gate.next_deadline()];
        let next = due.into_iter().flatten().fold(end, Time::min);
        if next == Time::NEVER {
            return false;
        }
        self.backend.advance(next);
        self.stir();
        true
    }

    /// After something that may have woken other threads: lets them run until they sleep or have
    /// left their calls. Not for use inside a call of such a thread.
    fn stir(&self) {
        self.gate.stir();
        self.settle();
    }

    fn settle(&self) {
        self.gate.settle(self.backend.settle());
    }

    // ---- packets ----

    /// A packet arrives.
    pub fn inject(&self, packet: &[u8]) {
        self.settle();
        self.backend.inject(packet);
        self.stir();
    }

    /// The next packet that the stack sends, for which the clock runs on if need be; `None` when
    /// none comes within the limit or nothing is left that could bring one.
    pub fn next_packet(&self) -> Option<Emitted> {
        self.settle();
        let end = self.backend.now() + self.limit;
        loop {
            if let Some(packet) = self.backend.take_packet() {
                return Some(packet);
            }
            if self.backend.now() >= end {
                return None;
            }
            let idle =
                self.backend.next_deadline().is_none() && self.gate.next_deadline().is_none();
            if idle {
                // Perhaps a call that packetdrill took for asleep has not reached us yet.
                self.gate.await_entry(ENTRY_AT_MOST);
                self.settle();
                return self.backend.take_packet();
            }
            self.step(end);
        }
    }

    // ---- blocking ----

    /// Makes a socket call that may have to wait. `op` says `EAGAIN` when it has to.
    fn call<T>(
        &self,
        nonblocking: bool,
        timeout: Option<Duration>,
        mut op: impl FnMut(Mode) -> Result<T>,
    ) -> Result<T> {
        let inside = self.gate.enter();
        let result = if nonblocking {
            op(Mode::NoWait)
        } else if inside.is_some() && self.backend.sleeps() && timeout.is_none() {
            op(Mode::Sleep)
        } else {
            self.wait(timeout, || op(Mode::NoWait))
        };
        // The call itself may have woken others: data for a reader on the same stack, a close.
        match inside {
            Some(_) => self.gate.stir(),
            None => self.stir(),
        }
        result
    }

    /// Makes a call that looks at readiness, for which the shell waits in any case.
    fn poll_call<T>(&self, timeout_ms: i32, mut op: impl FnMut() -> Result<T>) -> Result<T> {
        let _inside = self.gate.enter();
        match u64::try_from(timeout_ms) {
            Ok(0) => op(),
            Ok(ms) => self.wait(Some(Duration::from_millis(ms)), op),
            Err(_) => self.wait(None, op),
        }
    }

    fn wait<T>(&self, timeout: Option<Duration>, mut op: impl FnMut() -> Result<T>) -> Result<T> {
        let start = self.backend.now();
        let deadline = timeout.map(|t| start + t);
        loop {
            let seen = self.gate.generation();
            match op() {
                Err(AGAIN) => {}
                done => return done,
            }
            if deadline.is_some_and(|d| self.backend.now() >= d) {
                return Err(AGAIN);
            }
            if !self.gate.is_driver() {
                self.gate.sleep(seen, deadline);
                continue;
            }
            // No packet comes while the driver is in a call, so only a timer can end it. Threads
            // that merely look around now and then have timers, too.
            let vain = deadline.is_none() && self.backend.now() >= start + TIMERS_AT_MOST;
            if vain || !self.step(deadline.unwrap_or(Time::NEVER)) {
                // Linux would sleep for ever; a script is better told.
                return Err(Errno(libc::EDEADLK));
            }
        }
    }

    // ---- socket calls ----

    /// `socket`: makes one behind `fd`.
    pub fn open(&self, fd: i32, domain: i32, kind: i32, protocol: i32) -> Result<()> {
        let v6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return Err(Errno(libc::EAFNOSUPPORT)),
        };
        if kind & 0xf != libc::SOCK_STREAM || !matches!(protocol, 0 | libc::IPPROTO_TCP) {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        let id = self.backend.socket(v6)?;
        let socket = Socket::new(id, v6, kind & libc::SOCK_NONBLOCK != 0);
        self.install(fd, Entry::Socket(Arc::new(socket)));
        Ok(())
    }

    /// `bind`.
    pub fn bind(&self, fd: i32, addr: SocketAddr) -> Result<()> {
        self.backend.bind(self.socket(fd)?.id, addr)
    }

    /// `listen`. A negative backlog means the largest, as in Linux.
    pub fn listen(&self, fd: i32, backlog: i32) -> Result<()> {
        let socket = self.socket(fd)?;
        let backlog = u32::try_from(backlog).unwrap_or(4096);
        self.backend.listen(socket.id, backlog)?;
        socket.listening.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// `accept`: puts the connection behind `new_fd` and says who the peer is.
    pub fn accept(&self, fd: i32, new_fd: i32) -> Result<SocketAddr> {
        let socket = self.socket(fd)?;
        let (id, peer) = self.call(socket.is_nonblocking(), socket.receive_timeout(), |mode| {
            self.backend.accept(socket.id, mode)
        })?;
        let accepted = Socket::new(id, socket.v6, false);
        self.install(new_fd, Entry::Socket(Arc::new(accepted)));
        Ok(peer)
    }

    /// `connect`.
    pub fn connect(&self, fd: i32, addr: SocketAddr) -> Result<()> {
        let socket = self.socket(fd)?;
        let nonblocking = socket.is_nonblocking();
        let result = self.call(nonblocking, socket.send_timeout(), |mode| {
            let result = self.backend.connect(socket.id, addr, mode);
            match result {
                Err(Errno(libc::EINPROGRESS | libc::EALREADY)) if !nonblocking => Err(AGAIN),
                other => other,
            }
        });
        match result {
            // The timeout of a blocking connect.
            Err(AGAIN) if !nonblocking => Err(Errno(libc::EINPROGRESS)),
            other => other,
        }
    }

    /// `read`, `recv` and their kin; `flags` are `MSG_*`.
    pub fn recv(&self, fd: i32, mut bufs: &mut [IoSliceMut<'_>], flags: i32) -> Result<usize> {
        let socket = self.socket(fd)?;
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Err(AGAIN);
        }
        let nonblocking = socket.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let peek = flags & libc::MSG_PEEK != 0;
        let all = flags & libc::MSG_WAITALL != 0 && !peek;
        let how = RecvFlags {
            peek,
            discard: flags & libc::MSG_TRUNC != 0,
            oob: flags & libc::MSG_OOB != 0,
        };
        let mut done = 0;
        let result = self.call(nonblocking, socket.receive_timeout(), |mode| {
            loop {
                let n = self.backend.recv(socket.id, bufs, how, mode)?;
                done += n;
                IoSliceMut::advance_slices(&mut bufs, n);
                if n == 0 || !all || bufs.is_empty() {
                    return Ok(());
                }
            }
        });
        match result {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// `write`, `send` and their kin; `flags` are `MSG_*`.
    pub fn send(&self, fd: i32, mut bufs: &mut [IoSlice<'_>], flags: i32) -> Result<usize> {
        let socket = self.socket(fd)?;
        if flags & libc::MSG_FASTOPEN != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let nonblocking = socket.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let how = SendFlags {
            more: flags & libc::MSG_MORE != 0,
            oob: flags & libc::MSG_OOB != 0,
            eor: flags & libc::MSG_EOR != 0,
        };
        let mut done = 0;
        let mut tried = false;
        let result = self.call(nonblocking, socket.send_timeout(), |mode| {
            // A writer that waits goes on when poll would say so, not for every freed byte.
            let ready = self.backend.readiness(socket.id);
            if tried && !(ready.writable || ready.error || ready.hang_up) {
                return Err(AGAIN);
            }
            tried = true;
            let n = self.backend.send(socket.id, bufs, how, mode)?;
            done += n;
            IoSlice::advance_slices(&mut bufs, n);
            if bufs.is_empty() { Ok(()) } else { Err(AGAIN) }
        });
        match result {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// `shutdown`; `how` is `SHUT_*`.
    pub fn shutdown(&self, fd: i32, how: i32) -> Result<()> {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let socket = self.socket(fd)?;
        self.call(true, None, |_| self.backend.shutdown(socket.id, how))
    }

    /// `close`, apart from the descriptor itself.
    pub fn close(&self, fd: i32) -> Result<()> {
        let entry = lock(&self.entries).remove(&fd);
        match entry.ok_or(Errno(libc::EBADF))? {
            Entry::Epoll(_) => Ok(()),
            // SO_LINGER waits whatever O_NONBLOCK says, as in Linux.
            Entry::Socket(socket) => {
                self.call(false, None, |mode| self.backend.close(socket.id, mode))
            }
        }
    }

    // ---- readiness ----

    /// `poll`; `elsewhere` answers for descriptors that aren't ours. A negative timeout waits for
    /// ever.
    pub fn poll(
        &self,
        fds: &mut [PollFd],
        timeout_ms: i32,
        mut elsewhere: impl FnMut(&PollFd) -> i16,
    ) -> Result<usize> {
        let result = self.poll_call(timeout_ms, || {
            let mut ready = 0;
            for fd in &mut *fds {
                fd.revents = match self.socket(fd.fd) {
                    _ if fd.fd < 0 => 0,
                    Ok(socket) => {
                        let wanted = fd.events as u16 as u32 | epoll::ALWAYS;
                        let bits = epoll::poll_bits(self.backend.readiness(socket.id));
                        (bits & wanted) as u16 as i16
                    }
                    Err(_) => elsewhere(fd),
                };
                ready += usize::from(fd.revents != 0);
            }
            if ready > 0 { Ok(ready) } else { Err(AGAIN) }
        });
        match result {
            Err(AGAIN) => Ok(0),
            other => other,
        }
    }

    /// `epoll_create`.
    pub fn epoll_create(&self, fd: i32) {
        self.install(fd, Entry::Epoll(Arc::default()));
    }

    /// `epoll_ctl`; `event` is the bits and the caller's data.
    pub fn epoll_ctl(&self, epfd: i32, op: i32, fd: i32, event: Option<(u32, u64)>) -> Result<()> {
        let set = self.epoll(epfd)?;
        let event = || event.ok_or(Errno(libc::EFAULT));
        if fd == epfd {
            return Err(Errno(libc::EINVAL));
        }
        match op {
            libc::EPOLL_CTL_ADD => {
                let socket = self.socket(fd).map_err(|e| match e.0 {
                    libc::ENOTSOCK => Errno(libc::EPERM),
                    _ => e,
                })?;
                let (events, data) = event()?;
                lock(&set).add(fd, &socket, events, data)
            }
            libc::EPOLL_CTL_MOD => {
                let (events, data) = event()?;
                lock(&set).modify(fd, events, data)
            }
            libc::EPOLL_CTL_DEL => lock(&set).remove(fd),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// `epoll_wait`: up to `most` pairs of ready bits and data.
    pub fn epoll_wait(&self, epfd: i32, most: i32, timeout_ms: i32) -> Result<Vec<(u32, u64)>> {
        let set = self.epoll(epfd)?;
        let most = usize::try_from(most).unwrap_or(0);
        if most == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let result = self.poll_call(timeout_ms, || {
            let ready = lock(&set).collect(&*self.backend, most);
            if ready.is_empty() {
                Err(AGAIN)
            } else {
                Ok(ready)
            }
        });
        match result {
            Err(AGAIN) => Ok(Vec::new()),
            other => other,
        }
    }
}
