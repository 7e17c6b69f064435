//! The model of readiness finds the bugs that it is for. In a process of its own: a bug is
//! planted in all stacks.
#![cfg(feature = "testing")]

use crate::common::{model, shared_organizations};
use perimeter_stack::planted::{Bug, plant};

#[test]
fn planted_losses_are_found() {
    for bug in [
        Bug::PollerSleepsUnlooked,
        Bug::PollerForgetsEntry,
        Bug::CallSleepsUnlooked,
    ] {
        plant(bug);
        for org in shared_organizations() {
            let found = model::explore(&model::small(org.clone()), 0..3_000).err();
            println!("{org} {bug:?}: {found:?}");
            let text = found.unwrap_or_else(|| panic!("{org}: {bug:?} is not found"));
            assert!(
                ["deadlock", "lost wake-up", "livelock"]
                    .iter()
                    .any(|k| text.contains(k)),
                "{org}: {bug:?} is found as something else: {text}"
            );
        }
        plant(Bug::Nothing);
    }
}
