//! What addresses and settings can be meant: the rest is refused by name before it does harm.

use core::fmt::Display;
use core::ops::RangeInclusive;
use core::time::Duration;
use perimeter_stack::{Cidr, Config};
use perimeter_tcp::Config as TcpConfig;
use perimeter_tcp::config::MIN_MSS;
use std::net::IpAddr;

type Checked = Result<(), String>;

/// Smallest buffers that are accepted, octets: below, segments can't be of a useful size.
const MIN_BUFFER: u32 = 1024;
/// Largest: what a window can say (RFC 7323, section 2.3).
const MAX_BUFFER: u32 = 1 << 30;
/// Longest delay of an acknowledgment (RFC 9293, section 3.8.6.3).
const MAX_DELAYED_ACK: Duration = Duration::from_millis(500);

/// Why no host has this address; `None`: one may.
fn no_host(ip: IpAddr) -> Option<&'static str> {
    const LOOPBACK: &str = "a loopback address, which no network leads to";
    let first = match ip {
        _ if ip.is_unspecified() => return Some("the unspecified address"),
        _ if ip.is_loopback() => return Some(LOOPBACK),
        _ if ip.is_multicast() => return Some("a multicast address"),
        IpAddr::V6(v6) => {
            return match v6.to_ipv4_mapped() {
                Some(_) => Some("an IPv4 address that is written as one of IPv6"),
                None if v6.segments()[..4] == [0; 4] => Some("a reserved address"),
                None => None,
            };
        }
        IpAddr::V4(v4) if v4.is_broadcast() => return Some("the broadcast address"),
        IpAddr::V4(v4) => v4.octets()[0],
    };
    match first {
        0 => Some("in network 0, which has no hosts"),
        127 => Some(LOOPBACK),
        240.. => Some("a reserved address"),
        _ => None,
    }
}

/// An interface's own address: one of a host.
pub(crate) fn interface(cidr: &Cidr) -> Checked {
    if let Some(what) = no_host(cidr.addr) {
        return Err(format!("{cidr} is {what}"));
    }
    let IpAddr::V4(ip) = cidr.addr else {
        return Ok(());
    };
    if cidr.prefix < 31 {
        let host = u32::MAX.checked_shr(u32::from(cidr.prefix)).unwrap_or(0);
        let name = match ip.to_bits() & host {
            0 => Some("network"),
            h if h == host => Some("broadcast"),
            _ => None,
        };
        if let Some(name) = name {
            return Err(format!(
                "{cidr} is the {name} address of its prefix, not a host's"
            ));
        }
    }
    Ok(())
}

/// All interfaces' addresses, with the interfaces' numbers: each is one interface's. Link-local
/// addresses are of their link, so that two interfaces may have the same.
pub(crate) fn apart<'a>(all: impl Iterator<Item = (usize, &'a Cidr)>) -> Checked {
    let mut seen = std::collections::HashSet::new();
    for (n, a) in all {
        let link = matches!(a.addr, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if !seen.insert((link.then_some(n), a.addr)) {
            return Err(format!("{} is given to an interface twice", a.addr));
        }
    }
    Ok(())
}

/// A route's destination and gateway, of an interface with the addresses `own`.
pub(crate) fn route(dst: &Cidr, via: Option<IpAddr>, own: &[Cidr]) -> Checked {
    let Some(via) = via else {
        return Ok(());
    };
    if dst.addr.is_ipv4() != via.is_ipv4() {
        return Err(format!("gateway {via} is of another family than {dst}"));
    }
    if let Some(what) = no_host(via) {
        return Err(format!("gateway {via} is {what}"));
    }
    match own.iter().any(|a| a.addr == via) {
        true => Err(format!("gateway {via} is the interface's own address")),
        false => Ok(()),
    }
}

/// `value` of the setting `name` must be in `range`.
fn within<T: PartialOrd + Display>(name: &str, value: T, range: RangeInclusive<T>) -> Checked {
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!(
        "setting `{name}` is {value}; it can be {} to {}",
        range.start(),
        range.end()
    ))
}

fn within_time(name: &str, value: Duration, range: RangeInclusive<Duration>) -> Checked {
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!(
        "setting `{name}` is {value:?}; it can be {:?} to {:?}",
        range.start(),
        range.end()
    ))
}

/// Settings of connections.
pub(crate) fn tcp(c: &TcpConfig) -> Checked {
    let (tick, for_ever) = (Duration::from_millis(1), Duration::MAX);
    within("tcp.mss", c.mss, MIN_MSS..=u16::MAX)?;
    within("tcp.snd_buf", c.snd_buf, MIN_BUFFER..=MAX_BUFFER)?;
    within("tcp.rcv_buf", c.rcv_buf, MIN_BUFFER..=MAX_BUFFER)?;
    within("tcp.rcv_buf_max", c.rcv_buf_max, 0..=MAX_BUFFER)?;
    within("tcp.initial_window", c.initial_window, 1..=0xffff)?;
    within_time("tcp.rto_min", c.rto_min, tick..=for_ever)?;
    within_time("tcp.rto_max", c.rto_max, c.rto_min..=for_ever)?;
    within_time("tcp.rto_initial", c.rto_initial, tick..=for_ever)?;
    within_time(
        "tcp.delayed_ack",
        c.delayed_ack,
        Duration::ZERO..=MAX_DELAYED_ACK,
    )?;
    if let Some(k) = c.keepalive {
        within("tcp.keepalive.probes", k.probes, 1..=u8::MAX)?;
        within_time("tcp.keepalive.idle", k.idle, tick..=for_ever)?;
        within_time("tcp.keepalive.interval", k.interval, tick..=for_ever)?;
    }
    if let Some(t) = c.user_timeout {
        within_time("tcp.user_timeout", t, tick..=for_ever)?;
    }
    Ok(())
}

/// Settings of a stack.
pub(crate) fn stack(c: &Config) -> Checked {
    let (first, last) = (*c.ephemeral.start(), *c.ephemeral.end());
    if first == 0 || first > last {
        return Err(format!(
            "setting `ephemeral` is {first}..={last}; it goes from the lowest port, 1 to 65535, \
             to the highest"
        ));
    }
    within("memory", c.memory, 1..=u64::MAX)?;
    within("fragments", c.fragments, 0..=1 << 30)?;
    within("syn_buckets", c.syn_buckets, 1..=1 << 24)?;
    within("syn_depth", c.syn_depth, 1..=1 << 16)?;
    within("ttl", c.ttl, 1..=u8::MAX)?;
    within_time(
        "service",
        c.service,
        Duration::from_micros(1)..=Duration::MAX,
    )?;
    tcp(&c.tcp)
}
