//! Programs of the host with a time limit.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Arguments of dnsmasq: in the foreground, configured by what follows alone, and asking nobody
/// further.
pub const DNSMASQ: [&str; 8] = [
    "--keep-in-foreground",
    "--conf-file=/dev/null",
    "--pid-file=",
    "--user=root",
    "--no-resolv",
    "--no-hosts",
    "--log-facility=-",
    "--bind-interfaces",
];

/// Whether a program of that name is in the path.
pub fn installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|d| d.join(name).is_file())
}

/// Copies the program `from`, to be run from where the copy is. A program of its own writes it: a
/// file that this process has open for writing is so in a child, too, that another test starts
/// meanwhile, and until that executes the copy can't be run (`Text file busy`).
///
/// # Panics
/// It can't be copied.
pub fn copy(from: impl AsRef<Path>, to: &Path) {
    let ends = Command::new("cp").arg(from.as_ref()).arg(to).status();
    let from = from.as_ref().display();
    assert!(ends.expect("cp").success(), "{from} can't be copied");
}

/// Python's interpreter. What the path has may be a script that looks for it first, which takes ten
/// times as long as the interpreter's own start.
pub fn python() -> &'static str {
    static PYTHON: OnceLock<String> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let mut ask = Command::new("python3");
        let said = ask.args(["-I", "-S", "-c", "import sys; print(sys.executable)"]);
        let said = said.output().ok().filter(|o| o.status.success());
        let path = said.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
        path.unwrap_or_else(|| "python3".to_owned())
    })
}

/// What a program left.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to standard output and has not been taken by [`Program::line`].
    pub out: String,
    /// What it wrote to standard error.
    pub err: String,
}

impl Outcome {
    /// Its standard output.
    ///
    /// # Panics
    /// It failed.
    pub fn ok(self) -> String {
        assert!(
            self.status.success(),
            "{}: {}{}",
            self.status,
            self.out,
            self.err
        );
        self.out
    }
}

/// A program that runs. It is killed when dropped.
pub struct Program {
    name: String,
    child: Child,
    out: Receiver<String>,
    err: Receiver<String>,
    end: Instant,
}

fn reader(from: impl Read + Send + 'static) -> Receiver<String> {
    let (tx, rx) = channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = String::new();
        while matches!(from.read_line(&mut line), Ok(1..)) {
            if tx.send(core::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    rx
}

impl Program {
    /// Starts a program, in the calling thread's namespace, that has `limit` to end.
    ///
    /// # Panics
    /// It can't be started.
    pub fn start<S: AsRef<OsStr>>(
        name: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = S>,
        limit: Duration,
    ) -> Program {
        let text = name.as_ref().to_string_lossy().into_owned();
        let mut child = Command::new(name)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{text}: {e}"));
        let out = reader(child.stdout.take().expect("piped"));
        let err = reader(child.stderr.take().expect("piped"));
        Program {
            name: text,
            child,
            out,
            err,
            end: Instant::now() + limit,
        }
    }

    /// The next line of its standard output, without the end of line.
    ///
    /// # Panics
    /// It ended, or its time passed.
    pub fn line(&mut self) -> String {
        match self
            .out
            .recv_timeout(self.end.saturating_duration_since(Instant::now()))
        {
            Ok(line) => line.trim_end().to_string(),
            Err(e) => {
                let _ = self.child.kill();
                let err: String = self.err.iter().collect();
                let why = match e {
                    RecvTimeoutError::Timeout => "took too long to print a line",
                    RecvTimeoutError::Disconnected => "ended before it printed a line",
                };
                panic!("{} {why}: {err}", self.name)
            }
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it ends.
    ///
    /// # Panics
    /// Its time passed.
    pub fn finish(self) -> Outcome {
        self.finish_with(|| std::thread::sleep(Duration::from_millis(2)))
    }

    /// As [`Program::finish`], calling `turn` again and again meanwhile: a stack of one thread
    /// runs in there.
    ///
    /// # Panics
    /// Its time passed.
    pub fn finish_with(mut self, mut turn: impl FnMut()) -> Outcome {
        while !self.ended() {
            if Instant::now() > self.end {
                let _ = self.child.kill();
                let _ = self.child.wait();
                let text: String = self.out.iter().chain(self.err.iter()).collect();
                panic!("{} took too long: {text}", self.name);
            }
            turn();
        }
        let status = self.child.wait().expect("a status");
        Outcome {
            status,
            out: self.out.iter().collect(),
            err: self.err.iter().collect(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
