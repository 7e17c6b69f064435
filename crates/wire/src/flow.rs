//! The names of flows and the hash that spreads them over queues and tables.

use alloc::boxed::Box;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A TCP flow from this host's point of view, whatever the address family.
///
/// Two keys are one flow only if they use one family: IPv4-mapped IPv6
/// addresses are to be turned into IPv4 before they get here. Link-local addresses carry their
/// zones ([`crate::ipv6::with_zone`]).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct FlowKey {
    /// Address of this host: destination of what it receives.
    pub local: IpAddr,
    /// Address of the other host.
    pub remote: IpAddr,
    /// Port on this host.
    pub local_port: u16,
    /// Port on the other host.
    pub remote_port: u16,
}

impl FlowKey {
    /// The flow of what has none.
    pub const UNSPECIFIED: FlowKey = FlowKey {
        local: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        remote: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        local_port: 0,
        remote_port: 0,
    };

    /// The same flow from the other host's point of view.
    #[inline]
    pub fn reversed(self) -> FlowKey {
        FlowKey {
            local: self.remote,
            remote: self.local,
            local_port: self.remote_port,
            remote_port: self.local_port,
        }
    }
}

impl fmt::Display for FlowKey {
    /// `local:port -> remote:port`, IPv6 addresses in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use core::net::SocketAddr;
        let local = SocketAddr::new(self.local, self.local_port);
        let remote = SocketAddr::new(self.remote, self.remote_port);
        write!(f, "{local} -> {remote}")
    }
}

/// Bytes hashed for IPv6: two addresses and two ports.
const INPUT: usize = 36;

/// The Toeplitz hash of receive-side scaling, with one table per input byte.
///
/// The hash is linear: with a key known to an attacker, flows that collide are
/// easily found. Tables that strangers fill need a random key.
pub struct Toeplitz {
    /// `table[i][b]`: what byte `b` at position `i` of the input contributes.
    /// IPv4 uses the first 12 positions, 12 KiB, of 36.
    table: Box<[[u32; 256]; INPUT]>,
}

impl Default for Toeplitz {
    /// The hash that the whole stack and its devices agree on.
    fn default() -> Toeplitz {
        Toeplitz::new(&Toeplitz::MICROSOFT_KEY)
    }
}

impl Toeplitz {
    /// The key of the published test vectors, which many NICs default to.
    pub const MICROSOFT_KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Builds the tables for a key: 36 KiB.
    pub fn new(key: &[u8; 40]) -> Toeplitz {
        let mut table = Box::new([[0u32; 256]; INPUT]);
        for (i, row) in table.iter_mut().enumerate() {
            // Bit j of byte i (from the left) selects the 32 bits of the key
            // that start at bit 8 i + j.
            let mut window = key[i..i + 4]
                .iter()
                .fold(0u64, |w, &k| w << 8 | u64::from(k));
            window = window << 8 | u64::from(key.get(i + 4).copied().unwrap_or(0));
            // The hash is linear: a byte is its lowest bit and the rest, which comes before it.
            for byte in 1..row.len() {
                let j = 7 - byte.trailing_zeros();
                row[byte] = row[byte & (byte - 1)] ^ (window >> (8 - j)) as u32;
            }
        }
        Toeplitz { table }
    }

    /// The table, for whoever computes the hash elsewhere: row `i` has what each value of byte `i`
    /// of the input contributes. The input is the first end's address, the second's, and both
    /// ports, in network order; the first end is the lower one, by address and then port.
    pub fn rows(&self) -> &[[u32; 256]] {
        &self.table[..]
    }

    /// Hash of a flow, the same for both directions: the ends, address with
    /// port, are put in order before they are hashed. Every part of the stack
    /// that spreads flows uses this, so that the NIC queue of a flow and its
    /// table agree.
    #[inline]
    pub fn hash(&self, key: &FlowKey) -> u32 {
        if let (IpAddr::V4(l), IpAddr::V4(r)) = (key.local, key.remote) {
            let l = u64::from(l.to_bits()) << 16 | u64::from(key.local_port);
            let r = u64::from(r.to_bits()) << 16 | u64::from(key.remote_port);
            return self.hash_v4(l.min(r), l.max(r));
        }
        let l = (wide(key.local), key.local_port);
        let r = (wide(key.remote), key.remote_port);
        let (first, second) = if l <= r { (l, r) } else { (r, l) };
        self.hash_v6(first, second)
    }

    /// Ends are 32 bits of address, then 16 of port.
    #[inline]
    fn hash_v4(&self, first: u64, second: u64) -> u32 {
        let [_, _, a, b, c, d, p, q] = first.to_be_bytes();
        let [_, _, e, f, g, h, r, s] = second.to_be_bytes();
        let input = [a, b, c, d, e, f, g, h, p, q, r, s];
        let rows = self.table.first_chunk::<12>().expect("36 rows");
        input
            .iter()
            .zip(rows)
            .fold(0, |hash, (&byte, row)| hash ^ row[usize::from(byte)])
    }

    fn hash_v6(&self, first: (Ipv6Addr, u16), second: (Ipv6Addr, u16)) -> u32 {
        let ports = [first.1.to_be_bytes(), second.1.to_be_bytes()];
        let (a, b) = (first.0.octets(), second.0.octets());
        a.iter()
            .chain(&b)
            .chain(ports.as_flattened())
            .zip(self.table.iter())
            .fold(0, |hash, (&byte, row)| hash ^ row[usize::from(byte)])
    }
}

impl fmt::Debug for Toeplitz {
    /// Shows nothing of the key, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Toeplitz").finish_non_exhaustive()
    }
}

/// The address as IPv6 and as a device sees it; a key of mixed families hashes as a mapped one.
fn wide(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(a) => a.to_ipv6_mapped(),
        IpAddr::V6(a) => crate::ipv6::without_zone(a),
    }
}
