//! Between two machines: `bench --connect` here, `bench --listen` there ([`server`]), or any sink
//! of bytes there.
//!
//! The [`Client`] is a backend like the others, so a bench over the network has their grid,
//! repeats and report. The ends agree by [`control`]; the data goes over connections of the
//! host's sockets (`linux`), or of a stack of ours on a TAP interface of the host's that is
//! bridged or routed to the network. A run's goodput is what the receiving end counted, and the
//! processor time is this end's; a remark tells the other end's.

pub mod control;
pub mod server;

pub use crate::workload::settings::{Place, Target};
use crate::{
    Error,
    linux::{
        self, Job,
        sockets::{self, ESTABLISHING, Options, Worksite},
        veth,
    },
    live::{self, Seen, Watch},
    organizations::Organization,
    ours::{kernel::Counters, network},
    session::{Backend, Session, Traits, Window, Workers},
    workload::{Configuration, Control, Phase, SEGMENT, Sample, Settings, Tally, Times},
};
use control::{ANSWER, Channel, Counted, Message, PROTOCOL, Work, printable};
use perimeter::link::named::HostDevice;
use perimeter::link::wire::{self, WireConfig};
use perimeter::{Native, Stack};
use rustix::fd::OwnedFd;
use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, ToSocketAddrs},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Port of a sink, unless another is given: discard (RFC 863).
const DISCARD: u16 = 9;

/// `HOST` or `HOST:PORT` as an IPv4 address; the name is looked up.
///
/// # Errors
/// [`Error::Input`] with one line.
pub fn resolve(text: &str, sink: bool) -> Result<SocketAddrV4, Error> {
    let usual = if sink { DISCARD } else { control::PORT };
    let (host, port) = match text.rsplit_once(':') {
        None => (text, usual),
        Some((host, port)) => match port.parse::<u16>() {
            Ok(port) if !host.is_empty() && !host.contains(':') => (host, port),
            _ => {
                let line = format!("`{text}` is no HOST or HOST:PORT (IPv4)");
                return Err(Error::Input(line));
            }
        },
    };
    let found = (host, port)
        .to_socket_addrs()
        .map_err(|e| Error::Input(format!("`{host}`: {e}")))?
        .find_map(|a| match a {
            SocketAddr::V4(a) => Some(a),
            SocketAddr::V6(_) => None,
        });
    found.ok_or_else(|| Error::Input(format!("`{host}` has no IPv4 address")))
}

/// `A.B.C.D/LENGTH`, the address of a host.
///
/// # Errors
/// A line on what is wrong.
pub fn subnet(text: &str) -> Result<(Ipv4Addr, u8), String> {
    let parsed = text
        .split_once('/')
        .and_then(|(a, p)| Some((a.parse().ok()?, p.parse().ok()?)))
        .filter(|(_, prefix)| (1..=30).contains(prefix));
    let parsed = parsed
        .ok_or_else(|| format!("`{text}` is no IPv4 address with a prefix, as 10.0.0.2/24"))?;
    // Whoever builds stacks knows what an interface can have; nothing is built of this one.
    let ([end, _], _) = wire::pair(&Native::default(), WireConfig::default());
    let refused = Stack::builder().interface(end, &[text]).err();
    refused.map_or(Ok(parsed), |e| Err(e.to_string()))
}

/// Whether the interface of a device that must be there already is.
///
/// # Errors
/// A line that says that it is not.
pub fn present(device: &HostDevice) -> Result<(), Error> {
    let (HostDevice::Packet(name) | HostDevice::Xdp(name)) = device else {
        return Ok(());
    };
    match Path::new("/sys/class/net").join(name).exists() {
        true => Ok(()),
        false => Err(Error::Input(format!(
            "--device {device}: this machine has no interface {name}"
        ))),
    }
}

/// The backend of runs between machines.
pub struct Client {
    target: Target,
    /// What was learned of the other end.
    told: Arc<Mutex<Vec<String>>>,
}

impl Client {
    /// To `target`.
    pub fn new(target: Target) -> Client {
        Client {
            target,
            told: Arc::default(),
        }
    }
}

impl Backend for Client {
    fn check(&mut self, _: &Settings, configurations: &[Configuration]) -> Result<(), Error> {
        for c in configurations {
            sockets::allow_descriptors(c.connections, c.threads)?;
        }
        Ok(())
    }

