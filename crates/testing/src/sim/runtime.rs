//! The tokio runtime of one host's programs, run a step at a time.
//!
//! It has one thread, ours, and a paused clock. Two steps are possible. [`Runtime::run`] lets tasks
//! run until none can, and takes no time. [`Runtime::advance`] lets time pass, at most until a given
//! moment, and stops where the first timer of a task is due, *before* that task runs: what arrives
//! from the network by then comes first.
//!
//! Both rest on what tokio promises of a runtime of one thread. It calls the hook before it parks
//! only when no task can run. A paused clock goes on only when the runtime parks, to the next timer,
//! and not if something woke it meanwhile. And after it has parked, it polls the future that it
//! blocks on before any task.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::Instant;

/// What the hooks are to do.
const NOTHING: u8 = 0;
/// Tell when no task can run.
const RUN: u8 = 1;
/// Tell when time has passed.
const ADVANCE: u8 = 2;

/// What the hooks and the future that is blocked on tell each other. All on one thread; shared
/// because wakers and hooks have to be.
#[derive(Default)]
struct Signals {
    step: AtomicU8,
    /// The step is done.
    done: AtomicBool,
    /// The local tasks want to be polled.
    local: AtomicBool,
    /// The waker of the future that is blocked on.
    waker: Mutex<Option<Waker>>,
    from: Mutex<Option<Instant>>,
}

impl Signals {
    fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(w) = &*waker {
            w.wake_by_ref();
        }
    }

    fn set_waker(&self, w: &Waker) {
        let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !waker.as_ref().is_some_and(|old| old.will_wake(w)) {
            *waker = Some(w.clone());
        }
    }

    fn finish(&self) {
        self.done.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn before_park(&self) {
        // A local task may have been woken by one of the runtime's.
        if self.step.load(Ordering::Relaxed) == RUN && !self.local.load(Ordering::Relaxed) {
            self.finish();
        }
    }

    fn after_park(&self) {
        if self.step.load(Ordering::Relaxed) != ADVANCE {
            return;
        }
        let from = *self.from.lock().unwrap_or_else(PoisonError::into_inner);
        if from.is_some_and(|from| Instant::now() > from) {
            self.finish();
        }
    }
}

/// Wakes the local tasks.
impl Wake for Signals {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.local.store(true, Ordering::Relaxed);
        Signals::wake(self);
    }
}

/// A runtime, its local tasks, and the program that they began with.
pub(super) struct Runtime<T> {
    // Dropped first, in the order that they are in here.
    local: LocalSet,
    main: Option<JoinHandle<T>>,
    tokio: tokio::runtime::Runtime,
    signals: Arc<Signals>,
    /// How long this runtime has run.
    age: Cell<Duration>,
    start: Instant,
}

impl<T: 'static> Runtime<T> {
    /// A runtime for what `main` makes, which is called inside.
    pub(super) fn new<F: Future<Output = T> + 'static>(
        seed: u64,
        main: impl FnOnce() -> F,
    ) -> std::io::Result<Runtime<T>> {
        let signals = Arc::new(Signals::default());
        let (before, after) = (signals.clone(), signals.clone());
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder
            .enable_time()
            .start_paused(true)
            .on_thread_park(move || before.before_park())
            .on_thread_unpark(move || after.after_park());
        seed_choices(&mut builder, seed);
        let tokio = builder.build()?;
        let local = LocalSet::new();
        let guard = tokio.enter();
        let start = Instant::now();
        let main = local.spawn_local(main());
        drop(guard);
        signals.local.store(true, Ordering::Relaxed);
        Ok(Runtime {
            main: Some(main),
            local,
            tokio,
            signals,
            age: Cell::new(Duration::ZERO),
            start,
        })
    }

    fn step(&self, step: u8) {
        self.signals.done.store(false, Ordering::Relaxed);
        self.signals.step.store(step, Ordering::Relaxed);
    }

    /// Lets all tasks run that can, until none can any more.
    pub(super) fn run(&mut self) {
        self.step(RUN);
        let (signals, local) = (&self.signals, &mut self.local);
        let local_waker = Waker::from(signals.clone());
        self.tokio.block_on(poll_fn(|cx| {
            signals.set_waker(cx.waker());
            if signals.local.swap(false, Ordering::Relaxed) {
                let mut local_cx = Context::from_waker(&local_waker);
                // Ready: no local task is left. The runtime's own go on.
                let _ = Pin::new(&mut *local).poll(&mut local_cx);
                signals.done.store(false, Ordering::Relaxed);
            }
            match signals.done.load(Ordering::Relaxed) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }));
        self.step(NOTHING);
    }

    /// Lets time pass until a task's timer is due, but at most to the age of `until`; the age that
    /// it has come to. No task runs. It may stop early without a timer: tokio's wheel has its own
    /// reasons to turn.
    pub(super) fn advance(&self, until: Duration) -> Duration {
        if until <= self.age.get() {
            return self.age.get();
        }
        self.step(ADVANCE);
        let signals = &self.signals;
        let from = self.start + self.age.get();
        *signals.from.lock().unwrap_or_else(PoisonError::into_inner) = Some(from);
        let now = self.tokio.block_on(async {
            let mut bound = pin!(tokio::time::sleep_until(self.start + until));
            poll_fn(|cx| {
                signals.set_waker(cx.waker());
                let due = bound.as_mut().poll(cx).is_ready();
                match due || signals.done.load(Ordering::Relaxed) {
                    true => Poll::Ready(Instant::now()),
                    false => Poll::Pending,
                }
            })
            .await
        });
        self.step(NOTHING);
        self.age.set(now - self.start);
        self.age.get()
    }

    /// Whether tasks may be able to run: local tasks can't if none has
    /// been woken; of the runtime's own there is no telling.
    pub(super) fn is_woken(&self) -> bool {
        self.is_local_woken() || self.tokio.metrics().num_alive_tasks() > 0
    }

    /// Whether a local task has been woken.
    pub(super) fn is_local_woken(&self) -> bool {
        self.signals.local.load(Ordering::Relaxed)
    }

    /// How long it has run.
    pub(super) fn age(&self) -> Duration {
        self.age.get()
    }

    /// What the program came to, once, when it has ended.
    pub(super) fn ended(&mut self) -> Option<Result<T, tokio::task::JoinError>> {
        if !self.main.as_ref().is_some_and(JoinHandle::is_finished) {
            return None;
        }
        let main = self.main.take()?;
        Some(self.tokio.block_on(main))
    }
}

