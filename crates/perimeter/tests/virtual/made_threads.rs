//! Protocol threads that are made with a connection and end with it
//! (`connp-t:per-connection:made`).

use crate::common::{Setup, World, content, named};
use perimeter::{Platform, Stack, TcpStream};
use perimeter_sync::Thread;
use perimeter_sync::virt::Schedule;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn setup(org: &str) -> Setup {
    let mut setup = Setup::new(named(org));
    setup.config.tcp.time_wait = SECOND;
    setup
}

/// Various orders of the threads' steps.
fn explore(org: &str, change: fn(&mut Setup, u64), body: fn(World)) {
    for seed in 0..60 {
        let schedule = match seed % 3 {
            0 => Schedule::Random { switch_one_in: 2 },
            1 => Schedule::Random { switch_one_in: 20 },
            _ => Schedule::Pct { depth: 4 },
        };
        let mut setup = setup(org).schedule(schedule, seed, 2);
        setup.wire.latency_ns = 1_000;
        setup.config.tcp.time_wait = MS;
        setup.peer.tcp.time_wait = MS;
        change(&mut setup, seed);
        setup.run(move |w| {
            w.settle();
            body(w);
        });
    }
}

/// Threads made and ended so far, and places whose thread was refused.
fn counts(s: &Stack) -> [u64; 3] {
    ["threads_made", "threads_ended", "threads_refused"].map(|name| s.stats().count(name))
}

/// Carries bytes both ways.
fn carry(w: &World, a: &TcpStream, b: &TcpStream) {
    let data = content(5000);
    for (from, to) in [(a, b), (b, a)] {
        w.write(from, &data);
        let mut got = Vec::new();
        while got.len() < data.len() {
            got.extend(w.read(to).unwrap());
        }
        assert!(got == data);
    }
}

#[test]
fn a_thread_is_there_as_long_as_its_connection() {
    setup("connp-t:per-connection:made").run(|w| {
        w.settle();
        // Neither listeners nor datagrams nor a look at all connections need one.
        let l = w.s.listen(w.at(80)).unwrap();
        let socket = w.s.bind_udp(w.at(81)).unwrap();
        assert!(w.s.connections().is_empty());
        assert_eq!(counts(&w.s), [0, 0, 0]);
        // Opened here: it waits for the peer's end, which comes first.
        let (a, b) = w.open();
        carry(&w, &a, &b);
        assert_eq!(counts(&w.s), [1, 0, 0]);
        drop(b);
        assert!(w.read(&a).unwrap().is_empty());
        drop(a);
        w.until("end", || w.s.stats().connections == 0);
        w.pass(10 * MS);
        assert_eq!(counts(&w.s), [1, 1, 0]);
        // Opened there, and all at once.
        let all: Vec<_> = (0..3).map(|_| w.opened()).collect();
        let threads: BTreeSet<_> = all.iter().map(|(a, _)| a.id().shard()).collect();
        assert_eq!(threads.len(), 3);
        all.iter().for_each(|(a, b)| carry(&w, a, b));
        assert_eq!(w.s.connections().len(), 3);
        assert_eq!(counts(&w.s), [4, 1, 0]);
        // In TIME-WAIT a connection still has its thread.
        drop(all);
        w.pass(100 * MS);
        assert_eq!((w.s.stats().connections, counts(&w.s)), (3, [4, 1, 0]));
        w.pass(2 * SECOND);
        assert_eq!((w.s.stats().connections, counts(&w.s)), (0, [4, 4, 0]));
        assert!(w.s.connections().is_empty());
        drop((l, socket));
        assert_eq!(counts(&w.s), [4, 4, 0]);
        w.s.engine().quiescent().unwrap();
    });
}

#[test]
fn beyond_as_many_places_connections_share_threads() {
    setup("connp-t:per-connection=2:made").run(|w| {
        w.settle();
        let all: Vec<_> = (0..5)
            .map(|n| if n % 2 == 0 { w.open() } else { w.opened() })
            .collect();
        let threads: BTreeSet<_> = all.iter().map(|(a, _)| a.id().shard()).collect();
        assert_eq!((threads.len(), counts(&w.s)), (2, [2, 0, 0]));
        all.iter().for_each(|(a, b)| carry(&w, a, b));
        for (a, b) in all {
            drop(b);
            assert!(w.read(&a).unwrap().is_empty());
        }
        w.until("end", || w.s.stats().connections == 0);
        w.pass(10 * MS);
        assert_eq!(counts(&w.s), [2, 2, 0]);
    });
}

/// Who asks for a flow that exists is refused, and the one that has it keeps it.
#[test]
fn a_flow_that_exists_is_nobody_elses() {
    let both = ["connp-t:per-connection=2", "connp-t:per-connection=2:made"];
    for org in both {
        setup(org).run(move |w| {
            w.settle();
            let there = w.there(80);
            let l = w.peer.listen(there).unwrap();
            let connect = |port| {
                let socket = match there.is_ipv4() {
                    true => w.s.tcp_socket_v4(),
                    false => w.s.tcp_socket_v6(),
                };
                socket.bind(w.at(port))?;
                socket.connect(there)
            };
            let pairs: Vec<_> = (4000..4006)
                .map(|port| {
                    let ours = connect(port).unwrap();
                    let (theirs, _) = l.accept().unwrap();
                    ours.set_nonblocking(true).unwrap();
                    theirs.set_nonblocking(true).unwrap();
                    (ours, theirs)
                })
                .collect();
            for port in 4000..4006 {
                let again = connect(port).expect_err("the flow exists");
                assert_eq!(again.kind(), ErrorKind::AddrInUse, "{org}");
            }
            for (ours, theirs) in &pairs {
                carry(&w, ours, theirs);
            }
        });
    }
}

