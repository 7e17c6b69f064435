//! Every event of a connection's lists does its layer's work, under its own perimeter and nowhere
//! else.

use crate::common::{Setup, content};
use perimeter::pef::Layer;
use perimeter_sync::Work;
use perimeter_sync::virt::{Act, Entry, Schedule};
use std::collections::BTreeSet;
use std::io::{Read, Write};

/// The cores of the three layers, none of them the application's or an inbound thread's.
const CORES: [(Layer, usize); 3] = [(Layer::Ip, 3), (Layer::Tcp, 4), (Layer::Sockfs, 5)];

/// What each event is charged for, whose only it is in this test.
const EVENTS: [(&str, Work, usize); 6] = [
    ("receive ip", Work::RxFrame, 3),
    ("receive tcp", Work::TcpFast, 4),
    ("receive sockfs", Work::SockInput, 5),
    ("transmit sockfs", Work::SockCall, 5),
    ("transmit tcp", Work::TcpOutput, 4),
    ("transmit ip", Work::IpOutput, 3),
];

/// The cores on which that work was charged by the stack's own threads.
fn cores(entries: &[Entry], work: Work) -> BTreeSet<usize> {
    let here = |e: &&Entry| match e.act {
        Act::Work { work: w, units } => w == work && units > 0,
        _ => false,
    };
    let own = |e: &&Entry| e.thread.starts_with("protocol-");
    let charged = entries.iter().filter(here).filter(own);
    charged.map(|e| e.core).collect()
}

#[test]
fn each_event_does_its_layers_work_on_its_own_core() {
    for events in ["coarse", "fine"] {
        let org = format!("pef:ip=3:tcp=4:sockfs=5:events={events}");
        let schedule = Schedule::Time { jitter_percent: 5 };
        let setup = Setup::new(org.parse().unwrap()).schedule(schedule, 1, 6);
        setup.run(move |w| {
            let (ours, theirs) = w.opened();
            let at = ours.binding().cores;
            assert_eq!(at, CORES.map(|(_, core)| Some(core)));
            let data = content(40_000);
            w.p.record();
            let (mut sent, mut back, mut got, mut there) = (0, 0, 0, 0);
            let mut buf = [0; 4096];
            w.until("all data", || {
                sent += { &ours }.write(&data[sent..]).unwrap_or(0);
                back += { &theirs }.write(&data[back..]).unwrap_or(0);
                got += { &ours }.read(&mut buf).unwrap_or(0);
                there += { &theirs }.read(&mut buf).unwrap_or(0);
                got == data.len() && there == data.len()
            });
            let entries = w.p.recorded();
            for (event, work, core) in EVENTS {
                assert_eq!(cores(&entries, work), BTreeSet::from([core]), "{event}");
            }
        });
    }
}
