//! Faults: loss, duplication, reordering, corruption, delay, jitter, rate, MTU black hole.
//!
//! [`Faults`] decides what becomes of one packet, from a seed; a wire's direction uses it
//! directly, [`Faulty`] puts it around any device.
//!
//! **Corruption** flips a burst of 1 to 15 bits inside the IP datagram. The Internet checksum
//! catches every such burst: it changes the one's complement sum by `2^k·d` with `d` odd and
//! `|d| < 2^15`, which 65535 divides for no such `d`. (16 bits would not do: a word of zeros that
//! becomes ones leaves the sum as it is.) A burst lies either in the IP header, which has its
//! own checksum, or behind it, where the transport's covers everything; never in both. It spares
//! what says how far a checksum reaches or whether there is one: the IP header's first byte and
//! UDP's header. Where no checksum covers the payload (fragments, UDP without one, other
//! protocols, frames that are not IP) the packet is *dropped*, as the frame check sequence would
//! have it; other damage counts the same way.

mod device;

use core::sync::atomic::{AtomicU64, Ordering};
use perimeter_base::{PktBuf, Time};

use crate::device::Medium;
use crate::pace::{OVERHEAD, Pacer};
use crate::rng::SplitMix64;

pub use device::{FaultHandle, Faulty};

/// Which faults, and how often. Probabilities are per packet, clamped to 0..=1.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FaultConfig {
    /// Seed of everything.
    pub seed: u64,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a loss is followed by more: the next `burst - 1` packets are lost too.
    pub loss_burst: u32,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is held back by up to `reorder_ns`, so that later ones overtake
    /// it.
    pub reorder: f64,
    /// How long a reordered packet is held back at most, ns.
    pub reorder_ns: u64,
    /// Probability that bits are flipped.
    pub corrupt: f64,
    /// Probability of damage that the frame check sequence catches.
    pub fcs_error: f64,
    /// Delay of every packet, ns.
    pub delay_ns: u64,
    /// Additional delay, uniform in 0..=jitter, ns. Reorders when packets come closer together.
    pub jitter_ns: u64,
    /// Rate of the bottleneck, Gb/s.
    pub gbps: Option<f64>,
    /// Packets behind which the bottleneck's queue (in ns of delay) grows no more: they are
    /// lost. 0: no limit.
    pub queue_ns: u64,
    /// IP packets longer than this vanish without a word. 0: none.
    pub black_hole_mtu: u32,
    /// No more faults than this (delay, rate and black hole not counted), so that a run is sure
    /// to end.
    pub limit: u64,
}

impl Default for FaultConfig {
    fn default() -> FaultConfig {
        FaultConfig {
            seed: 1,
            loss: 0.0,
            loss_burst: 1,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_ns: 200_000,
            corrupt: 0.0,
            fcs_error: 0.0,
            delay_ns: 0,
            jitter_ns: 0,
            gbps: None,
            queue_ns: 0,
            black_hole_mtu: 0,
            limit: u64::MAX,
        }
    }
}

perimeter_base::setters! {
    FaultConfig {
        with_seed(seed: u64),
        with_loss(loss: f64),
        with_loss_burst(loss_burst: u32),
        with_duplicate(duplicate: f64),
        with_reorder(reorder: f64),
        with_reorder_ns(reorder_ns: u64),
        with_corrupt(corrupt: f64),
        with_fcs_error(fcs_error: f64),
        with_delay_ns(delay_ns: u64),
        with_jitter_ns(jitter_ns: u64),
        with_gbps(gbps: Option<f64>),
        with_queue_ns(queue_ns: u64),
        with_black_hole_mtu(black_hole_mtu: u32),
        with_limit(limit: u64),
    }
}

impl FaultConfig {
    /// Whether it does nothing at all.
    pub fn is_clean(&self) -> bool {
        let chances = [
            self.loss,
            self.duplicate,
            self.reorder,
            self.corrupt,
            self.fcs_error,
        ];
        chances.iter().all(|&p| p <= 0.0)
            && self.delay_ns == 0
            && self.jitter_ns == 0
            && self.gbps.is_none()
            && self.black_hole_mtu == 0
    }
}

