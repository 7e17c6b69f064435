//! What these tests share.

use perimeter::{OrgSpec, Stack, State, TcpListener};
use perimeter_interop::program::{self, DNSMASQ, Program, python};
use perimeter_interop::{namespace, taps};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a program may take.
pub const LIMIT: Duration = Duration::from_secs(180);
/// One GiB.
pub const GIB: u64 = 1 << 30;

fn wish(word: &str) -> bool {
    std::env::var("PERIMETER_INTEROP").is_ok_and(|v| v.split(',').any(|w| w == word))
}

/// Size of a transfer, bytes.
pub fn size() -> u64 {
    if wish("full") { GIB } else { 16 << 20 }
}

/// Every organization.
pub fn organizations() -> Vec<OrgSpec> {
    OrgSpec::tested()
}

/// One organization of each family, for what depends on the device or the other program rather
/// than on the organization; every one under `PERIMETER_INTEROP=full`, or if they were chosen by
/// name.
pub fn families() -> Vec<OrgSpec> {
    let mut all = organizations();
    if !wish("full") && std::env::var_os("PERIMETER_ORGS").is_none() {
        let family = |org: &OrgSpec| org.to_string().split(':').next().map(str::to_string);
        let mut seen = HashSet::new();
        all.retain(|org| seen.insert(family(org)));
    }
    all
}

/// A few organizations that differ in who runs what: for devices that TAP's tests stand for in all
/// else. Every one under `PERIMETER_INTEROP=full`, or those that were chosen by name.
pub fn some() -> Vec<OrgSpec> {
    let mut all = families();
    if !wish("full") && std::env::var_os("PERIMETER_ORGS").is_none() {
        let few = ["up", "connp-l", "squeue"];
        all.retain(|org| few.contains(&org.family().name));
    }
    all
}

/// What a test does with the machine.
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum Load {
    /// It computes: both ends of a transfer are busy.
    Works,
    /// It waits, most of the time.
    Waits,
}

/// Shares of the machine. As many tests work at a time as there are cores, and one more, since each
/// stands still for a third of its time; of those that wait, four may run in place of each. A test's
/// own limits on time bear that; what it measures is its own use of processors.
struct Machine {
    free: Mutex<usize>,
    back: Condvar,
}

struct Share(usize);

static MACHINE: Machine = Machine {
    free: Mutex::new(usize::MAX),
    back: Condvar::new(),
};

/// Shares of a test that works.
const SHARES: usize = 4;

/// All shares of the machine.
fn all() -> usize {
    (std::thread::available_parallelism().map_or(1, usize::from) + 1) * SHARES
}

impl Load {
    fn shares(self) -> usize {
        match self {
            Load::Works => SHARES,
            Load::Waits => 1,
        }
    }

    fn take(self) -> Share {
        let n = self.shares();
        let free = MACHINE.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = MACHINE
            .back
            .wait_while(free, |free| {
                // The first finds all of it.
                *free = (*free).min(all());
                *free < n
            })
            .unwrap_or_else(PoisonError::into_inner);
        *free -= n;
        Share(n)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        *MACHINE.free.lock().unwrap_or_else(PoisonError::into_inner) += self.0;
        MACHINE.back.notify_all();
    }
}

/// Whether there can be a namespace here and the programs are installed; else says what is
/// skipped.
fn possible(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|p| !program::installed(p));
    let why = missing
        .map(|p| format!("{p} is not installed"))
        .or_else(namespace::obstacle);
    let Some(why) = why else { return true };
    assert!(!wish("require"), "{why}");
    println!("skipped: {why}");
    false
}

/// Runs `test` in a namespace of its own, if that is possible here and the programs are
/// installed.
pub fn alone(programs: &[&str], test: impl FnOnce() + Send + 'static) {
    if possible(programs) {
        let _share = Load::Works.take();
        namespace::within(test);
    }
}

/// Runs `test` on each of `cases`, each in a namespace of its own, several at a time.
pub fn each_of<T>(programs: &[&str], load: Load, cases: &[T], test: impl Fn(&T) + Send + Sync)
where
    T: Sync,
{
    if !possible(programs) {
        return;
    }
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let _share = load.take();
            namespace::within(|| test(case));
        }
    };
    std::thread::scope(|threads| {
        let width = (all() / load.shares()).min(cases.len());
        for _ in 1..width {
            threads.spawn(run);
        }
        run();
    });
}

/// Runs `test` under each of these organizations, each in a namespace of its own.
pub fn under(programs: &[&str], load: Load, orgs: &[OrgSpec], test: fn(&OrgSpec)) {
    each_of(programs, load, orgs, |org| {
        let start = Instant::now();
        test(org);
        println!("{org}: {:.1} s", start.elapsed().as_secs_f64());
    });
}

/// Runs `test` under each organization.
pub fn each(programs: &[&str], load: Load, test: fn(&OrgSpec)) {
    under(programs, load, &organizations(), test);
}

