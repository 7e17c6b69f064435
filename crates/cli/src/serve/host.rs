//! The interface between this host and the stack, and the host's side of it.

use super::ServeArgs;
use perimeter::link::named::HostDevice;
use perimeter::link::tap::{Tap, TapConfig, TapError};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::link::{Medium, host};
use perimeter::{Cidr, Native, Stack};
use perimeter_measure::Error;
use std::{
    fs,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

/// How long the host may take until it uses its own address of IPv6.
const DETECTION: Duration = Duration::from_secs(4);

/// An address of the stack, and this host's in the same subnet.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    /// The stack's.
    pub ours: Cidr,
    /// The host's.
    pub host: IpAddr,
}

/// The interface, ready to be used.
pub struct Link {
    /// The device.
    pub tap: Tap,
    /// The addresses at its ends.
    pub ends: Vec<Ends>,
    /// What to tell besides.
    pub notes: Vec<String>,
}

/// Makes the interface, and has the host reach the stack by it.
///
/// # Errors
/// [`Error::Input`] for addresses that can't be, [`Error::Unavailable`] for what this machine, or
/// the lack of privilege, does not allow. Nothing is left behind then.
pub fn open(args: &ServeArgs) -> Result<Link, Error> {
    let (name, medium) = match &args.device {
        HostDevice::Tap(name) => (name, Medium::Ethernet),
        HostDevice::Tun(name) => (name, Medium::Ip),
        other => {
            return Err(Error::Input(format!(
                "--device {}: tap[:NAME] or tun[:NAME], as the other end is this host",
                other.kind()
            )));
        }
    };
    let mut ends = args.address.iter().map(ends_of).collect::<Result<_, _>>()?;
    check(&args.address)?;
    let is_there = host::index(name).is_ok();
    for e in &ends {
        look(name, e, is_there)?;
    }
    let tap = Tap::open(&TapConfig::new(name).with_medium(medium).with_large(true)).map_err(
        |e| match e {
            TapError::Io { .. } => Error::Run(e.to_string()),
            _ => Error::Unavailable(e.to_string()),
        },
    )?;
    let mut notes = Vec::new();
    if !is_there {
        set_up(tap.name(), args, &mut ends, &mut notes)?;
    }
    Ok(Link { tap, ends, notes })
}

/// Whether a stack would take these addresses.
fn check(addresses: &[Cidr]) -> Result<(), Error> {
    let native = Native::default();
    let ([end, _], _) = pair(&native, WireConfig::default());
    let text: Vec<String> = addresses.iter().map(Cidr::to_string).collect();
    let text: Vec<&str> = text.iter().map(String::as_str).collect();
    match Stack::builder().on_native(native).interface(end, &text) {
        Ok(_) => Ok(()),
        Err(e) => Err(Error::Input(format!("--address: {e}"))),
    }
}

/// The host's address beside one of ours: the first of the subnet that is free.
fn ends_of(ours: &Cidr) -> Result<Ends, Error> {
    let small = || {
        Error::Input(format!(
            "--address {ours}: this host needs an address of the same subnet; give a shorter prefix, \
             as in 10.99.0.2/24 or fd99::2/64"
        ))
    };
    let host = match ours.addr {
        IpAddr::V4(a) => {
            let bits = u32::from(a);
            let network = match ours.prefix {
                0..=30 => bits & !(u32::MAX >> ours.prefix),
                31 => (bits & !1).wrapping_sub(1),
                _ => return Err(small()),
            };
            let first = network.wrapping_add(1);
            let free = if first == bits { first + 1 } else { first };
            IpAddr::V4(Ipv4Addr::from(free))
        }
        IpAddr::V6(a) => {
            let bits = u128::from(a);
            if ours.prefix >= 127 {
                return Err(small());
            }
            let first = (bits & !(u128::MAX >> ours.prefix)) + 1;
            let free = if first == bits { first + 1 } else { first };
            IpAddr::V6(Ipv6Addr::from(free))
        }
    };
    Ok(Ends { ours: *ours, host })
}

