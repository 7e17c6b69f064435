//! The ideal peer: a TCP of RFC 9293 that only does what the other end of a benchmark must.
//!
//! It acknowledges what comes, in the ratio asked for, and never loses anything of its own, so
//! it needs no retransmission timer; a segment of its own that a fault injector dropped is sent
//! again after three duplicate ACKs. What is not the light path is in `slow.rs`.

use core::sync::atomic::Ordering;
use perimeter_base::{Time, TxDesc};
use std::sync::Arc;

use super::flow::{
    BLOCKED, Flow, FlowShared, Flows, HOLES, Key, LONE, SOURCE, State, TOUCHED, TS, WSCALE,
};
use super::item::{Delayed, Item, Seg, What};
use super::stats::PeerCounts;
use super::subnet::PREFIX6_OCTETS;
use super::{NicConfig, Shared};
use crate::pattern::Pattern;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const URG: u8 = 0x20;

/// Room that data leaves for acknowledgments in a ring to a receive queue.
const RESERVE: usize = 64;
/// Room that one frame may need.
const PER_FRAME: usize = 8;
/// The most that is asked for, as there are no smaller rings than twice this. What a frame of more
/// segments needs may be dropped, as by any full queue.
const MOST: usize = 128;
/// The timestamp clock's tick, ns (RFC 7323, section 5.4: between 1 ms and 1 s).
const TS_TICK: u64 = 1_000_000;

/// The way to one receive queue. Aligned, like all that one core writes often here: the next
/// allocation may be another core's.
#[repr(align(128))]
pub(crate) struct Lane {
    pub frames: rtrb::Producer<Item>,
    pub delayed: rtrb::Producer<Delayed>,
    /// Room in `frames`, at least.
    pub room: usize,
    /// Due time of the earliest frame placed in this burst, and how many were.
    pub earliest: Time,
    pub placed: usize,
}

impl Lane {
    /// Whether there is room for more than `n` frames. Looks at the consumer's index, a line of
    /// another core, only if the last known room is too little.
    #[inline]
    pub(crate) fn has_room(&mut self, n: usize) -> bool {
        if self.room <= n {
            self.room = self.frames.slots();
        }
        self.room > n
    }
}

/// A TCP segment as the doorbell sees it. Numbers in host order.
#[derive(Clone, Copy)]
pub(crate) struct In {
    pub key: Key,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub flags: u8,
    /// Where TCP's header starts.
    pub tcp: usize,
    /// Length of all headers and of the payload.
    pub head: usize,
    pub len: u32,
    pub ts: Option<(u32, u32)>,
    /// Of a segment that was cut from a larger one: where its payload starts in that one's, and how
    /// long that is.
    pub skip: u32,
    pub whole: u32,
}

/// The peer's part in one transmit queue.
pub(crate) struct Peer {
    pub config: Arc<NicConfig>,
    pub shared: Arc<Shared>,
    pub pattern: &'static Pattern,
    pub flows: Flows,
    pub lanes: Vec<Lane>,
    pub counts: PeerCounts,
    /// Flows whose last segment of this burst is not acknowledged.
    pub touched: Vec<u32>,
    /// Flows with data to send and no room to place it.
    pub blocked: std::collections::VecDeque<u32>,
    /// Flows in TIME-WAIT, oldest first, with their generation.
    pub waiting: std::collections::VecDeque<(u32, u32)>,
    pub scratch: Vec<u8>,
    pub verify_in: u32,
    /// Our scaled window and scale.
    pub window: u16,
    pub wscale: u8,
    pub secret: u64,
}

/// Reads an unsigned number in network order.
#[inline(always)]
fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline(always)]
fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

/// The name of the flow of a frame whose addresses end at `HOST + 4` and, of the peer, one
/// address of the family behind that; ports follow.
#[inline(always)]
fn key_at<const HOST: usize>(h: &[u8]) -> Key {
    let peer = if HOST == 26 { 30 } else { 50 };
    Key {
        host: be32(h, HOST),
        peer: be32(h, peer),
        ports: be32(h, peer + 4).rotate_left(16),
    }
}

