//! Reads a trace of memory accesses and puts it through the caches: which core made each access,
//! for which part of the program, and whether it counts.

use super::{model::System, places::Origin};
use crate::{
    Error,
    misses::{Component, Counts, Item, Machine, Miss, Outcome, Share, geometry::Caches},
};
use perimeter_sync::{Touched, virt::trace::Record};

/// Octets of the word of a lock, or of an event.
const WORD: u64 = 4;

/// Tells where the instruction before an address belongs.
pub type Locator = Box<dyn FnMut(u64) -> Origin>;
/// Makes one, given where the traced program's file begins.
pub type Locate = Box<dyn FnOnce(u64) -> Result<Locator, Error>>;

/// What is known of one core.
#[derive(Debug, Clone, Copy)]
struct Side {
    /// It does the peer's work.
    peer: bool,
    /// Where its last access of a known place belongs.
    last: Origin,
    /// What it has touched last.
    touches: Option<usize>,
}

/// One kind of caches, and what they have seen.
struct Watched {
    caches: Caches,
    system: System,
    counts: [Counts; Component::ALL.len()],
    upgrades: u64,
}

/// The reader.
pub struct Observer {
    machines: Vec<Watched>,
    locate: Option<Locate>,
    locator: Option<Locator>,
    /// Of each core, and of the one beside them from which the run is watched.
    sides: Vec<Side>,
    core: usize,
    counting: bool,
    records: u64,
    /// Lines that other cores had written, by what was touched last, with the first caches.
    items: [u64; Touched::COUNT],
}

impl Observer {
    /// For a program on so many cores.
    pub fn new(cores: usize, machines: Vec<Caches>, locate: Locate) -> Observer {
        let watched = |caches: Caches| Watched {
            system: System::new(&caches, cores),
            counts: Default::default(),
            upgrades: 0,
            caches,
        };
        Observer {
            machines: machines.into_iter().map(watched).collect(),
            locate: Some(locate),
            locator: None,
            sides: vec![
                Side {
                    peer: false,
                    last: Origin::Simulation,
                    touches: None,
                };
                cores + 1
            ],
            core: 0,
            counting: false,
            records: 0,
            items: [0; Touched::COUNT],
        }
    }

    /// Records taken so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Takes a record.
    ///
    /// # Errors
    /// The program's line tables can't be read.
    pub fn take(&mut self, record: Record) -> Result<(), Error> {
        self.records += 1;
        let side = &mut self.sides[self.core];
        match record {
            Record::Access {
                address,
                len,
                write,
                by,
            } => self.access((address, len), write, by),
            Record::Lock(word) => self.word(Component::Lock, word),
            Record::Event(word) => self.word(Component::Scheduler, word),
            Record::Core(core) => self.core = (core as usize).min(self.sides.len() - 1),
            Record::Peer(begins) => side.peer = begins,
            Record::Touched(what) => side.touches = Some(what as usize),
            Record::Device(address, len) => {
                for m in &mut self.machines {
                    m.system.device_write(address, len);
                }
            }
            Record::Counting(begins) => {
                self.counting = begins;
                // When counting begins: those before. When it ends: those in between.
                for m in &mut self.machines {
                    m.upgrades = m.system.upgrades() - m.upgrades;
                }
            }
            Record::Base(base) => {
                if let Some(locate) = self.locate.take() {
                    self.locator = Some(locate(base)?);
                }
            }
        }
        Ok(())
    }

    fn access(&mut self, (address, len): (u64, u64), write: bool, by: u64) {
        let Some(locator) = &mut self.locator else {
            return;
        };
        let side = &mut self.sides[self.core];
        match locator(by) {
            Origin::Caller => {}
            place => side.last = place,
        }
        if let Origin::In(component) = side.last {
            self.count(component, (address, len), write);
        }
    }

    fn word(&mut self, component: Component, address: u64) {
        self.count(component, (address, WORD), true);
    }

    fn count(&mut self, component: Component, (address, len): (u64, u64), write: bool) {
        let watches = self.core + 1 == self.sides.len();
        if watches || self.sides[self.core].peer {
            return;
        }
        for (i, m) in self.machines.iter_mut().enumerate() {
            let outcome = m.system.access(self.core, address, len, write);
            if self.counting {
                m.counts[component as usize].add(outcome);
                if let (0, Outcome::Missed(Miss::Coherence), Some(item)) =
                    (i, outcome, self.sides[self.core].touches)
                    && component != Component::Lock
                {
                    self.items[item] += 1;
                }
            }
        }
    }

    /// Lines that went from core to core, by what they belong to; `moved` says how many items did.
    pub fn items(&self, moved: &[u64]) -> Vec<Item> {
        let moved = |i: usize| moved.get(i).copied().unwrap_or(0);
        let one = |t: Touched| Item {
            name: t.name().into(),
            lines: self.items[t.index()],
            moved: moved(t.index()),
        };
        let all = Touched::all().map(one);
        all.filter(|i| i.lines + i.moved > 0).collect()
    }

