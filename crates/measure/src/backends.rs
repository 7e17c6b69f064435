//! Every backend of this build, and the names that each has registered for `--org`.

use crate::{
    linux, net,
    organizations::{Organization, OtherStack, canonical},
    ours, peers,
    session::Backend,
    text::did_you_mean,
    workload::{Configuration, Settings},
};
use perimeter::{OrgSpec, SpecError};

/// Other stacks that can be run, in the order of `--org peers`.
pub const OTHERS: [&OtherStack; 3] = peers::STACKS;

/// Names of the host's own sockets.
const HOST: [&str; 4] = [
    "linux",
    "linux:offload",
    "linux:offload=off",
    "linux:pinned",
];

/// Parses one name from a comma-separated list.
///
/// # Errors
/// A line that says what there is, and which name was meant if one is like it.
pub fn parse(text: &str) -> Result<Organization, String> {
    let text = text.trim();
    if let Some(stack) = OTHERS.into_iter().find(|s| s.name == text) {
        return Ok(Organization::Other(stack));
    }
    match text {
        "linux" => Ok(Organization::LINUX),
        "linux:offload" => Ok(Organization::LINUX_OFFLOAD),
        "linux:offload=off" => Ok(Organization::LINUX_SEGMENTS),
        "linux:pinned" => Ok(Organization::Linux {
            pinned: true,
            offload: None,
        }),
        "null" => Ok(Organization::Null),
        "null:tcp" => Ok(Organization::NullTcp),
        other => other.parse().map(Organization::Ours).map_err(|e| match e {
            SpecError::Unknown { name, .. } => unknown(&name),
            e => e.to_string(),
        }),
    }
}

/// What to say of a name that nobody has. The words for several are none here, as not every command
/// takes them.
fn unknown(name: &str) -> String {
    let ours = canonical().into_iter().map(|e| e.name);
    let known = ours
        .chain(HOST)
        .chain(OTHERS.map(|s| s.name))
        .chain(["null", "null:tcp"]);
    if ["all", "peers"].contains(&name) {
        return format!("`{name}` stands for several organizations; name one here");
    }
    let meant = did_you_mean(&name.to_lowercase(), known);
    if !meant.is_empty() {
        return format!("unknown organization `{name}`{meant} `perimeter orgs` lists all of ours");
    }
    format!(
        "unknown organization `{name}`; `perimeter orgs` lists ours; besides there are {}, {}, \
         null and null:tcp (no stack), all (of ours) and peers (the others)",
        HOST.join(", "),
        OTHERS.map(|s| s.name).join(", ")
    )
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
            let linux = [Organization::LINUX_SEGMENTS, Organization::LINUX_OFFLOAD];
            let others = OTHERS.into_iter().map(Organization::Other);
            Ok(linux.into_iter().chain(others).collect())
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
        Organization::NullTcp => Box::new(ours::RawLoop),
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
            "linux:offload",
            "linux:offload=off",
            "linux:pinned",
            "null",
            "null:tcp",
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
        assert_eq!(peers.len(), 2 + OTHERS.len());
        assert_eq!(peers[0].to_string(), "linux:offload=off");
        assert_eq!(peers[1].to_string(), "linux:offload");
        let error = parse("msgpp").unwrap_err();
        assert!(
            error.contains("did you mean `msgp`? `perimeter orgs`"),
            "{error}"
        );
        let error = parse("frobnicate").unwrap_err();
        assert!(
            error.contains("`frobnicate`; `perimeter orgs` lists ours"),
            "{error}"
        );
    }
}
