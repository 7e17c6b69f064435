//! Names of organizations, `name[:N][:key=value]…`, and what else is to be known of one without
//! running it.
//!
//! Each organization says all of that in its own folder, as a [`Family`]: nobody else matches on
//! its name. `organizations.rs` lists the families of this build.

use core::any::Any;
use core::fmt;
use core::hash::{Hash, Hasher};
use perimeter_sync::LockClass;
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
///
/// ```
/// use perimeter_org::OrgSpec;
///
/// // By name, as the command line has it: a family, and its parameters.
/// let org: OrgSpec = "connp-l:4".parse()?;
/// assert_eq!((org.family().name, org.to_string().as_str()), ("connp-l", "connp-l:4"));
/// assert!(!org.single_threaded() && !org.is_outside());
/// // Or one of your own, which is given as a type.
/// let mine = OrgSpec::outside("mine");
/// assert!(mine.is_outside() && mine != org);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    ///
    /// ```
    #[doc = include_str!("examples/params.txt")]
    /// // `Groups(u16)` are the parameters of an organization, `mine:4` its name with them.
    /// let org = OrgSpec::new(family, Groups(4));
    /// assert_eq!(org.to_string(), "mine:4");
    /// assert_eq!(org, OrgSpec::new(family, Groups(4)));
    /// ```
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
    ///
    /// ```
    #[doc = include_str!("examples/params.txt")]
    /// let org = OrgSpec::new(family, Groups(4));
    /// assert_eq!(org.params::<Groups>().map(|g| g.0), Some(4));
    /// assert!(OrgSpec::default().params::<Groups>().is_none(), "it has others");
    /// ```
    pub fn params<T: Params>(&self) -> Option<&T> {
        let params: &dyn Any = &*self.said.params;
        params.downcast_ref()
    }

    /// As [`OrgSpec::params`], for the organization that it names.
    ///
    /// ```
    #[doc = include_str!("examples/params.txt")]
    /// // As an organization finds what it was asked for.
    /// let org = OrgSpec::new(family, Groups(4));
    /// let Groups(n) = *org.expect_params();
    /// assert_eq!(n, 4);
    /// ```
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
    ///
    /// ```
    /// use perimeter_org::OrgSpec;
    ///
    /// // Where cores are fewer than threads, who spins takes time from whom it waits for.
    /// for org in OrgSpec::all().iter().filter(|o| o.spins()) {
    ///     println!("{org} wants a core for each thread");
    /// }
    /// assert!(!OrgSpec::default().spins());
    /// ```
    pub fn spins(&self) -> bool {
        self.said.params.spins()
    }

    /// One thread only.
    pub fn single_threaded(&self) -> bool {
        self.said.params.single_threaded()
    }

    /// Whether a call may return before all of its work is done, which then finds the socket gone.
    ///
    /// ```
    /// use perimeter_org::OrgSpec;
    ///
    /// // A call on a socket that has gone is no error at once there.
    /// let deferring: Vec<OrgSpec> = OrgSpec::all().into_iter().filter(OrgSpec::defers).collect();
    /// println!("{deferring:?}");
    /// assert!(!OrgSpec::default().defers(), "whose calls are done when they return");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn defers(&self) -> bool {
        self.said.params.defers()
    }

    /// Where the time is known from for which threads are within its perimeters.
    ///
    /// ```
    /// use perimeter_org::OrgSpec;
    /// use perimeter_org::spec::Occupancy;
    /// use perimeter_sync::LockClass;
    ///
    /// let org: OrgSpec = "connp-l:4".parse()?;
    /// assert_eq!(org.occupancy(), Occupancy::Lock(LockClass::Group));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    recommend: None,
    parse: |parts| Err(parts.refuse("outside")),
    look: Look::UNKNOWN,
    counts: &[],
    hand_over: &[],
};

