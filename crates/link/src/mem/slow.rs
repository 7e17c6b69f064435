//! The ideal peer away from the light path: handshake, close, loss, ARP, echo.

use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::Ordering;
use perimeter_base::{PktBuf, Time, TxDesc};
use perimeter_wire::{
    ArpOp, ArpPacket, Csum, ETHERTYPE_ARP, ETHERTYPE_IPV4, EtherHdr, Frame, Icmpv4, Ipv4Hdr,
    MacAddr, PROTO_ICMP, SackBlocks, SegOut, Seq, TcpFlags, TcpOptions, Template, checksum,
    finish_checksum,
};

use super::flow::{BLOCKED, Cold, Flow, HOLES, Key, SACK, SOURCE, State, TS, WSCALE};
use super::item::{Item, What};
use super::peer::{ACK, FIN, In, PSH, Peer, RST, SYN};
use super::{NicConfig, flow_key};

/// Out-of-order ranges kept per connection; what does not fit is dropped like a loss.
const MAX_RANGES: usize = 256;
/// Connections kept in TIME-WAIT per transmit queue.
const MAX_WAITING: usize = 4096;

impl Peer {
    /// A frame that [`Peer::parse`] does not take from the descriptor's header bytes.
    #[cold]
    pub(crate) fn slow_frame(&mut self, now: Time, d: &TxDesc) {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        crate::csum::gather(d, &mut frame);
        crate::csum::complete(&mut frame, d.offload);
        let rest = TxDesc::empty();
        match self.parse(&frame, 0) {
            Some(s) if !self.checksum_right(&frame, &s, &rest) => self.counts.bad_checksum += 1,
            Some(s) => self.slow_segment(now, &s, &frame, &rest),
            None => self.other_frame(now, &frame),
        }
        self.scratch = frame;
    }

    fn other_frame(&mut self, now: Time, frame: &[u8]) {
        let Ok(eth) = EtherHdr::parse(frame) else {
            self.counts.malformed += 1;
            return;
        };
        if !eth.dst.is_multicast() && eth.dst != self.config.peer_mac {
            self.counts.foreign += 1;
            return;
        }
        match Frame::parse_ethernet(frame, Csum::Verify) {
            Ok(Frame::Arp(arp)) => self.arp(now, &arp),
            Ok(Frame::Icmp { ip, msg, body }) => self.icmp(now, &ip, msg, body),
            Ok(Frame::Icmp6 { ip, msg, body }) => self.icmp6(now, &ip, msg, body),
            Ok(_) => self.counts.foreign += 1,
            Err(_) => self.counts.malformed += 1,
        }
    }

    fn arp(&mut self, now: Time, arp: &ArpPacket) {
        // RFC 5227: a probe or an announcement for the asker's own address has no answer.
        let asked = arp.target_ip;
        if arp.op != ArpOp::Request || asked == arp.sender_ip || !self.config.plays_ip(asked.into())
        {
            return;
        }
        self.counts.arp += 1;
        let mac = self.config.peer_mac;
        let mut out = [0; EtherHdr::LEN + ArpPacket::LEN];
        let n = eth(arp.sender_mac, mac, ETHERTYPE_ARP).emit(&mut out);
        arp.reply(mac).emit(&mut out[n..]);
        self.raw(now, 0, None, &out);
    }

    fn icmp(&mut self, now: Time, ip: &Ipv4Hdr, msg: Icmpv4, body: &[u8]) {
        let Icmpv4::EchoRequest { ident, seq } = msg else {
            self.counts.foreign += 1;
            return;
        };
        if !self.config.plays_ip(ip.dst.into()) {
            self.counts.foreign += 1;
            return;
        }
        self.counts.echo += 1;
        let mut out = vec![0; EtherHdr::LEN + Ipv4Hdr::LEN + Icmpv4::LEN + body.len()];
        let mut n = eth(self.config.mac, self.config.peer_mac, ETHERTYPE_IPV4).emit(&mut out);
        n += Ipv4Hdr {
            src: ip.dst,
            dst: ip.src,
            protocol: PROTO_ICMP,
            ttl: 64,
            tos: ip.tos,
            ident: 0,
            total_len: (out.len() - n) as u16,
            header_len: 20,
            dont_fragment: true,
            more_fragments: false,
            frag_offset: 0,
        }
        .emit(&mut out[n..]);
        Icmpv4::EchoReply { ident, seq }.emit(body, &mut out[n..]);
        self.raw(now, 0, None, &out);
    }

