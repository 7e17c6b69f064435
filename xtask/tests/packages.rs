//! What is to be published can be packaged: each crate with what it needs, and nothing that only this
//! checkout has.

use cargo_metadata::MetadataCommand;
use std::process::Command;

/// Those that a program depends on, directly or not.
const PUBLISHED: [&str; 12] = [
    "perimeter",
    "perimeter-base",
    "perimeter-dns",
    "perimeter-link",
    "perimeter-org",
    "perimeter-stack",
    "perimeter-sync",
    "perimeter-tcp",
    "perimeter-testing",
    "perimeter-tokio",
    "perimeter-virtual",
    "perimeter-wire",
];

#[test]
fn what_is_published_can_be_packaged() {
    let mut metadata = MetadataCommand::new();
    metadata.no_deps();
    let metadata = metadata.exec().unwrap();
    let mut published = Vec::new();
    for p in &metadata.packages {
        if p.publish.as_ref().is_some_and(Vec::is_empty) {
            continue;
        }
        assert!(p.description.is_some(), "{}: no description", p.name);
        assert!(p.readme.is_some(), "{}: no readme", p.name);
        assert!(!p.keywords.is_empty(), "{}: no keywords", p.name);
        published.push(p.name.to_string());
    }
    published.sort();
    assert_eq!(published, PUBLISHED);
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut package = Command::new(cargo);
    package
        .args([
            "package",
            "--quiet",
            "--offline",
            "--allow-dirty",
            "--no-verify",
        ])
        .arg("--target-dir")
        .arg(metadata.target_directory.join("packages"))
        .current_dir(&metadata.workspace_root);
    for name in PUBLISHED {
        package.args(["-p", name]);
    }
    let out = package.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    for name in PUBLISHED {
        let made = format!(
            "packages/package/{name}-{}.crate",
            env!("CARGO_PKG_VERSION")
        );
        assert!(
            metadata.target_directory.join(made).exists(),
            "{name}: {said}"
        );
    }
}
