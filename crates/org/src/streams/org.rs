//! STREAMS as an organization.

use super::cell::Above;
use super::{HEAD, IP, Stream, Streams, ToIp, ToTcp, Todo};
use crate::spec::OrgSpec;
use crate::squeue::cell::OuterParts;
use crate::squeue::promised::{Connections, Promised};
use crate::squeue::queue::{Entered, Squeue, SqueueEntry, Who};
use crate::{Binding, Job, Kd, Org};
use core::sync::atomic::Ordering;
use perimeter_base::Time;
use perimeter_stack::ops::Op;
use perimeter_stack::shard::ExistsError;
use perimeter_stack::{ConnInfo, Count, Ctx, Flow, SharedState, SockId, Sockets};
use perimeter_sync::{LockClass, LockStats, Platform};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;

impl<P: Platform> Promised<P> for Streams<P> {
    type Member = Above<P>;

    fn place(&self, id: SockId) -> Option<&OuterParts<P>> {
        let stream = self.streams.get(usize::from(id.shard()))?;
        stream.outer_table.places.get(id.slot())
    }

    fn tell_conn(
        &self,
        cx: &mut Ctx<Kd<P>>,
        id: SockId,
        f: impl FnOnce(&mut Ctx<Kd<P>>, &mut Connections<P, Self>) + Send + 'static,
    ) {
        self.tell(cx, (id.shard(), true), |_, cx, tcp| f(cx, &mut tcp.shard));
    }

    fn ask_conn<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        id: SockId,
        f: impl FnOnce(&mut Ctx<Kd<P>>, &mut Connections<P, Self>) -> R + Send + 'static,
    ) -> Option<R> {
        self.ask(cx, id.shard(), |_, cx, tcp| f(cx, &mut tcp.shard))
    }
}

impl<P: Platform> Org for Streams<P> {
    type K = Kd<P>;

    fn new(spec: &OrgSpec, sh: &SharedState<Self::K>) -> Self {
        Streams::make(spec, sh)
    }

    fn on_packets(&self, cx: &mut Ctx<Self::K>) {
        let mut segs = core::mem::take(&mut cx.segs);
        if let Entered::Busy(mut door) = self.arrivals().enter(SqueueEntry::Fill) {
            for seg in segs.as_mut_slice() {
                let mut packet = self.packets.take().unwrap_or_default();
                core::mem::swap(&mut *packet, seg);
                door.push(ToIp::Packet(packet));
            }
        }
        segs.clear();
        cx.segs = segs;
        self.move_on(cx, Who::Inbound, Todo::arrivals());
    }

