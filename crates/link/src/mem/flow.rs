//! The peer's connections: state, table, and what others may read of them.
//!
//! A connection is private to the transmit queue that carries it, so nothing here is locked.
//! [`FlowShared`] is the exception: written by that queue only, read by receive queues and by
//! whoever reports.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use super::NicConfig;
use crate::rng::mix;

/// Name of a flow. Numbers in host order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    /// Address of the stack under test.
    pub host: u32,
    /// Address that the peer plays.
    pub peer: u32,
    /// Ports, the peer's in the upper half.
    pub ports: u32,
}

impl Key {
    #[inline]
    fn hash(self) -> usize {
        let v = u64::from(self.ports) << 32 | u64::from(self.host ^ self.peer.rotate_left(16));
        (v.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
    }

    /// Initial sequence number of the peer for this flow: a function of name and secret, so
    /// that an active open needs no state until it is answered.
    pub(crate) fn iss(self, secret: u64) -> u32 {
        let v = u64::from(self.ports) << 32 | u64::from(self.host);
        mix(mix(v ^ secret) ^ u64::from(self.peer)) as u32
    }
}

/// Where a connection is (RFC 9293, section 3.3.2), as far as an ideal peer has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Answered a SYN.
    SynReceived,
    Established,
    /// The stack has closed, and so have we: awaiting the ACK of our FIN.
    LastAck,
    /// We have closed, the stack has not.
    FinWait,
    /// Both have; kept to answer a retransmitted FIN.
    TimeWait,
}

/// What a connection needs at every segment: one cache line.
#[repr(align(64))]
pub(crate) struct Flow {
    pub key: Key,
    /// RCV.NXT.
    pub rcv_nxt: u32,
    /// SND.UNA and SND.NXT.
    pub snd_una: u32,
    pub snd_nxt: u32,
    /// SND.WND, bytes.
    pub snd_wnd: u32,
    pub ts_recent: u32,
    /// Bytes that came in order and are not acknowledged yet.
    pub unacked: u32,
    /// Acknowledge at once from this many.
    pub threshold: u32,
    pub hash: u32,
    /// Bytes that came in order.
    pub received: u64,
    /// A delayed-acknowledgment timer runs until this tick of 2^16 ns.
    pub timer: u32,
    pub state: State,
    pub rxq: u8,
    pub flags: u8,
    /// Shift count of the stack's windows.
    pub snd_wscale: u8,
}

const _: () = assert!(size_of::<Flow>() == 64);

/// Timestamps are in use.
pub(crate) const TS: u8 = 1;
/// SACK is permitted.
pub(crate) const SACK: u8 = 2;
/// The peer sends data.
pub(crate) const SOURCE: u8 = 4;
/// In the list of those with a lone segment.
pub(crate) const TOUCHED: u8 = 8;
/// The shared word announces a lone segment.
pub(crate) const LONE: u8 = 16;
/// In the list of those that wait for room.
pub(crate) const BLOCKED: u8 = 32;
/// Something is out of order or the stack has sent a FIN early: the slow path decides.
pub(crate) const HOLES: u8 = 64;
/// Our windows are scaled.
pub(crate) const WSCALE: u8 = 128;

/// What a connection needs now and then.
#[derive(Default)]
pub(crate) struct Cold {
    /// Initial sequence numbers, ours and the stack's.
    pub iss: u32,
    pub irs: u32,
    /// Largest payload that we may send.
    pub mss: u32,
    /// Stream bytes sent for the first time, and the limit if there is one.
    pub sent: u64,
    pub limit: u64,
    /// Out-of-order ranges, ascending, disjoint; the last changed one leads SACK options.
    pub ranges: Vec<(u32, u32)>,
    pub newest: u32,
    /// Where a FIN that came early stands.
    pub fin_at: Option<u32>,
    pub dup_acks: u8,
    /// NewReno's recovery point (RFC 6582) while recovering.
    pub recover: Option<u32>,
    /// Ours is sent.
    pub fin_sent: bool,
}

