//! What has come of datagrams, put together with bounded memory: all threads share it.

use core::net::IpAddr;
use hashbrown::HashMap;
use perimeter_base::{PktBuf, PktPool, Time};
use perimeter_wire::ipv6::Ipv6Fragment;
use perimeter_wire::{Ipv4Hdr, Ipv6Hdr, MAX_DATAGRAM};
use std::collections::VecDeque;

/// How long fragments wait for the rest of their datagram, ns (RFC 8200, section 4.5; RFC 1122,
/// section 3.3.2, asks for 60 to 120 s).
pub const REASSEMBLY: u64 = 60_000_000_000;
/// The most fragments of one datagram: as many as a path of 272 octets needs for the longest.
const PIECES: usize = 256;
/// What an entry counts for being there, and a fragment, bytes.
const ENTRY: usize = 512;
const PIECE: usize = 64;
/// IPv6's fragment header.
pub(super) const FRAGMENT_HEADER: usize = 8;
/// The number by which it is named.
pub(super) const NEXT_FRAGMENT: u8 = 44;

/// Which datagram a fragment is of: those of one come by one interface.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) iface: u16,
    ident: u32,
    /// Of IPv4, where it is a part of the name (RFC 791).
    protocol: u8,
}

/// What a fragment says.
#[derive(Copy, Clone, Debug)]
pub(super) struct Fragment {
    pub(super) key: Key,
    /// Of its data in the datagram.
    start: u32,
    more: bool,
    /// Where its data is in its frame.
    data: (usize, usize),
    /// Octets of the link layer's header, and of the datagram's header that is in each fragment.
    l2: usize,
    header: usize,
    /// The protocol that the fragment header names: IPv6.
    next: u8,
}

struct Piece {
    start: u32,
    data: PktBuf,
}

impl Piece {
    fn end(&self) -> u32 {
        self.start + self.data.len() as u32
    }
}

/// A datagram of which fragments have come.
pub(super) struct Partial {
    serial: u64,
    /// When the first came.
    since: Time,
    /// In order, none overlapping.
    pieces: Vec<Piece>,
    /// Octets that they hold.
    have: u32,
    /// Octets of the whole, once the last fragment is there.
    total: Option<u32>,
    /// The frame's headers before the data, of the first fragment.
    head: Option<(Vec<u8>, usize, u8)>,
    pinned: usize,
    /// Fragments overlapped, or contradicted each other: nothing comes of it.
    dead: bool,
}

/// What a fragment made of its datagram.
enum Put {
    /// Nothing yet.
    Waits,
    /// It is whole.
    Whole,
    /// It is dead, or this fragment was dropped for that.
    Dead,
    /// The fragment was there already.
    Twice,
}

/// Datagrams that are being put together.
pub struct Reassembly {
    partial: HashMap<Key, Partial, foldhash::quality::RandomState>,
    /// In order of arrival; those whose serial number is another's are of the past.
    order: VecDeque<(u64, Key)>,
    sources: HashMap<IpAddr, usize, foldhash::quality::RandomState>,
    pinned: usize,
    serial: u64,
    limit: usize,
}

impl Reassembly {
    /// Nothing yet; it may pin `limit` bytes.
    pub fn new(limit: usize) -> Reassembly {
        Reassembly {
            partial: HashMap::default(),
            order: VecDeque::new(),
            sources: HashMap::default(),
            pinned: 0,
            serial: 0,
            limit,
        }
    }

    /// Memory that fragments pin, bytes.
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// Whether no fragment waits.
    pub(super) fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// Lets go of all.
    pub(super) fn clear(&mut self) {
        *self = Reassembly::new(self.limit);
    }

    fn pin(&mut self, key: &Key, n: usize) {
        self.pinned += n;
        *self.sources.entry(key.src).or_default() += n;
        if let Some(p) = self.partial.get_mut(key) {
            p.pinned += n;
        }
    }

