use super::*;

const SRC: [u8; 4] = [10, 0, 0, 2];

fn frame(src: [u8; 4], ident: u16, at: u16, more: bool, data: &[u8]) -> PktBuf {
    let mut out = vec![0; Ipv4Hdr::LEN];
    Ipv4Hdr {
        src: src.into(),
        dst: [10, 0, 0, 1].into(),
        protocol: 17,
        ttl: 64,
        tos: 0,
        ident,
        total_len: (Ipv4Hdr::LEN + data.len()) as u16,
        header_len: Ipv4Hdr::LEN as u8,
        dont_fragment: false,
        more_fragments: more,
        frag_offset: at,
    }
    .emit(&mut out);
    out.extend_from_slice(data);
    let mut buf = PktBuf::with_capacity(2048);
    buf.set_window(0, out.len());
    buf.as_mut_slice().copy_from_slice(&out);
    buf
}

fn frame6(ident: u32, at: u16, more: bool, data: &[u8]) -> PktBuf {
    // A destination option stands before the fragment header, as each fragment repeats it.
    let mut out = vec![0x60, 0, 0, 0, 0, 0, 60, 64];
    out[4..6].copy_from_slice(&(16 + data.len() as u16).to_be_bytes());
    for n in [2, 1] {
        out.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]);
    }
    out.extend([44, 0, 1, 4, 0, 0, 0, 0]);
    out.extend([17, 0]);
    out.extend((at | u16::from(more)).to_be_bytes());
    out.extend(ident.to_be_bytes());
    out.extend_from_slice(data);
    PktBuf::copy_of(&out)
}

struct World {
    r: Reassembly,
    pool: PktPool,
    counts: Counts,
    now: Time,
}

fn world(limit: usize) -> World {
    World {
        r: Reassembly::new(limit),
        pool: PktPool::default(),
        counts: Counts::default(),
        now: Time::from_millis(5),
    }
}

impl World {
    fn put(&mut self, frame: PktBuf) -> Option<PktBuf> {
        let f = read(0, frame.as_slice(), 0).expect("a fragment");
        let World {
            r,
            pool,
            counts,
            now,
        } = self;
        let whole = r.take(*now, &f, frame, pool, counts);
        let sum: usize = r.partial.values().map(|p| p.pinned).sum();
        assert_eq!((sum, r.sources.values().sum()), (r.pinned, r.pinned));
        whole
    }
}

fn data(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 + i / 255) as u8).collect()
}

#[test]
fn in_whatever_order_they_come() {
    let all = data(8 * 37 + 5);
    let orders: [&[usize]; 4] = [&[0, 1, 2], &[2, 1, 0], &[1, 0, 2], &[2, 0, 1]];
    for (ident, order) in (1..).zip(orders) {
        let mut w = world(1 << 20);
        let cuts = [0, 8 * 10, 8 * 30, all.len()];
        for (i, &n) in order.iter().enumerate() {
            let part = &all[cuts[n]..cuts[n + 1]];
            for v6 in [false, true] {
                let (at, more) = (cuts[n] as u16, n < 2);
                let whole = w.put(match v6 {
                    true => frame6(ident, at, more, part),
                    false => frame(SRC, ident as u16, at, more, part),
                });
                assert_eq!(whole.is_some(), i == 2, "{order:?}");
                let Some(whole) = whole else { continue };
                let bytes = whole.as_slice();
                if v6 {
                    let hdr = Ipv6Hdr::parse(bytes).unwrap();
                    assert_eq!((hdr.fragment, hdr.protocol), (None, 17));
                    assert_eq!(bytes[usize::from(hdr.header_len)..], all);
                } else {
                    let hdr = Ipv4Hdr::parse(bytes, true).unwrap();
                    assert!(!hdr.is_fragment());
                    assert_eq!(bytes[Ipv4Hdr::LEN..], all);
                }
            }
        }
        assert_eq!((w.r.pinned, w.counts.whole), (0, 2));
    }
}

