//! What is known about the machine: its description, and what it did during a run.

pub mod apart;
pub mod disturb;
pub mod steady;

use serde::{Deserialize, Serialize};
use std::{fs, num::NonZeroU64};

/// Description of the machine, as recorded with every report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Processor's name as the kernel reports it.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Kernel name and release.
    pub kernel: String,
    /// Machine architecture.
    pub arch: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl Host {
    /// Reads the description; what can't be read is `unknown` or 0.
    pub fn read() -> Self {
        let cpu = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".into());
        let release = read("/proc/sys/kernel/osrelease");
        Host {
            cpu,
            cores: cores(),
            kernel: match release.trim() {
                "" => "unknown".into(),
                r => format!("Linux {r}"),
            },
            arch: std::env::consts::ARCH.into(),
            memory_bytes: kilobytes("MemTotal"),
        }
    }
}

/// Has the kernel wake this thread, and those that it starts, when their time has come. By default
/// it may do so up to 50 µs later (prctl(2), `PR_SET_TIMERSLACK`).
///
/// A memory NIC's frames arrive by the clock: a thread that sleeps until then stands for one that a
/// card's interrupt wakes, and no card waits for 50 µs more, which is as much as its round trip.
pub fn timers_on_time() {
    // A kernel that refuses leaves its own slack, as before.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Cores that this process may use, at least 1.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Bytes of memory that programs can have without swapping; 0 if the system doesn't tell.
pub fn memory_available() -> u64 {
    kilobytes("MemAvailable")
}

/// A field of the system's account of memory, in bytes.
fn kilobytes(name: &str) -> u64 {
    let value = field(&read("/proc/meminfo"), name);
    let number = value.and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

/// A file's text, empty if it can't be read.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Value of the first `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_string())
    })
}

/// Counters of the machine and of this process at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Machine {
    /// CPU time of all threads of this process, user and system, in ns. The kernel charges protocol
    /// work in interrupt context to the thread that it interrupts, so nearly all of it is here.
    pub process_cpu_ns: u64,
    /// CPU time of the kernel's per-core interrupt threads, which take over when that work piles
    /// up, in ns.
    pub softirq_ns: u64,
    /// Busy time of all cores, in ns, in steps of the kernel's tick (10 ms).
    pub busy_ns: u64,
    /// Time that the hypervisor gave to others, in ns.
    pub steal_ns: u64,
    /// Voluntary context switches of this process.
    pub voluntary: u64,
    /// Involuntary context switches of this process.
    pub involuntary: u64,
    /// Moves of this process's threads from core to core; `None` where the kernel does not count
    /// them. Only a session looks, as that takes a while with many threads.
    pub migrations: Option<u64>,
}

impl Machine {
    /// Reads the counters.
    pub fn read(softirq_threads: &SoftirqThreads) -> Self {
        let mut machine = Machine {
            softirq_ns: softirq_threads.cpu_ns(),
            ..Machine::default()
        };
        (machine.busy_ns, machine.steal_ns) = parse_stat(&read("/proc/stat"));
        #[cfg(target_os = "linux")]
        {
            use nix::sys::resource::{UsageWho, getrusage};
            if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
                machine.voluntary = usage.voluntary_context_switches() as u64;
                machine.involuntary = usage.involuntary_context_switches() as u64;
            }
            machine.process_cpu_ns = clock_ns(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
        }
        machine
    }

    /// What happened since `earlier`.
    pub fn since(&self, earlier: &Machine) -> Machine {
        Machine {
            process_cpu_ns: self.process_cpu_ns.saturating_sub(earlier.process_cpu_ns),
            softirq_ns: self.softirq_ns.saturating_sub(earlier.softirq_ns),
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
            steal_ns: self.steal_ns.saturating_sub(earlier.steal_ns),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
            migrations: match (self.migrations, earlier.migrations) {
                (Some(now), Some(then)) => Some(now.saturating_sub(then)),
                _ => None,
            },
        }
    }

    /// CPU time that a run cost the whole machine, without what unrelated processes used.
    pub fn cpu_ns(&self) -> u64 {
        self.process_cpu_ns + self.softirq_ns
    }
}

/// How often the threads of this process that there are now have moved from core to core.
pub fn migrations() -> Option<u64> {
    let mut sum = None;
    for entry in fs::read_dir("/proc/self/task").ok()?.flatten() {
        let text = fs::read_to_string(entry.path().join("sched")).unwrap_or_default();
        if let Some(n) = field(&text, "se.nr_migrations").and_then(|n| n.parse::<u64>().ok()) {
            *sum.get_or_insert(0) += n;
        }
    }
    sum
}

/// Busy and stolen ns of all cores from the text of `/proc/stat`, whose unit is 1/100 s
/// (USER_HZ, fixed by the kernel's ABI on every supported architecture).
fn parse_stat(text: &str) -> (u64, u64) {
    let Some(line) = text.lines().find(|l| l.starts_with("cpu ")) else {
        return (0, 0);
    };
    // user nice system idle iowait irq softirq steal …
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map(|v| v.parse().unwrap_or(0))
        .collect();
    let at = |i: usize| ticks.get(i).copied().unwrap_or(0);
    let busy = at(0) + at(1) + at(2) + at(5) + at(6);
    (busy * 10_000_000, at(7) * 10_000_000)
}

/// The kernel's per-core interrupt threads, found once.
#[derive(Debug, Clone, Default)]
pub struct SoftirqThreads {
    pids: Vec<u32>,
}

