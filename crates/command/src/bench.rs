//! Arguments of `perimeter bench`. Every value is parsed strictly by the benchmark's own parsers.

use crate::VERSION;
use clap::Args;
use perimeter::{LockPolicy, Offload, OrgSpec, link::named::HostDevice};
use perimeter_measure::{
    Error, backends, net,
    organizations::Organization,
    units,
    workload::{
        Exchange,
        settings::{self, Coalescing, Device, Direction, Family, Inbound, MAX_PARALLEL, Settings},
    },
};
use std::{net::Ipv4Addr, path::PathBuf, str::FromStr, time::Duration};

/// What `perimeter bench --help` says at its end.
pub const HELP: &str = "Examples:
  perimeter bench --quick
  perimeter bench --org up,connp-l:128 --conns 6,192 --seconds 10 --repeat 5
  perimeter bench --org all --conns 192 --seconds 1
  perimeter bench --org linux --conns 192 --direction both --json result.json
  perimeter bench --org connp-l:128 --inbound affine --nics 6 --link-gbps 1 --json - | jq .runs
  perimeter bench --exchange 64 --conns 1,192
  perimeter bench --reconnect --exchange 64:512 --conns 1,192
  perimeter bench --device tap --org up,connp-l:128 --conns 192 --direction receive
  perimeter bench --device xdp --org null:tcp,up,connp-l:128,linux --conns 6 --direction receive
  perimeter bench --device pair --org up,connp-l:128,linux --conns 6,192
  perimeter bench --ipv6 --org up,linux --conns 6
  perimeter bench --udp --device tap --org up,connp-l:128,linux --direction receive
  perimeter bench --udp=1400 --device pair --conns 6
  perimeter bench --live --org msgp,connp-l:8,squeue:2 --conns 192

Between two machines, the second line at the other one; a stack of ours needs an address of its \
own, on an interface that leads to the network, or a TAP interface that is bridged or routed to \
it (`ip tuntap add dev tap0 mode tap; ip link set tap0 master br0`):
  perimeter bench --listen 0.0.0.0
  perimeter bench --connect 192.0.2.1 --direction both --conns 1,16 --json -
  perimeter bench --connect 192.0.2.1 --device packet:eth0 --address 192.0.2.9/24
  perimeter bench --connect 192.0.2.1:9 --sink --org linux

Threads run an event loop each over connections spread evenly over threads and NICs; one file is \
sent over all of them without being copied. Configurations take turns, so that a drift of the \
machine falls on all alike.

Times are CPU ns per 1448 bytes of payload; time for which others had the core is taken out, and \
remarked on. In a valid row application, stack, peer, spinning and idle time make up the elapsed \
time of the threads within 5 %; a row marked INVALID should not be quoted. On TAP and linux the \
kernel does the peer's work inside the calls under test: compare CPU time, which is the whole \
machine's. least/med (--wide) is the least-served connection's bytes over the median \
connection's. The rows `null` and `null:tcp` have no stack at all. `null` is the floor of the rows \
over the memory NIC; over a device of the host it sends frames that the kernel drops, or receives \
frames that nobody waits to have acknowledged. `null:tcp` has the kernel's TCP at the other end of \
a loop that only counts and acknowledges: what the device and the kernel leave to a stack.

--live looks at the runs four times a second, less often where a look takes longer than 1 in 200 \
of that time; each look is a column of the curves. Contended is the share of acquisitions whose \
first attempt fails, in the class of locks where most do. Within is how many threads are in a \
perimeter at a time, on average: under up:shared and connp-l the time for which group locks are \
held, under msgp the connection table's lock, under msgp-modern the connections'; under connp-t \
the CPU time of its protocol threads; under up, squeue, pef, streams and fold the CPU time in the \
stack, a little of which is outside any perimeter. Where there is one perimeter that is the share \
of time for which it is occupied. q, Esc or Ctrl-C ends the runs and prints what is complete.

Exit status: 0 measured, 1 a run failed, 2 the request can't be served, 130 ended by Ctrl-C.";

