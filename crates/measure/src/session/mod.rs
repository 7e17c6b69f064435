//! What a backend does with one configuration: prepare, warm up, measure, tear down.

mod workers;

pub use workers::{View, Worker, Workers};

use crate::{
    Error,
    host::{self, Machine, SoftirqThreads},
    live::{Feed, Watch},
    workload::{Configuration, Sample, Settings},
};
use std::time::{Duration, Instant};

/// How long one run may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Time before counting starts.
    pub warm_up: Duration,
    /// Counted time.
    pub measure: Duration,
}

/// A prepared configuration: connections are established, nothing is sent yet.
pub trait Session {
    /// Lets `watch` know what happens from now on; sessions that can't look in between don't.
    fn watch(&mut self, watch: Watch) {
        let _ = watch;
    }

    /// Lets traffic flow for `time` without counting.
    ///
    /// # Errors
    /// What went wrong; the session is of no more use.
    fn warm_up(&mut self, time: Duration) -> Result<(), Error>;

    /// Counts for `time`, then stops the traffic and tears everything down.
    ///
    /// # Errors
    /// What went wrong.
    fn measure(self: Box<Self>, time: Duration) -> Result<Sample, Error>;
}

/// Facts about a backend's row that don't change between runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traits {
    /// Device as recorded.
    pub device: String,
    /// Inbound mode as recorded.
    pub inbound: String,
    /// Whether the row may be compared with the others.
    pub comparable: bool,
    /// Remarks for the report.
    pub notes: Vec<String>,
}

/// Something that can run the workload.
pub trait Backend {
    /// Checks, before anything runs, that every configuration can: privileges, devices, limits.
    /// Leaves nothing behind.
    ///
    /// # Errors
    /// [`Error::Input`] or [`Error::Unavailable`] with one line.
    fn check(&mut self, settings: &Settings, configurations: &[Configuration])
    -> Result<(), Error>;

    /// What the report says about this configuration's row.
    fn traits(&self, settings: &Settings, configuration: &Configuration) -> Traits;

    /// Establishes the connections of one run. `deadline` bounds the preparation.
    ///
    /// # Errors
    /// What went wrong; nothing is left behind.
    fn prepare(
        &mut self,
        settings: &Settings,
        configuration: &Configuration,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error>;
}

/// First guess of a run's set-up and teardown, before one was seen: namespaces or devices, and
/// about 25 µs for each connection (seen on two cores: 10 to 20 ms, and 20 µs).
pub fn first_guess(configuration: &Configuration) -> Duration {
    Duration::from_millis(30) + Duration::from_micros(25) * configuration.connections
}

/// One whole run: prepares, warms up, measures. Returns the sample, and how long everything but the
/// slot took. `watched`: somebody watches it.
///
/// # Errors
/// What went wrong, with the configuration's name.
pub fn once(
    backend: &mut dyn Backend,
    settings: &Settings,
    configuration: &Configuration,
    slot: Slot,
    deadline: Option<Instant>,
    watched: Option<&Feed>,
) -> Result<(Sample, Duration), Error> {
    let before = Instant::now();
    let name = || {
        format!(
            "{} with {} connections",
            configuration.organization, configuration.connections
        )
    };
    let mut run = || {
        let mut session = backend.prepare(settings, configuration, deadline)?;
        if let Some(feed) = watched {
            session.watch(Watch::begin(feed, configuration)?);
        }
        session.warm_up(slot.warm_up)?;
        session.measure(slot.measure)
    };
    host::timers_on_time();
    let apart = host::apart::round_trip();
    let mut sample = run().map_err(|e| match e {
        Error::Io { context, source } => Error::Io {
            context: format!("{}: {context}", name()),
            source,
        },
        Error::Run(line) => Error::Run(format!("{}: {line}", name())),
        Error::Late(line) => Error::Late(format!("{}: {line}", name())),
        other => other,
    })?;
    // Nothing that was modelled depends on it.
    if sample.modelled.is_none() {
        sample.core_round_trip_ns = apart;
        let sign = apart.and_then(host::apart::sign);
        sample.disturbances.extend(sign);
    }
    let overhead = before.elapsed().saturating_sub(slot.warm_up + slot.measure);
    Ok((sample, overhead))
}

/// Machine-wide counters around a measurement, shared by the backends.
#[derive(Debug)]
pub struct Window {
    softirq: SoftirqThreads,
    before: Machine,
    begun: Instant,
}

impl Window {
    /// Opens the window now.
    pub fn open() -> Self {
        let softirq = SoftirqThreads::find();
        let migrations = host::migrations();
        Window {
            before: Machine {
                migrations,
                ..Machine::read(&softirq)
            },
            begun: Instant::now(),
            softirq,
        }
    }

    /// Closes it: what the machine did, and for how long.
    pub fn close(self) -> (Machine, Duration) {
        let elapsed = self.begun.elapsed();
        let mut after = Machine::read(&self.softirq);
        after.migrations = host::migrations();
        (after.since(&self.before), elapsed)
    }
}
