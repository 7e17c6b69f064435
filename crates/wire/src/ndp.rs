//! Neighbour discovery (RFC 4861): messages of ICMPv6 and their options.

use core::net::Ipv6Addr;

use crate::error::WireError;
use crate::eth::MacAddr;
use crate::icmp6::{Icmpv6, seal};
use crate::ipv6::without_zone;

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

const OPT_SOURCE: u8 = 1;
const OPT_TARGET: u8 = 2;
const OPT_PREFIX: u8 = 3;
const OPT_MTU: u8 = 5;
/// RFC 3971, section 5.3.2, as duplicate address detection uses it (RFC 7527).
const OPT_NONCE: u8 = 14;

/// The hop limit of every message: none that came through a router has it (RFC 4861, section 3.1).
pub const HOP_LIMIT: u8 = 255;

/// Prefixes that are read of one advertisement; those behind them are left out.
pub const MAX_PREFIXES: usize = 8;

/// A prefix of the link (RFC 4861, section 4.6.2).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PrefixInfo {
    /// The prefix.
    pub prefix: Ipv6Addr,
    /// Its length, bits, 0 to 128.
    pub len: u8,
    /// Its addresses are on the link.
    pub on_link: bool,
    /// Hosts may make themselves addresses of it (RFC 4862).
    pub autonomous: bool,
    /// How long that is so, s; `u32::MAX`: for ever.
    pub valid: u32,
    /// How long such addresses are preferred, s; likewise.
    pub preferred: u32,
}

/// What a router says of itself and the link (RFC 4861, section 4.2).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RouterAdvert {
    /// Hop limit for what is sent; 0: not said.
    pub hop_limit: u8,
    /// How long it is a default router, s; 0: it is none.
    pub lifetime: u16,
    /// How long a neighbour counts as reachable, ms; 0: not said.
    pub reachable: u32,
    /// Time between solicitations, ms; 0: not said.
    pub retransmit: u32,
    /// Its station.
    pub source: Option<MacAddr>,
    /// The MTU of the link, octets.
    pub mtu: Option<u32>,
    prefixes: [Option<PrefixInfo>; MAX_PREFIXES],
}

impl RouterAdvert {
    /// The prefixes.
    pub fn prefixes(&self) -> impl Iterator<Item = &PrefixInfo> {
        self.prefixes.iter().flatten()
    }
}

/// A message of neighbour discovery.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack, for one message; a box would have strangers allocate"
)]
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Ndp {
    /// Asks routers to advertise themselves.
    RouterSolicitation {
        /// The station that asks.
        source: Option<MacAddr>,
    },
    /// A router advertises itself.
    RouterAdvertisement(RouterAdvert),
    /// Asks for the station of `target`.
    NeighborSolicitation {
        /// Whose station is asked for.
        target: Ipv6Addr,
        /// The station that asks.
        source: Option<MacAddr>,
        /// Tells a solicitation from its echo (RFC 7527).
        nonce: Option<[u8; 6]>,
    },
    /// Says which station `target` is.
    NeighborAdvertisement {
        /// Whose station it is.
        target: Ipv6Addr,
        /// It is a router.
        router: bool,
        /// It was asked for.
        solicited: bool,
        /// What was known before is wrong.
        overrides: bool,
        /// The station.
        station: Option<MacAddr>,
    },
    /// There is a better first hop. Which station that is, it may say as well, which is not read: who
    /// follows asks the hop itself.
    Redirect {
        /// The better hop: a link-local address, or the destination, which is a neighbour then.
        target: Ipv6Addr,
        /// For datagrams to here.
        destination: Ipv6Addr,
    },
}

/// What options of interest say.
#[derive(Default)]
struct Options {
    source: Option<MacAddr>,
    target: Option<MacAddr>,
    mtu: Option<u32>,
    nonce: Option<[u8; 6]>,
    prefixes: [Option<PrefixInfo>; MAX_PREFIXES],
}

impl Options {
    /// Reads the options; `None`: the length of one is impossible, and the message is void (RFC
    /// 4861, section 4.6). Those that are not known are skipped.
    fn read(mut bytes: &[u8]) -> Option<Options> {
        let mut all = Options::default();
        let mut prefixes = 0;
        while let [kind, len, ..] = *bytes {
            let len = 8 * usize::from(len);
            let option = bytes.get(..len).filter(|_| len > 0)?;
            bytes = &bytes[len..];
            let data = &option[2..];
            let six = || data.first_chunk::<6>().copied();
            match kind {
                OPT_SOURCE if len == 8 => all.source = six().map(MacAddr),
                OPT_TARGET if len == 8 => all.target = six().map(MacAddr),
                OPT_NONCE if len == 8 => all.nonce = six(),
                OPT_MTU if len == 8 => {
                    all.mtu = data.last_chunk::<4>().map(|m| u32::from_be_bytes(*m));
                }
                OPT_PREFIX if len == 32 && data[0] <= 128 => {
                    if let Some(slot) = all.prefixes.get_mut(prefixes) {
                        *slot = prefix(data);
                        prefixes += 1;
                    }
                }
                _ => {}
            }
        }
        bytes.is_empty().then_some(all)
    }
}

/// The prefix that the data of an option of 32 octets describe.
fn prefix(data: &[u8]) -> Option<PrefixInfo> {
    let &[len, flags, a, b, c, d, e, f, g, h] = data.first_chunk::<10>()?;
    let prefix = Ipv6Addr::from_octets(*data.last_chunk::<16>()?);
    Some(PrefixInfo {
        prefix,
        len,
        on_link: flags & 0x80 != 0,
        autonomous: flags & 0x40 != 0,
        valid: u32::from_be_bytes([a, b, c, d]),
        preferred: u32::from_be_bytes([e, f, g, h]),
    })
}

