//! Two hosts in virtual time: a pair of connections over a lossy, reordering wire.
#![allow(dead_code, missing_docs)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use bytes::Bytes;
use perimeter_base::{PktBuf, PktPool, Time, TxRing};
use perimeter_tcp::cc::CcKind;
use perimeter_tcp::syncache::{AckAction, ListenParams, SynAction};
use perimeter_tcp::{
    Config, Events, Input, Large, RcvBuf, SegPlan, SndBuf, State, SynCache, Tcb, TcpError,
};
use perimeter_wire::{FlowKey, SegOut, Seq, TcpFlags, TcpHdr, TcpOptions};

/// Xorshift64*: the harness's only randomness.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn chance(&mut self, p: f64) -> bool {
        ((self.next() >> 11) as f64) < p * (1u64 << 53) as f64
    }
}

/// What the wire does to a packet.
#[derive(Clone, Debug)]
pub struct Wire {
    pub delay_us: u64,
    pub jitter_us: u64,
    pub loss: f64,
    pub dup: f64,
    pub reorder: f64,
    /// Bottleneck in Mb/s, 0 for none, with a queue of `queue` packets.
    pub mbps: u64,
    pub queue: u64,
    /// Payloads above this vanish, with an ICMP message if `icmp`.
    pub path_mss: Option<u16>,
    pub icmp: bool,
}

impl Default for Wire {
    fn default() -> Wire {
        Wire {
            delay_us: 5_000,
            jitter_us: 0,
            loss: 0.0,
            dup: 0.0,
            reorder: 0.0,
            mbps: 0,
            queue: 100,
            path_mss: None,
            icmp: false,
        }
    }
}

/// What the application at one end does.
#[derive(Clone, Debug)]
pub struct App {
    pub send: u64,
    /// Largest single write; writes are of random size up to it.
    pub write: u64,
    /// Largest single read; 0 reads all there is at once.
    pub read: u64,
    /// Pause between reads.
    pub read_every_us: u64,
    /// Hand over by reference rather than by copy.
    pub zero_copy: bool,
    /// Close for writing only after the peer's end of stream.
    pub close_last: bool,
}

impl Default for App {
    fn default() -> App {
        App {
            send: 100_000,
            write: 10_000,
            read: 0,
            read_every_us: 0,
            zero_copy: false,
            close_last: false,
        }
    }
}

/// The octet at position `at` of the stream that end `who` sends.
pub fn octet(who: usize, at: u64) -> u8 {
    let x = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (who as u64) << 60;
    (x >> 40) as u8 ^ at as u8
}

pub struct Host {
    pub who: usize,
    pub tcb: Option<Tcb>,
    pub snd: SndBuf,
    pub rcv: RcvBuf,
    pub eof: bool,
    pub pool: PktPool,
    pub cfg: Config,
    pub app: App,
    pub written: u64,
    pub read: u64,
    pub delivered: u64,
    pub released: u64,
    pub read_at: Time,
    pub shut: bool,
    pub events: Events,
    pub error: Option<TcpError>,
    pub max_rto_retries: u8,
    pub last: Option<perimeter_tcp::Info>,
}

impl Host {
    fn new(who: usize, cfg: &Config, app: &App) -> Host {
        Host {
            who,
            tcb: None,
            snd: SndBuf::new(cfg.snd_buf),
            rcv: RcvBuf::new(cfg.rcv_buf),
            eof: false,
            pool: PktPool::new(16),
            cfg: cfg.clone(),
            app: app.clone(),
            written: 0,
            read: 0,
            delivered: 0,
            released: 0,
            read_at: Time::ZERO,
            shut: false,
            events: Events::NONE,
            error: None,
            max_rto_retries: 0,
            last: None,
        }
    }

    pub fn finished(&self) -> bool {
        self.events.contains(Events::CLOSED)
    }
}

/// Settings for a link of 1,500 octets.
pub fn ethernet() -> Config {
    Config::default().with_mss(1460)
}

