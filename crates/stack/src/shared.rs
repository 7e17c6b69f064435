//! What all threads of a stack share, whatever the organization.

mod addresses;
mod templates;

pub use crate::config::Config;
use crate::count::{self, COUNTS, Count};
use crate::id::{Slots, SockId};
use crate::ipv4::client::{Client, DhcpConfig};
use crate::ipv6::addrs::{Addresses, Held, State};
use crate::ipv6::autoconf::{Auto, Settled};
use crate::ipv6::variables::HostVariables;
use crate::ipv6::zone_of;
use crate::kind::{Kind, Lk, lock};
use crate::life::Life;
use crate::listener::{ANY_PORT, At, ListenSpec, Listener, overlap};
use crate::memory::Memory;
use crate::net::{Accept, Addrs, Cidr, Iface, Route, both_get};
use crate::own::Own;
use crate::pmtu::PathMtus;
use crate::poller::Pollers;
use crate::port::{RxPort, TxPort};
use crate::quota::Quota;
use crate::route::{Ask, Routes, To};
use crate::steer::{Steering, Ways};
use crate::tasks::AllTasks;
use core::net::IpAddr;
use perimeter_base::{PktDepot, Time, TxRing};
use perimeter_link::loopback::LoopbackHandle;
use perimeter_link::{Device, Medium};
use perimeter_sync::{Lock, LockClass, PerLaneCounters, Platform};
use perimeter_tcp::isn::{IsnGen, PortPicker};
use perimeter_wire::ipv6::with_zone;
use perimeter_wire::{FlowKey, MacAddr, Toeplitz};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Descriptors in the loopback's transmit ring: connections to ourselves take turns.
const LOOPBACK_RING: usize = 64;

/// An interface to be: a device and its addresses.
pub struct IfaceSpec {
    /// The device.
    pub device: Box<dyn Device>,
    /// Addresses; the first is the preferred source.
    pub addrs: Vec<crate::net::Cidr>,
    /// Which other destinations it takes.
    pub accept: Accept,
    /// It gets an IPv4 address from a server, if it has stations.
    pub dhcp: Option<DhcpConfig>,
}

/// A listener's place among those of its port.
struct Place {
    id: SockId,
    addr: Option<IpAddr>,
    device: Option<u16>,
    shares: bool,
}

/// Bound ports.
type Bound = HashMap<u16, Vec<Place>>;

/// What all threads share.
pub struct SharedState<K: Kind> {
    /// The platform.
    pub p: K::P,
    /// Settings.
    pub config: Config,
    /// Interfaces; the last is the loopback.
    pub ifaces: Vec<Iface>,
    /// IPv6 addresses of all interfaces.
    pub v6: Arc<Addresses>,
    /// Transmit queues of all interfaces.
    pub tx: Vec<TxPort<K>>,
    /// Receive queues of all interfaces; the last is the loopback's.
    pub rx: Vec<RxPort<K>>,
    /// Where what comes by the devices goes, if it is steered.
    pub steering: Option<Steering<K>>,
    /// What the stack has sent to itself.
    looped: LoopbackHandle<K::P>,
    /// Flow hash for devices that have none.
    pub toeplitz: Toeplitz,
    /// Whether the stack lives.
    pub life: Life,
    /// Initial sequence numbers, timestamp offsets and IP identifications.
    pub isn: IsnGen,
    /// Ports for connections and listeners that do not ask for one.
    pub ports: PortPicker,
    /// Secret of the connection tables.
    pub secret: [u64; 2],
    /// Pollers.
    pub pollers: Pollers<K>,
    /// Tasks of async runtimes that sockets wake.
    pub tasks: AllTasks,
    /// Packet buffers on their way from one thread's pool to another's.
    pub packets: PktDepot,
    /// Counters.
    pub counters: PerLaneCounters<COUNTS>,
    /// Routes and neighbours.
    pub routes: Routes<K>,
    /// MTUs of paths that routers have told of.
    pub path_mtus: PathMtus<K>,
    net_generation: AtomicU32,
    /// Whether an interface takes other destinations than its own.
    accepts_any: bool,
    /// What becomes of IPv6 addresses; entered inside perimeters, after routes.
    pub(crate) auto: Lk<K, Auto>,
    /// When something is due there, ns.
    pub(crate) auto_at: AtomicU64,
    /// Somewhere an IPv4 address is looked at whether somebody else has it.
    pub(crate) probing: AtomicBool,
    /// When each interface's addresses were defended last, ns; 0: never.
    pub(crate) defended: Vec<AtomicU64>,
    /// Listeners by name.
    listeners: Lk<K, Slots<Arc<Listener<K>>>>,
    /// Bound ports.
    bound: Lk<K, Bound>,
    /// Groups that sockets have joined.
    pub(crate) groups: Lk<K, crate::joined::Groups>,
    pub(crate) groups_joined: crate::joined::Joined,
    /// Fragments that wait for the rest of their datagrams.
    pub fragments: Lk<K, crate::fragment::Reassembly>,
    /// Counts what is sent in fragments.
    fragmented: AtomicU32,
    /// Datagrams of others that wait for a neighbour.
    pub(crate) forward: crate::transit::Waiting<K>,
    /// UDP's sockets by port.
    pub udp: crate::udp::Ports<K>,
    /// Places for connections that no application holds, by [`crate::quota::End`].
    pub(crate) quotas: [Quota<K>; 2],
    pub(crate) memory: Memory<K>,
}

