//! A DHCP client (RFC 2131) as a state machine: it is told the time, what servers say and who has its
//! address, and says what is to be sent and which address is the interface's.

use crate::net::Cidr;
use core::net::{IpAddr, Ipv4Addr};
use perimeter_base::Time;
use perimeter_base::rng::SplitMix64;
use perimeter_wire::MacAddr;
use perimeter_wire::dhcp::{DhcpKind, DhcpQuery, DhcpReply};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
/// Hosts that start together do not ask together, ns.
const SPREAD: u64 = 100_000_000;
/// The first wait for an answer, and the longest, s; each is up to a second shorter or longer (RFC
/// 2131, section 4.1).
const FIRST_WAIT: u64 = 4;
const LONGEST_WAIT: u64 = 64;
/// Requests for an offer before servers are looked for anew.
const REQUESTS: u32 = 4;
/// Probes for an address by ARP, the time between them, and the silence behind the last one that
/// says that it is free (RFC 5227, section 1.1), ns.
const PROBES: u32 = 3;
const PROBE_EVERY: u64 = SECOND;
const PROBE_LAST: u64 = 2 * SECOND;
/// How long to wait after somebody else was found to have the address (RFC 2131, section 3.1, 5), and
/// after a server has said no, ns.
const AFTER_CONFLICT: u64 = 10 * SECOND;
const AFTER_NAK: u64 = SECOND;
/// A lease is not asked for again more often than that (RFC 2131, section 4.4.5), ns.
const RENEW_EVERY: u64 = 60 * SECOND;
/// The MTU that every link takes (RFC 2132, section 5.1).
const LEAST_MTU: u16 = 68;

/// How an interface gets its IPv4 address from a server (RFC 2131).
///
/// ```
/// use perimeter_stack::DhcpConfig;
///
/// let config = DhcpConfig::default().with_hostname("gate").with_release(true);
/// assert!(config.probe);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DhcpConfig {
    /// How long building the stack waits for an address; `None`: it does not, and the address comes
    /// when it comes. Default 30 s.
    pub wait: Option<Duration>,
    /// The host's name, which servers are told; empty: none. Up to 63 octets. Default none.
    pub hostname: String,
    /// What servers know this client by (RFC 2132, section 9.14), up to 64 octets; empty: its station.
    /// Default empty.
    pub client_id: Vec<u8>,
    /// Whether stations of the link are asked whether one of them has the address, before it is used
    /// (RFC 5227), which takes some four seconds. Default yes.
    pub probe: bool,
    /// Whether the address is given back when the stack ends by `Stack::stop` or `Stack::shutdown`.
    /// Else the server keeps it for this client until the lease is over. Default no.
    pub release: bool,
}

impl Default for DhcpConfig {
    fn default() -> DhcpConfig {
        DhcpConfig {
            wait: Some(Duration::from_secs(30)),
            hostname: String::new(),
            client_id: Vec::new(),
            probe: true,
            release: false,
        }
    }
}

perimeter_base::setters! {
    DhcpConfig {
        with_wait(wait: Option<Duration>),
        with_hostname(hostname: impl Into<String>),
        with_client_id(client_id: impl Into<Vec<u8>>),
        with_probe(probe: bool),
        with_release(release: bool),
    }
}

/// An address that an interface was given for a time, and what came along.
///
/// ```
/// use perimeter_stack::Lease;
///
/// /// What a stack was told, in a line.
/// fn told(lease: &Lease) -> String {
///     let gateway = lease.routers.first().map_or("none".into(), |r| r.to_string());
///     format!("{} from {}, gateway {gateway}", lease.addr, lease.server)
/// }
/// # let _ = told;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The number of the interface.
    pub iface: u16,
    /// The address, and the prefix of its network.
    pub addr: Cidr,
    /// Who gave it.
    pub server: Ipv4Addr,
    /// Gateways, the preferred one first; at most four.
    pub routers: Vec<Ipv4Addr>,
    /// Name servers, likewise.
    pub name_servers: Vec<Ipv4Addr>,
    /// The link's MTU, octets, if it was said.
    pub mtu: Option<u16>,
    /// When it is over, on the stack's clock; [`Time::NEVER`]: never.
    pub until: Time,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Do {
    /// A message to all servers, or from our address to one.
    Send(Message),
    /// ARP: whether somebody has it (RFC 5227, section 2.1.1).
    Probe(Ipv4Addr),
    /// The address is the interface's, with what came along.
    Take(Lease),
    /// It is no more.
    Drop(Lease),
}

