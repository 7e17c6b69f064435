//! The attacks by name.

use crate::flood::{self, Make, Place, Running};
use crate::{hoard, net, raw};
use std::io;
use std::time::Duration;

/// How an attack is made.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Frames at a rate, without state.
    Flood(Make),
    /// Connections with a hole in front of their data.
    OutOfOrder,
    /// Connections whose window is shut.
    ZeroWindow,
    /// Connections that are read slowly.
    SlowReaders,
    /// Connections that the server closes first.
    Closes,
}

/// An attack.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Prefix length of the link.
    pub prefix: u8,
    /// Frames, or closes, a second.
    pub rate: u64,
    /// How it is made.
    pub kind: Kind,
    /// Whether clients that are 20 and 200 ms away try to connect meanwhile.
    pub far: bool,
    /// Whether the legitimate clients speak IPv6.
    pub v6: bool,
    /// Counters of the stack, of which one has to tell of it.
    pub counted: &'static [&'static str],
}

const fn flood(
    name: &'static str,
    about: &'static str,
    prefix: u8,
    rate: u64,
    make: Make,
) -> Attack {
    Attack {
        name,
        about,
        prefix,
        rate,
        kind: Kind::Flood(make),
        far: false,
        v6: false,
        counted: &[],
    }
}

const fn syn(name: &'static str, about: &'static str, prefix: u8, rate: u64, make: Make) -> Attack {
    Attack {
        far: true,
        ..flood(name, about, prefix, rate, make)
    }
}

const fn other(name: &'static str, about: &'static str, rate: u64, kind: Kind) -> Attack {
    Attack {
        name,
        about,
        prefix: 24,
        rate,
        kind,
        far: false,
        v6: false,
        counted: &[],
    }
}

/// A flood of the network layer, which the stack has to count.
const fn net(
    name: &'static str,
    about: &'static str,
    rate: u64,
    make: Make,
    counted: &'static [&'static str],
) -> Attack {
    Attack {
        counted,
        ..flood(name, about, 24, rate, make)
    }
}

/// The same over IPv6.
const fn net6(
    name: &'static str,
    about: &'static str,
    rate: u64,
    make: Make,
    counted: &'static [&'static str],
) -> Attack {
    Attack {
        v6: true,
        ..net(name, about, rate, make, counted)
    }
}

