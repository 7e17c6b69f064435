//! Data in and out, and the room it takes.

use super::{Op, Reserved, SockError, Step, TableHold};
use crate::commons::Commons;
use crate::conn::{Access, Bufs, NOWHERE, may_send};
use crate::count::Count;
use crate::glue;
use crate::kind::{Ctx, Kind};
use crate::ready;
use perimeter_base::{Bytes, PktBuf};
use perimeter_tcp::State;
use smallvec::SmallVec;

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
        glue::now(a, sh, cx);
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
    let now = glue::now(a, sh, cx);
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

/// How much of the stream's memory has been given back: zero-copy completion.
pub struct Released;

impl<K: Kind> Op<K> for Released {
    /// Bytes appended so far, and bytes acknowledged whose pages no device reads any more.
    type Out = (u64, u64);

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, sh: &Commons<K>, cx: &mut Ctx<K>) -> Self::Out {
        let completed = sh.tx[usize::from(a.tcb().meta.txq)].completed();
        let mut snd = a.snd();
        let before = snd.memory();
        snd.release(completed);
        sh.charge(cx.lane, before, snd.memory());
        (snd.appended, snd.released())
    }
}
