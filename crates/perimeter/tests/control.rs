//! The control socket of a running stack.

use perimeter::control::{Client, ControlError, Greeting, LONGEST_REQUEST, PATIENCE, PROTOCOL};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::{BuildError, Native, OrgSpec, Stack};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

fn build(org: &str, control: &Path) -> Result<(Stack, Stack), BuildError> {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let builder = Stack::builder().on_native(native).organization(org)?;
    let stack = builder
        .control(control)
        .interface(a, &["10.0.0.1/24"])?
        .build()?;
    let peer = Stack::builder().on_native(native).org(OrgSpec::default());
    Ok((stack, peer.interface(b, &["10.0.0.2/24"])?.build()?))
}

fn refusal(org: &str, control: &Path) -> String {
    match build(org, control) {
        Ok(_) => panic!("{} was taken", control.display()),
        Err(e) => e.to_string(),
    }
}

#[test]
fn connections_are_told_over_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    for org in ["up", "up:shared", "connp-l:8"] {
        let path = dir.path().join("stack.sock");
        let (tell, told) = mpsc::channel();
        let at = path.clone();
        let server = thread::spawn(move || {
            let (stack, peer) = build(org, &at).unwrap();
            let listener = stack.listen("10.0.0.1:80").unwrap();
            let datagrams = stack.bind_udp("10.0.0.1:53").unwrap();
            datagrams.connect("10.0.0.2:9").unwrap();
            tell.send(peer).unwrap();
            let (mut s, _) = listener.accept().unwrap();
            s.write_all(b"hello").unwrap();
            assert_eq!(s.read(&mut [0; 8]).unwrap(), 0);
        });
        let peer = told.recv().unwrap();
        let mut conn = peer.connect("10.0.0.1:80").unwrap();
        conn.read_exact(&mut [0; 5]).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{org}");
        let mut client = Client::connect(&path).unwrap();
        assert_eq!(client.greeting().organization, org);
        assert_eq!(client.greeting().pid, std::process::id());
        // One client may ask several times.
        for _ in 0..2 {
            let (listeners, connections) = client.connections().unwrap();
            assert_eq!(listeners.len(), 1, "{org}");
            assert_eq!(listeners[0].local.to_string(), "10.0.0.1:80");
            assert_eq!(connections.len(), 1, "{org}");
            let c = &connections[0];
            assert_eq!(c.local.to_string(), "10.0.0.1:80");
            assert_eq!(c.remote, conn.local_addr().unwrap());
            assert_eq!(
                (c.state.as_str(), c.bytes_acked + u64::from(c.send_queue)),
                ("ESTABLISHED", 5),
                "{org}"
            );
            let layers: Vec<_> = c.layers.iter().map(|l| l.layer.as_str()).collect();
            assert_eq!(layers, ["ip", "tcp", "socket"]);
            assert!(
                c.layers.iter().all(|l| !l.perimeter.is_empty()),
                "{org}: {c:?}"
            );
            assert!(c.layers[1].ran[0].is_some(), "{org}: {c:?}");
        }
        let sockets = client.datagrams().unwrap();
        let ends: Vec<_> = sockets
            .iter()
            .map(|s| (s.local.to_string(), s.remote))
            .collect();
        let theirs = "10.0.0.2:9".parse().unwrap();
        assert_eq!(ends, [("10.0.0.1:53".to_string(), Some(theirs))], "{org}");
        assert_eq!((sockets[0].queued, sockets[0].drops), (0, 0), "{org}");
        let refused = client.trace("0:0.1", None, None, |_| true).unwrap_err();
        assert!(
            matches!(&refused, ControlError::Refused(why) if why.contains("only connections under pef") && why.contains(org)),
            "{refused}"
        );
        drop(conn);
        server.join().unwrap();
        assert!(!path.exists(), "{org}: the socket is left behind");
    }
}

#[test]
fn what_is_in_the_way_is_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    assert!(refusal("up:shared", &file).contains("there is a file of that name"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path().join("stale"), &link).unwrap();
    drop(UnixListener::bind(dir.path().join("stale")).unwrap());
    assert!(refusal("up:shared", &link).contains("there is a file of that name"));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let taken = dir.path().join("taken");
    let first = build("up:shared", &taken).unwrap();
    assert!(refusal("up", &taken).contains("another program"));
    drop(first);
    assert!(!taken.exists());
    let nowhere = dir.path().join("no/such/directory");
    assert!(refusal("up:shared", &nowhere).contains("No such file"));
    let long = dir.path().join("x".repeat(200));
    assert!(refusal("up:shared", &long).starts_with("control socket /"));
    // A socket that somebody else has put there meanwhile stays.
    let (stack, peer) = build("up:shared", &taken).unwrap();
    fs::remove_file(&taken).unwrap();
    let other = UnixListener::bind(&taken).unwrap();
    drop((stack, peer));
    assert!(taken.exists());
    drop(other);
}

/// What a killed process has left is replaced, by one of those who find it.
#[test]
fn a_stale_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stale");
    for _ in 0..20 {
        drop(UnixListener::bind(&path).unwrap());
        let start = || {
            let path = path.clone();
            thread::spawn(move || build("up:shared", &path))
        };
        let (a, b) = (start(), start());
        let (a, b) = (a.join().unwrap(), b.join().unwrap());
        let refused = match (&a, &b) {
            (Ok(_), Err(e)) | (Err(e), Ok(_)) => e.to_string(),
            (Ok(_), Ok(_)) => panic!("both have it"),
            (Err(a), Err(b)) => panic!("{a}; {b}"),
        };
        assert!(refused.contains("another program"), "{refused}");
        assert_eq!(
            Client::connect(&path)
                .unwrap()
                .connections()
                .unwrap()
                .1
                .len(),
            0
        );
        drop((a, b));
        assert!(!path.exists());
    }
}

