//! A network of many stacks in one program: every port of it is a device with addresses, and
//! between each two ports lies a link with a delay, a rate and faults of its own.
//!
//! Packets go by their destination address; there is no link layer ([`Medium::Ip`]), hence no ARP,
//! and nothing is broadcast. Links can be cut and mended, ports can be switched off and on, all
//! while packets are under way. A seed means one sequence of faults, and [`Network::digest`] tells
//! whether two runs were the same.

use perimeter_base::{PktBuf, PktPool, Time, TxRing, buf::roomy, rng};
use perimeter_sync::Platform;
use perimeter_wire::MacAddr;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::csum;
use crate::device::{
    Capabilities, Device, Medium, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker,
};
use crate::fault::{FaultConfig, FaultCounters, FaultCounts, Faults, Packet};
use crate::irq::{Irq, Moderation};

/// Packets on their way to one port at most; more are dropped, and counted.
const LIMIT: usize = 65_536;

/// Buffers that are kept for packets to come.
const SPARE: usize = 512;

/// One of a network's ports.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(u32);

impl PortId {
    /// Its number: ports are numbered from 0 in the order in which they were made.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a network has done with its packets.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetworkCounts {
    /// Packets that ports have sent.
    pub sent: u64,
    /// Packets for an address that no port has.
    pub nowhere: u64,
    /// Packets that met a cut link.
    pub cut: u64,
    /// Packets from or to a port that was off.
    pub off: u64,
    /// Packets dropped because too many were under way.
    pub overflowed: u64,
    /// What the links' faults did, all together.
    pub faults: FaultCounts,
}

/// One direction of a link.
struct Way {
    config: FaultConfig,
    faults: Faults,
}

impl Way {
    fn new(config: FaultConfig) -> Way {
        Way {
            faults: Faults::new(config.clone()),
            config,
        }
    }
}

struct Place {
    on: bool,
    /// Packets under way to it, by when they arrive and the order in which they were sent.
    flight: BTreeMap<(Time, u64), RxFrame>,
    tell: Option<Arc<dyn Fn(Time) + Send + Sync>>,
}

impl Place {
    fn next(&self) -> Time {
        let first = self.flight.first_key_value();
        first.map_or(Time::NEVER, |((due, _), _)| *due)
    }
}

struct State {
    seed: u64,
    usual: FaultConfig,
    places: Vec<Place>,
    addrs: HashMap<IpAddr, PortId>,
    /// Links that are not as usual, by sender and receiver; made when the first packet comes.
    ways: HashMap<(PortId, PortId), Way>,
    /// Directions that are cut.
    cut: HashSet<(PortId, PortId)>,
    order: u64,
    digest: u64,
    counts: NetworkCounts,
    /// What the faults made of one packet.
    packets: Vec<Packet>,
    spare: Vec<PktBuf>,
}

impl State {
    fn note(&mut self, word: u64) {
        self.digest = rng::mix(self.digest ^ word).wrapping_add(word.rotate_left(32));
    }

    fn note_packet(&mut self, now: Time, from: PortId, bytes: &[u8]) {
        self.note(now.0);
        self.note(u64::from(from.0) << 32 | bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for w in words {
            self.note(u64::from_le_bytes(*w));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.note(u64::from_le_bytes(last));
    }

    /// The direction from one port to another, with faults of its own.
    fn way(&mut self, from: PortId, to: PortId) -> &mut Way {
        let (usual, seed) = (&self.usual, self.seed);
        self.ways
            .entry((from, to))
            .or_insert_with(|| Way::new(seeded(usual, seed, from, to)))
    }

    /// Takes a packet whose last bit leaves `from` now; who is to be told when something arrives.
    fn send(
        &mut self,
        now: Time,
        from: PortId,
        buf: PktBuf,
        counters: &FaultCounters,
    ) -> Option<PortId> {
        self.counts.sent += 1;
        self.note_packet(now, from, buf.as_slice());
        let to = destination(buf.as_slice()).and_then(|a| self.addrs.get(&a).copied());
        let Some(to) = to else {
            self.counts.nowhere += 1;
            self.keep(buf);
            return None;
        };
        if !self.places[from.index()].on {
            self.counts.off += 1;
            self.keep(buf);
            return None;
        }
        if self.cut.contains(&(from, to)) {
            self.counts.cut += 1;
            self.keep(buf);
            return None;
        }
        let mut packets = std::mem::take(&mut self.packets);
        let packet = Packet { due: now, buf };
        let faults = &mut self.way(from, to).faults;
        faults.pass(packet, Medium::Ip, counters, &mut packets);
        let told = (!packets.is_empty()).then_some(to);
        for Packet { due, buf } in packets.drain(..) {
            self.note(due.0);
            if self.places[to.index()].flight.len() >= LIMIT {
                self.counts.overflowed += 1;
                continue;
            }
            self.order += 1;
            let frame = RxFrame {
                buf,
                hash: None,
                csum_ok: false,
                segment_size: 0,
            };
            self.places[to.index()]
                .flight
                .insert((due, self.order), frame);
        }
        self.packets = packets;
        told
    }

    fn keep(&mut self, buf: PktBuf) {
        if self.spare.len() < SPARE {
            self.spare.push(buf);
        }
    }
}

/// The faults of one direction: each has a seed of its own, whatever the order in which links come
/// into use.
fn seeded(config: &FaultConfig, seed: u64, from: PortId, to: PortId) -> FaultConfig {
    let ends = u64::from(from.0) << 32 | u64::from(to.0);
    FaultConfig {
        seed: rng::mix(seed ^ rng::mix(config.seed ^ rng::mix(ends))),
        ..config.clone()
    }
}

/// Where an IP packet goes.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(packet.get(16..20)?).ok()?)),
        6 => Some(IpAddr::from(
            <[u8; 16]>::try_from(packet.get(24..40)?).ok()?,
        )),
        _ => None,
    }
}

