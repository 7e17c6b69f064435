//! Backend: the host kernel's own sockets, the comparison for every organization.
//!
//! Two network namespaces joined by veth pairs with TSO, GSO and GRO off, unless offloads are asked
//! for; `sendfile` of one file under TCP_CORK; epoll event loops; a receiver that discards. The
//! kernel runs the peer's protocol work inside the sender's calls, so only the whole machine's CPU is
//! reported. Where namespaces can't be made, plain loopback stands in, marked as not comparable.

pub(crate) mod datagrams;
mod netlink;
pub(crate) mod sockets;
pub(crate) mod veth;

use crate::{
    Error, host,
    live::Watch,
    organizations::Organization,
    session::{Backend, Session, Traits, Worker, Workers},
    workload::{
        Configuration, Content, Control, Device, Direction, FILE_SIZE, Family, Part, Phase, Roles,
        Sample, Settings, Side, Times, drive_any, reconnect, spread,
    },
};
use nix::sched::CloneFlags;
use perimeter::Offload;
use rustix::fd::OwnedFd;
use sockets::{KernelEndpoint, Made, Options, Worksite};
use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use veth::{Links, Namespace};

/// Makes network namespaces possible for an unprivileged process, by moving it into a user
/// namespace of its own that maps only its own user and group. Does nothing where they are possible
/// already; returns whether they are now. The process must have a single thread, so the command
/// line calls this first of all.
pub fn gain_namespaces() -> bool {
    if namespaces_possible() {
        return true;
    }
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if nix::sched::unshare(CloneFlags::CLONE_NEWUSER).is_err() {
        return false;
    }
    // user_namespaces(7): setgroups must be given up before an unprivileged gid_map.
    let maps = [
        ("setgroups", "deny".to_string()),
        ("gid_map", format!("{0} {0} 1", gid.as_raw())),
        ("uid_map", format!("{0} {0} 1", uid.as_raw())),
    ];
    for (file, text) in maps {
        if fs::write(format!("/proc/self/{file}"), text).is_err() {
            return false;
        }
    }
    namespaces_possible()
}

/// Whether namespaces can be made and joined here. Leaves nothing behind.
///
/// # Errors
/// The first step that the system refused.
pub(crate) fn links_possible() -> Result<(), Error> {
    Links::make(1, 1500, false, Family::Ipv4).map(drop)
}

/// Whether a thread of this process may make a network namespace.
fn namespaces_possible() -> bool {
    thread::spawn(|| nix::sched::unshare(CloneFlags::CLONE_NEWNET).is_ok())
        .join()
        .unwrap_or(false)
}

/// Whether the links of that configuration carry large segments.
fn offloads(settings: &Settings, c: &Configuration) -> bool {
    let of_row = match c.organization {
        Organization::Linux { offload, .. } => offload,
        _ => None,
    };
    of_row.unwrap_or(settings.offload != Offload::Off)
}

/// The backend `linux`.
#[derive(Debug, Default)]
pub struct Kernel {
    /// Why there are no namespaces, if there are none.
    loopback: Option<String>,
}

impl Backend for Kernel {
    fn check(
        &mut self,
        settings: &Settings,
        configurations: &[Configuration],
    ) -> Result<(), Error> {
        sockets::allow_all(configurations)?;
        self.loopback = Links::make(1, settings.mtu, false, settings.family)
            .err()
            .map(|e| e.to_string());
        match (&self.loopback, settings.udp) {
            (Some(why), Some(_)) => Err(Error::Unavailable(format!("linux: --udp: {why}"))),
            _ => Ok(()),
        }
    }

