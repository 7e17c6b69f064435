//! The ideal peer, frame by frame.

mod common;

use common::{Host, Tcp, key, syn};
use core::net::{Ipv4Addr, SocketAddrV4};
use core::sync::atomic::{AtomicU32, Ordering};
use perimeter_base::Time;
use perimeter_link::mem::{Answers, NicConfig, Source};
use perimeter_link::pattern::Pattern;
use perimeter_link::{RxQueue, RxStatus};
use perimeter_wire::{
    ArpOp, ArpPacket, EtherHdr, Frame, Icmpv4, Ipv4Hdr, MacAddr, Seq, TcpFlags, TcpOptions,
};
use proptest::prelude::*;
use std::sync::Arc;

const FULL: usize = 1448;

fn host() -> Host {
    let mut config = NicConfig::new(0);
    config.peer.verify_every = 1;
    Host::new(config)
}

fn stream(from: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    Pattern::get().fill(from, &mut v);
    v
}

/// Sends `n` full segments of the stream in one burst.
fn send_full(h: &mut Host, t: &mut Tcp, sent: &mut u64, n: usize) {
    let pages: Vec<Vec<u8>> = (0..n)
        .map(|i| stream(*sent + (i * FULL) as u64, FULL))
        .collect();
    for page in &pages {
        let seg = t.ack();
        h.place(&t.key.clone(), &seg, page);
        t.seq += FULL as u32;
        *sent += FULL as u64;
    }
    h.ring_bell();
    assert!(h.ring.is_empty());
}

#[test]
fn handshake_mirrors_options() {
    for (ts, sack, wscale) in [
        (true, true, true),
        (false, true, false),
        (true, false, true),
        (false, false, false),
    ] {
        let mut h = host();
        let k = key(&h.config, 4000, 80);
        let mut seg = syn(5);
        seg.opts.ts = ts.then_some((7, 0));
        seg.opts.sack_permitted = sack;
        seg.opts.wscale = wscale.then_some(2);
        h.send(&k, &seg, &[]);
        assert!(h.segments().is_empty(), "not before a round trip");
        h.rtt();
        let got = h.one();
        let o = got.tcp.hdr.opts;
        assert_eq!(o.mss, Some(1460));
        assert_eq!(o.ts.map(|t| t.1), ts.then_some(7));
        assert_eq!((o.sack_permitted, o.wscale.is_some()), (sack, wscale));
        // A repeated SYN gets the same answer.
        h.send(&k, &seg, &[]);
        h.rtt();
        assert_eq!(h.one().tcp.hdr.seq, got.tcp.hdr.seq);
        assert_eq!(h.handle.counts().accepted, 1);
    }
}

#[test]
fn every_second_full_segment_is_acknowledged() {
    let mut h = host();
    let k = key(&h.config, 4000, 80);
    let mut t = h.connect(k);
    let mut sent = 0;
    send_full(&mut h, &mut t, &mut sent, 6);
    h.rtt();
    let acks = h.segments();
    let numbers: Vec<u32> = acks
        .iter()
        .map(|a| a.tcp.hdr.ack.since(Seq(1001)))
        .collect();
    assert_eq!(numbers, [2, 4, 6].map(|n| n * FULL as u32));
    assert!(
        acks.iter()
            .all(|a| a.tcp.hdr.opts.ts.map(|t| t.1) == Some(8))
    );
    let window = u32::from(acks[0].tcp.hdr.window) << 5;
    assert_eq!(window, 1 << 20);
    let flows = h.handle.flows();
    assert_eq!((flows.len(), flows[0].acked), (1, 6 * FULL as u64));
    assert_eq!(flows[0].host, (h.config.host, 4000).into());
    let c = h.handle.counts();
    assert_eq!((c.verified, c.verify_errors), (6, 0));
}

#[test]
fn a_lone_segment_waits_for_the_delayed_ack_timer() {
    let mut h = host();
    let k = key(&h.config, 4000, 80);
    let mut t = h.connect(k);
    let mut sent = 0;
    for round in 1..4 {
        send_full(&mut h, &mut t, &mut sent, 3);
        h.rtt();
        assert_eq!(h.one().tcp.hdr.ack, t.seq - FULL as u32, "round {round}");
        // Whoever arms learns when the timer fires.
        let RxStatus::Armed(until) = h.rx[0].arm(h.now) else {
            panic!("nothing has arrived")
        };
        assert!(until > h.now && until <= h.now.plus(h.config.peer.delayed_ack_ns));
        h.now = until;
        let got = h.one();
        assert_eq!(got.tcp.hdr.ack, t.seq);
        assert_eq!(got.tcp.hdr.seq, t.ack);
        h.after(1_000_000);
    }
}

