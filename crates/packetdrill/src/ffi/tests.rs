//! The table called as packetdrill calls it, over the small stack.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::Duration;

use super::{Interface, interface_of};
use crate::shell::Shell;
use crate::tiny::{ACK, SYN, Segment, Tiny};

const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
const REMOTE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 5000);

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn arrive(t: &Interface, flags: u8, seq: u32, payload: &[u8]) {
    let segment = Segment {
        from: REMOTE,
        to: SocketAddrV4::new(LOCAL, 8080),
        flags,
        seq,
        ack: if flags & ACK != 0 { 7001 } else { 0 },
        options: Vec::new(),
        payload: payload.to_vec(),
    };
    let bytes = segment.bytes();
    // SAFETY: pointer and length of one vector.
    let sent = unsafe { (t.netdev_send)(t.userdata, bytes.as_ptr().cast(), bytes.len()) };
    assert_eq!(sent, 0);
}

/// The next packet, if one comes.
fn next(t: &Interface) -> Option<Segment> {
    let (mut buf, mut time) = (vec![0u8; 70_000], 0);
    let mut len = buf.len();
    // SAFETY: pointers to locals, `len` is the buffer's.
    let status = unsafe {
        (t.netdev_receive)(
            t.userdata,
            buf.as_mut_ptr().cast(),
            &raw mut len,
            &raw mut time,
        )
    };
    assert_eq!(status, 0);
    assert!(time >= 1_000_000_000_000_000);
    (len > 0).then(|| Segment::parse(&buf[..len]))
}

/// A table with a listener and an established connection.
fn connected() -> (Interface, c_int, c_int) {
    let tiny = Arc::new(Tiny::new(LOCAL));
    let t = interface_of(Arc::new(Shell::new(tiny, Duration::from_secs(10))));
    let ud = t.userdata;
    let any = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 8080_u16.to_be(),
        sin_addr: libc::in_addr { s_addr: 0 },
        sin_zero: [0; 8],
    };
    // SAFETY: all pointers are to locals of the right size.
    unsafe {
        let listener = (t.socket)(ud, libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_TCP);
        assert!(listener > 2);
        let addr = (&raw const any).cast();
        assert_eq!((t.bind)(ud, listener, addr, 4), -1);
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!((t.bind)(ud, listener, null(), 16), -1);
        assert_eq!(errno(), libc::EFAULT);
        assert_eq!((t.bind)(ud, listener, addr, 16), 0);
        assert_eq!((t.listen)(ud, listener, 1), 0);
        arrive(&t, SYN, 0, &[]);
        assert_eq!(next(&t).map(|s| s.flags), Some(SYN | ACK));
        arrive(&t, ACK, 1, &[]);
        let mut peer: libc::sockaddr_storage = std::mem::zeroed();
        let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let fd = (t.accept)(ud, listener, (&raw mut peer).cast(), &raw mut len);
        assert!(fd >= 0 && fd != listener);
        assert_eq!(len, 16);
        let peer = (&raw const peer).cast::<libc::sockaddr_in>().read();
        assert_eq!(peer.sin_port, 5000_u16.to_be());
        assert_eq!(peer.sin_addr.s_addr.to_ne_bytes(), REMOTE.ip().octets());
        (t, listener, fd)
    }
}

fn done(t: &Interface) {
    // SAFETY: the last use of the table.
    unsafe { (t.free)(t.userdata) }
}

fn iovec(buf: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    }
}

