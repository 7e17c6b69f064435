//! What machines are measured with for a table of costs, and what a table is checked with.

use crate::workload::{Coalescing, Configuration, Device, Direction, Exchange, Inbound, Settings};
use perimeter::Offload;
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// A load of the parallel benchmark over the memory NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Streams out, segment by segment.
    Send,
    /// Streams in.
    Receive,
    /// 64 bytes each way, in turns.
    Messages,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 3] = [Load::Send, Load::Receive, Load::Messages];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Load::Send => "send",
            Load::Receive => "receive",
            Load::Messages => "messages",
        }
    }

    /// The load that settings make, if it is one of these.
    pub fn of(settings: &Settings) -> Option<Load> {
        let plain = settings.device == Device::Mem && settings.udp.is_none() && !settings.reconnect;
        match (settings.exchange, settings.direction) {
            _ if !plain => None,
            (Some(_), _) => Some(Load::Messages),
            (None, Direction::Send) => Some(Load::Send),
            (None, Direction::Receive) => Some(Load::Receive),
            (None, Direction::Both) => None,
        }
    }

    /// The settings of a run with `threads` threads. One polls its device itself; of several, each
    /// has an inbound thread beside it on its core, as in the paper's kernels.
    pub fn settings(self, threads: usize) -> Settings {
        let plain = Settings {
            inbound: match threads {
                1 => Inbound::Nic,
                _ => Inbound::Thread,
            },
            threads,
            nics: threads,
            offload: Offload::Off,
            look_around: Duration::ZERO,
            budget: 0,
            ..Settings::default()
        };
        match self {
            Load::Send => plain,
            Load::Receive => Settings {
                direction: Direction::Receive,
                ..plain
            },
            Load::Messages => Settings {
                exchange: Some(Exchange {
                    request: 64,
                    response: 64,
                }),
                coalescing: Coalescing::NoDelay,
                ..plain
            },
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One organization under one load.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The load.
    pub load: Load,
    /// Its settings.
    pub settings: Settings,
    /// What runs.
    pub configuration: Configuration,
}

impl Point {
    /// `org` with that many connections and threads.
    ///
    /// # Errors
    /// There is no such organization.
    pub fn new(load: Load, org: &str, connections: u32, threads: usize) -> Result<Point, String> {
        let organization = crate::backends::parse(org)?;
        let mut settings = load.settings(threads);
        settings.organizations = vec![organization.clone()];
        settings.connections = vec![connections];
        Ok(Point {
            load,
            configuration: Configuration {
                connections,
                threads: settings.threads_of(&organization),
                organization,
            },
            settings,
        })
    }

    /// `org` with that many connections on one core, where one thread is the application and another
    /// does the inbound work.
    ///
    /// # Errors
    /// There is no such organization.
    pub fn beside(load: Load, org: &str, connections: u32) -> Result<Point, String> {
        let mut point = Point::new(load, org, connections, 1)?;
        point.settings.inbound = Inbound::Thread;
        Ok(point)
    }
}

/// One core, whose threads take turns: an application's, and one that does the inbound work.
pub const BESIDE: &[(Load, &str, u32)] = &[
    (Load::Send, "up:shared", 6),
    (Load::Send, "msgp", 6),
    (Load::Send, "connp-l:128", 192),
    (Load::Receive, "up:shared", 6),
    (Load::Receive, "msgp", 24),
    (Load::Receive, "connp-l:128", 6),
    (Load::Messages, "up:shared", 192),
    (Load::Messages, "msgp", 192),
    (Load::Messages, "connp-l:128", 192),
    (Load::Send, "connp-t:1", 192),
    (Load::Receive, "connp-t:1", 192),
    (Load::Messages, "connp-t:1", 192),
    (Load::Send, "squeue:1:entry=fill", 192),
    (Load::Receive, "squeue:1:entry=fill", 192),
    (Load::Messages, "squeue:1:entry=fill", 192),
];

/// One thread, with something to do nearly all the time: what tables are fitted to.
pub const SINGLE: &[(Load, &str, u32)] = &[
    (Load::Send, "up", 6),
    (Load::Send, "up", 24),
    (Load::Send, "up", 192),
    (Load::Send, "up", 3072),
    (Load::Receive, "up", 6),
    (Load::Receive, "up", 192),
    (Load::Messages, "up", 192),
    (Load::Messages, "up", 768),
    (Load::Send, "up:shared", 192),
    (Load::Send, "msgp", 192),
    (Load::Receive, "msgp", 192),
    (Load::Messages, "msgp", 192),
    (Load::Send, "connp-l:128", 192),
    (Load::Receive, "connp-l:128", 192),
    (Load::Messages, "connp-l:128", 192),
    (Load::Send, "squeue", 192),
    (Load::Receive, "squeue", 192),
    (Load::Messages, "squeue", 192),
    (Load::Send, "pef:vertical", 192),
    (Load::Receive, "pef:vertical", 192),
    (Load::Messages, "pef:vertical", 192),
];

/// Two threads: what tables are checked with.
pub const PAIRS: &[(Load, &str, u32)] = &[
    (Load::Send, "up", 6),
    (Load::Send, "msgp", 6),
    (Load::Send, "msgp-modern", 6),
    (Load::Send, "connp-t:4", 6),
    (Load::Send, "connp-l:128", 6),
    (Load::Send, "up", 192),
    (Load::Send, "msgp", 192),
    (Load::Send, "msgp-modern", 192),
    (Load::Send, "connp-t:4", 192),
    (Load::Send, "connp-l:4", 192),
    (Load::Send, "connp-l:128", 192),
    (Load::Send, "squeue", 192),
    (Load::Send, "pef:vertical", 192),
    (Load::Send, "up", 3072),
    (Load::Send, "msgp", 3072),
    (Load::Send, "connp-t:4", 3072),
    (Load::Send, "connp-l:128", 3072),
    (Load::Receive, "up", 192),
    (Load::Receive, "msgp", 192),
    (Load::Receive, "connp-t:4", 192),
    (Load::Receive, "connp-l:128", 192),
    (Load::Receive, "squeue", 192),
    (Load::Receive, "pef:vertical", 192),
    (Load::Messages, "up", 192),
    (Load::Messages, "msgp", 192),
    (Load::Messages, "connp-t:4", 192),
    (Load::Messages, "connp-l:128", 192),
    (Load::Messages, "squeue", 192),
    (Load::Messages, "pef:vertical", 192),
];
