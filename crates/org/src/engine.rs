//! The facade's back: one object-safe trait, one indirect call per socket call.
//!
//! Calls carry owned or copied arguments only, so that a proxy in another process can
//! implement the same trait.

mod calls;
mod datagrams;
mod running;

pub use crate::error::EngineError;
pub use datagrams::{CopiedOut, Datagrams, Transmit};
pub use running::Running;

use crate::Binding;
use crate::pef::event::{End, EventId, EventSpec, Layer, TraceSink};
use crate::spec::OrgSpec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use perimeter_base::Time;
use perimeter_stack::hold::{Serial, Verdict};
use perimeter_stack::listener::ListenSpec;
use perimeter_stack::net::Cidr;
use perimeter_stack::ops::{Data, How, Received, Sent, Setting};
use perimeter_stack::poller::{Alarm, Notify, Ready};
use perimeter_stack::ready::Want;
use perimeter_stack::tasks::Tasks;
use perimeter_stack::{ConnInfo, Lease, SockId};
use perimeter_sync::{LockStats, Profile};
use perimeter_tcp::{Config, State, TcpError};
use perimeter_wire::FlowKey;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::os::fd::RawFd;
use std::sync::Arc;

/// A connection, and where its layers run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspected {
    /// What the socket can be asked for.
    pub info: ConnInfo,
    /// What the organization says.
    pub binding: Binding,
}

/// A listener.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listening {
    /// Its name.
    pub id: SockId,
    /// Address that it is bound to. The unspecified one of a family is any of that family; `None`:
    /// any of both.
    pub addr: Option<IpAddr>,
    /// Port.
    pub port: u16,
    /// Connections that wait to be accepted.
    pub queued: u32,
    /// The most that may.
    pub backlog: u32,
    /// The interface that it is bound to, if it is.
    pub device: Option<u16>,
    /// Time to live of its SYN-ACKs, and of what connections begin with that it accepts.
    pub ttl: u8,
    /// Their type of service.
    pub tos: u8,
}

/// What a stack has counted.
///
/// ```
/// use perimeter_org::Stats;
/// use perimeter_sync::LockStats;
///
/// /// Of all attempts to take locks, the part that had to wait.
/// fn contention(stats: &Stats) -> f64 {
///     let mut all = LockStats::default();
///     stats.locks.values().for_each(|l| all.add(*l));
///     all.contended as f64 / all.acquisitions.max(1) as f64
/// }
/// let mut stats = Stats::default();
/// stats.counts.push(("retransmits".into(), 7));
/// assert_eq!((stats.count("retransmits"), stats.count("none of it")), (7, 0));
/// assert_eq!(contention(&stats), 0.0);
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Counters by name.
    pub counts: Vec<(String, u64)>,
    /// Locks by class name, those that were used.
    pub locks: BTreeMap<&'static str, LockStats>,
    /// How long locks were waited for and held, and what queueing, parking and waking took, where
    /// that is timed.
    pub profile: Option<Box<Profile>>,
    /// Time spent on the other end's work inside our devices, ns.
    pub peer_ns: u64,
    /// Connections, those that linger included.
    pub connections: usize,
    /// Memory that sockets pin, bytes.
    pub memory: u64,
    /// Only counters and memory are here: the thread that the stack belongs to, which alone may
    /// look at the rest, did not come by within a second.
    pub partial: bool,
}

impl Stats {
    /// The counter of that name; 0 if there is none.
    pub fn count(&self, name: &str) -> u64 {
        self.counts
            .iter()
            .find(|(n, _)| n == name)
            .map_or(0, |(_, v)| *v)
    }
}

/// What peers have not acknowledged.
///
/// ```
/// use perimeter_org::Undelivered;
///
/// let mut left = Undelivered::default();
/// assert!(left.is_none(), "all has arrived");
/// (left.connections, left.bytes) = (2, 3000);
/// assert!(!left.is_none());
/// assert_eq!(left.to_string(), "2 connections with 3000 bytes that were not delivered");
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undelivered {
    /// Connections with data or a FIN that is not acknowledged.
    pub connections: usize,
    /// Bytes in their send buffers.
    pub bytes: u64,
}

