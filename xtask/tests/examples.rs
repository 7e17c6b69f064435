//! Every public item of the library's facade, and of its sockets for tokio, is shown in use by an
//! example, which `cargo test --doc` runs.
//!
//! In the facade, and of what it takes over by name from the crates below, that is the item's own
//! example, or one of its type that uses a method by name. For tokio's a link to an item that has an
//! example will do, as most of them are the facade's with `async` before them.
//!
//! This reads the sources line by line, as rustfmt leaves them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The owner of methods that a macro gives to several types.
const EACH: &str = "$";

/// Traits that the facade names and that organizations are written with: their methods are for
/// those who write one, and are shown in use by the organizations that there are.
const SEAM: [&str; 1] = ["Platform"];

/// A public item: a type, a trait, a function, or a method of one of these types.
#[derive(Debug)]
struct Item {
    /// `Type`, `Type::method` or `function`.
    name: String,
    /// The file that it stands in, and the line.
    file: String,
    line: usize,
    /// Its documentation, a line each.
    doc: Vec<String>,
}

impl Item {
    /// The type that has to be public for this to be.
    fn owner(&self) -> &str {
        self.name.split("::").next().unwrap_or_default()
    }

    fn has_example(&self) -> bool {
        self.doc.iter().any(|l| l.trim_start().starts_with("```"))
    }

    /// Where it stands, for the report.
    fn place(&self) -> String {
        format!("{}:{}: {}", self.file, self.line, self.name)
    }

    /// Whether an example in its documentation names that.
    fn uses(&self, name: &str) -> bool {
        let mut within = false;
        self.doc.iter().any(|line| {
            let fence = line.trim_start().starts_with("```");
            within ^= fence;
            let code = line.split("//").next().unwrap_or_default();
            let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            within && !fence && words.any(|word| word == name)
        })
    }

    /// What its documentation links to, in the names of items.
    fn links(&self) -> Vec<String> {
        let text = self.doc.join(" ");
        let mut found = Vec::new();
        let mut rest = text.as_str();
        while let Some((_, after)) = rest.split_once("[`") {
            let Some((shown, after)) = after.split_once("`]") else {
                break;
            };
            let target = after.strip_prefix('(').and_then(|a| a.split_once(')'));
            let target = target.map_or(shown, |(t, _)| t);
            found.push(self.named(target));
            rest = after;
        }
        found
    }

    /// The last parts of a path, as items are named here; those of the facade, seen from another
    /// library, with that one's name before.
    fn named(&self, path: &str) -> String {
        if let Some(theirs) = path.strip_prefix("perimeter::") {
            return format!("perimeter::{}", self.named(theirs));
        }
        let parts: Vec<&str> = path.trim_end_matches("()").split("::").collect();
        let of_type = |s: &str| s.starts_with(char::is_uppercase);
        match parts[..] {
            [.., "Self", method] => format!("{}::{method}", self.owner()),
            [.., owner, method] if of_type(owner) && !of_type(method) => {
                format!("{owner}::{method}")
            }
            [.., last] => last.to_string(),
            [] => String::new(),
        }
    }
}

/// The identifier that `text` begins with.
fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// Whose methods follow, if this line opens an `impl` of a type or a trait.
fn opens(line: &str) -> Option<&str> {
    if let Some(of_trait) = line.strip_prefix("pub trait ") {
        return Some(identifier(of_trait));
    }
    let head = line.strip_prefix("impl")?;
    // Generic parameters have no `>` within, as these sources are.
    let head = match head.strip_prefix('<') {
        Some(generic) => generic.split_once("> ")?.1,
        None => head.strip_prefix(' ')?,
    };
    // Methods of a trait are documented where the trait is.
    let subject = head
        .split_once(" for ")
        .map_or(head, |(_, subject)| subject);
    Some(identifier(subject))
}

/// The kind and the name of what this line declares, if that is public.
fn declares(line: &str, in_trait: bool) -> Option<(&str, &str)> {
    let text = line.trim_start();
    let mut text = match text.strip_prefix("pub ") {
        Some(rest) => rest,
        None if in_trait && text.starts_with("fn ") => text,
        None => return None,
    };
    for word in ["const ", "async ", "unsafe "] {
        if let Some(rest) = text.strip_prefix(word)
            && rest.contains("fn ")
        {
            text = rest;
        }
    }
    let (kind, rest) = text.split_once(' ')?;
    ["fn", "struct", "enum", "trait"]
        .contains(&kind)
        .then(|| (kind, identifier(rest)))
}

