//! Names of organizations: `name[:N][:key=value]…`.

mod families;
mod parts;

pub use families::{
    Arrangement, ConnpT, ConnpThreads, MAX_GROUPS, MAX_THREADS, Msgp, MsgpInbound, Pef, Squeue,
    SqueueEntry, Waiting,
};

use core::fmt;
use core::str::FromStr;
use parts::Parts;

/// An organization and its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OrgSpec {
    /// The uniprocessor stack: one thread does everything.
    Up,
    /// The same; polling queues packets, and the same thread runs them later.
    UpNetisr,
    /// The uniprocessor stack behind one lock, for programs with several threads.
    UpShared,
    /// Message parallelism with fine-grained locks.
    Msgp(Msgp),
    /// Connection groups owned by threads.
    ConnpT(ConnpT),
    /// Connection groups behind locks.
    ConnpL {
        /// Number of groups.
        groups: u16,
    },
    /// FireEngine's vertical perimeters.
    Squeue(Squeue),
    /// Layers as modules with queues, without affinity.
    Streams,
    /// The Packet Event Framework.
    Pef(Pef),
    /// One from outside this crate, by its own name. Not parsed: it comes as a type, to
    /// [`open_as`](crate::open_as). Several threads may call it.
    Outside(&'static str),
    /// The test of the seam; not for use.
    #[cfg(feature = "testing")]
    Split,
}

/// A name that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not the name of an organization.
    #[error("unknown organization `{0}`; known are: {known}", known = known())]
    Unknown(String),
    /// A parameter that the organization does not take, or that is out of range.
    #[error("organization `{name}`: `{part}` is not understood; {want}")]
    Parameter {
        /// The organization.
        name: &'static str,
        /// What was given.
        part: String,
        /// What it takes.
        want: &'static str,
    },
}

fn known() -> String {
    let names: Vec<&str> = OrgSpec::canonical().iter().map(|e| e.name).collect();
    names.join(", ")
}

/// One organization of this build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canonical {
    /// Its spelling; a capital letter stands for a number that the user chooses.
    pub name: &'static str,
    /// With its usual parameters.
    pub spec: OrgSpec,
    /// What it is, in a line.
    pub summary: &'static str,
}

impl OrgSpec {
    /// Every organization of this build, with its usual parameters.
    pub fn canonical() -> Vec<Canonical> {
        let entry = |name, spec, summary| Canonical {
            name,
            spec,
            summary,
        };
        let connp_t = |fold| {
            OrgSpec::ConnpT(ConnpT {
                wait: Waiting::Spin,
                fold,
                ..ConnpT::default()
            })
        };
        let msgp = OrgSpec::Msgp;
        let pef = |arrangement| {
            OrgSpec::Pef(Pef {
                arrangement,
                ..Pef::default()
            })
        };
        vec![
            entry(
                "up",
                OrgSpec::Up,
                "uniprocessor: one thread runs application, protocol and input",
            ),
            entry(
                "up:netisr",
                OrgSpec::UpNetisr,
                "uniprocessor; polling queues packets, the same thread runs them afterwards",
            ),
            entry(
                "up:shared",
                OrgSpec::UpShared,
                "uniprocessor behind one lock, for programs with several threads",
            ),
            entry(
                "msgp",
                msgp(Msgp::default()),
                "message parallelism: any thread runs any packet, locks per structure",
            ),
            entry(
                "msgp:netisr",
                msgp(Msgp {
                    inbound: MsgpInbound::Netisr,
                    ..Msgp::default()
                }),
                "message parallelism; one worker behind one queue runs all that arrives",
            ),
            entry(
                "msgp:workers=K",
                msgp(Msgp {
                    inbound: MsgpInbound::Workers(16),
                    ..Msgp::default()
                }),
                "message parallelism; many workers, kept in order by tickets",
            ),
            entry(
                "msgp:locks=coarse",
                msgp(Msgp {
                    coarse: true,
                    ..Msgp::default()
                }),
                "message parallelism with one lock for all of a connection",
            ),
            entry(
                "msgp-modern",
                msgp(Msgp {
                    modern: true,
                    ..Msgp::default()
                }),
                "message parallelism whose lookups do without the global lock",
            ),
            entry(
                "connp-l:N",
                OrgSpec::ConnpL { groups: 128 },
                "connection groups, each behind one lock; any thread may run",
            ),
            entry(
                "connp-t:N",
                OrgSpec::ConnpT(ConnpT::default()),
                "connection groups owned by threads; whoever waits sleeps on a condition variable",
            ),
            entry(
                "connp-t:N:wait=spin",
                connp_t(false),
                "the same with light messages: a ring for each pair, and a short look before sleeping",
            ),
            entry(
                "connp-t:N:wait=spin:fold",
                connp_t(true),
                "the same; a core's application and protocol share one thread",
            ),
            entry(
                "connp-t:per-connection",
                OrgSpec::ConnpT(ConnpT {
                    threads: ConnpThreads::PerConnection(MAX_THREADS),
                    ..ConnpT::default()
                }),
                "a thread for each connection, up to 384; shared beyond",
            ),
            entry(
                "squeue:N",
                OrgSpec::Squeue(Squeue::default()),
                "FireEngine: vertical perimeters, serialized by queues with workers",
            ),
            entry(
                "streams",
                OrgSpec::Streams,
                "before FireEngine: each layer a module with its own queue, on any core",
            ),
            entry(
                "pef:random",
                pef(Arrangement::Random),
                "packet event framework: a drawn squeue for all layers of a connection",
            ),
            entry(
                "pef:vertical",
                pef(Arrangement::Vertical),
                "packet event framework: all layers on the squeue of the opener's core",
            ),
            entry(
                "pef:horizontal",
                pef(Arrangement::Horizontal),
                "packet event framework: each layer of a connection on another squeue",
            ),
            entry(
                "pef:ip=A:tcp=B:sockfs=C",
                pef(Arrangement::At {
                    ip: 0,
                    tcp: 1,
                    sockfs: 0,
                }),
                "packet event framework: layers on the squeues of designated cores",
            ),
        ]
    }

