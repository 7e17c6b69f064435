//! Queues of a TAP device: one descriptor, read by one side and written by the other.

use perimeter_base::{PktBuf, PktPool, Time, TxDesc, TxRing};
use smallvec::SmallVec;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::device::{RxFrame, RxQueue, RxStatus, TxQueue, Waker};

/// `struct virtio_net_hdr` without the number of buffers, in the machine's byte order (VIRTIO
/// 1.2, section 5.1.6): flags, GSO type, header length, GSO size, checksum start and offset.
const VNET: usize = 10;
/// The checksum is partial: complete it from `csum_start`.
const NEEDS_CSUM: u8 = 1;
/// The checksum has been verified.
const DATA_VALID: u8 = 2;

/// When to try again after the kernel's queue was full, ns.
const AGAIN: u64 = 50_000;

pub(super) struct TapRx {
    fd: Arc<OwnedFd>,
    /// Largest frame.
    frame: usize,
    /// A buffer taken for a read that found nothing.
    spare: Option<PktBuf>,
    /// The interface was deleted: its descriptor polls as an error for ever.
    gone: bool,
}

impl TapRx {
    pub(super) fn new(fd: Arc<OwnedFd>, frame: usize) -> TapRx {
        TapRx {
            fd,
            frame,
            spare: None,
            gone: false,
        }
    }

    fn read(&mut self, buf: &mut PktBuf) -> Option<RxInfo> {
        let memory = buf.raw_mut();
        // SAFETY: `memory` is valid for writes of its length during the call.
        let n = unsafe {
            libc::read(
                self.fd.as_raw_fd(),
                memory.as_mut_ptr().cast::<c_void>(),
                memory.len(),
            )
        };
        // Nothing there, or an interface that is down or gone: both look like silence.
        let Ok(n) = usize::try_from(n) else {
            let error = std::io::Error::last_os_error().raw_os_error();
            self.gone |= error == Some(libc::EBADFD);
            return None;
        };
        let flags = memory[0];
        buf.set_window(VNET, n.saturating_sub(VNET));
        Some(RxInfo {
            csum_ok: flags & (NEEDS_CSUM | DATA_VALID) != 0,
        })
    }
}

struct RxInfo {
    csum_ok: bool,
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
            let mut buf = match self.spare.take() {
                Some(b) => b,
                None => pool.take(self.frame + VNET),
            };
            let Some(info) = self.read(&mut buf) else {
                self.spare = Some(buf);
                break;
            };
            out.push(RxFrame {
                buf,
                hash: None,
                csum_ok: info.csum_ok,
            });
            n += 1;
        }
        n
    }

    fn arm(&mut self, _now: Time) -> RxStatus {
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
    ready_at: Time,
    /// The interface was deleted.
    gone: bool,
}

impl TapTx {
    pub(super) fn new(fd: Arc<OwnedFd>) -> TapTx {
        TapTx {
            fd,
            ready_at: Time::ZERO,
            gone: false,
        }
    }

    /// Writes one frame; false if the kernel wants it later.
    fn write(&mut self, d: &TxDesc) -> bool {
        let mut vnet = [0u8; VNET];
        if d.offload.csum_start != 0 {
            vnet[0] = NEEDS_CSUM;
            vnet[6..8].copy_from_slice(&u16::from(d.offload.csum_start).to_ne_bytes());
            vnet[8..10].copy_from_slice(&u16::from(d.offload.csum_offset).to_ne_bytes());
        }
        debug_assert_eq!(d.offload.segment_size, 0, "a frame that is to be cut");
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
