//! Half-open connections: the SYN cache.
//!
//! One per perimeter, outside the connection table: a SYN costs one small entry, bounded in
//! number, and a connection's state is made only when the handshake completes (RFC 4987,
//! section 3.3).

use perimeter_base::Time;
use perimeter_wire::tcp::MAX_WSCALE;
use perimeter_wire::{FlowKey, SegOut, Seq, TcpFlags, TcpHdr, TcpOptions};

use crate::isn::{IsnGen, ts_clock};

/// What a listener offers to those who connect.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ListenParams {
    /// Largest segment we can receive, octets (MTU − 40 or − 60).
    pub mss: u16,
    /// Receive window to offer, octets, unscaled.
    pub rcv_wnd: u32,
    /// Shift to offer, or `None` to refuse window scaling.
    pub wscale: Option<u8>,
    /// Whether to use timestamps.
    pub timestamps: bool,
    /// Whether to use SACK.
    pub sack: bool,
    /// The accept queue is full: new SYNs are dropped.
    pub full: bool,
    /// Kept with a new entry and given back when its handshake is complete: whatever the caller
    /// wants to know then of where the SYN came in.
    pub origin: u16,
}

/// Everything a connection needs that completed its handshake through the cache.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// When it did, not before anything that the cache has sent: the connection's clock starts
    /// here.
    pub at: Time,
    /// [`ListenParams::origin`] of the SYN.
    pub origin: u16,
    /// Our initial sequence number; `SND.UNA = SND.NXT = iss + 1`.
    pub iss: Seq,
    /// The peer's; `RCV.NXT = irs + 1`.
    pub irs: Seq,
    /// The MSS that the peer announced, at least [`MIN_MSS`]; 536 (IPv6: 1220) if none.
    pub mss: u16,
    /// Window shifts (send, receive) if both ends use window scaling.
    pub wscale: Option<(u8, u8)>,
    /// Whether both ends use timestamps.
    pub timestamps: bool,
    /// The peer's latest timestamp value (TS.Recent), if timestamps are used.
    pub ts_recent: u32,
    /// Offset of our timestamp clock.
    pub ts_offset: u32,
    /// Whether both ends use SACK.
    pub sack: bool,
    /// The peer's window from the acknowledgment, octets, scaled.
    pub snd_wnd: u32,
    /// The window offered in the SYN-ACK, octets; the peer may have been told less: at most
    /// 65,535, since the window of a SYN is not scaled.
    pub rcv_wnd: u32,
    /// The MSS that we announced, octets.
    pub rcv_mss: u16,
    /// Round trip of SYN-ACK and ACK, unless the SYN-ACK was retransmitted and timestamps
    /// cannot tell (Karn).
    pub rtt_ns: Option<u64>,
    /// Whether the SYN-ACK had to be sent again: the initial window is then one segment
    /// (RFC 5681, section 3.1) and the first RTO 3 s without a sample (RFC 6298).
    pub retransmitted: bool,
}

/// The smallest MSS that a peer can impose (Linux's `tcp_min_snd_mss`, CVE-2019-11479).
pub const MIN_MSS: u16 = 48;

/// Answer to a SYN.
#[derive(Clone, Debug)]
pub enum SynAction {
    /// Send this SYN-ACK.
    SendSynAck(SegOut),
    /// Send nothing.
    Drop(SynDrop),
}

/// Why a SYN was dropped.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SynDrop {
    /// The listener's accept queue is full.
    Backlog,
    /// Flags that no SYN to a listener carries (ACK, RST, FIN).
    Malformed,
}

/// Answer to an acknowledgment for which there is no connection.
#[derive(Clone, Debug)]
pub enum AckAction {
    /// The handshake is complete and the entry removed: make the connection, give it the
    /// segment.
    Established(Established),
    /// An entry, but an unacceptable acknowledgment: reply with a reset of this sequence
    /// number (RFC 9293, section 3.10.7.4: `<SEQ=SEG.ACK><CTL=RST>`). The entry stays.
    Rst(Seq),
    /// Drop silently: outside the window or an old duplicate (PAWS). The entry stays.
    Ignore,
    /// No entry for this key.
    None,
}

