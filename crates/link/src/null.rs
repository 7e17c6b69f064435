//! The null stack: the floor of every benchmark over the memory NIC.
//!
//! It replays prebuilt headers, patching sequence number and timestamp only, refers to one page
//! of payload, rings the doorbell, and takes acknowledgments from the receive queue without
//! acting on them. Ring, header build, doorbell and half an ACK per segment: a stack can only
//! add to that.

use core::net::{IpAddr, Ipv4Addr};
use perimeter_base::desc::{HEADERS, Offload};
use perimeter_base::{PktPool, Time, TxPages, TxRing};
use perimeter_sync::Platform;
use perimeter_wire::{FlowKey, SegOut, Seq, TcpFlags, TcpOptions, Template};

use crate::device::{Device, RxFrame, RxQueue, TxQueue};
use crate::mem::{Nic, NicConfig};
use crate::pattern::{PERIOD, Pattern};

/// What the null stack does.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NullConfig {
    /// The NIC; one queue each way is used.
    pub nic: NicConfig,
    /// Connections; at least 1.
    pub connections: usize,
    /// Segments to send; at least one burst is sent.
    pub segments: u64,
    /// Segments per connection and doorbell; at least 1.
    pub burst: usize,
}

impl Default for NullConfig {
    fn default() -> NullConfig {
        NullConfig {
            nic: NicConfig::new(0),
            connections: 6,
            segments: 1_000_000,
            burst: 32,
        }
    }
}

perimeter_base::setters! {
    NullConfig {
        with_nic(nic: NicConfig),
        with_connections(connections: usize),
        with_segments(segments: u64),
        with_burst(burst: usize),
    }
}

/// What it cost.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct NullReport {
    /// Segments sent.
    pub segments: u64,
    /// Payload bytes of each.
    pub payload: u32,
    /// The null stack's own time per segment, ns.
    pub stack_ns: f64,
    /// The peer's time per segment in the doorbell and in polling, ns.
    pub peer_ns: f64,
    /// Frames received per segment sent.
    pub acks: f64,
}

/// One prebuilt connection.
struct Conn {
    header: [u8; HEADERS],
    header_len: u8,
    seq: u32,
    offset: u64,
}

/// The handshake did not come about: the peer of this configuration does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{connected} of {wanted} connections were answered by the peer")]
pub struct NotConnected {
    /// How many were.
    pub connected: usize,
    /// How many there should be.
    pub wanted: usize,
}

struct Null<P: Platform> {
    platform: P,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    ring: TxRing,
    pool: PktPool,
    frames: Vec<RxFrame>,
    received: u64,
}

impl<P: Platform> Null<P> {
    fn key(config: &NicConfig, i: usize) -> FlowKey {
        let peer = Ipv4Addr::from_bits(config.host.to_bits() + 1 + (i / 50_000) as u32);
        FlowKey {
            local: IpAddr::V4(config.host),
            remote: IpAddr::V4(peer),
            local_port: 10_000 + (i % 50_000) as u16,
            remote_port: 5001,
        }
    }

    /// Rings until everything is taken. Bounded: the peer always takes frames once polled.
    fn flush(&mut self, now: Time) {
        self.tx.doorbell(now, &mut self.ring);
        while !self.ring.is_empty() {
            self.platform.yield_now();
            let now = self.platform.now();
            self.poll(now);
            self.tx.doorbell(now, &mut self.ring);
        }
    }

    /// Takes what has arrived; of each segment only the acknowledgment is looked at.
    fn poll(&mut self, now: Time) -> u32 {
        let mut newest = 0;
        while self.rx.poll(now, &mut self.pool, &mut self.frames, 64) > 0 {
            for f in self.frames.drain(..) {
                let b = f.buf.as_slice();
                if let Some(&[a, b, c, d]) = b.get(42..46).and_then(|s| s.first_chunk()) {
                    newest = u32::from_be_bytes([a, b, c, d]);
                }
                self.received += 1;
                self.pool.put(f.buf);
            }
        }
        newest
    }

