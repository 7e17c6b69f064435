//! Measuring each organization in a process of its own.

use super::common::organizations;
use std::process::Command;

/// Runs the test `name` of this program once for each organization, in a process of its own that
/// finds the organization's name in the variable `var`.
///
/// # Panics
/// If one fails.
pub fn under_each(name: &str, var: &str) {
    let me = std::env::current_exe().unwrap();
    let failed: Vec<String> = organizations()
        .iter()
        .filter_map(|org| {
            let out = Command::new(&me)
                .args(["--exact", name, "--nocapture", "--test-threads=1"])
                .env(var, org.to_string())
                .output()
                .unwrap();
            print!("{org}: {}", String::from_utf8_lossy(&out.stdout));
            let text = String::from_utf8_lossy(&out.stderr);
            (!out.status.success()).then(|| format!("{org}:\n{text}"))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
