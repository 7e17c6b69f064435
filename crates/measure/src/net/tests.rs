use super::*;
use crate::{
    backends::backend_for,
    ours::kernel,
    workload::{Coalescing, Device, Direction, Family, MTU},
};
use perimeter::link::tap::host;
use server::Server;
use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
};

const HERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);

fn target(address: SocketAddr) -> Target {
    let SocketAddr::V4(address) = address else {
        panic!("{address}");
    };
    Target {
        address,
        sink: false,
        place: None,
        version: "test".into(),
    }
}

fn settings(target: Target) -> Settings {
    Settings {
        organizations: vec![Organization::LINUX],
        connections: vec![5],
        threads: 2,
        nics: 1,
        seconds: Duration::from_millis(200),
        connect: Some(target),
        ..Settings::default()
    }
}

/// One run; with the remarks on it.
fn run(settings: &Settings) -> Result<(Sample, Vec<String>), Error> {
    settings.check()?;
    let configuration = &crate::bench::grid::grid(settings)[0];
    let mut backend = backend_for(settings, configuration);
    backend.check(settings, std::slice::from_ref(configuration))?;
    let mut session = backend.prepare(settings, configuration, None)?;
    session.warm_up(Duration::from_millis(50))?;
    let sample = session.measure(Duration::from_millis(200))?;
    Ok((sample, backend.traits(settings, configuration).notes))
}

/// Serves so many runs on a thread; what was said about them.
fn serving(runs: u64) -> (Target, thread::JoinHandle<Vec<String>>) {
    let server = Server::bind(HERE, "test\u{1b}".into()).unwrap();
    let target = target(server.address().unwrap());
    let serve = move || {
        let said = Mutex::new(Vec::new());
        let say = |line: &str| said.lock().unwrap().push(line.to_string());
        server.serve(Some(runs), &say).unwrap();
        said.into_inner().unwrap()
    };
    (target, thread::spawn(serve))
}

#[test]
fn every_direction_over_loopback() {
    let (target, server) = serving(4);
    for direction in [Direction::Send, Direction::Receive, Direction::Both] {
        let settings = Settings {
            direction,
            ..settings(target.clone())
        };
        let (sample, notes) = run(&settings).unwrap();
        assert!(
            sample.goodput > 1e6 && sample.valid,
            "{direction}: {sample:?}"
        );
        assert!(sample.verified_bytes > 0, "{direction}: {sample:?}");
        assert!(notes[0].contains("(perimeter test)"), "{notes:?}");
    }
    let (sample, _) = run(&Settings {
        exchange: "64:1000".parse().ok(),
        coalescing: Coalescing::NoDelay,
        ..settings(target)
    })
    .unwrap();
    assert!(sample.rounds > 50 && sample.latency.is_some(), "{sample:?}");
    let said = server.join().unwrap();
    assert_eq!(said.len(), 4);
    assert!(said.iter().all(|l| l.contains("Mb/s")), "{said:?}");
}

#[test]
fn several_clients_at_a_time() {
    let (target, server) = serving(3);
    thread::scope(|scope| {
        for _ in 0..3 {
            let target = target.clone();
            scope.spawn(move || {
                let (sample, _) = run(&settings(target)).unwrap();
                assert!(sample.goodput > 1e5, "{sample:?}");
            });
        }
    });
    server.join().unwrap();
}

/// What a client makes of a server that behaves as `serve` does.
fn meets(serve: impl FnOnce(&TcpListener) + Send) -> Error {
    let listener = TcpListener::bind(HERE).unwrap();
    let target = target(listener.local_addr().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| serve(&listener));
        run(&settings(target)).map(|r| r.0).unwrap_err()
    })
}

fn answer(listener: &TcpListener, line: &str) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut hello = [0; 4096];
    let n = stream.read(&mut hello).unwrap();
    assert!(hello[..n].starts_with(b"{\"hello\""));
    stream.write_all(line.as_bytes()).unwrap();
}

