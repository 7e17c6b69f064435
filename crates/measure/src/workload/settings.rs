//! What a benchmark was asked to do, checked before anything starts.

use super::Exchange;
use crate::{Error, organizations::Organization, units};
use perimeter::{
    LockPolicy, Offload,
    link::{named::HostDevice, raw::MOST_FLOWS},
};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

/// Most connections of one configuration; bounds memory, not a protocol limit.
pub const MAX_CONNECTIONS: u64 = 1_000_000;
/// Most threads and most NICs.
pub const MAX_PARALLEL: u64 = 256;
/// Send and receive buffer of the parallel benchmark's sockets, in bytes, as in the paper (section
/// 3).
pub const BUFFER: usize = 256 * 1024;
/// Maximum transmission unit of every link, in bytes, where nothing else is asked for.
pub const MTU: u32 = 1500;
/// What it may be: from what every host takes (RFC 791, section 3.1) to jumbo frames.
pub const MTUS: std::ops::RangeInclusive<u64> = 576..=9000;
/// Payload of a full segment: [`MTU`] less 20 bytes IPv4, 20 TCP, 12 timestamps (RFC 7323). Times
/// are told for so many bytes whatever the MTU is, so that they compare.
pub const SEGMENT: u64 = 1448;

/// Payload of a full segment of IPv4 at this maximum transmission unit.
pub fn payload(mtu: u32) -> u64 {
    SEGMENT + u64::from(mtu) - u64::from(MTU)
}
/// How much less it is over IPv6, bytes: its header is longer.
pub const LESS_OVER_IPV6: u64 = 20;

/// Most data connections of a run between machines: fewer than the ports of one address that
/// systems choose from.
pub const MAX_BETWEEN_MACHINES: u32 = 16_384;

/// Most pairs of datagram sockets of a run: each has a port at either end.
pub const MAX_PAIRS: u32 = 16_384;

macro_rules! names {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $($type::$variant => $name),+ })
            }
        }
        impl FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok($type::$variant),)+
                    _ => Err(format!(
                        concat!("unknown ", $what, " `{}` (known: {})"),
                        text, [$($name),+].join(", ")
                    )),
                }
            }
        }
    };
}

/// What carries the frames of our organizations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The memory NIC with its ideal peer.
    Mem,
    /// A TAP interface to the host kernel.
    Tap,
    /// A TUN interface to the host kernel.
    Tun,
    /// Packet sockets on one end of a veth pair, the host kernel on the other.
    Packet,
    /// AF_XDP on one end of a veth pair, the host kernel on the other.
    Xdp,
    /// Wires in memory to a second stack of the same organization, in this process.
    Pair,
}
names!(
    Device,
    "device",
    Mem = "mem",
    Tap = "tap",
    Tun = "tun",
    Packet = "packet",
    Xdp = "xdp",
    Pair = "pair"
);

impl Device {
    /// Whether the host's kernel is the other end.
    pub fn is_to_kernel(self) -> bool {
        match self {
            Device::Tap | Device::Tun | Device::Packet | Device::Xdp => true,
            Device::Mem | Device::Pair => false,
        }
    }
}

/// What the connections go over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    #[default]
    Ipv4,
    /// IPv6.
    Ipv6,
}
names!(Family, "family", Ipv4 = "ipv4", Ipv6 = "ipv6");

impl Family {
    /// Whether it is IPv6.
    pub fn is_ipv6(self) -> bool {
        self == Family::Ipv6
    }
}

/// Which way the file goes, seen from the stack under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// The stack under test sends.
    Send,
    /// The stack under test receives.
    Receive,
    /// Each connection carries the file both ways.
    Both,
}
names!(
    Direction,
    "direction",
    Send = "send",
    Receive = "receive",
    Both = "both"
);

/// Who does inbound protocol work (`architecture`: how benchmarks are made honest).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Inbound {
    /// Core i polls NIC i inline; input usually belongs to other threads' connections too.
    Nic,
    /// One pinned, interrupt-like thread for each NIC: the paper's.
    Thread,
    /// Input is steered to the application's core.
    Affine,
}
names!(
    Inbound,
    "inbound mode",
    Nic = "nic",
    Thread = "thread",
    Affine = "affine"
);

