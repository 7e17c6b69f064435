//! The other side: who asks a running stack.

use super::protocol::{
    Connection, Counters, Datagrams, End, Frame, Greeting, Interface, Listener, PROTOCOL, Reply,
    Request, Segment,
};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest line of an answer, bytes.
const LONGEST_ANSWER: u64 = 1 << 20;
/// How often who captures is asked whether to go on, while nothing comes.
const LOOK: Duration = Duration::from_millis(100);
/// How long a stack may take for the next line of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a stack could not be asked, or what it says.
///
/// ```
/// # use perimeter::control::{Client, ControlError};
/// let error = Client::connect("/no/such/stack".as_ref()).expect_err("there is no stack");
/// assert!(matches!(error, ControlError::Unreachable { .. }));
/// assert_eq!(
///     error.to_string(),
///     "/no/such/stack: there is no control socket; was the stack started with one?",
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
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

perimeter_base::debug_is_text!(ControlError);

/// A connection to a running stack's control socket.
///
/// ```
#[doc = include_str!("../examples/control.txt")]
/// // In the program that is looked at.
/// let stack = builder.control(&path).build()?;
/// let listener = stack.listen("10.0.0.1:80")?;
///
/// // In another one, of the same user.
/// let mut client = Client::connect(&path)?;
/// let (listeners, connections) = client.connections()?;
/// assert_eq!(listeners[0].local.to_string(), "10.0.0.1:80");
/// assert!(connections.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    reader: BufReader<UnixStream>,
    /// What has come of a line.
    text: Vec<u8>,
    greeting: Greeting,
    gone: Vec<String>,
}

