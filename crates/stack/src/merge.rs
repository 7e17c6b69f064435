//! Segments of a burst that follow each other in one connection become one before TCP: what
//! generic receive offload does (Linux, `tcp_gro_receive`).
//!
//! Merged are data segments that are contiguous and alike, and pure acknowledgments of which each
//! acknowledges more than the one before. What TCP, congestion control or loss detection could tell
//! from them one by one stays apart: flags other than ACK and PSH, options other than timestamps,
//! duplicate acknowledgments, SACK blocks, windows that become smaller. How many a segment stands
//! for is counted ([`Seg::segs`]).

use crate::segment::{Seg, Segs, Turn};
use perimeter_base::{PktBuf, PktPool};
use perimeter_wire::{EtherHdr, PROTO_TCP, Seq, TcpFlags};

/// The most payload of a merged segment, octets: what one datagram could hold.
const MOST: u32 = 65_535;

/// Where in a burst the last segment of a flow is, by a few bits of the flow's hash. Flows that
/// share an entry are merged less, nothing more.
///
/// And which of those are *runs*: full of data, or pure acknowledgments, with usual headers. Where
/// such segments of one flow follow each other, their headers differ in nothing but what
/// `Shape::mask` leaves out. So the next frame's are compared with them instead of parsed.
#[derive(Debug)]
pub struct Latest {
    at: [u8; Latest::LEN],
    /// A bit for each entry whose segment is a run.
    runs: u64,
    /// The entry of the last segment that was kept.
    recent: usize,
    /// The most segments of data that become one.
    most: u16,
    /// What is compared of runs of data, and of acknowledgments. A run of another shape ends all
    /// others.
    compared: [Compared; 2],
}

impl Latest {
    const LEN: usize = u64::BITS as usize;

    /// A burst begins, of which at most so many segments of data become one.
    #[inline]
    pub fn forget(&mut self, most: u16) {
        self.most = most;
        self.at = [0; Latest::LEN];
        self.runs = 0;
    }

    /// What comes from now on merges with nothing that has come.
    pub(crate) fn begin_anew(&mut self) {
        self.forget(self.most);
    }

    /// The segment that is kept in entry `bucket` is a run, if it is one of those that can be.
    #[inline]
    fn begin(&mut self, bucket: usize, seg: &Seg) {
        let hdr = &seg.frame.hdr;
        let plain = seg.segs == 1
            && seg.size == seg.frame.payload_len
            && hdr.flags == TcpFlags::ACK
            && hdr.window > 0;
        if plain && let Some(shape) = Shape::of(seg) {
            let compared = &mut self.compared[usize::from(shape.pure)];
            if compared.shape != shape {
                (compared.shape, compared.mask) = (shape, shape.mask());
                self.runs = 0;
            }
            self.runs |= 1 << bucket;
        }
    }
}

impl Default for Latest {
    fn default() -> Latest {
        Latest {
            at: [0; Latest::LEN],
            runs: 0,
            recent: 0,
            most: u16::MAX,
            compared: Default::default(),
        }
    }
}

impl Segs {
    /// As [`Segs::keep`], unless the segment in [`Segs::place`] continues the last one of its flow
    /// in this burst: then it becomes a part of that.
    #[inline]
    pub fn keep_or_merge(&mut self, latest: &mut Latest, pool: &mut PktPool) {
        let (kept, seg) = self.kept_and_place();
        let bucket = seg.hash as usize % Latest::LEN;
        let entry = &mut latest.at[bucket];
        latest.runs &= !(1 << bucket);
        latest.recent = bucket;
        if let Some(last) = usize::from(*entry).checked_sub(1)
            && let Some(last) = kept.get_mut(last)
            && last.hash == seg.hash
            && last.frame.key == seg.frame.key
        {
            let merges = match seg.frame.payload_len {
                0 => acknowledges_more(last, seg),
                _ => continues(last, seg) && last.segs < latest.most,
            };
            if merges {
                return merge(last, seg, pool);
            }
        }
        if let Ok(at) = u8::try_from(kept.len() + 1) {
            *entry = at;
            latest.begin(bucket, seg);
        }
        self.keep();
    }

