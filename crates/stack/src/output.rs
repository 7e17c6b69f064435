//! From TCP to the transmit ring: what a connection wants to send, and how it gets there.
//!
//! All of it runs with the connection's TCP state protected. Segments enter the transmit queue in
//! here, inside the protection: two threads may emit for one connection, and filling the queue
//! after release would reorder it.

use crate::conn::{Access, Meta, SndSide, TcbSide};
use crate::count::Count;
use crate::ctx::Ctx;
use crate::kind::Kind;
#[cfg(feature = "testing")]
use crate::planted::{Bug, planted};
use crate::port::{Cutting, Stalled, TxPort};
use crate::segment::{Apart, OutSeg, Outgoing};
use crate::shared::SharedState;
#[cfg(feature = "testing")]
use perimeter_base::PktBuf;
use perimeter_base::{Lease, Lent, PktPool, Time, TxHead};
use perimeter_sync::{Platform, Touched, Work};
#[cfg(feature = "testing")]
use perimeter_tcp::SndBuf;
use perimeter_tcp::{Repeats, Rst, SegPlan};
use perimeter_wire::Template;
use smallvec::SmallVec;

/// Sends what TCP wants to send: new data, retransmissions, acknowledgments, probes. Where
/// connections wait for room in the transmit queue, this one gets in line behind them.
#[inline(always)]
pub fn output<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) {
    if !A::SPLIT {
        // Most acknowledgments find nothing to send; then the transmit ring is not even looked at.
        let now = cx.now();
        a.tcb_meta().tcp_core = cx.core;
        let (t, snd) = a.tcb_snd();
        if t.tcb.has_nothing(snd.buf.queued(), now) {
            return;
        }
    }
    output_some(a, cx);
}

fn output_some<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) {
    let meta = a.tcb_meta();
    if meta.blocked {
        return;
    }
    if cx.sh.tx[usize::from(meta.txq)].stalled() > 0 {
        return get_in_line(meta, cx);
    }
    output_in_turn(a, cx);
}

/// As [`output`], for a connection whose turn it is.
pub fn output_in_turn<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) {
    let meta = a.tcb_meta();
    meta.tcp_core = cx.core;
    if !resolve(a.tcb(), cx) {
        return;
    }
    let full = if a.out().is_some() {
        output_apart(a, cx)
    } else if A::SPLIT {
        output_split(a, cx)
    } else {
        output_whole(a, cx)
    };
    if let Some(repeats) = a.tcb().tcb.take_repeats() {
        repeated(a.tcb(), cx, repeats);
    }
    let meta = a.tcb_meta();
    if full && !meta.blocked {
        get_in_line(meta, cx);
    }
}

/// Timeouts in a row from which on the next hop is asked whether it is there.
const SUSPECT: u32 = 2;

#[cold]
fn repeated<K: Kind>(t: &TcbSide<K>, cx: &mut Ctx<K>, n: Repeats) {
    if t.tcb.backoffs() >= SUSPECT {
        cx.sh.suspect(cx.own, (t.meta.key.remote, t.meta.by));
    }
    cx.count(Count::Retransmits, n.segments.into());
    cx.count(Count::LossProbes, n.probes.into());
    cx.count(Count::MtuProbes, n.mtu_probes.into());
}

fn get_in_line<K: Kind>(meta: &mut Meta<K>, cx: &mut Ctx<K>) {
    meta.blocked = true;
    let (id, places) = (meta.id, 1);
    cx.deferred.blocked.push((meta.txq, Stalled { id, places }));
}

