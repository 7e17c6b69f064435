//! iperf3's server or client on a Perimeter stack.
//!
//! Over TAP, as root: `iperf3 --device tap --org up server`, then `iperf3 -c 10.99.0.2` with
//! the host's iperf3 (`-R`, `-P`, `-n` and `-t` are understood); or the host's `iperf3 -s` and
//! `iperf3 --device tap client 10.99.0.1:5201`. Over memory both roles are in this process.

#[path = "../../perimeter/examples/common/mod.rs"]
mod common;

use clap::{Parser, Subcommand};
use common::{Ends, Result};
use perimeter_interop::iperf::{self, OnStack, Params, Report};
use std::net::SocketAddr;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Speaks iperf3's protocol")]
struct Args {
    #[command(flatten)]
    net: common::Net,
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Serve tests, one after another
    Server {
        /// End after this many
        #[arg(long)]
        tests: Option<usize>,
    },
    /// Run one test
    Client {
        /// Whom to connect to
        #[arg(default_value = "10.99.0.1:5201")]
        to: SocketAddr,
        /// MiB to transfer
        #[arg(long, default_value_t = 1024)]
        mib: u64,
        /// Streams
        #[arg(long, short = 'P', default_value_t = 1)]
        parallel: usize,
        /// The server sends
        #[arg(long, short = 'R')]
        reverse: bool,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    common::main(args.net.open(), |ends| run(&args, &ends))
}

fn run(args: &Args, ends: &Ends) -> Result<()> {
    match &args.role {
        Role::Server { tests } => {
            let at = ends.at(iperf::PORT);
            let mut net = OnStack::server(&ends.stack, at)?;
            println!("listening on {at} ({})", ends.stack.organization());
            let client = ends.peer.clone().map(|peer| {
                std::thread::spawn(move || {
                    let params = Params {
                        bytes: 1 << 28,
                        ..Params::default()
                    };
                    iperf::client(&mut OnStack::client(&peer, at)?, &params).map(|_| ())
                })
            });
            let tests = if client.is_some() { Some(1) } else { *tests };
            for _ in 0..tests.unwrap_or(usize::MAX) {
                match iperf::server(&mut net) {
                    Ok(report) => tell(&report),
                    Err(e) => println!("failed: {e}"),
                }
            }
            common::end(&ends.stack, client)
        }
        Role::Client {
            to,
            mib,
            parallel,
            reverse,
        } => {
            let server = match &ends.peer {
                Some(peer) => {
                    let mut net = OnStack::server(peer, *to)?;
                    Some(std::thread::spawn(move || {
                        iperf::server(&mut net).map(|_| ())
                    }))
                }
                None => None,
            };
            let params = Params {
                bytes: mib << 20,
                parallel: *parallel,
                reverse: *reverse,
                ..Params::default()
            };
            tell(&iperf::client(
                &mut OnStack::client(&ends.stack, *to)?,
                &params,
            )?);
            common::end(&ends.stack, server)
        }
    }
}

fn tell(r: &Report) {
    let rate = r.bytes as f64 * 8e-6 / r.time.as_secs_f64();
    let streams = r.params.parallel;
    println!(
        "{} bytes on {streams} streams in {:.2?}: {rate:.0} Mb/s",
        r.bytes, r.time
    );
}
