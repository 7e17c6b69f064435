//! Datagrams: each sender of the inside has a session, with a socket of the host's own.
//!
//! A sender keeps its session, and so its port outside, whatever the destinations (RFC 4787,
//! section 4.1: endpoint-independent mapping). What comes back is let in from addresses that it has
//! sent to (section 5: address-dependent filtering). A session ends when nothing has passed for a
//! while.

use crate::UdpSocket as Inside;
use crate::gateway::shared::{DNS, Shared};
use crate::gateway::socks;
use crate::gateway::upstream::Datagrams;
use core::cell::RefCell;
use perimeter::Stack;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// How long a session of DNS alone lasts: an answer that is later is asked for again.
const DNS_TIME: Duration = Duration::from_secs(15);
/// Addresses of destinations that a session remembers; the oldest goes.
const PEERS: usize = 64;
/// Datagrams that wait for a session's proxy.
const EARLY: usize = 16;
/// Datagrams of a session that are let in at one go, before others have their turn.
const TURN: usize = 64;
/// Sessions that are looked at when one has to make room.
const SAMPLE: usize = 16;
/// Queries of DNS that are under way over streams.
const QUERIES: usize = 256;

thread_local! {
    /// For a datagram, and a proxy's header before it.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; 65_536 + socks::UDP_HEADER]);
}

fn held<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // What it protects is whole after each statement.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session's way out.
struct Way {
    socket: UdpSocket,
    /// By a proxy, for as long as this is open.
    proxy: bool,
}

struct Session {
    /// The sender.
    inside: SocketAddr,
    way: OnceLock<Way>,
    /// What came before there was a way.
    early: Mutex<Vec<(SocketAddr, Vec<u8>)>>,
    /// Where it has sent to.
    peers: Mutex<Vec<IpAddr>>,
    /// The resolver that it asked, where another was asked in its place.
    resolver: Mutex<Option<SocketAddr>>,
    /// When something passed last, ms since the gateway's beginning.
    last: AtomicU64,
    only_dns: AtomicBool,
    task: OnceLock<AbortHandle>,
}

impl Session {
    fn knows(&self, ip: IpAddr) -> bool {
        held(&self.peers).contains(&ip)
    }

    fn remember(&self, ip: IpAddr) {
        let mut peers = held(&self.peers);
        if peers.last() == Some(&ip) || peers.contains(&ip) {
            return;
        }
        if peers.len() >= PEERS {
            peers.remove(0);
        }
        peers.push(ip);
    }
}

/// All sessions.
pub(crate) struct Sessions {
    shared: Arc<Shared>,
    socket: Arc<Inside>,
    table: Mutex<HashMap<SocketAddr, Arc<Session>>>,
    began: Instant,
    queries: Arc<Semaphore>,
}

