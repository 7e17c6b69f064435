//! The lists of datagrams: of those that are for a socket, and of those that sockets send.

use crate::lists::{NAMES, event};
use crate::packet::{THEM, US, ipv4};
use perimeter::link::script::{ScriptHandle, script};
use perimeter::pef::{Direction, Layer, Packet, PacketEvent, Under, Verdict};
use perimeter::{Stack, UdpSocket, Virtual};
use perimeter_sync::virt::{Act, VirtualConfig};
use perimeter_sync::{Platform, Work};
use perimeter_wire::{PROTO_UDP, UdpHdr, finish_udp};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A datagram from the peer's port 9 to port 53, its checksum off by `wrong`.
fn datagram(text: &[u8], wrong: u8) -> Vec<u8> {
    let len = (UdpHdr::LEN + text.len()) as u16;
    let mut udp = vec![0; UdpHdr::LEN];
    let hdr = UdpHdr {
        src_port: 9,
        dst_port: 53,
        len,
        check: 0,
    };
    hdr.emit(&mut udp);
    udp.extend_from_slice(text);
    finish_udp(THEM.into(), US.into(), &mut udp);
    udp[7] ^= wrong;
    ipv4(PROTO_UDP, &udp)
}

fn with_socket(
    name: &str,
    cores: usize,
    body: fn(&str, &Virtual, &Stack, &UdpSocket, &ScriptHandle<Virtual>),
) {
    let name = name.to_string();
    let config = VirtualConfig::default().with_cores(cores);
    Virtual::run(config, move |p: Virtual| {
        let (device, wire) = script(&p, "script", 1500);
        let s = Stack::builder().on_virtual(p.clone());
        let s = s.organization(&name).unwrap();
        let s = s.interface(device, &["10.0.0.1/24"]).unwrap();
        let s = s.build().unwrap();
        let socket = s.bind_udp("10.0.0.1:53").unwrap();
        socket.set_nonblocking(true).unwrap();
        body(&name, &p, &s, &socket, &wire);
        s.stop();
    })
    .unwrap();
}

/// Datagrams for sockets that the stack has counted.
fn arrived(s: &Stack) -> u64 {
    s.stats().count("rx_udp")
}

/// The texts that arrive of those sent, and nothing else.
fn texts(p: &Virtual, socket: &UdpSocket) -> Vec<String> {
    p.sleep_until(p.now().plus(5_000_000));
    let mut buf = [0; 100];
    let next = || {
        socket.recv_from(&mut buf).ok().map(|(n, from)| {
            assert_eq!(from, (THEM, 9).into());
            String::from_utf8_lossy(&buf[..n]).into_owned()
        })
    };
    std::iter::from_fn(next).collect()
}

/// An event that notes each text, and drops those that say so.
fn note(direction: Direction, seen: &Arc<Mutex<Vec<String>>>) -> impl PacketEvent {
    let seen = seen.clone();
    move |p: &mut Packet<'_>| {
        assert_eq!((p.direction, p.header), (direction, None));
        assert_eq!((p.flow.local, p.flow.remote), (US.into(), THEM.into()));
        assert_eq!((p.flow.local_port, p.flow.remote_port, p.iface), (53, 9, 0));
        let text = String::from_utf8_lossy(p.payload).into_owned();
        let verdict = match &*text {
            "drop" => Verdict::Done,
            _ => Verdict::Next,
        };
        seen.lock().unwrap().push(text);
        verdict
    }
}

/// An event that writes texts in capitals, so many times.
fn shout(times: u32) -> impl PacketEvent {
    let left = AtomicU32::new(times);
    move |p: &mut Packet<'_>| {
        p.payload.make_ascii_uppercase();
        p.disable = left.fetch_sub(1, Ordering::Relaxed) == 1;
        Verdict::Next
    }
}

/// IP's event lets go of what is damaged, others see, change and drop what is left, and take
/// themselves off; then the plain list goes on.
#[test]
fn datagrams_run_through_a_list_of_their_own() {
    for name in NAMES.into_iter().chain(["pef:vertical:lists=off"]) {
        with_socket(name, 2, |name, p, s, socket, wire| {
            let send = |text: &str, wrong| {
                assert!(wire.inject(p.now(), &datagram(text.as_bytes(), wrong)));
            };
            let damaged = || s.stats().count("drop_bad_udp_checksum");
            send("one", 0);
            send("bad", 1);
            assert_eq!(texts(p, socket), ["one"], "{name}: nobody looks");
            assert_eq!(damaged(), 1, "{name}");

            let seen = Arc::new(Mutex::new(Vec::new()));
            let look = note(Direction::Datagram, &seen);
            let what = (Direction::Datagram, Layer::Ip, Under::Layer);
            s.register_event(event("look", what, look)).unwrap();
            let what = (Direction::Datagram, Layer::Tcp, Under::Nothing);
            s.register_event(event("shout", what, shout(2))).unwrap();
            for (text, wrong) in [("two", 0), ("drop", 0), ("bad", 1), ("six", 0), ("ten", 0)] {
                send(text, wrong);
                let got = texts(p, socket);
                match text {
                    "two" | "six" => assert_eq!(got, [text.to_uppercase()], "{name}"),
                    "ten" => assert_eq!(got, ["ten"], "{name}: it took itself off"),
                    _ => assert!(got.is_empty(), "{name}: {got:?}"),
                }
            }
            let seen = seen.lock().unwrap();
            assert_eq!(*seen, ["two", "drop", "six", "ten"], "{name}");
            assert_eq!(damaged(), 2, "{name}");
            assert_eq!(arrived(s), 5, "{name}: the damaged do not count");
        });
    }
}

