//! Backend: Perimeter's own organizations over the memory NIC with its ideal peer.
//!
//! A stack is built for each run. The application's threads, one [`crate::workload::Endpoint`]
//! each, open their connections to the ideal peer and then send to it, receive from it, or both.
//! The peer's work is done in the transmit doorbell and in polling, on the thread that does those,
//! and is timed apart by the device. Goodput is what the peer has acknowledged, and what the stack
//! has acknowledged to the peer.

mod endpoint;

use crate::{
    Error,
    content::Content,
    host,
    organizations::Organization,
    plan::Configuration,
    run::{Backend, Locks, Sample, Session, Times, Traits, Window},
    settings::{BUFFER, Device, Direction, Inbound, Settings},
    stats,
    workload::{Crew, Phase, Roles, Tally, Worker, drive, spread},
};
use endpoint::{Founder, Marks, StackEndpoint, Task};
use perimeter::{
    Config, Native, OrgSpec, Stack, TcpConfig,
    link::mem::{Nic, NicConfig, PeerConfig, PeerHandle, Source},
};
use std::{
    collections::HashMap,
    net::SocketAddrV4,
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

/// The peer compares one in this many segments with what it must be. Prime, so that it falls in
/// step with nothing.
const VERIFY_EVERY: u32 = 1021;
/// Bound on the memory that all sockets pin, bytes. Every connection's buffer refers to the same
/// file, but is charged as if it were alone.
const MEMORY: u64 = 64 << 30;

/// The backend of our organizations.
#[derive(Debug, Default)]
pub struct Perimeter {}

/// The organization of a configuration of this backend.
fn spec(configuration: &Configuration) -> Result<OrgSpec, Error> {
    match &configuration.organization {
        Organization::Ours(spec) => Ok(spec.clone()),
        Organization::Linux { .. } => Err(Error::Run("linux is not one of ours".into())),
    }
}

impl Backend for Perimeter {
    fn check(&mut self, settings: &Settings, _: &[Configuration]) -> Result<(), Error> {
        match settings.device {
            Device::Mem => Ok(()),
            Device::Tap => Err(Error::Unavailable(
                "--device tap: the benchmark runs over the memory NIC only in this build".into(),
            )),
        }
    }

    fn traits(&self, settings: &Settings, _: &Configuration) -> Traits {
        Traits {
            device: settings.device.to_string(),
            inbound: settings.inbound.to_string(),
            comparable: true,
            notes: Vec::new(),
        }
    }

    fn prepare(
        &mut self,
        settings: &Settings,
        configuration: &Configuration,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        let org = spec(configuration)?;
        let native = Native::default();
        let mut builder = Stack::builder()
            .on_native(native)
            .org(org.clone())
            .config(stack_config())
            .inbound(match settings.inbound {
                Inbound::Thread => perimeter::Inbound::Thread,
                Inbound::Nic | Inbound::Affine => perimeter::Inbound::Inline,
            });
        let mut peers = Vec::new();
        for nic in 0..settings.nics {
            let config = nic_config(settings, configuration, nic);
            let address = format!("{}/{}", config.host, config.prefix);
            let (nic, peer) = Nic::new(&native, config);
            builder = builder
                .interface(nic, &[&address])
                .map_err(|e| Error::Run(e.to_string()))?;
            peers.push(peer);
        }
        let mut founders = Vec::new();
        if org.single_threaded() {
            founders.push(Founder::Build(Box::new(builder)));
        } else {
            let stack = builder.build().map_err(|e| Error::Run(e.to_string()))?;
            founders.extend((0..configuration.threads).map(|_| Founder::Join(stack.clone())));
        }
        let marks = Marks::default();
        let crew = Crew::start(workers(
            settings,
            configuration,
            founders,
            &peers,
            &marks,
            deadline,
        ))?;
        let inbound_threads = match settings.inbound {
            Inbound::Thread if !org.single_threaded() => settings.nics,
            _ => 0,
        };
        Ok(Box::new(StackSession {
            crew,
            peers,
            marks,
            inbound_threads,
            direction: settings.direction,
        }))
    }
}

fn stack_config() -> Config {
    Config {
        tcp: TcpConfig {
            snd_buf: BUFFER as u32,
            rcv_buf: BUFFER as u32,
            // Full segments only, though the file is sent in pieces: the paper's TCP_CORK.
            cork: true,
            ..TcpConfig::default()
        },
        memory: MEMORY,
        ..Config::default()
    }
}

/// Queues of each NIC: one, or with affine steering one for each application thread.
fn queues(settings: &Settings, configuration: &Configuration) -> usize {
    match settings.inbound {
        Inbound::Affine => configuration.threads,
        Inbound::Nic | Inbound::Thread => 1,
    }
}

fn nic_config(settings: &Settings, configuration: &Configuration, nic: usize) -> NicConfig {
    let queues = queues(settings, configuration);
    NicConfig {
        rx_queues: queues,
        tx_queues: queues,
        gbps: settings.link_gbps,
        peer: PeerConfig {
            rtt_ns: settings.rtt.as_nanos() as u64,
            source: match settings.direction {
                Direction::Send => Source::Never,
                Direction::Receive | Direction::Both => Source::Always,
            },
            verify_every: VERIFY_EVERY,
            max_flows: configuration.connections as usize + 64,
            ..PeerConfig::default()
        },
        ..NicConfig::new(nic)
    }
}

/// One worker for each application thread.
fn workers(
    settings: &Settings,
    configuration: &Configuration,
    founders: Vec<Founder>,
    peers: &[PeerHandle<Native>],
    marks: &Marks,
    deadline: Option<Instant>,
) -> Vec<(String, Worker)> {
    let threads = configuration.threads;
    let queues = queues(settings, configuration);
    let roles = Roles {
        source: settings.direction != Direction::Receive,
        sink: settings.direction != Direction::Send,
        write_size: settings.write_size,
    };
    let mut nics = vec![Vec::new(); threads];
    for place in spread(configuration.connections as usize, threads, settings.nics) {
        nics[place.thread].push(place.nic);
    }
    let established = Arc::new(AtomicUsize::new(0));
    let content = Content::pattern();
    let mut list = Vec::new();
    for (thread, (founder, nics)) in founders.into_iter().zip(nics).enumerate() {
        let serve = match settings.inbound {
            Inbound::Thread if threads > 1 || !configuration.organization.single_threaded() => {
                Vec::new()
            }
            Inbound::Affine => (0..settings.nics)
                .map(|nic| (nic * queues + thread) as u16)
                .collect(),
            Inbound::Nic | Inbound::Thread => (0..settings.nics)
                .filter(|nic| nic % threads == thread)
                .map(|nic| nic as u16)
                .collect(),
        };
        let task = Task {
            thread,
            threads,
            nics,
            hosts: peers.iter().map(|p| p.config().host).collect(),
            steered: settings.inbound == Inbound::Affine && threads > 1,
            serve,
            roles,
            all: configuration.connections as usize,
            established: established.clone(),
            marks: (thread == 0).then(|| marks.clone()),
            deadline,
        };
        let content = content.clone();
        let worker: Worker = Box::new(move |control, set| {
            host::pin(thread);
            let mut endpoint = StackEndpoint::establish(founder, task, &content, control)?;
            set();
            drive(&mut endpoint, roles, &content, control)
        });
        list.push((format!("app-{thread}"), worker));
    }
    list
}

struct StackSession {
    crew: Crew,
    peers: Vec<PeerHandle<Native>>,
    marks: Marks,
    inbound_threads: usize,
    direction: Direction,
}

/// Bytes that each connection has moved, as the peers know.
type Moved = HashMap<(SocketAddrV4, SocketAddrV4), u64>;

impl StackSession {
    fn moved(&self) -> (Moved, Instant) {
        let mut moved = Moved::new();
        for flow in self.peers.iter().flat_map(PeerHandle::flows) {
            let bytes = match self.direction {
                Direction::Send => flow.acked,
                Direction::Receive => flow.delivered,
                Direction::Both => flow.acked + flow.delivered,
            };
            moved.insert((flow.host, flow.peer), bytes);
        }
        (moved, Instant::now())
    }

    fn verify(&self) -> Result<u64, Error> {
        let mut verified = 0;
        for peer in &self.peers {
            let counts = peer.counts();
            if counts.verify_errors > 0 || counts.bad_checksum > 0 || counts.malformed > 0 {
                return Err(Error::Run(format!(
                    "the peer saw {} wrong segments, {} wrong checksums, {} malformed frames",
                    counts.verify_errors, counts.bad_checksum, counts.malformed
                )));
            }
            verified += counts.verified;
        }
        Ok(verified)
    }
}

impl Session for StackSession {
    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.crew.run(Phase::Warm, time)
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let window = Window::open();
        let (before, begun) = self.moved();
        self.crew.run(Phase::Measure, time)?;
        let (after, ended) = self.moved();
        let (machine, elapsed) = window.close();
        let verified = self.verify()?;
        let StackSession {
            crew,
            marks,
            inbound_threads,
            ..
        } = *self;
        let tallies = crew.finish()?;
        let mut by_connection: Vec<u64> = after
            .iter()
            .map(|(key, bytes)| bytes - before.get(key).copied().unwrap_or(0).min(*bytes))
            .collect();
        let bytes: u64 = by_connection.iter().sum();
        let (connection_min, connection_median) = stats::least_and_median(&mut by_connection);
        let counted = marks.counted()?;
        let cpu = machine.process_cpu_ns;
        let times = times(&tallies, &counted, inbound_threads, cpu);
        let checked: u64 = tallies.iter().map(|t| t.verified).sum();
        Ok(Sample {
            elapsed,
            goodput: bytes as f64 / (ended - begun).as_secs_f64(),
            segments: Sample::segments_in(bytes),
            times,
            cpu_ns: machine.cpu_ns(),
            locks: counted.locks,
            retransmits: counted.retransmits,
            context_switches: machine.voluntary + machine.involuntary,
            involuntary_switches: machine.involuntary,
            connection_min,
            connection_median,
            verified_bytes: checked + verified * crate::settings::SEGMENT,
            valid: times.valid() && bytes > 0,
            disturbances: machine.disturbances(elapsed.as_nanos() as u64),
        })
    }
}

