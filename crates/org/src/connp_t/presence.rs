//! `made`: whether a place for connections has a thread, and how one comes to it and goes.

use perimeter_stack::planted::{Bug, planted};
use perimeter_sync::Platform;
use perimeter_sync::atomic::{AtomicU8, Ordering, fence};

/// This file, for [`Family::hand_over`](crate::spec::Family).
pub(super) const FILE: &str = file!();

/// Nobody looks after the place.
const ABSENT: u8 = 0;
/// Somebody is making a thread for it, or that has not begun yet.
const CALLED: u8 = 1;
/// Its thread is there.
const HERE: u8 = 2;
/// The host refuses it a thread, which the permanent one of its core has not seen yet.
const LEFT: u8 = 3;
/// The permanent thread of its core looks after it.
const ADOPTED: u8 = 4;

/// Who looks after a place.
///
/// No message is left behind. Who leaves one does so first, and then looks whether somebody is
/// there; who goes says so first, and then looks for messages. One of them sees the other: the
/// message is seen, or the absence, of which one thread makes an end.
#[derive(Debug, Default)]
pub(super) struct Presence(AtomicU8);

/// Whom a message is told of.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Tell {
    /// Nobody is there: the caller makes a thread, or sees to it otherwise.
    Nobody,
    /// The place's thread, which is there or comes.
    Own,
    /// The permanent one of its core.
    Permanent,
}

impl Presence {
    /// A message has been left: who is to hear of it.
    pub(super) fn call(&self, p: &impl Platform) -> Tell {
        // Against `go`.
        fence(Ordering::SeqCst);
        p.checkpoint();
        let mut now = self.0.load(Ordering::SeqCst);
        if now == ABSENT {
            match self.change(ABSENT, CALLED) {
                Ok(_) => return Tell::Nobody,
                Err(other) => now = other,
            }
        }
        match now {
            LEFT | ADOPTED => Tell::Permanent,
            // Also where it has gone again: it has taken the message along.
            _ => Tell::Own,
        }
    }

    /// After [`Tell::Nobody`]: there is no thread to be had. The permanent one is to be told.
    pub(super) fn leave_to_permanent(&self) {
        self.0.store(LEFT, Ordering::SeqCst);
    }

    /// Whoever looks after the place is at it. Who that is, if it is for the first time.
    pub(super) fn begin(&self) -> Option<Tell> {
        let (from, to, who) = match self.0.load(Ordering::Relaxed) {
            CALLED => (CALLED, HERE, Tell::Own),
            LEFT => (LEFT, ADOPTED, Tell::Permanent),
            _ => return None,
        };
        self.change(from, to).ok().map(|_| who)
    }

    /// Whether the permanent thread of the place's core looks after it, or is to.
    pub(super) fn is_adopted(&self) -> bool {
        matches!(self.0.load(Ordering::SeqCst), LEFT | ADOPTED)
    }

    /// Whoever looks after the place has found nothing to do there, and does not any more, unless
    /// there are messages again, which `waits` tells; whether it goes.
    pub(super) fn go(&self, p: &impl Platform, waits: impl FnOnce() -> bool) -> bool {
        if planted(Bug::ThreadEndsUnlooked) {
            return !waits() && self.0.swap(ABSENT, Ordering::SeqCst) != ABSENT;
        }
        let was = self.0.swap(ABSENT, Ordering::SeqCst);
        p.checkpoint();
        // Against `call`.
        fence(Ordering::SeqCst);
        // Where it finds somebody called, that one sees to them.
        !(waits() && self.change(ABSENT, was).is_ok())
    }

