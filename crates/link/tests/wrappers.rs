//! Faults and recording around devices, and the script device.

mod common;

use common::{key, refer};
use core::sync::atomic::{AtomicU32, Ordering};
use perimeter_base::desc::Offload;
use perimeter_base::{PktBuf, PktPool, Time, TxRing};
use perimeter_link::fault::{FaultConfig, FaultHandle, Faulty};
use perimeter_link::mem::{Nic, NicConfig, PeerHandle, Source};
use perimeter_link::pattern::Pattern;
use perimeter_link::pcap::{Pcap, PcapHandle, PcapOptions};
use perimeter_link::script::script;
use perimeter_link::{Device, Medium, RxFrame, RxQueue, RxStatus, TxQueue};
use perimeter_sync::Native;
use perimeter_wire::{Csum, Frame, SegOut, Seq, TcpFlags, TcpFrame, Template};
use std::process::Command;
use std::sync::Arc;

const FULL: usize = 1448;

/// A sender that repeats what is not acknowledged, as simply as possible: enough to get a
/// stream through faults.
struct Sender {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    ring: TxRing,
    pool: PktPool,
    now: Time,
    template: Template,
    una: u32,
    ack: Seq,
    bad: u64,
}

const OFFLOAD: Offload = Offload {
    csum_start: 34,
    csum_offset: 16,
    segment_size: 0,
};

impl Sender {
    fn new(device: Box<dyn Device>, config: &NicConfig) -> Sender {
        let l2 = Some((config.mac, config.peer_mac));
        let template = Template::new_v4(l2, &key(config, 4000, 80), 64, 0, true);
        let (mut rx, mut tx) = device.open();
        Sender {
            rx: rx.remove(0),
            tx: tx.remove(0),
            ring: TxRing::new(64),
            pool: PktPool::default(),
            now: Time::from_millis(1),
            template,
            una: 0,
            ack: Seq(0),
            bad: 0,
        }
    }

    fn send(&mut self, seg: &SegOut, payload: &[u8]) {
        let mut d = self.ring.push().expect("room");
        d.hdr_len = self.template.emit(&mut d.hdr, 0, seg, payload.len() as u32) as u8;
        refer(&mut d, &[payload]);
        d.offload = OFFLOAD;
        self.tx.doorbell(self.now, &mut self.ring);
    }

    /// Rings when the device wants it, until `for_ns` have passed; the intact segments.
    fn wait(&mut self, for_ns: u64) -> Vec<TcpFrame> {
        let end = self.now.plus(for_ns);
        let mut got = Vec::new();
        loop {
            self.tx.doorbell(self.now, &mut self.ring);
            let mut out: Vec<RxFrame> = Vec::new();
            self.rx.poll(self.now, &mut self.pool, &mut out, 1000);
            for f in out {
                let csum = if f.csum_ok { Csum::Trust } else { Csum::Verify };
                match Frame::parse_ethernet(f.buf.as_slice(), csum) {
                    Ok(Frame::Tcp(t)) => got.push(t),
                    _ => self.bad += 1,
                }
            }
            if self.now >= end {
                return got;
            }
            let mut next = end;
            if self.tx.ready_at() > self.now {
                next = next.min(self.tx.ready_at());
            }
            match self.rx.arm(self.now) {
                RxStatus::Ready | RxStatus::Gone => {}
                RxStatus::Armed(t) => next = next.min(t),
            }
            self.now = next.max(self.now.plus(1));
        }
    }

    fn run(&mut self, segments: u32) {
        let page = {
            let mut v = vec![0; segments as usize * FULL];
            Pattern::get().fill(0, &mut v);
            v
        };
        let mut syn = common::syn(1000);
        syn.opts.mss = Some(1460);
        for _ in 0..100 {
            self.send(&syn, &[]);
            if let Some(t) = self.wait(1_000_000).first() {
                self.ack = t.hdr.seq + 1;
                break;
            }
        }
        let total = segments * FULL as u32;
        for _ in 0..20_000 {
            if self.una == total {
                return;
            }
            for i in 0..8u32 {
                let at = self.una + i * FULL as u32;
                if at < total {
                    let seg = SegOut {
                        seq: Seq(1001) + at,
                        ack: self.ack,
                        flags: TcpFlags::ACK,
                        window: 1000,
                        opts: perimeter_wire::TcpOptions {
                            ts: Some((1, 1)),
                            ..Default::default()
                        },
                        ..SegOut::default()
                    };
                    self.send(&seg, &page[at as usize..at as usize + FULL]);
                }
            }
            for t in self.wait(100_000) {
                self.una = self.una.max(t.hdr.ack.since(Seq(1001)));
            }
        }
        panic!("stuck at {}", self.una);
    }
}

