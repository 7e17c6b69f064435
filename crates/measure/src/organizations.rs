//! Names of organizations, as `perimeter orgs` prints them and `--org` takes them.

use perimeter::OrgSpec;
use perimeter::families::Marker;
use serde::Serialize;
use std::fmt;
use std::hash::{Hash, Hasher};

/// One canonical name with what it means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Canonical spelling; a capital letter stands for a number that the user chooses.
    pub name: &'static str,
    /// One line on placement, dispatch and protection.
    pub summary: &'static str,
    /// With its usual parameters, as `--org all` runs it.
    pub default: String,
}

/// The organizations of this build.
pub fn canonical() -> Vec<Entry> {
    OrgSpec::listed()
        .map(|v| Entry {
            name: v.name,
            summary: v.summary,
            default: v.usual.to_string(),
        })
        .collect()
}

/// Another stack, as the backend that runs it registers it.
#[derive(Debug, PartialEq, Eq)]
pub struct OtherStack {
    /// Its name, for `--org` and in results.
    pub name: &'static str,
    /// Whether all its work is done by one thread.
    pub single_threaded: bool,
    /// Its marker in figures.
    pub marker: Marker,
}

impl Hash for OtherStack {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// What a row of the benchmark runs on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Organization {
    /// The host kernel's sockets.
    Linux {
        /// All threads on one core, which is not a uniprocessor kernel.
        pinned: bool,
        /// With its segmentation offloads, as it is used, or without, whatever ours have; `None`:
        /// it has them where ours have them.
        offload: Option<bool>,
    },
    /// One of Perimeter's own.
    Ours(OrgSpec),
    /// Another stack.
    Other(&'static OtherStack),
    /// No stack: the floor of rows that send over the memory NIC, and what a device of the host
    /// carries to nobody.
    Null,
    /// No stack either, but the least that the host's TCP at the other end of a device needs.
    NullTcp,
}

impl Organization {
    /// The host kernel's sockets, with what ours have.
    pub const LINUX: Organization = Organization::Linux {
        pinned: false,
        offload: None,
    };
    /// The host kernel's sockets as they are used: segmentation offloads on.
    pub const LINUX_OFFLOAD: Organization = Organization::Linux {
        pinned: false,
        offload: Some(true),
    };
    /// The host kernel's sockets with every segment by itself: segmentation offloads off.
    pub const LINUX_SEGMENTS: Organization = Organization::Linux {
        pinned: false,
        offload: Some(false),
    };

    /// Whether it is the host kernel's with all threads on one core.
    pub fn is_pinned(&self) -> bool {
        matches!(self, Organization::Linux { pinned: true, .. })
    }

    /// One of ours, by a name that it is known to have.
    ///
    /// # Panics
    /// It has not.
    pub fn ours(name: &str) -> Self {
        match name.parse() {
            Ok(spec) => Organization::Ours(spec),
            Err(e) => panic!("{e}"),
        }
    }

    /// Whether it runs over the device that is asked for; the host's sockets have links of their
    /// own.
    pub fn has_device(&self) -> bool {
        matches!(self, Organization::Ours(_) | Organization::Other(_))
    }

    /// Whether it is no stack at all.
    pub fn is_null(&self) -> bool {
        matches!(self, Organization::Null | Organization::NullTcp)
    }

    /// Whether it always has exactly one thread, whatever was asked for.
    pub fn single_threaded(&self) -> bool {
        match self {
            Organization::Ours(spec) => spec.single_threaded(),
            Organization::Other(stack) => stack.single_threaded,
            Organization::Null | Organization::NullTcp => true,
            Organization::Linux { .. } => false,
        }
    }
}

/// The name as it appears in results.
impl fmt::Display for Organization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Organization::Linux { pinned: true, .. } => f.pad("linux:pinned"),
            Organization::Linux { offload, .. } => f.pad(match offload {
                None => "linux",
                Some(true) => "linux:offload",
                Some(false) => "linux:offload=off",
            }),
            Organization::Ours(spec) => f.pad(&spec.to_string()),
            Organization::Other(stack) => f.pad(stack.name),
            Organization::Null => f.pad("null"),
            Organization::NullTcp => f.pad("null:tcp"),
        }
    }
}
