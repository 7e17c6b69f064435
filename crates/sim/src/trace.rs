//! A tap on a device that notes segments as text: what a failed run prints when it is replayed.

use perimeter_base::{PktBuf, PktPool, Time, TxDesc, TxRing};
use perimeter_link::{Capabilities, Device, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker};
use perimeter_wire::Seq;
use perimeter_wire::tcp::{ParsedTcp, TcpFlags, TcpHdr};
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// Damage that the checks of a run must see: the test of the tests.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// One bit of the payload of the client's received segment number n is flipped, and the
    /// checksum vouched for.
    WrongBit(u64),
    /// From the client's received frame number n on it receives nothing.
    Silence(u64),
    /// The client's received frame number n, of those with much in them that are no fragments,
    /// comes twice.
    Twice(u64),
    /// Two words near the end of the client's received frame number n, of those with much in them,
    /// have changed places: no checksum shows it.
    Swapped(u64),
    /// A fragment that the client receives has the data of one of another datagram.
    Joined,
}

/// What a tap does beside passing frames on.
#[derive(Clone, Default)]
pub struct Spy {
    /// Notes traffic.
    pub trace: Option<Trace>,
    /// Does damage.
    pub sabotage: Option<Sabotage>,
    /// Locks may be taken in any order: only the deadlocks that come of it are seen.
    pub any_lock_order: bool,
}

/// Data segments that left a stack behind later data of their connection: sent again, or out of
/// order. Cheap to clone.
#[derive(Clone, Default)]
pub struct Overtaken(Arc<AtomicU64>);

impl Overtaken {
    /// How many.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A device whose traffic is noted, or damaged.
pub struct Tap {
    inner: Box<dyn Device>,
    spy: Spy,
    label: char,
    overtaken: Overtaken,
}

impl Tap {
    /// Around `inner`; `label` names it in the lines.
    pub fn new(inner: Box<dyn Device>, spy: Spy, label: char, overtaken: Overtaken) -> Tap {
        Tap {
            inner,
            spy,
            label,
            overtaken,
        }
    }
}

impl Device for Tap {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let (rx, tx) = self.inner.open();
        let (spy, label) = (self.spy, self.label);
        let rx = rx.into_iter().map(|inner| {
            let spy = spy.clone();
            Box::new(TapRx {
                inner,
                spy,
                label,
                seen: 0,
                last: Vec::new(),
            }) as Box<dyn RxQueue>
        });
        let tx = tx.into_iter().map(|inner| {
            let trace = spy.trace.clone();
            Box::new(TapTx {
                inner,
                trace,
                label,
                latest: HashMap::new(),
                left: 0,
                overtaken: self.overtaken.clone(),
            }) as Box<dyn TxQueue>
        });
        (rx.collect(), tx.collect())
    }
}

/// The protocol of a frame's datagram and where its header begins. Of IPv6 the first header counts.
fn protocol(bytes: &[u8]) -> Option<(u8, usize)> {
    match bytes.get(12..14)? {
        [8, 0] => {
            let head = usize::from(bytes.get(14)? & 15) * 4;
            Some((*bytes.get(23)?, 14 + head))
        }
        [0x86, 0xdd] => Some((*bytes.get(20)?, 14 + 40)),
        _ => None,
    }
}

/// Whether a frame has a fragment.
fn is_cut(bytes: &[u8]) -> bool {
    match bytes.get(12..14) {
        // More fragments, or not the first one.
        Some(&[8, 0]) => bytes
            .get(20..22)
            .is_some_and(|f| f[0] & 0x3f != 0 || f[1] != 0),
        _ => protocol(bytes).is_some_and(|(number, _)| number == 44),
    }
}

/// The segment of a frame, and where its header begins: not of a fragment.
fn tcp(bytes: &[u8]) -> Result<(ParsedTcp, usize), String> {
    let (number, at) = protocol(bytes).ok_or("not IP")?;
    let cut = is_cut(bytes);
    if number != 6 || cut {
        let what = if cut { "fragment" } else { "datagram" };
        return Err(format!("{what} of protocol {number}"));
    }
    let rest = bytes.get(at..).unwrap_or(&[]);
    let parsed = TcpHdr::parse_noting(rest).map_err(|e| format!("not TCP ({e})"))?;
    Ok((parsed, at))
}

