//! The benchmark over TAP: a namespace of its own, one TAP interface for each NIC, and the
//! kernel's sockets in there as sink and source.
//!
//! The kernel does its part of the work inside the stack's system calls, so only the whole
//! machine's CPU is reported. The namespace has no name and is held by descriptors: it goes, with
//! its interfaces, however the process ends.

use super::{
    end::{self, End, builder, founders, nics_by_thread, queues, with_control, workers},
    endpoint::Far,
    times::{Marks, divide},
};
use crate::{
    Error,
    error::Context as _,
    host::Machine,
    linux::{
        self, Job,
        sockets::{self, Worksite},
        veth::{self, Namespace},
    },
    live::{self, Seen, Watch},
    session::{Session, Window, Workers},
    workload::{Configuration, Control, Phase, Sample, Settings, Tally, Times},
};
use perimeter::{
    Native, Offload, OrgSpec,
    link::tap::{Tap, TapConfig, host},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Prefix length of each NIC's subnet.
const PREFIX: u8 = 24;

/// What the report says about a row.
pub(super) fn notes(settings: &Settings) -> Vec<String> {
    let mut notes = vec![
        "tap: the kernel does the peer's work inside our calls; compare cpu, the whole machine's"
            .into(),
    ];
    if settings.link_gbps.is_some() || settings.rtt.is_some() {
        notes.push("tap: --link-gbps and --rtt have no effect".into());
    }
    notes
}

/// Whether the interfaces can be made here. Leaves nothing behind.
///
/// # Errors
/// [`Error::Unavailable`] with one line.
pub(super) fn check(settings: &Settings, configurations: &[Configuration]) -> Result<(), Error> {
    for c in configurations {
        sockets::allow_descriptors(c.connections, c.threads)?;
        possible(settings.nics, queues(settings, c), settings.mtu)?;
    }
    Ok(())
}

/// Whether a TAP interface can be made here. Leaves nothing behind.
///
/// # Errors
/// [`Error::Unavailable`] with one line.
pub(crate) fn possible(nics: usize, queues: usize, mtu: u32) -> Result<(), Error> {
    let made = Taps::make(nics, queues, mtu, false);
    made.map_err(|e| Error::Unavailable(format!("--device tap: {e}")))?;
    Ok(())
}

/// A namespace with its TAP interfaces.
struct Taps {
    namespace: Arc<Namespace>,
    taps: Vec<Tap>,
}

impl Taps {
    fn make(nics: usize, queues: usize, mtu: u32, large: bool) -> Result<Taps, Error> {
        veth::aside(|| Self::make_here(nics, queues, mtu, large))
    }

    fn make_here(nics: usize, queues: usize, mtu: u32, large: bool) -> Result<Taps, Error> {
        let namespace = Arc::new(Namespace::enter_new()?);
        let mut taps = Vec::new();
        for nic in 0..nics {
            let config = TapConfig {
                queues,
                mtu: Some(mtu),
                large,
                ..TapConfig::new(&format!("tap{nic}"))
            };
            let tap = Tap::open(&config).map_err(|e| Error::Unavailable(e.to_string()))?;
            kernel_side(tap.name(), nic, large)?;
            taps.push(tap);
        }
        Ok(Taps { namespace, taps })
    }
}

/// Sets up the kernel's side of a TAP interface in the calling thread's namespace: no segmentation
/// offload unless segments may be `large`, the far address of NIC `nic`, up.
///
/// # Errors
/// What the system says.
pub(crate) fn kernel_side(name: &str, nic: usize, large: bool) -> Result<(), Error> {
    if !large {
        veth::segments_one_by_one(name)?;
    }
    host::set_address(name, veth::far_address(nic), PREFIX)
        .context("giving a TAP interface its address")?;
    host::set_up(name, true).context("bringing a TAP interface up")
}

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
    let queues = queues(settings, configuration);
    let large = settings.offload == Offload::Device;
    let Taps { namespace, taps } = Taps::make(settings.nics, queues, settings.mtu, large)?;
    let mut builder = with_control(builder(&org, settings, Native::default()), settings);
    let mut hosts = Vec::new();
    for (nic, tap) in taps.into_iter().enumerate() {
        let address = veth::near_address(nic);
        builder = builder
            .interface(tap, &[&format!("{address}/{PREFIX}")])
            .map_err(|e| Error::Run(e.to_string()))?;
        hosts.push(address);
    }
    let job = Job::new(false)?;
    let (_, roles) = linux::roles(settings);
    let (mut fars, mut peers) = (Vec::new(), Vec::new());
    for (i, nics) in nics_by_thread(settings, configuration)
        .into_iter()
        .enumerate()
    {
        let (near, far) = sockets::sides(nics, settings.nics);
        fars.push(Far::Kernel(near));
        let site = Worksite {
            namespace: Some(namespace.clone()),
            options: sockets::Options::of(settings),
            deadline,
        };
        let make = move |control: &Control| far.establish(&site, control);
        peers.push((format!("peer-{i}"), job.worker(roles, None, make)));
    }
    let founders = founders(&org, builder, configuration)?;
    let end = End::near(settings, configuration, founders, fars, hosts, job.content);
    let counters = Counters {
        marks: end.marks.clone(),
        threads: configuration.threads,
    };
    let mut all = workers(settings, configuration, end, deadline);
    all.append(&mut peers);
    Ok(Box::new(TapSession {
        workers: Workers::start(all)?,
        _file: job.file,
        namespace,
        counters,
    }))
}

/// The counters of a stack on a TAP interface.
#[derive(Clone)]
pub(crate) struct Counters {
    /// Their readings.
    pub(super) marks: Marks,
    /// Threads of the application that are under test; they come first.
    pub(super) threads: usize,
}

impl Counters {
    /// What they say of what was seen.
    pub(crate) fn seen(&self, told: &[Option<Tally>]) -> Seen {
        Seen {
            times: None,
            ..end::seen(&told[..self.threads], self.marks.seen())
        }
    }

    /// What the threads received, with the stack's counters. What the stack and the kernel do
    /// inside our calls can't be told apart.
    ///
    /// # Errors
    /// The counters were not read.
    pub(crate) fn sample(
        &self,
        tallies: &[Tally],
        window: (Machine, Duration),
    ) -> Result<Sample, Error> {
        let counted = self.marks.counted()?;
        let times = Times {
            stack: None,
            peer: None,
            ..divide(&tallies[..self.threads], &counted)
        };
        Ok(counted.sample(tallies, window, times))
    }
}

/// A prepared run. The workers come first, so that their threads, which have descriptor tables of
/// their own, have ended before what they share is dropped.
struct TapSession {
    workers: Workers,
    _file: Arc<rustix::fd::OwnedFd>,
    namespace: Arc<Namespace>,
    counters: Counters,
}

impl Session for TapSession {
    fn watch(&mut self, watch: Watch) {
        let counters = self.counters.clone();
        let view = move |told: &[Option<Tally>]| Seen {
            goodput: live::rate(told, Tally::sunk),
            ..counters.seen(told)
        };
        self.workers.watch(watch, Box::new(view));
    }

    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.workers.run(Phase::Warm, time)
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let retransmits = self.namespace.retransmits()?;
        let window = Window::open();
        self.workers.run(Phase::Measure, time)?;
        let window = window.close();
        let retransmits = self.namespace.retransmits()?.saturating_sub(retransmits);
        let TapSession {
            workers, counters, ..
        } = *self;
        let mut sample = counters.sample(&workers.finish()?, window)?;
        sample.retransmits += retransmits;
        Ok(sample)
    }
}
