//! What of this machine can be used, what for, and how to mend what is missing.

use crate::{
    counted, host, linux, ours,
    text::wrapped,
    workload::{Device, Family},
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::Serialize;
use std::{env, fmt::Write as _, fs, io, path::Path};

/// Connections of the largest run of the default benchmark.
const MOST_CONNECTIONS: u32 = 16_384;
/// Memory below which that run does not fit, bytes.
const ENOUGH_MEMORY: u64 = 2 << 30;

/// How well something can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// With a loss that figures show.
    Limited,
    /// Not at all.
    Missing,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is.
    pub name: &'static str,
    /// How well it can be used.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What it is needed for.
    #[serde(rename = "for")]
    pub needed_for: &'static str,
    /// What mends the lack, if there is one: a command, or a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Check {
    fn ok(name: &'static str, needed_for: &'static str, found: impl Into<String>) -> Check {
        Check {
            name,
            state: State::Ok,
            found: found.into(),
            needed_for,
            mend: None,
        }
    }

    fn but(self, state: State, mend: impl Into<String>) -> Check {
        Check {
            state,
            mend: Some(mend.into()),
            ..self
        }
    }

    fn of<T, E: ToString>(
        name: &'static str,
        needed_for: &'static str,
        found: Result<T, E>,
        there: &str,
        mend: &str,
    ) -> Check {
        match found {
            Ok(_) => Check::ok(name, needed_for, there),
            Err(e) => Check::ok(name, needed_for, e.to_string()).but(State::Missing, mend),
        }
    }
}

/// Looks at everything. Takes most of a second, makes interfaces in namespaces of its own
/// and leaves nothing behind.
pub fn examine() -> Vec<Check> {
    vec![
        cores(),
        apart(),
        steady(),
        governor(),
        memory(),
        descriptors(),
        namespaces(),
        tap(),
        packet_sockets(),
        xdp(),
        counters(),
        program("cargo", "cargo", "lab run cache (modelled cache misses)"),
        program("go", "golang-go", "bench --org gvisor"),
        lwip(),
    ]
}

fn cores() -> Check {
    const FOR: &str = "organizations with several threads";
    match host::cores() {
        1 => Check::ok("cores", FOR, "1").but(
            State::Limited,
            "claims about more cores can't be judged here; give this machine more",
        ),
        n => Check::ok("cores", FOR, n.to_string()),
    }
}

fn apart() -> Check {
    const FOR: &str = "comparing organizations that share memory between cores";
    match host::apart::round_trip() {
        None => Check::ok(
            "distance",
            FOR,
            "not measured: one core, or the other is busy",
        )
        .but(
            State::Limited,
            "run it again while nothing else runs; with one core there is nothing to measure",
        ),
        Some(ns) if host::apart::is_far(ns) => {
            let found = format!("far: {ns:.0} ns for a cache line from core to core and back");
            Check::ok("distance", FOR, found).but(
                State::Limited,
                "on a virtual machine this changes by the minute: run it again; else choose cores \
                 with a common cache (`taskset -c`)",
            )
        }
        Some(ns) => {
            let found = format!("near: {ns:.0} ns for a cache line from core to core and back");
            Check::ok("distance", FOR, found)
        }
    }
}

/// What needs cores that are always as fast.
const REPEATS: &str = "figures that repeat";

fn steady() -> Check {
    match host::steady::sign() {
        None => Check::ok("steadiness", REPEATS, "one thread is always as fast"),
        Some(sign) => Check::ok("steadiness", REPEATS, sign).but(
            State::Limited,
            "end what else runs; on a virtual machine others share its cores, and only a quieter \
             host or more repetitions (--repeat, lab run --more) help",
        ),
    }
}

fn governor() -> Check {
    const PATH: &str = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    match fs::read_to_string(PATH) {
        Err(_) => Check::ok(
            "governor",
            REPEATS,
            "none: the clock is not this system's to set",
        ),
        Ok(text) if text.trim() == "performance" => Check::ok("governor", REPEATS, "performance"),
        Ok(text) => Check::ok("governor", REPEATS, text.trim())
            .but(State::Limited, "cpupower frequency-set -g performance"),
    }
}

fn memory() -> Check {
    const FOR: &str = "16,384 connections";
    let there = host::memory_available();
    let found = format!("{:.1} GiB available", there as f64 / f64::from(1 << 30));
    let check = Check::ok("memory", FOR, found);
    match there >= ENOUGH_MEMORY {
        true => check,
        false => check.but(
            State::Limited,
            "free some, or list fewer connections (--conns)",
        ),
    }
}

fn descriptors() -> Check {
    Check::of(
        "descriptors",
        "bench --org linux with 16,384 connections",
        linux::sockets::allow_descriptors(MOST_CONNECTIONS, host::cores()),
        "enough for 16,384 connections",
        "ulimit -Hn 65536 (as root), or list fewer connections",
    )
}

