//! Sockets that are bound to an interface (SO_BINDTODEVICE), under every organization and over both
//! families: a stack with two links, on each of which a host has the same address.

use crate::common::{Family, content, drive, each_simulated};
use crate::packet::{completes, syn, tcp};
use perimeter::link::script::{ScriptHandle, script};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Builder, Hold, Listen, Stack, TcpListener, TcpSocket, TcpStream};
use perimeter::{UdpConfig, UdpSocket, Virtual};
use perimeter_sync::Platform;
use perimeter_sync::virt::VirtualConfig;
use perimeter_wire::{TcpFlags, TcpHdr};
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const LINKS: [&str; 2] = ["left", "right"];

struct Net {
    p: Virtual,
    s: Stack,
    /// One on each link.
    hosts: [Stack; 2],
    /// The stack's addresses, one on each link, the one that both hosts have, and those that each
    /// has for itself.
    ours: [IpAddr; 2],
    theirs: IpAddr,
    own: [IpAddr; 2],
}

/// Runs `body` everywhere; what fails names organization, family and seed.
fn everywhere(body: fn(Net)) {
    for family in Family::BOTH {
        println!("{family:?}");
        let config = VirtualConfig::default()
            .with_cores(2)
            .with_max_steps(40_000_000);
        each_simulated(&config, move |p, org| {
            let builder = Stack::builder().on_virtual(p.clone()).org(org);
            body(Net::new(p, builder, family));
        });
    }
}

impl Net {
    fn new(p: Virtual, mut builder: Builder, family: Family) -> Net {
        let [one, two] = family.hosts();
        let (three, bits, all) = match one {
            IpAddr::V4(_) => (IpAddr::from([10, 0, 0, 3]), 24, 32),
            IpAddr::V6(_) => ("fd00::3".parse().unwrap(), 64, 128),
        };
        let ours = [one, three];
        let own = [1, 2].map(|n| match one {
            IpAddr::V4(_) => IpAddr::from([10, 0, n, 9]),
            IpAddr::V6(_) => format!("fd00:{n}::9").parse().unwrap(),
        });
        let mut hosts = Vec::new();
        for n in [0, 1] {
            let mut wire = WireConfig::default();
            wire.ends[0].name = LINKS[n].to_owned();
            let ([near, far], _) = pair(&p, wire);
            let addr = format!("{}/{bits}", ours[n]);
            builder = builder.interface(near, &[&addr]).unwrap();
            builder = builder
                .route(&format!("{}/{all}", own[n]), Some(&two.to_string()), n)
                .unwrap();
            let host = Stack::builder().on_virtual(p.clone());
            let addrs = [format!("{two}/{bits}"), format!("{}/{all}", own[n])];
            let host = host.interface(far, &addrs.each_ref().map(String::as_str));
            let host = host.unwrap();
            // The stack's other address is behind the one on this link.
            let (other, via) = (ours[1 - n], ours[n].to_string());
            let host = host.route(&format!("{other}/{all}"), Some(&via), 0);
            hosts.push(host.unwrap().build().unwrap());
        }
        let net = Net {
            s: builder.build().unwrap(),
            p,
            hosts: hosts.try_into().unwrap_or_else(|_| panic!("two")),
            ours,
            theirs: two,
            own,
        };
        // Addresses of IPv6 are looked at first.
        net.ms(3000);
        net
    }

    fn ms(&self, ms: u64) {
        let end = self.p.now() + Duration::from_millis(ms);
        // In large steps where it does not matter when exactly something happens.
        let step = if ms < 1000 { 200_000 } else { 3_000_000 };
        while self.p.now() < end {
            for s in [&self.s, &self.hosts[0], &self.hosts[1]] {
                s.drive().unwrap();
            }
            self.p.sleep_until(self.p.now().plus(step));
        }
    }

    fn org(&self) -> String {
        self.s.organization().to_string()
    }

    fn socket(&self, device: Option<&str>) -> TcpSocket {
        let socket = match self.theirs {
            IpAddr::V4(_) => self.s.tcp_socket_v4(),
            IpAddr::V6(_) => self.s.tcp_socket_v6(),
        };
        socket.bind_device(device).unwrap();
        socket
    }

