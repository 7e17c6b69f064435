//! What goes into and comes out of a connection.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

use perimeter_base::PktBuf;
use perimeter_wire::{SegOut, Seq, TcpFlags, TcpHdr, TcpOptions};

/// Which code took a segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// Header prediction, no data.
    PredictedAck,
    /// Header prediction, data in sequence.
    PredictedData,
    /// The complete processing of RFC 9293, section 3.10.7.
    Full,
}

/// What a segment or a timer changed, as a set.
#[derive(Copy, Clone, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Events(pub u16);

impl Events {
    /// Nothing.
    pub const NONE: Events = Events(0);
    /// The handshake completed.
    pub const CONNECTED: Events = Events(1);
    /// The peer's FIN is in order: no more data follows what has been delivered.
    pub const EOF: Events = Events(1 << 1);
    /// An error is waiting in [`take_error`](crate::Tcb::take_error).
    pub const ERROR: Events = Events(1 << 2);
    /// The connection is finished: unlink it, nothing more will come of it.
    pub const CLOSED: Events = Events(1 << 3);
    /// TIME-WAIT was entered: the buffers may be freed once read.
    pub const TIME_WAIT: Events = Events(1 << 4);
    /// Full segments vanish: they are smaller from here on (RFC 4821).
    pub const BLACK_HOLE: Events = Events(1 << 5);
    /// What the path takes was found by probing: [`Tcb::path_mtu`](crate::Tcb::path_mtu).
    pub const PATH_MTU: Events = Events(1 << 6);
    /// The connection is guarded ([`Tcb::set_guarded`](crate::Tcb::set_guarded)): nothing has become
    /// of the segment yet, and its payload is back.
    pub const GUARDED: Events = Events(1 << 7);

    /// Whether all of `other` are in the set.
    #[inline]
    pub const fn contains(self, other: Events) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in the set.
    #[inline]
    pub const fn intersects(self, other: Events) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the set is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Events {
    type Output = Events;
    #[inline]
    fn bitor(self, other: Events) -> Events {
        Events(self.0 | other.0)
    }
}

impl BitOrAssign for Events {
    #[inline]
    fn bitor_assign(&mut self, other: Events) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 5] = ["CONNECTED", "EOF", "ERROR", "CLOSED", "TIME_WAIT"];
        let mut set = f.debug_set();
        for (bit, name) in NAMES.iter().enumerate() {
            if self.0 >> bit & 1 != 0 {
                set.entry(&format_args!("{name}"));
            }
        }
        set.finish()
    }
}

/// Why a connection failed, for SO_ERROR.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TcpError {
    /// The peer refused the connection with a reset.
    Refused,
    /// The peer reset the connection.
    Reset,
    /// The peer did not answer in time.
    TimedOut,
    /// ICMP: no route to the host.
    HostUnreachable,
    /// ICMP: no route to the network.
    NetUnreachable,
    /// ICMP: the host does not speak TCP.
    ProtocolUnreachable,
    /// The application gave the connection up.
    Aborted,
    /// The interface that it went by has gone.
    NetDown,
}

impl fmt::Display for TcpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TcpError::Refused => "connection refused",
            TcpError::Reset => "connection reset by peer",
            TcpError::TimedOut => "connection timed out",
            TcpError::HostUnreachable => "no route to host",
            TcpError::NetUnreachable => "network is unreachable",
            TcpError::ProtocolUnreachable => "protocol not available",
            TcpError::Aborted => "connection aborted",
            TcpError::NetDown => "network is down",
        })
    }
}

impl core::error::Error for TcpError {}

/// An ICMP destination-unreachable message that quotes one of our segments (RFC 792, RFC
/// 1122 section 3.2.2.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// Codes 0, 6, 9, 11: the network.
    Net,
    /// Codes 1, 5, 7, 8, 10, 12 and others: the host.
    Host,
    /// Code 2: the protocol.
    Protocol,
    /// Code 3: the port.
    Port,
}

