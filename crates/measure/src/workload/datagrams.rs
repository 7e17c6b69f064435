//! Datagrams in place of connections: who sends from where to where, and what came of it.

use super::{Configuration, Received, SEGMENT, Sample, Settings, Tally, Times, spread};
use perimeter::link::{mem::datagrams, pattern::Pattern};

/// Octets in a datagram where nothing else is asked for.
pub const SIZE: usize = 64;
/// Most datagrams that one call hands over or takes.
pub const BATCH: usize = 32;
/// First port at either end; the next sockets have the next ones.
const FIRST_PORT: u16 = 10_000;
/// One call in this many has its datagrams compared. Prime, so that it falls in step with nothing.
const SAMPLED: u64 = 61;

/// A pair of sockets, one at each end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// The NIC between them.
    pub nic: usize,
    /// The near one's port; the far one's too, but for the ideal peer, which has one for all.
    pub port: u16,
}

/// The pairs of each thread, over so many NICs.
pub fn pairs(settings: &Settings, c: &Configuration) -> Vec<Vec<Pair>> {
    let mut by_thread = vec![Vec::new(); c.threads];
    let places = spread(c.connections as usize, c.threads, settings.nics);
    for (place, port) in places.into_iter().zip(FIRST_PORT..) {
        by_thread[place.thread].push(Pair {
            nic: place.nic,
            port,
        });
    }
    by_thread
}

/// How many go into one call: what a device may cut is bounded (UDP's length has 16 bits).
pub fn batch(size: usize) -> usize {
    BATCH.min(65_507 / size.max(1)).max(1)
}

/// Compares some of the datagrams that an endpoint receives with what they must be.
#[derive(Debug, Default)]
pub struct Checked {
    calls: u64,
    bytes: u64,
}

impl Checked {
    /// Whether those of this call are to be compared.
    pub fn due(&mut self) -> bool {
        self.calls += 1;
        self.calls.is_multiple_of(SAMPLED)
    }

    /// Compares one.
    ///
    /// # Errors
    /// It is none of ours.
    pub fn compare(&mut self, data: &[u8]) -> std::io::Result<()> {
        self.bytes += data.len() as u64;
        match datagrams::right(Pattern::get(), data) {
            true => Ok(()),
            false => Err(std::io::Error::other("a datagram has a wrong byte")),
        }
    }

    /// Bytes that were compared.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Bytes a second that threads sent and received, each in its own window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Handed to the stack, and taken by it.
    pub sent: f64,
    /// Received by the application.
    pub received: f64,
}

impl Rates {
    /// Of all of them together.
    pub fn of(tallies: &[Tally]) -> Rates {
        let sum = |f: &dyn Fn(&Tally) -> u64| tallies.iter().map(|t| t.per_second(f(t))).sum();
        Rates {
            sent: sum(&|t| t.sent.iter().sum()),
            received: sum(&Tally::sunk),
        }
    }

    /// Those of both ends.
    #[must_use]
    pub fn with(self, other: Rates) -> Rates {
        Rates {
            sent: self.sent + other.sent,
            received: self.received + other.received,
        }
    }
}

/// The sample of a run of datagrams of `size` octets: `base`, what they came to at both ends, and
/// `handled`, what the threads under test sent or received: times are told for one of those.
pub fn sample(base: Sample, times: Times, all: Rates, handled: f64, size: usize) -> Sample {
    let seconds = base.elapsed.as_secs_f64();
    let number = |rate: f64| rate * seconds / size as f64;
    // Each thread's window has its own ends, so what was received may seem a little more.
    let lost = (1.0 - all.received / all.sent.max(1.0)).max(0.0);
    Sample {
        goodput: all.received,
        segments: number(handled),
        rounds: number(all.received) as u64,
        lost: (all.sent > 0.0).then_some(lost),
        times,
        valid: times.valid() && all.received > 0.0,
        ..base
    }
}

/// Which connection got least, and the median one: of receivers, or of senders to somebody who
/// does not tell his sockets apart.
pub fn served(tallies: &[Tally]) -> (u64, u64) {
    let sinks = tallies.iter().any(|t| t.sink);
    if sinks {
        let received = Received::of(tallies);
        return (received.least, received.median);
    }
    let mut sent: Vec<u64> = tallies.iter().flat_map(|t| t.sent.clone()).collect();
    crate::stats::least_and_median(&mut sent)
}

/// How many bytes a unit of time is told for.
pub fn unit(settings: &Settings) -> u64 {
    settings.udp.map_or(SEGMENT, |size| size as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ports_are_told_apart_and_batches_bounded() {
        let settings = Settings {
            nics: 3,
            ..Settings::default()
        };
        let c = Configuration {
            organization: crate::organizations::Organization::LINUX,
            connections: 40,
            threads: 2,
        };
        let all = pairs(&settings, &c);
        let mut ports: Vec<u16> = all.iter().flatten().map(|p| p.port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!((all.len(), ports.len()), (2, 40));
        assert_eq!((batch(64), batch(9000), batch(65_507)), (32, 7, 1));
    }

    #[test]
    fn loss_is_what_was_sent_and_did_not_arrive() {
        let all = |sent, received| {
            let base = Sample {
                elapsed: Duration::from_secs(2),
                ..Sample::default()
            };
            sample(base, Times::default(), Rates { sent, received }, sent, 100)
        };
        let s = all(1000.0, 750.0);
        assert_eq!((s.lost, s.rounds, s.segments), (Some(0.25), 15, 20.0));
        assert_eq!(
            (all(1000.0, 1001.0).lost, all(0.0, 0.0).lost),
            (Some(0.0), None)
        );
    }

    #[test]
    fn damage_is_seen() {
        let content = super::super::Content::datagrams(100);
        let mut checked = Checked::default();
        for d in content.bytes().chunks(100) {
            checked.compare(d).unwrap();
        }
        let mut bad = content.bytes()[300..400].to_vec();
        bad[70] ^= 1;
        assert!(checked.compare(&bad).is_err() && checked.compare(&[1]).is_err());
        assert_eq!((0..122).filter(|_| checked.due()).count(), 2);
    }
}
