//! The serialisation delay of a link.

use core::sync::atomic::{AtomicU64, Ordering};
use perimeter_base::Time;

/// What a frame takes on an Ethernet besides its bytes: preamble and start delimiter 8, frame
/// check sequence 4, inter-packet gap 12.
pub const OVERHEAD: usize = 24;

/// How far ahead of the wire a device accepts frames, ns: its FIFO.
pub const FIFO_NS: u64 = 10_000;

/// One direction of a link that several queues share.
pub(crate) struct Pacer {
    /// Picoseconds per byte; 0 for a link without a rate.
    ps_per_byte: u64,
    /// How far ahead of the wire frames are accepted, ns.
    ahead_ns: u64,
    /// When the wire is free again, in picoseconds. Written by every sender, by
    /// compare-and-swap: the one word that paced queues share, as they share the wire.
    free_at: AtomicU64,
}

impl Pacer {
    /// A link of `gbps` Gb/s; `None` or a rate that is not positive: no limit.
    pub(crate) fn new(gbps: Option<f64>) -> Pacer {
        let ps_per_byte = match gbps {
            Some(g) if g > 0.0 => (8_000.0 / g).max(1.0) as u64,
            _ => 0,
        };
        Pacer {
            ps_per_byte,
            ahead_ns: FIFO_NS,
            free_at: AtomicU64::new(0),
        }
    }

    /// Of a device that takes up to `frames` full frames from the stack's ring by itself, beside what
    /// its FIFO holds.
    pub(crate) fn with_descriptors(mut self, frames: usize, mtu: usize) -> Pacer {
        /// An Ethernet header.
        const HEADER: usize = 14;
        let bytes = (frames * (mtu + HEADER + OVERHEAD)) as u64;
        self.ahead_ns = FIFO_NS.max(bytes.saturating_mul(self.ps_per_byte) / 1000);
        self
    }

    /// How far ahead of the wire it accepts frames, ns.
    pub(crate) fn ahead_ns(&self) -> u64 {
        self.ahead_ns
    }

    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.ps_per_byte != 0
    }

    /// Puts a frame of `bytes` (with overhead) on the wire at `now` or when it is free: when
    /// its last bit has left. `None` if the FIFO is full. A frame that `waited` for the wire
    /// takes it when it became free, however late the doorbell is that says so: the host's
    /// timers must not cost the link its rate.
    #[inline]
    pub(crate) fn send(&self, now: Time, waited: bool, bytes: usize, fifo_ns: u64) -> Option<Time> {
        if self.ps_per_byte == 0 {
            return Some(now);
        }
        let cost = bytes as u64 * self.ps_per_byte;
        let now_ps = now.0.saturating_mul(1000);
        let mut seen = self.free_at.load(Ordering::Relaxed);
        loop {
            let start = if waited { seen } else { seen.max(now_ps) };
            if start > now_ps.saturating_add(fifo_ns.saturating_mul(1000)) {
                return None;
            }
            let done = start.saturating_add(cost);
            match self.free_at.compare_exchange_weak(
                seen,
                done,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(Time(done.div_ceil(1000))),
                Err(other) => seen = other,
            }
        }
    }

    /// When half of what it accepts ahead will have left.
    pub(crate) fn ready_at(&self) -> Time {
        let free = self.free_at.load(Ordering::Relaxed) / 1000;
        Time(free.saturating_sub(self.ahead_ns / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept() {
        let p = Pacer::new(Some(10.0));
        let mut now = Time::from_micros(1);
        let mut last = now;
        let mut sent = 0u64;
        while sent < 1000 {
            match p.send(now, false, 1538, FIFO_NS) {
                Some(t) => {
                    assert!(t > last);
                    last = t;
                    sent += 1;
                }
                None => now = p.ready_at(),
            }
        }
        // 1538 bytes at 10 Gb/s are 1230.4 ns.
        let took = last.nanos_since(Time::from_micros(1));
        assert!((1_230_000..1_231_000).contains(&took), "{took}");
    }

    /// As many frames as there are descriptors are taken at once, and leave as the wire does.
    #[test]
    fn descriptors_are_taken_ahead() {
        let p = Pacer::new(Some(1.0)).with_descriptors(256, 1500);
        let now = Time::from_millis(1);
        let taken: Vec<Time> =
            core::iter::from_fn(|| p.send(now, false, 1538, p.ahead_ns())).collect();
        // One more begins when they have left.
        assert_eq!(taken.len(), 257);
        let took = taken[255].nanos_since(now);
        assert_eq!(took, 256 * 1538 * 8);
        let half = p.ready_at().nanos_since(now);
        assert!((129 * 12_304..130 * 12_304).contains(&half), "{half}");
        assert!(p.send(p.ready_at(), false, 1538, p.ahead_ns()).is_some());
    }

    #[test]
    fn late_doorbells_do_not_cost_rate() {
        let p = Pacer::new(Some(1.0));
        let start = Time::from_millis(1);
        let mut now = start;
        let mut last = now;
        let mut waited = false;
        for _ in 0..1000 {
            match p.send(now, waited, 1250, FIFO_NS) {
                Some(t) => last = t,
                None => {
                    now = p.ready_at().plus(60_000);
                    waited = true;
                }
            }
        }
        let sent = 1000 - last.nanos_since(start) / 10_000;
        assert!(sent < 200, "the wire was idle for {sent} frames");
    }

    #[test]
    fn no_rate_no_delay() {
        let p = Pacer::new(None);
        assert_eq!(p.send(Time(5), false, 9000, 0), Some(Time(5)));
        assert!(!p.is_limited());
        assert!(!Pacer::new(Some(-1.0)).is_limited());
    }
}
