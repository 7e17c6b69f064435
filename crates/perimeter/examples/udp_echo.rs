//! An echo server for datagrams (RFC 862), in batches: what has come is taken by one call, and
//! goes back by one call.
//!
//! `cargo run --release --example udp_echo` over memory; over TAP, as root:
//! `udp_echo --device tap`, then `echo hello | nc -u -w 1 10.99.0.2 7`.

mod common;

use clap::Parser;
use common::{Ends, Result};
use perimeter::{Datagrams, Outgoing, UdpSocket};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Sends datagrams back")]
struct Args {
    #[command(flatten)]
    net: common::Net,
    /// Port to receive at
    #[arg(long, default_value_t = 7)]
    port: u16,
    /// End after this many datagrams
    #[arg(long)]
    datagrams: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    common::main(args.net.open(), |ends| run(&args, &ends))
}

fn run(args: &Args, ends: &Ends) -> Result<()> {
    let socket = ends.stack.bind_udp(ends.at(args.port))?;
    let (at, org) = (socket.local_addr()?, ends.stack.organization());
    println!("receiving at {at} ({org})");
    let client = ends.peer.clone().map(|peer| {
        let at = ends.at(args.port);
        std::thread::spawn(move || ask(&peer.bind_udp("0.0.0.0:0")?, at))
    });
    let most = match client {
        Some(_) => ASKED,
        None => args.datagrams.unwrap_or(usize::MAX),
    };
    let mut batch = Datagrams::with_capacity(64);
    let mut total = 0;
    while total < most {
        total += socket.recv_many(&mut batch)?;
        let back = |d: perimeter::Datagram<'_>| (d.source, d.data.to_vec());
        let all: Vec<_> = batch.iter().map(back).collect();
        let out: Vec<_> = all
            .iter()
            .map(|(to, data)| Outgoing {
                to: Some(*to),
                from: None,
                data,
                segment_size: None,
            })
            .collect();
        let mut sent = 0;
        while sent < out.len() {
            sent += socket.send_many(&out[sent..])?;
        }
    }
    println!("{total} datagrams");
    if let Some(client) = client {
        client.join().expect("the client does not panic")?;
    }
    Ok(())
}

/// Datagrams that the client over memory sends.
const ASKED: usize = 100;

/// A client of the other stack.
fn ask(socket: &UdpSocket, at: SocketAddr) -> std::io::Result<()> {
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    socket.connect(at)?;
    let mut buf = [0; 100];
    for n in 0..ASKED as u8 {
        socket.send(&[n; 64])?;
        let len = socket.recv(&mut buf)?;
        assert_eq!(buf[..len], [n; 64]);
    }
    Ok(())
}
