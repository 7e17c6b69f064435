//! What a running stack does when its facade calls for a datagram socket.

use super::running::Running;
use crate::Org;
use crate::error::EngineError;
use crate::instance::{Ev, Instance};
use core::net::{IpAddr, SocketAddr};
use perimeter_base::{Bytes, Time};
use perimeter_stack::ops::Watching;
use perimeter_stack::udp::{
    Outgoing, Payload, Rx, Socket, Table, UdpConfig, UdpError, UdpInfo, UdpSetting,
};
use perimeter_stack::{Ctx, Kind, SockError, SockId, ready};
use std::collections::BTreeSet;

/// What one call sends to one peer.
#[derive(Copy, Clone, Debug)]
pub struct Transmit<'a> {
    /// To whom; `None`: the socket's peer.
    pub to: Option<(IpAddr, u16)>,
    /// From which address and port, where not from the socket's own.
    pub from: Option<(IpAddr, u16)>,
    /// The data.
    pub data: &'a [u8],
    /// It is several datagrams of so many bytes each, but for the last one; 0: it is one.
    pub segment: u16,
}

/// A datagram that was copied out.
#[derive(Copy, Clone, Debug)]
pub struct CopiedOut {
    /// How many bytes were copied; what there was no room for is lost.
    pub copied: usize,
    /// How many bytes it had.
    pub len: usize,
    /// Who sent it.
    pub src: (IpAddr, u16),
    /// What it was sent to.
    pub dst: (IpAddr, u16),
}

/// Datagram sockets of a running stack.
pub trait Datagrams {
    /// Opens a socket bound to an address (unspecified: any) and a port (0: a free one); its name
    /// and port.
    ///
    /// # Errors
    /// [`EngineError::AddrInUse`], [`EngineError::NoRoute`] for an address that is not ours,
    /// [`EngineError::NoMemory`].
    fn udp_bind(&self, local: SocketAddr, config: &UdpConfig)
    -> Result<(SockId, u16), EngineError>;

    /// Gives it a peer.
    ///
    /// # Errors
    /// There is no route, or another socket has that flow.
    fn udp_connect(&self, id: SockId, to: (IpAddr, u16)) -> Result<(), EngineError>;

