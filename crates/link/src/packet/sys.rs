//! The system calls behind packet sockets: open, options, and frames in batches.

use perimeter_base::{PktBuf, PktPool, TxDesc};
use perimeter_wire::MacAddr;
use smallvec::SmallVec;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::device::Medium;
use crate::ifreq::check;
use crate::vnet::{self, VNET};

/// Frames that one system call takes or gives at most.
pub(super) const BATCH: usize = 32;

/// What the filter leaves of a frame with a VLAN tag. No frame of Ethernet is so short.
pub(super) const TAGGED: usize = 13;

/// Opens a packet socket that receives nothing yet: it has no protocol before [`bind`].
pub(super) fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    check(fd)?;
    // SAFETY: the call has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Values of socket options, as the kernel has them: no padding, and any bits make one.
trait Plain: Copy {}

impl Plain for c_int {}
impl Plain for libc::packet_mreq {}
impl Plain for libc::tpacket_stats {}

fn set<T: Plain>(fd: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let at = std::ptr::from_ref(value).cast::<c_void>();
    // SAFETY: `at` is valid for reads of `len` octets during the call; none of the options that
    // are set by this keeps the address.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, at, len) })
}

fn get<T: Plain>(fd: &OwnedFd, option: c_int, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let at = std::ptr::from_mut(&mut value).cast::<c_void>();
    // SAFETY: `at` is valid for writes of `len` octets during the call, which writes no more, and
    // whatever it writes is a `T`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_PACKET, option, at, &raw mut len) })?;
    Ok(value)
}

/// Sets an option of packet sockets that is a number.
pub(super) fn option(fd: &OwnedFd, option: c_int, value: c_int) -> io::Result<()> {
    set(fd, libc::SOL_PACKET, option, &value)
}

/// Room for `octets` of frames that wait, in each direction. The kernel counts its own overhead
/// against it, so it gets twice that. Without CAP_NET_ADMIN it gives what `net.core.rmem_max` and
/// `wmem_max` allow.
pub(super) fn room(fd: &OwnedFd, octets: usize) -> io::Result<()> {
    let octets = c_int::try_from(octets).unwrap_or(c_int::MAX / 2);
    for (force, ask) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        if set(fd, libc::SOL_SOCKET, force, &octets).is_err() {
            set(fd, libc::SOL_SOCKET, ask, &octets)?;
        }
    }
    Ok(())
}

/// Has the interface take frames for `mac` as well, until the socket is closed: by its filter of
/// unicast addresses, or where it has none (or no place left) promiscuously.
pub(super) fn join(fd: &OwnedFd, index: u32, mac: MacAddr) -> io::Result<()> {
    let mut request = libc::packet_mreq {
        mr_ifindex: index as c_int,
        mr_type: libc::PACKET_MR_UNICAST as u16,
        mr_alen: 6,
        mr_address: [0; 8],
    };
    request.mr_address[..6].copy_from_slice(&mac.0);
    let add = |request| set(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request);
    add(request).or_else(|_| {
        request.mr_type = libc::PACKET_MR_PROMISC as u16;
        add(request)
    })
}

fn address(index: c_int) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// Begins to receive from interface `index`.
pub(super) fn bind(fd: &OwnedFd, index: u32) -> io::Result<()> {
    let to = address(index as c_int);
    let len = size_of_val(&to) as libc::socklen_t;
    // SAFETY: the address is valid for reads of its length during the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const to).cast(), len) })
}

/// Whether the interface that the socket was bound to has been deleted: the kernel has taken its
/// number from the socket.
pub(super) fn is_gone(fd: &OwnedFd) -> bool {
    let mut of = address(0);
    let mut len = size_of_val(&of) as libc::socklen_t;
    // SAFETY: the address is valid for writes of `len` octets during the call.
    let result = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut of).cast(), &raw mut len) };
    result == 0 && of.sll_ifindex < 0
}

