//! Request and response: what each connection owes and is owed.
//!
//! A client sends a request, waits for the whole response and sends the next request; a ping-pong
//! is an exchange whose request and response have one size. A server answers whole requests.

use super::latencies;
use crate::units;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Sizes of requests and responses, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Exchange {
    /// Bytes of a request, at least 1.
    pub request: usize,
    /// Bytes of a response, at least 1.
    pub response: usize,
}

/// A side of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// Sizes of the messages.
    pub sizes: Exchange,
    /// It sends the requests.
    pub opens: bool,
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.request, self.response)
    }
}

/// `REQUEST:RESPONSE` in bytes, or one number for both.
impl FromStr for Exchange {
    type Err = String;

    fn from_str(text: &str) -> Result<Exchange, String> {
        let size = |t: &str| units::whole(t, "a message's size in bytes", 1..=16 << 20);
        let (request, response) = text.split_once(':').unwrap_or((text, text));
        Ok(Exchange {
            request: size(request)? as usize,
            response: size(response)? as usize,
        })
    }
}

/// One thread's side of exchanges on all its connections.
#[derive(Debug)]
pub(super) struct Talk {
    sizes: Exchange,
    opens: bool,
    sides: Vec<Account>,
    /// Rounds that ended since counting began.
    rounds: u64,
    latency: Histogram<u64>,
}

/// One connection.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    /// Bytes to be sent.
    owes: usize,
    /// Bytes received of the present message.
    got: usize,
    /// When the client began the present round, in ns.
    since: u64,
}

impl Talk {
    /// Sides of `connections`; the one that opens sends first.
    pub(super) fn new(side: Side, connections: usize) -> Talk {
        Talk {
            sizes: side.sizes,
            opens: side.opens,
            sides: vec![Account::default(); connections],
            rounds: 0,
            latency: latencies(),
        }
    }

    /// Begins the first round of every connection at `now`; nothing on a server.
    pub(super) fn begin(&mut self, now: u64) {
        if self.opens {
            for side in &mut self.sides {
                (side.owes, side.since) = (self.sizes.request, now);
            }
        }
    }

    /// Bytes that `connection` is to send now.
    pub(super) fn owes(&self, connection: usize) -> usize {
        self.sides[connection].owes
    }

    /// `n` of those were sent.
    pub(super) fn sent(&mut self, connection: usize, n: usize) {
        self.sides[connection].owes -= n;
    }

    /// `n` bytes were received at `now`.
    pub(super) fn received(&mut self, connection: usize, n: usize, now: u64) {
        let side = &mut self.sides[connection];
        side.got += n;
        let (awaited, answer) = match self.opens {
            true => (self.sizes.response, self.sizes.request),
            false => (self.sizes.request, self.sizes.response),
        };
        while side.got >= awaited {
            side.got -= awaited;
            side.owes += answer;
            self.rounds += 1;
            if self.opens {
                self.latency
                    .saturating_record(now.saturating_sub(side.since));
                side.since = now;
            }
        }
    }

    /// Counting begins.
    pub(super) fn reset(&mut self) {
        self.rounds = 0;
        self.latency.reset();
    }

    /// Rounds since counting began, on the side that opens.
    pub(super) fn rounds(&self) -> Option<u64> {
        self.opens.then_some(self.rounds)
    }

    /// What was counted: rounds and their latencies, on the side that opens.
    pub(super) fn counted(&self) -> Option<(u64, Histogram<u64>)> {
        self.opens.then(|| (self.rounds, self.latency.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::summary;

    const SIZES: Exchange = Exchange {
        request: 100,
        response: 30,
    };

    #[test]
    fn a_round_ends_with_the_last_byte_of_the_response() {
        let mut client = Talk::new(
            Side {
                sizes: SIZES,
                opens: true,
            },
            2,
        );
        client.begin(1000);
        assert_eq!((client.owes(0), client.owes(1)), (100, 100));
        client.sent(0, 60);
        client.sent(0, 40);
        client.received(0, 29, 5000);
        assert_eq!(client.owes(0), 0);
        client.received(0, 1, 6000);
        assert_eq!((client.owes(0), client.rounds), (100, 1));
        client.received(0, 30, 6500);
        let (rounds, latency) = client.counted().unwrap();
        assert_eq!((rounds, latency.min(), latency.max()), (2, 500, 5003));
        client.reset();
        assert_eq!(client.counted().unwrap().0, 0);
        let l = summary([latency.clone(), latency].into_iter()).unwrap();
        assert!((l.mean_ns - 2750.0).abs() < 10.0, "{l:?}");
        assert_eq!((l.p50_ns, l.max_ns), (500, 5003));
        assert_eq!(summary(std::iter::empty()), None);
    }

    #[test]
    fn sizes_are_parsed() {
        assert_eq!("100:30".parse(), Ok(SIZES));
        assert_eq!(
            "8".parse(),
            Ok(Exchange {
                request: 8,
                response: 8
            })
        );
        assert_eq!(SIZES.to_string().parse(), Ok(SIZES));
        for text in ["", ":", "0", "1:", "1:0", "-1", "1:2:3", "99999999999"] {
            assert!(text.parse::<Exchange>().is_err(), "{text} was taken");
        }
    }

    #[test]
    fn a_server_answers_whole_requests() {
        let mut server = Talk::new(
            Side {
                sizes: SIZES,
                opens: false,
            },
            1,
        );
        server.begin(0);
        assert_eq!(server.owes(0), 0);
        server.received(0, 99, 1);
        assert_eq!(server.owes(0), 0);
        server.received(0, 102, 2);
        assert_eq!(server.owes(0), 60, "two whole requests and a byte");
        assert!(server.counted().is_none());
    }
}
