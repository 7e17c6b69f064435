//! Lists of events: what is on them, and that nothing happens to packets while they are altered.

mod common;
#[path = "pef/datagrams.rs"]
mod datagrams;
#[path = "common/pef.rs"]
mod lists;
#[path = "pef/merged.rs"]
mod merged;
#[path = "pef/moving.rs"]
mod moving;
#[path = "common/packet.rs"]
mod packet;
#[path = "pef/unbound.rs"]
mod unbound;

use common::{Setup, World, content};
use lists::{NAMES, event, stacks};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::pef::{Direction, End, EventId, EventSpec, Layer, Layers, Packet, Under, Verdict};
use perimeter::{Native, OrgSpec, Stack, TcpStream, Virtual};
use perimeter_sync::Platform;
use perimeter_sync::virt::Schedule;
use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The names of the events that a connection's receive list starts with.
fn initial(org: &str) -> &'static [&'static str] {
    if org.ends_with(":events=fine") {
        &["ip", "tcp-predict", "tcp-full", "tcp-output", "sockfs"]
    } else {
        &["ip", "tcp", "sockfs"]
    }
}

/// Checks that the data segments which pass it are the stream's, one after the other: none is
/// lost, overtaken, or there twice unless it was sent twice. For wires that do none of that either.
#[derive(Default)]
struct InOrder {
    next: Mutex<Option<u32>>,
    seen: AtomicU64,
    again: AtomicU32,
    faults: AtomicU32,
}

impl InOrder {
    fn spec(self: &Arc<Self>, direction: Direction, layer: Layer) -> EventSpec {
        let me = self.clone();
        let check = move |p: &mut Packet<'_>| {
            if let Some(h) = p.header.filter(|_| p.len > 0) {
                let mut next = me.next.lock().unwrap();
                let end = h.seq.0.wrapping_add(p.len);
                let ahead = next.map_or(0, |n| h.seq.0.wrapping_sub(n) as i32);
                if ahead > 0 {
                    me.faults.fetch_add(1, Ordering::Relaxed);
                }
                // What comes before it was sent again: a timer saw no acknowledgment in time.
                if next.is_none_or(|n| end.wrapping_sub(n) as i32 > 0) {
                    *next = Some(end);
                } else {
                    me.again.fetch_add(1, Ordering::Relaxed);
                }
                me.seen.fetch_add(1, Ordering::Relaxed);
            }
            Verdict::Next
        };
        event("in-order", (direction, layer, Under::Layer), check)
    }

    /// `sender` is the end whose segments these are, of its one connection.
    fn judge(&self, org: &str, what: &str, sender: &Stack) {
        let again = u64::from(self.again.load(Ordering::Relaxed));
        let stats = sender.stats();
        // A machine that is busy with other things makes acknowledgments late for either timer.
        let sent = stats.count("retransmits") + stats.count("loss_probes");
        assert!(
            again <= sent,
            "{org}: {what}: {again} segments came twice, {sent} were sent twice"
        );
        let seen = self.seen.load(Ordering::Relaxed);
        let faults = self.faults.load(Ordering::Relaxed);
        assert!(seen > 0, "{org}: {what} saw no data");
        assert_eq!(faults, 0, "{org}: {what}: of {seen} segments out of order");
    }
}

/// A generator of choices.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Alters the lists of a connection at random: events that count, most of which take themselves
/// off after a few packets.
struct Alterer {
    dice: Dice,
    live: Vec<EventId>,
    passed: Arc<AtomicU64>,
    inserted: u64,
    disabled: u64,
}

impl Alterer {
    fn new(seed: u64) -> Alterer {
        Alterer {
            dice: Dice(seed | 1),
            live: Vec::new(),
            passed: Arc::default(),
            inserted: 0,
            disabled: 0,
        }
    }

