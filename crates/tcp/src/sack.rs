//! The sender's scoreboard: what the peer has selectively acknowledged, what is lost, what to
//! send next (RFC 2018, RFC 2883, RFC 6675).
//!
//! What the connection calls, and when. `snd_nxt` is everywhere SND.MAX, the highest
//! sequence number sent, also while older data is being sent again:
//!
//! | moment | call |
//! |---|---|
//! | every acceptable ACK with SACK blocks; while the scoreboard exists, every other ACK that moves `SND.UNA` | [`Scoreboard::on_ack`], with `SND.UNA` already moved |
//! | to decide on fast retransmit | [`Scoreboard::first_is_lost`] (or three duplicate ACKs) |
//! | entering recovery | [`Scoreboard::start_recovery`] |
//! | in recovery, while `cwnd - pipe >= 1 MSS` | [`Scoreboard::next_seg`], then [`Scoreboard::on_sent`] |
//! | `SND.UNA` reaches the recovery point | [`Scoreboard::end_recovery`] |
//! | retransmission timeout | [`Scoreboard::mark_all_lost`] |
//!
//! Losses are what RFC 6675 says, with one refinement that Linux shows too (RACK with an
//! empty reordering window, RFC 8985, section 6.2): until the path was seen to reorder, three
//! SACKed segments anywhere mark every hole below the highest SACKed octet. Afterwards the
//! threshold is the distance by which segments were seen to be late.
//!
//! Every operation is bounded by [`MAX_RANGES`], whatever the peer sends.

use alloc::vec::Vec;

use perimeter_wire::Seq;

/// Most ranges kept. A block that would need another one is ignored, which costs at most a
/// needless retransmission: SACK is advice (RFC 2018, section 8).
pub const MAX_RANGES: usize = 128;

/// Duplicate acknowledgments (or their equivalent) that indicate a loss.
pub const DUP_THRESH: u32 = 3;

/// Largest reordering distance, in segments, that the threshold follows (Linux's
/// `tcp_max_reordering`).
const MAX_REORDERING: u32 = 300;

/// What an acknowledgment changed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SackUpdate {
    /// Octets that left the network according to this acknowledgment: newly acknowledged ones
    /// that were not SACKed before, and newly SACKed ones. What [`crate::cc::Prr::on_ack`]
    /// wants.
    pub delivered: u32,
    /// Octets that became SACKed with this acknowledgment.
    pub newly_sacked: u32,
    /// The first block was a D-SACK (RFC 2883): this range arrived twice.
    pub dsack: Option<(Seq, Seq)>,
    /// Data that had not been sent again arrived below the highest SACKed octet: the path
    /// reorders.
    pub reordered: bool,
    /// More octets count as lost than before.
    pub newly_lost: bool,
    /// Blocks ignored because they were malformed, outside what is outstanding, or one range
    /// too many.
    pub ignored: u8,
}

/// What to send next in recovery.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NextSeg {
    /// Send `len` octets from `seq` again (rules 1 and 3 of NextSeg).
    Retransmit {
        /// First octet.
        seq: Seq,
        /// Octets: at least 1, at most one segment.
        len: u32,
    },
    /// Send new data (rule 2).
    New,
    /// The one rescue retransmission of the episode (rule 4).
    Rescue {
        /// First octet.
        seq: Seq,
        /// Octets: at least 1, at most one segment.
        len: u32,
    },
}

/// The scoreboard.
#[derive(Clone, Debug)]
pub struct Scoreboard {
    /// SACKed ranges, in order, disjoint, not adjacent, within `una..snd_nxt`.
    ranges: Vec<(Seq, Seq)>,
    /// Octets in `ranges`.
    sacked: u32,
    mss: u32,
    una: Seq,
    /// Everything before this that is not SACKed is lost. At least `una`.
    lost_end: Seq,
    /// Everything before this that is not SACKed was sent again in this episode (one past
    /// HighRxt). At least `una`.
    high_rxt: Seq,
    /// `SND.NXT` when the segment at `una` was last sent again. Data SACKed above it left
    /// later than that segment.
    resent_at: Seq,
    /// Loss threshold in segments.
    reordering: u32,
    in_recovery: bool,
    rescued: bool,
    reordering_seen: bool,
    /// The retransmission of the segment at `una` is lost, too.
    resend: bool,
    /// Of what was sent again in this episode and is missing, the segment at `una` was the
    /// first.
    oldest: bool,
    /// Whether what is SACKed now can be what was sent again: a round trip has passed since.
    echoes: bool,
    /// What is missing below this is lost when the reordering window closes.
    window_end: Seq,
    #[cfg(test)]
    pub(crate) work: core::cell::Cell<u64>,
}

