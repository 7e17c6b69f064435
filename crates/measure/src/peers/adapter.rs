//! Adapters: programs of ours around stacks that can't be linked into this one, built on demand by
//! the user's own toolchain into the user's cache folder.

use super::stacks::Peer;
use crate::Error;
use std::{
    collections::HashMap,
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Read, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Longest time that building may take: a first one gets the stack's sources, too.
const PATIENCE: Duration = Duration::from_secs(600);
/// The program's name in its folder.
const PROGRAM: &str = "adapter";

/// How an adapter is built.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recipe {
    /// Whose it is.
    pub name: &'static str,
    /// Its sources: name and content.
    pub sources: &'static [(&'static str, &'static str)],
    /// What builds it.
    pub tool: &'static str,
    /// With these arguments, in the folder of the sources; it is to make [`PROGRAM`].
    pub arguments: &'static [&'static str],
    /// What the user needs.
    pub needs: &'static str,
}

const GVISOR: Recipe = Recipe {
    name: "gvisor",
    sources: &[
        ("go.mod", include_str!("../../peers/gvisor/go.mod")),
        ("go.sum", include_str!("../../peers/gvisor/go.sum")),
        ("main.go", include_str!("../../peers/gvisor/main.go")),
        ("work.go", include_str!("../../peers/gvisor/work.go")),
    ],
    tool: "go",
    arguments: &["build", "-o", PROGRAM, "."],
    needs: "the Go toolchain, and its module proxy the first time",
};

const LWIP: Recipe = Recipe {
    name: "lwip",
    sources: &[
        ("adapter.h", include_str!("../../peers/lwip/adapter.h")),
        ("main.c", include_str!("../../peers/lwip/main.c")),
        ("stack.c", include_str!("../../peers/lwip/stack.c")),
    ],
    tool: "cc",
    arguments: &[
        "-O2",
        "-std=gnu11",
        "-I/usr/include/lwip",
        "-o",
        PROGRAM,
        "main.c",
        "stack.c",
        "-llwip",
        "-lpthread",
    ],
    needs: "a C compiler and an installed lwIP with its headers, in Debian liblwip-dev",
};

/// The program of a peer, built if it isn't there yet. Tried once in a process.
///
/// # Errors
/// [`Error::Unavailable`] with what is missing.
pub(super) fn program(peer: Peer) -> Result<PathBuf, Error> {
    type Tried = Option<HashMap<Peer, Result<PathBuf, String>>>;
    static TRIED: Mutex<Tried> = Mutex::new(None);
    let recipe = match peer {
        Peer::Gvisor => GVISOR,
        Peer::Lwip => LWIP,
        Peer::Smoltcp => return Err(Error::Run("smoltcp has no adapter".into())),
    };
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    let tried = tried.get_or_insert_default().entry(peer);
    let outcome = tried.or_insert_with(|| recipe.program(&cache()?));
    outcome.clone().map_err(Error::Unavailable)
}

