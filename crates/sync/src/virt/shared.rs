//! What the handles of one simulation share, and the loop that runs it.
//!
//! # Who may touch the state
//! [`Shared::st`] hands out the one [`State`]. Whoever holds the *baton* may use it: the OS
//! thread that drives the simulation holds it while virtual threads run (and marks itself in
//! [`CURRENT`], so that they need not lock anything), any other OS thread takes it for one
//! operation.

use parking_lot::{Condvar, Mutex, MutexGuard};
use perimeter_base::Time;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::ThreadId;

use super::beacon;
use super::config::{FailureKind, Report, RunError, VirtualConfig};
use super::stacks;
use super::state::{Body, Coro, Doing, NONE, Op, State};
use corosensei::CoroutineResult;

thread_local! {
    /// The simulation that this OS thread drives, if any.
    static CURRENT: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
}

/// Payload that unwinds virtual threads of a simulation that has failed.
struct Torn;

/// How many operations a thread may try while it is being unwound. One that catches the
/// unwinding and goes on regardless is abandoned then.
const TORN_OPS: u32 = 10_000;

/// One simulation.
pub(super) struct Shared {
    baton: Mutex<()>,
    /// The simulation has stopped for now: OS threads that wait for something look again.
    idle: Condvar,
    state: UnsafeCell<State>,
    pub(super) cores: usize,
    pub(super) secret: [u64; 2],
    pub(super) ids: AtomicU32,
    /// Explorations have a scheduling point behind releases too, and seeded hand-over.
    pub(super) explores: bool,
    /// Where time comes from if there are no virtual threads, and the thread that may be here.
    pub(super) by_clock: Option<(Arc<AtomicU64>, ThreadId)>,
    /// Tells the driving thread of an embedded simulation that there is something to run.
    pub(super) kick: Option<Box<dyn Fn() + Send + Sync>>,
}

