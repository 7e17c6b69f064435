//! Two stacks on this machine, back to back over a wire in memory, under every organization.

use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Native, OrgSpec, Stack};
use std::io::{Read, Write};
use std::net::Shutdown;

fn stacks(org: &OrgSpec) -> (Stack, Stack) {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let stack = |org: OrgSpec, end, addr: &str| {
        let b = Stack::builder().on_native(native).org(org);
        b.interface(end, &[addr]).unwrap().build().unwrap()
    };
    (
        stack(org.clone(), a, "10.0.0.1/24"),
        stack(OrgSpec::default(), b, "10.0.0.2/24"),
    )
}

/// The organizations that take calls from several threads.
fn organizations() -> Vec<OrgSpec> {
    let all = OrgSpec::tested().into_iter();
    all.filter(|o| !o.single_threaded()).collect()
}

fn byte(i: usize) -> u8 {
    (i * 7 + i / 251) as u8
}

#[test]
fn bytes_arrive_in_order_both_ways() {
    for org in organizations() {
        let (server, client) = stacks(&org);
        let listener = server.listen("10.0.0.1:80").unwrap();
        let n = 3_000_000;
        let t = std::thread::spawn(move || {
            let (mut s, peer) = listener.accept().unwrap();
            assert_eq!(peer.ip().to_string(), "10.0.0.2");
            let mut all = Vec::new();
            s.read_to_end(&mut all).unwrap();
            s.write_all(&all).unwrap();
            all.len()
        });
        let mut c = client.connect("10.0.0.1:80").unwrap();
        let data: Vec<u8> = (0..n).map(byte).collect();
        c.write_all(&data).unwrap();
        c.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        c.read_to_end(&mut back).unwrap();
        assert_eq!(t.join().unwrap(), n, "{org}");
        assert!(back == data, "{org}: {} of {} bytes", back.len(), n);
    }
}