#[test]
fn a_delayed_ack_that_came_otherwise_is_not_sent() {
    let mut h = host();
    let k = key(&h.config, 4000, 80);
    let mut t = h.connect(k);
    let mut sent = 0;
    send_full(&mut h, &mut t, &mut sent, 1);
    h.rtt();
    assert!(h.segments().is_empty());
    send_full(&mut h, &mut t, &mut sent, 1);
    h.rtt();
    assert_eq!(h.one().tcp.hdr.ack, t.seq);
    h.after(10 * h.config.peer.delayed_ack_ns);
    assert!(h.segments().is_empty());
    assert_eq!(h.rx[0].arm(h.now), RxStatus::Armed(Time::NEVER));
}

#[test]
fn stretch_acks_are_a_setting() {
    let mut config = NicConfig::new(0);
    config.peer.ack_every = 8;
    let mut h = Host::new(config);
    let k = key(&h.config, 4000, 80);
    let mut t = h.connect(k);
    let mut sent = 0;
    send_full(&mut h, &mut t, &mut sent, 32);
    h.rtt();
    assert_eq!(h.segments().len(), 4);
}

#[test]
fn passive_close() {
    let mut h = host();
    let k = key(&h.config, 4000, 80);
    let mut t = h.connect(k);
    h.send(&k, &t.with(TcpFlags::ACK | TcpFlags::FIN), b"");
    t.seq += 1;
    h.rtt();
    let fin = h.one();
    assert!(fin.tcp.hdr.flags.contains(TcpFlags::FIN | TcpFlags::ACK));
    assert_eq!((fin.tcp.hdr.ack, fin.tcp.hdr.seq), (t.seq, t.ack));
    // Our ACK was lost: the peer repeats its FIN when ours comes again.
    h.send(&k, &{ t.with(TcpFlags::ACK | TcpFlags::FIN) }.clone(), b"");
    h.rtt();
    let again = h.segments();
    assert_eq!(again.len(), 1);
    t.ack += 1;
    h.send(&k, &t.ack(), b"");
    assert!(h.handle.flows().is_empty());
    assert_eq!((h.handle.counts().closed, h.handle.live()), (1, 0));
    // What comes now has no connection.
    h.send(&k, &t.ack(), b"");
    h.rtt();
    let rst = h.one();
    assert_eq!(rst.tcp.hdr.flags, TcpFlags::RST);
    assert_eq!(rst.tcp.hdr.seq, t.ack);
}

#[test]
fn loss_is_answered_by_sack_and_healed() {
    let mut h = host();
    let k = key(&h.config, 4000, 80);
    let t = h.connect(k);
    let page = stream(0, 10 * FULL);
    let seg = |i: usize| &page[i * FULL..(i + 1) * FULL];
    let block = |a: usize, b: usize| (t.seq + (a * FULL) as u32, t.seq + (b * FULL) as u32);
    // 0 is lost; 1, 3, 5, 4 arrive.
    for i in [1, 3, 5, 4] {
        h.place(&k, &t.at((i * FULL) as u32), seg(i));
    }
    h.ring_bell();
    h.rtt();
    let dups = h.segments();
    assert_eq!(dups.len(), 4);
    assert!(dups.iter().all(|d| d.tcp.hdr.ack == t.seq));
    let last = dups[3].tcp.hdr.opts.sack;
    assert_eq!(last.as_slice(), [block(3, 6), block(1, 2)]);
    h.send(&k, &t.ack(), seg(0));
    h.rtt();
    assert_eq!(h.one().tcp.hdr.ack, t.seq + 2 * FULL as u32);
    // Something old: a duplicate ACK, at once.
    h.send(&k, &t.ack(), seg(0));
    h.rtt();
    assert_eq!(h.one().tcp.hdr.ack, t.seq + 2 * FULL as u32);
    // A segment that overlaps both sides of the hole.
    let from = 2 * FULL - 100;
    h.send(&k, &t.at(from as u32), &page[from..from + 1400]);
    h.send(
        &k,
        &t.at(3 * FULL as u32 - 200),
        &page[3 * FULL - 200..4 * FULL],
    );
    h.rtt();
    let acks = h.segments();
    assert_eq!(
        acks.last().map(|a| a.tcp.hdr.ack),
        Some(t.seq + 6 * FULL as u32)
    );
    let c = h.handle.counts();
    assert_eq!((c.duplicates, c.out_of_order, c.verify_errors), (1, 4, 0));
    assert_eq!(h.handle.flows()[0].acked, 6 * FULL as u64);
}

