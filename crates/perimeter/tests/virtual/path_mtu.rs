//! A path whose middle takes less than its ends, with a router that says so: datagrams and
//! connections under every organization, over both families.

use crate::common::{Family, Setup, content, organizations};
use perimeter::link::wire::pair;
use perimeter::link::{Capabilities, Device, Queues, RxFrame, RxQueue, RxStatus, Waker};
use perimeter::{OrgSpec, Stack, UdpSocket, Virtual};
use perimeter_base::{PktBuf, PktPool, Time};
use perimeter_sync::Platform;
use perimeter_wire::{EtherHdr, Icmpv4, Icmpv6, IpHdr, PROTO_ICMP, PROTO_ICMPV6, PROTO_TCP};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The middle of the path.
struct Middle {
    /// What it takes, octets.
    mtu: usize,
    /// Whether it says what it does not take, and which MTU it names.
    says: Option<u32>,
    /// What it has said, until that arrives.
    back: VecDeque<Vec<u8>>,
    /// How many it did not take.
    dropped: usize,
    /// The last of those.
    last: Vec<u8>,
    /// How long the longest was that it took since somebody looked.
    longest: usize,
    /// Time to live, type of service and flags of each segment that it took.
    segments: Vec<(u8, u8, u8)>,
}

/// Time to live, type of service and flags of a segment of TCP.
fn fields(packet: &[u8]) -> Option<(u8, u8, u8)> {
    let (protocol, ttl, tos, header) = match packet[0] >> 4 {
        4 => (packet[9], packet[8], packet[1], 20),
        _ => (packet[6], packet[7], packet[0] << 4 | packet[1] >> 4, 40),
    };
    (protocol == PROTO_TCP).then(|| (ttl, tos, packet[header + 13]))
}

impl Middle {
    /// Whether `frame` gets through.
    fn takes(&mut self, frame: &[u8]) -> bool {
        let packet = &frame[EtherHdr::LEN..];
        let cuttable = packet[0] >> 4 == 4 && packet[6] & 0x40 == 0;
        if packet.len() <= self.mtu || cuttable {
            self.longest = self.longest.max(packet.len());
            self.segments.extend(fields(packet));
            return true;
        }
        self.dropped += 1;
        self.last = frame.to_vec();
        if let Some(mtu) = self.says {
            self.back.push_back(too_big(frame, mtu));
        }
        false
    }
}

/// What a router says of a frame.
fn too_big(frame: &[u8], mtu: u32) -> Vec<u8> {
    let eth = EtherHdr::parse(frame).unwrap();
    let packet = &frame[EtherHdr::LEN..];
    let quote = &packet[..packet.len().min(500)];
    let mut body = vec![0; 8 + quote.len()];
    let (src, dst) = if packet[0] >> 4 == 6 {
        let at = |n: usize| <[u8; 16]>::try_from(&packet[n..n + 16]).unwrap();
        let (src, dst) = (at(24).into(), at(8).into());
        Icmpv6::TooBig { mtu }.emit(src, dst, quote, &mut body);
        (IpAddr::V6(src), IpAddr::V6(dst))
    } else {
        let code = 4;
        let next_hop_mtu = mtu as u16;
        Icmpv4::Unreachable { code, next_hop_mtu }.emit(quote, &mut body);
        let at = |n: usize| <[u8; 4]>::try_from(&packet[n..n + 4]).unwrap();
        (IpAddr::from(at(16)), IpAddr::from(at(12)))
    };
    let header = IpHdr::len_to(dst);
    let mut out = vec![0; EtherHdr::LEN + header];
    let n = EtherHdr {
        dst: eth.src,
        src: eth.dst,
        ethertype: eth.ethertype,
    }
    .emit(&mut out);
    IpHdr {
        src,
        dst,
        protocol: match dst {
            IpAddr::V4(_) => PROTO_ICMP,
            IpAddr::V6(_) => PROTO_ICMPV6,
        },
        hop_limit: 64,
        tos: 0,
        header_len: header as u16,
        total_len: (header + body.len()) as u32,
    }
    .emit(&mut out[n..]);
    out.extend(body);
    out
}

