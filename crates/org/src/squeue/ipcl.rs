//! The IP classifier: which connection, and so which squeue, a packet belongs to, whichever core
//! receives it; and which squeue a listener belongs to.
//!
//! Flows are in a table whose parts have locks of their own, as FireEngine's fanout buckets
//! have. A flow that is being set up is entered with its squeue alone.

use crate::flows::Flows;
use core::net::IpAddr;
use perimeter_stack::listener::{ANY_PORT, Listener, covers};
use perimeter_stack::net::both_get;
use perimeter_stack::{Kind, SockId};
use perimeter_sync::{Lock, LockClass, LockStats, Platform};
use perimeter_wire::FlowKey;

/// Where a flow belongs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Its squeue.
    pub(crate) squeue: u16,
    /// Its connection, once that is made.
    pub(crate) id: Option<SockId>,
}

/// A listener and where it belongs.
struct Bind {
    addr: Option<IpAddr>,
    port: u16,
    device: Option<u16>,
    id: SockId,
    squeue: u16,
}

/// The classifier.
pub(crate) struct Ipcl<P: Platform> {
    flows: Flows<P, Flow>,
    binds: P::Lock<Vec<Bind>>,
}

impl<P: Platform> Ipcl<P> {
    pub(crate) fn new(p: &P, secret: [u64; 2]) -> Ipcl<P> {
        Ipcl {
            flows: Flows::new(p, secret),
            binds: p.lock(LockClass::ConnHashtable, Vec::new()),
        }
    }

    /// Where a flow belongs. `hold` takes a reference to its connection before another thread
    /// can change the table.
    #[inline]
    pub(crate) fn find(&self, key: &FlowKey, hold: impl FnOnce(SockId)) -> Option<Flow> {
        self.flows.with(key, |to| {
            if let Some(id) = to.id {
                hold(id);
            }
            *to
        })
    }

    /// Enters a flow that is being set up on `squeue`; `false`: it exists.
    pub(crate) fn insert(&self, key: FlowKey, squeue: u16) -> bool {
        self.flows.insert(key, Flow { squeue, id: None })
    }

    /// The connection of a flow that was entered before is made.
    pub(crate) fn complete(&self, key: &FlowKey, id: SockId) {
        self.flows.with(key, |to| to.id = Some(id));
    }

    /// Forgets a flow of `squeue`, if it is still that of `id`, or of nobody yet.
    pub(crate) fn remove(&self, key: &FlowKey, squeue: u16, id: Option<SockId>) {
        let mine = |to: &Flow| to.squeue == squeue && (to.id.is_none() || to.id == id);
        self.flows.remove(key, mine);
    }

    /// Enters a listener, which belongs to `squeue`, unless another one has its port: then with
    /// that, so that a port's handshakes are in one place. Returns where that is.
    pub(crate) fn bind<K: Kind>(&self, l: &Listener<K>, squeue: u16) -> u16 {
        let mut binds = self.binds.lock();
        let other = binds.iter().find(|b| b.port == l.port);
        let squeue = other.map_or(squeue, |b| b.squeue);
        binds.push(Bind {
            addr: l.addr,
            port: l.port,
            device: l.device,
            id: l.id,
            squeue,
        });
        squeue
    }

    /// Forgets a listener; returns where it belonged.
    pub(crate) fn unbind(&self, id: SockId) -> Option<u16> {
        let mut binds = self.binds.lock();
        let at = binds.iter().position(|b| b.id == id)?;
        Some(binds.swap_remove(at).squeue)
    }

    /// The squeue of whoever listens where packets of that flow go to that come by interface `iface`;
    /// `None`: by any.
    pub(crate) fn listener(&self, key: &FlowKey, iface: Option<u16>) -> Option<u16> {
        let binds = self.binds.lock();
        let fits = |b: &Bind| covers(b.addr, key.local) && both_get(b.device, iface);
        let at = |port| binds.iter().find(|b| b.port == port && fits(b));
        at(key.local_port)
            .or_else(|| at(ANY_PORT))
            .map(|b| b.squeue)
    }

