//! What is known of neighbours, and in which order they are forgotten.
//!
//! Whoever can put a frame on the link can claim to be any neighbour and any number of them, so what
//! an entry cost and what it proves decide what may push it out: one that only spoke, one that was
//! only asked for, and one that answered each make room among their own kind, the longest unused
//! first, and gateways stay. All of it is O(1).

use core::net::IpAddr;
use perimeter_base::Time;
use perimeter_wire::MacAddr;
use std::collections::HashMap;

use crate::id::SockId;

/// How long an answer is believed (RFC 1122, section 2.3.2.1 asks for of the order of a minute):
/// beyond, the entry is stale. Routers may say otherwise of a link (`ipv6::variables`).
pub(crate) const FRESH: u64 = 60_000_000_000;
/// How long a stale entry that is used waits for a word of those who use it before its neighbour is
/// asked, ns (RFC 4861, DELAY_FIRST_PROBE_TIME).
pub(crate) const DELAY: u64 = 5_000_000_000;
/// How long after its last word a neighbour is not suspected to have gone, ns.
const SUSPICION: u64 = DELAY;
/// Time between requests for the same neighbour (RFC 1122, section 2.3.2.1: at most one a
/// second).
pub const ASK_AGAIN: u64 = 1_000_000_000;
/// Unanswered requests after which those who wait are told that the neighbour is not there: as
/// many as a SYN has attempts by default and one more, so that a bad wire alone does not do it.
pub const ASK_LIMIT: u32 = 8;
/// Requests that go to the known station alone (RFC 1122, section 2.3.2.1, "unicast poll") before
/// all are asked and another may answer.
pub const PROBES: u32 = 3;

/// How long neighbours of a link are believed, and how often they are asked, ns (RFC 4861, section
/// 6.3.2, ReachableTime and RetransTimer).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) reachable: u64,
    pub(crate) retransmit: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            reachable: FRESH,
            retransmit: ASK_AGAIN,
        }
    }
}

/// What is doubted of a neighbour whose station is known.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Doubt {
    /// Nothing: REACHABLE, or STALE if it was not heard for longer than it is believed.
    #[default]
    None,
    /// DELAY: it was stale and is used. Unless who uses it finds it there, it is asked from then on.
    Delay(Time),
    /// PROBE: it is asked, as nobody found it there, as what was sent to it is not acknowledged, or as
    /// another station has claimed to be it.
    Probe,
}

/// One route: that of a prefix, or the one that was made from it for a neighbour.
#[derive(Default)]
pub(crate) struct Entry {
    pub(crate) mac: Option<MacAddr>,
    /// When the station was heard last.
    confirmed: Time,
    /// When it was asked for last.
    asked: Time,
    /// Requests since the last answer.
    tries: u32,
    /// Whether it is asked, or is to be, though it is known.
    doubt: Doubt,
    pub(crate) waiting: Vec<SockId>,
    /// Segments that were routed one by one.
    pub(crate) segments: u64,
}

/// What one more word about a neighbour does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// It is believed; whether another station was known.
    Believed(bool),
    /// Another station is known: it is asked first.
    Doubted,
}

impl Entry {
    /// `mac` claims to be the neighbour. `settled`: others use the entry, so one claim is not
    /// enough while the known station may answer.
    pub(crate) fn claimed(&mut self, mac: MacAddr, settled: bool, now: Time) -> Word {
        let changed = self.mac.is_some_and(|known| known != mac);
        if changed && settled && self.tries <= PROBES {
            self.doubt = Doubt::Probe;
            return Word::Doubted;
        }
        self.mac = Some(mac);
        self.confirmed = now;
        self.tries = 0;
        self.doubt = Doubt::None;
        Word::Believed(changed)
    }

    /// Somebody is about to use the entry; whether it is to be asked for. A stale one is given time
    /// for a word of who uses it first ([`Entry::delayed`]).
    pub(crate) fn used(&mut self, now: Time, pace: Pace) -> bool {
        if self.mac.is_none() {
            return true;
        }
        if self.doubt == Doubt::None && self.is_stale(now, pace) {
            self.doubt = Doubt::Delay(now.plus(DELAY));
        }
        self.probing(now)
    }

    fn is_stale(&self, now: Time, pace: Pace) -> bool {
        now.nanos_since(self.confirmed) > pace.reachable
    }

    /// Whether it was heard not long ago and nothing is doubted of it.
    pub(crate) fn is_reachable(&self, now: Time, pace: Pace) -> bool {
        self.mac.is_some() && self.doubt == Doubt::None && !self.is_stale(now, pace)
    }

