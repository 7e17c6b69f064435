//! The facade's back: one object-safe trait, one indirect call per socket call.
//!
//! Calls carry owned or copied arguments only, so that a proxy in another process can
//! implement the same trait.

use crate::instance::{Ev, Instance, OpenError};
use crate::pef::event::{End, EventId, EventSpec, Events, Layer, Refused, TraceSink};
use crate::pef::trace;
use crate::serve::Joins;
use crate::spec::OrgSpec;
use crate::{Binding, Org};
use core::net::{IpAddr, SocketAddr};
use perimeter_base::Time;
use perimeter_stack::listener::Accepted;
use perimeter_stack::net::Cidr;
use perimeter_stack::ops::{
    Close, Data, How, Look, Readiness, Received, Recv, Released, SendData, Set, Setting, Shutdown,
    TakeError, Wait, Watching,
};
use perimeter_stack::poller::{Notify, Ready, Refused as NotWatched};
use perimeter_stack::port::TxPort;
use perimeter_stack::ready::{self, Want};
use perimeter_stack::{ConnInfo, SockError, SockId};
use perimeter_sync::native::Profiling;
use perimeter_sync::{Event, Lock, LockClass, LockStats, Platform, Profile};
use perimeter_tcp::{Config, State, TcpError};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Why a call failed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The organization has one thread, and this is another.
    WrongThread,
    /// No route to the address, or the local address is not ours.
    NoRoute,
    /// Address or port is in use.
    AddrInUse,
    /// The socket says.
    Sock(SockError),
    /// A time limit passed.
    TimedOut,
    /// The thread that the stack belongs to did not come by in time.
    Absent,
    /// All pollers are in use.
    TooManyPollers,
    /// The socket is registered with this poller already, or is not.
    Registered(bool),
    /// The organization has nothing of the kind.
    Unsupported,
    /// A list of events could not be altered.
    Events(Refused),
}

impl From<SockError> for Fault {
    fn from(e: SockError) -> Fault {
        Fault::Sock(e)
    }
}

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
    /// Takes an established connection.
    fn accept(&self, listener: SockId) -> Result<SockId, Fault>;
    /// Appends to the stream.
    fn send(&self, id: SockId, data: Data, more: bool) -> Result<usize, Fault>;
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
    /// What a socket of any kind is ready for now, as in [`ready`].
    fn readiness(&self, id: SockId) -> Result<u8, Fault>;
    /// SO_ERROR, and the state.
    fn take_error(&self, id: SockId) -> Result<(Option<TcpError>, State), Fault>;
    /// Bytes appended, and bytes whose memory has been given back.
    fn released(&self, id: SockId) -> Result<(u64, u64), Fault>;
    /// Blocks until a direction ([`ready::IN`], [`ready::OUT`]) is ready.
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
    /// What was counted. Only counters and memory, asked from a thread that may not enter.
    fn stats(&self) -> Stats;
    /// All connections.
    fn connections(&self) -> Vec<ConnInfo>;
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
    /// Resets everything and stops the stack's threads.
    fn stop(&self);

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
pub(crate) struct Running<O: Org> {
    pub(crate) i: Arc<Instance<O>>,
    pub(crate) joins: Mutex<Joins>,
    /// Application threads serve the devices themselves.
    pub(crate) inline: bool,
    /// Dropped last: what the instance is made of notes for it.
    pub(crate) _profiling: Option<Profiling>,
}

impl From<Refused> for Fault {
    fn from(e: Refused) -> Fault {
        match e {
            Refused::Gone => Fault::Sock(SockError::Closed),
            e => Fault::Events(e),
        }
    }
}

impl<O: Org> Running<O> {
    fn events(&self) -> Result<&dyn Events, Fault> {
        self.enter()?.org.events().ok_or(Fault::Unsupported)
    }

    fn enter(&self) -> Result<&Instance<O>, Fault> {
        self.i.admit().map_err(|_| Fault::WrongThread)?;
        Ok(&self.i)
    }

