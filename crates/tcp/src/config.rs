//! Settings of a connection.

use core::time::Duration;

use crate::cc::CcKind;

/// Octets of an IPv4 and a TCP header without options: what separates an MTU from the MSS
/// option (RFC 9293, section 3.7.1).
pub const HEADERS: u16 = 40;

/// The smallest send MSS that is honoured, in octets, whatever the peer or a router says.
///
/// Smaller ones multiply the work per byte without any network needing them (CVE-2019-11479);
/// 48 is Linux's floor.
pub const MIN_MSS: u16 = 48;

/// The smallest path MTU believed from ICMP, in octets; Linux's `min_pmtu`. RFC 791 lets a
/// link go down to 68, which only attackers use.
pub const MIN_PMTU: u16 = 552;

/// Keepalive settings (RFC 9293, section 3.8.4).
///
/// ```
/// use perimeter_tcp::Keepalive;
/// use std::time::Duration;
///
/// // A silent peer is given up after a minute and three probes, ten seconds apart.
/// let seconds = Duration::from_secs;
/// let k = Keepalive::default().with_idle(seconds(60)).with_interval(seconds(10)).with_probes(3);
/// assert_eq!(k.idle + k.interval * u32::from(k.probes), seconds(90));
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keepalive {
    /// Silence before the first probe. Linux: 2 h.
    pub idle: Duration,
    /// Time between probes. Linux: 75 s.
    pub interval: Duration,
    /// Unanswered probes after which the connection is given up. Linux: 9.
    pub probes: u8,
}

impl Default for Keepalive {
    fn default() -> Keepalive {
        Keepalive {
            idle: Duration::from_secs(7200),
            interval: Duration::from_secs(75),
            probes: 9,
        }
    }
}

perimeter_base::setters! {
    Keepalive {
        with_idle(idle: Duration),
        with_interval(interval: Duration),
        with_probes(probes: u8),
    }
}

/// Where the layers of a connection are to run, for organizations that can tell them apart (`pef`);
/// TCP does not look at it. Squeues are numbers, modulo how many there are; `None`: as the
/// organization does.
///
/// ```
/// use perimeter_tcp::Layers;
///
/// let all = Layers::default().with_tcp(Some(1)).with_sockfs(Some(2));
/// // A connection's own word counts for more than its listener's.
/// let one = all.then(Layers::default().with_tcp(Some(0)));
/// assert_eq!((one.tcp, one.sockfs, one.ip), (Some(0), Some(2), None));
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layers {
    /// SO_PEFON: whether packets run through the connection's lists of events.
    pub events: Option<bool>,
    /// SO_SETSQP: IP's squeue.
    pub ip: Option<u16>,
    /// SO_SETSQP: TCP's squeue.
    pub tcp: Option<u16>,
    /// SO_SETSQP: the socket layer's squeue.
    pub sockfs: Option<u16>,
}

perimeter_base::setters! {
    Layers {
        with_events(events: Option<bool>),
        with_ip(ip: Option<u16>),
        with_tcp(tcp: Option<u16>),
        with_sockfs(sockfs: Option<u16>),
    }
}

impl Layers {
    /// What `later` says, and where that says nothing, what this says.
    #[must_use]
    pub fn then(self, later: Layers) -> Layers {
        Layers {
            events: later.events.or(self.events),
            ip: later.ip.or(self.ip),
            tcp: later.tcp.or(self.tcp),
            sockfs: later.sockfs.or(self.sockfs),
        }
    }
}

