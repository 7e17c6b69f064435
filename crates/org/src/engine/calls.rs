//! What a running stack does when its facade calls.

use super::datagrams::watch_datagram;
use super::running::Running;
use super::{Engine, Inspected, Listening, Stats, Undelivered};
use crate::error::EngineError;
use crate::instance::{Instance, OpenError};
use crate::pef::event::{End, EventId, EventSpec, Events, Layer, TraceSink};
use crate::pef::trace;
use crate::spec::OrgSpec;
use crate::{Binding, Org};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use perimeter_base::Time;
use perimeter_stack::hold::{Serial, Verdict};
use perimeter_stack::listener::{Accepted, ListenSpec, Listener, Requested};
use perimeter_stack::net::Cidr;
use perimeter_stack::ops::{
    Close, Data, How, Look, Readiness, Received, Recv, Released, SendData, Sent, Set, Setting,
    Shutdown, TakeError, Watching,
};
use perimeter_stack::poller::{Alarm, Notify, Ready, WatchError};
use perimeter_stack::port::TxPort;
use perimeter_stack::ready::Want;
use perimeter_stack::tasks::Tasks;
use perimeter_stack::{ConnInfo, Lease, SockError, SockId};
use perimeter_sync::{Lock, LockClass, LockStats, Platform, Work};
use perimeter_tcp::{Config, Layers, State, TcpError};
use perimeter_wire::FlowKey;
use std::io::IoSlice;
use std::os::fd::RawFd;
use std::sync::Arc;

impl<O: Org> Running<O> {
    /// As [`Running::enter`], to open something.
    pub(super) fn open(&self) -> Result<&Instance<O>, EngineError> {
        let i = self.enter()?;
        if i.sh.life.opens() {
            Ok(i)
        } else {
            Err(EngineError::Stopped)
        }
    }

    /// Tells the organization where the layers of a socket are to run.
    fn set_layers(&self, id: SockId, l: Layers) -> Result<(), EngineError> {
        let events = self.events()?;
        let squeues = [
            (Layer::Ip, l.ip),
            (Layer::Tcp, l.tcp),
            (Layer::Sockfs, l.sockfs),
        ];
        for (layer, squeue) in squeues {
            if let Some(squeue) = squeue {
                events.designate(id, layer, squeue)?;
            }
        }
        if let Some(on) = l.events {
            events.switch(id, on)?;
        }
        Ok(())
    }

    fn events(&self) -> Result<&dyn Events, EngineError> {
        self.enter()?.org.events().ok_or(EngineError::Unsupported)
    }

    fn watching(&self, id: SockId, reg: Watching) -> Result<(), EngineError> {
        if id.is_connection() {
            return self.call(id, reg);
        }
        if id.is_datagram() {
            return self.watching_datagram(id, reg);
        }
        let i = self.enter()?;
        let l = i.sh.listener(id).ok_or(SockError::Closed)?;
        i.with(|_, cx| {
            l.with_sides(|accept, ask| {
                for side in [accept, ask] {
                    match &reg {
                        Watching::Add(r) => side.register(r, &mut cx.deferred.wakes),
                        Watching::Remove(r) => side.deregister(r.poller, r.slot, r.generation),
                        Watching::Tasks(t) => side.add_tasks(t, &mut cx.deferred.wakes),
                    }
                }
            });
        });
        Ok(())
    }
}

impl<O: Org> Engine for Running<O> {
    fn spec(&self) -> &OrgSpec {
        &self.i.spec
    }

    fn now(&self) -> Time {
        self.i.sh.p.now()
    }

    fn tcp_config(&self) -> Config {
        self.i.sh.config.tcp.clone()
    }

    fn addrs(&self) -> Vec<Vec<Cidr>> {
        let sh = &self.i.sh;
        (0..sh.loopback().0).map(|n| sh.addrs(n)).collect()
    }

    fn leases(&self) -> Vec<Lease> {
        self.look_inside(|i| i.sh.leases()).unwrap_or_default()
    }

    fn duplicates(&self) -> Vec<(u16, Ipv6Addr)> {
        self.i.sh.duplicates()
    }

    fn interfaces(&self) -> Vec<String> {
        let all = self.i.sh.ifaces.iter();
        all.map(|i| i.caps.name.clone()).collect()
    }

