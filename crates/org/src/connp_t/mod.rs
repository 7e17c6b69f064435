//! `connp-t:N`: connection groups owned by threads.
//!
//! **Background.** Willmann, Rixner, Cox, section 3.2.1: connection parallelism serialized by
//! threads, in the style of DragonFly BSD; its remedy of light messages from the end of
//! section 4.3 of the long version; and Yates et al. for a thread for each connection.
//!
//! **Binding.** A connection belongs to thread `hash mod N` for life, by the symmetric flow
//! hash. Thread `n` runs on core `n mod cores`. Under `per-connection` the hash names one of 384
//! threads (`per-connection=K`: of K), and where that one has a connection already, a new one gets
//! a thread that has none, as long as there are any; then they are shared. With `made` beside it
//! the hash names a thread of one for each core, which shakes hands, and a place for connections of
//! 384 (K) likewise; the place's thread is made when a connection comes to it, and ends when it has
//! none left.
//!
//! **Processing.** Every entry to the protocol is a message to that thread, which runs what was
//! sent to it strictly first in, first out, whoever sent it. A thread's connection table,
//! timers, SYN cache and wildcard listeners are its own, and no lock of the protocol is taken.
//! *Synchronous:* the requester of a socket call parks until the thread has filled in the return
//! value and signals it; a send that does not block waits like that for its result code, never
//! for room. *Asynchronous:* inbound threads enqueue packets and go on. The socket layer runs in
//! its caller: the socket buffers are shared, each behind its lock, and a call which they alone
//! settle sends no message. *Timers:* each connection has a message of its own and a mask of the
//! timers that are due; it gets in line behind what was sent before, so a timer that fires while
//! the acknowledgment that cancels it is queued does nothing when its turn comes.
//! *Incomplete tuples* are thread 0's: connect is bound and hashed there, unlinked, and forwards
//! itself to its owner, where it is linked again.
//!
//! *`wait=spin`:* each sender has a ring to each thread, and a thread is woken only if it is not
//! looking at its rings already. A requester looks for its answer for at most [`SPIN`] if the
//! owner is on another core, and then parks. A thread whose way to another is over half full
//! works off its own messages first. A burst that is all one thread's is one message.
//!
//! *`fold`:* a thread of the application, or one that polls a device, plays the role of the
//! protocol threads of its core: it puts its message into its ring, takes the ownership that
//! the protocol thread would take, runs what waits in order, its own message among it, and lets
//! go. Ownership is tried for and never waited for; whoever lets go looks at the rings once more
//! and wakes the protocol thread if something is left, so a message that finds another owner at
//! work is not forgotten. As both roles are one thread's, connections are kept whole and a call
//! runs both its phases there. A group's timers are run by who plays its role, or, late by
//! [`GRACE`], by its own thread, which is woken if it would sleep longer.
//!
//! *`per-connection`:* the thread that the hash names shakes hands. When that is done, a free
//! thread is picked, the map from flows to threads is changed, which inbound threads look at under
//! its lock, and three messages follow each other to the connection's thread: the handshake with
//! the segment that completed it; what the flow's former thread still has of it, in order; and the
//! word that this was all. Until that word has come, what arrives directly waits, so no segment
//! overtakes another. connect goes to thread 0, then to the hash's, which alone decides whether
//! the flow exists, then to the one picked. When a connection leaves its table its flow is the
//! hash's again, TIME-WAIT that a SYN takes over included. A thread without connection sleeps
//! until it is told something, and is not asked when connections are listed.
//!
//! *`made`:* who leaves a message at a place without a thread makes one. A thread that finds neither
//! connections, in TIME-WAIT or not, nor messages says that nobody is there, looks for messages once
//! more, and ends; whoever comes at that moment makes the next, which waits for its end before it
//! begins. So the order of messages is kept, and a message is not forgotten. Listeners, SYN caches
//! and sockets for datagrams are with the threads that stay: a SYN that finds its flow in TIME-WAIT
//! goes to ask there whether somebody listens, and comes back. Where the host refuses a thread the
//! permanent one of the core looks after the place until that has no connection: no packet and no
//! call is lost, and the next connection there tries again. When the stack has ended no thread is
//! made, and what is left at a place falls to who waits for it. Counted: `threads_made`,
//! `threads_ended`, `threads_refused`.
//!
//! **Limits.** Without `fold` each call costs two switches of threads. listen adds a wildcard
//! entry to the table of one thread after another, and closing a listener removes them likewise
//! and detaches it last: both cost time in proportion to N (`perimeter-bench`, `listen`). A SYN
//! that reaches a thread before its wildcard entry is refused, as before listen; one that comes
//! during the removal is taken by threads that still have the entry: its handshake is forgotten
//! there, or its connection reset when the listener is detached. With rings, first in, first out
//! holds for each sender, not across them. `per-connection` has the price of its map: a lock, one
//! of 64, for each packet. Under `made` the thread that the hash names makes the other, and its
//! flows wait for that; so does a device where it has a packet for a connection that has just gone.
//!
//! **Inferences.** The paper's message queues have no limit; here a full queue drops packets, as
//! a full interface queue does, and keeps everything else. DragonFly's timers fire on the
//! owner's core outside the protocol thread, which is why it sends a message; here the thread
//! looks at its wheel between two messages and sends the message to itself, for the order that
//! this gives. A window update that follows from reading is a call like others: it is waited
//! for. The threads' SYN caches are one cache divided, with cookies for what finds its share full
//! (see `connp-l`). `fold` is in force only where it is named, so that it can be measured against
//! plain `wait=spin`. Rings belong to pairs of thread and thread rather than of cores: a program's
//! threads may be preempted while they send. Yates et al. create a connection's thread with it,
//! as `made` does; without that all 384 are there from the beginning, and listeners are in all their
//! tables. That a thread which stays shakes hands, and not the new one, is a choice of ours. After
//! the threads have ended with the stack, or one by a panic, whoever waits for an answer runs what
//! they left.