    fn unpin(&mut self, src: IpAddr, n: usize) {
        self.pinned -= n;
        if let Some(of) = self.sources.get_mut(&src) {
            *of -= n;
            if *of == 0 {
                self.sources.remove(&src);
            }
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Partial> {
        let p = self.partial.remove(key)?;
        self.unpin(key.src, p.pinned);
        // Those of the past are let go before they are many.
        if self.order.len() > 2 * self.partial.len() + 64 {
            let partial = &self.partial;
            self.order
                .retain(|(serial, key)| partial.get(key).is_some_and(|p| p.serial == *serial));
        }
        Some(p)
    }

    /// The oldest datagram.
    fn oldest(&mut self) -> Option<(Key, Time)> {
        while let Some((serial, key)) = self.order.front() {
            match self.partial.get(key) {
                Some(p) if p.serial == *serial => return Some((*key, p.since)),
                _ => self.order.pop_front(),
            };
        }
        None
    }

    /// Makes room for `n` bytes more; whether this source may have them.
    fn room(&mut self, src: IpAddr, n: usize, dropped: &mut u64) -> bool {
        if self.sources.get(&src).copied().unwrap_or(0) + n > self.limit / 4 {
            return false;
        }
        while self.pinned + n > self.limit {
            let Some((oldest, _)) = self.oldest() else {
                return false;
            };
            self.remove(&oldest);
            *dropped += 1;
        }
        true
    }

    /// Takes a fragment whose frame is `frame`. The whole datagram's frame, if this was the last
    /// one that was missing.
    pub(super) fn take(
        &mut self,
        now: Time,
        f: &Fragment,
        frame: PktBuf,
        pool: &mut PktPool,
        counts: &mut Counts,
    ) -> Option<PktBuf> {
        let head = (f.start == 0).then(|| {
            let bytes = &frame.as_slice()[..f.l2 + f.header];
            (bytes.to_vec(), f.l2, f.next)
        });
        let mut data = frame;
        data.trim_front(f.data.0);
        data.truncate(f.data.1);
        // A small part of a buffer does not keep the rest.
        if data.len() < data.capacity() / 2 {
            let small = PktBuf::copy_of(data.as_slice());
            pool.put(core::mem::replace(&mut data, small));
        }
        let fresh = !self.partial.contains_key(&f.key);
        let head_len = head.as_ref().map_or(0, |(h, ..)| h.len());
        let n = data.capacity() + PIECE + head_len + if fresh { ENTRY } else { 0 };
        if !self.room(f.key.src, n, &mut counts.failed) {
            counts.refused += 1;
            return None;
        }
        // Making room may have taken the very datagram.
        let n = match (fresh, self.partial.contains_key(&f.key)) {
            (false, false) => n + ENTRY,
            _ => n,
        };
        if !self.partial.contains_key(&f.key) {
            self.serial += 1;
            let serial = self.serial;
            self.order.push_back((serial, f.key));
            self.partial.insert(f.key, Partial::new(serial, now));
        }
        self.pin(&f.key, n);
        let p = self.partial.get_mut(&f.key)?;
        match p.put(f, data, head) {
            Put::Waits => None,
            Put::Twice => {
                // What it would have pinned is not.
                p.pinned -= n;
                self.unpin(f.key.src, n);
                None
            }
            Put::Dead => {
                counts.overlaps += 1;
                p.kill();
                let over = p.pinned - ENTRY;
                p.pinned = ENTRY;
                self.unpin(f.key.src, over);
                None
            }
            Put::Whole => {
                let whole = self.remove(&f.key)?.whole(pool);
                match whole {
                    Some(_) => counts.whole += 1,
                    None => counts.failed += 1,
                }
                whole
            }
        }
    }

    /// Takes out the datagrams that have waited for too long, with what has come of their
    /// beginnings.
    pub(super) fn expire(&mut self, now: Time, mut gone: impl FnMut(Key, Partial)) {
        while let Some((key, since)) = self.oldest() {
            if now.nanos_since(since) < REASSEMBLY {
                return;
            }
            if let Some(p) = self.remove(&key) {
                gone(key, p);
            }
        }
    }
}

/// What is to be counted once the lock is let go.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) whole: u64,
    pub(super) failed: u64,
    pub(super) overlaps: u64,
    pub(super) refused: u64,
}

impl Partial {
    fn new(serial: u64, since: Time) -> Partial {
        Partial {
            serial,
            since,
            pieces: Vec::new(),
            have: 0,
            total: None,
            head: None,
            pinned: 0,
            dead: false,
        }
    }

    fn kill(&mut self) {
        self.dead = true;
        self.pieces = Vec::new();
        self.head = None;
    }

    fn put(&mut self, f: &Fragment, data: PktBuf, head: Option<(Vec<u8>, usize, u8)>) -> Put {
        let (start, end) = (f.start, f.start + data.len() as u32);
        if self.dead {
            return Put::Dead;
        }
        let at = self.pieces.partition_point(|p| p.start < start);
        if let Some(p) = self.pieces.get(at)
            && (p.start, p.end()) == (start, end)
            && p.data.as_slice() == data.as_slice()
        {
            return Put::Twice;
        }
        let before = at.checked_sub(1).map(|i| self.pieces[i].end());
        let after = self.pieces.get(at).map(|p| p.start);
        let overlaps = before.is_some_and(|e| e > start) || after.is_some_and(|s| s < end);
        let beyond = match (f.more, self.total) {
            (true, Some(total)) => end >= total,
            (false, Some(total)) => end != total,
            // The last fragment ends the datagram.
            (false, None) => self.pieces.last().is_some_and(|p| p.end() > end),
            (true, None) => false,
        };
        if overlaps || beyond || self.pieces.len() >= PIECES {
            return Put::Dead;
        }
        if !f.more {
            self.total = Some(end);
        }
        if head.is_some() {
            self.head = head;
        }
        self.have += data.len() as u32;
        self.pieces.insert(at, Piece { start, data });
        match self.total {
            Some(total) if total == self.have && self.head.is_some() => Put::Whole,
            _ => Put::Waits,
        }
    }

