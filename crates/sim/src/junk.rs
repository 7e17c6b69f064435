//! A device that puts fragments nobody sent among those that arrive: they overlap others,
//! contradict them, or are of datagrams that never end.

use perimeter_base::{PktBuf, PktPool, Time};
use perimeter_link::rng::SplitMix64;
use perimeter_link::{Capabilities, Device, Queues, RxFrame, RxQueue, RxStatus, Waker};
use perimeter_wire::checksum::checksum;

/// Octets of the link layer's header.
const L2: usize = 14;
/// One fragment in this many has a forged one behind it.
const ONE_IN: u64 = 8;

/// A device with forged fragments.
pub struct Junk {
    inner: Box<dyn Device>,
    seed: u64,
}

impl Junk {
    /// Around `inner`; what is forged, and when, follows from `seed`.
    pub fn new(inner: Box<dyn Device>, seed: u64) -> Junk {
        Junk { inner, seed }
    }
}

impl Device for Junk {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let (rx, tx) = self.inner.open();
        let seed = self.seed;
        let rx = rx.into_iter().enumerate().map(|(n, inner)| {
            Box::new(JunkRx {
                inner,
                rng: SplitMix64::new(seed ^ (n as u64) << 48),
            }) as Box<dyn RxQueue>
        });
        (rx.collect(), tx)
    }
}

struct JunkRx {
    inner: Box<dyn RxQueue>,
    rng: SplitMix64,
}

impl RxQueue for JunkRx {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let before = out.len();
        let n = self.inner.poll(now, pool, out, max);
        let mut forged = Vec::new();
        for f in &out[before..] {
            if let Some(at) = Place::of(f.buf.as_slice())
                && self.rng.below(ONE_IN) == 0
                && let Some(bytes) = at.forge(f.buf.as_slice(), &mut self.rng)
            {
                let mut buf = PktBuf::with_capacity(bytes.len());
                buf.raw_mut()[..bytes.len()].copy_from_slice(&bytes);
                buf.set_window(0, bytes.len());
                forged.push(RxFrame {
                    buf,
                    hash: f.hash,
                    csum_ok: false,
                    segment_size: 0,
                });
            }
        }
        out.extend(forged);
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        self.inner.arm(now)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.inner.set_waker(waker);
    }
}

/// Where a fragment has its fields.
struct Place {
    v6: bool,
    /// Of the field of offset and flags, of the identification, of the data.
    field: usize,
    ident: usize,
    data: usize,
}

impl Place {
    /// Of a frame, if it is a fragment.
    fn of(b: &[u8]) -> Option<Place> {
        match b.get(12..14)? {
            [8, 0] => {
                let f = u16::from_be_bytes([*b.get(20)?, *b.get(21)?]);
                let data = L2 + usize::from(b.get(L2)? & 15) * 4;
                (f & 0x3fff != 0 && b.len() > data).then_some(Place {
                    v6: false,
                    field: 20,
                    ident: 18,
                    data,
                })
            }
            [0x86, 0xdd] => {
                let data = L2 + 48;
                (*b.get(20)? == 44 && b.len() > data).then_some(Place {
                    v6: true,
                    field: L2 + 42,
                    ident: L2 + 46,
                    data,
                })
            }
            _ => None,
        }
    }

    /// The data's place in its datagram, and whether more follows.
    fn field(&self, b: &[u8]) -> (u32, bool) {
        let f = u16::from_be_bytes([b[self.field], b[self.field + 1]]);
        match self.v6 {
            true => (u32::from(f & 0xfff8), f & 1 != 0),
            false => (u32::from(f & 0x1fff) * 8, f & 0x2000 != 0),
        }
    }

    fn set_field(&self, b: &mut [u8], start: u32, more: bool) {
        let f = match self.v6 {
            true => start as u16 | u16::from(more),
            false => (start / 8) as u16 | u16::from(more) << 13,
        };
        b[self.field..self.field + 2].copy_from_slice(&f.to_be_bytes());
    }

    /// Another fragment, made of that frame; `None`: nothing can be made of it.
    fn forge(&self, frame: &[u8], rng: &mut SplitMix64) -> Option<Vec<u8>> {
        let mut b = frame.to_vec();
        let (start, more) = self.field(&b);
        match rng.below(6) {
            // It overlaps the next, or the one before.
            0 => self.set_field(&mut b, start + 8, more),
            1 => self.set_field(&mut b, start.checked_sub(8)?, more),
            // The same place with other data. Each adds one to the checksum's sum, so that several
            // of a datagram never make up for each other: that nobody could tell from the right one.
            2 => {
                let words = (b.len() - self.data) / 2;
                if words == 0 {
                    return None;
                }
                let at = self.data + 2 * rng.below(words as u64) as usize;
                let word = u16::from_be_bytes([b[at], b[at + 1]]);
                let next = word.checked_add(1).unwrap_or(1);
                b[at..at + 2].copy_from_slice(&next.to_be_bytes());
            }
            // A part of it.
            3 => {
                let half = (b.len() - self.data) / 16 * 8;
                if half == 0 || !more {
                    return None;
                }
                b.truncate(self.data + half);
            }
            // Of a datagram of which nothing else comes: another one for each place, or the forged
            // ones of a datagram could make up a copy of it.
            4 => b[self.ident] ^= 1 + (start / 8 % 251) as u8,
            // The last of a shorter datagram, or a last one of which there is more.
            _ => self.set_field(&mut b, start, !more),
        }
        let l3 = b.len() - L2;
        if self.v6 {
            b[18..20].copy_from_slice(&((l3 - 40) as u16).to_be_bytes());
        } else {
            b[16..18].copy_from_slice(&(l3 as u16).to_be_bytes());
            b[24..26].fill(0);
            let sum = checksum(&b[L2..self.data]);
            b[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        Some(b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(field: u16, data: usize) -> Vec<u8> {
        let mut b = vec![0; L2 + 20 + data];
        b[12..14].copy_from_slice(&[8, 0]);
        b[14] = 0x45;
        b[20..22].copy_from_slice(&field.to_be_bytes());
        b
    }

    #[test]
    fn what_is_forged_is_a_fragment_and_another_one() {
        assert!(Place::of(&v4(0, 16)).is_none(), "whole");
        assert!(Place::of(&v4(0x4000, 16)).is_none(), "not to be cut");
        let mut six = vec![0; L2 + 48 + 64];
        six[12..14].copy_from_slice(&[0x86, 0xdd]);
        assert!(Place::of(&six).is_none(), "no fragment header");
        six[20] = 44;
        six[L2 + 42..L2 + 44].copy_from_slice(&[0, 65]);
        for frame in [v4(0x2008, 64), v4(8, 64), six] {
            let at = Place::of(&frame).unwrap();
            assert_eq!(at.field(&frame).0, 64);
            let mut rng = SplitMix64::new(3);
            let all: Vec<_> = (0..60).filter_map(|_| at.forge(&frame, &mut rng)).collect();
            assert!(all.len() > 40);
            for b in all {
                assert!(b != frame);
                assert!(Place::of(&b).is_some() || at.field(&b) == (0, false));
            }
        }
    }
}
