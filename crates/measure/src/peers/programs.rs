//! Runs with stacks that are programs of their own: what they are told, and their threads.

use super::{
    adapter,
    child::{self, Ends, Start, Told},
    kernel::{INTERFACE, PREFIX, Site},
    stacks::Peer,
};
use crate::{
    Error,
    linux::{self, veth},
    session::Worker,
    workload::{Coalescing, Configuration, FILE_SIZE, MTU, Settings, spread},
};
use std::{net::SocketAddrV4, time::Instant};

/// Port that the far end of a pair listens on.
const PORT: u16 = 5001;

/// Whether the stack is to be had here, and can do what is asked for.
///
/// # Errors
/// [`Error::Unavailable`] with what is missing.
pub(super) fn check(peer: Peer, settings: &Settings) -> Result<(), Error> {
    if settings.exchange.is_some() {
        return Err(Error::Unavailable(format!(
            "{peer}: its adapter speaks no requests and responses"
        )));
    }
    adapter::program(peer).map(|_| ())
}

/// What the reader of gVisor's rows has to know about how it is compared.
pub(super) fn gvisor_notes(tap: bool) -> Vec<String> {
    let link = match tap {
        true => {
            "gvisor: its own TAP interface, a system call or more a frame, checksums by gVisor and \
             the kernel; ours leaves them to the kernel"
        }
        false => "gvisor: no checksums and no Ethernet headers on its pipe; ours has the headers",
    };
    vec![
        "gvisor: a goroutine for each connection and direction, not an event loop a thread; \
         GOMAXPROCS is --threads"
            .into(),
        "gvisor: copies what is sent; ours and Linux refer to the file's pages".into(),
        "gvisor: a program of its own, whose processor time is added to this one's".into(),
        link.into(),
    ]
}

/// What the reader of lwIP's rows has to know about how it is compared.
pub(super) fn lwip_notes(settings: &Settings, tap: bool) -> Vec<String> {
    let link = match tap {
        true => {
            "lwip: a TAP interface with one system call a frame, checksums by lwIP and the kernel; \
             ours leaves them to the kernel"
        }
        false => {
            "lwip: two processes joined by shared memory, checksums made and looked at at both \
             ends; ours has none there"
        }
    };
    let mut notes: Vec<String> = vec![
        "lwip: as its package builds it: buffers and windows of 64 KB, no timestamps (1460 bytes a \
         segment), no selective acknowledgments, NewReno; --buffer and --read-size have no effect"
            .into(),
        "lwip: callbacks on one thread instead of sockets; copies what is sent; does not count what \
         it sends again"
            .into(),
        "lwip: a program of its own, whose processor time is added to this one's".into(),
        link.into(),
    ];
    if settings.coalescing == Coalescing::Cork {
        notes.push("lwip: has no cork; Nagle's algorithm is in its place".into());
    }
    notes
}

/// The threads of a run: the near end first.
///
/// # Errors
/// As [`check`].
pub(super) fn workers(
    peer: Peer,
    site: Option<&Site>,
    settings: &Settings,
    configuration: &Configuration,
    deadline: Option<Instant>,
    told: &Told,
) -> Result<Vec<(String, Worker)>, Error> {
    let start = Start {
        program: adapter::program(peer)?,
        arguments: arguments(site.is_some(), settings, configuration),
        deadline,
    };
    let connections = configuration.connections as usize;
    let mut kernels = Vec::new();
    let ends = match site {
        None => {
            let to = SocketAddrV4::new(veth::far_address(0), PORT);
            Ends::Pair(to, connections)
        }
        Some(site) => {
            let (_, roles) = linux::roles(settings);
            let mut shares = vec![0; configuration.threads];
            for place in spread(connections, configuration.threads, 1) {
                shares[place.thread] += 1;
            }
            let mut gates = Vec::new();
            for (i, share) in shares.into_iter().enumerate() {
                let (gate, kernel) = site.far(settings, roles, share, deadline);
                gates.push((gate, share));
                kernels.push((format!("peer-{i}"), kernel));
            }
            Ends::Kernel(gates)
        }
    };
    let mut workers = vec![("app-0".into(), child::worker(start, ends, told.clone()))];
    workers.append(&mut kernels);
    Ok(workers)
}

/// The settings as the adapter takes them.
fn arguments(tap: bool, settings: &Settings, configuration: &Configuration) -> Vec<String> {
    let (near, _) = linux::roles(settings);
    let list = [
        ("mode", if tap { "tap" } else { "pair" }.to_string()),
        ("interface", INTERFACE.into()),
        ("near", veth::near_address(0).to_string()),
        ("far", veth::far_address(0).to_string()),
        ("prefix", PREFIX.to_string()),
        ("mtu", MTU.to_string()),
        ("connections", configuration.connections.to_string()),
        ("threads", configuration.threads.to_string()),
        ("send", u8::from(near.source).to_string()),
        ("receive", u8::from(near.sink).to_string()),
        ("write", settings.write_size.to_string()),
        ("read", settings.read_size.to_string()),
        ("buffer", settings.buffer.to_string()),
        ("coalescing", settings.coalescing.to_string()),
        ("size", FILE_SIZE.to_string()),
    ];
    list.map(|(key, value)| format!("{key}={value}")).into()
}
