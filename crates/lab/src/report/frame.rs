//! What all pages have around them: the style sheet, a head line, and rules that hide curves.

use super::svg::STYLE;
use crate::looks;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::fmt::Write as _;

/// A page that needs nothing else. `curves` is how many the legend with most of them has.
pub(super) fn page(title: &str, curves: usize, header: Markup, main: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style {
                    (PreEscaped(STYLE)) (PreEscaped(looks::style())) (PreEscaped(hiding(curves)))
                }
            }
            body {
                header { h1 { (title) } (header) }
                main { (main) }
            }
        }
    }
}

/// Rules by which the boxes of a legend hide curves, without a script.
fn hiding(curves: usize) -> String {
    let mut out = String::new();
    for i in 0..curves {
        let _ = writeln!(
            out,
            ".body:has(> .legend .k{i}:not(:checked)) > .row .s{i} {{ display: none; }}"
        );
    }
    out
}