/// Arguments of `perimeter bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// Organizations to compare, `all` for every one of ours, `linux` for the host's own sockets
    /// (with segmentation offloads unless --offload is off; `linux:offload` always has them,
    /// `linux:offload=off` never),
    /// `null` and `null:tcp` for the benchmark without a stack, `smoltcp`, `gvisor` (needs Go) and `lwip` (needs cc and an installed lwIP) for other stacks,
    /// `peers` for linux and those
    /// [default: up,connp-l:128, and linux with segmentation offloads and without]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = Entry::from_str)]
    org: Option<Vec<Entry>>,
    /// Numbers of connections [default: 1,6,192,16384]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = settings::connections)]
    conns: Option<Vec<u32>>,
    /// Device of our organizations: mem (memory NICs with an ideal peer), pair (wires in memory to
    /// a second stack of the same organization), or to the host kernel's sockets in namespaces made
    /// for the run: tap, tun (TAP or TUN interfaces), packet or xdp (packet sockets or AF_XDP on a
    /// veth pair); these need root or user namespaces. With --connect, an interface of the host's
    /// that leads to the network: tap:NAME, tun:NAME (which it bridges or routes), packet:NAME or
    /// xdp:NAME [default: mem]
    #[arg(long, value_parser = Carrier::from_str)]
    device: Option<Carrier>,
    /// Everything over IPv6 in place of IPv4: our organizations' connections and linux'. A full
    /// segment carries 20 bytes less; times are still told for 1448
    #[arg(long)]
    ipv6: bool,
    /// Which way the file goes: send, receive or both [default: send]
    #[arg(long, value_parser = Direction::from_str)]
    direction: Option<Direction>,
    /// Who does inbound work: nic (core i polls NIC i), thread (one per NIC) or affine (the
    /// application's core) [default: nic]
    #[arg(long, value_parser = Inbound::from_str)]
    inbound: Option<Inbound>,
    /// Round trip to the ideal peer or over the wires of a pair, as 50us, 1.5ms or 0 [default:
    /// 50us to the ideal peer, 0 in a pair]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = units::duration)]
    rtt: Option<Duration>,
    /// Application threads, an event loop each [default: cores]
    #[arg(long, value_name = "N", value_parser = parallel)]
    threads: Option<usize>,
    /// Network interfaces [default: cores]
    #[arg(long, value_name = "N", value_parser = parallel)]
    nics: Option<usize>,
    /// Pace each memory NIC, or each way of a pair's wires, to this many Gb/s [default: not paced]
    #[arg(long, value_name = "G", value_parser = units::gbps)]
    link_gbps: Option<f64>,
    /// Maximum transmission unit of every link, from 576 to 9000 [default: 1500]
    #[arg(long, value_name = "B", value_parser = settings::mtu)]
    mtu: Option<u32>,
    /// Most bytes of one send call [default: 65536]
    #[arg(long, value_name = "B", value_parser = write_size)]
    write_size: Option<usize>,
    /// Most bytes of one receive call [default: 262144]
    #[arg(long, value_name = "B", value_parser = read_size)]
    read_size: Option<usize>,
    /// Send and receive buffer of every socket, from 4096 to 67108864 [default: 262144]
    #[arg(long, value_name = "B", value_parser = buffer)]
    buffer: Option<usize>,
    /// When small writes become segments: cork (full ones only), nagle (when nothing is
    /// unacknowledged) or nodelay (at once) [default: cork, with --exchange nodelay]
    #[arg(long, value_name = "WAY", value_parser = Coalescing::from_str)]
    coalescing: Option<Coalescing>,
    /// Requests and responses of these sizes in bytes instead of a stream, or a ping-pong of one
    /// size
    #[arg(long, value_name = "REQ[:RESP]", value_parser = Exchange::from_str)]
    exchange: Option<Exchange>,
    /// Datagrams of UDP of this size in place of connections: --conns are pairs of sockets, default
    /// 1,6,192. Datagrams received a second, and what was lost; times are for one. Ours hand over
    /// up to 32 a call, as linux:offload does; linux one. Over --device mem, pair, tap, tun, packet
    /// or xdp [default size: 64]
    #[arg(long, value_name = "B", num_args = 0..=1, require_equals = true,
        default_missing_value = "64", value_parser = settings::datagram)]
    udp: Option<usize>,
    /// Each connection carries one --exchange, or nothing without, and is opened anew: connections a
    /// second, and how long each takes from its opening to its close. --conns are then open at a
    /// time. The far end closes first. Over --device pair, tap, tun, packet or xdp, and linux
    /// [default --device: pair]
    #[arg(long)]
    reconnect: bool,
    /// How threads wait for locks: modern (spin a little, park; a release wakes one) or turnstile
    /// (FreeBSD's of 2006: spin while the owner runs, sleep with the priority lent; a release
    /// wakes all) [default: modern]
    #[arg(long, value_name = "POLICY", value_parser = LockPolicy::from_str)]
    locks: Option<LockPolicy>,
    /// Who cuts what our organizations send into segments: off (nobody: each is planned by itself),
    /// software (the stack, where a burst enters the transmit ring) or device (the device, if it can,
    /// else the stack; with `device`, simulated NICs also merge what they receive, which
    /// otherwise the stack does) [default: device; off in the lab's plans]
    #[arg(long, value_name = "WHO", value_parser = Offload::from_str)]
    offload: Option<Offload>,
    /// Acknowledge every second full segment (RFC 5681), also where segments of a burst are taken
    /// as one; else all of them are acknowledged at once, as Linux does
    #[arg(long)]
    no_stretch_acks: bool,
    /// Hand frames of messages over to the thread that answers them, where that serves another NIC or
    /// queue (receive flow steering); else each frame is run where it is polled
    #[arg(long)]
    steering: bool,
    /// The longest that threads of our organizations look around before they sleep, for as long as
    /// has paid lately; 0: they sleep at once [default: 50us; 0 in the lab's plans]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = units::duration)]
    look_around: Option<Duration>,
    /// Bytes that an inbound thread of our organizations takes in a row before it lets other threads
    /// of its core run, so that they read what is still in a cache; a burst has about as many at most;
    /// 0: all that come [default: 786432; 0 in the lab's plans]
    #[arg(long, value_name = "B", value_parser = budget)]
    budget: Option<usize>,
    /// Tell a writer who found no room as soon as so many bytes of its send buffer are free, as BSD's
    /// SO_SNDLOWAT does (FreeBSD: 2048) [default: a third of the buffer, which is also the most]
    #[arg(long, value_name = "B", value_parser = snd_lowat)]
    snd_lowat: Option<u32>,
    /// Let threads of our organizations' own take their core from the application's at once, as a
    /// kernel's do (needs root or the capability CAP_SYS_NICE)
    #[arg(long)]
    preemptive: bool,
    /// With --device mem or pair: a NIC interrupts so long after the first frame, as NICs with
    /// interrupt moderation do (ethtool's rx-usecs) [default: 0]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = units::duration)]
    interrupt_delay: Option<Duration>,
    /// With --device mem: the shortest time between two interrupts of a NIC, as NICs have that throttle
    /// them (125us: at most 8,000 a second) [default: 0]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = units::duration)]
    interrupt_gap: Option<Duration>,
    /// With --device pair: the wire hands the memory of large segments on, as a veth pair hands on
    /// pages, instead of copying it, as a NIC's DMA does
    #[arg(long)]
    hand_on: bool,
    /// Applications on our organizations read what they receive in the stack's memory (a byte of each
    /// cache line) instead of having it copied; other stacks' calls always copy (needs TCP)
    #[arg(long)]
    in_place: bool,
    /// Applications on our organizations send in batches: what a thread writes between two polls goes to
    /// the devices together
    #[arg(long)]
    batch: bool,
    /// Time our organizations' locks (waits and holds by size) and what queueing, parking and
    /// waking take; costs two readings of a clock at each acquisition, park and wake
    #[arg(long)]
    pub profile: bool,
    /// Measured seconds of each run [default: 5]
    #[arg(long, value_name = "S", value_parser = units::seconds)]
    seconds: Option<Duration>,
    /// Runs of each configuration, interleaved [default: 3]
    #[arg(long, value_name = "R", value_parser = repeat)]
    repeat: Option<u32>,
    /// End within 30 seconds, whatever is listed
    #[arg(long)]
    quick: bool,
    /// Show the runs as they happen, on the whole terminal: goodput, CPU, lock contention and how
    /// occupied the perimeters are; the table comes afterwards
    #[arg(long)]
    pub live: bool,
    /// Print all columns, locks and what disturbed each run (wider than 80 columns)
    #[arg(long)]
    pub wide: bool,
    /// Say what has changed since the report in this file, which an earlier --json wrote
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
    /// While a stack of ours runs, have a control socket at this path, for `perimeter ss`,
    /// `stat`, `top`, `pcap` and `trace`
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Be the far end of benches on other machines, with the host's sockets: of several at a time,
    /// until interrupted [default port: 7471]
    #[arg(long, value_name = "ADDR[:PORT]", conflicts_with_all = LISTEN_ALONE)]
    pub listen: Option<String>,
    /// With --listen: end after this many runs, also such as failed
    #[arg(long, value_name = "N", requires = "listen", value_parser = runs)]
    pub runs: Option<u64>,
    /// Bench to a `perimeter bench --listen` on another machine, over IPv4 [default port: 7471,
    /// with --sink 9; default --org: linux, with --device up,connp-l:128,linux; default --conns: 1,6]
    #[arg(long, value_name = "HOST[:PORT]")]
    connect: Option<String>,
    /// With --connect: the other end is any sink that takes bytes and throws them away
    #[arg(long, requires = "connect")]
    sink: bool,
    /// With --connect and --device: address of our stack
    #[arg(long, value_name = "A.B.C.D/N", requires = "connect", requires = "device",
        value_parser = net::subnet)]
    address: Option<(Ipv4Addr, u8)>,
    /// With --address: where our stack sends what is not for its subnet
    #[arg(long, value_name = "A.B.C.D", requires = "address")]
    gateway: Option<Ipv4Addr>,
    /// Write the report as JSON to a file, or to standard output (`-`) instead of the table
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
}

