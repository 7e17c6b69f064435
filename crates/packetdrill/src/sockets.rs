//! The backend that scripts judge: sockets of the public facade's engine.
//!
//! A POSIX socket exists before it is anything; the engine's begin with `connect` or `listen`.
//! Until then a socket is a set of settings here.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use perimeter_base::{Bytes, Time};
use perimeter_org::Engine;
use perimeter_org::engine::EngineError;
use perimeter_stack::listener::ListenSpec;
use perimeter_stack::ops::{Data, How, Setting};
use perimeter_stack::{ConnInfo, SockError, SockId, ready};
use perimeter_tcp::{CcKind, Config, State as TcpState, TcpError};

use crate::backend::*;
use crate::flags::Flags;
use crate::setting::{Settings, errno_of_tcp};
use crate::world::World;

/// A socket's life as `connect` and `listen` see it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// Neither connected nor listening.
    Fresh,
    /// `connect` has been called and has not told its result.
    Connecting(SockId),
    /// Connected, whatever has happened since.
    Connected(SockId),
    /// Listening, with the port in use.
    Listening(SockId, u16),
}

struct Sock {
    stage: Stage,
    /// Address and port of `bind`.
    bound: Option<(Option<IpAddr>, u16)>,
    settings: Settings,
}

/// The backend.
pub struct Sockets {
    world: World,
    table: Mutex<Table>,
    local: Ipv4Addr,
}

#[derive(Default)]
struct Table {
    socks: BTreeMap<SocketId, Sock>,
    last: u64,
}

impl Table {
    fn add(&mut self, sock: Sock) -> SocketId {
        self.last += 1;
        let id = SocketId(self.last);
        self.socks.insert(id, sock);
        id
    }

    fn get(&mut self, id: SocketId) -> Result<&mut Sock> {
        self.socks.get_mut(&id).ok_or(Errno(libc::EBADF))
    }
}

/// What connections are made with under `flags`.
fn tcp_config(flags: &Flags) -> std::result::Result<Config, String> {
    let congestion: CcKind = flags.cc.parse().map_err(|e| format!("{e}"))?;
    Ok(Config::default()
        .with_congestion(congestion)
        .with_timestamps(flags.timestamps)
        .with_sack(flags.sack)
        .with_window_scale(flags.window_scaling)
        .with_slow_start_after_idle(flags.idle_restart)
        .with_syn_retries(flags.syn_retries)
        .with_snd_buf(flags.sndbuf)
        .with_rcv_buf(flags.rcvbuf)
        // As Linux's default: scripts about timeouts expect full segments again.
        .with_mtu_probing(false))
}

fn errno_of(fault: EngineError) -> Errno {
    Errno(match fault {
        EngineError::Sock(SockError::WouldBlock) => libc::EAGAIN,
        EngineError::Sock(SockError::Closed | SockError::NotConnected) => libc::ENOTCONN,
        EngineError::Sock(SockError::BrokenPipe) => libc::EPIPE,
        EngineError::Sock(SockError::Invalid) => libc::EINVAL,
        EngineError::Sock(SockError::Tcp(e)) => return errno_of_tcp(e),
        EngineError::NoRoute => libc::ENETUNREACH,
        EngineError::NotOurs => libc::EADDRNOTAVAIL,
        EngineError::AddrInUse => libc::EADDRINUSE,
        EngineError::TimedOut | EngineError::Absent => libc::ETIMEDOUT,
        EngineError::WrongThread | EngineError::Forked => libc::EPERM,
        EngineError::NetDown | EngineError::Stopped | EngineError::Failed(_) => libc::ENETDOWN,
        EngineError::Unsupported | EngineError::Events(_) => libc::EOPNOTSUPP,
        EngineError::NoMemory => libc::ENOMEM,
        EngineError::TooManyPollers => libc::EMFILE,
        EngineError::Registered(true) => libc::EEXIST,
        EngineError::Registered(false) => libc::ENOENT,
        EngineError::TooLong => libc::EMSGSIZE,
        EngineError::Permission => libc::EACCES,
        EngineError::NoInterface => libc::ENODEV,
        _ => libc::EIO,
    })
}