    /// Until when a word of those who use it is waited for.
    pub(crate) fn delayed(&self) -> Option<Time> {
        match self.doubt {
            Doubt::Delay(until) => Some(until),
            Doubt::None | Doubt::Probe => None,
        }
    }

    /// Whether it is asked; from the end of its delay on it is.
    fn probing(&mut self, now: Time) -> bool {
        if self.delayed().is_some_and(|until| until <= now) {
            self.probe();
        }
        self.doubt == Doubt::Probe
    }

    /// It is asked from now on.
    pub(crate) fn probe(&mut self) {
        (self.doubt, self.tries) = (Doubt::Probe, 0);
    }

    /// Who sends to it has heard of what came of that (RFC 4861, section 7.3.1): while it would
    /// otherwise be asked soon it need not be. Where it is asked already, only its own answer ends
    /// that: another station may have claimed to be it.
    pub(crate) fn confirm(&mut self, now: Time) {
        if self.delayed().is_some() {
            (self.doubt, self.confirmed) = (Doubt::None, now);
        }
    }

    /// What was sent to it is not acknowledged; whether it is to be asked for that.
    pub(crate) fn suspected(&mut self, now: Time) -> bool {
        let quiet = now.nanos_since(self.confirmed) > SUSPICION;
        if self.mac.is_none() || self.doubt == Doubt::Probe || !quiet {
            return false;
        }
        self.probe();
        true
    }

    /// Whether a request may go out now.
    pub(crate) fn due(&self, now: Time, pace: Pace) -> bool {
        self.asked == Time::ZERO || now.nanos_since(self.asked) >= pace.retransmit
    }

    /// When the next one may.
    pub(crate) fn due_at(&self, pace: Pace) -> Time {
        self.asked.plus(pace.retransmit)
    }

    /// A request goes out; the station to send it to.
    pub(crate) fn ask(&mut self, now: Time) -> MacAddr {
        self.asked = now.max(Time(1));
        self.tries += 1;
        match self.mac {
            Some(mac) if self.tries <= PROBES => mac,
            _ => MacAddr::BROADCAST,
        }
    }

    /// Whether an answer is waited for.
    pub(crate) fn wanted(&mut self, now: Time) -> bool {
        match self.mac {
            None => !self.waiting.is_empty(),
            Some(_) => self.probing(now),
        }
    }

    /// Enough requests went unanswered: none is waited for any more.
    pub(crate) fn give_up(&mut self) -> bool {
        let enough = self.tries >= ASK_LIMIT;
        if enough {
            self.doubt = Doubt::None;
            self.tries = 0;
        }
        enough
    }
}

/// What an entry has proved.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kin {
    /// Nothing: it was asked for and has not answered.
    Asked = 0,
    /// It has addressed us, and nobody has used it.
    Heard = 1,
    /// It has answered, or was used after it had addressed us.
    Known = 2,
    /// It is the next hop of a route.
    Gateway = 3,
}

/// Entries of each kind; those that proved nothing are the fewest, and gateways are as many as
/// routes name.
const BOUNDS: [u32; 4] = [512, 512, 1024, u32::MAX];

/// No slot.
const NONE: u32 = u32::MAX;

struct Node {
    at: (u16, IpAddr),
    kin: Kin,
    older: u32,
    newer: u32,
}

#[derive(Copy, Clone)]
struct List {
    oldest: u32,
    newest: u32,
    len: u32,
}

/// Which slot is whose neighbour's, and their order of use.
pub(crate) struct Book {
    /// Keyed, as others choose what is in it; they can't fill it beyond its bound either.
    index: HashMap<(u16, IpAddr), u32, foldhash::quality::RandomState>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    lists: [List; 4],
    /// How often a neighbour has got a slot or lost one.
    changes: u64,
}

impl Book {
    pub(crate) fn new() -> Book {
        let empty = List {
            oldest: NONE,
            newest: NONE,
            len: 0,
        };
        Book {
            index: HashMap::default(),
            nodes: Vec::new(),
            free: Vec::new(),
            lists: [empty; 4],
            changes: 0,
        }
    }

    /// Another number than before, if a neighbour has got a slot or lost one since.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// The slot of that neighbour.
    pub(crate) fn find(&self, at: (u16, IpAddr)) -> Option<u32> {
        self.index.get(&at).copied()
    }

    pub(crate) fn kin(&self, slot: u32) -> Kin {
        self.nodes[slot as usize].kin
    }

