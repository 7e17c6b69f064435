//! The benchmark over the memory NIC, whose ideal peer is the other end of all connections.

use super::{
    end::{End, builder, founders, queues, seen, with_control, workers},
    endpoint::Far,
    times::{Marks, divide},
};
use crate::{
    Error, linux,
    live::{self, Seen, Watch},
    session::{Session, Window, Workers},
    stats,
    workload::{
        self, Coalescing, Configuration, Content, Direction, Phase, SEGMENT, Sample, Settings,
        Tally, datagrams, payload, sample::disturbances_on, settings::LESS_OVER_IPV6,
    },
};
use perimeter::{
    Native, Offload, OrgSpec,
    link::mem::{Answers, DatagramConfig, Nic, NicConfig, PeerConfig, PeerHandle, Source},
};
use perimeter_sync::Platform;
use std::{
    collections::HashMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

/// The peer compares one in this many segments with what it must be. Prime, so that it falls in
/// step with nothing.
const VERIFY_EVERY: u32 = 1021;
/// The port of the ideal peer that datagrams go to and come from.
pub(super) const DATAGRAMS_TO: u16 = 5001;

/// Establishes the connections of one run.
///
/// # Errors
/// What went wrong; nothing is left behind.
pub(super) fn prepare(
    org: OrgSpec,
    settings: &Settings,
    configuration: &Configuration,
    deadline: Option<Instant>,
) -> Result<Box<dyn Session>, Error> {
    Ok(Box::new(session(org, settings, configuration, deadline)?))
}

fn session(
    org: OrgSpec,
    settings: &Settings,
    configuration: &Configuration,
    deadline: Option<Instant>,
) -> Result<MemSession, Error> {
    let native = Native::default();
    let builder = with_control(builder(&org, settings, native), settings);
    let (builder, peers) = with_nics(&native, builder, settings, configuration)?;
    let content = Content::pattern();
    let end = ideal(&org, builder, &peers, settings, configuration, content)?;
    let marks = end.marks.clone();
    let workers = Workers::start(workers(settings, configuration, end, deadline))?;
    Ok(MemSession {
        workers,
        peers,
        marks,
        threads: configuration.threads,
        direction: match settings.exchange {
            Some(_) => Direction::Both,
            None => settings.direction,
        },
        connections: configuration.connections as usize,
        grown: settings.grown(),
    })
}

/// The builder with the memory NICs of a run, and what is behind those.
pub(super) fn with_nics<P: Platform>(
    platform: &P,
    mut builder: perimeter::Builder,
    settings: &Settings,
    configuration: &Configuration,
) -> Result<(perimeter::Builder, Vec<PeerHandle<P>>), Error> {
    let mut peers = Vec::new();
    for nic in 0..settings.nics {
        let config = nic_config(settings, configuration, nic);
        let address = format!("{}/{}", config.address(), config.prefix_len());
        let (nic, peer) = Nic::new(platform, config);
        builder = builder
            .interface(nic, &[&address])
            .map_err(|e| Error::Run(e.to_string()))?;
        peers.push(peer);
    }
    Ok((builder, peers))
}

/// An end whose connections lead to the ideal peer.
pub(super) fn ideal<P: Platform>(
    org: &OrgSpec,
    builder: perimeter::Builder,
    peers: &[PeerHandle<P>],
    settings: &Settings,
    configuration: &Configuration,
    content: Content,
) -> Result<End, Error> {
    let founders = founders(org, builder, configuration)?;
    let fars = (0..configuration.threads).map(|_| Far::Ideal).collect();
    let hosts = peers.iter().map(|p| p.config().address()).collect();
    Ok(End::near(
        settings,
        configuration,
        founders,
        fars,
        hosts,
        content,
    ))
}

/// Frames that a NIC with a rate fetches by itself, as the study's did.
const DESCRIPTORS: usize = 256;

/// What is behind one NIC.
pub(super) fn nic_config(
    settings: &Settings,
    configuration: &Configuration,
    nic: usize,
) -> NicConfig {
    let queues = queues(settings, configuration);
    NicConfig::new(nic)
        .with_rx_queues(queues)
        .with_tx_queues(queues)
        .with_gbps(settings.link_gbps)
        .with_descriptors(DESCRIPTORS)
        .with_merges(settings.offload == Offload::Device)
        .with_mtu(settings.mtu)
        .with_interrupt_delay_ns(settings.interrupt_delay.as_nanos() as u64)
        .with_interrupt_gap_ns(settings.interrupt_gap.as_nanos() as u64)
        .with_v6(settings.family.is_ipv6())
        .with_peer(
            PeerConfig::default()
                .with_rtt_ns(settings.rtt().as_nanos() as u64)
                .with_source_segment(match settings.coalescing {
                    Coalescing::NoDelay => settings.write_size.min(u32::MAX as usize) as u32,
                    Coalescing::Cork | Coalescing::Nagle => u32::MAX,
                })
                .with_answers(settings.exchange.map(|e| Answers {
                    request: e.request as u32,
                    response: e.response as u32,
                }))
                .with_source(match settings.direction {
                    Direction::Send => Source::Never,
                    Direction::Receive | Direction::Both => Source::Always,
                })
                .with_verify_every(VERIFY_EVERY)
                .with_max_flows(configuration.connections as usize + 64)
                .with_datagrams(
                    settings
                        .udp
                        .map(|size| datagrams_at(nic, size, settings, configuration)),
                ),
        )
}

/// What the ideal peer behind a NIC does with datagrams of `size` bytes.
fn datagrams_at(
    nic: usize,
    size: usize,
    settings: &Settings,
    configuration: &Configuration,
) -> DatagramConfig {
    let pairs = datagrams::pairs(settings, configuration);
    let here = pairs.iter().flatten().filter(|p| p.nic == nic);
    DatagramConfig::new(size, DATAGRAMS_TO, here.map(|p| p.port).collect())
        .with_sends(linux::roles(settings).1.source)
}

/// A prepared run.
struct MemSession {
    workers: Workers,
    peers: Vec<PeerHandle<Native>>,
    marks: Marks,
    threads: usize,
    direction: Direction,
    connections: usize,
    /// [`Settings::grown`].
    grown: u64,
}

/// Bytes that each connection has moved, as the peers know.
type Moved = HashMap<(SocketAddr, SocketAddr), u64>;

impl MemSession {
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

    /// Bytes that the peers have compared with what they had to be.
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
            let less = if peer.config().v6 { LESS_OVER_IPV6 } else { 0 };
            verified += counts.verified * (payload(peer.config().mtu) - less);
        }
        Ok(verified)
    }
}

