//! The list of packets that belong to no connection.

use crate::lists::{NAMES, event};
use crate::packet::ipv4;
use perimeter::link::script::script;
use perimeter::pef::{Direction, Layer, Packet, Under, Verdict};
use perimeter::{Stack, Virtual};
use perimeter_sync::Platform;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Packets that belong to no connection run through a list of their own, whose events may answer
/// them; without any they are dropped and counted.
#[test]
fn packets_without_a_connection_have_a_list() {
    for name in NAMES {
        Virtual::run(Default::default(), move |p: Virtual| {
            let (device, wire) = script(&p, "script", 1500);
            let s = Stack::builder().on_virtual(p.clone());
            let s = s.organization(name).unwrap();
            let s = s.interface(device, &["10.0.0.1/24"]).unwrap();
            let s = s.build().unwrap();
            let pass = || p.sleep_until(p.now().plus(5_000_000));
            let drops = || s.stats().count("drop_other_protocol");
            let _l = s.listen("10.0.0.1:80").unwrap();
            assert!(wire.inject(p.now(), &ipv4(253, b"early")));
            pass();
            assert_eq!(drops(), 1, "nobody wants it yet");
            // Also when there are sockets: a protocol is added while the stack runs.
            let order = Arc::new(Mutex::new(Vec::new()));
            let first = order.clone();
            let looks = move |p: &mut Packet<'_>| {
                assert_eq!((p.direction, p.header), (Direction::Unbound, None));
                first.lock().unwrap().push(p.payload[20..].to_vec());
                Verdict::Next
            };
            let what = (Direction::Unbound, Layer::Ip, Under::Nothing);
            s.register_event(event("looks", what, looks)).unwrap();
            let left = AtomicU32::new(2);
            let answers = move |p: &mut Packet<'_>| {
                let mut reply = p.payload.to_vec();
                reply[20..].make_ascii_uppercase();
                p.send.push((p.iface, reply));
                p.disable = left.fetch_sub(1, Ordering::Relaxed) == 1;
                Verdict::Done
            };
            let what = (Direction::Unbound, Layer::Ip, Under::Layer);
            s.register_event(event("answers", what, answers)).unwrap();
            for (i, text) in [&b"one"[..], b"two", b"six"].into_iter().enumerate() {
                assert!(wire.inject(p.now(), &ipv4(253, text)));
                pass();
                let reply = wire.next().map(|r| r.bytes);
                match i {
                    2 => assert!(reply.is_none(), "{name}: it took itself off"),
                    _ => assert_eq!(reply.unwrap()[20..], text.to_ascii_uppercase()),
                }
            }
            assert_eq!(*order.lock().unwrap(), [b"one", b"two", b"six"], "{name}");
            // What the stack answers itself goes there as little as what belongs to connections.
            s.send_frame(0, &ipv4(252, b"by hand")).unwrap();
            pass();
            assert_eq!(wire.next().unwrap().bytes[20..], *b"by hand");
            assert_eq!(drops(), 1);
            s.stop();
        })
        .unwrap();
    }
}
