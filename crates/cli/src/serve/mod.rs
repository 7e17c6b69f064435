//! `perimeter serve`: HTTP or echo by a stack of ours, to the host's own programs.

mod conn;
mod host;

use crate::print;
use conn::{Conn, Counts, Turn};
use host::{Ends, Link};
use perimeter::link::named::HostDevice;
use perimeter::{
    Cidr, Config, Events, Interest, Ipv6Config, Keepalive, Offload, OrgSpec, Poll, Stack,
    TcpListener, Token, Waker,
};
use perimeter_measure::Error;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1},
    iterator::{Handle, Signals},
};
use std::{
    collections::HashMap,
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Help behind the options.
pub const HELP: &str = "\
Makes a TAP interface, gives this host an address on it (the first of the subnet that is free) \
and with it the route, and serves at the stack's own address beside it. The interface goes when \
this command ends. One that exists already is used as it is, and must have an address of the \
subnet.

HTTP answers / with a greeting, /bytes/N with N bytes, /stats with counters as JSON; bodies of \
POST and PUT are thrown away. --echo sends back what comes.

SIGINT (Ctrl-C) or SIGTERM ends it: what has been sent is delivered first, for two seconds at \
most. SIGUSR1 prints the counters.

Examples:
  sudo perimeter serve
  curl http://10.99.0.2/                                 in another terminal
  curl -o /dev/null 'http://[fd99::2]/bytes/1000000000'

  sudo perimeter serve --org squeue:2 --control stack.sock
  sudo perimeter serve --echo --port 7 --address 192.168.77.2/24
  unshare -Urn sh -c 'perimeter serve & sleep 1; curl -s http://10.99.0.2/; kill $!'

Exit status: 0 ended by a signal, 1 it failed, 2 the request can't be served.";

/// Most connections at a time.
const MOST: usize = 10_000;
/// How often silent connections are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// How long what was sent may take to be delivered in the end.
const DRAIN: Duration = Duration::from_secs(2);
/// The listener's token.
const LISTENER: Token = Token(usize::MAX);

/// Arguments of `perimeter serve`.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Send back what comes, instead of HTTP
    #[arg(long)]
    echo: bool,
    /// The stack's organization, as `perimeter orgs` lists them
    #[arg(long, default_value = "up:shared", value_parser = perimeter_command::bench::ours)]
    org: OrgSpec,
    /// The stack's addresses with their prefix lengths
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = cidr,
        default_value = "10.99.0.2/24,fd99::2/64")]
    address: Vec<Cidr>,
    /// Port to listen on [default: 80, with --echo 7]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// The interface to this host: tap[:NAME] or tun[:NAME]
    #[arg(long, default_value = "tap", value_parser = HostDevice::from_str)]
    device: HostDevice,
    /// Threads that serve connections; `up` has one [default: cores, 4 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,
    /// By what it can be asked.
    #[command(flatten)]
    ports: crate::ask::Ports,
    /// Print JSON: a line when it serves, and the counters in the end
    #[arg(long)]
    json: bool,
}

fn cidr(text: &str) -> Result<Cidr, String> {
    match text.contains('/') {
        true => text.parse(),
        false => Err(format!(
            "`{text}`: a prefix length is missing, as in 10.99.0.2/24 or fd99::2/64"
        )),
    }
}

/// What every connection is served with.
pub struct Service {
    echo: bool,
    org: String,
    counts: Counts,
    open: std::sync::atomic::AtomicUsize,
    stop: AtomicBool,
}

