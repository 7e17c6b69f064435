//! The stack's own resolver, and dnsmasq of the host as its name server.

use crate::common::{Load, dnsmasq, each_family};
use perimeter::link::tap::TapConfig;
use perimeter::{DnsConfig, OrgSpec, Stack};
use perimeter_interop::program::Program;
use perimeter_interop::taps;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// More addresses than a datagram has room for.
const MANY: u8 = 200;

fn server() -> Program {
    let known = [
        "--listen-address=10.99.0.1",
        "--local-ttl=60",
        "--host-record=www.example.org,192.0.2.7,2001:db8::7",
        "--host-record=six.example.org,2001:db8::6",
        "--cname=alias.example.org,other.example.org",
        "--cname=other.example.org,www.example.org",
        "--address=/refused.example.net/192.0.2.1",
    ];
    let many = (1..=MANY).map(|n| format!("--host-record=many.example.org,198.51.100.{n}"));
    let many: Vec<_> = many.collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    dnsmasq(&[&known[..], &many].concat())
}

fn stack(org: &OrgSpec, servers: &[SocketAddr]) -> Stack {
    let tap = taps::open(&TapConfig::new(taps::NAME)).unwrap_or_else(|e| panic!("{e}"));
    let dns = DnsConfig::default().with_timeout(Duration::from_millis(500));
    let builder = Stack::builder().org(org.clone());
    let builder = builder
        .interface(tap, &[&format!("{}/24", taps::STACK)])
        .expect("an interface");
    let builder = builder.name_servers(servers).dns(dns);
    builder.build().expect("a stack")
}

fn look(stack: &Stack, host: &str) -> Result<BTreeSet<IpAddr>, ErrorKind> {
    let found = stack.lookup_host((host, 80)).map_err(|e| e.kind())?;
    Ok(found.map(|a| a.ip()).collect())
}

fn named(org: &OrgSpec) {
    // At the first address nobody is.
    let servers = ["10.99.0.9:53", "10.99.0.1:53"].map(|s| s.parse().expect("an address"));
    let stack = stack(org, &servers);
    let _server = server();
    let all = |text: &[&str]| -> BTreeSet<IpAddr> {
        text.iter()
            .map(|t| t.parse().expect("an address"))
            .collect()
    };
    // The stack has no IPv6, and does not ask for it.
    assert_eq!(look(&stack, "www.example.org"), Ok(all(&["192.0.2.7"])));
    let start = Instant::now();
    assert_eq!(look(&stack, "Alias.Example.Org."), Ok(all(&["192.0.2.7"])));
    assert_eq!(
        look(&stack, "six.example.org"),
        Err(ErrorKind::AddrNotAvailable)
    );
    assert_eq!(look(&stack, "nobody.example.org"), Err(ErrorKind::NotFound));
    // It has nobody to ask further.
    assert_eq!(look(&stack, "www.example.com"), Err(ErrorKind::Other));
    // Cut in a datagram, whole over TCP.
    let many = look(&stack, "many.example.org").expect("addresses");
    let of = |ip: &IpAddr| matches!(ip, IpAddr::V4(ip) if ip.octets()[..3] == [198, 51, 100]);
    assert!(many.len() >= 32 && many.iter().all(of), "{many:?}");
    let listener = std::net::TcpListener::bind((taps::KERNEL, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let stream = stack
        .connect(("here.example.org", port))
        .expect("connected");
    assert_eq!(
        stream.peer_addr().expect("a peer").ip(),
        IpAddr::from(taps::KERNEL)
    );
    // The server that answers is asked first, so nothing of this waited.
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn dnsmasq_is_asked_for_names() {
    each_family(&["dnsmasq"], Load::Waits, named);
}
