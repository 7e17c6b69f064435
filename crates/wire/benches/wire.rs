//! Cost of the operations of this crate that run once per packet.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use perimeter_wire::{
    Csum, FlowKey, Frame, MAX_HEADERS, MacAddr, SegOut, Seq, TcpFlags, TcpFrame, TcpOptions,
    Template, Toeplitz, checksum, finish_checksum, parse_ipv4_tcp, parse_ipv4_tcp_into,
};

fn key() -> FlowKey {
    FlowKey {
        local: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        remote: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        local_port: 40000,
        remote_port: 5001,
    }
}

fn template() -> Template {
    let l2 = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    Template::new_v4(Some(l2), &key(), 64, 0, true)
}

fn segment() -> SegOut {
    SegOut {
        seq: Seq(0xffff_f000),
        ack: Seq(77),
        flags: TcpFlags::ACK | TcpFlags::PSH,
        window: 500,
        urgent: 0,
        opts: TcpOptions {
            ts: Some((1, 2)),
            ..TcpOptions::default()
        },
    }
}

fn emit(c: &mut Criterion) {
    let template = template();
    let mut out = [0; MAX_HEADERS];
    let mut seg = segment();
    c.bench_function("emit/data_ts", |b| {
        b.iter(|| {
            seg.seq += 1448;
            template.emit(black_box(&mut out), 0, black_box(&seg), 1448)
        })
    });
    seg.opts.sack.push(Seq(1), Seq(2));
    c.bench_function("emit/ack_ts_sack", |b| {
        b.iter(|| template.emit(black_box(&mut out), 0, black_box(&seg), 0))
    });
    seg.flags = TcpFlags::SYN;
    seg.opts.mss = Some(1460);
    seg.opts.wscale = Some(7);
    seg.opts.sack_permitted = true;
    c.bench_function("emit/syn", |b| {
        b.iter(|| template.emit(black_box(&mut out), 0, black_box(&seg), 0))
    });
}

fn parse(c: &mut Criterion) {
    let template = template();
    let mut seg = segment();
    let mut out = [0; MAX_HEADERS];
    let len = template.emit(&mut out, 0, &seg, 0);
    finish_checksum(&mut out[..len], 14, []);
    for (name, csum) in [("trust", Csum::Trust), ("verify", Csum::Verify)] {
        c.bench_function(&format!("parse/ack_ts_{name}"), |b| {
            b.iter(|| parse_ipv4_tcp(black_box(&out[14..len]), 14, csum).map(|f| f.payload_len))
        });
    }
    c.bench_function("parse/ack_ts_ethernet", |b| {
        b.iter(
            || match Frame::parse_ethernet(black_box(&out[..len]), Csum::Trust) {
                Ok(Frame::Tcp(tcp)) => tcp.hdr.seq.0,
                _ => 0,
            },
        )
    });
    // As a receive path does it: a burst of frames, results kept.
    let mut frames = [TcpFrame::default(); 32];
    let mut group = c.benchmark_group("parse/burst");
    group.throughput(Throughput::Elements(32));
    group.bench_function("ack_ts_trust", |b| {
        b.iter(|| {
            for frame in &mut frames {
                let packet = black_box(&out[14..len]);
                let _ = black_box(parse_ipv4_tcp_into(packet, 14, Csum::Trust, frame));
            }
            black_box(&frames).len()
        })
    });
    group.finish();
    seg.opts.sack.push(Seq(1), Seq(2));
    let len = template.emit(&mut out, 0, &seg, 0);
    c.bench_function("parse/ack_ts_sack_trust", |b| {
        b.iter(|| parse_ipv4_tcp(black_box(&out[14..len]), 14, Csum::Trust).map(|f| f.payload_len))
    });
}

fn sums(c: &mut Criterion) {
    let bytes: Vec<u8> = (0..65536u32).map(|i| (i * 7) as u8).collect();
    let mut group = c.benchmark_group("checksum");
    for len in [20, 40, 64, 512, 1448, 65536] {
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(len.to_string(), |b| {
            b.iter(|| checksum::checksum(black_box(&bytes[..len])))
        });
    }
    group.finish();
}

fn hash(c: &mut Criterion) {
    let toeplitz = Toeplitz::new(&Toeplitz::MICROSOFT_KEY);
    let mut key = key();
    c.bench_function("toeplitz/v4", |b| {
        b.iter(|| {
            key.local_port = key.local_port.wrapping_add(1);
            toeplitz.hash(black_box(&key))
        })
    });
}

criterion_group!(benches, emit, parse, sums, hash);
criterion_main!(benches);
