//! DHCP messages (RFC 2131, RFC 2132): what a client asks, and what it is answered.

use core::net::Ipv4Addr;

use crate::error::WireError;
use crate::eth::MacAddr;

/// The client's port.
pub const CLIENT_PORT: u16 = 68;
/// The server's port.
pub const SERVER_PORT: u16 = 67;

/// Octets of the fixed part, and of the cookie behind it.
const FIXED: usize = 236;
const COOKIE: [u8; 4] = [0x63, 0x82, 0x53, 0x63];
/// Where the fields for names stand, which may hold options.
const SNAME: core::ops::Range<usize> = 44..108;
const FILE: core::ops::Range<usize> = 108..FIXED;
/// Servers and relays drop what is shorter (RFC 1542, section 2.1).
const SHORTEST: usize = 300;
/// Octets that a client's message takes at most.
pub const QUERY_LEN: usize = 512;
/// Addresses of one kind that are taken from a message.
pub const MOST: usize = 4;

mod option {
    pub const PAD: u8 = 0;
    pub const MASK: u8 = 1;
    pub const ROUTERS: u8 = 3;
    pub const NAME_SERVERS: u8 = 6;
    pub const HOSTNAME: u8 = 12;
    pub const MTU: u8 = 26;
    pub const REQUESTED: u8 = 50;
    pub const LEASE: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const KIND: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const PARAMETERS: u8 = 55;
    pub const MAX_SIZE: u8 = 57;
    pub const RENEWAL: u8 = 58;
    pub const REBINDING: u8 = 59;
    pub const CLIENT: u8 = 61;
    pub const END: u8 = 255;
}

/// What a message is (RFC 2132, section 9.6).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum DhcpKind {
    /// A client looks for servers.
    Discover,
    /// A server offers an address.
    Offer,
    /// A client asks for an address that it was offered, or has.
    Request,
    /// Somebody else has the address.
    Decline,
    /// It is the client's.
    Ack,
    /// It is not.
    Nak,
    /// The client needs it no more.
    Release,
}

impl DhcpKind {
    const ALL: [DhcpKind; 7] = [
        DhcpKind::Discover,
        DhcpKind::Offer,
        DhcpKind::Request,
        DhcpKind::Decline,
        DhcpKind::Ack,
        DhcpKind::Nak,
        DhcpKind::Release,
    ];

    fn number(self) -> u8 {
        match self {
            DhcpKind::Discover => 1,
            DhcpKind::Offer => 2,
            DhcpKind::Request => 3,
            DhcpKind::Decline => 4,
            DhcpKind::Ack => 5,
            DhcpKind::Nak => 6,
            DhcpKind::Release => 7,
        }
    }
}

/// A client's message.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DhcpQuery<'a> {
    /// What it is.
    pub kind: DhcpKind,
    /// The transaction, drawn at random.
    pub xid: u32,
    /// Seconds since the client began.
    pub secs: u16,
    /// The answer is to come to all stations, as the client has no address yet.
    pub broadcast: bool,
    /// The client's address, if it has one that it answers at; else the unspecified one.
    pub addr: Ipv4Addr,
    /// The client's station.
    pub mac: MacAddr,
    /// The address that it asks for, or tells of.
    pub requested: Option<Ipv4Addr>,
    /// The server that it means.
    pub server: Option<Ipv4Addr>,
    /// What the client is known by; empty: its station. At most 64 octets are sent.
    pub client_id: &'a [u8],
    /// The host's name; empty: none. At most 63 octets are sent.
    pub hostname: &'a str,
}

