use super::*;
use crate::Org;
use crate::one_lock;
use crate::open::{Inbound, Options, Start, Visit};
use crate::spec::{Marker, Occupancy};
use bytes::Bytes;
use perimeter_link::wire::{WireConfig, pair};
use perimeter_stack::listener::ListenSpec;
use perimeter_stack::net::Accept;
use perimeter_stack::ops::Data;
use perimeter_stack::{IfaceSpec, Kind, count, ready};
use perimeter_sync::{LockClass, Native};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

#[test]
fn names_mean_one_thing_and_are_spelled_one_way() {
    for (text, want) in [
        ("up", "up"),
        ("up:netisr", "up:netisr"),
        ("up:shared", "up:shared"),
        ("msgp", "msgp"),
        ("msgp:locks=fine", "msgp"),
        ("msgp:locks=coarse:netisr", "msgp:netisr:locks=coarse"),
        ("msgp:workers=16", "msgp:workers=16"),
        ("msgp-modern", "msgp-modern"),
        ("connp-t", "connp-t"),
        ("connp-t:4", "connp-t:4"),
        ("connp-t:4:wait=condvar", "connp-t:4"),
        ("connp-t:1:fold:wait=spin", "connp-t:1:wait=spin:fold"),
        ("connp-t:per-connection", "connp-t:per-connection"),
        ("connp-t:per-connection=384", "connp-t:per-connection"),
        ("connp-t:per-connection=4", "connp-t:per-connection=4"),
        ("connp-t:made:per-connection", "connp-t:per-connection:made"),
        (
            "connp-t:per-connection=4:wait=condvar:made",
            "connp-t:per-connection=4:made",
        ),
        ("connp-l", "connp-l:128"),
        ("connp-l:4", "connp-l:4"),
        ("squeue", "squeue"),
        ("squeue:1:entry=fill", "squeue:1:entry=fill"),
        ("squeue:fanout=on", "squeue:fanout=on"),
        ("squeue:quanta=20/10/10:delay=0", "squeue"),
        (
            "squeue:2:delay=5:quanta=1/2/0",
            "squeue:2:quanta=1/2/0:delay=5",
        ),
        (
            "squeue:1:prediction=off:head=streams",
            "squeue:1:head=streams:prediction=off",
        ),
        ("squeue:head=buffer:prediction=on", "squeue"),
        ("streams", "streams"),
        ("streams:pairs=16", "streams:pairs=16"),
        ("pef", "pef:random"),
        ("pef:horizontal", "pef:horizontal"),
        ("pef:tcp=1:ip=0:sockfs=2", "pef:ip=0:tcp=1:sockfs=2"),
        ("pef:vertical:light-tcp=off", "pef:vertical:light-tcp=off"),
        ("pef:events=fine", "pef:random:events=fine"),
        ("pef:vertical:events=coarse", "pef:vertical"),
        ("pef:lists=off:vertical", "pef:vertical:lists=off"),
        ("pef:vertical:lists=on", "pef:vertical"),
        ("pef:fanout=on:horizontal", "pef:horizontal:fanout=on"),
    ] {
        let spec = text.parse::<OrgSpec>().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(spec.to_string(), want, "{text}");
        assert_eq!(want.parse(), Ok(spec), "{text}");
    }
    for spec in OrgSpec::all().into_iter().chain(OrgSpec::tested()) {
        assert_eq!(spec.to_string().parse(), Ok(spec));
    }
}

#[test]
fn what_is_no_name_is_refused() {
    for text in [
        "",
        "UP",
        "up:2",
        "up:netisrr",
        "up:shared:netisr",
        "msgpp",
        "msgp:4",
        "msgp:workers=0",
        "msgp:netisr:workers=2",
        "msgp:locks=none",
        "connp-t:0",
        "connp-t:385",
        "connp-t:fold",
        "connp-t:4:wait=sleep",
        "connp-t:4:per-connection",
        "connp-t:per-connection:wait=spin",
        "connp-t:per-connection=385",
        "connp-t:2:per-connection=4",
        "connp-t:made",
        "connp-t:4:made",
        "connp-t:per-connection:made:wait=spin",
        "connp-l:",
        "connp-l:0",
        "connp-l:1025",
        "connp-l:-1",
        "connp-l:x",
        "connp-l:4:5",
        "squeue:0",
        "squeue:entry=",
        "squeue:fanout",
        "squeue:quanta=1/2",
        "squeue:quanta=1/2/3/4",
        "squeue:quanta=a/b/c",
        "squeue:delay=1001",
        "streams:2",
        "streams:pairs=0",
        "streams:pairs=17",
        "pef:diagonal",
        "pef:ip=0",
        "pef:ip=0:tcp=1:sockfs=2:vertical",
        "pef:random:vertical",
        "pef:events=fine:lists=off",
        "pef:lists=no",
    ] {
        assert!(text.parse::<OrgSpec>().is_err(), "{text} was taken");
    }
}

