//! Two ends back to back, on the machine and on virtual cores, with and without faults.

mod common;

use common::refer;
use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::{AtomicU32, Ordering};
use perimeter_base::desc::Offload;
use perimeter_base::{Bytes, PktPool, Time, TxPages, TxRing};
use perimeter_link::fault::FaultConfig;
use perimeter_link::rng::SplitMix64;
use perimeter_link::wire::{End, WireConfig, WireHandle, pair};
use perimeter_link::{Device, Medium, Queues, RxFrame, RxQueue, RxStatus};
use perimeter_sync::virt::{Schedule, VirtualConfig};
use perimeter_sync::{Event, Native, Platform, Thread, Virtual};
use perimeter_wire::{Csum, FlowKey, Frame, MacAddr, SegOut, Seq, TcpFlags, Template};
use std::sync::Arc;

fn open<P: Platform>(end: End<P>) -> Queues {
    Box::new(end).open()
}

const OFFLOAD: Offload = Offload {
    csum_start: 34,
    csum_offset: 16,
    segment_size: 0,
};

fn key(port: u16) -> FlowKey {
    FlowKey {
        local: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        remote: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        local_port: port,
        remote_port: 80,
    }
}

/// Places a segment whose sequence number is `tag`.
fn place(ring: &mut TxRing, port: u16, tag: u32, payload: &[u8]) {
    let l2 = Some((MacAddr([2; 6]), MacAddr([4; 6])));
    let template = Template::new_v4(l2, &key(port), 64, 0, true);
    let seg = SegOut {
        seq: Seq(tag),
        flags: TcpFlags::ACK,
        ..SegOut::default()
    };
    let mut d = ring.push().expect("room");
    d.hdr_len = template.emit(&mut d.hdr, 0, &seg, payload.len() as u32) as u8;
    let (a, b) = payload.split_at(payload.len() / 3);
    refer(&mut d, &[a, b]);
    d.offload = OFFLOAD;
}

fn tag_of(f: &RxFrame) -> Result<u32, perimeter_wire::WireError> {
    let csum = if f.csum_ok { Csum::Trust } else { Csum::Verify };
    match Frame::parse_ethernet(f.buf.as_slice(), csum)? {
        Frame::Tcp(t) => Ok(t.hdr.seq.0),
        other => panic!("{other:?}"),
    }
}

fn poll(rx: &mut dyn RxQueue, now: Time, pool: &mut PktPool) -> Vec<RxFrame> {
    let mut out = Vec::new();
    rx.poll(now, pool, &mut out, 100_000);
    out
}

#[test]
fn frames_arrive_after_the_latency_whole_and_in_order() {
    let ([a, b], [out, _]) = pair(&Native::new(), WireConfig::default());
    let (_, mut tx) = open(a);
    let (mut rx, _) = open(b);
    let mut pool = PktPool::default();
    let mut ring = TxRing::new(64);
    let payload: Vec<u8> = (0..1460u32).map(|i| (i * 7) as u8).collect();
    for tag in 0..10 {
        place(&mut ring, 1, tag, &payload);
    }
    tx[0].doorbell(Time(1_000), &mut ring);
    assert_eq!((ring.len(), ring.completions().done()), (0, 10));
    assert_eq!(out.in_flight(), 10);
    assert!(poll(&mut *rx[0], Time(5_999), &mut pool).is_empty());
    assert_eq!(rx[0].arm(Time(5_999)), RxStatus::Armed(Time(6_000)));
    assert_eq!(rx[0].arm(Time(6_000)), RxStatus::Ready);
    let got = poll(&mut *rx[0], Time(6_000), &mut pool);
    let tags: Vec<u32> = got.iter().map(|f| tag_of(f).expect("whole")).collect();
    assert_eq!(tags, (0..10).collect::<Vec<_>>());
    assert!(got.iter().all(|f| f.buf.as_slice()[54..] == payload[..]));
    assert!(got.iter().all(|f| f.csum_ok && f.hash.is_some()));
}

