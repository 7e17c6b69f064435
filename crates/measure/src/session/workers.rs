//! The threads of one run, moved together through its phases.

use super::Window;
use crate::{
    Error,
    host::Machine,
    live::{Seen, Watch},
    workload::{Control, Phase, Tally},
};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle, ThreadId},
    time::{Duration, Instant},
};

/// What one thread does: makes its endpoint, calls the given function when it is ready, waits until
/// that returns, and then runs [`drive()`](crate::workload::drive()).
pub type Worker = Box<dyn FnOnce(&Control, &dyn Fn()) -> Result<Tally, Error> + Send>;

/// How often the controlling thread looks for workers that failed.
const WATCH: Duration = Duration::from_millis(50);
/// Longest wait until all threads have begun to count.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Longest wait for the event loops' answers to who watches. They look up every
/// [`PATIENCE`](crate::workload::PATIENCE); a worker that has no event loop never answers.
const ANSWERS: Duration = Duration::from_secs(1);

/// What a session makes of its workers' answers, in their order; `None` of those who gave none.
pub type View = Box<dyn FnMut(&[Option<Tally>]) -> Seen + Send>;

/// The threads of a run. Dropping it stops and joins them.
#[derive(Debug)]
pub struct Workers {
    control: Arc<Control>,
    threads: Vec<JoinHandle<Result<Tally, Error>>>,
    watched: Option<Watched>,
    /// What each connection of a thread that receives has received, as far as it was asked for.
    received: HashMap<ThreadId, Vec<u64>>,
}

/// Who watches workers.
struct Watched {
    watch: Watch,
    view: View,
    /// When the event loops were asked, while their answers are awaited.
    asked: Option<Instant>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

impl Workers {
    /// Starts a thread for each named worker and waits until all are ready.
    ///
    /// # Errors
    /// The first worker's error, or the system's when a thread can't be started.
    pub fn start(workers: Vec<(String, Worker)>) -> Result<Workers, Error> {
        Workers::start_with(Control::default(), workers)
    }

    /// As [`Workers::start`], for a run whose other end may stop first: that connections end is then
    /// no error, if the stop follows soon.
    ///
    /// # Errors
    /// As there.
    pub fn start_second(workers: Vec<(String, Worker)>) -> Result<Workers, Error> {
        Workers::start_with(Control::second(), workers)
    }

    fn start_with(control: Control, workers: Vec<(String, Worker)>) -> Result<Workers, Error> {
        let (tell, ready) = mpsc::channel();
        let mut started = Workers {
            control: Arc::new(control),
            threads: Vec::with_capacity(workers.len()),
            watched: None,
            received: HashMap::new(),
        };
        for (name, worker) in workers {
            let (control, tell) = (started.control.clone(), tell.clone());
            let body = move || {
                let set = || {
                    // The controller may have given up already; the phase says so.
                    let _ = tell.send(());
                    while control.phase() == Phase::Set {
                        thread::park_timeout(Duration::from_millis(1));
                    }
                };
                worker(&control, &set)
            };
            let thread = thread::Builder::new().name(name).spawn(body);
            started.threads.push(thread.map_err(|source| Error::Io {
                context: "starting a thread".into(),
                source,
            })?);
        }
        drop(tell);
        let mut waiting = started.threads.len();
        while waiting > 0 {
            match ready.recv_timeout(WATCH) {
                Ok(()) => waiting -= 1,
                Err(_) => started.check()?,
            }
        }
        Ok(started)
    }

    /// Has `watch` told what the workers do from now on, as `view` sees it.
    pub fn watch(&mut self, watch: Watch, view: View) {
        self.watched = Some(Watched {
            watch,
            view,
            asked: None,
        });
    }

