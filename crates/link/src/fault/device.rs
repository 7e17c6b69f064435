//! Faults around any device.

use perimeter_base::{PktBuf, PktPool, Time, TxDesc, TxRing, buf::POOLED};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::{FaultConfig, FaultCounters, FaultCounts, Faults, Packet};
use crate::csum;
use crate::device::{
    Capabilities, Device, Medium, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker,
};
use crate::rng::SplitMix64;
use crate::rss::Rss;

/// Packets that one queue holds back at most; more are lost.
const HELD: usize = 65_536;

/// A device whose frames meet faults in either direction.
///
/// Offloaded checksums are completed before the faults, and nothing that arrives has its
/// checksum vouched for. Frames are copied. Every queue draws from a sequence of its own,
/// derived from the seed and its number.
///
/// Frames to send that are held back leave at a later doorbell: [`TxQueue::ready_at`] tells
/// when one is wanted, though the ring may be empty.
pub struct Faulty {
    inner: Box<dyn Device>,
    tx: FaultConfig,
    rx: FaultConfig,
    counters: [Arc<FaultCounters>; 2],
}

/// Reads what the faults of a [`Faulty`] device did. Cheap to clone.
#[derive(Clone)]
pub struct FaultHandle {
    counters: [Arc<FaultCounters>; 2],
}

impl FaultHandle {
    /// What frames to send met.
    pub fn tx(&self) -> FaultCounts {
        self.counters[0].read()
    }

    /// What received frames met.
    pub fn rx(&self) -> FaultCounts {
        self.counters[1].read()
    }
}

impl Faulty {
    /// `inner` with faults for what is sent (`tx`) and what is received (`rx`).
    pub fn new(inner: Box<dyn Device>, tx: FaultConfig, rx: FaultConfig) -> (Faulty, FaultHandle) {
        let counters: [Arc<FaultCounters>; 2] = Default::default();
        let handle = FaultHandle {
            counters: counters.clone(),
        };
        let faulty = Faulty {
            inner,
            tx,
            rx,
            counters,
        };
        (faulty, handle)
    }
}

/// The faults of queue `index`.
fn of_queue(config: &FaultConfig, index: usize) -> Faults {
    let mut config = config.clone();
    for _ in 0..index {
        config.seed = SplitMix64::new(config.seed).next();
    }
    Faults::new(config)
}

impl Device for Faulty {
    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities {
            tx_checksum: true,
            large: 0,
            large_datagrams: 0,
            hands_on: false,
            ..inner
        }
    }

    fn open(self: Box<Self>) -> Queues {
        let medium = self.inner.capabilities().medium;
        let (rx, tx) = self.inner.open();
        let rx = rx.into_iter().enumerate().map(|(i, inner)| {
            Box::new(FaultyRx {
                inner,
                medium,
                faults: of_queue(&self.rx, i),
                counters: self.counters[1].clone(),
                held: Held::default(),
                came: Vec::new(),
                rss: Rss::even(1),
                hashed: false,
            }) as Box<dyn RxQueue>
        });
        let tx = tx.into_iter().enumerate().map(|(i, inner)| {
            Box::new(FaultyTx {
                inner,
                medium,
                faults: of_queue(&self.tx, i),
                counters: self.counters[0].clone(),
                held: Held::default(),
                ring: TxRing::new(256),
            }) as Box<dyn TxQueue>
        });
        (rx.collect(), tx.collect())
    }
}

/// Packets held back, by due time; equal ones in the order in which they came.
#[derive(Default)]
struct Held {
    packets: VecDeque<Packet>,
    passed: Vec<Packet>,
}

impl Held {
    fn pass(
        &mut self,
        now: Time,
        buf: PktBuf,
        faults: &mut Faults,
        medium: Medium,
        counters: &FaultCounters,
    ) {
        let mut passed = std::mem::take(&mut self.passed);
        faults.pass(Packet { due: now, buf }, medium, counters, &mut passed);
        for p in passed.drain(..) {
            if self.packets.len() >= HELD {
                counters.note_queue_drop();
                continue;
            }
            let mut at = self.packets.len();
            while at > 0 && self.packets[at - 1].due > p.due {
                at -= 1;
            }
            self.packets.insert(at, p);
        }
        self.passed = passed;
    }