#[test]
fn a_fin_ahead_of_its_data_waits() {
    let mut h = host();
    let k = key(&h.config, 4000, 80);
    let t = h.connect(k);
    let page = stream(0, 2 * FULL);
    let mut fin = t.at(FULL as u32);
    fin.flags = TcpFlags::ACK | TcpFlags::FIN;
    h.send(&k, &fin, &page[FULL..]);
    h.rtt();
    assert_eq!(h.one().tcp.hdr.ack, t.seq);
    h.send(&k, &t.ack(), &page[..FULL]);
    h.rtt();
    let got = h.one();
    assert_eq!(got.tcp.hdr.ack, t.seq + 2 * FULL as u32 + 1);
    assert!(got.tcp.hdr.flags.contains(TcpFlags::FIN));
}

#[test]
fn wrong_bytes_are_found() {
    let mut h = host();
    let k = key(&h.config, 4000, 80);
    let t = h.connect(k);
    let mut page = stream(0, FULL);
    page[700] ^= 4;
    h.send(&k, &t.ack(), &page);
    assert_eq!(h.handle.counts().verify_errors, 1);
    // The right bytes at the wrong place.
    let page = stream(0, FULL);
    h.send(&k, &t.at(FULL as u32), &page);
    assert_eq!(h.handle.counts().verify_errors, 2);
    // A wrong checksum.
    let page = stream(2 * FULL as u64, FULL);
    h.place_but(&k, &t.at(2 * FULL as u32), &page, |head| head.hdr[50] ^= 1);
    h.ring_bell();
    assert_eq!(h.handle.counts().verify_errors, 3);
}

#[test]
fn a_source_keeps_to_the_window_and_sends_the_stream() {
    let mut config = NicConfig::new(0);
    config.peer.source = Source::Ports(5000..=5999);
    config.peer.source_bytes = Some(200_000);
    let mut h = Host::new(config);
    let k = key(&h.config, 4000, 5001);
    let mut t = h.connect(k);
    let mut got = 0u64;
    let mut closed = false;
    for _ in 0..200 {
        h.rtt();
        let flight = h.segments();
        let bytes: usize = flight.iter().map(|s| s.data.len()).sum();
        assert!(bytes <= 16_384 << 2, "{bytes} in flight");
        for s in flight {
            assert_eq!(s.tcp.hdr.seq, t.ack);
            assert!(Pattern::get().matches(got, &s.data), "at {got}");
            got += s.data.len() as u64;
            t.ack += s.data.len() as u32;
            if s.tcp.hdr.flags.contains(TcpFlags::FIN) {
                t.ack += 1;
                closed = true;
            }
        }
        let seg = t.ack();
        h.send(&k, &seg, &[]);
        if closed {
            break;
        }
    }
    assert_eq!((got, closed), (200_000, true));
    assert_eq!(h.handle.flows()[0].delivered, 200_000);
    h.send(&k, &t.with(TcpFlags::ACK | TcpFlags::FIN), &[]);
    h.rtt();
    assert_eq!(h.one().tcp.hdr.ack, t.seq + 1);
    assert_eq!(h.handle.counts().closed, 1);
    // Other ports get nothing.
    let k = key(&h.config, 4001, 80);
    h.connect(k);
    h.rtt();
    assert!(h.segments().is_empty());
}

#[test]
fn a_source_sends_segments_of_the_size_asked_for() {
    let mut config = NicConfig::new(0);
    config.peer.source = Source::Always;
    config.peer.source_segment = 100;
    let mut h = Host::new(config);
    let k = key(&h.config, 4000, 5001);
    h.connect(k);
    h.rtt();
    let flight = h.segments();
    assert!(flight.len() > 100, "{}", flight.len());
    assert!(flight.iter().all(|s| s.data.len() == 100));
}

