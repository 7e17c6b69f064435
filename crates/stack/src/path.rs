//! What the table of path MTUs ([`crate::pmtu`]) means to sockets and connections.

use crate::count::Count;
use crate::ctx::Ctx;
use crate::ipv6::MIN_MTU;
use crate::kind::Kind;
use crate::pmtu::longer;
use crate::shared::SharedState;
use core::net::IpAddr;
use perimeter_base::Time;
use perimeter_sync::Platform;
use perimeter_tcp::config::HEADERS;
use perimeter_tcp::{Events, Tcb};
use perimeter_wire::MAX_DATAGRAM;

/// A connection to `remote` has learnt something of its path by trying. What a search has found holds for new
/// connections and for datagrams too; that full segments vanish does not, as the path may only be
/// down.
#[cold]
pub(crate) fn path_tried<K: Kind>(
    tcb: &Tcb,
    (remote, now): (IpAddr, Time),
    events: Events,
    cx: &Ctx<K>,
) {
    if events.contains(Events::BLACK_HOLE) {
        cx.count(Count::BlackHoles, 1);
    }
    if events.contains(Events::PATH_MTU) {
        let mtu = u32::from(tcb.path_mtu()) + u32::from(longer(remote));
        cx.sh.path_mtus.learn(remote, mtu, now);
    }
}

impl<K: Kind> SharedState<K> {
    /// The longest datagram that goes by interface `iface` to `dst` in one piece, as far as is known,
    /// octets; and whether datagrams must leave it to routers to cut them further.
    pub fn path_mtu(&self, iface: u16, dst: IpAddr, now: Time) -> (u32, bool) {
        let link = self.ifaces[usize::from(iface)].mtu(dst);
        match self.path_mtus.get(dst, || now) {
            Some(p) => (link.min(p.mtu), p.narrow),
            None => (link, false),
        }
    }

    /// A router says that a datagram of `len` octets on the flow of that hash, to `dst`, was too big
    /// for a link of `mtu`: whether that fits what was sent; and whether it lowers the path's MTU.
    pub fn path_too_big(
        &self,
        dst: IpAddr,
        hash: u32,
        (mtu, len): (u32, u32),
        now: Time,
    ) -> Option<bool> {
        let fits = mtu < len && self.path_mtus.has_sent(hash, now);
        fits.then(|| self.path_mtus.learn(dst, mtu, now))
    }

    /// A new connection to `remote` begins with what is known of its path.
    #[inline]
    pub(crate) fn begin_on_path(&self, tcb: &mut Tcb, remote: IpAddr) {
        if remote.is_ipv6() {
            tcb.set_path_floor(MIN_MTU as u16 - longer(remote) - HEADERS);
        }
        if let Some(path) = self.path_mtus.get(remote, || self.p.now()) {
            tcb.set_path_mtu(
                path.mtu.min(MAX_DATAGRAM) as u16 - longer(remote),
                path.until,
            );
        }
    }
}
