//! Socket operations as data, each in two phases: the buffers settle it, or else TCP does.
//!
//! Being data, an operation can be queued, handed to another thread, or cut between its
//! phases. It owns its arguments: a call that is dropped leaves nothing dangling.

use crate::commons::Commons;
use crate::conn::{Access, Bufs, ConnInfo, NOWHERE, Ran, may_send, on_events};
use crate::count::Count;
use crate::glue;
use crate::kind::{Ctx, Kind};
use crate::ready::{self, RegWord};
use core::time::Duration;
use perimeter_base::{Bytes, PktBuf, Time};
use perimeter_sync::{Platform, Work};
use perimeter_tcp::{CcKind, Config, Keepalive, State, TcpError, Unreachable};
use perimeter_wire::Seq;
use smallvec::SmallVec;
use std::sync::Arc;

/// How the first phase of an operation ended.
pub enum Step<O> {
    /// The buffers settled it.
    Done(O),
    /// The buffers settled it, and TCP has something to do as a consequence.
    Kick(O),
    /// TCP must settle it.
    Tcp,
}

/// How long the lock of a global connection table is held while TCP runs an operation, where
/// there is such a lock.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TableHold {
    /// Until the connection is held.
    Entry,
    /// Until output starts.
    Output,
    /// To the end.
    Throughout,
}

/// A socket operation on one connection.
pub trait Op<K: Kind>: Send + 'static {
    /// Its result.
    type Out: Send + 'static;

    /// For organizations with a global connection table; meaningless to others.
    const TABLE: TableHold = TableHold::Entry;

    /// First phase: with the buffers only.
    fn sock<B: Bufs<K = K>>(
        &mut self,
        b: &mut B,
        sh: &Commons<K>,
        cx: &mut Ctx<K>,
    ) -> Step<Self::Out>;

    /// Second phase: with the TCP state.
    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, sh: &Commons<K>, cx: &mut Ctx<K>) -> Self::Out;

    /// What TCP does after [`Step::Kick`].
    fn kick<A: Access<K = K>>(&mut self, _a: &mut A, _sh: &Commons<K>, _cx: &mut Ctx<K>) {}

    /// Its data, if it has some that lies in one piece and is the stack's own.
    fn data(&mut self) -> Option<&mut [u8]> {
        None
    }

    /// Whether it takes room in the send buffer: [`Op::reserve`] has something to say.
    fn takes_room(&self) -> bool {
        false
    }

    /// For organizations in which a writer enqueues and leaves: cuts the operation down to
    /// `room` bytes of send buffer and says what its result will be if the connection takes
    /// data. From here on the operation relies on having that room. `None`, and nothing
    /// changes, for what takes no room.
    fn reserve(&mut self, room: u32) -> Option<Reserved<Self::Out>> {
        let _ = room;
        None
    }

    /// The call was settled on `core`, before it enters; only [`Op::reserve`]'s.
    fn called_on(&mut self, core: u16) {
        let _ = core;
    }

    /// How much of a reservation of `reserved` bytes this result left unused.
    fn unused(out: &Self::Out, reserved: u32) -> u32 {
        let _ = (out, reserved);
        0
    }

    /// The caller was answered from the reservation: nobody will see the result, so a pending
    /// error stays for the next call.
    fn answered(&mut self) {}
}

/// What [`Op::reserve`] settles.
pub struct Reserved<O> {
    /// The result.
    pub out: O,
    /// Bytes of room that it takes. 0: there is nothing left to do.
    pub bytes: u32,
    /// Nothing was cut off. Otherwise the caller wants to know when there is room.
    pub all: bool,
}

/// Both phases at once, for organizations that protect a connection whole.
pub fn run<K: Kind, A: Access<K = K>, Q: Op<K>>(
    a: &mut A,
    mut op: Q,
    sh: &Commons<K>,
    cx: &mut Ctx<K>,
) -> Q::Out {
    sh.p.charge(Work::SockCall, 1);
    match op.sock(a, sh, cx) {
        Step::Done(out) => out,
        Step::Kick(out) => {
            op.kick(a, sh, cx);
            out
        }
        Step::Tcp => op.tcp(a, sh, cx),
    }
}