/// A value of `--device`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Carrier {
    /// A kind of device, whose other end is made as well.
    Kind(Device),
    /// One on an interface that is there.
    Named(HostDevice),
}

impl FromStr for Carrier {
    type Err = String;

    fn from_str(text: &str) -> Result<Carrier, String> {
        match text.contains(':') {
            true => text.parse().map(Carrier::Named),
            false => text.parse().map(Carrier::Kind),
        }
    }
}

/// An entry of `--org`: one organization, or all.
#[derive(Debug, Clone)]
struct Entry(Vec<Organization>);

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Entry, String> {
        backends::parse_entry(text).map(Entry)
    }
}

impl Bench {
    /// The settings, with defaults where nothing was said.
    ///
    /// # Errors
    /// The other end's name can't be looked up.
    pub fn settings(&self) -> Result<Settings, Error> {
        let mut d = Settings::default();
        let connect = self.target()?;
        if self.udp.is_some() {
            d.connections = vec![1, 6, 192];
        }
        if self.exchange.is_some() {
            // Cork would hold messages back.
            d.coalescing = Coalescing::NoDelay;
        }
        if self.reconnect {
            // The ideal peer of the memory NIC does not close.
            d.device = Device::Pair;
        }
        if let Some(target) = &connect {
            (d.device, d.connections) = (Device::Tap, vec![1, 6]);
            let ours = |o: &Organization| matches!(o, Organization::Ours(_));
            d.organizations
                .retain(|o| target.place.is_some() || !ours(o));
        }
        Ok(Settings {
            organizations: match &self.org {
                Some(list) => list.iter().flat_map(|e| e.0.clone()).collect(),
                // Ours beside Linux as it is used and beside the other one.
                None if self.offload == Some(Offload::Off) => {
                    for o in &mut d.organizations {
                        if *o == Organization::LINUX_SEGMENTS {
                            *o = Organization::LINUX_OFFLOAD;
                        }
                    }
                    d.organizations
                }
                None => d.organizations,
            },
            connections: self.conns.clone().unwrap_or(d.connections),
            connect,
            device: self.carrier()?.unwrap_or(d.device),
            family: match self.ipv6 {
                true => Family::Ipv6,
                false => Family::Ipv4,
            },
            direction: self.direction.unwrap_or(d.direction),
            inbound: self.inbound.unwrap_or(d.inbound),
            rtt: self.rtt,
            threads: self.threads.unwrap_or(d.threads),
            nics: self.nics.unwrap_or(d.nics),
            mtu: self.mtu.unwrap_or(d.mtu),
            link_gbps: self.link_gbps,
            write_size: self.write_size.unwrap_or(d.write_size),
            read_size: self.read_size.unwrap_or(d.read_size),
            buffer: self.buffer.unwrap_or(d.buffer),
            coalescing: self.coalescing.unwrap_or(d.coalescing),
            exchange: self.exchange,
            udp: self.udp,
            reconnect: self.reconnect,
            locks: self.locks.unwrap_or(d.locks),
            offload: self.offload.unwrap_or(d.offload),
            stretch_acks: !self.no_stretch_acks,
            steering: self.steering,
            look_around: self.look_around.unwrap_or(d.look_around),
            budget: self.budget.unwrap_or(d.budget),
            preemptive: self.preemptive,
            bound: true,
            snd_lowat: self.snd_lowat.unwrap_or(d.snd_lowat),
            interrupt_delay: self.interrupt_delay.unwrap_or(d.interrupt_delay),
            interrupt_gap: self.interrupt_gap.unwrap_or(d.interrupt_gap),
            hand_on: self.hand_on,
            in_place: self.in_place,
            batch: self.batch,
            profile: self.profile,
            seconds: self.seconds.unwrap_or(d.seconds),
            repeat: self.repeat.unwrap_or(d.repeat),
            quick: self.quick,
            control: self.control.clone(),
        })
    }

