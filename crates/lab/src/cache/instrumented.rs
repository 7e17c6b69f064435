//! Builds programs whose accesses to memory can be traced: with cargo, from the sources that this
//! program was built from.

use crate::Error;
use std::{
    env,
    io::{self, Write as _},
    path::{self, Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// Where the sources were.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Named, so that flags are for the program and not for what builds it.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// LLVM's pass that puts a call before each access. Last in the pipeline, so that it sees what
/// optimisation has left; link-time optimisation would run it twice.
const FLAGS: &[&str] = &[
    "--cfg=perimeter_traced",
    "-Cpasses=memprof-module,function(memprof)",
    "-Cllvm-args=-memprof-use-callbacks",
    "-Cllvm-args=-memprof-instrument-stack",
    "-Cllvm-args=-memprof-guard-against-version-mismatch=0",
];
const PROFILE: &[&str] = &[
    "profile.release.lto='off'",
    "profile.release.codegen-units=16",
];
/// Between flags in cargo's variable for them.
const BETWEEN: &str = "\u{1f}";

/// Whether such programs can be built here.
///
/// # Errors
/// [`Error::Unavailable`] with why not.
pub fn available() -> Result<(), Error> {
    let needs = |what: &str| {
        let why = format!("modelling cache misses needs {what}");
        Err(Error::Unavailable(why))
    };
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return needs("x86-64 and Linux");
    }
    if !Path::new(SOURCES).join("Cargo.lock").exists() {
        return needs(&format!(
            "the sources of this program, no longer in {SOURCES}"
        ));
    }
    let mut cargo = Command::new("cargo");
    let quiet = cargo.arg("--version").stdin(Stdio::null());
    let status = quiet.stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => needs("cargo, which is not installed"),
    }
}

/// This program, built to be traced: once in a process, as it takes a minute or two.
///
/// # Errors
/// [`Error::Unavailable`] with why it can't be built.
pub fn this_program() -> Result<PathBuf, Error> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build(env!("CARGO_PKG_NAME")));
    built.clone().map_err(Error::Unavailable)
}

/// Builds the program of the package `name`, in a folder of its own, as flags differ.
///
/// # Errors
/// Why not, as cargo says it.
pub fn build(name: &str) -> Result<PathBuf, String> {
    let root = Path::new(SOURCES);
    let folder = env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let folder = path::absolute(folder.join("traced")).map_err(|e| e.to_string())?;
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--release", "--locked", "--quiet"])
        .args(["--target", TARGET])
        .args(["-p", name, "--bin", name])
        .args(PROFILE.iter().flat_map(|p| ["--config", p]))
        .arg("--target-dir")
        .arg(&folder)
        .current_dir(root)
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join(BETWEEN))
        .stdin(Stdio::null());
    // Nobody else says why nothing happens for a minute. An error of stderr has no other place to go.
    let _ = writeln!(
        io::stderr(),
        "building {name} to be traced, unless it is there"
    );
    let done = cargo.output().map_err(|e| format!("cargo: {e}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let error = said.lines().find(|l| l.starts_with("error"));
        let error = error.unwrap_or("cargo did not say why");
        return Err(format!("building a program to trace: {error}"));
    }
    Ok(folder.join(TARGET).join("release").join(name))
}
