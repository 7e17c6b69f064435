//! The system calls behind TAP: attach a queue.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{ATTACH, OPEN, TapConfig, TapError, mode_of};
use crate::device::Medium;
use crate::ifreq::{IfReq, check, ethtool, ifreq_ioctl, is_name};

pub(super) fn check_name(name: &str) -> Result<(), TapError> {
    if !is_name(name) {
        return Err(TapError::BadName(name.to_owned()));
    }
    Ok(())
}

/// Checksum offload in the device's features (linux/if_tun.h).
const TUN_F_CSUM: libc::c_ulong = 1;
/// Segments of TCP that are not cut, over IPv4 and IPv6.
const TUN_F_TSO4: libc::c_ulong = 2;
const TUN_F_TSO6: libc::c_ulong = 4;
/// Datagrams of UDP that were sent in one call, over IPv4 and IPv6 (Linux 6.2; always together).
const TUN_F_USO: libc::c_ulong = 0x20 | 0x40;

/// Whether the interface has a carrier now. (`IFF_RUNNING` follows up to a second later.)
fn carrier(name: &str) -> io::Result<bool> {
    const ETHTOOL_GLINK: u32 = 0x0a;
    Ok(ethtool(name, ETHTOOL_GLINK, 0)? != 0)
}

/// Opens the first queue of `name`: it is created, or it is a persistent interface that nobody
/// has open. Somebody else's would hand us a share of its flows.
pub(super) fn attach_first(name: &str, config: &TapConfig) -> Result<Attached, TapError> {
    let medium = config.medium;
    match attach(name, config, Queue::New) {
        Err(TapError::Busy(_)) => {}
        other => return other,
    }
    // It exists. A carrier means that a descriptor is attached.
    if carrier(name).unwrap_or(false) {
        return Err(TapError::Busy(name.to_owned()));
    }
    let one = match attach(name, config, Queue::Another) {
        // Of another kind, or made with one queue. That there is one of the latter shows in that
        // it can be attached to so; it is let go again if it won't do.
        Err(TapError::Mismatch(..)) => match attach(name, config, Queue::Only)? {
            only if config.queues == 1 => only,
            _ => {
                return Err(TapError::OneQueue {
                    name: name.to_owned(),
                    mode: mode_of(medium),
                    queues: config.queues,
                });
            }
        },
        other => other?,
    };
    let mut req = IfReq::new(&one.name).map_err(|e| TapError::from_io(ATTACH, name, medium, e))?;
    ifreq_ioctl(one.fd.as_raw_fd(), libc::TUNGETIFF, &mut req)
        .map_err(|e| TapError::from_io(ATTACH, name, medium, e))?;
    let flags = libc::c_int::from(u16::from_ne_bytes([req.data[0], req.data[1]]));
    if flags & libc::IFF_PERSIST == 0 {
        // It only lives because somebody has it open.
        return Err(TapError::Busy(name.to_owned()));
    }
    Ok(one)
}

/// An open queue.
pub(super) struct Attached {
    pub fd: OwnedFd,
    /// The interface's real name.
    pub name: String,
    /// The kernel cuts frames of several datagrams.
    pub datagrams: bool,
}

/// Which queue of an interface to open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// The first of an interface that does not exist yet.
    New,
    /// One more of an interface with multiple queues.
    Another,
    /// That of an interface with one.
    Only,
}

/// Opens a queue of `name`.
pub(super) fn attach(name: &str, config: &TapConfig, queue: Queue) -> Result<Attached, TapError> {
    let medium = config.medium;
    let err = |what, e| TapError::from_io(what, name, medium, e);
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the path is a terminated string.
    let fd = unsafe { libc::open(c"/dev/net/tun".as_ptr(), flags) };
    if let Err(e) = check(fd) {
        return Err(match e.raw_os_error() {
            Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => TapError::NoDriver,
            _ => err(OPEN, e),
        });
    }
    // SAFETY: the call has just given us this descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut req = IfReq::new(name).map_err(|e| err(ATTACH, e))?;
    let kind = match medium {
        Medium::Ethernet => libc::IFF_TAP,
        Medium::Ip => libc::IFF_TUN,
    };
    let which = match queue {
        Queue::New => libc::IFF_TUN_EXCL | libc::IFF_MULTI_QUEUE,
        Queue::Another => libc::IFF_MULTI_QUEUE,
        Queue::Only => 0,
    };
    let flags = kind | which | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    req.data[..2].copy_from_slice(&(flags as u16).to_ne_bytes());
    ifreq_ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &mut req).map_err(|e| err(ATTACH, e))?;
    let real = req.name();
    let features = match (config.checksum_offload, config.large) {
        (true, true) => TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6,
        (true, false) => TUN_F_CSUM,
        (false, _) => 0,
    };
    let set = |features: libc::c_ulong| {
        // SAFETY: this request takes its argument by value.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, features) })
    };
    let datagrams = match config.large && config.checksum_offload {
        true => set(features | TUN_F_USO).is_ok(),
        false => false,
    };
    if !datagrams {
        set(features).map_err(|e| err("setting offloads of", e))?;
    }
    Ok(Attached {
        fd,
        name: real,
        datagrams,
    })
}
