//! Records the source commit in the binary, for reports.

use std::process::Command;

/// Output of a git command, if there is a git and a checkout.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_string())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The reflog's file changes with every commit and every checkout.
    for path in ["HEAD", "logs/HEAD"] {
        if let Some(file) = git(&["rev-parse", "--git-path", path]) {
            println!("cargo::rerun-if-changed={file}");
        }
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).map(|commit| {
        let clean = git(&["status", "--porcelain", "--untracked-files=no"]).is_none();
        if clean { commit } else { commit + "+" }
    });
    println!(
        "cargo::rustc-env=PERIMETER_COMMIT={}",
        commit.unwrap_or_default()
    );
}
