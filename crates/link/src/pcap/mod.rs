//! Records what passes a device, in the pcapng format, for tshark and its like.
//!
//! Both directions, nanosecond timestamps, the direction in each packet's flags. Each burst is
//! formatted privately and handed to one buffered writer under a short lock; the file is written
//! when a megabyte has gathered, at [`PcapHandle::flush`], and when the last queue is dropped.

pub mod format;
pub(crate) mod observed;

use crate::device::{Capabilities, Device, Queues};
use format::{Direction, Packet};
use observed::{Frames, Observed, Observer};
use perimeter_base::Time;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

perimeter_base::setters! {
    PcapOptions {
        with_snap_len(snap_len: u32),
        with_epoch_ns(epoch_ns: u64),
        with_max_bytes(max_bytes: u64),
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
#[non_exhaustive]
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
    blocks: Vec<u8>,
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
        format::section(&mut header);
        format::interface(&mut header, &caps.name, caps.medium, options.snap_len);
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
            blocks: Vec::new(),
        };
        Ok((Pcap { inner, recorder }, handle))
    }
}

impl Observer for Recorder {
    fn on(&self) -> bool {
        true
    }

    fn saw(&mut self, at: Time, direction: Direction, frames: Frames<'_>) {
        self.blocks.clear();
        let n = frames.len() as u64;
        for frame in frames {
            let packet = Packet {
                interface: 0,
                ns: self.options.epoch_ns.saturating_add(at.nanos()),
                direction,
                len: frame.len() as u32,
                bytes: &frame[..frame.len().min(self.options.snap_len as usize)],
            };
            format::packet(&mut self.blocks, &packet);
        }
        guard(&self.sink).write(&self.blocks, n);
    }
}

impl Device for Pcap {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let observed = Observed {
            inner: self.inner,
            observer: self.recorder,
        };
        Box::new(observed).open()
    }
}