/// The segment of `len` bytes, headers included, whose TCP header starts at `TCP`.
#[inline(always)]
fn segment_at<const TCP: usize>(h: &[u8], rest: usize, len: usize) -> Option<In> {
    let words = h[TCP + 12] >> 4;
    let tcp = usize::from(words) * 4;
    let head = TCP + tcp;
    if tcp < 20 || head > h.len() || tcp > len || TCP + len > h.len() + rest {
        return None;
    }
    let ts = if words == 8 && h[TCP + 20..TCP + 24] == [1, 1, 8, 10] {
        Some((be32(h, TCP + 24), be32(h, TCP + 28)))
    } else {
        None
    };
    let key = match TCP {
        34 => key_at::<26>(h),
        _ => key_at::<34>(h),
    };
    Some(In {
        key,
        seq: be32(h, TCP + 4),
        ack: be32(h, TCP + 8),
        window: be16(h, TCP + 14),
        flags: h[TCP + 13],
        tcp: TCP,
        head,
        len: (len - tcp) as u32,
        ts,
        skip: 0,
        whole: (len - tcp) as u32,
    })
}

impl Peer {
    /// Takes frames from the front of `descs`; how many. They `waited` for the wire if the last
    /// burst left them for pacing. Tells `met` the flow of each segment that has one.
    pub(crate) fn burst(
        &mut self,
        now: Time,
        waited: bool,
        descs: &[TxDesc],
        mut met: impl FnMut(u32),
    ) -> usize {
        for lane in &mut self.lanes {
            (lane.earliest, lane.placed) = (Time::NEVER, 0);
        }
        self.serve_blocked(now);
        let mut taken = 0;
        for (i, d) in descs.iter().enumerate() {
            if let Some(next) = descs.get(i + 2) {
                self.prefetch(next);
            }
            let mut at = now;
            let segs = segments(d);
            let room = (PER_FRAME + 2 * segs).min(MOST);
            if !self.lanes.iter_mut().all(|l| l.has_room(room)) {
                self.counts.rx_full += 1;
                break;
            }
            if self.shared.tx_pacer.is_limited() {
                let head = usize::from(d.hdr_len) + crate::pace::OVERHEAD;
                let bytes = head * segs + d.payload_len();
                let pacer = &self.shared.tx_pacer;
                match pacer.send(now, waited, bytes, pacer.ahead_ns()) {
                    Some(t) => at = t,
                    None => break,
                }
            }
            self.frame(at, d, &mut met);
            taken += 1;
            self.counts.frames += segs as u64;
        }
        self.settle_lone(now);
        taken
    }

    /// Starts loading what the frame after next needs.
    #[inline]
    fn prefetch(&self, d: &TxDesc) {
        let h = d.headers();
        if let Some(h) = h.get(..38)
            && !self.config.v6
        {
            self.flows.prefetch(key_at::<26>(h));
        } else if let Some(h) = h.get(..58) {
            self.flows.prefetch(key_at::<34>(h));
        }
    }

    /// One frame, whose last bit arrives at `now` plus half a round trip.
    #[inline]
    fn frame(&mut self, now: Time, d: &TxDesc, met: &mut impl FnMut(u32)) {
        if self.datagram(d) {
            return;
        }
        match self.parse(d.headers(), d.payload_len()) {
            Some(s) => {
                // Like any receiver; the NIC vouches for what it completes itself.
                if d.offload.csum_start == 0 && !self.checksum_right(d.headers(), &s, d) {
                    self.counts.bad_checksum += 1;
                    return;
                }
                if d.offload.segment_size == 0 {
                    return self.tcp(now, &s, d, met);
                }
                self.cut(now, s, d, met);
            }
            None => self.slow_frame(now, d),
        }
    }

    /// A segment, on the light path if it may.
    #[inline(always)]
    fn tcp(&mut self, now: Time, s: &In, d: &TxDesc, met: &mut impl FnMut(u32)) {
        let light = s.flags & (SYN | FIN | RST | URG | ACK) == ACK;
        let slot = self.flows.find(s.key);
        slot.iter().copied().for_each(met);
        if let Some(slot) = slot
            && light
        {
            let f = &self.flows.hot[slot as usize];
            let usable = f.state == State::Established && f.flags & HOLES == 0;
            let inside = s.len == 0 || s.seq == f.rcv_nxt;
            if usable && inside && s.len <= self.config.peer.window {
                return self.light(now, slot, s, d);
            }
        }
        self.slow_segment(now, s, d.headers(), d);
    }

