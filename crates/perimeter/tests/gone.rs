//! Interfaces that go for good, and waiting for a stack in a poll of the host's.

mod common;

use common::{Setup, kind, named, organizations};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::link::{Capabilities, Device, Queues, RxFrame, RxQueue, RxStatus, Waker};
use perimeter::{Events, Interest, Native, Platform, Stack, Token, Virtual};
use perimeter_base::{PktPool, Time};
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// A device that goes when it is told to.
struct Mortal<D> {
    inner: D,
    gone: Arc<AtomicBool>,
}

struct MortalRx {
    inner: Box<dyn RxQueue>,
    gone: Arc<AtomicBool>,
}

impl<D: Device> Device for Mortal<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let Mortal { inner, gone } = *self;
        let (rx, tx) = Box::new(inner).open();
        let wrap = |inner| -> Box<dyn RxQueue> {
            Box::new(MortalRx {
                inner,
                gone: gone.clone(),
            })
        };
        (rx.into_iter().map(wrap).collect(), tx)
    }
}

impl RxQueue for MortalRx {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        if self.gone.load(Ordering::SeqCst) {
            return 0;
        }
        self.inner.poll(now, pool, out, max)
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        if self.gone.load(Ordering::SeqCst) {
            return RxStatus::Gone;
        }
        self.inner.arm(now)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.inner.set_waker(waker);
    }
}

fn connected(p: &Virtual, s: &Stack, peer: &Stack, to: &str) -> perimeter::TcpStream {
    let a = s.start_connect(to.parse().unwrap()).unwrap();
    while a.info().unwrap().tcp.state != perimeter::State::Established {
        s.drive().unwrap();
        peer.drive().unwrap();
        p.sleep_until(p.now() + MS);
    }
    a
}

#[test]
fn who_uses_an_interface_that_has_gone_hears_of_it() {
    for org in organizations() {
        let setup = Setup::new(org.clone());
        let run = Virtual::run(setup.virt, move |p| {
            let ([a, b], _) = pair(&p, WireConfig::default());
            let ([c, d], _) = pair(&p, WireConfig::default());
            let gone = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
            let mortal = |inner, n: usize| Mortal {
                inner,
                gone: gone[n].clone(),
            };
            let builder = || Stack::builder().on_virtual(p.clone());
            let s = builder().org(org.clone());
            let s = s.interface(mortal(a, 0), &["10.0.0.1/24"]).unwrap();
            let s = s.interface(mortal(c, 1), &["10.0.1.1/24"]).unwrap();
            let s = s.build().unwrap();
            let peer = builder().interface(b, &["10.0.0.2/24"]).unwrap();
            let peer = peer.interface(d, &["10.0.1.2/24"]).unwrap();
            let peer = peer.build().unwrap();
            let l = peer.listen("0.0.0.0:80").unwrap();
            let first = connected(&p, &s, &peer, "10.0.0.2:80");
            let second = connected(&p, &s, &peer, "10.0.1.2:80");
            let ours = s.listen("10.0.0.1:90").unwrap();
            ours.set_nonblocking(true).unwrap();

            gone[0].store(true, Ordering::SeqCst);
            // Blocks: whoever waits is woken.
            let end = (&first).read(&mut [0; 8]);
            assert_eq!(kind(end), Some(ErrorKind::NetworkDown), "{org}");
            let again = s.start_connect("10.0.0.2:80".parse().unwrap());
            assert_eq!(kind(again), Some(ErrorKind::NetworkDown), "{org}");
            // The other interface is none the worse.
            (&second).write_all(b"x").unwrap();
            assert_eq!(kind(ours.accept()), Some(ErrorKind::WouldBlock), "{org}");
            assert_eq!(s.stats().count("interfaces_gone"), 1);
            assert_eq!(s.engine().gone_interfaces(), ["wire1"]);

            gone[1].store(true, Ordering::SeqCst);
            ours.set_nonblocking(false).unwrap();
            assert_eq!(kind(ours.accept()), Some(ErrorKind::NetworkDown), "{org}");
            second.set_nonblocking(true).unwrap();
            let end = (&second).read(&mut [0; 8]);
            assert_eq!(kind(end), Some(ErrorKind::NetworkDown), "{org}");
            // Nothing can be delivered any more, so nobody waits for that.
            let before = p.now();
            drop((first, second, ours));
            drop(s);
            assert!(p.now().since(before) < 100 * MS, "{org}");
            drop((l, peer));
        });
        run.unwrap_or_else(|f| panic!("{f}"));
    }
}

/// Echoes one connection, waiting nowhere but in the host's poll.
fn echo_by_descriptor(s: &Stack, port: u16) {
    let l = s.listen(("10.0.0.1", port)).unwrap();
    l.set_nonblocking(true).unwrap();
    let poll = s.poll().unwrap();
    let registry = poll.registry();
    registry.register(&l, Token(0), Interest::READABLE).unwrap();
    let mut events = Events::with_capacity(8);
    let mut conn = None;
    let mut back: Vec<u8> = Vec::new();
    loop {
        let mut fds = [rustix::event::PollFd::new(
            &poll,
            rustix::event::PollFlags::IN,
        )];
        let limit = rustix::event::Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let n = rustix::event::poll(&mut fds, Some(&limit)).unwrap();
        assert_eq!(n, 1, "{}: the descriptor never fired", s.organization());
        poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        if conn.is_none()
            && let Ok((c, _)) = l.accept()
        {
            c.set_nonblocking(true).unwrap();
            registry
                .register(&c, Token(1), Interest::BOTH.edge())
                .unwrap();
            conn = Some(c);
        }
        let Some(c) = &conn else { continue };
        let mut buf = [0; 4096];
        let mut ended = false;
        loop {
            match { c }.read(&mut buf) {
                Ok(0) => {
                    ended = true;
                    break;
                }
                Ok(n) => back.extend(&buf[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
        while !back.is_empty() {
            match { c }.write(&back) {
                Ok(n) => drop(back.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
        if ended && back.is_empty() {
            return;
        }
    }
}

#[test]
fn a_poll_descriptor_is_enough_to_wait_for_a_stack() {
    for name in ["up", "up:netisr", "up:shared", "connp-l:4"] {
        let native = Native::default();
        let mut wire = WireConfig::default();
        // Lost segments make timers matter, of both ends.
        for end in &mut wire.ends {
            end.faults.loss = 0.1;
        }
        let ([a, b], _) = pair(&native, wire);
        let build = |org, end, addr: &str| {
            let b = Stack::builder().on_native(native).org(org);
            b.interface(end, &[addr]).unwrap().build().unwrap()
        };
        let s = build(named(name), a, "10.0.0.1/24");
        let peer = build(named("up:shared"), b, "10.0.0.2/24");
        let client = std::thread::spawn(move || {
            let data = common::content(60_000);
            let c = loop {
                // The listener may not be there yet, and neighbours may be lost.
                match peer.connect("10.0.0.1:80") {
                    Ok(c) => break c,
                    Err(_) => std::thread::sleep(10 * MS),
                }
            };
            let writer = c.try_clone().unwrap();
            let theirs = data.clone();
            let t = std::thread::spawn(move || {
                (&writer).write_all(&theirs).unwrap();
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut all = vec![0; data.len()];
            (&c).read_exact(&mut all).unwrap();
            t.join().unwrap();
            assert!(all == data);
        });
        echo_by_descriptor(&s, 80);
        let _ = s.shutdown(Duration::from_secs(20)).unwrap();
        client.join().unwrap();
    }
}
