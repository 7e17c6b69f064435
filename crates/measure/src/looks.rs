//! How tables, figures and the live view show what runs: an organization as its family has
//! registered itself, the host's sockets and other stacks as listed here.

use crate::backends;
use perimeter::families::{self, Colour, Look, Marker};
use std::fmt::Write as _;

/// What isn't ours has one colour, and markers of its own.
const OTHERS: Colour = Colour {
    light: "#7a828a",
    dark: "#8f99a3",
    terminal: Some(245),
};

/// What nobody has registered, in style sheets.
const UNKNOWN: &str = "unknown";

/// The look of what runs under that name, with what style sheets call its family.
pub fn of(organization: &str) -> (&'static str, Look) {
    if let Some(f) = families::family(organization) {
        return (f.name, f.look);
    }
    let first = organization.split(':').next().unwrap_or_default();
    let other = others().find(|(name, _)| *name == first);
    other.unwrap_or((UNKNOWN, Look::UNKNOWN))
}

/// The host's sockets, the floor without a stack, and other stacks.
fn others() -> impl Iterator<Item = (&'static str, Look)> {
    let look = |marker| Look {
        colour: OTHERS,
        marker,
    };
    let host = ["linux", "null"].map(|name| (name, look(Marker::Cross)));
    let others = backends::OTHERS.map(|s| (s.name, look(s.marker)));
    host.into_iter().chain(others)
}

/// The colours as a style sheet: `--NAME` on either ground, and a class `c-NAME` that makes it
/// `--c`.
pub fn style() -> String {
    let mine = families::families().filter(|f| !f.variants.is_empty());
    let all: Vec<_> = mine
        .map(|f| (f.name, f.look))
        .chain(others())
        .chain([(UNKNOWN, Look::UNKNOWN)])
        .collect();
    let mut out = String::new();
    let mut palette = |open: &str, shade: fn(&Colour) -> &'static str, close: &str| {
        out += open;
        for (name, look) in &all {
            let _ = write!(out, " --{name}: {};", shade(&look.colour));
        }
        out += close;
    };
    palette(":root {", |c| c.light, " }\n");
    palette(
        "@media (prefers-color-scheme: dark) { :root {",
        |c| c.dark,
        " } }\n",
    );
    for (name, _) in &all {
        let _ = writeln!(out, ".c-{name} {{ --c: var(--{name}); }}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_runs_looks_like_nothing_else() {
        let mine = families::families().filter(|f| !f.variants.is_empty());
        let names = mine.map(|f| f.name);
        let names: Vec<_> = names
            .chain(["linux", "smoltcp", "gvisor", "lwip"])
            .collect();
        for (i, a) in names.iter().enumerate() {
            let (class, look) = of(&format!("{a}:4"));
            assert_eq!(class, *a);
            assert_ne!(look, Look::UNKNOWN);
            assert!(names[..i].iter().all(|b| of(b).1 != look), "{a}");
            assert!(style().contains(&format!(".c-{a} ")), "{a}");
        }
    }

    #[test]
    fn what_nobody_has_registered_is_not_drawn_as_something_else() {
        assert_eq!(of("novel:3"), (UNKNOWN, Look::UNKNOWN));
        assert_eq!(of("upp"), (UNKNOWN, Look::UNKNOWN));
    }
}
