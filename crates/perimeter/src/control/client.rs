//! The other side: who asks a running stack.

use super::protocol::{
    Connection, Datagrams, End, Greeting, Listener, PROTOCOL, Reply, Request, Segment,
};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest line of an answer, bytes.
const LONGEST_ANSWER: u64 = 1 << 20;
/// How long a stack may take for the next line of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a stack could not be asked, or what it says.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is nobody at that path.
    #[error("{}: {why}", path.display())]
    Unreachable {
        /// The path.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The stack is of a version that this one does not understand.
    #[error(
        "the stack there is perimeter {perimeter}, which speaks version {protocol} of the control \
         protocol; this is perimeter {here}, which speaks {PROTOCOL}",
        here = env!("CARGO_PKG_VERSION")
    )]
    Version {
        /// Its version.
        perimeter: String,
        /// That of its protocol.
        protocol: u32,
    },
    /// The stack can't do it.
    #[error("{0}")]
    Refused(String),
    /// What comes is no answer.
    #[error("{0}")]
    Garbled(String),
}

/// A connection to a running stack's control socket.
pub struct Client {
    path: PathBuf,
    reader: BufReader<UnixStream>,
    greeting: Greeting,
    gone: Vec<String>,
}

impl Client {
    /// Connects to the stack at `path`.
    ///
    /// # Errors
    /// [`ControlError::Unreachable`], [`ControlError::Version`], or what is there is no stack.
    pub fn connect(path: &Path) -> Result<Client, ControlError> {
        let unreachable = |why: String| ControlError::Unreachable {
            path: path.to_path_buf(),
            why,
        };
        let stream = UnixStream::connect(path).map_err(|e| {
            unreachable(match e.kind() {
                io::ErrorKind::NotFound => {
                    "there is no control socket; was the stack started with one?".into()
                }
                io::ErrorKind::ConnectionRefused => {
                    "nobody listens there: the stack has ended, or this is no socket".into()
                }
                io::ErrorKind::PermissionDenied => {
                    "no permission; the control socket is for the user who runs the stack".into()
                }
                _ => e.to_string(),
            })
        })?;
        let timeouts = stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        timeouts.map_err(|e| unreachable(e.to_string()))?;
        let mut client = Client {
            path: path.to_path_buf(),
            reader: BufReader::with_capacity(64 * 1024, stream),
            greeting: Greeting {
                perimeter: String::new(),
                protocol: PROTOCOL,
                organization: String::new(),
                pid: 0,
            },
            gone: Vec::new(),
        };
        let text = client.line()?;
        // Of another version no more is expected than that it says so.
        #[derive(serde::Deserialize)]
        struct Version {
            perimeter: String,
            protocol: u32,
        }
        if let Ok(v) = serde_json::from_str::<Version>(&text)
            && v.protocol != PROTOCOL
        {
            return Err(ControlError::Version {
                perimeter: v.perimeter,
                protocol: v.protocol,
            });
        }
        client.greeting = match serde_json::from_str(&text) {
            Ok(g) => g,
            Err(_) => {
                return Err(match serde_json::from_str(&text) {
                    Ok(Reply::Error { message }) => ControlError::Refused(message),
                    _ => unreachable("what listens there is no perimeter stack".into()),
                });
            }
        };
        Ok(client)
    }

    /// What the stack has said of itself.
    pub fn greeting(&self) -> &Greeting {
        &self.greeting
    }

    /// Names of its interfaces that had gone for good when it was last asked for its connections.
    pub fn gone(&self) -> &[String] {
        &self.gone
    }

    /// Its listeners and connections.
    ///
    /// # Errors
    /// The stack can't tell, or has gone.
    pub fn connections(&mut self) -> Result<(Vec<Listener>, Vec<Connection>), ControlError> {
        self.ask(&Request::Connections)?;
        let (mut listeners, mut connections) = (Vec::new(), Vec::new());
        loop {
            match self.reply()? {
                Reply::Listener(l) => listeners.push(l),
                Reply::Connection(c) => connections.push(*c),
                Reply::End(end) => {
                    self.gone = end.gone;
                    return Ok((listeners, connections));
                }
                Reply::Error { message } => return Err(ControlError::Refused(message)),
                other => return Err(self.garbled(&format!("{other:?}"))),
            }
        }
    }

