//! What goes over a control socket: JSON values, one a line.

use crate::addr;
use perimeter_org::Stats;
use perimeter_org::engine::{Inspected, Listening};
use perimeter_org::pef::event::{Direction, Traced};
use perimeter_stack::udp::UdpInfo;
use perimeter_stack::{ConnInfo, SockId, id};
use perimeter_tcp::State;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Version of the protocol. Fields may be added without a new one.
pub const PROTOCOL: u32 = 1;

/// The longest request, bytes, its newline included.
pub const LONGEST_REQUEST: usize = 4096;

/// What a stack says when somebody connects.
///
/// ```
#[doc = include_str!("../examples/control.txt")]
/// use std::{io::{BufRead, BufReader}, os::unix::net::UnixStream};
///
/// let stack = builder.control(&path).build()?;
/// // The first line that comes from the socket.
/// let mut line = String::new();
/// BufReader::new(UnixStream::connect(&path)?).read_line(&mut line)?;
/// let greeting: Greeting = serde_json::from_str(&line)?;
/// assert_eq!(greeting.protocol, PROTOCOL);
/// println!("perimeter {}, {}", greeting.perimeter, greeting.organization);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Greeting {
    /// Version of the stack.
    pub perimeter: String,
    /// [`PROTOCOL`] of the stack.
    pub protocol: u32,
    /// Its organization.
    pub organization: String,
    /// Its process.
    pub pid: u32,
}

/// What a stack is asked for.
///
/// ```
/// # use perimeter::control::Request;
/// let line = serde_json::to_string(&Request::Counters)?;
/// assert_eq!(line, r#"{"ask":"counters"}"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Request {
    /// Listeners and connections.
    Connections,
    /// Sockets of UDP.
    Datagrams,
    /// The segments of a connection, as they pass.
    Trace {
        /// The connection's name.
        connection: String,
        /// End after this many segments.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
        /// End after this many seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seconds: Option<f64>,
    },
    /// What the stack has counted since it was built.
    Counters,
    /// Frames of its interfaces, as they pass.
    Capture {
        /// Which: a [`Filter`](perimeter_link::capture::Filter); all if empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        filter: String,
        /// Octets of each that are told at most; all if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snap_len: Option<u32>,
        /// End after this many frames.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
        /// End after this many seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seconds: Option<f64>,
    },
}

/// A line of an answer. The last one is [`Reply::End`] or [`Reply::Error`].
///
/// ```
/// # use perimeter::control::Reply;
/// let last = r#"{"end":{"count":2,"lost":0,"closed":false}}"#;
/// assert!(matches!(serde_json::from_str(last)?, Reply::End(end) if end.count == 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Reply {
    /// A listener.
    Listener(Listener),
    /// A connection.
    Connection(Box<Connection>),
    /// A socket of UDP.
    Datagrams(Datagrams),
    /// The trace has begun: what passes from here on is told.
    Tracing {
        /// The connection's name.
        connection: String,
    },
    /// A segment of the traced connection.
    Segment(Segment),
    /// What was counted.
    Counters(Counters),
    /// The capture has begun: what passes from here on is told.
    Capturing {
        /// The interfaces, by number.
        interfaces: Vec<Interface>,
    },
    /// A frame.
    Frame(Frame),
    /// That was all.
    End(End),
    /// It can't be answered.
    Error {
        /// Why, in one line.
        message: String,
    },
}

/// How an answer ended.
///
/// ```
/// # use perimeter::control::*;
/// let end: End = serde_json::from_str(r#"{"count":1000,"lost":3}"#)?;
/// if end.lost > 0 {
///     println!("{} of {} segments are missing", end.lost, end.count + end.lost);
/// }
/// assert!(!end.closed, "the connection goes on");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct End {
    /// Lines before this one: connections and listeners, sockets, segments, or frames.
    pub count: u64,
    /// Segments or frames that passed faster than they could be told, until the trace or the
    /// capture ended.
    #[serde(default)]
    pub lost: u64,
    /// The traced connection is over.
    #[serde(default)]
    pub closed: bool,
    /// Of [`Request::Connections`]: names of interfaces that have gone for good.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
}