/// Runs `test` under one organization of each family.
pub fn each_family(programs: &[&str], load: Load, test: fn(&OrgSpec)) {
    under(programs, load, &families(), test);
}

/// Starts dnsmasq in the foreground, which knows what these arguments say and asks nobody further.
pub fn dnsmasq(args: &[&str]) -> Program {
    let here = [
        "--local=/example.org/",
        "--host-record=here.example.org,10.99.0.1",
    ];
    let mut p = Program::start("dnsmasq", [&DNSMASQ[..], &here, args].concat(), LIMIT);
    // It does not say when it listens.
    std::thread::sleep(Duration::from_millis(300));
    assert!(!p.ended(), "{}", p.finish().err);
    p
}

/// Starts the host's side.
pub fn peer(args: &[&str]) -> Program {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel/peer.py");
    // Neither the user's settings nor site packages: they only take time to load.
    Program::start(python(), [&["-I", "-S", script], args].concat(), LIMIT)
}

/// The host's side, listening on a port.
pub fn peer_accepts(port: u16, what: &[&str]) -> Program {
    let (host, port) = (taps::KERNEL.to_string(), port.to_string());
    let mut p = peer(&[&["accept", &host, &port], what].concat());
    assert_eq!(p.line(), "ready");
    p
}

/// The host's side, connecting to a port of the stack.
pub fn peer_connects(port: u16, what: &[&str]) -> Program {
    let (host, port) = (taps::STACK.to_string(), port.to_string());
    peer(&[&["connect", &host, &port], what].concat())
}

/// Waits for a program while the stack goes on, whoever runs it.
pub fn finish(stack: &Stack, p: Program) -> String {
    let turn = || {
        if stack.drive().expect("driven") == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    };
    p.finish_with(turn).ok().trim().to_string()
}

/// Drives the stack until `done`.
pub fn until(stack: &Stack, what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(
            Instant::now() < end,
            "{what} did not come; {:?}",
            stack.connections()
        );
        if stack.drive().expect("driven") == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Accepts within the time limit.
pub fn accept(l: &TcpListener) -> perimeter::TcpStream {
    l.set_accept_timeout(Some(Duration::from_secs(30)))
        .expect("a limit");
    let (s, _) = l.accept().expect("a connection");
    s.set_read_timeout(Some(LIMIT)).expect("a limit");
    s.set_write_timeout(Some(LIMIT)).expect("a limit");
    s
}

/// What every test ends with: all that arrived was well-formed, and nothing is left but
/// connections in TIME-WAIT.
pub fn wind_up(stack: &Stack) {
    until(stack, "the end of all connections", || {
        stack
            .connections()
            .iter()
            .all(|c| matches!(c.tcp.state, State::TimeWait | State::Closed))
    });
    let stats = stack.stats();
    for (name, n) in &stats.counts {
        // The kernel also speaks IPv6 and IGMP, and late segments may find a closed connection.
        let expected = [
            "drop_other_protocol",
            "drop_no_connection",
            "drop_not_ours",
            // A bounded queue between device and protocol, where the organization has one.
            "drop_netisr_full",
            // Where segments are placed one by one, two threads may see the last place of a ring:
            // the later segment is lost as in a full interface queue, and sent again.
            "drop_tx_ring_full",
        ];
        let dropped = name.starts_with("drop_") && !expected.contains(&name.as_str());
        assert!(*n == 0 || !dropped, "{name}: {n}");
    }
}

/// Digest of a sequence of pieces.
#[derive(Default)]
pub struct Sum(Sha256, u64);

impl Sum {
    pub fn add(&mut self, piece: &[u8]) {
        self.0.update(piece);
        self.1 += piece.len() as u64;
    }

    /// Digest and length, as the peer prints them.
    pub fn end(self) -> (String, u64) {
        (
            self.0
                .finalize()
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect(),
            self.1,
        )
    }
}

/// A file of that size that no two pages repeat; its digest.
pub fn make_file(at: &Path, total: u64) -> String {
    let mut file = File::create(at).expect("a file");
    let mut random = File::open("/dev/urandom").expect("random numbers");
    let mut block = vec![0; 1 << 20];
    random.read_exact(&mut block).expect("random numbers");
    let mut sum = Sum::default();
    let mut left = total;
    while left > 0 {
        block[..8].copy_from_slice(&left.to_le_bytes());
        let n = left.min(block.len() as u64) as usize;
        file.write_all(&block[..n]).expect("written");
        sum.add(&block[..n]);
        left -= n as u64;
    }
    sum.end().0
}

pub fn digest_of(at: &Path) -> String {
    let mut file = File::open(at).expect("a file");
    let mut sum = Sum::default();
    let mut buf = vec![0; 1 << 20];
    loop {
        match file.read(&mut buf).expect("read") {
            0 => return sum.end().0,
            n => sum.add(&buf[..n]),
        }
    }
}