/// Each layer's event has its turn under its own squeue, so that a socket's datagrams are a pipeline.
#[test]
fn layers_of_a_datagram_run_where_they_are_bound() {
    with_socket("pef:horizontal", 3, |_, p, s, socket, wire| {
        let cores = Arc::new(Mutex::new(Vec::new()));
        for layer in [Layer::Ip, Layer::Tcp] {
            let (cores, p) = (cores.clone(), p.clone());
            let note = move |_: &mut Packet<'_>| {
                cores.lock().unwrap().push((layer, p.core()));
                Verdict::Next
            };
            let what = (Direction::Datagram, layer, Under::Layer);
            s.register_event(event("note", what, note)).unwrap();
        }
        assert!(wire.inject(p.now(), &datagram(b"one", 0)));
        assert_eq!(texts(p, socket), ["one"]);
        let [(Layer::Ip, ip), (Layer::Tcp, socket)] = cores.lock().unwrap()[..] else {
            panic!("two events, in order of their layers");
        };
        assert_eq!(
            ip,
            (socket + 1) % 3,
            "IP has the squeue behind the socket's"
        );
    });
}

/// The texts that the stack has sent to the peer's port 9, and nothing else.
fn sent(p: &Virtual, wire: &ScriptHandle<Virtual>) -> Vec<String> {
    p.sleep_until(p.now().plus(5_000_000));
    let next = || {
        let ip = wire.next()?.bytes;
        let udp = &ip[20..];
        let hdr = UdpHdr::parse(udp).unwrap();
        assert_eq!((hdr.src_port, hdr.dst_port), (53, 9));
        hdr.verify(US.into(), THEM.into(), udp).unwrap();
        Some(String::from_utf8_lossy(&udp[UdpHdr::LEN..]).into_owned())
    };
    std::iter::from_fn(next).collect()
}

/// Events see each datagram with its ends, also of those that one call sends, change and drop it, and
/// take themselves off; for the caller all were sent.
#[test]
fn sent_datagrams_run_through_a_list_of_their_own() {
    for name in NAMES.into_iter().chain(["pef:vertical:lists=off"]) {
        with_socket(name, 2, |name, p, s, socket, wire| {
            let send = |text: &str| {
                let n = socket.send_to(text.as_bytes(), (THEM, 9)).unwrap();
                assert_eq!(n, text.len(), "{name}: {text}");
            };
            send("one");
            assert_eq!(sent(p, wire), ["one"], "{name}: nobody looks");

            let seen = Arc::new(Mutex::new(Vec::new()));
            let look = note(Direction::SentDatagram, &seen);
            let what = (Direction::SentDatagram, Layer::Sockfs, Under::Layer);
            s.register_event(event("look", what, look)).unwrap();
            let what = (Direction::SentDatagram, Layer::Tcp, Under::Nothing);
            s.register_event(event("shout", what, shout(4))).unwrap();
            send("two");
            assert_eq!(sent(p, wire), ["TWO"], "{name}");
            send("drop");
            assert!(sent(p, wire).is_empty(), "{name}");
            socket.connect((THEM, 9)).unwrap();
            let n = socket.send_segments(b"sixtdropnine", 4, None).unwrap();
            assert_eq!(n, 12, "{name}");
            assert_eq!(sent(p, wire), ["SIXT", "NINE"], "{name}");
            assert_eq!(socket.send(b"").unwrap(), 0, "{name}");
            assert_eq!(sent(p, wire), [""], "{name}");
            send("ten");
            assert_eq!(sent(p, wire), ["ten"], "{name}: it took itself off");
            let seen = seen.lock().unwrap();
            let all = ["two", "drop", "sixt", "drop", "nine", "", "ten"];
            assert_eq!(*seen, all, "{name}");
            assert_eq!(
                s.stats().count("tx_udp"),
                6,
                "{name}: what was dropped does not count"
            );
        });
    }
}

/// The caller waits for IP's turn, on another core than the socket's.
#[test]
fn layers_of_a_sent_datagram_run_where_they_are_bound() {
    with_socket("pef:horizontal", 6, |_, p, s, socket, wire| {
        let cores = Arc::new(Mutex::new(Vec::new()));
        for layer in [Layer::Sockfs, Layer::Tcp] {
            let (cores, p) = (cores.clone(), p.clone());
            let note = move |_: &mut Packet<'_>| {
                cores.lock().unwrap().push((layer, p.core()));
                Verdict::Next
            };
            let what = (Direction::SentDatagram, layer, Under::Layer);
            s.register_event(event("note", what, note)).unwrap();
        }
        p.record();
        assert_eq!(socket.send_to(b"one", (THEM, 9)).unwrap(), 3);
        assert_eq!(sent(p, wire), ["one"]);
        let [(Layer::Sockfs, home), (Layer::Tcp, tcp)] = cores.lock().unwrap()[..] else {
            panic!("two events, in order of their layers");
        };
        assert_eq!(home, tcp, "there is no state machine between");
        let recorded = p.recorded();
        let charged = |work: Work| {
            let mine = recorded
                .iter()
                .filter(|e| matches!(e.act, Act::Work { work: w, .. } if w == work));
            mine.map(|e| e.core).collect::<Vec<_>>()
        };
        assert_eq!(charged(Work::SockCall), [home]);
        assert_eq!(charged(Work::TcpOutput), [(home + 1) % 6], "IP's squeue");
    });
}
