//! Datagram sockets, as in `std::net`, and batches of datagrams.

use crate::addr::{inward, outward};
use crate::error::io;
use crate::stack::Stack;
use crate::tcp::{Handle, each, set_limit};
use perimeter_org::engine::{CopiedOut, Engine, Transmit};
use perimeter_stack::udp::{Rx, UdpInfo, UdpSetting};
use perimeter_stack::{SockId, ready};
use smallvec::SmallVec;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use perimeter_stack::udp::UdpConfig;

/// A UDP socket. Clones ([`UdpSocket::try_clone`]) are the same socket; any thread may use any of
/// them, at the same time.
///
/// What does not fit the caller's buffer is lost, as with `std::net`. A datagram whose neighbour's
/// station is not known yet waits for it, and 15 more; then the oldest goes.
pub struct UdpSocket {
    h: Arc<Handle>,
    /// Bound to an address of IPv6: it knows IPv4's as mapped ones (RFC 4291, section 2.5.5.2).
    v6: bool,
}

/// A datagram to be sent, or several of one length: an entry of a batch.
#[derive(Copy, Clone, Debug)]
pub struct Outgoing<'a> {
    /// To whom; `None`: the socket's peer.
    pub to: Option<SocketAddr>,
    /// From which address and port; `None`: the socket's own. Others need a socket of
    /// [`UdpConfig::any`].
    pub from: Option<SocketAddr>,
    /// The data.
    pub data: &'a [u8],
    /// It is several datagrams of so many bytes each, but for the last one; `None`: it is one.
    pub segment_size: Option<u16>,
}

impl<'a> Outgoing<'a> {
    fn entry(&self, engine: &dyn Engine) -> Result<Transmit<'a>> {
        let end = |addr| meant(engine, addr);
        Ok(Transmit {
            to: self.to.map(end).transpose()?,
            from: self.from.map(end).transpose()?,
            data: self.data,
            segment: self.segment_size.unwrap_or(0),
        })
    }
}

/// An address as the stack has it.
fn meant(engine: &dyn Engine, addr: SocketAddr) -> Result<(IpAddr, u16)> {
    let addr = inward(engine, addr)?;
    Ok((addr.ip(), addr.port()))
}

/// A received datagram, in a batch.
#[derive(Copy, Clone, Debug)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub source: SocketAddr,
    /// The address and port that it was sent to.
    pub destination: SocketAddr,
    /// The data.
    pub data: &'a [u8],
    /// The number of the interface that it came by.
    pub interface: usize,
    /// DSCP in the upper six bits, ECN in the lower two.
    pub tos: u8,
    /// Hops that it had left.
    pub ttl: u8,
}

/// Received datagrams, in the memory that they came in. Filled by [`UdpSocket::recv_many`].
pub struct Datagrams {
    all: Vec<Rx>,
    capacity: usize,
    v6: bool,
    engine: Option<Arc<dyn Engine>>,
}

impl Datagrams {
    /// Room for up to `capacity` datagrams at a time.
    pub fn with_capacity(capacity: usize) -> Datagrams {
        let capacity = capacity.max(1);
        Datagrams {
            all: Vec::with_capacity(capacity),
            capacity,
            v6: false,
            engine: None,
        }
    }

