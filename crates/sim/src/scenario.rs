//! What is run: organization, cores, faults, capacities, workload, driver and schedule, all from
//! one seed unless fixed.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use perimeter::{Inbound, LockPolicy, Offload, OrgSpec, Trigger};
use perimeter_link::fault::FaultConfig;
use perimeter_link::rng::SplitMix64;
use perimeter_sync::virt::Schedule;

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl FromStr for $name {
            type Err = ParseError;

            fn from_str(s: &str) -> Result<$name, ParseError> {
                let found = $name::ALL.iter().copied().find(|v| v.name() == s);
                found.ok_or_else(|| ParseError(format!("`{s}` is none of {}", {
                    let names: Vec<_> = $name::ALL.iter().map(|v| v.name()).collect();
                    names.join(", ")
                })))
            }
        }
    };
}

named! {
    /// What the wire does to frames, in both directions.
    Mix {
        /// Nothing.
        None = "none",
        /// Loses 1 %.
        Loss1 = "loss1",
        /// Loses 10 %.
        Loss10 = "loss10",
        /// Holds 20 % back, so that later ones overtake them.
        Reorder = "reorder20",
        /// Doubles 10 %.
        Duplicate = "duplicate",
        /// Flips bits in 3 %.
        Corrupt = "corrupt",
        /// Loses 3 %, reorders 10 %, doubles 5 %.
        Three = "mix3",
    }
}

named! {
    /// How much room there is.
    Capacity {
        /// Buffers of 64 KiB, rings of thousands, several connections per thread.
        Normal = "normal",
        /// Buffers of two or three segments, receive rings of 16 frames, one connection per
        /// thread.
        Shrunken = "shrunken",
        /// Buffers of two or three segments and a handful of segments on two connections: as
        /// short as a run can be, so that very many schedules can be explored.
        Tiny = "tiny",
    }
}

named! {
    /// Which IP the stacks speak with each other.
    Family {
        /// IPv4.
        V4 = "4",
        /// IPv6.
        V6 = "6",
    }
}

named! {
    /// What the applications do.
    Workload {
        /// Client to server, then both close.
        Upload = "upload",
        /// Server to client.
        Download = "download",
        /// Both ways at once; both ends close at about the same time.
        Duplex = "duplex",
        /// Small messages back and forth.
        PingPong = "pingpong",
        /// Many short connections.
        Short = "short",
        /// The client closes its direction, and the server's answer follows.
        HalfClose = "halfclose",
        /// The client closes with data unread: a reset.
        Unread = "unread",
        /// The client aborts while data flows.
        Abort = "abort",
        /// Upload by reference-counted pages, with completion.
        ZeroCopy = "zerocopy",
        /// Several threads write, and several read, one socket. Blocking only.
        Shared = "shared",
        /// A thread closes the socket that another is blocked on. Blocking only.
        CloseBlocked = "closeblocked",
        /// Two threads at each end close one socket at the same time, under a third that reads.
        /// Blocking only.
        CloseTwice = "closetwice",
        /// The server closes its listener and opens it again while clients connect: before it is
        /// there, while it goes, and with connections that nobody has accepted.
        Reopen = "reopen",
        /// Clients give up connections during and right after the handshake, by reset and in
        /// order, before they open one that counts.
        Fickle = "fickle",
        /// Datagrams of UDP, whole and in fragments, by connected sockets and others, one by one
        /// and in batches; each that arrives is answered.
        Datagrams = "datagrams",
    }
}

named! {
    /// How the applications wait.
    Drive {
        /// Threads that block.
        Blocking = "blocking",
        /// Event loops, level-triggered.
        Level = "level",
        /// Event loops, edge-triggered.
        Edge = "edge",
        /// Event loops, one-shot.
        OneShot = "oneshot",
    }
}

impl Drive {
    /// How pollers are told; `None`: threads block.
    pub fn trigger(self) -> Option<Trigger> {
        match self {
            Drive::Blocking => None,
            Drive::Level => Some(Trigger::Level),
            Drive::Edge => Some(Trigger::Edge),
            Drive::OneShot => Some(Trigger::OneShot),
        }
    }
}

impl Workload {
    /// Those of streams, from which a seed has drawn since before there were others.
    fn streams() -> &'static [Workload] {
        &Workload::ALL[..Workload::Datagrams as usize]
    }

    /// Several threads at each end, which block.
    pub fn needs_threads(self) -> bool {
        matches!(
            self,
            Workload::Shared | Workload::CloseBlocked | Workload::CloseTwice
        )
    }

    /// The listener comes and goes, and clients do not wait for it.
    pub fn races_listener(self) -> bool {
        matches!(self, Workload::Reopen | Workload::Fickle)
    }
}