    fn alter(&mut self, s: &TcpStream) {
        if self.live.len() > 6 || (!self.live.is_empty() && self.dice.roll(3) == 0) {
            let n = self.dice.roll(self.live.len() as u64) as usize;
            // It may have taken itself off.
            match s.disable_event(self.live.swap_remove(n)) {
                Ok(()) => self.disabled += 1,
                Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound),
            }
            return;
        }
        let direction = [Direction::Receive, Direction::Transmit][self.dice.roll(2) as usize];
        let layer = Layer::ALL[self.dice.roll(3) as usize];
        let under = match self.dice.roll(3) {
            0 => Under::Squeue(self.dice.roll(8) as u16),
            _ => Under::Layer,
        };
        let end = [End::Front, End::Back][self.dice.roll(2) as usize];
        let lasts = 1 + self.dice.roll(20) as u32;
        let (left, passed) = (AtomicU32::new(lasts), self.passed.clone());
        let count = move |p: &mut Packet<'_>| {
            passed.fetch_add(1, Ordering::Relaxed);
            p.disable = lasts < 15 && left.fetch_sub(1, Ordering::Relaxed) == 1;
            Verdict::Next
        };
        let spec = event("count", (direction, layer, under), count);
        self.live.push(s.insert_event(end, spec).unwrap());
        self.inserted += 1;
    }
}

/// The probes that see every segment before TCP takes it and when it is about to be placed.
fn probes(s: &TcpStream) -> [Arc<InOrder>; 2] {
    let probes: [Arc<InOrder>; 2] = Default::default();
    let spec = probes[0].spec(Direction::Receive, Layer::Ip);
    s.insert_event(End::Back, spec).unwrap();
    let spec = probes[1].spec(Direction::Transmit, Layer::Ip);
    s.insert_event(End::Front, spec).unwrap();
    probes
}

#[test]
fn lists_are_altered_ten_thousand_times_under_load() {
    for name in NAMES {
        let [s, peer] = stacks(name);
        let listener = s.listen("10.0.0.1:80").unwrap();
        let theirs = peer.connect("10.0.0.1:80").unwrap();
        let (ours, _) = listener.accept().unwrap();
        let probes = probes(&ours);
        let over = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        // Data both ways, for as long as lists are altered.
        for (from, to) in [
            (ours.try_clone().unwrap(), theirs.try_clone().unwrap()),
            (theirs.try_clone().unwrap(), ours.try_clone().unwrap()),
        ] {
            let stop = over.clone();
            threads.push(std::thread::spawn(move || {
                let (mut from, mut n) = (from, 0usize);
                let block: Vec<u8> = content(251 * 256);
                while !stop.load(Ordering::Relaxed) {
                    from.write_all(&block[..]).unwrap();
                    n += block.len();
                }
                from.shutdown(std::net::Shutdown::Write).unwrap();
                n
            }));
            threads.push(std::thread::spawn(move || {
                let (mut to, mut n) = (to, 0usize);
                let block: Vec<u8> = content(251 * 256);
                let mut buf = vec![0; 70_000];
                loop {
                    let got = to.read(&mut buf).unwrap();
                    if got == 0 {
                        return n;
                    }
                    for (i, b) in buf[..got].iter().enumerate() {
                        assert_eq!(*b, block[(n + i) % block.len()], "{name}: at {}", n + i);
                    }
                    n += got;
                }
            }));
        }
        let mut alterer = Alterer::new(0x9e37_79b9);
        let end = Instant::now() + Duration::from_secs(60);
        // Else all of it may be over before there is any load.
        let seen = |p: &Arc<InOrder>| p.seen.load(Ordering::Relaxed) > 0;
        while !probes.iter().all(seen) && Instant::now() < end {
            std::thread::yield_now();
        }
        for _ in 0..10_000 {
            alterer.alter(&ours);
            // Under load: a packet has passed since, unless it was the machine's turn.
            let before = alterer.passed.load(Ordering::Relaxed);
            for _ in 0..3 {
                if alterer.passed.load(Ordering::Relaxed) != before || Instant::now() > end {
                    break;
                }
                std::thread::yield_now();
            }
        }
        over.store(true, Ordering::Relaxed);
        let bytes: Vec<usize> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!((bytes[0], bytes[2]), (bytes[1], bytes[3]), "{name}");
        assert!(bytes[0] > 0 && bytes[2] > 0, "{name}");
        probes[0].judge(name, "what TCP took", &peer);
        probes[1].judge(name, "what IP was to send", &s);
        assert!(alterer.inserted > 5_000 && alterer.disabled > 100);
        assert!(alterer.passed.load(Ordering::Relaxed) > 0, "{name}");
    }
}

