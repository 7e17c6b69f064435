//! What the framework knows of a connection beside its protocol state: versions of its lists,
//! the squeues of its layers, and how many of its packets are between perimeters.
//!
//! A change is published at once, but each way through the stack (in to TCP, up to the socket,
//! calls down to TCP, segments out) takes it over by itself: at once where that can't let a
//! packet overtake one that is under way on the old version, else as soon as none is.

use super::bind::Bind;
use super::event::{AlterError, Direction, End, EventId, EventSpec, Layer};
use super::home::Home;
use super::list::{Half, List, ListRef};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use perimeter_stack::SockId;
use perimeter_sync::{Lock, LockClass, Platform};
use perimeter_wire::FlowKey;

/// A way through the stack, along which packets keep their order.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the classifier to TCP.
    In = 0,
    /// Calls, from the socket to TCP.
    Call = 1,
    /// What TCP hands on: news to the socket, segments to IP.
    On = 2,
}

const WAYS: usize = 3;

/// What packets of a connection run through.
#[derive(Clone)]
pub(crate) struct Version {
    pub(crate) receive: ListRef,
    pub(crate) transmit: ListRef,
    pub(crate) bind: Bind,
    serial: u32,
    /// How often TCP was designated another squeue before.
    moves: u32,
}

impl Version {
    /// The first of a connection.
    pub(crate) fn first([receive, transmit]: [ListRef; 2], bind: Bind) -> Version {
        Version {
            receive,
            transmit,
            bind,
            serial: 0,
            moves: 0,
        }
    }

    /// Its number among those of the connection.
    pub(crate) fn serial(&self) -> u32 {
        self.serial
    }

    /// Whether a packet on `way` that goes through this one can't overtake any that goes through
    /// `old`. Where TCP was designated another squeue between them, packets go from squeue to squeue
    /// to find it, so that their paths say nothing.
    fn follows(&self, old: &Version, way: Way) -> bool {
        if self.moves != old.moves {
            return false;
        }
        let follows =
            |new: &List, old_list: &List, half| new.follows(half, self.bind, old_list, old.bind);
        match way {
            Way::In => follows(&self.receive, &old.receive, Half::ToTcp),
            Way::Call => follows(&self.transmit, &old.transmit, Half::ToTcp),
            Way::On => {
                follows(&self.receive, &old.receive, Half::FromTcp)
                    && follows(&self.transmit, &old.transmit, Half::FromTcp)
            }
        }
    }
}

/// How many events of a connection that have panicked are remembered; the oldest go.
const REMEMBERED: usize = 16;

/// An event whose callback has panicked.
#[derive(Clone)]
pub(crate) struct Panicked {
    id: EventId,
    /// Whether it was on the receive list, else on the transmit list.
    pub(crate) receive: bool,
    pub(crate) name: Box<str>,
}

/// The versions of a connection that does not go by the lists that all start with, or once did
/// not.
struct Own {
    published: Version,
    /// By way.
    taken: [Version; WAYS],
    aside: Aside,
}

impl Own {
    fn new(first: Version) -> Box<Own> {
        Box::new(Own {
            taken: core::array::from_fn(|_| first.clone()),
            published: first,
            aside: Aside {
                parked: None,
                panicked: Vec::new(),
            },
        })
    }
}

/// What is kept beside the versions.
struct Aside {
    /// While PEF is off: what to return to.
    parked: Option<Version>,
    /// Events that were taken off because their callbacks have panicked.
    panicked: Vec<Panicked>,
}

impl Aside {
    /// Takes the tombstones off, remembering those that have panicked.
    fn sweep(&mut self, v: &mut Version) {
        let Aside { parked, panicked } = self;
        let v = parked.as_mut().unwrap_or(v);
        for (list, receive) in [(&mut v.receive, true), (&mut v.transmit, false)] {
            panicked.extend(list.panicked().map(|e| Panicked {
                id: e.id,
                receive,
                name: e.name.clone(),
            }));
            *list = ListRef::new(list.swept());
        }
        let over = panicked.len().saturating_sub(REMEMBERED);
        panicked.drain(..over);
    }
}

/// Protected: what was published, and what each way has taken over.
struct Versions {
    /// Of the connection that has this entry; 0: none.
    generation: u32,
    key: Option<FlowKey>,
    /// `None`: it has the first version, as most have for ever, and no memory for others.
    own: Option<Box<Own>>,
}

