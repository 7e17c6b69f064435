//! The paths: what happens for every segment, set up so that nothing else happens.
//!
//! Each path alternates between a preparation, which is the peer's and the application's work,
//! and a step, which is the stack's. Only steps are measured.

use crate::device::{HOST, OTHER, PEER};
use crate::world::{K, MSS, UDP_PORT, World, inside};
use core::hint::black_box;
use perimeter_base::{Bytes, Time};
use perimeter_org::connp_l::ConnpL;
use perimeter_org::msgp::Msgp;
use perimeter_org::pef::Pef;
use perimeter_org::squeue::FireEngine;
use perimeter_org::up::Up;
use perimeter_org::{Org, OrgSpec};
use perimeter_stack::ops::{Received, Recv, SendData};
use perimeter_stack::udp::{Rx, UdpConfig};
use perimeter_stack::wheel::{Due, Wheel};
use perimeter_stack::{Count, Ctx, Kind, Shard, SockId, lifecycle};
use perimeter_sync::Native;
use perimeter_wire::FlowKey;

/// Frames of a burst here, whatever devices hand over: counts of different versions compare.
const BURST: usize = 32;

/// Octets in a page that an application sends.
pub const PAGE: usize = 64 * 1024;

/// A path through the stack.
pub trait Path {
    /// Its name.
    const NAME: &'static str;
    /// What one unit is.
    const UNIT: &'static str;
    /// Sets it up.
    fn new() -> Self;
    /// What precedes a step.
    fn prepare(&mut self);
    /// A step: what is measured.
    fn step(&mut self);
    /// How many units the last step did.
    fn units(&mut self) -> u64;
}

/// Everything that wants to be told of all paths.
pub trait Visitor {
    /// A path.
    fn visit<P: Path>(&mut self);
}

/// Shows all paths to `v`.
pub fn all(v: &mut impl Visitor) {
    v.visit::<Send>();
    v.visit::<Send<true>>();
    v.visit::<Ack>();
    v.visit::<Ack<true>>();
    v.visit::<Clocked>();
    v.visit::<Receive>();
    v.visit::<Receive<true>>();
    v.visit::<UdpSend>();
    v.visit::<UdpReceive>();
    v.visit::<UdpReceiveMany>();
    v.visit::<Forward>();
    v.visit::<Receive<false, true>>();
    v.visit::<Receive<true, true>>();
    v.visit::<Lookup>();
    v.visit::<Rearm>();
    v.visit::<Wheeling>();
    v.visit::<Busy<OnUp>>();
    v.visit::<Busy<OnConnpL>>();
    v.visit::<Busy<OnMsgp>>();
    v.visit::<Busy<OnSqueue>>();
    v.visit::<Busy<OnPef>>();
    v.visit::<Busy<OnPefDirect>>();
}

/// A world whose connections go over that family.
fn world(v6: bool) -> World {
    match v6 {
        true => World::over_ipv6(),
        false => World::new(),
    }
}

/// Opens a connection and lets its window grow beyond the send buffer, then ends slow start by
/// a round of long round trips (HyStart's delay increase).
fn warm(v6: bool) -> (World, Bytes) {
    let mut w = world(v6);
    let n = w.open();
    let page = Bytes::from(vec![7; PAGE]);
    for round in 0..64 {
        let long = round >= 40;
        let before = w.count(Count::TxBytes);
        while w.send(n, World::page(&page)).is_ok() {}
        drain(&mut w, n, before, if long { 20_000_000 } else { 50_000 });
    }
    (w, page)
}

/// Everything that connection `n` sends is acknowledged, a pair of segments at a time, each flight
/// `rtt` nanoseconds after it left. `acked` is what was sent and acknowledged before, in octets.
fn drain<O: Org<K: Kind<P = Native>>>(w: &mut World<O>, n: usize, acked: u64, rtt: u64) {
    let mut acked = acked;
    loop {
        let flight = (w.count(Count::TxBytes) - acked) as u32;
        if flight == 0 {
            return;
        }
        w.pass(rtt);
        let mut left = flight;
        while left > 0 {
            let part = left.min(2 * w.mss);
            w.ack(n, part);
            left -= part;
            if w.own.frames.len() == BURST || left == 0 {
                w.burst();
                w.leave();
            }
        }
        acked += u64::from(flight);
    }
}

/// A page is sent by reference while the one before is under way: socket call, segments,
/// doorbell.
pub struct Send<const V6: bool = false> {
    w: World,
    page: Bytes,
    next: Option<SendData<'static>>,
    acked: u64,
    before: u64,
}

