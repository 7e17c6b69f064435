//! The sockets under every organization: echo, halves, readiness, cancellation, ends.

mod common;

use common::{each_organization, pattern};
use perimeter::Datagrams;
use perimeter_tokio::{Net, TcpSocket, TcpStream};
use std::io::ErrorKind;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::time::timeout;

/// Serves every connection with what it sends.
async fn echo(net: Net) {
    let listener = net.listen("10.0.0.1:7").await.unwrap();
    assert_eq!(listener.local_addr().unwrap().port(), 7);
    while let Ok((mut s, _)) = listener.accept().await {
        tokio::task::spawn_local(async move {
            let (mut r, mut w) = s.split();
            // Some clients go without waiting.
            let _ = tokio::io::copy(&mut r, &mut w).await;
            let _ = w.shutdown().await;
        });
    }
}

#[test]
fn echo_through_owned_halves() {
    each_organization(async |server, client| {
        let _echo = tokio::task::spawn_local(echo(server));
        tokio::task::yield_now().await;
        let clients: Vec<_> = (0..8)
            .map(|n| {
                let net = client.clone();
                tokio::task::spawn_local(async move {
                    let s = net.connect("10.0.0.1:7").await.unwrap();
                    assert_eq!(s.peer_addr().unwrap(), "10.0.0.1:7".parse().unwrap());
                    let (mut r, mut w) = s.into_split();
                    let data = pattern(n, 200_000);
                    let sent = data.clone();
                    let writer = tokio::task::spawn_local(async move {
                        w.write_all(&sent).await.unwrap();
                        w.shutdown().await.unwrap();
                        w
                    });
                    let mut got = Vec::new();
                    r.read_to_end(&mut got).await.unwrap();
                    assert!(got == data, "another stream came back");
                    let s = r.reunite(writer.await.unwrap()).unwrap();
                    assert_eq!(s.try_read(&mut [0; 8]).unwrap(), 0);
                })
            })
            .collect();
        for c in clients {
            c.await.unwrap();
        }
    });
}

#[test]
fn readiness_is_a_level() {
    each_organization(async |server, client| {
        let listener = server.listen("10.0.0.1:7").await.unwrap();
        let (a, b) = tokio::join!(client.connect("10.0.0.1:7"), listener.accept());
        let (a, (mut b, _)) = (a.unwrap(), b.unwrap());
        assert!(a.ready(Interest::WRITABLE).await.unwrap().is_writable());
        let none = |s: &TcpStream| s.try_read(&mut [0; 8]).unwrap_err().kind();
        assert_eq!(none(&a), ErrorKind::WouldBlock);
        let soon = Duration::from_millis(20);
        assert!(timeout(soon, a.readable()).await.is_err());
        assert!(a.try_io(Interest::READABLE, || Ok(())).is_err());
        b.write_all(b"hello").await.unwrap();
        a.readable().await.unwrap();
        // As long as something is there.
        a.readable().await.unwrap();
        let mut buf = [0; 3];
        assert_eq!((a.peek(&mut buf).await.unwrap(), &buf), (3, b"hel"));
        assert_eq!((a.try_read(&mut buf).unwrap(), &buf), (3, b"hel"));
        a.readable().await.unwrap();
        assert_eq!(a.try_read(&mut buf).unwrap(), 2);
        assert_eq!(none(&a), ErrorKind::WouldBlock);
        assert!(timeout(soon, a.readable()).await.is_err());
        b.shutdown().await.unwrap();
        a.readable().await.unwrap();
        let ready = a.ready(Interest::READABLE).await.unwrap();
        assert!(
            ready.is_read_closed() && !ready.is_write_closed(),
            "{ready:?}"
        );
        assert_eq!(a.try_read(&mut buf).unwrap(), 0);
        // Room: writing fills the buffers until there is none, and reading makes some.
        let block = [7; 16 * 1024];
        let mut sent = 0;
        loop {
            match a.try_write(&block) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if timeout(soon, a.writable()).await.is_err() {
                        break;
                    }
                }
                Err(e) => panic!("{e}"),
            }
        }
        let mut got = 0;
        let mut sink = vec![0; 64 * 1024];
        while got < sent {
            got += b.read(&mut sink).await.unwrap();
        }
        a.writable().await.unwrap();
    });
}

#[test]
fn refused_and_reset() {
    each_organization(async |server, client| {
        let refused = client.connect("10.0.0.1:9").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let listener = server.listen("10.0.0.1:7").await.unwrap();
        let (a, b) = tokio::join!(client.connect("10.0.0.1:7"), listener.accept());
        let (mut a, (b, _)) = (a.unwrap(), b.unwrap());
        b.set_zero_linger().unwrap();
        drop(b);
        let e = a.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ConnectionReset);
        assert!(a.ready(Interest::WRITABLE).await.unwrap().is_write_closed());
        assert_eq!(
            a.write(b"x").await.unwrap_err().kind(),
            ErrorKind::BrokenPipe
        );
    });
}

