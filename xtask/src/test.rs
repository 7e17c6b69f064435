//! `cargo xtask test`: everything that has to pass, after installing what it needs.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

/// Programs that tests run, and the Debian package of each.
const TOOLS: [(&str, &str); 12] = [
    ("iperf3", "iperf3"),
    ("curl", "curl"),
    ("python3", "python3"),
    ("ip", "iproute2"),
    ("ping", "iputils-ping"),
    ("traceroute", "traceroute"),
    ("tshark", "tshark"),
    ("valgrind", "valgrind"),
    ("chromium", "chromium"),
    ("dnsmasq", "dnsmasq-base"),
    ("dig", "bind9-dnsutils"),
    ("nc", "netcat-openbsd"),
];

/// One command that has to succeed.
struct Step {
    what: &'static str,
    words: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
}

/// Another configuration of every crate below: a folder of its own keeps the rest.
const LOOM: &[(&str, &str)] = &[
    ("RUSTFLAGS", "--cfg loom"),
    ("CARGO_TARGET_DIR", "target/loom"),
];

/// The step that mostly waits.
const TESTS: &str = "tests of all crates";

/// What is built while those wait: the binary of `cargo xtask counts` and the command `perimeter`.
const AHEAD: &str =
    "cargo build --release --quiet --package perimeter-bench --package perimeter-cli --bins";

/// And behind that, where something may be installed, what `cargo xtask supply` uses.
const AHEAD_TOOLS: &str = "cargo xtask supply --only-install";

/// All of them, in order.
const STEPS: [Step; 9] = [
    Step {
        what: "examples, which tests run",
        words: &[
            "build",
            "--profile",
            "test",
            "--workspace",
            "--features",
            "perimeter/testing",
            "--examples",
        ],
        env: &[],
    },
    Step {
        what: "what tests are made of",
        words: &[
            "test",
            "--workspace",
            "--features",
            "perimeter/testing",
            "--tests",
            "--no-run",
        ],
        env: &[],
    },
    Step {
        what: TESTS,
        // What a test that was skipped has said is shown only if that is asked for.
        words: &[
            "test",
            "--workspace",
            "--features",
            "perimeter/testing",
            "--tests",
            "--",
            "--show-output",
        ],
        env: &[],
    },
    Step {
        what: "examples in documentation",
        // By themselves: where output is to be shown each is compiled alone, not all at once.
        words: &[
            "test",
            "--workspace",
            "--features",
            "perimeter/testing",
            "--doc",
        ],
        env: &[],
    },
    Step {
        what: "models of lock-free structures",
        words: &[
            "test",
            "--profile",
            "models",
            "--package",
            "perimeter-sync",
            "--test",
            "loom_event",
            "--test",
            "loom_fanin",
            "--test",
            "loom_inbox",
            "--test",
            "loom_owned",
            "--test",
            "loom_queue",
            "--test",
            "loom_turnstile",
        ],
        env: LOOM,
    },
    Step {
        what: "models of pages, leases and regions",
        words: &[
            "test",
            "--profile",
            "models",
            "--package",
            "perimeter-base",
            "--test",
            "loom_pages",
            "--test",
            "loom_region",
        ],
        env: LOOM,
    },
    Step {
        what: "models of readiness and transmit queues",
        words: &[
            "test",
            "--profile",
            "models",
            "--package",
            "perimeter-stack",
            "--features",
            "testing",
            "--test",
            "loom_poller",
            "--test",
            "loom_port",
            "--test",
            "loom_tasks",
        ],
        env: LOOM,
    },
    Step {
        what: "models of the squeue and of timers that are due",
        words: &[
            "test",
            "--profile",
            "models",
            "--package",
            "perimeter-org",
            "--features",
            "testing",
            "--lib",
            "models",
        ],
        env: LOOM,
    },
    Step {
        what: "instruction counts",
        words: &["xtask", "counts"],
        env: &[],
    },
];

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Args {
    /// Install nothing; tests that miss a program are skipped with a note.
    #[arg(long)]
    no_install: bool,
}

