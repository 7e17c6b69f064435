//! Machines as tables of costs: what work, locks, wakes and cache lines take there.

use super::{instead::Instead, loads::Point};
use crate::{
    Error, files,
    plan::Cell,
    text::from_str,
    workload::{Coalescing, Settings},
};
use perimeter::{LockPolicy, Work};
use perimeter_sync::{
    Touched,
    virt::{Cost, CostTable, LineCosts, PayloadCosts},
};
use serde::{Deserialize, Serialize, Serializer};
use std::{collections::BTreeMap, fmt::Display, path::Path, time::Duration};

/// Most bytes of a machine's file.
const LONGEST: u64 = 1 << 20;

/// A machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Machine {
    /// Its name: letters, digits and hyphens.
    pub name: String,
    /// What it is.
    pub title: String,
    /// Where the numbers come from, or that they are estimates.
    pub sources: Vec<String>,
    /// Cores, or hardware threads.
    pub cores: usize,
    /// NICs, where it has a number of its own; else as many as cores run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<usize>,
    /// Its clock, GHz, where what was published of it counts cycles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ghz: Option<f64>,
    /// What each of those carries, Gb/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_gbps: Option<f64>,
    /// Whether it stands for a machine that papers measured, so that what they published is held
    /// against it.
    #[serde(default)]
    pub published: bool,
    /// Whether a stack's threads are a kernel's, which take their core from processes at once.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub preemptive: bool,
    /// The shortest time between two interrupts of one of its NICs, ns, where that is known: in place of
    /// how plans hold interrupts back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt_gap: Option<f64>,
    /// The most bytes that a stack there takes at a time from who sends, where that is less than what
    /// is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<usize>,
    /// How much of a send buffer is free before a writer who found no room is told, bytes, where that
    /// is less than a third of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snd_lowat: Option<u32>,
    /// What that system does with small segments, where plans send full ones alone.
    #[serde(
        default,
        deserialize_with = "from_str",
        serialize_with = "in_words",
        skip_serializing_if = "is_default"
    )]
    pub coalescing: Coalescing,
    /// Whether its kernel wakes sleepers under the locks of what they wait for.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub wakes_inside: bool,
    /// Whether its scheduler has one queue for all cores, so that threads move between them.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub one_run_queue: bool,
    /// What it has in place of what plans say, where that was asked for.
    #[serde(default, skip_serializing_if = "Instead::is_nothing")]
    pub instead: Instead,
    /// How threads wait for locks there.
    #[serde(
        default,
        deserialize_with = "from_str",
        serialize_with = "in_words",
        skip_serializing_if = "is_default"
    )]
    pub locks: LockPolicy,
    /// What else takes time.
    pub costs: Costs,
    /// Cache lines.
    pub lines: Lines,
    /// Lines of payload.
    pub payload: Payload,
    /// Work by class: ns for each charge, and for each unit.
    pub work: BTreeMap<String, [f64; 2]>,
    /// Lines of an item, by what it is.
    pub each: BTreeMap<String, f64>,
    /// Runs that the table was fitted to, or checked with, by a calibration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Run>,
}

/// Fixed costs, ns: see [`CostTable`], which has them all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Costs {
    /// Yielding.
    pub yields: f64,
    /// An operation on shared memory.
    pub atomic: f64,
    /// Taking and releasing a free lock.
    pub lock: f64,
    /// Going to sleep.
    pub park: f64,
    /// Waking somebody.
    pub wake: f64,
    /// What that takes beyond, where who is woken belongs to another core.
    pub kick: f64,
    /// Until who was woken runs.
    pub wake_latency: f64,
    /// Setting a core's timer for a deadline that is near.
    #[serde(default)]
    pub timer_set: f64,
    /// The interrupt of a timer that ends a sleep.
    #[serde(default)]
    pub timer_interrupt: f64,
    /// Going on to another thread.
    pub switch: f64,
    /// A contender's unit of spinning; 0: it sees each release at once.
    pub pause: f64,
    /// Whether the scheduler has one lock for all cores.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub one_scheduler: bool,
    /// How long a contender spins.
    pub spin: f64,
    /// After how long a parked contender has the lock handed over.
    pub fair: f64,
    /// How long threads of a core take turns for.
    pub slice: f64,
    /// After how long one leaves the core to another that is woken; 0: at the end of its turn.
    #[serde(default)]
    pub preempt: f64,
}

