//! The life of a connection, from its opening to its end. Each step does here what concerns the
//! connection alone; table, timer wheel and the account of orphans are with whoever keeps the
//! connection, behind locks of their own in some organizations.

use crate::conn::{Access, Conn, on_events};
use crate::ctx::Ctx;
pub use crate::flow::Flow;
use crate::glue;
use crate::kind::Kind;
use crate::listener::Listener;
use crate::output;
use crate::quota::End;
use crate::ready;
use crate::segment::Seg;
use perimeter_base::Time;
use perimeter_tcp::syncache::Established;
use perimeter_tcp::{Config, Events, Tcb};
use perimeter_wire::{FlowKey, Seq, TcpFlags};
use std::sync::Arc;

/// TCP's state of a connection that is opened from here.
pub fn connect<K: Kind>(cx: &mut Ctx<K>, key: &FlowKey, config: &Config) -> Tcb {
    let now = cx.now();
    let isn = &cx.sh.isn;
    Tcb::connect(config, isn.iss(key, now), isn.ts_offset(key), now)
}

/// It has its place: its SYN goes out.
pub fn connected<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) {
    glue::account(a, cx);
    output::output(a, cx);
}

/// TCP's state of a connection whose handshake is complete, and its settings.
pub fn accept<K: Kind>(cx: &mut Ctx<K>, l: &Listener<K>, e: &Established) -> (Arc<Config>, Tcb) {
    let config = l.config();
    let tcb = Tcb::accept(&config, e, cx.now_from(e.at));
    (config, tcb)
}

/// It has its place: it gets the segment that completed the handshake, and its listener is told.
pub fn accepted<A: Access>(a: &mut A, cx: &mut Ctx<A::K>, l: Arc<Listener<A::K>>, seg: &mut Seg) {
    let id = a.tcb_meta().id;
    glue::account(a, cx);
    a.snd().side.raise(ready::OUT, &mut cx.deferred.wakes);
    glue::input(a, cx, seg);
    cx.deferred.accepts.push((l, id, seg.frame.key));
}

/// The initial sequence number to use if `seg` is a new SYN that may take over this connection,
/// which waits in TIME-WAIT (RFC 9293, section 3.10.7.4, and RFC 6191). Only if there is a
/// listener to take it is that to happen, by [`give_way`]: a stranger's SYN must not end the wait
/// for nothing.
#[inline]
pub fn reuse<A: Access>(a: &mut A, seg: &Seg) -> Option<Seq> {
    let hdr = &seg.frame.hdr;
    if !hdr.flags.contains(TcpFlags::SYN) {
        return None;
    }
    a.tcb().tcb.time_wait_reuse(hdr)
}

/// The wait is over, as a new connection takes over the flow.
pub fn give_way<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) {
    on_events(a, Events::CLOSED, cx);
}

/// As what the connection is to be counted now, if that has changed: `Some(None)` when it is not
/// to be counted any more. One that has only to wait gives up what transfers need.
#[inline]
pub fn end_changed<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) -> Option<Option<End>> {
    let end = a.tcb().end_changed()?;
    if end == Some(End::Waiting) {
        glue::lighten(a, cx);
    }
    Some(end)
}

/// For when the connection needs an entry on the wheel, if its deadline is earlier than that of the
/// one which is there.
#[inline]
pub fn arm<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) -> Option<Time> {
    let t = a.tcb();
    let at = t.tcb.deadline();
    if at >= t.meta.armed {
        return None;
    }
    t.meta.armed = at;
    cx.deferred.armed = cx.deferred.armed.min(at);
    Some(at)
}

/// An entry came due for `at`: whether it is the connection's, which now has none. Else it was
/// superseded.
pub fn disarm<A: Access>(a: &mut A, at: Time) -> bool {
    let armed = &mut a.tcb_meta().armed;
    let live = *armed == at;
    if live {
        *armed = Time::NEVER;
    }
    live
}

/// The stack is being dropped: the connection ends, and nobody holds it any more.
pub fn abort<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) {
    glue::abort(a, cx);
    a.snd().side.finish(&mut cx.deferred.wakes);
    a.rcv().side.finish(&mut cx.deferred.wakes);
    a.tcb_meta().orphan = true;
}

/// It has moved out: the stack gets back what was charged for it.
pub fn gone<K: Kind>(conn: &Conn<K>, cx: &mut Ctx<K>) {
    let buffers = conn.snd.charged() + conn.rcv.charged();
    cx.charge(conn.tcb.meta.weight + buffers, 0);
}
