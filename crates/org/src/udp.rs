//! UDP under every organization: datagrams are brought to the perimeter of their socket, all of a
//! burst that are for one perimeter in one job, and calls run there.

use crate::instance::Instance;
use crate::{Arrivals, Departures, Job, Org, Protocol};
use perimeter_base::PktBuf;
use perimeter_stack::aside::Trouble;
use perimeter_stack::count::malformed;
use perimeter_stack::datagram::{self, Datagram};
use perimeter_stack::udp::{Addressed, Departing, Outgoing, Rx, Socket, Table, Target, UdpError};
use perimeter_stack::{Count, Ctx, Kind, SockId, Sockets};
use perimeter_tcp::{TcpError, Unreachable};
use perimeter_wire::dhcp::CLIENT_PORT;
use perimeter_wire::{FlowKey, PROTO_UDP, UdpHdr, WireError};

/// The protocol.
#[derive(Debug, Default)]
pub struct Udp;

impl<O: Org> Protocol<O> for Udp {
    fn number(&self) -> u8 {
        PROTO_UDP
    }

    fn input(&self, org: &O, cx: &mut Ctx<O::K>, datagrams: &mut Vec<Datagram>) {
        let mut found = core::mem::take(&mut cx.udp);
        let late = org.wants_late();
        for d in datagrams.iter_mut() {
            classify(cx, d, late, &mut found);
        }
        datagrams.clear();
        let n = found.len();
        if n > 0 && !late {
            cx.count(Count::UdpIn, n as u64);
        }
        bring(org, cx, late, &mut found);
        found.clear();
        if cx.udp.capacity() < found.capacity() {
            cx.udp = found;
        }
    }

    fn error(&self, org: &O, cx: &mut Ctx<O::K>, ends: &FlowKey, what: Trouble) {
        let what = match what {
            Trouble::Unreachable(what) => what,
            Trouble::TooBig { mtu, len } => return too_big(org, cx, ends, mtu, len),
        };
        let Some(id) = cx.sh.udp.connected(ends) else {
            return;
        };
        let e = UdpError::Failed(match what {
            Unreachable::Net => TcpError::NetUnreachable,
            Unreachable::Host => TcpError::HostUnreachable,
            Unreachable::Protocol => TcpError::ProtocolUnreachable,
            Unreachable::Port => TcpError::Refused,
        });
        let ends = *ends;
        leave(org, cx, id, move |s, cx| s.network_error(cx, &ends, e));
    }
}

/// A datagram of `len` octets was too big for a link that takes `mtu`. Believed if a socket is there
/// for its flow and has sent on it lately.
#[cold]
fn too_big<O: Org>(org: &O, cx: &mut Ctx<O::K>, ends: &FlowKey, mtu: u32, len: u32) {
    let (sh, now) = (cx.sh, cx.now());
    let hash = sh.flow_hash(ends);
    let Target::One(id) = sh.udp.find(ends, None, || hash) else {
        return cx.count(Count::TooBigRefused, 1);
    };
    match sh.path_too_big(ends.remote, hash, (mtu, len), now) {
        None => return cx.count(Count::TooBigRefused, 1),
        Some(lowered) => cx.count(Count::PathMtuLowered, u64::from(lowered)),
    }
    let ends = *ends;
    leave(org, cx, id, move |s, cx| s.path_lowered(cx, &ends));
}

