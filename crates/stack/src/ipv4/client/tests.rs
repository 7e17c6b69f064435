use super::*;
use perimeter_wire::dhcp::QUERY_LEN;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

fn client() -> Client {
    Client::new(DhcpConfig::default(), (0, MAC), 7, Time::ZERO)
}

fn run(c: &mut Client, now: Time) -> Vec<Do> {
    let mut out = Vec::new();
    c.run(now, &mut out);
    out
}

/// A server's message to the client, with these options besides the kind.
fn reply(c: &Client, kind: u8, addr: [u8; 4], options: &[u8]) -> DhcpReply {
    let mut m = vec![0; 240];
    m[..3].copy_from_slice(&[2, 1, 6]);
    m[4..8].copy_from_slice(&c.xid.to_be_bytes());
    m[16..20].copy_from_slice(&addr);
    m[28..34].copy_from_slice(&MAC.0);
    m[236..240].copy_from_slice(&[0x63, 0x82, 0x53, 0x63]);
    m.extend([53, 1, kind, 54, 4, 10, 0, 0, 1]);
    m.extend(options);
    DhcpReply::parse(&m).unwrap()
}

fn offered(options: &[u8], addr: [u8; 4]) -> Option<Terms> {
    let mut c = client();
    let at = c.due();
    run(&mut c, at);
    c.received(&reply(&c, 2, addr, options), at);
    match c.state {
        State::Requesting(t) => Some(t),
        _ => None,
    }
}

const HOUR: [u8; 6] = [51, 4, 0, 0, 14, 16];

#[test]
fn what_is_taken_of_an_offer() {
    let t = offered(&HOUR, [10, 0, 0, 7]).unwrap();
    assert_eq!((t.lease.server, t.lease.addr.prefix), (SERVER, 8));
    let at = |t: Time| t.0 / SECOND;
    assert_eq!(
        (at(t.renew), at(t.rebind), at(t.lease.until)),
        (1800, 3150, 3600)
    );
    assert_eq!(
        offered(&HOUR, [192, 168, 0, 7]).unwrap().lease.addr.prefix,
        24
    );
    // Times that contradict each other are not believed, nor gateways of other networks.
    let odd = [
        &HOUR[..],
        &[58, 4, 0, 1, 0, 0, 59, 4, 0, 1, 0, 0],
        &[1, 4, 255, 255, 255, 0],
    ]
    .concat();
    let odd = [
        &odd[..],
        &[3, 12, 10, 0, 0, 254, 10, 9, 9, 9, 10, 0, 0, 7, 26, 2, 0, 10],
    ]
    .concat();
    let t = offered(&odd, [10, 0, 0, 7]).unwrap();
    assert_eq!((at(t.renew), at(t.rebind), t.lease.mtu), (1800, 3150, None));
    assert_eq!(t.lease.routers, [Ipv4Addr::new(10, 0, 0, 254)]);
    let ever = offered(&[51, 4, 255, 255, 255, 255], [10, 0, 0, 7]).unwrap();
    assert_eq!((ever.renew, ever.lease.until), (Time::NEVER, Time::NEVER));
    // No time, and addresses that no host has.
    assert_eq!(offered(&[], [10, 0, 0, 7]), None);
    assert_eq!(offered(&[51, 4, 0, 0, 0, 0], [10, 0, 0, 7]), None);
    for ip in [
        [0; 4],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [255; 4],
        [10, 255, 255, 255],
        [10, 0, 0, 0],
    ] {
        assert_eq!(offered(&HOUR, ip), None, "{ip:?}");
    }
}

#[test]
fn it_backs_off_and_begins_anew() {
    let mut c = client();
    let (mut kinds, mut last) = (Vec::new(), Time::ZERO);
    for _ in 0..8 {
        let at = c.due();
        let [Do::Send(m)] = &run(&mut c, at)[..] else {
            panic!()
        };
        kinds.push(at.since(last).as_secs());
        last = at;
        assert_eq!((m.kind, m.to), (DhcpKind::Discover, None));
        assert!(run(&mut c, at).is_empty(), "nothing is due");
    }
    for (took, want) in kinds[1..].iter().zip([4, 8, 16, 32, 64, 64, 64]) {
        assert!(took.abs_diff(want) <= 1, "{kinds:?}");
    }
    // Requests that nobody answers.
    c.received(&reply(&c, 2, [10, 0, 0, 7], &HOUR), last);
    let xid = c.xid;
    for _ in 0..REQUESTS {
        let at = c.due().max(last);
        let [Do::Send(m)] = &run(&mut c, at)[..] else {
            panic!()
        };
        assert_eq!((m.kind, m.xid), (DhcpKind::Request, xid));
        last = at;
    }
    let at = c.due();
    assert!(run(&mut c, at).is_empty());
    let at = c.due();
    let [Do::Send(m)] = &run(&mut c, at)[..] else {
        panic!()
    };
    assert_eq!(m.kind, DhcpKind::Discover);
    assert_ne!(m.xid, xid);
}

#[test]
fn answers_that_come_when_nobody_asks_change_nothing() {
    let mut c = client();
    let early = reply(&c, 2, [10, 0, 0, 7], &HOUR);
    c.received(&early, Time::ZERO);
    assert_eq!(c.state, State::Init);
    let at = c.due();
    run(&mut c, at);
    c.received(&reply(&c, 2, [10, 0, 0, 7], &HOUR), at);
    run(&mut c, at);
    c.received(&reply(&c, 5, [10, 0, 0, 7], &HOUR), at);
    // A NAK, an offer and a repeated ACK while the address is probed, and later.
    let probing = c.state.clone();
    for kind in [2, 5, 6] {
        c.received(&reply(&c, kind, [10, 0, 0, 7], &HOUR), at);
        assert_eq!(c.state, probing);
    }
    let mut taken = Vec::new();
    while c.lease().is_none() {
        let at = c.due();
        taken.extend(run(&mut c, at));
    }
    assert_eq!(
        taken.iter().filter(|d| matches!(d, Do::Probe(_))).count(),
        3
    );
    assert!(matches!(taken.last(), Some(Do::Take(_))));
    let bound = c.state.clone();
    for kind in [2, 5, 6] {
        c.received(&reply(&c, kind, [10, 0, 0, 7], &HOUR), at);
        assert_eq!(c.state, bound);
    }
    // What it writes has room.
    let m = c.message(DhcpKind::Request, at);
    assert!(m.query(&c.config, MAC).emit(&mut [0; QUERY_LEN]) >= 300);
}
