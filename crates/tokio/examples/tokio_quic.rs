//! QUIC by quinn over UDP sockets of the stack: a server, and clients with several streams each.
//!
//! Both parts run here, over memory: `cargo run -p perimeter-tokio --example tokio_quic`.

#[path = "../../perimeter/examples/common/mod.rs"]
mod common;

use clap::Parser;
use common::{Ends, Result};
use perimeter::{Datagrams, Outgoing};
use perimeter_tokio::{Net, UdpSocket};
use quinn::UdpPoller;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::PrivateKeyDer;
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, ClientConfig, Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use std::fmt;
use std::future::Future;
use std::io::{Error, ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::task::JoinSet;

/// QUIC server and clients on tokio, by quinn.
#[derive(Parser, Debug)]
pub struct Args {
    #[command(flatten)]
    net: common::Net,
    /// Port
    #[arg(long, default_value_t = 443)]
    port: u16,
    /// Clients
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Streams of each
    #[arg(long, default_value_t = 8)]
    streams: usize,
    /// Bytes that go each way on a stream
    #[arg(long, default_value_t = 200_000)]
    bytes: usize,
}

/// The name that the certificate is for.
const NAME: &str = "server.example";

/// How many datagrams are taken from the stack at a time.
const BATCH: usize = 32;

/// Cut by the stack into as many datagrams: what fits 64 KiB at 1,400 bytes each.
const SEGMENTS: usize = 40;

/// A socket of the stack as quinn takes one.
#[derive(Debug)]
struct QuicSocket {
    socket: Arc<UdpSocket>,
    received: Mutex<Received>,
}

/// Datagrams that were taken from the stack, and how many of them quinn has had.
struct Received {
    batch: Datagrams,
    done: usize,
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.done, self.batch.len())
    }
}

impl QuicSocket {
    fn new(socket: UdpSocket) -> std::io::Result<Arc<QuicSocket>> {
        // QUIC finds the path's MTU by datagrams that are not cut (RFC 9000, section 14).
        socket.get_ref().set_dont_fragment(true)?;
        Ok(Arc::new(QuicSocket {
            socket: Arc::new(socket),
            received: Mutex::new(Received {
                batch: Datagrams::with_capacity(BATCH),
                done: 0,
            }),
        }))
    }
}

type Writable = Pin<Box<dyn Future<Output = std::io::Result<()>> + Send + Sync>>;

/// Waits for room, for one connection.
struct Room {
    socket: Arc<UdpSocket>,
    waiting: Option<Writable>,
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "room of {:?}", self.socket)
    }
}

impl UdpPoller for Room {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        let waiting = this.waiting.get_or_insert_with(|| {
            let socket = this.socket.clone();
            Box::pin(async move { socket.writable().await })
        });
        let done = ready!(waiting.as_mut().poll(cx));
        this.waiting = None;
        Poll::Ready(done)
    }
}

impl AsyncUdpSocket for QuicSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Room {
            socket: self.socket.clone(),
            waiting: None,
        })
    }

    fn try_send(&self, t: &Transmit<'_>) -> std::io::Result<()> {
        let one = Outgoing {
            to: Some(t.destination),
            from: None,
            data: t.contents,
            segment_size: t.segment_size.and_then(|n| u16::try_from(n).ok()),
        };
        match self.socket.try_send_many(&[one]) {
            Ok(_) => Ok(()),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Err(e),
            // Lost, as far as QUIC is concerned, which sends it again: a probe that was too long,
            // or an error that the network sent about an earlier datagram.
            Err(_) => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<std::io::Result<usize>> {
        let mut guard = self.received.lock().map_err(|_| Error::other("poisoned"))?;
        let Received { batch, done } = &mut *guard;
        if *done == batch.len() {
            *done = 0;
            batch.clear();
            // Errors are of earlier datagrams, and QUIC has its own means to tell those.
            while ready!(self.socket.poll_recv_many(cx, batch)).is_err() {
                self.socket.get_ref().info()?;
            }
        }
        let mut n = 0;
        let waiting = batch.iter().skip(*done);
        for ((d, buf), meta) in waiting.zip(bufs.iter_mut()).zip(meta.iter_mut()) {
            let len = d.data.len().min(buf.len());
            buf[..len].copy_from_slice(&d.data[..len]);
            *meta = RecvMeta::default();
            meta.addr = d.source;
            meta.len = len;
            meta.stride = len;
            meta.ecn = EcnCodepoint::from_bits(d.tos & 3);
            meta.dst_ip = Some(d.destination.ip());
            n += 1;
        }
        *done += n;
        Poll::Ready(Ok(n))
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        SEGMENTS
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

fn configured() -> Result<(ServerConfig, ClientConfig)> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone())?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    let server = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key)?;
    Ok((
        server,
        ClientConfig::with_root_certificates(Arc::new(roots))?,
    ))
}

