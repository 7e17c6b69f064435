//! A network namespace of one's own.

use nix::sched::{CloneFlags, unshare};
use perimeter::link::tap::host;
use std::fs::OpenOptions;
use std::sync::OnceLock;
use std::time::Duration;

/// Why there can be no namespace with a TAP interface here; `None` if there can. Found out once.
pub fn obstacle() -> Option<String> {
    static OBSTACLE: OnceLock<Option<String>> = OnceLock::new();
    OBSTACLE.get_or_init(look).clone()
}

fn look() -> Option<String> {
    if let Err(e) = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
    {
        return Some(format!("/dev/net/tun: {e}"));
    }
    let probe = std::thread::spawn(|| unshare(CloneFlags::CLONE_NEWNET));
    match probe.join() {
        Ok(Ok(())) => None,
        Ok(Err(e)) => Some(format!("no network namespace: {e}")),
        Err(_) => Some("no network namespace".to_string()),
    }
}

/// Runs `f` on a thread of its own in a network namespace of its own, with loopback up. What
/// `f` starts is in there too; the namespace goes with the last of it.
///
/// # Panics
/// As `f` does, or without the privilege that [`obstacle`] looks for.
pub fn within<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    let body = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
        host::set_up("lo", true).expect("loopback");
        f()
    };
    std::thread::scope(|s| {
        let thread = std::thread::Builder::new().name("namespace".to_string());
        match thread.spawn_scoped(s, body).expect("a thread").join() {
            Ok(v) => v,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Processor time of this process's threads that are in the calling thread's namespace: of a
/// stack with all that belongs to it, where it has a namespace of its own. In ticks of 10 ms.
///
/// # Panics
/// The kernel doesn't tell.
pub fn cpu() -> Duration {
    let here = std::fs::read_link("/proc/thread-self/ns/net").expect("a namespace");
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let used = tasks.flatten().filter_map(|task| {
        // Threads end meanwhile.
        let net = std::fs::read_link(task.path().join("ns/net")).ok()?;
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let fields = stat.rsplit(')').next()?.split_whitespace().skip(11).take(2);
        let ticks: u64 = fields.filter_map(|f| f.parse::<u64>().ok()).sum();
        (net == here).then_some(ticks * 10)
    });
    Duration::from_millis(used.sum())
}