mod answer;
mod cell;
mod demux;
mod group;
mod inbox;
mod jobs;
mod org;
mod places;
mod presence;
mod spec;
mod thread;

use crate::open::{Options, Visit};
use crate::spec::{Colour, Family, Look, Marker, OrgSpec, Variant};
use cell::{Apart, Whole};
use perimeter_sync::Platform;
use spec::ConnpT as Spec;
use thread::ConnpT;

/// `connp-t`.
static FAMILY: Family = Family {
    name: "connp-t",
    title: "ConnP-T",
    takes: "it takes a number of threads from 1 to 384, \
         `wait=condvar` or `wait=spin`, and with `wait=spin` also `fold`; or `per-connection`, \
         also `per-connection=K` for at most K threads, alone or with `made`",
    variants: &[
        Variant {
            name: "connp-t:N",
            usual: "connp-t",
            summary: "connection groups owned by threads; whoever waits sleeps on a condition variable",
        },
        Variant {
            name: "connp-t:N:wait=spin",
            usual: "connp-t:wait=spin",
            summary: "the same with light messages: a ring for each pair, and a short look before sleeping",
        },
        Variant {
            name: "connp-t:N:wait=spin:fold",
            usual: "connp-t:wait=spin:fold",
            summary: "the same; a core's application and protocol share one thread",
        },
        Variant {
            name: "connp-t:per-connection",
            usual: "connp-t:per-connection",
            summary: "a thread for each connection, up to 384; shared beyond",
        },
        Variant {
            name: "connp-t:per-connection:made",
            usual: "connp-t:per-connection:made",
            summary: "the same; the thread is made when the connection comes, and ends with it",
        },
    ],
    // Few enough to be shared.
    tested: &[
        ("connp-t:per-connection", "connp-t:per-connection=5"),
        (
            "connp-t:per-connection:made",
            "connp-t:per-connection=5:made",
        ),
    ],
    recommend: Some("connp-t:N"),
    parse: |parts| Ok(OrgSpec::new(&FAMILY, Spec::parse(parts)?)),
    look: Look {
        colour: Colour {
            light: "#2f9fe0",
            dark: "#9bd6ff",
            terminal: Some(74),
        },
        marker: Marker::Down,
    },
    counts: places::COUNTS,
    hand_over: &[answer::FILE, inbox::FILE, jobs::FILE, presence::FILE],
};

/// The families of this module.
pub(crate) const FAMILIES: &[&Family] = &[&FAMILY];

/// Which type each of them is.
pub(crate) fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
    match o.org.expect_params::<Spec>().fold {
        true => visitor.visit::<ConnpT<Whole<P>>>(p, o),
        false => visitor.visit::<ConnpT<Apart<P>>>(p, o),
    }
}
