//! Lock classes and their order, and the classes of protocol work: declared once, here.

/// A class of locks. Every lock belongs to one; results are reported by class.
///
/// The discriminant is the level. A thread may take a lock only when every lock that it holds
/// has a lower level, or an equal one where [`LockClass::nests_with_itself`] says so. Debug
/// builds and the virtual platform check it at every acquisition.
///
/// ```
/// use perimeter_sync::{Guards, LockClass};
///
/// // Results name classes.
/// let group = LockClass::named("group").ok_or("there is none of that name")?;
/// assert_eq!((group.name(), group.guards()), ("group", Some(Guards::Group)));
/// // Who holds a group's lock may take a connection's, and not the other way round.
/// assert!(group.level() < LockClass::Connection.level() && !group.nests_with_itself());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum LockClass {
    /// Rare control operations: ports, listeners, interfaces, start and stop.
    Control = 0,
    /// Device side of a receive queue: polling it.
    NicRx = 1,
    /// `msgp`: the global connection table (Willmann et al., section 3.1).
    ConnHashtable = 2,
    /// `connp-l`: one group of connections; `up:shared`: the whole stack.
    Group = 3,
    /// FireEngine and PEF: an squeue's queue and flags (never held while processing).
    Squeue = 4,
    /// `msgp`: one connection's TCP state.
    Connection = 5,
    /// One connection's send buffer.
    Sndbuf = 6,
    /// One connection's receive buffer.
    Rcvbuf = 7,
    /// A listener's queue of accepted connections.
    Listener = 8,
    /// The route table.
    RouteHashtable = 9,
    /// One route.
    Route = 10,
    /// Neighbour (ARP) cache.
    Neighbour = 11,
    /// Device side of a transmit queue: the doorbell.
    NicTx = 12,
    /// Descriptor ring of a transmit queue.
    TxRing = 13,
    /// `msgp:wake=inside`: one for all who wake sleepers (Willmann et al., section 5.1).
    Scheduler = 14,
    /// A poller's ready list.
    Poller = 15,
    /// A message queue of the platform, and the insides of a device. Always innermost.
    Leaf = 16,
}

/// What locks of a class protect of the protocol.
///
/// ```
/// use perimeter_sync::{Guards, LockClass};
///
/// // Where connections wait for each other, and where TCP runs.
/// let [shared, around]: [fn(Guards) -> bool; 2] = [Guards::is_shared, Guards::is_around_tcp];
/// let with = |what: fn(Guards) -> bool| {
///     let all = LockClass::ALL.into_iter().filter(move |c| c.guards().is_some_and(what));
///     all.map(LockClass::name).collect::<Vec<_>>()
/// };
/// assert_eq!(with(shared), ["conn_hashtable", "group", "squeue"]);
/// assert_eq!(with(around), ["group", "connection"]);
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Guards {
    /// A table of all connections.
    Table,
    /// Many connections whole.
    Group,
    /// The queue to where many connections are.
    Queue,
    /// The TCP state of one connection.
    Connection,
    /// Data of a socket on its way to or from the application.
    Socket,
    /// IP's tables.
    Ip,
    /// Queues of devices.
    Driver,
}

impl Guards {
    /// Whether connections meet at such a lock.
    pub const fn is_shared(self) -> bool {
        matches!(self, Guards::Table | Guards::Group | Guards::Queue)
    }

    /// Whether such a lock is held while TCP runs: the connection's own, or its group's.
    pub const fn is_around_tcp(self) -> bool {
        matches!(self, Guards::Connection | Guards::Group)
    }
}

impl LockClass {
    /// All classes, in order of level.
    pub const ALL: [LockClass; 17] = [
        LockClass::Control,
        LockClass::NicRx,
        LockClass::ConnHashtable,
        LockClass::Group,
        LockClass::Squeue,
        LockClass::Connection,
        LockClass::Sndbuf,
        LockClass::Rcvbuf,
        LockClass::Listener,
        LockClass::RouteHashtable,
        LockClass::Route,
        LockClass::Neighbour,
        LockClass::NicTx,
        LockClass::TxRing,
        LockClass::Scheduler,
        LockClass::Poller,
        LockClass::Leaf,
    ];