fn namespaces() -> Check {
    Check::of(
        "namespaces",
        "bench --org linux over veth, --device tap",
        linux::links_possible(),
        "network namespaces joined by veth",
        "run as root, or allow them: sysctl kernel.unprivileged_userns_clone=1 \
         user.max_user_namespaces=10000",
    )
}

fn tap() -> Check {
    let mend = match Path::new("/dev/net/tun").exists() {
        false => "modprobe tun; in a container: --device /dev/net/tun",
        true => "run as root, or open it to all: chmod 666 /dev/net/tun",
    };
    Check::of(
        "tap",
        "bench --device tap or tun, programs with a TAP or TUN interface",
        ours::kernel::possible(Device::Tap, 1, 1, (1500, Family::Ipv4)),
        "TAP interfaces can be made",
        mend,
    )
}

/// Whether a raw socket of that family can be made.
fn socket(family: AddressFamily) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(family, SocketType::RAW, flags, None)?;
    Ok(())
}

fn packet_sockets() -> Check {
    Check::of(
        "packet sockets",
        "bench --device packet, a stack on an Ethernet interface (link::packet)",
        socket(AddressFamily::PACKET),
        "can be made",
        "run as root, or: setcap cap_net_raw+ep PROGRAM",
    )
}

fn xdp() -> Check {
    const FOR: &str = "bench --device xdp, a stack on an Ethernet interface (link::xdp)";
    match socket(AddressFamily::XDP) {
        Ok(()) => Check::ok("xdp sockets", FOR, "can be made"),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            Check::ok("xdp sockets", FOR, e.to_string()).but(
                State::Missing,
                "run as root, or: setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM",
            )
        }
        Err(e) => Check::ok("xdp sockets", FOR, e.to_string())
            .but(State::Missing, "a kernel with CONFIG_XDP_SOCKETS"),
    }
}

fn counters() -> Check {
    Check::of(
        "counters",
        "lab run cache-counted",
        counted::available(),
        "the processor's, by perf events",
        "sysctl kernel.perf_event_paranoid=1; on a virtual machine that has none, \
         `perimeter lab run cache` models the misses",
    )
}

/// Whether a program is on the search path.
fn on_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

fn program(name: &'static str, package: &str, needed_for: &'static str) -> Check {
    match on_path(name) {
        true => Check::ok(name, needed_for, "installed"),
        false => Check::ok(name, needed_for, "not installed")
            .but(State::Missing, format!("apt-get install {package}")),
    }
}

fn lwip() -> Check {
    const FOR: &str = "bench --org lwip";
    let (cc, headers) = (on_path("cc"), Path::new("/usr/include/lwip").is_dir());
    match (cc, headers) {
        (true, true) => Check::ok("lwip", FOR, "installed, with a C compiler"),
        _ => Check::ok("lwip", FOR, "not installed")
            .but(State::Missing, "apt-get install gcc liblwip-dev"),
    }
}

/// What was found, the summary first; 80 columns, plain text.
pub fn render(checks: &[Check]) -> String {
    let of = |state| checks.iter().filter(|c| c.state == state).count();
    let mut out = format!("{} of {} as they should be", of(State::Ok), checks.len());
    for (state, word) in [(State::Limited, "limited"), (State::Missing, "missing")] {
        if of(state) > 0 {
            let _ = write!(out, ", {} {word}", of(state));
        }
    }
    out.push_str("\nThe default benchmark (simulated NICs) needs none of what may be missing.\n\n");
    for c in checks {
        let mark = match c.state {
            State::Ok => "ok",
            State::Limited => "limited",
            State::Missing => "missing",
        };
        let line = format!("{mark:<8} {:<15} {}", c.name, c.found);
        out.push_str(&wrapped(&line, 25));
        if let Some(mend) = &c.mend {
            for (word, text) in [("for", c.needed_for), ("mend", mend)] {
                let line = format!("{:<25}{word}: {text}", "");
                out.push_str(&wrapped(&line, 31));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lack_names_its_use_and_its_mend() {
        let checks = examine();
        assert!(checks.len() >= 12);
        for c in &checks {
            assert_eq!(c.mend.is_some(), c.state != State::Ok, "{c:?}");
            assert!(!c.found.is_empty() && !c.needed_for.is_empty(), "{c:?}");
        }
    }

    #[test]
    fn the_summary_comes_first_and_80_columns_are_enough() {
        let long = "a long reason that no line of eighty columns can hold by itself, so that it \
                    has to go on in the next one";
        let checks = [
            Check::ok("cores", "threads", "2"),
            Check::ok("tap", "bench --device tap", long).but(State::Missing, "modprobe tun"),
        ];
        let text = render(&checks);
        assert!(
            text.starts_with("1 of 2 as they should be, 1 missing\n"),
            "{text}"
        );
        assert!(text.contains("for: bench --device tap") && text.contains("mend: modprobe tun"));
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    }
}
