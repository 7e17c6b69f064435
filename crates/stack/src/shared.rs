//! What all threads of a stack share, whatever the organization.

mod addresses;
mod templates;

use crate::count::{COUNTS, Count};
use crate::id::{Slots, SockId};
use crate::ipv4::client::{Client, DhcpConfig};
use crate::ipv6::addrs::{Addresses, Held, State};
use crate::ipv6::autoconf::{Auto, Ipv6Config, Settled};
use crate::ipv6::variables::HostVariables;
use crate::ipv6::zone_of;
use crate::kind::{Kind, Lk, lock};
use crate::life::Life;
use crate::listener::{ANY_PORT, At, ListenSpec, Listener, overlap};
use crate::memory::{Memory, WAITING};
use crate::net::{Accept, Addrs, Cidr, Iface, Route, both_get};
use crate::own::Own;
use crate::pmtu::PathMtus;
use crate::poller::Pollers;
use crate::port::{Offload, RxPort, TxPort};
use crate::quota::Quota;
use crate::route::{Ask, Routes, To};
use crate::tasks::AllTasks;
use core::net::IpAddr;
use perimeter_base::{PktDepot, Time, TxRing};
use perimeter_link::loopback::LoopbackHandle;
use perimeter_link::{Device, Medium};
use perimeter_sync::{Lock, LockClass, PerLaneCounters, Platform};
use perimeter_tcp::Config as TcpConfig;
use perimeter_tcp::isn::{IsnGen, PortPicker};
use perimeter_tcp::syncache::Cookies;
use perimeter_wire::ipv6::with_zone;
use perimeter_wire::{FlowKey, MacAddr, Toeplitz};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Descriptors in the loopback's transmit ring: connections to ourselves take turns.
const LOOPBACK_RING: usize = 64;

/// Settings of a stack.
///
/// ```
/// use perimeter_stack::Config;
///
/// // A small router: 64 MiB, and acknowledgments as RFC 5681 has them.
/// let config = Config::default().with_memory(64 << 20).with_forwarding(true).with_stretch_acks(false);
/// assert_eq!(config.most_merged(), 2);
/// // What waits in TIME-WAIT may take a quarter of the memory at most.
/// let [_orphans, waiting] = config.ends();
/// assert!(waiting < Config::default().ends()[1]);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// What connections are made with, unless told otherwise.
    pub tcp: TcpConfig,
    /// Memory that all connections together may pin, bytes. Default 1 GiB.
    ///
    /// A bound: everything that a connection pins counts ([`crate::memory`]), each at least 7.5
    /// KiB (in TIME-WAIT 3 KiB), so this also limits how many there can be: by default some
    /// 139,000. What is promised: the process's resident memory stays within 1.25 times the
    /// limit and 32 MiB, whatever peers send and however slowly they read; what was acknowledged
    /// to a peer, and what the application has written, is never dropped for want of memory; and
    /// every connection can go on, one segment at a time at worst.
    ///
    /// What gives way first: from three eighths of the limit on, writers get less room, the less
    /// is left, and one segment unless their peers take what they are sent; windows stay smaller,
    /// and data beyond a connection's share is dropped before it is acknowledged; from three
    /// quarters on, data that arrived out of order goes; at the limit, new connections are
    /// refused. TIME-WAIT takes a quarter at most.
    ///
    /// Not counted: what does not depend on connections (devices with their rings, up to 4.5 MiB
    /// of packet buffers that each thread keeps in stock), buffers that the application has
    /// taken out, and the application's own pages beyond the part that is being sent.
    pub memory: u64,
    /// Memory that fragments may pin while they wait for the rest of their datagrams, bytes; one
    /// source may pin a quarter of it. Default 4 MiB.
    pub fragments: usize,
    /// Connections of the whole stack that no application holds any more and that still have data
    /// or their FIN to deliver. Beyond it the one that was closed first is reset; never the one
    /// that is being closed. Default 65,536.
    pub orphans: usize,
    /// Connections of the whole stack in TIME-WAIT, or closed and in FIN-WAIT-2. Beyond it the
    /// wait of the oldest ends early; no data is lost by that. Default 65,536.
    pub time_waits: usize,
    /// Buckets of the stack's SYN caches together. An organization with several connection tables
    /// divides them evenly; each table has a power of two, at least 2. Default 512.
    pub syn_buckets: usize,
    /// Entries in a bucket. Default 30.
    pub syn_depth: usize,
    /// When a SYN is answered by a cookie (RFC 4987, section 3.6). Default: when its bucket is
    /// full.
    pub syn_cookies: Cookies,
    /// Ports for connections that do not ask for one (RFC 6056). Default 32768–60999.
    pub ephemeral: core::ops::RangeInclusive<u16>,
    /// Descriptors in a transmit ring, 2 to 65,536, else clamped. Default 1024.
    pub tx_ring: usize,
    /// Who cuts bursts into segments. Default [`Offload::Device`]: the device, where it can, else the
    /// stack. With [`Offload::Off`] each segment is planned by itself, and taken by itself, as in
    /// the papers.
    pub offload: Offload,
    /// Whether a burst's segments of one connection are acknowledged at once, however many they
    /// are, as Linux does where it merges them (stretch acknowledgments); else every second full
    /// one is, as RFC 5681, section 4.2, has it: a burst's segments are taken by twos, so that three
    /// are acknowledged where one waited already. What a device has merged is acknowledged at once
    /// in any case, and without [`Config::offload`] each segment counts by itself. Default yes.
    pub stretch_acks: bool,
    /// Time to live, or hop limit, of datagrams. Default 64. Over IPv6 what a router advertises comes
    /// before it where [`Ipv6Config::autoconf`] is on, and a socket's own before both.
    pub ttl: u8,
    /// Whether datagrams for other hosts go on towards them, as by a router. Default no: they are
    /// dropped.
    pub forwarding: bool,
    /// Settings of IPv6.
    pub ipv6: Ipv6Config,
    /// How long threads that serve devices sleep after traffic before they look around by
    /// themselves; longer each time that they find nothing, up to 10 s, so that an idle process
    /// sleeps. Packets and timers wake them. The service thread under `Inbound::Inline` always looks
    /// around this often: half of the 10 ms within which packets are served though no application
    /// thread enters the stack. Default 5 ms.
    pub service: core::time::Duration,
    /// The longest that a thread which waits for packets, for a socket or for a poller looks around
    /// before it sleeps; zero: it sleeps at once. It looks around for as long as has paid lately, so
    /// hardly at all where nothing comes for longer, and never where there is one core. Whoever waits
    /// in a poll of the host's or as a task is not concerned. Default 50 µs.
    pub look_around: core::time::Duration,
    /// Octets of payload that a thread of the stack's own takes from its devices in a row before it lets
    /// other threads of its core run (a budget, as Linux calls it for its NICs); 0: as many as come.
    /// Who reads on that core then finds what came in a cache. Default 768 KiB: full frames whose
    /// buffers take 1 MiB, which is what a core has for itself today.
    pub budget: usize,
    /// The longest that the end of a stack waits, when its last handle goes, until what was
    /// written has been acknowledged, the FINs too; zero: what is left is reset at once. A
    /// process has no kernel behind it that goes on sending, so it is the process that waits.
    /// Default 5 minutes: a live peer gets everything, and one that takes a byte now and then
    /// does not keep the process for ever.
    pub drain: core::time::Duration,
    /// The longest that it waits while no peer acknowledges anything. Default 30 s: five or six
    /// retransmissions are unanswered by then.
    pub drain_stall: core::time::Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tcp: TcpConfig::default(),
            memory: 1 << 30,
            fragments: 4 << 20,
            orphans: 65_536,
            time_waits: 65_536,
            syn_buckets: 512,
            syn_depth: 30,
            syn_cookies: Cookies::WhenFull,
            ephemeral: 32_768..=60_999,
            tx_ring: crate::port::TX_RING,
            offload: Offload::default(),
            stretch_acks: true,
            ttl: 64,
            forwarding: false,
            ipv6: Ipv6Config::default(),
            service: core::time::Duration::from_millis(5),
            look_around: core::time::Duration::from_micros(50),
            budget: 768 << 10,
            drain: core::time::Duration::from_secs(300),
            drain_stall: core::time::Duration::from_secs(30),
        }
    }
}

