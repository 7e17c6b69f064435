//! Pollers: ready lists that any thread may wait on.
//!
//! A registration is on its poller's ready list at most once. The list says "look here"; what
//! is ready is read from the registration's word at the time of the answer, so an entry that
//! has gone stale costs one look and no false event.

use crate::id::{Slots, SockId};
use crate::kind::{Kind, Lk, lock};
use crate::planted::{Bug, planted};
use crate::ready::{RegWord, Trigger, Wake, Wakes, Want};
use hashbrown::HashMap;
use perimeter_sync::{Event, Lock, LockClass, LockStats, Platform};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// The most pollers that a stack has over its life at one time.
pub const MAX_POLLERS: usize = 1024;

/// A readiness event.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The token that the registration was made with.
    pub token: usize,
    /// What is ready: bits of [`crate::ready`].
    pub bits: u8,
}

/// Somebody outside the stack to tell that a poller's ready list is no longer empty: the
/// descriptor that it exports.
pub trait Notify: Send + Sync {
    /// Makes the descriptor readable.
    fn raise(&self);
    /// Makes it unreadable again.
    fn clear(&self);
}

/// What wakes who waits outside of a stack of one thread, in a poll of the host's, when the stack
/// has something to do.
pub trait Alarm: Send + Sync {
    /// There is something to do: makes its descriptors readable until [`Alarm::lower`].
    fn raise(&self);
    /// Makes them unreadable.
    fn lower(&self);
    /// Makes them readable after `ns`, and not before by time; `None`: not at all.
    fn after(&self, ns: Option<u64>);
    /// Its descriptors.
    fn fds(&self) -> [std::os::fd::RawFd; 2];
}

struct Reg {
    sock: SockId,
    token: usize,
    word: Arc<RegWord>,
    queued: bool,
    armed: bool,
}

struct State<K: Kind> {
    regs: Slots<Reg>,
    /// Where each socket's registration is.
    by_sock: HashMap<SockId, (u32, u32), foldhash::fast::RandomState>,
    ready: VecDeque<(u32, u32)>,
    /// Threads that wait, the one that came last at the back: it is woken first, being warm.
    waiters: Vec<Arc<<K::P as Platform>::Event>>,
    notify: Option<Arc<dyn Notify>>,
    open: bool,
    /// Somebody is to return without an event.
    woken: bool,
}

impl<K: Kind> State<K> {
    fn forget(&mut self, slot: u32, generation: u32) -> bool {
        let Some(r) = self.regs.remove(slot, generation) else {
            return false;
        };
        self.by_sock.remove(&r.sock);
        true
    }
}

/// Why a registration was refused.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum WatchError {
    /// The poller is closed, or full.
    Closed,
    /// The socket is registered with it already.
    Twice,
}

/// One poller.
pub struct Poller<K: Kind> {
    state: Lk<K, State<K>>,
}

/// All pollers of a stack, found by number without a lock.
pub struct Pollers<K: Kind> {
    table: Box<[OnceLock<Poller<K>>]>,
    free: Lk<K, Vec<u32>>,
}

/// All pollers are in use.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TooManyPollersError;

impl<K: Kind> Pollers<K> {
    /// None yet.
    pub fn new(p: &K::P) -> Pollers<K> {
        Pollers {
            table: (0..MAX_POLLERS).map(|_| OnceLock::new()).collect(),
            free: lock::<K, _>(
                p,
                LockClass::Control,
                (0..MAX_POLLERS as u32).rev().collect(),
            ),
        }
    }

    /// A new poller's number.
    ///
    /// # Errors
    /// [`MAX_POLLERS`] are in use.
    pub fn create(&self, p: &K::P) -> Result<u32, TooManyPollersError> {
        let n = self.free.lock().pop().ok_or(TooManyPollersError)?;
        let fresh = || Poller {
            state: lock::<K, _>(
                p,
                LockClass::Poller,
                State {
                    regs: Slots::default(),
                    by_sock: HashMap::default(),
                    ready: VecDeque::new(),
                    waiters: Vec::new(),
                    notify: None,
                    open: true,
                    woken: false,
                },
            ),
        };
        self.table[n as usize].get_or_init(fresh).state.lock().open = true;
        Ok(n)
    }

