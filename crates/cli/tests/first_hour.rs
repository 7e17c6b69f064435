//! The first hour: every command that the README and the book show, as somebody meets it who has
//! no privileges. It has to work, and to print what the text beside it says.
//!
//! The lists below and the texts have to agree: a command that is in one of them only is an error.
//! Longer runs are shortened by words that are replaced, and only by those.

mod patience;

use patience::Patience;
use perimeter_interop::program::copy;
use std::{
    collections::HashSet,
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// What becomes of a command here.
enum Play {
    /// It runs, with these words replaced, and prints all of these; `|` stands between things of
    /// which one is enough.
    Runs(
        &'static [(&'static str, &'static str)],
        &'static [&'static str],
    ),
    /// It does not run here; why.
    Elsewhere(&'static str),
}
use Play::{Elsewhere, Runs};

const SHORT: (&str, &str) = ("--quick", "--conns 6 --seconds 0.2 --repeat 1");
/// The answer; on a machine too busy for one, why there is none.
const FAST: &str = "Fastest on this machine|INVALID";

/// In the order of a first hour.
const HOUR: &[(&str, Play)] = &[
    ("cargo xtask test", Elsewhere("runs this")),
    (
        "cargo install --path crates/cli",
        Elsewhere("builds it again"),
    ),
    (
        "cargo run --release -- bench --quick",
        Runs(&[SHORT], &[FAST, "up", "Gb/s"]),
    ),
    (
        "perimeter bench --quick",
        Runs(
            &[SHORT, ("bench", "bench --org up,squeue:2")],
            &[FAST, "squeue:2"],
        ),
    ),
    (
        "cargo run --release -- recommend",
        Runs(
            &[("recommend", "recommend --org up:shared,connp-l:8")],
            // What it can say of each depends on the machine.
            &[
                "On this machine",
                "sending:",
                "receiving:",
                "messages:",
                "short connections:",
            ],
        ),
    ),
    ("perimeter recommend", Elsewhere("the same")),
    (
        "perimeter doctor",
        Runs(&[], &["cores", "distance", "memory"]),
    ),
    (
        "perimeter orgs",
        Runs(&[], &["up", "connp-l:N", "squeue:N", "pef:vertical"]),
    ),
    (
        "cargo build --release && sudo target/release/perimeter serve",
        Elsewhere("tests/serve.rs"),
    ),
    ("sudo perimeter serve", Elsewhere("tests/serve.rs")),
    (
        "sudo perimeter serve --control stack.sock",
        Elsewhere("tests/serve.rs"),
    ),
    (
        "unshare -Urn sh -c 'perimeter serve & sleep 1; curl -s http://10.99.0.2/; kill $!'",
        Elsewhere("tests/serve.rs"),
    ),
    (
        "perimeter bench --org up,connp-l:128 --conns 6,192 --seconds 10 --repeat 5",
        Runs(
            &[("10 --repeat 5", "0.2 --repeat 1")],
            &[FAST, "192", "connp-l:128", "of best"],
        ),
    ),
    (
        "perimeter bench --org up,connp-l:128,linux --conns 1,6,192,16384",
        Runs(
            &[("1,6,192,16384", "1 --seconds 0.2 --repeat 1")],
            &["linux", "up", "CPU ns/seg"],
        ),
    ),
    (
        "perimeter bench --org connp-l:128 --conns 192 --inbound affine --json -",
        Runs(
            &[("--json", "--seconds 0.2 --repeat 1 --json")],
            &["\"runs\"", "\"connp-l:128\"", "\"affine\""],
        ),
    ),
    (
        "perimeter bench --org all --conns 192 --seconds 1",
        Runs(
            &[("192 --seconds 1", "6 --seconds 0.1 --repeat 1")],
            &["msgp", "connp-t", "squeue", "streams", "pef:horizontal"],
        ),
    ),
    (
        "perimeter bench --help",
        Runs(&[], &["Usage: perimeter bench", "Examples:", "Exit status"]),
    ),
    (
        "perimeter bench --live --org msgp,connp-l:8,squeue:2 --conns 192 --seconds 5",
        Elsewhere("tests/live.rs, on a terminal"),
    ),
    (
        "perimeter bench --listen 0.0.0.0",
        Elsewhere("needs another machine; lab's net::tests"),
    ),
    (
        "perimeter bench --connect HOST --org linux",
        Elsewhere("needs another machine; lab's net::tests"),
    ),
    (
        "perimeter lab list",
        Runs(&[], &["throughput", "offload", "pef-latency"]),
    ),
    (
        "perimeter lab show throughput",
        Runs(&[], &["name = \"throughput\"", "[[series]]"]),
    ),
    (
        "perimeter lab run throughput --quick --out monday",
        Runs(&[("throughput", "one.toml")], &["monday/report.html"]),
    ),
    (
        "perimeter lab report monday",
        Runs(&[], &["monday/report.html"]),
    ),
    (
        "perimeter lab show groups > mine.toml",
        Runs(
            &[("mine.toml", "shown.toml && cat shown.toml")],
            &["name = \"groups\""],
        ),
    ),
    (
        "perimeter lab run mine.toml --quick --out mine",
        Elsewhere("the same, of another plan"),
    ),
    (
        "perimeter lab run all --quick",
        Elsewhere("takes ten minutes"),
    ),
    (
        "perimeter lab trace --org msgp",
        Runs(&[], &["take conn_hashtable", "release conn_hashtable"]),
    ),
    (
        "perimeter ss --control stack.sock",
        Runs(&[], &["ESTABLISHED", "10.1.0.2:5001"]),
    ),
    (
        "sudo perimeter ss --control stack.sock",
        Elsewhere("the same, with root's stack"),
    ),
    (
        "perimeter top --control stack.sock",
        Runs(
            &[("top", "top --batch --interval 0.2 --count 2")],
            &["10.1.0.2:5001"],
        ),
    ),
    (
        "perimeter stat --control stack.sock --interval 1",
        Runs(
            &[("--interval 1", "--interval 0.2 --count 2")],
            &["rx_frames"],
        ),
    ),
    (
        "sudo perimeter stat --control stack.sock",
        Elsewhere("the same, with root's stack"),
    ),
    (
        "sudo perimeter pcap --control stack.sock --count 10",
        Elsewhere("the same, with root's stack"),
    ),
    (
        "perimeter pcap --control stack.sock -w out.pcapng 'tcp port 80 and not host 10.0.0.9'",
        Runs(
            &[("port 80", "port 5001"), ("pcap", "pcap --count 5")],
            &["5 frames"],
        ),
    ),
    (
        "perimeter pcap --control stack.sock -w out.pcapng 'tcp port 80'",
        Elsewhere("the same"),
    ),
    (
        "perimeter trace --control stack.sock 0:3.1 --count 20",
        Runs(&[("20", "3")], &["seq", "ack", "cwnd"]),
    ),
    (
        "perimeter gateway --tun tun0 --to socks5://127.0.0.1:1080 --dns 9.9.9.9",
        Elsewhere("tokio/tests/gateway_tun.rs"),
    ),
    (
        "cargo run --release -p perimeter --example echo",
        Elsewhere("an example; all are compiled by the tests"),
    ),
    (
        "cargo run --release -p perimeter --example echo -- --device packet:eth1 --address 10.9.0.2/24",
        Elsewhere("needs such an interface"),
    ),
    (
        "cargo run --release -p perimeter --example send_path -- up 6",
        Elsewhere("an optimised build"),
    ),
    (
        "cargo run --release -p perimeter --example tiny_org",
        Elsewhere("perimeter/tests/tiny_org.rs"),
    ),
    (
        "cargo run --release -p perimeter-tokio --example tokio_http",
        Elsewhere("tokio/tests/examples.rs"),
    ),
    (
        "sudo target/release/examples/tokio_http --device tap:pm0    # then: curl http://10.99.0.2/bytes/1000",
        Elsewhere("interop/tests/kernel"),
    ),
];

/// The commands of the README and of the book: the lines of code blocks that name no language.
fn shown() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md")];
    let book = fs::read_dir(root.join("docs/book/src")).expect("the book");
    files.extend(book.flatten().map(|f| f.path()));
    files.retain(|f| f.extension().is_some_and(|e| e == "md"));
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(&file).expect("readable");
        let (mut within, mut plain) = (false, false);
        for line in text.lines() {
            if let Some(language) = line.strip_prefix("```") {
                within = !within;
                plain = within && language.is_empty();
            } else if plain && !line.is_empty() {
                all.push((line.to_owned(), name.to_string()));
            }
        }
        assert!(!within, "{name}: a code block has no end");
    }
    all
}

