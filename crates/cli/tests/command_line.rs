//! The command line as a user meets it: what is refused and how, what is printed where.

mod patience;

use assert_cmd::Command;
use patience::Patience;
use perimeter_interop::program::copy;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
    time::Duration,
};

fn perimeter(arguments: &[&str], directory: &Path) -> assert_cmd::assert::Assert {
    Command::cargo_bin("perimeter")
        .unwrap()
        .args(arguments)
        .current_dir(directory)
        .env("NO_COLOR", "1")
        .timeout(Duration::from_secs(40))
        .assert()
}

/// Without the lab's program beside it, the command says how to come by that; its help it knows.
#[test]
fn without_the_lab() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("perimeter");
    copy(env!("CARGO_BIN_EXE_perimeter"), &program);
    let run = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words).env_remove("CARGO").assert()
    };
    let refused = run(&["lab", "list"]).code(2).get_output().clone();
    assert!(refused.stdout.is_empty());
    let line = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    for said in ["perimeter-lab", "cargo build", "cargo install"] {
        assert!(line.contains(said), "{said}: {line}");
    }
    let help = run(&["lab", "run", "--help"])
        .success()
        .get_output()
        .clone();
    assert!(String::from_utf8_lossy(&help.stdout).contains("--resume"));
}

/// Each is refused with exit code 2, one line that names the culprit, nothing on standard output
/// and nothing left behind.
#[test]
fn bad_input() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    let table: &[(&[&str], &str)] = &[
        (&[], "subcommand"),
        (&["bank"], "bank"),
        (&["orgs", "extra"], "extra"),
        (&["doctor", "extra"], "extra"),
        (&["bench", "--org", "msgq"], "did you mean `msgp`?"),
        (&["bench", "--org", "lunix"], "did you mean `linux`?"),
        (&["bench", "--org", "frobnicate"], "`perimeter orgs` lists"),
        (
            &["bench", "--org", "null", "--device", "pair"],
            "null only sends",
        ),
        (&["bench", "--compare", "missing.json"], "missing.json"),
        (&["bench", "--compare", "file"], "not a report"),
        (&["bench", "--org", "all,up"], "`up` twice"),
        (&["bench", "--org", "up,,linux"], "unknown organization ``"),
        (&["bench", "--org", "connp-l:0"], "from 1 to 1024"),
        (&["bench", "--org", "linux,linux"], "twice"),
        (&["bench", "--conns", "0"], "from 1 to"),
        (&["bench", "--conns", "6,six"], "six"),
        (&["bench", "--conns", "6,6"], "twice"),
        (&["bench", "--conns", "99999999999999999999"], "from 1 to"),
        (&["bench", "--threads", "0"], "from 1 to 256"),
        (&["bench", "--threads", "-2"], "-2"),
        (&["bench", "--nics", "0"], "from 1 to 256"),
        (&["bench", "--udp=7"], "from 8 to"),
        (&["bench", "--udp=1453", "--ipv6"], "from 8 to 1452"),
        (&["bench", "--udp", "--exchange", "64"], "--udp"),
        (&["bench", "--ipv6", "--mtu", "1279"], "1280"),
        (&["bench", "--ipv6", "--org", "null,up"], "null is of IPv4"),
        (
            &["bench", "--ipv6", "--org", "up,null:tcp"],
            "null:tcp is of IPv4",
        ),
        (
            &["bench", "--device", "eth0"],
            "known: mem, tap, tun, packet, xdp, pair",
        ),
        (
            &["bench", "--direction", "up"],
            "known: send, receive, both",
        ),
        (&["bench", "--inbound", "irq"], "known: nic, thread, affine"),
        (&["bench", "--rtt", "50"], "unit"),
        (&["bench", "--rtt", "-1us"], "must not be negative"),
        (&["bench", "--rtt", "2h"], "unit"),
        (&["bench", "--link-gbps", "0"], "Gb/s"),
        (&["bench", "--link-gbps", "nan"], "not a number"),
        (&["bench", "--link-gbps", "-1"], "must not be negative"),
        (&["bench", "--write-size", "0"], "from 1 to"),
        (&["bench", "--seconds", "0"], "seconds"),
        (&["bench", "--seconds", "-1"], "-1"),
        (&["bench", "--repeat", "0"], "from 1 to 1000"),
        (&["bench", "--live"], "--live needs a terminal"),
        (&["bench", "--live", "--json", "-"], "--json needs a file"),
        (&["bench", "--live", "--listen", "::1"], "--live"),
        (&["bench", "--jsn", "-"], "--json"),
        (&["bench", "--device", "xdp:eth0"], "give --connect"),
        (&["bench", "--device", "raw:eth0"], "packet:INTERFACE"),
        (
            &["bench", "--connect", "127.0.0.1", "--device", "xdp"],
            "name an interface",
        ),
        (
            &[
                "bench",
                "--org",
                "null",
                "--device",
                "tun",
                "--direction",
                "receive",
            ],
            "null only sends",
        ),
        (&["bench", "--json", "missing/x.json"], "missing/x.json"),
        (&["bench", "--json", "."], "directory"),
        (&["bench", "--json", "file/x.json"], "file/x.json"),
        (&["bench", "--json", ""], "--json"),
        (&["bench", "--control", "missing/s"], "missing/s"),
        (&["bench", "--control", "file"], "already exists"),
        (
            &["bench", "--reconnect", "--device", "mem"],
            "does not close",
        ),
        (
            &["bench", "--exchange", "64", "--coalescing", "cork"],
            "needs --coalescing nodelay",
        ),
        (&["bench", "--listen", "nowhere."], "nowhere."),
        (&["bench", "--listen", "192.0.2.1"], "192.0.2.1:7471"),
        (&["bench", "--listen", "127.0.0.1", "--org", "up"], "--org"),
        (&["bench", "--runs", "1"], "--listen"),
        (&["bench", "--connect", "127.0.0.1:1"], "127.0.0.1:1"),
        (&["bench", "--connect", "::1"], "HOST:PORT"),
        (&["bench", "--connect", "127.0.0.1:x"], "127.0.0.1:x"),
        (
            &["bench", "--connect", "127.0.0.1", "--org", "up"],
            "needs --device tap:NAME",
        ),
        (
            &["bench", "--connect", "127.0.0.1", "--device", "tap:tap0"],
            "--address",
        ),
        (
            &[
                "bench",
                "--connect",
                "127.0.0.1",
                "--device",
                "tap:t",
                "--address",
                "1",
            ],
            "as 10.0.0.2/24",
        ),
        (&["bench", "--sink"], "--connect"),
        (&["recommend", "extra"], "extra"),
        (&["recommend", "--org", "linux"], "linux"),
        (&["recommend", "--org", "up"], "two organizations or more"),
        (&["recommend", "--org", "up,up"], "`up` twice"),
        (&["serve", "extra"], "extra"),
        (&["serve", "--org", "upp"], "did you mean `up`?"),
        (&["serve", "--address", "10.99.0.2"], "prefix length"),
        (&["serve", "--address", "10.99.0.2/33"], "10.99.0.2/33"),
        (&["serve", "--address", "10.99.0.2/32"], "shorter prefix"),
        (&["serve", "--address", "fd99::2/128"], "shorter prefix"),
        (&["serve", "--address", "10.99.0.0/24"], "--address: "),
        (&["serve", "--address", "127.0.0.1/8"], "--address: "),
        (&["serve", "--address", "224.0.0.1/4"], "--address: "),
        (&["serve", "--address", "ff02::1/64"], "--address: "),
        (&["serve", "--address", "ten/24"], "ten/24"),
        (&["serve", "--port", "0"], "0"),
        (&["serve", "--port", "65536"], "65536"),
        (&["serve", "--threads", "0"], "1..=64"),
        (
            &["serve", "--org", "up", "--threads", "2"],
            "`up:shared` is the same for several",
        ),
        (&["serve", "--device", "eth0"], "eth0"),
        (&["serve", "--device", "packet:eth0"], "tap[:NAME]"),
        (
            &["serve", "--device", "tap:sixteen-bytes-xx"],
            "no interface name",
        ),
        (&["serve", "--device", "tap:a/b"], "no interface name"),
        (&["lab"], "needs a subcommand"),
        (&["lab", "report"], "<DIR>"),
        (&["lab", "trace", "--org", "msgpp"], "did you mean `msgp`?"),
        (&["gateway", "--tun", "t0"], "--to"),
        (&["gateway", "--tun", "t0", "--to", "ftp://x"], "ftp://x"),
        (&["ss", "--control", "none.sock"], "none.sock"),
        (&["trace", "--control", "none.sock", "0:1"], "none.sock"),
        (&["trace", "--control", "none.sock"], "<CONNECTION>"),
    ];
    for (arguments, culprit) in table {
        let output = perimeter(arguments, directory.path()).get_output().clone();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        assert!(stderr.contains(culprit), "{arguments:?}: {stderr}");
        assert!(!stderr.contains('\u{1b}'), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    let left = fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 1, "something was left behind");
}

