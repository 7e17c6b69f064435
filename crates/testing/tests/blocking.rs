//! Programs with blocking calls: a partition that heals, a server that crashes, under every
//! organization.
#![allow(missing_docs)]

use perimeter::OrgSpec;
use perimeter_testing::threads::{Host, Network, TcpStream};
use perimeter_testing::{Link, Result, What, seeds};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn under_all(test: impl Fn(&str)) {
    for org in OrgSpec::tested() {
        test(&org.to_string());
    }
}

/// Takes connections one after the other, and sends back what comes.
fn echo(host: &Host) -> Result {
    for stream in host.listen(7)?.incoming() {
        let mut stream = stream?;
        let mut buf = [0; 4096];
        // A client that goes away is nothing to fail for.
        while let Ok(n) = stream.read(&mut buf)
            && n > 0
            && stream.write_all(&buf[..n]).is_ok()
        {}
    }
    Ok(())
}

#[test]
fn a_transfer_outlives_a_partition() {
    under_all(|org| {
        let mut net = Network::new(3);
        net.organization(org).expect_quiet(Duration::from_secs(150));
        net.links(Link::default().with_loss(0.01));
        net.host("server", "10.0.0.1", echo);
        net.client("client", "10.0.0.2", |host| {
            let mut stream = host.connect("server:7")?;
            let text = [7; 4096];
            let mut back = [0; 4096];
            for _ in 0..40 {
                stream.write_all(&text)?;
                stream.read_exact(&mut back)?;
                assert_eq!(back, text);
            }
            stream.shutdown(Shutdown::Write)?;
            assert_eq!(stream.read(&mut back)?, 0);
            // Cut off for five seconds, and not long after: retransmissions are backed off.
            let took = host.elapsed();
            assert!(took > ms(5_000) && took < ms(15_000), "{took:?}");
            Ok(())
        });
        net.at(ms(100), |net| net.partition("client", "server"));
        net.at(ms(5_000), |net| net.heal("client", "server"));
        let report = net.run().unwrap_or_else(|e| panic!("{org}: {e}"));
        assert!(report.counts.cut > 0, "{org}");
    });
}

/// Appends what it is sent to a log that outlives it, and answers when that has been done.
fn append(host: &Host, log: &Mutex<Vec<u8>>) -> Result {
    let listener = host.listen(9)?;
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(ms(2_000)))?;
        let mut byte = [0];
        while let Ok(1) = stream.read(&mut byte) {
            host.sleep(ms(3));
            let mut log = log.lock().unwrap();
            if log.last() != Some(&byte[0]) {
                log.push(byte[0]);
            }
            drop(log);
            if stream.write_all(&byte).is_err() {
                break;
            }
        }
    }
}

/// Has every number appended, whatever happens to the server.
fn number(host: &Host, numbers: u8) -> Result {
    let mut connection: Option<TcpStream> = None;
    for n in 0..numbers {
        loop {
            let mut stream = match connection.take() {
                Some(stream) => stream,
                None => match host.connect_timeout("server:9", ms(500)) {
                    Ok(stream) => stream,
                    Err(_) => {
                        host.sleep(ms(50));
                        continue;
                    }
                },
            };
            stream.set_read_timeout(Some(ms(1_000)))?;
            let mut back = [0];
            if stream.write_all(&[n]).is_ok() && matches!(stream.read(&mut back), Ok(1)) {
                assert_eq!(back, [n]);
                connection = Some(stream);
                break;
            }
        }
    }
    Ok(())
}

fn appended(org: &str, seed: u64) -> std::result::Result<u64, String> {
    const NUMBERS: u8 = 30;
    let log = Arc::new(Mutex::new(Vec::new()));
    let disk = log.clone();
    let mut net = Network::new(seed);
    net.organization(org).links(Link::default().with_loss(0.02));
    net.host("server", "10.0.0.1", move |host| append(host, &disk));
    net.client("client", "10.0.0.2", |host| number(host, NUMBERS));
    for n in 0..2 {
        let at = ms(100 + 400 * n + seed % 97);
        net.at(at, |net| net.crash("server"));
        net.at(at + ms(100), |net| net.restart("server"));
    }
    let report = net.run().map_err(|e| format!("{org}: {e}"))?;
    let log = log.lock().unwrap();
    match log.iter().copied().eq(0..NUMBERS) {
        true => Ok(report.digest),
        false => Err(format!("{org}: {log:?}")),
    }
}

#[test]
fn a_retrying_client_outlives_a_crashing_server() {
    under_all(|org| {
        seeds::check(3, |seed| appended(org, seed).map(drop));
        assert_eq!(appended(org, 1), appended(org, 1), "{org}");
    });
}

#[test]
fn threads_of_one_host_share_its_stack() {
    let mut net = Network::new(5);
    net.organization("connp-l:4");
    net.host("server", "10.0.0.1", |host| {
        for stream in host.listen(7)?.incoming() {
            let mut stream = stream?;
            host.spawn(move |_| {
                let mut buf = [0; 64];
                while let n @ 1.. = stream.read(&mut buf)? {
                    stream.write_all(&buf[..n])?;
                }
                Ok(())
            });
        }
        Ok(())
    });
    net.client("client", "10.0.0.2", |host| {
        let threads: Vec<_> = (0..8u8)
            .map(|n| {
                host.spawn(move |host| {
                    let mut stream = host.connect("10.0.0.1:7")?;
                    for k in 0..10 {
                        stream.write_all(&[n, k])?;
                        let mut back = [0; 2];
                        stream.read_exact(&mut back)?;
                        assert_eq!(back, [n, k]);
                        host.sleep(ms(1));
                    }
                    Ok(())
                })
            })
            .collect();
        for thread in threads {
            thread.join()?;
        }
        Ok(())
    });
    net.run().unwrap();
}

#[test]
fn failures_say_who_when_and_with_which_seed() {
    let mut net = Network::new(21);
    net.client("client", "10.0.0.2", |host| {
        let e = host.connect("nobody:1").err().unwrap();
        assert_eq!(e.kind(), ErrorKind::NotFound);
        host.sleep(ms(70));
        Err("nothing works".into())
    });
    let failed = net.run().unwrap_err().to_string();
    assert!(failed.starts_with("seed 21, after 70."), "{failed}");
    assert!(
        failed.ends_with("`client` returned an error: nothing works"),
        "{failed}"
    );

    let mut net = Network::new(22);
    net.client("client", "10.0.0.2", |_| panic!("at the {}", "disco"));
    let failed = net.run().unwrap_err().to_string();
    assert!(
        failed.starts_with("seed 22") && failed.contains("at the disco"),
        "{failed}"
    );

    let mut net = Network::new(23);
    net.time_limit(ms(500));
    net.client("client", "10.0.0.2", |host| {
        host.listen(1)?.accept()?;
        Ok(())
    });
    let failed = net.run().unwrap_err();
    assert!(
        matches!(&failed.what, What::TimeUp(who) if who == &["client"]),
        "{failed}"
    );

    let mut net = Network::new(24);
    net.expect_quiet(ms(300)).organization("up");
    net.host("server", "10.0.0.1", |host| {
        let (_stream, _) = host.listen(1)?.accept()?;
        host.sleep(Duration::from_secs(100));
        Ok(())
    });
    net.client("client", "10.0.0.2", |host| {
        host.connect("server:1").map(drop).map_err(Into::into)
    });
    let failed = net.run().unwrap_err();
    assert!(matches!(failed.what, What::Left(_)), "{failed}");
}