#[test]
fn the_texts_show_what_is_tried_here() {
    let shown = shown();
    let tried: HashSet<&str> = HOUR.iter().map(|(line, _)| *line).collect();
    for (line, file) in &shown {
        assert!(
            tried.contains(line.as_str()),
            "{file} shows `{line}`, which is not tried"
        );
    }
    let shown: HashSet<&str> = shown.iter().map(|(line, _)| line.as_str()).collect();
    for line in tried {
        assert!(shown.contains(line), "no text shows `{line}`");
    }
}

/// The chapters that the book lists are there, and all that are there are listed; so are drawings.
#[test]
fn the_book_is_whole() {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src");
    let mut named = HashSet::new();
    for file in fs::read_dir(&book).expect("the book").flatten() {
        let Ok(text) = fs::read_to_string(file.path()) else {
            continue;
        };
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap_or_default();
            if !link.starts_with("http") {
                let to = book.join(link.split('#').next().unwrap_or_default());
                assert!(to.is_file(), "{:?} leads to {link}", file.path());
                named.insert(to);
            }
        }
    }
    for folder in [book.clone(), book.join("img")] {
        for file in fs::read_dir(folder).expect("a folder").flatten() {
            let path = file.path();
            let is_page = path.is_file() && !path.ends_with("SUMMARY.md");
            assert!(
                !is_page || named.contains(&path),
                "nobody leads to {path:?}"
            );
        }
    }
}