/// All of them.
pub const ALL: &[Attack] = &[
    syn(
        "syn-out24",
        "SYNs from beyond the gateway, link of /24",
        24,
        40_000,
        flood::syn_outside,
    ),
    syn(
        "syn-out16",
        "SYNs from beyond the gateway, link of /16",
        16,
        40_000,
        flood::syn_outside,
    ),
    syn(
        "syn-link24",
        "SYNs in the name of neighbours, link of /24",
        24,
        40_000,
        flood::syn_on_link,
    ),
    syn(
        "syn-link16",
        "SYNs in the name of neighbours, link of /16",
        16,
        40_000,
        flood::syn_on_link,
    ),
    syn(
        "syn-fast",
        "100,000 SYNs a second from beyond the gateway",
        24,
        100_000,
        flood::syn_outside,
    ),
    flood(
        "ack",
        "ACKs of no connection, from beyond the gateway",
        24,
        40_000,
        flood::ack_outside,
    ),
    flood(
        "ack-link16",
        "ACKs of no connection from neighbours, link of /16",
        16,
        40_000,
        flood::ack_on_link,
    ),
    flood(
        "rst",
        "resets, half of them in the client's name",
        24,
        40_000,
        flood::rst,
    ),
    flood(
        "malformed",
        "frames that are wrong in some header",
        24,
        40_000,
        flood::malformed,
    ),
    flood(
        "fragments",
        "pieces of datagrams that are never whole",
        24,
        40_000,
        flood::fragments,
    ),
    flood(
        "echo",
        "echo requests of up to 1400 bytes",
        24,
        40_000,
        flood::echo,
    ),
    flood(
        "arp-senders",
        "ARP requests of thousands of senders, link of /16",
        16,
        20_000,
        flood::arp_senders,
    ),
    flood(
        "arp-takeover",
        "ARP that claims the gateway's and the clients' addresses",
        24,
        100,
        flood::arp_takeover,
    ),
    net(
        "overlaps",
        "fragments that overlap others of their datagram",
        40_000,
        net::overlaps,
        &["drop_fragment_overlap"],
    ),
    net(
        "endless",
        "fragments of datagrams that have no end, of 16 sources",
        40_000,
        net::endless,
        &["drop_fragment_no_room", "reassembly_failed"],
    ),
    net(
        "too-big",
        "words of routers that something was too big, half of them about the client's connections",
        40_000,
        net::too_big,
        &["drop_icmp_too_big"],
    ),
    net6(
        "overlaps6",
        "as overlaps, over IPv6",
        40_000,
        net::overlaps6,
        &["drop_fragment_overlap"],
    ),
    net6(
        "endless6",
        "as endless, over IPv6",
        40_000,
        net::endless6,
        &["drop_fragment_no_room", "reassembly_failed"],
    ),
    net6(
        "extensions6",
        "chains of 1 to 12 extension headers, options that nobody knows, segments left",
        40_000,
        net::extensions,
        &[
            "drop_extension_header_chain",
            "drop_bad_extension_header",
            "drop_unknown_ipv6_option",
        ],
    ),
    net6(
        "echo6",
        "echo requests of up to 1400 bytes over IPv6",
        40_000,
        net::echo6,
        &["rx_echo_requests"],
    ),
    net6(
        "ndp-senders6",
        "solicitations of thousands of senders",
        20_000,
        net::solicitations,
        &["drop_ndp_limit"],
    ),
    net6(
        "ndp-takeover6",
        "neighbour discovery that claims the gateway's and the clients' address",
        100,
        net::takeover6,
        &["arp_conflicts", "arp_doubts"],
    ),
    net6(
        "too-big6",
        "as too-big, over IPv6",
        40_000,
        net::too_big6,
        &["drop_icmp_too_big"],
    ),
    other(
        "out-of-order",
        "500 connections with a hole in front of 262 kB",
        40_000,
        Kind::OutOfOrder,
    ),
    other(
        "zero-window",
        "2,000 connections that shut their window",
        0,
        Kind::ZeroWindow,
    ),
    other(
        "slow-readers",
        "3,000 connections that read 2.5 kB a second",
        0,
        Kind::SlowReaders,
    ),
    other(
        "closes",
        "2,000 connections a second that the server closes, for a minute",
        2_000,
        Kind::Closes,
    ),
];

/// How much of the attacks that need to fill something.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Share of the connections of a hoard.
    pub share: f64,
    /// Closes a second, instead of 2,000.
    pub closes: u64,
    /// For how long.
    pub filling: Duration,
}

impl Size {
    /// As the attacks are described.
    pub const WHOLE: Size = Size {
        share: 1.0,
        closes: 2_000,
        filling: Duration::from_secs(60),
    };
    /// As many closes in less time.
    pub const QUICK: Size = Size {
        share: 1.0,
        closes: 12_000,
        filling: Duration::from_secs(7),
    };
    /// For tests that take a second or two: enough for a stack without bounds to exceed those on
    /// memory.
    pub const SMALL: Size = Size {
        share: 0.6,
        closes: 4_000,
        filling: Duration::from_millis(1500),
    };
}

impl Attack {
    /// The attack of that name.
    pub fn find(name: &str) -> Option<&'static Attack> {
        ALL.iter().find(|a| a.name == name)
    }

    /// Begins. An attack that has something to fill does so before this returns.
    ///
    /// # Errors
    /// No packet socket can be had.
    pub fn start(&self, place: &Place, size: &Size) -> io::Result<Running> {
        let share = |n: u32| (f64::from(n) * size.share) as u32;
        match self.kind {
            Kind::Flood(make) => Running::flood(*place, self.rate, make),
            Kind::OutOfOrder => raw::hoard_out_of_order(place, share(500), self.rate),
            Kind::ZeroWindow => Ok(hoard::zero_window(share(2_000) as usize)),
            Kind::SlowReaders => Ok(hoard::slow_readers(share(3_000) as usize)),
            Kind::Closes => Ok(hoard::closes(size.closes, size.filling)),
        }
    }

    /// Whether it is over as soon as it ends, so that rounds of it can follow one another.
    pub fn repeats(&self) -> bool {
        matches!(self.kind, Kind::Flood(_))
    }
}