    /// Places a whole frame.
    pub(crate) fn raw(&mut self, now: Time, rxq: u8, hash: Option<u32>, bytes: &[u8]) {
        let mut buf = PktBuf::with_capacity(bytes.len().max(perimeter_base::buf::POOLED));
        buf.append(bytes);
        let item = Item {
            due: self.due(now, bytes.len() + crate::pace::OVERHEAD),
            hash: hash.unwrap_or(0),
            hashed: hash.is_some(),
            what: What::Raw(buf),
        };
        self.place_item(rxq, item);
    }

    /// Any segment that is not on the light path. `h` starts with its headers.
    #[cold]
    pub(crate) fn slow_segment(&mut self, now: Time, s: &In, h: &[u8], d: &TxDesc) {
        if !self.config.plays(Ipv4Addr::from_bits(s.key.peer)) || s.key.host == 0 {
            self.counts.foreign += 1;
            return;
        }
        match self.flows.find(s.key) {
            Some(slot) => self.known(now, slot, s, h, d),
            None => self.unknown(now, s, h),
        }
    }

    fn unknown(&mut self, now: Time, s: &In, h: &[u8]) {
        if s.flags & RST != 0 {
            return;
        }
        let iss = s.key.iss(self.secret);
        match s.flags & (SYN | ACK) {
            SYN if !self.config.peer.refuses((s.key.ports >> 16) as u16) => {
                if let Some(slot) = self.create(s, h, iss, State::SynReceived) {
                    self.counts.accepted += 1;
                    self.handshake(now, slot, SYN | ACK);
                    return;
                }
                self.counts.refused += 1;
            }
            SYN => self.counts.refused += 1,
            f if f == SYN | ACK && s.ack == iss.wrapping_add(1) => {
                if let Some(slot) = self.create(s, h, iss, State::Established) {
                    self.counts.opened += 1;
                    self.flows.hot[slot as usize].snd_una = s.ack;
                    self.send_ack(now, slot);
                    self.pump(now, slot);
                    return;
                }
            }
            _ => {}
        }
        self.reset(now, s);
    }

    /// The reset that answers a segment without a connection (RFC 9293, section 3.10.7.1).
    fn reset(&mut self, now: Time, s: &In) {
        self.counts.resets_sent += 1;
        let past = s.len + u32::from(s.flags & SYN != 0) + u32::from(s.flags & FIN != 0);
        let seg = if s.flags & ACK != 0 {
            (s.ack, 0, TcpFlags::RST)
        } else {
            (0, s.seq.wrapping_add(past), TcpFlags::RST | TcpFlags::ACK)
        };
        let out = SegOut {
            seq: Seq(seg.0),
            ack: Seq(seg.1),
            flags: seg.2,
            ..SegOut::default()
        };
        self.emit(now, s.key, &out);
    }

    /// Sends a segment of any form.
    fn emit(&mut self, now: Time, key: Key, seg: &SegOut) {
        let bytes = frame_of(&self.config, key, seg);
        let hash = self.shared.hash(&self.config, key);
        let rxq = self.shared.rss.queue(hash) as u8;
        self.raw(now, rxq, Some(hash), &bytes);
    }

