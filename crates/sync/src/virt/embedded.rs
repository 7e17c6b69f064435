//! A simulation that an embedder drives: calls come from foreign OS threads, and time moves
//! only when it is told to.

use parking_lot::{Condvar, Mutex};
use perimeter_base::Time;
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::Virtual;
use super::config::{Report, RunError, VirtualConfig};
use super::shared::{Shared, is_torn, message};
use super::state::{Body, On};
use crate::policy::Priority;

enum Command {
    /// On that core, or on one after another.
    Call(Option<usize>, Body),
    Settle,
    Advance(Time),
    Stop,
}

#[derive(Default)]
struct Inbox {
    queue: VecDeque<Command>,
    given: u64,
    done: u64,
    kicked: bool,
    stopped: bool,
}

#[derive(Default)]
struct Mailbox {
    inbox: Mutex<Inbox>,
    work: Condvar,
    finished: Condvar,
}

impl Mailbox {
    /// Hands over a command; its number. A stopped simulation drops it.
    fn give(&self, c: Command) -> u64 {
        let mut i = self.inbox.lock();
        if i.stopped {
            drop(i);
            return 0;
        }
        i.queue.push_back(c);
        i.given += 1;
        self.work.notify_one();
        i.given
    }

    /// Waits until the command with this number is done.
    fn wait(&self, number: u64) {
        let mut i = self.inbox.lock();
        while i.done < number && !i.stopped {
            self.finished.wait(&mut i);
        }
    }

    fn next(&self) -> Command {
        let mut i = self.inbox.lock();
        loop {
            if let Some(c) = i.queue.pop_front() {
                return c;
            }
            if std::mem::take(&mut i.kicked) {
                // Not a command of its own: nobody waits for it.
                i.given += 1;
                return Command::Settle;
            }
            self.work.wait(&mut i);
        }
    }
}

/// A simulation that an embedder drives (packetdrill): it owns one OS thread that runs it.
///
/// Time advances only by [`Embedded::advance_to`]: work takes none, and a state in which all
/// threads are blocked is not a deadlock. Commands are executed one after another, each until
/// nobody can run, so one driving thread gets the same run every time.
pub struct Embedded {
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    failure: Arc<Mutex<Option<RunError>>>,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Starts a simulation at time zero. [`super::Schedule::Time`] means first come, first
    /// served here.
    ///
    /// # Panics
    /// If no OS thread can be started.
    pub fn new(cfg: VirtualConfig) -> Embedded {
        let mailbox = Arc::new(Mailbox::default());
        let kick = mailbox.clone();
        let max_steps = cfg.max_steps;
        let shared = Shared::new(
            cfg,
            true,
            Some(Box::new(move || {
                kick.inbox.lock().kicked = true;
                kick.work.notify_one();
            })),
        );
        let failure = Arc::new(Mutex::new(None));
        let driver = Driver {
            shared: shared.clone(),
            mailbox: mailbox.clone(),
            failure: failure.clone(),
            max_steps,
        };
        let thread = std::thread::Builder::new()
            .name("perimeter-virtual".to_owned())
            .spawn(move || driver.run())
            .expect("no OS thread for an embedded simulation");
        Embedded {
            shared,
            mailbox,
            failure,
            thread: Some(thread),
        }
    }

    /// The platform, for building what runs on it.
    pub fn platform(&self) -> Virtual {
        Virtual {
            shared: self.shared.clone(),
        }
    }

    /// Runs `f` as a new virtual thread and everything that follows from it at the present
    /// time; the caller sleeps in the kernel until `f` has returned. If `f` blocks in virtual
    /// time, the call lasts until another call or advance lets it go on.
    ///
    /// # Panics
    /// With the panic of `f`, or if the simulation has failed.
    pub fn call<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> R {
        self.run(None, f)
    }