impl Costs {
    /// What sleeping, waking and switching take.
    pub(super) fn scheduling(&mut self) -> [&mut f64; 8] {
        [
            &mut self.yields,
            &mut self.park,
            &mut self.wake,
            &mut self.kick,
            &mut self.wake_latency,
            &mut self.timer_set,
            &mut self.timer_interrupt,
            &mut self.switch,
        ]
    }
}

/// Cache lines: see [`LineCosts`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Lines {
    /// From a core that shares a cache, ns.
    pub near: f64,
    /// From another core of the processor, ns.
    pub far: f64,
    /// From another processor, ns.
    pub remote: f64,
    /// From a shared cache, ns.
    pub shared: f64,
    /// From memory, ns.
    pub memory: f64,
    /// Cores that share a cache; 0: all.
    pub near_cores: u32,
    /// Cores of a processor; 0: all.
    pub socket_cores: u32,
    /// Lines of a core's own caches; 0: no bound.
    pub private_lines: u32,
    /// Lines of a shared cache; 0: no bound.
    pub shared_lines: u32,
    /// How much longer a hand-over of a lock takes for each other who spins, percent.
    pub crowd: u32,
    /// What each further line that is touched at a time takes, percent of the first.
    #[serde(default = "all")]
    pub further: u32,
}

/// What a line of payload takes beyond one in the core's own caches, as [written, read], ns: see
/// [`PayloadCosts`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Payload {
    /// From a shared cache.
    pub shared: [f64; 2],
    /// From memory.
    pub memory: [f64; 2],
    /// From a core that shares a cache.
    pub near: [f64; 2],
    /// From another core of the processor.
    pub far: [f64; 2],
    /// From another processor.
    pub remote: [f64; 2],
}

impl Payload {
    fn all_mut(&mut self) -> impl Iterator<Item = &mut f64> {
        let Payload {
            shared,
            memory,
            near,
            far,
            remote,
        } = self;
        [shared, memory, near, far, remote].into_iter().flatten()
    }
}

/// A run on the machine itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Run {
    /// What ran.
    pub load: super::loads::Load,
    /// Organization.
    pub org: String,
    /// Connections.
    pub connections: u32,
    /// Application threads; 1: the table may be fitted to it.
    pub threads: usize,
    /// Whether the one core had another thread for inbound work.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub beside: bool,
    /// Whether the cores were far from each other; of no account with one thread.
    pub far: bool,
    /// Payload, Mb/s, of each repeat.
    pub goodput: Vec<f64>,
    /// Round trips a second, where there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<f64>,
    /// Processor time without the peer's for each unit of work, ns.
    pub own_ns: Vec<f64>,
    /// The peer's, ns.
    pub peer_ns: Vec<f64>,
    /// Contended acquisitions of central locks, percent; empty where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contended: Vec<f64>,
}

impl Run {
    /// What ran.
    ///
    /// # Errors
    /// There is no such organization.
    pub fn point(&self) -> Result<Point, Error> {
        let (load, org, connections) = (self.load, &self.org, self.connections);
        match self.beside {
            true => Point::beside(load, org, connections),
            false => Point::new(load, org, connections, self.threads),
        }
        .map_err(Error::Input)
    }
}

fn in_words<T: Display, S: Serializer>(what: &T, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(what)
}

/// A uniprocessor's kernel.
pub(super) const KERNEL: &str = "up:shared";

/// What lines an ideal peer has.
pub(super) const PEER_LINES: [Touched; 2] = [Touched::PeerFlow, Touched::PeerFrame];

/// As much as the first.
fn all() -> u32 {
    100
}

fn is_default<T: Default + PartialEq>(what: &T) -> bool {
    *what == T::default()
}

