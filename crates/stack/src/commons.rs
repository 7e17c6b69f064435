//! What all threads of a stack share, whatever the organization.

use crate::conn::Seg;
use crate::count::{COUNTS, Count};
use crate::grave::Graveyard;
use crate::id::{Slots, SockId};
use crate::kind::{Ctx, Kind, Lk, lock};
use crate::listener::Listener;
use crate::net::{Iface, L2, Route, arp_frame};
use crate::poller::Pollers;
use crate::port::{RxPort, TxPort};
use crate::route::Routes;
use core::net::IpAddr;
use perimeter_base::Time;
use perimeter_link::Device;
use perimeter_sync::{Lock, LockClass, PerLaneCounters, Platform};
use perimeter_tcp::isn::IsnGen;
use perimeter_tcp::{Config as TcpConfig, Rst};
use perimeter_wire::{ArpPacket, FlowKey, SegOut, Template, Toeplitz};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One wait in this many is looked at for what it costs.
const SLEEP_SAMPLE: u64 = 16;

/// Settings of a stack.
#[derive(Clone, Debug)]
pub struct Config {
    /// What connections are made with, unless told otherwise.
    pub tcp: TcpConfig,
    /// Memory that all sockets together may pin, bytes. Beyond it senders are held back and
    /// windows are not opened; what is established goes on. Default 1 GiB.
    pub memory: u64,
    /// Connections in a shard that no application holds any more; beyond it they are reset.
    /// Default 65,536.
    pub orphans: usize,
    /// Buckets of each perimeter's SYN cache. Default 512.
    pub syn_buckets: usize,
    /// Entries in a bucket. Default 30.
    pub syn_depth: usize,
    /// Ports for connections that do not ask for one (RFC 6056). Default 32768–60999.
    pub ephemeral: core::ops::RangeInclusive<u16>,
    /// Descriptors in a transmit ring, 2 to 65,536, else clamped. Default 1024.
    pub tx_ring: usize,
    /// Time to live of datagrams. Default 64.
    pub ttl: u8,
    /// The longest that the stack's own threads sleep without looking around. Half of the
    /// 10 ms within which packets and timers are served though no application thread enters
    /// the stack. Default 5 ms.
    pub service: core::time::Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tcp: TcpConfig::default(),
            memory: 1 << 30,
            orphans: 65_536,
            syn_buckets: 512,
            syn_depth: 30,
            ephemeral: 32_768..=60_999,
            tx_ring: crate::port::TX_RING,
            ttl: 64,
            service: core::time::Duration::from_millis(5),
        }
    }
}

/// An interface to be: a device and its addresses.
pub struct IfaceSpec {
    /// The device.
    pub device: Box<dyn Device>,
    /// Addresses; the first is the preferred source.
    pub addrs: Vec<crate::net::Cidr>,
}

/// Bound ports: the address, if one is given, and the listener.
type Bound = HashMap<u16, Vec<(Option<IpAddr>, SockId)>>;

/// What all threads share.
pub struct Commons<K: Kind> {
    /// The platform.
    pub p: K::P,
    /// Settings.
    pub config: Config,
    /// Interfaces.
    pub ifaces: Vec<Iface>,
    /// Transmit queues of all interfaces.
    pub tx: Vec<TxPort<K>>,
    /// Receive queues of all interfaces.
    pub rx: Vec<RxPort<K>>,
    /// Flow hash for devices that have none.
    pub toeplitz: Toeplitz,
    /// Initial sequence numbers, timestamp offsets and ports.
    pub isn: IsnGen,
    /// Secret of the connection tables.
    pub secret: [u64; 2],
    /// Pollers.
    pub pollers: Pollers<K>,
    /// Counters.
    pub counters: PerLaneCounters<COUNTS>,
    /// Routes and neighbours.
    pub routes: Routes<K>,
    net_generation: AtomicU32,
    /// Listeners by name.
    listeners: Lk<K, Slots<Arc<Listener<K>>>>,
    /// Bound ports.
    bound: Lk<K, Bound>,
    pub(crate) graveyard: Lk<K, Graveyard>,
    next_port: AtomicU32,
    pressure: AtomicBool,
}

