//! Between TCP and everything else: what happens to a segment, a timer, and the output that
//! follows, written once for every organization.
//!
//! All of it runs with the connection's TCP state protected; [`Access`] says how the buffers
//! are reached.

use crate::conn::{Access, RcvSide, SndSide, TcbSide, on_events};
use crate::count::Count;
use crate::ctx::Ctx;
use crate::kind::Kind;
use crate::memory::{CONNECTION, HOARD, ONE_SEGMENT, SET_ASIDE, WAITING};
use crate::output::{output, reset};
use crate::quota::End;
use crate::ready;
use crate::segment::Seg;
use crate::shared::SharedState;
use perimeter_base::{PktBuf, Time};
use perimeter_sync::{Platform, Touched, Work};
use perimeter_tcp::{Events, Input, Path, Run};
use perimeter_wire::{TcpFlags, TcpHdr};

/// The time of this burst or call, for a connection that was entered: not before that of whoever
/// was in there last, though his clock may have been read later. Time that goes back would show:
/// a timestamp that is lower than the last one sent makes the peer drop the segment (RFC 7323,
/// section 5.3).
#[inline]
pub fn now<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) -> Time {
    let meta = a.tcb_meta();
    cx.sh.p.touch(&meta.lines, Touched::Tcb, 1, true);
    let last = &mut meta.now;
    *last = cx.now_from(*last);
    *last
}

/// A segment arrived for this connection.
#[inline]
pub fn input<A: Access>(a: &mut A, cx: &mut Ctx<A::K>, seg: &mut Seg) {
    if seg.segs > 1 {
        return input_merged(a, cx, seg);
    }
    let (now, data) = arrived(a, cx, seg);
    let mut input = Input::default();
    a.tcb().tcb.input(&seg.frame.hdr, data, now, &mut input);
    let at = (seg.iface, &seg.frame.hdr);
    all_taken(a, cx, &mut input, None, |a, cx, input| {
        unguarded(a, cx, at, now, input);
    });
}

/// What the complete processing of a segment that came by interface `iface` has done, if its
/// connection is guarded. That is one that is bound to an interface: what came by another is dropped;
/// or one from which a word about its next hop is waited for (`TcbSide::await_hint`).
#[inline]
pub fn unguarded<A: Access>(
    a: &mut A,
    cx: &mut Ctx<A::K>,
    (iface, hdr): (u16, &TcpHdr),
    now: Time,
    input: &mut Input,
) {
    if input.events.contains(Events::GUARDED) {
        guarded(a, cx, (iface, hdr), now, input);
    }
}

#[cold]
fn guarded<A: Access>(
    a: &mut A,
    cx: &mut Ctx<A::K>,
    (iface, hdr): (u16, &TcpHdr),
    now: Time,
    input: &mut Input,
) {
    let data = core::mem::take(input).data;
    let t = a.tcb();
    if !t.meta.may_come_by(iface) {
        if let Some(data) = data {
            cx.pool.put(data);
        }
        return cx.count(Count::OtherInterface, 1);
    }
    t.tcb.set_guarded(false);
    // By functions that are there anyway: what is called in one place only is part of that place.
    let len = data.as_ref().map_or(0, PktBuf::len) as u32;
    let run = Run {
        segs: 1,
        first: len,
        octets: len,
    };
    match t.tcb.input_run(hdr, run, now, input) {
        true => input.data = data,
        false => t.tcb.input_full(hdr, data, now, input),
    }
    t.hinted(cx, now);
    t.guard();
}

