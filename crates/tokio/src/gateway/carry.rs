//! The gateway: connections of the inside, each relayed to a stream of the upstream.

use crate::gateway::counts::Counts;
use crate::gateway::relay::{Abort, relay};
use crate::gateway::sessions::{self, Sessions};
use crate::gateway::shared::{Settings, Shared};
use crate::gateway::upstream::Upstream;
use crate::{TcpListener, TcpStream, UdpSocket};
use perimeter::{Hold, Keepalive, Listen, Request, Stack};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream as HostStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::timeout;

/// Carries the inside's connections on through the upstream.
///
/// ```
#[doc = include_str!("../examples/gateway.txt")]
/// // What asks anybody for DNS gets to a server of this host's, which sends back what it is told.
/// let settings = Settings::default().with_dns(Some(here));
/// let gateway = Gateway::new(stack, upstream, settings)?;
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let gateway = tokio::spawn(gateway.run(async move { drop(stopped.await) }));
///
/// // A host at the inside.
/// let mut s = host.connect("192.0.2.7:53").await?;
/// s.write_all(b"hello").await?;
/// let mut text = [0; 5];
/// s.read_exact(&mut text).await?;
/// assert_eq!(&text, b"hello");
///
/// drop((s, stop));
/// gateway.await??;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
/// ```
pub struct Gateway {
    incoming: TcpListener,
    datagrams: UdpSocket,
    shared: Arc<Shared>,
    over: watch::Sender<bool>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}

impl Gateway {
    /// For a stack with an interface that takes any destination
    /// ([`Accept::Any`](perimeter::Accept::Any)), which threads of its own serve. From here on it is
    /// asked for connections, which wait for [`Gateway::run`].
    /// See [`Gateway`].
    ///
    /// # Errors
    /// The stack can't be listened on: somebody does already, or it has ended.
    pub fn new(stack: Stack, upstream: Upstream, settings: Settings) -> io::Result<Gateway> {
        let (over, ended) = watch::channel(false);
        let places = settings.connections.clamp(1, Semaphore::MAX_PERMITS);
        let shared = Shared {
            upstream,
            places: Arc::new(Semaphore::new(places)),
            settings: Settings {
                connections: places,
                sessions: settings.sessions.max(1),
                ..settings
            },
            counts: Arc::default(),
            waiting: Mutex::default(),
            over: ended,
        };
        let hold = Hold::default().with_requests(places);
        let backlog = u32::try_from(places).unwrap_or(u32::MAX);
        // Peers that are gone without a word are found in the end.
        let config = stack
            .tcp_config()
            .with_keepalive(Some(Keepalive::default()));
        let listen = Listen::any().hold(hold).backlog(backlog).tcp(config);
        let incoming = TcpListener::from_perimeter(stack.listen_as(&listen)?)?;
        let datagrams = sessions::socket(&stack)?;
        Ok(Gateway {
            incoming,
            datagrams,
            shared: Arc::new(shared),
            over,
        })
    }

    /// What it counts.
    ///
    /// ```
    #[doc = include_str!("../examples/gateway.txt")]
    /// let gateway = Gateway::new(stack, upstream, Settings::default().with_dns(Some(here)))?;
    /// let counts = gateway.counts();
    /// let client = async {
    ///     let connected = host.connect("192.0.2.7:53").await;
    ///     assert!(connected.is_ok());
    /// };
    /// gateway.run(client).await?;
    /// assert_eq!(counts.connections.get(), 1);
    /// for (name, value) in counts.all() {
    ///     println!("{name} {value}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    pub fn counts(&self) -> Arc<Counts> {
        self.shared.counts.clone()
    }

    /// Works until `stop` is ready. Then it takes no new connections; those that there are go on for
    /// [`Settings::drain`] at most, and what is left is reset.
    ///
    /// ```
    #[doc = include_str!("../examples/gateway.txt")]
    /// let gateway = Gateway::new(stack, upstream, Settings::default())?;
    /// // A program would wait for a signal: `tokio::signal::ctrl_c`.
    /// gateway.run(tokio::time::sleep(Duration::from_millis(20))).await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).await? }
    /// ```
    ///
    /// # Errors
    /// The stack has ended.
    pub async fn run(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let connections = self.shared.settings.connections;
        let incoming = self.incoming;
        let sessions = Sessions::new(self.shared.clone(), self.datagrams);
        let ended = tokio::select! {
            e = requests(&self.shared, &incoming) => Some(e),
            e = sessions.serve() => Some(e),
            e = accepts(&self.shared, &incoming) => Some(e),
            () = stop => None,
        };
        // It may have gone with the stack.
        let _ = incoming.get_ref().close();
        sessions.end();
        self.shared.waiting().clear();
        let all = u32::try_from(connections).unwrap_or(u32::MAX);
        let done = self.shared.places.acquire_many(all);
        if ended.is_some() || timeout(self.shared.settings.drain, done).await.is_err() {
            // Whoever is left hears it; if nobody is, nobody needs to.
            let _ = self.over.send(true);
            let done = self.shared.places.acquire_many(all);
            // They only have to let go.
            let _ = timeout(Duration::from_secs(1), done).await;
        }
        ended.map_or(Ok(()), Err)
    }
}

