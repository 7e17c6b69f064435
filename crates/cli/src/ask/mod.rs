//! `perimeter ss`, `stat`, `top`, `pcap` and `trace`: asking a running stack over its control
//! socket.

pub mod pcap;
pub mod stat;
pub mod top;

use crate::{args, print};
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use perimeter::Builder;
use perimeter::control::{Client, Connection, ControlError, Datagrams, Layer, Listener, Segment};
use perimeter_measure::Error;
use std::{
    env,
    fmt::Write as _,
    io::{self, Write as _},
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

/// Where the socket is if `--control` does not say.
const VARIABLE: &str = "PERIMETER_CONTROL";

/// A line under the header, and no other.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// By what a stack that a command runs can be asked.
#[derive(Debug, clap::Args)]
pub struct Ports {
    /// Open a control socket there, for `perimeter ss`, `stat`, `top`, `pcap` and `trace`
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Answer http://ADDR:PORT/metrics, for Prometheus; an address of this host's, not of the
    /// stack's. Whoever can reach it can read it
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
}

impl Ports {
    /// The stack with them.
    pub fn on(&self, mut b: Builder) -> Builder {
        if let Some(path) = &self.control {
            b = b.control(path);
        }
        match self.metrics {
            Some(addr) => b.metrics(addr),
            None => b,
        }
    }
}

fn connect(control: Option<&PathBuf>) -> Result<Client, Error> {
    let path = match control {
        Some(path) => path.clone(),
        None => match env::var_os(VARIABLE).filter(|p| !p.is_empty()) {
            Some(path) => path.into(),
            None => {
                return Err(Error::Input(format!(
                    "which stack? give the path of its control socket with --control, or in \
                     {VARIABLE}"
                )));
            }
        },
    };
    Client::connect(&path).map_err(error)
}

/// Who can't be reached is for the user to correct; a stack that says no is a failure.
fn error(e: ControlError) -> Error {
    match e {
        ControlError::Unreachable { .. } | ControlError::Version { .. } => {
            Error::Unavailable(e.to_string())
        }
        _ => Error::Run(e.to_string()),
    }
}

/// Prints the connections of a running stack, and its sockets of UDP.
pub fn ss(ask: &args::Ss) -> Result<(), Error> {
    let mut client = connect(ask.control.as_ref())?;
    let (listeners, connections) = client.connections().map_err(error)?;
    let datagrams = client.datagrams().map_err(error)?;
    let stack = client.greeting();
    if ask.json {
        let all = serde_json::json!({
            "stack": stack,
            "listeners": listeners,
            "connections": connections,
            "datagrams": datagrams,
            "gone": client.gone(),
        });
        let text = serde_json::to_string_pretty(&all).map_err(|e| Error::Run(e.to_string()))?;
        return print(&(text + "\n"));
    }
    let mut text = format!("{} in process {}\n", stack.organization, stack.pid);
    for name in client.gone() {
        let _ = writeln!(text, "interface {name} has gone");
    }
    table(&listeners, &connections, &datagrams, &mut text);
    print(&text)
}

fn table(
    listeners: &[Listener],
    connections: &[Connection],
    datagrams: &[Datagrams],
    out: &mut String,
) {
    // Where all layers of each connection share a perimeter, it is told once.
    let vertical = connections.iter().all(|c| {
        let mut names = c.layers.iter().map(|l| (&l.perimeter, l.bound));
        let first = names.next();
        names.all(|name| Some(name) == first)
    });
    let layers: &[&str] = match vertical {
        true => &["perimeter"],
        false => &["ip", "tcp", "socket"],
    };
    let mut table = Table::new();
    table.load_style(STYLE);
    let mut header = vec![
        "connection",
        "state",
        "recv-q",
        "send-q",
        "local",
        "remote",
        "cwnd",
        "rtt",
    ];
    header.extend(layers);
    table.set_header(header);
    for column in [2, 3, 6, 7] {
        if let Some(c) = table.column_mut(column) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    let dash = || "–".to_string();
    // What has no connection's columns; the last says what there is to say.
    let mut other = |row: [String; 5], last: String| {
        let mut row = vec![dash()].into_iter().chain(row).collect::<Vec<_>>();
        row.resize_with(7 + layers.len(), dash);
        row.push(last);
        table.add_row(row);
    };
    for l in listeners {
        let (queued, backlog) = (l.queued.to_string(), l.backlog.to_string());
        let row = [
            "LISTEN".into(),
            queued,
            backlog,
            l.local.to_string(),
            dash(),
        ];
        other(row, dash());
    }
    for s in datagrams {
        let lost = match s.drops {
            0 => dash(),
            n => format!("{n} dropped"),
        };
        let remote = s.remote.map_or_else(dash, |r| r.to_string());
        let (queued, waiting) = (s.receive_queue.to_string(), s.waiting.to_string());
        other(
            ["UDP".into(), queued, waiting, s.local.to_string(), remote],
            lost,
        );
    }
    for c in connections {
        let mut row = vec![
            c.id.clone(),
            c.state.clone() + if c.orphan { " (closed)" } else { "" },
            c.receive_queue.to_string(),
            c.send_queue.to_string(),
            c.local.to_string(),
            c.remote.to_string(),
            c.cwnd.to_string(),
            c.rtt_us.map_or("–".into(), time),
        ];
        match vertical {
            true => row.push(shared(&c.layers)),
            false => row.extend(c.layers.chunks(1).map(shared)),
        }
        table.add_row(row);
    }
    let _ = writeln!(out, "{table}");
    for c in connections {
        for (list, events) in [
            ("receive", &c.receive_events),
            ("transmit", &c.transmit_events),
        ] {
            if !events.is_empty() {
                let _ = writeln!(out, "{} {list}: {}", c.id, events.join(" → "));
            }
        }
    }
}

/// The perimeter of layers that share it, the core that it is bound to, and the cores that they ran
/// on last.
fn shared(layers: &[Layer]) -> String {
    let mut text = layers
        .first()
        .map_or_else(String::new, |l| l.perimeter.clone());
    if let Some(core) = layers.first().and_then(|l| l.bound) {
        let _ = write!(text, " [{core}]");
    }
    let mut ran: Vec<u16> = Vec::new();
    for core in layers.iter().flat_map(|l| l.ran.iter().copied().flatten()) {
        if !ran.contains(&core) {
            ran.push(core);
        }
    }
    if !ran.is_empty() {
        let ran: Vec<String> = ran.iter().map(u16::to_string).collect();
        let _ = write!(text, " @{}", ran.join("/"));
    }
    if text.is_empty() { "–".into() } else { text }
}

/// A round trip, with a unit that fits.
fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e5 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.0} ms", us / 1e3),
    }
}

