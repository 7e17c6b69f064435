//! Socket calls where a writer is answered before its data has entered the perimeter: `squeue` and
//! `streams`.

use super::cell::{OuterParts, Start, give_back, start};
use crate::Kd;
use perimeter_stack::ops::Op;
use perimeter_stack::{Cell, Ctx, Shard, SockId};
use perimeter_sync::Platform;

/// The connections of a perimeter.
pub(crate) type Connections<P, O> = Shard<Kd<P>, <O as Promised<P>>::Member>;

/// How calls come to the perimeter of a connection whose receive side and account of room are
/// outside.
pub(crate) trait Promised<P: Platform>: Sized {
    /// A connection, as its perimeter has it.
    type Member: Cell<K = Kd<P>>;

    /// Those parts of a connection.
    fn place(&self, id: SockId) -> Option<&OuterParts<P>>;

    /// Runs `f` in the perimeter of connection `id`: at once, or when its turn comes. Nobody waits
    /// for it. The connection has a place.
    fn tell_conn(
        &self,
        cx: &mut Ctx<Kd<P>>,
        id: SockId,
        f: impl FnOnce(&mut Ctx<Kd<P>>, &mut Connections<P, Self>) + Send + 'static,
    );

    /// The same, and waits for the answer. `None`: whoever ran it was stopped by a panic.
    fn ask_conn<R: Send + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        id: SockId,
        f: impl FnOnce(&mut Ctx<Kd<P>>, &mut Connections<P, Self>) -> R + Send + 'static,
    ) -> Option<R>;

    /// A socket call: settled outside if it can be, else it enters.
    fn socket_call<Q: Op<Kd<P>> + 'static>(
        &self,
        cx: &mut Ctx<Kd<P>>,
        id: SockId,
        mut op: Q,
    ) -> Option<Q::Out> {
        let Some(place) = self.place(id) else {
            return cx.sh.stale(cx);
        };
        let generation = id.generation();
        match start(place, generation, &mut op, cx, false) {
            Start::Over(out) => out,
            Start::Answered(out, promised) => {
                self.tell_conn(cx, id, move |cx, shard| {
                    // From here on the buffer pays, if the connection is still there.
                    cx.charge(promised as usize, 0);
                    shard.call(cx, id, op);
                });
                Some(out)
            }
            Start::Asks(reserved) => {
                let out = self.ask_conn(cx, id, move |cx, shard| shard.call(cx, id, op))?;
                let unused = out.as_ref().map_or(reserved, |o| Q::unused(o, reserved));
                give_back(place, generation, unused, cx);
                out
            }
            Start::Kick(out) => {
                self.tell_conn(cx, id, move |cx, shard| {
                    shard.with(cx, id, true, |c, cx| op.kick(c, cx));
                });
                Some(out)
            }
            Start::Tcp => self.ask_conn(cx, id, move |cx, shard| {
                shard.with(cx, id, false, |c, cx| op.tcp(c, cx))
            })?,
        }
    }
}
