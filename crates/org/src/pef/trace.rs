//! The tracing event: the paper's own example of altering a live connection's list (section
//! 3.2.1).

use super::event::{Direction, EventSpec, Layer, Packet, TraceSink, Traced, Under, Verdict};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// The tracing events for both lists. Received segments are seen in front of TCP, sent ones
/// behind it; both under TCP's perimeter, so their order is the connection's. When the sink has
/// had enough, each takes itself off with the next packet that comes its way.
pub fn events(sink: TraceSink) -> [EventSpec; 2] {
    let over = Arc::new(AtomicBool::new(false));
    [Direction::Receive, Direction::Transmit].map(|direction| {
        let (sink, over) = (sink.clone(), over.clone());
        EventSpec {
            name: "trace".to_string(),
            direction,
            layer: Layer::Tcp,
            under: Under::Layer,
            event: Arc::new(move |p: &mut Packet<'_>| {
                if !over.load(Ordering::Relaxed)
                    && let Some(t) = traced(p)
                    && !sink(&t)
                {
                    over.store(true, Ordering::Relaxed);
                }
                p.disable = over.load(Ordering::Relaxed);
                Verdict::Next
            }),
        }
    })
}

fn traced(p: &Packet<'_>) -> Option<Traced> {
    let (h, info) = (p.header?, p.tcp?.info());
    let scale = match p.direction {
        Direction::Receive | Direction::Datagram | Direction::Unbound => info.snd_wscale,
        Direction::Transmit | Direction::SentDatagram => info.rcv_wscale,
    };
    // The window of a SYN is not scaled (RFC 7323, section 2.2).
    let scale = scale.filter(|_| !h.flags.contains(perimeter_wire::TcpFlags::SYN));
    Some(Traced {
        at: p.now,
        direction: p.direction,
        flow: p.flow,
        seq: h.seq.0,
        ack: h.ack.0,
        flags: h.flags,
        len: p.len,
        window: u32::from(h.window) << scale.unwrap_or(0),
        cwnd: info.cwnd_bytes,
        ssthresh: info.snd_ssthresh,
        srtt_ns: u64::try_from(info.srtt.as_nanos()).unwrap_or(u64::MAX),
    })
}
