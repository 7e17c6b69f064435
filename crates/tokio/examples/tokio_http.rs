//! HTTP by hyper: a server of HTTP/1.1 and HTTP/2, and a client of both.
//!
//! Over memory both parts run here: `cargo run -p perimeter-tokio --example tokio_http`. Over TAP the
//! server alone, for the kernel's programs: `… -- --device tap:perimeter0` as root, then
//! `curl http://10.99.0.2/bytes/1000`.

#[path = "../../perimeter/examples/common/mod.rs"]
mod common;

use clap::Parser;
use common::{Ends, Result};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use perimeter_tokio::{Net, TcpListener};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::task::JoinSet;

/// HTTP server and client on tokio, by hyper.
#[derive(Parser, Debug)]
pub struct Args {
    #[command(flatten)]
    net: common::Net,
    /// Port
    #[arg(long, default_value_t = 80)]
    port: u16,
    /// Connections over memory, half of them of HTTP/2
    #[arg(long, default_value_t = 20)]
    connections: usize,
    /// Requests on each
    #[arg(long, default_value_t = 20)]
    requests: usize,
}

/// The most that one request is given.
const MOST: usize = 64 << 20;

/// GET /bytes/N gives N bytes; POST counts what it is sent.
async fn answer(
    request: Request<Incoming>,
) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let wanted = path.strip_prefix("/bytes/").and_then(|n| n.parse().ok());
    let (status, body) = match (request.method(), wanted) {
        (&Method::GET, Some(n)) if n <= MOST => (StatusCode::OK, Bytes::from(vec![b'x'; n])),
        (&Method::POST, _) => match request.into_body().collect().await {
            Ok(body) => (
                StatusCode::OK,
                Bytes::from(format!("{}\n", body.to_bytes().len())),
            ),
            Err(_) => (StatusCode::BAD_REQUEST, Bytes::new()),
        },
        _ => (StatusCode::NOT_FOUND, Bytes::from_static(b"GET /bytes/N\n")),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    Ok(response)
}

async fn serve(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        tokio::spawn(async move {
            let both = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            let io = TokioIo::new(stream);
            if let Err(e) = both.serve_connection(io, service_fn(answer)).await {
                eprintln!("{peer}: {e}");
            }
        });
    }
}

fn get(server: SocketAddr, n: usize) -> Request<Full<Bytes>> {
    Request::get(format!("http://{server}/bytes/{n}"))
        .header("host", server.to_string())
        .body(Full::default())
        .expect("a request")
}

/// What both kinds of connection can be asked.
enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    async fn send(&mut self, r: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Sender::One(s) => s.send_request(r).await,
            Sender::Two(s) => s.send_request(r).await,
        }
    }
}

async fn client(net: Net, server: SocketAddr, two: bool, requests: usize) -> std::io::Result<()> {
    let other = |e: hyper::Error| std::io::Error::other(e);
    let io = TokioIo::new(net.connect(server).await?);
    let mut sender = if two {
        let (s, conn) = http2::handshake(TokioExecutor::new(), io)
            .await
            .map_err(other)?;
        tokio::spawn(conn);
        Sender::Two(s)
    } else {
        let (s, conn) = http1::handshake(io).await.map_err(other)?;
        tokio::spawn(conn);
        Sender::One(s)
    };
    for n in 0..requests {
        let want = n * n * 100;
        let response = sender.send(get(server, want)).await.map_err(other)?;
        let ok = response.status() == StatusCode::OK;
        let body = response.into_body().collect().await.map_err(other)?;
        let got = body.to_bytes().len();
        if !ok || got != want {
            let text = format!("{got} bytes instead of {want}");
            return Err(std::io::Error::other(text));
        }
    }
    Ok(())
}

async fn run(ends: Ends, args: Args) -> Result<()> {
    let server = ends.at(args.port);
    let listener = Net::new(ends.stack.clone()).listen(server).await?;
    println!("listening on {server}");
    let serving = tokio::spawn(serve(listener));
    let Some(peer) = ends.peer else {
        return Ok(serving.await??);
    };
    let net = Net::new(peer);
    let mut clients = JoinSet::new();
    for n in 0..args.connections {
        clients.spawn(client(net.clone(), server, n % 2 == 1, args.requests));
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    println!(
        "{} connections: {} requests each answered",
        args.connections, args.requests
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
