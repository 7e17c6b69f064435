//! The other stacks, and the names that they are registered under.

use crate::organizations::OtherStack;
use perimeter::families::Marker;
use std::fmt;

/// All of them, as they are listed.
pub const STACKS: [&OtherStack; 3] = [&SMOLTCP, &GVISOR, &LWIP];

static SMOLTCP: OtherStack = OtherStack {
    name: "smoltcp",
    single_threaded: true,
    marker: Marker::Diamond,
};
static GVISOR: OtherStack = OtherStack {
    name: "gvisor",
    single_threaded: false,
    marker: Marker::Square,
};
static LWIP: OtherStack = OtherStack {
    name: "lwip",
    single_threaded: true,
    marker: Marker::Down,
};

/// A stack that isn't ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    /// smoltcp, a Rust crate.
    Smoltcp,
    /// gVisor's netstack, in Go, as a program of its own.
    Gvisor,
    /// lwIP, in C, as a program of its own.
    Lwip,
}

impl Peer {
    /// The one that is registered so; `None`: none of ours is.
    pub(super) fn of(stack: &OtherStack) -> Option<Peer> {
        let all = [Peer::Smoltcp, Peer::Gvisor, Peer::Lwip];
        all.into_iter().find(|p| p.stack() == stack)
    }

    pub(super) fn stack(self) -> &'static OtherStack {
        match self {
            Peer::Smoltcp => &SMOLTCP,
            Peer::Gvisor => &GVISOR,
            Peer::Lwip => &LWIP,
        }
    }

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        self.stack().name
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
