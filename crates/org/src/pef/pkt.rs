//! Packets between perimeters.
//!
//! A `pkt_t` has no memory of its own: while its events run one after the other it stands on the
//! thread's stack, and between perimeters in the slot of an squeue's queue, with the handle of
//! its buffer. So nothing is allocated for it (section 5: the separate allocation cost TLB
//! misses).

use super::Pef;
use super::bind::Bind;
use super::event::Direction;
use super::exec::{Env, Inner};
use super::link::Way;
use super::list::List;
use perimeter_base::PktBuf;
use perimeter_stack::conn::{Apart, Up};
use perimeter_stack::{Seg, SockId};
use perimeter_sync::Platform;
use perimeter_tcp::Input;
use perimeter_wire::{FlowKey, Seq, TcpHdr};
use std::sync::Arc;

/// What a packet carries.
pub(super) enum Body<P: Platform> {
    /// A received segment, classified. Its buffer holds the whole frame; offsets into it, from
    /// Ethernet to payload, are in [`Pkt::offsets`].
    Seg(Seg),
    /// What TCP has made of one: news for the socket layer.
    Up(FlowKey, Option<TcpHdr>, Up),
    /// A call on its way to TCP, perhaps with data.
    Call(Box<dyn Call<P>>),
    /// A frame that belongs to no connection, and the interface that it came in by.
    Frame(u16, PktBuf),
    /// Segments that TCP has made at one go.
    Chain(Box<Apart>),
    /// Finished.
    Nothing,
}

/// A packet on its list.
pub(super) struct Pkt<P: Platform> {
    /// The connection that it belongs to.
    pub(super) id: SockId,
    /// The version of the list that it finishes on.
    pub(super) list: Arc<List>,
    pub(super) direction: Direction,
    /// The place of the next event.
    pub(super) next: usize,
    /// Squeues of the layers.
    pub(super) bind: Bind,
    /// The way that it is counted on.
    pub(super) counted: Option<Way>,
    /// Which way it is on.
    pub(super) way: Way,
    /// How often it was classified again.
    pub(super) turns: u8,
    /// Of the received frame: where Ethernet, IP, TCP and payload start.
    pub(super) offsets: [u16; 4],
    /// A SYN that took over a connection in TIME-WAIT: the new one's sequence number.
    pub(super) iss: Option<Seq>,
    /// What TCP's finer events have found out so far.
    pub(super) input: Option<Box<Input>>,
    pub(super) body: Body<P>,
}

/// A call on its way to TCP.
pub(super) trait Call<P: Platform>: Send {
    /// Its data, if it has some in one piece.
    fn data(&mut self) -> Option<&mut [u8]>;

    /// TCP's turn.
    fn run(self: Box<Self>, pef: &Pef<P>, env: &mut Env<'_, P>, inner: &mut Inner<P>);

    /// An event has dropped the data: the call has done its work.
    fn dropped(self: Box<Self>, pef: &Pef<P>, env: &mut Env<'_, P>);
}

/// Something to be done under an squeue.
pub(super) type Job<P> = Box<dyn FnOnce(&Pef<P>, &mut Env<'_, P>, u16, &mut Inner<P>) + Send>;

/// A message in an squeue: a packet stands in the queue's slot itself.
pub(super) enum Msg<P: Platform> {
    /// A packet for its next event.
    Packet(Pkt<P>),
    /// A received segment without a connection.
    NoSocket(Seg, Option<Seq>),
    /// Anything else.
    Job(Job<P>),
}

/// Where the layers of a received frame start.
pub(super) fn offsets(seg: &Seg, ethernet: bool) -> [u16; 4] {
    let ip = if ethernet {
        perimeter_wire::EtherHdr::LEN as u16
    } else {
        0
    };
    let payload = seg.frame.payload_off as u16;
    let tcp = payload.saturating_sub(seg.frame.hdr.header_len() as u16);
    [0, ip, tcp, payload]
}
