//! Segments of a burst that follow each other in one connection become one before TCP: what
//! generic receive offload does (Linux, `tcp_gro_receive`).
//!
//! Merged are data segments that are contiguous and alike, and pure acknowledgments of which each
//! acknowledges more than the one before. What TCP, congestion control or loss detection could tell
//! from them one by one stays apart: flags other than ACK and PSH, options other than timestamps,
//! duplicate acknowledgments, SACK blocks, windows that become smaller. How many a segment stands
//! for is counted ([`Seg::segs`]).

use crate::segment::{Seg, Segs};
use perimeter_base::PktPool;
use perimeter_wire::TcpFlags;

/// The most payload of a merged segment, octets: what one datagram could hold.
const MOST: u32 = 65_535;

/// Where in a burst the last segment of a flow is, by a few bits of the flow's hash. Flows that
/// share an entry are merged less, nothing more.
#[derive(Debug)]
pub struct Latest([u8; Latest::LEN]);

impl Latest {
    const LEN: usize = 64;

    /// A burst begins.
    #[inline]
    pub fn forget(&mut self) {
        self.0 = [0; Latest::LEN];
    }
}

impl Default for Latest {
    fn default() -> Latest {
        Latest([0; Latest::LEN])
    }
}

impl Segs {
    /// As [`Segs::keep`], unless the segment in [`Segs::place`] continues the last one of its flow
    /// in this burst: then it becomes a part of that.
    #[inline]
    pub fn keep_or_merge(&mut self, latest: &mut Latest, pool: &mut PktPool) {
        let (kept, seg) = self.kept_and_place();
        let entry = &mut latest.0[seg.hash as usize % Latest::LEN];
        if let Some(last) = usize::from(*entry).checked_sub(1)
            && let Some(last) = kept.get_mut(last)
            && last.hash == seg.hash
            && last.frame.key == seg.frame.key
        {
            let merges = match seg.frame.payload_len {
                0 => acknowledges_more(last, seg),
                _ => continues(last, seg),
            };
            if merges {
                return merge(last, seg, pool);
            }
        }
        *entry = u8::try_from(kept.len() + 1).unwrap_or(0);
        self.keep();
    }
}

/// Whether both headers differ in nothing but sequence number, acknowledgment, window, PSH, and
/// timestamps that go on.
#[inline]
fn alike(last: &Seg, seg: &Seg) -> bool {
    let (a, b) = (&last.frame.hdr, &seg.frame.hdr);
    let on = match (a.opts.ts, b.opts.ts) {
        (None, None) => true,
        (Some((a, _)), Some((b, _))) => b.wrapping_sub(a) as i32 >= 0,
        _ => false,
    };
    on && a.flags == TcpFlags::ACK
        && b.flags.without(TcpFlags::PSH) == TcpFlags::ACK
        && a.opts.sack.is_empty()
        && b.opts.sack.is_empty()
        && a.window > 0
        && last.segs < u16::MAX
}

/// Both are pure acknowledgments, and the second acknowledges more.
#[inline]
fn acknowledges_more(last: &Seg, seg: &Seg) -> bool {
    let (a, b) = (&last.frame.hdr, &seg.frame.hdr);
    last.frame.payload_len == 0
        && a.seq == b.seq
        && b.ack.gt(a.ack)
        && b.window >= a.window
        && b.flags == TcpFlags::ACK
        && alike(last, seg)
}

/// The second has the data behind the first one's, and says nothing else that is new.
#[inline]
fn continues(last: &Seg, seg: &Seg) -> bool {
    let (a, b) = (&last.frame.hdr, &seg.frame.hdr);
    let octets = last.octets();
    last.frame.payload_len > 0
        && a.seq + octets == b.seq
        && a.ack == b.ack
        && b.window == a.window
        && octets + seg.frame.payload_len <= MOST
        // The last one of a run may be shorter, not longer: the first says how long they are.
        && seg.frame.payload_len <= last.frame.payload_len
        && last.shortest() == last.frame.payload_len
        // What a device has merged stays as it is.
        && last.size == last.frame.payload_len
        && seg.segs == 1
        && alike(last, seg)
}

