//! Event lists and their versions (section 3.2.1).
//!
//! A list never changes: altering a connection's list publishes a new version, and a packet
//! finishes on the version that it started with. A disabled event leaves the next version and is
//! a tombstone in those before: packets under way pass it by. It is freed with the last version
//! that holds it, that is, when no packet can see it any more.

use super::bind::Bind;
use super::event::{Direction, End, EventId, EventSpec, Layer, PacketEvent, Under};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

/// What an event does.
#[derive(Clone)]
pub(crate) enum Callback {
    /// The layer's own processing.
    Own,
    /// Header prediction, the first of TCP's finer events.
    Predict,
    /// What prediction left, in full.
    Full,
    /// What follows from either: the buffers, acknowledgments, segments to send.
    Output,
    /// Somebody else's.
    Foreign(Arc<dyn PacketEvent>),
}

impl Callback {
    /// Whether it has each packet as it came, not merged ones as one.
    pub(crate) fn wants_each(&self) -> bool {
        match self {
            Callback::Own | Callback::Output => false,
            Callback::Predict | Callback::Full | Callback::Foreign(_) => true,
        }
    }
}

/// Runs what a program brought along; `None` if that panicked. Also what was thrown may panic when
/// it is dropped.
pub(crate) fn caught<R>(f: impl FnOnce() -> R) -> Option<R> {
    // Whoever brought it along has to bear what a panic leaves behind in it; nothing of the
    // stack's own is changed in there.
    let thrown = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(out) => return Some(out),
        Err(thrown) => thrown,
    };
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
        // Its destructor may go on like that.
        core::mem::forget(again);
    }
    None
}

/// An event's states: on its lists; a tombstone; a tombstone because its callback has panicked.
const ON: u8 = 0;
const OFF: u8 = 1;
const PANICKED: u8 = 2;

/// An event on a list.
pub(crate) struct Event {
    pub(crate) id: EventId,
    pub(crate) name: Box<str>,
    pub(crate) layer: Layer,
    pub(crate) under: Under,
    pub(crate) callback: Callback,
    state: AtomicU8,
}

/// The callback may own what panics when it is dropped.
impl Drop for Event {
    fn drop(&mut self) {
        if let Callback::Foreign(f) = core::mem::replace(&mut self.callback, Callback::Own) {
            let _ = caught(|| drop(f));
        }
    }
}

impl Event {
    /// Somebody else's, not a layer's own.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.callback, Callback::Foreign(_))
    }

    /// Whether it is TCP's own, which needs the connection's state.
    #[inline]
    pub(crate) fn is_tcps(&self) -> bool {
        self.layer == Layer::Tcp && !self.is_foreign()
    }

    /// Whether both are one event. A layer's own may be made anew for another list.
    fn is(&self, other: &Event) -> bool {
        let own = !self.is_foreign() && !other.is_foreign();
        self.id == other.id || own && self.layer == other.layer
    }

    /// Whether it is a tombstone.
    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        self.state.load(Ordering::Acquire) != ON
    }

    /// Makes a tombstone of it; whether it was none.
    pub(crate) fn switch_off(&self) -> bool {
        self.end(OFF)
    }

    /// As [`Event::switch_off`], as its callback has panicked.
    pub(crate) fn break_off(&self) -> bool {
        self.end(PANICKED)
    }

    fn end(&self, state: u8) -> bool {
        let (order, or) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(ON, state, order, or).is_ok()
    }

    /// Whether it is a tombstone because its callback has panicked.
    pub(crate) fn has_panicked(&self) -> bool {
        self.state.load(Ordering::Acquire) == PANICKED
    }
}

/// The perimeters that packets pass from the first of some events to the last, for the squeues
/// that `bind` says.
fn path(events: &[Arc<Event>], bind: Bind) -> Vec<Option<u16>> {
    let under = |e: &Arc<Event>| bind.under(e.layer, e.under);
    let mut path: Vec<_> = events.iter().map(under).collect();
    path.dedup();
    path
}

