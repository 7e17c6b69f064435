//! TAP and TUN devices: the host's kernel as the other end (Linux).
//!
//! One descriptor per queue (`IFF_MULTI_QUEUE`, but for an interface that was made with one queue),
//! each with its receive and transmit side; no packet information, a virtio-net header for checksum
//! offload in both directions.
//!
//! Several queues are steered by the stack's own hash ([`rss`](crate::rss)), where the kernel
//! permits programs (CAP_BPF): all of a flow comes by one queue ([`Tap::is_steered`]). Elsewhere the
//! kernel sends a flow's frames to the queue that sent for it last, once it has learned it, and the
//! first answer may come by another.

mod queue;
mod steer;
mod sys;

use core::net::Ipv4Addr;
use perimeter_wire::MacAddr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::device::{Capabilities, Device, LARGEST, Medium, Queues, RxQueue, TxQueue};
pub use crate::host;
use crate::rng::mix;
use queue::{TapRx, TapTx};

/// Which device to open, and how.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TapConfig {
    /// Name of the interface, at most 15 bytes; opened if it exists, else created. `%d` stands
    /// for the first free number.
    pub name: String,
    /// [`Medium::Ethernet`] for TAP, [`Medium::Ip`] for TUN.
    pub medium: Medium,
    /// Queues, each of them for both directions: 1 to 256. More than one on an interface that
    /// exists needs one that was made with `multi_queue`; one queue takes either kind.
    pub queues: usize,
    /// Have the kernel choose the queue of a frame by the stack's own hash, if it permits that.
    pub steering: bool,
    /// Link-layer address of the stack; `None`: derived from the name. It is not the
    /// interface's own, which is the kernel's.
    pub mac: Option<MacAddr>,
    /// MTU to set on the interface, bytes; `None`: as it is.
    pub mtu: Option<u32>,
    /// How many packets of the kernel may wait in each queue of the interface (its `txqueuelen`), 0 to
    /// 2³¹ - 1; further ones are lost. `None`: as it is, and 10,000 if the interface is made here. The
    /// kernel's own 500 are less than what 128 connections with windows of 256 KB may have on the way.
    pub queue_len: Option<u32>,
    /// This host's own address on the interface, with the length of its prefix: the host then has a
    /// route to the stack's addresses in it, and the interface is up. `None`: both as they are.
    pub host_address: Option<(Ipv4Addr, u8)>,
    /// Offload checksums to the kernel, both ways.
    pub checksum_offload: bool,
    /// Large segments of TCP both ways: the kernel cuts what the stack sends, and hands over what
    /// its own senders have not cut; datagrams of UDP that were sent in one call come in one read,
    /// and are cut here (Linux 6.2 and later). Needs checksum offload.
    pub large: bool,
}

impl TapConfig {
    /// A TAP of this name with one queue.
    pub fn new(name: &str) -> TapConfig {
        TapConfig {
            name: name.to_owned(),
            medium: Medium::Ethernet,
            queues: 1,
            steering: true,
            mac: None,
            mtu: None,
            queue_len: None,
            host_address: None,
            checksum_offload: true,
            large: true,
        }
    }
}

perimeter_base::setters! {
    TapConfig {
        with_name(name: impl Into<String>),
        with_medium(medium: Medium),
        with_queues(queues: usize),
        with_steering(steering: bool),
        with_mac(mac: Option<MacAddr>),
        with_mtu(mtu: Option<u32>),
        with_queue_len(queue_len: Option<u32>),
        with_host_address(host_address: Option<(Ipv4Addr, u8)>),
        with_checksum_offload(checksum_offload: bool),
        with_large(large: bool),
    }
}

