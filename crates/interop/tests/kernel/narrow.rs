//! A path MTU of 1,280 octets behind the kernel as a router, with its ICMP and without.
//!
//! The stack is on TAP at 1,500 octets, the kernel's side of which is the router; its end of the veth
//! pair that leads on to a server, in a namespace of its own, takes 1,280.

use crate::common::{LIMIT, Load, accept, each_of, families, finish, peer, until};
use crate::transfer::{receive, send};
use crate::udp::{content, peer as udp_peer};
use perimeter::link::tap::{Tap, TapConfig, host};
use perimeter::link::{Capabilities, Device, Queues, RxFrame, RxQueue, RxStatus, Waker};
use perimeter::{Config, Ipv6Config, OrgSpec, Stack, UdpSocket};
use perimeter_base::{PktPool, Time};
use perimeter_interop::{namespace, taps, veths};
use perimeter_wire::{EtherHdr, PROTO_ICMP, PROTO_ICMPV6};
use std::fs::File;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Octets of a transfer.
const SIZE: u64 = 300_000;

/// The addresses of one family.
struct Net {
    stack: &'static str,
    router: &'static str,
    /// The router's, towards the server.
    beyond: &'static str,
    server: &'static str,
    /// Another of the server's.
    other: &'static str,
    prefix: u8,
    /// The headers of IP and UDP, octets.
    headers: usize,
    forwarding: &'static str,
}

const V4: Net = Net {
    stack: "10.99.0.2",
    router: "10.99.0.1",
    beyond: "10.98.0.1",
    server: "10.98.0.2",
    other: "10.98.0.3",
    prefix: 24,
    headers: 28,
    forwarding: "/proc/sys/net/ipv4/ip_forward",
};

const V6: Net = Net {
    stack: "fd99::2",
    router: "fd99::1",
    beyond: "fd98::1",
    server: "fd98::2",
    other: "fd98::3",
    prefix: 64,
    headers: 48,
    forwarding: "/proc/sys/net/ipv6/conf/all/forwarding",
};

impl Net {
    fn server_at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.server.parse().expect("an address"), port)
    }

    fn stack_at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.stack.parse().expect("an address"), port)
    }
}

/// Runs `ip` with these words.
fn ip(words: &str) {
    let words: Vec<&str> = words.split_whitespace().collect();
    veths::ip(&words);
}

fn set(path: &str, value: &str) {
    std::fs::write(path, value).unwrap_or_else(|e| panic!("{path}: {e}"));
}

/// Sees which "too big" of a router's arrive, and takes them away if they are filtered.
struct Filter {
    tap: Tap,
    filters: bool,
    seen: Arc<AtomicU64>,
}

impl Device for Filter {
    fn capabilities(&self) -> Capabilities {
        self.tap.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let (rx, tx) = Box::new(self.tap).open();
        let wrap = |inner| {
            Box::new(FilterRx {
                inner,
                filters: self.filters,
                seen: self.seen.clone(),
            }) as Box<dyn RxQueue>
        };
        (rx.into_iter().map(wrap).collect(), tx)
    }
}

struct FilterRx {
    inner: Box<dyn RxQueue>,
    filters: bool,
    seen: Arc<AtomicU64>,
}

/// Whether that says that a packet was too big: type 3 with code 4, or type 2 over IPv6.
fn too_big(frame: &[u8]) -> bool {
    let Some(packet) = frame.get(EtherHdr::LEN..).filter(|p| p.len() >= 42) else {
        return false;
    };
    match packet[0] >> 4 {
        4 => packet[9] == PROTO_ICMP && packet[20..22] == [3, 4],
        _ => packet[6] == PROTO_ICMPV6 && packet[40] == 2,
    }
}

impl RxQueue for FilterRx {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let before = out.len();
        self.inner.poll(now, pool, out, max);
        let mut told = 0;
        let mut at = 0;
        out.retain(|f| {
            at += 1;
            let told_now = at > before && too_big(f.buf.as_slice());
            told += u64::from(told_now);
            !(told_now && self.filters)
        });
        self.seen.fetch_add(told, Ordering::Relaxed);
        out.len() - before
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        self.inner.arm(now)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.inner.set_waker(waker);
    }

    fn fd(&self) -> Option<RawFd> {
        self.inner.fd()
    }

    fn peer_ns(&self) -> u64 {
        self.inner.peer_ns()
    }
}