impl Mix {
    /// Frames may be lost, or damaged so that they are dropped.
    pub fn loses(self) -> bool {
        !matches!(self, Mix::None | Mix::Reorder | Mix::Duplicate)
    }

    /// Frames may arrive twice.
    pub fn doubles(self) -> bool {
        matches!(self, Mix::Duplicate | Mix::Three)
    }

    /// The faults of one direction.
    pub fn faults(self, seed: u64) -> FaultConfig {
        let mut f = FaultConfig::default().with_seed(seed);
        match self {
            Mix::None => {}
            Mix::Loss1 => f.loss = 0.01,
            Mix::Loss10 => f.loss = 0.1,
            Mix::Reorder => f.reorder = 0.2,
            Mix::Duplicate => f.duplicate = 0.1,
            Mix::Corrupt => f.corrupt = 0.03,
            Mix::Three => (f.loss, f.reorder, f.duplicate) = (0.03, 0.1, 0.05),
        }
        f
    }
}

/// A line that is no scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

/// One simulation. Its text form replays it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The organization of both stacks.
    pub org: OrgSpec,
    /// Virtual cores, and application threads of each stack.
    pub cores: usize,
    /// What the wire does.
    pub mix: Mix,
    /// How much room there is.
    pub capacity: Capacity,
    /// Everything random is drawn from it.
    pub seed: u64,
    /// Which IP the stacks speak.
    pub family: Family,
    /// What the applications do.
    pub workload: Workload,
    /// How they wait.
    pub drive: Drive,
    /// Who takes packets from the devices.
    pub inbound: Inbound,
    /// Who runs next.
    pub schedule: Schedule,
    /// Length of an earlier run in steps, for [`Schedule::Pct`].
    pub pct_steps: u64,
    /// With probability one in this many, time jumps to a deadline though somebody could run.
    pub early_timer_one_in: u32,
    /// How threads wait for locks. Not drawn.
    pub locks: LockPolicy,
    /// Who cuts bursts into segments: every second run has large ones.
    pub offload: Offload,
}

/// How rarely time must jump under a schedule, so that those who time out do not keep others from
/// ever running.
pub fn early(schedule: Schedule) -> u32 {
    match schedule {
        Schedule::Random { switch_one_in } => 100 * switch_one_in.max(2),
        // More than it takes all threads that poll to look around once.
        _ => 3_000,
    }
}

impl Scenario {
    /// The scenario of a seed: workload, driver, inbound threads and schedule are drawn.
    pub fn new(org: OrgSpec, cores: usize, mix: Mix, capacity: Capacity, seed: u64) -> Scenario {
        let mut rng = SplitMix64::new(seed ^ 0x7065_7269);
        let mut pick = |n: usize| rng.below(n as u64) as usize;
        let single = org.single_threaded();
        let workload = Workload::streams()[pick(Workload::streams().len())];
        // Half of the runs block; under a one-threaded organization none can, for its thread
        // serves several connections.
        let mut drive = Drive::ALL[1 + pick(3)];
        let blocking = pick(2) == 0 || workload.needs_threads();
        if blocking && !single {
            drive = Drive::Blocking;
        }
        let workload = match workload {
            Workload::Shared if single => Workload::Duplex,
            Workload::CloseBlocked | Workload::CloseTwice if single => Workload::Short,
            w => w,
        };
        // What came later has draws of its own, so that the others' remain.
        let workload = match SplitMix64::new(seed ^ 0x7564_7000).below(4) {
            0 => Workload::Datagrams,
            _ => workload,
        };
        let family = match SplitMix64::new(seed ^ 0x6970_7636).below(2) {
            0 => Family::V4,
            _ => Family::V6,
        };
        let schedule = match pick(4) {
            0 => Schedule::Time { jitter_percent: 10 },
            1 => Schedule::Random {
                switch_one_in: 1 + pick(4) as u32,
            },
            2 => Schedule::Random {
                switch_one_in: 8 + pick(24) as u32,
            },
            _ => Schedule::Pct {
                depth: 2 + pick(4) as u32,
            },
        };
        let early_timer_one_in = if pick(8) == 0 { 20_000 } else { 0 };
        Scenario {
            org,
            cores: cores.max(1),
            mix,
            capacity,
            seed,
            family,
            workload,
            drive,
            inbound: if pick(3) == 0 {
                Inbound::Inline
            } else {
                Inbound::Thread
            },
            schedule,
            pct_steps: 20_000,
            early_timer_one_in,
            locks: LockPolicy::Modern,
            offload: match SplitMix64::new(seed ^ 0x6f66_666c).below(4) {
                0 => Offload::Software,
                1 => Offload::Device,
                _ => Offload::Off,
            },
        }
    }

