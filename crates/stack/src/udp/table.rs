//! The sockets of one perimeter.

use super::ports::{Bound, Claim};
use super::socket::{Addressed, Socket, UdpInfo};
use super::{UdpConfig, UdpError};
use crate::count::Count;
use crate::ctx::Ctx;
use crate::id::{Slots, SockId};
use crate::kind::Kind;
use core::net::IpAddr;
use perimeter_wire::FlowKey;

/// The most groups that one socket is in.
const SOCKET_GROUPS: usize = 64;

/// The sockets of one perimeter, for who is inside.
pub struct Table<K: Kind> {
    sockets: Slots<Socket<K>>,
}

impl<K: Kind> Default for Table<K> {
    fn default() -> Table<K> {
        Table {
            sockets: Slots::default(),
        }
    }
}

impl<K: Kind> Table<K> {
    /// Opens a socket in this perimeter, which is number `n`, bound to an address (unspecified:
    /// any) and a port (0: a free one); its name and port.
    ///
    /// # Errors
    /// [`UdpError::InUse`], [`UdpError::NotOurs`], [`UdpError::NoInterface`], [`UdpError::NoMemory`].
    pub fn open(
        &mut self,
        cx: &mut Ctx<K>,
        n: u16,
        (addr, port): (IpAddr, u16),
        config: UdpConfig,
    ) -> Result<(SockId, u16), UdpError> {
        if cx.sh.memory_full() {
            cx.count(Count::MemRefused, 1);
            return Err(UdpError::NoMemory);
        }
        if !cx.sh.has_interface(config.device) {
            return Err(UdpError::NoInterface);
        }
        let claim = Claim::of(addr, config.only_v6);
        let ours = |a: IpAddr| a.is_multicast() || cx.sh.may_bind(a);
        if claim.addr().is_some_and(|a| !ours(a)) {
            return Err(UdpError::NotOurs);
        }
        let (any, device) = (config.any, config.device);
        let (reuse_address, reuse_port) = (config.reuse_address, config.reuse_port);
        let place = self.sockets.insert_with(|slot, generation| {
            let id = SockId::datagram(n, slot, generation);
            Some(Socket::new(cx, id, claim, config))
        });
        let (slot, generation) = place.ok_or(UdpError::NoMemory)?;
        let id = SockId::datagram(n, slot, generation);
        let bound = || Bound {
            id,
            claim,
            reuse_address,
            reuse_port,
            connected: false,
            device,
            groups: Vec::new(),
        };
        let sh = cx.sh;
        let bound = match port {
            _ if any && port == 0 => Some(0),
            0 => {
                let nobody = FlowKey {
                    local: addr,
                    remote: addr,
                    ..FlowKey::UNSPECIFIED
                };
                let free = |port| {
                    let free = sh.udp.is_free(port) && sh.udp.bind(port, bound());
                    free.then_some(port)
                };
                sh.ports.pick(&nobody, free)
            }
            port => sh.udp.bind(port, bound()).then_some(port),
        };
        let socket = self.sockets.get_mut(slot, generation);
        if let (Some(port), Some(socket)) = (bound, socket) {
            socket.port = port;
            if any {
                sh.udp.take_any(id, device);
            }
            return Ok((id, port));
        }
        if let Some(socket) = self.sockets.remove(slot, generation) {
            socket.end(cx);
        }
        Err(UdpError::InUse)
    }

    /// The socket of that name.
    #[inline]
    pub fn get(&mut self, id: SockId) -> Option<&mut Socket<K>> {
        self.sockets.get_mut(id.index(), id.generation())
    }

    /// Datagrams have come for sockets of this perimeter.
    #[inline]
    pub fn deliver(&mut self, cx: &mut Ctx<K>, all: &mut Vec<Addressed>) {
        for Addressed { rx, to, .. } in all.iter_mut() {
            match self.get(*to) {
                Some(socket) => socket.deliver(cx, rx),
                None => {
                    cx.count(Count::StaleHandle, 1);
                    cx.pool.put(core::mem::take(&mut rx.data));
                }
            }
        }
        all.clear();
    }

