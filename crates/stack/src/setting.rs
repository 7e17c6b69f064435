//! Settings of a connection, and of those that a listener is yet to make.

use core::time::Duration;
use perimeter_tcp::{CcKind, Config, Keepalive, Layers};

/// A setting to change.
#[derive(Copy, Clone, Debug)]
pub enum Setting {
    /// TCP_NODELAY.
    NoDelay(bool),
    /// TCP_CORK.
    Cork(bool),
    /// SO_KEEPALIVE with its times.
    Keepalive(Option<Keepalive>),
    /// TCP_USER_TIMEOUT.
    UserTimeout(Option<Duration>),
    /// SO_LINGER.
    Linger(Option<Duration>),
    /// SO_SNDBUF, bytes.
    SendBuffer(u32),
    /// SO_RCVBUF, bytes.
    RecvBuffer(u32),
    /// IP_TOS: DSCP and ECN of datagrams sent from now on.
    Tos(u8),
    /// IP_TTL: time to live, or hop limit, of datagrams sent from now on.
    Ttl(u8),
    /// TCP_CONGESTION: the window is kept, the threshold learnt anew.
    Congestion(CcKind),
    /// TCP_QUICKACK: what has been received is acknowledged at once, or acknowledgments are
    /// delayed. Neither lasts.
    QuickAck(bool),
    /// TCP_MAXSEG: the largest MSS option to offer to those who connect, bytes. For listeners; a
    /// connection has settled that.
    MaxSegment(u16),
    /// TCP_LINGER2: how long FIN-WAIT-2 lasts once the application has closed.
    FinWait2(Duration),
    /// SO_PEFON and SO_SETSQP: what it says of where layers run. Of a live connection that is the
    /// organization's to change.
    Layers(Layers),
}

impl Setting {
    /// The same for connections that are yet to be made. What a configuration does not carry
    /// (linger, an immediate acknowledgment) is left out.
    pub fn configure(self, c: &mut Config) {
        match self {
            Setting::NoDelay(on) => c.nodelay = on,
            Setting::Cork(on) => c.cork = on,
            Setting::Keepalive(k) => c.keepalive = k,
            Setting::UserTimeout(t) => c.user_timeout = t,
            Setting::SendBuffer(n) => c.snd_buf = n,
            Setting::RecvBuffer(n) => c.rcv_buf = n,
            Setting::Congestion(kind) => c.congestion = kind,
            Setting::FinWait2(d) => c.fin_wait_2 = d,
            Setting::MaxSegment(n) => c.mss = c.mss.min(n),
            Setting::Tos(tos) => c.tos = tos,
            Setting::Ttl(ttl) => c.ttl = Some(ttl),
            Setting::Layers(l) => c.layers = c.layers.then(l),
            Setting::Linger(_) | Setting::QuickAck(_) => {}
        }
    }
}