    fn traits(&self, _: &Settings, c: &Configuration) -> Traits {
        let mut notes = self
            .told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if self.target.sink {
            notes.push(format!(
                "to a sink at {}: counted when the stack took it, up to a send buffer early",
                self.target
            ));
        }
        let ours = matches!(c.organization, Organization::Ours(_));
        Traits {
            device: match self.target.place.as_ref().filter(|_| ours) {
                Some(place) => format!("net/{}", place.device.kind()),
                None => "net".into(),
            },
            inbound: if ours { "own" } else { "kernel" }.into(),
            comparable: true,
            notes,
        }
    }

    fn prepare(
        &mut self,
        settings: &Settings,
        configuration: &Configuration,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        let (channel, to, token, version) = match self.target.sink {
            true => (None, self.target.address, String::new(), None),
            false => {
                let (channel, to, token, version) = self.hello(settings, configuration)?;
                (Some(channel), to, token, Some(version))
            }
        };
        let (workers, counters, file) = match (&configuration.organization, &self.target.place) {
            (Organization::Ours(org), Some(place)) => {
                let way = network::Way { place, to, token };
                let (workers, counters) =
                    network::workers(org, settings, configuration, way, deadline)?;
                (workers, Some(counters), None)
            }
            _ => {
                let pinned = configuration.organization.is_pinned();
                let job = Job::new(pinned)?;
                let (roles, _) = linux::roles(settings);
                let worker = |i: usize| {
                    let share = share(configuration, i);
                    let site = Worksite {
                        namespace: None,
                        options: Options::of(settings),
                        deadline: Some(deadline.unwrap_or_else(|| Instant::now() + ESTABLISHING)),
                    };
                    let token = token.clone();
                    let make = move |_: &Control| {
                        sockets::open_to(&site, to.into(), share, token.as_bytes())
                    };
                    (format!("app-{i}"), job.worker(roles, Some(i), make))
                };
                let workers = (0..configuration.threads).map(worker).collect();
                (workers, None, Some(job.file))
            }
        };
        let workers = Workers::start_second(workers)?;
        let mut session = NetSession {
            workers,
            channel,
            _file: file,
            counters,
            told: self.told.clone(),
            peer: (self.target.to_string(), version),
        };
        session.say(&Message::Connected)?;
        session.expect(&Message::Accepted, ESTABLISHING)?;
        Ok(Box::new(session))
    }
}

/// How many of the connections are thread `i`'s.
fn share(c: &Configuration, i: usize) -> usize {
    let n = c.connections as usize;
    n / c.threads + usize::from(i < n % c.threads)
}

impl Client {
    /// Calls the server: the channel, where the data goes, its token, and the server's version.
    fn hello(
        &self,
        settings: &Settings,
        configuration: &Configuration,
    ) -> Result<(Channel, SocketAddrV4, String, String), Error> {
        let name = self.target.to_string();
        let stream = TcpStream::connect_timeout(&self.target.address.into(), ANSWER);
        let stream = stream.map_err(|e| {
            Error::Unavailable(format!(
                "{name}: {e}; is `perimeter bench --listen` running there?"
            ))
        })?;
        let mut channel = Channel::new(stream, name)?;
        channel.send(&Message::Hello {
            protocol: PROTOCOL,
            version: self.target.version.clone(),
            work: Work::of(settings, configuration.connections),
        })?;
        match channel.receive(ANSWER)? {
            Message::Ready {
                port,
                token,
                version,
            } if token.len() == control::TOKEN => {
                let to = SocketAddrV4::new(*self.target.address.ip(), port);
                Ok((channel, to, token, version))
            }
            other => Err(channel.unexpected(other)),
        }
    }
}

/// A prepared run. The workers come first, so that their threads have ended before what they share is
/// dropped.
struct NetSession {
    workers: Workers,
    channel: Option<Channel>,
    /// What the host's sockets send.
    _file: Option<Arc<OwnedFd>>,
    counters: Option<Counters>,
    told: Arc<Mutex<Vec<String>>>,
    /// The other end's address, and its version.
    peer: (String, Option<String>),
}

