//! An echo server (RFC 862) with blocking calls: a thread per connection; under `up`, which
//! has one thread, one connection after another. For many connections on one thread see
//! `poll.rs`.
//!
//! `cargo run --release --example echo` over memory; over TAP, as root: `echo --device tap`,
//! then `nc -N 10.99.0.2 7 < FILE`.

mod common;

use clap::Parser;
use common::{Ends, Result};
use perimeter::{Stack, TcpStream};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Sends back what it receives")]
struct Args {
    #[command(flatten)]
    net: common::Net,
    /// Port to listen on
    #[arg(long, default_value_t = 7)]
    port: u16,
    /// End after this many connections
    #[arg(long)]
    connections: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    common::main(args.net.open(), |ends| run(&args, &ends))
}

fn run(args: &Args, ends: &Ends) -> Result<()> {
    let listener = ends.stack.listen(ends.at(args.port))?;
    println!(
        "listening on {} ({})",
        listener.local_addr()?,
        ends.stack.organization()
    );
    let client = ends.peer.clone().map(|peer| {
        let at = ends.at(args.port);
        std::thread::spawn(move || visit(&peer, at))
    });
    let alone = ends.stack.organization().single_threaded();
    let most = if client.is_some() {
        Some(3)
    } else {
        args.connections
    };
    let mut threads = Vec::new();
    for s in listener.incoming().take(most.unwrap_or(usize::MAX)) {
        let s = s?;
        let work = move || match echo(&s) {
            Ok(n) => println!("{n} bytes"),
            Err(e) => println!("{e}"),
        };
        if alone {
            work();
        } else {
            threads.push(std::thread::spawn(work));
            threads.retain(|t| !t.is_finished());
        }
    }
    for t in threads {
        t.join().map_err(|_| "a connection's thread panicked")?;
    }
    common::end(&ends.stack, client)
}

fn echo(mut s: &TcpStream) -> io::Result<u64> {
    let mut buf = vec![0; 64 * 1024];
    let mut total = 0;
    loop {
        let n = s.read(&mut buf)?;
        if n == 0 {
            s.shutdown(Shutdown::Write)?;
            return Ok(total);
        }
        s.write_all(&buf[..n])?;
        total += n as u64;
    }
}

fn visit(stack: &Stack, at: SocketAddr) -> io::Result<()> {
    for size in [0usize, 10, 100_000] {
        let mut s = stack.connect(at)?;
        let sent: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        s.write_all(&sent)?;
        s.shutdown(Shutdown::Write)?;
        let mut back = Vec::new();
        s.read_to_end(&mut back)?;
        if back != sent {
            return Err(io::Error::other("the echo differs"));
        }
    }
    println!("three echoes came back as they were sent");
    Ok(())
}
