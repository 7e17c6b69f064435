//! iperf3 each way, in either role.

use crate::common::{
    LIMIT, Load, Sum, digest_of, each, each_family, finish, make_file, size, wind_up,
};
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
    std::fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 262144").expect("a setting");
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
        // Their count is taken when our end arrives, which may overtake what is in buffers: half a
        // megabyte a stream, ours and theirs.
        assert!(
            report.peer_bytes <= report.bytes && report.peer_bytes > size() / 2,
            "{report:?}"
        );
    }
}

/// Digest of the first `total` bytes that a sender of ours sends.
fn sent_by_us(total: u64) -> String {
    let mut sum = Sum::default();
    let mut block = vec![0x5a; Params::default().len];
    let mut left = total;
    for n in 0.. {
        iperf::stamp(&mut block, n);
        let len = left.min(block.len() as u64);
        sum.add(&block[..len as usize]);
        left -= len;
        if left == 0 {
            break;
        }
    }
    sum.end().0
}

/// Small writes into a large socket buffer, octets. iperf 3.12 loses its place in a file when a
/// write is cut short (also between two kernels: `-l 128K -w 100K --file`), which none is with
/// these.
const FILE_WRITE: usize = 4096;
const FILE_WINDOW: u32 = 1 << 20;

/// Their client sends a file to our server, or keeps what our server sends.
fn serve_file(stack: &Stack, reverse: bool) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    let digest = (!reverse).then(|| make_file(&file, size()));
    let mut net = OnStack::server(stack, taps::stack_at(iperf::PORT)).expect("a listener");
    net.set_accept_timeout(Some(Duration::from_secs(30)))
        .expect("a limit");
    let (bytes, path) = (size().to_string(), file.to_str().expect("text"));
    let mut args = vec!["--client", "10.99.0.2", "--json", "--file", path];
    let (len, window) = (FILE_WRITE.to_string(), FILE_WINDOW.to_string());
    if reverse {
        args.extend(["--reverse", "--bytes", &bytes]);
    } else {
        args.extend(["--length", &len, "--window", &window]);
    }
    let p = Program::start("iperf3", args, LIMIT);
    let mut sum = Sum::default();
    let report = iperf::server_with(&mut net, &mut |piece| sum.add(piece)).expect("served");
    drop(net);
    let theirs: Value = serde_json::from_str(&finish(stack, p)).expect("JSON");
    assert_eq!(theirs["error"], Value::Null, "{theirs}");
    if let Some(digest) = digest {
        assert_eq!(sum.end(), (digest, size()), "what our server received");
    } else {
        let kept = std::fs::metadata(&file).expect("a file").len();
        assert!(kept >= size() && kept <= report.bytes, "{kept}");
        assert_eq!(digest_of(&file), sent_by_us(kept), "what their client kept");
    }
}

/// Our client sends to a server that keeps it in a file, or fetches the file.
fn visit_file(stack: &Stack, reverse: bool) {
    // What is on its way when the test ends may be lost to a server that keeps a file.
    const MORE: u64 = 16 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    let digest = reverse.then(|| make_file(&file, size()));
    let path = file.to_str().expect("text");
    let mut args = vec!["--server", "--one-off", "--json", "--bind", "10.99.0.1"];
    args.extend(["--file", path]);
    let p = Program::start("iperf3", args, LIMIT);
    wait_for_port(iperf::PORT);
    let mut net = OnStack::client(stack, taps::kernel_at(iperf::PORT)).expect("a poller");
    let params = Params {
        bytes: size() + if reverse { 0 } else { MORE },
        reverse,
        len: if reverse { FILE_WRITE } else { 128 << 10 },
        window: reverse.then_some(FILE_WINDOW),
        ..Params::default()
    };
    let mut sum = Sum::default();
    let report =
        iperf::client_with(&mut net, &params, &mut |piece| sum.add(piece)).expect("a test");
    drop(net);
    let theirs: Value = serde_json::from_str(&finish(stack, p)).expect("JSON");
    assert_eq!(theirs["error"], Value::Null, "{theirs}");
    if let Some(digest) = digest {
        assert_eq!(sum.end(), (digest, size()), "what our client received");
    } else {
        let kept = std::fs::metadata(&file).expect("a file").len();
        assert!(kept >= size() && kept <= report.bytes, "{kept}");
        assert_eq!(digest_of(&file), sent_by_us(kept), "what their server kept");
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
    each(&["iperf3"], Load::Works, |org| all(org, serve));
}

#[test]
fn iperf3_as_server() {
    each(&["iperf3"], Load::Works, |org| all(org, visit));
}

#[test]
fn iperf3_moves_files_with_matching_digests() {
    each_family(&["iperf3"], Load::Works, |org| {
        let stack = taps::stack(org);
        for reverse in [false, true] {
            println!("{org}: reverse {reverse}");
            serve_file(&stack, reverse);
            visit_file(&stack, reverse);
        }
        wind_up(&stack);
    });
}
