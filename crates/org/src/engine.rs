//! The facade's back: one object-safe trait, one indirect call per socket call.
//!
//! Calls carry owned or copied arguments only, so that a proxy in another process can
//! implement the same trait.

pub use crate::fault::Fault;

use crate::end::{Undelivered, close_poller};
use crate::instance::{Instance, OpenError};
use crate::pef::event::{End, EventId, EventSpec, Events, Layer, TraceSink};
use crate::pef::trace;
use crate::serve::Joins;
use crate::spec::OrgSpec;
use crate::{Binding, Org};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use perimeter_base::Time;
use perimeter_stack::listener::Accepted;
use perimeter_stack::net::Cidr;
use perimeter_stack::ops::{
    Close, Data, How, Look, Readiness, Received, Recv, Released, SendData, Sent, Set, Setting,
    Shutdown, TakeError, Watching,
};
use perimeter_stack::poller::{Alarm, Notify, Ready, Refused as NotWatched};
use perimeter_stack::ready::Want;
use perimeter_stack::{ConnInfo, Ctx, SockError, SockId};
use perimeter_sync::native::Profiling;
use perimeter_sync::{LockStats, Platform, Profile, Work};
use perimeter_tcp::{Config, State, TcpError};
use perimeter_wire::FlowKey;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

/// A connection, and where its layers run.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// What the socket can be asked for.
    pub info: ConnInfo,
    /// What the organization says.
    pub binding: Binding,
}

/// A listener.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// Its name.
    pub id: SockId,
    /// Address that it is bound to; `None`: any.
    pub addr: Option<IpAddr>,
    /// Port.
    pub port: u16,
    /// Connections that wait to be accepted.
    pub queued: u32,
    /// The most that may.
    pub backlog: u32,
}

/// What a stack has counted.
#[derive(Clone, Debug, Default)]
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

