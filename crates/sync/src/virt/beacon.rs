//! What a [trace](super::trace) of memory accesses shows of the simulation that makes them: which
//! core goes on, when work begins that is not under test, when counting does; and where the
//! machine's own locks and events would write to memory, which the virtual ones do not, and its
//! devices.

use core::sync::atomic::AtomicU32;

use super::trace::{self, Record, note};
use crate::class::Touched;
use crate::platform::Beacon;

/// A core goes on.
#[inline]
pub(super) fn core(core: usize) {
    note(Record::Core(core as u64));
}

/// No core goes on: what follows is the simulation's.
#[inline]
pub(super) fn no_core() {
    trace::pause();
}

/// What `what` stands for is touched.
#[inline]
pub(super) fn touched(what: Touched) {
    note(Record::Touched(what.index() as u64));
}

/// Taking or releasing a lock reads and writes its word.
#[inline]
pub(super) fn lock(word: &AtomicU32) {
    note(Record::Lock(address(word)));
}

/// So do calls of an event.
#[inline]
pub(super) fn event(word: &AtomicU32) {
    note(Record::Event(address(word)));
}

fn address<T: ?Sized>(of: &T) -> u64 {
    core::ptr::from_ref(of).addr() as u64
}

/// Shows what was asked for.
#[inline]
pub(super) fn beacon(b: Beacon<'_>) {
    match b {
        Beacon::PeerBegins => note(Record::Peer(true)),
        Beacon::PeerEnds => note(Record::Peer(false)),
        Beacon::CountingBegins => note(Record::Counting(true)),
        Beacon::CountingEnds => note(Record::Counting(false)),
        Beacon::DeviceWrote(frames) if trace::is_on() => {
            for octets in frames {
                note(Record::Device(address(octets), octets.len() as u64));
            }
        }
        Beacon::DeviceWrote(_) => {}
    }
}