/// A large segment arrives as it was sent, with the size that it was to be cut to; not where faults
/// are done to segments.
#[test]
fn large_segments_pass_uncut() {
    let lossy = FaultConfig::default().with_loss(0.1);
    let mut config = WireConfig::default().with_large(true);
    config.ends[1].faults = lossy;
    let ([a, b], _) = pair(&Native::new(), config);
    assert!(a.capabilities().large >= 65_000);
    assert_eq!(b.capabilities().large, 0);
    let plain = pair(&Native::new(), WireConfig::default()).0;
    assert!(plain.iter().all(|end| end.capabilities().large == 0));
    let (_, mut tx) = open(a);
    let (mut rx, _) = open(b);
    let mut ring = TxRing::new(4);
    let payload: Vec<u8> = (0..65_160u32).map(|i| (i * 7) as u8).collect();
    let l2 = Some((MacAddr([2; 6]), MacAddr([4; 6])));
    let template = Template::new_v4(l2, &key(1), 64, 0, true);
    let seg = SegOut {
        flags: TcpFlags::ACK,
        ..SegOut::default()
    };
    let mut d = ring.push().expect("room");
    d.hdr_len = template.emit(&mut d.hdr, 0, &seg, payload.len() as u32) as u8;
    let (first, second) = payload.split_at(20_000);
    refer(&mut d, &[first, second]);
    d.offload = Offload {
        segment_size: 1448,
        ..OFFLOAD
    };
    place(&mut ring, 1, 7, &[1; 100]);
    tx[0].doorbell(Time(0), &mut ring);
    assert!(ring.is_empty());
    let got = poll(&mut *rx[0], Time(5_000), &mut PktPool::default());
    let sizes: Vec<_> = got.iter().map(|f| (f.segment_size, f.csum_ok)).collect();
    assert_eq!(sizes, [(1448, true), (0, true)]);
    assert_eq!(got[0].buf.as_slice()[54..], payload[..]);
}

/// Its memory does, where the wire hands it on: nothing of it is copied.
#[test]
fn large_segments_are_handed_on() {
    let config = WireConfig::default().with_large(true).with_hand_on(true);
    let ([a, b], _) = pair(&Native::new(), config);
    assert!(a.capabilities().hands_on);
    let (_, mut tx) = open(a);
    let (mut rx, _) = open(b);
    let (mut stage, mut ring) = TxRing::staged_to_hand_on(4);
    let page = Bytes::from(vec![7; 30_000]);
    let mut pages = TxPages::default();
    pages.push(page.clone());
    pages.push_copy(&[8; 30_000]);
    let mut d = stage.push().expect("room");
    let l2 = Some((MacAddr([2; 6]), MacAddr([4; 6])));
    let template = Template::new_v4(l2, &key(1), 64, 0, true);
    d.hdr_len = template.emit(&mut d.hdr, 0, &SegOut::default(), 50_000) as u8;
    d.offload = Offload {
        segment_size: 1448,
        ..OFFLOAD
    };
    pages.refer(1_000, 50_000, &mut d, &mut PktPool::default());
    stage.hand_over(&mut ring);
    tx[0].doorbell(Time(0), &mut ring);
    drop(pages);
    let got = poll(&mut *rx[0], Time(5_000), &mut PktPool::default());
    let [frame] = &got[..] else { panic!("{got:?}") };
    assert!((frame.segment_size, frame.csum_ok) == (1448, true) && frame.hash.is_some());
    assert_eq!(frame.buf.len(), 54);
    let behind: Vec<_> = frame.buf.behind().iter().map(Bytes::len).collect();
    assert_eq!(behind, [29_000, 21_000]);
    assert_eq!(frame.buf.behind()[0].as_ptr(), page[1_000..].as_ptr());
    assert!(frame.buf.behind()[1].iter().all(|octet| *octet == 8));
}

#[test]
fn steady_state_allocates_no_buffers() {
    let ([a, b], _) = pair(&Native::new(), WireConfig::default());
    let (_, mut tx) = open(a);
    let (mut rx, _) = open(b);
    let mut pool = PktPool::default();
    let mut ring = TxRing::new(64);
    let mut misses = 0;
    for round in 0..200u64 {
        for tag in 0..32 {
            place(&mut ring, 1, tag, &[0; 100]);
        }
        let now = Time(round * 10_000);
        tx[0].doorbell(now, &mut ring);
        for f in poll(&mut *rx[0], now.plus(5_000), &mut pool) {
            pool.put(f.buf);
        }
        if round == 100 {
            misses = pool.misses;
        }
    }
    assert_eq!(pool.misses, misses);
}

#[test]
fn queues_get_their_flows_and_a_full_one_drops() {
    let mut config = WireConfig::default();
    config.ends[1].rx_queues = 4;
    config.ends[1].rx_ring = 20;
    let ([a, b], [out, _]) = pair(&Native::new(), config);
    let (_, mut tx) = open(a);
    let (mut rx, _) = open(b);
    let rss = perimeter_link::rss::Rss::even(4);
    let mut ring = TxRing::new(256);
    for port in 0..200 {
        place(&mut ring, port, u32::from(port), &[]);
    }
    tx[0].doorbell(Time(0), &mut ring);
    let mut pool = PktPool::default();
    let mut total = 0;
    for (q, rx) in rx.iter_mut().enumerate() {
        let got = poll(&mut **rx, Time(9_000), &mut pool);
        assert_eq!(got.len(), 20);
        total += got.len() as u64;
        for f in got {
            assert_eq!(rss.queue(f.hash.expect("TCP")), q);
        }
    }
    assert_eq!(out.overflows(), 200 - total);
}

