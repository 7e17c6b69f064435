//! Options of datagram sockets.

use super::UdpSocket;
use crate::addr;
use crate::error::io;
use crate::tcp::{hops, limit, set_limit};
use perimeter_stack::udp::UdpSetting;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl UdpSocket {
    /// Calls do not wait but fail with `WouldBlock`, or wait again.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// a.set_nonblocking(true)?;
    /// let nothing_yet = a.recv_from(&mut buf).expect_err("nobody has sent anything");
    /// assert_eq!(nothing_yet.kind(), ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.h.nonblocking.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Limits how long receiving waits; `None` is no limit.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// a.set_read_timeout(Some(Duration::from_millis(10)))?;
    /// assert_eq!(a.read_timeout()?, Some(Duration::from_millis(10)));
    /// let late = a.recv_from(&mut buf).expect_err("nobody sends anything");
    /// assert_eq!(late.kind(), ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The limit is zero.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> Result<()> {
        set_limit(&self.h.read_limit, limit)
    }

    /// Limits how long sending waits for room in the transmit ring; `None` is no limit.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// a.set_write_timeout(Some(Duration::from_secs(1)))?;
    /// assert_eq!(a.write_timeout()?, Some(Duration::from_secs(1)));
    /// let error = a.set_write_timeout(Some(Duration::ZERO)).expect_err("not a limit");
    /// assert_eq!(error.to_string(), "a time limit of zero; use `None`");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The limit is zero.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> Result<()> {
        set_limit(&self.h.write_limit, limit)
    }

    /// How long receiving waits.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// let before = a.read_timeout()?;
    /// // Takes what is there, and does not wait for more.
    /// a.set_read_timeout(Some(Duration::from_millis(1)))?;
    /// while a.recv_from(&mut buf).is_ok() {}
    /// a.set_read_timeout(before)?;
    /// assert_eq!(a.read_timeout()?, before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn read_timeout(&self) -> Result<Option<Duration>> {
        Ok(limit(&self.h.read_limit))
    }

    /// How long sending waits.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// assert_eq!(a.write_timeout()?, None, "it waits until there is room");
    /// a.set_write_timeout(Some(Duration::from_millis(5)))?;
    /// assert_eq!(a.write_timeout()?, Some(Duration::from_millis(5)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None today; as `std::net`.
    pub fn write_timeout(&self) -> Result<Option<Duration>> {
        Ok(limit(&self.h.write_limit))
    }

    fn set(&self, s: UdpSetting) -> Result<()> {
        self.h.engine.udp_set(self.h.id, s).map_err(io)
    }

    /// SO_BINDTODEVICE: it gets what comes by that interface, and nothing else; and what it sends
    /// leaves by that interface, so that only routes that lead there are routes, also where the source
    /// address is chosen. That interface comes before [`UdpSocket::set_multicast_interface`]'s. What
    /// has come before stays. `None`: any interface.
    ///
    /// Two sockets may be bound to one address and port where they are bound to different interfaces
    /// before: by [`UdpConfig::device`](crate::UdpConfig). Of sockets that may get the same, the one
    /// at the address gets it, then the one that is bound to the interface.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// b.bind_device(Some("lo"))?;
    /// assert_eq!(b.device()?.as_deref(), Some("lo"));
    /// // It is for this stack's own sockets.
    /// a.send_to(b"hello", b.local_addr()?)?;
    /// assert_eq!(b.recv_from(&mut buf)?.0, 5);
    /// let error = b.send_to(b"hello", "10.0.0.9:5000").expect_err("no way leads out");
    /// assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
    ///
    /// let error = b.bind_device(Some("eth9")).expect_err("there is none of that name");
    /// assert_eq!(error.to_string(), "this stack has no interface `eth9`; it has wire1, lo");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`: the stack has no interface of that name
    /// ([`Stack::interfaces`](crate::Stack::interfaces)); or the socket has gone.
    pub fn bind_device(&self, interface: Option<&str>) -> Result<()> {
        let device = addr::interface(&*self.h.engine, interface)?;
        self.set(UdpSetting::Device(device))
    }

    /// SO_BINDTODEVICE: the name of the interface that it is bound to.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let config = UdpConfig::default().with_device(Some(0));
    /// let socket = stack.bind_udp_with("0.0.0.0:67", &config)?;
    /// // By name what the settings have by number.
    /// assert_eq!(socket.device()?, stack.interfaces().first().cloned());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn device(&self) -> Result<Option<String>> {
        let device = self.info()?.config.device;
        Ok(addr::name(&*self.h.engine, device))
    }

    /// IP_TTL: time to live of what it sends to one host, 1 to 255.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// a.set_ttl(8)?;
    /// assert_eq!(a.ttl()?, 8);
    /// a.send_to(b"hello", b.local_addr()?)?;
    /// let mut batch = Datagrams::with_capacity(1);
    /// b.recv_many(&mut batch)?;
    /// assert!(batch.iter().all(|d| d.ttl == 8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput`: out of range.
    pub fn set_ttl(&self, ttl: u32) -> Result<()> {
        self.set(UdpSetting::Ttl(hops(ttl)?))
    }

    /// IP_TTL; 0: the stack's.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// assert_eq!(a.ttl()?, 0, "that of the stack");
    /// a.set_ttl(1)?;
    /// assert_eq!(a.ttl()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn ttl(&self) -> Result<u32> {
        Ok(self.info()?.config.ttl.unwrap_or(0).into())
    }

    /// IP_TOS: DSCP in the upper six bits, ECN in the lower two.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// // Expedited Forwarding (RFC 3246).
    /// a.set_tos(46 << 2)?;
    /// assert_eq!(a.tos()?, 184);
    /// a.send_to(b"hello", b.local_addr()?)?;
    /// let mut batch = Datagrams::with_capacity(1);
    /// b.recv_many(&mut batch)?;
    /// assert!(batch.iter().all(|d| d.tos == 184));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        self.set(UdpSetting::Tos(tos))
    }

    /// IP_TOS.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// assert_eq!(a.tos()?, 0, "best effort");
    /// a.set_tos(46 << 2)?;
    /// assert_eq!(a.tos()? >> 2, 46, "the DSCP");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn tos(&self) -> Result<u8> {
        Ok(self.info()?.config.tos)
    }

    /// IPV6_V6ONLY, as it was bound with: one on `[::]` gets nothing of IPv4 then.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let v6 = stack.bind_udp_with("[::]:53", &UdpConfig::default().with_only_v6(true))?;
    /// assert!(v6.only_v6()?);
    /// // So the same port is free over IPv4.
    /// let v4 = stack.bind_udp("0.0.0.0:53")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn only_v6(&self) -> Result<bool> {
        Ok(self.info()?.config.only_v6)
    }

    /// SO_BROADCAST: it may send to all stations of a link.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// let error = a.send_to(b"hello", "255.255.255.255:5000").expect_err("not without it");
    /// assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    /// a.set_broadcast(true)?;
    /// assert!(a.broadcast()?);
    /// assert_eq!(a.send_to(b"hello", "255.255.255.255:5000")?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_broadcast(&self, on: bool) -> Result<()> {
        self.set(UdpSetting::Broadcast(on))
    }

    /// SO_BROADCAST.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// assert!(!a.broadcast()?, "one host at a time");
    /// a.set_broadcast(true)?;
    /// assert!(a.broadcast()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let group = Ipv4Addr::new(239, 1, 2, 3);
    /// let member = stack.bind_udp("0.0.0.0:5000")?;
    /// member.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)?;
    /// let sender = stack.bind_udp("10.0.0.1:0")?;
    /// sender.send_to(b"to all of you", (group, 5000))?;
    /// assert_eq!(member.recv_from(&mut [0; 100])?, (13, sender.local_addr()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let group = Ipv4Addr::new(239, 1, 2, 3);
    /// let member = stack.bind_udp("0.0.0.0:5000")?;
    /// member.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)?;
    /// member.leave_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)?;
    /// let error = member.leave_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED).expect_err("it has left");
    /// assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let group = "ff02::123".parse()?;
    /// let member = stack.bind_udp("[::]:5000")?;
    /// member.join_multicast_v6(&group, 0)?;
    /// let error = member.join_multicast_v6(&group, 0).expect_err("it is in it");
    /// assert_eq!(error.kind(), ErrorKind::AddrInUse);
    /// member.leave_multicast_v6(&group, 0)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::join_multicast_v4`].
    pub fn join_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> Result<()> {
        self.group(IpAddr::V6(*multiaddr), numbered(interface), true)
    }

    /// Leaves a group of IPv6.
    ///
    /// ```
    #[doc = include_str!("../examples/stack.txt")]
    /// let group = "ff02::123".parse()?;
    /// let member = stack.bind_udp("[::]:5000")?;
    /// member.join_multicast_v6(&group, 1)?;
    /// member.leave_multicast_v6(&group, 1)?;
    /// let error = member.leave_multicast_v6(&group, 1).expect_err("it has left");
    /// assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::leave_multicast_v4`].
    pub fn leave_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> Result<()> {
        self.group(IpAddr::V6(*multiaddr), numbered(interface), false)
    }

    /// IP_MULTICAST_LOOP: what it sends to groups also comes to sockets of this stack that have
    /// joined. One setting for both families.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// a.set_multicast_loop_v4(false)?;
    /// assert!(!a.multicast_loop_v4()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_multicast_loop_v4(&self, on: bool) -> Result<()> {
        self.set(UdpSetting::MulticastLoop(on))
    }

    /// IP_MULTICAST_LOOP.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// assert!(a.multicast_loop_v4()?, "members on this stack hear it, too");
    /// a.set_multicast_loop_v4(false)?;
    /// assert!(!a.multicast_loop_v4()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn multicast_loop_v4(&self) -> Result<bool> {
        Ok(self.info()?.config.multicast_loop)
    }

    /// IPV6_MULTICAST_LOOP: the same setting as IPv4's.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// a.set_multicast_loop_v6(false)?;
    /// assert_eq!((a.multicast_loop_v6()?, a.multicast_loop_v4()?), (false, false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_multicast_loop_v6(&self, on: bool) -> Result<()> {
        self.set_multicast_loop_v4(on)
    }

    /// IPV6_MULTICAST_LOOP.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// // One setting: it was made for IPv4.
    /// a.set_multicast_loop_v4(false)?;
    /// assert!(!a.multicast_loop_v6()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn multicast_loop_v6(&self) -> Result<bool> {
        self.multicast_loop_v4()
    }

    /// IP_MULTICAST_TTL, and IPV6_MULTICAST_HOPS: of what it sends to groups, 1 to 255. Default 1.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// // As far as the site's border.
    /// a.set_multicast_ttl_v4(32)?;
    /// assert_eq!(a.multicast_ttl_v4()?, 32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput`: out of range.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> Result<()> {
        self.set(UdpSetting::MulticastTtl(hops(ttl)?))
    }

    /// IP_MULTICAST_TTL, and IPV6_MULTICAST_HOPS.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// assert_eq!(a.multicast_ttl_v4()?, 1, "no further than the link");
    /// a.set_multicast_ttl_v4(8)?;
    /// assert_eq!((a.multicast_ttl_v4()?, a.ttl()?), (8, 0), "to single hosts nothing changes");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn multicast_ttl_v4(&self) -> Result<u32> {
        Ok(self.info()?.config.multicast_ttl.into())
    }

    /// IP_MULTICAST_IF, and IPV6_MULTICAST_IF: the number of the interface by which it sends to
    /// groups, from 0; `None`: that of its address, or of the route.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// a.set_multicast_interface(Some(0))?;
    /// assert_eq!(a.multicast_interface()?, Some(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_multicast_interface(&self, interface: Option<u16>) -> Result<()> {
        self.set(UdpSetting::MulticastInterface(interface))
    }

    /// IP_MULTICAST_IF, and IPV6_MULTICAST_IF, as it was set.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// assert_eq!(a.multicast_interface()?, None, "that of its address");
    /// a.set_multicast_interface(Some(0))?;
    /// let n = a.multicast_interface()?.ok_or("it was set")?;
    /// assert_eq!(stack.interfaces()[usize::from(n)], "wire1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn multicast_interface(&self) -> Result<Option<u16>> {
        Ok(self.info()?.config.multicast_interface)
    }

    /// IP_MTU_DISCOVER with IP_PMTUDISC_DO: datagrams that are longer than the path takes are an
    /// error (EMSGSIZE) instead of being cut into fragments. One that turns out to have been too
    /// long on the way is lost; a connected socket's next call says so, with the same error, and
    /// [`UdpSocket::path_mtu`] what the path takes. Default no.
    ///
    /// ```
    #[doc = include_str!("../examples/apart.txt")]
    /// let (a, b) = (near.bind_udp("10.0.0.1:4000")?, far.bind_udp("10.0.0.2:5000")?);
    /// # b.set_read_timeout(Some(Duration::from_secs(20)))?;
    /// a.send_to(&[7; 5000], "10.0.0.2:5000")?;
    /// assert_eq!(b.recv_from(&mut [0; 5000])?.0, 5000, "it was cut, and put together again");
    ///
    /// a.set_dont_fragment(true)?;
    /// assert!(a.dont_fragment()?);
    /// let error = a.send_to(&[7; 5000], "10.0.0.2:5000").expect_err("the MTU is 1500");
    /// assert!(error.to_string().starts_with("Message too long"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_dont_fragment(&self, on: bool) -> Result<()> {
        self.set(UdpSetting::DontFragment(on))
    }

    /// Whether datagrams are never cut into fragments.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// assert!(!a.dont_fragment()?, "long datagrams are cut");
    /// a.set_dont_fragment(true)?;
    /// assert!(a.dont_fragment()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// a.connect("10.0.0.9:5000")?;
    /// // Less the headers of IPv4 and UDP: the longest payload that goes in one piece.
    /// let payload = a.path_mtu()? - 28;
    /// assert_eq!(payload, 1472);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotConnected`: the socket has no peer, or no route leads there any more.
    pub fn path_mtu(&self) -> Result<u32> {
        self.h.engine.udp_path_mtu(self.h.id).map_err(io)
    }

    /// SO_RCVBUF: memory that received datagrams pin while they wait, bytes.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// a.set_recv_buffer_size(1 << 20)?;
    /// assert_eq!(a.recv_buffer_size()?, 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn set_recv_buffer_size(&self, bytes: u32) -> Result<()> {
        self.set(UdpSetting::RecvBuffer(bytes))
    }

    /// SO_RCVBUF.
    ///
    /// ```
    #[doc = include_str!("../examples/udp.txt")]
    /// // Room for what comes while nobody receives.
    /// if a.recv_buffer_size()? < 4 << 20 {
    ///     a.set_recv_buffer_size(4 << 20)?;
    /// }
    /// assert_eq!(a.recv_buffer_size()?, 4 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The socket has gone.
    pub fn recv_buffer_size(&self) -> Result<u32> {
        Ok(self.info()?.config.recv_buffer)
    }
}

/// The number of an interface among the stack's, of a scope id.
fn numbered(scope: u32) -> u16 {
    u16::try_from(scope).map_or(u16::MAX, |n| n.saturating_sub(1))
}