/// Groups of costs that are varied together, to see what a prediction hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Work by class.
    Work,
    /// Cache lines, from cores and from memory.
    Lines,
    /// Locks and operations on shared memory.
    Locks,
    /// Sleeping, waking, switching.
    Scheduling,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 4] = [Group::Work, Group::Lines, Group::Locks, Group::Scheduling];
}

macro_rules! embed {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../machines/", $name, ".toml")))),+]
    };
}

/// The machines that ship with the program.
const EMBEDDED: &[(&str, &str)] = embed!["vm-2core", "opteron-275", "t1", "server-64"];

/// Names of the machines that ship with the program.
pub fn names() -> impl Iterator<Item = &'static str> {
    EMBEDDED.iter().map(|(name, _)| *name)
}

impl Machine {
    /// The machine of that name, or of that file.
    ///
    /// # Errors
    /// [`Error::Input`] if there is neither, or the file is no machine.
    pub fn find(name: &str) -> Result<Machine, Error> {
        if let Some((name, text)) = EMBEDDED.iter().find(|(n, _)| *n == name) {
            return Machine::parse(&format!("{name}.toml"), text);
        }
        let path = Path::new(name);
        if !path.exists() && !name.contains(['/', '.']) {
            let known: Vec<&str> = names().collect();
            return Err(Error::Input(format!(
                "no machine and no file `{name}` (machines: {})",
                known.join(", ")
            )));
        }
        Machine::parse(name, &files::read(path, LONGEST, "machine")?)
    }

    /// Reads a machine from the text of `file`.
    ///
    /// # Errors
    /// [`Error::Input`] with what is wrong.
    pub fn parse(file: &str, text: &str) -> Result<Machine, Error> {
        let input = |what: &str| Error::Input(format!("{file}: {what}"));
        let machine: Machine = toml::from_str(text).map_err(|e| input(&e.to_string()))?;
        if machine.cores == 0 || machine.nics == Some(0) {
            return Err(input("a machine has cores and NICs"));
        }
        let work = |name: &String| Work::ALL.iter().any(|w| w.name() == name);
        if let Some(name) = machine.work.keys().find(|n| !work(n)) {
            return Err(input(&format!("work.{name}: no class of work")));
        }
        let item = |name: &String| Touched::all().any(|t| t.name() == name);
        let payload = Touched::Payload.name();
        if let Some(name) = machine.each.keys().find(|n| !item(n) || *n == payload) {
            return Err(input(&format!("each.{name}: nothing has such lines")));
        }
        let numbers = machine.work.values().flatten().chain(machine.each.values());
        let c = &machine.costs;
        let l = &machine.lines;
        let fixed = [
            c.yields,
            c.atomic,
            c.lock,
            c.park,
            c.wake,
            c.kick,
            c.pause,
            c.wake_latency,
            c.timer_set,
            c.timer_interrupt,
            c.switch,
            c.spin,
            c.fair,
            c.slice,
            c.preempt,
            l.near,
            l.far,
            l.remote,
            l.shared,
            l.memory,
        ];
        let mut payload = machine.payload;
        let payload: Vec<f64> = payload.all_mut().map(|n| *n).collect();
        let fixed = fixed.iter().chain(&payload);
        if !numbers.chain(fixed).all(|n| (0.0..=1e9).contains(n)) {
            return Err(input("costs are from 0 to 1e9"));
        }
        Ok(machine)
    }

    /// As a file.
    ///
    /// # Errors
    /// [`Error::Run`]; never, as far as is known.
    pub fn text(&self) -> Result<String, Error> {
        toml::to_string_pretty(self).map_err(|e| Error::Run(e.to_string()))
    }