/// What a call reports when it did not succeed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SockError {
    /// Nothing can be done now; wait for readiness.
    WouldBlock,
    /// The handle's socket has gone, or was closed by another thread.
    Closed,
    /// The connection failed.
    Tcp(TcpError),
    /// Not connected yet, or no longer.
    NotConnected,
    /// This direction was shut down.
    BrokenPipe,
    /// The argument makes no sense.
    Invalid,
}

/// Payload to be sent, owned.
pub enum Data {
    /// To be copied into the send buffer.
    Copy(PktBuf),
    /// To be sent by reference, and held until acknowledged and done by the device.
    Pages(SmallVec<[Bytes; 2]>),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Data::Copy(b) => b.len(),
            Data::Pages(p) => p.iter().map(Bytes::len).sum(),
        }
    }

    /// Cuts off what is beyond `max` bytes.
    fn truncate(&mut self, max: usize) {
        match self {
            Data::Copy(b) => b.truncate(max),
            Data::Pages(pages) => {
                let mut left = max;
                for page in pages.iter_mut() {
                    page.truncate(left);
                    left -= page.len();
                }
                pages.retain(|p| !p.is_empty());
            }
        }
    }
}

/// Where the room for an operation's data comes from.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Room {
    /// From the buffer, as much as there is.
    Found,
    /// It was reserved, and the caller waits for the result.
    Reserved,
    /// It was reserved, and the caller was answered.
    Answered,
}

/// Appends data to the stream. Yields how many bytes were taken.
pub struct SendData {
    /// What to send.
    pub data: Data,
    /// More follows at once (MSG_MORE).
    pub more: bool,
    room: Room,
    /// There was more than the reservation.
    cut: bool,
    /// The caller's core.
    core: u16,
}

impl SendData {
    /// Sends `data`; `more` is MSG_MORE.
    pub fn new(data: Data, more: bool) -> SendData {
        SendData {
            data,
            more,
            room: Room::Found,
            cut: false,
            core: NOWHERE,
        }
    }

    /// Notes, in the same critical section that found no room, that a writer wants to know.
    fn no_room<B: Bufs>(snd: &mut B::Snd<'_>) -> SockError {
        snd.side.lower(ready::OUT);
        SockError::WouldBlock
    }
}

impl<K: Kind> Op<K> for SendData {
    type Out = Result<usize, SockError>;

    const TABLE: TableHold = TableHold::Output;

    fn sock<B: Bufs<K = K>>(
        &mut self,
        b: &mut B,
        sh: &Commons<K>,
        cx: &mut Ctx<K>,
    ) -> Step<Self::Out> {
        if self.room != Room::Found {
            return Step::Tcp;
        }
        self.core = cx.core;
        let mut snd = b.snd();
        if snd.shut || snd.side.bits() & (ready::ERR | ready::HUP) != 0 {
            return Step::Tcp;
        }
        if snd.buf.space() == 0 && self.data.len() > 0 {
            return Step::Done(Err(Self::no_room::<B>(&mut snd)));
        }
        // Short memory holds senders back, but never one that has nothing under way: it could
        // wait for ever.
        if sh.memory_short() && !snd.buf.is_empty() {
            sh.count(cx.lane, Count::MemRefused, 1);
            return Step::Done(Err(Self::no_room::<B>(&mut snd)));
        }
        Step::Tcp
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, sh: &Commons<K>, cx: &mut Ctx<K>) -> Self::Out {
        if self.room != Room::Answered
            && let Some(e) = a.tcb().tcb.take_error()
        {
            return Err(SockError::Tcp(e));
        }
        let state = a.tcb().tcb.state();
        let early = matches!(state, State::SynSent | State::SynReceived);
        let taken = {
            let mut snd = a.snd();
            snd.core = self.core;
            if snd.shut {
                return Err(SockError::BrokenPipe);
            }
            if early {
                return Err(Self::no_room::<A>(&mut snd));
            }
            if !may_send(state) {
                return Err(SockError::BrokenPipe);
            }
            let before = snd.memory();
            let limit = snd.buf.limit();
            if self.room != Room::Found {
                // What was reserved fits, even if the limit was lowered since.
                let need = snd.buf.len() + self.data.len() as u32;
                snd.buf.set_limit(limit.max(need));
            }
            let (taken, all) = append(&mut snd.buf, &mut self.data, self.more);
            snd.buf.set_limit(limit);
            if !all {
                snd.side.lower(ready::OUT);
            }
            if taken == 0 && (!all || self.cut) {
                return Err(SockError::WouldBlock);
            }
            snd.appended += taken as u64;
            sh.charge(cx.lane, before, snd.memory());
            taken
        };
        if let Data::Copy(b) = &mut self.data {
            cx.pool.put(core::mem::replace(b, PktBuf::with_capacity(0)));
        }
        a.before_output();
        glue::output(a, sh, cx);
        Ok(taken)
    }

