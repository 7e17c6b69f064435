//! A stack that forwards, between two links: as a router between two hosts, and octet by octet. Under
//! every organization and over both families.

use crate::common::{Family, content, drive, each_simulated};
use crate::packet::ipv4_between;
use perimeter::link::script::{ScriptHandle, script};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Config, Stack, TcpListener, TcpStream, UdpSocket, Virtual};
use perimeter_sync::Platform;
use perimeter_sync::virt::VirtualConfig;
use perimeter_wire::checksum::{checksum, pseudo_v4, sum};
use perimeter_wire::{
    Csum, Frame, IcmpQuote, Icmpv4, Icmpv6, Ipv4Hdr, Ipv6Hdr, PROTO_ICMP, PROTO_UDP,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

fn virt() -> VirtualConfig {
    VirtualConfig::default()
        .with_cores(2)
        .with_max_steps(60_000_000)
}

fn forwards() -> Config {
    Config::default().with_forwarding(true)
}

/// What the links are like.
#[derive(Clone, Copy)]
struct Links {
    /// Whether large segments pass the left and the right one uncut.
    large: [bool; 2],
    /// The right one's MTU.
    mtu: u32,
}

const PLAIN: Links = Links {
    large: [false; 2],
    mtu: 1500,
};

/// A router, and a host on each of its links.
struct Net {
    p: Virtual,
    router: Stack,
    hosts: [Stack; 2],
    /// The router's addresses, and the hosts'.
    near: [IpAddr; 2],
    far: [IpAddr; 2],
    /// What else there is.
    others: Vec<Stack>,
}

/// Runs `body` everywhere; what fails names organization, family and seed.
fn everywhere(links: Links, body: fn(Net)) {
    for family in Family::BOTH {
        println!("{family:?}");
        each_simulated(&virt(), move |p, org| {
            let builder = Stack::builder().on_virtual(p.clone()).org(org);
            let mut builder = builder.config(forwards());
            let host = |link: u16, n: u16| match family {
                Family::V4 => IpAddr::from([10, 0, link as u8, n as u8]),
                Family::V6 => Ipv6Addr::new(0xfd00, link, 0, 0, 0, 0, 0, n).into(),
            };
            let (bits, all) = match family {
                Family::V4 => (24, "0.0.0.0/0"),
                Family::V6 => (64, "::/0"),
            };
            let near = [host(1, 1), host(2, 1)];
            let far = [host(1, 2), host(2, 2)];
            let mut hosts = Vec::new();
            for n in [0, 1] {
                let wire = WireConfig::default()
                    .with_large(links.large[n])
                    .with_mtu([1500, links.mtu][n]);
                let ([a, b], _) = pair(&p, wire);
                builder = builder
                    .interface(a, &[&format!("{}/{bits}", near[n])])
                    .unwrap();
                let host = Stack::builder().on_virtual(p.clone());
                let host = host.interface(b, &[&format!("{}/{bits}", far[n])]).unwrap();
                let host = host.route(all, Some(&near[n].to_string()), 0).unwrap();
                hosts.push(host.build().unwrap());
            }
            let net = Net {
                router: builder.build().unwrap(),
                p,
                hosts: hosts.try_into().unwrap_or_else(|_| panic!("two")),
                near,
                far,
                others: Vec::new(),
            };
            // Addresses of IPv6 are looked at first.
            net.ms(3000);
            body(net);
        });
    }
}

impl Net {
    fn ms(&self, ms: u64) {
        let end = self.p.now() + Duration::from_millis(ms);
        // In large steps where it does not matter when exactly something happens.
        let step = if ms < 1000 { 200_000 } else { 3_000_000 };
        while self.p.now() < end {
            let both = [&self.router, &self.hosts[0], &self.hosts[1]];
            for s in both.into_iter().chain(&self.others) {
                s.drive().unwrap();
            }
            self.p.sleep_until(self.p.now().plus(step));
        }
    }

    fn org(&self) -> String {
        self.router.organization().to_string()
    }

    fn count(&self, name: &str) -> u64 {
        self.router.stats().count(name)
    }

    /// A connection from the first host to the second.
    fn connect(&self) -> (TcpStream, TcpStream) {
        let listener: TcpListener = self.hosts[1].listen((self.far[1], 80)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let s = &self.hosts[0];
        let at = (self.far[1], 80).into();
        let c = s.connect_with(None, at, &s.tcp_config()).unwrap();
        self.ms(100);
        let (a, from) = listener
            .accept()
            .unwrap_or_else(|e| panic!("{}: {e}", self.org()));
        assert_eq!(from.ip(), self.far[0], "{}", self.org());
        (c, a)
    }

    fn carries(&self, from: &TcpStream, to: &TcpStream) {
        let data = content(300_000);
        from.set_nonblocking(true).unwrap();
        to.set_nonblocking(true).unwrap();
        let (mut sent, mut got, mut buf) = (0, Vec::new(), vec![0; 65_536]);
        for _ in 0..3_000 {
            if let Ok(n) = (&mut &*from).write(&data[sent..]) {
                sent += n;
            }
            self.ms(1);
            while let Ok(n) = (&mut &*to).read(&mut buf) {
                assert_ne!(n, 0, "{}", self.org());
                got.extend_from_slice(&buf[..n]);
            }
            if got.len() == data.len() {
                break;
            }
        }
        assert!(got == data, "{}: {} of {sent}", self.org(), got.len());
    }

    fn datagrams(&self, host: usize) -> UdpSocket {
        let socket = self.hosts[host].bind_udp((self.far[host], 7)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }
}

fn through(net: &Net) {
    let org = net.org();
    let (c, a) = net.connect();
    net.carries(&c, &a);
    net.carries(&a, &c);
    // Not one at a time: what the router cuts, or hands on uncut, is as good as what was sent.
    assert!(net.count("forwarded") > 50, "{org}");
    for host in &net.hosts {
        let stats = host.stats();
        assert_eq!(stats.count("drop_bad_tcp_checksum"), 0, "{org}");
        assert_eq!(stats.count("drop_not_ours"), 0, "{org}");
    }
    assert_eq!(net.count("drop_not_ours"), 0, "{org}");
    assert_eq!(net.count("rx_segments"), 0, "{org}: none were its own");
}

#[test]
fn connections_go_through() {
    everywhere(PLAIN, |net| {
        through(&net);
        let [a, b] = [net.datagrams(0), net.datagrams(1)];
        let (mut buf, data) = ([0; 2000], content(1200));
        for _ in 0..2 {
            a.send_to(&data, (net.far[1], 7)).unwrap();
            net.ms(20);
            let (n, from) = b.recv_from(&mut buf).unwrap();
            assert_eq!((&buf[..n], from), (&data[..], (net.far[0], 7).into()));
            b.send_to(&buf[..n], from).unwrap();
            net.ms(20);
            assert_eq!(a.recv_from(&mut buf).unwrap().0, n, "{}", net.org());
        }
    });
}

/// Large segments that both links take stay whole, and those that the second does not take are cut.
#[test]
fn large_segments_go_through() {
    for large in [[true, true], [true, false], [false, true]] {
        everywhere(Links { large, ..PLAIN }, |net| through(&net));
    }
}

#[test]
fn a_narrow_link_is_told_of() {
    const MTU: u32 = 1300;
    let links = Links { mtu: MTU, ..PLAIN };
    everywhere(links, |net| {
        let org = net.org();
        // The second host says what it takes when they connect; so the first sends what fits. It is
        // datagrams that have to be told.
        through(&net);
        let [a, b] = [net.datagrams(0), net.datagrams(1)];
        let (mut buf, data) = ([0; 2000], content(1400));
        a.set_dont_fragment(true).unwrap();
        a.connect((net.far[1], 7)).unwrap();
        a.send(&data).unwrap();
        net.ms(20);
        assert!(b.recv_from(&mut buf).is_err(), "{org}");
        assert_eq!(net.count("drop_forward_too_big"), 1, "{org}");
        assert_eq!(a.path_mtu().unwrap(), MTU, "{org}");
        // The first call may be told of the one that was lost.
        let _ = a.send(&data);
        assert!(a.send(&data).is_err(), "{org}: it is too long");
        a.set_dont_fragment(false).unwrap();
        a.send(&data).unwrap();
        net.ms(20);
        let (n, _) = b
            .recv_from(&mut buf)
            .unwrap_or_else(|e| panic!("{org}: {e}"));
        assert_eq!(&buf[..n], &data[..], "{org}");
    });
}

/// Two hosts whose links are wide, and between their routers one that is not: TCP finds what it takes
/// by what the first router says.
#[test]
fn connections_find_the_path_mtu() {
    const MTU: u32 = 1280;
    for family in Family::BOTH {
        each_simulated(&virt(), move |p, org| {
            let name = org.to_string();
            let host = |link: u16, n: u16| match family {
                Family::V4 => IpAddr::from([10, 0, link as u8, n as u8]),
                Family::V6 => Ipv6Addr::new(0xfd00, link, 0, 0, 0, 0, 0, n).into(),
            };
            let (bits, all) = match family {
                Family::V4 => (24, "0.0.0.0/0"),
                Family::V6 => (64, "::/0"),
            };
            let mut wires = [1500, MTU, 1500].map(|mtu| {
                let wire = WireConfig::default().with_mtu(mtu);
                pair(&p, wire).0.map(Some)
            });
            // A stack on these ends of links, whose packets for elsewhere go to `via` by the last.
            let mut stack = |config, ends: &[(usize, usize, IpAddr)], via: IpAddr| {
                let builder = Stack::builder().on_virtual(p.clone()).org(org.clone());
                let mut builder = builder.config(config);
                for (link, end, addr) in ends {
                    let device = wires[*link][*end].take().unwrap();
                    builder = builder
                        .interface(device, &[&format!("{addr}/{bits}")])
                        .unwrap();
                }
                let last = ends.len() - 1;
                let builder = builder.route(all, Some(&via.to_string()), last).unwrap();
                builder.build().unwrap()
            };
            let ends = [(0, 0, host(1, 2))];
            let a = stack(Config::default(), &ends, host(1, 1));
            let ends = [(0, 1, host(1, 1)), (1, 0, host(2, 1))];
            let first = stack(forwards(), &ends, host(2, 2));
            let ends = [(2, 0, host(3, 1)), (1, 1, host(2, 2))];
            let second = stack(forwards(), &ends, host(2, 1));
            let ends = [(2, 1, host(3, 2))];
            let b = stack(Config::default(), &ends, host(3, 1));
            let net = Net {
                p,
                near: [host(1, 1), host(3, 1)],
                far: [host(1, 2), host(3, 2)],
                router: first,
                hosts: [a, b],
                others: vec![second],
            };
            net.ms(3000);
            let (c, a) = net.connect();
            net.carries(&c, &a);
            net.carries(&a, &c);
            assert!(net.count("drop_forward_too_big") > 0, "{name}");
            let more = net.others[0].stats().count("drop_forward_too_big");
            assert!(more > 0, "{name}: from the other side");
            for host in &net.hosts {
                let lowered = host.stats().count("path_mtu_lowered");
                assert!(lowered > 0, "{name}");
            }
        });
    }
}

#[test]
fn who_sends_nowhere_is_told() {
    everywhere(PLAIN, |net| {
        let org = net.org();
        let a = net.datagrams(0);
        let mut buf = [0; 100];
        let nowhere: IpAddr = match net.far[0] {
            IpAddr::V4(_) => Ipv4Addr::new(198, 51, 100, 1).into(),
            IpAddr::V6(_) => "2001:db8::1".parse().unwrap(),
        };
        a.connect((nowhere, 7)).unwrap();
        a.send(b"x").unwrap();
        net.ms(20);
        let e = a.recv(&mut buf).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NetworkUnreachable, "{org}");
        assert_eq!(net.count("drop_forward_no_route"), 1, "{org}");
        // On the second link nobody has that address: it is asked for three times.
        let missing = match net.far[1] {
            IpAddr::V4(ip) => IpAddr::from(Ipv4Addr::from(u32::from(ip) + 40)),
            IpAddr::V6(ip) => IpAddr::from(Ipv6Addr::from(u128::from(ip) + 40)),
        };
        a.connect((missing, 7)).unwrap();
        for _ in 0..20 {
            a.send(b"x").unwrap();
        }
        net.ms(20);
        // Sixteen wait.
        assert_eq!(net.count("drop_forward_unresolved"), 4, "{org}");
        assert_eq!(a.recv(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
        net.ms(4000);
        let e = a.recv(&mut buf).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::HostUnreachable, "{org}");
        assert_eq!(net.count("drop_forward_unresolved"), 20, "{org}");
        // The router itself, and its other address, answer as before.
        for to in net.near {
            a.connect((to, 7)).unwrap();
            a.send(b"x").unwrap();
            net.ms(20);
            let e = a.recv(&mut buf).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::ConnectionRefused, "{org}");
        }
    });
}

/// Two links of which the test has the other ends.
struct Raw {
    p: Virtual,
    s: Stack,
    left: ScriptHandle<Virtual>,
    right: ScriptHandle<Virtual>,
}

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

fn raw(forwarding: bool, mtu: u32, body: fn(Raw)) {
    each_simulated(&virt(), move |p, org| {
        let (a, left) = script(&p, "left", 1500);
        let (b, right) = script(&p, "right", mtu);
        let config = Config::default().with_forwarding(forwarding);
        let s = Stack::builder()
            .on_virtual(p.clone())
            .org(org)
            .config(config)
            .interface(a, &["10.0.1.1/24", "fd00:1::1/64"])
            .unwrap()
            .interface(b, &["10.0.2.1/24", "fd00:2::1/64"])
            .unwrap()
            .build()
            .unwrap();
        drive(&p, &s, 3000);
        body(Raw { p, s, left, right });
    });
}

impl Raw {
    /// What comes out on the right, and what on the left, for a datagram that comes on the left.
    fn pass(&self, datagram: &[u8]) -> [Vec<Vec<u8>>; 2] {
        self.left.inject(self.p.now(), datagram);
        drive(&self.p, &self.s, 2);
        [&self.right, &self.left].map(|h| {
            std::iter::from_fn(|| h.next())
                .map(|sent| sent.bytes)
                .collect()
        })
    }

    /// What the sender of a datagram, which is not forwarded, is told: the message and who says it.
    fn refused(&self, datagram: &[u8]) -> Option<(Icmpv4, Ipv4Addr)> {
        let [right, left] = self.pass(datagram);
        assert!(right.is_empty(), "{}", self.s.organization());
        let answer = left.first()?;
        match Frame::parse_ip(answer, 0, Csum::Verify) {
            Ok(Frame::Icmp { ip, msg, body }) => {
                assert_eq!(ip.dst, SRC);
                let quote = IcmpQuote::parse(body).expect("a quote");
                assert_eq!(quote.ip.src, IpAddr::V4(SRC));
                Some((msg, ip.src))
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A datagram of UDP with a right checksum.
fn udp(src: Ipv4Addr, dst: Ipv4Addr, len: usize) -> Vec<u8> {
    let mut body = vec![0u8; 8];
    body[..6].copy_from_slice(&[0x30, 0x39, 0, 7, 0, 0]);
    body[4..6].copy_from_slice(&((8 + len) as u16).to_be_bytes());
    body.extend((0..len).map(|i| i as u8));
    let pseudo = pseudo_v4(src, dst, PROTO_UDP, body.len() as u16);
    let check = !perimeter_wire::checksum::fold(sum(&body, pseudo));
    body[6..8].copy_from_slice(&check.to_be_bytes());
    ipv4_between((src, dst), PROTO_UDP, &body)
}

/// Changes octets of the header and makes its checksum right again.
fn with(mut datagram: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut datagram);
    let header = usize::from(datagram[0] & 15) * 4;
    datagram[10..12].fill(0);
    let check = checksum(&datagram[..header]);
    datagram[10..12].copy_from_slice(&check.to_be_bytes());
    datagram
}

#[test]
fn one_hop_fewer_and_nothing_else() {
    raw(true, 1500, |net| {
        let org = net.s.organization().to_string();
        for ttl in [2, 64, 255] {
            let came = with(udp(SRC, DST, 100), |b| b[8] = ttl);
            let [right, left] = net.pass(&came);
            let want = with(came, |b| b[8] -= 1);
            assert_eq!((right, left), (vec![want], vec![]), "{org}");
        }
        // Whatever it carries, and with options: a checksum of its own that is wrong, too.
        let odd = with(ipv4_between((SRC, DST), 99, &[7; 33]), |_| {});
        let mut long = udp(SRC, DST, 10);
        long[0] = 0x46;
        long.splice(20..20, [1, 1, 1, 0]);
        let long = with(long, |b| b[3] += 4);
        let mut wrong = udp(SRC, DST, 10);
        wrong[27] ^= 1;
        for came in [odd, long, wrong] {
            let [right, _] = net.pass(&came);
            let want = with(came, |b| b[8] -= 1);
            assert_eq!(right, vec![want], "{org}");
        }
        assert_eq!(net.s.stats().count("forwarded"), 6, "{org}");
        // Over IPv6 the same, behind extension headers for the destination too.
        let (src, dst): (Ipv6Addr, Ipv6Addr) =
            ("fd00:1::2".parse().unwrap(), "fd00:2::2".parse().unwrap());
        let mut came = vec![0; 40];
        Ipv6Hdr {
            src,
            dst,
            protocol: 60,
            hop_limit: 9,
            traffic_class: 3,
            flow_label: 0x12345,
            header_len: 40,
            total_len: 40 + 16,
            fragment: None,
        }
        .emit(&mut came);
        // An option that only its destination may refuse.
        came.extend([59, 0, 0xc0, 4, 1, 2, 3, 4, 9, 9, 9, 9, 9, 9, 9, 9]);
        let [right, left] = net.pass(&came);
        came[7] -= 1;
        assert_eq!((right, left), (vec![came], vec![]), "{org}");
    });
}

#[test]
fn the_last_hop_is_told() {
    raw(true, 1500, |net| {
        let org = net.s.organization().to_string();
        let expired = Icmpv4::TimeExceeded { code: 0 };
        for ttl in [0, 1] {
            let came = with(udp(SRC, DST, 100), |b| b[8] = ttl);
            assert_eq!(net.refused(&came), Some((expired, US)), "{org}");
        }
        assert_eq!(net.s.stats().count("drop_forward_hops"), 2, "{org}");
        // Nobody is told of an error, nor of a fragment that is not the first; of an echo request he is.
        let icmp = |kind: u8| {
            let mut body = vec![kind, 0, 0, 0, 0, 0, 0, 0];
            body.extend(udp(DST, SRC, 20));
            let check = checksum(&body);
            body[2..4].copy_from_slice(&check.to_be_bytes());
            with(ipv4_between((SRC, DST), PROTO_ICMP, &body), |b| b[8] = 1)
        };
        for kind in [3, 4, 5, 11, 12] {
            assert_eq!(net.refused(&icmp(kind)), None, "{org}");
        }
        let [_, left] = net.pass(&icmp(8));
        assert_eq!(left.len(), 1, "{org}");
        let later = with(udp(SRC, DST, 100), |b| {
            b[8] = 1;
            b[6..8].copy_from_slice(&[0, 3]);
        });
        assert_eq!(net.refused(&later), None, "{org}");
        // Over IPv6.
        let (src, dst): (Ipv6Addr, Ipv6Addr) =
            ("fd00:1::2".parse().unwrap(), "fd00:2::2".parse().unwrap());
        let mut came = vec![0; 40];
        let mut hdr = Ipv6Hdr {
            src,
            dst,
            protocol: PROTO_UDP,
            hop_limit: 1,
            traffic_class: 0,
            flow_label: 0,
            header_len: 40,
            total_len: 48,
            fragment: None,
        };
        hdr.emit(&mut came);
        came.extend([1, 2, 3, 4, 0, 8, 5, 6]);
        let [right, left] = net.pass(&came);
        assert!(right.is_empty(), "{org}");
        match Frame::parse_ip(&left[0], 0, Csum::Verify) {
            Ok(Frame::Icmp6 { ip, msg, body }) => {
                assert_eq!(msg, Icmpv6::TimeExceeded { code: 0 }, "{org}");
                assert_eq!((ip.src, ip.dst), ("fd00:1::1".parse().unwrap(), src));
                assert_eq!(body, came, "{org}: the whole of it");
            }
            other => panic!("{org}: {other:?}"),
        }
        // Link-local addresses stay on their link; its sender is told.
        (hdr.src, hdr.hop_limit) = ("fe80::2".parse().unwrap(), 9);
        hdr.emit(&mut came);
        let [right, left] = net.pass(&came);
        assert!(right.is_empty(), "{org}");
        for answer in left {
            match Frame::parse_ip(&answer, 0, Csum::Verify) {
                Ok(Frame::Icmp6 { msg, .. }) => {
                    assert_eq!(msg, Icmpv6::Unreachable { code: 2 }, "{org}");
                }
                other => panic!("{org}: {other:?}"),
            }
        }
        (hdr.src, hdr.dst) = (src, "fe80::9".parse().unwrap());
        hdr.emit(&mut came);
        assert_eq!(
            net.pass(&came),
            [vec![], vec![]] as [Vec<Vec<u8>>; 2],
            "{org}"
        );
    });
}

#[test]
fn what_stays_where_it_is() {
    raw(true, 1500, |net| {
        let org = net.s.organization().to_string();
        let ip = |s: &str| s.parse::<Ipv4Addr>().unwrap();
        let quiet = [
            ("a martian", udp(ip("127.0.0.1"), DST, 10)),
            ("from nobody", udp(ip("0.0.0.0"), DST, 10)),
            ("from a group", udp(ip("224.0.0.5"), DST, 10)),
            ("from one of our addresses", udp(ip("10.0.2.1"), DST, 10)),
            ("from all of its link", udp(ip("10.0.1.255"), DST, 10)),
            ("from who had no DHCP", udp(ip("169.254.1.1"), DST, 10)),
            ("to a link-local address", udp(SRC, ip("169.254.1.1"), 10)),
            ("to all of the other link", udp(SRC, ip("10.0.2.255"), 10)),
            ("to a group", udp(SRC, ip("239.1.2.3"), 10)),
            ("to a loopback address", udp(SRC, ip("127.0.0.1"), 10)),
            ("a wrong header", {
                let mut d = udp(SRC, DST, 10);
                d[10] ^= 1;
                d
            }),
            ("a source route", {
                let mut d = udp(SRC, DST, 10);
                d[0] = 0x47;
                d.splice(20..20, [131, 7, 4, 10, 0, 2, 9, 0]);
                with(d, |b| b[3] += 8)
            }),
            ("cut short", udp(SRC, DST, 10)[..30].to_vec()),
        ];
        for (what, datagram) in quiet {
            assert_eq!(
                net.pass(&datagram),
                [vec![], vec![]] as [Vec<Vec<u8>>; 2],
                "{org}: {what}"
            );
        }
        assert_eq!(net.s.stats().count("forwarded"), 0, "{org}");
        let (why, from) = net.refused(&udp(SRC, ip("192.0.2.1"), 10)).expect("told");
        assert_eq!(from, US, "{org}");
        let (code, next_hop_mtu) = (0, 0);
        assert_eq!(why, Icmpv4::Unreachable { code, next_hop_mtu }, "{org}");
    });
    raw(false, 1500, |net| {
        let none = [vec![], vec![]] as [Vec<Vec<u8>>; 2];
        assert_eq!(net.pass(&udp(SRC, DST, 10)), none, "it has to be asked for");
        assert_eq!(net.s.stats().count("drop_not_ours"), 1);
    });
}

#[test]
fn what_is_too_long_is_cut_or_told() {
    const MTU: u32 = 600;
    raw(true, MTU, |net| {
        let org = net.s.organization().to_string();
        let came = with(udp(SRC, DST, 1400), |b| b[6] |= 0x40);
        let (why, _) = net.refused(&came).expect("told");
        let told = Icmpv4::Unreachable {
            code: 4,
            next_hop_mtu: MTU as u16,
        };
        assert_eq!(why, told, "{org}");
        // With options, of which one is for all fragments.
        let mut came = with(udp(SRC, DST, 1400), |b| {
            b[4..6].copy_from_slice(&[0xab, 0xcd]);
            b[6..8].fill(0);
        });
        came[0] = 0x48;
        came.splice(20..20, [7, 3, 4, 0x88, 4, 1, 2, 1, 1, 1, 1, 0]);
        let came = with(came, |b| {
            let len = (b.len() as u16).to_be_bytes();
            b[2..4].copy_from_slice(&len);
        });
        let [right, left] = net.pass(&came);
        assert!(left.is_empty(), "{org}");
        let (mut whole, mut last) = (Vec::new(), false);
        for (n, part) in right.iter().enumerate() {
            let hdr = Ipv4Hdr::parse(part, true).unwrap_or_else(|e| panic!("{org}: {e:?}"));
            assert!(part.len() <= MTU as usize && hdr.ident == 0xabcd, "{org}");
            assert_eq!(usize::from(hdr.frag_offset), whole.len(), "{org}");
            let options = &part[20..usize::from(hdr.header_len)];
            let want: &[u8] = if n == 0 {
                &came[20..32]
            } else {
                &[0x88, 4, 1, 2]
            };
            assert_eq!(options, want, "{org}");
            whole.extend_from_slice(&part[usize::from(hdr.header_len)..]);
            last = !hdr.more_fragments;
        }
        assert!(last && right.len() == 3 && whole == came[32..], "{org}");
        // A fragment is cut further, and what comes behind it still comes behind it.
        let middle = with(udp(SRC, DST, 992), |b| b[6..8].copy_from_slice(&[0x20, 10]));
        let [right, _] = net.pass(&middle);
        let at = right.iter().map(|part| {
            let hdr = Ipv4Hdr::parse(part, true).unwrap();
            (hdr.frag_offset, hdr.more_fragments)
        });
        assert_eq!(
            at.collect::<Vec<_>>(),
            [(80, true), (80 + 576, true)],
            "{org}"
        );
        assert_eq!(net.s.stats().count("tx_fragments"), 5, "{org}");
    });
}

/// What waits for a neighbour goes on when that answers, in order.
#[test]
fn what_waits_goes_on() {
    everywhere(PLAIN, |net| {
        let org = net.org();
        let [a, b] = [net.datagrams(0), net.datagrams(1)];
        for n in 0..10u8 {
            a.send_to(&[n], (net.far[1], 7)).unwrap();
        }
        net.ms(50);
        let mut buf = [0; 10];
        let got: Vec<u8> =
            std::iter::from_fn(|| b.recv_from(&mut buf).ok().map(|_| buf[0])).collect();
        assert_eq!(got, (0..10).collect::<Vec<_>>(), "{org}");
    });
}
