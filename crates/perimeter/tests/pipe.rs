//! Two stacks over frame pipes, and nothing of the kernel's between them.

use perimeter::link::pipe::{PipeConfig, PipeEnd, channel, datagram, stream};
use perimeter::link::{Device, MacAddr, Medium};
use perimeter::{Native, OrgSpec, Stack};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const ORGS: [&str; 5] = ["up:shared", "connp-l:8", "squeue:2", "msgp", "connp-t:2"];

fn config(medium: Medium, host: u8) -> PipeConfig {
    PipeConfig::default()
        .with_medium(medium)
        .with_mac(MacAddr([2, 0, 0, 0, 0, host]))
        .with_queue(32)
}

fn stack(org: &str, device: impl Device + 'static, addr: &str) -> Stack {
    let org: OrgSpec = org.parse().unwrap();
    let b = Stack::builder().on_native(Native::default()).org(org);
    b.interface(device, &[addr]).unwrap().build().unwrap()
}

fn byte(i: usize) -> u8 {
    (i * 7 + i / 251) as u8
}

/// Bytes to and fro, with half a close in between.
fn exchange(server: &Stack, client: &Stack, n: usize) {
    let listener = server.listen("10.0.0.1:80").unwrap();
    let t = thread::spawn(move || {
        let (mut s, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        s.read_to_end(&mut all).unwrap();
        s.write_all(&all).unwrap();
    });
    let mut c = client.connect("10.0.0.1:80").unwrap();
    let data: Vec<u8> = (0..n).map(byte).collect();
    c.write_all(&data).unwrap();
    c.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    c.read_to_end(&mut back).unwrap();
    t.join().unwrap();
    assert!(back == data, "{} of {n} bytes", back.len());
}

#[test]
fn over_a_datagram_socket() {
    for (org, medium) in ORGS
        .iter()
        .zip([Medium::Ip, Medium::Ethernet].iter().cycle())
    {
        let (a, b) = UnixDatagram::pair().unwrap();
        let server = stack(org, datagram(a, config(*medium, 1)).unwrap(), "10.0.0.1/24");
        let client = stack(
            ORGS[0],
            datagram(b, config(*medium, 2)).unwrap(),
            "10.0.0.2/24",
        );
        exchange(&server, &client, 300_000);
    }
}

#[test]
fn over_a_stream_socket() {
    for (org, medium) in ORGS
        .iter()
        .zip([Medium::Ethernet, Medium::Ip].iter().cycle())
    {
        let (a, b) = UnixStream::pair().unwrap();
        let server = stack(org, stream(a, config(*medium, 1)).unwrap(), "10.0.0.1/24");
        let client = stack(
            ORGS[0],
            stream(b, config(*medium, 2)).unwrap(),
            "10.0.0.2/24",
        );
        exchange(&server, &client, 300_000);
    }
}

/// Takes frames from one end to the other until it is told to stop; what finds no room waits.
fn pump(
    from: PipeEnd<Native>,
    to: PipeEnd<Native>,
    stop: Arc<AtomicBool>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let me = thread::current();
        from.set_notify(Arc::new(move || me.unpark()));
        while !stop.load(Ordering::Relaxed) {
            while let Some(mut frame) = from.try_recv() {
                while let Err(full) = to.send(frame) {
                    frame = full.0;
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::yield_now();
                }
            }
            thread::park_timeout(Duration::from_millis(5));
        }
    })
}

#[test]
fn over_channels() {
    for (org, medium) in ORGS
        .iter()
        .zip([Medium::Ip, Medium::Ethernet].iter().cycle())
    {
        let native = Native::default();
        let (a, a_end) = channel(&native, config(*medium, 1));
        let (b, b_end) = channel(&native, config(*medium, 2));
        let stop = Arc::new(AtomicBool::new(false));
        let pumps = [
            pump(a_end.clone(), b_end.clone(), stop.clone()),
            pump(b_end, a_end, stop.clone()),
        ];
        let server = stack(org, a, "10.0.0.1/24");
        let client = stack(ORGS[0], b, "10.0.0.2/24");
        exchange(&server, &client, 300_000);
        drop((server, client));
        stop.store(true, Ordering::Relaxed);
        for p in pumps {
            p.join().unwrap();
        }
    }
}