    /// Adds a frame to its flow's run without parsing it, if its headers continue those of the
    /// run's first segment; [`Segs::keep_or_merge`] would have come to the same. `hash` is its
    /// flow's, if the device knows; else the run that was begun last is meant. Its checksums have
    /// been verified. False: it continues no run, and is as it was.
    #[inline]
    pub(crate) fn runs_on(
        &mut self,
        latest: &mut Latest,
        hash: Option<u32>,
        buf: &mut PktBuf,
        pool: &mut PktPool,
    ) -> bool {
        let bucket = hash.map_or(latest.recent, |h| h as usize % Latest::LEN);
        if latest.runs >> bucket & 1 == 0 {
            return false;
        }
        let at = usize::from(latest.at[bucket]).wrapping_sub(1);
        let Some(last) = self.as_mut_slice().get_mut(at) else {
            return false;
        };
        let compared = &latest.compared[usize::from(last.frame.payload_len == 0)];
        let Some(next) = compared.next(last, buf, latest.most) else {
            return false;
        };
        let mut buf = core::mem::take(buf);
        match next {
            Next::Data(len, flags) => {
                // The last of a run may be shorter, and may push.
                if flags != TcpFlags::ACK || len < last.frame.payload_len {
                    latest.runs &= !(1 << bucket);
                }
                buf.trim_front(compared.shape.headers);
                buf.truncate(len as usize);
                last.append(buf, flags);
            }
            Next::Ack(ack, window, ts) => {
                last.acknowledge(ack, window, ts);
                pool.put(buf);
            }
        }
        true
    }
}

/// Where what is in the headers of a run's segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shape {
    /// Where IP's header and TCP's header are, and where TCP's header ends.
    ip: usize,
    tcp: usize,
    headers: usize,
    v6: bool,
    /// No data, so that the sequence number stays and acknowledgment and window change.
    pure: bool,
}

/// How headers of that shape are compared.
#[derive(Debug, Default)]
struct Compared {
    shape: Shape,
    mask: [u64; WORDS],
}

/// What the next frame of a run adds.
enum Next {
    /// Octets of data, and the frame's flags.
    Data(u32, TcpFlags),
    /// Acknowledgment, window, timestamps.
    Ack(Seq, u16, Option<(u32, u32)>),
}

/// Words that are compared: Ethernet, IPv6, and TCP with timestamps.
const WORDS: usize = (EtherHdr::LEN + 40 + 32).div_ceil(8);

/// As many octets.
type Head = [u8; 8 * WORDS];

/// Octets of TCP's header that are not compared, from and to. With data: sequence number, checksum,
/// both timestamps.
const OF_DATA: &[(usize, usize)] = &[(4, 8), (16, 18), (24, 32)];
/// Without: acknowledgment, window, checksum, both timestamps.
const OF_PURE: &[(usize, usize)] = &[(8, 12), (14, 18), (24, 32)];
/// In IPv4's: length and identification, checksum. In IPv6's: length.
const OF_IPV4: &[(usize, usize)] = &[(2, 6), (10, 12)];
const OF_IPV6: &[(usize, usize)] = &[(4, 6)];

#[inline(always)]
fn words(head: &Head) -> impl Iterator<Item = u64> {
    let (octets, _) = head.as_chunks();
    octets.iter().map(|octets| u64::from_ne_bytes(*octets))
}

/// The beginning of a header, as long as fields are read from it: one look at the length is enough
/// for all of them.
#[inline(always)]
fn header<const N: usize>(head: &Head, at: usize) -> Option<&[u8; N]> {
    head.get(at..)?.first_chunk()
}

