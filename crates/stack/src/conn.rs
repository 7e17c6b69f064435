//! A connection in three parts that can be protected apart, and the seam through which the
//! glue reaches them.

use crate::ctx::Ctx;
use crate::flow::Flow;
use crate::id::SockId;
use crate::kind::{Kind, Tag};
use crate::listener::Listener;
use crate::marks::Marks;
use crate::memory::{SET_ASIDE, Trust};
use crate::path::path_tried;
use crate::quota::End;
use crate::ready::{self, Side};
use crate::segment::{NOWHERE, Outgoing, Up};
use crate::shared::SharedState;
use core::ops::DerefMut;
use perimeter_base::Time;
use perimeter_tcp::{Config, Events, RcvBuf, SndBuf, State, Tcb, Timers};
use perimeter_wire::{FlowKey, MacAddr, Seq, Template};
use std::sync::Arc;

/// What is protected as TCP state.
pub struct TcbSide<K: Kind> {
    /// The state machine.
    pub tcb: Tcb,
    /// What the stack adds.
    pub meta: Meta<K>,
}

impl<K: Kind> TcbSide<K> {
    /// As what the perimeter is to count the connection now, if that has changed: `Some(None)`
    /// when it is not to be counted any more.
    #[inline]
    pub fn end_changed(&mut self) -> Option<Option<End>> {
        if !self.meta.orphan {
            return None;
        }
        let end = match self.tcb.state() {
            _ if self.meta.closed => None,
            State::TimeWait | State::FinWait2 => Some(End::Waiting),
            _ => Some(End::Orphan),
        };
        (self.meta.end != end).then(|| {
            self.meta.end = end;
            end
        })
    }

    /// What is sent from now on goes by a neighbour that is asked soon unless something tells before
    /// that it is there (`awaited`); or by one that nothing need be told of. Most connections go by
    /// such a one, so those of whom a word is waited for are guarded, as those that are bound to an
    /// interface are: header prediction leaves their segments, and nothing is looked at for others.
    pub(crate) fn await_hint(&mut self, awaited: bool) {
        let before = self.meta.hint.is_some();
        self.meta.hint = awaited.then(|| self.tcb.snd_nxt());
        if before || awaited {
            self.guard();
        }
    }

    /// Puts the guard on that is taken off for a segment, if there is still something to look for.
    pub(crate) fn guard(&mut self) {
        let on = self.meta.device.is_some() || self.meta.hint.is_some();
        self.tcb.set_guarded(on);
    }

    /// A segment was taken: tells of the next hop if it has acknowledged what went by that, which
    /// shows that this is there (RFC 4861, section 7.3.1).
    pub(crate) fn hinted(&mut self, cx: &mut Ctx<K>, now: Time) {
        let una = self.tcb.snd_una();
        if self.meta.hint.take_if(|beyond| una.gt(*beyond)).is_none() {
            return;
        }
        // The way may be another one by now.
        if self.meta.net_generation == cx.sh.net_generation() {
            let to = (self.meta.key.remote, self.meta.by);
            cx.sh.routes.confirm(to, now);
        }
    }
}