/// The address by which this host would send to `to`, if it has a way there.
fn source(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    socket.connect(SocketAddr::new(to, 9)).ok()?;
    socket.local_addr().ok().map(|a| a.ip())
}

/// An interface that is to be made must not take a subnet that is in use; one that is there is left
/// as it is, and must have been set up.
fn look(name: &str, e: &Ends, is_there: bool) -> Result<(), Error> {
    let here = source(e.ours.addr).filter(|a| e.ours.contains(*a));
    match (is_there, here) {
        (true, Some(host)) if host == e.ours.addr => Err(Error::Unavailable(format!(
            "{host} is this host's own address; the stack needs another (--address)"
        ))),
        (true, Some(_)) | (false, None) => Ok(()),
        (true, None) => Err(Error::Unavailable(format!(
            "`{name}` exists and is left as it is, but has no address beside {}: ip addr add {}/{} \
             dev {name} && ip link set {name} up; or give another name to have it made",
            e.ours.addr, e.host, e.ours.prefix
        ))),
        (false, Some(host)) => Err(Error::Unavailable(format!(
            "{} is in use: this host has {host} there; give another subnet (--address)",
            e.ours
        ))),
    }
}

/// Gives the host its addresses on the interface, which brings the routes, and sets it up.
fn set_up(
    name: &str,
    args: &ServeArgs,
    ends: &mut Vec<Ends>,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    let failed = |what: &str, e: std::io::Error| match e.kind() {
        ErrorKind::PermissionDenied => Error::Unavailable(format!(
            "no permission for {what} `{name}`: run as root or with CAP_NET_ADMIN, or in a \
             namespace (unshare -Urn)"
        )),
        _ => Error::Run(format!("{what} `{name}`: {e}")),
    };
    // Nobody else is on this link: the host need not look for its address there.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0");
    host::set_up(name, true).map_err(|e| failed("setting up", e))?;
    let mut without = None;
    for e in ends.iter() {
        match e.host {
            IpAddr::V4(a) => host::set_address(name, a, e.ours.prefix)
                .map_err(|e| failed("giving this host an address on", e))?,
            IpAddr::V6(a) => match host::add_address_v6(name, a, e.ours.prefix) {
                Ok(()) => {}
                // Many containers have it turned off.
                Err(why) if args.address.iter().any(|c| c.addr.is_ipv4()) => without = Some(why),
                Err(why) => return Err(failed("giving this host an IPv6 address on", why)),
            },
        }
    }
    if let Some(why) = without {
        ends.retain(|e| e.ours.addr.is_ipv4());
        notes.push(format!("not over IPv6: this host has none here ({why})"));
    }
    let end = Instant::now() + DETECTION;
    for e in ends.iter() {
        while source(e.ours.addr) != Some(e.host) && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_the_first_free_address_of_the_subnet() {
        for (ours, host) in [
            ("10.99.0.2/24", "10.99.0.1"),
            ("10.99.0.1/24", "10.99.0.2"),
            ("10.99.0.77/29", "10.99.0.73"),
            ("10.0.0.4/31", "10.0.0.5"),
            ("10.0.0.5/31", "10.0.0.4"),
            ("0.0.0.1/0", "0.0.0.2"),
            ("fd99::2/64", "fd99::1"),
            ("fd99::1/64", "fd99::2"),
            ("fd99::1:2/112", "fd99::1:1"),
        ] {
            let ends = ends_of(&ours.parse().unwrap()).unwrap();
            assert_eq!(ends.host.to_string(), host, "{ours}");
        }
        for ours in ["10.0.0.1/32", "fd99::1/128", "fd99::1/127"] {
            let e = ends_of(&ours.parse().unwrap()).unwrap_err();
            assert!(e.to_string().contains("shorter prefix"), "{e}");
        }
    }
}
