//! What addresses and settings can be meant: the rest is refused by name before it does harm.

use core::fmt::Display;
use core::ops::RangeInclusive;
use core::time::Duration;
use perimeter_stack::{Cidr, Config};
use perimeter_tcp::Config as TcpConfig;
use perimeter_tcp::config::MIN_MSS;
use std::net::{IpAddr, Ipv4Addr};

type Checked = Result<(), String>;

/// Smallest buffers that are accepted, octets: below, segments can't be of a useful size.
const MIN_BUFFER: u32 = 1024;
/// Largest: what a window can say (RFC 7323, section 2.3).
const MAX_BUFFER: u32 = 1 << 30;
/// Longest delay of an acknowledgment (RFC 9293, section 3.8.6.3).
const MAX_DELAYED_ACK: Duration = Duration::from_millis(500);

/// The address as one of IPv4.
pub(crate) fn ipv4(ip: IpAddr) -> Result<Ipv4Addr, String> {
    match ip {
        IpAddr::V4(v4) => Ok(v4),
        IpAddr::V6(_) => Err(format!(
            "{ip}: there is no IPv6 in this stack yet; use IPv4"
        )),
    }
}

/// Why no host has this address; `None`: one may.
fn no_host(ip: Ipv4Addr) -> Option<&'static str> {
    match ip.octets()[0] {
        _ if ip.is_unspecified() => Some("the unspecified address"),
        _ if ip.is_broadcast() => Some("the broadcast address"),
        0 => Some("in network 0, which has no hosts"),
        127 => Some("a loopback address, which no network leads to"),
        224..240 => Some("a multicast address"),
        240.. => Some("a reserved address"),
        _ => None,
    }
}

/// An interface's own address: one of a host.
pub(crate) fn interface(cidr: &Cidr) -> Checked {
    let ip = ipv4(cidr.addr)?;
    if let Some(what) = no_host(ip) {
        return Err(format!("{cidr} is {what}"));
    }
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

/// All interfaces' addresses: each is one interface's.
pub(crate) fn apart<'a>(all: impl Iterator<Item = &'a Cidr>) -> Checked {
    let mut seen = std::collections::HashSet::new();
    for a in all {
        if !seen.insert(a.addr) {
            return Err(format!("{} is given to an interface twice", a.addr));
        }
    }
    Ok(())
}

/// A route's destination and gateway, of an interface with the addresses `own`.
pub(crate) fn route(dst: &Cidr, via: Option<IpAddr>, own: &[Cidr]) -> Checked {
    ipv4(dst.addr)?;
    let Some(via) = via else {
        return Ok(());
    };
    if let Some(what) = no_host(ipv4(via)?) {
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