    /// What the caches have seen.
    pub fn machines(self) -> Vec<Machine> {
        let machine = |m: Watched| Machine {
            parts: Component::ALL
                .into_iter()
                .map(|component| Share {
                    component,
                    counts: m.counts[component as usize],
                })
                .collect(),
            upgrades: m.upgrades,
            caches: m.caches,
        };
        self.machines.into_iter().map(machine).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::misses::{Miss, Modelled};

    const BASE: u64 = 0x5000;
    // Where the program's stack, its simulation, its library and its driver are.
    const STACK: u64 = 0x1000;
    const SIMULATION: u64 = 0x2000;
    const LIBRARY: u64 = 0x3000;
    const DRIVER: u64 = 0x4000;

    fn observer() -> Observer {
        let place = |address: u64| match address {
            STACK => Origin::In(Component::Stack),
            SIMULATION => Origin::Simulation,
            DRIVER => Origin::In(Component::Driver),
            _ => Origin::Caller,
        };
        let locate: Locate = Box::new(move |at| {
            assert_eq!(at, BASE);
            Ok(Box::new(place))
        });
        let mut o = Observer::new(2, vec![Caches::opteron_275()], locate);
        // Nothing is known of it yet.
        access(&mut o, STACK, 0x9000, false);
        take(&mut o, &[Record::Base(BASE)]);
        o
    }

    fn take(o: &mut Observer, records: &[Record]) {
        for r in records {
            o.take(*r).unwrap();
        }
    }

    fn access(o: &mut Observer, by: u64, address: u64, write: bool) {
        let len = 8;
        take(
            o,
            &[Record::Access {
                address,
                len,
                write,
                by,
            }],
        );
    }

    fn modelled(o: Observer) -> Modelled {
        Modelled {
            cores: 2,
            bytes: 1024,
            seed: 1,
            records: o.records(),
            items: o.items(&[]),
            machines: o.machines(),
        }
    }

    #[test]
    fn accesses_go_to_cores_and_components() {
        let mut o = observer();
        take(&mut o, &[Record::Counting(true), Record::Core(0)]);
        // The library works for its caller; the simulation for nobody.
        access(&mut o, STACK, 0xa000, true);
        access(&mut o, LIBRARY, 0xa040, true);
        access(&mut o, SIMULATION, 0xa080, true);
        access(&mut o, LIBRARY, 0xa0c0, true);
        take(&mut o, &[Record::Core(1)]);
        access(&mut o, DRIVER, 0xa000, false);
        take(&mut o, &[Record::Counting(false)]);
        access(&mut o, STACK, 0xb000, true);
        let m = modelled(o);
        let counts = |c| m.machines[0].parts[c as usize].counts;
        let stack = counts(Component::Stack);
        assert_eq!((stack.accesses, stack.cold), (2, 2));
        let driver = counts(Component::Driver);
        assert_eq!((driver.accesses, driver.coherence), (1, 1));
        assert_eq!(m.per_kb(0, None, None), Some(3.0));
        assert_eq!(
            m.per_kb(0, Some(Component::Driver), Some(Miss::Coherence)),
            Some(1.0)
        );
        assert_eq!(m.per_kb(1, None, None), None);
    }

    #[test]
    fn words_of_locks_and_what_the_device_wrote() {
        let mut o = observer();
        take(&mut o, &[Record::Counting(true)]);
        for core in [0, 1, 0] {
            take(&mut o, &[Record::Core(core), Record::Lock(0xc000)]);
        }
        access(&mut o, STACK, 0xd000, false);
        take(&mut o, &[Record::Peer(true), Record::Device(0xd000, 1)]);
        access(&mut o, STACK, 0xe000, true);
        take(&mut o, &[Record::Lock(0xc000), Record::Peer(false)]);
        access(&mut o, STACK, 0xd008, false);
        let m = modelled(o);
        let counts = |c| m.machines[0].parts[c as usize].counts;
        let lock = counts(Component::Lock);
        assert_eq!((lock.accesses, lock.cold, lock.coherence), (3, 1, 2));
        let stack = counts(Component::Stack);
        assert_eq!((stack.accesses, stack.cold, stack.device), (2, 1, 1));
    }

    #[test]
    fn lines_that_move_belong_to_what_was_touched() {
        let mut o = observer();
        let what = Touched::Snd;
        take(&mut o, &[Record::Counting(true), Record::Core(0)]);
        access(&mut o, STACK, 0xa000, true);
        take(&mut o, &[Record::Core(1)]);
        take(&mut o, &[Record::Touched(what.index() as u64)]);
        access(&mut o, STACK, 0xa000, true);
        let mut moved = [0; Touched::COUNT];
        moved[what.index()] = 1;
        let items = o.items(&moved);
        assert_eq!(items.len(), 1);
        assert_eq!(
            (&*items[0].name, items[0].lines, items[0].moved),
            (what.name(), 1, 1)
        );
    }
}