// SAFETY: `state` is used only under the baton (module documentation). What it holds that is
// not `Send` are coroutines, which only the driving thread creates, resumes and drops, and
// pointers to locks and events whose borrowers are suspended on those coroutines.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(super) fn new(
        cfg: VirtualConfig,
        embedded: bool,
        kick: Option<Box<dyn Fn() + Send + Sync>>,
    ) -> Arc<Shared> {
        let mut secrets = super::state::draws(cfg.seed, 2);
        Arc::new(Shared {
            baton: Mutex::new(()),
            idle: Condvar::new(),
            cores: cfg.cores.max(1),
            secret: [secrets.next(), secrets.next()],
            ids: AtomicU32::new(0),
            explores: !matches!(cfg.schedule, super::Schedule::Time { .. }),
            state: UnsafeCell::new(State::new(cfg, embedded)),
            by_clock: None,
            kick,
        })
    }

    /// One without virtual threads.
    pub(super) fn by_clock(seed: u64, clock: Arc<AtomicU64>) -> Arc<Shared> {
        let cfg = VirtualConfig {
            seed,
            cores: 1,
            ..VirtualConfig::default()
        };
        let mut shared = Shared::new(cfg, true, None);
        let owner = std::thread::current().id();
        if let Some(shared) = Arc::get_mut(&mut shared) {
            shared.by_clock = Some((clock, owner));
        }
        let lane = shared.with(|st| {
            st.alone_here = true;
            st.foreign_lane(owner)
        });
        debug_assert_eq!(lane, 0);
        shared
    }

    /// Whether the calling thread is the one that may use a simulation without virtual threads,
    /// whose lane is 0.
    #[inline]
    pub(super) fn is_alone_here(&self) -> bool {
        let owner = self.by_clock.as_ref().map(|(_, owner)| *owner);
        owner.is_some_and(|owner| owner == std::thread::current().id())
    }

    /// The state.
    ///
    /// # Safety
    /// The caller holds the baton, or runs on the driving thread, and no other reference from
    /// here is in use: it must not live across a suspension or a call of the program's code.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn st(&self) -> &mut State {
        // SAFETY: exclusive by the contract above.
        unsafe { &mut *self.state.get() }
    }

    /// A number for a lock or an event.
    pub(super) fn id(&self) -> u32 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether this OS thread drives the simulation.
    #[inline]
    pub(super) fn driving(&self) -> bool {
        std::ptr::eq(CURRENT.get(), self)
    }

    /// Whether the caller is a virtual thread of this simulation.
    #[inline]
    pub(super) fn inside(&self) -> bool {
        // SAFETY: this is the driving thread; the reference ends here.
        self.driving() && unsafe { self.st() }.running != NONE
    }

    /// Runs `f` on the state from any OS thread.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let _baton = (!self.driving()).then(|| self.baton());
        // SAFETY: driving, or the baton is held; `f` is this crate's and does neither suspend
        // nor call the program.
        f(unsafe { self.st() })
    }

    /// Takes the baton from outside.
    fn baton(&self) -> MutexGuard<'_, ()> {
        if CURRENT.get().is_null() {
            return self.baton.lock();
        }
        // Inside another simulation: waiting for this one could wait for oneself.
        self.baton
            .try_lock()
            .expect("a virtual thread used what belongs to another simulation while that runs")
    }

    /// Waits, on an OS thread outside, until `f` gives something. Every stop of the simulation
    /// and every release from outside is a reason to look again. `f` panics when the simulation
    /// has ended and can never give anything.
    pub(super) fn outside<R>(&self, what: &str, mut f: impl FnMut(&mut State) -> Option<R>) -> R {
        if self.driving() {
            // SAFETY: the driving thread, between virtual threads.
            return f(unsafe { self.st() })
                .unwrap_or_else(|| panic!("{what} would block outside a virtual thread"));
        }
        let mut baton = self.baton();
        loop {
            // SAFETY: the baton is held.
            let st = unsafe { self.st() };
            if let Some(r) = f(st) {
                return r;
            }
            self.idle.wait(&mut baton);
        }
    }

    /// Something was released from outside: tells others there, and an embedded simulation.
    pub(super) fn kick(&self) {
        self.idle.notify_all();
        if let (Some(k), false) = (&self.kick, self.driving()) {
            k();
        }
    }

    // ---- inside virtual threads -------------------------------------------------------

    /// A scheduling point of the running virtual thread.
    #[inline]
    pub(super) fn point(&self, op: Op, object: u32) {
        // SAFETY: callers checked `inside`; the reference ends before the suspension.
        let st = unsafe { self.st() };
        if st.teardown || st.panicking() {
            return self.torn();
        }
        if st.step(op, object) {
            self.suspend();
        }
    }

    /// Gives control to the scheduler; returns when the thread is chosen again. The caller has
    /// queued or parked it. Unwinds when the simulation has failed meanwhile.
    pub(super) fn suspend(&self) {
        // SAFETY: inside; the reference ends before the suspension.
        let y = unsafe { self.st() }.me().yielder;
        // SAFETY: the yielder lives at the root of the running coroutine's stack.
        unsafe { (*y).suspend(()) };
        // SAFETY: inside again.
        let st = unsafe { self.st() };
        if st.teardown && !st.me().unwinding {
            st.me().unwinding = true;
            resume_unwind(Box::new(Torn));
        }
    }

    /// A scheduling point while the simulation is torn down or the thread panics: never a
    /// switch, since destructors come through here. Unwinds a thread that runs normally.
    #[cold]
    fn torn(&self) {
        // SAFETY: inside.
        let st = unsafe { self.st() };
        if !st.teardown {
            return;
        }
        let me = st.me();
        me.torn_ops += 1;
        if me.torn_ops > TORN_OPS {
            self.abandon();
        }
        let before = std::mem::replace(&mut me.unwinding, true);
        // A destructor that unwinds while its thread does would abort the process.
        let now = if st.base_panicking {
            before
        } else {
            std::thread::panicking()
        };
        if !now {
            resume_unwind(Box::new(Torn));
        }
    }

    /// Suspends for good: the driver leaks the coroutine.
    fn abandon(&self) {
        loop {
            // SAFETY: inside; the references end before the suspension.
            let y = unsafe {
                let st = self.st();
                st.me().doing = Doing::Sleep;
                st.me().yielder
            };
            // SAFETY: as in `suspend`.
            unsafe { (*y).suspend(()) };
        }
    }

    /// In place of waiting while [`Shared::tearing`]: lets the other threads be unwound a bit.
    /// A destructor that waits for another thread in a loop sees it end that way.
    #[cold]
    pub(super) fn step_aside(&self) {
        self.dying();
        // SAFETY: inside; the reference ends before the suspension.
        let st = unsafe { self.st() };
        let me = st.me();
        me.doing = Doing::Ready;
        me.torn_ops += 1;
        if me.torn_ops > TORN_OPS {
            self.abandon();
        }
        self.suspend();
    }

    /// Whether operations that wait must not: the simulation is torn down, or a destructor of
    /// a panicking thread is running.
    #[inline]
    pub(super) fn tearing(&self) -> bool {
        // SAFETY: inside.
        let st = unsafe { self.st() };
        st.teardown || st.panicking()
    }

    /// Ends the simulation with a failure that the running thread has caused, and unwinds it.
    pub(super) fn fail(&self, kind: FailureKind, detail: String) {
        // SAFETY: inside.
        let st = unsafe { self.st() };
        let all = st.describe();
        st.fail(kind, detail + &all);
        self.torn();
    }

    // ---- driving ----------------------------------------------------------------------

    /// Makes this OS thread the driver while `f` runs.
    pub(super) fn drive<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Restore(*const Shared);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0);
            }
        }
        let baton = self.baton();
        let restore = Restore(CURRENT.replace(self));
        self.with(|st| st.base_panicking = std::thread::panicking());
        let r = f();
        drop(restore);
        drop(baton);
        self.idle.notify_all();
        r
    }

    /// Runs until nobody can run at the present time, or a failure.
    pub(super) fn run_ready(&self) {
        loop {
            // SAFETY: driving, between virtual threads.
            let Some(slot) = unsafe { self.st() }.pick() else {
                return;
            };
            self.resume(slot);
        }
    }

    /// Runs until all threads have ended, or a failure.
    pub(super) fn run_all(&self) {
        loop {
            self.run_ready();
            // SAFETY: driving, between virtual threads; ends before the checks run.
            let st = unsafe { self.st() };
            if st.teardown {
                return;
            }
            let deadline = st.next_deadline();
            if st.live == 0 {
                self.check(true);
                return;
            }
            if !self.check(deadline.is_none()) {
                return;
            }
            // SAFETY: as above.
            let st = unsafe { self.st() };
            match deadline {
                Some(at) => {
                    st.clock = st.clock.max(at);
                    st.fire(at);
                }
                None => {
                    let d = st.describe();
                    st.fail(FailureKind::Deadlock, d);
                    return;
                }
            }
        }
    }

    /// Nobody runs: looks for lost wake-ups and runs the program's checks if nothing
    /// more will happen by itself. False: the simulation has failed.
    pub(super) fn check(&self, end: bool) -> bool {
        // SAFETY: driving, between virtual threads; ends before the program's code runs.
        let st = unsafe { self.st() };
        if st.conditions
            && let Some(d) = self.lost_wakeup()
        {
            // SAFETY: as above.
            let st = unsafe { self.st() };
            let all = st.describe();
            st.fail(FailureKind::LostWakeup, d + &all);
            return false;
        }
        if !end {
            return true;
        }
        // SAFETY: as above; the hooks are moved out while they run.
        let mut hooks = std::mem::take(unsafe { &mut self.st().hooks });
        let mut bad = None;
        for h in &mut hooks {
            match catch_unwind(AssertUnwindSafe(h)) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => bad = Some(e),
                Err(p) => bad = Some(message(&*p)),
            }
            if bad.is_some() {
                break;
            }
        }
        // SAFETY: as above.
        let st = unsafe { self.st() };
        hooks.append(&mut st.hooks);
        st.hooks = hooks;
        if let Some(d) = bad {
            let all = st.describe();
            st.fail(FailureKind::Quiescence, d + &all);
            return false;
        }
        true
    }

    /// A thread that sleeps on an event whose condition holds.
    fn lost_wakeup(&self) -> Option<String> {
        // SAFETY: driving; no reference lives across the condition's call.
        let n = unsafe { self.st() }.threads.len();
        for slot in 0..n {
            // SAFETY: as above.
            let Doing::Event(head) = unsafe { self.st() }.threads[slot].doing else {
                continue;
            };
            // SAFETY: the thread is suspended inside `wait` and borrows the event, and nobody
            // else uses the event's head while no virtual thread runs.
            let taken = unsafe { (*head.cast_mut()).condition.take() };
            let Some(mut c) = taken else { continue };
            let holds = catch_unwind(AssertUnwindSafe(&mut c)).unwrap_or(true);
            // SAFETY: as above.
            let name = unsafe {
                (*head.cast_mut()).condition = Some(c);
                (*head).name()
            };
            if holds {
                // SAFETY: driving.
                let who = unsafe { self.st() }.threads[slot].name.clone();
                return Some(format!(
                    "thread {slot} \"{who}\" sleeps on event {name} though its condition holds"
                ));
            }
        }
        None
    }

    /// Lets one virtual thread run until it suspends or ends.
    fn resume(&self, slot: u32) {
        // SAFETY: driving; the reference ends before the coroutine runs.
        let st = unsafe { self.st() };
        st.running = slot;
        let t = st.thread(slot);
        beacon::core(t.core);
        let co: *mut Coro = match (&mut t.coro, t.body.take()) {
            (Some(co), _) => &raw mut **co,
            (none, body) => {
                let body = body.unwrap_or_else(|| Box::new(|| ()));
                &raw mut **none.insert(Box::new(self.coroutine(body)))
            }
        };
        // SAFETY: the box stays where it is until `end`, which only this thread calls.
        let out = unsafe { (*co).resume(()) };
        beacon::no_core();
        if let CoroutineResult::Return(()) = out {
            self.end(slot);
        }
        // SAFETY: driving.
        unsafe { self.st() }.running = NONE;
    }

    /// The coroutine of a thread. It never unwinds into its resumer.
    fn coroutine(&self, body: Body) -> Coro {
        let shared: *const Shared = self;
        Coro::with_stack(stacks::take(), move |yielder, ()| {
            // SAFETY: the driver keeps `Shared` alive while coroutines run.
            let shared = unsafe { &*shared };
            // SAFETY: inside; the reference ends here.
            unsafe { shared.st() }.me().yielder = yielder;
            if let Err(p) = catch_unwind(AssertUnwindSafe(body)) {
                shared.died(&*p);
            }
        })
    }

    /// The running thread's body has unwound.
    fn died(&self, payload: &(dyn std::any::Any + Send)) {
        if payload.is::<Torn>() {
            return;
        }
        // SAFETY: inside; no code of the program runs meanwhile.
        let st = unsafe { self.st() };
        let text = message(payload);
        match &mut st.failure {
            // A destructor of this thread had to wait: the panic was noted without its text.
            Some(f) if f.kind == FailureKind::Panic && f.detail.starts_with(UNKNOWN) => {
                f.detail.replace_range(..UNKNOWN.len(), &text);
            }
            Some(_) => {}
            None => {
                let slot = st.running;
                let text = format!("in thread {slot} \"{}\": {text}", st.me().name);
                let all = st.describe();
                st.fail(FailureKind::Panic, text + &all);
            }
        }
    }

    /// A destructor of a panicking thread is about to wait: the run has failed already.
    #[cold]
    pub(super) fn dying(&self) {
        // SAFETY: inside.
        let st = unsafe { self.st() };
        if !st.teardown {
            let all = st.describe();
            st.fail(FailureKind::Panic, UNKNOWN.to_owned() + &all);
        }
        st.me().unwinding = true;
    }

    /// A thread's coroutine has returned.
    fn end(&self, slot: u32) {
        // SAFETY: driving.
        let st = unsafe { self.st() };
        let co = st.thread(slot).coro.take();
        st.retire(slot);
        if let Some(co) = co {
            stacks::give((*co).into_stack());
        }
    }

    // ---- ending -----------------------------------------------------------------------

    /// Unwinds every thread that is left. Called by the driver after a failure, or to end an
    /// embedded simulation.
    ///
    /// A thread whose destructor waits for a lock is resumed when the holder, unwound too, has
    /// released it. Threads that wait for each other even then are leaked, with their stacks.
    pub(super) fn tear_down(&self) {
        self.with(|st| st.teardown = true);
        loop {
            let (mut progress, mut fresh) = (false, false);
            for slot in 0..self.with(|st| st.threads.len() as u32) {
                let due = self.with(|st| {
                    let t = st.thread(slot);
                    let new = t.coro.is_some() && !t.unwinding;
                    fresh |= new;
                    new || (t.coro.is_some() && matches!(t.doing, Doing::Ready))
                });
                if due {
                    self.resume(slot);
                    progress = true;
                }
            }
            if fresh {
                continue;
            }
            // After those that run: what the bodies that never ran own may want locks when it
            // is dropped.
            match self.with(State::drop_unstarted) {
                Some(body) => drop(catch_unwind(AssertUnwindSafe(|| drop(body)))),
                None if !progress => break,
                None => {}
            }
        }
        self.with(|st| {
            for slot in 0..st.threads.len() as u32 {
                if let Some(co) = st.thread(slot).coro.take() {
                    std::mem::forget(co);
                    st.retire(slot);
                }
            }
        });
    }

    /// Ends the simulation: what is left of the program's closures is dropped.
    pub(super) fn finish(&self) -> (Option<RunError>, Report) {
        // SAFETY: driving, between virtual threads.
        if unsafe { self.st() }.teardown {
            self.tear_down();
        }
        // SAFETY: as above; the hooks are dropped after the reference has ended.
        let (hooks, out) = unsafe {
            let st = self.st();
            st.finished = true;
            let hooks = std::mem::take(&mut st.hooks);
            (hooks, (st.failure.as_deref().cloned(), st.report()))
        };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(hooks)));
        out
    }

    /// The time now if that is not the simulation's own.
    #[inline]
    pub(super) fn told(&self) -> Option<Time> {
        let (clock, _) = self.by_clock.as_ref()?;
        Some(Time(clock.load(Ordering::Relaxed)))
    }

    /// Virtual time now, for anybody.
    pub(super) fn now(&self) -> Time {
        if let Some(told) = self.told() {
            return told;
        }
        if self.driving() {
            // SAFETY: the driving thread; the reference ends here.
            return Time(unsafe { self.st() }.now());
        }
        self.with(|st| Time(st.now()))
    }
}

/// Stands for a panic message until it is known.
const UNKNOWN: &str = "a destructor had to wait while its thread panicked";

/// The text of a panic.
pub(super) fn message(payload: &(dyn std::any::Any + Send)) -> String {
    if let Some(s) = payload.downcast_ref::<&str>() {
        (*s).to_owned()
    } else if let Some(s) = payload.downcast_ref::<String>() {
        s.clone()
    } else {
        "a panic without a message".to_owned()
    }
}

/// Whether a payload unwinds a thread because the simulation has ended.
pub(super) fn is_torn(payload: &(dyn std::any::Any + Send)) -> bool {
    payload.is::<Torn>()
}
