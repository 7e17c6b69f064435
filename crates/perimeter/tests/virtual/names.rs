//! The stack's own resolver under every organization: a small name server on one host, its client on
//! another.

use crate::common::{each_simulated, kind, two_cores};
use perimeter::link::fault::FaultConfig;
use perimeter::link::wire::{WireConfig, pair};
use perimeter::{DnsConfig, OrgSpec, Stack, UdpSocket, Virtual};
use perimeter_base::Time;
use perimeter_sync::{Platform, Thread};
use simple_dns::rdata::{A, AAAA, CNAME, RData, SOA};
use simple_dns::{CLASS, Name, Packet, PacketFlag, RCODE, ResourceRecord, TYPE};
use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SERVER: &str = "10.0.0.2:53";
const OTHER: &str = "10.0.0.3:53";
const SERVER_V6: &str = "[fd00::2]:53";

/// A client under test, and a host that has the addresses of the name servers.
struct World {
    p: Virtual,
    client: Stack,
    far: Stack,
    threads: Vec<<Virtual as Platform>::Thread>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// A query that a server was sent.
#[derive(Clone, Debug)]
struct Seen {
    from: SocketAddr,
    id: u16,
    at: Time,
    over_stream: bool,
}

struct Setup {
    servers: &'static [&'static str],
    config: DnsConfig,
    loss: f64,
    addrs: &'static [&'static str],
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            servers: &[SERVER],
            config: DnsConfig::default(),
            loss: 0.0,
            addrs: &["10.0.0.1/24", "fd00::1/64"],
        }
    }
}

fn under_all(setup: impl Fn() -> Setup + Clone + Send + 'static, body: fn(&mut World)) {
    each_simulated(&two_cores(), move |p, org| {
        let mut w = World::new(p, org, setup());
        body(&mut w);
        w.far.stop();
        for t in w.threads.drain(..) {
            t.join().unwrap();
        }
    });
}

impl World {
    fn new(p: Virtual, org: OrgSpec, setup: Setup) -> World {
        let mut wire = WireConfig::default().with_latency_ns(1_000_000);
        for end in &mut wire.ends {
            end.faults = FaultConfig::default().with_loss(setup.loss);
        }
        let ([a, b], _) = pair(&p, wire);
        let servers: Vec<SocketAddr> = setup.servers.iter().map(|s| s.parse().unwrap()).collect();
        let client = Stack::builder()
            .on_virtual(p.clone())
            .org(org)
            .interface(a, setup.addrs)
            .unwrap()
            .name_servers(&servers)
            .dns(setup.config)
            .build()
            .unwrap();
        let addrs = ["10.0.0.2/24", "10.0.0.3/24", "fd00::2/64"];
        let far = Stack::builder().on_virtual(p.clone());
        let far = far.interface(b, &addrs).unwrap().build().unwrap();
        World {
            p,
            client,
            far,
            threads: Vec::new(),
            seen: Arc::default(),
        }
    }

    /// Runs a name server: `answer` gets each query, and the socket to answer by.
    fn serve(
        &mut self,
        at: &str,
        mut answer: impl FnMut(&[u8], SocketAddr, &UdpSocket) + Send + 'static,
    ) {
        let socket = self.far.bind_udp(at).unwrap();
        let (seen, p) = (self.seen.clone(), self.p.clone());
        self.spawn(move || {
            let mut buf = [0; 2000];
            while let Ok((len, from)) = socket.recv_from(&mut buf) {
                note(&seen, &buf[..len], (from, p.now(), false));
                answer(&buf[..len], from, &socket);
            }
        });
    }