    /// The squeue of a listener.
    pub(crate) fn home(&self, id: SockId) -> Option<u16> {
        let binds = self.binds.lock();
        binds.iter().find(|b| b.id == id).map(|b| b.squeue)
    }

    pub(crate) fn lock_stats(&self, add: &mut dyn FnMut(LockClass, LockStats)) {
        self.flows.lock_stats(add);
        add(LockClass::ConnHashtable, self.binds.stats());
    }
}

#[cfg(test)]
mod tests {
    use super::{Flow, Ipcl};
    use crate::Kd;
    use core::net::{IpAddr, Ipv4Addr};
    use perimeter_stack::SockId;
    use perimeter_stack::listener::{ANY_PORT, ListenSpec, Listener};
    use perimeter_sync::Native;
    use perimeter_tcp::Config;
    use perimeter_wire::FlowKey;

    #[test]
    fn a_flow_is_found_from_its_beginning_to_its_end() {
        let c = Ipcl::new(&Native::new(), [3, 5]);
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let key = |port| FlowKey {
            local: ip,
            remote: ip,
            local_port: 80,
            remote_port: port,
        };
        for port in 0..5_000 {
            assert!(c.insert(key(port), port % 7));
            assert!(!c.insert(key(port), 0), "it exists");
        }
        for port in 0..5_000u16 {
            let id = SockId::conn(port % 7, u32::from(port), 1);
            let mut held = None;
            let to = c.find(&key(port), |id| held = Some(id));
            let squeue = port % 7;
            assert_eq!((to, held), (Some(Flow { squeue, id: None }), None));
            c.complete(&key(port), id);
            let to = c.find(&key(port), |id| held = Some(id));
            assert_eq!(to.and_then(|t| t.id), Some(id));
            assert_eq!(held, Some(id));
            // A predecessor's end leaves it alone.
            c.remove(&key(port), squeue, Some(SockId::conn(squeue, 9, 9)));
            assert_eq!(c.flows.len(), 5_000 - usize::from(port));
            c.remove(&key(port), squeue, Some(id));
            assert_eq!(c.find(&key(port), |_| ()), None);
        }
        assert_eq!(c.flows.len(), 0);
    }

    #[test]
    fn listeners_of_a_port_share_an_squeue() {
        let p = Native::new();
        let c = Ipcl::new(&p, [3, 5]);
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let listener = |n, addr, port, device| {
            let spec = ListenSpec {
                device,
                ..ListenSpec::new((addr, port), 1, Config::default())
            };
            Listener::<Kd<Native>>::new(&p, SockId::listener(n, 1), &spec, port)
        };
        let found = |port, iface| {
            let key = FlowKey {
                local: ip,
                local_port: port,
                ..FlowKey::UNSPECIFIED
            };
            c.listener(&key, Some(iface))
        };
        assert_eq!(found(80, 0), None);
        assert_eq!(c.bind(&listener(1, Some(ip), 80, None), 4), 4);
        assert_eq!(c.bind(&listener(2, None, 80, None), 2), 4);
        assert_eq!(c.bind(&listener(3, None, 81, None), 2), 2);
        assert_eq!(found(80, 0), Some(4));
        assert_eq!(c.unbind(SockId::listener(1, 1)), Some(4));
        assert_eq!(found(80, 0), Some(4));
        assert_eq!(c.unbind(SockId::listener(2, 1)), Some(4));
        assert_eq!(found(80, 0), None);
        assert_eq!(c.unbind(SockId::listener(2, 1)), None);
        // Who listens at all ports gets those that nobody else has.
        assert_eq!(c.bind(&listener(4, None, ANY_PORT, None), 6), 6);
        assert_eq!((found(80, 0), found(81, 0)), (Some(6), Some(2)));
        // As who is bound to an interface has its port on that one only.
        assert_eq!(c.bind(&listener(5, None, 80, Some(1)), 3), 3);
        assert_eq!((found(80, 0), found(80, 1)), (Some(6), Some(3)));
        assert_eq!(c.home(SockId::listener(5, 1)), Some(3));
    }
}