#[test]
fn a_rate_leaves_frames_in_the_ring() {
    let config = WireConfig::default().with_gbps(Some(1.0));
    let ([a, _b], _) = pair(&Native::new(), config);
    let (_, mut tx) = open(a);
    let mut ring = TxRing::new(256);
    let payload = [0; 1460];
    for tag in 0..256 {
        place(&mut ring, 1, tag, &payload);
    }
    let mut now = Time(0);
    let mut bells = 0;
    while !ring.is_empty() {
        tx[0].doorbell(now, &mut ring);
        assert_eq!(ring.completions().done(), 256 - ring.len() as u64);
        now = now.max(tx[0].ready_at());
        bells += 1;
        assert!(bells < 1000);
    }
    // 256 frames of 1538 bytes at 1 Gb/s.
    assert!((3_100_000..3_150_000).contains(&now.0), "{now:?}");
}

/// Runs one direction of 500 segments through `faults`; tags that arrived intact with their
/// times, and how many did not parse.
fn through(faults: FaultConfig) -> (Vec<(u64, u32)>, usize, WireHandle<Native>) {
    let mut config = WireConfig::default();
    config.ends[0].faults = faults;
    let ([a, b], [out, _]) = pair(&Native::new(), config);
    let (_, mut tx) = open(a);
    let (mut rx, _) = open(b);
    let mut pool = PktPool::default();
    let mut ring = TxRing::new(64);
    let payload: Vec<u8> = (0..600u32).map(|i| (i * 11) as u8).collect();
    let (mut good, mut bad) = (Vec::new(), 0);
    for step in 0..4000u64 {
        let now = Time(step * 1_000);
        if step < 500 {
            place(&mut ring, 1, step as u32, &payload[..step as usize]);
            tx[0].doorbell(now, &mut ring);
        }
        for f in poll(&mut *rx[0], now, &mut pool) {
            assert!(!f.csum_ok);
            match tag_of(&f) {
                Ok(tag) => {
                    assert_eq!(f.buf.as_slice()[54..], payload[..tag as usize]);
                    good.push((now.0, tag));
                }
                Err(_) => bad += 1,
            }
        }
    }
    (good, bad, out)
}

#[test]
fn faults_do_what_they_say_and_seeds_repeat() {
    let base = FaultConfig::default;
    let cases = [
        ("loss", base().with_loss(0.1)),
        ("dup", base().with_duplicate(0.2)),
        ("reorder", base().with_reorder(0.2)),
        ("corrupt", base().with_corrupt(0.3)),
        ("fcs", base().with_fcs_error(0.1)),
        (
            "jitter",
            base().with_jitter_ns(50_000).with_delay_ns(100_000),
        ),
        ("hole", base().with_black_hole_mtu(300)),
        ("rate", base().with_gbps(Some(0.5)).with_queue_ns(100_000)),
        ("few", base().with_loss(1.0).with_limit(7)),
        ("burst", base().with_loss(0.05).with_loss_burst(5)),
    ];
    for (name, config) in cases {
        let (good, bad, out) = through(config.clone());
        let c = out.faults();
        assert_eq!(c.packets, 500, "{name}");
        let gone = c.lost + c.fcs_dropped + c.swallowed + c.queue_dropped;
        let arrived = (good.len() + bad) as u64;
        assert_eq!(arrived, 500 - gone + c.duplicated, "{name}: {c:?}");
        assert_eq!(bad as u64, c.corrupted, "{name}: damage always shows");
        assert_eq!(good, through(config.clone()).0, "{name}: the seed repeats");
        let other = config.with_seed(2);
        let sorted = good.windows(2).all(|w| w[0].1 <= w[1].1);
        match name {
            "loss" => assert!((25..80).contains(&c.lost)),
            "dup" => assert!((60..150).contains(&c.duplicated)),
            "reorder" => assert!(c.reordered > 60 && !sorted),
            "corrupt" => assert!((110..190).contains(&c.corrupted)),
            "fcs" => assert!((25..80).contains(&c.fcs_dropped)),
            "jitter" => assert!(!sorted && good[0].0 >= 105_000),
            "hole" => assert_eq!(c.swallowed, 500 - 261),
            "rate" => assert!(c.queue_dropped > 100 && sorted),
            "few" => assert_eq!(c.lost, 7),
            "burst" => assert!(c.lost > 20 && good.windows(2).any(|w| w[1].1 - w[0].1 >= 6)),
            _ => unreachable!(),
        }
        if !matches!(name, "hole" | "rate" | "few") {
            assert_ne!(good, through(other).0, "{name}: the seed matters");
        }
    }
}

