//! `squeue:N`: FireEngine, the vertical perimeter.
//!
//! **Background.** The networking stack of Solaris 10 (Packet Event Framework, sections 2 and
//! 4.1): the layers merged into one module, a connection's data in
//! one place, and one serialization queue around all of it.
//!
//! **Binding.** A connection belongs to one squeue from its creation: an outgoing one to that of
//! its opener's core, an accepted one to that of the core which took the SYN, or under `fanout=on`
//! to the next in turn. There is one squeue per core unless N says otherwise; squeue n and its
//! worker are bound to core n. As any core may receive a packet, a classifier that all share
//! (`ipcl`) tells which squeue its flow belongs to.
//!
//! **Processing.** A packet is classified in IP, outside of any perimeter; that takes a reference
//! to its connection, which the squeue drops when it has run. Then whoever brings it enters
//! (`queue`): `process`, the default for input, writes and closes, runs it inline if the squeue
//! is idle and empty, drains what came meanwhile if it is on the squeue's core, and leaves it as a
//! message if the squeue is busy; `entry=nodrain` never drains; `entry=fill` leaves all to the
//! worker. Packets of a burst enter as chains, one for each squeue. Timers run in the squeue,
//! started by a message. Counted is who ran what.
//!
//! **Limits.** Drains are bounded by quanta (`quanta=I/W/K`, ms); what is left is the worker's,
//! which wakes at once or after `delay=D` ms. No perimeter is entered within another: what one
//! squeue has for another is left there as a message. The same thread runs a message for another
//! connection within one only by re-entry, once at a time: when a handshake that the listener's
//! squeue completes makes a connection of the same squeue.
//!
//! **Soft rings.** Under `fanout=on` an inbound thread hands packets to worker threads by the
//! flow's hash, one ring for each core, and those run IP and enter the squeues; the order is kept
//! in each ring.
//!
//! **Baseline.** What PEF replaced had STREAM-head read queues and no header prediction
//! (`head=streams:prediction=off`; Packet Event Framework, section 3.3): a message for each put,
//! and a round of the queue's lock for each of `canputnext`, `putnext` and `getq`.
//!
//! **Inferences.** The papers name the squeue and what it is for; the rules above are
//! what illumos does with it. Beyond those: (1) The SYN cache is part of the listener's squeue, which
//! is that of the thread which listened; the handshake remembers the core that took the SYN, and
//! the new connection is left to that core's squeue as a message. Packets that come meanwhile find
//! the flow in the classifier and line up there, behind those which still come by way of the
//! listener's squeue. Each squeue has its share of the stack's SYN cache; a SYN whose bucket is full
//! is answered by a cookie, and then the connection goes to the core that took the
//! acknowledgment. (2) The receive buffer is the
//! STREAM head's read queue: behind a lock of its own (`rcvbuf`), so that a read enters the squeue
//! only for a window update, as a message. (3) A write takes its room in the send buffer from an
//! account beside it and is answered before it enters, so that "enqueue and leave" holds for
//! writers; that it fails later is told by the next call. (4) Calls which need an answer from TCP
//! wait for it where the squeue is busy; after `PATIENCE` (`answer.rs`) the caller looks whether nobody is at
//! the queue and works it off, so that no call hangs on a worker that has ended. (5) Timers enter
//! as packets do, by the thread that finds them due. (6) A thread that is not pinned counts as on
//! the core where it is when asked. (7) Packets of one flow that follow each other in a burst are classified
//! once, with a reference for each.

mod burst;
pub(crate) mod cell;
pub(crate) mod collecting;
pub(crate) mod counted;
pub(crate) mod ipcl;
mod org;
pub(crate) mod promised;
pub(crate) mod queue;
pub(crate) mod rings;
mod spec;

