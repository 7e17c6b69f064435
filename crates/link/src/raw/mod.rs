//! A device without a stack: what it carries each way, by the same system calls as with one.
//!
//! Frames of TCP go out as fast as the device takes them, or are taken in and counted as they come.
//! Nobody is at the other end but whoever drops or makes them, so this is a bound for every stack
//! on that device. Where the host's TCP is there, it works within the same calls, and that is not
//! in this bound: [`RawTcp`] has it.

mod tcp;

pub use tcp::{MOST_FLOWS, RawEnd, RawTcp};

use core::net::{IpAddr, Ipv4Addr};
use perimeter_base::desc::Offload;
use perimeter_base::{PktPool, TxPages, TxRing};
use perimeter_sync::Platform;
use perimeter_wire::{FlowKey, MacAddr, SegOut, Seq, TcpFlags, TcpOptions, Template};

use crate::device::{Capabilities, Medium, RxQueue, TxQueue};

/// Frames that are placed before a doorbell, and taken at a time.
const BURST: usize = 32;

/// Headers of each frame behind Ethernet's: IPv4, and TCP with timestamps, octets.
const HEADERS: usize = 52;

/// Where frames come from and go to.
#[derive(Clone, Debug)]
pub struct RawFlow {
    /// Sender's address and station.
    pub from: (Ipv4Addr, MacAddr),
    /// Receiver's.
    pub to: (Ipv4Addr, MacAddr),
    /// Payload of each segment, octets.
    pub segment: u16,
}

/// What was carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawReport {
    /// Frames, as the device took or gave them.
    pub frames: u64,
    /// Octets of payload of TCP.
    pub octets: u64,
}

/// Payload of the frames that go out: as many segments as the device cuts one into, or one.
fn frame(device: &Capabilities, segment: u32) -> u32 {
    (device.large / segment).max(1) * segment
}

/// Sends such segments by a transmit queue of a device that can do what it says, until `done`
/// says so; large ones where the device cuts them.
pub fn send<P: Platform>(
    platform: &P,
    tx: &mut dyn TxQueue,
    device: &Capabilities,
    flow: &RawFlow,
    mut done: impl FnMut() -> bool,
) -> RawReport {
    let l2 = (device.medium == Medium::Ethernet).then_some((flow.from.1, flow.to.1));
    let key = FlowKey {
        local: IpAddr::V4(flow.from.0),
        remote: IpAddr::V4(flow.to.0),
        local_port: 5001,
        remote_port: 5001,
    };
    let template = Template::new_v4(l2, &key, 64, 0, device.tx_checksum);
    let segment = u32::from(flow.segment);
    let len = frame(device, segment);
    let link = if l2.is_some() { 14u8 } else { 0 };
    let offload = Offload {
        csum_start: if device.tx_checksum { link + 20 } else { 0 },
        csum_offset: if device.tx_checksum { 16 } else { 0 },
        segment_size: if len > segment { flow.segment } else { 0 },
    };
    let mut seg = SegOut {
        seq: Seq(1),
        ack: Seq(1),
        flags: TcpFlags::ACK,
        window: 65_535,
        opts: TcpOptions {
            ts: Some((1, 1)),
            ..TcpOptions::default()
        },
        ..SegOut::default()
    };
    let mut pages = TxPages::default();
    pages.adopt(vec![0x55; len as usize]);
    let mut pool = PktPool::new(BURST);
    let mut ring = TxRing::new(BURST);
    let mut report = RawReport::default();
    while !done() {
        while let Some(mut d) = ring.push() {
            d.hdr_len = template.emit(&mut d.hdr, 0, &seg, len) as u8;
            d.offload = offload;
            pages.refer(0, len as usize, &mut d, &mut pool);
            seg.seq = Seq(seg.seq.0.wrapping_add(len));
        }
        let before = ring.len();
        tx.doorbell(platform.now(), &mut ring);
        let n = (before - ring.len()) as u64;
        report.frames += n;
        report.octets += n * u64::from(len);
        if n == 0 {
            platform.yield_now();
        }
    }
    report
}

/// Takes what comes by a receive queue, until `done` says so.
pub fn receive<P: Platform>(
    platform: &P,
    rx: &mut dyn RxQueue,
    device: &Capabilities,
    segment: u16,
    mut done: impl FnMut() -> bool,
) -> RawReport {
    let headers = match device.medium {
        Medium::Ethernet => 14 + HEADERS,
        Medium::Ip => HEADERS,
    };
    let mut pool = PktPool::new(4 * BURST);
    let mut frames = Vec::with_capacity(BURST);
    let mut report = RawReport::default();
    while !done() {
        if rx.poll(platform.now(), &mut pool, &mut frames, BURST) == 0 {
            platform.yield_now();
        }
        for f in frames.drain(..) {
            let payload = f.buf.len().saturating_sub(headers);
            // Not what others send besides.
            if payload >= usize::from(segment) {
                report.frames += 1;
                report.octets += payload as u64;
            }
            pool.put(f.buf);
        }
    }
    report
}
