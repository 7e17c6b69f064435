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

/// What has too few passes in common with another for a verdict on the two, by place in `points`.
pub(super) fn lacking(points: &[&BTreeSet<u32>]) -> Vec<usize> {
    let few = |a: &BTreeSet<u32>, b: &BTreeSet<u32>| a.intersection(b).count() < ENOUGH;
    let lacks = |i: &usize| points.iter().any(|other| few(points[*i], other));
    (0..points.len()).filter(lacks).collect()
}
