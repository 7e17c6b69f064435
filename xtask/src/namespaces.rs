//! Namespaces of the network and programs in them, for measurements beside other programs.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command};

/// The words of a line.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Runs `ip` with these words.
///
/// # Errors
/// What it says.
pub fn ip(line: &str) -> Result<()> {
    let out = Command::new("ip")
        .args(words(line))
        .output()
        .context("ip")?;
    if !out.status.success() {
        bail!("ip {line}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

/// Namespaces of these names, empty; they go when this does.
pub struct Namespaces(&'static [&'static str]);

impl Namespaces {
    /// Makes them; those of an earlier run go first.
    ///
    /// # Errors
    /// The privilege is missing.
    pub fn new(names: &'static [&'static str]) -> Result<Namespaces> {
        let all = Namespaces(names);
        for ns in names {
            let _ = ip(&format!("netns del {ns}"));
            ip(&format!("netns add {ns}"))?;
            ip(&format!("-n {ns} link set lo up"))?;
        }
        Ok(all)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for ns in self.0 {
            let _ = ip(&format!("netns del {ns}"));
        }
    }
}

/// A program in a namespace. `ip netns exec` becomes the program, so the child is that.
pub fn within(ns: &str, program: &Path, args: &[String]) -> Command {
    let mut c = Command::new("ip");
    c.args(["netns", "exec", ns]).arg(program).args(args);
    c
}

/// Writes a setting of the kernel's in a namespace.
///
/// # Errors
/// There is none of that name.
pub fn set(ns: &str, name: &str, value: &str) -> Result<()> {
    let line = format!("echo {value} > /proc/sys/net/{name}");
    let status = within(ns, Path::new("sh"), &["-c".into(), line]).status()?;
    if !status.success() {
        bail!("{name} can't be set");
    }
    Ok(())
}

/// A program that runs; killed when dropped.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn read(&self, name: &str) -> Result<String> {
        let pid = self.0.id();
        std::fs::read_to_string(format!("/proc/{pid}/{name}")).context("the program has ended")
    }

    /// Processor time used, s.
    ///
    /// # Errors
    /// It has ended.
    pub fn cpu(&self) -> Result<f64> {
        let stat = self.read("stat")?;
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let numbers = fields.split_whitespace().skip(11).take(2);
        let ticks: f64 = numbers.filter_map(|f| f.parse::<f64>().ok()).sum();
        Ok(ticks / 100.0)
    }

    /// Resident memory, KiB.
    ///
    /// # Errors
    /// It has ended.
    pub fn resident(&self) -> Result<f64> {
        Ok(field(&self.read("status")?, "VmRSS:"))
    }

    /// How often its threads have waited.
    ///
    /// # Errors
    /// It has ended.
    pub fn waits(&self) -> Result<f64> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id()))?;
        let each = tasks
            .flatten()
            .filter_map(|t| std::fs::read_to_string(t.path().join("status")).ok());
        Ok(each.map(|s| field(&s, "voluntary_ctxt_switches:")).sum())
    }
}

fn field(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    let n = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    n.unwrap_or(0.0)
}

/// Values by what they are of, in the order of the numbers.
pub type Found = BTreeMap<(usize, String), Vec<f64>>;

/// Writes the median of each, and its extremes.
///
/// # Errors
/// It can't be written.
pub fn table(out: &mut impl Write, found: &mut Found) -> io::Result<()> {
    for ((_, what), v) in found {
        v.sort_by(f64::total_cmp);
        let (low, high) = (v[0], v[v.len() - 1]);
        let middle = v[v.len() / 2];
        writeln!(out, "  {what:32} {middle:10.2}  ({low:.2} to {high:.2})")?;
    }
    Ok(())
}