impl DhcpQuery<'_> {
    /// Writes the message; returns its length.
    pub fn emit(&self, out: &mut [u8; QUERY_LEN]) -> usize {
        out.fill(0);
        // BOOTREQUEST, over Ethernet.
        out[..3].copy_from_slice(&[1, 1, 6]);
        out[4..8].copy_from_slice(&self.xid.to_be_bytes());
        out[8..10].copy_from_slice(&self.secs.to_be_bytes());
        out[10] = u8::from(self.broadcast) << 7;
        out[12..16].copy_from_slice(&self.addr.octets());
        out[28..34].copy_from_slice(&self.mac.0);
        out[FIXED..FIXED + 4].copy_from_slice(&COOKIE);
        let mut at = FIXED + 4;
        let mut put = |code: u8, data: &[u8]| {
            out[at] = code;
            out[at + 1] = data.len() as u8;
            out[at + 2..at + 2 + data.len()].copy_from_slice(data);
            at += 2 + data.len();
        };
        put(option::KIND, &[self.kind.number()]);
        // The type of the hardware and the station (RFC 2132, section 9.14).
        let [a, b, c, d, e, f] = self.mac.0;
        let own = [1, a, b, c, d, e, f];
        match self.client_id {
            [] => put(option::CLIENT, &own),
            id => put(option::CLIENT, &id[..id.len().min(64)]),
        }
        if let Some(ip) = self.requested {
            put(option::REQUESTED, &ip.octets());
        }
        if let Some(ip) = self.server {
            put(option::SERVER, &ip.octets());
        }
        if matches!(self.kind, DhcpKind::Discover | DhcpKind::Request) {
            let wanted = [
                option::MASK,
                option::ROUTERS,
                option::NAME_SERVERS,
                option::MTU,
                option::LEASE,
                option::RENEWAL,
                option::REBINDING,
            ];
            put(option::PARAMETERS, &wanted);
            put(option::MAX_SIZE, &1472u16.to_be_bytes());
            if !self.hostname.is_empty() {
                let name = self.hostname.as_bytes();
                put(option::HOSTNAME, &name[..name.len().min(63)]);
            }
        }
        out[at] = option::END;
        (at + 1).max(SHORTEST)
    }
}

/// Up to [`MOST`] addresses.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Addrs4 {
    all: [Option<Ipv4Addr>; MOST],
}

impl Addrs4 {
    /// The addresses, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = Ipv4Addr> + '_ {
        self.all.iter().flatten().copied()
    }

    fn add(&mut self, data: &[u8]) {
        let free = self.all.iter_mut().filter(|a| a.is_none());
        let (whole, _) = data.as_chunks::<4>();
        for (place, ip) in free.zip(whole) {
            *place = Some(Ipv4Addr::from_octets(*ip));
        }
    }
}

/// A server's message. What it says twice counts once, the first time; lists go on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DhcpReply {
    /// What it is.
    pub kind: DhcpKind,
    /// The transaction that it answers.
    pub xid: u32,
    /// The station of the client that it is for.
    pub mac: MacAddr,
    /// The address that is offered, or given.
    pub addr: Ipv4Addr,
    /// Who says so.
    pub server: Option<Ipv4Addr>,
    /// Prefix length of the network.
    pub prefix: Option<u8>,
    /// Gateways, the preferred one first.
    pub routers: Addrs4,
    /// Name servers, likewise.
    pub name_servers: Addrs4,
    /// The link's MTU, octets.
    pub mtu: Option<u16>,
    /// How long the address is given for, s; `u32::MAX`: for ever.
    pub lease: Option<u32>,
    /// When to ask that server again, s (T1).
    pub renewal: Option<u32>,
    /// When to ask all servers, s (T2).
    pub rebinding: Option<u32>,
}

fn word(data: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(data.try_into().ok()?))
}

fn ip(data: &[u8]) -> Option<Ipv4Addr> {
    Some(Ipv4Addr::from_octets(data.try_into().ok()?))
}

/// The length of a prefix whose mask this is.
fn prefix(data: &[u8]) -> Option<u8> {
    let mask = word(data)?;
    (mask.leading_ones() + mask.trailing_zeros().min(32) >= 32).then_some(mask.leading_ones() as u8)
}