/// A name that is none.
///
/// ```
/// use perimeter_org::{OrgSpec, SpecError};
///
/// let error = "fastest".parse::<OrgSpec>().expect_err("there is none of that name");
/// let SpecError::Unknown { name, known } = error else { return Err(error.into()) };
/// assert_eq!(name, "fastest");
/// assert!(known.contains("squeue"));
///
/// let error = "connp-l:many".parse::<OrgSpec>().expect_err("a number is needed");
/// assert!(matches!(error, SpecError::Parameter { name: "connp-l", .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
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

perimeter_base::debug_is_text!(SpecError);

/// Organizations that share the first word of their names.
///
/// ```
/// use perimeter_org::organizations::family;
///
/// let connp = family("connp-l:4").ok_or("there is none of that name")?;
/// println!("{}: its names take {}", connp.title, connp.takes);
/// for v in connp.variants {
///     println!("{:<12} {}", v.name, v.summary);
/// }
/// // Any of its spellings is read by it.
/// let org: perimeter_org::OrgSpec = connp.variants[0].usual.parse()?;
/// assert_eq!(org.family().name, connp.name);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// The spelling that `perimeter recommend` runs where it is not told which; `N` stands for the
    /// number of cores. `None`: it leaves the family out.
    pub recommend: Option<&'static str>,
    /// Reads the parameters.
    pub parse: fn(Parts<'_>) -> Result<OrgSpec, SpecError>,
    /// How figures show it.
    pub look: Look,
    /// What it counts beside the stack's counters, by the names that statistics have for it: the
    /// first is that of `Ctx::count_own(0, …)`. At most [`perimeter_stack::count::OWN`].
    pub counts: &'static [&'static str],
    /// Source files whose work is handing messages from thread to thread, as `file!()` gives
    /// them: the scheduler's share in an account of where cache misses happen. All else of an
    /// organization is the stack's.
    pub hand_over: &'static [&'static str],
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Family({})", self.name)
    }
}

/// One of a family that is listed.
///
/// ```
/// use perimeter_org::OrgSpec;
/// use perimeter_org::spec::Variant;
///
/// // What `perimeter orgs` prints.
/// for Variant { name, usual, summary } in OrgSpec::listed() {
///     println!("{name:<20} {summary} (as in `{usual}`)");
/// }
/// assert!(OrgSpec::listed().all(|v| v.usual.parse::<OrgSpec>().is_ok()));
/// ```
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
///
/// ```
/// use perimeter_org::OrgSpec;
/// use perimeter_org::spec::Occupancy;
///
/// // What is measured, for a figure of how busy perimeters are.
/// let measured = |org: &OrgSpec| match org.occupancy() {
///     Occupancy::Lock(class) => format!("how long locks of class {} are held", class.name()),
///     Occupancy::Owner => "processor time of protocol threads".into(),
///     Occupancy::Stack => "processor time in the stack".into(),
///     Occupancy::Unknown => "nothing".into(),
/// };
/// assert_eq!(measured(&OrgSpec::outside("mine")), "nothing");
/// ```
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
///
/// ```
/// use perimeter_org::organizations::family;
/// use perimeter_org::spec::Look;
///
/// // One for each family, and one for what comes from outside.
/// let look = |name: &str| family(name).map_or(Look::UNKNOWN, |f| f.look);
/// assert_ne!(look("squeue:2").colour, look("connp-l:4").colour);
/// assert_eq!(look("mine"), Look::UNKNOWN);
/// ```
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
///
/// ```
/// use perimeter_org::spec::{Colour, Look};
///
/// let Colour { light, dark, terminal } = Look::UNKNOWN.colour;
/// println!("<style>:root {{ --line: light-dark({light}, {dark}) }}</style>");
/// // Of a terminal's 256.
/// let escape = terminal.map_or(String::new(), |n| format!("\x1b[38;5;{n}m"));
/// assert_eq!(escape, "\x1b[38;5;243m");
/// ```
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
///
/// ```
/// use perimeter_org::spec::{Look, Marker};
///
/// let sign = match Look::UNKNOWN.marker {
///     Marker::Circle => '●',
///     Marker::Square => '■',
///     Marker::Plus => '✚',
///     _ => '?',
/// };
/// assert_eq!(sign, '✚');
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