/// What the stack knows of a connection beside its TCP state.
pub struct Meta<K: Kind> {
    /// Our name of it.
    pub id: SockId,
    /// The flow.
    pub key: FlowKey,
    /// Hash of the flow.
    pub hash: u32,
    /// Headers of its segments.
    pub template: Template,
    /// DSCP and ECN of its datagrams (IP_TOS).
    pub tos: u8,
    /// Their time to live, or hop limit, if it has one of its own (IP_TTL).
    pub ttl: Option<u8>,
    /// The transmit queue that all its segments take, so that they stay in order.
    pub txq: u16,
    /// Generation of routes and neighbours that `template` was made from; 0: not resolved.
    pub net_generation: u32,
    /// The interface that it is bound to (SO_BINDTODEVICE): its segments come and go by that one
    /// only. Its TCP is guarded then.
    pub device: Option<u16>,
    /// The interface that routes must lead to for `template`: that one, or the one that stands for its
    /// address.
    pub by: Option<u16>,
    /// IP identification of the next segment.
    pub ident: u16,
    /// When the live entry in the timer wheel fires; [`Time::NEVER`]: there is none.
    pub armed: Time,
    /// The application has closed its handle; the connection goes when TCP is done.
    pub orphan: bool,
    /// TCP is done: out of the tables.
    pub closed: bool,
    /// Bytes that count for it beside its buffers: being there, and what TCP holds out of order.
    pub weight: usize,
    /// It is on the list of those who hold much out of order.
    pub hoards: bool,
    /// As what its perimeter counts it among those that no application holds.
    pub end: Option<End>,
    /// When it was entered last, as [`crate::glue::now`] tells.
    pub now: Time,
    /// On the list of those that wait for room in the transmit queue.
    pub blocked: bool,
    /// Seconds that close lingers (SO_LINGER).
    pub linger: Option<core::time::Duration>,
    /// The core on which IP did its last segment that came in.
    pub ip_core: u16,
    /// The core on which TCP ran last.
    pub tcp_core: u16,
    /// The word of its own about its next hop that somebody waits for: that something beyond this is
    /// acknowledged. Its TCP is guarded then.
    pub(crate) hint: Option<Seq>,
    /// Who is told when the handshake completes, for a connection that was accepted.
    pub listener: Option<Arc<Listener<K>>>,
    /// Cache lines of the TCP state, and of this.
    pub lines: Tag<K>,
}

impl<K: Kind> Meta<K> {
    /// Whether its segments may come by interface `iface`.
    pub(crate) fn may_come_by(&self, iface: u16) -> bool {
        self.device.is_none_or(|n| n == iface)
    }
}

/// What is protected with the send buffer.
pub struct SndSide<K: Kind> {
    /// Bytes from `snd_una` on.
    pub buf: SndBuf,
    /// Readiness to write.
    pub side: Side<K>,
    /// No more can be sent: shut down, or the connection is over.
    pub shut: bool,
    /// Bytes ever appended.
    pub appended: u64,
    /// Bytes ever acknowledged.
    pub acked: u64,
    /// The core of the last send call that appended something.
    pub core: u16,
    /// How much its peer is trusted with while memory is short.
    pub trust: Trust,
    /// Cache lines of all this.
    pub lines: Tag<K>,
}

/// What is protected with the receive buffer.
pub struct RcvSide<K: Kind> {
    /// Bytes in order.
    pub buf: RcvBuf,
    /// Readiness to read.
    pub side: Side<K>,
    /// The application will read no more, or the connection is over.
    pub shut: bool,
    /// The application has closed the socket: a call that comes late is to fail, not to find
    /// the end of the stream.
    pub left: bool,
    /// Nothing more will come: the peer has sent all, or the connection is over.
    pub eof: bool,
    /// The peer's FIN has come: what ends the stream for good, whatever happens to the connection
    /// afterwards.
    pub fin: bool,
    /// The core of the last receive call.
    pub core: u16,
    /// Space freed since TCP was last told, bytes.
    pub untold: u32,
    /// [`RcvBuf::step`] for the buffer's limit: [`RcvSide::set_limit`] keeps it.
    step: u32,
    /// TCP learns of free space as from a STREAMS queue: while it delivers, and by back-enabling.
    /// `None`: it is told after reads.
    pub marks: Option<Marks>,
    /// A STREAM-head read queue: its lock is taken anew for each message.
    pub messages: bool,
    /// How many were taken off it, wrapping: who takes one after the other finds out whether
    /// somebody else has come between.
    pub gets: u16,
    /// The MSS of our end.
    pub mss: u16,
    /// Cache lines of all this.
    pub lines: Tag<K>,
    /// Those of the payload that it refers to.
    pub payload: Tag<K>,
}

