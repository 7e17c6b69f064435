//! Half-open connections: the SYN cache.
//!
//! One per perimeter, outside the connection table: a SYN costs one small entry, bounded in
//! number, and a connection's state is made only when the handshake completes (RFC 4987,
//! section 3.3). What finds no room is answered by a cookie, and kept by the peer (section 3.6).

mod cookie;
mod entry;
mod handshake;

pub use cookie::Cookies;
pub use handshake::{Established, ListenParams, MIN_MSS, Origin};

use alloc::{boxed::Box, vec, vec::Vec};

use perimeter_base::Time;
use perimeter_wire::{FlowKey, SegOut, Seq, TcpFlags, TcpHdr};

use crate::isn::IsnGen;
use entry::{CHALLENGES, Entry, RESENT, TIMEOUT};
use handshake::NIL;

/// Sends a segment to the peer of a handshake under way: its flow, where its SYN came from, if that
/// is known, and the segment.
pub type Tell<'a> = dyn FnMut(&FlowKey, Option<Origin>, SegOut) + 'a;

/// Answer to a SYN.
#[derive(Clone, Debug)]
pub enum SynAction {
    /// Send this SYN-ACK.
    SendSynAck(SegOut),
    /// Send this SYN-ACK, of which nothing is kept: its number is a cookie.
    SendCookie(SegOut),
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
#[non_exhaustive]
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
    /// SYN-ACKs whose number was a cookie.
    pub cookies_sent: u64,
    /// Acknowledgments of a cookie that made a connection.
    pub cookies_accepted: u64,
    /// Acknowledgments that were looked at as cookies and are none.
    pub cookies_refused: u64,
}

/// Entries, and places in a bucket, that are kept for the next one when they are empty, and are
/// not counted as memory that strangers pin.
const KEPT: (usize, usize) = (16, 4);

/// SYN-ACK retransmissions before an entry is dropped (Linux's `tcp_synack_retries`).
pub const RETRIES: u8 = 5;
/// Timer levels: after the first SYN-ACK and after each retransmission.
const LEVELS: usize = RETRIES as usize + 1;

#[derive(Copy, Clone, Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// The cache: a hash table of half-open connections, bounded per bucket and in all.
///
/// A SYN for a full bucket is answered by a cookie ([`Cookies`]), and what is in the bucket stays.
/// Where cookies are off, the oldest entry of the bucket makes room, so a legitimate handshake
/// survives as long as its round trip is shorter than the flood takes to fill one bucket, which
/// the keyed hash keeps a stranger from aiming at (Lemon, "Resisting SYN flood DoS attacks with
/// a SYN cache", 2002).
pub struct SynCache {
    entries: Vec<Entry>,
    free: u32,
    /// Per bucket, oldest first: part of the hash, and the entry. The tag spares a look at
    /// entries that are not meant, which under a flood would each be a cache miss.
    buckets: Box<[Vec<(u32, u32)>]>,
    depth: usize,
    live: usize,
    /// Places in buckets beyond those kept.
    grown: usize,
    levels: [List; LEVELS],
    r#gen: IsnGen,
    cookies: Cookies,
    /// Until when an acknowledgment may bring a cookie; before the first is sent, never.
    cookies_until: Time,
    stats: SynStats,
    /// The latest time it was entered at. Threads that take turns read the clock before their
    /// turn, so that the next may come with an earlier time.
    now: Time,
}

impl SynCache {
    /// A cache of `buckets` (rounded up to a power of two) × `depth` entries, keyed with 128
    /// secret bits. Entries are allocated as they are needed and reused, and their memory is
    /// given back when most of them are empty. Without cookies.
    pub fn new(buckets: usize, depth: usize, k0: u64, k1: u64) -> SynCache {
        let buckets = buckets.clamp(1, 1 << 20).next_power_of_two();
        SynCache {
            entries: Vec::new(),
            free: NIL,
            buckets: vec![Vec::new(); buckets].into_boxed_slice(),
            depth: depth.clamp(1, 1 << 10),
            live: 0,
            grown: 0,
            levels: [List {
                head: NIL,
                tail: NIL,
            }; LEVELS],
            r#gen: IsnGen::new(k0, k1),
            cookies: Cookies::Off,
            cookies_until: Time::ZERO,
            stats: SynStats::default(),
            now: Time::ZERO,
        }
    }

    /// The same, with cookies.
    #[must_use]
    pub fn with_cookies(self, cookies: Cookies) -> SynCache {
        SynCache { cookies, ..self }
    }