/// What the framework keeps for one connection; the entry stays where it is, one connection after
/// the other has it.
pub(crate) struct Link<P: Platform> {
    versions: P::Lock<Versions>,
    /// Lists were altered, or layers moved: the versions must be asked.
    altered: AtomicBool,
    /// Of the version published.
    serial: AtomicU32,
    flight: [AtomicU32; WAYS],
    pub(super) home: Home,
}

impl<P: Platform> Link<P> {
    pub(crate) fn new(p: &P) -> Link<P> {
        let versions = Versions {
            generation: 0,
            key: None,
            own: None,
        };
        Link {
            versions: p.lock(LockClass::Leaf, versions),
            altered: AtomicBool::new(false),
            serial: AtomicU32::new(0),
            flight: [const { AtomicU32::new(0) }; WAYS],
            home: Home::default(),
        }
    }

    /// A new connection gets this entry; `own` is its first version where that is not the one that
    /// all start with.
    pub(crate) fn fill(&self, id: SockId, key: FlowKey, own: Option<Version>) {
        let mut v = self.versions.lock();
        self.altered.store(own.is_some(), Ordering::Release);
        self.serial.store(0, Ordering::Release);
        self.home.begin(id.shard());
        v.generation = id.generation();
        v.key = Some(key);
        v.own = own.map(Own::new);
    }

    /// The connection is over: its lists go.
    pub(crate) fn vacate(&self) {
        let mut v = self.versions.lock();
        v.generation = 0;
        v.own = None;
    }

    /// Whether versions must be asked.
    #[inline]
    pub(crate) fn is_altered(&self) -> bool {
        self.altered.load(Ordering::Acquire)
    }

    /// Number of the version published.
    #[inline]
    pub(crate) fn serial(&self) -> u32 {
        self.serial.load(Ordering::Acquire)
    }

    /// The version for a packet that starts on `way` now; `None`: the connection has gone. It is
    /// counted as under way until [`Link::arrived`].
    pub(crate) fn start(&self, way: Way, id: SockId) -> Option<Version> {
        let mut v = self.versions.lock();
        let version = self.current(&mut v, way, id)?.clone();
        self.departed(way);
        Some(version)
    }

    /// The version of `way` now, taking over what was published if it can be.
    pub(crate) fn version(&self, way: Way, id: SockId) -> Option<Version> {
        let mut v = self.versions.lock();
        self.current(&mut v, way, id).cloned()
    }

