//! Datagrams of UDP, to and from the ideal peer: it counts what comes to its port, and sends as
//! many as are taken.
//!
//! Each begins with where in the period of the [`Pattern`] the rest is, two octets in network
//! order; so whoever receives one can check it, whatever was lost before.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use perimeter_base::{PktBuf, PktPool, Time, TxDesc};
use perimeter_wire::udp::udp_check;
use perimeter_wire::{EtherHdr, FlowKey, IpHdr, MAX_HEADERS, PROTO_UDP, UdpHdr, UdpTemplate};

use super::peer::Peer;
use super::{NicConfig, Shared};
use crate::device::RxFrame;
use crate::pattern::{MAX_SLICE, PERIOD, Pattern};

/// The datagrams of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DatagramConfig {
    /// Octets in each that the peer sends: at least 2, and no more than go whole, else clamped.
    pub size: usize,
    /// The stack's ports, a flow each: the peer sends to them in turns.
    pub ports: Vec<u16>,
    /// The peer's port; its address is the one behind the stack's.
    pub from: u16,
    /// Whether the peer sends, once [`super::PeerHandle::release_datagrams`] was called.
    pub sends: bool,
}

impl DatagramConfig {
    /// From the peer's port `from` to the stack's `ports`, in datagrams of `size` octets; the peer
    /// takes them, and sends none.
    pub fn new(size: usize, from: u16, ports: Vec<u16>) -> DatagramConfig {
        DatagramConfig {
            size,
            ports,
            from,
            sends: false,
        }
    }
}

perimeter_base::setters! {
    DatagramConfig {
        with_size(size: usize),
        with_ports(ports: Vec<u16>),
        with_from(from: u16),
        with_sends(sends: bool),
    }
}

/// Octets that say where in the period the rest is.
const PHASE: usize = 2;

/// Fills a datagram, number `n` of those of its size.
pub fn fill(pattern: &Pattern, n: u64, out: &mut [u8]) {
    let phase = Pattern::phase(n.wrapping_mul(out.len() as u64));
    if let Some((head, rest)) = out.split_first_chunk_mut::<PHASE>() {
        *head = (phase as u16).to_be_bytes();
        rest.copy_from_slice(pattern.at(phase, rest.len().min(MAX_SLICE)));
    }
}

/// Whether a datagram is one that [`fill`] makes.
pub fn right(pattern: &Pattern, data: &[u8]) -> bool {
    let Some((&head, rest)) = data.split_first_chunk::<PHASE>() else {
        return false;
    };
    let phase = usize::from(u16::from_be_bytes(head));
    phase < PERIOD && rest.len() <= MAX_SLICE && rest == pattern.at(phase, rest.len())
}

/// What all queues know of datagrams.
#[derive(Default)]
pub(super) struct Released {
    /// The peer may send.
    pub on: AtomicBool,
    /// How many it has sent.
    pub sent: AtomicU64,
}

/// The peer's datagrams to one receive queue.
pub(super) struct Sender {
    template: UdpTemplate,
    /// Ports of the stack whose flows belong to the queue, and their hashes.
    flows: Vec<(u16, u32)>,
    size: usize,
    /// The datagram that comes next.
    next: u64,
    /// Not before: of a link that is paced.
    at: Time,
}

impl Sender {
    /// `None`: the peer sends none to that queue.
    pub(super) fn new(config: &NicConfig, shared: &Shared, queue: usize) -> Option<Sender> {
        let d = config.peer.datagrams.as_ref().filter(|d| d.sends)?;
        let (us, host) = (config.ip(config.host.to_bits() + 1), config.address());
        let flow = |&port: &u16| {
            let hash = shared.rss.hash_flow(&FlowKey {
                local: us,
                remote: host,
                local_port: d.from,
                remote_port: port,
            });
            (shared.rss.queue(hash) == queue).then_some((port, hash))
        };
        let flows: Vec<_> = d.ports.iter().filter_map(flow).collect();
        let ip = IpHdr {
            src: us,
            dst: host,
            protocol: PROTO_UDP,
            hop_limit: 64,
            tos: 0,
            header_len: 0,
            total_len: 0,
        };
        let headers = config.ip_header() + UdpHdr::LEN;
        let most = (config.mtu as usize).saturating_sub(headers);
        (!flows.is_empty()).then(|| Sender {
            template: UdpTemplate::new(
                Some((config.peer_mac, config.mac)),
                &ip,
                (d.from, d.ports[0]),
                0,
            ),
            flows,
            size: d.size.clamp(PHASE, most.max(PHASE)),
            next: 0,
            at: Time::ZERO,
        })
    }

    /// When the next one comes.
    pub(super) fn due(&self, released: &Released) -> Time {
        match released.on.load(Ordering::Relaxed) {
            true => self.at,
            false => Time::NEVER,
        }
    }

