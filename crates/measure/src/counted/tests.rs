use super::*;
use crate::{host, organizations::Organization};
use perf_event::events::Software;
use session::Backend as _;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Events that kernels have on every machine: processor time stands for instructions.
fn of_software() -> [Builder<'static>; 4] {
    [
        Builder::new(Software::TASK_CLOCK),
        Builder::new(Software::CONTEXT_SWITCHES),
        Builder::new(Software::PAGE_FAULTS),
        Builder::new(Software::CPU_MIGRATIONS),
    ]
}

/// Uses the calling thread's processor for so long.
fn work(time: Duration) {
    let end = host::thread_cpu_ns() + time.as_nanos() as u64;
    while host::thread_cpu_ns() < end {}
}

/// A run on one thread that works while it is prepared, measured and ended.
struct Busy;
struct Running(mpsc::Sender<Duration>, thread::JoinHandle<()>);

const MS: Duration = Duration::from_millis(1);

impl session::Backend for Busy {
    fn check(&mut self, _: &Settings, _: &[Configuration]) -> Result<(), Error> {
        Ok(())
    }

    fn traits(&self, _: &Settings, _: &Configuration) -> Traits {
        Traits::default()
    }

    fn prepare(
        &mut self,
        _: &Settings,
        _: &Configuration,
        _: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        let (ask, asked) = mpsc::channel();
        let ready = Arc::new(AtomicBool::new(false));
        let told = ready.clone();
        let body = move || {
            work(80 * MS);
            told.store(true, Ordering::Release);
            asked.iter().for_each(work);
        };
        let thread = thread::spawn(body);
        while !ready.load(Ordering::Acquire) {
            thread::sleep(MS);
        }
        Ok(Box::new(Running(ask, thread)))
    }
}

impl Session for Running {
    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        work(time);
        Ok(())
    }

    fn measure(self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let Running(ask, thread) = *self;
        ask.send(20 * MS).unwrap();
        // Its end is not counted; on a busy machine counters stop late.
        thread::sleep(time + 300 * MS);
        ask.send(80 * MS).unwrap();
        drop(ask);
        thread.join().unwrap();
        Ok(Sample::default())
    }
}

fn configuration() -> Configuration {
    Configuration {
        organization: Organization::Null,
        connections: 1,
        threads: 1,
    }
}

/// The whole way with counters that are there without a processor's: a thread that the run has
/// started is counted, while the run is measured and at no other time.
#[test]
fn what_threads_do_while_measured_is_counted() {
    let mut backend = Backend {
        events: of_software,
        ..Backend::new(Box::new(Busy))
    };
    let (settings, configuration) = (Settings::default(), configuration());
    if let Err(e) = backend.check(&settings, &[]) {
        eprintln!("skipped: {e}");
        return;
    }
    let mut session = backend.prepare(&settings, &configuration, None).unwrap();
    session.warm_up(50 * MS).unwrap();
    let sample = session.measure(200 * MS).unwrap();
    let counted = sample.counted.unwrap();
    let time = Duration::from_nanos(counted.instructions.unwrap());
    // A busy machine may not let it finish in time; it never does more.
    assert!(time >= 5 * MS && time < 50 * MS, "{counted:?}");
    assert!(counted.seconds >= 0.2);
    assert!(counted.cycles.is_some() && counted.last_level.is_some());
}

#[test]
fn a_failed_run_is_not_waited_for() {
    struct Fails;
    impl Session for Fails {
        fn warm_up(&mut self, _: Duration) -> Result<(), Error> {
            Ok(())
        }
        fn measure(self: Box<Self>, _: Duration) -> Result<Sample, Error> {
            Err(Error::Run("no".into()))
        }
    }
    let Ok(counters) = Counters::open(of_software) else {
        eprintln!("skipped: no perf events");
        return;
    };
    let run = Box::new(Run {
        inner: Box::new(Fails),
        counters,
    });
    let begun = Instant::now();
    let error = run.measure(Duration::from_secs(3600)).unwrap_err();
    assert_eq!(error.to_string(), "no");
    assert!(begun.elapsed() < Duration::from_secs(60));
}

/// Where there are no counters of the processor's, a run says so before it begins.
#[test]
fn without_counters_it_says_so() {
    let mut backend = Backend::new(Box::new(Busy));
    match backend.check(&Settings::default(), &[configuration()]) {
        Ok(()) => assert!(backend.kernel.is_some()),
        Err(e) => {
            assert!(matches!(e, Error::Unavailable(_)));
            assert!(e.to_string().contains("not measured here: "), "{e}");
        }
    }
    let table = [
        (rustix::io::Errno::NOENT, "virtual machines"),
        (rustix::io::Errno::ACCESS, "perf_event_paranoid is 3"),
        (rustix::io::Errno::PERM, "perf_event_paranoid is 3"),
        (rustix::io::Errno::NOSYS, "no perf events"),
        (rustix::io::Errno::MFILE, "open files"),
    ];
    for (errno, says) in table {
        let reason = why(&io::Error::from(errno), "3");
        assert!(reason.contains(says), "{reason}");
    }
}

#[test]
fn counters_that_took_turns_are_extrapolated() {
    assert_eq!(scaled(100, 50, 50), Some(100));
    assert_eq!(scaled(100, 50, 25), Some(200));
    assert_eq!(scaled(u64::MAX / 2, 1 << 40, 1 << 39), Some(u64::MAX - 1));
    assert_eq!(scaled(0, 50, 0), None);
}
