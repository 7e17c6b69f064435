//! `cargo xtask gateways`: gateways from a TUN device to a SOCKS5 proxy, side by side: ours, and
//! those of others that are found in the path. Nothing is fetched. Two namespaces: programs, TUN
//! device and gateway in one; the proxy and the servers in the other, behind a veth pair. Each round
//! measures all gateways one after the other.

mod load;

use crate::namespaces::{Found, Namespaces, Running, ip, set, table, within, words};
use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const NEAR: &str = "xgw-near";
const FAR: &str = "xgw-far";
const TUN: &str = "xgwtun";
/// Where the proxy of shadowsocks listens, whose gateway goes to no other.
const SHADOWSOCKS: u16 = 8388;
/// The interface that leads to the servers, without a gateway.
const OUT: &str = "v0";

/// What to measure.
#[derive(ClapArgs)]
pub struct Args {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Our command
    #[arg(long, default_value = "target/release/perimeter")]
    perimeter: PathBuf,
    /// Another gateway: its name and how it is run, with `{tun}`, `{proxy}` (host:port, SOCKS5) and
    /// `{out}` (the interface to the servers, for one that goes there itself)
    #[arg(long, value_name = "NAME=COMMAND", value_parser = named)]
    with: Vec<(String, String)>,
    /// What this process does for another one of this task
    #[arg(long, hide = true, num_args = 1..)]
    role: Vec<String>,
}

/// A gateway: its name, the program, and its arguments.
struct Gateway {
    name: String,
    program: PathBuf,
    args: Vec<String>,
}

fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, command)) if !name.is_empty() && !command.trim().is_empty() => {
            Ok((name.into(), command.into()))
        }
        _ => Err("NAME=COMMAND is asked for".into()),
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|d| d.join(name))
        .find(|p| p.is_file())
}

