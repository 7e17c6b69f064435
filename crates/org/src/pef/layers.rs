//! The layers' own events: IP, TCP and the socket layer, each in its turn on either list.

use super::classify::Route;
use super::event::{Direction, Layer, Verdict};
use super::framework::{Body, Env, Inner, Pef, Pkt, offsets};
use super::link::{Version, Way};
use super::list::{Callback, Event};
use crate::outer::Doors;
use perimeter_stack::conn::{over, told};
use perimeter_stack::segment::Up;
use perimeter_stack::shard::Met;
use perimeter_stack::{Access, Seg, SockId, glue, late, output, ready};
use perimeter_sync::{Lock, Platform, Touched, Work};
use perimeter_tcp::{Events, Input};

impl<P: Platform> Pef<P> {
    /// A layer's own processing.
    pub(super) fn own(
        &self,
        env: &mut Env<'_, P>,
        at: Option<(u16, &mut Inner<P>)>,
        event: &Event,
        pkt: &mut Pkt<P>,
    ) -> Verdict {
        match (pkt.direction, event.layer, at) {
            (Direction::Receive, Layer::Ip, _) => self.ip_in(env, pkt),
            (Direction::Receive, Layer::Tcp, Some(at)) => self.tcp_in(env, at, pkt),
            (Direction::Receive, Layer::Sockfs, _) => {
                self.sock_in(env, pkt);
                Verdict::Next
            }
            (Direction::Transmit, Layer::Sockfs, _) => self.sock_out(env, pkt),
            (Direction::Transmit, Layer::Tcp, Some((_, inner))) => {
                self.arrived(env, pkt);
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
            (Direction::Datagram, Layer::Ip, _) => {
                if let Body::Datagrams(all) = &mut pkt.body {
                    all.check(&mut env.cx);
                }
                Verdict::Next
            }
            (Direction::Datagram, Layer::Sockfs, Some((_, inner))) => {
                if let Body::Datagrams(all) = &mut pkt.body {
                    all.deliver(&mut inner.shard, &mut env.cx);
                }
                Verdict::Next
            }
            (Direction::SentDatagram, Layer::Sockfs, Some((_, inner))) => {
                let Body::Sent(sent) = &mut pkt.body else {
                    return Verdict::Done;
                };
                match sent.all().call(&mut inner.shard, &mut env.cx) {
                    true => Verdict::Next,
                    false => Verdict::Done,
                }
            }
            (Direction::SentDatagram, Layer::Ip, at) => {
                self.place_datagrams(env, at, pkt);
                Verdict::Next
            }
            (_, Layer::Tcp, None)
            | (Direction::Datagram | Direction::SentDatagram | Direction::Unbound, ..) => {
                Verdict::Done
            }
        }
    }

    /// IP's turn on the receive list: what the frame claims is checked. What is no good goes no
    /// further, and what an event has made another flow's is classified again.
    fn ip_in(&self, env: &mut Env<'_, P>, pkt: &mut Pkt<P>) -> Verdict {
        let Body::Seg(seg) = &mut pkt.body else {
            return Verdict::Next;
        };
        let claimed = (!pkt.list.is_plain()).then_some(seg.frame.key);
        if !late::input(&mut env.cx, seg) {
            return Verdict::Done;
        }
        pkt.offsets = offsets(env.cx.sh, seg);
        match claimed {
            Some(key) if key != seg.frame.key => Verdict::Reclassify,
            _ => Verdict::Next,
        }
    }

    /// The socket layer's turn on the transmit list: the call is counted against a socket that is
    /// still there. Its data, and the room that it takes, were seen to in the user's context, for
    /// the caller had to be answered there.
    fn sock_out(&self, env: &mut Env<'_, P>, pkt: &mut Pkt<P>) -> Verdict {
        let Body::Call(call) = &mut pkt.body else {
            return Verdict::Next;
        };
        match call.socket(self, env) {
            true => Verdict::Next,
            false => Verdict::Done,
        }
    }

    /// TCP's turn on the receive list.
    pub(super) fn tcp_in(
        &self,
        env: &mut Env<'_, P>,
        (q, inner): (u16, &mut Inner<P>),
        pkt: &mut Pkt<P>,
    ) -> Verdict {
        let Body::Seg(seg) = &mut pkt.body else {
            return Verdict::Next;
        };
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
        let mut all = core::mem::take(&mut env.cx.apart);
        for mut a in all.drain(..) {
            if a.id == pkt.id {
                up = core::mem::take(&mut a.up);
            }
            let version = self.version_of(inner, a.id);
            self.start_chain(env, (q, &mut *inner), &version, a);
        }
        env.cx.apart = all;
        self.arrived(env, pkt);
        pkt.body = Body::Nothing;
        if up.is_empty() {
            return Verdict::Done;
        }
        let body = Body::Up(key, Some(hdr), up);
        let version = self.version_of(inner, pkt.id);
        if version.receive.is(&pkt.list) && version.bind == pkt.bind {
            (pkt.way, pkt.body) = (Way::On, body);
            return Verdict::Next;
        }
        // On the rest of the list that the segment came by, its data could overtake what went up
        // by another one: the way to the socket takes over a version when that can't be.
        self.start_up(env, (q, inner), &version, pkt.id, body);
        Verdict::Done
    }

    /// What TCP hands to the socket layer starts behind TCP on the receive list.
    pub(super) fn start_up(
        &self,
        env: &mut Env<'_, P>,
        at: (u16, &mut Inner<P>),
        version: &Version,
        id: SockId,
        body: Body<P>,
    ) {
        let mut pkt = self.packet(id, version, Direction::Receive, Way::On, body);
        pkt.next = version.receive.after_tcp();
        self.go(env, Some(at), &mut pkt);
    }

    /// The first of TCP's finer events: prediction, and what it leaves. Nothing goes in between
    /// on the list, so nothing changes the connection before what follows from them.
    pub(super) fn tcp_part(
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
                self.go(env, Some((q, inner)), &mut pkt);
            }
            Route::List(mut pkt) => self.go(env, Some((q, inner)), &mut pkt),
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
        let p = &env.cx.sh.p;
        p.charge(Work::SockInput, 1);
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
            p.touch(&rcv.lines, Touched::Rcv, 1, true);
            let before = rcv.charged();
            rcv.buf.push(b, &mut env.cx.pool);
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
}
