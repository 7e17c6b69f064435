//! The stack's own resolver as tasks use it, under every organization.

mod common;

use perimeter::link::wire::{WireConfig, pair};
use perimeter::{DnsConfig, Native, OrgSpec, Stack};
use perimeter_tokio::{Net, TcpStream, UdpSocket, lookup_host};
use simple_dns::rdata::{A, RData};
use simple_dns::{CLASS, Packet, PacketFlag, RCODE, ResourceRecord, TYPE};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, timeout};

/// What a server knows: `long` is too long for a datagram, of `slow` the first queries get lost, and
/// it fails at `broken`.
fn answer(query: &[u8], stream: bool) -> Vec<u8> {
    let mut p = Packet::parse(query).unwrap();
    p.set_flags(PacketFlag::RESPONSE);
    let owner = p.questions[0].qname.clone().into_owned();
    match owner.to_string().as_str() {
        "long.example" if !stream => p.set_flags(PacketFlag::TRUNCATION),
        "www.example" | "long.example" | "slow.example" => {
            if p.questions[0].qtype == TYPE::A.into() {
                let data = RData::A(A::from(Ipv4Addr::new(10, 0, 0, 1)));
                p.answers
                    .push(ResourceRecord::new(owner, CLASS::IN, 60, data));
            }
        }
        "broken.example" => *p.rcode_mut() = RCODE::ServerFailure,
        _ => *p.rcode_mut() = RCODE::NameError,
    }
    p.build_bytes_vec().unwrap()
}

async fn serve(net: Net) {
    let streams = net.listen("10.0.0.1:53").await.unwrap();
    spawn_local(async move {
        while let Ok((mut s, _)) = streams.accept().await {
            let len = s.read_u16().await.unwrap();
            let mut query = vec![0; len.into()];
            s.read_exact(&mut query).await.unwrap();
            let reply = answer(&query, true);
            s.write_u16(reply.len() as u16).await.unwrap();
            s.write_all(&reply).await.unwrap();
        }
    });
    let socket = net.bind_udp("10.0.0.1:53").await.unwrap();
    let (mut buf, mut lost) = ([0; 2000], 0);
    while let Ok((len, from)) = socket.recv_from(&mut buf).await {
        let query = &buf[..len];
        let slow = query.windows(4).any(|w| w == b"slow");
        if slow && lost < 1 {
            lost += 1;
            continue;
        }
        socket.send_to(&answer(query, false), from).await.unwrap();
    }
}

fn nets(org: &OrgSpec) -> (Net, Net) {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let builder = || Stack::builder().on_native(native).org(org.clone());
    let server = builder().interface(a, &["10.0.0.1/24"]).unwrap();
    let client = builder().interface(b, &["10.0.0.2/24"]).unwrap();
    let dns = DnsConfig::default().with_timeout(Duration::from_millis(100));
    let client = client
        .name_servers(&["10.0.0.1:53".parse().unwrap()])
        .dns(dns);
    let net = |b: perimeter::Builder| Net::new(b.build().unwrap());
    (net(server), net(client))
}

async fn look(net: &Net, host: &str) -> Result<Vec<SocketAddr>, ErrorKind> {
    let found = net.lookup_host((host, 80)).await;
    found.map(Iterator::collect).map_err(|e| e.kind())
}

async fn names(server: Net, client: Net) {
    spawn_local(serve(server.clone()));
    tokio::task::yield_now().await;
    let found = Ok(vec!["10.0.0.1:80".parse().unwrap()]);
    for host in [
        "www.example",
        "WWW.example.",
        "long.example",
        "slow.example",
    ] {
        assert_eq!(look(&client, host).await, found, "{host}");
    }
    assert_eq!(
        look(&client, "none.example").await,
        Err(ErrorKind::NotFound)
    );
    assert_eq!(look(&client, "broken.example").await, Err(ErrorKind::Other));
    assert_eq!(look(&client, "x y").await, Err(ErrorKind::InvalidInput));
    // By name, given or by the runtime's stack.
    let listener = server.listen("10.0.0.1:80").await.unwrap();
    let near = client.connect("www.example:80").await.unwrap();
    assert_eq!(
        listener.accept().await.unwrap().1,
        near.local_addr().unwrap()
    );
    {
        let _serving = client.serve_runtime(&tokio::runtime::Handle::current());
        let mut all = lookup_host("www.example:80").await.unwrap();
        assert_eq!(all.next(), Some("10.0.0.1:80".parse().unwrap()));
        let near = TcpStream::connect("long.example:80").await.unwrap();
        assert_eq!(
            listener.accept().await.unwrap().1,
            near.local_addr().unwrap()
        );
        let socket = UdpSocket::bind("10.0.0.2:0").await.unwrap();
        socket.connect("www.example:9").await.unwrap();
        assert_eq!(socket.peer_addr().unwrap(), "10.0.0.1:9".parse().unwrap());
    }
    // Dropped before it is done, it leaves nothing.
    let start = Instant::now();
    let lost = timeout(Duration::from_millis(1), look(&client, "slow2.example")).await;
    drop(lost);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn names_are_looked_up_over_the_stack() {
    for org in OrgSpec::tested() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(LocalSet::new().run_until(async {
            let (server, client) = nets(&org);
            for net in [&server, &client] {
                let net = net.clone();
                spawn_local(async move { net.drive().await });
            }
            let done = timeout(common::LIMIT, names(server, client)).await;
            assert!(done.is_ok(), "{org}: not done");
        }));
    }
}