/// What others may read of a connection. Written by its transmit queue only, but for `fired`.
#[repr(align(64))]
pub(crate) struct FlowShared {
    /// Bytes of the stack's stream acknowledged.
    pub acked: AtomicU64,
    /// Bytes of our stream that the stack has acknowledged.
    pub delivered: AtomicU64,
    /// A lone segment's acknowledgment: number and timestamp to echo; 0 when there is none.
    pub lone: AtomicU64,
    /// What `acked` becomes by it.
    pub lone_acked: AtomicU64,
    /// The last `lone` that the receive queue has acknowledged. Written by that queue only.
    pub fired: AtomicU64,
    pub snd_nxt: AtomicU32,
    /// Counts the uses of the slot: odd while in use.
    pub generation: AtomicU32,
    host: AtomicU64,
    peer: AtomicU64,
}

impl FlowShared {
    fn new() -> FlowShared {
        FlowShared {
            acked: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            lone: AtomicU64::new(0),
            lone_acked: AtomicU64::new(0),
            fired: AtomicU64::new(0),
            snd_nxt: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            host: AtomicU64::new(0),
            peer: AtomicU64::new(0),
        }
    }

    /// Whether the receive queue has acknowledged the lone segment announced last.
    pub(crate) fn lone_is_acknowledged(&self) -> bool {
        let lone = self.lone.load(Ordering::Acquire);
        lone != 0 && self.fired.load(Ordering::Acquire) == lone
    }
}

/// One connection of an ideal peer, as reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowReport {
    /// The stack's end.
    pub host: SocketAddr,
    /// The peer's end.
    pub peer: SocketAddr,
    /// Payload bytes from the stack that the peer has acknowledged, since the beginning.
    pub acked: u64,
    /// Payload bytes from the peer that the stack has acknowledged, since the beginning.
    pub delivered: u64,
}

pub(crate) fn report(shared: &[FlowShared], config: &NicConfig, out: &mut Vec<FlowReport>) {
    let addr = |v: u64| SocketAddr::new(config.ip((v >> 16) as u32), v as u16);
    for s in shared {
        if s.generation.load(Ordering::Acquire) % 2 == 1 {
            out.push(FlowReport {
                host: addr(s.host.load(Ordering::Relaxed)),
                peer: addr(s.peer.load(Ordering::Relaxed)),
                acked: if s.lone_is_acknowledged() {
                    s.lone_acked.load(Ordering::Relaxed)
                } else {
                    s.acked.load(Ordering::Relaxed)
                },
                delivered: s.delivered.load(Ordering::Relaxed),
            });
        }
    }
}

/// The connections of one transmit queue: slots, and an open-addressed index of them.
pub(crate) struct Flows {
    pub hot: Vec<Flow>,
    pub cold: Vec<Cold>,
    pub shared: Arc<[FlowShared]>,
    free: Vec<u32>,
    /// Slot + 1, or 0. Linear probing; at most half full.
    index: Vec<u32>,
    live: usize,
    last: u32,
}

impl Flows {
    pub(crate) fn new(capacity: usize) -> Flows {
        let shared = (0..capacity).map(|_| FlowShared::new()).collect();
        Flows {
            hot: Vec::new(),
            cold: Vec::new(),
            shared,
            free: Vec::new(),
            index: vec![0; 64],
            live: 0,
            last: 0,
        }
    }

    /// The slot of `key`. Bursts are mostly of one connection, so the last is tried first.
    #[inline]
    pub(crate) fn find(&mut self, key: Key) -> Option<u32> {
        if let Some(f) = self.hot.get(self.last as usize)
            && f.key == key
            && self.live != 0
        {
            return Some(self.last);
        }
        let mask = self.index.len() - 1;
        let mut at = key.hash() & mask;
        loop {
            let slot = self.index[at].checked_sub(1)?;
            if self.hot[slot as usize].key == key {
                self.last = slot;
                return Some(slot);
            }
            at = (at + 1) & mask;
        }
    }

    /// Brings the connection of `key` closer, if it is where the index says first.
    #[inline]
    pub(crate) fn prefetch(&self, key: Key) {
        let at = key.hash() & (self.index.len() - 1);
        if let Some(slot) = self.index[at].checked_sub(1) {
            prefetch(&raw const self.hot[slot as usize]);
        }
    }