impl<K: Kind> SndSide<K> {
    /// An empty send side with room for `limit` bytes.
    pub fn new(limit: u32) -> SndSide<K> {
        SndSide {
            buf: SndBuf::new(limit),
            side: Side::write(),
            shut: false,
            appended: 0,
            acked: 0,
            core: NOWHERE,
            trust: Trust::default(),
            lines: Tag::<K>::default(),
        }
    }

    /// `n` bytes were acknowledged: pages go as soon as the device is done with them.
    #[inline]
    pub fn ack(&mut self, n: u32) {
        self.acked += u64::from(n);
        self.buf.ack(n);
    }

    /// Whether a writer is told now.
    #[inline]
    pub fn is_roomy(&self, config: &crate::Config) -> bool {
        config.is_roomy(self.buf.space(), self.buf.limit())
    }

    /// Bytes of memory that are pinned.
    #[inline]
    pub fn memory(&self) -> usize {
        self.buf.memory()
    }

    /// Bytes that count beside those set aside for the connection.
    #[inline]
    pub fn charged(&self) -> usize {
        self.memory().saturating_sub(SET_ASIDE)
    }
}

impl<K: Kind> RcvSide<K> {
    /// An empty receive side with room for `limit` bytes.
    pub fn new(limit: u32, mss: u16) -> RcvSide<K> {
        let buf = RcvBuf::new(limit);
        RcvSide {
            step: RcvBuf::step(buf.limit(), mss),
            buf,
            side: Side::read(),
            shut: false,
            left: false,
            eof: false,
            fin: false,
            core: NOWHERE,
            untold: 0,
            marks: None,
            messages: false,
            gets: 0,
            mss,
            lines: Tag::<K>::default(),
            payload: Tag::<K>::default(),
        }
    }

    /// From now on TCP learns of free space by water marks.
    pub fn set_marks(&mut self) {
        self.marks = Some(Marks::new(self.buf.limit(), self.mss));
    }

    /// Changes the limit of the buffer, and what follows from it. TCP is to be told next: it knows
    /// the limit from [`Tcb::app_read`] only.
    pub fn set_limit(&mut self, limit: u32) {
        self.buf.set_limit(limit);
        self.step = RcvBuf::step(self.buf.limit(), self.mss);
        if let Some(m) = &mut self.marks {
            m.set_limit(self.buf.limit(), self.mss);
        }
    }

    /// TCP is told when at least this much was freed, bytes.
    #[inline]
    pub fn tell_at(&self) -> u32 {
        self.step
    }

    /// The application has taken `n` bytes: whether TCP is to be told.
    #[inline]
    pub fn took(&mut self, n: u32) -> bool {
        match &mut self.marks {
            Some(m) => m.get(n),
            None => {
                self.untold += n;
                self.untold >= self.step
            }
        }
    }

    /// TCP is about to deliver `n` bytes, here or on their way. The space to offer behind them,
    /// if this is where TCP learns of it.
    #[inline]
    pub fn admit(&mut self, n: u32) -> Option<u32> {
        let limit = self.buf.limit();
        let m = self.marks.as_mut()?;
        m.put_next(n);
        m.can_put_next().then(|| limit.saturating_sub(m.held()))
    }

    /// Bytes that count beside those set aside for the connection.
    #[inline]
    pub fn charged(&self) -> usize {
        self.buf.memory().saturating_sub(SET_ASIDE)
    }

    /// Space to offer to the peer, bytes.
    pub fn space(&self) -> u32 {
        match &self.marks {
            Some(m) => self.buf.limit().saturating_sub(m.held()),
            None => self.buf.space(),
        }
    }
}

/// A connection whole: for organizations that protect all three parts together.
pub struct Conn<K: Kind> {
    /// TCP state.
    pub tcb: TcbSide<K>,
    /// Send side.
    pub snd: SndSide<K>,
    /// Receive side.
    pub rcv: RcvSide<K>,
}

