//! What lies between two hosts.

use perimeter_link::fault::FaultConfig;
use std::time::Duration;

/// How one direction of a link behaves. Probabilities are per packet, from 0 to 1.
///
/// ```
/// use perimeter_testing::Link;
/// use std::time::Duration;
///
/// let mobile = Link::default()
///     .with_delay(Duration::from_millis(40))
///     .with_jitter(Duration::from_millis(15))
///     .with_rate(Some(10_000_000))
///     .with_loss(0.01);
/// # let _ = mobile;
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Link {
    /// How long every packet is under way, at least. The longer the shortest delay of a network is,
    /// the less a simulation with [`Sim`](crate::Sim) costs. Default 5 ms.
    pub delay: Duration,
    /// How much longer, at most: drawn for each packet, so that some overtake others. Default none.
    pub jitter: Duration,
    /// Bits a second that go through; what comes faster waits. Default: no limit.
    pub rate: Option<u64>,
    /// How long a packet may have to wait for those before it, with a `rate`: packets for which
    /// that is too short are dropped, as at the end of a router's queue. Default 100 ms.
    pub queue: Duration,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// How many packets in a row a loss takes. Default 1.
    pub loss_burst: u32,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is held back by up to `reorder_by`, while later ones overtake it.
    pub reorder: f64,
    /// How long those are held back at most. Default 10 ms.
    pub reorder_by: Duration,
    /// Probability that bits of a packet are flipped, which its checksums notice.
    pub corrupt: f64,
    /// Packets that are longer, in bytes with the IP header, vanish without a word. Default: none
    /// do.
    pub black_hole: Option<u32>,
}

impl Default for Link {
    /// 5 ms each way and no faults.
    fn default() -> Link {
        Link {
            delay: Duration::from_millis(5),
            jitter: Duration::ZERO,
            rate: None,
            queue: Duration::from_millis(100),
            loss: 0.0,
            loss_burst: 1,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(10),
            corrupt: 0.0,
            black_hole: None,
        }
    }
}

perimeter_base::setters! {
    Link {
        with_delay(delay: Duration),
        with_jitter(jitter: Duration),
        with_rate(rate: Option<u64>),
        with_queue(queue: Duration),
        with_loss(loss: f64),
        with_loss_burst(loss_burst: u32),
        with_duplicate(duplicate: f64),
        with_reorder(reorder: f64),
        with_reorder_by(reorder_by: Duration),
        with_corrupt(corrupt: f64),
        with_black_hole(black_hole: Option<u32>),
    }
}

impl Link {
    pub(crate) fn faults(&self) -> FaultConfig {
        FaultConfig::default()
            .with_loss(self.loss)
            .with_loss_burst(self.loss_burst)
            .with_duplicate(self.duplicate)
            .with_reorder(self.reorder)
            .with_reorder_ns(nanos(self.reorder_by))
            .with_corrupt(self.corrupt)
            .with_delay_ns(nanos(self.delay))
            .with_jitter_ns(nanos(self.jitter))
            .with_gbps(self.rate.map(|bits| bits.max(1) as f64 / 1e9))
            .with_queue_ns(nanos(self.queue).max(1))
            .with_black_hole_mtu(self.black_hole.unwrap_or(0))
    }
}

pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}
