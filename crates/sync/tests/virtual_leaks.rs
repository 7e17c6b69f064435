//! Memory over many simulations, in a process of its own so that nothing else allocates.

#![cfg(not(loom))]

use perimeter_base::Time;
use perimeter_sync::virt::{Schedule, Virtual, VirtualConfig, stacks_alive};
use perimeter_sync::{Event, Lock, LockClass, Platform, Thread};
use std::sync::Arc;

fn config(seed: u64) -> VirtualConfig {
    VirtualConfig::default()
        .with_seed(seed)
        .with_schedule(Schedule::Random { switch_one_in: 3 })
}

/// Resident pages of this process.
fn resident() -> u64 {
    let s = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let n = s.split(' ').nth(1).and_then(|n| n.parse().ok());
    n.unwrap_or(0)
}

#[test]
fn a_hundred_thousand_runs_leak_nothing() {
    let one = |seed| {
        let r = Virtual::run(config(seed), move |p: Virtual| {
            let l = Arc::new(p.lock(LockClass::Leaf, vec![0u8; 64]));
            let l2 = l.clone();
            let q = p.clone();
            let body = move || {
                l2.lock().push(1);
                if seed % 10 == 0 {
                    // Every tenth run fails and is unwound.
                    q.event().wait(Time::NEVER);
                }
            };
            let t = p.spawn("t", None, Box::new(body));
            l.lock().push(2);
            t.join().unwrap();
        });
        assert_eq!(r.is_err(), seed % 10 == 0);
    };
    (0..10_000).for_each(one);
    let (pages, stacks) = (resident(), stacks_alive());
    (10_000..110_000).for_each(one);
    assert_eq!(stacks_alive(), stacks);
    // 100 bytes a run would be 2,400 pages.
    assert!(resident() < pages + 500, "{pages} {}", resident());
}
