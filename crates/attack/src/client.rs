//! Legitimate clients: the kernel's own TCP in the namespace. Every byte is checked.

use crate::content;
use crate::victim::{PORT, op};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a client waits for anything before it gives up.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long for an answer that was promised: longer than the retransmissions of loss.
const LONG: Duration = Duration::from_secs(30);
/// Bytes that a connection of [`connections`] asks for.
pub const REPLY: u32 = 1000;

/// What clients have had in a while.
#[derive(Clone, Debug, Default)]
pub struct Had {
    /// Connections opened, used and closed.
    pub good: u64,
    /// Connections that failed.
    pub failed: u64,
    /// Of these, connections that brought wrong bytes.
    pub corrupt: u64,
    /// Bytes of a transfer, checked.
    pub bytes: u64,
    /// Bytes promised that did not come.
    pub missing: u64,
    /// Times that connections took, from connecting to the last byte, µs, sorted.
    pub times: Vec<u64>,
}

impl Had {
    /// The `share`-th of the times, µs.
    pub fn quantile(&self, share: f64) -> u64 {
        let at = (self.times.len() as f64 * share) as usize;
        self.times
            .get(at)
            .or(self.times.last())
            .copied()
            .unwrap_or(0)
    }
}

/// What an operation of a client failed by.
#[derive(Debug)]
pub enum Bad {
    /// The system's error, or an early end.
    Io(io::Error),
    /// Bytes that were not sent.
    Corrupt,
}

impl From<io::Error> for Bad {
    fn from(e: io::Error) -> Bad {
        Bad::Io(e)
    }
}

/// Connects to the victim at that address and asks for something.
///
/// # Errors
/// The system's.
pub fn ask(to: IpAddr, op: u8, n: u32, patience: Duration) -> io::Result<TcpStream> {
    let mut s = TcpStream::connect_timeout(&SocketAddr::from((to, PORT)), patience)?;
    s.set_read_timeout(Some(patience))?;
    s.set_write_timeout(Some(patience))?;
    request(&mut s, op, n)?;
    Ok(s)
}

/// Asks for something on an open connection.
///
/// # Errors
/// The system's.
pub fn request(s: &mut TcpStream, op: u8, n: u32) -> io::Result<()> {
    let mut head = [op, 0, 0, 0, 0];
    head[1..].copy_from_slice(&n.to_be_bytes());
    s.write_all(&head)
}

/// Reads `n` bytes and checks them; yields how many came and were right.
fn take(s: &mut TcpStream, n: u64, buf: &mut [u8], got: &mut u64) -> Result<(), Bad> {
    while *got < n {
        let max = buf.len().min((n - *got) as usize);
        match s.read(&mut buf[..max]) {
            Ok(0) => return Err(Bad::Io(ErrorKind::UnexpectedEof.into())),
            Ok(k) if content::matches(*got, &buf[..k]) => *got += k as u64,
            Ok(_) => return Err(Bad::Corrupt),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(Bad::Io(e)),
        }
    }
    Ok(())
}

fn note(had: &mut Had, result: Result<u64, Bad>) {
    match result {
        Ok(micros) => {
            had.good += 1;
            had.times.push(micros);
        }
        // Our own ports are used up: not the victim's doing.
        Err(Bad::Io(e)) if e.kind() == ErrorKind::AddrNotAvailable => {
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Bad::Io(_)) => had.failed += 1,
        Err(Bad::Corrupt) => {
            had.failed += 1;
            had.corrupt += 1;
        }
    }
}

/// Adds up what several threads had.
fn merge(all: Vec<Had>) -> Had {
    let mut sum = Had::default();
    for h in all {
        sum.good += h.good;
        sum.failed += h.failed;
        sum.corrupt += h.corrupt;
        sum.bytes += h.bytes;
        sum.missing += h.missing;
        sum.times.extend(h.times);
    }
    sum.times.sort_unstable();
    sum
}