#[test]
fn bytes_through_every_call() {
    let (t, _, fd) = connected();
    let ud = t.userdata;
    let (mut a, mut b) = ([0u8; 2], [0u8; 3]);
    let mut flags_out = 0x55;
    // SAFETY: all pointers are to locals of the right size.
    unsafe {
        arrive(&t, ACK, 1, b"0123456789abcdefghij");
        assert_eq!((t.read)(ud, fd, a.as_mut_ptr().cast(), 2), 2);
        assert_eq!(&a, b"01");
        let iov = [iovec(&mut a), iovec(&mut []), iovec(&mut b)];
        assert_eq!((t.readv)(ud, fd, iov.as_ptr(), 3), 5);
        assert_eq!((&a, &b), (b"23", b"456"));
        assert_eq!(
            (t.recv)(ud, fd, a.as_mut_ptr().cast(), 2, libc::MSG_PEEK),
            2
        );
        let mut len: libc::socklen_t = 16;
        let from = (t.recvfrom)(
            ud,
            fd,
            a.as_mut_ptr().cast(),
            2,
            0,
            null_mut(),
            &raw mut len,
        );
        assert_eq!((from, &a, len), (2, b"78", 0));
        assert_eq!((t.recv)(ud, fd, null_mut(), 1, libc::MSG_TRUNC), 1);

        // TCP_INQ: the control message says what is left.
        let on: c_int = 1;
        assert_eq!(
            (t.setsockopt)(ud, fd, libc::SOL_TCP, 36, (&raw const on).cast(), 4),
            0
        );
        let mut iov = [iovec(&mut a), iovec(&mut b)];
        let mut control = [0u64; 4];
        let mut msg: libc::msghdr = std::mem::zeroed();
        (msg.msg_iov, msg.msg_iovlen) = (iov.as_mut_ptr(), 2);
        (msg.msg_control, msg.msg_controllen) = (control.as_mut_ptr().cast(), 32);
        msg.msg_flags = std::mem::replace(&mut flags_out, 0);
        assert_eq!((t.recvmsg)(ud, fd, &raw mut msg, 0), 5);
        assert_eq!((&a, &b, msg.msg_flags), (b"ab", b"cde", 0));
        let header = libc::CMSG_FIRSTHDR(&raw const msg);
        assert_eq!(
            ((*header).cmsg_level, (*header).cmsg_type),
            (libc::SOL_TCP, 36)
        );
        assert_eq!(libc::CMSG_DATA(header).cast::<u32>().read_unaligned(), 5);

        let mut queued: c_int = 0;
        assert_eq!((t.ioctl)(ud, fd, libc::FIONREAD, &raw mut queued), 0);
        assert_eq!(queued, 5);
        assert_eq!((t.write)(ud, fd, b"wr".as_ptr().cast(), 2), 2);
        assert_eq!(
            (t.send)(ud, fd, b"se".as_ptr().cast(), 2, libc::MSG_MORE),
            2
        );
        assert_eq!(
            (t.sendto)(ud, fd, b"to".as_ptr().cast(), 2, 0, null(), 0),
            2
        );
        let iov = [iovec(&mut a), iovec(&mut b)];
        assert_eq!((t.writev)(ud, fd, iov.as_ptr(), 2), 5);
        assert_eq!((t.sendmsg)(ud, fd, &raw const msg, 0), 5);
        assert_eq!((t.ioctl)(ud, fd, libc::TIOCOUTQ, &raw mut queued), 0);
        assert_eq!(queued, 16);
    }
    let sent: Vec<Vec<u8>> = (0..6).filter_map(|_| next(&t)).map(|s| s.payload).collect();
    let want: [&[u8]; 6] = [b"", b"wr", b"se", b"to", b"abcde", b"abcde"];
    assert_eq!(sent, want);
    done(&t);
}

