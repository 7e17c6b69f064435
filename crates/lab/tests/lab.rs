//! `perimeter lab` as a user meets it: plans, folders, interruptions.

#[path = "../../cli/tests/patience/mod.rs"]
mod patience;

use assert_cmd::Command;
use patience::Patience;
use perimeter_measure::host::apart;
use serde_json::Value;
use std::{
    collections::HashSet,
    fs,
    path::Path,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

/// Eight runs of a tenth of a second.
const PLAN: &str = r#"
name = "small"
title = "A small plan"
asks = "Does it run?"
metric = "goodput"
also = ["contended"]
x = { setting = "connections", values = [1, 6] }
settings = { threads = 1, nics = 1 }
quick = { seconds = 0.1, repeats = 2 }
normal = { seconds = 0.1, repeats = 40 }
full = { seconds = 0.1, repeats = 2 }
series = [{ org = "up" }, { org = "connp-l:8" }]
"#;

fn perimeter(arguments: &[&str], directory: &Path) -> assert_cmd::assert::Assert {
    Command::cargo_bin("perimeter-lab")
        .unwrap()
        .args(arguments)
        .current_dir(directory)
        .timeout(Duration::from_secs(120))
        .assert()
}

fn stdout(arguments: &[&str], directory: &Path) -> String {
    let output = perimeter(arguments, directory)
        .success()
        .get_output()
        .clone();
    String::from_utf8(output.stdout).unwrap()
}

fn refused(arguments: &[&str], directory: &Path) -> String {
    let output = perimeter(arguments, directory).code(2).get_output().clone();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(line.lines().count(), 1, "{arguments:?}: {line}");
    assert!(output.stdout.is_empty());
    line
}

/// The rows of a folder; each line must be whole.
fn rows(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("runs.jsonl")).unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'), "a part of a row");
    text.lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect()
}

fn keys(rows: &[Value]) -> HashSet<String> {
    let key = |r: &Value| format!("{} {} {} {}", r["plan"], r["series"], r["x"], r["repeat"]);
    rows.iter().map(key).collect()
}

