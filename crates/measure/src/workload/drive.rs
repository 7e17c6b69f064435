//! The event loop of one thread.

use super::{
    Content, Control, Endpoint, Inside, PATIENCE, Phase, Ready, Roles, Tally, control::Answer,
    exchange::Talk,
};
use crate::{Error, error::Context as _, host};
use quanta::Clock;
use std::{io, thread, time::Duration};

/// One read in this many is copied out and compared. Prime, so that it falls in step with nothing.
const SAMPLE: u64 = 61;
/// Most bytes compared at a time: comparing must stay a small part of the run.
const SAMPLE_BYTES: usize = 16 * 1024;

/// How long an event loop sleeps while a connection owes bytes that found no room.
const SOON: Duration = Duration::from_micros(100);

/// What an event loop has told those who watch.
struct Answers {
    asked: u32,
    since: Counters,
    rounds: u64,
}

impl Answers {
    /// Answers if there is a new question.
    fn give<'a, E: Endpoint + 'a>(&mut self, control: &Control, this: &mut impl Loop<'a, E>) {
        let asked = control.asked();
        if asked == self.asked {
            return;
        }
        self.asked = asked;
        let begun = host::thread_cpu_ns();
        let rounds = this.rounds();
        let base = this.base();
        base.endpoint.look();
        let now = base.counters();
        let tally = base.tally(&self.since, &now);
        self.since = now;
        let before = std::mem::replace(&mut self.rounds, rounds.unwrap_or(0));
        control.answers().push(Answer {
            from: thread::current().id(),
            tally,
            // They are counted from 0 again when counting begins.
            rounds: rounds.map(|n| n.checked_sub(before).unwrap_or(n)),
            cost: Duration::from_nanos(host::thread_cpu_ns().saturating_sub(begun)),
        });
    }
}

/// Cumulative counters of a thread; two of them make a [`Tally`].
#[derive(Debug, Clone, Default)]
struct Counters {
    at: u64,
    cpu_ns: u64,
    delay_ns: u64,
    call_ns: u64,
    wait_ns: u64,
    calls: u64,
    inside: Option<Inside>,
    sent: Vec<u64>,
    received: Vec<u64>,
}

/// Runs the event loop on `endpoint` until [`Phase::Stop`].
///
/// The clock is read around each call, which moves up to a whole buffer; never per segment.
///
/// # Errors
/// The first error of the endpoint other than `WouldBlock`, an early end of stream, or received
/// bytes that differ from the file. Errors that come with the stop are none.
pub fn drive<E: Endpoint>(
    endpoint: &mut E,
    roles: Roles,
    content: &Content,
    control: &Control,
) -> Result<Tally, Error> {
    let talk = roles
        .talk
        .map(|side| Talk::new(side, endpoint.connections()));
    let mut this = Streaming {
        base: EventLoop::new(endpoint, roles, content),
        talk,
    };
    let mut tally = run(&mut this, control)?;
    tally.talked = this.talk.as_ref().and_then(Talk::counted);
    Ok(tally)
}

/// What an event loop does in the phases of a run.
pub(super) trait Loop<'a, E: Endpoint> {
    /// What it counts.
    fn base(&mut self) -> &mut EventLoop<'a, E>;
    /// Traffic may flow.
    fn begin(&mut self) -> Result<(), Error>;
    /// Counting begins.
    fn count(&mut self);
    /// Rounds since it began, or before it began, if completing them is this loop's part.
    fn rounds(&self) -> Option<u64>;
    /// One wait and what it found ready, until `over`: sockets that were passed over are reported
    /// again.
    fn turn(&mut self, ready: &mut Vec<Ready>, over: &dyn Fn() -> bool) -> Result<(), Error>;
}

