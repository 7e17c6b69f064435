//! `cargo xtask forwarding`: what passes between two hosts of the kernel's through a router: the
//! kernel itself, or the example `router` under an organization, over devices of one kind. Three
//! namespaces: a host, the router, a host. The hosts run iperf3. Each round measures all routers one
//! after the other.

use crate::namespaces::{Found, Namespaces, Running, ip, set, table, within, words};
use anyhow::{Context, Result, bail};
use clap::{Args as ClapArgs, ValueEnum};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LEFT: &str = "xfw-left";
const ROUTER: &str = "xfw-router";
const RIGHT: &str = "xfw-right";
/// Each host's namespace and interface, its address, and the router's interface and address there.
const SIDES: [(&str, &str, &str, &str, &str); 2] = [
    (LEFT, "xfwl", "10.99.1.2", "xfwr0", "10.99.1.1"),
    (RIGHT, "xfwr", "10.99.2.2", "xfwr1", "10.99.2.1"),
];

/// What carries packets to and from a router of ours.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
enum Device {
    Tap,
    /// Packet sockets on veth
    Packet,
    /// AF_XDP on veth
    Xdp,
}

/// What to measure.
#[derive(ClapArgs)]
pub struct Args {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Organizations
    #[arg(long, value_delimiter = ',', default_value = "up,up:shared")]
    org: Vec<String>,
    /// Devices
    #[arg(long, value_delimiter = ',', default_value = "tap,packet,xdp")]
    device: Vec<Device>,
    /// The example `router`, built
    #[arg(long, default_value = "target/release/examples/router")]
    router: PathBuf,
}

/// Who forwards.
enum Router {
    Kernel,
    Ours(Device, String),
}

impl std::fmt::Display for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Router::Kernel => f.write_str("Linux, veth"),
            Router::Ours(Device::Tap, org) => write!(f, "{org}, TAP"),
            Router::Ours(Device::Packet, org) => write!(f, "{org}, packet sockets on veth"),
            Router::Ours(Device::Xdp, org) => write!(f, "{org}, AF_XDP on veth"),
        }
    }
}

/// What the hosts do: in words, iperf3's options, and whether they are datagrams.
const WORK: [(&str, &str, bool); 5] = [
    ("one stream", "", false),
    ("eight streams", "-P 8", false),
    ("one stream back", "-R", false),
    ("datagrams of 1,400", "-u -b 0 -P 2 -l 1400", true),
    ("datagrams of 64", "-u -b 0 -P 2 -l 64", true),
];

/// The namespaces with a router that works.
struct Live {
    /// Ours.
    router: Option<Running>,
    _net: Namespaces,
}

impl Live {
    fn start(which: &Router, program: &Path) -> Result<Live> {
        let net = Namespaces::new(&[LEFT, ROUTER, RIGHT])?;
        let veth = !matches!(which, Router::Ours(Device::Tap, _));
        for (ns, dev, _, theirs, _) in SIDES.into_iter().filter(|_| veth) {
            ip(&format!(
                "-n {ns} link add {dev} type veth peer name {theirs} netns {ROUTER}"
            ))?;
            ip(&format!("-n {ROUTER} link set {theirs} up"))?;
        }
        let mut router = None;
        match which {
            Router::Kernel => {
                for (_, _, _, dev, addr) in SIDES {
                    ip(&format!("-n {ROUTER} addr add {addr}/24 dev {dev}"))?;
                }
                set(ROUTER, "ipv4/ip_forward", "1")?;
            }
            Router::Ours(device, org) => {
                let named = |n: usize| {
                    let (_, host, _, ours, _) = SIDES[n];
                    match device {
                        Device::Tap => format!("tap:{host}"),
                        Device::Packet => format!("packet:{ours}"),
                        Device::Xdp => format!("xdp:{ours}"),
                    }
                };
                let args = format!("--org {org} --left {} --right {}", named(0), named(1));
                let child = within(ROUTER, program, &words(&args))
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .spawn()
                    .with_context(|| program.display().to_string())?;
                router = Some(Running(child));
            }
        }
        for (ns, dev, addr, _, gateway) in SIDES {
            if !veth {
                made(dev, router.as_mut())?;
                ip(&format!("-n {ROUTER} link set {dev} netns {ns}"))?;
            }
            for line in [
                format!("-n {ns} addr add {addr}/24 dev {dev}"),
                format!("-n {ns} link set {dev} up"),
                format!("-n {ns} route add default via {gateway}"),
            ] {
                ip(&line)?;
            }
        }
        let live = Live { router, _net: net };
        let end = Instant::now() + Duration::from_secs(10);
        let ping = words(&format!("-c 1 -W 1 {}", SIDES[1].2));
        while !within(LEFT, Path::new("ping"), &ping)
            .output()?
            .status
            .success()
        {
            if Instant::now() > end {
                bail!("nothing passes");
            }
        }
        Ok(live)
    }