/// A message of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub kind: DhcpKind,
    pub xid: u32,
    pub secs: u16,
    /// Our address, where it is ours.
    pub addr: Option<Ipv4Addr>,
    /// Whom it goes to; `None`: all.
    pub to: Option<Ipv4Addr>,
    pub requested: Option<Ipv4Addr>,
    pub server: Option<Ipv4Addr>,
}

impl Message {
    /// As it is written.
    pub fn query<'a>(&self, config: &'a DhcpConfig, mac: MacAddr) -> DhcpQuery<'a> {
        DhcpQuery {
            kind: self.kind,
            xid: self.xid,
            secs: self.secs,
            broadcast: self.addr.is_none() && self.kind != DhcpKind::Decline,
            addr: self.addr.unwrap_or(Ipv4Addr::UNSPECIFIED),
            mac,
            requested: self.requested,
            server: self.server,
            client_id: &config.client_id,
            hostname: &config.hostname,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Looks for servers.
    Init,
    /// Asks for what it was offered.
    Requesting(Terms),
    /// Looks whether somebody else has what it was given.
    Probing(Terms),
    /// Has an address.
    Bound(Terms),
}

/// What a server says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Terms {
    lease: Lease,
    renew: Time,
    rebind: Time,
}

/// The client of one interface.
pub(crate) struct Client {
    pub config: DhcpConfig,
    pub iface: u16,
    pub mac: MacAddr,
    random: SplitMix64,
    state: State,
    xid: u32,
    /// Since when it looks for an address, or asks for more time.
    since: Time,
    /// Messages or probes sent in this state.
    sent: u32,
    /// When something is to be done.
    at: Time,
    /// To be done at once: what was decided when no frame could be sent.
    pending: Vec<Do>,
}

impl Client {
    /// One that begins at once, or nearly.
    pub fn new(config: DhcpConfig, (iface, mac): (u16, MacAddr), seed: u64, now: Time) -> Client {
        let mut random = SplitMix64::new(seed);
        let at = now.plus(random.below(SPREAD));
        Client {
            config,
            iface,
            mac,
            xid: random.next() as u32,
            random,
            state: State::Init,
            since: at,
            sent: 0,
            at,
            pending: Vec::new(),
        }
    }

    /// When something is to be done.
    pub fn due(&self) -> Time {
        match self.pending.is_empty() {
            true => self.at,
            false => Time::ZERO,
        }
    }