impl Sockets {
    /// A stack as `flags` describe it.
    pub fn new(flags: &Flags) -> std::result::Result<Sockets, String> {
        Ok(Sockets {
            world: World::new(flags, tcp_config(flags)?)?,
            table: Mutex::default(),
            local: flags.ipv4,
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stage(&self, socket: SocketId) -> Result<Stage> {
        Ok(self.table().get(socket)?.stage)
    }

    /// The engine's name of a socket that has one.
    fn named(&self, socket: SocketId) -> Result<SockId> {
        match self.stage(socket)? {
            Stage::Fresh => Err(Errno(libc::ENOTCONN)),
            Stage::Connecting(id) | Stage::Connected(id) | Stage::Listening(id, _) => Ok(id),
        }
    }

    /// The connection behind a socket that is one.
    fn connection(&self, socket: SocketId) -> Option<SockId> {
        self.named(socket).ok().filter(|id| !id.is_listener())
    }

    fn ask<R: Send + 'static>(
        &self,
        f: impl FnOnce(&dyn Engine) -> std::result::Result<R, EngineError> + Send + 'static,
    ) -> Result<R> {
        self.world.call(f).map_err(errno_of)
    }

    fn look(&self, id: SockId) -> Result<ConnInfo> {
        self.ask(move |e| e.look(id))
    }

    fn start_connect(&self, socket: SocketId, addr: SocketAddr) -> Result<()> {
        let (local, settings) = {
            let mut table = self.table();
            let sock = table.get(socket)?;
            (sock.bound.unwrap_or((None, 0)), sock.settings.clone())
        };
        let config = settings.config().clone();
        let id = self.ask(move |e| e.connect(local, addr, &config))?;
        settings.apply_rest(&mut |s| self.ask(move |e| e.set(id, s)))?;
        self.table().get(socket)?.stage = Stage::Connecting(id);
        Err(Errno(libc::EINPROGRESS))
    }

    fn connect_result(&self, socket: SocketId, id: SockId) -> Result<()> {
        let (error, state) = self.ask(move |e| e.take_error(id))?;
        if let Some(error) = error {
            self.table().get(socket)?.stage = Stage::Fresh;
            self.ask(move |e| e.close(id, true)).ok();
            return Err(errno_of_tcp(error));
        }
        match state {
            TcpState::SynSent | TcpState::SynReceived => Err(Errno(libc::EALREADY)),
            _ => {
                self.table().get(socket)?.stage = Stage::Connected(id);
                Ok(())
            }
        }
    }
}

impl Backend for Sockets {
    fn now(&self) -> Time {
        self.world.now()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.world.next_deadline()
    }

    fn advance(&self, to: Time) {
        self.world.advance(to);
    }

    fn inject(&self, packet: &[u8]) {
        self.world.inject(packet);
    }

    fn take_packet(&self) -> Option<Emitted> {
        self.world.take_packet()
    }

    fn socket(&self, v6: bool) -> Result<SocketId> {
        if v6 {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        let config = self.world.tcp_config();
        Ok(self.table().add(Sock {
            stage: Stage::Fresh,
            bound: None,
            settings: Settings::new(config),
        }))
    }

    fn bind(&self, socket: SocketId, addr: SocketAddr) -> Result<()> {
        let ip = match addr.ip() {
            ip if ip.is_unspecified() => None,
            ip if ip == self.local => Some(ip),
            _ => return Err(Errno(libc::EADDRNOTAVAIL)),
        };
        let mut table = self.table();
        let sock = table.get(socket)?;
        if sock.bound.is_some() || sock.stage != Stage::Fresh {
            return Err(Errno(libc::EINVAL));
        }
        sock.bound = Some((ip, addr.port()));
        Ok(())
    }

    fn listen(&self, socket: SocketId, backlog: u32) -> Result<()> {
        let (bound, config) = {
            let mut table = self.table();
            let sock = table.get(socket)?;
            match sock.stage {
                Stage::Fresh => {}
                // Linux changes the backlog, which no script of ours looks at.
                Stage::Listening(..) => return Ok(()),
                _ => return Err(Errno(libc::EINVAL)),
            }
            (
                sock.bound.unwrap_or((None, 0)),
                sock.settings.config().clone(),
            )
        };
        // Linux holds one more than it is told.
        let spec = ListenSpec::new(bound, backlog.saturating_add(1), config);
        let (id, port) = self.ask(move |e| e.listen(&spec))?;
        self.table().get(socket)?.stage = Stage::Listening(id, port);
        Ok(())
    }

    fn accept(&self, socket: SocketId, _: Mode) -> Result<(SocketId, SocketAddr)> {
        let Stage::Listening(listener, _) = self.stage(socket)? else {
            return Err(Errno(libc::EINVAL));
        };
        let (id, key) = self.ask(move |e| e.accept(listener))?;
        let settings = self.table().get(socket)?.settings.clone();
        // What the engine's configuration does not hold is inherited by hand.
        settings.apply_rest(&mut |s| self.ask(move |e| e.set(id, s)))?;
        let accepted = self.table().add(Sock {
            stage: Stage::Connected(id),
            bound: Some((Some(key.local), key.local_port)),
            settings,
        });
        Ok((accepted, SocketAddr::new(key.remote, key.remote_port)))
    }

    fn connect(&self, socket: SocketId, addr: SocketAddr, _: Mode) -> Result<()> {
        match self.stage(socket)? {
            Stage::Fresh => self.start_connect(socket, addr),
            Stage::Connecting(id) => self.connect_result(socket, id),
            Stage::Connected(_) | Stage::Listening(..) => Err(Errno(libc::EISCONN)),
        }
    }

    fn recv(
        &self,
        socket: SocketId,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        _: Mode,
    ) -> Result<usize> {
        if flags.oob {
            return Err(Errno(libc::EINVAL));
        }
        let id = self.named(socket)?;
        let max = bufs.iter().map(|b| b.len()).sum();
        let got = self.ask(move |e| e.recv(id, max, flags.peek))?;
        let mut left = bufs.iter_mut();
        let mut room: &mut [u8] = &mut [];
        let mut taken = 0;
        for buf in &got {
            let mut bytes = buf.as_slice();
            taken += bytes.len();
            while !flags.discard && !bytes.is_empty() {
                if room.is_empty() {
                    let Some(next) = left.next() else { break };
                    room = next;
                    continue;
                }
                let n = room.len().min(bytes.len());
                let (now, later) = room.split_at_mut(n);
                now.copy_from_slice(&bytes[..n]);
                (room, bytes) = (later, &bytes[n..]);
            }
        }
        if taken > 0 {
            self.world.call(move |e| e.recycle(got));
        }
        Ok(taken)
    }

    fn send(
        &self,
        socket: SocketId,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
        _: Mode,
    ) -> Result<usize> {
        if flags.oob || flags.eor {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let id = self.connection(socket).ok_or(Errno(libc::EPIPE))?;
        let bytes: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        if bytes.is_empty() {
            return Ok(0);
        }
        let data = Data::Copied(Bytes::from(bytes));
        self.ask(move |e| Ok(e.send(id, data, flags.more)?.taken))
    }

    fn shutdown(&self, socket: SocketId, how: Shutdown) -> Result<()> {
        let id = self.connection(socket).ok_or(Errno(libc::ENOTCONN))?;
        let how = match how {
            Shutdown::Read => How::Read,
            Shutdown::Write => How::Write,
            Shutdown::Both => How::Both,
        };
        self.ask(move |e| e.shutdown(id, how))
    }

    fn close(&self, socket: SocketId, _: Mode) -> Result<()> {
        let sock = self.table().socks.remove(&socket);
        match sock.ok_or(Errno(libc::EBADF))?.stage {
            Stage::Fresh => Ok(()),
            Stage::Connecting(id) | Stage::Connected(id) | Stage::Listening(id, _) => {
                // A connection that was reset meanwhile has gone, which is no error here.
                self.ask(move |e| e.close(id, false)).ok();
                Ok(())
            }
        }
    }

    fn readiness(&self, socket: SocketId) -> Readiness {
        let bits = match self.named(socket) {
            Ok(id) => self.ask(move |e| e.readiness(id)).unwrap_or(ready::HUP),
            // Linux: neither connected nor connecting counts as hung up, and writable.
            Err(_) => ready::HUP | ready::OUT,
        };
        let has = |bit| bits & bit != 0;
        Readiness {
            readable: has(ready::IN),
            writable: has(ready::OUT),
            error: has(ready::ERR),
            hang_up: has(ready::HUP),
            read_closed: has(ready::RDHUP),
            urgent: false,
        }
    }

    fn activity(&self, socket: SocketId) -> (u64, u64) {
        let info = self.connection(socket).and_then(|id| self.look(id).ok());
        info.map_or((0, 0), |i| (i.tcp.bytes_received, i.acked))
    }

    fn local_addr(&self, socket: SocketId) -> Result<SocketAddr> {
        if let Some(id) = self.connection(socket) {
            let key = self.look(id)?.key;
            return Ok(SocketAddr::new(key.local, key.local_port));
        }
        let mut table = self.table();
        let sock = table.get(socket)?;
        let (ip, mut port) = sock.bound.unwrap_or((None, 0));
        if let Stage::Listening(_, chosen) = sock.stage {
            port = chosen;
        }
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Ok(SocketAddr::new(ip.unwrap_or(any), port))
    }

    fn peer_addr(&self, socket: SocketId) -> Result<SocketAddr> {
        let id = self.connection(socket).ok_or(Errno(libc::ENOTCONN))?;
        let key = self.look(id)?.key;
        Ok(SocketAddr::new(key.remote, key.remote_port))
    }

    fn set_option(&self, socket: SocketId, opt: Opt, value: i32) -> Result<()> {
        let setting = self.table().get(socket)?.settings.set(opt, value)?;
        match (setting, self.named(socket).ok()) {
            (Some(setting), Some(id)) => self.ask(move |e| e.set(id, setting)),
            _ => Ok(()),
        }
    }

    fn option(&self, socket: SocketId, opt: Opt) -> Result<i32> {
        if let (Opt::MaxSegment, Some(id)) = (opt, self.connection(socket)) {
            return Ok(i32::try_from(self.look(id)?.tcp.snd_mss).unwrap_or(i32::MAX));
        }
        self.table().get(socket)?.settings.get(opt)
    }

    fn set_linger(&self, socket: SocketId, linger: Option<Duration>) -> Result<()> {
        self.table().get(socket)?.settings.linger = linger;
        match self.named(socket).ok() {
            Some(id) => self.ask(move |e| e.set(id, Setting::Linger(linger))),
            None => Ok(()),
        }
    }

    fn linger(&self, socket: SocketId) -> Result<Option<Duration>> {
        Ok(self.table().get(socket)?.settings.linger)
    }

    fn set_congestion(&self, socket: SocketId, name: &str) -> Result<()> {
        let kind: CcKind = name.parse().map_err(|_| Errno(libc::ENOENT))?;
        self.table().get(socket)?.settings.set_congestion(kind);
        match self.named(socket).ok() {
            Some(id) => self.ask(move |e| e.set(id, Setting::Congestion(kind))),
            None => Ok(()),
        }
    }

    fn congestion(&self, socket: SocketId) -> Result<String> {
        Ok(self
            .table()
            .get(socket)?
            .settings
            .config()
            .congestion
            .to_string())
    }

    fn take_error(&self, socket: SocketId) -> Option<Errno> {
        let id = self.connection(socket)?;
        let (error, _): (Option<TcpError>, TcpState) = self.ask(move |e| e.take_error(id)).ok()?;
        error.map(errno_of_tcp)
    }

    fn info(&self, socket: SocketId) -> Result<Info> {
        match self.connection(socket) {
            Some(id) => Ok(crate::setting::info(&self.look(id)?)),
            None => Ok(Info {
                state: match self.stage(socket)? {
                    Stage::Listening(..) => State::Listen,
                    _ => State::Closed,
                },
                ..Info::default()
            }),
        }
    }

    fn memory(&self, socket: SocketId) -> Result<Memory> {
        let Some(id) = self.connection(socket) else {
            return Ok(Memory::default());
        };
        let i = self.look(id)?;
        let t = &i.tcp;
        let sent = t.bytes_sent.saturating_sub(t.bytes_acked + t.bytes_retrans);
        let sent = u32::try_from(sent).unwrap_or(u32::MAX).min(i.snd_queued);
        Ok(Memory {
            readable: i.rcv_queued,
            receive_pinned: i.rcv_queued,
            receive_limit: i.rcv_limit,
            unacknowledged: i.snd_queued,
            unsent: i.snd_queued - sent,
            send_pinned: u32::try_from(i.memory).unwrap_or(u32::MAX),
            send_limit: i.snd_limit,
        })
    }
}

#[cfg(test)]
mod tests;