/// Output where nothing else protects the buffers: one visit to the transmit ring for all
/// segments. Returns whether the ring filled up.
fn output_whole<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) -> bool {
    let now = cx.now();
    let (sh, own) = cx.split();
    let txq = a.tcb().meta.txq;
    let port = &sh.tx[usize::from(txq)];
    if let Some(cutting) = port.large {
        return output_large(a, cx, cutting);
    }
    let share = port.share();
    let mut stage = port.stage();
    let (t, mut snd) = a.tcb_snd();
    let (mut segs, mut bytes) = (0u64, 0u64);
    let mut blocked = false;
    loop {
        if segs >= share || stage.room() == 0 {
            // Perhaps there is nothing more to send; then one look later finds that out.
            blocked = true;
            break;
        }
        // Read where it was written: moved, it would be written in pieces and read whole, which
        // waits for all stores before.
        let planned = t.tcb.plan_here(snd.buf.queued(), now);
        let Some(plan) = &planned else { break };
        #[cfg(feature = "testing")]
        if planted(Bug::RingFilledLate) {
            let mut d = TxHead::empty();
            emit(&mut d, &mut t.meta, plan);
            d.owned = owned(&snd.buf, plan);
            own.deferred.late.push((txq, d));
            segs += 1;
            continue;
        }
        let Some(mut d) = stage.push() else { break };
        segs += 1;
        bytes += u64::from(plan.len);
        emit(&mut d, &mut t.meta, plan);
        snd.buf.refer(plan.off, plan.len, &mut d, &mut own.pool);
    }
    drop(stage);
    drop(snd);
    if segs > 0 {
        emitted(cx, txq, segs, bytes);
    }
    blocked
}

/// As [`output_whole`], where bursts are planned as large segments.
#[inline(never)]
fn output_large<A: Access>(a: &mut A, cx: &mut Ctx<A::K>, cutting: Cutting) -> bool {
    let now = cx.now();
    let (sh, own) = cx.split();
    let txq = a.tcb().meta.txq;
    let port = &sh.tx[usize::from(txq)];
    let share = port.share();
    let mut stage = port.stage();
    let (t, mut snd) = a.tcb_snd();
    let (mut placed, mut segs, mut bytes, mut large) = (0, 0, 0, 0);
    let mut blocked = false;
    loop {
        let room = (stage.room() as u64).min(share.saturating_sub(placed));
        if room == 0 {
            // Perhaps there is nothing more to send; then one look later finds that out.
            blocked = true;
            break;
        }
        let most = cutting.most(room);
        // As in `output_whole`.
        let planned = t.tcb.plan_large(snd.buf.queued(), most, now);
        let Some(plan) = &planned else { break };
        for i in 0..port.descriptors(plan) {
            let part = port.part(plan, i);
            let Some(mut d) = stage.push() else { break };
            placed += 1;
            emit_any(&mut d, &mut t.meta, &part);
            snd.buf.refer(part.off, part.len, &mut d, &mut own.pool);
        }
        segs += u64::from(plan.segs);
        bytes += u64::from(plan.len);
        large += u64::from(plan.segs > 1);
    }
    drop(stage);
    drop(snd);
    if segs > 0 {
        cx.count(Count::TxLarge, large);
        emitted(cx, txq, segs, bytes);
    }
    blocked
}

/// The next segment, a large one where the queue takes those and has room for `room` descriptors;
/// where the parts of a connection are protected apart.
#[inline(always)]
fn next<K: Kind>(
    t: &mut TcbSide<K>,
    snd: &SndSide<K>,
    port: &TxPort<K>,
    (sh, lane): (&SharedState<K>, usize),
    room: u64,
    now: Time,
) -> Option<SegPlan> {
    let Some(cutting) = port.large else {
        return t.tcb.plan(snd.buf.queued(), now);
    };
    let most = cutting.most(room);
    let plan = t.tcb.plan_large(snd.buf.queued(), most, now)?;
    sh.count(lane, Count::TxLarge, u64::from(plan.segs > 1));
    Some(plan)
}