#[inline(always)]
fn be16<const N: usize>(header: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

#[inline(always)]
fn be32<const N: usize>(header: &[u8; N], at: usize) -> u32 {
    let [a, b, c, d] = [header[at], header[at + 1], header[at + 2], header[at + 3]];
    u32::from_be_bytes([a, b, c, d])
}

impl Shape {
    /// That of a segment's headers, if they can be compared: IP has no options, TCP none but
    /// timestamps in the usual place.
    #[inline]
    fn of(seg: &Seg) -> Option<Shape> {
        let v6 = seg.frame.key.local.is_ipv6();
        let headers = seg.frame.payload_off as usize;
        let ts = seg.frame.hdr.opts.ts.is_some();
        let tcp = headers.checked_sub(if ts { 32 } else { 20 })?;
        let ip = tcp.checked_sub(if v6 { 40 } else { 20 })?;
        if ip != 0 && ip != EtherHdr::LEN {
            return None;
        }
        let head: &Head = seg.payload.onward(headers)?.first_chunk()?;
        let usual = match v6 {
            true => head[ip] >> 4 == 6 && head[ip + 6] == PROTO_TCP,
            false => head[ip] == 0x45,
        };
        let options = match ts {
            true => head[tcp + 12] >> 4 == 8 && head[tcp + 20..tcp + 24] == [1, 1, 8, 10],
            false => head[tcp + 12] >> 4 == 5,
        };
        (usual && options).then_some(Shape {
            ip,
            tcp,
            headers,
            v6,
            pure: seg.frame.payload_len == 0,
        })
    }

    /// Which bits of the headers stay the same in a run.
    #[cold]
    fn mask(self) -> [u64; WORDS] {
        let mut mask = [0; 8 * WORDS];
        mask[..self.headers].fill(0xff);
        for (from, to) in if self.v6 { OF_IPV6 } else { OF_IPV4 } {
            mask[self.ip + from..self.ip + to].fill(0);
        }
        for (from, to) in if self.pure { OF_PURE } else { OF_DATA } {
            // Timestamps are beyond the headers of those that have none.
            mask[self.tcp + from..self.tcp + to].fill(0);
        }
        if !self.pure {
            mask[self.tcp + 13] &= !TcpFlags::PSH.0;
        }
        let mut out = [0; WORDS];
        out.iter_mut()
            .zip(words(&mask))
            .for_each(|(to, word)| *to = word);
        out
    }

    /// Octets of the datagram, as its header says.
    #[inline(always)]
    fn total(self, head: &Head) -> Option<u32> {
        let ip: &[u8; 6] = header(head, self.ip)?;
        Some(match self.v6 {
            true => u32::from(be16(ip, 4)) + 40,
            false => be16(ip, 2).into(),
        })
    }
}

impl Compared {
    /// What a frame adds that continues a run; `None`: it does not. The headers of the run's first
    /// segment are where they came, in front of its data.
    #[inline]
    fn next(&self, run: &Seg, buf: &PktBuf, most: u16) -> Option<Next> {
        let shape = self.shape;
        let first: &Head = run.payload.onward(shape.headers)?.first_chunk()?;
        let head: &Head = buf.onward(0)?.first_chunk()?;
        let both = words(first).zip(words(head));
        let differ = both.zip(self.mask).map(|((a, b), mask)| (a ^ b) & mask);
        if differ.fold(0, |all, word| all | word) != 0 {
            return None;
        }
        // The timestamps are read where there are none, too: whatever lies there.
        let tcp: &[u8; 32] = header(head, shape.tcp)?;
        let total = shape.total(head)?;
        let len = total.checked_sub((shape.headers - shape.ip) as u32)?;
        let hdr = &run.frame.hdr;
        let (value, echo) = (be32(tcp, 24), be32(tcp, 28));
        let on = |(last, _): (u32, u32)| value.wrapping_sub(last) as i32 >= 0;
        let good = hdr.opts.ts.is_none_or(on)
            && shape.ip + total as usize <= buf.len()
            && run.segs < u16::MAX;
        if !good {
            return None;
        }
        if shape.pure {
            let ack = Seq(be32(tcp, 8));
            let window = be16(tcp, 14);
            let more = len == 0 && ack.gt(hdr.ack) && window >= hdr.window;
            return more.then_some(Next::Ack(ack, window, hdr.opts.ts.map(|_| (value, echo))));
        }
        let octets = run.octets();
        let seq = Seq(be32(tcp, 4));
        let fits = len > 0 && len <= run.frame.payload_len && octets + len <= MOST;
        let fits = fits && run.segs < most;
        let flags = TcpFlags(tcp[13]);
        (fits && seq == hdr.seq + octets).then_some(Next::Data(len, flags))
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
    let payload = core::mem::take(&mut seg.payload);
    if seg.frame.payload_len > 0 {
        return last.append(payload, seg.frame.hdr.flags);
    }
    let hdr = &seg.frame.hdr;
    last.acknowledge(hdr.ack, hdr.window, hdr.opts.ts);
    pool.put(payload);
}

impl Seg {
    /// Adds the data of the segment behind it. TS.Recent is what the first of them says (RFC 7323,
    /// section 4.3).
    #[inline]
    fn append(&mut self, payload: PktBuf, flags: TcpFlags) {
        self.segs += 1;
        self.behind += payload.len() as u32;
        self.frame.hdr.flags |= flags;
        self.rest.push(payload);
    }

    /// Adds a pure acknowledgment of more, which says all that this one says.
    #[inline]
    fn acknowledge(&mut self, ack: Seq, window: u16, ts: Option<(u32, u32)>) {
        self.segs += 1;
        let hdr = &mut self.frame.hdr;
        (hdr.ack, hdr.window, hdr.opts.ts) = (ack, window, ts);
    }

    /// The frame that was parsed into this place is made of segments of `size` octets; 0: it is one.
    pub(crate) fn is_of(&mut self, size: u16) {
        let len = self.frame.payload_len;
        self.rest.clear();
        self.behind = 0;
        self.size = if size == 0 { len } else { len.min(size.into()) };
        self.segs = len.div_ceil(self.size.max(1)).max(1) as u16;
    }

    /// Whether it has to be taken apart for who looks at each packet as it came
    /// ([`late::apart`](crate::late::apart)).
    #[inline]
    pub fn is_merged(&self) -> bool {
        !self.rest.is_empty() || self.ip == Turn::Read
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
    use perimeter_base::rng::SplitMix64;
    use perimeter_wire::{
        Csum, FlowKey, MAX_HEADERS, MacAddr, SackBlocks, SegOut, TcpOptions, Template,
        parse_ipv4_tcp_into, parse_ipv6_tcp_into,
    };

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

    /// The hash of a frame's flow, if the device says, and the frame.
    type Arrived = (Option<u32>, PktBuf);

    /// A burst of random frames of two flows, most of which go on: as their headers say if they are
    /// parsed, one after the other.
    fn frames(rng: &mut SplitMix64) -> Vec<Arrived> {
        let ethernet = rng
            .chance(0.7)
            .then_some((MacAddr([2; 6]), MacAddr([4; 6])));
        let v6 = rng.chance(0.5);
        let address = |n: u8| match v6 {
            true => IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]),
            false => IpAddr::from([10, 0, 0, n]),
        };
        let template = |port| {
            let key = FlowKey {
                local: address(2),
                remote: address(1),
                local_port: port,
                remote_port: 80,
            };
            Template::new(ethernet, &key, 64, 0)
        };
        let flows = [template(1000), template(2000)];
        let ts = rng.chance(0.8);
        // One of them mostly sends, the other mostly acknowledges.
        let (mut next, mut ack) = ([0xffff_f000u32, 77], 500);
        let mut out = Vec::new();
        for i in 0..32 {
            let n = usize::from(rng.chance(0.2));
            let len = match rng.chance(0.9) {
                true => [100, 0][n],
                false => rng.below(120) as usize,
            };
            let odd = rng.chance(0.1);
            let seg = SegOut {
                seq: Seq(next[n].wrapping_add(u32::from(rng.chance(0.03)))),
                ack: Seq(ack + u32::from(rng.chance(0.03))),
                flags: match rng.below(30) {
                    0 => TcpFlags::ACK | TcpFlags::PSH,
                    1 => TcpFlags::ACK | TcpFlags::FIN,
                    _ => TcpFlags::ACK,
                },
                window: 600 + u16::from(rng.chance(0.03)),
                urgent: 0,
                opts: TcpOptions {
                    ts: (ts && !rng.chance(0.02)).then_some((70 + i / 8 - u32::from(odd), 9)),
                    ..TcpOptions::default()
                },
            };
            next[n] = next[n].wrapping_add(len as u32);
            ack += [0, rng.below(8) as u32][n];
            let mut headers = [0; MAX_HEADERS];
            let hdr = flows[n].emit(&mut headers, i as u16, &seg, len as u32);
            let mut frame = headers[..hdr].to_vec();
            frame.extend((0..len).map(|b| b as u8 ^ i as u8));
            // Padding, and whatever else somebody sends.
            frame.extend(vec![0; rng.below(4) as usize]);
            let mut hash = rng.chance(0.5).then_some([1000, 2000][n] * 977);
            if rng.chance(0.05) {
                // Its flow may be another now.
                hash = None;
                let at = rng.below(hdr as u64) as usize;
                frame[at] ^= 1 << rng.below(8);
            }
            if rng.chance(0.02) {
                frame.truncate(rng.below(frame.len() as u64) as usize);
            }
            let mut buf = PktBuf::with_capacity(2048);
            buf.append(&frame);
            out.push((hash, buf));
        }
        out
    }

    /// What becomes of them, with or without a look at the headers alone; how many were not parsed.
    fn merged(all: Vec<Arrived>, compared: bool) -> (Segs, usize) {
        let (mut segs, mut latest) = (Segs::default(), Latest::default());
        let (mut unparsed, mut pool) = (0, PktPool::default());
        for (hash, mut buf) in all {
            if compared && segs.runs_on(&mut latest, hash, &mut buf, &mut pool) {
                unparsed += 1;
                continue;
            }
            let seg = segs.place();
            let bytes = buf.as_slice();
            // Ethernet has a type there, a bare datagram addresses.
            let l2 = match bytes.get(12..14) {
                Some([8, 0] | [0x86, 0xdd]) => EtherHdr::LEN,
                _ => 0,
            };
            let Some(ip) = bytes.get(l2..).filter(|b| !b.is_empty()) else {
                continue;
            };
            let parsed = match ip[0] >> 4 {
                6 => parse_ipv6_tcp_into(ip, l2, Csum::Trust, &mut seg.frame),
                _ => parse_ipv4_tcp_into(ip, l2, Csum::Trust, &mut seg.frame),
            };
            if parsed.is_err() {
                continue;
            }
            seg.hash = hash.unwrap_or(u32::from(seg.frame.key.remote_port) * 977);
            seg.payload = buf;
            seg.payload.trim_front(seg.frame.payload_off as usize);
            seg.payload.truncate(seg.frame.payload_len as usize);
            seg.is_of(0);
            segs.keep_or_merge(&mut latest, &mut pool);
        }
        (segs, unparsed)
    }

    #[test]
    fn frames_whose_headers_go_on_are_merged_as_if_they_were_parsed() {
        let mut unparsed = 0;
        for seed in 0..1_000 {
            let all = || frames(&mut SplitMix64::new(seed));
            let (parsed, compared) = (merged(all(), false).0, merged(all(), true));
            unparsed += compared.1;
            let told = |segs: &Segs| -> Vec<_> {
                let one = |s: &Seg| {
                    let rest: Vec<_> = s.rest.iter().map(|b| b.as_slice().to_vec()).collect();
                    let data = (s.payload.as_slice().to_vec(), rest);
                    (s.frame, s.segs, s.behind, s.size, data)
                };
                segs.iter().map(one).collect()
            };
            assert_eq!(told(&parsed), told(&compared.0), "seed {seed}");
        }
        assert!(unparsed > 1_000 * 10, "{unparsed}");
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