/// A running stack of any organization on any platform.
pub trait Engine: Send + Sync {
    /// Which organization it is.
    fn spec(&self) -> &OrgSpec;
    /// The time on its platform.
    fn now(&self) -> Time;
    /// What connections are made with unless told otherwise.
    fn tcp_config(&self) -> Config;
    /// Addresses by interface.
    fn addrs(&self) -> Vec<Vec<Cidr>>;
    /// Starts to open a connection.
    fn connect(
        &self,
        local: (Option<IpAddr>, u16),
        remote: SocketAddr,
        config: &Config,
    ) -> Result<SockId, Fault>;
    /// Makes a listener; yields its name and port.
    fn listen(
        &self,
        addr: Option<IpAddr>,
        port: u16,
        backlog: u32,
        config: Config,
    ) -> Result<(SockId, u16), Fault>;
    /// Takes an established connection, and its flow, off a listener's queue. The connection's
    /// own perimeter is not entered.
    fn accept(&self, listener: SockId) -> Result<(SockId, FlowKey), Fault>;
    /// Appends to the stream.
    fn send(&self, id: SockId, data: Data<'static>, more: bool) -> Result<Sent, Fault>;
    /// As [`Engine::send`], with a copy straight from the caller's buffers to the stream's, where
    /// the calling thread enters the connection; `None` where it does not.
    fn write(&self, id: SockId, bufs: &[IoSlice<'_>], more: bool) -> Option<Result<Sent, Fault>>;
    /// Takes from the stream.
    fn recv(&self, id: SockId, max: usize, peek: bool) -> Result<Received, Fault>;
    /// Gives buffers back that [`Engine::recv`] yielded.
    fn recycle(&self, bufs: Received);
    /// Shuts down directions.
    fn shutdown(&self, id: SockId, how: How) -> Result<(), Fault>;
    /// Lets go of a socket of any kind.
    fn close(&self, id: SockId, abort: bool) -> Result<(), Fault>;
    /// Changes a setting; a listener's goes over to connections that it accepts later.
    fn set(&self, id: SockId, s: Setting) -> Result<(), Fault>;
    /// Looks at a connection.
    fn look(&self, id: SockId) -> Result<ConnInfo, Fault>;
    /// What a socket of any kind is ready for now, as in [`perimeter_stack::ready`].
    fn readiness(&self, id: SockId) -> Result<u8, Fault>;
    /// SO_ERROR, and the state.
    fn take_error(&self, id: SockId) -> Result<(Option<TcpError>, State), Fault>;
    /// Bytes appended, and bytes whose memory has been given back.
    fn released(&self, id: SockId) -> Result<(u64, u64), Fault>;
    /// Blocks until a direction ([`IN`](perimeter_stack::ready::IN),
    /// [`OUT`](perimeter_stack::ready::OUT)) is ready.
    fn wait(&self, id: SockId, direction: u8, deadline: Time) -> Result<(), Fault>;
    /// Makes a poller that drives the receive queues `queues` itself.
    fn poller(&self) -> Result<u32, Fault>;
    /// Closes a poller.
    fn poller_close(&self, poller: u32);
    /// Registers a socket.
    fn register(&self, poller: u32, id: SockId, token: usize, want: Want) -> Result<(), Fault>;
    /// Removes a registration.
    fn deregister(&self, poller: u32, id: SockId) -> Result<(), Fault>;
    /// Waits for events, serving `queues` meanwhile; yields how many were appended to `out`.
    fn poll(
        &self,
        poller: u32,
        queues: &[u16],
        out: &mut Vec<Ready>,
        max: usize,
        deadline: Time,
    ) -> Result<usize, Fault>;
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
    fn drive(&self, queues: &[u16]) -> Result<usize, Fault>;
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
    /// [`Fault::Absent`]: the thread that the stack belongs to did not come by within a second, or
    /// there is nobody left who may look.
    fn connections(&self) -> Result<Vec<ConnInfo>, Fault>;
    /// Listeners, and all connections with where their layers run. From any thread, also of a
    /// stack of one thread: that is then asked, and waited for until `deadline`.
    ///
    /// # Errors
    /// [`Fault::Absent`].
    fn inspect(&self, deadline: Time) -> Result<(Vec<Listening>, Vec<Inspected>), Fault>;
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
    fn finish(&self, limit: Duration) -> Result<Undelivered, Fault>;
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
    fn send_frame(&self, iface: u16, frame: &[u8]) -> Result<(), Fault> {
        let _ = (iface, frame);
        Err(Fault::Unsupported)
    }

    /// PEF: adds an event to the lists that connections start with, before there are any.
    ///
    /// # Errors
    /// [`Fault::Unsupported`] in organizations without lists; or there are connections.
    fn register_event(&self, spec: EventSpec) -> Result<EventId, Fault> {
        let _ = spec;
        Err(Fault::Unsupported)
    }

    /// PEF: adds an event to its major layer in the list of a live connection, at one end.
    ///
    /// # Errors
    /// [`Fault::Unsupported`]; or the connection has gone, or its lists are switched off.
    fn insert_event(&self, id: SockId, end: End, spec: EventSpec) -> Result<EventId, Fault> {
        let _ = (id, end, spec);
        Err(Fault::Unsupported)
    }

    /// PEF: takes an event off the lists of a live connection.
    ///
    /// # Errors
    /// [`Fault::Unsupported`]; or the connection has gone, or has no such event.
    fn disable_event(&self, id: SockId, event: EventId) -> Result<(), Fault> {
        let _ = (id, event);
        Err(Fault::Unsupported)
    }

    /// PEF: tells `sink` of every segment that a live connection receives or sends from now on,
    /// in the connection's order, until it answers `false`: then the tracing events take
    /// themselves off. Their names, receive and transmit, for who wants to end it earlier.
    ///
    /// # Errors
    /// As [`Engine::insert_event`].
    fn trace(&self, id: SockId, sink: TraceSink) -> Result<[EventId; 2], Fault> {
        let _ = (id, sink);
        Err(Fault::Unsupported)
    }

    /// SO_PEFON: whether a connection's packets run through its lists of events.
    ///
    /// # Errors
    /// [`Fault::Unsupported`]; or the connection has gone.
    fn set_events_on(&self, id: SockId, on: bool) -> Result<(), Fault> {
        let _ = (id, on);
        Err(Fault::Unsupported)
    }

    /// SO_SETSQP: the squeue that one layer of a connection runs under from now on.
    ///
    /// # Errors
    /// [`Fault::Unsupported`]; or the connection has gone, or the layer can't be moved.
    fn set_squeue(&self, id: SockId, layer: Layer, squeue: u16) -> Result<(), Fault> {
        let _ = (id, layer, squeue);
        Err(Fault::Unsupported)
    }
}

/// An instance with its threads.
pub struct Running<O: Org> {
    pub(crate) i: Arc<Instance<O>>,
    pub(crate) joins: Mutex<Joins>,
    /// Application threads serve the devices themselves.
    pub(crate) inline: bool,
    /// Dropped last: what the instance is made of notes for it.
    pub(crate) _profiling: Option<Profiling>,
}

impl<O: Org> Running<O> {
    fn events(&self) -> Result<&dyn Events, Fault> {
        self.enter()?.org.events().ok_or(Fault::Unsupported)
    }

    /// Runs `f` with the organization, on behalf of the calling thread: how a call comes to a
    /// protocol beside TCP.
    ///
    /// # Errors
    /// The stack has ended, or takes calls of another thread only.
    pub fn with<R>(&self, f: impl FnOnce(&O, &mut Ctx<O::K>) -> R) -> Result<R, Fault> {
        Ok(self.enter()?.with(|i, cx| f(&i.org, cx)))
    }

    #[inline]
    pub(crate) fn enter(&self) -> Result<&Instance<O>, Fault> {
        if !self.i.sh.life.on() {
            return Err(self.over());
        }
        self.i.admit().map_err(|_| Fault::WrongThread)?;
        Ok(&self.i)
    }

    /// As [`Running::enter`], to open something.
    fn open(&self) -> Result<&Instance<O>, Fault> {
        let i = self.enter()?;
        if i.sh.life.opens() {
            Ok(i)
        } else {
            Err(Fault::Stopped)
        }
    }

    /// Why a socket can't be found.
    #[cold]
    pub(crate) fn gone(&self) -> Fault {
        if self.i.sh.life.on() {
            Fault::Sock(SockError::Closed)
        } else {
            self.over()
        }
    }

    pub(crate) fn call<Q: perimeter_stack::Op<O::K> + 'static>(
        &self,
        id: SockId,
        op: Q,
    ) -> Result<Q::Out, Fault> {
        self.enter_conn(id)?
            .with(|i, cx| i.org.call(cx, id, op))
            .ok_or_else(|| self.gone())
    }

    /// As [`Running::enter`], for what only connections know.
    #[inline]
    fn enter_conn(&self, id: SockId) -> Result<&Instance<O>, Fault> {
        let i = self.enter()?;
        if id.is_listener() {
            return Err(SockError::Invalid.into());
        }
        Ok(i)
    }

    fn watching(&self, id: SockId, reg: Watching) -> Result<(), Fault> {
        if !id.is_listener() {
            return self.call(id, reg);
        }
        let i = self.enter()?;
        let l = i.sh.listener(id).ok_or(SockError::Closed)?;
        i.with(|_, cx| {
            l.with_side(|side| match &reg {
                Watching::Add(r) => side.register(r, cx),
                Watching::Remove(r) => side.deregister(r.poller, r.slot, r.generation),
            });
        });
        Ok(())
    }

    pub(crate) fn own_queues(&self) -> Vec<u16> {
        if self.inline {
            self.queues()
        } else {
            Vec::new()
        }
    }
}

impl<O: Org> Engine for Running<O> {
    fn spec(&self) -> &OrgSpec {
        &self.i.spec
    }

    fn now(&self) -> Time {
        self.i.sh.p.now()
    }

    fn tcp_config(&self) -> Config {
        self.i.sh.config.tcp.clone()
    }

    fn addrs(&self) -> Vec<Vec<Cidr>> {
        let devices = usize::from(self.i.sh.loopback().0);
        let ifaces = &self.i.sh.ifaces[..devices];
        ifaces.iter().map(|i| i.addrs.clone()).collect()
    }

    fn connect(
        &self,
        local: (Option<IpAddr>, u16),
        remote: SocketAddr,
        config: &Config,
    ) -> Result<SockId, Fault> {
        let i = self.open()?;
        let remote = (remote.ip(), remote.port());
        i.with(|i, cx| i.open_flow(cx, local, remote, config))
            .map_err(|e| match e {
                OpenError::NoRoute => Fault::NoRoute,
                OpenError::InUse => Fault::AddrInUse,
                OpenError::NoMemory => Fault::NoMemory,
                OpenError::Gone => Fault::NetDown,
            })
    }

    fn listen(
        &self,
        addr: Option<IpAddr>,
        port: u16,
        backlog: u32,
        config: Config,
    ) -> Result<(SockId, u16), Fault> {
        let i = self.open()?;
        if let Some(a) = addr
            && !(a.is_ipv4() && i.sh.ifaces.iter().any(|iface| iface.owns(a)))
        {
            return Err(Fault::NoRoute);
        }
        let id = i
            .with(|i, cx| i.listen(cx, addr, port, backlog, config))
            .map_err(|_| Fault::AddrInUse)?;
        let port = i.sh.listener(id).map_or(port, |l| l.port);
        Ok((id, port))
    }

    fn accept(&self, listener: SockId) -> Result<(SockId, FlowKey), Fault> {
        let i = self.enter()?;
        let l = i.sh.listener(listener).ok_or_else(|| self.gone())?;
        match l.accept() {
            Accepted::Conn(id, key) => {
                i.sh.p.charge(Work::SockCall, 1);
                Ok((id, key))
            }
            Accepted::Empty if i.sh.all_gone() => Err(Fault::NetDown),
            Accepted::Empty => Err(SockError::WouldBlock.into()),
            Accepted::Closed => Err(self.gone()),
        }
    }

    fn send(&self, id: SockId, data: Data<'static>, more: bool) -> Result<Sent, Fault> {
        Ok(self.call(id, SendData::new(data, more))??)
    }

    fn write(&self, id: SockId, bufs: &[IoSlice<'_>], more: bool) -> Option<Result<Sent, Fault>> {
        let run = |i: &Instance<O>| {
            let op = SendData::new(Data::borrowed(bufs), more);
            let sent = i.with(|i, cx| i.org.call_here(cx, id, op)).ok()?;
            Some(sent.ok_or_else(|| self.gone()).and_then(|r| Ok(r?)))
        };
        match self.enter_conn(id) {
            Ok(i) if O::HERE => run(i),
            Ok(_) => None,
            Err(e) => Some(Err(e)),
        }
    }

    fn recv(&self, id: SockId, max: usize, peek: bool) -> Result<Received, Fault> {
        Ok(self.call(id, Recv { max, peek })??)
    }

    fn recycle(&self, bufs: Received) {
        self.i.with(|_, cx| {
            for b in bufs {
                cx.pool.put(b);
            }
        });
    }

    fn shutdown(&self, id: SockId, how: How) -> Result<(), Fault> {
        Ok(self.call(id, Shutdown(how))??)
    }

    fn close(&self, id: SockId, abort: bool) -> Result<(), Fault> {
        if id.is_listener() {
            let i = self.enter()?;
            return Ok(i.with(|i, cx| i.close_listener(cx, id))?);
        }
        self.call(id, Close { abort })
    }

    fn set(&self, id: SockId, s: Setting) -> Result<(), Fault> {
        if id.is_listener() {
            self.enter()?
                .sh
                .listener(id)
                .ok_or(SockError::Closed)?
                .set(s);
            return Ok(());
        }
        self.call(id, Set(s))
    }

    fn look(&self, id: SockId) -> Result<ConnInfo, Fault> {
        self.call(id, Look)
    }

    fn readiness(&self, id: SockId) -> Result<u8, Fault> {
        if !id.is_listener() {
            return self.call(id, Readiness);
        }
        let l = self.enter()?.sh.listener(id).ok_or(SockError::Closed)?;
        Ok(l.with_side(|side| side.bits()))
    }

    fn take_error(&self, id: SockId) -> Result<(Option<TcpError>, State), Fault> {
        self.call(id, TakeError)
    }

    fn released(&self, id: SockId) -> Result<(u64, u64), Fault> {
        self.call(id, Released)
    }

    fn wait(&self, id: SockId, direction: u8, deadline: Time) -> Result<(), Fault> {
        self.enter()?;
        let queues = self.own_queues();
        let result = self.wait_for(id, direction, &queues, deadline);
        self.i.arm_alarm(&queues);
        result
    }

    fn poller(&self) -> Result<u32, Fault> {
        let i = self.enter()?;
        i.sh.pollers
            .create(&i.sh.p)
            .map_err(|_| Fault::TooManyPollers)
    }

    fn poller_close(&self, poller: u32) {
        match self.enter() {
            Ok(i) => close_poller(i, poller),
            Err(Fault::WrongThread) => self.i.leave(move |i| close_poller(i, poller)),
            Err(_) => {}
        }
    }

    fn register(&self, poller: u32, id: SockId, token: usize, want: Want) -> Result<(), Fault> {
        let i = self.enter()?;
        let p = i.sh.pollers.get(poller).ok_or(SockError::Closed)?;
        let word = p.register(poller, id, token, want).map_err(|e| match e {
            NotWatched::Closed => Fault::Sock(SockError::Closed),
            NotWatched::Twice => Fault::Registered(true),
        })?;
        self.watching(id, Watching::Add(word.clone()))
            .inspect_err(|_| {
                p.deregister(word.slot, word.generation);
            })
    }

    fn deregister(&self, poller: u32, id: SockId) -> Result<(), Fault> {
        let i = self.enter()?;
        let p = i.sh.pollers.get(poller).ok_or(SockError::Closed)?;
        let word = p.find(id).ok_or(Fault::Registered(false))?;
        p.deregister(word.slot, word.generation);
        match self.watching(id, Watching::Remove(word)) {
            Err(Fault::Sock(SockError::Closed)) => Ok(()),
            other => other,
        }
    }

    fn poll(
        &self,
        poller: u32,
        queues: &[u16],
        out: &mut Vec<Ready>,
        max: usize,
        deadline: Time,
    ) -> Result<usize, Fault> {
        let n = self.poll_for(poller, queues, out, max, deadline)?;
        self.i.arm_alarm(queues);
        Ok(n)
    }

    fn poller_wake(&self, poller: u32) {
        match self.enter() {
            Ok(i) => {
                if let Some(p) = i.sh.pollers.get(poller) {
                    p.wake();
                }
            }
            // Its thread wakes itself: it is the only one that may wait there.
            Err(Fault::WrongThread) => self.i.leave_wake(poller),
            Err(_) => {}
        }
    }

    fn poller_notify(&self, poller: u32, n: Arc<dyn Notify>) {
        if let Ok(i) = self.enter()
            && let Some(p) = i.sh.pollers.get(poller)
        {
            p.set_notify(n);
        }
    }

    fn alarm(&self, make: &dyn Fn() -> Arc<dyn Alarm>) -> Option<(Arc<dyn Alarm>, Vec<RawFd>)> {
        let i = self.enter().ok().filter(|i| i.spec.single_threaded())?;
        let alarm = i.set_alarm(make);
        i.arm_alarm(&self.queues());
        Some((alarm, i.sh.rx.iter().filter_map(|r| r.fd).collect()))
    }

    fn gone_interfaces(&self) -> Vec<String> {
        let gone = self.i.sh.ifaces.iter().filter(|i| i.is_gone());
        gone.map(|i| i.caps.name.clone()).collect()
    }

    fn inline(&self) -> bool {
        self.inline
    }

    fn queues(&self) -> Vec<u16> {
        (0..self.i.sh.loopback().1).collect()
    }

    fn flow_hash(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        self.i.sh.flow_hash(&FlowKey {
            local: local.ip(),
            remote: remote.ip(),
            local_port: local.port(),
            remote_port: remote.port(),
        })
    }

    fn drive(&self, queues: &[u16]) -> Result<usize, Fault> {
        let i = self.enter()?;
        let n = i.with(|i, cx| i.drive(cx, queues));
        i.arm_alarm(queues);
        Ok(n)
    }

    fn next_due(&self) -> Time {
        self.enter()
            .map_or(Time::NEVER, |i| i.next_due(&self.queues()))
    }

    fn stats(&self) -> Stats {
        let i = &self.i;
        let totals = i.sh.counters.totals();
        let counts = totals.iter().enumerate();
        let mut stats = Stats {
            counts: counts
                .map(|(n, v)| (perimeter_stack::count::name(n), *v))
                .collect(),
            memory: i.sh.memory(),
            profile: i.sh.p.profile().map(Box::new),
            ..Stats::default()
        };
        // The rest is behind locks that a stack of one thread opens for that thread only.
        match self.look_inside(|i| i.behind_locks()) {
            Some(found) => {
                stats.locks = found.locks;
                stats.peer_ns = found.peer_ns;
                stats.connections = found.connections;
            }
            None => stats.partial = true,
        }
        stats
    }

    fn connections(&self) -> Result<Vec<ConnInfo>, Fault> {
        let inspect = |i: &Instance<O>| {
            let mut out = Vec::new();
            i.org.inspect(i.sh.p.now(), &mut out);
            out
        };
        self.look_inside(inspect).ok_or(Fault::Absent)
    }

    fn inspect(&self, deadline: Time) -> Result<(Vec<Listening>, Vec<Inspected>), Fault> {
        if !self.i.sh.life.on() {
            return Err(self.over());
        }
        let found = self.i.anywhere(deadline, |i| {
            let listening = i.sh.listeners().into_iter().map(|l| Listening {
                id: l.id,
                addr: l.addr,
                port: l.port,
                queued: l.queued(),
                backlog: l.backlog(),
            });
            let mut conns = Vec::new();
            i.org.inspect(i.sh.p.now(), &mut conns);
            let bound = conns.into_iter().map(|info| Inspected {
                binding: i.org.binding(info.id),
                info,
            });
            (listening.collect(), bound.collect())
        });
        found.ok_or(Fault::Absent)
    }

    fn quiescent(&self) -> Result<(), String> {
        if !self.may_look() {
            return Err("it belongs to another thread".to_string());
        }
        self.i.quiescent()
    }

    fn stop(&self) {
        self.stop_now();
    }

    fn finish(&self, limit: Duration) -> Result<Undelivered, Fault> {
        self.finish_all(limit)
    }

    fn release(&self, id: SockId) {
        match self.enter() {
            Ok(i) => i.let_go(id),
            Err(Fault::WrongThread) => self.i.leave(move |i| i.let_go(id)),
            // It has gone with the stack.
            Err(_) => {}
        }
    }

    fn binding(&self, id: SockId) -> Binding {
        self.enter()
            .map_or_else(|_| Binding::default(), |i| i.org.binding(id))
    }

    fn send_frame(&self, iface: u16, frame: &[u8]) -> Result<(), Fault> {
        self.enter()?
            .with(|i, cx| i.sh.send_frame(cx, iface, frame));
        Ok(())
    }

    fn register_event(&self, spec: EventSpec) -> Result<EventId, Fault> {
        Ok(self.events()?.register(spec)?)
    }

    fn insert_event(&self, id: SockId, end: End, spec: EventSpec) -> Result<EventId, Fault> {
        Ok(self.events()?.insert(id, end, spec)?)
    }

    fn disable_event(&self, id: SockId, event: EventId) -> Result<(), Fault> {
        Ok(self.events()?.disable(id, event)?)
    }

    fn trace(&self, id: SockId, sink: TraceSink) -> Result<[EventId; 2], Fault> {
        let events = self.events()?;
        let [receive, transmit] = trace::events(sink);
        let first = events.insert(id, End::Front, receive)?;
        match events.insert(id, End::Back, transmit) {
            Ok(second) => Ok([first, second]),
            Err(e) => {
                // Whatever becomes of that: the trace has not begun.
                let _ = events.disable(id, first);
                Err(e.into())
            }
        }
    }

    fn set_events_on(&self, id: SockId, on: bool) -> Result<(), Fault> {
        Ok(self.events()?.switch(id, on)?)
    }

    fn set_squeue(&self, id: SockId, layer: Layer, squeue: u16) -> Result<(), Fault> {
        Ok(self.events()?.designate(id, layer, squeue)?)
    }
}
