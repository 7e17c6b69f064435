//! One scenario from the first virtual thread to the last check.

use crate::datagrams::{self, Tally};
use crate::junk::Junk;
use crate::knobs::Knobs;
use crate::scenario::{Capacity, Drive, Family, Mix, Scenario, Workload};
use crate::script::{Ledger, stream_of};
use crate::trace::{Overtaken, Spy, Tap, Trace};
use crate::{blocking, events, races};
use perimeter::{Events, Inbound, OrgSpec, Stack, Stats};
use perimeter_base::Time;
use perimeter_link::fault::FaultCounts;
use perimeter_link::wire::{WireHandle, pair};
use perimeter_sync::virt::{Schedule, VirtualConfig, VirtualThread};
use perimeter_sync::{Platform, Thread, Virtual};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Nothing moving on for this long in virtual time is a hang. Above the longest
/// retransmission timeout of these runs times the number of retries that loss makes likely.
const STALL: Duration = Duration::from_secs(120);
/// The same where nothing but wake-ups moves a run on: above all timers that may take part
/// (delayed acknowledgments), below the time at which a stack looks around by itself.
const STRICT_STALL: Duration = Duration::from_secs(20);
/// Virtual time of the longest run, and of the longest in which time jumps often.
const MAX_TIME: [Duration; 2] = [Duration::from_secs(2_000), Duration::from_secs(20_000)];
/// Scheduling points of the longest tiny run (a protocol thread for each of 384 connections, at both
/// ends, takes three million to start and stop), and of any other (datagrams under
/// `pef:horizontal` on eight cores have taken 22 million).
const STEPS: [u64; 2] = [8_000_000, 50_000_000];
/// Port of the server.
pub const PORT: u16 = 80;

/// What a run that went well did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Scheduling points.
    pub steps: u64,
    /// Virtual time at the end.
    pub virtual_time: Time,
    /// Hash over all scheduling points.
    pub trace_hash: u64,
    /// Bytes checked at their receiver.
    pub checked: u64,
    /// Segments sent by both stacks.
    pub segments: u64,
    /// Of these, retransmissions.
    pub retransmits: u64,
    /// What the wire did, in both directions of all wires.
    pub faults: FaultCounts,
}

/// A run that went wrong.
#[derive(Clone, Debug)]
pub struct RunError {
    /// What was run: its text replays it.
    pub scenario: Scenario,
    /// What went wrong, in several lines.
    pub detail: String,
    /// The last of the traffic, if it was asked for.
    pub trace: Vec<String>,
}

impl core::fmt::Display for RunError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        write!(
            f,
            "{}\nreplay: cargo soak --replay \"{}\"",
            self.detail, self.scenario
        )
    }
}

impl std::error::Error for RunError {}

/// One of the two ends, as its threads see it.
pub struct Host {
    /// The platform.
    pub p: Virtual,
    /// What is run.
    pub sc: Scenario,
    /// What both ends share.
    pub ledger: Arc<Ledger>,
    /// What they know of datagrams.
    pub tally: Arc<Tally>,
    /// Whether this is the client's.
    pub client: bool,
    /// Settings.
    pub knobs: Knobs,
    /// Data that it has sent again, or out of order.
    overtaken: Overtaken,
    common: Arc<Both>,
}

impl Host {
    /// Where the server listens for connection `conn`.
    pub fn server_addr(&self, conn: usize) -> SocketAddr {
        let nic = conn % self.sc.nics();
        SocketAddr::new(self.sc.addr(false, nic), PORT)
    }

    /// Frames that found no room in the devices' receive rings.
    pub fn overflows(&self) -> u64 {
        self.common.wires.iter().map(WireHandle::overflows).sum()
    }

    /// Whether no frame is lost on the way, and no time jumps past those who wait for one.
    pub fn lossless(&self) -> bool {
        !self.sc.mix.loses() && self.sc.early_timer_one_in == 0 && self.overflows() == 0
    }

    /// Whether a client may close its socket before all answers to it have come: it has waited for
    /// one in vain, or does not wait for the second one to a request that came twice.
    pub fn leaves_early(&self) -> bool {
        self.sc.mix.doubles() || self.tally.given_up()
    }
}

