//! Many connections on the multi-thread runtime, random cancellation, and silence. By default a
//! slice of it; all of it with `PERIMETER_TOKIO=full`, optimised:
//!
//! `PERIMETER_TOKIO=full cargo test -p perimeter-tokio --release --test load`

mod common;

use common::{nets, pattern};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use perimeter::OrgSpec;
use perimeter_tokio::{Net, TcpListener, TcpStream};
use sha2::{Digest, Sha256};
use std::io::Result;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// One test at a time: each has the machine.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn full() -> bool {
    std::env::var_os("PERIMETER_TOKIO").is_some_and(|v| v == "full")
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Those that take calls from any thread.
fn organizations() -> Vec<OrgSpec> {
    let all = OrgSpec::tested().into_iter();
    all.filter(|o| !o.single_threaded()).collect()
}

fn main_ones() -> Vec<OrgSpec> {
    let names = ["connp-l", "squeue", "up:shared"];
    names.iter().map(|n| n.parse().unwrap()).collect()
}

/// Waits for all of `tasks`. The limit is far beyond what they need: it is for wake-ups that are lost.
async fn finished(org: &OrgSpec, mut tasks: JoinSet<()>) {
    let limit = Duration::from_secs(if full() { 1_200 } else { 60 });
    let done = timeout(limit, async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    });
    let done = done.await.is_ok();
    assert!(done, "{org}: {} not done in {limit:?}", tasks.len());
}

async fn echo(listener: TcpListener) -> Result<()> {
    loop {
        let (mut s, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut r, mut w) = s.split();
            let _ = tokio::io::copy(&mut r, &mut w).await;
            let _ = w.shutdown().await;
        });
    }
}

async fn round(s: &mut TcpStream, n: usize) -> Result<()> {
    let data = pattern(n as u64, 100 + n % 400);
    let mut back = vec![0; data.len()];
    s.write_all(&data).await?;
    s.read_exact(&mut back).await?;
    assert!(back == data, "another stream came back");
    Ok(())
}

/// All of `count` connections are open at once, and then each echoes `rounds` times.
fn many(org: &OrgSpec, count: usize, rounds: usize) {
    let runtime = runtime();
    runtime.block_on(async {
        let (server, client) = nets(org, &"connp-l".parse().unwrap());
        let listener = server.listen("10.0.0.1:7").await.unwrap();
        let serving = tokio::spawn(echo(listener));
        let all = Arc::new(Barrier::new(count));
        let mut clients = JoinSet::new();
        for n in 0..count {
            let (net, all) = (client.clone(), all.clone());
            clients.spawn(async move {
                let mut s = net.connect("10.0.0.1:7").await.unwrap();
                round(&mut s, n).await.unwrap();
                all.wait().await;
                for _ in 0..rounds {
                    round(&mut s, n).await.unwrap();
                }
                s.shutdown().await.unwrap();
                assert_eq!(s.read(&mut [0; 8]).await.unwrap(), 0);
            });
        }
        finished(org, clients).await;
        serving.abort();
    });
}

#[test]
fn many_connections() {
    let _alone = alone();
    let count = if full() { 10_000 } else { 500 };
    for org in main_ones() {
        let began = std::time::Instant::now();
        many(&org, count, 3);
        eprintln!("{org}: {count} connections, {:?}", began.elapsed());
    }
}

/// Answers with as many bytes as the path says, which it tells from one another.
async fn answer(
    request: Request<Incoming>,
) -> std::result::Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let path = request.uri().path();
    let numbers = path.strip_prefix("/pattern/").and_then(|p| {
        let (stream, len) = p.split_once('/')?;
        Some((stream.parse().ok()?, len.parse().ok()?))
    });
    let body = numbers.map(|(stream, len)| pattern(stream, len));
    let mut response = Response::new(Full::from(body.clone().unwrap_or_default()));
    if body.is_none() {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    Ok(response)
}

async fn http(listener: TcpListener) -> Result<()> {
    loop {
        let (s, _) = listener.accept().await?;
        tokio::spawn(async move {
            let service = service_fn(answer);
            // How it ends is the client's to see.
            let _ = server::Builder::new()
                .serve_connection(TokioIo::new(s), service)
                .await;
        });
    }
}

/// One request, and its answer compared.
async fn ask(s: &mut client::SendRequest<Full<Bytes>>, stream: u64, len: usize) {
    let request = Request::get(format!("/pattern/{stream}/{len}"))
        .header("host", "10.0.0.1")
        .body(Full::default())
        .unwrap();
    let response = s.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(body == pattern(stream, len), "another answer: {stream}");
}