/// When a sender's small writes become segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Coalescing {
    /// Full segments only (TCP_CORK), as in the parallel benchmark.
    #[default]
    Cork,
    /// Small ones when nothing is unacknowledged (RFC 9293, section 3.7.4).
    Nagle,
    /// Each write at once (TCP_NODELAY).
    NoDelay,
}
names!(
    Coalescing,
    "coalescing",
    Cork = "cork",
    Nagle = "nagle",
    NoDelay = "nodelay"
);

/// A benchmark's settings. [`Settings::check`] is the gate; the runner expects checked ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Rows, in the order of the report.
    pub organizations: Vec<Organization>,
    /// Numbers of connections, each run under every organization.
    pub connections: Vec<u32>,
    /// Device of our organizations.
    pub device: Device,
    /// What all connections go over, ours and the kernel's.
    pub family: Family,
    /// Direction of the file.
    pub direction: Direction,
    /// Inbound mode of our organizations.
    pub inbound: Inbound,
    /// Round trip of what carries our organizations' frames; `None` for the device's own, see
    /// [`Settings::rtt`].
    pub rtt: Option<Duration>,
    /// Application threads, an event loop each.
    pub threads: usize,
    /// Number of NICs.
    pub nics: usize,
    /// Maximum transmission unit of every link, in bytes.
    pub mtu: u32,
    /// Pacing of each NIC in Gb/s; `None` for as fast as the processor goes.
    pub link_gbps: Option<f64>,
    /// Most bytes that one send call hands over.
    pub write_size: usize,
    /// Most bytes that one receive call takes.
    pub read_size: usize,
    /// Send and receive buffer of every socket, in bytes: a limit, not an allocation.
    pub buffer: usize,
    /// When small writes become segments.
    pub coalescing: Coalescing,
    /// Requests and responses instead of a stream; the connections' other end answers.
    pub exchange: Option<Exchange>,
    /// Datagrams of UDP of so many bytes in place of connections, each of which is a pair of
    /// sockets then.
    pub udp: Option<usize>,
    /// Each connection carries one exchange, or nothing, and is then opened anew.
    pub reconnect: bool,
    /// How threads of our organizations wait for locks.
    pub locks: LockPolicy,
    /// Who cuts what our organizations send into segments.
    pub offload: Offload,
    /// Whether our organizations acknowledge a burst's segments at once, rather than two by two.
    pub stretch_acks: bool,
    /// Whether frames go to the threads of our organizations that answer them.
    pub steering: bool,
    /// The longest that threads of our organizations look around before they sleep.
    pub look_around: Duration,
    /// Bytes that an inbound thread of our organizations takes before it lets others of its core run;
    /// 0: all that come.
    pub budget: usize,
    /// Whether threads of our organizations' own take their core from the application's at once.
    pub preemptive: bool,
    /// Whether the application's threads are bound to cores.
    pub bound: bool,
    /// How much of a send buffer is free before our organizations tell a writer who found no room,
    /// bytes; no more than a third of it.
    pub snd_lowat: u32,
    /// How long after the first frame a NIC in memory interrupts.
    pub interrupt_delay: Duration,
    /// The shortest time between two interrupts of a NIC in memory.
    pub interrupt_gap: Duration,
    /// Whether the wire of `pair` hands on the memory of large segments instead of copying it.
    pub hand_on: bool,
    /// Whether applications on our organizations read what they receive in the stack's memory, instead
    /// of having it copied.
    pub in_place: bool,
    /// Whether applications on our organizations send in batches: what a thread sends between two polls
    /// goes to the devices together.
    pub batch: bool,
    /// Time the locks of our organizations and their hand-overs: what is measured then is slower.
    pub profile: bool,
    /// Measured time of each run, after warm-up.
    pub seconds: Duration,
    /// Runs of each configuration.
    pub repeat: u32,
    /// Bound the entire command to some seconds.
    pub quick: bool,
    /// The other end is on another machine.
    pub connect: Option<Target>,
    /// Path of the control socket of our organizations' stacks, if they are to have one.
    pub control: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        let cores = crate::host::cores();
        Settings {
            organizations: vec![
                Organization::ours("up"),
                Organization::ours("connp-l:128"),
                Organization::LINUX,
                Organization::LINUX_SEGMENTS,
            ],
            connections: vec![1, 6, 192, 16_384],
            device: Device::Mem,
            family: Family::Ipv4,
            direction: Direction::Send,
            inbound: Inbound::Nic,
            rtt: None,
            threads: cores,
            nics: cores,
            mtu: MTU,
            link_gbps: None,
            write_size: 64 * 1024,
            read_size: BUFFER,
            buffer: BUFFER,
            coalescing: Coalescing::Cork,
            exchange: None,
            udp: None,
            reconnect: false,
            locks: LockPolicy::Modern,
            offload: Offload::default(),
            stretch_acks: true,
            steering: false,
            look_around: perimeter::Config::default().look_around,
            budget: perimeter::Config::default().budget,
            preemptive: false,
            bound: true,
            snd_lowat: perimeter::Config::default().snd_lowat,
            interrupt_delay: Duration::ZERO,
            interrupt_gap: Duration::ZERO,
            hand_on: false,
            in_place: false,
            batch: false,
            profile: false,
            seconds: Duration::from_secs(5),
            repeat: 3,
            quick: false,
            connect: None,
            control: None,
        }
    }
}

