//! IPv4 addresses from a server, under every organization: the server is a program on another stack.

use crate::common::{each_simulated, kind, two_cores};
use perimeter::link::wire::{WireConfig, pair};
use perimeter::link::{Capabilities, Device, RxFrame, RxQueue, RxStatus, TxQueue, Waker};
use perimeter::{BuildError, Builder, DhcpConfig, OrgSpec, Stack, Virtual};
use perimeter_base::{PktPool, Time};
use perimeter_sync::{Platform, Thread};
use perimeter_wire::checksum::checksum;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const ACK: u8 = 5;
const NAK: u8 = 6;
const RELEASE: u8 = 7;

const SERVER: [u8; 4] = [10, 0, 0, 1];
const ALL: &str = "255.255.255.255:68";

/// A client's message.
#[derive(Clone, Debug)]
struct Msg {
    kind: u8,
    xid: [u8; 4],
    mac: [u8; 6],
    broadcast: bool,
    addr: [u8; 4],
    requested: Option<[u8; 4]>,
    server: Option<[u8; 4]>,
    /// Where it came from, and whether it was sent to all.
    from: SocketAddr,
    to_all: bool,
    at: Time,
}

fn parse(m: &[u8], (from, to, at): (SocketAddr, SocketAddr, Time)) -> Msg {
    assert!(m.len() >= 300 && m[..3] == [1, 1, 6] && m[236..240] == [0x63, 0x82, 0x53, 0x63]);
    let mut options = Vec::new();
    let mut rest = &m[240..];
    while let [code, len, tail @ ..] = rest
        && *code != 255
    {
        let (data, tail) = tail.split_at(usize::from(*len));
        options.push((*code, data.to_vec()));
        rest = tail;
    }
    let option = |code| options.iter().find(|o| o.0 == code).map(|o| o.1.clone());
    let ip = |code| option(code).map(|d| d.try_into().unwrap());
    Msg {
        kind: option(53).unwrap()[0],
        xid: m[4..8].try_into().unwrap(),
        mac: m[28..34].try_into().unwrap(),
        broadcast: m[10] & 0x80 != 0,
        addr: m[12..16].try_into().unwrap(),
        requested: ip(50),
        server: ip(54),
        from,
        to_all: to.ip() == Ipv4Addr::BROADCAST,
        at,
    }
}

/// What a server says about `addr`, for so many seconds.
fn reply(to: &Msg, kind: u8, addr: [u8; 4], seconds: u32) -> Vec<u8> {
    let mut m = vec![0; 240];
    m[..3].copy_from_slice(&[2, 1, 6]);
    m[4..8].copy_from_slice(&to.xid);
    m[16..20].copy_from_slice(&addr);
    m[28..34].copy_from_slice(&to.mac);
    m[236..240].copy_from_slice(&[0x63, 0x82, 0x53, 0x63]);
    m.extend([53, 1, kind, 54, 4]);
    m.extend(SERVER);
    if kind != NAK {
        m.extend([1, 4, 255, 255, 255, 0, 3, 4, 10, 0, 0, 1, 6, 4, 10, 0, 0, 1]);
        m.extend([26, 2, 5, 120, 51, 4]);
        m.extend(seconds.to_be_bytes());
    }
    m.push(255);
    m
}

/// Where the reply goes.
fn back(to: &Msg) -> SocketAddr {
    match to.addr {
        [0, 0, 0, 0] => ALL.parse().unwrap(),
        ip => (Ipv4Addr::from(ip), 68).into(),
    }
}

/// The server's device. A stack of ours takes nothing from 0.0.0.0, as no host sends from there; to
/// be a server it is shown another source.
struct Shown<D>(D);

/// Whom messages of clients without an address seem to come from.
const NOBODY: [u8; 4] = [10, 0, 0, 99];

impl<D: Device> Device for Shown<D> {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn open(self: Box<Self>) -> (Vec<Box<dyn RxQueue>>, Vec<Box<dyn TxQueue>>) {
        let (rx, tx) = Box::new(self.0).open();
        let shown = |q| Box::new(ShownRx(q)) as Box<dyn RxQueue>;
        (rx.into_iter().map(shown).collect(), tx)
    }
}