/// The public items of a source file, up to its tests; without what documentation hides.
fn items(text: &str, file: &str) -> Vec<Item> {
    let (mut all, mut doc) = (Vec::new(), Vec::new());
    let (mut owner, mut in_trait) = ("", false);
    let (mut for_tests, mut hidden, mut in_hidden) = (false, false, false);
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        // Their module is the last.
        if for_tests && line.starts_with("mod ") && line.ends_with('{') {
            break;
        }
        if let Some(text) = trimmed.strip_prefix("///") {
            doc.push(text.to_string());
            continue;
        }
        for_tests |= trimmed == "#[cfg(test)]";
        hidden |= for_tests || trimmed == "#[doc(hidden)]";
        // Attributes stand between, in lines of their own or in several.
        if trimmed.starts_with("#[") || [")]", "reason ="].iter().any(|a| trimmed.starts_with(a)) {
            continue;
        }
        // Methods that a macro gives to several types.
        if trimmed.starts_with("impl $") {
            owner = EACH;
        }
        if let Some(subject) = opens(line) {
            (owner, in_trait) = (subject, line.starts_with("pub trait "));
        }
        in_hidden |= hidden && line.starts_with("pub mod ");
        if line == "}" {
            (owner, in_trait, in_hidden) = ("", false, false);
        }
        if let Some((kind, name)) = declares(line, in_trait)
            && !hidden
            && !in_hidden
        {
            let name = match kind {
                "fn" if !owner.is_empty() => format!("{owner}::{name}"),
                _ => name.to_string(),
            };
            all.push(Item {
                name,
                file: file.to_string(),
                line: number + 1,
                doc: std::mem::take(&mut doc),
            });
        }
        doc.clear();
        (for_tests, hidden) = (false, false);
    }
    all
}

/// The names in what follows `pub use`.
fn names(paths: &str) -> impl Iterator<Item = &str> {
    let ends = paths.split(['{', '}', ',']);
    ends.filter_map(|path| path.rsplit("::").next().map(str::trim))
}

/// The names that `pub use` re-exports in a module's text.
fn re_exported(text: &str) -> BTreeSet<String> {
    let statements = text
        .split(';')
        .filter_map(|s| s.trim().split_once("pub use "));
    let all = statements.flat_map(|(_, what)| names(what));
    all.map(str::to_string).collect()
}

/// What a module's text re-exports from other crates of this project, by their folders; but for
/// crates as a whole. Names are those that items have there.
fn taken_over(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let statements = text.split(';');
    let found = statements.filter_map(|s| {
        let (_, from) = s.split_once("pub use perimeter_")?;
        from.split_once("::")
    });
    found.flat_map(|(folder, paths)| {
        let there = names(paths).map(|n| n.split(" as ").next().unwrap_or(n));
        there.filter(|n| !n.is_empty()).map(move |n| (folder, n))
    })
}

/// The items that the library at `by` takes over by name from the others.
fn items_taken_over(crates: &Path, by: &Path) -> Vec<Item> {
    let mut files = Vec::new();
    sources(by, &mut files);
    let mut wanted = BTreeMap::<String, BTreeSet<String>>::new();
    for path in files {
        for (folder, name) in taken_over(&read(&path)) {
            let names = wanted.entry(folder.into()).or_default();
            names.insert(name.into());
        }
    }
    let mut all = Vec::new();
    for (folder, names) in wanted {
        let src = crates.join(&folder).join("src");
        let mut files = Vec::new();
        sources(&src, &mut files);
        files.sort();
        for path in files {
            let inside = path.strip_prefix(crates).unwrap().display().to_string();
            let found = items(&read(&path), &inside);
            let is_wanted = |i: &Item| {
                let of_seam = i.name.contains("::") && SEAM.contains(&i.owner());
                names.contains(i.owner()) && !of_seam
            };
            all.extend(found.into_iter().filter(is_wanted));
        }
    }
    all
}