impl<const V6: bool> Path for Send<V6> {
    const NAME: &'static str = if V6 { "send ipv6" } else { "send" };
    const UNIT: &'static str = "segment";

    fn new() -> Send<V6> {
        let (mut w, page) = warm(V6);
        let acked = w.count(Count::TxBytes);
        let taken = w.send(0, World::page(&page));
        assert_eq!(taken, Ok(PAGE));
        w.leave();
        assert_eq!(
            w.count(Count::TxBytes) - acked,
            PAGE as u64,
            "the window is closed"
        );
        Send {
            w,
            page,
            next: None,
            acked,
            before: 0,
        }
    }

    /// The page before the last is acknowledged.
    fn prepare(&mut self) {
        let w = &mut self.w;
        w.pass(20_000);
        let mut left = (w.count(Count::TxBytes) - self.acked) as u32 - PAGE as u32;
        self.acked += u64::from(left);
        while left > 0 {
            let part = left.min(2 * w.mss);
            w.ack(0, part);
            left -= part;
        }
        w.burst();
        w.leave();
        self.next = Some(World::page(&self.page));
        self.before = w.count(Count::TxSegs);
    }

    fn step(&mut self) {
        if let Some(op) = self.next.take() {
            let _ = black_box(self.w.send(0, op));
        }
        self.w.leave();
    }

    fn units(&mut self) -> u64 {
        self.w.count(Count::TxSegs) - self.before
    }
}

/// Acknowledgments of two segments each come in, and nothing more is to be sent: parsed,
/// looked up, processed, pages let go.
pub struct Ack<const V6: bool = false> {
    w: World,
    page: Bytes,
    acked: u64,
}

impl<const V6: bool> Path for Ack<V6> {
    const NAME: &'static str = if V6 { "ack ipv6" } else { "ack" };
    const UNIT: &'static str = "acknowledgment";

    fn new() -> Ack<V6> {
        let (w, _) = warm(V6);
        // Full segments only, and two that stay out: nothing is held back, something is timed.
        let page = Bytes::from(vec![7; (BURST + 1) * 2 * w.mss as usize]);
        let acked = w.count(Count::TxBytes);
        Ack { w, page, acked }
    }

    fn prepare(&mut self) {
        let w = &mut self.w;
        // What the last step left.
        drain(w, 0, self.acked, 20_000);
        self.acked = w.count(Count::TxBytes);
        let taken = w.send(0, World::page(&self.page));
        assert_eq!(taken, Ok(self.page.len()));
        w.leave();
        w.pass(50_000);
        for _ in 0..BURST {
            w.ack(0, 2 * w.mss);
        }
        self.acked += u64::from(2 * self.w.mss) * BURST as u64;
    }

    fn step(&mut self) {
        self.w.burst();
        self.w.leave();
    }

    fn units(&mut self) -> u64 {
        BURST as u64
    }
}

/// Acknowledgments clock out a transfer whose window is full: each lets about two segments go.
/// The whole path of a sender, but for the socket calls.
pub struct Clocked {
    w: World,
    page: Bytes,
    before: u64,
}

impl Path for Clocked {
    const NAME: &'static str = "ack+send";
    const UNIT: &'static str = "segment";

    fn new() -> Clocked {
        // A peer with a small window: the send buffer is never the limit.
        let (w, page) = warm(false);
        let before = 0;
        let mut c = Clocked { w, page, before };
        c.w.window = 32 * 2 * MSS;
        c.w.pass(50_000);
        c.w.ack(0, 0);
        c.w.burst();
        c
    }

    fn prepare(&mut self) {
        let w = &mut self.w;
        while w.send(0, World::page(&self.page)).is_ok() {}
        w.leave();
        w.pass(50_000);
        for _ in 0..BURST {
            w.ack(0, 2 * MSS);
        }
        self.before = w.count(Count::TxSegs);
    }

    fn step(&mut self) {
        self.w.burst();
        self.w.leave();
    }

    fn units(&mut self) -> u64 {
        self.w.count(Count::TxSegs) - self.before
    }
}

/// Data comes in order, every second segment is acknowledged, and the application takes it.
/// `MERGED`: a burst is one segment to TCP.
pub struct Receive<const V6: bool = false, const MERGED: bool = false> {
    w: World,
    got: Received,
}

