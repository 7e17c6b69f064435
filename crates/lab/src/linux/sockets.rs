//! The kernel's sockets as an [`Endpoint`], and how their connections are established.

use super::veth::{self, Links};
use crate::{
    Error,
    error::Context as _,
    settings::{BUFFER, Settings},
    workload::{Endpoint, Inside, Place, Ready, Roles},
};
use rustix::{
    buffer::spare_capacity,
    event::epoll,
    fd::OwnedFd,
    fs::MemfdFlags,
    net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt},
    process::{Resource, Rlimit, getrlimit, setrlimit},
    time::Timespec,
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
    time::{Duration, Instant},
};

/// First listening port.
const PORT: u16 = 5001;
/// Connections to one address and port: fewer than the 28,232 ports that the kernel picks from by
/// default (net.ipv4.ip_local_port_range).
const PER_PORT: usize = 16_384;
/// Congestion control of every socket: the host's default may pace (bbr), and our stack's is CUBIC.
const CONGESTION: &str = "cubic";
/// Descriptors of a run besides its connections': listeners, pollers, the file, standard streams.
const SPARE_DESCRIPTORS: u64 = 128;
/// Events taken from one wait.
const EVENTS: usize = 128;

/// Raises the limit on descriptors for `connections`, two for each.
///
/// # Errors
/// [`Error::Unavailable`] if the system doesn't permit that many.
pub fn allow_descriptors(connections: u32, settings: &Settings) -> Result<(), Error> {
    let need = 2 * u64::from(connections)
        + SPARE_DESCRIPTORS
        + 4 * (settings.threads + settings.nics) as u64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|n| n >= need) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|m| m.max(need));
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(need),
            maximum,
        },
    );
    raised.map_err(|_| {
        Error::Unavailable(format!(
            "linux with {connections} connections needs {need} descriptors, but the limit is {}; \
             raise it (`ulimit -Hn`) or list fewer connections",
            limit.maximum.unwrap_or(0)
        ))
    })
}

/// A file in memory with the given content.
///
/// # Errors
/// What the system says.
pub fn memory_file(content: &[u8]) -> Result<OwnedFd, Error> {
    let file = rustix::fs::memfd_create("perimeter-bench", MemfdFlags::CLOEXEC)
        .context("making a file in memory")?;
    let mut done = 0;
    while done < content.len() {
        done += rustix::io::pwrite(&file, &content[done..], done as u64)
            .context("filling the file in memory")?;
    }
    Ok(file)
}

/// Both ends of an established connection.
#[derive(Debug)]
pub struct Pair {
    /// The side under test, which connected.
    pub near: OwnedFd,
    /// The peer, which accepted.
    pub far: OwnedFd,
}

/// Establishes one connection for each place, over the links or else over loopback.
///
/// # Errors
/// What the system says, or that the deadline passed.
pub fn establish(
    links: Option<&Links>,
    places: &[Place],
    deadline: Option<Instant>,
) -> Result<Vec<Pair>, Error> {
    let nics = links.map_or(1, |l| l.nics);
    let ports = places.len().div_ceil(PER_PORT).max(1);
    let listen = || {
        let mut listeners = Vec::with_capacity(nics * ports);
        for nic in 0..nics {
            let address = links.map_or(Ipv4Addr::LOCALHOST, |_| veth::far_address(nic));
            for port in 0..ports {
                // Loopback has the host's ports: let it pick free ones.
                let port = if links.is_some() {
                    PORT + port as u16
                } else {
                    0
                };
                listeners.push(listener(SocketAddrV4::new(address, port))?);
            }
        }
        Ok(listeners)
    };
    let listeners = match links {
        Some(l) => l.far.within(listen)?,
        None => listen()?,
    };
    let connect = || {
        let mut pairs = Vec::with_capacity(places.len());
        for (k, place) in places.iter().enumerate() {
            if k % 64 == 0 && deadline.is_some_and(|d| Instant::now() > d) {
                return Err(Error::Run(format!(
                    "out of time after {k} of {} connections were established",
                    places.len()
                )));
            }
            let nic = place.nic % nics;
            pairs.push(pair(&listeners[nic * ports + k / PER_PORT])?);
        }
        Ok(pairs)
    };
    match links {
        Some(l) => l.near.within(connect),
        None => connect(),
    }
}