#[test]
fn other_servers_are_told_from_ours() {
    let table = [
        ("", "gone", 1),
        ("220 mail ESMTP\r\n", "no JSON", 1),
        ("\"accepted\"\n", "out of turn", 1),
        (
            "{\"refused\":{\"why\":\"busy\\u001b[2J\"}}\n",
            ": busy[2J",
            2,
        ),
    ];
    for (line, says, code) in table {
        let error = meets(|listener| answer(listener, line));
        let text = error.to_string();
        assert!(text.contains(says), "{text}");
        assert!(!text.contains(char::is_control), "{text}");
        assert_eq!(error.exit_code(), code, "{text}");
    }
    // Nobody there.
    let free = TcpListener::bind(HERE).unwrap().local_addr().unwrap();
    let error = run(&settings(target(free))).map(|r| r.0).unwrap_err();
    assert!(error.to_string().contains("--listen"), "{error}");
    assert_eq!(error.exit_code(), 2);
}

/// A client that goes at any step is a line, and the next one is served.
#[test]
fn clients_that_vanish_are_survived() {
    let (target, server) = serving(4);
    let hello = |protocol: u32| {
        let work = Work::of(&settings(target.clone()), 2);
        let hello = Message::Hello {
            protocol,
            version: "1".into(),
            work,
        };
        let stream = TcpStream::connect(target.address).unwrap();
        let mut channel = Channel::new(stream, "there".into()).unwrap();
        channel.send(&hello).unwrap();
        channel
    };
    drop(TcpStream::connect(target.address).unwrap());
    let said = hello(PROTOCOL + 1).receive(ANSWER).unwrap();
    assert!(matches!(said, Message::Refused { why } if why.contains("protocol 2")));
    // Data connections with another token do not count, and the client gives up.
    let mut channel = hello(PROTOCOL);
    let Message::Ready { port, .. } = channel.receive(ANSWER).unwrap() else {
        panic!("no answer");
    };
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let mut stranger = TcpStream::connect(to).unwrap();
    stranger.write_all(&[b'0'; control::TOKEN]).unwrap();
    assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0, "it is shut out");
    drop(channel);
    run(&settings(target.clone())).unwrap();
    let said = server.join().unwrap();
    let failed = said.iter().filter(|l| l.contains("gone")).count();
    assert_eq!(failed, 2, "{said:?}");
    assert_eq!(said.len(), 4, "{said:?}");
}

