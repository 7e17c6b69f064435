//! Which groups sockets have joined, and which reports of that are due.

use core::net::IpAddr;
use core::sync::atomic::AtomicUsize;
use hashbrown::HashMap;
use perimeter_base::Time;
use perimeter_wire::mld::Record;

/// A report that is due at a time.
pub(crate) struct Due {
    pub(crate) at: Time,
    pub(crate) iface: u16,
    pub(crate) group: IpAddr,
    pub(crate) what: Record,
}

/// Who is in what.
#[derive(Default)]
pub struct Groups {
    /// How many sockets have joined.
    pub(crate) joined: HashMap<(u16, IpAddr), usize, foldhash::fast::RandomState>,
    /// At most one of a kind for each group.
    pub(crate) due: Vec<Due>,
}

/// The number of groups, to look at without the lock.
#[derive(Default)]
pub struct Joined(pub(crate) AtomicUsize);

impl Groups {
    /// Plans a report, in place of an older one about the same.
    pub(crate) fn plan(&mut self, at: Time, iface: u16, group: IpAddr, what: Record) {
        let old = |d: &Due| (d.iface, d.group) == (iface, group);
        match self.due.iter_mut().find(|d| old(d)) {
            // A change outranks an answer, and the newer change the older.
            Some(d) if what != Record::Listens => {
                *d = Due {
                    at,
                    iface,
                    group,
                    what,
                };
            }
            Some(d) => d.at = d.at.min(at),
            None => self.due.push(Due {
                at,
                iface,
                group,
                what,
            }),
        }
    }
}
