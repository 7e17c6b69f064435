//! Connections that carry one request and response, or nothing, and are opened anew.
//!
//! The near end opens, the far end closes first: a server that is done. So TIME-WAIT (RFC 9293,
//! section 3.3.2) is the far end's, and the near end's port is free as soon as it has closed too.
//! When its choice of ports comes round, a SYN takes over a connection that is in TIME-WAIT there
//! by its timestamp or sequence number (RFC 6191), so ports bound neither the rate nor the length
//! of a run. A connection counts when the near end has read the end of the stream and before it
//! all of the response. Anything else, a reset or a refusal, ends the run: no error counts.

use super::{
    Content, Control, Endpoint, Exchange, Part, Ready, Roles, Settings, Tally, drive,
    drive::{EventLoop, Loop, run},
    latencies,
};
use crate::Error;
use hdrhistogram::Histogram;

/// Stands for the listeners in [`Ready::connection`].
pub const LISTENERS: usize = usize::MAX;
/// Connections accepted before others are served again.
const ACCEPTS: usize = 64;

/// An [`Endpoint`] whose connections come and go; [`Endpoint::connections`] is how many there may
/// be at a time.
pub trait Reconnects: Endpoint {
    /// Starts to open `connection`, which is closed. It is reported writable when established.
    ///
    /// # Errors
    /// What the socket reports.
    fn open(&mut self, connection: usize) -> Result<(), Error>;

    /// Whether the opening of a connection that was reported writable has succeeded.
    ///
    /// # Errors
    /// Why it has not.
    fn opened(&mut self, connection: usize) -> Result<(), Error>;

    /// Accepts a connection, if one waits; returns its index. Listeners are reported readable as
    /// [`LISTENERS`].
    ///
    /// # Errors
    /// What the listener reports.
    fn accept(&mut self) -> Result<Option<usize>, Error>;

    /// Closes `connection` in order: what was sent is still delivered.
    fn close(&mut self, connection: usize);
}

/// What the report says about rows of this kind.
pub fn note(settings: &Settings) -> Option<String> {
    settings.reconnect.then(|| {
        "reconnect: the far end closes first and keeps TIME-WAIT; ports are used again under \
         RFC 6191"
            .into()
    })
}

/// One connection.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// It is established, or was accepted.
    established: bool,
    /// When its opening began, in ns.
    since: u64,
    /// Bytes to be sent.
    owes: usize,
    /// Bytes received.
    got: usize,
}

/// The event loop of a thread that opens or accepts connections over and over.
struct Reconnecting<'a, E> {
    base: EventLoop<'a, E>,
    part: Part,
    sizes: Option<Exchange>,
    slots: Vec<Slot>,
    /// Connections that were closed after they had done all.
    done: u64,
    latency: Histogram<u64>,
}

/// As [`drive`], also where `roles` have a part in opening connections anew.
///
/// # Errors
/// As there; and an opening that fails, or a connection that ends early.
pub fn drive_any<E: Reconnects>(
    endpoint: &mut E,
    roles: Roles,
    content: &Content,
    control: &Control,
) -> Result<Tally, Error> {
    let Some(part) = roles.part else {
        return drive(endpoint, roles, content, control);
    };
    let slots = vec![Slot::default(); endpoint.connections()];
    let mut this = Reconnecting {
        base: EventLoop::new(endpoint, roles, content),
        part,
        sizes: roles.talk.map(|side| side.sizes),
        slots,
        done: 0,
        latency: latencies(),
    };
    let mut tally = run(&mut this, control)?;
    tally.talked = (part == Part::Opens).then_some((this.done, this.latency));
    Ok(tally)
}

