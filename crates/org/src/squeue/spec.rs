//! `squeue`: its names, and what is to be known of it without running it.

use super::queue::SqueueEntry;
use crate::spec::{
    Colour, Family, Look, MAX_GROUPS, Marker, Occupancy, OrgSpec, Params, Parts, SpecError, Variant,
};
use core::fmt;

/// `squeue`.
pub(super) static FAMILY: Family = Family {
    name: "squeue",
    title: "FireEngine",
    takes: "it takes a number of squeues from 1 to 1024, \
         `entry=process`, `nodrain` or `fill`, `fanout=on` or `off`, `quanta=I/W/K` (the longest \
         drain of inbound thread, writer and worker, ms), `delay=D` (of a worker's waking, \
         ms, up to 1000), `head=buffer` or `streams`, and `prediction=on` or `off`",
    variants: &[
        Variant {
            name: "squeue:N",
            usual: "squeue",
            summary: "FireEngine: vertical perimeters, serialized by queues with workers",
        },
        Variant {
            name: "squeue:N:head=streams:prediction=off",
            usual: "squeue:head=streams:prediction=off",
            summary: "FireEngine as PEF met it: STREAM-head read queues, no header prediction",
        },
    ],
    tested: &[],
    recommend: Some("squeue:N"),
    parse: Squeue::parse,
    look: Look {
        colour: Colour {
            light: "#009e73",
            dark: "#1fc495",
            terminal: Some(36),
        },
        marker: Marker::Square,
    },
    counts: &super::counted::NAMES,
    hand_over: &[super::queue::FILE, super::rings::FILE],
};

/// FireEngine: the vertical perimeter.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Squeue {
    /// How many there are; `None`: one for each core.
    pub squeues: Option<u16>,
    /// How packets and writes enter.
    pub entry: SqueueEntry,
    /// Soft rings spread inbound packets over worker threads, and accepted connections over
    /// squeues.
    pub fanout: bool,
    /// The longest that an inbound thread, a writer and a worker drain without a break, ms.
    pub quanta: [u16; 3],
    /// How long a worker lets a message wait before it wakes, ms.
    pub delay: u16,
    /// Between TCP and the socket is a STREAM-head read queue, not a buffer.
    pub streams_head: bool,
    /// TCP has header prediction.
    pub prediction: bool,
}

/// Solaris 10's: an inbound thread, a writer and a worker, ms.
const QUANTA: [u16; 3] = [20, 10, 10];

impl Default for Squeue {
    fn default() -> Squeue {
        Squeue {
            squeues: None,
            entry: SqueueEntry::Process,
            fanout: false,
            quanta: QUANTA,
            delay: 0,
            streams_head: false,
            prediction: true,
        }
    }
}

impl Squeue {
    fn parse(mut parts: Parts<'_>) -> Result<OrgSpec, SpecError> {
        let squeues = parts.number(MAX_GROUPS)?;
        let ways = [
            ("process", SqueueEntry::Process),
            ("nodrain", SqueueEntry::NoDrain),
            ("fill", SqueueEntry::Fill),
        ];
        let entry = parts.choice("entry", &ways)?.unwrap_or_default();
        let fanout = parts.switch("fanout")?.unwrap_or(false);
        let quanta = match parts.value("quanta") {
            None => QUANTA,
            Some(text) => {
                let all: Result<Vec<u16>, _> = text.split('/').map(str::parse).collect();
                let all = all.ok().and_then(|l| l.try_into().ok());
                all.ok_or_else(|| parts.refuse(text))?
            }
        };
        let delay = parts.count("delay", 0, 1000)?.unwrap_or(0);
        let heads = [("streams", true), ("buffer", false)];
        let streams_head = parts.choice("head", &heads)?.unwrap_or(false);
        let prediction = parts.switch("prediction")?.unwrap_or(true);
        parts.end(())?;
        let squeue = Squeue {
            squeues,
            entry,
            fanout,
            quanta,
            delay,
            streams_head,
            prediction,
        };
        Ok(OrgSpec::new(&FAMILY, squeue))
    }
}

impl fmt::Display for Squeue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("squeue")?;
        if let Some(n) = self.squeues {
            write!(f, ":{n}")?;
        }
        f.write_str(match self.entry {
            SqueueEntry::Process => "",
            SqueueEntry::NoDrain => ":entry=nodrain",
            SqueueEntry::Fill => ":entry=fill",
        })?;
        f.write_str(if self.fanout { ":fanout=on" } else { "" })?;
        if self.quanta != QUANTA {
            let [inbound, writer, worker] = self.quanta;
            write!(f, ":quanta={inbound}/{writer}/{worker}")?;
        }
        if self.delay > 0 {
            write!(f, ":delay={}", self.delay)?;
        }
        f.write_str(if self.streams_head {
            ":head=streams"
        } else {
            ""
        })?;
        f.write_str(if self.prediction {
            ""
        } else {
            ":prediction=off"
        })
    }
}

impl Params for Squeue {
    fn occupancy(&self) -> Occupancy {
        Occupancy::Stack
    }
}
