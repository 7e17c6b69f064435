//! Bad conditions: a lossy wire, readers that sleep, an interface that goes down or away.

use crate::common::{
    Load, accept, each, each_of, families, finish, peer, peer_accepts, peer_connects, until,
    wind_up,
};
use crate::transfer::{receive, send};
use perimeter::link::Medium;
use perimeter::link::fault::{FaultConfig, Faulty};
use perimeter::link::tap::{TapConfig, host};
use perimeter::{OrgSpec, Stack, State};
use perimeter_interop::{namespace, program::Program, taps};
use std::io::Read;
use std::net::Shutdown;
use std::time::{Duration, Instant};

const SOME: u64 = 4 << 20;

/// Both directions of `bytes` each, at the same time on two connections where threads allow it.
pub fn both_ways(stack: &Stack, bytes: u64) {
    let p = peer_accepts(9040, &["transfer", "receive"]);
    let s = stack.connect(taps::kernel_at(9040)).expect("connected");
    let digest = send(&s, bytes);
    s.shutdown(Shutdown::Write).expect("shut down");
    assert_eq!(finish(stack, p), format!("{bytes} {digest}"));
    drop(s);
    let l = stack.listen(taps::stack_at(7040)).expect("a listener");
    let p = peer_connects(7040, &["transfer", "send", &bytes.to_string()]);
    let s = accept(&l);
    let (digest, n) = receive(&s);
    drop((s, l));
    assert_eq!(finish(stack, p), format!("{n} {digest}"));
    assert_eq!(n, bytes);
}

fn faulty(org: &OrgSpec, faults: &FaultConfig) {
    // Checksums complete on the wire: damage must be found.
    let config = TapConfig::new(taps::NAME).with_checksum_offload(false);
    let tap = taps::open(&config).expect("a TAP interface");
    let (tx, rx) = (faults.clone(), faults.clone().with_seed(faults.seed + 1));
    let (device, handle) = Faulty::new(Box::new(tap), tx, rx);
    let stack = taps::stack_on(org, device);
    both_ways(&stack, SOME);
    let (tx, rx) = (handle.tx(), handle.rx());
    println!("{org}: {faults:?}\n  sent: {tx:?}\n  received: {rx:?}");
}

#[test]
fn everything_arrives_over_a_lossy_wire() {
    let clean = FaultConfig::default().with_seed(1);
    let cases = [
        clean.clone().with_loss(0.01),
        clean
            .clone()
            .with_reorder(0.2)
            .with_reorder_ns(300_000)
            .with_duplicate(0.05),
        clean
            .with_corrupt(0.01)
            .with_delay_ns(1_000_000)
            .with_jitter_ns(500_000),
    ];
    let both = |org| {
        cases
            .iter()
            .map(move |faults| (OrgSpec::clone(org), faults))
    };
    let all: Vec<_> = families().iter().flat_map(both).collect();
    each_of(&["python3"], Load::Waits, &all, |(org, faults)| {
        let start = Instant::now();
        faulty(org, faults);
        println!("  {:.1} s", start.elapsed().as_secs_f64());
    });
}

#[test]
fn readers_that_sleep_close_the_window() {
    each(&["python3"], Load::Waits, |org| {
        let stack = taps::stack(org);
        let p = peer_accepts(9041, &["sleepy"]);
        let s = stack.connect(taps::kernel_at(9041)).expect("connected");
        // More than both buffers hold.
        let digest = send(&s, 3 * SOME);
        s.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(finish(&stack, p), format!("{} {digest}", 3 * SOME));
        drop(s);
        let l = stack.listen(taps::stack_at(7041)).expect("a listener");
        let bytes = (3 * SOME).to_string();
        let p = peer_connects(7041, &["transfer", "send", &bytes]);
        let s = accept(&l);
        let woken = Instant::now() + Duration::from_millis(1500);
        until(&stack, "the end of our sleep", || Instant::now() > woken);
        let queued = s.info().expect("open").rcv_queued;
        assert!(queued > 200_000, "the buffer is full: {queued}");
        let (digest, n) = receive(&s);
        drop((s, l));
        assert_eq!(finish(&stack, p), format!("{n} {digest}"));
        wind_up(&stack);
    });
}

#[test]
fn tun_and_long_packets() {
    let cases = [
        (Medium::Ip, 1500),
        (Medium::Ethernet, 9000),
        (Medium::Ip, 65_535),
    ];
    each_of(&["python3"], Load::Works, &cases, |&(medium, mtu)| {
        let config = TapConfig::new(taps::NAME)
            .with_medium(medium)
            .with_mtu(Some(mtu));
        let tap = taps::open(&config).expect("an interface");
        let stack = taps::stack_on(&OrgSpec::default(), tap);
        both_ways(&stack, 2 * SOME);
        wind_up(&stack);
    });
}

#[test]
fn an_interface_that_goes_down_comes_back() {
    each(&["python3"], Load::Waits, |org| {
        let stack = taps::stack(org);
        let p = peer_accepts(9042, &["transfer", "receive"]);
        let s = stack.connect(taps::kernel_at(9042)).expect("connected");
        let name = taps::NAME;
        let breaker = std::thread::spawn(move || {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(60));
                host::set_up(name, false).expect("down");
                std::thread::sleep(Duration::from_millis(150));
                host::set_up(name, true).expect("up");
            }
        });
        let digest = send(&s, 8 * SOME);
        s.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(finish(&stack, p), format!("{} {digest}", 8 * SOME));
        breaker.join().expect("no panic");
        drop(s);
        wind_up(&stack);
    });
}

#[test]
fn an_interface_that_is_deleted_does_not_spin() {
    each(&["ip", "python3"], Load::Waits, |org| {
        let stack = taps::stack(org);
        let p = peer_accepts(9043, &["linger"]);
        let mut s = stack.connect(taps::kernel_at(9043)).expect("connected");
        s.read_exact(&mut [0; 1]).expect("a byte");
        Program::start(
            "ip",
            ["link", "delete", taps::NAME],
            Duration::from_secs(10),
        )
        .finish()
        .ok();
        s.set_read_timeout(Some(Duration::from_secs(1)))
            .expect("a limit");
        let before = namespace::cpu();
        let e = s.read(&mut [0; 1]).expect_err("the interface has gone");
        assert_eq!(e.kind(), std::io::ErrorKind::NetworkDown);
        std::thread::sleep(Duration::from_secs(1));
        let used = namespace::cpu().saturating_sub(before);
        assert!(
            used < Duration::from_millis(300),
            "{used:?} of processor in a second of silence"
        );
        drop(p);
    });
}

/// The stack closes first, so it keeps TIME-WAIT; the same client port comes again at once.
#[test]
fn a_port_in_time_wait_may_be_used_again() {
    each(&["python3"], Load::Works, |org| {
        let stack = taps::stack(org);
        let l = stack.listen(taps::stack_at(7044)).expect("a listener");
        let p = peer(&["again", "10.99.0.2", "7044", "20"]);
        for _ in 0..20 {
            drop(accept(&l));
        }
        assert_eq!(finish(&stack, p), "20");
        // The last FIN may still be on its way when the program has ended.
        until(&stack, "one flow in TIME-WAIT", || {
            let mut states = stack.connections().into_iter().map(|c| c.tcp.state);
            states.next() == Some(State::TimeWait) && states.next().is_none()
        });
        drop(l);
        wind_up(&stack);
    });
}
