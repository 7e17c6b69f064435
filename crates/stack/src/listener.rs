//! Listeners: the application's end of passive opens.

use crate::hold::{Held, Hold, Requests, Serial, Syn, Verdict};
use crate::id::SockId;
use crate::kind::{Kind, Lk, lock};
use crate::net::both_get;
use crate::planted::{Bug, planted};
use crate::ready::{self, Side, Wakes};
use crate::setting::Setting;
use core::net::IpAddr;
use perimeter_base::Time;
use perimeter_sync::{Lock, LockClass};
use perimeter_tcp::Config;
use perimeter_tcp::syncache::ListenParams;
use perimeter_wire::{FlowKey, Seq};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a listener is to be.
#[derive(Clone, Debug)]
pub struct ListenSpec {
    /// Address; `None`: any.
    pub addr: Option<IpAddr>,
    /// Where it listens.
    pub at: At,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// What they are made with.
    pub config: Config,
    /// Its owner decides of each SYN.
    pub hold: Option<Hold>,
    /// Other listeners that say the same may have its port as well (SO_REUSEPORT): each gets its
    /// part of the flows.
    pub reuse_port: bool,
    /// The interface by which it gets connections, and they go on (SO_BINDTODEVICE); `None`: any.
    pub device: Option<u16>,
}

impl ListenSpec {
    /// At that address, if one is given, and port; 0: any that is free. SYNs are answered at once.
    pub fn new((addr, port): (Option<IpAddr>, u16), backlog: u32, config: Config) -> ListenSpec {
        ListenSpec {
            addr,
            at: match port {
                0 => At::Free,
                port => At::Port(port),
            },
            backlog,
            config,
            hold: None,
            reuse_port: false,
            device: None,
        }
    }
}

/// The port that a listener is to have.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// That one.
    Port(u16),
    /// Any that is free.
    Free,
    /// All that no other listener has.
    All,
}

/// A listening socket. Each perimeter that may see its SYNs has a reference.
pub struct Listener<K: Kind> {
    /// Name.
    pub id: SockId,
    /// Address that it is bound to. The unspecified one of a family is any of that family; `None`:
    /// any of both.
    pub addr: Option<IpAddr>,
    /// Port; 0: any.
    pub port: u16,
    /// The interface that it is bound to (SO_BINDTODEVICE), if it is.
    pub device: Option<u16>,
    /// Whether it holds SYNs.
    holds: bool,
    /// What connections are made with from now on.
    config: Lk<K, Arc<Config>>,
    backlog: u32,
    /// Connections queued; written under the queue's lock, read without it as a hint.
    queued: AtomicU32,
    queue: Lk<K, AcceptQueue<K>>,
}

/// Connections that wait to be accepted, and who waits for them.
pub struct AcceptQueue<K: Kind> {
    /// With their flows, so that who accepts one need not enter it to learn whose it is.
    ready: VecDeque<(SockId, FlowKey)>,
    open: bool,
    /// Readiness to accept.
    side: Side<K>,
    /// Held SYNs, if it holds them.
    requests: Option<Box<Requests>>,
    /// Readiness to decide.
    asks: Side<K>,
}

impl<K: Kind> Listener<K> {
    /// One of that name at `port`, whatever the specification says of it.
    pub fn new(p: &K::P, id: SockId, spec: &ListenSpec, port: u16) -> Listener<K> {
        let queue = AcceptQueue {
            ready: VecDeque::new(),
            open: true,
            side: Side::read(),
            requests: spec.hold.map(|hold| Box::new(Requests::new(hold))),
            asks: Side::write(),
        };
        Listener {
            id,
            addr: spec.addr,
            port,
            device: spec.device,
            holds: spec.hold.is_some(),
            config: lock::<K, _>(p, LockClass::Leaf, Arc::new(spec.config.clone())),
            backlog: spec.backlog.max(1),
            queued: AtomicU32::new(0),
            queue: lock::<K, _>(p, LockClass::Listener, queue),
        }
    }

    /// Connections that wait to be accepted: a hint, without the lock.
    pub fn queued(&self) -> u32 {
        self.queued.load(Ordering::Relaxed)
    }

    /// The most that may wait.
    pub fn backlog(&self) -> u32 {
        self.backlog
    }

    /// What accepted connections are made with.
    pub fn config(&self) -> Arc<Config> {
        self.config.lock().clone()
    }

    /// Changes what connections are made with whose SYN arrives from now on.
    pub fn set(&self, s: Setting) {
        s.configure(Arc::make_mut(&mut *self.config.lock()));
    }

