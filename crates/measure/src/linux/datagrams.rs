//! Datagrams of the host kernel's own sockets: one a call, as programs do that know no better, or
//! with offloads as many as a device may cut and merge (UDP_SEGMENT, UDP_GRO).

use super::{
    sockets::{await_events, seen},
    veth::{self, Links, Namespace},
};
use crate::{
    Error,
    error::Context as _,
    host,
    live::Watch,
    session::{Session, Window, Worker, Workers},
    workload::{
        Configuration, Content, Endpoint, Phase, Ready, Roles, Sample, Settings, Times,
        datagrams::{self, BATCH, Checked, Rates},
        drive,
        sample::disturbances,
    },
};
use nix::sys::socket::{setsockopt, sockopt::UdpGroSegment, sockopt::UdpGsoSegment};
use rustix::{event::epoll, fd::OwnedFd, net::sockopt};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

/// Events taken from one wait.
const EVENTS: usize = 128;
/// What one receive call takes at most, bytes: what was merged is no longer.
const LONGEST: usize = 65_536;

/// What the sockets of a run are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Socket {
    size: usize,
    buffer: usize,
    /// Many datagrams a call.
    offload: bool,
}

impl Socket {
    /// Those that `settings` ask for.
    pub(crate) fn of(settings: &Settings, size: usize, offload: bool) -> Socket {
        Socket {
            size,
            buffer: settings.buffer,
            offload,
        }
    }

    fn open(self, (local, remote): (SocketAddr, SocketAddr)) -> Result<UdpSocket, Error> {
        let socket = UdpSocket::bind(local).context("binding a socket")?;
        socket.set_nonblocking(true).context("a socket option")?;
        socket.connect(remote).context("giving a socket its peer")?;
        let buffer = self.buffer;
        sockopt::set_socket_send_buffer_size_force(&socket, buffer)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, buffer))
            .context("setting the send buffer")?;
        sockopt::set_socket_recv_buffer_size_force(&socket, buffer)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, buffer))
            .context("setting the receive buffer")?;
        if self.offload {
            let segment = i32::try_from(self.size).unwrap_or(i32::MAX);
            setsockopt(&socket, UdpGsoSegment, &segment)
                .and_then(|()| setsockopt(&socket, UdpGroSegment, &true))
                .map_err(io::Error::from)
                .context("having datagrams cut and merged")?;
        }
        Ok(socket)
    }
}

/// One thread's sockets with their epoll.
pub(crate) struct KernelDatagrams {
    epoll: OwnedFd,
    sockets: Vec<UdpSocket>,
    socket: Socket,
    content: Content,
    events: Vec<epoll::Event>,
    scratch: Vec<u8>,
    checked: Checked,
}

impl KernelDatagrams {
    /// A thread in that namespace, on that core if any, whose sockets have these ends.
    pub(crate) fn worker(
        (site, core): (Arc<Namespace>, Option<usize>),
        ends: Vec<(SocketAddr, SocketAddr)>,
        socket: Socket,
        roles: Roles,
        content: Content,
    ) -> Worker {
        let roles = Roles {
            write_size: socket.size * datagrams::batch(socket.size),
            ..roles
        };
        Box::new(move |control, set| {
            if let Some(core) = core {
                host::pin(core);
            }
            super::sockets::enter(Some(&site))?;
            let mut endpoint = KernelDatagrams::make(&ends, socket, roles, content.clone())?;
            set();
            drive(&mut endpoint, roles, &content, control)
        })
    }

    fn make(
        ends: &[(SocketAddr, SocketAddr)],
        socket: Socket,
        roles: Roles,
        content: Content,
    ) -> Result<KernelDatagrams, Error> {
        let mut this = KernelDatagrams {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).context("making a poller")?,
            sockets: Vec::with_capacity(ends.len()),
            socket,
            content,
            events: Vec::with_capacity(EVENTS),
            scratch: vec![0; LONGEST],
            checked: Checked::default(),
        };
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::OUT, roles.source);
        interest.set(epoll::EventFlags::IN, roles.sink);
        for (i, ends) in ends.iter().enumerate() {
            let socket = socket.open(*ends)?;
            let data = epoll::EventData::new_u64(i as u64);
            epoll::add(&this.epoll, &socket, data, interest).context("registering a socket")?;
            this.sockets.push(socket);
        }
        Ok(this)
    }
}

/// A full queue of the kernel's is no room; that the other end is gone is told by the stop.
fn room(e: io::Error) -> io::Error {
    match e.raw_os_error() {
        Some(code) if code == rustix::io::Errno::NOBUFS.raw_os_error() => {
            io::ErrorKind::WouldBlock.into()
        }
        _ if e.kind() == io::ErrorKind::ConnectionRefused => io::ErrorKind::WouldBlock.into(),
        _ => e,
    }
}

