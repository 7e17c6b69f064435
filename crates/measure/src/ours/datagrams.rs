//! Datagrams of UDP over a stack of ours: to the ideal peer, to the kernel's sockets, or to a second
//! stack. A batch a call: [`UdpSocket::send_segments`] and [`UdpSocket::recv_many`].

use super::{
    end::{builder, founders, serve, with_control},
    endpoint::Founder,
    kernel::Interfaces,
    mem::{self, DATAGRAMS_TO},
    times::{Counted, Marks, divide},
};
use crate::{
    Error,
    error::Context as _,
    host,
    linux::{self, datagrams::KernelDatagrams, veth},
    live::{self, Seen, Watch},
    session::{Session, Window, Worker, Workers},
    workload::{
        Configuration, Content, Device, Endpoint, Phase, Ready, Roles, Sample, Settings, Tally,
        Times,
        datagrams::{self, BATCH, Checked, Pair, Rates},
        drive,
        sample::disturbances,
    },
};
use perimeter::{
    Datagrams, Events, Interest, Native, Offload, OrgSpec, Poll, Stack, Token, UdpSocket,
    link::{mem::PeerHandle, wire::pair},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

/// Events taken from one wait.
const EVENTS: usize = 256;

/// What the report says about a row.
pub(super) fn notes() -> Vec<String> {
    vec![format!(
        "up to {BATCH} datagrams a call; segments are datagrams here, and times are for one"
    )]
}

/// Makes the sockets of one run.
///
/// # Errors
/// What went wrong; nothing is left behind.
pub(super) fn prepare(
    org: OrgSpec,
    settings: &Settings,
    configuration: &Configuration,
    size: usize,
) -> Result<Box<dyn Session>, Error> {
    let native = Native::default().with_policy(settings.locks);
    let near = with_control(builder(&org, settings, native), settings);
    let run = Run {
        org: &org,
        settings,
        configuration,
        size,
        content: Content::datagrams(size),
    };
    match settings.device {
        Device::Mem => run.to_peer(native, near),
        Device::Pair => run.to_stack(native, near),
        _ => run.to_kernel(near),
    }
}

/// One run that is being prepared.
struct Run<'a> {
    org: &'a OrgSpec,
    settings: &'a Settings,
    configuration: &'a Configuration,
    size: usize,
    content: Content,
}

