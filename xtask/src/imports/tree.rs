//! The modules of a crate, and where a path leads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::Arrow;
use super::text::{self, Import, Module, Names};

/// Steps after which a path is given up: `use`s that name each other.
const MOST: usize = 32;

/// A module, with the file that its text is in.
#[derive(Default)]
struct Node {
    file: String,
    text: Module,
}

/// A crate's modules by their paths; the root's is empty.
#[derive(Default)]
pub struct Tree {
    nodes: BTreeMap<Names, Node>,
}

/// Reads a crate's source folder.
///
/// # Errors
/// A file that can't be read.
pub fn read(folder: &Path) -> Result<Tree> {
    let load = |file: &str| {
        let path = folder.join(file);
        path.is_file()
            .then(|| fs::read_to_string(&path).with_context(|| path.display().to_string()))
            .transpose()
    };
    let root = ["lib.rs", "main.rs"];
    let root = root.into_iter().find(|f| folder.join(f).is_file());
    let mut tree = Tree::default();
    tree.add_file(Vec::new(), root.unwrap_or("lib.rs"), &load)?;
    Ok(tree)
}

impl Tree {
    /// Adds a file's module and those below it. `load` gives a file's text, or `None` if there is
    /// no such file.
    pub fn add_file(
        &mut self,
        path: Names,
        file: &str,
        load: &dyn Fn(&str) -> Result<Option<String>>,
    ) -> Result<()> {
        let text = load(file)?.with_context(|| format!("no file {file}"))?;
        self.add(path, file, text::read(&text), load)
    }

    fn add(
        &mut self,
        path: Names,
        file: &str,
        mut text: Module,
        load: &dyn Fn(&str) -> Result<Option<String>>,
    ) -> Result<()> {
        let below = |name: &str| path.iter().cloned().chain([name.to_string()]).collect();
        for (name, inside) in core::mem::take(&mut text.inline) {
            self.add(below(&name), file, inside, load)?;
        }
        for name in &text.files {
            let path: Names = below(name);
            let stem = path.join("/");
            let two = [format!("{stem}.rs"), format!("{stem}/mod.rs")];
            let is_there = |f: &&String| load(f).is_ok_and(|text| text.is_some());
            // A file for another system or a generated one may be absent.
            if let Some(file) = two.iter().find(is_there) {
                self.add_file(path, file, load)?;
            }
        }
        let file = file.to_string();
        self.nodes.insert(path, Node { file, text });
        Ok(())
    }

    /// Every arrow between two files.
    pub fn arrows(&self) -> BTreeSet<Arrow> {
        let mut out = BTreeSet::new();
        for (at, node) in &self.nodes {
            for import in &node.text.imports {
                if !self.is_display(at, node, import) {
                    self.point(&mut out, at, node, &import.path);
                }
            }
            for path in &node.text.paths {
                self.point(&mut out, at, node, path);
            }
            for head in &node.text.open {
                self.point_open(&mut out, at, node, head);
            }
        }
        out
    }

    /// Whether an import only shows to others what a module below has.
    fn is_display(&self, at: &[String], node: &Node, import: &Import) -> bool {
        let below = self.module_of(at, &import.path);
        import.public
            && below.is_some_and(|(m, _)| m.len() > at.len() && m.starts_with(at))
            && !node.text.words.contains(&import.name)
    }

    fn point(&self, out: &mut BTreeSet<Arrow>, at: &[String], node: &Node, path: &[String]) {
        let mut files = BTreeSet::new();
        self.trace(at, path, MOST, &mut files);
        for to in files {
            if *to != node.file {
                out.insert((node.file.clone(), to.clone()));
            }
        }
    }

    /// Arrows of a path that a macro completes: to every module of that name that the file names.
    fn point_open(&self, out: &mut BTreeSet<Arrow>, at: &[String], node: &Node, head: &[String]) {
        for word in &node.text.words {
            let path: Names = head.iter().chain([word]).cloned().collect();
            if let Some((module, [])) = self.module_of(at, &path) {
                let to = &self.nodes[&module].file;
                if *to != node.file {
                    out.insert((node.file.clone(), to.clone()));
                }
            }
        }
    }

    /// The module that the head of a path names from `at`, and what of the path is left.
    fn module_of<'p>(&self, at: &[String], path: &'p [String]) -> Option<(Names, &'p [String])> {
        let (mut here, mut rest) = (at.to_vec(), path);
        match path.first()?.as_str() {
            "crate" => {
                here.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {}
            name => {
                here.push(name.into());
                if !self.nodes.contains_key(&here) {
                    return None;
                }
                rest = &rest[1..];
            }
        }
        while let Some((name, more)) = rest.split_first() {
            if name == "super" {
                here.pop();
            } else {
                here.push(name.clone());
                if !self.nodes.contains_key(&here) {
                    here.pop();
                    break;
                }
            }
            rest = more;
        }
        Some((here, rest))
    }

    /// The files that hold what `path` names. `left` bounds the steps.
    fn trace<'a>(
        &'a self,
        at: &[String],
        path: &[String],
        left: usize,
        out: &mut BTreeSet<&'a String>,
    ) {
        let Some((module, rest)) = self.module_of(at, path) else {
            // By a name that a `use` has brought here, or from another crate.
            let imports = &self.nodes[at].text.imports;
            let brought = imports.iter().find(|i| i.name == path[0] && i.path != path);
            if let Some(import) = brought.filter(|_| left > 0) {
                let on: Names = import.path.iter().chain(&path[1..]).cloned().collect();
                self.trace(at, &on, left - 1, out);
            }
            return;
        };
        let node = &self.nodes[&module];
        let Some((name, more)) = rest.split_first().filter(|_| left > 0) else {
            // A module as a whole: the text says by its name what is used of it.
            return;
        };
        if name == "*" {
            out.insert(&node.file);
            return;
        }
        let own = node.text.imports.iter().find(|i| i.name == *name);
        if let Some(import) = own {
            let on: Names = import.path.iter().chain(more).cloned().collect();
            return self.trace(&module, &on, left - 1, out);
        }
        // A glob may have brought it, unless the module defines it.
        if !node.text.words.contains(name) {
            for glob in node.text.imports.iter().filter(|i| i.name == "*") {
                let head = &glob.path[..glob.path.len() - 1];
                let on: Names = head.iter().chain(rest).cloned().collect();
                self.trace(&module, &on, left - 1, out);
            }
            if !out.is_empty() {
                return;
            }
        }
        out.insert(&node.file);
    }
}
