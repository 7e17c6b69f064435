//! Frames of a running stack, for whoever looks, while somebody looks.
//!
//! Every interface of a stack that can be asked ([`Captures::wrap`]) is behind a switch: a load of
//! one word for each burst while nobody looks. Who looks gets copies by a bounded queue; what does
//! not fit is counted, and nothing waits.

mod filter;
mod summary;

pub use crate::pcap::format::Direction;
pub use filter::{Filter, FilterError};
pub use summary::Summary;

use crate::device::{Capabilities, Device, Medium, Queues};
use crate::pcap::observed::{Frames, Observed, Observer};
use perimeter_base::Time;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most octets that wait for one who looks.
const WAITING: usize = 16 << 20;
/// The most packets that do.
const PACKETS: usize = 16_384;

/// An interface that is behind the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// What its frames start with.
    pub medium: Medium,
}

/// A frame that has passed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured {
    /// Number of the interface, in the order in which they were wrapped.
    pub interface: usize,
    /// When, on the stack's clock.
    pub at: Time,
    /// Which way.
    pub direction: Direction,
    /// Its length, octets.
    pub len: u32,
    /// Its first octets, or all.
    pub bytes: Vec<u8>,
}

/// The switches of a stack's interfaces. A handle: clones are the same.
#[derive(Clone, Default)]
pub struct Captures(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Somebody looks.
    on: AtomicBool,
    looking: Mutex<Vec<Watch>>,
    interfaces: Mutex<Vec<Interface>>,
}

/// Nobody panics while holding it.
fn guard<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Watch {
    filter: Filter,
    snap_len: usize,
    tell: mpsc::SyncSender<Captured>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Octets that wait.
    waiting: AtomicUsize,
    /// Packets that were wanted and had no room.
    lost: AtomicU64,
}

impl Captures {
    /// No interface yet.
    pub fn new() -> Captures {
        Captures::default()
    }

    /// Puts `inner` behind the switch.
    pub fn wrap(&self, inner: Box<dyn Device>) -> CaptureDevice {
        let caps = inner.capabilities();
        let mut interfaces = guard(&self.0.interfaces);
        interfaces.push(Interface {
            name: caps.name,
            medium: caps.medium,
        });
        CaptureDevice(Observed {
            inner,
            observer: Switch {
                interface: interfaces.len() - 1,
                medium: caps.medium,
                shared: self.0.clone(),
            },
        })
    }

    /// The interfaces.
    pub fn interfaces(&self) -> Vec<Interface> {
        guard(&self.0.interfaces).clone()
    }

    /// Begins to look: at packets that `filter` wants, `snap_len` octets of each at most (0: one).
    /// It ends when what is returned is dropped.
    pub fn look(&self, filter: Filter, snap_len: u32) -> Looking {
        let (tell, packets) = mpsc::sync_channel(PACKETS);
        let counts = Arc::new(Counts::default());
        let mut looking = guard(&self.0.looking);
        looking.push(Watch {
            filter,
            snap_len: snap_len.max(1) as usize,
            tell,
            counts: counts.clone(),
        });
        self.0.on.store(true, Ordering::Release);
        Looking {
            packets,
            counts,
            shared: self.0.clone(),
        }
    }
}

/// Somebody who looks.
pub struct Looking {
    packets: mpsc::Receiver<Captured>,
    counts: Arc<Counts>,
    shared: Arc<Shared>,
}

impl Looking {
    /// The next packet that waits, if any. Nobody is woken for a packet: look again after a while.
    pub fn next(&self) -> Option<Captured> {
        let packet = self.packets.try_recv().ok()?;
        let waiting = &self.counts.waiting;
        waiting.fetch_sub(packet.bytes.len(), Ordering::Relaxed);
        Some(packet)
    }

    /// Packets so far that were wanted and had no room.
    pub fn lost(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        let mut looking = guard(&self.shared.looking);
        looking.retain(|w| !Arc::ptr_eq(&w.counts, &self.counts));
        self.shared.on.store(!looking.is_empty(), Ordering::Release);
    }
}

/// A device behind the switch.
pub struct CaptureDevice(Observed<Switch>);

impl Device for CaptureDevice {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        Box::new(self.0).open()
    }
}

#[derive(Clone)]
struct Switch {
    interface: usize,
    medium: Medium,
    shared: Arc<Shared>,
}

impl Observer for Switch {
    fn on(&self) -> bool {
        self.shared.on.load(Ordering::Acquire)
    }

    fn saw(&mut self, at: Time, direction: Direction, frames: Frames<'_>) {
        let looking = guard(&self.shared.looking);
        for frame in frames {
            for w in looking.iter() {
                if w.filter.wants(frame, self.medium, direction) {
                    w.tell(self.interface, at, direction, frame);
                }
            }
        }
    }
}

impl Watch {
    fn tell(&self, interface: usize, at: Time, direction: Direction, frame: &[u8]) {
        let bytes = &frame[..frame.len().min(self.snap_len)];
        let waiting = &self.counts.waiting;
        let before = waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        let room = before + bytes.len() <= WAITING;
        let packet = || Captured {
            interface,
            at,
            direction,
            len: frame.len() as u32,
            bytes: bytes.to_vec(),
        };
        if !room || self.tell.try_send(packet()).is_err() {
            waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who does not read loses what has no room, and nothing of it stays when it goes.
    #[test]
    fn what_waits_is_bounded() {
        let captures = Captures::new();
        let on = || captures.0.on.load(Ordering::Relaxed);
        assert!(!on());
        let tell = |frame: &[u8], n: usize| {
            for w in guard(&captures.0.looking).iter() {
                for _ in 0..n {
                    w.tell(0, Time::ZERO, Direction::Inbound, frame);
                }
            }
        };
        let short = captures.look(Filter::default(), 0);
        let whole = captures.look(Filter::default(), u32::MAX);
        assert!(on());
        tell(&[7; 100], PACKETS + 5);
        assert_eq!((short.lost(), whole.lost()), (5, 5));
        let packet = short.next().expect("waits");
        assert_eq!((packet.len, packet.bytes.as_slice()), (100, &[7][..]));
        while whole.next().is_some() {}
        let frame = vec![1; 60_000];
        let fit = WAITING / frame.len();
        tell(&frame, fit + 3);
        assert_eq!(whole.lost(), 5 + 3);
        assert_eq!(std::iter::from_fn(|| whole.next()).count(), fit);
        tell(&frame, 1);
        assert!(whole.next().is_some() && whole.lost() == 8);
        drop(short);
        assert!(on());
        drop(whole);
        assert!(!on() && guard(&captures.0.looking).is_empty());
    }
}