#[test]
fn names_version_and_help() {
    let here = Path::new(".");
    let text = |arguments: &[&str]| {
        let output = perimeter(arguments, here).success().get_output().clone();
        String::from_utf8(output.stdout).unwrap()
    };
    let names = text(&["orgs"]);
    for name in ["up", "up:netisr", "up:shared", "connp-l:N"] {
        assert!(names.lines().any(|l| l == name), "{names}");
    }
    let list: serde_json::Value = serde_json::from_str(&text(&["orgs", "--json"])).unwrap();
    assert_eq!(list.as_array().unwrap().len(), names.lines().count());
    for entry in list.as_array().unwrap() {
        assert!(entry["name"].is_string() && entry["summary"].is_string());
        assert!(entry["default"].is_string());
    }
    let version = text(&["--version"]);
    assert_eq!(
        version,
        concat!("perimeter ", env!("CARGO_PKG_VERSION"), "\n")
    );
    for flag in [
        "--org",
        "--conns",
        "--device",
        "--direction",
        "--inbound",
        "--rtt",
        "--threads",
        "--nics",
        "--link-gbps",
        "--write-size",
        "--locks",
        "--seconds",
        "--repeat",
        "--quick",
        "--reconnect",
        "--listen",
        "--connect",
        "--sink",
        "--address",
        "--json",
        "Examples",
    ] {
        assert!(text(&["bench", "--help"]).contains(flag), "{flag}");
    }
}

