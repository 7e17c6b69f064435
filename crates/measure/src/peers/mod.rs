//! Backend: other stacks, doing the same work in the same run.
//!
//! A peer's near end is the stack under test, as ours is. Its far end is the host's kernel behind a
//! TAP interface (`tap`), or the same stack once more over a link in memory (`pair`, and `mem` for
//! want of an ideal peer). Processor time is that of both ends together in either case.

mod adapter;
mod child;
mod kernel;
mod programs;
mod smoltcp;
mod stacks;

use crate::{
    Error, host,
    linux::sockets,
    live::{self, Seen, Watch},
    organizations::OtherStack,
    ours,
    session::{Backend, Session, Traits, Workers},
    workload::{Configuration, Device, Phase, Sample, Settings, Tally, Times},
};
use child::{Costs, Told};
use kernel::Site;
use stacks::Peer;
pub use stacks::STACKS;
use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

/// The backend of another stack.
///
/// # Panics
/// It is none of [`STACKS`].
pub fn backend(stack: &'static OtherStack) -> Box<dyn Backend> {
    match Peer::of(stack) {
        Some(peer) => Box::new(Peers { peer }),
        None => panic!("`{}` is registered by no backend", stack.name),
    }
}

/// The backend of peers.
#[derive(Debug)]
struct Peers {
    peer: Peer,
}

impl Backend for Peers {
    fn check(
        &mut self,
        settings: &Settings,
        configurations: &[Configuration],
    ) -> Result<(), Error> {
        for c in configurations {
            if settings.device.is_to_kernel() {
                sockets::allow_descriptors(c.connections, c.threads)?;
            }
            if self.peer == Peer::Smoltcp {
                smoltcp::setup::fits(settings, c, host::memory_available())?;
            }
        }
        if settings.device.is_to_kernel() {
            ours::kernel::possible(Device::Tap, 1, 1, (settings.mtu, settings.family))?;
        }
        match self.peer {
            Peer::Smoltcp => Ok(()),
            other => programs::check(other, settings),
        }
    }

    fn traits(&self, settings: &Settings, _: &Configuration) -> Traits {
        let name = self.peer.name();
        let mut notes = Vec::new();
        let tap = settings.device.is_to_kernel();
        match tap {
            true => notes.push(format!(
                "{name}: goodput is not comparable (the kernel also does the peer's work); compare CPU"
            )),
            false => notes.push(format!(
                "{name}: both ends are {name}, joined by a link in memory at MTU 1500; cpu is \
                 both ends'"
            )),
        }
        if tap && settings.device != Device::Tap {
            notes.push(format!("{name}: its device is a TAP interface"));
        }
        if settings.device == Device::Mem {
            notes.push(format!(
                "{name}: has no memory NIC with an ideal peer; --device pair has both ends in \
                 every row"
            ));
        }
        match self.peer {
            Peer::Smoltcp => notes.extend(smoltcp::setup::notes(settings, tap)),
            Peer::Gvisor => notes.extend(programs::gvisor_notes(tap)),
            Peer::Lwip => notes.extend(programs::lwip_notes(settings, tap)),
        }
        if settings.nics > 1 || settings.link_gbps.is_some() {
            notes.push(format!(
                "{name}: one link, not paced; --nics, --link-gbps and --rtt have no effect"
            ));
        }
        Traits {
            device: if tap { "tap" } else { "pair" }.into(),
            inbound: "own".into(),
            comparable: true,
            notes,
        }
    }

    fn prepare(
        &mut self,
        settings: &Settings,
        configuration: &Configuration,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        let site = match settings.device {
            d if d.is_to_kernel() => Some(Site::new()?),
            _ => None,
        };
        let at = site.as_ref();
        let (workers, told) = match self.peer {
            Peer::Smoltcp => {
                let workers = smoltcp::setup::workers(at, settings, configuration, deadline);
                (workers, None)
            }
            other => {
                let told = Told::default();
                let workers =
                    programs::workers(other, at, settings, configuration, deadline, &told)?;
                (workers, Some(told))
            }
        };
        Ok(Box::new(PeerSession {
            workers: Workers::start(workers)?,
            site,
            told,
            threads: configuration.threads,
        }))
    }
}

/// A prepared run. The workers come first, so that their threads, which may have descriptor tables of
/// their own, have ended before what they share is dropped. Its first thread is the near end.
struct PeerSession {
    workers: Workers,
    site: Option<Site>,
    /// What the near end cost, if it is a program of its own.
    told: Option<Told>,
    threads: usize,
}

impl Session for PeerSession {
    fn watch(&mut self, watch: Watch) {
        let elsewhere = self.told.is_some();
        let view = move |told: &[Option<Tally>]| Seen {
            goodput: live::rate(told, Tally::sunk),
            elsewhere,
            ..Seen::default()
        };
        self.workers.watch(watch, Box::new(view));
    }

    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.workers.run(Phase::Warm, time)
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let s = &mut *self;
        // Segments that the kernel has sent again.
        let of = |site: &Site| site.namespace.retransmits();
        let again = || s.site.as_ref().map_or(Ok(0), of);
        let ((mut machine, elapsed), retransmits) = s.workers.measure(time, again)?;
        let tallies = self.workers.finish()?;
        let (times, costs) = match &self.told {
            None => (Times::of(&tallies[..1]), Costs::default()),
            Some(told) => apart(&tallies[0], self.threads, told),
        };
        machine.process_cpu_ns += costs.cpu_ns;
        machine.voluntary += costs.voluntary;
        machine.involuntary += costs.involuntary;
        Ok(Sample {
            retransmits: retransmits + costs.retransmits,
            ..Sample::received(&tallies, (machine, elapsed), tallies.len(), times)
        })
    }
}

/// Times and costs of a near end that is a program of its own with so many threads: only its
/// processor time is known.
fn apart(tally: &Tally, threads: usize, told: &Told) -> (Times, Costs) {
    let costs = *told.lock().unwrap_or_else(PoisonError::into_inner);
    let elapsed = tally.elapsed_ns * threads as u64;
    let times = Times {
        elapsed,
        cpu: costs.cpu_ns,
        idle: elapsed.saturating_sub(costs.cpu_ns),
        ..Times::default()
    };
    (times, costs)
}

#[cfg(test)]
mod tests;