/// A listener.
///
/// ```
#[doc = include_str!("../examples/control.txt")]
/// let stack = builder.control(&path).build()?;
/// let listener = stack.listen("10.0.0.1:80")?;
/// let stream = stack.connect("10.0.0.1:80")?;
/// # while Client::connect(&path)?.connections()?.0[0].queued == 0 {}
/// let (listeners, _) = Client::connect(&path)?.connections()?;
/// let l: &control::Listener = &listeners[0];
/// // Nobody has accepted that one yet.
/// println!("{}: {} of {} wait", l.local, l.queued, l.backlog);
/// assert_eq!((l.queued, l.backlog), (1, 1024));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Listener {
    /// Its address; unspecified: any of that family, and `[::]` of both unless it takes IPv6 only.
    pub local: SocketAddr,
    /// Connections that wait to be accepted.
    pub queued: u32,
    /// The most that may.
    pub backlog: u32,
}

/// A connection.
///
/// ```
#[doc = include_str!("../examples/control.txt")]
/// let stack = builder.control(&path).build()?;
/// let listener = stack.listen("10.0.0.1:80")?;
/// let mut stream = stack.connect("10.0.0.1:80")?;
/// let (server, _) = listener.accept()?;
/// stream.write_all(b"hello")?;
/// # while server.peek(&mut [0; 5])? < 5 {}
/// let (_, connections) = Client::connect(&path)?.connections()?;
/// // Who does not read what has come?
/// let slow: Vec<&Connection> = connections.iter().filter(|c| c.receive_queue > 0).collect();
/// assert_eq!((slow.len(), slow[0].receive_queue), (1, 5));
/// assert_eq!((slow[0].state.as_str(), slow[0].remote), ("ESTABLISHED", stream.local_addr()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Connection {
    /// Its name, for [`Request::Trace`].
    pub id: String,
    /// Our end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Its state, as RFC 9293 spells it.
    pub state: String,
    /// Bytes in the send buffer: not acknowledged, or not sent yet.
    pub send_queue: u32,
    /// The send buffer's limit, bytes.
    pub send_buffer: u32,
    /// Bytes in the receive buffer: not read yet.
    pub receive_queue: u32,
    /// The receive buffer's limit, bytes.
    pub receive_buffer: u32,
    /// Congestion window, octets.
    pub cwnd: u32,
    /// Slow-start threshold, segments; none yet.
    pub ssthresh: Option<u32>,
    /// Largest segment that is sent, octets.
    pub mss: u32,
    /// Segments in the network, estimated.
    pub in_flight: u32,
    /// Window that the peer offers, octets.
    pub peer_window: u32,
    /// Smoothed round-trip time, µs; none before the first sample.
    pub rtt_us: Option<f64>,
    /// Retransmission timeout, ms.
    pub rto_ms: f64,
    /// Segments sent again in all.
    pub retransmits: u32,
    /// Octets that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Octets received in order.
    pub bytes_received: u64,
    /// The application has closed it.
    pub orphan: bool,
    /// Where its layers run: IP, TCP, socket.
    pub layers: Vec<Layer>,
    /// Under PEF the events on the receive list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receive_events: Vec<String>,
    /// Under PEF the events on the transmit list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transmit_events: Vec<String>,
}

/// A socket of UDP.
///
/// ```
#[doc = include_str!("../examples/control.txt")]
/// let stack = builder.control(&path).build()?;
/// let socket = stack.bind_udp("10.0.0.1:53")?;
/// socket.send_to(b"hello", "10.0.0.1:53")?;
/// # socket.peek_from(&mut [0; 5])?;
/// let sockets: Vec<control::Datagrams> = Client::connect(&path)?.datagrams()?;
/// let s = &sockets[0];
/// println!("{}: {} wait in {} bytes, {} were dropped", s.local, s.queued, s.receive_queue, s.drops);
/// assert_eq!((s.queued, s.remote), (1, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Datagrams {
    /// Its address; unspecified: any of that family, and `[::]` of both unless it takes IPv6 only.
    pub local: SocketAddr,
    /// Its peer, if it is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<SocketAddr>,
    /// Datagrams that wait to be received.
    pub queued: usize,
    /// Memory that they pin, bytes.
    pub receive_queue: usize,
    /// The most that they may, bytes.
    pub receive_buffer: u32,
    /// Datagrams that were dropped because there was no room.
    pub drops: u64,
    /// Datagrams that wait for the station of a neighbour.
    pub waiting: usize,
}

