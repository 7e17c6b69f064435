//! The null stack: a row of its own, to which every stack over the memory NIC can only add, and
//! that none over a device of the host can exceed by much.

use super::raw;
use crate::{
    Error, host,
    session::{Backend, Session, Traits, Window},
    workload::{Configuration, Sample, Settings, Times, sample::disturbances},
};
use perimeter::{
    Native,
    link::null::{self, NullConfig, NullReport},
};
use std::time::{Duration, Instant};

/// Segments of the warm-up.
const WARM: u64 = 100_000;
/// Segments that a connection sends in a turn, as a window's opening lets a stack send.
const BURST: usize = 16;
/// Longest measurement: the floor is no random variable.
const LONGEST: Duration = Duration::from_millis(500);

/// The backend of the row `null`.
#[derive(Debug, Default)]
pub struct Floor;

impl Backend for Floor {
    fn check(&mut self, settings: &Settings, _: &[Configuration]) -> Result<(), Error> {
        match settings.device.is_to_kernel() {
            true => raw::check(settings),
            false => Ok(()),
        }
    }

    fn traits(&self, settings: &Settings, _: &Configuration) -> Traits {
        Traits {
            device: settings.device.to_string(),
            inbound: "none".into(),
            comparable: false,
            notes: match settings.device.is_to_kernel() {
                true => raw::notes(settings),
                false => vec![
                    "null: benchmark overhead without TCP, a lower bound for the other rows".into(),
                ],
            },
        }
    }

    fn prepare(
        &mut self,
        settings: &Settings,
        configuration: &Configuration,
        _: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        if settings.device.is_to_kernel() {
            return raw::prepare(settings, configuration);
        }
        let mut nic = super::mem::nic_config(settings, configuration, 0);
        nic.gbps = None;
        Ok(Box::new(FloorSession {
            config: NullConfig::default()
                .with_nic(nic)
                .with_connections(configuration.connections as usize)
                .with_segments(WARM)
                .with_burst(BURST),
        }))
    }
}

struct FloorSession {
    config: NullConfig,
}

impl FloorSession {
    /// Runs it on a pinned thread of its own; with the thread's CPU time and delays.
    fn run(&self) -> Result<(NullReport, host::Scheduled), Error> {
        let config = self.config.clone();
        let body = move || {
            host::pin(0);
            let before = host::Scheduled::here();
            let cpu = host::thread_cpu_ns();
            let report = null::run(&Native::default(), &config);
            let mut spent = host::Scheduled::here().since(&before);
            spent.cpu_ns = host::thread_cpu_ns() - cpu;
            report.map(|r| (r, spent))
        };
        let outcome = std::thread::Builder::new()
            .name("null".into())
            .spawn(body)
            .map_err(|source| Error::Io {
                context: "starting a thread".into(),
                source,
            })?
            .join();
        match outcome {
            Ok(report) => report.map_err(|e| Error::Run(format!("the null stack: {e}"))),
            Err(_) => Err(Error::Run("the null stack panicked".into())),
        }
    }
}

impl Session for FloorSession {
    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        let (report, _) = self.run()?;
        let each = (report.stack_ns + report.peer_ns).max(1.0);
        // For as long as the warm-up at first; `measure` corrects it.
        self.config.segments = (time.as_nanos() as f64 / each) as u64;
        Ok(())
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let (report, _) = self.run()?;
        let each = (report.stack_ns + report.peer_ns).max(1.0);
        self.config.segments = (time.min(LONGEST).as_nanos() as f64 / each) as u64;
        let window = Window::open();
        let (report, spent) = self.run()?;
        let (machine, elapsed) = window.close();
        let times = times(&report, spent);
        let bytes = report.segments as f64 * f64::from(report.payload);
        let wall = (report.stack_ns + report.peer_ns) * report.segments as f64 / 1e9;
        Ok(Sample {
            elapsed,
            goodput: bytes / wall,
            segments: bytes / crate::workload::settings::SEGMENT as f64,
            times,
            cpu_ns: times.cpu,
            context_switches: machine.voluntary + machine.involuntary,
            involuntary_switches: machine.involuntary,
            migrations: machine.migrations,
            valid: times.valid(),
            disturbances: disturbances(&machine, elapsed, 1, &times),
            ..Sample::default()
        })
    }
}

/// Takes the time that others had the core out of the report's wall times: it strikes in
/// proportion to time.
fn times(report: &NullReport, spent: host::Scheduled) -> Times {
    let share = spent.cpu_ns as f64 / (spent.cpu_ns + spent.delay_ns).max(1) as f64;
    let segments = report.segments as f64;
    let on_cpu = |ns: f64| (ns * segments * share) as u64;
    let elapsed = ((report.stack_ns + report.peer_ns) * segments) as u64;
    let (stack, peer) = (on_cpu(report.stack_ns), on_cpu(report.peer_ns));
    Times {
        elapsed,
        cpu: stack + peer,
        preempted: elapsed.saturating_sub(stack + peer),
        stack: Some(stack),
        peer: Some(peer),
        ..Times::default()
    }
}