/// A part of a list.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// Up to TCP.
    ToTcp,
    /// From TCP on.
    FromTcp,
}

/// One version of a list, in order of execution.
pub(crate) struct List {
    events: Vec<Arc<Event>>,
    /// Only the layers' own events: nobody changes a packet on its way.
    plain: bool,
    /// TCP does the socket's and IP's part within its own event, as FireEngine does.
    direct: bool,
    /// Behind the event that makes segments: where what TCP sends by itself (retransmissions,
    /// acknowledgments) enters the transmit list.
    after_tcp: usize,
}

/// A list, as versions and packets refer to it.
#[derive(Clone)]
pub(crate) enum ListRef {
    /// One that is there as long as the program: nobody counts who refers to it.
    Fixed(&'static List),
    /// A version of a connection's own.
    Shared(Arc<List>),
}

/// The lists that connections start with, by direction.
static COARSE: LazyLock<[List; 2]> =
    LazyLock::new(|| [Direction::Receive, Direction::Transmit].map(List::initial));
/// As those, with TCP's receive layer in three events.
static FINE: LazyLock<List> = LazyLock::new(List::fine);
/// Of datagrams that are received and that are sent, as long as nobody else's event is on them.
static DATAGRAMS: LazyLock<[List; 2]> =
    LazyLock::new(|| [Direction::Datagram, Direction::SentDatagram].map(List::datagrams));
/// As [`COARSE`], direct.
static DIRECT: LazyLock<[List; 2]> = LazyLock::new(|| {
    [Direction::Receive, Direction::Transmit].map(|direction| List {
        direct: true,
        ..List::initial(direction)
    })
});

impl ListRef {
    /// The list to receive and the one to transmit that connections start with.
    pub(crate) fn initial(fine: bool) -> [ListRef; 2] {
        let [receive, transmit] = &*COARSE;
        let receive = if fine { &*FINE } else { receive };
        [ListRef::Fixed(receive), ListRef::Fixed(transmit)]
    }

    /// Those of a connection whose TCP does all ([`List::is_direct`]).
    pub(crate) fn direct() -> [ListRef; 2] {
        let [receive, transmit] = &*DIRECT;
        [ListRef::Fixed(receive), ListRef::Fixed(transmit)]
    }

    /// The list of received datagrams and that of sent ones before any event was registered.
    pub(crate) fn datagrams() -> [ListRef; 2] {
        let [received, sent] = &*DATAGRAMS;
        [ListRef::Fixed(received), ListRef::Fixed(sent)]
    }

    /// A list of its own.
    pub(crate) fn new(list: List) -> ListRef {
        ListRef::Shared(Arc::new(list))
    }

    /// Whether both are the same list.
    #[inline]
    pub(crate) fn is(&self, other: &ListRef) -> bool {
        core::ptr::eq(&raw const **self, &raw const **other)
    }
}

impl core::ops::Deref for ListRef {
    type Target = List;

    #[inline]
    fn deref(&self) -> &List {
        match self {
            ListRef::Fixed(list) => list,
            ListRef::Shared(list) => list,
        }
    }
}

/// A place in a direction's order of layers.
fn rank(direction: Direction, layer: Layer) -> usize {
    match direction {
        Direction::Receive | Direction::Datagram | Direction::Unbound => layer as usize,
        Direction::Transmit | Direction::SentDatagram => Layer::ALL.len() - 1 - layer as usize,
    }
}

static NEXT: AtomicU64 = AtomicU64::new(1);

fn event(name: &str, layer: Layer, under: Under, callback: Callback) -> Arc<Event> {
    Arc::new(Event {
        id: EventId(NEXT.fetch_add(1, Ordering::Relaxed)),
        name: name.into(),
        layer,
        under,
        callback,
        state: AtomicU8::new(ON),
    })
}

/// A layer's own event.
fn own(layer: Layer) -> Arc<Event> {
    event(layer.name(), layer, Under::Layer, Callback::Own)
}

impl List {
    fn new(events: Vec<Arc<Event>>) -> List {
        let plain = events
            .iter()
            .all(|e| !e.is_foreign() && e.under == Under::Layer);
        let makes = |e: &Arc<Event>| e.layer == Layer::Tcp && !e.is_foreign();
        let after_tcp = events
            .iter()
            .rposition(makes)
            .map_or(events.len(), |i| i + 1);
        List {
            events,
            plain,
            direct: false,
            after_tcp,
        }
    }

