//! Frames over a Unix socket: a datagram each, or each behind its length on a stream.

use super::PipeConfig;
use crate::csum;
use crate::device::{Capabilities, Device, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker};
use perimeter_base::{PktBuf, PktPool, Time, TxDesc, TxRing};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// When to try again after the socket's buffer was full, ns.
const AGAIN: u64 = 50_000;
/// Octets of a frame's length on a stream, most significant first.
const PREFIX: usize = 4;

enum Socket {
    /// `named`: the other end has a name, and may come back under it.
    Datagram {
        socket: UnixDatagram,
        named: bool,
    },
    Stream(UnixStream),
}

struct Shared {
    socket: Socket,
    config: PipeConfig,
    gone: AtomicBool,
}

/// A frame pipe over a Unix socket. A [`Device`] with one queue each way.
pub struct SocketPipe(Arc<Shared>);

/// Over a connected datagram socket, one frame a datagram. Of a named peer that has gone it is
/// assumed that it comes back: until then frames are lost.
///
/// # Errors
/// The socket is not connected, or can't be made not to block.
pub fn datagram(socket: UnixDatagram, config: PipeConfig) -> io::Result<SocketPipe> {
    socket.set_nonblocking(true)?;
    let named = !socket.peer_addr()?.is_unnamed();
    Ok(SocketPipe::new(Socket::Datagram { socket, named }, config))
}

/// Over a stream socket on which each frame is preceded by its length: four octets, the most
/// significant first.
///
/// # Errors
/// The socket can't be made not to block.
pub fn stream(socket: UnixStream, config: PipeConfig) -> io::Result<SocketPipe> {
    socket.set_nonblocking(true)?;
    Ok(SocketPipe::new(Socket::Stream(socket), config))
}

impl SocketPipe {
    fn new(socket: Socket, config: PipeConfig) -> SocketPipe {
        SocketPipe(Arc::new(Shared {
            socket,
            config,
            gone: AtomicBool::new(false),
        }))
    }
}

