//! Programs that tests run, and installing those that are missing.

use std::path::Path;
use std::process::{Command, Stdio};

/// Programs that tests run, and the Debian package of each.
const TOOLS: [(&str, &str); 12] = [
    ("iperf3", "iperf3"),
    ("curl", "curl"),
    ("python3", "python3"),
    ("ip", "iproute2"),
    ("ping", "iputils-ping"),
    ("traceroute", "traceroute"),
    ("tshark", "tshark"),
    ("valgrind", "valgrind"),
    ("chromium", "chromium"),
    ("dnsmasq", "dnsmasq-base"),
    ("dig", "bind9-dnsutils"),
    ("nc", "netcat-openbsd"),
];

/// Installs the Debian packages of programs that are missing. Without root, or on another
/// system, it says what to install and goes on.
pub fn install() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = |name: &str| std::env::split_paths(&path).any(|d| Path::new(&d).join(name).exists());
    let missing: Vec<&str> = TOOLS
        .iter()
        .filter(|(tool, _)| !here(tool))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return;
    }
    println!("== installing {}", missing.join(" "));
    let apt = |words: &[&str]| {
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(words)
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    };
    let mut words = vec!["install", "-y", "-q", "--no-install-recommends"];
    words.extend(&missing);
    if !(apt(&["update", "-q"]) && apt(&words)) {
        println!(
            "== could not install them (that needs root and Debian's apt-get); tests that use \
             them are skipped. By hand: apt-get install {}",
            missing.join(" ")
        );
    }
}
