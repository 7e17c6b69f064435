//! Simulations that foreign OS threads drive.

use super::*;

#[test]
fn embedded_calls_block_and_are_released() {
    let sim = Embedded::new(VirtualConfig::default());
    let p = sim.platform();
    let event = Arc::new(p.event());
    let p2 = p.clone();
    assert_eq!(sim.call(move || p2.cores()), 4);
    std::thread::scope(|s| {
        let (e, p1) = (event.clone(), p.clone());
        let sim = &sim;
        let waiter = s.spawn(move || {
            sim.call(move || {
                let set = e.wait(Time::from_millis(10));
                (set, p1.now())
            })
        });
        while sim.next_deadline().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(sim.next_deadline(), Some(Time::from_millis(10)));
        sim.advance_to(Time::from_millis(3));
        assert_eq!(sim.now(), Time::from_millis(3));
        assert!(!waiter.is_finished());
        let e = event.clone();
        sim.call(move || e.set());
        assert_eq!(waiter.join().unwrap(), (true, Time::from_millis(3)));
        // Let go by time, and by an OS thread outside.
        let (e, p1) = (event.clone(), p.clone());
        let waiter = s.spawn(move || {
            let w = move |n| e.wait(Time::from_millis(n));
            sim.call(move || (w(10), p1.now(), w(20), p1.now()))
        });
        while sim.next_deadline().is_none() {
            std::thread::yield_now();
        }
        sim.advance_to(Time::from_millis(15));
        event.set();
        let at = Time::from_millis(15);
        assert_eq!(
            waiter.join().unwrap(),
            (false, Time::from_millis(10), true, at)
        );
    });
    // An OS thread outside waits for what a virtual thread does.
    let e = event.clone();
    let q = p.clone();
    let t = p.spawn(
        "late",
        None,
        Box::new(move || {
            q.sleep_until(Time::from_millis(40));
            e.set();
        }),
    );
    std::thread::scope(|s| {
        let w = s.spawn(|| event.wait(Time::NEVER));
        sim.advance_to(Time::from_millis(50));
        assert!(w.join().unwrap());
    });
    t.join().unwrap();
    assert!(sim.failure().is_none());
}

#[test]
fn embedded_panic_reaches_the_caller_and_ends_it() {
    let sim = Embedded::new(VirtualConfig::default());
    let p = sim.platform();
    let lock = Arc::new(p.lock(LockClass::Leaf, 0));
    let dropped = Arc::new(AtomicU32::new(0));
    let c = Counted::new(&dropped, &lock);
    let q = p.clone();
    p.spawn(
        "sleeper",
        None,
        Box::new(move || {
            let _c = c;
            q.sleep_until(Time::NEVER.min(Time::from_millis(1000)));
        }),
    );
    sim.settle();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        sim.call(|| resume_quietly("planned"));
    }));
    assert_eq!(
        shared::message(&*caught.unwrap_err()),
        "planned",
        "the panic itself"
    );
    sim.settle();
    assert_eq!(sim.failure().unwrap().kind, FailureKind::Panic);
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    // Nothing hangs afterwards.
    sim.advance_to(Time::from_millis(9));
    p.spawn("never", None, Box::new(|| ()));
}

#[test]
fn embedded_drop_unwinds_what_is_blocked() {
    let dropped = Arc::new(AtomicU32::new(0));
    let sim = Embedded::new(VirtualConfig::default());
    let p = sim.platform();
    let c = Counted::new(&dropped, &Arc::new(p.lock(LockClass::Leaf, 0)));
    let e = p.event();
    p.spawn(
        "blocked",
        None,
        Box::new(move || {
            let _c = c;
            e.wait(Time::NEVER);
        }),
    );
    sim.settle();
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    drop(sim);
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
}

#[test]
fn a_platform_by_clock_has_the_time_that_it_is_told_and_waits_for_nobody() {
    let clock = Arc::new(AtomicU64::new(7));
    let p = Virtual::by_clock(3, clock.clone());
    assert_eq!((p.now(), p.lane()), (Time(7), 0));
    clock.store(9, Ordering::Relaxed);
    assert_eq!(p.now(), Time(9));
    assert_eq!(p.secret(), Virtual::by_clock(3, clock.clone()).secret());
    assert_ne!(p.secret(), Virtual::by_clock(4, clock.clone()).secret());
    let (lock, event) = (p.lock(LockClass::Leaf, 1), p.event());
    *lock.lock() += 1;
    event.set();
    assert!(event.wait(Time::NEVER));
    assert!(!event.wait(Time(9)), "it is that late already");
    // Another thread is not the one, and nobody would ever wake this one.
    let other = p.clone();
    assert_ne!(std::thread::spawn(move || other.lane()).join().unwrap(), 0);
    let held = lock.lock();
    let waits: [&dyn Fn(); 2] = [&|| drop(lock.lock()), &|| assert!(event.wait(Time(10)))];
    for wait in waits {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait));
        let text = *panic.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("would block for ever"), "{text}");
    }
    drop(held);
    assert_eq!(*lock.lock(), 2);
}
