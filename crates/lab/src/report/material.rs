//! What all forms of a report are made from.

use super::{analysis::Result, apart::Apart, choice::Choice};
use crate::{predict::Predictions, record::Stored};

/// What all forms are made from.
pub(super) struct Material<'a> {
    pub stored: &'a Stored,
    pub results: Vec<Result>,
    pub choices: Vec<Choice>,
    pub apart: Option<Apart>,
    pub predicted: Vec<Predictions>,
}
