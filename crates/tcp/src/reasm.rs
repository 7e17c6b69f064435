//! Reassembly of data that arrived out of order.
//!
//! Held segments stand in a search tree by unwrapped position, so that an insertion costs a
//! logarithm whatever order a peer chooses (CVE-2018-5390). Small payloads are copied together
//! instead of pinning a packet buffer each.
//!
//! What the connection calls, and when:
//!
//! * data not at `RCV.NXT`: [`Reassembly::insert`], then acknowledge at once with
//!   [`Reassembly::sack_blocks`] (after a D-SACK block, if it reported a duplicate);
//! * data at `RCV.NXT` is delivered directly, then [`Reassembly::pop`] until it gives `None`,
//!   each time advancing `RCV.NXT`;
//! * a FIN above `RCV.NXT`: [`Reassembly::set_fin`]; after every advance ask
//!   [`Reassembly::fin_reached`];
//! * when [`Reassembly::is_empty`], the box can go.

use alloc::collections::{BTreeMap, VecDeque};

use perimeter_base::PktBuf;
use perimeter_wire::{SackBlocks, Seq};

/// Bookkeeping charged per held segment, octets: tree nodes and allocator.
const OVERHEAD: usize = 96;

/// Most segments held.
pub const MAX_SEGMENTS: usize = 16_384;

/// Buffers that small payloads are gathered in grow up to this.
const GATHER: usize = 2048;

/// Where positions start, so that none is negative.
const ORIGIN: u64 = 1 << 40;

/// What became of a segment given to [`Reassembly::insert`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// Octets that were new and are now held.
    pub stored: u32,
    /// The first stretch of the segment that was held already, to be reported as D-SACK
    /// (RFC 2883). What lay before `RCV.NXT` is not meant; the connection knows it.
    pub duplicate: Option<(Seq, Seq)>,
    /// The segment was dropped because a bound was reached. It was not acknowledged, so the
    /// peer will send it again.
    pub dropped: bool,
}

/// Segments above `RCV.NXT`, held until the gap before them fills.
#[derive(Debug)]
pub struct Reassembly {
    /// Position of the first octet → data. Disjoint.
    segs: BTreeMap<u64, PktBuf>,
    /// The same octets as maximal runs, start → end.
    runs: BTreeMap<u64, u64>,
    /// Runs that changed last, latest first, each once: what SACK reports.
    recent: [(u64, u64); SackBlocks::MAX],
    /// `RCV.NXT` when last told, and its position.
    base: (Seq, u64),
    fin: Option<Seq>,
    octets: u32,
    memory: usize,
    /// Tree operations and octets copied.
    #[cfg(test)]
    work: u64,
}

impl Default for Reassembly {
    fn default() -> Reassembly {
        Reassembly::new()
    }
}

/// What arrived out of order, and what of it has become in order but was not yet fetched.
#[derive(Debug, Default)]
pub(crate) struct OutOfOrder {
    pub(crate) queue: Reassembly,
    pub(crate) ready: VecDeque<PktBuf>,
}

impl Reassembly {
    /// An empty queue.
    pub fn new() -> Reassembly {
        Reassembly {
            segs: BTreeMap::new(),
            runs: BTreeMap::new(),
            recent: [(0, 0); SackBlocks::MAX],
            base: (Seq(0), ORIGIN),
            fin: None,
            octets: 0,
            memory: 0,
            #[cfg(test)]
            work: 0,
        }
    }

    /// Whether neither data nor a FIN is held.
    pub fn is_empty(&self) -> bool {
        self.segs.is_empty() && self.fin.is_none()
    }

    /// Octets of data held.
    pub fn len(&self) -> u32 {
        self.octets
    }

