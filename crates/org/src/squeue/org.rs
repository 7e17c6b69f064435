//! FireEngine as an organization.

use super::cell::{OuterParts, Parted};
use super::promised::{Connections, Promised};
use super::queue::{Squeue, Who};
use super::{FireEngine, Msg, counted};
use crate::spec::OrgSpec;
use crate::{Binding, Job, Kd, Org};
use perimeter_base::Time;
use perimeter_stack::ops::Op;
use perimeter_stack::shard::ExistsError;
use perimeter_stack::{BURST, ConnInfo, Count, Ctx, Flow, Listener, SharedState, SockId, Sockets};
use perimeter_sync::{LockClass, LockStats, Platform};
use perimeter_tcp::Config;
use perimeter_wire::FlowKey;
use std::sync::Arc;

impl<P: Platform> Promised<P> for FireEngine<P> {
    type Member = Parted<P>;

    fn place(&self, id: SockId) -> Option<&OuterParts<P>> {
        self.outer
            .get(usize::from(id.shard()))?
            .places
            .get(id.slot())
    }

    fn tell_conn(
        &self,
        cx: &mut Ctx<Kd<P>>,
        id: SockId,
        f: impl FnOnce(&mut Ctx<Kd<P>>, &mut Connections<P, Self>) + Send + 'static,
    ) {
        self.hold(id, 1);
        self.tell(cx, id.shard(), move |org, cx, inside| {
            f(cx, &mut inside.shard);
            org.release(id, 1);
        });
    }

    fn ask_conn<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        id: SockId,
        f: impl FnOnce(&mut Ctx<Kd<P>>, &mut Connections<P, Self>) -> R + Send + 'static,
    ) -> Option<R> {
        self.hold(id, 1);
        self.ask(cx, id.shard(), move |org, cx, inside| {
            let out = f(cx, &mut inside.shard);
            org.release(id, 1);
            out
        })
    }
}

impl<P: Platform> Org for FireEngine<P> {
    type K = Kd<P>;

    fn new(spec: &OrgSpec, sh: &SharedState<Self::K>) -> Self {
        FireEngine::make(spec, sh)
    }

    fn on_packets(&self, cx: &mut Ctx<Self::K>) {
        let mut segs = core::mem::take(&mut cx.segs);
        if self.rings.is_empty() {
            self.input(cx, segs.as_mut_slice());
        } else {
            let n = self.rings.len();
            for (i, ring) in self.rings.iter().enumerate() {
                let all = segs.as_mut_slice();
                if all.iter().any(|s| s.hash as usize % n == i) {
                    let mine = all.iter_mut().filter(|s| s.hash as usize % n == i);
                    let dropped = ring.put(mine);
                    cx.count_own(counted::RING_FULL, dropped);
                }
            }
        }
        segs.clear();
        cx.segs = segs;
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
        self.tell_conn(cx, id, move |cx, shard| shard.posted(cx, id, op));
    }

    fn connect(
        &self,
        cx: &mut Ctx<Self::K>,
        flow: Flow,
        config: &Config,
    ) -> Result<SockId, ExistsError> {
        let n = self.here();
        if !self.ipcl.insert(flow.key, n) {
            return Err(ExistsError);
        }
        let config = config.clone();
        let made = self.ask(cx, n, move |org, cx, inside| {
            let shard = &mut inside.shard;
            let made = shard.connect(cx, flow, &config);
            if made.is_err() {
                org.ipcl.remove(&flow.key, n, None);
            }
            org.caught_up(cx, inside, &flow.key);
            made
        });
        made.unwrap_or(Err(ExistsError))
    }

    fn perimeters(&self) -> u16 {
        self.squeues.len() as u16
    }

    fn perimeter_of(&self, _: &SharedState<Self::K>, key: &FlowKey) -> Option<u16> {
        let flow = self.ipcl.find(key, |_| ()).map(|f| f.squeue);
        flow.or_else(|| self.ipcl.listener(key, None))
    }

    fn perimeter_of_request(
        &self,
        _: &SharedState<Self::K>,
        key: &FlowKey,
        listener: SockId,
    ) -> Option<u16> {
        let flow = self.ipcl.find(key, |_| ()).map(|f| f.squeue);
        flow.or_else(|| self.ipcl.home(listener))
    }

    fn home(&self, _: u32) -> u16 {
        self.here()
    }

