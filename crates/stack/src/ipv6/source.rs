//! Which of our addresses a datagram is sent from (RFC 6724, section 5).

use super::addrs::{Addresses, Held, State};
use core::net::Ipv6Addr;
use perimeter_wire::ipv6::is_link_local;

/// Scopes as multicast addresses number them (RFC 4291, section 2.7).
fn scope(ip: Ipv6Addr) -> u8 {
    const LINK: u8 = 2;
    const SITE: u8 = 5;
    const GLOBAL: u8 = 14;
    let [a, b, ..] = ip.octets();
    match a {
        0xff => b & 0x0f,
        0xfe if is_link_local(ip) => LINK,
        0xfe if b & 0xc0 == 0xc0 => SITE,
        _ => GLOBAL,
    }
}

/// The label of the default policy table (RFC 6724, section 2.1), of addresses that hosts have.
fn label(ip: Ipv6Addr) -> u8 {
    match ip.segments() {
        [0x2002, ..] => 2,
        [0x2001, 0, ..] => 5,
        [0x3ffe, ..] => 12,
        [a, ..] if a & 0xfe00 == 0xfc00 => 13,
        [a, ..] if a & 0xffc0 == 0xfec0 => 11,
        _ => 1,
    }
}

/// How well an address is suited as the source for `dst`; more is better. Rules 1, 2, 3, 6 and 8
/// in their order; one that is tentative can be used only after a while. All candidates are of the
/// outgoing interface (rule 5), and there are no home and no temporary addresses (rules 4, 7).
fn rank(h: &Held, dst: Ipv6Addr) -> (bool, (bool, i16), bool, State, bool, u8) {
    let (ours, theirs) = (i16::from(scope(h.addr)), i16::from(scope(dst)));
    // Of scopes that reach there the smallest, else the largest.
    let reach = match ours >= theirs {
        true => (true, -ours),
        false => (false, ours),
    };
    let common = (h.addr.to_bits() ^ dst.to_bits()).leading_zeros() as u8;
    (
        h.addr == dst,
        reach,
        h.state != State::Tentative,
        h.state,
        label(h.addr) == label(dst),
        common.min(h.prefix),
    )
}

/// The address of interface `iface` to send from to `dst`; the first of those that are equally
/// suited. `None`: it has none.
pub(crate) fn select(addrs: &Addresses, iface: u16, dst: Ipv6Addr) -> Option<Held> {
    let better = |best: Option<Held>, h: Held| match best {
        Some(b) if rank(&b, dst) >= rank(&h, dst) => Some(b),
        _ => Some(h),
    };
    addrs.of(iface).fold(None, better)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6724, section 10.1, and what follows from the rules.
    #[test]
    fn examples() {
        type State3 = State;
        let (ok, old, new) = (State3::Preferred, State3::Deprecated, State3::Tentative);
        for (dst, candidates, want) in [
            (
                "2001:db8:1::1",
                &[("2001:db8:3::1", ok), ("fe80:1::1", ok)][..],
                "2001:db8:3::1",
            ),
            (
                "2001:db8:1::1",
                &[("fe80:1::1", ok), ("2001:db8:3::1", ok)],
                "2001:db8:3::1",
            ),
            (
                "fe80:1::9",
                &[("2001:db8:3::1", ok), ("fe80:1::1", ok)],
                "fe80:1::1",
            ),
            (
                "ff02::1",
                &[("2001:db8:3::1", ok), ("fe80:1::1", ok)],
                "fe80:1::1",
            ),
            (
                "ff0e::1",
                &[("fe80:1::1", ok), ("2001:db8:3::1", ok)],
                "2001:db8:3::1",
            ),
            (
                "2001:db8:1::1",
                &[("2001:db8:1::1", old), ("2001:db8:3::1", ok)],
                "2001:db8:1::1",
            ),
            (
                "2001:db8:1::1",
                &[("2001:db8:1::2", old), ("2001:db8:3::2", ok)],
                "2001:db8:3::2",
            ),
            (
                "2001:db8:1::1",
                &[("2001:db8:1::2", new), ("2001:db8:3::2", old)],
                "2001:db8:3::2",
            ),
            (
                "2001:db8:1::1",
                &[("2001:db8:3::2", ok), ("2001:db8:1::2", ok)],
                "2001:db8:1::2",
            ),
            (
                "2001:db8:1::d5e3",
                &[("2002:c633:6401::1", ok), ("2001:db8:2::1", ok)],
                "2001:db8:2::1",
            ),
            (
                "2002:c633:6401::9",
                &[("2001:db8:1::2", ok), ("2002:c633:6401::1", ok)],
                "2002:c633:6401::1",
            ),
            (
                "fd00::1",
                &[("2001:db8:1::2", ok), ("fd11::2", ok)],
                "fd11::2",
            ),
        ] {
            let table = Addresses::new(4);
            for (ip, state) in candidates {
                let addr = ip.parse().unwrap();
                let (iface, prefix, state) = (0, 64, *state);
                table.set(Held {
                    addr,
                    iface,
                    prefix,
                    state,
                });
            }
            let found = select(&table, 0, dst.parse().unwrap());
            assert_eq!(
                found.unwrap().addr,
                want.parse::<Ipv6Addr>().unwrap(),
                "{dst}"
            );
            assert!(select(&table, 1, dst.parse().unwrap()).is_none());
        }
    }
}