/// Counters of a cache.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SynStats {
    /// Entries created.
    pub added: u64,
    /// Entries that became connections.
    pub completed: u64,
    /// Entries evicted from a full bucket.
    pub evicted: u64,
    /// Entries that ran out of retries.
    pub timed_out: u64,
    /// Entries removed by a reset or an ICMP error.
    pub aborted: u64,
    /// SYN-ACKs sent again, by the timer or for a duplicate SYN.
    pub retransmitted: u64,
    /// SYNs dropped because an accept queue was full.
    pub backlog_full: u64,
}

/// No entry.
const NIL: u32 = u32::MAX;
/// SYN-ACK retransmissions before an entry is dropped (Linux's `tcp_synack_retries`).
pub const RETRIES: u8 = 5;
/// Timer levels: after the first SYN-ACK and after each retransmission.
const LEVELS: usize = RETRIES as usize + 1;
/// Wait after the first SYN-ACK; it doubles per level.
const TIMEOUT: u64 = 1_000_000_000;

const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WSCALE: u8 = 4;
const RESENT: u8 = 8;

/// A half-open connection. Besides its bucket it stands in its timer level's list, in the
/// order of deadlines.
#[derive(Clone, Debug)]
struct Entry {
    /// When the first SYN-ACK was sent.
    sent: Time,
    deadline: Time,
    key: FlowKey,
    iss: Seq,
    irs: Seq,
    ts_recent: u32,
    ts_offset: u32,
    rcv_wnd: u32,
    prev: u32,
    /// Next in the timer level; next free when unused.
    next: u32,
    peer_mss: u16,
    mss: u16,
    origin: u16,
    snd_wscale: u8,
    rcv_wscale: u8,
    flags: u8,
    /// Timer level, the number of timer retransmissions; `u8::MAX` when unused.
    level: u8,
}

const _: () = assert!(size_of::<Entry>() <= 96);

impl Entry {
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn syn_ack(&self, now: Time) -> SegOut {
        let ts = self
            .has(TIMESTAMPS)
            .then(|| (ts_clock(now, self.ts_offset), self.ts_recent));
        SegOut {
            seq: self.iss,
            ack: self.irs + 1,
            flags: TcpFlags::SYN | TcpFlags::ACK,
            // The window of a SYN is not scaled (RFC 7323, section 2.2).
            window: self.rcv_wnd.min(65_535) as u16,
            urgent: 0,
            opts: TcpOptions {
                mss: Some(self.mss),
                wscale: self.has(WSCALE).then_some(self.rcv_wscale),
                sack_permitted: self.has(SACK),
                ts,
                ..TcpOptions::default()
            },
        }
    }

    fn established(&self, seg: &TcpHdr, now: Time) -> Established {
        let shift = if self.has(WSCALE) { self.snd_wscale } else { 0 };
        let echo = seg.opts.ts.filter(|_| self.has(TIMESTAMPS));
        let rtt_ns = match echo {
            // The echo names the SYN-ACK that was answered, also after retransmission. An
            // echo from before the first or after now is forged.
            Some((_, ecr)) if self.has(RESENT) => {
                let ms = ts_clock(now, self.ts_offset).wrapping_sub(ecr);
                let age = now.since(self.sent).as_millis();
                (u128::from(ms) <= age).then_some(u64::from(ms) * 1_000_000)
            }
            None if self.has(RESENT) => None,
            _ => Some(now.nanos_since(self.sent)),
        };
        let in_order = seg.seq.le(self.irs + 1);
        Established {
            at: now,
            origin: self.origin,
            iss: self.iss,
            irs: self.irs,
            mss: self.peer_mss,
            wscale: self
                .has(WSCALE)
                .then_some((self.snd_wscale, self.rcv_wscale)),
            timestamps: self.has(TIMESTAMPS),
            ts_recent: match echo {
                Some((val, _)) if in_order => val,
                _ => self.ts_recent,
            },
            ts_offset: self.ts_offset,
            sack: self.has(SACK),
            snd_wnd: u32::from(seg.window) << shift,
            rcv_wnd: self.rcv_wnd,
            rcv_mss: self.mss,
            rtt_ns,
            retransmitted: self.has(RESENT),
        }
    }
}

