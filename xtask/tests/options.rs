//! Structs of options can grow: they are `#[non_exhaustive]`, so that nobody elsewhere lists their
//! fields, and have a setter for each field, so that nobody has to.
//!
//! This reads the sources line by line, as rustfmt leaves them.

use std::fs;
use std::path::{Path, PathBuf};

/// A struct with public fields.
#[derive(Debug, Default)]
struct Found {
    name: String,
    place: String,
    can_grow: bool,
    /// Public fields that are shown.
    fields: Vec<String>,
    setters: Option<Vec<String>>,
}

/// The lines of a block up to its end, trimmed.
fn block<'a>(lines: &mut impl Iterator<Item = &'a str>, end: &str) -> Vec<&'a str> {
    lines.take_while(|l| *l != end).map(str::trim).collect()
}

/// The structs of a file, and the setters that it gives to them.
fn structs(text: &str, file: &Path) -> Vec<Found> {
    let (mut all, mut attributes) = (Vec::<Found>::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("#[") {
            attributes.push(line);
            continue;
        }
        let declared = line.strip_prefix("pub struct ");
        if let Some(name) = declared.and_then(|l| l.strip_suffix(" {")) {
            let body = block(&mut lines, "}");
            let hidden = |n: usize| n > 0 && body[n - 1] == "#[doc(hidden)]";
            let shown = body.iter().enumerate().filter(|(n, _)| !hidden(*n));
            let field = |l: &str| Some(l.strip_prefix("pub ")?.split_once(':')?.0.to_string());
            all.push(Found {
                name: name.to_string(),
                place: file.display().to_string(),
                can_grow: attributes.contains(&"#[non_exhaustive]"),
                fields: shown.filter_map(|(_, l)| field(l)).collect(),
                setters: None,
            });
        }
        if line.ends_with("setters! {") {
            let body = block(&mut lines, "}");
            let name = body[0].trim_end_matches(" {");
            let set = |l: &&str| Some(l.strip_prefix("with_")?.split_once('(')?.0.to_string());
            let found = all.iter_mut().find(|s| s.name == name);
            let found = found.unwrap_or_else(|| panic!("{}: {name}", file.display()));
            found.setters = Some(body.iter().filter_map(set).collect());
        }
        attributes.clear();
    }
    all
}

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn structs_of_options_can_grow_and_have_all_their_setters() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut files = Vec::new();
    for published in [
        "dns",
        "link",
        "perimeter",
        "stack",
        "sync",
        "tcp",
        "testing",
        "tokio",
    ] {
        sources(&crates.join(published).join("src"), &mut files);
    }
    let all = files
        .iter()
        .flat_map(|f| structs(&fs::read_to_string(f).unwrap(), f));
    let options = |s: &Found| {
        let named = ["Config", "Options", "Settings"]
            .iter()
            .any(|n| s.name.ends_with(n));
        s.setters.is_some() || named && !s.fields.is_empty()
    };
    let all: Vec<Found> = all.filter(options).collect();
    assert!(all.len() > 20, "those are not all: {}", all.len());
    for s in &all {
        assert!(s.can_grow, "{}: {} is exhaustive", s.place, s.name);
        let setters = s.setters.as_ref();
        assert_eq!(setters, Some(&s.fields), "{}: {}", s.place, s.name);
    }
}
