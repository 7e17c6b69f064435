//! Random orders.

use perimeter_base::rng::SplitMix64;

/// Puts `list` in random order (Fisher and Yates).
pub fn shuffle<T>(list: &mut [T], rng: &mut SplitMix64) {
    for i in (1..list.len()).rev() {
        list.swap(i, rng.below(i as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_all_and_is_fair() {
        let mut rng = SplitMix64::new(1);
        let mut first = [0; 4];
        for _ in 0..4000 {
            let mut list = [0, 1, 2, 3];
            shuffle(&mut list, &mut rng);
            first[list[0]] += 1;
            list.sort_unstable();
            assert_eq!(list, [0, 1, 2, 3]);
        }
        assert!(first.iter().all(|&n| (880..1120).contains(&n)), "{first:?}");
    }
}
