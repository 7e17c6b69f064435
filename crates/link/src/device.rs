//! The device seam: what the stack needs from anything that carries frames.

use perimeter_base::{PktBuf, PktPool, Time, TxRing};
use perimeter_wire::{LARGEST_PAYLOAD, MacAddr};
use std::os::fd::RawFd;
use std::sync::Arc;

/// A received frame.
// In this order: the stack copies a frame by 16 octets and then moves its buffer by 16, which the
// processor can't forward if the buffer starts in the middle of what was copied.
#[repr(C)]
#[derive(Debug)]
pub struct RxFrame {
    /// The frame, from the link-layer header on ([`Medium::Ip`]: from the IP header on). Where
    /// segments of TCP are merged and the device has verified their checksum, it may be the headers
    /// alone, all of them, with the payload in pieces [behind](PktBuf::behind).
    pub buf: PktBuf,
    /// The device's flow hash: that of `perimeter_wire::Toeplitz::default()`, so
    /// that the organization need not compute it again. `None` when the device has none.
    pub hash: Option<u32>,
    /// The device has verified the transport checksum.
    pub csum_ok: bool,
    /// The device has merged segments of TCP, or their sender has not cut them: octets of each but
    /// the last. 0: the frame is one segment.
    pub segment_size: u16,
}

/// What a device's frames start with.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// An Ethernet header.
    Ethernet,
    /// An IP header.
    Ip,
}

/// What a device can do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// Name, for people.
    pub name: String,
    /// What frames start with.
    pub medium: Medium,
    /// Link-layer address (zero for [`Medium::Ip`]).
    pub mac: MacAddr,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// It completes transport checksums (`TxDesc::offload`).
    pub tx_checksum: bool,
    /// It cuts frames of TCP into segments (`TxDesc::offload`): their payload may have so many
    /// octets, 65,455 at most. 0: it can't.
    pub large: u32,
    /// It cuts frames of UDP into datagrams likewise ([`MOST_DATAGRAMS`] at most): their payload may
    /// have so many octets together. 0: it can't.
    pub large_datagrams: u32,
    /// It hands on the memory of large frames instead of copying it
    /// ([`TxRing::take_pages`](perimeter_base::TxRing::take_pages)).
    pub hands_on: bool,
}

impl Capabilities {
    /// Of a device that does nothing to frames but carry them: it has no link-layer address, takes
    /// IP packets of up to `mtu` bytes, and neither completes checksums nor cuts.
    pub fn new(name: &str, medium: Medium, mtu: u32) -> Capabilities {
        Capabilities {
            name: name.to_owned(),
            medium,
            mac: MacAddr::default(),
            mtu,
            tx_checksum: false,
            large: 0,
            large_datagrams: 0,
            hands_on: false,
        }
    }
}

perimeter_base::setters! {
    Capabilities {
        with_name(name: impl Into<String>),
        with_medium(medium: Medium),
        with_mac(mac: MacAddr),
        with_mtu(mtu: u32),
        with_tx_checksum(tx_checksum: bool),
        with_large(large: u32),
        with_large_datagrams(large_datagrams: u32),
        with_hands_on(hands_on: bool),
    }
}

/// The most datagrams that one frame stands for where a device cuts it: as many as every kernel that
/// can takes (`UDP_MAX_SEGMENTS` of Linux before 6.5).
pub const MOST_DATAGRAMS: usize = 64;

/// The most payload of a large segment, octets.
pub const LARGEST: u32 = LARGEST_PAYLOAD;

/// Somebody to tell that frames have arrived: an interrupt line. Called from any thread, also
/// by the device's own peer; must not block.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// What [`RxQueue::arm`] found.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RxStatus {
    /// Frames are waiting: poll again. The interrupt is not armed.
    Ready,
    /// Nothing waits. The waker will be called when a frame arrives; and a frame already under
    /// way arrives at this time, if any, without a call ([`Time::NEVER`]: none is known).
    Armed(Time),
    /// The interface has gone for good: nothing will arrive any more.
    Gone,
}

/// One receive queue. Polled by one thread at a time (the stack holds its lock).
pub trait RxQueue: Send {
    /// Moves up to `max` frames that have arrived by `now` to `out`; returns how many. Buffers
    /// come from `pool`.
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize;

    /// Arms the interrupt, unless frames wait. One call, one interrupt: polling disarms.
    fn arm(&mut self, now: Time) -> RxStatus;

    /// Sets who is told. Replaces the last one.
    fn set_waker(&mut self, waker: Waker);

    /// A descriptor that becomes readable when frames arrive, for devices of the host. The
    /// waker is not called by such a device. `None` once the device has gone.
    fn fd(&self) -> Option<RawFd> {
        None
    }

    /// Time spent on the other end's work inside `poll` since the beginning, ns. Not the
    /// stack's: benchmarks subtract it.
    fn peer_ns(&self) -> u64 {
        0
    }
}

/// One transmit queue. Rung by one thread at a time (the stack holds its lock).
pub trait TxQueue: Send {
    /// The doorbell: takes frames from the front of `ring`, in order, as many as it can now.
    /// What it consumes is completed, and its payload may go; a device that reads later says how
    /// far it has come ([`TxRing::complete_to`]). What it leaves (a paced or full device) is
    /// offered again at the next doorbell.
    fn doorbell(&mut self, now: Time, ring: &mut TxRing);

    /// When the next doorbell is wanted, if one is: it left frames in the ring (it is paced or
    /// full), or it holds frames back itself (a fault injector) though the ring may be empty.
    /// [`Time::ZERO`]: none is wanted.
    fn ready_at(&self) -> Time {
        Time::ZERO
    }

    /// Whether frames can get anywhere: `false` once the interface, or whatever is at the other
    /// end, has gone for good.
    fn carrier(&self) -> bool {
        true
    }

    /// Time spent on the other end's work inside `doorbell` since the beginning, ns.
    fn peer_ns(&self) -> u64 {
        0
    }
}

/// A device's receive queues and transmit queues.
pub type Queues = (Vec<Box<dyn RxQueue>>, Vec<Box<dyn TxQueue>>);

/// A device, before the stack takes its queues.
pub trait Device: Send {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Takes it apart into queues: receive queue `i` gets the flows that RSS maps to `i`.
    fn open(self: Box<Self>) -> Queues;
}

impl Device for Box<dyn Device> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        (*self).open()
    }
}