    fn traits(&self, settings: &Settings, configuration: &Configuration) -> Traits {
        let mut notes = Vec::new();
        if let Some(reason) = &self.loopback {
            notes.push(format!(
                "not comparable: plain loopback with its large MTU, as {reason}"
            ));
        }
        if settings.link_gbps.is_some() || settings.rtt.is_some() {
            notes.push("linux: --link-gbps and --rtt have no effect".into());
        }
        if settings.device == Device::Mem && settings.connect.is_none() {
            let note = match settings.exchange {
                None => {
                    "linux: goodput is not comparable (the kernel also does the receiver's work); \
                     compare CPU"
                }
                // The table of exchanges has no CPU time.
                Some(_) => "linux: not comparable (the kernel also does the peer's work)",
            };
            notes.push(note.into());
        }
        notes.extend(reconnect::note(settings));
        if settings.udp.is_some() {
            notes.push(match offloads(settings, configuration) {
                false => "linux: one datagram a call".into(),
                true => "linux: UDP_SEGMENT and UDP_GRO, up to 32 datagrams a call".into(),
            });
        }
        Traits {
            device: match (&self.loopback, offloads(settings, configuration)) {
                (Some(_), _) => "loopback".into(),
                (None, false) => "veth".into(),
                (None, true) => "veth, offloads on".into(),
            },
            inbound: "kernel".into(),
            comparable: self.loopback.is_none(),
            notes,
        }
    }

    fn prepare(
        &mut self,
        settings: &Settings,
        configuration: &Configuration,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        if let Some(size) = settings.udp {
            let how = (size, offloads(settings, configuration));
            return datagrams::prepare(settings, configuration, how, roles(settings));
        }
        let links = match self.loopback {
            None => Some(Arc::new(Links::make(
                settings.nics,
                settings.mtu,
                offloads(settings, configuration),
                settings.family,
            )?)),
            Some(_) => None,
        };
        let job = Job::new(configuration.organization.is_pinned())?;
        let site = |side: fn(&Links) -> &Arc<Namespace>| Worksite {
            namespace: links.as_deref().map(side).cloned(),
            options: Options::of(settings),
            deadline,
        };
        let (near_roles, far_roles) = roles(settings);
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for (i, nics) in nics_by_thread(settings, configuration, links.is_some())
            .into_iter()
            .enumerate()
        {
            let of = links.as_ref().map_or(1, |_| settings.nics);
            let (a, b) = sockets::sides(nics, of);
            // The application's threads are pinned; the peer's go where there is room.
            let here = site(|l| &l.near);
            let make = move |control: &Control| a.establish(&here, control);
            near.push((format!("app-{i}"), job.worker(near_roles, Some(i), make)));
            let there = site(|l| &l.far);
            let make = move |control: &Control| b.establish(&there, control);
            far.push((format!("peer-{i}"), job.worker(far_roles, None, make)));
        }
        near.append(&mut far);
        Ok(Box::new(KernelSession {
            workers: Workers::start(near)?,
            links,
            _file: job.file,
            threads: configuration.threads,
            grown: settings.grown(),
        }))
    }
}

/// What the near and the far side do.
pub(crate) fn roles(settings: &Settings) -> (Roles, Roles) {
    let roles = |source, sink| Roles {
        source,
        sink,
        write_size: settings.write_size,
        read_size: settings.read_size,
        talk: None,
        part: None,
    };
    if settings.reconnect || settings.exchange.is_some() {
        let side = |opens, part| Roles {
            talk: settings.exchange.map(|sizes| Side { sizes, opens }),
            part: settings.reconnect.then_some(part),
            ..roles(false, true)
        };
        return (side(true, Part::Opens), side(false, Part::Accepts));
    }
    match settings.direction {
        Direction::Send => (roles(true, false), roles(false, true)),
        Direction::Receive => (roles(false, true), roles(true, false)),
        Direction::Both => (roles(true, true), roles(true, true)),
    }
}

/// The NIC of each connection of each thread.
fn nics_by_thread(settings: &Settings, c: &Configuration, links: bool) -> Vec<Vec<usize>> {
    let nics = if links { settings.nics } else { 1 };
    let mut by_thread = vec![Vec::new(); c.threads];
    for place in spread(c.connections as usize, c.threads, nics) {
        by_thread[place.thread].push(place.nic);
    }
    by_thread
}

/// What all workers of a run share.
pub(crate) struct Job {
    /// What is sent.
    pub content: Content,
    /// The same as a file in memory, which must not be closed before the threads have ended.
    pub file: Arc<OwnedFd>,
    /// All threads on one core.
    pub pinned: bool,
}