    /// A slot for a new flow, which must not exist yet; `None` if all are in use.
    pub(crate) fn insert(&mut self, flow: Flow, cold: Cold) -> Option<u32> {
        let key = flow.key;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.hot[slot as usize] = flow;
                self.cold[slot as usize] = cold;
                slot
            }
            None if self.hot.len() < self.shared.len() => {
                self.hot.push(flow);
                self.cold.push(cold);
                (self.hot.len() - 1) as u32
            }
            None => return None,
        };
        self.live += 1;
        if self.live * 2 > self.index.len() {
            self.rebuild(self.index.len() * 2);
        }
        self.link(key, slot);
        let s = &self.shared[slot as usize];
        s.acked.store(0, Ordering::Relaxed);
        s.delivered.store(0, Ordering::Relaxed);
        s.lone.store(0, Ordering::Relaxed);
        let (host, peer) = (u64::from(key.host), u64::from(key.peer));
        let ports = u64::from(key.ports);
        s.host
            .store(host << 16 | (ports & 0xffff), Ordering::Relaxed);
        s.peer.store(peer << 16 | (ports >> 16), Ordering::Relaxed);
        let generation = s.generation.load(Ordering::Relaxed).wrapping_add(1);
        s.generation.store(generation, Ordering::Release);
        Some(slot)
    }

    fn link(&mut self, key: Key, slot: u32) {
        let mask = self.index.len() - 1;
        let mut at = key.hash() & mask;
        while self.index[at] != 0 {
            at = (at + 1) & mask;
        }
        self.index[at] = slot + 1;
    }

    fn rebuild(&mut self, len: usize) {
        let old = std::mem::replace(&mut self.index, vec![0; len]);
        for entry in old {
            if let Some(slot) = entry.checked_sub(1) {
                self.link(self.hot[slot as usize].key, slot);
            }
        }
    }

    /// Forgets a connection.
    pub(crate) fn remove(&mut self, slot: u32) {
        let key = self.hot[slot as usize].key;
        let mask = self.index.len() - 1;
        let mut at = key.hash() & mask;
        loop {
            match self.index[at].checked_sub(1) {
                None => return,
                Some(s) if s == slot => break,
                Some(_) => at = (at + 1) & mask,
            }
        }
        // Close the gap: whoever would be found from here on must stay findable.
        self.index[at] = 0;
        let mut next = (at + 1) & mask;
        while let Some(s) = self.index[next].checked_sub(1) {
            self.index[next] = 0;
            self.link(self.hot[s as usize].key, s);
            next = (next + 1) & mask;
        }
        // A key that no frame has, so that the memo of the last hit fails.
        self.hot[slot as usize].key = Key {
            host: 0,
            peer: 0,
            ports: 0,
        };
        self.cold[slot as usize] = Cold::default();
        let s = &self.shared[slot as usize];
        s.lone.store(0, Ordering::Relaxed);
        let generation = s.generation.load(Ordering::Relaxed).wrapping_add(1);
        s.generation.store(generation, Ordering::Release);
        self.free.push(slot);
        self.live -= 1;
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.live
    }
}

/// Asks for the cache line at `at`.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect but on the cache, whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;
    use std::collections::HashMap;

    fn flow(key: Key) -> Flow {
        Flow {
            key,
            rcv_nxt: 0,
            snd_una: 0,
            snd_nxt: 0,
            snd_wnd: 0,
            ts_recent: 0,
            unacked: 0,
            threshold: 0,
            hash: 0,
            received: 0,
            timer: 0,
            state: State::Established,
            rxq: 0,
            flags: 0,
            snd_wscale: 0,
        }
    }

    /// Against a model, with few names so that they collide and come back.
    #[test]
    fn the_index_is_a_map() {
        let mut flows = Flows::new(300);
        let mut model: HashMap<u32, u32> = HashMap::new();
        let mut rng = SplitMix64::new(11);
        for _ in 0..40_000 {
            let ports = rng.below(500) as u32;
            let key = Key {
                host: 9,
                peer: 8,
                ports,
            };
            assert_eq!(flows.find(key), model.get(&ports).copied());
            match model.get(&ports) {
                Some(&slot) if rng.chance(0.6) => {
                    flows.remove(slot);
                    model.remove(&ports);
                }
                Some(_) => {}
                None => match flows.insert(flow(key), Cold::default()) {
                    Some(slot) => {
                        model.insert(ports, slot);
                    }
                    None => assert_eq!(model.len(), 300),
                },
            }
            assert_eq!(flows.len(), model.len());
        }
        let mut out = Vec::new();
        report(&flows.shared, &NicConfig::new(0), &mut out);
        assert_eq!(out.len(), model.len());
    }
}
