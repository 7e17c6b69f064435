//! Events as their authors see them: what a callback is given, and what it may answer.

use core::fmt;
use perimeter_base::Time;
use perimeter_tcp::Info;
use perimeter_wire::{FlowKey, TcpFlags, TcpHdr};
use std::sync::Arc;

/// Which list.
///
/// ```
/// use perimeter_org::pef::event::Direction;
///
/// // As an arrow in a trace.
/// let arrow = |d: Direction| match d {
///     Direction::Receive | Direction::Datagram => "<",
///     Direction::Transmit | Direction::SentDatagram => ">",
///     Direction::Unbound => "?",
/// };
/// assert_eq!(arrow(Direction::Transmit), ">");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// A connection's receive list: IP, TCP, SOCKFS.
    Receive,
    /// Its transmit list: SOCKFS, TCP, IP.
    Transmit,
    /// The stack's list of received datagrams that are for a socket: IP, which checks them, and
    /// SOCKFS, which gives them to the socket under the squeue that has it. Other events are behind
    /// IP's, on its layer, or on TCP's under that squeue; behind SOCKFS there is nothing left to see.
    Datagram,
    /// The stack's list of datagrams that the application sends: SOCKFS, which finds their ways under the
    /// squeue that has the socket, and IP, which gives them to the device and has the caller told. Other
    /// events are behind SOCKFS's, on its layer, or on TCP's under the same squeue; behind IP there is
    /// nothing left to see. One that drops a datagram has it count as sent.
    SentDatagram,
    /// The stack's list of packets that belong to no connection and that it does not answer
    /// itself: datagrams of protocols that it does not have, or for other hosts. They are told
    /// apart where frames come in.
    Unbound,
}

impl Direction {
    /// Whether it is a list of each connection, and not one of the stack.
    pub(crate) fn is_of_connection(self) -> bool {
        match self {
            Direction::Receive | Direction::Transmit => true,
            Direction::Datagram | Direction::SentDatagram | Direction::Unbound => false,
        }
    }
}

/// A major layer of a list. Each holds one or more events.
///
/// ```
/// use perimeter_org::pef::event::Layer;
///
/// // In the order in which a packet runs through them that is received.
/// assert_eq!(Layer::ALL.map(Layer::name), ["ip", "tcp", "sockfs"]);
/// assert!(Layer::Ip < Layer::Sockfs);
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// IP.
    Ip,
    /// TCP.
    Tcp,
    /// The socket layer.
    Sockfs,
}

impl Layer {
    /// In the order of the receive list.
    pub const ALL: [Layer; 3] = [Layer::Ip, Layer::Tcp, Layer::Sockfs];

    /// The name in lists.
    pub const fn name(self) -> &'static str {
        match self {
            Layer::Ip => "ip",
            Layer::Tcp => "tcp",
            Layer::Sockfs => "sockfs",
        }
    }
}

/// What becomes of a packet after an event (section 3.2.4).
///
/// ```
#[doc = include_str!("../examples/packet.txt")]
/// /// Nothing but HTTP comes any further.
/// fn filter(packet: &mut Packet<'_>) -> Verdict {
///     match packet.flow.local_port {
///         80 => Verdict::Next,
///         _ => Verdict::Done,
///     }
/// }
/// assert_eq!(filter(&mut packet), Verdict::Next);
/// packet.flow.local_port = 25;
/// assert_eq!(filter(&mut packet), Verdict::Done);
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On to the next event; past the last one the packet is finished.
    Next,
    /// Finished, though events remain. Who owns the packet lets go of it.
    Done,
    /// A connection's receive list only: the classifier looks at it again, and it starts anew with the
    /// list that it belongs to then. Elsewhere nothing is classified, and this is [`Verdict::Next`].
    Reclassify,
}

/// Under which perimeter an event runs.
///
/// ```
/// use perimeter_org::pef::event::Under;
///
/// // Encryption that needs none of the connection's state can run anywhere.
/// let (own, pinned, free) = (Under::default(), Under::Squeue(3), Under::Nothing);
/// assert_eq!(own, Under::Layer);
/// assert_ne!(pinned, free);
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Under {
    /// That of its major layer, for each connection its own.
    #[default]
    Layer,
    /// The squeue of that number, modulo how many there are.
    Squeue(u16),
    /// Outside any. Packets may overtake each other in such an event, as two threads may run it
    /// at once.
    Nothing,
}

