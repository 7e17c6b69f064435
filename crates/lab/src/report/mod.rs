//! Reports of a folder's runs: one self-contained HTML page, Markdown and CSV. Nothing is run, and
//! every number and every conclusion is computed from the rows.

pub mod analysis;
mod answer;
mod apart;
mod boxes;
pub mod choice;
pub mod compare;
mod csv;
mod curve;
mod experiment;
mod figures;
mod frame;
mod html;
pub mod judge;
pub mod lanes;
mod markdown;
mod material;
mod more_cores;
mod names;
mod predicted;
mod stacked;
pub mod svg;
mod table;
mod words;

use crate::{
    Error,
    predict::Predictions,
    record::{Folder, Stored},
};
use apart::Apart;
use material::Material;
use std::path::Path;

/// Name of the page in its folder.
pub const HTML: &str = "report.html";
const MARKDOWN: &str = "report.md";
const CSV: &str = "report.csv";

/// A report in all its forms.
#[derive(Debug, Clone)]
pub struct Rendered {
    /// The page.
    pub html: String,
    /// For a terminal or a pull request.
    pub markdown: String,
    /// A line for each point and metric.
    pub csv: String,
    /// What it comes to, in a few lines for a terminal.
    pub answer: String,
}

/// Makes the report of what a folder holds.
pub fn render(stored: &Stored) -> Rendered {
    render_with(stored, Vec::new())
}

/// As [`render`], with what is predicted for other machines.
pub fn render_with(stored: &Stored, predicted: Vec<Predictions>) -> Rendered {
    let results = analysis::results(stored);
    let choices = choice::choices(&results);
    let material = Material {
        stored,
        results,
        choices,
        apart: Apart::of(&stored.rows),
        predicted,
    };
    Rendered {
        html: html::page(&material).into_string(),
        markdown: markdown::render(&material),
        csv: csv::render(&material),
        answer: answer::lines(&material),
    }
}

/// Makes the report, with the predictions that are in `folder`, and puts it there, in place of one that is there; of one that tells of
/// more runs only where that is meant to be `lost`.
///
/// # Errors
/// [`Error::Input`] if the one that is there tells of more runs; what the system says.
pub fn write(folder: &Path, stored: &Stored, lost: bool) -> std::result::Result<Rendered, Error> {
    let rendered = render_with(stored, Predictions::of_folder(folder)?);
    let file = folder.join(CSV);
    let there = std::fs::read_to_string(&file).map_or(0, |text| csv::runs(&text));
    let here = csv::runs(&rendered.csv);
    if here < there && !lost {
        return Err(Error::Input(format!(
            "{}: the report tells of {there} runs and the record of {here}: runs are missing, and \
             the report is left as it is; `perimeter lab report --replace {}` makes one of what \
             is left",
            file.display(),
            folder.display()
        )));
    }
    Folder::put(folder, HTML, &rendered.html)?;
    Folder::put(folder, MARKDOWN, &rendered.markdown)?;
    Folder::put(folder, CSV, &rendered.csv)?;
    Ok(rendered)
}

#[cfg(test)]
mod tests;
