//! Data in and out, and the room it takes.

use super::{Op, Reserved, SockError, Step};
use crate::conn::{Access, Bufs, TcbSide, may_send};
use crate::copies;
use crate::count::Count;
use crate::ctx::Ctx;
use crate::glue;
use crate::kind::Kind;
use crate::output;
use crate::own::Caller;
use crate::ready;
use crate::steer::{NO_QUEUE, Steering};
use perimeter_base::{Bytes, PktBuf, PktQueue};
use perimeter_sync::{Platform, Touched, Work};
use perimeter_tcp::{CHUNK, State};
use smallvec::SmallVec;
use std::io::IoSlice;

/// Payload to be sent.
pub enum Data<'a> {
    /// To be copied into the send buffer, from where the caller has it.
    Borrowed(Slices<'a>),
    /// A copy of a small write: to be copied into the send buffer, or to stay where it is when
    /// nothing is queued.
    Small(PktBuf),
    /// A copy of a larger write, which stays where it is.
    Copied(Bytes),
    /// The application's own, to be sent by reference, and held until acknowledged and done by the
    /// device.
    Pages(SmallVec<[Bytes; 2]>),
}

/// The first `len` bytes of the caller's `bufs`, one after another.
pub struct Slices<'a> {
    bufs: &'a [IoSlice<'a>],
    len: usize,
}