/// Checks a datagram and finds who it is for. Where that is one socket and the organization has IP
/// check it `late`, it stays as it is.
#[inline]
fn classify<K: Kind>(cx: &mut Ctx<K>, d: &mut Datagram, late: bool, found: &mut Vec<Addressed>) {
    let checked = header(d).and_then(|hdr| match late && !d.group {
        true => Ok(hdr),
        false => verify(d, &hdr).map(|()| hdr),
    });
    let hdr = match checked {
        Ok(hdr) => hdr,
        Err(e) => return unfit(cx, e, &mut d.payload),
    };
    let key = FlowKey {
        local: d.ip.dst,
        remote: d.ip.src,
        local_port: hdr.dst_port,
        remote_port: hdr.src_port,
    };
    let sh = cx.sh;
    if d.group {
        return to_all(cx, d, &key, late, found);
    }
    match sh.udp.find(&key, Some(d.iface), || {
        d.hash.unwrap_or_else(|| sh.flow_hash(&key))
    }) {
        Target::One(id) => {
            // Filled in where it is: moved as a whole, it would be read before it is there.
            found.push(Addressed {
                rx: Rx::default(),
                to: id,
                csum_ok: d.csum_ok || !late,
            });
            if let Some(last) = found.last_mut() {
                received(d, &key, late, &mut last.rx);
            }
        }
        Target::Nobody if late && let Err(e) = verify(d, &hdr) => unfit(cx, e, &mut d.payload),
        Target::Nobody if hdr.dst_port == CLIENT_PORT => dhcp(cx, d),
        Target::Nobody => {
            cx.count(Count::UdpNoSocket, 1);
            datagram::refuse(cx, d, Unreachable::Port);
            cx.pool.put(core::mem::take(&mut d.payload));
        }
    }
}

/// A datagram is no good.
#[cold]
fn unfit<K: Kind>(cx: &mut Ctx<K>, e: WireError, payload: &mut PktBuf) {
    cx.sh.counters.add(cx.lane, malformed(e), 1);
    cx.pool.put(core::mem::take(payload));
}

/// A datagram for the client of the interface that it came by.
#[cold]
fn dhcp<K: Kind>(cx: &mut Ctx<K>, d: &mut Datagram) {
    let message = d.payload.as_slice().get(UdpHdr::LEN..).unwrap_or_default();
    cx.sh.dhcp_received(cx.own, d.iface, message);
    cx.pool.put(core::mem::take(&mut d.payload));
}

/// Fills in what its socket gets of a datagram; the header stays in front of that where IP checks it
/// `late`.
#[inline]
fn received(d: &mut Datagram, key: &FlowKey, late: bool, rx: &mut Rx) {
    rx.data = core::mem::take(&mut d.payload);
    if !late {
        rx.data.trim_front(UdpHdr::LEN);
    }
    rx.src = (key.remote, key.remote_port);
    rx.dst = (key.local, key.local_port);
    rx.iface = d.iface;
    rx.tos = d.ip.tos;
    rx.hop_limit = d.ip.hop_limit;
}

/// A datagram to a group, or to all hosts of a link, is for every socket that may have it. Nobody is
/// told when there is none (RFC 1122, section 3.2.2).
#[cold]
fn to_all<K: Kind>(
    cx: &mut Ctx<K>,
    d: &mut Datagram,
    key: &FlowKey,
    late: bool,
    found: &mut Vec<Addressed>,
) {
    let mut all = Vec::new();
    let looped = d.iface == cx.sh.loopback().0;
    let iface = (!looped).then_some(d.iface);
    cx.sh.udp.find_all(key, iface, &mut all);
    if all.is_empty() && key.local_port == CLIENT_PORT {
        return dhcp(cx, d);
    }
    let Some(last) = all.pop() else {
        cx.count(Count::UdpNoSocket, 1);
        return cx.pool.put(core::mem::take(&mut d.payload));
    };
    let mut rx = Rx::default();
    received(d, key, late, &mut rx);
    let csum_ok = true;
    for to in all {
        let rx = rx.copy();
        found.push(Addressed { rx, to, csum_ok });
    }
    let to = last;
    found.push(Addressed { rx, to, csum_ok });
}

/// Its header, if it is whole; what follows the datagram in the packet is cut off.
#[inline]
fn header(d: &mut Datagram) -> Result<UdpHdr, WireError> {
    let hdr = UdpHdr::parse(d.payload.as_slice())?;
    d.payload.truncate(hdr.len.into());
    Ok(hdr)
}