impl Ndp {
    /// Whether messages of that type are those of neighbour discovery.
    pub fn is(kind: u8) -> bool {
        (ROUTER_SOLICITATION..=REDIRECT).contains(&kind)
    }

    /// Reads a message from `src` to `dst`: its type, its code and the second word of its header,
    /// and what follows. All that RFC 4861, section 6.1, 7.1 and 8.1, says of validity is looked
    /// at; the checksum has been.
    ///
    /// # Errors
    /// [`WireError::BadNdp`].
    pub fn parse(
        (src, dst, hop_limit): (Ipv6Addr, Ipv6Addr, u8),
        (kind, code, word): (u8, u8, u32),
        body: &[u8],
    ) -> Result<Ndp, WireError> {
        let bad = WireError::BadNdp;
        if hop_limit != HOP_LIMIT || code != 0 {
            return Err(bad);
        }
        let nobody = src.is_unspecified();
        let link = crate::ipv6::is_link_local(src);
        // Two addresses at most, then options.
        let addr = |at: usize| {
            let octets = body.get(16 * at..)?.first_chunk::<16>()?;
            Some(Ipv6Addr::from_octets(*octets))
        };
        let unicast = |at| addr(at).filter(|a: &Ipv6Addr| !a.is_multicast()).ok_or(bad);
        let options = |from: usize| {
            let rest = body.get(from..).ok_or(bad)?;
            Options::read(rest).ok_or(bad)
        };
        match kind {
            ROUTER_SOLICITATION => {
                let source = options(0)?.source;
                match nobody && source.is_some() {
                    true => Err(bad),
                    false => Ok(Ndp::RouterSolicitation { source }),
                }
            }
            ROUTER_ADVERTISEMENT if link => {
                let times = body.first_chunk::<8>().ok_or(bad)?;
                let &[a, b, c, d, e, f, g, h] = times;
                let o = options(8)?;
                Ok(Ndp::RouterAdvertisement(RouterAdvert {
                    hop_limit: (word >> 24) as u8,
                    lifetime: word as u16,
                    reachable: u32::from_be_bytes([a, b, c, d]),
                    retransmit: u32::from_be_bytes([e, f, g, h]),
                    source: o.source,
                    mtu: o.mtu,
                    prefixes: o.prefixes,
                }))
            }
            NEIGHBOR_SOLICITATION => {
                let target = unicast(0)?;
                let o = options(16)?;
                let to_group = dst == crate::ipv6::solicited_node(target);
                if nobody && (o.source.is_some() || !to_group) {
                    return Err(bad);
                }
                Ok(Ndp::NeighborSolicitation {
                    target,
                    source: o.source,
                    nonce: o.nonce,
                })
            }
            NEIGHBOR_ADVERTISEMENT => {
                let target = unicast(0)?;
                let solicited = word >> 30 & 1 != 0;
                let station = options(16)?.target;
                if dst.is_multicast() && solicited {
                    return Err(bad);
                }
                Ok(Ndp::NeighborAdvertisement {
                    target,
                    router: word >> 31 != 0,
                    solicited,
                    overrides: word >> 29 & 1 != 0,
                    station,
                })
            }
            REDIRECT if link => {
                let target = unicast(0)?;
                let destination = unicast(1)?;
                options(32)?;
                // A router by its link-local address, or the destination itself as a neighbour.
                if !crate::ipv6::is_link_local(target) && target != destination {
                    return Err(bad);
                }
                Ok(Ndp::Redirect {
                    target,
                    destination,
                })
            }
            _ => Err(bad),
        }
    }

    /// The longest message that is written, octets.
    pub const MAX_EMITTED: usize = 40;

    /// Writes a solicitation or a neighbour advertisement, with its checksum, from `src` to
    /// `dst`, to the start of `out` and returns its length. What only routers send is not written.
    ///
    /// # Panics
    /// If `out` is shorter than [`Ndp::MAX_EMITTED`].
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, out: &mut [u8]) -> Option<usize> {
        let (kind, word, target, option) = match *self {
            Ndp::RouterSolicitation { source } => (
                ROUTER_SOLICITATION,
                0,
                None,
                source.map(|m| (OPT_SOURCE, m.0)),
            ),
            Ndp::NeighborSolicitation {
                target,
                source,
                nonce,
            } => {
                let source = source.map(|m| (OPT_SOURCE, m.0));
                let nonce = nonce.map(|n| (OPT_NONCE, n));
                (NEIGHBOR_SOLICITATION, 0, Some(target), source.or(nonce))
            }
            Ndp::NeighborAdvertisement {
                target,
                router,
                solicited,
                overrides,
                station,
            } => {
                let flags = [router, solicited, overrides];
                let word = flags.iter().fold(0, |w, &f| w << 1 | u32::from(f)) << 29;
                let station = station.map(|m| (OPT_TARGET, m.0));
                (NEIGHBOR_ADVERTISEMENT, word, Some(target), station)
            }
            Ndp::RouterAdvertisement(_) | Ndp::Redirect { .. } => return None,
        };
        out[..4].copy_from_slice(&[kind, 0, 0, 0]);
        out[4..8].copy_from_slice(&word.to_be_bytes());
        let mut n = Icmpv6::LEN;
        if let Some(target) = target {
            out[n..n + 16].copy_from_slice(&without_zone(target).octets());
            n += 16;
        }
        if let Some((kind, octets)) = option {
            out[n..n + 2].copy_from_slice(&[kind, 1]);
            out[n + 2..n + 8].copy_from_slice(&octets);
            n += 8;
        }
        seal(src, dst, &mut out[..n]);
        Some(n)
    }
}
