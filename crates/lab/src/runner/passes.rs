//! In which passes a point was measured, with near cores and with far ones.

use crate::{host::apart, stats::ENOUGH};
use std::collections::BTreeSet;

/// The passes in which a point was measured.
#[derive(Debug, Default)]
pub(super) struct Passes {
    near: BTreeSet<u32>,
    far: BTreeSet<u32>,
    /// The last one, whether or not it is known how far apart the cores were.
    pub(super) last: u32,
}

impl Passes {
    /// The pass `repeat` measured it, with so many ns for a line between the cores and back.
    pub(super) fn add(&mut self, repeat: u32, round_trip: Option<f64>) {
        self.last = self.last.max(repeat);
        match round_trip.map(apart::is_far) {
            Some(false) => self.near.insert(repeat),
            Some(true) => self.far.insert(repeat),
            None => return,
        };
    }

    /// Those with far cores, or with near ones.
    pub(super) fn of(&self, is_far: bool) -> &BTreeSet<u32> {
        match is_far {
            false => &self.near,
            true => &self.far,
        }
    }
}

/// What a plan's points lack for verdicts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lacking {
    /// Which points have too few passes in common with another, by place.
    pub(super) which: Vec<usize>,
    /// Passes over those after which none lacks any.
    pub(super) passes: u32,
}

/// What `points` lack for a verdict on any two of them.
pub(super) fn lacking(points: &[&BTreeSet<u32>]) -> Lacking {
    let common = |a: &BTreeSet<u32>, b: &BTreeSet<u32>| a.intersection(b).count();
    let least = |i: usize| points.iter().map(|b| common(points[i], b)).min();
    let lacks = |i: usize| ENOUGH.saturating_sub(least(i).unwrap_or(0));
    Lacking {
        which: (0..points.len()).filter(|i| lacks(*i) > 0).collect(),
        passes: (0..points.len()).map(lacks).max().unwrap_or(0) as u32,
    }
}