    /// How many slots there are, those of nobody included.
    pub(crate) fn slots(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// All neighbours, by kind and in order of use: a simulation must replay, so whose turn it is
    /// must not depend on the process's hash keys.
    pub(crate) fn each(&self) -> impl Iterator<Item = ((u16, IpAddr), u32)> + '_ {
        let list = |list: &List| {
            core::iter::successors(Some(list.oldest), |slot| Some(self.get(*slot)?.newer))
        };
        let slots = self.lists.iter().flat_map(list);
        slots.filter_map(|slot| Some((self.get(slot)?.at, slot)))
    }

    fn get(&self, slot: u32) -> Option<&Node> {
        self.nodes.get(slot as usize)
    }

    /// A slot for a neighbour that has none: a free one, or that of the longest unused of its
    /// kind. What is in there is somebody else's.
    pub(crate) fn add(&mut self, at: (u16, IpAddr), kin: Kin) -> u32 {
        self.make_room(kin);
        let node = Node {
            at,
            kin,
            older: NONE,
            newer: NONE,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = node;
                slot
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.index.insert(at, slot);
        self.changes += 1;
        self.append(slot);
        slot
    }

    /// It was used just now, and is of that kind from now on.
    pub(crate) fn touch(&mut self, slot: u32, kin: Kin) {
        if self.kin(slot) != kin {
            self.make_room(kin);
        }
        self.unlink(slot);
        self.nodes[slot as usize].kin = kin;
        self.append(slot);
    }

    fn make_room(&mut self, kin: Kin) {
        let list = self.lists[kin as usize];
        if list.len >= BOUNDS[kin as usize] {
            self.unlink(list.oldest);
            self.changes += 1;
            self.index.remove(&self.nodes[list.oldest as usize].at);
            self.free.push(list.oldest);
        }
    }

    fn append(&mut self, slot: u32) {
        let kin = self.kin(slot) as usize;
        let newest = self.lists[kin].newest;
        let node = &mut self.nodes[slot as usize];
        (node.older, node.newer) = (newest, NONE);
        match self.nodes.get_mut(newest as usize) {
            Some(n) => n.newer = slot,
            None => self.lists[kin].oldest = slot,
        }
        let list = &mut self.lists[kin];
        list.newest = slot;
        list.len += 1;
    }

    fn unlink(&mut self, slot: u32) {
        let Node {
            kin, older, newer, ..
        } = self.nodes[slot as usize];
        let kin = kin as usize;
        match self.nodes.get_mut(older as usize) {
            Some(n) => n.newer = newer,
            None => self.lists[kin].oldest = newer,
        }
        match self.nodes.get_mut(newer as usize) {
            Some(n) => n.older = older,
            None => self.lists[kin].newest = older,
        }
        self.lists[kin].len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    fn at(n: u32) -> (u16, IpAddr) {
        (0, IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n)))
    }

    fn here(b: &Book, range: core::ops::Range<u32>) -> usize {
        range.filter(|n| b.find(at(*n)).is_some()).count()
    }

    #[test]
    fn each_kind_makes_room_among_its_own() {
        let mut b = Book::new();
        b.add(at(0), Kin::Gateway);
        for n in 1..1001 {
            let slot = b.add(at(n), Kin::Asked);
            b.touch(slot, Kin::Known);
        }
        for n in 0..5000 {
            b.add(at(10_000 + n), Kin::Heard);
            b.add(at(20_000 + n), Kin::Asked);
        }
        assert_eq!(here(&b, 0..1001), 1001);
        assert_eq!(here(&b, 10_000..15_000), 512);
        assert_eq!(here(&b, 14_488..15_000), 512, "the newest");
        assert_eq!(here(&b, 20_000..25_000), 512);
        // What is known gives way to what is known, the longest unused first.
        b.touch(b.find(at(1)).unwrap(), Kin::Known);
        for n in 30_000..30_500 {
            let slot = b.add(at(n), Kin::Asked);
            b.touch(slot, Kin::Known);
        }
        assert!(b.find(at(1)).is_some() && b.find(at(0)).is_some());
        assert_eq!(here(&b, 2..1001), 1001 - 2 - 476);
        assert_eq!(here(&b, 2..478), 0);
        assert!(b.slots() < 2100, "{}", b.slots());
        // One of those asked for has answered last.
        assert_eq!(b.each().count(), 1 + 1024 + 512 + 511);
    }

