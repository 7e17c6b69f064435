//! Bulk data each way: Python and curl, with matching digests.

use crate::common::{
    GIB, LIMIT, Load, Sum, accept, digest_of, each, each_family, finish, make_file, peer_accepts,
    peer_connects, size, wind_up,
};
use perimeter::link::tap::TapConfig;
use perimeter::{Bytes, Config, Offload, OrgSpec, Stack, TcpStream};
use perimeter_interop::program::Program;
use perimeter_interop::{examples, taps};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::time::Duration;

/// Sends `total` bytes, pages by reference, no two alike; returns their digest.
pub fn send(s: &TcpStream, total: u64) -> String {
    let mut sum = Sum::default();
    let (mut at, mut number) = (0, 1u64);
    while at < total {
        let mut page = vec![0u8; 64 * 1024];
        for word in page.chunks_exact_mut(8) {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(at | 1);
            word.copy_from_slice(&number.to_le_bytes());
        }
        page.truncate((total - at).min(page.len() as u64) as usize);
        sum.add(&page);
        let mut page = Bytes::from(page);
        at += page.len() as u64;
        while !page.is_empty() {
            let n = s.send_zero_copy(std::slice::from_ref(&page)).expect("sent");
            let _ = page.split_to(n);
        }
    }
    sum.end().0
}

/// Receives to the end; digest and number of bytes.
pub fn receive(mut s: &TcpStream) -> (String, u64) {
    let mut sum = Sum::default();
    let mut buf = vec![0; 256 * 1024];
    loop {
        match s.read(&mut buf).expect("received") {
            0 => return sum.end(),
            n => sum.add(&buf[..n]),
        }
    }
}

fn we_send(stack: &Stack, s: TcpStream, p: Program) {
    let digest = send(&s, size());
    s.shutdown(Shutdown::Write).expect("shut down");
    assert_eq!(finish(stack, p), format!("{} {digest}", size()));
    assert_eq!((&s).read(&mut [0; 1]).expect("the end"), 0);
}

fn we_receive(stack: &Stack, s: TcpStream, p: Program) {
    let (digest, n) = receive(&s);
    assert_eq!(n, size());
    drop(s);
    assert_eq!(finish(stack, p), format!("{n} {digest}"));
}

fn python(org: &OrgSpec) {
    let stack = taps::stack(org);
    python_on(&stack);
}

pub fn python_on(stack: &Stack) {
    let bytes = size().to_string();
    let limit = |s: &TcpStream| {
        s.set_read_timeout(Some(LIMIT)).expect("a limit");
        s.set_write_timeout(Some(LIMIT)).expect("a limit");
    };
    let p = peer_accepts(9001, &["transfer", "receive"]);
    let s = stack.connect(taps::kernel_at(9001)).expect("connected");
    limit(&s);
    we_send(stack, s, p);
    let p = peer_accepts(9002, &["transfer", "send", &bytes]);
    let s = stack.connect(taps::kernel_at(9002)).expect("connected");
    limit(&s);
    we_receive(stack, s, p);
    let l = stack.listen(taps::stack_at(7001)).expect("a listener");
    let p = peer_connects(7001, &["transfer", "receive"]);
    we_send(stack, accept(&l), p);
    let p = peer_connects(7001, &["transfer", "send", &bytes]);
    we_receive(stack, accept(&l), p);
    drop(l);
    wind_up(stack);
}

#[test]
fn python_sends_and_receives() {
    each(&["python3"], Load::Works, python);
}

#[test]
fn python_sends_and_receives_over_two_queues() {
    each_family(&["python3"], Load::Works, |org| {
        let config = TapConfig::new(taps::NAME).with_queues(2);
        let tap = taps::open(&config).expect("a TAP interface");
        python_on(&taps::stack_on(org, tap));
    });
}

#[test]
fn python_sends_and_receives_without_checksum_offload() {
    each_family(&["python3"], Load::Works, |org| {
        let config = TapConfig::new(taps::NAME).with_checksum_offload(false);
        let tap = taps::open(&config).expect("a TAP interface");
        python_on(&taps::stack_on(org, tap));
    });
}