/// Runs `body` over schedules of virtual cores, under each form of `pef`.
fn under_any_schedule(body: fn(&World, &'static str, u64)) {
    for name in NAMES {
        for seed in 0..24 {
            let schedule = match seed % 3 {
                0 => Schedule::Random { switch_one_in: 2 },
                1 => Schedule::Random { switch_one_in: 13 },
                _ => Schedule::Pct { depth: 4 },
            };
            let cores = [2, 3, 4][seed as usize % 3];
            let mut setup = Setup::new(name.parse().unwrap()).schedule(schedule, seed, cores);
            // Packets close behind each other, and lists that change as fast.
            setup.wire.latency_ns = 1_000;
            setup.run(move |w| body(&w, name, seed));
        }
    }
}

/// Sends `n` bytes each way; `what` says in which run.
fn both_ways(w: &World, n: usize, [mut ours, mut theirs]: [&TcpStream; 2], what: &str) {
    let reader = |mut s: &TcpStream, got: &mut Vec<u8>| {
        let mut buf = [0; 10_000];
        while let Ok(n @ 1..) = s.read(&mut buf) {
            got.extend(&buf[..n]);
        }
    };
    let data = content(n);
    let (mut sent, mut back) = (0, 0);
    let (mut there, mut here) = (Vec::new(), Vec::new());
    w.until("all data", || {
        sent += ours.write(&data[sent..]).unwrap_or(0);
        back += theirs.write(&data[back..]).unwrap_or(0);
        reader(theirs, &mut there);
        reader(ours, &mut here);
        there.len() == n && here.len() == n
    });
    assert!(there == data && here == data, "{what}");
}

/// The same over schedules of virtual cores.
#[test]
fn lists_are_altered_under_any_schedule() {
    under_any_schedule(altered);
}

fn altered(w: &World, name: &'static str, seed: u64) {
    let (ours, theirs) = w.opened();
    let probes = probes(&ours);
    let over = Arc::new(AtomicBool::new(false));
    let alterer = {
        let (ours, over, p) = (ours.try_clone().unwrap(), over.clone(), w.p.clone());
        let body = move || {
            let mut alterer = Alterer::new(seed + 77);
            while !over.load(Ordering::Relaxed) {
                alterer.alter(&ours);
                p.sleep_until(p.now() + Duration::from_nanos(alterer.dice.roll(4_000)));
            }
            assert!(alterer.inserted > 10);
        };
        w.p.spawn("alterer", Some(1), Box::new(body))
    };
    both_ways(
        w,
        200_000,
        [&ours, &theirs],
        &format!("{name}, seed {seed}"),
    );
    over.store(true, Ordering::Relaxed);
    perimeter_sync::Thread::join(alterer).unwrap();
    probes[0].judge(name, "what TCP took", &w.peer);
    probes[1].judge(name, "what IP was to send", &w.s);
}

/// A stack under test and a peer, on virtual cores, and one connection between them.
fn with_connection(name: &str, body: fn(&World, TcpStream, TcpStream)) {
    let org: OrgSpec = name.parse().unwrap();
    Setup::new(org).run(move |w| {
        let (ours, theirs) = w.opened();
        body(&w, ours, theirs);
    });
}

#[test]
fn a_connection_tells_where_its_layers_run() {
    with_connection("pef:ip=0:tcp=1:sockfs=0", |_, ours, theirs| {
        let b = ours.binding();
        assert_eq!(b.perimeters, ["squeue 0", "squeue 1", "squeue 0"]);
        assert_eq!(b.cores, [Some(0), Some(1), Some(0)]);
        assert_eq!(b.events[0], ["ip", "tcp", "sockfs"]);
        assert_eq!(b.events[1], ["sockfs", "tcp", "ip"]);
        ours.set_squeue(Layer::Sockfs, 1).unwrap();
        assert_eq!(ours.binding().perimeters[2], "squeue 1");
        ours.set_squeue(Layer::Tcp, 0).unwrap();
        assert_eq!(ours.binding().perimeters[1], "squeue 0");
        assert!(theirs.insert_event(End::Front, nothing()).is_err());
    });
    for name in NAMES {
        with_connection(name, |w, ours, _| {
            let mut squeues = ours.binding().perimeters.to_vec();
            squeues.sort();
            squeues.dedup();
            let want = match w.s.organization().to_string().as_str() {
                o if o.starts_with("pef:horizontal") => 3,
                o if o.starts_with("pef:ip") => 2,
                _ => 1,
            };
            let names = ours.binding().events;
            assert_eq!(names[0], initial(&w.s.organization().to_string()));
            assert_eq!(names[1], ["sockfs", "tcp", "ip"]);
            assert_eq!(squeues.len(), want);
        });
    }
}

fn nothing() -> EventSpec {
    let what = (Direction::Receive, Layer::Tcp, Under::Layer);
    event("nothing", what, |_: &mut Packet<'_>| Verdict::Next)
}

#[test]
fn a_trace_tells_the_segments_and_takes_itself_off() {
    for name in NAMES {
        with_connection(name, |w, ours, theirs| {
            let lines = Arc::new(Mutex::new(Vec::new()));
            let sink = lines.clone();
            ours.trace(move |t| {
                let mut lines = sink.lock().unwrap();
                lines.push(t.clone());
                lines.len() < 6
            })
            .unwrap();
            assert!(ours.binding().events[0].contains(&"trace".to_string()));
            for i in 0..10u8 {
                w.write(&theirs, &[i; 1000]);
                assert_eq!(w.read(&ours).unwrap(), [i; 1000]);
                w.write(&ours, &[i; 500]);
                assert_eq!(w.read(&theirs).unwrap(), [i; 500]);
            }
            let lines = lines.lock().unwrap();
            assert_eq!(lines.len(), 6, "{name:?}", name = w.s.organization());
            let data = |d, n| lines.iter().any(|t| t.direction == d && t.len == n);
            assert!(data(Direction::Receive, 1000) && data(Direction::Transmit, 500));
            for t in lines.iter() {
                assert!(t.cwnd > 0 && t.window > 0, "{t}");
                assert!(t.to_string().contains(" cwnd "), "{t}");
            }
            let org = w.s.organization().to_string();
            assert_eq!(ours.binding().events[0], initial(&org));
            assert_eq!(ours.binding().events[1], ["sockfs", "tcp", "ip"]);
        });
    }
}

#[test]
fn a_packet_that_is_done_goes_no_further() {
    for name in NAMES {
        with_connection(name, |w, ours, theirs| {
            // The first two data segments are dropped in front of TCP; they come again.
            let left = AtomicU32::new(2);
            let what = (Direction::Receive, Layer::Ip, Under::Layer);
            let drop = move |p: &mut Packet<'_>| {
                if p.len > 0 && left.load(Ordering::Relaxed) > 0 {
                    left.fetch_sub(1, Ordering::Relaxed);
                    return Verdict::Done;
                }
                Verdict::Next
            };
            ours.insert_event(End::Back, event("drop", what, drop))
                .unwrap();
            w.write(&theirs, b"again");
            assert_eq!(w.read(&ours).unwrap(), b"again");
            assert!(theirs.info().unwrap().tcp.total_retrans >= 2);
            // Segments of ours that are dropped before they are placed come again as well.
            let left = AtomicU32::new(1);
            let what = (Direction::Transmit, Layer::Ip, Under::Layer);
            let drop = move |p: &mut Packet<'_>| {
                let first = p.len > 0 && left.swap(0, Ordering::Relaxed) > 0;
                if first { Verdict::Done } else { Verdict::Next }
            };
            ours.insert_event(End::Front, event("drop", what, drop))
                .unwrap();
            w.write(&ours, b"and again");
            assert_eq!(w.read(&theirs).unwrap(), b"and again");
            assert!(ours.info().unwrap().tcp.total_retrans >= 1);
        });
    }
}