impl Settings {
    /// Bytes by which a connection has left slow start: its window has grown by what was acknowledged,
    /// and so holds all that the socket's buffer does. 0 where connections do not stream.
    pub fn grown(&self) -> u64 {
        let streams = self.exchange.is_none() && self.udp.is_none() && !self.reconnect;
        if streams { self.buffer as u64 } else { 0 }
    }

    /// Checks what the parsers of the single values can't see.
    ///
    /// # Errors
    /// [`Error::Input`] with one line.
    pub fn check(&self) -> Result<(), Error> {
        let input = |line: String| Err(Error::Input(line));
        if self.organizations.is_empty() || self.connections.is_empty() {
            return input("nothing to run: --org and --conns each need at least one entry".into());
        }
        if let Some(twice) = first_repeated(&self.organizations) {
            return input(format!("--org lists `{}` twice", twice));
        }
        if let Some(twice) = first_repeated(&self.connections) {
            return input(format!("--conns lists {twice} twice"));
        }
        let ours = |o: &Organization| matches!(o, Organization::Ours(_));
        if self.control.is_some() && !self.organizations.iter().any(ours) {
            return input("--control: the host's sockets have no control socket".into());
        }
        if let Some(path) = self.control.as_ref().filter(|p| p.exists()) {
            return input(format!("--control {}: already exists", path.display()));
        }
        let ranges = [
            ("--threads", self.threads as u64, 1..=MAX_PARALLEL),
            ("--nics", self.nics as u64, 1..=MAX_PARALLEL),
            ("--repeat", u64::from(self.repeat), 1..=1000),
            ("--mtu", u64::from(self.mtu), MTUS),
            ("--write-size", self.write_size as u64, 1..=16 << 20),
            ("--read-size", self.read_size as u64, 1..=16 << 20),
            ("--buffer", self.buffer as u64, 4096..=64 << 20),
        ];
        for (flag, value, range) in ranges {
            if !range.contains(&value) {
                return input(format!(
                    "{flag} must be from {} to {}",
                    range.start(),
                    range.end()
                ));
            }
        }
        if self.mtu != MTU
            && self
                .organizations
                .iter()
                .any(|o| matches!(o, Organization::Other(_)))
        {
            return input("--mtu: other stacks are set up for 1500; list ours and linux".into());
        }
        if !self.interrupt_delay.is_zero() && self.device.is_to_kernel() {
            return input("--interrupt-delay needs --device mem or pair".into());
        }
        if !self.interrupt_gap.is_zero() && self.device != Device::Mem {
            return input("--interrupt-gap needs --device mem".into());
        }
        if self.hand_on && (self.device, self.offload) != (Device::Pair, Offload::Device) {
            return input("--hand-on needs --device pair and --offload device".into());
        }
        self.check_family()?;
        self.check_udp()?;
        match &self.connect {
            Some(target) => self.check_connect(target)?,
            None => self.check_reconnect()?,
        }
        self.check_floor()?;
        let Some(exchange) = self.exchange else {
            return Ok(());
        };
        if self.coalescing == Coalescing::Cork {
            return input(
                "--exchange needs --coalescing nodelay: cork would hold messages back".into(),
            );
        }
        let longest = exchange.request.max(exchange.response);
        if longest > self.buffer {
            return input(format!(
                "--exchange: a message of {longest} bytes does not fit into a buffer of {}",
                self.buffer
            ));
        }
        Ok(())
    }

