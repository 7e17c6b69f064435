//! A stack without the instance around it that reads a clock and starts threads, and without
//! random numbers: every run executes the same instructions. Its organization is `up` unless
//! another is named.

use crate::device::{
    HOST, HOST6, MAC, OTHER, PEER, PEER_MAC, PEER6, PREFIX, Sink, WSCALE, answer_to_syn,
};
use core::net::{IpAddr, Ipv4Addr};
use perimeter_base::{Bytes, Time};
use perimeter_link::RxFrame;
use perimeter_org::udp::Udp;
use perimeter_org::up::{SoloKind, Up};
use perimeter_org::{Org, OrgSpec, Protocol};
use perimeter_stack::Offload;
use perimeter_stack::aside::Wanted;
use perimeter_stack::ops::{Data, SendData};
use perimeter_stack::udp::{Outgoing, Payload, Rx, Table};
use perimeter_stack::{
    Cidr, Config, Count, Ctx, IfaceSpec, Kind, Own, SharedState, SockError, SockId, Sockets, input,
    lifecycle,
};
use perimeter_sync::{Native, Platform};
use perimeter_tcp::isn::IsnGen;
use perimeter_wire::{
    FlowKey, IpHdr, MAX_HEADERS, PROTO_UDP, SegOut, Seq, TcpFlags, TcpHdr, TcpOptions, Template,
    UdpTemplate,
};
use smallvec::smallvec;

/// Locks and platform of `up`.
pub type K = SoloKind<Native>;

/// Payload of a full segment with timestamps, at MTU 1500.
pub const MSS: u32 = 1448;
/// The same over IPv6.
pub const MSS6: u32 = 1428;
/// The first of the stack's ports; connection `n` has the `n`th from here.
const FIRST_PORT: u16 = 1024;
/// The most connections that a world takes: one for each port.
pub const MAX_FLOWS: usize = (u16::MAX - FIRST_PORT) as usize;
/// When the world begins. Late enough that timer wheels have turned.
const BEGIN: Time = Time::from_millis(1_000_000);

/// The port of datagram sockets at both ends.
pub const UDP_PORT: u16 = 7;

/// Runs `f` on the datagram sockets of the first perimeter.
///
/// # Panics
/// If the thread that was to do so has stopped.
#[inline]
pub fn inside<O: Org, R: Send + 'static>(
    org: &O,
    cx: &mut Ctx<O::K>,
    f: impl FnOnce(&mut Table<O::K>, &mut Ctx<O::K>) -> R + Send + 'static,
) -> R {
    let job = move |s: &mut dyn Sockets<O::K>, cx: &mut Ctx<O::K>| f(s.others().table(), cx);
    org.inside(cx, 0, job).expect("a result")
}

/// The peer's end of a connection.
pub struct Flow {
    /// The stack's end.
    pub id: SockId,
    /// The flow as the stack sees it.
    pub key: FlowKey,
    /// The peer's headers.
    template: Template,
    hash: u32,
    /// The peer's SND.NXT.
    pub snd_nxt: Seq,
    /// What the peer has acknowledged.
    pub rcv_nxt: Seq,
    ident: u16,
}

/// A stack, its peer, and a clock that stands still until it is told the time.
pub struct World<O: Org = Up<Native>> {
    /// What threads share.
    pub sh: SharedState<O::K>,
    /// What the thread carries.
    pub own: Own<O::K>,
    /// The organization.
    pub org: O,
    /// The peer's ends, in the order in which they were opened.
    pub flows: Vec<Flow>,
    /// The time.
    pub now: Time,
    /// The window that the peers advertise, in octets.
    pub window: u32,
    /// Payload of a full segment.
    pub mss: u32,
    /// Its connections go over IPv6.
    v6: bool,
    /// Segments of a burst that follow each other become one.
    pub merged: bool,
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}

impl World {
    /// A world of `up` without connections.
    #[must_use]
    pub fn new() -> World {
        World::of(&"up".parse().expect("the name of an organization"))
    }

    /// A world of `up` without connections, which are to go over IPv6.
    #[must_use]
    pub fn over_ipv6() -> World {
        World::made(&"up".parse().expect("the name of an organization"), true)
    }

