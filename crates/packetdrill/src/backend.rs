//! What the adapter needs from a stack.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use perimeter_base::Time;

/// An `errno` value, as the caller of a socket call will see it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// What a call gives.
pub type Result<T> = std::result::Result<T, Errno>;

impl From<std::io::Error> for Errno {
    /// The error's own number where it has one, else the number that POSIX uses for its kind.
    fn from(error: std::io::Error) -> Errno {
        use std::io::ErrorKind as K;
        Errno(error.raw_os_error().unwrap_or(match error.kind() {
            K::WouldBlock => libc::EAGAIN,
            K::AddrInUse => libc::EADDRINUSE,
            K::AddrNotAvailable => libc::EADDRNOTAVAIL,
            K::AlreadyExists => libc::EEXIST,
            K::BrokenPipe => libc::EPIPE,
            K::ConnectionAborted => libc::ECONNABORTED,
            K::ConnectionRefused => libc::ECONNREFUSED,
            K::ConnectionReset => libc::ECONNRESET,
            K::HostUnreachable => libc::EHOSTUNREACH,
            K::NetworkDown => libc::ENETDOWN,
            K::NetworkUnreachable => libc::ENETUNREACH,
            K::Interrupted => libc::EINTR,
            K::NotConnected => libc::ENOTCONN,
            K::OutOfMemory => libc::ENOMEM,
            K::PermissionDenied => libc::EACCES,
            K::TimedOut => libc::ETIMEDOUT,
            K::Unsupported => libc::EOPNOTSUPP,
            K::ResourceBusy => libc::EBUSY,
            K::Deadlock => libc::EDEADLK,
            _ => libc::EINVAL,
        }))
    }
}

/// A backend's name for one of its sockets; never used again after `close`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(pub u64);

/// What a call does when it can't finish now.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Fail with `EAGAIN` (`connect`: `EINPROGRESS`, then `EALREADY`), having queued or
    /// delivered what it could.
    NoWait,
    /// Sleep in the kernel until it can. Only used when [`Backend::sleeps`], and never on the
    /// thread that drives the clock.
    Sleep,
}

/// An IP packet that the stack sent, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// From the IP header on, checksums complete.
    pub packet: Vec<u8>,
    /// When it left the stack.
    pub at: Time,
}

/// Flags of a receive call. `Default` is a plain `read`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvFlags {
    /// Leave the bytes where they are.
    pub peek: bool,
    /// Throw the bytes away, the buffers are only a length (`MSG_TRUNC` on a TCP socket).
    pub discard: bool,
    /// Urgent byte.
    pub oob: bool,
}

/// Flags of a send call. `Default` is a plain `write`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// More follows soon: hold back a last short segment, as under `TCP_CORK`.
    pub more: bool,
    /// The last byte is urgent.
    pub oob: bool,
    /// End of record: the next call's bytes don't join the last segment.
    pub eor: bool,
}

/// What a socket is ready for.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read or an accept would not block (data, end of stream, error).
    pub readable: bool,
    /// A write would not block.
    pub writable: bool,
    /// An error waits to be read by `SO_ERROR`.
    pub error: bool,
    /// Both directions are shut.
    pub hang_up: bool,
    /// The peer has sent its FIN, or we shut our receiving side.
    pub read_closed: bool,
    /// Urgent data is there.
    pub urgent: bool,
}

/// Options with a number, a time or a name for value. Units are those of Linux's option.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Opt {
    /// `SO_REUSEADDR`: boolean.
    ReuseAddr,
    /// `SO_REUSEPORT`: boolean.
    ReusePort,
    /// `SO_KEEPALIVE`: boolean.
    KeepAlive,
    /// `SO_OOBINLINE`: boolean.
    OobInline,
    /// `SO_SNDBUF`: bytes of payload. The shell does Linux's doubling.
    SendBuffer,
    /// `SO_RCVBUF`: bytes of payload. The shell does Linux's doubling.
    ReceiveBuffer,
    /// `SO_RCVLOWAT`: bytes.
    ReceiveLowat,
    /// `TCP_NODELAY`: boolean.
    NoDelay,
    /// `TCP_CORK`: boolean.
    Cork,
    /// `TCP_MAXSEG`: bytes. Reads as the effective MSS once connected.
    MaxSegment,
    /// `TCP_USER_TIMEOUT`: milliseconds.
    UserTimeout,
    /// `TCP_KEEPIDLE`: seconds.
    KeepIdle,
    /// `TCP_KEEPINTVL`: seconds.
    KeepInterval,
    /// `TCP_KEEPCNT`: probes.
    KeepCount,
    /// `TCP_QUICKACK`: boolean.
    QuickAck,
    /// `TCP_DEFER_ACCEPT`: seconds.
    DeferAccept,
    /// `TCP_SYNCNT`: retransmissions.
    SynCount,
    /// `TCP_LINGER2`: seconds in FIN_WAIT_2.
    Linger2,
    /// `TCP_WINDOW_CLAMP`: bytes.
    WindowClamp,
    /// `TCP_NOTSENT_LOWAT`: bytes.
    NotSentLowat,
    /// `TCP_INQ`: boolean.
    Inq,
    /// `IP_TOS`: the whole octet.
    Tos,
    /// `IP_TTL`.
    Ttl,
    /// `IP_MTU_DISCOVER`: Linux's `IP_PMTUDISC_*`.
    MtuDiscover,
    /// `IP_RECVERR`: boolean.
    RecvErr,
}

