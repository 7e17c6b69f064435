//! Packet scripts: a subset of packetdrill's language, run against one connection in virtual
//! time. Several segments are added up to match one longer packet, as packetdrill does.
#![allow(dead_code, missing_docs)]

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use perimeter_base::{PktBuf, PktPool, Time};
use perimeter_tcp::syncache::{AckAction, ListenParams, SynAction};
use perimeter_tcp::{
    CaState, Config, Events, Info, Input, RcvBuf, Rst, SndBuf, State, SynCache, Tcb, TcpError,
};
use perimeter_wire::{FlowKey, SegOut, Seq, TcpFlags, TcpHdr, TcpOptions};

/// How far a packet may be from its time in the script.
const TOLERANCE_US: i64 = 4_000;

/// Where the script's sequence number 0 lies, for both directions: near the wrap.
#[derive(Clone, Debug)]
pub struct Options {
    pub cfg: Config,
    pub local_isn: u32,
    pub remote_isn: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            // Scripts about timeouts would see a probe in place of the first, or recovery.
            cfg: Config::default()
                .with_loss_probe(false)
                .with_mtu_probing(false)
                .with_reorder_timer(false)
                .with_mss(1460),
            local_isn: 0x1000_0000,
            remote_isn: 0x2000_0000,
        }
    }
}

struct Sent {
    at: Time,
    seg: SegOut,
    len: u32,
}

pub struct Script {
    pub now: Time,
    pub tcb: Option<Tcb>,
    pub snd: SndBuf,
    pub rcv: RcvBuf,
    pool: PktPool,
    pub events: Events,
    pub error: Option<TcpError>,
    pub delivered: u64,
    o: Options,
    syn: SynCache,
    listening: bool,
    closed: bool,
    sent: VecDeque<Sent>,
    ts_base: Option<u32>,
    ts_offset: u32,
    start: Time,
    max_seg: Option<u16>,
    corked: bool,
}

type Res<T> = Result<T, String>;

fn key() -> FlowKey {
    FlowKey {
        local: "192.168.0.1".parse().expect("address"),
        remote: "192.0.2.1".parse().expect("address"),
        local_port: 8080,
        remote_port: 53_055,
    }
}

/// A packet as a script writes it.
#[derive(Debug, Default)]
struct Pkt {
    flags: TcpFlags,
    start: u32,
    len: u32,
    ack: Option<u32>,
    win: Option<u32>,
    opts: TcpOptions,
    any_opts: bool,
}

impl Script {
    pub fn new(o: Options) -> Script {
        let start = Time::from_millis(100_000);
        Script {
            now: start,
            tcb: None,
            snd: SndBuf::new(u32::MAX >> 2),
            rcv: RcvBuf::new(o.cfg.rcv_buf),
            pool: PktPool::new(0),
            events: Events::NONE,
            error: None,
            delivered: 0,
            syn: SynCache::new(4, 4, 1, 2),
            listening: false,
            closed: false,
            sent: VecDeque::new(),
            ts_base: None,
            ts_offset: 0xffff_fffd,
            start,
            max_seg: None,
            corked: false,
            o,
        }
    }

    /// Runs the whole text; the error names the line.
    pub fn run(&mut self, text: &str) -> Res<()> {
        let mut lines = text.lines().enumerate();
        while let Some((n, line)) = lines.next() {
            let mut stmt = strip(line).to_owned();
            let open = |s: &str| {
                (s.contains("%{") && !s.contains("}%"))
                    || s.matches('`').count() % 2 == 1
                    || s.matches('(').count() > s.matches(')').count()
            };
            while open(&stmt) {
                let Some((_, more)) = lines.next() else { break };
                stmt.push('\n');
                stmt.push_str(if stmt.contains("%{") {
                    more
                } else {
                    strip(more)
                });
            }
            self.statement(stmt.trim())
                .map_err(|e| format!("line {}: {}\n    {e}", n + 1, stmt.trim()))?;
        }
        Ok(())
    }

    /// Runs the text and panics where it fails.
    pub fn go(&mut self, text: &str) {
        if let Err(e) = self.run(text) {
            panic!(
                "local {:#x}, remote {:#x}: {e}",
                self.o.local_isn, self.o.remote_isn
            );
        }
    }

