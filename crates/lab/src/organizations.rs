//! Names of organizations, as `perimeter orgs` prints them and `--org` takes them.

use serde::Serialize;

/// One canonical name with what it means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Canonical spelling; a capital letter stands for a number that the user chooses.
    pub name: &'static str,
    /// One line on placement, dispatch and protection.
    pub summary: &'static str,
}

/// The organizations of this build.
pub fn canonical() -> Vec<Entry> {
    vec![
        Entry {
            name: "up",
            summary: "one thread runs application, protocol and input to completion; no lock, no atomic",
        },
        Entry {
            name: "up:shared",
            summary: "one lock around the whole stack, for programs with several threads",
        },
        Entry {
            name: "connp-l:N",
            summary: "N connection groups by flow hash, one lock each; the caller runs the protocol (N from 1 to 65536)",
        },
    ]
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
    /// One of Perimeter's own, by its canonical spelling with numbers filled in.
    Ours(String),
}

impl Organization {
    /// Parses one name from a comma-separated list.
    ///
    /// # Errors
    /// A line that lists the known names.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "linux" => return Ok(Organization::Linux { pinned: false }),
            "linux:pinned" => return Ok(Organization::Linux { pinned: true }),
            "up" | "up:shared" => return Ok(Organization::Ours(text.into())),
            _ => {}
        }
        if let Some(groups) = text.strip_prefix("connp-l:") {
            let n = crate::units::whole(groups, "N of connp-l:N", 1..=65_536)?;
            return Ok(Organization::Ours(format!("connp-l:{n}")));
        }
        let known: Vec<_> = canonical().iter().map(|e| e.name).collect();
        Err(format!(
            "unknown organization `{text}` (known: {}, linux, linux:pinned)",
            known.join(", ")
        ))
    }

    /// The name as it appears in results.
    pub fn name(&self) -> &str {
        match self {
            Organization::Linux { pinned: false } => "linux",
            Organization::Linux { pinned: true } => "linux:pinned",
            Organization::Ours(name) => name,
        }
    }

    /// Whether it always has exactly one thread, whatever was asked for.
    pub fn single_threaded(&self) -> bool {
        self.name() == "up"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["up", "up:shared", "connp-l:128", "linux", "linux:pinned"] {
            assert_eq!(Organization::parse(name).unwrap().name(), name);
        }
        assert_eq!(
            Organization::parse("connp-l:004").unwrap().name(),
            "connp-l:4"
        );
        for name in [
            "",
            "UP",
            "up ",
            "connp-l",
            "connp-l:",
            "connp-l:0",
            "connp-l:-1",
            "connp-l:65537",
            "up:2",
            "linux:2",
            "msgp",
        ] {
            assert!(Organization::parse(name).is_err(), "{name} was taken");
        }
        let error = Organization::parse("msgp").unwrap_err();
        for entry in canonical() {
            assert!(error.contains(entry.name), "{error}");
        }
    }
}
