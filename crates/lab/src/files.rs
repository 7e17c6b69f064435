//! Files that a user names.

use crate::Error;
use std::{fs, path::Path};

/// Reads a file that is a `what`, which has no more than `most` bytes.
///
/// # Errors
/// [`Error::Input`]: it is longer, or what the system says.
pub(crate) fn read(path: &Path, most: u64, what: &str) -> Result<String, Error> {
    let input = |wrong: String| Error::Input(format!("{}: {wrong}", path.display()));
    let size = path.metadata().map_err(|e| input(e.to_string()))?.len();
    if size > most {
        return Err(input(format!("{size} bytes are no {what}")));
    }
    fs::read_to_string(path).map_err(|e| input(e.to_string()))
}
