//! The report as JSON: every setting, the machine, and for each configuration the medians with
//! their spread and the raw samples.

use crate::{
    host::Host,
    organizations::Organization,
    session::Traits,
    stats::{Spread, median},
    workload::{
        BUFFER, Coalescing, Configuration, Device, Direction, Exchange, Family, Inbound, LockTimes,
        Locks, PathTime, Raw, Sample, Settings, datagrams,
    },
};
use perimeter::Offload;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

/// Version of the JSON layout. Fields may be added without a new one.
pub const SCHEMA: &str = "perimeter-bench/1";

/// Which build made a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Version of the program.
    pub version: String,
    /// Source commit, with `+` if the tree was altered; unknown outside a checkout.
    pub commit: Option<String>,
    /// Whether it was built without optimisation, in which case its figures mean little.
    pub debug: bool,
}

/// A whole benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Program version.
    pub version: String,
    /// Source commit, if known.
    pub commit: Option<String>,
    /// Whether the program was built without optimisation.
    pub debug_build: bool,
    /// Start, in seconds since 1970 UTC.
    pub started_unix: u64,
    /// The machine.
    pub host: Host,
    /// What was asked for.
    pub settings: Asked,
    /// One entry for each configuration that ran.
    pub runs: Vec<Row>,
    /// Configurations that could not be prepared in time, and why; missing where all could.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
    /// Remarks on the whole.
    pub notes: Vec<String>,
}

/// The settings in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // The names are those of `Settings`, where they are described.
pub struct Asked {
    pub organizations: Vec<String>,
    pub connections: Vec<u32>,
    pub device: Device,
    /// Missing, for IPv4, in reports from before there was a choice.
    #[serde(default)]
    pub family: Family,
    pub direction: Direction,
    pub inbound: Inbound,
    pub rtt_ns: u64,
    pub threads: usize,
    pub nics: usize,
    /// Address of the other end, where that is another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<String>,
    pub link_gbps: Option<f64>,
    pub write_size: usize,
    /// Missing, as the two below, in reports from before there was a choice.
    #[serde(default)]
    pub read_size: usize,
    #[serde(default)]
    pub coalescing: Coalescing,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Exchange>,
    /// Octets in a datagram, where there are datagrams in place of connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<usize>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reconnect: bool,
    #[serde(default)]
    pub locks: String,
    /// Missing where nobody cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<String>,
    /// Missing where a burst's segments are acknowledged at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_stretch_acks: bool,
    /// Missing where frames were run by who polled them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub steering: bool,
    /// The longest that threads looked around before they slept, ns; missing where they slept at
    /// once.
    #[serde(default, skip_serializing_if = "crate::workload::sample::is_zero")]
    pub look_around_ns: u64,
    /// Bytes that an inbound thread took in a row; missing where all that came.
    #[serde(default, skip_serializing_if = "crate::workload::sample::is_zero")]
    pub budget_bytes: u64,
    /// How long after the first frame a NIC interrupted, ns; missing where at once.
    #[serde(default, skip_serializing_if = "crate::workload::sample::is_zero")]
    pub interrupt_delay_ns: u64,
    /// The shortest time between two interrupts of a NIC, ns; missing where there was none.
    #[serde(default, skip_serializing_if = "crate::workload::sample::is_zero")]
    pub interrupt_gap_ns: u64,
    /// How much of a send buffer was free before a writer who found no room was told, bytes; missing
    /// where that was a third.
    #[serde(default, skip_serializing_if = "crate::workload::sample::is_zero")]
    pub snd_lowat: u64,
    /// Missing where every frame is copied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hand_on: bool,
    /// Missing where what applications receive is copied to them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_place: bool,
    /// Missing where devices were told of each call's output.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub batch: bool,
    #[serde(default)]
    pub profile: bool,
    pub seconds: f64,
    pub repeat: u32,
    pub quick: bool,
    pub buffer_bytes: usize,
    pub mtu: u32,
    pub segment_bytes: u64,
}