/// Who holds the other end lets go of it: the interface has gone, and its connections hear of it.
#[test]
fn the_other_end_goes() {
    let (a, end) = channel(&Native::default(), config(Medium::Ip, 1));
    let s = stack("connp-l:8", a, "10.0.0.1/24");
    let c = s.start_connect("10.0.0.2:80".parse().unwrap()).unwrap();
    drop(end);
    for _ in 0..1_000 {
        if let Some(e) = c.take_error().unwrap() {
            assert_eq!(e.kind(), std::io::ErrorKind::NetworkDown);
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
    panic!("nobody was told");
}

/// What a sender asks for with IP_TOS stands in each datagram, of either family; and what was set is
/// told.
#[test]
fn settings_of_a_stream_are_told_and_stand_in_its_datagrams() {
    for org in ORGS {
        for (ours, theirs) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let (a, wire) = UnixDatagram::pair().unwrap();
            let (far, b) = UnixDatagram::pair().unwrap();
            let with = |addr: &str| format!("{addr}/{}", if addr.contains(':') { 64 } else { 24 });
            let server = stack(
                org,
                datagram(a, config(Medium::Ip, 1)).unwrap(),
                &with(ours),
            );
            let client = stack(
                org,
                datagram(b, config(Medium::Ip, 2)).unwrap(),
                &with(theirs),
            );
            let seen = Arc::new(AtomicBool::new(false));
            // Both ways; from the client, who says so, to the server it is looked at.
            let passes = |from: UnixDatagram, to: UnixDatagram, look: Option<Arc<AtomicBool>>| {
                thread::spawn(move || {
                    let mut buf = vec![0; 1 << 16];
                    while let Ok(n) = from.recv(&mut buf) {
                        let tos = match buf[0] >> 4 {
                            4 => buf[1],
                            _ => buf[0] << 4 | buf[1] >> 4,
                        };
                        if let Some(seen) = &look
                            && tos == 0xb8
                        {
                            seen.store(true, Ordering::Relaxed);
                        }
                        if n == 0 || to.send(&buf[..n]).is_err() {
                            break;
                        }
                    }
                })
            };
            let (wire2, far2) = (wire.try_clone().unwrap(), far.try_clone().unwrap());
            passes(wire, far, None);
            passes(far2, wire2, Some(seen.clone()));
            let at = std::net::SocketAddr::new(ours.parse().unwrap(), 80);
            let listener = server.listen(at).unwrap();
            let mut c = client.connect(at).unwrap();
            let (mut s, _) = listener.accept().unwrap();
            assert_eq!((c.tos().unwrap(), c.linger().unwrap()), (0, None), "{org}");
            assert!(!seen.load(Ordering::Relaxed), "{org}");
            c.set_tos(0xb8).unwrap();
            c.set_linger(Some(Duration::ZERO)).unwrap();
            c.set_send_buffer_size(40_000).unwrap();
            c.set_recv_buffer_size(50_000).unwrap();
            assert_eq!((c.tos().unwrap(), s.tos().unwrap()), (0xb8, 0), "{org}");
            assert_eq!(c.linger().unwrap(), Some(Duration::ZERO), "{org}");
            assert_eq!(c.send_buffer_size().unwrap(), 40_000, "{org}");
            assert_eq!(c.recv_buffer_size().unwrap(), 50_000, "{org}");
            c.write_all(b"x").unwrap();
            s.read_exact(&mut [0]).unwrap();
            assert!(seen.load(Ordering::Relaxed), "{org}: {ours}");
        }
    }
}