/// Whether somebody listens on `port` where both could be meant, and does not share that with whoever
/// `shares`.
fn taken(bound: &Bound, spec: &ListenSpec, port: u16, shares: bool) -> bool {
    let both = |p: &Place| overlap(p.addr, spec.addr) && both_get(p.device, spec.device);
    let bars = |p: &Place| both(p) && !(shares && p.shares);
    bound.get(&port).is_some_and(|l| l.iter().any(bars))
}

/// The IPv6 addresses that interfaces are to have, and room for those that they find themselves.
fn addresses(specs: &[IfaceSpec]) -> Addresses {
    /// Addresses that an interface may find.
    const FOUND: usize = 16;
    let given = specs.iter().map(|s| s.addrs.len()).sum::<usize>();
    let table = Addresses::new(given + FOUND * specs.len());
    for (n, spec) in specs.iter().enumerate() {
        for a in &spec.addrs {
            if let IpAddr::V6(addr) = a.addr {
                table.set(Held {
                    addr: with_zone(addr, zone_of(n as u16)),
                    iface: n as u16,
                    prefix: a.prefix,
                    state: State::Preferred,
                });
            }
        }
    }
    table
}

/// Why a port can't be had.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AddrInUseError;

impl<K: Kind> SharedState<K> {
    /// The receive queue that goes with a transmit queue.
    #[inline]
    pub fn rx_of(&self, txq: u16) -> Option<&RxPort<K>> {
        let port = self.tx.get(usize::from(txq))?;
        self.rx.get(usize::from(port.rxq))
    }

