//! A half-open connection: what is kept of it, what it sends, and what becomes of it.

use super::handshake::{Established, ListenParams, MIN_MSS, NIL, Origin};
use crate::isn::ts_clock;
use crate::tcb::types::Rst;
use perimeter_base::Time;
use perimeter_wire::tcp::MAX_WSCALE;
use perimeter_wire::{FlowKey, MacAddr, SegOut, Seq, TcpFlags, TcpHdr, TcpOptions};

/// What holds if a peer announces no MSS (RFC 9293, section 3.7.1), IPv4.
pub(super) const DEFAULT_MSS_V4: u16 = 536;
/// The same for IPv6.
pub(super) const DEFAULT_MSS_V6: u16 = 1220;
/// Challenge acknowledgments that an entry gives between two SYN-ACKs (RFC 5961, section 7). The
/// limit is the entry's own, so that it tells nothing about others (CVE-2016-5696).
pub(super) const CHALLENGES: u8 = 8;
/// Wait after the first SYN-ACK; it doubles per level.
pub(super) const TIMEOUT: u64 = 1_000_000_000;

pub(super) const TIMESTAMPS: u8 = 1;
pub(super) const SACK: u8 = 2;
pub(super) const WSCALE: u8 = 4;
pub(super) const RESENT: u8 = 8;

/// A half-open connection. Besides its bucket it stands in its timer level's list, in the
/// order of deadlines.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// When the first SYN-ACK was sent.
    pub(super) sent: Time,
    pub(super) deadline: Time,
    pub(super) key: FlowKey,
    pub(super) iss: Seq,
    pub(super) irs: Seq,
    pub(super) ts_recent: u32,
    pub(super) ts_offset: u32,
    pub(super) rcv_wnd: u32,
    pub(super) prev: u32,
    /// Next in the timer level; next free when unused.
    pub(super) next: u32,
    pub(super) peer_mss: u16,
    pub(super) mss: u16,
    pub(super) origin: u16,
    /// The interface that the SYN came in by, [`NO_IFACE`] if that is not known, and the station that
    /// sent it. Strangers make no entries among the neighbours, so it is kept here.
    iface: u16,
    station: MacAddr,
    pub(super) snd_wscale: u8,
    pub(super) rcv_wscale: u8,
    pub(super) flags: u8,
    /// Challenge acknowledgments left until the next SYN-ACK.
    pub(super) challenges: u8,
    /// Timer level, the number of timer retransmissions; `u8::MAX` when unused.
    pub(super) level: u8,
}

const _: () = assert!(size_of::<Entry>() <= 104);

/// No interface.
const NO_IFACE: u16 = u16::MAX;

/// How an entry keeps where its SYN came from.
fn kept(from: Option<Origin>) -> Origin {
    from.unwrap_or((NO_IFACE, MacAddr::UNSPECIFIED))
}

/// The SYN-ACK with number `iss` to the SYN with number `irs`.
pub(super) fn syn_ack(iss: Seq, irs: Seq, rcv_wnd: u32, opts: TcpOptions) -> SegOut {
    SegOut {
        seq: iss,
        ack: irs + 1,
        flags: TcpFlags::SYN | TcpFlags::ACK,
        // The window of a SYN is not scaled (RFC 7323, section 2.2).
        window: rcv_wnd.min(65_535) as u16,
        urgent: 0,
        opts,
    }
}

impl Entry {
    /// That of a SYN to a listener that offers `l`.
    pub(super) fn new(
        key: FlowKey,
        seg: &TcpHdr,
        l: &ListenParams,
        iss: Seq,
        ts_offset: u32,
        now: Time,
    ) -> Entry {
        let o = &seg.opts;
        let (iface, station) = kept(l.from);
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
        let default_mss = if key.remote.is_ipv6() {
            DEFAULT_MSS_V6
        } else {
            DEFAULT_MSS_V4
        };
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
            iface,
            station,
            snd_wscale,
            rcv_wscale,
            flags,
            challenges: CHALLENGES,
            level: 0,
        }
    }

    /// One whose handshake was complete and could not be taken: as if the acknowledgment had been
    /// lost.
    pub(super) fn back(key: FlowKey, e: &Established, from: Option<Origin>, now: Time) -> Entry {
        let (iface, station) = kept(from);
        let (snd_wscale, rcv_wscale) = e.wscale.unwrap_or((0, 0));
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
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
            iface,
            station,
            snd_wscale,
            rcv_wscale,
            flags: flag(e.timestamps, TIMESTAMPS)
                | flag(e.sack, SACK)
                | flag(e.wscale.is_some(), WSCALE)
                | RESENT,
            challenges: CHALLENGES,
            level: 0,
        }
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn syn_ack(&self, now: Time) -> SegOut {
        let ts = self
            .has(TIMESTAMPS)
            .then(|| (ts_clock(now, self.ts_offset), self.ts_recent));
        let opts = TcpOptions {
            mss: Some(self.mss),
            wscale: self.has(WSCALE).then_some(self.rcv_wscale),
            sack_permitted: self.has(SACK),
            ts,
            ..TcpOptions::default()
        };
        syn_ack(self.iss, self.irs, self.rcv_wnd, opts)
    }

    /// Where the SYN came from, if it is known.
    pub(super) fn from(&self) -> Option<Origin> {
        let known = self.iface != NO_IFACE;
        known.then_some((self.iface, self.station))
    }

    /// `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=RST,ACK>`: for a peer that believes that it is connected, as
    /// well as for one that has not got the SYN-ACK.
    pub(super) fn reset(&self) -> SegOut {
        Rst::new(self.iss + 1, Some(self.irs + 1)).seg()
    }

    /// The segments that RFC 9293, section 3.10.7.4 calls acceptable start here.
    pub(super) fn in_window(&self, seq: Seq) -> bool {
        let first = self.irs + 1;
        seq.between(first, first + self.rcv_wnd.max(1))
    }

    /// Older than the SYN (PAWS: RFC 7323, section 5).
    pub(super) fn is_stale(&self, seg: &TcpHdr) -> bool {
        let older = |val| Seq(val).lt(Seq(self.ts_recent));
        self.has(TIMESTAMPS) && seg.opts.ts.is_some_and(|(val, _)| older(val))
    }

    /// `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>`.
    pub(super) fn ack(&self, now: Time) -> SegOut {
        let shift = if self.has(WSCALE) { self.rcv_wscale } else { 0 };
        let ts = self.has(TIMESTAMPS);
        SegOut {
            seq: self.iss + 1,
            ack: self.irs + 1,
            flags: TcpFlags::ACK,
            window: (self.rcv_wnd.min(65_535) >> shift) as u16,
            urgent: 0,
            opts: TcpOptions {
                ts: ts.then(|| (ts_clock(now, self.ts_offset), self.ts_recent)),
                ..TcpOptions::default()
            },
        }
    }

    pub(super) fn established(&self, seg: &TcpHdr, now: Time) -> Established {
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
