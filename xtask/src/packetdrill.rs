//! `cargo xtask packetdrill`: runs packetdrill scripts over our stack's adapter, or over the
//! host's TCP for the baseline, and says which pass.
//!
//! packetdrill and its scripts stay outside the project: both are given by path. Every script for
//! IPv4 is run, counts and is listed, whatever it needs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{IsTerminal, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::packetdrill_script::{Settings, settings};

/// The addresses of the scripts' network, as the scripts' own runner chooses them.
const LOCAL: &str = "192.168.0.1";
const REMOTE: &str = "192.0.2.1";

/// Arguments of the task.
#[derive(clap::Args)]
pub struct Args {
    /// The packetdrill program.
    #[arg(long, value_name = "PATH")]
    packetdrill: PathBuf,
    /// The directory that holds the scripts' directories (packetdrill's gtests/net/tcp).
    #[arg(long, value_name = "DIR")]
    scripts: PathBuf,
    /// Run only scripts whose directory/name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Organizations to run them under [default: those of the suites]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    org: Vec<String>,
    /// Further flags for the adapter, NAME=VALUE,…
    #[arg(long, value_name = "FLAGS")]
    flags: Option<String>,
    /// The adapter's shared object; built from this workspace when not given.
    #[arg(long, value_name = "FILE")]
    so: Option<PathBuf>,
    /// Which scripts the host's TCP passes: a file written by `--linux --json`.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Run the host's own TCP, each script in a network namespace (needs root).
    #[arg(long, conflicts_with_all = ["baseline", "so"])]
    linux: bool,
    /// Runs per script. Ours must pass them all; the host, which runs in real time beside
    /// whatever else the machine does, most of them. Defaults to 3 with --linux, else 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: Option<u32>,
    /// Seconds that one script may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    /// Write the results here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the output of every run in this directory.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Exit with 1 when an organization passes less than this share of the scripts.
    #[arg(long, value_name = "PERCENT")]
    min_percent: Option<f64>,
}

/// A script and what it asks for.
struct Script {
    /// `directory/file`.
    name: String,
    path: PathBuf,
    settings: Settings,
}

/// What the runs of one script under one subject gave.
#[derive(Clone, Debug)]
struct Outcome {
    passed: u32,
    runs: u32,
    /// The first line that says what went wrong, of the first failed run.
    error: Option<String>,
    seconds: f64,
}

impl Outcome {
    /// Passed every time.
    fn ok(&self) -> bool {
        self.passed == self.runs
    }

    /// Passed most of the time.
    fn mostly(&self) -> bool {
        self.passed * 2 > self.runs
    }

    fn word(&self) -> String {
        match self.passed {
            n if n == self.runs => "pass".into(),
            0 => "FAIL".into(),
            n => format!("{n}/{}", self.runs),
        }
    }

    fn json(&self, pass: bool) -> Value {
        json!({
            "pass": pass, "passed": self.passed, "runs": self.runs,
            "error": self.error, "seconds": (self.seconds * 1000.0).round() / 1000.0,
        })
    }
}

/// Runs the task.
pub fn run(args: &Args) -> Result<ExitCode> {
    let scripts = find_scripts(args)?;
    let runner = Runner::new(args)?;
    if args.linux {
        return run_linux(args, &runner, &scripts);
    }
    let baseline = args.baseline.as_deref().map(read_baseline).transpose()?;
    let so = match &args.so {
        Some(file) => fs::canonicalize(file).with_context(|| file.display().to_string())?,
        None => build_adapter()?,
    };
    let orgs = match args.org.as_slice() {
        [] => organizations()?,
        chosen => chosen.to_vec(),
    };
    let repeat = args.repeat.unwrap_or(1);
    let mut rows = Vec::new();
    for script in &scripts {
        progress(&script.name);
        let mut ours = Vec::new();
        for org in &orgs {
            let subject = Subject::Adapter {
                so: &so,
                flags: adapter_flags(org, args.flags.as_deref(), &script.settings),
                label: org,
            };
            ours.push(runner.repeat(script, &subject, repeat)?);
        }
        rows.push(ours);
    }
    progress("");
    report(args, &orgs, &scripts, &rows, baseline.as_ref())
}

