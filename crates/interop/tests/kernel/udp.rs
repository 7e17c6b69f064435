//! Datagrams between the stack and the kernel's own UDP, over TAP.

use crate::common::{LIMIT, Load, each, each_family, finish, until};
use perimeter::link::Device as _;
use perimeter::link::tap::TapConfig;
use perimeter::{Config, Datagrams, Ipv6Config, OrgSpec, Stack, UdpSocket};
use perimeter_interop::program::{Program, python};
use perimeter_interop::{taps, veths};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// Sizes of one frame, at its edge, of several fragments, and the longest.
const SIZES: [usize; 9] = [0, 1, 64, 77, 1472, 1473, 4000, 30_000, 65_507];

pub fn content(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 + i / 251) as u8).collect()
}

pub fn peer(args: &[&str]) -> Program {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel/udp_peer.py");
    Program::start(python(), [&["-I", "-S", script], args].concat(), LIMIT)
}

fn bind(stack: &Stack, port: u16) -> UdpSocket {
    let s = stack.bind_udp(taps::stack_at(port)).expect("a free port");
    s.set_nonblocking(true).expect("set");
    s
}

/// Nothing was malformed, and nothing dropped but what a test says.
fn well_formed(stack: &Stack, but: &[&str]) {
    let expected = ["drop_other_protocol", "drop_not_ours", "drop_tx_ring_full"];
    for (name, n) in &stack.stats().counts {
        let known = expected.contains(&name.as_str()) || but.contains(&name.as_str());
        assert!(
            *n == 0 || known || !name.starts_with("drop_"),
            "{name}: {n}"
        );
    }
}

fn they_echo(org: &OrgSpec) {
    let stack = taps::stack(org);
    let count = SIZES.len().to_string();
    let mut p = peer(&["echo", "10.99.0.1", "7", &count]);
    assert_eq!(p.line(), "ready");
    let s = bind(&stack, 9);
    let mut buf = vec![0; 65_536];
    for n in SIZES {
        let data = content(n);
        assert_eq!(s.send_to(&data, taps::kernel_at(7)).expect("sent"), n);
        let mut got = None;
        until(&stack, "an echo", || {
            got = s.recv_from(&mut buf).ok();
            got.is_some()
        });
        assert_eq!(got, Some((n, taps::kernel_at(7))));
        assert!(buf[..n] == data, "{n} octets");
    }
    let total: usize = SIZES.iter().sum();
    assert_eq!(finish(&stack, p), total.to_string());
    well_formed(&stack, &[]);
}

fn we_echo(org: &OrgSpec) {
    let stack = taps::stack(org);
    let s = bind(&stack, 7);
    let sizes = SIZES.map(|n| n.to_string());
    let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
    let p = peer(&[&["ask", "10.99.0.2", "7"], &sizes[..]].concat());
    let mut buf = vec![0; 65_536];
    for n in SIZES {
        let mut got = None;
        until(&stack, "a question", || {
            got = s.recv_from(&mut buf).ok();
            got.is_some()
        });
        let (len, from) = got.expect("a datagram");
        assert_eq!(len, n);
        assert_eq!(s.send_to(&buf[..len], from).expect("sent"), n);
    }
    assert_eq!(finish(&stack, p), "good");
    well_formed(&stack, &[]);
}

/// Frames that the kernel has taken from the stack.
fn frames() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").expect("the interfaces");
    let line = text.lines().find(|l| l.contains(taps::NAME)).expect("ours");
    let field = line.split_whitespace().nth(2).expect("packets received");
    field.parse().expect("a number")
}

/// Many datagrams of one call, over both families: the kernel gets several in a frame, and its
/// sockets each by itself.
fn at_once(org: &OrgSpec) {
    const THEIRS: &str = "fd99::1";
    let tap = taps::open(&TapConfig::new(taps::NAME)).unwrap_or_else(|e| panic!("{e}"));
    assert!(tap.capabilities().large_datagrams > 0, "Linux before 6.2");
    let add = format!("addr add {THEIRS}/64 dev {} nodad", taps::NAME);
    veths::ip(&add.split_whitespace().collect::<Vec<_>>());
    let config = Config::default().with_ipv6(Ipv6Config::default().with_dad_transmits(0));
    let builder = Stack::builder().org(org.clone()).config(config);
    let stack = builder
        .interface(tap, &["10.99.0.2/24", "fd99::2/64"])
        .expect("addresses");
    let stack = stack.build().expect("a stack");
    for (host, at) in [
        ("10.99.0.1", taps::kernel_at(7)),
        (THEIRS, "[fd99::1]:7".parse().expect("one")),
    ] {
        for (size, whole, last) in [(1000, 60, 500), (64, 200, 1), (1400, 3, 1400)] {
            let count = whole + 1;
            let mut p = peer(&["collect", host, "7", &count.to_string()]);
            assert_eq!(p.line(), "ready");
            let s = stack.bind_udp("[::]:0").expect("a port");
            s.set_nonblocking(true).expect("set");
            // Until the neighbour's station is known all waits as one.
            let data = content(usize::from(size) * whole + last);
            let (before, mut at_octet) = (frames(), 0);
            until(&stack, "room", || {
                if let Ok(n) = s.send_segments(&data[at_octet..], size, Some(at)) {
                    at_octet += n;
                }
                at_octet == data.len()
            });
            let want = match last == usize::from(size) {
                true => format!("{count}x{size}"),
                false => format!("{whole}x{size} 1x{last}"),
            };
            assert_eq!(finish(&stack, p), want, "{org}, to {at}");
            // A frame has 64 datagrams at most; besides there are those of neighbour discovery.
            let most = count.div_ceil(64) as u64 + 8;
            let took = frames() - before;
            assert!(took <= most, "{org}: {took} frames for {count} datagrams");
        }
    }
    well_formed(&stack, &[]);
}