perimeter_base::setters! {
    Config {
        with_tcp(tcp: TcpConfig),
        with_memory(memory: u64),
        with_fragments(fragments: usize),
        with_orphans(orphans: usize),
        with_time_waits(time_waits: usize),
        with_syn_buckets(syn_buckets: usize),
        with_syn_depth(syn_depth: usize),
        with_syn_cookies(syn_cookies: Cookies),
        with_ephemeral(ephemeral: core::ops::RangeInclusive<u16>),
        with_tx_ring(tx_ring: usize),
        with_offload(offload: Offload),
        with_stretch_acks(stretch_acks: bool),
        with_ttl(ttl: u8),
        with_forwarding(forwarding: bool),
        with_ipv6(ipv6: Ipv6Config),
        with_service(service: core::time::Duration),
        with_look_around(look_around: core::time::Duration),
        with_budget(budget: usize),
        with_drain(drain: core::time::Duration),
        with_drain_stall(drain_stall: core::time::Duration),
    }
}

/// The most of [`Config::spare`]: about what arrives in a millisecond at 100 Gb/s, which is as far
/// as a reader falls behind who is not asleep.
const MOST_SPARE: usize = 16 << 20;

impl Config {
    /// Memory of packet buffers that the threads keep for each other, bytes.
    fn spare(&self) -> usize {
        usize::try_from(self.memory / 64).map_or(MOST_SPARE, |n| n.min(MOST_SPARE))
    }

    /// How many segments of a burst may become one.
    pub fn most_merged(&self) -> u16 {
        match self.stretch_acks {
            true => u16::MAX,
            false => 2,
        }
    }

    /// The most orphans, and the most connections that wait, in the whole stack; those take a
    /// quarter of the memory at most.
    pub fn ends(&self) -> [usize; 2] {
        let waiting = usize::try_from(self.memory / 4).unwrap_or(usize::MAX) / WAITING;
        [self.orphans, self.time_waits.min(waiting)]
    }
}

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
        let (mut ifaces, mut tx, mut rx) = (Vec::new(), Vec::new(), Vec::new());
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
