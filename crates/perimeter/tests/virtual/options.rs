//! Socket options, under every organization and over both families: what is set is told, stands in
//! what is sent, and holds from the first segment on.

use crate::path_mtu::{Net, everywhere};
use perimeter::{Keepalive, TcpListener, TcpSocket, TcpStream, UdpConfig};
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::time::Duration;

const SYN: u8 = 2;
const ACK: u8 = 16;

fn tick() -> Keepalive {
    Keepalive::default()
        .with_idle(Duration::from_secs(70))
        .with_interval(Duration::from_millis(1500))
        .with_probes(4)
}

fn socket(net: &Net) -> TcpSocket {
    match net.hosts[0].is_ipv6() {
        true => net.s.tcp_socket_v6(),
        false => net.s.tcp_socket_v4(),
    }
}

fn ours(net: &Net, port: u16) -> SocketAddr {
    (net.hosts[0], port).into()
}

fn listening(net: &Net, port: u16) -> TcpListener {
    let l = net.peer.listen((net.hosts[1], port)).unwrap();
    l.set_nonblocking(true).unwrap();
    l
}

fn kind<T>(r: Result<T>) -> ErrorKind {
    match r {
        Ok(_) => panic!("it is taken"),
        Err(e) => e.kind(),
    }
}

/// Writes an octet; the time to live and type of service of what left.
fn sent(net: &Net, s: &TcpStream) -> (u8, u8) {
    net.ms(300);
    net.segments();
    assert_eq!((&*s).write(b"x").unwrap(), 1);
    net.ms(20);
    let (ttl, tos, _) = *net.segments().last().expect("a segment");
    (ttl, tos)
}

#[test]
fn a_socket_that_is_set_up_before_it_connects() {
    everywhere(
        |_| {},
        |net| {
            let org = net.s.organization().to_string();
            // Addresses of IPv6 are looked at first.
            net.ms(3000);
            let l = listening(&net, 80);
            let socket = socket(&net);
            let v6 = net.hosts[0].is_ipv6();
            let other: SocketAddr = match v6 {
                true => (Ipv4Addr::UNSPECIFIED, 4000).into(),
                false => (Ipv6Addr::UNSPECIFIED, 4000).into(),
            };
            assert_eq!(kind(socket.bind(other)), ErrorKind::InvalidInput);
            assert_eq!(socket.local_addr().unwrap().port(), 0);
            socket.bind(ours(&net, 4000)).unwrap();
            assert_eq!(kind(socket.bind(ours(&net, 4001))), ErrorKind::InvalidInput);
            assert_eq!(socket.local_addr().unwrap(), ours(&net, 4000));
            assert_eq!(kind(socket.set_ttl(0)), ErrorKind::InvalidInput);
            assert_eq!(kind(socket.set_ttl(256)), ErrorKind::InvalidInput);
            assert_eq!(kind(socket.set_reuseaddr(false)), ErrorKind::Unsupported);
            assert!(!socket.nodelay().unwrap() && socket.keepalive().unwrap().is_none());
            assert_eq!(socket.ttl().unwrap(), None);
            socket.set_nodelay(true).unwrap();
            socket.set_keepalive(Some(tick())).unwrap();
            socket.set_send_buffer_size(40_000).unwrap();
            socket.set_recv_buffer_size(50_000).unwrap();
            socket.set_linger(Some(Duration::ZERO)).unwrap();
            socket.set_tos(0xb8).unwrap();
            socket.set_ttl(9).unwrap();
            let c = socket.start_connect((net.hosts[1], 80).into()).unwrap();
            net.ms(20);
            let (a, from) = l.accept().unwrap();
            // From the SYN on, though the next hop had to be asked for first.
            let all = net.segments();
            let syn = all.iter().find(|s| s.2 & SYN != 0).copied();
            assert_eq!(syn, Some((9, 0xb8, SYN)), "{org}");
            assert!(
                all.iter().all(|s| (s.0, s.1) == (9, 0xb8)),
                "{org}: {all:?}"
            );
            assert_eq!((from, c.local_addr().unwrap()), (ours(&net, 4000), from));
            assert!(c.nodelay().unwrap(), "{org}");
            assert_eq!(c.keepalive().unwrap(), Some(tick()), "{org}");
            assert_eq!(c.send_buffer_size().unwrap(), 40_000, "{org}");
            assert_eq!(c.recv_buffer_size().unwrap(), 50_000, "{org}");
            assert_eq!(c.linger().unwrap(), Some(Duration::ZERO), "{org}");
            assert_eq!((c.ttl().unwrap(), c.tos().unwrap()), (9, 0xb8), "{org}");
            assert!(!c.cork().unwrap(), "{org}");
            assert_eq!(c.user_timeout().unwrap(), None, "{org}");
            c.set_user_timeout(Some(Duration::from_micros(1500)))
                .unwrap();
            c.set_cork(true).unwrap();
            assert!(c.cork().unwrap(), "{org}");
            assert!(
                c.user_timeout().unwrap() >= Some(Duration::from_millis(1)),
                "{org}"
            );
            c.set_user_timeout(None).unwrap();
            c.set_cork(false).unwrap();
            assert_eq!(c.user_timeout().unwrap(), None, "{org}");
            // And changed.
            assert_eq!(kind(c.set_ttl(0)), ErrorKind::InvalidInput, "{org}");
            c.set_ttl(77).unwrap();
            c.set_nodelay(false).unwrap();
            c.set_keepalive(None).unwrap();
            assert_eq!(sent(&net, &c), (77, 0xb8), "{org}");
            c.set_tos(4).unwrap();
            assert_eq!(sent(&net, &c), (77, 4), "{org}");
            assert!(!c.nodelay().unwrap() && c.keepalive().unwrap().is_none());
            assert_eq!((c.ttl().unwrap(), c.tos().unwrap()), (77, 4), "{org}");
            // The other end has what is usual.
            assert_eq!((a.ttl().unwrap(), a.tos().unwrap()), (64, 0), "{org}");
            // The port is taken, for that peer.
            let again = match v6 {
                true => net.s.tcp_socket_v6(),
                false => net.s.tcp_socket_v4(),
            };
            again.bind(ours(&net, 4000)).unwrap();
            let e = kind(again.start_connect((net.hosts[1], 80).into()));
            assert_eq!(e, ErrorKind::AddrInUse, "{org}");
        },
    );
}