    /// Cuts a large segment, as the NIC would before the wire: the peer sees segments.
    #[inline(never)]
    fn cut(&mut self, now: Time, large: In, d: &TxDesc, met: &mut impl FnMut(u32)) {
        let size = u32::from(d.offload.segment_size);
        let mut skip = 0;
        while skip < large.len {
            let len = size.min(large.len - skip);
            let last = skip + len == large.len;
            let s = In {
                seq: large.seq.wrapping_add(skip),
                flags: if last {
                    large.flags
                } else {
                    large.flags & !(PSH | FIN)
                },
                len,
                skip,
                ..large
            };
            self.tcp(now, &s, d, met);
            skip += len;
        }
    }

    /// The segment of an unfragmented frame of the subnet's family to the peer's station whose
    /// headers are all in `h`, without options of IPv4 and extension headers of IPv6; `None` if it
    /// is anything else. `rest` is the number of frame bytes behind `h`.
    #[inline(always)]
    pub(crate) fn parse(&self, h: &[u8], rest: usize) -> Option<In> {
        match self.config.v6 {
            true => self.parse6(h, rest),
            false => self.parse4(h, rest),
        }
    }

    #[inline(always)]
    fn parse6(&self, h: &[u8], rest: usize) -> Option<In> {
        if h.len() < 74 || h[..6] != self.config.peer_mac.0 || h[12..14] != [0x86, 0xdd] {
            return None;
        }
        let ours = h[22..34] == PREFIX6_OCTETS && h[38..50] == PREFIX6_OCTETS;
        if h[14] >> 4 != 6 || h[20] != 6 || !ours {
            return None;
        }
        segment_at::<54>(h, rest, usize::from(be16(h, 18)))
    }

    #[inline(always)]
    fn parse4(&self, h: &[u8], rest: usize) -> Option<In> {
        if h.len() < 54 || h[..6] != self.config.peer_mac.0 || h[12..15] != [8, 0, 0x45] {
            return None;
        }
        if h[23] != 6 || be16(h, 20) & 0x3fff != 0 {
            return None;
        }
        let total = usize::from(be16(h, 16));
        segment_at::<34>(h, rest, total.checked_sub(20)?)
    }

    /// The light path: in order, established, only ACK (and PSH).
    #[inline]
    fn light(&mut self, now: Time, slot: u32, s: &In, d: &TxDesc) {
        if self.config.peer.verify_every != 0 && s.len != 0 {
            self.sample(slot, s, d.headers(), d);
        }
        let f = &mut self.flows.hot[slot as usize];
        if s.len != 0 {
            if f.flags & LONE != 0 {
                resolve_lone(f, &self.flows.shared[slot as usize]);
            }
            f.rcv_nxt = f.rcv_nxt.wrapping_add(s.len);
            f.received += u64::from(s.len);
            f.unacked += s.len;
            if let Some((val, _)) = s.ts {
                f.ts_recent = val;
            }
            if f.unacked >= f.threshold {
                self.send_ack(now, slot);
            } else if f.flags & TOUCHED == 0 {
                f.flags |= TOUCHED;
                self.touched.push(slot);
            }
        }
        let f = &self.flows.hot[slot as usize];
        if f.flags & SOURCE != 0 || f.snd_una != f.snd_nxt {
            self.on_ack(now, slot, s);
        }
    }

    /// When what is sent in answer at `now` arrives.
    #[inline]
    pub(crate) fn due(&self, now: Time, wire_len: usize) -> Time {
        let t = now.plus(self.config.peer.rtt_ns);
        if self.shared.rx_pacer.is_limited() {
            return self
                .shared
                .rx_pacer
                .send(t, false, wire_len, u64::MAX)
                .unwrap_or(t);
        }
        t
    }

    /// The fields of a segment of this flow.
    #[inline(always)]
    pub(crate) fn segment(&self, now: Time, f: &Flow, flags: u8) -> Seg {
        Seg {
            src: f.key.peer,
            dst: f.key.host,
            ports: f.key.ports,
            seq: f.snd_nxt,
            ack: f.rcv_nxt,
            tsval: (now.0 / TS_TICK) as u32,
            tsecr: f.ts_recent,
            window: if f.flags & WSCALE != 0 {
                self.window
            } else {
                self.config.peer.window.min(65_535) as u16
            },
            len: 0,
            phase: 0,
            flags,
            ts: f.flags & TS != 0,
        }
    }