    /// The level: locks are taken in ascending order.
    pub const fn level(self) -> u8 {
        self as u8
    }

    /// Whether two locks of this class may be held at once. None may today.
    pub const fn nests_with_itself(self) -> bool {
        false
    }

    /// What its locks protect of the protocol; `None`: nothing of it.
    pub const fn guards(self) -> Option<Guards> {
        Some(match self {
            LockClass::ConnHashtable => Guards::Table,
            LockClass::Group => Guards::Group,
            LockClass::Squeue => Guards::Queue,
            LockClass::Connection => Guards::Connection,
            LockClass::Sndbuf | LockClass::Rcvbuf | LockClass::Listener => Guards::Socket,
            LockClass::RouteHashtable | LockClass::Route | LockClass::Neighbour => Guards::Ip,
            LockClass::NicRx | LockClass::NicTx | LockClass::TxRing => Guards::Driver,
            LockClass::Control | LockClass::Scheduler | LockClass::Poller | LockClass::Leaf => {
                return None;
            }
        })
    }

    /// The class of that [name](LockClass::name).
    pub fn named(name: &str) -> Option<LockClass> {
        LockClass::ALL.into_iter().find(|c| c.name() == name)
    }

    /// The name in results.
    pub const fn name(self) -> &'static str {
        match self {
            LockClass::Control => "control",
            LockClass::NicRx => "nic_rx",
            LockClass::ConnHashtable => "conn_hashtable",
            LockClass::Group => "group",
            LockClass::Squeue => "squeue",
            LockClass::Connection => "connection",
            LockClass::Sndbuf => "sndbuf",
            LockClass::Rcvbuf => "rcvbuf",
            LockClass::Listener => "listener",
            LockClass::RouteHashtable => "route_hashtable",
            LockClass::Route => "route",
            LockClass::Neighbour => "neighbour",
            LockClass::NicTx => "nic_tx",
            LockClass::TxRing => "tx_ring",
            LockClass::Scheduler => "scheduler",
            LockClass::Poller => "poller",
            LockClass::Leaf => "leaf",
        }
    }
}

/// What a lock has seen. A lock is *contended* when its first attempt fails because another
/// thread has it; recursion is not contention, a success after spinning is.
///
/// ```
/// use perimeter_sync::{Lock, LockClass, LockStats, Native, Platform};
///
/// let lock = Native::default().lock(LockClass::Leaf, 0);
/// *lock.lock() += 1;
/// let earlier = lock.stats();
/// *lock.lock() += 1;
/// assert_eq!(lock.stats().since(earlier).acquisitions, 1);
///
/// let mut all = LockStats::default();
/// all.add(earlier);
/// all.add(lock.stats());
/// assert_eq!((all.acquisitions, all.contended), (3, 0));
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStats {
    /// Successful acquisitions.
    pub acquisitions: u64,
    /// Acquisitions whose first attempt failed.
    pub contended: u64,
    /// Time spent waiting in contended acquisitions, ns.
    pub wait_ns: u64,
    /// Time held, ns: measured on a sample of acquisitions and scaled up.
    pub hold_ns: u64,
}

impl LockStats {
    /// Adds `other` to this.
    pub fn add(&mut self, other: LockStats) {
        self.acquisitions += other.acquisitions;
        self.contended += other.contended;
        self.wait_ns += other.wait_ns;
        self.hold_ns += other.hold_ns;
    }

    /// What was counted since `earlier`.
    pub fn since(self, earlier: LockStats) -> LockStats {
        LockStats {
            acquisitions: self.acquisitions.saturating_sub(earlier.acquisitions),
            contended: self.contended.saturating_sub(earlier.contended),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
            hold_ns: self.hold_ns.saturating_sub(earlier.hold_ns),
        }
    }
}

