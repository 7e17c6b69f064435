//! One run and a whole benchmark: prepare, warm up, measure, tear down; interleaved.

use crate::{
    Error,
    host::{Host, SoftirqThreads},
    linux,
    organizations::Organization,
    ours,
    plan::{self, Budget, Configuration, Slot},
    progress::{Observer, Run},
    report::{self, Build, Report},
    settings::{SEGMENT, Settings},
    workload::Tally,
};
use std::time::{Duration, Instant, SystemTime};

/// Share of elapsed thread time by which the accounted parts may differ from it.
pub const TOLERANCE: f64 = 0.05;

/// Counters of one lock class over a run.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Locks {
    /// Name of the class.
    pub class: String,
    /// Acquisitions, contended or not.
    pub acquisitions: u64,
    /// Those whose first attempt failed because another thread held the lock.
    pub contended: u64,
    /// Time spent waiting, in ns.
    pub wait_ns: u64,
    /// Time held, in ns.
    pub hold_ns: u64,
}

/// Division of thread time, in ns, summed over the threads under test.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Elapsed time of all threads.
    pub elapsed: u64,
    /// Their CPU clocks.
    pub cpu: u64,
    /// Ready to run while others had the core: a disturbance, part of no other share.
    pub preempted: u64,
    /// In the application's event loop.
    pub app: u64,
    /// In the stack; `None` where it can't be told from the peer.
    pub stack: Option<u64>,
    /// In the ideal peer; `None` where it can't be told from the stack.
    pub peer: Option<u64>,
    /// Spinning or polling without result; uses the processor.
    pub spin: u64,
    /// Parked, without a processor.
    pub idle: u64,
}

impl Times {
    /// Sums what the threads under test report. Time inside an endpoint's calls that is neither
    /// peer, spinning nor idle is the stack's.
    pub fn of(tallies: &[Tally]) -> Times {
        let mut times = Times::default();
        let mut told = true;
        let (mut stack, mut peer) = (0u64, 0u64);
        for t in tallies {
            times.elapsed += t.elapsed_ns;
            times.cpu += t.cpu_ns;
            times.app += t.app_ns;
            if let Some(inside) = t.inside {
                peer += inside.peer_ns;
                times.spin += inside.spin_ns;
                times.idle += inside.idle_ns;
                let rest = inside.peer_ns + inside.spin_ns + inside.idle_ns;
                stack += (t.call_ns + t.wait_ns).saturating_sub(rest);
            } else {
                told = false;
                times.idle += t.elapsed_ns.saturating_sub(t.cpu_ns + t.delay_ns);
            }
            times.preempted += t.delay_ns;
        }
        if told && !tallies.is_empty() {
            (times.stack, times.peer) = (Some(stack), Some(peer));
        }
        times
    }

    /// Whether the accounting holds within [`TOLERANCE`] of elapsed thread time: the parts, and the
    /// time for which others had the core, sum to it, and the parts that use the processor agree
    /// with the threads' CPU clocks, which are read from another source. Where stack and peer can't be told apart, the application and idle
    /// parts must leave room for them.
    pub fn valid(&self) -> bool {
        if self.elapsed == 0 {
            return false;
        }
        let slack = self.elapsed as f64 * TOLERANCE;
        let near = |a: u64, b: u64| (a.abs_diff(b) as f64) <= slack;
        match (self.stack, self.peer) {
            (Some(stack), Some(peer)) => {
                let busy = self.app + stack + peer + self.spin;
                near(busy + self.idle + self.preempted, self.elapsed) && near(busy, self.cpu)
            }
            _ => (self.app + self.idle) as f64 <= self.elapsed as f64 + slack,
        }
    }
}

impl Times {
    /// A sign of disturbance if others had the core for more than [`TOLERANCE`] of the time.
    pub fn disturbance(&self) -> Option<String> {
        let share = self.preempted as f64 / self.elapsed.max(1) as f64;
        (share > TOLERANCE).then(|| {
            format!(
                "for {:.0} % of the time of the threads under test others had their cores",
                share * 100.0
            )
        })
    }
}

/// What one run measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Measured wall time.
    pub elapsed: Duration,
    /// Payload per second, in bytes.
    pub goodput: f64,
    /// Payload in full-segment units of [`SEGMENT`] bytes.
    pub segments: f64,
    /// Division of the time of the threads under test.
    pub times: Times,
    /// CPU time of the whole machine for this run, in ns.
    pub cpu_ns: u64,
    /// Lock counters by class; empty where there are none to see.
    pub locks: Vec<Locks>,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Voluntary and involuntary context switches of the process.
    pub context_switches: u64,
    /// Involuntary ones of those.
    pub involuntary_switches: u64,
    /// Bytes of the least-served connection.
    pub connection_min: u64,
    /// Bytes of the median connection.
    pub connection_median: u64,
    /// Received bytes that were compared with their expected content.
    pub verified_bytes: u64,
    /// Whether the accounting holds.
    pub valid: bool,
    /// Signs that something else disturbed the run.
    pub disturbances: Vec<String>,
}

