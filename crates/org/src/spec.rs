//! Names of organizations: `name[:N][:key=value]…`.

use core::fmt;
use core::str::FromStr;

/// The most groups that `connp-l` takes.
pub const MAX_GROUPS: u16 = 1024;

/// An organization and its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OrgSpec {
    /// The uniprocessor stack: one thread does everything.
    Up,
    /// The same behind one lock, for programs with several threads.
    UpShared,
    /// Connection groups behind locks.
    ConnpL {
        /// Number of groups.
        groups: u16,
    },
    /// The test of the seam; not for use.
    #[cfg(feature = "testing")]
    Split,
}

/// A name that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not the name of an organization.
    #[error("unknown organization `{0}`; known are: {known}", known = OrgSpec::NAMES.join(", "))]
    Unknown(String),
    /// A parameter that the organization does not take, or that is out of range.
    #[error("organization `{name}`: `{part}` is not understood; {want}")]
    Parameter {
        /// The organization.
        name: &'static str,
        /// What was given.
        part: String,
        /// What it takes.
        want: &'static str,
    },
}

impl OrgSpec {
    /// The names, with the parameters that they take.
    pub const NAMES: [&'static str; 3] = ["up", "up:shared", "connp-l:N"];

    /// Every organization with its usual parameters.
    pub fn all() -> Vec<OrgSpec> {
        vec![
            OrgSpec::Up,
            OrgSpec::UpShared,
            OrgSpec::ConnpL { groups: 128 },
        ]
    }

    /// What it is, in a line.
    pub fn describe(&self) -> &'static str {
        match self {
            OrgSpec::Up => "uniprocessor: one thread runs application, protocol and input",
            OrgSpec::UpShared => "uniprocessor behind one lock, for programs with several threads",
            OrgSpec::ConnpL { .. } => "connection groups, each behind one lock; any thread may run",
            #[cfg(feature = "testing")]
            OrgSpec::Split => "test of the seam: buffers locked apart, calls deferred",
        }
    }

    /// One thread only.
    pub fn single_threaded(&self) -> bool {
        matches!(self, OrgSpec::Up)
    }
}

impl FromStr for OrgSpec {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<OrgSpec, SpecError> {
        let mut parts = s.trim().split(':');
        let name = parts.next().unwrap_or_default();
        let rest: Vec<&str> = parts.collect();
        match name {
            "up" => match rest.as_slice() {
                [] => Ok(OrgSpec::Up),
                ["shared"] => Ok(OrgSpec::UpShared),
                _ => Err(SpecError::Parameter {
                    name: "up",
                    part: rest.join(":"),
                    want: "it is `up` or `up:shared`",
                }),
            },
            "connp-l" => {
                let groups = match rest.as_slice() {
                    [] => Some(128),
                    [n] => n.parse().ok().filter(|n| (1..=MAX_GROUPS).contains(n)),
                    _ => None,
                };
                let groups = groups.ok_or_else(|| SpecError::Parameter {
                    name: "connp-l",
                    part: rest.join(":"),
                    want: "it takes a number of groups from 1 to 1024",
                })?;
                Ok(OrgSpec::ConnpL { groups })
            }
            #[cfg(feature = "testing")]
            "split" if rest.is_empty() => Ok(OrgSpec::Split),
            _ => Err(SpecError::Unknown(s.to_string())),
        }
    }
}

impl fmt::Display for OrgSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrgSpec::Up => f.write_str("up"),
            OrgSpec::UpShared => f.write_str("up:shared"),
            OrgSpec::ConnpL { groups } => write!(f, "connp-l:{groups}"),
            #[cfg(feature = "testing")]
            OrgSpec::Split => f.write_str("split"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (text, want) in [
            ("up", Some(OrgSpec::Up)),
            ("up:shared", Some(OrgSpec::UpShared)),
            ("connp-l", Some(OrgSpec::ConnpL { groups: 128 })),
            ("connp-l:4", Some(OrgSpec::ConnpL { groups: 4 })),
            ("connp-l:0", None),
            ("connp-l:1025", None),
            ("connp-l:x", None),
            ("connp-l:4:5", None),
            ("up:netisrr", None),
            ("", None),
            ("msgpp", None),
        ] {
            assert_eq!(text.parse::<OrgSpec>().ok(), want, "{text}");
        }
        for s in OrgSpec::all() {
            assert_eq!(s.to_string().parse(), Ok(s));
        }
    }
}
