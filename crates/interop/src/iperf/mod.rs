//! The protocol of iperf3 over TCP, both roles, both directions, over any stream.
//!
//! A control connection carries a cookie of 37 bytes, then one byte for each change of state;
//! parameters and results are JSON with its length in front, 32 bits in network order. Each
//! data connection starts with the cookie. The sides take turns as the server says. (Learnt
//! from what iperf 3.12 sends and answers.)

mod client;
mod on_stack;
mod server;
mod wire;

pub use client::{client, client_with};
pub use on_stack::OnStack;
pub use server::{server, server_with};

use serde_json::Value;
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

/// The port that servers listen on by default.
pub const PORT: u16 = 5201;
/// Length of a cookie with its terminating zero, bytes.
pub const COOKIE: usize = 37;
/// How long any step may take.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Where connections come from. Streams do not block.
pub trait Net {
    /// A connection.
    type Stream: Read + Write;

    /// Opens a connection to the server and waits until it is established.
    ///
    /// # Errors
    /// As the network says.
    fn connect(&mut self) -> io::Result<Self::Stream>;

    /// Waits for a connection.
    ///
    /// # Errors
    /// As the network says.
    fn accept(&mut self) -> io::Result<Self::Stream>;

    /// Waits until something may have become possible on one of the streams, at most for a
    /// while.
    ///
    /// # Errors
    /// As the network says.
    fn wait(&mut self) -> io::Result<()>;
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Bytes to transfer, over all streams.
    pub bytes: u64,
    /// Streams.
    pub parallel: usize,
    /// The server sends.
    pub reverse: bool,
    /// Size of a write, bytes.
    pub len: usize,
    /// Size of the other side's socket buffers, bytes; `None`: as it likes.
    pub window: Option<u32>,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            bytes: 0,
            parallel: 1,
            reverse: false,
            len: 128 * 1024,
            window: None,
        }
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was asked for.
    pub params: Params,
    /// Bytes that this side sent or received.
    pub bytes: u64,
    /// Bytes that the other side says that it received or sent.
    pub peer_bytes: u64,
    /// Length of the transfer.
    pub time: Duration,
    /// The other side's results.
    pub peer: Value,
}

/// States, as one byte on the control connection.
mod state {
    pub const TEST_START: i8 = 1;
    pub const TEST_RUNNING: i8 = 2;
    pub const TEST_END: i8 = 4;
    pub const PARAM_EXCHANGE: i8 = 9;
    pub const CREATE_STREAMS: i8 = 10;
    pub const SERVER_TERMINATE: i8 = 11;
    pub const CLIENT_TERMINATE: i8 = 12;
    pub const EXCHANGE_RESULTS: i8 = 13;
    pub const DISPLAY_RESULTS: i8 = 14;
    pub const IPERF_DONE: i8 = 16;
    pub const ACCESS_DENIED: i8 = -1;
    pub const SERVER_ERROR: i8 = -2;
}

/// `None` when the call would have blocked.
fn attempt<T>(r: io::Result<T>) -> io::Result<Option<T>> {
    match r {
        Ok(v) => Ok(Some(v)),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}

fn bad(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.into())
}

/// What is told of the bytes of the data streams as they are sent or received.
pub type Seen<'a> = &'a mut dyn FnMut(&[u8]);

/// Makes `block` the `n`th of a stream: no two are alike, so a block that is lost, doubled or
/// misplaced shows.
pub fn stamp(block: &mut [u8], n: u64) {
    for (i, piece) in block.chunks_mut(4096).enumerate() {
        let mark = (n << 16 | i as u64).to_be_bytes();
        let len = piece.len().min(mark.len());
        piece[..len].copy_from_slice(&mark[..len]);
    }
}

/// Writes as much as the streams take: whole blocks while any of `left` bytes are to be sent,
/// and always the rest of a block, because iperf3 reads block by block and blocks in between.
fn pump<S: Write>(
    streams: &mut [Data<S>],
    block: &mut [u8],
    left: &mut u64,
    seen: Seen<'_>,
) -> io::Result<bool> {
    let mut moved = false;
    for d in streams.iter_mut() {
        let Some(stream) = &mut d.stream else {
            continue;
        };
        let mut stamped = None;
        while *left > 0 || d.within > 0 {
            let nth = d.bytes / block.len() as u64;
            if stamped.replace(nth) != Some(nth) {
                stamp(block, nth);
            }
            let Some(n) = attempt(stream.write(&block[d.within..]))? else {
                break;
            };
            seen(&block[d.within..d.within + n]);
            d.within = (d.within + n) % block.len();
            d.bytes += n as u64;
            *left = left.saturating_sub(n as u64);
            moved = true;
        }
    }
    Ok(moved)
}

/// Whether a stream has sent part of a block.
fn unfinished<S>(streams: &[Data<S>]) -> bool {
    streams.iter().any(|d| d.within > 0)
}

/// Reads what there is.
fn drain<S: Read>(streams: &mut [Data<S>], buf: &mut [u8], seen: Seen<'_>) -> io::Result<bool> {
    let mut moved = false;
    for d in streams.iter_mut() {
        let Some(stream) = &mut d.stream else {
            continue;
        };
        // A bound on one visit, so that the control connection gets its turn.
        for _ in 0..16 {
            match attempt(stream.read(buf))? {
                Some(0) | None => break,
                Some(n) => {
                    seen(&buf[..n]);
                    d.bytes += n as u64;
                    moved = true;
                }
            }
        }
    }
    Ok(moved)
}

/// A data connection.
struct Data<S> {
    /// `None` once closed.
    stream: Option<S>,
    bytes: u64,
    /// How much of the current block has been sent.
    within: usize,
}

impl<S> Data<S> {
    fn new(stream: S) -> Data<S> {
        Data {
            stream: Some(stream),
            bytes: 0,
            within: 0,
        }
    }
}

fn total<S>(streams: &[Data<S>]) -> u64 {
    streams.iter().map(|d| d.bytes).sum()
}