#[test]
fn datagrams() {
    each_organization(async |server, client| {
        let a = server.bind_udp("10.0.0.1:53").await.unwrap();
        let b = client.bind_udp("0.0.0.0:0").await.unwrap();
        let mut buf = [0; 2000];
        let none = a.try_recv_from(&mut buf).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::WouldBlock);
        let soon = Duration::from_millis(20);
        assert!(timeout(soon, a.recv_from(&mut buf)).await.is_err());
        b.connect("10.0.0.1:53").await.unwrap();
        for len in [0, 1, 1000, 1472] {
            let data = pattern(len as u64, len);
            assert_eq!(b.send(&data).await.unwrap(), len);
            let (n, from) = a.recv_from(&mut buf).await.unwrap();
            assert_eq!(from.ip(), "10.0.0.2".parse::<std::net::IpAddr>().unwrap());
            assert!(buf[..n] == data);
            a.send_to(&buf[..n], from).await.unwrap();
            assert_eq!(b.peek(&mut buf).await.unwrap(), len);
            assert_eq!(b.recv(&mut buf).await.unwrap(), len);
        }
        let mut batch = Datagrams::with_capacity(16);
        b.send_segments(&[7; 3000], 1000, None).await.unwrap();
        let mut got = 0;
        while got < 3 {
            got += a.recv_many(&mut batch).await.unwrap();
            assert!(batch.iter().all(|d| d.data == [7; 1000]));
        }
        // Nobody there: the network's answer comes with a later call.
        b.connect("10.0.0.1:54").await.unwrap();
        b.send(b"?").await.unwrap();
        let e = b.recv(&mut buf).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn futures_that_are_dropped_take_nothing() {
    each_organization(async |server, client| {
        let listener = server.listen("10.0.0.1:7").await.unwrap();
        let soon = Duration::from_millis(5);
        for _ in 0..3 {
            assert!(timeout(soon, listener.accept()).await.is_err());
        }
        // Given up while nobody answers: the peer hears nothing of it.
        assert!(timeout(soon, client.connect("10.0.0.77:7")).await.is_err());
        let (a, b) = tokio::join!(client.connect("10.0.0.1:7"), listener.accept());
        let (mut a, (mut b, _)) = (a.unwrap(), b.unwrap());
        // Several readers wait, some go; who stays is woken.
        for _ in 0..3 {
            assert!(timeout(soon, a.read(&mut [0; 4])).await.is_err());
            assert!(timeout(soon, a.readable()).await.is_err());
            assert!(timeout(soon, a.peek(&mut [0; 4])).await.is_err());
        }
        {
            let mut stays = std::pin::pin!(a.readable());
            assert!(timeout(soon, stays.as_mut()).await.is_err());
            {
                let mut goes = std::pin::pin!(a.readable());
                assert!(timeout(soon, goes.as_mut()).await.is_err());
            }
            b.write_all(b"data").await.unwrap();
            stays.await.unwrap();
        }
        let mut got = [0; 4];
        a.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"data");
    });
}

#[test]
fn who_waits_when_the_stack_ends_is_told() {
    each_organization(async |server, client| {
        let listener = server.listen("10.0.0.1:7").await.unwrap();
        let (a, b) = tokio::join!(client.connect("10.0.0.1:7"), listener.accept());
        let (mut a, _b) = (a.unwrap(), b.unwrap());
        let socket = client.bind_udp("0.0.0.0:0").await.unwrap();
        let datagram = tokio::task::spawn_local(async move { socket.recv(&mut [0; 8]).await });
        let read = tokio::task::spawn_local(async move { a.read(&mut [0; 8]).await });
        let soon = Duration::from_millis(20);
        tokio::time::sleep(soon).await;
        assert!(!read.is_finished() && !datagram.is_finished());
        client.stack().stop();
        let e = read.await.unwrap().unwrap_err();
        assert!(
            matches!(
                e.kind(),
                ErrorKind::NotConnected | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
            ),
            "{e}"
        );
        datagram.await.unwrap().unwrap_err();
        let e = client.connect("10.0.0.1:7").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotConnected);
    });
}

#[test]
fn sockets_that_are_set_up_first() {
    each_organization(async |server, client| {
        let at: std::net::SocketAddr = "10.0.0.1:7".parse().unwrap();
        let from = "10.0.0.2:4000".parse().unwrap();
        let socket = server.tcp_socket_v4();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(at).unwrap();
        let listener = socket.listen(8).unwrap();
        assert_eq!(listener.local_addr().unwrap(), at);
        assert!(!listener.only_v6().unwrap());
        let socket = {
            let _entered = client.enter();
            TcpSocket::new_v4().unwrap()
        };
        socket.set_nodelay(true).unwrap();
        socket.set_keepalive(true).unwrap();
        socket.set_tos(0x28).unwrap();
        let e = socket.set_tos(256).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        socket.set_zero_linger().unwrap();
        socket.bind(from).unwrap();
        assert_eq!(socket.local_addr().unwrap(), from);
        let (a, b) = tokio::join!(socket.connect(at), listener.accept());
        let (mut a, (mut b, peer)) = (a.unwrap(), b.unwrap());
        assert_eq!((peer, a.local_addr().unwrap()), (from, from));
        assert!(a.nodelay().unwrap() && !b.nodelay().unwrap());
        assert!(a.keepalive().unwrap().is_some() && b.keepalive().unwrap().is_none());
        assert_eq!((a.tos().unwrap(), b.tos().unwrap()), (0x28, 0));
        assert_eq!(a.linger().unwrap(), Some(Duration::ZERO));
        assert_eq!(a.ttl().unwrap(), 64);
        a.set_ttl(9).unwrap();
        assert_eq!(a.ttl().unwrap(), 9);
        a.set_linger(None).unwrap();
        a.write_all(b"hello").await.unwrap();
        let mut got = [0; 5];
        b.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hello");
        // A port that is taken: told when it connects.
        let socket = client.tcp_socket_v4();
        socket.bind(from).unwrap();
        let e = socket.connect(at).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::AddrInUse);
    });
}
