//! How often a writer's data is copied, under every organization.
#![cfg(feature = "testing")]

use crate::common::{World, content, kind, under_all};
use perimeter::TcpStream;
use perimeter_stack::copies;
use std::io::{ErrorKind, IoSlice, Read, Write};

/// Those whose calls run on the calling thread.
fn in_person(w: &World) -> bool {
    let name = w.s.organization().to_string();
    ["up", "connp-l", "msgp"]
        .iter()
        .any(|p| name.starts_with(p))
}

/// What a write of `data` yields and copies.
fn copied(s: &TcpStream, data: &[u8]) -> (std::io::Result<usize>, usize) {
    copies::take();
    let r = (&*s).write(data);
    (r, copies::take())
}

#[test]
fn a_small_write_is_copied_once() {
    under_all(
        |_| {},
        |w| {
            let (a, b) = w.opened();
            let data = content(900);
            let (r, n) = copied(&a, &data[..600]);
            assert_eq!(
                (r.unwrap(), n),
                (600, 600),
                "{}: the first",
                w.s.organization()
            );
            // This one is merged with what is not acknowledged yet.
            let (r, n) = copied(&a, &data[600..650]);
            let most = if in_person(&w) { 50 } else { 100 };
            assert_eq!(r.unwrap(), 50);
            assert!(n <= most, "{}: {n} copied of 50", w.s.organization());
            copies::take();
            let bufs = [&data[650..700], &data[700..800], &data[800..]].map(IoSlice::new);
            assert_eq!((&a).write_vectored(&bufs).unwrap(), 250);
            let most = if in_person(&w) { 250 } else { 500 };
            let n = copies::take();
            assert!(n <= most, "{}: {n} copied of 250", w.s.organization());
            // From a kilobyte on, no organization copies it again.
            let more = content(1024);
            let (r, n) = copied(&a, &more);
            assert_eq!((r.unwrap(), n), (1024, 1024), "{}", w.s.organization());
            let data = [data, more].concat();
            drop(a);
            assert_eq!(w.read_all(&b).unwrap(), data);
            let (c, d) = w.opened();
            let large = content(10_000);
            let (r, n) = copied(&c, &large);
            assert_eq!((r.unwrap(), n), (10_000, 10_000));
            drop(c);
            assert_eq!(w.read_all(&d).unwrap(), large);
        },
    );
}

/// Writes until the buffer is full to the byte, in pieces of `piece` bytes.
fn fill_exactly(w: &World, s: &TcpStream, piece: usize) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let i = s.info().unwrap();
        let space = (i.snd_limit - i.snd_queued) as usize;
        if space == 0 {
            return all;
        }
        let data = content(space.min(piece));
        let (r, n) = copied(s, &data);
        match r {
            Ok(taken) => all.extend(&data[..taken]),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock);
                assert_eq!(n, 0, "{}: refused", w.s.organization());
                return all;
            }
        }
    }
}

#[test]
fn a_refused_write_costs_no_copy() {
    under_all(
        |_| {},
        |w| {
            for piece in [1000, 4096, 50_000] {
                let (a, b) = w.opened();
                let mut sent = fill_exactly(&w, &a, piece);
                for len in [1, 3000, 70_000] {
                    let (r, n) = copied(&a, &content(len));
                    let org = w.s.organization();
                    assert_eq!(
                        (kind(r), n),
                        (Some(ErrorKind::WouldBlock), 0),
                        "{org} {len}"
                    );
                }
                // Who waits is told when there is room again.
                let mut got = Vec::new();
                let mut buf = vec![0; 65536];
                let n = w.wait("room", || {
                    if let Ok(n) = (&b).read(&mut buf) {
                        got.extend(&buf[..n]);
                    }
                    (&a).write(&content(5000))
                });
                sent.extend(&content(5000)[..n.unwrap()]);
                drop(a);
                got.extend(w.read_all(&b).unwrap());
                assert!(got == sent, "{}", w.s.organization());
            }
        },
    );
}
