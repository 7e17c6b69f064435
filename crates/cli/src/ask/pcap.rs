//! `perimeter pcap`: the frames of a running stack, as lines or as a capture file.

use super::{connect, error};
use crate::set_by_signal;
use clap::Args;
use perimeter::control::{Frame, Interface};
use perimeter::link::{
    Medium,
    capture::{Direction, Filter, Summary},
    pcap::format::{self, Packet},
};
use perimeter_measure::{Error, units};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub const HELP: &str = "\
Copies frames at the stack's interfaces while it runs, under whatever organization, and prints a \
line for each, or writes them in the pcapng format, for Wireshark and its like. Checksums that \
are left to the device are complete in what is told, and large segments are told as the device \
gets them. What passes faster than it can be told is left out and counted; the stack waits for \
nobody.

A filter has the words of pcap-filter(7): host, net, port, portrange, each after src or dst if \
wanted; ip, ip6, arp, icmp, icmp6, tcp, udp, inbound, outbound; and, or, not, parentheses.

Examples:
  perimeter pcap --control stack.sock
  perimeter pcap --control stack.sock -c 20 tcp port 80 and not host 10.0.0.9
  perimeter pcap --control stack.sock -w out.pcapng --seconds 10
  perimeter pcap --control stack.sock -w - | tshark -r -

Exit status: 0 captured (Ctrl-C ends it), 1 the stack refused, 2 no stack can be reached.";

/// Arguments of `perimeter pcap`.
#[derive(Debug, Args)]
pub struct PcapArgs {
    /// The stack's control socket [default: PERIMETER_CONTROL of the environment]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Write a pcapng file there; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// End after this many frames
    #[arg(short, long, value_name = "N", value_parser = crate::args::count)]
    count: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "S", value_parser = units::seconds)]
    seconds: Option<Duration>,
    /// Octets of each frame that are kept at most
    #[arg(short, long, value_name = "OCTETS", default_value_t = 65_535,
          value_parser = clap::value_parser!(u32).range(1..=65_535))]
    snap_len: u32,
    /// Print JSON, a frame a line
    #[arg(long, conflicts_with = "write")]
    json: bool,
    /// Which frames; all if there is none
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
}

/// Captures.
pub fn pcap(ask: &PcapArgs) -> Result<(), Error> {
    let filter = ask.filter.join(" ");
    // Here, so that nothing is made before it is known to be one.
    let parsed: Result<Filter, _> = filter.parse();
    parsed.map_err(|e| Error::Input(e.to_string()))?;
    let client = connect(ask.control.as_ref())?;
    let mut out = Out::open(ask)?;
    let stop = Arc::new(AtomicBool::new(false));
    set_by_signal(&stop)?;
    let (mut told, mut broken) = (0, None);
    let seconds = ask.seconds.as_ref().map(Duration::as_secs_f64);
    let snap_len = Some(ask.snap_len);
    let end = client.capture(
        &filter,
        snap_len,
        ask.count,
        seconds,
        |interfaces, frame| {
            let written = match frame {
                None if told == 0 => out.begin(interfaces, ask.snap_len),
                None => Ok(()),
                Some(f) => {
                    told += 1;
                    out.frame(interfaces, f)
                }
            };
            broken = written.err();
            broken.is_none() && !stop.load(Ordering::Relaxed)
        },
    );
    let end = end.map_err(error)?;
    match broken {
        Some(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            return Err(Error::Io {
                context: match &ask.write {
                    Some(path) => format!("writing {}", path.display()),
                    None => "writing to standard output".into(),
                },
                source: e,
            });
        }
        Some(_) => return Ok(()),
        None => {}
    }
    let lost = match end.lost {
        0 => String::new(),
        n => format!(", {n} left out: they passed faster than they could be told"),
    };
    let _ = writeln!(io::stderr(), "{told} frames{lost}");
    Ok(())
}

/// Where frames go.
enum Out {
    Lines { first: Option<u64> },
    Json,
    File { to: Box<dyn Write>, begun: bool },
}

impl Out {
    fn open(ask: &PcapArgs) -> Result<Out, Error> {
        match &ask.write {
            None if ask.json => Ok(Out::Json),
            None => Ok(Out::Lines { first: None }),
            Some(path) if path == Path::new("-") => Ok(Out::File {
                to: Box::new(io::stdout()),
                begun: false,
            }),
            Some(path) => {
                let file: io::Result<File> = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(path);
                let to =
                    file.map_err(|e| Error::Input(format!("--write {}: {e}", path.display())))?;
                Ok(Out::File {
                    to: Box::new(to),
                    begun: false,
                })
            }
        }
    }

    /// The head of a file, once.
    fn begin(&mut self, interfaces: &[Interface], snap_len: u32) -> io::Result<()> {
        let Out::File { to, begun } = self else {
            return Ok(());
        };
        if std::mem::replace(begun, true) {
            return Ok(());
        }
        let mut head = Vec::new();
        format::section(&mut head);
        for i in interfaces {
            format::interface(&mut head, &i.name, medium(i), snap_len);
        }
        to.write_all(&head).and_then(|()| to.flush())
    }

    /// Whole frames at once: whoever reads along, or kills this program, has no part of one.
    fn frame(&mut self, interfaces: &[Interface], f: &Frame) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        match self {
            Out::Json => {
                let text = serde_json::to_string(f).unwrap_or_default();
                writeln!(stdout, "{text}").and_then(|()| stdout.flush())
            }
            Out::Lines { first } => {
                let at = f.time_ns.saturating_sub(*first.get_or_insert(f.time_ns));
                let line = line(&interfaces[f.interface], f, at, interfaces.len() > 1);
                writeln!(stdout, "{line}").and_then(|()| stdout.flush())
            }
            Out::File { to, .. } => {
                drop(stdout);
                let mut block = Vec::with_capacity(f.bytes.len() + 64);
                format::packet(
                    &mut block,
                    &Packet {
                        interface: f.interface as u32,
                        ns: f.time_ns,
                        direction: match f.received {
                            true => Direction::Inbound,
                            false => Direction::Outbound,
                        },
                        len: f.len,
                        bytes: &f.bytes,
                    },
                );
                to.write_all(&block).and_then(|()| to.flush())
            }
        }
    }
}

fn medium(i: &Interface) -> Medium {
    match i.ethernet {
        true => Medium::Ethernet,
        false => Medium::Ip,
    }
}

/// A frame in a line: seconds since the first, the interface if there are several, the direction.
fn line(interface: &Interface, f: &Frame, at_ns: u64, several: bool) -> String {
    let arrow = if f.received { '<' } else { '>' };
    let name = match several {
        true => format!("{} ", interface.name),
        false => String::new(),
    };
    let what = Summary::of(&f.bytes, medium(interface));
    format!("{:>12.6} {name}{arrow} {what}", at_ns as f64 / 1e9)
}