/// SO_SETSQP and SO_PEFON before a connection is opened, on a listener, and live.
#[test]
fn layers_are_designated_before_and_by_the_listener() {
    for name in NAMES {
        let org: OrgSpec = name.parse().unwrap();
        let schedule = Schedule::Random { switch_one_in: 7 };
        let setup = Setup::new(org).schedule(schedule, 3, 4);
        setup.run(move |w| {
            let squeues = |s: &TcpStream| s.binding().perimeters.map(|p| p[7..].to_string());
            let exchange = |ours: &TcpStream, theirs: &TcpStream| {
                w.write(theirs, b"there");
                assert_eq!(w.read(ours).unwrap(), b"there");
                w.write(ours, b"and back");
                assert_eq!(w.read(theirs).unwrap(), b"and back");
            };
            let addr = std::net::SocketAddr::from((w.hosts[0], 80));
            let l = w.s.listen(addr).unwrap();
            for (layer, squeue) in [(Layer::Ip, 3), (Layer::Tcp, 2), (Layer::Sockfs, 1)] {
                l.set_squeue(layer, squeue).unwrap();
            }
            let (theirs, ours) = w.connect(&w.peer, &l, addr);
            assert_eq!(squeues(&ours), ["3", "2", "1"], "{name}");
            exchange(&ours, &theirs);
            ours.set_squeue(Layer::Ip, 0).unwrap();
            assert_eq!(squeues(&ours), ["0", "2", "1"], "{name}");
            exchange(&ours, &theirs);
            // Later ones are of the listener's new mind; lists that are off can be switched on.
            l.set_squeue(Layer::Tcp, 0).unwrap();
            l.set_events_on(false).unwrap();
            let (theirs, ours) = w.connect(&w.peer, &l, addr);
            assert_eq!(squeues(&ours)[1], "0", "{name}");
            assert!(ours.insert_event(End::Front, nothing()).is_err(), "{name}");
            exchange(&ours, &theirs);
            ours.set_events_on(true).unwrap();
            assert_eq!(squeues(&ours), ["3", "0", "1"], "{name}");
            ours.insert_event(End::Front, nothing()).unwrap();
            exchange(&ours, &theirs);
            // And of one that is opened from here.
            let addr = std::net::SocketAddr::from((w.hosts[1], 81));
            let l = w.peer.listen(addr).unwrap();
            let layers = Layers::default().with_tcp(Some(3)).with_ip(Some(2));
            let config = w.s.tcp_config().with_layers(layers);
            let socket = match addr {
                std::net::SocketAddr::V4(_) => w.s.tcp_socket_v4(),
                std::net::SocketAddr::V6(_) => w.s.tcp_socket_v6(),
            };
            socket.set_config(config);
            socket.set_squeue(Layer::Sockfs, 1).unwrap();
            let ours = socket.start_connect(addr).unwrap();
            l.set_nonblocking(true).unwrap();
            let (theirs, _) = w.wait("connection", || l.accept()).unwrap();
            theirs.set_nonblocking(true).unwrap();
            ours.set_nonblocking(true).unwrap();
            assert_eq!(squeues(&ours), ["2", "3", "1"], "{name}");
            exchange(&ours, &theirs);
        });
    }
}

