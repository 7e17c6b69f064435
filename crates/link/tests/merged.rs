//! A NIC in memory that makes one frame of segments that follow each other: cut apart again they are
//! what it would have handed over one by one.

mod common;

use common::{Host, Tcp, key, syn};
use perimeter_link::RxFrame;
use perimeter_link::mem::{NicConfig, Source};
use perimeter_wire::{Csum, Frame, Seq, TcpFlags, TcpFrame};

/// What one segment says and carries.
#[derive(Debug, PartialEq)]
struct Segment {
    port: u16,
    seq: Seq,
    ack: Seq,
    flags: TcpFlags,
    window: u16,
    ts: Option<(u32, u32)>,
    data: Vec<u8>,
    hash: Option<u32>,
}

/// The segments that a frame is made of; its checksums are right.
fn segments(f: &RxFrame) -> Vec<Segment> {
    let bytes = f.buf.as_slice();
    let Ok(Frame::Tcp(tcp)) = Frame::parse_ethernet(bytes, Csum::Verify) else {
        panic!("not a segment: {f:?}")
    };
    let TcpFrame { key, hdr, .. } = tcp;
    let at = tcp.payload_off as usize;
    let data = &bytes[at..at + tcp.payload_len as usize];
    let size = match usize::from(f.segment_size) {
        0 => data.len().max(1),
        size => size,
    };
    assert!(
        f.segment_size == 0 || data.len() > size,
        "one of one is none"
    );
    let one = |(i, data): (usize, &[u8])| Segment {
        port: key.local_port,
        seq: hdr.seq + (i * size) as u32,
        ack: hdr.ack,
        flags: match (i + 1) * size < tcp.payload_len as usize {
            true => TcpFlags(hdr.flags.0 & !(TcpFlags::PSH | TcpFlags::FIN).0),
            false => hdr.flags,
        },
        window: hdr.window,
        ts: hdr.opts.ts,
        data: data.to_vec(),
        hash: f.hash,
    };
    match data.is_empty() {
        true => vec![one((0, data))],
        false => data.chunks(size).enumerate().map(one).collect(),
    }
}

/// A host with so many connections to a peer that sends on each as soon as it is acknowledged.
fn open(config: &NicConfig, connections: u16) -> (Host, Vec<Tcp>) {
    let mut h = Host::new(config.clone());
    let keys = (0..connections).map(|i| key(&h.config, 4000 + i, 5001));
    let mut all: Vec<_> = keys
        .map(|key| Tcp {
            key,
            seq: Seq(1001),
            ack: Seq(0),
        })
        .collect();
    for t in &all {
        h.place(&t.key, &syn(1000), &[]);
    }
    h.ring_bell();
    h.rtt();
    for s in h.segments() {
        let t = &mut all[usize::from(s.tcp.key.local_port - 4000)];
        t.ack = s.tcp.hdr.seq + 1;
    }
    for t in &all {
        h.place(&t.key, &t.ack(), &[]);
    }
    h.ring_bell();
    (h, all)
}

/// Frames of one round trip, no more of them at a time than `most`. What has come is acknowledged.
fn round(h: &mut Host, all: &mut [Tcp], most: usize) -> (usize, Vec<Segment>) {
    h.rtt();
    let (mut frames, mut got) = (0, Vec::new());
    loop {
        let mut out = Vec::new();
        let n = h.rx[0].poll(h.now, &mut h.pool, &mut out, most);
        assert!(n == out.len() && n <= most);
        if n == 0 {
            break;
        }
        frames += n;
        got.extend(out.iter().flat_map(segments));
    }
    for s in &mut got {
        let t = &mut all[usize::from(s.port - 4000)];
        assert_eq!(s.seq, t.ack, "nothing is lost or out of order");
        t.ack += s.data.len() as u32 + u32::from(s.flags.contains(TcpFlags::FIN));
        // Each peer has first numbers of its own.
        s.seq = Seq(0);
    }
    for t in all {
        let (k, ack) = (t.key, t.ack());
        h.place(&k, &ack, &[]);
    }
    h.ring_bell();
    (frames, got)
}

/// How many frames came of how many segments, merged.
fn compare(config: NicConfig, connections: u16, most: usize) -> (usize, usize) {
    let merging = config.clone().with_merges(true);
    let (mut plain, mut these) = open(&config, connections);
    let (mut merged, mut those) = open(&merging, connections);
    let (mut frames, mut all) = (0, 0);
    for _ in 0..40 {
        let (single, expected) = round(&mut plain, &mut these, 10_000);
        let (n, got) = round(&mut merged, &mut those, most);
        assert!(got == expected, "other segments");
        assert_eq!(single, expected.len());
        frames += n;
        all += got.len();
    }
    (frames, all)
}

fn sending(bytes: Option<u64>) -> NicConfig {
    let mut config = NicConfig::new(0).with_ring(4096);
    config.peer.source = Source::Always;
    config.peer.source_bytes = bytes;
    config
}

#[test]
fn merged_frames_are_their_segments() {
    for config in [sending(None), sending(None).over_ipv6()] {
        for timestamps in [true, false] {
            let mut config = config.clone();
            config.peer.timestamps = timestamps;
            let (frames, segments) = compare(config, 7, 64);
            assert!(
                segments > 10 * frames && frames > 100,
                "{frames} of {segments}"
            );
        }
    }
}

/// The stream's end is a frame of its own, whatever it carries; single segments stay as they are.
#[test]
fn the_last_segment_and_the_end_arrive() {
    let (frames, segments) = compare(sending(Some(300_001)), 3, 5);
    assert!(frames < segments, "{frames} of {segments}");
    let mut small = sending(Some(1000));
    small.peer.source_segment = 1000;
    let (frames, segments) = compare(small, 3, 64);
    assert_eq!(frames, segments);
}

/// Segments of an odd length: what lies behind one is summed up the other way round.
#[test]
fn odd_segments_have_right_checksums() {
    let mut config = sending(None);
    config.peer.source_segment = 101;
    let (frames, segments) = compare(config, 2, 7);
    assert!(segments > 20 * frames, "{frames} of {segments}");
}

/// No frame is longer than a datagram can be.
#[test]
fn jumbo_frames_are_merged_as_far_as_a_datagram_goes() {
    let (frames, segments) = compare(sending(None).with_mtu(9000), 2, 64);
    assert!(
        segments > 3 * frames && frames > 0,
        "{frames} of {segments}"
    );
}