use crate::Kd;
use crate::answer::question;
use crate::due::DueLine;
use crate::open::{Options, Visit};
use crate::spec::{Family, OrgSpec};
use burst::{Chain, Run, To, rejoin};
use cell::{Manner, OuterTable, Parted};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use ipcl::{Flow, Ipcl};
use perimeter_base::Time;
use perimeter_stack::shard::Shard;
use perimeter_stack::{BURST, Ctx, Listener, Seg, SharedState, SockId};
use perimeter_sync::{PerLane, Platform, Work};
use perimeter_tcp::syncache::Established;
use perimeter_wire::{FlowKey, Seq, TcpFlags};
use promised::Promised;
pub use queue::SqueueEntry;
use queue::{Door, Entered, Inside, Proc, Protected, Settings, Squeue, Who};
use rings::Ring;
use smallvec::SmallVec;
pub use spec::Squeue as Spec;
use std::collections::HashMap;
use std::sync::Arc;

/// The families of this module.
pub(crate) const FAMILIES: &[&Family] = &[&spec::FAMILY];

/// Which type each of them is.
pub(crate) fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
    visitor.visit::<FireEngine<P>>(p, o)
}

/// What an squeue protects: the connections that belong to it.
pub(crate) struct Vertical<P: Platform> {
    pub(crate) shard: Shard<Kd<P>, Parted<P>>,
    index: u16,
    /// Packets of flows whose connection is being made here, or whose earlier packets are still
    /// on their way from the listener's squeue.
    early: HashMap<FlowKey, Vec<Seg>>,
}

impl<P: Platform> Protected for Vertical<P> {
    type Message = Msg<P>;
}

/// The inside of an squeue, for who holds PROC.
type In<P> = Inside<Vertical<P>>;

/// A call that the holder of PROC makes.
type Call<P> = Box<dyn FnOnce(&FireEngine<P>, &mut Ctx<Kd<P>>, &mut In<P>) + Send>;

/// Work left for whoever drains the squeue.
pub(crate) enum Msg<P: Platform> {
    /// A classified packet.
    Packet(Box<(To, Seg)>),
    /// A handshake is complete.
    Accept(Box<Accept<P>>),
    /// In the listener's squeue: what came before this of a flow that belongs to that squeue now
    /// has been passed on.
    Passed(Box<FlowKey>, u16),
    /// In the connection's: the same.
    CaughtUp(Box<FlowKey>),
    /// A socket call, or what else is to be done.
    Call(Call<P>),
    /// Timers are due.
    Timers,
}

/// A connection to be made.
pub(crate) struct Accept<P: Platform> {
    listener: Arc<Listener<Kd<P>>>,
    handshake: Established,
    /// The packet that completed the handshake.
    seg: Seg,
}

/// All squeues with what belongs to them.
pub struct FireEngine<P: Platform> {
    p: P,
    entry: SqueueEntry,
    fanout: bool,
    squeues: Box<[Squeue<P, Vertical<P>>]>,
    due: Box<[DueLine]>,
    outer: Box<[Arc<OuterTable<P>>]>,
    ipcl: Arc<Ipcl<P>>,
    /// Flows that listeners' squeues have handed to others. Raised after a flow is entered, so
    /// that who classified a packet before knows that it may have missed it.
    handed: AtomicU64,
    /// Whose turn it is to get an accepted connection.
    turn: AtomicUsize,
    /// Soft rings; none unless packets are fanned out.
    rings: Box<[Ring<P>]>,
    /// Messages, to be used again: one core makes them, and another one's squeue runs them.
    packets: PerLane<P, (To, Seg)>,
}

impl<P: Platform> FireEngine<P> {
    fn make(spec: &OrgSpec, sh: &SharedState<Kd<P>>) -> FireEngine<P> {
        let spec: Spec = *spec.expect_params();
        let cores = sh.p.cores().max(1);
        let n = spec.squeues.map_or(cores, usize::from);
        let ipcl = Arc::new(Ipcl::new(&sh.p, sh.secret));
        let settings = Settings {
            quanta: spec.quanta.map(|ms| u64::from(ms) * 1_000_000),
            delay: u64::from(spec.delay) * 1_000_000,
        };
        let manner = Manner {
            messages: spec.streams_head,
            prediction: spec.prediction,
        };
        let outer: Box<[_]> = (0..n)
            .map(|_| Arc::new(OuterTable::new(&sh.p, Some(ipcl.clone()), manner)))
            .collect();
        let squeue = |(i, outer_table): (usize, &Arc<OuterTable<P>>)| {
            let vertical = Vertical {
                shard: Shard::with_outside((i as u16, n), sh, outer_table.clone()),
                index: i as u16,
                early: HashMap::new(),
            };
            Squeue::new(&sh.p, i, settings, vertical)
        };
        let rings = if spec.fanout { cores } else { 0 };
        FireEngine {
            squeues: outer.iter().enumerate().map(squeue).collect(),
            due: (0..n).map(|_| DueLine::default()).collect(),
            outer,
            ipcl,
            entry: spec.entry,
            fanout: spec.fanout,
            handed: AtomicU64::new(0),
            turn: AtomicUsize::new(0),
            rings: (0..rings).map(|_| Ring::new(&sh.p)).collect(),
            packets: PerLane::new(sh.p.clone()),
            p: sh.p.clone(),
        }
    }