fn faulty(
    tx: FaultConfig,
    rx: FaultConfig,
) -> (Sender, PeerHandle<Native>, FaultHandle, PcapHandle, Vec<u8>) {
    let mut config = NicConfig::new(0);
    config.peer.verify_every = 1;
    let (nic, peer) = Nic::new(&Native::new(), config);
    let (device, faults) = Faulty::new(Box::new(nic), tx, rx);
    let (device, pcap) = Pcap::new(
        Box::new(device),
        Box::new(std::io::sink()),
        PcapOptions::default(),
    )
    .expect("a sink takes all");
    let sender = Sender::new(Box::new(device), peer.config());
    (sender, peer, faults, pcap, Vec::new())
}

#[test]
fn a_stream_gets_through_faults_to_the_ideal_peer() {
    let mix = |seed| {
        FaultConfig::default()
            .with_seed(seed)
            .with_loss(0.05)
            .with_duplicate(0.05)
            .with_reorder(0.1)
            .with_reorder_ns(30_000)
            .with_corrupt(0.05)
            .with_fcs_error(0.02)
            .with_jitter_ns(2_000)
    };
    for seed in 0..10 {
        let (mut s, peer, faults, pcap, _) = faulty(mix(seed), mix(seed + 100));
        s.run(300);
        let (tx, rx, c) = (faults.tx(), faults.rx(), peer.counts());
        assert!(tx.lost > 0 && tx.duplicated > 0 && tx.corrupted > 0 && tx.reordered > 0);
        assert_eq!(s.bad, rx.corrupted, "damage shows to the stack");
        assert_eq!(c.verify_errors, 0);
        let rejected = c.bad_checksum + c.malformed + c.foreign;
        assert_eq!(rejected, tx.corrupted, "and to the peer: {c:?}");
        assert!(c.out_of_order > 0 && c.duplicates > 0, "seed {seed}: {c:?}");
        assert_eq!(peer.flows()[0].acked, 300 * FULL as u64);
        assert!(pcap.counts().packets > 300);
    }
}

#[test]
fn a_clean_wrapper_changes_nothing_but_trust() {
    let clean = FaultConfig::default;
    let (mut s, peer, faults, ..) = faulty(clean(), clean());
    s.run(50);
    let c = peer.counts();
    assert_eq!((c.verify_errors, c.duplicates, c.out_of_order), (0, 0, 0));
    assert_eq!(c.verified, 50);
    assert_eq!(faults.rx().packets, faults.rx().packets);
    assert_eq!(faults.tx().lost + faults.rx().lost, 0);
}

#[test]
fn delays_are_kept_in_both_directions() {
    let late = FaultConfig::default().with_delay_ns(1_000_000);
    let (mut s, ..) = faulty(late.clone(), late);
    let start = s.now;
    s.send(&common::syn(1), &[]);
    assert!(s.tx.ready_at() == start.plus(1_000_000));
    assert!(s.wait(2_049_999).is_empty());
    assert_eq!(s.wait(2).len(), 1);
}

fn tshark() -> bool {
    let found = Command::new("tshark").arg("-v").output().is_ok();
    if !found {
        println!("skipped: tshark is not installed");
    }
    found
}

#[test]
fn tshark_reads_the_recording() {
    let path = std::env::temp_dir().join(format!("perimeter-link-{}.pcapng", std::process::id()));
    let mut config = NicConfig::new(0);
    config.peer.source = Source::Always;
    let (nic, peer) = Nic::new(&Native::new(), config);
    let options = PcapOptions::default().with_epoch_ns(1_700_000_000_000_000_000);
    let (device, pcap) = Pcap::create(Box::new(nic), &path, options).expect("a file");
    let mut s = Sender::new(Box::new(device), peer.config());
    s.run(10);
    s.wait(1_000_000);
    pcap.flush().expect("written");
    let counts = pcap.counts();
    assert_eq!(
        std::fs::metadata(&path).expect("a file").len(),
        counts.bytes
    );
    if tshark() {
        let fields = [
            "frame.time_epoch",
            "frame.packet_flags_direction",
            "ip.checksum.status",
            "tcp.checksum.status",
            "tcp.len",
        ];
        let mut cmd = Command::new("tshark");
        cmd.args([
            "-o",
            "ip.check_checksum:TRUE",
            "-o",
            "tcp.check_checksum:TRUE",
        ]);
        cmd.arg("-r").arg(&path).args(["-T", "fields"]);
        for f in fields {
            cmd.args(["-e", f]);
        }
        let out = cmd.output().expect("tshark");
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split('\t').collect()).collect();
        assert_eq!(lines.len() as u64, counts.packets);
        let first = &lines[0];
        assert_eq!(first[0], "1700000000.001000000");
        assert_eq!(
            i64::from_str_radix(first[1].trim_start_matches("0x"), 16),
            Ok(2)
        );
        for l in &lines {
            assert_eq!((l[2], l[3]), ("1", "1"), "checksums are right: {l:?}");
        }
        // The sender's window holds two segments of the source, and it never acknowledges them.
        let sum = |dir: &str| -> u64 {
            lines
                .iter()
                .filter(|l| l[1].ends_with(dir))
                .filter_map(|l| l[4].parse::<u64>().ok())
                .sum()
        };
        assert_eq!((sum("2"), sum("1")), (10 * FULL as u64, 2 * FULL as u64));
    }
    std::fs::remove_file(&path).expect("removed");
}