/// A TCP socket with the benchmark's buffers and congestion control, which accepted ones inherit.
fn socket() -> Result<OwnedFd, Error> {
    let socket = net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .context("opening a socket")?;
    // Without privilege over the host the forced forms are refused, and the plain ones are cut off
    // at net.core.{w,r}mem_max. The kernel doubles the value for its own bookkeeping.
    sockopt::set_socket_send_buffer_size_force(&socket, BUFFER)
        .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, BUFFER))
        .context("setting the send buffer")?;
    sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, BUFFER))
        .context("setting the receive buffer")?;
    sockopt::set_tcp_congestion(&socket, CONGESTION)
        .context("choosing cubic congestion control")?;
    // An abort at the end instead of thousands of connections in TIME_WAIT.
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).context("setting linger")?;
    Ok(socket)
}

fn listener(address: SocketAddrV4) -> Result<OwnedFd, Error> {
    let socket = socket()?;
    net::bind(&socket, &address).context("binding a listener")?;
    net::listen(&socket, 128).context("listening")?;
    Ok(socket)
}

fn pair(listener: &OwnedFd) -> Result<Pair, Error> {
    let near = socket()?;
    // The route to a NIC's far end leads over that NIC and gives its near end as source.
    let to = net::getsockname(listener).context("asking a listener's address")?;
    net::connect(&near, &to).context("connecting")?;
    let far = net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        .context("accepting")?;
    rustix::io::ioctl_fionbio(&near, true).context("making a socket non-blocking")?;
    for end in [&near, &far] {
        // Full segments only, though the file is sent in pieces.
        sockopt::set_tcp_cork(end, true).context("corking a socket")?;
    }
    Ok(Pair { near, far })
}

/// One thread's kernel sockets with their epoll, level-triggered.
pub struct KernelEndpoint {
    epoll: OwnedFd,
    sockets: Vec<OwnedFd>,
    file: Arc<OwnedFd>,
    events: Vec<epoll::Event>,
    scratch: Vec<u8>,
}

impl KernelEndpoint {
    /// Registers `sockets` for what `roles` need.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(
        sockets: Vec<OwnedFd>,
        file: Arc<OwnedFd>,
        roles: Roles,
    ) -> Result<KernelEndpoint, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("making a poller")?;
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::OUT, roles.source);
        interest.set(epoll::EventFlags::IN, roles.sink);
        for (i, socket) in sockets.iter().enumerate() {
            epoll::add(
                &epoll,
                socket,
                epoll::EventData::new_u64(i as u64),
                interest,
            )
            .context("registering a socket")?;
        }
        Ok(KernelEndpoint {
            epoll,
            sockets,
            file,
            events: Vec::with_capacity(EVENTS),
            scratch: vec![0; 2 * BUFFER],
        })
    }
}

impl Endpoint for KernelEndpoint {
    fn connections(&self) -> usize {
        self.sockets.len()
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        ready.clear();
        self.events.clear();
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as _,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match epoll::wait(
            &self.epoll,
            spare_capacity(&mut self.events),
            Some(&timeout),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        for event in &self.events {
            let flags = event.flags;
            let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            ready.push(Ready {
                connection: event.data.u64() as usize,
                readable: broken || flags.contains(epoll::EventFlags::IN),
                writable: broken || flags.contains(epoll::EventFlags::OUT),
            });
        }
        Ok(())
    }

    fn send_file(&mut self, connection: usize, at: usize, len: usize) -> io::Result<usize> {
        let mut offset = at as u64;
        let socket = &self.sockets[connection];
        Ok(rustix::fs::sendfile(
            socket,
            &*self.file,
            Some(&mut offset),
            len,
        )?)
    }

    fn discard(&mut self, connection: usize, max: usize) -> io::Result<usize> {
        let max = max.min(self.scratch.len());
        // tcp(7): with MSG_TRUNC the kernel drops the bytes and leaves the buffer alone.
        let (_, n) = net::recv(
            &self.sockets[connection],
            &mut self.scratch[..max],
            RecvFlags::TRUNC,
        )?;
        Ok(n)
    }

    fn read(&mut self, connection: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let (n, _) = net::recv(&self.sockets[connection], buffer, RecvFlags::empty())?;
        Ok(n)
    }

    fn inside(&self) -> Option<Inside> {
        None
    }
}