/// Longer than that is only waited for.
const LONG: Duration = Duration::from_secs(5);

type Shared = Arc<Mutex<Middle>>;

/// One end of the path: what arrives at the far end has come through the middle, and what that has
/// said arrives at the near end.
struct End<D>(D, Shared, bool);

impl<D: Device + 'static> Device for End<D> {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let (rx, tx) = Box::new(self.0).open();
        let wrap = |q| Box::new(EndRx(q, self.1.clone(), self.2)) as Box<dyn RxQueue>;
        (rx.into_iter().map(wrap).collect(), tx)
    }
}

struct EndRx(Box<dyn RxQueue>, Shared, bool);

impl RxQueue for EndRx {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let before = out.len();
        let mut middle = self.1.lock().unwrap();
        if self.2 {
            self.0.poll(now, pool, out, max);
            out.retain(|f| middle.takes(f.buf.as_slice()));
            return out.len() - before;
        }
        while out.len() - before < max
            && let Some(f) = middle.back.pop_front()
        {
            out.push(RxFrame {
                buf: PktBuf::copy_of(&f),
                hash: None,
                csum_ok: false,
                segment_size: 0,
            });
        }
        let n = out.len() - before;
        self.0.poll(now, pool, out, max - n) + n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        self.0.arm(now)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.0.set_waker(waker);
    }
}

/// A stack under test, the middle, and a stack behind it.
pub struct Net {
    p: Virtual,
    pub s: Stack,
    pub peer: Stack,
    pub hosts: [IpAddr; 2],
    middle: Shared,
}

impl Net {
    fn new(p: Virtual, setup: &Setup) -> Net {
        let middle = Arc::new(Mutex::new(Middle {
            mtu: 1500,
            says: Some(1280),
            back: VecDeque::new(),
            dropped: 0,
            last: Vec::new(),
            longest: 0,
            segments: Vec::new(),
        }));
        let ([a, b], _) = pair(&p, setup.wire.clone());
        let hosts = setup.family.hosts();
        let prefix = if hosts[0].is_ipv4() { 24 } else { 64 };
        let build = |org: OrgSpec, config, end: Box<dyn Device>, addr| {
            let b = Stack::builder().on_virtual(p.clone()).org(org);
            let addr = format!("{addr}/{prefix}");
            let b = b.config(config).interface(end, &[&addr]).unwrap();
            b.build().unwrap()
        };
        let near = Box::new(End(a, middle.clone(), false));
        let far = Box::new(End(b, middle.clone(), true));
        Net {
            s: build(setup.org.clone(), setup.config.clone(), near, hosts[0]),
            peer: build(OrgSpec::default(), setup.peer.clone(), far, hosts[1]),
            hosts,
            middle,
            p,
        }
    }

    fn pass(&self, d: Duration) {
        let end = self.p.now() + d;
        while self.p.now() < end {
            self.s.drive().unwrap();
            self.peer.drive().unwrap();
            // In large steps where it does not matter when exactly something happens.
            let step = if d > LONG { 100_000_000 } else { 1_000_000 };
            self.p.sleep_until(self.p.now().plus(step).min(end));
        }
    }

    pub fn ms(&self, ms: u64) {
        self.pass(Duration::from_millis(ms));
    }

    fn narrow(&self, mtu: usize, says: Option<u32>) {
        let mut m = self.middle.lock().unwrap();
        (m.mtu, m.says) = (mtu, says);
        (m.dropped, m.longest) = (0, 0);
    }

    /// Time to live, type of service and flags of the segments that came through since this was asked.
    pub fn segments(&self) -> Vec<(u8, u8, u8)> {
        core::mem::take(&mut self.middle.lock().unwrap().segments)
    }

    fn dropped(&self) -> usize {
        core::mem::take(&mut self.middle.lock().unwrap().dropped)
    }

    fn longest(&self) -> usize {
        core::mem::take(&mut self.middle.lock().unwrap().longest)
    }

    fn count(&self, name: &str) -> u64 {
        self.s.stats().count(name)
    }

    /// Octets of the headers of IP and UDP.
    fn headers(&self) -> usize {
        IpHdr::len_to(self.hosts[0]) + 8
    }