impl Job {
    /// Makes the file.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn new(pinned: bool) -> Result<Job, Error> {
        let content = Content::new(FILE_SIZE);
        Ok(Job {
            file: Arc::new(sockets::memory_file(content.bytes())?),
            content,
            pinned,
        })
    }

    /// A thread that establishes its connections by `make` and runs the event loop on them, on the
    /// given core if any.
    pub(crate) fn worker(
        &self,
        roles: Roles,
        core: Option<usize>,
        make: impl FnOnce(&Control) -> Result<Made, Error> + Send + 'static,
    ) -> Worker {
        let (content, file) = (self.content.clone(), self.file.clone());
        let core = if self.pinned { Some(0) } else { core };
        Box::new(move |control, set| {
            if let Some(core) = core {
                host::pin(core);
            }
            let made = make(control)?;
            let mut endpoint = KernelEndpoint::new(made, file, roles)?;
            set();
            drive_any(&mut endpoint, roles, &content, control)
        })
    }
}

/// A prepared run. The workers come first, so that their threads have ended before what they share is
/// dropped: they have descriptor tables of their own, and a descriptor that a worker dropped last
/// would stay open in the main table.
struct KernelSession {
    workers: Workers,
    links: Option<Arc<Links>>,
    _file: Arc<OwnedFd>,
    threads: usize,
    /// [`Settings::grown`].
    grown: u64,
}

/// Retransmissions so far, of both sides. On loopback, of the whole host.
fn retransmits(links: Option<&Links>) -> Result<u64, Error> {
    match links {
        Some(links) => Ok(links.near.retransmits()? + links.far.retransmits()?),
        None => veth::retransmitted_here(),
    }
}