    /// Takes the devices and makes what is shared.
    pub fn new(p: K::P, config: Config, specs: Vec<IfaceSpec>, routes: Vec<Route>) -> Self {
        let (mut ifaces, mut tx) = (Vec::new(), Vec::new());
        let mut rx: Vec<RxPort<K>> = Vec::new();
        let mut all_routes: Vec<Route> = routes.into_iter().map(Route::with_zones).collect();
        let given = specs.iter().flat_map(|s| &s.addrs);
        let own: Vec<IpAddr> = given.map(|a| a.addr).filter(IpAddr::is_ipv4).collect();
        let v6 = Arc::new(addresses(&specs));
        let loopback = specs.len() as u16;
        let (device, looped) = perimeter_link::loopback::loopback(&p);
        // It has no address, so that no prefix leads there.
        let last = IfaceSpec {
            device: Box::new(device),
            addrs: Vec::new(),
            accept: Accept::Own,
            dhcp: None,
        };
        let mut dhcp = Vec::new();
        for (n, spec) in specs.into_iter().chain([last]).enumerate() {
            let caps = spec.device.capabilities();
            let ring = match n as u16 == loopback {
                true => LOOPBACK_RING,
                false => config.tx_ring.clamp(2, 1 << 16),
            };
            let rings = || match caps.hands_on {
                true => TxRing::staged_to_hand_on(ring),
                false => TxRing::staged(ring),
            };
            let large = config.offload.cutting(&caps);
            let datagrams = config.offload.datagrams(&caps);
            let (rxqs, txqs) = spec.device.open();
            let (rx0, tx0) = (rx.len() as u16, tx.len() as u16);
            rx.extend(rxqs.into_iter().map(|q| RxPort::new(&p, q, n as u16)));
            let rxs = (rx.len() as u16 - rx0).max(1);
            tx.extend(
                txqs.into_iter()
                    .enumerate()
                    .map(|(i, q)| TxPort::new(&p, q, rings(), rx0 + i as u16 % rxs))
                    .map(|port| port.cutting(large, datagrams)),
            );
            for a in &spec.addrs {
                all_routes.push(
                    Route {
                        dst: *a,
                        iface: n as u16,
                        via: None,
                    }
                    .with_zones(),
                );
            }
            if spec.accept.is_any() {
                // Behind those that were given: answers find the way that they are to take.
                let all = [IpAddr::from([0u8; 4]), IpAddr::from([0u8; 16])];
                all_routes.extend(all.map(|addr| Route {
                    dst: Cidr { addr, prefix: 0 },
                    iface: n as u16,
                    via: None,
                }));
            }
            if let (Medium::Ethernet, Some(c)) = (caps.medium, spec.dhcp) {
                dhcp.push((n as u16, caps.mac, c));
            }
            let addrs = spec.addrs.into_iter().filter(|a| a.addr.is_ipv4());
            ifaces.push(Iface {
                number: n as u16,
                mtu4: AtomicU32::new(caps.mtu),
                mtu6: AtomicU32::new(caps.mtu),
                caps,
                addrs: Arc::new(Addrs::new(addrs.collect())),
                accept: spec.accept,
                rx: rx0..rx.len() as u16,
                tx: tx0..tx.len() as u16,
                gone: AtomicBool::new(false),
                variables: HostVariables::default(),
            });
        }
        let devices = rx.len() as u16 - 1;
        let steering = (config.steering && devices > 1).then(|| {
            for (q, port) in rx.iter().take(devices.into()).enumerate() {
                port.queue.lock().ways = Some(Ways::new(q as u16, devices));
            }
            Steering::new(&p, devices)
        });
        let secret = p.secret();
        let stations = |i: &Iface| {
            let ethernet = i.caps.medium == Medium::Ethernet;
            (i.caps.name.clone(), ethernet.then_some(i.caps.mac))
        };
        let outer: Vec<_> = ifaces[..usize::from(loopback)]
            .iter()
            .map(stations)
            .collect();
        let mut auto = Auto::new(&config.ipv6, secret, &outer, (&v6, p.now()));
        let leased = dhcp.iter().map(|d| ifaces[usize::from(d.0)].addrs.clone());
        let leased: Vec<_> = leased.collect();
        for (n, mac, config) in dhcp {
            let seed = secret[0].rotate_left(23) ^ secret[1] ^ u64::from(n);
            let client = Client::new(config, (n, mac), seed, p.now());
            auto.clients.push(client);
        }
        for a in v6
            .all()
            .filter(|h| h.prefix == 64 && with_zone(h.addr, 0) != h.addr)
        {
            // Link-local addresses that were made, not given, lead somewhere as well.
            let dst = Cidr {
                addr: IpAddr::V6(a.addr),
                prefix: a.prefix,
            };
            let (iface, via) = (a.iface, None);
            let route = Route { dst, iface, via };
            if !all_routes
                .iter()
                .any(|r| r.iface == iface && r.dst.contains(dst.addr))
            {
                all_routes.push(route);
            }
        }
        let isn = IsnGen::new(secret[0], secret[1]);
        let (first, last) = (*config.ephemeral.start(), *config.ephemeral.end());
        SharedState {
            ports: PortPicker::new(isn.clone(), first, last),
            routes: Routes::new(&p, all_routes, (own, leased, v6.clone()), loopback),
            v6,
            defended: ifaces.iter().map(|_| AtomicU64::new(0)).collect(),
            listeners: lock::<K, _>(&p, LockClass::Control, Slots::default()),
            bound: lock::<K, _>(&p, LockClass::Control, HashMap::new()),
            quotas: config.ends().map(|n| Quota::new(&p, n)),
            path_mtus: PathMtus::new(&p),
            pollers: Pollers::new(&p),
            tasks: AllTasks::default(),
            packets: PktDepot::new(config.spare()),
            counters: PerLaneCounters::new(),
            toeplitz: Toeplitz::default(),
            life: Life::default(),
            isn,
            secret: [
                secret[0].rotate_left(17) ^ 0x9e37_79b9_7f4a_7c15,
                secret[1].rotate_left(41),
            ],
            groups: lock::<K, _>(&p, LockClass::Leaf, crate::joined::Groups::default()),
            groups_joined: crate::joined::Joined::default(),
            fragments: lock::<K, _>(
                &p,
                LockClass::Leaf,
                crate::fragment::Reassembly::new(config.fragments),
            ),
            // It begins anywhere.
            fragmented: AtomicU32::new(secret[1] as u32),
            forward: crate::transit::Waiting::new(&p),
            udp: crate::udp::Ports::new(&p, secret),
            net_generation: AtomicU32::new(1),
            accepts_any: ifaces.iter().any(|i| i.accept.is_any()),
            auto_at: AtomicU64::new(auto.due().0),
            probing: AtomicBool::new(false),
            auto: lock::<K, _>(&p, LockClass::Neighbour, auto),
            memory: Memory::new(&p, config.memory),
            p,
            config,
            ifaces,
            tx,
            rx,
            steering,
            looped,
        }
    }

