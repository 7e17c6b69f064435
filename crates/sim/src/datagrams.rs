//! Datagrams: clients send numbered ones in bursts, whole and in fragments, servers answer each,
//! and every one that arrives is one that was sent, whole, and not more often than the wire has
//! doubled it.

use crate::payload::{HEADER, check, fill};
use crate::run::{Host, PORT, spawn};
use crate::scenario::{Capacity, Mix};
use perimeter::{
    Datagrams, Events, Interest, Outgoing, Poll, Stack, Token, Trigger, UdpConfig, UdpSocket,
};
use perimeter_link::rng::SplitMix64;
use perimeter_sync::{Platform, Thread};
use std::io::{ErrorKind, Result as IoResult};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

/// The most datagrams of a flow.
const MOST: usize = 256;
/// The number of a client's last word, where nothing is lost.
const BYE: u32 = u32::MAX;
/// The first port of the clients, and of servers that have one for each flow.
const CLIENTS: u16 = 5_000;
const SERVERS: u16 = 6_000;
/// How long a client waits for an answer that may have been lost, in virtual time: longer than all
/// of a burst takes on the slowest wire.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often a server looks for the end of its clients, where a last word may be lost.
const LOOK: Duration = Duration::from_millis(200);

/// Which sockets a server has.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Served {
    /// One, which all threads share.
    Shared,
    /// One of each thread, all at one port.
    Spread,
    /// One of each flow, which has the client as its peer.
    Peers,
}

/// What a flow has seen of its datagrams.
struct Flow {
    /// How many requests were sent.
    sent: AtomicUsize,
    /// How often the server got each, and the client the answers: two to each, as a request may come
    /// twice.
    requests: Box<[AtomicU8]>,
    answers: Box<[AtomicU8]>,
    /// And the client's last word.
    bye: AtomicU8,
}

/// What the clients and the servers of a run know together.
pub struct Tally {
    flows: Vec<Flow>,
    /// Answers sent.
    answered: AtomicUsize,
    /// Flows whose client is done, and whose last word has come.
    over: AtomicUsize,
    byes: AtomicUsize,
    /// Datagrams sent to a port that nobody has.
    knocks: AtomicUsize,
    /// Times that a client has waited for an answer in vain: what comes later may find nobody.
    given_up: AtomicUsize,
}

fn counters(n: usize) -> Box<[AtomicU8]> {
    (0..n).map(|_| AtomicU8::new(0)).collect()
}

impl Tally {
    /// Of that many flows.
    pub fn new(flows: usize) -> Tally {
        let flow = |_| Flow {
            sent: AtomicUsize::new(0),
            requests: counters(MOST),
            answers: counters(2 * MOST),
            bye: AtomicU8::new(0),
        };
        Tally {
            flows: (0..flows).map(flow).collect(),
            answered: AtomicUsize::new(0),
            over: AtomicUsize::new(0),
            byes: AtomicUsize::new(0),
            knocks: AtomicUsize::new(0),
            given_up: AtomicUsize::new(0),
        }
    }

    /// Datagrams sent to a port that nobody has.
    pub fn knocks(&self) -> usize {
        self.knocks.load(Ordering::Relaxed)
    }

    /// Whether a client has given up waiting for an answer.
    pub fn given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed) > 0
    }

    /// Requests and answers that were sent, and how many of them did not arrive.
    pub fn lost(&self) -> (usize, usize) {
        let seen = |all: &[AtomicU8]| all.iter().filter(|n| n.load(Ordering::Relaxed) > 0).count();
        let sent: usize = self
            .flows
            .iter()
            .map(|f| f.sent.load(Ordering::Relaxed))
            .sum();
        let sent = sent + self.answered.load(Ordering::Relaxed);
        let came = |f: &Flow| seen(&f.requests) + seen(&f.answers);
        let came: usize = self.flows.iter().map(came).sum();
        (sent, sent - came.min(sent))
    }
}

/// What a scenario draws for its datagrams.
struct Plan {
    served: Served,
    bursts: usize,
    burst: usize,
    longest: usize,
    recv_buffer: u32,
}

/// The longest datagram of a host's transmit ring and of IPv4's.
fn longest(host: &Host) -> usize {
    let (capacity, mtu) = (host.sc.capacity, host.knobs.mtu as usize);
    let most = match capacity {
        Capacity::Normal => 65_507,
        Capacity::Shrunken => 9_000,
        Capacity::Tiny => 4_000,
    };
    most.min(host.knobs.tx_ring * ((mtu - 48) / 8 * 8) - 8)
}

