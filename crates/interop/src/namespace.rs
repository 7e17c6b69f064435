//! A network namespace of one's own.

use nix::sched::{CloneFlags, unshare};
use perimeter::link::tap::host;
use std::fs::OpenOptions;

/// Why there can be no namespace with a TAP interface here; `None` if there can.
pub fn obstacle() -> Option<String> {
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
pub fn within<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().name("namespace".to_string());
    let body = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
        host::set_up("lo", true).expect("loopback");
        f()
    };
    match thread.spawn(body).expect("a thread").join() {
        Ok(v) => v,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