    fn connect_by(
        &self,
        device: Option<u16>,
        local: (Option<IpAddr>, u16),
        remote: SocketAddr,
        config: &Config,
    ) -> Result<SockId, EngineError> {
        let i = self.open()?;
        known(i, device)?;
        let remote = (remote.ip(), remote.port());
        i.with(|i, cx| i.open_flow(cx, local, remote, device, config))
            .map_err(|e| match e {
                OpenError::NoRoute => EngineError::NoRoute,
                OpenError::NotOurs => EngineError::NotOurs,
                OpenError::InUse => EngineError::AddrInUse,
                OpenError::NoMemory => EngineError::NoMemory,
                OpenError::Gone => EngineError::NetDown,
            })
    }

    fn listen(&self, spec: &ListenSpec) -> Result<(SockId, u16), EngineError> {
        let i = self.open()?;
        known(i, spec.device)?;
        if let Some(a) = spec.addr
            && !a.is_unspecified()
            && !i.sh.may_bind(a)
        {
            return Err(EngineError::NotOurs);
        }
        let id = i
            .with(|i, cx| i.listen(cx, spec))
            .map_err(|_| EngineError::AddrInUse)?;
        let port = i.sh.listener(id).map_or(0, |l| l.port);
        Ok((id, port))
    }

    fn request(&self, listener: SockId) -> Result<(FlowKey, Serial), EngineError> {
        let i = self.enter()?;
        let l = i.sh.listener(listener).ok_or_else(|| self.gone())?;
        match l.request(i.sh.p.now()) {
            Requested::Syn(key, serial) => {
                i.sh.p.charge(Work::SockCall, 1);
                Ok((key, serial))
            }
            Requested::None if i.sh.all_gone() => Err(EngineError::NetDown),
            Requested::None => Err(SockError::WouldBlock.into()),
            Requested::Never => Err(SockError::Invalid.into()),
            Requested::Closed => Err(self.gone()),
        }
    }

    fn decide(
        &self,
        listener: SockId,
        request: (FlowKey, Serial),
        verdict: Verdict,
    ) -> Result<bool, EngineError> {
        let (key, serial) = request;
        match self.enter() {
            Ok(i) => Ok(i.with(|i, cx| i.decide(cx, listener, (&key, serial), verdict))?),
            Err(EngineError::WrongThread) => {
                self.i.leave(move |i| {
                    // Its listener may have gone since.
                    let _ = i.with(|i, cx| i.decide(cx, listener, (&key, serial), verdict));
                });
                Ok(true)
            }
            Err(e) => Err(e),
        }
    }

    fn accept(&self, listener: SockId) -> Result<(SockId, FlowKey), EngineError> {
        let i = self.enter()?;
        let l = i.sh.listener(listener).ok_or_else(|| self.gone())?;
        match l.accept() {
            Accepted::Conn(id, key) => {
                i.sh.p.charge(Work::SockCall, 1);
                Ok((id, key))
            }
            Accepted::Empty if i.sh.all_gone() => Err(EngineError::NetDown),
            Accepted::Empty => Err(SockError::WouldBlock.into()),
            Accepted::Closed => Err(self.gone()),
        }
    }

    fn send(&self, id: SockId, data: Data<'static>, more: bool) -> Result<Sent, EngineError> {
        self.i.sh.p.charge(Work::Copy, data.copied() as u64);
        Ok(self.call(id, SendData::new(data, more))??)
    }