/// Joins the sockets of one device, among which the kernel divides flows by a hash of both ends
/// that is the same in both directions. `group` is of the first one; returns it.
pub(super) fn fanout(fd: &OwnedFd, group: Option<u16>) -> io::Result<u16> {
    let flags = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
    let (id, flags) = match group {
        Some(id) => (id, flags),
        None => (0, flags | libc::PACKET_FANOUT_FLAG_UNIQUEID),
    };
    option(
        fd,
        libc::PACKET_FANOUT,
        (u32::from(id) | flags << 16) as c_int,
    )?;
    Ok(get(fd, libc::PACKET_FANOUT, 0)? as u16)
}

/// One instruction of a classic BPF program.
fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    let code = code as u16;
    libc::sock_filter { code, jt, jf, k }
}

/// What passes nothing.
pub(super) fn nothing() -> Vec<libc::sock_filter> {
    vec![op(libc::BPF_RET, 0, 0, 0)]
}

/// What passes frames to groups that the interface has received, without a VLAN tag.
pub(super) fn groups() -> Vec<libc::sock_filter> {
    use libc::{BPF_ABS, BPF_B, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_LD, BPF_RET, BPF_W};
    let of_frame = |what: c_int| (libc::SKF_AD_OFF + what) as u32;
    let load = BPF_LD | BPF_ABS;
    let equal = BPF_JMP | BPF_JEQ;
    vec![
        op(load | BPF_W, 0, 0, of_frame(libc::SKF_AD_PKTTYPE)),
        op(equal, 5, 0, u32::from(libc::PACKET_OUTGOING)),
        op(load | BPF_W, 0, 0, of_frame(libc::SKF_AD_VLAN_TAG_PRESENT)),
        op(equal, 0, 3, 0),
        op(load | BPF_B, 0, 0, 0),
        op(BPF_JMP | BPF_JSET, 0, 1, 1),
        op(BPF_RET, 0, 0, u32::MAX),
        op(BPF_RET, 0, 0, 0),
    ]
}

/// What passes frames to `mac` and to groups that the interface has received; of those with a
/// VLAN tag only [`TAGGED`] octets. The kernel has taken the tag out of the frame.
pub(super) fn ours(mac: MacAddr) -> Vec<libc::sock_filter> {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_LD};
    use libc::{BPF_RET, BPF_W, PACKET_OUTGOING};
    let [a, b, c, d, e, f] = mac.0;
    let of_frame = |what: c_int| (libc::SKF_AD_OFF + what) as u32;
    let load = BPF_LD | BPF_ABS;
    let equal = BPF_JMP | BPF_JEQ;
    vec![
        op(load | BPF_W, 0, 0, of_frame(libc::SKF_AD_PKTTYPE)),
        op(equal, 13, 0, u32::from(PACKET_OUTGOING)),
        op(load | BPF_B, 0, 0, 0),
        op(BPF_JMP | BPF_JSET, 4, 0, 1),
        op(load | BPF_W, 0, 0, 0),
        op(equal, 0, 9, u32::from_be_bytes([a, b, c, d])),
        op(load | BPF_H, 0, 0, 4),
        op(equal, 0, 7, u32::from(u16::from_be_bytes([e, f]))),
        // To us or to a group. A tag of network 0 is a priority only.
        op(load | BPF_W, 0, 0, of_frame(libc::SKF_AD_VLAN_TAG_PRESENT)),
        op(equal, 4, 0, 0),
        op(load | BPF_W, 0, 0, of_frame(libc::SKF_AD_VLAN_TAG)),
        op(BPF_ALU | BPF_AND, 0, 0, 0xfff),
        op(equal, 1, 0, 0),
        op(BPF_RET, 0, 0, TAGGED as u32),
        op(BPF_RET, 0, 0, u32::MAX),
        op(BPF_RET, 0, 0, 0),
    ]
}

/// Has the kernel pass only what `program` lets through; in place of the one before, at once.
pub(super) fn filter(fd: &OwnedFd, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    let len = size_of_val(&program) as libc::socklen_t;
    let at = (&raw const program).cast::<c_void>();
    // SAFETY: `at` is valid for reads of `len` octets, and the program for reads of as many
    // instructions as it says, during the call. The kernel makes a copy of it.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            at,
            len,
        )
    })
}

/// Frames that came, and those of them that were dropped for want of room, since the last call.
pub(super) fn statistics(fd: &OwnedFd) -> io::Result<(u32, u32)> {
    let none = libc::tpacket_stats {
        tp_packets: 0,
        tp_drops: 0,
    };
    let s = get(fd, libc::PACKET_STATISTICS, none)?;
    Ok((s.tp_packets, s.tp_drops))
}

