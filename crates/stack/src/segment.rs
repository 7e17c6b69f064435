//! Segments on their way: from the device to their connection, and from TCP to the layers that have
//! turns of their own.

use crate::id::SockId;
use perimeter_base::{Lease, PktBuf, PktPool};
use perimeter_tcp::{Events, SegPlan};
use perimeter_wire::{EtherHdr, FlowKey, MacAddr, TcpFrame, Template};
use smallvec::SmallVec;

/// No core: nothing has run yet.
pub const NOWHERE: u16 = u16::MAX;

/// A received TCP segment on its way to its connection. Written in place and passed by
/// reference: moving a freshly parsed header costs more than parsing it.
#[derive(Debug, Default)]
pub struct Seg {
    /// Flow and header, from this host's point of view.
    pub frame: TcpFrame,
    /// Hash of the flow, as [`SharedState::flow_hash`](crate::SharedState::flow_hash) gives it.
    pub hash: u32,
    /// Interface that it came in by.
    pub iface: u16,
    /// The core on which IP was done with it.
    pub core: u16,
    /// How many segments it is, where several were merged ([`crate::merge`]); else 1, or 0 where
    /// nobody has said.
    pub segs: u16,
    /// The frame, its window narrowed to the payload. Whoever deals with the segment takes it.
    pub payload: PktBuf,
    /// The payloads of merged segments behind the first one's.
    pub rest: Vec<PktBuf>,
    /// Octets of those.
    pub behind: u32,
    /// Octets of each merged segment but the last.
    pub size: u32,
    /// How far IP is with it.
    pub ip: Turn,
}

/// How far IP is with a received segment.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Turn {
    /// It is done.
    #[default]
    Done,
    /// It has yet to come ([`crate::late`]): only the flow is known, as the frame claims it, and
    /// [`Seg::payload`] is the whole frame.
    Ahead {
        /// The device has verified the checksums.
        csum_ok: bool,
        /// [`Seg::hash`] is the device's.
        hashed: bool,
        /// Octets of each segment that the frame is made of; 0: it is one.
        segment_size: u16,
    },
    /// It has yet to come, but the headers were read already, so that segments could be merged:
    /// [`Seg::payload`] is narrowed to the payload.
    Read,
}

impl Seg {
    /// Narrows [`Seg::payload`], a whole frame that has been read into [`Seg::frame`], to the data.
    #[inline(always)]
    pub(crate) fn narrow(&mut self) {
        self.payload.trim_front(self.frame.payload_off as usize);
        self.payload.truncate(self.frame.payload_len as usize);
    }

    /// Gives what is left of the payload to `pool`: of a segment that nobody has taken, whose place will
    /// be used again.
    #[inline]
    pub fn release(&mut self, pool: &mut PktPool) {
        pool.put(core::mem::take(&mut self.payload));
        for buf in self.rest.drain(..) {
            pool.put(buf);
        }
    }

    /// The station that sent its frame, which must have been one of Ethernet and still be in
    /// [`Seg::payload`].
    pub fn station(&self) -> Option<MacAddr> {
        let head = self.payload.before(self.frame.payload_off as usize)?;
        Some(EtherHdr::parse(head).ok()?.src)
    }
}

/// The segments of a burst, in order of arrival. Places are used again.
#[derive(Debug, Default)]
pub struct Segs {
    places: Vec<Seg>,
    len: usize,
    /// Some are in memory that a device has handed on.
    handed_on: bool,
}

impl Segs {
    /// The place behind the last segment, to be written; counted by [`Segs::keep`].
    #[inline]
    pub fn place(&mut self) -> &mut Seg {
        if self.len == self.places.len() {
            self.places.push(Seg::default());
        }
        &mut self.places[self.len]
    }

    /// Those that are kept, and [`Segs::place`], which was asked for already.
    #[inline]
    pub(crate) fn kept_and_place(&mut self) -> (&mut [Seg], &mut Seg) {
        let (kept, behind) = self.places.split_at_mut(self.len);
        (kept, &mut behind[0])
    }

