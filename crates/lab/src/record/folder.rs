//! The folder of a series of runs on the disk.

use super::{Header, Row, SCHEMA};
use crate::{
    Error,
    error::Context as _,
    host::Host,
    organizations::Organization,
    plan::{Mode, Plan},
    trace::{self, Trace},
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write},
    path::{Path, PathBuf},
};

const HEADER: &str = "lab.json";
const PLANS: &str = "plans";
const ROWS: &str = "runs.jsonl";
const PACKED: &str = "runs.jsonl.gz";

/// What a compressed record may unpack to, bytes: a thousand times the longest that there is.
const UNPACKED: u64 = 4 << 30;
const SENDS: &str = "sends.json";

/// What a folder holds.
#[derive(Debug, Clone)]
pub struct Stored {
    /// What it was made for.
    pub header: Header,
    /// Its plans, in order.
    pub plans: Vec<Plan>,
    /// Its rows, in the order in which they were made.
    pub rows: Vec<Row>,
    /// Recorded sends, where a plan asks for them.
    pub sends: Vec<Trace>,
    /// Remarks on what could not be read.
    pub notes: Vec<String>,
}

/// An open folder, which this process alone writes to.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    rows: File,
    length: u64,
}

fn input<T>(path: &Path, what: impl std::fmt::Display) -> Result<T, Error> {
    Err(Error::Input(format!("{}: {what}", path.display())))
}

impl Folder {
    /// Makes a folder for new runs. One that exists must be empty.
    ///
    /// # Errors
    /// [`Error::Input`] if there is something at `path` or it can't be made; [`Error::Io`] if it
    /// can't be written to.
    pub fn create(path: &Path, header: &Header, plans: &[Plan]) -> Result<Folder, Error> {
        if path.symlink_metadata().is_ok() {
            let empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
            if !empty {
                return input(
                    path,
                    "already exists; use --resume to continue it, or another --out for a new folder",
                );
            }
        }
        let context = || format!("making {}", path.display());
        if let Err(e) = fs::create_dir_all(path.join(PLANS)) {
            return input(path, format!("can't be made: {e}"));
        }
        for plan in plans {
            let file = path.join(PLANS).join(format!("{}.toml", plan.name));
            write_whole(&file, plan.text_here().as_bytes())?;
        }
        let rows = open_rows(path)?;
        // Last, as it is what makes a folder one of runs.
        let mut text = serde_json::to_string_pretty(header)
            .map_err(io::Error::from)
            .context(context())?;
        text.push('\n');
        write_whole(&path.join(HEADER), text.as_bytes())?;
        Ok(Folder {
            path: path.into(),
            rows,
            length: 0,
        })
    }

    /// Opens a folder to go on with its runs; returns what it holds already. A part of a row at
    /// the end, left by a process that was ended, is cut off.
    ///
    /// # Errors
    /// [`Error::Input`] if it is no such folder, is damaged, is in use, or was made on another
    /// machine.
    pub fn resume(path: &Path) -> Result<(Folder, Stored), Error> {
        let stored = read(path)?;
        if let Some(note) = stored.notes.first() {
            return input(path, note);
        }
        let here = Host::read();
        if stored.header.host != here {
            let there = &stored.header.host;
            return input(
                path,
                format!(
                    "was made on another machine ({}, {} cores, {}); a folder holds runs of one",
                    there.cpu, there.cores, there.kernel
                ),
            );
        }
        if !path.join(ROWS).exists() {
            return input(path, format!("{PACKED} is finished; gunzip it to go on"));
        }
        let rows = open_rows(path)?;
        let text = fs::read(path.join(ROWS)).context(format!("reading {}", path.display()))?;
        let length = whole_lines(&text) as u64;
        rows.set_len(length)
            .context(format!("cutting off a part of a row in {}", path.display()))?;
        let folder = Folder {
            path: path.into(),
            rows,
            length,
        };
        Ok((folder, stored))
    }