    /// Opens connections, one after the other's SYN, and returns them prebuilt.
    fn connect(&mut self, config: &NicConfig, n: usize) -> Result<Vec<Conn>, NotConnected> {
        let l2 = Some((config.mac, config.peer_mac));
        let payload = payload_of(config);
        let mut conns = Vec::with_capacity(n);
        for i in 0..n {
            let template = Template::new_v4(l2, &Self::key(config, i), 64, 0, true);
            let mut opts = TcpOptions {
                mss: Some((config.mtu - 40) as u16),
                wscale: Some(8),
                sack_permitted: true,
                ts: Some((1, 0)),
                ..TcpOptions::default()
            };
            let iss = 1_000_000_007u32.wrapping_mul(i as u32);
            let mut seg = SegOut {
                seq: Seq(iss),
                flags: TcpFlags::SYN,
                window: 65_535,
                opts,
                ..SegOut::default()
            };
            self.place(&template, &seg);
            let now = self.platform.now();
            self.flush(now);
            let Some(synack) = self.await_frame() else {
                return Err(NotConnected {
                    connected: i,
                    wanted: n,
                });
            };
            let b = synack.buf.as_slice();
            let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
            opts = TcpOptions {
                ts: Some((1, 1)),
                ..TcpOptions::default()
            };
            seg = SegOut {
                seq: Seq(iss + 1),
                ack: Seq(word(38).wrapping_add(1)),
                flags: TcpFlags::ACK,
                window: 65_535,
                opts,
                ..SegOut::default()
            };
            self.place(&template, &seg);
            let now = self.platform.now();
            self.flush(now);
            let mut header = [0; HEADERS];
            let header_len = template.emit(&mut header, 0, &seg, payload) as u8;
            conns.push(Conn {
                header,
                header_len,
                seq: iss + 1,
                offset: 0,
            });
        }
        Ok(conns)
    }

    fn place(&mut self, template: &Template, seg: &SegOut) {
        if let Some(mut d) = self.ring.push() {
            d.hdr_len = template.emit(&mut d.hdr, 0, seg, 0) as u8;
            d.offload = OFFLOAD;
        }
    }

    /// The answer to what was sent last. The queue is told a time at which it has surely
    /// arrived, rather than waited for.
    fn await_frame(&mut self) -> Option<RxFrame> {
        let later = self.platform.now().plus(1_000_000_000);
        self.rx.poll(later, &mut self.pool, &mut self.frames, 1);
        let f = self.frames.pop()?;
        (f.buf.len() >= 54).then_some(f)
    }
}

const OFFLOAD: Offload = Offload {
    csum_start: 34,
    csum_offset: 16,
    segment_size: 0,
};

fn payload_of(config: &NicConfig) -> u32 {
    config.mtu - 52
}

/// Runs the null stack on the calling thread.
///
/// # Errors
/// If the peer refuses connections.
pub fn run<P: Platform>(platform: &P, config: &NullConfig) -> Result<NullReport, NotConnected> {
    let (nic, handle) = Nic::new(platform, config.nic.clone());
    let nic_config = handle.config().clone();
    let (mut rx, mut tx) = Box::new(nic).open();
    let burst = config.burst.max(1);
    let (Some(rx), Some(tx)) = (rx.pop(), tx.pop()) else {
        return Err(NotConnected {
            connected: 0,
            wanted: config.connections,
        });
    };
    let mut null = Null {
        platform: platform.clone(),
        rx,
        tx,
        ring: TxRing::new(burst.max(64)),
        pool: PktPool::new(4096),
        frames: Vec::new(),
        received: 0,
    };
    let mut conns = null.connect(&nic_config, config.connections.max(1))?;
    let payload = payload_of(&nic_config);
    let mut bytes = vec![0; PERIOD + payload as usize];
    Pattern::get().fill(0, &mut bytes);
    let mut page = TxPages::default();
    page.push(bytes.into());

    let peer_before = null.tx.peer_ns() + null.rx.peer_ns();
    let received = null.received;
    let start = platform.now();
    let mut sent = 0;
    while sent < config.segments.max(1) {
        for c in &mut conns {
            let now = platform.now();
            let tsval = (now.0 / 1_000_000) as u32;
            send_burst(
                c,
                (&mut null.ring, &mut null.pool),
                &mut page,
                (payload, burst),
                tsval,
            );
            null.flush(now);
            null.poll(now);
            sent += burst as u64;
            if sent >= config.segments {
                break;
            }
        }
    }
    let elapsed = platform.now().nanos_since(start) as f64;
    let peer = (null.tx.peer_ns() + null.rx.peer_ns() - peer_before) as f64;
    Ok(NullReport {
        segments: sent,
        payload,
        stack_ns: (elapsed - peer) / sent as f64,
        peer_ns: peer / sent as f64,
        acks: (null.received - received) as f64 / sent as f64,
    })
}

#[inline]
fn send_burst(
    c: &mut Conn,
    (ring, pool): (&mut TxRing, &mut PktPool),
    page: &mut TxPages,
    (len, burst): (u32, usize),
    tsval: u32,
) {
    for _ in 0..burst {
        let Some(mut d) = ring.push() else {
            return;
        };
        d.hdr = c.header;
        d.hdr_len = c.header_len;
        d.hdr[38..42].copy_from_slice(&c.seq.to_be_bytes());
        d.hdr[58..62].copy_from_slice(&tsval.to_be_bytes());
        let at = Pattern::phase(c.offset);
        page.refer(at, len as usize, &mut d, pool);
        d.offload = OFFLOAD;
        c.seq = c.seq.wrapping_add(len);
        c.offset += u64::from(len);
    }
}
