//! The stack's side.

use super::capture::{self, Ask, Capture};
use super::protocol::{
    self, Counters, End, Greeting, LONGEST_REQUEST, PROTOCOL, Reply, Request, Segment,
};
use crate::error::{BuildError, io as io_error};
use perimeter_base::Time;
use perimeter_link::capture::Captures;
use perimeter_org::engine::{Engine, EngineError, Inspected, Listening};
use perimeter_org::pef::event::Traced;
use perimeter_stack::SockError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket,
    socket_with,
};
use std::fs;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Clients at a time.
const CLIENTS: usize = 8;
/// A client that has asked nothing for this long since it came makes room for another, when all
/// places are taken.
const SHY: Duration = Duration::from_millis(250);
/// So does one that has asked, this long after its last answer: longer than what looks at a stack
/// regularly pauses.
const DONE: Duration = Duration::from_secs(5);
/// How long is waited for another stack that is just opening a socket in the same directory.
const OPENING: Duration = Duration::from_secs(1);
/// A client that says nothing for this long is sent away.
const SILENCE: Duration = Duration::from_secs(30);
/// A client that does not read for this long is sent away.
const DEAF: Duration = Duration::from_secs(5);
/// A question to a stack of one thread is put anew after this time, so that a server that is
/// being dropped by that very thread is not waited for.
const SLICE: Duration = Duration::from_millis(40);
/// Segments of a trace that wait to be written.
const BACKLOG: usize = 4096;
/// How often a trace is looked at: the thread that runs the connection wakes nobody.
const LOOK: Duration = Duration::from_millis(5);
/// How often the traced connection is asked whether it is still there.
const ALIVE: Duration = Duration::from_millis(500);

/// What the threads of a server share.
struct Shared {
    engine: Weak<dyn Engine>,
    captures: Captures,
    greeting: String,
    stop: AtomicBool,
    clients: Mutex<Vec<Client>>,
}

struct Client {
    stream: UnixStream,
    thread: JoinHandle<()>,
    pace: Arc<Mutex<Pace>>,
    /// Told to go; its thread is about to end.
    leaving: bool,
}

/// What a client is at, as its thread notes.
struct Pace {
    /// It has asked something.
    asked: bool,
    /// Since when it has owed us a whole request; `None` while we owe it an answer.
    silent: Option<Instant>,
}

impl Client {
    /// For how long it has been of no use, if that is long enough for another to have its place.
    fn idle(&self, now: Instant) -> Option<(bool, Duration)> {
        let pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = now.saturating_duration_since(pace.silent?);
        let patience = if pace.asked { DONE } else { SHY };
        (silent >= patience).then_some((!pace.asked, silent))
    }
}

/// A control socket with its threads.
pub(crate) struct Server {
    path: PathBuf,
    /// Device and inode: whether `path` is still ours.
    file: (u64, u64),
    shared: Arc<Shared>,
    wake: UnixStream,
    /// The process that it was started in.
    process: u64,
    acceptor: Option<JoinHandle<()>>,
}

/// Holds the directory of `path` while a socket is opened in it, so that of two stacks that find
/// the same stale socket one replaces it and the other sees that. `None` if it can't be had.
fn hold(path: &Path) -> Option<fs::File> {
    let directory = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let directory = fs::File::open(directory).ok()?;
    let end = Instant::now() + OPENING;
    while flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Some(directory)
}

/// A socket at `path`, in place of one that a killed process has left there.
fn open(path: &Path) -> io::Result<UnixListener> {
    let held = hold(path);
    match make(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && held.is_some() && is_stale(path) => {
            fs::remove_file(path)?;
            make(path)
        }
        other => other,
    }
}