    /// The list that connections start with: one event for each major layer.
    pub(crate) fn initial(direction: Direction) -> List {
        let mut layers = Layer::ALL;
        layers.sort_by_key(|l| rank(direction, *l));
        List::new(layers.map(own).to_vec())
    }

    /// The same to receive, with TCP's layer in three events (section 5).
    pub(crate) fn fine() -> List {
        let tcp = |name, callback| event(name, Layer::Tcp, Under::Layer, callback);
        List::new(vec![
            own(Layer::Ip),
            tcp("tcp-predict", Callback::Predict),
            tcp("tcp-full", Callback::Full),
            tcp("tcp-output", Callback::Output),
            own(Layer::Sockfs),
        ])
    }

    /// A list of datagrams: there is no state machine between IP's event and the socket's.
    pub(crate) fn datagrams(direction: Direction) -> List {
        let mut layers = [Layer::Ip, Layer::Sockfs];
        layers.sort_by_key(|l| rank(direction, *l));
        List::new(layers.map(own).to_vec())
    }

    /// The list of packets that belong to no connection.
    pub(crate) fn unbound() -> List {
        List::new(Vec::new())
    }

    /// Whether there is nothing on it.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The next version, with an event more; and its name.
    pub(crate) fn with(&self, direction: Direction, end: End, spec: EventSpec) -> (List, EventId) {
        let new = event(
            &spec.name,
            spec.layer,
            spec.under,
            Callback::Foreign(spec.event),
        );
        let id = new.id;
        let mut events: Vec<Arc<Event>> = self.live().cloned().collect();
        let at = rank(direction, spec.layer);
        let place = |e: &Arc<Event>| match end {
            End::Front => rank(direction, e.layer) >= at,
            End::Back => rank(direction, e.layer) > at,
        };
        let place = events.iter().position(place).unwrap_or(events.len());
        events.insert(place, new);
        (List::new(events), id)
    }

    /// The next version, without tombstones.
    pub(crate) fn swept(&self) -> List {
        List::new(self.live().cloned().collect())
    }

    /// Whether there are tombstones on it.
    pub(crate) fn has_tombstones(&self) -> bool {
        self.events.iter().any(|e| e.is_off())
    }

    fn live(&self) -> impl Iterator<Item = &Arc<Event>> {
        self.events.iter().filter(|e| !e.is_off())
    }

    /// The events up to TCP's own, or from there on; its own in both.
    fn half(&self, half: Half) -> &[Arc<Event>] {
        let own = |e: &Arc<Event>| e.layer == Layer::Tcp && !e.is_foreign();
        match half {
            Half::ToTcp => {
                let end = self.events.iter().position(own).map_or(0, |i| i + 1);
                &self.events[..end]
            }
            Half::FromTcp => {
                let start = self.events.iter().rposition(own);
                &self.events[start.unwrap_or(self.events.len())..]
            }
        }
    }

    /// Whether packets on this version, under the squeues that `bind` says, can't come before
    /// those on an older one, `before` under its squeues, at any event that both have: up to
    /// each they pass all perimeters that those pass, in that order, so that they queue behind
    /// them wherever these are. It does not suffice that the paths are alike from end to end: the
    /// same event may be at the end of one and at the beginning of the other.
    pub(crate) fn follows(&self, half: Half, bind: Bind, old: &List, before: Bind) -> bool {
        let (mine, theirs) = (self.half(half), old.half(half));
        let (mut from, mut from_theirs) = (0, 0);
        for (i, event) in theirs.iter().enumerate() {
            let Some(j) = mine.iter().position(|e| e.is(event)) else {
                continue;
            };
            let new_path = path(&mine[from..=j], bind);
            let old_path = path(&theirs[from_theirs..=i], before);
            let mut rest = new_path.iter();
            if new_path.last() != old_path.last() || !old_path.iter().all(|q| rest.any(|p| p == q))
            {
                return false;
            }
            (from, from_theirs) = (j, i);
        }
        true
    }