/// The application reads up to `max` octets; how many it got.
fn read(rcv: &mut RcvBuf, pool: &mut PktPool, max: usize) -> u64 {
    let mut n = 0;
    while let Some(b) = rcv.pop(max - n, pool) {
        n += b.len();
        pool.put(b);
    }
    n as u64
}

pub struct Packet {
    pub hdr: TcpHdr,
    pub payload: Vec<u8>,
}

pub type Eats = Box<dyn FnMut(usize, &TcpHdr, usize) -> bool>;

pub struct Sim {
    pub now: Time,
    pub hosts: [Host; 2],
    pub wire: [Wire; 2],
    pub rng: Rng,
    pub syn: SynCache,
    listening: bool,
    flight: BinaryHeap<(Reverse<(Time, u64)>, usize)>,
    packets: Vec<Option<(usize, Packet)>>,
    busy_until: [Time; 2],
    pub sent: [u64; 2],
    pub dropped: u64,
    pub steps: u64,
    pub trace: bool,
    /// Pushes stand where they stand with large segments.
    pub pushes: bool,
    /// Segments that were larger than the MSS: probes of the path's MTU.
    pub probes: u64,
    /// Segments that the wire eats: by who sends, the header, and the payload's length.
    pub eats: Option<Eats>,
    /// The smallest segment that is tried where full ones vanish.
    pub path_floor: u16,
    /// Large segments are planned, up to this.
    pub large: Option<Large>,
    /// Segments that joined others in those; large ones that end with a partial segment, that have
    /// the FIN, and that begin with what is sent again.
    pub joined: [u64; 4],
    /// Everything sent, if it is to be kept.
    pub log: Option<Vec<String>>,
    iss: [Seq; 2],
    /// The right edge of the window that each end last showed.
    edge: [Option<Seq>; 2],
}

pub struct Setup {
    pub seed: u64,
    pub cfg: [Config; 2],
    pub app: [App; 2],
    pub wire: [Wire; 2],
    pub iss: [u32; 2],
    /// Both ends connect: simultaneous open.
    pub crossing: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            seed: 1,
            cfg: [ethernet(), ethernet()],
            app: [App::default(), App::default()],
            wire: [Wire::default(), Wire::default()],
            iss: [1000, 5_000_000],
            crossing: false,
        }
    }
}

fn key() -> FlowKey {
    FlowKey {
        local: "10.0.0.2".parse().expect("address"),
        remote: "10.0.0.1".parse().expect("address"),
        local_port: 80,
        remote_port: 40_000,
    }
}

impl Sim {
    pub fn new(s: &Setup) -> Sim {
        let now = Time::from_millis(1_000);
        let mut hosts = [0, 1].map(|i| Host::new(i, &s.cfg[i], &s.app[i]));
        let iss = s.iss.map(Seq);
        hosts[0].tcb = Some(Tcb::connect(&s.cfg[0], iss[0], 77, now));
        if s.crossing {
            hosts[1].tcb = Some(Tcb::connect(&s.cfg[1], iss[1], 0xffff_0000, now));
        }
        let mut sim = Sim {
            now,
            hosts,
            wire: s.wire.clone(),
            rng: Rng::new(s.seed),
            syn: SynCache::new(16, 4, 1, 2),
            listening: !s.crossing,
            flight: BinaryHeap::new(),
            packets: Vec::new(),
            busy_until: [now; 2],
            sent: [0; 2],
            dropped: 0,
            steps: 0,
            trace: std::env::var_os("TCP_TRACE").is_some(),
            pushes: false,
            probes: 0,
            eats: None,
            path_floor: 512,
            large: None,
            joined: [0; 4],
            log: None,
            iss,
            edge: [None; 2],
        };
        sim.output(0);
        sim.output(1);
        sim
    }

