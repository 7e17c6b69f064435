//! Names of hosts, and those that nobody is asked for.

/// What is to be done about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// To be asked for, in lower case and without a dot at the end.
    Ask(String),
    /// This host, by its loopback addresses (RFC 6761, section 6.3).
    Local,
    /// Nobody, for good: `invalid` (RFC 6761, section 6.4) and `onion` (RFC 7686, section 2), which
    /// no name server should even see.
    Nobody,
}

/// The longest name, octets of text: 255 on the wire with a length before each label and an empty
/// one at the end.
const LONGEST: usize = 253;
const LONGEST_LABEL: usize = 63;

/// Whether `name`, without a dot at its end, can be a host's; what is wrong with it otherwise.
/// Underscores are let through, as such hosts exist.
pub(crate) fn check(name: &str) -> Result<(), &'static str> {
    if !name.is_ascii() {
        return Err("it has to be in ASCII (`xn--…` for other scripts)");
    }
    if name.is_empty() || name.len() > LONGEST {
        return Err("it has to have 1 to 253 characters");
    }
    for label in name.split('.') {
        if label.is_empty() || label.len() > LONGEST_LABEL {
            return Err("each of its parts has to have 1 to 63 characters");
        }
        let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if !label.bytes().all(fine) || label.starts_with('-') || label.ends_with('-') {
            return Err("its parts are of letters, digits and hyphens between them");
        }
    }
    // Notations of IPv4 that not everybody reads alike, such as 127.1 and 0x7f000001.
    let last = name.rsplit('.').next().unwrap_or(name);
    let hex = last.strip_prefix("0x").or(last.strip_prefix("0X"));
    if last.bytes().all(|b| b.is_ascii_digit())
        || hex.is_some_and(|h| h.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        return Err("it ends in a number; an address of IPv4 has four of them, in decimal");
    }
    Ok(())
}

/// What is to be done about `host`, a name that is no address; what is wrong with it otherwise.
pub(crate) fn parse(host: &str) -> Result<Named, &'static str> {
    let name = host.strip_suffix('.').unwrap_or(host);
    check(name)?;
    let name = name.to_ascii_lowercase();
    Ok(match name.rsplit('.').next() {
        Some("localhost") => Named::Local,
        Some("invalid" | "onion") => Named::Nobody,
        _ => Named::Ask(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for() {
        for (given, want) in [
            ("example.org", "example.org"),
            ("Example.ORG.", "example.org"),
            ("printer", "printer"),
            ("_x.a-b.9a", "_x.a-b.9a"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("1.0x9.example", "1.0x9.example"),
        ] {
            assert_eq!(parse(given), Ok(Named::Ask(want.into())), "{given}");
        }
        for local in ["localhost", "LocalHost.", "a.localhost"] {
            assert_eq!(parse(local), Ok(Named::Local));
        }
        for nobody in ["invalid", "x.invalid.", "abc.onion"] {
            assert_eq!(parse(nobody), Ok(Named::Nobody));
        }
    }

    #[test]
    fn what_is_no_name() {
        let long_label = format!("{}.org", "a".repeat(64));
        let long = ["a".repeat(60).as_str(); 5].join(".");
        for bad in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a.b..",
            "a b",
            "a/b",
            "-a.b",
            "a-.b",
            "bücher.example",
            "127.1",
            "1.2.3.4.5",
            "0x7f000001",
            "a.0x",
            "a\0b",
            &long_label,
            &long,
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