/// Output where the send buffer has its own lock: it is entered and left for each segment, as
/// is everything else on the way (Willmann et al., Figure 4).
fn output_split<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) -> bool {
    let now = cx.now();
    let txq = a.tcb().meta.txq;
    let port = &cx.sh.tx[usize::from(txq)];
    let mut lease = Lease::new();
    // A bound on one visit: a full ring is emptied at the doorbell, not here.
    for _ in 0..port.share().min(crate::port::TX_RING as u64) {
        let room = port.stage().room();
        if room == 0 {
            return true;
        }
        let (t, mut snd) = a.tcb_snd();
        let planned = next(t, &snd, port, (cx.sh, cx.lane), room as u64, now);
        let Some(plan) = &planned else {
            snd.buf.take_back(lease);
            return false;
        };
        let n = port.descriptors(plan);
        if n == 1 {
            let lent = lend_here(&mut snd, plan, port, &mut cx.pool, &mut lease);
            drop(snd);
            place_here(a, cx, port, plan, lent);
            continue;
        }
        drop(snd);
        for part in (0..n).map(|i| plan.segment(i)) {
            let mut snd = a.tcb_snd().1;
            let lent = lend_here(&mut snd, &part, port, &mut cx.pool, &mut lease);
            drop(snd);
            place_here(a, cx, port, &part, lent);
        }
    }
    true
}

#[inline(always)]
fn lend_here<'a, K: Kind>(
    snd: &mut SndSide<K>,
    plan: &SegPlan,
    port: &TxPort<K>,
    pool: &mut PktPool,
    lease: &'a mut Lease,
) -> Option<Lent<'a>> {
    let (stretch, to) = ((plan.off, plan.len), port.completions());
    (plan.len > 0).then(|| snd.buf.lend_here(stretch, to, pool, lease))
}

/// Places one segment, whose payload is lent, in the transmit queue.
#[inline(always)]
fn place_here<A: Access>(
    a: &mut A,
    cx: &mut Ctx<A::K>,
    port: &TxPort<A::K>,
    plan: &SegPlan,
    lent: Option<Lent<'_>>,
) {
    a.route(cx.sh);
    let mut stage = port.stage();
    let meta = &mut a.tcb().meta;
    let txq = meta.txq;
    let Some(mut d) = stage.push() else {
        // Another connection took the last place meanwhile: lost like a frame in a full interface
        // queue, and repaired by retransmission.
        return cx.count(Count::TxRingFull, 1);
    };
    emit_any(&mut d, meta, plan);
    if let Some(lent) = lent {
        lent.place(&mut d);
    }
    drop(stage);
    emitted(cx, txq, u64::from(plan.segs), u64::from(plan.len));
}

/// Has the payload of a segment lent, if it has any, until it comes to the ring: its number in
/// `lease`.
fn lend<K: Kind>(
    snd: &mut SndSide<K>,
    plan: &SegPlan,
    port: &TxPort<K>,
    cx: &mut Ctx<K>,
    lease: &mut Lease,
) -> Option<u32> {
    let (stretch, to) = ((plan.off, plan.len), port.completions());
    (plan.len > 0).then(|| snd.buf.lend(stretch, to, &mut cx.pool, lease))
}

/// A copy of a segment's payload: it comes to the ring when its pages may have gone.
#[cfg(feature = "testing")]
fn owned(buf: &SndBuf, plan: &SegPlan) -> Option<PktBuf> {
    let mut bytes = vec![0; plan.len as usize];
    let n = buf.copy(plan.off, &mut bytes);
    (n > 0).then(|| PktBuf::copy_of(&bytes[..n]))
}

/// What was kept back by [`Bug::RingFilledLate`] enters its ring now; what finds no room is
/// lost.
#[cfg(feature = "testing")]
pub fn fill_late<K: Kind>(cx: &mut Ctx<K>) {
    let sh = cx.sh;
    for (q, d) in cx.deferred.late.drain(..) {
        sh.p.checkpoint();
        if let Some(mut place) = sh.tx[usize::from(q)].stage().push() {
            *place = d;
        }
    }
}