/// Sizes and counts that `SO_MEMINFO` and the queue ioctls report, in bytes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Received, not yet read by the application, in order.
    pub readable: u32,
    /// Memory that the receive side pins.
    pub receive_pinned: u32,
    /// Limit of the receive side.
    pub receive_limit: u32,
    /// In the send queue, sent or not, not acknowledged (counting our FIN).
    pub unacknowledged: u32,
    /// In the send queue, never sent.
    pub unsent: u32,
    /// Memory that the send side pins.
    pub send_pinned: u32,
    /// Limit of the send side.
    pub send_limit: u32,
}

/// States of congestion control in Linux's numbering.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CaState {
    /// Nothing unusual.
    #[default]
    Open = 0,
    /// Duplicate ACKs or SACKs, nothing taken for lost yet.
    Disorder = 1,
    /// The window is being reduced after ECN or local congestion.
    Cwr = 2,
    /// Fast recovery.
    Recovery = 3,
    /// Recovery after a retransmission timeout.
    Loss = 4,
}

/// States of a connection in Linux's numbering.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are RFC 9293's")]
pub enum State {
    Established = 1,
    SynSent = 2,
    SynReceived = 3,
    FinWait1 = 4,
    FinWait2 = 5,
    TimeWait = 6,
    #[default]
    Closed = 7,
    CloseWait = 8,
    LastAck = 9,
    Listen = 10,
    Closing = 11,
}

/// What a stack knows about a connection, in plain units; the shell lays it out as Linux's
/// `struct tcp_info`. A backend leaves at zero what its stack doesn't measure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "named after tcp_info's fields, units said where Linux's differ"
)]
pub struct Info {
    pub state: State,
    pub ca_state: CaState,
    /// Retransmissions in a row of the oldest segment, by timeout.
    pub retransmits: u8,
    /// Unanswered window or keepalive probes.
    pub probes: u8,
    /// Exponent of the timer's backoff.
    pub backoff: u8,
    pub timestamps: bool,
    pub sack: bool,
    pub window_scaling: bool,
    pub ecn: bool,
    pub snd_wscale: u8,
    pub rcv_wscale: u8,
    pub rto: Duration,
    pub ato: Duration,
    /// Bytes, without TCP options.
    pub snd_mss: u32,
    /// Bytes, estimate of the peer's segments.
    pub rcv_mss: u32,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Segments of these that were SACKed (without SACK: duplicate ACKs).
    pub sacked: u32,
    /// Segments taken for lost.
    pub lost: u32,
    /// Retransmitted segments in flight.
    pub retrans: u32,
    pub since_data_sent: Duration,
    pub since_data_received: Duration,
    pub since_ack_received: Duration,
    pub pmtu: u32,
    /// Bytes.
    pub rcv_ssthresh: u32,
    pub rtt: Duration,
    pub rttvar: Duration,
    /// Segments; `None` before the first reduction.
    pub snd_ssthresh: Option<u32>,
    /// Segments.
    pub snd_cwnd: u32,
    pub advmss: u32,
    pub reordering: u32,
    pub rcv_rtt: Duration,
    pub rcv_space: u32,
    pub total_retrans: u32,
    /// Bytes per second; `None` when unpaced.
    pub pacing_rate: Option<u64>,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub notsent_bytes: u32,
    /// `None` before the first sample.
    pub min_rtt: Option<Duration>,
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    /// Bytes per second.
    pub delivery_rate: u64,
    pub delivery_rate_app_limited: bool,
    pub busy_time: Duration,
    pub rwnd_limited: Duration,
    pub sndbuf_limited: Duration,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub dsack_dups: u32,
    pub reord_seen: u32,
    pub rcv_ooopack: u32,
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    pub total_rto: u16,
    pub total_rto_recoveries: u16,
    pub total_rto_time: Duration,
}