struct Inner {
    state: Mutex<State>,
    counters: FaultCounters,
}

impl Inner {
    /// Held for what is in here only, never while somebody is told.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A network. Cheap to clone: a handle.
#[derive(Clone)]
pub struct Network {
    inner: Arc<Inner>,
}

impl Network {
    /// A network without ports, all of whose links will be as `usual` says in each direction, unless
    /// [`Network::link`] says otherwise.
    pub fn new(seed: u64, usual: FaultConfig) -> Network {
        let state = State {
            seed,
            usual,
            places: Vec::new(),
            addrs: HashMap::new(),
            ways: HashMap::new(),
            cut: HashSet::new(),
            order: 0,
            digest: rng::mix(seed),
            counts: NetworkCounts::default(),
            packets: Vec::new(),
            spare: Vec::new(),
        };
        Network {
            inner: Arc::new(Inner {
                state: Mutex::new(state),
                counters: FaultCounters::default(),
            }),
        }
    }

    /// A new port, off until a device is plugged in.
    pub fn port(&self) -> PortId {
        let mut st = self.inner.state();
        st.places.push(Place {
            on: false,
            flight: BTreeMap::new(),
            tell: None,
        });
        PortId(st.places.len() as u32 - 1)
    }

    /// Packets for `addr` go to that port from now on; whether no other had the address.
    pub fn assign(&self, addr: IpAddr, port: PortId) -> bool {
        let mut st = self.inner.state();
        st.addrs.insert(addr, port).is_none_or(|old| old == port)
    }

    /// Switches a port on, and makes the device of the stack there: one queue each way. What has
    /// arrived while it was off is lost; what is still under way will arrive. `mtu`: largest packet,
    /// bytes, at least 68.
    pub fn plug<P: Platform>(&self, platform: &P, port: PortId, name: &str, mtu: u32) -> Plug<P> {
        let irq = Arc::new(Irq::new(platform, true, Moderation::default()));
        let mut st = self.inner.state();
        let place = &mut st.places[port.index()];
        place.on = true;
        let raised = irq.clone();
        place.tell = Some(Arc::new(move |due| raised.raise(due)));
        let now = platform.now();
        place.flight = place.flight.split_off(&(now.plus(1), 0));
        drop(st);
        Plug {
            network: self.clone(),
            port,
            name: name.to_owned(),
            mtu: mtu.max(68),
            irq,
        }
    }

    /// Switches a port off: what comes from there or arrives there vanishes.
    pub fn unplug(&self, port: PortId) {
        let mut st = self.inner.state();
        let place = &mut st.places[port.index()];
        place.on = false;
        place.tell = None;
    }

    /// Makes one direction of a link behave as `config` says, for packets sent from now on. Each
    /// direction draws from a seed of its own, made of the network's and that of `config`.
    pub fn link(&self, from: PortId, to: PortId, config: &FaultConfig) {
        let mut st = self.inner.state();
        let config = seeded(config, st.seed, from, to);
        st.ways.insert((from, to), Way::new(config));
    }