    /// As [`Embedded::call`], on core `core` modulo their number; calls without one go round
    /// the cores.
    ///
    /// # Panics
    /// As [`Embedded::call`].
    pub fn call_on<R: Send + 'static>(
        &self,
        core: usize,
        f: impl FnOnce() -> R + Send + 'static,
    ) -> R {
        self.run(Some(core), f)
    }

    fn run<R: Send + 'static>(
        &self,
        core: Option<usize>,
        f: impl FnOnce() -> R + Send + 'static,
    ) -> R {
        if self.shared.inside() {
            return f();
        }
        let slot = Arc::new(Slot {
            state: Mutex::new(None),
            filled: Condvar::new(),
        });
        let fill = Fill(slot.clone());
        self.mailbox
            .give(Command::Call(core, Box::new(move || fill.with(f))));
        let mut state = slot.state.lock();
        while state.is_none() {
            slot.filled.wait(&mut state);
        }
        match state.take() {
            Some(Filled::Value(r)) => r,
            Some(Filled::Panicked(p)) => resume_unwind(p),
            _ => {
                drop(state);
                match self.failure() {
                    Some(f) => panic!("call into a simulation that has failed: {f}"),
                    None => panic!("the simulation ended before the call did"),
                }
            }
        }
    }

    /// Lets virtual time run to `t` and executes everything due on the way. Returns when every
    /// thread is blocked or done, and it is `t` (or later, if it was).
    pub fn advance_to(&self, t: Time) {
        self.mailbox.wait(self.mailbox.give(Command::Advance(t)));
    }

    /// Runs everything that can run at the present time.
    pub fn settle(&self) {
        self.mailbox.wait(self.mailbox.give(Command::Settle));
    }

    /// The earliest deadline that some thread waits for.
    pub fn next_deadline(&self) -> Option<Time> {
        self.shared.with(|st| st.next_deadline().map(Time))
    }

    /// Virtual time now.
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// How the simulation failed, if it has. Nothing runs in it any more then: calls panic,
    /// advances return at once.
    pub fn failure(&self) -> Option<RunError> {
        self.failure.lock().clone()
    }

    /// How it has gone so far.
    pub fn report(&self) -> Report {
        self.shared.with(|st| st.report())
    }
}

impl Drop for Embedded {
    /// Unwinds all virtual threads and ends the OS thread.
    fn drop(&mut self) {
        self.mailbox.give(Command::Stop);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

struct Driver {
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    failure: Arc<Mutex<Option<RunError>>>,
    max_steps: u64,
}

impl Driver {
    fn run(self) {
        loop {
            let command = self.mailbox.next();
            let stop = matches!(command, Command::Stop);
            let failed = self.shared.drive(|| {
                self.shared
                    .with(|st| st.step_limit = st.steps.saturating_add(self.max_steps));
                self.execute(command);
                let failed = self.shared.with(|st| st.teardown);
                if failed || stop {
                    self.shared.with(|st| {
                        // Before anybody's call ends because of it.
                        *self.failure.lock() = st.failure.as_deref().cloned();
                        st.teardown = true;
                    });
                    self.shared.finish();
                }
                failed || stop
            });
            let mut inbox = self.mailbox.inbox.lock();
            inbox.done += 1;
            inbox.stopped = failed;
            // Bodies that never ran tell their callers when they are dropped.
            let rest = failed.then(|| std::mem::take(&mut inbox.queue));
            drop(inbox);
            self.mailbox.finished.notify_all();
            drop(rest);
            if failed {
                return;
            }
        }
    }

    fn execute(&self, command: Command) {
        let sh = &*self.shared;
        match command {
            Command::Call(core, body) => {
                sh.with(|st| {
                    st.add(
                        Priority::ORDINARY,
                        "call",
                        core.map_or(On::Any, On::Core),
                        body,
                    )
                });
                self.settle();
            }
            Command::Settle => {
                self.settle();
            }
            Command::Advance(t) => {
                while self.settle() {
                    let due = sh.with(|st| st.next_deadline().filter(|&at| at <= t.0));
                    sh.with(|st| {
                        st.clock = st.clock.max(due.unwrap_or(t.0));
                        if let Some(at) = due {
                            st.fire(at);
                        }
                    });
                    if due.is_none() {
                        return;
                    }
                }
            }
            Command::Stop => {}
        }
    }

    /// Runs who can run; false after a failure.
    fn settle(&self) -> bool {
        self.shared.run_ready();
        !self.shared.with(|st| st.teardown) && self.shared.check(false)
    }
}

enum Filled<R> {
    Value(R),
    Panicked(Box<dyn Any + Send>),
    Abandoned,
}

/// Where a call's result is put.
struct Slot<R> {
    state: Mutex<Option<Filled<R>>>,
    filled: Condvar,
}

impl<R> Slot<R> {
    fn fill(&self, v: Filled<R>) {
        let mut s = self.state.lock();
        if s.is_none() {
            *s = Some(v);
        }
        self.filled.notify_all();
    }
}

/// Fills the slot, at the latest when it is dropped.
struct Fill<R>(Arc<Slot<R>>);

impl<R> Fill<R> {
    fn with(self, f: impl FnOnce() -> R) {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(r) => self.0.fill(Filled::Value(r)),
            Err(p) if is_torn(&*p) => resume_unwind(p),
            Err(p) => {
                let text = message(&*p);
                self.0.fill(Filled::Panicked(p));
                resume_unwind(Box::new(text));
            }
        }
    }
}

impl<R> Drop for Fill<R> {
    fn drop(&mut self) {
        if self.0.state.lock().is_none() {
            self.0.fill(Filled::Abandoned);
        }
    }
}