impl Session for KernelSession {
    fn watch(&mut self, watch: Watch) {
        self.workers.watch(watch, Box::new(sockets::seen));
    }

    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.workers.run(Phase::Warm, time)
    }

    fn has_grown(&mut self) -> Result<bool, Error> {
        self.workers.have_received(self.grown)
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let s = &mut *self;
        let (window, retransmits) = s
            .workers
            .measure(time, || retransmits(s.links.as_deref()))?;
        let tallies = self.workers.finish()?;
        let times = Times::of(&tallies[..self.threads]);
        Ok(Sample {
            retransmits,
            ..Sample::received(&tallies, window, tallies.len(), times)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Coalescing;

    /// A run in which what is to be `seen` is.
    fn seen(settings: &Settings, seen: impl Fn(&Sample) -> bool) -> Sample {
        Sample::once_seen(seen, |time| run(Kernel::default(), settings, time))
    }

    fn run(mut kernel: Kernel, settings: &Settings, time: Duration) -> Sample {
        let configuration = &crate::bench::grid::grid(settings)[0];
        let mut session = kernel.prepare(settings, configuration, None).unwrap();
        session.warm_up(Duration::from_millis(50)).unwrap();
        session.measure(time).unwrap()
    }

    /// The whole backend in each direction with few and more connections, if the machine permits.
    fn moves_and_verifies_bytes_over_veth() {
        if !namespaces_possible() {
            eprintln!("skipped: network namespaces are not permitted here");
            return;
        }
        for (direction, connections, family) in [
            (Direction::Send, 1, Family::Ipv4),
            (Direction::Send, 40, Family::Ipv4),
            (Direction::Receive, 6, Family::Ipv4),
            (Direction::Both, 6, Family::Ipv6),
        ] {
            let settings = Settings {
                organizations: vec![Organization::LINUX],
                connections: vec![connections],
                direction,
                family,
                threads: 2,
                nics: 3,
                ..Settings::default()
            };
            let configuration = &crate::bench::grid::grid(&settings)[0];
            let mut kernel = Kernel::default();
            kernel
                .check(&settings, std::slice::from_ref(configuration))
                .unwrap();
            assert_eq!(kernel.loopback, None);
            let sample = seen(&settings, Sample::all_moved);
            assert!(sample.goodput > 1e6, "{direction}: {sample:?}");
            assert!(sample.verified_bytes > 0, "{direction}: {sample:?}");
            assert!(sample.connection_min > 0, "{direction}: {sample:?}");
            assert!(sample.cpu_ns > 0 && sample.times.stack.is_none());
        }
    }

    /// 1,000 bytes there and back over veth.
    fn plays_ping_pong() {
        if !namespaces_possible() {
            return;
        }
        let settings = Settings {
            organizations: vec![Organization::LINUX],
            connections: vec![4],
            exchange: Some("1000".parse().unwrap()),
            coalescing: Coalescing::NoDelay,
            threads: 2,
            nics: 1,
            ..Settings::default()
        };
        let sample = seen(&settings, |s| s.rounds > 100 && s.verified_bytes > 0);
        let latency = sample.latency.unwrap();
        assert!(sample.rounds > 100, "{sample:?}");
        assert!(
            latency.p50_ns > 1000 && latency.p50_ns <= latency.p99_ns,
            "{sample:?}"
        );
        assert!(sample.verified_bytes > 0, "{sample:?}");
    }

    /// Datagrams over veth, one a call and many.
    fn carries_datagrams() {
        if !namespaces_possible() {
            return;
        }
        for (offload, family) in [
            (false, Family::Ipv4),
            (true, Family::Ipv4),
            (true, Family::Ipv6),
        ] {
            let settings = Settings {
                organizations: vec![Organization::Linux {
                    pinned: false,
                    offload: Some(offload),
                }],
                connections: vec![4],
                udp: Some(200),
                direction: Direction::Both,
                family,
                threads: 2,
                nics: 1,
                ..Settings::default()
            };
            let sample = seen(&settings, |s| s.rounds > 1000 && s.verified_bytes > 0);
            assert!(
                sample.rounds > 1000 && sample.verified_bytes > 0,
                "{sample:?}"
            );
            assert!(sample.lost.is_some_and(|l| l < 1.0), "{sample:?}");
        }
    }

    /// Connections opened anew over veth, with and without a byte on them.
    fn opens_connections_anew() {
        if !namespaces_possible() {
            return;
        }
        for exchange in [Some("100:1000".parse().unwrap()), None] {
            let settings = Settings {
                organizations: vec![Organization::LINUX],
                connections: vec![8],
                exchange,
                reconnect: true,
                coalescing: Coalescing::NoDelay,
                threads: 2,
                nics: 1,
                ..Settings::default()
            };
            let sample = seen(&settings, |s| s.rounds > 20);
            assert!(sample.rounds > 20 && sample.valid, "{sample:?}");
            assert!(sample.latency.unwrap().p50_ns > 1000, "{sample:?}");
        }
    }

    /// One test for both kinds, as it counts the descriptors of the process.
    #[test]
    fn runs_over_veth_and_loopback_leave_nothing_behind() {
        moves_and_verifies_bytes_over_veth();
        plays_ping_pong();
        carries_datagrams();
        opens_connections_anew();
        loopback_is_marked();
        let open = || -> Vec<_> {
            fs::read_dir("/proc/self/fd")
                .unwrap()
                .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
                .filter(|to| {
                    let to = to.to_string_lossy();
                    to.contains("perimeter-bench") || to.starts_with("net:")
                })
                .collect()
        };
        // Other tests have such descriptors too, but not for long.
        let until = Instant::now() + Duration::from_secs(30);
        while !open().is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        let open = open();
        assert!(open.is_empty(), "{open:?}");
    }

    fn loopback_is_marked() {
        let settings = Settings {
            organizations: vec![crate::backends::parse("linux:pinned").unwrap()],
            connections: vec![3],
            threads: 1,
            ..Settings::default()
        };
        let configuration = &crate::bench::grid::grid(&settings)[0];
        let kernel = Kernel {
            loopback: Some("a test says so".into()),
        };
        let traits = kernel.traits(&settings, configuration);
        assert_eq!(traits.device, "loopback");
        assert!(!traits.comparable);
        assert!(traits.notes[0].contains("not comparable"));
        let sample = run(kernel, &settings, Duration::from_millis(200));
        assert!(sample.goodput > 1e6, "{sample:?}");
    }
}
