//! The keyed hash of tables.

use core::net::IpAddr;
use perimeter_wire::FlowKey;

/// A keyed hash of a flow for a table: two multiplications for IPv4. Keyed, so that chosen
/// tuples do not slow the lookup.
pub fn table_hash(secret: [u64; 2], key: &FlowKey) -> u64 {
    let ports = u64::from(key.local_port) << 16 | u64::from(key.remote_port);
    let fold = |a: u64, b: u64| {
        let m = u128::from(a) * u128::from(b);
        (m >> 64) as u64 ^ m as u64
    };
    match (key.local, key.remote) {
        (IpAddr::V4(l), IpAddr::V4(r)) => {
            let addrs = u64::from(u32::from(l)) << 32 | u64::from(u32::from(r));
            fold(fold(addrs ^ secret[0], ports ^ secret[1]), secret[0] | 1)
        }
        (l, r) => {
            let wide = |ip: IpAddr| match ip {
                IpAddr::V4(a) => u128::from(a.to_ipv6_mapped()),
                IpAddr::V6(a) => u128::from(a),
            };
            let mut h = ports ^ secret[1];
            for word in [wide(l), wide(r)] {
                h = fold((word >> 64) as u64 ^ secret[0], h ^ word as u64);
            }
            fold(h, secret[0] | 1)
        }
    }
}
