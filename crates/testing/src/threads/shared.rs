//! What all threads of a simulation share.

use super::life::Life;
use crate::error::What;
use crate::link::Link;
use perimeter::{OrgSpec, TcpConfig, Virtual};
use perimeter_base::Time;
use perimeter_link::network::{self, PortId};
use perimeter_sync::{Event, Platform};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A host, up or not.
pub(super) struct Place {
    pub(super) name: String,
    pub(super) addr: IpAddr,
    pub(super) port: PortId,
    pub(super) life: Option<Arc<Life>>,
    /// Its program is one that is waited for, and runs.
    pub(super) awaited: bool,
}

/// The simulation. Its locks are never held while a thread could wait.
pub(super) struct Shared {
    pub(super) p: Virtual,
    pub(super) network: network::Network,
    pub(super) org: OrgSpec,
    pub(super) tcp: TcpConfig,
    pub(super) begin: Time,
    pub(super) places: Mutex<Vec<Place>>,
    /// The first failure, and when.
    pub(super) failure: Mutex<Option<(Duration, What)>>,
    /// A client has ended, or something has failed.
    pub(super) news: <Virtual as Platform>::Event,
}

impl Shared {
    pub(super) fn elapsed(&self) -> Duration {
        self.p.now().since(self.begin)
    }

    pub(super) fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn failure(&self) -> MutexGuard<'_, Option<(Duration, What)>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first failure is what is told.
    pub(super) fn fail(&self, what: What) {
        let after = self.elapsed();
        self.failure().get_or_insert((after, what));
        self.news.set();
    }

    /// The address of the host of that name.
    pub(super) fn lookup(&self, name: &str) -> Option<IpAddr> {
        let places = self.places();
        let found = places.iter().find(|h| h.name == name);
        found.map(|h| h.addr)
    }

    /// The number of the host of that name or address.
    ///
    /// # Panics
    /// If there is none: a mistake in the test.
    pub(super) fn number(&self, host: &str) -> usize {
        let addr = host.parse::<IpAddr>().ok();
        let is = |h: &Place| h.name == host || Some(h.addr) == addr;
        let found = self.places().iter().position(is);
        found.unwrap_or_else(|| panic!("there is no host `{host}` in this simulation"))
    }

    fn port(&self, host: &str) -> PortId {
        let n = self.number(host);
        self.places()[n].port
    }

    pub(super) fn cut(&self, from: &str, to: &str, cut: bool) {
        let (from, to) = (self.port(from), self.port(to));
        match cut {
            true => self.network.cut(from, to),
            false => self.network.mend(from, to),
        }
    }

    pub(super) fn link(&self, from: &str, to: &str, link: &Link) {
        let (from, to) = (self.port(from), self.port(to));
        self.network.link(from, to, &link.faults());
    }

    /// Takes a host's power away.
    pub(super) fn crash(&self, n: usize) {
        let (port, life) = {
            let mut places = self.places();
            let place = &mut places[n];
            place.awaited = false;
            (place.port, place.life.take())
        };
        self.network.unplug(port);
        if let Some(life) = life {
            life.end();
        }
        self.news.set();
    }

    /// A host's program has ended; of the life before a crash nobody is told.
    pub(super) fn ended(&self, n: usize, life: &Arc<Life>) {
        let mut places = self.places();
        let now = places[n].life.as_ref();
        if now.is_some_and(|now| Arc::ptr_eq(now, life)) {
            places[n].awaited = false;
            drop(places);
            self.news.set();
        }
    }

    pub(super) fn awaited(&self) -> Vec<String> {
        let places = self.places();
        let late = places.iter().filter(|h| h.awaited);
        late.map(|h| h.name.clone()).collect()
    }

    /// What is left on hosts that are up.
    pub(super) fn left(&self) -> Vec<String> {
        let lives: Vec<_> = {
            let places = self.places();
            let up = places
                .iter()
                .filter_map(|h| Some((h.name.clone(), h.life.clone()?)));
            up.collect()
        };
        let mut left = Vec::new();
        for (name, life) in lives {
            let Some(stack) = life.stack() else { continue };
            match stack.try_connections() {
                Ok(all) => left.extend(all.iter().map(|c| crate::error::left(&name, c))),
                Err(e) => left.push(format!("`{name}` can't be asked: {e}")),
            }
        }
        left
    }
}
