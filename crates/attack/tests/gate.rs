//! A slice of the attacks: one or two on each organization, small and short. Held against the
//! bounds that no clock has a part in; `cargo xtask attack` measures the others, and all of them.

use perimeter_attack::attacks::{Attack, Size};
use perimeter_attack::judge::robust;
use perimeter_attack::run::{Plan, attack};
use perimeter_interop::namespace;
use std::path::Path;
use std::time::Duration;

const SLICE: &[(&str, &str)] = &[
    ("up", "syn-link16"),
    ("up", "zero-window"),
    ("connp-l:8", "closes"),
    ("squeue", "slow-readers"),
    ("pef:vertical", "out-of-order"),
    ("msgp", "syn-out24"),
    ("connp-t:2", "arp-takeover"),
    ("up", "ndp-takeover6"),
];

#[test]
fn a_slice_of_the_attacks_breaks_nothing() {
    if let Some(why) = namespace::obstacle() {
        println!("skipped: {why}");
        return;
    }
    let plan = Plan {
        length: Duration::from_millis(400),
        rounds: 1,
        answers: 10,
        far: 20,
        size: Size::SMALL,
        seed: 1,
    };
    let exe = Path::new(env!("CARGO_BIN_EXE_perimeter-attack"));
    let mut broken = Vec::new();
    for (org, name) in SLICE {
        let known = Attack::find(name).expect("an attack");
        let measured = attack(exe, &org.parse().unwrap(), known, &plan).unwrap();
        for what in robust(&measured) {
            broken.push(format!("{org}, {name}: {what}"));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