    /// Who can speak IPv6, and over what links.
    ///
    /// # Errors
    /// [`Error::Input`] with one line.
    fn check_family(&self) -> Result<(), Error> {
        const LEAST: u32 = 1280;
        if !self.family.is_ipv6() {
            return Ok(());
        }
        let has = |what: fn(&Organization) -> bool| self.organizations.iter().any(what);
        let null = self.organizations.iter().find(|o| o.is_null());
        let wrong = if has(|o| matches!(o, Organization::Other(_))) {
            "other stacks are set up for IPv4; list ours and linux"
        } else if let Some(row) = null {
            &format!("{row} is of IPv4; list others")
        } else if self.connect.is_some() {
            "--connect goes over IPv4"
        } else if self.mtu < LEAST {
            "no link of IPv6 has an --mtu below 1280 (RFC 8200, section 5)"
        } else {
            return Ok(());
        };
        Err(Error::Input(format!("--ipv6: {wrong}")))
    }

    /// What goes with datagrams.
    ///
    /// # Errors
    /// [`Error::Input`] with one line.
    fn check_udp(&self) -> Result<(), Error> {
        let Some(size) = self.udp else {
            return Ok(());
        };
        let headers = if self.family.is_ipv6() { 48 } else { 28 };
        let most = self.mtu as usize - headers;
        let has = |what: fn(&Organization) -> bool| self.organizations.iter().any(what);
        let wrong = if !(8..=most).contains(&size) {
            &format!("a datagram has from 8 to {most} bytes at this --mtu")
        } else if has(|o| matches!(o, Organization::Other(_)) || o.is_null()) {
            "other stacks and the rows null and null:tcp have TCP only; list ours and linux"
        } else if self.exchange.is_some() || self.reconnect || self.connect.is_some() {
            "datagrams go one way or both, not with --exchange, --reconnect or --connect"
        } else if self.in_place {
            "a datagram is always copied; without --in-place"
        } else if self.batch {
            "datagrams go in batches as it is; without --batch"
        } else if self.inbound == Inbound::Affine {
            "--inbound affine steers connections; use nic or thread"
        } else if self.connections.iter().any(|n| *n > MAX_PAIRS) {
            "at most 16384 pairs of sockets"
        } else {
            return Ok(());
        };
        Err(Error::Input(format!("--udp: {wrong}")))
    }

    /// Whether a bench to `target` can be what is asked for.
    ///
    /// # Errors
    /// [`Error::Input`] with one line.
    fn check_connect(&self, target: &Target) -> Result<(), Error> {
        let has = |what: fn(&Organization) -> bool| self.organizations.iter().any(what);
        let wrong = if has(|o| matches!(o, Organization::Other(_))) {
            "other stacks only run within this machine; list ours and linux"
        } else if has(|o| matches!(o, Organization::Ours(_))) && target.place.is_none() {
            "an organization of ours needs --device tap:NAME, packet:NAME or xdp:NAME and \
             --address; --org linux uses the host's sockets"
        } else if has(|o| matches!(o, Organization::Ours(_))) && self.inbound == Inbound::Affine {
            "--inbound affine only runs within this machine; use nic or thread"
        } else if self.mtu != MTU {
            "--mtu only runs within this machine; the network has its own"
        } else if self.reconnect {
            "--reconnect only runs within this machine"
        } else if target.sink && (self.direction != Direction::Send || self.exchange.is_some()) {
            "a --sink only receives: no --direction or --exchange"
        } else if self.connections.iter().any(|n| *n > MAX_BETWEEN_MACHINES) {
            "at most 16384 connections go between two machines"
        } else {
            return Ok(());
        };
        Err(Error::Input(format!("--connect: {wrong}")))
    }