    /// As that, over TCP: what `answer` makes of a query is sent in two parts.
    fn serve_streams(&mut self, at: &str, answer: fn(&[u8]) -> Vec<u8>) {
        let listener = self.far.listen(at).unwrap();
        let (seen, p) = (self.seen.clone(), self.p.clone());
        self.spawn(move || {
            while let Ok((mut stream, from)) = listener.accept() {
                let mut len = [0; 2];
                if stream.read_exact(&mut len).is_err() {
                    continue;
                }
                let mut query = vec![0; u16::from_be_bytes(len).into()];
                stream.read_exact(&mut query).unwrap();
                note(&seen, &query, (from, p.now(), true));
                let reply = answer(&query);
                let whole = [&(reply.len() as u16).to_be_bytes()[..], &reply].concat();
                stream.write_all(&whole[..5]).unwrap();
                p.sleep_until(p.now() + Duration::from_millis(50));
                stream.write_all(&whole[5..]).unwrap();
            }
        });
    }

    fn spawn(&mut self, body: impl FnOnce() + Send + 'static) {
        self.threads
            .push(self.p.spawn("server", None, Box::new(body)));
    }

    fn look(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        let found = self.client.lookup_host((host, 80))?;
        Ok(found
            .map(|a| {
                assert_eq!(a.port(), 80);
                a.ip()
            })
            .collect())
    }

    fn pass(&self, d: Duration) {
        let end = self.p.now() + d;
        if !self.client.organization().single_threaded() {
            return self.p.sleep_until(end);
        }
        while self.p.now() < end {
            self.client.drive().unwrap();
            self.p.sleep_until(self.p.now().plus(50_000_000).min(end));
        }
    }

    fn queries(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn asked(&self) -> usize {
        self.queries().len()
    }
}

fn note(seen: &Mutex<Vec<Seen>>, query: &[u8], (from, at, over_stream): (SocketAddr, Time, bool)) {
    let id = u16::from_be_bytes([query[0], query[1]]);
    seen.lock().unwrap().push(Seen {
        from,
        id,
        at,
        over_stream,
    });
}

fn v4(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

fn v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
}

fn record<'a>(owner: &'a str, data: RData<'a>) -> ResourceRecord<'a> {
    ResourceRecord::new(Name::new_unchecked(owner), CLASS::IN, 60, data)
}

/// The reply to a query, which `f` completes.
fn reply(query: &[u8], f: impl FnOnce(&mut Packet<'_>)) -> Vec<u8> {
    let mut p = Packet::parse(query).unwrap();
    assert_eq!(p.opt().map(|o| o.udp_packet_size), Some(1232));
    p.set_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_AVAILABLE);
    f(&mut p);
    p.build_bytes_vec_compressed().unwrap()
}

/// What an honest server says.
fn honest(query: &[u8]) -> Vec<u8> {
    reply(query, |p| {
        let name = p.questions[0].qname.to_string();
        let wants_v6 = p.questions[0].qtype == TYPE::AAAA.into();
        let addr = |owner, last: u8| match wants_v6 {
            true => record(owner, RData::AAAA(AAAA::from(v6(last.into())))),
            false => record(owner, RData::A(A::from(v4(last)))),
        };
        match name.as_str() {
            "www.example.org" => p.answers.push(addr("www.example.org", 2)),
            "alias.example.org" => {
                let to = RData::CNAME(CNAME(Name::new_unchecked("www.example.org")));
                p.answers.push(record("alias.example.org", to));
                p.answers.push(addr("www.example.org", 2));
            }
            "v4.example.org" if !wants_v6 => p.answers.push(addr("v4.example.org", 2)),
            "v4.example.org" | "empty.example.org" => p.name_servers.push(soa()),
            "broken.example.org" => *p.rcode_mut() = RCODE::ServerFailure,
            _ => {
                *p.rcode_mut() = RCODE::NameError;
                p.name_servers.push(soa());
            }
        }
    })
}

fn soa() -> ResourceRecord<'static> {
    let soa = SOA {
        mname: Name::new_unchecked("ns.example.org"),
        rname: Name::new_unchecked("root.example.org"),
        serial: 1,
        refresh: 1,
        retry: 1,
        expire: 1,
        minimum: 30,
    };
    record("example.org", RData::SOA(soa))
}

