//! An echo server, and clients that compare what comes back.
//!
//! Over memory both parts run here: `cargo run -p perimeter-tokio --example tokio_echo`. Over TAP the
//! server alone, for the kernel's programs: `… -- --device tap:perimeter0` as root, then
//! `nc 10.99.0.2 7`.

#[path = "../../perimeter/examples/common/mod.rs"]
mod common;

use clap::Parser;
use common::{Ends, Result};
use perimeter_tokio::{Net, TcpStream};
use std::process::ExitCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::task::JoinSet;

/// Echo server and clients on tokio.
#[derive(Parser, Debug)]
pub struct Args {
    #[command(flatten)]
    net: common::Net,
    /// Port
    #[arg(long, default_value_t = 7)]
    port: u16,
    /// Clients over memory
    #[arg(long, default_value_t = 100)]
    clients: usize,
    /// Bytes that each sends
    #[arg(long, default_value_t = 100_000)]
    bytes: usize,
}

async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let (mut r, mut w) = stream.split();
    copy(&mut r, &mut w).await?;
    w.shutdown().await
}

async fn client(net: Net, server: std::net::SocketAddr, len: usize) -> std::io::Result<()> {
    let (mut r, mut w) = net.connect(server).await?.into_split();
    let sent: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
    let mut back = Vec::new();
    let write = async {
        w.write_all(&sent).await?;
        w.shutdown().await
    };
    tokio::try_join!(write, r.read_to_end(&mut back))?;
    match back == sent {
        true => Ok(()),
        false => Err(std::io::Error::other("something else came back")),
    }
}

async fn run(ends: Ends, args: Args) -> Result<()> {
    let server = ends.at(args.port);
    let listener = Net::new(ends.stack.clone()).listen(server).await?;
    println!("listening on {server}");
    let serving = tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await?;
            tokio::spawn(async move {
                if let Err(e) = serve(stream).await {
                    eprintln!("{peer}: {e}");
                }
            });
        }
        #[expect(unreachable_code, reason = "tells the type")]
        std::io::Result::Ok(())
    });
    let Some(peer) = ends.peer else {
        return Ok(serving.await??);
    };
    let net = Net::new(peer);
    let mut clients = JoinSet::new();
    for _ in 0..args.clients {
        clients.spawn(client(net.clone(), server, args.bytes));
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    println!(
        "{} clients: {} bytes each came back",
        args.clients, args.bytes
    );
    serving.abort();
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    example(Args::parse()).await
}

/// The example, whatever its arguments come from.
pub async fn example(args: Args) -> ExitCode {
    common::main_async(args.net.open(), |ends| run(ends, args)).await
}
