//! Backend: other stacks, doing the same work in the same run.
//!
//! A peer's near end is the stack under test, as ours is. Its far end is the host's kernel behind
//! a TAP interface (`tap`), or the same stack once more over a link in memory (any other device).
//! Processor time is that of both ends together in either case.

mod kernel;
mod smoltcp;

use crate::{
    Error, host,
    linux::{self, sockets},
    ours, stats,
    workload::{
        self, Backend, Coalescing, Configuration, Content, Crew, Device, FILE_SIZE, Phase, Sample,
        Session, Settings, Times, Traits, Window, Worker, drive, session::disturbances,
    },
};
use kernel::Site;
use smoltcp::{Remote, Setting, SmoltcpEndpoint};
use std::{
    fmt,
    sync::mpsc,
    time::{Duration, Instant},
};

/// Share of the free memory that sockets' buffers may take.
const MEMORY: f64 = 0.75;

/// A stack that isn't ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// smoltcp, a Rust crate.
    Smoltcp,
}

impl Peer {
    /// All of them.
    pub const ALL: [Peer; 1] = [Peer::Smoltcp];

    /// Its name, for `--org`.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Smoltcp => "smoltcp",
        }
    }

    /// Whether all its work is done by one thread.
    pub fn single_threaded(self) -> bool {
        match self {
            Peer::Smoltcp => true,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The backend of peers.
#[derive(Debug)]
pub struct Peers {
    peer: Peer,
}

impl Peers {
    /// That of one peer.
    pub fn new(peer: Peer) -> Peers {
        Peers { peer }
    }
}

impl Backend for Peers {
    fn check(
        &mut self,
        settings: &Settings,
        configurations: &[Configuration],
    ) -> Result<(), Error> {
        for c in configurations {
            if settings.device == Device::Tap {
                sockets::allow_descriptors(c.connections, 1)?;
            }
            match self.peer {
                Peer::Smoltcp => smoltcp_fits(settings, c, host::memory_available())?,
            }
        }
        match settings.device {
            Device::Tap => ours::tap::possible(1, 1),
            _ => Ok(()),
        }
    }

    fn traits(&self, settings: &Settings, _: &Configuration) -> Traits {
        let name = self.peer.name();
        let mut notes = Vec::new();
        let tap = settings.device == Device::Tap;
        match tap {
            true => notes.push(format!(
                "{name}: the kernel does the peer's work; compare cpu, the whole machine's"
            )),
            false => notes.push(format!(
                "{name}: both ends are {name}, joined by a link in memory at MTU 1500; cpu is \
                 both ends'"
            )),
        }
        match self.peer {
            Peer::Smoltcp => notes.extend(smoltcp_notes(settings, tap)),
        }
        if settings.nics > 1 || settings.link_gbps.is_some() {
            notes.push(format!(
                "{name}: one link, not paced; --nics, --link-gbps and --rtt have no effect"
            ));
        }
        Traits {
            device: if tap { "tap" } else { "pair" }.into(),
            inbound: "own".into(),
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
        let site = match settings.device {
            Device::Tap => Some(Site::new()?),
            _ => None,
        };
        let workers = match (self.peer, &site) {
            (Peer::Smoltcp, Some(site)) => smoltcp_tap(site, settings, configuration, deadline),
            (Peer::Smoltcp, None) => smoltcp_pair(settings, configuration, deadline),
        };
        Ok(Box::new(PeerSession {
            crew: Crew::start(workers)?,
            site,
        }))
    }
}

/// What the reader of a row has to know about how it is compared.
fn smoltcp_notes(settings: &Settings, tap: bool) -> Vec<String> {
    let mut notes = vec![
        "smoltcp: copies what is sent into its socket's buffer; the others refer to the file's \
         pages"
            .to_string(),
        "smoltcp: does not count what it sends again".into(),
    ];
    notes.push(
        match tap {
            true => {
                "smoltcp: its own TAP interface, one system call a frame, checksums by smoltcp \
                 and the kernel; ours leaves them to the kernel"
            }
            false => "smoltcp: no checksums on its memory link, as on our memory NIC",
        }
        .into(),
    );
    if settings.coalescing == Coalescing::Cork {
        notes.push("smoltcp: has no cork; Nagle's algorithm is in its place".into());
    }
    notes
}

/// How the ends of smoltcp are set up: the near one, and the far one if it is smoltcp too.
fn smoltcp_settings(
    settings: &Settings,
    configuration: &Configuration,
    deadline: Option<Instant>,
) -> (Setting, Setting) {
    let (near, far) = linux::roles(settings);
    let of = |roles, address| Setting {
        address,
        prefix: kernel::PREFIX,
        connections: configuration.connections as usize,
        roles,
        buffer: settings.buffer,
        coalescing: settings.coalescing,
        deadline,
    };
    (
        of(near, linux::veth::near_address(0)),
        of(far, linux::veth::far_address(0)),
    )
}

/// Whether there is memory for all buffers, which smoltcp has whole from the beginning.
fn smoltcp_fits(settings: &Settings, c: &Configuration, available: u64) -> Result<(), Error> {
    let (near, far) = smoltcp_settings(settings, c, None);
    let mut need = near.memory();
    if settings.device != Device::Tap {
        need += far.memory();
    }
    if need as f64 > available as f64 * MEMORY {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        return Err(Error::Unavailable(format!(
            "smoltcp: the buffers of {} connections need {:.1} GiB, too much for the {:.1} GiB \
             that are free; list fewer connections or give a smaller --buffer",
            c.connections,
            gib(need),
            gib(available)
        )));
    }
    if c.connections > smoltcp::MOST {
        return Err(Error::Unavailable(format!(
            "smoltcp: {} connections are more than one address has ports here ({})",
            c.connections,
            smoltcp::MOST
        )));
    }
    Ok(())
}

/// Both ends on this machine, a thread each.
fn smoltcp_pair(
    settings: &Settings,
    configuration: &Configuration,
    deadline: Option<Instant>,
) -> Vec<(String, Worker)> {
    let content = Content::new(FILE_SIZE);
    let (near, far) = smoltcp_settings(settings, configuration, deadline);
    let (near_link, far_link) = smoltcp::pair();
    let (listening, listens) = mpsc::sync_channel(1);
    let to = Remote::Smoltcp(far.address);
    let of_far = content.clone();
    let far: Worker = Box::new(move |control, set| {
        host::pin(1);
        let (roles, content) = (far.roles, of_far);
        let mut end = SmoltcpEndpoint::accept(far_link, far, &content, &listening, control)?;
        set();
        drive(&mut end, roles, &content, control)
    });
    let near: Worker = Box::new(move |control, set| {
        host::pin(0);
        if listens.recv().is_err() {
            return Err(sockets::give_up(control));
        }
        let roles = near.roles;
        let mut end = SmoltcpEndpoint::connect(near_link, near, &content, &to, control)?;
        set();
        drive(&mut end, roles, &content, control)
    });
    vec![("app-0".into(), near), ("peer-0".into(), far)]
}

/// smoltcp here, the kernel there.
fn smoltcp_tap(
    site: &Site,
    settings: &Settings,
    configuration: &Configuration,
    deadline: Option<Instant>,
) -> Vec<(String, Worker)> {
    let (near, far) = smoltcp_settings(settings, configuration, deadline);
    let (gate, kernel) = site.far(settings, far.roles, far.connections, deadline);
    let content = site.content.clone();
    let near: Worker = Box::new(move |control, set| {
        host::pin(0);
        gate.enter()?;
        let link = smoltcp::tap(kernel::INTERFACE)?;
        let to = Remote::Kernel(gate.open(control)?);
        let roles = near.roles;
        let mut end = SmoltcpEndpoint::connect(link, near, &content, &to, control)?;
        set();
        drive(&mut end, roles, &content, control)
    });
    vec![("app-0".into(), near), ("peer-0".into(), kernel)]
}

/// A prepared run. The crew comes first, so that its threads, which may have descriptor tables of
/// their own, have ended before what they share is dropped. Its first thread is the near end.
struct PeerSession {
    crew: Crew,
    site: Option<Site>,
}

impl PeerSession {
    /// Segments that the kernel has sent again.
    fn retransmits(&self) -> Result<u64, Error> {
        let of = |site: &Site| site.namespace.retransmits();
        self.site.as_ref().map_or(Ok(0), of)
    }
}

impl Session for PeerSession {
    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.crew.run(Phase::Warm, time)
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let retransmits = self.retransmits()?;
        let window = Window::open();
        self.crew.run(Phase::Measure, time)?;
        let (machine, elapsed) = window.close();
        let retransmits = self.retransmits()?.saturating_sub(retransmits);
        let tallies = self.crew.finish()?;
        let times = Times::of(&tallies[..1]);
        let mut by_connection: Vec<u64> = linux::received(&tallies).collect();
        let bytes: u64 = by_connection.iter().sum();
        let (connection_min, connection_median) = stats::least_and_median(&mut by_connection);
        let (rounds, latency) = workload::rounds(&tallies);
        Ok(Sample {
            elapsed,
            goodput: linux::goodput(&tallies),
            segments: Sample::segments_in(bytes),
            times,
            cpu_ns: machine.cpu_ns(),
            locks: Vec::new(),
            rounds,
            latency,
            retransmits,
            context_switches: machine.voluntary + machine.involuntary,
            involuntary_switches: machine.involuntary,
            connection_min,
            connection_median,
            verified_bytes: tallies.iter().map(|t| t.verified).sum(),
            valid: times.valid() && bytes > 0,
            disturbances: disturbances(&machine, elapsed, tallies.len(), &times),
        })
    }
}

#[cfg(test)]
mod tests;