/// Why a TAP or TUN device can't be used.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// The name can't be one of an interface.
    #[error("'{0}' is no interface name: 1 to 15 bytes, no '/', no spaces, not '.' or '..'")]
    BadName(String),
    /// The number of queues is out of range.
    #[error("{0} queues: a TAP device has 1 to 256")]
    BadQueues(usize),
    /// The kernel has no TUN driver, or the device node is missing.
    #[error(
        "/dev/net/tun does not exist: load the 'tun' module (modprobe tun) or pass the device \
         into the container"
    )]
    NoDriver,
    /// Neither privilege nor ownership.
    #[error("no permission for {what} '{name}': run as root {}", or_else(.what, .name, .mode))]
    Permission {
        /// What was tried.
        what: &'static str,
        /// The interface.
        name: String,
        /// `tap` or `tun`.
        mode: &'static str,
    },
    /// Another process has it, or has opened all of its queues.
    #[error("'{0}' is in use: another process has it open, or all its queues are taken")]
    Busy(String),
    /// An interface of the name is of another kind.
    #[error("'{0}' exists and is no {1} device: choose another name or delete it")]
    Mismatch(String, &'static str),
    /// An interface of the name has one queue, and more were asked for.
    #[error(
        "'{name}' has one queue and {queues} were asked for: recreate it with several (ip tuntap \
         add dev {name} mode {mode} multi_queue) or ask for one"
    )]
    OneQueue {
        /// The interface.
        name: String,
        /// `tap` or `tun`.
        mode: &'static str,
        /// How many queues were asked for.
        queues: usize,
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

perimeter_base::debug_is_text!(TapError);

impl TapError {
    /// Whether more privilege would help.
    pub fn is_permission(&self) -> bool {
        matches!(self, TapError::Permission { .. })
    }

    fn from_io(what: &'static str, name: &str, medium: Medium, e: io::Error) -> TapError {
        let mode = mode_of(medium);
        let name = name.to_owned();
        match e.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => TapError::Permission { what, name, mode },
            Some(libc::EBUSY | libc::E2BIG) => TapError::Busy(name),
            Some(libc::EINVAL) if what == ATTACH => TapError::Mismatch(name, mode),
            _ => TapError::Io {
                what,
                name,
                source: e,
            },
        }
    }
}

/// How many packets may wait in an interface that was made here.
const QUEUE_LEN: u32 = 10_000;

const OPEN: &str = "opening /dev/net/tun for";
const ATTACH: &str = "attaching to";

/// What helps who may not do `what`, and is not root.
fn or_else(what: &str, name: &str, mode: &str) -> String {
    match what {
        // A namespace of one's own does not open what is closed to the user.
        OPEN => {
            "or have the administrator open the device to all (chmod 666 /dev/net/tun); then a \
                 user and network namespace (unshare -Urn) is enough"
                .into()
        }
        _ => format!(
            "or with CAP_NET_ADMIN, use a user and network namespace (unshare -Urn), or have the \
             administrator create it for you (ip tuntap add dev {name} mode {mode} multi_queue \
             user $USER)"
        ),
    }
}

const fn mode_of(medium: Medium) -> &'static str {
    match medium {
        Medium::Ethernet => "tap",
        Medium::Ip => "tun",
    }
}

/// An open TAP or TUN device. A [`Device`]. An interface that it created goes when its queues
/// are dropped.
pub struct Tap {
    fds: Vec<OwnedFd>,
    name: String,
    medium: Medium,
    mac: MacAddr,
    mtu: u32,
    checksum_offload: bool,
    large: bool,
    datagrams: bool,
    steered: bool,
}

