//! What test programs print, without what nobody reads.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// Tests that were skipped, by the reason.
pub type Skipped = BTreeMap<String, Vec<String>>;

/// What a test prints that is skipped, before the reason.
const SIGNS: [&str; 3] = ["skipped: ", "note: skipped, ", "note: not measured: "];

/// Passes on the lines of a test run, but for what tests that passed have printed, of which it only
/// keeps who was skipped and why.
pub fn pass_on(
    out: impl BufRead,
    skipped: &mut Skipped,
    mut print: impl FnMut(&str),
) -> io::Result<()> {
    let (mut hidden, mut test) = (false, String::new());
    for line in out.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        hidden = match &*line {
            "successes:" => true,
            "failures:" => false,
            l => hidden && !l.starts_with("test result: "),
        };
        if !hidden {
            print(&line);
            continue;
        }
        let name = line.strip_prefix("---- ");
        if let Some(name) = name.and_then(|l| l.strip_suffix(" stdout ----")) {
            test = name.to_owned();
        }
        if let Some(why) = SIGNS.iter().find_map(|s| line.strip_prefix(s)) {
            let tests = skipped.entry(why.to_owned()).or_default();
            if tests.last() != Some(&test) {
                tests.push(test.clone());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_skipped_is_kept_and_what_passed_is_not_printed() {
        let out = "\
running 3 tests
test a ... ok

successes:

---- a stdout ----
chatter
skipped: no namespaces

---- b stdout ----
skipped: no namespaces

successes:
    a
    b

failures:

---- c stdout ----
it broke

test result: FAILED. 2 passed; 1 failed
";
        let (mut skipped, mut printed) = (Skipped::new(), Vec::new());
        pass_on(out.as_bytes(), &mut skipped, |l| printed.push(l.to_owned())).unwrap();
        let tests = ["a".to_string(), "b".to_string()];
        assert_eq!(skipped["no namespaces"], tests);
        let printed = printed.join("\n");
        assert!(!printed.contains("chatter"), "{printed}");
        for kept in ["test a ... ok", "it broke", "test result: FAILED"] {
            assert!(printed.contains(kept), "{printed}");
        }
    }
}