/// One packet as an event sees it.
///
/// ```
#[doc = include_str!("../examples/packet.txt")]
/// // `packet` is a segment of five octets that was received, as an event gets it.
/// let shout = |packet: &mut Packet<'_>| {
///     packet.payload.make_ascii_uppercase();
///     Verdict::Next
/// };
/// assert_eq!(shout.on_packet(&mut packet), Verdict::Next);
/// assert_eq!(packet.payload, b"HELLO");
/// ```
#[derive(Debug)]
pub struct Packet<'a> {
    /// The time.
    pub now: Time,
    /// Which list it is on.
    pub direction: Direction,
    /// The major layer of the event that runs.
    pub layer: Layer,
    /// The flow, from this host's point of view; unspecified for what belongs to no connection.
    pub flow: FlowKey,
    /// The segment's header. `None` on the receive list in front of IP, on the transmit list before
    /// TCP has made segments, and for what belongs to no connection.
    pub header: Option<&'a TcpHdr>,
    /// Octets of payload; in front of IP, and of what belongs to no connection, of the frame.
    pub len: u32,
    /// The payload where it lies in one piece: received segments, and data on its way to TCP.
    /// Changes are seen by what follows in the list; the length stays. Of a packet that belongs
    /// to no connection the whole frame, and also on the receive list in front of IP, which checks
    /// it afterwards: an event there that makes it another flow's has it classified again.
    pub payload: &'a mut [u8],
    /// The interface that a datagram, or a packet without a connection, came in by.
    pub iface: u16,
    /// Frames that the callback wants to be sent, each by an interface; of datagrams and packets
    /// without a connection only.
    pub send: Vec<(u16, Vec<u8>)>,
    /// The connection's TCP state, for events under TCP's perimeter.
    pub tcp: Option<&'a dyn Peek>,
    /// Set by the callback: this event takes itself off the list. A list that has gone with its
    /// connection is not an error.
    pub disable: bool,
}

/// What an event under TCP's perimeter may ask.
///
/// ```
#[doc = include_str!("../examples/packet.txt")]
/// /// Tells of connections that have begun to lose segments. On TCP's layer, under its perimeter.
/// fn notice(packet: &mut Packet<'_>) -> Verdict {
///     if packet.tcp.is_some_and(|tcp| tcp.info().retransmits > 0) {
///         eprintln!("{:?} retransmits", packet.flow);
///         packet.disable = true;
///     }
///     Verdict::Next
/// }
/// assert_eq!(notice(&mut packet), Verdict::Next);
/// assert!(!packet.disable, "this packet comes without");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Peek: fmt::Debug {
    /// TCP's own account of the connection.
    fn info(&self) -> Info;
}

/// An event's callback. Runs to its end without waiting: the perimeter it may be under keeps
/// others out meanwhile. Any thread may call it, several at once where it is on several lists.
///
/// If it panics, its event is taken off every list that it is on, and counted (`event_panics`);
/// the packet goes on, as the callback has left it. The event's name stays among those of its list
/// with "(panicked)" behind it, and disabling it is an error that says so.
///
/// ```
#[doc = include_str!("../examples/packet.txt")]
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// /// Counts octets. A closure will do for most; a type has a name and can be asked.
/// #[derive(Default)]
/// struct Octets(AtomicU64);
///
/// impl PacketEvent for Octets {
///     fn on_packet(&self, packet: &mut Packet<'_>) -> Verdict {
///         self.0.fetch_add(packet.len.into(), Ordering::Relaxed);
///         Verdict::Next
///     }
/// }
/// let octets = Octets::default();
/// octets.on_packet(&mut packet);
/// assert_eq!(octets.0.into_inner(), 5);
/// ```
pub trait PacketEvent: Send + Sync + 'static {
    /// A packet arrives at this event.
    fn on_packet(&self, packet: &mut Packet<'_>) -> Verdict;
}

impl<F: Fn(&mut Packet<'_>) -> Verdict + Send + Sync + 'static> PacketEvent for F {
    fn on_packet(&self, packet: &mut Packet<'_>) -> Verdict {
        self(packet)
    }
}

/// An event to be put on a list.
///
/// ```
/// use perimeter_org::pef::event::{Direction, EventSpec, Layer, Packet, Under, Verdict};
/// use std::sync::Arc;
///
/// let spec = EventSpec {
///     name: "shout".into(),
///     direction: Direction::Receive,
///     layer: Layer::Tcp,
///     under: Under::Layer,
///     event: Arc::new(|packet: &mut Packet<'_>| {
///         packet.payload.make_ascii_uppercase();
///         Verdict::Next
///     }),
/// };
/// assert_eq!(format!("{spec:?}"), "shout (Receive, tcp, Layer)");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct EventSpec {
    /// Its name, for those who look at lists.
    pub name: String,
    /// Which list.
    pub direction: Direction,
    /// Which major layer.
    pub layer: Layer,
    /// Under which perimeter it runs.
    pub under: Under,
    /// What it does.
    pub event: Arc<dyn PacketEvent>,
}

impl fmt::Debug for EventSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EventSpec {
            name,
            direction,
            layer,
            under,
            ..
        } = self;
        write!(f, "{name} ({direction:?}, {}, {under:?})", layer.name())
    }
}