/// `[:N][:key=value]…[:flag]…` behind an organization's name.
pub struct Parts<'a> {
    name: &'static str,
    takes: &'static str,
    rest: Vec<&'a str>,
}

impl<'a> Parts<'a> {
    /// Those behind the name of an organization of `family`.
    pub fn new(family: &Family, rest: Vec<&'a str>) -> Parts<'a> {
        Parts {
            name: family.name,
            takes: family.takes,
            rest,
        }
    }

    /// The error that `part` is not understood.
    pub fn refuse(&self, part: &str) -> SpecError {
        SpecError::Parameter {
            name: self.name,
            part: part.to_string(),
            takes: self.takes,
        }
    }

    /// Takes the first part if it is the bare word `word`.
    pub fn flag(&mut self, word: &str) -> bool {
        match self.rest.iter().position(|p| *p == word) {
            Some(i) => {
                self.rest.remove(i);
                true
            }
            None => false,
        }
    }

    /// Takes a leading number from 1 to `max`.
    ///
    /// # Errors
    /// It is out of range.
    pub fn number(&mut self, max: u16) -> Result<Option<u16>, SpecError> {
        match self.rest.first() {
            Some(n) if n.bytes().all(|b| b.is_ascii_digit()) && !n.is_empty() => {
                let n = self.rest.remove(0);
                self.within(n, 1, max).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Takes `key=value`.
    pub fn value(&mut self, key: &str) -> Option<&'a str> {
        let found = |p: &&str| p.split_once('=').is_some_and(|(k, _)| k == key);
        let i = self.rest.iter().position(found)?;
        self.rest.remove(i).split_once('=').map(|(_, v)| v)
    }

    /// Takes `key=number`, from `min` to `max`.
    ///
    /// # Errors
    /// It is no number, or out of range.
    pub fn count(&mut self, key: &str, min: u16, max: u16) -> Result<Option<u16>, SpecError> {
        self.value(key)
            .map(|v| self.within(v, min, max))
            .transpose()
    }

    fn within(&self, text: &str, min: u16, max: u16) -> Result<u16, SpecError> {
        let n = text.parse().ok().filter(|n| (min..=max).contains(n));
        n.ok_or_else(|| self.refuse(text))
    }

    /// Takes `wake=after` or `wake=inside`: whether sleepers are woken under the locks of what they
    /// wait for.
    pub(crate) fn wakes_held(&mut self) -> Result<bool, SpecError> {
        let held = self.choice("wake", &[("after", false), ("inside", true)])?;
        Ok(held.unwrap_or(false))
    }

    /// Takes `key=word`, one of `words`, whose value follows.
    ///
    /// # Errors
    /// It is none of them.
    pub fn choice<T: Copy>(
        &mut self,
        key: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, SpecError> {
        let Some(v) = self.value(key) else {
            return Ok(None);
        };
        let found = words.iter().find(|(w, _)| *w == v);
        found.map(|(_, t)| Some(*t)).ok_or_else(|| self.refuse(v))
    }

    /// Takes `key=on` or `key=off`.
    ///
    /// # Errors
    /// It is neither.
    pub fn switch(&mut self, key: &str) -> Result<Option<bool>, SpecError> {
        self.choice(key, &[("on", true), ("off", false)])
    }

    /// The end: nothing may be left.
    ///
    /// # Errors
    /// Something is.
    pub fn end<T>(self, value: T) -> Result<T, SpecError> {
        match self.rest.first() {
            None => Ok(value),
            Some(_) => Err(self.refuse(&self.rest.join(":"))),
        }
    }
}
