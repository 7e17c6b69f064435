//! Queues of a packet device: one socket, read by one side and written by the other.

use perimeter_base::{PktPool, Time, TxRing};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::sys::{self, BATCH, Landing, TAGGED};
use crate::device::{Medium, RxFrame, RxQueue, RxStatus, TxQueue, Waker};
use crate::vnet::{self, VNET};

/// When to try again after the kernel's queue was full, ns.
const AGAIN: u64 = 50_000;

/// How often to look whether an interface that is down has been deleted, ns.
const LOOK: u64 = 100_000_000;

/// What happened on one socket so far.
#[derive(Default)]
pub(super) struct Counts {
    pub received: AtomicU64,
    pub no_room: AtomicU64,
    pub tagged: AtomicU64,
    pub unusable: AtomicU64,
    pub refused: AtomicU64,
}

/// A socket, as both of its sides share it.
pub(super) struct Socket {
    pub fd: OwnedFd,
    pub counts: Arc<Counts>,
    /// The kernel has said that the interface is down, and no frame came since. It says so once, to
    /// the side that asks first; it does not say when an interface that is down is deleted.
    down: AtomicBool,
    /// The interface was deleted.
    gone: AtomicBool,
}

impl Socket {
    pub(super) fn new(fd: OwnedFd) -> Socket {
        Socket {
            fd,
            counts: Arc::default(),
            down: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }

    fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// Adds what the kernel has counted since the last time.
    pub(super) fn count(&self) {
        // An error would be one of ours (another kind of socket), and there is nothing to add.
        let (received, no_room) = sys::statistics(&self.fd).unwrap_or_default();
        let add = |to: &AtomicU64, n: u32| to.fetch_add(u64::from(n), Ordering::Relaxed);
        add(&self.counts.received, received);
        add(&self.counts.no_room, no_room);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Asks whether the interface is still there, after an error that leaves it open.
    fn look(&self) -> bool {
        if sys::is_gone(&self.fd) {
            self.gone.store(true, Ordering::Relaxed);
        }
        self.is_gone()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.count();
    }
}

fn note(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

pub(crate) struct PacketRx {
    socket: Arc<Socket>,
    /// Largest frame that was not merged.
    frame: usize,
    landing: Landing,
    /// What came merged and was cut.
    datagrams: vnet::Datagrams,
}

impl PacketRx {
    pub(super) fn new(socket: Arc<Socket>, frame: usize) -> PacketRx {
        PacketRx {
            socket,
            frame,
            landing: Landing::new(),
            datagrams: vnet::Datagrams::default(),
        }
    }

    /// Hands over the first `n` frames that have landed; returns how many were fit for that.
    fn hand_over(&mut self, n: usize, pool: &mut PktPool, out: &mut Vec<RxFrame>) -> usize {
        let counts = &self.socket.counts;
        let before = out.len();
        let read = self.landing.read;
        for (mut buf, (len, cut)) in self.landing.bufs.drain(..n).zip(read) {
            let info = match buf.raw_mut().first_chunk() {
                Some(header) if len > VNET + TAGGED && !cut => vnet::read(header),
                _ => {
                    let tagged = len == VNET + TAGGED;
                    note(
                        if tagged {
                            &counts.tagged
                        } else {
                            &counts.unusable
                        },
                        1,
                    );
                    pool.put(buf);
                    continue;
                }
            };
            if info.other_merged {
                note(&counts.unusable, 1);
                pool.put(buf);
                continue;
            }
            buf.set_window(VNET, len - VNET);
            if info.datagram_size > 0 {
                let (frame, size) = (buf.as_slice(), info.datagram_size);
                if !self.datagrams.cut(frame, Medium::Ethernet, size, pool) {
                    note(&counts.unusable, 1);
                }
                pool.put(buf);
                continue;
            }
            out.push(RxFrame {
                buf,
                hash: None,
                csum_ok: info.csum_ok,
                segment_size: info.segment_size,
            });
        }
        out.len() - before
    }

    /// What to do after reading has failed: whether to go on.
    fn failed(&mut self, e: &io::Error) -> bool {
        match e.raw_os_error() {
            Some(libc::ENETDOWN) => {
                self.socket.set_down(true);
                self.socket.look();
                false
            }
            // A frame that the header has no words for (tunnels in large segments); it is lost.
            Some(libc::EINVAL) => {
                note(&self.socket.counts.unusable, 1);
                true
            }
            Some(libc::EINTR) => true,
            _ => false,
        }
    }
}

impl RxQueue for PacketRx {
    fn poll(
        &mut self,
        _now: Time,
        pool: &mut PktPool,
        out: &mut Vec<RxFrame>,
        max: usize,
    ) -> usize {
        let (mut n, mut seen) = (0, 0);
        // What is dropped here counts as seen, so that a flood of it keeps nobody in this loop.
        while seen < max {
            if let Some(datagram) = self.datagrams.next() {
                out.push(datagram);
                (n, seen) = (n + 1, seen + 1);
                continue;
            }
            let want = (max - seen).min(BATCH);
            while self.landing.bufs.len() < want {
                self.landing.bufs.push(pool.take(self.frame + VNET));
            }
            match self.landing.receive(&self.socket.fd, want, pool) {
                Ok(got) => {
                    self.socket.set_down(false);
                    n += self.hand_over(got, pool, out);
                    seen += got;
                    if got < want && self.datagrams.is_empty() {
                        break;
                    }
                }
                Err(e) if self.failed(&e) => seen += 1,
                Err(_) => break,
            }
        }
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        if !self.datagrams.is_empty() {
            return RxStatus::Ready;
        }
        if self.socket.is_gone() {
            return RxStatus::Gone;
        }
        if !self.socket.is_down() {
            // The descriptor stays readable as long as frames wait, so none is missed.
            return RxStatus::Armed(Time::NEVER);
        }
        // That it is deleted then is not told by the descriptor.
        match self.socket.look() {
            true => RxStatus::Gone,
            false => RxStatus::Armed(now.plus(LOOK)),
        }
    }

    fn set_waker(&mut self, _waker: Waker) {}

    fn fd(&self) -> Option<RawFd> {
        (!self.socket.is_gone()).then(|| self.socket.fd.as_raw_fd())
    }
}

pub(super) struct PacketTx {
    socket: Arc<Socket>,
    ready_at: Time,
}

impl PacketTx {
    pub(super) fn new(socket: Arc<Socket>) -> PacketTx {
        PacketTx {
            socket,
            ready_at: Time::ZERO,
        }
    }
}

impl TxQueue for PacketTx {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        let mut n = 0;
        self.ready_at = Time::ZERO;
        while n < ring.len() {
            let refused = match sys::send(&self.socket.fd, &ring.pending()[n..]) {
                Ok(sent) => {
                    n += sent;
                    continue;
                }
                Err(e) => e.raw_os_error(),
            };
            let lost = match refused {
                // The socket's room is used up, or a queue behind it has dropped the frame.
                Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => {
                    self.ready_at = now.plus(AGAIN);
                    break;
                }
                // An interface that is down takes nothing, so all of it is lost, as on any link.
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    // The receiving side will not be told. A visit at this time has it look.
                    self.socket.set_down(true);
                    if !self.socket.look() {
                        self.ready_at = now.plus(LOOK);
                    }
                    ring.len() - n
                }
                // A frame that the kernel calls malformed, or too long for the interface now.
                _ => 1,
            };
            note(&self.socket.counts.refused, lost);
            n += lost;
        }
        ring.consume(n);
    }

    fn ready_at(&self) -> Time {
        self.ready_at
    }

    fn carrier(&self) -> bool {
        !self.socket.is_gone()
    }
}