/// Where the frames of a batch are read to: buffers of the stack, and behind each, for frames that
/// it has no room for, memory of ours.
pub(super) struct Landing {
    /// To be filled from the front; its owner takes out what was, and adds others.
    pub bufs: Vec<PktBuf>,
    more: Vec<PktBuf>,
    /// Of each frame read: its octets with the header in front, and whether there were more.
    pub read: [(usize, bool); BATCH],
}

impl Landing {
    pub(super) fn new() -> Landing {
        Landing {
            bufs: Vec::with_capacity(BATCH),
            more: Vec::with_capacity(BATCH),
            read: [(0, false); BATCH],
        }
    }

    /// Reads as many frames as there are, up to `most`, the number of buffers, and [`BATCH`]; how
    /// many. Frame `i` is in buffer `i`, from its start, with its header.
    pub(super) fn receive(
        &mut self,
        fd: &OwnedFd,
        most: usize,
        pool: &mut PktPool,
    ) -> io::Result<usize> {
        let n = self.bufs.len().min(BATCH).min(most);
        while self.more.len() < n {
            self.more.push(pool.take(vnet::LONGEST));
        }
        let mut pieces: [MaybeUninit<[libc::iovec; 2]>; BATCH] =
            [const { MaybeUninit::uninit() }; BATCH];
        let mut messages: [MaybeUninit<libc::mmsghdr>; BATCH] =
            [const { MaybeUninit::uninit() }; BATCH];
        let places = self.bufs.iter_mut().zip(&mut self.more).take(n);
        for ((buf, more), (two, message)) in places.zip(pieces.iter_mut().zip(&mut messages)) {
            let head = buf.raw_mut();
            let rest = more.raw_mut().get_mut(head.len()..).unwrap_or_default();
            let two = two.write([
                piece(head.as_mut_ptr(), head.len()),
                piece(rest.as_mut_ptr(), rest.len()),
            ]);
            message.write(header(two.as_mut_ptr(), two.len()));
        }
        // SAFETY: the first `n` messages were written above, and name two pieces each that are
        // valid for writes of their lengths during the call; the kernel only writes to them, and
        // to the messages. The headers in `pieces` outlive the call, too.
        let got = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                messages.as_mut_ptr().cast(),
                n as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let Ok(got) = usize::try_from(got) else {
            return Err(io::Error::last_os_error());
        };
        for (i, message) in messages.iter().enumerate().take(got.min(n)) {
            // SAFETY: one of the first `n`, which were written above.
            let m = unsafe { message.assume_init_ref() };
            let len = m.msg_len as usize;
            self.read[i] = (len, m.msg_hdr.msg_flags & libc::MSG_TRUNC != 0);
            let (buf, more) = (&mut self.bufs[i], &mut self.more[i]);
            if len > buf.capacity() {
                vnet::join(buf, more, pool);
            }
        }
        Ok(got.min(n))
    }
}

fn piece(at: *mut u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: at.cast::<c_void>(),
        iov_len: len,
    }
}

/// A message of `n` pieces, without an address or anything else.
fn header(pieces: *mut libc::iovec, n: usize) -> libc::mmsghdr {
    // SAFETY: all zero is a message without pieces, an address or control data.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_iov = pieces;
    message.msg_hdr.msg_iovlen = n as _;
    message
}

