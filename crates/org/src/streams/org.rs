//! STREAMS as an organization.

use super::{HEAD, IP, Msg, Streams};
use crate::spec::OrgSpec;
use crate::squeue::cell::OuterParts;
use crate::squeue::promised::{Connections, Promised};
use crate::squeue::queue::{Entered, SqueueEntry, Who};
use crate::{Binding, Job, Kd, Org};
use core::sync::atomic::Ordering;
use perimeter_base::Time;
use perimeter_stack::ops::Op;
use perimeter_stack::shard::ExistsError;
use perimeter_stack::{ConnInfo, Ctx, Flow, SharedState, SockId, Sockets};
use perimeter_sync::{LockClass, LockStats, Platform};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;

impl<P: Platform> Promised<P> for Streams<P> {
    fn place(&self, id: SockId) -> Option<&OuterParts<P>> {
        self.outer_table.places.get(id.slot())
    }

    fn tell_conn(
        &self,
        cx: &mut Ctx<Kd<P>>,
        _: SockId,
        f: impl FnOnce(&mut Ctx<Kd<P>>, &mut Connections<P>) + Send + 'static,
    ) {
        self.tell(cx, true, Box::new(|_, cx, tcp| f(cx, &mut tcp.shard)));
    }

    fn ask_conn<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        _: SockId,
        f: impl FnOnce(&mut Ctx<Kd<P>>, &mut Connections<P>) -> R + Send + 'static,
    ) -> Option<R> {
        self.ask(cx, true, |_, cx, tcp| f(cx, &mut tcp.shard))
    }
}

impl<P: Platform> Org for Streams<P> {
    type K = Kd<P>;

    fn new(_: &OrgSpec, sh: &SharedState<Self::K>) -> Self {
        Streams::make(sh)
    }

    fn on_packets(&self, cx: &mut Ctx<Self::K>) {
        let mut segs = core::mem::take(&mut cx.segs);
        if let Entered::Busy(mut door) = self.ip.enter(SqueueEntry::Fill) {
            for seg in segs.as_mut_slice() {
                let mut packet = self.packets.take().unwrap_or_default();
                core::mem::swap(&mut *packet, seg);
                door.push(Msg::Packet(packet));
            }
        }
        segs.clear();
        cx.segs = segs;
        self.move_on(cx, Who::Inbound);
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
        self.tell(
            cx,
            false,
            Box::new(move |_, cx, t| t.shard.posted(cx, id, op)),
        );
    }

    fn connect(
        &self,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, ExistsError> {
        let config = config.clone();
        let made = self.ask(cx, true, move |_, cx, t| t.shard.connect(cx, flow, &config));
        made.unwrap_or(Err(ExistsError))
    }

    fn perimeters(&self) -> u16 {
        1
    }

    fn perimeter_of(&self, _: &SharedState<Self::K>, _: &FlowKey) -> Option<u16> {
        Some(0)
    }

    fn inside<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        _: u16,
        job: impl Job<Self::K, R>,
    ) -> Option<R> {
        self.ask(cx, true, |_, cx, tcp| job(&mut tcp.shard, cx))
    }

    fn leave(&self, cx: &mut Ctx<Self::K>, _: u16, job: impl Job<Self::K, ()>) {
        self.tell(cx, false, Box::new(|_, cx, tcp| job(&mut tcp.shard, cx)));
    }

    fn on_timers(&self, cx: &mut Ctx<Self::K>) {
        let now = cx.now();
        if self.due.take(&cx.sh.p, now) {
            self.tcp.push(Msg::Timers);
            self.move_on(cx, Who::Inbound);
        }
    }

    fn next_timer(&self) -> Time {
        self.due.at()
    }

    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        self.tcp.seize().shard.inspect(now, out);
    }

    fn live(&self) -> usize {
        self.tcp.seize().shard.len()
    }

    fn abort_all(&self, cx: &mut Ctx<Self::K>) {
        self.move_on(cx, Who::Writer);
        self.tcp.seize().shard.abort_all(cx);
        self.move_on(cx, Who::Writer);
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        add(LockClass::Squeue, self.ip.stats());
        add(LockClass::Squeue, self.head.stats());
        add(LockClass::Squeue, self.tcp.stats());
        for place in self.outer_table.iter() {
            place.lock_stats(add);
        }
    }

    fn binding(&self, _: SockId) -> Binding {
        Binding {
            perimeters: ["module ip", "module tcp", "module head"].map(String::from),
            ..Binding::default()
        }
    }

    fn workers(&self) -> usize {
        3
    }

    fn worker_core(&self, _: usize) -> Option<usize> {
        None
    }

    fn work(&self, _: usize, cx: &mut Ctx<Self::K>) -> usize {
        self.move_on(cx, Who::Worker)
    }

    fn park(&self, worker: usize, deadline: Time) {
        match worker {
            0 => self.ip.park(deadline),
            1 => self.head.park(deadline),
            _ => self.tcp.park(deadline),
        }
    }

    fn wake_workers(&self) {
        self.ip.end();
        self.head.end();
        self.tcp.end();
    }

    fn pending(&self) -> usize {
        let queues = self.ip.pending() + self.head.pending() + self.tcp.pending();
        queues + self.kept.load(Ordering::Relaxed)
    }
}

// Every bit names one module.
const _: () = assert!(IP & HEAD == 0);