impl Sample {
    /// Payload in [`SEGMENT`] units, given bytes.
    pub fn segments_in(bytes: u64) -> f64 {
        bytes as f64 / SEGMENT as f64
    }
}

/// A prepared configuration: connections are established, nothing is sent yet.
pub trait Session {
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

/// The backend of a configuration.
fn backend_for(configuration: &Configuration) -> Box<dyn Backend> {
    match &configuration.organization {
        Organization::Linux { .. } => Box::new(linux::Kernel::default()),
        Organization::Ours(_) => Box::new(ours::Perimeter::default()),
        Organization::Null => Box::new(ours::Floor),
    }
}

/// First guess of a run's set-up and teardown, before one was seen: namespaces or devices, and
/// about 60 µs for each connection.
fn first_guess(configuration: &Configuration) -> Duration {
    Duration::from_millis(100) + Duration::from_micros(60) * configuration.connections
}

/// Runs the whole benchmark. `started` is when the command began: the bound of a quick run counts
/// from there.
///
/// # Errors
/// [`Error::Input`] and [`Error::Unavailable`] come before anything has run; others end the
/// benchmark.
pub fn bench(
    settings: &Settings,
    build: Build,
    started: Instant,
    observer: &mut dyn Observer,
) -> Result<Report, Error> {
    settings.check()?;
    let grid = plan::grid(settings);
    let mut backends: Vec<Box<dyn Backend>> = grid.iter().map(backend_for).collect();
    for (backend, configuration) in backends.iter_mut().zip(&grid) {
        backend.check(settings, std::slice::from_ref(configuration))?;
    }
    let begun = SystemTime::now();
    let mut bench = Bench {
        settings,
        started,
        budget: Budget::new(settings),
        set_up: grid.iter().map(first_guess).collect(),
        samples: vec![Vec::new(); grid.len()],
        skipped: vec![false; grid.len()],
        backends,
        grid,
    };
    let outcome = bench.run(observer);
    observer.done();
    let passes = outcome?;
    let rows = bench
        .grid
        .iter()
        .zip(&bench.backends)
        .zip(&bench.samples)
        .filter(|(_, samples)| !samples.is_empty())
        .map(|((c, b), samples)| {
            let mut traits = b.traits(settings, c);
            if c.threads < settings.threads && c.organization != Organization::Null {
                traits.notes.push(format!(
                    "{} is one thread; --threads applies to the other rows",
                    c.organization
                ));
            }
            report::row(settings, c, &traits, samples)
        })
        .collect();
    let notes = bench.notes(passes);
    Ok(Report::new(
        settings,
        build,
        Host::read(),
        begun,
        rows,
        notes,
    ))
}

struct Bench<'a> {
    settings: &'a Settings,
    started: Instant,
    budget: Budget,
    grid: Vec<Configuration>,
    backends: Vec<Box<dyn Backend>>,
    set_up: Vec<Duration>,
    samples: Vec<Vec<Sample>>,
    skipped: Vec<bool>,
}