    /// The squeue of the core that the calling thread is on.
    fn here(&self) -> u16 {
        (self.p.core() % self.squeues.len()) as u16
    }

    /// The squeue that a connection is to belong to whose SYN arrives now.
    fn newcomer(&self) -> u16 {
        if self.fanout {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            return (turn % self.squeues.len()) as u16;
        }
        self.here()
    }

    /// So many messages for a connection are on their way.
    #[inline]
    fn hold(&self, id: SockId, refs: u32) {
        if let Some(place) = self.place(id) {
            place.hold(refs);
        }
    }

    /// Drops references of messages that were run.
    #[inline]
    fn release(&self, id: SockId, refs: u32) {
        if let Some(place) = self.place(id) {
            place.release(refs);
        }
    }

    /// Whether PROC may be given back: what others read without it is made true first.
    #[inline]
    fn refresh(&self, inside: &In<P>) {
        self.due[usize::from(inside.index)].publish(&self.p, inside.shard.next_timer());
    }

    /// Gives PROC back, after draining what there is to drain.
    #[inline]
    fn leave(&self, cx: &mut Ctx<Kd<P>>, proc: Proc<'_, P, Vertical<P>>, who: Who) {
        self.refresh(&proc);
        proc.leave(who, |inside, m| {
            self.run(cx, inside, m, counted::DRAINED);
        });
    }

    /// Runs one message that was left.
    fn run(&self, cx: &mut Ctx<Kd<P>>, inside: &mut In<P>, m: Msg<P>, ran: usize) {
        cx.forget_now();
        cx.count_own(ran, 1);
        match m {
            Msg::Packet(mut packet) => {
                let (to, seg) = &mut *packet;
                self.arrive(cx, inside, *to, seg);
                if let To::Conn(id) = *to {
                    self.release(id, 1);
                }
                seg.release(&mut cx.pool);
                self.packets.put(packet);
            }
            Msg::Accept(mut accept) => {
                let Accept {
                    listener,
                    handshake,
                    seg,
                } = &mut *accept;
                let key = seg.frame.key;
                inside.early.entry(key).or_default();
                self.establish(cx, inside, listener.clone(), handshake, seg);
            }
            Msg::Passed(key, n) => self.pass_on(n, Msg::CaughtUp(key)),
            Msg::CaughtUp(key) => self.caught_up(cx, inside, &key),
            Msg::Call(call) => call(self, cx, inside),
            Msg::Timers => {
                inside.shard.on_timers(cx);
                // The inbound thread has left them to this one, and knows of none meanwhile.
                cx.deferred.armed = cx.deferred.armed.min(inside.shard.next_timer());
            }
        }
        self.refresh(inside);
    }

