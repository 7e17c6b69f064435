//! Which families are asked for, and which address is tried first.

use std::net::{IpAddr, Ipv6Addr};

/// The families that a caller can reach something of, and what of IPv6.
///
/// ```
/// use perimeter_dns::Families;
///
/// let here = Families::of(&["10.0.0.1".parse()?, "fe80::1".parse()?]);
/// assert!(here.v4 && !here.v6, "a link-local address alone leads nowhere");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Families {
    /// IPv4: A records are asked for.
    pub v4: bool,
    /// IPv6: AAAA records are asked for.
    pub v6: bool,
    /// An address of IPv6 that is valid everywhere.
    global: bool,
    /// An address of IPv6 that is valid at this site (RFC 4193).
    local: bool,
}

/// Whether it is a unique local address (RFC 4193).
fn is_local(ip: &Ipv6Addr) -> bool {
    ip.segments()[0] & 0xfe00 == 0xfc00
}

impl Families {
    /// Both, IPv6 before IPv4.
    pub const BOTH: Families = Families {
        v4: true,
        v6: true,
        global: true,
        local: true,
    };

    /// Those that `own`, a host's addresses, are of; both if there is none that leads anywhere.
    /// See [`Families`].
    pub fn of(own: &[IpAddr]) -> Families {
        let mut found = Families {
            v4: false,
            v6: false,
            global: false,
            local: false,
        };
        for ip in own {
            match ip {
                IpAddr::V4(_) => found.v4 = true,
                IpAddr::V6(ip) if ip.is_unicast_link_local() => {}
                IpAddr::V6(ip) => {
                    found.v6 = true;
                    found.local |= is_local(ip);
                    found.global |= !is_local(ip);
                }
            }
        }
        match found.v4 || found.v6 {
            true => found,
            false => Families::BOTH,
        }
    }

    /// Puts first what a like address of ours can speak with, of that IPv6 before IPv4, and keeps the
    /// order otherwise: rules 2, 5 and 6 of RFC 6724, section 6, as far as they can matter here.
    pub(crate) fn sort(self, addrs: &mut [IpAddr]) {
        addrs.sort_by_key(|ip| match ip {
            IpAddr::V6(ip) if is_local(ip) => u8::from(!self.local) * 2,
            IpAddr::V6(_) => u8::from(!self.global) * 2,
            IpAddr::V4(_) => 1,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tried_first() {
        let ip = |t: &str| t.parse::<IpAddr>().unwrap();
        let (v4, other, global, local) = (
            ip("192.0.2.1"),
            ip("192.0.2.2"),
            ip("2001:db8::1"),
            ip("fd00::1"),
        );
        let ordered = |own: &[&str], all: &[IpAddr]| {
            let own: Vec<_> = own.iter().map(|t| ip(t)).collect();
            let mut all = all.to_vec();
            Families::of(&own).sort(&mut all);
            all
        };
        let all = [v4, global, other, local];
        assert_eq!(
            ordered(&["10.0.0.1", "2001:db8::9"], &all),
            [global, v4, other, local]
        );
        assert_eq!(
            ordered(&["10.0.0.1", "fd00::9"], &all),
            [local, v4, other, global]
        );
        assert_eq!(
            ordered(&["10.0.0.1"], &[global, other, v4]),
            [other, v4, global]
        );
        assert_eq!(ordered(&[], &[v4, global]), [global, v4]);
        assert_eq!(Families::of(&[ip("fe80::1")]), Families::BOTH);
    }
}