#[test]
fn requests_are_answered_when_they_are_whole() {
    let mut config = NicConfig::new(0);
    config.peer.answers = Some(Answers {
        request: 100,
        response: 30,
    });
    let mut h = Host::new(config);
    let k = key(&h.config, 4000, 5001);
    let mut t = h.connect(k);
    h.send(&k, &t.ack(), &stream(0, 99));
    h.rtt();
    assert!(h.segments().iter().all(|s| s.data.is_empty()));
    // The last byte of one and the whole of the next.
    h.send(&k, &t.at(99), &stream(99, 101));
    h.rtt();
    let answer = h.one();
    assert_eq!(answer.tcp.hdr.ack, t.seq + 200);
    assert_eq!(answer.data.len(), 60);
    assert!(Pattern::get().matches(0, &answer.data));
    assert!(!answer.tcp.hdr.flags.contains(TcpFlags::FIN));
    t.ack += 60;
    h.send(&k, &t.at(200), &[]);
    h.rtt();
    assert!(h.segments().is_empty());
    assert_eq!(h.handle.flows()[0].delivered, 60);
}

#[test]
fn a_source_repeats_what_three_duplicates_ask_for() {
    let mut config = NicConfig::new(0);
    config.peer.source = Source::Always;
    let mut h = Host::new(config);
    let k = key(&h.config, 4000, 5001);
    let t = h.connect(k);
    h.rtt();
    let flight = h.segments();
    assert!(flight.len() > 10);
    for _ in 0..3 {
        h.send(&k, &t.ack(), &[]);
    }
    h.rtt();
    let again = h.one();
    assert_eq!(again.tcp.hdr.seq, t.ack);
    assert_eq!(again.data, flight[0].data);
    // A partial acknowledgment asks for the next hole.
    let mut seg = t.ack();
    seg.ack = t.ack + 3 * FULL as u32;
    seg.window = 0;
    h.send(&k, &seg, &[]);
    h.rtt();
    let next = h.one();
    assert_eq!(next.tcp.hdr.seq, seg.ack);
    assert_eq!(next.data, flight[3].data);
}

#[test]
fn a_source_stops_when_the_stack_closes() {
    let mut config = NicConfig::new(0);
    config.peer.source = Source::Always;
    let mut h = Host::new(config);
    let k = key(&h.config, 4000, 5001);
    let mut t = h.connect(k);
    h.send(&k, &t.with(TcpFlags::ACK | TcpFlags::FIN), &[]);
    t.seq += 1;
    h.rtt();
    for s in h.segments() {
        t.ack += s.data.len() as u32;
        t.ack += u32::from(s.tcp.hdr.flags.contains(TcpFlags::FIN));
    }
    h.send(&k, &t.ack(), &[]);
    h.rtt();
    assert!(h.segments().is_empty());
    assert_eq!(h.handle.live(), 0);
}

#[test]
fn the_peer_opens_connections_too() {
    let mut h = host();
    let from = SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, 9), 777);
    let to = SocketAddrV4::new(h.config.host, 80);
    h.handle.connect(h.now, from, to).expect("ours");
    assert!(h.handle.connect(h.now, to, to).is_err());
    let outside = SocketAddrV4::new(Ipv4Addr::new(11, 0, 0, 1), 1);
    assert!(h.handle.connect(h.now, outside, to).is_err());
    h.rtt();
    let got = h.one();
    assert_eq!(got.tcp.hdr.flags, TcpFlags::SYN);
    assert_eq!((got.tcp.key.remote_port, got.tcp.key.local_port), (777, 80));
    let mut reply = syn(99);
    reply.flags = TcpFlags::SYN | TcpFlags::ACK;
    reply.ack = got.tcp.hdr.seq + 1;
    let k = got.tcp.key;
    h.send(&k, &reply, &[]);
    h.rtt();
    let ack = h.one();
    assert_eq!(ack.tcp.hdr.ack, Seq(100));
    assert_eq!((h.handle.counts().opened, h.handle.live()), (1, 1));
    // A SYN-ACK that nobody asked for is reset.
    let other = key(&h.config, 1, 2);
    h.send(&other, &reply, &[]);
    h.rtt();
    assert!(h.one().tcp.hdr.flags.contains(TcpFlags::RST));
}

