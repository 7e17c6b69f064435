//! What there is to know of all organizations of this build. Which those are stands in `lib.rs`,
//! one line each.

use crate::engine::Engine;
use crate::open::{Options, Start};
pub use crate::registered::{families, visit};
use crate::spec::{Family, MAX_GROUPS, OrgSpec, Parts, SpecError, Variant};
use core::str::FromStr;
use perimeter_sync::Platform;
use std::sync::Arc;

/// Declares the modules of organizations and registers what they hold. A line in `lib.rs`'s list
/// is all that an organization needs outside its own module; everybody else takes what there is
/// to know of it from the list of families that comes of this, and nobody from its name. Each
/// organization × platform is one instance of the generic code, chosen here at run time.
macro_rules! organizations {
    ($($(#[$attribute:meta])* $visibility:vis mod $module:ident;)*) => {
        $($(#[$attribute])* $visibility mod $module;)*

        /// What the list comes to.
        mod registered {
            use crate::open::{Options, Visit};
            use crate::spec::Family;
            use perimeter_sync::Platform;

            /// Every family of organizations of this build.
            ///
            /// ```
            /// use perimeter_org::organizations::families;
            ///
            /// // Their names are the first words of organizations' names.
            /// let names: Vec<&str> = families().map(|f| f.name).collect();
            /// assert!(names.contains(&"up") && names.contains(&"squeue"));
            /// ```
            pub fn families() -> impl Iterator<Item = &'static Family> {
                let lists: &[&[&'static Family]] = &[
                    $($(#[$attribute])* crate::$module::FAMILIES,)*
                ];
                lists.iter().copied().flatten().copied()
            }

            /// Tells `visitor` which type the organization of `o` is on platform `p`.
            ///
            /// # Panics
            /// It is [`OrgSpec::outside`](crate::OrgSpec::outside).
            pub fn visit<P: Platform, V: Visit<P>>(p: P, o: Options, visitor: V) -> V::Out {
                let family = o.org.family();
                $(
                    $(#[$attribute])*
                    if crate::$module::FAMILIES.iter().any(|f| core::ptr::eq(*f, family)) {
                        return crate::$module::visit(p, o, visitor);
                    }
                )*
                panic!("`{}` is opened with `open_as`", o.org);
            }
        }
    };
}

/// Opens a stack on this machine.
///
/// # Panics
/// The organization is [`OrgSpec::outside`]: [`open_as`](crate::open_as) opens those.
// Unit tests open one organization at most, by its type: all of them take a minute to compile.
#[cfg(not(test))]
pub fn open(platform: perimeter_sync::Native, options: Options) -> Arc<dyn Engine> {
    open_on(platform, options)
}

/// Opens a stack on any platform. A crate that calls this holds every organization, compiled for
/// that platform; for threads, this crate does ([`open`]).
///
/// # Panics
/// As [`open`].
pub fn open_on<P: Platform>(platform: P, options: Options) -> Arc<dyn Engine> {
    visit(platform, options, Start)
}

/// The family that a name belongs to, whatever parameters follow it.
///
/// ```
/// use perimeter_org::organizations::family;
///
/// assert_eq!(family("squeue:2").map(|f| f.name), Some("squeue"));
/// assert!(family("fastest").is_none());
/// ```
pub fn family(name: &str) -> Option<&'static Family> {
    let first = name.trim().split(':').next()?;
    families().find(|f| f.name == first)
}

/// Source files of this crate whose work is handing messages from thread to thread
/// ([`Family::hand_over`]), as `file!()` gives them.
///
/// ```
/// use perimeter_org::organizations::hand_over;
///
/// // Where an account of cache misses puts those of a source file.
/// let share = |file: &str| match hand_over().any(|f| f.ends_with(file)) {
///     true => "the scheduler's",
///     false => "the stack's",
/// };
/// assert_eq!(share("mailbox.rs"), "the scheduler's");
/// ```
pub fn hand_over() -> impl Iterator<Item = &'static str> {
    let shared = [crate::answer::FILE, crate::mailbox::FILE];
    let own = families().flat_map(|f| f.hand_over.iter().copied());
    shared.into_iter().chain(own)
}

impl FromStr for OrgSpec {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<OrgSpec, SpecError> {
        let mut words = s.trim().split(':');
        let first = words.next().unwrap_or_default();
        let Some(family) = families().find(|f| f.name == first) else {
            let known: Vec<&str> = OrgSpec::listed().map(|v| v.name).collect();
            return Err(SpecError::Unknown {
                name: s.to_string(),
                known: known.join(", "),
            });
        };
        (family.parse)(Parts::new(family, words.collect()))
    }
}

/// `up:shared`: it takes calls from any thread, and costs least where there is little to do.
impl Default for OrgSpec {
    fn default() -> OrgSpec {
        spec("up:shared")
    }
}

/// The organization of that name, which this crate wrote.
fn spec(name: &str) -> OrgSpec {
    name.parse()
        .unwrap_or_else(|e| panic!("a registered name is none: {e}"))
}

impl OrgSpec {
    /// Every organization of this build, as it is listed.
    ///
    /// ```
    /// use perimeter_org::OrgSpec;
    ///
    /// let spellings: Vec<&str> = OrgSpec::listed().map(|v| v.name).collect();
    /// println!("one of {}", spellings.join(", "));
    /// assert!(spellings.contains(&"up"));
    /// ```
    pub fn listed() -> impl Iterator<Item = &'static Variant> {
        families().flat_map(|f| f.variants)
    }

    /// The same, with their usual parameters.
    ///
    /// ```
    /// use perimeter_org::OrgSpec;
    ///
    /// // A benchmark that runs under each.
    /// for org in OrgSpec::all() {
    ///     println!("{org}: {}", org.family().title);
    /// }
    /// assert_eq!(OrgSpec::all().len(), OrgSpec::listed().count());
    /// ```
    pub fn all() -> Vec<OrgSpec> {
        Self::listed().map(|v| spec(v.usual)).collect()
    }

    /// One of each family that is to be weighed on a machine of so many cores
    /// ([`Family::recommend`]), but for those that do not take so many.
    ///
    /// ```
    /// use perimeter_org::OrgSpec;
    ///
    /// // Which to try first on four cores.
    /// let candidates = OrgSpec::recommended(4);
    /// println!("{candidates:?}");
    /// assert!(candidates.len() <= OrgSpec::all().len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recommended(cores: usize) -> Vec<OrgSpec> {
        let cores = cores.clamp(1, MAX_GROUPS.into()).to_string();
        families()
            .filter_map(|f| f.recommend)
            .filter_map(|name| name.replace('N', &cores).parse().ok())
            .collect()
    }

    /// Every organization as the test suites run it: [`OrgSpec::all`] but for what their families
    /// would have tested in their place ([`Family::tested`]). A suite that takes its list from here
    /// is joined by new organizations by itself.
    ///
    /// The environment variable `PERIMETER_ORGS`, names with commas between them, puts a list of
    /// one's own in its place.
    ///
    /// ```
    /// use perimeter_org::OrgSpec;
    ///
    /// for org in OrgSpec::tested() {
    ///     println!("testing under {org}");
    /// }
    /// ```
    ///
    /// # Panics
    /// If `PERIMETER_ORGS` holds what is no name.
    #[doc(hidden)] // For suites, which are no part of the interface.
    pub fn tested() -> Vec<OrgSpec> {
        if let Ok(names) = std::env::var("PERIMETER_ORGS") {
            let parse = |s: &str| s.parse().unwrap_or_else(|e| panic!("PERIMETER_ORGS: {e}"));
            return names.split(',').map(parse).collect();
        }
        tested()
    }
}

/// What the families have tested.
fn tested() -> Vec<OrgSpec> {
    let mut all = Vec::new();
    for f in families() {
        for v in f.variants {
            let other = f.tested.iter().find(|(usual, _)| *usual == v.usual);
            all.push(spec(other.map_or(v.usual, |(_, tested)| tested)));
        }
        let more = f.tested.iter().filter(|(usual, _)| usual.is_empty());
        all.extend(more.map(|(_, tested)| spec(tested)));
    }
    all
}

#[cfg(test)]
mod tests;