/// What some calls came to, the last of which failed: nothing is lost by a failure behind others.
fn so_far(done: usize, e: io::Error) -> io::Result<usize> {
    match done {
        0 => Err(room(e)),
        n => Ok(n),
    }
}

impl Endpoint for KernelDatagrams {
    fn connections(&self) -> usize {
        self.sockets.len()
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        ready.clear();
        await_events(&self.epoll, &mut self.events, timeout)?;
        ready.extend(self.events.iter().map(|event| {
            let flags = event.flags;
            Ready {
                connection: event.data.u64() as usize,
                readable: flags.contains(epoll::EventFlags::IN),
                writable: flags.contains(epoll::EventFlags::OUT),
            }
        }));
        Ok(())
    }

    fn send_file(&mut self, connection: usize, at: usize, len: usize) -> io::Result<usize> {
        let (socket, data) = (
            &self.sockets[connection],
            &self.content.bytes()[at..at + len],
        );
        if self.socket.offload {
            return socket.send(data).map_err(room);
        }
        let mut done = 0;
        for datagram in data.chunks(self.socket.size) {
            match socket.send(datagram) {
                Ok(n) => done += n,
                Err(e) => return so_far(done, e),
            }
        }
        Ok(done)
    }

    fn discard(&mut self, connection: usize, _: usize) -> io::Result<usize> {
        let compared = self.checked.due();
        let mut done = 0;
        for _ in 0..BATCH {
            let n = match self.sockets[connection].recv(&mut self.scratch) {
                Ok(n) => n,
                Err(e) => return so_far(done, e),
            };
            done += n;
            if compared {
                for datagram in self.scratch[..n].chunks(self.socket.size) {
                    self.checked.compare(datagram)?;
                }
            }
        }
        Ok(done)
    }

    fn read(&mut self, connection: usize, buffer: &mut [u8]) -> io::Result<usize> {
        self.discard(connection, buffer.len())
    }

    fn verified(&self) -> Option<u64> {
        Some(self.checked.bytes())
    }
}

/// Makes the sockets of one run.
///
/// # Errors
/// What the system says.
pub(super) fn prepare(
    settings: &Settings,
    configuration: &Configuration,
    (size, offload): (usize, bool),
    (near_roles, far_roles): (Roles, Roles),
) -> Result<Box<dyn Session>, Error> {
    let links = Links::make(settings.nics, settings.mtu, offload, settings.family)?;
    let content = Content::datagrams(size);
    let socket = Socket::of(settings, size, offload);
    let pinned = configuration.organization.is_pinned();
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for (i, pairs) in datagrams::pairs(settings, configuration)
        .into_iter()
        .enumerate()
    {
        let ends = pairs.iter().map(|p| {
            let end = |ip| SocketAddr::new(ip, p.port);
            let here = veth::near_end(settings.family, p.nic);
            (end(here), end(veth::far_end(settings.family, p.nic)))
        });
        let ends: Vec<_> = ends.collect();
        let back = ends.iter().map(|(a, b)| (*b, *a)).collect();
        let core = if pinned { 0 } else { i };
        let worker = |site: &Arc<Namespace>, core, ends, roles| {
            KernelDatagrams::worker((site.clone(), core), ends, socket, roles, content.clone())
        };
        near.push((
            format!("app-{i}"),
            worker(&links.near, Some(core), ends, near_roles),
        ));
        let core = pinned.then_some(0);
        far.push((
            format!("peer-{i}"),
            worker(&links.far, core, back, far_roles),
        ));
    }
    near.append(&mut far);
    Ok(Box::new(KernelSession {
        workers: Workers::start(near)?,
        _links: links,
        threads: configuration.threads,
        size,
    }))
}

/// A prepared run; the workers come first.
struct KernelSession {
    workers: Workers,
    _links: Links,
    threads: usize,
    size: usize,
}

impl Session for KernelSession {
    fn watch(&mut self, watch: Watch) {
        self.workers.watch(watch, Box::new(seen));
    }

    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.workers.run(Phase::Warm, time)
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let window = Window::open();
        self.workers.run(Phase::Measure, time)?;
        let window = window.close();
        let tallies = self.workers.finish()?;
        let near = Rates::of(&tallies[..self.threads]);
        let times = Times::of(&tallies[..self.threads]);
        let (connection_min, connection_median) = datagrams::served(&tallies);
        let (machine, elapsed) = window;
        let base = Sample {
            elapsed,
            cpu_ns: machine.cpu_ns(),
            context_switches: machine.voluntary + machine.involuntary,
            involuntary_switches: machine.involuntary,
            migrations: machine.migrations,
            connection_min,
            connection_median,
            verified_bytes: tallies.iter().map(|t| t.verified).sum(),
            disturbances: disturbances(&machine, elapsed, tallies.len(), &times),
            ..Sample::default()
        };
        let handled = near.sent + near.received;
        let all = Rates::of(&tallies);
        Ok(datagrams::sample(base, times, all, handled, self.size))
    }
}
