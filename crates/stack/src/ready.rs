//! Readiness: set inside the perimeter, delivered outside it, one wake per burst.
//!
//! Each direction of a socket has a [`Side`] that is protected with that direction's buffer.
//! A registration with a poller is one [`RegWord`], shared between the socket and the poller:
//! its read half is written only under the receive side's protection and its write half only
//! under the send side's, so plain stores suffice and `up` needs no atomic read-modify-write.

pub use crate::bits::{ALWAYS, ERR, HUP, IN, OUT, RDHUP};
use crate::kind::Kind;
use crate::planted::{Bug, planted};
use crate::tasks::{Half, Tasks};
use perimeter_sync::Platform;
use perimeter_sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;

/// How a registration is told.
///
/// ```
/// use perimeter_stack::ready::Trigger;
///
/// // As `epoll` names them.
/// let flag = |t: Trigger| match t {
///     Trigger::Level => None,
///     Trigger::Edge => Some("EPOLLET"),
///     Trigger::OneShot => Some("EPOLLONESHOT"),
/// };
/// assert_eq!(flag(Trigger::default()), None);
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Trigger {
    /// As long as it is ready.
    #[default]
    Level,
    /// Whenever something new arrives.
    Edge,
    /// Once; then it must be registered again.
    OneShot,
}

/// What a registration wants.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// Which of [`IN`], [`OUT`], [`RDHUP`].
    pub interest: u8,
    /// How to tell.
    pub trigger: Trigger,
    /// Of all exclusive registrations of a socket one is told, not all (as `EPOLLEXCLUSIVE`).
    pub exclusive: bool,
}

/// One registration, seen from the socket.
#[derive(Debug)]
pub struct RegWord {
    /// Written under the receive side's protection.
    read: AtomicU8,
    /// Written under the send side's protection.
    write: AtomicU8,
    /// What is wanted.
    pub want: Want,
    /// The poller's number.
    pub poller: u32,
    /// Place in the poller.
    pub slot: u32,
    /// Generation of that place.
    pub generation: u32,
}

impl RegWord {
    /// A registration at place `(slot, generation)` of poller `poller`; nothing is ready yet.
    pub fn new(want: Want, poller: u32, slot: u32, generation: u32) -> RegWord {
        RegWord {
            read: AtomicU8::new(0),
            write: AtomicU8::new(0),
            want,
            poller,
            slot,
            generation,
        }
    }

    /// What is ready now, of what is wanted.
    pub fn ready(&self) -> u8 {
        let bits = self.read.load(Ordering::Acquire) | self.write.load(Ordering::Acquire);
        bits & (self.want.interest | ALWAYS)
    }
}

/// Somebody who watches one direction of a socket.
pub enum Watch<K: Kind> {
    /// A registration with a poller.
    Reg(Arc<RegWord>),
    /// A blocked call; told once.
    Wait(Arc<<K::P as Platform>::Event>),
    /// Tasks of an async runtime: told of levels.
    Tasks(Arc<Tasks>),
}

/// A poller's registration to be put on its ready list once the perimeter is left.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The poller's number.
    pub poller: u32,
    /// Place in the poller.
    pub slot: u32,
    /// Generation of that place.
    pub generation: u32,
    /// The socket has gone: the registration goes too, without an event.
    pub gone: bool,
}

/// Who is to be told once the perimeter is left.
pub struct Wakes<K: Kind> {
    /// Registrations to put on ready lists.
    pub regs: Vec<Wake>,
    /// Blocked calls to wake.
    pub events: Vec<Arc<<K::P as Platform>::Event>>,
    /// Tasks to wake.
    pub tasks: Vec<(Arc<Tasks>, Half)>,
}

impl<K: Kind> Wakes<K> {
    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.regs.is_empty() && self.events.is_empty() && self.tasks.is_empty()
    }

    #[inline]
    fn tasks(&mut self, tasks: &Arc<Tasks>, half: Half, bits: u8) {
        if tasks.raise(half, bits) {
            self.tasks.push((tasks.clone(), half));
        }
    }
}

impl<K: Kind> Default for Wakes<K> {
    fn default() -> Wakes<K> {
        Wakes {
            regs: Vec::new(),
            events: Vec::new(),
            tasks: Vec::new(),
        }
    }
}

/// The readiness of one direction of a socket, and who watches it.
pub struct Side<K: Kind> {
    bits: u8,
    write_half: bool,
    watch: Vec<Watch<K>>,
}

impl<K: Kind> Side<K> {
    /// The receive side: [`IN`], [`RDHUP`] and errors.
    pub fn read() -> Side<K> {
        Side {
            bits: 0,
            write_half: false,
            watch: Vec::new(),
        }
    }

    /// The send side: [`OUT`] and errors.
    pub fn write() -> Side<K> {
        Side {
            bits: 0,
            write_half: true,
            watch: Vec::new(),
        }
    }