struct ShownRx(Box<dyn RxQueue>);

impl RxQueue for ShownRx {
    fn poll(&mut self, now: Time, pool: &mut PktPool, out: &mut Vec<RxFrame>, max: usize) -> usize {
        let from = out.len();
        let n = self.0.poll(now, pool, out, max);
        for frame in &mut out[from..] {
            let f = frame.buf.as_mut_slice();
            if f.len() > 300 && f[12..14] == [8, 0] && f[26..30] == [0; 4] {
                f[26..30].copy_from_slice(&NOBODY);
                f[24..26].fill(0);
                let sum = checksum(&f[14..34]);
                f[24..26].copy_from_slice(&sum.to_be_bytes());
                f[40..42].fill(0);
            }
        }
        n
    }

    fn arm(&mut self, now: Time) -> RxStatus {
        self.0.arm(now)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.0.set_waker(waker);
    }
}

struct World {
    p: Virtual,
    far: Stack,
    /// What is to be built.
    builder: Option<Builder>,
    threads: Vec<<Virtual as Platform>::Thread>,
    seen: Arc<Mutex<Vec<Msg>>>,
}

fn under_all(config: DhcpConfig, body: fn(&mut World)) {
    each_simulated(&two_cores(), move |p, org| {
        let mut w = World::new(p, org, config.clone());
        body(&mut w);
        w.far.stop();
        for t in w.threads.drain(..) {
            t.join().unwrap();
        }
    });
}

impl World {
    fn new(p: Virtual, org: OrgSpec, config: DhcpConfig) -> World {
        let ([a, b], _) = pair(&p, WireConfig::default().with_latency_ns(100_000));
        let builder = Stack::builder().on_virtual(p.clone()).org(org);
        let builder = builder.interface_dhcp(a, config).unwrap();
        let addrs = ["10.0.0.1/24", "10.0.0.2/24", "10.0.0.50/24"];
        let far = Stack::builder().on_virtual(p.clone());
        World {
            far: far.interface(Shown(b), &addrs).unwrap().build().unwrap(),
            p,
            builder: Some(builder),
            threads: Vec::new(),
            seen: Arc::default(),
        }
    }

    /// Runs a server, whose answers `answer` makes.
    fn serve(&mut self, mut answer: impl FnMut(&Msg) -> Vec<Vec<u8>> + Send + 'static) {
        let socket = self.far.bind_udp("0.0.0.0:67").unwrap();
        socket.set_broadcast(true).unwrap();
        let (seen, p) = (self.seen.clone(), self.p.clone());
        let body = move || {
            let mut buf = [0; 2000];
            while let Ok((len, from, to)) = socket.recv_from_to(&mut buf) {
                let m = parse(&buf[..len], (from, to, p.now()));
                seen.lock().unwrap().push(m.clone());
                for reply in answer(&m) {
                    socket.send_to(&reply, back(&m)).unwrap();
                }
            }
        };
        self.threads
            .push(self.p.spawn("server", None, Box::new(body)));
    }

    /// One that gives 10.0.0.60 for so many seconds, and whatever is asked for again.
    fn serve_honestly(&mut self, seconds: u32) {
        self.serve(move |m| honest(m, seconds).into_iter().collect());
    }

    fn build(&mut self) -> Result<Stack, BuildError> {
        self.builder.take().unwrap().build()
    }

    fn seen(&self) -> Vec<Msg> {
        self.seen.lock().unwrap().clone()
    }

    fn kinds(&self) -> Vec<u8> {
        self.seen().iter().map(|m| m.kind).collect()
    }

    fn pass(&self, s: &Stack, seconds: u64) {
        let end = self.p.now() + Duration::from_secs(seconds);
        if !s.organization().single_threaded() {
            return self.p.sleep_until(end);
        }
        while self.p.now() < end {
            s.drive().unwrap();
            self.p.sleep_until(self.p.now().plus(20_000_000).min(end));
        }
    }
}