impl Client {
    /// Connects to the stack at `path`.
    /// See [`Client`].
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
                io::ErrorKind::InvalidInput => "a socket's path can't be so long".into(),
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
            text: Vec::new(),
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
    ///
    /// ```
    #[doc = include_str!("../examples/control.txt")]
    /// # let stack = builder.control(&path).build()?;
    /// let client = Client::connect(&path)?;
    /// assert_eq!(client.greeting().organization, "up:shared");
    /// assert_eq!(client.greeting().pid, std::process::id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn greeting(&self) -> &Greeting {
        &self.greeting
    }

    /// Names of its interfaces that had gone for good when it was last asked for its connections.
    ///
    /// ```
    #[doc = include_str!("../examples/control.txt")]
    /// # let stack = builder.control(&path).build()?;
    /// let mut client = Client::connect(&path)?;
    /// client.connections()?;
    /// assert!(client.gone().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gone(&self) -> &[String] {
        &self.gone
    }

    /// Its listeners and connections.
    ///
    /// ```
    #[doc = include_str!("../examples/control.txt")]
    /// # let stack = builder.control(&path).build()?;
    /// # let listener = stack.listen("10.0.0.1:80")?;
    /// # let stream = stack.connect("10.0.0.1:80")?;
    /// # let accepted = listener.accept()?;
    /// let mut client = Client::connect(&path)?;
    /// let (listeners, connections) = client.connections()?;
    /// for c in &connections {
    ///     println!("{} {} -> {}, cwnd {}", c.state, c.local, c.remote, c.cwnd);
    ///     println!("TCP runs in {}", c.layers[1].perimeter);
    /// }
    /// assert_eq!((listeners.len(), connections.len()), (1, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// ```
    #[doc = include_str!("../examples/control.txt")]
    /// # let stack = builder.control(&path).build()?;
    /// let socket = stack.bind_udp("10.0.0.1:53")?;
    /// let sockets = Client::connect(&path)?.datagrams()?;
    /// assert_eq!(sockets[0].local.to_string(), "10.0.0.1:53");
    /// assert_eq!(sockets[0].drops, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// What it has counted since it was built.
    ///
    /// ```
    #[doc = include_str!("../examples/control.txt")]
    /// # let stack = builder.control(&path).build()?;
    /// # let listener = stack.listen("10.0.0.1:80")?;
    /// # let stream = stack.connect("10.0.0.1:80")?;
    /// # let accepted = listener.accept()?;
    /// let counters = Client::connect(&path)?.counters()?;
    /// for (name, value) in counters.counters.iter().filter(|(_, value)| *value > 0) {
    ///     println!("{name} {value}");
    /// }
    /// for lock in &counters.locks {
    ///     println!("{}: contended {} of {}", lock.class, lock.contended, lock.acquisitions);
    /// }
    /// assert_eq!(counters.connections, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The stack can't tell, or has gone.
    pub fn counters(&mut self) -> Result<Counters, ControlError> {
        self.ask(&Request::Counters)?;
        let mut counters = Counters::default();
        loop {
            match self.reply()? {
                Reply::Counters(c) => counters = c,
                Reply::End(_) => return Ok(counters),
                Reply::Error { message } => return Err(ControlError::Refused(message)),
                other => return Err(self.garbled(&format!("{other:?}"))),
            }
        }
    }

    /// Captures frames as they pass: `told` gets the interfaces and each frame, and ends the
    /// capture by `false`. It gets the interfaces alone when the capture has begun, and ten times a
    /// second while no frame comes. `filter` is a [`Filter`](perimeter_link::capture::Filter).
    ///
    /// ```
    #[doc = include_str!("../examples/control.txt")]
    /// # let stack = builder.control(&path).build()?;
    /// let socket = stack.bind_udp("10.0.0.1:0")?;
    /// let mut seen = Vec::new();
    /// let end = Client::connect(&path)?.capture("arp", None, Some(1), Some(10.0), |interfaces, frame| {
    ///     match frame {
    ///         Some(f) => seen.push((interfaces[f.interface].name.clone(), f.len)),
    ///         // It has begun. Sending makes the stack ask for its neighbour's station.
    ///         None => drop(socket.send_to(b"hello", "10.0.0.9:9")),
    ///     }
    ///     true
    /// })?;
    /// assert_eq!((end.count, seen.len()), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `filter` is none, or the stack has gone.
    pub fn capture(
        mut self,
        filter: &str,
        snap_len: Option<u32>,
        count: Option<u64>,
        seconds: Option<f64>,
        mut told: impl FnMut(&[Interface], Option<&Frame>) -> bool,
    ) -> Result<End, ControlError> {
        self.ask(&Request::Capture {
            filter: filter.into(),
            snap_len,
            count,
            seconds,
        })?;
        let mut end = End::default();
        let mut interfaces = Vec::new();
        loop {
            let told = match self.reply_soon()? {
                None => told(&interfaces, None),
                Some(Reply::Capturing { interfaces: all }) => {
                    interfaces = all;
                    let _ = self.reader.get_ref().set_read_timeout(Some(LOOK));
                    told(&interfaces, None)
                }
                Some(Reply::Frame(f)) if f.interface < interfaces.len() => {
                    end.count += 1;
                    told(&interfaces, Some(&f))
                }
                Some(Reply::End(e)) => return Ok(e),
                Some(Reply::Error { message }) => return Err(ControlError::Refused(message)),
                Some(other) => return Err(self.garbled(&format!("{other:?}"))),
            };
            if !told {
                return Ok(end);
            }
        }
    }

    /// Traces a connection: `told` gets each segment, and ends the trace by `false`. After
    /// `seconds` it gets none any more: those on their way by then count as [`End::lost`].
    ///
    /// ```
    #[doc = include_str!("../examples/control.txt")]
    /// let stack = builder.organization("pef:vertical")?.control(&path).build()?;
    /// # let listener = stack.listen("10.0.0.1:80")?;
    /// # let mut stream = stack.connect("10.0.0.1:80")?;
    /// # let (mut server, _) = listener.accept()?;
    /// # let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    /// # let over = done.clone();
    /// # let thread = thread::spawn(move || -> std::io::Result<()> {
    /// #     while !over.load(std::sync::atomic::Ordering::Relaxed) {
    /// #         stream.write_all(b"hello")?;
    /// #         server.read_exact(&mut [0; 5])?;
    /// #     }
    /// #     Ok(())
    /// # });
    /// // While something goes on there:
    /// let mut client = Client::connect(&path)?;
    /// let (_, connections) = client.connections()?;
    /// let end = client.trace(&connections[0].id, Some(3), Some(10.0), |segment| {
    ///     println!("{} {} bytes, cwnd {}", segment.flags, segment.len, segment.cwnd);
    ///     true
    /// })?;
    /// assert_eq!(end.count, 3);
    /// # done.store(true, std::sync::atomic::Ordering::Relaxed);
    /// # thread.join().expect("no panic")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        match self.next_line() {
            Ok(text) => text,
            Err(e) => Err(self.lost(&e)),
        }
    }

    /// The next line. After an error of time the line goes on with the next call.
    fn next_line(&mut self) -> io::Result<Result<String, ControlError>> {
        let room = LONGEST_ANSWER.saturating_sub(self.text.len() as u64);
        let mut reader = self.reader.by_ref().take(room);
        reader.read_until(b'\n', &mut self.text)?;
        let text = std::mem::take(&mut self.text);
        if text.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(String::from_utf8(text).map_err(|e| self.garbled(&e.to_string())))
    }

    /// The next line of an answer that may be long in coming; `None` if nothing comes for
    /// [`LOOK`].
    fn reply_soon(&mut self) -> Result<Option<Reply>, ControlError> {
        let late = |e: &io::Error| {
            matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            )
        };
        let text = match self.next_line() {
            Ok(text) => text?,
            Err(e) if late(&e) => return Ok(None),
            Err(e) => return Err(self.lost(&e)),
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|e| self.garbled(&e.to_string()))
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