/// In front of IP an event sees frames as they came, before anybody has looked at them: one that is
/// spoilt there goes no further than IP, and one that is turned into another flow's is that one's.
#[test]
fn what_stands_before_ip_sees_whole_frames() {
    for name in NAMES {
        with_connection(name, |w, ours, theirs| {
            let (spoilt, seen) = (AtomicU32::new(2), Arc::new(AtomicU32::new(0)));
            let count = seen.clone();
            let spoil = move |p: &mut Packet<'_>| {
                assert!(p.header.is_none());
                assert_eq!(p.len as usize, p.payload.len());
                count.fetch_add(1, Ordering::Relaxed);
                let ethernet = p.payload[0] >> 4 != 4 && p.payload[0] >> 4 != 6;
                let ip = if ethernet { 14 } else { 0 };
                let header = if p.payload[ip] >> 4 == 4 { 20 } else { 40 };
                let data = p.payload.len() > ip + header + 32;
                if data && spoilt.load(Ordering::Relaxed) > 0 {
                    spoilt.fetch_sub(1, Ordering::Relaxed);
                    p.payload[ip] = 0;
                }
                Verdict::Next
            };
            let what = (Direction::Receive, Layer::Ip, Under::Layer);
            ours.insert_event(End::Front, event("spoil", what, spoil))
                .unwrap();
            w.write(&theirs, b"again");
            assert_eq!(w.read(&ours).unwrap(), b"again");
            assert!(seen.load(Ordering::Relaxed) >= 3);
            assert_eq!(w.s.stats().count("drop_bad_version"), 2);
            assert!(theirs.info().unwrap().tcp.total_retrans >= 2);
        });
    }
}

#[test]
fn data_can_be_changed_on_its_way() {
    for name in NAMES {
        with_connection(name, |w, ours, theirs| {
            let shout = |p: &mut Packet<'_>| {
                p.payload.make_ascii_uppercase();
                Verdict::Next
            };
            let up = (Direction::Receive, Layer::Sockfs, Under::Layer);
            ours.insert_event(End::Front, event("shout", up, shout))
                .unwrap();
            let down = (Direction::Transmit, Layer::Sockfs, Under::Nothing);
            ours.insert_event(End::Back, event("shout", down, shout))
                .unwrap();
            w.write(&theirs, b"hello");
            assert_eq!(w.read(&ours).unwrap(), b"HELLO");
            w.write(&ours, b"world");
            assert_eq!(w.read(&theirs).unwrap(), b"WORLD");
        });
    }
}

