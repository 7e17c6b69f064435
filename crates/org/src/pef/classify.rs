//! The classifier: to which connection a received segment belongs, and so along which list it
//! goes; asked once a packet, and again where an event says so.

use super::event::Direction;
use super::flows::Found;
use super::framework::{Body, Env, Inner, Job, Msg, Pef, Pkt};
use super::link::Way;
use core::sync::atomic::Ordering;
use perimeter_stack::{Seg, SockId, late};
use perimeter_sync::{Platform, Work};
use perimeter_wire::Seq;

/// How often a packet may be classified again before it is dropped: once for a connection that
/// has gone meanwhile, once for one in TIME-WAIT that it takes over, and some for events.
const TURNS: u8 = 4;

impl<P: Platform> Pef<P> {
    /// A received segment begins: the classifier says where.
    pub(super) fn classified(&self, env: &mut Env<'_, P>, seg: &mut Seg) -> Route<P> {
        env.cx.sh.p.charge(Work::Lookup, 1);
        let key = &seg.frame.key;
        let Some(found) = self.flows.with(key, |found| *found) else {
            return Route::NoSocket(self.no_socket_home(key));
        };
        if found.soon {
            return Route::NoSocket(found.id.shard());
        }
        if !self.spec.lists && !found.altered && found.bind.is_whole() {
            return Route::Whole(found.id);
        }
        let link = self.tables(found.id).links.get(found.id.slot());
        let (version, counted) = if found.altered {
            match link.and_then(|l| l.start(Way::In, found.id)) {
                Some(v) => (v, Some(Way::In)),
                // It has gone since.
                None => return Route::NoSocket(self.no_socket_home(key)),
            }
        } else {
            (self.first_version(found.id), None)
        };
        let body = Body::Seg(core::mem::take(seg));
        let mut pkt = self.packet(found.id, &version, Direction::Receive, Way::In, body);
        pkt.counted = counted;
        Route::List(pkt)
    }

    /// The classifier looks at a packet again.
    pub(super) fn reclassify(
        &self,
        env: &mut Env<'_, P>,
        at: Option<(u16, &mut Inner<P>)>,
        pkt: &mut Pkt<P>,
    ) {
        let Body::Seg(_) = pkt.body else {
            return self.end(env, pkt);
        };
        self.arrived(env, pkt);
        if pkt.turns >= TURNS {
            return self.end(env, pkt);
        }
        let (turns, iss) = (pkt.turns + 1, pkt.iss);
        let Body::Seg(mut seg) = core::mem::replace(&mut pkt.body, Body::Nothing) else {
            return;
        };
        if !late::again(env.cx.sh, &mut seg) {
            return env.cx.pool.put(seg.payload);
        }
        match self.classified(env, &mut seg) {
            Route::Whole(id) if iss.is_none() => {
                let version = self.first_version(id);
                let body = Body::Seg(seg);
                let mut pkt = self.packet(id, &version, Direction::Receive, Way::In, body);
                pkt.turns = turns;
                self.go(env, at, &mut pkt);
            }
            Route::List(mut pkt) => {
                pkt.turns = turns;
                self.go(env, at, &mut pkt);
            }
            Route::NoSocket(q) => self.no_socket(env, at, q, seg, iss),
            // A connection in TIME-WAIT was taken over, and another is in its place already.
            Route::Whole(id) => self.no_socket(env, at, id.shard(), seg, None),
        }
    }

    pub(super) fn no_socket(
        &self,
        env: &mut Env<'_, P>,
        at: Option<(u16, &mut Inner<P>)>,
        q: u16,
        mut seg: Seg,
        iss: Option<Seq>,
    ) {
        // It is on no list: IP has its turn here.
        if !late::input(&mut env.cx, &mut seg) {
            return;
        }
        match at {
            Some((here, inner)) if here == q => {
                self.no_socket_here(env, q, inner, &mut seg, iss);
                self.after(env, q, inner);
            }
            _ => self.post(env, q, Msg::NoSocket(seg, iss)),
        }
    }
}

/// Segments without a connection, under the squeue that they were brought to.
impl<P: Platform> Pef<P> {
    /// A segment that belongs to no connection has its turn under squeue `q`. Where a listener has
    /// TCP of what it accepts run under another one (SO_SETSQP), the connection of a handshake that
    /// is complete is made there; segments that come meanwhile are announced to it, and those that
    /// were classified before follow it.
    pub(super) fn no_socket_here(
        &self,
        env: &mut Env<'_, P>,
        q: u16,
        inner: &mut Inner<P>,
        seg: &mut Seg,
        iss: Option<Seq>,
    ) {
        let key = seg.frame.key;
        if !self.listeners_tell.load(Ordering::Acquire) || inner.shard.lookup(&key).is_some() {
            return inner.shard.no_socket(&mut env.cx, seg, iss);
        }
        let found = self.flows.with(&key, |found| *found);
        let elsewhere = found.map(|f| self.squeue_of(&f)).filter(|s| *s != q);
        if let Some(s) = elsewhere {
            return self.post(env, s, Msg::NoSocket(core::mem::take(seg), iss));
        }
        let Some((l, e)) = inner.shard.passive().segment(&mut env.cx, seg, iss) else {
            return;
        };
        let to = l.config().layers.tcp.map_or(q, |to| to % self.n());
        if to == q {
            inner.shard.establish(&mut env.cx, l, &e, seg);
            return;
        }
        if !self.flows.insert(key, Found::soon(to)) {
            return env.cx.sh.refuse(&mut env.cx, seg);
        }
        let mut seg = core::mem::take(seg);
        let job: Job<P> = Box::new(move |pef, env, _, inner| {
            if inner
                .shard
                .establish(&mut env.cx, l, &e, &mut seg)
                .is_none()
            {
                pef.flows.remove(&key, |found| found.soon);
            }
            env.cx.pool.put(seg.payload);
        });
        self.post(env, to, Msg::Job(job));
    }
}

/// Where a received segment goes first.
#[expect(
    clippy::large_enum_variant,
    reason = "a packet has no allocation of its own"
)]
pub(super) enum Route<P: Platform> {
    /// To its connection, all of whose layers are under one squeue, and on whose list are the
    /// layers' own events only.
    Whole(SockId),
    /// Along its list.
    List(Pkt<P>),
    /// It belongs to no connection; to that squeue.
    NoSocket(u16),
}