impl<K: Kind> Conn<K> {
    /// A connection that was just opened, with the settings `config`.
    pub fn new(sh: &SharedState<K>, config: &Config, id: SockId, flow: Flow, tcb: Tcb) -> Conn<K> {
        let Flow {
            key,
            hash,
            iface,
            device,
        } = flow;
        let nowhere = Some((MacAddr::UNSPECIFIED, MacAddr::UNSPECIFIED));
        let mss = tcb.adv_mss();
        let txq = sh.ifaces[usize::from(iface)].txq(hash);
        let mut tcb = tcb;
        let large = sh.tx[usize::from(txq)].large.is_some();
        tcb.set_large(large);
        tcb.set_defer(large);
        tcb.set_ack_on_read(large && sh.config.stretch_acks);
        sh.begin_on_path(&mut tcb, key.remote);
        if device.is_some() {
            tcb.set_guarded(true);
        }
        let meta = Meta {
            id,
            key,
            hash,
            template: Template::new(nowhere, &key, sh.hops(iface, key.remote), 0),
            tos: config.tos,
            ttl: config.ttl,
            txq,
            net_generation: 0,
            device,
            by: device,
            ident: sh.isn.ident(&key),
            armed: Time::NEVER,
            orphan: false,
            closed: false,
            weight: 0,
            hoards: false,
            end: None,
            now: Time::ZERO,
            blocked: false,
            linger: None,
            ip_core: NOWHERE,
            tcp_core: NOWHERE,
            hint: None,
            listener: None,
            lines: Tag::<K>::default(),
        };
        Conn {
            tcb: TcbSide { tcb, meta },
            snd: SndSide::new(config.snd_buf),
            rcv: RcvSide::new(config.rcv_buf, mss),
        }
    }
}

/// Access to the buffers of a connection.
pub trait Bufs {
    /// Platform and locks.
    type K: Kind;
    /// Access to the send side, for as long as it lives.
    type Snd<'a>: DerefMut<Target = SndSide<Self::K>>
    where
        Self: 'a;
    /// Access to the receive side, for as long as it lives.
    type Rcv<'a>: DerefMut<Target = RcvSide<Self::K>>
    where
        Self: 'a;
    /// Enters the send side.
    fn snd(&mut self) -> Self::Snd<'_>;
    /// Enters the receive side.
    fn rcv(&mut self) -> Self::Rcv<'_>;
}

/// Access to a connection whose TCP state is protected already. The hooks mark lock
/// boundaries: organizations with more than one lock give them bodies.
pub trait Access: Bufs {
    /// The buffers are protected apart from the TCP state: no other lock may be held while a
    /// buffer is entered, so segments are placed one by one.
    const SPLIT: bool = false;

