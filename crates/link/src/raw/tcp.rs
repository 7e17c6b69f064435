//! The least that can stand in for TCP at one end of a device while the host's TCP is at the other.
//!
//! What the other end sends is counted and acknowledged; what is sent to it goes by the window that
//! it last gave. There is no congestion control, no timer but one for a flow that stands still, and
//! no buffer: so what such a loop moves is what a device and the host's TCP leave to a stack.

use core::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use perimeter_base::{PktPool, Time, TxPages, TxRing, TxSlot};
use perimeter_wire::{
    ArpOp, ArpPacket, Csum, ETHERTYPE_ARP, EtherHdr, FlowKey, Frame, MacAddr, SegOut, Seq,
    TcpFlags, TcpFrame, TcpOptions, Template,
};
use std::os::fd::RawFd;

use super::{BURST, HEADERS, frame};
use crate::device::{Capabilities, Device, Medium, RxFrame, RxQueue, RxStatus, TxQueue};

/// Shift count of the windows that are given.
const SHIFT: u8 = 8;

/// First local port; each flow has the next one.
const FIRST_PORT: u16 = 10_000;

/// The most flows: as many as there are ports from the first one on.
pub const MOST_FLOWS: usize = (u16::MAX - FIRST_PORT) as usize;

/// After how long without progress a flow sends anew what was not acknowledged, ns. Hosts wait as
/// long at least; RFC 6298, section 2.4, asks for a second.
const STILL: u64 = 200_000_000;

/// The addresses and the window of a [`RawTcp`].
#[derive(Clone, Debug)]
pub struct RawEnd {
    /// Its own address.
    pub address: Ipv4Addr,
    /// Link-layer address of the other end; of no meaning where the device's frames have none.
    pub station: MacAddr,
    /// Octets that each flow may have in flight towards it: its window, 16 MiB at most.
    pub window: u32,
}

/// One flow.
#[derive(Debug)]
struct Flow {
    template: Template,
    /// The other end has answered the SYN.
    open: bool,
    snd_una: Seq,
    snd_nxt: Seq,
    snd_wnd: u32,
    /// Shift count of the windows that come.
    shift: u8,
    rcv_nxt: Seq,
    /// The newest timestamp that came.
    ts_recent: u32,
    /// How many acknowledgments are to be sent: one for all that came in order, and one for each
    /// segment that did not, by which the other end finds what was lost.
    owes: u16,
    /// When `snd_una` last moved.
    moved_at: Time,
    /// Octets of payload that arrived in order, and that were acknowledged.
    received: u64,
    acknowledged: u64,
}

impl Flow {
    fn in_flight(&self) -> u32 {
        self.snd_nxt.0.wrapping_sub(self.snd_una.0)
    }

    /// How much may be sent now, of frames of `large` octets in segments of `segment`. A part of a
    /// frame goes only where the window has no room for a whole one, and not before half of that is
    /// free: as senders with large segments do it.
    fn allows(&self, large: u32, segment: u32) -> u32 {
        let room = self.snd_wnd.saturating_sub(self.in_flight()).min(large);
        match room {
            _ if !self.open => 0,
            _ if self.in_flight() == 0 => room,
            _ if room < large.min(self.snd_wnd / 2) => 0,
            _ => room - room % segment,
        }
    }

    fn segment(&self, flags: TcpFlags, window: u32, now: Time) -> SegOut {
        SegOut {
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags,
            window: (window >> SHIFT).min(u32::from(u16::MAX)) as u16,
            opts: TcpOptions {
                ts: Some((milliseconds(now), self.ts_recent)),
                ..TcpOptions::default()
            },
            ..SegOut::default()
        }
    }
}

/// A clock for timestamps.
fn milliseconds(now: Time) -> u32 {
    (now.0 / 1_000_000) as u32
}

