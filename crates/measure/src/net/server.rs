//! `bench --listen`: the far end of benchmarks between machines, with the host's sockets.

use super::control::{ANSWER, Channel, Counted, Message, PROTOCOL, TOKEN, Work, is_pause};
use crate::{
    Error,
    error::Context as _,
    host,
    linux::{
        self, Job,
        sockets::{self, ESTABLISHING, Made, Options},
    },
    session::Workers,
    workload::{Phase, Received, Settings, Tally},
};
use rustix::fd::OwnedFd;
use std::{
    fs::File,
    io::Read,
    net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Clients served at a time.
const CLIENTS: usize = 32;
/// How long a data connection may take to say its token.
const TOKEN_WAIT: Duration = Duration::from_secs(2);
/// How often a run looks at its threads and at its client.
const LOOK: Duration = Duration::from_millis(50);
/// Time that a run may take besides three times what was asked for: others may hold it up.
const SLACK: Duration = Duration::from_secs(120);

/// The server, bound and not yet serving.
pub struct Server {
    listener: TcpListener,
    version: String,
}

impl Server {
    /// Binds it; port 0 picks a free one.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the address can't be had.
    pub fn bind(at: SocketAddrV4, version: String) -> Result<Server, Error> {
        let listener =
            TcpListener::bind(at).map_err(|e| Error::Unavailable(format!("--listen {at}: {e}")))?;
        Ok(Server { listener, version })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        self.listener.local_addr().context("asking an address")
    }

    /// Serves `runs` runs, or for ever without a number; each as it comes, several at a time. `say`
    /// is told a line about each.
    ///
    /// # Errors
    /// The listener's. What goes wrong with a client is a line, and the next is served.
    pub fn serve(&self, runs: Option<u64>, say: &(dyn Fn(&str) + Sync)) -> Result<(), Error> {
        let live = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..runs.unwrap_or(u64::MAX) {
                let (stream, peer) = loop {
                    match self.listener.accept() {
                        Ok(taken) => break taken,
                        // The caller has gone again, or descriptors are short for the moment.
                        Err(_) => thread::sleep(LOOK),
                    }
                };
                let busy = live.fetch_add(1, Ordering::AcqRel) >= CLIENTS;
                let live = &live;
                scope.spawn(move || {
                    let line = match self.client(stream, busy) {
                        Ok(line) => format!("{peer}: {line}"),
                        Err(e) => format!("{peer}: {e}"),
                    };
                    say(&line);
                    live.fetch_sub(1, Ordering::AcqRel);
                });
            }
            Ok(())
        })
    }

    /// One client, one run.
    fn client(&self, stream: TcpStream, busy: bool) -> Result<String, Error> {
        let at = stream.local_addr().context("asking an address")?;
        let mut channel = Channel::new(stream, "the client".into())?;
        let run = match busy {
            true => Err(Error::Unavailable(format!(
                "{CLIENTS} clients are served already"
            ))),
            false => self.run(&mut channel, at),
        };
        run.inspect_err(|e| {
            // It may be that which has gone.
            let _ = channel.send(&Message::Refused { why: e.to_string() });
        })
    }

    fn run(&self, channel: &mut Channel, at: SocketAddr) -> Result<String, Error> {
        let work = match channel.receive(ANSWER)? {
            Message::Hello {
                protocol: PROTOCOL,
                work,
                ..
            } => work,
            other => return Err(channel.unexpected(other)),
        };
        let settings = work.settings()?;
        sockets::allow_descriptors(work.connections, 1)?;
        let sockets = self.connections(channel, at, &work, &settings)?;
        let counted = measure(channel, &work, &settings, sockets)?;
        channel.send(&Message::Done(counted.clone()))?;
        Ok(format!(
            "{} connections, received {:.0} Mb/s",
            work.connections,
            counted.goodput * 8.0 / 1e6
        ))
    }

    /// Accepts the data connections: those that begin with the token.
    fn connections(
        &self,
        channel: &mut Channel,
        at: SocketAddr,
        work: &Work,
        settings: &Settings,
    ) -> Result<Vec<OwnedFd>, Error> {
        let listener = TcpListener::bind(SocketAddr::new(at.ip(), 0)).context("listening")?;
        let listener = OwnedFd::from(listener);
        let options = Options::of(settings);
        sockets::prepare(&listener, options)?;
        rustix::net::listen(&listener, 1024).context("listening")?;
        let listener = TcpListener::from(listener);
        let port = listener.local_addr().context("asking an address")?.port();
        listener.set_nonblocking(true).context("a socket option")?;
        let token = token()?;
        channel.send(&Message::Ready {
            port,
            token: token.clone(),
            version: self.version.clone(),
        })?;
        let deadline = Instant::now() + ESTABLISHING;
        let mut sockets = Vec::new();
        let mut told = false;
        while sockets.len() < work.connections as usize || !told {
            if Instant::now() > deadline {
                return Err(Error::Run(format!(
                    "{} of {} data connections came within {} s",
                    sockets.len(),
                    work.connections,
                    ESTABLISHING.as_secs()
                )));
            }
            match listener.accept() {
                Ok((stream, _)) if genuine(&stream, &token) => {
                    stream.set_nonblocking(true).context("a socket option")?;
                    let socket = OwnedFd::from(stream);
                    options.coalesce(&socket)?;
                    sockets.push(socket);
                    sockets.truncate(work.connections as usize);
                }
                Ok(_) => {}
                // The client's end is noticed here, too.
                Err(e) if is_pause(&e) => match channel.poll(Duration::from_millis(2))? {
                    None => {}
                    Some(Message::Connected) => told = true,
                    Some(other) => return Err(channel.unexpected(other)),
                },
                refused => drop(refused.context("accepting")?),
            }
        }
        Ok(sockets)
    }
}

