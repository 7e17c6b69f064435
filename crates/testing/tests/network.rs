//! What programs see of the network, and of each other.
#![allow(missing_docs)]

use perimeter_testing::net::{TcpListener, TcpStream, UdpSocket};
use perimeter_testing::{Link, Result, Sim, What, elapsed, host_name, lookup};
use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Echoes every connection, on tasks that could be moved between threads.
async fn echo() -> Result {
    let listener = TcpListener::bind(("0.0.0.0".to_string(), 7)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut read, mut write) = stream.into_split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
        });
    }
}

#[test]
fn a_round_trip_takes_twice_the_delay() {
    let mut sim = Sim::builder(1)
        .link(Link::default().with_delay(ms(30)))
        .build();
    sim.host("server", echo);
    sim.client("client", async {
        assert_eq!(host_name(), "client");
        assert_eq!(lookup("server"), Some("10.0.0.1".parse()?));
        assert_eq!(lookup("nobody"), None);
        let mut stream = TcpStream::connect("server:7").await?;
        assert_eq!(elapsed(), ms(60));
        let start = Instant::now();
        stream.write_all(b"hello").await?;
        let mut text = [0; 5];
        stream.read_exact(&mut text).await?;
        assert_eq!(&text, b"hello");
        assert_eq!(start.elapsed(), ms(60));
        stream.shutdown().await?;
        assert_eq!(stream.read(&mut text).await?, 0);
        assert_eq!(start.elapsed(), ms(120));
        Ok(())
    });
    sim.run().unwrap();
    assert_eq!(sim.elapsed(), ms(180));
    sim.wind_down(Duration::from_secs(120)).unwrap();
}