#[test]
fn plans_are_listed_and_shown() {
    let here = Path::new(".");
    let names = stdout(&["list"], here);
    for name in ["throughput", "groups", "contention", "pef-large"] {
        assert!(names.lines().any(|l| l == name), "{names}");
    }
    let list: Value = serde_json::from_str(&stdout(&["list", "--json"], here)).unwrap();
    assert_eq!(list.as_array().unwrap().len(), names.lines().count());
    assert!(list[0]["seconds"]["full"].as_u64() > list[0]["seconds"]["quick"].as_u64());
    let shown = stdout(&["show", "groups"], here);
    assert!(shown.contains("connp-l:{}"), "{shown}");
    let help = stdout(&["run", "--help"], here);
    for flag in [
        "--quick", "--full", "--device", "--out", "--resume", "--seed",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
}

#[test]
fn bad_input_is_one_line() {
    let t = tempfile::tempdir().unwrap();
    fs::write(
        t.path().join("broken.toml"),
        PLAN.replace("\"up\"", "\"upp\""),
    )
    .unwrap();
    fs::write(t.path().join("small.toml"), PLAN).unwrap();
    fs::create_dir(t.path().join("mine")).unwrap();
    fs::write(t.path().join("mine/thesis"), "x").unwrap();
    let table: &[(&[&str], &str)] = &[
        (&["run", "fig9"], "`perimeter lab list` lists"),
        (&["run", "throughputt"], "did you mean `throughput`?"),
        (&["run", "locks", "--out", "small.toml/x"], "can't be made"),
        (&["run", "none.toml"], "none.toml: "),
        (&["run", "broken.toml"], "broken.toml:12: series[0].org: "),
        (&["run", "all", "--quick", "--full"], "--full"),
        (&["run", "small.toml", "all"], "give it alone"),
        (
            &["run", "locks", "small.toml", "locks"],
            "`locks` was given already",
        ),
        (
            &["run", "small.toml", "--quick", "--out", "mine"],
            "mine: already exists",
        ),
        (&["run", "small.toml", "--resume"], "--out"),
        (
            &["run", "small.toml", "--resume", "--out", "mine"],
            "holds no runs",
        ),
        (&["report", "mine"], "holds no runs"),
        (&["report", "nowhere"], "holds no runs"),
        (&["compare", "mine", "nowhere"], "holds no runs"),
        (&["show", "fig9"], "fig9"),
    ];
    for (arguments, says) in table {
        let line = refused(arguments, t.path());
        assert!(line.contains(says), "{arguments:?}: {line}");
    }
    assert_eq!(
        fs::read_dir(t.path()).unwrap().count(),
        3,
        "something was left behind"
    );
    assert_eq!(fs::read_dir(t.path().join("mine")).unwrap().count(), 1);
}

#[test]
fn a_plan_runs_and_is_reported_again_without_running() {
    let t = tempfile::tempdir().unwrap();
    fs::write(t.path().join("small.toml"), PLAN).unwrap();
    let run = [
        "run",
        "small.toml",
        "--quick",
        "--out",
        "out",
        "--seed",
        "7",
    ];
    let text = stdout(&run, t.path());
    assert!(
        text.contains("| up |") && text.contains("## A small plan"),
        "{text}"
    );
    let out = t.path().join("out");
    let all = rows(&out);
    assert_eq!((all.len(), keys(&all).len()), (8, 8));
    for row in &all {
        for key in [
            "host",
            "build",
            "settings",
            "seed",
            "outcome",
            "threads",
            "started_unix",
        ] {
            assert!(!row[key].is_null(), "{key} in {row}");
        }
        assert_eq!(row["seed"], 7);
        assert!(row["host"]["cores"].as_u64() > Some(0) && row["host"]["kernel"].is_string());
        assert!(
            row["outcome"]["measured"]["goodput_mbps"].as_f64() > Some(1.0),
            "{row}"
        );
    }
    let refusal = refused(&run, t.path());
    assert!(refusal.contains("--resume"), "{refusal}");
    // All are there, so nothing runs.
    let resume = [&run[..], &["--resume"]].concat();
    let mut other = resume.clone();
    other[6] = "8";
    let refusal = refused(&other, t.path());
    assert!(refusal.contains("seed 7, not 8"), "{refusal}");
    // Neither does it with another mode, device or plan.
    let others: [(&[&str], &str); 3] = [
        (
            &["run", "small.toml", "--out", "out", "--resume"],
            "the mode quick, not normal",
        ),
        (
            &[&resume[..], &["--device", "pair"]].concat(),
            "the device as planned, not pair",
        ),
        (
            &["run", "groups", "--quick", "--out", "out", "--resume"],
            "the plan small, not groups",
        ),
    ];
    for (arguments, says) in others {
        let refusal = refused(arguments, t.path());
        assert!(refusal.contains(says), "{refusal}");
    }
    fs::write(
        t.path().join("small.toml"),
        PLAN.replace("nics = 1", "nics = 2"),
    )
    .unwrap();
    let refusal = refused(&resume, t.path());
    assert!(refusal.contains("`small` has changed"), "{refusal}");
    fs::write(t.path().join("small.toml"), PLAN).unwrap();
    assert_eq!(rows(&out), all);
    stdout(&resume, t.path());
    assert_eq!(rows(&out), all);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    for name in ["report.html", "report.md", "report.csv"] {
        fs::remove_file(out.join(name)).unwrap();
    }
    assert_eq!(stdout(&["report", "out"], t.path()), "out/report.html\n");
    assert_eq!(fs::read_to_string(out.join("report.html")).unwrap(), page);
    assert_eq!(stdout(&["report", "out", "--markdown"], t.path()), text);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 6);
    // A folder beside itself: the same points, and nothing has changed. Runs with near cores and runs
    // with far ones are points of their own, and the host may move its cores meanwhile.
    let said = stdout(&["compare", "out", "out", "--out", "both.html"], t.path());
    let point = |r: &Value| {
        let line = r["outcome"]["measured"]["core_round_trip_ns"].as_f64();
        let is_far = line.is_some_and(apart::is_far);
        format!("{} {} {is_far}", r["series"], r["x"])
    };
    let points = all.iter().map(point).collect::<HashSet<_>>().len();
    let begins = format!("out against out\nOf {points} points");
    assert!(said.starts_with(&begins), "{points}: {said}");
    assert!(
        said.contains("0 are better, 0 worse") && said.ends_with("both.html\n"),
        "{said}"
    );
    let both = fs::read_to_string(t.path().join("both.html")).unwrap();
    assert!(both.contains("times before"));
}