fn honest(m: &Msg, seconds: u32) -> Option<Vec<u8>> {
    let mine = [10, 0, 0, 60];
    match m.kind {
        DISCOVER => Some(reply(m, OFFER, mine, seconds)),
        REQUEST => Some(reply(m, ACK, m.requested.unwrap_or(m.addr), seconds)),
        _ => None,
    }
}

fn addr(s: &Stack) -> Option<String> {
    s.addresses()[0].first().map(ToString::to_string)
}

#[test]
fn an_address_with_all_that_comes_along() {
    under_all(DhcpConfig::default(), |w| {
        w.serve_honestly(3600);
        let s = w.build().unwrap();
        assert_eq!(addr(&s).as_deref(), Some("10.0.0.60/24"));
        let [lease] = &s.leases()[..] else { panic!() };
        assert_eq!((lease.server, lease.mtu), (SERVER.into(), Some(1400)));
        assert_eq!(lease.until.since(w.p.now()).as_secs() / 10, 359);
        let seen = w.seen();
        assert_eq!(w.kinds(), [DISCOVER, REQUEST]);
        assert!(
            seen.iter()
                .all(|m| m.broadcast && m.to_all && m.addr == [0; 4])
        );
        assert_eq!(seen[1].requested, Some([10, 0, 0, 60]));
        assert_eq!(seen[1].server, Some(SERVER));
        // It was looked whether somebody has it.
        assert!(w.p.now().since(seen[1].at) >= Duration::from_secs(4));
        // To a neighbour, from one, and by the gateway.
        let listener = w.far.listen("10.0.0.1:80").unwrap();
        let mut near = s.connect("10.0.0.1:80").unwrap();
        assert_eq!(near.local_addr().unwrap().ip().to_string(), "10.0.0.60");
        near.write_all(b"hello").unwrap();
        let mut text = [0; 5];
        listener.accept().unwrap().0.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"hello");
        let beyond = s.start_connect("192.0.2.1:80".parse().unwrap()).unwrap();
        assert_eq!(beyond.local_addr().unwrap().ip().to_string(), "10.0.0.60");
        // To itself.
        let own = s.listen("10.0.0.60:81").unwrap();
        let client = s.connect("10.0.0.60:81").unwrap();
        assert_eq!(own.accept().unwrap().1, client.local_addr().unwrap());
        #[cfg(feature = "dns")]
        assert_eq!(
            s.resolver().unwrap().servers(),
            ["10.0.0.1:53".parse().unwrap()]
        );
        assert_eq!(s.stats().count("dhcp_leases"), 1);
    });
}

#[test]
fn renewed_while_somebody_answers_and_over_when_nobody_does() {
    under_all(DhcpConfig::default(), |w| {
        let mut requests = 0;
        w.serve(move |m| {
            requests += u32::from(m.kind == REQUEST);
            // The lease, and one renewal.
            if requests > 2 {
                return Vec::new();
            }
            honest(m, 1000).into_iter().collect()
        });
        let s = w.build().unwrap();
        let listener = w.far.listen("10.0.0.1:80").unwrap();
        let mut near = s.connect("10.0.0.1:80").unwrap();
        let accepted = listener.accept().unwrap().0;
        w.pass(&s, 510);
        let seen = w.seen();
        assert_eq!(w.kinds(), [DISCOVER, REQUEST, REQUEST]);
        let m = &seen[2];
        assert!(
            !m.to_all && !m.broadcast && m.addr == [10, 0, 0, 60],
            "{m:?}"
        );
        assert_eq!((m.requested, m.server), (None, None));
        assert_eq!(m.from.to_string(), "10.0.0.60:68");
        let until = s.leases()[0].until;
        // The renewed one: half of its time, then again and again, at last by all servers.
        w.pass(&s, 980);
        let seen = w.seen();
        assert!(seen[3..].len() > 3, "{}", seen.len());
        let (alone, all): (Vec<_>, Vec<_>) = seen[3..].iter().partition(|m| !m.to_all);
        assert!(alone.len() >= 3 && !all.is_empty(), "{alone:?} {all:?}");
        assert!(all.iter().all(|m| m.addr == [10, 0, 0, 60] && !m.broadcast));
        assert!(alone.iter().all(|a| all.iter().all(|b| a.at < b.at)));
        assert_eq!(addr(&s).as_deref(), Some("10.0.0.60/24"));
        near.write_all(b"hello").unwrap();
        w.pass(&s, 30);
        assert!(w.p.now() > until);
        assert_eq!(addr(&s), None);
        assert!(s.leases().is_empty());
        assert_eq!(kind(near.read(&mut [0; 9])), Some(ErrorKind::NetworkDown));
        assert!(s.connect("10.0.0.1:80").is_err());
        assert_eq!(s.stats().count("dhcp_leases_lost"), 1);
        // It looks for a server anew.
        assert_eq!(*w.kinds().last().unwrap(), DISCOVER);
        drop(accepted);
    });
}