fn merge(last: &mut Seg, seg: &mut Seg, pool: &mut PktPool) {
    let (a, b) = (&mut last.frame.hdr, &seg.frame.hdr);
    last.segs += 1;
    a.flags |= b.flags;
    let payload = core::mem::take(&mut seg.payload);
    if seg.frame.payload_len > 0 {
        // TS.Recent is what the first of them says (RFC 7323, section 4.3).
        last.behind += seg.frame.payload_len;
        last.rest.push(payload);
        return;
    }
    (a.ack, a.window, a.opts.ts) = (b.ack, b.window, b.opts.ts);
    pool.put(payload);
}

impl Seg {
    /// The frame that was parsed into this place is made of segments of `size` octets; 0: it is one.
    pub(crate) fn is_of(&mut self, size: u16) {
        let len = self.frame.payload_len;
        self.rest.clear();
        self.behind = 0;
        self.size = if size == 0 { len } else { len.min(size.into()) };
        self.segs = len.div_ceil(self.size.max(1)).max(1) as u16;
    }

    /// Octets of data, those of merged segments included.
    #[inline]
    pub fn octets(&self) -> u32 {
        self.frame.payload_len + self.behind
    }

    /// Octets of the last segment in it.
    #[inline]
    fn shortest(&self) -> u32 {
        self.rest
            .last()
            .map_or(self.frame.payload_len, |b| b.len() as u32)
    }