/// Whether its checksum is right.
#[inline]
fn verify(d: &Datagram, hdr: &UdpHdr) -> Result<(), WireError> {
    // A device that has verified the checksum may leave a partial one there, and over IPv6 one
    // must be there at all.
    match d.csum_ok {
        true => Ok(()),
        false => hdr.verify(d.ip.src, d.ip.dst, d.payload.as_slice()),
    }
}

/// Datagrams for sockets of one perimeter.
struct Arrived {
    all: Vec<Addressed>,
    /// They have yet to be checked, and have their headers before the data.
    late: bool,
}

impl<K: Kind> Arrivals<K> for Arrived {
    fn check(&mut self, cx: &mut Ctx<K>) {
        if !core::mem::take(&mut self.late) {
            return;
        }
        self.all.retain_mut(|Addressed { rx, csum_ok, .. }| {
            let bytes = rx.data.as_slice();
            let fit = UdpHdr::parse(bytes).and_then(|hdr| match *csum_ok {
                true => Ok(()),
                false => hdr.verify(rx.src.0, rx.dst.0, bytes),
            });
            match fit {
                Ok(()) => rx.data.trim_front(UdpHdr::LEN),
                Err(e) => unfit(cx, e, &mut rx.data),
            }
            fit.is_ok()
        });
        cx.count(Count::UdpIn, self.all.len() as u64);
    }

    fn look(&mut self, cx: &mut Ctx<K>, look: &mut dyn FnMut(&FlowKey, u16, &mut [u8]) -> bool) {
        self.all.retain_mut(|Addressed { rx, .. }| {
            let key = FlowKey {
                local: rx.dst.0,
                remote: rx.src.0,
                local_port: rx.dst.1,
                remote_port: rx.src.1,
            };
            let on = look(&key, rx.iface, rx.data.as_mut_slice());
            if !on {
                cx.pool.put(core::mem::take(&mut rx.data));
            }
            on
        });
    }

    fn deliver(&mut self, sockets: &mut dyn Sockets<K>, cx: &mut Ctx<K>) {
        self.check(cx);
        sockets
            .others()
            .table::<Table<K>>()
            .deliver(cx, &mut self.all);
    }
}

impl<K: Kind> Departures<K> for Departing {
    fn call(&mut self, sockets: &mut dyn Sockets<K>, cx: &mut Ctx<K>) -> bool {
        match sockets.others().table::<Table<K>>().get(self.id()) {
            Some(socket) => Departing::call(self, socket, cx),
            None => {
                cx.count(Count::StaleHandle, 1);
                self.refuse(cx, UdpError::Closed);
                false
            }
        }
    }

    fn look(&mut self, cx: &mut Ctx<K>, look: &mut dyn FnMut(&FlowKey, u16, &mut [u8]) -> bool) {
        Departing::look(self, cx, look);
    }

    fn place(&mut self, cx: &mut Ctx<K>) -> bool {
        Departing::place(self, cx)
    }

    fn rest(&mut self, sockets: &mut dyn Sockets<K>, cx: &mut Ctx<K>) {
        // What it has to put aside goes with the socket.
        if let Some(socket) = sockets.others().table::<Table<K>>().get(self.id()) {
            Departing::rest(self, socket, cx);
        }
    }
}

/// Brings datagrams to their sockets: all for one perimeter together, in order of arrival.
fn bring<O: Org>(org: &O, cx: &mut Ctx<O::K>, late: bool, found: &mut Vec<Addressed>) {
    while let Some(first) = found.first() {
        let n = first.to.shard();
        if found.iter().all(|a| a.to.shard() == n) {
            let all = core::mem::take(found);
            let mut arrived = Arrived { all, late };
            if !O::HERE {
                return org.arrive(cx, n, arrived);
            }
            // The calling thread is inside at once, and has its room back.
            let job = move |s: &mut dyn Sockets<O::K>, cx: &mut Ctx<O::K>| {
                arrived.deliver(s, cx);
                arrived.all
            };
            *found = org.inside(cx, n, job).unwrap_or_default();
            return;
        }
        let all = found.extract_if(.., |a| a.to.shard() == n).collect();
        org.arrive(cx, n, Arrived { all, late });
    }
}

