//! Packet sockets: a stack of its own on any Ethernet interface of the host (Linux).
//!
//! Nothing has to be set up: the device shares an interface that is there, and the kernel goes on
//! using it. It has a link-layer address of its own, as a second station at the same port, so
//! that neither sees the other's frames. What an address of the stack needs:
//!
//! - It must not be one of the host's. The kernel sees every frame, too; frames to another station
//!   it drops, but with the interface's own link-layer address ([`PacketConfig::mac`]) it would
//!   answer segments to an address of its own with resets.
//! - The host itself doesn't reach the stack by the same interface, nor the stack the host: what
//!   either sends goes out to the link (as with macvlan). Use [`tap`](crate::tap) for that, or one
//!   end of a veth pair.
//! - The link must let a second station pass. Ethernet, bridges and veth do; wireless interfaces
//!   and most clouds don't, and need the interface's own address.
//!
//! Frames go in batches of up to 32 per system call, each with a virtio-net header: the kernel and
//! the interface complete checksums and cut large segments, and hand over what was verified or
//! merged. What is received may be merged whether large segments were asked for or not: that is
//! the interface's setting, or the other end's (`ethtool -K IF gro off` turns it off).
//!
//! *Queues* are sockets among which the kernel divides the flows (`PACKET_FANOUT_HASH`), by a hash
//! of addresses and ports that is the same for both directions and does not change while the
//! device is open. It is not the hash of [`rss`](crate::rss), so the stack computes its own.
//!
//! *Dropped* are frames with a VLAN tag (whose interface is another, `eth0.5`), counted as all that
//! goes wrong: see [`PacketHandle`].
//!
//! The kernel undoes everything, also the address that the interface was told to take, when the
//! sockets are closed: so when the process ends, however it does.

mod queue;
mod sys;

use perimeter_wire::MacAddr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::device::{Capabilities, Device, LARGEST, Medium, Queues, RxQueue, TxQueue};
use crate::host;
use crate::ifreq::is_name;
use crate::rng::mix;
use queue::{Counts, PacketRx, PacketTx, Socket};

/// Most queues: members of a fanout group.
const MOST: usize = 256;

/// Which interface to use, and how.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PacketConfig {
    /// Name of the interface, which exists and is up; Ethernet, with any number of queues.
    pub name: String,
    /// Queues, each of them for both directions: 1 to 256. They are sockets, whatever the
    /// interface has.
    pub queues: usize,
    /// Link-layer address of the stack; `None`: one of its own that depends on the interface's
    /// address and name only, so two stacks on one interface need one each. The interface's own
    /// ([`host::mac`]) shares it with the kernel: see the module.
    pub mac: Option<MacAddr>,
    /// Leave checksums of what is sent to the kernel, which leaves them to the interface if that
    /// can. What is received comes with the kernel's word on its checksum in any case.
    pub checksum_offload: bool,
    /// Send large segments of TCP, which the kernel or the interface cuts. Needs checksum offload.
    pub large: bool,
    /// Hand frames to the driver past the interface's queueing discipline: less work, but neither
    /// shaped nor fair to others. Not together with large segments, as the kernel drops there
    /// what an interface can't cut.
    pub bypass_qdisc: bool,
    /// Memory for the frames that wait in each socket, and as much again for those on their way
    /// out, octets. Without CAP_NET_ADMIN no more than `net.core.rmem_max` and `wmem_max`, whose
    /// usual 208 KiB are little for large segments.
    pub buffer: usize,
}

impl PacketConfig {
    /// One queue on that interface, with checksum offload and 32 MiB of buffer.
    pub fn new(name: &str) -> PacketConfig {
        PacketConfig {
            name: name.to_owned(),
            queues: 1,
            mac: None,
            checksum_offload: true,
            large: true,
            bypass_qdisc: false,
            buffer: 32 << 20,
        }
    }
}

perimeter_base::setters! {
    PacketConfig {
        with_name(name: impl Into<String>),
        with_queues(queues: usize),
        with_mac(mac: Option<MacAddr>),
        with_checksum_offload(checksum_offload: bool),
        with_large(large: bool),
        with_bypass_qdisc(bypass_qdisc: bool),
        with_buffer(buffer: usize),
    }
}