/// One configuration. Times per segment are CPU ns per [`Asked::segment_bytes`] of payload; single numbers
/// are medians over the repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Organization.
    pub org: String,
    /// What carried the frames.
    pub device: String,
    /// Inbound mode.
    pub inbound: String,
    /// Direction of the file.
    pub direction: Direction,
    /// Established connections.
    pub connections: u32,
    /// Application threads.
    pub threads: usize,
    /// NICs.
    pub nics: usize,
    /// Payload, Mb/s.
    pub goodput_mbps: Spread,
    /// Stack; null where it can't be told from the peer.
    pub stack_ns_per_segment: Option<Spread>,
    /// Ideal peer; null where it can't be told from the stack.
    pub peer_ns_per_segment: Option<f64>,
    /// The application's event loop.
    pub app_ns_per_segment: Option<f64>,
    /// Parked.
    pub idle_ns_per_segment: Option<f64>,
    /// Spinning or polling without result.
    pub spin_ns_per_segment: Option<f64>,
    /// CPU of the whole machine.
    pub cpu_ns_per_segment: Option<f64>,
    /// Payload, Mb per second of that. Missing in reports from before it was there.
    #[serde(default)]
    pub goodput_mb_per_cpu_second: Option<Spread>,
    /// Whether the accounting of every repeat holds.
    pub valid: bool,
    /// Whether the row may be compared with the others.
    pub comparable: bool,
    /// Round trips, or connections from opening to close, or datagrams received, a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds_per_second: Option<Spread>,
    /// Share of the datagrams sent that nobody received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<f64>,
    /// Whether it is ranked by what it moved: the floor is not, nor are those that do the other
    /// end's work as well where the rest have a simulated peer.
    #[serde(default)]
    pub ranked: bool,
    /// Lock counters by class, median of each over the repeats.
    pub locks: Vec<Locks>,
    /// What hand-overs took, median of each over the repeats; empty where they were not timed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathTime>,
    /// Retransmitted segments, median.
    pub retransmits: u64,
    /// Context switches of the process, median.
    pub context_switches: u64,
    /// The involuntary ones of those, median.
    pub involuntary_context_switches: u64,
    /// Bytes of the least-served connection, as a share of the median connection's; least of the
    /// repeats. Null where connections are not told apart.
    pub least_served: Option<f64>,
    /// Received bytes compared with their expected content, all repeats.
    pub verified_bytes: u64,
    /// Every repeat.
    pub samples: Vec<Raw>,
    /// Remarks on this row.
    pub notes: Vec<String>,
}

impl Report {
    /// Puts a report together.
    pub fn new(
        settings: &Settings,
        build: Build,
        host: Host,
        started: SystemTime,
        runs: Vec<Row>,
        mut notes: Vec<String>,
    ) -> Report {
        if build.debug {
            notes.push("built without optimisation: the figures mean little".into());
        }
        if settings.family.is_ipv6() {
            notes.push("all connections are over IPv6".into());
        }
        Report {
            schema: SCHEMA.into(),
            version: build.version,
            commit: build.commit,
            debug_build: build.debug,
            started_unix: started
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            host,
            settings: Asked::from(settings),
            runs,
            failed: Vec::new(),
            notes,
        }
    }

