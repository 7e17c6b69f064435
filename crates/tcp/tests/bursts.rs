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

/// The peer acknowledges so many octets, and shows a window.
fn told(t: &mut Tcb, acked: u32, window: u32, now: Time) {
    let hdr = TcpHdr {
        seq: t.rcv_nxt(),
        ack: t.snd_una() + acked,
        flags: TcpFlags::ACK,
        window: (window >> 8) as u16,
        ..TcpHdr::default()
    };
    t.input(&hdr, None, now, &mut Input::default());
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
    told(&mut t, 0, 1 << 20, now);
    // 200 segments may go. Of 1460 octets 44 fit a large one.
    let (whole, rest) = ((44 * 1460, false), (24 * 1460, true));
    let all = planned(&mut t, 1 << 20, now);
    assert_eq!(all, [whole, whole, whole, whole, rest]);
}

/// A peer that gathers segments until one pushes is not left waiting: half its window, or as many
/// whole large segments as fit that, ends with a push.
#[test]
fn half_the_window_pushes_where_a_large_segment_ends() {
    for (mss, window, lengths) in [
        (1460, 256 << 10, [(44 * 1460, false), (44 * 1460, true)]),
        (1460, 64 << 10, [(23 * 1460, true), (21 * 1460, true)]),
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
        told(&mut t, 0, window, now);
        let all = planned(&mut t, 1 << 20, now);
        let first: Vec<_> = all.iter().take(2).copied().collect();
        assert_eq!(first, lengths, "{mss}, {window}: {all:?}");
    }
}

/// An application writes 64 KB at a time, and only full segments go: what pushes is the last that can
/// go, so that no large one is cut. Half the window never goes without.
#[test]
fn the_last_segment_that_can_go_pushes() {
    const WRITE: u32 = 64 << 10;
    let (mut t, now) = sender(true);
    t.set_cork(true);
    let (mut queued, mut since) = (0, 0);
    for _ in 0..1000 {
        queued += WRITE;
        let all = planned(&mut t, queued, now);
        for (i, &(len, push)) in all.iter().enumerate() {
            assert!(len == 44 * 1460 || i + 1 == all.len(), "{all:?}");
            since += len;
            assert!(since <= 128 << 10, "{since}");
            if push {
                since = 0;
            }
        }
        let sent: u32 = all.iter().map(|p| p.0).sum();
        acked(&mut t, sent, now);
        queued -= sent;
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

/// A connection to a peer with a window of 256 KB, 179 segments, and when. It has sent nothing.
fn sender(on: bool) -> (Tcb, Time) {
    let cfg = ethernet()
        .with_initial_window(200)
        .with_rcv_buf(1 << 20)
        .with_timestamps(false);
    let (mut t, now) = opened(cfg);
    t.set_large(true);
    t.set_defer(on);
    acked(&mut t, 0, now);
    (t, now)
}

/// So many octets are acknowledged; the window stays 256 KB.
fn acked(t: &mut Tcb, octets: u32, now: Time) {
    told(t, octets, BUFFER, now);
}

/// The segments of each large one that it plans, with so much queued.
fn sends(t: &mut Tcb, len: u32, now: Time) -> Vec<u32> {
    let all = planned(t, len, now);
    all.iter().map(|p| p.0.div_ceil(1460)).collect()
}

#[test]
fn a_part_of_a_large_segment_waits_for_room() {
    const QUEUED: u32 = 900 << 10;
    let (mut t, now) = sender(true);
    // Nothing is on the way: all that the window has room for goes, its last part, too.
    assert_eq!(sends(&mut t, QUEUED, now), [44, 44, 44, 44, 3]);
    let soon = now.plus(900_000);
    acked(&mut t, 24 * 1460, soon);
    assert!(sends(&mut t, QUEUED, soon).is_empty());
    // A loss probe is due before a timeout would be: were that acknowledgment lost.
    assert!(t.deadline().nanos_since(soon) < 200_000_000);
    // What has arrived is acknowledged meanwhile.
    arrives(&mut t, 2 * MSS, soon);
    acknowledges(&mut t, soon).expect("an acknowledgment");
    acked(&mut t, 19 * 1460, soon);
    assert!(sends(&mut t, QUEUED, soon).is_empty());
    acked(&mut t, 1460, soon);
    assert_eq!(sends(&mut t, QUEUED, soon), [44]);
}

#[test]
fn a_part_of_a_large_segment_goes_where_waiting_is_for_nothing() {
    // Whether parts wait at all, when the acknowledgment comes, what is queued, and whether the
    // application has closed.
    for (on, after, queued, closed) in [
        (false, 900_000, 900 << 10, false),
        // Nothing has been sent for a while.
        (true, 1_100_000, 900 << 10, false),
        // The window has room for all.
        (true, 900_000, 179 * 1460, false),
        // No more comes, so that the end is not to be kept back.
        (true, 900_000, 900 << 10, true),
    ] {
        let (mut t, now) = sender(on);
        assert_eq!(sends(&mut t, 900 << 10, now), [44, 44, 44, 44, 3]);
        let then = now.plus(after);
        acked(&mut t, 24 * 1460, then);
        if closed {
            t.shutdown_write(then);
        }
        let sent = sends(&mut t, queued, then);
        assert_eq!(sent, [24], "{on} {after} {queued} {closed}");
    }
}

#[test]
fn an_acknowledgment_that_may_take_long_is_not_waited_for() {
    let (mut t, now) = sender(true);
    assert_eq!(sends(&mut t, 24 * 1460, now), [24]);
    let pause = t.srtt().as_nanos() as u64 / 2;
    assert!(pause > 0);
    let then = now.plus(pause);
    assert_eq!(sends(&mut t, 900 << 10, then), [44, 44, 44]);
    // What is acknowledged next was sent half a round trip later.
    acked(&mut t, 24 * 1460, then);
    assert_eq!(sends(&mut t, 900 << 10, then), [44, 3]);
    // And this right behind that.
    acked(&mut t, 24 * 1460, then);
    assert!(sends(&mut t, 900 << 10, then).is_empty());
}
