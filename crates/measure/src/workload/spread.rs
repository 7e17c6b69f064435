//! Which thread and which NIC a connection belongs to.

/// Where one connection lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Application thread.
    pub thread: usize,
    /// Network interface.
    pub nic: usize,
}

/// Spreads `connections` over `threads` × `nics` (both at least 1) as evenly as can be at every
/// count: threads differ by at most one connection, and so do NICs within a block of
/// lcm(threads, nics); each full block of threads × nics puts one connection on every pair. Six
/// connections on four threads and six NICs are 2, 2, 1, 1 by thread and one on each NIC, as in the
/// paper's smallest case.
pub fn spread(connections: usize, threads: usize, nics: usize) -> Vec<Place> {
    // Walking thread and NIC in step visits lcm(threads, nics) different pairs and then repeats
    // them, so each such block is shifted by one NIC.
    let block = threads / gcd(threads, nics) * nics;
    (0..connections)
        .map(|k| Place {
            thread: k % threads,
            nic: (k + k / block) % nics,
        })
        .collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn counts<K: std::hash::Hash + Eq>(keys: impl Iterator<Item = K>) -> HashMap<K, usize> {
        let mut map = HashMap::new();
        for key in keys {
            *map.entry(key).or_default() += 1;
        }
        map
    }

    #[test]
    fn the_papers_smallest_case() {
        let places = spread(6, 4, 6);
        let threads = counts(places.iter().map(|p| p.thread));
        assert_eq!(
            (0..4).map(|t| threads[&t]).collect::<Vec<_>>(),
            [2, 2, 1, 1]
        );
        assert_eq!(counts(places.iter().map(|p| p.nic)).len(), 6);
    }

    proptest! {
        #[test]
        fn even_at_every_count(n in 0usize..600, threads in 1usize..9, nics in 1usize..9) {
            let places = spread(n, threads, nics);
            prop_assert_eq!(places.len(), n);
            let by_thread = counts(places.iter().map(|p| p.thread));
            let even = |map: &HashMap<usize, usize>, of: usize, slack: usize| {
                let get = |i| map.get(&i).copied().unwrap_or(0);
                let least = (0..of).map(get).min().unwrap();
                let most = (0..of).map(get).max().unwrap();
                most - least <= slack
            };
            prop_assert!(even(&by_thread, threads, 1));
            prop_assert!(even(&counts(places.iter().map(|p| p.nic)), nics, 2));
            // Whole blocks load every thread × NIC alike.
            let whole = spread(n / (threads * nics) * threads * nics, threads, nics);
            let pairs = counts(whole.iter().copied());
            let expected = n / (threads * nics);
            prop_assert!(pairs.values().all(|&c| c == expected));
        }
    }
}