    /// Moves all to `phase` and lets them work for `time`.
    ///
    /// # Errors
    /// The error of a worker that ended early; [`Error::Stopped`] if who watches says so.
    pub fn run(&mut self, phase: Phase, time: Duration) -> Result<(), Error> {
        self.control.advance(phase);
        if let Some(w) = &mut self.watched {
            w.watch.phase(phase, time);
        }
        for t in &self.threads {
            t.thread().unpark();
        }
        if phase == Phase::Measure {
            self.await_counting(time)?;
        }
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.check();
            }
            thread::sleep(left.min(WATCH));
            self.check()?;
            self.look();
        }
    }

    /// Asks the event loops what they did if it is time, or tells what they answered.
    fn look(&mut self) {
        let Some(w) = &mut self.watched else {
            return;
        };
        let Some(asked) = w.asked else {
            if w.watch.is_due() {
                self.control.answers().clear();
                self.control.ask();
                w.asked = Some(Instant::now());
            }
            return;
        };
        let mut answers = self.control.answers();
        if answers.len() < self.threads.len() && asked.elapsed() < ANSWERS {
            return;
        }
        let mut told = vec![None; self.threads.len()];
        let (mut cost, mut rounds) = (Duration::ZERO, None);
        for a in answers.drain(..) {
            cost = cost.max(a.cost);
            if let Some(n) = a.rounds {
                rounds = Some(rounds.unwrap_or(0.0) + a.tally.per_second(n));
            }
            let from = |t: &JoinHandle<_>| t.thread().id() == a.from;
            if let Some(i) = self.threads.iter().position(from) {
                told[i] = Some(a.tally);
            }
        }
        drop(answers);
        w.asked = None;
        let seen = Seen {
            rounds,
            ..(w.view)(&told)
        };
        w.watch.saw(&seen, cost);
    }

    /// Whether each connection has received `bytes` at least by now, in threads whose part that is.
    /// Yes where somebody watches, who takes the answers, and where a thread does not answer.
    ///
    /// # Errors
    /// The error of a worker that ended early.
    pub fn have_received(&mut self, bytes: u64) -> Result<bool, Error> {
        if self.watched.is_some() || bytes == 0 {
            return Ok(true);
        }
        self.control.ask();
        let (end, mut answered) = (Instant::now() + ANSWERS, 0);
        while answered < self.threads.len() {
            if Instant::now() >= end {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(1));
            self.check()?;
            for a in self.control.answers().drain(..) {
                answered += 1;
                if !a.tally.sink {
                    continue;
                }
                let so_far = self.received.entry(a.from).or_default();
                so_far.resize(so_far.len().max(a.tally.received.len()), 0);
                let more = so_far.iter_mut().zip(a.tally.received);
                more.for_each(|(sum, n)| *sum += n);
            }
        }
        Ok(self.received.values().flatten().all(|&n| n >= bytes))
    }

    /// Waits until all threads count: on a busy machine one may be off the cores for as long as a
    /// short measurement. Not for ever, as a worker need not have an event loop.
    fn await_counting(&mut self, time: Duration) -> Result<(), Error> {
        let end = Instant::now() + (10 * time).min(LONGEST_WAIT);
        while self.control.counting() < self.threads.len() && Instant::now() < end {
            thread::sleep(Duration::from_micros(200));
            self.check()?;
        }
        Ok(())
    }

    /// Has all count for `time`. What the machine did meanwhile and how long that took, and by how
    /// much `retransmits`, which is read before and after, has grown.
    ///
    /// # Errors
    /// As [`Workers::run`], and those of `retransmits`.
    pub(crate) fn measure(
        &mut self,
        time: Duration,
        retransmits: impl Fn() -> Result<u64, Error>,
    ) -> Result<((Machine, Duration), u64), Error> {
        let before = retransmits()?;
        let window = Window::open();
        self.run(Phase::Measure, time)?;
        let window = window.close();
        Ok((window, retransmits()?.saturating_sub(before)))
    }

    /// Ends the measurement, and does not wait for the threads.
    pub fn stop(&self) {
        self.control.advance(Phase::Stop);
    }

    /// Ends the measurement and collects what each thread did, in the order of the workers.
    ///
    /// # Errors
    /// The first worker's error.
    pub fn finish(mut self) -> Result<Vec<Tally>, Error> {
        self.control.advance(Phase::Stop);
        let threads = std::mem::take(&mut self.threads);
        // Join all before looking at any result: an early return would leave threads running.
        let results: Vec<_> = threads.into_iter().map(join).collect();
        results.into_iter().collect()
    }

    /// Reports a worker that ended although nobody stopped it, and the stop by who watches.
    fn check(&mut self) -> Result<(), Error> {
        if self.watched.as_ref().is_some_and(|w| w.watch.is_stopped()) {
            return Err(Error::Stopped);
        }
        let Some(i) = self.threads.iter().position(JoinHandle::is_finished) else {
            return Ok(());
        };
        let ended = self.threads.swap_remove(i);
        self.control.advance(Phase::Stop);
        match join(ended) {
            Err(e) => Err(e),
            Ok(_) => Err(Error::Run("a worker thread ended early".into())),
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.control.advance(Phase::Stop);
        for t in self.threads.drain(..) {
            t.thread().unpark();
            // Its result no longer matters; a panic was printed by the thread.
            let _ = t.join();
        }
    }
}

