//! What a thread of a run reads when counting begins and when it ends, and how the time of the
//! threads under test divides in between.
//!
//! Shares of busy time are measured on the wall clock, around bursts and calls, so they contain
//! the time for which others had the core. That strikes in proportion to time: scaling the shares
//! to the threads' CPU clocks takes it out. It is kept as a share of its own, as far as the
//! scheduler confirms it; off-core time that neither the stack's idle counter nor the scheduler
//! nor a lock explains makes a run invalid.

use crate::{
    Error,
    host::{Machine, Scheduled},
    workload::{LockTimes, Locks, PathTime, Sample, Tally, Times},
};
use perimeter::{
    LockClass, LockStats, Stack, Stats,
    profile::{Path, Profile},
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Threads of a stack that serve devices, and count the time that they park in between: they are
/// under test like the application's.
const INBOUND: &[&str] = &["inbound-"];
/// Likewise those that run the protocol.
pub(super) const PROTOCOL: &[&str] = &["protocol-"];
/// Its other threads; what they use is the stack's, when they sleep is of no interest.
const HELPERS: &[&str] = &["service", "control"];
/// CPU time that one contended acquisition uses at most, ns: the lock spins and yields for a
/// bounded number of rounds and then sleeps.
const SPIN_NS: u64 = 5_000;

/// One reading of the stack's counters.
pub(super) struct Mark {
    stats: Stats,
    inbound: Scheduled,
    protocol: Scheduled,
    helpers: Scheduled,
    at: Instant,
}

impl Mark {
    fn read(stack: &Stack) -> Mark {
        let stats = stack.stats();
        let [inbound, protocol, helpers] = Scheduled::groups([INBOUND, PROTOCOL, HELPERS]);
        Mark {
            stats,
            inbound,
            protocol,
            helpers,
            at: Instant::now(),
        }
    }
}

/// Readings, made by one of the application's threads when counting begins and ends, and in
/// between for who watches.
#[derive(Clone, Default)]
pub(super) struct Marks(Arc<Mutex<Readings>>);

#[derive(Default)]
struct Readings {
    /// When counting began and ended.
    counting: Vec<Mark>,
    /// The last one for who watches, and what was counted until then since the one before.
    looked: Option<Mark>,
    seen: Option<Counted>,
}

impl Marks {
    fn readings(&self) -> MutexGuard<'_, Readings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one.
    pub(super) fn mark(&self, stack: &Stack) {
        let mark = Mark::read(stack);
        self.readings().counting.push(mark);
    }

    /// Makes one for who watches.
    pub(super) fn look(&self, stack: &Stack) {
        let mark = Mark::read(stack);
        let mut readings = self.readings();
        let before = readings.looked.take();
        readings.seen = before.map(|before| between(&before, &mark));
        readings.looked = Some(mark);
    }

    /// What was counted between the last two looks; `None` if there were no two, or nobody has
    /// looked since this was asked before.
    pub(super) fn seen(&self) -> Option<Counted> {
        self.readings().seen.take()
    }

    /// The difference of the last two.
    ///
    /// # Errors
    /// There are no two.
    pub(super) fn counted(&self) -> Result<Counted, Error> {
        match self.readings().counting.as_slice() {
            [.., start, end] => Ok(between(start, end)),
            _ => Err(Error::Run("the stack's counters were not read".into())),
        }
    }
}

/// What was counted between two readings.
fn between(start: &Mark, end: &Mark) -> Counted {
    let count = |name| {
        end.stats
            .count(name)
            .saturating_sub(start.stats.count(name))
    };
    let profile = profiled(&start.stats, &end.stats);
    let locks = end.stats.locks.iter().map(|(class, e)| {
        let s = start.stats.locks.get(class).copied().unwrap_or_default();
        // Locks that have gone, as those of a closed listener, take their counts along.
        let LockStats {
            acquisitions,
            contended,
            wait_ns,
            hold_ns,
            ..
        } = e.since(s);
        Locks {
            class: (*class).into(),
            acquisitions,
            contended,
            wait_ns,
            hold_ns,
            times: profile.as_ref().and_then(|p| lock_times(p, class)),
        }
    });
    let protocol = end.protocol.since(&start.protocol);
    let mut servers = end.inbound.since(&start.inbound);
    servers.add(protocol);
    Counted {
        window_ns: end.at.duration_since(start.at).as_nanos() as u64,
        peer_ns: end.stats.peer_ns.saturating_sub(start.stats.peer_ns),
        idle_ns: count("idle_ns").saturating_sub(count("park_cpu_ns")),
        look_ns: count("look_ns"),
        retransmits: count("retransmits"),
        locks: locks.collect(),
        paths: profile.as_ref().map_or_else(Vec::new, paths),
        servers,
        protocol_ns: protocol.cpu_ns,
        helpers: end.helpers.since(&start.helpers),
    }
}

/// What was timed between two readings.
fn profiled(start: &Stats, end: &Stats) -> Option<Profile> {
    let (start, end) = (start.profile.as_ref()?, end.profile.as_ref()?);
    Some(end.since(start))
}

/// The times of a class of locks by its name.
fn lock_times(profile: &Profile, class: &str) -> Option<LockTimes> {
    let times = profile.locks(LockClass::named(class)?);
    Some(LockTimes {
        wait: (&times.wait).into(),
        hold: (&times.hold).into(),
    })
}

fn paths(profile: &Profile) -> Vec<PathTime> {
    let one = |path: Path| PathTime {
        path: path.name().into(),
        count: profile.path(path).count,
        ns: profile.path(path).ns,
    };
    Path::ALL.into_iter().map(one).collect()
}

/// What was counted between two marks.
#[derive(Debug, Clone, Default)]
pub(super) struct Counted {
    /// Length of the window.
    pub window_ns: u64,
    /// Wall time in the ideal peer.
    pub peer_ns: u64,
    /// Wall time in which threads looked around in place of sleeping, in vain.
    pub look_ns: u64,
    /// Off-core time of threads parked in the application's calls, delays of waking up included.
    pub idle_ns: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Locks by class.
    pub locks: Vec<Locks>,
    /// Hand-overs, where they were timed.
    pub paths: Vec<PathTime>,
    /// The stack's threads that serve devices or run the protocol.
    pub servers: Scheduled,
    /// Of those, the processor time of the ones that run the protocol.
    pub protocol_ns: u64,
    /// The stack's other threads.
    pub helpers: Scheduled,
}

impl Counted {
    /// Together with what another stack of this process counted at the same time. Threads are
    /// counted by name, so those of both are in each already.
    pub(super) fn with(mut self, other: Counted) -> Counted {
        self.peer_ns += other.peer_ns;
        self.idle_ns += other.idle_ns;
        self.retransmits += other.retransmits;
        for lock in other.locks {
            match self.locks.iter_mut().find(|l| l.class == lock.class) {
                Some(sum) => {
                    sum.acquisitions += lock.acquisitions;
                    sum.contended += lock.contended;
                    sum.wait_ns += lock.wait_ns;
                    sum.hold_ns += lock.hold_ns;
                    if let (Some(times), Some(more)) = (&mut sum.times, &lock.times) {
                        times.add(more);
                    }
                }
                None => self.locks.push(lock),
            }
        }
        for path in other.paths {
            match self.paths.iter_mut().find(|p| p.path == path.path) {
                Some(sum) => {
                    sum.count += path.count;
                    sum.ns += path.ns;
                }
                None => self.paths.push(path),
            }
        }
        self
    }

    /// Threads of a run with so many of the application's.
    pub(super) fn threads(&self, application: usize) -> usize {
        application + self.servers.threads
    }

    /// The sample of a run whose application threads, this program's at both ends, have `tallies`
    /// and in which those under test have `times`.
    pub(super) fn sample(
        self,
        tallies: &[Tally],
        window: (Machine, Duration),
        times: Times,
    ) -> Sample {
        let threads = self.threads(tallies.len());
        Sample {
            locks: self.locks,
            retransmits: self.retransmits,
            paths: self.paths,
            ..Sample::received(tallies, window, threads, times)
        }
    }
}

/// Divides the time of the application's threads and of the stack's.
///
/// Threads begin and end their windows when they notice the phase, so each tally is scaled to the
/// window of the marks.
pub(super) fn divide(tallies: &[Tally], counted: &Counted) -> Times {
    let window = counted.window_ns;
    let scaled = |ns: u64, by: u64, of: u64| (ns as f64 * by as f64 / of.max(1) as f64) as u64;
    let mut elapsed = counted.servers.threads as u64 * window + counted.helpers.cpu_ns;
    let mut cpu = counted.servers.cpu_ns + counted.helpers.cpu_ns;
    let mut delay = counted.servers.delay_ns;
    let mut app = 0;
    for t in tallies {
        let to_window = |ns| scaled(ns, window, t.elapsed_ns);
        elapsed += window;
        app += to_window(t.app_ns);
        cpu += to_window(t.cpu_ns);
        delay += to_window(t.delay_ns);
    }
    let waited: u64 = counted.locks.iter().map(|l| l.wait_ns).sum();
    let most_spun: u64 = counted
        .locks
        .iter()
        .map(|l| l.wait_ns.min(l.contended.saturating_mul(SPIN_NS)))
        .sum();
    // Off-core time that is not idle: others had the core, or a lock's holder kept us waiting for
    // so long that we slept. A delay of waking up is in the idle time already, so the scheduler's
    // account of delays is an upper bound only.
    let off = elapsed.saturating_sub(cpu);
    let parked = parked(counted);
    let rest = off.saturating_sub(parked);
    let preempted = rest.min(delay);
    // Who waits for a lock spins or sleeps. Off-core time that nothing else explains was such sleep,
    // at most as much as was waited; the rest of the waiting was spinning.
    let slept = (rest - preempted).min(waited);
    let spun = most_spun.min(waited - slept) + counted.look_ns;
    let idle = parked + slept;
    let busy = elapsed.saturating_sub(idle).max(1);
    let on_cpu = |ns| scaled(ns, cpu.min(busy), busy);
    let (app, peer, spin) = (on_cpu(app), on_cpu(counted.peer_ns), on_cpu(spun));
    Times {
        elapsed,
        cpu,
        preempted,
        app,
        stack: Some(cpu.saturating_sub(app + peer + spin)),
        peer: Some(peer),
        spin,
        idle,
    }
}

/// Off-core time of parked threads.
///
/// The stack counts a park when it ends, so one that reaches over an end of the window is missing,
/// or counted though most of it came before. The application's parks are short against the window.
/// The stack's own threads may sleep through all of it, but are off their cores only when they
/// park, wait for a lock or for a core, so that the scheduler tells when they were parked.
fn parked(counted: &Counted) -> u64 {
    let servers = &counted.servers;
    let all = servers.threads as u64 * counted.window_ns;
    counted.idle_ns + all.saturating_sub(servers.cpu_ns + servers.delay_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(elapsed: u64, cpu: u64, delay: u64, app: u64) -> Tally {
        Tally {
            elapsed_ns: elapsed,
            cpu_ns: cpu,
            delay_ns: delay,
            app_ns: app,
            ..Tally::default()
        }
    }

    fn counted(idle: u64, peer: u64, waited: u64) -> Counted {
        Counted {
            window_ns: 1000,
            idle_ns: idle,
            peer_ns: peer,
            locks: vec![Locks {
                class: "group".into(),
                acquisitions: 1,
                contended: 1,
                wait_ns: waited,
                ..Locks::default()
            }],
            ..Counted::default()
        }
    }

    #[test]
    fn what_the_clocks_agree_on_is_valid() {
        // Two threads: 1600 on a core, 400 parked.
        let times = divide(
            &[tally(1000, 800, 0, 100), tally(1000, 800, 0, 100)],
            &counted(400, 300, 50),
        );
        assert_eq!(times.elapsed, 2000);
        assert_eq!((times.app, times.peer, times.spin), (200, Some(300), 50));
        assert_eq!(times.stack, Some(1600 - 550));
        assert!(times.valid(), "{times:?}");
        assert_eq!(times.preempted, 0);
    }

    #[test]
    fn windows_of_other_lengths_are_scaled() {
        let times = divide(&[tally(500, 400, 0, 50)], &counted(200, 150, 0));
        assert_eq!((times.elapsed, times.cpu, times.app), (1000, 800, 100));
        assert!(times.valid(), "{times:?}");
    }

    #[test]
    fn time_of_others_is_taken_out_of_every_share() {
        // Half of the busy time went to others; the wall clocks saw twice the work.
        let times = divide(&[tally(1000, 400, 400, 200)], &counted(200, 200, 0));
        assert_eq!((times.app, times.peer), (100, Some(100)));
        assert_eq!((times.stack, times.preempted), (Some(200), 400));
        assert!(times.valid(), "{times:?}");
    }

    #[test]
    fn off_core_time_that_nobody_explains_is_invalid() {
        let busy = [tally(1000, 800, 0, 100)];
        assert!(!divide(&busy, &counted(100, 0, 0)).valid(), "unexplained");
        assert!(!divide(&busy, &counted(300, 0, 0)).valid(), "idle twice");
        // Shares that exceed the CPU clock.
        assert!(!divide(&busy, &counted(200, 900, 0)).valid());
    }

    #[test]
    fn a_long_wait_for_a_lock_is_spent_asleep() {
        let mut c = counted(100_000, 0, 105_000);
        c.window_ns = 1_000_000;
        let times = divide(&[tally(1_000_000, 800_000, 0, 0)], &c);
        assert_eq!((times.spin, times.idle), (5_000, 200_000));
        assert!(times.valid(), "{times:?}");
    }

    #[test]
    fn short_sleeps_for_a_lock_are_no_spinning() {
        // Many waits, each shorter than a lock may spin, in which half of the time was slept.
        let mut c = counted(0, 0, 200_000);
        (c.window_ns, c.locks[0].contended) = (1_000_000, 100);
        let times = divide(&[tally(1_000_000, 900_000, 0, 0)], &c);
        assert_eq!((times.spin, times.idle), (100_000, 100_000));
        assert!(times.valid(), "{times:?}");
        // More than all waits for locks took nobody explains.
        assert!(!divide(&[tally(1_000_000, 700_000, 0, 0)], &c).valid());
    }

    #[test]
    fn servers_that_sleep_through_the_window_are_no_mystery() {
        // Ten threads of the stack that slept but for 50, beside one of the application's.
        let busy = [tally(1000, 900, 0, 100)];
        let with = |idle| {
            let mut c = counted(idle, 300, 0);
            (c.servers.threads, c.servers.cpu_ns) = (10, 50);
            divide(&busy, &c)
        };
        let times = with(100);
        assert_eq!((times.elapsed, times.cpu), (11_000, 950));
        assert_eq!(times.idle, 10_050);
        assert!(times.valid(), "{times:?}");
        // Their sleep explains none of the application's time.
        let all = [tally(1000, 100, 0, 50)];
        let mut c = counted(0, 0, 0);
        (c.servers.threads, c.servers.cpu_ns) = (1, 50);
        assert!(!divide(&all, &c).valid());
        c.idle_ns = 900;
        assert!(divide(&all, &c).valid());
    }

    #[test]
    fn threads_of_the_stack_count() {
        let mut c = counted(100, 300, 0);
        (c.servers.cpu_ns, c.servers.threads) = (500, 1);
        c.helpers.cpu_ns = 10;
        let times = divide(&[tally(1000, 900, 0, 100)], &c);
        assert_eq!((times.elapsed, times.cpu), (2010, 1410));
        assert!(times.valid(), "{times:?}");
    }
}