/// The configuration of sing-box, which takes no options: netstack for TCP and UDP, to the proxy.
fn sing_box() -> Result<PathBuf> {
    let text = format!(
        r#"{{
  "log": {{ "disabled": true }},
  "inbounds": [{{ "type": "tun", "interface_name": "{TUN}", "address": ["198.18.0.1/15"],
                 "mtu": 1500, "auto_route": false, "stack": "gvisor" }}],
  "outbounds": [{{ "type": "socks", "server": "10.55.0.2", "server_port": {}, "version": "5" }}]
}}
"#,
        load::PROXY
    );
    let path = std::env::temp_dir().join(format!("xgw-{}.json", std::process::id()));
    std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn gateways(args: &Args, sing_box: &Path) -> Vec<Gateway> {
    let proxy = format!("socks5://10.55.0.2:{}", load::PROXY);
    let ours = args.perimeter.is_file().then(|| args.perimeter.clone());
    let all = [
        (
            "perimeter",
            ours.clone(),
            format!("gateway --tun {TUN} --to {proxy} --json"),
        ),
        (
            "perimeter, without a proxy",
            ours,
            format!("gateway --tun {TUN} --to direct --bind-device {OUT} --json"),
        ),
        (
            "tun2socks (Go, gVisor's netstack)",
            in_path("tun2socks"),
            format!("-device {TUN} -proxy {proxy} -loglevel error"),
        ),
        (
            "sing-box (Go, gVisor's netstack)",
            in_path("sing-box"),
            format!("run --disable-color -c {}", sing_box.display()),
        ),
        (
            "tun2proxy (Rust, ipstack)",
            in_path("tun2proxy-bin"),
            // It takes 200 connections at a time unless told otherwise.
            format!(
                "--tun {TUN} --proxy {proxy} --dns direct --max-sessions 65000 --verbosity off"
            ),
        ),
        (
            "sslocal (Rust, smoltcp), to its own proxy",
            in_path("ssserver").and_then(|_| in_path("sslocal")),
            format!(
                "--protocol tun -s 10.55.0.2:{SHADOWSOCKS} -m none --tun-interface-name {TUN} \
                 --tun-interface-address 198.18.0.1/15 -U"
            ),
        ),
    ];
    let others = args.with.iter().map(|(name, command)| {
        let proxy = proxy.trim_start_matches("socks5://");
        let line = command.replace("{tun}", TUN).replace("{proxy}", proxy);
        let line = line.replace("{out}", OUT);
        let (program, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        (name.as_str(), Some(PathBuf::from(program)), rest.to_owned())
    });
    let found = all
        .into_iter()
        .chain(others)
        .filter_map(|(name, program, line)| {
            if program.is_none() {
                eprintln!("not found, so left out: {name}");
            }
            Some(Gateway {
                name: name.to_owned(),
                program: program?,
                args: words(&line),
            })
        });
    found.collect()
}

/// Makes the namespaces and what is between them.
fn net() -> Result<Namespaces> {
    let all = Namespaces::new(&[NEAR, FAR])?;
    for line in [
        format!("-n {NEAR} link add {OUT} type veth peer name v1 netns {FAR}"),
        format!("-n {NEAR} addr add 10.55.0.1/24 dev {OUT}"),
        format!("-n {FAR} addr add 10.55.0.2/24 dev v1"),
        format!("-n {FAR} addr add 10.77.0.1/32 dev lo"),
        format!("-n {NEAR} link set {OUT} up"),
        format!("-n {FAR} link set v1 up"),
        // For gateways that go there themselves, by this interface; others meet the device's.
        format!("-n {NEAR} route add 10.77.0.0/16 via 10.55.0.2 dev {OUT} metric 1000"),
    ] {
        ip(&line)?;
    }
    // A gateway that goes to the one server itself has a port for each connection, which waits a
    // minute: else the second round would measure how the kernel looks for a free one.
    set(NEAR, "ipv4/ip_local_port_range", "1024 65535")?;
    set(NEAR, "ipv4/tcp_tw_reuse", "1")?;
    Ok(all)
}

fn role(ns: &str, what: &str) -> Result<Command> {
    let me = std::env::current_exe().context("this program")?;
    Ok(within(
        ns,
        &me,
        &[words("gateways --role"), words(what)].concat(),
    ))
}

/// Starts a program that says nothing here.
fn start(ns: &str, program: &Path, args: &[String]) -> Result<Running> {
    let child = within(ns, program, args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| program.display().to_string())?;
    Ok(Running(child))
}

/// Runs a role to its end; the numbers that it prints.
fn numbers(what: &str) -> Result<Vec<f64>> {
    let out = role(NEAR, what)?.output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let all: Vec<f64> = text
        .split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect();
    if !out.status.success() || all.is_empty() {
        bail!("{what}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(all)
}

/// A gateway that runs.
struct Live(Running);

impl Live {
    fn start(g: &Gateway) -> Result<Live> {
        let mut live = Live(start(NEAR, &g.program, &g.args)?);
        let end = Instant::now() + Duration::from_secs(10);
        while ip(&format!("-n {NEAR} link show {TUN}")).is_err() {
            if Instant::now() > end || live.0.0.try_wait()?.is_some() {
                bail!("it made no device");
            }
            sleep(Duration::from_millis(20));
        }
        // Some have given it an address of their own.
        let _ = ip(&format!("-n {NEAR} addr add 198.18.0.1/15 dev {TUN}"));
        ip(&format!("-n {NEAR} link set {TUN} up"))?;
        ip(&format!(
            "-n {NEAR} route replace 10.77.0.0/16 dev {TUN} metric 10"
        ))?;
        while numbers("echo").is_err() {
            if Instant::now() > end {
                bail!("no connection gets through");
            }
            sleep(Duration::from_millis(100));
        }
        Ok(live)
    }
}

/// What bulk transfers are told by: what the clients do, its rate, and the gateway's cost.
const BULK: [(&str, &str, &str); 4] = [
    ("down 1", "down, 1, Gbit/s", "down, 1, CPU ns/B"),
    ("up 1", "up, 1, Gbit/s", "up, 1, CPU ns/B"),
    ("down 10", "down, 10, Gbit/s", "down, 10, CPU ns/B"),
    ("up 10", "up, 10, Gbit/s", "up, 10, CPU ns/B"),
];

/// The same of short ones: how many, and how long they take.
const SHORT: [(&str, &str, &str); 2] = [
    ("conns", "connections/s", "connection, p99, µs"),
    ("requests", "requests/s", "request, p99, µs"),
];

/// One gateway's turn. What does not get through is said and left out.
fn measure(
    g: &Gateway,
    seconds: u64,
    note: &mut dyn FnMut(usize, &'static str, f64),
) -> Result<()> {
    let live = Live::start(g)?;
    let said = |e| eprintln!("{}: {e:#}", g.name);
    // First: later it has memory of what went before.
    idle(&live, note).unwrap_or_else(said);
    for (n, (what, rate, cost)) in BULK.into_iter().enumerate() {
        let before = live.0.cpu()?;
        match pair(what, seconds) {
            Ok((bytes, time)) => {
                note(2 * n, rate, bytes * 8.0 / time / 1e9);
                note(
                    2 * n + 1,
                    cost,
                    (live.0.cpu()? - before) * 1e9 / bytes.max(1.0),
                );
            }
            Err(e) => said(e),
        }
    }
    for (n, (what, rate, last)) in (BULK.len()..).zip(SHORT) {
        match pair(what, seconds) {
            Ok((many, time)) => {
                note(2 * n, rate, many);
                note(2 * n + 1, last, time);
            }
            Err(e) => said(e),
        }
    }
    Ok(())
}

/// The two numbers that a role prints.
fn pair(what: &str, seconds: u64) -> Result<(f64, f64)> {
    match numbers(&format!("{what} {seconds}"))?[..] {
        [first, second] => Ok((first, second)),
        _ => bail!("{what}: not two numbers"),
    }
}

/// What 1,000 idle connections cost.
fn idle(live: &Live, note: &mut dyn FnMut(usize, &'static str, f64)) -> Result<()> {
    let before = live.0.resident()?;
    let idle = role(NEAR, "idle 1000")?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut idle = Running(idle);
    let mut line = String::new();
    let out = idle.0.stdout.take().context("piped")?;
    BufReader::new(out).read_line(&mut line)?;
    if line.trim() != "ready" {
        bail!("1,000 connections did not come about");
    }
    sleep(Duration::from_secs(2));
    let after = live.0.resident()?;
    note(12, "KiB for each of 1,000", (after - before) / 1000.0);
    let waits = live.0.waits()?;
    sleep(Duration::from_secs(20));
    note(13, "wake-ups in 20 s", live.0.waits()? - waits);
    Ok(())
}

/// Runs it.
///
/// # Errors
/// There can be no namespaces, or a gateway does not work.
pub fn run(args: &Args) -> Result<ExitCode> {
    if !args.role.is_empty() {
        load::role(&args.role)?;
        return Ok(ExitCode::SUCCESS);
    }
    let sing_box = sing_box()?;
    let gateways = gateways(args, &sing_box);
    if gateways.is_empty() {
        bail!("no gateway is found; `cargo build --release` makes ours");
    }
    let _net = net()?;
    let _servers = Running(role(FAR, "serve")?.stdin(Stdio::null()).spawn()?);
    // Nothing is encrypted.
    let line = words(&format!("-s 0.0.0.0:{SHADOWSOCKS} -m none"));
    let proxy = in_path("ssserver").map(|program| start(FAR, &program, &line));
    let _shadowsocks = proxy.transpose()?;
    let mut all: Vec<Found> = gateways.iter().map(|_| Found::new()).collect();
    for round in 0..args.rounds {
        for (g, found) in gateways.iter().zip(&mut all) {
            eprintln!("round {}: {}", round + 1, g.name);
            let mut note = |n, what: &str, value| {
                let key = (n, what.to_owned());
                found.entry(key).or_default().push(value);
            };
            if let Err(e) = measure(g, args.seconds, &mut note) {
                eprintln!("{}: {e:#}", g.name);
            }
            // So that a run that is ended early has shown something.
            table(&mut std::io::stderr().lock(), found)?;
        }
    }
    let _ = std::fs::remove_file(&sing_box);
    let mut out = std::io::stdout().lock();
    for (g, found) in gateways.iter().zip(&mut all) {
        writeln!(out, "{}", g.name)?;
        table(&mut out, found)?;
    }
    Ok(ExitCode::SUCCESS)
}