#[test]
fn a_socket_that_is_set_up_before_it_listens() {
    everywhere(
        |_| {},
        |net| {
            let org = net.s.organization().to_string();
            // Addresses of IPv6 are looked at first.
            net.ms(3000);
            let v6 = net.hosts[0].is_ipv6();
            let listen = || {
                let socket = socket(&net);
                socket.set_ttl(33).unwrap();
                socket.set_tos(0x28).unwrap();
                socket.set_nodelay(true).unwrap();
                socket.set_reuseaddr(true).unwrap();
                assert!(socket.reuseaddr().unwrap());
                match v6 {
                    true => socket.set_only_v6(true).unwrap(),
                    false => assert_eq!(kind(socket.set_only_v6(true)), ErrorKind::InvalidInput),
                }
                let any: SocketAddr = match v6 {
                    true => (Ipv6Addr::UNSPECIFIED, 82).into(),
                    false => (Ipv4Addr::UNSPECIFIED, 82).into(),
                };
                socket.bind(any).unwrap();
                socket.listen(5)
            };
            let l = listen().unwrap();
            l.set_nonblocking(true).unwrap();
            assert_eq!(l.only_v6().unwrap(), v6, "{org}");
            assert_eq!(kind(listen()), ErrorKind::AddrInUse, "{org}");
            let c = net.peer.start_connect(ours(&net, 82)).unwrap();
            net.ms(20);
            let (a, _) = l.accept().unwrap();
            // From the SYN-ACK on.
            let syn_ack = net.segments().iter().find(|s| s.2 & SYN != 0).copied();
            assert_eq!(syn_ack, Some((33, 0x28, SYN | ACK)), "{org}");
            assert_eq!((l.ttl().unwrap(), l.tos().unwrap()), (33, 0x28), "{org}");
            assert_eq!((a.ttl().unwrap(), a.tos().unwrap()), (33, 0x28), "{org}");
            // And changed, for who comes later.
            assert_eq!(kind(l.set_ttl(0)), ErrorKind::InvalidInput, "{org}");
            l.set_ttl(34).unwrap();
            l.set_tos(0x30).unwrap();
            let later = net.peer.start_connect(ours(&net, 82)).unwrap();
            net.ms(20);
            let all = net.segments();
            assert!(
                all.iter().all(|s| (s.0, s.1) == (34, 0x30)),
                "{org}: {all:?}"
            );
            let (b, _) = l.accept().unwrap();
            assert_eq!((b.ttl().unwrap(), b.tos().unwrap()), (34, 0x30), "{org}");
            drop((b, later));
            net.ms(20);
            assert!(a.nodelay().unwrap(), "{org}");
            assert_eq!(sent(&net, &a), (33, 0x28), "{org}");
            // Closed first here, the connection waits, and keeps nobody from the port.
            a.shutdown(Shutdown::Write).unwrap();
            net.ms(20);
            c.set_nonblocking(true).unwrap();
            assert_eq!((&c).read(&mut [0; 9]).unwrap(), 1);
            drop((c, a, l));
            net.ms(300);
            assert!(!net.s.connections().is_empty(), "{org}: it waits");
            listen().unwrap();
            // Unbound, at any free port.
            assert_ne!(
                socket(&net).listen(1).unwrap().local_addr().unwrap().port(),
                0
            );
        },
    );
}

#[test]
fn sockets_of_datagrams_tell_their_family() {
    everywhere(
        |_| {},
        |net| {
            for only_v6 in [false, true] {
                let config = UdpConfig::default().with_only_v6(only_v6);
                let s = net.s.bind_udp_with((Ipv6Addr::UNSPECIFIED, 0), &config);
                assert_eq!(s.unwrap().only_v6().unwrap(), only_v6);
            }
        },
    );
}