/// Output where IP has a turn of its own: places in the transmit ring are set aside for the
/// segments, which are collected for [`place`].
fn output_apart<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) -> bool {
    let now = cx.now();
    let txq = a.tcb().meta.txq;
    let port = &cx.sh.tx[usize::from(txq)];
    let share = port.share();
    let room = port.set_aside(share.min(crate::port::TX_RING as u64));
    let (mut placed, mut segs) = (0, 0);
    let mut blocked = false;
    let mut lease = a
        .out()
        .map(|out| core::mem::take(&mut out.lease))
        .unwrap_or_default();
    loop {
        if placed >= room {
            // Perhaps there is nothing more to send; then one look later finds that out.
            blocked = true;
            break;
        }
        let (t, mut snd) = a.tcb_snd();
        let Some(plan) = next(t, &snd, port, (cx.sh, cx.lane), room - placed, now) else {
            break;
        };
        let n = port.descriptors(&plan);
        placed += u64::from(n);
        segs += u64::from(plan.segs);
        if n == 1 {
            let payload = lend(&mut snd, &plan, port, cx, &mut lease);
            drop(snd);
            hand_on(a, plan, payload);
            continue;
        }
        let payloads: SmallVec<[_; 4]> = (0..n)
            .map(|i| port.part(&plan, i))
            .map(|part| (part, lend(&mut snd, &part, port, cx, &mut lease)))
            .collect();
        drop(snd);
        for (part, payload) in payloads {
            hand_on(a, part, payload);
        }
    }
    cx.sh.p.charge(Work::TcpOutput, segs);
    if let Some(out) = a.out() {
        out.lease = lease;
    }
    if port.put_back(room - placed) {
        cx.deferred.ring(txq);
    }
    blocked
}

fn hand_on<A: Access>(a: &mut A, plan: SegPlan, payload: Option<u32>) {
    let ident = identify(a.tcb_meta(), &plan);
    if let Some(out) = a.out() {
        out.segs.push(OutSeg {
            plan,
            payload,
            ident,
        });
    }
}

/// IP's turn: places segments of one connection in its transmit queue, for which room was set
/// aside.
pub fn place<K: Kind>(cx: &mut Ctx<K>, apart: &mut Apart) {
    let Apart {
        out, template, txq, ..
    } = apart;
    let Outgoing { segs, mut lease } = core::mem::take(out);
    let txq = *txq;
    if segs.is_empty() {
        return;
    }
    let port = &cx.sh.tx[usize::from(txq)];
    let (mut placed, mut bytes, mut lost) = (0, 0, 0);
    let n = segs.len() as u64;
    let mut stage = port.stage();
    for s in segs {
        match stage.push() {
            Some(mut d) => {
                placed += u64::from(s.plan.segs);
                bytes += u64::from(s.plan.len);
                describe_any(&mut d, template, s.ident, &s.plan);
                if let Some(n) = s.payload {
                    lease.place(n, &mut d);
                }
            }
            // What needs no room set aside (resets, handshakes) took the last places: lost like
            // a frame in a full interface queue, and repaired by retransmission.
            None => lost += 1,
        }
    }
    // The doorbell is rung for what was placed.
    let _ = port.put_back(n);
    drop(stage);
    if lost > 0 {
        cx.count(Count::TxRingFull, lost);
    }
    cx.sh.p.charge(Work::IpOutput, placed);
    counted(cx, txq, placed, bytes);
}

/// `n` segments were taken out of what was to be placed: their places are free.
pub fn dropped<K: Kind>(cx: &mut Ctx<K>, apart: &Apart, n: usize) {
    if n > 0 && cx.sh.tx[usize::from(apart.txq)].put_back(n as u64) {
        cx.deferred.ring(apart.txq);
    }
}

/// What was to be placed is not.
pub fn discard<K: Kind>(cx: &mut Ctx<K>, apart: &mut Apart) {
    let n = core::mem::take(&mut apart.out).segs.len();
    dropped(cx, apart, n);
}

#[inline(always)]
fn describe(d: &mut TxHead, template: &Template, ident: u16, plan: &SegPlan) {
    d.hdr_len = template.emit(&mut d.hdr, ident, &plan.seg, plan.len) as u8;
    d.offload.csum_start = template.tcp_start() as u8;
    d.offload.csum_offset = 16;
}