    /// A new connection from a SYN or SYN-ACK.
    fn create(&mut self, s: &In, h: &[u8], iss: u32, state: State) -> Option<u32> {
        self.reclaim();
        let (opts, _) = TcpOptions::parse(&h[s.tcp + 20..s.head.min(h.len())], true);
        let cfg = &self.config.peer;
        let mut flags = 0;
        let (ts, ws) = (cfg.timestamps && opts.ts.is_some(), opts.wscale.is_some());
        for (on, bit) in [
            (ts, TS),
            (cfg.sack && opts.sack_permitted, SACK),
            (ws, WSCALE),
            (cfg.sources((s.key.ports >> 16) as u16), SOURCE),
        ] {
            flags |= if on { bit } else { 0 };
        }
        let room = if ts { 12 } else { 0 };
        let theirs = u32::from(opts.mss.unwrap_or(536)).max(64);
        let mss = theirs.min(self.config.mss()) - room;
        let hash = self.shared.hash(&self.config, s.key);
        let flow = Flow {
            key: s.key,
            rcv_nxt: s.seq.wrapping_add(1),
            snd_una: iss,
            snd_nxt: iss.wrapping_add(1),
            snd_wnd: u32::from(s.window),
            ts_recent: opts.ts.map_or(0, |(val, _)| val),
            unacked: 0,
            threshold: mss * cfg.ack_every.max(1),
            hash,
            received: 0,
            timer: 0,
            state,
            rxq: self.shared.rss.queue(hash) as u8,
            flags,
            snd_wscale: opts.wscale.unwrap_or(0),
        };
        let cold = Cold {
            iss,
            irs: s.seq,
            mss: mss.min(cfg.source_segment.max(1)),
            limit: cfg.source_bytes.unwrap_or(u64::MAX),
            ..Cold::default()
        };
        self.flows.insert(flow, cold)
    }

    /// Makes room for a new connection at the cost of the oldest in TIME-WAIT.
    fn reclaim(&mut self) {
        let full = self.flows.len() >= self.flows.shared.len();
        while self.waiting.len() > MAX_WAITING || (full && !self.waiting.is_empty()) {
            let Some((slot, generation)) = self.waiting.pop_front() else {
                return;
            };
            let shared = &self.flows.shared[slot as usize];
            if shared.generation.load(Ordering::Relaxed) == generation {
                self.flows.remove(slot);
                return;
            }
        }
    }

    /// Sends a SYN-ACK, with the options that the SYN had.
    fn handshake(&mut self, now: Time, slot: u32, flags: u8) {
        let f = &self.flows.hot[slot as usize];
        let opts = TcpOptions {
            mss: Some(self.config.mss() as u16),
            wscale: (f.flags & WSCALE != 0).then_some(self.wscale),
            sack_permitted: f.flags & SACK != 0,
            ts: (f.flags & TS != 0).then_some(((now.0 / 1_000_000) as u32, f.ts_recent)),
            ..TcpOptions::default()
        };
        let out = SegOut {
            seq: Seq(self.flows.cold[slot as usize].iss),
            ack: Seq(f.rcv_nxt),
            flags: TcpFlags(flags),
            window: self.config.peer.window.min(65_535) as u16,
            urgent: 0,
            opts,
        };
        let key = f.key;
        self.emit(now, key, &out);
    }

