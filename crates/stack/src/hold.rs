//! Held SYNs: a listener's owner decides of each, before anything is answered, whether it gets a
//! SYN-ACK, a reset or nothing.
//!
//! What is kept of a SYN is what its answer needs, so deciding may take as long as it takes to
//! connect somewhere else. The places are bounded in number, and each in time: a SYN that finds none
//! free is dropped, as if the link had lost it, and its peer sends it again. Who repeats a SYN that
//! is held takes no second place.
//!
//! A place is kept beyond the decision until the handshake is complete. So what comes of an allowed
//! SYN's repetitions, when the SYN cache has answered by a cookie and kept nothing, is known here; and
//! a cookie needs no decision of its own, since only what was allowed is answered by one, and nobody
//! can make one up.

use core::time::Duration;
use perimeter_base::Time;
use perimeter_tcp::syncache::Origin;
use perimeter_wire::{FlowKey, Seq, TcpHdr};
use std::collections::VecDeque;

/// How a listener holds SYNs.
///
/// ```
/// use perimeter_stack::hold::Hold;
/// use std::time::Duration;
///
/// // Whoever has not been decided on after five seconds may try again.
/// let hold = Hold::default().with_requests(64).with_time(Duration::from_secs(5));
/// assert_eq!((hold.requests, hold.time.as_secs()), (64, 5));
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// Most requests at a time: those that nobody has looked at, those that are being decided, and
    /// those that are allowed and whose handshake is not complete. At least 1. Default 1024.
    pub requests: usize,
    /// How long a request waits for its decision, and again for the rest of its handshake. One
    /// that has waited longer makes room for another. Default 60 s: a peer's last
    /// retransmission of a SYN comes before that (Linux: after 63 s).
    pub time: Duration,
}

impl Default for Hold {
    fn default() -> Hold {
        Hold {
            requests: 1024,
            time: Duration::from_secs(60),
        }
    }
}

perimeter_base::setters! {
    Hold {
        with_requests(requests: usize),
        with_time(time: Duration),
    }
}

/// What is decided of a held SYN.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The handshake goes on: the SYN-ACK is sent.
    Allow,
    /// Refused: a reset is sent.
    Reset,
    /// Nothing is sent, and the request forgotten: the peer's next SYN is a new one.
    Drop,
}

/// What is kept of a SYN, to answer it later.
#[derive(Copy, Clone, Debug)]
pub struct Syn {
    /// Its flow, from this host's point of view.
    pub key: FlowKey,
    /// Its header.
    pub hdr: TcpHdr,
    /// The interface that it came by.
    pub iface: u16,
    /// The same with the station that sent it, where it is known.
    pub from: Option<Origin>,
    /// What the organization wants to know of where it came in.
    pub origin: u16,
    /// The initial sequence number to use, if it takes over a connection in TIME-WAIT.
    pub iss: Option<Seq>,
}

/// Names a request among all that a listener has ever held.
pub type Serial = u64;

/// Names a request, and says whose it is.
pub type Name = (FlowKey, Serial);

#[derive(Debug)]
struct Place {
    syn: Syn,
    serial: Serial,
    /// When the place is free again.
    until: Time,
    allowed: bool,
}

/// What becomes of a SYN that arrives.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// It waits, and is to be told of.
    New,
    /// It was waiting.
    Again,
    /// It was allowed before: it is to be answered.
    Allowed,
    /// There is no room.
    Full,
}

/// The SYNs that a listener holds.
#[derive(Debug)]
pub struct Requests {
    hold: Hold,
    places: hashbrown::HashMap<FlowKey, Place, foldhash::fast::RandomState>,
    /// Not looked at yet, oldest first; those that have gone are left in it.
    fresh: VecDeque<(FlowKey, Serial)>,
    serial: Serial,
    /// No place is free by its time before then.
    next: Time,
}

impl Requests {
    /// None.
    pub fn new(hold: Hold) -> Requests {
        Requests {
            hold: Hold {
                requests: hold.requests.max(1),
                ..hold
            },
            places: hashbrown::HashMap::default(),
            fresh: VecDeque::new(),
            serial: 0,
            next: Time::NEVER,
        }
    }

    /// A SYN arrived that the SYN cache does not know.
    pub fn arrived(&mut self, syn: Syn, now: Time) -> Held {
        if let Some(place) = self.places.get_mut(&syn.key) {
            if place.until > now {
                if place.allowed {
                    return Held::Allowed;
                }
                // A peer that has started anew is answered as it is now.
                place.syn = syn;
                return Held::Again;
            }
            self.places.remove(&syn.key);
        }
        if self.places.len() >= self.hold.requests {
            self.expire(now);
            if self.places.len() >= self.hold.requests {
                return Held::Full;
            }
        }
        self.serial += 1;
        let serial = self.serial;
        let until = now + self.hold.time;
        self.next = self.next.min(until);
        let place = Place {
            syn,
            serial,
            until,
            allowed: false,
        };
        self.places.insert(syn.key, place);
        if self.fresh.len() >= 2 * self.hold.requests {
            let places = &self.places;
            self.fresh
                .retain(|(key, serial)| live(places, key, *serial).is_some());
        }
        self.fresh.push_back((syn.key, serial));
        Held::New
    }

    /// Frees the places whose time is over: a look at all of them, while none can be it takes none.
    fn expire(&mut self, now: Time) {
        if now < self.next {
            return;
        }
        self.places.retain(|_, place| place.until > now);
        let until = self.places.values().map(|place| place.until);
        self.next = until.min().unwrap_or(Time::NEVER);
    }

