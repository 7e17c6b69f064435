//! The command line's arguments. Every value is parsed strictly by the benchmark's own parsers.

use clap::{Args, Parser, Subcommand};
use perimeter::OrgSpec;
use perimeter_command::{
    VERSION,
    bench::{self, Bench, ours},
    lab::Lab,
};
use perimeter_measure::{units, workload::settings::MAX_PARALLEL};
use std::{path::PathBuf, time::Duration};

/// One TCP/IP stack under many parallel organizations, and the laboratory that compares them.
#[derive(Debug, Parser)]
#[command(name = "perimeter", version = VERSION, propagate_version = false, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "Examples:
  perimeter orgs                      the organizations of this build
  perimeter bench --quick             which organization is fastest here, within 30 seconds
  perimeter recommend                 which organization for which work, within a minute or so
  perimeter bench --help              the benchmark's settings
  perimeter doctor                    what of this machine can be used
  perimeter serve                     an HTTP server on a stack of ours, for curl
  perimeter lab run all --quick       the papers' experiments on this machine, as a report
  perimeter ss --control PATH         the sockets of a running stack
  perimeter stat --control PATH       what it has counted; top, pcap: what it carries
  perimeter trace --control PATH ID   the segments of one of its connections as they pass";

const SS_HELP: &str = "\
recv-q and send-q are the bytes in the socket's buffers; for a listener, the connections that \
wait to be accepted and the most that may; for a socket of UDP, the memory that waiting datagrams \
pin and the datagrams that wait for a neighbour's station. cwnd is in octets. Under ip, tcp and \
socket stand the perimeter of that layer by the organization's own name for it, in brackets the \
core that it is bound to if it is, and behind @ the core that the layer ran on last (for the \
socket: of the last send and of the last receive call, where they differ). Under pef the lists of \
events follow.

A stack has a control socket if it was started with one: `Stack::builder().control(path)`, \
`perimeter bench --control PATH`, `--control PATH` of the examples. Without --control the path is \
taken from PERIMETER_CONTROL.

Examples:
  perimeter ss --control /run/user/1000/stack.sock
  perimeter ss --control stack.sock --json | jq '.connections[] | {id, state, cwnd}'

Exit status: 0 success, 1 the stack refused, 2 no stack can be reached.";

const TRACE_HELP: &str = "\
Puts a tracing event on the connection's lists, prints a line for each segment with its time, its \
direction (< received, > sent), flags, sequence number, length, acknowledgment number, window and \
the congestion window and round-trip time at that moment, and takes the event off again: after N \
segments, after S seconds, when the connection is over, or when this command ends. Only \
connections under pef have lists of events. `perimeter ss` tells the connections' names.

Examples:
  perimeter trace --control stack.sock 0:3.1 --count 20
  perimeter trace --control stack.sock 0:3.1 --seconds 2 --json | jq .cwnd

Exit status: 0 traced, 1 the stack refused, 2 no stack can be reached.";

const DOCTOR_HELP: &str = "\
Looks at cores and how far apart they are, the clock's governor, memory, descriptors, network \
namespaces, TAP, packet and XDP sockets, hardware counters, and the programs that some runs use. \
It makes interfaces in a namespace of its own and leaves nothing behind.

Examples:
  perimeter doctor
  perimeter doctor --json | jq '.[] | select(.state != \"ok\") | {name, mend}'

Exit status: 0, whatever is missing.";

const RECOMMEND_HELP: &str = "\
Runs each organization five times at sending, receiving, messages and short connections, in \
turns, over links in memory, and says which is best at which, by how much and how sure that is, \
with the figures below. It needs no privilege; let nothing else run meanwhile. `perimeter bench` \
measures other loads and longer. Ctrl-C ends it and prints what is complete.

Examples:
  perimeter recommend
  perimeter recommend --org up:shared,connp-l:8,squeue:2
  perimeter recommend --json | jq '.findings[] | {work, best, lead, confidence}'

Exit status: 0 measured, 1 a run failed, 2 the request can't be served, 130 ended by Ctrl-C.";