impl Bench<'_> {
    /// All passes; returns how many were complete or begun.
    fn run(&mut self, observer: &mut dyn Observer) -> Result<u32, Error> {
        let order = plan::interleaved(self.grid.len(), self.settings.repeat);
        let mut passes = 0;
        for (number, &(pass, index)) in order.iter().enumerate() {
            if pass == passes {
                let fits = self.budget.pass_fits(self.started.elapsed(), &self.set_up);
                if pass > 0 && !fits {
                    break;
                }
                passes += 1;
            }
            // The rest of this pass shares the time, and so do later passes as long as each run
            // can have a good length: half the time is kept for them.
            let rest: Vec<Duration> = order[number..]
                .iter()
                .map(|&(_, i)| self.set_up[i])
                .collect();
            let this_pass = order[number..].iter().filter(|o| o.0 == pass).count();
            let slot = self
                .budget
                .slot(self.started.elapsed(), &rest)
                .filter(|_| rest.len() == this_pass || self.room_for(&rest))
                .or_else(|| self.budget.slot(self.started.elapsed(), &rest[..this_pass]));
            let Some(slot) = slot else {
                self.skipped[index] = self.samples[index].is_empty();
                continue;
            };
            observer.started(&Run {
                number: number + 1,
                of: order.len(),
                configuration: &self.grid[index],
                slot,
                left: rest.iter().sum::<Duration>()
                    + (slot.warm_up + slot.measure) * rest.len() as u32,
            });
            let sample = match self.once(index, slot) {
                // A machine that is busy with other things: left out, not failed.
                Err(Error::Late(_)) if self.budget.limit().is_some() => {
                    self.skipped[index] = self.samples[index].is_empty();
                    continue;
                }
                sample => sample?,
            };
            observer.finished(sample.goodput * 8.0 / 1e6);
            self.samples[index].push(sample);
        }
        Ok(passes)
    }

    /// Whether all runs of `rest` fit at twice the shortest length.
    fn room_for(&self, rest: &[Duration]) -> bool {
        let Some(limit) = self.budget.limit() else {
            return true;
        };
        let need: Duration = rest.iter().sum::<Duration>() + 2 * plan::SHORTEST * rest.len() as u32;
        self.started.elapsed() + need <= limit
    }

    fn once(&mut self, index: usize, slot: Slot) -> Result<Sample, Error> {
        let configuration = &self.grid[index];
        let deadline = self.budget.limit().map(|l| self.started + l);
        let before = Instant::now();
        let name = || {
            format!(
                "{} with {} connections",
                configuration.organization, configuration.connections
            )
        };
        let wrap = |e: Error| match e {
            Error::Io { context, source } => Error::Io {
                context: format!("{}: {context}", name()),
                source,
            },
            Error::Run(line) => Error::Run(format!("{}: {line}", name())),
            Error::Late(line) => Error::Late(format!("{}: {line}", name())),
            other => other,
        };
        let mut session = self.backends[index]
            .prepare(self.settings, configuration, deadline)
            .map_err(wrap)?;
        session.warm_up(slot.warm_up).map_err(wrap)?;
        let sample = session.measure(slot.measure).map_err(wrap)?;
        let overhead = before.elapsed().saturating_sub(slot.warm_up + slot.measure);
        self.set_up[index] = overhead;
        Ok(sample)
    }

    fn notes(&self, passes: u32) -> Vec<String> {
        let mut notes = Vec::new();
        let limit = plan::QUICK.as_secs();
        if passes < self.settings.repeat {
            notes.push(format!(
                "--quick: {passes} of {} repeats fit into {limit} s",
                self.settings.repeat
            ));
        }
        let skipped: Vec<String> = self
            .grid
            .iter()
            .zip(&self.skipped)
            .filter(|(_, skipped)| **skipped)
            .map(|(c, _)| format!("{} × {}", c.organization, c.connections))
            .collect();
        if !skipped.is_empty() {
            notes.push(format!(
                "--quick: not measured, as {limit} s are too short for a meaningful number: {}; \
                 list fewer configurations or leave --quick out",
                skipped.join(", ")
            ));
        }
        notes
    }
}

/// Machine-wide counters around a measurement, shared by the backends.
#[derive(Debug)]
pub struct Window {
    softirq: SoftirqThreads,
    before: crate::host::Machine,
    begun: Instant,
}

impl Window {
    /// Opens the window now.
    pub fn open() -> Self {
        let softirq = SoftirqThreads::find();
        Window {
            before: crate::host::Machine::read(&softirq),
            begun: Instant::now(),
            softirq,
        }
    }

    /// Closes it: what the machine did, and for how long.
    pub fn close(self) -> (crate::host::Machine, Duration) {
        let elapsed = self.begun.elapsed();
        let after = crate::host::Machine::read(&self.softirq);
        (after.since(&self.before), elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Inside;

    fn tally(elapsed: u64, cpu: u64, app: u64, inside: Option<Inside>) -> Tally {
        Tally {
            elapsed_ns: elapsed,
            cpu_ns: cpu,
            app_ns: app,
            call_ns: (elapsed - app) / 2,
            wait_ns: elapsed - app - (elapsed - app) / 2,
            inside,
            ..Tally::default()
        }
    }

    #[test]
    fn parts_that_agree_with_the_cpu_clock_are_valid() {
        let inside = Inside {
            peer_ns: 200,
            spin_ns: 50,
            idle_ns: 100,
        };
        let times = Times::of(&[tally(1000, 900, 150, Some(inside))]);
        assert_eq!(times.stack, Some(500));
        assert!(times.valid());
        // The thread was off its core for 10 % of the time: the wall-clock parts are wrong.
        assert!(!Times::of(&[tally(1000, 800, 150, Some(inside))]).valid());
        // More idle than there was time: the endpoint's own clock is wrong.
        let wrong = Inside {
            idle_ns: 1000,
            ..inside
        };
        assert!(!Times::of(&[tally(1000, 900, 150, Some(wrong))]).valid());
        assert!(!Times::default().valid());
    }

    #[test]
    fn without_division_stack_and_peer_are_unknown() {
        let times = Times::of(&[tally(1000, 900, 150, None)]);
        assert_eq!((times.stack, times.peer, times.idle), (None, None, 100));
        assert!(times.valid());
    }
}