fn serve_honestly(query: &[u8], from: SocketAddr, socket: &UdpSocket) {
    socket.send_to(&honest(query), from).unwrap();
}

fn both() -> Vec<IpAddr> {
    vec![v6(2).into(), v4(2).into()]
}

#[test]
fn by_name_and_from_memory_until_its_time_is_over() {
    under_all(Setup::default, |w| {
        w.serve(SERVER, serve_honestly);
        assert_eq!(w.look("www.example.org").unwrap(), both());
        assert_eq!(w.asked(), 2);
        assert_eq!(w.look("WWW.Example.org.").unwrap(), both());
        assert_eq!(w.look("alias.example.org").unwrap(), both());
        assert_eq!(w.look("v4.example.org").unwrap(), both()[1..]);
        assert_eq!(w.asked(), 6);
        // By name, to the address of either family that somebody listens at.
        let listener = w.far.listen("10.0.0.2:80").unwrap();
        let stream = w.client.connect("www.example.org:80").unwrap();
        assert_eq!(listener.accept().unwrap().1, stream.local_addr().unwrap());
        let socket = w.client.bind_udp("10.0.0.1:0").unwrap();
        let there = w.far.bind_udp("10.0.0.2:9").unwrap();
        socket.send_to(b"hello", "v4.example.org:9").unwrap();
        assert_eq!(there.recv(&mut [0; 100]).unwrap(), 5);
        socket.connect("v4.example.org:9").unwrap();
        assert_eq!(w.asked(), 6);
        // Negative answers are good for 30 s, the others for 60 s.
        w.pass(Duration::from_secs(31));
        assert_eq!(w.look("v4.example.org").unwrap(), both()[1..]);
        assert_eq!(w.asked(), 7);
        w.pass(Duration::from_secs(31));
        assert_eq!(w.look("www.example.org").unwrap(), both());
        assert_eq!(w.asked(), 9);
        // Each from a port of its own, with an identification of its own.
        let queries = w.queries();
        let ports: HashSet<_> = queries.iter().map(|s| s.from.port()).collect();
        let ids: HashSet<_> = queries.iter().map(|s| s.id).collect();
        assert!(ports.len() > 7 && ids.len() > 7, "{queries:?}");
        assert!(ports.iter().all(|p| (32_768..61_000).contains(p)));
        // Nobody is asked for these.
        assert_eq!(w.look("10.0.0.9").unwrap(), [IpAddr::from(v4(9))]);
        assert_eq!(w.look("fd00::9").unwrap(), [IpAddr::from(v6(9))]);
        let local = [
            Ipv6Addr::LOCALHOST.into(),
            IpAddr::from(Ipv4Addr::LOCALHOST),
        ];
        assert_eq!(w.look("localhost").unwrap(), local);
        assert_eq!(kind(w.look("x.invalid")), Some(ErrorKind::NotFound));
        assert_eq!(kind(w.look("no name")), Some(ErrorKind::InvalidInput));
        assert_eq!(w.asked(), 9);
    });
}

#[test]
fn what_there_is_not_is_told_apart() {
    under_all(Setup::default, |w| {
        w.serve(SERVER, serve_honestly);
        for (host, want, asked) in [
            ("nobody.example.org", ErrorKind::NotFound, 2),
            ("nobody.example.org", ErrorKind::NotFound, 0),
            ("empty.example.org", ErrorKind::AddrNotAvailable, 2),
            ("empty.example.org", ErrorKind::AddrNotAvailable, 0),
            ("broken.example.org", ErrorKind::Other, 6),
            ("broken.example.org", ErrorKind::Other, 6),
        ] {
            let before = w.asked();
            assert_eq!(kind(w.look(host)), Some(want), "{host}");
            assert_eq!(w.asked() - before, asked, "{host}");
        }
        assert_eq!(
            kind(w.client.connect("nobody.example.org:80")),
            Some(ErrorKind::NotFound)
        );
    });
}