    /// The report as indented JSON with a final newline.
    pub fn to_json(&self) -> String {
        // Strings, finite numbers and lists only: there is nothing that could fail to serialize.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

impl From<&Settings> for Asked {
    fn from(s: &Settings) -> Asked {
        Asked {
            organizations: s.organizations.iter().map(|o| o.to_string()).collect(),
            connections: s.connections.clone(),
            device: s.device,
            family: s.family,
            direction: s.direction,
            inbound: s.inbound,
            rtt_ns: s.rtt().as_nanos() as u64,
            threads: s.threads,
            nics: s.nics,
            connect: s.connect.as_ref().map(ToString::to_string),
            link_gbps: s.link_gbps,
            write_size: s.write_size,
            read_size: s.read_size,
            coalescing: s.coalescing,
            exchange: s.exchange,
            udp: s.udp,
            reconnect: s.reconnect,
            locks: s.locks.to_string(),
            offload: (s.offload != Offload::Off).then(|| s.offload.to_string()),
            no_stretch_acks: !s.stretch_acks,
            steering: s.steering,
            look_around_ns: s.look_around.as_nanos() as u64,
            budget_bytes: s.budget as u64,
            interrupt_delay_ns: s.interrupt_delay.as_nanos() as u64,
            interrupt_gap_ns: s.interrupt_gap.as_nanos() as u64,
            snd_lowat: match s.snd_lowat {
                u32::MAX => 0,
                some => some.into(),
            },
            hand_on: s.hand_on,
            in_place: s.in_place,
            batch: s.batch,
            profile: s.profile,
            seconds: s.seconds.as_secs_f64(),
            repeat: s.repeat,
            quick: s.quick,
            buffer_bytes: s.buffer,
            mtu: s.mtu,
            segment_bytes: datagrams::unit(s),
        }
    }
}

/// One row from the samples (at least one) of a configuration.
pub fn row(settings: &Settings, c: &Configuration, traits: &Traits, samples: &[Sample]) -> Row {
    let spread = |f: &dyn Fn(&Sample) -> Option<f64>| {
        let values: Option<Vec<f64>> = samples.iter().map(f).collect();
        Spread::of(&values?)
    };
    let per_segment = |s: &Sample, ns: u64| (s.segments > 0.0).then(|| ns as f64 / s.segments);
    let of =
        |f: &dyn Fn(&Sample) -> u64| spread(&|s| per_segment(s, f(s))).map(|spread| spread.median);
    let count = |f: &dyn Fn(&Sample) -> u64| {
        median(&samples.iter().map(|s| f(s) as f64).collect::<Vec<_>>()).unwrap_or(0.0) as u64
    };
    let goodput = spread(&|s| Some(s.goodput * 8.0 / 1e6)).unwrap_or(Spread {
        median: 0.0,
        min: 0.0,
        max: 0.0,
    });
    let mut notes = traits.notes.clone();
    // Without connections, or without bytes, there is none to be served less than others.
    let bare = settings.reconnect && settings.exchange.is_none();
    let served = c.organization != Organization::Null && !bare;
    notes.extend(remarks(samples, served));
    Row {
        org: c.organization.to_string(),
        device: traits.device.clone(),
        inbound: traits.inbound.clone(),
        direction: settings.direction,
        connections: c.connections,
        threads: c.threads,
        nics: settings.nics,
        goodput_mbps: goodput,
        stack_ns_per_segment: spread(&|s| per_segment(s, s.times.stack?)),
        peer_ns_per_segment: spread(&|s| per_segment(s, s.times.peer?)).map(|s| s.median),
        app_ns_per_segment: of(&|s| s.times.app),
        idle_ns_per_segment: of(&|s| s.times.idle),
        spin_ns_per_segment: of(&|s| s.times.spin),
        cpu_ns_per_segment: of(&|s| s.cpu_ns),
        goodput_mb_per_cpu_second: spread(&|s| {
            let megabits = s.segments * datagrams::unit(settings) as f64 * 8.0 / 1e6;
            (s.cpu_ns > 0).then(|| megabits * 1e9 / s.cpu_ns as f64)
        }),
        valid: samples.iter().all(|s| s.valid),
        comparable: traits.comparable,
        rounds_per_second: spread(&|s| {
            (s.rounds > 0).then(|| s.rounds as f64 / s.elapsed.as_secs_f64())
        }),
        lost: spread(&|s| s.lost).map(|s| s.median),
        ranked: traits.comparable && is_ranked(settings, &c.organization),
        locks: median_locks(samples),
        paths: median_paths(samples),
        retransmits: count(&|s| s.retransmits),
        context_switches: count(&|s| s.context_switches),
        involuntary_context_switches: count(&|s| s.involuntary_switches),
        least_served: served.then(|| samples.iter().map(least_served).fold(1.0, f64::min)),
        verified_bytes: samples.iter().map(|s| s.verified_bytes).sum(),
        samples: samples.iter().map(Raw::from).collect(),
        notes,
    }
}

/// Whether organizations of that kind do the same work as ours in the same time.
fn is_ranked(settings: &Settings, organization: &Organization) -> bool {
    match organization {
        Organization::Ours(_) => true,
        Organization::Null | Organization::NullTcp => false,
        Organization::Linux { .. } | Organization::Other(_) => {
            settings.connect.is_some() || settings.device != Device::Mem
        }
    }
}

/// Share of the median connection's bytes that the least-served one got.
fn least_served(s: &Sample) -> f64 {
    if s.connection_median == 0 {
        return 0.0;
    }
    (s.connection_min as f64 / s.connection_median as f64).min(1.0)
}

/// What a reader has to know about these samples.
fn remarks(samples: &[Sample], connections: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let of = samples.len();
    let invalid = samples.iter().filter(|s| !s.valid).count();
    if invalid > 0 {
        notes.push(format!(
            "{invalid} of {of} repeats are invalid: thread time and its measured parts differ by over 5 %"
        ));
    }
    let starved = samples
        .iter()
        .filter(|s| connections && least_served(s) < 0.1)
        .count();
    // Connections move in turns of up to a buffer, so a shorter window says nothing.
    let short = |s: &Sample| s.connection_median < 2 * BUFFER as u64;
    if starved > 0 && samples.iter().all(short) {
        notes.push("too short to tell whether every connection is served".into());
    } else if starved > 0 {
        notes.push(format!(
            "in {starved} of {of} repeats the least-served connection got under a tenth of the median's bytes"
        ));
    }
    notes
}

impl Row {
    /// What disturbed its runs, if anything did.
    pub fn noise(&self) -> Option<String> {
        let mut seen: Vec<&String> = Vec::new();
        for d in self.samples.iter().flat_map(|s| &s.disturbances) {
            if !seen.contains(&d) {
                seen.push(d);
            }
        }
        let more = match seen.len() {
            0 | 1 => String::new(),
            2 => ", 1 more warning (see --json)".into(),
            n => format!(", {} more warnings (see --json)", n - 1),
        };
        Some(format!("noisy run: {}{more}", seen.first()?))
    }
}

/// Median of each lock counter over the repeats, by class.
fn median_locks(samples: &[Sample]) -> Vec<Locks> {
    let mut classes: BTreeMap<&str, Vec<&Locks>> = BTreeMap::new();
    for lock in samples.iter().flat_map(|s| &s.locks) {
        classes.entry(&lock.class).or_default().push(lock);
    }
    classes
        .into_iter()
        .map(|(class, locks)| {
            let of = |f: &dyn Fn(&Locks) -> u64| {
                let values: Vec<f64> = locks.iter().map(|l| f(l) as f64).collect();
                median(&values).unwrap_or(0.0) as u64
            };
            Locks {
                class: class.into(),
                acquisitions: of(&|l| l.acquisitions),
                contended: of(&|l| l.contended),
                wait_ns: of(&|l| l.wait_ns),
                hold_ns: of(&|l| l.hold_ns),
                times: all_times(&locks),
            }
        })
        .collect()
}

/// Median of what each path took over the repeats.
fn median_paths(samples: &[Sample]) -> Vec<PathTime> {
    let first = samples.first().into_iter().flat_map(|s| &s.paths);
    let one = |p: &PathTime| {
        let same = |q: &&PathTime| q.path == p.path;
        let of = |f: &dyn Fn(&PathTime) -> u64| {
            let all = samples.iter().filter_map(|s| s.paths.iter().find(same));
            median(&all.map(|q| f(q) as f64).collect::<Vec<_>>()).unwrap_or(0.0) as u64
        };
        PathTime {
            path: p.path.clone(),
            count: of(&|q| q.count),
            ns: of(&|q| q.ns),
        }
    };
    first.map(one).collect()
}

/// The times of all repeats together.
fn all_times(locks: &[&Locks]) -> Option<LockTimes> {
    let mut timed = locks.iter().filter_map(|l| l.times.as_ref());
    let mut sum = timed.next()?.clone();
    timed.for_each(|t| sum.add(t));
    Some(sum)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::workload::Times;
    use std::time::Duration;

    pub(crate) fn sample(goodput: f64, stack: Option<u64>, contended: u64) -> Sample {
        Sample {
            elapsed: Duration::from_secs(1),
            goodput,
            segments: goodput / crate::workload::SEGMENT as f64,
            times: Times {
                elapsed: 2_000_000_000,
                cpu: 1_900_000_000,
                preempted: 0,
                app: 100_000_000,
                stack,
                peer: stack.map(|_| 100_000_000),
                spin: 0,
                idle: 100_000_000,
            },
            cpu_ns: 1_900_000_000,
            locks: vec![Locks {
                class: "group".into(),
                acquisitions: 100,
                contended,
                wait_ns: 5,
                hold_ns: 6,
                times: None,
            }],
            retransmits: 3,
            context_switches: 10,
            involuntary_switches: 4,
            connection_min: 1_000_000,
            connection_median: 20_000_000,
            verified_bytes: 1000,
            valid: stack.is_some(),
            disturbances: vec!["noise".into()],
            ..Sample::default()
        }
    }

    /// A report with a row for each organization, of so many threads and these runs.
    pub(crate) fn report(rows: &[(&str, usize, Vec<Sample>)]) -> Report {
        let settings = Settings::default();
        let traits = Traits {
            device: "mem".into(),
            inbound: "nic".into(),
            comparable: true,
            notes: vec!["a remark".into()],
        };
        let row = |(name, threads, samples): &(&str, usize, Vec<Sample>)| {
            let configuration = Configuration {
                organization: crate::backends::parse(name).unwrap(),
                connections: 6,
                threads: *threads,
            };
            row(&settings, &configuration, &traits, samples)
        };
        let build = Build {
            version: "0.0.0".into(),
            commit: None,
            debug: false,
        };
        let rows = rows.iter().map(row).collect();
        let now = SystemTime::now();
        Report::new(&settings, build, Host::read(), now, rows, Vec::new())
    }

    /// A report with one row of our own and one of the host's kernel.
    pub(crate) fn example() -> Report {
        let ours = vec![
            sample(144_800_000.0, Some(1_000_000), 1),
            sample(289_600_000.0, Some(4_000_000), 9),
            sample(144_800_000.0, Some(3_000_000), 3),
        ];
        let linux = vec![sample(144_800_000.0, None, 0)];
        report(&[("connp-l:128", 2, ours), ("linux", 2, linux)])
    }

    #[test]
    fn medians_per_segment() {
        let report = example();
        let row = &report.runs[0];
        assert_eq!(row.goodput_mbps.median, 1158.4);
        assert_eq!(row.goodput_mbps.max, 2316.8);
        // 10, 20 and 30 ns a segment.
        let stack = row.stack_ns_per_segment.unwrap();
        assert_eq!((stack.min, stack.median, stack.max), (10.0, 20.0, 30.0));
        assert_eq!(row.peer_ns_per_segment, Some(1000.0));
        // 1158.4 Mb in 1.9 s of processor time.
        let per_cpu = row.goodput_mb_per_cpu_second.unwrap();
        assert!((per_cpu.median - 609.7).abs() < 0.1, "{per_cpu:?}");
        assert_eq!(row.locks[0].contended, 3);
        assert!(row.valid);
        assert!(row.notes.iter().any(|n| n.contains("least-served")));
        assert_eq!(row.noise().unwrap(), "noisy run: noise");
        assert!(row.ranked && !report.runs[1].ranked);
        let linux = &report.runs[1];
        assert_eq!(linux.stack_ns_per_segment, None);
        assert_eq!(linux.peer_ns_per_segment, None);
        assert!(!linux.valid);
    }

    #[test]
    fn json_has_the_promised_keys_and_round_trips() {
        let report = example();
        let text = report.to_json();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for run in value["runs"].as_array().unwrap() {
            let run = run.as_object().unwrap();
            for key in [
                "org",
                "device",
                "inbound",
                "connections",
                "threads",
                "goodput_mbps",
                "stack_ns_per_segment",
                "peer_ns_per_segment",
                "app_ns_per_segment",
                "idle_ns_per_segment",
                "cpu_ns_per_segment",
                "goodput_mb_per_cpu_second",
                "valid",
                "locks",
                "retransmits",
                "context_switches",
            ] {
                assert!(run.contains_key(key), "{key} is missing");
            }
            for key in ["median", "min", "max"] {
                assert!(run["goodput_mbps"][key].is_f64(), "{key}");
            }
            for key in ["class", "acquisitions", "contended", "wait_ns", "hold_ns"] {
                assert!(!run["locks"][0][key].is_null(), "{key}");
            }
        }
        assert!(value["runs"][0]["stack_ns_per_segment"]["median"].is_f64());
        assert!(value["runs"][1]["stack_ns_per_segment"].is_null());
        for key in ["schema", "version", "commit", "host", "settings", "notes"] {
            assert!(value.as_object().unwrap().contains_key(key), "{key}");
        }
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
