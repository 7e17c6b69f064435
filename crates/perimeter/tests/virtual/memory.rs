//! Memory: the stack-wide limit holds senders back and ends nobody; zero-copy pages are held
//! until acknowledged and done by the device; a truncated file is an error.

use crate::common::{Setup, content, fill, organizations, under_all};
use perimeter::link::device::{Capabilities, Device, Queues, TxQueue};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Bytes, SharedFile, Stack, State, Virtual};
use perimeter_base::{Time, TxRing};
use perimeter_stack::memory::{CONNECTION, SET_ASIDE};
use perimeter_sync::Platform;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const SOON: Duration = Duration::from_millis(20);

/// The receive buffer of a peer that does not read, bytes.
const PEER_TAKES: u32 = 8 * 1024;

/// A limit that a few connections reach.
const LIMIT: u64 = 1 << 20;

#[test]
fn short_memory_holds_senders_back_and_ends_nobody() {
    under_all(
        |s| {
            // More than a send buffer, 256 KiB, and nine connections.
            s.config.memory = 340 * 1024;
            s.peer.tcp.rcv_buf = PEER_TAKES;
            s.config.tcp.time_wait = SOON;
        },
        |w| {
            let pairs: Vec<_> = (0..8).map(|_| w.open()).collect();
            let mut sent: Vec<usize> = Vec::new();
            for (a, _) in &pairs {
                let n = fill(a);
                // Also what its writer was promised and TCP has not taken yet, as under `squeue`.
                let pinned = w.s.stats().memory as usize;
                assert!(pinned + PEER_TAKES as usize >= n, "{n}: {pinned}");
                sent.push(n);
                w.pass(SOON);
            }
            // The first fills half of it; the others may start but not go on.
            let pinned = w.s.stats().memory;
            assert!(pinned < 340 * 1024, "{pinned}");
            assert!(w.s.stats().count("memory_backpressure") > 0);
            assert!(sent.iter().all(|n| *n > 0), "{sent:?}");
            assert!(sent[7] < 64 * 1024, "{sent:?}");
            // A new connection is established all the same.
            let (c, d) = w.opened();
            w.write(&c, b"hello");
            assert_eq!(w.read(&d).unwrap(), b"hello");
            for (a, _) in &pairs {
                assert_eq!(a.info().unwrap().tcp.state, State::Established);
            }
            // The peer reads, and everybody goes on to the end.
            let mut got = vec![0; pairs.len()];
            let mut buf = vec![0; 65536];
            let all = 400 * 1024;
            w.until("all data", || {
                for (i, (a, b)) in pairs.iter().enumerate() {
                    if sent[i] < all
                        && let Ok(n) = (&*a).write(&buf[..(all - sent[i]).min(4096)])
                    {
                        sent[i] += n;
                    }
                    if let Ok(n) = (&*b).read(&mut buf) {
                        assert!(n > 0);
                        got[i] += n;
                    }
                }
                got.iter().all(|n| *n == all)
            });
            // What is left, once the peer's delayed acknowledgments have come, is what connections
            // count for being there, and acknowledged pages of the last burst: a connection that
            // has nothing more to do learns of the device's completion when it is entered next.
            w.until("acknowledgments", || {
                w.s.connections().iter().all(|i| i.snd_queued == 0)
            });
            let all = w.s.connections();
            let held = all.iter().map(|i| i.memory.saturating_sub(SET_ASIDE));
            let there = 9 * CONNECTION + held.sum::<usize>();
            assert_eq!(w.s.stats().memory, there as u64);
            drop((pairs, c, d));
            w.until("end", || w.s.stats().connections == 0);
            assert_eq!(w.s.stats().memory, 0);
        },
    );
}

/// Data that nobody reads pins memory as well; who reads goes on all the same.
#[test]
fn short_memory_keeps_receivers_going() {
    under_all(
        |s| s.config.memory = LIMIT,
        |w| {
            let lazy: Vec<_> = (0..8).map(|_| w.opened()).collect();
            let filled: Vec<_> = lazy.iter().map(|(_, b)| fill(b)).collect();
            w.pass(Duration::from_millis(500));
            let pinned = w.s.stats().memory;
            assert!((LIMIT / 8 * 3..LIMIT).contains(&pinned), "{pinned}");
            assert!(w.s.stats().count("drop_memory") > 0);
            let (busy, b2) = w.opened();
            let n = 500 * 1024;
            let data = content(n);
            let (mut sent, mut got) = (0, Vec::new());
            let mut buf = vec![0; 65536];
            w.until("all data", || {
                if sent < n
                    && let Ok(k) = (&b2).write(&data[sent..])
                {
                    sent += k;
                }
                if let Ok(k) = (&busy).read(&mut buf) {
                    got.extend_from_slice(&buf[..k]);
                }
                got.len() == n
            });
            assert!(got == data);
            assert!(w.s.stats().memory < LIMIT);
            // And what was not taken was not lost: it comes when there is room.
            for ((a, b), filled) in lazy.into_iter().zip(filled) {
                assert_eq!(a.info().unwrap().tcp.state, State::Established);
                let mut got = 0;
                while got < filled {
                    got += w.read(&a).unwrap().len();
                }
                drop(b);
                assert!(w.read_all(&a).unwrap().is_empty());
            }
        },
    );
}