impl Scoreboard {
    /// Octets of memory pinned.
    pub fn memory(&self) -> usize {
        size_of_val(self) + self.ranges.capacity() * size_of::<(Seq, Seq)>()
    }

    /// An empty scoreboard for segments of `mss` octets. `snd_una` is SND.UNA as it was
    /// before the acknowledgment that is to be given to [`Scoreboard::on_ack`] first.
    pub fn new(mss: u32, snd_una: Seq) -> Scoreboard {
        Scoreboard {
            ranges: Vec::new(),
            sacked: 0,
            mss: mss.max(1),
            una: snd_una,
            lost_end: snd_una,
            high_rxt: snd_una,
            resent_at: snd_una,
            reordering: DUP_THRESH,
            in_recovery: false,
            rescued: false,
            reordering_seen: false,
            resend: false,
            oldest: false,
            echoes: true,
            window_end: snd_una,
            #[cfg(test)]
            work: core::cell::Cell::new(0),
        }
    }

    /// Starts with the loss threshold that an earlier scoreboard of the connection had learnt.
    pub fn set_reordering(&mut self, segs: u32) {
        self.reordering = segs.clamp(DUP_THRESH, MAX_REORDERING);
        self.reordering_seen = self.reordering > DUP_THRESH;
    }

    /// The segment size changed.
    pub fn set_mss(&mut self, mss: u32) {
        self.mss = mss.max(1);
    }

    /// Whether nothing is SACKed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Octets from SND.UNA to what is SACKed above it, or to `snd_nxt`.
    pub fn first_hole(&self, snd_nxt: Seq) -> u32 {
        self.hole_len(self.una, snd_nxt)
    }

    /// Octets SACKed above SND.UNA.
    pub fn sacked(&self) -> u32 {
        self.sacked
    }

    /// The loss threshold in segments: 3, or the reordering distance seen.
    pub fn reordering(&self) -> u32 {
        self.reordering
    }

    /// Octets counted as lost, whether sent again or not.
    pub fn lost(&self, snd_una: Seq) -> u32 {
        self.unsacked(snd_una, self.lost_end)
    }

    /// Applies one acknowledgment. `snd_una` is SND.UNA after it, `ack` the segment's ACK
    /// field (older than `snd_una` when segments overtook each other), `blocks` its SACK
    /// blocks in their order.
    pub fn on_ack(
        &mut self,
        snd_una: Seq,
        ack: Seq,
        blocks: &[(Seq, Seq)],
        snd_nxt: Seq,
    ) -> SackUpdate {
        let mut u = SackUpdate::default();
        let lost_before = self.lost_end;
        let highest = self.highest();
        self.advance(snd_una, snd_nxt, &mut u);
        let again = self.sacked_again();
        for (i, &(left, right)) in blocks.iter().enumerate() {
            if i == 0 && is_dsack(left, right, ack, blocks.get(1)) {
                u.dsack = Some((left, right));
                continue;
            }
            self.add_block(left, right, snd_nxt, highest, &mut u);
        }
        u.delivered += u.newly_sacked;
        self.update_lost();
        let resend = self.resend;
        self.check_retransmission(self.sacked_again() > again);
        u.newly_lost = self.lost_end.gt(lost_before.max(snd_una)) || (self.resend && !resend);
        u
    }

