//! Receive-side scaling: which queue a frame goes to.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use perimeter_wire::{FlowKey, Toeplitz};

/// The hash function and the redirection table of a device.
pub struct Rss {
    toeplitz: Toeplitz,
    /// Queue by the low bits of the hash; a power of two long.
    table: Box<[u16]>,
}

impl Rss {
    /// Entries of the default table, as many NICs have.
    pub const TABLE: usize = 128;

    /// Flows spread evenly over `queues` (at least 1).
    pub fn even(queues: usize) -> Rss {
        let table = (0..Self::TABLE).map(|i| (i % queues.max(1)) as u16);
        Rss::with_table(table.collect(), queues)
    }

    /// Flows spread by `table`: entry `hash % table.len()` is the queue. Entries beyond
    /// `queues` are taken modulo it; the length is rounded down to a power of two, and an empty
    /// table means queue 0.
    pub fn with_table(mut table: Vec<u16>, queues: usize) -> Rss {
        if table.is_empty() {
            table.push(0);
        }
        table.truncate(1 << table.len().ilog2());
        for q in &mut table {
            *q %= queues.clamp(1, 1 << 15) as u16;
        }
        Rss {
            toeplitz: Toeplitz::new(&Toeplitz::MICROSOFT_KEY),
            table: table.into(),
        }
    }

    /// The queue of a hash.
    #[inline]
    pub fn queue(&self, hash: u32) -> usize {
        usize::from(self.table[hash as usize & (self.table.len() - 1)])
    }

    /// The symmetric hash of a flow.
    #[inline]
    pub fn hash(&self, a: (Ipv4Addr, u16), b: (Ipv4Addr, u16)) -> u32 {
        self.hash_flow(&FlowKey {
            local: IpAddr::V4(a.0),
            remote: IpAddr::V4(b.0),
            local_port: a.1,
            remote_port: b.1,
        })
    }

    /// The same, of either family.
    #[inline]
    pub fn hash_flow(&self, key: &FlowKey) -> u32 {
        self.toeplitz.hash(key)
    }

    /// The hash of a packet that starts at its IP header: of whole TCP and UDP datagrams, over
    /// IPv6 without extension headers, as a NIC computes it; `None` for others, which belong to
    /// queue 0.
    #[inline]
    pub fn hash_ip(&self, ip: &[u8]) -> Option<u32> {
        let fixed = ip.first_chunk::<20>()?;
        if fixed[0] >> 4 == 6 {
            return self.hash_ipv6(ip);
        }
        let header = usize::from(fixed[0] & 15) * 4;
        let fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
        if fixed[0] >> 4 != 4 || header < 20 || fragment || !matches!(fixed[9], 6 | 17) {
            return None;
        }
        let ports = ip.get(header..header + 4)?;
        let src = Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]);
        let dst = Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]);
        Some(self.hash(
            (src, u16::from_be_bytes([ports[0], ports[1]])),
            (dst, u16::from_be_bytes([ports[2], ports[3]])),
        ))
    }

    fn hash_ipv6(&self, ip: &[u8]) -> Option<u32> {
        let head = ip.first_chunk::<44>()?;
        if !matches!(head[6], 6 | 17) {
            return None;
        }
        let (src, dst) = (head[8..24].first_chunk()?, head[24..40].first_chunk()?);
        Some(self.toeplitz.hash(&FlowKey {
            local: IpAddr::V6(Ipv6Addr::from_octets(*src)),
            remote: IpAddr::V6(Ipv6Addr::from_octets(*dst)),
            local_port: u16::from_be_bytes([head[40], head[41]]),
            remote_port: u16::from_be_bytes([head[42], head[43]]),
        }))
    }

    /// As [`Rss::hash_ip`] for an Ethernet frame.
    #[inline]
    pub fn hash_ethernet(&self, frame: &[u8]) -> Option<u32> {
        if !matches!(frame.get(12..14)?, [8, 0] | [0x86, 0xdd]) {
            return None;
        }
        self.hash_ip(&frame[14..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(src: [u8; 4], dst: [u8; 4], sport: u16, dport: u16) -> Vec<u8> {
        let mut p = vec![0; 40];
        p[0] = 0x45;
        p[9] = 6;
        p[12..16].copy_from_slice(&src);
        p[16..20].copy_from_slice(&dst);
        p[20..22].copy_from_slice(&sport.to_be_bytes());
        p[22..24].copy_from_slice(&dport.to_be_bytes());
        p
    }

    #[test]
    fn both_directions_meet_in_one_queue() {
        let rss = Rss::even(4);
        let mut seen = [0; 4];
        for port in 0..1000 {
            let there = tcp([10, 0, 0, 1], [10, 0, 0, 2], port, 80);
            let back = tcp([10, 0, 0, 2], [10, 0, 0, 1], 80, port);
            assert_eq!(rss.hash_ip(&there), rss.hash_ip(&back));
            seen[rss.queue(rss.hash_ip(&there).expect("tcp"))] += 1;
        }
        assert!(seen.iter().all(|&n| n > 150), "{seen:?}");
    }

    #[test]
    fn ipv6_has_the_hash_of_its_flow() {
        let mut p = vec![0; 44];
        (p[0], p[6], p[23], p[39], p[41], p[43]) = (0x60, 6, 1, 2, 80, 9);
        let (a, b) = (Ipv6Addr::from_bits(1), Ipv6Addr::from_bits(2));
        let key = FlowKey {
            local: a.into(),
            remote: b.into(),
            local_port: 80,
            remote_port: 9,
        };
        let rss = Rss::even(2);
        assert_eq!(rss.hash_ip(&p), Some(Toeplitz::default().hash(&key)));
        assert_eq!(rss.hash_ip(&p[..43]), None);
        p[6] = 58;
        assert_eq!(rss.hash_ip(&p), None);
    }

    #[test]
    fn odd_packets_have_no_hash() {
        let rss = Rss::even(2);
        let good = tcp([1, 2, 3, 4], [5, 6, 7, 8], 1, 2);
        for cut in 0..24 {
            assert_eq!(rss.hash_ip(&good[..cut]), None);
        }
        let mut fragment = good.clone();
        fragment[6] = 0x20;
        assert_eq!(rss.hash_ip(&fragment), None);
        let mut v6 = good.clone();
        v6[0] = 0x65;
        assert_eq!(rss.hash_ip(&v6), None);
        assert_eq!(Rss::with_table(vec![], 1).queue(12345), 0);
        assert_eq!(Rss::with_table(vec![7, 1, 9], 2).queue(0), 1);
    }
}
