//! A network of ports.
#![allow(missing_docs)]

use perimeter_base::{PktBuf, PktPool, Time, TxRing};
use perimeter_link::fault::FaultConfig;
use perimeter_link::network::{Network, PortId};
use perimeter_link::{Device, RxQueue, RxStatus, TxQueue};
use perimeter_sync::Virtual;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const DELAY: u64 = 1_000;

struct Host {
    port: PortId,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    ring: TxRing,
}

struct World {
    network: Network,
    clock: Arc<AtomicU64>,
    p: Virtual,
}

/// An IP packet to 10.0.0.`to`, of which only that and its last byte matter.
fn packet(to: u8, n: u8) -> Vec<u8> {
    let mut bytes = vec![0; 60];
    bytes[0] = 0x45;
    bytes[16..20].copy_from_slice(&[10, 0, 0, to]);
    bytes[59] = n;
    bytes
}

impl World {
    fn new(seed: u64, usual: FaultConfig) -> World {
        let clock = Arc::new(AtomicU64::new(1));
        World {
            network: Network::new(seed, usual),
            p: Virtual::by_clock(seed, clock.clone()),
            clock,
        }
    }

    fn host(&self, n: u8) -> Host {
        let port = self.network.port();
        assert!(self.network.assign([10, 0, 0, n].into(), port));
        self.plug(port)
    }

    fn plug(&self, port: PortId) -> Host {
        let plug = self.network.plug(&self.p, port, "port", 1500);
        let (mut rx, mut tx) = Box::new(plug).open();
        Host {
            port,
            rx: rx.remove(0),
            tx: tx.remove(0),
            ring: TxRing::new(64),
        }
    }

    fn now(&self) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }

    fn set(&self, ns: u64) {
        self.clock.store(ns, Ordering::Relaxed);
    }

    fn send(&self, from: &mut Host, to: u8, n: u8) {
        let mut d = from.ring.push().expect("room");
        d.hdr_len = 0;
        d.owned = Some(PktBuf::copy_of(&packet(to, n)));
        from.tx.doorbell(self.now(), &mut from.ring);
        assert!(from.ring.is_empty());
    }

    fn received(&self, host: &mut Host) -> Vec<u8> {
        let (mut pool, mut out) = (PktPool::default(), Vec::new());
        while host.rx.poll(self.now(), &mut pool, &mut out, 2) > 0 {}
        out.iter().map(|f| f.buf.as_slice()[59]).collect()
    }
}

fn delayed() -> FaultConfig {
    FaultConfig::default().with_delay_ns(DELAY)
}

#[test]
fn packets_go_where_their_destination_is_and_wake_who_waits() {
    let w = World::new(1, delayed());
    let (mut a, mut b, mut c) = (w.host(1), w.host(2), w.host(3));
    assert_eq!(w.network.shortest_delay(), DELAY);
    let rung = Arc::new(AtomicUsize::new(0));
    let told = rung.clone();
    b.rx.set_waker(Arc::new(move || {
        told.fetch_add(1, Ordering::Relaxed);
    }));
    assert_eq!(b.rx.arm(w.now()), RxStatus::Armed(Time::NEVER));
    for n in 0..5 {
        w.send(&mut a, 2, n);
    }
    w.send(&mut a, 3, 9);
    w.send(&mut a, 77, 9);
    assert_eq!(rung.load(Ordering::Relaxed), 1);
    assert_eq!(w.network.next_arrival(b.port), Time(1 + DELAY));
    assert_eq!(b.rx.arm(w.now()), RxStatus::Armed(Time(1 + DELAY)));
    assert!(w.received(&mut b).is_empty());
    w.set(1 + DELAY);
    assert_eq!(b.rx.arm(w.now()), RxStatus::Ready);
    assert_eq!(w.received(&mut b), [0, 1, 2, 3, 4]);
    assert_eq!(w.received(&mut c), [9]);
    let counts = w.network.counts();
    assert_eq!((counts.sent, counts.nowhere, counts.off), (7, 1, 0));
    assert_eq!(w.network.in_flight(), 0);
}

#[test]
fn links_are_cut_one_way_and_ports_switched_off() {
    let w = World::new(1, delayed());
    let (mut a, mut b) = (w.host(1), w.host(2));
    w.network.cut(a.port, b.port);
    w.send(&mut a, 2, 1);
    w.send(&mut b, 1, 2);
    w.network.mend(a.port, b.port);
    w.send(&mut a, 2, 3);
    w.set(1 + DELAY);
    assert_eq!(w.received(&mut a), [2]);
    assert_eq!(w.received(&mut b), [3]);
    // What arrives at a port that is off is lost, what is under way when it comes back is not.
    w.send(&mut a, 2, 4);
    w.network.unplug(b.port);
    w.send(&mut b, 1, 5);
    w.set(1 + 2 * DELAY - 1);
    assert_eq!(w.network.next_arrival(b.port), Time::NEVER);
    w.send(&mut a, 2, 6);
    w.set(1 + 2 * DELAY);
    let mut b = w.plug(b.port);
    w.set(1 + 3 * DELAY);
    assert_eq!(w.received(&mut b), [6]);
    assert!(w.received(&mut a).is_empty());
    let counts = w.network.counts();
    assert_eq!((counts.cut, counts.off), (1, 1));
}

#[test]
fn every_direction_has_faults_of_its_own_from_one_seed() {
    let lossy = delayed().with_loss(0.5);
    let run = |seed, linked: bool| {
        let w = World::new(seed, lossy.clone());
        let (mut a, mut b, mut c) = (w.host(1), w.host(2), w.host(3));
        if linked {
            w.network.link(a.port, c.port, &delayed());
        }
        for n in 0..64 {
            w.send(&mut a, 2, n);
            w.send(&mut a, 3, n);
        }
        w.set(1 + DELAY);
        let got = (w.received(&mut b), w.received(&mut c));
        (got, w.network.digest())
    };
    let ((b, c), digest) = run(1, false);
    assert!(b.len() > 16 && b.len() < 48 && c.len() > 16 && c.len() < 48);
    assert_ne!(b, c);
    assert_eq!(run(1, false), ((b.clone(), c), digest));
    assert_ne!(run(2, false).0.0, b);
    // One link that is another does not shift what happens on the rest.
    let ((same, whole), other) = run(1, true);
    assert_eq!(same, b);
    assert_eq!(whole, (0..64).collect::<Vec<u8>>());
    assert_ne!(other, digest);
}