impl Plan {
    fn new(host: &Host) -> Plan {
        let mut rng = SplitMix64::new(host.sc.seed ^ 0x706c_616e);
        let (bursts, burst) = match host.sc.capacity {
            Capacity::Normal => (8, 12),
            Capacity::Shrunken => (6, 6),
            Capacity::Tiny => (2, 3),
        };
        let served = match rng.below(3) {
            0 => Served::Shared,
            1 => Served::Spread,
            _ => Served::Peers,
        };
        // Some overflow.
        let small = rng.below(3) == 0 && !host.knobs.strict;
        Plan {
            served,
            bursts,
            burst,
            longest: longest(host),
            recv_buffer: if small { 64 << 10 } else { 1 << 20 },
        }
    }
}

/// A socket, and how its thread waits for it.
struct Waiting<'a> {
    host: &'a Host,
    sock: &'a UdpSocket,
    poll: Option<(&'a Poll, Trigger)>,
    token: usize,
}

fn wanted(trigger: Trigger, i: Interest) -> Interest {
    match trigger {
        Trigger::Level => i,
        Trigger::Edge => i.edge(),
        Trigger::OneShot => i.oneshot(),
    }
}

impl Waiting<'_> {
    /// Takes part in its thread's poll.
    fn register(&self) -> Result<(), String> {
        let Some((poll, trigger)) = self.poll else {
            return Ok(());
        };
        self.sock.set_nonblocking(true).map_err(|e| e.to_string())?;
        let i = wanted(trigger, Interest::READABLE);
        let r = poll.registry().register(self.sock, Token(self.token), i);
        r.map_err(|e| format!("register: {e}"))
    }

    /// Waits until it can send, or some time has passed.
    fn wait(&self, interest: Interest, limit: Option<Duration>) -> Result<bool, String> {
        let Some((poll, trigger)) = self.poll else {
            return Err("a blocking call did not block".to_string());
        };
        let again = |i| {
            let r = poll
                .registry()
                .reregister(self.sock, Token(self.token), wanted(trigger, i));
            r.map_err(|e| format!("reregister: {e}"))
        };
        if trigger == Trigger::OneShot || interest != Interest::READABLE {
            again(interest)?;
        }
        let mut events = Events::with_capacity(4);
        poll.poll(&mut events, limit)
            .map_err(|e| format!("poll: {e}"))?;
        if interest != Interest::READABLE {
            again(Interest::READABLE)?;
        }
        Ok(!events.is_empty())
    }

    /// Sends by `f`, which is called again until there is room.
    fn send<T>(&self, mut f: impl FnMut(&UdpSocket) -> IoResult<T>) -> Result<T, String> {
        loop {
            match f(self.sock) {
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.wait(Interest::WRITABLE, Some(Duration::from_millis(50)))?;
                }
                // It is told once, and not about this one.
                Err(e) if self.told(e.kind()) => {}
                Err(e) => return Err(format!("send: {e}")),
            }
        }
    }

    /// Errors that a socket with a peer may be told of: the peer has gone before everything was
    /// answered, or questions for its station were lost.
    fn told(&self, kind: ErrorKind) -> bool {
        let host = self.host;
        match kind {
            ErrorKind::ConnectionRefused => !host.client && host.leaves_early(),
            ErrorKind::HostUnreachable => !host.lossless(),
            _ => false,
        }
    }

    /// Receives what has come, one way or another, and has `each` look at it.
    fn receive(
        &self,
        rng: &mut SplitMix64,
        mut each: impl FnMut(&[u8], SocketAddr) -> Result<(), String>,
    ) -> Result<Received, String> {
        let got = match rng.below(3) {
            0 => {
                let mut batch = Datagrams::with_capacity(1 + rng.below(8) as usize);
                let got = self.sock.recv_many(&mut batch);
                for d in batch.iter() {
                    each(d.data, d.source)?;
                }
                got.map(|_| ())
            }
            way => {
                let mut buf = vec![0; 66_000];
                let peeked = match way {
                    1 => self.sock.peek_from(&mut buf[..16]).map(|_| ()),
                    _ => Ok(()),
                };
                let got = peeked.and_then(|()| self.sock.recv_from(&mut buf));
                if let Ok((n, from)) = got {
                    each(&buf[..n], from)?;
                }
                got.map(|_| ())
            }
        };
        match got.map_err(|e| e.kind()) {
            Ok(()) => Ok(Received::Some),
            Err(ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(Received::Nothing),
            Err(ErrorKind::NotConnected) => Ok(Received::Closed),
            Err(kind) if self.told(kind) => Ok(Received::Some),
            Err(kind) => Err(format!("receive: {kind}")),
        }
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Received {
    Some,
    Nothing,
    Closed,
}

/// Notes that a datagram has come once more.
fn note(seen: &AtomicU8, mix: Mix, what: &str) -> Result<u8, String> {
    let before = seen.fetch_add(1, Ordering::Relaxed);
    let most = 1 + u8::from(mix.doubles());
    if before >= most {
        return Err(format!("{what} came {} times", before + 1));
    }
    Ok(before)
}

/// Checks a request and answers it.
fn answer(
    host: &Host,
    w: &Waiting,
    buf: &[u8],
    from: SocketAddr,
    peer: bool,
) -> Result<(), String> {
    let tally = &host.tally;
    let (flow, number) = check(buf, false, tally.flows.len())?;
    host.ledger
        .checked
        .fetch_add(buf.len() as u64, Ordering::Relaxed);
    host.ledger.step();
    if from.port() != CLIENTS + flow as u16 {
        return Err(format!("flow {flow} came from {from}"));
    }
    let f = &tally.flows[flow];
    if number == BYE {
        let first = note(
            &f.bye,
            host.sc.mix,
            &format!("the last word of flow {flow}"),
        )? == 0;
        tally.byes.fetch_add(usize::from(first), Ordering::Relaxed);
        return Ok(());
    }
    let Some(seen) = f.requests.get(number as usize) else {
        return Err(format!("flow {flow} has no request {number}"));
    };
    let what = format!("request {number} of flow {flow}");
    let twin = note(seen, host.sc.mix, &what)?;
    // Now and then a short one: fragments of few.
    let len = match (flow + number as usize) % 3 {
        0 => HEADER + 20,
        _ => buf.len(),
    };
    let mut back = vec![0; len];
    fill(flow, true, 2 * number + u32::from(twin), &mut back);
    tally.answered.fetch_add(1, Ordering::Relaxed);
    let mut closed = false;
    let sent = w.send(|s| {
        let sent = match peer {
            true => s.send(&back),
            false => s.send_to(&back, from),
        };
        match sent {
            // Nobody waits for this one, and so the socket may have been closed meanwhile.
            Err(e) if e.kind() == ErrorKind::NotConnected && host.leaves_early() => {
                closed = true;
                Ok(0)
            }
            other => other,
        }
    })?;
    if closed {
        tally.answered.fetch_sub(1, Ordering::Relaxed);
        return Ok(());
    }
    match sent == len {
        true => Ok(()),
        false => Err(format!("{sent} of {len} octets sent")),
    }
}

/// One flow of a client.
struct Client<'a> {
    w: Waiting<'a>,
    flow: usize,
    /// The server's; `None`: the socket has it as its peer.
    to: Option<SocketAddr>,
    plan: &'a Plan,
    rng: SplitMix64,
    next: u32,
    answers: usize,
}

impl Client<'_> {
    /// Sends one burst, one way or another.
    fn burst(&mut self) -> Result<(), String> {
        let n = 1 + self.rng.below(self.plan.burst as u64) as usize;
        let mtu = self.w.host.knobs.mtu as usize;
        let way = self.rng.below(3);
        let same = HEADER + self.rng.below((mtu - 48 - HEADER) as u64) as usize;
        let mut all = Vec::new();
        for _ in 0..n {
            let len = match self.rng.below(4) {
                _ if way == 0 => same,
                0 => self.plan.longest,
                1 => 3 * mtu,
                _ => mtu - 100,
            };
            let len = len.min(self.plan.longest).saturating_sub(HEADER) as u64;
            let len = match way {
                0 => same,
                _ => HEADER + self.rng.below(len + 1) as usize,
            };
            let mut data = vec![0; len];
            fill(self.flow, false, self.next, &mut data);
            self.next += 1;
            all.push(data);
        }
        let tally = &self.w.host.tally;
        tally.flows[self.flow].sent.fetch_add(n, Ordering::Relaxed);
        match way {
            0 => {
                let whole = all.concat();
                let mut at = 0;
                while at < whole.len() {
                    let rest = &whole[at..];
                    at += self
                        .w
                        .send(|s| s.send_segments(rest, same as u16, self.to))?;
                }
            }
            1 => {
                let out = |data| Outgoing {
                    to: self.to,
                    from: None,
                    data,
                    segment_size: None,
                };
                let batch: Vec<_> = all.iter().map(|d| out(&d[..])).collect();
                let mut at = 0;
                while at < n {
                    at += self.w.send(|s| s.send_many(&batch[at..]))?;
                }
            }
            _ => {
                for data in &all {
                    self.one(data)?;
                }
            }
        }
        Ok(())
    }

    fn one(&self, data: &[u8]) -> Result<usize, String> {
        self.w.send(|s| match self.to {
            Some(to) => s.send_to(data, to),
            None => s.send(data),
        })
    }

    /// Receives answers until all have come that must, or no more do for a while.
    fn collect(&mut self) -> Result<(), String> {
        let host = self.w.host;
        let patience = (!host.knobs.strict).then_some(PATIENCE);
        while self.answers < self.next as usize {
            let (flow, answers) = (self.flow, &mut self.answers);
            let mut rng = SplitMix64::new(self.rng.next());
            let got = self.w.receive(&mut rng, |buf, from| {
                let (of, number) = check(buf, true, host.tally.flows.len())?;
                if of != flow || from.ip() != host.sc.addr(false, flow % host.sc.nics()) {
                    return Err(format!("flow {flow} got an answer of {of}'s from {from}"));
                }
                host.ledger
                    .checked
                    .fetch_add(buf.len() as u64, Ordering::Relaxed);
                host.ledger.step();
                let f = &host.tally.flows[flow];
                let seen = f.answers.get(number as usize);
                let seen = seen.ok_or_else(|| format!("there is no answer {number}"))?;
                let first = note(seen, host.sc.mix, &format!("answer {number}"))? == 0;
                // The second answer, to a request that came twice, is not waited for.
                *answers += usize::from(first && number % 2 == 0);
                Ok(())
            })?;
            match got {
                Received::Some => {}
                Received::Closed => return Err("closed by nobody".to_string()),
                Received::Nothing => {
                    let more =
                        self.w.poll.is_some() && self.w.wait(Interest::READABLE, patience)?;
                    if !more && (self.w.poll.is_none() || patience.is_some()) {
                        host.tally.given_up.fetch_add(1, Ordering::Relaxed);
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

/// A port that nobody has: a socket with a peer is told so.
fn refused(w: &Waiting, stack: &Stack, flow: usize) -> Result<(), String> {
    let host = w.host;
    let nobody = SocketAddr::new(host.sc.addr(false, flow % host.sc.nics()), PORT + 2);
    let sock = stack.bind_udp(SocketAddr::new(host.sc.any(), 0));
    let sock = sock.map_err(|e| format!("bind: {e}"))?;
    sock.connect(nobody).map_err(|e| format!("connect: {e}"))?;
    let w = Waiting {
        host,
        sock: &sock,
        poll: w.poll,
        token: 1,
    };
    w.register()?;
    // A short transmit ring may be full when the refusal is to be sent: then it is not.
    let certain = host.sc.capacity == Capacity::Normal;
    let patience = Some(PATIENCE);
    sock.set_read_timeout(patience).map_err(|e| e.to_string())?;
    host.tally.knocks.fetch_add(1, Ordering::Relaxed);
    w.send(|s| s.send(b"anybody?"))?;
    loop {
        match sock.recv(&mut [0; 8]).map_err(|e| e.kind()) {
            Err(ErrorKind::ConnectionRefused) => return Ok(()),
            Err(ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if w.poll.is_some() && w.wait(Interest::READABLE, patience)? {
                    continue;
                }
                return match certain && host.lossless() {
                    true => Err(format!("{nobody} does not refuse")),
                    false => Ok(()),
                };
            }
            Err(kind) if w.told(kind) => return Ok(()),
            other => return Err(format!("{nobody}, where nobody is: {other:?}")),
        }
    }
}

/// One flow of the client's from its socket to its end.
fn flow(host: &Host, stack: &Stack, plan: &Plan, n: usize) -> Result<(), String> {
    let mut rng = SplitMix64::new(host.sc.seed ^ (n as u64 + 1) << 32);
    let nic = n % host.sc.nics();
    let ours = SocketAddr::new(host.sc.addr(true, nic), CLIENTS + n as u16);
    let port = match plan.served {
        Served::Peers => SERVERS + n as u16,
        _ => PORT,
    };
    let server = SocketAddr::new(host.sc.addr(false, nic), port);
    let trigger = host.sc.drive.trigger();
    let poll = trigger.map(|_| stack.poll()).transpose();
    let poll = poll.map_err(|e| format!("poll: {e}"))?;
    let config = UdpConfig::default().with_recv_buffer(plan.recv_buffer);
    let bound = if rng.below(2) == 0 {
        ours
    } else {
        SocketAddr::new(host.sc.any(), ours.port())
    };
    let sock = stack.bind_udp_with(bound, &config);
    let sock = sock.map_err(|e| format!("flow {n}: bind: {e}"))?;
    let connected = rng.below(2) == 0;
    if connected {
        sock.connect(server).map_err(|e| format!("connect: {e}"))?;
    }
    let patience = (!host.knobs.strict).then_some(PATIENCE);
    sock.set_read_timeout(patience).map_err(|e| e.to_string())?;
    let w = Waiting {
        host,
        sock: &sock,
        poll: poll.as_ref().zip(trigger),
        token: 0,
    };
    w.register()?;
    host.ledger.greeted[n].store(1, Ordering::Relaxed);
    if rng.below(2) == 0 {
        refused(&w, stack, n)?;
    }
    let mut c = Client {
        w,
        flow: n,
        to: (!connected).then_some(server),
        plan,
        rng,
        next: 0,
        answers: 0,
    };
    for _ in 0..plan.bursts {
        c.burst()?;
        c.collect()?;
    }
    let mut bye = [0; HEADER];
    fill(n, false, BYE, &mut bye);
    c.one(&bye)?;
    sock.close().map_err(|e| format!("close: {e}"))?;
    // Nothing of it is left.
    let again = stack.bind_udp(bound);
    let again = again.map_err(|e| format!("flow {n}: bind again: {e}"))?;
    drop(again);
    host.tally.over.fetch_add(1, Ordering::Relaxed);
    host.ledger.finished.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Runs the client's flows to their end.
pub fn clients(host: &Arc<Host>, stack: &Stack) -> Result<(), String> {
    let (threads, flows) = (host.sc.threads(), host.sc.connections());
    let body = move |h: Arc<Host>, stack: Stack, t: usize| {
        let plan = Plan::new(&h);
        for n in (t..flows).step_by(threads) {
            flow(&h, &stack, &plan, n)?;
        }
        Ok(())
    };
    if threads == 1 {
        return body(host.clone(), stack.clone(), 0);
    }
    let spawned: Vec<_> = (0..threads)
        .map(|t| {
            let (h, stack) = (host.clone(), stack.clone());
            spawn(&host.p, &format!("client-{t}"), Some(t), move || {
                body(h, stack, t)
            })
        })
        .collect();
    for j in spawned {
        j.join().expect("a panic would have ended the run");
    }
    Ok(())
}

/// The server's sockets, and whether each has a peer.
fn sockets(host: &Host, stack: &Stack, plan: &Plan) -> Result<Vec<(UdpSocket, bool)>, String> {
    let config = UdpConfig::default()
        .with_recv_buffer(plan.recv_buffer)
        .with_reuse_port(plan.served == Served::Spread);
    let bind = |port| {
        let s = stack.bind_udp_with(SocketAddr::new(host.sc.any(), port), &config);
        s.map_err(|e| format!("bind: {e}"))
    };
    match plan.served {
        Served::Shared => Ok(vec![(bind(PORT)?, false)]),
        Served::Spread => (0..host.sc.threads())
            .map(|_| Ok((bind(PORT)?, false)))
            .collect(),
        Served::Peers => {
            let one = |n: usize| {
                let s = bind(SERVERS + n as u16)?;
                let peer = host.sc.addr(true, n % host.sc.nics());
                let r = s.connect(SocketAddr::new(peer, CLIENTS + n as u16));
                r.map_err(|e| format!("connect: {e}"))?;
                Ok((s, true))
            };
            (0..host.sc.connections()).map(one).collect()
        }
    }
}

/// A thread that blocks on one socket until that is closed under it.
fn blocked(host: &Host, sock: &UdpSocket, peer: bool, n: usize) -> Result<(), String> {
    let mut rng = SplitMix64::new(host.sc.seed ^ 0x5e ^ (n as u64) << 32);
    let w = Waiting {
        host,
        sock,
        poll: None,
        token: 0,
    };
    loop {
        let mut draw = SplitMix64::new(rng.next());
        match w.receive(&mut draw, |buf, from| answer(host, &w, buf, from, peer))? {
            Received::Some => {}
            Received::Closed => return Ok(()),
            Received::Nothing => return Err("a blocking call did not block".to_string()),
        }
    }
}

/// A thread that polls some sockets until all clients are done.
fn looped(
    host: &Host,
    stack: &Stack,
    trigger: Trigger,
    mine: &[(UdpSocket, bool)],
    n: usize,
) -> Result<(), String> {
    let mut rng = SplitMix64::new(host.sc.seed ^ 0x5f ^ (n as u64) << 32);
    let poll = stack.poll().map_err(|e| format!("poll: {e}"))?;
    let all: Vec<(Waiting, bool)> = mine
        .iter()
        .enumerate()
        .map(|(token, (sock, peer))| {
            let w = Waiting {
                host,
                sock,
                poll: Some((&poll, trigger)),
                token,
            };
            (w, *peer)
        })
        .collect();
    for (w, _) in &all {
        w.register()?;
    }
    let flows = host.sc.connections();
    let mut events = Events::with_capacity(4);
    let limit = (!host.knobs.strict || host.sc.threads() > 1).then_some(LOOK);
    loop {
        // All of them, whoever is told of: an event that came while another waited to send is
        // not lost.
        for (w, peer) in &all {
            loop {
                let mut draw = SplitMix64::new(rng.next());
                let got = w.receive(&mut draw, |buf, from| answer(host, w, buf, from, *peer))?;
                if got != Received::Some {
                    break;
                }
            }
            if trigger == Trigger::OneShot {
                let i = wanted(trigger, Interest::READABLE);
                let r = poll.registry().reregister(w.sock, Token(w.token), i);
                r.map_err(|e| format!("reregister: {e}"))?;
            }
        }
        let byes = host.tally.byes.load(Ordering::Relaxed) == flows;
        let over = host.tally.over.load(Ordering::Relaxed) == flows;
        if byes || over && !host.knobs.strict {
            return Ok(());
        }
        poll.poll(&mut events, limit)
            .map_err(|e| format!("poll: {e}"))?;
    }
}

/// Runs the server's threads until all clients are done.
pub fn servers(host: &Arc<Host>, stack: &Stack, ready: impl FnOnce()) -> Result<(), String> {
    let plan = Plan::new(host);
    let all = sockets(host, stack, &plan)?;
    ready();
    let threads = host.sc.threads();
    let trigger = host.sc.drive.trigger();
    if threads == 1
        && let Some(trigger) = trigger
    {
        looped(host, stack, trigger, &all, 0)?;
    } else {
        let share = |t: usize| -> Result<Vec<(UdpSocket, bool)>, String> {
            let mine = all
                .iter()
                .enumerate()
                .filter(|(n, _)| all.len() < threads || n % threads == t);
            mine.map(|(_, (s, peer))| Ok((s.try_clone().map_err(|e| e.to_string())?, *peer)))
                .collect()
        };
        let mut spawned = Vec::new();
        for t in 0..threads {
            let mine = share(t)?;
            if let Some(trigger) = trigger {
                let (h, stack) = (host.clone(), stack.clone());
                spawned.push(spawn(&host.p, &format!("server-{t}"), Some(t), move || {
                    looped(&h, &stack, trigger, &mine, t)
                }));
                continue;
            }
            for (sock, peer) in mine {
                let h = host.clone();
                spawned.push(spawn(&host.p, &format!("server-{t}"), None, move || {
                    blocked(&h, &sock, peer, t)
                }));
            }
        }
        if trigger.is_none() {
            let mut tick = Duration::from_micros(100);
            while host.tally.over.load(Ordering::Relaxed) < host.sc.connections() {
                host.p.sleep_until(host.p.now() + tick);
                tick = (tick * 2).min(Duration::from_millis(50));
            }
            // Under those who are blocked on them.
            for (s, _) in &all {
                s.close().map_err(|e| format!("close: {e}"))?;
            }
        }
        for j in spawned {
            j.join().expect("a panic would have ended the run");
        }
    }
    if trigger.is_some() {
        for (s, _) in &all {
            s.close().map_err(|e| format!("close: {e}"))?;
        }
    }
    let port = all.first().map(|_| {
        if plan.served == Served::Peers {
            SERVERS
        } else {
            PORT
        }
    });
    drop(all);
    if let Some(port) = port {
        let again = stack.bind_udp(SocketAddr::new(host.sc.any(), port));
        again.map_err(|e| format!("bind again: {e}"))?;
    }
    host.ledger
        .finished
        .fetch_add(host.sc.connections(), Ordering::Relaxed);
    Ok(())
}