/// Why an interface can't be used by packet sockets.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// The name can't be one of an interface.
    #[error("'{0}' is no interface name: 1 to 15 bytes, no '/', no spaces, not '.' or '..'")]
    BadName(String),
    /// The number of queues is out of range.
    #[error("{0} queues: a packet device has 1 to 256")]
    BadQueues(usize),
    /// The link-layer address is a group's, or none.
    #[error("{0} is no station's address: the first octet must be even, and not all may be zero")]
    BadMac(MacAddr),
    /// Two settings that exclude each other.
    #[error(
        "large segments and bypass_qdisc: past the queueing discipline the kernel drops what the \
         interface can't cut; choose one"
    )]
    LargeBypass,
    /// No such interface.
    #[error("no interface '{0}' in this network namespace: 'ip link' lists them")]
    NoInterface(String),
    /// The interface is down.
    #[error("'{0}' is down: ip link set {0} up")]
    Down(String),
    /// The interface has no Ethernet frames.
    #[error(
        "'{name}' is no Ethernet interface (ARPHRD {kind}): packet devices need one; for the \
         host's kernel as the other end use a TAP device"
    )]
    NotEthernet {
        /// The interface.
        name: String,
        /// What it is, as `linux/if_arp.h` numbers it.
        kind: u16,
    },
    /// The kernel was built without packet sockets.
    #[error("this kernel has no packet sockets: it needs CONFIG_PACKET (module af_packet)")]
    NoSockets,
    /// No privilege.
    #[error(
        "no permission for {what} '{name}': run as root or with CAP_NET_RAW (setcap \
         cap_net_raw+ep PROGRAM), or in a user and network namespace (unshare -Urn)"
    )]
    Permission {
        /// What was tried.
        what: &'static str,
        /// The interface.
        name: String,
    },
    /// Anything else.
    #[error("{what} '{name}': {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The interface.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
}

perimeter_base::debug_is_text!(PacketError);

impl PacketError {
    /// Whether more privilege would help.
    pub fn is_permission(&self) -> bool {
        matches!(self, PacketError::Permission { .. })
    }

    fn from_io(what: &'static str, name: &str, source: io::Error) -> PacketError {
        let name = name.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => PacketError::Permission { what, name },
            Some(libc::ENODEV | libc::ENXIO) => PacketError::NoInterface(name),
            Some(libc::ENETDOWN) => PacketError::Down(name),
            Some(libc::EAFNOSUPPORT) => PacketError::NoSockets,
            _ => PacketError::Io { what, name, source },
        }
    }
}

/// Frames of a device since it was opened.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketCounts {
    /// Came and passed the filter: for us or for a group. Those that were dropped count, too.
    pub received: u64,
    /// Dropped on receipt, as [`PacketConfig::buffer`] was full: the stack came too late.
    pub no_room: u64,
    /// Dropped on receipt for their VLAN tag.
    pub tagged: u64,
    /// Dropped on receipt: merged from something else than segments of TCP or datagrams of UDP, longer than 64 KiB, or
    /// shorter than a header.
    pub unusable: u64,
    /// Not sent: the interface was down, or the kernel would not have the frame (such as one that
    /// is longer than an MTU that was lowered meanwhile).
    pub refused: u64,
}

/// Reads what happened on a [`Packet`] device. Cheap to clone; keeps nothing open.
#[derive(Clone)]
pub struct PacketHandle {
    queues: Vec<(Weak<Socket>, Arc<Counts>)>,
}

impl PacketHandle {
    /// All so far; what was, when the device has been closed.
    pub fn counts(&self) -> PacketCounts {
        let mut all = PacketCounts::default();
        for (socket, counts) in &self.queues {
            if let Some(socket) = socket.upgrade() {
                socket.count();
            }
            let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            all.received += of(&counts.received);
            all.no_room += of(&counts.no_room);
            all.tagged += of(&counts.tagged);
            all.unusable += of(&counts.unusable);
            all.refused += of(&counts.refused);
        }
        all
    }
}

/// An interface that was opened by packet sockets. A [`Device`].
pub struct Packet {
    sockets: Vec<Arc<Socket>>,
    name: String,
    mac: MacAddr,
    mtu: u32,
    checksum_offload: bool,
    large: bool,
}