struct Both {
    listening: AtomicBool,
    drained: AtomicUsize,
    quiet: AtomicUsize,
    /// Segments that both ends dropped for want of room in queues of their own.
    dropped: AtomicU64,
    wires: Vec<WireHandle<Virtual>>,
}

/// Starts a virtual thread whose error ends the run.
pub fn spawn(
    p: &Virtual,
    name: &str,
    core: Option<usize>,
    body: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> VirtualThread {
    let body = move || {
        if let Err(e) = body() {
            panic!("{e}");
        }
    };
    p.spawn(name, core, Box::new(body))
}

/// Runs a scenario.
///
/// # Errors
/// What went wrong, with what replays it.
pub fn run(scenario: &Scenario) -> Result<Outcome, RunError> {
    run_spied(scenario, &Spy::default())
}

/// Scheduling points to be expected of an explored run, for [`Scenario::explored`]: the mean of
/// some. The same each time.
pub fn run_length(org: &OrgSpec, cores: usize) -> u64 {
    const SOME: u64 = 24;
    let steps = (0..SOME).map(|seed| {
        let sc = Scenario::explored(org.clone(), cores, seed, 5_000);
        run(&sc).map_or(5_000, |o| o.steps)
    });
    steps.sum::<u64>() / SOME
}

/// Runs a scenario and, if it fails, tells the last `lines` lines of its traffic.
///
/// # Errors
/// As [`run`].
pub fn run_traced(scenario: &Scenario, lines: usize) -> Result<Outcome, RunError> {
    let trace = Some(Trace::new(lines));
    let spy = Spy {
        trace,
        ..Spy::default()
    };
    run_spied(scenario, &spy)
}

/// Runs a scenario under a [`Spy`].
///
/// # Errors
/// As [`run`].
pub fn run_spied(scenario: &Scenario, spy: &Spy) -> Result<Outcome, RunError> {
    if !std::thread::panicking() {
        return run_here(scenario, spy);
    }
    // Of a run that has failed on this thread before, panics are left that never end: whoever asks
    // whether it is being unwound would be told so.
    std::thread::scope(|s| {
        let fresh = s.spawn(|| run_here(scenario, spy));
        fresh.join().expect("a failed run is an error")
    })
}

fn run_here(scenario: &Scenario, spy: &Spy) -> Result<Outcome, RunError> {
    let early = scenario.jumps();
    let config = VirtualConfig::default()
        .with_seed(scenario.seed)
        .with_cores(scenario.cores)
        .with_schedule(scenario.schedule)
        .with_max_steps(STEPS[usize::from(scenario.capacity != Capacity::Tiny)])
        .with_max_time(Time::ZERO + MAX_TIME[usize::from(early)])
        .with_pct_steps(scenario.pct_steps)
        .with_early_timer_one_in(scenario.early_timer_one_in)
        .with_lock_policy(scenario.locks)
        .with_check_lock_order(!spy.any_lock_order);
    let (sc, spying) = (scenario.clone(), spy.clone());
    let result = Virtual::run(config, move |p| simulate(&p, &sc, &spying));
    match result {
        Ok((mut out, report)) => {
            out.steps = report.steps;
            out.virtual_time = report.virtual_time;
            out.trace_hash = report.trace_hash;
            Ok(out)
        }
        Err(f) => Err(RunError {
            scenario: scenario.clone(),
            detail: f.to_string(),
            trace: spy.trace.as_ref().map(Trace::lines).unwrap_or_default(),
        }),
    }
}

fn simulate(p: &Virtual, sc: &Scenario, spy: &Spy) -> Outcome {
    let knobs = Knobs::new(sc);
    let (mut server, mut client) = (Vec::new(), Vec::new());
    let mut wires = Vec::new();
    let overtaken = [Overtaken::default(), Overtaken::default()];
    for nic in 0..sc.nics() {
        let ([a, b], handles) = pair(p, knobs.wire(sc, nic));
        let junk = |end, side: u64| -> Box<dyn perimeter_link::Device> {
            match knobs.junk {
                true => Box::new(Junk::new(end, sc.seed ^ side << 56 ^ nic as u64)),
                false => end,
            }
        };
        server.push(Tap::new(
            junk(Box::new(a), 1),
            spy.clone(),
            'S',
            overtaken[0].clone(),
        ));
        client.push(Tap::new(
            junk(Box::new(b), 2),
            spy.clone(),
            'C',
            overtaken[1].clone(),
        ));
        wires.extend(handles);
    }
    let common = Arc::new(Both {
        listening: AtomicBool::new(false),
        drained: AtomicUsize::new(0),
        quiet: AtomicUsize::new(0),
        dropped: AtomicU64::new(0),
        wires,
    });
    let ledger = Arc::new(Ledger::new(sc.connections()));
    let tally = Arc::new(Tally::new(sc.connections()));
    let stats = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut joins = Vec::new();
    for (is_client, taps) in [(false, server), (true, client)] {
        let host = Arc::new(Host {
            p: p.clone(),
            sc: sc.clone(),
            ledger: ledger.clone(),
            tally: tally.clone(),
            client: is_client,
            knobs: knobs.clone(),
            overtaken: overtaken[usize::from(is_client)].clone(),
            common: common.clone(),
        });
        let stats = stats.clone();
        let name = if is_client { "client" } else { "server" };
        joins.push(spawn(p, name, Some(usize::from(is_client)), move || {
            let s = end(&host, taps)?;
            stats
                .lock()
                .map_err(|e| e.to_string())?
                .push((is_client, s));
            Ok(())
        }));
    }
    watch(p, sc, &ledger, &common, knobs.strict);
    for j in joins {
        j.join().expect("a panic would have ended the run");
    }
    let mut stats = stats.lock().map(|s| s.clone()).unwrap_or_default();
    stats.sort_by_key(|(is_client, _)| *is_client);
    let stats: Vec<Stats> = stats.into_iter().map(|(_, s)| s).collect();
    conserved(sc, &stats, &common.wires).unwrap_or_else(|e| panic!("{e}"));
    delivered(sc, &stats, &common.wires, &tally).unwrap_or_else(|e| panic!("{e}"));
    let sum = |name: &str| stats.iter().map(|s: &Stats| s.count(name)).sum();
    let faults = common
        .wires
        .iter()
        .fold(FaultCounts::default(), |a, w| add(a, w.faults()));
    Outcome {
        checked: ledger.checked.load(Ordering::Relaxed),
        segments: sum("tx_segments"),
        retransmits: sum("retransmits"),
        faults,
        ..Outcome::default()
    }
}

fn add(mut a: FaultCounts, b: FaultCounts) -> FaultCounts {
    a.packets += b.packets;
    a.lost += b.lost;
    a.duplicated += b.duplicated;
    a.reordered += b.reordered;
    a.corrupted += b.corrupted;
    a.fcs_dropped += b.fcs_dropped;
    a
}

/// Whether nothing was lost or made on the way: what one stack sent is what the other received,
/// what was charged was released, and the stacks and all they referred to have gone.
///
/// `stats` is the server's and the client's; of the wires each interface has two directions, the
/// server's first.
fn conserved(sc: &Scenario, stats: &[Stats], wires: &[WireHandle<Virtual>]) -> Result<(), String> {
    for (from, name) in ["server", "client"].iter().enumerate() {
        let (sender, receiver) = (&stats[from], &stats[1 - from]);
        let (charged, released) = (
            sender.count("memory_charged"),
            sender.count("memory_released"),
        );
        if charged != released {
            return Err(format!(
                "{name}: {charged} bytes charged and {released} released"
            ));
        }
        let out = || wires.iter().skip(from).step_by(2);
        let lost: u64 = out().map(WireHandle::overflows).sum();
        let (sent, came) = (sender.count("tx_segments"), receiver.count("rx_segments"));
        // Who stops first does not take the other's last words, nor its questions about neighbours.
        let flying: usize = out().map(WireHandle::in_flight).sum();
        let all = came..=came + flying as u64;
        if sc.mix == Mix::None && lost == 0 && !all.contains(&sent) {
            return Err(format!(
                "{name}: {sent} segments sent, {came} received at the other end, {flying} under way"
            ));
        }
        if !out().all(WireHandle::alone) {
            return Err(format!("{name}: the stack has gone, but not its devices"));
        }
    }
    Ok(())
}

/// Whether each datagram that did not arrive was counted where it was dropped, on a wire that loses
/// nothing. One fragment that is dropped is a datagram.
fn delivered(
    sc: &Scenario,
    stats: &[Stats],
    wires: &[WireHandle<Virtual>],
    tally: &Tally,
) -> Result<(), String> {
    let (sent, lost) = tally.lost();
    // Where time jumps, a client's patience may end before its answers have come.
    if sc.workload != Workload::Datagrams || sc.mix != Mix::None || sc.early_timer_one_in != 0 {
        return Ok(());
    }
    // For want of room in a socket, in queues between threads, and for fragments, or while a
    // station was asked for; and what comes when a client has given up waiting. Of what nobody
    // waits for the server counts what was not sent to it.
    let dropped = |s: &Stats, no_socket: u64| {
        let full = s.counts.iter().filter(|(name, _)| {
            name.starts_with("drop_") && name.ends_with("_full") && name != "drop_tx_ring_full"
        });
        let full: u64 = full.map(|(_, n)| n).sum();
        let fragments = s.count("drop_fragment_no_room") + s.count("reassembly_failed");
        full + fragments + s.count("drop_udp_unresolved") + no_socket
    };
    let [server, client] = stats else {
        return Err(format!("{} ends", stats.len()));
    };
    let nobody = server.count("drop_udp_no_socket");
    let dropped = dropped(server, nobody.saturating_sub(tally.knocks() as u64))
        + dropped(client, client.count("drop_udp_no_socket"));
    let overflows: u64 = wires.iter().map(WireHandle::overflows).sum();
    if lost as u64 > dropped + overflows {
        return Err(format!(
            "{lost} of {sent} datagrams did not arrive, and {dropped} drops are counted and \
             {overflows} overflows"
        ));
    }
    Ok(())
}

/// Nothing moving on for this long is a hang. Where time jumps, it says little: a hang ends at
/// the limit of steps or of time.
fn stall(sc: &Scenario) -> Duration {
    if sc.jumps() { MAX_TIME[1] } else { STALL }
}

/// Watches that something moves until both ends are at rest.
fn watch(p: &Virtual, sc: &Scenario, ledger: &Ledger, common: &Both, strict: bool) {
    let limit = if strict { STRICT_STALL } else { stall(sc) };
    let mut last = (0, p.now());
    while common.quiet.load(Ordering::Relaxed) < 2 {
        p.sleep_until(p.now() + Duration::from_millis(500));
        let progress = ledger.progress.load(Ordering::Relaxed);
        if progress != last.0 {
            last = (progress, p.now());
        }
        let done = ledger.finished.load(Ordering::Relaxed) == 2 * sc.connections();
        let still = p.now().since(last.1);
        assert!(
            done || still < limit,
            "nothing has moved for {still:?}: a hang"
        );
    }
}

/// One end from the making of its stack to its dropping, on a thread of its own.
fn end(host: &Arc<Host>, taps: Vec<Tap>) -> Result<Stats, String> {
    let (sc, p) = (&host.sc, &host.p);
    let mut b = Stack::builder()
        .on_virtual(p.clone())
        .org(sc.org.clone())
        .inbound(sc.inbound);
    b = b.config(host.knobs.config(sc, host.client));
    for (nic, tap) in taps.into_iter().enumerate() {
        let prefix = if sc.family == Family::V4 { 24 } else { 64 };
        let addr = format!("{}/{prefix}", sc.addr(host.client, nic));
        b = b
            .interface(tap, &[addr.as_str()])
            .map_err(|e| e.to_string())?;
    }
    let stack = b.build().map_err(|e| e.to_string())?;
    let trigger = sc.drive.trigger();
    if host.client {
        let early = sc.workload.races_listener();
        while !early && !host.common.listening.load(Ordering::Relaxed) {
            p.sleep_until(p.now() + Duration::from_micros(100));
        }
        if sc.mix.loses() {
            acquaint(host, &stack)?;
        }
        match trigger {
            _ if sc.workload == Workload::Datagrams => datagrams::clients(host, &stack)?,
            _ if early => races::clients(host, &stack),
            None => blocking::clients(host, &stack),
            Some(t) => events::clients(host, &stack, t),
        }
    } else if sc.workload == Workload::Datagrams {
        let common = host.common.clone();
        datagrams::servers(host, &stack, || {
            common.listening.store(true, Ordering::Relaxed);
        })?;
    } else if sc.workload.races_listener() {
        races::servers(host, &stack)?;
    } else {
        let any = SocketAddr::new(sc.any(), PORT);
        let listener = stack.listen_with(any, host.knobs.backlog, stack.tcp_config());
        let listener = listener.map_err(|e| format!("listen: {e}"))?;
        host.common.listening.store(true, Ordering::Relaxed);
        match trigger {
            None => blocking::servers(host, listener),
            Some(t) => events::servers(host, &stack, listener, t),
        }
    }
    rest(host, &stack)?;
    judge(host, &stack.stats())?;
    // The other end may be a moment behind, and still be answered.
    stack.stop();
    Ok(stack.stats())
}

/// Resolves the neighbours of a wire that loses: a handful of lost ARP packets is an unreachable
/// host, and not what these runs are about.
fn acquaint(host: &Host, stack: &Stack) -> Result<(), String> {
    for nic in 0..host.sc.nics() {
        let closed = SocketAddr::new(host.server_addr(nic).ip(), PORT + 1);
        let mut tries = 0;
        loop {
            let kind = match stack.connect(closed) {
                Ok(_) => return Err(format!("connected to {closed}, where nobody listens")),
                Err(e) => e.kind(),
            };
            tries += 1;
            match kind {
                ErrorKind::ConnectionRefused => break,
                ErrorKind::HostUnreachable if tries < 20 => {}
                _ => return Err(format!("connecting to a closed port: {kind}")),
            }
        }
    }
    Ok(())
}

/// Serves on until nothing is left at either end, and nothing under way.
fn rest(host: &Host, stack: &Stack) -> Result<(), String> {
    let p = &host.p;
    let single = host.sc.org.single_threaded();
    let poll = if single {
        Some(stack.poll().map_err(|e| e.to_string())?)
    } else {
        None
    };
    let mut events = Events::with_capacity(1);
    let tiny = host.sc.capacity == Capacity::Tiny;
    let mut tick = Duration::from_millis(if tiny { 1 } else { 20 });
    let mut wait = || {
        if tiny {
            tick = (tick * 2).min(Duration::from_millis(500));
        }
        match &poll {
            Some(poll) => poll
                .poll(&mut events, Some(tick))
                .map_err(|e| format!("poll: {e}")),
            None => {
                p.sleep_until(p.now() + tick);
                Ok(())
            }
        }
    };
    let name = if host.client { "client" } else { "server" };
    let both = &host.common;
    let datagrams = host.sc.workload == Workload::Datagrams;
    let start = p.now();
    let mut drained = false;
    let mut quiet = false;
    // An end that is at rest may still be spoken to by the other, and answer; and neither may
    // leave before both are done, so that nobody's last words find nobody.
    loop {
        let left = left(host, stack);
        let flying: usize = both.wires.iter().map(WireHandle::in_flight).sum();
        let calm = left.is_ok() && flying == 0;
        if left.is_ok() && !drained {
            drained = true;
            both.drained.fetch_add(1, Ordering::Relaxed);
        }
        if calm && !quiet && both.drained.load(Ordering::Relaxed) == 2 {
            quiet = true;
            let counts = stack.stats().counts;
            let full = |c: &str| c.starts_with("drop_") && c.ends_with("_full");
            let dropped = counts.iter().filter(|(c, _)| full(c)).map(|(_, n)| n).sum();
            both.dropped.fetch_add(dropped, Ordering::Relaxed);
            both.quiet.fetch_add(1, Ordering::Relaxed);
        }
        // What comes later (a neighbour is asked for again) may find the other end gone.
        if both.quiet.load(Ordering::Relaxed) == 2 {
            return Ok(());
        }
        // All sockets are closed: what is pinned is fragments that wait for the rest.
        if datagrams && p.now().since(start) > Duration::from_secs(1) {
            let pinned = stack.stats().memory;
            if pinned > host.knobs.fragments as u64 {
                return Err(format!("{name}: fragments pin {pinned} bytes"));
            }
        }
        if p.now().since(start) > 3 * stall(&host.sc) {
            let what = left
                .err()
                .unwrap_or_else(|| format!("{flying} frames are under way"));
            return Err(format!("{name} does not come to rest: {what}"));
        }
        wait()?;
    }
}

/// What is left in a stack whose applications are done.
fn left(host: &Host, stack: &Stack) -> Result<(), String> {
    let conns = stack.connections();
    if let Some(c) = conns.first() {
        return Err(format!(
            "{} connections, the first {:?} -> {:?} in {:?}, {} octets unsent, {} unread, orphan {}",
            conns.len(),
            c.key.local_port,
            c.key.remote_port,
            c.tcp.state,
            c.snd_queued,
            c.rcv_queued,
            c.orphan
        ));
    }
    let memory = stack.stats().memory;
    if memory != 0 {
        return Err(format!("{memory} bytes of memory charged"));
    }
    let pages = host.ledger.pages.load(Ordering::Relaxed);
    if pages != 0 {
        return Err(format!("{pages} zero-copy pages held"));
    }
    stack.engine().quiescent()
}

/// Whether a counter is one that only runs of datagrams move.
fn of_datagrams(counter: &str) -> bool {
    counter.starts_with("drop_udp")
        || counter.starts_with("drop_fragment")
        || matches!(
            counter,
            "reassembly_failed" | "tx_icmp_unreachable" | "rx_icmp_errors"
        )
}

/// Whether a run of datagrams may count `n` of that at this end.
fn datagrams_allow(host: &Host, counter: &str, n: u64) -> bool {
    let (sc, knobs) = (&host.sc, &host.knobs);
    // Fragments whose rest does not come: it was lost, it is forged, or it has been put together
    // with the others already when a twin comes. They wait for a minute, and keep others out.
    let unfinished = sc.mix.loses() || sc.mix.doubles() || knobs.junk || host.overflows() > 0;
    // Whether fragments are given up: because there is too little room for all of a datagram's, or
    // because time jumps to the end of their wait while the rest is on its way.
    let failing = unfinished || knobs.scarce || sc.early_timer_one_in != 0;
    // What nobody waits for at the server: what the clients send to such a port, and each one's
    // last word, for which the server does not wait.
    let unwanted = (host.tally.knocks() + sc.connections()) as u64;
    match counter {
        "drop_fragment_overlap" => knobs.junk,
        "drop_fragment_no_room" => unfinished || knobs.scarce,
        "reassembly_failed" => failing,
        "drop_udp_no_socket" | "tx_icmp_unreachable" => {
            host.leaves_early() || !host.client && n <= unwanted
        }
        // That is what the clients are told, and who sent fragments of which not all came.
        "rx_icmp_errors" => {
            failing || host.leaves_early() || host.client && n <= host.tally.knocks() as u64
        }
        // Sockets have so much room, and who sends before a station is known may be too fast.
        _ => true,
    }
}

/// Whether the counters are such as the scenario may cause.
fn judge(host: &Host, stats: &Stats) -> Result<(), String> {
    let sc = &host.sc;
    // Nothing is lost, not even for want of room in a queue; no timer fires before
    // somebody who could have run; and nothing makes acknowledgments late for a tail loss probe:
    // no queue of a paced device, and no device that is looked after only now and then because
    // the applications have gone home.
    let calm = sc.mix == Mix::None
        && host.common.dropped.load(Ordering::Relaxed) == 0
        && host.common.wires.iter().all(|w| w.overflows() == 0)
        && sc.early_timer_one_in == 0
        && host.knobs.gbps.is_none()
        && (sc.inbound == Inbound::Thread || sc.org.single_threaded());
    // Time passes while somebody who could run has to wait: for a core, or, where threads spin,
    // for one that spins. Then acknowledgments can be late for a tail loss probe.
    let prompt = calm && !matches!(sc.schedule, Schedule::Time { .. }) && !sc.org.spins();
    let count = |name| {
        let found = stats.counts.iter().find(|(c, _)| c == name);
        found.map_or(0, |(_, n)| *n)
    };
    let (again, probes) = (count("retransmits"), count("loss_probes"));
    let small = sc.capacity != Capacity::Normal;
    let races = sc.workload.races_listener();
    let datagrams = sc.workload == Workload::Datagrams;
    let name = if host.client { "client" } else { "server" };
    for (counter, n) in &stats.counts {
        let allowed = match counter.as_str() {
            // Damage shows as whatever the parser meets first.
            // Fragments that nobody sent are none, or make datagrams that nobody sent.
            "drop_bad_fragment" | "drop_bad_udp_len" | "drop_bad_udp_checksum"
                if host.knobs.junk =>
            {
                true
            }
            c if c.starts_with("drop_bad") => sc.mix == Mix::Corrupt,
            "drop_truncated" | "drop_not_ours" | "drop_other_protocol" => sc.mix == Mix::Corrupt,
            // Both ends have the addresses that they speak from, unless a fragment is forged of a
            // damaged one; and nobody says that a packet was too big.
            "drop_martian_source" => sc.mix == Mix::Corrupt && host.knobs.junk,
            "drop_other_station" | "drop_icmp_too_big" => false,
            c if of_datagrams(c) => datagrams && datagrams_allow(host, c, *n),
            // Segments that cross a reset or come after the end of TIME-WAIT; and what answers
            // a repeated FIN, when an answer to the first has ended LAST-ACK before (RFC 9293,
            // section 3.10.7.1: a reset); a tail loss probe may repeat it.
            "drop_no_connection" | "tx_resets" => {
                !calm
                    || races
                    || matches!(sc.workload, Workload::Unread | Workload::Abort)
                    || *n <= again + probes
            }
            // Handles of sockets that were closed or aborted under them.
            "stale_handles" => {
                // What an organization puts off may find the socket gone.
                let deferred = sc.org.defers();
                // So may those of connections that waited for a full transmit queue.
                let gone = matches!(
                    sc.workload,
                    Workload::Abort | Workload::CloseBlocked | Workload::CloseTwice
                );
                // And threads of the server's that block on a socket until it is closed.
                let under = datagrams && !host.client && sc.drive == Drive::Blocking;
                // And a datagram that has found its socket while that is being closed.
                let crossed = datagrams && host.leaves_early();
                deferred || small || races || gone || under || crossed
            }
            "memory_backpressure" => host.knobs.memory < u64::MAX,
            // The backlog is one.
            "drop_syn" => small || races,
            "accepts_aborted" => races,
            "orphans_reset" | "rx_echo_requests" => false,
            // A listener that is full, or gone for a moment, can't take a handshake's last word:
            // that and what follows it are sent again.
            "retransmits" => !calm || races || small && !host.knobs.strict || *n <= probes,
            // Nagle's algorithm holds the last piece of a request back until the pieces before it are
            // acknowledged. If these are more than one full segment and less than two, the receiver
            // delays that acknowledgment for longer than a probe waits (RFC 8985, section 7.2).
            "loss_probes"
                if sc.workload == Workload::PingPong && host.knobs.nagle(sc, host.client) =>
            {
                true
            }
            "loss_probes" => !prompt || races || small && !host.knobs.strict,
            _ => true,
        };
        if *n > 0 && !allowed {
            return Err(format!("{name} counts {n} {counter}"));
        }
    }
    // Whatever the network does: what leaves behind later data was sent again, and counted.
    let overtaken = host.overtaken.count();
    if (!small || host.knobs.strict) && overtaken > again {
        return Err(format!(
            "{name} has sent {overtaken} segments again or out of order, and knows of {again}"
        ));
    }
    if host.client {
        let twice = host
            .ledger
            .greeted
            .iter()
            .position(|g| g.load(Ordering::Relaxed) != 1);
        if let Some(conn) = twice {
            return Err(format!(
                "connection {conn} (stream {}) was not served once",
                stream_of(conn, true)
            ));
        }
    }
    Ok(())
}