impl<'a> Data<'a> {
    /// Refers to the caller's bytes.
    pub fn borrowed(bufs: &'a [IoSlice<'a>]) -> Data<'a> {
        let len = bufs.iter().map(|b| b.len()).sum();
        Data::Borrowed(Slices { bufs, len })
    }

    /// How many bytes were copied to make it.
    pub fn copied(&self) -> usize {
        match self {
            Data::Borrowed(_) | Data::Pages(_) => 0,
            Data::Small(_) | Data::Copied(_) => self.len(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Data::Borrowed(s) => s.len,
            Data::Small(b) => b.len(),
            Data::Copied(b) => b.len(),
            Data::Pages(p) => p.iter().map(Bytes::len).sum(),
        }
    }

    /// Cuts off what is beyond `max` bytes.
    fn truncate(&mut self, max: usize) {
        match self {
            Data::Borrowed(s) => s.len = s.len.min(max),
            Data::Small(b) => b.truncate(max),
            Data::Copied(b) if max < b.len() => *b = cut(b, max),
            Data::Copied(_) => {}
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

/// The first `n` bytes of a copy that the library made, of which there are more. They are copied
/// again: by reference they would keep all of it, which is not counted. So whoever writes 64 KiB to
/// thousands of connections that take 2 KiB each does not hold 64 for each.
fn cut(copied: &Bytes, n: usize) -> Bytes {
    copies::note(n);
    Bytes::copy_from_slice(&copied[..n])
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

/// What a send has come to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// How many bytes were taken, from the front.
    pub taken: usize,
    /// No room is left: the next send would be refused.
    pub full: bool,
}

/// Appends data to the stream.
pub struct SendData<'a> {
    /// What to send.
    pub data: Data<'a>,
    /// More follows at once (MSG_MORE).
    pub more: bool,
    room: Room,
    /// There was more than the reservation.
    cut: bool,
    /// It takes all the room that there is.
    full: bool,
    caller: Caller,
}

impl<'a> SendData<'a> {
    /// Sends `data`; `more` is MSG_MORE.
    pub fn new(data: Data<'a>, more: bool) -> SendData<'a> {
        SendData {
            data,
            more,
            room: Room::Found,
            cut: false,
            full: false,
            caller: Caller::NOBODY,
        }
    }

    /// Has the frames of connection `t` go where its output takes place: to the writer of a message,
    /// which leaves at once; of a stream, whose output follows its acknowledgments, to whoever polls
    /// them. Before, the connection was `idle` or not; now `taken` bytes were taken, which are `all` or
    /// not.
    fn steer<K: Kind>(
        &self,
        steering: &Steering<K>,
        t: &TcbSide<K>,
        (idle, taken, all): (bool, usize, bool),
    ) {
        let message = idle && taken <= t.tcb.mss().into();
        if message {
            steering.note(t.meta.hash, self.caller.serves);
        } else if idle || !all {
            steering.note(t.meta.hash, NO_QUEUE);
        }
    }

    /// Notes, in the same critical section that found no room, that a writer wants to know.
    fn no_room<B: Bufs>(snd: &mut B::Snd<'_>) -> SockError {
        snd.side.lower(ready::OUT);
        SockError::WouldBlock
    }
}

impl<K: Kind> Op<K> for SendData<'_> {
    type Out = Result<Sent, SockError>;

    const SENDS: bool = true;

    fn sock<B: Bufs<K = K>>(&mut self, b: &mut B, cx: &mut Ctx<K>) -> Step<Self::Out> {
        if self.room != Room::Found {
            return Step::Tcp;
        }
        self.caller = cx.caller();
        let mut snd = b.snd();
        if snd.shut || snd.side.bits() & (ready::ERR | ready::HUP) != 0 {
            return Step::Tcp;
        }
        if snd.buf.space() == 0 && self.data.len() > 0 {
            return Step::Done(Err(Self::no_room::<B>(&mut snd)));
        }
        // Short memory holds senders back, but never quite one that has nothing under way: it
        // could wait for ever.
        if cx.sh.memory_short() && self.data.len() > 0 {
            let chunk = match self.data {
                Data::Borrowed(_) | Data::Small(_) => CHUNK,
                Data::Copied(_) | Data::Pages(_) => 0,
            };
            let empty = snd.buf.is_empty();
            let trusted = snd.trust.bytes(empty, cx.now());
            let room = cx.sh.room_to_write(snd.memory(), empty, chunk, trusted);
            if room < self.data.len() {
                cx.count(Count::MemRefused, 1);
            }
            if room == 0 {
                return Step::Done(Err(Self::no_room::<B>(&mut snd)));
            }
            if room <= self.data.len() {
                // Nothing more can follow at once.
                (self.full, self.more) = (true, false);
                self.data.truncate(room);
            }
        }
        Step::Tcp
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) -> Self::Out {
        glue::now(a, cx);
        if self.room != Room::Answered
            && let Some(e) = a.tcb().tcb.take_error()
        {
            return Err(SockError::Tcp(e));
        }
        let state = a.tcb().tcb.state();
        let early = matches!(state, State::SynSent | State::SynReceived);
        let (taken, idle, all) = {
            let mut snd = a.snd();
            cx.sh.p.touch(&snd.lines, Touched::Snd, 1, true);
            snd.core = self.caller.core;
            if snd.shut {
                return Err(SockError::BrokenPipe);
            }
            if early {
                return Err(Self::no_room::<A>(&mut snd));
            }
            if !may_send(state) {
                return Err(SockError::BrokenPipe);
            }
            let before = snd.charged();
            let limit = snd.buf.limit();
            let idle = snd.buf.is_empty();
            if self.room != Room::Found {
                // What was reserved fits, even if the limit was lowered since.
                let need = snd.buf.len() + self.data.len() as u32;
                snd.buf.set_limit(limit.max(need));
            }
            let (taken, all) = append(&mut snd.buf, &mut self.data, self.more, &cx.sh.p);
            snd.buf.set_limit(limit);
            // What was reserved has been told to who waits for room already.
            let found = self.room == Room::Found;
            self.full |= !all || (found && snd.buf.space() == 0);
            if !all || (found && self.full) {
                snd.side.lower(ready::OUT);
            }
            if taken == 0 && (!all || self.cut) {
                return Err(SockError::WouldBlock);
            }
            snd.appended += taken as u64;
            cx.charge(before, snd.charged());
            (taken, idle, all)
        };
        if let Some(steering) = &cx.sh.steering {
            self.steer(steering, a.tcb(), (idle, taken, all));
        }
        a.before_output();
        output::output(a, cx);
        let full = self.full;
        Ok(Sent { taken, full })
    }

    fn data(&mut self) -> Option<&mut [u8]> {
        match &mut self.data {
            Data::Small(b) => Some(b.as_mut_slice()),
            Data::Borrowed(_) | Data::Copied(_) | Data::Pages(_) => None,
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
            self.cut = true;
        }
        self.room = Room::Reserved;
        self.full = want >= room as usize;
        // Nothing more can follow at once.
        self.more &= !self.full;
        let out = if n == 0 && !all {
            Err(SockError::WouldBlock)
        } else {
            let full = self.full;
            Ok(Sent { taken: n, full })
        };
        Some(Reserved {
            out,
            bytes: n as u32,
            all: !self.full,
        })
    }

    fn unused(out: &Self::Out, reserved: u32) -> u32 {
        reserved - out.as_ref().map_or(0, |s| (s.taken as u32).min(reserved))
    }

    fn called_by(&mut self, caller: Caller) {
        self.caller = caller;
    }

    fn answered(&mut self) {
        self.room = Room::Answered;
    }
}

/// Moves as much of `data` as fits to the buffer; returns how much, and whether that was all.
fn append(
    buf: &mut perimeter_tcp::SndBuf,
    data: &mut Data<'_>,
    more: bool,
    p: &impl Platform,
) -> (usize, bool) {
    let want = data.len();
    let mut taken = 0;
    // Before: what is appended under MSG_MORE is not pushed.
    buf.set_more(more);
    match data {
        Data::Borrowed(s) => {
            for b in s.bufs {
                let part = &b[..b.len().min(s.len - taken)];
                let n = buf.push_copy(part);
                taken += n;
                if n < part.len() {
                    break;
                }
            }
            copies::note(taken);
            p.charge(Work::Copy, taken as u64);
        }
        Data::Small(b) => match buf.adopt(core::mem::take(b)) {
            Ok(()) => taken = want,
            Err(b) => {
                taken = buf.push_copy(b.as_slice());
                copies::note(taken);
                p.charge(Work::Copy, taken as u64);
            }
        },
        Data::Copied(b) => {
            let room = buf.space() as usize;
            let part = match b.len() <= room {
                true => core::mem::take(b),
                false => {
                    p.charge(Work::Copy, room as u64);
                    cut(b, room)
                }
            };
            taken = part.len();
            buf.push(part);
        }
        Data::Pages(pages) => {
            for page in pages.iter_mut() {
                let room = buf.space() as usize;
                if room == 0 {
                    break;
                }
                let part = match page.len() <= room {
                    true => core::mem::take(page),
                    false => page.split_to(room),
                };
                taken += part.len();
                buf.push(part);
            }
        }
    }
    if taken < want || buf.space() == 0 {
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
pub type Received = PktQueue;

impl<K: Kind> Op<K> for Recv {
    type Out = Result<Received, SockError>;

    fn sock<B: Bufs<K = K>>(&mut self, b: &mut B, cx: &mut Ctx<K>) -> Step<Self::Out> {
        let mut rcv = b.rcv();
        cx.sh.p.touch(&rcv.lines, Touched::Rcv, 1, true);
        rcv.core = cx.core;
        let mut out = Received::new();
        if self.peek && !rcv.buf.is_empty() {
            let mut copy = PktBuf::with_capacity(self.max.min(rcv.buf.len() as usize));
            let n = rcv.buf.peek(copy.raw_mut());
            copy.set_window(0, n);
            out.push_back(copy);
            return Step::Done(Ok(out));
        }
        let mut taken = 0;
        let mut tell = false;
        let mut before = rcv.charged();
        if !rcv.messages && rcv.marks.is_none() {
            taken = rcv.buf.pop_whole(self.max, &mut out, &mut cx.pool);
            tell = rcv.took(taken as u32);
        }
        while taken < self.max {
            let Some(buf) = rcv.buf.pop(self.max - taken, &mut cx.pool) else {
                break;
            };
            taken += buf.len();
            tell |= rcv.took(buf.len() as u32);
            cx.pool.reserve(&mut out, 1);
            out.push_back(buf);
            if rcv.messages {
                // A `getq` for each.
                rcv.gets = rcv.gets.wrapping_add(1);
                let gets = rcv.gets;
                cx.charge(before, rcv.charged());
                drop(rcv);
                rcv = b.rcv();
                before = rcv.charged();
                if rcv.gets != gets {
                    // Another reader has what follows.
                    break;
                }
            }
        }
        cx.charge(before, rcv.charged());
        cx.sh.p.touch(
            &rcv.payload,
            Touched::Payload,
            taken.div_ceil(Touched::LINE),
            false,
        );
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
        // A reset that follows the FIN takes nothing from the reader: the error is for who writes,
        // or asks.
        if self.max == 0 || rcv.shut || rcv.fin {
            return Step::Done(Ok(out));
        }
        if rcv.eof || rcv.side.bits() & (ready::ERR | ready::HUP) != 0 {
            return Step::Tcp;
        }
        rcv.side.lower(ready::IN);
        Step::Done(Err(SockError::WouldBlock))
    }

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, _: &mut Ctx<K>) -> Self::Out {
        let t = a.tcb();
        if let Some(e) = t.tcb.take_error() {
            return Err(SockError::Tcp(e));
        }
        if matches!(t.tcb.state(), State::SynSent | State::SynReceived) {
            return Err(SockError::NotConnected);
        }
        Ok(Received::new())
    }

    fn kick<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) {
        tell_space(a, cx);
    }
}

/// Tells TCP how much room the receive buffer has, and sends a window update if one is due.
pub fn tell_space<A: Access>(a: &mut A, cx: &mut Ctx<A::K>) {
    glue::now(a, cx);
    let (space, limit) = {
        let mut rcv = a.rcv();
        rcv.untold = 0;
        let space = rcv.space();
        (glue::offer(cx.sh, space, rcv.tell_at()), rcv.buf.limit())
    };
    if a.tcb().tcb.app_read(space, limit) {
        output::output(a, cx);
    }
}

/// How much of the stream's memory has been given back: zero-copy completion.
pub struct Released;

impl<K: Kind> Op<K> for Released {
    /// Bytes appended so far, and bytes acknowledged whose pages no device reads any more.
    type Out = (u64, u64);

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) -> Self::Out {
        let mut snd = a.snd();
        let before = snd.charged();
        snd.buf.pages.release();
        cx.charge(before, snd.charged());
        (snd.appended, snd.buf.pages.released())
    }
}