    /// Records, once, a send under each organization of plans that show them.
    ///
    /// # Errors
    /// A send can't be recorded, or not be written.
    pub fn record_sends(&self, plans: &[Plan]) -> Result<(), Error> {
        let shown = plans.iter().filter(|p| p.order.is_some());
        let series = shown.flat_map(|p| p.series.iter().map(move |s| (p, s)));
        let mut sends: Vec<Trace> = Vec::new();
        for (plan, series) in series {
            let x = plan.values(Mode::Normal).first().copied().unwrap_or(1);
            let Ok(Organization::Ours(org)) = series.organization(x) else {
                continue;
            };
            if !sends.iter().any(|t| t.org == org.to_string()) {
                sends.push(trace::record(&org)?);
            }
        }
        if sends.is_empty() || self.path.join(SENDS).exists() {
            return Ok(());
        }
        let text = serde_json::to_string(&sends)
            .map_err(io::Error::from)
            .context(format!("making {SENDS}"))?;
        Folder::put(&self.path, SENDS, &(text + "\n"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a row and brings it to the disk.
    ///
    /// # Errors
    /// What the system says, for example that the disk is full. No part of the row is left then,
    /// and the rows before it are whole.
    pub fn append(&mut self, row: &Row) -> Result<(), Error> {
        let written = serde_json::to_vec(row)
            .map_err(io::Error::from)
            .and_then(|mut line| {
                line.push(b'\n');
                self.rows.write_all(&line)?;
                self.rows.sync_data()?;
                Ok(line.len() as u64)
            });
        match written {
            Ok(n) => {
                self.length += n;
                Ok(())
            }
            Err(e) => {
                // If this fails too, the next start cuts the part off.
                let _ = self.rows.set_len(self.length);
                Err(e).context(format!(
                    "recording a run in {} (what was recorded before is whole; --resume goes on)",
                    self.path.display()
                ))
            }
        }
    }

    /// Writes a file of the folder such that nobody ever sees a part of it.
    ///
    /// # Errors
    /// What the system says.
    pub fn put(path: &Path, name: &str, text: &str) -> Result<(), Error> {
        write_whole(&path.join(name), text.as_bytes())
    }
}

impl Drop for Folder {
    /// Gives the lock up. Closing the file would not do while a process that another thread is just
    /// starting still has a copy of its descriptor.
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{FlockOperation, flock};
            // It goes with the last descriptor in any case.
            let _ = flock(&self.rows, FlockOperation::Unlock);
        }
    }
}

fn open_rows(path: &Path) -> Result<File, Error> {
    let file = path.join(ROWS);
    let rows = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)
        .context(format!("opening {}", file.display()))?;
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FlockOperation, flock};
        if flock(&rows, FlockOperation::NonBlockingLockExclusive).is_err() {
            return input(path, "another process is writing to it");
        }
    }
    Ok(rows)
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let write = || {
        let mut file = File::create(&part)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(&part, path)
    };
    write()
        .inspect_err(|_| {
            let _ = fs::remove_file(&part);
        })
        .context(format!("writing {}", path.display()))
}

/// Length of the lines that are whole.
fn whole_lines(text: &[u8]) -> usize {
    text.iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1)
}

/// The record of a folder, unpacked, and the name of its file.
fn record(path: &Path) -> Result<(&'static str, Vec<u8>), Error> {
    let file = path.join(ROWS);
    match fs::read(&file) {
        Ok(text) => return Ok((ROWS, text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return input(&file, e),
    }
    let packed = path.join(PACKED);
    let file = match File::open(&packed) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return input(
                path,
                format!("the record is missing (neither {ROWS} nor {PACKED})"),
            );
        }
        Err(e) => return input(&packed, e),
    };
    let mut text = Vec::new();
    let mut unpacked = flate2::read::MultiGzDecoder::new(file).take(UNPACKED);
    match unpacked.read_to_end(&mut text) {
        Ok(n) if n as u64 == UNPACKED => input(&packed, "unpacks to 4 GiB or more"),
        Ok(_) => Ok((PACKED, text)),
        Err(e) => {
            let line = 1 + text.iter().filter(|b| **b == b'\n').count();
            input(&packed, format!("damaged near line {line}: {e}"))
        }
    }
}

/// As [`read`], of a folder whose runs are wanted: none at all is an error too.
///
/// # Errors
/// As [`read`], and [`Error::Input`] if there is no row.
pub fn read_rows(path: &Path) -> Result<Stored, Error> {
    let stored = read(path)?;
    match stored.rows.is_empty() {
        true => input(path, "the record is empty: no run has ended yet"),
        false => Ok(stored),
    }
}

