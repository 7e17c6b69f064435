//! Receive flow steering: frames go to the thread that answers them, in order, and do not wait for one
//! that has gone away; under every organization with more than one thread.

use crate::common::{content, shared_organizations, two_cores, written_here};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::{
    Config, Events, Inbound, Interest, OrgSpec, Poll, Stack, TcpStream, Token, Virtual,
};
use perimeter_sync::{Platform, Thread};
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Connections; each server thread has every second one, whatever queues they come by.
const ALL: usize = 16;

/// A stack whose interface has two receive queues, which threads of the application serve, and its peer.
fn stacks(p: &Virtual, org: &OrgSpec, steering: bool) -> (Stack, Stack) {
    let mut wire = WireConfig::default().with_latency_ns(5_000);
    (wire.ends[0].rx_queues, wire.ends[0].tx_queues) = (2, 2);
    let ([a, b], _) = pair(p, wire);
    let s = Stack::builder()
        .on_virtual(p.clone())
        .org(org.clone())
        .inbound(Inbound::Inline)
        .config(Config::default().with_steering(steering));
    let peer = Stack::builder().on_virtual(p.clone());
    (
        s.interface(a, &["10.0.0.1/24"]).unwrap().build().unwrap(),
        peer.interface(b, &["10.0.0.2/24"])
            .unwrap()
            .build()
            .unwrap(),
    )
}

/// Connections that the peer has opened, the ends under test first.
fn opened(s: &Stack, peer: &Stack, n: usize) -> Vec<(TcpStream, TcpStream)> {
    let l = s.listen("10.0.0.1:9").unwrap();
    let open = |_| {
        let theirs = peer.connect("10.0.0.1:9").unwrap();
        theirs.set_nodelay(true).unwrap();
        let (ours, _) = l.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        (ours, theirs)
    };
    (0..n).map(open).collect()
}

/// A poller that serves one queue, with those connections.
fn poller(s: &Stack, queue: u16, conns: &[&TcpStream]) -> Poll {
    let mut poll = s.poll().unwrap();
    poll.serve(&[queue]);
    for (n, c) in conns.iter().enumerate() {
        let registry = poll.registry();
        registry.register(*c, Token(n), Interest::READABLE).unwrap();
    }
    poll
}

/// What there is to read; `None`, the end of the stream.
fn read(mut s: &TcpStream) -> Option<Vec<u8>> {
    let mut buf = vec![0; 4096];
    match s.read(&mut buf) {
        Ok(0) => None,
        Ok(n) => Some(buf[..n].to_vec()),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Some(Vec::new()),
        Err(e) => panic!("{e}"),
    }
}

/// Echoes what comes by these connections until they have ended.
fn echo(s: &Stack, queue: u16, conns: &[TcpStream]) {
    let poll = poller(s, queue, &conns.iter().collect::<Vec<_>>());
    let mut events = Events::with_capacity(8);
    let mut live = conns.len();
    while live > 0 {
        poll.poll(&mut events, None).unwrap();
        for e in events.iter() {
            let mut c = &conns[e.token().0];
            match read(c) {
                Some(data) => assert_eq!(c.write(&data).unwrap(), data.len()),
                None => {
                    poll.registry().deregister(c).unwrap();
                    live -= 1;
                }
            }
        }
    }
}

/// The peer sends messages over all connections, several in a row, and gets them back; how many frames
/// were steered.
fn exchange(p: &Virtual, org: &OrgSpec, steering: bool) -> u64 {
    let (s, peer) = stacks(p, org, steering);
    let (ours, theirs): (Vec<_>, Vec<_>) = opened(&s, &peer, ALL).into_iter().unzip();
    let mut parts = [Vec::new(), Vec::new()];
    for (n, c) in ours.into_iter().enumerate() {
        parts[n % 2].push(c);
    }
    let servers: Vec<_> = parts
        .into_iter()
        .enumerate()
        .map(|(t, conns)| {
            let s = s.clone();
            let body = move || echo(&s, t as u16, &conns);
            p.spawn(&format!("server-{t}"), Some(t), Box::new(body))
        })
        .collect();
    let data = content(300);
    for _ in 0..10 {
        for mut c in &theirs {
            data.chunks(100).for_each(|part| c.write_all(part).unwrap());
        }
        for mut c in &theirs {
            let mut back = [0; 300];
            c.read_exact(&mut back).unwrap();
            assert_eq!(back[..], data, "{org}");
        }
    }
    drop(theirs);
    servers.into_iter().for_each(|t| t.join().unwrap());
    for stack in [&s, &peer] {
        assert_eq!(stack.stats().count("retransmits"), 0, "{org}");
    }
    s.stats().count("rx_steered")
}