    fn statement(&mut self, stmt: &str) -> Res<()> {
        if stmt.is_empty() || stmt.starts_with("--") || stmt.starts_with('`') {
            return Ok(());
        }
        let (when, rest) = stmt.split_once(char::is_whitespace).ok_or("no statement")?;
        let rest = rest.trim();
        let mut from = self.now;
        let mut until = from;
        let absolute = !when.starts_with('+');
        let mut ends = when.split(['~']).flat_map(|w| w.split("..."));
        let first = ends.next().unwrap_or("0");
        let us = micros(first.trim_start_matches('+'))?;
        if absolute {
            from = Time(self.start.0 + us * 1000);
        } else {
            from = Time(from.0 + us * 1000);
        }
        until = until.max(from);
        if when.contains('~')
            && let Some(second) = ends.next()
        {
            until = Time(self.now.0 + micros(second.trim_start_matches('+'))? * 1000);
        }
        if let Some(pkt) = rest.strip_prefix('>') {
            return self.expect(&parse(pkt)?, from, until);
        }
        self.advance(from);
        if let Some(pkt) = rest.strip_prefix('<') {
            let pkt = parse(pkt)?;
            self.inject(&pkt);
            return Ok(());
        }
        if rest.starts_with("%{") {
            return self.assertions(rest);
        }
        if rest.starts_with('`') {
            return Ok(());
        }
        self.call(rest)
    }

    /// Lets time pass, firing timers when they are due.
    pub fn advance(&mut self, to: Time) {
        for _ in 0..100_000 {
            let tcb = self.tcb.as_ref().map_or(Time::NEVER, Tcb::deadline);
            let due = tcb.min(self.syn.deadline());
            if due > to {
                break;
            }
            self.now = self.now.max(due);
            self.timers();
        }
        self.now = self.now.max(to);
    }

    fn timers(&mut self) {
        let now = self.now;
        let mut out = Vec::new();
        self.syn.on_timer(now, &mut |_, _, seg| out.push(seg));
        for seg in out {
            self.emit(seg, 0);
        }
        let Some(t) = &mut self.tcb else { return };
        if t.deadline() > now {
            return;
        }
        let o = t.on_timer(now);
        self.note(o.events);
        if let Some(rst) = o.reply {
            self.emit(rst.seg(), 0);
        }
        if o.output {
            self.output();
        }
    }

    fn note(&mut self, e: Events) {
        self.events |= e;
        if e.contains(Events::ERROR)
            && let Some(t) = &mut self.tcb
        {
            self.error = t.take_error();
        }
        self.closed |= e.contains(Events::CLOSED);
    }

    pub fn output(&mut self) {
        for _ in 0..10_000 {
            let Some(t) = &mut self.tcb else { return };
            let Some(p) = t.plan(self.snd.queued(), self.now) else {
                return;
            };
            assert!(p.off + p.len <= self.snd.len(), "planned payload is queued");
            self.emit(p.seg, p.len);
        }
        panic!("plan never ends");
    }

    /// Whatever was sent so far is not looked at.
    pub fn forget_sent(&mut self) {
        self.sent.clear();
    }

    fn emit(&mut self, seg: SegOut, len: u32) {
        if std::env::var_os("TCP_TRACE").is_some() {
            eprintln!(
                "{:9.6} > {:?} {}:{}({}) ack {} win {} {:?}",
                self.now.nanos_since(self.start) as f64 / 1e9,
                seg.flags,
                seg.seq.0.wrapping_sub(self.o.local_isn),
                seg.seq.0.wrapping_sub(self.o.local_isn).wrapping_add(len),
                len,
                seg.ack.0.wrapping_sub(self.o.remote_isn),
                seg.window,
                seg.opts.sack,
            );
        }
        self.sent.push_back(Sent {
            at: self.now,
            seg,
            len,
        });
    }

    fn inject(&mut self, p: &Pkt) {
        let mut hdr = TcpHdr {
            src_port: 53_055,
            dst_port: 8080,
            seq: Seq(p.start.wrapping_add(self.o.remote_isn)),
            ack: Seq(p.ack.unwrap_or(0).wrapping_add(self.o.local_isn)),
            flags: p.flags,
            window: p.win.unwrap_or(0xffff) as u16,
            urgent: 0,
            opts: p.opts,
        };
        if p.ack.is_none() {
            hdr.ack = Seq(0);
        }
        if let Some((val, ecr)) = p.opts.ts {
            let base = self.ts_base.unwrap_or(0);
            let ecr = if p.ack.is_some() {
                ecr.wrapping_add(base)
            } else {
                0
            };
            hdr.opts.ts = Some((val, ecr));
        }
        hdr.opts.sack.clear();
        for &(l, r) in p.opts.sack.as_slice() {
            hdr.opts.sack.push(
                Seq(l.0.wrapping_add(self.o.local_isn)),
                Seq(r.0.wrapping_add(self.o.local_isn)),
            );
        }
        let data = (p.len > 0).then(|| {
            let mut b = PktBuf::with_capacity(66 + p.len as usize);
            b.set_window(66, p.len as usize);
            b
        });
        self.segment(&hdr, data);
    }

