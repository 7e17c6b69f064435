//! The parameters of each family of organizations, as they are spelled.

use super::SpecError;
use super::parts::Parts;
use core::fmt;

/// The most groups, threads, workers or queues that any organization takes.
pub const MAX_GROUPS: u16 = 1024;

/// The most threads of `connp-t`: Yates' limit, beyond which connections share (Yates et al.,
/// INFOCOM 1997).
pub const MAX_THREADS: u16 = 384;

/// Message parallelism.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Msgp {
    /// Who does inbound protocol work.
    pub inbound: MsgpInbound,
    /// One lock for all of a connection: TCP state and both buffers (Nahum's question).
    pub coarse: bool,
    /// Lookups without the global lock: the bottleneck's cure.
    pub modern: bool,
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
    pub(super) const WANT: &'static str =
        "it takes `netisr` or `workers=K` (K from 1 to 1024), and `locks=fine` or `locks=coarse`";

    pub(super) fn parse(mut parts: Parts<'_>, modern: bool) -> Result<Msgp, SpecError> {
        let netisr = parts.flag("netisr");
        let inbound = match parts.count("workers", 1, MAX_GROUPS)? {
            Some(_) if netisr => return Err(parts.refuse("netisr:workers")),
            Some(k) => MsgpInbound::Workers(k),
            None if netisr => MsgpInbound::Netisr,
            None => MsgpInbound::Direct,
        };
        let coarse = parts.choice("locks", &[("fine", false), ("coarse", true)])?;
        parts.end(Msgp {
            inbound,
            coarse: coarse.unwrap_or(false),
            modern,
        })
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
        f.write_str(if self.coarse { ":locks=coarse" } else { "" })
    }
}

/// Connection groups owned by threads.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnpT {
    /// Protocol threads.
    pub threads: ConnpThreads,
    /// How requesters wait for their answer.
    pub wait: Waiting,
    /// A core's application and protocol roles share a thread where they meet.
    pub fold: bool,
}

/// How many protocol threads `connp-t` has.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConnpThreads {
    /// One for each core.
    #[default]
    Cores,
    /// That many.
    Groups(u16),
    /// One for each connection, up to that many; shared beyond.
    PerConnection(u16),
}

/// How a requester of `connp-t` waits.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// On a condition variable: the paper's.
    #[default]
    Condvar,
    /// Light messages, as DragonFly's: spin for a while, then park.
    Spin,
}

impl ConnpT {
    pub(super) const WANT: &'static str = "it takes a number of threads from 1 to 384, \
         `wait=condvar` or `wait=spin`, and with `wait=spin` also `fold`; or `per-connection`, \
         also `per-connection=K` for at most K threads, alone";

    pub(super) fn parse(mut parts: Parts<'_>) -> Result<ConnpT, SpecError> {
        let threads = match parts.number(MAX_THREADS)? {
            Some(n) => ConnpThreads::Groups(n),
            None if parts.flag("per-connection") => ConnpThreads::PerConnection(MAX_THREADS),
            None => match parts.count("per-connection", 1, MAX_THREADS)? {
                Some(most) => ConnpThreads::PerConnection(most),
                None => ConnpThreads::Cores,
            },
        };
        let ways = [("condvar", Waiting::Condvar), ("spin", Waiting::Spin)];
        let wait = parts.choice("wait", &ways)?.unwrap_or_default();
        let fold = parts.flag("fold");
        let alone = matches!(threads, ConnpThreads::PerConnection(_));
        if fold && wait == Waiting::Condvar {
            return Err(parts.refuse("fold"));
        }
        if alone && wait == Waiting::Spin {
            return Err(parts.refuse("per-connection:wait=spin"));
        }
        parts.end(ConnpT {
            threads,
            wait,
            fold,
        })
    }
}

impl fmt::Display for ConnpT {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connp-t")?;
        match self.threads {
            ConnpThreads::Cores => {}
            ConnpThreads::Groups(n) => write!(f, ":{n}")?,
            ConnpThreads::PerConnection(MAX_THREADS) => f.write_str(":per-connection")?,
            ConnpThreads::PerConnection(most) => write!(f, ":per-connection={most}")?,
        }
        if self.wait == Waiting::Spin {
            f.write_str(":wait=spin")?;
        }
        f.write_str(if self.fold { ":fold" } else { "" })
    }
}

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
        }
    }
}

/// How packets and writes enter an squeue.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum SqueueEntry {
    /// Run it if the squeue is idle and empty, then drain what came meanwhile; queue it if the
    /// squeue is busy.
    #[default]
    Process,
    /// Run this one if the squeue is idle and empty; never drain others.
    NoDrain,
    /// Queue it; the worker runs it.
    Fill,
}

impl Squeue {
    pub(super) const WANT: &'static str = "it takes a number of squeues from 1 to 1024, \
         `entry=process`, `nodrain` or `fill`, `fanout=on` or `off`, `quanta=I/W/K` (the longest \
         drain of inbound thread, writer and worker, ms) and `delay=D` (of a worker's waking, \
         ms, up to 1000)";

    pub(super) fn parse(mut parts: Parts<'_>) -> Result<Squeue, SpecError> {
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
        parts.end(Squeue {
            squeues,
            entry,
            fanout,
            quanta,
            delay,
        })
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
        Ok(())
    }
}

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
    pub(super) const WANT: &'static str = "it takes `random`, `vertical`, `horizontal` or \
         `ip=A:tcp=B:sockfs=C` (cores), `light-queue=on` or `off`, `light-tcp=on` or `off`, \
         and `events=coarse` or `fine`";

    pub(super) fn parse(mut parts: Parts<'_>) -> Result<Pef, SpecError> {
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
        parts.end(Pef {
            arrangement,
            light_queue,
            light_tcp,
            fine: fine.unwrap_or(false),
        })
    }
}

impl Default for Pef {
    fn default() -> Pef {
        Pef {
            arrangement: Arrangement::Random,
            light_queue: true,
            light_tcp: true,
            fine: false,
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
        f.write_str(if self.fine { ":events=fine" } else { "" })
    }
}