fn join(thread: JoinHandle<Result<Tally, Error>>) -> Result<Tally, Error> {
    let name = thread.thread().name().unwrap_or("?").to_string();
    thread
        .join()
        .unwrap_or_else(|_| Err(Error::Run(format!("thread {name} panicked"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Answer;

    fn steady() -> Worker {
        Box::new(|control, set| {
            set();
            while control.phase() != Phase::Stop {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(Tally {
                calls: 7,
                ..Tally::default()
            })
        })
    }

    #[test]
    fn all_threads_are_collected() {
        let workers = vec![("a".into(), steady()), ("b".into(), steady())];
        let mut workers = Workers::start(workers).unwrap();
        workers.run(Phase::Warm, Duration::from_millis(5)).unwrap();
        workers
            .run(Phase::Measure, Duration::from_millis(5))
            .unwrap();
        let tallies = workers.finish().unwrap();
        assert_eq!(tallies.iter().map(|t| t.calls).sum::<u64>(), 14);
    }

    #[test]
    fn failures_come_through_from_every_phase() {
        let at_set: Worker = Box::new(|_, _| Err(Error::Run("no endpoint".into())));
        let error = Workers::start(vec![("a".into(), steady()), ("b".into(), at_set)]).unwrap_err();
        assert_eq!(error.to_string(), "no endpoint");

        let later: Worker = Box::new(|_, set| {
            set();
            Err(Error::Run("broken".into()))
        });
        let mut workers =
            Workers::start(vec![("a".into(), steady()), ("b".into(), later)]).unwrap();
        let error = workers
            .run(Phase::Warm, Duration::from_secs(20))
            .unwrap_err();
        assert_eq!(error.to_string(), "broken");

        let panicking: Worker = Box::new(|_, set| {
            set();
            panic!("deliberate");
        });
        let mut workers = Workers::start(vec![("b".into(), panicking)]).unwrap();
        let error = workers
            .run(Phase::Warm, Duration::from_secs(20))
            .unwrap_err();
        assert!(error.to_string().contains("thread b panicked"), "{error}");
    }

    /// A thread that answers each question with what its two connections have received since.
    fn receiver(each: [u64; 2]) -> Worker {
        Box::new(move |control, set| {
            set();
            let mut answered = 0;
            while control.phase() != Phase::Stop {
                let asked = control.asked();
                if asked != answered {
                    answered = asked;
                    control.answers().push(Answer {
                        from: thread::current().id(),
                        tally: Tally {
                            received: each.to_vec(),
                            sink: true,
                            ..Tally::default()
                        },
                        rounds: None,
                        cost: Duration::ZERO,
                    });
                }
                thread::sleep(Duration::from_micros(100));
            }
            Ok(Tally::default())
        })
    }

    #[test]
    fn what_each_connection_has_received_adds_up() {
        let workers = vec![
            ("a".into(), receiver([10, 5])),
            ("b".into(), receiver([9, 9])),
        ];
        let mut workers = Workers::start(workers).unwrap();
        workers.run(Phase::Warm, Duration::ZERO).unwrap();
        let found: Vec<bool> = (0..4).map(|_| workers.have_received(14).unwrap()).collect();
        assert_eq!(found, [false, false, true, true]);
        assert!(workers.have_received(0).unwrap());
    }
}