    #[test]
    fn a_known_station_is_asked_before_another_is_believed() {
        let (old, new) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let mut e = Entry::default();
        let (mut now, pace) = (Time::from_millis(5), Pace::default());
        assert!(e.used(now, pace) && e.due(now, pace));
        assert_eq!(e.ask(now), MacAddr::BROADCAST);
        assert_eq!(e.claimed(old, true, now), Word::Believed(false));
        assert!(!e.used(now, pace) && !e.wanted(now));
        for n in 1..=PROBES {
            assert_eq!(e.claimed(new, true, now), Word::Doubted);
            assert!(e.wanted(now) && !e.due(now, pace), "{n}");
            now = now.plus(ASK_AGAIN);
            assert!(e.due(now, pace));
            assert_eq!(e.ask(now), old);
            // Nobody else's word ends that.
            e.confirm(now);
            assert!(e.wanted(now), "{n}");
        }
        // Its answer settles it.
        let mut calm = Entry {
            waiting: Vec::new(),
            ..e
        };
        assert_eq!(calm.claimed(old, true, now), Word::Believed(false));
        assert!(!calm.wanted(now));
        // Its silence does too, once all were asked.
        calm.tries = PROBES;
        calm.doubt = Doubt::Probe;
        assert_eq!(calm.claimed(new, true, now), Word::Doubted);
        assert_eq!(calm.ask(now), MacAddr::BROADCAST);
        assert_eq!(calm.claimed(new, true, now), Word::Believed(true));
        // What nobody uses is overwritten.
        assert_eq!(calm.claimed(old, false, now), Word::Believed(true));
    }

    /// An entry that was heard at 1 s, and is stale and used `at`.
    fn delayed(at: Time, pace: Pace) -> Entry {
        let mut e = Entry::default();
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let heard = Time::from_millis(1000);
        assert_eq!(e.claimed(mac, true, heard), Word::Believed(false));
        assert!(e.is_reachable(heard, pace) && !e.is_reachable(at, pace));
        assert!(!e.wanted(at), "stale, and nobody uses it");
        assert!(!e.used(at, pace), "it is given time");
        assert_eq!(e.delayed(), Some(at.plus(DELAY)));
        e
    }

    /// RFC 4861, section 7.3.2: STALE, when used, is DELAY, and that is PROBE after 5 s, unless who
    /// uses it has found it there.
    #[test]
    fn a_stale_neighbour_is_given_time_before_it_is_asked() {
        let (pace, ns) = (Pace::default(), Time::from_millis(1000));
        let at = ns.plus(FRESH + 1);
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut e = delayed(at, pace);
        // Using it again does not prolong that.
        let late = at.plus(DELAY - 1);
        assert!(!e.used(late, pace) && !e.wanted(late));
        assert!(e.wanted(at.plus(DELAY)) && e.delayed().is_none());
        assert_eq!(e.ask(at.plus(DELAY)), mac, "itself, alone");
        assert_eq!(e.claimed(mac, true, late), Word::Believed(false));
        assert!(!e.wanted(late) && !e.used(late, pace));

        let mut e = delayed(at, pace);
        e.confirm(late);
        assert!(e.is_reachable(late, pace) && !e.wanted(at.plus(DELAY)));
        assert!(!e.used(late.plus(FRESH), pace) && e.delayed().is_none());
        // And it is stale again some time later.
        e.used(late.plus(FRESH + 1), pace);
        assert!(e.delayed().is_some());
    }

    #[test]
    fn what_ends_a_delay_early() {
        let pace = Pace::default();
        let at = Time::from_millis(1000).plus(FRESH + 1);
        let other = MacAddr([2, 0, 0, 0, 0, 2]);
        // What was sent is not acknowledged.
        let mut e = delayed(at, pace);
        assert!(e.suspected(at) && e.wanted(at) && !e.suspected(at));
        // Another station claims to be it: the known one is asked first.
        let mut e = delayed(at, pace);
        assert_eq!(e.claimed(other, true, at), Word::Doubted);
        e.confirm(at);
        assert!(e.wanted(at) && e.ask(at) != other);
        // Its own word.
        let mut e = delayed(at, pace);
        assert_eq!(e.claimed(e.mac.unwrap(), true, at), Word::Believed(false));
        assert!(e.is_reachable(at, pace) && e.delayed().is_none());
        // A word of who uses it is nothing to an entry that is not delayed: what is stale stays so.
        let mut e = delayed(at, pace);
        e.doubt = Doubt::None;
        e.confirm(at);
        assert!(!e.is_reachable(at, pace));
    }

    #[test]
    fn a_link_may_have_other_times() {
        let pace = Pace {
            reachable: 10_000_000_000,
            retransmit: 3_000_000_000,
        };
        let mut e = delayed(Time::from_millis(11_001), pace);
        let now = Time::from_millis(20_000);
        assert!(e.wanted(now) && e.due(now, pace));
        e.ask(now);
        assert!(!e.due(now.plus(2_999_999_999), pace) && e.due(now.plus(3_000_000_000), pace));
        assert_eq!(e.due_at(pace), now.plus(3_000_000_000));
    }
}
