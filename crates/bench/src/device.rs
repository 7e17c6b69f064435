//! Devices that do next to nothing.

use core::net::{Ipv4Addr, Ipv6Addr};
use perimeter_base::{PktBuf, PktPool, Time, TxDesc, TxRing};
use perimeter_link::device::Waker;
use perimeter_link::{Capabilities, Device, Medium, Queues, RxFrame, RxQueue, RxStatus, TxQueue};
use perimeter_wire::{
    ArpOp, ArpPacket, Csum, ETHERTYPE_ARP, EtherHdr, Frame, MacAddr, SegOut, Seq, TcpFlags,
    TcpFrame, TcpOptions, Template,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The stack's station.
pub const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// The station of everybody else.
pub const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Time to live of the peer's datagrams.
const TTL: u8 = 64;

fn capabilities(name: &str) -> Capabilities {
    Capabilities::new(name, Medium::Ethernet, 1500)
        .with_mac(MAC)
        .with_tx_checksum(true)
}

/// Completes every descriptor at the doorbell and receives nothing: frames for the stack are
/// put into its burst by hand.
#[derive(Debug, Default)]
pub struct Sink;

struct NoRx;

#[derive(Default)]
struct SinkTx {}

impl Device for Sink {
    fn capabilities(&self) -> Capabilities {
        capabilities("sink")
    }

    fn open(self: Box<Self>) -> Queues {
        (vec![Box::new(NoRx)], vec![Box::new(SinkTx::default())])
    }
}

impl RxQueue for NoRx {
    fn poll(&mut self, _: Time, _: &mut PktPool, _: &mut Vec<RxFrame>, _: usize) -> usize {
        0
    }

    fn arm(&mut self, _: Time) -> RxStatus {
        RxStatus::Armed(Time::NEVER)
    }

    fn set_waker(&mut self, _: Waker) {}
}

impl TxQueue for SinkTx {
    fn doorbell(&mut self, _: Time, ring: &mut TxRing) {
        ring.clear();
    }
}

/// Plays every other address of the link just far enough for handshakes: answers ARP requests
/// and SYNs, and remembers nothing, so that what is allocated is the stack's.
#[derive(Debug, Default)]
pub struct Greeter;

/// Frames on their way to the stack.
type Answers = Arc<Mutex<VecDeque<PktBuf>>>;

struct GreeterTx {
    answers: Answers,
}

struct GreeterRx {
    answers: Answers,
}

impl Device for Greeter {
    fn capabilities(&self) -> Capabilities {
        capabilities("greeter")
    }

    fn open(self: Box<Self>) -> Queues {
        let answers = Answers::default();
        let rx = GreeterRx {
            answers: answers.clone(),
        };
        let tx = GreeterTx { answers };
        (vec![Box::new(rx)], vec![Box::new(tx)])
    }
}

impl TxQueue for GreeterTx {
    fn doorbell(&mut self, _: Time, ring: &mut TxRing) {
        if let Ok(mut answers) = self.answers.lock() {
            answers.extend(ring.pending().iter().filter_map(answer));
        }
        ring.clear();
    }
}

impl RxQueue for GreeterRx {
    fn poll(&mut self, _: Time, _: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let Ok(mut answers) = self.answers.lock() else {
            return 0;
        };
        let n = answers.len().min(max);
        out.extend(answers.drain(..n).map(|buf| RxFrame {
            buf,
            hash: None,
            csum_ok: true,
            segment_size: 0,
        }));
        n
    }

    fn arm(&mut self, _: Time) -> RxStatus {
        match self.answers.lock() {
            Ok(a) if !a.is_empty() => RxStatus::Ready,
            _ => RxStatus::Armed(Time::NEVER),
        }
    }

    fn set_waker(&mut self, _: Waker) {}
}

/// What a descriptor's frame is answered with, if with anything.
fn answer(d: &TxDesc) -> Option<PktBuf> {
    match Frame::parse_ethernet(d.headers(), Csum::Trust) {
        Ok(Frame::Arp(p)) if p.op == ArpOp::Request => Some(arp_reply(&p)),
        Ok(Frame::Tcp(t)) if t.hdr.flags == TcpFlags::SYN => Some(syn_ack(&t)),
        _ => None,
    }
}

fn arp_reply(p: &ArpPacket) -> PktBuf {
    let mut buf = PktBuf::with_capacity(EtherHdr::LEN + ArpPacket::LEN);
    let eth = EtherHdr {
        dst: p.sender_mac,
        src: PEER_MAC,
        ethertype: ETHERTYPE_ARP,
    };
    let n = eth.emit(buf.raw_mut());
    let len = n + p.reply(PEER_MAC).emit(&mut buf.raw_mut()[n..]);
    buf.set_window(0, len);
    buf
}

fn syn_ack(t: &TcpFrame) -> PktBuf {
    // The key is the receiver's: the peer's own.
    let template = Template::new_v4(Some((PEER_MAC, MAC)), &t.key, TTL, 0, true);
    let ts = t.hdr.opts.ts.map(|(val, _)| (1, val));
    let mut headers = [0; perimeter_wire::MAX_HEADERS];
    let seg = answer_to_syn(Seq(0x5eed), t.hdr.seq, ts);
    let len = template.emit(&mut headers, 0, &seg, 0);
    PktBuf::copy_of(&headers[..len])
}

/// A SYN-ACK of sequence number `iss` for a SYN of `irs`, with everything on offer.
#[must_use]
pub fn answer_to_syn(iss: Seq, irs: Seq, ts: Option<(u32, u32)>) -> SegOut {
    SegOut {
        seq: iss,
        ack: irs + 1,
        flags: TcpFlags::SYN | TcpFlags::ACK,
        window: u16::MAX,
        urgent: 0,
        opts: TcpOptions {
            mss: Some(1460),
            wscale: Some(WSCALE),
            sack_permitted: true,
            ts,
            ..TcpOptions::default()
        },
    }
}

/// Shift count of the peer's windows.
pub const WSCALE: u8 = 7;

/// The stack's address, in a prefix that has room for the peers.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
/// The first of the peer's addresses.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
/// Another host of the link.
pub const OTHER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 9);
/// The stack's address over IPv6.
pub const HOST6: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 1);
/// The peer's.
pub const PEER6: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 2);
/// The prefix of the link.
pub const PREFIX: u8 = 16;
