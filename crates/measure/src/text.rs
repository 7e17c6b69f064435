//! Values that a TOML file writes as text, names that were mistyped, and lines for a terminal.

use serde::{Deserialize, Deserializer, de::Error};
use std::{fmt::Display, str::FromStr};

/// Reads one.
///
/// # Errors
/// What its parser says.
pub fn from_str<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    String::deserialize(d)?.parse().map_err(D::Error::custom)
}

/// The same, for what may be absent.
///
/// # Errors
/// What its parser says.
pub fn optional_from_str<'de, D, T>(d: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    from_str(d).map(Some)
}

/// The lines of 80 columns that hold `text`, all but the first indented, with a line end.
pub fn wrapped(text: &str, indent: usize) -> String {
    let indent = " ".repeat(indent);
    // Names have hyphens: a line does not end within one.
    let options = textwrap::Options::new(80)
        .subsequent_indent(&indent)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(text, options) + "\n"
}

/// How alike a name has to be to be offered in place of another, from 0 to 1.
const ALIKE: f64 = 0.5;

/// The question whether `word` was meant to be one of these, for the end of a message; empty if none
/// is like it.
pub fn did_you_mean<S: AsRef<str>>(word: &str, names: impl IntoIterator<Item = S>) -> String {
    let alike = |name: S| {
        let likeness = strsim::normalized_damerau_levenshtein(word, name.as_ref());
        (likeness >= ALIKE).then_some((likeness, name))
    };
    let best = names.into_iter().filter_map(alike);
    best.max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(String::new(), |(_, name)| {
            format!("; did you mean `{}`?", name.as_ref())
        })
}

#[cfg(test)]
mod tests {
    use super::did_you_mean;

    #[test]
    fn what_is_alike_is_offered() {
        let names = ["up", "msgp", "connp-l:N", "squeue:N"];
        for (word, offered) in [("msgpp", "msgp"), ("msgq", "msgp"), ("sqeue", "squeue:N")] {
            assert_eq!(
                did_you_mean(word, names),
                format!("; did you mean `{offered}`?")
            );
        }
        assert_eq!(did_you_mean("frobnicate", names), "");
        assert_eq!(did_you_mean("", names), "");
    }
}
