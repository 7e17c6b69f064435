//! iperf3 each way, in either role.

use crate::common::{LIMIT, each, finish, size, wind_up};
use perimeter::{OrgSpec, Stack};
use perimeter_interop::iperf::{self, OnStack, Params};
use perimeter_interop::program::Program;
use perimeter_interop::taps;
use serde_json::Value;
use std::time::Duration;

/// Their client, our server.
fn serve(stack: &Stack, reverse: bool, parallel: usize) {
    let mut net = OnStack::server(stack, taps::stack_at(iperf::PORT)).expect("a listener");
    let (bytes, streams) = (size().to_string(), parallel.to_string());
    let mut args = vec![
        "--client",
        "10.99.0.2",
        "--json",
        "--bytes",
        &bytes,
        "-P",
        &streams,
    ];
    if reverse {
        args.push("--reverse");
    }
    let p = Program::start("iperf3", args, LIMIT);
    net.set_accept_timeout(Some(Duration::from_secs(30)))
        .expect("a limit");
    let report = iperf::server(&mut net).expect("served");
    drop(net);
    let theirs: Value = serde_json::from_str(&finish(stack, p)).expect("JSON");
    assert_eq!(theirs["error"], Value::Null, "{theirs}");
    assert_eq!(report.params.reverse, reverse);
    let number = |which: &str| theirs["end"][which]["bytes"].as_u64().expect("a number");
    let (sent, received) = (number("sum_sent"), number("sum_received"));
    if reverse {
        // The client stops when it has enough; what is in flight then is lost to it.
        assert!(
            received >= size() && report.bytes >= received,
            "{received} {}",
            report.bytes
        );
    } else {
        assert!(sent >= size());
        assert_eq!((sent, received), (report.bytes, report.bytes));
    }
}

/// Our client, their server.
fn visit(stack: &Stack, reverse: bool, parallel: usize) {
    let args = ["--server", "--one-off", "--json", "--bind", "10.99.0.1"];
    let p = Program::start("iperf3", args, LIMIT);
    wait_for_port(iperf::PORT);
    let mut net = OnStack::client(stack, taps::kernel_at(iperf::PORT)).expect("a poller");
    let params = Params {
        bytes: size(),
        parallel,
        reverse,
        ..Params::default()
    };
    let report = iperf::client(&mut net, &params).expect("a test");
    drop(net);
    let theirs: Value = serde_json::from_str(&finish(stack, p)).expect("JSON");
    assert_eq!(theirs["error"], Value::Null, "{theirs}");
    if reverse {
        assert!(
            report.bytes >= size() && report.peer_bytes >= report.bytes,
            "{report:?}"
        );
    } else {
        // Whole blocks.
        assert!(report.bytes >= size() && report.bytes < size() + 4 * (128 << 10));
        // Their count is taken when our end arrives, which may overtake data.
        assert!(
            report.peer_bytes <= report.bytes && report.peer_bytes > size() / 2,
            "{report:?}"
        );
    }
}

/// Waits until the kernel has a listener on that port.
fn wait_for_port(port: u16) {
    let want = format!(":{port:04X} 00000000:0000 0A");
    for _ in 0..500 {
        if std::fs::read_to_string("/proc/thread-self/net/tcp")
            .expect("sockets")
            .contains(&want)
        {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("nobody listens on port {port}");
}

fn all(org: &OrgSpec, run: fn(&Stack, bool, usize)) {
    let stack = taps::stack(org);
    for (reverse, parallel) in [(false, 1), (true, 1), (false, 4), (true, 4)] {
        println!("{org}: reverse {reverse}, {parallel} streams");
        run(&stack, reverse, parallel);
    }
    wind_up(&stack);
}

#[test]
fn iperf3_as_client() {
    each(&["iperf3"], |org| all(org, serve));
}

#[test]
fn iperf3_as_server() {
    each(&["iperf3"], |org| all(org, visit));
}