/// What shells complete by, and a manual page for each command.
#[test]
fn shells_and_man_know_the_commands() {
    let here = Path::new(".");
    for shell in ["bash", "zsh", "fish"] {
        let output = perimeter(&["completions", shell], here)
            .success()
            .get_output()
            .clone();
        let text = String::from_utf8(output.stdout).unwrap();
        for want in ["bench", "gateway", "--snap-len"] {
            let want = if shell == "fish" {
                want.trim_start_matches('-')
            } else {
                want
            };
            assert!(text.contains(want), "{shell}: {want}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().to_str().unwrap();
    perimeter(&["man", to], here).success();
    let page = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(page("perimeter.1").contains("perimeter\\-bench(1)"));
    for name in [
        "perimeter-bench.1",
        "perimeter-lab-run.1",
        "perimeter-pcap.1",
    ] {
        assert!(page(name).contains("Exit status"), "{name}");
    }
    perimeter(&["man", "/no/such/place"], here)
        .failure()
        .code(2);
    perimeter(&["completions", "tcsh"], here).failure().code(2);
}

/// A short benchmark of the host's own sockets, as JSON on standard output and nothing else. Where
/// namespaces are not permitted it falls back to loopback and says so.
#[test]
fn measures_the_hosts_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "bench",
        "--org",
        "linux",
        "--conns",
        "2,12",
        "--seconds",
        "0.3",
        "--repeat",
        "2",
        "--nics",
        "2",
        "--json",
        "-",
    ];
    let output = perimeter(&arguments, directory.path())
        .success()
        .get_output()
        .clone();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_eq!(run["org"], "linux");
        assert!(run["stack_ns_per_segment"].is_null());
        assert!(run["cpu_ns_per_segment"].as_f64().unwrap() > 0.0);
        let goodput = &run["goodput_mbps"];
        let of = |key: &str| goodput[key].as_f64().unwrap();
        assert!(of("min") > 1.0 && of("min") <= of("median") && of("median") <= of("max"));
        assert_eq!(run["samples"].as_array().unwrap().len(), 2);
        let device = run["device"].as_str().unwrap();
        assert_eq!(run["comparable"], device.starts_with("veth"));
        if !device.starts_with("veth") {
            eprintln!("note: namespaces are not permitted here; loopback was measured");
        }
    }
    assert_eq!(report["settings"]["seconds"], 0.3);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// Our organizations and the null stack over the memory NIC: the accounting holds however busy the
/// machine is.
#[test]
fn measures_our_organizations() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "bench",
        "--org",
        "null,up,connp-l:8",
        "--conns",
        "6",
        "--seconds",
        "0.4",
        "--repeat",
        "1",
        "--json",
        "-",
    ];
    let output = perimeter(&arguments, directory.path())
        .success()
        .get_output()
        .clone();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let names: Vec<_> = runs.iter().map(|r| r["org"].as_str().unwrap()).collect();
    assert_eq!(names, ["null", "up", "connp-l:8"]);
    for run in runs {
        assert_eq!(run["device"], "mem");
        assert_eq!(run["valid"], true, "{run}");
        assert!(run["stack_ns_per_segment"]["median"].as_f64().unwrap() > 0.0);
        assert!(run["goodput_mbps"]["median"].as_f64().unwrap() > 1.0);
    }
}