/// What a connection is made with. The defaults are Linux's where it has one.
///
/// Times are kept in milliseconds inside a connection; longer than 49 days counts as that.
///
/// ```
/// use perimeter_tcp::{CcKind, Config};
///
/// let config = Config::default().with_congestion(CcKind::NewReno).with_rcv_buf_max(6 << 20);
/// // The shift of 16 bits that lets them express 6 MiB.
/// assert_eq!(config.wscale(), Some(7));
/// assert_eq!(config.with_window_scale(false).wscale(), None);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The largest MSS to advertise, in octets; it bounds what is sent as well. A stack advertises
    /// no more than the MTU of the interface less [`HEADERS`]. Default 65,535: the interface
    /// decides.
    pub mss: u16,
    /// Offer and accept window scaling (RFC 7323, section 2). Default true.
    pub window_scale: bool,
    /// Offer and accept timestamps (RFC 7323, section 3). Default true.
    pub timestamps: bool,
    /// Offer and accept selective acknowledgments (RFC 2018). Default true.
    pub sack: bool,
    /// Receive buffer in octets: the most that is advertised. Default 256 KiB.
    pub rcv_buf: u32,
    /// The largest that the receive buffer may be made later, in octets; the window scale is
    /// chosen for it, since it can't change. Default 15 MiB, which gives a shift of 8.
    pub rcv_buf_max: u32,
    /// Send buffer in octets. Default 256 KiB.
    pub snd_buf: u32,
    /// Congestion control. Default CUBIC.
    pub congestion: CcKind,
    /// Initial window in segments (RFC 6928). Default 10.
    pub initial_window: u32,
    /// Initial retransmission timeout (RFC 6298, section 2.1). Default 1 s.
    pub rto_initial: Duration,
    /// Smallest retransmission timeout. Default 200 ms, as Linux (RFC 6298 says 1 s).
    pub rto_min: Duration,
    /// Largest retransmission timeout. Default 120 s, as Linux.
    pub rto_max: Duration,
    /// How long an acknowledgment may wait for a second segment (RFC 9293, section 3.8.6.3:
    /// below 500 ms). Default 40 ms.
    pub delayed_ack: Duration,
    /// Switch off Nagle's algorithm. Default false.
    pub nodelay: bool,
    /// Hold partial segments back until uncorked or for one RTO. Default false.
    pub cork: bool,
    /// Keepalive probes. Default none.
    pub keepalive: Option<Keepalive>,
    /// How long data may stay unacknowledged before the connection is aborted (RFC 5482).
    /// Default none: `data_retries` decides.
    pub user_timeout: Option<Duration>,
    /// Retransmissions of a SYN before giving up. Default 6.
    pub syn_retries: u8,
    /// Consecutive retransmission timeouts before giving up (RFC 9293, section 3.8.3: R2).
    /// Default 15.
    pub data_retries: u8,
    /// The same for a connection that its application has closed. Default 8.
    pub orphan_retries: u8,
    /// Length of TIME-WAIT, 2 MSL. Default 60 s.
    pub time_wait: Duration,
    /// How long a closed connection stays in FIN-WAIT-2 for the peer's FIN. Default 60 s.
    pub fin_wait_2: Duration,
    /// Most memory that out-of-order segments may pin, in octets. Default 512 KiB.
    pub max_reassembly_bytes: u32,
    /// Send the last segment again after two round trips without an acknowledgment, so that the
    /// loss of a flight's tail shows in SACKs rather than by a timeout (RFC 8985, section 7).
    /// Needs SACK. Default true.
    pub loss_probe: bool,
    /// Once anything is SACKed, call what is missing below it lost after a quarter of the
    /// smallest round-trip time, though fewer than three segments are SACKed (RFC 8985, section
    /// 6.2: the reordering window). Default true.
    pub reorder_timer: bool,
    /// Find out what the path takes where full segments vanish and no router says why (RFC 4821):
    /// after two retransmission timeouts in a row segments get smaller, and once they pass, larger
    /// ones are tried (with SACK only). As Linux's tcp_mtu_probing = 1, which is off there: a path
    /// without black holes never notices, and on one with them nothing else helps. Default true.
    pub mtu_probing: bool,
    /// Time to live or hop limit of segments (IP_TTL), for who sends them; `None`: what is usual
    /// there. A SYN-ACK has the usual one. Default `None`.
    pub ttl: Option<u8>,
    /// DSCP and ECN of segments (IP_TOS), for who sends them. A SYN-ACK has 0. Default 0.
    pub tos: u8,
    /// Start over in slow start after an idle time of one RTO (RFC 2861 as Linux does it).
    /// Default true.
    pub slow_start_after_idle: bool,
    /// Where its layers are to run. Default: as the organization does.
    pub layers: Layers,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mss: u16::MAX,
            window_scale: true,
            timestamps: true,
            sack: true,
            rcv_buf: 256 * 1024,
            rcv_buf_max: 15 * 1024 * 1024,
            snd_buf: 256 * 1024,
            congestion: CcKind::default(),
            initial_window: 10,
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            delayed_ack: Duration::from_millis(40),
            nodelay: false,
            cork: false,
            keepalive: None,
            user_timeout: None,
            syn_retries: 6,
            data_retries: 15,
            orphan_retries: 8,
            time_wait: Duration::from_secs(60),
            fin_wait_2: Duration::from_secs(60),
            max_reassembly_bytes: 512 * 1024,
            loss_probe: true,
            reorder_timer: true,
            mtu_probing: true,
            ttl: None,
            tos: 0,
            slow_start_after_idle: true,
            layers: Layers::default(),
        }
    }
}