#[test]
fn bad_arguments_are_errors() {
    let (t, listener, fd) = connected();
    let ud = t.userdata;
    let mut byte = 0u8;
    let hole = libc::iovec {
        iov_base: null_mut(),
        iov_len: 5,
    };
    let (mut len, mut value): (libc::socklen_t, c_int) = (4, 0);
    let (len, value): (*mut libc::socklen_t, *mut c_void) = (&raw mut len, (&raw mut value).cast());
    let buf: *mut c_void = (&raw mut byte).cast();
    macro_rules! fails {
        ($call:expr, $errno:expr) => {
            // SAFETY: pointers are null, where the call must notice, or to locals.
            let result = unsafe { $call };
            assert_eq!((result as isize, errno()), (-1, $errno), stringify!($call));
        };
    }
    fails!((t.read)(ud, fd, null_mut(), 5), libc::EFAULT);
    fails!((t.write)(ud, fd, null(), 5), libc::EFAULT);
    fails!((t.readv)(ud, fd, null(), 1), libc::EFAULT);
    fails!((t.readv)(ud, fd, &raw const hole, 1), libc::EFAULT);
    fails!((t.writev)(ud, fd, &raw const hole, -1), libc::EINVAL);
    fails!((t.writev)(ud, fd, &raw const hole, 1025), libc::EINVAL);
    fails!((t.recvmsg)(ud, fd, null_mut(), 0), libc::EFAULT);
    fails!((t.sendmsg)(ud, fd, null(), 0), libc::EFAULT);
    fails!((t.recv)(ud, 9999, buf, 1, 0), libc::EBADF);
    fails!((t.send)(ud, 9999, buf, 1, 0), libc::EBADF);
    fails!((t.read)(ud, 9999, buf, 1), libc::EBADF);
    fails!((t.connect)(ud, fd, null(), 16), libc::EFAULT);
    fails!(
        (t.socket)(ud, libc::AF_UNIX, libc::SOCK_STREAM, 0),
        libc::EAFNOSUPPORT
    );
    fails!((t.accept)(ud, fd, null_mut(), null_mut()), libc::EDEADLK);
    fails!((t.close)(ud, 9999), libc::EBADF);
    fails!((t.poll)(ud, null_mut(), 1, 0), libc::EFAULT);
    fails!((t.epoll_create)(ud, 0), libc::EINVAL);
    fails!((t.epoll_wait)(ud, fd, null_mut(), 1, 0), libc::EFAULT);
    fails!((t.fcntl)(ud, fd, libc::F_SETOWN, 1), libc::EINVAL);
    fails!((t.ioctl)(ud, fd, 0x1234, null_mut()), libc::ENOTTY);
    fails!((t.ioctl)(ud, fd, libc::FIONREAD, null_mut()), libc::EFAULT);
    fails!(
        (t.ioctl)(ud, listener, libc::FIONREAD, value.cast()),
        libc::EINVAL
    );
    fails!(
        (t.getsockopt)(ud, fd, libc::SOL_TCP, libc::TCP_NODELAY, value, null_mut()),
        libc::EFAULT
    );
    fails!(
        (t.getsockopt)(ud, fd, libc::SOL_TCP, libc::TCP_NODELAY, null_mut(), len),
        libc::EFAULT
    );
    fails!(
        (t.setsockopt)(ud, fd, libc::SOL_TCP, libc::TCP_NODELAY, null(), 4),
        libc::EFAULT
    );
    fails!(
        (t.setsockopt)(ud, fd, libc::SOL_TCP, libc::TCP_NODELAY, value, u32::MAX),
        libc::EINVAL
    );
    fails!((t.netdev_send)(ud, null(), 40), libc::EFAULT);
    done(&t);
}