    /// Places a segment in the ring to its receive queue.
    #[inline(always)]
    pub(crate) fn place(&mut self, now: Time, rxq: u8, hash: u32, seg: Seg) {
        let due = self.due(now, seg.wire_len(self.config.v6));
        self.place_item(
            rxq,
            Item {
                due,
                hash,
                hashed: true,
                what: What::Seg(seg),
            },
        );
    }

    /// The item is built in its place in the ring. Built elsewhere and copied, it would be loaded in
    /// wider words than it was just stored in, which a processor can't forward: it would wait.
    #[inline(always)]
    pub(crate) fn place_item(&mut self, rxq: u8, item: Item) {
        let lane = &mut self.lanes[usize::from(rxq)];
        lane.earliest = lane.earliest.min(item.due);
        match lane.frames.write_chunk_uninit(1) {
            Ok(place) => {
                let n = place.fill_from_iter(core::iter::once(item));
                (lane.room, lane.placed) = (lane.room.saturating_sub(n), lane.placed + n);
            }
            Err(_) => self.counts.rx_dropped += 1,
        }
    }

    /// Acknowledges everything in order.
    #[inline]
    pub(crate) fn send_ack(&mut self, now: Time, slot: u32) {
        let f = &self.flows.hot[slot as usize];
        let seg = self.segment(now, f, ACK);
        let (rxq, hash) = (f.rxq, f.hash);
        self.place(now, rxq, hash, seg);
        self.counts.acks += 1;
        self.acknowledged(slot);
    }

    /// Notes that a segment with the current RCV.NXT is on its way.
    #[inline]
    pub(crate) fn acknowledged(&mut self, slot: u32) {
        let f = &mut self.flows.hot[slot as usize];
        let shared = &self.flows.shared[slot as usize];
        f.unacked = 0;
        shared.acked.store(f.received, Ordering::Relaxed);
        if f.flags & LONE != 0 {
            f.flags &= !LONE;
            shared.lone.store(0, Ordering::Release);
        }
    }

    /// Bytes of data sent and not acknowledged.
    fn outstanding(&self, slot: u32) -> u32 {
        let f = &self.flows.hot[slot as usize];
        let flight = f.snd_nxt.wrapping_sub(f.snd_una);
        flight - u32::from(flight != 0 && self.flows.cold[slot as usize].fin_sent)
    }

    /// At the burst's end: flows with an unacknowledged lone segment get a timer, if none runs.
    /// Those for which there is neither room for a timer nor for an acknowledgment wait for the
    /// next burst.
    fn settle_lone(&mut self, now: Time) {
        let mut kept = 0;
        while let Some(slot) = self.touched.get(kept).copied() {
            let f = &self.flows.hot[slot as usize];
            let (rxq, unacked) = (f.rxq, f.unacked);
            let tick = (now.0 >> 16) as u32;
            let running = (f.timer.wrapping_sub(tick) as i32) > 0;
            let timed = unacked == 0 || running || self.start_timer(now, slot);
            if !timed && !self.lanes[usize::from(rxq)].has_room(0) {
                kept += 1;
                continue;
            }
            self.touched.swap_remove(kept);
            self.flows.hot[slot as usize].flags &= !TOUCHED;
            if unacked == 0 {
                continue;
            }
            if !timed {
                self.send_ack(now, slot);
                continue;
            }
            let f = &mut self.flows.hot[slot as usize];
            f.flags |= LONE;
            let shared = &self.flows.shared[slot as usize];
            shared.snd_nxt.store(f.snd_nxt, Ordering::Relaxed);
            let word = u64::from(f.rcv_nxt) << 32 | u64::from(f.ts_recent);
            shared.lone_acked.store(f.received, Ordering::Relaxed);
            shared.lone.store(word.max(1), Ordering::Release);
        }
    }

    /// Starts a flow's delayed-acknowledgment timer, which runs in its receive queue; false if
    /// there is no room.
    fn start_timer(&mut self, now: Time, slot: u32) -> bool {
        let wait = self.config.peer.delayed_ack_ns;
        let f = &self.flows.hot[slot as usize];
        let due = now.plus(wait).plus(self.config.peer.rtt_ns);
        let timer = Delayed {
            due,
            flow: slot,
            generation: self.flows.shared[slot as usize]
                .generation
                .load(Ordering::Relaxed),
            hash: f.hash,
            seg: self.segment(now, f, ACK),
        };
        let lane = &mut self.lanes[usize::from(f.rxq)];
        if lane.delayed.push(timer).is_err() {
            return false;
        }
        lane.earliest = lane.earliest.min(due);
        // It may have fired from then on; one tick later so that it surely has.
        self.flows.hot[slot as usize].timer = ((due.0 >> 16) as u32).wrapping_add(1);
        true
    }