    fn known(&mut self, now: Time, slot: u32, s: &In, h: &[u8], d: &TxDesc) {
        let f = &self.flows.hot[slot as usize];
        let state = f.state;
        if s.flags & RST != 0 {
            if s.seq == f.rcv_nxt || state == State::TimeWait {
                self.counts.resets_received += 1;
                self.remove(slot);
            }
            return;
        }
        if s.flags & SYN != 0 {
            let again = s.seq == self.flows.cold[slot as usize].irs;
            match state {
                State::SynReceived if again && s.flags & ACK == 0 => {
                    self.handshake(now, slot, SYN | ACK);
                }
                State::SynReceived | State::TimeWait if s.flags & ACK == 0 => {
                    self.remove(slot);
                    self.unknown(now, s, h);
                }
                // A challenge (RFC 5961, section 4), or the answer to a repeated SYN-ACK.
                _ => self.send_ack(now, slot),
            }
            return;
        }
        if s.flags & ACK == 0 {
            return;
        }
        if state == State::SynReceived {
            if s.ack != self.flows.cold[slot as usize].iss.wrapping_add(1) {
                self.reset(now, s);
                return;
            }
            let f = &mut self.flows.hot[slot as usize];
            f.state = State::Established;
            f.snd_una = s.ack;
            f.snd_wnd = u32::from(s.window) << f.snd_wscale;
            self.pump(now, slot);
        }
        if s.len != 0 || s.flags & FIN != 0 {
            self.data(now, slot, s, h, d);
        }
        self.on_ack(now, slot, s);
        let f = &self.flows.hot[slot as usize];
        if f.state == State::LastAck && f.snd_una == f.snd_nxt {
            self.counts.closed += 1;
            self.remove(slot);
        }
    }

    fn remove(&mut self, slot: u32) {
        // Whoever holds the slot's number in a list finds the flags cleared.
        self.flows.hot[slot as usize].flags &= !BLOCKED;
        self.flows.hot[slot as usize].unacked = 0;
        self.blocked.retain(|&s| s != slot);
        self.touched.retain(|&s| s != slot);
        self.flows.remove(slot);
    }

    /// Data or FIN at any place.
    fn data(&mut self, now: Time, slot: u32, s: &In, h: &[u8], d: &TxDesc) {
        let every = self.config.peer.verify_every;
        let f = &self.flows.hot[slot as usize];
        let ahead = s.seq.wrapping_sub(f.rcv_nxt) as i32;
        let end = s.seq.wrapping_add(s.len);
        let last = end.wrapping_sub(f.rcv_nxt) as i32;
        if last > self.config.peer.window as i32 {
            self.counts.beyond_window += 1;
            self.send_ack(now, slot);
            return;
        }
        let fin = s.flags & FIN != 0;
        if last < 0 || (last == 0 && !fin) {
            self.counts.duplicates += 1;
            self.repeat(now, slot, fin);
            return;
        }
        if every != 0 && s.len != 0 && !matches!(f.state, State::LastAck | State::TimeWait) {
            self.verify(slot, s, h, d);
        }
        if ahead > 0 {
            self.counts.out_of_order += 1;
            self.out_of_order(slot, s.seq, end, fin);
            self.sack(now, slot);
            return;
        }
        let had_holes = self.flows.hot[slot as usize].flags & HOLES != 0;
        self.advance(slot, last as u32, s);
        let cold = &mut self.flows.cold[slot as usize];
        let f = &self.flows.hot[slot as usize];
        let fin = (fin && end == f.rcv_nxt) || cold.fin_at == Some(f.rcv_nxt);
        if fin {
            cold.fin_at = None;
            cold.ranges.clear();
            self.flows.hot[slot as usize].flags &= !HOLES;
            self.on_fin(now, slot);
        } else if self.flows.hot[slot as usize].flags & HOLES != 0 {
            self.sack(now, slot);
        } else if had_holes || f.unacked >= f.threshold {
            self.send_ack(now, slot);
        } else {
            self.touched.push(slot);
            self.flows.hot[slot as usize].flags |= super::flow::TOUCHED;
        }
    }

    /// `new` bytes in order, and what they connect to.
    fn advance(&mut self, slot: u32, new: u32, s: &In) {
        let f = &mut self.flows.hot[slot as usize];
        let cold = &mut self.flows.cold[slot as usize];
        let mut total = new;
        f.rcv_nxt = f.rcv_nxt.wrapping_add(new);
        while let Some(&(left, right)) = cold.ranges.first() {
            if (left.wrapping_sub(f.rcv_nxt) as i32) > 0 {
                break;
            }
            let more = (right.wrapping_sub(f.rcv_nxt) as i32).max(0) as u32;
            f.rcv_nxt = f.rcv_nxt.wrapping_add(more);
            total += more;
            cold.ranges.remove(0);
        }
        f.received += u64::from(total);
        f.unacked += total;
        if let Some((val, _)) = s.ts {
            f.ts_recent = val;
        }
        if cold.ranges.is_empty() && cold.fin_at.is_none() {
            f.flags &= !HOLES;
        }
    }

