//! What a trace of the program's memory accesses shows of a simulation.
//!
//! A trace made from outside (by valgrind's lackey, say) has addresses and no meaning. Here the
//! simulation stores to bytes whose addresses the observer knows: when a core goes on, when work
//! begins that is not under test, when counting does; and where the machine's own locks and
//! events would write to memory, which the virtual ones do not, it makes that access. Nothing
//! reads these bytes.
//!
//! Beacons are dark until somebody [lights](light) them: simulations that nobody traces pay a load.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use crate::class::Touched;
use crate::platform::Beacon;

/// Cores that are told apart; those beyond share the last.
pub const CORES: usize = 64;
/// [`Beacon::PeerBegins`].
pub const PEER_BEGINS: usize = CORES;
/// [`Beacon::PeerEnds`].
pub const PEER_ENDS: usize = CORES + 1;
/// The next access is one to the word of a lock.
pub const LOCK: usize = CORES + 2;
/// The next access is one to the word of an event.
pub const EVENT: usize = CORES + 3;
/// The next access is one to a line that the device has written.
pub const DEVICE: usize = CORES + 4;
/// [`Beacon::CountingBegins`].
pub const COUNTING_BEGINS: usize = CORES + 5;
/// [`Beacon::CountingEnds`].
pub const COUNTING_ENDS: usize = CORES + 6;
/// The first of those that say what the accesses that follow belong to: behind it, one for each
/// [`Touched::index`].
pub const TOUCHED: usize = CORES + 7;
/// How many bytes there are.
pub const BYTES: usize = TOUCHED + Touched::COUNT;

/// Bytes of a line: what the device wrote is shown line by line.
const LINE: usize = 64;

static SHOWN: [AtomicU8; BYTES] = [const { AtomicU8::new(0) }; BYTES];

static LIT: AtomicBool = AtomicBool::new(false);

/// From now on this process shows its beacons.
pub fn light() {
    LIT.store(true, Ordering::Relaxed);
}

/// Whether it does.
#[inline]
pub(super) fn lit() -> bool {
    LIT.load(Ordering::Relaxed)
}

/// Where the bytes lie: byte `i` is at this address plus `i`.
pub fn address() -> usize {
    core::ptr::from_ref(&SHOWN).addr()
}

#[inline]
fn show(which: usize) {
    SHOWN[which].store(1, Ordering::Relaxed);
}

/// A core goes on.
#[inline]
pub(super) fn core(core: usize) {
    if lit() {
        show(core.min(CORES - 1));
    }
}

/// What `what` stands for is touched.
#[inline]
pub(super) fn touched(what: Touched) {
    if lit() {
        show(TOUCHED + what.index());
    }
}

/// Reads and writes `word`, and says before what it is.
#[inline]
fn access(which: usize, word: &AtomicU32) {
    if lit() {
        show(which);
        word.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads and writes the word of a lock, as taking or releasing one does.
#[inline]
pub(super) fn lock(word: &AtomicU32) {
    access(LOCK, word);
}

/// Reads and writes the word of an event.
#[inline]
pub(super) fn event(word: &AtomicU32) {
    access(EVENT, word);
}

/// Shows what was asked for.
pub(super) fn beacon(b: Beacon<'_>) {
    if !lit() {
        return;
    }
    match b {
        Beacon::PeerBegins => show(PEER_BEGINS),
        Beacon::PeerEnds => show(PEER_ENDS),
        Beacon::CountingBegins => show(COUNTING_BEGINS),
        Beacon::CountingEnds => show(COUNTING_ENDS),
        Beacon::DeviceWrote(frames) => {
            for line in frames.flat_map(|bytes| bytes.chunks(LINE)) {
                show(DEVICE);
                core::hint::black_box(line[0]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dark_until_lit() {
        let word = AtomicU32::new(0);
        let all = || {
            core(CORES + 5);
            lock(&word);
            event(&word);
            let frame = [0; LINE + 1];
            let mut frames = core::iter::once(&frame[..]);
            beacon(Beacon::DeviceWrote(&mut frames));
            beacon(Beacon::CountingEnds);
        };
        let shown = |which: usize| SHOWN[which].load(Ordering::Relaxed) > 0;
        all();
        assert!(!(0..BYTES).any(shown));
        assert_eq!(word.load(Ordering::Relaxed), 0);
        light();
        all();
        let expected = [CORES - 1, LOCK, EVENT, DEVICE, COUNTING_ENDS];
        assert!(expected.into_iter().all(shown));
        assert_eq!(word.load(Ordering::Relaxed), 2);
    }
}