perimeter_base::setters! {
    Config {
        with_mss(mss: u16),
        with_window_scale(window_scale: bool),
        with_timestamps(timestamps: bool),
        with_sack(sack: bool),
        with_rcv_buf(rcv_buf: u32),
        with_rcv_buf_max(rcv_buf_max: u32),
        with_snd_buf(snd_buf: u32),
        with_congestion(congestion: CcKind),
        with_initial_window(initial_window: u32),
        with_rto_initial(rto_initial: Duration),
        with_rto_min(rto_min: Duration),
        with_rto_max(rto_max: Duration),
        with_delayed_ack(delayed_ack: Duration),
        with_nodelay(nodelay: bool),
        with_cork(cork: bool),
        with_keepalive(keepalive: Option<Keepalive>),
        with_user_timeout(user_timeout: Option<Duration>),
        with_syn_retries(syn_retries: u8),
        with_data_retries(data_retries: u8),
        with_orphan_retries(orphan_retries: u8),
        with_time_wait(time_wait: Duration),
        with_fin_wait_2(fin_wait_2: Duration),
        with_max_reassembly_bytes(max_reassembly_bytes: u32),
        with_loss_probe(loss_probe: bool),
        with_reorder_timer(reorder_timer: bool),
        with_mtu_probing(mtu_probing: bool),
        with_ttl(ttl: Option<u8>),
        with_tos(tos: u8),
        with_slow_start_after_idle(slow_start_after_idle: bool),
        with_layers(layers: Layers),
    }
}

impl Config {
    /// The window scale to offer: the least shift that lets 16 bits express the largest
    /// receive buffer; `None` when scaling is off.
    pub fn wscale(&self) -> Option<u8> {
        if !self.window_scale {
            return None;
        }
        let mut space = self.rcv_buf_max.max(self.rcv_buf);
        let mut shift = 0;
        while space > 0xffff && shift < 14 {
            space >>= 1;
            shift += 1;
        }
        Some(shift)
    }
}

/// A duration in whole milliseconds, at most `u32::MAX`.
pub(crate) fn millis(d: Duration) -> u32 {
    u32::try_from(d.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_scale_covers_the_largest_buffer() {
        let table = [
            (65_535, Some(0)),
            (65_536, Some(1)),
            (6 << 20, Some(7)),
            (15 << 20, Some(8)),
            (u32::MAX, Some(14)),
        ];
        for (max, shift) in table {
            let cfg = Config {
                rcv_buf: 1000,
                rcv_buf_max: max,
                ..Config::default()
            };
            assert_eq!(cfg.wscale(), shift, "{max}");
        }
        let off = Config {
            window_scale: false,
            ..Config::default()
        };
        assert_eq!(off.wscale(), None);
    }
}
