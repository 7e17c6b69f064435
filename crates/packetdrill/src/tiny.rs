//! A stack just big enough to try the adapter: opens, data in order, closes; no loss recovery, no
//! congestion control. Its send buffer drains when the peer acknowledges, its SYN is repeated
//! after a second, so there is both something to wait for and a timer.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use perimeter_base::Time;

use crate::backend::*;

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;

const SYN_RETRY: Duration = Duration::from_secs(1);

/// A TCP segment with its addresses, as the tests write and read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

impl Segment {
    pub fn bytes(&self) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.push((((20 + self.options.len()) / 4) << 4) as u8);
        tcp.push(self.flags);
        tcp.extend([0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let pseudo = [self.from.ip().octets(), self.to.ip().octets()].concat();
        let start = !u32::from(checksum(&pseudo, 6 + tcp.len() as u32)) & 0xffff;
        let sum = checksum(&tcp, start);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut ip = vec![0x45, 0];
        ip.extend((20 + tcp.len() as u16).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip.extend(pseudo);
        let sum = checksum(&ip, 0);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip.extend(tcp);
        ip
    }

    pub fn parse(p: &[u8]) -> Segment {
        let word = |at: usize| u32::from_be_bytes(p[at..at + 4].try_into().unwrap());
        let port = |at: usize| u16::from_be_bytes([p[at], p[at + 1]]);
        let data = 20 + usize::from(p[32] >> 4) * 4;
        Segment {
            from: SocketAddrV4::new(Ipv4Addr::from(word(12)), port(20)),
            to: SocketAddrV4::new(Ipv4Addr::from(word(16)), port(22)),
            flags: p[33],
            seq: word(24),
            ack: word(28),
            options: p[40..data].to_vec(),
            payload: p[data..].to_vec(),
        }
    }
}

#[derive(Default)]
struct Sock {
    listening: bool,
    queue: VecDeque<SocketId>,
    /// SYN sent and not answered; the value is when to repeat it.
    connecting: Option<Time>,
    established: bool,
    local: Option<SocketAddrV4>,
    remote: Option<SocketAddrV4>,
    parent: Option<SocketId>,
    snd_una: u32,
    snd_nxt: u32,
    rcv_nxt: u32,
    rx: VecDeque<u8>,
    arrivals: u64,
    peer_closed: bool,
    write_closed: bool,
    error: Option<Errno>,
    options: BTreeMap<Opt, i32>,
    linger: Option<Duration>,
}

#[derive(Default)]
struct Inner {
    now: Time,
    out: VecDeque<Emitted>,
    socks: BTreeMap<SocketId, Sock>,
    last_id: u64,
}

pub struct Tiny {
    inner: Mutex<Inner>,
    ip: Ipv4Addr,
}

impl Inner {
    fn emit(&mut self, id: SocketId, flags: u8, payload: &[u8]) {
        let sock = &self.socks[&id];
        let mut options = Vec::new();
        if flags & SYN != 0 {
            options.extend([2, 4, 0x05, 0xb4]);
            if flags & ACK == 0 {
                options.extend([4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0]);
            }
            options.extend([1, 3, 3, 8]);
        }
        let segment = Segment {
            from: sock.local.unwrap(),
            to: sock.remote.unwrap(),
            flags,
            seq: sock.snd_nxt,
            ack: sock.rcv_nxt,
            options,
            payload: payload.to_vec(),
        };
        self.push(&segment);
        let sock = self.socks.get_mut(&id).unwrap();
        let counted = payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        sock.snd_nxt = sock.snd_nxt.wrapping_add(counted);
    }

    fn push(&mut self, segment: &Segment) {
        let at = self.now;
        self.out.push_back(Emitted {
            packet: segment.bytes(),
            at,
        });
    }

    fn get(&mut self, id: SocketId) -> Result<&mut Sock> {
        self.socks.get_mut(&id).ok_or(Errno(libc::EBADF))
    }

    fn add(&mut self, sock: Sock) -> SocketId {
        self.last_id += 1;
        self.socks.insert(SocketId(self.last_id), sock);
        SocketId(self.last_id)
    }

    fn input(&mut self, segment: &Segment) {
        let known = |s: &Sock| s.remote == Some(segment.from) && !s.listening;
        let found = self.socks.iter().find(|(_, s)| known(s)).map(|(id, _)| *id);
        let Some(id) = found else {
            return self.strange(segment);
        };
        let sock = self.socks.get_mut(&id).unwrap();
        if segment.flags & RST != 0 {
            sock.error = Some(Errno(libc::ECONNRESET));
            sock.peer_closed = true;
            return;
        }
        if segment.flags & ACK != 0 {
            sock.snd_una = segment.ack;
        }
        if sock.connecting.take().is_some() {
            sock.rcv_nxt = segment.seq.wrapping_add(1);
            sock.established = true;
            return self.emit(id, ACK, &[]);
        }
        if !sock.established {
            sock.established = true;
            if let Some(parent) = sock.parent {
                self.socks.get_mut(&parent).unwrap().queue.push_back(id);
            }
        }
        let sock = self.socks.get_mut(&id).unwrap();
        let fin = segment.flags & FIN != 0;
        if (segment.payload.is_empty() && !fin) || segment.seq != sock.rcv_nxt {
            return;
        }
        sock.rx.extend(&segment.payload);
        sock.arrivals += 1;
        sock.peer_closed |= fin;
        let counted = segment.payload.len() as u32 + u32::from(fin);
        sock.rcv_nxt = sock.rcv_nxt.wrapping_add(counted);
        self.emit(id, ACK, &[]);
    }

    fn strange(&mut self, segment: &Segment) {
        let listener = self.socks.iter().find(|(_, s)| s.listening);
        if let (Some((&parent, _)), true) = (listener, segment.flags == SYN) {
            let id = self.add(Sock {
                local: Some(segment.to),
                remote: Some(segment.from),
                parent: Some(parent),
                rcv_nxt: segment.seq.wrapping_add(1),
                snd_nxt: 7000,
                ..Sock::default()
            });
            return self.emit(id, SYN | ACK, &[]);
        }
        if segment.flags & RST == 0 {
            self.push(&Segment {
                from: segment.to,
                to: segment.from,
                flags: RST,
                seq: segment.ack,
                ack: 0,
                options: Vec::new(),
                payload: Vec::new(),
            });
        }
    }
}

impl Tiny {
    pub fn new(ip: Ipv4Addr) -> Tiny {
        Tiny {
            inner: Mutex::default(),
            ip,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }
}

impl Backend for Tiny {
    fn now(&self) -> Time {
        self.lock().now
    }

    fn next_deadline(&self) -> Option<Time> {
        self.lock()
            .socks
            .values()
            .filter_map(|s| s.connecting)
            .min()
    }

    fn advance(&self, to: Time) {
        let mut inner = self.lock();
        inner.now = inner.now.max(to);
        let now = inner.now;
        let is_due = |s: &Sock| s.connecting.is_some_and(|at| at <= now);
        let due: Vec<SocketId> = inner
            .socks
            .iter()
            .filter(|(_, s)| is_due(s))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let sock = inner.socks.get_mut(&id).unwrap();
            sock.connecting = Some(now + SYN_RETRY);
            sock.snd_nxt = sock.snd_nxt.wrapping_sub(1);
            inner.emit(id, SYN, &[]);
        }
    }

    fn inject(&self, packet: &[u8]) {
        self.lock().input(&Segment::parse(packet));
    }

    fn take_packet(&self) -> Option<Emitted> {
        self.lock().out.pop_front()
    }

    fn socket(&self, v6: bool) -> Result<SocketId> {
        if v6 {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        Ok(self.lock().add(Sock::default()))
    }

    fn bind(&self, socket: SocketId, addr: SocketAddr) -> Result<()> {
        let local = SocketAddrV4::new(self.ip, addr.port());
        self.lock().get(socket)?.local = Some(local);
        Ok(())
    }

    fn listen(&self, socket: SocketId, _backlog: u32) -> Result<()> {
        self.lock().get(socket)?.listening = true;
        Ok(())
    }

    fn accept(&self, socket: SocketId, _mode: Mode) -> Result<(SocketId, SocketAddr)> {
        let mut inner = self.lock();
        let queue = &mut inner.get(socket)?.queue;
        let id = queue.pop_front().ok_or(Errno(libc::EAGAIN))?;
        Ok((id, inner.socks[&id].remote.unwrap().into()))
    }

    fn connect(&self, socket: SocketId, addr: SocketAddr, _mode: Mode) -> Result<()> {
        let mut inner = self.lock();
        let retry = inner.now + SYN_RETRY;
        let ip = self.ip;
        let sock = inner.get(socket)?;
        if sock.established {
            return Ok(());
        }
        if sock.connecting.is_some() {
            return Err(Errno(libc::EALREADY));
        }
        let SocketAddr::V4(remote) = addr else {
            return Err(Errno(libc::EAFNOSUPPORT));
        };
        sock.local.get_or_insert(SocketAddrV4::new(ip, 40_000));
        sock.remote = Some(remote);
        sock.connecting = Some(retry);
        sock.snd_nxt = 7000;
        inner.emit(socket, SYN, &[]);
        Err(Errno(libc::EINPROGRESS))
    }

    fn recv(
        &self,
        socket: SocketId,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        _mode: Mode,
    ) -> Result<usize> {
        let mut inner = self.lock();
        let sock = inner.get(socket)?;
        if sock.rx.is_empty() {
            if let Some(error) = sock.error.take() {
                return Err(error);
            }
            return if sock.peer_closed {
                Ok(0)
            } else {
                Err(Errno(libc::EAGAIN))
            };
        }
        let mut n = 0;
        for to in bufs.iter_mut().flat_map(|b| b.iter_mut()) {
            let Some(byte) = sock.rx.get(n) else { break };
            *to = *byte;
            n += 1;
        }
        if !flags.peek {
            sock.rx.drain(..n);
        }
        Ok(n)
    }

    fn send(
        &self,
        socket: SocketId,
        bufs: &[IoSlice<'_>],
        _flags: SendFlags,
        _mode: Mode,
    ) -> Result<usize> {
        let mut inner = self.lock();
        let sock = inner.get(socket)?;
        if sock.write_closed || sock.error.is_some() {
            return Err(Errno(libc::EPIPE));
        }
        let limit = sock
            .options
            .get(&Opt::SendBuffer)
            .map_or(1 << 20, |v| *v as usize);
        let room = limit.saturating_sub(sock.snd_nxt.wrapping_sub(sock.snd_una) as usize);
        let whole: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        let n = whole.len().min(room);
        if n == 0 && !whole.is_empty() {
            return Err(Errno(libc::EAGAIN));
        }
        let segments: Vec<&[u8]> = whole[..n].chunks(1000).collect();
        for (at, segment) in segments.iter().enumerate() {
            let push = if at + 1 == segments.len() { PSH } else { 0 };
            inner.emit(socket, ACK | push, segment);
        }
        Ok(n)
    }

    fn shutdown(&self, socket: SocketId, how: Shutdown) -> Result<()> {
        let mut inner = self.lock();
        let sock = inner.get(socket)?;
        if !sock.established {
            return Err(Errno(libc::ENOTCONN));
        }
        if how != Shutdown::Read && !sock.write_closed {
            sock.write_closed = true;
            inner.emit(socket, ACK | FIN, &[]);
        }
        Ok(())
    }

    fn close(&self, socket: SocketId, _mode: Mode) -> Result<()> {
        let mut inner = self.lock();
        let sock = inner.get(socket)?;
        if sock.established && !sock.write_closed {
            sock.write_closed = true;
            inner.emit(socket, ACK | FIN, &[]);
        }
        let sock = inner.get(socket)?;
        if sock.linger.is_some() && sock.snd_una != sock.snd_nxt {
            return Err(Errno(libc::EAGAIN));
        }
        inner.socks.remove(&socket);
        Ok(())
    }

    fn readiness(&self, socket: SocketId) -> Readiness {
        let mut inner = self.lock();
        let Ok(sock) = inner.get(socket) else {
            return Readiness::default();
        };
        let limit = sock
            .options
            .get(&Opt::SendBuffer)
            .map_or(1 << 20, |v| *v as u32);
        Readiness {
            readable: !sock.rx.is_empty() || !sock.queue.is_empty() || sock.peer_closed,
            writable: sock.established && sock.snd_nxt.wrapping_sub(sock.snd_una) <= limit / 2,
            error: sock.error.is_some(),
            read_closed: sock.peer_closed,
            ..Readiness::default()
        }
    }

    fn activity(&self, socket: SocketId) -> (u64, u64) {
        self.lock().get(socket).map_or((0, 0), |s| (s.arrivals, 0))
    }

    fn local_addr(&self, socket: SocketId) -> Result<SocketAddr> {
        let local = self.lock().get(socket)?.local;
        local.map(Into::into).ok_or(Errno(libc::EINVAL))
    }

    fn peer_addr(&self, socket: SocketId) -> Result<SocketAddr> {
        let remote = self.lock().get(socket)?.remote;
        remote.map(Into::into).ok_or(Errno(libc::ENOTCONN))
    }

    fn set_option(&self, socket: SocketId, opt: Opt, value: i32) -> Result<()> {
        self.lock().get(socket)?.options.insert(opt, value);
        Ok(())
    }

    fn option(&self, socket: SocketId, opt: Opt) -> Result<i32> {
        Ok(self
            .lock()
            .get(socket)?
            .options
            .get(&opt)
            .copied()
            .unwrap_or(0))
    }

    fn set_linger(&self, socket: SocketId, linger: Option<Duration>) -> Result<()> {
        self.lock().get(socket)?.linger = linger;
        Ok(())
    }

    fn linger(&self, socket: SocketId) -> Result<Option<Duration>> {
        Ok(self.lock().get(socket)?.linger)
    }

    fn set_congestion(&self, _socket: SocketId, name: &str) -> Result<()> {
        if name == "cubic" {
            Ok(())
        } else {
            Err(Errno(libc::ENOENT))
        }
    }

    fn congestion(&self, _socket: SocketId) -> Result<String> {
        Ok("cubic".into())
    }

    fn take_error(&self, socket: SocketId) -> Option<Errno> {
        self.lock().get(socket).ok()?.error.take()
    }

    fn info(&self, _socket: SocketId) -> Result<Info> {
        Ok(Info {
            snd_cwnd: 10,
            ..Info::default()
        })
    }

    fn memory(&self, socket: SocketId) -> Result<Memory> {
        let mut inner = self.lock();
        let sock = inner.get(socket)?;
        Ok(Memory {
            readable: sock.rx.len() as u32,
            unacknowledged: sock.snd_nxt.wrapping_sub(sock.snd_una),
            ..Memory::default()
        })
    }
}
