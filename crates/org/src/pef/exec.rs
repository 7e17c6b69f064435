//! The executor (section 3.2.4): runs the events of a packet's list in order, each under its
//! perimeter.
//!
//! A perimeter is never entered from within another. The packet is left as a message with the
//! next perimeter, *inside* the present one, so that packets of a connection are left in their
//! order; and the thread turns to the perimeters where it has left messages once it has released
//! the present one, if they are its core's. Otherwise their workers do.

use super::cell::Defaults;
use super::classify::Route;
use super::event::{Direction, Layer, Packet, Peek, Verdict};
use super::framework::{Body, Env, Inner, Msg, Pef, Pkt};
use super::link::{Version, Way};
use super::list::{Callback, Event, caught};
use crate::outer::Doors;
use crate::squeue::queue::{Entered, Inside, Proc, SqueueEntry, Who};
use core::sync::atomic::Ordering;
use perimeter_base::Time;
use perimeter_stack::conn::{over, told};
use perimeter_stack::segment::{Apart, Up};
use perimeter_stack::shard::Met;
use perimeter_stack::{Access, Cell, Count, Seg, SockId, glue, output, ready};
use perimeter_sync::{Lock, Platform};
use perimeter_tcp::{Events, Info, Input, Tcb};
use perimeter_wire::{FlowKey, TcpHdr};
use std::sync::Arc;

/// A connection's TCP state, for events under its perimeter.
#[derive(Debug)]
struct Looking<'a>(&'a Tcb, Time);

impl Peek for Looking<'_> {
    fn info(&self) -> Info {
        self.0.info(self.1)
    }
}

impl<P: Platform> Pef<P> {
    /// Whether this thread may run squeue `q`: any thread may where all layers of a connection
    /// share one; where they are spread, each squeue runs on its own core, as long as the
    /// workers are there.
    fn may_run(&self, env: &Env<'_, P>, q: u16) -> bool {
        !self.spread
            || env.cx.sh.p.core() == self.squeues[usize::from(q)].core()
            || self.stopped.load(Ordering::Relaxed)
    }

