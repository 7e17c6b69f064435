//! Settings of a connection.

use super::{Op, tell_space};
use crate::conn::Access;
use crate::ctx::Ctx;
use crate::glue;
use crate::kind::Kind;
use crate::output;
use crate::ready;
use crate::setting::Setting;

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
            Setting::Ttl(ttl) => {
                t.meta.ttl = Some(ttl);
                t.meta.template.set_ttl(ttl);
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
                } else if snd.is_roomy(&cx.sh.config) {
                    snd.side.raise(ready::OUT, &mut cx.deferred.wakes);
                }
                false
            }
            Setting::MaxSegment(_) | Setting::Layers(_) => false,
        };
        if output {
            output::output(a, cx);
        }
    }
}
