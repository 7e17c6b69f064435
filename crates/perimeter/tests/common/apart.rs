//! Measuring each organization in a process of its own.

use super::common::organizations;
use perimeter::link::script::{ScriptHandle, script};
use perimeter::{Config, OrgSpec, Stack, Virtual};
use perimeter_sync::virt::VirtualConfig;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs the test `name` of this program once for each organization, in a process of its own that
/// finds the organization's name in the variable `var`.
///
/// # Panics
/// If one fails.
pub fn under_each(name: &str, var: &str) {
    let me = std::env::current_exe().unwrap();
    let one = |org: &OrgSpec| {
        let out = Command::new(&me)
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(var, org.to_string())
            .output()
            .unwrap();
        print!("{org}: {}", String::from_utf8_lossy(&out.stdout));
        let text = String::from_utf8_lossy(&out.stderr);
        (!out.status.success()).then(|| format!("{org}:\n{text}"))
    };
    // As many at a time as there are cores.
    let (all, next) = (organizations(), AtomicUsize::new(0));
    let some = || {
        let next = || all.get(next.fetch_add(1, Ordering::Relaxed));
        std::iter::from_fn(next).filter_map(one).collect::<Vec<_>>()
    };
    let failed: Vec<String> = std::thread::scope(|threads| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runs: Vec<_> = (0..cores).map(|_| threads.spawn(some)).collect();
        let ends = runs.into_iter().map(|t| t.join().unwrap());
        ends.flatten().collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What such a process does, and any other does not: runs `test` in virtual time on a stack at
/// 10.0.0.1 of the organization that `var` names, whose network is a script.
///
/// # Panics
/// As `test` does.
pub fn measured<F>(var: &str, config: Config, test: F)
where
    F: FnOnce(&str, Virtual, Stack, ScriptHandle<Virtual>) + Send + 'static,
{
    let Ok(name) = std::env::var(var) else {
        return;
    };
    let cfg = VirtualConfig::default()
        .with_cores(1)
        .with_max_steps(1 << 32);
    let org = name.clone();
    let result = Virtual::run(cfg, move |p| {
        let (device, wire) = script(&p, "script", 1500);
        let s = Stack::builder()
            .on_virtual(p.clone())
            .org(org.parse().unwrap())
            .config(config);
        let s = s.interface(device, &["10.0.0.1/24"]).unwrap();
        test(&org, p, s.build().unwrap(), wire);
    });
    result.unwrap_or_else(|f| panic!("{name}: {f}"));
}
