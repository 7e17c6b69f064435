//! Records what passes a device, in the pcapng format, for tshark and its like.
//!
//! Both directions, nanosecond timestamps, the direction in each packet's flags. Each burst is
//! formatted privately and handed to one buffered writer under a short lock; the file is written
//! when a megabyte has gathered, at [`PcapHandle::flush`], and when the last queue is dropped.

use perimeter_base::{PktPool, Time, TxRing};
use std::io::{self, BufWriter, Write};
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::csum;
use crate::device::{
    Capabilities, Device, Medium, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker,
};

/// How to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcapOptions {
    /// Bytes of each packet that are kept: 1 to 65535, else clamped.
    pub snap_len: u32,
    /// What the platform's time zero is on the calendar: nanoseconds since 1970. 0 for virtual
    /// time.
    pub epoch_ns: u64,
    /// Stop recording after this many bytes of file.
    pub max_bytes: u64,
}

impl Default for PcapOptions {
    fn default() -> PcapOptions {
        PcapOptions {
            snap_len: 65_535,
            epoch_ns: 0,
            max_bytes: u64::MAX,
        }
    }
}

impl PcapOptions {
    /// With the epoch that makes timestamps calendar time, for a platform whose time is `now`.
    pub fn on_calendar(self, now: Time) -> PcapOptions {
        let calendar = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        PcapOptions {
            epoch_ns: calendar.saturating_sub(now.nanos()),
            ..self
        }
    }
}

/// What has been recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcapCounts {
    /// Packets written.
    pub packets: u64,
    /// Packets left out: beyond the limit, or after a write had failed.
    pub left_out: u64,
    /// Bytes of file.
    pub bytes: u64,
}

struct Sink {
    out: BufWriter<Box<dyn Write + Send>>,
    counts: PcapCounts,
    error: Option<io::Error>,
    max_bytes: u64,
}

impl Sink {
    fn write(&mut self, bytes: &[u8], packets: u64) {
        let total = self.counts.bytes + bytes.len() as u64;
        if self.error.is_some() || total > self.max_bytes {
            self.counts.left_out += packets;
            return;
        }
        match self.out.write_all(bytes) {
            Ok(()) => {
                self.counts.bytes = total;
                self.counts.packets += packets;
            }
            Err(e) => {
                self.error = Some(e);
                self.counts.left_out += packets;
            }
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // Nobody is left to be told; `flush` before the end tells.
        let _ = self.out.flush();
    }
}

#[derive(Clone)]
struct Recorder {
    sink: Arc<Mutex<Sink>>,
    options: PcapOptions,
    medium: Medium,
}

/// Reads how the recording goes. Cheap to clone. It does not keep the file open for writing
/// longer than needed, but the file ends only when it and the queues are dropped, or at a flush.
#[derive(Clone)]
pub struct PcapHandle {
    sink: Arc<Mutex<Sink>>,
}

/// Nobody panics while holding the lock; if so, the counts are still good.
fn guard(sink: &Mutex<Sink>) -> MutexGuard<'_, Sink> {
    sink.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PcapHandle {
    /// What has been recorded.
    pub fn counts(&self) -> PcapCounts {
        guard(&self.sink).counts
    }

    /// Writes out what has gathered.
    ///
    /// # Errors
    /// The first error of writing, now or before. It is reported once; after it nothing is
    /// recorded.
    pub fn flush(&self) -> io::Result<()> {
        let mut sink = guard(&self.sink);
        if let Some(e) = sink.error.take() {
            sink.max_bytes = 0;
            return Err(e);
        }
        sink.out.flush()
    }
}

/// A device that records what passes.
pub struct Pcap {
    inner: Box<dyn Device>,
    recorder: Recorder,
}

impl Pcap {
    /// Records `inner` into a new file at `path`.
    ///
    /// # Errors
    /// If the file can't be made.
    pub fn create(
        inner: Box<dyn Device>,
        path: &Path,
        options: PcapOptions,
    ) -> io::Result<(Pcap, PcapHandle)> {
        let file = std::fs::File::create(path)?;
        Pcap::new(inner, Box::new(file), options)
    }

    /// Records `inner` into `out`.
    ///
    /// # Errors
    /// If the header can't be written.
    pub fn new(
        inner: Box<dyn Device>,
        out: Box<dyn Write + Send>,
        mut options: PcapOptions,
    ) -> io::Result<(Pcap, PcapHandle)> {
        options.snap_len = options.snap_len.clamp(1, 65_535);
        let caps = inner.capabilities();
        let mut header = Vec::new();
        section(&mut header);
        interface(&mut header, &caps, options.snap_len);
        let mut out = BufWriter::with_capacity(1 << 20, out);
        out.write_all(&header)?;
        let sink = Arc::new(Mutex::new(Sink {
            out,
            counts: PcapCounts {
                bytes: header.len() as u64,
                ..PcapCounts::default()
            },
            error: None,
            max_bytes: options.max_bytes,
        }));
        let handle = PcapHandle { sink: sink.clone() };
        let recorder = Recorder {
            sink,
            options,
            medium: caps.medium,
        };
        Ok((Pcap { inner, recorder }, handle))
    }
}

fn put32(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn put16(out: &mut Vec<u8>, v: u16) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// An option of a block: code, value padded to 32 bits.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    put16(out, code);
    put16(out, value.len() as u16);
    out.extend_from_slice(value);
    pad(out);
}

/// A block: its type, and a length before and after the body (draft-ietf-opsawg-pcapng,
/// section 3.1).
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put32(out, kind);
    put32(out, 0);
    body(out);
    let len = (out.len() - start + 4) as u32;
    put32(out, len);
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
}