impl Tap {
    /// Opens or creates the interface.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn open(config: &TapConfig) -> Result<Tap, TapError> {
        sys::check_name(&config.name)?;
        if !(1..=256).contains(&config.queues) {
            return Err(TapError::BadQueues(config.queues));
        }
        let is_new = host::index(&config.name).is_err();
        let mut name = config.name.clone();
        let mut datagrams = true;
        let mut fds = Vec::with_capacity(config.queues);
        for i in 0..config.queues {
            let one = if i == 0 {
                sys::attach_first(&name, config)?
            } else {
                sys::attach(&name, config, sys::Queue::Another)?
            };
            name = one.name;
            datagrams &= one.datagrams;
            fds.push(one.fd);
        }
        // What somebody before has left on an interface that stays goes in any case.
        let steered = match fds.first() {
            Some(fd) if config.queues > 1 && config.steering => {
                let steered = steer::steer(fd, config.medium).is_ok();
                if !steered {
                    steer::plain(fd);
                }
                steered
            }
            Some(fd) => {
                steer::plain(fd);
                false
            }
            None => false,
        };
        let err = |what, e| TapError::from_io(what, &name, config.medium, e);
        if let Some(mtu) = config.mtu {
            host::set_mtu(&name, mtu).map_err(|e| err("setting the MTU of", e))?;
        }
        if let Some(len) = config.queue_len.or(is_new.then_some(QUEUE_LEN)) {
            host::set_queue_len(&name, len).map_err(|e| err("setting the queue length of", e))?;
        }
        let mtu = host::mtu(&name).map_err(|e| err("reading the MTU of", e))?;
        if let Some((address, prefix)) = config.host_address {
            host::set_address(&name, address, prefix)
                .map_err(|e| err("giving this host an address on", e))?;
            host::set_up(&name, true).map_err(|e| err("bringing up", e))?;
        }
        let mac = match config.medium {
            Medium::Ip => MacAddr::default(),
            Medium::Ethernet => config.mac.unwrap_or_else(|| mac_of(&name)),
        };
        Ok(Tap {
            fds,
            name,
            medium: config.medium,
            mac,
            mtu,
            checksum_offload: config.checksum_offload,
            large: config.large && config.checksum_offload,
            datagrams,
            steered,
        })
    }

    /// Whether each flow comes by the queue that [`Rss::even`](crate::rss::Rss::even) says.
    pub fn is_steered(&self) -> bool {
        self.steered
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A locally administered address that only depends on the name.
fn mac_of(name: &str) -> MacAddr {
    let seed = name.bytes().fold(0x50_4d, |h, b| mix(h ^ u64::from(b)));
    let [a, b, c, d, ..] = seed.to_be_bytes();
    MacAddr([0x02, 0x50, a, b, c, d])
}

impl Device for Tap {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: self.name.clone(),
            medium: self.medium,
            mac: self.mac,
            mtu: self.mtu,
            tx_checksum: self.checksum_offload,
            large: if self.large { LARGEST } else { 0 },
            large_datagrams: if self.datagrams { LARGEST } else { 0 },
            hands_on: false,
        }
    }

    fn open(self: Box<Self>) -> Queues {
        let mut rx: Vec<Box<dyn RxQueue>> = Vec::new();
        let mut tx: Vec<Box<dyn TxQueue>> = Vec::new();
        let link = match self.medium {
            // Room for a VLAN tag as well.
            Medium::Ethernet => 18,
            Medium::Ip => 0,
        };
        for fd in self.fds {
            let fd = Arc::new(fd);
            let frame = self.mtu as usize + link;
            rx.push(Box::new(TapRx::new(
                fd.clone(),
                self.medium,
                frame,
                self.large,
            )));
            tx.push(Box::new(TapTx::new(fd, self.medium)));
        }
        (rx, tx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_requests_are_named() {
        for name in ["", "sixteen-bytes-xx", "a/b", "a b", ".", "..", "a\0b"] {
            let e = Tap::open(&TapConfig::new(name)).expect_err("refused");
            assert!(matches!(e, TapError::BadName(_)), "{name:?}: {e}");
        }
        let mut config = TapConfig::new("t0");
        config.queues = 0;
        assert!(matches!(Tap::open(&config), Err(TapError::BadQueues(0))));
        config.queues = 257;
        assert!(matches!(Tap::open(&config), Err(TapError::BadQueues(257))));
    }

    #[test]
    fn addresses_are_local_and_differ() {
        let (a, b) = (mac_of("tap0"), mac_of("tap1"));
        assert_ne!(a, b);
        assert_eq!(a.0[0] & 3, 2, "locally administered, not a group");
    }
}