/// Whether somebody listens on `port` at `addr`, or at any address if either says so.
fn taken(bound: &Bound, addr: Option<IpAddr>, port: u16) -> bool {
    let overlaps = |a: &Option<IpAddr>| a.is_none() || addr.is_none() || *a == addr;
    bound
        .get(&port)
        .is_some_and(|l| l.iter().any(|(a, _)| overlaps(a)))
}

/// Why a port can't be had.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AddrInUse;

impl<K: Kind> Commons<K> {
    /// Takes the devices and makes what is shared.
    pub fn new(p: K::P, config: Config, specs: Vec<IfaceSpec>, routes: Vec<Route>) -> Self {
        let (mut ifaces, mut tx, mut rx) = (Vec::new(), Vec::new(), Vec::new());
        let mut all_routes = routes;
        for (n, spec) in specs.into_iter().enumerate() {
            let caps = spec.device.capabilities();
            let ring = config.tx_ring.clamp(2, 1 << 16);
            let (rxqs, txqs) = spec.device.open();
            let (rx0, tx0) = (rx.len() as u16, tx.len() as u16);
            rx.extend(rxqs.into_iter().map(|q| RxPort::new(&p, q, n as u16)));
            let rxs = (rx.len() as u16 - rx0).max(1);
            tx.extend(
                txqs.into_iter()
                    .enumerate()
                    .map(|(i, q)| TxPort::new(&p, q, ring, rx0 + i as u16 % rxs)),
            );
            for a in &spec.addrs {
                all_routes.push(Route {
                    dst: *a,
                    iface: n as u16,
                    via: None,
                });
            }
            ifaces.push(Iface {
                caps,
                addrs: spec.addrs,
                rx: rx0..rx.len() as u16,
                tx: tx0..tx.len() as u16,
            });
        }
        let secret = p.secret();
        Commons {
            routes: Routes::new(&p, all_routes),
            listeners: lock::<K, _>(&p, LockClass::Control, Slots::default()),
            bound: lock::<K, _>(&p, LockClass::Control, HashMap::new()),
            graveyard: lock::<K, _>(&p, LockClass::Leaf, Graveyard::default()),
            pollers: Pollers::new(&p),
            counters: PerLaneCounters::new(),
            toeplitz: Toeplitz::default(),
            isn: IsnGen::new(secret[0], secret[1]),
            secret: [
                secret[0].rotate_left(17) ^ 0x9e37_79b9_7f4a_7c15,
                secret[1].rotate_left(41),
            ],
            net_generation: AtomicU32::new(1),
            next_port: AtomicU32::new(0),
            pressure: AtomicBool::new(false),
            p,
            config,
            ifaces,
            tx,
            rx,
        }
    }

    /// Adds to a counter.
    #[inline]
    pub fn count(&self, lane: usize, c: Count, n: u64) {
        self.counters.add(lane, c as usize, n);
    }

    /// A handle named a socket that has gone: counted, and nothing to yield.
    #[cold]
    pub fn stale<R>(&self, cx: &Ctx<K>) -> Option<R> {
        self.count(cx.lane, Count::StaleHandle, 1);
        None
    }

    /// Runs `f`, which parks the calling thread, and counts the time in there: every wait for
    /// work, or for another thread's answer, belongs in here, so that a benchmark can tell a
    /// parked thread from a busy one. Falling asleep and waking up are work, and so is a wait
    /// that returns at once; as reading a thread's CPU clock costs as much as that, one wait in
    /// `SLEEP_SAMPLE` tells how much it is. The clock's low bits choose which.
    pub fn asleep<R>(&self, f: impl FnOnce() -> R) -> R {
        let lane = self.p.lane();
        let start = self.p.now();
        let cpu = start
            .0
            .is_multiple_of(SLEEP_SAMPLE)
            .then(|| self.p.cpu_ns());
        let out = f();
        if let Some(cpu) = cpu {
            let used = self.p.cpu_ns() - cpu;
            self.count(lane, Count::ParkCpuNs, SLEEP_SAMPLE * used);
        }
        let idle = self.p.now().nanos_since(start);
        self.count(lane, Count::IdleNs, idle);
        out
    }

    /// The flow hash that selects groups and queues: the same for both directions and at every
    /// entry.
    #[inline]
    pub fn flow_hash(&self, key: &FlowKey) -> u32 {
        self.toeplitz.hash(key)
    }