/// Flows over one queue pair of a device, to listeners of the host that is at its other end.
///
/// ```
/// use perimeter_base::Time;
/// use perimeter_link::nowhere::Nowhere;
/// use perimeter_link::raw::{RawEnd, RawTcp};
/// use perimeter_link::MacAddr;
///
/// let end = RawEnd {
///     address: "198.18.0.1".parse().unwrap(),
///     station: MacAddr::default(),
///     window: 256 << 10,
/// };
/// let mut raw = RawTcp::new(Box::new(Nowhere), &end, b"what flows send").unwrap();
/// assert!(raw.add("198.18.0.2:5001".parse().unwrap()));
/// // A SYN goes out, and nobody answers.
/// assert_eq!(raw.turn(Time::from_millis(1), true), 1);
/// assert_eq!((raw.open(), raw.octets().next()), (0, Some((0, 0))));
/// ```
pub struct RawTcp {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    is: Capabilities,
    end: RawEnd,
    /// Payload of a segment, and of a frame.
    segment: u32,
    large: u32,
    flows: Vec<Flow>,
    /// Whose turn it is to send.
    turn: usize,
    ring: TxRing,
    pool: PktPool,
    frames: Vec<RxFrame>,
    /// The content twice, so that a frame may begin anywhere in its first copy.
    pages: TxPages,
    content: usize,
    /// Answers to be sent to who asks for our station.
    asked: Vec<ArpPacket>,
    again: u64,
}

impl core::fmt::Debug for RawTcp {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RawTcp").finish_non_exhaustive()
    }
}

impl RawTcp {
    /// Opens the device's first queues. Each flow sends `content` over and over. `None`: the device
    /// has no queues or does not complete checksums, or there is no content.
    pub fn new(device: Box<dyn Device>, end: &RawEnd, content: &[u8]) -> Option<RawTcp> {
        let is = device.capabilities();
        if !is.tx_checksum || content.is_empty() {
            return None;
        }
        let (rx, tx) = device.open();
        let (rx, tx) = (rx.into_iter().next()?, tx.into_iter().next()?);
        let segment = is.mtu.checked_sub(HEADERS as u32).filter(|n| *n > 0)?;
        let large = frame(&is, segment).min(content.len() as u32);
        let mut pages = TxPages::default();
        pages.adopt([content, content].concat());
        Some(RawTcp {
            rx,
            tx,
            is,
            end: end.clone(),
            segment,
            large,
            flows: Vec::new(),
            turn: 0,
            ring: TxRing::new(2 * BURST),
            pool: PktPool::new(4 * BURST),
            frames: Vec::with_capacity(BURST),
            pages,
            content: content.len(),
            asked: Vec::new(),
            again: 0,
        })
    }

    /// Adds a flow to a listener at `to`, which the next turns open. False: there are
    /// [`MOST_FLOWS`] already.
    pub fn add(&mut self, to: SocketAddrV4) -> bool {
        if self.flows.len() >= MOST_FLOWS {
            return false;
        }
        let key = FlowKey {
            local: IpAddr::V4(self.end.address),
            remote: IpAddr::V4(*to.ip()),
            local_port: FIRST_PORT + self.flows.len() as u16,
            remote_port: to.port(),
        };
        let l2 = (self.is.medium == Medium::Ethernet).then_some((self.is.mac, self.end.station));
        self.flows.push(Flow {
            template: Template::new_v4(l2, &key, 64, 0, true),
            open: false,
            snd_una: Seq(0),
            snd_nxt: Seq(0),
            snd_wnd: 0,
            shift: 0,
            rcv_nxt: Seq(0),
            ts_recent: 0,
            owes: 0,
            moved_at: Time::ZERO,
            received: 0,
            acknowledged: 0,
        });
        true
    }

    /// How many flows the other end has opened.
    pub fn open(&self) -> usize {
        self.flows.iter().filter(|f| f.open).count()
    }

