//! Queues of an AF_XDP device: one socket each, with rings for either direction.

use perimeter_base::region::Stock;
use perimeter_base::{PktPool, Time, TxDesc, TxRing};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::program::Station;
use super::sys::{self, Ring, Which};
use crate::csum;
use crate::device::{RxFrame, RxQueue, RxStatus, TxQueue, Waker};
use crate::packet::Groups;

/// When to try again after the kernel would not send, ns.
const AGAIN: u64 = 50_000;

/// How often to look whether an interface that is down is up again, ns.
const LOOK: u64 = 100_000_000;

/// How often a queue that is polled looks for frames to groups, ns: a system call.
const GROUPS: u64 = 1_000_000;

/// The kernel gets frames back in batches of so many, while others are left to it.
const BATCH: u32 = 32;

/// What happened on one socket so far.
#[derive(Default)]
pub(super) struct Counts {
    pub received: AtomicU64,
    pub copied: AtomicU64,
    pub no_room: AtomicU64,
    pub unusable: AtomicU64,
    pub sent: AtomicU64,
    pub refused: AtomicU64,
}

impl Counts {
    /// Adds to a counter that one thread at a time writes.
    fn note(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

/// A socket, as both of its sides share it.
pub(super) struct Socket {
    pub fd: OwnedFd,
    pub counts: Arc<Counts>,
    /// The interface was deleted: the same for all sockets of the device.
    gone: Arc<AtomicBool>,
    _station: Arc<Station>,
}

impl Socket {
    pub(super) fn new(fd: OwnedFd, station: Arc<Station>, gone: Arc<AtomicBool>) -> Socket {
        Socket {
            fd,
            counts: Arc::default(),
            gone,
            _station: station,
        }
    }

    /// Brings what the kernel counts up to date.
    pub(super) fn count(&self) {
        if let Ok(s) = sys::statistics(&self.fd) {
            let full = s.rx_dropped + s.rx_ring_full;
            self.counts.no_room.store(full, Ordering::Relaxed);
        }
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.count();
    }
}

pub(super) struct XdpRx {
    socket: Arc<Socket>,
    ring: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    /// After the rings: frames outlive it, but not the kernel's right to them.
    stock: Stock,
    /// Frames that carry a partial checksum have been on no wire.
    partial: bool,
    groups: Option<(Groups, OwnedFd)>,
    groups_at: Time,
}

impl XdpRx {
    /// The receive side, whose frames the kernel gets at once. One queue of a device has the
    /// frames to groups.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(
        socket: Arc<Socket>,
        [ring, fill]: [(Which, u32); 2],
        stock: Stock,
        partial: bool,
    ) -> io::Result<XdpRx> {
        let mut rx = XdpRx {
            ring: Ring::new(&socket.fd, ring.0, ring.1)?,
            fill: Ring::new(&socket.fd, fill.0, fill.1)?,
            socket,
            stock,
            partial,
            groups: None,
            groups_at: Time::ZERO,
        };
        rx.refill();
        Ok(rx)
    }

    /// Takes frames to groups along.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn with_groups(&mut self, groups: Groups) -> io::Result<()> {
        let either = sys::either([&self.socket.fd, groups.fd()])?;
        self.groups = Some((groups, either));
        Ok(())
    }

    /// Gives the kernel frames to receive into.
    fn refill(&mut self) {
        self.stock.reclaim();
        let home = self.stock.home() as u32;
        let n = self.fill.room(home).min(home);
        // Little by little costs both sides a cache line each time.
        if n < BATCH && self.fill.room(u32::MAX) < BATCH {
            return;
        }
        for _ in 0..n {
            if let Some(at) = self.stock.lend() {
                self.fill.put(at);
            }
        }
        if n > 0 {
            self.fill.submit();
            if self.fill.needs_wakeup() {
                // That the interface is down or gone shows elsewhere.
                let _ = sys::kick_rx(&self.socket.fd);
            }
        }
    }

    /// A frame that the kernel has filled. While many are out, it is copied, and its memory stays
    /// with the kernel: else readers that come late would leave nothing to receive into.
    fn take(&mut self, d: libc::xdp_desc, pool: &mut PktPool) -> Option<RxFrame> {
        if d.options & libc::XDP_PKT_CONTD != 0 {
            self.stock.done(d.addr);
            return None;
        }
        let mut buf = self.stock.filled(d.addr, d.len as usize)?;
        if self.stock.out() > self.stock.len() / 2 {
            self.stock.reclaim();
        }
        if self.stock.out() > self.stock.len() / 2 {
            let mut copy = pool.take(buf.len());
            copy.raw_mut()[..buf.len()].copy_from_slice(buf.as_slice());
            copy.set_window(0, buf.len());
            buf = copy;
            Counts::note(&self.socket.counts.copied, 1);
        }
        let csum_ok = self.partial && csum::is_partial(buf.as_slice());
        Some(RxFrame {
            buf,
            hash: None,
            csum_ok,
            segment_size: 0,
        })
    }
}