#[derive(Copy, Clone, Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// The cache: a hash table of half-open connections, bounded per bucket and in all.
///
/// Under a flood the oldest entry of a bucket makes room, so a legitimate handshake survives
/// as long as its round trip is shorter than the flood takes to fill one bucket, which the
/// keyed hash keeps a stranger from aiming at (Lemon, "Resisting SYN flood DoS attacks with a
/// SYN cache", 2002).
pub struct SynCache {
    entries: Vec<Entry>,
    free: u32,
    /// Per bucket, oldest first: part of the hash, and the entry. The tag spares a look at
    /// entries that are not meant, which under a flood would each be a cache miss.
    buckets: Box<[Vec<(u32, u32)>]>,
    depth: usize,
    live: usize,
    levels: [List; LEVELS],
    r#gen: IsnGen,
    stats: SynStats,
    /// The latest time it was entered at. Threads that take turns read the clock before their
    /// turn, so that the next may come with an earlier time.
    now: Time,
}

impl SynCache {
    /// Buckets and depth when nothing else is wanted: 15,360 entries, at most 3 MiB.
    pub const DEFAULT_SIZE: (usize, usize) = (512, 30);

    /// A cache of `buckets` (rounded up to a power of two) × `depth` entries, keyed with 128
    /// secret bits. Entries are allocated as they are needed and reused.
    pub fn new(buckets: usize, depth: usize, k0: u64, k1: u64) -> SynCache {
        let buckets = buckets.clamp(1, 1 << 20).next_power_of_two();
        SynCache {
            entries: Vec::new(),
            free: NIL,
            buckets: vec![Vec::new(); buckets].into_boxed_slice(),
            depth: depth.clamp(1, 1 << 10),
            live: 0,
            levels: [List {
                head: NIL,
                tail: NIL,
            }; LEVELS],
            r#gen: IsnGen::new(k0, k1),
            stats: SynStats::default(),
            now: Time::ZERO,
        }
    }