#[test]
fn descriptors_and_readiness() {
    let (t, listener, fd) = connected();
    let ud = t.userdata;
    // SAFETY: all pointers are to locals of the right size.
    unsafe {
        // The placeholder is a real descriptor, that libc can ask about and close.
        assert!(libc::fcntl(fd, libc::F_GETFD) >= 0);
        assert_eq!((t.fcntl)(ud, fd, libc::F_GETFL, 0), libc::O_RDWR);
        let both = libc::O_RDWR | libc::O_NONBLOCK;
        assert_eq!((t.fcntl)(ud, fd, libc::F_SETFL, both.into()), 0);
        assert_eq!((t.fcntl)(ud, fd, libc::F_GETFL, 0), both);
        let mut off = 0;
        assert_eq!((t.ioctl)(ud, fd, libc::FIONBIO, &raw mut off), 0);
        assert_eq!((t.fcntl)(ud, fd, libc::F_GETFL, 0), libc::O_RDWR);

        let mut fds = [fd, listener, 9999].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN | libc::POLLOUT,
            revents: 0,
        });
        assert_eq!((t.poll)(ud, fds.as_mut_ptr(), 3, 0), 2);
        assert_eq!(fds.map(|p| p.revents), [libc::POLLOUT, 0, libc::POLLNVAL]);

        let set = (t.epoll_create)(ud, 1);
        let mut event = libc::epoll_event {
            events: libc::EPOLLOUT as u32,
            u64: 77,
        };
        let ctl = |op, event| (t.epoll_ctl)(ud, set, op, fd, event);
        assert_eq!(ctl(libc::EPOLL_CTL_ADD, &raw mut event), 0);
        assert_eq!(ctl(libc::EPOLL_CTL_ADD, &raw mut event), -1);
        assert_eq!(errno(), libc::EEXIST);
        let mut out = [libc::epoll_event { events: 0, u64: 0 }; 4];
        assert_eq!((t.epoll_wait)(ud, set, out.as_mut_ptr(), 4, -1), 1);
        assert_eq!(
            ({ out[0].u64 }, { out[0].events }),
            (77, libc::EPOLLOUT as u32)
        );

        assert_eq!((t.shutdown)(ud, fd, libc::SHUT_WR), 0);
        assert_eq!((t.close)(ud, fd), 0);
        assert_eq!((t.epoll_wait)(ud, set, out.as_mut_ptr(), 4, 0), 0);
        assert_eq!((t.close)(ud, set), 0);
        assert_eq!(libc::close(listener), 0);
    }
    done(&t);
}

#[test]
fn splice_through_a_pipe() {
    let (t, _, fd) = connected();
    let ud = t.userdata;
    let mut ends = [0; 2];
    // SAFETY: all pointers are null or to locals of the right size.
    unsafe {
        assert_eq!((t.pipe)(ud, ends.as_mut_ptr()), 0);
        arrive(&t, ACK, 1, b"through");
        assert_eq!(next(&t).map(|s| s.ack), Some(8));
        let splice = |from, to, flags| (t.splice)(ud, from, null_mut(), to, null_mut(), 100, flags);
        assert_eq!(splice(fd, ends[1], 0), 7);
        assert_eq!(splice(ends[0], fd, 0), 7);
        assert_eq!(next(&t).map(|s| s.payload), Some(b"through".to_vec()));
        assert_eq!(splice(fd, ends[1], libc::SPLICE_F_NONBLOCK), -1);
        assert_eq!(errno(), libc::EAGAIN);
        for end in ends {
            assert_eq!((t.close)(ud, end), 0);
        }
    }
    done(&t);
}

#[test]
fn time_and_options() {
    let (t, _, fd) = connected();
    let ud = t.userdata;
    // SAFETY: all pointers are to locals of the right size.
    unsafe {
        let clock = || {
            let mut tv = libc::timeval {
                tv_sec: 0,
                tv_usec: 0,
            };
            assert_eq!((t.gettimeofday)(ud, &raw mut tv, null_mut()), 0);
            tv.tv_sec * 1_000_000 + tv.tv_usec
        };
        let start = clock();
        assert_eq!((t.usleep)(ud, 1_500_000), 0);
        assert_eq!(clock() - start, 1_500_001);
        let mut info = [0u8; 512];
        let mut len = info.len() as libc::socklen_t;
        let value = info.as_mut_ptr().cast();
        let status = (t.getsockopt)(ud, fd, libc::SOL_TCP, libc::TCP_INFO, value, &raw mut len);
        assert_eq!((status, len, info[80]), (0, 280, 10), "tcpi_snd_cwnd");
    }
    assert_eq!(next(&t), None, "and no hang");
    done(&t);
}