impl<T> Drop for Runtime<T> {
    fn drop(&mut self) {
        // What tasks own may want the runtime when it is dropped.
        let _guard = self.tokio.enter();
        self.main = None;
        self.local = LocalSet::new();
    }
}

/// `select!` and the like choose by a generator of the runtime's, which can be given a seed only
/// where tokio's unstable interface is on.
#[cfg(tokio_unstable)]
fn seed_choices(builder: &mut tokio::runtime::Builder, seed: u64) {
    let seed = tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes());
    builder.rng_seed(seed);
}

#[cfg(not(tokio_unstable))]
fn seed_choices(_: &mut tokio::runtime::Builder, _: u64) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use tokio::time::sleep;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn time_stops_before_the_task_whose_timer_is_due() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let inner = log.clone();
        let mut rt = Runtime::new(1, || async move {
            let start = Instant::now();
            // Local tasks and the runtime's own wake each other.
            let (tx, mut rx) = tokio::sync::mpsc::unbounded_channel();
            tokio::spawn(async move {
                for n in 0..3 {
                    sleep(ms(7)).await;
                    tokio::task::yield_now().await;
                    tx.send(n).unwrap();
                }
            });
            while let Some(n) = rx.recv().await {
                inner.borrow_mut().push((n, start.elapsed()));
            }
            "done"
        })
        .unwrap();
        rt.run();
        assert_eq!(rt.advance(ms(5)), ms(5));
        rt.run();
        assert_eq!(rt.advance(ms(20)), ms(7));
        assert!(log.borrow().is_empty());
        rt.run();
        assert_eq!(*log.borrow(), [(0, ms(7))]);
        assert_eq!(rt.advance(ms(14)), ms(14));
        assert_eq!(log.borrow().len(), 1);
        rt.run();
        assert_eq!(log.borrow().len(), 2);
        assert_eq!(rt.advance(ms(15)), ms(15));
        assert_eq!(rt.advance(ms(16)), ms(16));
        assert!(rt.ended().is_none());
        assert_eq!(rt.advance(ms(90)), ms(21));
        rt.run();
        assert_eq!(rt.ended().unwrap().unwrap(), "done");
        while rt.advance(ms(90)) < ms(90) {}
        assert_eq!(*log.borrow(), [(0, ms(7)), (1, ms(14)), (2, ms(21))]);
    }

    #[test]
    fn tasks_are_dropped_inside_the_runtime() {
        struct Spawns(Rc<Cell<bool>>);
        impl Drop for Spawns {
            fn drop(&mut self) {
                tokio::spawn(async {});
                self.0.set(true);
            }
        }
        let dropped = Rc::new(Cell::new(false));
        let owned = Spawns(dropped.clone());
        let mut rt = Runtime::new(1, || async move {
            let _owned = owned;
            std::future::pending::<()>().await;
        })
        .unwrap();
        rt.run();
        drop(rt);
        assert!(dropped.get());
    }
}