    /// Octets of memory pinned, bookkeeping included.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Takes the payload `data` that starts at `seq`. What lies before `rcv_nxt` or beyond
    /// the FIN is cut; where it overlaps what is held, the octets that came first are kept.
    /// `limit` bounds [`Reassembly::memory`]. The caller has already cut the segment to the
    /// receive window.
    pub fn insert(&mut self, seq: Seq, mut data: PktBuf, rcv_nxt: Seq, limit: usize) -> Inserted {
        let mut out = Inserted::default();
        self.rebase(rcv_nxt);
        if let Some(fin) = self.fin {
            data.truncate(fin.diff(seq).max(0) as usize);
        }
        let nxt = self.base.1;
        let mut start = self.position(seq);
        if start < nxt {
            data.trim_front((nxt - start) as usize);
            start = nxt;
        }
        let mut end = start + data.len() as u64;
        if start == end {
            return out;
        }
        if let Some(run) = self.run_around(start)
            && end <= run.1
        {
            out.duplicate = Some((self.seq(start), self.seq(end)));
            self.touch(run);
            return out;
        }
        // What is held to the left keeps its octets.
        if let Some(prev_end) = self.prev_end(start)
            && prev_end > start
        {
            out.duplicate = Some((self.seq(start), self.seq(prev_end)));
            data.trim_front((prev_end - start) as usize);
            start = prev_end;
        }
        // And what sticks out to the right.
        let asked = end;
        if let Some((&right, b)) = self.segs.range(start..end).next_back()
            && right + b.len() as u64 > end
        {
            data.truncate((right - start) as usize);
            end = right;
        }
        if !self.store(start, data, limit, &mut out) {
            out.dropped = true;
            out.duplicate = None;
            return out;
        }
        if end < asked {
            self.note_duplicate(&mut out, end, asked);
        }
        let run = self.join(start, end);
        self.touch(run);
        out
    }

    fn note_duplicate(&self, out: &mut Inserted, from: u64, to: u64) {
        if out.duplicate.is_none() {
            out.duplicate = Some((self.seq(from), self.seq(to)));
        }
    }

    /// Stores `data` at `start`, where nothing held sticks out of it on either side; held
    /// segments within it are absorbed, their octets winning.
    fn store(&mut self, start: u64, mut data: PktBuf, limit: usize, out: &mut Inserted) -> bool {
        let len = data.len();
        let end = start + len as u64;
        let sparse = len <= GATHER / 4;
        let cost = OVERHEAD + if sparse { len } else { data.capacity() };
        let absorbs = self.segs.range(start..end).next().is_some();
        if self.memory + cost > limit || (self.segs.len() >= MAX_SEGMENTS && !absorbs) {
            return false;
        }
        let mut fresh = len as u32;
        while let Some((&at, _)) = self.segs.range(start..end).next() {
            let Some(b) = self.remove(at) else { break };
            self.note_duplicate(out, at, at + b.len() as u64);
            self.count(b.len());
            let from = (at - start) as usize;
            data.as_mut_slice()[from..from + b.len()].copy_from_slice(b.as_slice());
            fresh -= b.len() as u32;
        }
        out.stored = fresh;
        if sparse && self.gather(start, &data, limit) {
            return true;
        }
        if sparse && data.capacity() > len {
            data = PktBuf::copy_of(data.as_slice());
        }
        self.add(start, data);
        true
    }

    /// Appends a small payload to the segment that ends where it starts. Its buffer doubles
    /// when full, so that octets are copied a bounded number of times.
    fn gather(&mut self, start: u64, data: &PktBuf, limit: usize) -> bool {
        let Some((&at, b)) = self.segs.range(..start).next_back() else {
            return false;
        };
        let total = b.len() + data.len();
        if at + b.len() as u64 != start || total > GATHER {
            return false;
        }
        let room = b.tail_room() >= data.len();
        let grown = total.next_power_of_two();
        if !room && self.memory + grown > limit {
            return false;
        }
        let Some(mut b) = self.remove(at) else {
            return false;
        };
        self.count(data.len());
        if !room {
            self.count(b.len());
            let mut bigger = PktBuf::with_capacity(grown);
            bigger.append(b.as_slice());
            b = bigger;
        }
        b.append(data.as_slice());
        self.add(at, b);
        true
    }

    fn add(&mut self, at: u64, b: PktBuf) {
        self.count(1);
        self.octets += b.len() as u32;
        self.memory += b.capacity() + OVERHEAD;
        self.segs.insert(at, b);
    }

    fn remove(&mut self, at: u64) -> Option<PktBuf> {
        self.count(1);
        let b = self.segs.remove(&at)?;
        self.octets -= b.len() as u32;
        self.memory -= b.capacity() + OVERHEAD;
        Some(b)
    }