/// Runs it.
pub fn serve(args: &ServeArgs) -> Result<(), Error> {
    let threads = threads(args)?;
    // Before the interface is made: from here on a signal leaves nothing behind.
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1]);
    let signals = signals.map_err(|source| Error::Io {
        context: "waiting for signals".into(),
        source,
    })?;
    let Link { tap, ends, notes } = host::open(args)?;
    let name = tap.name().to_owned();
    let stack = build(args, tap, &ends)?;
    let failed = |what: &str, e: io::Error| Error::Run(format!("{what}: {e}"));
    let port = args.port.unwrap_or(if args.echo { 7 } else { 80 });
    let any: IpAddr = match ends.iter().any(|e| e.ours.addr.is_ipv6()) {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    let listener = stack.listen(SocketAddr::new(any, port));
    let listener = listener.map_err(|e| failed("listening", e))?;
    listener
        .set_nonblocking(true)
        .map_err(|e| failed("listening", e))?;
    let service = Arc::new(Service {
        echo: args.echo,
        org: args.org.to_string(),
        counts: Counts::default(),
        open: Default::default(),
        stop: AtomicBool::new(false),
    });
    let mut workers = Vec::new();
    for _ in 0..threads {
        let worker = Worker::new(&stack, &listener);
        workers.push(worker.map_err(|e| failed("a poller", e))?);
    }
    let wakers: Vec<Waker> = workers.iter().map(|w| w.poll.waker()).collect();
    let handle = signals.handle();
    let waiting = obey(signals, service.clone(), wakers.clone(), args.json);
    for note in notes {
        eprintln!("perimeter: {note}");
    }
    print(&greeting(args, &name, port, &ends))?;
    let ran = run(workers, &listener, &service, &wakers);
    end(handle, waiting);
    drop(listener);
    let left = stack.shutdown(DRAIN);
    drop(stack);
    print(&counted(&service.counts, args.json))?;
    ran.map_err(|e| failed("serving", e))?;
    match left {
        Ok(left) if !left.is_none() => Err(Error::Run(format!(
            "{} connections and {} bytes were not delivered within {} s",
            left.connections,
            left.bytes,
            DRAIN.as_secs()
        ))),
        Ok(_) => Ok(()),
        Err(e) => Err(failed("ending the stack", e)),
    }
}

fn threads(args: &ServeArgs) -> Result<usize, Error> {
    match (args.threads, args.org.single_threaded()) {
        (Some(2..), true) => Err(Error::Input(format!(
            "--threads: {} is one thread; `up:shared` is the same for several",
            args.org
        ))),
        (_, true) => Ok(1),
        (Some(n), false) => Ok(n.into()),
        (None, false) => Ok(thread::available_parallelism().map_or(1, |n| n.get().min(4))),
    }
}

fn build(args: &ServeArgs, tap: perimeter::link::tap::Tap, ends: &[Ends]) -> Result<Stack, Error> {
    let config = Config::default()
        .with_offload(Offload::Device)
        // Nobody else is on this link.
        .with_ipv6(Ipv6Config::default().with_dad_transmits(0));
    let text: Vec<String> = ends.iter().map(|e| e.ours.to_string()).collect();
    let text: Vec<&str> = text.iter().map(String::as_str).collect();
    let b = Stack::builder().org(args.org.clone()).config(config);
    let built = b
        .interface(tap, &text)
        .and_then(|b| args.ports.on(b).build());
    built.map_err(|e| Error::Unavailable(e.to_string()))
}

/// Does what signals ask for, on a thread of its own, until its handle is closed.
fn obey(
    mut signals: Signals,
    service: Arc<Service>,
    wakers: Vec<Waker>,
    json: bool,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                // Whoever reads this may have gone.
                let _ = print(&counted(&service.counts, json));
                continue;
            }
            if service.stop.swap(true, Ordering::SeqCst) {
                // The second one: at once. The interface goes with the process.
                std::process::exit(128 + signal);
            }
            wakers.iter().for_each(Waker::wake);
        }
    })
}

fn end(handle: Handle, waiting: thread::JoinHandle<()>) {
    handle.close();
    let _ = waiting.join();
}

fn greeting(args: &ServeArgs, name: &str, port: u16, ends: &[Ends]) -> String {
    let urls: Vec<String> = ends
        .iter()
        .map(|e| {
            let at = SocketAddr::new(e.ours.addr, port);
            match (args.echo, port, e.ours.addr) {
                (true, ..) => at.to_string(),
                (false, 80, IpAddr::V4(a)) => format!("http://{a}/"),
                (false, 80, IpAddr::V6(a)) => format!("http://[{a}]/"),
                (false, ..) => format!("http://{at}/"),
            }
        })
        .collect();
    let host: Vec<String> = ends.iter().map(|e| e.host.to_string()).collect();
    if args.json {
        let value = serde_json::json!({
            "serving": urls,
            "echo": args.echo,
            "org": args.org.to_string(),
            "interface": name,
            "host": host,
        });
        return format!("{value}\n");
    }
    let what = if args.echo { "echo" } else { "HTTP" };
    let mut text = format!(
        "{what} under {}, on {name}, where this host is {}\n",
        args.org,
        host.join(" and ")
    );
    for url in urls {
        text.push_str(&match args.echo {
            true => format!("  {url}\n"),
            false => format!("  curl '{url}'\n"),
        });
    }
    text.push_str("Ctrl-C ends it.\n");
    text
}