#[test]
fn a_server_that_is_not_there_and_one_that_never_answers() {
    let setup = || Setup {
        servers: &["10.0.0.9:53", OTHER, SERVER],
        ..Setup::default()
    };
    under_all(setup, |w| {
        w.serve(OTHER, |_, _, _| {});
        w.serve(SERVER, serve_honestly);
        let start = w.p.now();
        assert_eq!(w.look("www.example.org").unwrap(), both());
        let took = w.p.now().since(start);
        assert!(
            took >= Duration::from_secs(4) && took < Duration::from_millis(4_200),
            "{took:?}"
        );
        // From now on the one is asked first that has answered.
        let start = w.p.now();
        assert_eq!(w.look("v4.example.org").unwrap(), both()[1..]);
        assert!(w.p.now().since(start) < Duration::from_millis(100));
    });
}

#[test]
fn a_closed_port_is_left_at_once() {
    let setup = || Setup {
        servers: &[OTHER, SERVER],
        ..Setup::default()
    };
    under_all(setup, |w| {
        w.serve(SERVER, serve_honestly);
        let start = w.p.now();
        assert_eq!(w.look("www.example.org").unwrap(), both());
        assert!(w.p.now().since(start) < Duration::from_millis(100));
    });
}

#[test]
fn lost_queries_are_asked_again() {
    under_all(Setup::default, |w| {
        let mut lost = 0;
        w.serve(SERVER, move |query, from, socket| {
            lost += 1;
            if lost > 2 {
                serve_honestly(query, from, socket);
            }
        });
        let start = w.p.now();
        assert_eq!(w.look("www.example.org").unwrap(), both());
        let took = w.p.now().since(start);
        assert!(
            took >= Duration::from_secs(2) && took < Duration::from_millis(2_200),
            "{took:?}"
        );
        assert_eq!(w.asked(), 4);
        let at: Vec<_> = w.queries().iter().map(|s| s.at.millis()).collect();
        assert!(at[1] - at[0] < 10, "both at once: {at:?}");
    });
    let lossy = || Setup {
        loss: 0.2,
        config: DnsConfig::default().with_attempts(10),
        ..Setup::default()
    };
    under_all(lossy, |w| {
        w.serve(SERVER, serve_honestly);
        for _ in 0..4 {
            let found = w.look("www.example.org").unwrap();
            assert!(!found.is_empty() && found.iter().all(|ip| both().contains(ip)));
            w.pass(Duration::from_secs(61));
        }
    });
}

/// Wrong identification, wrong question, wrong port, wrong host: all before the right answer.
#[test]
fn liars_are_not_believed() {
    under_all(Setup::default, |w| {
        let other_port = w.far.bind_udp("10.0.0.2:54").unwrap();
        let other_host = w.far.bind_udp(OTHER).unwrap();
        let p = w.p.clone();
        w.serve(SERVER, move |query, from, socket| {
            let lie = |f: &dyn Fn(&mut Packet<'_>)| {
                reply(query, |p| {
                    let owner = p.questions[0].qname.clone().into_owned();
                    let data = match p.questions[0].qtype == TYPE::AAAA.into() {
                        true => RData::AAAA(AAAA::from(v6(66))),
                        false => RData::A(A::from(v4(66))),
                    };
                    p.answers
                        .push(ResourceRecord::new(owner, CLASS::IN, 60, data));
                    f(p);
                })
            };
            let wrong_id = lie(&|p| p.set_id(p.id().wrapping_add(1)));
            let wrong_name = lie(&|p| {
                let evil = Name::new_unchecked("evil.example.org");
                p.questions[0].qname = evil.clone();
                p.answers[0].name = evil;
            });
            let no_reply = lie(&|p| p.remove_flags(PacketFlag::RESPONSE));
            for l in [&wrong_id[..], &wrong_name, &no_reply, b"", &[0; 700]] {
                socket.send_to(l, from).unwrap();
            }
            let good_but_for_its_source = lie(&|_| {});
            other_port.send_to(&good_but_for_its_source, from).unwrap();
            other_host.send_to(&good_but_for_its_source, from).unwrap();
            p.sleep_until(p.now() + Duration::from_millis(20));
            serve_honestly(query, from, socket);
        });
        assert_eq!(w.look("www.example.org").unwrap(), both());
        assert_eq!(w.look("www.example.org").unwrap(), both());
        assert_eq!(w.asked(), 2);
    });
}