fn endpoint(socket: UdpSocket, server: Option<ServerConfig>) -> Result<Endpoint> {
    let socket = QuicSocket::new(socket)?;
    let runtime = Arc::new(TokioRuntime);
    let config = EndpointConfig::default();
    Ok(Endpoint::new_with_abstract_socket(
        config, server, socket, runtime,
    )?)
}

/// Sends back what comes on every stream.
async fn serve(endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else {
                return;
            };
            while let Ok((mut send, mut recv)) = connection.accept_bi().await {
                tokio::spawn(async move {
                    if tokio::io::copy(&mut recv, &mut send).await.is_ok() {
                        let _ = send.finish();
                    }
                });
            }
        });
    }
}

async fn client(endpoint: Endpoint, server: SocketAddr, args: Arc<Args>) -> std::io::Result<()> {
    let other = std::io::Error::other::<Box<dyn std::error::Error + Send + Sync>>;
    let connecting = endpoint
        .connect(server, NAME)
        .map_err(|e| other(e.into()))?;
    let connection = connecting.await?;
    let mut streams = JoinSet::new();
    for n in 0..args.streams {
        let (connection, len) = (connection.clone(), args.bytes);
        streams.spawn(async move {
            let (mut send, mut recv) = connection.open_bi().await?;
            let sent: Vec<u8> = (0..len).map(|i| ((i + n) % 251) as u8).collect();
            let write = async {
                send.write_all(&sent).await?;
                send.finish()?;
                std::io::Result::Ok(())
            };
            let read = async { recv.read_to_end(len).await.map_err(|e| other(e.into())) };
            let ((), back) = tokio::try_join!(write, read)?;
            match back == sent {
                true => Ok(()),
                false => Err(Error::other("something else came back")),
            }
        });
    }
    while let Some(done) = streams.join_next().await {
        done??;
    }
    connection.close(0u32.into(), b"done");
    Ok(())
}

async fn run(ends: Ends, args: Args) -> Result<()> {
    let (server_side, client_side) = configured()?;
    let server = ends.at(args.port);
    let net = Net::new(ends.stack.clone());
    let serving = endpoint(net.bind_udp(server).await?, Some(server_side))?;
    println!("listening on {server}");
    let task = tokio::spawn(serve(serving.clone()));
    let Some(peer) = ends.peer else {
        return Ok(task.await?);
    };
    let net = Net::new(peer);
    let mut calling = endpoint(net.bind_udp((ends.peer_address, 0)).await?, None)?;
    calling.set_default_client_config(client_side);
    let args = Arc::new(args);
    let mut clients = JoinSet::new();
    for _ in 0..args.clients {
        clients.spawn(client(calling.clone(), server, args.clone()));
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    println!(
        "{} clients with {} streams: {} bytes on each came back",
        args.clients, args.streams, args.bytes
    );
    calling.wait_idle().await;
    serving.close(0u32.into(), b"");
    task.abort();
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
