//! `perimeter top`: the connections of a running stack by what they carry, again and again.

use super::{
    connect, error,
    stat::{octets, rate, since},
    time,
};
use crate::{
    print,
    screen::{Screen, Wanted},
};
use clap::Args;
use perimeter::control::{Client, Connection, Counters, Greeting};
use perimeter_measure::{Error, units};
use ratatui::{
    crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers},
    text::{Line, Text},
};
use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

pub const HELP: &str = "\
Shows what the stack carries a second, and its connections, those that carry most first: octets \
received and octets acknowledged by the peer a second, bytes in the receive and the send buffer, \
round trip, congestion window, retransmissions in the interval; on a terminal of fewer than 110 \
columns some of these are left out. q, Esc or Ctrl-C ends it. --batch prints one screen after the \
other, without a terminal.

Examples:
  perimeter top --control stack.sock
  perimeter top --control stack.sock --interval 0.2
  perimeter top --control stack.sock --batch --count 1

Exit status: 0 success, 1 the stack refused, 2 no stack can be reached.";

/// Below so many columns connections would have no room for their addresses beside all figures.
const NARROW: u16 = 110;

const WANTED: Wanted = Wanted {
    by: "top",
    instead: "without one, use --batch",
};

/// Arguments of `perimeter top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The stack's control socket [default: PERIMETER_CONTROL of the environment]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Time between two looks
    #[arg(long, value_name = "S", value_parser = units::seconds, default_value = "1")]
    interval: Duration,
    /// End after this many looks
    #[arg(long, value_name = "N", value_parser = crate::args::count)]
    count: Option<u64>,
    /// Print plain text, one look after the other
    #[arg(long)]
    batch: bool,
    /// Connections that --batch prints at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
}

/// Shows a stack until it is enough.
pub fn top(ask: &TopArgs) -> Result<(), Error> {
    if !ask.batch {
        Screen::check(WANTED)?;
    }
    let mut watch = Watch::begin(connect(ask.control.as_ref())?)?;
    let mut left = ask.count.unwrap_or(u64::MAX);
    if ask.batch {
        while left > 0 {
            thread::sleep(ask.interval);
            watch.look()?;
            print(&(watch.lines(ask.rows, false).join("\n") + "\n\n"))?;
            left -= 1;
        }
        return Ok(());
    }
    let mut screen = Screen::open(WANTED)?;
    let drawing = |source: io::Error| Error::Io {
        context: "drawing on the terminal".into(),
        source,
    };
    while left > 0 {
        if wait(&mut screen, ask.interval, &watch).map_err(drawing)? {
            break;
        }
        watch.look()?;
        left -= 1;
    }
    screen.close().map_err(drawing)
}

/// Waits until the next look, drawing what there is; whether it is to end.
fn wait(screen: &mut Screen, interval: Duration, watch: &Watch) -> io::Result<bool> {
    let draw = |screen: &mut Screen| {
        screen.draw(|frame| {
            let area = frame.area();
            let rows = usize::from(area.height).saturating_sub(3);
            let lines = watch.lines(rows, area.width < NARROW);
            let lines: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
            frame.render_widget(Text::from(lines), area);
        })
    };
    draw(screen)?;
    let end = Instant::now() + interval;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if screen.was_signalled() {
            return Ok(true);
        }
        if left.is_zero() {
            return Ok(false);
        }
        match screen.event(left.min(Duration::from_millis(100)))? {
            Some(Event::Key(key)) if key.kind != KeyEventKind::Release => match key.code {
                KeyCode::Char('q' | 'Q') | KeyCode::Esc => return Ok(true),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                    return Ok(true);
                }
                _ => {}
            },
            Some(Event::Resize(..)) => draw(screen)?,
            _ => {}
        }
    }
}

/// A stack and what was seen of it last.
struct Watch {
    client: Client,
    stack: Greeting,
    counters: Counters,
    /// Since the look before.
    difference: Counters,
    before: HashMap<String, Connection>,
    connections: Vec<(Rates, Connection)>,
    datagram_sockets: usize,
    listeners: usize,
}

/// What a connection did in an interval.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Rates {
    /// Octets received a second.
    received: f64,
    /// Octets acknowledged by the peer a second.
    acked: f64,
    /// Segments sent again.
    retransmits: u32,
}

