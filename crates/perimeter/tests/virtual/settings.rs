//! Settings that can't be meant are refused by name, when the stack is built or the call is made,
//! and nothing that an application asks for makes the stack panic.

use crate::common::kind;
use crate::lan::under_all;
use perimeter::link::script::script;
use perimeter::{BuildError, Config, Native, Stack, TcpConfig};
use std::io::ErrorKind;
use std::time::Duration;

fn interface(addrs: &[&str]) -> Result<perimeter::Builder, BuildError> {
    let (device, _) = script(&Native::default(), "script", 1500);
    Stack::builder().interface(device, addrs)
}

fn says(e: BuildError, words: &[&str]) {
    let text = e.to_string();
    assert!(words.iter().all(|w| text.contains(w)), "{text}");
}

#[test]
fn an_interface_has_addresses_of_hosts() {
    for (bad, why) in [
        ("127.0.0.1/8", "loopback"),
        ("224.0.0.1/4", "multicast"),
        ("239.1.2.3/24", "multicast"),
        ("0.0.0.0/0", "unspecified"),
        ("0.1.2.3/8", "network 0"),
        ("240.0.0.1/4", "reserved"),
        ("255.255.255.255/32", "broadcast"),
        ("10.0.0.255/24", "broadcast"),
        ("10.0.0.0/24", "network"),
        ("::1/128", "loopback"),
        ("::/0", "unspecified"),
        ("ff02::1/16", "multicast"),
        ("::ffff:10.0.0.1/96", "IPv4"),
        ("::7/64", "reserved"),
        ("10.0.0.1/33", "prefix"),
        ("10.0.0", "address"),
    ] {
        let e = interface(&["10.9.9.9/24", bad]).err();
        says(
            e.unwrap_or_else(|| panic!("{bad} is taken")),
            &[bad.split('/').next().unwrap(), why],
        );
    }
    for good in [
        "10.0.0.1/24",
        "10.0.0.0/31",
        "10.0.0.1/31",
        "10.0.0.0/32",
        "10.0.0.1",
        "8.8.8.8/0",
        "fe80::1/64",
        "2001:db8::1/64",
        "2001:db8::/127",
        "fd00::1",
    ] {
        interface(&[good]).unwrap_or_else(|e| panic!("{good}: {e}"));
    }
    // Each link has its own link-local addresses.
    let (other, _) = script(&Native::default(), "other", 1500);
    let two = interface(&["fe80::1/64"]).and_then(|b| b.interface(other, &["fe80::1/64"]));
    two.and_then(|b| b.build().map(drop)).unwrap();
    // Twice is once too often.
    let e = interface(&["10.0.0.1/24", "10.0.0.1/16"]).and_then(|b| b.build().map(drop));
    says(e.unwrap_err(), &["10.0.0.1", "twice"]);
}

#[test]
fn a_route_leads_to_a_gateway() {
    let route = |dst: &str, via| {
        interface(&["10.0.0.1/24"])
            .unwrap()
            .route(dst, via, 0)
            .map(drop)
    };
    route("0.0.0.0/0", Some("10.0.0.254")).unwrap();
    route("10.7.0.0/16", None).unwrap();
    for (dst, via, word) in [
        ("::/0", Some("10.0.0.254"), "family"),
        ("10.7.0.0/16", Some("fe80::1"), "family"),
        ("::/0", Some("ff02::2"), "multicast"),
        ("10.7.0.0/16", Some("0.0.0.0"), "unspecified"),
        ("10.7.0.0/16", Some("224.0.0.5"), "multicast"),
        ("10.7.0.0/16", Some("10.0.0.1"), "own"),
    ] {
        says(route(dst, via).unwrap_err(), &[word]);
    }
}

/// What is wrong with each, by the name of the setting.
fn wrong_tcp() -> Vec<(&'static str, TcpConfig)> {
    let tcp = |change: fn(&mut TcpConfig)| {
        let mut c = TcpConfig::default();
        change(&mut c);
        c
    };
    vec![
        ("mss", tcp(|c| c.mss = 10)),
        ("snd_buf", tcp(|c| c.snd_buf = 0)),
        ("snd_buf", tcp(|c| c.snd_buf = u32::MAX)),
        ("rcv_buf", tcp(|c| c.rcv_buf = 0)),
        ("rcv_buf", tcp(|c| c.rcv_buf = 1)),
        ("rcv_buf_max", tcp(|c| c.rcv_buf_max = u32::MAX)),
        ("initial_window", tcp(|c| c.initial_window = 0)),
        ("rto_min", tcp(|c| c.rto_min = Duration::ZERO)),
        ("rto_max", tcp(|c| c.rto_max = Duration::from_millis(1))),
        ("rto_initial", tcp(|c| c.rto_initial = Duration::ZERO)),
        (
            "delayed_ack",
            tcp(|c| c.delayed_ack = Duration::from_millis(501)),
        ),
        (
            "keepalive",
            tcp(|c| {
                c.keepalive = Some(perimeter::Keepalive::default().with_probes(0));
            }),
        ),
        (
            "user_timeout",
            tcp(|c| c.user_timeout = Some(Duration::ZERO)),
        ),
    ]
}