    /// Charges `after - before` bytes to the stack, or gives them back.
    #[inline]
    pub fn charge(&self, lane: usize, before: usize, after: usize) {
        if after > before {
            self.count(lane, Count::MemCharged, (after - before) as u64);
        } else if after < before {
            self.count(lane, Count::MemReleased, (before - after) as u64);
        }
    }

    /// Memory that sockets pin, bytes: a sum over threads, not a snapshot.
    pub fn memory(&self) -> u64 {
        let charged = self.counters.sum(Count::MemCharged as usize);
        charged.saturating_sub(self.counters.sum(Count::MemReleased as usize))
    }

    /// Looks whether memory is short. Called by timers, and by senders now and then.
    pub fn watch_memory(&self) {
        let short = self.memory() >= self.config.memory;
        if short != self.pressure.load(Ordering::Relaxed) {
            self.pressure.store(short, Ordering::Relaxed);
        }
    }

    /// Whether memory is short.
    #[inline]
    pub fn memory_short(&self) -> bool {
        self.pressure.load(Ordering::Relaxed)
    }

    /// Generation of routes and neighbours; header templates of another one are made anew.
    #[inline]
    pub fn net_generation(&self) -> u32 {
        self.net_generation.load(Ordering::Acquire)
    }

    /// The interface towards `remote` and the address to use there, `local` if one is given
    /// (RFC 1122, section 3.3.4.3: the address in the route's own prefix, else the first).
    pub fn source(&self, remote: IpAddr, local: Option<IpAddr>) -> Option<(u16, IpAddr)> {
        let hop = self.routes.hop(remote)?;
        let iface = &self.ifaces[usize::from(hop.iface)];
        let addr = match local {
            Some(a) => self.ifaces.iter().any(|i| i.owns(a)).then_some(a)?,
            None => {
                let same = |a: &&crate::net::Cidr| a.addr.is_ipv4() == remote.is_ipv4();
                let near = iface
                    .addrs
                    .iter()
                    .filter(same)
                    .find(|a| a.contains(hop.next));
                near.or_else(|| iface.addrs.iter().find(same))?.addr
            }
        };
        Some((hop.iface, addr))
    }

    /// Header template for a flow. `None`: no route. The template of an unresolved neighbour
    /// must not be used; `waiter` is told when it is resolved.
    pub fn template(
        &self,
        key: &FlowKey,
        waiter: Option<SockId>,
        cx: &mut Ctx<K>,
    ) -> Option<(u16, Option<Template>)> {
        let now = cx.now(&self.p);
        let found = self.routes.resolve(&self.ifaces, key.remote, waiter, now)?;
        let iface = found.hop.iface;
        if let Some(packet) = found.ask {
            self.send_arp(cx, iface, perimeter_wire::MacAddr::BROADCAST, &packet);
        }
        let l2 = match found.l2 {
            L2::Unresolved => return Some((iface, None)),
            L2::None => None,
            L2::Stations(src, dst) => Some((src, dst)),
        };
        Some((
            iface,
            Some(Template::new_v4(l2, key, self.config.ttl, 0, true)),
        ))
    }

    /// Sends an ARP packet.
    pub fn send_arp(
        &self,
        cx: &mut Ctx<K>,
        iface: u16,
        dst: perimeter_wire::MacAddr,
        packet: &ArpPacket,
    ) {
        let i = &self.ifaces[usize::from(iface)];
        let q = i.tx.start;
        let mut ring = self.tx[usize::from(q)].ring.lock();
        if let Some(d) = ring.push() {
            d.hdr_len = arp_frame(i.caps.mac, dst, packet, &mut d.hdr) as u8;
            cx.after.ring(q);
        } else {
            self.count(cx.lane, Count::TxRingFull, 1);
        }
    }

    /// Sends a whole frame by an interface; dropped when its ring is full, or there is no such
    /// interface.
    pub fn send_frame(&self, cx: &mut Ctx<K>, iface: u16, frame: &[u8]) {
        let Some(i) = self.ifaces.get(usize::from(iface)) else {
            return;
        };
        let q = i.tx.start;
        let mut ring = self.tx[usize::from(q)].ring.lock();
        if let Some(d) = ring.push() {
            d.hdr_len = 0;
            d.owned = Some(perimeter_base::PktBuf::copy_of(frame));
            cx.after.ring(q);
        } else {
            self.count(cx.lane, Count::TxRingFull, 1);
        }
    }

