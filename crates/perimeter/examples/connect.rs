//! A client: connects, sends a file zero-copy if there is one, closes its direction, and receives
//! until the other side closes too. Prints both SHA-256.
//!
//! `cargo run --release --example connect -- --send Cargo.lock` over memory, where an echo
//! server answers; over TAP, as root: `connect --device tap --send FILE 10.99.0.1:9000`.

mod common;

use clap::Parser;
use common::{Ends, Result, receive, send_file};
use perimeter::SharedFile;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Connects, sends a file, receives one")]
struct Args {
    #[command(flatten)]
    net: common::Net,
    /// File to send first
    #[arg(long)]
    send: Option<PathBuf>,
    /// Where to put what is received; only its digest is printed otherwise
    #[arg(long)]
    receive: Option<PathBuf>,
    /// Whom to connect to
    #[arg(default_value = "10.99.0.1:7")]
    to: SocketAddr,
}

fn main() -> ExitCode {
    let args = Args::parse();
    common::main(args.net.open(), |ends| run(&args, &ends))
}

fn run(args: &Args, ends: &Ends) -> Result<()> {
    let file = match &args.send {
        Some(p) => Some(SharedFile::open(p).map_err(|e| format!("{}: {e}", p.display()))?),
        None => None,
    };
    let mut out: Box<dyn Write> = match &args.receive {
        Some(p) => Box::new(File::create(p).map_err(|e| format!("{}: {e}", p.display()))?),
        None => Box::new(io::sink()),
    };
    if let Some(peer) = &ends.peer {
        let listener = peer.listen(args.to)?;
        std::thread::spawn(move || {
            let (s, _) = listener.accept()?;
            let copied = io::copy(&mut &s, &mut &s)?;
            s.shutdown(Shutdown::Write)?;
            Ok::<u64, io::Error>(copied)
        });
    }
    let mut s = ends
        .stack
        .connect_timeout(args.to, Duration::from_secs(30))
        .map_err(|e| format!("{}: {e}", args.to))?;
    println!(
        "{} → {} ({})",
        s.local_addr()?,
        s.peer_addr()?,
        ends.stack.organization()
    );
    // While one thread sends, what comes back must be taken, or both ends wait for room.
    let alone = ends.stack.organization().single_threaded();
    let sender = file.map(|f| {
        let s = s.try_clone();
        move || -> io::Result<()> {
            let s = s?;
            println!("sent     {} {}", f.len(), send_file(&s, &f)?);
            s.shutdown(Shutdown::Write)
        }
    });
    let thread = match sender {
        Some(send) if alone => {
            send()?;
            None
        }
        Some(send) => Some(std::thread::spawn(send)),
        // Nothing is to come from here, which an echo server wants to know.
        None => {
            s.shutdown(Shutdown::Write)?;
            None
        }
    };
    let (digest, n) = receive(&mut s, &mut out, u64::MAX)?;
    println!("received {n} {digest}");
    if let Some(t) = thread {
        t.join().map_err(|_| "the sender panicked")??;
    }
    Ok(())
}
