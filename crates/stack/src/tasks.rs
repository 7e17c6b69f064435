//! Tasks of an async runtime that wait for a socket.
//!
//! A socket's [`Tasks`] hold its readiness in one word for each direction, and the wakers of those
//! who wait for it. A word follows the level of its [`Side`](crate::ready::Side): it is written
//! under that direction's protection only, so what it says is what a call would find, and nobody has
//! to call to learn that there is nothing. Who waits leaves a waker first and sets `WAITING` in
//! the word then, which tells him the level of that moment; who makes the socket ready writes the
//! word in one step, which tells whether somebody waits. One of the two sees the other, so no wake-up
//! is lost. Wakers are taken and woken by the thread that has left the perimeter, under no lock: one
//! hop from the segment to the task's run queue.

use crate::bits::{ERR, HUP};
use crate::planted::{Bug, planted};
use core::task::{Context, Poll, Waker};
use perimeter_sync::atomic::{AtomicBool, AtomicU8, Ordering};
use perimeter_sync::mutex::Mutex;
use smallvec::SmallVec;
use std::sync::{Arc, PoisonError, Weak};

/// In a word: somebody waits for a change. No bit of [`crate::ready`].
const WAITING: u8 = 0x80;

/// A direction of a socket.
///
/// ```
/// use perimeter_stack::tasks::{Half, Tasks};
///
/// // Those who read wait apart from those who write.
/// let tasks = Tasks::default();
/// for half in [Half::Read, Half::Write] {
///     assert_eq!(tasks.ready(half), 0, "{half:?}: no socket has said anything");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Half {
    /// Data, the peer's end, connections to accept.
    Read,
    /// Room to send, the connection's establishment.
    Write,
}

/// Who waits for one direction.
#[derive(Default)]
struct Waiting {
    /// The task that polled last: reading, or writing, belongs to one task at a time.
    polled: Option<Waker>,
    /// Futures that wait, each with its number: any number of them.
    futures: Vec<(u64, Waker)>,
    /// The last number that was given.
    last: u64,
}

struct Side {
    word: AtomicU8,
    waiting: Mutex<Waiting>,
}

/// The place of a future among those who wait for one direction of a socket.
///
/// ```
/// use perimeter_stack::tasks::{Half, Place, Tasks};
/// use std::task::{Context, Waker};
///
/// // Two futures wait for one socket, each at a place of its own.
/// let (tasks, mut cx) = (Tasks::default(), Context::from_waker(Waker::noop()));
/// let [mut one, mut two] = [Place::default(), Place::default()];
/// assert!(tasks.wait(Half::Read, &mut one, &mut cx).is_pending());
/// assert!(tasks.wait(Half::Read, &mut two, &mut cx).is_pending());
/// // A future that is dropped waits no longer.
/// tasks.leave(Half::Read, &mut one);
/// ```
#[derive(Debug, Default)]
pub struct Place(u64);

/// Whoever of an async runtime waits for a socket. Shared by the socket and its handles.
///
/// ```
/// use perimeter_stack::ready::{ERR, HUP};
/// use perimeter_stack::tasks::{Half, Place, Tasks};
/// use std::task::{Context, Poll, Waker};
///
/// let (tasks, mut cx) = (Tasks::default(), Context::from_waker(Waker::noop()));
/// assert!(tasks.poll(Half::Read, &mut cx).is_pending());
/// let mut place = Place::default();
/// assert!(tasks.wait(Half::Write, &mut place, &mut cx).is_pending());
/// // To look again, though nothing has changed.
/// tasks.wake(Half::Read);
/// tasks.leave(Half::Write, &mut place);
/// // The stack ends: whoever calls learns why.
/// tasks.end();
/// assert_eq!(tasks.ready(Half::Read), ERR | HUP);
/// assert_eq!(tasks.poll(Half::Write, &mut cx), Poll::Ready(ERR | HUP));
/// ```
pub struct Tasks {
    read: Side,
    write: Side,
    /// The stack has ended: nobody sets readiness any more.
    over: AtomicBool,
}

impl Default for Side {
    fn default() -> Side {
        Side {
            word: AtomicU8::new(0),
            waiting: Mutex::new(Waiting::default()),
        }
    }
}

