//! A tap on a device that notes segments as text: what a failed run prints when it is replayed.

use perimeter_base::{PktPool, Time, TxRing};
use perimeter_link::{Capabilities, Device, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker};
use perimeter_wire::tcp::{ParsedTcp, TcpFlags, TcpHdr};
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// Lines of a run's traffic, the last ones. Cheap to clone.
#[derive(Clone)]
pub struct Trace {
    lines: Arc<Mutex<VecDeque<String>>>,
    limit: usize,
}

impl Trace {
    /// Keeps the last `limit` lines.
    pub fn new(limit: usize) -> Trace {
        Trace {
            lines: Arc::default(),
            limit,
        }
    }

    /// Notes something of the application's.
    pub fn note(&self, at: Time, text: &str) {
        self.push(format!("{:>14.6} {text}", at.nanos() as f64 / 1e6));
    }

    fn push(&self, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == self.limit {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// What was noted, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned()
            .collect()
    }
}

/// A device whose traffic is noted.
pub struct Tap {
    inner: Box<dyn Device>,
    trace: Option<Trace>,
    label: char,
}

impl Tap {
    /// Around `inner`; `label` names it in the lines. Without a trace nothing is noted.
    pub fn new(inner: Box<dyn Device>, trace: Option<Trace>, label: char) -> Tap {
        Tap {
            inner,
            trace,
            label,
        }
    }
}

impl Device for Tap {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let (rx, tx) = self.inner.open();
        let Some(trace) = self.trace else {
            return (rx, tx);
        };
        let label = self.label;
        let rx = rx.into_iter().map(|inner| {
            Box::new(TapRx {
                inner,
                trace: trace.clone(),
                label,
            }) as Box<dyn RxQueue>
        });
        let tx = tx.into_iter().map(|inner| {
            Box::new(TapTx {
                inner,
                trace: trace.clone(),
                label,
            }) as Box<dyn TxQueue>
        });
        (rx.collect(), tx.collect())
    }
}

/// A frame in a line. `len` is its whole length; `bytes` may be only its headers.
fn describe(bytes: &[u8], len: usize) -> String {
    if bytes.get(12..14) != Some(&[8, 0]) {
        return format!("{len} bytes, not IPv4");
    }
    let head = usize::from(bytes.get(14).copied().unwrap_or(0) & 15) * 4;
    match TcpHdr::parse_noting(bytes.get(14 + head..).unwrap_or(&[])) {
        Ok(p) => {
            let header = 14 + head + usize::from(p.header_len);
            segment(&p, len.saturating_sub(header))
        }
        Err(e) => format!("{len} bytes, not TCP ({e})"),
    }
}

fn segment(p: &ParsedTcp, payload: usize) -> String {
    let h = &p.hdr;
    let mut s = format!(
        "{}>{} {:?} seq {}",
        h.src_port, h.dst_port, h.flags, h.seq.0
    );
    if h.flags.contains(TcpFlags::ACK) {
        let _ = write!(s, " ack {}", h.ack.0);
    }
    let _ = write!(s, " win {} len {payload}", h.window);
    if let Some((val, ecr)) = h.opts.ts {
        let _ = write!(s, " ts {val}/{ecr}");
    }
    for (left, right) in h.opts.sack.as_slice() {
        let _ = write!(s, " sack {}-{}", left.0, right.0);
    }
    s
}

struct TapRx {
    inner: Box<dyn RxQueue>,
    trace: Trace,
    label: char,
}

impl RxQueue for TapRx {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let before = out.len();
        let n = self.inner.poll(now, pool, out, max);
        for f in &out[before..] {
            let text = describe(f.buf.as_slice(), f.buf.len());
            self.trace.note(now, &format!("{} <- {text}", self.label));
        }
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        self.inner.arm(now)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.inner.set_waker(waker);
    }
}

struct TapTx {
    inner: Box<dyn TxQueue>,
    trace: Trace,
    label: char,
}

impl TxQueue for TapTx {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        for d in ring.pending() {
            let text = describe(d.headers(), d.frame_len());
            self.trace.note(now, &format!("{} -> {text}", self.label));
        }
        self.inner.doorbell(now, ring);
    }

    fn completed(&self) -> u64 {
        self.inner.completed()
    }

    fn ready_at(&self) -> Time {
        self.inner.ready_at()
    }
}