    /// A segment arrives.
    pub fn segment(&mut self, hdr: &TcpHdr, data: Option<PktBuf>) {
        let len = data.as_ref().map_or(0, |d| d.len() as u32);
        if self.tcb.is_none() && self.listening {
            self.passive(hdr);
        }
        let now = self.now;
        let Some(t) = self.tcb.as_mut().filter(|_| !self.closed) else {
            if (self.closed || !self.listening)
                && let Some(rst) = Rst::answering(hdr, len)
            {
                self.emit(rst.seg(), 0);
            }
            return;
        };
        let mut i = Input::default();
        t.input(hdr, data, now, &mut i);
        if i.acked > 0 {
            self.snd.ack(i.acked);
        }
        if let Some(b) = i.data.take() {
            self.delivered += b.len() as u64;
            self.rcv.push(b, &mut self.pool);
        }
        if i.more {
            while let Some(b) = self.tcb.as_mut().and_then(Tcb::next_in_order) {
                self.delivered += b.len() as u64;
                self.rcv.push(b, &mut self.pool);
            }
        }
        if let Some(rst) = i.reply {
            self.emit(rst.seg(), 0);
        }
        self.note(i.events);
        if i.output {
            self.output();
        }
    }

    fn passive(&mut self, hdr: &TcpHdr) {
        let mut cfg = self.o.cfg.clone();
        cfg.mss = self.max_seg.unwrap_or(cfg.mss);
        let l = ListenParams {
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
        let (iss, now) = (Seq(self.o.local_isn), self.now);
        if hdr.flags.contains(TcpFlags::SYN) {
            if let SynAction::SendSynAck(seg) | SynAction::SendCookie(seg) =
                self.syn.on_syn(key(), hdr, &l, iss, self.ts_offset, now)
            {
                self.emit(seg, 0);
            }
        } else if let AckAction::Established(e) = self.syn.on_ack(&key(), hdr, now) {
            self.tcb = Some(Tcb::accept(&cfg, &e, now));
            self.note(Events::CONNECTED);
        }
    }

    fn expect(&mut self, want: &Pkt, from: Time, until: Time) -> Res<()> {
        let late = Time(until.0 + TOLERANCE_US as u64 * 1000);
        while self.sent.is_empty() {
            let tcb = self.tcb.as_ref().map_or(Time::NEVER, Tcb::deadline);
            let due = tcb.min(self.syn.deadline());
            if due > late {
                self.now = until;
                return Err(format!(
                    "nothing sent; next timer at {due:?}, now {:?}",
                    self.now
                ));
            }
            self.advance(due);
        }
        let mut got = 0;
        let mut first = None;
        loop {
            let Some(s) = self.sent.pop_front() else {
                return Err(format!("{got} of {} octets were sent", want.len));
            };
            let early = (from.0 as i64 - s.at.0 as i64) / 1000;
            if early > TOLERANCE_US || s.at > late {
                return Err(format!("sent at {:?}, not {from:?}..{until:?}", s.at));
            }
            let start = *first.get_or_insert(s.seg.seq.0.wrapping_sub(self.o.local_isn));
            got += s.len;
            let shown = format!(
                "sent {:?} {start}:{}({got}) ack {} {:?}",
                s.seg.flags,
                start.wrapping_add(got),
                s.seg.ack.0.wrapping_sub(self.o.remote_isn),
                s.seg.opts
            );
            if got < want.len {
                continue;
            }
            if got > want.len || start != want.start || s.seg.flags != want.flags {
                return Err(shown);
            }
            let ack = s.seg.ack.0.wrapping_sub(self.o.remote_isn);
            if want.ack.is_some_and(|a| a != ack) {
                return Err(shown);
            }
            if want.win.is_some_and(|w| w != u32::from(s.seg.window)) {
                return Err(format!("{shown} win {}", s.seg.window));
            }
            self.now = self.now.max(from.min(until));
            return self
                .compare_options(want, &s.seg)
                .map_err(|e| format!("{shown}: {e}"));
        }
    }

    fn compare_options(&mut self, want: &Pkt, seg: &SegOut) -> Res<()> {
        if want.any_opts {
            return Ok(());
        }
        let (w, s) = (&want.opts, &seg.opts);
        let syn = seg.flags.contains(TcpFlags::SYN);
        if syn && (w.mss, w.wscale, w.sack_permitted) != (s.mss, s.wscale, s.sack_permitted) {
            return Err("SYN options differ".into());
        }
        let mut sack = Vec::new();
        for &(l, r) in s.sack.as_slice() {
            sack.push((
                Seq(l.0.wrapping_sub(self.o.remote_isn)),
                Seq(r.0.wrapping_sub(self.o.remote_isn)),
            ));
        }
        if sack != w.sack.as_slice() {
            return Err("SACK differs".into());
        }
        match (w.ts, s.ts) {
            (None, None) => Ok(()),
            (Some((val, ecr)), Some((sval, secr))) => {
                let base = *self.ts_base.get_or_insert(sval.wrapping_sub(val));
                let diff = sval.wrapping_sub(base).wrapping_sub(val) as i32;
                if diff.abs() > 10 || ecr != secr {
                    return Err(format!("timestamp {} {secr}", sval.wrapping_sub(base)));
                }
                Ok(())
            }
            _ => Err("timestamp option".into()),
        }
    }

    fn call(&mut self, rest: &str) -> Res<()> {
        let (name, args) = rest.split_once('(').ok_or("unknown statement")?;
        let number = |s: &str| -> Res<u64> {
            let digits: String = s.chars().filter(char::is_ascii_digit).collect();
            digits.parse().map_err(|_| format!("number in {s:?}"))
        };
        let arg = |i: usize| args.split(',').nth(i).unwrap_or("").trim();
        let now = self.now;
        match name {
            "socket" | "bind" | "fcntl" | "accept" | "getsockopt" | "epoll_create" => {}
            "listen" => self.listening = true,
            "connect" => {
                let mut cfg = self.o.cfg.clone();
                cfg.mss = self.max_seg.unwrap_or(cfg.mss);
                let iss = Seq(self.o.local_isn);
                self.tcb = Some(Tcb::connect(&cfg, iss, self.ts_offset, now));
                if self.corked {
                    self.tcb.as_mut().map(|t| t.set_cork(true));
                }
                self.output();
            }
            "write" | "send" | "sendmsg" => {
                if rest.contains("= -1") {
                    return Ok(());
                }
                let n = number(rest.rsplit('=').next().unwrap_or(""))?;
                self.snd.set_more(rest.contains("MSG_MORE"));
                self.snd.push(Bytes::from(vec![0; n as usize]));
                self.output();
            }
            "read" | "recv" => {
                let n = number(arg(1).trim_start_matches("..."))
                    .or_else(|_| number(arg(2).split(')').next().unwrap_or("")))?;
                let mut left = n as usize;
                while let Some(b) = self.rcv.pop(left, &mut self.pool) {
                    left -= b.len();
                }
                let (space, limit) = (self.rcv.space(), self.rcv.limit());
                let told = |t: &mut Tcb| t.app_read(space, limit);
                if self.tcb.as_mut().is_some_and(told) {
                    self.output();
                }
            }
            "shutdown" => self.shutdown(arg(1)),
            "close" => self.close(),
            "setsockopt" => self.set(arg(2), args)?,
            _ => return Err(format!("unknown call {name}")),
        }
        Ok(())
    }

    fn shutdown(&mut self, how: &str) {
        let now = self.now;
        let Some(t) = &mut self.tcb else { return };
        if how.contains("WR") && t.shutdown_write(now) {
            self.output();
        }
    }

    fn close(&mut self) {
        let now = self.now;
        let unread = !self.rcv.is_empty();
        let Some(t) = &mut self.tcb else { return };
        if unread {
            if let Some(rst) = t.abort(now) {
                self.emit(rst.seg(), 0);
            }
            self.closed = true;
        } else if t.close(now) {
            self.output();
        } else if t.state() == State::Closed {
            self.closed = true;
        }
    }

    fn set(&mut self, option: &str, args: &str) -> Res<()> {
        let value = args
            .split_once('[')
            .and_then(|(_, v)| v.split_once(']'))
            .and_then(|(v, _)| v.trim().parse::<u32>().ok());
        let v = value.unwrap_or(0);
        match option {
            "TCP_MAXSEG" => self.max_seg = Some(v as u16),
            "TCP_NODELAY" => {
                self.o.cfg.nodelay = v != 0;
                if self.tcb.as_mut().is_some_and(|t| t.set_nodelay(v != 0)) {
                    self.output();
                }
            }
            "TCP_CORK" => {
                self.corked = v != 0;
                if self.tcb.as_mut().is_some_and(|t| t.set_cork(v != 0)) {
                    self.output();
                }
            }
            "TCP_USER_TIMEOUT" => {
                let t = (v > 0).then(|| Duration::from_millis(u64::from(v)));
                if let Some(tcb) = &mut self.tcb {
                    tcb.set_user_timeout(t);
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub fn info(&self) -> Info {
        self.tcb.as_ref().expect("a connection").info(self.now)
    }

    /// `assert NAME == NUMBER` and `assert tcpi_ca_state == TCP_CA_X`; anything else is let
    /// pass.
    fn assertions(&mut self, text: &str) -> Res<()> {
        let text = text
            .trim_start_matches("%{")
            .split("}%")
            .next()
            .unwrap_or("");
        for part in text.split(['\n', ';']) {
            let part = part.trim().trim_end_matches('\\').trim();
            let Some(expr) = part.strip_prefix("assert ") else {
                continue;
            };
            let expr = expr.split([',', '#']).next().unwrap_or(expr);
            let Some((name, want)) = expr.split_once("==") else {
                continue;
            };
            let (name, want) = (name.trim(), want.trim());
            if self.tcb.is_none() {
                return Err("no connection".into());
            }
            let i = self.info();
            if name == "tcpi_ca_state" {
                let is = match i.ca_state {
                    CaState::Open => "TCP_CA_Open",
                    CaState::Disorder => "TCP_CA_Disorder",
                    CaState::Recovery => "TCP_CA_Recovery",
                    CaState::Loss => "TCP_CA_Loss",
                };
                if is != want {
                    return Err(format!("{name} is {is}"));
                }
                continue;
            }
            let is = match name {
                "tcpi_snd_cwnd" => i.snd_cwnd,
                "tcpi_snd_ssthresh" => i.snd_ssthresh,
                "tcpi_unacked" => i.unacked,
                "tcpi_sacked" => i.sacked,
                "tcpi_lost" => i.lost,
                "tcpi_retrans" => i.retrans,
                "tcpi_reordering" => i.reordering,
                "tcpi_advmss" => i.adv_mss,
                "tcpi_snd_mss" => i.snd_mss,
                "tcpi_probes" => u32::from(i.probes),
                "tcpi_backoff" => u32::from(i.backoff),
                _ => continue,
            };
            let want: u32 = match want {
                "TCP_INFINITE_SSTHRESH" => u32::MAX,
                w => match w.parse() {
                    Ok(n) => n,
                    Err(_) => continue,
                },
            };
            if is != want {
                return Err(format!("{name} is {is}"));
            }
        }
        Ok(())
    }
}

fn strip(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}

/// Seconds with decimals, in microseconds.
fn micros(s: &str) -> Res<u64> {
    let s: f64 = s.trim().parse().map_err(|_| format!("time {s:?}"))?;
    Ok((s * 1e6).round() as u64)
}

fn parse(text: &str) -> Res<Pkt> {
    let mut p = Pkt::default();
    let (head, opts) = match text.split_once('<') {
        Some((h, o)) => (h, Some(o.trim_end().trim_end_matches('>'))),
        None => (text, None),
    };
    let mut words = head.split_whitespace();
    for c in words.next().ok_or("flags")?.chars() {
        p.flags |= match c {
            'S' => TcpFlags::SYN,
            'F' => TcpFlags::FIN,
            'R' => TcpFlags::RST,
            'P' => TcpFlags::PSH,
            '.' => TcpFlags::ACK,
            'U' => TcpFlags::URG,
            _ => return Err(format!("flag {c}")),
        };
    }
    let range = words.next().ok_or("sequence")?;
    let (start, rest) = range.split_once(':').ok_or("sequence")?;
    let len = rest.split(['(', ')']).nth(1).ok_or("length")?;
    p.start = start.parse().map_err(|_| "start")?;
    p.len = len.parse().map_err(|_| "length")?;
    while let Some(word) = words.next() {
        let value = words.next().ok_or("value")?;
        let value: u32 = value.parse().map_err(|_| format!("value {value:?}"))?;
        match word {
            "ack" => p.ack = Some(value),
            "win" => p.win = Some(value),
            _ => return Err(format!("word {word}")),
        }
    }
    let Some(opts) = opts else { return Ok(p) };
    for opt in opts.split(',') {
        let words: Vec<&str> = opt.split_whitespace().collect();
        let n = |i: usize| -> Res<u32> {
            let w = words.get(i).ok_or("option value")?;
            w.parse().map_err(|_| format!("option {w}"))
        };
        match words.first().copied() {
            Some("mss") => p.opts.mss = Some(n(1)? as u16),
            Some("wscale") => p.opts.wscale = Some(n(1)? as u8),
            Some("sackOK") => p.opts.sack_permitted = true,
            Some("TS") => p.opts.ts = Some((n(2)?, n(4)?)),
            Some("sack") => {
                for b in &words[1..] {
                    let (l, r) = b.split_once(':').ok_or("block")?;
                    let q = |s: &str| s.parse().map(Seq).map_err(|_| format!("block {b}"));
                    p.opts.sack.push(q(l)?, q(r)?);
                }
            }
            Some("...") => p.any_opts = true,
            _ => {}
        }
    }
    Ok(p)
}

/// Where the sequence numbers start: everything is run again across 2\u{b3}\u{b2}.
pub const ISNS: [(u32, u32); 4] = [
    (0x1000_0000, 0x2000_0000),
    (u32::MAX - 1, u32::MAX - 1),
    (u32::MAX - 2500, u32::MAX - 1500),
    (0x7fff_ffff, 0x8000_0000),
];

/// Runs `f` with a fresh script for each start, with the settings changed by `change`.
pub fn with(change: impl Fn(&mut Config), f: impl Fn(&mut Script)) {
    for (local_isn, remote_isn) in ISNS {
        let mut o = Options {
            local_isn,
            remote_isn,
            ..Options::default()
        };
        change(&mut o.cfg);
        f(&mut Script::new(o));
    }
}

/// Runs one script over a passively opened connection with SACK and an MSS of 1000.
pub fn sack(text: &str) {
    with(
        |_| {},
        |s| {
            s.go(OPEN_SACK);
            s.go(text);
        },
    );
}

/// The same without SACK.
pub fn reno(text: &str) {
    with(
        |_| {},
        |s| {
            s.go(OPEN_RENO);
            s.go(text);
        },
    );
}

pub const OPEN_SACK: &str = "
    0 listen(3, 1) = 0
    +0 < S 0:0(0) win 40000 <mss 1000,sackOK,nop,wscale 7>
    +0 > S. 0:0(0) ack 1 <mss 1460,sackOK,nop,wscale 8>
    +.1 < . 1:1(0) ack 1 win 400
";

pub const OPEN_RENO: &str = "
    0 listen(3, 1) = 0
    +0 < S 0:0(0) win 40000 <mss 1000,nop,wscale 7>
    +0 > S. 0:0(0) ack 1 <mss 1460,nop,wscale 8>
    +.1 < . 1:1(0) ack 1 win 400
";

pub const OPEN_TS: &str = "
    0 listen(3, 1) = 0
    +0 < S 0:0(0) win 40000 <mss 1012,sackOK,TS val 100 ecr 0>
    +0 > S. 0:0(0) ack 1 <mss 1460,sackOK,TS val 1 ecr 100>
    +.1 < . 1:1(0) ack 1 win 40000 <TS val 200 ecr 1>
";

/// A header `seq` octets above RCV.NXT that acknowledges `ack` octets above SND.UNA.
pub fn hdr(s: &Script, seq: u32, ack: u32, flags: TcpFlags) -> TcpHdr {
    let t = s.tcb.as_ref().expect("connection");
    TcpHdr {
        src_port: 1,
        dst_port: 2,
        seq: t.rcv_nxt() + seq,
        ack: t.snd_una() + ack,
        flags,
        window: 400,
        urgent: 0,
        opts: TcpOptions::default(),
    }
}