    /// A neighbour spoke. Returns the connections that waited for it.
    pub fn heard(
        &self,
        iface: u16,
        ip: core::net::Ipv4Addr,
        mac: perimeter_wire::MacAddr,
        learn: bool,
        now: Time,
    ) -> Vec<SockId> {
        let (waiting, changed) = self.routes.heard(iface, ip, mac, learn, now);
        if changed {
            let next = self
                .net_generation
                .load(Ordering::Relaxed)
                .wrapping_add(1)
                .max(1);
            self.net_generation.store(next, Ordering::Release);
        }
        waiting
    }

    /// When [`Commons::retry_neighbours`] has something to do: not later than that.
    #[inline]
    pub fn ask_at(&self) -> Time {
        self.routes.ask_at()
    }

    /// Sends ARP requests that are due again; yields the connections that have waited for a
    /// neighbour in vain.
    pub fn retry_neighbours(&self, cx: &mut Ctx<K>) -> Vec<SockId> {
        let now = cx.now(&self.p);
        let (mut out, mut failed) = (Vec::new(), Vec::new());
        self.routes.retry(&self.ifaces, now, &mut out, &mut failed);
        for (iface, packet) in out {
            self.send_arp(cx, iface, perimeter_wire::MacAddr::BROADCAST, &packet);
        }
        failed
    }

    /// Sends one segment that belongs to no connection: a SYN-ACK or a reset. Dropped when the
    /// neighbour is not resolved or the ring is full: the peer asks again.
    pub fn reply(&self, cx: &mut Ctx<K>, key: &FlowKey, hash: u32, seg: &SegOut) {
        let Some((iface, Some(template))) = self.template(key, None, cx) else {
            return;
        };
        let q = self.ifaces[usize::from(iface)].txq(hash);
        let mut ring = self.tx[usize::from(q)].ring.lock();
        let Some(d) = ring.push() else {
            return self.count(cx.lane, Count::TxRingFull, 1);
        };
        // A datagram on its own may say 0: it is never fragmented (RFC 6864, section 4.1).
        d.hdr_len = template.emit(&mut d.hdr, 0, seg, 0) as u8;
        d.offload.csum_start = (template.l2_len() + 20) as u16;
        d.offload.csum_offset = 16;
        drop(ring);
        self.count(cx.lane, Count::TxSegs, 1);
        cx.after.ring(q);
    }

    /// Answers a segment that belongs to no connection with a reset (RFC 9293, section
    /// 3.10.7.1); never a reset with a reset.
    pub fn refuse(&self, cx: &mut Ctx<K>, seg: &Seg) {
        self.count(cx.lane, Count::NoConnection, 1);
        let Some(rst) = Rst::answering(&seg.frame.hdr, seg.payload.len() as u32) else {
            return;
        };
        self.count(cx.lane, Count::TxResets, 1);
        self.reply(cx, &seg.frame.key, seg.hash, &rst.seg());
    }

    /// Makes a listener and binds it. Port 0 asks for any free one.
    ///
    /// # Errors
    /// The port is taken, or none is free.
    pub fn bind_listener(
        &self,
        addr: Option<IpAddr>,
        port: u16,
        backlog: u32,
        config: TcpConfig,
    ) -> Result<Arc<Listener<K>>, AddrInUse> {
        if port != 0 {
            return self.bind_listener_at(addr, port, backlog, config);
        }
        // Another thread may bind the port that was found free before this one does. It has one
        // then, so there are no more turns than ports.
        for _ in 0..self.ephemeral_count() {
            let free = self.free_port(addr)?;
            if let Ok(listener) = self.bind_listener_at(addr, free, backlog, config.clone()) {
                return Ok(listener);
            }
        }
        Err(AddrInUse)
    }

    /// A port that nobody listens on just now.
    fn free_port(&self, addr: Option<IpAddr>) -> Result<u16, AddrInUse> {
        let bound = self.bound.lock();
        let first = *self.config.ephemeral.start();
        let start = self.next_port.load(Ordering::Relaxed);
        let n = self.ephemeral_count();
        (0..n)
            .map(|i| first + (start.wrapping_add(i) % n) as u16)
            .find(|p| !taken(&bound, addr, *p))
            .ok_or(AddrInUse)
    }

