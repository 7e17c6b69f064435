//! Zero-copy sending: the stack holds reference-counted pages until they are acknowledged and
//! the device is done with them, and says how far it has come. The same pages go out on
//! several connections at once; nothing is copied.
//!
//! `cargo run --release --example zero_copy` over memory; over TAP, as root:
//! `zero_copy --device tap 10.99.0.1:9000`.

mod common;

use clap::Parser;
use common::{Ends, Result};
use perimeter::{Bytes, TcpStream};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

const PAGE: usize = 64 * 1024;

#[derive(Parser)]
#[command(about = "Sends the same pages on several connections")]
struct Args {
    #[command(flatten)]
    net: common::Net,
    /// Connections
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Pages of 64 KiB that each connection sends
    #[arg(long, default_value_t = 256)]
    pages: usize,
    /// Whom to connect to
    #[arg(default_value = "10.99.0.1:9000")]
    to: SocketAddr,
}

fn main() -> ExitCode {
    let args = Args::parse();
    common::main(args.net.open(), |ends| run(&args, &ends))
}

fn run(args: &Args, ends: &Ends) -> Result<()> {
    if let Some(peer) = &ends.peer {
        let listener = peer.listen(args.to)?;
        std::thread::spawn(move || {
            for s in listener.incoming().flatten() {
                std::thread::spawn(move || io::copy(&mut &s, &mut io::sink()));
            }
        });
    }
    // One page, referred to as often as it is sent.
    let page: Bytes = (0..PAGE)
        .map(|i| (i % 251) as u8)
        .collect::<Vec<u8>>()
        .into();
    let mut streams = Vec::new();
    for _ in 0..args.connections {
        streams.push(
            ends.stack
                .connect(args.to)
                .map_err(|e| format!("{}: {e}", args.to))?,
        );
    }
    for round in 0..args.pages {
        for s in &streams {
            send_all(s, page.clone())?;
        }
        if round == args.pages / 2 {
            let (taken, released) = streams[0].zero_copy_progress()?;
            println!(
                "half way: {taken} bytes taken, {} still referred to",
                taken - released
            );
        }
    }
    for s in &streams {
        s.shutdown(Shutdown::Write)?;
        while let (taken, released) = s.zero_copy_progress()?
            && released < taken
        {
            // Under `up` nobody else serves the device.
            ends.stack.drive()?;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(streams);
    println!(
        "{} bytes acknowledged and released",
        args.connections * args.pages * PAGE
    );
    Ok(())
}

fn send_all(s: &TcpStream, mut page: Bytes) -> io::Result<()> {
    while !page.is_empty() {
        let n = s.send_zero_copy(std::slice::from_ref(&page))?;
        let _ = page.split_to(n);
    }
    Ok(())
}