impl Sessions {
    pub(crate) fn new(shared: Arc<Shared>, socket: Inside) -> Arc<Sessions> {
        Arc::new(Sessions {
            shared,
            socket: Arc::new(socket),
            table: Mutex::default(),
            began: Instant::now(),
            queries: Arc::new(Semaphore::new(QUERIES)),
        })
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Takes the inside's datagrams until there can be none any more; yields why.
    pub(crate) async fn serve(self: &Arc<Self>) -> io::Error {
        let mut batch = perimeter::Datagrams::with_capacity(TURN);
        loop {
            if let Err(e) = self.socket.recv_many(&mut batch).await {
                return e;
            }
            for d in batch.iter() {
                let ends = (canonical(d.source), canonical(d.destination));
                self.datagram(ends, d.data);
            }
            batch.clear();
            // Others have their turn, however much comes.
            tokio::task::yield_now().await;
        }
    }

    fn dropped(&self) {
        self.shared.counts.datagrams_dropped.add(1);
    }

    fn datagram(self: &Arc<Self>, (from, to): (SocketAddr, SocketAddr), data: &[u8]) {
        if !self.shared.settings.rules.allow(to) {
            return self.shared.counts.denied.add(1);
        }
        if !self.shared.upstream.carries_datagrams() {
            return match to.port() {
                DNS => self.query((from, to), data),
                _ => self.dropped(),
            };
        }
        let Some(s) = self.session(from) else {
            return self.dropped();
        };
        s.last.store(self.now(), Ordering::Relaxed);
        if to.port() != DNS {
            s.only_dns.store(false, Ordering::Relaxed);
        }
        let real = self.shared.destination(to);
        if real != to {
            *held(&s.resolver) = Some(to);
        }
        s.remember(real.ip());
        match s.way.get() {
            Some(way) => self.send(way, real, data),
            None => {
                let mut early = held(&s.early);
                match early.len() < EARLY && s.way.get().is_none() {
                    true => early.push((real, data.to_vec())),
                    false => self.dropped(),
                }
            }
        }
    }

    fn send(&self, way: &Way, to: SocketAddr, data: &[u8]) {
        let sent = match way.proxy {
            false => way.socket.try_send_to(data, to),
            true => SCRATCH.with_borrow_mut(|buf| {
                buf.clear();
                socks::udp_header(buf, to);
                buf.extend_from_slice(data);
                let sent = way.socket.try_send(buf);
                buf.resize(65_536 + socks::UDP_HEADER, 0);
                sent
            }),
        };
        match sent {
            Ok(_) => self.shared.counts.datagrams_out.add(1),
            // A full socket, no route: lost, as on any way.
            Err(_) => self.dropped(),
        }
    }

    /// The sender's session: it gets one if it has none and one is to be had.
    fn session(self: &Arc<Self>, inside: SocketAddr) -> Option<Arc<Session>> {
        let mut table = held(&self.table);
        if let Some(s) = table.get(&inside) {
            return Some(s.clone());
        }
        if table.len() >= self.shared.settings.sessions {
            // Of some that lie together, the one that has been silent the longest.
            let some = table.values().take(SAMPLE);
            let oldest = some.min_by_key(|s| s.last.load(Ordering::Relaxed))?.inside;
            if let Some(old) = table.remove(&oldest) {
                self.shared.counts.sessions_evicted.add(1);
                if let Some(task) = old.task.get() {
                    task.abort();
                }
            }
        }
        let s = Arc::new(Session {
            inside,
            way: OnceLock::new(),
            early: Mutex::default(),
            peers: Mutex::default(),
            resolver: Mutex::default(),
            last: AtomicU64::new(self.now()),
            only_dns: AtomicBool::new(true),
            task: OnceLock::new(),
        });
        match table.entry(inside) {
            Entry::Occupied(e) => Some(e.get().clone()),
            Entry::Vacant(e) => {
                self.shared.counts.sessions.add(1);
                self.shared.counts.sessions_open.add(1);
                e.insert(s.clone());
                let task = tokio::spawn(self.clone().life(s.clone()));
                let _ = s.task.set(task.abort_handle());
                Some(s)
            }
        }
    }

    /// A session from its beginning to its end.
    async fn life(self: Arc<Self>, s: Arc<Session>) {
        let _open = Open(&self.shared);
        let way = self.shared.upstream.datagrams(s.inside.is_ipv6()).await;
        let (way, proxy) = match way {
            Ok(Datagrams::Direct(socket)) => (
                Way {
                    socket,
                    proxy: false,
                },
                None,
            ),
            Ok(Datagrams::Relay(socket, stream)) => (
                Way {
                    socket,
                    proxy: true,
                },
                Some(stream),
            ),
            Err(_) => {
                let early = core::mem::take(&mut *held(&s.early));
                early.iter().for_each(|_| self.dropped());
                return self.forget(&s);
            }
        };
        // A new socket counts as full until the runtime has looked at it.
        let _ = way.socket.writable().await;
        let early = {
            let mut early = held(&s.early);
            let _ = s.way.set(way);
            core::mem::take(&mut *early)
        };
        let way = s.way.get().expect("it was set");
        for (to, data) in early {
            self.send(way, to, &data);
        }
        self.let_in(&s, way, proxy).await;
        self.forget(&s);
    }

    fn forget(&self, s: &Arc<Session>) {
        let mut table = held(&self.table);
        // A successor may have its place.
        if table.get(&s.inside).is_some_and(|t| Arc::ptr_eq(t, s)) {
            table.remove(&s.inside);
        }
    }

    /// When the session ends, if nothing passes.
    fn deadline(&self, s: &Session) -> Instant {
        let time = match s.only_dns.load(Ordering::Relaxed) {
            true => self.shared.settings.session_time.min(DNS_TIME),
            false => self.shared.settings.session_time,
        };
        self.began + Duration::from_millis(s.last.load(Ordering::Relaxed)) + time
    }

    /// Lets in what comes back, until the session ends.
    async fn let_in(&self, s: &Session, way: &Way, mut proxy: Option<TcpStream>) {
        loop {
            let deadline = self.deadline(s);
            if deadline <= Instant::now() {
                return;
            }
            tokio::select! {
                ready = way.socket.readable() => {
                    if ready.is_err() {
                        return;
                    }
                }
                () = closed(proxy.as_mut()) => return,
                () = sleep_until(deadline) => continue,
            }
            SCRATCH.with_borrow_mut(|buf| self.take(s, way, buf));
            tokio::task::yield_now().await;
        }
    }

    fn take(&self, s: &Session, way: &Way, buf: &mut [u8]) {
        for _ in 0..TURN {
            let (n, from) = match way.socket.try_recv_from(buf) {
                Ok(got) => got,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // An error about something that was sent: the next one is of something else.
                Err(_) => continue,
            };
            let (from, data) = match way.proxy {
                false => (canonical(from), &buf[..n]),
                true => match socks::parse_udp(&buf[..n]) {
                    Some((from, at)) => (canonical(from), &buf[at..n]),
                    None => {
                        self.dropped();
                        continue;
                    }
                },
            };
            if !s.knows(from.ip()) {
                self.dropped();
                continue;
            }
            s.last.store(self.now(), Ordering::Relaxed);
            let mut seen = from;
            if self.shared.settings.dns == Some(from)
                && let Some(asked) = *held(&s.resolver)
            {
                seen = asked;
            }
            self.answer((seen, s.inside), data);
        }
    }

    fn answer(&self, (from, inside): (SocketAddr, SocketAddr), data: &[u8]) {
        match self.socket.try_send_from(from, inside, data) {
            Ok(_) => self.shared.counts.datagrams_in.add(1),
            // Its ring is full: lost, as on any link.
            Err(_) => self.dropped(),
        }
    }

    /// A query of DNS where there is no way for datagrams: over a stream (RFC 7766).
    fn query(self: &Arc<Self>, (from, to): (SocketAddr, SocketAddr), data: &[u8]) {
        let Ok(place) = self.queries.clone().try_acquire_owned() else {
            return self.dropped();
        };
        let (me, query) = (self.clone(), data.to_vec());
        tokio::spawn(async move {
            let real = me.shared.destination(to);
            match timeout(DNS_TIME, me.asked(real, &query)).await {
                Ok(Ok(answer)) => {
                    me.shared.counts.datagrams_out.add(1);
                    me.answer((to, from), &answer);
                }
                _ => me.dropped(),
            }
            drop(place);
        });
    }

    async fn asked(&self, to: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
        let len = u16::try_from(query.len()).map_err(|_| ErrorKind::InvalidInput)?;
        let mut s = self.shared.upstream.connect(to).await?;
        s.write_all(&[&len.to_be_bytes(), query].concat()).await?;
        let mut answer = vec![0; s.read_u16().await?.into()];
        s.read_exact(&mut answer).await?;
        Ok(answer)
    }

    /// Ends all sessions.
    pub(crate) fn end(&self) {
        for (_, s) in held(&self.table).drain() {
            if let Some(task) = s.task.get() {
                task.abort();
            }
        }
    }
}

/// The inside's socket.
pub(crate) fn socket(stack: &Stack) -> io::Result<Inside> {
    let config = perimeter::UdpConfig::default()
        .with_any(true)
        .with_recv_buffer(8 << 20);
    Inside::from_perimeter(stack.bind_udp_with("[::]:0", &config)?)
}

/// Counts a session while it is open, however it ends.
struct Open<'a>(&'a Shared);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.counts.sessions_open.less();
    }
}

/// Ready when the proxy closes its stream, and with it the association.
async fn closed(proxy: Option<&mut TcpStream>) {
    let Some(stream) = proxy else {
        return core::future::pending().await;
    };
    let mut byte = [0];
    // It has nothing to say there.
    while matches!(stream.read(&mut byte).await, Ok(1..)) {}
}

fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
