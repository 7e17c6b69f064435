//! A socket: what has come for it, what it sends to whom, and who waits.

use super::path::{Path, Waiting};
use super::setting::{UdpConfig, UdpSetting};
use super::{Claim, UdpError};
use crate::count::Count;
use crate::ctx::Ctx;
use crate::id::SockId;
use crate::kind::Kind;
use crate::ready::{self, Side};
pub use crate::received::{Addressed, Rx};
use core::net::IpAddr;
use perimeter_base::PktBuf;
use perimeter_sync::{Platform, Work};
use perimeter_tcp::TcpError;
use perimeter_wire::FlowKey;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that a socket counts for being there.
pub(super) const SOCKET: usize = 1024;

impl Rx {
    /// Memory that it pins, bytes.
    #[inline]
    fn pins(&self) -> usize {
        self.data.capacity() + size_of::<Rx>()
    }

    /// A copy, with its data.
    pub fn copy(&self) -> Rx {
        Rx {
            data: PktBuf::copy_of(self.data.as_slice()),
            ..*self
        }
    }
}

/// A look at a socket.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UdpInfo {
    /// Its name.
    pub id: SockId,
    /// Its address; `None`: any.
    pub local: Option<IpAddr>,
    /// Its port.
    pub port: u16,
    /// Bound to an address of IPv6, or to all of them.
    pub v6: bool,
    /// Its peer.
    pub remote: Option<(IpAddr, u16)>,
    /// Datagrams that wait to be received.
    pub queued: usize,
    /// Memory that they pin, bytes.
    pub pinned: usize,
    /// Datagrams that were dropped because there was no room.
    pub drops: u64,
    /// Datagrams that wait for a neighbour's station.
    pub waiting: usize,
    /// Its settings.
    pub config: UdpConfig,
}

/// A socket, protected by its perimeter.
pub struct Socket<K: Kind> {
    pub(super) id: SockId,
    pub(super) claim: Claim,
    pub(super) port: u16,
    /// The address that it sends from, once it has a peer.
    pub(super) source: Option<IpAddr>,
    pub(super) remote: Option<(IpAddr, u16)>,
    pub(super) config: UdpConfig,
    queue: VecDeque<Rx>,
    pinned: usize,
    drops: u64,
    pub(super) error: Option<UdpError>,
    pub(super) read: Side<K>,
    pub(super) write: Side<K>,
    pub(super) path: Option<Arc<Path>>,
    pub(super) waiting: VecDeque<Waiting>,
    /// The groups that it has joined, each on an interface.
    pub(super) groups: Vec<(IpAddr, u16)>,
}

impl<K: Kind> Socket<K> {
    pub(super) fn new(cx: &mut Ctx<K>, id: SockId, claim: Claim, config: UdpConfig) -> Socket<K> {
        cx.charge(0, SOCKET);
        let mut write = Side::write();
        write.raise(ready::OUT, &mut cx.deferred.wakes);
        Socket {
            id,
            claim,
            port: 0,
            source: None,
            remote: None,
            config,
            queue: VecDeque::new(),
            pinned: 0,
            drops: 0,
            error: None,
            read: Side::read(),
            write,
            path: None,
            waiting: VecDeque::new(),
            groups: Vec::new(),
        }
    }

    /// Its flow, if it has a peer.
    pub(super) fn flow(&self) -> Option<FlowKey> {
        let (remote, remote_port) = self.remote?;
        Some(FlowKey {
            local: self.source?,
            remote,
            local_port: self.port,
            remote_port,
        })
    }

    /// A datagram has come; it is taken, and what is left is nothing.
    #[inline]
    pub(super) fn deliver(&mut self, cx: &mut Ctx<K>, rx: &mut Rx) {
        if self.remote.is_some_and(|peer| peer != rx.src) {
            // It was looked up before the socket had this peer.
            cx.count(Count::UdpNoSocket, 1);
            return cx.pool.put(core::mem::take(&mut rx.data));
        }
        let pins = rx.pins();
        let mut room = self.config.recv_buffer as usize;
        if cx.sh.memory_short() {
            room = room.min(cx.sh.share());
        }
        if self.pinned + pins > room && !self.queue.is_empty() {
            self.drops += 1;
            cx.count(Count::UdpQueueFull, 1);
            return cx.pool.put(core::mem::take(&mut rx.data));
        }
        self.pinned += pins;
        cx.charge(0, pins);
        self.queue.push_back(core::mem::take(rx));
        self.read.raise(ready::IN, &mut cx.deferred.wakes);
    }

    /// Takes the error that is pending.
    pub fn take_error(&mut self) -> Option<UdpError> {
        let e = self.error.take()?;
        self.read.lower(ready::ERR);
        self.write.lower(ready::ERR);
        Some(e)
    }

    /// Something that it sent has not arrived: the next call says so.
    pub fn fail(&mut self, cx: &mut Ctx<K>, e: UdpError) {
        self.error = Some(e);
        self.read.raise(ready::ERR, &mut cx.deferred.wakes);
        self.write.raise(ready::ERR, &mut cx.deferred.wakes);
    }

