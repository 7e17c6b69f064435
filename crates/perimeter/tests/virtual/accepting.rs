//! Accepting takes a connection off the listener's queue, the peer's address with it, and enters
//! nothing else: no group, no squeue, no protocol thread.

use crate::common::{drive, each_simulated};
use crate::packet::{completes, syn, tcp};
use perimeter::link::script::script;
use perimeter::{Stack, Virtual};
use perimeter_sync::virt::{Act, VirtualConfig};
use perimeter_sync::{Layer, LockClass, Platform};

/// What the calling thread did that is no business of an accept: locks other than the listener's
/// and the table of listeners, and anything that another thread is told or waited for.
fn strange(p: &Virtual) -> Vec<Act> {
    let here = p.lane();
    let mine = p.recorded().into_iter().filter(|e| e.lane == here);
    let acts = mine.map(|e| e.act);
    acts.filter(|act| match act {
        Act::Lock { class, .. } | Act::Unlock { class, .. } => {
            !matches!(class, LockClass::Listener | LockClass::Control)
        }
        Act::Work { work, .. } => work.layer() != Some(Layer::Socket),
        _ => true,
    })
    .collect()
}

#[test]
fn accept_enters_the_listener_and_nothing_else() {
    let cfg = VirtualConfig::default().with_cores(2);
    each_simulated(&cfg, |p, org| {
        let (device, wire) = script(&p, "script", 1500);
        let s = Stack::builder().on_virtual(p.clone()).org(org);
        let s = s.interface(device, &["10.0.0.1/24"]).unwrap();
        let s = s.build().unwrap();
        let pass = |ms| drive(&p, &s, ms);
        let l = s.listen("10.0.0.1:9").unwrap();
        l.set_nonblocking(true).unwrap();
        for port in [5_000, 5_001] {
            let syn = syn((port, 9));
            assert!(wire.inject(p.now(), &tcp(&syn, b"")));
            pass(5);
            let ack = completes(&syn, &wire.next().unwrap().bytes);
            assert!(wire.inject(p.now(), &tcp(&ack, b"")));
            pass(5);
        }
        for port in [5_000, 5_001] {
            p.record();
            let (c, from) = l.accept().unwrap();
            let did = strange(&p);
            assert!(did.is_empty(), "{did:?}");
            assert_eq!(from.to_string(), format!("10.0.0.2:{port}"));
            assert_eq!(c.peer_addr().unwrap(), from);
        }
        p.record();
        assert!(l.accept().is_err());
        assert!(strange(&p).is_empty());
    });
}