/// The host's TCP over all scripts: table, JSON.
fn run_linux(args: &Args, runner: &Runner, scripts: &[Script]) -> Result<ExitCode> {
    ensure!(
        is_root(),
        "--linux needs root: it makes network namespaces and a TUN device"
    );
    let _guard = HostSettings::allow_cubic()?;
    let repeat = args.repeat.unwrap_or(3);
    let mut list = Vec::new();
    let mut passed = 0;
    let width = name_width(scripts);
    for script in scripts {
        progress(&script.name);
        let outcome = runner.repeat(script, &Subject::Host, repeat)?;
        progress("");
        passed += usize::from(outcome.mostly());
        let note = match (&outcome.error, script.settings.commands.first()) {
            (Some(error), _) => error.clone(),
            (None, Some(setting)) => format!("needs: {setting}"),
            _ => String::new(),
        };
        println!("{:width$}  {:5}  {note}", script.name, outcome.word());
        list.push(json!({
            "script": script.name, "linux": outcome.json(outcome.mostly()),
            "settings": script.settings.commands,
        }));
    }
    println!("{passed} of {} pass on the host", scripts.len());
    write_json(
        args.json.as_deref(),
        &json!({ "host": host(), "repeat": repeat, "scripts": list }),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn find_scripts(args: &Args) -> Result<Vec<Script>> {
    let mut files = Vec::new();
    collect(&args.scripts, &mut files)?;
    files.sort();
    let mut scripts = Vec::new();
    for file in files {
        let name = file.strip_prefix(&args.scripts)?.with_extension("");
        let name = name.to_string_lossy().into_owned();
        // Those for IPv6 alone say so in their names.
        if name.ends_with("v6") || args.only.as_ref().is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let text = fs::read(&file).with_context(|| file.display().to_string())?;
        scripts.push(Script {
            name,
            settings: settings(&String::from_utf8_lossy(&text)),
            path: fs::canonicalize(&file)?,
        });
    }
    ensure!(!scripts.is_empty(), "no script matches");
    Ok(scripts)
}

/// The scripts in `dir` and below.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(dir);
    for entry in entries.with_context(|| format!("no directory of scripts {}", dir.display()))? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "pkt") {
            files.push(path);
        }
    }
    Ok(())
}

/// The adapter's flags: defaults, then what the script sets, then what the user does.
fn adapter_flags(org: &str, extra: Option<&str>, settings: &Settings) -> String {
    let base = format!("org={org},ipv4={LOCAL},remote={REMOTE},mtu=1500,cc=cubic");
    let script = settings.flags.join(",");
    let mut flags: Vec<(&str, &str)> = Vec::new();
    for part in [&base, &script, extra.unwrap_or_default()] {
        for (name, value) in part.split(',').filter_map(|f| f.split_once('=')) {
            flags.retain(|(known, _)| *known != name);
            flags.push((name, value));
        }
    }
    let flags = flags.iter().map(|(name, value)| format!("{name}={value}"));
    flags.collect::<Vec<_>>().join(",")
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Builds the adapter and says where cargo put it.
fn build_adapter() -> Result<PathBuf> {
    let out = cargo()
        .args(["build", "--release", "--package", "perimeter-packetdrill"])
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("can't run cargo")?;
    ensure!(out.status.success(), "the adapter doesn't build");
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|v| v["filenames"].as_array().cloned())
        .flatten()
        .filter_map(|f| f.as_str().map(PathBuf::from))
        .find(|f| f.ends_with("libperimeter_packetdrill.so"))
        .context("cargo named no libperimeter_packetdrill.so")
}

/// Whose TCP a run is about.
enum Subject<'a> {
    /// The host's, over a TUN device.
    Host,
    /// Ours, in packetdrill's own process.
    Adapter {
        so: &'a Path,
        flags: String,
        label: &'a str,
    },
}

/// Starts packetdrill on one script at a time.
struct Runner {
    packetdrill: PathBuf,
    timeout: Duration,
    keep: Option<PathBuf>,
    /// Programs that do nothing under the names of those with which scripts set up the host.
    shims: PathBuf,
}

