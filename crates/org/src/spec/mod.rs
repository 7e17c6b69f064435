//! Names of organizations, `name[:N][:key=value]…`, and what else is to be known of one without
//! running it.
//!
//! Each organization says all of that in its own folder, as a [`Family`]: nobody else matches on
//! its name. `organizations.rs` lists the families of this build.

mod family;
mod parts;

pub use family::{Colour, Family, Look, Marker, Occupancy, Variant};
pub use parts::Parts;

use core::any::Any;
use core::fmt;
use core::hash::{Hash, Hasher};
use std::sync::Arc;

/// The most groups, workers or queues that any organization takes.
pub const MAX_GROUPS: u16 = 1024;

/// The parameters of an organization, as it parsed them. `Display` spells them out: each in one
/// way, so that equal parameters have equal names.
pub trait Params: fmt::Display + fmt::Debug + Any + Send + Sync {
    /// Whether one thread does everything and calls of others are refused.
    fn single_threaded(&self) -> bool {
        false
    }

    /// Whether threads wait for each other by looking, for longer than a lock is held.
    fn spins(&self) -> bool {
        false
    }

    /// Whether a call may return before all of its work is done, which then finds the socket gone.
    fn defers(&self) -> bool {
        true
    }

    /// Where the time is known from for which threads are within its perimeters.
    fn occupancy(&self) -> Occupancy;
}

/// An organization and its parameters.
#[derive(Clone)]
pub struct OrgSpec {
    family: &'static Family,
    said: Arc<Said>,
}

struct Said {
    /// The one spelling, by which specifications are compared.
    name: String,
    params: Box<dyn Params>,
}

impl OrgSpec {
    /// Of a family, with these parameters.
    pub fn new(family: &'static Family, params: impl Params) -> OrgSpec {
        OrgSpec {
            family,
            said: Arc::new(Said {
                name: params.to_string(),
                params: Box::new(params),
            }),
        }
    }

    /// One from outside this crate, by its own name. That is not parsed: the organization comes
    /// as a type, to [`open_as`](crate::open_as). Several threads may call it.
    pub fn outside(name: &'static str) -> OrgSpec {
        OrgSpec::new(&OUTSIDE, Outside(name))
    }

    /// Whether it is [`OrgSpec::outside`]'s.
    pub fn is_outside(&self) -> bool {
        core::ptr::eq(self.family, &OUTSIDE)
    }

    /// The family.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// Its parameters, if they are of type `T`, as those of one family are.
    pub fn params<T: Params>(&self) -> Option<&T> {
        let params: &dyn Any = &*self.said.params;
        params.downcast_ref()
    }

    /// As [`OrgSpec::params`], for the organization that it names.
    ///
    /// # Panics
    /// It names another.
    pub fn expect_params<T: Params>(&self) -> &T {
        match self.params() {
            Some(params) => params,
            None => panic!("`{self}` is opened as another organization"),
        }
    }

    /// Whether threads wait for each other by looking, for longer than a lock is held.
    pub fn spins(&self) -> bool {
        self.said.params.spins()
    }

    /// One thread only.
    pub fn single_threaded(&self) -> bool {
        self.said.params.single_threaded()
    }

    /// Whether a call may return before all of its work is done, which then finds the socket gone.
    pub fn defers(&self) -> bool {
        self.said.params.defers()
    }

    /// Where the time is known from for which threads are within its perimeters.
    pub fn occupancy(&self) -> Occupancy {
        self.said.params.occupancy()
    }
}

impl PartialEq for OrgSpec {
    fn eq(&self, other: &OrgSpec) -> bool {
        self.said.name == other.said.name
    }
}

impl Eq for OrgSpec {}

impl Hash for OrgSpec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.said.name.hash(state);
    }
}

impl fmt::Display for OrgSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.said.name)
    }
}

impl fmt::Debug for OrgSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OrgSpec({})", self.said.name)
    }
}

/// The name of an organization from outside.
#[derive(Debug)]
struct Outside(&'static str);

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Params for Outside {
    fn occupancy(&self) -> Occupancy {
        Occupancy::Unknown
    }
}

static OUTSIDE: Family = Family {
    name: "outside",
    title: "from outside",
    takes: "an organization from outside has no name to be parsed",
    variants: &[],
    tested: &[],
    parse: |parts| Err(parts.refuse("outside")),
    look: Look::UNKNOWN,
    hand_over: &[],
};

/// A name that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not the name of an organization.
    #[error("unknown organization `{name}`; known are: {known}")]
    Unknown {
        /// What was given.
        name: String,
        /// The names that there are, with commas between them.
        known: String,
    },
    /// A parameter that the organization does not take, or that is out of range.
    #[error("organization `{name}`: `{part}` is not understood; {takes}")]
    Parameter {
        /// The organization.
        name: &'static str,
        /// What was given.
        part: String,
        /// What it takes.
        takes: &'static str,
    },
}