/// A stack as the adapter sees it: sockets on one side, packets on the other, and a clock that
/// stands still until told.
///
/// # Threads
/// Calls come from two threads. The *driver* (which made the backend) calls everything; the
/// other one makes socket calls only. Both may be inside at once. The driver never passes
/// [`Mode::Sleep`]: while it waits, nobody moves the clock, so the shell moves it instead.
///
/// # Time
/// Nothing happens by itself: a packet comes in by [`Backend::inject`], time passes by
/// [`Backend::advance`], and both return only when the stack has done all that follows from it,
/// including what threads of its own do.
pub trait Backend: Send + Sync {
    /// The virtual time.
    fn now(&self) -> Time;

    /// When the stack next has something to do, if nothing else comes: the earliest timer.
    fn next_deadline(&self) -> Option<Time>;

    /// Moves the clock to `to` and does what is due until then, in order. The shell never goes
    /// past [`Backend::next_deadline`] in one step. A `to` in the past does nothing.
    fn advance(&self, to: Time);

    /// Takes a raw IP packet in, as from the wire.
    fn inject(&self, packet: &[u8]);

    /// The oldest packet that the stack sent and nobody took yet.
    fn take_packet(&self) -> Option<Emitted>;

    /// Whether [`Mode::Sleep`] is implemented. Otherwise the shell puts callers to sleep itself,
    /// by calling with [`Mode::NoWait`] again whenever something happened.
    fn sleeps(&self) -> bool {
        false
    }

    /// Returns once every call made with [`Mode::Sleep`] either sleeps or has its result, and
    /// says how many sleep.
    fn settle(&self) -> usize {
        0
    }

    /// A new TCP socket, for IPv6 if `v6`.
    fn socket(&self, v6: bool) -> Result<SocketId>;

    /// Sets the local address; port 0 asks for any.
    fn bind(&self, socket: SocketId, addr: SocketAddr) -> Result<()>;

    /// Listens with room for `backlog` connections.
    fn listen(&self, socket: SocketId, backlog: u32) -> Result<()>;

    /// The next established connection and its peer.
    fn accept(&self, socket: SocketId, mode: Mode) -> Result<(SocketId, SocketAddr)>;

    /// Connects. With [`Mode::NoWait`]: `EINPROGRESS` when the SYN is out, `EALREADY` while it
    /// waits, then once `Ok` or the error, `EISCONN` afterwards.
    fn connect(&self, socket: SocketId, addr: SocketAddr, mode: Mode) -> Result<()>;

    /// Received bytes into `bufs`, in order; 0 is the end of the stream.
    fn recv(
        &self,
        socket: SocketId,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        mode: Mode,
    ) -> Result<usize>;

    /// Queues bytes of `bufs`, as many as there is room for; with [`Mode::Sleep`] all of them,
    /// unless an error comes between.
    fn send(
        &self,
        socket: SocketId,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
        mode: Mode,
    ) -> Result<usize>;

    /// Shuts one direction or both.
    fn shutdown(&self, socket: SocketId, how: Shutdown) -> Result<()>;

    /// Gives the socket up. With [`Mode::NoWait`] and `SO_LINGER` set, `EAGAIN` means that the
    /// close is under way and the call is to be made again; any other result ends the id's life.
    fn close(&self, socket: SocketId, mode: Mode) -> Result<()>;

    /// What the socket is ready for now.
    fn readiness(&self, socket: SocketId) -> Readiness;

    /// Counts arrivals on the (readable, writable) side, for edge-triggered epoll: an edge is a
    /// change of the count, though the socket was ready before.
    fn activity(&self, _socket: SocketId) -> (u64, u64) {
        (0, 0)
    }

    /// Address of our end, if it has one.
    fn local_addr(&self, socket: SocketId) -> Result<SocketAddr>;

    /// Address of the other end, if connected.
    fn peer_addr(&self, socket: SocketId) -> Result<SocketAddr>;

    /// Sets an option; `ENOPROTOOPT` when the stack has no such.
    fn set_option(&self, socket: SocketId, opt: Opt, value: i32) -> Result<()>;

    /// Reads an option; `ENOPROTOOPT` when the stack has no such.
    fn option(&self, socket: SocketId, opt: Opt) -> Result<i32>;

    /// `SO_LINGER`: `None` is off.
    fn set_linger(&self, socket: SocketId, linger: Option<Duration>) -> Result<()>;

    /// `SO_LINGER`: `None` is off.
    fn linger(&self, socket: SocketId) -> Result<Option<Duration>>;

    /// `TCP_CONGESTION`.
    fn set_congestion(&self, socket: SocketId, name: &str) -> Result<()>;

    /// `TCP_CONGESTION`.
    fn congestion(&self, socket: SocketId) -> Result<String>;

    /// Takes the pending error, as `SO_ERROR` does; `None` when there is none.
    fn take_error(&self, socket: SocketId) -> Option<Errno>;

    /// What the stack knows of the connection.
    fn info(&self, socket: SocketId) -> Result<Info>;

    /// What the socket's buffers hold.
    fn memory(&self, socket: SocketId) -> Result<Memory>;
}
