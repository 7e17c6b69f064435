//! Frames as they pass, for a client.

use super::protocol::{End, Frame, Interface, Reply};
use perimeter_base::Time;
use perimeter_link::Medium;
use perimeter_link::capture::{Captured, Captures, Direction, Looking};
use std::io::{self, Write};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Frames that are told, in order of time, before it is looked again whether to go on.
const ROUND: usize = 1024;

/// A capture that is under way.
pub(super) struct Capture {
    looking: Looking,
    /// What the stack's time zero is on the calendar, nanoseconds since 1970.
    epoch_ns: u64,
    count: Option<u64>,
    limit: Option<Instant>,
    told: u64,
}

/// What was asked for.
pub(super) struct Ask<'a> {
    pub filter: &'a str,
    pub snap_len: Option<u32>,
    pub count: Option<u64>,
    pub limit: Option<Instant>,
}

impl Capture {
    /// Begins, on a stack whose clock says `now`.
    ///
    /// # Errors
    /// The filter is none.
    pub fn begin(captures: &Captures, ask: &Ask<'_>, now: Time) -> Result<Capture, String> {
        let filter = ask.filter.parse();
        let filter = filter.map_err(|e: perimeter_link::capture::FilterError| e.to_string())?;
        let calendar = SystemTime::now().duration_since(UNIX_EPOCH);
        let calendar = calendar.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        Ok(Capture {
            looking: captures.look(filter, ask.snap_len.unwrap_or(u32::MAX)),
            epoch_ns: calendar.saturating_sub(now.nanos()),
            count: ask.count,
            limit: ask.limit,
            told: 0,
        })
    }

    /// Tells what waits; `Some` at the end.
    ///
    /// # Errors
    /// The client can't be written to.
    pub fn tell(&mut self, out: &mut impl Write) -> io::Result<Option<End>> {
        let over = self.limit.is_some_and(|at| Instant::now() >= at);
        let left = self.count.map_or(u64::MAX, |most| most - self.told);
        if over || left == 0 {
            return Ok(Some(self.end()));
        }
        let waiting = std::iter::from_fn(|| self.looking.next());
        let mut frames: Vec<Captured> = waiting.take(ROUND).collect();
        // What was sent is known when the device has it: its answer may have come before that.
        frames.sort_by_key(|f| f.at);
        for frame in frames
            .into_iter()
            .take(usize::try_from(left).unwrap_or(ROUND))
        {
            self.told += 1;
            out.write_all(super::server::line(&Reply::Frame(self.frame(frame))).as_bytes())?;
        }
        out.flush().map(|()| None)
    }

    /// How it ends now.
    pub fn end(&self) -> End {
        End {
            count: self.told,
            lost: self.looking.lost(),
            ..End::default()
        }
    }

    fn frame(&self, c: Captured) -> Frame {
        Frame {
            interface: c.interface,
            time_ns: self.epoch_ns.saturating_add(c.at.nanos()),
            received: c.direction == Direction::Inbound,
            len: c.len,
            bytes: c.bytes,
        }
    }
}

/// The interfaces, for a client.
pub(super) fn interfaces(captures: &Captures) -> Vec<Interface> {
    let all = captures.interfaces().into_iter();
    all.map(|i| Interface {
        name: i.name,
        ethernet: i.medium == Medium::Ethernet,
    })
    .collect()
}