/// A reset to send.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Rst {
    /// SEG.SEQ.
    pub seq: Seq,
    /// SEG.ACK, if the segment carries one.
    pub ack: Option<Seq>,
    /// Timestamp option (RFC 7323, section 3.2, allows it on resets).
    pub ts: Option<(u32, u32)>,
}

impl Rst {
    /// A reset without options.
    pub const fn new(seq: Seq, ack: Option<Seq>) -> Rst {
        Rst { seq, ack, ts: None }
    }

    /// The reset that answers `hdr`, which carried `len` octets of payload and belongs to no
    /// connection (RFC 9293, section 3.10.7.1). `None` if the segment is itself a reset.
    pub fn answering(hdr: &TcpHdr, len: u32) -> Option<Rst> {
        if hdr.flags.contains(TcpFlags::RST) {
            return None;
        }
        if hdr.flags.contains(TcpFlags::ACK) {
            return Some(Rst::new(hdr.ack, None));
        }
        let mut end = hdr.seq + len;
        end += u32::from(hdr.flags.contains(TcpFlags::SYN));
        end += u32::from(hdr.flags.contains(TcpFlags::FIN));
        Some(Rst::new(Seq(0), Some(end)))
    }

    /// The segment.
    pub fn seg(self) -> SegOut {
        SegOut {
            seq: self.seq,
            ack: self.ack.unwrap_or(Seq(0)),
            flags: match self.ack {
                Some(_) => TcpFlags::RST | TcpFlags::ACK,
                None => TcpFlags::RST,
            },
            window: 0,
            urgent: 0,
            opts: TcpOptions {
                ts: self.ts,
                ..TcpOptions::default()
            },
        }
    }
}

/// How long a run of merged segments is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Segments.
    pub segs: u16,
    /// Octets of the first.
    pub first: u32,
    /// Octets of all.
    pub octets: u32,
}

/// What became of a segment.
#[derive(Debug)]
pub struct Input {
    /// Data in order, for the receive buffer: the segment's payload, perhaps trimmed.
    pub data: Option<PktBuf>,
    /// A reset to send. Resets are rare and can't wait for room, so they don't come from
    /// [`plan`](crate::Tcb::plan).
    pub reply: Option<Rst>,
    /// Octets of data newly acknowledged: to be released from the send buffer.
    pub acked: u32,
    /// What changed.
    pub events: Events,
    /// Which path took the segment.
    pub path: Path,
    /// More data has become in order: call [`next_in_order`](crate::Tcb::next_in_order)
    /// until it has no more.
    pub more: bool,
    /// There may be something to send: run the output loop.
    pub output: bool,
}

impl Default for Input {
    /// Nothing happened, found out by the full path.
    fn default() -> Input {
        Input {
            data: None,
            reply: None,
            acked: 0,
            events: Events::NONE,
            path: Path::Full,
            more: false,
            output: false,
        }
    }
}

/// A set of a connection's timers, by the jobs that they do.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Timers(pub u8);

impl Timers {
    /// None.
    pub const NONE: Timers = Timers(0);
    /// The delayed acknowledgment.
    pub const DELACK: Timers = Timers(1);
    /// Retransmission, with the timers that may come before its own (RFC 8985).
    pub const RETRANSMIT: Timers = Timers(1 << 1);
    /// Probing a closed window.
    pub const PERSIST: Timers = Timers(1 << 2);
    /// Keepalive.
    pub const KEEPALIVE: Timers = Timers(1 << 3);
    /// The end of TIME-WAIT, or of FIN-WAIT-2 without an application.
    pub const TWO_MSL: Timers = Timers(1 << 4);

    /// Whether any of `other` is in the set.
    #[inline]
    pub const fn intersects(self, other: Timers) -> bool {
        self.0 & other.0 != 0
    }
}

impl core::ops::BitOr for Timers {
    type Output = Timers;

