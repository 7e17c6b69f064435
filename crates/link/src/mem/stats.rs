//! Counters of the ideal peer: counted privately, published once per doorbell.

use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What an ideal peer has seen and done, since the beginning.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct PeerCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl PeerCounts {
            /// Adds `other` to this.
            pub fn add(&mut self, other: &PeerCounts) {
                $(self.$name += other.$name;)*
            }
        }

        /// The published counters of one transmit queue. Written by its doorbell only.
        #[derive(Default)]
        #[repr(align(64))]
        pub(crate) struct Published {
            $($name: AtomicU64,)*
            pub(crate) flows: AtomicU64,
        }

        impl Published {
            #[inline]
            pub(crate) fn publish(&self, counts: &PeerCounts) {
                $(self.$name.store(counts.$name, Ordering::Relaxed);)*
            }

            pub(crate) fn read(&self) -> PeerCounts {
                PeerCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Frames taken from transmit queues.
    frames,
    /// Acknowledgments sent without data.
    acks,
    /// Data segments sent for the first time.
    data,
    /// Data segments sent again.
    retransmits,
    /// Connections that the stack opened.
    accepted,
    /// Connections that the peer opened.
    opened,
    /// Connections closed by both sides.
    closed,
    /// SYNs refused: a port that refuses, or no slot left.
    refused,
    /// Resets sent.
    resets_sent,
    /// Resets received that ended a connection.
    resets_received,
    /// Segments that held nothing new.
    duplicates,
    /// Segments that came out of order.
    out_of_order,
    /// Segments beyond the window that was offered; dropped.
    beyond_window,
    /// ARP requests answered.
    arp,
    /// Echo requests answered.
    echo,
    /// Frames to other stations or addresses, or of protocols that the peer does not speak.
    foreign,
    /// Datagrams to the peer's port.
    datagrams,
    /// Octets in those.
    datagram_bytes,
    /// Frames that do not parse.
    malformed,
    /// Segments whose checksum the device was not asked to complete, and which is wrong.
    bad_checksum,
    /// Doorbells that left frames because a ring to a receive queue was full.
    rx_full,
    /// Frames of the peer dropped because a ring was full.
    rx_dropped,
    /// Segments whose checksum and payload were compared with what they must be.
    verified,
    /// Those that differed.
    verify_errors,
}