    fn call<Q: perimeter_stack::Op<O::K>>(&self, id: SockId, op: Q) -> Result<Q::Out, Fault> {
        let i = self.enter()?;
        if id.is_listener() {
            return Err(SockError::Invalid.into());
        }
        i.with(|i, cx| i.org.call(&i.sh, cx, id, op))
            .ok_or(Fault::Sock(SockError::Closed))
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

    /// Announces a blocked call, or takes it off; whether it need not block.
    fn announce(&self, id: SockId, direction: u8, event: &Ev<O>, off: bool) -> Result<bool, Fault> {
        if !id.is_listener() {
            let event = event.clone();
            return self.call(
                id,
                Wait::<O::K> {
                    direction,
                    event,
                    off,
                },
            );
        }
        let l = self.i.sh.listener(id).ok_or(SockError::Closed)?;
        Ok(l.with_side(|side| {
            if off {
                side.unwait(event);
                return true;
            }
            side.wait(ready::IN, event)
        }))
    }

    /// Parks until `event` is set, serving the devices meanwhile if that is this thread's job.
    fn park(&self, event: &Ev<O>, queues: &[u16], deadline: Time) {
        if queues.is_empty() {
            self.i.sh.asleep(|| event.wait(deadline));
            return;
        }
        if self.i.with(|i, cx| i.drive(cx, queues)) == 0 {
            self.i.idle(event, queues, deadline);
        }
    }

    fn own_queues(&self) -> Vec<u16> {
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
        self.i.sh.ifaces.iter().map(|i| i.addrs.clone()).collect()
    }

    fn connect(
        &self,
        local: (Option<IpAddr>, u16),
        remote: SocketAddr,
        config: &Config,
    ) -> Result<SockId, Fault> {
        let i = self.enter()?;
        let remote = (remote.ip(), remote.port());
        i.with(|i, cx| i.open_flow(cx, local, remote, config))
            .map_err(|e| match e {
                OpenError::NoRoute => Fault::NoRoute,
                OpenError::InUse => Fault::AddrInUse,
            })
    }

    fn listen(
        &self,
        addr: Option<IpAddr>,
        port: u16,
        backlog: u32,
        config: Config,
    ) -> Result<(SockId, u16), Fault> {
        let i = self.enter()?;
        if let Some(a) = addr
            && !i.sh.ifaces.iter().any(|iface| iface.owns(a))
        {
            return Err(Fault::NoRoute);
        }
        let id = i
            .with(|i, cx| i.listen(cx, addr, port, backlog, config))
            .map_err(|_| Fault::AddrInUse)?;
        let port = i.sh.listener(id).map_or(port, |l| l.port);
        Ok((id, port))
    }

    fn accept(&self, listener: SockId) -> Result<SockId, Fault> {
        let i = self.enter()?;
        let l = i.sh.listener(listener).ok_or(SockError::Closed)?;
        match l.accept() {
            Accepted::Conn(id) => Ok(id),
            Accepted::Empty => Err(SockError::WouldBlock.into()),
            Accepted::Closed => Err(SockError::Closed.into()),
        }
    }

    fn send(&self, id: SockId, data: Data, more: bool) -> Result<usize, Fault> {
        Ok(self.call(id, SendData::new(data, more))??)
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
        self.i.with_event(|event| {
            if self.announce(id, direction, event, false)? {
                return Ok(());
            }
            loop {
                self.park(event, &queues, deadline);
                // Told: the announcement is off by itself. Otherwise take it off, and learn
                // whether readiness came at the same moment.
                if event.take() || self.told(id, direction, event)? {
                    return Ok(());
                }
                if self.i.sh.p.now() >= deadline {
                    self.announce(id, direction, event, true)?;
                    return Err(Fault::TimedOut);
                }
            }
        })
    }

    fn poller(&self) -> Result<u32, Fault> {
        let i = self.enter()?;
        i.sh.pollers
            .create(&i.sh.p)
            .map_err(|_| Fault::TooManyPollers)
    }

    fn poller_close(&self, poller: u32) {
        // Of a stack of one thread, another thread can't close it; it goes with the stack.
        if self.enter().is_err() {
            return;
        }
        for (sock, word) in self.i.sh.pollers.close(poller) {
            // A socket that has gone has taken its side of the registration along.
            let _ = self.watching(sock, Watching::Remove(word));
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
        let i = self.enter()?;
        let p = i.sh.pollers.get(poller).ok_or(SockError::Closed)?;
        let mut frames = if queues.is_empty() {
            0
        } else {
            i.with(|i, cx| i.drive(cx, queues))
        };
        loop {
            let n = p.take(out, max);
            if n > 0 || deadline <= Time::ZERO || i.stopping() {
                return Ok(n);
            }
            if p.woken() || (deadline < Time::NEVER && i.sh.p.now() >= deadline) {
                return Ok(0);
            }
            if frames == 0 {
                i.with_event(|event| {
                    if !p.wait(event) {
                        return;
                    }
                    if queues.is_empty() {
                        self.park(event, queues, deadline);
                    } else {
                        i.idle(event, queues, deadline);
                    }
                    p.unwait(event);
                });
            }
            if !queues.is_empty() {
                frames = i.with(|i, cx| i.drive(cx, queues));
            }
        }
    }

    fn poller_wake(&self, poller: u32) {
        if let Ok(i) = self.enter()
            && let Some(p) = i.sh.pollers.get(poller)
        {
            p.wake();
        }
    }

    fn poller_notify(&self, poller: u32, n: Arc<dyn Notify>) {
        if let Ok(i) = self.enter()
            && let Some(p) = i.sh.pollers.get(poller)
        {
            p.set_notify(n);
        }
    }

    fn inline(&self) -> bool {
        self.inline
    }

    fn queues(&self) -> Vec<u16> {
        (0..self.i.sh.rx.len() as u16).collect()
    }

    fn flow_hash(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        self.i.sh.flow_hash(&perimeter_wire::FlowKey {
            local: local.ip(),
            remote: remote.ip(),
            local_port: local.port(),
            remote_port: remote.port(),
        })
    }

    fn drive(&self, queues: &[u16]) -> Result<usize, Fault> {
        Ok(self.enter()?.with(|i, cx| i.drive(cx, queues)))
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
        if self.enter().is_err() {
            return stats;
        }
        let mut add = |class: LockClass, s: LockStats| {
            stats.locks.entry(class.name()).or_default().add(s);
        };
        i.org.lock_stats(&mut add);
        i.sh.lock_stats(&mut add);
        stats.locks.retain(|_, s| s.acquisitions > 0);
        let rx = i.sh.rx.iter().map(|r| r.queue.lock().peer_ns());
        let tx = i.sh.tx.iter().map(TxPort::peer_ns);
        stats.peer_ns = rx.chain(tx).sum();
        stats.connections = i.org.live();
        stats
    }

    fn connections(&self) -> Vec<ConnInfo> {
        let now = self.i.sh.p.now();
        let mut out = Vec::new();
        if let Ok(i) = self.enter() {
            i.org.inspect(now, &mut out);
        }
        out
    }

    fn inspect(&self, deadline: Time) -> Result<(Vec<Listening>, Vec<Inspected>), Fault> {
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
        let i = self
            .enter()
            .map_err(|_| "it belongs to another thread".to_string())?;
        i.quiescent()
    }

    fn stop(&self) {
        if self.i.stop.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.i.admit().is_ok() {
            for l in self.i.sh.listeners() {
                let _ = self.i.with(|i, cx| i.close_listener(cx, l.id));
            }
            self.i.with(|i, cx| i.org.abort_all(&i.sh, cx));
        }
        let joins = self
            .joins
            .lock()
            .map(|mut j| core::mem::take(&mut *j))
            .unwrap_or_default();
        for j in joins {
            // A thread that panicked has said so already.
            let _ = j();
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

impl<O: Org> Running<O> {
    /// Whether a blocked call's direction is ready now, though its event was not set: it may
    /// have been told by a thread that has not got around to setting it.
    fn told(&self, id: SockId, direction: u8, event: &Ev<O>) -> Result<bool, Fault> {
        self.announce(id, direction, event, true)?;
        self.announce(id, direction, event, false)
    }
}

impl<O: Org> Drop for Running<O> {
    fn drop(&mut self) {
        self.stop();
    }
}