macro_rules! fault_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the faults did, since the beginning.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct FaultCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Shared counters behind [`FaultCounts`].
        #[derive(Debug, Default)]
        pub struct FaultCounters {
            $($name: AtomicU64,)*
        }

        impl FaultCounters {
            /// Reads them.
            pub fn read(&self) -> FaultCounts {
                FaultCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

fault_counters! {
    /// Packets that came.
    packets,
    /// Packets lost.
    lost,
    /// Packets doubled.
    duplicated,
    /// Packets held back.
    reordered,
    /// Packets with flipped bits.
    corrupted,
    /// Packets dropped by the frame check sequence.
    fcs_dropped,
    /// Packets too long for the black hole.
    swallowed,
    /// Packets that found the bottleneck's queue full.
    queue_dropped,
}

impl FaultCounters {
    fn note_queue_drop(&self) {
        self.queue_dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// A packet under way and when it arrives.
#[derive(Debug)]
pub struct Packet {
    /// When it arrives.
    pub due: Time,
    /// Its bytes, from the link-layer header on, checksums complete.
    pub buf: PktBuf,
}

/// The faults of one direction.
pub struct Faults {
    config: FaultConfig,
    rng: SplitMix64,
    pacer: Pacer,
    /// Packets of a loss burst still to lose.
    losing: u32,
    done: u64,
}

impl Faults {
    /// The faults of this configuration.
    pub fn new(config: FaultConfig) -> Faults {
        Faults {
            rng: SplitMix64::new(config.seed),
            pacer: Pacer::new(config.gbps),
            losing: 0,
            done: 0,
            config,
        }
    }

    /// Draws for one kind of fault, within the limit.
    fn strikes(&mut self, probability: f64) -> bool {
        let drawn = self.rng.chance(probability);
        let strikes = drawn && self.done < self.config.limit;
        self.done += u64::from(strikes);
        strikes
    }

    /// Decides what becomes of `packet`, whose checksums are complete: appends what arrives to
    /// `out`.
    pub fn pass(
        &mut self,
        packet: Packet,
        medium: Medium,
        counters: &FaultCounters,
        out: &mut Vec<Packet>,
    ) {
        let add = |c: &AtomicU64| {
            c.fetch_add(1, Ordering::Relaxed);
        };
        add(&counters.packets);
        let Packet { due, mut buf } = packet;
        let l2 = match medium {
            Medium::Ethernet => 14,
            Medium::Ip => 0,
        };
        let hole = self.config.black_hole_mtu as usize;
        if hole != 0 && buf.len().saturating_sub(l2) > hole {
            add(&counters.swallowed);
            return;
        }
        if self.lost() {
            add(&counters.lost);
            return;
        }
        let limit = match self.config.queue_ns {
            0 => u64::MAX,
            ns => ns,
        };
        let Some(due) = self.pacer.send(due, false, buf.len() + OVERHEAD, limit) else {
            add(&counters.queue_dropped);
            return;
        };
        if self.strikes(self.config.fcs_error) {
            add(&counters.fcs_dropped);
            return;
        }
        let mut due = due.plus(self.config.delay_ns);
        due = due.plus(self.rng.below(self.config.jitter_ns.saturating_add(1)));
        if self.strikes(self.config.reorder) {
            add(&counters.reordered);
            due = due.plus(1 + self.rng.below(self.config.reorder_ns));
        }
        // The twin is of the packet as it was sent: it shares no damage.
        if self.strikes(self.config.duplicate) {
            add(&counters.duplicated);
            out.push(Packet {
                due: due.plus(self.rng.below(self.config.reorder_ns.max(1))),
                buf: twin_of(&buf),
            });
        }
        if self.strikes(self.config.corrupt) {
            if !corrupt(buf.as_mut_slice(), l2, &mut self.rng) {
                add(&counters.fcs_dropped);
                return;
            }
            add(&counters.corrupted);
        }
        out.push(Packet { due, buf });
    }

    fn lost(&mut self) -> bool {
        if self.losing > 0 {
            self.losing -= 1;
            return true;
        }
        let lost = self.strikes(self.config.loss);
        if lost {
            self.losing = self.config.loss_burst.saturating_sub(1);
        }
        lost
    }
}

fn twin_of(buf: &PktBuf) -> PktBuf {
    let mut twin = PktBuf::with_capacity(buf.len().max(perimeter_base::buf::POOLED));
    twin.append(buf.as_slice());
    twin
}

/// Longest burst of flipped bits.
const BURST: u64 = 15;

/// Flips a burst of bits that a checksum covers, in the datagram at `l2`; false if no checksum
/// covers anything.
fn corrupt(frame: &mut [u8], l2: usize, rng: &mut SplitMix64) -> bool {
    if l2 == 14 && !matches!(frame.get(12..14), Some(&[8, 0] | &[0x86, 0xdd])) {
        return false;
    }
    let Some((start, end)) = covered(frame.get(l2..).unwrap_or(&[]), rng) else {
        return false;
    };
    let bits = (end - start) as u64 * 8;
    let len = 1 + rng.below(BURST.min(bits));
    let first = rng.below(bits - len + 1);
    // Both ends of the burst flip; what is between does at random. So the burst has this length
    // and never no effect.
    let inside = rng.next();
    for i in 0..len {
        if i == 0 || i == len - 1 || inside >> i & 1 == 1 {
            let bit = first + i;
            frame[l2 + start + (bit / 8) as usize] ^= 0x80 >> (bit % 8);
        }
    }
    true
}

/// A part of the datagram that one checksum covers.
fn covered(ip: &[u8], rng: &mut SplitMix64) -> Option<(usize, usize)> {
    let (hdr, whole) = crate::csum::header(ip)?;
    let (head, total) = (usize::from(hdr.header_len), hdr.total_len as usize);
    let v6 = hdr.dst.is_ipv6();
    if !v6 {
        // A header that is damaged already tells nothing of what is behind it.
        perimeter_wire::Ipv4Hdr::parse(ip, true).ok()?;
    }
    // In proportion to the lengths, as noise would. IPv6's header has no checksum.
    if !v6 && rng.below(total as u64) < head as u64 {
        return Some((1, head));
    }
    let (checked, from) = match hdr.protocol {
        1 | 58 => (total >= head + 8, head),
        6 => (total >= head + 20, head),
        17 => (
            total > head + 8 && ip[head + 6..head + 8] != [0, 0],
            head + 8,
        ),
        _ => (false, head),
    };
    (checked && whole).then_some((from, total))
}
