//! The ideal peer when the ring to a receive queue has no room for what it has to say.

mod common;

use common::{Host, Tcp, key};
use perimeter_base::Time;
use perimeter_link::RxStatus;
use perimeter_link::mem::{Answers, NicConfig};
use perimeter_link::pattern::Pattern;

fn stream(from: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    Pattern::get().fill(from, &mut v);
    v
}

/// Many more connections exchange messages than the ring to the receive queue has room for. The
/// peer keeps answers back while it is full, and asks to be called again for them: whoever waits
/// for an answer may have nothing to send, and rings no doorbell of its own.
#[test]
fn answers_without_room_come_later() {
    const CONNECTIONS: u16 = 600;
    const ROUNDS: u32 = 20;
    let mut config = NicConfig::new(0);
    config.ring = 256;
    config.peer.answers = Some(Answers {
        request: 64,
        response: 64,
    });
    let mut h = Host::new(config);
    let mut all: Vec<Tcp> = (0..CONNECTIONS)
        .map(|i| {
            let k = key(&h.config, 4000 + i, 5001);
            h.connect(k)
        })
        .collect();
    let request = stream(0, 64);
    let send = |h: &mut Host, t: &mut Tcp| {
        h.place(&t.key.clone(), &t.ack(), &request);
        t.seq += 64;
    };
    for t in &mut all {
        send(&mut h, t);
    }
    h.ring_bell();
    let mut answered = 0;
    while answered < u32::from(CONNECTIONS) * ROUNDS {
        // As a stack: what has come first, then what there is to send; else it sleeps until the
        // device or a frame under way wants it.
        let came = h.segments();
        for s in came.iter().filter(|s| !s.data.is_empty()) {
            answered += 1;
            let t = &mut all[usize::from(s.tcp.hdr.dst_port - 4000)];
            assert_eq!(s.tcp.hdr.seq, t.ack, "nothing is lost");
            t.ack += 64;
            send(&mut h, t);
        }
        let wanted = h.tx[0].ready_at();
        let anything = !h.ring.is_empty() || wanted != Time::ZERO;
        if anything && wanted <= h.now {
            h.ring_bell();
        }
        if !came.is_empty() {
            continue;
        }
        let due = match h.rx[0].arm(h.now) {
            RxStatus::Ready => h.now,
            RxStatus::Gone => panic!("the device has gone"),
            RxStatus::Armed(due) => due,
        };
        let again = match h.tx[0].ready_at() {
            Time::ZERO => Time::NEVER,
            at => at,
        };
        let next = due.min(again);
        assert!(
            next != Time::NEVER,
            "it stands still with {answered} answers"
        );
        h.now = h.now.max(next);
    }
    assert_eq!(h.handle.counts().rx_dropped, 0);
}

/// The room was taken by acknowledgments, which no request follows: the answer comes though nobody
/// sends anything more.
#[test]
fn an_answer_that_waits_for_room_asks_for_a_doorbell() {
    let mut config = NicConfig::new(0);
    config.ring = 256;
    config.peer.answers = Some(Answers {
        request: 64,
        response: 30,
    });
    let mut h = Host::new(config);
    let k = key(&h.config, 4000, 5001);
    let t = h.connect(k);
    let request = stream(0, 64);
    // Each repeats a byte of before and is acknowledged at once.
    for _ in 0..200 {
        h.place(&k, &t.at(u32::MAX), &request[..1]);
    }
    h.place(&k, &t.ack(), &request);
    h.ring_bell();
    assert!(h.ring.is_empty());
    h.rtt();
    let came = h.segments();
    assert!(came.len() >= 200 && came.iter().all(|s| s.data.is_empty()));
    let wanted = h.tx[0].ready_at();
    assert!(
        wanted != Time::ZERO,
        "nobody would ring, and it stands still"
    );
    h.now = h.now.max(wanted);
    h.ring_bell();
    h.rtt();
    assert_eq!(h.one().data.len(), 30);
    assert_eq!(h.tx[0].ready_at(), Time::ZERO);
}

/// No room for timers, and none for acknowledgments: none of these is lost.
#[test]
fn acknowledgments_without_room_come_later() {
    let mut config = NicConfig::new(0);
    config.ring = 256;
    config.peer.max_flows = 600;
    config.peer.delayed_ack_ns = 1_000_000;
    let mut h = Host::new(config);
    let mut all: Vec<Tcp> = (0..600)
        .map(|i| {
            let k = key(&h.config, 4000 + i, 5001);
            h.connect(k)
        })
        .collect();
    h.after(1_000_000);
    h.segments();
    // Timers that run out and that nobody takes, as the stack is busy with frames.
    let byte = stream(0, 64);
    for round in 0..2u32 {
        for t in &mut all {
            h.place(
                &t.key.clone(),
                &t.ack(),
                &byte[round as usize..=round as usize],
            );
            t.seq += 1;
        }
        h.ring_bell();
        assert!(h.ring.is_empty());
        h.after(2_000_000);
    }
    assert_ne!(h.tx[0].ready_at(), Time::ZERO);
    let mut acked = std::collections::HashMap::new();
    for _ in 0..100 {
        for s in h.segments() {
            acked.insert(s.tcp.hdr.dst_port, s.tcp.hdr.ack);
        }
        h.after(1_000_000);
        h.ring_bell();
    }
    assert_eq!(h.handle.counts().rx_dropped, 0);
    for t in &all {
        assert_eq!(acked.get(&t.key.local_port), Some(&t.seq));
    }
}