    /// A world of `up` that forwards between hosts of its link.
    #[must_use]
    pub fn router() -> World {
        let mut w = World::new();
        w.sh.config.forwarding = true;
        w.sh.heard(&mut w.own, 0, (OTHER.into(), PEER_MAC), true);
        w
    }

    /// The key of connection `n` over IPv4.
    #[must_use]
    pub fn key(n: usize) -> FlowKey {
        FlowKey {
            local: IpAddr::V4(HOST),
            remote: IpAddr::V4(PEER),
            local_port: FIRST_PORT + n as u16,
            remote_port: 5001,
        }
    }

    /// A page to be sent by a connection's application.
    #[must_use]
    pub fn page(page: &Bytes) -> SendData<'static> {
        SendData::new(Data::Pages(smallvec![page.clone()]), false)
    }
}

impl<O: Org<K: Kind<P = Native>>> World<O> {
    /// A world of the organization `spec`, which is one of type `O`, without connections.
    ///
    /// # Panics
    /// If the addresses above are none.
    #[must_use]
    pub fn of(spec: &OrgSpec) -> World<O> {
        World::made(spec, false)
    }

    /// The same; `v6`: it has an address of IPv6 too, and its connections go over that. (Others
    /// have none, so that nothing but their own family is counted.)
    fn made(spec: &OrgSpec, v6: bool) -> World<O> {
        let p = Native::default();
        let addr = Cidr {
            addr: IpAddr::V4(HOST),
            prefix: PREFIX,
        };
        let addr6 = v6.then_some(Cidr {
            addr: IpAddr::V6(HOST6),
            prefix: 64,
        });
        let iface = IfaceSpec {
            device: Box::new(Sink),
            addrs: [addr].into_iter().chain(addr6).collect(),
            accept: perimeter_stack::net::Accept::Own,
            dhcp: None,
        };
        // What is counted is one segment, and is compared with what it took before there were large
        // ones.
        let mut config = Config::default().with_offload(Offload::Off);
        config.ipv6.dad_transmits = 0;
        let mut sh = SharedState::<O::K>::new(p, config, vec![iface], Vec::new());
        // Not the kernel's random numbers: hashes and sequence numbers are the same each time.
        sh.secret = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
        sh.isn = IsnGen::new(1, 2);
        let mut w = World {
            org: O::new(spec, &sh),
            own: Own::new(sh.p.lane(), sh.packets.clone()),
            sh,
            flows: Vec::new(),
            now: BEGIN,
            window: 1 << 20,
            mss: if v6 { MSS6 } else { MSS },
            v6,
            merged: false,
        };
        w.own.set_now(w.now);
        w.org.on_timers(&mut Ctx::new(&w.sh, &mut w.own));
        w.sh.heard(&mut w.own, 0, (PEER.into(), PEER_MAC), true);
        if v6 {
            w.sh.heard(&mut w.own, 0, (PEER6.into(), PEER_MAC), true);
        }
        w
    }

    /// The key of connection `n`.
    fn flow_key(&self, n: usize) -> FlowKey {
        let mut key = World::key(n);
        if self.v6 {
            (key.local, key.remote) = (HOST6.into(), PEER6.into());
        }
        key
    }

    /// Time passes, ns.
    pub fn pass(&mut self, ns: u64) {
        self.now = self.now.plus(ns);
        self.own.set_now(self.now);
    }

    /// Sends the SYN of connection `n`, and no more.
    ///
    /// # Panics
    /// If the connection exists.
    pub fn syn(&mut self, n: usize) -> SockId {
        let key = self.flow_key(n);
        let hash = self.sh.flow_hash(&key);
        let config = self.sh.config.tcp.clone();
        let iface = 0;
        let flow = lifecycle::Flow {
            key,
            hash,
            iface,
            device: None,
        };
        self.org
            .connect(&mut Ctx::new(&self.sh, &mut self.own), flow, &config)
            .expect("a new flow")
    }

