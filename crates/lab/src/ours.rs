//! Backend: Perimeter's own organizations, over the memory NIC or TAP.
//!
//! The place where the public library is plugged in: [`Perimeter::prepare`] builds a stack for the
//! configuration, makes one [`crate::workload::Endpoint`] per application thread from its sockets
//! and poller (on that thread: under `up` the stack belongs to it), and runs them in a
//! [`crate::workload::Crew`].

use crate::{
    Error,
    plan::Configuration,
    run::{Backend, Session, Traits},
    settings::Settings,
};
use std::time::Instant;

/// The backend of our organizations.
#[derive(Debug, Default)]
pub struct Perimeter {}

impl Perimeter {
    fn missing(configuration: &Configuration) -> Error {
        Error::Unavailable(format!(
            "organization `{}` is not part of this build yet; `--org linux` is",
            configuration.organization.name()
        ))
    }
}

impl Backend for Perimeter {
    fn check(&mut self, _: &Settings, configurations: &[Configuration]) -> Result<(), Error> {
        configurations
            .first()
            .map_or(Ok(()), |c| Err(Self::missing(c)))
    }

    fn traits(&self, settings: &Settings, _: &Configuration) -> Traits {
        Traits {
            device: settings.device.to_string(),
            inbound: settings.inbound.to_string(),
            comparable: true,
            notes: Vec::new(),
        }
    }

    fn prepare(
        &mut self,
        _: &Settings,
        configuration: &Configuration,
        _: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        Err(Self::missing(configuration))
    }
}
