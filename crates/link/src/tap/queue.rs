//! Queues of a TAP device: one descriptor, read by one side and written by the other.

use perimeter_base::{PktBuf, PktPool, Time, TxDesc, TxRing};
use smallvec::SmallVec;
use std::ffi::c_void;
use std::mem::MaybeUninit;
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

/// How the kernel is to cut a frame, or has not cut it: TCP over IPv4, over IPv6.
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;

/// The longest frame that is not cut, its Ethernet header with a VLAN tag included.
const LONGEST: usize = VNET + 18 + 65_535;

pub(super) struct TapRx {
    fd: Arc<OwnedFd>,
    /// Largest frame, unless it is a large segment.
    frame: usize,
    /// Memory for large segments, if there are any: a frame that a buffer has no room for goes on
    /// here, behind as much as the buffer has.
    large: Option<Vec<u8>>,
    /// A buffer taken for a read that found nothing.
    spare: Option<PktBuf>,
    /// The interface was deleted: its descriptor polls as an error for ever.
    gone: bool,
}

impl TapRx {
    pub(super) fn new(fd: Arc<OwnedFd>, frame: usize, large: bool) -> TapRx {
        TapRx {
            fd,
            frame,
            large: large.then(|| Vec::with_capacity(LONGEST)),
            spare: None,
            gone: false,
        }
    }

    fn read(&mut self, buf: &mut PktBuf) -> Option<RxInfo> {
        let head = buf.capacity();
        let n = match self.large.as_mut() {
            Some(large) => read_into(&self.fd, buf, &mut large.spare_capacity_mut()[head..]),
            None => read_into(&self.fd, buf, &mut []),
        };
        // Nothing there, or an interface that is down or gone: both look like silence.
        let Ok(n) = usize::try_from(n) else {
            let error = std::io::Error::last_os_error().raw_os_error();
            self.gone |= error == Some(libc::EBADFD);
            return None;
        };
        let vnet = buf.raw_mut();
        let flags = vnet[0];
        let segment_size = match vnet[1] & 0x7f {
            GSO_TCPV4 | GSO_TCPV6 => u16::from_ne_bytes([vnet[4], vnet[5]]),
            _ => 0,
        };
        if n > head
            && let Some(large) = &mut self.large
        {
            *buf = long(large, buf.raw_mut(), n);
        }
        buf.set_window(VNET, n.saturating_sub(VNET));
        Some(RxInfo {
            csum_ok: flags & (NEEDS_CSUM | DATA_VALID) != 0,
            segment_size,
        })
    }
}

/// Reads a frame into `buf`, and what that has no room for into `more`.
fn read_into(fd: &OwnedFd, buf: &mut PktBuf, more: &mut [MaybeUninit<u8>]) -> isize {
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

/// A frame of `n` octets, of which `head` has the first and `large` the others, each where it
/// belongs. `large` is new afterwards.
fn long(large: &mut Vec<u8>, head: &[u8], n: usize) -> PktBuf {
    let mut whole = core::mem::replace(large, Vec::with_capacity(LONGEST));
    for (to, from) in whole.spare_capacity_mut().iter_mut().zip(head) {
        to.write(*from);
    }
    // SAFETY: the first octets were written here, as many as `head` has, and the kernel wrote those
    // behind them, up to the `n`th; no more than the capacity, as it was told how much there is.
    unsafe { whole.set_len(n.min(LONGEST)) };
    PktBuf::from_vec(whole)
}

struct RxInfo {
    csum_ok: bool,
    segment_size: u16,
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
                segment_size: info.segment_size,
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
        if d.offload.segment_size != 0 {
            vnet[1] = GSO_TCPV4;
            vnet[2..4].copy_from_slice(&u16::from(d.hdr_len).to_ne_bytes());
            vnet[4..6].copy_from_slice(&d.offload.segment_size.to_ne_bytes());
        }
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