#[test]
fn a_server_may_take_an_address_back() {
    under_all(DhcpConfig::default(), |w| {
        let mut requests = 0;
        w.serve(move |m| {
            requests += u32::from(m.kind == REQUEST);
            if requests == 2 && m.kind == REQUEST {
                return vec![reply(m, NAK, [0; 4], 0)];
            }
            let other = [10, 0, 0, if requests < 2 { 60 } else { 61 }];
            match m.kind {
                DISCOVER => vec![reply(m, OFFER, other, 100)],
                _ => honest(m, 100).into_iter().collect(),
            }
        });
        let s = w.build().unwrap();
        assert_eq!(addr(&s).as_deref(), Some("10.0.0.60/24"));
        w.pass(&s, 70);
        assert_eq!(addr(&s).as_deref(), Some("10.0.0.61/24"));
        assert_eq!(w.kinds()[2..5], [REQUEST, DISCOVER, REQUEST]);
    });
}

#[test]
fn what_changes_with_a_renewal_leaves_connections_alone() {
    under_all(DhcpConfig::default(), |w| {
        let mut requests = 0;
        w.serve(move |m| {
            requests += u32::from(m.kind == REQUEST);
            let mut all: Vec<_> = honest(m, 100).into_iter().collect();
            if requests > 1 {
                // Another gateway: the option's data.
                all[0][260] = 2;
            }
            all
        });
        let s = w.build().unwrap();
        assert_eq!(s.leases()[0].routers, [Ipv4Addr::from(SERVER)]);
        let listener = w.far.listen("10.0.0.1:80").unwrap();
        let mut near = s.connect("10.0.0.1:80").unwrap();
        let mut far = listener.accept().unwrap().0;
        w.pass(&s, 60);
        assert_eq!(s.leases()[0].routers, [Ipv4Addr::new(10, 0, 0, 2)]);
        near.write_all(b"hello").unwrap();
        let mut text = [0; 5];
        far.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"hello");
    });
}

#[test]
fn the_first_of_two_servers_is_taken_and_strangers_are_not() {
    under_all(DhcpConfig::default(), |w| {
        w.serve(|m| {
            let with = |kind, addr, f: &dyn Fn(&mut Vec<u8>)| {
                let mut r = reply(m, kind, addr, 3600);
                f(&mut r);
                r
            };
            let other_server = |r: &mut Vec<u8>| r[245..249].copy_from_slice(&[10, 0, 0, 2]);
            let kind = if m.kind == DISCOVER { OFFER } else { ACK };
            let mut all = vec![
                b"nonsense".to_vec(),
                with(kind, [10, 0, 0, 66], &|r| r[4] ^= 1),
                with(kind, [10, 0, 0, 66], &|r| r[33] ^= 1),
                with(kind, [10, 0, 0, 66], &|r| r[0] = 1),
                with(kind, [10, 0, 0, 66], &|r| r.truncate(244)),
                with(kind, [127, 0, 0, 1], &|_| {}),
                with(kind, [10, 0, 0, 255], &|_| {}),
            ];
            if m.kind == REQUEST {
                assert_eq!(m.server, Some(SERVER));
                all.push(with(NAK, [0; 4], &other_server));
                all.push(with(ACK, [10, 0, 0, 60], &other_server));
                all.push(with(ACK, [10, 0, 0, 67], &|_| {}));
            }
            all.push(with(kind, [10, 0, 0, 60], &|_| {}));
            all.push(with(kind, [10, 0, 0, 70], &other_server));
            all
        });
        let s = w.build().unwrap();
        assert_eq!(addr(&s).as_deref(), Some("10.0.0.60/24"));
        assert_eq!(w.kinds(), [DISCOVER, REQUEST]);
    });
}

