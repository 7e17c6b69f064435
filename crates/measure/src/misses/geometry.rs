//! Sizes of caches: the paper's machine, and this one.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::{fmt, fs, path::Path};

/// One cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Bytes.
    pub size: u64,
    /// Lines that share a set.
    pub ways: usize,
    /// Bytes of a line, a power of two.
    pub line: u64,
}

impl Geometry {
    /// How many sets, at least 1. It need not be a power of two.
    pub fn sets(&self) -> usize {
        let way = self.line.saturating_mul(self.ways as u64).max(1);
        (self.size / way).max(1) as usize
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} KiB {}-way, {}-byte lines",
            self.size >> 10,
            self.ways,
            self.line
        )
    }
}

/// What a core's first and second level have to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// A line is in one of them: what the first drops goes to the second (AMD's K8).
    Exclusive,
    /// What is in the first is in the second (AMD since Zen, Intel up to Haswell in part).
    Inclusive,
    /// Each goes by itself; the second is asked where the first misses (cachegrind).
    Independent,
}

/// The data caches that each core has to itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caches {
    /// Name of the machine.
    pub name: String,
    /// First level, data.
    pub l1: Geometry,
    /// Second level.
    pub l2: Geometry,
    /// How they share lines.
    pub sharing: Sharing,
}

impl Caches {
    /// A core of the Opteron 275, on which the paper measured.
    pub fn opteron_275() -> Caches {
        Caches {
            name: "Opteron 275".into(),
            l1: Geometry {
                size: 64 << 10,
                ways: 2,
                line: 64,
            },
            l2: Geometry {
                size: 1 << 20,
                ways: 16,
                line: 64,
            },
            sharing: Sharing::Exclusive,
        }
    }

    /// A core of this machine, as the kernel describes the first. Inclusive, as the kernel does
    /// not say.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the kernel describes no caches of both levels.
    pub fn of_this_machine() -> Result<Caches, Error> {
        Caches::read(Path::new("/sys/devices/system/cpu/cpu0/cache"))
    }

    fn read(folder: &Path) -> Result<Caches, Error> {
        let level = |level| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries
                .filter_map(|e| described(&e.path()))
                .find_map(|(at, geometry)| (at == level).then_some(geometry))
                .ok_or_else(|| {
                    Error::Unavailable(format!(
                        "the kernel describes no data cache of level {level}"
                    ))
                })
        };
        Ok(Caches {
            name: "this machine".into(),
            l1: level(1)?,
            l2: level(2)?,
            sharing: Sharing::Inclusive,
        })
    }
}

/// Level and geometry of a cache that holds data.
fn described(folder: &Path) -> Option<(u64, Geometry)> {
    let text = |name| fs::read_to_string(folder.join(name)).ok();
    let number = |name| text(name)?.trim().parse::<u64>().ok();
    if text("type")?.trim() == "Instruction" {
        return None;
    }
    let size = text("size")?
        .trim()
        .strip_suffix('K')?
        .parse::<u64>()
        .ok()?;
    let geometry = Geometry {
        size: size << 10,
        ways: number("ways_of_associativity")? as usize,
        line: number("coherency_line_size")?,
    };
    let sound = geometry.ways > 0 && geometry.line.is_power_of_two() && geometry.size > 0;
    sound.then_some((number("level")?, geometry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets() {
        let opteron = Caches::opteron_275();
        assert_eq!((opteron.l1.sets(), opteron.l2.sets()), (512, 1024));
        assert_eq!(opteron.l2.to_string(), "1024 KiB 16-way, 64-byte lines");
    }

    #[test]
    fn what_the_kernel_says() {
        let dir = tempfile::tempdir().unwrap();
        let cache = |index: &str, parts: [&str; 5]| {
            let folder = dir.path().join(index);
            fs::create_dir(&folder).unwrap();
            let names = [
                "level",
                "type",
                "size",
                "ways_of_associativity",
                "coherency_line_size",
            ];
            for (name, text) in names.iter().zip(parts) {
                fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
        };
        assert!(Caches::read(dir.path()).is_err());
        cache("index0", ["1", "Instruction", "64K", "4", "64"]);
        cache("index1", ["1", "Data", "48K", "12", "64"]);
        assert!(Caches::read(dir.path()).is_err());
        cache("index2", ["2", "Unified", "1280K", "20", "64"]);
        let read = Caches::read(dir.path()).unwrap();
        assert_eq!((read.l1.size, read.l1.ways), (48 << 10, 12));
        assert_eq!((read.l2.size, read.l2.sets()), (1280 << 10, 1024));
    }
}