/// As [`describe`], for what may be a large segment.
#[inline(always)]
fn describe_any(d: &mut TxHead, template: &Template, ident: u16, plan: &SegPlan) {
    describe(d, template, ident, plan);
    if plan.segs > 1 {
        d.offload.segment_size = plan.size;
    }
}

#[inline(always)]
fn emit<K: Kind>(d: &mut TxHead, meta: &mut Meta<K>, plan: &SegPlan) {
    meta.ident = meta.ident.wrapping_add(1);
    describe(d, &meta.template, meta.ident, plan);
}

/// As [`emit`], for what may be a large segment.
#[inline(always)]
fn emit_any<K: Kind>(d: &mut TxHead, meta: &mut Meta<K>, plan: &SegPlan) {
    let ident = identify(meta, plan);
    describe_any(d, &meta.template, ident, plan);
}

/// The IP identification of a segment; those of a large one count on from there.
#[inline(always)]
fn identify<K: Kind>(meta: &mut Meta<K>, plan: &SegPlan) -> u16 {
    let ident = meta.ident.wrapping_add(1);
    meta.ident = meta.ident.wrapping_add(plan.segs);
    ident
}

fn emitted<K: Kind>(cx: &mut Ctx<K>, txq: u16, segs: u64, bytes: u64) {
    cx.sh.p.charge(Work::TcpOutput, segs);
    counted(cx, txq, segs, bytes);
}

/// As [`emitted`], where TCP's part was charged in its turn.
fn counted<K: Kind>(cx: &mut Ctx<K>, txq: u16, segs: u64, bytes: u64) {
    let lines = &cx.sh.tx[usize::from(txq)].lines;
    cx.sh
        .p
        .touch(lines, Touched::Descriptor, segs as usize, true);
    cx.count(Count::TxSegs, segs);
    cx.count(Count::TxBytes, bytes);
    cx.deferred.ring(txq);
}

/// Makes the header template if routes or neighbours have moved; `false` when the neighbour
/// is not resolved yet. The connection is told when it is.
#[inline(always)]
fn resolve<K: Kind>(t: &mut TcbSide<K>, cx: &mut Ctx<K>) -> bool {
    let generation = cx.sh.net_generation();
    t.meta.net_generation == generation || resolve_anew(t, cx, generation)
}

#[cold]
fn resolve_anew<K: Kind>(t: &mut TcbSide<K>, cx: &mut Ctx<K>, generation: u32) -> bool {
    let meta = &mut t.meta;
    meta.by = meta
        .device
        .or_else(|| cx.sh.only_by(meta.key.local, meta.txq));
    match cx.sh.template(&meta.key, meta.by, Some(meta.id), cx) {
        Some((_, Some(made))) => {
            meta.template = made.template;
            meta.template.set_tos(meta.tos);
            if let Some(ttl) = meta.ttl {
                meta.template.set_ttl(ttl);
            }
            meta.net_generation = generation;
            t.await_hint(made.delayed);
            true
        }
        _ => false,
    }
}

/// Sends a reset for this connection.
pub fn reset<A: Access>(a: &mut A, cx: &mut Ctx<A::K>, rst: Rst) {
    if !resolve(a.tcb(), cx) {
        return;
    }
    a.route(cx.sh);
    let meta = a.tcb_meta();
    let txq = meta.txq;
    let plan = SegPlan::one(rst.seg(), 0, 0);
    if a.out().is_some() {
        // Behind what is on its way, or it would overtake it.
        cx.sh.p.charge(Work::TcpOutput, 1);
        cx.sh.tx[usize::from(txq)].set_aside_one();
        hand_on(a, plan, None);
        return;
    }
    let meta = a.tcb_meta();
    let mut stage = cx.sh.tx[usize::from(txq)].stage();
    let Some(mut d) = stage.push() else {
        return cx.count(Count::TxRingFull, 1);
    };
    emit(&mut d, meta, &plan);
    drop(stage);
    emitted(cx, txq, 1, 0);
}