    /// Whether there is an interface of that number; `None` means none in particular.
    pub fn has_interface(&self, device: Option<u16>) -> bool {
        device.is_none_or(|n| usize::from(n) < self.ifaces.len())
    }

    /// The number of the loopback among the interfaces, and of its receive queue among those of all:
    /// as many as devices have.
    pub fn loopback(&self) -> (u16, u16) {
        (self.ifaces.len() as u16 - 1, self.rx.len() as u16 - 1)
    }

    /// Whether packets that the stack has sent to itself wait to be received. Whoever serves devices
    /// looks, and whoever goes to sleep, after the loopback's waker could find it.
    #[inline]
    pub fn looped(&self) -> bool {
        self.looped.waiting() > 0
    }

    /// Adds to a counter.
    #[inline]
    pub fn count(&self, lane: usize, c: Count, n: u64) {
        self.counters.add(lane, c as usize, n);
    }

    /// Adds to counter `which` of those that the organization has for itself and names; below
    /// [`OWN`](crate::count::OWN).
    #[inline]
    pub fn count_own(&self, lane: usize, which: usize, n: u64) {
        self.counters.add(lane, count::own(which), n);
    }

    /// A handle named a socket that has gone: counted, and nothing to yield.
    #[cold]
    pub fn stale<R>(&self, own: &Own<K>) -> Option<R> {
        self.count(own.lane, Count::StaleHandle, 1);
        None
    }

    /// The flow hash that selects groups and queues: the same for both directions and at every
    /// entry.
    #[inline]
    pub fn flow_hash(&self, key: &FlowKey) -> u32 {
        self.toeplitz.hash(key)
    }

    /// Generation of routes and neighbours; header templates of another one are made anew.
    #[inline]
    pub fn net_generation(&self) -> u32 {
        self.net_generation.load(Ordering::Acquire)
    }

    /// The identification of a datagram that is sent in fragments (RFC 7739): different for each to
    /// one host, and nothing that tells how many went to another.
    pub(crate) fn fragment_ident(&self, ip: &perimeter_wire::IpHdr) -> u32 {
        let [a, b] = self.secret;
        let key = FlowKey {
            local: ip.src,
            remote: ip.dst,
            local_port: ip.protocol.into(),
            remote_port: 0,
        };
        let from = crate::hash::table_hash([a ^ 0x7739, b], &key) as u32;
        from.wrapping_add(self.fragmented.fetch_add(1, Ordering::Relaxed))
    }

    /// Asks on an interface who has an address.
    pub(crate) fn ask(&self, own: &mut Own<K>, iface: u16, (to, whom): Ask) {
        match whom {
            IpAddr::V4(whom) => self.send_request(own, iface, to, whom),
            IpAddr::V6(whom) => self.solicit(own, iface, to, whom),
        }
    }

    /// Sends a whole frame by an interface; dropped when its ring is full, or there is no such
    /// interface.
    pub fn send_frame(&self, own: &mut Own<K>, iface: u16, frame: &[u8]) {
        let Some(i) = self.ifaces.get(usize::from(iface)) else {
            return;
        };
        let q = i.tx.start;
        let mut stage = self.tx[usize::from(q)].stage();
        if let Some(mut d) = stage.push() {
            d.hdr_len = 0;
            d.owned = Some(perimeter_base::PktBuf::copy_of(frame));
            own.deferred.ring(q);
        } else {
            self.count(own.lane, Count::TxRingFull, 1);
        }
    }

    /// A neighbour spoke on interface `iface`. Returns the connections that waited for it.
    pub fn heard(
        &self,
        own: &mut Own<K>,
        iface: u16,
        (ip, mac): (IpAddr, MacAddr),
        learn: bool,
    ) -> Vec<SockId> {
        let now = own.now(&self.p);
        let at = (iface, &self.ifaces[usize::from(iface)]);
        let heard = self.routes.heard(at, ip, mac, learn, now);
        if heard.doubted {
            self.count(own.lane, Count::ArpDoubts, 1);
        }
        if let Some(ask) = heard.ask {
            self.ask(own, iface, ask);
        }
        if heard.changed {
            self.net_moved();
        }
        self.forward_on(own, (iface, ip));
        heard.waiting
    }

