//! Two namespaces, a TUN device and a veth pair, and the gateway between them.

use super::servers;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;
use perimeter::link::Medium;
use perimeter::link::tap::{Tap, TapConfig, host};
use perimeter::{Accept, Config, Offload, Stack};
use perimeter_interop::namespace;
use perimeter_interop::program::{Program, python};
use perimeter_interop::veths::ip;
use perimeter_tokio::gateway::{Counts, Gateway, Settings, SocketOptions, Target, Upstream};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Where the servers are: the inside gets there by the gateway only.
pub const BEHIND4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
pub const BEHIND6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));
/// Routed to the gateway, and from there nowhere.
pub const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 88, 0, 1));
/// The servers' as well.
pub const DENIED: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
const TUN: &str = "d-tun0";
const NEAR: &str = "d-near";
const FAR: &str = "d-far";

/// Whether the long version is wanted.
pub fn full() -> bool {
    std::env::var("PERIMETER_INTEROP").is_ok_and(|v| v.split(',').any(|w| w == "full"))
}

/// What a test sees.
pub struct World {
    counts: Arc<Counts>,
    heard: Mutex<Receiver<&'static str>>,
    /// The thread that keeps the servers' namespace.
    keeper: Pid,
    stop: Arc<Notify>,
}

impl World {
    /// A counter.
    pub fn count(&self, name: &str) -> u64 {
        let all = self.counts.all();
        let found = all.iter().find(|(n, _)| *n == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// What a waiting server has heard.
    pub fn heard(&self) -> &'static str {
        let heard = self.heard.lock().unwrap();
        heard
            .recv_timeout(Duration::from_secs(10))
            .expect("somebody waits")
    }

    /// Waits until `done`.
    pub fn until(&self, what: &str, done: impl Fn(&World) -> bool) {
        let end = Instant::now() + Duration::from_secs(40);
        while !done(self) {
            assert!(
                Instant::now() < end,
                "{what} did not come: {:?}",
                self.counts
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until no connection is relayed any more.
    pub fn settled(&self) {
        self.until("the end of all connections", |w| w.count("relaying") == 0);
    }

    /// Starts a program beside the servers.
    pub fn outside(&self, name: &str, args: &[&str]) -> Program {
        let space = format!("/proc/self/task/{}/ns/net", self.keeper);
        let space = std::fs::File::open(space).expect("the servers' namespace");
        thread::scope(|threads| {
            let start = || {
                setns(space, CloneFlags::CLONE_NEWNET).expect("entered");
                Program::start(name, args, Duration::from_secs(120))
            };
            threads.spawn(start).join().expect("started")
        })
    }

    /// Has the gateway end.
    pub fn stop(&self) {
        self.stop.notify_one();
    }
}

/// Runs `ip` on a line of words.
fn run(line: &str) {
    ip(&line.split_whitespace().collect::<Vec<_>>());
}

/// The namespace of the servers, on a thread of its own that keeps it; ready when both families
/// are. With the thread.
fn outside() -> (Receiver<&'static str>, Pid) {
    let (tell, heard) = channel();
    let (ready, made) = channel();
    let (go, moved) = channel::<()>();
    thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
        ready.send(nix::unistd::gettid()).unwrap();
        moved.recv().unwrap();
        for line in [
            "link set lo up",
            &format!("addr add 10.55.0.2/24 dev {FAR}"),
            &format!("-6 addr add fd55::2/64 dev {FAR} nodad"),
            &format!("link set {FAR} up"),
            &format!("addr add {BEHIND4}/32 dev lo"),
            &format!("addr add {DENIED}/32 dev lo"),
            &format!("-6 addr add {BEHIND6}/128 dev lo nodad"),
            // Silence, for those who ask there: looked at before what is local.
            "rule add pref 5 lookup local",
            "rule del pref 0",
            &format!(
                "rule add pref 1 ipproto tcp dport {} blackhole",
                servers::GONE
            ),
            "-6 rule add pref 5 lookup local",
            "-6 rule del pref 0",
            &format!(
                "-6 rule add pref 1 ipproto tcp dport {} blackhole",
                servers::GONE
            ),
        ] {
            run(line);
        }
        for at in [BEHIND4, BEHIND6] {
            servers::start(at, &tell);
        }
        ready.send(nix::unistd::gettid()).unwrap();
        // The namespace goes with its last thread.
        let _ = moved.recv();
    });
    let tid = made.recv().unwrap();
    run(&format!("link add {NEAR} type veth peer name {FAR}"));
    run(&format!("link set {FAR} netns {tid}"));
    for line in [
        &format!("addr add 10.55.0.1/24 dev {NEAR}"),
        &format!("-6 addr add fd55::1/64 dev {NEAR} nodad"),
        &format!("link set {NEAR} up"),
    ] {
        run(line);
    }
    go.send(()).unwrap();
    made.recv().unwrap();
    std::mem::forget(go);
    (heard, tid)
}

/// How often threads of the stack and of the runtime have waited, in the calling thread's
/// namespace.
pub fn waits() -> u64 {
    let here = std::fs::read_link("/proc/thread-self/ns/net").expect("a namespace");
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let each = tasks.flatten().filter_map(|task| {
        // Threads end meanwhile.
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).ok();
        let net = std::fs::read_link(task.path().join("ns/net")).ok()?;
        let name = read("comm")?;
        let ours = name.starts_with("inbound") || name.starts_with("tokio");
        let status = read("status")?;
        let line = status.lines().find(|l| l.starts_with("voluntary_ctxt"))?;
        let n: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        (ours && net == here).then_some(n)
    });
    each.sum()
}

/// Runs `test` with a gateway with these settings, if that is possible here.
pub fn world(settings: Settings, test: impl FnOnce(&World) + Send) {
    world_of(settings, 1, test);
}

/// As [`world`], with a device of so many queues.
pub fn world_of(settings: Settings, queues: usize, test: impl FnOnce(&World) + Send) {
    if let Some(why) = namespace::obstacle() {
        println!("skipped: {why}");
        return;
    }
    namespace::within(|| {
        allow_files(16_384);
        let (heard, keeper) = outside();
        let tun = Tap::open(
            &TapConfig::new(TUN)
                .with_medium(Medium::Ip)
                .with_large(true)
                .with_queues(queues),
        );
        let tun = tun.expect("a TUN device");
        host::set_up(TUN, true).expect("up");
        for line in [
            &format!("addr add 198.18.0.1/15 dev {TUN}"),
            &format!("-6 addr add fd66::1/64 dev {TUN} nodad"),
            // To the inside's programs the TUN device is nearer; what is bound to the veth pair
            // goes by that.
            &format!("route add 10.77.0.0/16 dev {TUN}"),
            &format!("route add 10.88.0.0/16 dev {TUN}"),
            &format!("-6 route add fd77::/64 dev {TUN}"),
            &format!("route add 10.77.0.0/16 via 10.55.0.2 dev {NEAR} metric 900"),
            &format!("-6 route add fd77::/64 via fd55::2 dev {NEAR} metric 2000"),
        ] {
            run(line);
        }
        let config = Config::default()
            .with_offload(Offload::Device)
            .with_service(Duration::from_secs(5));
        let b = Stack::builder()
            .organization("up:shared")
            .unwrap()
            .config(config);
        let b = b.interface_accepting(tun, &[], Accept::Any { echo: true });
        let stack = b.unwrap().build().unwrap();
        // Its threads are made here, and so in this namespace.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let stop = Arc::new(Notify::new());
        let (gateway, counts) = runtime.block_on(async {
            let options = SocketOptions::default().with_device(Some(NEAR.to_owned()));
            let limit = Duration::from_secs(2);
            let upstream = Upstream::new(Target::Direct, options, limit).await.unwrap();
            let gateway = Gateway::new(stack, upstream, settings).unwrap();
            let counts = gateway.counts();
            let stopped = stop.clone();
            let gateway = tokio::spawn(gateway.run(async move { stopped.notified().await }));
            (gateway, counts)
        });
        let w = World {
            counts,
            heard: Mutex::new(heard),
            keeper,
            stop,
        };
        test(&w);
        w.stop();
        let ended = runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(30), gateway).await });
        ended
            .expect("it ends")
            .expect("no panic")
            .expect("in order");
    });
}

