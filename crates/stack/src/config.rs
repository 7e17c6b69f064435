//! Settings of a stack.

use crate::ipv6::autoconf::Ipv6Config;
use crate::memory::WAITING;
use crate::port::Offload;
use perimeter_tcp::Config as TcpConfig;
use perimeter_tcp::syncache::Cookies;

/// Settings of a stack.
///
/// ```
/// use perimeter_stack::Config;
///
/// // A small router: 64 MiB, and acknowledgments as RFC 5681 has them.
/// let config = Config::default().with_memory(64 << 20).with_forwarding(true).with_stretch_acks(false);
/// assert_eq!(config.most_merged(), 2);
/// // What waits in TIME-WAIT may take a quarter of the memory at most.
/// let [_orphans, waiting] = config.ends();
/// assert!(waiting < Config::default().ends()[1]);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// What connections are made with, unless told otherwise.
    pub tcp: TcpConfig,
    /// Memory that all connections together may pin, bytes. Default 1 GiB.
    ///
    /// A bound: everything that a connection pins counts ([`crate::memory`]), each at least 7.5
    /// KiB (in TIME-WAIT 3 KiB), so this also limits how many there can be: by default some
    /// 139,000. What is promised: the process's resident memory stays within 1.25 times the
    /// limit and 32 MiB, whatever peers send and however slowly they read; what was acknowledged
    /// to a peer, and what the application has written, is never dropped for want of memory; and
    /// every connection can go on, one segment at a time at worst.
    ///
    /// What gives way first: from three eighths of the limit on, writers get less room, the less
    /// is left, and one segment unless their peers take what they are sent; windows stay smaller,
    /// and data beyond a connection's share is dropped before it is acknowledged; from three
    /// quarters on, data that arrived out of order goes; at the limit, new connections are
    /// refused. TIME-WAIT takes a quarter at most.
    ///
    /// Not counted: what does not depend on connections (devices with their rings, up to 4.5 MiB
    /// of packet buffers that each thread keeps in stock), buffers that the application has
    /// taken out, and the application's own pages beyond the part that is being sent.
    pub memory: u64,
    /// Memory that fragments may pin while they wait for the rest of their datagrams, bytes; one
    /// source may pin a quarter of it. Default 4 MiB.
    pub fragments: usize,
    /// Connections of the whole stack that no application holds any more and that still have data
    /// or their FIN to deliver. Beyond it the one that was closed first is reset; never the one
    /// that is being closed. Default 65,536.
    pub orphans: usize,
    /// Connections of the whole stack in TIME-WAIT, or closed and in FIN-WAIT-2. Beyond it the
    /// wait of the oldest ends early; no data is lost by that. Default 65,536.
    pub time_waits: usize,
    /// Buckets of the stack's SYN caches together. An organization with several connection tables
    /// divides them evenly; each table has a power of two, at least 2. Default 512.
    pub syn_buckets: usize,
    /// Entries in a bucket. Default 30.
    pub syn_depth: usize,
    /// When a SYN is answered by a cookie (RFC 4987, section 3.6). Default: when its bucket is
    /// full.
    pub syn_cookies: Cookies,
    /// Ports for connections that do not ask for one (RFC 6056). Default 32768–60999.
    pub ephemeral: core::ops::RangeInclusive<u16>,
    /// Descriptors in a transmit ring, 2 to 65,536, else clamped. Default 1024.
    pub tx_ring: usize,
    /// How much of a send buffer has to be free for a writer who found no room to be told, bytes, as
    /// BSD's `SO_SNDLOWAT` says; no more than a third of the buffer, which is the default. With less
    /// a writer is woken more often, for less each time.
    pub snd_lowat: u32,
    /// Who cuts bursts into segments. Default [`Offload::Device`]: the device, where it can, else the
    /// stack. With [`Offload::Off`] each segment is planned by itself, and taken by itself, as in
    /// the papers.
    pub offload: Offload,
    /// Whether a burst's segments of one connection are acknowledged at once, however many they
    /// are, as Linux does where it merges them (stretch acknowledgments); else every second full
    /// one is, as RFC 5681, section 4.2, has it: a burst's segments are taken by twos, or one by one
    /// where one waits already. What a device has merged is taken apart for that, and copied unless its
    /// memory is shared; `pef` with finer events takes it as it came. With it,
    /// too, data that finds half of the receive buffer full, or more, is acknowledged only once the
    /// application has read, or after half a millisecond, as Linux does where the window would not
    /// grow: then the peer sees a window that it can send a burst into. Without
    /// [`Config::offload`] each segment counts by itself. Default yes.
    pub stretch_acks: bool,
    /// Time to live, or hop limit, of datagrams. Default 64. Over IPv6 what a router advertises comes
    /// before it where [`Ipv6Config::autoconf`] is on, and a socket's own before both.
    pub ttl: u8,
    /// Whether datagrams for other hosts go on towards them, as by a router. Default no: they are
    /// dropped.
    pub forwarding: bool,
    /// Settings of IPv6.
    pub ipv6: Ipv6Config,
    /// How long threads that serve devices sleep after traffic before they look around by
    /// themselves; longer each time that they find nothing, up to 10 s, so that an idle process
    /// sleeps. Packets and timers wake them. The service thread under `Inbound::Inline` always looks
    /// around this often: half of the 10 ms within which packets are served though no application
    /// thread enters the stack. Default 5 ms.
    pub service: core::time::Duration,
    /// The longest that a thread which waits for packets, for a socket or for a poller looks around
    /// before it sleeps; zero: it sleeps at once. It looks around for as long as has paid lately, so
    /// hardly at all where nothing comes for longer, and never where there is one core. Whoever waits
    /// in a poll of the host's or as a task is not concerned. Default 50 µs.
    pub look_around: core::time::Duration,
    /// Whether frames of messages go to the threads that answer them, where those threads serve devices
    /// (receive flow steering, as Linux's RFS; [`crate::steer`]). It pays where a cache line takes long
    /// from core to core, and where a connection's state is in a cache: not over thousands of connections.
    /// It takes 256 KiB for each receive queue. Default no.
    pub steering: bool,
    /// Octets of payload that a thread of the stack's own takes from its devices in a row before it lets
    /// other threads of its core run (a budget, as Linux calls it for its NICs); 0: as many as come.
    /// Who reads on that core then finds what came in a cache. It also limits each burst, whoever takes
    /// it, to about so many octets: how many frames that is, is told by their length in the burst before.
    /// Default 768 KiB: full frames whose buffers take 1 MiB, which is what a core has for itself today.
    pub budget: usize,
    /// Whether threads of the stack's own take their core from the application's as soon as there is
    /// something for them to do, as a kernel's do: those that serve devices before those that run
    /// protocols. That takes the right to real-time priorities (`CAP_SYS_NICE` on Linux); without it
    /// nothing changes. An application that shares its cores with such threads gets what they leave,
    /// which may be nothing (receive livelock). Default off.
    pub preemptive: bool,
    /// The longest that the end of a stack waits, when its last handle goes, until what was
    /// written has been acknowledged, the FINs too; zero: what is left is reset at once. A
    /// process has no kernel behind it that goes on sending, so it is the process that waits.
    /// Default 5 minutes: a live peer gets everything, and one that takes a byte now and then
    /// does not keep the process for ever.
    pub drain: core::time::Duration,
    /// The longest that it waits while no peer acknowledges anything. Default 30 s: five or six
    /// retransmissions are unanswered by then.
    pub drain_stall: core::time::Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tcp: TcpConfig::default(),
            memory: 1 << 30,
            fragments: 4 << 20,
            orphans: 65_536,
            time_waits: 65_536,
            syn_buckets: 512,
            syn_depth: 30,
            syn_cookies: Cookies::WhenFull,
            ephemeral: 32_768..=60_999,
            tx_ring: crate::port::TX_RING,
            snd_lowat: u32::MAX,
            offload: Offload::default(),
            stretch_acks: true,
            ttl: 64,
            forwarding: false,
            ipv6: Ipv6Config::default(),
            service: core::time::Duration::from_millis(5),
            look_around: core::time::Duration::from_micros(50),
            steering: false,
            budget: 768 << 10,
            preemptive: false,
            drain: core::time::Duration::from_secs(300),
            drain_stall: core::time::Duration::from_secs(30),
        }
    }
}