/// Whether there is a socket at `path` that nobody listens on.
fn is_stale(path: &Path) -> bool {
    let socket_file = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    socket_file && answers(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

/// Connects, without waiting for somebody who is there and too busy to take it.
fn answers(path: &Path) -> io::Result<()> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(connect(&fd, &SocketAddrUnix::new(path)?)?)
}

/// A socket at `path` that its user alone may connect to, from its first moment on.
fn make(path: &Path) -> io::Result<UnixListener> {
    let fd = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    // Linux gives the file the permissions of the socket.
    fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    bind(&fd, &SocketAddrUnix::new(path)?)?;
    listen(&fd, CLIENTS as i32)?;
    Ok(UnixListener::from(fd))
}

/// What is in the way at `path`.
fn occupant(path: &Path) -> String {
    match fs::symlink_metadata(path) {
        Ok(m) if !m.file_type().is_socket() => "there is a file of that name".into(),
        _ if is_stale(path) => {
            "a stack that has ended has left its socket behind, and it can't be replaced; remove it"
                .into()
        }
        _ => "another program has a socket there".into(),
    }
}

impl Server {
    /// Starts to serve `engine`, whose devices are behind `captures`, at `path`.
    ///
    /// # Errors
    /// [`BuildError::Control`].
    pub(crate) fn start(
        path: &Path,
        engine: &Arc<dyn Engine>,
        captures: Captures,
    ) -> Result<Server, BuildError> {
        let failed = |why: String| BuildError::Control(format!("{}: {why}", path.display()));
        let listener = open(path).map_err(|e| {
            failed(match e.kind() {
                io::ErrorKind::AddrInUse => occupant(path),
                _ => e.to_string(),
            })
        })?;
        let start = || {
            let meta = fs::symlink_metadata(path)?;
            let (wake, woken) = UnixStream::pair()?;
            listener.set_nonblocking(true)?;
            let shared = Arc::new(Shared {
                engine: Arc::downgrade(engine),
                captures,
                greeting: greeting(engine),
                stop: AtomicBool::new(false),
                clients: Mutex::new(Vec::new()),
            });
            let theirs = shared.clone();
            let acceptor = thread::Builder::new()
                .name("control".into())
                .spawn(move || accept(&theirs, &listener, &woken))?;
            Ok(Server {
                path: path.to_path_buf(),
                file: (meta.dev(), meta.ino()),
                shared,
                wake,
                acceptor: Some(acceptor),
                process: perimeter_sync::process::register(),
            })
        };
        start().map_err(|e: io::Error| {
            let _ = fs::remove_file(path);
            failed(e.to_string())
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if perimeter_sync::process::current() != self.process {
            // A fork: file, threads and clients are the parent's.
            core::mem::forget(self.acceptor.take());
            return;
        }
        let ours = |m: &fs::Metadata| (m.dev(), m.ino()) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(|m| ours(&m)) {
            let _ = fs::remove_file(&self.path);
        }
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.wake.write_all(&[0]);
        if let Some(t) = self.acceptor.take() {
            // A thread that panicked has said so already.
            let _ = t.join();
        }
        for client in self.shared.clients().drain(..) {
            let _ = client.stream.shutdown(std::net::Shutdown::Both);
            let _ = client.thread.join();
        }
    }
}

fn greeting(engine: &Arc<dyn Engine>) -> String {
    let g = Greeting {
        perimeter: env!("CARGO_PKG_VERSION").into(),
        protocol: PROTOCOL,
        organization: engine.spec().to_string(),
        pid: std::process::id(),
    };
    line(&g)
}

pub(super) fn line(value: &impl serde::Serialize) -> String {
    // Strings, numbers and lists only: there is nothing that could fail to serialize.
    let mut text = serde_json::to_string(value).unwrap_or_default();
    text.push('\n');
    text
}

/// The life of the thread that takes clients.
fn accept(shared: &Arc<Shared>, listener: &UnixListener, woken: &UnixStream) {
    while !shared.stopping() {
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(woken, PollFlags::IN),
        ];
        let _ = poll(&mut fds, None);
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors, perhaps: not in a circle.
            let pause = Timespec {
                tv_sec: 0,
                tv_nsec: 20_000_000,
            };
            let _ = poll(&mut [PollFd::new(woken, PollFlags::IN)], Some(&pause));
            continue;
        };
        let mut clients = shared.clients();
        clients.retain(|c| !c.thread.is_finished());
        if !make_room(&mut clients) {
            let message = format!("{CLIENTS} clients are connected already");
            let _ = stream.set_nonblocking(true);
            let _ = (&stream).write_all(line(&Reply::Error { message }).as_bytes());
            continue;
        }
        let theirs = shared.clone();
        let pace = Arc::new(Mutex::new(Pace {
            asked: false,
            silent: Some(Instant::now()),
        }));
        let noted = pace.clone();
        let started = stream.try_clone().and_then(|near| {
            thread::Builder::new()
                .name("control".into())
                .spawn(move || {
                    // A client that goes away or breaks the rules ends; nobody is to be told.
                    let _ = theirs.serve(&near, &noted);
                    let _ = near.shutdown(std::net::Shutdown::Both);
                })
        });
        if let Ok(thread) = started {
            clients.push(Client {
                stream,
                thread,
                pace,
                leaving: false,
            });
        }
    }
}

/// Whether there is room for one more: if all places are taken, the one that has been silent
/// longest goes, those that never asked anything first.
fn make_room(clients: &mut [Client]) -> bool {
    // Those who are told to go are gone in a moment: their read or write ends at once.
    let staying = clients.iter().filter(|c| !c.leaving).count();
    if staying < CLIENTS {
        return clients.len() < 2 * CLIENTS;
    }
    let now = Instant::now();
    let idle = clients.iter_mut().filter(|c| !c.leaving);
    let longest = idle.filter_map(|c| Some((c.idle(now)?, c)));
    let Some((_, client)) = longest.max_by_key(|(idle, _)| *idle) else {
        return false;
    };
    client.leaving = true;
    let _ = client.stream.shutdown(std::net::Shutdown::Both);
    true
}

/// The answer that something can't be done.
type Refusal = String;

impl Shared {
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, Vec<Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One client, until it goes.
    fn serve(&self, stream: &UnixStream, pace: &Mutex<Pace>) -> io::Result<()> {
        let note = |asked, silent| {
            let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
            *pace = Pace { asked, silent };
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(DEAF))?;
        let mut out = BufWriter::with_capacity(64 * 1024, stream);
        out.write_all(self.greeting.as_bytes())?;
        out.flush()?;
        let mut input = BufReader::with_capacity(LONGEST_REQUEST, stream);
        let mut request = Vec::new();
        while !self.stopping() {
            request.clear();
            let most = LONGEST_REQUEST as u64;
            input.by_ref().take(most).read_until(b'\n', &mut request)?;
            if request.is_empty() {
                return Ok(());
            }
            note(true, None);
            let whole = request.ends_with(b"\n");
            let last = match serde_json::from_slice(&request) {
                _ if !whole => Err(format!(
                    "a request has at most {LONGEST_REQUEST} bytes and ends with a newline"
                )),
                Err(e) => Err(format!("this is no request: {e}")),
                Ok(Request::Connections) => self.connections(&mut out)?,
                Ok(Request::Datagrams) => self.datagrams(&mut out)?,
                Ok(Request::Trace {
                    connection,
                    count,
                    seconds,
                }) => match deadline(seconds) {
                    Ok(limit) => self.trace(stream, &mut out, &connection, count, limit)?,
                    Err(e) => Err(e),
                },
                Ok(Request::Counters) => self.counters(&mut out)?,
                Ok(Request::Capture {
                    filter,
                    snap_len,
                    count,
                    seconds,
                }) => match deadline(seconds) {
                    Ok(limit) => {
                        let ask = Ask {
                            filter: &filter,
                            snap_len,
                            count,
                            limit,
                        };
                        self.capture(stream, &mut out, &ask)?
                    }
                    Err(e) => Err(e),
                },
            };
            let last = match last {
                Ok(end) => Reply::End(end),
                Err(message) => Reply::Error { message },
            };
            out.write_all(line(&last).as_bytes())?;
            out.flush()?;
            note(true, Some(Instant::now()));
            if !whole {
                return Ok(());
            }
        }
        Ok(())
    }

    fn engine(&self) -> Result<Arc<dyn Engine>, Refusal> {
        let gone = || "the stack is going away".to_string();
        self.engine
            .upgrade()
            .filter(|_| !self.stopping())
            .ok_or_else(gone)
    }

    /// Asks, in slices of the time that a stack of one thread is given.
    fn inspect<R>(
        &self,
        look: impl Fn(&dyn Engine, Time) -> Result<R, EngineError>,
    ) -> Result<R, Refusal> {
        let end = Instant::now() + super::PATIENCE;
        loop {
            let engine = self.engine()?;
            match look(&*engine, engine.now() + SLICE) {
                Ok(all) => return Ok(all),
                Err(EngineError::Absent) if Instant::now() < end => {}
                Err(EngineError::Absent) => {
                    return Err(format!(
                        "the stack has one thread, which has not looked at its devices for {} s",
                        super::PATIENCE.as_secs()
                    ));
                }
                Err(e) => return Err(io_error(e).to_string()),
            }
        }
    }

    fn connections(&self, out: &mut impl Write) -> io::Result<Result<End, Refusal>> {
        let all: Result<(Vec<Listening>, Vec<Inspected>), _> =
            self.inspect(|e, until| e.inspect(until));
        let (listening, connections) = match all {
            Ok(all) => all,
            Err(e) => return Ok(Err(e)),
        };
        let mut count = 0;
        for l in &listening {
            count += 1;
            out.write_all(line(&Reply::Listener(l.into())).as_bytes())?;
        }
        for c in connections {
            count += 1;
            out.write_all(line(&Reply::Connection(Box::new(c.into()))).as_bytes())?;
        }
        Ok(Ok(End {
            count,
            gone: self
                .engine()
                .map_or_else(|_| Vec::new(), |e| e.gone_interfaces()),
            ..End::default()
        }))
    }

    fn datagrams(&self, out: &mut impl Write) -> io::Result<Result<End, Refusal>> {
        let sockets = match self.inspect(|e, until| e.udp_sockets(until)) {
            Ok(all) => all,
            Err(e) => return Ok(Err(e)),
        };
        for s in &sockets {
            out.write_all(line(&Reply::Datagrams(s.into())).as_bytes())?;
        }
        Ok(Ok(End {
            count: sockets.len() as u64,
            ..End::default()
        }))
    }

    fn counters(&self, out: &mut impl Write) -> io::Result<Result<End, Refusal>> {
        let engine = match self.engine() {
            Ok(e) => e,
            Err(e) => return Ok(Err(e)),
        };
        let counters = Counters {
            time_ns: engine.now().nanos(),
            ..Counters::from(&engine.stats())
        };
        out.write_all(line(&Reply::Counters(counters)).as_bytes())?;
        Ok(Ok(End {
            count: 1,
            ..End::default()
        }))
    }

    /// Tells frames until enough were told, time is up, or the client goes.
    fn capture(
        &self,
        stream: &UnixStream,
        out: &mut impl Write,
        ask: &Ask<'_>,
    ) -> io::Result<Result<End, Refusal>> {
        let begun = self
            .engine()
            .and_then(|e| Capture::begin(&self.captures, ask, e.now()));
        let mut capture = match begun {
            Ok(c) => c,
            Err(e) => return Ok(Err(e)),
        };
        let interfaces = capture::interfaces(&self.captures);
        out.write_all(line(&Reply::Capturing { interfaces }).as_bytes())?;
        out.flush()?;
        while !self.stopping() {
            if let Some(end) = capture.tell(out)? {
                return Ok(Ok(end));
            }
            if hung_up(stream, LOOK) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        Ok(Ok(capture.end()))
    }

    /// Tells the segments of a connection until enough were told, time is up, or the client goes.
    fn trace(
        &self,
        stream: &UnixStream,
        out: &mut impl Write,
        name: &str,
        count: Option<u64>,
        limit: Option<Instant>,
    ) -> io::Result<Result<End, Refusal>> {
        let Some(id) = protocol::parse(name) else {
            return Ok(Err(format!("`{name}` is no connection's name")));
        };
        let trace = match self.engine().and_then(|e| Trace::begin(e, id, count)) {
            Ok(t) => t,
            Err(e) => return Ok(Err(e)),
        };
        let begun = Reply::Tracing {
            connection: protocol::name(id),
        };
        out.write_all(line(&begun).as_bytes())?;
        out.flush()?;
        let outcome = self.follow(&trace, stream, out, limit);
        trace.end(&self.engine);
        outcome.map(Ok)
    }

    fn follow(
        &self,
        trace: &Trace,
        stream: &UnixStream,
        out: &mut impl Write,
        limit: Option<Instant>,
    ) -> io::Result<End> {
        let mut end = End::default();
        let mut asked = Instant::now();
        let over = || self.stopping() || limit.is_some_and(|at| Instant::now() >= at);
        loop {
            // At most what may wait: a connection at full speed would bring more for ever.
            for _ in 0..BACKLOG {
                // Time is up for what waits as well: it is counted, not told.
                if over() {
                    end.lost = trace.left_out();
                    return Ok(end);
                }
                match trace.segments.try_recv() {
                    Ok(s) => {
                        end.count += 1;
                        out.write_all(line(&Reply::Segment(s)).as_bytes())?;
                    }
                    Err(TryRecvError::Empty) => break,
                    // The tracing events have gone, with the connection or by themselves.
                    Err(TryRecvError::Disconnected) => {
                        end.lost = trace.lost.load(Ordering::Relaxed);
                        end.closed = !trace.enough(end.count + end.lost);
                        return Ok(end);
                    }
                }
            }
            out.flush()?;
            end.lost = trace.lost.load(Ordering::Relaxed);
            if trace.enough(end.count + end.lost) {
                return Ok(end);
            }
            if asked.elapsed() >= ALIVE {
                asked = Instant::now();
                let alive = self.engine.upgrade().map(|e| e.look(trace.id));
                if matches!(
                    alive,
                    None | Some(Err(EngineError::Sock(SockError::Closed)))
                ) {
                    // One more round for what was told meanwhile.
                    while let Ok(s) = trace.segments.try_recv() {
                        end.count += 1;
                        out.write_all(line(&Reply::Segment(s)).as_bytes())?;
                    }
                    end.closed = true;
                    return Ok(end);
                }
            }
            if hung_up(stream, LOOK) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }
}

/// When `seconds` from now are over; `None`: never.
fn deadline(seconds: Option<f64>) -> Result<Option<Instant>, Refusal> {
    match seconds.map(Duration::try_from_secs_f64) {
        None => Ok(None),
        Some(Ok(d)) => Ok(Instant::now().checked_add(d)),
        Some(Err(e)) => Err(format!("seconds: {e}")),
    }
}

/// Waits, and tells whether the client has gone, or says something though it is not its turn.
fn hung_up(stream: &UnixStream, time: Duration) -> bool {
    let time = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&time)).is_ok_and(|n| n > 0)
}

/// A trace that is under way.
struct Trace {
    id: perimeter_stack::SockId,
    events: [perimeter_org::pef::event::EventId; 2],
    segments: mpsc::Receiver<Segment>,
    count: Option<u64>,
    lost: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Trace {
    fn begin(
        engine: Arc<dyn Engine>,
        id: perimeter_stack::SockId,
        count: Option<u64>,
    ) -> Result<Trace, Refusal> {
        let only = || {
            format!(
                "only connections under pef can be traced, this stack is {}; `perimeter pcap` shows \
                 the frames of any",
                engine.spec()
            )
        };
        if engine.spec().single_threaded() {
            return Err(only());
        }
        let (tell, segments) = mpsc::sync_channel(BACKLOG);
        let lost = Arc::new(AtomicU64::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let seen = AtomicU64::new(0);
        let (missed, done) = (lost.clone(), over.clone());
        // Inside the perimeter: a full queue is not waited for, and nobody is woken, as the
        // receiver never blocks.
        let sink = move |t: &Traced| {
            let n = seen.fetch_add(1, Ordering::Relaxed);
            if done.load(Ordering::Relaxed) || count.is_some_and(|most| n >= most) {
                return false;
            }
            if tell.try_send(Segment::from(t)).is_err() {
                missed.fetch_add(1, Ordering::Relaxed);
            }
            count.is_none_or(|most| n + 1 < most)
        };
        match engine.trace(id, Arc::new(sink)) {
            Ok(events) => Ok(Trace {
                id,
                events,
                segments,
                count,
                lost,
                over,
            }),
            Err(EngineError::Unsupported) => Err(only()),
            Err(EngineError::Sock(SockError::Closed)) => {
                Err(format!("there is no connection {}", protocol::name(id)))
            }
            Err(e) => Err(io_error(e).to_string()),
        }
    }

    /// Ends the collecting; how many segments were not told.
    fn left_out(&self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        let waiting = self.segments.try_iter().take(2 * BACKLOG).count();
        self.lost.load(Ordering::Relaxed) + waiting as u64
    }

    fn enough(&self, told: u64) -> bool {
        self.count.is_some_and(|most| told >= most)
    }

    /// Takes the events off, if they are not gone by themselves.
    fn end(&self, engine: &Weak<dyn Engine>) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(e) = engine.upgrade() {
            for event in self.events {
                let _ = e.disable_event(self.id, event);
            }
        }
    }
}
