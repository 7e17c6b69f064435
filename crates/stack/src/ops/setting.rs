//! Settings of a connection.

use super::{Op, tell_space};
use crate::conn::Access;
use crate::ctx::Ctx;
use crate::glue;
use crate::kind::Kind;
use crate::ready;
use core::time::Duration;
use perimeter_tcp::{CcKind, Config, Keepalive};

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
}

impl Setting {
    /// The same for connections that are yet to be made. What a configuration does not carry
    /// (linger, type of service, an immediate acknowledgment) is left out.
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
            Setting::Linger(_) | Setting::Tos(_) | Setting::QuickAck(_) => {}
        }
    }
}

/// Changes a setting.
pub struct Set(pub Setting);

impl<K: Kind> Op<K> for Set {
    type Out = ();

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) {
        let now = glue::now(a, cx);
        let t = a.tcb();
        let output = match self.0 {
            Setting::NoDelay(on) => t.tcb.set_nodelay(on),
            Setting::Cork(on) => t.tcb.set_cork(on),
            Setting::Keepalive(k) => {
                t.tcb.set_keepalive(k, now);
                false
            }
            Setting::UserTimeout(d) => {
                t.tcb.set_user_timeout(d);
                false
            }
            Setting::Linger(d) => {
                t.meta.linger = d;
                false
            }
            Setting::RecvBuffer(n) => {
                a.rcv().set_limit(n);
                tell_space(a, cx);
                false
            }
            Setting::Tos(tos) => {
                t.meta.tos = tos;
                t.meta.template.set_tos(tos);
                false
            }
            Setting::Congestion(kind) => {
                t.tcb.set_congestion(kind);
                false
            }
            Setting::QuickAck(on) => t.tcb.set_quick_ack(on),
            Setting::FinWait2(d) => {
                t.tcb.set_fin_wait_2(d);
                false
            }
            Setting::SendBuffer(n) => {
                let mut snd = a.snd();
                snd.buf.set_limit(n);
                if snd.buf.space() == 0 {
                    snd.side.lower(ready::OUT);
                } else if snd.roomy() {
                    snd.side.raise(ready::OUT, &mut cx.deferred.wakes);
                }
                false
            }
            Setting::MaxSegment(_) => false,
        };
        if output {
            glue::output(a, cx);
        }
    }
}
