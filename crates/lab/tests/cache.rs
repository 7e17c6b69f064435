//! Modelled cache misses: the trace that they are made of, the model against cachegrind on one
//! core, and as a user asks for them.

use perimeter_lab::cache::{self, instrumented};
use perimeter_measure::misses::geometry::{Caches, Geometry, Sharing};
use perimeter_sync::virt::trace::{Reader, Record};
use std::{path::Path, process::Command};

/// Whether programs can be traced; says so if not.
fn can_trace() -> bool {
    let can = instrumented::available();
    if let Err(why) = &can {
        eprintln!("skipped: {why}");
    }
    can.is_ok()
}

/// A small program, of whose trace it is known what is in it.
#[test]
fn a_traced_program_tells_its_accesses() {
    if !can_trace() {
        return;
    }
    let program = instrumented::build("perimeter-traced").unwrap();
    let out = Command::new(program).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let (counted, rounds) = said.trim().split_once(' ').unwrap();
    let counted = u64::from_str_radix(counted, 16).unwrap();
    let rounds: usize = rounds.parse().unwrap();
    let mut reader = Reader::new(&out.stdout[..]);
    let mut records = Vec::new();
    while let Some(record) = reader.read().unwrap() {
        records.push(record);
    }
    let number = |of: &dyn Fn(&Record) -> bool| records.iter().filter(|r| of(r)).count();
    assert_eq!(records[0], Record::Base(0));
    for core in 0..2 {
        assert!(number(&|r| *r == Record::Core(core)) > 0, "core {core}");
    }
    // Both taking a lock and releasing it write to its word, the latter where somebody waits.
    assert!(number(&|r| matches!(r, Record::Lock(_))) >= rounds);
    // An atomic operation.
    let counts = |r: &Record| matches!(r, Record::Access { address, write: true, .. } if *address == counted);
    assert_eq!(number(&counts), rounds);
    // A copy.
    let copies = |r: &Record| {
        matches!(
            r,
            Record::Access {
                len: 512,
                write: true,
                ..
            }
        )
    };
    assert!(number(&copies) >= rounds, "{}", number(&copies));
}

/// What differs between a run and one of twice the payload.
type Misses = [f64; 2];

/// Misses of the first and of the last level, of data, as cachegrind counts them.
fn cachegrind(program: &Path, words: &[String], caches: &Caches) -> Misses {
    let geometry = |g: &Geometry| format!("{},{},{}", g.size, g.ways, g.line);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let status = Command::new("valgrind")
        .args(["-q", "--tool=cachegrind", "--cache-sim=yes"])
        .arg("--I1=1048576,16,64")
        .arg(format!("--D1={}", geometry(&caches.l1)))
        .arg(format!("--LL={}", geometry(&caches.l2)))
        .arg(format!("--cachegrind-out-file={}", out.display()))
        .arg(program)
        .args(words)
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
    let of = |name: &str| -> f64 {
        let at = events.iter().position(|e| e == name).unwrap();
        sums[at].parse().unwrap()
    };
    [of("D1mr") + of("D1mw"), of("DLmr") + of("DLmw")]
}

/// The whole stack, sending on one core: with `PERIMETER_CACHE_CHECK=PROGRAM`, an ordinary
/// optimised `perimeter-lab`, as the instrumented one is built for minutes. Cachegrind also sees
/// what was not instrumented: the memory allocator, spilled registers, the switch between virtual
/// threads; and its last level holds instructions.
#[test]
fn one_core_agrees_with_cachegrind() {
    let Some(program) = std::env::var_os("PERIMETER_CACHE_CHECK") else {
        return;
    };
    let caches = Caches {
        sharing: Sharing::Independent,
        ..Caches::opteron_275()
    };
    let traced = instrumented::this_program().unwrap();
    let words = |payload: u32| -> Vec<String> {
        let words = format!(
            "cache-subject --org up --conns 2048 --threads 1 --nics 1 --inbound thread --offload \
             off --all --warm {payload} --payload {payload} --seed 1"
        );
        words.split(' ').map(String::from).collect()
    };
    // Opening is not traced, and what cachegrind sees begins with the process: what more payload
    // adds is the same for both.
    let [small, large] = [32_000_000, 64_000_000].map(words);
    let more = |of: &dyn Fn(&[String]) -> Misses| {
        let (less, more) = (of(&small), of(&large));
        [more[0] - less[0], more[1] - less[1]]
    };
    let theirs = more(&|words| cachegrind(Path::new(&program), words, &caches));
    let ours = more(&|words| {
        let counts = cache::on_one_core(&traced, words, &caches).unwrap();
        let missed = counts.misses(None);
        [(missed + counts.second) as f64, missed as f64]
    });
    let off = [0, 1].map(|i| (ours[i] / theirs[i] - 1.0) * 100.0);
    eprintln!("ours {ours:?}, cachegrind's {theirs:?}, {off:.2?} % off");
    assert!(off[0].abs() < 10.0 && off[1].abs() < 5.0);
}

/// Without cargo, asked for directly: a reason, and the exit code of what can't be served.
#[test]
fn without_cargo_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    assert_cmd::Command::new(env!("CARGO_BIN_EXE_perimeter-lab"))
        .args(["run", "cache", "--quick", "--out"])
        .arg(&out)
        .env("PATH", dir.path())
        .assert()
        .code(2);
    let rows = std::fs::read_to_string(out.join("runs.jsonl")).unwrap();
    assert_eq!(rows.matches("needs cargo").count(), 4, "{rows}");
}

/// Payload is counted in the window in which misses are: where so many octets of segments went to the
/// peer, as many were acknowledged, but for what was on its way at either end.
#[test]
fn what_is_acknowledged_is_of_the_counted_window() {
    const PAYLOAD: u64 = 4_000_000;
    let program = env!("CARGO_BIN_EXE_perimeter-lab");
    for org in ["up", "msgp", "connp-t:4", "connp-l:128"] {
        let threads = if org == "up" { "1" } else { "4" };
        let words = format!(
            "cache-subject --org {org} --conns 48 --threads {threads} --nics 4 --inbound thread \
             --rtt 5us --offload off --untraced 12000000 --warm 1000000 --payload {PAYLOAD} --seed 1"
        );
        let out = Command::new(program)
            .args(words.split(' '))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{org}: {said}");
        let bytes = said
            .lines()
            .find_map(|l| l.strip_prefix("perimeter-bytes "));
        let bytes: u64 = bytes.unwrap().parse().unwrap();
        // The observer looks every so often, and a burst of 64 segments may be done meanwhile on each core.
        let most = 4 * 2 * 64 * 1448;
        assert!(bytes.abs_diff(PAYLOAD) <= most, "{org}: {bytes}");
    }
}