    /// Sends until there are `max` frames in `out`, or the link is busy: a NIC writes as many as
    /// there are buffers posted for, and the peer always has more.
    pub(super) fn send(
        &mut self,
        now: Time,
        shared: &Shared,
        pool: &mut PktPool,
        out: &mut Vec<RxFrame>,
        max: usize,
    ) {
        if self.due(&shared.released) > now {
            return;
        }
        let before = out.len();
        while out.len() < max && self.at <= now {
            let (port, hash) = self.flows[self.next as usize % self.flows.len()];
            let buf = self.frame(port, pool);
            if shared.rx_pacer.is_limited() {
                let len = buf.as_slice().len() + crate::pace::OVERHEAD;
                let sent = shared.rx_pacer.send(now, false, len, u64::MAX);
                self.at = sent.unwrap_or(now);
            }
            out.push(RxFrame {
                buf,
                hash: Some(hash),
                csum_ok: true,
                segment_size: 0,
            });
            self.next += 1;
        }
        let sent = (out.len() - before) as u64;
        shared.released.sent.fetch_add(sent, Ordering::Relaxed);
    }

    fn frame(&self, port: u16, pool: &mut PktPool) -> PktBuf {
        let mut headers = [0; MAX_HEADERS];
        let n = self.template.emit(&mut headers, 0, self.size as u32);
        let udp = self.template.udp_start();
        headers[udp + 2..udp + 4].copy_from_slice(&port.to_be_bytes());
        let mut buf = pool.take(n + self.size);
        let (pattern, raw) = (Pattern::get(), buf.raw_mut());
        fill(pattern, self.next, &mut raw[n..n + self.size]);
        // The template has left the pseudo-header's sum in the field; of the pattern it is known.
        let phase = Pattern::phase(self.next.wrapping_mul(self.size as u64));
        let word = |at: usize| u32::from(u16::from_be_bytes([headers[at], headers[at + 1]]));
        let header = word(udp) + word(udp + 2) + word(udp + 4) + word(udp + 6);
        let sum = header + phase as u32 + pattern.sum(phase, self.size - PHASE);
        headers[udp + 6..udp + 8].copy_from_slice(&udp_check(sum).to_be_bytes());
        raw[..n].copy_from_slice(&headers[..n]);
        buf.set_window(0, n + self.size);
        buf
    }
}

impl Peer {
    /// Takes a frame if it is a datagram to the peer's port, and counts it; one in
    /// [`super::PeerConfig::verify_every`] is compared with what it must be.
    #[inline]
    pub(super) fn datagram(&mut self, d: &TxDesc) -> bool {
        let Some(config) = &self.config.peer.datagrams else {
            return false;
        };
        let h = d.headers();
        let (kind, protocol, udp) = match self.config.v6 {
            true => ([0x86, 0xdd], 20, 54),
            false => ([8, 0], 23, 34),
        };
        let ours = h.len() >= udp + UdpHdr::LEN
            && h[..6] == self.config.peer_mac.0
            && h[12..14] == kind
            && h[protocol] == PROTO_UDP
            && h[udp + 2..udp + 4] == config.from.to_be_bytes();
        if !ours {
            return false;
        }
        let len = u64::from(u16::from_be_bytes([h[udp + 4], h[udp + 5]]));
        let bytes = len.saturating_sub(UdpHdr::LEN as u64);
        // One that stands for several is cut, as the NIC would before the wire.
        let n = match u64::from(d.offload.segment_size) {
            0 => 1,
            size => bytes.div_ceil(size).max(1) as u32,
        };
        self.counts.datagrams += u64::from(n);
        self.counts.datagram_bytes += bytes;
        self.verify_in = self.verify_in.saturating_sub(n);
        if self.verify_in == 0 {
            self.verify_in = self.config.peer.verify_every.max(1);
            self.verify_datagram(d, udp);
        }
        true
    }

    #[cold]
    fn verify_datagram(&mut self, d: &TxDesc, udp: usize) {
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        crate::csum::gather(d, &mut frame);
        crate::csum::complete(&mut frame, d.offload);
        self.counts.verified += 1;
        let each = match usize::from(d.offload.segment_size) {
            0 => usize::MAX,
            size => size,
        };
        if !self.is_right(&frame, (udp, each)) {
            self.counts.verify_errors += 1;
        }
        self.scratch = frame;
    }

    /// Whether that frame has headers that agree with its length, a right checksum, and a payload
    /// of the pattern: in datagrams of `each` octets, the last perhaps with fewer.
    fn is_right(&self, frame: &[u8], (udp, each): (usize, usize)) -> bool {
        let ip = frame.get(EtherHdr::LEN..).unwrap_or_default();
        let ends = match self.config.v6 {
            true => perimeter_wire::Ipv6Hdr::parse(ip).map(IpHdr::from),
            false => perimeter_wire::Ipv4Hdr::parse(ip, true).map(IpHdr::from),
        };
        let (Ok(ip), Some(datagram)) = (ends, frame.get(udp..)) else {
            return false;
        };
        let whole = datagram.get(..ip.total_len as usize - usize::from(ip.header_len));
        let read = whole.map(|d| (UdpHdr::parse(d), d));
        let Some((Ok(hdr), datagram)) = read else {
            return false;
        };
        let mut all = datagram[UdpHdr::LEN..].chunks(each);
        hdr.verify(ip.src, ip.dst, datagram).is_ok() && all.all(|d| right(Pattern::get(), d))
    }
}
