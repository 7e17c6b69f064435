//! A whole gateway without privilege: the inside is another stack, whose packets go to the gateway's
//! sink and come from its stream; the outside is behind a SOCKS5 proxy of the tests' own, for which
//! every address is this machine.

use futures_core::Stream;
use futures_sink::Sink;
use perimeter::link::pipe::{PipeConfig, PipeEnd, channel};
use perimeter::{Native, Stack, TcpStream as Inside};
use perimeter_tokio::gateway::packets::{Packets, packets};
use perimeter_tokio::gateway::{Counts, Gateway, Settings, SocketOptions, Upstream, socks};
use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A port that the proxy never answers for.
const BLACK_HOLE: u16 = 1;

async fn to_gateway(from: PipeEnd<Native>, mut to: Packets) {
    while let Some(packet) = poll_fn(|cx| from.poll_recv(cx)).await {
        if poll_fn(|cx| Pin::new(&mut to).poll_ready(cx))
            .await
            .is_err()
        {
            return;
        }
        Pin::new(&mut to)
            .start_send(packet.as_slice().to_vec())
            .unwrap();
    }
}

async fn from_gateway(mut from: Packets, to: PipeEnd<Native>) {
    while let Some(packet) = poll_fn(|cx| Pin::new(&mut from).poll_next(cx)).await {
        let packet = perimeter_base::PktBuf::from_vec(packet.unwrap());
        if poll_fn(|cx| to.poll_ready(cx)).await.is_err() {
            return;
        }
        to.send(packet).unwrap();
    }
}

struct World {
    inside: Stack,
    counts: Arc<Counts>,
    stop: Arc<Notify>,
    gateway: JoinHandle<std::io::Result<()>>,
}

impl World {
    async fn new() -> World {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("socks5://me:secret@{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((s, _)) = listener.accept().await {
                tokio::spawn(proxy(s));
            }
        });
        let limit = Duration::from_millis(500);
        let upstream = Upstream::new(target.parse().unwrap(), SocketOptions::default(), limit);
        let stack = || Stack::builder().organization("up:shared").unwrap();
        let (b, outer) = packets(stack(), 1500).unwrap();
        let settings = Settings::default()
            .with_session_time(Duration::from_secs(1))
            .with_drain(Duration::from_millis(500));
        let gateway = Gateway::new(b.build().unwrap(), upstream.await.unwrap(), settings);
        let gateway = gateway.unwrap();
        let counts = gateway.counts();
        let (device, end) = channel(&Native::default(), PipeConfig::default());
        let b = stack()
            .interface(device, &["10.0.0.2/24", "fd00::2/64"])
            .unwrap();
        let b = b.route("0.0.0.0/0", None, 0).unwrap();
        let inside = b.route("::/0", None, 0).unwrap().build().unwrap();
        tokio::spawn(to_gateway(end.clone(), outer.clone()));
        tokio::spawn(from_gateway(outer, end));
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let gateway = tokio::spawn(gateway.run(async move { stopped.notified().await }));
        World {
            inside,
            counts,
            stop,
            gateway,
        }
    }

    /// Runs the inside's program, which blocks, and then ends the gateway.
    async fn run(self, f: impl FnOnce(&Stack) + Send + 'static) -> Arc<Counts> {
        let inside = self.inside;
        let program = tokio::task::spawn_blocking(move || {
            f(&inside);
            inside
        });
        let inside = program.await.unwrap();
        self.stop.notify_one();
        self.gateway.await.unwrap().unwrap();
        inside.stop();
        self.counts
    }
}

/// The proxy's side of RFC 1928 and 1929.
async fn proxy(mut s: TcpStream) -> std::io::Result<()> {
    let mut hello = [0; 4];
    s.read_exact(&mut hello).await?;
    assert_eq!(hello, [5, 2, 0, 2]);
    s.write_all(&[5, 2]).await?;
    let mut login = [0; 11];
    s.read_exact(&mut login).await?;
    assert_eq!(&login, b"\x01\x02me\x06secret");
    s.write_all(&[1, 0]).await?;
    let mut head = [0; 4];
    s.read_exact(&mut head).await?;
    let len = if head[3] == 1 { 4 } else { 16 };
    s.read_exact(&mut vec![0; len]).await?;
    let port = s.read_u16().await?;
    let reply = |code: u8, port: u16| {
        let [high, low] = port.to_be_bytes();
        [5, code, 0, 1, 127, 0, 0, 1, high, low]
    };
    if head[1] == 3 {
        let relay = UdpSocket::bind("127.0.0.1:0").await?;
        s.write_all(&reply(0, relay.local_addr()?.port())).await?;
        return tokio::select! {
            e = datagrams(relay) => e,
            _ = s.read_u8() => Ok(()),
        };
    }
    if port == BLACK_HOLE {
        return std::future::pending().await;
    }
    match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        Ok(up) => {
            s.write_all(&reply(0, 0)).await?;
            let stop = std::future::pending::<()>();
            perimeter_tokio::gateway::relay::relay(s, up, stop, |_| ()).await;
            Ok(())
        }
        Err(_) => s.write_all(&reply(5, 0)).await,
    }
}