    /// Takes in SEG.ACK and SEG.WND of a segment, as the sender of data.
    pub(crate) fn on_ack(&mut self, now: Time, slot: u32, s: &In) {
        let f = &mut self.flows.hot[slot as usize];
        let flight = f.snd_nxt.wrapping_sub(f.snd_una);
        let newly = s.ack.wrapping_sub(f.snd_una);
        if newly > flight {
            return;
        }
        let window = u32::from(s.window) << f.snd_wscale;
        let same_window = window == f.snd_wnd;
        f.snd_wnd = window;
        if newly == 0 {
            if s.len == 0 && same_window && flight != 0 {
                self.duplicate_ack(now, slot);
            }
        } else {
            f.snd_una = s.ack;
            self.cumulative_ack(now, slot);
        }
        self.pump(now, slot);
    }

    fn cumulative_ack(&mut self, now: Time, slot: u32) {
        let f = &self.flows.hot[slot as usize];
        let cold = &mut self.flows.cold[slot as usize];
        cold.dup_acks = 0;
        let data = cold.sent - u64::from(self.outstanding(slot));
        self.flows.shared[slot as usize]
            .delivered
            .store(data, Ordering::Relaxed);
        let cold = &mut self.flows.cold[slot as usize];
        if let Some(recover) = cold.recover {
            if (f.snd_una.wrapping_sub(recover) as i32) >= 0 {
                cold.recover = None;
            } else {
                // A partial acknowledgment: the next hole (RFC 6582, section 3.2).
                self.retransmit(now, slot);
            }
        }
    }

    fn duplicate_ack(&mut self, now: Time, slot: u32) {
        let f = &self.flows.hot[slot as usize];
        let cold = &mut self.flows.cold[slot as usize];
        cold.dup_acks = cold.dup_acks.saturating_add(1);
        if cold.dup_acks == 3 && cold.recover.is_none() {
            cold.recover = Some(f.snd_nxt);
            self.retransmit(now, slot);
        }
    }

    /// Sends the first unacknowledged segment again.
    pub(crate) fn retransmit(&mut self, now: Time, slot: u32) {
        let f = &self.flows.hot[slot as usize];
        let cold = &self.flows.cold[slot as usize];
        let outstanding = self.outstanding(slot);
        let len = outstanding.min(cold.mss);
        let mut seg = self.segment(now, f, ACK | PSH);
        seg.seq = f.snd_una;
        seg.len = len as u16;
        seg.phase = Pattern::phase(cold.sent - u64::from(outstanding)) as u16;
        if outstanding == len && cold.fin_sent {
            seg.flags |= FIN;
        }
        let (rxq, hash) = (f.rxq, f.hash);
        self.place(now, rxq, hash, seg);
        self.counts.retransmits += 1;
        self.acknowledged(slot);
    }

