//! Cache misses as the processor counts them: perf events, where the kernel has the processor's.
//!
//! Counters follow each thread and process that the calling thread starts once they are open,
//! and whatever those start: they are opened before a run is prepared. They count for as long as
//! the run is to be measured, and not while it ends, so with what was counted goes how long.

use crate::{
    Error,
    live::Watch,
    misses::Counted,
    session::{self, Session, Traits},
    workload::{Configuration, Sample, Settings},
};
use perf_event::{
    Builder, Counter,
    events::{Cache, CacheId, CacheOp, CacheResult, Hardware},
};
use std::{
    fs, io,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// What is counted, in the order of the fields of [`Counted`].
type Events = fn() -> [Builder<'static>; 4];

fn of_the_processor() -> [Builder<'static>; 4] {
    let missed = |which| Cache {
        which,
        operation: CacheOp::READ,
        result: CacheResult::MISS,
    };
    [
        Builder::new(Hardware::INSTRUCTIONS),
        Builder::new(Hardware::CPU_CYCLES),
        Builder::new(missed(CacheId::L1D)),
        Builder::new(missed(CacheId::LL)),
    ]
}

/// Whether the processor's events can be counted here.
///
/// # Errors
/// [`Error::Unavailable`] with why not.
pub fn available() -> Result<(), Error> {
    Counters::open(of_the_processor).map(drop)
}

/// Open counters, which stand still.
struct Counters {
    each: [Option<Counter>; 4],
    kernel: bool,
}

impl Counters {
    /// Opens those that there are.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there are none.
    fn open(events: Events) -> Result<Counters, Error> {
        let open =
            |kernel: bool| events().map(|mut e| e.inherit(true).exclude_kernel(!kernel).build());
        let refused = |c: &io::Result<Counter>| matches!(c, Err(e) if e.kind() == io::ErrorKind::PermissionDenied);
        let mut each = open(true);
        // Who is not privileged may still count what happens outside of the kernel.
        let kernel = !each.iter().any(refused);
        if !kernel {
            each = open(false);
        }
        if let [Err(e), rest @ ..] = &each
            && rest.iter().all(Result::is_err)
        {
            let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
            return Err(Error::Unavailable(format!(
                "not measured here: {}",
                why(e, paranoid.unwrap_or_default().trim())
            )));
        }
        Ok(Counters {
            each: each.map(Result::ok),
            kernel,
        })
    }

    fn start(&mut self) -> Result<(), Error> {
        for counter in self.each.iter_mut().flatten() {
            counter.enable().map_err(failed)?;
        }
        Ok(())
    }

    /// Stops them; what they counted since they were started, `seconds` ago.
    fn stop(mut self, begun: Instant) -> Result<Counted, Error> {
        for counter in self.each.iter_mut().flatten() {
            counter.disable().map_err(failed)?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let mut counts = [None; 4];
        for (count, counter) in counts.iter_mut().zip(&mut self.each) {
            if let Some(counter) = counter {
                let read = counter.read_count_and_time().map_err(failed)?;
                *count = scaled(read.count, read.time_enabled, read.time_running);
            }
        }
        let [instructions, cycles, first_level, last_level] = counts;
        Ok(Counted {
            seconds,
            kernel: self.kernel,
            instructions,
            cycles,
            first_level,
            last_level,
        })
    }
}

fn failed(e: io::Error) -> Error {
    Error::Run(format!("hardware counters: {e}"))
}

/// Why a counter can't be opened; `paranoid` is the kernel's setting.
fn why(e: &io::Error, paranoid: &str) -> String {
    use rustix::io::Errno;
    match Errno::from_io_error(e) {
        Some(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP) => {
            "the kernel offers none of the processor's counters, as on most virtual machines".into()
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            format!("not permitted (kernel.perf_event_paranoid is {paranoid})")
        }
        Some(Errno::NOSYS) => "this kernel has no perf events".into(),
        _ => e.to_string(),
    }
}

/// A count, extrapolated where counters took turns; `None` if its turn never came.
fn scaled(count: u64, enabled_ns: u64, running_ns: u64) -> Option<u64> {
    match running_ns {
        0 => None,
        n if n >= enabled_ns => Some(count),
        n => Some((u128::from(count) * u128::from(enabled_ns) / u128::from(n)) as u64),
    }
}

/// A backend whose runs are counted.
pub struct Backend {
    inner: Box<dyn session::Backend>,
    events: Events,
    /// Whether the kernel's share is in, once that is known.
    kernel: Option<bool>,
}

impl Backend {
    /// Counts what `inner` runs.
    pub fn new(inner: Box<dyn session::Backend>) -> Backend {
        Backend {
            inner,
            events: of_the_processor,
            kernel: None,
        }
    }
}

impl session::Backend for Backend {
    fn check(
        &mut self,
        settings: &Settings,
        configurations: &[Configuration],
    ) -> Result<(), Error> {
        self.kernel = Some(Counters::open(self.events)?.kernel);
        self.inner.check(settings, configurations)
    }

    fn traits(&self, settings: &Settings, configuration: &Configuration) -> Traits {
        let mut traits = self.inner.traits(settings, configuration);
        if self.kernel == Some(false) {
            let note = "counted outside of the kernel only, as more is not permitted";
            traits.notes.push(note.into());
        }
        traits
    }

    fn prepare(
        &mut self,
        settings: &Settings,
        configuration: &Configuration,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        let counters = Counters::open(self.events)?;
        let inner = self.inner.prepare(settings, configuration, deadline)?;
        Ok(Box::new(Run { inner, counters }))
    }
}

/// A prepared run with its counters.
struct Run {
    inner: Box<dyn Session>,
    counters: Counters,
}

impl Session for Run {
    fn watch(&mut self, watch: Watch) {
        self.inner.watch(watch);
    }

    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.inner.warm_up(time)
    }

    fn has_grown(&mut self) -> Result<bool, Error> {
        self.inner.has_grown()
    }

    fn measure(self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let Run {
            inner,
            mut counters,
        } = *self;
        let begun = Instant::now();
        counters.start()?;
        let (measuring, measured) = mpsc::channel::<()>();
        let counting = thread::spawn(move || {
            // The time is over, or the run is, with an error.
            let _ = measured.recv_timeout(time);
            counters.stop(begun)
        });
        let sample = inner.measure(time);
        drop(measuring);
        let counted = counting
            .join()
            .unwrap_or_else(|_| Err(Error::Run("a thread panicked".into())));
        Ok(Sample {
            counted: Some(counted?),
            ..sample?
        })
    }
}

#[cfg(test)]
mod tests;