    /// Of each flow since the beginning: octets that the other end has acknowledged, and octets that
    /// it sent and that arrived in order.
    pub fn octets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.flows.iter().map(|f| (f.acknowledged, f.received))
    }

    /// How often a flow stood still and sent anew what was not acknowledged.
    pub fn sent_again(&self) -> u64 {
        self.again
    }

    /// After a turn without work: what becomes readable when there is some. `None`: there is some
    /// already, or the device has nothing to wait for.
    pub fn sleeps_on(&mut self, now: Time) -> Option<RawFd> {
        match self.rx.arm(now) {
            RxStatus::Armed(_) => self.rx.fd(),
            RxStatus::Ready | RxStatus::Gone => None,
        }
    }

    /// Places what flows may send (`sends`: data, too), rings the doorbell, and takes what came; how
    /// many frames went either way. 0: there is nothing to do before something comes.
    pub fn turn(&mut self, now: Time, sends: bool) -> usize {
        let mut frames = core::mem::take(&mut self.frames);
        self.open_flows(now);
        if sends {
            self.place(now);
        }
        let mut n = self.ring_doorbell(now);
        let came = self.rx.poll(now, &mut self.pool, &mut frames, BURST);
        n += came;
        for frame in frames.drain(..) {
            self.take(now, &frame);
            self.pool.put(frame.buf);
        }
        self.frames = frames;
        if came > 0 {
            self.answer(now);
            n += self.ring_doorbell(now);
        }
        n
    }

    fn ring_doorbell(&mut self, now: Time) -> usize {
        let before = self.ring.len();
        if before > 0 {
            self.tx.doorbell(now, &mut self.ring);
        }
        before - self.ring.len()
    }

    /// SYNs of flows that are not open, and what a flow that stands still sends anew.
    fn open_flows(&mut self, now: Time) {
        for flow in &mut self.flows {
            let still = now.0.saturating_sub(flow.moved_at.0) >= STILL;
            if flow.open {
                if still && flow.in_flight() > 0 {
                    flow.snd_nxt = flow.snd_una;
                    flow.moved_at = now;
                    self.again += 1;
                }
                continue;
            }
            if !still && flow.moved_at != Time::ZERO {
                continue;
            }
            let Some(slot) = self.ring.push() else {
                return;
            };
            let mut seg = flow.segment(TcpFlags::SYN, 0, now);
            (seg.seq, seg.window) = (flow.snd_una, u16::MAX);
            seg.opts.mss = Some((self.segment + 12) as u16);
            seg.opts.wscale = Some(SHIFT);
            emit(flow, &seg, 0, slot);
            flow.snd_nxt = flow.snd_una + 1;
            flow.moved_at = now;
        }
    }

    /// Data of one flow after another, until the ring is full or no window has room.
    fn place(&mut self, now: Time) {
        let flows = self.flows.len();
        let mut idle = 0;
        while idle < flows && self.ring.len() < BURST {
            self.turn = (self.turn + 1) % flows;
            let flow = &mut self.flows[self.turn];
            let len = flow.allows(self.large, self.segment);
            if len == 0 {
                idle += 1;
                continue;
            }
            idle = 0;
            let Some(mut slot) = self.ring.push() else {
                return;
            };
            if flow.in_flight() == 0 {
                flow.moved_at = now;
            }
            let at = flow.acknowledged + u64::from(flow.in_flight());
            let at = (at % self.content as u64) as usize;
            self.pages
                .refer(at, len as usize, &mut slot, &mut self.pool);
            let seg = flow.segment(TcpFlags::ACK, self.end.window, now);
            if len > self.segment {
                slot.offload.segment_size = self.segment as u16;
            }
            emit(flow, &seg, len, slot);
            flow.snd_nxt += len;
            flow.owes = 0;
        }
    }

    /// Acknowledgments, and answers to who asks for our station.
    fn answer(&mut self, now: Time) {
        for packet in self.asked.drain(..) {
            let Some(mut slot) = self.ring.push() else {
                return;
            };
            EtherHdr {
                dst: packet.target_mac,
                src: self.is.mac,
                ethertype: ETHERTYPE_ARP,
            }
            .emit(&mut slot.hdr[..]);
            packet.emit(&mut slot.hdr[EtherHdr::LEN..]);
            slot.hdr_len = (EtherHdr::LEN + ArpPacket::LEN) as u8;
        }
        for flow in self.flows.iter_mut().filter(|f| f.owes > 0) {
            while flow.owes > 0 {
                let Some(slot) = self.ring.push() else {
                    return;
                };
                let seg = flow.segment(TcpFlags::ACK, self.end.window, now);
                emit(flow, &seg, 0, slot);
                flow.owes -= 1;
            }
        }
    }

    /// A frame that came.
    fn take(&mut self, now: Time, frame: &RxFrame) {
        let bytes = frame.buf.as_slice();
        let parsed = match self.is.medium {
            Medium::Ethernet => Frame::parse_ethernet(bytes, Csum::Trust),
            Medium::Ip => Frame::parse_ip(bytes, 0, Csum::Trust),
        };
        match parsed {
            Ok(Frame::Tcp(seg)) => self.segment(now, &seg),
            Ok(Frame::Arp(arp))
                if arp.op == ArpOp::Request && arp.target_ip == self.end.address =>
            {
                self.asked.push(arp.reply(self.is.mac));
            }
            _ => {}
        }
    }

    fn segment(&mut self, now: Time, seg: &TcpFrame) {
        let number = seg.key.local_port.checked_sub(FIRST_PORT);
        let Some(flow) = number.and_then(|n| self.flows.get_mut(usize::from(n))) else {
            return;
        };
        let hdr = &seg.hdr;
        if let Some((value, _)) = hdr.opts.ts {
            flow.ts_recent = value;
        }
        if hdr.flags.contains(TcpFlags::SYN) {
            if !flow.open {
                flow.open = true;
                flow.rcv_nxt = hdr.seq + 1;
                flow.snd_una = flow.snd_nxt;
                flow.shift = hdr.opts.wscale.unwrap_or(0);
                flow.snd_wnd = hdr.window.into();
            }
            flow.owes = 1;
            return;
        }
        let acked = hdr.ack.0.wrapping_sub(flow.snd_una.0);
        if hdr.flags.contains(TcpFlags::ACK) && acked <= flow.in_flight() {
            flow.snd_una = hdr.ack;
            flow.snd_wnd = u32::from(hdr.window) << flow.shift;
            flow.acknowledged += u64::from(acked);
            if acked > 0 {
                flow.moved_at = now;
            }
        }
        if seg.payload_len == 0 {
            return;
        }
        // What is sent again may begin before, and go on beyond, what is there.
        let end = hdr.seq + seg.payload_len;
        if hdr.seq.le(flow.rcv_nxt) && end.gt(flow.rcv_nxt) {
            flow.received += u64::from(end.since(flow.rcv_nxt));
            flow.rcv_nxt = end;
            flow.owes = flow.owes.max(1);
        } else {
            flow.owes = flow.owes.saturating_add(1);
        }
    }
}