    /// Moves the left edge, dropping what the cumulative acknowledgment covers.
    fn advance(&mut self, snd_una: Seq, snd_nxt: Seq, u: &mut SackUpdate) {
        let acked = snd_una.diff(self.una);
        if acked <= 0 {
            return;
        }
        let highest = self.highest();
        let mut passed = 0;
        let mut gone = 0;
        for r in &mut self.ranges {
            if r.1.le(snd_una) {
                passed += r.1.since(r.0);
                gone += 1;
            } else {
                if r.0.lt(snd_una) {
                    passed += snd_una.since(r.0);
                    r.0 = snd_una;
                }
                break;
            }
        }
        // A hole that closed without having been sent again was only late.
        let first = self.ranges.first().map(|r| r.0);
        if let (Some(first), Some(highest)) = (first, highest)
            && self.high_rxt.le(self.una)
            && first.gt(self.una)
            && gone > 0
        {
            self.saw_reordering(highest.since(self.una), u);
        }
        self.ranges.drain(..gone);
        self.sacked -= passed;
        u.delivered = (acked as u32).saturating_sub(passed);
        self.una = snd_una;
        self.lost_end = self.lost_end.max(snd_una);
        self.resend = false;
        if self.high_rxt.gt(snd_una) {
            // When the segment now first was sent again is not recorded; it was before this.
            self.resent_at = snd_nxt;
            self.oldest = true;
        } else {
            self.high_rxt = snd_una;
            self.oldest = false;
        }
    }

    fn add_block(
        &mut self,
        left: Seq,
        right: Seq,
        snd_nxt: Seq,
        highest: Option<Seq>,
        u: &mut SackUpdate,
    ) {
        let una = self.una;
        // An acknowledgment that was overtaken may report what has since been acknowledged.
        let left = if left.lt(una) { una } else { left };
        let (l, r) = (left.since(una), right.since(una));
        if l >= r || r > snd_nxt.since(una) || right.le(una) {
            u.ignored = u.ignored.saturating_add(1);
            return;
        }
        let i = self.ranges.partition_point(|x| x.1.since(una) < l);
        let mut j = i;
        let (mut from, mut to) = (left, right);
        let mut held = 0;
        let fresh_from = match self.ranges.get(i) {
            Some(x) if x.0.le(left) => x.1,
            _ => left,
        };
        while let Some(x) = self.ranges.get(j)
            && x.0.since(una) <= r
        {
            held += x.1.since(x.0);
            from = from.min(x.0);
            to = to.max(x.1);
            j += 1;
        }
        self.count(8 + (j - i) as u64);
        if i == j {
            if self.ranges.len() == MAX_RANGES {
                u.ignored = u.ignored.saturating_add(1);
                return;
            }
            self.ranges.insert(i, (from, to));
        } else {
            self.ranges[i] = (from, to);
            self.ranges.drain(i + 1..j);
        }
        let fresh = to.since(from) - held;
        self.sacked += fresh;
        u.newly_sacked += fresh;
        if fresh > 0
            && let Some(h) = highest
            && fresh_from.lt(h)
            && fresh_from.ge(self.high_rxt)
        {
            self.saw_reordering(h.since(fresh_from), u);
        }
    }

    fn saw_reordering(&mut self, octets: u32, u: &mut SackUpdate) {
        let segs = octets.div_ceil(self.mss).min(MAX_REORDERING);
        self.reordering = self.reordering.max(segs);
        self.reordering_seen = true;
        u.reordered = true;
    }

    /// Moves `lost_end` by what is SACKed now. It never moves back within an episode.
    fn update_lost(&mut self) {
        let (mut octets, mut count) = (0u32, 0u32);
        let limit = (self.reordering - 1).saturating_mul(self.mss);
        for &(l, r) in self.ranges.iter().rev() {
            self.count(1);
            octets = octets.saturating_add(r.since(l));
            count += 1;
            if octets > limit || count >= self.reordering {
                let end = if self.reordering_seen {
                    l
                } else {
                    self.ranges.last().map_or(l, |x| x.0)
                };
                self.lost_end = self.lost_end.max(end);
                return;
            }
        }
    }

    /// Octets SACKed of what was sent again, while the segment at `una` was the first of that.
    fn sacked_again(&self) -> u32 {
        if self.oldest && self.in_recovery {
            self.sacked - self.sacked_from(self.high_rxt)
        } else {
            0
        }
    }

