//! Data in: order, the window we offer, and when to acknowledge.

use core::time::Duration;

use perimeter_base::{PktBuf, Time};
use perimeter_wire::Seq;

use super::types::{Events, Input};
use super::{Tcb, flag};
use crate::rcvbuf::RcvBuf;

/// How long an acknowledgment that is due waits for an application that is behind. A peer that hears
/// nothing probes for losses after two round trips, or after 2 ms where those are shorter (RFC 8985,
/// section 7.2; Linux's minimum). One round trip and half a millisecond are always less.
const FOR_READER: Duration = Duration::from_micros(500);

impl Tcb {
    /// Of the receive buffer's `limit` octets, at most 1 GiB ([`RcvBuf::limit`]), `space` are
    /// free, after the application has read from it or changed its size. True: run the output
    /// loop, a window update is due.
    ///
    /// An update is due when the window has become small and can grow by a worthwhile step
    /// ([`RcvBuf::step`]). A window above half the buffer doesn't stop the peer, and its growth
    /// rides on ordinary acknowledgments. So does the first growth beyond the window of the SYN:
    /// nothing is due before data was read. But what was worth waiting for depends on the limit:
    /// where that has changed, a window that is worth less than a step may be all that the peer
    /// has. An application that is behind is waited for ([`Tcb::set_ack_on_read`]).
    pub fn app_read(&mut self, space: u32, limit: u32) -> bool {
        if limit != self.set.rcv_limit {
            return self.new_limit(space, limit);
        }
        let before = self.rcv_space;
        self.rcv_space = space as i32;
        let step = RcvBuf::step(limit, self.adv_mss);
        space as i32 > before && !self.is_behind() && self.update_due(space, limit, step)
    }

    #[cold]
    fn new_limit(&mut self, space: u32, limit: u32) -> bool {
        let grown = space as i32 > self.rcv_space;
        self.set.rcv_limit = limit;
        self.rcv_space = space as i32;
        let step = RcvBuf::step(limit, self.adv_mss);
        let little = self.rcv_adv.since(self.rcv_nxt) < step;
        (grown || little) && self.update_due(space, limit, step)
    }

    /// Whether the window is small and can grow by `step`; an acknowledgment is then due.
    #[inline]
    fn update_due(&mut self, space: u32, limit: u32, step: u32) -> bool {
        let open = self.rcv_adv.since(self.rcv_nxt);
        let due = self.state.is_synchronized()
            && self.state.may_receive()
            && open <= limit / 2
            && space >= open.saturating_add(step);
        if due {
            self.flags |= flag::ACK_NOW;
        }
        due
    }

    /// Where acknowledgments wait for that ([`Tcb::set_ack_on_read`]): whether half of the receive
    /// buffer or more is full of what the application has not read.
    ///
    /// An acknowledgment would offer a small window then, and a second one would follow when the
    /// application has read. One after that read offers a window that is worth a burst.
    #[inline]
    fn is_behind(&self) -> bool {
        self.ack_on_read && self.rcv_space <= (self.set.rcv_limit / 2) as i32
    }

    /// Whether data at `seq` would be the next in order.
    pub fn is_next(&self, seq: Seq) -> bool {
        seq.le(self.rcv_nxt)
    }

    /// Drops what has arrived out of order, also what was reported by SACK (RFC 2018, section 8):
    /// the peer sends it again. Whether there was any.
    pub fn drop_out_of_order(&mut self) -> bool {
        let Some(ooo) = &mut self.ooo else {
            return false;
        };
        ooo.queue.clear();
        if ooo.ready.is_empty() {
            self.ooo = None;
            self.refresh_fast();
        }
        true
    }

    /// Data that became in order with the last [`Input::more`], in its order.
    pub fn next_in_order(&mut self) -> Option<PktBuf> {
        let ooo = self.ooo.as_mut()?;
        let next = ooo.ready.pop_front();
        if ooo.ready.is_empty() && ooo.queue.is_empty() {
            self.ooo = None;
            self.refresh_fast();
        }
        next
    }

    /// `len` octets were delivered: they take up buffer and window.
    #[inline]
    pub(super) fn advance_rcv(&mut self, len: u32) {
        self.rcv_nxt += len;
        self.rcv_space -= len as i32;
        self.count.bytes_received += u64::from(len);
    }

    /// When to acknowledge `len` octets that arrived in order: at once while acknowledgments
    /// are quick and for more than one full segment, otherwise after a delay (RFC 9293,
    /// section 3.8.6.3; RFC 5681, section 4.2). An application that [is behind](Tcb::is_behind) is
    /// waited for, but not for long.
    #[inline]
    pub(super) fn schedule_ack(&mut self, len: u32, now: Time) {
        if len > u32::from(self.rcv_mss) {
            self.rcv_mss = len.min(u32::from(self.adv_mss)) as u16;
        }
        let due = self.rcv_nxt.since(self.last_ack) > u32::from(self.rcv_mss);
        if self.quick > 0 || (due && !self.is_behind()) {
            self.flags |= flag::ACK_NOW;
        } else if due {
            self.delack_at = self.delack_at.min(now + FOR_READER);
        } else if self.delack_at == Time::NEVER {
            self.delack_at = now + Duration::from_millis(u64::from(self.set.delack_ms));
        }
    }