/// Takes a loop through the phases of `control`, and tells what it did in the one that counts.
pub(super) fn run<'a, E: Endpoint + 'a>(
    this: &mut impl Loop<'a, E>,
    control: &Control,
) -> Result<Tally, Error> {
    let mut ready: Vec<Ready> = Vec::with_capacity(256);
    let mut phase = Phase::Set;
    let mut start = this.base().counters();
    let mut answers = Answers {
        asked: 0,
        since: start.clone(),
        rounds: 0,
    };
    loop {
        let now = control.phase();
        if now != phase {
            if phase == Phase::Set && now != Phase::Stop {
                match this.begin() {
                    Ok(()) => {}
                    Err(_) if control.phase() == Phase::Stop => break,
                    Err(e) => return Err(e),
                }
            }
            phase = now;
            match phase {
                Phase::Measure => {
                    this.base().endpoint.mark();
                    this.count();
                    start = this.base().counters();
                    control.begins_to_count();
                }
                Phase::Stop => break,
                Phase::Set | Phase::Warm => {}
            }
        }
        answers.give(control, this);
        match this.turn(&mut ready, &|| control.phase() != phase) {
            Ok(()) => {}
            Err(e) => {
                // As of the end of the traffic, not of the stop that follows.
                let end = this.base().counters();
                if !control.excuses() {
                    return Err(e);
                }
                this.base().endpoint.mark();
                return Ok(this.base().tally(&start, &end));
            }
        }
    }
    let base = this.base();
    let end = base.counters();
    base.endpoint.mark();
    Ok(base.tally(&start, &end))
}

/// The loop over connections that stay: streams, or exchanges over and over.
struct Streaming<'a, E> {
    base: EventLoop<'a, E>,
    talk: Option<Talk>,
}

impl<'a, E: Endpoint> Loop<'a, E> for Streaming<'a, E> {
    fn base(&mut self) -> &mut EventLoop<'a, E> {
        &mut self.base
    }

    fn begin(&mut self) -> Result<(), Error> {
        let now = self.base.now();
        if let Some(talk) = &mut self.talk {
            talk.begin(now);
            for connection in 0..self.base.sent.len() {
                self.answer(connection)?;
            }
        }
        Ok(())
    }

    fn count(&mut self) {
        if let Some(talk) = &mut self.talk {
            talk.reset();
        }
    }

    fn rounds(&self) -> Option<u64> {
        self.talk.as_ref()?.rounds()
    }

    fn turn(&mut self, ready: &mut Vec<Ready>, over: &dyn Fn() -> bool) -> Result<(), Error> {
        for connection in self.base.take_stuck() {
            self.answer(connection)?;
        }
        self.base.wait(ready)?;
        let roles = self.base.roles;
        for r in ready.iter() {
            if over() {
                break;
            }
            if self.talk.is_some() {
                if r.readable {
                    self.talk(r.connection)?;
                }
                continue;
            }
            if r.writable && roles.source {
                self.base.send(r.connection, roles.write_size)?;
            }
            if r.readable && roles.sink {
                self.base.receive(r.connection)?;
            }
        }
        Ok(())
    }
}

impl<E: Endpoint> Streaming<'_, E> {
    /// Takes what a connection has received into its exchange, and sends what it owes then.
    fn talk(&mut self, connection: usize) -> Result<(), Error> {
        let n = self.base.receive(connection)?;
        let now = self.base.now();
        if let Some(talk) = &mut self.talk {
            talk.received(connection, n, now);
        }
        self.answer(connection)
    }

    /// Sends what a connection owes, as far as there is room.
    fn answer(&mut self, connection: usize) -> Result<(), Error> {
        loop {
            let owes = self.talk.as_ref().map_or(0, |t| t.owes(connection));
            if owes == 0 {
                return Ok(());
            }
            let n = self.base.send(connection, owes)?;
            if n == 0 {
                self.base.stick(connection);
                return Ok(());
            }
            if let Some(talk) = &mut self.talk {
                talk.sent(connection, n);
            }
        }
    }
}

/// What is common to all event loops: calls that are timed, and what they moved.
pub(super) struct EventLoop<'a, E> {
    endpoint: &'a mut E,
    roles: Roles,
    content: &'a Content,
    clock: Clock,
    call_ns: u64,
    wait_ns: u64,
    calls: u64,
    reads: u64,
    verified: u64,
    sent: Vec<u64>,
    received: Vec<u64>,
    /// What was sent and received by each when its present stream began.
    begun: Vec<(u64, u64)>,
    buffer: Vec<u8>,
    /// Connections that owe bytes and found no room.
    stuck: Vec<usize>,
}