/// Who holds all places and asks nothing does not keep others out.
#[test]
fn silent_clients_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stack.sock");
    let _stack = build("connp-l:8", &path).unwrap();
    let mut busy = Client::connect(&path).unwrap();
    busy.connections().unwrap();
    let silent: Vec<UnixStream> = (0..7)
        .map(|i| {
            let mut s = UnixStream::connect(&path).unwrap();
            // Some have begun a request, and go on with it for ever.
            if i % 2 == 0 {
                s.write_all(b"{\"ask\":").unwrap();
            }
            s
        })
        .collect();
    let begun = Instant::now();
    for _ in 0..3 {
        while let Err(e) = Client::connect(&path).and_then(|mut c| c.connections()) {
            assert!(begun.elapsed() < Duration::from_secs(5), "{e}");
            thread::sleep(Duration::from_millis(20));
        }
    }
    busy.connections().expect("who asks stays");
    drop(silent);
}

/// Sends `text` as it is and yields the answer's last line.
fn raw(path: &Path, text: &[u8]) -> String {
    let stream = UnixStream::connect(path).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    // The stack may have hung up in the middle of what is too long.
    let _ = (&stream).write_all(text);
    let mut lines = BufReader::new(stream).lines();
    let greeting: Greeting = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(greeting.protocol, PROTOCOL);
    lines.next().unwrap().unwrap()
}

#[test]
fn strange_requests_are_answered_and_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stack.sock");
    let (stack, _peer) = build("up:shared", &path).unwrap();
    for (text, want) in [
        (&b"\n"[..], "this is no request"),
        (b"{\"ask\":\"halt\"}\n", "unknown variant"),
        (b"\xff\xfe\n", "no request"),
        (&[b'['; LONGEST_REQUEST + 1], "at most 4096 bytes"),
        (
            b"{\"ask\":\"trace\",\"connection\":\"one\"}\n",
            "`one` is no connection's name",
        ),
        (
            b"{\"ask\":\"trace\",\"connection\":\"0:0.1\",\"seconds\":-1.0}\n",
            "seconds",
        ),
        (b"{\"ask\":\"connections\"}\n", "\"count\":0"),
    ] {
        let answer = raw(&path, text);
        assert!(
            answer.contains(want),
            "{:?}: {answer}",
            String::from_utf8_lossy(text)
        );
    }
    // More clients than there may be; they make room when they go.
    let mut many: Vec<Client> = Vec::new();
    let refused = loop {
        match Client::connect(&path) {
            Ok(c) => many.push(c),
            Err(e) => break e,
        }
        assert!(many.len() < 100);
    };
    assert!(
        refused.to_string().contains("connected already"),
        "{refused}"
    );
    many.clear();
    let end = Instant::now() + Duration::from_secs(10);
    while let Err(e) = Client::connect(&path).and_then(|mut c| c.connections()) {
        assert!(Instant::now() < end, "{e}");
        thread::sleep(Duration::from_millis(5));
    }
    // Clients that are connected do not keep the stack from going.
    let waiting = Client::connect(&path).unwrap();
    let dropped = Instant::now();
    drop(stack);
    assert!(
        dropped.elapsed() < Duration::from_secs(5),
        "{:?}",
        dropped.elapsed()
    );
    drop(waiting);
    assert!(matches!(
        Client::connect(&path),
        Err(ControlError::Unreachable { .. })
    ));
}

/// A stack of one thread that does something else: an error in bounded time, and no waiting for
/// it when that thread drops the stack.
#[test]
fn a_stack_of_one_thread_that_does_not_come_by() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stack.sock");
    let (stack, _peer) = build("up", &path).unwrap();
    stack.drive().unwrap();
    let at = path.clone();
    let asker = thread::spawn(move || {
        let mut client = Client::connect(&at).unwrap();
        let asked = Instant::now();
        let refused = client.connections().unwrap_err().to_string();
        assert!(
            refused.contains("one thread, which has not looked"),
            "{refused}"
        );
        assert!(asked.elapsed() >= PATIENCE && asked.elapsed() < 8 * PATIENCE);
        // And again, while the stack is dropped.
        client.connections().unwrap_err()
    });
    thread::sleep(PATIENCE + Duration::from_millis(300));
    let dropped = Instant::now();
    drop(stack);
    assert!(
        dropped.elapsed() < Duration::from_secs(5),
        "{:?}",
        dropped.elapsed()
    );
    asker.join().unwrap();
    assert!(!path.exists());
}

#[test]
fn others_than_stacks_of_this_version_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let talk = |name: &str, text: &'static str| {
        let path = dir.path().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let t = thread::spawn(move || {
            let (mut s, _) = listener.accept().unwrap();
            s.write_all(text.as_bytes()).unwrap();
        });
        let error = Client::connect(&path).err().unwrap();
        t.join().unwrap();
        error
    };
    let newer = talk(
        "newer",
        "{\"perimeter\":\"9.1.0\",\"protocol\":77,\"colour\":\"red\"}\n",
    );
    let text = newer.to_string();
    assert!(matches!(newer, ControlError::Version { .. }));
    assert!(text.contains("9.1.0") && text.contains("77"), "{text}");
    assert!(
        talk("ssh", "SSH-2.0-OpenSSH\r\n")
            .to_string()
            .contains("no perimeter stack")
    );
    assert!(talk("silent", "").to_string().contains("has gone"));
    let refused = Client::connect(&dir.path().join("none")).err().unwrap();
    assert!(
        refused.to_string().contains("no control socket"),
        "{refused}"
    );
}
