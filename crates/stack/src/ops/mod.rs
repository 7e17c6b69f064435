//! Socket operations as data, each in two phases: the buffers settle it, or else TCP does.
//!
//! Being data, an operation can be queued, handed to another thread, or cut between its
//! phases. One that is handed over owns its arguments: a call that is dropped leaves nothing
//! dangling. Only what runs on the calling thread may borrow them.

mod close;
mod data;
mod look;
mod setting;

pub use crate::setting::Setting;
pub use close::{Close, How, Shutdown};
pub use data::{Data, Received, Recv, Released, SendData, Sent, tell_space};
pub use look::{Look, Readiness, TakeError, Wait, Watching, look};
pub use setting::Set;

use crate::conn::{Access, Bufs, on_events};
use crate::count::Count;
use crate::ctx::Ctx;
use crate::glue;
use crate::kind::Kind;
use crate::memory::HOARD;
use crate::output;
use crate::own::Caller;
use crate::pmtu::longer;
use perimeter_sync::{Platform, Work};
use perimeter_tcp::{TcpError, Unreachable};
use perimeter_wire::Seq;

/// How the first phase of an operation ended.
pub enum Step<O> {
    /// The buffers settled it.
    Done(O),
    /// The buffers settled it, and TCP has something to do as a consequence.
    Kick(O),
    /// TCP must settle it.
    Tcp,
}

/// A socket operation on one connection.
pub trait Op<K: Kind>: Send {
    /// Its result.
    type Out: Send + 'static;

    /// Whether it gives the connection data to send.
    const SENDS: bool = false;

    /// Whether it may end the connection, or a direction of it.
    const ENDS: bool = false;

    /// First phase: with the buffers only. Not all have one.
    fn sock<B: Bufs<K = K>>(&mut self, b: &mut B, cx: &mut Ctx<K>) -> Step<Self::Out> {
        let _ = (b, cx);
        Step::Tcp
    }

    /// Second phase: with the TCP state.
    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) -> Self::Out;

    /// What TCP does after [`Step::Kick`].
    fn kick<A: Access<K = K>>(&mut self, _a: &mut A, _cx: &mut Ctx<K>) {}

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

    /// The call was settled, before it enters, by `caller`; only [`Op::reserve`]'s.
    fn called_by(&mut self, caller: Caller) {
        let _ = caller;
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
    /// Nothing was cut off, and there is room left. Otherwise the caller wants to know when there
    /// is some.
    pub all: bool,
}

/// A socket call in one go, for organizations that protect a connection whole.
#[inline]
pub fn run<K: Kind, A: Access<K = K>, Q: Op<K>>(a: &mut A, mut op: Q, cx: &mut Ctx<K>) -> Q::Out {
    cx.sh.p.charge(Work::SockCall, 1);
    phases(a, &mut op, cx)
}

/// Both phases, one after the other.
pub fn phases<K: Kind, A: Access<K = K>, Q: Op<K>>(
    a: &mut A,
    op: &mut Q,
    cx: &mut Ctx<K>,
) -> Q::Out {
    match op.sock(a, cx) {
        Step::Done(out) => out,
        Step::Kick(out) => {
            op.kick(a, cx);
            out
        }
        Step::Tcp => op.tcp(a, cx),
    }
}

/// What a call reports when it did not succeed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

/// Runs the output loop: after a full transmit queue, or when a neighbour was resolved.
pub struct Output;

impl<K: Kind> Op<K> for Output {
    type Out = ();

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) {
        glue::now(a, cx);
        a.tcb().meta.blocked = false;
        output::output_in_turn(a, cx);
    }
}

/// The neighbour that a connection's segments go to does not answer (ARP): a connection that is
/// being opened fails, one that no application holds ends, and others try again.
pub struct NoNeighbour;

impl<K: Kind> Op<K> for NoNeighbour {
    type Out = ();

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) {
        glue::now(a, cx);
        let t = a.tcb();
        let events = t.tcb.on_no_neighbour();
        if t.meta.orphan {
            return glue::abort(a, cx);
        }
        if events.is_empty() {
            output::output(a, cx);
        } else {
            on_events(a, events, cx);
        }
    }
}

/// Memory is short: what has arrived out of order goes (`drop`); or the connection says whether it
/// still holds much of that.
pub struct Shed {
    /// It goes.
    pub drop: bool,
}

impl<K: Kind> Op<K> for Shed {
    type Out = ();

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) {
        let t = a.tcb();
        t.meta.hoards = false;
        if self.drop && t.tcb.drop_out_of_order() {
            cx.count(Count::MemShed, 1);
            return glue::account(a, cx);
        }
        if t.tcb.memory() >= HOARD {
            t.meta.hoards = true;
            cx.sh.hoards(t.meta.id);
        }
    }
}

/// Interface `0` has gone for good: a connection that went by it fails, and one that no application
/// holds any more ends.
pub struct InterfaceGone(pub u16);

impl<K: Kind> Op<K> for InterfaceGone {
    type Out = ();

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) {
        glue::now(a, cx);
        let t = a.tcb();
        let iface = &cx.sh.ifaces[usize::from(self.0)];
        if !iface.tx.contains(&t.meta.txq) || t.meta.closed {
            return;
        }
        let events = t.tcb.on_interface_gone();
        t.meta.closed |= t.meta.orphan;
        on_events(a, events, cx);
    }
}

/// The address `0` is the stack's no more: a connection from it fails, and one that no application
/// holds any more ends.
pub struct AddressGone(pub core::net::IpAddr);

impl<K: Kind> Op<K> for AddressGone {
    type Out = ();

    fn tcp<A: Access<K = K>>(&mut self, a: &mut A, cx: &mut Ctx<K>) {
        glue::now(a, cx);
        let t = a.tcb();
        if t.meta.key.local != self.0 || t.meta.closed {
            return;
        }
        let events = t.tcb.on_interface_gone();
        t.meta.closed |= t.meta.orphan;
        on_events(a, events, cx);
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
pub fn icmp<A: Access>(a: &mut A, what: Icmp, cx: &mut Ctx<A::K>) {
    let now = glue::now(a, cx);
    match what {
        Icmp::Unreachable(e, seq) => {
            let events = a.tcb().tcb.on_unreachable(e, seq);
            if !events.is_empty() {
                on_events(a, events, cx);
            }
        }
        Icmp::TooBig(mtu, seq) => {
            let t = a.tcb();
            match t.tcb.on_packet_too_big(mtu, seq, now) {
                true => {
                    let (sh, remote) = (cx.sh, t.meta.key.remote);
                    let mtu = u32::from(mtu) + u32::from(longer(remote));
                    sh.path_mtus.learn(remote, mtu, now);
                    cx.count(Count::PathMtuLowered, 1);
                }
                false => cx.count(Count::TooBigRefused, 1),
            }
        }
    }
    output::output(a, cx);
}