    /// The next request that nobody has looked at.
    pub fn take(&mut self, now: Time) -> Option<(FlowKey, Serial)> {
        while let Some((key, serial)) = self.fresh.pop_front() {
            if live(&self.places, &key, serial).is_some_and(|place| place.until > now) {
                return Some((key, serial));
            }
        }
        None
    }

    /// Whether there is one, perhaps.
    pub fn any_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Decides a request; its SYN, which is to be answered. `None`: it has gone, by its time or by
    /// its peer's reset.
    pub fn decide(
        &mut self,
        key: &FlowKey,
        serial: Serial,
        verdict: Verdict,
        now: Time,
    ) -> Option<Syn> {
        let place = self.places.get_mut(key)?;
        if place.serial != serial || place.until <= now || place.allowed {
            return None;
        }
        let syn = place.syn;
        match verdict {
            Verdict::Allow => {
                place.allowed = true;
                place.until = now + self.hold.time;
            }
            Verdict::Reset | Verdict::Drop => {
                self.places.remove(key);
            }
        }
        Some(syn)
    }

    /// A peer has reset the flow. One that is not answered yet goes if the reset is the next that
    /// its peer can send; `known`: the SYN cache has found it good.
    pub fn reset(&mut self, key: &FlowKey, seq: Seq, known: bool) {
        let gone = |place: &Place| known || !place.allowed && seq == place.syn.hdr.seq + 1;
        if self.places.get(key).is_some_and(gone) {
            self.places.remove(key);
        }
    }

    /// The handshake of a flow is complete.
    pub fn complete(&mut self, key: &FlowKey) {
        self.places.remove(key);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

fn live<'a>(
    places: &'a hashbrown::HashMap<FlowKey, Place, foldhash::fast::RandomState>,
    key: &FlowKey,
    serial: Serial,
) -> Option<&'a Place> {
    places.get(key).filter(|place| place.serial == serial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use perimeter_wire::TcpFlags;

    fn syn(port: u16, seq: u32) -> Syn {
        let key = FlowKey {
            local: [192, 0, 2, 1].into(),
            remote: [10, 0, 0, 2].into(),
            local_port: 80,
            remote_port: port,
        };
        let hdr = TcpHdr {
            src_port: port,
            dst_port: 80,
            seq: Seq(seq),
            ack: Seq(0),
            flags: TcpFlags::SYN,
            window: 1000,
            urgent: 0,
            opts: perimeter_wire::TcpOptions::default(),
        };
        Syn {
            key,
            hdr,
            iface: 0,
            from: None,
            origin: 0,
            iss: None,
        }
    }

    fn of(requests: usize, secs: u64) -> Requests {
        let time = Duration::from_secs(secs);
        Requests::new(Hold { requests, time })
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_request_is_told_of_once_and_decided_once() {
        let mut r = of(2, 10);
        assert_eq!(r.arrived(syn(1, 7), Time(1)), Held::New);
        assert_eq!(r.arrived(syn(1, 7), Time(2)), Held::Again);
        let (key, serial) = r.take(Time(3)).unwrap();
        assert!(r.take(Time(3)).is_none());
        // Its peer has started anew: that SYN is the one that is answered.
        assert_eq!(r.arrived(syn(1, 9), Time(4)), Held::Again);
        let found = r.decide(&key, serial, Verdict::Allow, Time(5)).unwrap();
        assert_eq!(found.hdr.seq, Seq(9));
        assert!(r.decide(&key, serial, Verdict::Reset, Time(5)).is_none());
        assert_eq!(r.arrived(syn(1, 9), Time(6)), Held::Allowed);
        r.complete(&key);
        assert!(r.is_empty());
        assert!(r.decide(&key, serial, Verdict::Allow, Time(7)).is_none());
    }

    #[test]
    fn places_are_bounded_in_number_and_in_time() {
        let mut r = of(3, 10);
        for port in 1..=3 {
            assert_eq!(r.arrived(syn(port, 7), Time(u64::from(port))), Held::New);
        }
        assert_eq!(r.arrived(syn(4, 7), Time(SECOND)), Held::Full);
        let (key, serial) = r.take(Time(SECOND)).unwrap();
        let allowed = r.decide(&key, serial, Verdict::Allow, Time(5 * SECOND));
        assert!(allowed.is_some());
        // The two that nobody has decided are over; the other's time runs anew.
        let later = Time(11 * SECOND);
        assert_eq!(r.arrived(syn(4, 7), later), Held::New);
        assert_eq!(r.len(), 2);
        let (key, _) = r.take(later).unwrap();
        assert_eq!(key.remote_port, 4, "those that are over are not told of");
        assert_eq!(r.arrived(syn(1, 7), later), Held::Allowed);
        // What nobody looks at does not grow either.
        for n in 0..10_000u64 {
            let now = Time(later.0 + (n + 1) * 20 * SECOND);
            assert_eq!(r.arrived(syn(n as u16, 7), now), Held::New);
        }
        assert!(r.fresh.len() <= 6 && r.len() <= 3);
    }

    #[test]
    fn a_peer_that_resets_is_forgotten() {
        let mut r = of(3, 10);
        r.arrived(syn(1, 7), Time(1));
        let key = syn(1, 7).key;
        r.reset(&key, Seq(9), false);
        assert_eq!(r.len(), 1, "not the next in order: made up, perhaps");
        r.reset(&key, Seq(8), false);
        assert!(r.is_empty());
        assert!(r.take(Time(2)).is_none());
    }
}