    /// It is entered at `now`, which does not run backwards here.
    fn entered(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    /// A SYN for a listener. `iss` and `ts_offset` are used if it makes a new entry
    /// ([`IsnGen::iss`], [`IsnGen::ts_offset`]); the offset also in a cookie's SYN-ACK.
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
        let cookie = !l.reuse
            && match self.cookies {
                Cookies::Off => false,
                Cookies::WhenFull => self.buckets[place.0].len() >= self.depth,
                Cookies::Always => true,
            };
        if cookie {
            self.cookies_until = now.plus(cookie::LIFE);
            self.stats.cookies_sent += 1;
            let reply = cookie::syn_ack(&self.r#gen, &key, seg, l, ts_offset, now);
            return SynAction::SendCookie(reply);
        }
        let e = Entry::new(key, seg, l, iss, ts_offset, now);
        let reply = e.syn_ack(now);
        self.stats.added += 1;
        self.insert(place, e);
        SynAction::SendSynAck(reply)
    }

    /// Whether it has an entry for that flow.
    pub fn knows(&self, key: &FlowKey) -> bool {
        self.find(self.place(key), key).is_some()
    }

    /// A segment without RST, and with SYN only beside ACK, that belongs to no connection.
    pub fn on_ack(&mut self, key: &FlowKey, seg: &TcpHdr, now: Time) -> AckAction {
        let now = self.entered(now);
        let place = self.place(key);
        let Some(i) = self.find(place, key) else {
            return AckAction::None;
        };
        let e = &self.entries[i as usize];
        if !seg.flags.contains(TcpFlags::ACK) {
            return AckAction::Ignore;
        }
        if seg.ack != e.iss + 1 {
            return AckAction::Rst(seg.ack);
        }
        // Data may have overtaken the bare acknowledgment; it completes the handshake as well.
        if e.is_stale(seg) || !e.in_window(seg.seq) {
            return AckAction::Ignore;
        }
        let done = e.established(seg, now);
        self.remove(place, i);
        self.stats.completed += 1;
        self.shrink();
        AckAction::Established(done)
    }

    /// Whether an acknowledgment may bring a cookie: one was sent not long ago. While none was,
    /// acknowledgments of nothing cost no hash.
    pub fn expects_cookie(&self, now: Time) -> bool {
        self.now.max(now) < self.cookies_until
    }

    /// A segment with ACK and without SYN or RST for which [`SynCache::on_ack`] found no entry, or
    /// one with another number, as when a peer has answered the cookie and the entry is that of
    /// its repeated SYN. The connection if it completes a handshake by cookie; an entry of its flow
    /// is then removed. Who can't take the connection drops the segment: the next one will do as
    /// well.
    pub fn on_cookie(
        &mut self,
        key: &FlowKey,
        seg: &TcpHdr,
        l: &ListenParams,
        ts_offset: u32,
        now: Time,
    ) -> Option<Established> {
        let now = self.entered(now);
        if !self.expects_cookie(now) {
            return None;
        }
        let Some(done) = cookie::check(&self.r#gen, key, seg, l, ts_offset, now) else {
            self.stats.cookies_refused += 1;
            return None;
        };
        if l.full {
            self.stats.backlog_full += 1;
            return Some(done);
        }
        self.stats.cookies_accepted += 1;
        let place = self.place(key);
        if let Some(i) = self.find(place, key) {
            self.remove(place, i);
            self.shrink();
        }
        Some(done)
    }

    /// The accept queue was full when [`SynCache::on_ack`] completed the handshake: the entry
    /// returns as if the acknowledgment had been lost, and the SYN-ACK is sent again later
    /// (Linux). `from`: where the acknowledgment came from.
    pub fn put_back(&mut self, key: FlowKey, e: &Established, from: Option<Origin>, now: Time) {
        let now = self.entered(now);
        let place = self.place(&key);
        if self.find(place, &key).is_some() {
            return;
        }
        self.stats.completed = self.stats.completed.saturating_sub(1);
        self.stats.backlog_full += 1;
        self.insert(place, Entry::back(key, e, from, now));
    }

    /// A reset. It removes the entry only at exactly the expected sequence number (RFC 5961,
    /// section 3.2). Returns whether it did.
    pub fn on_rst(&mut self, key: &FlowKey, seg: &TcpHdr) -> bool {
        self.abort_if(key, |e| seg.seq == e.irs + 1)
    }

    /// What the peer of a half-open connection is told when a segment was out of place that
    /// [`SynCache::on_ack`] ignored or [`SynCache::on_rst`] did not obey: where we are. A reset in
    /// the window that is not exact gets this (RFC 5961, section 3.2), and anything else outside
    /// the window or older than the SYN (RFC 9293, section 3.10.7.4); not too often.
    pub fn challenge(&mut self, key: &FlowKey, seg: &TcpHdr, now: Time) -> Option<SegOut> {
        let now = self.entered(now);
        let i = self.find(self.place(key), key)?;
        let e = &mut self.entries[i as usize];
        let due = match seg.flags.contains(TcpFlags::RST) {
            true => e.in_window(seg.seq),
            false => e.is_stale(seg) || !e.in_window(seg.seq),
        };
        if !due || e.challenges == 0 {
            return None;
        }
        e.challenges -= 1;
        Some(e.ack(now))
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
                self.shrink();
                true
            }
            _ => false,
        }
    }

    /// Removes every entry that `gone` accepts by its key and where its SYN came from, if that is
    /// known (a listener closed). Its peer may believe that it
    /// is connected, so there is a reset to `tell` it. Returns how many.
    pub fn remove_if(
        &mut self,
        gone: &mut dyn FnMut(&FlowKey, Option<Origin>) -> bool,
        tell: &mut Tell<'_>,
    ) -> usize {
        let mut n = 0;
        // First those who were asked once: their answers may be on their way. The others have
        // not answered for a second, and may be made up.
        for level in [0..1, 1..u8::MAX] {
            for i in 0..self.entries.len() {
                let e = &self.entries[i];
                if !level.contains(&e.level) || !gone(&e.key, e.from()) {
                    continue;
                }
                tell(&e.key, e.from(), e.reset());
                let place = self.place(&e.key);
                self.remove(place, i as u32);
                n += 1;
            }
        }
        self.shrink();
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
    pub fn on_timer(&mut self, now: Time, send: &mut Tell<'_>) {
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
                e.challenges = CHALLENGES;
                send(&e.key, e.from(), e.syn_ack(now));
                self.stats.retransmitted += 1;
                self.unlink(i);
                self.entries[i as usize].deadline = now.plus(TIMEOUT << (level + 1));
                self.link(i, level + 1);
            }
        }
        self.shrink();
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

    /// The same beyond what an empty cache keeps: what strangers make it pin. 0 when no more than
    /// a few entries are held.
    pub fn pinned(&self) -> usize {
        self.entries.capacity().saturating_sub(KEPT.0) * size_of::<Entry>()
            + self.grown * size_of::<(u32, u32)>()
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
                if self.entries.capacity() == 0 {
                    self.entries.reserve_exact(KEPT.0.min(self.capacity()));
                }
                self.entries.push(e);
                self.entries.len() as u32 - 1
            }
        };
        let places = &mut self.buckets[bucket];
        let before = places.capacity().max(KEPT.1);
        places.push((tag, i));
        self.grown += places.capacity().max(KEPT.1) - before;
        self.live += 1;
        self.link(i, 0);
    }

    fn remove(&mut self, (bucket, _): (usize, u32), i: u32) {
        self.unlink(i);
        let places = &mut self.buckets[bucket];
        places.retain(|x| x.1 != i);
        if places.is_empty() && places.capacity() > KEPT.1 {
            self.grown -= places.capacity() - KEPT.1;
            *places = Vec::new();
        }
        let e = &mut self.entries[i as usize];
        e.level = u8::MAX;
        e.next = self.free;
        self.free = i;
        self.live -= 1;
    }

    /// Gives memory back: all of it when nothing is held, and when less than a quarter of the
    /// entries is in use what is held moves together. That looks at every bucket, and
    /// for every dozen of them an entry was removed since the last time.
    fn shrink(&mut self) {
        if self.live == 0 {
            if self.entries.capacity() > KEPT.0 {
                self.entries = Vec::new();
                self.free = NIL;
            }
            return;
        }
        let least = KEPT.0.max(self.buckets.len() / 8);
        if self.entries.len() <= least || self.live * 4 >= self.entries.len() {
            return;
        }
        let old = core::mem::take(&mut self.entries);
        let mut moved = vec![NIL; old.len()];
        self.entries.reserve_exact((self.live * 2).max(KEPT.0));
        self.free = NIL;
        for level in 0..LEVELS {
            let list = List {
                head: NIL,
                tail: NIL,
            };
            let mut at = core::mem::replace(&mut self.levels[level], list).head;
            while let Some(e) = old.get(at as usize) {
                let to = self.entries.len() as u32;
                moved[at as usize] = to;
                self.entries.push(e.clone());
                self.link(to, level);
                at = e.next;
            }
        }
        for place in self.buckets.iter_mut().flatten() {
            place.1 = moved[place.1 as usize];
        }
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

#[cfg(test)]
mod flood;
#[cfg(test)]
mod tests;
