//! Segments of a burst are merged where only the layers' own events are on the lists; whoever comes
//! later sees packets as they came, also those that were merged before.

use super::common::{Setup, World, content};
use super::lists::{NAMES, event};
use perimeter::Offload;
use perimeter::pef::{Direction, End, Layer, Packet, Under, Verdict};
use perimeter_sync::Platform;
use perimeter_sync::virt::Schedule;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Octets that the peer sends over each connection.
const N: usize = 60_000;
/// Connections: a burst has segments of several, so that the lists of the last can change between
/// its arrival and their turn.
const CONNECTIONS: usize = 6;

fn run(name: &'static str, seed: u64, layer: Layer, seen: &Arc<AtomicU32>) {
    let schedule = match seed % 3 {
        0 => Schedule::Random { switch_one_in: 2 },
        1 => Schedule::Random { switch_one_in: 13 },
        _ => Schedule::Pct { depth: 4 },
    };
    let cores = [2, 3, 4][seed as usize % 3];
    let mut setup = Setup::new(name.parse().unwrap()).schedule(schedule, seed, cores);
    for c in [&mut setup.config, &mut setup.peer] {
        c.offload = Offload::Software;
    }
    // Packets close behind each other.
    setup.wire.latency_ns = 1_000;
    let seen = seen.clone();
    setup.run(move |w| inserted(&w, (name, seed), layer, &seen));
}

/// An event comes onto the list of the last of several connections under load.
fn inserted(w: &World, (name, seed): (&str, u64), layer: Layer, all_seen: &AtomicU32) {
    let ends: Vec<_> = (0..CONNECTIONS).map(|_| w.opened()).collect();
    let (ours, _) = &ends[CONNECTIONS - 1];
    let (seen, next) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
    let faults = Arc::new(Mutex::new(Vec::new()));
    let inserter = {
        let (ours, p) = (ours.try_clone().unwrap(), w.p.clone());
        let (seen, next, faults) = (seen.clone(), next.clone(), faults.clone());
        let look = move |p: &mut Packet<'_>| {
            seen.fetch_add(1, Ordering::Relaxed);
            if let Err(why) = as_it_came(p, &next) {
                faults.lock().unwrap().push(why);
            }
            Verdict::Next
        };
        let body = move || {
            p.sleep_until(p.now() + Duration::from_nanos(20_000 + seed * 5_300));
            let what = (Direction::Receive, layer, Under::Layer);
            ours.insert_event(End::Front, event("look", what, look))
                .unwrap();
        };
        w.p.spawn("inserter", Some(1), Box::new(body))
    };
    let data = content(N);
    let mut done: Vec<(usize, Vec<u8>)> = vec![Default::default(); CONNECTIONS];
    let mut buf = [0; 10_000];
    w.until("all data", || {
        for ((ours, theirs), (sent, got)) in ends.iter().zip(&mut done) {
            *sent += { theirs }.write(&data[*sent..]).unwrap_or(0);
            while let Ok(n @ 1..) = { ours }.read(&mut buf) {
                got.extend(&buf[..n]);
            }
        }
        done.iter().all(|(_, got)| got.len() == N)
    });
    assert!(
        done.iter().all(|(_, got)| *got == data),
        "{name}, seed {seed}"
    );
    perimeter_sync::Thread::join(inserter).unwrap();
    let faults = faults.lock().unwrap();
    assert!(faults.is_empty(), "{name}, seed {seed}: {faults:?}");
    assert_eq!(w.s.stats().count("retransmits"), 0, "{name}, seed {seed}");
    all_seen.fetch_add(seen.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// One segment, which continues what came before: in front of IP as a frame, behind it as payload.
fn as_it_came(p: &Packet<'_>, next: &AtomicU64) -> Result<(), String> {
    let (seq, len) = match p.header {
        Some(h) => (h.seq.0, p.payload.len()),
        None => {
            let ip = &p.payload[14..];
            let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
            if ip[0] != 0x45 || total > ip.len() || p.payload.len() > 1514 {
                return Err(format!(
                    "a frame of {} octets: {:?}",
                    p.payload.len(),
                    &ip[..20]
                ));
            }
            let tcp = &ip[20..total];
            let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
            (seq, tcp.len() - usize::from(tcp[12] >> 4) * 4)
        }
    };
    if len == 0 {
        return Ok(());
    }
    let end = u64::from(seq.wrapping_add(len as u32));
    match next.swap(end | 1 << 32, Ordering::Relaxed) {
        0 => {}
        before if before as u32 == seq => {}
        before => return Err(format!("{seq} comes behind {}", before as u32)),
    }
    match len {
        1..=1460 => Ok(()),
        _ => Err(format!("{len} octets of data")),
    }
}

#[test]
fn who_comes_later_sees_packets_as_they_came() {
    for name in NAMES.into_iter().chain(["pef:vertical:lists=off"]) {
        for layer in [Layer::Ip, Layer::Tcp] {
            let seen = Arc::new(AtomicU32::new(0));
            (0..24).for_each(|seed| run(name, seed, layer, &seen));
            assert!(
                seen.load(Ordering::Relaxed) > 200,
                "{name}: {seen:?} packets"
            );
        }
    }
}

/// As long as somebody looks nothing is merged, and then again.
#[test]
fn merging_goes_on_when_nobody_looks_any_more() {
    for name in NAMES.into_iter().filter(|n| !n.ends_with("events=fine")) {
        let mut setup = Setup::new(name.parse().unwrap());
        for c in [&mut setup.config, &mut setup.peer] {
            c.offload = Offload::Software;
        }
        setup.run(move |w| {
            let (ours, theirs) = w.opened();
            let merged = || {
                let before = w.s.stats().count("rx_merged");
                let (mut left, mut buf) = (N, [0; 10_000]);
                let (data, mut sent) = (content(N), 0);
                w.until("all data", || {
                    sent += { &theirs }.write(&data[sent..]).unwrap_or(0);
                    while let Ok(n @ 1..) = { &ours }.read(&mut buf) {
                        left -= n;
                    }
                    left == 0
                });
                w.s.stats().count("rx_merged") - before
            };
            assert!(merged() > 0, "{name}");
            let what = (Direction::Receive, Layer::Tcp, Under::Layer);
            let look = |_: &mut Packet<'_>| Verdict::Next;
            let id = ours.insert_event(End::Front, event("look", what, look));
            let id = id.unwrap();
            assert_eq!(merged(), 0, "{name}: somebody looks");
            ours.disable_event(id).unwrap();
            // The last list that it was on is left with the next packet.
            merged();
            assert!(merged() > 0, "{name}: nobody looks any more");
        });
    }
}
