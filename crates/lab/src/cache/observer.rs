//! Reads a trace of memory accesses and puts it through the caches: which core made each access,
//! for which part of the program, and whether it counts.

use super::{
    lackey::{Line, parse},
    model::System,
    places::Origin,
    subject,
};
use crate::{
    Error,
    misses::{Component, Counts, Item, Machine, Miss, Outcome, Share, geometry::Caches},
};
use perimeter_sync::{Touched, virt::beacon};
use std::collections::VecDeque;

/// Lines of the program and of valgrind that are kept, to tell what went wrong.
const KEPT: usize = 12;

/// Tells where an instruction belongs.
pub type Locator = Box<dyn FnMut(u64) -> Origin>;
/// Makes one, given where the beacons are in the traced process.
pub type Locate = Box<dyn FnOnce(u64) -> Result<Locator, Error>>;

/// A word whose access the last beacon has announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Announced {
    Nothing,
    Word(Component),
    Line,
}

/// What is known of one core.
#[derive(Debug, Clone, Copy)]
struct Side {
    /// It does the peer's work.
    peer: bool,
    /// Where its last instruction of a known place belongs.
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
    beacons: u64,
    sides: Vec<Side>,
    core: usize,
    place: Origin,
    announced: Announced,
    counting: bool,
    lines: u64,
    instructions: u64,
    bytes: Option<u64>,
    /// Lines that other cores had written, by what was touched last, with the first caches.
    items: [u64; Touched::COUNT],
    /// How many items went from core to core.
    moved: Vec<u64>,
    said: VecDeque<String>,
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
            beacons: 0,
            sides: vec![
                Side {
                    peer: false,
                    last: Origin::Simulation,
                    touches: None,
                };
                cores
            ],
            core: 0,
            place: Origin::Simulation,
            announced: Announced::Nothing,
            counting: false,
            lines: 0,
            instructions: 0,
            bytes: None,
            items: [0; Touched::COUNT],
            moved: Vec::new(),
            said: VecDeque::new(),
        }
    }

    /// Lines read so far.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Instructions of places under test while counting.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Payload that was acknowledged while counting, once the program has told.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// The last of what the program and valgrind said.
    pub fn said(&self) -> String {
        let lines: Vec<&str> = self.said.iter().map(|l| l.trim()).collect();
        lines.join(" ")
    }

    /// Takes a line.
    ///
    /// # Errors
    /// The program's line tables can't be read.
    pub fn line(&mut self, line: &[u8]) -> Result<(), Error> {
        self.lines += 1;
        match parse(line) {
            Line::Instruction(address) => self.instruction(address),
            Line::Access {
                address,
                len,
                write,
            } => self.access(address, len, write),
            Line::Said(text) => return self.heard(&String::from_utf8_lossy(text)),
        }
        Ok(())
    }

    fn heard(&mut self, text: &str) -> Result<(), Error> {
        if let Some(at) = text.strip_prefix(subject::AT) {
            let at = u64::from_str_radix(at.trim(), 16);
            if let (Ok(at), Some(locate)) = (at, self.locate.take()) {
                self.beacons = at;
                self.locator = Some(locate(at)?);
            }
            return Ok(());
        }
        if let Some(bytes) = text.strip_prefix(subject::BYTES) {
            self.bytes = bytes.trim().parse().ok();
            return Ok(());
        }
        if let Some(moved) = text.strip_prefix(subject::MOVED) {
            self.moved = moved
                .split(' ')
                .filter_map(|n| n.trim().parse().ok())
                .collect();
            return Ok(());
        }
        if !text.trim().is_empty() {
            if self.said.len() == KEPT {
                self.said.pop_front();
            }
            self.said.push_back(text.into());
        }
        Ok(())
    }

    fn instruction(&mut self, address: u64) {
        let Some(locator) = &mut self.locator else {
            return;
        };
        let side = &mut self.sides[self.core];
        match locator(address) {
            Origin::Caller => {}
            place => side.last = place,
        }
        self.place = side.last;
        let tested = matches!(self.place, Origin::In(_)) && !side.peer && self.counting;
        self.instructions += u64::from(tested);
    }

    fn access(&mut self, address: u64, len: u64, write: bool) {
        if self.locator.is_none() {
            return;
        }
        let offset = address.wrapping_sub(self.beacons);
        if offset < beacon::BYTES as u64 {
            return self.beacon(offset as usize);
        }
        match self.announced {
            // A word is read and written at once, a line read by its first byte: what the
            // compiler may have put between is not like that.
            Announced::Word(component) if write && len == 4 => {
                self.announced = Announced::Nothing;
                if !self.sides[self.core].peer {
                    self.count(component, address, len, true);
                }
            }
            Announced::Line if !write && len == 1 => {
                self.announced = Announced::Nothing;
                for m in &mut self.machines {
                    m.system.device_write(address, 1);
                }
            }
            _ => {
                if let (Origin::In(component), false) = (self.place, self.sides[self.core].peer) {
                    self.count(component, address, len, write);
                }
            }
        }
    }

    fn count(&mut self, component: Component, address: u64, len: u64, write: bool) {
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

    fn beacon(&mut self, which: usize) {
        match which {
            beacon::PEER_BEGINS => self.sides[self.core].peer = true,
            beacon::PEER_ENDS => self.sides[self.core].peer = false,
            beacon::LOCK => self.announced = Announced::Word(Component::Lock),
            beacon::EVENT => self.announced = Announced::Word(Component::Scheduler),
            beacon::DEVICE => self.announced = Announced::Line,
            beacon::COUNTING_BEGINS => {
                self.counting = true;
                for m in &mut self.machines {
                    m.upgrades = m.system.upgrades();
                }
            }
            beacon::COUNTING_ENDS => {
                self.counting = false;
                for m in &mut self.machines {
                    m.upgrades = m.system.upgrades() - m.upgrades;
                }
            }
            touched if touched >= beacon::TOUCHED => {
                self.sides[self.core].touches = Some(touched - beacon::TOUCHED);
            }
            core => self.core = core.min(self.sides.len() - 1),
        }
    }

    /// Lines that went from core to core, by what they belong to.
    pub fn items(&self) -> Vec<Item> {
        let moved = |i: usize| self.moved.get(i).copied().unwrap_or(0);
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

    const BEACONS: u64 = 0x5000;

    /// A reader of a program whose stack is at 0x1000, its simulation at 0x2000, its library at
    /// 0x3000 and its driver at 0x4000.
    fn observer() -> Observer {
        let place = |address: u64| match address >> 12 {
            1 => Origin::In(Component::Stack),
            2 => Origin::Simulation,
            4 => Origin::In(Component::Driver),
            _ => Origin::Caller,
        };
        let locate: Locate = Box::new(move |at| {
            assert_eq!(at, BEACONS);
            Ok(Box::new(place))
        });
        let mut o = Observer::new(2, vec![Caches::opteron_275()], locate);
        feed(
            &mut o,
            &[
                "I  00001000,3",
                " L 00009000,8",
                "a word",
                "perimeter-beacons 5000",
            ],
        );
        o
    }

    fn feed(o: &mut Observer, lines: &[&str]) {
        for line in lines {
            o.line(line.as_bytes()).unwrap();
        }
    }

    fn show(o: &mut Observer, which: usize) {
        let line = format!(" S {:08x},1", BEACONS + which as u64);
        feed(o, &["I  00002000,3", &line]);
    }

    fn modelled(o: Observer) -> Modelled {
        Modelled {
            cores: 2,
            bytes: 1024,
            seed: 0,
            lines: o.lines(),
            instructions: o.instructions(),
            items: o.items(),
            machines: o.machines(),
        }
    }

    #[test]
    fn accesses_are_put_to_cores_and_components() {
        let mut o = observer();
        show(&mut o, beacon::COUNTING_BEGINS);
        show(&mut o, 0);
        // The library works for its caller; the simulation for nobody.
        feed(&mut o, &["I  00001000,3", " S 0000a000,8"]);
        feed(&mut o, &["I  00003000,3", " S 0000a040,8"]);
        feed(&mut o, &["I  00002000,3", " S 0000a080,8"]);
        feed(&mut o, &["I  00003000,3", " S 0000a0c0,8"]);
        show(&mut o, 1);
        feed(&mut o, &["I  00004000,3", " L 0000a000,8"]);
        show(&mut o, beacon::COUNTING_ENDS);
        feed(&mut o, &["I  00001000,3", " S 0000b000,8"]);
        assert_eq!(o.instructions(), 3);
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
        show(&mut o, beacon::COUNTING_BEGINS);
        for core in [0, 1, 0] {
            show(&mut o, core);
            show(&mut o, beacon::LOCK);
            // What the simulation does on its own stack before.
            feed(&mut o, &[" L 0000f000,8", " M 0000c000,4"]);
        }
        feed(&mut o, &["I  00001000,3", " L 0000d000,8"]);
        show(&mut o, beacon::PEER_BEGINS);
        show(&mut o, beacon::DEVICE);
        feed(&mut o, &[" L 0000d000,1"]);
        feed(&mut o, &["I  00001000,3", " S 0000e000,8"]);
        show(&mut o, beacon::PEER_ENDS);
        feed(&mut o, &["I  00001000,3", " L 0000d008,8"]);
        let m = modelled(o);
        let counts = |c| m.machines[0].parts[c as usize].counts;
        let lock = counts(Component::Lock);
        assert_eq!((lock.accesses, lock.cold, lock.coherence), (3, 1, 2));
        let stack = counts(Component::Stack);
        assert_eq!((stack.accesses, stack.cold, stack.device), (2, 1, 1));
    }

    #[test]
    fn what_was_said_is_kept() {
        let mut o = observer();
        feed(
            &mut o,
            &["perimeter-bytes 4096", "thread panicked", "==1== bye"],
        );
        assert_eq!(o.bytes(), Some(4096));
        assert_eq!(o.said(), "a word thread panicked ==1== bye");
        for i in 0..100 {
            feed(&mut o, &[&format!("line {i}")]);
        }
        assert!(o.said().starts_with("line 88 ") && o.said().ends_with("line 99"));
    }
}
