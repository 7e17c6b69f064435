//! Listeners that share a port (SO_REUSEPORT).

use crate::common::{World, drive, each_simulated, under_all};
use crate::packet::{completes, syn, tcp};
use perimeter::link::script::script;
use perimeter::{Listen, Stack, TcpListener};
use perimeter_sync::Platform;
use perimeter_sync::virt::VirtualConfig;
use std::collections::HashSet;
use std::io::ErrorKind;
use std::time::Duration;

/// Listens at a port of the stack under test that others may have as well.
fn sharing(w: &World, port: u16) -> TcpListener {
    let listen = Listen::at(w.at(port)).reuse_port();
    let l = w.s.listen_as(&listen).unwrap();
    l.set_nonblocking(true).unwrap();
    l
}

fn in_use(w: &World, listen: &Listen) -> bool {
    let refused = w.s.listen_as(listen);
    refused.is_err_and(|e| e.kind() == ErrorKind::AddrInUse)
}

#[test]
fn each_gets_its_part_of_the_connections() {
    under_all(
        |_| {},
        |w| {
            let port = w.port();
            let all: Vec<TcpListener> = (0..3).map(|_| sharing(&w, port)).collect();
            assert!(in_use(&w, &Listen::at(w.at(port))), "it does not share");
            let alone = w.port();
            let _alone = w.s.listen(w.at(alone)).unwrap();
            assert!(in_use(&w, &Listen::at(w.at(alone)).reuse_port()));
            let clients: Vec<_> = (0..48)
                .map(|_| w.peer.start_connect(w.at(port)).unwrap())
                .collect();
            // IPv6's addresses are probed for duplicates first.
            w.pass(Duration::from_secs(2));
            let mut seen = HashSet::new();
            for l in &all {
                let before = seen.len();
                while let Ok((_, from)) = l.accept() {
                    assert!(seen.insert(from), "{from} twice");
                }
                assert!(seen.len() > before, "none of 48");
            }
            assert_eq!(seen.len(), clients.len());
        },
    );
}

#[test]
fn who_asks_for_a_free_port_shares_none() {
    under_all(
        |_| {},
        |w| {
            let listen = Listen::at(w.at(0)).reuse_port();
            let all: Vec<_> = (0..200).map(|_| w.s.listen_as(&listen).unwrap()).collect();
            let ports = all.iter().map(|l| l.local_addr().unwrap().port());
            let ports: HashSet<u16> = ports.collect();
            assert_eq!(ports.len(), 200);
        },
    );
}

/// A handshake that began with one that has gone ends with another.
#[test]
fn handshakes_outlive_their_listener() {
    each_simulated(&VirtualConfig::default(), |p, org| {
        let (device, wire) = script(&p, "script", 1500);
        let s = Stack::builder().on_virtual(p.clone()).org(org);
        let s = s.interface(device, &["10.0.0.1/24"]).unwrap();
        let s = s.build().unwrap();
        let pass = |ms| drive(&p, &s, ms);
        let listen = Listen::at("10.0.0.1:9".parse().unwrap()).reuse_port();
        let [first, second] = [(); 2].map(|()| s.listen_as(&listen).unwrap());
        second.set_nonblocking(true).unwrap();
        let ports = 5_000..5_016;
        let mut acks = Vec::new();
        for port in ports.clone() {
            let syn = syn((port, 9));
            assert!(wire.inject(p.now(), &tcp(&syn, b"")));
            pass(5);
            acks.push(completes(&syn, &wire.next().unwrap().bytes));
        }
        drop(first);
        pass(5);
        for hdr in &acks {
            assert!(wire.inject(p.now(), &tcp(hdr, b"")));
            pass(5);
        }
        for port in ports {
            let (_, from) = second.accept().unwrap();
            assert_eq!(from.to_string(), format!("10.0.0.2:{port}"));
        }
    });
}