    /// The TCP state.
    fn tcb(&mut self) -> &mut TcbSide<Self::K>;
    /// What the stack knows beside TCP state.
    fn tcb_meta(&mut self) -> &mut Meta<Self::K> {
        &mut self.tcb().meta
    }
    /// TCP state and send side together.
    fn tcb_snd(&mut self) -> (&mut TcbSide<Self::K>, Self::Snd<'_>);
    /// TCP state and receive side together.
    fn tcb_rcv(&mut self) -> (&mut TcbSide<Self::K>, Self::Rcv<'_>);
    /// Input took a header-prediction path.
    fn fast_path(&mut self) {}
    /// Input, a timer or a call is done with the tables; output follows.
    fn before_output(&mut self) {}
    /// These timers fired.
    fn timers(&mut self, _fired: Timers) {}
    /// A segment is about to be routed.
    fn route(&mut self, _sh: &SharedState<Self::K>) {}
    /// Where news for the socket layer is collected, for organizations in which that layer has a
    /// turn of its own; else it is delivered at once.
    #[inline(always)]
    fn up(&mut self) -> Option<&mut Up> {
        None
    }
    /// Where segments to send are collected, for organizations in which IP has a turn of its
    /// own; else they are placed in the transmit ring at once.
    #[inline(always)]
    fn out(&mut self) -> Option<&mut Outgoing> {
        None
    }
}

impl<K: Kind> Bufs for Conn<K> {
    type K = K;
    type Snd<'a> = &'a mut SndSide<K>;
    type Rcv<'a> = &'a mut RcvSide<K>;

    #[inline]
    fn snd(&mut self) -> &mut SndSide<K> {
        &mut self.snd
    }

    #[inline]
    fn rcv(&mut self) -> &mut RcvSide<K> {
        &mut self.rcv
    }
}

impl<K: Kind> Access for Conn<K> {
    #[inline]
    fn tcb(&mut self) -> &mut TcbSide<K> {
        &mut self.tcb
    }

    #[inline]
    fn tcb_snd(&mut self) -> (&mut TcbSide<K>, &mut SndSide<K>) {
        (&mut self.tcb, &mut self.snd)
    }

    #[inline]
    fn tcb_rcv(&mut self) -> (&mut TcbSide<K>, &mut RcvSide<K>) {
        (&mut self.tcb, &mut self.rcv)
    }
}

/// A connection as a [`Shard`](crate::Shard) keeps it: whole, or with parts that live elsewhere
/// because others reach them without entering the shard.
pub trait Cell: Access + Send + Sized + 'static {
    /// Where such parts live; one for each shard.
    type Outside: Send + 'static;

    /// Puts a new connection, with what it was `made` of, in its place. `None`: there is no room.
    fn make(
        outside: &mut Self::Outside,
        made: (&SharedState<Self::K>, &Config),
        conn: Conn<Self::K>,
    ) -> Option<Self>;

    /// The TCP state, to read.
    fn peek(&self) -> &TcbSide<Self::K>;

    /// A segment, timer or operation is about to begin with this connection: what others have
    /// changed about it meanwhile is taken over.
    #[inline(always)]
    fn entered(&mut self) {}

    /// A segment, timer or operation is done with this connection, and the shard is about to
    /// turn to something else: parts that live elsewhere are told what they must know.
    #[inline]
    fn left(&mut self, cx: &mut Ctx<Self::K>) {
        let _ = cx;
    }

    /// The shard's table forgets the connection: it is over, though an application may still
    /// hold it.
    #[inline]
    fn unlinked(&self, outside: &mut Self::Outside) {
        let _ = outside;
    }

    /// A slot whose connection had moved to another shard ([`Shard::depart`](crate::Shard::depart))
    /// and is over there.
    #[inline]
    fn vacated(outside: &mut Self::Outside) -> Option<u32> {
        let _ = outside;
        None
    }

    /// The connection is over and nobody holds it: its parts come back together. From here on its
    /// name opens nothing.
    fn leave(self, outside: &mut Self::Outside) -> Conn<Self::K>;
}

impl<K: Kind> Cell for Conn<K> {
    type Outside = ();

    #[inline]
    fn make((): &mut (), _: (&SharedState<K>, &Config), conn: Conn<K>) -> Option<Self> {
        Some(conn)
    }

    #[inline]
    fn peek(&self) -> &TcbSide<K> {
        &self.tcb
    }