impl DhcpReply {
    /// Reads a message of a server.
    ///
    /// # Errors
    /// [`WireError::Truncated`]: it is shorter than its fixed part, or its options are cut.
    /// [`WireError::BadOption`]: it is no message of a server to a client on Ethernet, or does not say
    /// what it is.
    pub fn parse(bytes: &[u8]) -> Result<DhcpReply, WireError> {
        let fixed = bytes.get(..FIXED + 4).ok_or(WireError::Truncated)?;
        if fixed[..3] != [2, 1, 6] || fixed[FIXED..] != COOKIE {
            return Err(WireError::BadOption);
        }
        let mut found = DhcpReply {
            kind: DhcpKind::Discover,
            xid: word(&fixed[4..8]).ok_or(WireError::Truncated)?,
            mac: MacAddr(core::array::from_fn(|i| fixed[28 + i])),
            addr: ip(&fixed[16..20]).ok_or(WireError::Truncated)?,
            server: None,
            prefix: None,
            routers: Addrs4::default(),
            name_servers: Addrs4::default(),
            mtu: None,
            lease: None,
            renewal: None,
            rebinding: None,
        };
        let (mut kind, mut overload) = (None, 0);
        found.options(&bytes[FIXED + 4..], &mut kind, &mut overload)?;
        // Options may go on where names would stand otherwise (RFC 2131, section 4.1).
        let more = overload;
        if more & 1 != 0 {
            found.options(&fixed[FILE], &mut kind, &mut overload)?;
        }
        if more & 2 != 0 {
            found.options(&fixed[SNAME], &mut kind, &mut overload)?;
        }
        found.kind = kind.ok_or(WireError::BadOption)?;
        Ok(found)
    }

    fn options(
        &mut self,
        mut rest: &[u8],
        kind: &mut Option<DhcpKind>,
        overload: &mut u8,
    ) -> Result<(), WireError> {
        while let [code, tail @ ..] = rest {
            rest = tail;
            match *code {
                option::PAD => continue,
                option::END => break,
                _ => {}
            }
            let (len, tail) = rest.split_first().ok_or(WireError::Truncated)?;
            let (data, tail) = tail
                .split_at_checked(usize::from(*len))
                .ok_or(WireError::Truncated)?;
            rest = tail;
            self.option(*code, data, kind, overload);
        }
        Ok(())
    }