/// All of `count` connections of HTTP/1.1 are open at once, and then each asks `rounds` times.
fn many_http(org: &OrgSpec, count: usize, rounds: usize) {
    let runtime = runtime();
    runtime.block_on(async {
        let (server, client) = nets(org, &"connp-l".parse().unwrap());
        let listener = server.listen("10.0.0.1:80").await.unwrap();
        let serving = tokio::spawn(http(listener));
        let all = Arc::new(Barrier::new(count));
        let mut clients = JoinSet::new();
        for n in 0..count {
            let (net, all) = (client.clone(), all.clone());
            clients.spawn(async move {
                let s = net.connect("10.0.0.1:80").await.unwrap();
                let (mut s, conn) = client::handshake(TokioIo::new(s)).await.unwrap();
                let conn = tokio::spawn(conn);
                let stream = n as u64;
                ask(&mut s, stream, 100).await;
                all.wait().await;
                for round in 1..=rounds {
                    ask(&mut s, stream + round as u64, n * round % 5_000).await;
                }
                drop(s);
                conn.await.unwrap().unwrap();
            });
        }
        finished(org, clients).await;
        serving.abort();
    });
}

#[test]
fn many_connections_of_http() {
    let _alone = alone();
    let count = if full() { 10_000 } else { 300 };
    for org in main_ones() {
        let began = std::time::Instant::now();
        many_http(&org, count, 3);
        eprintln!("{org}: HTTP, {count} connections, {:?}", began.elapsed());
    }
}

#[test]
fn a_few_connections_under_every_organization() {
    let _alone = alone();
    for org in organizations() {
        many(&org, 24, 8);
    }
}

/// A source of chance that repeats.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// Writes `data`, giving up calls at random moments: what a call has not told was not written.
async fn write_by_fits(s: &mut perimeter_tokio::OwnedWriteHalf, data: &[u8], c: &mut Chance) {
    let mut at = 0;
    while at < data.len() {
        let end = data.len().min(at + 1 + c.below(20_000) as usize);
        let wait = Duration::from_micros(c.below(300));
        tokio::select! {
            biased;
            () = tokio::time::sleep(wait), if c.below(3) == 0 => {}
            n = s.write(&data[at..end]) => at += n.unwrap(),
        }
        if c.below(4) == 0 {
            let _ = timeout(wait, s.writable()).await;
        }
    }
}

/// Reads to the end, giving up calls at random moments.
async fn read_by_fits(s: &mut perimeter_tokio::OwnedReadHalf, c: &mut Chance) -> Sha256 {
    let mut digest = Sha256::new();
    let mut buf = vec![0; 30_000];
    loop {
        let len = 1 + c.below(buf.len() as u64) as usize;
        let wait = Duration::from_micros(c.below(300));
        match c.below(4) {
            0 => drop(timeout(wait, s.readable()).await),
            1 => drop(timeout(wait, s.peek(&mut buf[..len])).await),
            _ => {}
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(wait), if c.below(3) == 0 => {}
            n = s.read(&mut buf[..len]) => match n.unwrap() {
                0 => return digest,
                n => digest.update(&buf[..n]),
            }
        }
    }
}

fn cancelling(org: &OrgSpec, connections: u64, len: usize) {
    let runtime = runtime();
    runtime.block_on(async {
        let (server, client) = nets(org, org);
        let listener = Arc::new(server.listen("10.0.0.1:7").await.unwrap());
        let mut all = JoinSet::new();
        // Each end sends, and the other compares.
        for n in 0..connections {
            let client = client.clone();
            all.spawn(async move {
                let mut c = Chance(n);
                // A connect that is given up leaves nothing behind that would be in the way.
                if c.below(4) == 0 {
                    let wait = Duration::from_micros(c.below(200));
                    drop(timeout(wait, client.connect("10.0.0.1:9")).await);
                }
                let s = client.connect("10.0.0.1:7").await.unwrap();
                let (mut r, mut w) = s.into_split();
                let data = pattern(n, len);
                let mut d = Chance(n + 1000);
                let ((), back) = tokio::join!(
                    async {
                        w.write_all(&n.to_be_bytes()).await.unwrap();
                        write_by_fits(&mut w, &data, &mut c).await;
                        w.shutdown().await.unwrap();
                    },
                    read_by_fits(&mut r, &mut d)
                );
                assert_eq!(back.finalize(), Sha256::digest(&data), "{n}: to the client");
            });
            let listener = listener.clone();
            all.spawn(async move {
                let mut c = Chance(n + 2000);
                let (s, _) = loop {
                    let wait = Duration::from_micros(c.below(500));
                    if let Ok(s) = timeout(wait, listener.accept()).await {
                        break s.unwrap();
                    }
                };
                let (mut r, mut w) = s.into_split();
                let mut name = [0; 8];
                r.read_exact(&mut name).await.unwrap();
                let n = u64::from_be_bytes(name);
                let data = pattern(n, len);
                let mut d = Chance(n + 3000);
                let ((), got) = tokio::join!(
                    async {
                        write_by_fits(&mut w, &data, &mut c).await;
                        w.shutdown().await.unwrap();
                    },
                    read_by_fits(&mut r, &mut d)
                );
                assert_eq!(got.finalize(), Sha256::digest(&data), "{n}: to the server");
            });
        }
        finished(org, all).await;
    });
}