/// As [`input`], for merged segments: as one if header prediction takes them, else one by one.
#[inline(never)]
fn input_merged<A: Access>(a: &mut A, cx: &mut Ctx<A::K>, seg: &mut Seg) {
    let most = cx.sh.config.most_merged();
    if seg.segs > most && seg.octets() > 0 {
        return seg.in_runs(most, |seg| input(a, cx, seg));
    }
    // Every second segment is acknowledged: where one waits already, the first of these makes two.
    if !cx.sh.config.stretch_acks && seg.octets() > 0 && a.tcb().tcb.delays_ack() {
        return seg.apart(|seg| input(a, cx, seg));
    }
    let now = now(a, cx);
    let run = Run {
        segs: seg.segs,
        first: seg.size,
        octets: seg.octets(),
    };
    let meta = a.tcb_meta();
    meta.ip_core = seg.core;
    meta.tcp_core = cx.core;
    let mut taken_as = Input::default();
    let affordable = run.octets == 0 || !cx.sh.memory_short();
    if affordable
        && a.tcb()
            .tcb
            .input_run(&seg.frame.hdr, run, now, &mut taken_as)
    {
        let payload = core::mem::take(&mut seg.payload);
        if run.octets > 0 {
            taken_as.data = Some(payload);
        } else {
            cx.pool.put(payload);
        }
        cx.own.predicted += u32::from(run.segs) - 1;
        cx.sh.p.charge(Work::TcpFast, u64::from(run.segs) - 1);
        return all_taken(a, cx, &mut taken_as, Some(&mut seg.rest), |_, _, _| ());
    }
    let t = a.tcb();
    if t.tcb.is_guarded() && t.meta.may_come_by(seg.iface) {
        t.tcb.set_guarded(false);
        input_merged(a, cx, seg);
        let t = a.tcb();
        t.hinted(cx, now);
        return t.guard();
    }
    seg.apart(|seg| input(a, cx, seg));
}

/// Before TCP's state machine gets a segment: the time, and the payload, if there is any.
#[inline(always)]
pub fn arrived<A: Access>(a: &mut A, cx: &mut Ctx<A::K>, seg: &mut Seg) -> (Time, Option<PktBuf>) {
    let now = now(a, cx);
    let payload = core::mem::take(&mut seg.payload);
    let data = if payload.is_empty() {
        cx.pool.put(payload);
        None
    } else if cx.sh.memory_short() {
        afford(a, cx, &mut seg.frame.hdr, payload)
    } else {
        Some(payload)
    };
    let meta = a.tcb_meta();
    meta.ip_core = seg.core;
    meta.tcp_core = cx.core;
    (now, data)
}

/// What of a segment's payload a connection takes while memory is short: all within its share,
/// and of what would go beyond it nothing, or as much as is set aside for it if it holds no data
/// yet. The rest is as if it had not arrived, so the peer sends it again.
#[cold]
pub fn afford<A: Access>(
    a: &mut A,
    cx: &mut Ctx<A::K>,
    hdr: &mut TcpHdr,
    payload: PktBuf,
) -> Option<PktBuf> {
    let (held, empty) = {
        let rcv = a.rcv();
        (rcv.buf.memory(), rcv.buf.is_empty())
    };
    let behind = a.tcb().tcb.memory();
    if held + behind + payload.capacity() <= cx.sh.share() {
        return Some(payload);
    }
    let n = payload.len().min(ONE_SEGMENT);
    let in_order = a.tcb().tcb.is_next(hdr.seq);
    if empty && in_order && behind == 0 && payload.capacity() <= SET_ASIDE {
        return Some(payload);
    }
    cx.count(Count::MemDropped, 1);
    if n < payload.len() || !(empty && in_order) {
        hdr.flags = hdr.flags.without(TcpFlags::FIN);
    }
    let some = (empty && in_order).then(|| PktBuf::copy_of(&payload.as_slice()[..n]));
    cx.pool.put(payload);
    some
}

/// Charges what TCP holds beside the buffers, where that may have changed.
#[inline]
pub fn account<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) {
    let t = a.tcb();
    let behind = t.tcb.memory();
    if CONNECTION + behind != t.meta.weight {
        weigh(t, behind, cx);
    }
}