    /// The oldest datagram, or a copy of it if `peek` is set.
    ///
    /// # Errors
    /// The pending error; or there is none.
    pub fn recv(&mut self, cx: &mut Ctx<K>, peek: bool) -> Result<Rx, UdpError> {
        cx.sh.p.charge(Work::SockCall, 1);
        match self.take_error() {
            Some(e) => Err(e),
            None if peek => self.queue.front().map(Rx::copy).ok_or(UdpError::WouldBlock),
            None => self.take(cx).ok_or(UdpError::WouldBlock),
        }
    }

    /// Moves up to `max` datagrams to `out`; how many.
    ///
    /// # Errors
    /// The pending error; or there is none.
    pub fn recv_many(
        &mut self,
        cx: &mut Ctx<K>,
        max: usize,
        out: &mut Vec<Rx>,
    ) -> Result<usize, UdpError> {
        cx.sh.p.charge(Work::SockCall, 1);
        if let Some(e) = self.take_error() {
            return Err(e);
        }
        let n = self.queue.len().min(max);
        if n == 0 {
            return Err(UdpError::WouldBlock);
        }
        let before = self.pinned;
        self.pinned -= self.queue.range(..n).map(Rx::pins).sum::<usize>();
        out.extend(self.queue.drain(..n));
        self.taken(cx, before);
        Ok(n)
    }

    fn take(&mut self, cx: &mut Ctx<K>) -> Option<Rx> {
        let rx = self.queue.pop_front()?;
        let before = self.pinned;
        self.pinned -= rx.pins();
        self.taken(cx, before);
        Some(rx)
    }

    #[inline]
    fn taken(&mut self, cx: &mut Ctx<K>, before: usize) {
        cx.charge(before, self.pinned);
        if self.queue.is_empty() {
            self.read.lower(ready::IN);
        }
    }

    /// Changes a setting.
    ///
    /// # Errors
    /// [`UdpError::NoInterface`].
    pub fn set(&mut self, cx: &mut Ctx<K>, s: UdpSetting) -> Result<(), UdpError> {
        if let UdpSetting::Device(device) = s {
            if !cx.sh.has_interface(device) {
                return Err(UdpError::NoInterface);
            }
            let flow = self.flow();
            cx.sh
                .udp
                .set_device(self.port, self.id, flow.as_ref(), device);
        }
        self.config.set(s);
        // Headers were made with the old ones.
        self.path = None;
        Ok(())
    }

    /// What it is ready for.
    pub fn readiness(&self) -> u8 {
        self.read.bits() | self.write.bits()
    }

    /// The sides: of receiving and of sending.
    pub fn sides(&mut self) -> [&mut Side<K>; 2] {
        [&mut self.read, &mut self.write]
    }

    /// What there is to say about it.
    pub fn look(&self) -> UdpInfo {
        UdpInfo {
            id: self.id,
            local: self.source.or(self.claim.addr()),
            port: self.port,
            v6: match self.claim {
                Claim::One(a) => a.is_ipv6(),
                Claim::V4 => false,
                Claim::V6 { .. } => true,
            },
            remote: self.remote,
            queued: self.queue.len(),
            pinned: self.pinned,
            drops: self.drops,
            waiting: self.waiting.len(),
            config: self.config.clone(),
        }
    }

    /// An error of the network about a datagram that was sent with this flow. Only a socket with
    /// that peer is told (RFC 1122, section 4.1.3.3; as every system does).
    pub fn network_error(&mut self, cx: &mut Ctx<K>, ends: &FlowKey, e: UdpError) {
        if self.flow().as_ref() == Some(ends) {
            cx.count(Count::IcmpErrors, 1);
            self.fail(cx, e);
        }
    }

    /// A datagram of that flow was too big for the path, whose MTU is known by now: headers are made
    /// anew. A socket with that peer which does not let datagrams be cut is told, as that one is
    /// lost.
    pub fn path_lowered(&mut self, cx: &mut Ctx<K>, ends: &FlowKey) {
        self.path = None;
        if self.config.dont_fragment {
            self.network_error(cx, ends, UdpError::TooLong);
        }
    }

    /// The longest datagram, header of IP included, that goes to its peer in one piece, as far as is
    /// known, octets. `None`: it has no peer, or no route leads there.
    pub fn path_mtu(&self, cx: &mut Ctx<K>) -> Option<u32> {
        let (to, _) = self.remote?;
        let iface = match self.group(cx, to) {
            Some(iface) => iface,
            None => cx.sh.routes.hop_by((to, self.config.device))?.iface,
        };
        let now = cx.now();
        let (mtu, _) = cx.sh.path_mtu(iface, to, now);
        Some(mtu.min(perimeter_wire::MAX_DATAGRAM))
    }

    /// The last interface has gone.
    pub fn network_down(&mut self, cx: &mut Ctx<K>) {
        self.fail(cx, UdpError::Failed(TcpError::NetDown));
    }

    /// It goes: who waits is woken, and what it pins is given back.
    pub(super) fn end(mut self, cx: &mut Ctx<K>) {
        for side in [&mut self.read, &mut self.write] {
            side.leave(&mut cx.deferred.wakes);
        }
        let waiting: usize = self.waiting.iter().map(Waiting::pins).sum();
        cx.charge(SOCKET + self.pinned + waiting, 0);
        for rx in self.queue.drain(..) {
            cx.pool.put(rx.data);
        }
    }
}