    fn write(
        &self,
        id: SockId,
        bufs: &[IoSlice<'_>],
        more: bool,
    ) -> Option<Result<Sent, EngineError>> {
        let run = |i: &Instance<O>| {
            let op = SendData::new(Data::borrowed(bufs), more);
            let sent = i.with(|i, cx| i.org.call_here(cx, id, op)).ok()?;
            Some(sent.ok_or_else(|| self.gone()).and_then(|r| Ok(r?)))
        };
        match self.enter_conn(id) {
            Ok(i) if O::HERE => run(i),
            Ok(_) => None,
            Err(e) => Some(Err(e)),
        }
    }

    fn batch(&self, begins: bool) -> Result<(), EngineError> {
        self.enter()?.batch(begins);
        Ok(())
    }

    fn recv(&self, id: SockId, max: usize, peek: bool) -> Result<Received, EngineError> {
        Ok(self.call(id, Recv { max, peek })??)
    }

    fn recycle(&self, bufs: Received) {
        self.i.with(|_, cx| {
            // The caller has copied them.
            let copied: usize = bufs.iter().map(|b| b.len()).sum();
            cx.sh.p.charge(Work::Copy, copied as u64);
            cx.pool.put_all(bufs);
        });
    }

    fn shutdown(&self, id: SockId, how: How) -> Result<(), EngineError> {
        Ok(self.call(id, Shutdown(how))??)
    }

    fn close(&self, id: SockId, abort: bool) -> Result<(), EngineError> {
        if id.is_listener() {
            let i = self.enter()?;
            return Ok(i.with(|i, cx| i.close_listener(cx, id))?);
        }
        if id.is_datagram() {
            let i = self.enter()?;
            let closed = i.with(|i, cx| i.close_datagram(cx, id));
            return closed.then_some(()).ok_or_else(|| self.gone());
        }
        self.call(id, Close { abort })
    }

    fn set(&self, id: SockId, s: Setting) -> Result<(), EngineError> {
        if let Setting::Layers(l) = s {
            self.set_layers(id, l)?;
            if !id.is_listener() {
                return Ok(());
            }
        }
        if id.is_listener() {
            self.enter()?
                .sh
                .listener(id)
                .ok_or(SockError::Closed)?
                .set(s);
            return Ok(());
        }
        self.call(id, Set(s))
    }

    fn listening(&self, id: SockId) -> Result<Listening, EngineError> {
        let i = self.enter()?;
        let l = i.sh.listener(id).ok_or(SockError::Closed)?;
        Ok(listening(i, &l))
    }

    fn look(&self, id: SockId) -> Result<ConnInfo, EngineError> {
        self.call(id, Look)
    }

    fn readiness(&self, id: SockId) -> Result<u8, EngineError> {
        if id.is_connection() {
            return self.call(id, Readiness);
        }
        if id.is_datagram() {
            return self.datagram_readiness(id);
        }
        let l = self.enter()?.sh.listener(id).ok_or(SockError::Closed)?;
        Ok(l.with_sides(|accept, ask| accept.bits() | ask.bits()))
    }

    fn take_error(&self, id: SockId) -> Result<(Option<TcpError>, State), EngineError> {
        self.call(id, TakeError)
    }

    fn released(&self, id: SockId) -> Result<(u64, u64), EngineError> {
        self.call(id, Released)
    }

    fn wait(&self, id: SockId, direction: u8, deadline: Time) -> Result<(), EngineError> {
        self.enter()?;
        let queues = self.own_queues();
        let result = self.wait_for(id, direction, &queues, deadline);
        self.i.arm_alarm(&queues);
        result
    }

    fn poller(&self) -> Result<u32, EngineError> {
        let i = self.enter()?;
        i.sh.pollers
            .create(&i.sh.p)
            .map_err(|_| EngineError::TooManyPollers)
    }

    fn poller_close(&self, poller: u32) {
        match self.enter() {
            Ok(i) => close_poller(i, poller),
            Err(EngineError::WrongThread) => self.i.leave(move |i| close_poller(i, poller)),
            Err(_) => {}
        }
    }

    fn register(
        &self,
        poller: u32,
        id: SockId,
        token: usize,
        want: Want,
    ) -> Result<(), EngineError> {
        let i = self.enter()?;
        let p = i.sh.pollers.get(poller).ok_or(SockError::Closed)?;
        let word = p.register(poller, id, token, want).map_err(|e| match e {
            WatchError::Closed => EngineError::Sock(SockError::Closed),
            WatchError::Twice => EngineError::Registered(true),
        })?;
        self.watching(id, Watching::Add(word.clone()))
            .inspect_err(|_| {
                p.deregister(word.slot, word.generation);
            })
    }

    fn deregister(&self, poller: u32, id: SockId) -> Result<(), EngineError> {
        let i = self.enter()?;
        let p = i.sh.pollers.get(poller).ok_or(SockError::Closed)?;
        let word = p.find(id).ok_or(EngineError::Registered(false))?;
        p.deregister(word.slot, word.generation);
        match self.watching(id, Watching::Remove(word)) {
            Err(EngineError::Sock(SockError::Closed)) => Ok(()),
            other => other,
        }
    }

    fn watch(&self, id: SockId, tasks: Arc<Tasks>) -> Result<(), EngineError> {
        let i = self.enter()?;
        i.sh.tasks.add(&tasks);
        self.watching(id, Watching::Tasks(tasks.clone()))?;
        // Whoever ends the stack ends those who are known, or has said so by now.
        if i.stopping() {
            tasks.end();
        }
        Ok(())
    }

    fn poll(
        &self,
        poller: u32,
        queues: &[u16],
        out: &mut Vec<Ready>,
        max: usize,
        deadline: Time,
    ) -> Result<usize, EngineError> {
        let n = self.poll_for(poller, queues, out, max, deadline)?;
        self.i.arm_alarm(queues);
        Ok(n)
    }

    fn poller_wake(&self, poller: u32) {
        match self.enter() {
            Ok(i) => {
                if let Some(p) = i.sh.pollers.get(poller) {
                    p.wake();
                }
            }
            // Its thread wakes itself: it is the only one that may wait there.
            Err(EngineError::WrongThread) => self.i.leave_wake(poller),
            Err(_) => {}
        }
    }

    fn poller_notify(&self, poller: u32, n: Arc<dyn Notify>) {
        if let Ok(i) = self.enter()
            && let Some(p) = i.sh.pollers.get(poller)
        {
            p.set_notify(n);
        }
    }

    fn alarm(&self, make: &dyn Fn() -> Arc<dyn Alarm>) -> Option<(Arc<dyn Alarm>, Vec<RawFd>)> {
        let i = self.enter().ok().filter(|i| i.spec.single_threaded())?;
        let alarm = i.set_alarm(make);
        i.arm_alarm(&self.queues());
        Some((alarm, i.sh.rx.iter().filter_map(|r| r.fd).collect()))
    }

    fn gone_interfaces(&self) -> Vec<String> {
        let gone = self.i.sh.ifaces.iter().filter(|i| i.is_gone());
        gone.map(|i| i.caps.name.clone()).collect()
    }

    fn inline(&self) -> bool {
        self.inline
    }

    fn queues(&self) -> Vec<u16> {
        self.i.queues()
    }

    fn flow_hash(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        self.i.sh.flow_hash(&FlowKey {
            local: local.ip(),
            remote: remote.ip(),
            local_port: local.port(),
            remote_port: remote.port(),
        })
    }

    fn drive(&self, queues: &[u16]) -> Result<usize, EngineError> {
        let i = self.enter()?;
        let n = i.with(|i, cx| i.drive(cx, queues));
        i.arm_alarm(queues);
        Ok(n)
    }

    fn next_due(&self) -> Time {
        self.enter()
            .map_or(Time::NEVER, |i| i.next_due(&self.queues()))
    }

    fn stats(&self) -> Stats {
        let i = &self.i;
        let totals = i.sh.counters.totals();
        let names = perimeter_stack::count::names(i.spec.family().counts);
        let mut stats = Stats {
            counts: names.zip(totals).collect(),
            memory: i.sh.memory(),
            profile: i.sh.p.profile().map(Box::new),
            ..Stats::default()
        };
        // The rest is behind locks that a stack of one thread opens for that thread only.
        match self.look_inside(behind_locks) {
            Some(found) => {
                stats.locks = found.locks;
                stats.peer_ns = found.peer_ns;
                stats.connections = found.connections;
            }
            None => stats.partial = true,
        }
        stats
    }

    fn connections(&self) -> Result<Vec<ConnInfo>, EngineError> {
        let inspect = |i: &Instance<O>| {
            let mut out = Vec::new();
            i.org.inspect(i.sh.p.now(), &mut out);
            out
        };
        self.look_inside(inspect).ok_or(EngineError::Absent)
    }

    fn inspect(&self, deadline: Time) -> Result<(Vec<Listening>, Vec<Inspected>), EngineError> {
        if !self.i.sh.life.on() {
            return Err(self.over());
        }
        let found = self.i.anywhere(deadline, |i| {
            let all = i.sh.listeners();
            let listening = all.iter().map(|l| listening(i, l)).collect();
            let mut conns = Vec::new();
            i.org.inspect(i.sh.p.now(), &mut conns);
            let bound = conns.into_iter().map(|info| Inspected {
                binding: i.org.binding(info.id),
                info,
            });
            (listening, bound.collect())
        });
        found.ok_or(EngineError::Absent)
    }

    fn quiescent(&self) -> Result<(), String> {
        if !self.may_look() {
            return Err("it belongs to another thread".to_string());
        }
        self.i.quiescent()
    }

    fn stop(&self) {
        self.stop_now();
    }

    fn finish(&self, limit: Duration) -> Result<Undelivered, EngineError> {
        self.finish_all(limit)
    }

    fn release(&self, id: SockId) {
        match self.enter() {
            Ok(i) => i.let_go(id),
            Err(EngineError::WrongThread) => self.i.leave(move |i| i.let_go(id)),
            // It has gone with the stack.
            Err(_) => {}
        }
    }

    fn binding(&self, id: SockId) -> Binding {
        self.enter()
            .map_or_else(|_| Binding::default(), |i| i.org.binding(id))
    }

    fn send_frame(&self, iface: u16, frame: &[u8]) -> Result<(), EngineError> {
        self.enter()?
            .with(|i, cx| i.sh.send_frame(cx, iface, frame));
        Ok(())
    }

    fn register_event(&self, spec: EventSpec) -> Result<EventId, EngineError> {
        Ok(self.events()?.register(spec)?)
    }

    fn insert_event(&self, id: SockId, end: End, spec: EventSpec) -> Result<EventId, EngineError> {
        Ok(self.events()?.insert(id, end, spec)?)
    }

    fn disable_event(&self, id: SockId, event: EventId) -> Result<(), EngineError> {
        Ok(self.events()?.disable(id, event)?)
    }

    fn trace(&self, id: SockId, sink: TraceSink) -> Result<[EventId; 2], EngineError> {
        let events = self.events()?;
        let [receive, transmit] = trace::events(sink);
        let first = events.insert(id, End::Front, receive)?;
        match events.insert(id, End::Back, transmit) {
            Ok(second) => Ok([first, second]),
            Err(e) => {
                // Whatever becomes of that: the trace has not begun.
                let _ = events.disable(id, first);
                Err(e.into())
            }
        }
    }

    fn set_events_on(&self, id: SockId, on: bool) -> Result<(), EngineError> {
        self.set(id, Setting::Layers(Layers::default().with_events(Some(on))))
    }

    fn set_squeue(&self, id: SockId, layer: Layer, squeue: u16) -> Result<(), EngineError> {
        let layers = Layers::default();
        let layers = match layer {
            Layer::Ip => layers.with_ip(Some(squeue)),
            Layer::Tcp => layers.with_tcp(Some(squeue)),
            Layer::Sockfs => layers.with_sockfs(Some(squeue)),
        };
        self.set(id, Setting::Layers(layers))
    }
}

/// Whether there is an interface of that number.
fn known<O: Org>(i: &Instance<O>, device: Option<u16>) -> Result<(), EngineError> {
    match i.sh.has_interface(device) {
        true => Ok(()),
        false => Err(EngineError::NoInterface),
    }
}

/// What there is to say about a listener.
fn listening<O: Org>(i: &Instance<O>, l: &Listener<O::K>) -> Listening {
    let leaving = l.leaving();
    Listening {
        id: l.id,
        addr: l.addr,
        port: l.port,
        queued: l.queued(),
        backlog: l.backlog(),
        device: l.device,
        ttl: leaving.ttl.unwrap_or(i.sh.config.ttl),
        tos: leaving.tos,
    }
}

/// Closes a poller and takes its registrations off their sockets.
fn close_poller<O: Org>(i: &Instance<O>, poller: u32) {
    for (sock, word) in i.sh.pollers.close(poller) {
        // A socket that has gone has taken its side of the registration along.
        if sock.is_listener() {
            if let Some(l) = i.sh.listener(sock) {
                l.with_sides(|accept, ask| {
                    for side in [accept, ask] {
                        side.deregister(word.poller, word.slot, word.generation);
                    }
                });
            }
        } else if sock.is_datagram() {
            i.with(|i, cx| watch_datagram(i, cx, sock, Watching::Remove(word)));
        } else {
            i.with(|i, cx| i.org.call(cx, sock, Watching::Remove(word)));
        }
    }
}

/// The part of [`Stats`] that is behind locks.
fn behind_locks<O: Org>(i: &Instance<O>) -> Stats {
    let mut stats = Stats::default();
    let mut add = |class: LockClass, s: LockStats| {
        stats.locks.entry(class.name()).or_default().add(s);
    };
    i.org.lock_stats(&mut add);
    i.made.lock_stats(&mut add);
    i.sh.lock_stats(&mut add);
    // Who looked held devices meanwhile, and left what was to be rung there to those who serve them.
    i.rouse_for_devices();
    stats.locks.retain(|_, s| s.acquisitions > 0);
    let rx = i.sh.rx.iter().map(|r| r.queue.lock().peer_ns());
    let tx = i.sh.tx.iter().map(TxPort::peer_ns);
    stats.peer_ns = rx.chain(tx).sum();
    stats.connections = i.org.live();
    stats
}