/// A class of protocol work, for [`crate::Platform::charge`]: free on the machine, costed from
/// a table on virtual cores.
///
/// ```
/// use perimeter_sync::{Layer, Work};
///
/// // What is charged to TCP, by the names in records.
/// let of_tcp = Work::ALL.into_iter().filter(|w| w.layer() == Some(Layer::Tcp));
/// let names: Vec<&str> = of_tcp.map(Work::name).collect();
/// assert_eq!(names, ["tcp_fast", "tcp_slow", "tcp_output", "timer"]);
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Work {
    /// One frame taken from a receive queue and parsed.
    RxFrame = 0,
    /// One connection lookup.
    Lookup,
    /// One segment through header prediction.
    TcpFast,
    /// One segment through full TCP input.
    TcpSlow,
    /// One segment emitted.
    TcpOutput,
    /// One timer run.
    Timer,
    /// One socket call.
    SockCall,
    /// Bytes copied.
    Copy,
    /// Bytes checksummed.
    Checksum,
    /// One doorbell.
    Doorbell,
    /// One frame handled by an ideal peer.
    Peer,
    /// Bytes of frames that an ideal peer has made.
    PeerBytes,
    /// One packet or message queued for another thread, or for another turn of one's own:
    /// filling it in. Locks, queue operations and wakes cost on their own.
    HandOver,
    /// One packet or call put into the inbox of a protocol thread, which every packet and call
    /// goes through there: as [`Work::HandOver`].
    Mail,
    /// One look of a thread at its poller, or at the devices that it serves, whether it finds
    /// something or not.
    Poll,
    /// One segment placed in a transmit ring by IP in a turn of its own; where it has none, that
    /// is part of [`Work::TcpOutput`].
    IpOutput,
    /// News of a connection taken by its socket layer in a turn of its own; where it has none, that
    /// is part of TCP's work.
    SockInput,
    /// Anything else, in nanoseconds.
    Nanos,
}

/// What cache lines belong to that go from core to core, for [`crate::Platform::touch`]. How many
/// lines each has is the platform's affair.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Touched {
    /// TCP state of a connection, with what the stack keeps beside it.
    Tcb,
    /// The send side of a socket: its buffer, and who waits for room.
    Snd,
    /// The receive side of a socket: its buffer, and who waits for data.
    Rcv,
    /// A line of payload on its way to the application.
    Payload,
    /// A message in a queue between threads, and what it carries.
    Message,
    /// A descriptor of a transmit ring.
    Descriptor,
    /// All descriptors that were placed in a transmit ring since who serves it looked at it last: a
    /// kernel's driver frees them then. They are on the same tag as [`Touched::Descriptor`].
    Completion,
    /// The flag of an event, and who waits there.
    Event,
    /// What a thread has for itself and needs to go on: its stack, its registers in memory, its
    /// structures. A platform that has schedulers touches them, nobody else.
    Thread,
    /// An ideal peer's state of a connection.
    PeerFlow,
    /// A frame on its way from an ideal peer to a receive queue.
    PeerFrame,
    /// What a lock of that class protects and nothing else here stands for: a table's buckets, a
    /// list's head. The lock's own word is not in it.
    Behind(LockClass),
}

impl Touched {
    /// Bytes of a line of payload.
    pub const LINE: usize = 64;

    /// How many kinds there are.
    pub const COUNT: usize = 11 + LockClass::ALL.len();

    /// All of them, in the order of [`Touched::index`].
    pub fn all() -> impl Iterator<Item = Touched> {
        use Touched::{
            Behind, Completion, Descriptor, Event, Message, Payload, PeerFlow, PeerFrame, Rcv, Snd,
            Tcb, Thread,
        };
        let plain = [
            Tcb, Snd, Rcv, Payload, Message, Descriptor, Event, Thread, Completion,
        ];
        let peer = [PeerFlow, PeerFrame];
        plain
            .into_iter()
            .chain(peer)
            .chain(LockClass::ALL.into_iter().map(Behind))
    }

