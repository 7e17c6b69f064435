//! Devices of the host by name, as users give them: `tap`, `tap:NAME`, `tun:NAME`,
//! `packet:INTERFACE`, `xdp:INTERFACE`.

use std::fmt;
use std::str::FromStr;

use crate::device::{Device, Medium};
use crate::ifreq::is_name;
use crate::packet::{Packet, PacketConfig, PacketError};
use crate::tap::{Tap, TapConfig, TapError};
use crate::xdp::{Xdp, XdpConfig, XdpError};

/// The interface of `tap` and `tun` without a name.
const NAME: &str = "perimeter0";

/// What to open, and on which interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostDevice {
    /// A [TAP](crate::tap) interface: the host's kernel is the other end, over Ethernet.
    Tap(String),
    /// A [TUN](crate::tap) interface: the same, without Ethernet.
    Tun(String),
    /// [Packet sockets](crate::packet) on an interface that is there.
    Packet(String),
    /// [AF_XDP](crate::xdp) on an interface that is there, by all of its queues.
    Xdp(String),
}

/// How to open a [`HostDevice`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostOptions {
    /// Queues of a TAP, TUN or packet device; AF_XDP has those of the interface.
    pub queues: usize,
    /// Large segments, where the device has them.
    pub large: bool,
    /// MTU to set on a TAP or TUN interface, octets; `None`: as it is.
    pub mtu: Option<u32>,
}

impl Default for HostOptions {
    /// One queue, large segments.
    fn default() -> HostOptions {
        HostOptions {
            queues: 1,
            large: true,
            mtu: None,
        }
    }
}

perimeter_base::setters! {
    HostOptions {
        with_queues(queues: usize),
        with_large(large: bool),
        with_mtu(mtu: Option<u32>),
    }
}

/// Why a device of the host can't be used.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// As TAP or TUN.
    #[error("{0}")]
    Tap(#[from] TapError),
    /// By packet sockets.
    #[error("{0}")]
    Packet(#[from] PacketError),
    /// By AF_XDP.
    #[error("{0}")]
    Xdp(#[from] XdpError),
}

perimeter_base::debug_is_text!(HostError);

impl HostError {
    /// Whether more privilege would help.
    pub fn is_permission(&self) -> bool {
        match self {
            HostError::Tap(e) => e.is_permission(),
            HostError::Packet(e) => e.is_permission(),
            HostError::Xdp(e) => e.is_permission(),
        }
    }
}

impl HostDevice {
    /// Which kind of device it is: `tap`, `tun`, `packet` or `xdp`.
    pub fn kind(&self) -> &'static str {
        match self {
            HostDevice::Tap(_) => "tap",
            HostDevice::Tun(_) => "tun",
            HostDevice::Packet(_) => "packet",
            HostDevice::Xdp(_) => "xdp",
        }
    }

    /// Name of the interface.
    pub fn interface(&self) -> &str {
        match self {
            HostDevice::Tap(name)
            | HostDevice::Tun(name)
            | HostDevice::Packet(name)
            | HostDevice::Xdp(name) => name,
        }
    }

    /// Whether the host's kernel is the other end of the interface, and needs an address there.
    pub fn is_to_kernel(&self) -> bool {
        matches!(self, HostDevice::Tap(_) | HostDevice::Tun(_))
    }

    /// Opens it.
    ///
    /// # Errors
    /// The device's own.
    pub fn open(&self, options: &HostOptions) -> Result<Box<dyn Device>, HostError> {
        let tap = |name: &String, medium| TapConfig {
            medium,
            queues: options.queues,
            mtu: options.mtu,
            large: options.large,
            ..TapConfig::new(name)
        };
        Ok(match self {
            HostDevice::Tap(name) => Box::new(Tap::open(&tap(name, Medium::Ethernet))?),
            HostDevice::Tun(name) => Box::new(Tap::open(&tap(name, Medium::Ip))?),
            HostDevice::Packet(name) => Box::new(Packet::open(&PacketConfig {
                queues: options.queues,
                large: options.large,
                ..PacketConfig::new(name)
            })?),
            HostDevice::Xdp(name) => Box::new(Xdp::open(&XdpConfig::new(name))?),
        })
    }
}

impl fmt::Display for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind(), self.interface())
    }
}

impl FromStr for HostDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<HostDevice, String> {
        let (kind, name) = match text.split_once(':') {
            Some((kind, name)) => (kind, Some(name)),
            None => (text, None),
        };
        if let Some(name) = name.filter(|n| !is_name(n)) {
            return Err(format!(
                "'{name}' is no interface name: 1 to 15 bytes, no '/', no spaces, not '.' or '..'"
            ));
        }
        let owned = |name: &str| name.to_owned();
        match (kind, name) {
            ("tap", name) => Ok(HostDevice::Tap(owned(name.unwrap_or(NAME)))),
            ("tun", name) => Ok(HostDevice::Tun(owned(name.unwrap_or(NAME)))),
            ("packet", Some(name)) => Ok(HostDevice::Packet(owned(name))),
            ("xdp", Some(name)) => Ok(HostDevice::Xdp(owned(name))),
            ("packet" | "xdp", None) => Err(format!("{kind}:INTERFACE is expected")),
            _ => Err(format!(
                "unknown device '{text}': tap[:NAME], tun[:NAME], packet:INTERFACE or \
                 xdp:INTERFACE is expected"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (text, full) in [
            ("tap", "tap:perimeter0"),
            ("tun", "tun:perimeter0"),
            ("tap:t1", "tap:t1"),
            ("packet:eth0", "packet:eth0"),
            ("xdp:eth0", "xdp:eth0"),
        ] {
            let device: HostDevice = text.parse().expect(text);
            assert_eq!(device.to_string(), full);
            assert_eq!(full.parse(), Ok(device));
        }
        for text in ["", "eth0", "xdp", "packet", "xdp:", "tap:a/b", "raw:eth0"] {
            assert!(text.parse::<HostDevice>().is_err(), "{text}");
        }
        let e = "xdp".parse::<HostDevice>().expect_err("which");
        assert_eq!(e, "xdp:INTERFACE is expected");
    }
}
