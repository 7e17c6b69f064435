//! The example programs of the library, as a user has them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

static DIR: OnceLock<PathBuf> = OnceLock::new();

/// Builds the examples if they are missing or older than their sources. To be called outside
/// any namespace, where cargo may need the network.
///
/// # Panics
/// They can't be built.
pub fn build() {
    DIR.get_or_init(find);
}

/// The path of an example.
///
/// # Panics
/// They have to be built and can't be.
pub fn path(name: &str) -> PathBuf {
    DIR.get_or_init(find).join(name)
}

fn find() -> PathBuf {
    // This test is …/<profile>/deps/<test>-<hash>.
    let exe = std::env::current_exe().expect("a path");
    let profile = exe.parent().and_then(Path::parent).expect("cargo's layout");
    let dir = profile.join("examples");
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("in crates/");
    let used = [
        "base",
        "wire",
        "sync",
        "link",
        "tcp",
        "stack",
        "org",
        "perimeter",
        "tokio",
    ];
    let newest = used.iter().filter_map(|c| newest(&crates.join(c))).max();
    let built = std::fs::metadata(dir.join("tokio_http"))
        .and_then(|m| m.modified())
        .ok();
    if built.is_none() || built < newest {
        // Tests are built with the profile `test`, whose directory is that of `dev`.
        let profile = if profile.ends_with("release") {
            "release"
        } else {
            "test"
        };
        let status = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--examples",
                "--package",
                "perimeter",
                "--package",
                "perimeter-tokio",
                // The tests run organizations that only tests know.
                "--features",
                "perimeter/testing",
                "--profile",
            ])
            .arg(profile)
            .current_dir(crates)
            .status()
            .expect("cargo");
        assert!(status.success(), "the examples can't be built");
    }
    dir
}

fn newest(dir: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let times = entries.filter_map(|e| {
        let path = e.path();
        if path.is_dir() {
            return newest(&path);
        }
        let source = path.extension().is_some_and(|x| x == "rs");
        source
            .then(|| e.metadata().and_then(|m| m.modified()).ok())
            .flatten()
    });
    times.max()
}