impl Run<'_> {
    fn to_peer(&self, native: Native, near: perimeter::Builder) -> Result<Box<dyn Session>, Error> {
        let (near, peers) = mem::with_nics(&native, near, self.settings, self.configuration)?;
        let hosts: Vec<IpAddr> = peers.iter().map(|p| p.config().address()).collect();
        let ends = |p: &Pair| {
            let next = match hosts[p.nic] {
                IpAddr::V4(ip) => IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() + 1)),
                IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() + 1)),
            };
            ((hosts[p.nic], p.port).into(), (next, DATAGRAMS_TO).into())
        };
        let mut session = self.session();
        let roles = linux::roles(self.settings).0;
        let workers = self.workers(("app", 0), near, roles, &mut session.marks, &ends)?;
        session.peers = peers;
        session.start(workers)
    }

    fn to_stack(
        &self,
        native: Native,
        mut near: perimeter::Builder,
    ) -> Result<Box<dyn Session>, Error> {
        let mut far = builder(self.org, self.settings, native);
        for nic in 0..self.settings.nics {
            let ([a, b], _) = pair(
                &native,
                super::pair::wire(self.settings, self.configuration, nic),
            );
            near = with_interface(near, Box::new(a), veth::near_end(self.settings.family, nic))?;
            far = with_interface(far, Box::new(b), veth::far_end(self.settings.family, nic))?;
        }
        let (here, there) = linux::roles(self.settings);
        let ends = |p: &Pair| self.ends(p);
        let back = |p: &Pair| {
            let (near, far) = self.ends(p);
            (far, near)
        };
        let mut session = self.session();
        let mut all = self.workers(("app", 0), near, here, &mut session.marks, &ends)?;
        let first = self.configuration.threads;
        all.append(&mut self.workers(("far", first), far, there, &mut session.marks, &back)?);
        session.start(all)
    }

    fn to_kernel(&self, mut near: perimeter::Builder) -> Result<Box<dyn Session>, Error> {
        let settings = self.settings;
        let link = (settings.mtu, settings.family);
        let large = settings.offload == Offload::Device;
        let interfaces = Interfaces::make(settings.device, settings.nics, 1, link, large)?;
        let (devices, held) = interfaces.split();
        for (nic, device) in devices.into_iter().enumerate() {
            near = with_interface(near, device, veth::near_end(settings.family, nic))?;
        }
        let (here, there) = linux::roles(settings);
        let ends = |p: &Pair| self.ends(p);
        let mut session = self.session();
        let mut all = self.workers(("app", 0), near, here, &mut session.marks, &ends)?;
        let pairs = datagrams::pairs(settings, self.configuration);
        for (i, pairs) in pairs.into_iter().enumerate() {
            let ends = pairs.iter().map(|p| {
                let (near, far) = self.ends(p);
                (far, near)
            });
            let site = held.namespace.clone();
            let socket = linux::datagrams::Socket::of(settings, self.size, large);
            let worker = KernelDatagrams::worker(
                (site, None),
                ends.collect(),
                socket,
                there,
                self.content.clone(),
            );
            all.push((format!("peer-{i}"), worker));
        }
        session.held = Some(held);
        session.start(all)
    }

    /// Both ends of a pair between a near and a far end of a link.
    fn ends(&self, p: &Pair) -> (SocketAddr, SocketAddr) {
        let family = self.settings.family;
        let (near, far) = (veth::near_end(family, p.nic), veth::far_end(family, p.nic));
        ((near, p.port).into(), (far, p.port).into())
    }

    fn session(&self) -> DatagramSession {
        DatagramSession {
            workers: None,
            marks: Vec::new(),
            peers: Vec::new(),
            held: None,
            threads: self.configuration.threads,
            size: self.size,
            device: self.settings.device,
        }
    }

    /// The application's threads at one end.
    fn workers(
        &self,
        (name, first_core): (&str, usize),
        builder: perimeter::Builder,
        roles: Roles,
        marks: &mut Vec<Marks>,
        ends: &dyn Fn(&Pair) -> (SocketAddr, SocketAddr),
    ) -> Result<Vec<(String, Worker)>, Error> {
        let founders = founders(self.org, builder, self.configuration)?;
        let pairs = datagrams::pairs(self.settings, self.configuration);
        let mark = Marks::default();
        marks.push(mark.clone());
        let roles = Roles {
            write_size: self.size * datagrams::batch(self.size),
            ..roles
        };
        let mut list: Vec<(String, Worker)> = Vec::new();
        for (thread, (founder, pairs)) in founders.into_iter().zip(pairs).enumerate() {
            let task = Task {
                ends: pairs.iter().map(ends).collect(),
                serve: serve(self.settings, self.configuration, thread),
                roles,
                size: self.size,
                marks: (thread == 0).then(|| mark.clone()),
            };
            let content = self.content.clone();
            let worker: Worker = Box::new(move |control, set| {
                host::pin(first_core + thread);
                let mut endpoint = DatagramEndpoint::make(founder, task, content.clone())?;
                set();
                drive(&mut endpoint, roles, &content, control)
            });
            list.push((format!("{name}-{thread}"), worker));
        }
        Ok(list)
    }
}

fn with_interface(
    builder: perimeter::Builder,
    device: Box<dyn perimeter::link::Device>,
    address: IpAddr,
) -> Result<perimeter::Builder, Error> {
    let text = format!("{address}/{}", veth::prefix(address));
    let with = builder.interface(device, &[&text]);
    with.map_err(|e| Error::Run(e.to_string()))
}