/// Where one layer of a connection runs.
///
/// ```
#[doc = include_str!("../examples/control.txt")]
/// let stack = builder.control(&path).build()?;
/// let listener = stack.listen("10.0.0.1:80")?;
/// let stream = stack.connect("10.0.0.1:80")?;
/// let (_, connections) = Client::connect(&path)?.connections()?;
/// for control::Layer { layer, perimeter, ran, .. } in &connections[0].layers {
///     println!("{layer}: in {perimeter:?}, last on {ran:?}");
/// }
/// let names: Vec<&str> = connections[0].layers.iter().map(|l| l.layer.as_str()).collect();
/// assert_eq!(names, ["ip", "tcp", "socket"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Layer {
    /// `ip`, `tcp` or `socket`.
    pub layer: String,
    /// Its perimeter, by the organization's own name for it; empty: none.
    pub perimeter: String,
    /// The core that the perimeter is bound to.
    pub bound: Option<usize>,
    /// The core that the layer ran on last; for the socket that of the last send call and that
    /// of the last receive call. None: it has not run.
    pub ran: Vec<Option<u16>>,
}

/// A segment of a traced connection.
///
/// ```
/// # use perimeter::control::*;
/// // As `Reply::Segment` has it.
/// let line = r#"{"segment":{"time":1.5,"received":true,"flags":"PA","seq":7,"ack":9,"len":512,
///     "window":65535,"cwnd":14600,"ssthresh":null,"rtt_us":null}}"#;
/// let Reply::Segment(s) = serde_json::from_str(line)? else { return Err("another reply".into()) };
/// let way = if s.received { "in" } else { "out" };
/// assert_eq!(format!("{way} {} {}..{}", s.flags, s.seq, s.seq + s.len), "in PA 7..519");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Segment {
    /// When it passed, s on the stack's clock.
    pub time: f64,
    /// Whether it came in; else it went out.
    pub received: bool,
    /// Its flags by their initials, `SA` for SYN and ACK.
    pub flags: String,
    /// Its sequence number.
    pub seq: u32,
    /// Its acknowledgment number.
    pub ack: u32,
    /// Its payload, octets.
    pub len: u32,
    /// Its window, octets.
    pub window: u32,
    /// The congestion window at that moment, octets.
    pub cwnd: u32,
    /// The slow-start threshold, segments.
    pub ssthresh: Option<u32>,
    /// The smoothed round-trip time, µs.
    pub rtt_us: Option<f64>,
}

/// What a stack has counted.
///
/// ```
#[doc = include_str!("../examples/control.txt")]
/// let stack = builder.control(&path).build()?;
/// let before: Counters = Client::connect(&path)?.counters()?;
/// let socket = stack.bind_udp("10.0.0.1:53")?;
/// socket.send_to(b"hello", "10.0.0.1:53")?;
/// let after = Client::connect(&path)?.counters()?;
/// // What has changed meanwhile.
/// for ((name, old), (_, new)) in before.counters.iter().zip(&after.counters) {
///     if new > old {
///         println!("{name}: {} in {} ns", new - old, after.time_ns - before.time_ns);
///     }
/// }
/// assert_ne!(before.counters, after.counters);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counters {
    /// When, nanoseconds on the stack's clock.
    pub time_ns: u64,
    /// Counters by name, those that are 0 too, in the stack's order.
    pub counters: Vec<(String, u64)>,
    /// Connections at the moment, those that linger included.
    pub connections: usize,
    /// Memory that sockets pin at the moment, bytes.
    pub memory: u64,
    /// Locks by class, those that were taken.
    pub locks: Vec<LockCounts>,
    /// Only counters and memory are here: the thread that the stack belongs to did not come by.
    #[serde(default)]
    pub partial: bool,
}

/// What happened to the locks of one class.
///
/// ```
#[doc = include_str!("../examples/control.txt")]
/// let stack = builder.control(&path).build()?;
/// let listener = stack.listen("10.0.0.1:80")?;
/// let counters = Client::connect(&path)?.counters()?;
/// // Which class of locks costs most?
/// let worst: Option<&LockCounts> = counters.locks.iter().max_by_key(|l| l.wait_ns);
/// let worst = worst.ok_or("no lock was taken")?;
/// println!("{}: {} ns in {} waits", worst.class, worst.wait_ns, worst.contended);
/// assert!(worst.contended <= worst.acquisitions);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LockCounts {
    /// Their class.
    pub class: String,
    /// How often they were taken.
    pub acquisitions: u64,
    /// How often not at the first attempt.
    pub contended: u64,
    /// Time that was spent waiting for them, ns.
    pub wait_ns: u64,
}

