//! What the parts of a gateway share.

use crate::TcpStream;
use crate::gateway::counts::Counts;
use crate::gateway::rules::Rules;
use crate::gateway::upstream::Upstream;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot, watch};

/// The port of DNS.
pub(crate) const DNS: u16 = 53;

/// Settings of a gateway.
///
/// ```
#[doc = include_str!("../examples/gateway.txt")]
/// let mut rules = Rules::default();
/// rules.push(false, "192.0.2.0/24".parse()?);
/// let settings = Settings::default().with_rules(rules).with_connections(100);
/// let gateway = Gateway::new(stack, upstream, settings)?;
/// let counts = gateway.counts();
/// let client = async {
///     let refused = host.connect("192.0.2.7:80").await;
///     assert!(refused.is_err());
/// };
/// gateway.run(client).await?;
/// assert_eq!(counts.denied.get(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Which destinations are allowed. Default: all.
    pub rules: Rules,
    /// Where what goes to port 53 goes instead.
    pub dns: Option<SocketAddr>,
    /// Most connections at once, those that are being opened too: further SYNs are dropped, which
    /// peers send again. Default 10,000.
    pub connections: usize,
    /// How long a peer at the inside has to complete its handshake once the upstream is
    /// connected. Default 30 s.
    pub handshake: Duration,
    /// Most senders of datagrams that have a session: another one ends one of those that have been
    /// silent for long. Default 10,000.
    pub sessions: usize,
    /// How long a session lasts while nothing passes. Default 2 minutes (RFC 4787, section 4.3);
    /// 15 s where there was only DNS.
    pub session_time: Duration,
    /// How long connections may go on once the gateway is to stop. Default 10 s.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            rules: Rules::default(),
            dns: None,
            connections: 10_000,
            handshake: Duration::from_secs(30),
            sessions: 10_000,
            session_time: Duration::from_secs(120),
            drain: Duration::from_secs(10),
        }
    }
}

perimeter_base::setters! {
    Settings {
        with_rules(rules: Rules),
        with_dns(dns: Option<SocketAddr>),
        with_connections(connections: usize),
        with_handshake(handshake: Duration),
        with_sessions(sessions: usize),
        with_session_time(session_time: Duration),
        with_drain(drain: Duration),
    }
}

/// The ends of a connection at the inside: where its peer wanted to, and the peer.
pub(crate) type Ends = (SocketAddr, SocketAddr);

pub(crate) struct Shared {
    pub(crate) upstream: Upstream,
    pub(crate) settings: Settings,
    pub(crate) counts: Arc<Counts>,
    pub(crate) places: Arc<Semaphore>,
    /// Who waits for a connection whose SYN was allowed.
    pub(crate) waiting: Mutex<HashMap<Ends, oneshot::Sender<TcpStream>>>,
    /// Says that the gateway's time is over.
    pub(crate) over: watch::Receiver<bool>,
}

impl Shared {
    pub(crate) fn waiting(
        &self,
    ) -> std::sync::MutexGuard<'_, HashMap<Ends, oneshot::Sender<TcpStream>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where what is meant for `to` goes.
    pub(crate) fn destination(&self, to: SocketAddr) -> SocketAddr {
        match self.settings.dns {
            Some(dns) if to.port() == DNS => dns,
            _ => to,
        }
    }
}
