//! Every backend of this build, and the names that each has registered for `--org`.

use crate::{
    linux, net,
    organizations::{Organization, OtherStack},
    ours, peers,
    session::Backend,
    workload::{Configuration, Settings},
};
use perimeter::OrgSpec;

/// Other stacks that can be run, in the order of `--org peers`.
pub const OTHERS: [&OtherStack; 3] = peers::STACKS;

/// Parses one name from a comma-separated list.
///
/// # Errors
/// A line that lists the known names.
pub fn parse(text: &str) -> Result<Organization, String> {
    let text = text.trim();
    if let Some(stack) = OTHERS.into_iter().find(|s| s.name == text) {
        return Ok(Organization::Other(stack));
    }
    match text {
        "linux" => Ok(Organization::Linux { pinned: false }),
        "linux:pinned" => Ok(Organization::Linux { pinned: true }),
        other => other.parse().map(Organization::Ours).map_err(|e| {
            format!(
                "{e}; besides, linux and linux:pinned are the host's own sockets, {} other \
                 stacks, all is every one of ours, and peers is linux and the other stacks",
                OTHERS.map(|s| s.name).join(", ")
            )
        }),
    }
}

/// Parses one entry of a list: a name, `all` for every one of our own, or `peers` for the host's
/// sockets and every other stack.
///
/// # Errors
/// As [`parse`].
pub fn parse_entry(text: &str) -> Result<Vec<Organization>, String> {
    match text.trim() {
        "all" => Ok(OrgSpec::all().into_iter().map(Organization::Ours).collect()),
        "peers" => {
            let linux = Organization::Linux { pinned: false };
            let others = OTHERS.into_iter().map(Organization::Other);
            Ok(std::iter::once(linux).chain(others).collect())
        }
        one => parse(one).map(|one| vec![one]),
    }
}

/// The backend of a configuration.
pub fn backend_for(settings: &Settings, configuration: &Configuration) -> Box<dyn Backend> {
    if let Some(target) = &settings.connect {
        return Box::new(net::Client::new(target.clone()));
    }
    match &configuration.organization {
        Organization::Linux { .. } => Box::new(linux::Kernel::default()),
        Organization::Ours(_) => Box::new(ours::Perimeter::default()),
        Organization::Other(stack) => peers::backend(stack),
        Organization::Null => Box::new(ours::Floor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::organizations::canonical;

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
            assert_eq!(parse(name).unwrap().to_string(), name);
        }
        assert_eq!(parse("connp-l:004").unwrap().to_string(), "connp-l:4");
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
            assert!(parse(name).is_err(), "{name} was taken");
        }
        let all = parse_entry("all").unwrap();
        let of_build = canonical().into_iter().map(|e| e.default);
        assert!(all.iter().map(ToString::to_string).eq(of_build));
        assert_eq!(parse_entry("up").unwrap().len(), 1);
        let peers = parse_entry("peers").unwrap();
        assert_eq!(peers.len(), 1 + OTHERS.len());
        assert_eq!(peers[0].to_string(), "linux");
        let error = parse("msgpp").unwrap_err();
        for entry in canonical() {
            assert!(error.contains(entry.name), "{error}");
        }
    }
}