impl RxQueue for XdpRx {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let (mut n, mut seen) = (0, 0);
        while seen < max {
            let Some(d) = self.ring.next() else {
                break;
            };
            seen += 1;
            if let Some(frame) = self.take(d, pool) {
                out.push(frame);
                n += 1;
            }
        }
        if seen > 0 {
            self.ring.release();
            let counts = &self.socket.counts;
            Counts::note(&counts.received, n as u64);
            Counts::note(&counts.unusable, (seen - n) as u64);
        }
        self.refill();
        if now >= self.groups_at
            && let Some((groups, _)) = &mut self.groups
        {
            self.groups_at = now.plus(GROUPS);
            n += groups.rx.poll(now, pool, out, max - seen);
        }
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        // Whoever is woken looks for frames to groups, too.
        self.groups_at = Time::ZERO;
        let groups = match &mut self.groups {
            Some((groups, _)) => groups.rx.arm(now),
            None => RxStatus::Armed(Time::NEVER),
        };
        if groups == RxStatus::Gone {
            self.socket.gone.store(true, Ordering::Relaxed);
        }
        if self.socket.is_gone() {
            return RxStatus::Gone;
        }
        // Frames that came home since the last poll: the ring may have run dry.
        self.refill();
        match self.ring.look() {
            true => RxStatus::Ready,
            // The descriptor stays readable as long as frames wait, so none is missed.
            false => groups,
        }
    }

    fn set_waker(&mut self, _waker: Waker) {}

    fn fd(&self) -> Option<RawFd> {
        let fd = match &self.groups {
            Some((_, either)) => either,
            None => &self.socket.fd,
        };
        (!self.socket.is_gone()).then(|| fd.as_raw_fd())
    }
}

pub(super) struct XdpTx {
    socket: Arc<Socket>,
    ring: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
    stock: Stock,
    ready_at: Time,
}

impl XdpTx {
    /// The transmit side.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(
        socket: Arc<Socket>,
        [ring, completion]: [(Which, u32); 2],
        stock: Stock,
    ) -> io::Result<XdpTx> {
        Ok(XdpTx {
            ring: Ring::new(&socket.fd, ring.0, ring.1)?,
            completion: Ring::new(&socket.fd, completion.0, completion.1)?,
            socket,
            stock,
            ready_at: Time::ZERO,
        })
    }

    /// Takes back the frames that have been sent.
    fn reap(&mut self) {
        let mut any = false;
        while let Some(at) = self.completion.next() {
            self.stock.done(at);
            any = true;
        }
        if any {
            self.completion.release();
        }
    }

    /// Copies a frame into memory that the kernel reads, and puts it into its ring; false if there
    /// is no room.
    fn place(&mut self, d: &TxDesc) -> bool {
        if self.ring.room(1) == 0 {
            return false;
        }
        let Some(mut buf) = self.stock.take() else {
            return false;
        };
        let Some(len) = csum::copy_out(d, buf.raw_mut()) else {
            // Longer than a frame: the MTU is not ours any more.
            Counts::note(&self.socket.counts.refused, 1);
            return true;
        };
        csum::complete(&mut buf.raw_mut()[..len], d.offload);
        // Its own, so it is not refused.
        let Ok(addr) = self.stock.give(buf) else {
            return true;
        };
        self.ring.put(libc::xdp_desc {
            addr,
            len: len as u32,
            options: 0,
        });
        true
    }

    /// Has the kernel send what is in its ring; whether something is left there, and when to try
    /// again.
    fn kick(&mut self, now: Time) -> Option<Time> {
        loop {
            let before = self.ring.waiting();
            if before == 0 || !self.ring.needs_wakeup() {
                return None;
            }
            let error = match sys::kick_tx(&self.socket.fd) {
                Ok(()) => return None,
                Err(e) => e.raw_os_error(),
            };
            match error {
                // The call sends so many frames at most, or a queue behind it is full.
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {
                    if self.ring.waiting() == before {
                        return Some(now.plus(AGAIN));
                    }
                    self.reap();
                }
                Some(libc::ENXIO | libc::ENODEV) => {
                    self.socket.gone.store(true, Ordering::Relaxed);
                    return None;
                }
                // It is down: what is in the ring waits there.
                _ => return Some(now.plus(LOOK)),
            }
        }
    }
}

impl TxQueue for XdpTx {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        self.ready_at = Time::ZERO;
        self.stock.reclaim();
        let mut n = 0;
        let mut sent = 0;
        let mut again = None;
        while again.is_none() {
            self.reap();
            while n < ring.len() && self.place(&ring.pending()[n]) {
                n += 1;
            }
            self.ring.submit();
            again = self.kick(now);
            if n == ring.len() || n == sent {
                break;
            }
            sent = n;
        }
        Counts::note(&self.socket.counts.sent, n as u64);
        if self.socket.is_gone() {
            // Nobody will send it.
            n = ring.len();
            again = None;
        }
        let full = (n < ring.len()).then(|| now.plus(AGAIN));
        ring.consume(n);
        self.ready_at = again.or(full).unwrap_or(Time::ZERO);
    }

    fn ready_at(&self) -> Time {
        self.ready_at
    }

    fn carrier(&self) -> bool {
        !self.socket.is_gone()
    }
}

/// Whether a frame's checksums may be partial where the driver hands it over so. See
/// [`super::XdpConfig::partial`].
pub(super) fn leaves_partial(driver: &str) -> bool {
    driver == "veth"
}