#[test]
fn messages_go_to_who_answers_them() {
    for org in shared_organizations() {
        for steering in [true, false] {
            let org = org.clone();
            let run = Virtual::run(two_cores(), move |p| {
                let steered = exchange(&p, &org, steering);
                let expected = match steering {
                    true => steered > 100 || !written_here(&org),
                    false => steered == 0,
                };
                assert!(expected, "{org}, {steering}: {steered} were steered");
            });
            run.unwrap_or_else(|f| panic!("{f}"));
        }
    }
}

/// What a stack sends to itself comes by no device, and is steered nowhere.
#[test]
fn the_loopback_is_left_alone() {
    for org in shared_organizations() {
        let run = Virtual::run(two_cores(), move |p| {
            let (s, _peer) = stacks(&p, &org, true);
            let l = s.listen("10.0.0.1:9").unwrap();
            let mut client = s.connect("10.0.0.1:9").unwrap();
            let (mut server, _) = l.accept().unwrap();
            let mut got = [0; 5];
            for _ in 0..3 {
                client.write_all(b"hello").unwrap();
                server.read_exact(&mut got).unwrap();
                server.write_all(&got).unwrap();
                client.read_exact(&mut got).unwrap();
            }
            assert_eq!((&got, s.stats().count("rx_steered")), (b"hello", 0));
        });
        run.unwrap_or_else(|f| panic!("{f}"));
    }
}

/// A thread answers once, and then sees to something else. What comes for it is read by the other.
#[test]
fn nothing_waits_for_who_has_gone_away() {
    for org in shared_organizations() {
        let run = Virtual::run(two_cores(), move |p| gone_away(&p, &org));
        run.unwrap_or_else(|f| panic!("{f}"));
    }
}

fn gone_away(p: &Virtual, org: &OrgSpec) {
    let (s, peer) = stacks(p, org, true);
    let conns = Arc::new(opened(&s, &peer, ALL));
    let [answered, over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let other = {
        let (s, conns) = (s.clone(), conns.clone());
        let (answered, over) = (answered.clone(), over.clone());
        let clock = p.clone();
        let body = move || {
            // It serves its queue for a moment.
            let poll = poller(&s, 1, &[]);
            let mut events = Events::with_capacity(8);
            let once = Some(Duration::from_millis(1));
            poll.poll(&mut events, once).unwrap();
            for (ours, _) in conns.iter() {
                let mut ours = ours;
                ours.write_all(b"hello").unwrap();
            }
            answered.store(true, Ordering::Release);
            while !over.load(Ordering::Acquire) {
                clock.sleep_until(clock.now().plus(1_000_000));
            }
        };
        p.spawn("other", Some(1), Box::new(body))
    };
    let poll = poller(&s, 0, &conns.iter().map(|c| &c.0).collect::<Vec<_>>());
    let mut events = Events::with_capacity(8);
    let steered = || s.stats().count("rx_steered");
    let mut slowest = 0;
    while !answered.load(Ordering::Acquire) {
        poll.poll(&mut events, Some(Duration::from_micros(100)))
            .unwrap();
    }
    // It counts as being there for a moment.
    p.sleep_until(p.now().plus(3_000_000));
    for (_, theirs) in conns.iter() {
        let mut theirs = theirs;
        theirs.write_all(&content(100)).unwrap();
        let (start, before) = (p.now(), steered());
        let mut got = 0;
        while got < 100 && p.now().since(start) < Duration::from_secs(1) {
            let soon = Some(Duration::from_millis(1));
            poll.poll(&mut events, soon).unwrap();
            got += conns.iter().filter_map(|c| read(&c.0)).flatten().count();
        }
        assert_eq!(got, 100, "{org}");
        // What comes by the other's queue waits for the service thread in any case.
        if steered() > before {
            slowest = slowest.max(p.now().nanos_since(start));
        }
    }
    over.store(true, Ordering::Release);
    other.join().unwrap();
    assert!(steered() > 0 || !written_here(org), "{org}: none was");
    assert!(slowest < 2_000_000, "{org}: {slowest} ns");
}