    /// Enters squeue `q` to run `f` there if it is idle and this thread may; else gives the door
    /// to leave a message at.
    pub(super) fn enter(&self, env: &Env<'_, P>, q: u16) -> Entered<'_, P, Inner<P>> {
        let entry = if self.may_run(env, q) {
            SqueueEntry::Process
        } else {
            SqueueEntry::Fill
        };
        self.squeues[usize::from(q)].enter(entry)
    }

    /// Brings a message to squeue `q`, from outside any perimeter.
    pub(super) fn bring(&self, env: &mut Env<'_, P>, q: u16, msg: Msg<P>) {
        match self.enter(env, q) {
            Entered::In(mut proc) => {
                env.cx.count(Count::SqueueInline, 1);
                self.message(env, q, &mut proc, msg);
                self.release(env, q, proc);
            }
            Entered::Busy(door) => {
                if let Some(proc) = door.put(msg) {
                    self.release(env, q, proc);
                }
            }
        }
    }

    /// Releases squeue `q`, after what came meanwhile.
    pub(super) fn release(&self, env: &mut Env<'_, P>, q: u16, proc: Proc<'_, P, Inner<P>>) {
        let who = env.who;
        let n = proc.leave(who, |inside, msg| self.message(env, q, inside, msg));
        if n > 0 {
            env.cx.count(Count::SqueueDrained, n as u64);
        }
    }

    /// Works off what waits at squeue `q`, if nobody else is at it.
    pub(super) fn work_off(&self, env: &mut Env<'_, P>, q: u16) -> usize {
        let who = env.who;
        let squeue = &self.squeues[usize::from(q)];
        let n = squeue.work(who, |inside, msg| self.message(env, q, inside, msg));
        let count = match who {
            Who::Worker => Count::SqueueWorker,
            Who::Inbound | Who::Writer => Count::SqueueDrained,
        };
        if n > 0 {
            env.cx.count(count, n as u64);
        }
        n
    }

    /// No perimeter is held any more: turns to those where messages were left, and to packets
    /// whose next event runs outside any.
    pub(super) fn finish(&self, env: &mut Env<'_, P>) {
        loop {
            if let Some(q) = env.visits.pop() {
                self.work_off(env, q);
            } else if let Some(pkt) = env.outside.pop_front() {
                self.go(env, None, pkt);
            } else {
                break;
            }
        }
    }

    /// Leaves a message at squeue `q` from within another, or from outside any. The thread sees
    /// to it after release, or the worker is told.
    pub(super) fn post(&self, env: &mut Env<'_, P>, q: u16, msg: Msg<P>) {
        let squeue = &self.squeues[usize::from(q)];
        if self.may_run(env, q) {
            squeue.push(msg);
            if !env.visits.contains(&q) {
                env.visits.push(q);
            }
        } else if let Entered::Busy(door) = squeue.enter(SqueueEntry::Fill) {
            let _ = door.put(msg);
        }
    }

    /// A message has its turn.
    fn message(&self, env: &mut Env<'_, P>, q: u16, inside: &mut Inside<Inner<P>>, msg: Msg<P>) {
        match msg {
            Msg::Packet(pkt) => self.go(env, Some((q, inside)), pkt),
            Msg::NoSocket(mut seg, iss) => inside.shard.no_socket(&mut env.cx, &mut seg, iss),
            Msg::Job(f) => f(self, env, q, inside),
        }
        self.after(env, q, inside);
    }

    /// After anything that ran under squeue `q`: what TCP has left for other layers goes on its
    /// way, and timers are noted.
    #[inline]
    pub(super) fn after(&self, env: &mut Env<'_, P>, q: u16, inner: &mut Inner<P>) {
        if !env.cx.apart.is_empty() {
            self.hand_on(env, q, inner);
        }
        let due = inner.shard.next_timer();
        // Also where nothing was armed: the inbound thread has left the timers to this one, and
        // knows of none meanwhile.
        if self.due[usize::from(q)].publish(&env.cx.sh.p, due) {
            env.cx.deferred.armed = env.cx.deferred.armed.min(due);
        }
    }

    /// What TCP has left by itself (after timers, calls) goes on its way.
    fn hand_on(&self, env: &mut Env<'_, P>, q: u16, inner: &mut Inner<P>) {
        for mut a in core::mem::take(&mut env.cx.apart) {
            let version = self.version_of(inner, a.id);
            let up = core::mem::take(&mut a.up);
            let (id, key) = (a.id, a.key);
            self.start_chain(env, (q, &mut *inner), &version, a);
            if !up.is_empty() {
                let body = Body::Up(key, None, up);
                self.start_up(env, (q, inner), &version, id, body);
            }
        }
    }

    /// By which version TCP hands on. A connection that is over already hands on its last words
    /// by that which it started with.
    fn version_of(&self, inner: &Inner<P>, id: SockId) -> Version {
        match inner.shard.peek(id) {
            Some(m) => m.version().clone(),
            None => self.first_version(id),
        }
    }

    fn start_chain(
        &self,
        env: &mut Env<'_, P>,
        at: (u16, &mut Inner<P>),
        version: &Version,
        a: Apart,
    ) {
        if a.out.segs.is_empty() {
            return;
        }
        let id = a.id;
        let body = Body::Chain(Box::new(a));
        let mut pkt = self.packet(id, version, Direction::Transmit, Way::On, body);
        pkt.next = version.transmit.after_tcp();
        self.go(env, Some(at), pkt);
    }

    /// A packet at the beginning of its list.
    pub(super) fn packet(
        &self,
        id: SockId,
        version: &Version,
        direction: Direction,
        way: Way,
        body: Body<P>,
    ) -> Pkt<P> {
        let list = match direction {
            Direction::Receive | Direction::Unbound => &version.receive,
            Direction::Transmit => &version.transmit,
        };
        Pkt {
            id,
            list: list.clone(),
            direction,
            next: 0,
            bind: version.bind,
            counted: None,
            way,
            turns: 0,
            offsets: [0; 4],
            iss: None,
            input: None,
            body,
        }
    }

    /// Runs a packet's events until it is finished or has another perimeter before it.
    pub(super) fn go(
        &self,
        env: &mut Env<'_, P>,
        mut at: Option<(u16, &mut Inner<P>)>,
        mut pkt: Pkt<P>,
    ) {
        let list = pkt.list.clone();
        let here = at.as_ref().map(|(q, _)| *q);
        while let Some(event) = list.at(pkt.next) {
            let under = pkt.bind.under(event.layer, event.under);
            if under != here {
                return self.hand_over(env, under, pkt);
            }
            pkt.next += 1;
            // A tombstone is passed by; but where it stood the packet went to, so that it does
            // not overtake those that went before.
            if event.is_off() {
                continue;
            }
            let inner = at.as_mut().map(|(q, inner)| (*q, &mut **inner));
            let verdict = match &event.callback {
                Callback::Own => self.own(env, inner, event, &mut pkt),
                Callback::Predict | Callback::Full => match inner {
                    Some((_, inner)) => self.tcp_part(env, inner, event, &mut pkt),
                    None => Verdict::Done,
                },
                Callback::Output => match inner {
                    Some(at) => self.tcp_in(env, at, &mut pkt),
                    None => Verdict::Done,
                },
                Callback::Foreign(_) => self.foreign(env, inner, event, &mut pkt),
            };
            match verdict {
                Verdict::Next => {}
                Verdict::Done => break,
                Verdict::Reclassify if pkt.direction == Direction::Receive => {
                    return self.reclassify(env, at, pkt);
                }
                Verdict::Reclassify => {}
            }
        }
        self.end(env, pkt);
    }

    /// The packet goes on under another perimeter.
    fn hand_over(&self, env: &mut Env<'_, P>, under: Option<u16>, mut pkt: Pkt<P>) {
        if pkt.direction != Direction::Unbound {
            self.departed(&mut pkt);
        }
        match under {
            Some(q) => self.post(env, q, Msg::Packet(pkt)),
            None => env.outside.push_back(pkt),
        }
    }

    /// A packet begins outside any perimeter, and its first event runs under `under`.
    pub(super) fn set_out(&self, env: &mut Env<'_, P>, under: Option<u16>, mut pkt: Pkt<P>) {
        match under {
            Some(q) => {
                self.departed(&mut pkt);
                self.bring(env, q, Msg::Packet(pkt));
            }
            None => self.go(env, None, pkt),
        }
    }

    /// About to be left somewhere, a packet is under way.
    fn departed(&self, pkt: &mut Pkt<P>) {
        if pkt.counted.is_none()
            && let Some(link) = self.tables(pkt.id).links.get(pkt.id.slot())
        {
            link.departed(pkt.way);
            pkt.counted = Some(pkt.way);
        }
    }

    /// No longer under way: what comes behind may take over a newer version.
    pub(super) fn arrived(&self, pkt: &mut Pkt<P>) {
        if let Some(way) = pkt.counted.take()
            && let Some(link) = self.tables(pkt.id).links.get(pkt.id.slot())
        {
            link.arrived(way);
        }
    }

    /// The packet is finished: who owns it lets go of it.
    pub(super) fn end(&self, env: &mut Env<'_, P>, mut pkt: Pkt<P>) {
        self.arrived(&mut pkt);
        match pkt.body {
            Body::Seg(seg) => env.cx.pool.put(seg.payload),
            Body::Frame(_, b) => env.cx.pool.put(b),
            Body::Up(_, _, up) => {
                for b in up.data {
                    env.cx.pool.put(b);
                }
            }
            Body::Chain(mut apart) => output::discard(&mut env.cx, &mut apart),
            Body::Call(call) => call.dropped(self, env),
            Body::Nothing => {}
        }
    }

    /// A layer's own processing.
    fn own(
        &self,
        env: &mut Env<'_, P>,
        at: Option<(u16, &mut Inner<P>)>,
        event: &Event,
        pkt: &mut Pkt<P>,
    ) -> Verdict {
        match (pkt.direction, event.layer, at) {
            // Addresses, lengths and checksums were looked at before the packet was classified.
            (Direction::Receive, Layer::Ip, _) => Verdict::Next,
            (Direction::Receive, Layer::Tcp, Some(at)) => self.tcp_in(env, at, pkt),
            (Direction::Receive, Layer::Sockfs, _) => {
                self.sock_in(env, pkt);
                Verdict::Next
            }
            // The socket layer's part was done in the user's context, which made the packet.
            (Direction::Transmit, Layer::Sockfs, _) => Verdict::Next,
            (Direction::Transmit, Layer::Tcp, Some((_, inner))) => {
                self.arrived(pkt);
                match core::mem::replace(&mut pkt.body, Body::Nothing) {
                    Body::Call(call) => call.run(self, env, inner),
                    other => pkt.body = other,
                }
                Verdict::Done
            }
            (Direction::Transmit, Layer::Ip, _) => {
                if let Body::Chain(apart) = &mut pkt.body {
                    output::place(&mut env.cx, apart);
                }
                Verdict::Next
            }
            (_, Layer::Tcp, None) | (Direction::Unbound, ..) => Verdict::Done,
        }
    }

    /// TCP's turn on the receive list.
    fn tcp_in(
        &self,
        env: &mut Env<'_, P>,
        (q, inner): (u16, &mut Inner<P>),
        pkt: &mut Pkt<P>,
    ) -> Verdict {
        let Body::Seg(seg) = &mut pkt.body else {
            return Verdict::Next;
        };
        if pkt.id.shard() != q {
            // Never: TCP's squeue is the one that the connection was made under.
            return Verdict::Done;
        }
        let mut input = pkt.input.take();
        let met = inner
            .shard
            .meet(&mut env.cx, pkt.id, seg, |m, cx, seg| match &mut input {
                Some(input) => glue::taken(m, cx, input),
                None => glue::input(m, cx, seg),
            });
        match met {
            Met::Taken => {}
            Met::Gone => return Verdict::Reclassify,
            Met::Reused(iss) => {
                pkt.iss = Some(iss);
                return Verdict::Reclassify;
            }
        }
        let (key, hdr) = (seg.frame.key, seg.frame.hdr);
        let mut up = Up::default();
        for mut a in core::mem::take(&mut env.cx.apart) {
            if a.id == pkt.id {
                up = core::mem::take(&mut a.up);
            }
            let version = self.version_of(inner, a.id);
            self.start_chain(env, (q, &mut *inner), &version, a);
        }
        self.arrived(pkt);
        pkt.body = Body::Nothing;
        if up.is_empty() {
            return Verdict::Done;
        }
        let body = Body::Up(key, Some(hdr), up);
        let version = self.version_of(inner, pkt.id);
        if Arc::ptr_eq(&version.receive, &pkt.list) && version.bind == pkt.bind {
            (pkt.way, pkt.body) = (Way::On, body);
            return Verdict::Next;
        }
        // On the rest of the list that the segment came by, its data could overtake what went up
        // by another one: the way to the socket takes over a version when that can't be.
        self.start_up(env, (q, inner), &version, pkt.id, body);
        Verdict::Done
    }

    /// What TCP hands to the socket layer starts behind TCP on the receive list.
    fn start_up(
        &self,
        env: &mut Env<'_, P>,
        at: (u16, &mut Inner<P>),
        version: &Version,
        id: SockId,
        body: Body<P>,
    ) {
        let mut pkt = self.packet(id, version, Direction::Receive, Way::On, body);
        pkt.next = version.receive.after_tcp();
        self.go(env, Some(at), pkt);
    }

    /// The first of TCP's finer events: prediction, and what it leaves. Nothing goes in between
    /// on the list, so nothing changes the connection before what follows from them.
    fn tcp_part(
        &self,
        env: &mut Env<'_, P>,
        inner: &mut Inner<P>,
        event: &Event,
        pkt: &mut Pkt<P>,
    ) -> Verdict {
        let Body::Seg(seg) = &mut pkt.body else {
            return Verdict::Next;
        };
        if pkt.input.is_some() {
            return Verdict::Next;
        }
        let full = matches!(event.callback, Callback::Full);
        let mut done = None;
        let met = inner.shard.meet(&mut env.cx, pkt.id, seg, |m, cx, seg| {
            let (now, mut data) = glue::arrived(m, cx, seg);
            let mut input = Input::default();
            let hdr = &seg.frame.hdr;
            if full {
                m.tcb().tcb.input_full(hdr, data, now, &mut input);
                glue::unguarded(m, cx, (seg.iface, hdr), now, &mut input);
                done = Some(Box::new(input));
                return;
            }
            if m.tcb().tcb.input_light(hdr, &mut data, now, &mut input) {
                done = Some(Box::new(input));
            }
            seg.payload = data.unwrap_or_default();
        });
        match met {
            Met::Taken => {
                pkt.input = done;
                Verdict::Next
            }
            Met::Gone => Verdict::Reclassify,
            Met::Reused(iss) => {
                pkt.iss = Some(iss);
                Verdict::Reclassify
            }
        }
    }

    /// After a segment was given to its connection where that has one squeue for all layers.
    #[inline]
    pub(super) fn met(
        &self,
        env: &mut Env<'_, P>,
        q: u16,
        inner: &mut Inner<P>,
        seg: &mut Seg,
        met: Met,
    ) {
        let iss = match met {
            Met::Taken => return,
            Met::Gone => None,
            Met::Reused(iss) => Some(iss),
        };
        // Classified again: the flow has no connection any more, or another one.
        match self.classified(env, seg) {
            Route::Whole(id) if iss.is_none() => {
                let version = self.first_version(id);
                let body = Body::Seg(core::mem::take(seg));
                let mut pkt = self.packet(id, &version, Direction::Receive, Way::In, body);
                pkt.turns = 1;
                self.go(env, Some((q, inner)), pkt);
            }
            Route::List(pkt) => self.go(env, Some((q, inner)), pkt),
            Route::Whole(id) => {
                self.no_socket(
                    env,
                    Some((q, inner)),
                    id.shard(),
                    core::mem::take(seg),
                    None,
                );
            }
            Route::NoSocket(home) => {
                self.no_socket(env, Some((q, inner)), home, core::mem::take(seg), iss);
            }
        }
    }

    /// The socket layer's turn on the receive list: data goes to the queue of the socket, and
    /// who waits for it is told.
    fn sock_in(&self, env: &mut Env<'_, P>, pkt: &mut Pkt<P>) {
        let Body::Up(_, _, up) = &mut pkt.body else {
            return;
        };
        let Some(place) = self.place(pkt.id) else {
            return;
        };
        let messages = !self.manner.light_queue;
        for b in core::mem::take(&mut up.data) {
            if messages {
                // `canputnext`; `putnext` is a round of its own.
                drop(place.rcv.lock());
            }
            let mut part = place.rcv.lock();
            if part.generation != pkt.id.generation() {
                drop(part);
                env.cx.pool.put(b);
                continue;
            }
            let rcv = &mut part.value;
            let before = rcv.charged();
            if let Some(empty) = rcv.buf.push(b) {
                env.cx.pool.put(empty);
            }
            env.cx.charge(before, rcv.charged());
            if messages || up.events.is_empty() {
                rcv.side.raise(ready::IN, &mut env.cx.deferred.wakes);
            }
        }
        if !up.events.is_empty() {
            let events = core::mem::replace(&mut up.events, Events::NONE);
            if let Some(mut rcv) = place.rcv(pkt.id.generation()) {
                if !rcv.buf.is_empty() {
                    rcv.side.raise(ready::IN, &mut env.cx.deferred.wakes);
                }
                told(&mut rcv, events, up.failed, &mut env.cx);
            }
            // Behind the receive side: who hears of HUP must find the end of the stream.
            if let Some(bits) = over(events, up.failed)
                && let Some(mut snd) = place.snd(pkt.id.generation())
            {
                snd.side
                    .raise(ready::OUT | bits, &mut env.cx.deferred.wakes);
            }
        }
    }

    /// Somebody else's event.
    fn foreign(
        &self,
        env: &mut Env<'_, P>,
        at: Option<(u16, &mut Inner<P>)>,
        event: &Event,
        pkt: &mut Pkt<P>,
    ) -> Verdict {
        let Callback::Foreign(callback) = &event.callback else {
            return Verdict::Next;
        };
        let member = at
            .as_ref()
            .filter(|(q, _)| *q == pkt.id.shard())
            .and_then(|(_, inner)| inner.shard.peek(pkt.id));
        // Not before what the connection has seen: its last packet may have come by a thread that
        // read the clock later.
        let seen = member.map_or(Time::ZERO, |m| m.peek().meta.now);
        let now = env.cx.now_from(seen);
        let looking = member.map(|m| Looking(&m.peek().tcb, now));
        let (mut disable, mut panics) = (false, 0);
        let mut sends = Vec::new();
        let iface = match &pkt.body {
            Body::Frame(iface, _) => *iface,
            _ => 0,
        };
        let mut ask = |flow, header: Option<&TcpHdr>, len: u32, payload: &mut [u8]| {
            if panics > 0 {
                return Verdict::Next;
            }
            let mut view = Packet {
                now,
                direction: pkt.direction,
                layer: event.layer,
                flow,
                header,
                len,
                payload,
                iface,
                send: Vec::new(),
                tcp: looking.as_ref().map(|l| l as &dyn Peek),
                disable: false,
            };
            let Some(verdict) = caught(|| callback.on_packet(&mut view)) else {
                panics += 1;
                return Verdict::Next;
            };
            disable |= view.disable;
            sends.append(&mut view.send);
            verdict
        };
        let mut lost = 0;
        let verdict = match &mut pkt.body {
            Body::Seg(seg) => {
                let len = seg.payload.len() as u32;
                let payload = seg.payload.as_mut_slice();
                ask(seg.frame.key, Some(&seg.frame.hdr), len, payload)
            }
            Body::Up(key, hdr, up) => {
                // Each buffer is a packet here; one that is done goes no further.
                up.data.retain(|b| {
                    let len = b.len() as u32;
                    let keep = ask(*key, hdr.as_ref(), len, b.as_mut_slice()) != Verdict::Done;
                    lost += if keep { 0 } else { len };
                    keep
                });
                Verdict::Next
            }
            Body::Chain(apart) => {
                let (key, n) = (apart.key, apart.out.segs.len());
                apart.out.segs.retain(|s| {
                    let hdr = s.plan.seg.to_hdr(key.local_port, key.remote_port);
                    ask(key, Some(&hdr), s.plan.len, &mut []) != Verdict::Done
                });
                output::dropped(&mut env.cx, apart, n - apart.out.segs.len());
                Verdict::Next
            }
            Body::Call(call) => match call.data() {
                Some(data) => {
                    let len = data.len() as u32;
                    match self.key_of(pkt.id) {
                        Some(key) => ask(key, None, len, data),
                        None => Verdict::Next,
                    }
                }
                None => Verdict::Next,
            },
            Body::Frame(_, b) => {
                let len = b.len() as u32;
                ask(FlowKey::UNSPECIFIED, None, len, b.as_mut_slice())
            }
            Body::Nothing => Verdict::Done,
        };
        let off = if panics > 0 {
            env.cx.count(Count::EventPanics, panics);
            event.break_off()
        } else {
            disable && event.switch_off()
        };
        if off {
            self.sweep_defaults();
        }
        if pkt.direction == Direction::Unbound {
            for (iface, frame) in sends {
                env.cx.sh.send_frame(&mut env.cx, iface, &frame);
            }
            return verdict;
        }
        if lost > 0 {
            self.lost(env, pkt.id, lost);
        }
        if off {
            self.sweep(pkt.id);
        }
        verdict
    }

    /// The lists that connections start with, and that of packets without one, lose their
    /// tombstones.
    #[cold]
    fn sweep_defaults(&self) {
        // What the callbacks own is dropped when the lock has been released.
        let mut old = Vec::new();
        let mut d = self.manner.defaults.lock();
        let Defaults {
            receive,
            transmit,
            unbound,
        } = &mut *d;
        for list in [receive, transmit, &mut *unbound] {
            if list.has_tombstones() {
                let swept = Arc::new(list.swept());
                old.push(core::mem::replace(list, swept));
            }
        }
        self.wanted.store(!unbound.is_empty(), Ordering::Release);
    }

    /// An event has dropped data on its way to the socket: it takes up no room there, and TCP is
    /// told if it waits for that.
    fn lost(&self, env: &mut Env<'_, P>, id: SockId, n: u32) {
        let Some(place) = self.place(id) else {
            return;
        };
        let tell = {
            let mut part = place.rcv.lock();
            part.generation == id.generation() && part.value.took(n)
        };
        if tell {
            let q = id.shard();
            let job = Msg::Job(Box::new(
                move |pef: &Pef<P>, env: &mut Env<'_, P>, _, inner| {
                    let _ = pef;
                    inner.shard.with(&mut env.cx, id, true, |m, cx| {
                        perimeter_stack::ops::tell_space(m, cx);
                    });
                },
            ));
            self.post(env, q, job);
        }
    }
}