/// Text that only the client knows, in hexadecimal digits.
fn token() -> Result<String, Error> {
    let mut bytes = [0u8; TOKEN / 2];
    let mut random = File::open("/dev/urandom").context("asking for randomness")?;
    random
        .read_exact(&mut bytes)
        .context("asking for randomness")?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// Whether a data connection begins with the token.
fn genuine(mut stream: &TcpStream, token: &str) -> bool {
    let mut said = [0u8; TOKEN];
    stream.set_nonblocking(false).is_ok()
        && stream.set_read_timeout(Some(TOKEN_WAIT)).is_ok()
        && stream.read_exact(&mut said).is_ok()
        && said == *token.as_bytes()
}

/// Runs the far end of the work through the phases that the client calls out.
fn measure(
    channel: &mut Channel,
    work: &Work,
    settings: &Settings,
    sockets: Vec<OwnedFd>,
) -> Result<Counted, Error> {
    let job = Job::new(false)?;
    let threads = host::cores().min(sockets.len());
    let mut shares: Vec<Vec<OwnedFd>> = (0..threads).map(|_| Vec::new()).collect();
    for (i, socket) in sockets.into_iter().enumerate() {
        shares[i % threads].push(socket);
    }
    let (_, roles) = linux::roles(settings);
    let worker = |(i, share)| {
        let make = move |_: &_| Ok(Made::Established(share));
        (format!("net-{i}"), job.worker(roles, None, make))
    };
    let workers = shares.into_iter().enumerate().map(worker).collect();
    // The client stops first, so its connections may end before it says so.
    let mut workers = Workers::start_second(workers)?;
    channel.send(&Message::Accepted)?;
    let deadline = Instant::now() + Duration::from_secs_f64(3.0 * work.seconds) + SLACK;
    let mut phase = Phase::Set;
    loop {
        match channel.poll(LOOK)? {
            None => {}
            Some(Message::Warm) => phase = Phase::Warm,
            Some(Message::Measure) => phase = Phase::Measure,
            Some(Message::Stop) => break,
            Some(other) => return Err(channel.unexpected(other)),
        }
        workers.run(phase, Duration::ZERO)?;
        if Instant::now() > deadline {
            return Err(Error::Run("the run takes far longer than asked for".into()));
        }
    }
    Ok(count(&workers.finish()?))
}

fn count(tallies: &[Tally]) -> Counted {
    let received = Received::of(tallies);
    Counted {
        goodput: received.goodput,
        bytes: received.bytes,
        least: received.least,
        median: received.median,
        verified: received.verified,
        cpu_ns: tallies.iter().map(|t| t.cpu_ns).sum(),
    }
}