impl Runner {
    fn new(args: &Args) -> Result<Runner> {
        let packetdrill = fs::canonicalize(&args.packetdrill)
            .with_context(|| format!("no packetdrill at {}", args.packetdrill.display()))?;
        let shims = std::env::temp_dir().join(format!("perimeter-shims-{}", std::process::id()));
        fs::create_dir_all(&shims).with_context(|| shims.display().to_string())?;
        for name in ["ip", "sysctl", "tc", "ethtool"] {
            let file = shims.join(name);
            fs::write(&file, "#!/bin/sh\nexit 0\n")?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        }
        if let Some(dir) = &args.keep {
            fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        Ok(Runner {
            packetdrill,
            timeout: Duration::from_secs(args.timeout),
            keep: args.keep.clone(),
            shims,
        })
    }

    fn repeat(&self, script: &Script, subject: &Subject<'_>, runs: u32) -> Result<Outcome> {
        let mut outcome = Outcome {
            passed: 0,
            runs,
            error: None,
            seconds: 0.0,
        };
        for turn in 1..=runs {
            let start = Instant::now();
            let verdict = self.once(script, subject, turn)?;
            outcome.seconds += start.elapsed().as_secs_f64() / f64::from(runs);
            match verdict {
                None => outcome.passed += 1,
                Some(error) => _ = outcome.error.get_or_insert(error),
            }
        }
        Ok(outcome)
    }

    /// One run: `None` when it passed, else the line that says why not.
    fn once(&self, script: &Script, subject: &Subject<'_>, turn: u32) -> Result<Option<String>> {
        let label = match subject {
            Subject::Host => "linux",
            Subject::Adapter { label, .. } => label,
        };
        let log = self.keep.as_deref().unwrap_or(&self.shims).join(format!(
            "{}.{}.{turn}.log",
            script.name.replace('/', "__"),
            label.replace([':', '/'], "-")
        ));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let mut child = self
            .command(script, subject)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .context("can't start a script in a network namespace (unshare)")?;
        let deadline = Instant::now() + self.timeout;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                break None;
            }
            thread::sleep(Duration::from_millis(2));
        };
        // Every step up to packetdrill is an exec, so the child's id is the one in this name.
        let _ = fs::remove_file(format!("/tmp/sysctl_restore_{}.sh", child.id()));
        let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        Ok(match status {
            Some(s) if s.success() => None,
            Some(s) => Some(first_error(&text).unwrap_or_else(|| format!("{s}, no message"))),
            None => Some(format!("no end within {} s", self.timeout.as_secs())),
        })
    }

    fn command(&self, script: &Script, subject: &Subject<'_>) -> Command {
        let mut command = Command::new("unshare");
        if !is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--net", "--"]);
        match subject {
            Subject::Host => {
                command.args(["sh", "-c", "ip link set lo up; exec \"$0\" \"$@\""]);
                command.arg(&self.packetdrill);
            }
            Subject::Adapter { so, flags, .. } => {
                // Preloaded as well as loaded: scripts' code blocks call libc's getsockopt.
                // Set by env(1), so that unshare itself runs without it.
                let path = std::env::var("PATH").unwrap_or_default();
                command.arg("env");
                command.arg(format!("PATH={}:{path}", self.shims.display()));
                command.arg(format!("LD_PRELOAD={}", so.display()));
                command.arg(&self.packetdrill);
                command.arg(format!("--so_filename={}", so.display()));
                command.arg(format!("--so_flags={flags}"));
            }
        }
        command
            .args(["--send_omit_free", "--ip_version=ipv4"])
            .arg(format!("--local_ip={LOCAL}"))
            .arg(format!("--gateway_ip={LOCAL}"))
            .args(["--netmask_ip=255.255.0.0"])
            .arg(format!("--remote_ip={REMOTE}"))
            .args(["-D", "TFO_COOKIE=3021b9d889017eeb"])
            .args(["-D", "CODE=host_unreachable"])
            .args([
                "-D",
                "CMSG_LEVEL_IP=SOL_IP",
                "-D",
                "CMSG_TYPE_RECVERR=IP_RECVERR",
            ])
            .arg(script.path.file_name().unwrap_or_default())
            .current_dir(script.path.parent().unwrap_or(Path::new(".")));
        command
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.shims);
    }
}

