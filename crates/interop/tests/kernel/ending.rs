//! How stacks end towards the host's kernel, and what they make of an interface that is deleted.

use crate::common::{Load, each};
use perimeter::OrgSpec;
use perimeter_interop::taps;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

const MUCH: usize = 200_000;

/// As a program that writes and returns from `main`: streams go first, then the stack.
fn writes_and_ends(org: &OrgSpec) {
    let stack = taps::stack(org);
    let l = TcpListener::bind(taps::kernel_at(9020)).expect("a listener");
    let reader = std::thread::spawn(move || {
        let (mut s, _) = l.accept().expect("a connection");
        // It takes its time.
        std::thread::sleep(Duration::from_millis(300));
        let mut all = Vec::new();
        s.read_to_end(&mut all).map(|_| all.len())
    });
    let mut s = stack.connect(taps::kernel_at(9020)).expect("connected");
    s.write_all(&[7; MUCH]).expect("sent");
    s.flush().expect("flushed");
    drop(s);
    drop(stack);
    let got = reader.join().expect("a reader");
    assert_eq!(got.map_err(|e| e.kind()), Ok(MUCH), "{org}");
}

#[test]
fn what_was_written_arrives_though_the_program_ends() {
    each(&[], Load::Waits, writes_and_ends);
}

fn deleted(org: &OrgSpec) {
    let stack = taps::stack(org);
    let l = TcpListener::bind(taps::kernel_at(9021)).expect("a listener");
    let s = stack.connect(taps::kernel_at(9021)).expect("connected");
    let (_theirs, _) = l.accept().expect("a connection");
    let ours = stack.listen(taps::stack_at(9022)).expect("a listener");
    s.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a limit");
    let status = Command::new("ip")
        .args(["link", "delete", taps::NAME])
        .status()
        .expect("ip");
    assert!(status.success());
    let start = Instant::now();
    let down = Some(ErrorKind::NetworkDown);
    let read = (&s).read(&mut [0; 8]);
    assert_eq!(read.err().map(|e| e.kind()), down, "{org}");
    assert_eq!(ours.accept().err().map(|e| e.kind()), down, "{org}");
    let again = stack.connect(taps::kernel_at(9021));
    assert_eq!(again.err().map(|e| e.kind()), down, "{org}");
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(stack.stats().count("interfaces_gone"), 1);
    assert_eq!(stack.engine().gone_interfaces(), [taps::NAME]);
    drop((s, ours));
    drop(stack);
    assert!(start.elapsed() < Duration::from_secs(20), "{org}");
}

#[test]
fn a_deleted_interface_is_an_error() {
    each(&["ip"], Load::Waits, deleted);
}