#[test]
fn refused_ports_and_strangers_are_reset() {
    let mut config = NicConfig::new(0);
    config.peer.refuse = Some(9..=9);
    let mut h = Host::new(config);
    let k = key(&h.config, 4000, 9);
    h.send(&k, &syn(5), &[]);
    h.rtt();
    let got = h.one();
    assert_eq!(got.tcp.hdr.flags, TcpFlags::RST | TcpFlags::ACK);
    assert_eq!(got.tcp.hdr.ack, Seq(6));
    assert_eq!(h.handle.counts().refused, 1);
}

#[test]
fn slots_run_out_and_come_back() {
    let mut config = NicConfig::new(0);
    config.peer.max_flows = 3;
    let mut h = Host::new(config);
    for port in 0..3 {
        let k = key(&h.config, 4000 + port, 80);
        h.connect(k);
    }
    let k = key(&h.config, 5000, 80);
    h.send(&k, &syn(5), &[]);
    h.rtt();
    assert!(h.one().tcp.hdr.flags.contains(TcpFlags::RST));
    let first = key(&h.config, 4000, 80);
    let mut rst = syn(1001);
    rst.flags = TcpFlags::RST;
    rst.opts = TcpOptions::default();
    h.send(&first, &rst, &[]);
    assert_eq!(h.handle.live(), 2);
    h.connect(k);
}

#[test]
fn arp_and_echo() {
    let mut h = host();
    let ask = |h: &Host, sender: Ipv4Addr, target: Ipv4Addr| {
        let mut out = vec![0; 42];
        let eth = EtherHdr {
            dst: MacAddr::BROADCAST,
            src: h.config.mac,
            ethertype: 0x0806,
        };
        eth.emit(&mut out);
        let arp = ArpPacket {
            op: ArpOp::Request,
            sender_mac: h.config.mac,
            sender_ip: sender,
            target_mac: MacAddr::default(),
            target_ip: target,
        };
        arp.emit(&mut out[14..]);
        out
    };
    let me = h.config.host;
    let peer = Ipv4Addr::new(10, 1, 77, 8);
    let question = ask(&h, me, peer);
    h.raw(&question);
    h.rtt();
    let frames = h.frames();
    let Ok(Frame::Arp(reply)) =
        Frame::parse_ethernet(frames[0].buf.as_slice(), perimeter_wire::Csum::Verify)
    else {
        panic!("no reply: {frames:?}")
    };
    assert_eq!(
        (reply.sender_ip, reply.sender_mac),
        (peer, h.config.peer_mac)
    );
    // Neither a probe for the stack's own address nor an address outside is answered.
    for (sender, target) in [
        (Ipv4Addr::UNSPECIFIED, me),
        (me, me),
        (me, Ipv4Addr::new(10, 2, 0, 1)),
    ] {
        let question = ask(&h, sender, target);
        h.raw(&question);
    }
    h.rtt();
    assert!(h.frames().is_empty());

    let body = b"how far is it?";
    let mut ping = vec![0; 14 + 20 + 8 + body.len()];
    let eth = EtherHdr {
        dst: h.config.peer_mac,
        src: h.config.mac,
        ethertype: 0x0800,
    };
    eth.emit(&mut ping);
    let ip = Ipv4Hdr {
        src: me,
        dst: peer,
        protocol: 1,
        ttl: 64,
        tos: 0,
        ident: 1,
        total_len: (ping.len() - 14) as u16,
        header_len: 20,
        dont_fragment: false,
        more_fragments: false,
        frag_offset: 0,
    };
    ip.emit(&mut ping[14..]);
    Icmpv4::EchoRequest { ident: 3, seq: 4 }.emit(body, &mut ping[34..]);
    h.raw(&ping);
    h.rtt();
    let frames = h.frames();
    match Frame::parse_ethernet(frames[0].buf.as_slice(), perimeter_wire::Csum::Verify) {
        Ok(Frame::Icmp { ip, msg, body: b }) => {
            assert_eq!((ip.src, ip.dst, b), (peer, me, &body[..]));
            assert_eq!(msg, Icmpv4::EchoReply { ident: 3, seq: 4 });
        }
        other => panic!("{other:?}"),
    }
}

fn waker(rx: &mut dyn RxQueue) -> Arc<AtomicU32> {
    let calls = Arc::new(AtomicU32::new(0));
    let counter = calls.clone();
    rx.set_waker(Arc::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    }));
    calls
}

