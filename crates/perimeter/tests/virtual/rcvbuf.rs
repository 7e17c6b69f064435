//! The receive buffer of a live connection may change its size, down and up, and the transfer goes
//! on: under every organization, with buffers of less than two segments and with jumbo frames.

use crate::common::{Setup, World, content, fill, organizations};
use perimeter::TcpStream;
use std::io::{ErrorKind, Read, Write};

/// MTU, and buffer sizes below, at and above two segments.
const SIZES: [(u32, [u32; 4]); 2] = [
    (1500, [1024, 2048, 3000, 4096]),
    (9000, [1000, 4096, 16_384, 18_432]),
];

fn setup(org: perimeter::OrgSpec, mtu: u32) -> Setup {
    let mut setup = Setup::new(org);
    setup.wire.mtu = mtu;
    for c in [&mut setup.config, &mut setup.peer] {
        c.tcp.mss = mtu as u16 - 40;
        c.tcp.rcv_buf = 65_535;
    }
    setup
}

fn for_each(body: fn(&World, u32)) {
    for org in organizations() {
        for (mtu, sizes) in SIZES {
            for size in sizes {
                let setup = setup(org.clone(), mtu);
                let name = format!("{org}, MTU {mtu}, {size}");
                let result = setup.try_run(move |w| body(&w, size));
                result.unwrap_or_else(|f| panic!("{name}: {f}"));
            }
        }
    }
}

/// Takes what there is without waiting.
fn drain(s: &TcpStream, got: &mut Vec<u8>) {
    let mut buf = [0; 65_536];
    loop {
        match (&*s).read(&mut buf) {
            Ok(n) => got.extend_from_slice(&buf[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Writes what fits of the rest of `data`.
fn push(s: &TcpStream, data: &[u8], sent: &mut usize) {
    match (&*s).write(&data[*sent..]) {
        Ok(n) => *sent += n,
        Err(e) if e.kind() == ErrorKind::WouldBlock => {}
        Err(e) => panic!("{e}"),
    }
}

/// All of `data` arrives behind what was received before.
fn goes_on(w: &World, from: &TcpStream, to: &TcpStream, data: &[u8]) {
    let (mut sent, mut got) = (0, Vec::new());
    w.until("the rest", || {
        if sent < data.len() {
            push(from, data, &mut sent);
        }
        drain(to, &mut got);
        got.len() >= data.len()
    });
    assert!(got == data, "{}: not what was sent", w.s.organization());
}

#[test]
fn a_buffer_that_shrinks_before_data_comes() {
    for_each(|w, size| {
        let (ours, theirs) = w.opened();
        ours.set_recv_buffer_size(size).unwrap();
        goes_on(w, &theirs, &ours, &content(130_000));
    });
}

#[test]
fn a_buffer_that_shrinks_while_it_is_full() {
    for_each(|w, size| {
        let (theirs, ours) = {
            let (ours, theirs) = w.open();
            (theirs, ours)
        };
        let before = fill(&theirs);
        w.until("a full buffer", || {
            ours.info().unwrap().rcv_queued >= 40_000
        });
        w.pass(std::time::Duration::from_millis(400));
        ours.set_recv_buffer_size(size).unwrap();
        w.pass(std::time::Duration::from_millis(10));
        let mut got = Vec::new();
        w.until("what was sent before", || {
            drain(&ours, &mut got);
            got.len() >= before
        });
        assert_eq!(got.len(), before);
        goes_on(w, &theirs, &ours, &content(40_000));
    });
}

/// Nobody reads: only the larger buffer can let more come.
#[test]
fn a_buffer_that_grows_while_it_is_full() {
    for_each(|w, size| {
        let (ours, theirs) = w.opened();
        ours.set_recv_buffer_size(size).unwrap();
        goes_on(w, &theirs, &ours, &content(80_000));
        let total = fill(&theirs) as u32;
        w.pass(std::time::Duration::from_millis(2_000));
        let queued = ours.info().unwrap().rcv_queued;
        assert!(queued <= 66_000, "{queued} of {total}");
        ours.set_recv_buffer_size(total + 100_000).unwrap();
        let grown = || ours.info().unwrap().rcv_queued == total;
        w.until("the rest", grown);
        let mut got = Vec::new();
        drain(&ours, &mut got);
        assert_eq!(got.len() as u32, total);
        goes_on(w, &theirs, &ours, &content(40_000));
    });
}