    /// Sends a datagram, or several of one length; how many bytes were taken.
    ///
    /// # Errors
    /// There is no room in the transmit ring, or no way, or the datagram is too long.
    fn udp_send(&self, id: SockId, out: &Transmit<'_>) -> Result<usize, EngineError>;

    /// Sends to several peers, one after another; how many of them were taken, the last perhaps in
    /// part.
    ///
    /// # Errors
    /// As [`Datagrams::udp_send`], of the first.
    fn udp_send_many(&self, id: SockId, all: &[Transmit<'_>]) -> Result<usize, EngineError>;

    /// Copies the oldest datagram to `buf`, and takes it unless `peek` is set.
    ///
    /// # Errors
    /// There is none, or an error is pending.
    fn udp_recv(&self, id: SockId, buf: &mut [u8], peek: bool) -> Result<CopiedOut, EngineError>;

    /// Takes up to `max` datagrams; those in `all` were read and go back to the stack.
    ///
    /// # Errors
    /// As [`Datagrams::udp_recv`].
    fn udp_recv_many(
        &self,
        id: SockId,
        max: usize,
        all: &mut Vec<Rx>,
    ) -> Result<usize, EngineError>;

    /// Joins a group on an interface, or leaves it.
    ///
    /// # Errors
    /// It is no group, there is no such interface, the socket is in it already, or is not.
    fn udp_group(&self, id: SockId, at: (IpAddr, u16), join: bool) -> Result<(), EngineError>;

    /// Changes a setting.
    ///
    /// # Errors
    /// The socket has gone; [`EngineError::NoInterface`].
    fn udp_set(&self, id: SockId, s: UdpSetting) -> Result<(), EngineError>;

    /// Looks at it.
    ///
    /// # Errors
    /// The socket has gone.
    fn udp_look(&self, id: SockId) -> Result<UdpInfo, EngineError>;

    /// The MTU of the path to its peer, octets.
    ///
    /// # Errors
    /// The socket has gone, has no peer, or no route leads there.
    fn udp_path_mtu(&self, id: SockId) -> Result<u32, EngineError>;

    /// SO_ERROR.
    ///
    /// # Errors
    /// The socket has gone.
    fn udp_take_error(&self, id: SockId) -> Result<Option<EngineError>, EngineError>;

    /// All sockets, from any thread, as [`Engine::inspect`](super::Engine::inspect).
    ///
    /// # Errors
    /// [`EngineError::Absent`].
    fn udp_sockets(&self, deadline: Time) -> Result<Vec<UdpInfo>, EngineError>;
}

impl<O: Org> Running<O> {
    /// As [`Running::enter`], for what only datagram sockets know.
    #[inline]
    fn enter_datagram(&self, id: SockId) -> Result<&Instance<O>, EngineError> {
        let i = self.enter()?;
        match id.is_datagram() {
            true => Ok(i),
            false => Err(UdpError::Invalid.into()),
        }
    }
}

/// Adds a registration to a socket's sides, or takes it off; `None`: it has gone.
pub(super) fn watch_datagram<O: Org>(
    i: &Instance<O>,
    cx: &mut Ctx<O::K>,
    id: SockId,
    reg: Watching,
) -> Option<()> {
    i.datagram(cx, id, move |s, cx| {
        for side in s.sides() {
            match &reg {
                Watching::Add(r) => side.register(r, &mut cx.deferred.wakes),
                Watching::Remove(r) => side.deregister(r.poller, r.slot, r.generation),
                Watching::Tasks(t) => side.add_tasks(t, &mut cx.deferred.wakes),
            }
        }
    })
}

impl<O: Org> Running<O> {
    pub(super) fn watching_datagram(&self, id: SockId, reg: Watching) -> Result<(), EngineError> {
        self.enter()?
            .with(|i, cx| watch_datagram(i, cx, id, reg))
            .ok_or_else(|| self.gone())
    }

    pub(super) fn datagram_readiness(&self, id: SockId) -> Result<u8, EngineError> {
        self.enter()?
            .with(|i, cx| i.datagram(cx, id, |s, _| s.readiness()))
            .ok_or_else(|| self.gone())
    }

    /// As [`Running::announce`].
    pub(crate) fn announce_datagram(
        &self,
        id: SockId,
        direction: u8,
        event: &Ev<O>,
        off: bool,
    ) -> Result<bool, EngineError> {
        let event = event.clone();
        let announce = move |s: &mut Socket<O::K>, _: &mut Ctx<O::K>| {
            let [read, write] = s.sides();
            let side = if direction == ready::OUT { write } else { read };
            if off {
                side.unwait(&event);
                return true;
            }
            side.wait(direction, &event)
        };
        self.enter()?
            .with(|i, cx| i.datagram(cx, id, announce))
            .ok_or_else(|| self.gone())
    }
}

impl<O: Org> Datagrams for Running<O> {
    fn udp_bind(
        &self,
        local: SocketAddr,
        config: &UdpConfig,
    ) -> Result<(SockId, u16), EngineError> {
        let i = self.open()?;
        let config = config.clone();
        let at = (local.ip(), local.port());
        let bound = i.with(|i, cx| {
            let hash = match local.port() {
                0 => cx.own.lane as u32,
                port => port.into(),
            };
            let n = i.org.home(hash);
            i.datagrams(cx, n, move |table, cx| table.open(cx, n, at, config))
        });
        Ok(bound.ok_or_else(|| self.gone())??)
    }

    fn udp_connect(&self, id: SockId, to: (IpAddr, u16)) -> Result<(), EngineError> {
        let i = self.enter_datagram(id)?;
        let connect = move |table: &mut Table<O::K>, cx: &mut Ctx<O::K>| table.connect(cx, id, to);
        let done = i.with(|i, cx| i.datagrams(cx, id.shard(), connect));
        Ok(done.ok_or_else(|| self.gone())??)
    }

    fn udp_send(&self, id: SockId, out: &Transmit<'_>) -> Result<usize, EngineError> {
        let i = self.enter_datagram(id)?;
        let sent = i.with(|i, cx| {
            let out = outgoing(cx, out);
            if i.org.departs() {
                let taken = i.depart(cx, id, [out])?;
                return Some(taken.map(|(_, bytes)| bytes));
            }
            let sent = i.datagram(cx, id, move |s, cx| s.send(cx, out))?;
            if let Some(buf) = sent.back {
                cx.pool.put(buf);
            }
            Some(sent.taken)
        });
        Ok(sent.ok_or_else(|| self.gone())??)
    }

    fn udp_send_many(&self, id: SockId, all: &[Transmit<'_>]) -> Result<usize, EngineError> {
        let i = self.enter_datagram(id)?;
        let sent = i.with(|i, cx| {
            let all: Vec<Outgoing> = all.iter().map(|out| outgoing(cx, out)).collect();
            if i.org.departs() {
                let taken = i.depart(cx, id, all)?;
                return Some(taken.map(|(calls, _)| calls));
            }
            i.datagram(cx, id, move |s, cx| s.send_many(cx, all))
        });
        Ok(sent.ok_or_else(|| self.gone())??)
    }

    fn udp_recv(&self, id: SockId, buf: &mut [u8], peek: bool) -> Result<CopiedOut, EngineError> {
        let i = self.enter_datagram(id)?;
        let got = i.with(|i, cx| {
            let rx = match i.datagram(cx, id, move |s, cx| s.recv(cx, peek))? {
                Ok(rx) => rx,
                Err(e) => return Some(Err(e)),
            };
            let data = rx.data.as_slice();
            let copied = data.len().min(buf.len());
            buf[..copied].copy_from_slice(&data[..copied]);
            let out = CopiedOut {
                copied,
                len: data.len(),
                src: rx.src,
                dst: rx.dst,
            };
            cx.pool.put(rx.data);
            Some(Ok(out))
        });
        Ok(got.ok_or_else(|| self.gone())??)
    }

    fn udp_recv_many(
        &self,
        id: SockId,
        max: usize,
        all: &mut Vec<Rx>,
    ) -> Result<usize, EngineError> {
        let i = self.enter_datagram(id)?;
        let mut out = core::mem::take(all);
        let got = i.with(|i, cx| {
            for rx in out.drain(..) {
                cx.pool.put(rx.data);
            }
            i.datagram(cx, id, move |s, cx| {
                let n = s.recv_many(cx, max, &mut out);
                (n, out)
            })
        });
        let (n, out) = got.ok_or_else(|| self.gone())?;
        *all = out;
        Ok(n?)
    }

    fn udp_group(&self, id: SockId, at: (IpAddr, u16), join: bool) -> Result<(), EngineError> {
        let i = self.enter_datagram(id)?;
        let change = move |table: &mut Table<O::K>, cx: &mut Ctx<O::K>| match join {
            true => table.join(cx, id, at),
            false => table.leave(cx, id, at),
        };
        let done = i.with(|i, cx| i.datagrams(cx, id.shard(), change));
        Ok(done.ok_or_else(|| self.gone())??)
    }

    fn udp_set(&self, id: SockId, s: UdpSetting) -> Result<(), EngineError> {
        let i = self.enter_datagram(id)?;
        let done = i.with(|i, cx| i.datagram(cx, id, move |socket, cx| socket.set(cx, s)));
        Ok(done.ok_or_else(|| self.gone())??)
    }

    fn udp_look(&self, id: SockId) -> Result<UdpInfo, EngineError> {
        let i = self.enter_datagram(id)?;
        i.with(|i, cx| i.datagram(cx, id, |socket, _| socket.look()))
            .ok_or_else(|| self.gone())
    }

    fn udp_path_mtu(&self, id: SockId) -> Result<u32, EngineError> {
        let i = self.enter_datagram(id)?;
        let mtu = i.with(|i, cx| i.datagram(cx, id, |socket, cx| socket.path_mtu(cx)));
        let mtu = mtu.ok_or_else(|| self.gone())?;
        mtu.ok_or(EngineError::Sock(SockError::NotConnected))
    }

    fn udp_take_error(&self, id: SockId) -> Result<Option<EngineError>, EngineError> {
        let i = self.enter_datagram(id)?;
        let e = i.with(|i, cx| i.datagram(cx, id, |socket, _| socket.take_error()));
        Ok(e.ok_or_else(|| self.gone())?.map(EngineError::from))
    }

    fn udp_sockets(&self, deadline: Time) -> Result<Vec<UdpInfo>, EngineError> {
        if !self.i.sh.life.on() {
            return Err(self.over());
        }
        let found = self.i.anywhere(deadline, |i| {
            let perimeters: BTreeSet<u16> = i.sh.udp.all().iter().map(|id| id.shard()).collect();
            let mut out = Vec::new();
            for n in perimeters {
                let look = |table: &mut Table<O::K>, _: &mut Ctx<O::K>| {
                    let mut some = Vec::new();
                    table.inspect(&mut some);
                    some
                };
                let some = i.with(|i, cx| i.datagrams(cx, n, look));
                out.extend(some.into_iter().flatten());
            }
            out
        });
        found.ok_or(EngineError::Absent)
    }
}

/// What is to be sent, in memory of the stack's.
#[inline]
fn outgoing<K: Kind>(cx: &mut Ctx<K>, t: &Transmit<'_>) -> Outgoing {
    let len = t.data.len();
    let data = if t.segment != 0 && len > usize::from(t.segment) {
        Payload::Shared(Bytes::copy_from_slice(t.data))
    } else {
        let mut buf = cx.pool.take(len);
        buf.set_window(0, len);
        buf.as_mut_slice().copy_from_slice(t.data);
        Payload::Buf(buf)
    };
    Outgoing {
        to: t.to,
        from: t.from,
        data,
        segment: t.segment,
    }
}