    /// What the SYN cache offers to those who connect.
    pub fn params(&self) -> ListenParams {
        let config = self.config.lock();
        ListenParams {
            mss: config.mss,
            rcv_wnd: config.rcv_buf,
            wscale: config.wscale(),
            timestamps: config.timestamps,
            sack: config.sack,
            full: self.full(),
            reuse: false,
            tag: (self.id.raw() ^ self.id.raw() >> 32) as u32,
            origin: 0,
            from: None,
        }
    }

    /// Whether the queue is at its limit. A hint: a burst may overshoot it by its own length.
    pub fn full(&self) -> bool {
        self.queued.load(Ordering::Relaxed) >= self.backlog
    }

    /// Queues an established connection; `false` when the listener has closed: the connection
    /// is to be aborted.
    pub fn deliver(&self, id: SockId, key: FlowKey, wakes: &mut Wakes<K>) -> bool {
        let mut q = self.queue.lock();
        if !q.open {
            return false;
        }
        q.ready.push_back((id, key));
        let queued = q.ready.len() as u32;
        if planted(Bug::QueueUnlockedEarly) {
            q.side.raise(ready::IN, wakes);
            drop(q);
            self.queued.store(queued, Ordering::Relaxed);
            return true;
        }
        self.queued.store(queued, Ordering::Relaxed);
        q.side.raise(ready::IN, wakes);
        true
    }

    /// The next connection, or `None`. `closed` tells a closed listener from an empty one.
    pub fn accept(&self) -> Accepted {
        let mut q = self.queue.lock();
        if !q.open {
            return Accepted::Closed;
        }
        let Some((id, key)) = q.ready.pop_front() else {
            return Accepted::Empty;
        };
        self.queued.store(q.ready.len() as u32, Ordering::Relaxed);
        if q.ready.is_empty() {
            q.side.lower(ready::IN);
        }
        Accepted::Conn(id, key)
    }

    /// Runs `f` on the sides, under the queue's lock: readiness to accept
    /// ([`ready::IN`]) and, of a listener that holds SYNs, to decide ([`ready::OUT`]).
    pub fn with_sides<R>(&self, f: impl FnOnce(&mut Side<K>, &mut Side<K>) -> R) -> R {
        let q = &mut *self.queue.lock();
        f(&mut q.side, &mut q.asks)
    }

    /// Whether its owner decides of each SYN.
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// A SYN arrived for it that the SYN cache does not know.
    pub fn hold(&self, syn: Syn, now: Time, wakes: &mut Wakes<K>) -> Held {
        let q = &mut *self.queue.lock();
        let Some(requests) = q.requests.as_mut().filter(|_| q.open) else {
            return Held::Full;
        };
        let held = requests.arrived(syn, now);
        if held == Held::New {
            q.asks.raise(ready::OUT, wakes);
        }
        held
    }

    /// The next SYN that is to be decided.
    pub fn request(&self, now: Time) -> Requested {
        let q = &mut *self.queue.lock();
        if !q.open {
            return Requested::Closed;
        }
        let Some(requests) = q.requests.as_mut() else {
            return Requested::Never;
        };
        let next = requests.take(now);
        if !requests.any_fresh() {
            q.asks.lower(ready::OUT);
        }
        next.map_or(Requested::None, |(key, serial)| Requested::Syn(key, serial))
    }

    /// Decides a held SYN, and yields it to be answered. `None`: it has gone.
    pub fn decide(
        &self,
        key: &FlowKey,
        serial: Serial,
        verdict: Verdict,
        now: Time,
    ) -> Option<Syn> {
        let q = &mut *self.queue.lock();
        q.requests.as_mut()?.decide(key, serial, verdict, now)
    }

    /// A peer has reset a flow, whose request goes if the reset is good; `known`: it is.
    pub fn request_reset(&self, key: &FlowKey, seq: Seq, known: bool) {
        if let Some(requests) = &mut self.queue.lock().requests {
            requests.reset(key, seq, known);
        }
    }

    /// The handshake of an allowed SYN is complete.
    pub fn request_complete(&self, key: &FlowKey) {
        if let Some(requests) = &mut self.queue.lock().requests {
            requests.complete(key);
        }
    }

    /// SYNs held now.
    pub fn held(&self) -> usize {
        self.queue.lock().requests.as_ref().map_or(0, |r| r.len())
    }

    /// Closes the queue for good; returns the connections that nobody accepted.
    pub fn close(&self, wakes: &mut Wakes<K>) -> Vec<SockId> {
        let mut q = self.queue.lock();
        q.open = false;
        self.queued.store(0, Ordering::Relaxed);
        q.side.leave(wakes);
        q.asks.leave(wakes);
        q.requests = None;
        q.ready.drain(..).map(|(id, _)| id).collect()
    }

    /// Lock counts.
    pub fn stats(&self) -> perimeter_sync::LockStats {
        self.queue.stats()
    }

