//! A perimeter protects sockets, of whatever protocol: a small datagram protocol with ports runs
//! under every organization, and none of them knows of it. Its sockets live inside perimeters;
//! here are its demultiplexer, its four calls, and what hosts do with it.

use crate::common::organizations;
use perimeter::link::wire::{End, WireConfig, pair};
use perimeter::{Config, OrgSpec, Platform, Virtual};
use perimeter_org::engine::{Engine, Running};
use perimeter_org::{Inbound, Options, Org, Protocol, Visit, open_with, visit};
use perimeter_stack::aside::Trouble;
use perimeter_stack::datagram::{self, Datagram, SendError};
use perimeter_stack::{Cidr, Ctx, IfaceSpec, Kind, Sockets};
use perimeter_sync::Thread;
use perimeter_sync::virt::{Schedule, VirtualConfig};
use perimeter_tcp::Unreachable;
use perimeter_wire::FlowKey;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// UDP's, whose ports ICMP errors quote. The header is UDP's as well, without a checksum.
const NUMBER: u8 = 17;
const HEADER: usize = 8;
/// A socket. It is reached inside its perimeter only.
#[derive(Default)]
struct Socket {
    received: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Nobody was there for something that it sent.
    refused: bool,
}

/// The sockets of one perimeter, by port.
#[derive(Default)]
struct Table {
    sockets: HashMap<u16, Socket>,
    entered: Arc<AtomicBool>,
}

/// Runs `f` on the table of the perimeter that the calling thread is in, and sees that no other is.
fn table<K: Kind, R>(
    sockets: &mut dyn Sockets<K>,
    cx: &mut Ctx<K>,
    f: impl FnOnce(&mut Table, &mut Ctx<K>) -> R,
) -> R {
    let table: &mut Table = sockets.others().table();
    let entered = table.entered.clone();
    assert!(!entered.swap(true, Ordering::SeqCst), "two are inside");
    cx.sh.p.checkpoint();
    let out = f(table, cx);
    cx.sh.p.checkpoint();
    assert!(entered.swap(false, Ordering::SeqCst));
    out
}

/// The protocol: which perimeter a port's socket is in.
#[derive(Default)]
struct Ports(Mutex<HashMap<u16, u16>>);

#[derive(Debug, PartialEq)]
enum Error {
    InUse,
    Refused,
    Unsent(SendError),
}

impl Ports {
    fn perimeter(&self, port: u16) -> Option<u16> {
        self.0.lock().unwrap().get(&port).copied()
    }

    fn bind<O: Org>(&self, org: &O, cx: &mut Ctx<O::K>, port: u16) -> Result<(), Error> {
        let n = org.home(port.into());
        if self.perimeter(port).is_some() {
            return Err(Error::InUse);
        }
        let make = move |sockets: &mut dyn Sockets<O::K>, cx: &mut Ctx<O::K>| {
            table(sockets, cx, |t, _| {
                t.sockets.insert(port, Socket::default())
            });
        };
        org.inside(cx, n, make).unwrap();
        self.0.lock().unwrap().insert(port, n);
        Ok(())
    }

    /// Runs `f` on the socket of a port.
    fn call<O: Org, R: Send + 'static>(
        &self,
        org: &O,
        cx: &mut Ctx<O::K>,
        port: u16,
        f: impl FnOnce(&mut Socket, &mut Ctx<O::K>) -> R + Send + 'static,
    ) -> R {
        let job = move |sockets: &mut dyn Sockets<O::K>, cx: &mut Ctx<O::K>| {
            table(sockets, cx, |t, cx| {
                f(t.sockets.get_mut(&port).unwrap(), cx)
            })
        };
        org.inside(cx, self.perimeter(port).unwrap(), job).unwrap()
    }

    fn send<O: Org>(
        &self,
        org: &O,
        cx: &mut Ctx<O::K>,
        (from, to): (SocketAddr, SocketAddr),
        data: Vec<u8>,
    ) -> Result<(), Error> {
        self.call(org, cx, from.port(), move |socket, cx| {
            if core::mem::take(&mut socket.refused) {
                return Err(Error::Refused);
            }
            let mut whole = [from.port(), to.port(), (HEADER + data.len()) as u16, 0]
                .map(u16::to_be_bytes)
                .concat();
            whole.extend(data);
            let ends = (from.ip(), to.ip());
            let hash = from.port().into();
            datagram::send(cx, NUMBER, ends, hash, &whole).map_err(Error::Unsent)
        })
    }

    fn receive<O: Org>(
        &self,
        org: &O,
        cx: &mut Ctx<O::K>,
        port: u16,
    ) -> Result<Option<(SocketAddr, Vec<u8>)>, Error> {
        self.call(org, cx, port, |socket, _| {
            match core::mem::take(&mut socket.refused) {
                true => Err(Error::Refused),
                false => Ok(socket.received.pop_front()),
            }
        })
    }
}