/// The modules that a module's text declares public.
fn public_modules(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|l| l.strip_prefix("pub mod "));
    lines.map(|l| identifier(l).to_string()).collect()
}

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The files of a library's public modules, and of the public modules of those.
fn public_files(src: &Path) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    let mut folders = vec![(src.to_path_buf(), read(&src.join("lib.rs")))];
    while let Some((folder, text)) = folders.pop() {
        for module in public_modules(&text) {
            let inner = folder.join(&module);
            let file = [inner.with_extension("rs"), inner.join("mod.rs")];
            // A module that is declared in place has no file.
            if let Some(file) = file.into_iter().find(|f| f.exists()) {
                folders.push((inner, read(&file)));
                files.insert(file);
            }
        }
    }
    files
}

/// The items of the library at `src` that its users can name.
fn public_items(src: &Path) -> Vec<Item> {
    let mut files = Vec::new();
    sources(src, &mut files);
    files.sort();
    let public = public_files(src);
    // With the folder that the name stands for an item of.
    let of = |names: BTreeSet<String>, folder: &Path| {
        let folder = folder.to_path_buf();
        names.into_iter().map(move |name| (folder.clone(), name))
    };
    let root = re_exported(&read(&src.join("lib.rs")));
    let mut exported: BTreeSet<_> = of(root, src).collect();
    exported.insert((src.to_path_buf(), EACH.to_string()));
    let mut all = Vec::new();
    for path in &files {
        let text = read(path);
        let inside = path.strip_prefix(src).unwrap();
        let found = items(&text, &inside.display().to_string());
        // What is in a public module's own file can be named there.
        if public.contains(path) {
            let owners = found.iter().map(|i| i.owner().to_string()).collect();
            exported.extend(of(owners, path));
            let folder = match path.ends_with("mod.rs") {
                true => path.parent().unwrap().to_path_buf(),
                false => path.with_extension(""),
            };
            exported.extend(of(re_exported(&text), &folder));
        }
        all.extend(found.into_iter().map(|i| (path, i)));
    }
    let known = |path: &Path, owner: &str| {
        let mut within = path.ancestors();
        within.any(|f| exported.contains(&(f.to_path_buf(), owner.to_string())))
    };
    all.retain(|(path, i)| known(path, i.owner()));
    all.into_iter().map(|(_, i)| i).collect()
}

/// The names of the items that have examples.
fn shown(items: &[Item]) -> BTreeSet<String> {
    let with = items.iter().filter(|i| i.has_example());
    with.map(|i| i.name.clone()).collect()
}

/// The items that are nowhere shown in use, by themselves or by one of those that are `shown`.
fn unshown(items: &[Item], shown: &BTreeSet<String>) -> Vec<String> {
    let is_shown = |link: &String| {
        let of_each = link.split_once("::").map(|(_, m)| format!("{EACH}::{m}"));
        shown.contains(link) || of_each.is_some_and(|l| shown.contains(&l))
    };
    items
        .iter()
        .filter(|i| !i.has_example() && !i.links().iter().any(is_shown))
        .map(Item::place)
        .collect()
}

/// The items that have no example of their own, and that none of their type's uses.
fn unused(items: &[Item]) -> Vec<String> {
    let by_type = |i: &Item| {
        let Some((owner, method)) = i.name.split_once("::") else {
            return false;
        };
        let types = || items.iter().filter(|t| t.name == owner);
        // Of several types of one name it is the one in the same file.
        let here = types().any(|t| t.file == i.file);
        types().any(|t| (!here || t.file == i.file) && t.uses(method))
    };
    let bad = items.iter().filter(|i| !i.has_example() && !by_type(i));
    bad.map(Item::place).collect()
}

/// These are among the items.
fn among(items: &[Item], known: &[&str]) {
    let names: BTreeSet<&str> = items.iter().map(|i| i.name.as_str()).collect();
    for known in known {
        assert!(names.contains(known), "{known} is not among {names:?}");
    }
}

/// There are none of them.
fn none(bad: &[String], what: &str) {
    assert!(bad.is_empty(), "{what}:\n{}", bad.join("\n"));
}