/// Runs `one` on `threads` threads and adds up.
fn together(threads: usize, one: impl Fn(usize) -> Had + Sync) -> Had {
    let all = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for n in 0..threads {
            let (one, all) = (&one, &all);
            s.spawn(move || {
                let had = one(n);
                if let Ok(mut all) = all.lock() {
                    all.push(had);
                }
            });
        }
    });
    merge(all.into_inner().unwrap_or_default())
}

/// Clients that connect, take [`REPLY`] bytes and close, four at a time, until `length` has
/// passed. `at_end` is called then, before those that wait have given up: what is counted
/// belongs to that time.
pub fn connections(to: IpAddr, length: Duration, at_end: impl FnOnce()) -> Had {
    let stop = AtomicBool::new(false);
    let work = |_| {
        let (mut had, mut buf) = (Had::default(), vec![0; 4096]);
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            let one = || -> Result<u64, Bad> {
                let mut s = ask(to, op::KEEP, REPLY, PATIENCE)?;
                take(&mut s, u64::from(REPLY), &mut buf, &mut 0)?;
                Ok(start.elapsed().as_micros() as u64)
            };
            let result = { one }();
            // One that takes beyond the end does not belong to this time, but its failure does.
            if result.is_err() || !stop.load(Ordering::Relaxed) {
                note(&mut had, result);
            }
        }
        had
    };
    std::thread::scope(|s| {
        let clients = s.spawn(|| together(4, work));
        std::thread::sleep(length);
        at_end();
        stop.store(true, Ordering::Relaxed);
        clients.join().unwrap_or_default()
    })
}

/// A client that takes a stream for `length`; `at_end` as for [`connections`].
pub fn stream(to: IpAddr, length: Duration, at_end: impl FnOnce()) -> Had {
    let (stop, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let work = || -> Result<(), Bad> {
        let mut s = ask(to, op::STREAM, 0, PATIENCE)?;
        let (mut buf, mut at) = (vec![0; 256 * 1024], 0);
        while !stop.load(Ordering::Relaxed) {
            let n = s.read(&mut buf)?;
            if n == 0 {
                return Err(Bad::Io(ErrorKind::UnexpectedEof.into()));
            }
            if !content::matches(at, &buf[..n]) {
                return Err(Bad::Corrupt);
            }
            at += n as u64;
            bytes.store(at, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|s| {
        let client = s.spawn(work);
        std::thread::sleep(length);
        at_end();
        let had = bytes.load(Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        let result = client.join().unwrap_or(Err(Bad::Corrupt));
        let corrupt = u64::from(matches!(result, Err(Bad::Corrupt)));
        Had {
            failed: u64::from(result.is_err()),
            corrupt,
            bytes: had,
            ..Had::default()
        }
    })
}

/// `count` clients, four at a time, each of which is sent `len` bytes by a server that drops its
/// socket right after the last write.
pub fn answers(to: IpAddr, count: u64, len: u32, deadline: Instant) -> Had {
    let next = AtomicU64::new(0);
    together(4, |_| {
        let (mut had, mut buf) = (Had::default(), vec![0; 64 * 1024]);
        while next.fetch_add(1, Ordering::Relaxed) < count && Instant::now() < deadline {
            let mut got = 0;
            let result = answer(to, len, &mut buf, &mut got, LONG);
            had.bytes += got;
            if result.is_err() {
                had.missing += u64::from(len) - got;
            }
            note(&mut had, result.map(|()| 0));
        }
        had
    })
}

/// One answer of `len` bytes, to its end.
///
/// # Errors
/// It did not come whole, `got` bytes did.
pub fn answer(
    to: IpAddr,
    len: u32,
    buf: &mut [u8],
    got: &mut u64,
    patience: Duration,
) -> Result<(), Bad> {
    let mut s = ask(to, op::CLOSE, len, patience)?;
    take(&mut s, u64::from(len), buf, got)?;
    match s.read(buf)? {
        0 => Ok(()),
        _ => Err(Bad::Corrupt),
    }
}