    /// Cuts one direction of a link: what is sent from now on is lost, what is under way arrives.
    pub fn cut(&self, from: PortId, to: PortId) {
        self.inner.state().cut.insert((from, to));
    }

    /// Mends what [`Network::cut`] cut.
    pub fn mend(&self, from: PortId, to: PortId) {
        self.inner.state().cut.remove(&(from, to));
    }

    /// When the next packet arrives at a port; [`Time::NEVER`] if none is under way.
    pub fn next_arrival(&self, port: PortId) -> Time {
        let mut st = self.inner.state();
        let place = &mut st.places[port.index()];
        match place.on {
            true => place.next(),
            false => Time::NEVER,
        }
    }

    /// The shortest delay of all links, ns: what is sent now arrives nowhere earlier than that.
    pub fn shortest_delay(&self) -> u64 {
        let st = self.inner.state();
        let own = st.ways.values().map(|w| w.config.delay_ns);
        own.fold(st.usual.delay_ns, u64::min)
    }

    /// Packets under way to ports that are on.
    pub fn in_flight(&self) -> usize {
        let st = self.inner.state();
        let on = st.places.iter().filter(|p| p.on);
        on.map(|p| p.flight.len()).sum()
    }

    /// A hash over every packet that was sent: when, by whom, its bytes, and when it arrives. Equal
    /// digests mean equal traffic.
    pub fn digest(&self) -> u64 {
        self.inner.state().digest
    }

    /// What has become of packets so far.
    pub fn counts(&self) -> NetworkCounts {
        NetworkCounts {
            faults: self.inner.counters.read(),
            ..self.inner.state().counts
        }
    }
}

/// The device at a port.
pub struct Plug<P: Platform> {
    network: Network,
    port: PortId,
    name: String,
    mtu: u32,
    irq: Arc<Irq<P>>,
}

impl<P: Platform> Device for Plug<P> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: self.name.clone(),
            medium: Medium::Ip,
            mac: MacAddr::default(),
            mtu: self.mtu,
            tx_checksum: true,
            large: 0,
            large_datagrams: 0,
            hands_on: false,
        }
    }

    fn open(self: Box<Self>) -> Queues {
        let rx = PlugRx {
            network: self.network.clone(),
            port: self.port,
            irq: self.irq,
        };
        let tx = PlugTx {
            network: self.network,
            port: self.port,
            mtu: self.mtu as usize,
            told: Vec::new(),
        };
        (vec![Box::new(rx)], vec![Box::new(tx)])
    }
}

struct PlugRx<P: Platform> {
    network: Network,
    port: PortId,
    irq: Arc<Irq<P>>,
}

impl<P: Platform> RxQueue for PlugRx<P> {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        self.irq.disarm();
        let mut st = self.network.inner.state();
        let mut n = 0;
        while n < max
            && let place = &mut st.places[self.port.index()]
            && place.on
            && place.next() <= now
            && let Some((_, frame)) = place.flight.pop_first()
        {
            out.push(frame);
            // A buffer for a buffer.
            st.keep(pool.take(perimeter_base::buf::POOLED));
            n += 1;
        }
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        let network = &self.network;
        self.irq.arm(now, || network.next_arrival(self.port))
    }

    fn set_waker(&mut self, waker: Waker) {
        self.irq.set_waker(waker);
    }
}

struct PlugTx {
    network: Network,
    port: PortId,
    mtu: usize,
    /// Whom to tell of this doorbell's packets.
    told: Vec<PortId>,
}

impl TxQueue for PlugTx {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        let inner = &*self.network.inner;
        let mut st = inner.state();
        for d in ring.pending() {
            let len = d.frame_len();
            let mut buf = match st.spare.pop() {
                Some(b) if b.capacity() >= len => b,
                _ => PktBuf::with_capacity(roomy(len.max(self.mtu))),
            };
            if csum::copy_out(d, buf.raw_mut()).is_none() {
                continue;
            }
            buf.set_window(0, len);
            csum::complete(buf.as_mut_slice(), d.offload);
            let to = st.send(now, self.port, buf, &inner.counters);
            self.told.extend(to.filter(|to| !self.told.contains(to)));
        }
        ring.clear();
        let tell: Vec<_> = self
            .told
            .drain(..)
            .filter_map(|to| {
                let place = &st.places[to.index()];
                place.tell.clone().map(|tell| (tell, place.next()))
            })
            .collect();
        drop(st);
        for (tell, due) in tell {
            tell(due);
        }
    }
}
