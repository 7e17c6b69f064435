//! What the stack counts: per thread, without atomic read-modify-write, summed by readers.

use perimeter_wire::WireError;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A counter of the stack. Malformed frames have one for each [`WireError`] behind
        /// these.
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Count { $($(#[$doc])* $name,)* }

        impl Count {
            /// All counters with their names.
            pub const ALL: &'static [(Count, &'static str)] = &[$((Count::$name, $text),)*];
        }
    };
}

counts! {
    /// Frames received.
    RxFrames = "rx_frames",
    /// TCP segments received.
    RxSegs = "rx_segments",
    /// Segments through header prediction.
    RxFast = "rx_predicted",
    /// Segments emitted.
    TxSegs = "tx_segments",
    /// Bytes of TCP payload emitted, retransmissions included.
    TxBytes = "tx_bytes",
    /// Segments emitted again, probes among them.
    Retransmits = "retransmits",
    /// Tail loss probes (RFC 8985, section 7), be they new data or a segment emitted again.
    LossProbes = "loss_probes",
    /// Resets emitted for segments that belong to no connection.
    TxResets = "tx_resets",
    /// Segments for no connection and no listener.
    NoConnection = "drop_no_connection",
    /// Datagrams for another host.
    NotOurs = "drop_not_ours",
    /// TCP to or from a broadcast or multicast address, or from one of our own (RFC 9293,
    /// section 3.9.2.3; LAND).
    BadAddress = "drop_bad_address",
    /// Datagrams of a protocol that is not implemented.
    OtherProtocol = "drop_other_protocol",
    /// SYNs dropped: the accept queue is full.
    SynDropped = "drop_syn",
    /// Segments and other frames that found no room in a transmit ring and could not wait.
    TxRingFull = "drop_tx_ring_full",
    /// Doorbells rung.
    Doorbells = "tx_doorbells",
    /// Times that a connection got in line for room in a transmit ring.
    TxWaits = "tx_ring_waits",
    /// Segments that found a queue between device and protocol full.
    NetisrFull = "drop_netisr_full",
    /// Calls, messages and events for a socket that has gone.
    StaleHandle = "stale_handles",
    /// Timer entries whose connection has gone, or that were superseded.
    StaleTimer = "stale_timers",
    /// Connections that arrived when their listener had gone, and were reset.
    AcceptGone = "accepts_aborted",
    /// Orphaned connections reset because there were too many.
    OrphansReset = "orphans_reset",
    /// Bytes of memory charged to sockets since the beginning.
    MemCharged = "memory_charged",
    /// Bytes of memory given back since the beginning.
    MemReleased = "memory_released",
    /// Calls refused for want of memory in the whole stack.
    MemRefused = "memory_backpressure",
    /// ICMP errors that were believed.
    IcmpErrors = "rx_icmp_errors",
    /// Echo requests answered.
    Echoes = "rx_echo_requests",
    /// Messages that the thread which brought them to an squeue ran itself.
    SqueueInline = "squeue_inline",
    /// Messages that another thread ran while it drained the squeue.
    SqueueDrained = "squeue_drained",
    /// Messages that the squeue's worker ran.
    SqueueWorker = "squeue_worker",
    /// Messages run by re-entry: within the run of another connection's, by the same thread.
    SqueueReentered = "squeue_reentered",
    /// Packets that found no room in a soft ring.
    SoftRingFull = "drop_soft_ring_full",
    /// Packets that found no room in the queue of a module.
    ModuleQueueFull = "drop_module_queue_full",
    /// Times that a module found the next one's queue full.
    ModuleWaits = "module_queue_waits",
    /// Time that this stack's threads were parked for want of work, ns.
    IdleNs = "idle_ns",
    /// CPU time in there, for falling asleep and waking up, ns; estimated from a sample.
    ParkCpuNs = "park_cpu_ns",
}

/// How many counters there are.
pub const COUNTS: usize = Count::ALL.len() + WireError::COUNT;

/// The place of a malformed frame's reason.
pub fn malformed(e: WireError) -> usize {
    Count::ALL.len() + e.index()
}

/// The name of the counter at `index`.
pub fn name(index: usize) -> String {
    match Count::ALL.get(index) {
        Some((_, n)) => (*n).to_string(),
        None => format!("drop_{}", WireError::ALL[index - Count::ALL.len()].name()),
    }
}