    fn inside<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Self::K>,
        n: u16,
        job: impl Job<Self::K, R>,
    ) -> Option<R> {
        self.ask(cx, n, |_, cx, inside| job(&mut inside.shard, cx))
    }

    fn leave(&self, cx: &mut Ctx<Self::K>, n: u16, job: impl Job<Self::K, ()>) {
        self.tell(cx, n, |_, cx, inside| job(&mut inside.shard, cx));
    }

    fn listen(&self, cx: &mut Ctx<Self::K>, l: &Arc<Listener<Self::K>>) {
        let n = self.ipcl.bind(l, self.here());
        let l = l.clone();
        self.inside(cx, n, |sockets, _| sockets.listen(l));
    }

    fn unlisten(&self, cx: &mut Ctx<Self::K>, l: &Arc<Listener<Self::K>>) {
        if let Some(n) = self.ipcl.unbind(l.id) {
            let l = l.clone();
            self.inside(cx, n, move |sockets, cx| sockets.unlisten(cx, &l));
        }
    }

    fn on_timers(&self, cx: &mut Ctx<Self::K>) {
        let now = cx.now();
        for (squeue, due) in self.squeues.iter().zip(&self.due) {
            if !due.take(&self.p, now) {
                continue;
            }
            let at = (squeue, Who::Inbound);
            self.bring(
                cx,
                at,
                |_, cx, inside| inside.shard.on_timers(cx),
                |_| Msg::Timers,
            );
        }
    }

    fn next_timer(&self) -> Time {
        self.next_due()
    }

    fn inspect(&self, now: Time, out: &mut Vec<ConnInfo>) {
        self.each(|inside| inside.shard.inspect(now, out));
    }

    fn live(&self) -> usize {
        let mut n = 0;
        self.each(|inside| n += inside.shard.len());
        n
    }

    fn abort_all(&self, cx: &mut Ctx<Self::K>) {
        for squeue in &self.squeues {
            squeue.work(Who::Writer, |inside, m| {
                self.run(cx, inside, m, counted::DRAINED);
            });
        }
        self.each(|inside| inside.shard.abort_all(cx));
    }

    fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        for squeue in &self.squeues {
            add(LockClass::Squeue, squeue.stats());
        }
        self.ipcl.lock_stats(add);
        for place in self.outer.iter().flat_map(|h| h.iter()) {
            place.lock_stats(add);
        }
        for ring in &self.rings {
            add(LockClass::Leaf, ring.stats());
        }
    }

    fn binding(&self, id: SockId) -> Binding {
        let Some(squeue) = self.squeues.get(usize::from(id.shard())) else {
            return Binding::default();
        };
        Binding {
            perimeters: [(); 3].map(|()| format!("squeue {}", id.shard())),
            cores: [Some(squeue.core()); 3],
            ..Binding::default()
        }
    }

    fn workers(&self) -> usize {
        self.squeues.len() + self.rings.len()
    }

    fn work(&self, worker: usize, cx: &mut Ctx<Self::K>) -> usize {
        if let Some(squeue) = self.squeues.get(worker) {
            return squeue.work(Who::Worker, |inside, m| {
                self.run(cx, inside, m, counted::WORKER);
            });
        }
        let Some(ring) = self.rings.get(worker - self.squeues.len()) else {
            return 0;
        };
        let mut burst = Vec::new();
        ring.take(&mut burst, BURST);
        self.input(cx, &mut burst);
        burst.len()
    }

    fn park(&self, worker: usize, deadline: Time) {
        match self.squeues.get(worker) {
            Some(squeue) => squeue.park(deadline),
            None => {
                if let Some(ring) = self.rings.get(worker - self.squeues.len()) {
                    ring.park(deadline);
                }
            }
        }
    }

    fn wake_workers(&self) {
        self.squeues.iter().for_each(Squeue::end);
        self.rings.iter().for_each(|r| r.wake());
    }

    /// Messages and packets that wait or run; if there are none, references that nobody holds.
    fn pending(&self) -> usize {
        let squeues: usize = self.squeues.iter().map(Squeue::pending).sum();
        let rings: usize = self.rings.iter().map(|r| r.len()).sum();
        if squeues + rings > 0 {
            return squeues + rings;
        }
        let places = self.outer.iter().flat_map(|h| h.iter());
        places.map(|p| p.refs() as usize).sum()
    }
}