/// Takes requests until there can be none any more, which it yields.
async fn requests(shared: &Arc<Shared>, incoming: &TcpListener) -> io::Error {
    loop {
        let request = match incoming.request().await {
            Ok(r) => r,
            Err(e) => return e,
        };
        shared.counts.connections.add(1);
        let to = shared.destination(request.local_addr());
        if !shared.settings.rules.allow(request.local_addr()) {
            shared.counts.denied.add(1);
            // If it has gone there is nobody to tell.
            let _ = request.reset();
            continue;
        }
        let Ok(place) = shared.places.clone().try_acquire_owned() else {
            shared.counts.too_many.add(1);
            request.ignore();
            continue;
        };
        tokio::spawn(open(shared.clone(), request, to, place));
    }
}

/// Connects the upstream, and the inside if that has succeeded.
async fn open(shared: Arc<Shared>, request: Request, to: SocketAddr, place: OwnedSemaphorePermit) {
    let counts = &shared.counts;
    let up = match shared.upstream.connect(to).await {
        Ok(up) => up,
        // As it is for who asks a host that does not answer.
        Err(e) if e.kind() == ErrorKind::TimedOut => {
            counts.unanswered.add(1);
            return request.ignore();
        }
        Err(_) => {
            counts.refused.add(1);
            // If it has gone there is nobody to tell.
            let _ = request.reset();
            return;
        }
    };
    let ends = (request.local_addr(), request.peer_addr());
    let (tell, mut told) = oneshot::channel();
    // A peer that has come again with the same ends while this waited has the place instead.
    shared.waiting().insert(ends, tell);
    let inside = match request.allow() {
        Ok(true) => timeout(shared.settings.handshake, &mut told).await.ok(),
        _ => None,
    };
    let Some(Ok(inside)) = inside else {
        counts.abandoned.add(1);
        told.close();
        let mut waiting = shared.waiting();
        if waiting.get(&ends).is_some_and(oneshot::Sender::is_closed) {
            waiting.remove(&ends);
        }
        return;
    };
    // A task of its own: this one's state, which was for opening, goes.
    tokio::spawn(carry(shared.clone(), inside, up, place));
}

async fn carry(
    shared: Arc<Shared>,
    inside: TcpStream,
    up: HostStream,
    place: OwnedSemaphorePermit,
) {
    let counts = &shared.counts;
    counts.relayed.add(1);
    counts.relaying.add(1);
    let mut over = shared.over.clone();
    let counted = |[out, back]: [u64; 2]| {
        counts.bytes_out.add(out);
        counts.bytes_in.add(back);
    };
    let done = relay(inside, up, over.wait_for(|over| *over), counted).await;
    counts.relaying.less();
    counts.failed.add(done.failed.into());
    drop(place);
}

/// Hands connections to those who wait for them; yields why there can be none any more.
async fn accepts(shared: &Shared, incoming: &TcpListener) -> io::Error {
    loop {
        let (stream, local, peer) = match incoming.accept_ends().await {
            Ok(accepted) => accepted,
            Err(e) => return e,
        };
        let waiter = shared.waiting().remove(&(local, peer));
        let left = match waiter {
            Some(w) => w.send(stream).err(),
            None => Some(stream),
        };
        if let Some(stream) = left {
            // Its upstream has been given up.
            stream.abort();
        }
    }
}
