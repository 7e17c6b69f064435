//! What an idle established connection costs in memory.
//!
//! `cargo run --release -p perimeter-bench --bin idle -- --connections 100000`
//!
//! Opens connections of the stack `up` to a device that completes handshakes and remembers
//! nothing, and counts what the library has allocated for them and not given back: everything
//! from the socket's handle to the growth of tables. Fails if that is above the limit.
#![forbid(unsafe_code)]

use anyhow::{Result, anyhow, ensure};
use clap::Parser;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use perimeter::{Events, Inbound, Interest, Poll, Stack, TcpStream, Token};
use perimeter_bench::device::{Greeter, HOST, PEER, PREFIX};
use perimeter_bench::world::K;
use perimeter_stack::Conn;
use perimeter_stack::conn::{Meta, RcvSide, SndSide, TcbSide};
use perimeter_sync::Native;
use perimeter_tcp::{RcvBuf, SndBuf, Tcb};
use std::process::ExitCode;
use std::time::Duration;

/// Connections to one remote address: fewer than there are ephemeral ports.
const PER_PEER: usize = 25_000;

/// Memory of idle established connections.
#[derive(Parser)]
struct Args {
    /// How many connections to open.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Bytes that one may take; more is an error.
    #[arg(long, default_value_t = 1536)]
    limit: u64,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let n = args.connections as usize;
    let stack = Stack::builder()
        .on_native(Native::default())
        .organization("up")?
        .inbound(Inbound::Inline)
        // The greeter acknowledges nothing.
        .config(perimeter::Config::default().with_drain(std::time::Duration::ZERO))
        .interface(Greeter, &[&format!("{HOST}/{PREFIX}")])?
        .build()?;
    // What comes with the first connection belongs to none: the thread's context, packets in
    // stock, neighbours.
    let first: Vec<TcpStream> = (0..=(n - 1) / PER_PEER)
        .map(|p| stack.connect(remote(p)))
        .collect::<Result<_, _>>()?;

    let mut streams = Vec::with_capacity(n);
    let before = resident();
    let (bytes, live) = counted(|| open(&stack, n, &mut streams))?;
    let grown = resident().saturating_sub(before);
    let poll = stack.poll()?;
    let (watched, _) = counted(|| watch(&poll, &streams))?;
    ensure!(
        stack.stats().connections == n + first.len(),
        "connections have gone"
    );

    let each = |b: u64| b as f64 / f64::from(args.connections);
    println!("{n} idle established connections, bytes for each:");
    println!("{:8.0}  allocated by the library", each(bytes));
    println!("{:8.0}  resident memory grew by", each(grown));
    println!("{:8.1}  allocations", each(live));
    println!(
        "{:8.0}  more for a registration with a poller",
        each(watched)
    );
    println!("size of what a connection consists of:");
    for (name, size) in parts() {
        println!("{size:8}  {name}");
    }
    let good = bytes <= args.limit * n as u64;
    if !good {
        eprintln!("error: more than {} bytes", args.limit);
    }
    Ok(ExitCode::from(u8::from(!good)))
}

/// Parts of a connection and their sizes in its table.
fn parts() -> [(&'static str, usize); 8] {
    [
        ("Conn", size_of::<Conn<K>>()),
        ("  TcbSide", size_of::<TcbSide<K>>()),
        ("    Tcb", size_of::<Tcb>()),
        ("    Meta", size_of::<Meta<K>>()),
        ("  SndSide", size_of::<SndSide<K>>()),
        ("    SndBuf", size_of::<SndBuf>()),
        ("  RcvSide", size_of::<RcvSide<K>>()),
        ("    RcvBuf", size_of::<RcvBuf>()),
    ]
}

/// Resident memory of this process, bytes; 0 where the system does not say.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|p| p.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// Bytes and allocations that are live after `f` and were not before.
fn counted(f: impl FnOnce() -> Result<()>) -> Result<(u64, u64)> {
    let mut out = Err(anyhow!("nothing ran"));
    let info = allocation_counter::measure(|| out = f());
    out?;
    Ok((
        u64::try_from(info.bytes_current)?,
        u64::try_from(info.count_current)?,
    ))
}

fn remote(peer: usize) -> SocketAddr {
    let ip = Ipv4Addr::from_bits(PEER.to_bits() + peer as u32);
    SocketAddr::new(IpAddr::V4(ip), 5001)
}

/// Opens `n` connections, into room that is there already.
fn open(stack: &Stack, n: usize, streams: &mut Vec<TcpStream>) -> Result<()> {
    for i in 0..n {
        let s = stack.connect_timeout(remote(i / PER_PEER), Duration::from_secs(10))?;
        streams.push(s);
    }
    Ok(())
}

/// Registers all with a poller; none has anything to say.
fn watch(poll: &Poll, streams: &[TcpStream]) -> Result<()> {
    for (n, s) in streams.iter().enumerate() {
        poll.registry().register(s, Token(n), Interest::READABLE)?;
    }
    let mut events = Events::with_capacity(16);
    poll.poll(&mut events, Some(Duration::ZERO))?;
    ensure!(events.is_empty(), "an idle connection is readable");
    Ok(())
}