    /// The kind of device, if one was asked for that is made here.
    fn carrier(&self) -> Result<Option<Device>, Error> {
        match &self.device {
            Some(Carrier::Kind(kind)) => Ok(Some(*kind)),
            Some(Carrier::Named(device)) if self.connect.is_none() => Err(Error::Input(format!(
                "--device {device} leads to another machine: give --connect, or --device {} for \
                 one whose other end is made for the run",
                device.kind()
            ))),
            _ => Ok(None),
        }
    }

    /// The other end, if it is on another machine.
    fn target(&self) -> Result<Option<net::Target>, Error> {
        let Some(name) = &self.connect else {
            return Ok(None);
        };
        let place = match (&self.device, self.address) {
            (None, _) => None,
            (Some(Carrier::Named(device)), Some(address)) => {
                net::present(device)?;
                Some(net::Place {
                    device: device.clone(),
                    address,
                    gateway: self.gateway,
                })
            }
            (Some(Carrier::Named(_)), None) => {
                let line = "--connect with --device needs --address, the address of our stack";
                return Err(Error::Input(line.into()));
            }
            (Some(Carrier::Kind(kind)), _) => {
                return Err(Error::Input(format!(
                    "--connect: --device {kind} ends on this machine; name an interface: tap:NAME, \
                     tun:NAME, packet:NAME or xdp:NAME"
                )));
            }
        };
        Ok(Some(net::Target {
            address: net::resolve(name, self.sink)?,
            sink: self.sink,
            place,
            version: VERSION.into(),
        }))
    }
}

