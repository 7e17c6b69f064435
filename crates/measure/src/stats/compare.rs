//! Whether two configurations differ, from runs that took turns.

use super::{Interval, median};

/// What can be said of the first of two configurations against the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its values are greater.
    Greater,
    /// Its values are less.
    Less,
    /// The intervals overlap: no difference is seen.
    NoDifference,
    /// There are too few pairs to tell.
    TooFew,
}

/// Two configurations compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Median of the ratios first/second of each pair.
    pub ratio: f64,
    /// Interval of that median.
    pub interval: Option<Interval>,
    /// Number of pairs.
    pub pairs: usize,
    /// What that says.
    pub verdict: Verdict,
}

/// Compares values that were measured in turns: `pairs` holds, for each repeat that both have, the
/// first's and the second's value. What disturbs a whole pass of the interleaved runs cancels in
/// the ratio of a pair.
///
/// A difference is seen only if both hold: the interval of the ratios leaves 1 out, and the
/// intervals of the two medians do not overlap. `None` if there is no pair with a ratio.
pub fn compare(pairs: &[(f64, f64)]) -> Option<Comparison> {
    let pairs: Vec<(f64, f64)> = pairs
        .iter()
        .copied()
        .filter(|(a, b)| a.is_finite() && b.is_finite() && *b != 0.0)
        .collect();
    let ratios: Vec<f64> = pairs.iter().map(|(a, b)| a / b).collect();
    let ratio = median(&ratios)?;
    let interval = Interval::of_median(&ratios);
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let apart = match (Interval::of_median(&a), Interval::of_median(&b)) {
        (Some(a), Some(b)) => !a.overlaps(&b),
        _ => false,
    };
    let verdict = match interval.filter(Interval::is_evidence) {
        None => Verdict::TooFew,
        Some(_) if !apart => Verdict::NoDifference,
        Some(i) if i.low > 1.0 => Verdict::Greater,
        Some(i) if i.high < 1.0 => Verdict::Less,
        Some(_) => Verdict::NoDifference,
    };
    Some(Comparison {
        ratio,
        interval,
        pairs: pairs.len(),
        verdict,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(pairs: &[(f64, f64)]) -> Verdict {
        compare(pairs).unwrap().verdict
    }

    #[test]
    fn known_pairs() {
        let twice = [
            (20.0, 10.0),
            (22.0, 11.0),
            (18.0, 9.0),
            (21.0, 10.0),
            (19.0, 10.0),
        ];
        let c = compare(&twice).unwrap();
        assert_eq!((c.ratio, c.pairs, c.verdict), (2.0, 5, Verdict::Greater));
        let interval = c.interval.unwrap();
        assert_eq!((interval.low, interval.high), (1.9, 2.1));
        let halves: Vec<_> = twice.iter().map(|&(a, b)| (b, a)).collect();
        assert_eq!(verdict(&halves), Verdict::Less);
        assert_eq!(verdict(&twice[..4]), Verdict::TooFew);
        assert_eq!(compare(&[]), None);
        assert_eq!(compare(&[(1.0, 0.0), (f64::NAN, 1.0)]), None);
    }

    #[test]
    fn overlap_is_no_difference() {
        // One pair goes the other way.
        let mixed = [
            (11.0, 10.0),
            (12.0, 10.0),
            (11.0, 10.0),
            (12.0, 10.0),
            (9.0, 10.0),
        ];
        assert_eq!(verdict(&mixed), Verdict::NoDifference);
        // Every pair goes the same way, but the values drift by more than they differ.
        let drift = [
            (11.0, 10.0),
            (22.0, 20.0),
            (33.0, 30.0),
            (44.0, 40.0),
            (55.0, 50.0),
        ];
        let c = compare(&drift).unwrap();
        assert!((c.ratio - 1.1).abs() < 1e-9 && c.interval.unwrap().low > 1.0);
        assert_eq!(c.verdict, Verdict::NoDifference);
        let same = [(5.0, 5.0); 9];
        assert_eq!(verdict(&same), Verdict::NoDifference);
    }

    #[test]
    fn noise_is_seldom_taken_for_a_difference() {
        let mut rng = perimeter_base::rng::SplitMix64::new(3);
        let mut seen = 0;
        for _ in 0..2000 {
            let pairs: Vec<_> = (0..7)
                .map(|_| (1.0 + rng.unit(), 1.0 + rng.unit()))
                .collect();
            seen += usize::from(verdict(&pairs) != Verdict::NoDifference);
        }
        // The intervals of the medians are the whole ranges: they are all but never apart.
        assert!(seen < 20, "{seen} of 2000");
    }
}