#[test]
fn reclassification_comes_to_an_end() {
    for name in NAMES {
        with_connection(name, |w, ours, theirs| {
            let asked = Arc::new(AtomicU32::new(0));
            let count = asked.clone();
            let what = (Direction::Receive, Layer::Tcp, Under::Layer);
            let again = move |p: &mut Packet<'_>| {
                if p.len == 0 {
                    return Verdict::Next;
                }
                count.fetch_add(1, Ordering::Relaxed);
                p.disable = count.load(Ordering::Relaxed) > 20;
                Verdict::Reclassify
            };
            ours.insert_event(End::Front, event("again", what, again))
                .unwrap();
            w.write(&theirs, b"at last");
            assert_eq!(w.read(&ours).unwrap(), b"at last");
            assert!(asked.load(Ordering::Relaxed) > 20);
        });
    }
}

#[test]
fn switched_off_the_lists_are_passed_by() {
    for name in NAMES {
        with_connection(name, |w, ours, theirs| {
            let seen = Arc::new(AtomicU32::new(0));
            let count = seen.clone();
            let what = (Direction::Receive, Layer::Tcp, Under::Squeue(1));
            let counting = move |_: &mut Packet<'_>| {
                count.fetch_add(1, Ordering::Relaxed);
                Verdict::Next
            };
            ours.insert_event(End::Front, event("count", what, counting))
                .unwrap();
            let exchange = || {
                w.write(&theirs, b"x");
                assert_eq!(w.read(&ours).unwrap(), b"x");
                w.pass(Duration::from_millis(50));
                seen.load(Ordering::Relaxed)
            };
            let on = exchange();
            assert!(on > 0);
            ours.set_events_on(false).unwrap();
            let e = ours.insert_event(End::Front, nothing()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput);
            let off = exchange();
            assert_eq!(exchange(), off, "events run though they are off");
            ours.set_events_on(true).unwrap();
            exchange();
            assert!(exchange() > off, "the lists are as they were");
        });
    }
}

#[test]
fn events_are_registered_at_the_start_and_not_later() {
    let run = |name: &'static str| {
        Virtual::run(Default::default(), move |p: Virtual| {
            let ([a, b], _) = pair(&p, WireConfig::default());
            let build = |org: &str, end, addr: &str| {
                let b = Stack::builder().on_virtual(p.clone());
                let b = b.organization(org).unwrap();
                b.interface(end, &[addr]).unwrap().build().unwrap()
            };
            let s = build(name, a, "10.0.0.1/24");
            let peer = build("up:shared", b, "10.0.0.2/24");
            let seen = Arc::new(AtomicU32::new(0));
            let count = seen.clone();
            let what = (Direction::Receive, Layer::Tcp, Under::Layer);
            let counting = move |_: &mut Packet<'_>| {
                count.fetch_add(1, Ordering::Relaxed);
                Verdict::Next
            };
            s.register_event(event("count", what, counting)).unwrap();
            let l = s.listen("10.0.0.1:80").unwrap();
            assert_eq!(
                s.register_event(nothing()).unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
            let mut theirs = peer.connect("10.0.0.1:80").unwrap();
            let (mut ours, _) = l.accept().unwrap();
            let mut want = initial(name).to_vec();
            want.insert(want.len() - 1, "count");
            assert_eq!(ours.binding().events[0], want);
            theirs.write_all(b"abc").unwrap();
            let mut buf = [0; 3];
            ours.read_exact(&mut buf).unwrap();
            assert!(seen.load(Ordering::Relaxed) > 0, "{name}");
        })
        .unwrap();
    };
    NAMES.into_iter().for_each(run);
    let up = Stack::builder()
        .interface(
            pair(&Native::default(), WireConfig::default())
                .0
                .into_iter()
                .next()
                .unwrap(),
            &["10.0.0.1/24"],
        )
        .unwrap();
    let e = up.build().unwrap().register_event(nothing()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
}

