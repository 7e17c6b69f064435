//! What is printed and written.

use perimeter_measure::{Error, host};
use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

/// Prints to standard output; a reader that has gone away is no error.
///
/// # Errors
/// It can't be written to.
pub fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Error::Io {
            context: "writing to standard output".into(),
            source: e,
        }),
        _ => Ok(()),
    }
}

/// Finds out before a long run whether its result can be written, without writing anything.
///
/// # Errors
/// It can't, and why, by the name of the `option` that asked for it.
pub fn check_writable(option: &str, path: &Path) -> Result<(), Error> {
    let input = |why: String| Err(Error::Input(format!("{option} {}: {why}", path.display())));
    if path.as_os_str().is_empty() {
        return input("an empty file name".into());
    }
    if path.is_dir() {
        return input("is a directory".into());
    }
    if path.exists() {
        return match fs::OpenOptions::new().append(true).open(path) {
            Ok(_) => Ok(()),
            Err(e) => input(e.to_string()),
        };
    }
    match directory_of(path).metadata() {
        Ok(d) if !d.is_dir() => input("its parent is no directory".into()),
        Ok(_) if !host::may_create_in(directory_of(path)) => {
            input("no permission to create files in its directory".into())
        }
        Ok(_) => Ok(()),
        Err(e) => input(format!("its directory: {e}")),
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Writes a file such that nobody ever sees a part of it.
///
/// # Errors
/// It can't be written.
pub fn write_whole(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |source| Error::Io {
        context: format!("writing {}", path.display()),
        source,
    };
    // A device or a pipe can't be replaced by renaming.
    if path.exists() && !path.is_file() {
        return fs::write(path, text).map_err(failed);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = directory_of(path).join(format!(".{name}.{}", std::process::id()));
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    written.map_err(|e| {
        let _ = fs::remove_file(&part);
        failed(e)
    })
}
