//! Bursts: how large segments end, and when bursts are acknowledged.
#![allow(missing_docs)]

#[path = "common/mod.rs"]
mod common;

use common::{App, Setup, Sim, ethernet};
use perimeter_base::Time;
use perimeter_tcp::{Config, Input, Large, Queued, Tcb};
use perimeter_wire::{TcpFlags, TcpHdr};

const MSS: u32 = 1448;
const BUFFER: u32 = 256 << 10;

/// A connection that is open and has nothing on the way, and when that is.
fn opened(cfg: Config) -> (Tcb, Time) {
    let quiet = App {
        send: 0,
        close_last: true,
        ..App::default()
    };
    let mut sim = Sim::new(&Setup {
        cfg: [cfg.clone(), cfg],
        app: [quiet.clone(), quiet],
        ..Setup::default()
    });
    let end = sim.now.plus(50_000_000);
    sim.run_until(end);
    let now = sim.now;
    (sim.hosts[0].tcb.take().expect("a connection"), now)
}

/// What an open connection plans, with so much queued, up to `most` at once.
fn planned(t: &mut Tcb, len: u32, now: Time) -> Vec<(u32, bool)> {
    let most = Large {
        octets: 65_435,
        segs: u16::MAX,
    };
    let q = Queued {
        len,
        ..Queued::default()
    };
    let each = std::iter::from_fn(|| t.plan_large(q, most, now));
    let push = |f: TcpFlags| f.contains(TcpFlags::PSH);
    each.map(|p| (p.len, push(p.seg.flags))).collect()
}

#[test]
fn pushes_cut_no_large_segment() {
    let cfg = ethernet()
        .with_initial_window(200)
        .with_rcv_buf(1 << 20)
        .with_timestamps(false);
    let (mut t, now) = opened(cfg);
    t.set_large(true);
    // The window of a SYN is not scaled; this one has room for all.
    let hdr = TcpHdr {
        seq: t.rcv_nxt(),
        ack: t.snd_una(),
        flags: TcpFlags::ACK,
        window: 1 << 12,
        ..TcpHdr::default()
    };
    t.input(&hdr, None, now, &mut Input::default());
    // 200 segments may go. Of 1460 octets 44 fit a large one.
    let (whole, rest) = ((44 * 1460, false), (24 * 1460, false));
    let all = planned(&mut t, 1 << 20, now);
    assert_eq!(all, [whole, whole, whole, whole, rest]);
}

/// A peer that gathers segments until one pushes is not left waiting: half its window, or as many
/// whole large segments as fit that, ends with a push.
#[test]
fn half_the_window_pushes_where_a_large_segment_ends() {
    for (mss, window, lengths) in [
        (1460, 256 << 10, [(44 * 1460, false), (44 * 1460, true)]),
        (1460, 64 << 10, [(23 * 1460, true), (21 * 1460, false)]),
        // A loopback's: a segment is longer than the largest of several.
        (65_495, 256 << 10, [(65_495, false), (65_495, false)]),
    ] {
        let cfg = Config::default()
            .with_mss(mss)
            .with_initial_window(200)
            .with_rcv_buf(window)
            .with_timestamps(false);
        let (mut t, now) = opened(cfg);
        t.set_large(true);
        let hdr = TcpHdr {
            seq: t.rcv_nxt(),
            ack: t.snd_una(),
            flags: TcpFlags::ACK,
            window: (window >> 8) as u16,
            ..TcpHdr::default()
        };
        t.input(&hdr, None, now, &mut Input::default());
        let all = planned(&mut t, 1 << 20, now);
        let first: Vec<_> = all.iter().take(2).copied().collect();
        assert_eq!(first, lengths, "{mss}, {window}: {all:?}");
    }
}

/// Data arrives, so many octets in segments of [`MSS`]; whether that asks for output.
fn arrives(t: &mut Tcb, octets: u32, now: Time) -> bool {
    let mut left = octets;
    let mut output = false;
    while left > 0 {
        let len = left.min(MSS);
        let mut data = perimeter_base::PktBuf::with_capacity(len as usize);
        data.set_window(0, len as usize);
        let hdr = TcpHdr {
            seq: t.rcv_nxt(),
            ack: t.snd_una(),
            flags: TcpFlags::ACK,
            window: 1000,
            ..TcpHdr::default()
        };
        let mut out = Input::default();
        t.input(&hdr, Some(data), now, &mut out);
        assert!(out.data.is_some(), "within the window");
        output |= out.output;
        left -= len;
    }
    output
}

