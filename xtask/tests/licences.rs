//! What Perimeter is built from may be used as Perimeter itself may: under permissive licences.

use cargo_metadata::MetadataCommand;
use spdx::Expression;

/// Licences that ask for nothing but notices. A crate with a choice needs one of them.
const PERMITTED: [&str; 9] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

fn is_permitted(expression: &str) -> Result<bool, String> {
    // Before SPDX's "OR" a slash stood for a choice.
    let expression = expression.replace('/', " OR ");
    let parsed = Expression::parse(&expression).map_err(|e| e.to_string())?;
    Ok(parsed.evaluate(|one| {
        one.license
            .id()
            .is_some_and(|id| PERMITTED.contains(&id.name))
    }))
}

#[test]
fn every_dependency_is_permissive() {
    let mut metadata = MetadataCommand::new();
    // What is built here is there already; nothing else need be fetched.
    let options = ["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
    metadata.other_options(options.map(String::from));
    let packages = metadata.exec().unwrap().packages;
    assert!(packages.len() > 100, "that is not all of them");
    let bad: Vec<String> = packages
        .iter()
        .filter_map(|p| {
            let name = format!("{} {}", p.name, p.version);
            match p.license.as_deref().map(is_permitted) {
                Some(Ok(true)) => None,
                Some(Ok(false)) => Some(format!("{name}: {}", p.license.as_deref().unwrap())),
                Some(Err(e)) => Some(format!("{name}: {e}")),
                None => Some(format!("{name}: no licence is named")),
            }
        })
        .collect();
    assert!(bad.is_empty(), "not permitted:\n{}", bad.join("\n"));
}

#[test]
fn copyleft_is_refused_and_a_choice_is_one() {
    for (expression, expected) in [
        ("MIT OR Apache-2.0", true),
        ("MIT/Apache-2.0", true),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0-only", true),
        ("GPL-3.0-or-later", false),
        ("MIT AND MPL-2.0", false),
        ("LGPL-2.1-only", false),
    ] {
        assert_eq!(is_permitted(expression), Ok(expected), "{expression}");
    }
    assert!(is_permitted("as you like").is_err());
}

/// `cargo xtask supply` asks another program the same.
#[test]
fn what_cargo_deny_permits_is_what_is_permitted_here() {
    let text = include_str!("../../deny.toml");
    let list = text.split_once("\nallow = [\n").unwrap().1;
    let list = list.split_once("\n]").unwrap().0.lines();
    let names: Vec<&str> = list.map(|l| l.trim().trim_matches(['"', ','])).collect();
    assert_eq!(names, PERMITTED);
}
