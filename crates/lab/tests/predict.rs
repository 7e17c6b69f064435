//! `perimeter lab predict` and `perimeter lab calibrate` from their arguments to what they write.

use assert_cmd::Command;
use perimeter_lab::predict::Machine;
use serde_json::Value;
use std::{fs, path::Path, time::Duration};

/// Two points, each on one core and on two.
const PLAN: &str = r#"
name = "small"
title = "A small plan"
asks = "Does it run?"
published = "throughput"
metric = "goodput"
also = ["contended"]
cores = 4
x = { setting = "connections", values = [6] }
settings = { inbound = "thread" }
quick = { seconds = 0.1, repeats = 2 }
normal = { seconds = 0.1, repeats = 2 }
full = { seconds = 0.1, repeats = 2 }
series = [{ org = "up", as = "UP" }, { org = "msgp", as = "MsgP" }, { org = "linux" }]
"#;

fn lab(arguments: &[&str], directory: &Path) -> assert_cmd::assert::Assert {
    Command::cargo_bin("perimeter-lab")
        .unwrap()
        .args(arguments)
        .current_dir(directory)
        .timeout(Duration::from_secs(240))
        .assert()
}

/// Predicts the small plan for a machine, and puts that into `to`.
fn predict(machine: &str, cores: &str, to: &str, directory: &Path) -> assert_cmd::assert::Assert {
    fs::write(directory.join("small.toml"), PLAN).unwrap();
    let words =
        format!("predict small.toml --machine {machine} --cores {cores} --quick --json {to}");
    lab(&words.split(' ').collect::<Vec<_>>(), directory)
}

fn read(file: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// A prediction says what it says twice alike, judges what was published for as many cores, and is
/// drawn by a report.
#[test]
fn a_plan_is_predicted_and_drawn() {
    let t = tempfile::tempdir().unwrap();
    let predicted = |to: &str| {
        // 1: nothing was measured on that machine to validate with.
        let said = predict("opteron-275", "1,4", to, t.path()).code(1);
        let output = said.get_output().clone();
        (
            String::from_utf8(output.stdout).unwrap(),
            read(&t.path().join(to)),
        )
    };
    let ((text, one), (again, two)) = (predicted("one.json"), predicted("two.json"));
    assert_eq!((&text, &one["figures"]), (&again, &two["figures"]));
    assert!(text.contains("A small plan"), "{text}");
    let figure = &one["figures"][0];
    let places = figure["places"].as_array().unwrap();
    let of = |series: &str, cores: u64| {
        let mut all = places.iter();
        all.find(|p| p["series"] == series && p["cores"] == cores)
    };
    // One thread is the same on any number of cores; the kernel's stack runs on none.
    let value = |series, cores| of(series, cores)?["value"]["median"].as_f64();
    let (up, msgp) = (value("up", 1).unwrap(), value("msgp", 4).unwrap());
    assert!(up > 1e3 && msgp > 1e3, "{places:?}");
    assert!(of("up", 4).is_none() && of("msgp", 1).is_some());
    assert!(of("linux", 4).unwrap()["missing"].is_string());
    let claims = figure["claims"].as_array().unwrap();
    let claim = claims.iter().find(|c| c["id"] == "msgp-6").unwrap();
    let ratio = claim["ratio"][0].as_f64().unwrap();
    assert!((ratio - msgp / up).abs() < 0.05 * ratio, "{claim}");

    lab(&["run", "small.toml", "--quick", "--out", "here"], t.path()).success();
    lab(&["report", "here", "--predicted", "one.json"], t.path()).success();
    let page = fs::read_to_string(t.path().join("here/report.html")).unwrap();
    assert!(page.contains("Predicted: ") && page.contains("Dashed: medians."));
}

/// A table that is fitted anew to runs of its own comes near what it was, and predicts.
#[test]
fn a_table_is_fitted_and_used() {
    let t = tempfile::tempdir().unwrap();
    let mut machine = Machine::find("vm-2core").unwrap();
    // What one thread sends and receives over few connections.
    machine
        .runs
        .retain(|r| r.threads == 1 && r.connections == 6);
    assert!(!machine.runs.is_empty());
    fs::write(t.path().join("few.toml"), machine.text().unwrap()).unwrap();
    let fit = [
        "calibrate",
        "--like",
        "few.toml",
        "--refit",
        "--out",
        "fitted.toml",
    ];
    lab(&fit, t.path()).success();
    let fitted = Machine::find(t.path().join("fitted.toml").to_str().unwrap()).unwrap();
    assert_eq!(fitted.runs.len(), machine.runs.len());
    let goodput = |table: &str| {
        let output = predict(table, "1", "-", t.path()).get_output().clone();
        let whole: Value = serde_json::from_slice(&output.stdout).unwrap();
        whole["figures"][0]["places"][0]["value"]["median"]
            .as_f64()
            .unwrap()
    };
    let ratio = goodput("fitted.toml") / goodput("few.toml");
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
}