/// What makes no sense besides --listen: the client says what is to run.
const LISTEN_ALONE: [&str; 19] = [
    "connect",
    "org",
    "conns",
    "device",
    "ipv6",
    "direction",
    "inbound",
    "rtt",
    "threads",
    "nics",
    "mtu",
    "quick",
    "exchange",
    "udp",
    "reconnect",
    "seconds",
    "repeat",
    "live",
    "json",
];

/// An organization of ours; one that is like it is offered in place of an unknown one.
pub fn ours(text: &str) -> Result<OrgSpec, String> {
    match backends::parse(text)? {
        Organization::Ours(org) => Ok(org),
        other => Err(format!(
            "`{other}` is no organization of ours; `perimeter orgs` lists them"
        )),
    }
}

fn runs(text: &str) -> Result<u64, String> {
    units::whole(text, "the number of runs", 1..=u64::MAX - 1)
}

fn parallel(text: &str) -> Result<usize, String> {
    Ok(units::whole(text, "the number", 1..=MAX_PARALLEL)? as usize)
}

fn budget(text: &str) -> Result<usize, String> {
    Ok(units::whole(text, "the bytes in a row", 0..=1 << 30)? as usize)
}

fn snd_lowat(text: &str) -> Result<u32, String> {
    Ok(units::whole(text, "the free bytes", 1..=1 << 30)? as u32)
}

fn write_size(text: &str) -> Result<usize, String> {
    Ok(units::whole(text, "the size in bytes", 1..=16 << 20)? as usize)
}

fn read_size(text: &str) -> Result<usize, String> {
    write_size(text)
}

fn buffer(text: &str) -> Result<usize, String> {
    Ok(units::whole(text, "the buffer in bytes", 4096..=64 << 20)? as usize)
}

fn repeat(text: &str) -> Result<u32, String> {
    Ok(units::whole(text, "the number of repeats", 1..=1000)? as u32)
}