    /// Its costs, as virtual cores take them.
    pub fn table(&self) -> CostTable {
        let whole = |ns: f64| ns.round() as u32;
        let c = &self.costs;
        let l = &self.lines;
        let mut work = [Cost::default(); Work::COUNT];
        for w in Work::ALL {
            let [base, unit] = self.work.get(w.name()).copied().unwrap_or_default();
            work[w as usize] = Cost::default()
                .with_base_ns(whole(base))
                .with_unit_ps(whole(unit * 1000.0));
        }
        let mut each = [0; Touched::COUNT];
        for t in Touched::all() {
            let lines = self.each.get(t.name()).copied().unwrap_or_default();
            each[t.index()] = whole(lines * 1000.0);
        }
        let ps = |both: [f64; 2]| both.map(|ns| whole(ns * 1000.0));
        let payload = PayloadCosts::default()
            .with_shared(ps(self.payload.shared))
            .with_memory(ps(self.payload.memory))
            .with_near(ps(self.payload.near))
            .with_far(ps(self.payload.far))
            .with_remote(ps(self.payload.remote));
        let lines = LineCosts::default()
            .with_payload(payload)
            .with_near_ns(whole(l.near))
            .with_far_ns(whole(l.far))
            .with_remote_ns(whole(l.remote))
            .with_shared_ns(whole(l.shared))
            .with_memory_ns(whole(l.memory))
            .with_near_cores(l.near_cores)
            .with_socket_cores(l.socket_cores)
            .with_private_lines(l.private_lines)
            .with_shared_lines(l.shared_lines)
            .with_crowd_percent(l.crowd)
            .with_further_percent(l.further)
            .with_each(each);
        CostTable::default()
            .with_work(work)
            .with_yield_ns(whole(c.yields))
            .with_atomic_ns(whole(c.atomic))
            .with_lock_ns(whole(c.lock))
            .with_park_ns(whole(c.park))
            .with_wake_ns(whole(c.wake))
            .with_kick_ns(whole(c.kick))
            .with_pause_ns(whole(c.pause))
            .with_wake_latency_ns(whole(c.wake_latency))
            .with_timer_set_ns(whole(c.timer_set))
            .with_timer_interrupt_ns(whole(c.timer_interrupt))
            .with_switch_ns(whole(c.switch))
            .with_one_scheduler(c.one_scheduler)
            .with_spin_ns(whole(c.spin))
            .with_fair_ns(whole(c.fair))
            .with_slice_ns(whole(c.slice))
            .with_preempt_ns(whole(c.preempt))
            .with_lines(lines)
    }

    /// The same with the costs of a group times `factor`.
    pub fn varied(&self, group: Group, factor: f64) -> Machine {
        let mut m = self.clone();
        let scaled: Vec<&mut f64> = match group {
            Group::Work => m.work.values_mut().flatten().collect(),
            Group::Lines => {
                let l = &mut m.lines;
                let all = [
                    &mut l.near,
                    &mut l.far,
                    &mut l.remote,
                    &mut l.shared,
                    &mut l.memory,
                ];
                all.into_iter().chain(m.payload.all_mut()).collect()
            }
            Group::Locks => {
                let c = &mut m.costs;
                vec![&mut c.atomic, &mut c.lock, &mut c.pause]
            }
            Group::Scheduling => m.costs.scheduling().into(),
        };
        for cost in scaled {
            *cost *= factor;
        }
        m
    }

    /// With its cores far from each other, or near.
    pub fn apart(&self, far: bool) -> Machine {
        let mut m = self.clone();
        m.lines.near_cores = u32::from(far);
        m
    }

    /// A plan's cell, on this machine: where stacks are kernels, a uniprocessor's has an application
    /// and NICs that interrupt it, in place of one thread that polls; and where that kernel wakes
    /// sleepers under its locks, organizations do that have such a variant.
    ///
    /// # Errors
    /// None, as far as is known.
    pub fn cell(&self, mut cell: Cell) -> Result<Cell, Error> {
        let of = &mut cell.configuration.organization;
        if self.preemptive && of.to_string() == "up" {
            *of = crate::backends::parse(KERNEL).map_err(Error::Input)?;
            cell.settings.threads = 1;
        }
        if self.wakes_inside
            && let Ok(inside) = crate::backends::parse(&format!("{of}:wake=inside"))
        {
            *of = inside;
        }
        Ok(cell)
    }