    fn change(&self, from: u8, to: u8) -> Result<u8, u8> {
        let (done, or) = (Ordering::SeqCst, Ordering::SeqCst);
        self.0.compare_exchange(from, to, done, or)
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread::{self, JoinHandle};
    use perimeter_base::Time;
    use perimeter_stack::planted::models::{found, holds};
    use perimeter_sync::model::{Model, ModelEvent};
    use perimeter_sync::mutex::Mutex;
    use perimeter_sync::{Event, Mpsc};
    use std::sync::Arc;

    /// A place for connections, as [`ConnpT`](super::super::thread::ConnpT) has it, and the last of
    /// its threads.
    struct Place {
        presence: Presence,
        inbox: Mpsc<Model, u32>,
        bell: ModelEvent,
        /// Of who looks after it: nobody else may at the time.
        ran: Mutex<Vec<u32>>,
        last: Mutex<Option<JoinHandle<()>>>,
    }

    impl Place {
        fn new() -> Arc<Place> {
            Arc::new(Place {
                presence: Presence::default(),
                inbox: Mpsc::new(Model, 4),
                bell: Model.event(),
                ran: Mutex::new(Vec::new()),
                last: Mutex::new(None),
            })
        }

        /// As `ConnpT::send` and `made::make`.
        fn bring(self: &Arc<Place>, n: u32) {
            assert!(self.inbox.push(n).is_ok());
            match self.presence.call(&Model) {
                Tell::Nobody => {
                    let mut last = self.last.lock().unwrap();
                    let (place, before) = (self.clone(), last.take());
                    *last = Some(thread::spawn(move || {
                        if let Some(thread) = before {
                            thread.join().unwrap();
                        }
                        place.live();
                    }));
                }
                Tell::Own => self.bell.set(),
                Tell::Permanent => unreachable!("no thread is refused here"),
            }
        }

        /// As `serve::work`.
        fn live(&self) {
            loop {
                self.presence.begin();
                let mut n = 0;
                {
                    let mut ran = self.ran.try_lock().expect("one at a time");
                    while let Some(m) = self.inbox.pop() {
                        ran.push(m);
                        n += 1;
                    }
                }
                if n == 0 {
                    if self.presence.go(&Model, || !self.inbox.is_empty()) {
                        return;
                    }
                    self.bell.wait(Time::NEVER);
                }
            }
        }

        /// The stack ends: all have been told, and the threads have gone.
        fn end(&self) {
            let last = self.last.lock().unwrap().take();
            if let Some(thread) = last {
                thread.join().unwrap();
            }
        }
    }

    /// Two bring messages while threads come and go.
    fn two() {
        let place = Place::new();
        let theirs = place.clone();
        let other = thread::spawn(move || theirs.bring(1));
        place.bring(0);
        other.join().unwrap();
        place.end();
        let mut ran = place.ran.lock().unwrap();
        ran.sort_unstable();
        assert_eq!((&**ran, place.inbox.len()), (&[0, 1][..], 0));
    }

    /// One brings another message just as the thread of the first may end.
    fn one_after_the_other() {
        let place = Place::new();
        place.bring(0);
        place.bring(1);
        place.end();
        let ran = place.ran.lock().unwrap();
        assert_eq!((&**ran, place.inbox.len()), (&[0, 1][..], 0));
    }

    #[test]
    fn no_message_is_left_where_a_thread_ends() {
        holds(2, two);
        holds(3, one_after_the_other);
    }

    #[test]
    fn a_thread_that_ends_without_a_look_is_found() {
        found(Bug::ThreadEndsUnlooked, 3, one_after_the_other);
    }

    /// The permanent thread lets a place go while a message comes, for which a thread can be had
    /// again.
    #[test]
    fn what_was_adopted_is_let_go_of() {
        holds(3, || {
            let place = Place::new();
            assert_eq!(place.presence.call(&Model), Tell::Nobody);
            place.presence.leave_to_permanent();
            assert_eq!(place.presence.begin(), Some(Tell::Permanent));
            let theirs = place.clone();
            let permanent = thread::spawn(move || {
                // Nothing is there any more, so far.
                if theirs.presence.go(&Model, || !theirs.inbox.is_empty()) {
                    return false;
                }
                theirs
                    .ran
                    .try_lock()
                    .expect("one at a time")
                    .extend(theirs.inbox.pop());
                true
            });
            assert!(place.inbox.push(0).is_ok());
            let told = place.presence.call(&Model);
            if told == Tell::Nobody {
                place.live();
            }
            let took_back = permanent.join().unwrap();
            // Both where the thread has come and gone before the permanent one takes it back, which
            // then finds nothing there.
            assert!(took_back || told == Tell::Nobody);
            assert_eq!(*place.ran.lock().unwrap(), [0]);
            assert_eq!(place.presence.is_adopted(), took_back);
        });
    }
}