impl<const V6: bool, const MERGED: bool> Path for Receive<V6, MERGED> {
    const NAME: &'static str = match (V6, MERGED) {
        (false, false) => "receive",
        (true, false) => "receive ipv6",
        (false, true) => "receive merged",
        (true, true) => "receive merged ipv6",
    };
    const UNIT: &'static str = "segment";

    fn new() -> Receive<V6, MERGED> {
        let mut w = world(V6);
        w.open();
        w.merged = MERGED;
        let got = Received::new();
        Receive { w, got }
    }

    fn prepare(&mut self) {
        for buf in self.got.drain(..) {
            self.w.own.pool.put(buf);
        }
        self.w.pass(20_000);
        for _ in 0..BURST {
            self.w.data(0, self.w.mss);
        }
    }

    fn step(&mut self) {
        let w = &mut self.w;
        w.burst();
        let op = Recv {
            max: PAGE,
            peek: false,
        };
        let got = w
            .org
            .call(&mut Ctx::new(&w.sh, &mut w.own), w.flows[0].id, op);
        if let Some(Ok(got)) = got {
            self.got = got;
        }
        w.leave();
    }

    fn units(&mut self) -> u64 {
        self.got.len() as u64
    }
}

/// Octets of data in a datagram.
const DATAGRAM: usize = 64;

/// Opens a socket that is connected to the peer, and sends a datagram, after which the way is
/// known.
fn connected(w: &mut World) -> SockId {
    let cx = &mut Ctx::new(&w.sh, &mut w.own);
    let at = (HOST.into(), UDP_PORT);
    let id = inside(&w.org, cx, move |table, cx| {
        let (id, _) = table
            .open(cx, 0, at, UdpConfig::default())
            .expect("a free port");
        table
            .connect(cx, id, (PEER.into(), UDP_PORT))
            .expect("a way");
        id
    });
    w.udp_send(id, &[7; DATAGRAM]);
    w.leave();
    id
}

/// Datagrams of 64 octets are sent, each by a call of its own; the doorbell rings once.
pub struct UdpSend {
    w: World,
    id: SockId,
    before: u64,
}

impl Path for UdpSend {
    const NAME: &'static str = "udp send";
    const UNIT: &'static str = "datagram";

    fn new() -> UdpSend {
        let mut w = World::new();
        let id = connected(&mut w);
        UdpSend { w, id, before: 0 }
    }

    fn prepare(&mut self) {
        self.w.pass(20_000);
        self.before = self.w.count(Count::UdpOut);
    }

    fn step(&mut self) {
        for n in 0..BURST as u8 {
            self.w.udp_send(self.id, black_box(&[n; DATAGRAM]));
        }
        self.w.leave();
    }

    fn units(&mut self) -> u64 {
        self.w.count(Count::UdpOut) - self.before
    }
}

/// A burst of datagrams of 64 octets comes in, and the application takes each by a call of its own,
/// into its buffer.
pub struct UdpReceive {
    w: World,
    id: SockId,
    got: u64,
}

impl Path for UdpReceive {
    const NAME: &'static str = "udp receive";
    const UNIT: &'static str = "datagram";

    fn new() -> UdpReceive {
        let mut w = World::new();
        let id = connected(&mut w);
        UdpReceive { w, id, got: 0 }
    }

    fn prepare(&mut self) {
        self.w.pass(20_000);
        for _ in 0..BURST {
            self.w.udp_frame(&[7; DATAGRAM]);
        }
    }

    fn step(&mut self) {
        self.w.udp_burst();
        let mut buf = [0; 2048];
        self.got = 0;
        while self.w.udp_recv(self.id, &mut buf) == Some(DATAGRAM) {
            black_box(&buf);
            self.got += 1;
        }
        self.w.leave();
    }

    fn units(&mut self) -> u64 {
        self.got
    }
}

/// As [`UdpReceive`], and the application takes all of them by one call, in the memory that they
/// came in: as [`Receive`] takes TCP's segments.
pub struct UdpReceiveMany {
    w: World,
    id: SockId,
    got: Vec<Rx>,
}

impl Path for UdpReceiveMany {
    const NAME: &'static str = "udp receive many";
    const UNIT: &'static str = "datagram";

    fn new() -> UdpReceiveMany {
        let mut w = World::new();
        let id = connected(&mut w);
        let got = Vec::new();
        UdpReceiveMany { w, id, got }
    }

    fn prepare(&mut self) {
        self.w.pass(20_000);
        for _ in 0..BURST {
            self.w.udp_frame(&[7; DATAGRAM]);
        }
    }

    fn step(&mut self) {
        self.w.udp_burst();
        let got = core::mem::take(&mut self.got);
        self.got = self.w.udp_recv_many(self.id, BURST, got);
        self.w.leave();
    }

