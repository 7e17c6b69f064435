//! Perimeter against the host's kernel: what the tests of this crate run on. Namespaces to be
//! alone in, programs of the host with a time limit, and iperf3's protocol over any stream.
//!
//! The tests need privilege for a network namespace and `/dev/net/tun`, and the programs
//! `python3`, `curl`, `iperf3` and `tshark` (Debian packages of these names) and `dnsmasq` (of the
//! package `dnsmasq-base`); they say what they skip. `PERIMETER_INTEROP=full` makes every transfer 1 GiB.
#![forbid(unsafe_code)]

pub mod examples;
pub mod iperf;
pub mod namespace;
pub mod program;
pub mod taps;
pub mod veths;
