//! Listeners whose wildcard entries come and go one thread, or group, after another, while SYNs
//! arrive.

use crate::common::{Setup, World, named};
use perimeter::OrgSpec;
use perimeter_sync::virt::Schedule;
use perimeter_sync::{Platform, Thread};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn organizations() -> Vec<OrgSpec> {
    let threads = [
        "connp-t:4",
        "connp-t:4:wait=spin",
        "connp-t:4:wait=spin:fold",
        "connp-t:per-connection=4",
        "connp-t:per-connection=4:made",
    ];
    let others = ["connp-l:8", "up:shared"];
    threads.into_iter().chain(others).map(named).collect()
}

fn explore(body: fn(World)) {
    for org in organizations() {
        for seed in 0..15 {
            let schedule = match seed % 3 {
                0 => Schedule::Random { switch_one_in: 2 },
                1 => Schedule::Random { switch_one_in: 20 },
                _ => Schedule::Pct { depth: 4 },
            };
            let mut setup = Setup::new(org.clone()).schedule(schedule, seed, 4);
            // The threads that open connections go on while the listener comes and goes.
            setup.wire.latency_ns = 1_000;
            setup.run(move |w| {
                w.settle();
                body(w);
            });
        }
    }
}

/// Threads of the peer's that open connections over and over until `stop`; each tells `seen` how
/// the attempt ended that was over before the listener of its beginning went. `listening` is odd
/// while there is one, and counts them.
fn callers(
    w: &World,
    listening: &Arc<AtomicUsize>,
    stop: &Arc<AtomicBool>,
    refused: &Arc<AtomicUsize>,
) -> Vec<impl Thread + use<>> {
    (0..3)
        .map(|_| {
            let (peer, p) = (w.peer.clone(), w.p.clone());
            let (listening, stop, refused) = (listening.clone(), stop.clone(), refused.clone());
            let server = w.at(80);
            let body = move || {
                while !stop.load(Ordering::SeqCst) {
                    let before = listening.load(Ordering::SeqCst);
                    match peer.connect(server) {
                        Ok(mut s) => {
                            // Until the listener's end: nobody accepts.
                            let mut buf = [0; 1];
                            let end = s.read(&mut buf).map_err(|e| e.kind());
                            assert_eq!(end, Err(ErrorKind::ConnectionReset));
                        }
                        // Established, and reset by the listener's end before connect could
                        // return: both may come in one burst.
                        Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
                            let same = before == listening.load(Ordering::SeqCst);
                            refused
                                .fetch_add(usize::from(before % 2 == 1 && same), Ordering::SeqCst);
                        }
                    }
                    p.sleep_until(p.now().plus(20_000));
                }
            };
            w.p.spawn("caller", None, Box::new(body))
        })
        .collect()
}

/// A SYN may come to a thread before its wildcard entry, and is refused; once listen has
/// returned none is. SYNs that come while the entries are shot down, handshakes under way and
/// connections that nobody has accepted all end, and nothing is left.
#[test]
fn syns_meet_a_listener_that_comes_and_goes() {
    explore(|w| {
        let listening = Arc::new(AtomicUsize::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let refused = Arc::new(AtomicUsize::new(0));
        let callers = callers(&w, &listening, &stop, &refused);
        for round in 0..4 {
            let l = w.s.listen(w.at(80)).unwrap();
            listening.fetch_add(1, Ordering::SeqCst);
            // Sometimes before the first has gone through its handshake.
            w.p.sleep_until(w.p.now().plus(1_000 + 40_000 * round));
            listening.fetch_add(1, Ordering::SeqCst);
            drop(l);
            w.p.sleep_until(w.p.now().plus(10_000 * round));
        }
        stop.store(true, Ordering::SeqCst);
        for c in callers {
            c.join().unwrap();
        }
        assert_eq!(refused.load(Ordering::SeqCst), 0, "refused by a listener");
        w.until("end", || w.s.stats().connections == 0);
        w.pass(50 * MS);
        w.s.engine().quiescent().unwrap();
        assert_eq!(w.s.stats().memory, 0);
    });
}

/// Every thread has the entry when listen returns: connections of many flows, so of every
/// thread, come through, and after close every thread refuses.
#[test]
fn every_thread_listens_and_every_thread_stops() {
    explore(|w| {
        let l = w.s.listen(w.at(80)).unwrap();
        let all: Vec<_> = (0..24).map(|_| w.peer.connect(w.at(80)).unwrap()).collect();
        let owners: BTreeSet<_> = (0..all.len())
            .map(|_| l.accept().unwrap().0.id().shard())
            .collect();
        let threads = match w.s.organization().family().name {
            "connp-t" => 4,
            _ => owners.len(),
        };
        assert_eq!(owners.len(), threads, "{owners:?}");
        drop(l);
        for _ in 0..24 {
            let e = w.peer.connect(w.at(80)).map(drop).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
        }
        drop(all);
    });
}

/// Threads that ask for any port at the same time get one each.
#[test]
fn any_port_is_never_in_use() {
    explore(|w| {
        let all = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let (s, all, any) = (w.s.clone(), all.clone(), w.at(0));
                let body = move || {
                    for _ in 0..3 {
                        let listener = s.listen(any).unwrap();
                        all.lock().unwrap().push(listener);
                    }
                };
                w.p.spawn(&format!("listens-{n}"), Some(n), Box::new(body))
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        let all = all.lock().unwrap();
        let ports: BTreeSet<_> = all.iter().map(|l| l.local_addr().unwrap()).collect();
        assert_eq!(ports.len(), 12, "{ports:?}");
    });
}

/// FIN and RST in the SYN cache: handshakes that end before they are complete.
#[test]
fn handshakes_are_broken_off_while_the_listener_closes() {
    explore(|w| {
        for round in 0..6 {
            let l = w.s.listen(w.at(80)).unwrap();
            let opening: Vec<_> = (0..6)
                .map(|_| w.peer.start_connect(w.at(80)).unwrap())
                .collect();
            w.p.sleep_until(w.p.now().plus(700 * round));
            for (i, s) in opening.into_iter().enumerate() {
                if i % 2 == 0 {
                    let _ = s.abort();
                }
            }
            w.p.sleep_until(w.p.now().plus(500 * round));
            drop(l);
        }
        w.until("end", || w.s.stats().connections == 0);
        w.pass(50 * MS);
        w.s.engine().quiescent().unwrap();
    });
}
