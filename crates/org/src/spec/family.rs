//! What a family of organizations tells of itself: for the command line, the suites, and the lab's
//! tables and figures.

use super::{OrgSpec, Parts, SpecError};
use perimeter_sync::LockClass;

/// Organizations that share the first word of their names.
pub struct Family {
    /// That word.
    pub name: &'static str,
    /// What reports call it.
    pub title: &'static str,
    /// What its names take as parameters, as the end of an error message.
    pub takes: &'static str,
    /// The spellings that are listed, and run where all are asked for.
    pub variants: &'static [Variant],
    /// What the suites run in place of the variants' usual parameters, `(usual, tested)`: few
    /// enough groups that connections share some and not others, or parameters that no listed
    /// variant has. An empty `usual` adds one.
    pub tested: &'static [(&'static str, &'static str)],
    /// Reads the parameters.
    pub parse: fn(Parts<'_>) -> Result<OrgSpec, SpecError>,
    /// How figures show it.
    pub look: Look,
    /// Source files whose work is handing messages from thread to thread, as `file!()` gives
    /// them: the scheduler's share in an account of where cache misses happen. All else of an
    /// organization is the stack's.
    pub hand_over: &'static [&'static str],
}

impl core::fmt::Debug for Family {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Family({})", self.name)
    }
}

/// One of a family that is listed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its spelling; a capital letter stands for a number that the user chooses.
    pub name: &'static str,
    /// The same with its usual parameters.
    pub usual: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
}

/// Where the time is known from for which threads are within an organization's perimeters.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Occupancy {
    /// A lock of this class: the time for which such locks are held.
    Lock(LockClass),
    /// What a protocol thread owns: the processor time of those threads.
    Owner,
    /// The stack as a whole, or queues that whoever comes drains: the processor time in the stack.
    Stack,
    /// Nobody can tell.
    Unknown,
}

/// How figures show a family: one colour and one marker everywhere. Variants in one figure differ
/// by dashes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The colour.
    pub colour: Colour,
    /// The marker, so that nothing relies on colour alone.
    pub marker: Marker,
}

impl Look {
    /// Of what nobody has registered: a colour and a marker that nobody else has.
    pub const UNKNOWN: Look = Look {
        colour: Colour {
            light: "#9a6700",
            dark: "#c9a227",
            terminal: Some(243),
        },
        marker: Marker::Plus,
    };
}

/// A colour on each ground.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Colour {
    /// On white, `#rrggbb`.
    pub light: &'static str,
    /// On nearly black, `#rrggbb`.
    pub dark: &'static str,
    /// As near as the 256 colours that terminals share come, and none too near black or white.
    /// `None`: the terminal's own colour of text.
    pub terminal: Option<u8>,
}

/// A marker's shape.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Marker {
    /// ●
    Circle,
    /// ■
    Square,
    /// ▲
    Up,
    /// ▼
    Down,
    /// ◆
    Diamond,
    /// ✕
    Cross,
    /// ✚, for what nobody has registered.
    Plus,
}
