//! The system calls behind AF_XDP: sockets, memory, and rings that are shared with the kernel.

use perimeter_base::region::{Memory, size};
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ifreq::check;

/// Frames that one system call sends at most (linux/if_xdp.h, Linux 6.17).
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;

/// Opens a socket that is bound to nothing yet.
pub(super) fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_XDP, kind, 0) };
    check(fd)?;
    // SAFETY: the call has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Values of socket options, as the kernel has them: no padding, and any bits make one.
trait Plain: Copy {}

impl Plain for c_int {}
impl Plain for libc::xdp_umem_reg {}
impl Plain for libc::xdp_mmap_offsets {}
impl Plain for libc::xdp_statistics {}
impl Plain for libc::xdp_options {}

fn set<T: Plain>(fd: &OwnedFd, option: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let at = std::ptr::from_ref(value).cast::<c_void>();
    // SAFETY: `at` is valid for reads of `len` octets during the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, at, len) })
}

fn get<T: Plain>(fd: &OwnedFd, option: c_int, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let at = std::ptr::from_mut(&mut value).cast::<c_void>();
    // SAFETY: `at` is valid for writes of `len` octets during the call, which writes no more, and
    // whatever it writes is a `T`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, at, &raw mut len) })?;
    Ok(value)
}

/// Memory for a region of so many frames, of pages of its own.
pub(super) fn memory(frame: usize, frames: usize) -> io::Result<Memory> {
    let len = size(frame, frames);
    let align = len.next_power_of_two();
    let all = len + align;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new pages, wherever the kernel puts them.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), all, READ_WRITE, flags, -1, 0) };
    let at = mapped(at)?;
    let before = at.as_ptr().addr().wrapping_neg() % align;
    // SAFETY: within the mapping, which is as much longer.
    let start = unsafe { at.add(before) };
    // Where it is, for who unmaps it on another thread.
    let (from, to) = (
        start.as_ptr().expose_provenance(),
        len.next_multiple_of(PAGE),
    );
    // SAFETY: what lies before and behind is ours and nobody's: whole pages of the mapping.
    unsafe {
        if before > 0 {
            libc::munmap(at.as_ptr().cast(), before);
        }
        if all - before > to {
            libc::munmap(start.as_ptr().add(to).cast(), all - before - to);
        }
    }
    let release = move || {
        // SAFETY: the mapping from above, given back once. A kernel that still has pages of it
        // (it lets go of them some time after the socket is closed) keeps these for itself.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(from), to) };
    };
    // SAFETY: zeroed pages that are ours alone, aligned as asked; the kernel accesses a frame only
    // between its coming to one of its rings and coming back by another.
    Ok(unsafe { Memory::new(start, len, release) })
}

/// Pages of the machine are this large, or a multiple.
const PAGE: usize = 4096;

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

fn mapped(at: *mut c_void) -> io::Result<NonNull<u8>> {
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Tells the kernel of a region's frames, of `frame` octets each.
pub(super) fn register(fd: &OwnedFd, frames: *mut [u8], frame: usize) -> io::Result<()> {
    let umem = libc::xdp_umem_reg {
        addr: frames.cast::<u8>().expose_provenance() as u64,
        len: (frames.len() / frame * frame) as u64,
        chunk_size: frame as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set(fd, libc::XDP_UMEM_REG, &umem)
}

/// Which queue a socket is bound to, and how.
pub(super) struct Bind<'a> {
    pub ifindex: u32,
    pub queue: u32,
    /// Flags of the first socket of a region.
    pub flags: u16,
    /// The first socket of the region, for the others.
    pub shared: Option<&'a OwnedFd>,
}

pub(super) fn bind(fd: &OwnedFd, to: &Bind<'_>) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: match to.shared {
            Some(_) => libc::XDP_SHARED_UMEM,
            None => to.flags,
        },
        sxdp_ifindex: to.ifindex,
        sxdp_queue_id: to.queue,
        sxdp_shared_umem_fd: to.shared.map_or(0, |fd| fd.as_raw_fd() as u32),
    };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is valid for reads of its length during the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })
}

