//! Whom to ask, what was learnt, and where chance comes from.

use crate::cache::{Cache, Known};
use crate::config::DnsConfig;
use crate::lookup::Lookup;
use crate::message::Kind;
use crate::order::Families;
use core::hash::Hasher;
use core::ops::RangeInclusive;
use perimeter_base::Time;
use siphasher::sip::SipHasher24;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Name servers and what they have answered: what all lookups of a stack share.
///
/// Any thread may use it. Its lock is held for a look at a table, never while anybody waits.
///
/// ```
/// use perimeter_base::Time;
/// use perimeter_dns::{DnsConfig, Families, LookupError, Resolver, Step};
/// use std::sync::Arc;
///
/// let resolver = Arc::new(Resolver::new(DnsConfig::default(), &[], [1, 2], 32_768..=60_999));
/// let mut lookup = resolver.lookup("example.org", Families::BOTH, Time::ZERO);
/// let nobody = lookup.step(Time::ZERO);
/// assert!(matches!(nobody, Step::Done(Err(LookupError::NoServer { .. }))));
/// // A server of DHCP has told of one: lookups from now on ask that.
/// resolver.set_servers(&["192.0.2.53:53".parse()?]);
/// assert_eq!(resolver.servers().len(), 1);
/// assert!((32_768..=60_999).contains(&resolver.port()), "where the next query comes from");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Resolver {
    pub(crate) config: DnsConfig,
    secret: [u64; 2],
    /// How often chance was asked.
    drawn: AtomicU64,
    ports: RangeInclusive<u16>,
    state: Mutex<State>,
}

struct State {
    servers: Vec<SocketAddr>,
    /// Which of them answered last: it is asked first.
    good: usize,
    cache: Cache,
}

impl Resolver {
    /// One that asks `servers`, in this order. `secret` is what nobody can guess, for the
    /// identifications of queries and their ports, which are of `ports`.
    pub fn new(
        config: DnsConfig,
        servers: &[SocketAddr],
        secret: [u64; 2],
        ports: RangeInclusive<u16>,
    ) -> Resolver {
        let cache = Cache::new(config.cache_entries, config.cache_bytes);
        Resolver {
            config,
            secret,
            drawn: AtomicU64::new(0),
            ports,
            state: Mutex::new(State {
                servers: servers.to_vec(),
                good: 0,
                cache,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name servers, in the order in which they were given.
    pub fn servers(&self) -> Vec<SocketAddr> {
        self.state().servers.clone()
    }

    /// Asks these from now on, and forgets what others have said if they are not the same.
    pub fn set_servers(&self, servers: &[SocketAddr]) {
        let mut state = self.state();
        if state.servers != servers {
            state.servers = servers.to_vec();
            state.good = 0;
            state.cache.clear();
        }
    }

    /// Starts to look `host` up, which is a name and no address, in the families given.
    /// See [the crate](crate).
    pub fn lookup(self: &Arc<Self>, host: &str, families: Families, now: Time) -> Lookup {
        Lookup::new(self.clone(), host, families, now)
    }

    /// A local port for a query, drawn at random (RFC 5452, section 9.2). Where it is taken, draw
    /// another.
    pub fn port(&self) -> u16 {
        let (first, last) = (*self.ports.start(), *self.ports.end());
        let count = u64::from(last.saturating_sub(first)) + 1;
        first + (self.draw() % count) as u16
    }

    /// The identification of a query.
    pub(crate) fn id(&self) -> u16 {
        self.draw() as u16
    }

    /// 64 bits that nobody can guess from those before.
    fn draw(&self) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.secret[0], self.secret[1]);
        hasher.write_u64(self.drawn.fetch_add(1, Ordering::Relaxed));
        hasher.finish()
    }

    /// The servers in the order in which one lookup asks them: the one first that answered last.
    pub(crate) fn order(&self) -> Vec<SocketAddr> {
        let state = self.state();
        let mut all = state.servers.clone();
        if state.good < all.len() {
            all.rotate_left(state.good);
        }
        all
    }

    /// `server` has answered.
    pub(crate) fn answered(&self, server: SocketAddr) {
        let mut state = self.state();
        if let Some(n) = state.servers.iter().position(|s| *s == server) {
            state.good = n;
        }
    }

    /// What is known of a name.
    pub(crate) fn known(&self, name: &str, kind: Kind, now: Time) -> Option<Known> {
        self.state().cache.get(name, kind, now)
    }

    /// Remembers what is known of a name for `seconds`, or for as long as settings allow.
    pub(crate) fn learn(&self, name: &str, kind: Kind, known: Known, (now, seconds): (Time, u32)) {
        let most = match known {
            Known::Found(_) => self.config.max_ttl,
            _ => self.config.max_negative_ttl,
        };
        let until = now + Duration::from_secs(seconds.into()).min(most);
        self.state().cache.insert(name, kind, known, (now, until));
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver")
            .field("config", &self.config)
            .field("servers", &self.servers())
            .finish_non_exhaustive()
    }
}
