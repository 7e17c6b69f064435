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
/// beyond, who resolves the neighbour anew has it asked, and goes on with what is known.
const FRESH: u64 = 60_000_000_000;
/// How long after its last word a neighbour is not suspected to have gone, ns (RFC 4861,
/// DELAY_FIRST_PROBE_TIME).
const SUSPICION: u64 = 5_000_000_000;
/// Time between requests for the same neighbour (RFC 1122, section 2.3.2.1: at most one a
/// second).
pub const ASK_AGAIN: u64 = 1_000_000_000;
/// Unanswered requests after which those who wait are told that the neighbour is not there: as
/// many as a SYN has attempts by default and one more, so that a bad wire alone does not do it.
pub const ASK_LIMIT: u32 = 8;
/// Requests that go to the known station alone (RFC 1122, section 2.3.2.1, "unicast poll") before
/// all are asked and another may answer.
pub const PROBES: u32 = 3;

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
    /// It is asked again, though it is known: another station has claimed to be it, or it has not
    /// been heard for long.
    doubted: bool,
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
            self.doubted = true;
            return Word::Doubted;
        }
        self.mac = Some(mac);
        self.confirmed = now;
        self.tries = 0;
        self.doubted = false;
        Word::Believed(changed)
    }

    /// Somebody is about to use the entry; whether it is to be asked for.
    pub(crate) fn used(&mut self, now: Time) -> bool {
        if self.mac.is_none() {
            return true;
        }
        self.doubted |= now.nanos_since(self.confirmed) > FRESH;
        self.doubted
    }

    /// What was sent to it is not acknowledged; whether it is to be asked for that.
    pub(crate) fn suspected(&mut self, now: Time) -> bool {
        let quiet = now.nanos_since(self.confirmed) > SUSPICION;
        if self.mac.is_none() || self.doubted || !quiet {
            return false;
        }
        (self.doubted, self.tries) = (true, 0);
        true
    }

    /// Whether a request may go out now.
    pub(crate) fn due(&self, now: Time) -> bool {
        self.asked == Time::ZERO || now.nanos_since(self.asked) >= ASK_AGAIN
    }

    /// When the next one may.
    pub(crate) fn due_at(&self) -> Time {
        self.asked.plus(ASK_AGAIN)
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
    pub(crate) fn wanted(&self) -> bool {
        match self.mac {
            None => !self.waiting.is_empty(),
            Some(_) => self.doubted,
        }
    }

    /// Enough requests went unanswered: none is waited for any more.
    pub(crate) fn give_up(&mut self) -> bool {
        let enough = self.tries >= ASK_LIMIT;
        if enough {
            self.doubted = false;
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
        let mut now = Time::from_millis(5);
        assert!(e.used(now) && e.due(now));
        assert_eq!(e.ask(now), MacAddr::BROADCAST);
        assert_eq!(e.claimed(old, true, now), Word::Believed(false));
        assert!(!e.used(now) && !e.wanted());
        for n in 1..=PROBES {
            assert_eq!(e.claimed(new, true, now), Word::Doubted);
            assert!(e.wanted() && !e.due(now), "{n}");
            now = now.plus(ASK_AGAIN);
            assert!(e.due(now));
            assert_eq!(e.ask(now), old);
        }
        // Its answer settles it.
        let mut calm = Entry {
            waiting: Vec::new(),
            ..e
        };
        assert_eq!(calm.claimed(old, true, now), Word::Believed(false));
        assert!(!calm.wanted());
        // Its silence does too, once all were asked.
        calm.tries = PROBES;
        calm.doubted = true;
        assert_eq!(calm.claimed(new, true, now), Word::Doubted);
        assert_eq!(calm.ask(now), MacAddr::BROADCAST);
        assert_eq!(calm.claimed(new, true, now), Word::Believed(true));
        // What nobody uses is overwritten.
        assert_eq!(calm.claimed(old, false, now), Word::Believed(true));
        // What has not been heard for long is asked, and used meanwhile.
        assert!(calm.used(now.plus(FRESH + 1)) && calm.wanted());
    }
}