/// Whether the driver reads and writes the region itself.
pub(super) fn is_zero_copy(fd: &OwnedFd) -> io::Result<bool> {
    let options = get(fd, libc::XDP_OPTIONS, libc::xdp_options { flags: 0 })?;
    Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// What the kernel has counted on a socket.
pub(super) fn statistics(fd: &OwnedFd) -> io::Result<libc::xdp_statistics> {
    let none = libc::xdp_statistics {
        rx_dropped: 0,
        rx_invalid_descs: 0,
        tx_invalid_descs: 0,
        rx_ring_full: 0,
        rx_fill_ring_empty_descs: 0,
        tx_ring_empty_descs: 0,
    };
    get(fd, libc::XDP_STATISTICS, none)
}

/// Has the kernel send what is in the transmit ring. An error may leave frames there.
pub(super) fn kick_tx(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let n = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            std::ptr::null(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null(),
            0,
        )
    };
    check(n as c_int)
}

/// Has the driver look at the fill ring again.
pub(super) fn kick_rx(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let n = unsafe {
        libc::recvfrom(
            fd.as_raw_fd(),
            std::ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    check(n as c_int)
}

/// A descriptor that is readable when one of these is.
pub(super) fn either(fds: [&OwnedFd; 2]) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let all = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    check(all)?;
    // SAFETY: the call has just given us this descriptor.
    let all = unsafe { OwnedFd::from_raw_fd(all) };
    for fd in fds {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let add = libc::EPOLL_CTL_ADD;
        // SAFETY: the event is valid for reads during the call.
        check(unsafe { libc::epoll_ctl(all.as_raw_fd(), add, fd.as_raw_fd(), &raw mut event) })?;
    }
    Ok(all)
}

/// One of a socket's four rings.
#[derive(Clone, Copy)]
pub(super) enum Which {
    Receive,
    Transmit,
    Fill,
    Completion,
}

impl Which {
    fn option(self) -> c_int {
        match self {
            Which::Receive => libc::XDP_RX_RING,
            Which::Transmit => libc::XDP_TX_RING,
            Which::Fill => libc::XDP_UMEM_FILL_RING,
            Which::Completion => libc::XDP_UMEM_COMPLETION_RING,
        }
    }

    fn offset(self) -> i64 {
        match self {
            Which::Receive => libc::XDP_PGOFF_RX_RING,
            Which::Transmit => libc::XDP_PGOFF_TX_RING,
            Which::Fill => libc::XDP_UMEM_PGOFF_FILL_RING as i64,
            Which::Completion => libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64,
        }
    }
}

/// Entries of rings: any bits make one.
pub(super) trait Entry: Copy {}

impl Entry for u64 {}
impl Entry for libc::xdp_desc {}

/// A ring that is shared with the kernel. Our end of it: we either produce or consume.
pub(super) struct Ring<T> {
    map: NonNull<u8>,
    len: usize,
    offsets: libc::xdp_ring_offset,
    entries: NonNull<T>,
    size: u32,
    /// Our own counter, which may be ahead of the one that the kernel sees, and the kernel's as it
    /// was last seen. Both run freely.
    ours: u32,
    theirs: u32,
}

// SAFETY: an owner of its mapping; what the kernel shares is accessed by atomics, and entries only
// while they are ours by these.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// Makes it, with so many entries, a power of two.
    pub(super) fn new(fd: &OwnedFd, which: Which, size: u32) -> io::Result<Ring<T>> {
        set(fd, which.option(), &(size as c_int))?;
        // SAFETY: all zero are offsets.
        let none: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
        let all = get(fd, libc::XDP_MMAP_OFFSETS, none)?;
        let offsets = match which {
            Which::Receive => all.rx,
            Which::Transmit => all.tx,
            Which::Fill => all.fr,
            Which::Completion => all.cr,
        };
        let len = offsets.desc as usize + size as usize * size_of::<T>();
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let (null, fd) = (std::ptr::null_mut(), fd.as_raw_fd());
        // SAFETY: new pages, wherever the kernel puts them.
        let map = unsafe { libc::mmap(null, len, READ_WRITE, flags, fd, which.offset()) };
        let map = mapped(map)?;
        // SAFETY: within the mapping, which the kernel says is laid out so.
        let entries = unsafe { map.add(offsets.desc as usize) }.cast();
        Ok(Ring {
            map,
            len,
            offsets,
            entries,
            size,
            ours: 0,
            theirs: 0,
        })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: a word of the mapping, where the kernel says, aligned, accessed by atomics on
        // both sides, and there for as long as `self`.
        unsafe { self.map.add(offset as usize).cast().as_ref() }
    }

    /// Whether the kernel asks for a system call.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        let flags = self.word(self.offsets.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn entry(&self, n: u32) -> NonNull<T> {
        // SAFETY: one of `size` entries, which is a power of two.
        unsafe { self.entries.add((n & (self.size - 1)) as usize) }
    }

    /// As a producer: how many more entries fit, if need be asked again for `want`.
    #[inline]
    pub(super) fn room(&mut self, want: u32) -> u32 {
        let room = |r: &Ring<T>| r.size - r.ours.wrapping_sub(r.theirs).min(r.size);
        if room(self) < want {
            let seen = self.word(self.offsets.consumer).load(Ordering::Acquire);
            self.theirs = seen;
        }
        room(self)
    }

    /// As a producer: adds an entry. There must be room.
    #[inline]
    pub(super) fn put(&mut self, entry: T) {
        debug_assert!(self.ours.wrapping_sub(self.theirs) < self.size);
        // SAFETY: an entry that the kernel has consumed, and does not read before `submit`.
        unsafe { self.entry(self.ours).write(entry) };
        self.ours = self.ours.wrapping_add(1);
    }

    /// As a producer: shows the kernel what was put.
    #[inline]
    pub(super) fn submit(&self) {
        let producer = self.word(self.offsets.producer);
        producer.store(self.ours, Ordering::Release);
    }

    /// As a producer: how many entries the kernel has not consumed.
    pub(super) fn waiting(&mut self) -> u32 {
        let seen = self.word(self.offsets.consumer).load(Ordering::Acquire);
        self.theirs = seen;
        self.ours.wrapping_sub(seen).min(self.size)
    }

    /// As a consumer: the next entry.
    #[inline]
    pub(super) fn next(&mut self) -> Option<T> {
        if self.ours == self.theirs && !self.look() {
            return None;
        }
        // SAFETY: an entry that the kernel has produced, and does not write before `release`.
        let entry = unsafe { self.entry(self.ours).read() };
        self.ours = self.ours.wrapping_add(1);
        Some(entry)
    }

    /// As a consumer: whether there is an entry.
    #[inline]
    pub(super) fn look(&mut self) -> bool {
        if self.ours == self.theirs {
            let seen = self.word(self.offsets.producer).load(Ordering::Acquire);
            self.theirs = seen;
        }
        self.ours != self.theirs
    }

    /// As a consumer: gives the kernel the entries back that were read.
    #[inline]
    pub(super) fn release(&self) {
        let consumer = self.word(self.offsets.consumer);
        consumer.store(self.ours, Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, and nothing refers to it any more.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.len) };
    }
}

/// Lets one system call send so many frames, where the kernel can be told (32 elsewhere).
pub(super) fn budget(fd: &OwnedFd, frames: u32) {
    // Where it can't, more calls are made.
    let _ = set(fd, XDP_MAX_TX_SKB_BUDGET, &(frames as c_int));
}