/// An interface.
///
/// ```
/// # use perimeter::control::*;
/// let line = r#"{"capturing":{"interfaces":[{"name":"tap0","ethernet":true}]}}"#;
/// let Reply::Capturing { interfaces } = serde_json::from_str(line)? else { return Err("another reply".into()) };
/// // The link type of a pcap file.
/// let link = |i: &Interface| if i.ethernet { 1 } else { 101 };
/// assert_eq!((interfaces[0].name.as_str(), link(&interfaces[0])), ("tap0", 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its frames start with an Ethernet header; else with IP's.
    pub ethernet: bool,
}

/// A frame that has passed.
///
/// ```
/// # use perimeter::control::*;
/// let line = r#"{"frame":{"interface":0,"time_ns":0,"received":true,"len":60,"bytes":"ffffffffffff"}}"#;
/// let Reply::Frame(f) = serde_json::from_str(line)? else { return Err("another reply".into()) };
/// // With a snap length the first octets only.
/// assert!(f.bytes.len() < f.len as usize);
/// assert_eq!(f.bytes, [0xff; 6], "to all stations");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Frame {
    /// Number of its interface.
    pub interface: usize,
    /// When, nanoseconds since 1970.
    pub time_ns: u64,
    /// Whether it came in; else it went out.
    pub received: bool,
    /// Its length, octets.
    pub len: u32,
    /// Its first octets, or all; two hexadecimal digits each.
    #[serde(with = "hex")]
    pub bytes: Vec<u8>,
}

/// Octets as text.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    const DIGITS: &[u8; 16] = b"0123456789abcdef";

    pub fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        let digits = bytes.iter().flat_map(|b| [b >> 4, b & 15]);
        let text: String = digits.map(|d| char::from(DIGITS[usize::from(d)])).collect();
        s.serialize_str(&text)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(d: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(d)?;
        let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
        let pairs = text.as_bytes().chunks(2).map(|pair| match *pair {
            [a, b] => Some(digit(a)? << 4 | digit(b)?),
            _ => None,
        });
        pairs
            .collect::<Option<Vec<u8>>>()
            .ok_or_else(|| D::Error::custom("octets as pairs of hexadecimal digits"))
    }
}

impl From<&Stats> for Counters {
    fn from(s: &Stats) -> Counters {
        let locks = s.locks.iter().map(|(class, l)| LockCounts {
            class: (*class).into(),
            acquisitions: l.acquisitions,
            contended: l.contended,
            wait_ns: l.wait_ns,
        });
        Counters {
            time_ns: 0,
            counters: s.counts.clone(),
            connections: s.connections,
            memory: s.memory,
            locks: locks.collect(),
            partial: s.partial,
        }
    }
}

/// The name of a connection in text: shard, slot and generation.
pub(crate) fn name(id: SockId) -> String {
    format!("{}:{}.{}", id.shard(), id.slot(), id.generation())
}

/// The connection of that name.
pub(crate) fn parse(name: &str) -> Option<SockId> {
    let (shard, rest) = name.split_once(':')?;
    let (slot, generation) = rest.split_once('.')?;
    let (shard, slot, generation) = (
        shard.parse::<u16>().ok()?,
        slot.parse::<u32>().ok()?,
        generation.parse::<u32>().ok()?,
    );
    let fits = usize::from(shard) < id::MAX_SHARDS
        && (slot as usize) < id::MAX_SLOTS
        && generation < 1 << 24;
    fits.then(|| SockId::conn(shard, slot, generation))
}

/// A state as RFC 9293 spells it.
fn state(s: State) -> &'static str {
    match s {
        State::Closed => "CLOSED",
        State::SynSent => "SYN-SENT",
        State::SynReceived => "SYN-RECEIVED",
        State::Established => "ESTABLISHED",
        State::FinWait1 => "FIN-WAIT-1",
        State::FinWait2 => "FIN-WAIT-2",
        State::CloseWait => "CLOSE-WAIT",
        State::Closing => "CLOSING",
        State::LastAck => "LAST-ACK",
        State::TimeWait => "TIME-WAIT",
    }
}

impl From<&Listening> for Listener {
    fn from(l: &Listening) -> Listener {
        // Of both families.
        let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        Listener {
            local: addr::outward(l.addr.unwrap_or(any), l.port),
            queued: l.queued,
            backlog: l.backlog,
        }
    }
}