    /// The window field for a segment about to be sent; moves the advertised right edge.
    ///
    /// The edge moves right only by a segment or half the buffer at a time, whichever is less
    /// (RFC 9293, section 3.8.6.2.2), and never left. While it stands, rounding to the scale
    /// goes up, so that the peer doesn't see it move left, for as long as the buffer is not
    /// overdrawn by more than one unit.
    #[inline(always)]
    pub(super) fn window_field(&mut self) -> u16 {
        let shift = u32::from(self.rcv_shift);
        let open = self.rcv_adv.since(self.rcv_nxt);
        let step = u32::from(self.adv_mss).min(self.set.rcv_limit / 2).max(1);
        let space = self.rcv_space.max(0) as u32;
        if space >= open.saturating_add(step) {
            let field = (space >> shift).clamp(1, 0xffff);
            if field << shift > open {
                self.rcv_adv = self.rcv_nxt + (field << shift);
                return field as u16;
            }
        }
        let unit = 1u32 << shift;
        let up = ((open + (unit - 1)) >> shift).min(0xffff);
        let edge = i64::from(up << shift);
        if edge - i64::from(self.rcv_space) <= i64::from(unit) {
            if up << shift > open {
                self.rcv_adv = self.rcv_nxt + (up << shift);
            }
            return up as u16;
        }
        (open >> shift).min(0xffff) as u16
    }

    /// Payload and FIN of an acceptable segment. `fin` says that a FIN follows the payload.
    pub(super) fn take_data(
        &mut self,
        seq: Seq,
        data: Option<PktBuf>,
        fin: bool,
        now: Time,
        out: &mut Input,
    ) {
        let mut seq = seq;
        let mut fin = fin;
        let mut data = data.filter(|d| !d.is_empty());
        let len = |d: &Option<PktBuf>| d.as_ref().map_or(0, |d| d.len() as u32);
        let end = seq + len(&data);
        if (end + u32::from(fin)).le(self.rcv_nxt) {
            // Seen before: our acknowledgment was lost, or the peer was hasty.
            self.flags |= flag::ACK_NOW;
            return;
        }
        if seq.lt(self.rcv_nxt) {
            let old = self.rcv_nxt.since(seq);
            if let Some(d) = &mut data {
                d.trim_front(old as usize);
            }
            seq = self.rcv_nxt;
        }
        let open = self.rcv_adv.since(seq);
        if self.rcv_adv.lt(seq) || len(&data) > open {
            let room = if self.rcv_adv.lt(seq) { 0 } else { open };
            if let Some(d) = &mut data {
                d.truncate(room as usize);
            }
            fin = false;
            self.flags |= flag::ACK_NOW;
        }
        let data = data.filter(|d| !d.is_empty());
        if data.is_none() && !fin {
            return;
        }
        if seq == self.rcv_nxt {
            self.take_in_order(data, fin, now, out);
        } else {
            self.take_out_of_order(seq, data, fin);
        }
    }

    fn take_in_order(&mut self, data: Option<PktBuf>, fin: bool, now: Time, out: &mut Input) {
        if let Some(d) = data {
            let len = d.len() as u32;
            self.advance_rcv(len);
            self.schedule_ack(len, now);
            out.data = Some(d);
        }
        let mut fin = fin;
        if let Some(mut ooo) = self.ooo.take() {
            while let Some(d) = ooo.queue.pop(self.rcv_nxt) {
                self.advance_rcv(d.len() as u32);
                ooo.ready.push_back(d);
            }
            fin |= ooo.queue.fin_reached(self.rcv_nxt);
            if fin {
                ooo.queue.clear();
            }
            // A gap has closed or still stands: the peer waits to hear (RFC 5681, section
            // 4.2).
            self.flags |= flag::ACK_NOW;
            out.more = !ooo.ready.is_empty();
            if out.more || !ooo.queue.is_empty() {
                self.ooo = Some(ooo);
            }
        }
        if fin {
            self.take_fin(now, out);
        }
    }

    fn take_out_of_order(&mut self, seq: Seq, data: Option<PktBuf>, fin: bool) {
        let limit = self.set.reasm_limit as usize;
        let rcv_nxt = self.rcv_nxt;
        let ooo = self.ooo.get_or_insert_default();
        let mut end = seq;
        let mut dropped = false;
        if let Some(d) = data {
            end += d.len() as u32;
            dropped = ooo.queue.insert(seq, d, rcv_nxt, limit).dropped;
        }
        if fin && !dropped {
            ooo.queue.set_fin(end);
        }
        if ooo.queue.is_empty() && ooo.ready.is_empty() {
            self.ooo = None;
        }
        // RFC 5681, section 4.2: a duplicate acknowledgment at once.
        self.flags |= flag::ACK_NOW;
    }

    /// The peer's FIN is next in order.
    fn take_fin(&mut self, now: Time, out: &mut Input) {
        self.rcv_nxt += 1;
        if self.rcv_adv.lt(self.rcv_nxt) {
            self.rcv_adv = self.rcv_nxt;
        }
        self.flags |= flag::ACK_NOW;
        out.events |= Events::EOF;
        self.fin_arrived(now, out);
    }
}
