//! The core compiles into a program that has no std: one with a panic handler of its own, of which
//! the compiler takes only one.
#![allow(missing_docs)]

use std::process::{Command, Output};

/// Compiles the crate with these features and nothing else of the workspace.
fn compile(features: &str) -> Output {
    Command::new(env!("CARGO"))
        .args(["rustc", "--lib", "--offline", "--features", features])
        .args([
            "--manifest-path",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        ])
        .env("CARGO_TARGET_DIR", env!("CARGO_TARGET_TMPDIR"))
        .env("CARGO_TERM_COLOR", "never")
        .output()
        .expect("cargo runs")
}

#[test]
fn the_core_needs_no_std() {
    let alone = compile("alone");
    let said = String::from_utf8_lossy(&alone.stderr);
    assert!(alone.status.success(), "something needs std:\n{said}");
}

/// What the test above would see if a crate of the core, or one that it depends on, took std.
#[test]
fn std_below_would_be_noticed() {
    let with_std = compile("alone,std");
    let said = String::from_utf8_lossy(&with_std.stderr);
    assert!(!with_std.status.success());
    assert!(said.contains("panic_impl"), "another error:\n{said}");
}