    /// Takes a merged segment apart again: what is left in this one is the first, and `f` is given
    /// one after the other.
    pub fn apart(&mut self, mut f: impl FnMut(&mut Seg)) {
        let rest = core::mem::take(&mut self.rest);
        let last = self.frame.hdr.flags;
        (self.segs, self.behind) = (1, 0);
        if !rest.is_empty() {
            self.frame.hdr.flags = TcpFlags::ACK;
        }
        let mut next = self.frame.hdr.seq + self.frame.payload_len;
        f(self);
        let n = rest.len();
        for (i, payload) in rest.into_iter().enumerate() {
            let len = payload.len() as u32;
            self.frame.hdr.seq = next;
            self.frame.payload_len = len;
            if i + 1 == n {
                self.frame.hdr.flags = last;
            }
            self.payload = payload;
            next += len;
            f(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::IpAddr;
    use perimeter_base::PktBuf;
    use perimeter_wire::{FlowKey, SackBlocks, Seq};

    /// A segment with timestamps: sequence number, acknowledgment, payload.
    fn seg(port: u16, seq: u32, ack: u32, len: usize) -> Seg {
        let mut s = Seg::default();
        s.frame.key = FlowKey {
            local: IpAddr::from([10, 0, 0, 1]),
            remote: IpAddr::from([10, 0, 0, 2]),
            local_port: port,
            remote_port: 80,
        };
        let hdr = &mut s.frame.hdr;
        (hdr.seq, hdr.ack, hdr.window) = (Seq(seq), Seq(ack), 500);
        hdr.flags = TcpFlags::ACK;
        hdr.opts.ts = Some((7, 9));
        s.frame.payload_len = len as u32;
        s.payload = PktBuf::copy_of(&vec![seq as u8; len]);
        s.hash = u32::from(port) * 977;
        (s.segs, s.size) = (1, len as u32);
        s
    }

    fn burst(all: Vec<Seg>) -> Segs {
        let (mut segs, mut latest) = (Segs::default(), Latest::default());
        for s in all {
            *segs.place() = s;
            segs.keep_or_merge(&mut latest, &mut PktPool::default());
        }
        segs
    }

    fn change(mut s: Seg, f: impl FnOnce(&mut Seg)) -> Seg {
        f(&mut s);
        s
    }

    #[test]
    fn contiguous_data_is_one_and_comes_apart_as_it_was() {
        let last = change(seg(1, 300, 50, 40), |s| s.frame.hdr.flags |= TcpFlags::PSH);
        let mut segs = burst(vec![
            seg(1, 100, 50, 100),
            seg(2, 100, 50, 100),
            seg(1, 200, 50, 100),
            last,
            seg(1, 340, 50, 40),
        ]);
        // The short one ends the run, and so does its push.
        let got: Vec<_> = segs.iter().map(|s| (s.segs, s.octets())).collect();
        assert_eq!(got, [(3, 240), (1, 100), (1, 40)]);
        let mut parts = Vec::new();
        segs.as_mut_slice()[0].apart(|s| {
            let (hdr, len) = (&s.frame.hdr, s.frame.payload_len);
            parts.push((hdr.seq.0, hdr.flags, len, s.payload.as_slice()[0], s.segs));
        });
        let (ack, push) = (TcpFlags::ACK, TcpFlags::ACK | TcpFlags::PSH);
        assert_eq!(
            parts,
            [
                (100, ack, 100, 100, 1),
                (200, ack, 100, 200, 1),
                (300, push, 40, 300u32 as u8, 1)
            ]
        );
    }

    #[test]
    fn acknowledgments_that_go_on_are_the_last_of_them() {
        let segs = burst(vec![
            seg(1, 100, 50, 0),
            seg(1, 100, 60, 0),
            change(seg(1, 100, 70, 0), |s| {
                (s.frame.hdr.window, s.frame.hdr.opts.ts) = (501, Some((8, 9)));
            }),
        ]);
        let one = segs.iter().next().expect("a segment");
        let hdr = &one.frame.hdr;
        assert_eq!(
            (segs.len(), one.segs, hdr.ack.0, hdr.window),
            (1, 3, 70, 501)
        );
        assert_eq!(hdr.opts.ts, Some((8, 9)));
    }

    /// Whatever says something of its own stays apart, whichever of the two it is.
    #[test]
    fn what_differs_stays_apart() {
        type Change = fn(&mut Seg);
        let changes: &[(&str, Change)] = &[
            ("a gap", |s| s.frame.hdr.seq += 1),
            ("FIN", |s| s.frame.hdr.flags |= TcpFlags::FIN),
            ("RST", |s| s.frame.hdr.flags |= TcpFlags::RST),
            ("URG", |s| s.frame.hdr.flags |= TcpFlags::URG),
            ("ECE", |s| s.frame.hdr.flags |= TcpFlags(0x40)),
            ("CWR", |s| s.frame.hdr.flags |= TcpFlags(0x80)),
            ("a smaller window", |s| s.frame.hdr.window = 499),
            ("no timestamp", |s| s.frame.hdr.opts.ts = None),
            ("an older timestamp", |s| s.frame.hdr.opts.ts = Some((6, 9))),
            ("SACK", |s| {
                let mut sack = SackBlocks::default();
                sack.push(Seq(1), Seq(2));
                s.frame.hdr.opts.sack = sack;
            }),
            ("another flow", |s| s.frame.key.remote_port = 81),
        ];
        for (what, f) in changes {
            let data = burst(vec![seg(1, 100, 50, 100), change(seg(1, 200, 50, 100), f)]);
            assert_eq!(data.len(), 2, "data: {what}");
            let acks = burst(vec![seg(1, 100, 50, 0), change(seg(1, 100, 60, 0), f)]);
            assert_eq!(acks.len(), 2, "acknowledgments: {what}");
        }
        let two = |a, b| burst(vec![a, b]).len();
        assert_eq!(two(seg(1, 100, 50, 0), seg(1, 100, 50, 0)), 2, "duplicate");
        assert_eq!(two(seg(1, 100, 60, 0), seg(1, 100, 50, 0)), 2, "older");
        assert_eq!(two(seg(1, 100, 50, 10), seg(1, 110, 60, 10)), 2, "both");
        assert_eq!(two(seg(1, 100, 50, 10), seg(1, 110, 50, 11)), 2, "longer");
        assert_eq!(two(seg(1, 100, 50, 0), seg(1, 100, 50, 10)), 2, "mixed");
        let shut = change(seg(1, 100, 50, 0), |s| s.frame.hdr.window = 0);
        assert_eq!(two(shut, seg(1, 100, 60, 0)), 2, "a window that opens");
        let push = change(seg(1, 100, 50, 10), |s| s.frame.hdr.flags |= TcpFlags::PSH);
        assert_eq!(two(push, seg(1, 110, 50, 10)), 2, "behind a push");
        let many = (0..64).map(|i| seg(1, 100 + i * 1448, 50, 1448)).collect();
        let segs: Vec<_> = burst(many).iter().map(|s| s.segs).collect();
        assert_eq!(segs, [45, 19], "64 KiB at most");
    }
}
