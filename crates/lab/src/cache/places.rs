//! Which part of the program an instruction belongs to: by the source file that it comes from.

use crate::{Error, misses::Component};
use addr2line::Loader;
use perimeter::families;
use perimeter_sync::sources;
use std::{fs, path::Path};

/// Instructions up to here in a program's file are remembered.
const LARGEST: usize = 1 << 28;

/// Where an instruction belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// To a component.
    In(Component),
    /// To the simulation that stands for the machine: no access under test.
    Simulation,
    /// To whoever called it: the languages' libraries, and what everybody uses.
    Caller,
}

/// What the files of a crate do, but for those that say of themselves that they do something else.
/// What belongs to nobody here is used by everybody.
const CRATES: &[(&str, Component)] = &[
    ("org", Component::Stack),
    ("tcp", Component::Stack),
    ("stack", Component::Stack),
    ("wire", Component::Stack),
    ("perimeter", Component::Stack),
    ("link", Component::Driver),
    ("lab", Component::Application),
    ("cli", Component::Application),
];

/// The place of a source file.
pub fn of_file(path: &str) -> Origin {
    let Some(path) = in_workspace(path) else {
        return Origin::Caller;
    };
    let among = |files: &[&str]| files.iter().any(|f| covers(f, path));
    if families::hand_over().any(|f| covers(f, path)) || among(sources::HAND_OVER) {
        return Origin::In(Component::Scheduler);
    }
    if among(sources::SIMULATION) {
        return Origin::Simulation;
    }
    if among(sources::LOCKS) {
        return Origin::In(Component::Lock);
    }
    let name = path.split('/').nth(1);
    let found = CRATES.iter().find(|(of, _)| Some(*of) == name);
    found.map_or(Origin::Caller, |(_, component)| Origin::In(*component))
}

/// A path from the folder of the crates on: paths are absolute, or relative to the workspace.
fn in_workspace(path: &str) -> Option<&str> {
    path.rfind("crates/").map(|at| &path[at..])
}

/// Whether a registered file stands for the one at `path`: it is the same, or a part of its module
/// in the folder of that.
fn covers(registered: &str, path: &str) -> bool {
    let file = in_workspace(registered).unwrap_or(registered);
    let module = file.strip_suffix("/mod.rs");
    let module = module.or_else(|| file.strip_suffix(".rs")).unwrap_or(file);
    let behind = path.strip_prefix(module);
    behind.is_some_and(|b| b == ".rs" || b.starts_with('/'))
}

/// The places of a program's instructions, from its line tables.
pub struct Places {
    loader: Loader,
    /// Where the program's file begins in the process.
    base: u64,
    /// What was looked up, by distance from there.
    known: Vec<Option<Origin>>,
}

impl Places {
    /// Of a program whose file begins at `base` in the process that runs it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it can't be read.
    pub fn of_program(program: &Path, base: u64) -> Result<Places, Error> {
        let missing = |e| Error::Unavailable(format!("{}: {e}", program.display()));
        Ok(Places {
            loader: Loader::new(program).map_err(missing)?,
            base,
            known: Vec::new(),
        })
    }

    /// The place of the instruction before `address`.
    pub fn of(&mut self, address: u64) -> Origin {
        let probe = address.wrapping_sub(self.base).wrapping_sub(1);
        let at = probe as usize;
        if let Some(Some(place)) = self.known.get(at) {
            return *place;
        }
        let place = self.look_up(probe);
        if at < LARGEST {
            if at >= self.known.len() {
                self.known.resize(at + 1, None);
            }
            self.known[at] = Some(place);
        }
        place
    }

    /// From the innermost inlined function outwards, the first that belongs somewhere.
    fn look_up(&self, probe: u64) -> Origin {
        // No file is so long, and the library's sums would overflow.
        if probe > i64::MAX as u64 {
            return Origin::Caller;
        }
        let Ok(mut frames) = self.loader.find_frames(probe) else {
            return Origin::Caller;
        };
        while let Ok(Some(frame)) = frames.next() {
            let file = frame.location.and_then(|l| l.file);
            match file.map_or(Origin::Caller, of_file) {
                Origin::Caller => {}
                place => return place,
            }
        }
        Origin::Caller
    }
}

/// Where a program's file begins in this process.
pub fn base(program: &Path) -> Option<u64> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let program = program.to_str()?;
    let line = maps.lines().find(|l| l.ends_with(program))?;
    let mut fields = line.split_whitespace();
    let start = u64::from_str_radix(fields.next()?.split('-').next()?, 16).ok()?;
    let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
    start.checked_sub(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files() {
        let table = [
            (
                "/a/b/crates/tcp/src/tcb/output.rs",
                Origin::In(Component::Stack),
            ),
            (
                "crates/org/src/connp_t/inbox.rs",
                Origin::In(Component::Scheduler),
            ),
            (
                "crates/org/src/connp_t/mod.rs",
                Origin::In(Component::Stack),
            ),
            (
                "crates/org/src/squeue/queue/deep.rs",
                Origin::In(Component::Scheduler),
            ),
            ("/x/crates/sync/src/virt/lock.rs", Origin::Simulation),
            (
                "/x/crates/sync/src/queue/mpsc.rs",
                Origin::In(Component::Scheduler),
            ),
            ("/x/crates/sync/src/owned.rs", Origin::In(Component::Lock)),
            ("/x/crates/sync/src/lane.rs", Origin::Caller),
            ("/x/crates/base/src/buf.rs", Origin::Caller),
            ("/rustc/0/library/core/src/ptr/mod.rs", Origin::Caller),
            ("/home/crates/registry/src/bytes/src/lib.rs", Origin::Caller),
        ];
        for (path, place) in table {
            assert_eq!(of_file(path), place, "{path}");
        }
    }

    #[test]
    fn this_program() {
        let program = std::env::current_exe().unwrap();
        let base = base(&program).unwrap();
        let mut places = Places::of_program(&program, base).unwrap();
        let here = this_program as *const () as usize as u64 + 1;
        for _ in 0..2 {
            assert_eq!(places.of(here), Origin::In(Component::Application));
            assert_eq!(places.of(base), Origin::Caller);
            assert_eq!(places.of(1), Origin::Caller);
        }
    }
}