    /// Settings of a [cell](Machine::cell) on this machine.
    pub fn settings(&self, cell: &Cell) -> Settings {
        let mut settings = self.its(&cell.settings);
        if let Some(nics) = self.nics
            && (settings.nics > 1 || cell.configuration.threads == 1)
        {
            // It has as many as it has, whatever the plan's machine did; and one core has them all.
            settings.nics = nics;
        }
        self.instead
            .apply(&mut settings, cell.configuration.threads);
        settings
    }

    /// Such settings, where the machine and its system decide.
    pub(super) fn its(&self, settings: &Settings) -> Settings {
        let (interrupt_delay, interrupt_gap) = match self.interrupt_gap {
            Some(ns) => (Duration::ZERO, Duration::from_nanos(ns as u64)),
            None => (settings.interrupt_delay, settings.interrupt_gap),
        };
        let coalescing = match settings.coalescing {
            Coalescing::Cork => self.coalescing,
            asked_for => asked_for,
        };
        Settings {
            link_gbps: self.link_gbps.or(settings.link_gbps),
            locks: self.locks,
            preemptive: self.preemptive || settings.preemptive,
            bound: !self.one_run_queue,
            interrupt_delay,
            interrupt_gap,
            write_size: settings.write_size.min(self.write.unwrap_or(usize::MAX)),
            coalescing,
            snd_lowat: settings.snd_lowat.min(self.snd_lowat.unwrap_or(u32::MAX)),
            // All that happens on virtual cores is known without.
            profile: false,
            ..settings.clone()
        }
    }

    /// With some things in place of what plans say.
    pub fn with(&self, instead: Instead) -> Machine {
        let mut m = self.clone();
        if !instead.is_nothing() {
            m.name += &instead.suffix();
            m.title += &format!(", with {instead}");
            m.instead = instead;
        }
        m
    }

    /// With a peer that takes no time of its cores.
    pub fn peer_elsewhere(&self) -> Machine {
        let mut m = self.clone();
        m.work.remove(Work::Peer.name());
        m.work.remove(Work::PeerBytes.name());
        for t in PEER_LINES {
            m.each.remove(t.name());
        }
        m
    }
}

/// A number as tables have it, with three places.
pub(super) fn thousandths(v: f64) -> f64 {
    (v * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_that_ship_are_whole() {
        for name in names() {
            let m = Machine::find(name).unwrap();
            assert_eq!(m.name, name);
            assert!(
                !m.sources.is_empty(),
                "{name} says where its numbers come from"
            );
            let again = Machine::parse("again", &m.text().unwrap()).unwrap();
            assert_eq!(again, m);
            // What every organization does has a cost.
            for w in [
                Work::RxFrame,
                Work::TcpOutput,
                Work::SockCall,
                Work::HandOver,
                Work::Mail,
            ] {
                assert!(
                    m.table().work[w as usize] != Cost::default(),
                    "{name}: {}",
                    w.name()
                );
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = Machine::find("opteron-275").unwrap().text().unwrap();
        let wrong = |from: &str, to: &str, says: &str| {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good, "{from}");
            let error = Machine::parse("m.toml", &text).unwrap_err().to_string();
            assert!(
                error.starts_with("m.toml: ") && error.contains(says),
                "{error}"
            );
        };
        wrong("cores = 4", "cores = 0", "has cores");
        wrong("near = ", "near = -", "from 0");
        wrong("rx_frame = ", "rx_frames = ", "rx_frames");
        wrong("poller = ", "polar = ", "polar");
        wrong("title = ", "tilte = ", "tilte");
        let error = Machine::find("opteron").unwrap_err().to_string();
        assert!(error.contains("opteron-275"), "{error}");
    }

    #[test]
    fn groups_are_varied_apart() {
        let m = Machine::find("opteron-275").unwrap();
        for group in Group::ALL {
            let varied = m.varied(group, 1.5);
            assert_ne!(varied, m, "{group:?}");
            let back = varied.varied(group, 1.0 / 1.5);
            assert!((back.lines.memory - m.lines.memory).abs() < 1e-6);
            let others = Group::ALL.into_iter().filter(|g| *g != group);
            for other in others {
                assert_ne!(m.varied(other, 1.5), varied);
            }
        }
    }
}