fn wrong_stack() -> Vec<(&'static str, Config)> {
    let stack = |change: fn(&mut Config)| {
        let mut c = Config::default();
        change(&mut c);
        c
    };
    #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
    let inverted = Config::default().with_ephemeral(60_000..=50_000);
    vec![
        ("ephemeral", inverted),
        ("ephemeral", stack(|c| c.ephemeral = 0..=0)),
        ("syn_buckets", stack(|c| c.syn_buckets = 0)),
        ("syn_depth", stack(|c| c.syn_depth = 0)),
        ("ttl", stack(|c| c.ttl = 0)),
        ("memory", stack(|c| c.memory = 0)),
        ("service", stack(|c| c.service = Duration::ZERO)),
    ]
}

#[test]
fn a_stack_is_not_built_with_settings_that_cannot_be_meant() {
    let build = |c: Config| {
        interface(&["10.0.0.1/24"])
            .unwrap()
            .config(c)
            .build()
            .map(drop)
    };
    build(Config::default()).unwrap();
    for (name, c) in wrong_stack() {
        let text = build(c).expect_err(name).to_string();
        assert!(text.contains(name) && text.contains(" to "), "{text}");
    }
    for (name, tcp) in wrong_tcp() {
        let c = Config::default().with_tcp(tcp);
        let text = build(c).expect_err(name).to_string();
        assert!(text.contains(&format!("tcp.{name}")), "{text}");
    }
}

#[test]
fn a_call_with_such_settings_is_refused() {
    under_all(24, |lan| {
        for (name, tcp) in wrong_tcp() {
            let c = lan
                .s
                .connect_with(None, "10.0.0.2:80".parse().unwrap(), &tcp)
                .err()
                .unwrap();
            let l = lan.s.listen_with("10.0.0.1:80", 5, tcp).err().unwrap();
            for e in [c, l] {
                assert_eq!(e.kind(), ErrorKind::InvalidInput, "{name}");
                assert!(e.to_string().contains(name), "{e}");
            }
        }
        assert!(lan.s.connections().is_empty());
    });
}

#[test]
fn addresses_of_no_host_are_refused() {
    under_all(24, |lan| {
        for to in [
            "0.0.0.0:80",
            "255.255.255.255:80",
            "224.0.0.1:80",
            "10.0.0.255:80",
            "127.0.0.1:80",
            "240.0.0.1:80",
            "[::]:80",
            "[::1]:80",
            "[ff02::1]:80",
            // No route, and no address to come from.
            "[2001:db8::1]:80",
            "[fe80::1]:80",
            // Mapped addresses are IPv4's.
            "[::ffff:127.0.0.1]:80",
        ] {
            let c = lan.s.start_connect(to.parse().unwrap());
            assert_eq!(kind(c), Some(ErrorKind::NetworkUnreachable), "{to}");
        }
        let e = lan.s.start_connect("[fe80::1%2]:80".parse().unwrap()).err();
        let e = e.unwrap();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        assert!(e.to_string().contains("scope id"), "{e}");
        let from = Some("[fe80::2]:0".parse().unwrap());
        let to = "10.0.0.2:80".parse().unwrap();
        let e = lan.s.connect_with(from, to, &lan.s.tcp_config()).err();
        assert_eq!(e.unwrap().kind(), ErrorKind::AddrNotAvailable);
        for at in [
            "[::1]:80",
            "[2001:db8::1]:80",
            "[fe80::1]:80",
            "10.0.0.2:80",
        ] {
            assert_eq!(kind(lan.s.listen(at)), Some(ErrorKind::AddrNotAvailable));
        }
        let only = lan.s.listen_only_v6("0.0.0.0:80", 5, lan.s.tcp_config());
        assert_eq!(kind(only), Some(ErrorKind::InvalidInput));
        lan.ms(10);
        assert!(lan.sent.is_empty() && lan.s.connections().is_empty());
    });
}
