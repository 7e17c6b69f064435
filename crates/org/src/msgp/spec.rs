//! `msgp` and `msgp-modern`: its names, and what is to be known of it without running it.

use crate::spec::{
    Colour, Family, Look, MAX_GROUPS, Marker, Occupancy, OrgSpec, Params, Parts, SpecError, Variant,
};
use core::fmt;
use perimeter_sync::LockClass;

const TAKES: &str = "it takes `netisr` or `workers=K` (K from 1 to 1024), `locks=fine` or `locks=coarse`, and \
     `wake=after` or `wake=inside`";

/// `msgp`.
pub(super) static FAMILY: Family = Family {
    name: "msgp",
    title: "MsgP",
    takes: TAKES,
    variants: &[
        Variant {
            name: "msgp",
            usual: "msgp",
            summary: "message parallelism: any thread runs any packet, locks per structure",
        },
        Variant {
            name: "msgp:netisr",
            usual: "msgp:netisr",
            summary: "message parallelism; one worker behind one queue runs all that arrives",
        },
        Variant {
            name: "msgp:workers=K",
            usual: "msgp:workers=16",
            summary: "message parallelism; many workers, kept in order by tickets",
        },
        Variant {
            name: "msgp:locks=coarse",
            usual: "msgp:locks=coarse",
            summary: "message parallelism with one lock for all of a connection",
        },
        Variant {
            name: "msgp:wake=inside",
            usual: "msgp:wake=inside",
            summary: "message parallelism that wakes sleepers under its locks, as published",
        },
    ],
    tested: &[],
    recommend: Some("msgp"),
    parse: |parts| Msgp::parse(parts, false),
    look: Look {
        colour: Colour {
            light: "#d98b00",
            dark: "#e69f00",
            terminal: Some(214),
        },
        marker: Marker::Square,
    },
    counts: &[],
    hand_over: &[super::inbound::FILE],
};

/// `msgp-modern`.
pub(super) static MODERN: Family = Family {
    name: "msgp-modern",
    title: "MsgP, modern",
    takes: TAKES,
    variants: &[Variant {
        name: "msgp-modern",
        usual: "msgp-modern",
        summary: "message parallelism whose lookups do without the global lock",
    }],
    tested: &[],
    recommend: None,
    parse: |parts| Msgp::parse(parts, true),
    look: Look {
        colour: Colour {
            light: "#d55e00",
            dark: "#ff7f3a",
            terminal: Some(202),
        },
        marker: Marker::Diamond,
    },
    counts: &[],
    hand_over: &[],
};

/// Message parallelism.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Msgp {
    /// Who does inbound protocol work.
    pub inbound: MsgpInbound,
    /// One lock for all of a connection: TCP state and both buffers (Nahum's question).
    pub coarse: bool,
    /// Lookups without the global lock: the bottleneck's cure.
    pub modern: bool,
    /// Sleepers are woken while the connection is held, under a lock of the scheduler's.
    pub wakes_held: bool,
}

/// Who does inbound protocol work under message parallelism.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum MsgpInbound {
    /// Whoever took the packet from the device: what the paper measures.
    #[default]
    Direct,
    /// One worker behind one bounded queue: FreeBSD's default of the day.
    Netisr,
    /// That many workers; order is kept by tickets (Nahum et al.).
    Workers(u16),
}

impl Msgp {
    fn parse(mut parts: Parts<'_>, modern: bool) -> Result<OrgSpec, SpecError> {
        let netisr = parts.flag("netisr");
        let inbound = match parts.count("workers", 1, MAX_GROUPS)? {
            Some(_) if netisr => return Err(parts.refuse("netisr:workers")),
            Some(k) => MsgpInbound::Workers(k),
            None if netisr => MsgpInbound::Netisr,
            None => MsgpInbound::Direct,
        };
        let coarse = parts.choice("locks", &[("fine", false), ("coarse", true)])?;
        let wakes_held = parts.wakes_held()?;
        parts.end(())?;
        let msgp = Msgp {
            inbound,
            coarse: coarse.unwrap_or(false),
            modern,
            wakes_held,
        };
        let family = if modern { &MODERN } else { &FAMILY };
        Ok(OrgSpec::new(family, msgp))
    }
}

impl fmt::Display for Msgp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.modern { "msgp-modern" } else { "msgp" })?;
        match self.inbound {
            MsgpInbound::Direct => {}
            MsgpInbound::Netisr => f.write_str(":netisr")?,
            MsgpInbound::Workers(k) => write!(f, ":workers={k}")?,
        }
        f.write_str(if self.coarse { ":locks=coarse" } else { "" })?;
        f.write_str(if self.wakes_held { ":wake=inside" } else { "" })
    }
}

impl Params for Msgp {
    fn occupancy(&self) -> Occupancy {
        Occupancy::Lock(match self.modern {
            true => LockClass::Connection,
            false => LockClass::ConnHashtable,
        })
    }
}