    /// As [`OrgSpec::canonical`], the specifications alone.
    pub fn all() -> Vec<OrgSpec> {
        Self::canonical().into_iter().map(|e| e.spec).collect()
    }

    /// Every organization as the test suites run it: [`OrgSpec::all`] with few enough groups that
    /// connections share some and not others, and the organization that exists to test the seam.
    /// A suite that takes its list from here is joined by new organizations by itself.
    ///
    /// The environment variable `PERIMETER_ORGS`, names with commas between them, puts a list of
    /// one's own in its place.
    ///
    /// # Panics
    /// If `PERIMETER_ORGS` holds what is no name.
    pub fn tested() -> Vec<OrgSpec> {
        if let Ok(names) = std::env::var("PERIMETER_ORGS") {
            let parse = |s: &str| s.parse().unwrap_or_else(|e| panic!("PERIMETER_ORGS: {e}"));
            return names.split(',').map(parse).collect();
        }
        let few = |spec| match spec {
            OrgSpec::ConnpL { .. } => OrgSpec::ConnpL { groups: 8 },
            // Few enough to be shared.
            OrgSpec::ConnpT(c) if matches!(c.threads, ConnpThreads::PerConnection(_)) => {
                let threads = ConnpThreads::PerConnection(5);
                OrgSpec::ConnpT(ConnpT { threads, ..c })
            }
            spec => spec,
        };
        #[cfg_attr(not(feature = "testing"), expect(unused_mut, reason = "see below"))]
        let mut all: Vec<OrgSpec> = Self::all().into_iter().map(few).collect();
        #[cfg(feature = "testing")]
        all.push(OrgSpec::Split);
        all
    }

    /// Whether threads wait for each other by looking, for longer than a lock is held.
    pub fn spins(&self) -> bool {
        matches!(self, OrgSpec::ConnpT(c) if c.wait == Waiting::Spin)
    }

    /// One thread only.
    pub fn single_threaded(&self) -> bool {
        matches!(self, OrgSpec::Up | OrgSpec::UpNetisr)
    }
}

impl FromStr for OrgSpec {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<OrgSpec, SpecError> {
        let mut parts = s.trim().split(':');
        let name = parts.next().unwrap_or_default();
        let rest = parts.collect();
        match name {
            "up" => {
                let mut parts = Parts::new("up", "it is `up`, `up:netisr` or `up:shared`", rest);
                let spec = if parts.flag("shared") {
                    OrgSpec::UpShared
                } else if parts.flag("netisr") {
                    OrgSpec::UpNetisr
                } else {
                    OrgSpec::Up
                };
                parts.end(spec)
            }
            "msgp" => Msgp::parse(Parts::new("msgp", Msgp::WANT, rest), false).map(OrgSpec::Msgp),
            "msgp-modern" => {
                let parts = Parts::new("msgp-modern", Msgp::WANT, rest);
                Msgp::parse(parts, true).map(OrgSpec::Msgp)
            }
            "connp-t" => {
                ConnpT::parse(Parts::new("connp-t", ConnpT::WANT, rest)).map(OrgSpec::ConnpT)
            }
            "connp-l" => {
                let want = "it takes a number of groups from 1 to 1024";
                let mut parts = Parts::new("connp-l", want, rest);
                let groups = parts.number(MAX_GROUPS)?.unwrap_or(128);
                parts.end(OrgSpec::ConnpL { groups })
            }
            "squeue" => {
                Squeue::parse(Parts::new("squeue", Squeue::WANT, rest)).map(OrgSpec::Squeue)
            }
            "streams" => {
                Parts::new("streams", "it takes no parameters", rest).end(OrgSpec::Streams)
            }
            "pef" => Pef::parse(Parts::new("pef", Pef::WANT, rest)).map(OrgSpec::Pef),
            #[cfg(feature = "testing")]
            "split" => Parts::new("split", "it takes no parameters", rest).end(OrgSpec::Split),
            _ => Err(SpecError::Unknown(s.to_string())),
        }
    }
}