impl Watch {
    fn begin(mut client: Client) -> Result<Watch, Error> {
        let counters = client.counters().map_err(error)?;
        let (_, connections) = client.connections().map_err(error)?;
        Ok(Watch {
            stack: client.greeting().clone(),
            difference: since(&counters, &counters),
            counters,
            before: by_name(connections),
            connections: Vec::new(),
            datagram_sockets: 0,
            listeners: 0,
            client,
        })
    }

    fn look(&mut self) -> Result<(), Error> {
        let counters = self.client.counters().map_err(error)?;
        let (listeners, now) = self.client.connections().map_err(error)?;
        self.datagram_sockets = self.client.datagrams().map_err(error)?.len();
        self.listeners = listeners.len();
        self.difference = since(&self.counters, &counters);
        self.counters = counters;
        let seconds = self.difference.time_ns as f64 / 1e9;
        let rated = now
            .iter()
            .map(|c| (rates(self.before.get(&c.id), c, seconds), c.clone()));
        self.connections = rated.collect();
        self.connections.sort_by(|(a, x), (b, y)| {
            let most = |r: &Rates| r.received + r.acked;
            most(b).total_cmp(&most(a)).then_with(|| x.id.cmp(&y.id))
        });
        self.before = by_name(now);
        Ok(())
    }

    /// The screen, with that many connections at most; on a narrow one with fewer figures of each.
    fn lines(&self, rows: usize, narrow: bool) -> Vec<String> {
        let d = &self.difference;
        let seconds = d.time_ns as f64 / 1e9;
        let a_second = |name: &str| {
            let n = d
                .counters
                .iter()
                .find(|(n, _)| n == name)
                .map_or(0, |(_, v)| *v);
            if seconds > 0.0 {
                n as f64 / seconds
            } else {
                0.0
            }
        };
        let drops = d.counters.iter().filter(|(n, _)| n.starts_with("drop_"));
        let dropped: u64 = drops.map(|(_, v)| v).sum();
        let mut lines = vec![
            format!(
                "{} in process {}: {} connections, {} listeners, {} UDP sockets, {} of memory",
                self.stack.organization,
                self.stack.pid,
                self.counters.connections,
                self.listeners,
                self.datagram_sockets,
                octets(self.counters.memory as f64),
            ),
            format!(
                "a second: {} frames in, {} segments out, {} datagrams, {} again; {dropped} dropped",
                rate(a_second("rx_frames")),
                rate(a_second("tx_segments")),
                rate(a_second("tx_udp")),
                rate(a_second("retransmits")),
            ),
        ];
        let names = [
            "in/s", "out/s", "recv-q", "send-q", "rtt", "cwnd", "again", "state",
        ];
        lines.push(row(names.map(String::from), narrow) + "local > remote");
        for (r, c) in self.connections.iter().take(rows) {
            let figures = [
                octets(r.received),
                octets(r.acked),
                c.receive_queue.to_string(),
                c.send_queue.to_string(),
                c.rtt_us.map_or("–".into(), time),
                c.cwnd.to_string(),
                r.retransmits.to_string(),
                c.state.to_string(),
            ];
            lines.push(row(figures, narrow) + &format!("{} > {}", c.local, c.remote));
        }
        lines
    }
}

/// The figures of a connection, each in its column; on a narrow screen some are left out.
fn row(
    [received, acked, recv, send, rtt, cwnd, again, state]: [String; 8],
    narrow: bool,
) -> String {
    let rates = format!("{received:>10} {acked:>10} ");
    match narrow {
        true => rates + &format!("{rtt:>8} {again:>5} "),
        false => rates + &format!("{recv:>8} {send:>8} {rtt:>8} {cwnd:>9} {again:>5} {state:<12} "),
    }
}

fn by_name(all: Vec<Connection>) -> HashMap<String, Connection> {
    all.into_iter().map(|c| (c.id.clone(), c)).collect()
}

/// A connection that was not there before has done everything since.
fn rates(before: Option<&Connection>, now: &Connection, seconds: f64) -> Rates {
    if seconds <= 0.0 {
        return Rates::default();
    }
    let was = |of: fn(&Connection) -> u64| before.map_or(0, of);
    Rates {
        received: (now.bytes_received.saturating_sub(was(|c| c.bytes_received))) as f64 / seconds,
        acked: (now.bytes_acked.saturating_sub(was(|c| c.bytes_acked))) as f64 / seconds,
        retransmits: now
            .retransmits
            .saturating_sub(before.map_or(0, |c| c.retransmits)),
    }
}
