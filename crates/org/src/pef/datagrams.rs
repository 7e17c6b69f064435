//! Datagrams that sockets receive and send, on the stack's own two lists.

use super::event::{Direction, Layer};
use super::framework::{Body, Env, Inner, Msg, Pef, Pkt, Sent};
use super::link::{Version, Way};
use super::list::ListRef;
use crate::answer::{Answer, question};
use crate::squeue::queue::Who;
use crate::{Arrivals, Departures, Kd};
use core::sync::atomic::Ordering;
use perimeter_stack::{Ctx, SockId};
use perimeter_sync::{Lock, Platform};

/// What a call sends, and the caller that waits.
struct Waited<P: Platform, D: Departures<Kd<P>>> {
    all: D,
    answer: Answer<P, D>,
}

impl<P: Platform, D: Departures<Kd<P>>> Sent<P> for Waited<P, D> {
    fn all(&mut self) -> &mut dyn Departures<Kd<P>> {
        &mut self.all
    }

    fn answer(self: Box<Self>) {
        let Waited { all, answer } = *self;
        answer.give(all);
    }
}

impl<P: Platform> Pef<P> {
    fn is_watched(&self, direction: Direction) -> bool {
        self.watched[usize::from(direction == Direction::SentDatagram)].load(Ordering::Acquire)
    }

    /// Whether datagrams of that direction run through a list.
    pub(super) fn lists_datagrams(&self, direction: Direction) -> bool {
        self.spec.lists || self.is_watched(direction)
    }

    /// Brings datagrams of sockets under squeue `n` on their list.
    fn set_out_datagrams(
        &self,
        env: &mut Env<'_, P>,
        n: u16,
        (direction, way): (Direction, Way),
        body: Body<P>,
    ) {
        let lists = match self.is_watched(direction) {
            true => self.manner.defaults.lock().datagrams.clone(),
            false => ListRef::datagrams(),
        };
        // A socket without a state machine is where its table is.
        let bind = (self.manner.bind)(n).with(Layer::Sockfs, n);
        let version = Version::first(lists, bind);
        let mut pkt = self.packet(SockId::conn(n, 0, 0), &version, direction, way, body);
        self.set_out(env, Self::first_under(&pkt), &mut pkt);
        self.finish(env);
    }

    /// Received ones.
    pub(super) fn datagrams_in(&self, cx: &mut Ctx<Kd<P>>, n: u16, all: impl Arrivals<Kd<P>>) {
        let mut env = Env::new(cx, Who::Inbound);
        let body = Body::Datagrams(Box::new(all));
        self.set_out_datagrams(&mut env, n, (Direction::Datagram, Way::In), body);
    }

    /// Those that a call sends. It waits for IP's turn, which says whether there was room.
    pub(super) fn datagrams_out<D: Departures<Kd<P>>>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        n: u16,
        all: D,
    ) -> Option<D> {
        let (pending, answer) = question(&cx.sh.p);
        let mut env = Env::new(cx, Who::Writer);
        let body = Body::Sent(Box::new(Waited { all, answer }));
        self.set_out_datagrams(&mut env, n, (Direction::SentDatagram, Way::On), body);
        self.wait(cx, pending)
    }

    /// IP's turn with datagrams that are sent. What it has no room or no station for goes back to the
    /// socket, and the caller has its answer behind that, lest it is told of room before it waits
    /// for some.
    pub(super) fn place_datagrams(
        &self,
        env: &mut Env<'_, P>,
        at: Option<(u16, &mut Inner<P>)>,
        pkt: &mut Pkt<P>,
    ) {
        let Body::Sent(sent) = &mut pkt.body else {
            return;
        };
        if !sent.all().place(&mut env.cx) {
            return;
        }
        let home = pkt.id.shard();
        match at {
            Some((here, inner)) if here == home => {
                sent.all().rest(&mut inner.shard, &mut env.cx);
            }
            _ => {
                if let Body::Sent(mut sent) = core::mem::replace(&mut pkt.body, Body::Nothing) {
                    let job = Box::new(
                        move |_: &Pef<P>, env: &mut Env<'_, P>, _, inner: &mut Inner<P>| {
                            sent.all().rest(&mut inner.shard, &mut env.cx);
                            sent.answer();
                        },
                    );
                    self.post(env, home, Msg::Job(job));
                }
            }
        }
    }
}