    /// Its sockets of UDP.
    ///
    /// # Errors
    /// The stack can't tell, or has gone.
    pub fn datagrams(&mut self) -> Result<Vec<Datagrams>, ControlError> {
        self.ask(&Request::Datagrams)?;
        let mut sockets = Vec::new();
        loop {
            match self.reply()? {
                Reply::Datagrams(s) => sockets.push(s),
                Reply::End(_) => return Ok(sockets),
                Reply::Error { message } => return Err(ControlError::Refused(message)),
                other => return Err(self.garbled(&format!("{other:?}"))),
            }
        }
    }

    /// Traces a connection: `told` gets each segment, and ends the trace by `false`. After
    /// `seconds` it gets none any more: those on their way by then count as [`End::lost`].
    ///
    /// # Errors
    /// The stack can't trace it, or has gone.
    pub fn trace(
        mut self,
        connection: &str,
        count: Option<u64>,
        seconds: Option<f64>,
        mut told: impl FnMut(&Segment) -> bool,
    ) -> Result<End, ControlError> {
        self.ask(&Request::Trace {
            connection: connection.into(),
            count,
            seconds,
        })?;
        let mut end = End::default();
        let time = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
        let mut limit = None;
        loop {
            match self.reply()? {
                // Segments may be long in coming.
                Reply::Tracing { .. } => {
                    limit = time.and_then(|t| Instant::now().checked_add(t));
                    let _ = self.reader.get_ref().set_read_timeout(None);
                }
                Reply::Segment(_) if limit.is_some_and(|at| Instant::now() >= at) => {
                    end.lost += 1;
                }
                Reply::Segment(s) => {
                    end.count += 1;
                    if !told(&s) {
                        return Ok(end);
                    }
                }
                Reply::End(e) => {
                    return Ok(End {
                        count: e.count - end.lost.min(e.count),
                        lost: e.lost + end.lost,
                        ..e
                    });
                }
                Reply::Error { message } => return Err(ControlError::Refused(message)),
                other => return Err(self.garbled(&format!("{other:?}"))),
            }
        }
    }

    fn ask(&mut self, request: &Request) -> Result<(), ControlError> {
        let mut text = serde_json::to_string(request).unwrap_or_default();
        text.push('\n');
        let mut stream: &UnixStream = self.reader.get_ref();
        stream.write_all(text.as_bytes()).map_err(|e| self.lost(&e))
    }

    fn reply(&mut self) -> Result<Reply, ControlError> {
        let text = self.line()?;
        serde_json::from_str(&text).map_err(|e| self.garbled(&e.to_string()))
    }

    fn line(&mut self) -> Result<String, ControlError> {
        let mut text = Vec::new();
        let read = self
            .reader
            .by_ref()
            .take(LONGEST_ANSWER)
            .read_until(b'\n', &mut text);
        read.map_err(|e| self.lost(&e))?;
        if text.is_empty() {
            return Err(self.lost(&io::ErrorKind::UnexpectedEof.into()));
        }
        String::from_utf8(text).map_err(|e| self.garbled(&e.to_string()))
    }

    fn lost(&self, e: &io::Error) -> ControlError {
        let why = match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("no answer for {} s", PATIENCE.as_secs())
            }
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => "the stack has gone".into(),
            _ => e.to_string(),
        };
        ControlError::Unreachable {
            path: self.path.clone(),
            why,
        }
    }

    fn garbled(&self, what: &str) -> ControlError {
        ControlError::Garbled(format!(
            "{}: the answer is not understood: {what}",
            self.path.display()
        ))
    }
}
