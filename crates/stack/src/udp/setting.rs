//! Settings of sockets.

/// What a socket is opened with.
///
/// ```
/// use perimeter_stack::udp::{UdpConfig, UdpSetting};
///
/// // One of several sockets at a port, with room for bursts.
/// let mut config = UdpConfig::default().with_reuse_port(true).with_recv_buffer(8 << 20);
/// config.set(UdpSetting::Ttl(8));
/// assert_eq!((config.ttl, config.reuse_port), (Some(8), true));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdpConfig {
    /// SO_RCVBUF: memory that datagrams pin while they wait to be received, bytes; each counts
    /// with the whole of its packet buffer. At least one datagram always may. Default 1 MiB.
    pub recv_buffer: u32,
    /// Others may bind to the same address and port (SO_REUSEADDR). Default no.
    pub reuse_address: bool,
    /// Others may bind to the same address and port and share its flows (SO_REUSEPORT). Default
    /// no.
    pub reuse_port: bool,
    /// Bound to all of IPv6, it gets nothing of IPv4 (IPV6_V6ONLY). Default no.
    pub only_v6: bool,
    /// It takes datagrams for any address and port that no other socket takes, and may send from
    /// any: for gateways. Default no.
    pub any: bool,
    /// The interface by which it gets and sends datagrams (SO_BINDTODEVICE), a number from 0; `None`:
    /// any.
    pub device: Option<u16>,
    /// Time to live, or hop limit; `None`: the stack's.
    pub ttl: Option<u8>,
    /// DSCP and ECN (IP_TOS). Default 0.
    pub tos: u8,
    /// It may send to all stations of a link (SO_BROADCAST). Default no.
    pub broadcast: bool,
    /// Datagrams are not cut into fragments: what is longer than the path takes, as far as
    /// routers have told of it, is an error (as with IP_PMTUDISC_DO). Default no.
    pub dont_fragment: bool,
    /// Time to live of what goes to groups. Default 1.
    pub multicast_ttl: u8,
    /// The interface by which it sends to groups; `None`: that of its address, or of the route.
    pub multicast_interface: Option<u16>,
    /// What it sends to groups also comes to sockets of this stack that have joined. Default yes.
    pub multicast_loop: bool,
}

impl Default for UdpConfig {
    fn default() -> UdpConfig {
        UdpConfig {
            recv_buffer: 1 << 20,
            reuse_address: false,
            reuse_port: false,
            only_v6: false,
            any: false,
            device: None,
            ttl: None,
            tos: 0,
            broadcast: false,
            dont_fragment: false,
            multicast_ttl: 1,
            multicast_interface: None,
            multicast_loop: true,
        }
    }
}

perimeter_base::setters! {
    UdpConfig {
        with_recv_buffer(recv_buffer: u32),
        with_reuse_address(reuse_address: bool),
        with_reuse_port(reuse_port: bool),
        with_only_v6(only_v6: bool),
        with_any(any: bool),
        with_device(device: Option<u16>),
        with_ttl(ttl: Option<u8>),
        with_tos(tos: u8),
        with_broadcast(broadcast: bool),
        with_dont_fragment(dont_fragment: bool),
        with_multicast_ttl(multicast_ttl: u8),
        with_multicast_interface(multicast_interface: Option<u16>),
        with_multicast_loop(multicast_loop: bool),
    }
}

/// A setting that can be changed later.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum UdpSetting {
    /// [`UdpConfig::recv_buffer`].
    RecvBuffer(u32),
    /// [`UdpConfig::device`].
    Device(Option<u16>),
    /// [`UdpConfig::ttl`].
    Ttl(u8),
    /// [`UdpConfig::tos`].
    Tos(u8),
    /// [`UdpConfig::broadcast`].
    Broadcast(bool),
    /// [`UdpConfig::dont_fragment`].
    DontFragment(bool),
    /// [`UdpConfig::multicast_ttl`].
    MulticastTtl(u8),
    /// [`UdpConfig::multicast_interface`].
    MulticastInterface(Option<u16>),
    /// [`UdpConfig::multicast_loop`].
    MulticastLoop(bool),
}

impl UdpConfig {
    /// Changes one.
    pub fn set(&mut self, s: UdpSetting) {
        match s {
            UdpSetting::RecvBuffer(n) => self.recv_buffer = n,
            UdpSetting::Device(n) => self.device = n,
            UdpSetting::Ttl(n) => self.ttl = Some(n),
            UdpSetting::Tos(n) => self.tos = n,
            UdpSetting::Broadcast(on) => self.broadcast = on,
            UdpSetting::DontFragment(on) => self.dont_fragment = on,
            UdpSetting::MulticastTtl(n) => self.multicast_ttl = n,
            UdpSetting::MulticastInterface(n) => self.multicast_interface = n,
            UdpSetting::MulticastLoop(on) => self.multicast_loop = on,
        }
    }
}
