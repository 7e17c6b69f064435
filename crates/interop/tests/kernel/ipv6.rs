//! IPv6 with the kernel at the other end, over TAP, where neighbours are discovered, and over TUN.

use crate::common::{LIMIT, Load, accept, alone, each_family, finish, peer, size, until, wind_up};
use crate::transfer::{receive, send};
use perimeter::link::Medium;
use perimeter::link::tap::{Tap, TapConfig, host};
use perimeter::{Config, Ipv6Config, Offload, OrgSpec, Stack, TcpStream};
use perimeter_interop::program::{Program, python};
use perimeter_interop::taps;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr};
use std::time::{Duration, Instant};

const NAME: &str = "perimeter0";
const STACK: &str = "fd99::2";
const KERNEL: &str = "fd99::1";
/// Its solicited-node group (RFC 4291, section 2.7.1).
const KERNEL_GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);

/// Runs a program that ends at once.
fn run(command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a program");
    let args: Vec<&str> = words.collect();
    Program::start(program, args, LIMIT).finish_with(|| {}).ok();
}

fn setting(name: &str, value: &str) {
    let path = format!("/proc/sys/net/ipv6/conf/{NAME}/{name}");
    std::fs::write(&path, value).unwrap_or_else(|e| panic!("{path}: {e}"));
}

/// The interface, and the kernel's side of it, whose address is used at once.
fn open(config: &TapConfig) -> Tap {
    let tap = taps::open_patiently(config).unwrap_or_else(|e| panic!("{e}"));
    setting("accept_dad", "0");
    host::set_up(tap.name(), true).expect("up");
    run(&format!("ip -6 addr add {KERNEL}/64 dev {NAME} nodad"));
    // The kernel listens to who asks for its address a moment later; on a busy machine the only
    // question, of who looks for duplicates, may come before.
    let end = Instant::now() + Duration::from_secs(10);
    while config.medium == Medium::Ethernet && !hears_of(KERNEL_GROUP) {
        assert!(Instant::now() < end, "the kernel joins {KERNEL}'s group");
        std::thread::sleep(Duration::from_millis(1));
    }
    tap
}

/// Whether the kernel has joined a group on the interface.
fn hears_of(group: Ipv6Addr) -> bool {
    let joined = std::fs::read_to_string("/proc/thread-self/net/igmp6").expect("groups");
    let group = format!("{:032x}", group.to_bits());
    let on_ours = |line: &&str| line.split_whitespace().nth(1) == Some(NAME);
    joined.lines().filter(on_ours).any(|l| l.contains(&group))
}

/// A stack over it at these addresses; it asks nobody whether it may have them.
fn stack_on(org: &OrgSpec, tap: Tap, config: Config, addrs: &[&str]) -> Stack {
    let b = Stack::builder().org(org.clone()).config(config);
    let b = b.interface(tap, addrs).expect("an interface");
    b.build().expect("a stack")
}

fn at_once() -> Config {
    Config::default().with_ipv6(Ipv6Config::default().with_dad_transmits(0))
}

fn at(host: &str, port: u16) -> SocketAddr {
    SocketAddr::new(host.parse().expect("an address"), port)
}

fn peer_accepts(port: u16, what: &[&str]) -> Program {
    let mut p = peer(&[&["accept", KERNEL, &port.to_string()], what].concat());
    assert_eq!(p.line(), "ready");
    p
}

fn limit(s: &TcpStream) {
    s.set_read_timeout(Some(LIMIT)).expect("a limit");
    s.set_write_timeout(Some(LIMIT)).expect("a limit");
}

/// Data each way over connections opened by each end, with equal digests.
fn transfers(stack: &Stack) {
    let bytes = size().to_string();
    let we_send = |s: TcpStream, p: Program| {
        limit(&s);
        let digest = send(&s, size());
        s.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(finish(stack, p), format!("{} {digest}", size()));
        assert_eq!((&s).read(&mut [0; 1]).expect("the end"), 0);
    };
    let we_receive = |s: TcpStream, p: Program| {
        limit(&s);
        let (digest, n) = receive(&s);
        assert_eq!(n, size());
        drop(s);
        assert_eq!(finish(stack, p), format!("{n} {digest}"));
    };
    let p = peer_accepts(9001, &["transfer", "receive"]);
    we_send(stack.connect(at(KERNEL, 9001)).expect("connected"), p);
    let p = peer_accepts(9002, &["transfer", "send", &bytes]);
    we_receive(stack.connect(at(KERNEL, 9002)).expect("connected"), p);
    let l = stack.listen("[::]:7001").expect("a listener");
    let connects = |what: &[&str]| peer(&[&["connect", STACK, "7001"], what].concat());
    let p = connects(&["transfer", "receive"]);
    we_send(accept(&l), p);
    let p = connects(&["transfer", "send", &bytes]);
    we_receive(accept(&l), p);
    drop(l);
    let e = stack.connect(at(KERNEL, 9)).expect_err("refused");
    assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
}