/// Prints the segments of one connection of a running stack as they pass.
pub fn trace(ask: &args::Trace) -> Result<(), Error> {
    let client = connect(ask.control.as_ref())?;
    let mut first = None;
    let mut broken = None;
    let told = |s: &Segment| {
        let begun = *first.get_or_insert(s.time);
        let text = if ask.json {
            serde_json::to_string(s).unwrap_or_default()
        } else {
            segment(s, s.time - begun)
        };
        let mut out = io::stdout().lock();
        // Line by line: who watches sees each segment as it passes.
        let written = writeln!(out, "{text}").and_then(|()| out.flush());
        broken = written.err();
        broken.is_none()
    };
    let seconds = ask.seconds.as_ref().map(Duration::as_secs_f64);
    let end = client
        .trace(&ask.connection, ask.count, seconds, told)
        .map_err(error)?;
    match broken {
        Some(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            return Err(Error::Io {
                context: "writing to standard output".into(),
                source: e,
            });
        }
        Some(_) => return Ok(()),
        None => {}
    }
    let mut notes = String::new();
    if end.lost > 0 {
        let _ = writeln!(
            notes,
            "{} segments were left out: they passed faster than they could be told",
            end.lost
        );
    }
    if end.closed {
        let _ = writeln!(notes, "the connection is over");
    }
    let _ = io::stderr().write_all(notes.as_bytes());
    Ok(())
}

fn segment(s: &Segment, at: f64) -> String {
    let arrow = if s.received { '<' } else { '>' };
    let rtt = s.rtt_us.map_or("–".into(), time);
    format!(
        "{at:>12.6} {arrow} {:<3} seq {:>10} len {:>5} ack {:>10} win {:>7} cwnd {:>8} rtt {rtt}",
        s.flags, s.seq, s.len, s.ack, s.window, s.cwnd
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_in_a_cell() {
        let cell = |perimeter: &str, bound: Option<usize>, ran: &[Option<u16>]| {
            let told = serde_json::json!({
                "layer": "tcp", "perimeter": perimeter, "bound": bound, "ran": ran,
            });
            let told: Layer = serde_json::from_value(told).unwrap();
            shared(&[told])
        };
        assert_eq!(cell("group 17", None, &[Some(1)]), "group 17 @1");
        assert_eq!(
            cell("squeue 3", Some(1), &[Some(0), Some(1)]),
            "squeue 3 [1] @0/1"
        );
        assert_eq!(cell("stack", None, &[Some(2), Some(2)]), "stack @2");
        assert_eq!(cell("stack", None, &[None, Some(2)]), "stack @2");
        assert_eq!(cell("", None, &[None]), "–");
    }

    #[test]
    fn times_are_short() {
        assert_eq!(time(52.4), "52 µs");
        assert_eq!(time(1520.0), "1.5 ms");
        assert_eq!(time(212_000.0), "212 ms");
    }
}
