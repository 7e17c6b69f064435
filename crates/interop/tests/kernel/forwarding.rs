//! The stack as a router between two of the kernel's hosts, each in a namespace of its own, over TAP:
//! both hand it large segments whose checksums are partial.

use crate::common::{LIMIT, Load, each_of, families, finish, peer, size};
use crate::udp::peer as udp_peer;
use perimeter::link::tap::{Tap, TapConfig, host};
use perimeter::{Config, Ipv6Config, OrgSpec, Stack};
use perimeter_interop::program::Program;
use perimeter_interop::{namespace, veths};

/// The addresses of one family: the router's and the host's on each link.
struct Net {
    near: [&'static str; 2],
    far: [&'static str; 2],
    prefix: u8,
    /// Headers of IP and of an echo request, octets.
    headers: u32,
}

const V4: Net = Net {
    near: ["10.97.1.1", "10.97.2.1"],
    far: ["10.97.1.2", "10.97.2.2"],
    prefix: 24,
    headers: 28,
};

const V6: Net = Net {
    near: ["fd97:1::1", "fd97:2::1"],
    far: ["fd97:1::2", "fd97:2::2"],
    prefix: 64,
    headers: 48,
};

fn ip(words: &str) {
    veths::ip(&words.split_whitespace().collect::<Vec<_>>());
}

/// Makes one of the links in the calling thread's namespace, whose kernel is the host there; the
/// router's end.
fn link(net: &Net, n: usize, mtu: Option<u32>, large: bool) -> Tap {
    let name = ["left0", "right0"][n];
    let config = TapConfig::new(name).with_mtu(mtu).with_large(large);
    let tap = Tap::open(&config).unwrap_or_else(|e| panic!("{e}"));
    let accept_dad = format!("/proc/sys/net/ipv6/conf/{name}/accept_dad");
    std::fs::write(accept_dad, "0").expect("set");
    host::set_up(name, true).expect("up");
    // Without, an address is tentative until a worker of the kernel's has looked at that setting.
    let dad = if net.prefix == 64 { "nodad" } else { "" };
    let (far, prefix) = (net.far[n], net.prefix);
    ip(&format!("addr add {far}/{prefix} dev {name} {dad}"));
    ip(&format!("route add default via {}", net.near[n]));
    tap
}

/// The router between two links.
fn router(org: &OrgSpec, net: &Net, taps: [Tap; 2]) -> Stack {
    let config = Config::default()
        .with_forwarding(true)
        .with_ipv6(Ipv6Config::default().with_dad_transmits(0));
    let mut builder = Stack::builder().org(org.clone()).config(config);
    for (tap, addr) in taps.into_iter().zip(net.near) {
        let addr = format!("{addr}/{}", net.prefix);
        builder = builder.interface(tap, &[&addr]).expect("an interface");
    }
    builder.build().expect("a stack")
}

/// Every organization's family, over both families of addresses.
fn everywhere(programs: &[&str], load: Load, test: impl Fn(&OrgSpec, &Net) + Send + Sync) {
    let both = |org: OrgSpec| [(org.clone(), &V4), (org, &V6)];
    let all: Vec<_> = families().into_iter().flat_map(both).collect();
    each_of(programs, load, &all, |(org, net)| test(org, net));
}

/// A transfer each way with equal digests, where one link takes large segments and the other does, or
/// does not.
#[test]
fn transfers_through_a_router() {
    everywhere(&["ip", "python3"], Load::Works, |org, net| {
        for large in [true, false] {
            let bytes = size().to_string();
            let at = net.far[1];
            // What runs there keeps the namespace.
            let (right, servers) = namespace::within(|| {
                let right = link(net, 1, None, large);
                let serve = |port: &str, what: &[&str]| {
                    let mut p = peer(&[&["accept", at, port, "transfer"], what].concat());
                    assert_eq!(p.line(), "ready");
                    p
                };
                let servers = [
                    serve("9001", &["receive"]),
                    serve("9002", &["send", &bytes]),
                ];
                (right, servers)
            });
            let left = namespace::within(|| {
                let left = link(net, 0, None, true);
                let connect = |port: &str, what: &[&str]| {
                    peer(&[&["connect", at, port, "transfer"], what].concat())
                };
                let clients = [
                    connect("9001", &["send", &bytes]),
                    connect("9002", &["receive"]),
                ];
                (left, clients)
            });
            let (left, clients) = left;
            let stack = router(org, net, [left, right]);
            for (client, server) in clients.into_iter().zip(servers) {
                let said = finish(&stack, client);
                assert_eq!(said, finish(&stack, server), "{org}, large: {large}");
                assert!(said.starts_with(&bytes), "{org}: {said}");
            }
            let stats = stack.stats();
            let frames = 2 * size() / 1448;
            let forwarded = stats.count("forwarded");
            assert!(
                !large || forwarded < frames,
                "{org}: {forwarded}, as large as they came"
            );
            for bad in [
                "drop_forward_too_big",
                "drop_forward_no_route",
                "drop_bad_address",
            ] {
                assert_eq!(stats.count(bad), 0, "{org}: {bad}");
            }
        }
    });
}

/// Runs a program in the left host's namespace while the router goes on; what it wrote, whether or not
/// it was content.
fn said(stack: &Stack, p: Program) -> String {
    let turn = || {
        if stack.drive().expect("driven") == 0 {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    };
    let out = p.finish_with(turn);
    format!("{}{}", out.out, out.err)
}

/// What ping and traceroute see: the way and its end, hops, and what the second link takes.
#[test]
fn ping_and_traceroute_through_a_router() {
    const MTU: u32 = 1280;
    let programs = ["ip", "ping", "traceroute", "python3"];
    everywhere(&programs, Load::Waits, |org, net| {
        let family = if net.prefix == 64 { "-6" } else { "-4" };
        let start = |program: &str, words: &str| {
            let words: Vec<&str> = words.split_whitespace().collect();
            Program::start(program, &words, LIMIT)
        };
        let (at, from) = (net.far[1], net.near[0]);
        // What runs there keeps the namespace.
        let (right, keeps) = namespace::within(|| {
            let right = link(net, 1, Some(MTU), true);
            (right, udp_peer(&["echo", at, "7", "1"]))
        });
        namespace::within(|| {
            let left = link(net, 0, None, true);
            let stack = router(org, net, [left, right]);
            let ping = |words: &str| {
                let words = format!("{family} -n -i 0.01 -W 5 {words}");
                said(&stack, start("ping", &words))
            };
            // One at a time: once ping has seen an answer, it waits for another no longer than an
            // interval, whatever -W says.
            for _ in 0..3 {
                let answer = ping(&format!("-c 1 {at}"));
                assert!(answer.contains(" 1 received"), "{org}: {answer}");
                assert!(answer.contains("ttl=63"), "{org}: one hop fewer: {answer}");
            }
            let answer = ping(&format!("-c 1 -t 1 {at}"));
            let told = answer.contains(&format!("From {from}"));
            let expired = answer.contains("exceeded");
            assert!(told && expired, "{org}: {answer}");
            // The router tells of the first that is too long, and the kernel of those after it.
            let long = 1400 - net.headers;
            for who in ["From ", "local error"] {
                let answer = ping(&format!("-c 1 -M do -s {long} {at}"));
                let mtu = ["mtu=", "mtu: ", "mtu = "].map(|word| format!("{word}{MTU}"));
                let told = answer.contains(who) && mtu.iter().any(|m| answer.contains(m));
                assert!(told, "{org}: {answer}");
            }
            // A datagram that may be cut is, by the router or for its word.
            let cut = if net.prefix == 64 { "want" } else { "dont" };
            let answer = ping(&format!("-c 4 -M {cut} -s 3000 {at}"));
            assert!(answer.contains(" bytes from "), "{org}: {answer}");
            let words = format!("{family} -n -q 1 -w 5 {at}");
            let way = said(&stack, start("traceroute", &words));
            let hops: Vec<_> = way
                .lines()
                .skip(1)
                .filter_map(|l| l.split_whitespace().nth(1))
                .collect();
            assert_eq!(hops, [from, at], "{org}: {way}");
            // Nobody there, and nowhere.
            let nobody = at.replace(":2", ":77").replace("2.2", "2.77");
            let answer = ping(&format!("-c 1 {nobody}"));
            assert!(answer.contains("nreachable"), "{org}: {answer}");
            drop(keeps);
        });
    });
}
