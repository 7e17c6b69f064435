//! The framework: what connections run through, and what goes from perimeter to perimeter.

use super::bind::Bind;
use super::cell::{Manner, Member, MemberTables};
use super::event::Direction;
use super::flows::Flows;
use super::link::{Version, Way};
use super::list::ListRef;
use super::spec::{Arrangement, Pef as Spec};
use crate::Kd;
use crate::arrivals::Arrivals;
use crate::departures::Departures;
use crate::due::DueLine;
use crate::squeue::cell::OuterParts;
use crate::squeue::queue::{Protected, Squeue, Who};
use crate::squeue::rings::Ring;
use core::sync::atomic::{AtomicBool, AtomicU64};
use perimeter_base::PktBuf;
use perimeter_link::Medium;
use perimeter_stack::segment::{Apart, Up};
use perimeter_stack::{Ctx, Seg, Shard, SharedState, SockId};
use perimeter_sync::Platform;
use perimeter_tcp::Input;
use perimeter_wire::{FlowKey, Seq, TcpHdr};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// The framework.
pub struct Pef<P: Platform> {
    pub(super) spec: Spec,
    pub(super) squeues: Box<[Squeue<P, Inner<P>>]>,
    pub(super) tables: Box<[MemberTables<P>]>,
    pub(super) due: Box<[DueLine]>,
    /// Layers of a connection are under different squeues.
    pub(super) spread: bool,
    pub(super) flows: Arc<Flows<P>>,
    pub(super) manner: Arc<Manner<P>>,
    /// Soft rings; none unless packets are fanned out.
    pub(super) rings: Box<[Ring<P>]>,
    /// There were sockets.
    pub(super) opened: AtomicBool,
    /// Every event on a list of received packets, beside the layers' own, has a clone of it.
    pub(super) looking: Arc<()>,
    /// Listeners say under which squeue TCP of what they accept is to run.
    pub(super) listeners_tell: AtomicBool,
    /// TCP of a live connection was designated another squeue; before, all are where they were made.
    pub(super) moved: AtomicBool,
    /// There are events for packets without a connection.
    pub(super) wanted: AtomicBool,
    /// There are other events than the layers' own for datagrams, received and sent ones.
    pub(super) watched: [AtomicBool; 2],
    pub(super) draws: AtomicU64,
    /// The stack is being dropped: its workers go.
    pub(super) stopped: AtomicBool,
}

impl<P: Platform> Pef<P> {
    pub(super) fn n(&self) -> u16 {
        self.squeues.len() as u16
    }

    pub(super) fn place(&self, id: SockId) -> Option<&OuterParts<P>> {
        self.tables
            .get(usize::from(id.shard()))?
            .outer
            .places
            .get(id.slot())
    }

    /// What a connection starts with whose lists were never altered.
    pub(super) fn first_version(&self, id: SockId) -> Version {
        let bind = Bind::new(self.spec.arrangement, id.shard(), self.n());
        Version::first(self.manner.first.clone(), bind)
    }

    /// The squeue of a flow that has no connection.
    pub(super) fn no_socket_home(&self, key: &FlowKey) -> u16 {
        match self.spec.arrangement {
            Arrangement::At { tcp, .. } => tcp % self.n(),
            _ => (self.flows.draw(key) % u64::from(self.n())) as u16,
        }
    }

    /// The flow of a connection, from its place.
    pub(super) fn key_of(&self, id: SockId) -> Option<FlowKey> {
        self.tables(id).links.get(id.slot())?.key(id)
    }

    /// Where the connections of its squeue have their parts.
    pub(super) fn tables(&self, id: SockId) -> &MemberTables<P> {
        &self.tables[usize::from(id.shard()) % self.tables.len()]
    }
}

/// What an squeue protects: connections whose TCP layer is under it. As IP's or the socket
/// layer's perimeter it protects nothing but the order.
pub(super) struct Inner<P: Platform> {
    pub(super) shard: Shard<Kd<P>, Member<P>>,
}

impl<P: Platform> Protected for Inner<P> {
    type Message = Msg<P>;
}

