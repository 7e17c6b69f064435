//! Sending in turns, where the socket layer and IP have perimeters of their own: the socket finds the
//! ways, IP writes descriptors, and what IP has no room or no station for comes back to the socket.

use super::path::{Full, Outgoing, Path, Payload, Waiting};
use super::send::Way;
use super::{Socket, UdpError};
use crate::SockId;
use crate::ctx::Ctx;
use crate::kind::Kind;
use perimeter_sync::{Platform, Work};
use perimeter_wire::FlowKey;
use std::sync::Arc;

/// A datagram, or several of one length, to one peer.
struct Item {
    out: Outgoing,
    /// Which of the call's it is, or is part of.
    of: usize,
    /// From the socket's turn on.
    key: FlowKey,
    /// `None`: the station of the neighbour is not known yet.
    path: Option<Arc<Path>>,
    /// Somebody has dropped it; for the caller it was sent.
    dropped: bool,
}

/// What one call sends by one socket.
pub struct Departing {
    id: SockId,
    items: Vec<Item>,
    /// What the socket has to put aside.
    aside: Vec<Outgoing>,
    full: Option<Full>,
    calls: usize,
    bytes: usize,
    error: Option<UdpError>,
}

impl Departing {
    /// One after the other, as [`Socket::send_many`].
    pub fn new(id: SockId, all: impl IntoIterator<Item = Outgoing>) -> Departing {
        let items = all.into_iter().enumerate().map(|(of, out)| Item {
            out,
            of,
            key: FlowKey::UNSPECIFIED,
            path: None,
            dropped: false,
        });
        Departing {
            id,
            items: items.collect(),
            aside: Vec::new(),
            full: None,
            calls: 0,
            bytes: 0,
            error: None,
        }
    }

    /// The socket.
    pub fn id(&self) -> SockId {
        self.id
    }

    /// The socket's turn: ways are found. `false`: there is nothing to send.
    pub fn call<K: Kind>(&mut self, socket: &mut Socket<K>, cx: &mut Ctx<K>) -> bool {
        cx.sh.p.charge(Work::SockCall, 1);
        let mut error = socket.take_error();
        let mut fit = 0;
        for item in &mut self.items {
            error = error.or_else(|| item.find(socket, cx).err());
            if error.is_some() {
                break;
            }
            fit += 1;
        }
        for item in self.items.drain(fit..) {
            item.release(cx);
        }
        if fit == 0 {
            self.error = error;
        }
        fit > 0
    }

    /// Nothing is sent, and the caller is told why.
    #[cold]
    pub fn refuse<K: Kind>(&mut self, cx: &mut Ctx<K>, e: UdpError) {
        self.error = Some(e);
        for item in self.items.drain(..) {
            item.release(cx);
        }
    }

    /// Shows each datagram; where `look` says `false` it goes no further.
    pub fn look<K: Kind>(
        &mut self,
        cx: &mut Ctx<K>,
        look: &mut dyn FnMut(&FlowKey, u16, &mut [u8]) -> bool,
    ) {
        let together = core::mem::take(&mut self.items);
        for item in together {
            item.apart(cx, &mut self.items);
        }
        for item in &mut self.items {
            let iface = item.path.as_ref().map_or(0, |path| path.iface);
            if let Payload::Buf(buf) = &mut item.out.data
                && !item.dropped
            {
                item.dropped = !look(&item.key, iface, buf.as_mut_slice());
            }
        }
    }

    /// IP's turn: descriptors are written. Whether the socket has another turn, [`Departing::rest`].
    pub fn place<K: Kind>(&mut self, cx: &mut Ctx<K>) -> bool {
        let mut all = core::mem::take(&mut self.items).into_iter();
        for item in &mut all {
            let (of, len) = (item.of, item.out.data.len());
            let taken = match &item.path {
                _ if item.dropped => {
                    item.release(cx);
                    Ok(len)
                }
                None => {
                    self.aside.push(item.out);
                    Ok(len)
                }
                Some(path) => {
                    let sent = path.emit(cx, item.out, &mut self.full);
                    if let Some(buf) = sent.back {
                        cx.pool.put(buf);
                    }
                    sent.taken
                }
            };
            match taken {
                Ok(n) => {
                    self.calls = of + 1;
                    self.bytes += n;
                }
                Err(e) if self.calls == 0 => self.error = Some(e),
                Err(_) => {}
            }
            if taken != Ok(len) {
                break;
            }
        }
        for item in all {
            item.release(cx);
        }
        self.full.is_some() || !self.aside.is_empty()
    }

    /// The socket's other turn: it is told when there is room, and keeps what has no station yet.
    pub fn rest<K: Kind>(&mut self, socket: &mut Socket<K>, cx: &mut Ctx<K>) {
        for out in self.aside.drain(..) {
            // By now it may be known.
            if let Some(w) = socket.place_waiting(cx, Waiting { out }) {
                let _ = socket.put_aside(cx, w.out);
            }
        }
        if let Some(at) = self.full.take() {
            socket.stalled(cx, at);
        }
    }

    /// How many of the call's were taken, of which the last may have been in part, and how many
    /// bytes.
    ///
    /// # Errors
    /// Why the first was not.
    pub fn taken(&self) -> Result<(usize, usize), UdpError> {
        match self.error {
            Some(e) => Err(e),
            None => Ok((self.calls, self.bytes)),
        }
    }
}

impl Item {
    /// Finds its way.
    fn find<K: Kind>(&mut self, socket: &mut Socket<K>, cx: &mut Ctx<K>) -> Result<(), UdpError> {
        match socket.way(cx, &self.out)? {
            Way::Ready => self.path = socket.path.clone(),
            Way::Unresolved(iface) if socket.too_long(cx, iface, &self.out) => {
                return Err(UdpError::TooLong);
            }
            Way::Unresolved(_) => {}
        }
        let known = self.path.as_ref().map(|p| p.key());
        self.key = known.unwrap_or_else(|| socket.ends(cx, &self.out));
        Ok(())
    }

    /// Nobody needs its data any more.
    fn release<K: Kind>(self, cx: &mut Ctx<K>) {
        if let Some(buf) = self.out.data.into_buf() {
            cx.pool.put(buf);
        }
    }

    /// Makes each datagram one by itself, in a buffer of its own, and adds it to `to`.
    fn apart<K: Kind>(self, cx: &mut Ctx<K>, to: &mut Vec<Item>) {
        let (len, each) = (self.out.data.len(), self.out.each());
        if len == each && matches!(self.out.data, Payload::Buf(_)) {
            return to.push(self);
        }
        let mut rest = self.out.data.as_slice();
        loop {
            let (here, after) = rest.split_at(each.min(rest.len()));
            let mut buf = cx.pool.take(here.len());
            buf.set_window(0, here.len());
            buf.as_mut_slice().copy_from_slice(here);
            to.push(Item {
                out: Outgoing {
                    data: Payload::Buf(buf),
                    segment: 0,
                    ..self.out
                },
                path: self.path.clone(),
                ..self
            });
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        self.release(cx);
    }
}
