//! Against RFC 6298's formulas, and Linux's visible timeouts.

use super::*;

const MS: u64 = 1_000_000;

fn rtt() -> Rtt {
    Rtt::new(1_000 * MS, 200 * MS, 120_000 * MS)
}

#[test]
fn before_a_sample_it_is_the_initial_timeout() {
    let mut r = rtt();
    assert_eq!((r.rto(), r.srtt(), r.min_rtt()), (1_000 * MS, 0, None));
    assert_eq!(r.srtt(), 0);
    r.backoff();
    assert_eq!(r.rto(), 2_000 * MS);
    r.syn_was_retransmitted();
    assert_eq!(r.rto(), 3_000 * MS);
    r.sample(50 * MS);
    r.syn_was_retransmitted();
    assert_eq!(r.srtt(), 50 * MS, "a sample beats the fallback");
}

#[test]
fn the_first_sample_sets_both() {
    let mut r = rtt();
    r.sample(100 * MS);
    assert_eq!((r.srtt(), r.rttvar()), (100 * MS, 50 * MS));
    // Linux, and the scripts: 100 + max(200, 4 · 50).
    assert_eq!(r.rto(), 300 * MS);
    r.sample(100 * MS);
    assert_eq!(r.rto(), 300 * MS, "the floor stands under the variance");
}

/// RFC 6298, section 2.3, in floating point; samples rise so that the damping of falling
/// ones stays out of it.
#[test]
fn it_follows_rfc_6298() {
    let mut r = rtt();
    let (mut srtt, mut var) = (0.0f64, 0.0f64);
    for (i, ms) in [80u64, 90, 120, 120, 150, 300, 310, 900, 1000]
        .iter()
        .enumerate()
    {
        let s = (ms * MS) as f64;
        if i == 0 {
            srtt = s;
            var = s / 2.0;
        } else {
            var = 0.75 * var + 0.25 * (srtt - s).abs();
            srtt = 0.875 * srtt + 0.125 * s;
        }
        r.sample(ms * MS);
        assert!((r.srtt() as f64 - srtt).abs() < 10.0);
        assert!((r.rttvar() as f64 - var).abs() < 10.0);
        let rto = srtt + (4.0 * var).max(200e6);
        assert!((r.rto() as f64 - rto).abs() < 100.0);
    }
    assert_eq!(r.min_rtt(), Some(80 * MS));
}

#[test]
fn a_falling_rtt_does_not_raise_the_timeout() {
    let mut r = rtt();
    for _ in 0..50 {
        r.sample(1_000 * MS);
    }
    let before = r.rto();
    for _ in 0..50 {
        r.sample(10 * MS);
        assert!(r.rto() <= before + 150 * MS, "{} from {before}", r.rto());
    }
    assert!(r.rto() < 450 * MS);
}

#[test]
fn back_off_doubles_up_to_the_maximum_and_a_sample_ends_it() {
    let mut r = rtt();
    r.sample(100 * MS);
    for want in [600, 1_200, 2_400] {
        r.backoff();
        assert_eq!(r.rto(), want * MS);
    }
    assert_eq!(r.backoffs(), 3);
    for _ in 0..300 {
        r.backoff();
    }
    assert_eq!(r.rto(), 120_000 * MS);
    r.reset_backoff();
    assert_eq!(r.rto(), 300 * MS);
    r.backoff();
    r.sample(100 * MS);
    assert_eq!(r.rto(), 300 * MS);
}

#[test]
fn absurd_samples_stay_in_range() {
    let mut r = rtt();
    r.sample(u64::MAX);
    assert_eq!(r.rto(), 120_000 * MS);
    let mut r = rtt();
    r.sample(0);
    assert_ne!(r.srtt(), 0);
    assert!(r.rto() >= 200 * MS);
    assert!(size_of::<Rtt>() <= 40);
}

#[test]
fn send_times_give_the_age_of_what_was_sent_last() {
    for base in [Seq(0), Seq(u32::MAX - 2_500)] {
        let at = Time::from_micros;
        let mut t = SendTimes::new();
        for i in 0..5u32 {
            t.on_send(base + (i + 1) * 1_000, 10_000, at(100 * u64::from(i)));
        }
        assert_eq!(t.on_ack(base + 999, at(5_000)), None);
        assert_eq!(t.on_ack(base + 2_000, at(5_000)), Some(4_900_000));
        assert_eq!(t.on_ack(base + 2_000, at(6_000)), None, "a duplicate");
        assert_eq!(t.on_ack(base + 4_500, at(6_000)), Some(5_700_000));
        t.clear();
        assert!(t.len == 0);
        assert_eq!(t.on_ack(base + 5_000, at(6_000)), None, "Karn");
    }
}

#[test]
fn send_times_span_any_window() {
    let base = Seq(u32::MAX - 1_000_000);
    for segs in [1u32, 10, 31, 32, 33, 100, 5_000] {
        let window = segs * 1_000;
        let mut t = SendTimes::new();
        let mut samples = 0;
        let mut acked = 0;
        for i in 0..segs * 10 {
            t.on_send(
                base + (i + 1) * 1_000,
                window,
                Time::from_micros(u64::from(i)),
            );
            if i + 1 >= segs {
                acked += 1_000;
                let rtt = t.on_ack(base + acked, Time::from_micros(u64::from(i) + 1));
                assert!(
                    rtt.is_none_or(|ns| ns == u64::from(segs) * 1_000),
                    "{rtt:?}"
                );
                samples += u32::from(rtt.is_some());
            }
        }
        let rounds = samples as f64 / 9.0;
        assert!(
            rounds >= f64::from(segs.min(15)),
            "{rounds} samples of {segs}"
        );
    }
    assert!(size_of::<SendTimes>() <= 264);
}
