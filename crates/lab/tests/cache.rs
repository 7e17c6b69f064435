//! Modelled cache misses: against cachegrind on one core, and as a user asks for them.

use perimeter_lab::cache;
use perimeter_measure::misses::{
    Counts,
    geometry::{Caches, Geometry, Sharing},
};
use std::{path::Path, process::Command};

/// Whether there is a valgrind; says so if not.
fn can_trace() -> bool {
    let can = cache::available();
    if let Err(why) = &can {
        eprintln!("skipped: {why}");
    }
    can.is_ok()
}

/// References, misses of the first and of the last level, of data, as cachegrind counts them.
fn cachegrind(program: &Path, words: &[String], caches: &Caches) -> [u64; 3] {
    let geometry = |g: &Geometry| format!("{},{},{}", g.size, g.ways, g.line);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let status = Command::new("valgrind")
        .args([
            "-q",
            "--tool=cachegrind",
            "--cache-sim=yes",
            "--I1=1048576,16,64",
        ])
        .arg(format!("--D1={}", geometry(&caches.l1)))
        .arg(format!("--LL={}", geometry(&caches.l2)))
        .arg(format!("--cachegrind-out-file={}", out.display()))
        .arg(program)
        .args(words)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let text = std::fs::read_to_string(out).unwrap();
    let line = |name: &str| -> Vec<String> {
        let found = text.lines().find_map(|l| l.strip_prefix(name));
        let words = found.unwrap().split_whitespace();
        words.map(String::from).collect()
    };
    let (events, sums) = (line("events:"), line("summary:"));
    let of = |name: &str| -> u64 {
        let at = events.iter().position(|e| e == name).unwrap();
        sums[at].parse().unwrap()
    };
    [
        of("Dr") + of("Dw"),
        of("D1mr") + of("D1mw"),
        of("DLmr") + of("DLmw"),
    ]
}

/// By how many per cent `a` is off `b`.
fn off(a: u64, b: u64) -> f64 {
    (a as f64 / b as f64 - 1.0) * 100.0
}

/// The model and cachegrind, on the same program with the same caches, as per cent of difference.
fn compared(words: &[&str], caches: &Caches) -> [f64; 3] {
    let program = Path::new(env!("CARGO_BIN_EXE_perimeter-lab"));
    let words: Vec<String> = words.iter().map(|w| w.to_string()).collect();
    let theirs = cachegrind(program, &words, caches);
    let counts: Counts = cache::of_program(program, &words, caches).unwrap();
    let missed = counts.misses(None);
    let ours = [counts.accesses, missed + counts.second, missed];
    let differences = [0, 1, 2].map(|i| off(ours[i], theirs[i]));
    eprintln!("{words:?}: ours {ours:?}, cachegrind's {theirs:?}, {differences:.2?} % off");
    differences
}

/// The last level of cachegrind also holds instructions, which the model leaves out: it may miss
/// a little more.
#[test]
fn one_core_agrees_with_cachegrind() {
    if !can_trace() {
        return;
    }
    let small = Caches {
        name: "small".into(),
        l1: Geometry {
            size: 4 << 10,
            ways: 2,
            line: 64,
        },
        l2: Geometry {
            size: 256 << 10,
            ways: 8,
            line: 64,
        },
        sharing: Sharing::Independent,
    };
    let [references, first, last] = compared(&["--help"], &small);
    assert!(references.abs() < 0.5 && first.abs() < 0.5 && last.abs() < 5.0);
    if std::env::var_os("PERIMETER_CACHE_CHECK").is_none() {
        return;
    }
    // The stack itself, with the Opteron's sizes: for the record, as it takes a minute.
    let opteron = Caches {
        sharing: Sharing::Independent,
        ..Caches::opteron_275()
    };
    let words = "cache-subject --org up --conns 192 --threads 1 --nics 1 --inbound thread \
                 --payload 2000000 --seed 1";
    let [_, first, last] = compared(&words.split(' ').collect::<Vec<_>>(), &opteron);
    // References differ: the process calibrates its clock for as long as that takes.
    assert!(first.abs() < 2.0 && last.abs() < 10.0);
}

/// Without valgrind, asked for directly: a reason, and the exit code of what can't be served.
#[test]
fn without_valgrind_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    assert_cmd::Command::new(env!("CARGO_BIN_EXE_perimeter-lab"))
        .args(["run", "cache", "--quick", "--out"])
        .arg(&out)
        .env("PATH", dir.path())
        .assert()
        .code(2);
    let rows = std::fs::read_to_string(out.join("runs.jsonl")).unwrap();
    assert_eq!(rows.matches("needs valgrind").count(), 4, "{rows}");
}
