//! A trace of the accesses to memory that a simulation makes, written to standard output.
//!
//! It takes a program that the compiler has instrumented: `--cfg perimeter_traced` and LLVM's
//! pass `memprof`, which puts a call before each load, store and atomic operation, and one in the
//! place of each copy and fill. `perimeter lab run cache` builds one. In every other program
//! nothing of this is there.
//!
//! Accesses are in it while a core goes on and does no peer's work, unless all are asked for: those
//! of peers, and of the simulation itself between two cores' turns, would be a good part of it.
//!
//! A record is two words: what it is in the upper eight bits of the first, with a number or an
//! address below, and the instruction behind an access in the second. How many bytes an access
//! has is told of copies and fills; of others, its first byte.

use std::io::{self, Read};

/// The bit at which a record says what it is; addresses and numbers are below.
const KIND: u32 = 56;
const READ: u64 = 0;
const WRITE: u64 = 1;
const LENGTH: u64 = 2;
const BASE: u64 = 3;
const CORE: u64 = 4;
const PEER: u64 = 5;
const LOCK: u64 = 6;
const EVENT: u64 = 7;
const DEVICE: u64 = 8;
const COUNTING: u64 = 9;
const TOUCHED: u64 = 10;

/// Octets of a record.
const OCTETS: usize = 16;
/// Records that are read at a time.
const AT_ONCE: usize = 1 << 14;

/// What a trace says next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// The program's file begins at this address.
    Base(u64),
    /// Memory is read, or written, which includes both at once.
    Access {
        /// First byte.
        address: u64,
        /// Bytes, as far as they are known: else 1.
        len: u64,
        /// Whether it is written.
        write: bool,
        /// Address behind the instruction.
        by: u64,
    },
    /// This core goes on.
    Core(u64),
    /// From here the running core does a peer's work, or no longer.
    Peer(bool),
    /// The word of a lock is read and written.
    Lock(u64),
    /// The word of an event is read and written.
    Event(u64),
    /// The device has written so many bytes from this address on.
    Device(u64, u64),
    /// From here accesses count, or no longer.
    Counting(bool),
    /// What follows belongs to what has this number ([`crate::Touched::index`]).
    Touched(u64),
}

#[cfg(any(test, perimeter_traced))]
impl Record {
    /// Its two words, of an access without its length.
    fn words(self) -> [u64; 2] {
        let (kind, value, second) = match self {
            Record::Access {
                address, write, by, ..
            } => (if write { WRITE } else { READ }, address, by),
            Record::Base(address) => (BASE, address, 0),
            Record::Core(core) => (CORE, core, 0),
            Record::Peer(begins) => (PEER, begins.into(), 0),
            Record::Lock(address) => (LOCK, address, 0),
            Record::Event(address) => (EVENT, address, 0),
            Record::Device(address, len) => (DEVICE, address, len),
            Record::Counting(begins) => (COUNTING, begins.into(), 0),
            Record::Touched(what) => (TOUCHED, what, 0),
        };
        [kind << KIND | value & ((1 << KIND) - 1), second]
    }
}

/// Reads a trace.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    buffer: Vec<u8>,
    /// What of the buffer has not been looked at.
    at: usize,
    end: usize,
    /// Length of the next access, if it was told.
    len: Option<u64>,
}