/// The kernel cuts what we send, and what it sends comes in pieces of up to 64 KiB.
#[test]
fn python_sends_and_receives_in_large_segments() {
    each_family(&["python3"], Load::Works, |org| {
        let config = TapConfig::new(taps::NAME).with_large(true);
        let tap = taps::open(&config).expect("a TAP interface");
        let config = Config::default().with_offload(Offload::Device);
        let stack = taps::stack_with(org, config, tap);
        python_on(&stack);
        let stats = stack.stats();
        for name in ["tx_large", "rx_merged"] {
            assert!(
                stats.count(name) > 100,
                "{org}: {name} {}",
                stats.count(name)
            );
        }
    });
}

#[test]
fn python_sends_and_receives_in_small_packets() {
    each_family(&["python3"], Load::Works, |org| {
        let config = TapConfig::new(taps::NAME).with_mtu(Some(576));
        let tap = taps::open(&config).expect("a TAP interface");
        python_on(&taps::stack_on(org, tap));
    });
}

/// The example server and curl, as anybody would use them.
fn curl(org: &OrgSpec) {
    // The one large transfer of every run.
    let total = if org.family().name == "connp-l" {
        GIB
    } else {
        size()
    };
    let dir = tempfile::tempdir().expect("a directory");
    let (file, copy) = (dir.path().join("file"), dir.path().join("copy"));
    let digest = make_file(&file, total);
    let path = |p: &Path| p.to_str().expect("text").to_string();
    let name = org.to_string();
    let args = [
        "--device",
        "tap",
        "--org",
        &name,
        "--connections",
        "3",
        &path(&file),
    ];
    let mut server = Program::start(examples::path("http_server"), args, LIMIT);
    assert!(server.line().starts_with("listening on 10.99.0.2:80"));
    let fetch = |args: &[&str]| {
        let common = ["--silent", "--show-error", "--fail", "--max-time", "170"];
        Program::start("curl", [&common, args].concat(), LIMIT)
            .finish()
            .ok()
    };
    fetch(&["--output", &path(&copy), "http://10.99.0.2/"]);
    assert_eq!(digest_of(&copy), digest, "what curl fetched");
    assert_eq!(server.line(), format!("GET / {total} {digest}"));
    let answer = fetch(&["--upload-file", &path(&file), "http://10.99.0.2/upload"]);
    assert_eq!(answer.trim(), digest, "what curl uploaded");
    let head = fetch(&["--head", "http://10.99.0.2/"]);
    assert!(head.contains(&format!("Content-Length: {total}")), "{head}");
    server.finish().ok();
}

#[test]
fn curl_fetches_and_uploads() {
    examples::build();
    each_family(&["curl"], Load::Works, curl);
}

/// Over memory, which every example is by default.
#[test]
fn connect_without_arguments_ends() {
    examples::build();
    let none: [&str; 0] = [];
    let program = Program::start(examples::path("connect"), none, Duration::from_secs(30));
    let told = program.finish().ok();
    assert!(told.contains("received 0 "), "{told}");
}

/// Clients that say nothing, or never finish their request, keep nobody waiting, also where one
/// thread does everything.
#[test]
fn idle_clients_do_not_stop_the_server() {
    examples::build();
    each_family(&["curl"], Load::Works, |org| {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        make_file(&file, 10_000);
        let (name, path) = (org.to_string(), file.to_str().expect("text"));
        let args = ["--device", "tap", "--org", &name, path];
        let mut server = Program::start(examples::path("http_server"), args, LIMIT);
        assert!(server.line().starts_with("listening on 10.99.0.2:80"));
        let idle: Vec<std::net::TcpStream> = (0..3)
            .map(|i| {
                let mut s = std::net::TcpStream::connect(taps::stack_at(80)).expect("connected");
                if i > 0 {
                    s.write_all(b"GET / HT").expect("taken");
                }
                s
            })
            .collect();
        for _ in 0..3 {
            let quick = ["--silent", "--show-error", "--fail", "--max-time", "4"];
            let what = ["--output", "/dev/null", "--write-out", "%{size_download}"];
            let args = [&quick[..], &what, &["http://10.99.0.2/"]].concat();
            assert_eq!(
                Program::start("curl", args, LIMIT).finish().ok(),
                "10000",
                "{org}"
            );
        }
        drop(idle);
    });
}