/// What a thread carries through the framework.
pub(super) struct Env<'a, P: Platform> {
    pub(super) cx: Ctx<'a, Kd<P>>,
    /// On whose behalf.
    pub(super) who: Who,
    /// Perimeters to turn to after the present one is released.
    pub(super) visits: SmallVec<[u16; 4]>,
    /// Packets whose next event runs outside any perimeter.
    pub(super) outside: VecDeque<Pkt<P>>,
}

impl<'a, P: Platform> Env<'a, P> {
    pub(super) fn new(cx: &'a mut Ctx<'_, Kd<P>>, who: Who) -> Self {
        Env {
            cx: cx.again(),
            who,
            visits: SmallVec::new(),
            outside: VecDeque::new(),
        }
    }
}

/// What a packet carries.
pub(super) enum Body<P: Platform> {
    /// A received segment, classified. Its buffer holds the whole frame; offsets into it, from
    /// Ethernet to payload, are in [`Pkt::offsets`] once IP has looked at it.
    Seg(Seg),
    /// What TCP has made of one: news for the socket layer.
    Up(FlowKey, Option<TcpHdr>, Up),
    /// A call on its way to TCP, perhaps with data.
    Call(Box<dyn Call<P>>),
    /// A frame that belongs to no connection, and the interface that it came in by.
    Frame(u16, PktBuf),
    /// Datagrams of a burst for sockets under one squeue.
    Datagrams(Box<dyn Arrivals<Kd<P>>>),
    /// Datagrams that a call sends.
    Sent(Box<dyn Sent<P>>),
    /// Segments that TCP has made at one go.
    Chain(Box<Apart>),
    /// Finished.
    Nothing,
}

/// A packet on its list: a `pkt_t`.
///
/// It has no memory of its own: while its events run one after the other it stands on the
/// thread's stack, and between perimeters in the slot of an squeue's queue, with the handle of
/// its buffer. So nothing is allocated for it (section 5: the separate allocation cost TLB
/// misses).
pub(super) struct Pkt<P: Platform> {
    /// The connection that it belongs to.
    pub(super) id: SockId,
    /// The version of the list that it finishes on.
    pub(super) list: ListRef,
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

impl<P: Platform> Pkt<P> {
    /// The packet, to be left somewhere; what stays here carries nothing.
    pub(super) fn take(&mut self) -> Pkt<P> {
        Pkt {
            list: self.list.clone(),
            counted: self.counted.take(),
            input: self.input.take(),
            body: core::mem::replace(&mut self.body, Body::Nothing),
            ..*self
        }
    }
}

/// A call on its way to TCP.
pub(super) trait Call<P: Platform>: Send {
    /// Its data, if it has some in one piece.
    fn data(&mut self) -> Option<&mut [u8]>;

    /// The socket layer's turn. `false`: the socket has gone, and TCP has nothing to do with it.
    fn socket(&mut self, pef: &Pef<P>, env: &mut Env<'_, P>) -> bool;

    /// TCP's turn.
    fn run(self: Box<Self>, pef: &Pef<P>, env: &mut Env<'_, P>, inner: &mut Inner<P>);

    /// An event has dropped the data: the call has done its work.
    fn dropped(self: Box<Self>, pef: &Pef<P>, env: &mut Env<'_, P>);
}

/// Datagrams that a call sends, and who waits for what comes of it.
pub(super) trait Sent<P: Platform>: Send {
    /// The datagrams.
    fn all(&mut self) -> &mut dyn Departures<Kd<P>>;

    /// The caller goes on.
    fn answer(self: Box<Self>);
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
pub(super) fn offsets<P: Platform>(sh: &SharedState<Kd<P>>, seg: &Seg) -> [u16; 4] {
    let ip = match sh.ifaces[usize::from(seg.iface)].caps.medium {
        Medium::Ethernet => perimeter_wire::EtherHdr::LEN as u16,
        Medium::Ip => 0,
    };
    let payload = seg.frame.payload_off as u16;
    let tcp = payload.saturating_sub(seg.frame.hdr.header_len() as u16);
    [0, ip, tcp, payload]
}
