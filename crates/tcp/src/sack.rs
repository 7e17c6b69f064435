//! The sender's scoreboard: what the peer has selectively acknowledged, what is lost, what to
//! send next (RFC 2018, RFC 2883, RFC 6675).
//!
//! What the connection calls, and when (in recovery all octet counts come from here):
//!
//! | moment | call |
//! |---|---|
//! | every acceptable ACK with SACK blocks, or while the scoreboard is not empty | [`Scoreboard::on_ack`], with `SND.UNA` already advanced |
//! | to decide on fast retransmit | [`Scoreboard::first_is_lost`] |
//! | entering recovery | [`Scoreboard::start_recovery`] |
//! | output in recovery, while `cwnd - pipe >= 1 MSS` | [`Scoreboard::next_seg`], then [`Scoreboard::on_sent`] |
//! | `SND.UNA` reaches the recovery point | [`Scoreboard::end_recovery`] |
//! | retransmission timeout | [`Scoreboard::mark_all_lost`] |

use perimeter_wire::Seq;

/// Most ranges kept: the peer can report only what we sent, but can do so as a comb.
pub const MAX_RANGES: usize = 128;

/// Duplicate acknowledgments (or their equivalent) that indicate a loss.
pub const DUP_THRESH: u32 = 3;

/// What an acknowledgment changed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SackUpdate {
    /// Octets that became SACKed with this acknowledgment.
    pub newly_sacked: u32,
    /// Octets that were SACKed before and that `SND.UNA` has now passed: already counted as
    /// delivered.
    pub passed_sacked: u32,
    /// The first block was a D-SACK (RFC 2883): this range arrived twice.
    pub dsack: Option<(Seq, Seq)>,
    /// A range that had not been retransmitted was SACKed below the highest SACKed octet:
    /// the path reorders.
    pub reordered: bool,
    /// More octets count as lost than before.
    pub newly_lost: u32,
    /// Blocks ignored because they were malformed or outside what is outstanding.
    pub ignored: u8,
}

/// Why [`Scoreboard::next_seg`] chose a range.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NextSeg {
    /// Send `len` octets from `seq` again (rules 1 and 3).
    Retransmit {
        /// First octet.
        seq: Seq,
        /// Octets, at least 1, at most one segment.
        len: u32,
    },
    /// Send new data, if there is any and the peer's window has room (rule 2). When there is
    /// not, call again with `new_data` false.
    New,
    /// The one rescue retransmission of the episode (rule 4).
    Rescue {
        /// First octet.
        seq: Seq,
        /// Octets.
        len: u32,
    },
}

/// The scoreboard.
#[derive(Clone, Debug)]
pub struct Scoreboard {
    ranges: Vec<(Seq, Seq)>,
    mss: u32,
}

impl Scoreboard {
    /// An empty scoreboard for segments of `mss` octets.
    pub fn new(mss: u32) -> Scoreboard {
        Scoreboard {
            ranges: Vec::new(),
            mss: mss.max(1),
        }
    }

    /// The segment size changed.
    pub fn set_mss(&mut self, mss: u32) {
        self.mss = mss.max(1);
    }

    /// Whether nothing is SACKed.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Octets SACKed above `SND.UNA`.
    pub fn sacked(&self) -> u32 {
        0
    }

    /// Applies one acknowledgment. `snd_una` is the value after it (the segment's ACK field
    /// when that is acceptable), `ack` the segment's ACK field itself, `blocks` its SACK
    /// blocks in their order.
    pub fn on_ack(
        &mut self,
        snd_una: Seq,
        ack: Seq,
        blocks: &[(Seq, Seq)],
        snd_nxt: Seq,
    ) -> SackUpdate {
        let _ = (snd_una, ack, blocks, snd_nxt);
        SackUpdate::default()
    }

    /// Whether the octet at `seq` is SACKed.
    pub fn is_sacked(&self, seq: Seq) -> bool {
        let _ = seq;
        false
    }

    /// IsLost(seq) of RFC 6675.
    pub fn is_lost(&self, seq: Seq) -> bool {
        let _ = seq;
        false
    }

    /// Whether the first outstanding octet is lost: time to enter recovery.
    pub fn first_is_lost(&self, snd_una: Seq) -> bool {
        self.is_lost(snd_una)
    }

    /// Octets estimated in flight (SetPipe of RFC 6675).
    pub fn pipe(&self, snd_una: Seq, snd_nxt: Seq) -> u32 {
        snd_nxt.since(snd_una)
    }

    /// Enters recovery: nothing retransmitted yet.
    pub fn start_recovery(&mut self, snd_una: Seq, snd_nxt: Seq) {
        let _ = (snd_una, snd_nxt);
    }

    /// Leaves recovery.
    pub fn end_recovery(&mut self) {}

    /// What to send next in recovery (NextSeg of RFC 6675). `new_data` says that unsent data
    /// exists and fits the peer's window. `None`: nothing.
    pub fn next_seg(&self, snd_una: Seq, snd_nxt: Seq, new_data: bool) -> Option<NextSeg> {
        let _ = (snd_una, snd_nxt, new_data);
        None
    }

    /// A retransmission of `len` octets from `seq` was sent. `snd_nxt` is `SND.NXT` then.
    pub fn on_sent(&mut self, what: NextSeg, snd_nxt: Seq) {
        let _ = (what, snd_nxt);
    }

    /// The retransmission timer fired: everything not SACKed is lost, nothing retransmitted
    /// since. The SACKed ranges are kept (Linux), unless `renege` says that the peer has
    /// dropped them: the first octet is SACKed although not acknowledged.
    pub fn mark_all_lost(&mut self, snd_una: Seq, snd_nxt: Seq) {
        let _ = (snd_una, snd_nxt);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }
}