/// Reads a folder without changing it; the record may be compressed. A part of a row at the end,
/// left by a process that was ended, is left out.
///
/// # Errors
/// [`Error::Input`] if it is no folder of runs, or its record is missing or damaged; names the
/// file and the line.
pub fn read(path: &Path) -> Result<Stored, Error> {
    let file = path.join(HEADER);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return input(path, format!("holds no runs (there is no {HEADER})"));
        }
        Err(e) => return input(&file, e),
    };
    let header: Header = match serde_json::from_str(&text) {
        Ok(header) => header,
        Err(e) => return input(&file, e),
    };
    if header.schema != SCHEMA {
        return input(
            &file,
            format!(
                "schema `{}`, but this program reads `{SCHEMA}`",
                header.schema
            ),
        );
    }
    let mut plans = Vec::new();
    for name in &header.plans {
        // A name comes from a file that anybody may have edited.
        if name.contains(['/', '\\', '.']) {
            return input(&file, format!("`{name}` is no plan's name"));
        }
        plans.push(Plan::load(&path.join(PLANS).join(format!("{name}.toml")))?);
    }
    let (name, text) = record(path)?;
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    let whole = &text[..whole_lines(&text)];
    for (i, line) in whole.split(|b| *b == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        match serde_json::from_slice::<Row>(line) {
            Ok(row) => rows.push(row),
            Err(e) => {
                let place = format!("{name}:{}", i + 1);
                return input(&path.join(place), format!("not a row of this program: {e}"));
            }
        }
    }
    let sends = match fs::read(path.join(SENDS)) {
        Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|e| {
            notes.push(format!("{SENDS}: no sends of this program: {e}"));
            Vec::new()
        }),
        Err(_) => Vec::new(),
    };
    Ok(Stored {
        header,
        plans,
        rows,
        sends,
        notes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::embedded,
        record::tests::{header, row},
    };

    fn plan() -> Plan {
        embedded().remove(0)
    }

    fn made(directory: &Path) -> (Folder, Header) {
        let mut header = header(&["throughput"]);
        header.host = Host::read();
        let folder = Folder::create(directory, &header, &[plan()]).unwrap();
        (folder, header)
    }

    #[test]
    fn what_is_written_is_read() {
        let t = tempfile::tempdir().unwrap();
        let path = t.path().join("new/folder");
        let (mut folder, header) = made(&path);
        let rows = [
            row("throughput", "UP", "up", 6, 0, 1.0),
            row("throughput", "UP", "up", 6, 1, 2.0),
        ];
        for r in &rows {
            folder.append(r).unwrap();
        }
        let stored = read(&path).unwrap();
        assert_eq!(stored.header, header);
        assert_eq!(stored.rows, rows);
        assert_eq!(stored.plans[0].name, "throughput");
        assert!(stored.notes.is_empty());
    }

    #[test]
    fn nothing_is_overwritten() {
        let t = tempfile::tempdir().unwrap();
        let (folder, header) = made(&t.path().join("a"));
        drop(folder);
        fs::write(t.path().join("file"), "x").unwrap();
        fs::create_dir(t.path().join("other")).unwrap();
        fs::write(t.path().join("other/mine"), "x").unwrap();
        for name in ["a", "file", "other"] {
            let error = Folder::create(&t.path().join(name), &header, &[plan()]).unwrap_err();
            assert!(
                matches!(&error, Error::Input(l) if l.contains("--resume")),
                "{error}"
            );
        }
        assert_eq!(fs::read(t.path().join("other/mine")).unwrap(), b"x");
        fs::create_dir(t.path().join("empty")).unwrap();
        Folder::create(&t.path().join("empty"), &header, &[plan()]).unwrap();
    }

    #[test]
    fn a_part_of_a_row_is_cut_off() {
        let t = tempfile::tempdir().unwrap();
        let path = t.path().join("a");
        let (mut folder, _) = made(&path);
        folder
            .append(&row("throughput", "UP", "up", 6, 0, 1.0))
            .unwrap();
        drop(folder);
        let mut file = OpenOptions::new()
            .append(true)
            .open(path.join(ROWS))
            .unwrap();
        file.write_all(b"{\"plan\":\"throu").unwrap();
        assert_eq!(read(&path).unwrap().rows.len(), 1);
        let (mut folder, stored) = Folder::resume(&path).unwrap();
        assert_eq!(stored.rows.len(), 1);
        folder
            .append(&row("throughput", "UP", "up", 6, 1, 2.0))
            .unwrap();
        let stored = read(&path).unwrap();
        assert_eq!(stored.rows.len(), 2);
        assert!(stored.notes.is_empty(), "{:?}", stored.notes);
    }

    #[test]
    fn two_processes_do_not_write_at_once() {
        let t = tempfile::tempdir().unwrap();
        let path = t.path().join("a");
        let (folder, _) = made(&path);
        let error = Folder::resume(&path).unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        drop(folder);
        Folder::resume(&path).unwrap();
    }

    #[test]
    fn damage_is_named() {
        let t = tempfile::tempdir().unwrap();
        let path = t.path().join("a");
        assert!(
            read(&path)
                .unwrap_err()
                .to_string()
                .contains("holds no runs")
        );
        let (folder, header) = made(&path);
        drop(folder);
        fs::write(path.join(ROWS), "{}\n").unwrap();
        for error in [read(&path).unwrap_err(), Folder::resume(&path).unwrap_err()] {
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains("runs.jsonl:1: "), "{error}");
        }
        fs::write(path.join(ROWS), "").unwrap();
        let put = |header: &Header| {
            fs::write(path.join(HEADER), serde_json::to_string(header).unwrap()).unwrap();
            Folder::resume(&path).unwrap_err().to_string()
        };
        let mut other = header.clone();
        other.host.cores += 1;
        assert!(put(&other).contains("another machine"));
        let mut other = header.clone();
        other.schema = "perimeter-lab/9".into();
        assert!(put(&other).contains("perimeter-lab/9"));
        let mut other = header;
        other.plans = vec!["../../etc/passwd".into()];
        assert!(put(&other).contains("no plan's name"));
    }

    /// A record of three rows.
    fn three_rows(path: &Path) {
        let (mut folder, _) = made(path);
        for repeat in 0..3 {
            let row = row("throughput", "UP", "up", 6, repeat, 1.0);
            folder.append(&row).unwrap();
        }
    }

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(text).unwrap();
        out.finish().unwrap()
    }

    #[test]
    fn a_compressed_record_is_read_and_not_added_to() {
        let t = tempfile::tempdir().unwrap();
        let path = t.path().join("a");
        three_rows(&path);
        let plain = read(&path).unwrap();
        let text = fs::read(path.join(ROWS)).unwrap();
        fs::remove_file(path.join(ROWS)).unwrap();
        fs::write(path.join(PACKED), packed(&text)).unwrap();
        assert_eq!(read(&path).unwrap().rows, plain.rows);
        let error = Folder::resume(&path).unwrap_err().to_string();
        assert!(error.contains("gunzip"), "{error}");
        assert!(!path.join(ROWS).exists(), "a second record");
        // Two members, as `cat a.gz b.gz` makes them.
        let two = [packed(&text), packed(&text)].concat();
        fs::write(path.join(PACKED), two).unwrap();
        assert_eq!(read(&path).unwrap().rows.len(), 6);
    }

    #[test]
    fn a_record_that_is_missing_empty_or_damaged_is_an_error() {
        let t = tempfile::tempdir().unwrap();
        let path = t.path().join("a");
        three_rows(&path);
        let text = fs::read(path.join(ROWS)).unwrap();
        let error = |says: &str| {
            let error = read_rows(&path).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(says), "{says}: {error}");
        };
        let garbage = [&text[..], b"garbage\n"].concat();
        fs::write(path.join(ROWS), &garbage).unwrap();
        error("a/runs.jsonl:4: ");
        fs::write(path.join(ROWS), "").unwrap();
        error("empty");
        fs::remove_file(path.join(ROWS)).unwrap();
        error("neither runs.jsonl nor runs.jsonl.gz");
        fs::write(path.join(PACKED), packed(&garbage)).unwrap();
        error("a/runs.jsonl.gz:4: ");
        fs::write(path.join(PACKED), packed(b"")).unwrap();
        error("empty");
        let cut = packed(&text);
        fs::write(path.join(PACKED), &cut[..cut.len() - 9]).unwrap();
        error("a/runs.jsonl.gz: damaged near line ");
        fs::write(path.join(PACKED), &text).unwrap();
        error("a/runs.jsonl.gz: damaged near line 1");
    }
}