#[test]
fn what_overlaps_kills_its_datagram_and_a_repetition_does_not() {
    let all = data(64);
    let cases: [(u16, bool, &[u8], bool); 7] = [
        (8, true, &all[8..16], false),
        (0, true, &all[0..8], false),
        (8, true, &all[0..8], true),
        (0, true, &all[0..24], true),
        (16, true, &all[16..24], false),
        (56, false, &all[56..60], false),
        // The datagram would end before what is there.
        (0, false, &all[0..8], true),
    ];
    for (i, (at, more, bytes, kills)) in cases.into_iter().enumerate() {
        let mut w = world(1 << 20);
        assert!(w.put(frame(SRC, 1, 8, true, &all[8..16])).is_none());
        assert!(w.put(frame(SRC, 1, at, more, bytes)).is_none());
        assert_eq!(w.counts.overlaps, u64::from(kills), "{i}");
    }
    // What is dead stays so, whatever comes.
    let mut w = world(1 << 20);
    w.put(frame(SRC, 1, 0, true, &all[0..32]));
    w.put(frame(SRC, 1, 24, true, &all[24..40]));
    assert!(w.put(frame(SRC, 1, 32, false, &all[32..64])).is_none());
    assert_eq!((w.counts.overlaps, w.r.pinned), (2, ENTRY));
    // Another datagram is another.
    w.put(frame(SRC, 2, 0, true, &all[0..32]));
    assert!(w.put(frame(SRC, 2, 32, false, &all[32..64])).is_some());
    w.now = w.now.plus(REASSEMBLY);
    let mut gone = 0;
    w.r.expire(w.now, |_, p| {
        gone += 1;
        assert!(p.dead);
    });
    assert_eq!((gone, w.r.pinned), (1, 0));
}

#[test]
fn memory_is_bounded_for_all_and_for_each() {
    const LIMIT: usize = 256 * 1024;
    let mut w = world(LIMIT);
    // One source, fragments that never end.
    for n in 0..10_000u32 {
        let at = 8 * (n % 200) as u16;
        w.put(frame(SRC, (n / 200) as u16, at, true, &[1; 8]));
        assert!(w.r.pinned <= LIMIT / 4);
    }
    assert!(w.counts.refused > 0);
    // Many sources: the oldest go.
    for n in 0..10_000u16 {
        let [a, b] = n.to_be_bytes();
        w.put(frame([10, 1, a, b], 1, 0, true, &[1; 800]));
        assert!(w.r.pinned <= LIMIT);
    }
    assert!(w.counts.failed > 9_000, "{}", w.counts.failed);
    // A datagram whose fragments follow each other gets through.
    let all = data(1600);
    w.put(frame([10, 9, 9, 9], 1, 0, true, &all[..800]));
    assert!(
        w.put(frame([10, 9, 9, 9], 1, 800, false, &all[800..]))
            .is_some()
    );
    assert!(w.r.order.len() < 4 * w.r.partial.len() + 128);
}

#[test]
fn what_can_be_no_fragment() {
    for (at, more, len) in [
        (0, true, 7),
        (8, true, 0),
        (65_528, false, 100),
        (65_528, true, 8),
    ] {
        let f = frame(SRC, 1, at, more, &vec![0; len]);
        assert!(read(0, f.as_slice(), 0).is_none(), "{at} {len}");
    }
    let whole = |last: usize| {
        let mut w = world(1 << 20);
        let all = data(last);
        let mut out = None;
        for at in (0..all.len()).step_by(1480) {
            let end = all.len().min(at + 1480);
            out = w.put(frame(SRC, 1, at as u16, end < all.len(), &all[at..end]));
        }
        out.is_some()
    };
    assert!(whole(65_515));
    // As long as its header lets no datagram be.
    assert!(!whole(65_516));
    for n in 0..80 {
        let bytes = frame6(1, 0, true, &[1; 16]);
        let _ = read(0, &bytes.as_slice()[..n.min(bytes.len())], 0);
    }
}
