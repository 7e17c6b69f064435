//! The packetdrill adapter: a shared object that packetdrill loads instead of opening a TUN
//! device, so that its scripts judge our TCP, on virtual time, under any organization.
//!
//! ```text
//! LD_PRELOAD=./libperimeter_packetdrill.so packetdrill \
//!     --so_filename=./libperimeter_packetdrill.so \
//!     --so_flags=org=connp-l:8,ipv4=192.168.0.1,remote=192.0.2.1,mtu=1500,cc=cubic script.pkt
//! ```
//!
//! Layers, outermost first:
//! - `ffi`: the C structure of 32 functions, raw pointers, errno. All of the `unsafe` is there.
//! - `shell`: POSIX calls in safe Rust: descriptors, blocking, flags, options, `poll`, `epoll`.
//! - `gate`: which thread may run while the virtual clock stands still, and who is asleep.
//! - [`backend`]: what the shell needs of a stack; tests bring a small one of their own.
//! - `sockets`, `setting`: the implementation for scripts, over the engine of any organization.
//! - `world`: that engine on virtual cores, and the script at the other end of its device.
//!
//! The preloaded copy exists for one symbol, `getsockopt`: code blocks in scripts fetch
//! `TCP_INFO` by libc's call and not through the table.

pub mod backend;
mod epoll;
mod ffi;
pub mod flags;
mod gate;
mod options;
mod setting;
mod shell;
mod sockets;
mod tcp_info;
#[cfg(test)]
mod tiny;
mod world;

#[cfg(test)]
mod tests;

use std::sync::Arc;

/// The stack that `flags` ask for.
fn make_backend(flags: &flags::Flags) -> Result<Arc<dyn backend::Backend>, String> {
    Ok(Arc::new(sockets::Sockets::new(flags)?))
}