const ORGS_HELP: &str = "\
A capital letter stands for a number: connp-l:N has N groups, 1 to 1024 (connp-l alone has 128). \
Besides these, `bench --org` takes `linux`, the host kernel's own sockets; `linux:offload` and \
`linux:offload=off`, the same with segmentation offloads and without, whatever ours have; and \
`linux:pinned`, all threads on one core. docs/ORGANIZATIONS.md has the parameters that each \
takes. On a terminal a line on each comes along; elsewhere there are bare names, one a line.";

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the parallel TCP benchmark
    #[command(after_help = bench::HELP, allow_negative_numbers = true)]
    Bench(Box<Bench>),
    /// Say which organization suits which work on this machine, after runs of about a minute
    #[command(after_help = RECOMMEND_HELP, allow_negative_numbers = true)]
    Recommend(Recommend),
    /// Carry what a TUN device brings on by the host's own sockets, or through a proxy
    #[command(after_help = crate::gateway::HELP)]
    Gateway(Box<crate::gateway::GatewayArgs>),
    /// Repeat the papers' experiments, and make a report of them
    Lab(Lab),
    /// Say what of this machine can be used, what for, and what mends each lack
    #[command(after_help = DOCTOR_HELP)]
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the canonical names of the organizations
    #[command(after_help = ORGS_HELP)]
    Orgs {
        /// Print JSON with a summary of each
        #[arg(long)]
        json: bool,
    },
    /// Serve HTTP or echo by a stack of ours, to this host's own programs
    #[command(after_help = crate::serve::HELP)]
    Serve(Box<crate::serve::ServeArgs>),
    /// Show the sockets of a running stack, and where the layers of its connections run
    #[command(after_help = SS_HELP)]
    Ss(Ss),
    /// Show what a running stack has counted, by name
    #[command(after_help = crate::ask::stat::HELP, allow_negative_numbers = true)]
    Stat(crate::ask::stat::StatArgs),
    /// Show the busiest connections of a running stack, again and again
    #[command(after_help = crate::ask::top::HELP, allow_negative_numbers = true)]
    Top(crate::ask::top::TopArgs),
    /// Show the frames of a running stack as they pass, or write them to a capture file
    #[command(after_help = crate::ask::pcap::HELP, allow_negative_numbers = true)]
    Pcap(crate::ask::pcap::PcapArgs),
    /// Show the segments of a connection of a running stack as they pass
    #[command(after_help = TRACE_HELP, allow_negative_numbers = true)]
    Trace(Trace),
    /// Print what a shell completes this command by
    #[command(after_help = crate::shell::COMPLETIONS_HELP)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one for each command
    #[command(after_help = crate::shell::MAN_HELP)]
    Man {
        /// The directory that they go to
        directory: PathBuf,
    },
}

/// Arguments of `perimeter recommend`.
#[derive(Debug, Args)]
pub struct Recommend {
    /// Organizations to choose from [default: up, connp-l:128, msgp, and squeue and connp-t with as
    /// many perimeters as there are cores]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ours)]
    pub org: Option<Vec<OrgSpec>>,
    /// Also say what is predicted for so many cores, where the prediction holds on this many; 0: for
    /// none
    #[arg(long, value_name = "N", default_value = "16", value_parser = predicted_cores)]
    pub cores: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `perimeter ss`.
#[derive(Debug, Args)]
pub struct Ss {
    /// The stack's control socket [default: PERIMETER_CONTROL of the environment]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `perimeter trace`.
#[derive(Debug, Args)]
pub struct Trace {
    /// The stack's control socket [default: PERIMETER_CONTROL of the environment]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// The connection, as `perimeter ss` names it
    pub connection: String,
    /// End after this many segments
    #[arg(long, value_name = "N", value_parser = count)]
    pub count: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "S", value_parser = units::seconds)]
    pub seconds: Option<Duration>,
    /// Print JSON, a segment a line
    #[arg(long)]
    pub json: bool,
}

/// A number of segments, frames or looks.
pub fn count(text: &str) -> Result<u64, String> {
    units::whole(text, "the number", 1..=u64::MAX - 1)
}

fn predicted_cores(text: &str) -> Result<usize, String> {
    Ok(units::whole(text, "the number of cores", 0..=MAX_PARALLEL)? as usize)
}
