//! Devices: what carries frames between a stack and something else.
//!
//! [`device`] is the seam. [`mem`] is a memory NIC with an ideal peer, for benchmarks; [`wire`]
//! puts two stacks back to back; [`loopback`] is a stack's way to itself; [`fault`] wraps any
//! device and damages what passes; [`tap`] is the host's kernel; [`packet`] and [`xdp`] are any
//! Ethernet interface of the host; [`pcap`] records any device; [`script`] is a raw-IP device that
//! a script feeds; [`pipe`] is a program that takes and gives frames. [`host`] configures the
//! host's interfaces, and [`named`] opens any of them by name.
#![warn(missing_debug_implementations)]

#[cfg(target_os = "linux")]
mod bpf;
pub mod capture;
mod csum;
mod debug;
pub mod device;
pub mod fault;
#[cfg(target_os = "linux")]
pub mod host;
#[cfg(target_os = "linux")]
mod ifreq;
mod irq;
pub mod loopback;
pub mod mem;
#[cfg(target_os = "linux")]
pub mod named;
pub mod network;
pub mod nowhere;
pub mod null;
pub mod pace;
#[cfg(target_os = "linux")]
pub mod packet;
pub mod pattern;
pub mod pcap;
pub mod pipe;
pub mod raw;
pub use perimeter_base::rng;
pub mod rss;
pub mod script;
#[cfg(target_os = "linux")]
pub mod tap;
#[cfg(target_os = "linux")]
mod vnet;
pub mod wire;
#[cfg(target_os = "linux")]
pub mod xdp;

pub use device::{
    Capabilities, Device, Medium, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker,
};
pub use perimeter_wire::MacAddr;