    /// Opens connection number `flows.len()` and completes its handshake.
    ///
    /// # Panics
    /// If the stack does not send a SYN.
    pub fn open(&mut self) -> usize {
        let n = self.flows.len();
        let id = self.syn(n);
        let (syn, ts) = {
            let stage = self.sh.tx[0].stage();
            let d = stage.placed().last().expect("a SYN");
            let (hdr, _) =
                TcpHdr::parse(&d.headers()[if self.v6 { 54 } else { 34 }..]).expect("a TCP header");
            assert_eq!(hdr.flags, TcpFlags::SYN);
            (hdr.seq, hdr.opts.ts.map_or(0, |(v, _)| v))
        };
        let key = self.flow_key(n);
        let l2 = Some((PEER_MAC, MAC));
        self.flows.push(Flow {
            id,
            key,
            template: Template::new(l2, &key.reversed(), 64, 0),
            hash: self.sh.flow_hash(&key),
            snd_nxt: Seq(0x5eed),
            rcv_nxt: syn + 1,
            ident: 0,
        });
        self.leave();
        let seg = answer_to_syn(Seq(0x5eed), syn, Some((self.ts(), ts)));
        self.frame(n, &seg, 0);
        self.flows[n].snd_nxt += 1;
        self.pass(50_000);
        self.burst();
        self.leave();
        n
    }

    /// The peers' timestamp clock.
    fn ts(&self) -> u32 {
        self.now.millis() as u32
    }

    /// Puts a frame of the peer of connection `n` into the burst, with `len` octets of data.
    fn frame(&mut self, n: usize, seg: &SegOut, len: u32) {
        let f = &mut self.flows[n];
        f.ident = f.ident.wrapping_add(1);
        let mut headers = [0; MAX_HEADERS];
        let hdr = f.template.emit(&mut headers, f.ident, seg, len);
        let mut buf = self.own.pool.take(hdr + len as usize);
        buf.raw_mut()[..hdr].copy_from_slice(&headers[..hdr]);
        buf.set_window(0, hdr + len as usize);
        self.own.frames.push(RxFrame {
            buf,
            hash: Some(f.hash),
            csum_ok: true,
            segment_size: 0,
        });
    }

    fn plain(&self, n: usize) -> SegOut {
        let f = &self.flows[n];
        SegOut {
            seq: f.snd_nxt,
            ack: f.rcv_nxt,
            flags: TcpFlags::ACK,
            window: (self.window >> WSCALE) as u16,
            urgent: 0,
            opts: TcpOptions {
                ts: Some((self.ts(), 0)),
                ..TcpOptions::default()
            },
        }
    }

    /// The peer of connection `n` acknowledges `len` octets more: into the burst.
    pub fn ack(&mut self, n: usize, len: u32) {
        self.flows[n].rcv_nxt += len;
        let seg = self.plain(n);
        self.frame(n, &seg, 0);
    }

    /// The peer of connection `n` sends `len` octets of data: into the burst.
    pub fn data(&mut self, n: usize, len: u32) {
        let seg = self.plain(n);
        self.frame(n, &seg, len);
        self.flows[n].snd_nxt += len;
    }

    /// The burst goes through the stack: parsed, and every segment to its connection.
    #[inline]
    pub fn burst(&mut self) {
        let cx = &mut Ctx::new(&self.sh, &mut self.own);
        let wanted = Wanted {
            large: self.merged,
            merged: if self.merged { u16::MAX } else { 0 },
            late: self.org.wants_late(),
            ..Wanted::default()
        };
        input::parse(cx, 0, wanted);
        self.org.on_packets(cx);
    }

    /// The peer sends a datagram from and to [`UDP_PORT`]: into the burst.
    pub fn udp_frame(&mut self, data: &[u8]) {
        self.udp_frame_to(HOST, data);
    }

    /// The same, to another host.
    pub fn udp_frame_to(&mut self, dst: Ipv4Addr, data: &[u8]) {
        let ip = IpHdr {
            src: PEER.into(),
            dst: dst.into(),
            protocol: PROTO_UDP,
            hop_limit: 64,
            tos: 0,
            header_len: 0,
            total_len: 0,
        };
        let ports = (UDP_PORT, UDP_PORT);
        let template = UdpTemplate::new(Some((PEER_MAC, MAC)), &ip, ports, 0);
        let mut headers = [0; MAX_HEADERS];
        let n = template.emit(&mut headers, 0, data.len() as u32);
        let mut buf = self.own.pool.take(n + data.len());
        buf.raw_mut()[..n].copy_from_slice(&headers[..n]);
        buf.raw_mut()[n..n + data.len()].copy_from_slice(data);
        buf.set_window(0, n + data.len());
        self.own.frames.push(RxFrame {
            buf,
            hash: None,
            csum_ok: true,
            segment_size: 0,
        });
    }

