//! A recorded order of locks against a published one.

/// What a recorded order has of a published one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// Steps of the published order that have no counterpart, by index.
    pub missing: Vec<usize>,
    /// Steps of the recorded order that are not in the published one, by index.
    pub besides: Vec<usize>,
}

impl Agreement {
    /// Whether every published step is there, in its order.
    pub fn same_order(&self) -> bool {
        self.missing.is_empty()
    }
}

/// Finds as much of `published` in `recorded` as there is in the same order: a longest common
/// subsequence. Of several the one that begins earliest.
pub fn compare(published: &[String], recorded: &[String]) -> Agreement {
    let (n, m) = (published.len(), recorded.len());
    // Length of the longest one of what is left of both.
    let mut longest = vec![vec![0usize; m + 1]; n + 1];
    for i in (0..n).rev() {
        for j in (0..m).rev() {
            longest[i][j] = match published[i] == recorded[j] {
                true => 1 + longest[i + 1][j + 1],
                false => longest[i + 1][j].max(longest[i][j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let (mut missing, mut besides) = (Vec::new(), Vec::new());
    while i < n || j < m {
        if i < n && j < m && published[i] == recorded[j] {
            (i, j) = (i + 1, j + 1);
        } else if j < m && (i == n || longest[i][j + 1] >= longest[i + 1][j]) {
            besides.push(j);
            j += 1;
        } else {
            missing.push(i);
            i += 1;
        }
    }
    Agreement { missing, besides }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn what_is_besides_and_what_is_missing() {
        let all = words("+s -s +h +c -h -c");
        let same = compare(&all, &words("+s -s +h +c +s -s -h +t -t -c"));
        assert!(same.same_order());
        assert_eq!(same.besides, [4, 5, 7, 8]);
        // The table is let go before the connection is taken.
        let other = compare(&all, &words("+s -s +h -h +c -c"));
        assert!(!other.same_order());
        assert_eq!((other.missing.len(), other.besides.len()), (1, 1));
        assert_eq!(compare(&all, &[]).missing, [0, 1, 2, 3, 4, 5]);
        assert_eq!(compare(&[], &all).besides.len(), 6);
    }
}
