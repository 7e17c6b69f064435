//! A raw-IP device whose other end is a script: packetdrill's, or a test's.

use perimeter_base::{PktBuf, PktPool, Time, TxRing, buf::POOLED};
use perimeter_sync::{Lock, LockClass, Platform};
use perimeter_wire::MacAddr;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::csum;
use crate::device::{
    Capabilities, Device, Medium, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker,
};
use crate::irq::{Irq, Moderation};

/// Packets that wait in either direction at most.
const LIMIT: usize = 65_536;

/// A packet that the stack has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When: the time of the doorbell.
    pub at: Time,
    /// From the IP header on, checksums complete.
    pub bytes: Vec<u8>,
}

struct State {
    to_stack: VecDeque<(Time, PktBuf)>,
    from_stack: VecDeque<Sent>,
    notify: Option<Waker>,
    dropped: u64,
}

struct Inner<P: Platform> {
    name: String,
    mtu: u32,
    queues: P::Lock<State>,
    irq: Irq<P>,
}

/// The stack's end: one queue each way, [`Medium::Ip`].
pub struct ScriptDevice<P: Platform> {
    inner: Arc<Inner<P>>,
}

/// The script's end. Cheap to clone.
///
/// ```
/// use perimeter_base::Time;
/// use perimeter_link::script::script;
/// use perimeter_sync::Native;
///
/// let (device, handle) = script(&Native::default(), "script0", 1500);
/// // A test plays the network: it says what comes, and looks at what the stack sends.
/// handle.set_notify(std::sync::Arc::new(|| println!("the stack has sent something")));
/// assert!(handle.inject(Time::ZERO, &[0x45; 40]));
/// assert_eq!((handle.next(), handle.waiting(), handle.dropped()), (None, 0, 0));
/// ```
pub struct ScriptHandle<P: Platform> {
    inner: Arc<Inner<P>>,
}

impl<P: Platform> Clone for ScriptHandle<P> {
    fn clone(&self) -> Self {
        ScriptHandle {
            inner: self.inner.clone(),
        }
    }
}

/// A device of that MTU (bytes; at least 68) and its other end.
pub fn script<P: Platform>(
    platform: &P,
    name: &str,
    mtu: u32,
) -> (ScriptDevice<P>, ScriptHandle<P>) {
    let queues = State {
        to_stack: VecDeque::new(),
        from_stack: VecDeque::new(),
        notify: None,
        dropped: 0,
    };
    let inner = Arc::new(Inner {
        name: name.to_owned(),
        mtu: mtu.max(68),
        queues: platform.lock(LockClass::Leaf, queues),
        irq: Irq::new(platform, true, Moderation::default()),
    });
    let device = ScriptDevice {
        inner: inner.clone(),
    };
    (device, ScriptHandle { inner })
}

impl<P: Platform> ScriptHandle<P> {
    /// Gives the stack a packet, from its IP header on, at `now`. False, and a count, if 65,536
    /// wait already.
    pub fn inject(&self, now: Time, bytes: &[u8]) -> bool {
        let mut buf = PktBuf::with_capacity(bytes.len().max(POOLED));
        buf.append(bytes);
        {
            let mut q = self.inner.queues.lock();
            if q.to_stack.len() >= LIMIT {
                q.dropped += 1;
                return false;
            }
            q.to_stack.push_back((now, buf));
        }
        self.inner.irq.raise(now);
        true
    }

    /// The oldest packet that the stack has sent and nobody has taken.
    pub fn next(&self) -> Option<Sent> {
        self.inner.queues.lock().from_stack.pop_front()
    }

    /// How many packets of the stack wait to be taken.
    pub fn waiting(&self) -> usize {
        self.inner.queues.lock().from_stack.len()
    }

    /// Packets dropped because too many waited, either way.
    pub fn dropped(&self) -> u64 {
        self.inner.queues.lock().dropped
    }

    /// Sets who is told when the stack has sent something: called inside the doorbell, once per
    /// doorbell; must not block.
    pub fn set_notify(&self, notify: Waker) {
        self.inner.queues.lock().notify = Some(notify);
    }
}

impl<P: Platform> Device for ScriptDevice<P> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: self.inner.name.clone(),
            medium: Medium::Ip,
            mac: MacAddr::default(),
            mtu: self.inner.mtu,
            tx_checksum: true,
            large: 0,
            large_datagrams: 0,
            hands_on: false,
        }
    }

    fn open(self: Box<Self>) -> Queues {
        let rx = ScriptRx {
            inner: self.inner.clone(),
        };
        let tx = ScriptTx { inner: self.inner };
        (vec![Box::new(rx)], vec![Box::new(tx)])
    }
}

struct ScriptRx<P: Platform> {
    inner: Arc<Inner<P>>,
}

impl<P: Platform> RxQueue for ScriptRx<P> {
    fn poll(
        &mut self,
        now: Time,
        _pool: &mut PktPool,
        out: &mut Vec<RxFrame>,
        max: usize,
    ) -> usize {
        self.inner.irq.disarm();
        let mut q = self.inner.queues.lock();
        let mut n = 0;
        while n < max
            && q.to_stack.front().is_some_and(|p| p.0 <= now)
            && let Some((_, buf)) = q.to_stack.pop_front()
        {
            out.push(RxFrame {
                buf,
                hash: None,
                csum_ok: false,
                segment_size: 0,
            });
            n += 1;
        }
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        let inner = &self.inner;
        inner.irq.arm(now, || {
            let q = inner.queues.lock();
            q.to_stack.front().map_or(Time::NEVER, |p| p.0)
        })
    }

    fn set_waker(&mut self, waker: Waker) {
        self.inner.irq.set_waker(waker);
    }
}

struct ScriptTx<P: Platform> {
    inner: Arc<Inner<P>>,
}

impl<P: Platform> TxQueue for ScriptTx<P> {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        let mut sent = Vec::with_capacity(ring.len());
        for d in ring.pending() {
            let mut bytes = Vec::with_capacity(d.frame_len());
            csum::gather(d, &mut bytes);
            csum::complete(&mut bytes, d.offload);
            sent.push(Sent { at: now, bytes });
        }
        ring.clear();
        if sent.is_empty() {
            return;
        }
        let notify = {
            let mut q = self.inner.queues.lock();
            let room = LIMIT.saturating_sub(q.from_stack.len()).min(sent.len());
            q.dropped += (sent.len() - room) as u64;
            q.from_stack.extend(sent.into_iter().take(room));
            q.notify.clone()
        };
        if let Some(notify) = notify {
            notify();
        }
    }
}