    fn data(&mut self) -> Option<&mut [u8]> {
        match &mut self.data {
            Data::Copy(b) => Some(b.as_mut_slice()),
            Data::Pages(_) => None,
        }
    }

    fn takes_room(&self) -> bool {
        true
    }

    fn reserve(&mut self, room: u32) -> Option<Reserved<Self::Out>> {
        let want = self.data.len();
        let n = want.min(room as usize);
        let all = n == want;
        if !all {
            self.data.truncate(n);
            self.more = false;
            self.cut = true;
        }
        self.room = Room::Reserved;
        let out = if n == 0 && !all {
            Err(SockError::WouldBlock)
        } else {
            Ok(n)
        };
        let bytes = n as u32;
        Some(Reserved { out, bytes, all })
    }

    fn unused(out: &Self::Out, reserved: u32) -> u32 {
        reserved - out.as_ref().map_or(0, |n| (*n as u32).min(reserved))
    }

    fn called_on(&mut self, core: u16) {
        self.core = core;
    }

    fn answered(&mut self) {
        self.room = Room::Answered;
    }
}

/// Moves as much of `data` as fits to the buffer; returns how much, and whether that was all.
fn append(buf: &mut perimeter_tcp::SndBuf, data: &mut Data, more: bool) -> (usize, bool) {
    let want = data.len();
    let mut taken = 0;
    // Before: what is appended under MSG_MORE is not pushed.
    buf.set_more(more);
    match data {
        Data::Copy(b) => taken = buf.push_copy(b.as_slice()),
        Data::Pages(pages) => {
            for page in pages.iter_mut() {
                let room = buf.space() as usize;
                if room == 0 {
                    break;
                }
                let part = if page.len() <= room {
                    core::mem::take(page)
                } else {
                    page.split_to(room)
                };
                taken += part.len();
                buf.push(part);
            }
        }
    }
    if taken < want {
        buf.set_more(false);
    }
    (taken, taken == want)
}

/// Takes data in order. Yields whole buffers, to be copied to the caller outside the
/// perimeter; none at the end of the stream.
pub struct Recv {
    /// The most bytes to take.
    pub max: usize,
    /// Leave the data where it is (MSG_PEEK): the answer is a copy.
    pub peek: bool,
}

/// What [`Recv`] yields.
pub type Received = SmallVec<[PktBuf; 4]>;

impl<K: Kind> Op<K> for Recv {
    type Out = Result<Received, SockError>;

