//! The core alone: `perimeter-base`, `perimeter-wire` and `perimeter-tcp` as a program uses them
//! that has an allocator, but neither std nor threads nor an operating system.
//!
//! [`exchange`] is such a program: two connections that open, send, and close, in a time that it
//! counts itself.
//!
//! The feature `alone` adds the panic handler that a program without std must have. The compiler
//! takes only one, and std has one: so with that feature this crate compiles only as long as
//! nothing below it needs std. `tests/alone.rs` compiles it so.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::vec::Vec;
use perimeter_base::{PktBuf, PktPool, Time, TxRing};
use perimeter_tcp::{Config, Events, Input, RcvBuf, SndBuf, Tcb};
use perimeter_wire::{Seq, TcpFlags, TcpHdr, TcpOptions};

#[cfg(feature = "alone")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// How long a segment is under way, in nanoseconds.
const DELAY: u64 = 1_000_000;

/// One end of the connection.
struct End {
    tcb: Tcb,
    snd: SndBuf,
    rcv: RcvBuf,
    pool: PktPool,
    closed: bool,
}

impl End {
    fn new(iss: u32, now: Time) -> End {
        let cfg = Config::default();
        End {
            tcb: Tcb::connect(&cfg, Seq(iss), iss, now),
            snd: SndBuf::new(cfg.snd_buf),
            rcv: RcvBuf::new(cfg.rcv_buf),
            pool: PktPool::new(16),
            closed: false,
        }
    }

    /// All segments that are to be sent now.
    fn output(&mut self, now: Time) -> Vec<(TcpHdr, Vec<u8>)> {
        let mut out = Vec::new();
        while let Some(plan) = self.tcb.plan(self.snd.queued(), now) {
            let mut ring = TxRing::new(1);
            if let Some(mut slot) = ring.push() {
                self.snd
                    .refer(plan.off, plan.len, &mut slot, &mut self.pool);
            }
            let payload = ring.pending()[0].payload().flatten().copied().collect();
            let mut hdr = plan.seg.to_hdr(1, 2);
            let syn = hdr.flags.contains(TcpFlags::SYN);
            let mut area = [0; 40];
            let n = hdr.opts.emit(syn, &mut area);
            hdr.opts = TcpOptions::parse(&area[..n], syn).0;
            out.push((hdr, payload));
        }
        out
    }

    fn input(&mut self, hdr: &TcpHdr, payload: &[u8], now: Time) {
        let data = (!payload.is_empty()).then(|| PktBuf::copy_of(payload));
        let mut input = Input::default();
        self.tcb.input(hdr, data, now, &mut input);
        self.snd.ack(input.acked);
        let mut data = input.data;
        while let Some(b) = data {
            self.rcv.push(b, &mut self.pool);
            data = self.tcb.next_in_order();
        }
        self.closed |= input.events.contains(Events::EOF);
    }
}

/// Opens a connection from both ends at once, sends `text` one way over it, closes it, and returns
/// what has arrived. Segments are lost as `lost` says by their number. `text` is not empty.
pub fn exchange(text: &[u8], mut lost: impl FnMut(u64) -> bool) -> Vec<u8> {
    let mut now = Time::from_millis(1);
    let mut ends = [End::new(1_000, now), End::new(2_000, now)];
    let (mut written, mut number) = (0, 0);
    let mut arrived = Vec::new();
    while !ends[1].closed {
        if ends[0].tcb.state().is_synchronized() && written < text.len() {
            written += ends[0].snd.push_copy(&text[written..]);
            if written == text.len() {
                ends[0].tcb.shutdown_write(now);
            }
        }
        let sent = [ends[0].output(now), ends[1].output(now)];
        let quiet = sent.iter().all(Vec::is_empty);
        let deadline = ends[0].tcb.deadline().min(ends[1].tcb.deadline());
        now = now.plus(DELAY);
        if quiet {
            now = now.max(deadline);
        }
        for (from, segments) in sent.into_iter().enumerate() {
            for (hdr, payload) in segments {
                number += 1;
                if !lost(number) {
                    ends[1 - from].input(&hdr, &payload, now);
                }
            }
        }
        for end in &mut ends {
            if end.tcb.deadline() <= now {
                end.tcb.on_timer(now);
            }
            while let Some(b) = end.rcv.pop(usize::MAX, &mut end.pool) {
                arrived.extend_from_slice(b.as_slice());
                end.pool.put(b);
            }
            end.tcb.app_read(end.rcv.space(), end.rcv.limit());
        }
    }
    arrived
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_arrives_whole_over_a_wire_that_loses() {
        let text: Vec<u8> = (0..300_000u32)
            .map(|i| (i.wrapping_mul(i) >> 8) as u8)
            .collect();
        assert_eq!(exchange(&text, |_| false), text);
        assert_eq!(exchange(&text, |n| n % 23 == 3), text);
    }
}
