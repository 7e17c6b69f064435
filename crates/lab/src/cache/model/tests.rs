use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

fn geometry(lines: u64, ways: usize) -> Geometry {
    Geometry {
        size: lines * 64,
        ways,
        line: 64,
    }
}

/// Caches of a few lines.
fn small(sharing: Sharing) -> Caches {
    Caches {
        name: "small".into(),
        l1: geometry(4, 2),
        l2: geometry(16, 4),
        sharing,
    }
}

const ALL: [Sharing; 3] = [Sharing::Exclusive, Sharing::Inclusive, Sharing::Independent];

/// A system of two cores whose line 0 is in the given states.
fn in_states(a: Option<State>, b: Option<State>) -> System {
    use State::{Exclusive, Modified, Shared};
    let mut s = System::new(&small(Sharing::Exclusive), 2);
    match (a, b) {
        (Some(Modified), None) => _ = s.access(0, 0, 8, true),
        (None, Some(Modified)) => _ = s.access(1, 0, 8, true),
        (Some(Exclusive), None) => _ = s.access(0, 0, 8, false),
        (None, Some(Exclusive)) => _ = s.access(1, 0, 8, false),
        (Some(Shared), Some(Shared)) => {
            s.access(0, 0, 8, false);
            s.access(1, 0, 8, false);
        }
        (None, None) => {}
        other => panic!("{other:?} can't be"),
    }
    assert_eq!((s.state(0, 0), s.state(1, 0)), (a, b));
    s
}

/// Every transition of the protocol, seen from both cores.
#[test]
fn transitions() {
    use State::{Exclusive as E, Modified as M, Shared as S};
    let (read, write) = (false, true);
    let missed = |why| Some(Outcome::Missed(why));
    let hit = Some(Outcome::First);
    let table = [
        // Core 0, core 1, what core 0 does, then core 0, core 1, and the outcome.
        (None, None, read, Some(E), None, missed(Miss::Cold)),
        (None, None, write, Some(M), None, missed(Miss::Cold)),
        (Some(E), None, read, Some(E), None, hit),
        (Some(E), None, write, Some(M), None, hit),
        (Some(M), None, read, Some(M), None, hit),
        (Some(M), None, write, Some(M), None, hit),
        (Some(S), Some(S), read, Some(S), Some(S), hit),
        (Some(S), Some(S), write, Some(M), None, hit),
        (None, Some(E), read, Some(S), Some(S), missed(Miss::Cold)),
        (None, Some(E), write, Some(M), None, missed(Miss::Cold)),
        (
            None,
            Some(M),
            read,
            Some(S),
            Some(S),
            missed(Miss::Coherence),
        ),
        (None, Some(M), write, Some(M), None, missed(Miss::Coherence)),
    ];
    for (a, b, write, then_a, then_b, outcome) in table {
        let mut s = in_states(a, b);
        let before = s.upgrades();
        assert_eq!(
            Some(s.access(0, 0, 8, write)),
            outcome,
            "{a:?} {b:?} {write}"
        );
        assert_eq!(
            (s.state(0, 0), s.state(1, 0)),
            (then_a, then_b),
            "{a:?} {b:?} {write}"
        );
        let upgraded = a == Some(S) && write;
        assert_eq!(s.upgrades() - before, u64::from(upgraded));
    }
}

#[test]
fn a_lock_between_two_cores_moves_at_every_turn() {
    let mut s = System::new(&small(Sharing::Exclusive), 2);
    let mut coherence = 0;
    for turn in 0..100 {
        let core = turn % 2;
        for _ in 0..2 {
            let outcome = s.access(core, 0x1000, 4, true);
            coherence += u64::from(outcome == Outcome::Missed(Miss::Coherence));
        }
    }
    assert_eq!(coherence, 99);
}

#[test]
fn what_the_device_writes_is_missed() {
    let mut s = System::new(&small(Sharing::Inclusive), 2);
    s.access(0, 0, 64, true);
    s.device_write(32, 64);
    assert_eq!(s.access(0, 0, 8, false), Outcome::Missed(Miss::Device));
    assert_eq!(s.access(0, 0, 8, false), Outcome::First);
    // The second line of the device's write was in no cache.
    assert_eq!(s.access(0, 64, 8, false), Outcome::Missed(Miss::Device));
    assert_eq!(s.access(0, 128, 8, false), Outcome::Missed(Miss::Cold));
}