/// Errors of the network, each way.
fn refused(org: &OrgSpec) {
    let stack = taps::stack(org);
    let p = peer(&["refused", "10.99.0.2", "9"]);
    assert_eq!(finish(&stack, p), "ECONNREFUSED");
    let s = bind(&stack, 10);
    s.connect(taps::kernel_at(9)).expect("a way");
    s.send(b"anybody?").expect("sent");
    let mut error = None;
    until(&stack, "an error", || {
        error = s.recv(&mut [0; 9]).err().map(|e| e.kind());
        error != Some(ErrorKind::WouldBlock)
    });
    assert_eq!(error, Some(ErrorKind::ConnectionRefused));
    well_formed(&stack, &["drop_udp_no_socket"]);
}

/// A name server of ours is asked by the host.
fn names(org: &OrgSpec) {
    let stack = taps::stack(org);
    let s = bind(&stack, 53);
    let p = peer(&["dns", "10.99.0.2", "53", "gate.example.org", "192.0.2.7"]);
    let mut buf = [0; 512];
    let mut got = None;
    until(&stack, "a question", || {
        got = s.recv_from(&mut buf).ok();
        got.is_some()
    });
    let (len, from) = got.expect("a question");
    let mut answer = buf[..len].to_vec();
    answer[2..4].copy_from_slice(&[0x81, 0x80]);
    answer[7] = 1;
    // The name at offset 12, an address of the Internet, for a minute, of four octets.
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7]);
    s.send_to(&answer, from).expect("sent");
    assert_eq!(finish(&stack, p), "good");
}

/// The kernel sends as fast as it can: what is lost is counted, nothing comes twice or out of
/// order.
fn flood(org: &OrgSpec) {
    const COUNT: u32 = 20_000;
    let stack = taps::stack(org);
    let s = bind(&stack, 7);
    // The kernel learns our station: what waits for it would come behind what does not.
    s.send_to(b"hello", taps::kernel_at(9)).expect("sent");
    let greeted = Instant::now();
    until(&stack, "a moment", || {
        greeted.elapsed() > Duration::from_millis(100)
    });
    let mut p = peer(&["burst", "10.99.0.2", "7", &COUNT.to_string(), "64"]);
    let mut batch = Datagrams::with_capacity(64);
    let (mut next, mut got) = (0, 0);
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(500) && next < COUNT {
        if s.recv_many(&mut batch).is_err() {
            if stack.drive().expect("driven") == 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
            // Until the other side has begun.
            if next == 0 {
                last = Instant::now();
            }
            continue;
        }
        for d in batch.iter() {
            let n = u32::from_be_bytes(d.data[..4].try_into().expect("a number"));
            assert!(d.data.len() == 64 && n >= next, "{n} after {next}");
            next = n + 1;
            got += 1;
        }
        last = Instant::now();
    }
    assert_eq!(p.line(), "sent");
    let dropped = stack.stats().count("drop_udp_queue_full");
    // On a busy machine little more than what the socket's queue holds.
    assert!(got > 100, "{got} of {COUNT}, {dropped} dropped here");
    assert!(got + u32::try_from(dropped).expect("fewer") <= COUNT);
    assert!(s.info().expect("a look").drops <= dropped);
}

#[test]
fn datagrams_to_a_server_of_the_kernel() {
    each(&["python3"], Load::Waits, they_echo);
}

#[test]
fn datagrams_to_a_server_of_ours() {
    each(&["python3"], Load::Waits, we_echo);
}

#[test]
fn many_datagrams_in_a_frame() {
    each(&["python3", "ip"], Load::Waits, at_once);
}

#[test]
fn refusals_both_ways() {
    each_family(&["python3"], Load::Waits, refused);
}

#[test]
fn a_name_server() {
    each_family(&["python3"], Load::Waits, names);
}

#[test]
fn a_flood() {
    each_family(&["python3"], Load::Works, flood);
}