    /// Data that left after the segment at `una` was sent again has arrived: that
    /// retransmission is lost as well. Without this only the timer would notice. `later` says
    /// that it is data which was sent again itself: on a path that keeps the order, any of it
    /// will do (RACK with an empty reordering window); of new data it takes as much as always.
    fn check_retransmission(&mut self, later: bool) {
        if !self.in_recovery || self.resend || self.high_rxt.le(self.una) {
            return;
        }
        if later && self.echoes && !self.reordering_seen {
            self.resend = true;
            return;
        }
        let above = self.sacked_from(self.resent_at);
        if above > (self.reordering - 1).saturating_mul(self.mss) {
            self.resend = true;
        }
    }

    /// Whether the octet at `seq` is SACKed.
    pub fn is_sacked(&self, seq: Seq) -> bool {
        let i = self.first_after(seq);
        self.ranges.get(i).is_some_and(|r| r.0.le(seq))
    }

    /// IsLost(seq): not SACKed, and enough above it is.
    pub fn is_lost(&self, seq: Seq) -> bool {
        seq.ge(self.una) && seq.lt(self.lost_end) && !self.is_sacked(seq)
    }

    /// Whether the first outstanding octet is lost: time to enter recovery.
    pub fn first_is_lost(&self) -> bool {
        self.is_lost(self.una)
    }

    /// Octets estimated in flight (SetPipe of RFC 6675): those neither SACKed nor lost, and
    /// those sent again and not SACKed.
    pub fn pipe(&self, snd_nxt: Seq) -> u32 {
        let fresh = self.unsacked(self.lost_end, snd_nxt);
        let again = self.unsacked(self.una, self.high_rxt);
        let gone = if self.resend {
            self.hole_len(self.una, self.high_rxt)
        } else {
            0
        };
        fresh.saturating_add(again).saturating_sub(gone)
    }

    /// Enters recovery: the first segment is lost by definition, nothing was sent again, and
    /// recovery lasts until `snd_nxt` is acknowledged.
    pub fn start_recovery(&mut self, snd_nxt: Seq) {
        self.in_recovery = true;
        self.high_rxt = self.una;
        self.resent_at = snd_nxt;
        self.rescued = false;
        self.resend = false;
        self.oldest = false;
        let first = self.una + self.hole_len(self.una, snd_nxt);
        self.lost_end = self.lost_end.max(first);
    }

    /// Leaves recovery: nothing is lost or sent again any more. SACKed ranges stay.
    pub fn end_recovery(&mut self) {
        self.in_recovery = false;
        self.resend = false;
        self.lost_end = self.una;
        self.high_rxt = self.una;
    }

    /// One past HighRxt: what is below it and not SACKed was sent again in this episode.
    pub fn high_rxt(&self) -> Seq {
        self.high_rxt
    }

    /// Says whether the next acknowledgment can answer what was sent again last: the smallest
    /// round-trip time has passed since. Otherwise what it SACKs was late, not lost.
    pub fn expect_echoes(&mut self, possible: bool) {
        self.echoes = possible;
    }

    /// The reordering window opens for what is missing below the highest SACKed octet.
    pub fn open_window(&mut self) {
        self.window_end = self.highest().unwrap_or(self.una);
    }

    /// The reordering window closes: what it was opened for and is missing is lost.
    pub fn close_window(&mut self) {
        self.lost_end = self.lost_end.max(self.window_end);
    }

    /// What to send next in recovery (NextSeg of RFC 6675, and before its rules the segment at
    /// SND.UNA whose retransmission is lost). `new_data` says that unsent data exists and fits
    /// the peer's window. `None`: nothing.
    pub fn next_seg(&self, snd_nxt: Seq, new_data: bool) -> Option<NextSeg> {
        if self.resend {
            let len = self.hole_len(self.una, self.high_rxt);
            if len > 0 {
                return Some(NextSeg::Retransmit { seq: self.una, len });
            }
        }
        let from = self.hole_from(self.high_rxt);
        if from.lt(self.lost_end) {
            let len = self.hole_len(from, self.lost_end.min(snd_nxt));
            if len > 0 {
                return Some(NextSeg::Retransmit { seq: from, len });
            }
        }
        if new_data {
            return Some(NextSeg::New);
        }
        let highest = self.highest()?;
        if from.lt(highest) {
            let len = self.hole_len(from, highest);
            return (len > 0).then_some(NextSeg::Retransmit { seq: from, len });
        }
        self.rescue(snd_nxt)
    }