#[test]
fn an_access_over_two_lines_is_as_bad_as_the_worse() {
    let mut s = System::new(&small(Sharing::Exclusive), 1);
    s.access(0, 0, 8, false);
    assert_eq!(s.access(0, 60, 8, false), Outcome::Missed(Miss::Cold));
    assert_eq!(s.access(0, 60, 8, false), Outcome::First);
}

/// Lines of one set, one more than both levels hold: exclusive caches hold the sum, inclusive
/// ones the second level.
#[test]
fn capacity() {
    for (sharing, lines) in [(Sharing::Exclusive, 6), (Sharing::Inclusive, 4)] {
        for (count, misses) in [(lines, 0), (lines + 1, lines + 1)] {
            let mut s = System::new(&small(sharing), 1);
            // Sets of both levels repeat after 4 lines.
            let mut round = || {
                (0..count)
                    .filter(|i| {
                        let outcome = s.access(0, i * 4 * 64, 8, false);
                        outcome == Outcome::Missed(Miss::Capacity)
                    })
                    .count() as u64
            };
            assert_eq!(round(), 0, "the first time they are cold");
            assert_eq!(round(), misses, "{sharing:?} {count}");
            assert_eq!(round(), misses, "{sharing:?} {count}");
        }
    }
}

/// The least recently used line goes.
#[test]
fn recency() {
    let mut level = Level::new(&geometry(3, 3));
    let shared = |line| (line, State::Shared);
    for line in [1, 2, 3] {
        assert_eq!(level.insert(shared(line)), None);
    }
    assert!(level.touch(1));
    assert_eq!(level.insert(shared(4)), Some(shared(2)));
    assert!(level.state(1).is_some() && !level.touch(2));
    assert!(level.remove(3) && !level.remove(3));
    assert_eq!(level.insert(shared(5)), None);
}

/// One step of a random program.
#[derive(Debug, Clone, Copy)]
enum Step {
    Access(usize, u64, bool),
    Device(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        20 => (0..3usize, 0..40u64, any::<bool>()).prop_map(|(c, l, w)| Step::Access(c, l, w)),
        1 => (0..40u64).prop_map(Step::Device),
    ];
    prop::collection::vec(one, 1..400)
}

/// What holds at every moment.
fn sound(s: &System) {
    let held = |level: &Level| -> Vec<Held> { level.sets.iter().flatten().copied().collect() };
    for line in 0..40 {
        let states: Vec<State> = s.cores.iter().filter_map(|c| c.state(line)).collect();
        let alone = states.iter().any(|s| *s != State::Shared);
        assert!(!alone || states.len() == 1, "line {line}: {states:?}");
    }
    for core in &s.cores {
        let (l1, l2) = (held(&core.l1), held(&core.l2));
        for level in [&core.l1, &core.l2] {
            assert!(level.sets.iter().all(|set| set.len() <= level.ways));
        }
        let both: HashSet<u64> = l1.iter().chain(&l2).map(|h| h.0).collect();
        for (line, state) in l1.iter().chain(&l2) {
            assert_eq!(core.state(*line), Some(*state), "line {line}");
        }
        match core.sharing {
            Sharing::Exclusive => assert_eq!(both.len(), l1.len() + l2.len()),
            Sharing::Inclusive => assert!(l1.iter().all(|l| l2.contains(l))),
            Sharing::Independent => {}
        }
    }
}

proptest! {
    /// One writer or many readers, and the levels share lines as they should, after any program.
    #[test]
    fn invariants(steps in steps()) {
        for sharing in ALL {
            let mut s = System::new(&small(sharing), 3);
            for step in &steps {
                match *step {
                    Step::Access(core, line, write) => {
                        s.access(core, line * 64, 8, write);
                        let state = s.state(core, line * 64);
                        prop_assert!(state.is_some());
                        prop_assert!(!write || state == Some(State::Modified));
                    }
                    Step::Device(line) => {
                        s.device_write(line * 64, 64);
                        prop_assert!((0..3).all(|c| s.state(c, line * 64).is_none()));
                    }
                }
                sound(&s);
            }
        }
    }

    /// Caches that hold everything miss each line once on one core.
    #[test]
    fn enough_room(lines in prop::collection::vec(0..64u64, 1..300)) {
        let caches = Caches {
            l2: geometry(1024, 16),
            ..small(Sharing::Exclusive)
        };
        let mut s = System::new(&caches, 1);
        let missed = |o: Outcome| matches!(o, Outcome::Missed(_));
        let misses = lines.iter().filter(|l| missed(s.access(0, **l * 64, 8, false))).count();
        let distinct: HashSet<&u64> = lines.iter().collect();
        prop_assert_eq!(misses, distinct.len());
    }
}