    /// The poller of that number.
    pub fn get(&self, n: u32) -> Option<&Poller<K>> {
        self.table.get(n as usize)?.get()
    }

    /// Closes a poller; returns its registrations, to be taken off their sockets.
    pub fn close(&self, n: u32) -> Vec<(SockId, Arc<RegWord>)> {
        let Some(poller) = self.get(n) else {
            return Vec::new();
        };
        let mut out = Vec::new();
        {
            let mut s = poller.state.lock();
            if !s.open {
                return out;
            }
            s.open = false;
            s.woken = false;
            let places: Vec<_> = s.regs.iter().map(|(slot, g, _)| (slot, g)).collect();
            for (slot, g) in places {
                if let Some(r) = s.regs.remove(slot, g) {
                    out.push((r.sock, r.word));
                }
            }
            s.by_sock.clear();
            s.ready.clear();
            s.notify = None;
            for w in s.waiters.drain(..) {
                w.set();
            }
        }
        self.free.lock().push(n);
        out
    }

    /// Wakes threads: those whose pollers have something, and those in calls. Tasks, whose wakers
    /// may do whatever they like, are left to who holds nothing.
    pub fn wake_threads(&self, wakes: &mut Wakes<K>) {
        self.deliver(&mut wakes.regs);
        let told = match planted(Bug::WakesDropped) {
            true => 1,
            false => usize::MAX,
        };
        for e in wakes.events.drain(..).take(told) {
            e.set();
        }
    }

    /// Puts registrations on their ready lists and wakes those who wait: one lock and at most
    /// one wake per waiting thread for a run of wakes to the same poller.
    fn deliver(&self, wakes: &mut Vec<Wake>) {
        let mut rest = wakes.as_slice();
        while let Some(first) = rest.first() {
            let run = rest.iter().take_while(|w| w.poller == first.poller).count();
            if let Some(p) = self.get(first.poller) {
                p.deliver(&rest[..run]);
            }
            rest = &rest[run..];
        }
        wakes.clear();
    }

    /// Makes the descriptors of all pollers readable for good: the stack has ended, and who waits
    /// for one of them is to ask and hear so.
    pub fn raise_all(&self) {
        for p in self.table.iter().filter_map(OnceLock::get) {
            if let Some(n) = &p.state.lock().notify {
                n.raise();
            }
        }
    }

    /// Lock counts.
    pub fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        for p in self.table.iter().filter_map(OnceLock::get) {
            add(LockClass::Poller, p.state.stats());
        }
    }
}

impl<K: Kind> Poller<K> {
    fn deliver(&self, wakes: &[Wake]) {
        let mut events = [const { None }; 4];
        {
            let mut s = self.state.lock();
            let was_empty = s.ready.is_empty();
            let mut fresh = 0;
            for w in wakes {
                if w.gone {
                    s.forget(w.slot, w.generation);
                } else if let Some(r) = s.regs.get_mut(w.slot, w.generation)
                    && r.armed
                {
                    // A level that another thread was told of stays on the list while that
                    // thread works on it; who waits meanwhile is to see what is new.
                    fresh += 1;
                    if !r.queued {
                        r.queued = true;
                        s.ready.push_back((w.slot, w.generation));
                    }
                }
            }
            if fresh == 0 {
                return;
            }
            for e in events.iter_mut().take(fresh) {
                *e = s.waiters.pop();
            }
            if was_empty && let Some(n) = &s.notify {
                n.raise();
            }
        }
        for e in events.into_iter().flatten() {
            e.set();
        }
    }

    /// Makes a registration of `sock`; the caller then adds its word to the socket. `number` is
    /// this poller's.
    ///
    /// # Errors
    /// The poller is closed, or the socket is registered already.
    pub fn register(
        &self,
        number: u32,
        sock: SockId,
        token: usize,
        want: Want,
    ) -> Result<Arc<RegWord>, WatchError> {
        let mut s = self.state.lock();
        if !s.open {
            return Err(WatchError::Closed);
        }
        if s.by_sock.contains_key(&sock) {
            return Err(WatchError::Twice);
        }
        let mut made = None;
        let place = s.regs.insert_with(|slot, generation| {
            let word = Arc::new(RegWord::new(want, number, slot, generation));
            made = Some(word.clone());
            Some(Reg {
                sock,
                token,
                word,
                queued: false,
                armed: true,
            })
        });
        if let Some(place) = place {
            s.by_sock.insert(sock, place);
        }
        made.ok_or(WatchError::Closed)
    }