/// The line of packetdrill's output that says what failed: its own message, or the assertion of
/// a code block together with the value that it shows.
fn first_error(text: &str) -> Option<String> {
    let lines = || text.lines().map(str::trim).filter(|l| !l.is_empty());
    let assertion = lines().find(|l| l.starts_with("AssertionError") || l.contains("panicked at"));
    let condition = lines().find(|l| l.contains("assert "));
    let own = lines().find(|l| l.contains(".pkt:") && !l.contains("error executing code"));
    match (own, assertion, condition) {
        (Some(own), None, _) => Some(own.to_owned()),
        (own, Some(a), condition) => Some(
            [own, condition, Some(a)]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(" | "),
        ),
        (None, None, _) => lines().next().map(str::to_owned),
    }
}

/// The host's settings that the baseline must change, put back at the end.
struct HostSettings {
    restore: Vec<(&'static str, String)>,
}

impl HostSettings {
    /// A namespace other than the first may choose only unrestricted congestion controls, which
    /// CUBIC isn't where the kernel's default is another.
    fn allow_cubic() -> Result<HostSettings> {
        const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
        const HYSTART: &str = "/sys/module/tcp_cubic/parameters/hystart_detect";
        let mut restore = Vec::new();
        let allowed = fs::read_to_string(ALLOWED).context(ALLOWED)?;
        if !allowed.split_whitespace().any(|cc| cc == "cubic") {
            fs::write(ALLOWED, format!("{} cubic", allowed.trim()))
                .context("can't allow CUBIC in a namespace")?;
            restore.push((ALLOWED, allowed));
        }
        // Two scripts write this one, which belongs to no namespace.
        if let Ok(hystart) = fs::read_to_string(HYSTART) {
            restore.push((HYSTART, hystart));
        }
        Ok(HostSettings { restore })
    }
}

impl Drop for HostSettings {
    fn drop(&mut self) {
        for (file, value) in &self.restore {
            if let Err(error) = fs::write(file, value.trim()) {
                eprintln!("warning: {file} stays changed: {error}");
            }
        }
    }
}

/// Script name → whether the host passes it.
fn read_baseline(file: &Path) -> Result<BTreeMap<String, bool>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let value: Value =
        serde_json::from_str(&text).with_context(|| format!("{} isn't JSON", file.display()))?;
    let Some(list) = value["scripts"].as_array() else {
        bail!("{} is no baseline: no list `scripts`", file.display());
    };
    let mut baseline = BTreeMap::new();
    for entry in list {
        let (Some(name), Some(pass)) = (entry["script"].as_str(), entry["linux"]["pass"].as_bool())
        else {
            bail!("{} is no baseline: {entry}", file.display());
        };
        baseline.insert(name.to_owned(), pass);
    }
    Ok(baseline)
}

/// Those of the test suites, as the adapter is built.
fn organizations() -> Result<Vec<String>> {
    let out = cargo()
        .args([
            "run",
            "--release",
            "--quiet",
            "--package",
            "perimeter-packetdrill",
        ])
        .args(["--example", "organizations"])
        .stderr(Stdio::inherit())
        .output()
        .context("can't run cargo")?;
    ensure!(
        out.status.success(),
        "the list of organizations doesn't build"
    );
    let names = String::from_utf8(out.stdout).context("a name of an organization")?;
    Ok(names.lines().map(str::to_owned).collect())
}