/// A folder for a user without privileges, with the command in their path.
struct Home {
    folder: tempfile::TempDir,
    root: bool,
}

const NOBODY: u32 = 65_534;

impl Home {
    fn new() -> Home {
        let folder = tempfile::tempdir().expect("a folder");
        let root = rustix::process::geteuid().is_root();
        let to = |name: &str| folder.path().join(name);
        fs::create_dir(to("bin")).expect("bin");
        let built = Path::new(env!("CARGO_BIN_EXE_perimeter"));
        for program in ["perimeter", "perimeter-lab"] {
            let from = built.with_file_name(program);
            assert!(from.exists(), "`cargo test --workspace` builds both");
            copy(from, &to("bin").join(program));
        }
        fs::write(to("one.toml"), ONE).expect("a plan");
        if root {
            let open = fs::Permissions::from_mode(0o755);
            for program in ["bin/perimeter", "bin/perimeter-lab"] {
                fs::set_permissions(to(program), open.clone()).expect("open");
            }
            fs::set_permissions(folder.path(), open).expect("open");
            std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("his");
        }
        Home { folder, root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn shell(&self, line: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut c = Command::new("sh");
        c.args(["-c", line])
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("HOME", self.folder.path())
            .env("NO_COLOR", "1")
            .env_remove("PERIMETER_CONTROL")
            .env_remove("CARGO")
            .stdin(Stdio::null());
        if self.root {
            c.uid(NOBODY).gid(NOBODY);
        }
        c
    }
}

/// A plan that takes a second.
const ONE: &str = r#"
name = "one"
title = "One run"
asks = "Does it work?"
metric = "goodput"
[x]
setting = "connections"
values = [6]
quick = [6]
[quick]
seconds = 0.1
repeats = 2
[normal]
seconds = 0.1
repeats = 2
[full]
seconds = 1
repeats = 2
[[series]]
org = "up"
[[series]]
org = "squeue:2"
"#;

struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A stack that carries something, with a control socket.
fn stack(home: &Home) -> Ends {
    let line = "exec perimeter bench --org pef:vertical --conns 6 --threads 1 --seconds 60 \
                --repeat 1 --control stack.sock";
    let mut command = home.shell(line);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = Ends(command.spawn().expect("a benchmark"));
    let asks = || {
        let told = home.shell("perimeter ss --control stack.sock").output();
        told.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("ESTABLISHED"))
    };
    let mut patience = Patience::new(Duration::from_secs(60));
    while !asks() {
        assert!(patience.lasts(), "the benchmark opens no connections");
        thread::sleep(Duration::from_millis(50));
    }
    child
}

#[test]
fn an_hour_without_privileges() {
    let home = Home::new();
    let mut running = None;
    for (line, play) in HOUR {
        let (changes, expected) = match play {
            Runs(changes, expected) => (changes, expected),
            Elsewhere(why) => {
                println!("`{line}` does not run here: {why}");
                continue;
            }
        };
        let mut run = line.replace("cargo run --release -- ", "perimeter ");
        for (from, to) in *changes {
            assert!(run.contains(from), "`{line}` has no `{from}`");
            run = run.replacen(from, to, 1);
        }
        if run.contains("--control") && running.is_none() {
            running = Some(stack(&home));
        }
        let out = home
            .shell(&format!("timeout 120 {run}"))
            .output()
            .expect("sh");
        let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "`{run}`: {}\n{text}", out.status);
        // Wherever lines are broken.
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in *expected {
            assert!(
                part.split('|').any(|p| words.contains(p)),
                "`{run}` does not say `{part}`:\n{text}"
            );
        }
    }
}