/// What one thread has to do.
struct Task {
    /// Where each of its sockets is, and its peer.
    ends: Vec<(SocketAddr, SocketAddr)>,
    /// Receive queues that it serves while it waits.
    serve: Vec<u16>,
    roles: Roles,
    size: usize,
    marks: Option<Marks>,
}

/// One thread's sockets, with their poller. They come first, so that they close before the stack
/// goes.
struct DatagramEndpoint {
    sockets: Vec<UdpSocket>,
    batch: Datagrams,
    poll: Poll,
    events: Events,
    content: Content,
    size: u16,
    checked: Checked,
    marks: Option<Marks>,
    stack: Stack,
}

impl DatagramEndpoint {
    fn make(founder: Founder, task: Task, content: Content) -> Result<DatagramEndpoint, Error> {
        let stack = match founder {
            Founder::Build(builder) => builder.build().map_err(|e| Error::Run(e.to_string()))?,
            Founder::Join(stack) => stack,
        };
        let mut poll = stack.poll().context("making a poller")?;
        poll.serve(&task.serve);
        let interest = match (task.roles.source, task.roles.sink) {
            (true, true) => Interest::BOTH,
            (true, false) => Interest::WRITABLE,
            _ => Interest::READABLE,
        };
        let mut sockets = Vec::with_capacity(task.ends.len());
        for (i, (local, remote)) in task.ends.iter().enumerate() {
            let socket = stack.bind_udp(local).context("binding a socket")?;
            socket.set_nonblocking(true).context("a socket option")?;
            socket.connect(remote).context("giving a socket its peer")?;
            let registry = poll.registry();
            registry
                .register(&socket, Token(i), interest)
                .context("registering a socket")?;
            sockets.push(socket);
        }
        Ok(DatagramEndpoint {
            sockets,
            batch: Datagrams::with_capacity(BATCH),
            poll,
            events: Events::with_capacity(EVENTS),
            content,
            size: task.size as u16,
            checked: Checked::default(),
            marks: task.marks,
            stack,
        })
    }
}

impl Endpoint for DatagramEndpoint {
    fn connections(&self) -> usize {
        self.sockets.len()
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        ready.clear();
        self.poll.poll(&mut self.events, Some(timeout))?;
        ready.extend(self.events.iter().map(|event| Ready {
            connection: event.token().0,
            readable: event.is_readable(),
            writable: event.is_writable(),
        }));
        Ok(())
    }

    fn send_file(&mut self, connection: usize, at: usize, len: usize) -> io::Result<usize> {
        let data = &self.content.bytes()[at..at + len];
        self.sockets[connection].send_segments(data, self.size, None)
    }

    fn discard(&mut self, connection: usize, _: usize) -> io::Result<usize> {
        self.sockets[connection].recv_many(&mut self.batch)?;
        let compared = self.checked.due();
        let mut bytes = 0;
        for d in self.batch.iter() {
            bytes += d.data.len();
            if compared {
                self.checked.compare(d.data)?;
            }
        }
        Ok(bytes)
    }

    fn read(&mut self, connection: usize, buffer: &mut [u8]) -> io::Result<usize> {
        self.discard(connection, buffer.len())
    }

    fn verified(&self) -> Option<u64> {
        Some(self.checked.bytes())
    }

    fn mark(&mut self) {
        if let Some(marks) = &self.marks {
            marks.mark(&self.stack);
        }
    }

    fn look(&mut self) {
        if let Some(marks) = &self.marks {
            marks.look(&self.stack);
        }
    }
}

/// A prepared run. The workers come first, so that their threads have ended before what they share
/// is dropped.
struct DatagramSession {
    workers: Option<Workers>,
    marks: Vec<Marks>,
    peers: Vec<PeerHandle<Native>>,
    held: Option<super::kernel::Held>,
    threads: usize,
    size: usize,
    device: Device,
}