    /// Runs until both ends are closed; panics if they don't, or if time or work run out.
    pub fn run(&mut self) {
        self.run_until(Time::from_millis(24 * 3_600_000));
        if self.hosts[1].tcb.is_none() && self.syn.stats().timed_out > 0 {
            // The wire ate the handshake's last step six times over: nothing to judge.
            return;
        }
        for h in &self.hosts {
            assert!(
                h.finished(),
                "end {} not closed: {:?}",
                h.who,
                self.summary()
            );
            assert_eq!(h.error, None, "end {}", h.who);
            let peer = &self.hosts[1 - h.who];
            assert_eq!(h.read, peer.app.send, "end {} read all", h.who);
            assert!(h.snd.is_empty(), "end {} released all", h.who);
            assert_eq!(h.released, h.app.send);
        }
    }

    pub fn summary(&self) -> String {
        self.hosts
            .iter()
            .map(|h| {
                let tcb = h.tcb.as_ref();
                format!(
                    "[{:?} written {} read {} queued {} deadline {:?} info {:?}]",
                    tcb.map(Tcb::state),
                    h.written,
                    h.read,
                    h.snd.len(),
                    tcb.map(Tcb::deadline),
                    tcb.map(|t| t.info(self.now)),
                )
            })
            .collect()
    }

    pub fn run_until(&mut self, end: Time) {
        self.applications();
        while self.step(end) {}
    }

    /// The next event; false when nothing is left before `end`.
    pub fn step(&mut self, end: Time) -> bool {
        self.steps += 1;
        assert!(self.steps < 5_000_000, "too much work: {}", self.summary());
        let mut next = self.flight.peek().map_or(Time::NEVER, |p| p.0.0.0);
        for h in &self.hosts {
            if h.finished() {
                continue;
            }
            if let Some(t) = &h.tcb {
                next = next.min(t.deadline());
            }
            if h.app.read_every_us > 0 && !h.rcv.is_empty() {
                next = next.min(h.read_at);
            }
        }
        next = next.min(self.syn.deadline());
        if next == Time::NEVER || next > end {
            return false;
        }
        self.now = self.now.max(next);
        if self.flight.peek().is_some_and(|p| p.0.0.0 <= self.now) {
            if let Some((_, i)) = self.flight.pop()
                && let Some((to, p)) = self.packets[i].take()
            {
                self.deliver(to, p);
            }
        } else {
            self.timers();
        }
        self.applications();
        true
    }

    fn timers(&mut self) {
        for i in 0..2 {
            let now = self.now;
            let h = &mut self.hosts[i];
            if h.finished() {
                continue;
            }
            if let Some(t) = &mut h.tcb
                && t.deadline() <= now
            {
                let o = t.on_timer(now);
                assert!(
                    t.deadline() > now || o.output,
                    "a timer that fires must move"
                );
                h.max_rto_retries = h.max_rto_retries.max(t.info(now).retransmits);
                self.note(i, o.events);
                if let Some(rst) = o.reply {
                    self.emit(i, &rst.seg(), Vec::new());
                }
                if o.output {
                    self.output(i);
                }
            }
        }
        let mut out = Vec::new();
        self.syn.on_timer(self.now, &mut |_, _, seg| out.push(seg));
        for seg in out {
            self.emit(1, &seg, Vec::new());
        }
    }

