//! How many cache lines go with what is touched: from traces of the program's memory accesses.

use super::loads::{Load, Point};
use crate::{Error, cache, session::Backend as _, stats::median};
use perimeter_sync::Touched;
use std::{collections::BTreeMap, time::Duration};

/// Whose traces are taken: each has what others have not.
const ORGANIZATIONS: &[&str] = &["msgp", "msgp-modern", "connp-l:128", "connp-t:4", "squeue"];
/// Threads.
const THREADS: usize = 4;
/// Connections: their buffers hold less than what is sent before anything counts, so that the
/// application has its turns.
const CONNECTIONS: u32 = 8;
/// Payload that is counted, bytes, after as much that is not.
const PAYLOAD: u64 = 4 << 20;
/// Fewer items than this went from core to core in a run: that says nothing of their lines.
const FEW: u64 = 20;

/// Lines of an item, by what it is, in runs of every load. Takes some minutes, most of them for
/// building what is traced.
///
/// # Errors
/// [`Error::Unavailable`] where no program can be traced; that a traced run failed.
pub fn lines(watcher: super::Watcher<'_>) -> Result<BTreeMap<String, f64>, Error> {
    let mut found: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let all = Load::ALL.into_iter();
    for (load, org) in all.flat_map(|l| ORGANIZATIONS.iter().map(move |o| (l, o))) {
        watcher(&format!("{load}, {org}: tracing"));
        let point = Point::new(load, org, CONNECTIONS, THREADS).map_err(Error::Input)?;
        let mut backend = cache::Backend::new(PAYLOAD);
        let one = std::slice::from_ref(&point.configuration);
        backend.check(&point.settings, one)?;
        let run = backend.prepare(&point.settings, &point.configuration, None)?;
        let sample = run.measure(Duration::ZERO)?;
        for item in sample.modelled.iter().flat_map(|m| &m.items) {
            if item.moved >= FEW && item.name != Touched::Payload.name() {
                let each = item.lines as f64 / item.moved as f64;
                found.entry(item.name.clone()).or_default().push(each);
            }
            watcher(&format!(
                "{load}, {org}: {}: {} lines, {} moved",
                item.name, item.lines, item.moved
            ));
        }
    }
    // What is put to an item reaches to the next touch, and what that holds differs: the middle one.
    let middle = |list: &Vec<f64>| (median(list).unwrap_or(0.0) * 100.0).round() / 100.0;
    Ok(found
        .iter()
        .map(|(name, list)| (name.clone(), middle(list)))
        .collect())
}