fn report(
    args: &Args,
    orgs: &[String],
    scripts: &[Script],
    rows: &[Vec<Outcome>],
    baseline: Option<&BTreeMap<String, bool>>,
) -> Result<ExitCode> {
    let width = name_width(scripts);
    print!("{:width$}  {:5}", "script", "linux");
    for org in orgs {
        print!("  {org:>10}");
    }
    println!("  first error");
    let mut passed = vec![0usize; orgs.len()];
    let mut on_linux = 0usize;
    let mut list = Vec::new();
    for (script, ours) in scripts.iter().zip(rows) {
        let linux = baseline.and_then(|b| b.get(&script.name).copied());
        on_linux += usize::from(linux == Some(true));
        let word = match linux {
            None => "?",
            Some(true) => "pass",
            Some(false) => "FAIL",
        };
        print!("{:width$}  {word:5}", script.name);
        let mut results = serde_json::Map::new();
        for (at, (org, outcome)) in orgs.iter().zip(ours).enumerate() {
            print!("  {:>10}", outcome.word());
            passed[at] += usize::from(outcome.ok());
            results.insert(org.clone(), outcome.json(outcome.ok()));
        }
        let error = ours
            .iter()
            .find_map(|o| o.error.clone())
            .unwrap_or_default();
        println!("  {error}");
        list.push(json!({
            "script": script.name, "linux_pass": linux,
            "settings": script.settings.commands, "ours": results,
        }));
    }
    let of = scripts.len();
    println!();
    if baseline.is_some() {
        println!("the baseline's host: {on_linux} of {of}");
    }
    let mut summary = serde_json::Map::new();
    let mut enough = true;
    for (org, passed) in orgs.iter().zip(passed) {
        let percent = 100.0 * passed as f64 / of as f64;
        println!("{org}: {passed} of {of} = {percent:.1} %");
        enough &= args.min_percent.is_none_or(|least| percent >= least);
        summary.insert(
            org.clone(),
            json!({ "scripts": of, "passed": passed, "percent": percent }),
        );
    }
    write_json(
        args.json.as_deref(),
        &json!({ "host": host(), "summary": summary, "scripts": list }),
    )?;
    Ok(if enough {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

fn name_width(scripts: &[Script]) -> usize {
    scripts.iter().map(|s| s.name.len()).max().unwrap_or(0)
}

fn write_json(file: Option<&Path>, value: &Value) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let text = serde_json::to_string_pretty(value)? + "\n";
    fs::write(file, text).with_context(|| file.display().to_string())
}

/// The kernel's name and release.
fn host() -> Value {
    let read = |f: &str| fs::read_to_string(f).map(|s| s.trim().to_owned()).ok();
    json!({ "os": read("/proc/sys/kernel/ostype"), "release": read("/proc/sys/kernel/osrelease") })
}

/// Whether this process runs as root of its user namespace, by the owner of its own `/proc` entry.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// One line that is overwritten, on a terminal only.
fn progress(name: &str) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{name}");
        let _ = err.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_lines() {
        let cases = [
            (
                "x.pkt:3: error handling packet: late\nscript packet: …\n",
                "x.pkt:3: error handling packet: late",
            ),
            (
                "Traceback\n    assert tcpi_snd_cwnd == 40, tcpi_snd_cwnd\nAssertionError: 36\nx.pkt: error executing code: …\n",
                "assert tcpi_snd_cwnd == 40, tcpi_snd_cwnd | AssertionError: 36",
            ),
            ("\n  something else\n", "something else"),
        ];
        for (text, want) in cases {
            assert_eq!(first_error(text).as_deref(), Some(want));
        }
        assert_eq!(first_error("\n"), None);
    }

    #[test]
    fn later_flags_replace_earlier_ones() {
        let settings = Settings {
            commands: Vec::new(),
            flags: vec!["cc=reno".into(), "sack=0".into()],
        };
        assert_eq!(
            adapter_flags("connp-l:8", Some("mtu=9000,seed=3"), &settings),
            "org=connp-l:8,ipv4=192.168.0.1,remote=192.0.2.1,cc=reno,sack=0,mtu=9000,seed=3"
        );
    }

    #[test]
    fn a_baseline_must_have_its_shape() {
        let dir = std::env::temp_dir();
        let file = dir.join(format!("perimeter-baseline-{}.json", std::process::id()));
        fs::write(
            &file,
            r#"{"scripts":[{"script":"a/b","linux":{"pass":true}}]}"#,
        )
        .unwrap();
        assert_eq!(read_baseline(&file).unwrap().get("a/b"), Some(&true));
        for bad in ["{", "{}", r#"{"scripts":[{"script":"a"}]}"#] {
            fs::write(&file, bad).unwrap();
            assert!(read_baseline(&file).is_err(), "{bad}");
        }
        fs::remove_file(file).unwrap();
    }
}
