use super::*;
use std::collections::BTreeSet;

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
        ("streams", "streams"),
        ("pef", "pef:random"),
        ("pef:horizontal", "pef:horizontal"),
        ("pef:tcp=1:ip=0:sockfs=2", "pef:ip=0:tcp=1:sockfs=2"),
        ("pef:vertical:light-tcp=off", "pef:vertical:light-tcp=off"),
        ("pef:events=fine", "pef:random:events=fine"),
        ("pef:vertical:events=coarse", "pef:vertical"),
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
        "pef:diagonal",
        "pef:ip=0",
        "pef:ip=0:tcp=1:sockfs=2:vertical",
        "pef:random:vertical",
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
    }
}

#[test]
fn what_hands_over_is_a_file_of_this_crate() {
    for file in hand_over() {
        assert!(file.contains("org/src/"), "{file}");
    }
    assert!(hand_over().count() > 6);
}