    fn bitor(self, other: Timers) -> Timers {
        Timers(self.0 | other.0)
    }
}

impl core::ops::BitOrAssign for Timers {
    fn bitor_assign(&mut self, other: Timers) {
        self.0 |= other.0;
    }
}

/// What a timer did.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TimerOutcome {
    /// Which timers fired.
    pub fired: Timers,
    /// There may be something to send: run the output loop.
    pub output: bool,
    /// What changed.
    pub events: Events,
    /// A reset to send.
    pub reply: Option<Rst>,
}

/// What the send buffer holds, as [`plan`](crate::Tcb::plan) needs to know it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    /// Octets in the buffer, counted from SND.UNA: sent and unsent.
    pub len: u32,
    /// The application has said that more follows at once (MSG_MORE): hold a partial last
    /// segment back as if corked.
    pub more_coming: bool,
    /// Octets at the end that no push follows yet: those written with the announcement that
    /// more comes. PSH marks the end of what is before them.
    pub unpushed: u32,
}

/// A segment to send, or several that follow each other, the last of which may be shorter than the
/// others: a large segment.
#[derive(Copy, Clone, Debug)]
pub struct SegPlan {
    /// The header. Of a large segment: the first one's, but with the flags of the last.
    pub seg: SegOut,
    /// Where its payload starts in the send buffer, in octets from SND.UNA.
    pub off: u32,
    /// Octets of payload, of all together.
    pub len: u32,
    /// How many segments this is.
    pub segs: u16,
    /// Octets of payload of each but the last. Says nothing where there is one only.
    pub size: u16,
}

impl SegPlan {
    /// One segment.
    pub fn one(seg: SegOut, off: u32, len: u32) -> SegPlan {
        SegPlan {
            seg,
            off,
            len,
            segs: 1,
            size: 0,
        }
    }

    /// Segment `i` of a large one, as if it had been planned by itself.
    #[inline]
    pub fn segment(&self, i: u16) -> SegPlan {
        let from = u32::from(self.size) * u32::from(i);
        let mut seg = self.seg;
        seg.seq += from;
        let mut len = self.len - from;
        if i + 1 < self.segs {
            seg.flags = TcpFlags::ACK;
            len = self.size.into();
        }
        SegPlan::one(seg, self.off + from, len)
    }
}

/// How much a large segment may hold.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Large {
    /// Octets of payload.
    pub octets: u32,
    /// Segments.
    pub segs: u16,
}

/// What a connection has sent again for a while.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Repeats {
    /// Segments sent again, probes among them.
    pub segments: u32,
    /// Tail loss probes (RFC 8985, section 7), new data or sent again.
    pub probes: u16,
    /// Probes of the path's MTU, which are new data (RFC 4821).
    pub mtu_probes: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_answer_segments_without_a_connection() {
        let hdr = |flags: TcpFlags| TcpHdr {
            seq: Seq(u32::MAX),
            ack: Seq(77),
            flags,
            ..TcpHdr::default()
        };
        let syn = TcpFlags::SYN;
        let ack = TcpFlags::ACK;
        let table = [
            (syn, 0, Some(Rst::new(Seq(0), Some(Seq(0))))),
            (syn, 5, Some(Rst::new(Seq(0), Some(Seq(5))))),
            (TcpFlags::FIN, 1, Some(Rst::new(Seq(0), Some(Seq(1))))),
            (ack, 9, Some(Rst::new(Seq(77), None))),
            (syn | ack, 0, Some(Rst::new(Seq(77), None))),
            (TcpFlags::RST, 0, None),
            (TcpFlags::RST | ack, 0, None),
        ];
        for (flags, len, rst) in table {
            assert_eq!(Rst::answering(&hdr(flags), len), rst, "{flags:?} {len}");
        }
    }

    #[test]
    fn events_print_by_name() {
        let e = Events::EOF | Events::TIME_WAIT;
        assert_eq!(format!("{e:?}"), "{EOF, TIME_WAIT}");
    }
}