#[cold]
fn weigh<K: Kind>(t: &mut TcbSide<K>, behind: usize, cx: &mut Ctx<K>) {
    let meta = &mut t.meta;
    let weight = match meta.end {
        Some(End::Waiting) => WAITING + behind,
        _ => CONNECTION + behind,
    };
    cx.charge(meta.weight, weight);
    meta.weight = weight;
    if behind >= HOARD && !meta.hoards {
        meta.hoards = true;
        cx.sh.hoards(meta.id);
    }
}

/// What follows from a segment that TCP has taken: the buffers, the socket, and output.
#[inline]
pub fn taken<A: Access>(a: &mut A, cx: &mut Ctx<A::K>, input: &mut Input) {
    all_taken(a, cx, input, None, |_, _, _| ());
}

/// As [`taken`], with payload that comes behind the segment's own, and after `full` where prediction has
/// left the segment.
#[inline(always)]
fn all_taken<A: Access>(
    a: &mut A,
    cx: &mut Ctx<A::K>,
    input: &mut Input,
    rest: Option<&mut Vec<PktBuf>>,
    full: impl FnOnce(&mut A, &mut Ctx<A::K>, &mut Input),
) {
    let sh = cx.sh;
    if input.path == Path::Full {
        full(a, cx, input);
        sh.p.charge(Work::TcpSlow, 1);
    } else {
        sh.p.charge(Work::TcpFast, 1);
        cx.own.predicted += 1;
        a.fast_path();
    }
    if input.acked > 0 {
        let mut snd = a.snd();
        sh.p.touch(&snd.lines, Touched::Snd, 1, true);
        let before = snd.charged();
        snd.ack(input.acked);
        cx.charge(before, snd.charged());
        if snd.side.bits() & ready::OUT == 0 && snd.is_roomy(&sh.config) && may_write(&snd, sh) {
            snd.side.raise(ready::OUT, &mut cx.deferred.wakes);
        }
    }
    if input.data.is_some() {
        deliver(a, cx, &mut input.data, rest, input.more);
    } else if input.more {
        while let Some(b) = a.tcb().tcb.next_in_order() {
            deliver(a, cx, &mut Some(b), None, false);
        }
    }
    if input.path == Path::Full {
        account(a, cx);
    }
    if !input.events.is_empty() {
        on_events(a, input.events, cx);
    }
    if let Some(rst) = input.reply.take() {
        reset(a, cx, rst);
    }
    if input.output {
        a.before_output();
        output(a, cx);
    }
}

/// Whether a writer who waits is told of room: while memory is short, not of each acknowledged
/// byte, after which it would be refused again, but when everything was acknowledged.
#[inline]
fn may_write<K: Kind>(snd: &SndSide<K>, sh: &SharedState<K>) -> bool {
    !sh.memory_short() || snd.buf.is_empty()
}

/// In-order data, and what became in order behind it, goes to the receive buffer. `first` is moved
/// late: just written in pieces, it can't be read whole yet.
#[inline]
fn deliver<A: Access>(
    a: &mut A,
    cx: &mut Ctx<A::K>,
    first: &mut Option<PktBuf>,
    rest: Option<&mut Vec<PktBuf>>,
    more: bool,
) {
    if a.up().is_some() {
        let rest = rest.into_iter().flat_map(|r| r.drain(..));
        for b in first.take().into_iter().chain(rest) {
            collect(a, cx.sh, b, more);
        }
        return;
    }
    let (mut t, mut rcv) = a.tcb_rcv();
    if rcv.messages {
        // That was `canputnext`; `putnext` is a round of its own.
        drop(rcv);
        (t, rcv) = a.tcb_rcv();
    }
    cx.sh.p.touch(&rcv.lines, Touched::Rcv, 1, true);
    let before = rcv.charged();
    let held = rcv.buf.len();
    if let Some(first) = first.take() {
        rcv.buf.push(first, &mut cx.pool);
    }
    if let Some(rest) = rest {
        rcv.buf.push_run(rest, &mut cx.pool);
    }
    if more {
        while let Some(b) = t.tcb.next_in_order() {
            rcv.buf.push(b, &mut cx.pool);
        }
    }
    cx.charge(before, rcv.charged());
    let came = rcv.buf.len() - held;
    delivered(cx.sh, t, &rcv, came);
    if let Some(space) = rcv.admit(came) {
        let space = offer(cx.sh, space, rcv.tell_at());
        t.tcb.app_read(space, rcv.buf.limit());
    }
    rcv.side.raise(ready::IN, &mut cx.deferred.wakes);
}