impl From<&UdpInfo> for Datagrams {
    fn from(s: &UdpInfo) -> Datagrams {
        let any = match s.v6 {
            true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        Datagrams {
            local: addr::outward(s.local.unwrap_or(any), s.port),
            remote: s.remote.map(|(ip, port)| addr::outward(ip, port)),
            queued: s.queued,
            receive_queue: s.pinned,
            receive_buffer: s.config.recv_buffer,
            drops: s.drops,
            waiting: s.waiting,
        }
    }
}

impl From<Inspected> for Connection {
    fn from(c: Inspected) -> Connection {
        let Inspected { info, binding, .. } = c;
        let ConnInfo { key, tcp, ran, .. } = &info;
        let ran = [vec![ran.ip], vec![ran.tcp], vec![ran.send, ran.receive]];
        let layers = ["ip", "tcp", "socket"]
            .into_iter()
            .zip(ran)
            .zip(binding.perimeters.into_iter().zip(binding.cores));
        let layer = |((name, ran), (perimeter, bound)): ((&str, _), _)| Layer {
            layer: name.into(),
            perimeter,
            bound,
            ran,
        };
        let [receive_events, transmit_events] = binding.events;
        Connection {
            id: name(info.id),
            local: addr::local(key),
            remote: addr::remote(key),
            state: state(tcp.state).into(),
            send_queue: info.snd_queued,
            send_buffer: info.snd_limit,
            receive_queue: info.rcv_queued,
            receive_buffer: info.rcv_limit,
            cwnd: tcp.cwnd_bytes,
            ssthresh: threshold(tcp.snd_ssthresh),
            mss: tcp.snd_mss,
            in_flight: tcp.in_flight,
            peer_window: tcp.snd_wnd,
            rtt_us: micros(tcp.srtt.as_nanos() as u64),
            rto_ms: tcp.rto.as_secs_f64() * 1e3,
            retransmits: tcp.total_retrans,
            bytes_acked: tcp.bytes_acked,
            bytes_received: tcp.bytes_received,
            orphan: info.orphan,
            layers: layers.map(layer).collect(),
            receive_events,
            transmit_events,
        }
    }
}

impl From<&Traced> for Segment {
    fn from(t: &Traced) -> Segment {
        Segment {
            time: t.at.nanos() as f64 / 1e9,
            received: t.direction == Direction::Receive,
            flags: format!("{:?}", t.flags),
            seq: t.seq,
            ack: t.ack,
            len: t.len,
            window: t.window,
            cwnd: t.cwnd,
            ssthresh: threshold(t.ssthresh),
            rtt_us: micros(t.srtt_ns),
        }
    }
}

fn threshold(segments: u32) -> Option<u32> {
    (segments != u32::MAX).then_some(segments)
}

fn micros(ns: u64) -> Option<f64> {
    (ns > 0).then_some(ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connections_name_is_read_back_and_others_are_refused() {
        for id in [
            SockId::conn(0, 0, 1),
            SockId::conn(4094, (1 << 27) - 1, 0xff_ffff),
        ] {
            assert_eq!(parse(&name(id)), Some(id));
        }
        for bad in [
            "",
            "1",
            "1:2",
            "1:2.",
            "4095:0.1",
            "0:134217728.1",
            "0:0.16777216",
            "-1:0.0",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn requests_are_what_the_documentation_says() {
        let text = |r: &Request| serde_json::to_string(r).unwrap();
        assert_eq!(text(&Request::Connections), r#"{"ask":"connections"}"#);
        let trace: Request =
            serde_json::from_str(r#"{"ask":"trace","connection":"0:1.2","count":3}"#).unwrap();
        let want = Request::Trace {
            connection: "0:1.2".into(),
            count: Some(3),
            seconds: None,
        };
        assert_eq!(trace, want);
        assert_eq!(text(&Request::Counters), r#"{"ask":"counters"}"#);
        let capture: Request = serde_json::from_str(r#"{"ask":"capture"}"#).unwrap();
        assert_eq!(text(&capture), r#"{"ask":"capture"}"#);
        for bad in ["", "{}", r#"{"ask":"halt"}"#, r#"{"ask":"trace"}"#, "[]"] {
            assert!(serde_json::from_str::<Request>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn octets_are_text() {
        let frame = Frame {
            interface: 1,
            time_ns: 2,
            received: true,
            len: 1500,
            bytes: vec![0, 0x1f, 0xa0, 0xff],
        };
        let text = serde_json::to_string(&frame).unwrap();
        assert!(text.ends_with(r#""bytes":"001fa0ff"}"#), "{text}");
        assert_eq!(serde_json::from_str::<Frame>(&text).unwrap(), frame);
        for bad in ["0", "0g", "é", "0x00"] {
            let text = text.replace("001fa0ff", bad);
            assert!(serde_json::from_str::<Frame>(&text).is_err(), "{bad}");
        }
    }
}