    fn bind_listener_at(
        &self,
        addr: Option<IpAddr>,
        port: u16,
        backlog: u32,
        config: TcpConfig,
    ) -> Result<Arc<Listener<K>>, AddrInUse> {
        if taken(&self.bound.lock(), addr, port) {
            return Err(AddrInUse);
        }
        self.next_port.store(u32::from(port), Ordering::Relaxed);
        let listener = {
            let mut table = self.listeners.lock();
            let mut made = None;
            table.insert_with(|slot, generation| {
                let id = SockId::listener(slot, generation);
                let l = Arc::new(Listener::new(&self.p, id, addr, port, backlog, config));
                made = Some(l.clone());
                Some(l)
            });
            made.ok_or(AddrInUse)?
        };
        let mut bound = self.bound.lock();
        if taken(&bound, addr, port) {
            drop(bound);
            self.listeners
                .lock()
                .remove(listener.id.slot(), listener.id.generation());
            return Err(AddrInUse);
        }
        bound.entry(port).or_default().push((addr, listener.id));
        Ok(listener)
    }

    /// The listener of that name.
    pub fn listener(&self, id: SockId) -> Option<Arc<Listener<K>>> {
        if !id.is_listener() {
            return None;
        }
        self.listeners
            .lock()
            .get(id.slot(), id.generation())
            .cloned()
    }

    /// Forgets a listener and its port.
    pub fn unbind_listener(&self, id: SockId) -> Option<Arc<Listener<K>>> {
        let l = self.listeners.lock().remove(id.slot(), id.generation())?;
        let mut bound = self.bound.lock();
        if let Some(list) = bound.get_mut(&l.port) {
            list.retain(|(_, i)| *i != id);
            if list.is_empty() {
                bound.remove(&l.port);
            }
        }
        Some(l)
    }

    /// All listeners.
    pub fn listeners(&self) -> Vec<Arc<Listener<K>>> {
        self.listeners
            .lock()
            .iter()
            .map(|(_, _, l)| l.clone())
            .collect()
    }

    /// A candidate port for a connection (RFC 6056, algorithm 3: an offset that depends on the
    /// ends and a secret, plus a counter). The counter alone moves from one candidate to the
    /// next, so that [`Commons::ephemeral_count`] of them are all the ports.
    pub fn ephemeral_port(&self, key: &FlowKey) -> u16 {
        let span = &self.config.ephemeral;
        let n = u32::from(span.end() - span.start()) + 1;
        let step = self.next_port.load(Ordering::Relaxed).wrapping_add(1);
        self.next_port.store(step, Ordering::Relaxed);
        let offset = self.isn.port_offset(key);
        span.start() + (offset.wrapping_add(step) % n) as u16
    }

    /// How many ephemeral ports there are.
    pub fn ephemeral_count(&self) -> u32 {
        u32::from(self.config.ephemeral.end() - self.config.ephemeral.start()) + 1
    }

    /// Lock counts of what is shared, by class.
    pub fn lock_stats(&self, add: &mut dyn FnMut(LockClass, perimeter_sync::LockStats)) {
        self.routes.lock_stats(add);
        add(LockClass::Control, self.listeners.stats());
        add(LockClass::Control, self.bound.stats());
        for l in self.listeners() {
            add(LockClass::Listener, l.stats());
        }
        for t in &self.tx {
            for (class, stats) in t.stats() {
                add(class, stats);
            }
        }
        for r in &self.rx {
            add(LockClass::NicRx, r.queue.stats());
        }
        self.pollers.lock_stats(add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::OneThread;
    use core::net::Ipv4Addr;
    use perimeter_sync::Native;
    use std::collections::HashSet;

    #[test]
    fn the_candidates_are_all_ports() {
        let sh =
            Commons::<OneThread>::new(Native::default(), Config::default(), Vec::new(), Vec::new());
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let key = FlowKey {
            local: ip,
            remote: ip,
            local_port: 0,
            remote_port: 80,
        };
        let n = sh.ephemeral_count();
        let ports: HashSet<u16> = (0..n).map(|_| sh.ephemeral_port(&key)).collect();
        assert_eq!(ports.len() as u32, n);
        assert!(ports.iter().all(|p| sh.config.ephemeral.contains(p)));
    }
}