/// A device that says so late that it is done.
struct Late<D> {
    inner: D,
    done: Arc<AtomicU64>,
}

struct LateQueue {
    inner: Box<dyn TxQueue>,
    done: Arc<AtomicU64>,
}

impl<D: Device> Device for Late<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let Late { inner, done } = *self;
        let (rx, tx) = Box::new(inner).open();
        let wrap = |inner| -> Box<dyn TxQueue> {
            Box::new(LateQueue {
                inner,
                done: done.clone(),
            })
        };
        (rx, tx.into_iter().map(wrap).collect())
    }
}

impl TxQueue for LateQueue {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        ring.complete_to(self.done.load(Ordering::SeqCst));
        self.inner.doorbell(now, ring);
    }

    fn ready_at(&self) -> Time {
        self.inner.ready_at()
    }
}

/// A page that tells when it goes.
struct Page(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// Steps both stacks until `cond`, for at most a minute.
fn until(p: &Virtual, stacks: [&Stack; 2], what: &str, mut cond: impl FnMut() -> bool) {
    let end = p.now() + Duration::from_secs(60);
    while !cond() {
        assert!(p.now() < end, "{what} never came");
        for s in stacks {
            s.drive().unwrap();
        }
        p.sleep_until(p.now().plus(100_000));
    }
}

#[test]
fn pages_go_when_acknowledged_and_done_by_the_device() {
    for org in organizations() {
        for aborted in [false, true] {
            let org = org.clone();
            let setup = Setup::new(org.clone());
            let result = Virtual::run(setup.virt, move |p| late_device(&p, org, aborted));
            result.unwrap_or_else(|f| panic!("{f}"));
        }
    }
}

fn late_device(p: &Virtual, org: perimeter::OrgSpec, aborted: bool) {
    let done = Arc::new(AtomicU64::new(0));
    let ([a, b], _) = pair(p, WireConfig::default());
    let late = Late {
        inner: a,
        done: done.clone(),
    };
    let builder = || Stack::builder().on_virtual(p.clone());
    let s = builder()
        .org(org)
        .interface(late, &["10.0.0.1/24"])
        .unwrap()
        .build()
        .unwrap();
    let peer = builder()
        .interface(b, &["10.0.0.2/24"])
        .unwrap()
        .build()
        .unwrap();
    let l = peer.listen("10.0.0.2:80").unwrap();
    l.set_nonblocking(true).unwrap();
    let c = s.start_connect("10.0.0.2:80".parse().unwrap()).unwrap();
    c.set_nonblocking(true).unwrap();
    let mut d = None;
    until(p, [&s, &peer], "connection", || {
        d = d.take().or(l.accept().ok());
        d.is_some()
    });
    let (d, _) = d.unwrap();
    d.set_nonblocking(true).unwrap();
    let gone = Arc::new(AtomicUsize::new(0));
    let pages: Vec<Bytes> = (0..4)
        .map(|i| Bytes::from_owner(Page(vec![i; 5000], gone.clone())))
        .collect();
    assert_eq!(c.send_zero_copy(&pages).unwrap(), 20_000);
    drop(pages);
    let (mut n, mut buf) = (0, vec![0; 65536]);
    until(p, [&s, &peer], "data", || {
        n += (&d).read(&mut buf).unwrap_or(0);
        n == 20_000 && c.info().unwrap().snd_queued == 0
    });
    // Everything is acknowledged, but the device may still be reading.
    assert_eq!(gone.load(Ordering::SeqCst), 0);
    assert_eq!(c.zero_copy_progress().unwrap(), (20_000, 0));
    assert!(s.stats().memory >= 20_000);
    if aborted {
        // Also when the connection goes first.
        c.abort().unwrap();
        until(p, [&s, &peer], "end", || s.stats().connections == 0);
        assert_eq!(gone.load(Ordering::SeqCst), 0);
    }
    done.store(u64::MAX, Ordering::SeqCst);
    if !aborted {
        // The stack learns of it at the next doorbell.
        (&d).write_all(b"x").unwrap();
        until(p, [&s, &peer], "completion", || {
            c.zero_copy_progress().unwrap().1 == 20_000
        });
    }
    until(p, [&s, &peer], "pages", || gone.load(Ordering::SeqCst) == 4);
    drop((c, d));
    s.stop();
    assert_eq!(s.stats().memory, 0);
}

#[test]
fn a_truncated_file_is_an_error() {
    let dir = std::env::temp_dir().join(format!("perimeter-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("file");
    std::fs::write(&path, content(200_000)).unwrap();
    let f = SharedFile::open(&path).unwrap();
    assert_eq!(f.len(), 200_000);
    let first = f.page(0, usize::MAX).unwrap();
    assert_eq!(first, content(200_000)[..first.len()]);
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(1000)
        .unwrap();
    let e = f.page(150_000, 10).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::UnexpectedEof);
    // What was read stays.
    assert_eq!(f.page(0, usize::MAX).unwrap(), first);
    assert!(f.page(200_000, 10).unwrap().is_empty());
    std::fs::remove_dir_all(&dir).unwrap();
}
