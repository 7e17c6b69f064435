//! One lookup: whom to ask what next.

use crate::cache::Known;
use crate::config::LONGEST;
use crate::error::LookupError;
use crate::message::{Answer, Asked, Kind, MAX_ALIASES};
use crate::name::{self, Named};
use crate::order::Families;
use crate::resolver::Resolver;
use perimeter_base::Time;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The most messages to the port of one query that are no answers to it: whoever sends them guesses.
/// After so many its driver calls the query [failed](Lookup::failed), and the next one goes from
/// another port.
pub const MAX_STRAY: u32 = 64;

/// A query to be sent, each from a socket of its own that hears its server alone.
/// See [the crate](crate).
///
/// ```
/// use perimeter_base::Time;
/// use perimeter_dns::{DnsConfig, Families, Lookup, Resolver, Step};
/// use std::{sync::Arc, time::Duration};
///
/// let servers = ["192.0.2.53:53".parse()?];
/// let resolver = Arc::new(Resolver::new(DnsConfig::default(), &servers, [1, 2], 32_768..=60_999));
/// let mut lookup = resolver.lookup("example.org", Families::BOTH, Time::ZERO);
/// let Step::Ask(queries) = lookup.step(Time::ZERO) else { return Err("nothing is known yet".into()) };
/// for query in &queries {
///     // Whoever drives it sends this, by a socket of UDP, and waits for so long.
///     println!("{} octets to {}", query.message.len(), query.server);
///     assert!(!query.stream);
///     assert_eq!(Lookup::left(query, Time::ZERO), Some(Duration::from_secs(2)));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Query {
    /// Its number within the lookup.
    pub number: usize,
    /// Whom to ask.
    pub server: SocketAddr,
    /// Over TCP, with the message's length before it in two octets (RFC 7766, section 8); else in a
    /// datagram.
    pub stream: bool,
    /// The message.
    pub message: Vec<u8>,
    /// How long to wait for its answer.
    pub until: Time,
}

/// What comes next.
/// See [the crate](crate).
///
/// ```
/// use perimeter_base::Time;
/// use perimeter_dns::{DnsConfig, Families, Resolver, Step};
/// use std::sync::Arc;
///
/// let resolver = Arc::new(Resolver::new(DnsConfig::default(), &[], [1, 2], 32_768..=60_999));
/// // Nobody is asked for this one, so the first step is the last.
/// match resolver.lookup("localhost", Families::BOTH, Time::ZERO).step(Time::ZERO) {
///     Step::Ask(queries) => println!("{} queries to be sent", queries.len()),
///     Step::Done(addrs) => assert_eq!(addrs?, ["::1".parse()?, "127.0.0.1".parse::<std::net::IpAddr>()?]),
///     # _ => unreachable!(),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// These queries, one or two, at the same time. Once each has been answered, has failed, or its
    /// time is over, the next step is asked for.
    Ask(Vec<Query>),
    /// The host's addresses, at least one, in the order in which they are to be tried.
    Done(Result<Vec<IpAddr>, LookupError>),
}

/// A lookup under way.
/// See [the crate](crate).
///
/// ```
/// use perimeter_base::Time;
/// use perimeter_dns::{DnsConfig, Families, Lookup, LookupError, Resolver, Step};
/// use std::{io::ErrorKind, sync::Arc};
///
/// let servers = ["192.0.2.53:53".parse()?];
/// let config = DnsConfig::default().with_attempts(1);
/// let resolver = Arc::new(Resolver::new(config, &servers, [1, 2], 32_768..=60_999));
/// let mut lookup: Lookup = resolver.lookup("example.org", Families::BOTH, Time::ZERO);
/// let Step::Ask(queries) = lookup.step(Time::ZERO) else { return Err("nothing is known yet".into()) };
/// // What comes is no answer; the wait for one goes on, for as long as is left.
/// assert!(!lookup.answered(queries[0].number, b"noise", Time::ZERO));
/// assert!(Lookup::left(&queries[0], Time::ZERO).is_some());
/// // Then the sockets tell that there is nobody.
/// for query in &queries {
///     lookup.failed(query.number, ErrorKind::ConnectionRefused);
/// }
/// let end = lookup.step(Time::ZERO);
/// assert!(matches!(end, Step::Done(Err(LookupError::Unreachable { .. }))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Lookup {
    resolver: Arc<Resolver>,
    host: String,
    families: Families,
    servers: Vec<SocketAddr>,
    questions: Vec<Question>,
    /// It was over before it began.
    done: Option<Result<Vec<IpAddr>, LookupError>>,
}