/// Sends frames from the front of `frames`, at most [`BATCH`] of them; how many the kernel took,
/// at least one.
pub(super) fn send(fd: &OwnedFd, frames: &[TxDesc]) -> io::Result<usize> {
    let frames = &frames[..frames.len().min(BATCH)];
    let headers: SmallVec<[[u8; VNET]; BATCH]> = frames
        .iter()
        .map(|d| vnet::of(d, Medium::Ethernet))
        .collect();
    // Each frame's pieces follow those of the one before.
    let mut pieces: SmallVec<[libc::iovec; 4 * BATCH]> = SmallVec::new();
    let mut counts: SmallVec<[usize; BATCH]> = SmallVec::new();
    for (d, vnet) in frames.iter().zip(&headers) {
        let before = pieces.len();
        let parts = [&vnet[..], d.headers()].into_iter().chain(d.payload());
        pieces.extend(parts.map(|p| piece(p.as_ptr().cast_mut(), p.len())));
        counts.push(pieces.len() - before);
    }
    let mut rest = &mut pieces[..];
    let mut messages: SmallVec<[libc::mmsghdr; BATCH]> = SmallVec::new();
    for n in counts {
        let (these, others) = rest.split_at_mut(n);
        messages.push(header(these.as_mut_ptr(), n));
        rest = others;
    }
    let (at, n) = (messages.as_mut_ptr(), messages.len() as u32);
    // SAFETY: every message names pieces that are valid for reads during the call, as headers and
    // frames are borrowed here. The kernel only reads from them, and writes to the messages.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), at, n, libc::MSG_DONTWAIT as _) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program returns for a frame: how much of it passes.
    fn run(program: &[libc::sock_filter], frame: &[u8], kind: u8, tag: Option<u16>) -> u32 {
        let ancillary = |what| (libc::SKF_AD_OFF + what) as u32;
        let (mut a, mut at) = (0u32, 0);
        loop {
            let i = program[at];
            at += 1;
            let (code, k) = (u32::from(i.code), i.k);
            let jump = |yes: bool| usize::from(if yes { i.jt } else { i.jf });
            if code == libc::BPF_RET {
                return k;
            } else if code == libc::BPF_ALU | libc::BPF_AND {
                a &= k;
            } else if code == libc::BPF_JMP | libc::BPF_JEQ {
                at += jump(a == k);
            } else if code == libc::BPF_JMP | libc::BPF_JSET {
                at += jump(a & k != 0);
            } else if k == ancillary(libc::SKF_AD_PKTTYPE) {
                a = u32::from(kind);
            } else if k == ancillary(libc::SKF_AD_VLAN_TAG_PRESENT) {
                a = u32::from(tag.is_some());
            } else if k == ancillary(libc::SKF_AD_VLAN_TAG) {
                a = u32::from(tag.unwrap_or(0));
            } else {
                let size = code & (libc::BPF_B | libc::BPF_H);
                let n = [4, 2, 1][(size >> 3) as usize];
                let bytes = &frame[k as usize..k as usize + n];
                a = bytes.iter().fold(0, |a, &b| a << 8 | u32::from(b));
            }
        }
    }

    #[test]
    fn the_filter_passes_what_is_ours() {
        let mac = MacAddr([2, 0x50, 3, 4, 0xf5, 6]);
        let program = ours(mac);
        let to = |mac: [u8; 6]| [&mac[..], &[0; 54]].concat();
        let pass = |to: &[u8]| run(&program, to, 0, None);
        assert_eq!(pass(&to(mac.0)), u32::MAX);
        assert_eq!(pass(&to([0xff; 6])), u32::MAX);
        assert_eq!(pass(&to([1, 0, 0x5e, 0, 0, 1])), u32::MAX);
        for i in 0..6 {
            let mut other = mac.0;
            other[i] ^= 0x10;
            assert_eq!(pass(&to(other)), 0, "octet {i}");
        }
        for to in [to(mac.0), to([0xff; 6])] {
            assert_eq!(run(&program, &to, libc::PACKET_OUTGOING, None), 0);
            assert_eq!(run(&program, &to, 3, Some(7)), TAGGED as u32);
            assert_eq!(run(&program, &to, 3, Some(0xe000)), u32::MAX);
        }
        assert_eq!(run(&program, &to([2; 6]), 3, Some(7)), 0);
        assert_eq!(run(&nothing(), &to(mac.0), 0, None), 0);
        let pass = |to: [u8; 6], tag| run(&groups(), &[&to[..], &[0; 54]].concat(), 0, tag);
        assert_eq!(pass([0xff; 6], None), u32::MAX);
        assert_eq!(pass([0x33, 0x33, 0, 0, 0, 1], None), u32::MAX);
        assert_eq!((pass(mac.0, None), pass([0xff; 6], Some(7))), (0, 0));
        assert_eq!(
            run(&groups(), &to([0xff; 6]), libc::PACKET_OUTGOING, None),
            0
        );
    }
}