    /// Its place among all, from 0.
    pub const fn index(self) -> usize {
        match self {
            Touched::Tcb => 0,
            Touched::Snd => 1,
            Touched::Rcv => 2,
            Touched::Payload => 3,
            Touched::Message => 4,
            Touched::Descriptor => 5,
            Touched::Event => 6,
            Touched::Thread => 7,
            Touched::Completion => 8,
            Touched::PeerFlow => 9,
            Touched::PeerFrame => 10,
            Touched::Behind(class) => 11 + class.level() as usize,
        }
    }

    /// The name in tables of costs.
    pub const fn name(self) -> &'static str {
        match self {
            Touched::Tcb => "tcb",
            Touched::Snd => "snd",
            Touched::Rcv => "rcv",
            Touched::Payload => "payload",
            Touched::Message => "message",
            Touched::Descriptor => "descriptor",
            Touched::Completion => "completion",
            Touched::Event => "event",
            Touched::Thread => "thread",
            Touched::PeerFlow => "peer_flow",
            Touched::PeerFrame => "peer_frame",
            Touched::Behind(class) => class.name(),
        }
    }
}

/// A major layer of a connection.
///
/// ```
/// use perimeter_sync::{Layer, Work};
///
/// // Which layer runs, by the work that it declares.
/// assert_eq!(Work::RxFrame.layer(), Some(Layer::Ip));
/// assert_eq!(Work::SockCall.layer(), Some(Layer::Socket));
/// assert!(Layer::Ip < Layer::Tcp && Layer::Tcp < Layer::Socket, "from the device upwards");
/// ```
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Layer {
    /// From the device to the connection's table.
    Ip,
    /// The protocol.
    Tcp,
    /// The socket: calls of the application.
    Socket,
}

impl Work {
    /// How many classes there are.
    pub const COUNT: usize = Work::Nanos as usize + 1;

    /// All of them, in the order of their numbers.
    pub const ALL: [Work; Work::COUNT] = [
        Work::RxFrame,
        Work::Lookup,
        Work::TcpFast,
        Work::TcpSlow,
        Work::TcpOutput,
        Work::Timer,
        Work::SockCall,
        Work::Copy,
        Work::Checksum,
        Work::Doorbell,
        Work::Peer,
        Work::PeerBytes,
        Work::HandOver,
        Work::Mail,
        Work::Poll,
        Work::IpOutput,
        Work::SockInput,
        Work::Nanos,
    ];

    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Work::RxFrame => "rx_frame",
            Work::Lookup => "lookup",
            Work::TcpFast => "tcp_fast",
            Work::TcpSlow => "tcp_slow",
            Work::TcpOutput => "tcp_output",
            Work::Timer => "timer",
            Work::SockCall => "sock_call",
            Work::Copy => "copy",
            Work::Checksum => "checksum",
            Work::Doorbell => "doorbell",
            Work::Peer => "peer",
            Work::PeerBytes => "peer_bytes",
            Work::HandOver => "hand_over",
            Work::Mail => "mail",
            Work::Poll => "poll",
            Work::IpOutput => "ip_output",
            Work::SockInput => "sock_input",
            Work::Nanos => "nanos",
        }
    }

    /// The layer whose running this work shows; `None` for what belongs to none, or to
    /// different ones in different organizations (the lookup).
    pub const fn layer(self) -> Option<Layer> {
        match self {
            Work::RxFrame | Work::IpOutput => Some(Layer::Ip),
            Work::TcpFast | Work::TcpSlow | Work::TcpOutput | Work::Timer => Some(Layer::Tcp),
            Work::SockCall | Work::SockInput => Some(Layer::Socket),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_follow_the_table() {
        for (i, c) in LockClass::ALL.iter().enumerate() {
            assert_eq!(usize::from(c.level()), i, "{}", c.name());
        }
    }

    #[test]
    fn numbers_follow_the_lists() {
        for (i, w) in Work::ALL.into_iter().enumerate() {
            assert_eq!(w as usize, i, "{}", w.name());
        }
        let touched: Vec<_> = Touched::all().collect();
        assert_eq!(touched.len(), Touched::COUNT);
        for (i, t) in touched.into_iter().enumerate() {
            assert_eq!(t.index(), i, "{}", t.name());
        }
    }
}