    fn option(&mut self, code: u8, data: &[u8], kind: &mut Option<DhcpKind>, overload: &mut u8) {
        match code {
            option::KIND => {
                let is = |k: &DhcpKind| data == [k.number()];
                *kind = kind.or(DhcpKind::ALL.into_iter().find(is));
            }
            option::OVERLOAD => {
                if let [how] = data {
                    *overload |= how;
                }
            }
            option::SERVER => self.server = self.server.or(ip(data)),
            option::MASK => self.prefix = self.prefix.or(prefix(data)),
            option::ROUTERS => self.routers.add(data),
            option::NAME_SERVERS => self.name_servers.add(data),
            option::LEASE => self.lease = self.lease.or(word(data)),
            option::RENEWAL => self.renewal = self.renewal.or(word(data)),
            option::REBINDING => self.rebinding = self.rebinding.or(word(data)),
            option::MTU => {
                let mtu = data.try_into().ok().map(u16::from_be_bytes);
                self.mtu = self.mtu.or(mtu);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn query() -> DhcpQuery<'static> {
        DhcpQuery {
            kind: DhcpKind::Request,
            xid: 0x1234_5678,
            secs: 3,
            broadcast: true,
            addr: Ipv4Addr::UNSPECIFIED,
            mac: MAC,
            requested: Some(Ipv4Addr::new(10, 0, 0, 7)),
            server: Some(Ipv4Addr::new(10, 0, 0, 1)),
            client_id: &[],
            hostname: "host",
        }
    }

    /// A server's message with these options.
    fn reply(options: &[u8]) -> Vec<u8> {
        let mut out = [0; QUERY_LEN];
        query().emit(&mut out);
        let mut m = out[..FIXED + 4].to_vec();
        m[0] = 2;
        m[16..20].copy_from_slice(&[10, 0, 0, 7]);
        m.extend_from_slice(options);
        m
    }

    #[test]
    fn a_query_has_its_options_and_is_long_enough() {
        let mut out = [0xee; QUERY_LEN];
        let len = query().emit(&mut out);
        assert_eq!(len, SHORTEST);
        let options = &out[FIXED + 4..len];
        let wanted = [
            &[53u8, 1, 3, 61, 7, 1][..],
            &MAC.0,
            &[
                50, 4, 10, 0, 0, 7, 54, 4, 10, 0, 0, 1, 55, 7, 1, 3, 6, 26, 51, 58, 59,
            ],
            &[57, 2, 5, 192, 12, 4],
            b"host",
            &[255],
        ];
        assert!(options.starts_with(&wanted.concat()), "{options:?}");
        // It is no server's.
        assert_eq!(DhcpReply::parse(&out[..len]), Err(WireError::BadOption));
        // With all that can be said it has room.
        let long = DhcpQuery {
            client_id: &[7; 300],
            hostname: &"h".repeat(300),
            ..query()
        };
        assert!(long.emit(&mut out) < QUERY_LEN);
    }

    #[test]
    fn what_servers_say() {
        let all = [
            &[53u8, 1, 5, 54, 4, 10, 0, 0, 1, 1, 4, 255, 255, 240, 0][..],
            &[3, 8, 10, 0, 0, 254, 10, 0, 0, 253, 0, 0, 6, 4, 9, 9, 9, 9],
            &[
                51, 4, 0, 0, 14, 16, 58, 4, 0, 0, 7, 8, 59, 4, 0, 0, 12, 78, 26, 2, 5, 120,
            ],
            &[6, 4, 8, 8, 8, 8, 255, 99],
        ];
        let found = DhcpReply::parse(&reply(&all.concat())).unwrap();
        assert_eq!(
            (found.kind, found.xid, found.mac),
            (DhcpKind::Ack, 0x1234_5678, MAC)
        );
        assert_eq!(found.addr, Ipv4Addr::new(10, 0, 0, 7));
        assert_eq!((found.prefix, found.mtu), (Some(20), Some(1400)));
        assert_eq!(
            (found.lease, found.renewal, found.rebinding),
            (Some(3600), Some(1800), Some(3150))
        );
        assert_eq!(found.routers.iter().count(), 2);
        assert!(found.name_servers.iter().map(|a| a.octets()[0]).eq([9, 8]));
    }

    #[test]
    fn options_where_names_stand() {
        let mut m = reply(&[52, 1, 3, 255]);
        m[FILE][..3].copy_from_slice(&[53, 1, 2]);
        m[SNAME][..6].copy_from_slice(&[54, 4, 10, 0, 0, 1]);
        let found = DhcpReply::parse(&m).unwrap();
        assert_eq!(
            (found.kind, found.server),
            (DhcpKind::Offer, Some(Ipv4Addr::new(10, 0, 0, 1)))
        );
    }

    #[test]
    fn odd_ones_are_refused_or_read_in_part() {
        let good = reply(&[53, 1, 5, 255]);
        for len in 0..FIXED + 7 {
            assert!(DhcpReply::parse(&good[..len]).is_err(), "{len}");
        }
        for (at, to) in [(0, 1), (1, 6), (2, 8), (FIXED, 0)] {
            let mut m = good.clone();
            m[at] = to;
            assert!(DhcpReply::parse(&m).is_err(), "{at}");
        }
        for cut in [&[53u8, 1][..], &[53], &[53, 1, 5, 54, 9, 1]] {
            assert_eq!(DhcpReply::parse(&reply(cut)), Err(WireError::Truncated));
        }
        for bad in [&[53u8, 1, 9][..], &[53, 2, 5, 5], &[255], &[]] {
            assert_eq!(DhcpReply::parse(&reply(bad)), Err(WireError::BadOption));
        }
        // Masks with holes, addresses in part.
        let m = reply(&[
            53, 1, 5, 1, 4, 255, 0, 255, 0, 54, 3, 1, 2, 3, 3, 6, 1, 2, 3, 4, 5, 6,
        ]);
        let found = DhcpReply::parse(&m).unwrap();
        assert_eq!(
            (found.prefix, found.server, found.routers.iter().count()),
            (None, None, 1)
        );
        for (mask, want) in [([0; 4], 0), ([255; 4], 32), ([255, 255, 255, 254], 31)] {
            assert_eq!(prefix(&mask), Some(want));
        }
    }
}