#[test]
fn several_plans_share_a_recording() {
    let t = tempfile::tempdir().unwrap();
    let other = PLAN.replace("\"small\"", "\"other\"");
    fs::write(t.path().join("small.toml"), PLAN).unwrap();
    fs::write(t.path().join("other.toml"), other).unwrap();
    let run = ["run", "small.toml", "other.toml", "--quick"];
    stdout(&run, t.path());
    let all = rows(&t.path().join("lab-plans-quick"));
    let of = |plan: &str| all.iter().filter(|r| r["plan"] == plan).count();
    assert_eq!((of("small"), of("other")), (8, 8));
}

/// A copy of a folder of runs as it is kept in the repository, with its record compressed.
fn kept(to: &Path) {
    let from =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runs/2026-11-22-2core-vm/lab-jumbo");
    fs::create_dir_all(to.join("plans")).unwrap();
    for part in ["", "plans"] {
        for entry in fs::read_dir(from.join(part)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), to.join(part).join(entry.file_name())).unwrap();
            }
        }
    }
}

/// What is shipped is rendered again as it stands; a record that is gone or damaged is told, by
/// exit code 2 and in one line that names it, and costs no report.
#[test]
fn a_report_is_made_from_a_compressed_record_and_never_from_none() {
    let t = tempfile::tempdir().unwrap();
    let folder = t.path().join("kept");
    kept(&folder);
    let read =
        || ["report.html", "report.md", "report.csv"].map(|f| fs::read(folder.join(f)).unwrap());
    let shipped = read();
    stdout(&["report", "kept"], t.path());
    assert!(
        shipped == read(),
        "the shipped report is not that of its record: `perimeter lab report FOLDER` makes it anew"
    );
    let packed = fs::read(folder.join("runs.jsonl.gz")).unwrap();
    let cut = &packed[..packed.len() / 2];
    type Damage<'a> = (Option<&'a [u8]>, Option<&'a [u8]>, &'a str);
    let damages: [Damage<'_>; 5] = [
        (None, None, "kept: the record is missing"),
        (Some(b""), None, "kept: the record is empty"),
        (Some(b"garbage\n"), None, "kept/runs.jsonl:1: "),
        (
            None,
            Some(b"garbage"),
            "kept/runs.jsonl.gz: damaged near line 1",
        ),
        (None, Some(cut), "kept/runs.jsonl.gz: damaged near line "),
    ];
    for (plain, packed, says) in damages {
        for (name, text) in [("runs.jsonl", plain), ("runs.jsonl.gz", packed)] {
            let file = folder.join(name);
            match text {
                Some(text) => fs::write(file, text).unwrap(),
                None if file.exists() => fs::remove_file(file).unwrap(),
                None => {}
            }
        }
        let line = refused(&["report", "kept"], t.path());
        assert!(line.contains(says), "{says}: {line}");
        assert!(shipped == read(), "{says}: the report is gone");
    }
    // Whole rows, and fewer of them.
    let first = packed_lines(&packed, 5);
    fs::remove_file(folder.join("runs.jsonl.gz")).unwrap();
    fs::write(folder.join("runs.jsonl"), first).unwrap();
    let line = refused(&["report", "kept"], t.path());
    assert!(line.contains("runs are missing"), "{line}");
    assert!(shipped == read());
    assert!(line.contains("lab report --replace kept"), "{line}");
    stdout(&["report", "--replace", "kept"], t.path());
    assert!(shipped != read());
}

