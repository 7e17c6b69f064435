//! Queues of a TAP device: one descriptor, read by one side and written by the other.

use perimeter_base::{PktBuf, PktPool, Time, TxDesc, TxRing};
use smallvec::SmallVec;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::device::{Medium, RxFrame, RxQueue, RxStatus, TxQueue, Waker};
use crate::vnet::{self, VNET};

/// When to try again after the kernel's queue was full, ns.
const AGAIN: u64 = 50_000;

pub(super) struct TapRx {
    fd: Arc<OwnedFd>,
    /// Largest frame, unless it is a large segment.
    frame: usize,
    /// Whether there are large segments.
    large: bool,
    /// Memory for them: a frame that a buffer has no room for goes on here, behind as much as the
    /// buffer has.
    more: Option<PktBuf>,
    medium: Medium,
    /// What came merged and was cut.
    datagrams: vnet::Datagrams,
    /// A buffer taken for a read that found nothing.
    spare: Option<PktBuf>,
    /// The interface was deleted: its descriptor polls as an error for ever.
    gone: bool,
}

impl TapRx {
    pub(super) fn new(fd: Arc<OwnedFd>, medium: Medium, frame: usize, large: bool) -> TapRx {
        TapRx {
            medium,
            datagrams: vnet::Datagrams::default(),
            fd,
            frame,
            large,
            more: None,
            spare: None,
            gone: false,
        }
    }

    fn read(&mut self, buf: &mut PktBuf, pool: &mut PktPool) -> Option<vnet::Received> {
        let head = buf.capacity();
        if self.large && self.more.is_none() {
            self.more = Some(pool.take(vnet::LONGEST));
        }
        let more = self.more.as_mut().map(PktBuf::raw_mut);
        let more = more.and_then(|more| more.get_mut(head..));
        let n = read_into(&self.fd, buf, more.unwrap_or_default());
        // Nothing there, or an interface that is down or gone: both look like silence.
        let Ok(n) = usize::try_from(n) else {
            let error = std::io::Error::last_os_error().raw_os_error();
            self.gone |= error == Some(libc::EBADFD);
            return None;
        };
        let info = vnet::read(buf.raw_mut().first_chunk()?);
        if n > head
            && let Some(more) = &mut self.more
        {
            vnet::join(buf, more, pool);
        }
        buf.set_window(VNET, n.saturating_sub(VNET));
        Some(info)
    }
}

/// Reads a frame into `buf`, and what that has no room for into `more`.
fn read_into(fd: &OwnedFd, buf: &mut PktBuf, more: &mut [u8]) -> isize {
    let memory = buf.raw_mut();
    let pieces = [
        libc::iovec {
            iov_base: memory.as_mut_ptr().cast::<c_void>(),
            iov_len: memory.len(),
        },
        libc::iovec {
            iov_base: more.as_mut_ptr().cast::<c_void>(),
            iov_len: more.len(),
        },
    ];
    let n = if more.is_empty() { 1 } else { 2 };
    // SAFETY: both pieces are valid for writes of their lengths during the call; the kernel only
    // writes to them.
    unsafe { libc::readv(fd.as_raw_fd(), pieces.as_ptr(), n) }
}

impl RxQueue for TapRx {
    fn poll(
        &mut self,
        _now: Time,
        pool: &mut PktPool,
        out: &mut Vec<RxFrame>,
        max: usize,
    ) -> usize {
        let mut n = 0;
        while n < max {
            if let Some(datagram) = self.datagrams.next() {
                out.push(datagram);
                n += 1;
                continue;
            }
            let mut buf = match self.spare.take() {
                Some(b) => b,
                None => pool.take(self.frame + VNET),
            };
            let Some(info) = self.read(&mut buf, pool) else {
                self.spare = Some(buf);
                break;
            };
            if info.datagram_size > 0 {
                let (medium, size) = (self.medium, info.datagram_size);
                self.datagrams.cut(buf.as_slice(), medium, size, pool);
                pool.put(buf);
                continue;
            }
            out.push(RxFrame {
                buf,
                hash: None,
                csum_ok: info.csum_ok,
                segment_size: info.segment_size,
            });
            n += 1;
        }
        n
    }

    fn arm(&mut self, _now: Time) -> RxStatus {
        if !self.datagrams.is_empty() {
            return RxStatus::Ready;
        }
        if self.gone {
            return RxStatus::Gone;
        }
        // The descriptor stays readable as long as frames wait, so none is missed.
        RxStatus::Armed(Time::NEVER)
    }

    fn set_waker(&mut self, _waker: Waker) {}

    fn fd(&self) -> Option<RawFd> {
        (!self.gone).then(|| self.fd.as_raw_fd())
    }
}

pub(super) struct TapTx {
    fd: Arc<OwnedFd>,
    medium: Medium,
    ready_at: Time,
    /// The interface was deleted.
    gone: bool,
}

impl TapTx {
    pub(super) fn new(fd: Arc<OwnedFd>, medium: Medium) -> TapTx {
        TapTx {
            fd,
            medium,
            ready_at: Time::ZERO,
            gone: false,
        }
    }

    /// Writes one frame; false if the kernel wants it later.
    fn write(&mut self, d: &TxDesc) -> bool {
        let vnet = vnet::of(d, self.medium);
        let piece = |bytes: &[u8]| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast::<c_void>(),
            iov_len: bytes.len(),
        };
        let head = [piece(&vnet), piece(d.headers())];
        let pieces: SmallVec<[_; 6]> = head.into_iter().chain(d.payload().map(piece)).collect();
        let (at, n) = (pieces.as_ptr(), pieces.len() as i32);
        // SAFETY: every piece is valid for reads during the call, as they are borrowed here. The
        // kernel only reads from them.
        let n = unsafe { libc::writev(self.fd.as_raw_fd(), at, n) };
        if n >= 0 {
            return true;
        }
        // Anything but a full queue (an interface that is down, a frame that the kernel calls
        // malformed) is a loss, as on any link.
        let error = std::io::Error::last_os_error().raw_os_error();
        self.gone |= error == Some(libc::EBADFD);
        !matches!(error, Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS))
    }
}

impl TxQueue for TapTx {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        let mut n = 0;
        for d in ring.pending() {
            if !self.write(d) {
                break;
            }
            n += 1;
        }
        if n == ring.len() {
            ring.clear();
            self.ready_at = Time::ZERO;
        } else {
            ring.consume(n);
            self.ready_at = now.plus(AGAIN);
        }
    }

    fn ready_at(&self) -> Time {
        self.ready_at
    }

    fn carrier(&self) -> bool {
        !self.gone
    }
}