impl Session for MemSession {
    fn watch(&mut self, watch: Watch) {
        let marks = self.marks.clone();
        let view = move |told: &[Option<Tally>]| Seen {
            goodput: live::rate(told, |t| t.sent.iter().chain(&t.received).sum()),
            ..seen(told, marks.seen())
        };
        self.workers.watch(watch, Box::new(view));
    }

    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.workers.run(Phase::Warm, time)
    }

    fn has_grown(&mut self) -> Result<bool, Error> {
        if self.grown == 0 {
            return Ok(true);
        }
        let moved = self.moved().0;
        let all = moved.len() >= self.connections;
        Ok(all && moved.values().all(|&bytes| bytes >= self.grown))
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let window = Window::open();
        let (before, begun) = self.moved();
        self.workers.run(Phase::Measure, time)?;
        let (after, ended) = self.moved();
        let (machine, elapsed) = window.close();
        let verified = self.verify()?;
        let MemSession {
            workers,
            marks,
            threads,
            peers,
            ..
        } = *self;
        // Application thread n and NIC n's thread are both bound to core n.
        let bound = threads.max(peers.len());
        let tallies = workers.finish()?;
        let mut by_connection: Vec<u64> = after
            .iter()
            .map(|(key, bytes)| bytes - before.get(key).copied().unwrap_or(0).min(*bytes))
            .collect();
        let bytes: u64 = by_connection.iter().sum();
        let (connection_min, connection_median) = stats::least_and_median(&mut by_connection);
        let counted = marks.counted()?;
        let times = divide(&tallies, &counted);
        let (rounds, latency) = workload::rounds(&tallies);
        let all = counted.threads(threads);
        let disturbances = disturbances_on(bound, &machine, elapsed, all, &times);
        let goodput = bytes as f64 / (ended - begun).as_secs_f64();
        // What the peers know and what the threads counted are windows of slightly different
        // lengths.
        let window = Duration::from_nanos(counted.window_ns).as_secs_f64();
        let whole = machine.cpu_ns() as f64 * window / elapsed.as_secs_f64().max(1e-9);
        let checked: u64 = tallies.iter().map(|t| t.verified).sum();
        Ok(Sample {
            elapsed,
            goodput,
            segments: goodput * window / SEGMENT as f64,
            times,
            cpu_ns: whole as u64,
            locks: counted.locks,
            rounds,
            latency,
            retransmits: counted.retransmits,
            context_switches: machine.voluntary + machine.involuntary,
            involuntary_switches: machine.involuntary,
            migrations: machine.migrations,
            paths: counted.paths,
            connection_min,
            connection_median,
            verified_bytes: checked + verified,
            valid: times.valid() && bytes > 0,
            disturbances,
            ..Sample::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        organizations::Organization,
        session::{Slot, warm_up},
        workload::Family,
    };

    /// A warm-up goes on until each connection has moved what its buffer holds.
    #[test]
    fn connections_have_left_slow_start_when_counting_begins() {
        for direction in [Direction::Send, Direction::Receive] {
            let settings = Settings {
                nics: 1,
                direction,
                ..Settings::default()
            };
            let configuration = Configuration {
                organization: Organization::ours("up"),
                connections: 500,
                threads: 1,
            };
            let mut run = session("up".parse().unwrap(), &settings, &configuration, None).unwrap();
            assert!(!run.has_grown().unwrap(), "nothing was sent");
            let slot = Slot {
                longest_warm_up: Duration::from_secs(60),
                ..Slot::new(Duration::from_micros(100), Duration::ZERO)
            };
            assert!(warm_up(&mut run, slot).unwrap());
            let moved = run.moved().0;
            assert_eq!(moved.len(), 500);
            let least = *moved.values().min().unwrap();
            assert!(least >= settings.buffer as u64, "{least}");
        }
    }

    #[test]
    fn frames_are_as_long_as_the_mtu_lets_them_be() {
        for (mtu, family, full) in [
            (1500, Family::Ipv4, 1448),
            (9000, Family::Ipv4, 8948),
            (1500, Family::Ipv6, 1428),
        ] {
            let settings = Settings {
                nics: 1,
                mtu,
                family,
                ..Settings::default()
            };
            let configuration = Configuration {
                organization: Organization::ours("up"),
                connections: 1,
                threads: 1,
            };
            let mut run = session("up".parse().unwrap(), &settings, &configuration, None).unwrap();
            run.warm_up(Duration::from_millis(100)).unwrap();
            let bytes: u64 = run.moved().0.values().sum();
            let frames: u64 = run.peers.iter().map(|p| p.counts().frames).sum();
            Box::new(run).measure(Duration::from_millis(20)).unwrap();
            let each = bytes / frames.max(1);
            assert!(each <= full && each > full * 3 / 4, "{each} of {full}");
        }
    }
}
