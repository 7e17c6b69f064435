//! What a gateway has counted.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a gateway since its beginning.
        /// See [`Gateway::counts`](super::Gateway::counts).
        #[derive(Debug, Default)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[$doc])* pub $name: Count,)*
        }

        impl Counts {
            /// Names and values, in order.
            /// See [`Gateway::counts`](super::Gateway::counts).
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

counts! {
    /// Connections that the inside asked for.
    connections,
    /// Those that were relayed.
    relayed,
    /// Those being relayed now.
    relaying,
    /// Connections and datagrams to destinations that are not allowed.
    denied,
    /// Connections that found too many others: their SYNs were dropped.
    too_many,
    /// Connections that the upstream refused: the inside was reset.
    refused,
    /// Connections that the upstream has not answered: neither was the inside.
    unanswered,
    /// Connections whose peer at the inside did not complete its handshake.
    abandoned,
    /// Relayed connections that ended by a failure or reset of one side.
    failed,
    /// Octets of relayed connections from the inside.
    bytes_out,
    /// Octets to the inside.
    bytes_in,
    /// Senders of datagrams that got a session.
    sessions,
    /// Sessions now.
    sessions_open,
    /// Sessions that ended early, to make room.
    sessions_evicted,
    /// Datagrams from the inside that were sent on.
    datagrams_out,
    /// Datagrams to the inside.
    datagrams_in,
    /// Datagrams that were dropped: no session to be had, a full queue, or nobody asked for them.
    datagrams_dropped,
}

/// A counter.
///
/// ```
/// use perimeter_tokio::gateway::counts::Count;
///
/// let relaying = Count::default();
/// relaying.add(2);
/// relaying.less();
/// assert_eq!(relaying.get(), 1);
/// ```
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds to it.
    /// See [`Count`].
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Takes one off: of a number of what there is now.
    /// See [`Count`].
    pub fn less(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Its value.
    /// See [`Count`].
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