impl<O: Org> Protocol<O> for Ports {
    fn number(&self) -> u8 {
        NUMBER
    }

    fn input(&self, org: &O, cx: &mut Ctx<O::K>, datagrams: &mut Vec<Datagram>) {
        for d in datagrams.drain(..) {
            let Some((&[a, b, c, e], _)) = d.payload.as_slice().split_first_chunk() else {
                continue;
            };
            let (from, to) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, e]));
            let Some(n) = self.perimeter(to) else {
                datagram::refuse(cx, &d, Unreachable::Port);
                continue;
            };
            org.leave(cx, n, move |sockets, cx| {
                let from = SocketAddr::new(d.ip.src, from);
                let data = d.payload.as_slice()[HEADER..].to_vec();
                cx.pool.put(d.payload);
                table(sockets, cx, |t, _| {
                    let socket = t.sockets.get_mut(&to).unwrap();
                    socket.received.push_back((from, data));
                });
            });
        }
    }

    fn error(&self, org: &O, cx: &mut Ctx<O::K>, ends: &FlowKey, what: Trouble) {
        assert_eq!(what, Trouble::Unreachable(Unreachable::Port));
        let port = ends.local_port;
        if let Some(n) = self.perimeter(port) {
            org.leave(cx, n, move |sockets, cx| {
                table(sockets, cx, |t, _| {
                    t.sockets.get_mut(&port).unwrap().refused = true;
                });
            });
        }
    }
}

/// A host: a stack of organization `O`, with TCP and the protocol.
struct Host<O: Org> {
    stack: Arc<Running<O>>,
    ports: Arc<Ports>,
    ip: IpAddr,
}

impl<O: Org> Clone for Host<O> {
    fn clone(&self) -> Self {
        Host {
            stack: self.stack.clone(),
            ports: self.ports.clone(),
            ip: self.ip,
        }
    }
}

impl<O: Org> Host<O> {
    fn call<R>(&self, f: impl FnOnce(&Ports, &O, &mut Ctx<O::K>) -> R) -> R {
        self.stack.with(|org, cx| f(&self.ports, org, cx)).unwrap()
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }

    /// Serves the devices if that is the application's job, and lets time pass.
    fn pass(&self, p: &Virtual) {
        if self.stack.inline() {
            self.stack.drive(&self.stack.queues()).unwrap();
        }
        p.sleep_until(p.now().plus(20_000));
    }

    fn receive(&self, p: &Virtual, port: u16) -> Result<(SocketAddr, Vec<u8>), Error> {
        let end = p.now().plus(5_000_000_000);
        loop {
            match self.call(|ports, org, cx| ports.receive(org, cx, port)) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => assert!(p.now() < end, "nothing comes to port {port}"),
                Err(e) => return Err(e),
            }
            self.pass(p);
        }
    }

    /// Sends, as soon as the neighbour is known and there is room.
    fn send(&self, p: &Virtual, from: u16, to: SocketAddr, data: &[u8]) -> Result<(), Error> {
        loop {
            let ends = (self.at(from), to);
            match self.call(|ports, org, cx| ports.send(org, cx, ends, data.to_vec())) {
                Err(Error::Unsent(SendError::NoStation | SendError::Full)) => self.pass(p),
                other => return other,
            }
        }
    }
}

const SERVER: u16 = 7;
const NOBODY: u16 = 9;
const CLIENTS: u16 = 3;
const EACH: u16 = 20;