/// Whether it acknowledges now, and the window that it shows, octets.
fn acknowledges(t: &mut Tcb, now: Time) -> Option<u32> {
    let plan = t.plan(Queued::default(), now)?;
    assert_eq!((plan.seg.ack, plan.len), (t.rcv_nxt(), 0));
    assert!(t.plan(Queued::default(), now).is_none());
    Some(u32::from(plan.seg.window) << 8)
}

fn receiver(on_read: bool) -> (Tcb, Time) {
    let cfg = ethernet().with_rcv_buf(BUFFER).with_timestamps(false);
    let (mut t, now) = opened(cfg);
    t.set_ack_on_read(on_read);
    // The first acknowledgments are quick.
    for _ in 0..32 {
        arrives(&mut t, 2 * MSS, now);
        acknowledges(&mut t, now);
        t.app_read(BUFFER, BUFFER);
        acknowledges(&mut t, now);
    }
    (t, now)
}

#[test]
fn an_application_that_is_behind_is_waited_for() {
    let (mut t, now) = receiver(true);
    // While less than half of the buffer is full, every second segment is acknowledged.
    for _ in 0..44 {
        assert!(arrives(&mut t, 2 * MSS, now));
        acknowledges(&mut t, now).expect("an acknowledgment");
    }
    // 130,320 octets wait now, just below half; with the next it is more.
    arrives(&mut t, 2 * MSS, now);
    acknowledges(&mut t, now);
    assert!(!arrives(&mut t, 20 * MSS, now));
    assert_eq!(acknowledges(&mut t, now), None);
    // A read that leaves half full, or more, shows nothing yet, and one that leaves less does.
    assert!(!t.app_read(BUFFER / 2, BUFFER));
    assert_eq!(acknowledges(&mut t, now), None);
    let space = BUFFER / 2 + 60_000;
    assert!(t.app_read(space, BUFFER));
    let shown = acknowledges(&mut t, now).expect("an acknowledgment");
    assert!((space - 255..=space).contains(&shown), "{shown} of {space}");
    // All that is left is read: the window is above half of the buffer, so nothing is said.
    assert!(!t.app_read(BUFFER, BUFFER));
    assert_eq!(acknowledges(&mut t, now), None);
    assert!(arrives(&mut t, 2 * MSS, now));
    assert_eq!(acknowledges(&mut t, now), Some((BUFFER - 2 * MSS) & !255));
}

#[test]
fn it_is_waited_for_half_a_millisecond() {
    let (mut t, now) = receiver(true);
    arrives(&mut t, BUFFER / 2 + 2 * MSS, now);
    acknowledges(&mut t, now);
    assert!(!arrives(&mut t, 4 * MSS, now));
    assert_eq!(acknowledges(&mut t, now), None);
    let due = t.deadline();
    assert_eq!(due.nanos_since(now), 500_000);
    t.on_timer(due);
    acknowledges(&mut t, due).expect("an acknowledgment");
    // What lies beyond the window is answered at once.
    let room = BUFFER - (BUFFER / 2 + 6 * MSS);
    arrives(&mut t, room / MSS * MSS, due);
    let hdr = TcpHdr {
        seq: t.rcv_nxt() + BUFFER,
        ack: t.snd_una(),
        flags: TcpFlags::ACK,
        ..TcpHdr::default()
    };
    t.input(&hdr, None, due, &mut Input::default());
    acknowledges(&mut t, due).expect("an acknowledgment");
}

#[test]
fn without_that_every_second_segment_is_acknowledged() {
    let (mut t, now) = receiver(false);
    for _ in 0..85 {
        assert!(arrives(&mut t, 2 * MSS, now));
        acknowledges(&mut t, now).expect("an acknowledgment");
    }
    // And a read that opens a small window says so.
    assert!(t.app_read(30_000, BUFFER));
    acknowledges(&mut t, now).expect("an update");
}