/// The router, with TAP on one side; the other leads to the calling thread's namespace, which is the
/// server's. What keeps the router's namespace comes with the device.
fn router(net: &Net) -> (Tap, File) {
    let dad = if net.prefix == 64 { "nodad" } else { "" };
    let no_dad = |name: &str| set(&format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0");
    let here = std::fs::read_link("/proc/thread-self").expect("a thread");
    let (tap, kept) = namespace::within(|| {
        let tap = Tap::open(&TapConfig::new(taps::NAME)).unwrap_or_else(|e| panic!("{e}"));
        ip("link add near0 mtu 1280 type veth peer name far0");
        for (name, addr) in [(taps::NAME, net.router), ("near0", net.beyond)] {
            no_dad(name);
            host::set_up(name, true).expect("up");
            ip(&format!("addr add {addr}/{} dev {name} {dad}", net.prefix));
        }
        set(net.forwarding, "1");
        ip(&format!(
            "link set far0 netns /proc/{}/ns/net",
            here.display()
        ));
        (
            tap,
            File::open("/proc/thread-self/ns/net").expect("a namespace"),
        )
    });
    no_dad("far0");
    for addr in [net.server, net.other] {
        ip(&format!("addr add {addr}/{} dev far0 {dad}", net.prefix));
    }
    host::set_up("far0", true).expect("up");
    // The server knows of the path, and says nothing of it in its MSS option.
    let mss = 1500 + 8 - net.headers - 20;
    let way = "mtu 1280 advmss";
    ip(&format!("route add default via {} {way} {mss}", net.beyond));
    (tap, kept)
}

/// A stack at the near end of the path, and how many "too big" have come to it.
fn near(org: &OrgSpec, net: &Net, tap: Tap, filters: bool) -> (Stack, Arc<AtomicU64>) {
    let seen = Arc::new(AtomicU64::new(0));
    let device = Filter {
        tap,
        filters,
        seen: seen.clone(),
    };
    let config = Config::default().with_ipv6(Ipv6Config::default().with_dad_transmits(0));
    let everywhere = if net.prefix == 64 {
        "::/0"
    } else {
        "0.0.0.0/0"
    };
    let addr = format!("{}/{}", net.stack, net.prefix);
    let b = Stack::builder().org(org.clone()).config(config);
    let b = b.interface(device, &[&addr]).expect("an interface");
    let b = b.route(everywhere, Some(net.router), 0).expect("a route");
    (b.build().expect("a stack"), seen)
}

/// Data each way, over a connection that each end has opened, with equal digests.
fn streams(stack: &Stack, net: &Net) {
    let mut p = peer(&["accept", net.server, "9001", "transfer", "receive"]);
    assert_eq!(p.line(), "ready");
    let s = stack.connect(net.server_at(9001)).expect("connected");
    s.set_write_timeout(Some(LIMIT)).expect("a limit");
    let digest = send(&s, SIZE);
    s.shutdown(Shutdown::Write).expect("shut down");
    assert_eq!(finish(stack, p), format!("{SIZE} {digest}"));
    let pmtu = s.info().expect("open").tcp.pmtu;
    assert!(pmtu <= 1280, "{pmtu}");
    let l = stack.listen(net.stack_at(7001)).expect("a listener");
    let to = ["connect", net.stack, "7001", "transfer", "send"];
    let p = peer(&[&to[..], &[&SIZE.to_string()]].concat());
    let s = accept(&l);
    let (digest, n) = receive(&s);
    drop(s);
    assert_eq!(finish(stack, p), format!("{n} {digest}"));
}

fn socket(stack: &Stack, net: &Net, port: u16) -> UdpSocket {
    let s = stack.bind_udp(net.stack_at(port)).expect("a free port");
    s.set_nonblocking(true).expect("set");
    s
}

fn received(stack: &Stack, s: &UdpSocket, buf: &mut [u8]) -> (usize, SocketAddr) {
    let mut got = None;
    until(stack, "a datagram", || {
        got = s.recv_from(buf).ok();
        got.is_some()
    });
    got.expect("a datagram")
}

/// Datagrams of these sizes to the server and back.
fn we_ask(stack: &Stack, net: &Net, sizes: &[usize]) {
    let mut p = udp_peer(&["echo", net.server, "7", &sizes.len().to_string()]);
    assert_eq!(p.line(), "ready");
    let s = socket(stack, net, 9);
    let mut buf = vec![0; 65_536];
    for &n in sizes {
        let data = content(n);
        assert_eq!(s.send_to(&data, net.server_at(7)).expect("sent"), n);
        assert_eq!(received(stack, &s, &mut buf), (n, net.server_at(7)));
        assert!(buf[..n] == data, "{n} octets");
    }
    assert_eq!(finish(stack, p), sizes.iter().sum::<usize>().to_string());
}

/// Datagrams from the server and back to it.
fn they_ask(stack: &Stack, net: &Net, sizes: &[usize]) {
    let s = socket(stack, net, 7);
    let words = sizes.iter().map(usize::to_string).collect::<Vec<_>>();
    let words = words.iter().map(String::as_str).collect::<Vec<_>>();
    let p = udp_peer(&[&["ask", net.stack, "7"], &words[..]].concat());
    let mut buf = vec![0; 65_536];
    for &n in sizes {
        let (len, from) = received(stack, &s, &mut buf);
        assert_eq!(len, n);
        assert_eq!(s.send_to(&buf[..len], from).expect("sent"), n);
    }
    assert_eq!(finish(stack, p), "good");
}

/// Every organization's family, over both families of addresses.
fn everywhere(test: impl Fn(&OrgSpec, &Net) + Send + Sync) {
    let both = |org: OrgSpec| [(org.clone(), &V4), (org, &V6)];
    let all: Vec<_> = families().into_iter().flat_map(both).collect();
    each_of(&["ip", "python3"], Load::Waits, &all, |(org, net)| {
        test(org, net)
    });
}

/// The router says what it takes: connections to one of the server's addresses hear of it, and
/// sockets of datagrams to the other.
#[test]
fn a_router_that_says_what_it_takes() {
    everywhere(|org, net| {
        let (tap, _router) = router(net);
        let (stack, seen) = near(org, net, tap, false);
        streams(&stack, net);
        let other = SocketAddr::new(net.other.parse().expect("an address"), 10);
        let probe = socket(&stack, net, 10);
        probe.connect(other).expect("a way");
        assert_eq!(probe.path_mtu().expect("a path"), 1500, "{org}");
        until(&stack, "the router's word", || {
            // An error tells of what was lost.
            let _ = probe.send(&content(1500 - net.headers));
            probe.path_mtu().expect("a path") == 1280
        });
        let fits = 1280 - net.headers;
        let sizes = [1, fits, fits + 1, 1500 - net.headers, 4000, 65_507];
        we_ask(&stack, net, &sizes);
        they_ask(&stack, net, &sizes);
        let stats = stack.stats();
        assert!(seen.load(Ordering::Relaxed) >= 2, "{org}");
        assert!(stats.count("path_mtu_lowered") >= 2, "{org}");
        assert_eq!(stats.count("path_black_holes"), 0, "{org}");
    });
}

/// What the router says is filtered: connections find the black hole and leave it. Datagrams pass that
/// fit, and over IPv4 those that the router may cut itself; the other way, all.
#[test]
fn a_router_whose_word_is_filtered() {
    everywhere(|org, net| {
        let (tap, _router) = router(net);
        let (stack, seen) = near(org, net, tap, true);
        let fits = 1280 - net.headers;
        let cut = if net.prefix == 24 {
            &[4000, 65_507][..]
        } else {
            &[]
        };
        we_ask(&stack, net, &[&[1, fits], cut].concat());
        they_ask(&stack, net, &[&[1, fits], cut].concat());
        streams(&stack, net);
        let stats = stack.stats();
        assert!(seen.load(Ordering::Relaxed) > 0, "{org}");
        assert_eq!(stats.count("path_mtu_lowered"), 0, "{org}");
        assert!(stats.count("path_black_holes") > 0, "{org}");
    });
}