/// Installs what is missing and runs all tests.
///
/// # Errors
/// A command can't be started.
pub fn run(args: &Args) -> Result<ExitCode> {
    if !args.no_install {
        install();
    }
    let start = Instant::now();
    let mut skipped = Skipped::new();
    for step in &STEPS {
        println!("== {}: cargo {}", step.what, step.words.join(" "));
        let ahead = (step.what == TESTS).then(|| Ahead::start(!args.no_install));
        let mut command = Command::new(env!("CARGO"));
        command
            .args(step.words)
            .envs(step.env.iter().copied())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cargo {} did not start", step.words.join(" ")))?;
        if let Some(out) = child.stdout.take() {
            pass_on(BufReader::new(out), &mut skipped, |line| println!("{line}"))?;
        }
        let status = child.wait()?;
        if let Some(ahead) = ahead.filter(|_| status.success()) {
            ahead.finish();
        }
        let took = start.elapsed().as_secs();
        if !status.success() {
            println!("== {}: failed after {took} s", step.what);
            return Ok(ExitCode::FAILURE);
        }
        println!("== {}: passed, {took} s so far", step.what);
    }
    for (why, tests) in &skipped {
        println!("== skipped ({why}): {}", tests.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds at the lowest priority, beside tests. What comes of them is what a later step would have
/// built; that step says so if it does not build. When dropped, they end.
struct Ahead(Option<Child>);

impl Ahead {
    fn start(tools: bool) -> Ahead {
        let mut nice = Command::new("nice");
        let also = if tools { AHEAD_TOOLS } else { "" };
        nice.args(["-n", "19", "sh", "-c", &format!("{AHEAD}; {also}")]);
        // A group of its own: cargo's compilers have to end with it.
        nice.process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ahead(nice.spawn().ok())
    }

    fn finish(mut self) {
        if let Some(mut child) = self.0.take() {
            // Whether it succeeded, the later step finds out.
            let _ = child.wait();
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else {
            return;
        };
        let group = format!("-{}", child.id());
        let mut kill = Command::new("kill");
        let _ = kill.args(["--", &group]).status();
        let _ = child.wait();
    }
}

/// Tests that were skipped, by the reason.
type Skipped = BTreeMap<String, Vec<String>>;

/// What a test prints that is skipped, before the reason.
const SIGNS: [&str; 3] = ["skipped: ", "note: skipped, ", "note: not measured: "];

/// Passes on the lines of a test run, but for what tests that passed have printed, of which it only
/// keeps who was skipped and why.
fn pass_on(
    out: impl BufRead,
    skipped: &mut Skipped,
    mut print: impl FnMut(&str),
) -> io::Result<()> {
    let (mut hidden, mut test) = (false, String::new());
    for line in out.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        hidden = match &*line {
            "successes:" => true,
            "failures:" => false,
            l => hidden && !l.starts_with("test result: "),
        };
        if !hidden {
            print(&line);
            continue;
        }
        let name = line.strip_prefix("---- ");
        if let Some(name) = name.and_then(|l| l.strip_suffix(" stdout ----")) {
            test = name.to_owned();
        }
        if let Some(why) = SIGNS.iter().find_map(|s| line.strip_prefix(s)) {
            let tests = skipped.entry(why.to_owned()).or_default();
            if tests.last() != Some(&test) {
                tests.push(test.clone());
            }
        }
    }
    Ok(())
}

/// Installs the Debian packages of programs that are missing. Without root, or on another
/// system, it says what to install and goes on.
fn install() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = |name: &str| std::env::split_paths(&path).any(|d| Path::new(&d).join(name).exists());
    let missing: Vec<&str> = TOOLS
        .iter()
        .filter(|(tool, _)| !here(tool))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return;
    }
    println!("== installing {}", missing.join(" "));
    let apt = |words: &[&str]| {
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(words)
            .stdout(std::process::Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    };
    let mut words = vec!["install", "-y", "-q", "--no-install-recommends"];
    words.extend(&missing);
    if !(apt(&["update", "-q"]) && apt(&words)) {
        println!(
            "== could not install them (that needs root and Debian's apt-get); tests that use \
             them are skipped. By hand: apt-get install {}",
            missing.join(" ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_skipped_is_kept_and_what_passed_is_not_printed() {
        let out = "\
running 3 tests
test a ... ok

successes:

---- a stdout ----
chatter
skipped: no namespaces

---- b stdout ----
skipped: no namespaces

successes:
    a
    b

failures:

---- c stdout ----
it broke

test result: FAILED. 2 passed; 1 failed
";
        let (mut skipped, mut printed) = (Skipped::new(), Vec::new());
        pass_on(out.as_bytes(), &mut skipped, |l| printed.push(l.to_owned())).unwrap();
        let tests = ["a".to_string(), "b".to_string()];
        assert_eq!(skipped["no namespaces"], tests);
        let printed = printed.join("\n");
        assert!(!printed.contains("chatter"), "{printed}");
        for kept in ["test a ... ok", "it broke", "test result: FAILED"] {
            assert!(printed.contains(kept), "{printed}");
        }
    }
}
