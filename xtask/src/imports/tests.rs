use std::collections::HashMap;

use super::text::{self, Module};
use super::tree::Tree;
use super::*;

/// The arrows of a crate that consists of these files.
fn arrows(files: &[(&str, &str)]) -> BTreeSet<Arrow> {
    let files: HashMap<&str, &str> = files.iter().copied().collect();
    let load = |file: &str| Ok(files.get(file).map(ToString::to_string));
    let mut tree = Tree::default();
    tree.add_file(Vec::new(), "lib.rs", &load).unwrap();
    tree.arrows()
}

/// Every arrow as `from>to`, without `.rs`.
fn drawn(files: &[(&str, &str)]) -> Vec<String> {
    let short = |file: &str| file.trim_end_matches(".rs").to_string();
    let arrows = arrows(files);
    let all = arrows.iter();
    all.map(|(a, b)| format!("{}>{}", short(a), short(b)))
        .collect()
}

#[test]
fn imports_run_one_way() {
    for name in CRATES {
        let arrows = tree::read(&sources(name)).unwrap().arrows();
        assert!(arrows.len() > 20, "{name}: only {} arrows", arrows.len());
        let inside: BTreeSet<Arrow> = circles(&arrows)
            .iter()
            .flat_map(|c| within(&arrows, c))
            .collect();
        assert!(
            inside.is_empty(),
            "{name}: {} arrows in circles:{}",
            inside.len(),
            listed(&inside)
        );
    }
}

#[test]
fn rooms_are_in_order() {
    for (name, least) in [("measure", 20), ("lab", 12)] {
        let rooms = rooms(&tree::read(&sources(name)).unwrap().arrows());
        assert!(rooms.len() > least, "{name}: only {} arrows", rooms.len());
        let circles = circles(&rooms);
        let inside: Vec<_> = circles.iter().map(|c| listed(&within(&rooms, c))).collect();
        assert!(
            inside.is_empty(),
            "{name}: rooms in circles: {}",
            inside.concat()
        );
    }
}

#[test]
fn a_circle_is_found() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::{b::{self, B}, c::C}; struct A;"),
        ("b.rs", "struct B; fn b() { crate::c::c() }"),
        ("c.rs", "struct C; fn c(_: super::a::A) {}"),
        ("d.rs", "use crate::a::A;"),
    ];
    let arrows = arrows(&files);
    let found = circles(&arrows);
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].iter().collect::<Vec<_>>(),
        ["a.rs", "b.rs", "c.rs"]
    );
    assert_eq!(within(&arrows, &found[0]).len(), 4);
    let folders = [("a/b.rs", "c.rs"), ("c.rs", "a/d.rs"), ("a/b.rs", "a/d.rs")];
    let folders = folders.map(|(from, to)| (from.to_string(), to.to_string()));
    let folders = BTreeSet::from(folders);
    assert_eq!(circles(&folders), []);
    assert_eq!(circles(&rooms(&folders)).len(), 1);
    // Without the way back there is none.
    let mut files = files;
    files[3].1 = "struct C;";
    assert_eq!(circles(&super::tests::arrows(&files)), []);
}

#[test]
fn parents_and_children() {
    let lib = ("lib.rs", "pub mod a;");
    let child = ("a/b.rs", "use super::One; pub struct B;");
    // `mod x;` and a re-export that the file itself does not use are no arrows.
    let shown = ("a/mod.rs", "mod b; pub use b::B; pub struct One;");
    assert_eq!(drawn(&[lib, child, shown]), ["a/b>a/mod"]);
    let used = ("a/mod.rs", "mod b; pub use b::B; pub struct One(B);");
    assert_eq!(drawn(&[lib, child, used]), ["a/b>a/mod", "a/mod>a/b"]);
    let named = ("a/mod.rs", "mod b; pub struct One; fn f() -> b::B {}");
    assert_eq!(drawn(&[lib, child, named]).len(), 2);
}

#[test]
fn re_exports_hide_nothing() {
    let lib = ("lib.rs", "mod a; mod b; pub use a::Error; pub use b::*;");
    let a = ("a.rs", "pub struct Error;");
    let b = ("b.rs", "pub struct Deep;");
    let from = |text| {
        let c = ("c.rs", text);
        let lib = (
            "lib.rs",
            "mod a; mod b; mod c; pub use a::Error; pub use b::*;",
        );
        drawn(&[lib, a, b, c])
    };
    assert!(drawn(&[lib, a, b]).is_empty());
    assert_eq!(from("use crate::Error;"), ["c>a"]);
    assert_eq!(from("use crate::Error as E;"), ["c>a"]);
    assert_eq!(from("fn f(_: crate::Deep) {}"), ["c>b"]);
    assert_eq!(from("use crate::b; fn f(_: b::Deep) {}"), ["c>b"]);
}

#[test]
fn text_that_is_no_import() {
    let nothing = r##"
        // use crate::a::A;
        /* crate::a::A /* nested */ crate::a::A */
        pub(in crate::a) fn f<'a>(_: &'a str, _: char) {}
        const S: &str = "crate::a::A \" crate::a::A";
        const R: &str = r#"crate::a::A " crate::a::A"#;
        const C: [char; 2] = ['"', '\''];
        #[cfg(test)]
        #[allow(dead_code)]
        mod tests { use crate::a::A; mod more { use crate::a::A; } }
        #[cfg(test)]
        mod tests;
        #[cfg(all(test, unix))]
        fn g() { let _ = crate::a::A; }
    "##;
    let lib = ("lib.rs", "mod a; mod b;");
    let a = ("a.rs", "pub struct A;");
    let tests = ("b/tests.rs", "use crate::a::A;");
    assert!(drawn(&[lib, a, ("b.rs", nothing), tests]).is_empty());
    let after = format!("{nothing} use crate::a::A;");
    assert_eq!(drawn(&[lib, a, ("b.rs", &after), tests]), ["b>a"]);
    let testing = "#[cfg(feature = \"testing\")] use crate::a::A;";
    assert_eq!(drawn(&[lib, a, ("b.rs", testing)]), ["b>a"]);
}

#[test]
fn modules_in_text_and_macros() {
    let lib = ("lib.rs", "mod a; mod b;");
    let a = ("a.rs", "pub struct A;");
    let inline = "pub mod inner { use super::super::a::A; }";
    assert_eq!(drawn(&[lib, a, ("b.rs", inline)]), ["b>a"]);
    let macros = "macro_rules! all { ($($m:ident)*) => { $(crate::$m::open();)* } } all! { a }";
    assert_eq!(drawn(&[lib, a, ("b.rs", macros)]), ["b>a"]);
    let read = text::read("use a::b as c; pub use d::{self, e};");
    let names: Vec<&str> = read.imports.iter().map(|i| &*i.name).collect();
    assert_eq!(names, ["c", "d", "e"]);
    assert_eq!(read.files, Module::default().files);
}