    /// Something old came again: so our answer was lost, or is late.
    fn repeat(&mut self, now: Time, slot: u32, fin: bool) {
        let f = &self.flows.hot[slot as usize];
        if fin && f.state == State::LastAck {
            let mut seg = self.segment(now, f, FIN | ACK);
            seg.seq = seg.seq.wrapping_sub(1);
            let (rxq, hash) = (f.rxq, f.hash);
            self.place(now, rxq, hash, seg);
        } else {
            self.sack(now, slot);
        }
    }

    fn on_fin(&mut self, now: Time, slot: u32) {
        let f = &mut self.flows.hot[slot as usize];
        f.rcv_nxt = f.rcv_nxt.wrapping_add(1);
        match f.state {
            State::Established => {
                f.state = State::LastAck;
                let f = &self.flows.hot[slot as usize];
                let seg = self.segment(now, f, FIN | ACK | PSH);
                let (rxq, hash) = (f.rxq, f.hash);
                self.place(now, rxq, hash, seg);
                let f = &mut self.flows.hot[slot as usize];
                f.snd_nxt = f.snd_nxt.wrapping_add(1);
                self.flows.cold[slot as usize].fin_sent = true;
                self.acknowledged(slot);
            }
            State::FinWait => {
                f.state = State::TimeWait;
                self.counts.closed += 1;
                let generation = self.flows.shared[slot as usize]
                    .generation
                    .load(Ordering::Relaxed);
                self.waiting.push_back((slot, generation));
                self.send_ack(now, slot);
                self.reclaim();
            }
            State::SynReceived | State::LastAck | State::TimeWait => self.send_ack(now, slot),
        }
    }

    /// Notes a range ahead of RCV.NXT.
    fn out_of_order(&mut self, slot: u32, left: u32, right: u32, fin: bool) {
        let f = &mut self.flows.hot[slot as usize];
        let cold = &mut self.flows.cold[slot as usize];
        f.flags |= HOLES;
        if fin {
            cold.fin_at = Some(right);
        }
        if left != right {
            insert_range(&mut cold.ranges, f.rcv_nxt, left, right);
            cold.newest = left;
        }
    }

    /// Acknowledges at once, with the blocks that are known (RFC 2018, section 4: the newest
    /// first).
    fn sack(&mut self, now: Time, slot: u32) {
        let f = &self.flows.hot[slot as usize];
        let cold = &self.flows.cold[slot as usize];
        if f.flags & SACK == 0 || cold.ranges.is_empty() {
            self.send_ack(now, slot);
            return;
        }
        let most = if f.flags & TS != 0 { 3 } else { 4 };
        let holds = |r: &&(u32, u32)| cold.newest.wrapping_sub(r.0) < r.1.wrapping_sub(r.0);
        let newest = cold.ranges.iter().find(holds);
        let others = cold.ranges.iter().filter(|r| !holds(r));
        let mut sack = SackBlocks::default();
        for &(left, right) in newest.into_iter().chain(others).take(most) {
            sack.push(Seq(left), Seq(right));
        }
        let seg = self.segment(now, f, ACK);
        let out = SegOut {
            seq: Seq(seg.seq),
            ack: Seq(seg.ack),
            flags: TcpFlags(ACK),
            window: seg.window,
            urgent: 0,
            opts: TcpOptions {
                ts: seg.ts.then_some((seg.tsval, seg.tsecr)),
                sack,
                ..TcpOptions::default()
            },
        };
        let key = f.key;
        self.emit(now, key, &out);
        self.counts.acks += 1;
        self.acknowledged(slot);
    }
}

