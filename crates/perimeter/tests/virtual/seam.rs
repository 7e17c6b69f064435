//! The seam holds: every organization passes the same traffic under explored schedules, the
//! one whose locks and deferrals are the hardest included.

use crate::common::{Setup, World, content, organizations};
use perimeter::{OrgSpec, Stack, TcpStream};
use perimeter_base::Time;
use perimeter_sync::virt::{Schedule, VirtualEvent};
use perimeter_sync::{Event, Platform, Thread};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SCHEDULES: [Schedule; 3] = [
    Schedule::Random { switch_one_in: 1 },
    Schedule::Random { switch_one_in: 20 },
    Schedule::Pct { depth: 4 },
];

/// Seeds of each schedule; more when `PERIMETER_SEEDS` says so.
fn seeds() -> u64 {
    std::env::var("PERIMETER_SEEDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| crate::common::share(6))
}

/// An echo through the stack under test, which is entered by one thread only.
fn echo(w: &World, n: usize) {
    let data = content(n);
    let l = w.peer.listen(w.there(80)).unwrap();
    let t = w.p.spawn(
        "echo",
        None,
        Box::new(move || {
            let (mut s, _) = l.accept().unwrap();
            let mut all = Vec::new();
            s.read_to_end(&mut all).unwrap();
            s.write_all(&all).unwrap();
        }),
    );
    let mut s = w.s.connect(w.there(80)).unwrap();
    s.write_all(&data).unwrap();
    s.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    s.read_to_end(&mut back).unwrap();
    assert_eq!(back.len(), n);
    assert!(back == data, "wrong bytes");
    t.join().unwrap();
    drop(s);
    finish(w);
}

/// Everything is over: nothing is left, nothing is pinned.
fn finish(w: &World) {
    w.until("end", || {
        w.s.stats().connections == 0 && w.peer.stats().connections == 0
    });
    // A thread books what it has freed when it is done with its burst.
    w.until("memory of the stack under test", || w.s.stats().memory == 0);
    // A timer may have fired early: threads are still at their last messages.
    for s in [&w.s, &w.peer] {
        w.until("rest", || s.engine().quiescent().is_ok());
    }
}

/// Fails the run if a message lies there at any time when no thread can run: nobody was woken for
/// it, even if a timer would have somebody look later. Dropped, it ends.
struct Rest {
    event: Arc<VirtualEvent>,
    over: Arc<AtomicBool>,
    watcher: Option<Box<dyn FnOnce()>>,
}

impl Rest {
    fn of(w: &World) -> Rest {
        let event = Arc::new(w.p.event());
        event.label("rest");
        let s = w.s.clone();
        event.condition(move || {
            let waits = |e: String| e.contains("messages were not run");
            s.engine().quiescent().err().is_some_and(waits)
        });
        let over = Arc::new(AtomicBool::new(false));
        let (theirs, end) = (event.clone(), over.clone());
        let body = move || {
            while !end.load(Ordering::Relaxed) {
                theirs.wait(Time::NEVER);
            }
        };
        let thread = w.p.spawn("watcher", None, Box::new(body));
        Rest {
            event,
            over,
            watcher: Some(Box::new(move || thread.join().unwrap())),
        }
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.event.set();
        if let Some(join) = self.watcher.take()
            && !std::thread::panicking()
        {
            join();
        }
    }
}

/// Small buffers and quick ends.
fn shrink(setup: &mut Setup, segments: u32) {
    for c in [&mut setup.config, &mut setup.peer] {
        c.tcp.snd_buf = segments * 1460;
        c.tcp.rcv_buf = segments * 1460;
        c.tcp.time_wait = Duration::from_millis(100);
    }
    // In exploration time moves when nobody can run: a wire with a latency delivers to sleepers
    // only.
    setup.wire.latency_ns = if setup.virt.seed.is_multiple_of(2) {
        0
    } else {
        50_000
    };
}

fn explore(segments: u32, cores: usize, n: usize, body: fn(&World, usize), orgs: Vec<OrgSpec>) {
    for org in orgs {
        for schedule in SCHEDULES {
            for seed in 0..seeds() {
                let mut setup = Setup::new(org.clone()).schedule(schedule, seed, cores);
                setup.virt.early_timer_one_in = 500;
                setup.virt.pct_steps = 20_000;
                shrink(&mut setup, segments);
                // Time jumps to the next deadline, which may be minutes away: a neighbour's, where
                // IPv6 has more of them.
                setup.virt.max_time = Time::from_millis(20_000_000);
                setup.run(move |w| {
                    let rest = (!w.s.organization().single_threaded()).then(|| Rest::of(&w));
                    body(&w, n);
                    drop(rest);
                });
            }
        }
    }
}

#[test]
fn an_echo_with_ordinary_buffers() {
    explore(180, 2, 60_000, echo, organizations());
}

#[test]
fn an_echo_with_buffers_of_two_segments() {
    explore(2, 2, 20_000, echo, organizations());
    explore(3, 4, 20_000, echo, organizations());
}

/// Several threads, each with connections both ways, close at will.
fn crowd(w: &World, n: usize) {
    let (p, s, peer) = (&w.p, &w.s, &w.peer);
    let serve = |name: &str, stack: &Stack, addr: SocketAddr, conns: usize| {
        let l = stack.listen(addr).unwrap();
        let (p, p2) = (p.clone(), p.clone());
        p.spawn(
            name,
            None,
            Box::new(move || {
                let workers: Vec<_> = (0..conns)
                    .map(|_| {
                        let (s, _) = l.accept().unwrap();
                        p2.spawn("worker", None, Box::new(move || turn(&s)))
                    })
                    .collect();
                workers.into_iter().for_each(|t| t.join().unwrap());
            }),
        )
    };
    let threads = 3;
    let servers = [
        serve("server", s, w.at(80), threads),
        serve("peer's server", peer, w.there(80), threads),
    ];
    let ask = |stack: &Stack, addr: SocketAddr| {
        let stack = stack.clone();
        move || {
            let mut c = stack.connect(addr).unwrap();
            let data = content(n);
            let mut reader = c.try_clone().unwrap();
            c.write_all(&data).unwrap();
            c.shutdown(Shutdown::Write).unwrap();
            let mut back = Vec::new();
            reader.read_to_end(&mut back).unwrap();
            assert!(back == data, "{} of {} bytes", back.len(), data.len());
        }
    };
    let clients: Vec<_> = (0..threads)
        .flat_map(|_| {
            [
                p.spawn("client", None, Box::new(ask(peer, w.at(80)))),
                p.spawn("own client", None, Box::new(ask(s, w.there(80)))),
            ]
        })
        .collect();
    for t in clients.into_iter().chain(servers) {
        t.join().unwrap();
    }
    finish(w);
}

/// Sends back whatever comes.
fn turn(s: &TcpStream) {
    let mut all = Vec::new();
    (&*s).read_to_end(&mut all).unwrap();
    (&*s).write_all(&all).unwrap();
}

#[test]
fn a_crowd_of_threads() {
    explore(3, 2, 6_000, crowd, crate::common::shared_organizations());
    explore(180, 4, 6_000, crowd, crate::common::shared_organizations());
}

/// Fails with the peer's connections when it takes too long.
fn watch(w: &World) -> Arc<AtomicBool> {
    let done = Arc::new(AtomicBool::new(false));
    let end = done.clone();
    let (p, peer, s) = (w.p.clone(), w.peer.clone(), w.s.clone());
    w.p.spawn(
        "watch",
        None,
        Box::new(move || {
            while p.now() < Time::from_millis(600_000) {
                p.sleep_until(p.now() + Duration::from_secs(1));
                if end.load(Ordering::Relaxed) {
                    return;
                }
            }
            let theirs = peer.connections();
            let ours = if s.organization().single_threaded() {
                vec![]
            } else {
                s.connections()
            };
            panic!("stuck: peer {theirs:#?} ours {ours:#?}");
        }),
    );
    done
}

/// With faults on the wire, timers and retransmission take part.
#[test]
fn an_echo_over_a_bad_wire() {
    for org in organizations() {
        for seed in 0..3 * seeds() {
            let schedule = SCHEDULES[seed as usize % SCHEDULES.len()];
            let mut setup = Setup::new(org.clone()).schedule(schedule, seed, 2);
            shrink(&mut setup, 6);
            for end in &mut setup.wire.ends {
                end.faults.seed = seed;
                end.faults.loss = 0.03;
                end.faults.duplicate = 0.03;
                end.faults.reorder = 0.1;
                end.faults.corrupt = 0.02;
            }
            setup.run(|w| {
                let done = watch(&w);
                echo(&w, 30_000);
                done.store(true, Ordering::Relaxed);
            });
        }
    }
}