#[test]
fn random_cancellation() {
    let _alone = alone();
    let (connections, len) = if full() {
        (200, 4_000_000)
    } else {
        (6, 100_000)
    };
    for org in organizations() {
        let began = std::time::Instant::now();
        cancelling(&org, connections, len);
        eprintln!("{org}: cancelling, {:?}", began.elapsed());
    }
}

/// How often threads of this process have gone to sleep: by thread, with its name.
fn sleeps() -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("status")).ok()?;
        let field = |name| {
            let line = text.lines().find_map(|l| l.strip_prefix(name));
            line.map(|l| l.trim().to_string())
        };
        let id = path.file_name()?.to_str()?.to_owned();
        let count = field("voluntary_ctxt_switches:")?.parse().ok()?;
        Some((format!("{} {id}", field("Name:")?), count))
    };
    tasks.filter_map(|t| of(t.path())).collect()
}

/// Two stacks with connections between them that are idle from now on.
struct Idle {
    org: OrgSpec,
    nets: (Net, Net),
    _open: Vec<TcpStream>,
}

impl Idle {
    async fn new(org: OrgSpec) -> Idle {
        let nets = nets(&org, &org);
        let listener = nets.0.listen("10.0.0.1:7").await.unwrap();
        tokio::spawn(echo(listener));
        let mut open = Vec::new();
        for n in 0..20 {
            let mut s = nets.1.connect("10.0.0.1:7").await.unwrap();
            round(&mut s, n).await.unwrap();
            open.push(s);
        }
        Idle {
            org,
            nets,
            _open: open,
        }
    }

    fn counts(&self) -> Vec<(String, u64)> {
        let of = |n: &Net| n.stack().stats().counts.into_iter();
        of(&self.nets.0).chain(of(&self.nets.1)).collect()
    }
}

/// A process with idle connections sleeps: less than one wake-up a second, of all threads of two
/// stacks together. Protocol threads sleep until they are wanted.
#[test]
fn silence() {
    let _alone = alone();
    let seconds = if full() { 10 } else { 3 };
    // Side by side, unless there is time.
    let all = organizations();
    let together = if full() { 1 } else { all.len() };
    for orgs in all.chunks(together) {
        let runtime = runtime();
        let idle: Vec<Idle> = runtime.block_on(async {
            let mut idle = Vec::new();
            for org in orgs {
                idle.push(Idle::new(org.clone()).await);
            }
            idle
        });
        // Delayed acknowledgments and the like. Not by the runtime's clock, whose wheel turns.
        std::thread::sleep(Duration::from_secs(4));
        let counted: Vec<_> = idle.iter().map(Idle::counts).collect();
        let before = sleeps();
        std::thread::sleep(Duration::from_secs(seconds));
        let after = sleeps();
        let (mut total, mut protocol) = (0, 0);
        for (name, n) in &after {
            let was = before.iter().find(|(b, _)| b == name).map_or(0, |b| b.1);
            if *n > was {
                eprintln!("{name}: {}", n - was);
            }
            total += n - was;
            if name.starts_with("protocol-") {
                protocol += n - was;
            }
        }
        for (i, before) in idle.iter().zip(&counted) {
            for ((name, n), (_, was)) in i.counts().iter().zip(before) {
                if n != was {
                    eprintln!("{}: {name}: {}", i.org, n - was);
                }
            }
        }
        let names: Vec<String> = orgs.iter().map(ToString::to_string).collect();
        let names = names.join(",");
        eprintln!("{names}: {total} wake-ups in {seconds} s, {protocol} of protocol threads");
        // The sleep of this test is among them.
        let bound = seconds * orgs.len() as u64;
        assert!(total < bound, "{names}: {total} wake-ups in {seconds} s");
        // Not a bound for each: a thread may have waited for a lock.
        assert!(protocol < seconds, "{names}: {protocol} in {seconds} s");
    }
}
