//! A frame pipe: a device whose other end is a program rather than a kernel.
//!
//! [`channel`] is a pair of bounded queues within the process: frames in and out as values, for
//! who embeds a stack. [`datagram`] is a Unix datagram socket, one frame a datagram, and [`stream`]
//! a Unix stream socket on which each frame is preceded by its length, as virtual machine monitors
//! and sandboxes speak them (QEMU's `-netdev dgram` and `-netdev stream`, passt). Any of them carries
//! Ethernet or IP.

mod channel;
#[cfg(unix)]
mod socket;

pub use channel::{Closed, Full, Pipe, PipeEnd, channel};
#[cfg(unix)]
pub use socket::{SocketPipe, datagram, stream};

use crate::device::{Capabilities, Medium};
use perimeter_wire::{EtherHdr, MacAddr};

/// What a pipe carries.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PipeConfig {
    /// Name, for people. Default `pipe`.
    pub name: String,
    /// What frames start with. Default [`Medium::Ip`].
    pub medium: Medium,
    /// The stack's link-layer address, for [`Medium::Ethernet`].
    pub mac: MacAddr,
    /// Largest IP packet, bytes; at least 68. Default 1500.
    pub mtu: u32,
    /// Frames that a channel holds in each direction; at least 1. Default 512. A socket has its
    /// own buffers.
    pub queue: usize,
    /// Frames come whole from a program that can be relied on: their checksums are not looked
    /// at. Default `false`.
    pub trusted: bool,
}

impl Default for PipeConfig {
    fn default() -> PipeConfig {
        PipeConfig {
            name: "pipe".to_owned(),
            medium: Medium::Ip,
            mac: MacAddr::default(),
            mtu: 1500,
            queue: 512,
            trusted: false,
        }
    }
}

perimeter_base::setters! {
    PipeConfig {
        with_name(name: impl Into<String>),
        with_medium(medium: Medium),
        with_mac(mac: MacAddr),
        with_mtu(mtu: u32),
        with_queue(queue: usize),
        with_trusted(trusted: bool),
    }
}

impl PipeConfig {
    fn capabilities(&self) -> Capabilities {
        let ethernet = self.medium == Medium::Ethernet;
        Capabilities {
            name: self.name.clone(),
            medium: self.medium,
            mac: if ethernet {
                self.mac
            } else {
                MacAddr::default()
            },
            mtu: self.mtu.max(68),
            tx_checksum: true,
            large: 0,
            large_datagrams: 0,
            hands_on: false,
        }
    }

    /// Largest frame, bytes.
    fn frame(&self) -> usize {
        let link = match self.medium {
            // Room for a VLAN tag as well.
            Medium::Ethernet => EtherHdr::LEN + 4,
            Medium::Ip => 0,
        };
        self.mtu.max(68) as usize + link
    }
}