    /// Sends what windows and room allow; closes when a limit is reached.
    pub(crate) fn pump(&mut self, now: Time, slot: u32) {
        if self.flows.hot[slot as usize].flags & SOURCE == 0 {
            return;
        }
        let mut placed = false;
        loop {
            let f = &self.flows.hot[slot as usize];
            let cold = &self.flows.cold[slot as usize];
            if !matches!(f.state, State::Established) {
                break;
            }
            let allowed = match self.config.peer.answers {
                Some(a) => (f.received / u64::from(a.request.max(1)))
                    .saturating_mul(u64::from(a.response))
                    .min(cold.limit),
                None => cold.limit,
            };
            let left = allowed - cold.sent;
            let flight = f.snd_nxt.wrapping_sub(f.snd_una);
            let usable = f.snd_wnd.min(self.config.peer.source_window);
            let usable = usable.saturating_sub(flight);
            let len = u64::from(usable.min(cold.mss)).min(left) as u32;
            // Silly window: less than a segment only when nothing else is under way, or at the
            // end (RFC 9293, section 3.8.6.2.1).
            let worth = len == cold.mss || (len != 0 && (flight == 0 || u64::from(len) == left));
            if (left != 0 && !worth) || (left == 0 && allowed < cold.limit) {
                break;
            }
            if !self.lanes[usize::from(f.rxq)].has_room(RESERVE) {
                if f.flags & BLOCKED == 0 {
                    self.flows.hot[slot as usize].flags |= BLOCKED;
                    self.blocked.push_back(slot);
                }
                break;
            }
            // As a sender whose NIC cuts large segments: what it hands over in one piece ends with
            // PSH, 32 segments at most.
            let more = usable >= len + cold.mss && left >= u64::from(len + cold.mss);
            let every = u64::from(32 * cold.mss);
            let pushes = !more || cold.sent / every != (cold.sent + u64::from(len)) / every;
            let flags = if pushes { ACK | PSH } else { ACK };
            let mut seg = self.segment(now, f, flags);
            seg.len = len as u16;
            seg.phase = Pattern::phase(cold.sent) as u16;
            let ends = cold.sent + u64::from(len) == cold.limit;
            if ends {
                seg.flags |= FIN;
            }
            let (rxq, hash) = (f.rxq, f.hash);
            self.place(now, rxq, hash, seg);
            self.counts.data += 1;
            placed = true;
            let cold = &mut self.flows.cold[slot as usize];
            let f = &mut self.flows.hot[slot as usize];
            cold.sent += u64::from(len);
            f.snd_nxt = f.snd_nxt.wrapping_add(len + u32::from(ends));
            if ends {
                cold.fin_sent = true;
                f.state = State::FinWait;
            }
        }
        if placed {
            self.acknowledged(slot);
        }
    }

    /// Whether something waits for room that the stack makes by taking frames: it may have nothing
    /// to send meanwhile, so the doorbell has to be rung for it.
    pub(crate) fn waits(&self) -> bool {
        !self.blocked.is_empty() || !self.touched.is_empty()
    }

    /// Lets flows that found no room try again, each once.
    fn serve_blocked(&mut self, now: Time) {
        for _ in 0..self.blocked.len() {
            let Some(&slot) = self.blocked.front() else {
                break;
            };
            let f = &mut self.flows.hot[slot as usize];
            if !self.lanes[usize::from(f.rxq)].has_room(RESERVE) {
                break;
            }
            self.blocked.pop_front();
            if f.flags & BLOCKED != 0 {
                f.flags &= !BLOCKED;
                self.pump(now, slot);
            }
        }
    }

    /// Compares the payload of one segment in [`super::PeerConfig::verify_every`] with the
    /// stream.
    #[inline]
    fn sample(&mut self, slot: u32, s: &In, h: &[u8], d: &TxDesc) {
        self.verify_in -= 1;
        if self.verify_in == 0 {
            self.verify_in = self.config.peer.verify_every;
            self.verify(slot, s, h, d);
        }
    }

    #[cold]
    pub(crate) fn verify(&mut self, slot: u32, s: &In, h: &[u8], d: &TxDesc) {
        let f = &self.flows.hot[slot as usize];
        let ahead = s.seq.wrapping_sub(f.rcv_nxt) as i32;
        let Some(mut offset) = f.received.checked_add_signed(i64::from(ahead)) else {
            return;
        };
        let mut left = s.len as usize;
        self.counts.verified += 1;
        let mut good = self.checksum_right(h, s, d);
        let behind = &h[s.head.min(h.len())..];
        let mut skip = s.skip as usize;
        for span in core::iter::once(behind).chain(d.payload()) {
            let from = skip.min(span.len());
            skip -= from;
            let span = &span[from..];
            let span = &span[..span.len().min(left)];
            good &= self.pattern.matches(offset, span);
            offset += span.len() as u64;
            left -= span.len();
        }
        if !good {
            self.counts.verify_errors += 1;
        }
    }
}

/// How many segments a frame is on the wire.
#[inline]
fn segments(d: &TxDesc) -> usize {
    match usize::from(d.offload.segment_size) {
        0 => 1,
        size => d.payload_len().div_ceil(size).max(1),
    }
}

/// Forgets an announced lone segment, as more has come; counts it if its timer has fired.
#[cold]
fn resolve_lone(f: &mut Flow, shared: &FlowShared) {
    if shared.lone_is_acknowledged() {
        shared.acked.store(f.received, Ordering::Relaxed);
        f.unacked = 0;
    }
    f.flags &= !LONE;
    shared.lone.store(0, Ordering::Release);
}