    /// What is ready.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    fn half(&self) -> Half {
        match self.write_half {
            true => Half::Write,
            false => Half::Read,
        }
    }

    /// Something happened: `bits` are ready. Watchers are noted in `wakes`, to be told when the
    /// perimeter is left: levels when a bit is new, edges each time.
    #[inline]
    pub fn raise(&mut self, bits: u8, wakes: &mut Wakes<K>) {
        let fresh = bits & !self.bits;
        self.bits |= bits;
        if !self.watch.is_empty() {
            self.tell(bits, fresh, wakes);
        }
    }

    fn tell(&mut self, bits: u8, fresh: u8, wakes: &mut Wakes<K>) {
        let (now, write_half, half) = (self.bits, self.write_half, self.half());
        // The common cases: one registration, or a socket of a runtime.
        if let [Watch::Tasks(tasks)] = self.watch.as_slice() {
            if fresh != 0 {
                wakes.tasks(tasks, half, now);
            }
            return;
        }
        if let [Watch::Reg(reg)] = self.watch.as_slice() {
            reg.half(write_half).store(now, Ordering::Release);
            let news = if reg.want.trigger == Trigger::Level {
                fresh
            } else {
                bits
            };
            if news & (reg.want.interest | ALWAYS) != 0 {
                wakes.regs.push(Wake {
                    poller: reg.poller,
                    slot: reg.slot,
                    generation: reg.generation,
                    gone: false,
                });
            }
            return;
        }
        let mut exclusive_told = false;
        let mut told_at = None;
        let mut index = 0;
        self.watch.retain(|w| {
            let keep = match w {
                Watch::Wait(event) => {
                    wakes.events.push(event.clone());
                    false
                }
                Watch::Tasks(tasks) => {
                    if fresh != 0 {
                        wakes.tasks(tasks, half, now);
                    }
                    true
                }
                Watch::Reg(reg) => {
                    reg.half(write_half).store(now, Ordering::Release);
                    let news = if reg.want.trigger == Trigger::Level {
                        fresh
                    } else {
                        bits
                    };
                    let wanted = news & (reg.want.interest | ALWAYS) != 0;
                    if wanted && !(reg.want.exclusive && exclusive_told) {
                        if reg.want.exclusive {
                            exclusive_told = true;
                            told_at = Some(index);
                        }
                        wakes.regs.push(Wake {
                            poller: reg.poller,
                            slot: reg.slot,
                            generation: reg.generation,
                            gone: false,
                        });
                    }
                    true
                }
            };
            index += usize::from(keep);
            keep
        });
        // The next exclusive registration has its turn next time.
        if let Some(i) = told_at {
            let w = self.watch.remove(i);
            self.watch.push(w);
        }
    }

    /// `bits` are no longer ready.
    #[inline]
    pub fn lower(&mut self, bits: u8) {
        if self.bits & bits == 0 {
            return;
        }
        self.bits &= !bits;
        for w in &self.watch {
            match w {
                Watch::Reg(reg) => reg
                    .half(self.write_half)
                    .store(self.bits, Ordering::Release),
                Watch::Tasks(tasks) => tasks.lower(self.half(), bits),
                Watch::Wait(_) => {}
            }
        }
    }

    /// Adds a registration; what is ready already is noted at once.
    pub fn register(&mut self, reg: &Arc<RegWord>, wakes: &mut Wakes<K>) {
        reg.half(self.write_half)
            .store(self.bits, Ordering::Release);
        self.watch.push(Watch::Reg(reg.clone()));
        if self.bits & (reg.want.interest | ALWAYS) != 0 {
            wakes.regs.push(Wake {
                poller: reg.poller,
                slot: reg.slot,
                generation: reg.generation,
                gone: false,
            });
        }
    }

    /// Removes the registration at `(poller, slot, generation)`.
    pub fn deregister(&mut self, poller: u32, slot: u32, generation: u32) {
        self.watch.retain(|w| match w {
            Watch::Reg(r) => (r.poller, r.slot, r.generation) != (poller, slot, generation),
            Watch::Wait(_) | Watch::Tasks(_) => true,
        });
    }

    /// Adds tasks of a runtime; what is ready already is noted at once.
    pub fn add_tasks(&mut self, tasks: &Arc<Tasks>, wakes: &mut Wakes<K>) {
        if self.bits != 0 {
            wakes.tasks(tasks, self.half(), self.bits);
        }
        self.watch.push(Watch::Tasks(tasks.clone()));
    }

    /// Adds a blocked call, unless one of `bits` (or an error) is ready: then tells so.
    pub fn wait(&mut self, bits: u8, event: &Arc<<K::P as Platform>::Event>) -> bool {
        if self.bits & (bits | ALWAYS) != 0 && !planted(Bug::CallSleepsUnlooked) {
            return true;
        }
        self.watch.push(Watch::Wait(event.clone()));
        false
    }

    /// Removes a blocked call that gave up.
    pub fn unwait(&mut self, event: &Arc<<K::P as Platform>::Event>) {
        self.watch.retain(|w| match w {
            Watch::Wait(e) => !Arc::ptr_eq(e, event),
            Watch::Reg(_) | Watch::Tasks(_) => true,
        });
    }

    /// The application has closed the socket: blocked calls are woken, to fail, and
    /// registrations are taken off their pollers, as `close` does to an `epoll`.
    pub fn leave(&mut self, wakes: &mut Wakes<K>) {
        self.bits |= ERR | HUP;
        for w in core::mem::take(&mut self.watch) {
            match w {
                Watch::Wait(event) => wakes.events.push(event),
                Watch::Tasks(tasks) => wakes.tasks(&tasks, self.half(), self.bits),
                Watch::Reg(reg) => wakes.regs.push(Wake {
                    poller: reg.poller,
                    slot: reg.slot,
                    generation: reg.generation,
                    gone: true,
                }),
            }
        }
    }

    /// Everybody who watches is told that this is over, and forgotten.
    pub fn finish(&mut self, wakes: &mut Wakes<K>) {
        self.raise(ERR | HUP, wakes);
        self.watch = Vec::new();
    }
}

impl RegWord {
    fn half(&self, write: bool) -> &AtomicU8 {
        if write && !planted(Bug::HalvesShared) {
            &self.write
        } else {
            &self.read
        }
    }
}
