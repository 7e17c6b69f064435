//! SO_SETSQP on live connections: layers, TCP among them, move while data flows both ways, and
//! nobody notices.

use super::common::{Setup, World};
use super::lists::{NAMES, stacks};
use super::{Alterer, Dice, InOrder, both_ways, probes, under_any_schedule};
use perimeter::pef::{Direction, End, Layer};
use perimeter::{Stack, TcpStream};
use perimeter_sync::virt::Schedule;
use perimeter_sync::{Platform, Thread};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn moved(s: &Stack) -> u64 {
    s.stats().count("squeue_moved")
}

/// Waits until TCP of so many connections has moved.
fn until_moved(w: &World, n: u64) {
    w.until("TCP to move", || moved(&w.s) >= n);
}

fn exchange(w: &World, ours: &TcpStream, theirs: &TcpStream) {
    w.write(theirs, b"there");
    assert_eq!(w.read(ours).unwrap(), b"there");
    w.write(ours, b"and back");
    assert_eq!(w.read(theirs).unwrap(), b"and back");
}

/// From squeue to squeue, back to where it was made, with its lists off, and to its end; its place
/// is used again.
#[test]
fn tcp_of_a_live_connection_is_designated_another_squeue() {
    for name in NAMES {
        let setup = Setup::new(name.parse().unwrap());
        let schedule = Schedule::Random { switch_one_in: 7 };
        setup.schedule(schedule, 5, 4).run(move |w| {
            for round in 0..3 {
                let before = moved(&w.s);
                let (ours, theirs) = w.opened();
                let tcp = |s: &TcpStream| s.binding().perimeters[1].clone();
                let made: u16 = tcp(&ours)[7..].parse().unwrap();
                let mut n = before;
                for to in [made + 1, made + 2, made, made + 3] {
                    ours.set_squeue(Layer::Tcp, to % 4).unwrap();
                    assert_eq!(tcp(&ours), format!("squeue {}", to % 4), "{name}");
                    n += 1;
                    until_moved(&w, n);
                    exchange(&w, &ours, &theirs);
                }
                // Where it is already.
                ours.set_squeue(Layer::Tcp, (made + 3) % 4).unwrap();
                ours.set_events_on(false).unwrap();
                ours.set_squeue(Layer::Tcp, made % 4).unwrap();
                until_moved(&w, n + 1);
                exchange(&w, &ours, &theirs);
                ours.set_events_on(true).unwrap();
                exchange(&w, &ours, &theirs);
                if round == 1 {
                    ours.set_squeue(Layer::Tcp, made + 2).unwrap();
                    until_moved(&w, n + 2);
                    n += 1;
                }
                assert_eq!(moved(&w.s), n + 1, "{name}");
                assert_eq!(w.s.connections().len(), 1, "{name}, round {round}");
                theirs.shutdown(std::net::Shutdown::Both).unwrap();
                drop(ours);
                drop(theirs);
                w.until("end", || w.s.connections().is_empty());
            }
        });
    }
}

/// Layers are designated at random while data flows both ways, and lists altered meanwhile.
#[test]
fn layers_move_under_any_schedule() {
    under_any_schedule(moving);
}

fn moving(w: &World, name: &'static str, seed: u64) {
    let (ours, theirs) = w.opened();
    let [before_tcp, after_tcp] = probes(&ours);
    let at_tcp = Arc::<InOrder>::default();
    let spec = at_tcp.spec(Direction::Receive, Layer::Tcp);
    ours.insert_event(End::Front, spec).unwrap();
    // From here on every way goes by lists with the probes.
    exchange(w, &ours, &theirs);
    let over = Arc::new(AtomicBool::new(false));
    let mover = {
        let (ours, over, p) = (ours.try_clone().unwrap(), over.clone(), w.p.clone());
        let body = move || {
            let (mut dice, mut alterer) = (Dice(seed | 1 << 40), Alterer::new(seed + 5));
            while !over.load(Ordering::Relaxed) {
                match dice.roll(8) {
                    0 => alterer.alter(&ours),
                    1..4 => ours
                        .set_squeue(Layer::ALL[dice.roll(3) as usize], dice.roll(4) as u16)
                        .unwrap(),
                    _ => ours.set_squeue(Layer::Tcp, dice.roll(4) as u16).unwrap(),
                }
                p.sleep_until(p.now() + Duration::from_nanos(dice.roll(500)));
            }
        };
        w.p.spawn("mover", Some(1), Box::new(body))
    };
    both_ways(
        w,
        100_000,
        [&ours, &theirs],
        &format!("{name}, seed {seed}"),
    );
    over.store(true, Ordering::Relaxed);
    Thread::join(mover).unwrap();
    before_tcp.judge(name, "what IP has read", &w.peer);
    at_tcp.judge(name, "what TCP took", &w.peer);
    after_tcp.judge(name, "what IP was to send", &w.s);
    // Whatever was under way arrives, and the last wish comes true: the next one is another.
    exchange(w, &ours, &theirs);
    w.p.sleep_until(w.p.now() + Duration::from_secs(1));
    let n = moved(&w.s);
    let tcp: u16 = ours.binding().perimeters[1][7..].parse().unwrap();
    ours.set_squeue(Layer::Tcp, tcp + 1).unwrap();
    until_moved(w, n + 1);
}

/// The same by threads of this machine, over many connections that come and go.
#[test]
fn connections_that_move_come_and_go() {
    for name in NAMES {
        let [s, peer] = stacks(name);
        let listener = s.listen("10.0.0.1:80").unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        let mut dice = Dice(99);
        let mut round = 0;
        while round < 40 && Instant::now() < end {
            round += 1;
            let mut theirs = peer.connect("10.0.0.1:80").unwrap();
            let (mut ours, _) = listener.accept().unwrap();
            let echo = std::thread::spawn(move || {
                let mut buf = [0; 5000];
                while let Ok(n @ 1..) = ours.read(&mut buf) {
                    ours.write_all(&buf[..n]).unwrap();
                    ours.set_squeue(Layer::Tcp, dice.roll(4) as u16).unwrap();
                }
                dice
            });
            for i in 0..10u8 {
                theirs.write_all(&[i; 3000]).unwrap();
                let mut back = [0; 3000];
                theirs.read_exact(&mut back).unwrap();
                assert_eq!(back, [i; 3000], "{name}, round {round}");
            }
            drop(theirs);
            dice = echo.join().unwrap();
        }
        assert!(moved(&s) > 20, "{name}: {}", moved(&s));
        while !s.connections().is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(s.connections().is_empty(), "{name}");
    }
}
