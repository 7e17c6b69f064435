//! Events in virtual time.

use core::sync::atomic::AtomicU32;
use perimeter_base::Time;
use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::beacon;
use super::lines::VirtualTag;
use super::record::Act;
use super::shared::Shared;
use super::state::{Doing, NONE, Op};
use crate::class::Touched;
use crate::platform::{Event, Woken};

/// All of an event.
pub(super) struct EventHead {
    id: u32,
    flag: bool,
    waiter: u32,
    lines: VirtualTag,
    label: Option<Box<str>>,
    /// True: whoever waits should have been woken.
    pub(super) condition: Option<Box<dyn FnMut() -> bool + Send>>,
}

impl EventHead {
    /// Its label and number.
    pub(super) fn name(&self) -> String {
        match &self.label {
            Some(l) => format!("\"{l}\" #{}", self.id),
            None => format!("#{}", self.id),
        }
    }
}

/// An event of a [`super::Virtual`] platform.
pub struct VirtualEvent {
    shared: Arc<Shared>,
    id: u32,
    /// Stands for the machine's event in a trace of memory accesses.
    word: AtomicU32,
    head: UnsafeCell<EventHead>,
}

// SAFETY: `head` is used under the baton only.
unsafe impl Send for VirtualEvent {}
// SAFETY: as above.
unsafe impl Sync for VirtualEvent {}

impl VirtualEvent {
    pub(super) fn new(shared: Arc<Shared>) -> VirtualEvent {
        let id = shared.id();
        VirtualEvent {
            id,
            word: AtomicU32::new(0),
            head: UnsafeCell::new(EventHead {
                id,
                flag: false,
                waiter: NONE,
                lines: VirtualTag::default(),
                label: None,
                condition: None,
            }),
            shared,
        }
    }

    /// The head.
    ///
    /// # Safety
    /// As for [`Shared::st`].
    #[inline]
    #[allow(clippy::mut_from_ref)]
    unsafe fn head(&self) -> &mut EventHead {
        // SAFETY: by the contract.
        unsafe { &mut *self.head.get() }
    }

    /// Names the event in failures.
    pub fn label(&self, label: &str) {
        self.shared.with(|_| {
            // SAFETY: under the baton.
            unsafe { self.head() }.label = Some(label.into());
        });
    }

    /// Registers what the waiter waits for. Whenever no thread can run, a thread parked here
    /// while `condition` holds has lost its wake-up, which fails the run: also where a timeout
    /// would have hidden it. The condition must not take locks that virtual threads may hold.
    pub fn condition(&self, condition: impl FnMut() -> bool + Send + 'static) {
        let old = self.shared.with(|st| {
            st.conditions = true;
            // SAFETY: under the baton.
            unsafe { self.head() }
                .condition
                .replace(Box::new(condition))
        });
        drop(old);
    }

    /// Takes the flag under the baton.
    #[inline]
    fn take_flag(&self) -> bool {
        // SAFETY: callers are inside, or hold the baton.
        std::mem::take(&mut unsafe { self.head() }.flag)
    }

    /// Records what the running thread does with the event. For callers inside.
    #[inline]
    fn note(&self, act: Act) {
        // SAFETY: callers are inside; the reference ends here.
        let st = unsafe { self.shared.st() };
        if st.record.is_some() {
            st.note(st.running, act);
        }
    }

    /// The running thread looks at the event, or changes it. For callers inside.
    #[inline]
    fn touch(&self, write: bool) {
        // SAFETY: callers are inside; the references end here.
        unsafe {
            self.shared
                .st()
                .touch(&self.head().lines, Touched::Event, 1, write)
        };
    }

    fn wait_outside(&self, deadline: Time) -> bool {
        let told = self.shared.told();
        self.shared.outside("an event", |st| {
            if self.take_flag() {
                Some(true)
            } else if deadline.0 <= told.map_or_else(|| st.now(), |t| t.0) {
                Some(false)
            } else {
                st.expect_more("waiting for an event");
                None
            }
        })
    }
}

/// Signs a waiter off, also when its thread is unwound.
struct Waiting<'a>(&'a VirtualEvent, u32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // SAFETY: inside; the reference ends here.
        let head = unsafe { self.0.head() };
        // After a set the next thread may be waiting here already.
        if head.waiter == self.1 {
            head.waiter = NONE;
        }
    }
}

impl Event for VirtualEvent {
    fn set(&self) {
        let sh = &*self.shared;
        let inside = sh.inside();
        if inside {
            sh.point(Op::Set, self.id);
        }
        beacon::event(&self.word);
        sh.with(|st| {
            // SAFETY: under the baton.
            let head = unsafe { self.head() };
            if inside {
                st.touch(&head.lines, Touched::Event, 1, true);
            }
            let w = head.waiter;
            let parked = w != NONE && matches!(st.thread(w).doing, Doing::Event(_));
            if inside && st.record.is_some() {
                let woke = if parked { st.name_of(w) } else { None };
                let event = self.id;
                st.note(st.running, Act::Set { event, woke });
            }
            if parked {
                head.waiter = NONE;
                st.wake(w);
            } else {
                head.flag = true;
            }
        });
        if !inside {
            sh.kick();
        } else if sh.explores {
            sh.point(Op::Set, self.id);
        }
    }

    fn wait(&self, deadline: Time) -> bool {
        let sh = &*self.shared;
        if !sh.inside() {
            return self.wait_outside(deadline);
        }
        sh.point(Op::Wait, self.id);
        beacon::event(&self.word);
        self.touch(true);
        if self.take_flag() {
            self.note(Act::Took { event: self.id });
            return true;
        }
        if sh.tearing() {
            sh.step_aside();
            return self.take_flag();
        }
        let (waiting, timed) = {
            // SAFETY: inside; the references end before the suspension.
            let (st, head) = unsafe { (sh.st(), self.head()) };
            if deadline.0 <= st.now() {
                return false;
            }
            assert!(head.waiter == NONE, "two threads wait for one event");
            head.waiter = st.running;
            if st.record.is_some() {
                st.note(st.running, Act::Wait { event: self.id });
            }
            if st.clocked {
                let core = st.me().core;
                st.go_to_sleep(core);
            }
            let timed = st.set_timer(deadline);
            st.park(Doing::Event(self.head.get()), deadline.0);
            (Waiting(self, st.running), timed)
        };
        sh.suspend();
        // SAFETY: inside; the reference ends here.
        unsafe { sh.st() }.timer_over(timed);
        beacon::event(&self.word);
        self.touch(true);
        drop(waiting);
        // SAFETY: inside; the reference ends here. A set between the timeout and now has left
        // its flag.
        let set = !unsafe { sh.st() }.me().timed_out || self.take_flag();
        let event = self.id;
        self.note(Act::Woken { event, set });
        set
    }

    fn take(&self) -> bool {
        let sh = &*self.shared;
        if sh.inside() {
            sh.point(Op::Take, self.id);
            self.touch(false);
        }
        beacon::event(&self.word);
        let taken = sh.with(|_| self.take_flag());
        if taken && sh.inside() {
            self.note(Act::Took { event: self.id });
        }
        taken
    }

    fn wait_fds(&self, _fds: &[RawFd], deadline: Time) -> Woken {
        if self.wait(deadline) {
            Woken::Set
        } else {
            Woken::Timeout
        }
    }
}