impl NetSession {
    fn say(&mut self, message: &Message) -> Result<(), Error> {
        match &mut self.channel {
            Some(channel) => channel.send(message),
            None => Ok(()),
        }
    }

    fn expect(&mut self, message: &Message, within: Duration) -> Result<(), Error> {
        let Some(channel) = &mut self.channel else {
            return Ok(());
        };
        match channel.receive(within)? {
            said if said == *message => Ok(()),
            other => Err(channel.unexpected(other)),
        }
    }

    /// What the server counted.
    fn counted(&mut self) -> Result<Option<Counted>, Error> {
        let Some(channel) = &mut self.channel else {
            return Ok(None);
        };
        match channel.receive(ESTABLISHING)? {
            Message::Done(c) if c.goodput.is_finite() && c.goodput >= 0.0 => Ok(Some(c)),
            other => Err(channel.unexpected(other)),
        }
    }

    /// Why a phase failed: what the server says of it, if it says something, is the cause.
    fn cause(&mut self, e: Error) -> Error {
        let said = self.channel.as_mut().map(|c| (c.poll(LAST_WORDS), &*c));
        match said {
            Some((Ok(Some(message)), channel)) => channel.unexpected(message),
            _ => e,
        }
    }

    fn phase(&mut self, phase: Phase, time: Duration) -> Result<(), Error> {
        self.workers.run(phase, time).map_err(|e| self.cause(e))
    }
}

/// How long a server that broke off may take to say why.
const LAST_WORDS: Duration = Duration::from_millis(500);

impl Session for NetSession {
    fn watch(&mut self, watch: Watch) {
        let counters = self.counters.clone();
        let view = move |told: &[Option<Tally>]| Seen {
            goodput: live::rate(told, |t| t.sent.iter().chain(&t.received).sum()),
            ..counters.as_ref().map(|c| c.seen(told)).unwrap_or_default()
        };
        self.workers.watch(watch, Box::new(view));
    }

    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.say(&Message::Warm)?;
        self.phase(Phase::Warm, time)
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        self.say(&Message::Measure)?;
        let before = veth::retransmitted_here()?;
        let window = Window::open();
        self.phase(Phase::Measure, time)?;
        self.workers.stop();
        let window = window.close();
        let retransmits = veth::retransmitted_here()?.saturating_sub(before);
        self.say(&Message::Stop)?;
        let counted = self.counted()?;
        let NetSession {
            workers,
            counters,
            told,
            peer,
            ..
        } = *self;
        let tallies = workers.finish()?;
        let threads = tallies.len();
        let mut sample = match counters {
            Some(counters) => counters.sample(&tallies, window)?,
            None => Sample {
                retransmits,
                ..Sample::received(&tallies, window, threads, Times::of(&tallies))
            },
        };
        match &counted {
            Some(counted) => add(&mut sample, counted),
            None => {
                let sent = |t: &Tally| t.sent.iter().sum::<u64>();
                let rate = |t: &Tally| t.per_second(sent(t));
                sample.goodput = tallies.iter().map(rate).sum();
                sample.segments = tallies.iter().map(sent).sum::<u64>() as f64 / SEGMENT as f64;
            }
        }
        sample.valid = sample.times.valid() && (sample.segments > 0.0 || sample.rounds > 0);
        if let (Some(counted), (peer, Some(version))) = (&counted, &peer) {
            let each = counted.cpu_ns as f64 / sample.segments.max(1.0);
            let note = format!(
                "to {peer} (perimeter {}): cpu is this end's; the other end's threads used {each:.0} \
                 ns/seg besides its interrupts",
                printable(version)
            );
            *told.lock().unwrap_or_else(PoisonError::into_inner) = vec![note];
        }
        Ok(sample)
    }
}

/// Adds what the other end received.
fn add(sample: &mut Sample, counted: &Counted) {
    let alone = sample.segments == 0.0;
    sample.goodput += counted.goodput;
    sample.segments += counted.bytes as f64 / SEGMENT as f64;
    sample.verified_bytes = sample.verified_bytes.saturating_add(counted.verified);
    if alone {
        (sample.connection_min, sample.connection_median) = (counted.least, counted.median);
    } else if counted.bytes > 0 {
        sample.connection_min = sample.connection_min.min(counted.least);
    }
}

#[cfg(test)]
mod tests;
