//! Backend: Perimeter's own organizations over the memory NIC with its ideal peer (`mem`), over TAP
//! interfaces with the host kernel's sockets (`tap`), or back to back with a second stack of the
//! same organization (`pair`).
//!
//! A stack is built for each run. The application's threads, one [`crate::workload::Endpoint`]
//! each, open their connections to the ideal peer and then send to it, receive from it, or both.
//! The peer's work is done in the transmit doorbell and in polling, on the thread that does those,
//! and is timed apart by the device. Goodput is what the peer has acknowledged, and what the stack
//! has acknowledged to the peer.

mod endpoint;
mod floor;
mod listening;
mod mem;
pub(crate) mod network;
mod pair;
pub(crate) mod tap;
mod times;

use crate::{
    Error, host, linux,
    live::Seen,
    organizations::Organization,
    workload::{
        Backend, Coalescing, Configuration, Content, Device, Inbound, Roles, Session, Settings,
        Tally, Traits, Worker, drive_any, reconnect, spread,
    },
};
use endpoint::{Far, Founder, StackEndpoint, Task};
pub use floor::Floor;
pub use listening::Listening;
pub(crate) use mem::on_virtual;
use perimeter::{Config, Lending, Native, OrgSpec, Stack, TcpConfig};
use std::{
    net::Ipv4Addr,
    sync::{Arc, atomic::AtomicUsize},
    time::Instant,
};
use times::{Marks, divide};

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
        other => Err(Error::Run(format!("{other} is not one of ours"))),
    }
}

impl Backend for Perimeter {
    fn check(
        &mut self,
        settings: &Settings,
        configurations: &[Configuration],
    ) -> Result<(), Error> {
        match settings.device {
            Device::Mem | Device::Pair => Ok(()),
            Device::Tap => tap::check(settings, configurations),
        }
    }

    fn traits(&self, settings: &Settings, configuration: &Configuration) -> Traits {
        let mut notes = match settings.device {
            Device::Mem => Vec::new(),
            Device::Tap => tap::notes(settings),
            Device::Pair => pair::notes(configuration),
        };
        notes.extend(lending(settings));
        notes.extend(reconnect::note(settings));
        Traits {
            device: settings.device.to_string(),
            inbound: settings.inbound.to_string(),
            comparable: true,
            notes,
        }
    }

    fn prepare(
        &mut self,
        settings: &Settings,
        configuration: &Configuration,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        let org = spec(configuration)?;
        match settings.device {
            Device::Mem => mem::prepare(org, settings, configuration, deadline),
            Device::Tap => tap::prepare(org, settings, configuration, deadline),
            Device::Pair => pair::prepare(org, settings, configuration, deadline),
        }
    }
}

/// What there is to say of priorities.
fn lending(settings: &Settings) -> impl Iterator<Item = String> {
    let native = Native::default().with_policy(settings.locks);
    let not = native.lending() == Lending::NotPermitted;
    not.then(|| "waiters lend no priority: SCHED_FIFO is not permitted".to_string())
        .into_iter()
}

/// A builder without interfaces yet, on `native`.
fn builder(org: &OrgSpec, settings: &Settings, native: Native) -> perimeter::Builder {
    let inbound = match settings.inbound {
        Inbound::Thread => perimeter::Inbound::Thread,
        Inbound::Nic | Inbound::Affine => perimeter::Inbound::Inline,
    };
    Stack::builder()
        .on_native(native)
        .org(org.clone())
        .config(perimeter::Config {
            // What was to be measured has been by then.
            drain: std::time::Duration::ZERO,
            ..stack_config(settings)
        })
        .lock_policy(settings.locks)
        .profile(settings.profile)
        .inbound(inbound)
}

/// With a control socket, if one is asked for.
fn with_control(builder: perimeter::Builder, settings: &Settings) -> perimeter::Builder {
    match &settings.control {
        Some(path) => builder.control(path),
        None => builder,
    }
}

