//! Raw results: a folder with the plans as they ran and one line of JSON for each run.
//!
//! `lab.json` says what was asked for, `plans/` holds the plans' text, `runs.jsonl` has a row a run.
//! `runs.jsonl.gz` in its place is a record that is finished and kept: it is read, not added to.
//! A row goes out in one write and to the disk at once, so whatever ends the program leaves whole
//! rows, or one part of a row at the end that the next start cuts off.

mod folder;
mod metric;

pub use folder::{Folder, Stored, read, read_rows};

use crate::{
    bench::report::{Asked, Build},
    host::Host,
    misses::{Counted, Modelled},
    plan::Mode,
    workload::{Device, Locks, Raw, Sample},
};
use serde::{Deserialize, Serialize};

/// Version of the layout of a folder. Fields may be added without a new one.
pub const SCHEMA: &str = "perimeter-lab/1";

/// What a folder was made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: String,
    /// How much time.
    pub mode: Mode,
    /// The device that replaces the plans', if one was asked for.
    pub device: Option<Device>,
    /// Seed of the order of runs.
    pub seed: u64,
    /// The plans' names, in order.
    pub plans: Vec<String>,
    /// The machine.
    pub host: Host,
    /// The program.
    pub build: Build,
    /// Start, in seconds since 1970 UTC.
    pub started_unix: u64,
}

/// What a run measured, as recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The sample.
    #[serde(flatten)]
    pub raw: Raw,
    /// Received bytes that were compared with their expected content.
    pub verified_bytes: u64,
    /// Lock counters by class.
    pub locks: Vec<Locks>,
    /// Cache misses, of a run that was traced and not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled: Option<Modelled>,
    /// What the processor counted, of a run of which that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<Counted>,
}

impl From<&Sample> for Measured {
    fn from(sample: &Sample) -> Measured {
        Measured {
            raw: Raw::from(sample),
            verified_bytes: sample.verified_bytes,
            locks: sample.locks.clone(),
            modelled: sample.modelled.clone(),
            counted: sample.counted,
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// With a measurement.
    Measured(Box<Measured>),
    /// With an error.
    Failed(String),
    /// It never began: this machine or process can't run it.
    Unavailable(String),
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the plan.
    pub plan: String,
    /// Label of the series.
    pub series: String,
    /// Organization.
    pub org: String,
    /// Place on the x axis.
    pub x: u64,
    /// Pass, from 0.
    pub repeat: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// What carried the frames.
    pub device: String,
    /// Inbound mode.
    pub inbound: String,
    /// Whether it may be compared with the plan's others.
    pub comparable: bool,
    /// Remarks on the configuration.
    pub notes: Vec<String>,
    /// Threads of the application.
    pub threads: usize,
    /// Its settings.
    pub settings: Asked,
    /// Seed of the order of runs.
    pub seed: u64,
    /// Start, in seconds since 1970 UTC.
    pub started_unix: u64,
    /// The program.
    pub build: Build,
    /// The machine.
    pub host: Host,
}

impl Row {
    /// The measurement, if it ended with one.
    pub fn measured(&self) -> Option<&Measured> {
        match &self.outcome {
            Outcome::Measured(m) => Some(m),
            Outcome::Failed(_) | Outcome::Unavailable(_) => None,
        }
    }

    /// What it is a run of.
    pub fn key(&self) -> (&str, &str, u64, u32) {
        (&self.plan, &self.series, self.x, self.repeat)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::workload::Settings;

    /// A measurement with this goodput and little else.
    pub(crate) fn measured(goodput_mbps: f64) -> Measured {
        Measured {
            raw: Raw {
                seconds: 1.0,
                goodput_mbps,
                segments: goodput_mbps * 1e6 / 8.0 / 1448.0,
                thread_ns: 2_000_000_000,
                thread_cpu_ns: 2_000_000_000,
                app_ns: 1,
                stack_ns: Some(1_000_000_000),
                peer_ns: Some(1),
                spin_ns: 0,
                idle_ns: 0,
                preempted_ns: 0,
                cpu_ns: 2_000_000_000,
                retransmits: 0,
                context_switches: 10,
                involuntary_context_switches: 1,
                migrations: None,
                core_round_trip_ns: None,
                paths: Vec::new(),
                connection_bytes_min: 1,
                connection_bytes_median: 1,
                rounds: 0,
                latency: None,
                lost: None,
                valid: true,
                disturbances: Vec::new(),
            },
            verified_bytes: 0,
            locks: vec![Locks {
                class: "group".into(),
                acquisitions: 100,
                contended: 10,
                wait_ns: 5,
                hold_ns: 6,
                times: None,
            }],
            modelled: None,
            counted: None,
        }
    }

    pub(crate) fn build() -> Build {
        Build {
            version: "0.0.0".into(),
            commit: None,
            debug: false,
        }
    }

    /// A header for these plans.
    pub(crate) fn header(plans: &[&str]) -> Header {
        Header {
            schema: SCHEMA.into(),
            mode: Mode::Normal,
            device: None,
            seed: 5,
            plans: plans.iter().map(ToString::to_string).collect(),
            host: Host {
                cpu: "A CPU".into(),
                cores: 2,
                kernel: "Linux 6.18".into(),
                arch: "x86_64".into(),
                memory_bytes: 1 << 30,
            },
            build: build(),
            started_unix: 1_700_000_000,
        }
    }

    /// A row of a plan.
    pub(crate) fn row(
        plan: &str,
        series: &str,
        org: &str,
        x: u64,
        repeat: u32,
        goodput: f64,
    ) -> Row {
        let header = header(&[plan]);
        Row {
            plan: plan.into(),
            series: series.into(),
            org: org.into(),
            x,
            repeat,
            outcome: Outcome::Measured(Box::new(measured(goodput))),
            device: "mem".into(),
            inbound: "nic".into(),
            comparable: true,
            notes: Vec::new(),
            threads: 2,
            settings: Asked::from(&Settings::default()),
            seed: header.seed,
            started_unix: header.started_unix,
            build: header.build,
            host: header.host,
        }
    }

    #[test]
    fn rows_round_trip_in_one_line() {
        let mut one = row("p", "s", "up", 6, 2, 0.1 + 0.2);
        for outcome in [
            one.outcome.clone(),
            Outcome::Failed("two\nlines".into()),
            Outcome::Unavailable("no TAP".into()),
        ] {
            one.outcome = outcome;
            let text = serde_json::to_string(&one).unwrap();
            assert!(!text.contains('\n'));
            assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), one);
        }
    }
}