    /// What it holds.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Bound(t) => Some(&t.lease),
            _ => None,
        }
    }

    /// The address that it looks at whether somebody has it.
    pub fn probed(&self) -> Option<Ipv4Addr> {
        match &self.state {
            State::Probing(t) => Some(v4(&t.lease)),
            _ => None,
        }
    }

    /// Begins anew, some time.
    fn restart(&mut self, at: Time) {
        self.state = State::Init;
        (self.since, self.sent, self.at) = (at, 0, at);
        self.xid = self.random.next() as u32;
    }

    /// How long to wait for an answer to the message that was sent last.
    fn wait(&mut self) -> u64 {
        let doubled = FIRST_WAIT << self.sent.saturating_sub(1).min(4);
        let jitter = self.random.below(2 * SECOND);
        doubled.min(LONGEST_WAIT) * SECOND - SECOND + jitter
    }

    fn message(&self, kind: DhcpKind, now: Time) -> Message {
        let secs = now.since(self.since).as_secs();
        Message {
            kind,
            xid: self.xid,
            secs: secs.min(u16::MAX.into()) as u16,
            addr: None,
            to: None,
            requested: None,
            server: None,
        }
    }

    /// Does what is due.
    pub fn run(&mut self, now: Time, out: &mut Vec<Do>) {
        out.append(&mut self.pending);
        if self.at > now {
            return;
        }
        match self.state.clone() {
            State::Init => {
                out.push(Do::Send(self.message(DhcpKind::Discover, now)));
                self.sent += 1;
                self.at = now.plus(self.wait());
            }
            State::Requesting(_) if self.sent >= REQUESTS => self.restart(now),
            State::Requesting(t) => self.request(&t, now, out),
            State::Probing(t) => self.probe(t, now, out),
            State::Bound(t) if t.lease.until <= now => {
                out.push(Do::Drop(t.lease));
                self.restart(now);
            }
            State::Bound(t) => self.renew(&t, now, out),
        }
    }

    fn request(&mut self, t: &Terms, now: Time, out: &mut Vec<Do>) {
        out.push(Do::Send(Message {
            requested: Some(v4(&t.lease)),
            server: Some(t.lease.server),
            ..self.message(DhcpKind::Request, now)
        }));
        self.sent += 1;
        self.at = now.plus(self.wait());
    }

    fn probe(&mut self, t: Terms, now: Time, out: &mut Vec<Do>) {
        if self.config.probe && self.sent < PROBES {
            out.push(Do::Probe(v4(&t.lease)));
            self.sent += 1;
            self.at = now.plus(match self.sent {
                PROBES => PROBE_LAST,
                _ => PROBE_EVERY,
            });
            return;
        }
        out.push(Do::Take(t.lease.clone()));
        self.bound(t);
    }

    fn bound(&mut self, t: Terms) {
        (self.at, self.sent) = (t.renew, 0);
        self.state = State::Bound(t);
    }

    /// Asks for more time: the server at first, all of them later.
    fn renew(&mut self, t: &Terms, now: Time, out: &mut Vec<Do>) {
        if self.sent == 0 {
            self.since = now;
            self.xid = self.random.next() as u32;
        }
        let alone = now < t.rebind;
        out.push(Do::Send(Message {
            addr: Some(v4(&t.lease)),
            to: alone.then_some(t.lease.server),
            ..self.message(DhcpKind::Request, now)
        }));
        self.sent += 1;
        let end = if alone { t.rebind } else { t.lease.until };
        let half = end.nanos_since(now) / 2;
        self.at = now.plus(half.max(RENEW_EVERY)).min(end);
    }

    /// The message to one server could not be sent yet, as its station is asked for.
    pub fn unsent(&mut self, now: Time) {
        self.at = self.at.min(now.plus(SECOND));
    }

    /// A server has said something.
    pub fn received(&mut self, reply: &DhcpReply, now: Time) {
        if reply.xid != self.xid || reply.mac != self.mac {
            return;
        }
        let by = |t: &Terms| reply.server == Some(t.lease.server);
        match (self.state.clone(), reply.kind) {
            (State::Init, DhcpKind::Offer) if self.sent > 0 => {
                if let Some(t) = self.terms(reply, None, now) {
                    self.state = State::Requesting(t);
                    (self.sent, self.at) = (0, now);
                }
            }
            (State::Requesting(offer), DhcpKind::Ack) => {
                let Some(t) = self.terms(reply, Some(&offer), now) else {
                    return;
                };
                if by(&offer) && t.lease.addr.addr == offer.lease.addr.addr {
                    self.state = State::Probing(t);
                    (self.sent, self.at) = (0, now);
                }
            }
            (State::Requesting(t), DhcpKind::Nak) if by(&t) => self.restart(now.plus(AFTER_NAK)),
            (State::Bound(had), DhcpKind::Ack) if self.sent > 0 => self.renewed(&had, reply, now),
            (State::Bound(t), DhcpKind::Nak) if self.sent > 0 && (now >= t.rebind || by(&t)) => {
                self.pending.push(Do::Drop(t.lease));
                self.restart(now.plus(AFTER_NAK));
            }
            _ => {}
        }
    }

    fn renewed(&mut self, had: &Terms, reply: &DhcpReply, now: Time) {
        let Some(t) = self.terms(reply, Some(had), now) else {
            return;
        };
        let by_another = t.lease.server != had.lease.server;
        if t.lease.addr.addr != had.lease.addr.addr || by_another && now < had.rebind {
            return;
        }
        let same = |l: &Lease| Lease {
            until: Time::NEVER,
            server: Ipv4Addr::UNSPECIFIED,
            name_servers: Vec::new(),
            ..l.clone()
        };
        if same(&t.lease) != same(&had.lease) {
            self.pending.push(Do::Drop(had.lease.clone()));
            self.pending.push(Do::Take(t.lease.clone()));
        }
        self.bound(t);
    }

    /// What a server offers or gives, if it makes sense; what it does not say is as `before`.
    fn terms(&self, reply: &DhcpReply, before: Option<&Terms>, now: Time) -> Option<Terms> {
        let server = reply.server.or(before.map(|t| t.lease.server))?;
        let seconds = u64::from(reply.lease.filter(|s| *s > 0)?);
        let classful = match reply.addr.octets()[0] {
            ..128 => 8,
            128..192 => 16,
            _ => 24,
        };
        let prefix = reply.prefix.filter(|p| *p > 0).unwrap_or(classful);
        let addr = Cidr {
            addr: IpAddr::V4(reply.addr),
            prefix,
        };
        let broadcast = addr.broadcast() == Some(addr.addr);
        let network = prefix < 31 && u32::from(reply.addr) & !super::mask(prefix) == 0;
        if !super::is_host(reply.addr) || broadcast || network || !super::is_host(server) {
            return None;
        }
        let at = |s: u64| match reply.lease {
            Some(u32::MAX) => Time::NEVER,
            _ => now.plus(s.saturating_mul(SECOND)),
        };
        let rebind = reply.rebinding.map(u64::from);
        let rebind = rebind
            .filter(|s| *s < seconds)
            .unwrap_or(seconds / 8 * 7 + seconds % 8 * 7 / 8);
        let renew = reply.renewal.map(u64::from);
        let renew = renew
            .filter(|s| *s < rebind)
            .unwrap_or((seconds / 2).min(rebind));
        let on_link = |ip: &Ipv4Addr| {
            super::is_host(*ip) && addr.contains(IpAddr::V4(*ip)) && *ip != reply.addr
        };
        let lease = Lease {
            iface: self.iface,
            addr,
            server,
            routers: reply.routers.iter().filter(on_link).collect(),
            name_servers: reply
                .name_servers
                .iter()
                .filter(|ip| super::is_host(*ip))
                .collect(),
            mtu: reply.mtu.filter(|mtu| *mtu >= LEAST_MTU),
            until: at(seconds),
        };
        Some(Terms {
            lease,
            renew: at(renew),
            rebind: at(rebind),
        })
    }

    /// Somebody else has the address that is being looked at, or wants it too: it is declined.
    pub fn conflict(&mut self, now: Time) {
        let State::Probing(t) = self.state.clone() else {
            return;
        };
        self.pending.push(Do::Send(Message {
            requested: Some(v4(&t.lease)),
            server: Some(t.lease.server),
            ..self.message(DhcpKind::Decline, now)
        }));
        self.restart(now.plus(AFTER_CONFLICT));
    }

    /// The stack ends: what is to be sent before, if the address is to be given back.
    pub fn release(&mut self, now: Time, out: &mut Vec<Do>) {
        if let (true, State::Bound(t)) = (self.config.release, self.state.clone()) {
            self.xid = self.random.next() as u32;
            out.push(Do::Send(Message {
                addr: Some(v4(&t.lease)),
                to: Some(t.lease.server),
                server: Some(t.lease.server),
                ..self.message(DhcpKind::Release, now)
            }));
            out.push(Do::Drop(t.lease));
            self.restart(Time::NEVER);
        }
    }
}

fn v4(lease: &Lease) -> Ipv4Addr {
    match lease.addr.addr {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}

#[cfg(test)]
mod tests;