    fn units(&mut self) -> u64 {
        self.got.len() as u64
    }
}

/// A burst of datagrams of 64 octets comes in for another host, and goes on.
pub struct Forward {
    w: World,
    before: u64,
}

impl Path for Forward {
    const NAME: &'static str = "forward";
    const UNIT: &'static str = "datagram";

    fn new() -> Forward {
        let w = World::router();
        Forward { w, before: 0 }
    }

    fn prepare(&mut self) {
        self.w.pass(20_000);
        for _ in 0..BURST {
            self.w.udp_frame_to(OTHER, &[7; DATAGRAM]);
        }
        self.before = self.w.count(Count::Forwarded);
    }

    fn step(&mut self) {
        self.w.udp_burst();
        self.w.leave();
    }

    fn units(&mut self) -> u64 {
        self.w.count(Count::Forwarded) - self.before
    }
}

/// Connections that lookup chooses from.
pub const MANY: usize = 16_384;
/// Lookups in a step.
const LOOKUPS: usize = 1024;

/// The connection of a flow is found among [`MANY`].
pub struct Lookup {
    shard: Shard<K>,
    keys: Vec<FlowKey>,
    at: u32,
    found: u64,
}

impl Path for Lookup {
    const NAME: &'static str = "lookup";
    const UNIT: &'static str = "lookup";

    fn new() -> Lookup {
        let mut w = World::new();
        let mut shard = Shard::new((0, 1), &w.sh);
        let config = w.sh.config.tcp.clone();
        for n in 0..MANY {
            let (key, hash, iface) = (World::key(n), n as u32, 0);
            let flow = lifecycle::Flow {
                key,
                hash,
                iface,
                device: None,
            };
            shard
                .connect(&mut Ctx::new(&w.sh, &mut w.own), flow, &config)
                .expect("a new flow");
            w.leave();
        }
        let keys = Vec::with_capacity(LOOKUPS);
        Lookup {
            shard,
            keys,
            at: 1,
            found: 0,
        }
    }

    fn prepare(&mut self) {
        self.keys.clear();
        for _ in 0..LOOKUPS {
            self.at = self.at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            self.keys.push(World::key((self.at >> 18) as usize % MANY));
        }
    }

    fn step(&mut self) {
        self.found = 0;
        for key in &self.keys {
            self.found += u64::from(self.shard.lookup(black_box(key)).is_some());
        }
    }

    fn units(&mut self) -> u64 {
        self.found
    }
}

/// Connections whose timers come due together.
const TIMERS: usize = 256;

/// Retransmission timers come due whose deadlines acknowledgments have moved meanwhile: each is
/// armed anew. That is all that a timer costs a connection whose data is acknowledged.
pub struct Rearm {
    w: World,
}

impl Rearm {
    /// Every connection sends an octet, if `ack` says so after the last one is acknowledged.
    fn talk(&mut self, ack: bool) {
        let byte = Bytes::from_static(b".");
        for n in 0..TIMERS {
            let w = &mut self.w;
            let _ = w.send(n, World::page(&byte));
            if ack {
                w.ack(n, 1);
                w.burst();
            }
            w.leave();
        }
    }
}

impl Path for Rearm {
    const NAME: &'static str = "timer re-arm";
    const UNIT: &'static str = "timer";

    fn new() -> Rearm {
        let mut w = World::new();
        for _ in 0..TIMERS {
            w.open();
        }
        let mut r = Rearm { w };
        // The handshakes' timers first.
        r.w.pass(5_000_000_000);
        r.w.org.on_timers(&mut Ctx::new(&r.w.sh, &mut r.w.own));
        r.talk(false);
        r
    }

    fn prepare(&mut self) {
        self.w.pass(150_000_000);
        self.talk(true);
        self.w.pass(100_000_000);
    }

    fn step(&mut self) {
        let w = &mut self.w;
        w.org.on_timers(&mut Ctx::new(&w.sh, &mut w.own));
    }

    fn units(&mut self) -> u64 {
        TIMERS as u64
    }
}

/// The timer wheel alone: entries are inserted, and come due.
pub struct Wheeling {
    wheel: Wheel,
    now: Time,
    due: Vec<Due>,
}

impl Path for Wheeling {
    const NAME: &'static str = "timer wheel";
    const UNIT: &'static str = "timer";

    fn new() -> Wheeling {
        let now = Time::from_millis(1_000_000);
        Wheeling {
            wheel: Wheel::new(now),
            now,
            due: Vec::new(),
        }
    }