impl<R: Read> Reader<R> {
    /// Of what `from` has.
    pub fn new(from: R) -> Reader<R> {
        Reader {
            from,
            buffer: vec![0; AT_ONCE * OCTETS],
            at: 0,
            end: 0,
            len: None,
        }
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// That of reading; `InvalidData` for what is no record.
    pub fn read(&mut self) -> io::Result<Option<Record>> {
        loop {
            if self.end - self.at < OCTETS && !self.fill()? {
                return Ok(None);
            }
            let word = |at: usize| {
                let octets = self.buffer[at..].first_chunk();
                u64::from_le_bytes(*octets.unwrap_or(&[0; 8]))
            };
            let (first, second) = (word(self.at), word(self.at + 8));
            self.at += OCTETS;
            let value = first & ((1 << KIND) - 1);
            return Ok(Some(match first >> KIND {
                kind @ (READ | WRITE) => Record::Access {
                    address: value,
                    len: self.len.take().unwrap_or(1),
                    write: kind == WRITE,
                    by: second,
                },
                LENGTH => {
                    self.len = Some(value);
                    continue;
                }
                BASE => Record::Base(value),
                CORE => Record::Core(value),
                PEER => Record::Peer(value > 0),
                LOCK => Record::Lock(value),
                EVENT => Record::Event(value),
                DEVICE => Record::Device(value, second),
                COUNTING => Record::Counting(value > 0),
                TOUCHED => Record::Touched(value),
                other => {
                    let what = format!("a trace has no record of kind {other}");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
            }));
        }
    }

    /// Reads more, until there is a record at least; whether there is.
    fn fill(&mut self) -> io::Result<bool> {
        self.buffer.copy_within(self.at..self.end, 0);
        (self.at, self.end) = (0, self.end - self.at);
        while self.end < OCTETS {
            match self.from.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(n) => self.end += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

#[cfg(not(perimeter_traced))]
mod writer {
    use super::Record;

    /// Nothing is written.
    pub(in crate::virt) const fn is_on() -> bool {
        false
    }

    #[inline(always)]
    pub(in crate::virt) fn note(_: Record) {}

    #[inline(always)]
    pub(in crate::virt) fn pause() {}

    /// Begins a trace, of a program whose file begins at `base`; accesses are not in it yet.
    pub fn begin(base: u64) {
        let _ = base;
    }

    /// From here accesses are in the trace: those of cores that go on and do no peer's work, or
    /// `all`.
    pub fn accesses(all: bool) {
        let _ = all;
    }

    /// The end: what is not written yet is.
    pub fn end() {}
}

#[cfg(perimeter_traced)]
mod writer;

pub use writer::{accesses, begin, end};
pub(super) use writer::{is_on, note, pause};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_record() -> impl Strategy<Value = Record> {
        let address = 0..1u64 << 47;
        prop_oneof![
            address.clone().prop_map(Record::Base),
            (address.clone(), any::<bool>(), any::<u64>()).prop_map(|(address, write, by)| {
                Record::Access {
                    address,
                    len: 1,
                    write,
                    by,
                }
            }),
            (0..64u64).prop_map(Record::Core),
            any::<bool>().prop_map(Record::Peer),
            address.clone().prop_map(Record::Lock),
            address.clone().prop_map(Record::Event),
            (address, 0..9000u64).prop_map(|(a, n)| Record::Device(a, n)),
            any::<bool>().prop_map(Record::Counting),
            (0..20u64).prop_map(Record::Touched),
        ]
    }

    /// A source that hands out a few octets at a time.
    struct Slowly(Vec<u8>, usize);

    impl Read for Slowly {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let n = into.len().min(self.1).min(self.0.len());
            into[..n].copy_from_slice(&self.0[..n]);
            self.0.drain(..n);
            Ok(n)
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            records in prop::collection::vec(any_record(), 0..50),
            step in 1..40usize,
        ) {
            let words = records.iter().flat_map(|r| r.words());
            let octets = words.flat_map(u64::to_le_bytes).collect();
            let mut reader = Reader::new(Slowly(octets, step));
            for r in &records {
                prop_assert_eq!(reader.read().unwrap(), Some(*r));
            }
            prop_assert_eq!(reader.read().unwrap(), None);
        }

        #[test]
        fn nothing_panics(octets in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut reader = Reader::new(&octets[..]);
            while let Ok(Some(_)) = reader.read() {}
        }
    }

    #[test]
    fn a_length_is_of_the_next_access() {
        let words = [LENGTH << KIND | 96, 7, WRITE << KIND | 0x1000, 7, 0x2000, 9];
        let octets: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        let mut reader = Reader::new(&octets[..]);
        let mut next = || reader.read().unwrap();
        let access = |address, len, write, by| {
            Some(Record::Access {
                address,
                len,
                write,
                by,
            })
        };
        assert_eq!(next(), access(0x1000, 96, true, 7));
        assert_eq!(next(), access(0x2000, 1, false, 9));
        assert_eq!(next(), None);
    }
}
