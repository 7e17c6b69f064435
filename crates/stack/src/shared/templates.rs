//! Headers prepared for a flow, and answers to segments that belong to no connection.

use super::SharedState;
use crate::count::Count;
use crate::hold::Syn;
use crate::id::SockId;
use crate::kind::Kind;
use crate::listener::Leaving;
use crate::net::L2;
use crate::own::Own;
use crate::segment::Seg;
use core::net::IpAddr;
use perimeter_link::Medium;
use perimeter_tcp::Rst;
use perimeter_tcp::syncache::Origin;
use perimeter_wire::{FlowKey, MacAddr, SegOut, Template};

/// Headers for a flow.
pub(crate) struct Made {
    pub(crate) template: Template,
    /// The next hop was not heard for long: a word of its being there is waited for
    /// ([`Routes::confirm`](crate::route::Routes::confirm)).
    pub(crate) delayed: bool,
}

impl<K: Kind> SharedState<K> {
    /// The label of a flow over IPv6 (RFC 6437, section 3): the same for its life, and nothing
    /// that another can guess. IPv4 has none.
    pub(crate) fn flow_label(&self, key: &FlowKey) -> u32 {
        if key.remote.is_ipv4() {
            return 0;
        }
        let [a, b] = self.secret;
        let label = crate::hash::table_hash([b ^ 0x6437, a], key) as u32 >> 12;
        // 0 says that there is none.
        label.max(1)
    }

    /// The hop limit, or time to live, of what goes to `remote` by interface `iface` without one of its
    /// own.
    pub(crate) fn hops(&self, iface: u16, remote: IpAddr) -> u8 {
        let said = self.ifaces[usize::from(iface)].hop_limit(remote);
        said.unwrap_or(self.config.ttl)
    }

    /// The template of a flow that goes by that interface and these stations.
    fn template_by(&self, iface: u16, l2: Option<(MacAddr, MacAddr)>, key: &FlowKey) -> Template {
        Template::new(l2, key, self.hops(iface, key.remote), self.flow_label(key))
    }

    /// Header template for a flow that leaves by interface `by`, if one is given. `None`: no route.
    /// The template of an unresolved neighbour must not be used; `waiter` is told when it is
    /// resolved.
    pub(crate) fn template(
        &self,
        key: &FlowKey,
        by: Option<u16>,
        waiter: Option<SockId>,
        own: &mut Own<K>,
    ) -> Option<(u16, Option<Made>)> {
        let now = own.now(&self.p);
        if let IpAddr::V6(local) = key.local
            && !self.v6.owns(local)
            && self.is_tentative(local, waiter)
        {
            return Some((self.routes.hop_by((key.remote, by))?.iface, None));
        }
        let to = (key.remote, by);
        let found = self.routes.resolve_by(&self.ifaces, to, waiter, now)?;
        let iface = found.hop.iface;
        if let Some(ask) = found.ask {
            self.ask(own, iface, ask);
        }
        let l2 = match found.l2 {
            L2::Unresolved => return Some((iface, None)),
            L2::None => None,
            L2::Stations(src, dst) => Some((src, dst)),
        };
        let made = Made {
            template: self.template_by(iface, l2, key),
            delayed: found.delayed.is_some(),
        };
        Some((iface, Some(made)))
    }

    /// Sends one segment that belongs to no connection, and is no answer to a frame at hand: a
    /// SYN-ACK once more. As [`SharedState::answer`] to a frame that came `from` there.
    pub fn reply(
        &self,
        own: &mut Own<K>,
        key: &FlowKey,
        from: Option<Origin>,
        out: &SegOut,
        leaving: Leaving,
    ) {
        self.to_stranger(own, (key, self.flow_hash(key)), out, from, leaving);
    }

    /// The interface and the station that a segment came from; where there are no stations, the
    /// unspecified one.
    pub fn came_from(&self, seg: &Seg) -> Option<Origin> {
        let medium = self.ifaces[usize::from(seg.iface)].caps.medium;
        let station = match medium {
            Medium::Ethernet => seg.station()?,
            Medium::Ip => MacAddr::UNSPECIFIED,
        };
        Some((seg.iface, station))
    }