    /// Remembers that the peer's FIN stands at `seq`, the octet after its last data. The
    /// first one stays.
    pub fn set_fin(&mut self, seq: Seq) {
        self.fin.get_or_insert(seq);
    }

    /// Whether the FIN is next: all data before it has been delivered.
    pub fn fin_reached(&self, rcv_nxt: Seq) -> bool {
        self.fin == Some(rcv_nxt)
    }

    /// The next data in order, if the gap at `rcv_nxt` is filled. The caller advances
    /// `RCV.NXT` by its length.
    pub fn pop(&mut self, rcv_nxt: Seq) -> Option<PktBuf> {
        if self.segs.is_empty() {
            return None;
        }
        self.rebase(rcv_nxt);
        let nxt = self.base.1;
        // Segments that lie before RCV.NXT altogether are dropped; each only once.
        loop {
            let (&at, _) = self.segs.first_key_value()?;
            if at > nxt {
                return None;
            }
            let mut b = self.remove(at)?;
            let end = at + b.len() as u64;
            self.cut_runs(end.max(nxt));
            b.trim_front((nxt - at) as usize);
            if !b.is_empty() {
                return Some(b);
            }
        }
    }

    /// Writes the SACK blocks to send, that with the latest arrival first (RFC 2018,
    /// section 4), as many as `out` has room for and four at most.
    pub fn sack_blocks(&self, out: &mut SackBlocks) {
        for &(start, end) in &self.recent {
            if start != end && !out.push(self.seq(start), self.seq(end)) {
                return;
            }
        }
    }

    /// Drops everything held.
    pub fn clear(&mut self) {
        *self = Reassembly::new();
    }

    /// Position of a sequence number less than 2³¹ away from `RCV.NXT`.
    fn position(&self, seq: Seq) -> u64 {
        self.base
            .1
            .wrapping_add_signed(i64::from(seq.diff(self.base.0)))
    }

    fn seq(&self, position: u64) -> Seq {
        self.base.0 + position.wrapping_sub(self.base.1) as u32
    }

    fn rebase(&mut self, rcv_nxt: Seq) {
        if self.segs.is_empty() {
            self.base = (rcv_nxt, ORIGIN);
        } else {
            self.base = (rcv_nxt, self.position(rcv_nxt));
        }
    }

    #[inline]
    fn count(&mut self, _n: usize) {
        #[cfg(test)]
        {
            self.work += _n as u64;
        }
    }

    fn run_around(&self, at: u64) -> Option<(u64, u64)> {
        let (&s, &e) = self.runs.range(..=at).next_back()?;
        (at < e).then_some((s, e))
    }

    fn prev_end(&self, at: u64) -> Option<u64> {
        let (&s, b) = self.segs.range(..=at).next_back()?;
        Some(s + b.len() as u64)
    }

    /// Adds `start..end` to the runs and returns the run that it is now part of.
    fn join(&mut self, mut start: u64, mut end: u64) -> (u64, u64) {
        while let Some((&s, &e)) = self.runs.range(..=end).next_back()
            && e >= start
        {
            self.count(1);
            self.runs.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.runs.insert(start, end);
        (start, end)
    }

    /// Everything before `to` has been delivered.
    fn cut_runs(&mut self, to: u64) {
        while let Some((&s, &e)) = self.runs.first_key_value()
            && s < to
        {
            self.count(1);
            self.runs.remove(&s);
            if e > to {
                self.runs.insert(to, e);
            }
        }
        for r in &mut self.recent {
            r.0 = r.0.max(to).min(r.1);
        }
        self.drop_recent(|r| r.0 == r.1);
    }

    /// Moves a run to the front of the SACK order, in place of the parts it swallowed.
    fn touch(&mut self, run: (u64, u64)) {
        self.drop_recent(|r| r.0 >= run.0 && r.1 <= run.1);
        self.recent.rotate_right(1);
        self.recent[0] = run;
    }

    /// Removes what `gone` accepts, closing up; free places are empty runs at the end.
    fn drop_recent(&mut self, gone: impl Fn(&(u64, u64)) -> bool) {
        let mut n = 0;
        for i in 0..self.recent.len() {
            if !gone(&self.recent[i]) {
                self.recent.swap(n, i);
                n += 1;
            }
        }
        self.recent[n..].fill((0, 0));
    }
}

#[cfg(test)]
mod tests;
