//! Cost of the two hot paths of a connection, per segment.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use perimeter_base::{PktBuf, PktPool, Time, TxRing};
use perimeter_tcp::{Config, Established, Input, Path, Queued, RcvBuf, SndBuf, Tcb};
use perimeter_wire::{Seq, TcpFlags, TcpHdr, TcpOptions};

const MSS: u32 = 1448;

fn established(now: Time) -> Tcb {
    let cfg = Config::default().with_rcv_buf(1 << 20).with_mss(1460);
    let e = Established {
        at: now,
        origin: 0,
        iss: Seq(999),
        irs: Seq(4999),
        mss: 1460,
        rcv_mss: 1460,
        wscale: Some((8, 8)),
        timestamps: true,
        ts_recent: 100,
        ts_offset: 0,
        sack: true,
        snd_wnd: 1 << 20,
        rcv_wnd: 65_535,
        rtt_ns: Some(50_000),
        retransmitted: false,
    };
    Tcb::accept(&cfg, &e, now)
}

fn header(seq: u32, ack: u32, ts: u32) -> TcpHdr {
    TcpHdr {
        src_port: 1,
        dst_port: 2,
        seq: Seq(seq),
        ack: Seq(ack),
        flags: TcpFlags::ACK,
        window: 4096,
        urgent: 0,
        opts: TcpOptions {
            ts: Some((ts, ts)),
            ..TcpOptions::default()
        },
    }
}

/// A sender in steady state: an acknowledgment of two segments comes in, two go out.
fn send(c: &mut Criterion) {
    let mut group = c.benchmark_group("send");
    group.throughput(Throughput::Elements(2));
    for limited in [true, false] {
        let name = if limited {
            "ack+2plans"
        } else {
            "ack+2plans app-limited"
        };
        group.bench_function(name, |b| {
            let mut now = Time::from_millis(1000);
            let mut t = established(now);
            let queue = if limited { 256 * 1024 } else { 8 * MSS };
            let q = Queued {
                len: queue,
                ..Queued::default()
            };
            while t.plan(q, now).is_some() {}
            let mut ack = 1000u32;
            b.iter(|| {
                now = now.plus(25_000);
                ack = ack.wrapping_add(2 * MSS);
                let hdr = header(5000, ack, now.millis() as u32);
                let mut i = Input::default();
                t.input(black_box(&hdr), None, now, &mut i);
                assert!(i.path == Path::PredictedAck && i.acked == 2 * MSS);
                let mut n = 0;
                while n < 2
                    && let Some(p) = t.plan(black_box(q), now)
                {
                    black_box(&p);
                    n += 1;
                }
                assert!(n == 2);
            });
        });
    }
    group.finish();
}

/// A receiver in steady state: two segments come in, are read, and one acknowledgment goes
/// out.
fn receive(c: &mut Criterion) {
    let mut group = c.benchmark_group("receive");
    group.throughput(Throughput::Elements(2));
    group.bench_function("2segs+ack", |b| {
        let mut now = Time::from_millis(1000);
        let mut t = established(now);
        let mut seq = 5000u32;
        let mut spare = [0; 2].map(|_| {
            let mut b = PktBuf::with_capacity(2048);
            b.set_window(66, MSS as usize);
            Some(b)
        });
        b.iter(|| {
            now = now.plus(25_000);
            for s in &mut spare {
                let hdr = header(seq, 1000, now.millis() as u32);
                seq = seq.wrapping_add(MSS);
                let mut i = Input::default();
                t.input(black_box(&hdr), s.take(), now, &mut i);
                assert!(i.path == Path::PredictedData);
                *s = i.data;
                if i.output {
                    black_box(t.plan(Queued::default(), now));
                }
            }
            t.app_read(1 << 20, 1 << 20);
        });
    });
    group.finish();
}

/// The buffers: a segment's payload references out of a page, and a segment through the
/// receive queue.
fn buffers(c: &mut Criterion) {
    let mut group = c.benchmark_group("buffers");
    group.bench_function("sndbuf parts+ack", |b| {
        let mut s = SndBuf::new(1 << 20);
        let mut pool = PktPool::new(4);
        let mut ring = TxRing::new(1);
        let page = perimeter_base::Bytes::from(vec![0; 256 * 1024]);
        b.iter(|| {
            if s.len() < 128 * 1024 {
                s.push(page.clone());
            }
            ring.clear();
            if let Some(mut slot) = ring.push() {
                s.refer(64 * 1024, MSS, &mut slot, &mut pool);
            }
            black_box(ring.pending());
            s.ack(MSS);
        });
    });
    group.bench_function("rcvbuf push+pop", |b| {
        let (mut r, mut pool) = (RcvBuf::new(1 << 20), PktPool::new(4));
        let mut buf = PktBuf::with_capacity(2048);
        buf.set_window(66, MSS as usize);
        let mut spare = Some(buf);
        b.iter(|| {
            if let Some(b) = spare.take() {
                r.push(black_box(b), &mut pool);
            }
            spare = r.pop(usize::MAX, &mut pool);
        });
    });
    group.finish();
}

criterion_group!(benches, send, receive, buffers);
criterion_main!(benches);