    fn next_due(&self) -> Time {
        self.packets.front().map_or(Time::NEVER, |p| p.due)
    }

    fn take_due(&mut self, now: Time) -> Option<PktBuf> {
        if self.next_due() > now {
            return None;
        }
        self.packets.pop_front().map(|p| p.buf)
    }
}

struct FaultyTx {
    inner: Box<dyn TxQueue>,
    medium: Medium,
    faults: Faults,
    counters: Arc<FaultCounters>,
    held: Held,
    /// What the inner device has not taken yet.
    ring: TxRing,
}

fn copy(d: &TxDesc) -> PktBuf {
    let mut buf = PktBuf::with_capacity(d.frame_len().max(POOLED));
    if let Some(n) = csum::copy_out(d, buf.raw_mut()) {
        buf.set_window(0, n);
        csum::complete(buf.as_mut_slice(), d.offload);
    }
    buf
}

impl TxQueue for FaultyTx {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        for d in ring.pending() {
            let buf = copy(d);
            self.held
                .pass(now, buf, &mut self.faults, self.medium, &self.counters);
        }
        ring.clear();
        loop {
            while self.ring.room() > 0
                && let Some(buf) = self.held.take_due(now)
                && let Some(mut d) = self.ring.push()
            {
                d.hdr_len = 0;
                d.owned = Some(buf);
            }
            let before = self.ring.len();
            self.inner.doorbell(now, &mut self.ring);
            if self.ring.len() == before || self.held.next_due() > now {
                return;
            }
        }
    }

    fn carrier(&self) -> bool {
        self.inner.carrier()
    }

    fn ready_at(&self) -> Time {
        let inner = self.inner.ready_at();
        let held = self.held.next_due();
        match (self.ring.is_empty(), held) {
            (true, Time::NEVER) => inner,
            (true, held) => held,
            // Zero would mean that nothing is wanted.
            (false, held) => inner.max(Time(1)).min(held),
        }
    }

    fn peer_ns(&self) -> u64 {
        self.inner.peer_ns()
    }
}

struct FaultyRx {
    inner: Box<dyn RxQueue>,
    medium: Medium,
    faults: Faults,
    counters: Arc<FaultCounters>,
    held: Held,
    came: Vec<RxFrame>,
    rss: Rss,
    /// The inner device hands up hashes.
    hashed: bool,
}

impl RxQueue for FaultyRx {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let mut came = std::mem::take(&mut self.came);
        self.inner.poll(now, pool, &mut came, max);
        for mut f in came.drain(..) {
            if f.csum_ok {
                csum::renew(f.buf.as_mut_slice(), self.medium);
            }
            self.hashed |= f.hash.is_some();
            self.held
                .pass(now, f.buf, &mut self.faults, self.medium, &self.counters);
        }
        self.came = came;
        let mut n = 0;
        while n < max
            && let Some(buf) = self.held.take_due(now)
        {
            // Of the bytes as they are now, damage included.
            let hash = match (self.hashed, self.medium) {
                (false, _) => None,
                (true, Medium::Ethernet) => self.rss.hash_ethernet(buf.as_slice()),
                (true, Medium::Ip) => self.rss.hash_ip(buf.as_slice()),
            };
            out.push(RxFrame {
                buf,
                hash,
                csum_ok: false,
                segment_size: 0,
            });
            n += 1;
        }
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        let held = self.held.next_due();
        if held <= now {
            return RxStatus::Ready;
        }
        match self.inner.arm(now) {
            RxStatus::Ready => RxStatus::Ready,
            RxStatus::Armed(t) => RxStatus::Armed(t.min(held)),
            RxStatus::Gone => RxStatus::Gone,
        }
    }

    fn set_waker(&mut self, waker: Waker) {
        self.inner.set_waker(waker);
    }

    fn fd(&self) -> Option<RawFd> {
        self.inner.fd()
    }

    fn peer_ns(&self) -> u64 {
        self.inner.peer_ns()
    }
}