    fn prepare(&mut self) {
        self.due.clear();
    }

    /// As retransmission timers do: a fifth of a second ahead, spread over a few ticks.
    fn step(&mut self) {
        for slot in 0..TIMERS as u32 {
            self.wheel.insert(Due {
                slot,
                generation: 1,
                at: self.now.plus(200_000_000 + u64::from(slot) * 50_000),
            });
        }
        self.now = self.now.plus(250_000_000);
        self.wheel.expire(self.now, &mut self.due);
    }

    fn units(&mut self) -> u64 {
        self.due.len() as u64
    }
}

/// An organization whose [`Busy`] path is counted.
pub trait Choice {
    /// Its type.
    type O: Org<K: Kind<P = Native>>;
    /// Its name.
    const SPEC: &'static str;
    /// The path's.
    const NAME: &'static str;
}

macro_rules! choice {
    ($choice:ident, $org:ty, $spec:literal) => {
        #[doc = concat!("`", $spec, "`.")]
        pub struct $choice;

        impl Choice for $choice {
            type O = $org;
            const SPEC: &'static str = $spec;
            const NAME: &'static str = concat!("busy ", $spec);
        }
    };
}

choice!(OnUp, Up<Native>, "up");
choice!(OnConnpL, ConnpL<Native>, "connp-l:128");
choice!(OnMsgp, Msgp<Native>, "msgp");
choice!(OnSqueue, FireEngine<Native>, "squeue:1");
choice!(OnPef, Pef<Native>, "pef:vertical");
choice!(OnPefDirect, Pef<Native>, "pef:vertical:lists=off");

/// Connections of a [`Busy`] path.
const BUSY: usize = 48;
/// Acknowledgments of a connection that follow each other: those that a benchmark with 192
/// connections over the memory NIC sees, eleven.
const RUN: usize = 11;

/// Connections send page by page on one thread, as much as their send buffers hold: a burst of
/// acknowledgments for some of them, then a page for each that has room. A sender's whole path
/// under an organization, but for waiting: what the choice of organization costs.
pub struct Busy<C: Choice> {
    w: World<C::O>,
    page: Bytes,
    /// The connection whose acknowledgments are next.
    turn: usize,
    /// Octets acknowledged since the last page, by connection.
    freed: Vec<usize>,
    /// Who gets a page.
    pages: Vec<(usize, SendData<'static>)>,
    before: u64,
}

impl<C: Choice> Path for Busy<C> {
    const NAME: &'static str = C::NAME;
    const UNIT: &'static str = "segment";

    fn new() -> Busy<C> {
        let spec: OrgSpec = C::SPEC.parse().expect("an organization");
        let mut w = World::of(&spec);
        let page = Bytes::from(vec![7; PAGE]);
        for _ in 0..BUSY {
            w.open();
        }
        // As in `warm`, slow start ends by long round trips; the windows then grow beyond the
        // buffers in short ones, as a connection that was idle begins anew (RFC 2861).
        for round in 0..24 {
            let long = (8..12).contains(&round);
            for n in 0..BUSY {
                let before = w.count(Count::TxBytes);
                while w.send(n, World::page(&page)).is_ok() {}
                w.leave();
                drain(&mut w, n, before, if long { 20_000_000 } else { 50_000 });
            }
        }
        for n in 0..BUSY {
            while w.send(n, World::page(&page)).is_ok() {}
            w.leave();
        }
        Busy {
            w,
            page,
            turn: 0,
            freed: vec![0; BUSY],
            pages: Vec::new(),
            before: 0,
        }
    }

    fn prepare(&mut self) {
        let w = &mut self.w;
        w.pass(20_000);
        let mut left = BURST;
        while left > 0 {
            let n = self.turn;
            self.turn = (n + 1) % BUSY;
            let run = left.min(RUN);
            for _ in 0..run {
                w.ack(n, 2 * MSS);
            }
            left -= run;
            self.freed[n] += run * 2 * MSS as usize;
            if self.freed[n] >= PAGE {
                self.freed[n] -= PAGE;
                self.pages.push((n, World::page(&self.page)));
            }
        }
        self.before = w.count(Count::TxSegs);
    }

    fn step(&mut self) {
        let w = &mut self.w;
        w.burst();
        w.leave();
        for (n, page) in self.pages.drain(..) {
            let taken = w.send(n, page);
            debug_assert_eq!(taken, Ok(PAGE));
            w.leave();
        }
    }

    fn units(&mut self) -> u64 {
        self.w.count(Count::TxSegs) - self.before
    }
}