    /// The segment in [`Segs::place`] is complete.
    #[inline]
    pub fn keep(&mut self) {
        self.len += 1;
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of them.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [Seg] {
        &mut self.places[..self.len]
    }

    /// Adds the segment whose headers were read into [`Segs::place`] and whose payload is in the pieces
    /// behind `frame`, made of segments of `size` octets.
    pub(crate) fn keep_pieces(&mut self, frame: &mut PktBuf, size: u16) {
        self.place().adopt(frame, size);
        self.keep();
        self.handed_on = true;
    }

    /// Forgets them.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        if self.handed_on {
            self.give_back();
        }
    }

    /// Drops what was handed on and nobody has taken: it is memory of others, who wait for it. A buffer of
    /// our own stays in its place until that is used again.
    #[cold]
    fn give_back(&mut self) {
        self.handed_on = false;
        for seg in &mut self.places {
            seg.payload = PktBuf::default();
            seg.rest.clear();
        }
    }

    /// Those there are.
    pub fn iter(&self) -> core::slice::Iter<'_, Seg> {
        self.places[..self.len].iter()
    }

    /// Runs `f` on each and forgets them.
    #[inline]
    pub fn drain(&mut self, mut f: impl FnMut(&mut Seg)) {
        for seg in &mut self.places[..self.len] {
            f(seg);
        }
        self.clear();
    }
}

/// News of a connection for its socket layer.
#[derive(Debug, Default)]
pub struct Up {
    /// Data in order.
    pub data: SmallVec<[PktBuf; 2]>,
    /// What happened, of what concerns the receive side.
    pub events: Events,
    /// The connection has failed.
    pub failed: bool,
}

impl Up {
    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty() && self.events.is_empty()
    }
}

/// What TCP has left of one connection for layers that have turns of their own.
#[derive(Debug)]
pub struct Apart {
    /// The connection.
    pub id: SockId,
    /// Its flow.
    pub key: FlowKey,
    /// News for the socket layer.
    pub up: Up,
    /// Segments for IP.
    pub out: Outgoing,
    /// Their headers.
    pub template: Template,
    /// The transmit queue that they take.
    pub txq: u16,
}

/// Segments of a connection that are between TCP and the transmit ring.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// The segments.
    pub segs: Vec<OutSeg>,
    /// Their payload.
    pub lease: Lease,
}

/// A segment that TCP has made and IP is to send.
#[derive(Debug)]
pub struct OutSeg {
    /// What TCP says about it.
    pub plan: SegPlan,
    /// The number of its payload in [`Outgoing::lease`]; `None`: it has none.
    pub payload: Option<u32>,
    /// Its IP identification.
    pub ident: u16,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use perimeter_base::Bytes;

    /// A burst whose first segment is in two pieces of `page`.
    fn in_pieces(page: &Bytes) -> Segs {
        let mut segs = Segs::default();
        let pieces = vec![page.slice(..60), page.slice(60..)];
        let mut frame = PktBuf::shared(Bytes::from_static(b"head"), pieces);
        segs.keep_pieces(&mut frame, 50);
        segs.place().payload = PktBuf::copy_of(b"our own");
        segs.keep();
        segs
    }

    #[test]
    fn nothing_that_was_handed_on_stays_in_a_place() {
        let page = Bytes::from(vec![7u8; 100]);
        let mut segs = in_pieces(&page);
        assert_eq!(segs.as_mut_slice()[0].octets(), 100);
        assert!(!page.is_unique(), "the burst is there");
        segs.drain(|_| ());
        assert!(page.is_unique(), "nobody took it");
        let mut segs = in_pieces(&page);
        segs.clear();
        assert!(page.is_unique(), "nobody looked at it");
        let mut segs = in_pieces(&page);
        let mut taken = Vec::new();
        segs.drain(|seg| taken.push(core::mem::take(&mut seg.payload)));
        assert!(!page.is_unique(), "somebody has the first piece");
        taken.clear();
        assert!(page.is_unique(), "and not the second");
    }

    #[test]
    fn a_segment_that_is_refused_keeps_nothing() {
        let page = Bytes::from(vec![7u8; 100]);
        let mut seg = core::mem::take(&mut in_pieces(&page).as_mut_slice()[0]);
        assert!(!page.is_unique());
        seg.release(&mut PktPool::default());
        assert!(page.is_unique() && seg.payload.is_empty() && seg.rest.is_empty());
    }
}
