//! Calls that do not block, without a poller: connect, send and receive by trying, with other
//! work in between.
//!
//! `cargo run --release --example nonblocking` over memory; over TAP, as root, with an echo
//! server of the host's: `nonblocking --device tap 10.99.0.1:7`.

mod common;

use clap::Parser;
use common::{Ends, Result};
use perimeter::State;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Sends to an echo server and compares, without ever blocking")]
struct Args {
    #[command(flatten)]
    net: common::Net,
    /// Bytes to send
    #[arg(long, default_value_t = 1_000_000)]
    bytes: usize,
    /// Whom to connect to
    #[arg(default_value = "10.99.0.1:7")]
    to: SocketAddr,
}

fn main() -> ExitCode {
    let args = Args::parse();
    common::main(args.net.open(), |ends| run(&args, &ends))
}

/// `None` when the call would have blocked.
fn attempt<T>(r: io::Result<T>) -> io::Result<Option<T>> {
    match r {
        Ok(v) => Ok(Some(v)),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}

fn run(args: &Args, ends: &Ends) -> Result<()> {
    if let Some(peer) = &ends.peer {
        let listener = peer.listen(args.to)?;
        std::thread::spawn(move || {
            let (s, _) = listener.accept()?;
            io::copy(&mut &s, &mut &s)?;
            s.shutdown(Shutdown::Write)
        });
    }
    let mut idle = 0u64;
    let mut other_work = || -> io::Result<()> {
        idle += 1;
        // Under `up` the stack runs when it is called; elsewhere by itself.
        if ends.stack.drive()? == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    };
    let mut s = ends.stack.start_connect(args.to)?;
    s.set_nonblocking(true)?;
    while matches!(s.info()?.tcp.state, State::SynSent | State::SynReceived) {
        other_work()?;
    }
    if let Some(e) = s.take_error()? {
        return Err(format!("{}: {e}", args.to).into());
    }
    println!(
        "connected from {} ({})",
        s.local_addr()?,
        ends.stack.organization()
    );

    let data: Vec<u8> = (0..args.bytes).map(|i| (i % 251) as u8).collect();
    let (mut sent, mut back, mut buf) = (0, Vec::with_capacity(data.len()), vec![0; 64 * 1024]);
    let mut shut = false;
    loop {
        let mut moved = false;
        if sent < data.len()
            && let Some(n) = attempt(s.write(&data[sent..]))?
        {
            sent += n;
            moved = true;
        }
        if sent == data.len() && !shut {
            s.shutdown(Shutdown::Write)?;
            shut = true;
        }
        match attempt(s.read(&mut buf))? {
            Some(0) => break,
            Some(n) => back.extend_from_slice(&buf[..n]),
            None if !moved => other_work()?,
            None => {}
        }
    }
    println!(
        "{sent} bytes sent, {} came back; {idle} times there was nothing to do",
        back.len()
    );
    if back != data {
        return Err("the echo differs".into());
    }
    Ok(())
}