    fn deliver(&mut self, to: usize, p: Packet) {
        if self.trace {
            eprintln!(
                "{:?} {} < {:?} seq {} ack {} len {} win {} {:?}",
                self.now,
                to,
                p.hdr.flags,
                p.hdr.seq,
                p.hdr.ack,
                p.payload.len(),
                p.hdr.window,
                p.hdr.opts
            );
        }
        if self.hosts[to].tcb.is_none() {
            self.passive(to, &p);
            if self.hosts[to].tcb.is_none() {
                return;
            }
        }
        if self.hosts[to].finished() {
            let len = p.payload.len() as u32;
            if let Some(rst) = perimeter_tcp::Rst::answering(&p.hdr, len) {
                self.emit(to, &rst.seg(), Vec::new());
            }
            return;
        }
        let now = self.now;
        let h = &mut self.hosts[to];
        let Some(t) = &mut h.tcb else { return };
        // As a device would deliver it: headers before the payload, room behind.
        let data = (!p.payload.is_empty()).then(|| {
            let mut b = h.pool.take(66 + p.payload.len());
            b.raw_mut()[66..66 + p.payload.len()].copy_from_slice(&p.payload);
            b.set_window(66, p.payload.len());
            b
        });
        let mut input = Input::default();
        t.input(&p.hdr, data, now, &mut input);
        if self.trace {
            let i = t.info(now);
            eprintln!(
                "    {to} {:?} {:?} rto {:?} srtt {:?} cwnd {} ssthresh {} flight {} {input:?}",
                i.state, i.ca_state, i.rto, i.srtt, i.snd_cwnd, i.snd_ssthresh, i.in_flight
            );
        }
        if input.acked > 0 {
            h.snd.ack(input.acked);
            h.released = h.snd.pages.released();
        }
        let take = |h: &mut Host, b: PktBuf| {
            for (i, &x) in b.as_slice().iter().enumerate() {
                let at = h.delivered + i as u64;
                assert_eq!(x, octet(1 - h.who, at), "octet {at} at end {}", h.who);
            }
            h.delivered += b.len() as u64;
            h.rcv.push(b, &mut h.pool);
        };
        if let Some(b) = input.data {
            take(h, b);
        }
        if input.more {
            while let Some(b) = h.tcb.as_mut().and_then(Tcb::next_in_order) {
                take(h, b);
            }
        }
        if input.events.contains(Events::EOF) {
            h.eof = true;
        }
        assert!(h.rcv.len() <= h.cfg.rcv_buf + (1 << 14), "window respected");
        if let Some(rst) = input.reply {
            self.emit(to, &rst.seg(), Vec::new());
        }
        self.note(to, input.events);
        if input.output {
            self.output(to);
        }
    }

    /// The listener at end 1.
    fn passive(&mut self, to: usize, p: &Packet) {
        if to != 1 || !self.listening {
            return;
        }
        let cfg = self.hosts[1].cfg.clone();
        let params = ListenParams {
            mss: cfg.mss,
            rcv_wnd: cfg.rcv_buf,
            wscale: cfg.wscale(),
            timestamps: cfg.timestamps,
            sack: cfg.sack,
            full: false,
            reuse: false,
            tag: 1,
            origin: 0,
            from: None,
        };
        if p.hdr.flags.contains(TcpFlags::SYN) {
            if let SynAction::SendSynAck(seg) | SynAction::SendCookie(seg) =
                self.syn
                    .on_syn(key(), &p.hdr, &params, self.iss[1], 0xffff_f000, self.now)
            {
                self.emit(1, &seg, Vec::new());
            }
        } else if p.hdr.flags.contains(TcpFlags::ACK)
            && let AckAction::Established(e) = self.syn.on_ack(&key(), &p.hdr, self.now)
        {
            self.hosts[1].tcb = Some(Tcb::accept(&cfg, &e, self.now));
            self.note(1, Events::CONNECTED);
        }
    }

    fn note(&mut self, i: usize, e: Events) {
        let now = self.now;
        let h = &mut self.hosts[i];
        h.events |= e;
        if let Some(t) = &mut h.tcb {
            if e.contains(Events::ERROR) {
                h.error = t.take_error();
            }
            if e.contains(Events::CLOSED) {
                h.last = Some(t.info(now));
                assert_eq!(t.state(), State::Closed);
            }
        }
    }