    /// Rule 4: the last segment's worth of what is not SACKed, once per episode.
    fn rescue(&self, snd_nxt: Seq) -> Option<NextSeg> {
        if self.rescued || !self.in_recovery {
            return None;
        }
        let (end, floor) = match self.ranges.as_slice() {
            [.., a, b] if b.1 == snd_nxt => (b.0, a.1),
            [only] if only.1 == snd_nxt => (only.0, self.una),
            [.., b] => (snd_nxt, b.1),
            [] => (snd_nxt, self.una),
        };
        let len = end.since(floor).min(self.mss);
        // What was sent again in this episode is not rescued at once a second time.
        (len > 0 && end.gt(self.high_rxt)).then(|| NextSeg::Rescue {
            seq: end - len,
            len,
        })
    }

    /// What [`Scoreboard::next_seg`] proposed was sent. `snd_nxt` is as it was given there.
    /// If less than proposed was sent, pass what was.
    pub fn on_sent(&mut self, what: NextSeg, snd_nxt: Seq) {
        match what {
            NextSeg::Retransmit { seq, len } => {
                if seq == self.una {
                    self.oldest = self.high_rxt.le(self.una);
                    self.resend = false;
                    self.resent_at = snd_nxt;
                }
                self.high_rxt = self.high_rxt.max(seq + len);
            }
            NextSeg::Rescue { .. } => self.rescued = true,
            NextSeg::New => {}
        }
    }

    /// The retransmission timer fired: everything not SACKed is lost and is to be sent again,
    /// which [`Scoreboard::next_seg`] and [`Scoreboard::pipe`] then govern until `snd_nxt` is
    /// acknowledged. SACKed ranges are kept, unless the first outstanding octet is among
    /// them: then the peer has discarded data (RFC 2018, section 8) and all are forgotten.
    pub fn mark_all_lost(&mut self, snd_nxt: Seq) {
        if self.is_sacked(self.una) {
            self.forget();
        }
        self.start_recovery(snd_nxt);
        self.lost_end = snd_nxt;
    }

    fn forget(&mut self) {
        self.ranges.clear();
        self.sacked = 0;
    }

    /// One past the highest SACKed octet.
    pub fn highest(&self) -> Option<Seq> {
        self.ranges.last().map(|r| r.1)
    }

    /// Index of the first range that ends after `seq`.
    fn first_after(&self, seq: Seq) -> usize {
        self.count(8);
        self.ranges.partition_point(|r| r.1.le(seq))
    }

    /// The first octet at or after `seq` that is not SACKed.
    fn hole_from(&self, seq: Seq) -> Seq {
        match self.ranges.get(self.first_after(seq)) {
            Some(r) if r.0.le(seq) => r.1,
            _ => seq,
        }
    }

    /// How much of a segment can be sent from `seq` without reaching SACKed data or `end`.
    fn hole_len(&self, seq: Seq, end: Seq) -> u32 {
        let next = self.ranges.get(self.first_after(seq)).map_or(end, |r| r.0);
        let stop = next.min(end);
        if stop.le(seq) {
            return 0;
        }
        stop.since(seq).min(self.mss)
    }

    /// SACKed octets at or after `seq`.
    fn sacked_from(&self, seq: Seq) -> u32 {
        let mut n = 0;
        for &(l, r) in self.ranges.iter().rev() {
            self.count(1);
            if r.le(seq) {
                break;
            }
            n += r.since(l.max(seq));
        }
        n
    }

    /// Octets in `from..to` that are not SACKed.
    fn unsacked(&self, from: Seq, to: Seq) -> u32 {
        if to.le(from) {
            return 0;
        }
        let sacked = self.sacked_from(from) - self.sacked_from(to);
        to.since(from) - sacked
    }

    #[inline]
    fn count(&self, _n: u64) {
        #[cfg(test)]
        self.work.set(self.work.get() + _n);
    }
}

/// RFC 2883, section 4: the first block reports a duplicate if it lies below the cumulative
/// acknowledgment or within the second block.
fn is_dsack(left: Seq, right: Seq, ack: Seq, second: Option<&(Seq, Seq)>) -> bool {
    if !left.lt(right) {
        return false;
    }
    right.le(ack) || second.is_some_and(|s| left.ge(s.0) && right.le(s.1))
}

#[cfg(test)]
mod tests;
