//! What carries smoltcp's frames: a link in memory to another one, or its own TAP interface.

use rtrb::{Consumer, Producer, RingBuffer};
use smoltcp::{
    phy::{self, ChecksumCapabilities, Device, DeviceCapabilities, Medium, TunTapInterface},
    time::Instant,
};
use std::{
    io,
    os::fd::AsRawFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering, fence},
    },
    thread::{self, Thread},
    time::Duration,
};

/// Frames that a memory link holds in each direction.
const RING: usize = 1024;
/// Frames after which the other end is told of them without waiting for more.
const BATCH: usize = 32;
/// Length of an Ethernet header, bytes.
pub const HEADER: usize = 14;

/// A device of smoltcp that its user can wait for.
pub trait Link: Device {
    /// Tells the other end of the frames that were sent.
    fn flush(&mut self) {}

    /// Sleeps until there is a frame to receive, at most for `time`.
    ///
    /// # Errors
    /// What the system says.
    fn sleep(&mut self, time: Duration) -> io::Result<()>;
}

impl Link for TunTapInterface {
    fn sleep(&mut self, time: Duration) -> io::Result<()> {
        // It waits in whole milliseconds.
        let millis = time.as_millis().max(1) as u64;
        let time = smoltcp::time::Duration::from_millis(millis);
        phy::wait(self.as_raw_fd(), Some(time))
    }
}

/// An end that may be asleep.
#[derive(Debug, Default)]
struct Sleeper {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

/// The sending half of an end.
#[derive(Debug)]
struct Outgoing {
    frames: Producer<Vec<u8>>,
    /// Buffers that the other end has emptied.
    empties: Consumer<Vec<u8>>,
    other: Arc<Sleeper>,
    /// Frames that the other end was not told of.
    untold: usize,
}

impl Outgoing {
    /// Sends a frame of `len` bytes as `fill` writes it; without room it is lost.
    fn send<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut frame = self.empties.pop().unwrap_or_default();
        frame.resize(len, 0);
        let result = fill(&mut frame);
        if self.frames.push(frame).is_ok() {
            self.untold += 1;
            if self.untold >= BATCH {
                self.tell();
            }
        }
        result
    }

    fn tell(&mut self) {
        if std::mem::take(&mut self.untold) == 0 {
            return;
        }
        // The other end says that it sleeps and then looks once more: one of the two is seen.
        fence(Ordering::SeqCst);
        if self.other.asleep.swap(false, Ordering::AcqRel)
            && let Some(thread) = self.other.thread.get()
        {
            thread.unpark();
        }
    }
}

/// One end of a link in memory. Nothing is lost but answers that find no room, and no checksum is
/// made or looked at.
#[derive(Debug)]
pub struct Memory {
    outgoing: Outgoing,
    frames: Consumer<Vec<u8>>,
    empties: Producer<Vec<u8>>,
    me: Arc<Sleeper>,
    mtu: usize,
}

/// Both ends of a link for IP packets of up to `mtu` bytes.
pub fn pair(mtu: usize) -> (Memory, Memory) {
    let (a, b) = (Arc::new(Sleeper::default()), Arc::new(Sleeper::default()));
    let ((to_b, at_b), (to_a, at_a)) = (RingBuffer::new(RING), RingBuffer::new(RING));
    let ((back_to_a, empty_a), (back_to_b, empty_b)) =
        (RingBuffer::new(RING), RingBuffer::new(RING));
    let end = |frames, empties, other: &Arc<Sleeper>, at, back, me: &Arc<Sleeper>| Memory {
        outgoing: Outgoing {
            frames,
            empties,
            other: other.clone(),
            untold: 0,
        },
        frames: at,
        empties: back,
        me: me.clone(),
        mtu: mtu + HEADER,
    };
    (
        end(to_b, empty_a, &b, at_a, back_to_b, &a),
        end(to_a, empty_b, &a, at_b, back_to_a, &b),
    )
}

/// A received frame, whose buffer goes back to its sender.
pub struct Received<'a> {
    frame: Vec<u8>,
    empties: &'a mut Producer<Vec<u8>>,
}

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.frame);
        // Without room there are buffers enough.
        let _ = self.empties.push(self.frame);
        result
    }
}

/// Leave to send a frame.
pub struct Room<'a>(&'a mut Outgoing);

impl phy::TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.0.send(len, f)
    }
}

impl Device for Memory {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Room<'_>)> {
        let received = Received {
            frame: self.frames.pop().ok()?,
            empties: &mut self.empties,
        };
        // An answer may find no room and be lost. Not to receive then would be worse: two ends
        // that wait for each other's room would wait for ever.
        Some((received, Room(&mut self.outgoing)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        (!self.outgoing.frames.is_full()).then_some(Room(&mut self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu;
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }
}

impl Link for Memory {
    fn flush(&mut self) {
        self.outgoing.tell();
    }

    fn sleep(&mut self, time: Duration) -> io::Result<()> {
        self.me.thread.get_or_init(thread::current);
        self.me.asleep.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.frames.is_empty() {
            thread::park_timeout(time);
        }
        self.me.asleep.store(false, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::phy::{RxToken as _, TxToken as _};

    const NOW: Instant = Instant::ZERO;

    fn send(end: &mut Memory, byte: u8) -> bool {
        let room = end.transmit(NOW);
        room.map(|r| r.consume(100, |b| b.fill(byte))).is_some()
    }

    #[test]
    fn frames_arrive_in_order_and_buffers_come_back() {
        let (mut a, mut b) = pair(1500);
        for n in 0..5000u32 {
            assert!(send(&mut a, n as u8));
            let (frame, _) = b.receive(NOW).unwrap();
            assert!(frame.consume(|f| f.len() == 100 && f.iter().all(|x| *x == n as u8)));
        }
        assert!(b.receive(NOW).is_none());
        // One buffer went to and fro.
        assert_eq!(a.outgoing.empties.slots(), 1);
    }

    #[test]
    fn a_full_link_is_no_deadlock() {
        let (mut a, mut b) = pair(1500);
        while send(&mut a, 1) {}
        while send(&mut b, 2) {}
        let (frame, room) = a.receive(NOW).unwrap();
        frame.consume(|f| assert_eq!(f[0], 2));
        room.consume(60, |b| b.fill(3));
        assert!(!send(&mut a, 4), "an answer made room for itself");
        assert_eq!(b.frames.slots(), RING);
    }

    #[test]
    fn a_sleeper_is_woken_by_a_frame() {
        let (mut a, mut b) = pair(1500);
        let sleeper = thread::spawn(move || {
            let begun = std::time::Instant::now();
            while b.receive(NOW).is_none() {
                b.sleep(Duration::from_secs(20)).unwrap();
            }
            begun.elapsed()
        });
        thread::sleep(Duration::from_millis(20));
        send(&mut a, 1);
        a.flush();
        assert!(sleeper.join().unwrap() < Duration::from_secs(10));
    }
}
