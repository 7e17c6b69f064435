//! `pef`: its names, and what is to be known of it without running it.

use crate::spec::{
    Colour, Family, Look, MAX_GROUPS, Marker, Occupancy, OrgSpec, Params, Parts, SpecError, Variant,
};
use core::fmt;

/// `pef`.
pub(super) static FAMILY: Family = Family {
    name: "pef",
    title: "PEF",
    takes: "it takes `random`, `vertical`, `horizontal` or \
         `ip=A:tcp=B:sockfs=C` (cores), `light-queue=on` or `off`, `light-tcp=on` or `off`, \
         `events=coarse` or `fine`, `lists=on` or `off` (coarse events only), and `fanout=on` or \
         `off`",
    variants: &[
        Variant {
            name: "pef:random",
            usual: "pef:random",
            summary: "packet event framework: a drawn squeue for all layers of a connection",
        },
        Variant {
            name: "pef:vertical",
            usual: "pef:vertical",
            summary: "packet event framework: all layers on the squeue of the opener's core",
        },
        Variant {
            name: "pef:vertical:lists=off",
            usual: "pef:vertical:lists=off",
            summary: "the same without running lists: TCP's event does all, as long as nobody alters them",
        },
        Variant {
            name: "pef:horizontal",
            usual: "pef:horizontal",
            summary: "packet event framework: each layer of a connection on another squeue",
        },
        Variant {
            name: "pef:ip=A:tcp=B:sockfs=C",
            usual: "pef:ip=0:tcp=1:sockfs=0",
            summary: "packet event framework: layers on the squeues of designated cores",
        },
    ],
    tested: &[
        ("", "pef:vertical:events=fine"),
        ("", "pef:vertical:fanout=on"),
    ],
    recommend: None,
    parse: Pef::parse,
    look: Look {
        colour: Colour {
            light: "#b8578f",
            dark: "#e08fbd",
            terminal: Some(175),
        },
        marker: Marker::Diamond,
    },
    counts: &super::counted::NAMES,
    hand_over: &[],
};

/// The Packet Event Framework.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pef {
    /// Which perimeters a connection's layers get.
    pub arrangement: Arrangement,
    /// `pef_q_t` between TCP and the socket instead of a STREAM-head read queue.
    pub light_queue: bool,
    /// TCP's light path, with ordered fallback to the full one.
    pub light_tcp: bool,
    /// TCP's receive layer in three events: prediction, full processing, output.
    pub fine: bool,
    /// Packets run through their connection's lists. Off: where all layers of a connection are
    /// under one squeue and nobody has altered its lists, TCP does all within its turn; events are
    /// coarse then.
    pub lists: bool,
    /// Soft rings spread inbound packets over worker threads, by flow.
    pub fanout: bool,
}

/// Which perimeters the layers of a connection get.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// One randomly drawn squeue for all layers: the paper's default.
    #[default]
    Random,
    /// All layers on the squeue that FireEngine would choose.
    Vertical,
    /// Each layer on another squeue: one connection spreads over cores.
    Horizontal,
    /// On the squeues of designated cores.
    At {
        /// IP's.
        ip: u16,
        /// TCP's.
        tcp: u16,
        /// The socket layer's.
        sockfs: u16,
    },
}

impl Pef {
    fn parse(mut parts: Parts<'_>) -> Result<OrgSpec, SpecError> {
        let named = [
            ("random", Arrangement::Random),
            ("vertical", Arrangement::Vertical),
            ("horizontal", Arrangement::Horizontal),
        ];
        let named = named.into_iter().find(|(word, _)| parts.flag(word));
        let mut core = |key| parts.count(key, 0, MAX_GROUPS - 1);
        let at = (core("ip")?, core("tcp")?, core("sockfs")?);
        let arrangement = match (named, at) {
            (None, (Some(ip), Some(tcp), Some(sockfs))) => Arrangement::At { ip, tcp, sockfs },
            (Some((_, a)), (None, None, None)) => a,
            (None, (None, None, None)) => Arrangement::Random,
            _ => return Err(parts.refuse("ip, tcp, sockfs")),
        };
        let light_queue = parts.switch("light-queue")?.unwrap_or(true);
        let light_tcp = parts.switch("light-tcp")?.unwrap_or(true);
        let fine = parts.choice("events", &[("fine", true), ("coarse", false)])?;
        let lists = parts.switch("lists")?.unwrap_or(true);
        if !lists && fine == Some(true) {
            return Err(parts.refuse("events=fine:lists=off"));
        }
        let fanout = parts.switch("fanout")?.unwrap_or(false);
        parts.end(())?;
        let pef = Pef {
            arrangement,
            light_queue,
            light_tcp,
            fine: fine.unwrap_or(false),
            lists,
            fanout,
        };
        Ok(OrgSpec::new(&FAMILY, pef))
    }
}

impl Default for Pef {
    fn default() -> Pef {
        Pef {
            arrangement: Arrangement::Random,
            light_queue: true,
            light_tcp: true,
            fine: false,
            lists: true,
            fanout: false,
        }
    }
}

impl fmt::Display for Pef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.arrangement {
            Arrangement::Random => f.write_str("pef:random")?,
            Arrangement::Vertical => f.write_str("pef:vertical")?,
            Arrangement::Horizontal => f.write_str("pef:horizontal")?,
            Arrangement::At { ip, tcp, sockfs } => {
                write!(f, "pef:ip={ip}:tcp={tcp}:sockfs={sockfs}")?;
            }
        }
        if !self.light_queue {
            f.write_str(":light-queue=off")?;
        }
        f.write_str(if self.light_tcp { "" } else { ":light-tcp=off" })?;
        f.write_str(if self.fine { ":events=fine" } else { "" })?;
        f.write_str(if self.lists { "" } else { ":lists=off" })?;
        f.write_str(if self.fanout { ":fanout=on" } else { "" })
    }
}

impl Params for Pef {
    fn occupancy(&self) -> Occupancy {
        Occupancy::Stack
    }
}