/// Where in its major layer an event goes.
///
/// ```
/// use perimeter_org::pef::event::End;
///
/// // A filter goes before what is there, an account of what is left behind it.
/// let end = |name: &str| if name == "filter" { End::Front } else { End::Back };
/// assert_eq!((end("filter"), end("account")), (End::Front, End::Back));
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Before those that are there.
    Front,
    /// Behind them.
    Back,
}

/// The name of an event on a list, never used again.
///
/// ```
/// use perimeter_org::pef::event::EventId;
/// use std::collections::HashMap;
///
/// // Who adds events keeps their names, to take them off.
/// let mut mine = HashMap::from([(EventId(7), "filter")]);
/// assert_eq!(mine.remove(&EventId(7)), Some("filter"));
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub u64);

/// One segment of a traced connection.
///
/// ```
/// use perimeter_org::pef::event::{Direction, Traced};
///
/// /// A line for each segment that carries data and came in.
/// fn line(segment: &Traced) -> Option<String> {
///     let wanted = segment.direction == Direction::Receive && segment.len > 0;
///     wanted.then(|| segment.to_string())
/// }
/// # let _ = line;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Traced {
    /// When it was seen.
    pub at: Time,
    /// Whether it was received or is being sent.
    pub direction: Direction,
    /// The flow, from this host's point of view.
    pub flow: FlowKey,
    /// SEG.SEQ.
    pub seq: u32,
    /// SEG.ACK; of meaning with ACK.
    pub ack: u32,
    /// Control bits.
    pub flags: TcpFlags,
    /// Octets of payload.
    pub len: u32,
    /// The window that it announces, octets.
    pub window: u32,
    /// Congestion window of this end, octets.
    pub cwnd: u32,
    /// Slow-start threshold of this end, segments; `u32::MAX`: none yet.
    pub ssthresh: u32,
    /// Smoothed round-trip time, ns; 0 before the first sample.
    pub srtt_ns: u64,
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.at.nanos();
        let arrow = match self.direction {
            Direction::Receive | Direction::Datagram | Direction::Unbound => '<',
            Direction::Transmit | Direction::SentDatagram => '>',
        };
        write!(
            f,
            "{}.{:09} {arrow} {:?} seq {} ack {} len {} win {} cwnd {}",
            ns / 1_000_000_000,
            ns % 1_000_000_000,
            self.flags,
            self.seq,
            self.ack,
            self.len,
            self.window,
            self.cwnd
        )
    }
}

/// Who takes the segments of a traced connection: told inside TCP's perimeter, so it hands them
/// on and does not wait. `false`: enough, and the tracing event takes itself off.
pub type TraceSink = Arc<dyn Fn(&Traced) -> bool + Send + Sync>;

/// Lists of events of an organization that has them.
pub trait Events {
    /// Adds an event to the lists that connections start with, at the back of its major layer:
    /// at start-up, before there are any; or, at any time, to a list of datagrams, or to that of
    /// packets without a connection.
    ///
    /// # Errors
    /// There are, or were, sockets.
    fn register(&self, spec: EventSpec) -> Result<EventId, AlterError>;

    /// Adds an event to the list of a live connection. Packets under way finish on the list that
    /// they started with.
    ///
    /// # Errors
    /// The connection has gone, or its lists are switched off.
    fn insert(
        &self,
        id: perimeter_stack::SockId,
        end: End,
        spec: EventSpec,
    ) -> Result<EventId, AlterError>;

    /// Takes an event off the list of a live connection: from now on no packet enters it.
    ///
    /// # Errors
    /// The connection has gone, or there is no such event on its lists; or its callback has
    /// panicked, and it is off already.
    fn disable(&self, id: perimeter_stack::SockId, event: EventId) -> Result<(), AlterError>;

    /// SO_PEFON, of a connection or of those that a listener accepts later: whether packets of the connection run through its lists; off, the perimeter of
    /// its TCP layer does all, as FireEngine.
    ///
    /// # Errors
    /// The connection has gone.
    fn switch(&self, id: perimeter_stack::SockId, on: bool) -> Result<(), AlterError>;

    /// SO_SETSQP, of a connection or of those that a listener accepts later: the squeue, modulo how
    /// many there are, that a major layer runs under from the next moment on at which none of the
    /// connection's packets is between perimeters. TCP's state moves there; that of a connection
    /// which no application holds any more stays.
    ///
    /// # Errors
    /// The connection has gone.
    fn designate(
        &self,
        id: perimeter_stack::SockId,
        layer: Layer,
        squeue: u16,
    ) -> Result<(), AlterError>;
}

/// Why lists of events were not altered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AlterError {
    /// The connection has gone.
    Gone,
    /// There is no such event.
    NoEvent,
    /// Too late.
    Late,
    /// The lists are switched off.
    Off,
    /// The event's callback has panicked, and it was taken off.
    Panicked,
}
