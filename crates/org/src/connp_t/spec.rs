//! The parameters of `connp-t`.

use crate::spec::{Occupancy, Params, Parts, SpecError};
use core::fmt;

/// The most threads of `connp-t`: Yates' limit, beyond which connections share (Yates et al.,
/// INFOCOM 1997).
pub const MAX_THREADS: u16 = 384;

/// Connection groups owned by threads.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnpT {
    /// Protocol threads.
    pub threads: ConnpThreads,
    /// How requesters wait for their answer.
    pub wait: Waiting,
    /// A core's application and protocol roles share a thread where they meet.
    pub fold: bool,
    /// A connection's thread is made when the connection comes, and ends when it has gone.
    pub made: bool,
}

/// How many protocol threads `connp-t` has.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConnpThreads {
    /// One for each core.
    #[default]
    Cores,
    /// That many.
    Groups(u16),
    /// One for each connection, up to that many; shared beyond.
    PerConnection(u16),
}

/// How a requester of `connp-t` waits.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// On a condition variable: the paper's.
    #[default]
    Condvar,
    /// Light messages, as DragonFly's: spin for a while, then park.
    Spin,
}

impl ConnpT {
    /// Reads the parameters.
    pub(super) fn parse(mut parts: Parts<'_>) -> Result<ConnpT, SpecError> {
        let threads = match parts.number(MAX_THREADS)? {
            Some(n) => ConnpThreads::Groups(n),
            None if parts.flag("per-connection") => ConnpThreads::PerConnection(MAX_THREADS),
            None => match parts.count("per-connection", 1, MAX_THREADS)? {
                Some(most) => ConnpThreads::PerConnection(most),
                None => ConnpThreads::Cores,
            },
        };
        let ways = [("condvar", Waiting::Condvar), ("spin", Waiting::Spin)];
        let wait = parts.choice("wait", &ways)?.unwrap_or_default();
        let fold = parts.flag("fold");
        let made = parts.flag("made");
        let alone = matches!(threads, ConnpThreads::PerConnection(_));
        if fold && wait == Waiting::Condvar {
            return Err(parts.refuse("fold"));
        }
        if alone && wait == Waiting::Spin {
            return Err(parts.refuse("per-connection:wait=spin"));
        }
        if made && !alone {
            return Err(parts.refuse("made"));
        }
        parts.end(ConnpT {
            threads,
            wait,
            fold,
            made,
        })
    }
}

impl fmt::Display for ConnpT {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connp-t")?;
        match self.threads {
            ConnpThreads::Cores => {}
            ConnpThreads::Groups(n) => write!(f, ":{n}")?,
            ConnpThreads::PerConnection(MAX_THREADS) => f.write_str(":per-connection")?,
            ConnpThreads::PerConnection(most) => write!(f, ":per-connection={most}")?,
        }
        if self.wait == Waiting::Spin {
            f.write_str(":wait=spin")?;
        }
        f.write_str(if self.fold { ":fold" } else { "" })?;
        f.write_str(if self.made { ":made" } else { "" })
    }
}

impl Params for ConnpT {
    fn spins(&self) -> bool {
        self.wait == Waiting::Spin
    }

    fn occupancy(&self) -> Occupancy {
        if self.fold {
            Occupancy::Stack
        } else {
            Occupancy::Owner
        }
    }
}