    /// Both applications do what they can.
    fn applications(&mut self) {
        for i in 0..2 {
            let now = self.now;
            let h = &mut self.hosts[i];
            let finished = h.finished();
            let Some(t) = &mut h.tcb else { continue };
            if finished {
                // What is left can be read after the end.
                h.read += read(&mut h.rcv, &mut h.pool, usize::MAX);
                continue;
            }
            let mut output = false;
            if !h.rcv.is_empty() && now >= h.read_at {
                let max = match h.app.read {
                    0 => usize::MAX,
                    n => 1 + self.rng.below(n) as usize,
                };
                h.read += read(&mut h.rcv, &mut h.pool, max);
                h.read_at = Time(now.0 + h.app.read_every_us * 1000);
                output |= t.app_read(h.rcv.space(), h.rcv.limit());
            }
            let connected = t.state().is_synchronized() && t.state() != State::TimeWait;
            while connected && h.written < h.app.send && h.snd.space() > 0 {
                let most = h.app.write.min(h.app.send - h.written);
                let n = (1 + self.rng.below(most)).min(u64::from(h.snd.space()));
                let bytes: Vec<u8> = (0..n).map(|k| octet(i, h.written + k)).collect();
                if h.app.zero_copy {
                    h.snd.push(Bytes::from(bytes));
                } else {
                    assert_eq!(h.snd.push_copy(&bytes) as u64, n);
                }
                h.written += n;
                output = true;
            }
            let may_close = !h.app.close_last || h.eof;
            if connected && !h.shut && h.written == h.app.send && may_close {
                h.shut = true;
                output |= t.shutdown_write(now);
            }
            if output {
                self.output(i);
            }
        }
    }

    pub fn output(&mut self, i: usize) {
        let now = self.now;
        for _ in 0..10_000 {
            let h = &mut self.hosts[i];
            let Some(t) = &mut h.tcb else { return };
            t.set_large(self.pushes);
            t.set_path_floor(self.path_floor);
            let nxt = t.snd_nxt();
            let planned = match self.large {
                Some(most) => t.plan_large(h.snd.queued(), most, now),
                None => t.plan(h.snd.queued(), now),
            };
            let Some(plan) = planned else {
                return;
            };
            let joins = plan.segs > 1;
            let partial = joins && plan.len < u32::from(plan.size) * u32::from(plan.segs);
            let fin = joins && plan.seg.flags.contains(TcpFlags::FIN);
            let again = joins && plan.seg.seq.lt(nxt);
            let also = [
                u64::from(plan.segs) - 1,
                partial.into(),
                fin.into(),
                again.into(),
            ];
            self.joined.iter_mut().zip(also).for_each(|(n, m)| *n += m);
            for plan in (0..plan.segs).map(|n| plan.segment(n)) {
                let payload = self.payload(i, &plan);
                self.emit(i, &plan.seg, payload);
            }
        }
        panic!("plan never ends: {}", self.summary());
    }

    fn payload(&mut self, i: usize, plan: &SegPlan) -> Vec<u8> {
        let h = &mut self.hosts[i];
        let mut ring = TxRing::new(1);
        let mut slot = ring.push().expect("an empty ring");
        h.snd.refer(plan.off, plan.len, &mut slot, &mut h.pool);
        let out: Vec<u8> = ring.pending()[0].payload().flatten().copied().collect();
        let len = out.len();
        assert_eq!(len, plan.len as usize, "all of the payload is queued");
        let mut copy = vec![0; len];
        assert_eq!(h.snd.copy(plan.off, &mut copy), len);
        assert_eq!(copy, out);
        out
    }

    /// The right edge never moves left (RFC 9293, section 3.8.6), but for what the scale can't
    /// express.
    fn check_window(&mut self, from: usize, seg: &SegOut) {
        let synced = seg.flags.contains(TcpFlags::ACK)
            && !seg.flags.intersects(TcpFlags::SYN | TcpFlags::RST);
        let Some(t) = self.hosts[from].tcb.as_ref().filter(|_| synced) else {
            return;
        };
        let shift = t.info(self.now).rcv_wscale.unwrap_or(0);
        let edge = seg.ack + (u32::from(seg.window) << shift);
        if let Some(last) = self.edge[from] {
            assert!(
                edge.diff(last) > -(1 << shift),
                "window of end {from} shrank"
            );
        }
        let last = self.edge[from].unwrap_or(edge);
        self.edge[from] = Some(last.max(edge));
    }

