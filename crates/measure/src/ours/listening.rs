//! Listen and close, over and over, and nothing else: what it costs that every group of connections,
//! or every thread that owns one, has to know of a listener.

use super::{
    end::{builder, spec},
    mem,
    times::PROTOCOL,
};
use crate::{
    Error,
    error::Context as _,
    host::{self, Scheduled},
    session::{Backend, Session, Traits, Window},
    workload::{Configuration, Sample, Settings, Times, latencies, sample::disturbances, summary},
};
use hdrhistogram::Histogram;
use perimeter::{Native, Stack};
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

/// Port of the listeners.
const PORT: u16 = 5001;

/// The backend of runs that make listeners.
#[derive(Debug, Default)]
pub struct Listening;

impl Backend for Listening {
    fn check(&mut self, _: &Settings, configurations: &[Configuration]) -> Result<(), Error> {
        configurations.iter().try_for_each(|c| spec(c).map(drop))
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
        _: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        let org = spec(configuration)?;
        let native = Native::default().with_policy(settings.locks);
        let builder = builder(&org, settings, native);
        let (builder, _) = mem::with_nics(&native, builder, settings, configuration)?;
        Ok(Box::new(ListeningSession {
            stack: builder.build().map_err(|e| Error::Run(e.to_string()))?,
            at: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT),
        }))
    }
}

/// A stack that belongs to the thread that prepared it.
struct ListeningSession {
    stack: Stack,
    at: SocketAddrV4,
}

impl ListeningSession {
    /// Makes listeners for so long: how long each took until it was closed, in ns.
    fn run(&self, time: Duration) -> Result<Histogram<u64>, Error> {
        let mut took = latencies();
        let end = Instant::now() + time;
        loop {
            let begun = Instant::now();
            if begun >= end {
                return Ok(took);
            }
            drop(self.stack.listen(self.at).context("listening")?);
            took.saturating_record(begun.elapsed().as_nanos() as u64);
        }
    }
}

impl Session for ListeningSession {
    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.run(time).map(drop)
    }

    fn measure(self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let (before, cpu) = (Scheduled::here(), host::thread_cpu_ns());
        let window = Window::open();
        let took = self.run(time)?;
        let (machine, elapsed) = window.close();
        let cpu = host::thread_cpu_ns() - cpu;
        let preempted = Scheduled::here().since(&before).delay_ns;
        let wall = elapsed.as_nanos() as u64;
        let times = Times {
            elapsed: wall,
            cpu,
            preempted,
            idle: wall.saturating_sub(cpu + preempted),
            ..Times::default()
        };
        let threads = 1 + Scheduled::named(PROTOCOL).threads;
        Ok(Sample {
            elapsed,
            rounds: took.len(),
            latency: summary(std::iter::once(took)),
            times,
            cpu_ns: machine.cpu_ns(),
            context_switches: machine.voluntary + machine.involuntary,
            involuntary_switches: machine.involuntary,
            migrations: machine.migrations,
            valid: times.valid(),
            disturbances: disturbances(&machine, elapsed, threads, &times),
            ..Sample::default()
        })
    }
}
