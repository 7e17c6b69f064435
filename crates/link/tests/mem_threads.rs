//! The memory NIC with the receive queue on another thread, on both platforms: every
//! acknowledgment arrives, and who sleeps is woken.

mod common;

use common::{key, refer, syn};
use core::sync::atomic::{AtomicU32, Ordering};
use perimeter_base::desc::Offload;
use perimeter_base::{PktPool, Time, TxRing};
use perimeter_link::mem::{Nic, NicConfig};
use perimeter_link::{Device, RxStatus};
use perimeter_sync::virt::{Schedule, VirtualConfig};
use perimeter_sync::{Event, Native, Platform, Thread, Virtual};
use perimeter_wire::{Csum, Frame, SegOut, Seq, TcpFlags, TcpOptions, Template};
use std::sync::Arc;

const FULL: usize = 1448;

/// One sender, one receiver that tells it what is acknowledged; `n` segments, an odd number, so
/// that the end needs the delayed-ACK timer.
fn exchange<P: Platform>(platform: &P, n: u32) {
    let mut config = NicConfig::new(0);
    config.peer.delayed_ack_ns = 2_000_000;
    let (nic, handle) = Nic::new(platform, config);
    let config = handle.config().clone();
    let (mut rxs, mut txs) = Box::new(nic).open();
    let (mut rx, mut tx) = (rxs.remove(0), txs.remove(0));
    let total = n * FULL as u32;
    let acked = Arc::new(AtomicU32::new(0));
    let peer_isn = Arc::new(AtomicU32::new(0));
    let (p, seen, isn) = (platform.clone(), acked.clone(), peer_isn.clone());
    let event = Arc::new(platform.event());
    let go = event.clone();
    let receiver = move || {
        let bell = Arc::new(p.event());
        let ring = bell.clone();
        rx.set_waker(Arc::new(move || ring.set()));
        let mut pool = PktPool::default();
        let mut out = Vec::new();
        while seen.load(Ordering::Acquire) < total {
            let now = p.now();
            assert!(now < Time::from_millis(60_000), "stuck");
            if rx.poll(now, &mut pool, &mut out, 32) == 0 {
                if let RxStatus::Armed(until) = rx.arm(now) {
                    bell.wait(until);
                }
                continue;
            }
            for f in out.drain(..) {
                let Ok(Frame::Tcp(t)) = Frame::parse_ethernet(f.buf.as_slice(), Csum::Verify)
                else {
                    panic!("not TCP")
                };
                if t.hdr.flags.contains(TcpFlags::SYN) {
                    isn.store(t.hdr.seq.0.wrapping_add(1), Ordering::Release);
                } else {
                    let ack = t.hdr.ack.since(Seq(1001));
                    assert!(ack <= total);
                    seen.fetch_max(ack, Ordering::AcqRel);
                }
                pool.put(f.buf);
                go.set();
            }
        }
        go.set();
    };
    let thread = platform.spawn("receiver", Some(1), Box::new(receiver));

    let l2 = Some((config.mac, config.peer_mac));
    let template = Template::new_v4(l2, &key(&config, 4000, 80), 64, 0, true);
    let page = vec![0; FULL];
    let mut ring = TxRing::new(32);
    let send = |ring: &mut TxRing, seg: &SegOut, payload: &[u8]| {
        let mut d = ring.push().expect("room");
        d.hdr_len = template.emit(&mut d.hdr, 0, seg, payload.len() as u32) as u8;
        refer(&mut d, &[payload]);
        d.offload = Offload {
            csum_start: 34,
            csum_offset: 16,
            segment_size: 0,
        };
    };
    send(&mut ring, &syn(1000), &[]);
    tx.doorbell(platform.now(), &mut ring);
    while peer_isn.load(Ordering::Acquire) == 0 {
        event.wait(Time::NEVER);
    }
    let mut sent = 0;
    while acked.load(Ordering::Acquire) < total {
        let window = acked.load(Ordering::Acquire) / FULL as u32 + 64;
        let mut placed = 0;
        while sent < n.min(window) && placed < 16 {
            let seg = SegOut {
                seq: Seq(1001) + sent * FULL as u32,
                ack: Seq(peer_isn.load(Ordering::Acquire)),
                flags: TcpFlags::ACK,
                window: 1000,
                opts: TcpOptions {
                    ts: Some((1, 1)),
                    ..TcpOptions::default()
                },
                ..SegOut::default()
            };
            send(&mut ring, &seg, &page);
            sent += 1;
            placed += 1;
        }
        if placed == 0 {
            event.wait(Time::NEVER);
            continue;
        }
        tx.doorbell(platform.now(), &mut ring);
        assert!(ring.is_empty(), "the window is smaller than the rings");
    }
    thread.join().expect("no panic");
    assert_eq!(handle.flows()[0].acked, u64::from(total));
    let c = handle.counts();
    assert_eq!((c.duplicates, c.out_of_order, c.rx_dropped), (0, 0, 0));
}

#[test]
fn natively() {
    exchange(&Native::new(), 20_001);
}

#[test]
fn on_virtual_cores() {
    for seed in 0..60 {
        let schedule = match seed % 3 {
            0 => Schedule::Random { switch_one_in: 2 },
            1 => Schedule::Pct { depth: 3 },
            _ => Schedule::Time { jitter_percent: 50 },
        };
        let config = VirtualConfig::default()
            .with_seed(seed)
            .with_schedule(schedule);
        if let Err(e) = Virtual::run(config, |p| exchange(&p, 301)) {
            panic!("seed {seed}: {e}");
        }
    }
}