impl<'a, E: Endpoint> EventLoop<'a, E> {
    pub(super) fn new(endpoint: &'a mut E, roles: Roles, content: &'a Content) -> Self {
        let n = endpoint.connections();
        EventLoop {
            endpoint,
            roles,
            content,
            clock: Clock::new(),
            call_ns: 0,
            wait_ns: 0,
            calls: 0,
            reads: 0,
            verified: 0,
            sent: vec![0; n],
            received: vec![0; n],
            buffer: vec![0; SAMPLE_BYTES],
            begun: vec![(0, 0); n],
            stuck: Vec::new(),
        }
    }

    /// The clock, in ns.
    pub(super) fn now(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.clock.raw())
    }

    /// The next bytes of `connection` are the first of a stream.
    pub(super) fn begin_stream(&mut self, connection: usize) {
        self.begun[connection] = (self.sent[connection], self.received[connection]);
    }

    /// `connection` owes bytes and found no room. Messages fit into buffers, so this is rare, and
    /// looked at again soon.
    pub(super) fn stick(&mut self, connection: usize) {
        self.stuck.push(connection);
    }

    /// Connections that are to be tried again.
    pub(super) fn take_stuck(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.stuck)
    }

    /// Waits for sockets to be ready.
    pub(super) fn wait(&mut self, ready: &mut Vec<Ready>) -> Result<(), Error> {
        let patience = match self.stuck.is_empty() {
            true => PATIENCE,
            false => SOON,
        };
        let before = self.clock.raw();
        let waited = self.endpoint.wait(ready, patience);
        self.wait_ns += self.clock.delta_as_nanos(before, self.clock.raw());
        waited.context("waiting for sockets")
    }

    /// Sends at most `most` bytes; returns how many, 0 without room.
    pub(super) fn send(&mut self, connection: usize, most: usize) -> Result<usize, Error> {
        let offset = self.sent[connection] - self.begun[connection].0;
        let at = self.content.position(offset);
        let len = most.min(self.content.bytes().len() - at);
        let result = self.timed(|e| e.send_file(connection, at, len));
        let n = progress(result).context("sending")?.unwrap_or(0);
        self.sent[connection] += n as u64;
        Ok(n)
    }

    /// Receives once; returns how many bytes, 0 without data.
    fn receive(&mut self, connection: usize) -> Result<usize, Error> {
        match self.take(connection)? {
            Some(0) => Err(Error::Run(format!(
                "the peer ended connection {connection} early"
            ))),
            taken => Ok(taken.unwrap_or(0)),
        }
    }

    /// Receives once; returns how many bytes, 0 at the end of the stream, `None` without data.
    pub(super) fn take(&mut self, connection: usize) -> Result<Option<usize>, Error> {
        self.reads += 1;
        let sampled = self.reads.is_multiple_of(SAMPLE) && self.endpoint.verified().is_none();
        let max = self.roles.read_size;
        let result = if sampled {
            let mut buffer = std::mem::take(&mut self.buffer);
            let result = self.timed(|e| e.read(connection, &mut buffer[..max.min(SAMPLE_BYTES)]));
            self.buffer = buffer;
            result
        } else {
            self.timed(|e| e.discard(connection, max))
        };
        let Some(n) = progress(result).context("receiving")? else {
            return Ok(None);
        };
        let offset = self.received[connection] - self.begun[connection].1;
        if sampled {
            if let Some(at) = self.content.first_difference(offset, &self.buffer[..n]) {
                return Err(Error::Run(format!(
                    "connection {connection} received a wrong byte at offset {at}"
                )));
            }
            self.verified += n as u64;
        }
        self.received[connection] += n as u64;
        Ok(Some(n))
    }

    pub(super) fn timed<T>(&mut self, call: impl FnOnce(&mut E) -> T) -> T {
        let before = self.clock.raw();
        let result = call(self.endpoint);
        self.call_ns += self.clock.delta_as_nanos(before, self.clock.raw());
        self.calls += 1;
        result
    }

    fn counters(&self) -> Counters {
        let taken = |c: usize| self.endpoint.acknowledged(c).unwrap_or(self.sent[c]);
        Counters {
            sent: (0..self.sent.len()).map(taken).collect(),
            received: self.received.clone(),
            call_ns: self.call_ns,
            wait_ns: self.wait_ns,
            calls: self.calls,
            inside: self.endpoint.inside(),
            delay_ns: host::Scheduled::here().delay_ns,
            // The clocks come last: copying the counts above belongs to no window.
            cpu_ns: host::thread_cpu_ns(),
            at: self.clock.raw(),
        }
    }

    fn tally(&self, start: &Counters, end: &Counters) -> Tally {
        let elapsed_ns = self.clock.delta_as_nanos(start.at, end.at);
        let call_ns = end.call_ns - start.call_ns;
        let wait_ns = end.wait_ns - start.wait_ns;
        Tally {
            elapsed_ns,
            cpu_ns: end.cpu_ns - start.cpu_ns,
            delay_ns: end.delay_ns.saturating_sub(start.delay_ns),
            app_ns: elapsed_ns.saturating_sub(call_ns + wait_ns),
            call_ns,
            wait_ns,
            inside: end.inside.zip(start.inside).map(|(e, s)| Inside {
                peer_ns: e.peer_ns - s.peer_ns,
                spin_ns: e.spin_ns - s.spin_ns,
                idle_ns: e.idle_ns - s.idle_ns,
            }),
            sent: difference(&end.sent, &start.sent),
            received: difference(&end.received, &start.received),
            sink: self.roles.sink,
            calls: end.calls - start.calls,
            verified: self.endpoint.verified().unwrap_or(self.verified),
            talked: None,
        }
    }
}

