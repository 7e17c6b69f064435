//! A veth pair in the calling thread's namespace: a device of ours on one end, the kernel's
//! sockets on the other, at the addresses of [`taps`](crate::taps).

use crate::program::Program;
use crate::taps::KERNEL;
use perimeter::link::host;
use std::time::Duration;

/// The end that a device of ours takes. The kernel has no address there.
pub const OURS: &str = "ours0";
/// The kernel's end.
pub const THEIRS: &str = "theirs0";

/// Runs `ip`.
///
/// # Panics
/// It fails.
pub fn ip(args: &[&str]) -> String {
    Program::start("ip", args, Duration::from_secs(10))
        .finish()
        .ok()
}

/// Makes a pair with this MTU, in bytes, and so many queues, both ends up. It goes with the
/// namespace.
///
/// # Panics
/// It can't be made.
pub fn make(mtu: u32, queues: usize) {
    let (mtu, queues) = (mtu.to_string(), queues.to_string());
    let end = |name| {
        let queues = ["numrxqueues", &queues, "numtxqueues", &queues];
        [&["name", name, "mtu", &mtu][..], &queues].concat()
    };
    let peer = [&["type", "veth", "peer"][..], &end(THEIRS)].concat();
    ip(&[&["link", "add"][..], &end(OURS), &peer].concat());
    host::set_address(THEIRS, KERNEL, 24).expect("an address");
    for name in [OURS, THEIRS] {
        host::set_up(name, true).expect("up");
    }
}