/// What --exchange and --reconnect can't do without is their default.
#[test]
fn exchanges_and_reconnections_need_no_more_words() {
    let directory = tempfile::tempdir().unwrap();
    let short = "--org up --conns 1 --seconds 0.1 --repeat 1 --json -";
    for (asked, setting, value) in [
        ("bench --exchange 64", "coalescing", "nodelay"),
        ("bench --reconnect", "device", "pair"),
    ] {
        let arguments: Vec<&str> = asked.split(' ').chain(short.split(' ')).collect();
        let output = perimeter(&arguments, directory.path())
            .success()
            .get_output()
            .clone();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["settings"][setting], value, "{asked}");
    }
}

/// TAP works, or is refused with one line; over IPv6 as over IPv4, and the report says so.
#[test]
fn measures_over_tap() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "bench",
        "--ipv6",
        "--device",
        "tap",
        "--org",
        "up",
        "--conns",
        "6",
        "--seconds",
        "0.3",
        "--repeat",
        "1",
        "--json",
        "-",
    ];
    let assert = perimeter(&arguments, directory.path());
    let output = assert.get_output();
    if output.status.code() == Some(2) {
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains("--device tap"), "{stderr}");
        eprintln!("note: not measured: {stderr}");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["settings"]["family"], "ipv6");
    let run = &report["runs"][0];
    assert_eq!((&run["org"], &run["device"]), (&"up".into(), &"tap".into()));
    assert!(run["stack_ns_per_segment"].is_null());
    assert!(run["cpu_ns_per_segment"].as_f64().unwrap() > 0.0);
}

