//! `pef`: the Packet Event Framework.
//!
//! **Background.** Yu and Curtis, "Packet Event Framework for the OpenSolaris Operating System",
//! section 3: layer-based parallelism on top of FireEngine's squeues.
//!
//! **Binding.** A connection has two lists of events, to receive (IP, TCP, SOCKFS) and to
//! transmit (SOCKFS, TCP, IP), and each major layer an squeue that its events run under.
//! `pef:random`: one drawn squeue for all layers of a connection, the paper's default.
//! `pef:vertical`: one for all, that of the core which opened the connection; an accepted one is
//! fanned out. `pef:horizontal`: three different ones, so that one connection spreads over
//! cores as a pipeline. `pef:ip=A:tcp=B:sockfs=C`: those of designated cores. Each layer's
//! squeue can be designated for a connection (SO_SETSQP): before it is opened, by the listener, and
//! live, from a moment on at which none of its packets is between perimeters. TCP's state then moves
//! to the other squeue as a message, and what comes to where it was follows it (`moving.rs`). Where a
//! listener designates TCP's, handshakes are the business of the squeue that is drawn, and the connection is left to
//! the other one as a message.
//!
//! **Processing.** A received packet is classified once, at the bottom of IP, by the flow that
//! its frame claims, and starts with its connection's receive list; a sent one starts in the socket
//! layer, in the user's context, and is never classified. The executor (`exec.rs`) runs event after
//! event: under the present perimeter at once, under another one by leaving the packet there as a
//! message, outside any after releasing. Perimeters never nest.
//!
//! **Events.** Each layer has one on either list (`layers.rs`), and none is empty. To receive: IP
//! checks and reads headers, lengths and checksums; TCP is the state machine; SOCKFS puts data to
//! the socket's queue and wakes who waits. To transmit: the user's context takes the caller's data
//! and the room for it and answers; SOCKFS counts the call against a socket that is still there;
//! TCP appends and plans segments; IP gives them their headers and places them in the ring.
//!
//! **Datagrams** that are for a socket have a list of the stack (`Direction::Datagram`), a burst of them
//! for one squeue as a packet: IP checks lengths and checksums under its squeue, SOCKFS gives them to the
//! socket under the squeue that this is with, for there is no state machine between. Those that are sent
//! have another one (`Direction::SentDatagram`), what one call sends as a packet: SOCKFS finds their ways
//! under the socket's squeue, IP gives them to the device under its own, and the caller waits for that,
//! as it is told whether there was room. What has to wait for room or for a neighbour's station goes
//! back to the socket; when it goes on, its events are behind it. What belongs to nobody has a third one
//! (`Direction::Unbound`).
//!
//! **Soft rings.** Under `fanout=on` an inbound thread hands packets to worker threads by the flow's
//! hash, one ring for each core, and those ask the classifier: `squeue`'s rings.
//!
//! **Limits.** Packets keep their order along the perimeters of their list. An event outside any
//! perimeter may be run by two threads at once, and packets may overtake each other there.
//!
//! **Inferences.** (1) Where layers are spread over squeues, each squeue runs on its own core
//! only: a thread of another core leaves a message and the worker is woken. Where a connection
//! has one squeue, entry is FireEngine's `process`: run at once if it is idle. (2) A drawn
//! squeue is a keyed hash of the flow for accepted connections, so that all segments of a
//! handshake meet; a connection that is opened here draws freely under `random`. (3) `horizontal`
//! has at least three squeues, also on fewer cores: TCP's, the next for IP, and the next for the
//! socket layer. (4) Water marks are STREAMS': [`perimeter_stack::marks`]. Without the light
//! queue TCP is told of free space after reads, as by `squeue`, and each message costs a round of
//! the queue's lock for `canputnext`, `putnext` and `getq`. (5) A packet is classified again at
//! most four times. (6) A changed list is taken over at once where packets on it can't come
//! before those on the old one at any event that both have, else when no packet of the connection
//! is between perimeters. (7)
//! TCP's event on the transmit list makes the segments; those that it sends by itself, by timers
//! or in answer, enter the list behind it. (8) Under `lists=off` TCP's event does IP's and the
//! socket's part within its turn where they share its perimeter, as FireEngine does, and IP's part
//! of input comes before the classifier; so does TCP's event of a connection whose SO_PEFON is off.
//! (9) IP's event has plain segments only: those with options in IP's header, fragments, and what
//! belongs to no connection IP has dealt with before, outside any perimeter. (10) A callback that panics is caught: its event is
//! taken off wherever it is, and the packet goes on.

mod alter;
mod bind;
mod call;
mod cell;
mod classify;
mod counted;
mod datagrams;
pub mod event;
mod exec;
mod flows;
mod foreign;
mod framework;
mod home;
mod layers;
mod link;
mod list;
mod moving;
mod org;
mod spec;
pub mod trace;

pub use framework::Pef;
pub use spec::{Arrangement, Pef as Spec};

use crate::open::{Options, Visit};
use crate::spec::Family;
use perimeter_sync::Platform;

/// The families of this module.
pub(crate) const FAMILIES: &[&Family] = &[&spec::FAMILY];

/// Which type each of them is.
pub(crate) fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
    visitor.visit::<Pef<P>>(p, o)
}
