//! Programs that know nothing of it, through the gateway: dig and a real name server, nc, iperf3.

use super::world::{BEHIND4, BEHIND6, NOBODY, World, world};
use perimeter_interop::program::{DNSMASQ, Program, installed};
use perimeter_tokio::gateway::Settings;
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// What a program at the inside says, which ends well.
fn inside(name: &str, args: &[&str]) -> String {
    Program::start(name, args, LIMIT).finish().ok()
}

/// Runs it again until it ends well: its server has just been started.
fn in_time(name: &str, args: &[&str]) -> String {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let outcome = Program::start(name, args, LIMIT).finish();
        if outcome.status.success() || Instant::now() > end {
            return outcome.ok();
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Names are asked of a server that is there, over both families and over TCP, and of one that is
/// not, in whose name the gateway's own resolver answers.
fn names(w: &World) {
    let known = [
        "--listen-address=10.77.0.1,fd77::1",
        "--host-record=www.example.org,192.0.2.7,2001:db8::7",
    ];
    let _server = w.outside("dnsmasq", &[&DNSMASQ[..], &known].concat());
    for (at, more, kind, want) in [
        (BEHIND4, "+notcp", "A", "192.0.2.7"),
        (BEHIND6, "+notcp", "AAAA", "2001:db8::7"),
        (BEHIND4, "+tcp", "AAAA", "2001:db8::7"),
        (BEHIND6, "+tcp", "A", "192.0.2.7"),
        (NOBODY, "+notcp", "A", "192.0.2.7"),
    ] {
        let at = format!("@{at}");
        let args = [
            &at,
            "+short",
            "+tries=3",
            "+timeout=5",
            more,
            "www.example.org",
            kind,
        ];
        assert_eq!(in_time("dig", &args).trim(), want, "{args:?}");
    }
    let at = format!("@{BEHIND4}");
    let none = inside("dig", &[&at, "+tries=3", "nobody.example.org"]);
    assert!(none.contains("status: REFUSED"), "{none}");
}

/// A line each way over TCP, and one to the outside in a datagram.
fn lines(w: &World) {
    for (n, at) in (0..).zip([BEHIND4, BEHIND6]) {
        let (port, at) = ((7_700 + n).to_string(), at.to_string());
        let script = format!("echo to the inside | nc -N -l {at} {port}");
        let server = w.outside("sh", &["-c", &script]);
        let script = format!("echo to the outside | nc -N -w 20 {at} {port}");
        assert_eq!(in_time("sh", &["-c", &script]), "to the inside\n");
        assert_eq!(server.finish().ok(), "to the outside\n");
        let mut server = w.outside("nc", &["-u", "-l", "-W", "1", &at, &port]);
        let script = format!("printf 'in a datagram\n' | nc -u -w 1 {at} {port}");
        // What comes before it listens is refused.
        while !server.ended() {
            Program::start("sh", ["-c", &script], LIMIT).finish();
        }
        assert_eq!(server.finish().ok(), "in a datagram\n");
    }
}

/// What `iperf3` says. Before its server listens it is refused; with `--json` its exit status is 0 even then.
fn answered(args: &[&str]) -> Value {
    let end = Instant::now() + LIMIT;
    loop {
        let said: Value = serde_json::from_str(&in_time("iperf3", args)).expect("JSON");
        let error = said["error"].as_str().unwrap_or_default();
        if !error.ends_with("Connection refused") || Instant::now() > end {
            return said;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Streams and datagrams, each way, over both families.
fn measured(w: &World) {
    for at in [BEHIND4, BEHIND6].map(|at: IpAddr| at.to_string()) {
        // It answers datagrams from the address that it is bound to, else from the nearest.
        let _server = w.outside("iperf3", &["--server", "--bind", &at]);
        for (what, args) in [
            ("to the outside", &[][..]),
            ("to the inside", &["--reverse"][..]),
            (
                "datagrams to the outside",
                &["--udp", "--bitrate", "20M"][..],
            ),
            (
                "datagrams to the inside",
                &["--udp", "--bitrate", "20M", "--reverse"][..],
            ),
        ] {
            let all = [&["--client", &at, "--time", "1", "--json"][..], args].concat();
            let said = answered(&all);
            let end = &said["end"];
            if args.contains(&"--udp") {
                let sum = &end["sum"];
                let (all, lost) = (sum["packets"].as_u64(), sum["lost_packets"].as_u64());
                let (Some(all), Some(lost)) = (all, lost) else {
                    panic!("{what}: {said}");
                };
                println!("{at}: {what}: {lost} of {all} lost");
                assert!(all > 100 && lost * 2 < all, "{what}: {lost} of {all} lost");
            } else {
                let bits = end["sum_received"]["bits_per_second"].as_f64();
                println!("{at}: {what}: {:.2} Gb/s", bits.unwrap_or(0.0) / 1e9);
                assert!(bits.is_some_and(|b| b > 1e6), "{what}: {said}");
            }
        }
    }
}

#[test]
fn programs_go_through_it() {
    let needs = ["dig", "dnsmasq", "nc", "iperf3", "sh"];
    if let Some(lacks) = needs.into_iter().find(|p| !installed(p)) {
        println!("skipped: {lacks} is not installed");
        return;
    }
    let resolver = SocketAddr::new(BEHIND4, 53);
    world(Settings::default().with_dns(Some(resolver)), |w| {
        names(w);
        lines(w);
        measured(w);
    });
}