    /// Routes, neighbours or addresses are others than before: templates are made anew.
    pub(crate) fn net_moved(&self) {
        // 0 stands for templates that were never made.
        let next = |g: u32| Some(g.wrapping_add(1).max(1));
        let (set, fetch) = (Ordering::Release, Ordering::Relaxed);
        // It never refuses.
        let _ = self.net_generation.fetch_update(set, fetch, next);
    }

    /// What was sent `to` there has been sent again and again in vain: the next hop is asked
    /// whether it is there, unless it was heard not long ago (RFC 1122, section 3.3.1.4; RFC 4861,
    /// section 7.3).
    #[cold]
    pub(crate) fn suspect(&self, own: &mut Own<K>, to: To) {
        let now = own.now(&self.p);
        if let Some((iface, ask)) = self.routes.suspect(&self.ifaces, to, now) {
            self.ask(own, iface, ask);
        }
    }

    /// When [`SharedState::retry_neighbours`] has something to do: not later than that.
    #[inline]
    pub fn ask_at(&self) -> Time {
        let auto = Time(self.auto_at.load(Ordering::Relaxed));
        self.routes.ask_at().min(auto).min(self.forward.due())
    }

    /// Asks again for the neighbours that this is due for, and sees to IPv6 addresses; yields the
    /// connections that have waited for either.
    pub fn retry_neighbours(&self, own: &mut Own<K>) -> Settled {
        let now = own.now(&self.p);
        let mut settled = self.tend_addresses(own);
        let (mut out, failed) = (Vec::new(), &mut settled.failed);
        let (lost, moved) = self.routes.retry(&self.ifaces, now, &mut out, failed);
        if lost > 0 {
            self.count(own.lane, Count::NeighboursLost, lost);
        }
        if lost > 0 || moved {
            self.net_moved();
        }
        for (iface, ask) in out {
            self.ask(own, iface, ask);
        }
        self.forward_again(own);
        settled
    }

    /// Makes a listener and binds it.
    ///
    /// # Errors
    /// The port is taken, or none is free.
    pub fn bind_listener(&self, spec: &ListenSpec) -> Result<Arc<Listener<K>>, AddrInUseError> {
        match spec.at {
            At::Port(port) => self.bind_listener_at(spec, port),
            At::All => self.bind_listener_at(spec, ANY_PORT),
            At::Free => {
                let nobody = FlowKey {
                    local: spec.addr.unwrap_or(FlowKey::UNSPECIFIED.local),
                    ..FlowKey::UNSPECIFIED
                };
                let bind = |port| self.bind_listener_at(spec, port).ok();
                self.ports.pick(&nobody, bind).ok_or(AddrInUseError)
            }
        }
    }

    fn bind_listener_at(
        &self,
        spec: &ListenSpec,
        port: u16,
    ) -> Result<Arc<Listener<K>>, AddrInUseError> {
        // Who asks for a free port gets one that is nobody's.
        let shares = spec.reuse_port && spec.at != At::Free;
        if taken(&self.bound.lock(), spec, port, shares) {
            return Err(AddrInUseError);
        }
        let listener = {
            let mut table = self.listeners.lock();
            let mut made = None;
            table.insert_with(|slot, generation| {
                let id = SockId::listener(slot, generation);
                let l = Arc::new(Listener::new(&self.p, id, spec, port));
                made = Some(l.clone());
                Some(l)
            });
            made.ok_or(AddrInUseError)?
        };
        let mut bound = self.bound.lock();
        if taken(&bound, spec, port, shares) {
            drop(bound);
            self.listeners
                .lock()
                .remove(listener.id.slot(), listener.id.generation());
            return Err(AddrInUseError);
        }
        bound.entry(port).or_default().push(Place {
            id: listener.id,
            addr: spec.addr,
            device: spec.device,
            shares: spec.reuse_port,
        });
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
            list.retain(|p| p.id != id);
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

    /// The interfaces but for the loopback.
    fn outer(&self) -> &[Iface] {
        &self.ifaces[..usize::from(self.loopback().0)]
    }

    /// Whether frames can get anywhere else by any interface.
    pub fn carrier(&self) -> bool {
        let queues = self.outer().iter().flat_map(|i| i.tx.clone());
        !self.all_gone()
            && queues
                .into_iter()
                .any(|q| self.tx[usize::from(q)].carrier())
    }

    /// Lets go of pages that have lost their connection and that devices are done with, where
    /// these have not done so as they went.
    pub fn sweep(&self) {
        self.tx.iter().for_each(|t| t.completions().sweep());
    }

    /// Whether no interface is left but the loopback.
    pub fn all_gone(&self) -> bool {
        self.outer().iter().all(Iface::is_gone)
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