/// How each thread comes by the stack.
fn founders(
    org: &OrgSpec,
    builder: perimeter::Builder,
    configuration: &Configuration,
) -> Result<Vec<Founder>, Error> {
    if org.single_threaded() {
        return Ok(vec![Founder::Build(Box::new(builder))]);
    }
    let stack = builder.build().map_err(|e| Error::Run(e.to_string()))?;
    let join = |_| Founder::Join(stack.clone());
    Ok((0..configuration.threads).map(join).collect())
}

fn stack_config(settings: &Settings) -> Config {
    Config {
        tcp: TcpConfig {
            snd_buf: settings.buffer as u32,
            rcv_buf: settings.buffer as u32,
            cork: settings.coalescing == Coalescing::Cork,
            nodelay: settings.coalescing == Coalescing::NoDelay,
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

/// One stack and the threads of its application.
struct End {
    /// What the threads are called, before their number.
    name: &'static str,
    /// How each comes by the stack.
    founders: Vec<Founder>,
    /// How each comes by its connections.
    fars: Vec<Far>,
    /// The stack's address on each NIC.
    hosts: Vec<Ipv4Addr>,
    /// What both ends send.
    content: Content,
    /// What the threads do.
    roles: Roles,
    /// Core of the first thread; the others follow.
    first_core: usize,
    /// How many connections are established, of `all`; shared where both ends are ours.
    established: Arc<AtomicUsize>,
    /// Connections, once for each end that is ours.
    all: usize,
    /// What each connection begins with.
    greeting: Arc<[u8]>,
    /// Where readings of the stack's counters go.
    marks: Marks,
}

impl End {
    /// The near end of a run, as the only one that is ours.
    fn near(
        settings: &Settings,
        configuration: &Configuration,
        founders: Vec<Founder>,
        fars: Vec<Far>,
        hosts: Vec<Ipv4Addr>,
        content: Content,
    ) -> End {
        End {
            name: "app",
            founders,
            fars,
            hosts,
            content,
            roles: linux::roles(settings).0,
            first_core: 0,
            established: Arc::default(),
            all: configuration.connections as usize,
            greeting: Arc::default(),
            marks: Marks::default(),
        }
    }
}

/// The NICs of each thread's connections.
fn nics_by_thread(settings: &Settings, configuration: &Configuration) -> Vec<Vec<usize>> {
    let threads = configuration.threads;
    let mut nics = vec![Vec::new(); threads];
    for place in spread(configuration.connections as usize, threads, settings.nics) {
        nics[place.thread].push(place.nic);
    }
    nics
}

/// One worker for each application thread of an end.
fn workers(
    settings: &Settings,
    configuration: &Configuration,
    end: End,
    deadline: Option<Instant>,
) -> Vec<(String, Worker)> {
    let threads = configuration.threads;
    let queues = queues(settings, configuration);
    let nics = nics_by_thread(settings, configuration);
    let (roles, first_core) = (end.roles, end.first_core);
    let mut list = Vec::new();
    let sides = end.founders.into_iter().zip(end.fars);
    for (thread, ((founder, far), nics)) in sides.zip(nics).enumerate() {
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
            hosts: end.hosts.clone(),
            steered: settings.inbound == Inbound::Affine && threads > 1,
            serve,
            roles,
            all: end.all,
            established: end.established.clone(),
            greeting: end.greeting.clone(),
            marks: (thread == 0).then(|| end.marks.clone()),
            deadline,
        };
        let content = end.content.clone();
        let worker: Worker = Box::new(move |control, set| {
            host::pin(first_core + thread);
            let mut endpoint = StackEndpoint::establish(founder, far, task, &content, control)?;
            set();
            drive_any(&mut endpoint, roles, &content, control)
        });
        list.push((format!("{}-{thread}", end.name), worker));
    }
    list
}

/// What the counters of a stack, and the near end's threads if all have told, say of what was seen.
fn seen(near: &[Option<Tally>], counted: Option<times::Counted>) -> Seen {
    let Some(counted) = counted else {
        return Seen::default();
    };
    let near: Option<Vec<Tally>> = near.iter().cloned().collect();
    Seen {
        window_ns: counted.window_ns,
        times: near.map(|near| divide(&near, &counted)),
        protocol_ns: counted.protocol_ns,
        locks: counted.locks,
        ..Seen::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Direction, Sample};
    use std::time::Duration;

    fn measure(org: &str, change: impl FnOnce(&mut Settings)) -> Sample {
        measure_for(Duration::from_millis(200), org, change)
    }

    fn measure_for(time: Duration, org: &str, change: impl FnOnce(&mut Settings)) -> Sample {
        let mut settings = Settings {
            organizations: vec![Organization::parse(org).unwrap()],
            connections: vec![6],
            threads: 2,
            nics: 2,
            ..Settings::default()
        };
        change(&mut settings);
        let grid = crate::bench::grid::grid(&settings);
        let ours = |c: &&Configuration| c.organization != Organization::Null;
        let configuration = grid.iter().find(ours).unwrap();
        let mut backend = Perimeter::default();
        backend
            .check(&settings, std::slice::from_ref(configuration))
            .unwrap();
        let deadline = Some(Instant::now() + Duration::from_secs(20));
        let mut session = backend
            .prepare(&settings, configuration, deadline)
            .unwrap_or_else(|e| panic!("{org}: {e}"));
        session.warm_up(Duration::from_millis(50)).unwrap();
        session.measure(time).unwrap()
    }

    /// A short run, or a longer one if a busy machine has not shown what is to be `seen` in it.
    fn measure_until(
        org: &str,
        seen: impl Fn(&Sample) -> bool,
        change: impl Fn(&mut Settings),
    ) -> Sample {
        let run = |ms| measure_for(Duration::from_millis(ms), org, &change);
        let short = [150, 1000].into_iter().map(run).find(&seen);
        short.unwrap_or_else(|| run(4000))
    }

    #[test]
    fn every_organization_in_every_direction() {
        for org in perimeter::OrgSpec::tested() {
            let org = &*org.to_string();
            for direction in [Direction::Send, Direction::Receive, Direction::Both] {
                let seen = |s: &Sample| s.connection_min > 0 && s.verified_bytes > 0;
                let sample = measure_until(org, seen, |s| s.direction = direction);
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

    /// Over TAP with the kernel as the peer, in each direction and inbound mode, if the machine
    /// permits.
    #[test]
    fn every_organization_over_tap() {
        let settings = Settings {
            device: Device::Tap,
            ..Settings::default()
        };
        if let Err(e) = tap::check(&settings, &crate::bench::grid::grid(&settings)[..1]) {
            eprintln!("skipped: {e}");
            return;
        }
        for (org, direction, inbound) in [
            ("up", Direction::Send, Inbound::Nic),
            ("up:shared", Direction::Receive, Inbound::Nic),
            ("connp-l:8", Direction::Both, Inbound::Thread),
            ("connp-l:8", Direction::Send, Inbound::Affine),
        ] {
            let run = |ms| {
                measure_for(Duration::from_millis(ms), org, |s| {
                    s.device = Device::Tap;
                    s.direction = direction;
                    s.inbound = inbound;
                    s.connections = vec![40];
                })
            };
            // A short window may miss a connection on a busy machine.
            let sample = Some(run(300)).filter(|s| s.connection_min > 0);
            let sample = sample.unwrap_or_else(|| run(3000));
            let what = format!("{org} {direction} {inbound}: {sample:?}");
            assert!(sample.goodput > 1e6, "{what}");
            assert!(sample.connection_min > 0, "{what}");
            assert!(sample.verified_bytes > 0, "{what}");
            assert!(sample.times.stack.is_none() && sample.cpu_ns > 0, "{what}");
        }
    }

    /// Both ends ours: bytes arrive whatever the organization, and the threads and locks of both
    /// ends are in the account.
    #[test]
    fn every_organization_back_to_back() {
        for org in perimeter::OrgSpec::tested() {
            let org = &*org.to_string();
            for (direction, inbound) in [
                (Direction::Send, Inbound::Nic),
                (Direction::Both, Inbound::Thread),
            ] {
                let seen = |s: &Sample| s.connection_min > 0 && s.verified_bytes > 0;
                let sample = measure_until(org, seen, |s| {
                    s.device = Device::Pair;
                    s.direction = direction;
                    s.inbound = inbound;
                });
                let what = format!("{org} {direction} {inbound}: {sample:?}");
                assert!(sample.goodput > 1e6, "{what}");
                assert!(sample.connection_min > 0, "{what}");
                assert!(sample.verified_bytes > 0, "{what}");
                assert!(sample.times.stack.unwrap() > 0, "{what}");
                assert_eq!(sample.times.peer, Some(0), "{what}");
            }
        }
    }

    /// Steering holds at both ends of a wire: with a queue for each thread, every connection is
    /// served by the thread that it belongs to.
    #[test]
    fn a_pair_is_steered_and_paced() {
        let sample = measure("connp-l:8", |s| {
            s.device = Device::Pair;
            s.inbound = Inbound::Affine;
            s.connections = vec![40];
            s.nics = 1;
            s.link_gbps = Some(0.5);
        });
        assert!(sample.goodput * 8.0 < 0.55e9, "{sample:?}");
        assert!(sample.goodput > 1e5, "{sample:?}");
    }

    /// Ping-pong over both devices: a round takes at least the peer's round trip.
    #[test]
    fn exchanges_are_counted_and_timed() {
        let exchange = |s: &mut Settings| {
            s.exchange = Some("64:200".parse().unwrap());
            s.coalescing = Coalescing::NoDelay;
        };
        for org in ["up", "connp-l:8", "pef:vertical"] {
            let sample = measure(org, exchange);
            let latency = sample.latency.unwrap();
            assert!(sample.rounds > 100, "{org}: {sample:?}");
            assert!(latency.p50_ns >= 50_000, "{org}: {sample:?}");
            let bytes = sample.goodput * sample.elapsed.as_secs_f64();
            let ratio = bytes / (sample.rounds * 264) as f64;
            assert!((0.8..1.2).contains(&ratio), "{org}: {ratio} {sample:?}");
        }
        // Writes of 64 bytes are segments of 64 bytes between two stacks of ours.
        let sample = measure("connp-l:8", |s| {
            exchange(s);
            s.device = Device::Pair;
            s.rtt = Some(Duration::from_millis(2));
        });
        assert!(sample.rounds > 50, "{sample:?}");
        assert!(sample.latency.unwrap().p50_ns >= 2_000_000, "{sample:?}");
        let settings = Settings {
            device: Device::Tap,
            ..Settings::default()
        };
        if tap::check(&settings, &crate::bench::grid::grid(&settings)[..1]).is_err() {
            return;
        }
        let sample = measure("connp-l:8", |s| {
            exchange(s);
            s.device = Device::Tap;
        });
        assert!(
            sample.rounds > 100 && sample.latency.is_some(),
            "{sample:?}"
        );
        assert!(sample.verified_bytes > 0, "{sample:?}");
    }

    /// Connections are opened and closed over and over, by every organization.
    #[test]
    fn connections_are_opened_anew() {
        let once = |s: &mut Settings| {
            s.reconnect = true;
            s.device = Device::Pair;
            s.exchange = Some("64:200".parse().unwrap());
            s.coalescing = Coalescing::NoDelay;
        };
        for org in perimeter::OrgSpec::tested() {
            let org = &*org.to_string();
            let sample = measure_until(org, |s| s.rounds > 20, once);
            assert!(sample.rounds > 20, "{org}: {sample:?}");
            assert!(sample.latency.unwrap().p50_ns > 1000, "{org}: {sample:?}");
        }
        // Without a byte.
        let many = |s: &Sample| s.rounds > 20;
        let sample = measure_until("up:shared", many, |s| {
            once(s);
            s.exchange = None;
            s.inbound = Inbound::Thread;
        });
        assert!(sample.rounds > 20 && sample.segments == 0.0, "{sample:?}");
        let settings = Settings {
            device: Device::Tap,
            ..Settings::default()
        };
        if tap::check(&settings, &crate::bench::grid::grid(&settings)[..1]).is_err() {
            return;
        }
        let sample = measure_until("connp-l:8", many, |s| {
            once(s);
            s.device = Device::Tap;
        });
        assert!(sample.rounds > 20, "{sample:?}");
    }

    #[test]
    fn the_floor_is_below() {
        let settings = Settings::default();
        let configuration = &crate::bench::grid::grid(&settings)[0];
        let mut session = Floor.prepare(&settings, configuration, None).unwrap();
        session.warm_up(Duration::from_millis(20)).unwrap();
        let sample = session.measure(Duration::from_millis(50)).unwrap();
        assert!(sample.times.stack.unwrap() > 0, "{sample:?}");
        assert!(sample.times.valid(), "{sample:?}");
        assert!(sample.goodput > 1e6, "{sample:?}");
    }

    #[test]
    fn every_inbound_mode_moves_many_connections() {
        for inbound in [Inbound::Nic, Inbound::Thread, Inbound::Affine] {
            // A busy machine may keep one thread, and so its connections, off the cores for a
            // whole short window; who starves does so in a long one.
            let least = [200, 1000, 3000].into_iter().find_map(|ms| {
                let sample = measure_for(Duration::from_millis(ms), "connp-l:16", |s| {
                    s.inbound = inbound;
                    s.connections = vec![300];
                });
                (sample.connection_min > 0).then_some(sample.connection_min)
            });
            assert!(least.is_some(), "{inbound}");
        }
    }

    #[test]
    fn pacing_bounds_goodput() {
        // A busy machine comes near only in a longer run.
        let near = |s: &Sample| s.goodput * 8.0 > 0.38e9;
        let sample = measure_until("up", near, |s| {
            s.link_gbps = Some(0.5);
            s.nics = 1;
        });
        assert!(sample.goodput * 8.0 < 0.55e9, "{sample:?}");
        // Headers, preamble and gap leave 0.47 of the 0.5 Gb/s; a busy machine some less.
        assert!(sample.goodput * 8.0 > 0.38e9, "{sample:?}");
    }

    /// A switched-on profile tells of every acquisition; without it nothing is timed.
    #[test]
    fn locks_and_hand_overs_are_timed_when_asked() {
        let plain = measure("connp-t:2", |_| {});
        assert!(plain.paths.is_empty() && plain.locks.iter().all(|l| l.times.is_none()));
        for (org, class) in [("connp-l:4", "group"), ("connp-t:2", "sndbuf")] {
            let sample = measure(org, |s| s.profile = true);
            let locks = sample.locks.iter().find(|l| l.class == class).unwrap();
            let times = locks.times.as_ref().unwrap();
            // All of them and not a sample; the two are read one after the other while threads
            // go on.
            let held = times.hold.count();
            assert!(3 * held > locks.acquisitions, "{org}: {held} {locks:?}");
            let path = |name: &str| sample.paths.iter().find(|p| p.path == name).unwrap();
            let handed = path("queue").count > 0;
            assert_eq!(handed, org == "connp-t:2", "{org}: {:?}", sample.paths);
            if handed {
                assert!(
                    path("park").count > 0 && path("wake").ns > 0,
                    "{:?}",
                    sample.paths
                );
            }
        }
    }
}