impl Undelivered {
    /// Whether there is nothing.
    pub fn is_none(&self) -> bool {
        self.connections == 0
    }

    /// Adds what a connection owes.
    pub(crate) fn add(&mut self, c: &ConnInfo) {
        // TIME-WAIT and FIN-WAIT-2 come after the acknowledgment of our FIN.
        let owes = match c.tcp.state {
            State::Closed | State::TimeWait | State::FinWait2 => false,
            State::FinWait1 | State::Closing | State::LastAck => true,
            _ => c.snd_queued > 0,
        };
        if owes {
            self.connections += 1;
            self.bytes += u64::from(c.snd_queued);
        }
    }
}

impl core::fmt::Display for Undelivered {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (n, bytes) = (self.connections, self.bytes);
        write!(
            f,
            "{n} connections with {bytes} bytes that were not delivered"
        )
    }
}

/// A running stack of any organization on any platform.
pub trait Engine: Datagrams + Send + Sync {
    /// Which organization it is.
    fn spec(&self) -> &OrgSpec;
    /// The time on its platform.
    fn now(&self) -> Time;
    /// What connections are made with unless told otherwise.
    fn tcp_config(&self) -> Config;
    /// Addresses by interface.
    fn addrs(&self) -> Vec<Vec<Cidr>>;
    /// IPv4 addresses that servers gave to interfaces for a time. From any thread, as
    /// [`Engine::inspect`]; none where the thread that the stack belongs to did not come by within a
    /// second.
    fn leases(&self) -> Vec<Lease> {
        Vec::new()
    }
    /// IPv6 addresses that were to be the stack's and that others turned out to have, with their
    /// interfaces.
    fn duplicates(&self) -> Vec<(u16, Ipv6Addr)>;
    /// Names of the interfaces in their order, the loopback's last.
    fn interfaces(&self) -> Vec<String>;
    /// Starts to open a connection.
    fn connect(
        &self,
        local: (Option<IpAddr>, u16),
        remote: SocketAddr,
        config: &Config,
    ) -> Result<SockId, EngineError> {
        self.connect_by(None, local, remote, config)
    }
    /// As [`Engine::connect`], bound to an interface if one is given.
    fn connect_by(
        &self,
        device: Option<u16>,
        local: (Option<IpAddr>, u16),
        remote: SocketAddr,
        config: &Config,
    ) -> Result<SockId, EngineError>;
    /// Makes a listener; yields its name and port, which is 0 if it has all. The unspecified
    /// address of a family is any of that family, `None` any of both.
    fn listen(&self, spec: &ListenSpec) -> Result<(SockId, u16), EngineError>;
    /// The next SYN that a listener holds, to be decided: its flow, and its name. Readiness for that
    /// is [`ready::OUT`](perimeter_stack::ready::OUT), as it is [`ready::IN`](perimeter_stack::ready::IN)
    /// to accept.
    fn request(&self, listener: SockId) -> Result<(FlowKey, Serial), EngineError>;
    /// Decides it; whether it was still there. Under `up`, from another thread than the stack's own,
    /// that one does so at its next look at the devices.
    fn decide(
        &self,
        listener: SockId,
        request: (FlowKey, Serial),
        verdict: Verdict,
    ) -> Result<bool, EngineError>;
    /// Takes an established connection, and its flow, off a listener's queue. The connection's
    /// own perimeter is not entered.
    fn accept(&self, listener: SockId) -> Result<(SockId, FlowKey), EngineError>;
    /// Appends to the stream.
    fn send(&self, id: SockId, data: Data<'static>, more: bool) -> Result<Sent, EngineError>;
    /// As [`Engine::send`], with a copy straight from the caller's buffers to the stream's, where
    /// the calling thread enters the connection; `None` where it does not.
    fn write(
        &self,
        id: SockId,
        bufs: &[IoSlice<'_>],
        more: bool,
    ) -> Option<Result<Sent, EngineError>>;
    /// The calling thread begins to send a batch, or ends one: doorbells of its calls wait for each
    /// other until then, or until it waits or serves devices.
    fn batch(&self, begins: bool) -> Result<(), EngineError>;
    /// Takes from the stream.
    fn recv(&self, id: SockId, max: usize, peek: bool) -> Result<Received, EngineError>;
    /// Gives buffers back that [`Engine::recv`] yielded.
    fn recycle(&self, bufs: Received);
    /// Shuts down directions.
    fn shutdown(&self, id: SockId, how: How) -> Result<(), EngineError>;
    /// Lets go of a socket of any kind.
    fn close(&self, id: SockId, abort: bool) -> Result<(), EngineError>;
    /// Changes a setting; a listener's goes over to connections that it accepts later.
    fn set(&self, id: SockId, s: Setting) -> Result<(), EngineError>;
    /// Looks at a listener.
    fn listening(&self, id: SockId) -> Result<Listening, EngineError>;
    /// Looks at a connection.
    fn look(&self, id: SockId) -> Result<ConnInfo, EngineError>;
    /// What a socket of any kind is ready for now, as in [`perimeter_stack::ready`].
    fn readiness(&self, id: SockId) -> Result<u8, EngineError>;
    /// SO_ERROR, and the state.
    fn take_error(&self, id: SockId) -> Result<(Option<TcpError>, State), EngineError>;
    /// Bytes appended, and bytes whose memory has been given back.
    fn released(&self, id: SockId) -> Result<(u64, u64), EngineError>;
    /// Blocks until a direction ([`IN`](perimeter_stack::ready::IN),
    /// [`OUT`](perimeter_stack::ready::OUT)) is ready.
    fn wait(&self, id: SockId, direction: u8, deadline: Time) -> Result<(), EngineError>;
    /// Makes a poller that drives the receive queues `queues` itself.
    fn poller(&self) -> Result<u32, EngineError>;
    /// Closes a poller.
    fn poller_close(&self, poller: u32);
    /// Registers a socket.
    fn register(
        &self,
        poller: u32,
        id: SockId,
        token: usize,
        want: Want,
    ) -> Result<(), EngineError>;
    /// Removes a registration.
    fn deregister(&self, poller: u32, id: SockId) -> Result<(), EngineError>;
    /// Has a socket of any kind tell `tasks` of its readiness, until it is closed.
    fn watch(&self, id: SockId, tasks: Arc<Tasks>) -> Result<(), EngineError>;
    /// Waits for events, serving `queues` meanwhile; yields how many were appended to `out`.
    fn poll(
        &self,
        poller: u32,
        queues: &[u16],
        out: &mut Vec<Ready>,
        max: usize,
        deadline: Time,
    ) -> Result<usize, EngineError>;
    /// Wakes one thread out of [`Engine::poll`].
    fn poller_wake(&self, poller: u32);
    /// Sets who is told when the poller has events.
    fn poller_notify(&self, poller: u32, n: Arc<dyn Notify>);
    /// For who waits for a stack of one thread in a poll of the host's: the alarm that is raised
    /// when the stack has something to do, made by `make` if there is none yet, and descriptors of
    /// its devices, which are readable while frames wait. `None` where the stack's own threads see
    /// to that, and on a thread that may not enter.
    fn alarm(&self, make: &dyn Fn() -> Arc<dyn Alarm>) -> Option<(Arc<dyn Alarm>, Vec<RawFd>)>;
    /// Names of interfaces that have gone for good.
    fn gone_interfaces(&self) -> Vec<String>;
    /// Whether application threads serve the devices while they wait.
    fn inline(&self) -> bool;
    /// All receive queues.
    fn queues(&self) -> Vec<u16>;
    /// The receive queue that a flow's packets arrive by on devices of ours, and its hash.
    fn flow_hash(&self, local: SocketAddr, remote: SocketAddr) -> u32;
    /// Serves `queues` and the timers once; yields how many frames that were.
    fn drive(&self, queues: &[u16]) -> Result<usize, EngineError>;
    /// When [`Engine::drive`] has something to do though no frame arrives.
    fn next_due(&self) -> Time;
    /// What was counted. From any thread, as [`Engine::inspect`]; only counters and memory where
    /// the thread that the stack belongs to did not come by within a second
    /// ([`Stats::partial`]).
    fn stats(&self) -> Stats;
    /// All connections, from any thread, as [`Engine::inspect`]; also those of a stack that has
    /// stopped.
    ///
    /// # Errors
    /// [`EngineError::Absent`]: the thread that the stack belongs to did not come by within a second, or
    /// there is nobody left who may look.
    fn connections(&self) -> Result<Vec<ConnInfo>, EngineError>;
    /// Listeners, and all connections with where their layers run. From any thread, also of a
    /// stack of one thread: that is then asked, and waited for until `deadline`.
    ///
    /// # Errors
    /// [`EngineError::Absent`].
    fn inspect(&self, deadline: Time) -> Result<(Vec<Listening>, Vec<Inspected>), EngineError>;
    /// Whether nothing is left lying.
    ///
    /// # Errors
    /// What is left.
    fn quiescent(&self) -> Result<(), String>;
    /// Ends the stack in order: closes the listeners, shuts down the write side of every
    /// connection, waits for at most `limit` until everything is acknowledged, the FINs too, and
    /// stops; what was left then.
    ///
    /// # Errors
    /// Another thread owns the stack, or it has ended already.
    fn finish(&self, limit: Duration) -> Result<Undelivered, EngineError>;
    /// Resets everything and stops the stack's threads. Calls fail from now on, those that are
    /// blocked now too.
    fn stop(&self);
    /// Lets go of a socket of any kind, from any thread: a stack of one thread does it when its
    /// thread looks at the devices the next time. Nobody is told of a failure.
    fn release(&self, id: SockId);

    /// Where the layers of a connection run, as far as there is something to say.
    fn binding(&self, id: SockId) -> Binding {
        let _ = id;
        Binding::default()
    }

    /// Sends a whole frame by interface number `iface`, as it is: for protocols that events add.
    /// Dropped when there is no room.
    ///
    /// # Errors
    /// The stack belongs to another thread.
    fn send_frame(&self, iface: u16, frame: &[u8]) -> Result<(), EngineError> {
        let _ = (iface, frame);
        Err(EngineError::Unsupported)
    }

    /// PEF: adds an event to the lists that connections start with, before there are any.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] in organizations without lists; or there are connections.
    fn register_event(&self, spec: EventSpec) -> Result<EventId, EngineError> {
        let _ = spec;
        Err(EngineError::Unsupported)
    }

    /// PEF: adds an event to its major layer in the list of a live connection, at one end.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`]; or the connection has gone, or its lists are switched off.
    fn insert_event(&self, id: SockId, end: End, spec: EventSpec) -> Result<EventId, EngineError> {
        let _ = (id, end, spec);
        Err(EngineError::Unsupported)
    }

    /// PEF: takes an event off the lists of a live connection.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`]; or the connection has gone, or has no such event.
    fn disable_event(&self, id: SockId, event: EventId) -> Result<(), EngineError> {
        let _ = (id, event);
        Err(EngineError::Unsupported)
    }

    /// PEF: tells `sink` of every segment that a live connection receives or sends from now on,
    /// in the connection's order, until it answers `false`: then the tracing events take
    /// themselves off. Their names, receive and transmit, for who wants to end it earlier.
    ///
    /// # Errors
    /// As [`Engine::insert_event`].
    fn trace(&self, id: SockId, sink: TraceSink) -> Result<[EventId; 2], EngineError> {
        let _ = (id, sink);
        Err(EngineError::Unsupported)
    }

    /// SO_PEFON: whether a connection's packets run through its lists of events; a listener's goes
    /// over to connections that it accepts later.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`]; or the connection has gone.
    fn set_events_on(&self, id: SockId, on: bool) -> Result<(), EngineError> {
        let _ = (id, on);
        Err(EngineError::Unsupported)
    }

    /// SO_SETSQP: the squeue that one layer of a connection runs under from now on; a listener's
    /// goes over to connections that it accepts later.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`]; or the connection has gone.
    fn set_squeue(&self, id: SockId, layer: Layer, squeue: u16) -> Result<(), EngineError> {
        let _ = (id, layer, squeue);
        Err(EngineError::Unsupported)
    }
}