#[test]
fn families_are_told_apart() {
    let mut names = BTreeSet::new();
    let mut looks = Vec::new();
    for f in families() {
        assert!(names.insert(f.name), "{f:?} twice");
        assert!(names.insert(f.title) || f.title == f.name, "{f:?} twice");
        if f.variants.is_empty() {
            continue;
        }
        assert!(!looks.contains(&f.look), "{f:?} looks like another");
        looks.push(f.look);
        for v in f.variants {
            assert_eq!(spec(v.usual).to_string(), v.usual, "not as it is spelled");
            assert!(core::ptr::eq(spec(v.usual).family(), f));
        }
        for (usual, tested) in f.tested {
            assert!(usual.is_empty() || f.variants.iter().any(|v| v.usual == *usual));
            assert_eq!(spec(tested).to_string(), *tested);
        }
        // No two counters of a stack have one name.
        assert!(f.counts.len() <= count::OWN);
        let names: Vec<_> = count::names(f.counts).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }
}

#[test]
fn what_hands_over_is_a_file_of_this_crate() {
    for file in hand_over() {
        assert!(file.contains("org/src/"), "{file}");
    }
    assert!(hand_over().count() > 6);
}

/// `one_lock.rs` and its line in `lib.rs` are all that mention it outside these tests, and the
/// first has the whole of it.
#[test]
fn an_organization_is_one_file_and_one_line() {
    // The grammar of names, and what is said of a name that nobody has.
    let named = |text: &str| text.parse::<OrgSpec>();
    let usual = named("one-lock").unwrap();
    assert_eq!(usual.to_string(), "one-lock:64");
    assert_eq!(named("one-lock:7").unwrap().to_string(), "one-lock:7");
    let refused = named("one-lock:7:x").unwrap_err().to_string();
    assert!(refused.contains("from 1 to 1024"), "{refused}");
    let unknown = named("two-locks").unwrap_err().to_string();
    assert!(unknown.contains("one-lock:N"), "{unknown}");
    // Help, tables, benchmark: `perimeter orgs`, `--org all`, `perimeter recommend`.
    assert!(OrgSpec::listed().any(|v| v.name == "one-lock:N"));
    assert!(OrgSpec::all().contains(&usual));
    let weighed = OrgSpec::recommended(3);
    let weighed: Vec<_> = weighed.iter().map(ToString::to_string).collect();
    assert!(weighed.iter().any(|w| w == "one-lock:3"), "{weighed:?}");
    assert!(weighed.iter().any(|w| w == "squeue:3"), "{weighed:?}");
    // Figures and the live view; the account of cache misses.
    let family = family("one-lock:7").unwrap();
    assert!(core::ptr::eq(family, usual.family()));
    assert_eq!(
        (family.title, family.look.marker),
        ("One lock", Marker::Cross)
    );
    assert_eq!(usual.occupancy(), Occupancy::Lock(LockClass::Group));
    assert!(hand_over().any(|f| f.ends_with("one_lock.rs")));
    // The suites, the soak and the explorer.
    assert!(tested().contains(&named("one-lock:2").unwrap()));
}

/// The stack's address.
const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// Carries bytes from the stack to itself.
fn carry(engine: &dyn Engine) {
    let limit = || engine.now().plus(20_000_000_000);
    let config = engine.tcp_config();
    let here = IpAddr::V4(HERE);
    let at = ListenSpec::new((Some(here), 0), 8, config.clone());
    let (listener, port) = engine.listen(&at).unwrap();
    let client = engine.connect((None, 0), (here, port).into(), &config);
    let client = client.unwrap();
    engine.wait(listener, ready::IN, limit()).unwrap();
    let (server, _) = engine.accept(listener).unwrap();
    engine.wait(client, ready::OUT, limit()).unwrap();
    let sent = engine
        .send(client, Data::Copied(Bytes::from_static(b"bytes")), false)
        .unwrap();
    assert_eq!(sent.taken, 5);
    engine.wait(server, ready::IN, limit()).unwrap();
    let received = engine.recv(server, 64, false).unwrap();
    let bytes: Vec<u8> = received
        .iter()
        .flat_map(|b| b.as_slice().to_vec())
        .collect();
    assert_eq!(bytes, b"bytes");
    engine.recycle(received);
    engine.stop();
}

/// Which type it is.
struct Type;

impl Visit<Native> for Type {
    type Out = &'static str;

    fn visit<O>(self, _: Native, _: Options) -> &'static str
    where
        O: Org,
        O::K: Kind<P = Native>,
    {
        core::any::type_name::<O>()
    }
}

#[test]
fn an_organization_of_one_file_runs_by_its_name() {
    let native = Native::default();
    let options = || {
        let ([end, _other], _) = pair(&native, WireConfig::default());
        Options {
            org: "one-lock:2".parse().unwrap(),
            config: perimeter_stack::Config::default(),
            ifaces: vec![IfaceSpec {
                device: Box::new(end),
                addrs: vec![format!("{HERE}/24").parse().unwrap()],
                accept: Accept::Own,
                dhcp: None,
            }],
            routes: Vec::new(),
            inbound: Inbound::Thread,
            profiling: None,
        }
    };
    // The name leads to the type, and the type runs. To have `open` do both would compile every
    // organization once more, into these tests.
    let named = visit(native, options(), Type);
    assert!(named.contains("OneLock"), "{named}");
    let engine = one_lock::visit(native, options(), Start);
    assert_eq!(engine.spec().to_string(), "one-lock:2");
    carry(&*engine);
    assert!(
        engine
            .stats()
            .locks
            .iter()
            .any(|(class, s)| *class == "group" && s.acquisitions > 0)
    );
    // What it counts for itself goes by the name that it has for it.
    assert!(engine.stats().count("one_lock_calls") >= 2);
    assert_eq!(engine.stats().count("squeue_inline"), 0);
}