#[test]
fn lost_messages_are_sent_again_with_longer_waits() {
    let patient = DhcpConfig::default().with_wait(Some(Duration::from_secs(120)));
    under_all(patient, |w| {
        let mut n = 0;
        w.serve(move |m| {
            n += 1;
            match n {
                1..=3 | 5 => Vec::new(),
                _ => honest(m, 3600).into_iter().collect(),
            }
        });
        let s = w.build().unwrap();
        assert_eq!(addr(&s).as_deref(), Some("10.0.0.60/24"));
        assert_eq!(
            w.kinds(),
            [DISCOVER, DISCOVER, DISCOVER, DISCOVER, REQUEST, REQUEST]
        );
        let at: Vec<_> = w.seen().iter().map(|m| m.at.millis()).collect();
        for (n, wait) in [(0, 4_000), (1, 8_000), (2, 16_000), (4, 4_000)] {
            let took = at[n + 1] - at[n];
            assert!(took.abs_diff(wait) <= 1_010, "{at:?}");
        }
    });
}

#[test]
fn an_address_that_somebody_has_is_declined() {
    let patient = DhcpConfig::default().with_wait(Some(Duration::from_secs(120)));
    under_all(patient, |w| {
        let mut declined = false;
        w.serve(move |m| {
            declined |= m.kind == DECLINE;
            match m.kind {
                // Of the server's host itself.
                DISCOVER if !declined => vec![reply(m, OFFER, [10, 0, 0, 50], 3600)],
                _ => honest(m, 3600).into_iter().collect(),
            }
        });
        let s = w.build().unwrap();
        assert_eq!(addr(&s).as_deref(), Some("10.0.0.60/24"));
        assert_eq!(w.kinds(), [DISCOVER, REQUEST, DECLINE, DISCOVER, REQUEST]);
        let seen = w.seen();
        assert_eq!(
            (seen[2].requested, seen[2].server),
            (Some([10, 0, 0, 50]), Some(SERVER))
        );
        assert!(seen[3].at.since(seen[2].at) >= Duration::from_millis(9_990));
    });
}

#[test]
fn without_a_server_it_is_said_or_waited_for_in_the_background() {
    under_all(
        DhcpConfig::default().with_wait(Some(Duration::from_secs(5))),
        |w| {
            let error = w.build().err().unwrap();
            assert!(error.to_string().contains("no DHCP server"), "{error}");
            assert_eq!(std::io::Error::from(error).kind(), ErrorKind::TimedOut);
        },
    );
    let background = DhcpConfig::default().with_wait(None).with_probe(false);
    under_all(background.with_release(true), |w| {
        let s = w.build().unwrap();
        assert_eq!(addr(&s), None);
        assert!(s.connect("10.0.0.1:80").is_err());
        w.serve_honestly(3600);
        w.pass(&s, 10);
        assert_eq!(addr(&s).as_deref(), Some("10.0.0.60/24"));
        // Given back at the end, as was asked for.
        s.stop();
        w.p.sleep_until(w.p.now() + Duration::from_millis(100));
        let last = w.seen().pop().unwrap();
        assert_eq!(
            (last.kind, last.addr, last.server),
            (RELEASE, [10, 0, 0, 60], Some(SERVER))
        );
        assert!(!last.to_all);
    });
}