    fn sock<B: Bufs<K = K>>(
        &mut self,
        b: &mut B,
        sh: &Commons<K>,
        cx: &mut Ctx<K>,
    ) -> Step<Self::Out> {
        let mut rcv = b.rcv();
        rcv.core = cx.core;
        let mut out = Received::new();
        if self.peek && !rcv.buf.is_empty() {
            let mut copy = PktBuf::with_capacity(self.max.min(rcv.buf.len() as usize));
            let n = rcv.buf.peek(copy.raw_mut());
            copy.set_window(0, n);
            out.push(copy);
            return Step::Done(Ok(out));
        }
        let mut taken = 0;
        let mut tell = false;
        while taken < self.max {
            let before = rcv.buf.memory();
            let Some(buf) = rcv.buf.pop(self.max - taken) else {
                break;
            };
            sh.charge(cx.lane, before, rcv.buf.memory());
            taken += buf.len();
            tell |= rcv.took(buf.len() as u32);
            out.push(buf);
            if rcv.messages {
                // A `getq` for each.
                drop(rcv);
                rcv = b.rcv();
            }
        }
        if taken > 0 {
            if rcv.buf.is_empty() && !rcv.eof {
                rcv.side.lower(ready::IN);
            }
            return if tell {
                Step::Kick(Ok(out))
            } else {
                Step::Done(Ok(out))
            };
        }
        if rcv.left {
            return Step::Done(Err(SockError::Closed));
        }
        if self.max == 0 || rcv.shut {
            return Step::Done(Ok(out));
        }
        if rcv.eof || rcv.side.bits() & (ready::ERR | ready::HUP) != 0 {
            return Step::Tcp;
        }
        rcv.side.lower(ready::IN);
        Step::Done(Err(SockError::WouldBlock))
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, _: &Commons<K>, _: &mut Ctx<K>) -> Self::Out {
        let t = a.tcb();
        if let Some(e) = t.tcb.take_error() {
            return Err(SockError::Tcp(e));
        }
        if matches!(t.tcb.state(), State::SynSent | State::SynReceived) {
            return Err(SockError::NotConnected);
        }
        Ok(Received::new())
    }

    fn kick<A: Access<K = K>>(&mut self, a: &mut A, sh: &Commons<K>, cx: &mut Ctx<K>) {
        tell_space(a, sh, cx);
    }
}

/// Tells TCP how much room the receive buffer has, and sends a window update if one is due.
pub fn tell_space<A: Access>(a: &mut A, sh: &Commons<A::K>, cx: &mut Ctx<A::K>) {
    let now = cx.now(&sh.p);
    let space = {
        let mut rcv = a.rcv();
        rcv.untold = 0;
        let space = rcv.space();
        glue::offer(sh, space, rcv.tell_at)
    };
    if a.tcb().tcb.app_read(space, now) {
        glue::output(a, sh, cx);
    }
}

/// Runs the output loop: after a full transmit queue, or when a neighbour was resolved.
pub struct Output;

impl<K: Kind> Op<K> for Output {
    type Out = ();

    fn sock<B: Bufs<K = K>>(&mut self, _: &mut B, _: &Commons<K>, _: &mut Ctx<K>) -> Step<()> {
        Step::Tcp
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, sh: &Commons<K>, cx: &mut Ctx<K>) {
        a.tcb().meta.blocked = false;
        glue::output_in_turn(a, sh, cx);
    }
}

/// The neighbour that a connection's segments go to does not answer (ARP): a connection that is
/// being opened fails, one that no application holds ends, and others try again.
pub struct NoNeighbour;

impl<K: Kind> Op<K> for NoNeighbour {
    type Out = ();

    fn sock<B: Bufs<K = K>>(&mut self, _: &mut B, _: &Commons<K>, _: &mut Ctx<K>) -> Step<()> {
        Step::Tcp
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, sh: &Commons<K>, cx: &mut Ctx<K>) {
        let t = a.tcb();
        let events = t.tcb.on_no_neighbour();
        if t.meta.orphan {
            return glue::abort(a, sh, cx);
        }
        if events.is_empty() {
            glue::output(a, sh, cx);
        } else {
            on_events(a, events, cx);
        }
    }
}

/// Which directions to shut down.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// No more reading.
    Read,
    /// No more writing: FIN after what is queued.
    Write,
    /// Neither.
    Both,
}

/// Shuts down one or both directions.
pub struct Shutdown(pub How);

impl<K: Kind> Op<K> for Shutdown {
    type Out = Result<(), SockError>;

    const TABLE: TableHold = TableHold::Throughout;

    fn sock<B: Bufs<K = K>>(
        &mut self,
        _: &mut B,
        _: &Commons<K>,
        _: &mut Ctx<K>,
    ) -> Step<Self::Out> {
        Step::Tcp
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, sh: &Commons<K>, cx: &mut Ctx<K>) -> Self::Out {
        if matches!(
            a.tcb().tcb.state(),
            State::Closed | State::TimeWait | State::SynSent
        ) {
            return Err(SockError::NotConnected);
        }
        if self.0 != How::Write {
            let mut rcv = a.rcv();
            rcv.shut = true;
            rcv.side.raise(ready::IN | ready::RDHUP, cx);
        }
        if self.0 != How::Read {
            {
                let mut snd = a.snd();
                snd.shut = true;
                snd.side.raise(ready::OUT, cx);
            }
            let now = cx.now(&sh.p);
            a.tcb().tcb.shutdown_write(now);
            a.before_output();
            glue::output(a, sh, cx);
        }
        Ok(())
    }
}