/// Threads of the peer's that ask the stack under test something so many times, each time by a new
/// connection; an error ends one, too.
fn callers(w: &World, times: usize) -> Vec<impl Thread + use<>> {
    let caller = |_| {
        let (peer, server) = (w.peer.clone(), w.at(80));
        let body = move || {
            let ask = || -> std::io::Result<()> {
                let mut s = peer.connect(server)?;
                s.write_all(b"question")?;
                let mut answer = [0; 6];
                s.read_exact(&mut answer)?;
                assert_eq!(&answer, b"answer");
                Ok(())
            };
            let _ = (0..times).try_for_each(|_| ask());
        };
        w.p.spawn("caller", None, Box::new(body))
    };
    (0..3).map(caller).collect()
}

/// Answers each of them until the stack ends, and counts them.
fn server(w: &World, answered: &Arc<AtomicUsize>) -> impl Thread + use<> {
    let (l, answered) = (w.s.listen(w.at(80)).unwrap(), answered.clone());
    let body = move || {
        let answer = || -> std::io::Result<()> {
            let (mut c, _) = l.accept()?;
            let mut question = [0; 8];
            // The peer may have gone.
            let heard = c.read_exact(&mut question).is_ok();
            let both = heard && c.write_all(b"answer").is_ok();
            // Not the first to close, which would keep its thread for as long as TIME-WAIT.
            let _ = c.read(&mut question);
            answered.fetch_add(both.into(), Ordering::SeqCst);
            Ok(())
        };
        while answer().is_ok() {}
    };
    w.p.spawn("server", None, Box::new(body))
}

/// Three callers ask four times each, and all of them are answered. `at_rest` looks at the counts when
/// no connection is left.
fn all_are_served(w: &World, at_rest: impl FnOnce([u64; 3])) {
    let answered = Arc::default();
    let server = server(w, &answered);
    for c in callers(w, 4) {
        c.join().unwrap();
    }
    w.until("end", || w.s.stats().connections == 0);
    w.pass(50 * MS);
    w.s.engine().quiescent().unwrap();
    at_rest(counts(&w.s));
    w.s.stop();
    server.join().unwrap();
    assert_eq!(answered.load(Ordering::SeqCst), 12);
}

/// Connections come and go, more than there are places: each is served, every thread ends.
#[test]
fn threads_come_and_go_with_connections() {
    explore(
        "connp-t:per-connection=2:made",
        |_, _| {},
        |w| {
            all_are_served(&w, |[made, ended, refused]| {
                assert!(made == ended && made >= 2, "{made} made, {ended} ended");
                assert_eq!((refused, w.s.stats().memory), (0, 0));
            });
        },
    );
}

/// A stack that is stopped while threads are made and end: all of them are joined, as the
/// simulation finds none left, and nobody waits for ever.
#[test]
fn a_stack_may_be_stopped_at_any_moment() {
    explore(
        "connp-t:per-connection=2:made",
        |_, _| {},
        |w| {
            let answered = Arc::default();
            let server = server(&w, &answered);
            let callers = callers(&w, 1000);
            let opening = w.s.start_connect(w.there(99));
            w.p.sleep_until(w.p.now().plus(w.p.secret()[0] % 300_000));
            w.s.stop();
            let [made, ended, _] = counts(&w.s);
            server.join().unwrap();
            assert!(w.s.start_connect(w.there(99)).is_err());
            drop(opening);
            w.pass(10 * MS);
            // None was made or ended after that.
            assert_eq!(counts(&w.s)[..2], [made, ended]);
            w.peer.stop();
            for c in callers {
                c.join().unwrap();
            }
        },
    );
}

/// The host refuses threads: the permanent ones look after connections in their place.
#[test]
fn connections_go_on_where_threads_are_refused() {
    let mut setup = setup("connp-t:per-connection:made");
    // The test's own: nobody gets another who could do without.
    setup.virt.most_threads = 1;
    setup.run(|w| {
        w.settle();
        let all = [w.open(), w.opened(), w.opened()];
        all.iter().for_each(|(a, b)| carry(&w, a, b));
        assert_eq!(w.s.connections().len(), 3);
        assert_eq!(counts(&w.s), [0, 0, 3]);
        for (a, b) in all {
            drop(b);
            assert!(w.read(&a).unwrap().is_empty());
        }
        w.until("end", || w.s.stats().connections == 0);
        w.pass(10 * MS);
        assert_eq!(counts(&w.s), [0, 0, 3]);
        // Each that comes tries again.
        drop(w.open());
        assert_eq!(counts(&w.s), [0, 0, 4]);
        w.s.engine().quiescent().unwrap();
    });
}

/// The host has a thread to give now and then.
#[test]
fn threads_are_had_when_the_host_has_some() {
    explore(
        "connp-t:per-connection=3:made",
        |setup, seed| {
            // The test, two stacks of it with up to four threads each, three callers and a server.
            setup.virt.most_threads = 9 + (seed as usize / 3) % 4;
        },
        |w| {
            all_are_served(&w, |[made, ended, refused]| {
                assert!(made == ended && made + refused >= 3, "{made} {refused}");
            });
        },
    );
}
