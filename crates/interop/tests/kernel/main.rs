//! Perimeter against the host's kernel and its programs, over TAP, under each organization.

mod capture;
mod common;
mod dhcp;
mod edges;
mod ending;
mod forwarding;
mod iperf3;
mod ipv6;
mod many;
mod names;
mod narrow;
mod packet;
mod refusals;
mod tokio;
mod transfer;
mod udp;
mod weather;
mod xdp;