    /// Gives a socket a peer: it receives from that one alone, and sends to it unless told
    /// otherwise.
    ///
    /// # Errors
    /// No way leads there, or another socket has that flow.
    pub fn connect(
        &mut self,
        cx: &mut Ctx<K>,
        id: SockId,
        to: (IpAddr, u16),
    ) -> Result<(), UdpError> {
        let sh = cx.sh;
        let socket = self.get(id).ok_or(UdpError::Closed)?;
        if to.1 == 0 || socket.port == 0 {
            return Err(UdpError::Invalid);
        }
        let source = socket.source_to(cx, to.0)?;
        let old = socket.flow();
        let new = FlowKey {
            local: source,
            remote: to.0,
            local_port: socket.port,
            remote_port: to.1,
        };
        if old == Some(new) {
            return Ok(());
        }
        if !sh.udp.connect(&new, id, socket.config.device) {
            return Err(UdpError::InUse);
        }
        if let Some(old) = old {
            sh.udp.disconnect(&old, id);
        }
        sh.udp.change(socket.port, id, |b| b.connected = true);
        (socket.remote, socket.source) = (Some(to), Some(source));
        socket.path = None;
        socket.take_error();
        Ok(())
    }

    /// Joins a group on an interface.
    ///
    /// # Errors
    /// [`UdpError::Invalid`]: it is no group, or there is no such interface; [`UdpError::InUse`]:
    /// the socket is in it; [`UdpError::NoMemory`]: there are too many.
    pub fn join(
        &mut self,
        cx: &mut Ctx<K>,
        id: SockId,
        (group, iface): (IpAddr, u16),
    ) -> Result<(), UdpError> {
        let socket = self.get(id).ok_or(UdpError::Closed)?;
        if !group.is_multicast() || iface >= cx.sh.loopback().0 {
            return Err(UdpError::Invalid);
        }
        if socket.groups.contains(&(group, iface)) {
            return Err(UdpError::InUse);
        }
        if socket.groups.len() >= SOCKET_GROUPS || !cx.sh.join(cx.own, iface, group) {
            return Err(UdpError::NoMemory);
        }
        socket.groups.push((group, iface));
        let all = socket.groups.clone();
        cx.sh.udp.change(socket.port, id, |b| b.groups = all);
        Ok(())
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// [`UdpError::NotOurs`]: the socket is not in it.
    pub fn leave(
        &mut self,
        cx: &mut Ctx<K>,
        id: SockId,
        at: (IpAddr, u16),
    ) -> Result<(), UdpError> {
        let socket = self.get(id).ok_or(UdpError::Closed)?;
        let place = socket.groups.iter().position(|g| *g == at);
        socket.groups.remove(place.ok_or(UdpError::NotOurs)?);
        let all = socket.groups.clone();
        cx.sh.udp.change(socket.port, id, |b| b.groups = all);
        cx.sh.leave_group(cx.own, at.1, at.0);
        Ok(())
    }

    /// Closes a socket; whether there was one.
    pub fn close(&mut self, cx: &mut Ctx<K>, id: SockId) -> bool {
        let Some(socket) = self.sockets.remove(id.index(), id.generation()) else {
            return false;
        };
        Self::let_go(cx, socket);
        true
    }

    fn let_go(cx: &mut Ctx<K>, socket: Socket<K>) {
        if let Some(flow) = socket.flow() {
            cx.sh.udp.disconnect(&flow, socket.id);
        }
        for (group, iface) in &socket.groups {
            cx.sh.leave_group(cx.own, *iface, *group);
        }
        cx.sh.udp.unbind(socket.port, socket.id);
        if socket.config.any {
            cx.sh.udp.leave_any(socket.id);
        }
        socket.end(cx);
    }

    /// Appends what there is to say about every socket.
    pub fn inspect(&self, out: &mut Vec<UdpInfo>) {
        out.extend(self.sockets.iter().map(|(_, _, s)| s.look()));
    }

    /// Closes all: the stack is being dropped.
    pub fn end(&mut self, cx: &mut Ctx<K>) {
        let all: Vec<SockId> = self.sockets.iter().map(|(_, _, s)| s.id).collect();
        for id in all {
            self.close(cx, id);
        }
    }
}
