//! Whole stacks in virtual time, or with no time at all: what they do, under every organization.
//! One program for all of them, since each would carry a whole stack. Tests that are about threads
//! of the machine, or a process of their own, stand beside this folder.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/lan.rs"]
mod lan;
#[path = "../common/pef.rs"]
mod lists;
#[path = "../common/packet.rs"]
mod packet;

mod accepting;
mod batch;
mod closing;
mod copies;
mod datagrams;
mod devices;
mod dhcp;
mod discovery;
mod ending;
mod families;
mod forwarding;
mod holding;
mod hostile;
mod hostile_peer;
mod listen_races;
mod made_threads;
mod martians;
mod memory;
mod msgp_locks;
#[cfg(feature = "dns")]
mod names;
mod neighbours;
mod offload;
mod options;
mod path_mtu;
mod pef_clock;
mod pef_events;
mod pef_panics;
mod planted;
mod rcvbuf;
mod routers;
mod seam;
mod settings;
mod sharing;
mod steering;
mod strays;
mod syn_flood;
mod udp;
mod udp_groups;
mod unpredictable;
mod witnesses;