impl DatagramSession {
    fn start(mut self, workers: Vec<(String, Worker)>) -> Result<Box<dyn Session>, Error> {
        self.workers = Some(Workers::start(workers)?);
        Ok(Box::new(self))
    }

    fn workers(&mut self) -> Result<&mut Workers, Error> {
        let none = || Error::Run("the run has no threads".into());
        self.workers.as_mut().ok_or_else(none)
    }

    /// What the ideal peers have sent and received so far, bytes; that it is right.
    fn at_peers(&self) -> Result<(u64, u64, u64), Error> {
        let (mut sent, mut received, mut verified) = (0, 0, 0);
        for peer in &self.peers {
            let counts = peer.counts();
            if counts.verify_errors > 0 || counts.malformed > 0 {
                return Err(Error::Run(format!(
                    "the peer saw {} wrong datagrams, {} malformed frames",
                    counts.verify_errors, counts.malformed
                )));
            }
            sent += peer.datagrams_sent() * self.size as u64;
            received += counts.datagram_bytes;
            verified += counts.verified * self.size as u64;
        }
        Ok((sent, received, verified))
    }

    fn counted(&self) -> Result<Counted, Error> {
        let mut all = self.marks.iter().map(Marks::counted);
        let first = all.next().unwrap_or_else(|| Ok(Counted::default()))?;
        all.try_fold(first, |sum, next| Ok(sum.with(next?)))
    }
}

impl Session for DatagramSession {
    fn watch(&mut self, watch: Watch) {
        let view = move |told: &[Option<Tally>]| Seen {
            goodput: live::rate(told, |t| t.sent.iter().chain(&t.received).sum()),
            ..Seen::default()
        };
        if let Some(workers) = &mut self.workers {
            workers.watch(watch, Box::new(view));
        }
    }

    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        // All sockets are bound.
        self.peers.iter().for_each(PeerHandle::release_datagrams);
        self.workers()?.run(Phase::Warm, time)
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let window = Window::open();
        let (before, begun) = (self.at_peers()?, Instant::now());
        self.workers()?.run(Phase::Measure, time)?;
        let (after, ended) = (self.at_peers()?, Instant::now());
        let (machine, elapsed) = window.close();
        let workers = self.workers.take();
        let workers = workers.ok_or_else(|| Error::Run("the run has no threads".into()))?;
        let tallies = workers.finish()?;
        let counted = self.counted()?;
        let (near, far) = tallies.split_at(self.threads);
        let here = Rates::of(near);
        let per_second = |a: u64, b: u64| (b - a) as f64 / (ended - begun).as_secs_f64();
        let there = match self.device {
            Device::Mem => Rates {
                sent: per_second(before.0, after.0),
                received: per_second(before.1, after.1),
            },
            _ => Rates::of(far),
        };
        let all = here.with(there);
        let times = match self.device {
            Device::Mem => divide(near, &counted),
            Device::Pair => divide(&tallies, &counted),
            _ => Times {
                stack: None,
                peer: None,
                ..divide(near, &counted)
            },
        };
        // In a pair each is handled at both ends, whose times are one sum.
        let handled = match self.device {
            Device::Pair => all.received,
            _ => here.sent + here.received,
        };
        let (connection_min, connection_median) = datagrams::served(&tallies);
        let threads = counted.threads(tallies.len());
        let verified: u64 = tallies.iter().map(|t| t.verified).sum();
        let base = Sample {
            elapsed,
            cpu_ns: machine.cpu_ns(),
            locks: counted.locks,
            paths: counted.paths,
            context_switches: machine.voluntary + machine.involuntary,
            involuntary_switches: machine.involuntary,
            migrations: machine.migrations,
            connection_min,
            connection_median,
            verified_bytes: verified + after.2,
            disturbances: disturbances(&machine, elapsed, threads, &times),
            ..Sample::default()
        };
        Ok(datagrams::sample(base, times, all, handled, self.size))
    }
}