impl fmt::Display for OrgSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrgSpec::Up => f.write_str("up"),
            OrgSpec::UpNetisr => f.write_str("up:netisr"),
            OrgSpec::UpShared => f.write_str("up:shared"),
            OrgSpec::Msgp(spec) => spec.fmt(f),
            OrgSpec::ConnpT(spec) => spec.fmt(f),
            OrgSpec::ConnpL { groups } => write!(f, "connp-l:{groups}"),
            OrgSpec::Squeue(spec) => spec.fmt(f),
            OrgSpec::Streams => f.write_str("streams"),
            OrgSpec::Pef(spec) => spec.fmt(f),
            OrgSpec::Outside(name) => f.write_str(name),
            #[cfg(feature = "testing")]
            OrgSpec::Split => f.write_str("split"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_one_thing_and_are_spelled_one_way() {
        for (text, want) in [
            ("up", "up"),
            ("up:netisr", "up:netisr"),
            ("up:shared", "up:shared"),
            ("msgp", "msgp"),
            ("msgp:locks=fine", "msgp"),
            ("msgp:locks=coarse:netisr", "msgp:netisr:locks=coarse"),
            ("msgp:workers=16", "msgp:workers=16"),
            ("msgp-modern", "msgp-modern"),
            ("connp-t", "connp-t"),
            ("connp-t:4", "connp-t:4"),
            ("connp-t:4:wait=condvar", "connp-t:4"),
            ("connp-t:1:fold:wait=spin", "connp-t:1:wait=spin:fold"),
            ("connp-t:per-connection", "connp-t:per-connection"),
            ("connp-t:per-connection=384", "connp-t:per-connection"),
            ("connp-t:per-connection=4", "connp-t:per-connection=4"),
            ("connp-l", "connp-l:128"),
            ("connp-l:4", "connp-l:4"),
            ("squeue", "squeue"),
            ("squeue:1:entry=fill", "squeue:1:entry=fill"),
            ("squeue:fanout=on", "squeue:fanout=on"),
            ("squeue:quanta=20/10/10:delay=0", "squeue"),
            (
                "squeue:2:delay=5:quanta=1/2/0",
                "squeue:2:quanta=1/2/0:delay=5",
            ),
            ("streams", "streams"),
            ("pef", "pef:random"),
            ("pef:horizontal", "pef:horizontal"),
            ("pef:tcp=1:ip=0:sockfs=2", "pef:ip=0:tcp=1:sockfs=2"),
            ("pef:vertical:light-tcp=off", "pef:vertical:light-tcp=off"),
            ("pef:events=fine", "pef:random:events=fine"),
            ("pef:vertical:events=coarse", "pef:vertical"),
        ] {
            let spec = text.parse::<OrgSpec>().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(spec.to_string(), want, "{text}");
            assert_eq!(want.parse(), Ok(spec), "{text}");
        }
        for spec in OrgSpec::all().into_iter().chain(OrgSpec::tested()) {
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            "UP",
            "up:2",
            "up:netisrr",
            "up:shared:netisr",
            "msgpp",
            "msgp:4",
            "msgp:workers=0",
            "msgp:netisr:workers=2",
            "msgp:locks=none",
            "connp-t:0",
            "connp-t:385",
            "connp-t:fold",
            "connp-t:4:wait=sleep",
            "connp-t:4:per-connection",
            "connp-t:per-connection:wait=spin",
            "connp-t:per-connection=385",
            "connp-t:2:per-connection=4",
            "connp-l:",
            "connp-l:0",
            "connp-l:1025",
            "connp-l:-1",
            "connp-l:x",
            "connp-l:4:5",
            "squeue:0",
            "squeue:entry=",
            "squeue:fanout",
            "squeue:quanta=1/2",
            "squeue:quanta=1/2/3/4",
            "squeue:quanta=a/b/c",
            "squeue:delay=1001",
            "streams:2",
            "pef:diagonal",
            "pef:ip=0",
            "pef:ip=0:tcp=1:sockfs=2:vertical",
            "pef:random:vertical",
        ] {
            assert!(text.parse::<OrgSpec>().is_err(), "{text} was taken");
        }
    }
}