    /// Those whose callbacks have panicked, among the tombstones.
    pub(crate) fn panicked(&self) -> impl Iterator<Item = &Arc<Event>> {
        self.events.iter().filter(|e| e.has_panicked())
    }

    /// The event of that name, if it is on this version and no tombstone.
    pub(crate) fn find(&self, id: EventId) -> Option<&Arc<Event>> {
        self.live().find(|e| e.id == id)
    }

    /// The event at a place, tombstones included; `None` past the end.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> Option<&Arc<Event>> {
        self.events.get(place)
    }

    /// Only the layers' own events.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Whether TCP's event does the socket's and IP's part where they are under its squeue.
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    /// The place where segments enter that TCP has made.
    #[inline]
    pub(crate) fn after_tcp(&self) -> usize {
        self.after_tcp
    }

    /// Names of the events, for those who look; behind them those of `panicked`.
    pub(crate) fn names<'a>(&self, panicked: impl Iterator<Item = &'a str>) -> Vec<String> {
        let live = self.live().map(|e| e.name.to_string());
        live.chain(panicked.map(|n| format!("{n} (panicked)")))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pef::event::{Packet, Verdict};

    fn none() -> core::iter::Empty<&'static str> {
        core::iter::empty()
    }

    fn spec(name: &str, direction: Direction, layer: Layer) -> EventSpec {
        EventSpec {
            name: name.to_string(),
            direction,
            layer,
            under: Under::Layer,
            event: Arc::new(|_: &mut Packet<'_>| Verdict::Next),
        }
    }

    #[test]
    fn layers_stand_in_the_order_of_their_direction() {
        let receive = List::initial(Direction::Receive);
        assert_eq!(receive.names(none()), ["ip", "tcp", "sockfs"]);
        assert!(receive.is_plain());
        let fine = List::fine();
        let want = ["ip", "tcp-predict", "tcp-full", "tcp-output", "sockfs"];
        assert_eq!(
            (fine.names(none()).join(" "), fine.after_tcp()),
            (want.join(" "), 4)
        );
        let transmit = List::initial(Direction::Transmit);
        assert_eq!(transmit.names(none()), ["sockfs", "tcp", "ip"]);
        assert_eq!(transmit.after_tcp(), 2);
    }

    #[test]
    fn events_go_to_the_ends_of_their_major_layer() {
        for (direction, want) in [
            (
                Direction::Receive,
                "a-ip ip b-ip a-tcp tcp b-tcp a-sockfs sockfs b-sockfs",
            ),
            (
                Direction::Transmit,
                "a-sockfs sockfs b-sockfs a-tcp tcp b-tcp a-ip ip b-ip",
            ),
        ] {
            let mut list = List::initial(direction);
            for layer in Layer::ALL {
                for (end, letter) in [(End::Front, "a"), (End::Back, "b")] {
                    let name = format!("{letter}-{}", layer.name());
                    list = list.with(direction, end, spec(&name, direction, layer)).0;
                }
            }
            assert_eq!(list.names(none()).join(" "), want);
            assert!(!list.is_plain());
            let tcp = list.at(list.after_tcp() - 1).map(|e| e.name.to_string());
            assert_eq!(tcp.as_deref(), Some("tcp"));
        }
    }

    fn at(layer: Layer, squeue: u16) -> EventSpec {
        EventSpec {
            under: Under::Squeue(squeue),
            ..spec("x", Direction::Receive, layer)
        }
    }

    fn with(list: &List, end: End, spec: EventSpec) -> List {
        list.with(Direction::Receive, end, spec).0
    }

    /// For both halves of a list, with its layers under squeues 0, 1 and 2.
    fn follows(new: &List, old: &List) -> [bool; 2] {
        let bind = spread();
        [Half::ToTcp, Half::FromTcp].map(|half| new.follows(half, bind, old, bind))
    }

    fn spread() -> Bind {
        let (ip, tcp, sockfs) = (0, 1, 2);
        Bind::new(
            super::super::spec::Arrangement::At { ip, tcp, sockfs },
            1,
            4,
        )
    }

    #[test]
    fn who_passes_more_places_in_the_same_order_overtakes_nobody() {
        let plain = List::initial(Direction::Receive);
        let longer = with(&plain, End::Back, at(Layer::Ip, 3));
        assert_eq!(follows(&longer, &plain), [true, true]);
        assert_eq!(follows(&plain, &longer), [false, true], "past squeue 3");
        // The same places in another order.
        let other = with(&plain, End::Front, at(Layer::Ip, 3));
        assert_eq!(follows(&other, &longer), [false, true]);
        assert_eq!(follows(&longer, &other), [false, true]);
        // What is behind TCP does not count for what is before it.
        let behind = with(&plain, End::Front, at(Layer::Sockfs, 3));
        assert_eq!(follows(&behind, &longer), [false, true]);
        assert_eq!(follows(&longer, &behind), [true, false]);
        assert_eq!(follows(&longer, &longer), [true, true]);
        // Lists that were made apart have their layers' own events in common.
        assert_eq!(follows(&List::fine(), &plain), [true, true]);
        // Moved layers.
        let (bind, to) = (spread(), Half::ToTcp);
        let moved = bind.with(Layer::Ip, 3);
        assert!(!plain.follows(to, moved, &plain, bind));
        assert!(!longer.follows(to, moved, &plain, bind), "IP's event first");
        assert!(longer.follows(to, moved, &plain, moved));
    }

    /// Both lists go by squeues 2, 3 and 2 after TCP, but the socket's event is the last on one
    /// and the first on the other.
    #[test]
    fn paths_that_are_alike_do_not_make_an_order() {
        let plain = List::initial(Direction::Receive);
        let before = with(&plain, End::Front, at(Layer::Sockfs, 3));
        let before = with(&before, End::Front, at(Layer::Sockfs, 2));
        let behind = with(&plain, End::Back, at(Layer::Sockfs, 3));
        let behind = with(&behind, End::Back, at(Layer::Sockfs, 2));
        assert_eq!(follows(&behind, &before), [true, false]);
        assert_eq!(follows(&before, &behind), [true, true]);
        assert_eq!(
            follows(&plain, &behind),
            [true, true],
            "nothing in common behind it"
        );
        // Nor may another event that both have see them in another order.
        let seen = with(&plain, End::Back, at(Layer::Ip, 0));
        let early = with(&seen, End::Back, at(Layer::Ip, 2));
        let late = with(&seen, End::Front, at(Layer::Ip, 2));
        let late = with(&late, End::Front, at(Layer::Ip, 0));
        assert_eq!(follows(&early, &late), [false, true]);
    }

    #[test]
    fn a_tombstone_stays_in_old_versions_until_nobody_sees_them() {
        let first = Arc::new(List::initial(Direction::Receive));
        let (second, id) = first.with(
            Direction::Receive,
            End::Back,
            spec("x", Direction::Receive, Layer::Tcp),
        );
        let weak = second.find(id).map(Arc::downgrade).expect("on the list");
        let in_flight = Arc::new(second);
        assert!(in_flight.find(id).is_some_and(|e| e.switch_off()));
        assert!(in_flight.find(id).is_none(), "found, though it is off");
        let third = in_flight.swept();
        assert_eq!(third.names(none()), ["ip", "tcp", "sockfs"]);
        assert!(third.is_plain());
        let tomb = in_flight.at(2).expect("still there for packets under way");
        assert!(tomb.is_off() && !tomb.switch_off(), "switched off twice");
        assert!(weak.upgrade().is_some());
        drop(in_flight);
        assert!(weak.upgrade().is_none(), "outlived the last version");
    }
}