impl Packet {
    /// Opens the interface. It receives from now on.
    ///
    /// # Errors
    /// See [`PacketError`].
    pub fn open(config: &PacketConfig) -> Result<Packet, PacketError> {
        let name = &config.name;
        check(config)?;
        let err = |what, e| PacketError::from_io(what, name, e);
        let of = |e| err("reading the settings of", e);
        let (index, own) = (host::index(name).map_err(of)?, host::mac(name).map_err(of)?);
        let kind = host::kind(name).map_err(of)?;
        if kind != libc::ARPHRD_ETHER {
            return Err(PacketError::NotEthernet {
                name: name.clone(),
                kind,
            });
        }
        if !host::is_up(name).map_err(of)? {
            return Err(PacketError::Down(name.clone()));
        }
        let mac = config.mac.unwrap_or_else(|| mac_of(name, own));
        let joined = (mac != own).then_some(mac);
        let mut sockets = Vec::with_capacity(config.queues);
        let mut group = None;
        for _ in 0..config.queues {
            let fd = socket(config, index, joined)?;
            if config.queues > 1 {
                let id = sys::fanout(&fd, group);
                group = Some(id.map_err(|e| err("dividing the flows of", e))?);
            }
            sockets.push(Arc::new(Socket::new(fd)));
        }
        // Only now: before, each socket for itself would have taken all flows.
        for socket in &sockets {
            sys::filter(&socket.fd, &mut sys::ours(mac))
                .map_err(|e| err("setting the filter for", e))?;
        }
        Ok(Packet {
            sockets,
            name: name.clone(),
            mac,
            mtu: host::mtu(name).map_err(of)?,
            checksum_offload: config.checksum_offload,
            large: config.large && config.checksum_offload,
        })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A handle that counts frames.
    pub fn handle(&self) -> PacketHandle {
        let one = |s: &Arc<Socket>| (Arc::downgrade(s), s.counts.clone());
        PacketHandle {
            queues: self.sockets.iter().map(one).collect(),
        }
    }
}

/// What can be told without asking the kernel.
fn check(config: &PacketConfig) -> Result<(), PacketError> {
    if !is_name(&config.name) {
        return Err(PacketError::BadName(config.name.clone()));
    }
    if !(1..=MOST).contains(&config.queues) {
        return Err(PacketError::BadQueues(config.queues));
    }
    let bad = |mac: &MacAddr| mac.is_multicast() || *mac == MacAddr::UNSPECIFIED;
    if let Some(mac) = config.mac.filter(bad) {
        return Err(PacketError::BadMac(mac));
    }
    if config.bypass_qdisc && config.large && config.checksum_offload {
        return Err(PacketError::LargeBypass);
    }
    Ok(())
}

/// A socket that is bound, but passes nothing yet; the interface takes frames for `joined` as well.
fn socket(
    config: &PacketConfig,
    index: u32,
    joined: Option<MacAddr>,
) -> Result<OwnedFd, PacketError> {
    let name = &config.name;
    let err = |what| move |e| PacketError::from_io(what, name, e);
    let fd = sys::open().map_err(err("opening a packet socket for"))?;
    sys::filter(&fd, &mut sys::nothing()).map_err(err("setting the filter for"))?;
    let on = |option| sys::option(&fd, option, 1).map_err(err("setting options for"));
    on(libc::PACKET_VNET_HDR)?;
    on(libc::PACKET_IGNORE_OUTGOING)?;
    if config.bypass_qdisc {
        on(libc::PACKET_QDISC_BYPASS)?;
    }
    sys::room(&fd, config.buffer).map_err(err("setting the buffers for"))?;
    sys::bind(&fd, index).map_err(err("binding to"))?;
    if let Some(mac) = joined {
        sys::join(&fd, index, mac).map_err(err("adding an address to"))?;
    }
    Ok(fd)
}

/// A locally administered address that only depends on the interface: on the address, too, as
/// the other hosts of the link have interfaces of that name.
pub(crate) fn mac_of(name: &str, own: MacAddr) -> MacAddr {
    let bytes = own.0.into_iter().chain(name.bytes());
    let seed = bytes.fold(0x50_4b, |h, b| mix(h ^ u64::from(b)));
    let [a, b, c, d, ..] = seed.to_be_bytes();
    MacAddr([0x02, 0x50, a, b, c, d])
}

/// Frames to groups that an interface receives, for a device that has all others by another way;
/// and the address that it receives frames for besides, as long as this is there.
pub(crate) struct Groups {
    socket: Arc<Socket>,
    /// The receive side.
    pub rx: PacketRx,
}

impl Groups {
    /// Opens a packet socket for them on interface `index`, which is `name`.
    pub(crate) fn open(
        name: &str,
        index: u32,
        joined: Option<MacAddr>,
    ) -> Result<Groups, PacketError> {
        let config = PacketConfig {
            buffer: 256 << 10,
            ..PacketConfig::new(name)
        };
        let socket = Arc::new(Socket::new(socket(&config, index, joined)?));
        let err = |e| PacketError::from_io("setting the filter for", name, e);
        sys::filter(&socket.fd, &mut sys::groups()).map_err(err)?;
        let mtu = host::mtu(name).map_err(err)?;
        let rx = PacketRx::new(socket.clone(), mtu as usize + 14);
        Ok(Groups { socket, rx })
    }

