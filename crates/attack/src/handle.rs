//! The victim as the one sees it who started it.

use crate::victim::{IFACE, KERNEL, KERNEL6, Setting, Stat};
use anyhow::{Context, Result, bail};
use perimeter::link::tap::host;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How many more addresses the kernel has, behind [`VICTIM`](crate::victim::VICTIM)'s.
pub const ALIASES: u8 = 5;

/// The kernel's further addresses: from each of them there is a whole range of ports.
pub fn alias(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 3 + n % ALIASES)
}

/// A child process over TAP; it is killed when dropped.
pub struct Victim {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// How long a victim may take to answer. One that does not is said to stand still.
const PATIENCE: Duration = Duration::from_secs(10);

impl Victim {
    /// Starts a child `mode` with that setting in the calling thread's namespace, which has to be
    /// one of its own, and configures the kernel's end of its TAP interface.
    ///
    /// # Errors
    /// It can't be started or does not get as far as to listen.
    pub fn start(exe: &Path, mode: &str, setting: &Setting, more: &[String]) -> Result<Victim> {
        only_in_a_namespace()?;
        let mut child = Command::new(exe)
            .arg(mode)
            .args(setting.arguments())
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| exe.display().to_string())?;
        let input = child.stdin.take();
        let out = child.stdout.take().context("no pipe")?;
        let (tx, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines() {
                let Ok(line) = line else { return };
                if tx.send(line).is_err() {
                    return;
                }
            }
        });
        let mut victim = Victim {
            child,
            input,
            lines,
        };
        // The kernel may be taking down other runs' namespaces, and opening a TAP waits for that.
        victim.expect_within("ready", 6 * PATIENCE)?;
        configure(setting).context("configuring the interface")?;
        victim.say("go")?;
        Ok(victim)
    }

    /// Waits for a line of that text.
    ///
    /// # Errors
    /// Another one comes, or none.
    pub fn expect(&mut self, text: &str) -> Result<()> {
        self.expect_within(text, PATIENCE)
    }

    fn expect_within(&mut self, text: &str, limit: Duration) -> Result<()> {
        let line = self
            .line_within(limit)
            .with_context(|| format!("waiting for `{text}`"))?;
        if line != text {
            bail!("the victim says `{line}`, not `{text}`");
        }
        Ok(())
    }

    /// The next line that it says.
    ///
    /// # Errors
    /// None comes.
    pub fn line(&mut self) -> Result<String> {
        self.line_within(PATIENCE)
    }

    /// The next line that it says within that time.
    ///
    /// # Errors
    /// None comes.
    pub fn line_within(&mut self, limit: Duration) -> Result<String> {
        self.lines
            .recv_timeout(limit)
            .context("the victim says nothing")
    }

    fn say(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("closed")?;
        writeln!(input, "{line}").context("the victim has gone")
    }

    /// Asks it for [`Stat`], by `stat` or `census`.
    ///
    /// # Errors
    /// It does not answer.
    pub fn ask(&mut self, what: &str) -> Result<Stat> {
        self.say(what)?;
        Ok(serde_json::from_str(&self.line()?)?)
    }

    /// Whether it runs.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it has ended by itself; how.
    ///
    /// # Errors
    /// It takes longer than `limit`.
    pub fn finish(mut self, limit: Duration) -> Result<std::process::ExitStatus> {
        let end = std::time::Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if std::time::Instant::now() > end {
                bail!("the process does not end");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Processor time of all its threads, ns.
    pub fn cpu(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let spent = |dir: std::path::PathBuf| {
            let text = std::fs::read_to_string(dir.join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        };
        let tasks = tasks.into_iter().flatten().flatten();
        tasks.filter_map(|t| spent(t.path())).sum()
    }

    /// Resident memory now and at most since it started, kB.
    pub fn rss(&self) -> (u64, u64) {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let of = |name| field(name).unwrap_or(0);
        (of("VmRSS:"), of("VmHWM:"))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nothing here may reach a network that others use.
fn only_in_a_namespace() -> Result<()> {
    let (mine, first) = (
        std::fs::read_link("/proc/thread-self/ns/net")?,
        std::fs::read_link("/proc/self/ns/net")?,
    );
    if mine == first {
        bail!("not in a network namespace of its own");
    }
    Ok(())
}

fn configure(setting: &Setting) -> std::io::Result<()> {
    let prefix = setting.prefix;
    host::set_address(IFACE, KERNEL, prefix)?;
    if setting.v6 {
        let conf = format!("/proc/sys/net/ipv6/conf/{IFACE}");
        // Its address is to be there at once, and what an attacker says of routers is not for it.
        std::fs::write(format!("{conf}/accept_dad"), "0")?;
        std::fs::write(format!("{conf}/accept_ra"), "0")?;
        host::add_address_v6(IFACE, KERNEL6, 64)?;
    }
    host::set_up(IFACE, true)?;
    for n in 0..ALIASES {
        host::set_address(&format!("{IFACE}:{n}"), alias(n), prefix)?;
    }
    // Clients come and go by the ten thousand: let the kernel have ports for them.
    for (name, value) in [("ip_local_port_range", "1024 65000"), ("tcp_tw_reuse", "1")] {
        std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value)?;
    }
    Ok(())
}