    fn call<Q: Op<Self::K> + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        id: SockId,
        op: Q,
    ) -> Option<Q::Out> {
        self.socket_call(cx, id, op)
    }

    fn post<Q: Op<Self::K, Out = ()> + 'static>(&self, cx: &mut Ctx<Self::K>, id: SockId, op: Q) {
        if self.place(id).is_none() {
            return cx.count(Count::StaleHandle, 1);
        }
        self.tell(cx, (id.shard(), false), move |_, cx, t| {
            t.shard.posted(cx, id, op);
        });
    }

    fn connect(
        &self,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, ExistsError> {
        let config = config.clone();
        let n = self.index(flow.hash);
        let made = self.ask(cx, n, move |_, cx, t| t.shard.connect(cx, flow, &config));
        made.unwrap_or(Err(ExistsError))
    }

    fn perimeters(&self) -> u16 {
        self.streams.len() as u16
    }

    fn perimeter_of(&self, sh: &SharedState<Self::K>, key: &FlowKey) -> Option<u16> {
        Some(self.index(sh.flow_hash(key)))
    }

    fn inside<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        n: u16,
        job: impl Job<Self::K, R>,
    ) -> Option<R> {
        self.ask(cx, n, |_, cx, tcp| job(&mut tcp.shard, cx))
    }

    fn leave(&self, cx: &mut Ctx<Self::K>, n: u16, job: impl Job<Self::K, ()>) {
        self.tell(cx, (n, false), |_, cx, t| job(&mut t.shard, cx));
    }

    fn on_timers(&self, cx: &mut Ctx<Self::K>) {
        let now = cx.now();
        for (n, stream) in self.numbered() {
            if stream.due.take(&cx.sh.p, now) {
                stream.tcp.push(ToTcp::Timers);
                let mut todo = Todo::default();
                todo.tcp.add(n);
                self.move_on(cx, Who::Inbound, todo);
            }
        }
    }

    fn next_timer(&self) -> Time {
        let all = self.streams.iter().map(|s| s.due.at());
        all.min().unwrap_or(Time::NEVER)
    }

    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        for stream in &self.streams {
            stream.tcp.seize().shard.inspect(now, out);
        }
    }

    fn live(&self) -> usize {
        let all = self.streams.iter();
        all.map(|s| s.tcp.seize().shard.len()).sum()
    }

    fn abort_all(&self, cx: &mut Ctx<Self::K>) {
        for (n, stream) in self.numbered() {
            self.move_on(cx, Who::Writer, Todo::all(n));
            let mut tcp = stream.tcp.seize();
            tcp.shard.abort_all(cx);
            self.leave_tcp(cx, n, &tcp);
            drop(tcp);
            self.move_on(cx, Who::Writer, Todo::all(n));
        }
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        if let Some(below) = &self.below {
            add(LockClass::Squeue, below.stats());
        }
        for stream in &self.streams {
            add(LockClass::Squeue, stream.ip.stats());
            add(LockClass::Squeue, stream.head.stats());
            add(LockClass::Squeue, stream.tcp.stats());
            for place in stream.outer_table.iter() {
                place.lock_stats(add);
            }
        }
    }

    fn binding(&self, id: SockId) -> Binding {
        let modules = ["module ip", "module tcp", "module head"];
        Binding {
            perimeters: modules.map(|module| match &self.below {
                Some(_) => format!("{module}, pair {}", id.shard()),
                None => module.into(),
            }),
            ..Binding::default()
        }
    }

    /// Three for each stream, and one where packets arrive if that is a stream of its own.
    fn workers(&self) -> usize {
        3 * self.streams.len() + usize::from(self.below.is_some())
    }

    fn worker_core(&self, _: usize) -> Option<usize> {
        None
    }

    fn work(&self, worker: usize, cx: &mut Ctx<Self::K>) -> usize {
        let todo = match worker / 3 {
            n if n < self.streams.len() => Todo::all(n as u16),
            _ => Todo::arrivals(),
        };
        self.move_on(cx, Who::Worker, todo)
    }

    fn park(&self, worker: usize, deadline: Time) {
        match (self.streams.get(worker / 3), worker % 3) {
            (None, _) => self.arrivals().park(deadline),
            (Some(stream), 0) => stream.ip.park(deadline),
            (Some(stream), 1) => stream.head.park(deadline),
            (Some(stream), _) => stream.tcp.park(deadline),
        }
    }

    fn wake_workers(&self) {
        self.arrivals().end();
        for stream in &self.streams {
            stream.ip.end();
            stream.head.end();
            stream.tcp.end();
        }
    }

    fn pending(&self) -> usize {
        let pending = |s: &Stream<P>| s.ip.pending() + s.head.pending() + s.tcp.pending();
        let queues: usize = self.streams.iter().map(pending).sum();
        let below = self.below.as_ref().map_or(0, Squeue::pending);
        queues + below + self.kept.load(Ordering::Relaxed)
    }
}

impl<P: Platform> Streams<P> {
    fn numbered(&self) -> impl Iterator<Item = (u16, &Stream<P>)> {
        (0..).zip(&self.streams)
    }
}

// Every bit names one module.
const _: () = assert!(IP & HEAD == 0);