    /// Iperf3's work; what it reports.
    fn iperf(&self, options: &str, seconds: u64) -> Result<serde_json::Value> {
        let server = within(RIGHT, Path::new("iperf3"), &words("-s -1"))
            .stdout(Stdio::null())
            .spawn()
            .context("iperf3")?;
        let _server = Running(server);
        sleep(Duration::from_millis(300));
        let line = format!("-c {} -J -t {seconds} {options}", SIDES[1].2);
        let out = within(LEFT, Path::new("iperf3"), &words(&line)).output()?;
        let said: serde_json::Value = serde_json::from_slice(&out.stdout).context("iperf3")?;
        match said["error"].as_str() {
            Some(e) => bail!("iperf3: {e}"),
            None => Ok(said),
        }
    }
}

/// Waits for the interface that a router makes in its namespace.
fn made(dev: &str, router: Option<&mut Running>) -> Result<()> {
    let router = router.context("a router of ours")?;
    let end = Instant::now() + Duration::from_secs(10);
    while ip(&format!("-n {ROUTER} link show {dev}")).is_err() {
        if Instant::now() > end || router.0.try_wait()?.is_some() {
            bail!("it made no device");
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Busy time of the machine, s.
fn busy() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let of = |(n, v): (usize, &str)| match n {
        // Idle, and waiting for a disk.
        3 | 4 => 0.0,
        _ => v.parse().unwrap_or(0.0),
    };
    let ticks: f64 = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .enumerate()
        .map(of)
        .sum();
    Ok(ticks / 100.0)
}

/// One router's turn. What does not get through is said and left out.
fn measure(which: &Router, args: &Args, found: &mut Found) -> Result<()> {
    let live = Live::start(which, &args.router)?;
    for (n, (what, options, datagrams)) in WORK.into_iter().enumerate() {
        let cpu = || live.router.as_ref().map_or(Ok(0.0), Running::cpu);
        let before = (busy()?, cpu()?);
        let said = match live.iperf(options, args.seconds) {
            Ok(said) => said,
            Err(e) => {
                eprintln!("{which}, {what}: {e:#}");
                continue;
            }
        };
        let (all, own) = (busy()? - before.0, cpu()? - before.1);
        let end = &said["end"];
        let number = |v: &serde_json::Value| v.as_f64().unwrap_or(0.0);
        let (rate, unit, each, of) = match datagrams {
            true => {
                let sum = &end["sum"];
                let arrived = number(&sum["packets"]) - number(&sum["lost_packets"]);
                let rate = arrived / number(&sum["seconds"]).max(1e-9);
                (rate / 1e3, "thousand/s", arrived, "datagram")
            }
            false => {
                let sum = &end["sum_received"];
                let rate = number(&sum["bits_per_second"]);
                (rate / 1e9, "Gb/s", number(&sum["bytes"]) / 1448.0, "1448 B")
            }
        };
        let mut note = |k: usize, text: String, v: f64| {
            found.entry((3 * n + k, text)).or_default().push(v);
        };
        let ns = |s: f64| s * 1e9 / each.max(1.0);
        note(0, format!("{what}, {unit}"), rate);
        note(1, format!("machine's CPU, ns a {of}"), ns(all));
        if live.router.is_some() {
            note(2, format!("router's CPU, ns a {of}"), ns(own));
        }
    }
    Ok(())
}

/// Runs it.
///
/// # Errors
/// There can be no namespaces, or a router does not work.
pub fn run(args: &Args) -> Result<ExitCode> {
    if !args.router.is_file() {
        bail!(
            "{} is missing: `cargo build --release -p perimeter --example router` makes it",
            args.router.display()
        );
    }
    let ours = args
        .device
        .iter()
        .flat_map(|d| args.org.iter().map(|o| Router::Ours(*d, o.clone())));
    let routers: Vec<_> = std::iter::once(Router::Kernel).chain(ours).collect();
    let mut all: Vec<Found> = routers.iter().map(|_| Found::new()).collect();
    for round in 0..args.rounds {
        for (which, found) in routers.iter().zip(&mut all) {
            eprintln!("round {}: {which}", round + 1);
            if let Err(e) = measure(which, args, found) {
                eprintln!("{which}: {e:#}");
            }
        }
    }
    let mut out = std::io::stdout().lock();
    for (which, found) in routers.iter().zip(&mut all) {
        writeln!(out, "{which}")?;
        table(&mut out, found)?;
    }
    Ok(ExitCode::SUCCESS)
}