    /// A scenario of the exploration of schedules: tiny, scheduled at random or by PCT, three
    /// quarters of them over a wire without faults, a third of them with time jumping to
    /// deadlines at any moment, so that timers meet whatever else goes on. `pct_steps` is the
    /// length of a run to be expected.
    pub fn explored(org: OrgSpec, cores: usize, seed: u64, pct_steps: u64) -> Scenario {
        let mut rng = SplitMix64::new(seed ^ 0x6578_706c);
        let mut pick = |n: usize| rng.below(n as u64) as usize;
        let mix = if pick(4) == 0 {
            Mix::ALL[1 + pick(Mix::ALL.len() - 1)]
        } else {
            Mix::None
        };
        let schedule = match pick(4) {
            0 => Schedule::Random {
                switch_one_in: 1 + pick(4) as u32,
            },
            1 => Schedule::Random {
                switch_one_in: 8 + pick(24) as u32,
            },
            _ => Schedule::Pct {
                depth: 2 + pick(4) as u32,
            },
        };
        let early_timer_one_in = match (pick(3), schedule) {
            (0, schedule) => early(schedule) + pick(200) as u32,
            _ => 0,
        };
        let locks = match pick(8) {
            0 => LockPolicy::Turnstile,
            _ => LockPolicy::Modern,
        };
        let mut sc = Scenario {
            schedule,
            pct_steps,
            early_timer_one_in,
            locks,
            ..Scenario::new(org, cores, mix, Capacity::Tiny, seed)
        };
        if sc.workload.races_listener() && mix != Mix::None {
            // The last word of who goes may be lost: the other waits in vain, which takes time.
            sc.early_timer_one_in = 0;
        }
        sc
    }

    /// The same with this workload and this family, where they are given and the organization has
    /// the threads for it.
    pub fn narrowed(mut self, workload: Option<Workload>, family: Option<Family>) -> Scenario {
        self.family = family.unwrap_or(self.family);
        match workload {
            Some(w) if w.needs_threads() && self.org.single_threaded() => {}
            Some(w) => {
                self.workload = w;
                if w.needs_threads() {
                    self.drive = Drive::Blocking;
                }
                if w.races_listener() && self.mix != Mix::None && self.jumps() {
                    self.early_timer_one_in = 0;
                }
            }
            None => {}
        }
        self
    }

    /// Whether time jumps so often that it says nothing of how long anything took.
    pub fn jumps(&self) -> bool {
        (1..10_000).contains(&self.early_timer_one_in)
    }

    /// Several threads on one stack's sockets.
    pub fn threads(&self) -> usize {
        match self.capacity {
            _ if self.org.single_threaded() => 1,
            Capacity::Tiny => 2,
            _ => self.cores,
        }
    }

    /// Connections of the run.
    pub fn connections(&self) -> usize {
        match (self.capacity, self.workload) {
            (Capacity::Tiny, Workload::Shared | Workload::CloseBlocked | Workload::CloseTwice) => 1,
            (Capacity::Tiny, Workload::Short) => 3,
            (Capacity::Tiny, _) => 2,
            (Capacity::Shrunken, _) | (_, Workload::Shared) => self.cores,
            (Capacity::Normal, Workload::Short) => 6 * self.cores,
            (Capacity::Normal, _) => 2 * self.cores,
        }
    }

    /// The address of an end at its interface number `nic`.
    pub fn addr(&self, client: bool, nic: usize) -> IpAddr {
        let (nic, host) = (nic as u8, 1 + u8::from(client));
        match self.family {
            Family::V4 => Ipv4Addr::new(10, 0, nic, host).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0, 0, nic.into(), 0, 0, 0, host.into()).into(),
        }
    }

    /// All addresses of an end.
    pub fn any(&self) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Bytes that a bulk transfer moves.
    pub fn bulk(&self) -> u64 {
        match self.capacity {
            Capacity::Normal => 150_000,
            Capacity::Shrunken => 20_000,
            Capacity::Tiny => 6_000,
        }
    }

    /// Interfaces of each stack.
    pub fn nics(&self) -> usize {
        if self.cores >= 4 && self.capacity != Capacity::Tiny {
            2
        } else {
            1
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "org={} cores={} mix={} capacity={} seed={} workload={} drive={} inbound={} \
             schedule={} pct_steps={} early={}",
            self.org,
            self.cores,
            self.mix.name(),
            self.capacity.name(),
            self.seed,
            self.workload.name(),
            self.drive.name(),
            if self.inbound == Inbound::Thread {
                "thread"
            } else {
                "inline"
            },
            self.schedule,
            self.pct_steps,
            self.early_timer_one_in,
        )?;
        match self.locks {
            LockPolicy::Modern => Ok(()),
            policy => write!(f, " locks={policy}"),
        }?;
        match self.offload {
            Offload::Off => Ok(()),
            on => write!(f, " offload={on}"),
        }?;
        match self.family {
            Family::V4 => Ok(()),
            family => write!(f, " family={}", family.name()),
        }
    }
}