#[test]
fn hosts_may_have_addresses_of_ipv6() {
    let mut sim = Sim::new(2);
    sim.host_at("server", "fd00::1".parse().unwrap(), || async {
        let listener = TcpListener::bind("[::]:7").await?;
        let (mut stream, peer) = listener.accept().await?;
        assert_eq!(peer.ip().to_string(), "fd00::2");
        stream.write_all(b"six").await?;
        Ok(())
    });
    sim.client_at("client", "fd00::2".parse().unwrap(), async {
        let mut text = String::new();
        let mut stream = TcpStream::connect("server:7").await?;
        stream.read_to_string(&mut text).await?;
        assert_eq!(text, "six");
        assert_eq!(elapsed(), ms(20));
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_transfer_takes_what_the_rate_allows_and_survives_every_fault() {
    const BYTES: usize = 1_000_000;
    let mut times = Vec::new();
    for loss in [0.0, 0.03] {
        let mut sim = Sim::builder(7)
            .link(
                Link::default()
                    .with_delay(ms(10))
                    .with_rate(Some(8_000_000))
                    .with_loss(loss)
                    .with_duplicate(loss)
                    .with_reorder(loss)
                    .with_corrupt(loss),
            )
            .build();
        sim.host("server", echo);
        sim.client("client", async {
            let stream = TcpStream::connect("server:7").await?;
            let sent: Vec<u8> = (0..BYTES).map(|i| (i * 7 / 3) as u8).collect();
            let expected = sent.clone();
            let (mut read, mut write) = stream.into_split();
            let writer = tokio::spawn(async move { write.write_all(&sent).await });
            let mut got = Vec::new();
            read.read_to_end(&mut got).await?;
            writer.await??;
            assert!(got == expected);
            Ok(())
        });
        sim.run().unwrap();
        let faults = sim.counts().faults;
        let struck = [
            faults.lost,
            faults.duplicated,
            faults.reordered,
            faults.corrupted,
        ];
        assert_eq!(struck.iter().all(|&n| n > 0), loss > 0.0, "{faults:?}");
        times.push(sim.elapsed());
    }
    // One second at a million bytes a second, and little more than that.
    assert!(times[0] > ms(1_000) && times[0] < ms(2_000), "{times:?}");
    assert!(times[1] > times[0] && times[1] < ms(20_000), "{times:?}");
}

#[test]
fn connections_are_refused_where_nobody_listens_and_lost_where_nobody_is() {
    let mut sim = Sim::new(3);
    sim.host("server", std::future::pending);
    sim.client("client", async {
        let refused = TcpStream::connect("server:9").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(elapsed(), ms(10));
        perimeter_testing::crash("server");
        let late = timeout(Duration::from_secs(30), TcpStream::connect("server:9")).await;
        assert!(late.is_err());
        assert_eq!(elapsed(), ms(30_010));
        let nobody = TcpStream::connect("nobody:9").await.unwrap_err();
        assert_eq!(nobody.kind(), ErrorKind::NotFound);
        let text = TcpStream::connect("server").await.unwrap_err();
        assert_eq!(text.kind(), ErrorKind::InvalidInput);
        Ok(())
    });
    sim.run().unwrap();
    assert!(!sim.is_up("server"));
}

#[test]
fn a_host_that_was_restarted_knows_no_connection_of_before() {
    let mut sim = Sim::new(4);
    let starts = Rc::new(Cell::new(0));
    let counted = starts.clone();
    sim.host("server", move || {
        counted.set(counted.get() + 1);
        echo()
    });
    sim.at(ms(100), |sim| sim.crash("server"));
    sim.at(ms(200), |sim| sim.restart("server"));
    sim.client("client", async {
        let mut stream = TcpStream::connect("server:7").await?;
        sleep(ms(140)).await;
        // Nobody has told the client: power failed, and nothing was sent.
        let mut byte = [0];
        let none = timeout(ms(40), stream.read(&mut byte)).await;
        assert!(none.is_err());
        stream.write_all(b"x").await?;
        let e = stream.read(&mut byte).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ConnectionReset);
        // The retransmission after the restart found a host without the connection.
        assert!(elapsed() > ms(200), "{:?}", elapsed());
        let mut stream = TcpStream::connect("server:7").await?;
        stream.write_all(b"y").await?;
        stream.read_exact(&mut byte).await?;
        assert_eq!(&byte, b"y");
        Ok(())
    });
    sim.run().unwrap();
    assert_eq!(starts.get(), 2);
}

#[test]
fn a_crash_drops_tasks_where_they_stand() {
    let alive = Rc::new(Cell::new(0));
    let steps = Rc::new(RefCell::new(Vec::new()));
    struct Guard(Rc<Cell<i32>>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }
    let mut sim = Sim::new(5);
    let (counted, noted) = (alive.clone(), steps.clone());
    sim.host("server", move || {
        let (counted, noted) = (counted.clone(), noted.clone());
        async move {
            counted.set(counted.get() + 1);
            let guard = Guard(counted);
            tokio::task::spawn_local(async move {
                let _guard = guard;
                loop {
                    sleep(ms(10)).await;
                    noted.borrow_mut().push(elapsed());
                }
            });
            std::future::pending().await
        }
    });
    sim.run_for(ms(35)).unwrap();
    assert_eq!(*steps.borrow(), [ms(10), ms(20), ms(30)]);
    assert_eq!(alive.get(), 1);
    sim.crash("server");
    assert_eq!(alive.get(), 0);
    sim.run_for(ms(50)).unwrap();
    assert_eq!(steps.borrow().len(), 3);
    sim.restart("server");
    sim.run_for(ms(10)).unwrap();
    assert_eq!(steps.borrow().last(), Some(&ms(95)));
    assert_eq!(alive.get(), 1);
}

#[test]
fn what_is_sent_into_a_partition_arrives_after_it_has_healed() {
    for one_way in [false, true] {
        let mut sim = Sim::new(6);
        sim.host("server", echo);
        sim.client("client", async {
            let mut stream = TcpStream::connect("server:7").await?;
            sleep(ms(100)).await;
            stream.write_all(b"through").await?;
            let mut text = [0; 7];
            stream.read_exact(&mut text).await?;
            assert_eq!(&text, b"through");
            let took = elapsed();
            assert!(took > ms(5_000) && took < ms(12_000), "{took:?}");
            Ok(())
        });
        sim.at(ms(50), move |sim| match one_way {
            true => sim.partition_one_way("server", "client"),
            false => sim.partition("client", "server"),
        });
        sim.at(ms(5_000), |sim| sim.heal("client", "10.0.0.1"));
        sim.run().unwrap();
        assert!(sim.counts().cut > 2, "{:?}", sim.counts());
    }
}

#[test]
fn failures_say_who_when_and_with_which_seed() {
    let mut sim = Sim::new(11);
    sim.client("client", async {
        sleep(ms(70)).await;
        Err("nothing works".into())
    });
    let failed = sim.run().unwrap_err();
    assert_eq!(
        failed.to_string(),
        "seed 11, after 70ms: `client` returned an error: nothing works"
    );
    let mut sim = Sim::new(12);
    sim.host("server", || async { panic!("at the {}", "disco") });
    sim.client("client", std::future::pending());
    let failed = sim.run().unwrap_err();
    assert!(
        failed
            .to_string()
            .contains("`server` panicked: at the disco")
    );
    let mut sim = Sim::builder(13).time_limit(ms(500)).build();
    sim.client("client", std::future::pending());
    sim.client("other", async { Ok(()) });
    let failed = sim.run().unwrap_err();
    assert!(matches!(&failed.what, What::TimeUp(who) if who == &["client"]));
    assert_eq!(failed.after, ms(500));
}

#[test]
fn what_is_left_is_told() {
    let mut sim = Sim::new(14);
    sim.host("server", echo);
    sim.client("client", async {
        let stream = TcpStream::connect("server:7").await?;
        sleep(ms(50)).await;
        // It outlives its program, as nobody's.
        std::mem::forget(stream);
        Ok(())
    });
    sim.run().unwrap();
    let left = sim.wind_down(Duration::from_secs(1)).unwrap_err();
    assert!(
        matches!(&left.what, What::Left(all) if all.len() == 2),
        "{left}"
    );
}

#[test]
fn time_is_cheap_where_nothing_happens() {
    let mut sim = Sim::new(15);
    let hours = Rc::new(Cell::new(0));
    let counted = hours.clone();
    sim.client("client", async move {
        let mut interval = tokio::time::interval(Duration::from_secs(3600));
        for _ in 0..3 {
            interval.tick().await;
            counted.set(counted.get() + 1);
        }
        Ok(())
    });
    sim.run_for(Duration::from_secs(7200)).unwrap();
    assert_eq!(hours.get(), 3);
    assert_eq!(sim.elapsed(), Duration::from_secs(7200));
}

#[test]
fn readiness_is_told_when_there_is_something_to_do() {
    let mut sim = Sim::new(16);
    sim.host("server", || async {
        let listener = TcpListener::bind("0.0.0.0:7").await?;
        let (stream, _) = listener.accept().await?;
        // Nothing is read for a while, so the client runs out of room.
        sleep(ms(500)).await;
        let (mut bytes, mut buf) = (0, vec![0; 100_000]);
        loop {
            stream.readable().await?;
            match stream.try_read(&mut buf) {
                Ok(0) => break,
                Ok(n) => bytes += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        }
        assert_eq!(bytes, 10_000_000);
        Ok(())
    });
    sim.client("client", async {
        let mut stream = TcpStream::connect("server:7").await?;
        let (mut left, mut waits, data) = (10_000_000, 0, vec![1; 100_000]);
        while left > 0 {
            match stream.try_write(&data[..data.len().min(left)]) {
                Ok(n) => left -= n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    stream.writable().await?;
                    waits += 1;
                }
                Err(e) => return Err(e.into()),
            }
        }
        assert!(elapsed() > ms(500) && waits > 3, "{waits} {:?}", elapsed());
        // Each wait was for something: there are no more of them than rounds.
        assert!(waits < 2_000, "{waits}");
        stream.shutdown().await?;
        assert_eq!(stream.read(&mut [0]).await?, 0);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn datagrams_are_lost_and_asked_for_again() {
    let mut sim = Sim::builder(17)
        .link(Link::default().with_loss(0.3).with_duplicate(0.1))
        .build();
    sim.host("server", || async {
        let socket = UdpSocket::bind("0.0.0.0:53").await?;
        let mut buf = [0; 512];
        loop {
            let (n, from) = socket.recv_from(&mut buf).await?;
            socket.send_to(&buf[..n], from).await?;
        }
    });
    sim.client("client", async {
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        let (mut asked, mut buf) = (0, [0; 512]);
        for n in 0..50u8 {
            let mut answered = false;
            while !answered {
                asked += 1;
                socket.send_to(&[n; 100], "server:53").await?;
                let answer = timeout(ms(200), socket.recv_from(&mut buf)).await;
                // Late ones and twins belong to an earlier question.
                answered = matches!(answer, Ok(Ok((100, _))) if buf[0] == n);
            }
        }
        assert!(asked > 60 && asked < 300, "{asked}");
        Ok(())
    });
    sim.run().unwrap();
    assert!(sim.counts().faults.lost > 10);
}