    /// It is entered at `now`, which does not run backwards here.
    fn entered(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    /// A SYN for a listener. `iss` and `ts_offset` are used if it makes a new entry
    /// ([`IsnGen::iss`], [`IsnGen::ts_offset`]).
    ///
    /// A SYN for an entry that exists, whatever its sequence number, gets the SYN-ACK again
    /// and changes nothing: a peer that has started anew answers it with a reset, which
    /// removes the entry (RFC 9293, section 3.5.1), and a stranger achieves nothing.
    pub fn on_syn(
        &mut self,
        key: FlowKey,
        seg: &TcpHdr,
        l: &ListenParams,
        iss: Seq,
        ts_offset: u32,
        now: Time,
    ) -> SynAction {
        let now = self.entered(now);
        let odd = TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN;
        let to_self = key.local == key.remote && key.local_port == key.remote_port;
        if !seg.flags.contains(TcpFlags::SYN) || seg.flags.intersects(odd) || to_self {
            return SynAction::Drop(SynDrop::Malformed);
        }
        let place = self.place(&key);
        if let Some(i) = self.find(place, &key) {
            let e = &mut self.entries[i as usize];
            e.flags |= RESENT;
            self.stats.retransmitted += 1;
            return SynAction::SendSynAck(e.syn_ack(now));
        }
        if l.full {
            self.stats.backlog_full += 1;
            return SynAction::Drop(SynDrop::Backlog);
        }
        let e = new_entry(key, seg, l, iss, ts_offset, now);
        let reply = e.syn_ack(now);
        self.stats.added += 1;
        self.insert(place, e);
        SynAction::SendSynAck(reply)
    }

    /// A segment with ACK and without SYN or RST that belongs to no connection.
    pub fn on_ack(&mut self, key: &FlowKey, seg: &TcpHdr, now: Time) -> AckAction {
        let now = self.entered(now);
        let place = self.place(key);
        let Some(i) = self.find(place, key) else {
            return AckAction::None;
        };
        let e = &self.entries[i as usize];
        if seg.ack != e.iss + 1 {
            return AckAction::Rst(seg.ack);
        }
        let stale = e.has(TIMESTAMPS)
            && seg
                .opts
                .ts
                .is_some_and(|(val, _)| Seq(val).lt(Seq(e.ts_recent)));
        // Data may have overtaken the bare acknowledgment; it completes the handshake as well.
        if stale || !seg.seq.between(e.irs + 1, e.irs + 1 + e.rcv_wnd.max(1)) {
            return AckAction::Ignore;
        }
        let done = e.established(seg, now);
        self.remove(place, i);
        self.stats.completed += 1;
        AckAction::Established(done)
    }

    /// The accept queue was full when [`SynCache::on_ack`] completed the handshake: the entry
    /// returns as if the acknowledgment had been lost, and the SYN-ACK is sent again later
    /// (Linux).
    pub fn put_back(&mut self, key: FlowKey, e: &Established, now: Time) {
        let now = self.entered(now);
        let place = self.place(&key);
        if self.find(place, &key).is_some() {
            return;
        }
        self.stats.completed = self.stats.completed.saturating_sub(1);
        self.stats.backlog_full += 1;
        let (snd_wscale, rcv_wscale) = e.wscale.unwrap_or((0, 0));
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        self.insert(
            place,
            Entry {
                sent: now,
                deadline: now.plus(TIMEOUT),
                key,
                iss: e.iss,
                irs: e.irs,
                ts_recent: e.ts_recent,
                ts_offset: e.ts_offset,
                rcv_wnd: e.rcv_wnd,
                prev: NIL,
                next: NIL,
                peer_mss: e.mss,
                mss: e.rcv_mss,
                origin: e.origin,
                snd_wscale,
                rcv_wscale,
                flags: flag(e.timestamps, TIMESTAMPS)
                    | flag(e.sack, SACK)
                    | flag(e.wscale.is_some(), WSCALE)
                    | RESENT,
                level: 0,
            },
        );
    }

    /// A reset. It removes the entry only at exactly the expected sequence number (RFC 5961,
    /// section 3.2). Returns whether it did.
    pub fn on_rst(&mut self, key: &FlowKey, seg: &TcpHdr) -> bool {
        self.abort_if(key, |e| seg.seq == e.irs + 1)
    }

    /// An ICMP hard error quoting a segment of ours with sequence number `seq`, which must be
    /// that of the SYN-ACK (RFC 5927, section 4.1). Returns whether it removed an entry.
    pub fn on_unreachable(&mut self, key: &FlowKey, seq: Seq) -> bool {
        self.abort_if(key, |e| seq == e.iss)
    }

    fn abort_if(&mut self, key: &FlowKey, accept: impl Fn(&Entry) -> bool) -> bool {
        let place = self.place(key);
        match self.find(place, key) {
            Some(i) if accept(&self.entries[i as usize]) => {
                self.remove(place, i);
                self.stats.aborted += 1;
                true
            }
            _ => false,
        }
    }

    /// Removes every entry whose key `gone` accepts (a listener closed). Returns how many.
    pub fn remove_if(&mut self, gone: &mut dyn FnMut(&FlowKey) -> bool) -> usize {
        let mut n = 0;
        for i in 0..self.entries.len() {
            let e = &self.entries[i];
            if e.level == u8::MAX || !gone(&e.key) {
                continue;
            }
            let place = self.place(&e.key);
            self.remove(place, i as u32);
            n += 1;
        }
        n
    }

    /// When [`SynCache::on_timer`] wants to be called; [`Time::NEVER`] if the cache is empty.
    pub fn deadline(&self) -> Time {
        let heads = self.levels.iter().filter(|l| l.head != NIL);
        heads
            .map(|l| self.entries[l.head as usize].deadline)
            .min()
            .unwrap_or(Time::NEVER)
    }

    /// Sends SYN-ACKs again that are due and drops entries that ran out of retries: each
    /// entry at most once per call.
    pub fn on_timer(&mut self, now: Time, send: &mut dyn FnMut(&FlowKey, SegOut)) {
        let now = self.entered(now);
        // From the last level down: an entry that moves up one is not met again.
        for level in (0..LEVELS).rev() {
            while let Some(e) = self.entries.get_mut(self.levels[level].head as usize)
                && e.deadline <= now
            {
                let i = self.levels[level].head;
                if level + 1 == LEVELS {
                    let key = e.key;
                    self.remove(self.place(&key), i);
                    self.stats.timed_out += 1;
                    continue;
                }
                e.flags |= RESENT;
                send(&e.key, e.syn_ack(now));
                self.stats.retransmitted += 1;
                self.unlink(i);
                self.entries[i as usize].deadline = now.plus(TIMEOUT << (level + 1));
                self.link(i, level + 1);
            }
        }
    }

    /// Entries held.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether no entry is held.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Most entries that it can hold.
    pub fn capacity(&self) -> usize {
        self.buckets.len() * self.depth
    }

    /// Octets of memory pinned.
    pub fn memory(&self) -> usize {
        let slots: usize = self.buckets.iter().map(Vec::capacity).sum();
        self.entries.capacity() * size_of::<Entry>()
            + slots * size_of::<(u32, u32)>()
            + size_of_val(&*self.buckets)
    }

    /// Counters since the cache was made.
    pub fn stats(&self) -> SynStats {
        self.stats
    }

    /// The bucket of a key, and its tag there.
    fn place(&self, key: &FlowKey) -> (usize, u32) {
        let h = self.r#gen.bucket(key);
        (h as usize & (self.buckets.len() - 1), (h >> 32) as u32)
    }

    fn find(&self, (bucket, tag): (usize, u32), key: &FlowKey) -> Option<u32> {
        self.buckets[bucket]
            .iter()
            .filter(|x| x.0 == tag)
            .map(|x| x.1)
            .find(|&i| self.entries[i as usize].key == *key)
    }

    /// Puts an entry into its bucket, evicting the oldest if that is full.
    fn insert(&mut self, (bucket, tag): (usize, u32), e: Entry) {
        if self.buckets[bucket].len() >= self.depth {
            let (tag, oldest) = self.buckets[bucket][0];
            self.remove((bucket, tag), oldest);
            self.stats.evicted += 1;
        }
        let i = match self.entries.get_mut(self.free as usize) {
            Some(slot) => {
                let i = self.free;
                self.free = slot.next;
                *slot = e;
                i
            }
            None => {
                self.entries.push(e);
                self.entries.len() as u32 - 1
            }
        };
        self.buckets[bucket].push((tag, i));
        self.live += 1;
        self.link(i, 0);
    }

    fn remove(&mut self, (bucket, _): (usize, u32), i: u32) {
        self.unlink(i);
        self.buckets[bucket].retain(|x| x.1 != i);
        let e = &mut self.entries[i as usize];
        e.level = u8::MAX;
        e.next = self.free;
        self.free = i;
        self.live -= 1;
    }

    /// Appends to a timer level. All of a level wait equally long, so its order is that of the
    /// deadlines.
    fn link(&mut self, i: u32, level: usize) {
        let tail = self.levels[level].tail;
        let e = &mut self.entries[i as usize];
        e.level = level as u8;
        e.prev = tail;
        e.next = NIL;
        match self.entries.get_mut(tail as usize) {
            Some(t) => t.next = i,
            None => self.levels[level].head = i,
        }
        self.levels[level].tail = i;
    }

    fn unlink(&mut self, i: u32) {
        let e = &self.entries[i as usize];
        let (prev, next, level) = (e.prev, e.next, usize::from(e.level));
        match self.entries.get_mut(prev as usize) {
            Some(p) => p.next = next,
            None => self.levels[level].head = next,
        }
        match self.entries.get_mut(next as usize) {
            Some(n) => n.prev = prev,
            None => self.levels[level].tail = prev,
        }
    }
}

fn new_entry(
    key: FlowKey,
    seg: &TcpHdr,
    l: &ListenParams,
    iss: Seq,
    ts_offset: u32,
    now: Time,
) -> Entry {
    let o = &seg.opts;
    let (mut flags, mut snd_wscale, mut rcv_wscale, mut ts_recent) = (0, 0, 0, 0);
    if let (true, Some((val, _))) = (l.timestamps, o.ts) {
        flags |= TIMESTAMPS;
        ts_recent = val;
    }
    if l.sack && o.sack_permitted {
        flags |= SACK;
    }
    if let (Some(ours), Some(theirs)) = (l.wscale, o.wscale) {
        flags |= WSCALE;
        snd_wscale = theirs.min(MAX_WSCALE);
        rcv_wscale = ours.min(MAX_WSCALE);
    }
    // RFC 9293, section 3.7.1: what holds if the peer announces nothing.
    let default_mss = if key.remote.is_ipv6() { 1220 } else { 536 };
    Entry {
        sent: now,
        deadline: now.plus(TIMEOUT),
        key,
        iss,
        irs: seg.seq,
        ts_recent,
        ts_offset,
        rcv_wnd: l.rcv_wnd,
        prev: NIL,
        next: NIL,
        peer_mss: o.mss.unwrap_or(default_mss).max(MIN_MSS),
        mss: l.mss,
        origin: l.origin,
        snd_wscale,
        rcv_wscale,
        flags,
        level: 0,
    }
}

#[cfg(test)]
mod tests;
