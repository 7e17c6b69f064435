//! Files as reference-counted pages, for zero-copy sending.

use bytes::Bytes;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

/// Size of a page of a [`SharedFile`], bytes.
pub const PAGE: usize = 64 * 1024;

/// A file read into pages that any number of connections may send from at once.
///
/// Pages are read, not mapped: a file that is truncated while in use gives an error, never a
/// SIGBUS. A page that was read stays.
///
/// ```
#[doc = include_str!("examples/pair.txt")]
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("index.html");
/// # std::fs::write(&path, vec![b'x'; 100_000])?;
/// let file = SharedFile::open(&path)?;
/// let mut sent = 0;
/// # let thread = thread::spawn(move || server.read_to_end(&mut Vec::new()));
/// while sent < file.len() {
///     sent += client.send_zero_copy(&[file.page(sent, usize::MAX)?])? as u64;
/// }
/// client.shutdown(Shutdown::Write)?;
/// # assert_eq!(thread.join().expect("no panic")?, 100_000);
/// assert_eq!(sent, 100_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedFile {
    file: File,
    len: u64,
    pages: Vec<OnceLock<Bytes>>,
}

impl SharedFile {
    /// Opens a file; its length is taken now.
    /// See [`SharedFile`].
    ///
    /// # Errors
    /// As `File::open`.
    pub fn open(path: impl AsRef<Path>) -> Result<SharedFile> {
        SharedFile::new(File::open(path)?)
    }

    /// Around an open file.
    ///
    /// ```
    /// # use perimeter::SharedFile;
    /// # use std::io::Write;
    /// let mut temporary = tempfile::tempfile()?;
    /// temporary.write_all(b"hello")?;
    /// let file = SharedFile::new(temporary)?;
    /// assert_eq!((file.len(), file.is_empty()), (5, false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Its length can't be had.
    pub fn new(file: File) -> Result<SharedFile> {
        let len = file.metadata()?.len();
        let pages = (0..len.div_ceil(PAGE as u64))
            .map(|_| OnceLock::new())
            .collect();
        Ok(SharedFile { file, len, pages })
    }

    /// Length in bytes when it was opened.
    /// See [`SharedFile::new`].
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it was empty.
    ///
    /// ```
    /// # use perimeter::SharedFile;
    /// let file = SharedFile::new(tempfile::tempfile()?)?;
    /// // There is no page to send: `page` would give no bytes.
    /// assert!(file.is_empty());
    /// assert!(file.page(0, usize::MAX)?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes from `offset` to the end of their page, at most `max`; empty at the end.
    ///
    /// ```
    /// # use perimeter::SharedFile;
    /// # use std::io::Write;
    /// # let mut temporary = tempfile::tempfile()?;
    /// # temporary.write_all(&vec![b'x'; 100_000])?;
    /// let file = SharedFile::new(temporary)?;
    /// assert_eq!(file.page(0, usize::MAX)?.len(), perimeter::file::PAGE);
    /// assert_eq!(file.page(65_000, 100)?.len(), 100);
    /// // Up to the end of its page, and not across.
    /// assert_eq!(file.page(65_530, 100)?.len(), 6);
    /// assert!(file.page(100_000, 100)?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `UnexpectedEof` when the file has become shorter, or what reading says.
    pub fn page(&self, offset: u64, max: usize) -> Result<Bytes> {
        if offset >= self.len {
            return Ok(Bytes::new());
        }
        let index = (offset / PAGE as u64) as usize;
        let page = match self.pages[index].get() {
            Some(p) => p,
            None => {
                let start = index as u64 * PAGE as u64;
                let mut bytes = vec![0; PAGE.min((self.len - start) as usize)];
                self.file
                    .read_exact_at(&mut bytes, start)
                    .map_err(|e| match e.kind() {
                        ErrorKind::UnexpectedEof => {
                            Error::new(ErrorKind::UnexpectedEof, "the file was truncated")
                        }
                        _ => e,
                    })?;
                self.pages[index].get_or_init(|| bytes.into())
            }
        };
        let within = (offset % PAGE as u64) as usize;
        let end = page.len().min(within.saturating_add(max));
        Ok(page.slice(within..end))
    }
}
