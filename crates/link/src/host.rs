//! Interfaces of the host, as its kernel has them: address, MTU, up. What `ip` does, without `ip`.

use core::net::{Ipv4Addr, Ipv6Addr};
use perimeter_wire::MacAddr;
use std::io;
use std::os::fd::AsRawFd;

use crate::ifreq::{IfReq, add_in6, control_socket, ethtool, ifreq_ioctl};

// Of `linux/sockios.h`; libc lacks them here.
const SIOCGIFTXQLEN: libc::Ioctl = 0x8942;
const SIOCSIFTXQLEN: libc::Ioctl = 0x8943;

fn request(
    name: &str,
    request: libc::Ioctl,
    fill: impl FnOnce(&mut [u8; 24]),
) -> io::Result<[u8; 24]> {
    let socket = control_socket()?;
    let mut req = IfReq::new(name)?;
    fill(&mut req.data);
    ifreq_ioctl(socket.as_raw_fd(), request, &mut req)?;
    Ok(req.data)
}

/// A number of the interface's.
fn number(name: &str, what: libc::Ioctl) -> io::Result<u32> {
    let data = request(name, what, |_| {})?;
    let number = i32::from_ne_bytes([data[0], data[1], data[2], data[3]]);
    Ok(number.max(0) as u32)
}

fn set_number(name: &str, what: libc::Ioctl, number: u32) -> io::Result<()> {
    let number = i32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?;
    request(name, what, |d| {
        d[..4].copy_from_slice(&number.to_ne_bytes());
    })?;
    Ok(())
}

/// The interface's MTU, bytes.
///
/// # Errors
/// If there is no such interface.
pub fn mtu(name: &str) -> io::Result<u32> {
    number(name, libc::SIOCGIFMTU)
}

/// Sets the interface's MTU, bytes.
///
/// # Errors
/// Without privilege, or for an MTU that the kernel refuses.
pub fn set_mtu(name: &str, mtu: u32) -> io::Result<()> {
    set_number(name, libc::SIOCSIFMTU, mtu)
}

/// How many packets may wait in the interface until its device takes them; further ones are lost.
///
/// # Errors
/// If there is no such interface.
pub fn queue_len(name: &str) -> io::Result<u32> {
    number(name, SIOCGIFTXQLEN)
}

/// Sets how many packets may wait in the interface, 0 to 2³¹ - 1.
///
/// # Errors
/// Without privilege, or for a number that the kernel refuses.
pub fn set_queue_len(name: &str, len: u32) -> io::Result<()> {
    set_number(name, SIOCSIFTXQLEN, len)
}

/// The interface's own link-layer address, which is the kernel's.
///
/// # Errors
/// If there is no such interface.
pub fn mac(name: &str) -> io::Result<MacAddr> {
    let d = request(name, libc::SIOCGIFHWADDR, |_| {})?;
    // After the address family.
    Ok(MacAddr([d[2], d[3], d[4], d[5], d[6], d[7]]))
}

/// What the interface's link layer is, as `ARPHRD_...` of `linux/if_arp.h`: 1 for Ethernet.
///
/// # Errors
/// If there is no such interface.
pub fn kind(name: &str) -> io::Result<u16> {
    let d = request(name, libc::SIOCGIFHWADDR, |_| {})?;
    Ok(u16::from_ne_bytes([d[0], d[1]]))
}

/// The interface's number, which it keeps under another name, and which no later one gets.
///
/// # Errors
/// If there is no such interface.
pub fn index(name: &str) -> io::Result<u32> {
    number(name, libc::SIOCGIFINDEX)
}

/// Whether the interface is up, with a carrier or without.
///
/// # Errors
/// If there is no such interface.
pub fn is_up(name: &str) -> io::Result<bool> {
    let d = request(name, libc::SIOCGIFFLAGS, |_| {})?;
    Ok(i16::from_ne_bytes([d[0], d[1]]) & libc::IFF_UP as i16 != 0)
}

/// Takes the interface up or down.
///
/// # Errors
/// Without privilege.
pub fn set_up(name: &str, up: bool) -> io::Result<()> {
    let data = request(name, libc::SIOCGIFFLAGS, |_| {})?;
    let flags = i16::from_ne_bytes([data[0], data[1]]);
    let flags = if up {
        flags | libc::IFF_UP as i16
    } else {
        flags & !(libc::IFF_UP as i16)
    };
    request(name, libc::SIOCSIFFLAGS, |d| {
        d[..2].copy_from_slice(&flags.to_ne_bytes());
    })?;
    Ok(())
}

/// An AF_INET socket address without a port.
fn sockaddr(addr: Ipv4Addr) -> impl FnOnce(&mut [u8; 24]) {
    move |d| {
        d[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        d[4..8].copy_from_slice(&addr.octets());
    }
}

/// Gives the kernel an address on the interface, with its subnet.
///
/// # Errors
/// Without privilege, or for a prefix beyond 32.
pub fn set_address(name: &str, addr: Ipv4Addr, prefix: u8) -> io::Result<()> {
    if prefix > 32 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    request(name, libc::SIOCSIFADDR, sockaddr(addr))?;
    request(
        name,
        libc::SIOCSIFNETMASK,
        sockaddr(Ipv4Addr::from_bits(mask)),
    )?;
    Ok(())
}

/// Gives the kernel an address of IPv6 on the interface, with its subnet, besides those that it
/// has. It can be used once duplicate address detection is over, a second or two later (RFC 4862).
///
/// # Errors
/// Without privilege, for a prefix beyond 128, or where the kernel has no IPv6 on that interface.
pub fn add_address_v6(name: &str, addr: Ipv6Addr, prefix: u8) -> io::Result<()> {
    if prefix > 128 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let index = i32::try_from(index(name)?).map_err(|_| io::ErrorKind::InvalidInput)?;
    add_in6(index, addr.octets(), u32::from(prefix))
}

/// What an interface does for its senders and receivers, and can be told not to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Feature {
    /// It completes the checksums of what is sent by it. Off: the kernel does before. Of a veth
    /// pair neither does: the other end gets frames with partial checksums unless it is off.
    TxChecksum,
    /// It cuts large segments of TCP that are sent by it. Off: the kernel does before.
    Tso,
    /// What is received is merged.
    Gro,
}

/// Turns a feature of the interface on or off, as `ethtool -K` does.
///
/// # Errors
/// Without privilege, or if the interface can't be told.
pub fn set_feature(name: &str, feature: Feature, on: bool) -> io::Result<()> {
    // linux/ethtool.h: ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGRO
    let command = match feature {
        Feature::TxChecksum => 0x17,
        Feature::Tso => 0x1f,
        Feature::Gro => 0x2c,
    };
    ethtool(name, command, u32::from(on))?;
    Ok(())
}
