//! Names of sockets: a place and a generation, so that a stale name is noticed.

use core::fmt;

const SLOT_BITS: u32 = 28;
const SHARD_BITS: u32 = 12;
const GEN_BITS: u32 = 24;
const LISTENER_SHARD: u16 = (1 << SHARD_BITS) - 1;

/// The most shards that an organization may have.
pub const MAX_SHARDS: usize = LISTENER_SHARD as usize;
/// Set in the slots of datagram sockets, so that these and connections are never taken for each
/// other.
const DATAGRAM: u32 = 1 << (SLOT_BITS - 1);
/// The most sockets of a kind in one shard.
pub const MAX_SLOTS: usize = DATAGRAM as usize;

/// The name of a connection, listener or datagram socket: opaque outside the organization that gave it out.
///
/// A name outlives what it names. Using it then finds another generation in the slot and is
/// counted as stale, so messages, timers and events that are late do no harm.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct SockId(u64);

impl SockId {
    /// The connection in `slot` of `shard`, `generation` (its low 24 bits count).
    pub fn conn(shard: u16, slot: u32, generation: u32) -> SockId {
        debug_assert!(shard < LISTENER_SHARD && (slot as usize) < MAX_SLOTS);
        Self::pack(shard, slot, generation)
    }

    /// The listener in `slot`.
    pub fn listener(slot: u32, generation: u32) -> SockId {
        Self::pack(LISTENER_SHARD, slot, generation)
    }

    /// The datagram socket in place `index` of `shard`.
    pub fn datagram(shard: u16, index: u32, generation: u32) -> SockId {
        debug_assert!(shard < LISTENER_SHARD && (index as usize) < MAX_SLOTS);
        Self::pack(shard, index | DATAGRAM, generation)
    }

    fn pack(shard: u16, slot: u32, generation: u32) -> SockId {
        let generation = u64::from(generation) & ((1 << GEN_BITS) - 1);
        SockId(
            generation << (SLOT_BITS + SHARD_BITS)
                | u64::from(shard) << SLOT_BITS
                | u64::from(slot),
        )
    }

    /// Whether it names a listener.
    pub fn is_listener(self) -> bool {
        self.shard() == LISTENER_SHARD
    }

    /// Whether it names a datagram socket.
    #[inline]
    pub fn is_datagram(self) -> bool {
        self.slot() & DATAGRAM != 0 && !self.is_listener()
    }

    /// Whether it names a connection.
    #[inline]
    pub fn is_connection(self) -> bool {
        !self.is_listener() && !self.is_datagram()
    }

    /// The place of a datagram socket within the shard.
    #[inline]
    pub fn index(self) -> u32 {
        self.slot() & !DATAGRAM
    }

    /// The shard.
    pub fn shard(self) -> u16 {
        (self.0 >> SLOT_BITS) as u16 & LISTENER_SHARD
    }

    /// The slot within the shard.
    pub fn slot(self) -> u32 {
        self.0 as u32 & ((1 << SLOT_BITS) - 1)
    }

    /// The generation, 24 bits.
    pub fn generation(self) -> u32 {
        (self.0 >> (SLOT_BITS + SHARD_BITS)) as u32
    }

    /// As one number, for logs and tokens.
    pub fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for SockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_listener() {
            write!(f, "listener {}.{}", self.slot(), self.generation())
        } else {
            let kind = if self.is_datagram() { "udp" } else { "conn" };
            write!(
                f,
                "{kind} {}:{}.{}",
                self.shard(),
                self.index(),
                self.generation()
            )
        }
    }
}

/// Slots in a chunk.
const CHUNK: usize = 32;

/// Slots with generations, from 1: no value has 0. A removed value's name never finds its
/// successor (until 2^24 - 1 successors later).
///
/// Values stay where they are: slots come in chunks, so that the table neither moves its values
/// when it grows, which would stop the stack for milliseconds where there are many, nor has
/// room for twice as many as it holds.
pub struct Slots<T> {
    chunks: Vec<Box<Chunk<T>>>,
    places: u32,
    free: Vec<u32>,
    live: usize,
}

/// Generations stand apart from values: within a slot they would cost a large value a cache line.
struct Chunk<T> {
    generations: [u32; CHUNK],
    values: [Option<T>; CHUNK],
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots {
            chunks: Vec::new(),
            places: 0,
            free: Vec::new(),
            live: 0,
        }
    }
}

#[inline(always)]
fn place(slot: u32) -> (usize, usize) {
    (slot as usize / CHUNK, slot as usize % CHUNK)
}

