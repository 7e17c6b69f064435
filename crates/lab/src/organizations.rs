//! Names of organizations, as `perimeter orgs` prints them and `--org` takes them.

use crate::peers::Peer;
use perimeter::OrgSpec;
use serde::Serialize;
use std::fmt;

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

/// What a row of the benchmark runs on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Organization {
    /// The host kernel's sockets. `pinned`: every thread on one core, which is not a uniprocessor
    /// kernel.
    Linux {
        /// All threads on one core.
        pinned: bool,
    },
    /// One of Perimeter's own.
    Ours(OrgSpec),
    /// Another stack.
    Peer(Peer),
    /// No stack: the floor of the rows over the memory NIC. Never asked for, always added.
    Null,
}

impl Organization {
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

    /// Parses one name from a comma-separated list.
    ///
    /// # Errors
    /// A line that lists the known names.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(peer) = Peer::ALL.into_iter().find(|p| p.name() == text) {
            return Ok(Organization::Peer(peer));
        }
        match text {
            "linux" => Ok(Organization::Linux { pinned: false }),
            "linux:pinned" => Ok(Organization::Linux { pinned: true }),
            other => other.parse().map(Organization::Ours).map_err(|e| {
                format!(
                    "{e}; besides, linux and linux:pinned are the host's own sockets, {} other \
                     stacks, all is every one of ours, and peers is linux and the other stacks",
                    Peer::ALL.map(Peer::name).join(", ")
                )
            }),
        }
    }

    /// Parses one entry of a list: a name, `all` for every one of our own, or `peers` for the
    /// host's sockets and every other stack.
    ///
    /// # Errors
    /// As [`Organization::parse`].
    pub fn parse_entry(text: &str) -> Result<Vec<Self>, String> {
        match text.trim() {
            "all" => Ok(OrgSpec::all().into_iter().map(Organization::Ours).collect()),
            "peers" => {
                let linux = Organization::Linux { pinned: false };
                let others = Peer::ALL.into_iter().map(Organization::Peer);
                Ok(std::iter::once(linux).chain(others).collect())
            }
            one => Self::parse(one).map(|one| vec![one]),
        }
    }

    /// Whether it runs over the device that is asked for; the host's sockets have links of their
    /// own.
    pub fn has_device(&self) -> bool {
        matches!(self, Organization::Ours(_) | Organization::Peer(_))
    }

    /// Whether it always has exactly one thread, whatever was asked for.
    pub fn single_threaded(&self) -> bool {
        match self {
            Organization::Ours(spec) => spec.single_threaded(),
            Organization::Peer(peer) => peer.single_threaded(),
            Organization::Null => true,
            Organization::Linux { .. } => false,
        }
    }
}

/// The name as it appears in results.
impl fmt::Display for Organization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Organization::Linux { pinned: false } => f.pad("linux"),
            Organization::Linux { pinned: true } => f.pad("linux:pinned"),
            Organization::Ours(spec) => f.pad(&spec.to_string()),
            Organization::Peer(peer) => f.pad(peer.name()),
            Organization::Null => f.pad("null"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in [
            "up",
            "up:shared",
            "connp-l:128",
            "linux",
            "linux:pinned",
            "smoltcp",
        ] {
            assert_eq!(Organization::parse(name).unwrap().to_string(), name);
        }
        assert_eq!(
            Organization::parse("connp-l:004").unwrap().to_string(),
            "connp-l:4"
        );
        for name in [
            "",
            "UP",
            "connp-l:",
            "connp-l:0",
            "connp-l:-1",
            "connp-l:1025",
            "up:2",
            "linux:2",
            "msgpp",
        ] {
            assert!(Organization::parse(name).is_err(), "{name} was taken");
        }
        let all = Organization::parse_entry("all").unwrap();
        let of_build = canonical().into_iter().map(|e| e.default);
        assert!(all.iter().map(ToString::to_string).eq(of_build));
        assert_eq!(Organization::parse_entry("up").unwrap().len(), 1);
        let peers = Organization::parse_entry("peers").unwrap();
        assert_eq!(peers.len(), 1 + Peer::ALL.len());
        assert_eq!(peers[0].to_string(), "linux");
        let error = Organization::parse("msgpp").unwrap_err();
        for entry in canonical() {
            assert!(error.contains(entry.name), "{error}");
        }
    }
}