/// The application lets go of the connection. Unread data, or a linger time of zero, turns it
/// into a reset (RFC 2525, section 2.17; RFC 1122, section 4.2.2.13).
pub struct Close {
    /// Reset whatever the state.
    pub abort: bool,
}

impl<K: Kind> Op<K> for Close {
    type Out = ();

    const TABLE: TableHold = TableHold::Throughout;

    fn sock<B: Bufs<K = K>>(&mut self, b: &mut B, _: &Commons<K>, cx: &mut Ctx<K>) -> Step<()> {
        {
            let mut rcv = b.rcv();
            self.abort |= !rcv.buf.is_empty();
            rcv.shut = true;
            rcv.left = true;
            rcv.side.leave(cx);
        }
        let mut snd = b.snd();
        snd.shut = true;
        snd.side.leave(cx);
        Step::Tcp
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, sh: &Commons<K>, cx: &mut Ctx<K>) {
        // Where the buffers are protected apart, data may have come in between the phases; and
        // the first may have seen no more of the send side than its readiness.
        self.abort |= !a.rcv().buf.is_empty();
        a.snd().shut = true;
        let now = cx.now(&sh.p);
        let t = a.tcb();
        t.meta.orphan = true;
        if self.abort || t.meta.linger == Some(Duration::ZERO) {
            return glue::abort(a, sh, cx);
        }
        t.tcb.close(now);
        if t.tcb.state() == State::Closed {
            t.meta.closed = true;
        }
        a.before_output();
        glue::output(a, sh, cx);
    }
}

/// A setting to change.
#[derive(Copy, Clone, Debug)]
pub enum Setting {
    /// TCP_NODELAY.
    NoDelay(bool),
    /// TCP_CORK.
    Cork(bool),
    /// SO_KEEPALIVE with its times.
    Keepalive(Option<Keepalive>),
    /// TCP_USER_TIMEOUT.
    UserTimeout(Option<Duration>),
    /// SO_LINGER.
    Linger(Option<Duration>),
    /// SO_SNDBUF, bytes.
    SendBuffer(u32),
    /// SO_RCVBUF, bytes.
    RecvBuffer(u32),
    /// IP_TOS: DSCP and ECN of datagrams sent from now on.
    Tos(u8),
    /// TCP_CONGESTION: the window is kept, the threshold learnt anew.
    Congestion(CcKind),
    /// TCP_QUICKACK: what has been received is acknowledged at once.
    QuickAck,
    /// TCP_MAXSEG: the largest MSS option to offer to those who connect, bytes. For listeners; a
    /// connection has settled that.
    MaxSegment(u16),
    /// TCP_LINGER2: how long FIN-WAIT-2 lasts once the application has closed.
    FinWait2(Duration),
}

impl Setting {
    /// The same for connections that are yet to be made. What a configuration does not carry
    /// (linger, type of service, an immediate acknowledgment) is left out.
    pub fn configure(self, c: &mut Config) {
        match self {
            Setting::NoDelay(on) => c.nodelay = on,
            Setting::Cork(on) => c.cork = on,
            Setting::Keepalive(k) => c.keepalive = k,
            Setting::UserTimeout(t) => c.user_timeout = t,
            Setting::SendBuffer(n) => c.snd_buf = n,
            Setting::RecvBuffer(n) => c.rcv_buf = n,
            Setting::Congestion(kind) => c.congestion = kind,
            Setting::FinWait2(d) => c.fin_wait_2 = d,
            Setting::MaxSegment(n) => c.mss = c.mss.min(n),
            Setting::Linger(_) | Setting::Tos(_) | Setting::QuickAck => {}
        }
    }
}

/// Changes a setting.
pub struct Set(pub Setting);

impl<K: Kind> Op<K> for Set {
    type Out = ();

