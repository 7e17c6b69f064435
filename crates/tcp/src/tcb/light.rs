//! Header prediction (Jacobson's; RFC 7323, appendix on it): the two segments that make up
//! nearly all traffic cost a few comparisons.

use perimeter_base::{PktBuf, Time};
use perimeter_wire::{TcpFlags, TcpHdr};

use super::types::{Input, Path, Run};
use super::{Tcb, flag, tick};
use crate::cc::Ack;

/// A pause in the peer's data after which the first acknowledgments are sent at once again, in
/// ticks: the smallest RTO, 200 ms.
pub(super) const DATA_PAUSE: u32 = 191;

impl Tcb {
    /// A segment for this connection: its header and, if there is payload, the buffer with
    /// the window on it. What became of it is written to `out`, the default until then: returned
    /// by value it would be copied wherever this is not inlined.
    #[inline]
    pub fn input(&mut self, seg: &TcpHdr, data: Option<PktBuf>, now: Time, out: &mut Input) {
        let mut data = data;
        if !self.input_light(seg, &mut data, now, out) {
            self.input_full(seg, data, now, out);
        }
    }

    /// Takes the segment if it is what prediction expects: the connection is established and
    /// undisturbed, the segment is next in sequence, has no flag but ACK and PSH, and
    /// acknowledges new data or carries some. Otherwise returns false and has changed nothing.
    #[inline]
    pub fn input_light(
        &mut self,
        seg: &TcpHdr,
        data: &mut Option<PktBuf>,
        now: Time,
        out: &mut Input,
    ) -> bool {
        let len = data.as_ref().map_or(0, |d| d.len() as u32);
        if !self.predict(
            seg,
            Run {
                segs: 1,
                first: len,
                octets: len,
            },
            now,
            out,
        ) {
            return false;
        }
        out.data = data.take();
        true
    }

    /// As [`Tcb::input_light`], for segments that follow each other and were merged: `seg` is the
    /// header of the first, with the flags and what it acknowledges of the last. The payload is the
    /// caller's to deliver. If it returns false, each of them is to be given to [`Tcb::input`].
    #[inline(never)]
    pub fn input_run(&mut self, seg: &TcpHdr, run: Run, now: Time, out: &mut Input) -> bool {
        self.predict(seg, run, now, out)
    }

    #[inline(always)]
    fn predict(&mut self, seg: &TcpHdr, run: Run, now: Time, out: &mut Input) -> bool {
        let plain = seg.flags.without(TcpFlags::PSH) == TcpFlags::ACK;
        if !(self.has(flag::FAST) && plain && seg.seq == self.rcv_nxt && seg.opts.sack.is_empty()) {
            return false;
        }
        let flight = self.snd_nxt.since(self.snd_una);
        let acked = seg.ack.since(self.snd_una);
        let len = run.octets;
        if acked > flight || acked | len == 0 || len > self.rcv_adv.since(self.rcv_nxt) {
            return false;
        }
        if self.has(flag::TS) {
            let Some((val, _)) = seg.opts.ts else {
                return false;
            };
            // PAWS: the full path answers.
            if (val.wrapping_sub(self.ts_recent) as i32) < 0 {
                return false;
            }
            if seg.seq.le(self.last_ack) {
                self.ts_recent = val;
            }
        }
        let tick = tick(now);
        let segs = u32::from(run.segs);
        self.count.segs_in = self.count.segs_in.wrapping_add(segs);
        // The segment is the newest in sequence, so it may update the window (SND.WL1 <=
        // SEG.SEQ, SND.WL2 <= SEG.ACK).
        self.snd_wnd = u32::from(seg.window) << self.snd_shift;
        self.max_wnd = self.max_wnd.max(self.snd_wnd);
        self.snd_wl1 = seg.seq;
        self.snd_wl2 = seg.ack;
        if acked > 0 {
            self.ack_light(seg, acked, segs, now);
        }
        if len > 0 {
            if tick.wrapping_sub(self.last_data_rx) > DATA_PAUSE {
                self.quick = self.set.quick_acks;
            }
            self.last_data_rx = tick;
            self.count.data_segs_in = self.count.data_segs_in.wrapping_add(segs);
            self.advance_rcv(len);
            self.schedule_ack(run.first, now);
        }
        self.last_rx = tick;
        out.acked = acked;
        out.path = if len > 0 {
            Path::PredictedData
        } else {
            Path::PredictedAck
        };
        out.output = acked > 0 || self.has(flag::ACK_NOW | flag::WANTS);
        true
    }

    #[inline(always)]
    fn ack_light(&mut self, seg: &TcpHdr, acked: u32, segs: u32, now: Time) {
        self.snd_una = seg.ack;
        self.flags &= !flag::TLP_ARMED;
        self.count.bytes_acked += u64::from(acked);
        let mut rtt_ns = None;
        if self.has(flag::TIMING) && seg.ack.ge(self.rtt_seq) {
            let ns = now.nanos_since(self.rtt_at);
            self.rtt.sample(ns);
            self.flags &= !flag::TIMING;
            rtt_ns = Some(ns);
        }
        if self.has(flag::SAMPLING) {
            rtt_ns = self.sample_times(now).or(rtt_ns);
        }
        let cwnd_limited = self.usage.is_limited(&self.cc);
        self.cc.on_ack(&Ack {
            acked,
            cwnd_limited,
            rtt_ns,
            snd_una: seg.ack,
            snd_nxt: self.snd_nxt,
            segs,
            now,
        });
        self.rexmt_at = if seg.ack == self.snd_nxt {
            Time::NEVER
        } else {
            now.plus(self.rtt.rto())
        };
    }
}