    /// Enters an squeue to do `f`, and gives what that gives. `None`: its turn has yet to come, and
    /// the message is left that `later` makes of it.
    #[inline]
    fn bring<R, F: FnOnce(&Self, &mut Ctx<Kd<P>>, &mut In<P>) -> R>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        (squeue, who): (&Squeue<P, Vertical<P>>, Who),
        f: F,
        later: impl FnOnce(F) -> Msg<P>,
    ) -> Option<R> {
        match squeue.enter(self.entry) {
            Entered::In(mut proc) => {
                let out = f(self, cx, &mut proc);
                cx.count_own(counted::INLINE, 1);
                self.leave(cx, proc, who);
                Some(out)
            }
            Entered::Busy(door) => {
                if let Some(proc) = door.put(later(f)) {
                    self.leave(cx, proc, who);
                }
                None
            }
        }
    }

    /// Enters squeue `n` to do `f`: at once, or when its turn comes. Nobody waits for it.
    fn tell(
        &self,
        cx: &mut Ctx<Kd<P>>,
        n: u16,
        f: impl FnOnce(&Self, &mut Ctx<Kd<P>>, &mut In<P>) + Send + 'static,
    ) {
        let at = (&self.squeues[usize::from(n)], Who::Writer);
        self.bring(cx, at, f, |f| Msg::Call(Box::new(f)));
    }

    /// As [`FireEngine::tell`], and waits for the answer. `None`: whoever ran it was stopped by
    /// a panic.
    fn ask<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        n: u16,
        f: impl FnOnce(&Self, &mut Ctx<Kd<P>>, &mut In<P>) -> R + Send + 'static,
    ) -> Option<R> {
        let squeue = &self.squeues[usize::from(n)];
        let mut asked = None;
        let out = self.bring(cx, (squeue, Who::Writer), f, |f| {
            let (pending, answer) = question(&self.p);
            asked = Some(pending);
            Msg::Call(Box::new(|org, cx, inside| answer.give(f(org, cx, inside))))
        });
        let Some(pending) = asked else { return out };
        pending.wait(cx, |cx| {
            squeue.work(Who::Writer, |inside, m| {
                self.run(cx, inside, m, counted::DRAINED);
            });
        })
    }

    /// Leaves a message for another squeue than the one that is held: its worker, or whoever is
    /// there, runs it.
    fn pass_on(&self, n: u16, m: Msg<P>) {
        if let Entered::Busy(door) = self.squeues[usize::from(n)].enter(SqueueEntry::Fill) {
            let none = door.put(m);
            debug_assert!(none.is_none(), "`fill` does not process");
        }
    }

    /// Where `packets` packets belong, of which this is the first. `None`: nobody wants them.
    #[inline]
    fn classify(&self, sh: &SharedState<Kd<P>>, seg: &Seg, packets: u32) -> Option<(u16, To)> {
        sh.p.charge(Work::Lookup, 1);
        let key = &seg.frame.key;
        match self.ipcl.find(key, |id| self.hold(id, packets)) {
            Some(Flow {
                squeue,
                id: Some(id),
            }) => Some((squeue, To::Conn(id))),
            Some(Flow { squeue, id: None }) => Some((squeue, To::Soon)),
            None => {
                let l = self.ipcl.listener(key, Some(seg.iface))?;
                Some((l, To::Listener(self.newcomer(), None)))
            }
        }
    }

    /// IP input: classifies packets and brings them to their squeues, those for one together.
    fn input(&self, cx: &mut Ctx<Kd<P>>, segs: &mut [Seg]) {
        let mut runs: SmallVec<[Run; BURST]> = SmallVec::new();
        let handed = self.handed.load(Ordering::Acquire);
        let mut start = 0;
        while let Some((first, rest)) = segs[start..].split_first() {
            let of_flow = |s: &&Seg| s.hash == first.hash && s.frame.key == first.frame.key;
            let end = start + 1 + rest.iter().take_while(of_flow).count();
            let to = self.classify(cx.sh, first, (end - start) as u32);
            if to.is_none() {
                for seg in &segs[start..end] {
                    cx.sh.refuse(cx, seg);
                }
            }
            runs.push(Run { start, end, to });
            start = end;
        }
        rejoin(&mut runs, segs);
        for next in 0..runs.len() {
            let Some((n, _)) = runs[next].to else {
                continue;
            };
            let chain = Chain {
                n,
                runs: &mut runs[next..],
                segs: &mut *segs,
            };
            match self.squeues[usize::from(n)].enter(self.entry) {
                Entered::In(proc) => self.run_chain(cx, proc, chain),
                Entered::Busy(door) => self.leave_chain(cx, door, chain, handed),
            }
        }
    }

    /// The squeue was idle: the thread runs its packets.
    fn run_chain(
        &self,
        cx: &mut Ctx<Kd<P>>,
        mut proc: Proc<'_, P, Vertical<P>>,
        mut chain: Chain<'_>,
    ) {
        let mut ran = 0;
        chain.each(|to, segs| {
            let conn = matches!(to, To::Conn(_));
            let last = segs.len() - 1;
            for (i, seg) in segs.iter_mut().enumerate() {
                cx.more = conn && i < last;
                self.arrive(cx, &mut proc, to, seg);
            }
            if let To::Conn(id) = to {
                self.release(id, segs.len() as u32);
            }
            ran += segs.len() as u64;
        });
        cx.count_own(counted::INLINE, ran);
        self.leave(cx, proc, Who::Inbound);
    }

    /// The squeue is busy: the thread leaves its packets there. Those without a connection, which
    /// were classified before a flow was handed over, may have missed it and are classified anew.
    fn leave_chain(
        &self,
        cx: &mut Ctx<Kd<P>>,
        mut door: Door<'_, P, Vertical<P>>,
        mut chain: Chain<'_>,
        handed: u64,
    ) {
        let mut again = Vec::new();
        let moved = self.handed.load(Ordering::Acquire) != handed;
        chain.each(|to, segs| {
            for seg in segs {
                if moved && matches!(to, To::Listener(..)) {
                    again.push(core::mem::take(seg));
                } else {
                    door.push(self.packet(to, seg));
                }
            }
        });
        if let Some(proc) = door.close() {
            self.leave(cx, proc, Who::Inbound);
        }
        if !again.is_empty() {
            self.input(cx, &mut again);
        }
    }

    /// The message that leaves a packet at an squeue.
    #[inline]
    fn packet(&self, to: To, seg: &mut Seg) -> Msg<P> {
        let packet = (to, core::mem::take(seg));
        Msg::Packet(match self.packets.take() {
            Some(mut used) => {
                // The vector that leaves with this segment is replaced by the used message's.
                seg.rest = core::mem::take(&mut used.1.rest);
                seg.rest.clear();
                *used = packet;
                used
            }
            None => Box::new(packet),
        })
    }

    /// A packet has arrived in the squeue that it was classified to.
    #[inline]
    fn arrive(&self, cx: &mut Ctx<Kd<P>>, inside: &mut In<P>, to: To, seg: &mut Seg) {
        if seg.frame.hdr.flags.contains(TcpFlags::SYN) && !matches!(to, To::Listener(..)) {
            // A SYN takes a flow over from TIME-WAIT where somebody listens, in whichever squeue.
            let listener = self.ipcl.listener(&seg.frame.key, Some(seg.iface));
            inside.shard.listened_elsewhere(listener.is_some());
        }
        let missed = match to {
            To::Conn(id) => inside.shard.input_for(cx, id, seg),
            To::Soon if self.is_early(inside, &seg.frame.key) => {
                let early = inside.early.entry(seg.frame.key).or_default();
                return early.push(core::mem::take(seg));
            }
            To::Soon | To::Before => match inside.shard.lookup(&seg.frame.key) {
                Some(id) => inside.shard.input_for(cx, id, seg),
                None => Err(None),
            },
            To::Listener(newcomer, iss) => {
                return self.passive(cx, inside, (newcomer, iss), seg);
            }
        };
        if let Err(iss) = missed {
            self.stray(cx, inside, iss, seg);
        }
    }

    /// Whether packets of that flow wait for earlier ones, or for their connection.
    fn is_early(&self, inside: &In<P>, key: &FlowKey) -> bool {
        let here = Flow {
            squeue: inside.index,
            id: None,
        };
        inside.early.contains_key(key)
            || inside.shard.lookup(key).is_none() && self.ipcl.find(key, |_| ()) == Some(here)
    }

    /// A flow's connection is made and has seen all that came before the packets which wait:
    /// those are run, and from here on packets are classified to the connection.
    fn caught_up(&self, cx: &mut Ctx<Kd<P>>, inside: &mut In<P>, key: &FlowKey) {
        for mut seg in inside.early.remove(key).unwrap_or_default() {
            self.arrive(cx, inside, To::Before, &mut seg);
        }
        if let Some(id) = inside.shard.lookup(key) {
            self.ipcl.complete(key, id);
        }
    }

    /// The connection has gone since: the packet is for a listener, or nobody.
    #[cold]
    fn stray(&self, cx: &mut Ctx<Kd<P>>, inside: &mut In<P>, iss: Option<Seq>, seg: &mut Seg) {
        let Some(n) = self.ipcl.listener(&seg.frame.key, Some(seg.iface)) else {
            return cx.sh.refuse(cx, seg);
        };
        let to = (self.newcomer(), iss);
        if n == inside.index {
            return self.passive(cx, inside, to, seg);
        }
        let to = To::Listener(to.0, to.1);
        self.pass_on(n, self.packet(to, seg));
    }

    /// A packet without a connection has arrived in the squeue of a listener. Its flow may have
    /// been set up since it was classified.
    #[cold]
    fn passive(
        &self,
        cx: &mut Ctx<Kd<P>>,
        inside: &mut In<P>,
        (newcomer, iss): (u16, Option<Seq>),
        seg: &mut Seg,
    ) {
        if let Some(flow) = self.ipcl.find(&seg.frame.key, |_| ()) {
            if flow.squeue != inside.index {
                return self.pass_on(flow.squeue, self.packet(To::Before, seg));
            }
            if let Some(id) = inside.shard.lookup(&seg.frame.key) {
                match inside.shard.input_for(cx, id, seg) {
                    Ok(()) => return,
                    Err(iss) => return self.handshake(cx, inside, (newcomer, iss), seg),
                }
            }
        }
        self.handshake(cx, inside, (newcomer, iss), seg);
    }

    fn handshake(
        &self,
        cx: &mut Ctx<Kd<P>>,
        inside: &mut In<P>,
        (newcomer, iss): (u16, Option<Seq>),
        seg: &mut Seg,
    ) {
        let passive = inside.shard.passive();
        let Some((l, e)) = passive.segment_from(cx, seg, iss, newcomer) else {
            return;
        };
        let n = (usize::from(e.origin) % self.squeues.len()) as u16;
        // From here on the flow's packets go to the connection's squeue.
        if !self.ipcl.insert(seg.frame.key, n) {
            return cx.sh.refuse(cx, seg);
        }
        if n == inside.index {
            let again = inside.reenter(|inside| {
                cx.count_own(counted::REENTERED, 1);
                let key = seg.frame.key;
                self.establish(cx, inside, l.clone(), &e, seg);
                self.caught_up(cx, inside, &key);
            });
            if again.is_some() {
                return;
            }
        }
        let key = seg.frame.key;
        let accept = Accept {
            listener: l,
            handshake: e,
            seg: core::mem::take(seg),
        };
        self.handed.fetch_add(1, Ordering::AcqRel);
        self.pass_on(n, Msg::Accept(Box::new(accept)));
        // Packets of this flow may wait here, classified before the flow was entered. This goes
        // behind them.
        self.pass_on(inside.index, Msg::Passed(Box::new(key), n));
    }

    /// Makes the connection of a completed handshake in its squeue.
    fn establish(
        &self,
        cx: &mut Ctx<Kd<P>>,
        inside: &mut In<P>,
        l: Arc<Listener<Kd<P>>>,
        e: &Established,
        seg: &mut Seg,
    ) {
        let key = seg.frame.key;
        if inside.shard.establish(cx, l, e, seg).is_none() {
            self.ipcl.remove(&key, inside.index, None);
        }
    }

    /// Runs `f` in every squeue, one after another, whatever waits there.
    fn each(&self, mut f: impl FnMut(&mut In<P>)) {
        for squeue in &self.squeues {
            let mut proc = squeue.seize();
            f(&mut proc);
            self.refresh(&proc);
        }
    }

    /// When something is due, by the squeues' own account.
    fn next_due(&self) -> Time {
        let due = self.due.iter().map(|due| due.at());
        due.min().unwrap_or(Time::NEVER)
    }
}