impl<T> Slots<T> {
    /// Puts the value that `make` gives for its place `(slot, generation)`; `None` when full, or
    /// when `make` gives none.
    pub fn insert_with(&mut self, make: impl FnOnce(u32, u32) -> Option<T>) -> Option<(u32, u32)> {
        let slot = match self.free.pop() {
            Some(s) => s,
            None if self.places as usize >= MAX_SLOTS => return None,
            None => self.grow(),
        };
        let (c, i) = place(slot);
        let chunk = &mut self.chunks[c];
        let generation = chunk.generations[i];
        chunk.values[i] = make(slot, generation);
        if chunk.values[i].is_none() {
            self.free.push(slot);
            return None;
        }
        self.live += 1;
        Some((slot, generation))
    }

    /// A place that was never used.
    fn grow(&mut self) -> u32 {
        let slot = self.places;
        if slot as usize == self.chunks.len() * CHUNK {
            self.chunks.push(Box::new(Chunk {
                generations: [1; CHUNK],
                values: [const { None }; CHUNK],
            }));
        }
        self.places += 1;
        slot
    }

    /// Puts in a value that is known by another name than its place, so that memory alone bounds how
    /// many there are; its slot.
    pub fn insert(&mut self, value: T) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| self.grow());
        self.put_back(slot, value);
        slot
    }

    /// The value at `slot`, if it is still of that generation.
    #[inline]
    pub fn get_mut(&mut self, slot: u32, generation: u32) -> Option<&mut T> {
        let (c, i) = place(slot);
        let chunk = self.chunks.get_mut(c)?;
        if chunk.generations[i] != generation {
            return None;
        }
        chunk.values[i].as_mut()
    }

    /// As [`Slots::get_mut`], to read.
    pub fn get(&self, slot: u32, generation: u32) -> Option<&T> {
        let (c, i) = place(slot);
        let chunk = self.chunks.get(c)?;
        if chunk.generations[i] != generation {
            return None;
        }
        chunk.values[i].as_ref()
    }

    /// The value at `slot` whatever its generation: for tables whose entries are removed with
    /// the value.
    #[inline]
    pub fn at(&mut self, slot: u32) -> Option<&mut T> {
        let (c, i) = place(slot);
        self.chunks.get_mut(c)?.values[i].as_mut()
    }

    /// As [`Slots::at`], to read.
    #[inline]
    pub fn peek(&self, slot: u32) -> Option<&T> {
        let (c, i) = place(slot);
        self.chunks.get(c)?.values[i].as_ref()
    }

    /// Removes the value at `slot`.
    pub fn remove(&mut self, slot: u32, generation: u32) -> Option<T> {
        let (c, i) = place(slot);
        let chunk = self.chunks.get_mut(c)?;
        if chunk.generations[i] != generation {
            return None;
        }
        let v = chunk.values[i].take()?;
        self.free(slot);
        self.live -= 1;
        Some(v)
    }

    /// Takes the value at `slot` out, whose name stays in use: nobody else gets the place before
    /// [`Slots::vacate`].
    pub fn lend(&mut self, slot: u32, generation: u32) -> Option<T> {
        self.get(slot, generation)?;
        let (c, i) = place(slot);
        self.live -= 1;
        self.chunks[c].values[i].take()
    }

    /// Puts a value back that was lent.
    pub fn put_back(&mut self, slot: u32, value: T) {
        let (c, i) = place(slot);
        self.live += 1;
        self.chunks[c].values[i] = Some(value);
    }

    /// The value that was lent has gone for ever: its name is in use no more.
    pub fn vacate(&mut self, slot: u32) {
        let (c, i) = place(slot);
        debug_assert!(self.chunks[c].values[i].is_none(), "it is here");
        self.free(slot);
    }

    fn free(&mut self, slot: u32) {
        let (c, i) = place(slot);
        let g = &mut self.chunks[c].generations[i];
        // 0 is nobody's: elsewhere it says that a place has no connection.
        *g = ((*g + 1) & ((1 << GEN_BITS) - 1)).max(1);
        self.free.push(slot);
    }

    /// The generation of the value at `slot`.
    pub fn generation(&self, slot: u32) -> u32 {
        let (c, i) = place(slot);
        self.chunks[c].generations[i]
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// All values with their places.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32, &T)> {
        self.chunks.iter().enumerate().flat_map(|(c, chunk)| {
            let slots = chunk.generations.iter().zip(&chunk.values).enumerate();
            slots.filter_map(move |(i, (g, v))| v.as_ref().map(|v| ((c * CHUNK + i) as u32, *g, v)))
        })
    }

    /// How many places were ever made: the bound for a walk by index with [`Slots::at`].
    pub fn places(&self) -> u32 {
        self.places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_packs_and_unpacks() {
        for (shard, slot, generation) in
            [(0, 0, 1), (127, 12345, 0xff_ffff), (4094, (1 << 27) - 1, 7)]
        {
            let id = SockId::conn(shard, slot, generation);
            assert_eq!(
                (id.shard(), id.slot(), id.generation()),
                (shard, slot, generation)
            );
            assert!(id.is_connection());
            let udp = SockId::datagram(shard, slot, generation);
            assert_eq!(
                (udp.shard(), udp.index(), udp.generation()),
                (shard, slot, generation)
            );
            assert!(udp.is_datagram() && !udp.is_connection() && udp != id);
        }
        let listener = SockId::listener(3, 4);
        assert!(listener.is_listener() && !listener.is_datagram());
    }

    #[test]
    fn a_stale_name_finds_nothing() {
        let mut s = Slots::default();
        let (slot, generation) = s.insert_with(|_, _| Some("a")).unwrap();
        assert_eq!(s.remove(slot, generation), Some("a"));
        let (slot2, gen2) = s.insert_with(|_, _| Some("b")).unwrap();
        assert_eq!(slot, slot2);
        assert_eq!(s.get_mut(slot, generation), None);
        assert_eq!(s.remove(slot, generation), None);
        assert_eq!(s.get(slot2, gen2), Some(&"b"));
        assert_eq!(s.len(), 1);
    }

    #[test]
    fn nobody_gets_the_place_of_what_was_lent() {
        let mut s = Slots::default();
        let (slot, generation) = s.insert_with(|_, _| Some("a")).unwrap();
        assert_eq!(s.lend(slot, generation), Some("a"));
        assert_eq!(s.lend(slot, generation), None);
        assert_eq!((s.len(), s.get(slot, generation)), (0, None));
        let other = s.insert("guest");
        assert!(other != slot && s.at(other) == Some(&mut "guest"));
        s.put_back(slot, "a");
        assert_eq!((s.len(), s.get(slot, generation)), (2, Some(&"a")));
        assert_eq!(s.lend(slot, generation), Some("a"));
        s.vacate(slot);
        let (again, next) = s.insert_with(|_, _| Some("b")).unwrap();
        assert!(again == slot && next != generation && s.generation(slot) == next);
    }

    #[test]
    fn generation_0_is_never_given_out() {
        let mut s = Slots::default();
        let (slot, first) = s.insert_with(|_, _| Some(())).unwrap();
        assert_eq!(first, 1);
        let last = (1 << GEN_BITS) - 1;
        s.chunks[0].generations[slot as usize] = last;
        assert_eq!(SockId::conn(0, slot, last).generation(), last);
        assert!(s.remove(slot, last).is_some());
        // As many reuses later, names begin anew; 0 means that nobody is there.
        assert_eq!(s.insert_with(|_, _| Some(())), Some((slot, 1)));
    }

    #[test]
    fn agrees_with_a_map_over_many_chunks() {
        let mut s = Slots::default();
        let mut model = std::collections::BTreeMap::new();
        let mut x = 1u64;
        for n in 0..20 * CHUNK as u64 {
            let (slot, generation) = s.insert_with(|slot, g| Some((slot, g, n))).unwrap();
            assert!(model.insert(slot, (generation, n)).is_none());
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if x >> 62 == 0 {
                let nth = (x >> 32) as usize % model.len();
                let (slot, (generation, n)) = model.iter().nth(nth).map(|(k, v)| (*k, *v)).unwrap();
                model.remove(&slot);
                assert_eq!(s.remove(slot, generation), Some((slot, generation, n)));
                assert_eq!(s.at(slot), None);
            }
        }
        let all: Vec<_> = s.iter().map(|(slot, g, v)| (slot, g, *v)).collect();
        let want: Vec<_> = model
            .iter()
            .map(|(k, (g, n))| (*k, *g, (*k, *g, *n)))
            .collect();
        assert_eq!(all, want);
        assert_eq!(s.len(), model.len());
        assert!(s.places() as usize >= s.len() && s.at(s.places()).is_none());
        assert_eq!(s.get_mut(u32::MAX, 1), None);
    }
}