/// Lets this process open so many files, if it may.
pub fn allow_files(n: u64) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if soft < n {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, n.min(hard), hard);
    }
}

/// A program at the inside with `n` sockets, each of which sends `to` a number of its own and has
/// that back; then it says so, and lives on with all of them. A process of its own, as each has
/// another socket at the outside, which counts against the same limit of open files.
pub fn senders(n: u64, to: SocketAddr) -> Program {
    let script = "
import socket, struct, sys, time
n, host, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
all = []
for i in range(n):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(3)
    s.sendto(struct.pack('!I', i), (host, port))
    all.append(s)
    if i % 64 == 63: time.sleep(0.002)
for i, s in enumerate(all):
    for again in range(10):
        try:
            assert s.recv(100) == struct.pack('!I', i), i
            break
        except TimeoutError:
            # The device's queue may overflow on a busy machine.
            s.sendto(struct.pack('!I', i), (host, port))
    else:
        raise TimeoutError(i)
print('answered', flush=True)
time.sleep(600)
";
    let (host, port) = (to.ip().to_string(), to.port().to_string());
    let args = ["-I", "-S", "-c", script, &n.to_string(), &host, &port];
    Program::start(python(), args, Duration::from_secs(60))
}

/// Closes a connection by a reset.
pub fn reset(s: TcpStream) {
    let s = socket2::Socket::from(s);
    s.set_linger(Some(Duration::ZERO)).unwrap();
}

/// Whether an echo request is answered.
pub fn ping(to: IpAddr) -> bool {
    let script = "
import socket, struct, sys
to = sys.argv[1]; v6 = ':' in to
s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_RAW,
                  socket.IPPROTO_ICMPV6 if v6 else socket.IPPROTO_ICMP)
s.settimeout(5)
msg = bytearray(struct.pack('!BBHHH', 128 if v6 else 8, 0, 0, 77, 1) + b'hello')
if not v6:
    padded = bytes(msg) + b'\\0' * (len(msg) % 2)
    n = sum(struct.unpack('!%dH' % (len(padded) // 2), padded))
    n = (n >> 16) + (n & 0xffff); n += n >> 16
    msg[2:4] = struct.pack('!H', ~n & 0xffff)
s.sendto(bytes(msg), (to, 0))
while True:
    data, (peer, *_) = s.recvfrom(2000)
    if not v6: data = data[20:]
    if data[0] == (129 if v6 else 0) and data[-5:] == b'hello' and peer == to: break
print('answered')
";
    let args = ["-I", "-S", "-c", script, &to.to_string()];
    let ping = Program::start(python(), args, Duration::from_secs(10));
    ping.finish().out.trim() == "answered"
}