fn counted(counts: &Counts, json: bool) -> String {
    if json {
        return format!("{}\n", counts.json());
    }
    let line = |(name, n): (&str, u64)| format!("{} {n}", name.replace('_', " "));
    let seen = counts.all().into_iter().filter(|(_, n)| *n > 0);
    let seen: Vec<String> = seen.map(line).collect();
    match seen.is_empty() {
        true => "no connections\n".into(),
        false => format!("{}\n", seen.join(", ")),
    }
}

/// Runs the workers, the first on this thread, until one fails or they are told to stop.
fn run(
    mut workers: Vec<Worker>,
    listener: &TcpListener,
    service: &Arc<Service>,
    wakers: &[Waker],
) -> io::Result<()> {
    let over = |ended: io::Result<()>| {
        service.stop.store(true, Ordering::SeqCst);
        wakers.iter().for_each(Waker::wake);
        ended
    };
    if workers.len() == 1 {
        return over(workers.remove(0).run(listener, service));
    }
    thread::scope(|threads| {
        let over = &over;
        let all: Vec<_> = workers
            .into_iter()
            .map(|w| threads.spawn(move || over(w.run(listener, service))))
            .collect();
        let ended = all.into_iter().map(|t| {
            t.join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        });
        // Every one is waited for, and the first failure told.
        let ended: Vec<io::Result<()>> = ended.collect();
        ended.into_iter().collect()
    })
}

/// A thread's connections.
struct Worker {
    poll: Poll,
    conns: HashMap<usize, (Conn, Interest)>,
    next: usize,
    buf: Vec<u8>,
}

impl Worker {
    fn new(stack: &Stack, listener: &TcpListener) -> io::Result<Worker> {
        let poll = stack.poll()?;
        let interest = Interest::READABLE.exclusive();
        poll.registry().register(listener, LISTENER, interest)?;
        Ok(Worker {
            poll,
            conns: HashMap::new(),
            next: 0,
            buf: vec![0; 64 * 1024],
        })
    }

    fn run(mut self, listener: &TcpListener, service: &Service) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        let mut swept = Instant::now();
        while !service.stop.load(Ordering::SeqCst) {
            let wait = (!self.conns.is_empty()).then_some(SWEEP);
            self.poll.poll(&mut events, wait)?;
            for e in events.iter() {
                match e.token() {
                    LISTENER => self.accept(listener, service)?,
                    token => self.turn(token, service),
                }
            }
            if swept.elapsed() >= SWEEP {
                self.sweep(service);
                swept = Instant::now();
            }
        }
        service.open.fetch_sub(self.conns.len(), Ordering::Relaxed);
        Ok(())
    }

    fn accept(&mut self, listener: &TcpListener, service: &Service) -> io::Result<()> {
        loop {
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            };
            if service.open.load(Ordering::Relaxed) >= MOST {
                service.counts.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            service.counts.accepted.fetch_add(1, Ordering::Relaxed);
            let token = Token(self.next);
            self.next += 1;
            let want = Interest::READABLE;
            let ready = stream
                .set_nonblocking(true)
                .and_then(|()| stream.set_nodelay(true))
                .and_then(|()| stream.set_keepalive(Some(Keepalive::default())))
                .and_then(|()| self.poll.registry().register(&stream, token, want));
            // A client that has gone meanwhile costs nobody else anything.
            if ready.is_err() {
                service.counts.failed.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            service.open.fetch_add(1, Ordering::Relaxed);
            self.conns.insert(token.0, (Conn::new(stream, peer), want));
        }
    }

    fn turn(&mut self, token: Token, service: &Service) {
        let Some((conn, want)) = self.conns.get_mut(&token.0) else {
            return;
        };
        let outcome = match conn.turn(service, &mut self.buf) {
            Ok(Turn::Wait(new)) if new == *want => return,
            Ok(Turn::Wait(new)) => {
                *want = new;
                match self.poll.registry().reregister(&conn.stream, token, new) {
                    Ok(()) => return,
                    Err(e) => Err(e),
                }
            }
            Ok(Turn::Done) => Ok(()),
            Err(e) => Err(e),
        };
        self.close(token.0, service, outcome.is_err());
    }

    fn close(&mut self, token: usize, service: &Service, failed: bool) {
        if self.conns.remove(&token).is_some() {
            service.open.fetch_sub(1, Ordering::Relaxed);
        }
        if failed {
            service.counts.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sweep(&mut self, service: &Service) {
        let silent = self.conns.iter().filter(|(_, (c, _))| c.is_silent(service));
        let silent: Vec<usize> = silent.map(|(token, _)| *token).collect();
        for token in silent {
            self.close(token, service, true);
        }
    }
}
