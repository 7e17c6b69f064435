//! What `perimeter lab predict --json` writes, and reports read.

use super::{figure::Figure, machine::Machine, validate::Validation};
use crate::{Error, bench::report::Build, files, record::Folder};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path};

/// Name and version of the format.
pub const SCHEMA: &str = "perimeter-predict/1";

/// Most bytes of a file.
const LONGEST: u64 = 64 << 20;

/// What a file's name in a recording's folder begins with, before the machine's, and ends with.
const NAME: [&str; 2] = ["predicted-", ".json"];

/// Plans, predicted for a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Predictions {
    /// [`SCHEMA`].
    pub schema: String,
    /// The program.
    pub build: Build,
    /// The machine.
    pub machine: Machine,
    /// Numbers of cores, ascending.
    pub cores: Vec<usize>,
    /// Runs of each point with the table as it is.
    pub seeds: u64,
    /// The table, held against what was measured.
    pub validation: Validation,
    /// The plans.
    pub figures: Vec<Figure>,
}

impl Predictions {
    /// As JSON, with an end of line.
    ///
    /// # Errors
    /// [`Error::Run`]: there is a number that JSON does not have.
    pub fn text(&self) -> Result<String, Error> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::Run(e.to_string()))?;
        Ok(text + "\n")
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Input`] with what is wrong.
    pub fn read(file: &Path) -> Result<Predictions, Error> {
        let input = |what: String| Error::Input(format!("{}: {what}", file.display()));
        let text = files::read(file, LONGEST, "prediction")?;
        let read: Predictions = serde_json::from_str(&text).map_err(|e| {
            input(format!(
                "not what `perimeter lab predict --json` writes: {e}"
            ))
        })?;
        match read.schema == SCHEMA {
            true => Ok(read),
            false => Err(input(format!("{} is not {SCHEMA}", read.schema))),
        }
    }

    /// Those that a recording's folder has, by the names of their machines.
    ///
    /// # Errors
    /// As [`Predictions::read`], and what the system says.
    pub fn of_folder(folder: &Path) -> Result<Vec<Predictions>, Error> {
        let input = |e: std::io::Error| Error::Input(format!("{}: {e}", folder.display()));
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).map_err(input)? {
            let path = entry.map_err(input)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(NAME[0]) && name.ends_with(NAME[1]) {
                files.push(path);
            }
        }
        files.sort();
        files.iter().map(|file| Predictions::read(file)).collect()
    }

    /// Puts them into a recording's folder, in place of those for the same machine.
    ///
    /// # Errors
    /// What the system says.
    pub fn keep(&self, folder: &Path) -> Result<(), Error> {
        let name = format!("{}{}{}", NAME[0], self.machine.name, NAME[1]);
        Folder::put(folder, &name, &self.text()?)
    }

    /// What is predicted of a plan.
    pub fn figure(&self, plan: &str) -> Option<&Figure> {
        self.figures.iter().find(|f| f.plan == plan)
    }
}