perimeter_base::setters! {
    Config {
        with_tcp(tcp: TcpConfig),
        with_memory(memory: u64),
        with_fragments(fragments: usize),
        with_orphans(orphans: usize),
        with_time_waits(time_waits: usize),
        with_syn_buckets(syn_buckets: usize),
        with_syn_depth(syn_depth: usize),
        with_syn_cookies(syn_cookies: Cookies),
        with_ephemeral(ephemeral: core::ops::RangeInclusive<u16>),
        with_tx_ring(tx_ring: usize),
        with_snd_lowat(snd_lowat: u32),
        with_offload(offload: Offload),
        with_stretch_acks(stretch_acks: bool),
        with_ttl(ttl: u8),
        with_forwarding(forwarding: bool),
        with_ipv6(ipv6: Ipv6Config),
        with_service(service: core::time::Duration),
        with_look_around(look_around: core::time::Duration),
        with_steering(steering: bool),
        with_budget(budget: usize),
        with_preemptive(preemptive: bool),
        with_drain(drain: core::time::Duration),
        with_drain_stall(drain_stall: core::time::Duration),
    }
}

/// The most of [`Config::spare`]: about what arrives in a millisecond at 100 Gb/s, which is as far
/// as a reader falls behind who is not asleep.
const MOST_SPARE: usize = 16 << 20;

impl Config {
    /// Whether a writer who waits for room in a send buffer of `limit` bytes is told of `space`
    /// bytes.
    ///
    /// ```
    /// use perimeter_stack::Config;
    ///
    /// let usual = Config::default();
    /// assert!(usual.is_roomy(100, 300) && !usual.is_roomy(99, 300));
    /// let soon = usual.with_snd_lowat(2048);
    /// assert!(soon.is_roomy(2048, 262_144) && !soon.is_roomy(2047, 262_144));
    /// assert!(soon.is_roomy(100, 300), "a third is enough");
    /// ```
    #[inline]
    pub fn is_roomy(&self, space: u32, limit: u32) -> bool {
        space >= self.snd_lowat.min(limit / 3).max(1)
    }

    /// Memory of packet buffers that the threads keep for each other, bytes.
    pub(crate) fn spare(&self) -> usize {
        usize::try_from(self.memory / 64).map_or(MOST_SPARE, |n| n.min(MOST_SPARE))
    }

    /// How many segments of a burst may become one.
    pub fn most_merged(&self) -> u16 {
        match self.stretch_acks {
            true => u16::MAX,
            false => 2,
        }
    }

    /// The most orphans, and the most connections that wait, in the whole stack; those take a
    /// quarter of the memory at most.
    pub fn ends(&self) -> [usize; 2] {
        let waiting = usize::try_from(self.memory / 4).unwrap_or(usize::MAX) / WAITING;
        [self.orphans, self.time_waits.min(waiting)]
    }
}