    fn any(&self, port: u16) -> SocketAddr {
        match self.theirs {
            IpAddr::V4(_) => ([0; 4], port).into(),
            IpAddr::V6(_) => ([0; 16], port).into(),
        }
    }

    /// What a host gets when it connects to the stack from an address of its own, and how that ends
    /// within 20 ms.
    fn connects(&self, host: usize, to: (IpAddr, u16)) -> (TcpStream, Option<ErrorKind>) {
        let (s, from) = (&self.hosts[host], (self.own[host], 0).into());
        let c = s
            .connect_with(Some(from), to.into(), &s.tcp_config())
            .unwrap();
        self.ms(20);
        let error = c.take_error().unwrap().map(|e| e.kind());
        (c, error)
    }

    /// Data gets from each to the other.
    fn carries(&self, a: &TcpStream, b: &TcpStream) {
        let data = content(300_000);
        for (from, to) in [(a, b), (b, a)] {
            from.set_nonblocking(true).unwrap();
            to.set_nonblocking(true).unwrap();
            let (mut sent, mut got, mut buf) = (0, Vec::new(), vec![0; 65_536]);
            for _ in 0..2_000 {
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
    }
}

fn kind<T>(r: Result<T>) -> Option<ErrorKind> {
    r.err().map(|e| e.kind())
}

fn quiet(l: TcpListener) -> TcpListener {
    l.set_nonblocking(true).unwrap();
    l
}

#[test]
fn connections_leave_by_their_interface() {
    everywhere(|net| {
        let org = net.org();
        let ls = [0, 1].map(|n| quiet(net.hosts[n].listen((net.theirs, 80)).unwrap()));
        for (device, n) in [(None, 0), (Some("left"), 0), (Some("right"), 1)] {
            let socket = net.socket(device);
            assert_eq!(socket.device().unwrap().as_deref(), device);
            let c = socket.start_connect((net.theirs, 80).into()).unwrap();
            net.ms(20);
            let (a, from) = ls[n]
                .accept()
                .unwrap_or_else(|e| panic!("{org}, {device:?}: {e}"));
            // The source address is of that link.
            assert_eq!(from.ip(), net.ours[n], "{org}");
            assert_eq!(c.device().unwrap().as_deref(), device, "{org}");
            net.carries(&c, &a);
        }
        // From the other link's address, by that interface all the same.
        let socket = net.socket(Some("right"));
        socket.bind((net.ours[0], 0).into()).unwrap();
        let c = socket.start_connect((net.theirs, 80).into()).unwrap();
        net.ms(20);
        let (a, from) = ls[1].accept().unwrap();
        assert_eq!(from.ip(), net.ours[0], "{org}");
        net.carries(&a, &c);
        assert_eq!(net.s.stats().count("drop_other_interface"), 0, "{org}");
        // No way leads there by the loopback, and none to ourselves by another.
        let own = quiet(net.s.listen((net.ours[0], 81)).unwrap());
        let e = net
            .socket(Some("lo"))
            .start_connect((net.theirs, 80).into());
        assert_eq!(kind(e), Some(ErrorKind::NetworkUnreachable), "{org}");
        let e = net
            .socket(Some("left"))
            .start_connect((net.ours[0], 81).into());
        assert_eq!(kind(e), Some(ErrorKind::NetworkUnreachable), "{org}");
        let c = net
            .socket(Some("lo"))
            .start_connect((net.ours[0], 81).into());
        net.ms(20);
        assert_eq!(own.accept().unwrap().1, c.unwrap().local_addr().unwrap());
    });
}

#[test]
fn listeners_get_what_comes_by_their_interface() {
    everywhere(|net| {
        let org = net.org();
        let at = Listen::at(net.any(80));
        let listen = |device: &str| net.s.listen_as(&at.clone().bind_device(device));
        let ls = LINKS.map(|device| quiet(listen(device).unwrap()));
        assert_eq!(ls[1].device().unwrap().as_deref(), Some("right"), "{org}");
        // Each has its own, and who wants all of it finds that taken.
        assert_eq!(kind(listen("left")), Some(ErrorKind::AddrInUse), "{org}");
        assert_eq!(kind(net.s.listen_as(&at)), Some(ErrorKind::AddrInUse));
        for n in [0, 1] {
            // Whichever address it is for.
            for to in net.ours {
                let (c, error) = net.connects(n, (to, 80));
                assert_eq!(error, None, "{org}");
                let (a, from) = ls[n].accept().unwrap();
                assert_eq!(from, c.local_addr().unwrap(), "{org}");
                assert_eq!(a.device().unwrap().as_deref(), Some(LINKS[n]), "{org}");
                net.carries(&c, &a);
            }
        }
        let [left, right] = ls;
        drop(right);
        net.ms(20);
        let (_c, error) = net.connects(1, (net.ours[0], 80));
        assert_eq!(error, Some(ErrorKind::ConnectionRefused), "{org}");
        assert_eq!(net.connects(0, (net.ours[1], 80)).1, None, "{org}");
        left.accept().unwrap();
    });
}

#[test]
fn who_is_bound_to_an_interface_comes_before_who_is_not() {
    everywhere(|net| {
        let org = net.org();
        let shared = Listen::at(net.any(80)).reuse_port();
        let rest = quiet(net.s.listen_as(&shared).unwrap());
        let left = net.s.listen_as(&shared.clone().bind_device("left"));
        let left = quiet(left.unwrap());
        let count = |l: &TcpListener| std::iter::from_fn(|| l.accept().ok()).count();
        for n in [0, 1] {
            let all = [(); 12].map(|()| net.connects(n, (net.ours[n], 80)));
            assert!(all.iter().all(|(_, e)| e.is_none()), "{org}");
            let want = [(12, 0), (0, 12)][n];
            assert_eq!((count(&left), count(&rest)), want, "{org}");
        }
        // The address comes before the interface.
        let at = Listen::at((net.ours[0], 80).into()).reuse_port();
        let exact = quiet(net.s.listen_as(&at).unwrap());
        let _c = net.connects(0, (net.ours[0], 80));
        assert_eq!(
            (count(&exact), count(&left), count(&rest)),
            (1, 0, 0),
            "{org}"
        );
    });
}

/// Those who take every port get what is for a port that somebody has on another interface only, and
/// may decide of it.
#[test]
fn a_port_is_free_on_other_interfaces() {
    everywhere(|net| {
        let org = net.org();
        let left = Listen::at(net.any(80)).bind_device("left");
        let left = quiet(net.s.listen_as(&left).unwrap());
        let rest = net.s.listen_as(&Listen::any().hold(Hold::default()));
        let rest = quiet(rest.unwrap());
        let _c = net.connects(0, (net.ours[0], 80));
        left.accept().unwrap();
        let (c, _) = net.connects(1, (net.ours[1], 80));
        let request = rest.request().unwrap_or_else(|e| panic!("{org}: {e}"));
        assert!(request.allow().unwrap(), "{org}");
        net.ms(20);
        assert_eq!(rest.accept().unwrap().1, c.local_addr().unwrap(), "{org}");
    });
}

fn datagrams(s: &Stack, at: SocketAddr, device: Option<u16>) -> UdpSocket {
    let config = UdpConfig::default().with_device(device);
    let socket = s.bind_udp_with(at, &config).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

#[test]
fn datagrams_come_and_go_by_their_interface() {
    everywhere(|net| {
        let org = net.org();
        let theirs = [0, 1].map(|n| datagrams(&net.hosts[n], (net.theirs, 7).into(), None));
        let ours = [0, 1].map(|n| datagrams(&net.s, net.any(7), Some(n)));
        let mut buf = [0; 2000];
        let config = |device| UdpConfig::default().with_device(device);
        for device in [None, Some(0)] {
            let again = net.s.bind_udp_with(net.any(7), &config(device));
            assert_eq!(kind(again), Some(ErrorKind::AddrInUse), "{org}");
        }
        let e = net.s.bind_udp_with(net.any(8), &config(Some(3)));
        assert_eq!(kind(e), Some(ErrorKind::NotFound), "{org}");
        for n in [0, 1] {
            assert_eq!(ours[n].device().unwrap().as_deref(), Some(LINKS[n]));
            ours[n].send_to(&content(1000), (net.theirs, 7)).unwrap();
            net.ms(20);
            let (len, from) = theirs[n].recv_from(&mut buf).unwrap();
            assert_eq!((len, from), (1000, (net.ours[n], 7).into()), "{org}");
            // Whichever address it is for.
            for to in net.ours {
                theirs[n].send_to(b"back", (to, 7)).unwrap();
                net.ms(20);
                let got = ours[n].recv_from(&mut buf).unwrap();
                assert_eq!(got, (4, (net.theirs, 7).into()), "{org}");
            }
        }
        // Both have that peer, and do not get in each other's way; no way leads to ourselves.
        let e = ours[1].send_to(b"x", (net.ours[0], 9));
        assert_eq!(kind(e), Some(ErrorKind::NetworkUnreachable), "{org}");
        for n in [0, 1] {
            ours[n].connect((net.theirs, 7)).unwrap();
            assert_eq!(ours[n].local_addr().unwrap().ip(), net.ours[n], "{org}");
            theirs[n].send_to(b"again", (net.ours[n], 7)).unwrap();
            net.ms(20);
            assert_eq!(ours[n].recv(&mut buf).unwrap(), 5, "{org}");
            // From the same peer, as far as addresses tell, by the other link.
            theirs[1 - n].send_to(b"astray", (net.ours[n], 7)).unwrap();
            net.ms(20);
            assert_eq!(kind(ours[n].recv(&mut buf)), Some(ErrorKind::WouldBlock));
            // It is for who is bound to that link, while that one has no peer.
            let other = ours[1 - n].recv_from(&mut buf).ok().map(|(len, _)| len);
            assert_eq!(other, (n == 0).then_some(6), "{org}");
        }
        // Everybody on a link, and a group.
        let to = match net.theirs {
            IpAddr::V4(_) => IpAddr::from([239, 1, 2, 3]),
            IpAddr::V6(_) => "ff15::123".parse().unwrap(),
        };
        let far = [0, 1].map(|n| {
            let member = datagrams(&net.hosts[n], net.any(70), None);
            match to {
                IpAddr::V4(g) => member.join_multicast_v4(&g, &[0; 4].into()).unwrap(),
                IpAddr::V6(g) => member.join_multicast_v6(&g, 0).unwrap(),
            }
            member
        });
        for n in [0u16, 1] {
            let sender = datagrams(&net.s, net.any(0), Some(n));
            // Its own interface comes first.
            sender.set_multicast_interface(Some(1 - n)).unwrap();
            assert_eq!(sender.multicast_interface().unwrap(), Some(1 - n));
            sender.send_to(b"all of you", (to, 70)).unwrap();
            net.ms(20);
            let got = [0, 1].map(|k| far[k].recv_from(&mut buf).is_ok());
            assert_eq!(got, [n == 0, n == 1], "{org}");
        }
    });
}

#[test]
fn a_socket_of_datagrams_is_bound_later() {
    everywhere(|net| {
        let org = net.org();
        let theirs = [0, 1].map(|n| datagrams(&net.hosts[n], (net.theirs, 7).into(), None));
        let ours = datagrams(&net.s, net.any(7), None);
        let (mut buf, peer) = ([0; 100], (net.theirs, 7));
        // Who it hears, and who hears it.
        let met = |buf: &mut [u8]| {
            for n in [0, 1] {
                theirs[n].send_to(&[n as u8], (net.ours[n], 7)).unwrap();
            }
            ours.send_to(b"hello", peer).unwrap();
            net.ms(20);
            let mut hears = Vec::new();
            while ours.recv_from(buf).is_ok() {
                hears.push(buf[0]);
            }
            hears.sort_unstable();
            (hears, [0, 1].map(|n| theirs[n].recv_from(buf).is_ok()))
        };
        let unbound = (vec![0, 1], [true, false]);
        assert_eq!(met(&mut buf), unbound, "{org}");
        ours.bind_device(Some("right")).unwrap();
        assert_eq!(met(&mut buf), (vec![1], [false, true]), "{org}");
        let e = ours.bind_device(Some("middle")).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "{org}");
        assert!(e.to_string().contains("left, right, lo"), "{e}");
        assert_eq!(ours.device().unwrap().as_deref(), Some("right"), "{org}");
        // With a peer, too.
        ours.connect(peer).unwrap();
        assert_eq!(met(&mut buf), (vec![1], [false, true]), "{org}");
        ours.bind_device(Some("left")).unwrap();
        theirs[0].send_to(b"astray", (net.ours[1], 7)).unwrap();
        theirs[1].send_to(b"dropped", (net.ours[1], 7)).unwrap();
        net.ms(20);
        assert_eq!(ours.recv(&mut buf).unwrap(), 6, "{org}");
        assert_eq!(kind(ours.recv(&mut buf)), Some(ErrorKind::WouldBlock));
        ours.bind_device(None).unwrap();
        theirs[1].send_to(b"welcome", (net.ours[1], 7)).unwrap();
        net.ms(20);
        assert_eq!(ours.recv(&mut buf).unwrap(), 7, "{org}");
    });
}

/// Two links without hosts: what comes is injected, what goes is read.
struct Links {
    p: Virtual,
    s: Stack,
    wires: [ScriptHandle<Virtual>; 2],
}

fn scripted(body: fn(Links)) {
    each_simulated(&VirtualConfig::default(), move |p, org| {
        let (left, one) = script(&p, "left", 1500);
        let (right, two) = script(&p, "right", 1500);
        let s = Stack::builder().on_virtual(p.clone()).org(org);
        // Both lead to the peer.
        let s = s.interface(left, &["10.0.0.1/24"]).unwrap();
        let s = s.interface(right, &["10.0.0.3/24"]).unwrap();
        body(Links {
            s: s.build().unwrap(),
            p,
            wires: [one, two],
        });
    });
}

impl Links {
    fn pass(&self, ms: u64) {
        drive(&self.p, &self.s, ms);
    }

    /// A segment of the peer's comes by a link; the packets that leave by either.
    fn comes(&self, link: usize, hdr: &TcpHdr, payload: &[u8]) -> [Vec<Vec<u8>>; 2] {
        assert!(self.wires[link].inject(self.p.now(), &tcp(hdr, payload)));
        self.pass(5);
        self.sent()
    }

    fn sent(&self) -> [Vec<Vec<u8>>; 2] {
        let next = |w: &ScriptHandle<Virtual>| w.next().map(|f| f.bytes);
        let all = self.wires.each_ref();
        all.map(|w| std::iter::from_fn(|| next(w)).collect())
    }

    fn listen(&self, device: Option<&str>) -> TcpListener {
        let at = Listen::at("10.0.0.1:9".parse().unwrap());
        let at = device.map_or(at.clone(), |device| at.bind_device(device));
        quiet(self.s.listen_as(&at).unwrap())
    }

    /// A handshake by a link from that port; what the peer sends next.
    fn meets(&self, link: usize, port: u16) -> TcpHdr {
        let syn = syn((port, 9));
        let sent = self.comes(link, &syn, b"");
        assert_eq!((sent[link].len(), sent[1 - link].len()), (1, 0));
        let ack = completes(&syn, &sent[link][0]);
        self.comes(link, &ack, b"");
        ack
    }
}

/// What comes by another interface is none of a connection's that is bound to one, whatever it says;
/// one that is bound to none takes it.
#[test]
fn an_established_connection_stays_on_its_interface() {
    scripted(|net| {
        let org = net.s.organization().to_string();
        let astray = || net.s.stats().count("drop_other_interface");
        for bound in [true, false] {
            let l = net.listen(bound.then_some("right"));
            let ack = net.meets(usize::from(bound), 5000);
            let (a, _) = l.accept().unwrap();
            a.set_nonblocking(true).unwrap();
            let mut buf = [0; 100];
            let before = astray();
            let data = TcpHdr {
                flags: TcpFlags::ACK | TcpFlags::PSH,
                ..ack
            };
            let sent = net.comes(usize::from(!bound), &data, b"hello");
            assert_eq!((&a).read(&mut buf).ok(), (!bound).then_some(5), "{org}");
            if bound {
                assert!(sent.iter().all(Vec::is_empty), "{org}: nobody answers");
                let rst = TcpHdr {
                    flags: TcpFlags::RST,
                    ..ack
                };
                net.comes(0, &rst, b"");
                assert_eq!(astray(), before + 2, "{org}");
                // One after the other by its own: predicted, merged, or both.
                for (n, part) in [b"one".as_slice(), b"two!", b"three"].iter().enumerate() {
                    let seq = ack.seq + [0, 3, 7][n];
                    net.wires[1].inject(net.p.now(), &tcp(&TcpHdr { seq, ..data }, part));
                }
                net.pass(5);
                assert_eq!((&a).read(&mut buf).unwrap(), 12, "{org}");
                assert_eq!(&buf[..12], b"onetwo!three", "{org}");
                assert_eq!((&a).write(b"answer").unwrap(), 6);
                net.pass(300);
                let [left, right] = net.sent();
                assert!(left.is_empty() && !right.is_empty(), "{org}");
            }
            assert_eq!(astray() > before, bound, "{org}");
            a.set_linger(Some(Duration::ZERO)).unwrap();
            drop((a, l));
            net.pass(5);
            net.sent();
        }
    });
}

/// Handshakes leave by their listener's interface with its time to live and type of service, also when
/// they are sent again, and end with that listener alone.
#[test]
fn handshakes_stay_on_their_interface() {
    scripted(|net| {
        let org = net.s.organization().to_string();
        let [left, right] = LINKS.map(|device| net.listen(Some(device)));
        right.set_ttl(7).unwrap();
        right.set_tos(0x48).unwrap();
        assert_eq!((right.ttl().unwrap(), right.tos().unwrap()), (7, 0x48));
        assert_eq!((left.ttl().unwrap(), left.tos().unwrap()), (64, 0));
        assert!(right.take_error().unwrap().is_none());
        let syns = [0, 1].map(|n| syn((5000 + n, 9)));
        let looks = |sent: &[Vec<u8>]| -> Vec<(u8, u8)> {
            let sum = |p: &Vec<u8>| perimeter_wire::checksum::checksum(&p[..20]);
            assert!(sent.iter().all(|p| sum(p) == 0), "{org}");
            sent.iter().map(|p| (p[8], p[1])).collect()
        };
        let first = net.comes(0, &syns[0], b"");
        assert_eq!(first.each_ref().map(|p| looks(p)), [vec![(64, 0)], vec![]]);
        let second = net.comes(1, &syns[1], b"");
        assert_eq!(
            second.each_ref().map(|p| looks(p)),
            [vec![], vec![(7, 0x48)]]
        );
        // The SYN again, and nobody answers for a second.
        let again = net.comes(1, &syns[1], b"");
        assert_eq!(looks(&again[1]), [(7, 0x48)], "{org}");
        net.pass(1100);
        let again = net.sent();
        assert_eq!(
            again.each_ref().map(|p| looks(p)),
            [vec![(64, 0)], vec![(7, 0x48)]]
        );
        // One listener closes: the peer of its handshake is told, and no other.
        left.close().unwrap();
        net.pass(5);
        let [gone, other] = net.sent();
        assert_eq!((gone.len(), other.len()), (1, 0), "{org}");
        let (rst, _) = TcpHdr::parse(&gone[0][20..]).unwrap();
        assert!(rst.flags.contains(TcpFlags::RST), "{org}");
        let ack = completes(&syns[1], &second[1][0]);
        net.comes(1, &ack, b"");
        let (a, _) = right.accept().unwrap();
        assert_eq!((a.ttl().unwrap(), a.tos().unwrap()), (7, 0x48), "{org}");
        assert_eq!(kind(left.ttl()), Some(ErrorKind::NotConnected), "{org}");
    });
}
