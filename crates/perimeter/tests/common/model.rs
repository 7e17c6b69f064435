//! A model of an application whose threads share pollers and sockets.

use super::{Setup, World};
use perimeter::{Events, Interest, Poll, TcpStream, Token};
use perimeter_sync::virt::Schedule;
use perimeter_sync::{Platform, Thread};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a question; more than a buffer holds.
const QUESTION: usize = 3_500;
const ROUNDS: usize = 6;

/// Threads share a poller and its sockets; clients ask and wait for the answer, so at the end of
/// each round everything hangs on one wake-up. No thread has a time limit: a wake-up that is
/// lost is a deadlock, which the platform finds.
fn model(w: World, conns: usize, readers: usize) {
    let poll = Arc::new(w.s.poll().unwrap());
    let addr = w.at(80);
    let l = w.s.listen(addr).unwrap();
    let mut ours = Vec::new();
    let mut threads = Vec::new();
    for i in 0..conns {
        let peer = w.peer.clone();
        let ask = move || {
            let mut c = peer.connect(addr).unwrap();
            for round in 0..ROUNDS {
                c.write_all(&vec![i as u8; QUESTION]).unwrap();
                let mut answer = [0];
                c.read_exact(&mut answer).unwrap();
                assert_eq!(usize::from(answer[0]), round);
            }
        };
        threads.push(w.p.spawn("client", None, Box::new(ask)));
        let (s, _) = l.accept().unwrap();
        s.set_nonblocking(true).unwrap();
        let want = if i % 2 == 0 {
            Interest::READABLE
        } else {
            Interest::READABLE.edge()
        };
        poll.registry().register(&s, Token(i), want).unwrap();
        ours.push((s, AtomicUsize::new(0)));
    }
    let (ours, left) = (Arc::new(ours), Arc::new(AtomicUsize::new(conns)));
    for _ in 1..readers {
        let (poll, ours, left) = (poll.clone(), ours.clone(), left.clone());
        let body = move || serve(&poll, &ours, &left);
        threads.push(w.p.spawn("reader", None, Box::new(body)));
    }
    serve(&poll, &ours, &left);
    for t in threads {
        t.join().unwrap();
    }
}

fn serve(poll: &Poll, ours: &[(TcpStream, AtomicUsize)], left: &AtomicUsize) {
    let mut events = Events::with_capacity(2);
    let mut buf = [0; 1000];
    while left.load(Ordering::SeqCst) > 0 {
        poll.poll(&mut events, None).unwrap();
        for e in events.iter() {
            let (s, got) = &ours[e.token().0];
            while let Ok(n) = (&*s).read(&mut buf) {
                if n == 0 {
                    // The end is a level that would be told for ever. The other thread may
                    // have done this before.
                    let _ = poll.registry().deregister(s);
                    break;
                }
                assert!(buf[..n].iter().all(|b| usize::from(*b) == e.token().0));
                let now = got.fetch_add(n, Ordering::SeqCst) + n;
                if now.is_multiple_of(QUESTION) {
                    let round = now / QUESTION - 1;
                    assert_eq!((&*s).write(&[round as u8]).unwrap(), 1);
                    if round == ROUNDS - 1 {
                        left.fetch_sub(1, Ordering::SeqCst);
                    }
                }
            }
        }
    }
    // Whoever sleeps is not needed any more.
    poll.waker().wake();
}

pub fn explore(setup: &Setup, seeds: core::ops::Range<u64>) -> Result<(), String> {
    for seed in seeds {
        for schedule in [
            Schedule::Random { switch_one_in: 1 },
            Schedule::Random { switch_one_in: 8 },
            Schedule::Pct { depth: 3 },
        ] {
            let mut s = setup.clone().schedule(schedule, seed, 2);
            s.virt.pct_steps = 1_500;
            let readers = if s.org.single_threaded() {
                1
            } else {
                1 + (seed % 2) as usize
            };
            s.try_run(move |w| model(w, 1 + (seed % 3) as usize, readers))?;
        }
    }
    Ok(())
}

pub fn small(org: perimeter::OrgSpec) -> Setup {
    let mut setup = Setup::new(org);
    for c in [&mut setup.config, &mut setup.peer] {
        c.tcp.snd_buf = 2920;
        c.tcp.rcv_buf = 2920;
    }
    // In exploration time moves when nobody can run: anything slower would arrive at sleepers only.
    setup.wire.latency_ns = 0;
    setup.virt.max_steps = 400_000;
    setup
}