    /// A burst of datagrams goes through the stack.
    #[inline]
    pub fn udp_burst(&mut self) {
        let cx = &mut Ctx::new(&self.sh, &mut self.own);
        let wanted = Wanted {
            protocols: &[PROTO_UDP],
            ..Wanted::default()
        };
        let mut aside = input::parse(cx, 0, wanted);
        Protocol::<O>::input(&Udp, &self.org, cx, &mut aside.datagrams);
        cx.datagrams = aside.datagrams;
    }

    /// Sends a datagram to the socket's peer, as the facade's back does.
    ///
    /// # Panics
    /// If the socket is not there, or it can't be sent.
    #[inline]
    pub fn udp_send(&mut self, id: SockId, data: &[u8]) {
        let cx = &mut Ctx::new(&self.sh, &mut self.own);
        let mut buf = cx.pool.take(data.len());
        buf.set_window(0, data.len());
        buf.as_mut_slice().copy_from_slice(data);
        let out = Outgoing {
            to: None,
            from: None,
            data: Payload::Buf(buf),
            segment: 0,
        };
        let send = move |table: &mut Table<O::K>, cx: &mut Ctx<O::K>| {
            table.get(id).map(|s| s.send(cx, out))
        };
        let sent = inside(&self.org, cx, send).expect("the socket");
        assert_eq!(sent.taken, Ok(data.len()));
        if let Some(buf) = sent.back {
            cx.pool.put(buf);
        }
    }

    /// Receives a datagram, as the facade's back does; its length.
    #[inline]
    pub fn udp_recv(&mut self, id: SockId, out: &mut [u8]) -> Option<usize> {
        let cx = &mut Ctx::new(&self.sh, &mut self.own);
        let recv = move |table: &mut Table<O::K>, cx: &mut Ctx<O::K>| {
            table.get(id).map(|s| s.recv(cx, false))
        };
        let rx = inside(&self.org, cx, recv)?.ok()?;
        let data = rx.data.as_slice();
        let n = data.len().min(out.len());
        out[..n].copy_from_slice(&data[..n]);
        cx.pool.put(rx.data);
        Some(n)
    }

    /// Takes up to `max` datagrams, as the facade's back does; those in `all` were read.
    ///
    /// # Panics
    /// If the socket is not there.
    #[inline]
    pub fn udp_recv_many(&mut self, id: SockId, max: usize, mut all: Vec<Rx>) -> Vec<Rx> {
        let cx = &mut Ctx::new(&self.sh, &mut self.own);
        for rx in all.drain(..) {
            cx.pool.put(rx.data);
        }
        let recv = move |table: &mut Table<O::K>, cx: &mut Ctx<O::K>| {
            let _ = table.get(id).map(|s| s.recv_many(cx, max, &mut all));
            all
        };
        inside(&self.org, cx, recv)
    }

    /// What is done when the perimeter is left: doorbells.
    #[inline]
    pub fn leave(&mut self) {
        let mut bells = core::mem::take(&mut self.own.deferred.doorbells);
        for q in bells.drain(..) {
            self.sh.tx[usize::from(q)].doorbell(self.now);
        }
        self.own.deferred.doorbells = bells;
    }

    /// Runs the send; yields the octets taken.
    ///
    /// # Panics
    /// If the connection is not there.
    #[inline]
    pub fn send(&mut self, n: usize, op: SendData<'static>) -> Result<usize, SockError> {
        let id = self.flows[n].id;
        let sent = self
            .org
            .call(&mut Ctx::new(&self.sh, &mut self.own), id, op);
        sent.expect("the connection").map(|s| s.taken)
    }

    /// A counter of the stack.
    #[must_use]
    pub fn count(&self, c: Count) -> u64 {
        self.sh.counters.sum(c as usize)
    }
}