    /// What is known of its beginning, if that has come: the frame's headers, how many octets of
    /// these are the link layer's, and up to `most` octets of data behind them.
    pub(super) fn beginning(&self, most: usize) -> Option<(&[u8], usize, &[u8])> {
        let (head, l2, _) = self.head.as_ref()?;
        let data = self.pieces.first().map_or(&[][..], |p| p.data.as_slice());
        Some((head, *l2, &data[..data.len().min(most)]))
    }

    /// The frame of the whole datagram.
    fn whole(self, pool: &mut PktPool) -> Option<PktBuf> {
        let (head, l2, next) = self.head?;
        let len = head.len() + self.have as usize;
        let mut out = pool.take(len);
        out.set_window(0, len);
        let bytes = out.as_mut_slice();
        bytes[..head.len()].copy_from_slice(&head);
        let mut at = head.len();
        for p in self.pieces {
            bytes[at..at + p.data.len()].copy_from_slice(p.data.as_slice());
            at += p.data.len();
            pool.put(p.data);
        }
        let ip = &mut bytes[l2..];
        let mend = match ip.first()? >> 4 {
            4 => mend_v4(ip),
            _ => mend_v6(ip, head.len() - l2, next),
        };
        mend.map(|()| out)
    }
}

/// Makes the header of a first fragment that of its whole datagram, which `ip` is. `None`: it is
/// longer than any can be.
fn mend_v4(ip: &mut [u8]) -> Option<()> {
    let total = u16::try_from(ip.len()).ok()?;
    let header = usize::from(ip[0] & 0x0f) * 4;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    // "Don't fragment" may stay, and means nothing.
    ip[6] &= 0x40;
    ip[7] = 0;
    ip[10..12].fill(0);
    let check = perimeter_wire::checksum::checksum(&ip[..header]);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    Some(())
}

/// The same for IPv6, whose fragment header is gone already: whatever named it names what it did.
fn mend_v6(ip: &mut [u8], header: usize, next: u8) -> Option<()> {
    let payload = u16::try_from(ip.len() - Ipv6Hdr::LEN).ok()?;
    ip[4..6].copy_from_slice(&payload.to_be_bytes());
    let (mut at, mut field) = (Ipv6Hdr::LEN, 6);
    while at < header {
        field = at;
        at += (usize::from(*ip.get(at + 1)?) + 1) * 8;
    }
    // One fragment header is enough: two would be a riddle.
    (ip[field] == NEXT_FRAGMENT && next != NEXT_FRAGMENT).then(|| ip[field] = next)
}

/// Reads a fragment out of its frame; `None`: it can be none.
pub(super) fn read(iface: u16, frame: &[u8], l2: usize) -> Option<Fragment> {
    let bytes = frame.get(l2..)?;
    let of = |key, start: u32, more: bool, at: usize, end: usize, header, next| {
        let len = end.checked_sub(at)?;
        let last = start as usize + len;
        // All but the last are of whole blocks, and no datagram is longer than its length says.
        let fits = len > 0 && (!more || len.is_multiple_of(8));
        (fits && last <= MAX_DATAGRAM as usize).then_some(Fragment {
            key,
            start,
            more,
            data: (l2 + at, len),
            l2,
            header,
            next,
        })
    };
    match bytes.first()? >> 4 {
        4 => {
            let ip = Ipv4Hdr::parse(bytes, true).ok()?;
            let key = Key {
                src: IpAddr::V4(ip.src),
                dst: IpAddr::V4(ip.dst),
                iface,
                ident: ip.ident.into(),
                protocol: ip.protocol,
            };
            let (at, end) = (usize::from(ip.header_len), usize::from(ip.total_len));
            let start = u32::from(ip.frag_offset);
            of(key, start, ip.more_fragments, at, end, at, ip.protocol)
        }
        6 => {
            let ip = Ipv6Hdr::parse(bytes).ok()?;
            let Ipv6Fragment {
                offset,
                more,
                ident,
            } = ip.fragment?;
            let key = Key {
                src: IpAddr::V6(ip.src),
                dst: IpAddr::V6(ip.dst),
                iface,
                ident,
                protocol: 0,
            };
            let (at, end) = (usize::from(ip.header_len), ip.total_len as usize);
            let header = at.checked_sub(FRAGMENT_HEADER)?;
            of(key, offset.into(), more, at, end, header, ip.protocol)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
