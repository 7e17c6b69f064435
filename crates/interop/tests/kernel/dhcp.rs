//! An address from dnsmasq of the host, over TAP.

use crate::common::{Load, dnsmasq, each_family};
use perimeter::link::tap::TapConfig;
use perimeter::{DhcpConfig, OrgSpec, Stack};
use perimeter_interop::program::Program;
use perimeter_interop::taps;
use std::io::Read;
use std::net::{IpAddr, TcpListener};
use std::time::{Duration, Instant};

fn server(leases: &std::path::Path) -> Program {
    dnsmasq(&[
        "--no-ping",
        "--interface=perimeter0",
        "--dhcp-authoritative",
        "--dhcp-range=10.99.0.50,10.99.0.60,255.255.255.0,2m",
        "--dhcp-option=option:mtu,1400",
        "--dhcp-option=option:T1,6",
        &format!("--dhcp-leasefile={}", leases.display()),
    ])
}

fn given(org: &OrgSpec) {
    let dir = tempfile::tempdir().expect("a folder");
    let leases = dir.path().join("leases");
    let tap = taps::open(&TapConfig::new(taps::NAME)).unwrap_or_else(|e| panic!("{e}"));
    let _server = server(&leases);
    let config = DhcpConfig::default()
        .with_hostname("stack")
        .with_release(true);
    let builder = Stack::builder().org(org.clone());
    let builder = builder.interface_dhcp(tap, config).expect("an interface");
    let stack = builder.build().unwrap_or_else(|e| panic!("{org}: {e}"));
    let [lease] = &stack.leases()[..] else {
        panic!("{org}: no lease");
    };
    let in_range = |ip: IpAddr| matches!(ip, IpAddr::V4(ip) if (50..=60).contains(&ip.octets()[3]));
    assert!(
        in_range(lease.addr.addr) && lease.addr.prefix == 24,
        "{lease:?}"
    );
    assert_eq!((lease.server, lease.mtu), (taps::KERNEL, Some(1400)));
    assert_eq!(lease.routers, [taps::KERNEL]);
    let known = std::fs::read_to_string(&leases).expect("leases");
    assert!(
        known.contains(&lease.addr.addr.to_string()) && known.contains("stack"),
        "{known}"
    );

    // By the name that the name server knows which came along.
    let listener = TcpListener::bind((taps::KERNEL, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let accepting = std::thread::spawn(move || {
        let (mut s, from) = listener.accept().expect("a connection");
        let mut text = String::new();
        s.read_to_string(&mut text).expect("text");
        (text, from)
    });
    let mut stream = stack
        .connect(("here.example.org", port))
        .expect("connected");
    std::io::Write::write_all(&mut stream, b"hello").expect("written");
    drop(stream);
    let end = Instant::now() + Duration::from_secs(20);
    while !accepting.is_finished() && Instant::now() < end {
        stack.drive().expect("driven");
        std::thread::sleep(Duration::from_millis(1));
    }
    let (text, from) = accepting.join().expect("no panic");
    assert_eq!((text.as_str(), from.ip()), ("hello", lease.addr.addr));

    // Renewed after six seconds, by whoever serves the device.
    let end = Instant::now() + Duration::from_secs(20);
    while stack
        .leases()
        .first()
        .is_none_or(|l| l.until <= lease.until)
    {
        assert!(
            Instant::now() < end,
            "{org}: not renewed: {:?}",
            stack.leases()
        );
        stack.drive().expect("driven");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(stack.leases()[0].addr, lease.addr);
    stack.stop();
    let end = Instant::now() + Duration::from_secs(5);
    while std::fs::read_to_string(&leases)
        .expect("leases")
        .contains("stack")
    {
        assert!(
            Instant::now() < end,
            "{org}: the address was not given back"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn dnsmasq_gives_an_address() {
    each_family(&["dnsmasq"], Load::Waits, given);
}