/// Three echoes, one at a time: once ping has seen an answer, it waits for another no longer than an
/// interval, whatever -W says.
fn pinged(stack: &Stack, to: &str, more: &[&str]) {
    for _ in 0..3 {
        let args = [&["-6", "-c", "1", "-W", "5"], more, &[to]].concat();
        let said = finish(stack, Program::start("ping", args, LIMIT));
        assert!(said.contains("1 received"), "{said}");
    }
}

const ADDRS: &[&str] = &["fd99::2/64", "fe80::2/64"];

#[test]
fn transfers_and_echoes_over_tap() {
    each_family(&["python3", "ip", "ping"], Load::Works, |org| {
        let tap = open(&TapConfig::new(NAME));
        let stack = stack_on(org, tap, at_once(), ADDRS);
        transfers(&stack);
        pinged(&stack, STACK, &[]);
        pinged(&stack, "fe80::2%perimeter0", &["-s", "1400"]);
        wind_up(&stack);
    });
}

#[test]
fn transfers_with_large_segments() {
    each_family(&["python3", "ip"], Load::Works, |org| {
        for offload in [Offload::Software, Offload::Device] {
            let tap = open(&TapConfig::new(NAME).with_large(true));
            let config = at_once().with_offload(offload);
            let stack = stack_on(org, tap, config, ADDRS);
            transfers(&stack);
            let stats = stack.stats();
            assert!(stats.count("tx_large") > 0, "{org}");
            wind_up(&stack);
        }
    });
}

#[test]
fn transfers_and_echoes_over_tun() {
    each_family(&["python3", "ip", "ping"], Load::Works, |org| {
        let tap = open(&TapConfig::new(NAME).with_medium(Medium::Ip));
        // Nobody is asked on a link without stations, whatever the setting.
        let stack = stack_on(org, tap, Config::default(), ADDRS);
        transfers(&stack);
        pinged(&stack, STACK, &[]);
        wind_up(&stack);
    });
}

/// The kernel has the address already: it is not ours.
#[test]
fn an_address_that_the_kernel_has() {
    each_family(&["ip"], Load::Waits, |org| {
        let tap = open(&TapConfig::new(NAME));
        let stack = stack_on(org, tap, Config::default(), &["fd99::1/64", "fd99::2/64"]);
        until(&stack, "the conflict", || {
            !stack.duplicate_addresses().is_empty()
        });
        let theirs: IpAddr = KERNEL.parse().expect("an address");
        assert_eq!(stack.duplicate_addresses(), [(0, theirs)], "{org}");
        // And we defend ours against the kernel.
        let kept = |stack: &Stack| stack.addresses()[0].len() == 1;
        assert!(kept(&stack));
        setting("accept_dad", "1");
        let settle = Instant::now();
        until(&stack, "two seconds", || {
            settle.elapsed() > Duration::from_secs(2)
        });
        run(&format!("ip -6 addr add {STACK}/64 dev {NAME}"));
        until(&stack, "the kernel to give in", || {
            let list = Program::start("ip", ["-6", "addr", "show", "dev", NAME], LIMIT);
            let list = finish(&stack, list);
            if !list.contains("tentative") && !list.contains("dadfailed") {
                // On a busy machine we may come too late for the second that it waits.
                run(&format!("ip -6 addr del {STACK}/64 dev {NAME}"));
                run(&format!("ip -6 addr add {STACK}/64 dev {NAME}"));
            }
            list.contains("dadfailed")
        });
        assert!(kept(&stack) && stack.duplicate_addresses().len() == 1);
    });
}

/// A neighbour that was there goes, and whoever connects to it is told.
#[test]
fn the_kernel_is_gone() {
    each_family(&["ip", "python3"], Load::Waits, |org| {
        let tap = open(&TapConfig::new(NAME));
        let stack = stack_on(org, tap, at_once(), ADDRS);
        let e = stack.connect(at(KERNEL, 9)).expect_err("refused");
        assert_eq!(e.kind(), ErrorKind::ConnectionRefused, "{org}");
        let e = stack.connect(at("fd99::77", 9)).expect_err("nobody");
        assert_eq!(e.kind(), ErrorKind::HostUnreachable, "{org}");
    });
}