    /// Whether `sock` is registered, and its word.
    pub fn find(&self, sock: SockId) -> Option<Arc<RegWord>> {
        let s = self.state.lock();
        let (slot, generation) = s.by_sock.get(&sock)?;
        s.regs.get(*slot, *generation).map(|r| r.word.clone())
    }

    /// Removes a registration.
    pub fn deregister(&self, slot: u32, generation: u32) -> bool {
        self.state.lock().forget(slot, generation)
    }

    /// Moves up to `max` events to `out`; returns how many. O(ready), not O(registered).
    pub fn take(&self, out: &mut Vec<Ready>, max: usize) -> usize {
        let mut s = self.state.lock();
        let before = out.len();
        let State {
            regs,
            ready,
            notify,
            ..
        } = &mut *s;
        // Levels go to the back again; looking at each at most once keeps this bounded.
        for _ in 0..ready.len() {
            if out.len() - before >= max {
                break;
            }
            let Some((slot, generation)) = ready.pop_front() else {
                break;
            };
            let Some(r) = regs.get_mut(slot, generation) else {
                continue;
            };
            let bits = r.word.ready();
            if bits == 0 || !r.armed {
                r.queued = false;
                continue;
            }
            out.push(Ready {
                token: r.token,
                bits,
            });
            match r.word.want.trigger {
                Trigger::Level => ready.push_back((slot, generation)),
                Trigger::Edge => r.queued = false,
                Trigger::OneShot => {
                    r.queued = false;
                    r.armed = false;
                }
            }
        }
        if ready.is_empty()
            && let Some(n) = notify
        {
            n.clear();
        }
        out.len() - before
    }

    /// Announces that a thread is about to wait on `event`, unless something is ready, somebody
    /// was to be woken, or the poller is closed: then `false`.
    pub fn wait(&self, event: &Arc<<K::P as Platform>::Event>) -> bool {
        let mut s = self.state.lock();
        let State { regs, ready, .. } = &mut *s;
        // Entries that are no longer ready must not keep a thread from sleeping.
        while let Some((slot, generation)) = ready.front().copied() {
            match regs.get_mut(slot, generation) {
                Some(r) if r.word.ready() != 0 && r.armed => {
                    if planted(Bug::PollerSleepsUnlooked) {
                        break;
                    }
                    return false;
                }
                Some(r) => r.queued = planted(Bug::PollerForgetsEntry),
                None => {}
            }
            ready.pop_front();
        }
        if !s.open || s.woken {
            return false;
        }
        if planted(Bug::WaiterAnnouncedLate) {
            drop(s);
            self.state.lock().waiters.push(event.clone());
            return true;
        }
        s.waiters.push(event.clone());
        true
    }

    /// The thread no longer waits.
    pub fn unwait(&self, event: &Arc<<K::P as Platform>::Event>) {
        self.state.lock().waiters.retain(|w| !Arc::ptr_eq(w, event));
    }

    /// Wakes one thread that waits, without an event; the next to wait if none does.
    pub fn wake(&self) {
        let event = {
            let mut s = self.state.lock();
            s.woken = true;
            s.waiters.pop()
        };
        if let Some(e) = event {
            e.set();
        }
    }

    /// Whether [`Poller::wake`] was called since the last look: then the caller is the one.
    pub fn woken(&self) -> bool {
        core::mem::take(&mut self.state.lock().woken)
    }

    /// Sets who is told that the ready list is no longer empty.
    pub fn set_notify(&self, n: Arc<dyn Notify>) {
        let mut s = self.state.lock();
        if !s.ready.is_empty() {
            n.raise();
        }
        s.notify = Some(n);
    }

    /// How many registrations there are.
    pub fn len(&self) -> usize {
        self.state.lock().regs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