/// The first `n` lines of a compressed text.
fn packed_lines(packed: &[u8], n: usize) -> String {
    let mut text = String::new();
    let mut whole = flate2::read::MultiGzDecoder::new(packed);
    std::io::Read::read_to_string(&mut whole, &mut text).unwrap();
    text.split_inclusive('\n').take(n).collect()
}

/// Starts a plan of 160 runs and lets it get to its third.
fn interrupted(directory: &Path) -> Child {
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("perimeter-lab"))
        .args(["run", "small.toml", "--out", "out"])
        .current_dir(directory)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut patience = Patience::new(Duration::from_secs(60));
    let lines = || {
        let text = fs::read_to_string(directory.join("out/runs.jsonl")).unwrap_or_default();
        text.lines().count()
    };
    while lines() < 3 {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        assert!(patience.lasts(), "no runs within a minute");
        thread::sleep(Duration::from_millis(20));
    }
    child
}

/// However it is ended, the rows are whole and it can be gone on with. A signal that asks leaves a
/// report too.
#[test]
fn an_interruption_leaves_whole_rows_and_a_resumable_run() {
    for signal in ["INT", "TERM", "KILL"] {
        let t = tempfile::tempdir().unwrap();
        fs::write(t.path().join("small.toml"), PLAN).unwrap();
        let child = interrupted(t.path());
        let kill = std::process::Command::new("kill")
            .args([&format!("-{signal}"), &child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        let ended = child.wait_with_output().unwrap();
        let out = t.path().join("out");
        let asked = signal != "KILL";
        assert_eq!(ended.status.code(), asked.then_some(1));
        assert_eq!(out.join("report.html").exists(), asked);
        let told = String::from_utf8_lossy(&ended.stderr);
        let rest = "stopped; the rest: perimeter lab run small.toml --resume --out out\n";
        assert_eq!(told.ends_with(rest), asked, "{told}");
        let before = rows(&out);
        assert!(before.len() >= 3 && before.len() < 160);
        // What was begun is gone on with; that takes too long to wait for, so the rest is made up.
        let mut text = fs::read_to_string(out.join("runs.jsonl")).unwrap();
        let mut more = Vec::new();
        for (org, x) in [("up", 1), ("up", 6), ("connp-l:8", 1), ("connp-l:8", 6)] {
            for repeat in 1..40 {
                let mut row = before[0].clone();
                row["series"] = org.into();
                row["x"] = x.into();
                row["repeat"] = repeat.into();
                more.push(row);
            }
        }
        let had = keys(&before);
        for row in more
            .iter()
            .filter(|r| keys(std::slice::from_ref(r)).is_disjoint(&had))
        {
            text.push_str(&format!("{row}\n"));
        }
        text.push_str("{\"plan\":\"sma");
        fs::write(out.join("runs.jsonl"), text).unwrap();
        stdout(&["run", "small.toml", "--out", "out", "--resume"], t.path());
        let after = rows(&out);
        assert_eq!((after.len(), keys(&after).len()), (160, 160), "{signal}");
    }
}

/// A limit on the size of files does to writes what a full disk does.
#[test]
fn a_full_disk_leaves_whole_rows() {
    let t = tempfile::tempdir().unwrap();
    fs::write(t.path().join("small.toml"), PLAN).unwrap();
    let program = assert_cmd::cargo::cargo_bin("perimeter-lab");
    let script = format!(
        "trap '' XFSZ; ulimit -f 16; exec {} run small.toml --quick --out out",
        program.display()
    );
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(t.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("recording a run in out"), "{stderr}");
    let before = rows(&t.path().join("out"));
    assert!(!before.is_empty() && before.len() < 8, "{}", before.len());
    stdout(
        &["run", "small.toml", "--quick", "--out", "out", "--resume"],
        t.path(),
    );
    let after = rows(&t.path().join("out"));
    assert_eq!((after.len(), keys(&after).len()), (8, 8));
    assert_eq!(after[..before.len()], before);
}