/// The section header block.
fn section(out: &mut Vec<u8>) {
    block(out, 0x0a0d_0d0a, |b| {
        put32(b, 0x1a2b_3c4d);
        put16(b, 1);
        put16(b, 0);
        b.extend_from_slice(&u64::MAX.to_le_bytes());
        option(b, 4, b"perimeter");
        option(b, 0, b"");
    });
}

/// The interface description block, with nanosecond timestamps.
fn interface(out: &mut Vec<u8>, caps: &Capabilities, snap_len: u32) {
    // LINKTYPE_ETHERNET and LINKTYPE_RAW.
    let link_type = match caps.medium {
        Medium::Ethernet => 1,
        Medium::Ip => 101,
    };
    let name = &caps.name.as_bytes()[..caps.name.len().min(255)];
    block(out, 1, |b| {
        put16(b, link_type);
        put16(b, 0);
        put32(b, snap_len);
        option(b, 2, name);
        option(b, 9, &[9]);
        option(b, 0, b"");
    });
}

#[derive(Clone, Copy)]
enum Direction {
    Inbound = 1,
    Outbound = 2,
}

impl Recorder {
    /// Appends an enhanced packet block.
    fn packet(&self, out: &mut Vec<u8>, at: Time, bytes: &[u8], direction: Direction) {
        let kept = bytes.len().min(self.options.snap_len as usize);
        let ns = self.options.epoch_ns.saturating_add(at.nanos());
        block(out, 6, |b| {
            put32(b, 0);
            put32(b, (ns >> 32) as u32);
            put32(b, ns as u32);
            put32(b, kept as u32);
            put32(b, bytes.len() as u32);
            b.extend_from_slice(&bytes[..kept]);
            pad(b);
            option(b, 2, &(direction as u32).to_le_bytes());
            option(b, 0, b"");
        });
    }
}

impl Device for Pcap {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let (rx, tx) = self.inner.open();
        let rx = rx.into_iter().map(|inner| {
            Box::new(PcapRx {
                inner,
                recorder: self.recorder.clone(),
                blocks: Vec::new(),
                frame: Vec::new(),
            }) as Box<dyn RxQueue>
        });
        let tx = tx.into_iter().map(|inner| {
            Box::new(PcapTx {
                inner,
                recorder: self.recorder.clone(),
                blocks: Vec::new(),
                ends: Vec::new(),
                frame: Vec::new(),
            }) as Box<dyn TxQueue>
        });
        (rx.collect(), tx.collect())
    }
}

struct PcapRx {
    inner: Box<dyn RxQueue>,
    recorder: Recorder,
    blocks: Vec<u8>,
    frame: Vec<u8>,
}

impl RxQueue for PcapRx {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let before = out.len();
        let n = self.inner.poll(now, pool, out, max);
        if n == 0 {
            return 0;
        }
        self.blocks.clear();
        for f in &out[before..] {
            let r = &self.recorder;
            if f.csum_ok {
                // It may hold a partial checksum, which readers would call wrong.
                self.frame.clear();
                self.frame.extend_from_slice(f.buf.as_slice());
                csum::renew(&mut self.frame, r.medium);
                r.packet(&mut self.blocks, now, &self.frame, Direction::Inbound);
            } else {
                r.packet(&mut self.blocks, now, f.buf.as_slice(), Direction::Inbound);
            }
        }
        guard(&self.recorder.sink).write(&self.blocks, n as u64);
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        self.inner.arm(now)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.inner.set_waker(waker);
    }

    fn fd(&self) -> Option<RawFd> {
        self.inner.fd()
    }

    fn peer_ns(&self) -> u64 {
        self.inner.peer_ns()
    }
}

struct PcapTx {
    inner: Box<dyn TxQueue>,
    recorder: Recorder,
    blocks: Vec<u8>,
    /// Where each frame's block ends.
    ends: Vec<usize>,
    frame: Vec<u8>,
}

impl TxQueue for PcapTx {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        self.blocks.clear();
        self.ends.clear();
        for d in ring.pending() {
            self.frame.clear();
            csum::gather(d, &mut self.frame);
            csum::complete(&mut self.frame, d.offload);
            self.recorder
                .packet(&mut self.blocks, now, &self.frame, Direction::Outbound);
            self.ends.push(self.blocks.len());
        }
        let before = ring.len();
        self.inner.doorbell(now, ring);
        // Only what the device took has been sent.
        let taken = before - ring.len();
        if let Some(last) = taken.checked_sub(1) {
            guard(&self.recorder.sink).write(&self.blocks[..self.ends[last]], taken as u64);
        }
    }

    fn carrier(&self) -> bool {
        self.inner.carrier()
    }

    fn ready_at(&self) -> Time {
        self.inner.ready_at()
    }

    fn peer_ns(&self) -> u64 {
        self.inner.peer_ns()
    }
}