    fn sock<B: Bufs<K = K>>(&mut self, _: &mut B, _: &Commons<K>, _: &mut Ctx<K>) -> Step<()> {
        Step::Tcp
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, sh: &Commons<K>, cx: &mut Ctx<K>) {
        let now = cx.now(&sh.p);
        let t = a.tcb();
        let output = match self.0 {
            Setting::NoDelay(on) => t.tcb.set_nodelay(on),
            Setting::Cork(on) => t.tcb.set_cork(on),
            Setting::Keepalive(k) => {
                t.tcb.set_keepalive(k, now);
                false
            }
            Setting::UserTimeout(d) => {
                t.tcb.set_user_timeout(d);
                false
            }
            Setting::Linger(d) => {
                t.meta.linger = d;
                false
            }
            Setting::RecvBuffer(n) => {
                a.rcv().set_limit(n);
                tell_space(a, sh, cx);
                false
            }
            Setting::Tos(tos) => {
                t.meta.tos = tos;
                t.meta.template.set_tos(tos);
                false
            }
            Setting::Congestion(kind) => {
                t.tcb.set_congestion(kind);
                false
            }
            Setting::QuickAck => t.tcb.set_quick_ack(),
            Setting::FinWait2(d) => {
                t.tcb.set_fin_wait_2(d);
                false
            }
            Setting::SendBuffer(n) => {
                let mut snd = a.snd();
                snd.buf.set_limit(n);
                if snd.buf.space() == 0 {
                    snd.side.lower(ready::OUT);
                } else if snd.roomy() {
                    snd.side.raise(ready::OUT, cx);
                }
                false
            }
            Setting::MaxSegment(_) => false,
        };
        if output {
            glue::output(a, sh, cx);
        }
    }
}

/// Looks at a connection.
pub struct Look;

impl<K: Kind> Op<K> for Look {
    type Out = ConnInfo;

    fn sock<B: Bufs<K = K>>(
        &mut self,
        _: &mut B,
        _: &Commons<K>,
        _: &mut Ctx<K>,
    ) -> Step<ConnInfo> {
        Step::Tcp
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, sh: &Commons<K>, cx: &mut Ctx<K>) -> ConnInfo {
        look(a, cx.now(&sh.p))
    }
}

/// What there is to say about a connection.
pub fn look<A: Access>(a: &mut A, now: Time) -> ConnInfo {
    let t = a.tcb();
    let (id, key, tcp, orphan) = (t.meta.id, t.meta.key, t.tcb.info(now), t.meta.orphan);
    let core = |core| (core != NOWHERE).then_some(core);
    let mut ran = Ran {
        ip: core(t.meta.ip_core),
        tcp: core(t.meta.tcp_core),
        ..Ran::default()
    };
    let (snd_queued, snd_limit, snd_memory, acked) = {
        let snd = a.snd();
        ran.send = core(snd.core);
        (snd.buf.len(), snd.buf.limit(), snd.memory(), snd.acked)
    };
    let rcv = a.rcv();
    ran.receive = core(rcv.core);
    ConnInfo {
        id,
        key,
        tcp,
        snd_queued,
        snd_limit,
        rcv_queued: rcv.buf.len(),
        rcv_limit: rcv.buf.limit(),
        memory: snd_memory + rcv.buf.memory(),
        acked,
        orphan,
        ran,
    }
}

/// SO_ERROR: yields the pending error and clears it. Also tells whether the handshake is still
/// under way.
pub struct TakeError;

impl<K: Kind> Op<K> for TakeError {
    type Out = (Option<TcpError>, State);

    fn sock<B: Bufs<K = K>>(
        &mut self,
        _: &mut B,
        _: &Commons<K>,
        _: &mut Ctx<K>,
    ) -> Step<Self::Out> {
        Step::Tcp
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, _: &Commons<K>, _: &mut Ctx<K>) -> Self::Out {
        let t = a.tcb();
        (t.tcb.take_error(), t.tcb.state())
    }
}

/// How much of the stream's memory has been given back: zero-copy completion.
pub struct Released;

impl<K: Kind> Op<K> for Released {
    /// Bytes appended so far, and bytes acknowledged whose pages no device reads any more.
    type Out = (u64, u64);