/// A frame in a line. `len` is its whole length; `bytes` may be only its headers.
fn describe(bytes: &[u8], len: usize) -> String {
    match tcp(bytes) {
        Ok((p, at)) => {
            let header = at + usize::from(p.header_len);
            segment(&p, len.saturating_sub(header))
        }
        Err(e) => format!("{len} bytes, {e}"),
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

/// Where a fragment's data begins, and its identification.
fn cut(frame: &[u8]) -> Option<(usize, &[u8])> {
    match (is_cut(frame), frame.get(12..14)?) {
        (true, [8, 0]) => Some((34, frame.get(18..20)?)),
        (true, _) => Some((62, frame.get(58..62)?)),
        _ => None,
    }
}

/// Gives a fragment the data of `other`, if that is of another datagram and as long.
fn join(frame: &mut [u8], other: &[u8]) -> bool {
    let (Some((at, ident)), Some((_, of))) = (cut(frame), cut(other)) else {
        return false;
    };
    let joins = ident != of && frame.len() == other.len();
    if joins {
        frame[at..].copy_from_slice(&other[at..]);
    }
    joins
}

struct TapRx {
    inner: Box<dyn RxQueue>,
    spy: Spy,
    label: char,
    seen: u64,
    /// The last full fragment, where some are to be joined.
    last: Vec<u8>,
}

impl TapRx {
    /// Whether the frame goes on.
    fn damage(&mut self, f: &mut RxFrame) -> bool {
        match self.spy.sabotage {
            Some(Sabotage::WrongBit(n)) if f.buf.len() > 200 => {
                self.seen += 1;
                if self.seen == n {
                    let last = f.buf.len() - 1;
                    f.buf.as_mut_slice()[last] ^= 1;
                    f.csum_ok = true;
                }
                true
            }
            Some(Sabotage::Swapped(n)) if f.buf.len() > 200 => {
                self.seen += 1;
                let bytes = f.buf.as_mut_slice();
                let at = (bytes.len() - 10) / 2 * 2;
                let (a, b) = bytes[at..].split_at_mut(4);
                if self.seen == n {
                    a.swap_with_slice(&mut b[..4]);
                }
                true
            }
            Some(Sabotage::Joined) => {
                if self.seen == 0 && join(f.buf.as_mut_slice(), &self.last) {
                    self.seen = 1;
                }
                if is_cut(f.buf.as_slice()) && f.buf.len() >= self.last.len() {
                    self.last = f.buf.as_slice().to_vec();
                }
                true
            }
            Some(Sabotage::Silence(n)) => {
                self.seen += 1;
                self.seen < n
            }
            _ => true,
        }
    }
}

impl RxQueue for TapRx {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let before = out.len();
        let n = self.inner.poll(now, pool, out, max);
        if let Some(trace) = &self.spy.trace {
            for f in &out[before..] {
                let text = describe(f.buf.as_slice(), f.buf.len() + f.buf.behind_len());
                trace.note(now, &format!("{} <- {text}", self.label));
            }
        }
        if self.spy.sabotage.is_none() || self.label != 'C' {
            return n;
        }
        let came: Vec<RxFrame> = out.drain(before..).collect();
        for mut f in came {
            f.buf.join();
            if let Some(Sabotage::Twice(n)) = self.spy.sabotage
                && f.buf.len() > 200
                && !is_cut(f.buf.as_slice())
            {
                self.seen += 1;
                if self.seen == n {
                    out.push(RxFrame {
                        buf: PktBuf::copy_of(f.buf.as_slice()),
                        ..f
                    });
                }
            }
            if self.damage(&mut f) {
                out.push(f);
            }
        }
        out.len() - before
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
    trace: Option<Trace>,
    label: char,
    /// The end of the latest data of each connection, by its ports.
    latest: HashMap<(u16, u16), Seq>,
    /// Descriptors that the device left at the last doorbell.
    left: usize,
    overtaken: Overtaken,
}

impl TapTx {
    fn look(&mut self, d: &TxDesc) {
        let Ok((p, _)) = tcp(d.headers()) else {
            return;
        };
        let ports = (p.hdr.src_port, p.hdr.dst_port);
        if p.hdr.flags.contains(TcpFlags::SYN) {
            self.latest.remove(&ports);
        }
        let data = d.payload_len() as u32;
        if data == 0 {
            return;
        }
        let latest = self.latest.entry(ports).or_insert(p.hdr.seq);
        if p.hdr.seq.lt(*latest) {
            self.overtaken.0.fetch_add(1, Ordering::Relaxed);
        } else {
            *latest = p.hdr.seq + data;
        }
    }
}

impl TxQueue for TapTx {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        // What a paced device left is offered again.
        for d in ring.pending().iter().skip(self.left) {
            self.look(d);
        }
        let describe = |d: &TxDesc| describe(d.headers(), d.frame_len());
        let texts: Vec<String> = match self.trace {
            Some(_) => ring.pending().iter().map(describe).collect(),
            None => Vec::new(),
        };
        let before = ring.len();
        self.inner.doorbell(now, ring);
        self.left = ring.len();
        if let Some(trace) = &self.trace {
            for text in &texts[..before - ring.len()] {
                trace.note(now, &format!("{} -> {text}", self.label));
            }
        }
    }

    fn carrier(&self) -> bool {
        self.inner.carrier()
    }

    fn ready_at(&self) -> Time {
        self.inner.ready_at()
    }
}
