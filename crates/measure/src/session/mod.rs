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
    /// How long that may become until every connection has left slow start; not less.
    pub longest_warm_up: Duration,
    /// Counted time.
    pub measure: Duration,
}

impl Slot {
    /// A slot that waits for no connection to leave slow start.
    pub fn new(warm_up: Duration, measure: Duration) -> Slot {
        Slot {
            warm_up,
            longest_warm_up: warm_up,
            measure,
        }
    }

    /// The same, which waits for connections to leave slow start, but not for ever.
    #[must_use]
    pub fn until_grown(self) -> Slot {
        Slot {
            longest_warm_up: self.warm_up + LONGEST_GROWTH,
            ..self
        }
    }

    /// Roughly how long the warm-up takes where each of `connections` has to move `bytes` first.
    pub fn likely_warm_up(self, connections: u32, bytes: u64) -> Duration {
        let moved = 8.0 * f64::from(connections) * bytes as f64;
        let growth = Duration::from_secs_f64(moved / GROWTH_RATE);
        growth.clamp(self.warm_up, self.longest_warm_up)
    }
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

    /// Whether every connection has left slow start, as far as the session can tell: it has moved
    /// what a socket's buffer holds. Sessions that can't tell say yes.
    ///
    /// # Errors
    /// What went wrong; the session is of no more use.
    fn has_grown(&mut self) -> Result<bool, Error> {
        Ok(true)
    }

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

/// What is said of a run in which some connections had not left slow start when counting began.
pub const GROWING: &str = "some connections were still in slow start";
/// How much longer a warm-up may take for that. To send what 16,384 buffers of 256 KB hold takes 4 s
/// at the 9 Gb/s of a slow organization on two cores.
const LONGEST_GROWTH: Duration = Duration::from_secs(10);
/// Bits a second that all connections move while they grow, taken over all organizations (`lab run
/// throughput` on two cores: 3,072 to 16,384 connections take 0.6 to 3.5 s longer than few).
const GROWTH_RATE: f64 = 1e10;
/// How long one goes on before one looks again whether connections have left slow start.
const AGAIN: Duration = Duration::from_millis(50);

/// Warms up for as long as `slot` says. Whether every connection has left slow start then, if it says
/// to wait for that.
pub(crate) fn warm_up(session: &mut dyn Session, slot: Slot) -> Result<bool, Error> {
    let begun = Instant::now();
    session.warm_up(slot.warm_up)?;
    let waits = slot.longest_warm_up > slot.warm_up;
    while waits && !session.has_grown()? {
        if begun.elapsed() >= slot.longest_warm_up {
            return Ok(false);
        }
        session.warm_up(AGAIN)?;
    }
    Ok(true)
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
        let grown = warm_up(&mut *session, slot)?;
        let mut sample = session.measure(slot.measure)?;
        if !grown {
            sample.disturbances.push(GROWING.into());
        }
        Ok(sample)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_is_likely_as_long_as_all_that_has_to_move() {
        let slot = Slot::new(Duration::from_millis(100), Duration::from_secs(1));
        let likely = |slot: Slot, n| slot.likely_warm_up(n, 256 << 10).as_millis();
        assert_eq!(likely(slot, 16_384), 100);
        let grown = slot.until_grown();
        assert_eq!(likely(grown, 6), 100);
        assert_eq!(likely(grown, 16_384), 3435);
        assert_eq!(likely(grown, 1 << 20), 10_100);
    }

    /// Has grown when it was asked so often.
    struct Grows(u32);

    impl Session for Grows {
        fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
            std::thread::sleep(time);
            Ok(())
        }

        fn has_grown(&mut self) -> Result<bool, Error> {
            self.0 = self.0.saturating_sub(1);
            Ok(self.0 == 0)
        }

        fn measure(self: Box<Self>, _: Duration) -> Result<Sample, Error> {
            Ok(Sample::default())
        }
    }

    #[test]
    fn a_warm_up_ends_when_connections_have_grown_or_time_is_over() {
        let slot = |longest_warm_up| Slot {
            longest_warm_up,
            ..Slot::new(Duration::ZERO, Duration::ZERO)
        };
        let mut soon = Grows(2);
        assert!(warm_up(&mut soon, slot(Duration::from_secs(60))).unwrap());
        let mut never = Grows(u32::MAX);
        assert!(!warm_up(&mut never, slot(AGAIN)).unwrap());
        assert!(never.0 > u32::MAX - 10, "asked too often");
        // A slot that does not wait does not ask.
        let mut any = Grows(7);
        assert!(warm_up(&mut any, slot(Duration::ZERO)).unwrap());
        assert_eq!(any.0, 7);
    }
}