/// Threads on both sides: nothing is lost, nothing waits for ever.
fn conversation<P: Platform>(platform: &P, medium: Medium, n: u32) {
    let mut config = WireConfig::default().with_medium(medium);
    config.ends[0].tx_queues = 2;
    config.ends[1].rx_queues = 2;
    let ([a, b], _) = pair(platform, config);
    let (_, txs) = open(a);
    let (rxs, _) = open(b);
    let seen = Arc::new(AtomicU32::new(0));
    let mut threads = Vec::new();
    for (q, mut rx) in rxs.into_iter().enumerate() {
        let (p, seen) = (platform.clone(), seen.clone());
        let body = move || {
            let event = Arc::new(p.event());
            let bell = event.clone();
            rx.set_waker(Arc::new(move || bell.set()));
            let mut pool = PktPool::default();
            let mut out = Vec::new();
            while seen.load(Ordering::Relaxed) < 2 * n {
                let now = p.now();
                if rx.poll(now, &mut pool, &mut out, 16) > 0 {
                    seen.fetch_add(out.len() as u32, Ordering::Relaxed);
                    out.clear();
                } else if let RxStatus::Armed(until) = rx.arm(now) {
                    // The other queue's thread may end the run; so not for ever.
                    event.wait(until.min(now.plus(2_000_000)));
                }
            }
        };
        threads.push(platform.spawn(&format!("rx{q}"), Some(q), Box::new(body)));
    }
    for (q, mut tx) in txs.into_iter().enumerate() {
        let p = platform.clone();
        let body = move || {
            let mut ring = TxRing::new(8);
            for tag in 0..n {
                place(&mut ring, tag as u16 % 8, tag, b"payload");
                if tag % 3 == 0 || ring.room() == 0 || tag + 1 == n {
                    tx.doorbell(p.now(), &mut ring);
                }
                if tag % 16 == 0 {
                    p.yield_now();
                }
            }
            assert!(ring.is_empty());
        };
        threads.push(platform.spawn(&format!("tx{q}"), Some(q), Box::new(body)));
    }
    for t in threads {
        t.join().expect("no panic");
    }
    assert_eq!(seen.load(Ordering::Relaxed), 2 * n);
}

#[test]
fn threads_converse_natively() {
    conversation(&Native::new(), Medium::Ethernet, 2_000);
}

#[test]
fn threads_converse_on_virtual_cores() {
    for seed in 0..40 {
        let config = VirtualConfig::default()
            .with_seed(seed)
            .with_schedule(Schedule::Random { switch_one_in: 3 });
        if let Err(e) = Virtual::run(config, |p| conversation(&p, Medium::Ethernet, 60)) {
            panic!("seed {seed}: {e}");
        }
    }
}

/// The statement that corruption always shows, over many packets of every kind of content.
#[test]
fn no_damaged_packet_passes() {
    let platform = Native::new();
    let mut rng = SplitMix64::new(99);
    let mut config = WireConfig::default();
    config.ends[0].faults = FaultConfig::default().with_corrupt(1.0).with_seed(4711);
    let ([a, b], [out, _]) = pair(&platform, config);
    let (_, mut tx) = open(a);
    let (mut rx, _) = open(b);
    let mut pool = PktPool::default();
    let mut ring = TxRing::new(64);
    let mut page = vec![0u8; 256];
    for round in 0..60_000u64 {
        // Zeros, ones and noise: where a checksum's blind spots would be.
        match round % 4 {
            0 => page.fill(0),
            1 => page.fill(0xff),
            _ => page.fill_with(|| rng.next() as u8),
        }
        let len = rng.below(256) as usize;
        place(&mut ring, 0, rng.next() as u32, &page[..len]);
        let now = Time(round * 10_000);
        tx[0].doorbell(now, &mut ring);
        for f in poll(&mut *rx[0], now.plus(5_000), &mut pool) {
            assert!(tag_of(&f).is_err(), "round {round} passed");
            pool.put(f.buf);
        }
    }
    let c = out.faults();
    assert_eq!((c.corrupted, c.fcs_dropped), (60_000, 0));
}