/// The addresses of one family.
#[derive(Debug)]
struct Question {
    kind: Kind,
    /// The name that is asked for now: an alias of the one that was looked up, perhaps.
    name: String,
    aliases: u32,
    /// The shortest TTL of the aliases, seconds.
    ttl: u32,
    edns: bool,
    stream: bool,
    /// How many times a server was asked in vain.
    attempts: u32,
    /// Under way.
    asked: Option<Asked>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// To be asked, and why that was in vain so far.
    Open(Option<LookupError>),
    Known(Known),
}

impl Lookup {
    pub(crate) fn new(
        resolver: Arc<Resolver>,
        host: &str,
        families: Families,
        now: Time,
    ) -> Lookup {
        let mut lookup = Lookup {
            servers: resolver.order(),
            resolver,
            host: host.to_string(),
            families,
            questions: Vec::new(),
            done: None,
        };
        match name::parse(host) {
            Ok(Named::Ask(name)) => lookup.begin(&name, now),
            Ok(Named::Local) => lookup.done = Some(Ok(lookup.loopback())),
            Ok(Named::Nobody) => lookup.done = Some(Err(lookup.no_name())),
            Err(why) => {
                let host = lookup.host.clone();
                lookup.done = Some(Err(LookupError::Invalid { host, why }));
            }
        }
        lookup
    }

    fn no_name(&self) -> LookupError {
        let host = self.host.clone();
        LookupError::NoName { host }
    }

    fn loopback(&self) -> Vec<IpAddr> {
        let v6 = self.families.v6.then_some(Ipv6Addr::LOCALHOST.into());
        let v4 = self.families.v4.then_some(Ipv4Addr::LOCALHOST.into());
        v6.into_iter().chain(v4).collect()
    }

    fn begin(&mut self, name: &str, now: Time) {
        let kinds = [
            self.families.v6.then_some(Kind::Aaaa),
            self.families.v4.then_some(Kind::A),
        ];
        for kind in kinds.into_iter().flatten() {
            let known = self.resolver.known(name, kind, now);
            self.questions.push(Question {
                kind,
                name: name.to_string(),
                aliases: 0,
                ttl: u32::MAX,
                edns: true,
                stream: false,
                attempts: 0,
                asked: None,
                state: known.map_or(State::Open(None), State::Known),
            });
        }
        let open = |q: &Question| matches!(q.state, State::Open(_));
        if self.servers.is_empty() && self.questions.iter().any(open) {
            let host = self.host.clone();
            self.done = Some(Err(LookupError::NoServer { host }));
        }
    }

    /// What comes next. Queries of the step before that have neither been answered nor failed have
    /// waited in vain.
    pub fn step(&mut self, now: Time) -> Step {
        if let Some(done) = self.done.clone() {
            return Step::Done(done);
        }
        for n in 0..self.questions.len() {
            if self.questions[n].asked.is_some() {
                let (host, server) = (self.host.clone(), self.server(n));
                self.in_vain(n, LookupError::TimedOut { host, server });
            }
        }
        let found = |q: &Question| matches!(q.state, State::Known(Known::Found(_)));
        let all = self.resolver.config.attempts * self.servers.len() as u32;
        // Who has an address to go on with is kept waiting for the other family for a second try only.
        let most = match self.questions.iter().any(found) {
            true => all.min(2),
            false => all,
        };
        let queries: Vec<Query> = (0..self.questions.len())
            .filter_map(|n| self.query(n, most, now))
            .collect();
        match queries.is_empty() {
            false => Step::Ask(queries),
            true => {
                let done = self.outcome();
                self.done = Some(done.clone());
                Step::Done(done)
            }
        }
    }

    /// Whom question `n` is put to now.
    fn server(&self, n: usize) -> SocketAddr {
        let at = self.questions[n].attempts as usize % self.servers.len();
        self.servers[at]
    }

    fn query(&mut self, n: usize, most: u32, now: Time) -> Option<Query> {
        let q = &self.questions[n];
        if !matches!(q.state, State::Open(_)) || q.attempts >= most {
            return None;
        }
        let asked = Asked {
            id: self.resolver.id(),
            name: q.name.clone(),
            kind: q.kind,
            edns: q.edns,
            stream: q.stream,
        };
        let round = q.attempts / self.servers.len() as u32;
        let wait = self.resolver.config.timeout * (1 << round.min(10));
        let query = Query {
            number: n,
            server: self.server(n),
            stream: q.stream,
            message: asked.message(),
            until: now + wait.min(LONGEST),
        };
        self.questions[n].asked = Some(asked);
        Some(query)
    }