/// The paper's gain mixes three things (section 4): each is a switch, and all eight combinations
/// carry data both ways, faster than any timer would.
#[test]
fn each_ingredient_can_be_switched_off() {
    const N: usize = 300_000;
    for arrangement in ["vertical", "horizontal"] {
        for queue in ["on", "off"] {
            for tcp in ["on", "off"] {
                let name = format!("pef:{arrangement}:light-queue={queue}:light-tcp={tcp}");
                with_connection(&name, |w, ours, theirs| {
                    let data = content(N);
                    let (mut there, mut back) = (Vec::new(), Vec::new());
                    let (mut sent, mut answered) = (0, 0);
                    let begun = w.now();
                    let take = |s: &TcpStream, got: &mut Vec<u8>| {
                        let mut buf = [0; 5_000];
                        if let Ok(n) = { s }.read(&mut buf) {
                            got.extend(&buf[..n]);
                        }
                    };
                    w.until("all data", || {
                        sent += { &theirs }.write(&data[sent..]).unwrap_or(0);
                        answered += { &ours }.write(&data[answered..]).unwrap_or(0);
                        take(&ours, &mut there);
                        take(&theirs, &mut back);
                        there.len() == N && back.len() == N
                    });
                    assert!(there == data && back == data);
                    let stats = w.s.stats();
                    let fast = stats.count("rx_predicted");
                    assert!(w.now().since(begun) < Duration::from_secs(3));
                    let light = !w.s.organization().to_string().contains("light-tcp=off");
                    assert_eq!(fast > 0, light, "{}", w.s.organization());
                });
            }
        }
    }
}

/// What prediction leaves to the full path keeps its place: data that it takes can't overtake data
/// that waits for a hole to be filled, nor the other way round.
#[test]
fn what_prediction_leaves_stays_in_order() {
    const N: usize = 200_000;
    for name in NAMES {
        for seed in 0..6 {
            let schedule = match seed % 2 {
                0 => Schedule::Random { switch_one_in: 5 },
                _ => Schedule::Pct { depth: 3 },
            };
            let setup = Setup::new(name.parse().unwrap());
            let mut setup = setup.schedule(schedule, seed, [2, 3, 4][seed as usize % 3]);
            for (i, end) in setup.wire.ends.iter_mut().enumerate() {
                (end.faults.seed, end.faults.reorder) = (2 * seed + i as u64, 0.05);
            }
            setup.run(move |w| {
                let (ours, theirs) = w.opened();
                let data = content(N);
                let (mut sent, mut got) = (0, Vec::<u8>::new());
                let mut buf = [0; 5_000];
                w.until("all data", || {
                    sent += { &theirs }.write(&data[sent..]).unwrap_or(0);
                    let n = { &ours }.read(&mut buf).unwrap_or(0);
                    got.extend(&buf[..n]);
                    got.len() == N
                });
                assert!(got == data, "{name}, seed {seed}");
                // Nothing but data comes to this end.
                let all = u64::from(ours.info().unwrap().tcp.data_segs_in);
                let predicted = w.s.stats().count("rx_predicted");
                assert!(0 < predicted && predicted < all, "{predicted} of {all}");
            });
        }
    }
}

/// A full queue shuts the peer's window; when it is read empty, TCP is enabled and tells the peer
/// at once: no probe of the window was needed.
#[test]
fn a_queue_that_is_read_opens_the_window_again() {
    for name in NAMES {
        with_connection(name, |w, ours, theirs| {
            let data = content(2_000_000);
            let mut sent = 0;
            for _ in 0..3 {
                // Until nothing more goes: the peer has filled its window and its buffer.
                let mut still = 0;
                while still < 20 {
                    let n = { &theirs }.write(&data[sent..]).unwrap_or(0);
                    sent += n;
                    still = if n == 0 { still + 1 } else { 0 };
                    w.pass(Duration::from_millis(2));
                }
                let mut got = 0;
                let mut buf = vec![0; 64 * 1024];
                let begun = w.now();
                while let Ok(n) = { &ours }.read(&mut buf) {
                    got += n;
                }
                assert!(got > 0);
                w.until("room to write", || {
                    let n = { &theirs }.write(&data[sent..sent + 1]).unwrap_or(0);
                    sent += n;
                    n > 0
                });
                assert!(
                    w.now().since(begun) < Duration::from_millis(100),
                    "{}: it took a probe",
                    w.s.organization()
                );
            }
        });
    }
}
