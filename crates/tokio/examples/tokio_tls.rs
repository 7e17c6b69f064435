//! TLS by rustls: a server with a certificate of its own, and clients that trust that one alone.
//!
//! Over memory both parts run here: `cargo run -p perimeter-tokio --example tokio_tls`. Over TAP the
//! server alone, for the kernel's programs: `… -- --device tap:perimeter0` as root, then
//! `openssl s_client -connect 10.99.0.2:443`.

#[path = "../../perimeter/examples/common/mod.rs"]
mod common;

use clap::Parser;
use common::{Ends, Result};
use perimeter_tokio::{Net, TcpListener};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::task::JoinSet;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// TLS echo server and clients on tokio, by rustls.
#[derive(Parser, Debug)]
pub struct Args {
    #[command(flatten)]
    net: common::Net,
    /// Port
    #[arg(long, default_value_t = 443)]
    port: u16,
    /// Clients over memory
    #[arg(long, default_value_t = 20)]
    clients: usize,
    /// Bytes that each sends
    #[arg(long, default_value_t = 200_000)]
    bytes: usize,
}

/// The name that the certificate is for.
const NAME: &str = "server.example";

fn configured() -> Result<(ServerConfig, ClientConfig)> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone())?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    let client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok((server, client))
}

async fn serve(listener: TcpListener, tls: TlsAcceptor) -> std::io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let tls = tls.clone();
        tokio::spawn(async move {
            let echo = async {
                let (mut r, mut w) = split(tls.accept(stream).await?);
                copy(&mut r, &mut w).await?;
                w.shutdown().await
            };
            if let Err(e) = echo.await {
                eprintln!("{peer}: {e}");
            }
        });
    }
}

async fn client(
    net: Net,
    server: SocketAddr,
    tls: TlsConnector,
    len: usize,
) -> std::io::Result<()> {
    let name = ServerName::try_from(NAME).map_err(std::io::Error::other)?;
    let stream = net.connect(server).await?;
    let (mut r, mut w) = split(tls.connect(name, stream).await?);
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
    let (server, client_side) = configured()?;
    let (acceptor, connector) = (
        TlsAcceptor::from(Arc::new(server)),
        TlsConnector::from(Arc::new(client_side)),
    );
    let server = ends.at(args.port);
    let listener = Net::new(ends.stack.clone()).listen(server).await?;
    println!("listening on {server}");
    let serving = tokio::spawn(serve(listener, acceptor));
    let Some(peer) = ends.peer else {
        return Ok(serving.await??);
    };
    let net = Net::new(peer);
    let mut clients = JoinSet::new();
    for _ in 0..args.clients {
        clients.spawn(client(net.clone(), server, connector.clone(), args.bytes));
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