    /// Without a stack there are only streams one way: over the memory NIC sent ones, and over a
    /// device of the host.
    ///
    /// # Errors
    /// [`Error::Input`] with one line.
    fn check_floor(&self) -> Result<(), Error> {
        let one_way = self.direction != Direction::Both
            && self.exchange.is_none()
            && !self.reconnect
            && self.connect.is_none();
        let to_kernel = self.device.is_to_kernel();
        let carries = match self.device {
            Device::Mem => self.direction == Direction::Send,
            // To TUN nobody could send but a stack: packet sockets need Ethernet.
            Device::Tun => self.direction == Direction::Send,
            _ => to_kernel,
        };
        let has = |o| self.organizations.contains(&o);
        let few = self.connections.iter().all(|n| *n as usize <= MOST_FLOWS);
        let wrong = if has(Organization::Null) && !(one_way && carries) {
            "null only sends a stream over --device mem, or carries one over tap, tun, packet or \
             xdp; list others"
        } else if has(Organization::NullTcp) && !(one_way && to_kernel) {
            "null:tcp only sends or receives streams over --device tap, tun, packet or xdp; list \
             others"
        } else if has(Organization::NullTcp) && !few {
            &format!("null:tcp has at most {MOST_FLOWS} connections")
        } else {
            return Ok(());
        };
        Err(Error::Input(wrong.into()))
    }

    fn check_reconnect(&self) -> Result<(), Error> {
        if !self.reconnect {
            return Ok(());
        }
        let has = |what: fn(&Organization) -> bool| self.organizations.iter().any(what);
        let ours = has(|o| matches!(o, Organization::Ours(_)));
        let wrong = if ours && self.device == Device::Mem {
            "the ideal peer of --device mem does not close; use --device pair, tap, tun, packet or xdp"
        } else if ours && self.inbound == Inbound::Affine {
            "ports are the stack's choice, so --inbound affine can't steer them; use nic or thread"
        } else if has(|o| matches!(o, Organization::Other(_))) {
            "other stacks can't open their connections anew here; list ours and linux"
        } else if self.direction != Direction::Send {
            "it goes alone or with --exchange, not with --direction"
        } else {
            return Ok(());
        };
        Err(Error::Input(format!("--reconnect: {wrong}")))
    }

    /// Round trip of what carries our organizations' frames: unless asked otherwise 50 µs to the
    /// ideal peer, and as fast as the processor goes between two stacks, as it is between two
    /// kernels over veth. Devices of the host have none to set.
    pub fn rtt(&self) -> Duration {
        self.rtt.unwrap_or(match self.device {
            Device::Mem => Duration::from_micros(50),
            _ => Duration::ZERO,
        })
    }

    /// Threads that a row really has: one under `up`.
    pub fn threads_of(&self, organization: &Organization) -> usize {
        if organization.single_threaded() {
            1
        } else {
            self.threads
        }
    }
}

/// One point of a grid: an organization at a number of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// What runs.
    pub organization: Organization,
    /// Established connections.
    pub connections: u32,
    /// Application threads that it really has.
    pub threads: usize,
}

/// The other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where it is.
    pub address: SocketAddrV4,
    /// It only takes bytes and throws them away.
    pub sink: bool,
    /// What carries the frames of our organizations.
    pub place: Option<Place>,
    /// Version of this program, for the other end.
    pub version: String,
}

/// A device on an interface of the host's, and the stack's addresses there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The device.
    pub device: HostDevice,
    /// Address of the stack and length of its subnet's prefix.
    pub address: (Ipv4Addr, u8),
    /// Where to send what is not for the subnet.
    pub gateway: Option<Ipv4Addr>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// First entry that occurs a second time.
fn first_repeated<T: PartialEq>(list: &[T]) -> Option<&T> {
    list.iter()
        .enumerate()
        .find_map(|(i, x)| list[..i].contains(x).then_some(x))
}

/// Parses one number of connections.
///
/// # Errors
/// A line that says what is wrong.
pub fn connections(text: &str) -> Result<u32, String> {
    let n = units::whole(text, "a number of connections", 1..=MAX_CONNECTIONS)?;
    u32::try_from(n).map_err(|e| e.to_string())
}