#[test]
fn one_arm_one_call_and_none_for_who_wakes_anyway() {
    for delay in [0, 20_000] {
        let mut config = NicConfig::new(0);
        config.interrupt_delay_ns = delay;
        let mut h = Host::new(config);
        let k = key(&h.config, 4000, 80);
        let mut t = h.connect(k);
        let calls = waker(&mut *h.rx[0]);
        let mut sent = 0;
        assert_eq!(h.rx[0].arm(h.now), RxStatus::Armed(Time::NEVER));
        send_full(&mut h, &mut t, &mut sent, 8);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        let due = h.now.plus(h.config.peer.rtt_ns + delay);
        assert_eq!(h.rx[0].arm(h.now), RxStatus::Armed(due));
        h.after(10);
        send_full(&mut h, &mut t, &mut sent, 8);
        assert_eq!(calls.load(Ordering::Relaxed), 1, "the deadline is earlier");
        h.now = due.plus(10);
        assert_eq!(h.rx[0].arm(h.now), RxStatus::Ready);
        assert_eq!(h.segments().len(), 8);
        // Not armed: no call.
        send_full(&mut h, &mut t, &mut sent, 8);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn interrupts_of_a_throttled_nic_are_apart() {
    const GAP: u64 = 125_000;
    let mut h = Host::new(NicConfig::new(0).with_interrupt_gap_ns(GAP));
    let k = key(&h.config, 4000, 80);
    let mut t = h.connect(k);
    h.segments();
    let mut sent = 0;
    // After a quiet time the first frame is told of at once.
    h.after(10 * GAP);
    assert_eq!(h.rx[0].arm(h.now), RxStatus::Armed(Time::NEVER));
    send_full(&mut h, &mut t, &mut sent, 8);
    let mut due = h.now.plus(h.config.peer.rtt_ns);
    assert_eq!(h.rx[0].arm(h.now), RxStatus::Armed(due));
    for _ in 0..3 {
        // It comes; what is due soon after waits for the next, also where who sleeps already would
        // sleep longer.
        h.now = due.plus(10);
        h.segments();
        assert_eq!(h.rx[0].arm(h.now), RxStatus::Armed(Time::NEVER));
        send_full(&mut h, &mut t, &mut sent, 8);
        due = due.plus(GAP);
        assert_eq!(h.rx[0].arm(h.now), RxStatus::Armed(due));
        // Who looks sooner finds it, and that was no interrupt.
        h.after(GAP / 2);
        assert_eq!(h.rx[0].arm(h.now), RxStatus::Ready);
        assert_eq!(h.segments().len(), 4);
        send_full(&mut h, &mut t, &mut sent, 8);
        assert_eq!(h.rx[0].arm(h.now), RxStatus::Armed(due));
    }
}

#[test]
fn pure_polling_never_calls() {
    let mut config = NicConfig::new(0);
    config.interrupts = false;
    let mut h = Host::new(config);
    let calls = waker(&mut *h.rx[0]);
    let k = key(&h.config, 4000, 80);
    h.rx[0].arm(h.now);
    h.connect(k);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[test]
fn a_paced_nic_keeps_its_rate() {
    let mut config = NicConfig::new(0);
    config.gbps = Some(10.0);
    let mut h = Host::new(config);
    let k = key(&h.config, 4000, 80);
    let t = h.connect(k);
    h.after(1_000_000);
    let start = h.now;
    let page = vec![0; FULL];
    let (mut placed, mut taken) = (0u32, 0u32);
    while taken < 1000 {
        while placed < 1000 && h.ring.room() > 2000 {
            h.place(&k, &t.at(placed * FULL as u32), &page);
            placed += 1;
        }
        h.ring_bell();
        taken = placed - h.ring.len() as u32;
        assert_eq!(h.ring.completions().done(), u64::from(taken) + 2);
        if !h.ring.is_empty() {
            assert!(h.tx[0].ready_at() > h.now);
            h.now = h.tx[0].ready_at();
        }
        h.segments();
    }
    // 1000 frames of 1538 bytes at 10 Gb/s: 1230 µs, less what the FIFO holds.
    let took = h.now.nanos_since(start);
    assert!((1_205_000..1_235_000).contains(&took), "{took}");
}

#[test]
fn flows_spread_over_queues_by_their_hash() {
    let mut config = NicConfig::new(0);
    config.rx_queues = 4;
    config.tx_queues = 2;
    let mut h = Host::new(config);
    let rss = perimeter_link::rss::Rss::even(4);
    let mut seen = [0; 4];
    for port in 0..64 {
        let k = key(&h.config, 4000 + port, 80);
        let (me, peer) = (h.config.host, Ipv4Addr::new(10, 1, 0, 2));
        let hash = rss.hash((me, 4000 + port), (peer, 80));
        h.place(&k, &syn(1), &[]);
        let queue = hash as usize % 2;
        h.tx[queue].doorbell(h.now, &mut h.ring);
        h.rtt();
        let mut out = Vec::new();
        let q = rss.queue(hash);
        assert_eq!(h.rx[q].poll(h.now, &mut h.pool, &mut out, 10), 1);
        assert_eq!(out[0].hash, Some(hash));
        seen[q] += 1;
    }
    assert!(seen.iter().all(|&n| n > 4), "{seen:?}");
    assert_eq!(h.handle.flows().len(), 64);
}

#[test]
fn a_full_ring_holds_frames_back_and_loses_none() {
    let mut config = NicConfig::new(0);
    config.ring = 256;
    let mut h = Host::new(config);
    let k = key(&h.config, 4000, 80);
    let t = h.connect(k);
    let page = vec![0; FULL];
    for i in 0..2000 {
        h.place(&k, &t.at(i * FULL as u32), &page);
    }
    h.ring_bell();
    assert!(!h.ring.is_empty());
    assert!(h.tx[0].ready_at() > h.now);
    let mut acks = 0;
    while !h.ring.is_empty() {
        h.rtt();
        acks += h.segments().len();
        h.ring_bell();
    }
    h.rtt();
    acks += h.segments().len();
    assert_eq!(acks, 1000);
    assert_eq!(h.handle.counts().rx_dropped, 0);
    assert!(h.handle.counts().rx_full > 0);
}

/// All sources move though the ring holds far less than their windows.
#[test]
fn blocked_sources_take_turns() {
    let mut config = NicConfig::new(0);
    config.ring = 256;
    config.peer.source = Source::Always;
    let mut h = Host::new(config);
    let mut acks = std::collections::HashMap::new();
    for port in 0..40 {
        let k = key(&h.config, 4000 + port, 80);
        h.send(&k, &syn(1000), &[]);
        h.rtt();
        h.frames();
        acks.insert(4000 + port, (k, None));
    }
    // Everybody's handshake ends now, and the flood begins.
    for port in 0..40 {
        let k = key(&h.config, 4000 + port, 80);
        h.send(&k, &syn(1000), &[]);
    }
    for _ in 0..400 {
        h.rtt();
        for s in h.segments() {
            let k = s.tcp.key;
            let entry = acks.get_mut(&k.local_port).expect("known");
            let mut end = s.tcp.hdr.seq + s.data.len() as u32;
            if s.tcp.hdr.flags.contains(TcpFlags::SYN) {
                end += 1;
            }
            entry.1 = Some(end);
        }
        let due: Vec<_> = acks
            .values_mut()
            .filter_map(|e| Some((e.0, e.1.take()?)))
            .collect();
        for (k, ack) in due {
            let t = Tcp {
                key: k,
                seq: Seq(1001),
                ack,
            };
            h.send(&k, &t.ack(), &[]);
        }
    }
    let least = h.handle.flows().iter().map(|f| f.delivered).min();
    assert!(least > Some(100_000), "{least:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever bytes the stack sends, the peer survives, and serves the next connection.
    #[test]
    fn garbage_harms_nobody(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..20),
        edits in prop::collection::vec((0usize..80, any::<u8>()), 0..12),
        cut in 0usize..80,
    ) {
        let mut h = host();
        for f in &frames {
            h.raw(f);
        }
        // A valid segment, damaged.
        let k = key(&h.config, 4000, 80);
        let t = h.connect(k);
        let page = stream(0, 64);
        for round in 0..3u32 {
            h.place_but(&k, &t.at(round * 7), &page, |d| {
                for &(at, value) in &edits {
                    d.hdr[at] = value.wrapping_add(round as u8);
                }
                if round == 2 {
                    d.hdr_len = cut as u8;
                }
            });
            h.ring_bell();
        }
        h.rtt();
        h.frames();
        h.after(1_000_000_000);
        h.frames();
        let k = key(&h.config, 60_000, 60_000);
        h.send(&k, &syn(1), &[]);
        h.rtt();
        prop_assert_eq!(h.segments().len(), 1);
    }
}