/// Somebody who guesses is not given the whole time to do so at one port.
#[test]
fn guesses_end_a_query() {
    under_all(Setup::default, |w| {
        let mut asked = 0;
        w.serve(SERVER, move |query, from, socket| {
            asked += 1;
            if asked > 2 {
                return serve_honestly(query, from, socket);
            }
            for n in 0..80u16 {
                let mut guess = honest(query);
                let id = u16::from_be_bytes([guess[0], guess[1]]) ^ (n + 1);
                guess[..2].copy_from_slice(&id.to_be_bytes());
                let _ = socket.send_to(&guess, from);
            }
        });
        let start = w.p.now();
        assert_eq!(w.look("www.example.org").unwrap(), both());
        assert!(w.p.now().since(start) < Duration::from_millis(500));
        let ports: HashSet<_> = w.queries().iter().map(|s| s.from.port()).collect();
        assert_eq!(ports.len(), 4);
    });
}

#[test]
fn what_is_cut_comes_over_tcp() {
    under_all(Setup::default, |w| {
        w.serve(SERVER, |query, from, socket| {
            let cut = reply(query, |p| p.set_flags(PacketFlag::TRUNCATION));
            socket.send_to(&cut, from).unwrap();
        });
        w.serve_streams(SERVER, honest);
        assert_eq!(w.look("www.example.org").unwrap(), both());
        let over: Vec<_> = w.queries().iter().map(|s| s.over_stream).collect();
        assert_eq!(over, [false, false, true, true]);
    });
    // Where nobody answers over TCP, another server is asked.
    let two = || Setup {
        servers: &[OTHER, SERVER],
        ..Setup::default()
    };
    under_all(two, |w| {
        w.serve(OTHER, |query, from, socket| {
            let cut = reply(query, |p| p.set_flags(PacketFlag::TRUNCATION));
            socket.send_to(&cut, from).unwrap();
        });
        w.serve(SERVER, serve_honestly);
        assert_eq!(w.look("www.example.org").unwrap(), both());
    });
}

#[test]
fn over_ipv6_and_for_the_families_that_there_are() {
    let setup = || Setup {
        servers: &[SERVER_V6],
        addrs: &["fd00::1/64"],
        ..Setup::default()
    };
    under_all(setup, |w| {
        w.serve(SERVER_V6, serve_honestly);
        assert_eq!(w.look("www.example.org").unwrap(), both()[..1]);
        assert_eq!(
            kind(w.look("v4.example.org")),
            Some(ErrorKind::AddrNotAvailable)
        );
        assert_eq!(w.asked(), 2);
    });
}

#[test]
fn a_stack_that_ends_ends_its_lookups() {
    under_all(Setup::default, |w| {
        w.serve(SERVER, |_, _, _| {});
        let start = w.p.now();
        let client = w.client.clone();
        let soon = start + Duration::from_secs(1);
        let p = w.p.clone();
        w.spawn(move || {
            p.sleep_until(soon);
            client.stop();
        });
        assert_eq!(
            kind(w.look("www.example.org")),
            Some(ErrorKind::NotConnected)
        );
        assert!(w.p.now().since(start) < Duration::from_millis(1_200));
        assert_eq!(
            kind(w.look("www.example.org")),
            Some(ErrorKind::NotConnected)
        );
    });
}
