//! Segments of a burst that follow each other in one connection become one before TCP: what
//! generic receive offload does (Linux, `tcp_gro_receive`).
//!
//! Merged are data segments that are contiguous and alike, and pure acknowledgments of which each
//! acknowledges more than the one before. What TCP, congestion control or loss detection could tell
//! from them one by one stays apart: flags other than ACK and PSH, options other than timestamps,
//! duplicate acknowledgments, SACK blocks, windows that become smaller. How many a segment stands
//! for is counted ([`Seg::segs`]).

use crate::conn::{Seg, Segs};
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