fn number<T: FromStr>(key: &str, value: &str) -> Result<T, ParseError> {
    value
        .parse()
        .map_err(|_| ParseError(format!("`{key}={value}` is not a number in range")))
}

fn schedule(value: &str) -> Result<Schedule, ParseError> {
    let (kind, n) = value.split_once('=').unwrap_or((value, ""));
    let n: u32 = number("schedule", n)?;
    match kind {
        "time:jitter" => Ok(Schedule::Time { jitter_percent: n }),
        "random:one_in" => Ok(Schedule::Random { switch_one_in: n }),
        "pct:depth" => Ok(Schedule::Pct { depth: n }),
        _ => Err(ParseError(format!("schedule `{value}` is not understood"))),
    }
}

impl FromStr for Scenario {
    type Err = ParseError;

    /// `key=value` pairs. `org` and `seed` are needed; what else is left out is drawn from the
    /// seed as by [`Scenario::new`], with 2 cores, no faults, normal capacities, no offload and IPv4.
    fn from_str(s: &str) -> Result<Scenario, ParseError> {
        let mut pairs = Vec::new();
        for word in s.split_whitespace() {
            let pair = word.split_once('=');
            pairs.push(pair.ok_or_else(|| ParseError(format!("`{word}` is not key=value")))?);
        }
        let get = |key: &str| pairs.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        let need = |key: &str| get(key).ok_or_else(|| ParseError(format!("`{key}=` is missing")));
        let org = need("org")?
            .parse()
            .map_err(|e| ParseError(format!("{e}")))?;
        let mut sc = Scenario::new(
            org,
            get("cores").map_or(Ok(2), |v| number("cores", v))?,
            get("mix").map_or(Ok(Mix::None), str::parse)?,
            get("capacity").map_or(Ok(Capacity::Normal), str::parse)?,
            number("seed", need("seed")?)?,
        );
        (sc.offload, sc.family) = (Offload::Off, Family::V4);
        for (key, value) in &pairs {
            match *key {
                "org" | "cores" | "mix" | "capacity" | "seed" => {}
                "workload" => sc.workload = value.parse()?,
                "drive" => sc.drive = value.parse()?,
                "inbound" => {
                    sc.inbound = match *value {
                        "thread" => Inbound::Thread,
                        "inline" => Inbound::Inline,
                        v => return Err(ParseError(format!("inbound `{v}` is not understood"))),
                    }
                }
                "schedule" => sc.schedule = schedule(value)?,
                "pct_steps" => sc.pct_steps = number(key, value)?,
                "locks" => sc.locks = value.parse().map_err(ParseError)?,
                "offload" => sc.offload = value.parse().map_err(ParseError)?,
                "family" => sc.family = value.parse()?,
                "early" => sc.early_timer_one_in = number(key, value)?,
                _ => return Err(ParseError(format!("`{key}` is not understood"))),
            }
        }
        sc.check()?;
        Ok(sc)
    }
}

impl Scenario {
    fn check(&self) -> Result<(), ParseError> {
        let needs_threads = self.workload.needs_threads();
        if self.org.single_threaded() && self.drive == Drive::Blocking {
            return Err(ParseError(
                "a one-threaded organization can't block".to_string(),
            ));
        }
        if needs_threads && self.drive != Drive::Blocking {
            return Err(ParseError(format!(
                "workload {} needs drive=blocking",
                self.workload.name()
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_replays_the_scenario() {
        for seed in 0..500 {
            for org in ["up", "up:shared", "connp-l:8"] {
                let org = org.parse().unwrap();
                let mix = Mix::ALL[seed as usize % Mix::ALL.len()];
                let sc = Scenario::new(org, 4, mix, Capacity::Shrunken, seed);
                assert_eq!(sc.to_string().parse(), Ok(sc.clone()), "{sc}");
            }
        }
    }

    #[test]
    fn what_is_no_scenario_is_refused() {
        for text in [
            "",
            "org=up",
            "seed=1",
            "org=upp seed=1",
            "org=up seed=x",
            "org=up seed=1 mix=loss",
            "org=up seed=1 drive=blocking",
            "org=up:shared seed=1 workload=shared drive=edge",
            "org=up seed=1 schedule=time",
            "org=up seed=1 family=5",
            "org=up seed=1 colour=blue",
            "org=up seed=1 blue",
        ] {
            assert!(text.parse::<Scenario>().is_err(), "{text}");
        }
    }
}