    #[inline]
    fn leave(self, (): &mut ()) -> Conn<K> {
        self
    }
}

/// Tells the socket what happened to its connection. Called with the TCP state protected.
pub fn on_events<A: Access>(a: &mut A, events: Events, cx: &mut Ctx<A::K>) {
    if events.contains(Events::CONNECTED) {
        let meta = &mut a.tcb().meta;
        if let Some(listener) = meta.listener.take() {
            cx.deferred.accepts.push((listener, meta.id, meta.key));
        }
        a.snd().side.raise(ready::OUT, &mut cx.deferred.wakes);
    }
    if events.contains(Events::CLOSED) {
        a.tcb().meta.closed = true;
    }
    if events.intersects(Events::BLACK_HOLE | Events::PATH_MTU) {
        let t = a.tcb();
        path_tried(&t.tcb, (t.meta.key.remote, t.meta.now), events, cx);
    }
    let failed = a.tcb().tcb.error().is_some();
    let apart = a.up().is_some_and(|up| {
        up.events |= events;
        up.failed |= failed;
        true
    });
    if let Some(bits) = over(events, failed) {
        let mut snd = a.snd();
        // Writers are refused from now on. Where the socket layer has a turn of its own, HUP
        // waits for it too: a reader who is told of it must find the end of the stream.
        snd.shut |= events.contains(Events::CLOSED);
        if !apart {
            snd.side.raise(ready::OUT | bits, &mut cx.deferred.wakes);
        }
    }
    if !apart {
        told(&mut a.rcv(), events, failed, cx);
    }
}

/// Tells the receive side of a socket what happened to its connection.
pub fn told<K: Kind>(rcv: &mut RcvSide<K>, events: Events, failed: bool, cx: &mut Ctx<K>) {
    if events.contains(Events::EOF) {
        (rcv.eof, rcv.fin) = (true, true);
        rcv.side
            .raise(ready::IN | ready::RDHUP, &mut cx.deferred.wakes);
    }
    if let Some(bits) = over(events, failed) {
        rcv.eof |= events.contains(Events::CLOSED);
        rcv.side
            .raise(ready::IN | ready::RDHUP | bits, &mut cx.deferred.wakes);
    }
}

/// The readiness of a connection that is over, or as good as; `None`: it is not.
pub fn over(events: Events, failed: bool) -> Option<u8> {
    let gone = events.contains(Events::CLOSED);
    if !gone && (events.contains(Events::TIME_WAIT) || !events.contains(Events::ERROR)) {
        return None;
    }
    Some(if failed {
        ready::ERR | ready::HUP
    } else {
        ready::HUP
    })
}

/// What a socket can be asked for.
///
/// ```
/// use perimeter_stack::ConnInfo;
///
/// /// The connection whose peer is slowest to acknowledge.
/// fn slowest(all: &[ConnInfo]) -> Option<&ConnInfo> {
///     let waits = all.iter().filter(|c| c.snd_queued > 0 && !c.orphan);
///     waits.max_by_key(|c| c.tcp.srtt)
/// }
/// assert!(slowest(&[]).is_none());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnInfo {
    /// Name.
    pub id: SockId,
    /// The flow.
    pub key: FlowKey,
    /// TCP's own account.
    pub tcp: perimeter_tcp::Info,
    /// Bytes in the send buffer.
    pub snd_queued: u32,
    /// Bytes in the receive buffer.
    pub rcv_queued: u32,
    /// Send buffer limit, bytes.
    pub snd_limit: u32,
    /// Receive buffer limit, bytes.
    pub rcv_limit: u32,
    /// Memory pinned by both buffers, bytes.
    pub memory: usize,
    /// Bytes ever acknowledged by the peer.
    pub acked: u64,
    /// DSCP and ECN of what is sent (IP_TOS).
    pub tos: u8,
    /// Time to live, or hop limit, of what is sent (IP_TTL).
    pub ttl: u8,
    /// The interface that it is bound to, if it is (SO_BINDTODEVICE).
    pub device: Option<u16>,
    /// The application has let go of it.
    pub orphan: bool,
    /// Where its layers ran last.
    pub ran: Ran,
}

/// The core on which each layer of a connection ran last, numbered from 0 as the platform's
/// threads are placed; `None`: it has not run yet.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// IP, for a segment that came in.
    pub ip: Option<u16>,
    /// TCP: input, a timer, or output.
    pub tcp: Option<u16>,
    /// The socket layer, in a send call.
    pub send: Option<u16>,
    /// The socket layer, in a receive call.
    pub receive: Option<u16>,
}

/// Whether a state accepts data from the application.
pub fn may_send(state: State) -> bool {
    matches!(state, State::Established | State::CloseWait)
}
