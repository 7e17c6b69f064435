//! Linux's option values against the stack's settings, and its account of a connection against
//! `tcp_info`'s.

use std::collections::BTreeMap;
use std::time::Duration;

use perimeter_stack::ConnInfo;
use perimeter_stack::ops::Setting;
use perimeter_tcp::{CaState as TcpCa, CcKind, Config, Keepalive, State as TcpState, TcpError};

use crate::backend::*;

/// Smallest and largest TCP_MAXSEG that Linux takes.
const MAXSEG: std::ops::RangeInclusive<i32> = 88..=32_767;

/// The settings of one socket: what its connection is made with, what can only be applied to a
/// connection, and what is merely remembered.
#[derive(Clone)]
pub struct Settings {
    config: Config,
    /// SO_LINGER.
    pub linger: Option<Duration>,
    /// Whether SO_KEEPALIVE is on; the times are `keep`'s.
    alive: bool,
    keep: Keepalive,
    /// Values as they were set.
    values: BTreeMap<Opt, i32>,
}

impl Settings {
    /// Those of a new socket.
    pub fn new(config: Config) -> Settings {
        Settings {
            alive: config.keepalive.is_some(),
            keep: config.keepalive.unwrap_or_default(),
            config,
            linger: None,
            values: BTreeMap::new(),
        }
    }

    /// What a connection is made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Sets TCP_CONGESTION.
    pub fn set_congestion(&mut self, kind: CcKind) {
        self.config.congestion = kind;
    }

    /// Gives `set` what the configuration does not carry to a new connection.
    pub fn apply_rest(&self, set: &mut dyn FnMut(Setting) -> Result<()>) -> Result<()> {
        if self.linger.is_some() {
            set(Setting::Linger(self.linger))?;
        }
        if let Some(tos) = self.values.get(&Opt::Tos) {
            set(Setting::Tos(*tos as u8))?;
        }
        if let Some(on) = self.values.get(&Opt::QuickAck) {
            set(Setting::QuickAck(*on != 0))?;
        }
        Ok(())
    }

    /// Sets an option; returns what changes a connection that exists already.
    pub fn set(&mut self, opt: Opt, value: i32) -> Result<Option<Setting>> {
        let invalid = Err(Errno(libc::EINVAL));
        let on = value != 0;
        let natural = u32::try_from(value).unwrap_or(0);
        let setting = match opt {
            Opt::NoDelay => {
                self.config.nodelay = on;
                Some(Setting::NoDelay(on))
            }
            Opt::Cork => {
                self.config.cork = on;
                Some(Setting::Cork(on))
            }
            Opt::KeepAlive | Opt::KeepIdle | Opt::KeepInterval | Opt::KeepCount => {
                let seconds = Duration::from_secs(u64::from(natural));
                match opt {
                    Opt::KeepAlive => self.alive = on,
                    _ if value < 1 => return invalid,
                    Opt::KeepIdle => self.keep.idle = seconds,
                    Opt::KeepInterval => self.keep.interval = seconds,
                    _ if value > 127 => return invalid,
                    _ => self.keep.probes = value as u8,
                }
                self.config.keepalive = self.alive.then_some(self.keep);
                Some(Setting::Keepalive(self.config.keepalive))
            }
            Opt::UserTimeout if value < 0 => return invalid,
            Opt::UserTimeout => {
                let limit = on.then(|| Duration::from_millis(u64::from(natural)));
                self.config.user_timeout = limit;
                Some(Setting::UserTimeout(limit))
            }
            Opt::SendBuffer => {
                self.config.snd_buf = natural.max(1);
                Some(Setting::SendBuffer(self.config.snd_buf))
            }
            Opt::ReceiveBuffer => {
                self.config.rcv_buf = natural.max(1);
                Some(Setting::RecvBuffer(self.config.rcv_buf))
            }
            Opt::MaxSegment if !MAXSEG.contains(&value) => return invalid,
            Opt::MaxSegment => {
                self.config.mss = self.config.mss.min(value as u16);
                Some(Setting::MaxSegment(value as u16))
            }
            Opt::Linger2 => {
                let wait = Duration::from_secs(u64::from(natural));
                self.config.fin_wait_2 = wait;
                Some(Setting::FinWait2(wait))
            }
            Opt::SynCount if !(1..=127).contains(&value) => return invalid,
            Opt::SynCount => {
                self.config.syn_retries = value as u8;
                None
            }
            Opt::QuickAck => Some(Setting::QuickAck(on)),
            Opt::Tos => Some(Setting::Tos(value as u8)),
            Opt::ReuseAddr | Opt::RecvErr | Opt::Inq | Opt::MtuDiscover => None,
            // The stack's datagrams must not be fragmented, the strictest of the choices.
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        };
        self.values.insert(opt, value);
        Ok(setting)
    }

