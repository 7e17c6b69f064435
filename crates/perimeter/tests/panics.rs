//! A panic inside a stack ends it: every call says so, also those that are blocked at that time,
//! and nobody hangs. On the machine: on virtual cores a panic ends the whole simulation.

mod common;

use common::{kind, organizations};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::link::{Capabilities, Device, Queues, RxFrame, RxQueue, RxStatus, Waker};
use perimeter::{Events, Native, Stack};
use perimeter_base::{PktPool, Time};
use std::io::{ErrorKind, Read, Result};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

/// A device that panics when it is told to: a fault inside the stack that no peer can cause.
struct Bomb<D> {
    inner: D,
    lit: Arc<AtomicBool>,
}

struct BombRx {
    inner: Box<dyn RxQueue>,
    lit: Arc<AtomicBool>,
}

impl<D: Device> Device for Bomb<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(self: Box<Self>) -> Queues {
        let Bomb { inner, lit } = *self;
        let (rx, tx) = Box::new(inner).open();
        let wrap = |inner| -> Box<dyn RxQueue> {
            Box::new(BombRx {
                inner,
                lit: lit.clone(),
            })
        };
        (rx.into_iter().map(wrap).collect(), tx)
    }
}

impl RxQueue for BombRx {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        assert!(!self.lit.load(Ordering::SeqCst), "the device is broken");
        self.inner.poll(now, pool, out, max)
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        self.inner.arm(now)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.inner.set_waker(waker);
    }

    fn fd(&self) -> Option<RawFd> {
        self.inner.fd()
    }
}

/// Runs `call` in a thread; its result is to come soon after.
fn begin(call: impl FnOnce() -> Result<()> + Send + 'static) -> mpsc::Receiver<Result<()>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || send.send(call()));
    receive
}

fn failed(r: Result<()>, what: &str) {
    let e = r.expect_err(what);
    assert_eq!(e.kind(), ErrorKind::Other, "{what}: {e}");
    assert!(e.to_string().contains("panicked"), "{what}: {e}");
}

#[test]
fn a_panic_ends_the_stack_and_everybody_hears_of_it() {
    for org in organizations() {
        let native = Native::default();
        let ([a, b], _) = pair(&native, WireConfig::default());
        let lit = Arc::new(AtomicBool::new(false));
        let bomb = Bomb {
            inner: a,
            lit: lit.clone(),
        };
        let s = Stack::builder().on_native(native).org(org.clone());
        let s = s.interface(bomb, &["10.0.0.1/24"]).unwrap();
        let s = s.build().unwrap();
        let peer = Stack::builder().on_native(native);
        let peer = peer.interface(b, &["10.0.0.2/24"]).unwrap();
        let peer = peer.build().unwrap();
        let l = peer.listen("10.0.0.2:80").unwrap();
        let c = s.connect("10.0.0.2:80").unwrap();
        let (d, _) = l.accept().unwrap();
        let ours = s.listen("10.0.0.1:90").unwrap();
        let poll = s.poll().unwrap();

        if org.single_threaded() {
            lit.store(true, Ordering::SeqCst);
            let broken = std::panic::AssertUnwindSafe(|| s.drive());
            assert!(std::panic::catch_unwind(broken).is_err());
        } else {
            let (c, s2) = (c.try_clone().unwrap(), s.clone());
            let blocked = [
                ("read", begin(move || (&c).read(&mut [0; 8]).map(drop))),
                ("accept", begin(move || ours.accept().map(drop))),
                (
                    "poll",
                    begin(move || poll.poll(&mut Events::with_capacity(1), None)),
                ),
                (
                    "connect",
                    begin(move || s2.connect("10.0.0.77:1").map(drop)),
                ),
            ];
            thread::sleep(Duration::from_millis(50));
            lit.store(true, Ordering::SeqCst);
            for (what, end) in blocked {
                let what = format!("{org}: {what}");
                let r = end
                    .recv_timeout(LONG)
                    .unwrap_or_else(|_| panic!("{what} hangs"));
                failed(r, &what);
            }
        }
        let s2 = s.clone();
        let c2 = c.try_clone().unwrap();
        let calls = move || -> [Result<()>; 5] {
            [
                s2.connect("10.0.0.2:80").map(drop),
                s2.listen("10.0.0.1:91").map(drop),
                (&c2).read(&mut [0; 8]).map(drop),
                std::io::Write::write(&mut &c2, b"x").map(drop),
                s2.shutdown(Duration::from_secs(5)).map(drop),
            ]
        };
        for (n, r) in calls().into_iter().enumerate() {
            failed(r, &format!("{org}: call {n}"));
        }
        // The end does not hang either.
        let end = begin(move || {
            drop((s, c));
            Ok(())
        });
        end.recv_timeout(LONG)
            .unwrap_or_else(|_| panic!("{org}: the end hangs"))
            .unwrap();
        drop((d, l));
        assert_eq!(kind(peer.shutdown(Duration::ZERO)), None);
    }
}
