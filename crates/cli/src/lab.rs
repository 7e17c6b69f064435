//! `perimeter lab` is a program of its own, `perimeter-lab`, beside this one: it holds every
//! organization a second time, on virtual cores, and the reports, which no other command needs.

use perimeter::OrgSpec;
use perimeter_command::STARTED_BY;
use perimeter_measure::{Error, bench::recommend::Prediction};
use std::{
    env,
    ffi::OsString,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Its name, and its package's.
const PROGRAM: &str = "perimeter-lab";

/// Becomes that program, which parses the rest of the command line as this one has.
pub fn lab() -> Result<u8, Error> {
    let program = beside()?;
    if let Some(cargo) = cargo() {
        build(cargo, &program)?;
    }
    if !program.is_file() {
        return Err(Error::Input(missing(&program)));
    }
    // This program's name and `lab` come first.
    let words = env::args_os().skip(2);
    let mut command = Command::new(&program);
    command
        .args(words)
        .env(STARTED_BY, perimeter_command::source());
    Err(failed(&program, command.exec()))
}

/// What is predicted for `cores` cores; or why nothing is, as when `perimeter-lab` is not there:
/// who asks for a recommendation is not made to wait for a build.
pub fn for_more_cores(orgs: &[OrgSpec], cores: usize) -> Result<Result<Prediction, String>, Error> {
    let program = beside()?;
    if !program.is_file() {
        let why = missing(&program);
        return Ok(Err(format!(
            "Nothing is predicted for {cores} cores: {why}"
        )));
    }
    let output = Command::new(&program)
        .arg("advise")
        .arg(cores.to_string())
        .args(orgs.iter().map(OrgSpec::to_string))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| failed(&program, e))?;
    Ok(serde_json::from_slice(&output.stdout).map_err(|_| {
        let program = program.display();
        format!(
            "Nothing is predicted for {cores} cores: {program} ended with {}",
            output.status
        )
    }))
}

/// Where it is, if it is there.
fn beside() -> Result<PathBuf, Error> {
    match env::current_exe() {
        Ok(here) => Ok(here.with_file_name(PROGRAM)),
        Err(source) => Err(Error::Io {
            context: "finding this program".into(),
            source,
        }),
    }
}

fn failed(program: &Path, source: io::Error) -> Error {
    let context = format!("starting {}", program.display());
    Error::Io { context, source }
}

fn missing(program: &Path) -> String {
    format!(
        "`perimeter lab` is a program of its own, which is not at {}; `cargo build{} --package \
         {PROGRAM}` in a checkout builds it, `cargo install --path crates/lab` installs it",
        program.display(),
        match cfg!(debug_assertions) {
            true => "",
            false => " --release",
        }
    )
}

/// The cargo that has started this program by `cargo run`, if one has.
fn cargo() -> Option<OsString> {
    let package = env::var_os("CARGO_MANIFEST_DIR")?;
    env::var_os("CARGO").filter(|_| package == env!("CARGO_MANIFEST_DIR"))
}

/// Has cargo bring the program at that place up to date, as it has this one.
fn build(cargo: OsString, program: &Path) -> Result<(), Error> {
    let folders: Vec<&Path> = program.ancestors().skip(1).take(2).collect();
    let &[profile, target] = folders.as_slice() else {
        return Ok(());
    };
    let profile = match profile.file_name().unwrap_or_default() {
        debug if debug == "debug" => "dev".as_ref(),
        other => other,
    };
    if !program.is_file() {
        // It may take minutes. Who reads standard error may have gone.
        let _ = writeln!(
            io::stderr(),
            "{PROGRAM} is built first, which takes minutes"
        );
    }
    let status = Command::new(&cargo)
        .args([
            "build",
            "--package",
            PROGRAM,
            "--bin",
            PROGRAM,
            "--manifest-path",
        ])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .arg("--profile")
        .arg(profile)
        .status()
        .map_err(|e| failed(Path::new(&cargo), e))?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::Run(format!("cargo could not build {PROGRAM}"))),
    }
}