    fn udp(&self) -> (UdpSocket, UdpSocket, SocketAddr) {
        let bind = |s: &Stack, addr: (IpAddr, u16)| {
            let socket = s.bind_udp(addr).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let there = (self.hosts[1], 2000);
        let (ours, theirs) = (
            bind(&self.s, (self.hosts[0], 1000)),
            bind(&self.peer, there),
        );
        // Neighbours and addresses are found first.
        ours.send_to(b"hello", there).unwrap();
        self.ms(3000);
        assert_eq!(theirs.recv_from(&mut [0; 9]).unwrap().0, 5);
        (ours, theirs, there.into())
    }

    /// Sends `len` octets; whether they arrive.
    fn arrives(&self, ours: &UdpSocket, theirs: &UdpSocket, len: usize) -> bool {
        let data = content(len);
        assert_eq!(
            ours.send_to(&data, theirs.local_addr().unwrap()).unwrap(),
            len
        );
        self.ms(20);
        let mut buf = vec![0; 65_536];
        match theirs.recv_from(&mut buf) {
            Ok((n, _)) => {
                assert_eq!(buf[..n], data);
                true
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock);
                false
            }
        }
    }
}

pub fn everywhere(change: impl Fn(&mut Setup), body: fn(Net)) {
    for family in Family::BOTH {
        for org in organizations() {
            let name = org.to_string();
            let mut setup = Setup::new(org);
            setup.family = family;
            change(&mut setup);
            let run = move |p: Virtual| body(Net::new(p, &setup));
            let virt = perimeter_sync::virt::VirtualConfig::default()
                .with_cores(2)
                .with_max_steps(40_000_000);
            let result = Virtual::run(virt, run);
            result.unwrap_or_else(|f| panic!("{name}, {family:?}: {f}"));
        }
    }
}

/// RFC 1191, RFC 8201: after a router's word datagrams are cut for the path, from every socket; a
/// socket that does not let them be cut is told, and what the path takes can be asked for; after ten
/// minutes it is tried again.
#[test]
fn datagrams_take_the_mtu_of_their_path() {
    everywhere(
        |_| {},
        |net| {
            let org = net.s.organization().to_string();
            let (ours, theirs, there) = net.udp();
            net.narrow(1280, Some(1280));
            let h = net.headers();
            assert_eq!(ours.path_mtu().unwrap_err().kind(), ErrorKind::NotConnected);
            assert!(!net.arrives(&ours, &theirs, 1500 - h), "{org}: nobody knew");
            assert_eq!(
                (net.dropped(), net.count("path_mtu_lowered")),
                (1, 1),
                "{org}"
            );
            for len in [1500 - h, 1280 - h, 1281 - h, 3000, 60_000] {
                assert!(net.arrives(&ours, &theirs, len), "{org}: {len}");
            }
            assert_eq!(net.dropped(), 0, "{org}");
            assert!(net.longest() <= 1280, "{org}");
            // Another socket, which does not let them be cut.
            let whole = net.s.bind_udp((net.hosts[0], 1001)).unwrap();
            whole.set_nonblocking(true).unwrap();
            whole.set_dont_fragment(true).unwrap();
            assert!(whole.dont_fragment().unwrap());
            whole.connect(there).unwrap();
            assert_eq!(whole.path_mtu().unwrap(), 1280, "{org}");
            let too_long = |r: std::io::Result<usize>| {
                let e = r.unwrap_err().raw_os_error();
                assert_eq!(e, Some(libc::EMSGSIZE), "{org}");
            };
            too_long(whole.send(&content(1281 - h)));
            assert_eq!(whole.send(&content(1280 - h)).unwrap(), 1280 - h);
            net.ms(20);
            assert_eq!(theirs.recv_from(&mut [0; 1500]).unwrap().0, 1280 - h);
            // Nobody raises it.
            net.narrow(1280, Some(1400));
            let forged = net.middle.lock().unwrap().last.clone();
            let again = too_big(&forged, 1400);
            net.middle.lock().unwrap().back.push_back(again);
            net.ms(20);
            assert_eq!(whole.path_mtu().unwrap(), 1280, "{org}");
            net.pass(Duration::from_secs(601));
            assert_eq!(whole.path_mtu().unwrap(), 1500, "{org}");
            net.narrow(1280, Some(1280));
            assert_eq!(whole.send(&content(1400 - h)).unwrap(), 1400 - h);
            net.ms(20);
            assert_eq!(net.dropped(), 1, "{org}: tried again");
            too_long(whole.send(b"the one before was lost"));
            assert_eq!(whole.path_mtu().unwrap(), 1280, "{org}");
            assert_eq!(whole.send(b"and told of").unwrap(), 11);
        },
    );
}