/// The user's folder for what can be made again.
fn cache() -> Result<PathBuf, String> {
    let set = |name| env::var_os(name).filter(|v| !v.is_empty());
    let folder = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")));
    let folder = folder.filter(|f| f.is_absolute());
    let folder = folder.ok_or("no folder for adapters: neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(folder.join("perimeter").join("adapters"))
}

impl Recipe {
    /// The program in `cache`, built if it isn't there.
    fn program(&self, cache: &Path) -> Result<PathBuf, String> {
        let mut hasher = DefaultHasher::new();
        (self.sources, self.arguments).hash(&mut hasher);
        let folder = cache.join(format!("{}-{:016x}", self.name, hasher.finish()));
        let program = folder.join(PROGRAM);
        if program.exists() {
            return Ok(program);
        }
        // Made elsewhere and then moved, so that there is never a part of one.
        let making = cache.join(format!(".{}-{}", self.name, std::process::id()));
        let made = self.make(&making).and_then(|()| {
            match fs::rename(&making, &folder) {
                // Another process may have been faster.
                Err(_) if program.exists() => Ok(()),
                moved => moved.map_err(|e| self.failed(&format!("{}: {e}", folder.display()))),
            }
        });
        // It is gone if all went well.
        let _ = fs::remove_dir_all(&making);
        made.map(|()| program)
    }

    fn failed(&self, why: &str) -> String {
        let (name, needs) = (self.name, self.needs);
        format!("{name}: its adapter can't be built: {why} (it needs {needs})")
    }

    fn make(&self, folder: &Path) -> Result<(), String> {
        let disk = |e: io::Error| self.failed(&format!("{}: {e}", folder.display()));
        fs::create_dir_all(folder).map_err(disk)?;
        for (name, text) in self.sources {
            fs::write(folder.join(name), text).map_err(disk)?;
        }
        let mut command = Command::new(self.tool);
        command
            .args(self.arguments)
            .current_dir(folder)
            // The user's toolchain as it is; it is not to get itself another one.
            .env("GOTOOLCHAIN", "local")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = command.spawn().map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => self.failed(&format!("there is no `{}`", self.tool)),
            _ => self.failed(&format!("`{}`: {e}", self.tool)),
        })?;
        // Nobody else says why nothing happens for a minute. An error of stderr has no other place
        // to go.
        let _ = writeln!(io::stderr(), "building the adapter of {}, once", self.name);
        let last = finish(child, PATIENCE).map_err(|why| self.failed(&why))?;
        match folder.join(PROGRAM).exists() {
            true => Ok(()),
            false => Err(self.failed(&last)),
        }
    }
}

/// Waits for the end of a program, which is killed if it takes too long; the last line of its
/// standard error.
fn finish(mut child: Child, patience: Duration) -> Result<String, String> {
    let text = child.stderr.take().map(|mut stderr| {
        thread::spawn(move || {
            let mut text = Vec::new();
            // What was read until then is good enough.
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    });
    let end = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(20)),
            ended => {
                // It may have ended by itself meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return Err(match ended {
                    Err(e) => e.to_string(),
                    Ok(_) => format!("it took longer than {} s", patience.as_secs()),
                });
            }
        }
    }
    let text = text.and_then(|t| t.join().ok()).unwrap_or_default();
    let last = text.lines().rfind(|l| !l.trim().is_empty());
    Ok(last.unwrap_or("no word of why").trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Recipe = Recipe {
        name: "good",
        sources: &[("source", "text")],
        tool: "sh",
        arguments: &["-c", "cp source adapter"],
        needs: "a shell",
    };

    #[test]
    fn programs_are_built_once_and_wholly() {
        let cache = tempfile::tempdir().unwrap();
        let cache = cache.path().join("new");
        let program = GOOD.program(&cache).unwrap();
        assert_eq!(fs::read_to_string(&program).unwrap(), "text");
        fs::write(&program, "kept").unwrap();
        assert_eq!(GOOD.program(&cache).unwrap(), program);
        assert_eq!(fs::read_to_string(&program).unwrap(), "kept");
        // Other sources are another program.
        let other = Recipe {
            sources: &[("source", "other")],
            ..GOOD
        };
        assert_ne!(other.program(&cache).unwrap(), program);
        assert_eq!(
            fs::read_dir(&cache).unwrap().count(),
            2,
            "something is left"
        );
    }

    #[test]
    fn what_is_missing_is_said() {
        let cache = tempfile::tempdir().unwrap();
        let absent = Recipe {
            tool: "no-such-toolchain",
            ..GOOD
        };
        let why = absent.program(cache.path()).unwrap_err();
        assert!(why.contains("there is no `no-such-toolchain`"), "{why}");
        assert!(why.contains("it needs a shell"), "{why}");
        let broken = Recipe {
            arguments: &["-c", "echo first >&2; echo 'line 3: wrong' >&2; exit 1"],
            ..GOOD
        };
        let why = broken.program(cache.path()).unwrap_err();
        assert!(why.contains("line 3: wrong"), "{why}");
        assert_eq!(
            fs::read_dir(cache.path()).unwrap().count(),
            0,
            "left behind"
        );
    }

    #[test]
    fn who_takes_too_long_is_killed() {
        let begun = Instant::now();
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let why = finish(child, Duration::from_millis(50)).unwrap_err();
        assert!(why.contains("longer"), "{why}");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