/// Writes a segment's headers to a descriptor that has its payload; the device completes the
/// checksum.
fn emit(flow: &Flow, seg: &SegOut, len: u32, mut slot: TxSlot<'_>) {
    slot.hdr_len = flow.template.emit(&mut slot.hdr, 0, seg, len) as u8;
    slot.offload.csum_start = flow.template.tcp_start() as u8;
    slot.offload.csum_offset = 16;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{ScriptHandle, script};
    use perimeter_sync::Native;
    use perimeter_wire::parse_ipv4_tcp;

    const ISS: u32 = 5000;

    /// One flow over a device whose other end is played by the test.
    struct Played {
        raw: RawTcp,
        other: ScriptHandle<Native>,
        content: Vec<u8>,
    }

    impl Played {
        fn begin() -> Played {
            let (device, other) = script(&Native::default(), "raw", 1500);
            let end = RawEnd {
                address: Ipv4Addr::new(198, 18, 0, 1),
                station: MacAddr::default(),
                window: 256 << 10,
            };
            let content: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
            let mut raw = RawTcp::new(Box::new(device), &end, &content).unwrap();
            assert!(raw.add("198.18.0.2:5001".parse().unwrap()));
            Played {
                raw,
                other,
                content,
            }
        }

        /// What has been sent: segments with their payload.
        fn sent(&self) -> Vec<(TcpFrame, Vec<u8>)> {
            let each = std::iter::from_fn(|| self.other.next()).map(|sent| {
                let seg = parse_ipv4_tcp(&sent.bytes, 0, Csum::Verify).unwrap();
                let payload = sent.bytes[seg.payload_off as usize..].to_vec();
                (seg, payload)
            });
            each.collect()
        }

        /// The other end sends a segment.
        fn give(&self, flags: TcpFlags, (seq, ack): (u32, u32), window: u16, payload: &[u8]) {
            let key = FlowKey {
                local: "198.18.0.2".parse().unwrap(),
                remote: "198.18.0.1".parse().unwrap(),
                local_port: 5001,
                remote_port: FIRST_PORT,
            };
            let seg = SegOut {
                seq: Seq(seq),
                ack: Seq(ack),
                flags,
                window,
                ..SegOut::default()
            };
            let mut head = [0; perimeter_wire::MAX_HEADERS];
            let template = Template::new_v4(None, &key, 64, 0, true);
            let n = template.emit(&mut head, 0, &seg, payload.len() as u32);
            let frame = [&head[..n], payload].concat();
            assert!(self.other.inject(Time::ZERO, &frame));
        }

        fn opened() -> Played {
            let mut played = Played::begin();
            played.raw.turn(Time::from_millis(1), true);
            let syn = &played.sent()[0].0.hdr;
            assert_eq!(syn.flags, TcpFlags::SYN);
            assert_eq!(
                (syn.opts.mss, syn.opts.wscale),
                (Some(1460), Some(SHIFT)),
                "{syn:?}"
            );
            played.give(TcpFlags::SYN | TcpFlags::ACK, (ISS, 1), 4000, b"");
            played
        }
    }

    #[test]
    fn sends_by_the_window_and_anew_when_it_stands_still() {
        let mut played = Played::opened();
        let at = Time::from_millis;
        played.raw.turn(at(2), true);
        assert_eq!(played.raw.open(), 1);
        played.raw.turn(at(3), true);
        let sent = played.sent();
        // An acknowledgment of the SYN, and data: 4,000 octets have room for two segments, and a
        // third would be a part.
        let lengths: Vec<u32> = sent.iter().map(|(s, _)| s.payload_len).collect();
        assert_eq!(lengths, [0, 1448, 1448]);
        assert_eq!(sent[0].0.hdr.ack, Seq(ISS + 1));
        assert_eq!(sent[2].1, played.content[1448..2896]);
        assert_eq!(played.raw.turn(at(4), true), 0, "no room");
        played.give(TcpFlags::ACK, (ISS + 1, 1 + 1448), 4000, b"");
        played.raw.turn(at(5), true);
        played.raw.turn(at(6), true);
        let sent = played.sent();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].1, played.content[2896..4344]);
        assert_eq!(played.raw.octets().collect::<Vec<_>>(), [(1448, 0)]);
        // Nothing comes any more.
        assert_eq!(played.raw.turn(at(204), true), 0);
        assert_eq!(played.raw.turn(at(205), true), 2);
        let sent = played.sent();
        assert_eq!(sent[0].0.hdr.seq, Seq(1 + 1448));
        assert_eq!(sent[0].1, played.content[1448..2896]);
        assert_eq!(played.raw.sent_again(), 1);
    }

    #[test]
    fn counts_and_acknowledges_what_comes_in_order() {
        let mut played = Played::opened();
        let at = Time::from_millis;
        played.raw.turn(at(2), false);
        played.sent();
        played.give(TcpFlags::ACK, (ISS + 1, 1), 4000, &[1; 1000]);
        played.give(TcpFlags::ACK, (ISS + 1001, 1), 4000, &[2; 500]);
        played.raw.turn(at(3), false);
        let sent = played.sent();
        assert_eq!(sent.len(), 1, "one for all of a burst");
        assert_eq!(sent[0].0.hdr.ack, Seq(ISS + 1501));
        assert_eq!(u32::from(sent[0].0.hdr.window) << SHIFT, 256 << 10);
        // What is missing is asked for, by each segment behind it.
        for seq in [ISS + 3000, ISS + 3500, ISS + 4000] {
            played.give(TcpFlags::ACK, (seq, 1), 4000, &[3; 500]);
        }
        played.raw.turn(at(4), false);
        let sent = played.sent();
        assert!(sent.iter().all(|(s, _)| s.hdr.ack == Seq(ISS + 1501)));
        assert_eq!(sent.len(), 3);
        assert_eq!(played.raw.octets().collect::<Vec<_>>(), [(0, 1500)]);
        // It comes with some of what was there.
        played.give(TcpFlags::ACK, (ISS + 1001, 1), 4000, &[2; 1000]);
        played.raw.turn(at(4), false);
        assert_eq!(played.sent()[0].0.hdr.ack, Seq(ISS + 2001));
        assert_eq!(played.raw.octets().collect::<Vec<_>>(), [(0, 2000)]);
        // Of another flow, or nonsense.
        assert!(played.other.inject(Time::ZERO, &[0x45, 0, 0]));
        played.raw.turn(at(5), false);
        assert!(played.sent().is_empty());
    }

    #[test]
    fn a_syn_that_nobody_answers_is_sent_again() {
        let mut played = Played::begin();
        for (ms, n) in [(1, 1), (2, 0), (200, 0), (201, 1), (300, 0)] {
            assert_eq!(played.raw.turn(Time::from_millis(ms), true), n, "{ms} ms");
        }
        assert_eq!(played.raw.open(), 0);
    }
}