/// Spoofed messages are counted and change nothing: what was not sent, by no socket, not lately, or
/// was no longer than the MTU named; and none is believed below the least.
#[test]
fn forged_words_about_a_path() {
    everywhere(
        |_| {},
        |net| {
            let org = net.s.organization().to_string();
            let (ours, theirs, there) = net.udp();
            net.narrow(1280, None);
            let h = net.headers();
            assert!(!net.arrives(&ours, &theirs, 1500 - h));
            let real = net.middle.lock().unwrap().last.clone();
            let l4 = EtherHdr::LEN + h - 8;
            let whole = net.s.bind_udp((net.hosts[0], 1001)).unwrap();
            whole.connect(there).unwrap();
            let tell = |frame: &[u8], mtu: u32| {
                net.middle
                    .lock()
                    .unwrap()
                    .back
                    .push_back(too_big(frame, mtu));
                net.ms(5);
                (net.count("drop_icmp_too_big"), whole.path_mtu().unwrap())
            };
            let mut other = real.clone();
            other[l4 + 1] ^= 1;
            assert_eq!(tell(&other, 1280), (1, 1500), "{org}: no socket");
            let mut other = real.clone();
            other[l4 + 3] ^= 1;
            assert_eq!(tell(&other, 1280), (2, 1500), "{org}: not sent there");
            assert_eq!(tell(&real, 1500), (3, 1500), "{org}: it was not longer");
            // What was sent long ago.
            net.pass(Duration::from_secs(40));
            assert_eq!(tell(&real, 1280), (4, 1500), "{org}: long ago");
            assert!(!net.arrives(&ours, &theirs, 1500 - h));
            let least = if net.hosts[0].is_ipv4() { 552 } else { 1280 };
            assert_eq!(tell(&real, 68), (4, least), "{org}: the least");
            // Of IPv4, routers may cut it further.
            assert!(net.arrives(&ours, &theirs, 500));
            assert!(net.arrives(&ours, &theirs, 0));
            let fragments = net.count("tx_fragments");
            assert_eq!(
                fragments,
                if net.hosts[0].is_ipv4() { 2 } else { 0 },
                "{org}"
            );
        },
    );
}

/// An old router names no MTU: one is tried (RFC 1191, section 7).
#[test]
fn a_router_that_names_no_mtu() {
    everywhere(
        |_| {},
        |net| {
            if net.hosts[0].is_ipv6() {
                return;
            }
            let (ours, theirs, there) = net.udp();
            ours.connect(there).unwrap();
            net.narrow(1200, Some(0));
            for left in [1492, 1006] {
                assert!(!net.arrives(&ours, &theirs, ours.path_mtu().unwrap() as usize - 28));
                assert_eq!(ours.path_mtu().unwrap(), left);
            }
            assert!(net.arrives(&ours, &theirs, 1472));
        },
    );
}