/// Relays datagrams to this machine, and the answers in the names of those that were asked.
async fn datagrams(relay: UdpSocket) -> std::io::Result<()> {
    let out = UdpSocket::bind("127.0.0.1:0").await?;
    let (mut buf, mut client, mut asked) = (vec![0; 65_536], None, None::<SocketAddr>);
    let mut back = vec![0; 65_536];
    loop {
        tokio::select! {
            got = relay.recv_from(&mut buf) => {
                let (n, from) = got?;
                client = Some(from);
                let (to, at) = socks::parse_udp(&buf[..n]).expect("a header");
                asked = Some(to);
                out.send_to(&buf[at..n], (Ipv4Addr::LOCALHOST, to.port())).await?;
            }
            got = out.recv_from(&mut back) => {
                let (n, _) = got?;
                let mut answer = Vec::new();
                socks::udp_header(&mut answer, asked.unwrap());
                answer.extend_from_slice(&back[..n]);
                relay.send_to(&answer, client.unwrap()).await?;
            }
        }
    }
}

/// Where the inside thinks that it connects to.
fn far(port: u16, v6: bool) -> SocketAddr {
    match v6 {
        false => SocketAddr::new([192, 0, 2, 7].into(), port),
        true => SocketAddr::new("2001:db8::7".parse().unwrap(), port),
    }
}

fn kind(r: std::io::Result<Inside>) -> ErrorKind {
    r.expect_err("an error").kind()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_by_a_proxy() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut s in server.incoming().flatten() {
            std::thread::spawn(move || {
                let mut first = [0];
                s.read_exact(&mut first).unwrap();
                if first == *b"R" {
                    socket2::Socket::from(s)
                        .set_linger(Some(Duration::ZERO))
                        .unwrap();
                    return;
                }
                let mut all = Vec::new();
                s.read_to_end(&mut all).unwrap();
                s.write_all(&all).unwrap();
            });
        }
    });
    let world = World::new().await;
    let counts = world
        .run(move |inside| {
            for v6 in [false, true] {
                let mut s = inside.connect(far(port, v6)).unwrap();
                let data: Vec<u8> = (0..2_000_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
                s.write_all(b"E").unwrap();
                s.write_all(&data).unwrap();
                s.shutdown(Shutdown::Write).unwrap();
                let mut back = Vec::new();
                s.read_to_end(&mut back).unwrap();
                assert!(back == data);
                let mut s = inside.connect(far(port, v6)).unwrap();
                s.write_all(b"R").unwrap();
                let e = s.read(&mut [0]).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::ConnectionReset);
                let refused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let nobody = refused.local_addr().unwrap().port();
                drop(refused);
                let e = kind(inside.connect(far(nobody, v6)));
                assert_eq!(e, ErrorKind::ConnectionRefused);
                let silent = far(BLACK_HOLE, v6);
                let e = kind(inside.connect_timeout(silent, Duration::from_secs(1)));
                assert_eq!(e, ErrorKind::TimedOut);
            }
        })
        .await;
    assert_eq!((counts.relayed.get(), counts.relaying.get()), (4, 0));
    assert_eq!(counts.bytes_out.get(), 2 * 2_000_001 + 2);
    assert!(counts.refused.get() == 2 && counts.unanswered.get() >= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_by_a_proxy() {
    let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buf = [0; 2_000];
        while let Ok((n, from)) = server.recv_from(&mut buf) {
            server.send_to(&buf[..n], from).unwrap();
        }
    });
    let world = World::new().await;
    let counts = world
        .run(move |inside| {
            for (v6, local) in [(false, "10.0.0.2:0"), (true, "[fd00::2]:0")] {
                let s = inside.bind_udp(local).unwrap();
                s.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                // The first waits until the proxy has made a way.
                for n in 0..20u8 {
                    s.send_to(&[n; 700], far(port, v6)).unwrap();
                    let mut buf = [0; 2_000];
                    let (got, from) = s.recv_from(&mut buf).unwrap();
                    assert_eq!((got, buf[0], from), (700, n, far(port, v6)));
                }
            }
        })
        .await;
    assert_eq!(counts.datagrams_in.get(), 40);
    assert_eq!(
        (counts.sessions.get(), counts.datagrams_dropped.get()),
        (2, 0)
    );
}
