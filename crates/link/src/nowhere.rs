//! A device that leads nowhere: nothing comes by it, and what is sent by it is dropped. For a stack
//! that talks to itself only, which a stack does past its devices.

use perimeter_base::{PktPool, Time, TxRing};

use crate::device::{
    Capabilities, Device, Medium, Queues, RxFrame, RxQueue, RxStatus, TxQueue, Waker,
};

/// The device: one queue each way, [`Medium::Ip`], so that there are no stations to be asked for.
///
/// ```
/// use perimeter_link::nowhere::Nowhere;
/// use perimeter_link::{Device, Medium};
///
/// // For a stack with an address of its own that needs no network.
/// assert_eq!(Nowhere.capabilities().medium, Medium::Ip);
/// ```
#[derive(Copy, Clone, Debug, Default)]
pub struct Nowhere;

impl Device for Nowhere {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("nowhere", Medium::Ip, 65_535).with_tx_checksum(true)
    }

    fn open(self: Box<Self>) -> Queues {
        (vec![Box::new(Queue)], vec![Box::new(Queue)])
    }
}

struct Queue;

impl RxQueue for Queue {
    fn poll(&mut self, _: Time, _: &mut PktPool, _: &mut Vec<RxFrame>, _: usize) -> usize {
        0
    }

    fn arm(&mut self, _: Time) -> RxStatus {
        RxStatus::Armed(Time::NEVER)
    }

    fn set_waker(&mut self, _: Waker) {}
}

impl TxQueue for Queue {
    fn doorbell(&mut self, _: Time, ring: &mut TxRing) {
        ring.consume(ring.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_done_and_nothing_comes() {
        let (mut rx, mut tx) = Box::new(Nowhere).open();
        let mut ring = TxRing::new(8);
        ring.push().unwrap();
        tx[0].doorbell(Time::ZERO, &mut ring);
        assert_eq!((ring.len(), ring.completions().done()), (0, 1));
        assert_eq!(rx[0].arm(Time::ZERO), RxStatus::Armed(Time::NEVER));
        let (mut pool, mut out) = (PktPool::default(), Vec::new());
        assert_eq!(rx[0].poll(Time::ZERO, &mut pool, &mut out, 8), 0);
    }
}