    /// What is readable when there are some.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.socket.fd
    }

    /// A handle that counts them.
    pub(crate) fn handle(&self) -> PacketHandle {
        PacketHandle {
            queues: vec![(Arc::downgrade(&self.socket), self.socket.counts.clone())],
        }
    }
}

impl Device for Packet {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: self.name.clone(),
            medium: Medium::Ethernet,
            mac: self.mac,
            mtu: self.mtu,
            tx_checksum: self.checksum_offload,
            large: if self.large { LARGEST } else { 0 },
            // Kernels that don't take any refuse them only once one is sent.
            large_datagrams: 0,
            hands_on: false,
        }
    }

    fn open(self: Box<Self>) -> Queues {
        let mut rx: Vec<Box<dyn RxQueue>> = Vec::new();
        let mut tx: Vec<Box<dyn TxQueue>> = Vec::new();
        for socket in self.sockets {
            // The kernel takes VLAN tags out, so there is no room for one.
            let frame = self.mtu as usize + 14;
            rx.push(Box::new(PacketRx::new(socket.clone(), frame)));
            tx.push(Box::new(PacketTx::new(socket)));
        }
        (rx, tx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: &PacketConfig) -> PacketError {
        Packet::open(config).expect_err("refused")
    }

    #[test]
    fn bad_requests_are_named() {
        for name in ["", "sixteen-bytes-xx", "a/b", "a b", ".", "..", "a\0b"] {
            let e = refused(&PacketConfig::new(name));
            assert!(matches!(e, PacketError::BadName(_)), "{name:?}: {e}");
        }
        let config = PacketConfig::new("p0");
        for queues in [0, 257] {
            let config = PacketConfig {
                queues,
                ..config.clone()
            };
            assert!(matches!(refused(&config), PacketError::BadQueues(n) if n == queues));
        }
        for mac in [MacAddr::BROADCAST, MacAddr::UNSPECIFIED] {
            let mac = Some(mac);
            let config = PacketConfig {
                mac,
                ..config.clone()
            };
            assert!(matches!(refused(&config), PacketError::BadMac(_)));
        }
        let both = PacketConfig {
            large: true,
            bypass_qdisc: true,
            ..config
        };
        assert!(matches!(refused(&both), PacketError::LargeBypass));
    }

    #[test]
    fn interfaces_that_will_not_do_are_named() {
        let e = refused(&PacketConfig::new("no-such-if"));
        assert!(matches!(e, PacketError::NoInterface(_)), "{e:?}");
        assert!(e.to_string().contains("no-such-if"), "{e}");
        let e = refused(&PacketConfig::new("lo"));
        assert!(
            matches!(e, PacketError::NotEthernet { kind: 772, .. }),
            "{e:?}"
        );
    }

    #[test]
    fn addresses_are_local_and_differ() {
        let (own, other) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let mac = mac_of("eth0", own);
        assert_ne!(mac, mac_of("eth1", own));
        assert_ne!(mac, mac_of("eth0", other), "the same name on another host");
        assert_eq!(mac.0[0] & 3, 2, "locally administered, not a group");
    }
}