/// Parses the size of a datagram.
///
/// # Errors
/// A line that says what is wrong.
pub fn datagram(text: &str) -> Result<usize, String> {
    Ok(units::whole(text, "the datagram's size in bytes", 8..=8972)? as usize)
}

/// Parses a maximum transmission unit.
///
/// # Errors
/// A line that says what is wrong.
pub fn mtu(text: &str) -> Result<u32, String> {
    let bytes = units::whole(text, "the MTU in bytes", MTUS)?;
    u32::try_from(bytes).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enumerations_round_trip() {
        for d in [
            Device::Mem,
            Device::Tap,
            Device::Tun,
            Device::Packet,
            Device::Xdp,
            Device::Pair,
        ] {
            assert_eq!(d.to_string().parse(), Ok(d));
        }
        for d in [Direction::Send, Direction::Receive, Direction::Both] {
            assert_eq!(d.to_string().parse(), Ok(d));
        }
        for i in [Inbound::Nic, Inbound::Thread, Inbound::Affine] {
            assert_eq!(i.to_string().parse(), Ok(i));
        }
        for f in [Family::Ipv4, Family::Ipv6] {
            assert_eq!(f.to_string().parse(), Ok(f));
        }
        for c in [Coalescing::Cork, Coalescing::Nagle, Coalescing::NoDelay] {
            assert_eq!(c.to_string().parse(), Ok(c));
        }
        let error = "eth0".parse::<Device>().unwrap_err();
        assert!(
            error.contains("mem, tap, tun, packet, xdp, pair"),
            "{error}"
        );
    }

    #[test]
    fn defaults_are_good_and_damage_is_seen() {
        Settings::default().check().unwrap();
        let damages: [fn(&mut Settings); 31] = [
            |s| s.organizations.clear(),
            |s| s.organizations.push(s.organizations[0].clone()),
            |s| s.connections = vec![6, 6],
            |s| s.threads = 0,
            |s| s.nics = 0,
            |s| s.repeat = 0,
            |s| s.write_size = 0,
            |s| s.read_size = 0,
            |s| s.buffer = 100,
            |s| s.mtu = 9001,
            |s| (s.mtu, s.organizations[2]) = (9000, crate::backends::parse("smoltcp").unwrap()),
            |s| {
                s.family = Family::Ipv6;
                s.organizations[2] = crate::backends::parse("smoltcp").unwrap();
            },
            |s| (s.family, s.organizations[2]) = (Family::Ipv6, Organization::Null),
            |s| (s.family, s.mtu) = (Family::Ipv6, 1279),
            |s| s.udp = Some(7),
            |s| s.udp = Some(1473),
            |s| (s.udp, s.family) = (Some(1453), Family::Ipv6),
            |s| (s.udp, s.inbound) = (Some(64), Inbound::Affine),
            |s| (s.udp, s.in_place) = (Some(64), true),
            |s| (s.udp, s.batch) = (Some(64), true),
            |s| (s.udp, s.organizations[2]) = (Some(64), Organization::Null),
            |s| s.organizations[2] = Organization::NullTcp,
            |s| {
                (s.device, s.direction) = (Device::Tap, Direction::Both);
                s.organizations[2] = Organization::NullTcp;
            },
            |s| s.exchange = Some("64".parse().unwrap()),
            |s| (s.interrupt_delay, s.device) = (Duration::from_micros(50), Device::Tap),
            |s| s.hand_on = true,
            |s| (s.hand_on, s.device, s.offload) = (true, Device::Pair, Offload::Software),
            |s| s.reconnect = true,
            |s| (s.reconnect, s.device, s.inbound) = (true, Device::Tap, Inbound::Affine),
            |s| (s.reconnect, s.device, s.direction) = (true, Device::Pair, Direction::Both),
            |s| {
                s.coalescing = Coalescing::NoDelay;
                s.exchange = Some("64:300000".parse().unwrap());
            },
        ];
        for (i, damage) in damages.iter().enumerate() {
            let mut s = Settings::default();
            damage(&mut s);
            assert!(matches!(s.check(), Err(Error::Input(_))), "damage {i}");
        }
    }
}
