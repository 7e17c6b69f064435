//! An idle connection stays within its limit also at a count that a test can afford.

use std::process::Command;

fn idle(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_idle"))
        .args(args)
        .output()
        .expect("the bench runs")
}

/// Just beyond a power of two, where tables that double have the most to spare.
#[test]
fn an_idle_connection_is_small() {
    for n in ["2000", "4200"] {
        let out = idle(&["--connections", n]);
        assert!(out.status.success(), "{n}: {out:?}");
    }
}

#[test]
fn a_limit_that_is_passed_fails() {
    let out = idle(&["--connections", "500", "--limit", "400"]);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
}
