//! Conditions that a prediction has in place of those of the plans.

use crate::workload::{Inbound, Settings};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is asked for in place of what plans say. Plans of the papers have their machines' NICs, and a
/// machine with ten times the cores mostly has more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Instead {
    /// So many NICs, and no more than there are threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<usize>,
    /// Who does inbound work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inbound: Option<Inbound>,
}

impl Instead {
    /// Whether everything is as plans say.
    pub fn is_nothing(&self) -> bool {
        *self == Instead::default()
    }

    /// Changes the settings of a run with so many threads.
    pub(super) fn apply(&self, settings: &mut Settings, threads: usize) {
        if let Some(nics) = self.nics {
            settings.nics = nics.min(threads);
        }
        if let Some(inbound) = self.inbound {
            settings.inbound = inbound;
        }
    }

    /// For names of files.
    pub(super) fn suffix(&self) -> String {
        let nics = self.nics.map(|n| format!("-nics-{n}"));
        let inbound = self.inbound.map(|i| format!("-inbound-{i}"));
        nics.into_iter().chain(inbound).collect()
    }
}

impl fmt::Display for Instead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nics = self.nics.map(|n| match n {
            1 => "one NIC".to_string(),
            n => format!("{n} NICs, but no more than threads,"),
        });
        let inbound = self.inbound.map(|i| match i {
            Inbound::Nic => "core i polling NIC i",
            Inbound::Thread => "an inbound thread for each NIC",
            Inbound::Affine => "input steered to the application's core",
        });
        let both: Vec<String> = nics
            .into_iter()
            .chain(inbound.map(str::to_string))
            .collect();
        write!(f, "{} in place of what plans say", both.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_replaces_what_plans_say() {
        let mut s = Settings {
            nics: 6,
            inbound: Inbound::Thread,
            ..Settings::default()
        };
        let was = s.clone();
        Instead::default().apply(&mut s, 4);
        assert_eq!(s, was);
        let instead = Instead {
            nics: Some(64),
            inbound: Some(Inbound::Affine),
        };
        instead.apply(&mut s, 16);
        assert_eq!((s.nics, s.inbound), (16, Inbound::Affine));
        instead.apply(&mut s, 256);
        assert_eq!(s.nics, 64);
        assert_eq!(instead.suffix(), "-nics-64-inbound-affine");
        assert_eq!(
            instead.to_string(),
            "64 NICs, but no more than threads, and input steered to the application's core in \
             place of what plans say"
        );
    }
}
