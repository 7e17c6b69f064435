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
    /// Those of them that joined another one of their burst before TCP ([`crate::merge`]).
    RxMerged = "rx_merged",
    /// Frames that were handed over to the thread that answers them ([`crate::steer`]).
    RxSteered = "rx_steered",
    /// Segments through header prediction.
    RxFast = "rx_predicted",
    /// Segments emitted.
    TxSegs = "tx_segments",
    /// Large segments emitted, each of several segments.
    TxLarge = "tx_large",
    /// Bytes of TCP payload emitted, retransmissions included.
    TxBytes = "tx_bytes",
    /// Segments emitted again, probes among them.
    Retransmits = "retransmits",
    /// Tail loss probes (RFC 8985, section 7), be they new data or a segment emitted again.
    LossProbes = "loss_probes",
    /// Resets emitted for segments that belong to no connection.
    TxResets = "tx_resets",
    /// Resets for such segments that were not emitted: there were too many
    /// ([`crate::limit::Limits`]).
    ResetLimit = "drop_reset_limit",
    /// Answers to strangers whose station is not known: nobody is asked for it on their behalf.
    NoStation = "drop_no_station",
    /// Segments for no connection and no listener.
    NoConnection = "drop_no_connection",
    /// Segments of a connection that is bound to another interface than they came by.
    OtherInterface = "drop_other_interface",
    /// Datagrams for another host.
    NotOurs = "drop_not_ours",
    /// Frames for another station: the network delivers what it need not, or somebody looks for
    /// what listens to everything.
    OtherStation = "drop_other_station",
    /// TCP and ICMP in frames to a group of stations, whatever their IP address says (RFC 1122,
    /// sections 3.2.2.6 and 3.3.6; smurf).
    GroupFrame = "drop_group_frame",
    /// TCP and ICMP from a broadcast or multicast address, or from one of our own (RFC 9293,
    /// section 3.9.2.3; LAND).
    BadAddress = "drop_bad_address",
    /// TCP and ICMP from an address that no host has: 0/8, 127/8, 240/4 (RFC 1122, section
    /// 3.2.1.3; RFC 6890).
    Martian = "drop_martian_source",
    /// Datagrams for other hosts that went on towards them.
    Forwarded = "forwarded",
    /// Datagrams for other hosts that had made as many hops as they may.
    ForwardExpired = "drop_forward_hops",
    /// Datagrams for other hosts to whom no route leads.
    ForwardNoRoute = "drop_forward_no_route",
    /// Datagrams for other hosts that are longer than the next link takes, and may not be cut.
    ForwardTooBig = "drop_forward_too_big",
    /// Datagrams for other hosts whose neighbour did not answer, or that gave way to later ones while
    /// they waited for it.
    ForwardUnresolved = "drop_forward_unresolved",
    /// Datagrams for other hosts with addresses that mean somebody on this link.
    ForwardScope = "drop_forward_scope",
    /// Datagrams of a protocol that is not implemented.
    OtherProtocol = "drop_other_protocol",
    /// Datagrams of UDP that arrived for a socket.
    UdpIn = "rx_udp",
    /// Datagrams of UDP sent.
    UdpOut = "tx_udp",
    /// Datagrams of UDP that nobody waits for.
    UdpNoSocket = "drop_udp_no_socket",
    /// Datagrams of UDP that found no room in their socket.
    UdpQueueFull = "drop_udp_queue_full",
    /// Datagrams of UDP that waited for a neighbour in vain, or gave way to later ones.
    UdpUnresolved = "drop_udp_unresolved",
    /// Reports of groups that sockets have joined or left.
    GroupReports = "tx_group_reports",
    /// IPv4 addresses that servers gave to interfaces.
    Leases = "dhcp_leases",
    /// Of these, those that were over, or taken back.
    LeasesLost = "dhcp_leases_lost",
    /// Fragments of datagrams received.
    Fragments = "rx_fragments",
    /// Datagrams put together from them.
    Reassembled = "rx_reassembled",
    /// Datagrams of which fragments came and that never were whole: they took too long, or had to
    /// make room.
    ReassemblyFailed = "reassembly_failed",
    /// Fragments that overlap others, or contradict them.
    FragmentOverlap = "drop_fragment_overlap",
    /// Fragments of a source that had too many.
    FragmentNoRoom = "drop_fragment_no_room",
    /// Fragments that can be none: lengths and offsets that do not fit.
    BadFragment = "drop_bad_fragment",
    /// Fragments sent.
    FragmentsSent = "tx_fragments",
    /// SYNs dropped, and acknowledgments that complete a handshake: the accept queue is full, or
    /// there is no memory for connections.
    SynDropped = "drop_syn",
    /// SYNs that a listener held for its owner to decide.
    SynsHeld = "syns_held",
    /// SYN-ACKs whose number is a cookie: the SYN cache had no room.
    CookiesSent = "syn_cookies_sent",
    /// Connections made from the acknowledgment of a cookie.
    CookiesAccepted = "syn_cookies_accepted",
    /// Acknowledgments that could have been of a cookie, as one was sent not long ago, and were
    /// not.
    CookiesRefused = "syn_cookies_refused",
    /// Segments and other frames that found no room in a transmit ring and could not wait.
    TxRingFull = "drop_tx_ring_full",
    /// Doorbells rung.
    Doorbells = "tx_doorbells",
    /// Calls whose doorbell went with a later one, as their thread sent a batch.
    DoorbellsKept = "tx_doorbells_kept",
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
    /// Interfaces that have gone for good.
    IfacesGone = "interfaces_gone",
    /// Orphaned connections reset because there were too many.
    OrphansReset = "orphans_reset",
    /// Connections whose TIME-WAIT, or FIN-WAIT-2 after a close, ended early because there were
    /// too many.
    TimeWaitsEnded = "time_waits_ended",
    /// Bytes of memory charged to sockets since the beginning.
    MemCharged = "memory_charged",
    /// Bytes of memory given back since the beginning.
    MemReleased = "memory_released",
    /// Calls refused, or writes cut, for want of memory in the whole stack.
    MemRefused = "memory_backpressure",
    /// Segments whose data was dropped for want of memory before it was acknowledged.
    MemDropped = "drop_memory",
    /// Connections that were told to drop what had arrived out of order.
    MemShed = "memory_shed",
    /// ICMP errors that were believed.
    IcmpErrors = "rx_icmp_errors",
    /// MTUs of paths that were lowered because a router said so, of connections and of destinations.
    PathMtuLowered = "path_mtu_lowered",
    /// Times that a connection's full segments vanished and it made them smaller (RFC 4821).
    BlackHoles = "path_black_holes",
    /// Larger segments that were tried on such a path since.
    MtuProbes = "path_mtu_probes",
    /// Messages that a packet was too big which were not believed: they quote nothing that was sent
    /// lately, or name an MTU that it was not above.
    TooBigRefused = "drop_icmp_too_big",
    /// Echo requests answered.
    Echoes = "rx_echo_requests",
    /// Echo requests that were not answered: there were too many ([`crate::limit::Limits`]).
    EchoLimit = "drop_echo_limit",
    /// Errors sent about datagrams that nobody wanted.
    Unreachables = "tx_icmp_unreachable",
    /// Such errors that were not sent: there were too many.
    ErrorLimit = "drop_icmp_error_limit",
    /// Parameter problems sent: extension headers or options of IPv6 that are not known.
    Problems = "tx_icmp_parameter_problem",
    /// Solicitations of our addresses that were not answered: there were too many.
    AdvertLimit = "drop_ndp_limit",
    /// Router advertisements that were taken.
    RouterAdverts = "rx_router_advertisements",
    /// Redirects that were taken (RFC 4861, section 8).
    Redirects = "rx_redirects",
    /// Redirects that were not: nobody has asked for that, or they are not of the first hop, or of
    /// what is no host, or too many.
    RedirectsRefused = "drop_redirect",
    /// Neighbours that were known and did not answer any more: they are forgotten.
    NeighboursLost = "neighbours_lost",
    /// IPv6 addresses that were to be ours and that somebody else had (RFC 4862, section 5.4).
    Duplicates = "ndp_duplicate_addresses",
    /// Messages of neighbour discovery that claimed one of our own addresses.
    NdpConflicts = "ndp_conflicts",
    /// ARP packets and neighbour advertisements that claimed the address of a neighbour in use for another station, which was
    /// asked before that was believed.
    ArpDoubts = "arp_doubts",
    /// ARP packets that claimed one of our own addresses (RFC 5227, section 2.4).
    ArpConflicts = "arp_conflicts",
    /// Time for which threads were parked in their calls of the stack, ns; added when a park ends.
    IdleNs = "idle_ns",
    /// Time for which threads that wait looked around in place of sleeping, and found nothing, ns.
    LookNs = "look_ns",
    /// CPU time in parks, for falling asleep and waking up, ns; estimated from a sample.
    ParkCpuNs = "park_cpu_ns",
    /// Time for which the stack's threads that serve devices or run the protocol were parked for
    /// want of work, ns; added when a park ends.
    ServerIdleNs = "server_idle_ns",
}

/// The most counters that an organization may have of its own ([`SharedState::count_own`]).
///
/// [`SharedState::count_own`]: crate::SharedState::count_own
pub const OWN: usize = 8;

/// Where those are.
const OWN_AT: usize = Count::ALL.len() + WireError::COUNT;

/// How many counters there are.
pub const COUNTS: usize = OWN_AT + OWN;

/// The place of a malformed frame's reason.
pub fn malformed(e: WireError) -> usize {
    Count::ALL.len() + e.index()
}

/// The place of an organization's counter `n`.
pub(crate) fn own(n: usize) -> usize {
    debug_assert!(n < OWN, "an organization has no more counters");
    OWN_AT + n
}

/// The names of all counters, in the order of their places; `own` are those of the organization's
/// own.
pub fn names(own: &[&str]) -> impl Iterator<Item = String> {
    let stack = Count::ALL.iter().map(|(_, n)| (*n).to_string());
    let malformed = WireError::ALL.iter().map(|e| format!("drop_{}", e.name()));
    stack
        .chain(malformed)
        .chain(own.iter().map(|n| (*n).to_string()))
}