    /// The datagrams of the last [`UdpSocket::recv_many`], in order of arrival.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Datagram<'_>> {
        let v6 = self.v6;
        self.all.iter().map(move |rx| Datagram {
            source: seen(v6, rx.src),
            destination: seen(v6, rx.dst),
            data: rx.data.as_slice(),
            interface: rx.iface.into(),
            tos: rx.tos,
            ttl: rx.hop_limit,
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Gives their memory back to the stack.
    pub fn clear(&mut self) {
        if let Some(engine) = self.engine.take()
            && !self.all.is_empty()
        {
            engine.recycle(self.all.drain(..).map(|rx| rx.data).collect());
        }
        self.all.clear();
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.clear();
    }
}

/// An address as a socket of that family sees it.
fn seen(v6: bool, (ip, port): (IpAddr, u16)) -> SocketAddr {
    match ip {
        IpAddr::V4(a) if v6 => SocketAddr::new(IpAddr::V6(a.to_ipv6_mapped()), port),
        ip => outward(ip, port),
    }
}

impl UdpSocket {
    pub(crate) fn new(engine: Arc<dyn Engine>, id: SockId, v6: bool) -> UdpSocket {
        UdpSocket {
            h: Handle::new(engine, id),
            v6,
        }
    }

    pub(crate) fn raw(&self) -> (&Arc<dyn Engine>, SockId) {
        (&self.h.engine, self.h.id)
    }

    /// A socket of `stack` bound to `addr`: as [`Stack::bind_udp`].
    ///
    /// # Errors
    /// As there.
    pub fn bind(stack: &Stack, addr: impl ToSocketAddrs) -> Result<UdpSocket> {
        stack.bind_udp(addr)
    }

    /// Another handle to the same socket.
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn try_clone(&self) -> Result<UdpSocket> {
        Ok(UdpSocket {
            h: self.h.clone(),
            v6: self.v6,
        })
    }

    /// The name of the socket within its stack.
    pub fn id(&self) -> SockId {
        self.h.id
    }

    /// Addresses, what is queued, what was dropped, and settings.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn info(&self) -> Result<UdpInfo> {
        self.h.engine.udp_look(self.h.id).map_err(io)
    }

    /// Its address: unspecified if it is bound to all and has no peer.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let info = self.info()?;
        let any = match self.v6 {
            true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        Ok(match info.local {
            Some(a) => seen(self.v6, (a, info.port)),
            None => SocketAddr::new(any, info.port),
        })
    }

    /// Its peer.
    ///
    /// # Errors
    /// `NotConnected`: it has none.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        let peer = self.info()?.remote;
        let peer = peer.ok_or(ErrorKind::NotConnected)?;
        Ok(seen(self.v6, peer))
    }