/// So many octets of payload wait in a receive side.
#[inline]
fn delivered<K: Kind>(sh: &SharedState<K>, t: &TcbSide<K>, rcv: &RcvSide<K>, octets: u32) {
    if let Some(port) = sh.rx_of(t.meta.txq) {
        let lines = (octets as usize).div_ceil(Touched::LINE);
        sh.p.arrived(&port.payload, &rcv.payload, lines);
    }
}

/// As [`deliver`], where the socket layer has a turn of its own: what is on its way to it counts
/// as delivered.
fn collect<A: Access>(a: &mut A, sh: &SharedState<A::K>, first: PktBuf, more: bool) {
    let mut next = Some(first);
    let mut came = 0;
    while let Some(b) = next {
        came += b.len() as u32;
        if let Some(up) = a.up() {
            up.data.push(b);
        }
        next = if more {
            a.tcb().tcb.next_in_order()
        } else {
            None
        };
    }
    let (t, mut rcv) = a.tcb_rcv();
    delivered(sh, t, &rcv, came);
    if let Some(space) = rcv.admit(came) {
        let space = offer(sh, space, rcv.tell_at());
        t.tcb.app_read(space, rcv.buf.limit());
    }
}

/// The space to offer while memory may be short: windows stay within a connection's share then
/// but never shut. Data that frees memory at the peer, or here, may have to come through this one.
/// Twice the step at least, so that a window that is not told of again yet is still worth a
/// segment.
pub(crate) fn offer<K: Kind>(sh: &SharedState<K>, space: u32, tell_at: u32) -> u32 {
    if sh.memory_short() {
        let share = u32::try_from(sh.share()).unwrap_or(u32::MAX);
        space.min(share.max(2 * tell_at))
    } else {
        space
    }
}

/// A timer of this connection is due.
pub fn timer<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) {
    let now = now(a, cx);
    cx.sh.p.charge(Work::Timer, 1);
    let t = a.tcb();
    t.meta.tcp_core = cx.core;
    let out = t.tcb.on_timer(now);
    a.timers(out.fired);
    if !out.events.is_empty() {
        on_events(a, out.events, cx);
    }
    if let Some(rst) = out.reply {
        reset(a, cx, rst);
    }
    account(a, cx);
    if out.output {
        a.before_output();
        output(a, cx);
    }
}

/// A connection that no application holds has nothing left to do but wait: what only transfers
/// need goes.
#[cold]
pub fn lighten<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) {
    {
        let mut snd = a.snd();
        let before = snd.charged();
        snd.buf.pages.shrink();
        cx.charge(before, snd.charged());
    }
    let t = a.tcb();
    weigh(t, t.tcb.memory(), cx);
}

/// Gives a connection up, and it is closed. A reset goes out if the peer knows of it, unless the
/// application has closed it and the peer has acknowledged everything, the FIN too: to that peer a
/// reset would be the news that what it has not read yet is to be thrown away.
pub fn abort<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) {
    let now = now(a, cx);
    let t = a.tcb();
    let waits = t.meta.end == Some(End::Waiting);
    if let Some(rst) = t.tcb.abort(now)
        && !waits
    {
        reset(a, cx, rst);
    }
    a.tcb().meta.closed = true;
}