    /// Answers a segment that belongs to no connection: a SYN-ACK or a reset. Strangers are not
    /// worth an entry among the neighbours, nor a request: where the next hop's station is not
    /// known, the answer goes to the station that the frame came from. Dropped when it came by
    /// another way, or the ring is full: the peer asks again.
    pub fn answer(&self, own: &mut Own<K>, seg: &Seg, out: &SegOut, leaving: Leaving) {
        let flow = (&seg.frame.key, seg.hash);
        self.to_stranger(own, flow, out, self.came_from(seg), leaving);
    }

    fn to_stranger(
        &self,
        own: &mut Own<K>,
        (key, hash): (&FlowKey, u32),
        out: &SegOut,
        from: Option<Origin>,
        leaving: Leaving,
    ) {
        let by = from.filter(|(iface, _)| {
            let i = &self.ifaces[usize::from(*iface)];
            i.accept.is_any() && self.only_by(key.local, i.tx.start).is_some()
        });
        let to = (key.remote, leaving.by.or(by.map(|(iface, _)| iface)));
        let Some((hop, known)) = self.routes.known_by(to) else {
            return;
        };
        let i = &self.ifaces[usize::from(hop.iface)];
        let l2 = if i.caps.medium == Medium::Ethernet {
            let came = from.filter(|(iface, mac)| {
                *iface == hop.iface && !mac.is_multicast() && *mac != MacAddr::UNSPECIFIED
            });
            let Some(station) = known.or(came.map(|(_, mac)| mac)) else {
                return self.count(own.lane, Count::NoStation, 1);
            };
            Some((i.caps.mac, station))
        } else {
            None
        };
        let mut template = self.template_by(hop.iface, l2, key);
        template.set_tos(leaving.tos);
        if let Some(ttl) = leaving.ttl {
            template.set_ttl(ttl);
        }
        let q = i.txq(hash);
        let mut stage = self.tx[usize::from(q)].stage();
        let Some(mut d) = stage.push() else {
            return self.count(own.lane, Count::TxRingFull, 1);
        };
        // A datagram on its own may say 0: it is never fragmented (RFC 6864, section 4.1).
        d.hdr_len = template.emit(&mut d.hdr, 0, out, 0) as u8;
        d.offload.csum_start = template.tcp_start() as u8;
        d.offload.csum_offset = 16;
        drop(stage);
        self.count(own.lane, Count::TxSegs, 1);
        own.deferred.ring(q);
    }

    /// Answers a segment that belongs to no connection with a reset (RFC 9293, section
    /// 3.10.7.1); never a reset with a reset.
    pub fn refuse(&self, own: &mut Own<K>, seg: &Seg) {
        self.count(own.lane, Count::NoConnection, 1);
        if let Some(rst) = Rst::answering(&seg.frame.hdr, seg.payload.len() as u32) {
            self.reset_no_socket(own, seg, &rst);
        }
    }

    /// Answers a held SYN with a reset, unless this thread has sent too many.
    pub fn refuse_held(&self, own: &mut Own<K>, syn: &Syn, leaving: Leaving) {
        if let Some(rst) = Rst::answering(&syn.hdr, 0)
            && self.may_reset(own)
        {
            self.reply(own, &syn.key, syn.from, &rst.seg(), leaving);
        }
    }

    /// Answers a segment that belongs to no connection with that reset, unless this thread has
    /// sent too many.
    pub fn reset_no_socket(&self, own: &mut Own<K>, seg: &Seg, rst: &Rst) {
        if self.may_reset(own) {
            self.answer(own, seg, &rst.seg(), Leaving::default());
        }
    }

    /// Whether this thread may send a stranger one more reset; counted as sent if so.
    pub fn may_reset(&self, own: &mut Own<K>) -> bool {
        let now = own.now(&self.p);
        let may = own.limits.resets.take(now);
        let what = if may {
            Count::TxResets
        } else {
            Count::ResetLimit
        };
        self.count(own.lane, what, 1);
        may
    }
}