impl<'a, E: Reconnects> Loop<'a, E> for Reconnecting<'a, E> {
    fn base(&mut self) -> &mut EventLoop<'a, E> {
        &mut self.base
    }

    fn begin(&mut self) -> Result<(), Error> {
        match self.part {
            Part::Opens => (0..self.slots.len()).try_for_each(|c| self.open(c)),
            Part::Accepts => Ok(()),
        }
    }

    fn count(&mut self) {
        self.done = 0;
        self.latency.reset();
    }

    fn rounds(&self) -> Option<u64> {
        (self.part == Part::Opens).then_some(self.done)
    }

    /// All of what was found ready, though the phase be over: connections that are opened are
    /// reported once, and not again if they are passed over.
    fn turn(&mut self, ready: &mut Vec<Ready>, _: &dyn Fn() -> bool) -> Result<(), Error> {
        for connection in self.base.take_stuck() {
            self.answer(connection)?;
        }
        self.base.wait(ready)?;
        for r in ready.iter() {
            match self.part {
                Part::Opens => self.opener(*r)?,
                Part::Accepts if r.connection == LISTENERS => self.accept()?,
                Part::Accepts => self.accepter(*r)?,
            }
        }
        Ok(())
    }
}

impl<E: Reconnects> Reconnecting<'_, E> {
    fn open(&mut self, connection: usize) -> Result<(), Error> {
        self.slots[connection] = Slot {
            since: self.base.now(),
            owes: self.sizes.map_or(0, |s| s.request),
            ..Slot::default()
        };
        self.base.begin_stream(connection);
        self.base.timed(|e| e.open(connection))
    }

    /// The side that opens: something happened to a connection.
    fn opener(&mut self, r: Ready) -> Result<(), Error> {
        let c = r.connection;
        if !self.slots[c].established {
            if !r.writable {
                return Ok(());
            }
            self.base.timed(|e| e.opened(c))?;
            self.slots[c].established = true;
            self.answer(c)?;
        }
        if !r.readable {
            return Ok(());
        }
        // Told once, so until there is no more.
        let response = self.sizes.map_or(0, |s| s.response);
        while let Some(n) = self.base.take(c)? {
            let slot = &mut self.slots[c];
            slot.got += n;
            if slot.got > response || (n == 0 && slot.got < response) {
                return Err(Error::Run(format!(
                    "a connection ended with {} of {response} bytes of the response",
                    slot.got
                )));
            }
            if n == 0 {
                return self.again(c);
            }
        }
        Ok(())
    }

    /// A connection has done all: counts it and opens it anew.
    fn again(&mut self, connection: usize) -> Result<(), Error> {
        self.base.timed(|e| e.close(connection));
        let took = self.base.now().saturating_sub(self.slots[connection].since);
        self.latency.saturating_record(took);
        self.done += 1;
        self.open(connection)
    }

    /// Takes connections that wait at the listeners.
    fn accept(&mut self) -> Result<(), Error> {
        for _ in 0..ACCEPTS {
            let Some(c) = self.base.timed(|e| e.accept())? else {
                break;
            };
            self.base.begin_stream(c);
            self.slots[c] = Slot {
                established: true,
                ..Slot::default()
            };
            if self.sizes.is_none() {
                self.close_first(c);
            }
        }
        Ok(())
    }

    /// The side that accepts: a request, or a part of it, has come.
    fn accepter(&mut self, r: Ready) -> Result<(), Error> {
        let c = r.connection;
        if !r.readable || !self.slots[c].established {
            return Ok(());
        }
        let Some(Exchange { request, response }) = self.sizes else {
            return Ok(());
        };
        match self.base.take(c)? {
            None => return Ok(()),
            Some(0) => {
                return Err(Error::Run("a connection ended before its request".into()));
            }
            Some(n) => self.slots[c].got += n,
        }
        if self.slots[c].got < request {
            return Ok(());
        }
        self.slots[c].owes = response;
        self.answer(c)
    }

    /// Sends what a connection owes, as far as there is room; the side that accepts closes then.
    fn answer(&mut self, c: usize) -> Result<(), Error> {
        while self.slots[c].owes > 0 {
            match self.base.send(c, self.slots[c].owes)? {
                0 => {
                    self.base.stick(c);
                    return Ok(());
                }
                n => self.slots[c].owes -= n,
            }
        }
        match self.part {
            Part::Opens => {}
            Part::Accepts => self.close_first(c),
        }
        Ok(())
    }

    fn close_first(&mut self, connection: usize) {
        self.slots[connection].established = false;
        self.base.timed(|e| e.close(connection));
    }
}

#[cfg(test)]
mod tests;