/// Sends back what comes.
fn serve<O: Org>(host: &Host<O>, p: &Virtual) {
    host.call(|ports, org, cx| ports.bind(org, cx, SERVER))
        .unwrap();
    let again = host.call(|ports, org, cx| ports.bind(org, cx, SERVER));
    assert_eq!(again, Err(Error::InUse));
    for _ in 0..CLIENTS * EACH {
        let (from, data) = host.receive(p, SERVER).unwrap();
        host.send(p, SERVER, from, &data).unwrap();
    }
}

/// Asks a port that nobody has, then one that sends everything back: in order, and each once.
fn ask<O: Org>(host: &Host<O>, p: &Virtual, port: u16, server: IpAddr) {
    host.call(|ports, org, cx| ports.bind(org, cx, port))
        .unwrap();
    let nobody = SocketAddr::new(server, NOBODY);
    host.send(p, port, nobody, b"anybody?").unwrap();
    assert_eq!(host.receive(p, port), Err(Error::Refused));
    let server = SocketAddr::new(server, SERVER);
    let word = |n: u16| [port.to_be_bytes(), n.to_be_bytes()].concat();
    for n in 0..EACH {
        host.send(p, port, server, &word(n)).unwrap();
    }
    for n in 0..EACH {
        assert_eq!(host.receive(p, port), Ok((server, word(n))));
    }
    let more = host.call(|ports, org, cx| ports.receive(org, cx, port));
    assert_eq!(more, Ok(None));
}

/// A host on a wire. A stack of one thread belongs to that which makes it.
fn host<O>(p: &Virtual, org: &OrgSpec, end: End<Virtual>, ip: IpAddr) -> Host<O>
where
    O: Org,
    O::K: Kind<P = Virtual>,
{
    let ports = Arc::new(Ports::default());
    let mut options = options(org);
    options.ifaces.push(IfaceSpec {
        device: Box::new(end),
        addrs: vec![Cidr {
            addr: ip,
            prefix: 24,
        }],
        accept: perimeter::Accept::Own,
        dhcp: None,
    });
    let stack = open_with::<O>(p.clone(), options, vec![ports.clone()]);
    Host { stack, ports, ip }
}

fn options(org: &OrgSpec) -> Options {
    Options {
        org: org.clone(),
        config: Config::default(),
        ifaces: Vec::new(),
        routes: Vec::new(),
        inbound: Inbound::Thread,
        profiling: None,
    }
}

/// Two hosts of an organization.
struct Pair;

impl Visit<Virtual> for Pair {
    type Out = ();

    fn visit<O>(self, p: Virtual, options: Options)
    where
        O: Org,
        O::K: Kind<P = Virtual>,
    {
        let wire = WireConfig::default().with_latency_ns(30_000);
        let [ours, theirs] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let ([a, b], _) = pair(&p, wire);
        let (q, org) = (p.clone(), options.org.clone());
        let server = move || serve(&host::<O>(&q, &org, b, theirs), &q);
        let server = p.spawn("server", None, Box::new(server));
        let client = host::<O>(&p, &options.org, a, ours);
        let ports = 100..100 + CLIENTS;
        if options.org.single_threaded() {
            for port in ports {
                ask(&client, &p, port, theirs);
            }
        } else {
            let asking = ports.map(|port| {
                let (host, q) = (client.clone(), p.clone());
                let body = move || ask(&host, &q, port, theirs);
                p.spawn("client", None, Box::new(body))
            });
            for client in asking.collect::<Vec<_>>() {
                client.join().unwrap();
            }
        }
        server.join().unwrap();
    }
}

#[test]
fn datagrams_go_through_every_organization() {
    // Who polls is never done, so that schedules by priority would let nobody else run.
    let schedules = [
        Schedule::Time { jitter_percent: 20 },
        Schedule::Random { switch_one_in: 1 },
        Schedule::Random { switch_one_in: 20 },
    ];
    for org in organizations() {
        for (seed, schedule) in (1..).zip(schedules) {
            let config = VirtualConfig::default()
                .with_cores(3)
                .with_seed(seed)
                .with_schedule(schedule)
                .with_max_steps(20_000_000);
            let options = options(&org);
            let run = Virtual::run(config, move |p| visit(p, options, Pair));
            run.unwrap_or_else(|f| panic!("{org}: {f}"));
        }
    }
}