    fn emit(&mut self, from: usize, seg: &SegOut, payload: Vec<u8>) {
        let to = 1 - from;
        if self.trace {
            eprintln!(
                "{:?} {} > {:?} seq {} ack {} len {} win {} {:?}",
                self.now,
                from,
                seg.flags,
                seg.seq,
                seg.ack,
                payload.len(),
                seg.window,
                seg.opts
            );
        }
        self.check_window(from, seg);
        if let Some(log) = &mut self.log {
            let mut sum = DefaultHasher::new();
            payload.hash(&mut sum);
            let (len, sum) = (payload.len(), sum.finish());
            log.push(format!("{:?} {from} {seg:?} {len} {sum:x}", self.now));
        }
        let mut hdr = seg.to_hdr(1, 2);
        // Through the wire format, which limits options to what fits.
        let syn = hdr.flags.contains(TcpFlags::SYN);
        let mut area = [0; 40];
        let n = hdr.opts.emit(syn, &mut area);
        let ts = if hdr.opts.ts.is_some() { 12 } else { 0 };
        let h = &self.hosts[from];
        let (mss, adv) = h.tcb.as_ref().map_or((0, 0), |t| (t.mss(), t.adv_mss()));
        let probe = !payload.is_empty() && payload.len() + n > usize::from(mss) + ts;
        if probe {
            // Only a probe of the path is larger, and it has been sent once by itself.
            self.probes += 1;
            let most = usize::from(adv.min(self.hosts[to].cfg.mss));
            let (len, on) = (payload.len() + n, h.cfg.mtu_probing);
            assert!(on && len <= most, "{len} above the MSS {mss}");
        }
        hdr.opts = TcpOptions::parse(&area[..n], syn).0;
        self.sent[from] += 1;
        let w = self.wire[from].clone();
        if let Some(max) = w.path_mss
            && payload.len() + n > usize::from(max)
        {
            self.dropped += 1;
            if w.icmp {
                let now = self.now;
                if let Some(t) = &mut self.hosts[from].tcb
                    && t.on_packet_too_big(max + 40, hdr.seq, now)
                {
                    // The caller's loop goes on.
                }
            }
            return;
        }
        let eaten = self.eats.as_mut();
        if eaten.is_some_and(|eats| eats(from, &hdr, payload.len())) || self.rng.chance(w.loss) {
            self.dropped += 1;
            return;
        }
        let copies = 1 + usize::from(self.rng.chance(w.dup));
        for _ in 0..copies {
            let mut at = self.now;
            if let Some(ns) = ((payload.len() as u64 + 78) * 8_000).checked_div(w.mbps) {
                let start = self.busy_until[from].max(self.now);
                // By packets of full size: small ones fit no worse.
                let full = 1538 * 8_000 / w.mbps;
                if start.nanos_since(self.now) > w.queue * full.max(ns) {
                    self.dropped += 1;
                    return;
                }
                at = start.plus(ns);
                self.busy_until[from] = at;
            }
            let mut delay = w.delay_us * 1000 + self.rng.below(w.jitter_us * 1000 + 1);
            if self.rng.chance(w.reorder) {
                delay += w.delay_us * 1000 / 2 + self.rng.below(w.delay_us * 1000 + 1);
            }
            let id = self.packets.len();
            self.packets.push(Some((
                to,
                Packet {
                    hdr,
                    payload: payload.clone(),
                },
            )));
            self.flight.push((Reverse((at.plus(delay), id as u64)), id));
        }
    }
}

/// A configuration drawn from `rng`.
pub fn random_config(rng: &mut Rng) -> Config {
    let bufs = [3_000u32, 20_000, 65_535, 256 * 1024];
    Config::default()
        .with_mss([536, 1460, 8960][rng.below(3) as usize])
        .with_window_scale(!rng.chance(0.2))
        .with_timestamps(!rng.chance(0.3))
        .with_sack(!rng.chance(0.3))
        .with_rcv_buf(bufs[rng.below(4) as usize])
        .with_snd_buf(bufs[rng.below(4) as usize])
        .with_congestion(if rng.chance(0.5) {
            CcKind::Cubic
        } else {
            CcKind::NewReno
        })
        .with_nodelay(rng.chance(0.3))
        // At 30 % loss a FIN may need longer than the usual minute.
        .with_time_wait(Duration::from_secs(1800))
        .with_syn_retries(30)
        .with_orphan_retries(30)
        .with_data_retries(30)
}