impl Side {
    fn with<R>(&self, f: impl FnOnce(&mut Waiting) -> R) -> R {
        f(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn wake(&self) {
        let mut woken = SmallVec::<[Waker; 4]>::new();
        self.with(|w| {
            woken.extend(w.polled.take());
            woken.extend(w.futures.drain(..).map(|(_, waker)| waker));
        });
        for w in woken {
            w.wake();
        }
    }
}

/// Puts a clone of `new` into `place`, unless what is there wakes the same task. What was there
/// is to be dropped outside of the lock: that may run the task's end.
fn renew(place: &mut Option<Waker>, new: &Waker) -> Option<Waker> {
    match place {
        Some(old) if old.will_wake(new) => None,
        _ => place.replace(new.clone()),
    }
}

impl Default for Tasks {
    fn default() -> Tasks {
        Tasks {
            read: Side::default(),
            write: Side::default(),
            over: AtomicBool::new(false),
        }
    }
}

impl Tasks {
    fn side(&self, half: Half) -> &Side {
        match half {
            Half::Read => &self.read,
            Half::Write => &self.write,
        }
    }

    /// What the socket is ready for in one direction now: bits of [`crate::ready`]. After the end
    /// of the stack all of them, as calls fail.
    pub fn ready(&self, half: Half) -> u8 {
        let bits = self.side(half).word.load(Ordering::Acquire) & !WAITING;
        match self.over.load(Ordering::Acquire) {
            true => bits | ERR | HUP,
            false => bits,
        }
    }

    /// Somebody waits from now on; what is ready already. To be called when the waker is in its
    /// place.
    fn announce(&self, half: Half) -> u8 {
        let word = &self.side(half).word;
        if planted(Bug::TaskAnnouncedLate) {
            let bits = word.load(Ordering::Acquire);
            word.fetch_or(WAITING, Ordering::AcqRel);
            return bits & !WAITING;
        }
        let bits = word.fetch_or(WAITING, Ordering::AcqRel) & !WAITING;
        match self.over.load(Ordering::Acquire) {
            true => bits | ERR | HUP,
            false => bits,
        }
    }

    /// For one task that reads, or writes: what is ready, or that task is woken when something is.
    /// The task that polls last is the one.
    pub fn poll(&self, half: Half, cx: &mut Context<'_>) -> Poll<u8> {
        let bits = self.ready(half);
        if bits != 0 {
            return Poll::Ready(bits);
        }
        let side = self.side(half);
        let old = side.with(|w| renew(&mut w.polled, cx.waker()));
        drop(old);
        match self.announce(half) {
            0 => Poll::Pending,
            bits => Poll::Ready(bits),
        }
    }

    /// For a future, of which any number may wait: what is ready, or its task is woken when
    /// something is. It keeps `place` for the next call, and gives it to [`Tasks::leave`] in the
    /// end.
    pub fn wait(&self, half: Half, place: &mut Place, cx: &mut Context<'_>) -> Poll<u8> {
        let bits = self.ready(half);
        if bits != 0 {
            return Poll::Ready(bits);
        }
        let new = cx.waker();
        let old = self.side(half).with(|w| {
            let mine = w.futures.iter_mut().find(|(n, _)| *n == place.0);
            match mine {
                Some((_, old)) if old.will_wake(new) => None,
                Some((_, old)) => Some(core::mem::replace(old, new.clone())),
                None => {
                    w.last += 1;
                    place.0 = w.last;
                    w.futures.push((place.0, new.clone()));
                    None
                }
            }
        });
        drop(old);
        match self.announce(half) {
            0 => Poll::Pending,
            bits => Poll::Ready(bits),
        }
    }

    /// A future no longer waits.
    pub fn leave(&self, half: Half, place: &mut Place) {
        let number = core::mem::take(&mut place.0);
        if number == 0 {
            return;
        }
        let old = self.side(half).with(|w| {
            let at = w.futures.iter().position(|(n, _)| *n == number);
            at.map(|at| w.futures.swap_remove(at))
        });
        drop(old);
    }

    /// The direction's level is `bits` now, some of which are new; whether somebody is to be woken
    /// when the perimeter is left. Under the direction's protection.
    #[inline]
    pub(crate) fn raise(&self, half: Half, bits: u8) -> bool {
        let word = &self.side(half).word;
        if planted(Bug::TaskWordStored) {
            let waiting = word.load(Ordering::Acquire) & WAITING != 0;
            word.store(bits, Ordering::Release);
            return waiting;
        }
        word.swap(bits, Ordering::AcqRel) & WAITING != 0
    }

    /// `bits` are no longer ready. Under the direction's protection.
    #[inline]
    pub(crate) fn lower(&self, half: Half, bits: u8) {
        self.side(half).word.fetch_and(!bits, Ordering::AcqRel);
    }

    /// Wakes who waits for a direction. Outside of every perimeter.
    pub fn wake(&self, half: Half) {
        self.side(half).wake();
    }

    /// The stack has ended: everybody is woken, and finds that calls fail.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.read.wake();
        self.write.wake();
    }
}

/// All [`Tasks`] of a stack, to wake them when it ends.
#[derive(Default)]
pub struct AllTasks(std::sync::Mutex<Known>);

#[derive(Default)]
struct Known {
    list: Vec<Weak<Tasks>>,
    /// How long the list may become before those that have gone are taken off.
    most: usize,
}

impl AllTasks {
    /// Adds those who wait for a socket.
    pub fn add(&self, tasks: &Arc<Tasks>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.list.len() >= known.most {
            known.list.retain(|t| t.strong_count() > 0);
            known.most = (2 * known.list.len()).max(64);
        }
        known.list.push(Arc::downgrade(tasks));
    }

    /// The stack has ended.
    pub fn end(&self) {
        let list = {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            core::mem::take(&mut known.list)
        };
        for t in list.iter().filter_map(Weak::upgrade) {
            t.end();
        }
    }
}