impl Shared {
    fn lost(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl Device for SocketPipe {
    fn capabilities(&self) -> Capabilities {
        self.0.config.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let frame = self.0.config.frame();
        let rx = SocketRx {
            shared: self.0.clone(),
            frame,
            spare: None,
            bytes: Vec::new(),
            at: 0,
        };
        let tx = SocketTx {
            shared: self.0,
            scratch: vec![0; PREFIX + frame],
            left: Vec::new(),
            ready_at: Time::ZERO,
        };
        (vec![Box::new(rx)], vec![Box::new(tx)])
    }
}

struct SocketRx {
    shared: Arc<Shared>,
    /// Largest frame.
    frame: usize,
    /// A buffer taken for a read that found nothing.
    spare: Option<PktBuf>,
    /// Read from a stream; from `at` on not taken apart yet.
    bytes: Vec<u8>,
    at: usize,
}

impl SocketRx {
    /// One datagram. Those that are larger than a frame can be are cut off, and the stack drops
    /// them.
    fn datagram(&mut self, socket: &UnixDatagram, pool: &mut PktPool) -> Option<PktBuf> {
        let mut buf = match self.spare.take() {
            Some(b) => b,
            None => pool.take(self.frame),
        };
        match socket.recv(buf.raw_mut()) {
            Ok(n) => {
                buf.set_window(0, n);
                Some(buf)
            }
            Err(e) => {
                self.spare = Some(buf);
                if !is_transient(&e) && e.kind() != ErrorKind::ConnectionRefused {
                    self.shared.lost();
                }
                None
            }
        }
    }

    /// The next frame of a stream. A length that no frame has ends it: nothing that follows could be
    /// told apart.
    fn framed(&mut self, mut socket: &UnixStream, pool: &mut PktPool) -> Option<PktBuf> {
        loop {
            let bytes = &self.bytes[self.at..];
            if let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() {
                let len = u32::from_be_bytes(*prefix) as usize;
                if len > self.frame {
                    self.shared.lost();
                    return None;
                }
                if let Some(frame) = rest.get(..len) {
                    let mut buf = pool.take(self.frame);
                    buf.raw_mut()[..len].copy_from_slice(frame);
                    buf.set_window(0, len);
                    self.at += PREFIX + len;
                    return Some(buf);
                }
            }
            self.bytes.drain(..self.at);
            self.at = 0;
            let have = self.bytes.len();
            // Room for a whole frame and more, whatever is there.
            self.bytes.resize(have + 16 * 1024 + self.frame, 0);
            let read = socket.read(&mut self.bytes[have..]);
            self.bytes.truncate(have + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => self.shared.lost(),
                Ok(_) => continue,
                Err(e) if is_transient(&e) => {}
                Err(_) => self.shared.lost(),
            }
            return None;
        }
    }
}

fn is_transient(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl RxQueue for SocketRx {
    fn poll(&mut self, _: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let shared = self.shared.clone();
        let before = out.len();
        while out.len() - before < max && !shared.is_gone() {
            let frame = match &shared.socket {
                Socket::Datagram { socket, .. } => self.datagram(socket, pool),
                Socket::Stream(socket) => self.framed(socket, pool),
            };
            let Some(buf) = frame else { break };
            out.push(RxFrame {
                buf,
                hash: None,
                csum_ok: shared.config.trusted,
                segment_size: 0,
            });
        }
        out.len() - before
    }

    fn arm(&mut self, _: Time) -> RxStatus {
        if self.shared.is_gone() {
            return RxStatus::Gone;
        }
        // A whole frame that was read already does not make the descriptor readable.
        let bytes = &self.bytes[self.at..];
        if let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>()
            && rest.len() >= u32::from_be_bytes(*prefix) as usize
        {
            return RxStatus::Ready;
        }
        // It stays readable as long as frames wait, so none is missed.
        RxStatus::Armed(Time::NEVER)
    }

    fn set_waker(&mut self, _: Waker) {}

    fn fd(&self) -> Option<RawFd> {
        let fd = match &self.shared.socket {
            Socket::Datagram { socket, .. } => socket.as_raw_fd(),
            Socket::Stream(socket) => socket.as_raw_fd(),
        };
        (!self.shared.is_gone()).then_some(fd)
    }
}

struct SocketTx {
    shared: Arc<Shared>,
    /// The frame that is being sent, behind room for its length.
    scratch: Vec<u8>,
    /// The rest of a frame of which a stream took a part.
    left: Vec<u8>,
    ready_at: Time,
}

impl SocketTx {
    /// Sends one frame; false if the socket wants it later.
    fn send(&mut self, d: &TxDesc) -> bool {
        let Some(len) = csum::copy_out(d, &mut self.scratch[PREFIX..]) else {
            return true;
        };
        let frame = &mut self.scratch[..PREFIX + len];
        csum::complete(&mut frame[PREFIX..], d.offload);
        match &self.shared.socket {
            Socket::Datagram { socket, named } => match socket.send(&frame[PREFIX..]) {
                Ok(_) => true,
                Err(e) if is_transient(&e) || e.raw_os_error() == Some(libc::ENOBUFS) => false,
                // Anything else is a loss, as on any link.
                Err(e) => {
                    let left = matches!(
                        e.kind(),
                        ErrorKind::ConnectionRefused
                            | ErrorKind::NotConnected
                            | ErrorKind::ConnectionReset
                            | ErrorKind::BrokenPipe
                    );
                    if left && !named {
                        self.shared.lost();
                    }
                    true
                }
            },
            Socket::Stream(socket) => {
                frame[..PREFIX].copy_from_slice(&(len as u32).to_be_bytes());
                let mut socket = socket;
                match socket.write(frame) {
                    Ok(n) => {
                        self.left.extend_from_slice(&frame[n..]);
                        true
                    }
                    Err(e) if is_transient(&e) => false,
                    Err(_) => {
                        self.shared.lost();
                        true
                    }
                }
            }
        }
    }

    /// Sends what a stream has left of a frame; false if there is still some.
    fn flush(&mut self) -> bool {
        let Socket::Stream(socket) = &self.shared.socket else {
            return true;
        };
        let mut socket = socket;
        while !self.left.is_empty() {
            match socket.write(&self.left) {
                Ok(n) => drop(self.left.drain(..n)),
                Err(e) if is_transient(&e) => return false,
                Err(_) => {
                    self.shared.lost();
                    self.left.clear();
                }
            }
        }
        true
    }
}

impl TxQueue for SocketTx {
    fn doorbell(&mut self, now: Time, ring: &mut TxRing) {
        let mut n = 0;
        for d in ring.pending() {
            if !self.flush() || !self.send(d) {
                break;
            }
            n += 1;
        }
        ring.consume(n);
        self.ready_at = match ring.is_empty() && self.flush() {
            true => Time::ZERO,
            false => now.plus(AGAIN),
        };
    }

    fn ready_at(&self) -> Time {
        self.ready_at
    }

    fn carrier(&self) -> bool {
        !self.shared.is_gone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(ring: &mut TxRing, frame: &[u8]) {
        let mut d = ring.push().expect("room");
        d.hdr_len = 0;
        d.owned = Some(PktBuf::copy_of(frame));
    }

    fn open(pipe: SocketPipe) -> (Box<dyn RxQueue>, Box<dyn TxQueue>) {
        let (rx, tx) = Box::new(pipe).open();
        (
            rx.into_iter().next().unwrap(),
            tx.into_iter().next().unwrap(),
        )
    }

    fn poll(rx: &mut dyn RxQueue) -> Vec<Vec<u8>> {
        let (mut pool, mut out) = (PktPool::default(), Vec::new());
        rx.poll(Time(1), &mut pool, &mut out, 64);
        out.iter().map(|f| f.buf.as_slice().to_vec()).collect()
    }

    #[test]
    fn a_datagram_is_a_frame() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let (mut rx, mut tx) = open(datagram(ours, PipeConfig::default()).unwrap());
        assert_eq!(poll(&mut *rx), Vec::<Vec<u8>>::new());
        theirs.send(b"one").unwrap();
        theirs.send(b"another").unwrap();
        assert_eq!(poll(&mut *rx), [b"one".to_vec(), b"another".to_vec()]);
        // A full socket leaves frames in the ring.
        let mut ring = TxRing::new(4096);
        (0..2000).for_each(|_| place(&mut ring, &[7; 1000]));
        tx.doorbell(Time(1), &mut ring);
        let mut got = 2000 - ring.len();
        assert!(got > 0 && !ring.is_empty() && tx.ready_at() > Time(1));
        let mut buf = [0; 2000];
        theirs.set_nonblocking(true).unwrap();
        for _ in 0..2000 {
            while theirs.recv(&mut buf).is_ok() {}
            let before = ring.len();
            tx.doorbell(Time(2), &mut ring);
            got += before - ring.len();
        }
        assert_eq!((got, tx.ready_at()), (2000, Time::ZERO));
        // The peer of an unnamed socket does not come back.
        drop(theirs);
        place(&mut ring, b"x");
        tx.doorbell(Time(1), &mut ring);
        assert!(ring.is_empty() && !tx.carrier());
        assert_eq!((rx.arm(Time(1)), rx.fd()), (RxStatus::Gone, None));
    }

    #[test]
    fn on_a_stream_lengths_keep_frames_apart() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut rx, mut tx) = open(stream(ours, PipeConfig::default()).unwrap());
        let mut sent = Vec::new();
        for frame in [&b"one"[..], b"", b"another"] {
            sent.extend_from_slice(&(frame.len() as u32).to_be_bytes());
            sent.extend_from_slice(frame);
        }
        // However they are cut.
        for b in &sent[..sent.len() - 1] {
            theirs.write_all(&[*b]).unwrap();
            assert!(!matches!(rx.arm(Time(1)), RxStatus::Gone));
        }
        assert_eq!(poll(&mut *rx), [b"one".to_vec(), Vec::new()]);
        theirs.write_all(&sent[sent.len() - 1..]).unwrap();
        assert_eq!(poll(&mut *rx), [b"another".to_vec()]);
        let mut ring = TxRing::new(4096);
        (0..2000u32).for_each(|n| place(&mut ring, &[n as u8; 1000]));
        theirs.set_nonblocking(true).unwrap();
        let mut got = Vec::new();
        let mut buf = [0; 4096];
        while got.len() < 2000 * 1004 {
            tx.doorbell(Time(2), &mut ring);
            while let Ok(n) = theirs.read(&mut buf) {
                got.extend_from_slice(&buf[..n]);
            }
        }
        for (n, frame) in got.chunks(1004).enumerate() {
            assert_eq!(frame[..4], 1000u32.to_be_bytes());
            assert!(frame[4..].iter().all(|b| *b == n as u8));
        }
        assert_eq!(tx.ready_at(), Time::ZERO);
        // No frame is so long.
        theirs.write_all(&[0xff; 4]).unwrap();
        assert!(poll(&mut *rx).is_empty());
        assert_eq!(rx.arm(Time(1)), RxStatus::Gone);
    }
}