    fn sock<B: Bufs<K = K>>(
        &mut self,
        _: &mut B,
        _: &Commons<K>,
        _: &mut Ctx<K>,
    ) -> Step<Self::Out> {
        Step::Tcp
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, sh: &Commons<K>, cx: &mut Ctx<K>) -> Self::Out {
        let completed = sh.tx[usize::from(a.tcb().meta.txq)].completed();
        let mut snd = a.snd();
        let before = snd.memory();
        snd.release(completed);
        sh.charge(cx.lane, before, snd.memory());
        (snd.appended, snd.released())
    }
}

/// What a connection is ready for now, as in [`crate::ready`].
pub struct Readiness;

impl<K: Kind> Op<K> for Readiness {
    type Out = u8;

    fn sock<B: Bufs<K = K>>(&mut self, b: &mut B, _: &Commons<K>, _: &mut Ctx<K>) -> Step<u8> {
        let out = b.snd().side.bits();
        Step::Done(out | b.rcv().side.bits())
    }

    fn tcp<A: Access<K = K>>(&mut self, _: &mut A, _: &Commons<K>, _: &mut Ctx<K>) -> u8 {
        0
    }
}

/// Adds or removes a poller's registration.
pub enum Watching {
    /// Add it.
    Add(Arc<RegWord>),
    /// Remove it.
    Remove(Arc<RegWord>),
}

impl<K: Kind> Op<K> for Watching {
    type Out = ();

    fn sock<B: Bufs<K = K>>(&mut self, b: &mut B, _: &Commons<K>, cx: &mut Ctx<K>) -> Step<()> {
        match self {
            Watching::Add(reg) => {
                b.snd().side.register(reg, cx);
                b.rcv().side.register(reg, cx);
            }
            Watching::Remove(r) => {
                b.snd().side.deregister(r.poller, r.slot, r.generation);
                b.rcv().side.deregister(r.poller, r.slot, r.generation);
            }
        }
        Step::Done(())
    }

    fn tcp<A: Access<K = K>>(&mut self, _: &mut A, _: &Commons<K>, _: &mut Ctx<K>) {}
}

/// A blocked call announces itself, or takes itself off. Yields whether the direction is ready
/// already (then nothing was announced).
pub struct Wait<K: Kind> {
    /// [`ready::OUT`], [`ready::IN`], or [`ready::HUP`] for the end alone.
    pub direction: u8,
    /// Where the caller will park.
    pub event: Arc<<K::P as Platform>::Event>,
    /// Take off instead of announce.
    pub off: bool,
}

impl<K: Kind> Op<K> for Wait<K> {
    type Out = bool;

    fn sock<B: Bufs<K = K>>(&mut self, b: &mut B, _: &Commons<K>, _: &mut Ctx<K>) -> Step<bool> {
        let done = match (self.direction == ready::OUT, self.off) {
            (true, false) => b.snd().side.wait(ready::OUT, &self.event),
            (false, false) => b.rcv().side.wait(self.direction, &self.event),
            (true, true) => {
                b.snd().side.unwait(&self.event);
                true
            }
            (false, true) => {
                b.rcv().side.unwait(&self.event);
                true
            }
        };
        Step::Done(done)
    }

    fn tcp<A: Access<K = K>>(&mut self, _: &mut A, _: &Commons<K>, _: &mut Ctx<K>) -> bool {
        true
    }
}

/// An ICMP error for a segment of this connection.
#[derive(Copy, Clone, Debug)]
pub enum Icmp {
    /// Not delivered.
    Unreachable(Unreachable, Seq),
    /// Too big for a link on the way, whose MTU in bytes follows.
    TooBig(u16, Seq),
}

/// Applies an ICMP error.
pub fn icmp<A: Access>(a: &mut A, what: Icmp, sh: &Commons<A::K>, cx: &mut Ctx<A::K>) {
    match what {
        Icmp::Unreachable(e, seq) => {
            let events = a.tcb().tcb.on_unreachable(e, seq);
            if !events.is_empty() {
                on_events(a, events, cx);
            }
        }
        Icmp::TooBig(mtu, seq) => {
            let now = cx.now(&sh.p);
            a.tcb().tcb.on_packet_too_big(mtu, seq, now);
        }
    }
    glue::output(a, sh, cx);
}