#[test]
fn snap_length_and_limit_hold() {
    let (nic, peer) = Nic::new(&Native::new(), NicConfig::new(0));
    let options = PcapOptions::default()
        .with_snap_len(96)
        .with_max_bytes(4_000);
    let (device, pcap) =
        Pcap::new(Box::new(nic), Box::new(std::io::sink()), options).expect("a sink");
    let mut s = Sender::new(Box::new(device), peer.config());
    s.run(100);
    let c = pcap.counts();
    assert!(
        c.bytes <= 4_000 && c.packets >= 20 && c.left_out >= 100,
        "{c:?}"
    );
    pcap.flush().expect("a limit is no error");
}

#[test]
fn a_full_disk_is_reported_and_harms_nobody() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (nic, peer) = Nic::new(&Native::new(), NicConfig::new(0));
    let (device, pcap) = Pcap::new(Box::new(nic), Box::new(Full), PcapOptions::default())
        .expect("the header is buffered");
    let mut s = Sender::new(Box::new(device), peer.config());
    s.run(2000);
    assert!(pcap.counts().left_out > 0);
    let e = pcap.flush().expect_err("full");
    assert_eq!(e.kind(), std::io::ErrorKind::StorageFull);
}

#[test]
fn a_script_feeds_and_reads_a_stack() {
    let (device, handle) = script(&Native::new(), "pd0", 1500);
    let caps = device.capabilities();
    assert_eq!((caps.medium, caps.mtu), (Medium::Ip, 1500));
    let (mut rx, mut tx) = Box::new(device).open();
    let calls = Arc::new(AtomicU32::new(0));
    let counter = calls.clone();
    rx[0].set_waker(Arc::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    }));
    let notes = Arc::new(AtomicU32::new(0));
    let counter = notes.clone();
    handle.set_notify(Arc::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    }));
    let mut pool = PktPool::default();
    let mut out = Vec::new();
    assert_eq!(rx[0].arm(Time(5)), RxStatus::Armed(Time::NEVER));
    assert!(handle.inject(Time(5), b"one"));
    assert!(handle.inject(Time(5), b"two"));
    assert_eq!(calls.load(Ordering::Relaxed), 1, "one arm, one call");
    assert_eq!(rx[0].poll(Time(5), &mut pool, &mut out, 9), 2);
    assert_eq!(out[1].buf.as_slice(), b"two");
    assert!(!out[0].csum_ok);

    let template = Template::new_v4(None, &key(&NicConfig::new(0), 1, 2), 64, 0, true);
    let mut ring = TxRing::new(4);
    for n in 0..2u32 {
        let mut d = ring.push().expect("room");
        let seg = SegOut {
            seq: Seq(n),
            ..SegOut::default()
        };
        d.hdr_len = template.emit(&mut d.hdr, 0, &seg, 5) as u8;
        d.owned = Some(PktBuf::copy_of(b"12345"));
        d.offload = Offload {
            csum_start: 20,
            csum_offset: 16,
            segment_size: 0,
        };
    }
    tx[0].doorbell(Time(77), &mut ring);
    assert_eq!(
        (ring.completions().done(), notes.load(Ordering::Relaxed)),
        (2, 1)
    );
    assert_eq!(handle.waiting(), 2);
    for n in 0..2 {
        let sent = handle.next().expect("sent");
        assert_eq!(sent.at, Time(77));
        let t = perimeter_wire::parse_ipv4_tcp(&sent.bytes, 0, Csum::Verify).expect("whole");
        assert_eq!((t.hdr.seq, t.payload_len), (Seq(n), 5));
    }
    assert_eq!(handle.next(), None);
    assert_eq!(handle.dropped(), 0);
}