    /// Reads an option of a socket that has no connection, or that does not change with one.
    pub fn get(&self, opt: Opt) -> Result<i32> {
        let int = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        let seconds = |d: Duration| i32::try_from(d.as_secs()).unwrap_or(i32::MAX);
        if let Some(value) = self.values.get(&opt) {
            return Ok(*value);
        }
        Ok(match opt {
            Opt::NoDelay => i32::from(self.config.nodelay),
            Opt::Cork => i32::from(self.config.cork),
            Opt::KeepAlive => i32::from(self.alive),
            Opt::KeepIdle => seconds(self.keep.idle),
            Opt::KeepInterval => seconds(self.keep.interval),
            Opt::KeepCount => i32::from(self.keep.probes),
            Opt::SendBuffer => int(self.config.snd_buf),
            Opt::ReceiveBuffer => int(self.config.rcv_buf),
            // Before a connection Linux reports the protocol's default.
            Opt::MaxSegment => 536,
            Opt::Linger2 => seconds(self.config.fin_wait_2),
            Opt::SynCount => i32::from(self.config.syn_retries),
            Opt::QuickAck => 1,
            Opt::UserTimeout | Opt::Tos | Opt::ReuseAddr => 0,
            Opt::RecvErr | Opt::Inq | Opt::MtuDiscover => 0,
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        })
    }
}

/// The number by which Linux reports a failed connection.
pub fn errno_of_tcp(error: TcpError) -> Errno {
    Errno(match error {
        TcpError::Refused => libc::ECONNREFUSED,
        TcpError::Reset => libc::ECONNRESET,
        TcpError::TimedOut => libc::ETIMEDOUT,
        TcpError::HostUnreachable => libc::EHOSTUNREACH,
        TcpError::NetUnreachable => libc::ENETUNREACH,
        TcpError::ProtocolUnreachable => libc::ENOPROTOOPT,
        TcpError::Aborted => libc::ECONNABORTED,
        TcpError::NetDown => libc::ENETDOWN,
    })
}

fn state_of(state: TcpState) -> State {
    match state {
        TcpState::Closed => State::Closed,
        TcpState::SynSent => State::SynSent,
        TcpState::SynReceived => State::SynReceived,
        TcpState::Established => State::Established,
        TcpState::FinWait1 => State::FinWait1,
        TcpState::FinWait2 => State::FinWait2,
        TcpState::CloseWait => State::CloseWait,
        TcpState::Closing => State::Closing,
        TcpState::LastAck => State::LastAck,
        TcpState::TimeWait => State::TimeWait,
    }
}

/// The connection's account of itself in the terms of `tcp_info`.
pub fn info(i: &ConnInfo) -> Info {
    let t = &i.tcp;
    let sent = t.bytes_sent.saturating_sub(t.bytes_acked + t.bytes_retrans);
    let unsent = u64::from(i.snd_queued).saturating_sub(sent);
    Info {
        state: state_of(t.state),
        ca_state: match t.ca_state {
            TcpCa::Open => CaState::Open,
            TcpCa::Disorder => CaState::Disorder,
            TcpCa::Recovery => CaState::Recovery,
            TcpCa::Loss => CaState::Loss,
        },
        retransmits: t.retransmits,
        probes: t.probes,
        backoff: t.backoff,
        timestamps: t.timestamps,
        sack: t.sack,
        window_scaling: t.snd_wscale.is_some(),
        snd_wscale: t.snd_wscale.unwrap_or(0),
        rcv_wscale: t.rcv_wscale.unwrap_or(0),
        rto: t.rto,
        snd_mss: t.snd_mss,
        rcv_mss: t.rcv_mss,
        unacked: t.unacked,
        sacked: t.sacked,
        lost: t.lost,
        retrans: t.retrans,
        since_data_sent: t.last_data_sent,
        since_data_received: t.last_rcv,
        since_ack_received: t.last_rcv,
        pmtu: t.pmtu,
        rtt: t.srtt,
        rttvar: t.rttvar,
        snd_ssthresh: (t.snd_ssthresh != u32::MAX).then_some(t.snd_ssthresh),
        snd_cwnd: t.snd_cwnd,
        advmss: t.adv_mss,
        reordering: t.reordering,
        total_retrans: t.total_retrans,
        bytes_acked: t.bytes_acked,
        bytes_received: t.bytes_received,
        segs_out: t.segs_out,
        segs_in: t.segs_in,
        notsent_bytes: u32::try_from(unsent).unwrap_or(u32::MAX),
        min_rtt: (!t.min_rtt.is_zero()).then_some(t.min_rtt),
        data_segs_in: t.data_segs_in,
        data_segs_out: t.data_segs_out,
        bytes_sent: t.bytes_sent,
        bytes_retrans: t.bytes_retrans,
        snd_wnd: t.snd_wnd,
        rcv_wnd: t.rcv_wnd,
        ..Info::default()
    }
}
