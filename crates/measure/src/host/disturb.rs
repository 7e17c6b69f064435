//! Whether something else disturbed a run.
//!
//! Nothing here looks at what the run measured: a run that is flagged is flagged for what the
//! machine did, not for its result.

use super::Machine;

/// Share of the cores that the hypervisor may take.
const STEAL: f64 = 0.01;
/// Share of the cores that other processes may use. The kernel counts in ticks of 10 ms.
const OTHERS: f64 = 0.10;
/// Share of thread time for which others may have the cores.
const PREEMPTED: f64 = 0.05;
/// Involuntary context switches per thread and second. A stack's own service thread makes 200;
/// two busy threads that share a core by time slices make 250 and more, but then they are seen to
/// be preempted, so this is for storms.
const SWITCHES: f64 = 1000.0;

/// What is known of the machine during a run.
#[derive(Debug, Clone, Copy)]
pub struct Evidence {
    /// What the machine did meanwhile.
    pub machine: Machine,
    /// How long it took, ns.
    pub wall_ns: u64,
    /// Cores that the process may use.
    pub cores: usize,
    /// Those of them that the threads of the run are bound to, or all.
    pub bound: usize,
    /// Threads of the run, those of a peer in the same process included.
    pub threads: usize,
    /// Time of the threads under test, ns.
    pub thread_ns: u64,
    /// That part of it in which they were ready, and others had their cores, ns.
    pub preempted_ns: u64,
}

impl Evidence {
    /// Signs of a disturbance, each a line; none if nothing is to be said.
    ///
    /// With more threads than cores these wait for each other, which is nobody else's doing: then
    /// only what the machine says of others counts.
    pub fn signs(&self) -> Vec<String> {
        let mut signs = Vec::new();
        let capacity = self.wall_ns.saturating_mul(self.cores as u64).max(1) as f64;
        let steal = self.machine.steal_ns as f64 / capacity;
        if steal > STEAL {
            signs.push(format!(
                "the hypervisor stole {:.0} % of the processor time",
                steal * 100.0
            ));
        }
        let others = self.machine.busy_ns.saturating_sub(self.machine.cpu_ns()) as f64 / capacity;
        if others > OTHERS {
            signs.push(format!(
                "other processes used {:.0} % of the processor time",
                others * 100.0
            ));
        }
        if self.threads > self.bound {
            return signs;
        }
        let preempted = self.preempted_ns as f64 / self.thread_ns.max(1) as f64;
        if preempted > PREEMPTED {
            signs.push(format!(
                "threads under test were preempted {:.0} % of the time",
                preempted * 100.0
            ));
        }
        let thread_seconds = self.wall_ns as f64 / 1e9 * self.threads.max(1) as f64;
        let switches = self.machine.involuntary as f64 / thread_seconds.max(1e-9);
        if switches > SWITCHES {
            signs.push(format!(
                "threads were preempted {switches:.0} times per second"
            ));
        }
        signs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn quiet() -> Evidence {
        Evidence {
            machine: Machine {
                process_cpu_ns: 2 * SECOND,
                busy_ns: 2 * SECOND,
                involuntary: 400,
                ..Machine::default()
            },
            wall_ns: SECOND,
            cores: 2,
            bound: 2,
            threads: 2,
            thread_ns: 2 * SECOND,
            preempted_ns: SECOND / 50,
        }
    }

    #[test]
    fn each_sign_is_seen_and_named() {
        assert!(quiet().signs().is_empty());
        type Change = fn(&mut Evidence);
        let disturb: [(Change, &str); 4] = [
            (|e| e.machine.steal_ns = SECOND / 10, "hypervisor stole 5 %"),
            (
                |e| e.machine.process_cpu_ns = SECOND,
                "other processes used 50 %",
            ),
            (|e| e.preempted_ns = SECOND, "preempted 50 % of the time"),
            (|e| e.machine.involuntary = 10_000, "5000 times per second"),
        ];
        for (change, says) in disturb {
            let mut e = quiet();
            change(&mut e);
            let signs = e.signs();
            assert_eq!(signs.len(), 1, "{says}: {signs:?}");
            assert!(signs[0].contains(says), "{signs:?}");
        }
    }

    #[test]
    fn threads_that_outnumber_the_cores_disturb_themselves() {
        let mut e = quiet();
        (e.preempted_ns, e.machine.involuntary) = (SECOND, 50_000);
        assert_eq!(e.signs().len(), 2);
        // All four on two cores, or both on one.
        for (threads, bound) in [(4, 2), (2, 1)] {
            (e.threads, e.bound) = (threads, bound);
            assert!(e.signs().is_empty(), "{:?}", e.signs());
        }
        e.machine.steal_ns = SECOND;
        assert_eq!(e.signs().len(), 1);
    }

    #[test]
    fn an_empty_window_is_no_disturbance() {
        let e = Evidence {
            machine: Machine::default(),
            wall_ns: 0,
            cores: 1,
            bound: 1,
            threads: 0,
            thread_ns: 0,
            preempted_ns: 0,
        };
        assert!(e.signs().is_empty());
    }
}