impl SoftirqThreads {
    /// Finds them; empty where `/proc` hides them.
    pub fn find() -> Self {
        let mut pids = Vec::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            if read(&format!("/proc/{pid}/comm")).starts_with("ksoftirqd/") {
                pids.push(pid);
            }
        }
        SoftirqThreads { pids }
    }

    /// Their CPU time in ns.
    fn cpu_ns(&self) -> u64 {
        self.pids
            .iter()
            .filter_map(|pid| {
                let text = read(&format!("/proc/{pid}/schedstat"));
                text.split_whitespace().next()?.parse::<u64>().ok()
            })
            .sum()
    }
}

/// Whether this process may create files in `directory`.
pub fn may_create_in(directory: &std::path::Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Access, access};
        access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    }
    #[cfg(not(target_os = "linux"))]
    directory
        .metadata()
        .is_ok_and(|d| !d.permissions().readonly())
}

/// What the kernel's scheduler says about threads, ns (`schedstat`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scheduled {
    /// On a core.
    pub cpu_ns: u64,
    /// Ready to run, while others had the core.
    pub delay_ns: u64,
    /// How many threads there are.
    pub threads: usize,
}

impl Scheduled {
    /// The calling thread.
    pub fn here() -> Scheduled {
        parse_schedstat(&read("/proc/thread-self/schedstat"))
    }

    /// All threads of this process whose name begins with one of `prefixes`.
    pub fn named(prefixes: &[&str]) -> Scheduled {
        let [one] = Scheduled::groups([prefixes]);
        one
    }

    /// Several groups of threads, each as in [`Scheduled::named`], read at once.
    pub fn groups<const N: usize>(groups: [&[&str]; N]) -> [Scheduled; N] {
        let mut sums = [Scheduled::default(); N];
        for entry in fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten()
        {
            let file = |name| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            let name = file("comm");
            let of = |group: &&[&str]| group.iter().any(|p| name.starts_with(p));
            if let Some(i) = groups.iter().position(of) {
                sums[i].add(parse_schedstat(&file("schedstat")));
            }
        }
        sums
    }

    /// Adds other threads.
    pub fn add(&mut self, more: Scheduled) {
        self.cpu_ns += more.cpu_ns;
        self.delay_ns += more.delay_ns;
        self.threads += more.threads;
    }

    /// What happened since `earlier` to the threads that there are now.
    pub fn since(&self, earlier: &Scheduled) -> Scheduled {
        Scheduled {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            delay_ns: self.delay_ns.saturating_sub(earlier.delay_ns),
            threads: self.threads,
        }
    }
}

/// Time on a core, time ready, number of turns; zeros where the kernel keeps no such account.
fn parse_schedstat(text: &str) -> Scheduled {
    let mut numbers = text.split_whitespace().map(|v| v.parse().unwrap_or(0));
    Scheduled {
        cpu_ns: numbers.next().unwrap_or(0),
        delay_ns: numbers.next().unwrap_or(0),
        threads: 1,
    }
}

/// CPU time of the calling thread in ns.
pub fn thread_cpu_ns() -> u64 {
    #[cfg(target_os = "linux")]
    {
        clock_ns(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)
    }
    #[cfg(not(target_os = "linux"))]
    0
}

/// A clock of the system in ns, by way of the C library: other ways to the kernel's own page
/// with the clocks do not work under valgrind, which moves it.
#[cfg(target_os = "linux")]
fn clock_ns(id: nix::time::ClockId) -> u64 {
    id.now().map_or(0, |t| {
        t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64
    })
}

/// Pins the calling thread to the `index`-th of the cores that it may use, wrapping around.
/// Returns the core, or `None` if the system refuses.
pub fn pin(index: usize) -> Option<usize> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let allowed = sched_getaffinity(None).ok()?;
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|&c| allowed.is_set(c))
            .collect();
        let core = *cores.get(index % cores.len().max(1))?;
        let mut one = CpuSet::new();
        one.set(core);
        sched_setaffinity(None, &one).ok()?;
        Some(core)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = index;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_line() {
        let text = "cpu  10 2 30 400 5 6 7 8 0 0\ncpu0 1 1 1 1\n";
        assert_eq!(parse_stat(text), (55 * 10_000_000, 8 * 10_000_000));
        assert_eq!(parse_stat(""), (0, 0));
        assert_eq!(parse_stat("cpu  x y\n"), (0, 0));
    }

    #[test]
    fn threads_are_seen_to_work_by_name() {
        let text = parse_schedstat("17 4 9\n");
        assert_eq!((text.cpu_ns, text.delay_ns), (17, 4));
        assert_eq!(parse_schedstat("").cpu_ns, 0);
        let work = || {
            let before = Scheduled::named(&["odd-name"]);
            // Enough for a tick of the kernel's clock, at which it brings the account up to date.
            while thread_cpu_ns() < 30_000_000 {
                std::hint::spin_loop();
            }
            let spent = Scheduled::named(&["odd-name"]).since(&before);
            assert_eq!(spent.threads, 1);
            spent.cpu_ns
        };
        let thread = std::thread::Builder::new().name("odd-name".into());
        assert!(thread.spawn(work).unwrap().join().unwrap() > 10_000_000);
        assert_eq!(Scheduled::named(&["no-such-thread"]), Scheduled::default());
    }

    #[test]
    fn fields() {
        let text = "a: b\nmodel name\t: Some CPU: v2\nmodel name : other\n";
        assert_eq!(field(text, "model name").as_deref(), Some("Some CPU: v2"));
        assert_eq!(field(text, "none"), None);
    }

    #[test]
    fn the_process_is_seen_to_work() {
        let threads = SoftirqThreads::find();
        let before = Machine::read(&threads);
        let mut x = 1u64;
        for i in 0..3_000_000u64 {
            x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(i));
        }
        let delta = Machine::read(&threads).since(&before);
        assert!(delta.cpu_ns() > 100_000, "{delta:?} {x}");
    }
}