/// A connection to where a path's MTU is known begins with it, whoever opened it; and what one
/// connection learnt holds for the next and for datagrams.
#[test]
fn connections_begin_with_the_mtu_of_their_path() {
    everywhere(
        |_| {},
        |net| {
            let org = net.s.organization().to_string();
            let (ours, theirs, there) = net.udp();
            net.narrow(1280, Some(1280));
            let l = net.peer.listen((net.hosts[1], 80)).unwrap();
            let here = net.s.listen((net.hosts[0], 81)).unwrap();
            l.set_nonblocking(true).unwrap();
            here.set_nonblocking(true).unwrap();
            let carry = |from: &perimeter::TcpStream, to: &perimeter::TcpStream| {
                for c in [from, to] {
                    c.set_nonblocking(true).unwrap();
                }
                let data = content(30_000);
                assert_eq!((&*from).write(&data).unwrap(), data.len());
                from.shutdown(Shutdown::Write).unwrap();
                net.ms(300);
                let (mut got, mut buf) = (Vec::<u8>::new(), vec![0; 65_536]);
                loop {
                    match (&*to).read(&mut buf).unwrap() {
                        0 => break,
                        n => got.extend(&buf[..n]),
                    }
                }
                assert!(got == data, "{org}: {} octets", got.len());
                from.info().unwrap().tcp.pmtu
            };
            for known in [false, true] {
                let c = net.s.start_connect((net.hosts[1], 80).into()).unwrap();
                net.ms(20);
                let (a, _) = l.accept().unwrap();
                carry(&c, &a);
                assert_eq!(net.dropped() == 0, known, "{org}");
            }
            let c = net.peer.start_connect((net.hosts[0], 81).into()).unwrap();
            net.ms(20);
            let (a, _) = here.accept().unwrap();
            carry(&a, &c);
            assert_eq!(net.dropped(), 0, "{org}");
            assert!(net.arrives(&ours, &theirs, 1400));
            assert_eq!(net.dropped(), 0, "{org}");
            assert_eq!(net.count("path_mtu_lowered"), 1, "{org}");
            ours.connect(there).unwrap();
            assert_eq!(ours.path_mtu().unwrap(), 1280, "{org}");
        },
    );
}

/// A path whose middle drops what is too big and says nothing (RFC 4821): connections find it and
/// leave it within seconds, in either direction; and once it is found, the next connection and
/// datagrams begin with what passes.
#[test]
fn a_black_hole() {
    everywhere(
        |_| {},
        |net| {
            let org = net.s.organization().to_string();
            let (ours, theirs, there) = net.udp();
            net.narrow(1280, None);
            let l = net.peer.listen((net.hosts[1], 80)).unwrap();
            l.set_nonblocking(true).unwrap();
            let connect = || {
                let c = net.s.start_connect((net.hosts[1], 80).into()).unwrap();
                net.ms(20);
                let (a, _) = l.accept().unwrap();
                for c in [&c, &a] {
                    c.set_nonblocking(true).unwrap();
                }
                (c, a)
            };
            let (c, a) = connect();
            let data = content(20_000);
            let mut buf = vec![0; 65_536];
            let mut carry = |ms: u64| {
                assert_eq!((&c).write(&data).unwrap(), data.len(), "{org}");
                let mut got = Vec::new();
                for _ in 0..ms {
                    net.ms(1);
                    if let Ok(n) = (&a).read(&mut buf) {
                        got.extend_from_slice(&buf[..n]);
                    }
                    if got.len() == data.len() {
                        break;
                    }
                }
                assert!(got == data, "{org}: {} octets", got.len());
            };
            carry(4000);
            assert_eq!(net.count("path_black_holes"), 1, "{org}");
            ours.connect(there).unwrap();
            assert_eq!(
                ours.path_mtu().unwrap(),
                1500,
                "{org}: it may have been down"
            );
            // The search goes on while there is data.
            for _ in 0..16 {
                net.ms(1000);
                carry(200);
            }
            let found = c.info().unwrap().tcp.pmtu;
            let least = if net.hosts[0].is_ipv4() { 1272 } else { 1260 };
            assert!((least..=1280).contains(&found), "{org}: {found}");
            let probes = net.count("path_mtu_probes");
            assert!((1..10).contains(&probes), "{org}: {probes}");
            let known = ours.path_mtu().unwrap();
            assert!((1272..=1280).contains(&known), "{org}: {known}");
            assert!(net.dropped() > 0);
            let (c, a) = connect();
            assert_eq!((&c).write(&data).unwrap(), data.len(), "{org}");
            net.ms(200);
            let n = (&a).read(&mut buf).unwrap();
            assert!(buf[..n] == data[..n] && n > 1280, "{org}: {n}");
            assert!(net.arrives(&ours, &theirs, 1400), "{org}");
            assert_eq!(net.dropped(), 0, "{org}");
        },
    );
}
