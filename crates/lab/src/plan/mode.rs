//! How much time plans may take.

use std::fmt;

/// How much time a plan may take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A look: short runs, few values.
    Quick,
    /// The usual.
    #[default]
    Normal,
    /// The paper's durations.
    Full,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Quick => "quick",
            Mode::Normal => "normal",
            Mode::Full => "full",
        })
    }
}