/// Divides the time of application and inbound threads. What is neither the application's nor the
/// peer's, neither parked nor waiting for a lock, is the stack's.
fn times(tallies: &[Tally], counted: &Counted, inbound_threads: usize, cpu: u64) -> Times {
    let mut times = Times {
        cpu,
        peer: Some(counted.peer_ns),
        spin: counted.locks.iter().map(|l| l.wait_ns).sum(),
        idle: counted.idle_ns,
        ..Times::default()
    };
    for t in tallies {
        times.elapsed += t.elapsed_ns;
        times.app += t.app_ns;
    }
    let longest = tallies.iter().map(|t| t.elapsed_ns).max().unwrap_or(0);
    times.elapsed += inbound_threads as u64 * longest;
    let known = times.app + counted.peer_ns + times.spin + times.idle;
    times.stack = Some(times.elapsed.saturating_sub(known));
    times
}

/// What the stack counted between the marks at the beginning and the end of the measurement.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted {
    peer_ns: u64,
    idle_ns: u64,
    retransmits: u64,
    locks: Vec<Locks>,
}

impl Marks {
    /// The difference of the last two marks.
    fn counted(&self) -> Result<Counted, Error> {
        let marks = self.take();
        let [.., start, end] = marks.as_slice() else {
            return Err(Error::Run("the stack's counters were not read".into()));
        };
        let count = |name| end.count(name).saturating_sub(start.count(name));
        let locks = end.locks.iter().map(|(class, e)| {
            let s = start.locks.get(class).copied().unwrap_or_default();
            Locks {
                class: (*class).into(),
                acquisitions: e.acquisitions - s.acquisitions,
                contended: e.contended - s.contended,
                wait_ns: e.wait_ns - s.wait_ns,
                hold_ns: e.hold_ns.saturating_sub(s.hold_ns),
            }
        });
        Ok(Counted {
            peer_ns: end.peer_ns - start.peer_ns,
            idle_ns: count("idle_ns"),
            retransmits: count("retransmits"),
            locks: locks.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(org: &str, change: impl FnOnce(&mut Settings)) -> Sample {
        let mut settings = Settings {
            organizations: vec![Organization::parse(org).unwrap()],
            connections: vec![6],
            threads: 2,
            nics: 2,
            ..Settings::default()
        };
        change(&mut settings);
        let configuration = &crate::plan::grid(&settings)[0];
        let mut backend = Perimeter::default();
        backend
            .check(&settings, std::slice::from_ref(configuration))
            .unwrap();
        let deadline = Some(Instant::now() + Duration::from_secs(20));
        let mut session = backend
            .prepare(&settings, configuration, deadline)
            .unwrap_or_else(|e| panic!("{org}: {e}"));
        session.warm_up(Duration::from_millis(50)).unwrap();
        session.measure(Duration::from_millis(200)).unwrap()
    }

    #[test]
    fn every_organization_in_every_direction() {
        for org in ["up", "up:shared", "connp-l:8"] {
            for direction in [Direction::Send, Direction::Receive, Direction::Both] {
                let sample = measure(org, |s| s.direction = direction);
                let what = format!("{org} {direction}: {sample:?}");
                assert!(sample.goodput > 1e6, "{what}");
                assert!(sample.connection_min > 0, "{what}");
                assert!(sample.verified_bytes > 0, "{what}");
                assert!(sample.times.stack.is_some(), "{what}");
                assert!(sample.times.peer.unwrap() > 0, "{what}");
                if org.starts_with("connp-l") {
                    assert!(sample.locks.iter().any(|l| l.class == "group"), "{what}");
                }
            }
        }
    }

    #[test]
    fn every_inbound_mode_moves_many_connections() {
        for inbound in [Inbound::Nic, Inbound::Thread, Inbound::Affine] {
            let sample = measure("connp-l:16", |s| {
                s.inbound = inbound;
                s.connections = vec![300];
            });
            assert!(sample.connection_min > 0, "{inbound}: {sample:?}");
        }
    }

    #[test]
    fn pacing_bounds_goodput() {
        let sample = measure("up", |s| {
            s.link_gbps = Some(0.5);
            s.nics = 1;
        });
        assert!(sample.goodput * 8.0 < 0.55e9, "{sample:?}");
        assert!(sample.goodput * 8.0 > 0.25e9, "{sample:?}");
    }
}
