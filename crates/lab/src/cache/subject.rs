//! What is traced: the parallel benchmark on virtual cores, in a process of its own.
//!
//! Virtual cores make the interleaving of any number of cores on any machine, the same for the
//! same seed, and say which core goes on. The stack and its organizations are the same code as on
//! the machine; locks, events and threads are the simulation's.

use super::places;
use crate::{
    Error,
    ours::virtual_cores,
    workload::{Configuration, Control, Direction, Phase, SEGMENT, Settings},
};
use perimeter::{
    Virtual,
    link::mem::{PeerCounts, PeerHandle},
};
use perimeter_base::Time;
use perimeter_sync::{
    Beacon, Platform, Thread,
    virt::{Schedule, VirtualConfig, trace},
};
use std::{
    env,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Begins the line, on standard error, that tells from which sources the program was built.
pub(super) const SOURCES: &str = "perimeter-sources ";
/// Begins the line that tells how many bytes of payload were acknowledged while counting.
pub(super) const BYTES: &str = "perimeter-bytes ";
/// Begins the line that tells how many items went from core to core while counting, by what they
/// are.
pub(super) const MOVED: &str = "perimeter-moved ";

/// How much virtual costs vary: enough that threads do not run in lockstep.
const JITTER: u32 = 5;
/// Longest time for the connections to be established.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How often those who wait look, in virtual time.
const LOOK: Duration = Duration::from_micros(2);

/// Bytes of payload that a subject sends, and whose accesses are in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Before its accesses are in the trace.
    pub untraced: u64,
    /// While they are and do not count.
    pub warm: u64,
    /// While they count.
    pub payload: u64,
    /// Also those of peers and of the simulation are in it.
    pub all: bool,
}

/// Runs one configuration: establishes its connections, lets them send, and ends the process
/// without closing anything. The trace goes to standard output if this program was built for
/// that; else there is none.
///
/// # Errors
/// What went wrong.
pub fn run(
    settings: &Settings,
    configuration: &Configuration,
    extent: Extent,
    seed: u64,
) -> Result<(), Error> {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // Without whom nobody reads the trace.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    let base = env::current_exe().ok().and_then(|p| places::base(&p));
    let missing = || Error::Run("this program is not found in its memory".into());
    trace::begin(base.ok_or_else(missing)?);
    let built = perimeter_command::build();
    say(&format!("{SOURCES}{}", built.commit.unwrap_or_default()));
    let config = VirtualConfig::default()
        .with_seed(seed)
        .with_cores(configuration.threads)
        // The observer's.
        .with_spare_cores(1)
        .with_schedule(Schedule::Time {
            jitter_percent: JITTER,
        })
        .with_max_steps(u64::MAX)
        .with_max_time(Time::from_millis(u64::from(u32::MAX)))
        .with_lock_policy(settings.locks)
        .with_check_lock_order(false);
    let (settings, configuration) = (settings.clone(), configuration.clone());
    let body = move |p: Virtual| carry_out(&p, &settings, &configuration, extent);
    match Virtual::run(config, body) {
        Ok((result, _)) => result,
        Err(failure) => Err(Error::Run(failure.to_string())),
    }
}

/// Writes a line to standard error.
fn say(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

fn carry_out(
    p: &Virtual,
    settings: &Settings,
    configuration: &Configuration,
    extent: Extent,
) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    let (workers, peers) = virtual_cores::open(p, (settings, None), configuration, deadline)?;
    let control = Arc::new(Control::default());
    let ready = Arc::new(AtomicUsize::new(0));
    let threads = workers.len();
    let fails = |e| panic!("{e}");
    let way = Way::of(settings);
    // Their end is the process's, or a panic, which ends the run.
    drop(virtual_cores::start(
        p,
        workers,
        (&control, &ready),
        (LOOK, true),
        fails,
    ));
    let p2 = p.clone();
    let body = move || {
        while ready.load(Ordering::Acquire) < threads {
            p2.sleep_until(p2.now() + LOOK);
        }
        // The event loops stay in this phase to the end: what they do when counting begins and
        // ends for them is no part of sending.
        control.advance(Phase::Warm);
        until(&p2, &peers, way, extent.untraced);
        trace::accesses(extent.all);
        let warm = until(&p2, &peers, way, extent.warm);
        let before = p2.report().moved;
        p2.beacon(Beacon::CountingBegins);
        let end = until(&p2, &peers, way, extent.payload);
        p2.beacon(Beacon::CountingEnds);
        trace::end();
        let moved = p2.report().moved;
        let moved = moved.iter().zip(before).map(|(a, b)| (a - b).to_string());
        say(&format!("{MOVED}{}", moved.collect::<Vec<_>>().join(" ")));
        say(&format!("{BYTES}{}", end.saturating_sub(warm)));
        // Closing would be traced too, and takes as long as opening.
        std::process::exit(0);
    };
    let observer = p.spawn_aside("observer", 0, Box::new(body));
    observer.join().map_err(Error::Run)
}

/// Waits until `payload` more bytes have gone their way; returns how many have been acknowledged
/// in all.
fn until(p: &Virtual, peers: &[PeerHandle<Virtual>], way: Way, payload: u64) -> u64 {
    let done = || {
        peers
            .iter()
            .map(|peer| way.done(&peer.counts()))
            .sum::<u64>()
    };
    p.beacon(Beacon::PeerBegins);
    let end = done() + payload.div_ceil(way.bytes);
    while done() < end {
        p.sleep_until(p.now() + LOOK);
    }
    let flows = peers.iter().flat_map(PeerHandle::flows);
    let acknowledged = flows.map(|f| f.acked + f.delivered).sum();
    p.beacon(Beacon::PeerEnds);
    acknowledged
}

/// Which way payload goes.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// Whether the peer sends it.
    receives: bool,
    /// Of each segment, or of each request and its answer.
    bytes: u64,
}

impl Way {
    fn of(settings: &Settings) -> Way {
        let both = settings.exchange.map(|e| (e.request + e.response) as u64);
        Way {
            receives: settings.direction == Direction::Receive && both.is_none(),
            bytes: both.unwrap_or(SEGMENT),
        }
    }

    /// Segments, or requests, so far.
    fn done(self, counts: &PeerCounts) -> u64 {
        match self.receives {
            true => counts.data,
            false => counts.frames,
        }
    }
}
