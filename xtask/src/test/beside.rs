//! What runs beside the tests at the lowest priority, one command after the other.

use std::io::{self, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{Context, Result};

use super::told::{Skipped, pass_on};

/// What is known of it while it goes on.
#[derive(Default)]
struct State {
    /// The one that runs.
    child: Option<Child>,
    /// No further one begins.
    stop: bool,
    failed: bool,
}

/// Commands of which one runs at a time. When this is dropped they end.
pub struct Beside {
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<Result<Skipped>>>,
}

fn state(of: &Mutex<State>) -> MutexGuard<'_, State> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Beside {
    /// Starts the first of `all`, each with what it is called.
    pub fn start(all: Vec<(String, Command)>, start: Instant) -> Beside {
        let shared = Arc::new(Mutex::new(State::default()));
        let of_thread = shared.clone();
        let thread = thread::spawn(move || {
            let mut skipped = Skipped::new();
            for (what, command) in all {
                match one(&of_thread, &what, command, &mut skipped)? {
                    Some(true) => println!("== {what}: passed, {} s so far", seconds(start)),
                    Some(false) => println!("== {what}: failed, {} s so far", seconds(start)),
                    None => break,
                }
                if state(&of_thread).failed {
                    break;
                }
            }
            Ok(skipped)
        });
        Beside {
            state: shared,
            thread: Some(thread),
        }
    }

    /// Whether one has failed.
    pub fn has_failed(&self) -> bool {
        state(&self.state).failed
    }

    /// Waits until all have ended; whether all have succeeded. Adds the tests that were skipped.
    ///
    /// # Errors
    /// One did not start.
    pub fn finish(mut self, skipped: &mut Skipped) -> Result<bool> {
        if let Some(thread) = self.thread.take() {
            for (why, tests) in thread.join().expect("it does not panic")? {
                skipped.entry(why).or_default().extend(tests);
            }
        }
        Ok(!self.has_failed())
    }
}

fn seconds(start: Instant) -> u64 {
    start.elapsed().as_secs()
}

/// Runs one, and prints what it has said when it has ended, lest it be among what others say. Whether
/// it has succeeded; `None`: it did not start, as nothing more is to run.
fn one(
    of: &Mutex<State>,
    what: &str,
    mut command: Command,
    skipped: &mut Skipped,
) -> Result<Option<bool>> {
    let (out, into) = io::pipe()?;
    // A group of its own, as cargo's compilers have to end with it.
    command.process_group(0);
    command.stdin(Stdio::null());
    command.stdout(into.try_clone()?).stderr(into);
    {
        let mut state = state(of);
        if state.stop {
            return Ok(None);
        }
        let child = command.spawn();
        state.child = Some(child.with_context(|| format!("{what} did not start"))?);
    }
    // It has both ends of the pipe for writing.
    drop(command);
    let mut lines = vec![format!("== {what}, beside the others")];
    pass_on(BufReader::new(out), skipped, |line| lines.push(line.into()))?;
    let mut state = state(of);
    let Some(mut child) = state.child.take() else {
        return Ok(None);
    };
    let passed = child.wait()?.success();
    state.failed |= !passed;
    println!("{}", lines.join("\n"));
    Ok(Some(passed))
}

impl Drop for Beside {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        let mut state = state(&self.state);
        state.stop = true;
        if let Some(mut child) = state.child.take() {
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["--", &group]).status();
            let _ = child.wait();
        }
        drop(state);
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (String, Command) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        (script.to_owned(), command)
    }

    #[test]
    fn a_failure_is_seen_and_nothing_begins_behind_it() {
        let file = std::env::temp_dir().join(format!("xtask-beside-{}", std::process::id()));
        let touch = format!("touch {}", file.display());
        let run = |scripts: &[&str]| {
            let all = scripts.iter().map(|s| shell(s)).collect();
            Beside::start(all, Instant::now()).finish(&mut Skipped::new())
        };
        assert!(!run(&["true", "exit 3", &touch]).unwrap());
        assert!(!file.exists());
        assert!(run(&["true", &touch]).unwrap());
        assert!(file.exists());
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn they_end_when_nobody_wants_them_any_more() {
        let began = Instant::now();
        drop(Beside::start(
            vec![shell("sleep 60"), shell("sleep 60")],
            began,
        ));
        assert!(began.elapsed().as_secs() < 30);
    }
}