    /// The server of question `n` did not help: the next one is asked.
    fn in_vain(&mut self, n: usize, why: LookupError) {
        let q = &mut self.questions[n];
        (q.asked, q.stream, q.edns) = (None, false, true);
        q.attempts += 1;
        // What a server has said tells more than another one's silence.
        let said = |e: &LookupError| matches!(e, LookupError::Server { .. });
        if !matches!(&q.state, State::Open(Some(before)) if said(before) && !said(&why)) {
            q.state = State::Open(Some(why));
        }
    }

    /// A message has come from the server of query `number`. Whether that one is over; else it was no
    /// answer to it, and the wait for one goes on.
    pub fn answered(&mut self, number: usize, message: &[u8], now: Time) -> bool {
        let Some(q) = self.questions.get_mut(number) else {
            return true;
        };
        let Some(asked) = &q.asked else { return true };
        let Some(answer) = asked.read(message) else {
            return false;
        };
        let known = match answer {
            Answer::Found(addrs, ttl) => (Known::Found(addrs.into()), Some(ttl)),
            Answer::NoData(ttl) => (Known::NoData, ttl),
            Answer::NoName(ttl) => (Known::NoName, ttl),
            Answer::Cut => {
                (q.asked, q.stream) = (None, true);
                return true;
            }
            Answer::NoEdns => {
                (q.asked, q.edns) = (None, false);
                return true;
            }
            Answer::Alias { to, ttl, aliases } => {
                q.aliases += aliases;
                if q.aliases > MAX_ALIASES {
                    self.bad(number, "gives an alias of an alias without end");
                } else {
                    (q.asked, q.name, q.ttl, q.stream) = (None, to, q.ttl.min(ttl), false);
                }
                return true;
            }
            Answer::Bad(what) => {
                self.bad(number, what);
                return true;
            }
        };
        self.settle(number, known, now);
        true
    }

    fn bad(&mut self, n: usize, what: &'static str) {
        let (host, server) = (self.host.clone(), self.server(n));
        self.in_vain(n, LookupError::Server { host, server, what });
    }

    /// Question `n` is answered, for so many seconds if that was said.
    fn settle(&mut self, n: usize, (known, seconds): (Known, Option<u32>), now: Time) {
        self.resolver.answered(self.server(n));
        let q = &mut self.questions[n];
        if let (Some(seconds), Ok(Named::Ask(name))) = (seconds, name::parse(&self.host)) {
            let seconds = seconds.min(q.ttl);
            self.resolver
                .learn(&name, q.kind, known.clone(), (now, seconds));
        }
        q.asked = None;
        q.state = State::Known(known);
    }

    /// Query `number` can't be sent, or its socket has told of an error of this kind.
    pub fn failed(&mut self, number: usize, error: ErrorKind) {
        if self
            .questions
            .get(number)
            .is_some_and(|q| q.asked.is_some())
        {
            let (host, server) = (self.host.clone(), self.server(number));
            self.in_vain(
                number,
                LookupError::Unreachable {
                    host,
                    server,
                    error,
                },
            );
        }
    }

    /// What all questions come to.
    fn outcome(&self) -> Result<Vec<IpAddr>, LookupError> {
        let mut addrs = Vec::new();
        let (mut failed, mut exists) = (None, false);
        for q in &self.questions {
            match &q.state {
                State::Known(Known::Found(all)) => addrs.extend(all.iter().copied()),
                State::Known(Known::NoData) => exists = true,
                State::Known(Known::NoName) => {}
                State::Open(why) => failed = failed.or(why.clone()),
            }
        }
        if !addrs.is_empty() {
            self.families.sort(&mut addrs);
            return Ok(addrs);
        }
        let host = self.host.clone();
        Err(match (failed, exists) {
            (Some(why), _) => why,
            (None, true) => LookupError::NoAddress { host },
            (None, false) => LookupError::NoName { host },
        })
    }

    /// How long from `now` a query waits yet; `None`: its time is over.
    pub fn left(query: &Query, now: Time) -> Option<Duration> {
        (now < query.until).then(|| query.until.since(now))
    }
}

#[cfg(test)]
mod tests;