/// Adds `left..right` to ascending, disjoint ranges, all ahead of `base`.
fn insert_range(ranges: &mut Vec<(u32, u32)>, base: u32, mut left: u32, mut right: u32) {
    let off = |v: u32| v.wrapping_sub(base);
    let first = ranges.partition_point(|r| off(r.1) < off(left));
    let mut past = first;
    while let Some(&(l, r)) = ranges.get(past)
        && off(l) <= off(right)
    {
        if off(l) < off(left) {
            left = l;
        }
        if off(r) > off(right) {
            right = r;
        }
        past += 1;
    }
    if past == first && ranges.len() >= MAX_RANGES {
        return;
    }
    ranges.splice(first..past, [(left, right)]);
}

fn eth(dst: MacAddr, src: MacAddr, ethertype: u16) -> EtherHdr {
    EtherHdr {
        dst,
        src,
        ethertype,
    }
}

/// The frame of a segment from the peer without payload.
pub(crate) fn frame_of(config: &NicConfig, key: Key, seg: &SegOut) -> Vec<u8> {
    let stations = Some((config.peer_mac, config.mac));
    let name = flow_key(config, key);
    let template = match config.v6 {
        true => Template::new(stations, &name, 64, 0),
        false => Template::new_v4(stations, &name, 64, 0, true),
    };
    let mut out = [0; perimeter_wire::MAX_HEADERS];
    let n = template.emit(&mut out, 0, seg, 0);
    finish_checksum(&mut out[..n], EtherHdr::LEN, []);
    out[..n].to_vec()
}

impl Peer {
    /// Whether the checksum of a segment is what it must be: complete, or the pseudo-header's sum
    /// if the device is to complete it.
    pub(crate) fn checksum_right(&self, h: &[u8], s: &In, d: &TxDesc) -> bool {
        let tcp_len = s.head - s.tcp + s.whole as usize;
        let ends = (self.config.ip(s.key.host), self.config.ip(s.key.peer));
        let pseudo = match ends {
            (IpAddr::V6(src), IpAddr::V6(dst)) => checksum::pseudo_v6(src, dst, 6, tcp_len as u32),
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                if checksum::checksum(&h[14..34]) != 0 {
                    return false;
                }
                checksum::pseudo_v4(src, dst, 6, tcp_len as u16)
            }
            _ => return false,
        };
        if d.offload.csum_start != 0 {
            let field = u16::from_be_bytes([h[s.tcp + 16], h[s.tcp + 17]]);
            return usize::from(d.offload.csum_start) == s.tcp
                && d.offload.csum_offset == 16
                && field == checksum::fold(pseudo);
        }
        let mut frame = Vec::new();
        frame.extend_from_slice(h);
        crate::csum::gather_payload(d, &mut frame);
        let Some(tcp) = frame.get(s.tcp..s.tcp + tcp_len) else {
            return false;
        };
        checksum::fold(checksum::sum(tcp, pseudo)) == 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    /// Against a bitmap, across the wrap of sequence numbers.
    #[test]
    fn ranges_are_a_set() {
        let mut rng = SplitMix64::new(3);
        for _ in 0..200 {
            let base = 0xffff_ff80u32;
            let mut ranges = Vec::new();
            let mut model = [false; 400];
            for _ in 0..40 {
                let l = 1 + rng.below(300) as u32;
                let r = l + 1 + rng.below(40) as u32;
                insert_range(
                    &mut ranges,
                    base,
                    base.wrapping_add(l),
                    base.wrapping_add(r),
                );
                model[l as usize..r as usize].fill(true);
                let mut shown = [false; 400];
                let mut last = 0;
                for &(a, b) in &ranges {
                    let (a, b) = (a.wrapping_sub(base), b.wrapping_sub(base));
                    assert!(a > last && a < b, "{ranges:?}");
                    last = b;
                    shown[a as usize..b as usize].fill(true);
                }
                assert_eq!(model, shown);
            }
        }
    }
}