/// A router's advertisement, from Python: a prefix, an MTU and a way out; then it is no router
/// any more.
#[test]
fn an_advertisement_of_the_kernels_side() {
    each_family(&["ip", "python3"], Load::Waits, |org| {
        let tap = open(&TapConfig::new(NAME));
        let config = Config::default().with_ipv6(Ipv6Config::default().with_autoconf(true));
        let stack = stack_on(org, tap, config, &[]);
        run("ip -6 addr add 2001:db8:77::1/128 dev lo nodad");
        run(&format!("ip -6 route add 2001:db8:99::/64 dev {NAME}"));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel/router.py");
        let advertise = |lifetime: &str| {
            let args = ["-I", "-S", script, NAME, "2001:db8:99::", lifetime, "1400"];
            finish(&stack, Program::start(python(), args, LIMIT));
        };
        let prefix: perimeter::Cidr = "2001:db8:99::/64".parse().expect("a prefix");
        until(&stack, "an address", || {
            advertise("1800");
            stack.addresses()[0].iter().any(|a| prefix.contains(a.addr))
        });
        let mut p = peer(&["accept", "2001:db8:77::1", "9001", "transfer", "receive"]);
        assert_eq!(p.line(), "ready");
        let s = stack
            .connect(at("2001:db8:77::1", 9001))
            .expect("by the router");
        limit(&s);
        assert_eq!(s.info().expect("open").tcp.adv_mss_option, 1340, "{org}");
        (&s).write_all(b"hello").expect("sent");
        let from = s.local_addr().expect("open").ip();
        assert!(prefix.contains(from), "{org}: {from}");
        s.shutdown(Shutdown::Write).expect("shut down");
        assert!(finish(&stack, p).starts_with("5 "), "{org}");
        drop(s);
        advertise("0");
        until(&stack, "no way out", || {
            let c = stack.start_connect(at("2001:db8:77::1", 9));
            c.is_err_and(|e| e.kind() == ErrorKind::NetworkUnreachable)
        });
    });
}

/// The kernel as a router that sends what it gets back to the same link, and says so: its redirect is
/// taken where somebody has asked for that, and counted where not.
#[test]
fn a_redirect_of_the_kernels() {
    each_family(&["ip"], Load::Waits, |org| {
        for follow in [false, true] {
            let tap = open(&TapConfig::new(NAME));
            // One link-local address, so that it is the one that it says so from.
            run(&format!("ip -6 addr flush dev {NAME} scope link"));
            run(&format!("ip -6 addr add fe80::1/64 dev {NAME} nodad"));
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").expect("a router");
            run(&format!("ip -6 route add 2001:db8:77::/64 dev {NAME}"));
            let settings = Ipv6Config::default().with_dad_transmits(0);
            let settings = settings.with_accept_redirects(follow);
            let b = Stack::builder().org(org.clone());
            let b = b.config(Config::default().with_ipv6(settings));
            let b = b.interface(tap, ADDRS).expect("an interface");
            let b = b.route("2001:db8:77::/64", Some("fe80::1"), 0);
            let stack = b.expect("a route").build().expect("a stack");
            let u = stack
                .bind_udp((Ipv6Addr::UNSPECIFIED, 0))
                .expect("a socket");
            let counted = |name: &str| stack.stats().count(name);
            let name = ["drop_redirect", "rx_redirects"][usize::from(follow)];
            until(&stack, name, || {
                let _ = u.send_to(b"x", at("2001:db8:77::5", 9));
                counted("drop_redirect") + counted("rx_redirects") > 0
            });
            assert!(counted(name) > 0, "{org}: {follow}");
            assert_eq!(counted("drop_bad_ndp"), 0, "{org}");
        }
    });
}

/// One listener, peers of either family.
#[test]
fn listeners_for_both_families() {
    alone(&["ip", "python3"], || {
        let org: OrgSpec = "connp-l:8".parse().expect("a name");
        let tap = open(&TapConfig::new(NAME));
        host::set_address(NAME, [10, 99, 0, 1].into(), 24).expect("an address");
        let stack = stack_on(&org, tap, at_once(), &["10.99.0.2/24", "fd99::2/64"]);
        let l = stack.listen("[::]:7001").expect("a listener");
        for (host, from) in [("10.99.0.2", "10.99.0.1"), (STACK, KERNEL)] {
            let p = peer(&["connect", host, "7001", "transfer", "receive"]);
            let s = accept(&l);
            let want: IpAddr = from.parse().expect("an address");
            assert_eq!(s.peer_addr().expect("open").ip(), want);
            (&s).write_all(b"hi").expect("sent");
            drop(s);
            assert!(finish(&stack, p).starts_with("2 "));
        }
        let link = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        assert!(stack.connect((link, 9)).is_err());
    });
}