#[test]
fn every_item_of_the_facade_is_shown_in_use() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let facade = public_items(&crates.join("perimeter/src"));
    assert!(facade.len() > 250, "those are not all: {}", facade.len());
    // Types and methods, inherent or a trait's; in private modules and in public ones.
    let known = [
        "Stack",
        "Stack::listen",
        "Stack::send_frame",
        "Source::source",
        "Client::trace",
        "watch",
    ];
    among(&facade, &known);
    let nowhere = "neither an example of its own nor used by one of its type";
    none(&unused(&facade), nowhere);

    let tokio = public_items(&crates.join("tokio/src"));
    assert!(tokio.len() > 190, "those are not all: {}", tokio.len());
    let by_itself = shown(&facade);
    let theirs = by_itself.iter().map(|name| format!("perimeter::{name}"));
    let all = shown(&tokio).into_iter().chain(theirs).collect();
    let known = [
        "Net::connect",
        "$::readable",
        "UdpSocket",
        "Gateway::run",
        "Rules::push",
        "Abort::abort",
    ];
    among(&tokio, &known);
    let nowhere = "neither an example nor a link to an item that has one";
    none(&unshown(&tokio, &all), nowhere);
}

#[test]
fn what_the_facade_takes_over_by_name_is_shown_in_use() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let all = items_taken_over(&crates, &crates.join("perimeter/src"));
    assert!(all.len() > 100, "those are not all: {}", all.len());
    let known = [
        "Cidr::contains",
        "Config",
        "Keepalive",
        "LockClass::guards",
        "OrgSpec::recommended",
        "Resolver::lookup",
        "Virtual::run",
        "families",
    ];
    among(&all, &known);
    let nowhere = "neither an example of its own nor used by one of its type";
    none(&unused(&all), nowhere);
}

#[test]
fn names_that_are_taken_over_are_those_of_the_other_crate() {
    let text = "\
pub use perimeter_tcp as tcp;
use perimeter_tcp::Tcb;
pub use perimeter_tcp::{Config as TcpConfig, Keepalive};
pub use perimeter_stack::net::Cidr;
pub use own::Thing;
";
    let all: Vec<_> = taken_over(text).collect();
    let expected = [("tcp", "Config"), ("tcp", "Keepalive"), ("stack", "Cidr")];
    assert_eq!(all, expected);
}

#[test]
fn what_is_not_shown_is_named() {
    let text = "\
/// A thing, see [`Thing::used`].
#[derive(Debug)]
pub struct Thing;

impl Thing {
    /// Shown.
    ///
    /// ```
    /// let thing = Thing::used();
    /// ```
    #[must_use]
    pub fn used() -> Thing {
        Thing
    }

    /// Linked to what is shown: [as there](Thing), [`used`](Self::used).
    pub const fn linked(&self) {}

    /// Linked to what is not: [`Thing::linked`].
    pub async fn bare(&self) {}

    /// Private.
    fn private(&self) {}

    /// Not documented.
    #[doc(hidden)]
    pub fn hidden(&self) {}
}

#[cfg(test)]
mod more;

/// Nor is this.
#[doc(hidden)]
pub mod within {
    pub fn anything() {}
}

/// No documentation to speak of.
pub fn alone() {}

#[cfg(test)]
mod tests {
    pub fn helper() {}
}
";
    let found = items(text, "thing.rs");
    let names: Vec<&str> = found.iter().map(|i| i.name.as_str()).collect();
    let all = [
        "Thing",
        "Thing::used",
        "Thing::linked",
        "Thing::bare",
        "alone",
    ];
    assert_eq!(names, all);
    let bad = ["thing.rs:20: Thing::bare", "thing.rs:40: alone"];
    assert_eq!(unshown(&found, &shown(&found)), bad);
}

#[test]
fn an_example_of_a_type_shows_the_methods_that_it_uses() {
    let one = "\
/// A thing.
///
/// ```
/// // Not `unused`.
/// thing.used();
/// ```
pub struct Thing;

impl Thing {
    /// See [`Thing`].
    pub fn used(&self) {}

    /// See [`Thing`].
    pub fn unused(&self) {}
}
";
    // Another thing, and more of the first.
    let two = "\
/// ```
/// thing.unused();
/// ```
pub struct Thing;

impl Thing {
    pub fn used(&self) {}
}
";
    let three = "\
impl Thing {
    pub fn used(&self) {}
}
";
    let files = [(one, "one.rs"), (two, "two.rs"), (three, "three.rs")];
    let found: Vec<Item> = files.iter().flat_map(|(t, f)| items(t, f)).collect();
    let bad = ["one.rs:14: Thing::unused", "two.rs:7: Thing::used"];
    assert_eq!(unused(&found), bad);
}