    /// Gives the socket a peer: from now on it receives from that one alone, [`UdpSocket::send`]
    /// sends there, and errors of the network about what it has sent are told by the next call.
    ///
    /// # Errors
    /// `NetworkUnreachable`: there is no route; `AddrInUse`: another socket has that flow.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> Result<()> {
        each(addr, |addr| {
            let to = self.meant(addr)?;
            self.h.engine.udp_connect(self.h.id, to).map_err(io)
        })
    }

    fn meant(&self, addr: SocketAddr) -> Result<(IpAddr, u16)> {
        meant(&*self.h.engine, addr)
    }

    fn transmit(&self, t: &Transmit<'_>) -> Result<usize> {
        let h = &*self.h;
        h.block(ready::OUT, &h.write_limit, || h.engine.udp_send(h.id, t))
    }

    /// Sends a datagram to `addr`, the first that it parses to.
    ///
    /// # Errors
    /// `WouldBlock`: the transmit ring is full; `NetworkUnreachable`; EMSGSIZE: it is too long; the
    /// error that the network has sent about an earlier one.
    pub fn send_to(&self, buf: &[u8], addr: impl ToSocketAddrs) -> Result<usize> {
        let none = || Error::new(ErrorKind::InvalidInput, "no address given");
        let to = addr.to_socket_addrs()?.next().ok_or_else(none)?;
        self.transmit(&Transmit {
            to: Some(self.meant(to)?),
            from: None,
            data: buf,
            segment: 0,
        })
    }

    /// Sends a datagram to the peer.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`]; `NotConnected`: there is no peer.
    pub fn send(&self, buf: &[u8]) -> Result<usize> {
        self.transmit(&Transmit {
            to: None,
            from: None,
            data: buf,
            segment: 0,
        })
    }

    /// Sends a datagram from `local` to `remote`: on a socket of [`UdpConfig::any`] from any
    /// address and port, on others from their own port and any address of the stack.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`]; `AddrNotAvailable`: it may not send from there.
    pub fn send_from(&self, local: SocketAddr, remote: SocketAddr, buf: &[u8]) -> Result<usize> {
        self.transmit(&Transmit {
            to: Some(self.meant(remote)?),
            from: Some(self.meant(local)?),
            data: buf,
            segment: 0,
        })
    }

    /// Sends `buf` cut into datagrams of `segment_size` bytes each, but for the last one, in one
    /// call (UDP_SEGMENT); how many bytes were sent, which may be fewer where the transmit ring has
    /// no room for all. Datagrams longer than the path's MTU go in fragments, unless
    /// [`UdpSocket::set_dont_fragment`] forbids it. `to`: `None` for the peer.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`].
    pub fn send_segments(
        &self,
        buf: &[u8],
        segment_size: u16,
        to: Option<SocketAddr>,
    ) -> Result<usize> {
        if segment_size == 0 {
            return Err(ErrorKind::InvalidInput.into());
        }
        self.transmit(&Transmit {
            to: to.map(|to| self.meant(to)).transpose()?,
            from: None,
            data: buf,
            segment: segment_size,
        })
    }

    /// Sends a batch in one call; how many entries were sent, the last perhaps in part. One way in
    /// and out of the stack, and one doorbell, for all.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`], of the first.
    pub fn send_many(&self, batch: &[Outgoing<'_>]) -> Result<usize> {
        if batch.is_empty() {
            return Ok(0);
        }
        let h = &*self.h;
        let all = batch.iter().map(|o| o.entry(&*h.engine));
        let all = all.collect::<Result<SmallVec<[Transmit<'_>; 32]>>>()?;
        h.block(ready::OUT, &h.write_limit, || {
            h.engine.udp_send_many(h.id, &all)
        })
    }

    fn receive(&self, buf: &mut [u8], peek: bool) -> Result<CopiedOut> {
        let h = &*self.h;
        h.block(ready::IN, &h.read_limit, || {
            h.engine.udp_recv(h.id, buf, peek)
        })
    }

    /// Receives a datagram: how many bytes of it are in `buf`, and who sent it.
    ///
    /// # Errors
    /// `WouldBlock`; the error that the network has sent about what this socket has sent.
    pub fn recv_from(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr)> {
        let got = self.receive(buf, false)?;
        Ok((got.copied, seen(self.v6, got.src)))
    }

    /// As [`UdpSocket::recv_from`], and the address that it was sent to: bytes, source,
    /// destination.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv_from_to(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr, SocketAddr)> {
        let got = self.receive(buf, false)?;
        Ok((got.copied, seen(self.v6, got.src), seen(self.v6, got.dst)))
    }

    /// As [`UdpSocket::recv_from`], and leaves the datagram there.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn peek_from(&self, buf: &mut [u8]) -> Result<(usize, SocketAddr)> {
        let got = self.receive(buf, true)?;
        Ok((got.copied, seen(self.v6, got.src)))
    }

    /// Receives a datagram from the peer.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`]; `NotConnected`: there is no peer.
    pub fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        Ok(self.receive(buf, false)?.copied)
    }

    /// As [`UdpSocket::recv`], and leaves the datagram there.
    ///
    /// # Errors
    /// As [`UdpSocket::recv`].
    pub fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        Ok(self.receive(buf, true)?.copied)
    }

    /// Receives what has come, at least one datagram and as many as there is room for, without a
    /// copy. What `batch` held goes back to the stack.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv_many(&self, batch: &mut Datagrams) -> Result<usize> {
        let h = &*self.h;
        // Those of another stack do not go to this one.
        if batch
            .engine
            .as_ref()
            .is_none_or(|e| !Arc::ptr_eq(e, &h.engine))
        {
            batch.clear();
            batch.engine = Some(h.engine.clone());
        }
        batch.v6 = self.v6;
        let (max, all) = (batch.capacity, &mut batch.all);
        h.block(ready::IN, &h.read_limit, || {
            h.engine.udp_recv_many(h.id, max, all)
        })
    }

    /// Calls do not wait but fail with `WouldBlock`, or wait again.
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.h.nonblocking.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Limits how long receiving waits; `None` is no limit.
    ///
    /// # Errors
    /// The limit is zero.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> Result<()> {
        set_limit(&self.h.read_limit, limit)
    }

    /// Limits how long sending waits for room in the transmit ring; `None` is no limit.
    ///
    /// # Errors
    /// The limit is zero.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> Result<()> {
        set_limit(&self.h.write_limit, limit)
    }

    /// How long receiving waits.
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn read_timeout(&self) -> Result<Option<Duration>> {
        Ok(limit(&self.h.read_limit))
    }

    /// How long sending waits.
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn write_timeout(&self) -> Result<Option<Duration>> {
        Ok(limit(&self.h.write_limit))
    }

    /// SO_ERROR: the pending error, which is thereby cleared.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn take_error(&self) -> Result<Option<Error>> {
        let e = self.h.engine.udp_take_error(self.h.id).map_err(io)?;
        Ok(e.map(io))
    }

    /// Closes the socket for all its handles: calls blocked on it fail.
    ///
    /// # Errors
    /// It has gone already.
    pub fn close(&self) -> Result<()> {
        self.h.engine.close(self.h.id, false).map_err(io)
    }

    fn set(&self, s: UdpSetting) -> Result<()> {
        self.h.engine.udp_set(self.h.id, s).map_err(io)
    }

    /// IP_TTL: time to live of what it sends to one host, 1 to 255.
    ///
    /// # Errors
    /// `InvalidInput`: out of range.
    pub fn set_ttl(&self, ttl: u32) -> Result<()> {
        self.set(UdpSetting::Ttl(hops(ttl)?))
    }

    /// IP_TTL; 0: the stack's.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn ttl(&self) -> Result<u32> {
        Ok(self.info()?.config.ttl.unwrap_or(0).into())
    }

    /// IP_TOS: DSCP in the upper six bits, ECN in the lower two.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        self.set(UdpSetting::Tos(tos))
    }

    /// IP_TOS.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn tos(&self) -> Result<u8> {
        Ok(self.info()?.config.tos)
    }

    /// IPV6_V6ONLY, as it was bound with: one on `[::]` gets nothing of IPv4 then.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn only_v6(&self) -> Result<bool> {
        Ok(self.info()?.config.only_v6)
    }

    /// SO_BROADCAST: it may send to all stations of a link.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_broadcast(&self, on: bool) -> Result<()> {
        self.set(UdpSetting::Broadcast(on))
    }

    /// SO_BROADCAST.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn broadcast(&self) -> Result<bool> {
        Ok(self.info()?.config.broadcast)
    }

    fn group(&self, group: IpAddr, iface: u16, join: bool) -> Result<()> {
        let at = (group, iface);
        self.h.engine.udp_group(self.h.id, at, join).map_err(io)
    }

    /// The number of the interface that has that address; of the first, if it is unspecified.
    fn interface_v4(&self, addr: &Ipv4Addr) -> Result<u16> {
        if addr.is_unspecified() {
            return Ok(0);
        }
        let all = self.h.engine.addrs();
        let has = |of: &Vec<perimeter_stack::Cidr>| of.iter().any(|c| c.addr == IpAddr::V4(*addr));
        let n = all.iter().position(has);
        let none = || {
            let what = format!("no interface of this stack has the address {addr}");
            Error::new(ErrorKind::AddrNotAvailable, what)
        };
        Ok(n.ok_or_else(none)? as u16)
    }

    /// Joins a group on the interface that has the address `interface` (unspecified: the first):
    /// what is sent to it there comes to this socket too (IP_ADD_MEMBERSHIP).
    ///
    /// # Errors
    /// `InvalidInput`: it is no group; `AddrInUse`: the socket is in it; `AddrNotAvailable`: there
    /// is no such interface.
    pub fn join_multicast_v4(&self, multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> Result<()> {
        let iface = self.interface_v4(interface)?;
        self.group(IpAddr::V4(*multiaddr), iface, true)
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// `AddrNotAvailable`: the socket is not in it.
    pub fn leave_multicast_v4(&self, multiaddr: &Ipv4Addr, interface: &Ipv4Addr) -> Result<()> {
        let iface = self.interface_v4(interface)?;
        self.group(IpAddr::V4(*multiaddr), iface, false)
    }

    /// Joins a group of IPv6 on the interface of that number, from 1 (0: the first), as scope ids
    /// have it.
    ///
    /// # Errors
    /// As [`UdpSocket::join_multicast_v4`].
    pub fn join_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> Result<()> {
        self.group(IpAddr::V6(*multiaddr), numbered(interface), true)
    }

    /// Leaves a group of IPv6.
    ///
    /// # Errors
    /// As [`UdpSocket::leave_multicast_v4`].
    pub fn leave_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> Result<()> {
        self.group(IpAddr::V6(*multiaddr), numbered(interface), false)
    }

    /// IP_MULTICAST_LOOP: what it sends to groups also comes to sockets of this stack that have
    /// joined. One setting for both families.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_multicast_loop_v4(&self, on: bool) -> Result<()> {
        self.set(UdpSetting::MulticastLoop(on))
    }

    /// IP_MULTICAST_LOOP.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn multicast_loop_v4(&self) -> Result<bool> {
        Ok(self.info()?.config.multicast_loop)
    }

    /// IPV6_MULTICAST_LOOP: the same setting as IPv4's.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_multicast_loop_v6(&self, on: bool) -> Result<()> {
        self.set_multicast_loop_v4(on)
    }

    /// IPV6_MULTICAST_LOOP.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn multicast_loop_v6(&self) -> Result<bool> {
        self.multicast_loop_v4()
    }

    /// IP_MULTICAST_TTL, and IPV6_MULTICAST_HOPS: of what it sends to groups, 1 to 255. Default 1.
    ///
    /// # Errors
    /// `InvalidInput`: out of range.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> Result<()> {
        self.set(UdpSetting::MulticastTtl(hops(ttl)?))
    }

    /// IP_MULTICAST_TTL, and IPV6_MULTICAST_HOPS.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn multicast_ttl_v4(&self) -> Result<u32> {
        Ok(self.info()?.config.multicast_ttl.into())
    }

    /// IP_MULTICAST_IF, and IPV6_MULTICAST_IF: the number of the interface by which it sends to
    /// groups, from 0; `None`: that of its address, or of the route.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_multicast_interface(&self, interface: Option<u16>) -> Result<()> {
        self.set(UdpSetting::MulticastInterface(interface))
    }

    /// IP_MTU_DISCOVER with IP_PMTUDISC_DO: datagrams that are longer than the path takes are an
    /// error (EMSGSIZE) instead of being cut into fragments. One that turns out to have been too
    /// long on the way is lost; a connected socket's next call says so, with the same error, and
    /// [`UdpSocket::path_mtu`] what the path takes. Default no.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_dont_fragment(&self, on: bool) -> Result<()> {
        self.set(UdpSetting::DontFragment(on))
    }

    /// Whether datagrams are never cut into fragments.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn dont_fragment(&self) -> Result<bool> {
        Ok(self.info()?.config.dont_fragment)
    }

    /// IP_MTU and IPV6_MTU: the longest datagram, headers of IP and UDP included, that goes to the
    /// peer in one piece, bytes. That is the interface's MTU until a router says less, which is
    /// believed for ten minutes (RFC 1191, RFC 8201); 552 or, over IPv6, 1280 at least.
    ///
    /// # Errors
    /// `NotConnected`: the socket has no peer, or no route leads there any more.
    pub fn path_mtu(&self) -> Result<u32> {
        self.h.engine.udp_path_mtu(self.h.id).map_err(io)
    }

    /// SO_RCVBUF: memory that received datagrams pin while they wait, bytes.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_recv_buffer_size(&self, bytes: u32) -> Result<()> {
        self.set(UdpSetting::RecvBuffer(bytes))
    }

    /// SO_RCVBUF.
    ///
    /// # Errors
    /// The socket has gone.
    pub fn recv_buffer_size(&self) -> Result<u32> {
        Ok(self.info()?.config.recv_buffer)
    }
}

pub(crate) fn limit(place: &AtomicU64) -> Option<Duration> {
    match place.load(Ordering::Relaxed) {
        0 => None,
        ns => Some(Duration::from_nanos(ns)),
    }
}

/// The number of an interface among the stack's, of a scope id.
fn numbered(scope: u32) -> u16 {
    u16::try_from(scope).map_or(u16::MAX, |n| n.saturating_sub(1))
}

/// A time to live, or hop limit.
pub(crate) fn hops(n: u32) -> Result<u8> {
    match u8::try_from(n) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(Error::new(
            ErrorKind::InvalidInput,
            format!("a time to live of {n}; it can be 1 to 255"),
        )),
    }
}