/// The table goes to standard output and the JSON to its file, whole.
#[test]
fn table_and_file() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "bench",
        "--org",
        "linux:pinned",
        "--conns",
        "3",
        "--seconds",
        "0.2",
        "--repeat",
        "1",
        "--json",
        "result.json",
    ];
    let output = perimeter(&arguments, directory.path())
        .success()
        .get_output()
        .clone();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.contains("linux:pinned") && table.contains("Gb/s"),
        "{table}"
    );
    let text = fs::read_to_string(directory.path().join("result.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["runs"][0]["connections"], 3);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

/// Runs so far, from the numbers of `result.json`, compared with themselves: nothing has changed.
#[test]
fn compares_with_an_earlier_report() {
    let directory = tempfile::tempdir().unwrap();
    let bench = [
        "bench",
        "--org",
        "linux",
        "--conns",
        "2",
        "--seconds",
        "0.2",
    ];
    let once = [&bench[..], &["--json", "result.json"]].concat();
    perimeter(&once, directory.path()).success();
    let again = [&bench[..], &["--compare", "result.json"]].concat();
    let output = perimeter(&again, directory.path()).success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(text.contains("Compared with the earlier report"), "{text}");
    assert!(text.contains("now/before"), "{text}");
    assert!(!text.contains("not the same in both"), "{text}");
}

/// What is there depends on the machine; how it is said does not.
#[test]
fn the_doctor_tells_what_is_missing_and_how_to_mend_it() {
    let directory = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let output = perimeter(arguments, directory.path()).success();
        String::from_utf8(output.get_output().stdout.clone()).unwrap()
    };
    let text = said(&["doctor"]);
    assert!(
        text.lines().next().unwrap().contains("as they should be"),
        "{text}"
    );
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let checks: serde_json::Value = serde_json::from_str(&said(&["doctor", "--json"])).unwrap();
    for check in checks.as_array().unwrap() {
        let well = check["state"] == "ok";
        assert_eq!(check["mend"].is_string(), !well, "{check}");
        assert!(text.contains(check["name"].as_str().unwrap()), "{text}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// Ctrl-C ends it at once, and what is complete is printed.
#[test]
fn an_interrupt_prints_what_is_complete() {
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("perimeter"))
        .args(["bench", "--org", "linux", "--conns", "2"])
        .args(["--seconds", "0.2", "--repeat", "1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Long enough for a run to be complete, on a busy machine too.
    std::thread::sleep(Duration::from_secs(8));
    let killed = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    let mut patience = Patience::new(Duration::from_secs(30));
    while child.try_wait().unwrap().is_none() {
        if !patience.lasts() {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(
        text.contains("linux") && text.contains("of 1000 runs were complete"),
        "{text}"
    );
}

/// Two processes over loopback: one listens for one run, the other measures and reports it.
#[test]
fn measures_between_two_processes() {
    let mut server = std::process::Command::new(env!("CARGO_BIN_EXE_perimeter"))
        .args(["bench", "--listen", "127.0.0.1:0", "--runs", "1"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(server.stdout.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    let address = first.strip_prefix("listening on ").unwrap().to_string();
    let arguments = [
        "bench",
        "--connect",
        &address,
        "--org",
        "linux",
        "--conns",
        "3",
        "--direction",
        "both",
        "--seconds",
        "0.3",
        "--repeat",
        "1",
        "--json",
        "-",
    ];
    let output = perimeter(&arguments, Path::new(".")).get_output().clone();
    if !output.status.success() {
        let _ = server.kill();
    }
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &report["runs"][0];
    assert_eq!(
        (&run["org"], &run["device"]),
        (&"linux".into(), &"net".into())
    );
    assert!(run["goodput_mbps"]["median"].as_f64().unwrap() > 1.0);
    assert_eq!(report["settings"]["connect"], address);
    let line = said.next().unwrap().unwrap();
    assert!(line.contains("3 connections, received"), "{line}");
    assert!(server.wait().unwrap().success());
}