/// Has `f` run on a socket, now or when its turn comes.
pub(crate) fn leave<O: Org>(
    org: &O,
    cx: &mut Ctx<O::K>,
    id: SockId,
    f: impl FnOnce(&mut Socket<O::K>, &mut Ctx<O::K>) + Send + 'static,
) {
    org.leave(cx, id.shard(), move |s, cx| {
        let table: &mut Table<O::K> = s.others().table();
        match table.get(id) {
            Some(socket) => f(socket, cx),
            None => cx.count(Count::StaleHandle, 1),
        }
    });
}

impl<O: Org> Instance<O> {
    /// Runs `f` on the table of perimeter `n`; `None`: a panic has stopped the thread that was to
    /// do so.
    pub(crate) fn datagrams<R: Send + 'static>(
        &self,
        cx: &mut Ctx<O::K>,
        n: u16,
        f: impl FnOnce(&mut Table<O::K>, &mut Ctx<O::K>) -> R + Send + 'static,
    ) -> Option<R> {
        fn job<K: Kind, R>(
            f: impl FnOnce(&mut Table<K>, &mut Ctx<K>) -> R + Send + 'static,
        ) -> impl Job<K, R> {
            move |s: &mut dyn Sockets<K>, cx: &mut Ctx<K>| f(s.others().table(), cx)
        }
        self.org.inside(cx, n, job(f))
    }

    /// Runs `f` on a socket and waits for its result; `None`: the socket has gone.
    #[inline]
    pub(crate) fn datagram<R: Send + 'static>(
        &self,
        cx: &mut Ctx<O::K>,
        id: SockId,
        f: impl FnOnce(&mut Socket<O::K>, &mut Ctx<O::K>) -> R + Send + 'static,
    ) -> Option<R> {
        self.datagrams(cx, id.shard(), move |table, cx| match table.get(id) {
            Some(socket) => Some(f(socket, cx)),
            None => cx.sh.stale(cx),
        })?
    }

    /// Sends by a socket, in turns: how many of `all` were taken, the last perhaps in part, and how
    /// many bytes. `None`: the socket has gone.
    #[cold]
    pub(crate) fn depart(
        &self,
        cx: &mut Ctx<O::K>,
        id: SockId,
        all: impl IntoIterator<Item = Outgoing>,
    ) -> Option<Result<(usize, usize), UdpError>> {
        let all = Departing::new(id, all);
        match self.org.depart(cx, id.shard(), all)?.taken() {
            Err(UdpError::Closed) => None,
            taken => Some(taken),
        }
    }

    /// A neighbour's station is known that a socket waited for, or there is room in a ring.
    pub(crate) fn datagram_output(&self, cx: &mut Ctx<O::K>, id: SockId) {
        leave(&self.org, cx, id, |s, cx| s.go_on(cx));
    }

    /// A neighbour is not there that a socket waited for.
    pub(crate) fn datagram_lost(&self, cx: &mut Ctx<O::K>, id: SockId) {
        leave(&self.org, cx, id, |s, cx| s.no_neighbour(cx));
    }

    /// Closes a socket; whether it was there.
    pub(crate) fn close_datagram(&self, cx: &mut Ctx<O::K>, id: SockId) -> bool {
        let close = move |table: &mut Table<O::K>, cx: &mut Ctx<O::K>| table.close(cx, id);
        self.datagrams(cx, id.shard(), close).unwrap_or(false)
    }

    /// Closes all: the stack has stopped.
    pub(crate) fn close_datagrams(&self) {
        for id in self.sh.udp.all() {
            self.with(|i, cx| i.close_datagram(cx, id));
        }
    }

    /// No interface is left.
    pub(crate) fn datagrams_down(&self, cx: &mut Ctx<O::K>) {
        for id in self.sh.udp.all() {
            leave(&self.org, cx, id, |s, cx| s.network_down(cx));
        }
    }
}