/// The server goes in the middle of a run.
#[test]
fn a_server_that_vanishes_is_an_error() {
    let begun = Instant::now();
    let error = meets(|listener| {
        let data = TcpListener::bind(HERE).unwrap();
        let port = data.local_addr().unwrap().port();
        let token = "0".repeat(control::TOKEN);
        let ready = format!(
            "{{\"ready\":{{\"port\":{port},\"token\":\"{token}\",\"version\":\"1\"}}}}\n\"accepted\"\n"
        );
        answer(listener, &ready);
        let taken: Vec<_> = (0..5).map(|_| data.accept().unwrap()).collect();
        drop(taken);
    });
    assert_eq!(error.exit_code(), 1, "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_plain_sink_will_do() {
    let listener = TcpListener::bind(HERE).unwrap();
    let sink = Target {
        sink: true,
        ..target(listener.local_addr().unwrap())
    };
    let drain = move || {
        let mut taken = Vec::new();
        for _ in 0..5 {
            let (mut stream, _) = listener.accept().unwrap();
            taken.push(thread::spawn(move || {
                let mut buffer = [0; 65_536];
                while matches!(stream.read(&mut buffer), Ok(n) if n > 0) {}
            }));
        }
        taken.into_iter().for_each(|t| t.join().unwrap());
    };
    let drain = thread::spawn(drain);
    let (sample, notes) = run(&settings(sink.clone())).unwrap();
    drain.join().unwrap();
    assert!(sample.goodput > 1e6 && sample.valid, "{sample:?}");
    assert!(notes[0].contains("sink"), "{notes:?}");
    let damages: [fn(&mut Settings); 4] = [
        |s| s.direction = Direction::Both,
        |s| s.reconnect = true,
        |s| s.connections = vec![crate::workload::settings::MAX_BETWEEN_MACHINES + 1],
        |s| s.organizations = Settings::default().organizations,
    ];
    for (i, damage) in damages.iter().enumerate() {
        let mut s = settings(sink.clone());
        damage(&mut s);
        assert!(matches!(s.check(), Err(Error::Input(_))), "{i}");
    }
}

/// Stacks of ours on a TAP interface of the host's, in a namespace that stands for the host.
#[test]
fn our_stack_over_the_hosts_interface() {
    if let Err(e) = kernel::possible(Device::Tap, 1, 1, (MTU, Family::Ipv4)) {
        eprintln!("skipped: {e}");
        return;
    }
    for (org, direction) in [
        ("up", Direction::Send),
        ("connp-l:8", Direction::Receive),
        ("squeue", Direction::Both),
    ] {
        // On a thread and in a namespace of its own: threads of other tests may have a copy of
        // the interface's descriptor for a while yet, as their tables are copies of this one.
        let body = move || {
            let _namespace = veth::Namespace::enter_new().unwrap();
            // Where the server is called before there is an interface.
            host::set_address("lo", veth::far_address(0), 32).unwrap();
            host::set_up("lo", true).unwrap();
            over_tap0(org, direction);
        };
        thread::spawn(body).join().unwrap();
    }
}

fn over_tap0(org: &str, direction: Direction) {
    let at = SocketAddrV4::new(veth::far_address(0), 0);
    let server = Server::bind(at, "test".into()).unwrap();
    let target = Target {
        place: Some(Place {
            device: "tap:tap0".parse().unwrap(),
            address: (veth::near_address(0), 24),
            gateway: Some(veth::far_address(0)),
        }),
        ..target(server.address().unwrap())
    };
    thread::scope(|scope| {
        scope.spawn(|| server.serve(Some(1), &|_| {}).unwrap());
        // The stack makes the interface; what an administrator would do follows.
        scope.spawn(|| {
            let until = Instant::now() + Duration::from_secs(10);
            while kernel::kernel_side("tap0", (Family::Ipv4, 0), false).is_err()
                && Instant::now() < until
            {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let (sample, _) = run(&Settings {
            organizations: vec![crate::backends::parse(org).unwrap()],
            device: Device::Tap,
            direction,
            ..settings(target)
        })
        .unwrap();
        assert!(sample.goodput > 1e5, "{org}: {sample:?}");
        assert!(sample.verified_bytes > 0, "{org}: {sample:?}");
    });
}

#[test]
fn addresses() {
    let at = |text: &str| resolve(text, false).map(|a| a.to_string());
    assert_eq!(at("127.0.0.1").unwrap(), "127.0.0.1:7471");
    assert_eq!(at("127.0.0.1:80").unwrap(), "127.0.0.1:80");
    assert_eq!(resolve("127.0.0.1", true).unwrap().port(), 9);
    for text in [
        "",
        ":80",
        "::1",
        "127.0.0.1:",
        "127.0.0.1:99999",
        "no such host",
    ] {
        let error = at(text).unwrap_err();
        assert!(matches!(error, Error::Input(_)), "{text}: {error}");
    }
    assert_eq!(subnet("10.0.0.2/24"), Ok(([10, 0, 0, 2].into(), 24)));
    for text in [
        "",
        "10.0.0.2",
        "10.0.0.2/",
        "10.0.0.2/0",
        "10.0.0.2/31",
        "x/24",
        "224.0.0.2/24",
        "127.0.0.1/8",
        "0.0.0.1/8",
        "10.0.0.0/24",
        "10.0.0.255/24",
    ] {
        assert!(subnet(text).is_err(), "{text} was taken");
    }
    let packet = |name: &str| present(&HostDevice::Packet(name.into()));
    assert!(packet("lo").is_ok());
    let error = packet("nosuch").unwrap_err().to_string();
    assert!(error.contains("no interface nosuch"), "{error}");
    assert!(
        present(&HostDevice::Tap("nosuch".into())).is_ok(),
        "it is made"
    );
}