    /// Whether a SYN to `local` that came by interface `iface` is for this listener, at its port.
    /// `iface` is `None` where it is not known: then it may have been any.
    pub fn matches(&self, local: IpAddr, iface: Option<u16>) -> bool {
        covers(self.addr, local) && both_get(self.device, iface)
    }

    /// How exactly it says what it is for: the address, then the interface.
    fn rank(&self) -> (bool, bool) {
        let one = self.addr.is_some_and(|a| !a.is_unspecified());
        (one, self.device.is_some())
    }

    /// How its handshakes leave.
    pub fn leaving(&self) -> Leaving {
        let config = self.config.lock();
        Leaving {
            by: self.device,
            ttl: config.ttl,
            tos: config.tos,
        }
    }

    /// Whether it listens at that port.
    pub fn is_at(&self, port: u16) -> bool {
        self.port == port || self.port == ANY_PORT
    }
}

/// Whether whoever is bound to `bound` takes what is for `local`: see [`Listener::addr`].
pub fn covers(bound: Option<IpAddr>, local: IpAddr) -> bool {
    match bound {
        None => true,
        Some(a) if a.is_unspecified() => a.is_ipv4() == local.is_ipv4(),
        Some(a) => a == local,
    }
}

/// Whether something could be for both of those bound to `a` and to `b`.
pub(crate) fn overlap(a: Option<IpAddr>, b: Option<IpAddr>) -> bool {
    match (a, b) {
        (None, _) | (_, None) => true,
        (Some(x), Some(y)) => covers(a, y) || covers(b, x),
    }
}

/// The port of a listener that takes those of every port.
pub const ANY_PORT: u16 = 0;

/// How what belongs to no connection leaves.
#[derive(Copy, Clone, Debug, Default)]
pub struct Leaving {
    /// The interface that it has to leave by; `None`: any.
    pub by: Option<u16>,
    /// Time to live, or hop limit; `None`: the stack's.
    pub ttl: Option<u8>,
    /// DSCP and ECN.
    pub tos: u8,
}

/// Result of [`Listener::request`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Requested {
    /// A SYN: its flow, and its name.
    Syn(FlowKey, Serial),
    /// None waits.
    None,
    /// The listener does not hold SYNs.
    Never,
    /// The listener is closed.
    Closed,
}

/// Result of [`Listener::accept`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// A connection, and its flow.
    Conn(SockId, FlowKey),
    /// None waits.
    Empty,
    /// The listener is closed.
    Closed,
}

/// Where a segment goes to, as listeners are looked for.
#[derive(Copy, Clone, Debug)]
pub struct Wanted {
    /// The address.
    pub local: IpAddr,
    /// The port.
    pub port: u16,
    /// The interface that it came by, if that is known.
    pub iface: Option<u16>,
}

/// A perimeter's own table of wildcard entries: which listeners it knows, by port.
pub struct Wildcards<K: Kind> {
    by_port: hashbrown::HashMap<u16, Vec<Arc<Listener<K>>>, foldhash::fast::RandomState>,
}

impl<K: Kind> Default for Wildcards<K> {
    fn default() -> Self {
        Wildcards {
            by_port: hashbrown::HashMap::default(),
        }
    }
}

impl<K: Kind> Wildcards<K> {
    /// Adds a listener.
    pub fn insert(&mut self, l: Arc<Listener<K>>) {
        self.by_port.entry(l.port).or_default().push(l);
    }

    /// Removes the listener of that name.
    pub fn remove(&mut self, id: SockId, port: u16) -> bool {
        let Some(list) = self.by_port.get_mut(&port) else {
            return false;
        };
        let before = list.len();
        list.retain(|l| l.id != id);
        let removed = list.len() < before;
        if list.is_empty() {
            self.by_port.remove(&port);
        }
        removed
    }

    /// The listener for a SYN: those of the port before those of any, the one at the address before
    /// the wildcard, and of those the one that is bound to the interface. Where several share the
    /// port, `hash` of the flow selects one.
    pub fn find(&self, to: Wanted, hash: impl Fn() -> u32) -> Option<&Arc<Listener<K>>> {
        self.find_at(to.port, to, &hash)
            .or_else(|| self.find_at(ANY_PORT, to, &hash))
    }

    fn find_at(&self, port: u16, to: Wanted, hash: &impl Fn() -> u32) -> Option<&Arc<Listener<K>>> {
        let list = self.by_port.get(&port)?;
        let fit = list.iter().filter(|l| l.matches(to.local, to.iface));
        let best = fit.clone().map(|l| l.rank()).max()?;
        let mut fit = fit.filter(|l| l.rank() == best);
        let n = match fit.clone().count() {
            1 => 0,
            n => hash() as usize % n.max(1),
        };
        fit.nth(n)
    }
}