    fn current<'a>(&self, v: &'a mut Versions, way: Way, id: SockId) -> Option<&'a Version> {
        if v.generation != id.generation() {
            return None;
        }
        let Own {
            published, taken, ..
        } = &mut **v.own.as_mut()?;
        let taken = &mut taken[way as usize];
        // What TCP hands on goes by where it is, not by where it is to be.
        let ahead = way == Way::On
            && published.moves != taken.moves
            && !self.home.is(published.bind.of(Layer::Tcp));
        let stay = taken.serial == published.serial
            || ahead
            || (!published.follows(taken, way)
                && self.flight[way as usize].load(Ordering::Acquire) > 0);
        if !stay {
            *taken = published.clone();
        }
        Some(taken)
    }

    /// A packet is on `way`.
    #[inline]
    pub(crate) fn departed(&self, way: Way) {
        self.flight[way as usize].fetch_add(1, Ordering::AcqRel);
    }

    /// A packet has come to the end of `way`. Whether the connection is to move as soon as none is
    /// under way, which may be now.
    #[inline]
    pub(crate) fn arrived(&self, way: Way) -> bool {
        // Sequentially consistent, against [`Link::destination`]: of a count that falls to 0 and a
        // wish that is stated, at least one side sees the other's.
        let before = self.flight[way as usize].fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "a packet arrived twice");
        before == 1 && self.home.is_wanted()
    }

    /// Where TCP of the connection is to move to from squeue `here`, if it is designated another and
    /// none of its packets is under way.
    pub(crate) fn destination(&self, id: SockId, here: u16) -> Option<u16> {
        let v = self.versions.lock();
        let own = v.own.as_ref().filter(|_| v.generation == id.generation())?;
        let to = own.published.bind.of(Layer::Tcp);
        let wanted = to != here;
        self.home.want(wanted);
        let idle = || self.flight.iter().all(|n| n.load(Ordering::SeqCst) == 0);
        (wanted && idle()).then_some(to)
    }

    /// Publishes what `change` makes of the newest version, which is `first` if there was no other.
    fn publish<R>(
        &self,
        id: SockId,
        first: Version,
        change: impl FnOnce(&mut Version, &mut Aside) -> Result<R, AlterError>,
    ) -> Result<(R, FlowKey), AlterError> {
        let mut v = self.versions.lock();
        let v = &mut *v;
        if v.generation != id.generation() {
            return Err(AlterError::Gone);
        }
        let key = v.key.ok_or(AlterError::Gone)?;
        let own = v.own.get_or_insert_with(|| Own::new(first));
        let mut next = own.published.clone();
        let out = change(&mut next, &mut own.aside)?;
        next.serial = next.serial.wrapping_add(1);
        self.serial.store(next.serial, Ordering::Release);
        own.published = next;
        self.altered.store(true, Ordering::Release);
        Ok((out, key))
    }

    /// Inserts an event. With the flow, for the classifier to be told.
    pub(crate) fn insert(
        &self,
        (id, first): (SockId, Version),
        end: End,
        spec: EventSpec,
    ) -> Result<(EventId, FlowKey), AlterError> {
        self.publish(id, first, |v, aside| {
            if aside.parked.is_some() {
                return Err(AlterError::Off);
            }
            let list = match spec.direction {
                Direction::Receive | Direction::Datagram | Direction::Unbound => &mut v.receive,
                Direction::Transmit | Direction::SentDatagram => &mut v.transmit,
            };
            let (next, event) = list.with(spec.direction, end, spec);
            *list = ListRef::new(next);
            Ok(event)
        })
    }

    /// Makes a tombstone of an event, and sweeps it from the next version.
    pub(crate) fn disable(
        &self,
        (id, first): (SockId, Version),
        event: EventId,
    ) -> Result<FlowKey, AlterError> {
        let change = |v: &mut Version, aside: &mut Aside| {
            let now = aside.parked.as_ref().unwrap_or(&*v);
            let lists = [&now.receive, &now.transmit];
            // An own event of a layer can't be disabled: nothing would take its place.
            let found = lists.iter().find_map(|l| l.find(event));
            if found.is_some_and(|e| e.is_foreign() && e.switch_off()) {
                aside.sweep(v);
                return Ok(());
            }
            let mut panicked = lists.iter().flat_map(|l| l.panicked().map(|e| e.id));
            if panicked.any(|id| id == event) || aside.panicked.iter().any(|p| p.id == event) {
                return Err(AlterError::Panicked);
            }
            Err(AlterError::NoEvent)
        };
        self.publish(id, first, change).map(|((), key)| key)
    }

    /// An event has made a tombstone of itself: the next version is without.
    pub(crate) fn sweep(&self, (id, first): (SockId, Version)) -> Result<FlowKey, AlterError> {
        let change = |v: &mut Version, aside: &mut Aside| {
            aside.sweep(v);
            Ok(())
        };
        self.publish(id, first, change).map(|((), key)| key)
    }

    /// The flow of the connection.
    pub(crate) fn key(&self, id: SockId) -> Option<FlowKey> {
        let v = self.versions.lock();
        v.key.filter(|_| v.generation == id.generation())
    }

    /// SO_PEFON.
    pub(crate) fn switch(
        &self,
        (id, first): (SockId, Version),
        on: bool,
    ) -> Result<FlowKey, AlterError> {
        let change = |v: &mut Version, aside: &mut Aside| {
            let (serial, moves) = (v.serial, v.moves);
            if on {
                if let Some(before) = aside.parked.take() {
                    *v = before;
                }
            } else if aside.parked.is_none() {
                let whole = v.bind.whole_at(v.bind.of(Layer::Tcp));
                let off = Version::first(ListRef::direct(), whole);
                aside.parked = Some(core::mem::replace(v, off));
            }
            (v.serial, v.moves) = (serial, moves);
            Ok(())
        };
        self.publish(id, first, change).map(|((), key)| key)
    }

    /// SO_PEFON is off from the beginning; `first` is what there is to switch on. The version to
    /// start with.
    pub(crate) fn start_off(&self, id: SockId, first: Version) -> Option<Version> {
        self.switch((id, first), false).ok()?;
        self.version(Way::On, id)
    }

    /// SO_SETSQP.
    pub(crate) fn designate(
        &self,
        (id, first): (SockId, Version),
        layer: Layer,
        squeue: u16,
    ) -> Result<FlowKey, AlterError> {
        let change = |v: &mut Version, aside: &mut Aside| {
            let tcp = layer == Layer::Tcp;
            if tcp && v.bind.of(layer) != squeue {
                v.moves = v.moves.wrapping_add(1);
            }
            if let Some(parked) = &mut aside.parked {
                parked.bind = parked.bind.with(layer, squeue);
                if tcp {
                    v.bind = v.bind.whole_at(squeue);
                }
            } else {
                v.bind = v.bind.with(layer, squeue);
            }
            Ok(())
        };
        self.publish(id, first, change).map(|((), key)| key)
    }

    /// What was published, for those who look; `first` if nothing was.
    pub(crate) fn published(&self, id: SockId, first: Version) -> Option<Version> {
        let v = self.versions.lock();
        if v.generation != id.generation() {
            return None;
        }
        Some(v.own.as_ref().map_or(first, |own| own.published.clone()))
    }

    /// Events whose callbacks have panicked and that are on no version any more.
    pub(crate) fn panicked(&self, id: SockId) -> Vec<Panicked> {
        let v = self.versions.lock();
        if v.generation != id.generation() {
            return Vec::new();
        }
        v.own
            .as_ref()
            .map(|own| own.aside.panicked.clone())
            .unwrap_or_default()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use perimeter_sync::Native;

    /// A connection whose layers are all under squeue 0, of 4.
    fn connection() -> (Link<Native>, SockId, Version) {
        let link = Link::new(&Native::default());
        let id = SockId::conn(0, 7, 1);
        link.fill(id, FlowKey::UNSPECIFIED, None);
        let first = Version::first(ListRef::initial(false), Bind::whole(0, 4));
        (link, id, first)
    }

    fn designate(link: &Link<Native>, (id, first): (SockId, &Version), squeue: u16) {
        let done = link.designate((id, first.clone()), Layer::Tcp, squeue);
        assert!(done.is_ok());
    }

    fn tcp_on(link: &Link<Native>, way: Way, id: SockId) -> Option<u16> {
        link.version(way, id).map(|v| v.bind.of(Layer::Tcp))
    }

    #[test]
    fn tcp_moves_when_nothing_is_under_way() {
        let (link, id, first) = connection();
        for way in [Way::In, Way::Call, Way::On] {
            link.fill(id, FlowKey::UNSPECIFIED, None);
            assert_eq!(link.destination(id, 0), None, "nobody asked");
            link.departed(way);
            link.departed(way);
            designate(&link, (id, &first), 2);
            assert_eq!(link.destination(id, 0), None, "{way:?}");
            assert!(!link.arrived(way), "{way:?}: one is under way");
            assert!(link.arrived(way), "{way:?}: nobody is told");
            assert_eq!(link.destination(id, 0), Some(2), "{way:?}");
            assert_eq!(link.destination(id, 2), None, "{way:?}: it is there");
            link.departed(way);
            assert!(!link.arrived(way), "{way:?}: it wants nothing more");
        }
    }

    #[test]
    fn what_tcp_hands_on_goes_by_where_it_is() {
        let (link, id, first) = connection();
        designate(&link, (id, &first), 2);
        assert_eq!(tcp_on(&link, Way::In, id), Some(2));
        assert_eq!(tcp_on(&link, Way::On, id), Some(0));
        // As a message it is neither here nor there.
        link.home.departed(0, 2);
        assert!(!link.home.is(0) && !link.home.is(2));
        assert_eq!(tcp_on(&link, Way::On, id), Some(0));
        link.home.arrived(2);
        assert_eq!(tcp_on(&link, Way::On, id), Some(2));
        // Who says too late that it departed says nothing.
        link.home.departed(0, 2);
        assert!(link.home.is(2));
    }

    #[test]
    fn there_and_back_is_another_version() {
        let (link, id, first) = connection();
        designate(&link, (id, &first), 1);
        designate(&link, (id, &first), 0);
        let under_way = link.start(Way::In, id).map(|v| v.serial());
        designate(&link, (id, &first), 3);
        designate(&link, (id, &first), 0);
        // The paths are alike, but packets may be on their way from 3 to 0.
        assert_eq!(link.start(Way::In, id).map(|v| v.serial()), under_way);
        assert!(!link.arrived(Way::In) && !link.arrived(Way::In));
        assert_ne!(link.version(Way::In, id).map(|v| v.serial()), under_way);
    }
}