/// `WouldBlock` and `Interrupted` as `None`.
fn progress(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

fn difference(end: &[u64], start: &[u64]) -> Vec<u64> {
    end.iter().zip(start).map(|(e, s)| e - s).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Exchange, Side, rounds};
    use std::{collections::VecDeque, sync::Arc};

    /// Both ends of each connection in one place: what is sent can be received, through a bounded
    /// buffer, in small and odd pieces.
    struct Pipe {
        content: Content,
        buffers: Vec<VecDeque<u8>>,
        turns: u64,
        stop_after: u64,
        damage_at: Option<u64>,
        /// Its event loop is asked what it did, so often; 0: never.
        asked_every: u64,
        control: Arc<Control>,
    }

    /// Both ways at once.
    const STREAM: Roles = Roles {
        source: true,
        sink: true,
        write_size: 1000,
        read_size: 100_000,
        talk: None,
        part: None,
    };

    impl Pipe {
        fn new() -> Pipe {
            Pipe {
                content: Content::new(4096),
                buffers: vec![VecDeque::new(); 7],
                turns: 0,
                stop_after: 4000,
                damage_at: None,
                asked_every: 0,
                control: Arc::default(),
            }
        }
    }

    impl Endpoint for Pipe {
        fn connections(&self) -> usize {
            self.buffers.len()
        }
        fn wait(&mut self, ready: &mut Vec<Ready>, _: Duration) -> io::Result<()> {
            self.turns += 1;
            if self.asked_every > 0 && self.turns.is_multiple_of(self.asked_every) {
                self.control.ask();
            }
            if self.turns == self.stop_after / 2 {
                self.control.advance(Phase::Measure);
            }
            if self.turns >= self.stop_after {
                self.control.advance(Phase::Stop);
            }
            ready.clear();
            ready.extend((0..self.buffers.len()).map(|connection| Ready {
                connection,
                readable: true,
                writable: true,
            }));
            Ok(())
        }
        fn send_file(&mut self, c: usize, at: usize, len: usize) -> io::Result<usize> {
            let n = len.min(5000 - self.buffers[c].len()).min(777);
            if n == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.buffers[c].extend(&self.content.bytes()[at..at + n]);
            if self.damage_at == Some(self.turns) {
                self.buffers[c].iter_mut().for_each(|b| *b ^= 1);
            }
            Ok(n)
        }
        fn discard(&mut self, c: usize, max: usize) -> io::Result<usize> {
            let n = max.min(self.buffers[c].len()).min(500);
            if n == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.buffers[c].drain(..n);
            Ok(n)
        }
        fn read(&mut self, c: usize, buffer: &mut [u8]) -> io::Result<usize> {
            let n = buffer.len().min(self.buffers[c].len());
            for b in &mut buffer[..n] {
                *b = self.buffers[c].pop_front().unwrap();
            }
            if n == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(n)
        }
        fn inside(&self) -> Option<Inside> {
            Some(Inside::default())
        }
    }

    fn run(damage_at: Option<u64>) -> Result<Tally, Error> {
        let mut pipe = Pipe {
            damage_at,
            ..Pipe::new()
        };
        let (content, control) = (pipe.content.clone(), pipe.control.clone());
        control.advance(Phase::Warm);
        drive(&mut pipe, STREAM, &content, &control)
    }

    #[test]
    fn counts_and_verifies() {
        let tally = run(None).unwrap();
        assert!(tally.sent.iter().all(|&b| b > 100_000), "{tally:?}");
        assert!(tally.verified > 10_000);
        for (s, r) in tally.sent.iter().zip(&tally.received) {
            assert!(s.abs_diff(*r) <= 5000);
        }
        let parts = tally.app_ns + tally.call_ns + tally.wait_ns;
        assert_eq!(parts, tally.elapsed_ns);
    }

    #[test]
    fn a_wrong_byte_is_found() {
        // Damage fills a whole buffer of each connection, more than sampling can skip.
        let mut found = 0;
        for turn in 1000..1100 {
            match run(Some(turn)) {
                Err(Error::Run(line)) => {
                    assert!(line.contains("wrong byte"), "{line}");
                    found += 1;
                }
                Err(e) => panic!("{e}"),
                Ok(_) => {}
            }
        }
        assert!(found > 0, "no damage was found in 100 runs");
    }

    /// Who asks in between is told everything once, and what is measured is not changed by it.
    #[test]
    fn answers_add_up() {
        let mut pipe = Pipe {
            asked_every: 100,
            ..Pipe::new()
        };
        let (content, control) = (pipe.content.clone(), pipe.control.clone());
        // Measuring from the beginning, and asked before each turn that counts.
        control.advance(Phase::Measure);
        let tally = drive(&mut pipe, STREAM, &content, &control).unwrap();
        let answers = control.answers();
        assert!(answers.iter().all(|a| a.from == thread::current().id()));
        let told = |of: fn(&Tally) -> u64| answers.iter().map(|a| of(&a.tally)).sum::<u64>();
        let sent = |t: &Tally| t.sent.iter().sum();
        let received = |t: &Tally| t.received.iter().sum();
        // The last hundred turns are not asked about any more.
        let close = |told: u64, all: u64| told <= all && told + all / 20 > all;
        assert!(close(told(sent), sent(&tally)), "{} {tally:?}", told(sent));
        assert!(close(told(received), received(&tally)), "{tally:?}");
        assert!(close(told(|t| t.calls), tally.calls), "{tally:?}");
        assert!(
            answers.len() > 30 && answers.len() < 50,
            "{}",
            answers.len()
        );
    }

    /// The far end of this pipe answers by itself: what is sent comes back.
    #[test]
    fn an_exchange_counts_rounds() {
        let mut pipe = Pipe::new();
        let (content, control) = (pipe.content.clone(), pipe.control.clone());
        let sizes: Exchange = "3000".parse().unwrap();
        let roles = Roles {
            source: false,
            talk: Some(Side { sizes, opens: true }),
            ..STREAM
        };
        control.advance(Phase::Warm);
        control.ask();
        let tally = drive(&mut pipe, roles, &content, &control).unwrap();
        assert_eq!(
            control.answers()[0].rounds,
            Some(0),
            "asked before the first"
        );
        let (rounds, latency) = rounds(std::slice::from_ref(&tally));
        let received: u64 = tally.received.iter().sum();
        assert!(rounds > 1000, "{rounds}");
        assert!(received.abs_diff(rounds * 3000) <= 7 * 3000);
        let latency = latency.unwrap();
        assert!(latency.p50_ns > 0 && latency.p50_ns <= latency.p99_ns);
        assert!(tally.verified > 10_000);
    }
}
