//! What the two ends of a benchmark between machines say to each other: lines of JSON over one
//! connection of the host's sockets.
//!
//! The client says hello with the work, the server names a port and a token for the connections
//! that carry the data, each of which begins with the token. Then the client takes both through
//! the phases of a run, and the server ends with what it counted. Neither end trusts the other:
//! lines are short, every wait is bounded, numbers are checked, text is printed without its
//! control characters.

use crate::{
    Error,
    error::Context as _,
    organizations::Organization,
    workload::settings::MAX_BETWEEN_MACHINES,
    workload::{Coalescing, Direction, Exchange, Settings},
};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

/// Version of what is said here. Ends of different ones refuse each other.
pub const PROTOCOL: u32 = 1;
/// Port of `bench --listen` and of `bench --connect`, unless another is given.
pub const PORT: u16 = 7471;
/// Bytes of the token that each data connection begins with.
pub const TOKEN: usize = 32;
/// Longest line, bytes.
const LONGEST: usize = 16 * 1024;
/// Longest text of the other end's that is printed, in characters.
const PRINTED: usize = 200;
/// Longest wait for an answer that takes no more than a round trip.
pub const ANSWER: Duration = Duration::from_secs(10);

/// The work of a run, as the client asks for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// Which way the data goes, seen from the client.
    pub direction: Direction,
    /// Data connections.
    pub connections: u32,
    /// Most bytes of one send call.
    pub write_size: usize,
    /// Most bytes of one receive call.
    pub read_size: usize,
    /// Send and receive buffer of every socket, bytes.
    pub buffer: usize,
    /// When small writes become segments.
    pub coalescing: Coalescing,
    /// Requests and responses instead of a stream.
    pub exchange: Option<Exchange>,
    /// Length of the measurement, s.
    pub seconds: f64,
}

impl Work {
    /// That of a run of `connections` connections.
    pub fn of(settings: &Settings, connections: u32) -> Work {
        Work {
            direction: settings.direction,
            connections,
            write_size: settings.write_size,
            read_size: settings.read_size,
            buffer: settings.buffer,
            coalescing: settings.coalescing,
            exchange: settings.exchange,
            seconds: settings.seconds.as_secs_f64(),
        }
    }

    /// The same as checked settings.
    ///
    /// # Errors
    /// [`Error::Input`]: it is out of range.
    pub fn settings(&self) -> Result<Settings, Error> {
        if !(0.0..=86_400.0).contains(&self.seconds) {
            return Err(Error::Input("a run has 0 to 86400 seconds".into()));
        }
        if !(1..=MAX_BETWEEN_MACHINES).contains(&self.connections) {
            let line = format!("a run has 1 to {MAX_BETWEEN_MACHINES} connections");
            return Err(Error::Input(line));
        }
        let settings = Settings {
            organizations: vec![Organization::LINUX],
            connections: vec![self.connections],
            direction: self.direction,
            write_size: self.write_size,
            read_size: self.read_size,
            buffer: self.buffer,
            coalescing: self.coalescing,
            exchange: self.exchange,
            seconds: Duration::from_secs_f64(self.seconds),
            nics: 1,
            ..Settings::default()
        };
        settings.check()?;
        Ok(settings)
    }
}

/// What the server counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Bytes per second that its threads received, each in its own window.
    pub goodput: f64,
    /// Bytes that they received.
    pub bytes: u64,
    /// Those of the connection that received least.
    pub least: u64,
    /// Those of the median connection.
    pub median: u64,
    /// Bytes that were compared with what they had to be.
    pub verified: u64,
    /// Processor time of its threads, ns.
    pub cpu_ns: u64,
}

/// What is said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// The client begins.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Version of its program.
        version: String,
        /// What it asks for.
        work: Work,
    },
    /// The server waits for the data connections.
    Ready {
        /// At this port of the address that it was called at.
        port: u16,
        /// Their first bytes.
        token: String,
        /// Version of its program.
        version: String,
    },
    /// The server won't.
    Refused {
        /// A line on why.
        why: String,
    },
    /// The client has opened all data connections.
    Connected,
    /// The server has them.
    Accepted,
    /// Traffic flows.
    Warm,
    /// It counts.
    Measure,
    /// It has ended.
    Stop,
    /// What the server counted.
    Done(Counted),
}

/// One end of the conversation.
pub struct Channel {
    stream: TcpStream,
    read: Vec<u8>,
    /// The other end, for messages.
    peer: String,
}

impl Channel {
    /// Around a connection to `peer`.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(stream: TcpStream, peer: String) -> Result<Channel, Error> {
        stream.set_nodelay(true).context("a socket option")?;
        let limit = Some(ANSWER);
        stream.set_write_timeout(limit).context("a socket option")?;
        Ok(Channel {
            stream,
            read: Vec::new(),
            peer,
        })
    }

    /// Says something.
    ///
    /// # Errors
    /// The other end has gone or does not read.
    pub fn send(&mut self, message: &Message) -> Result<(), Error> {
        // Numbers and strings only: there is nothing that could fail to serialize.
        let mut line = serde_json::to_string(message).unwrap_or_default();
        line.push('\n');
        let sent = self.stream.write_all(line.as_bytes());
        sent.map_err(|e| Error::Run(format!("{} is gone: {e}", self.peer)))
    }

    /// The next message, which must come within a time.
    ///
    /// # Errors
    /// None came, the other end has gone, or what it says is none.
    pub fn receive(&mut self, within: Duration) -> Result<Message, Error> {
        self.poll(within)?.ok_or_else(|| {
            let seconds = within.as_secs_f64();
            Error::Run(format!("{} said nothing for {seconds:.0} s", self.peer))
        })
    }

    /// The next message, if one comes within a time.
    ///
    /// # Errors
    /// The other end has gone, or what it says is no message.
    pub fn poll(&mut self, within: Duration) -> Result<Option<Message>, Error> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(end) = self.read.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return self.parse(&line).map(Some);
            }
            if self.read.len() > LONGEST {
                return Err(self.wrong("a line without an end"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let limit = Some(left.max(Duration::from_millis(1)));
            self.stream
                .set_read_timeout(limit)
                .context("a socket option")?;
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(Error::Run(format!("{} is gone", self.peer))),
                Ok(n) => self.read.extend_from_slice(&piece[..n]),
                Err(e) if is_pause(&e) => {}
                Err(e) => return Err(Error::Run(format!("{} is gone: {e}", self.peer))),
            }
        }
    }

    fn parse(&self, line: &[u8]) -> Result<Message, Error> {
        let value: serde_json::Value =
            serde_json::from_slice(line).map_err(|_| self.wrong("a line that is no JSON"))?;
        // Before all else, as what follows may differ between versions.
        let protocol = value.get("hello").and_then(|h| h.get("protocol"));
        if let Some(other) = protocol.filter(|p| **p != PROTOCOL) {
            let other = printable(&other.to_string());
            return Err(Error::Unavailable(format!(
                "protocol {other} is not spoken here, but {PROTOCOL}: use the same version of \
                 perimeter at both ends"
            )));
        }
        serde_json::from_value(value).map_err(|e| self.wrong(&printable(&e.to_string())))
    }

    fn wrong(&self, what: &str) -> Error {
        Error::Run(format!(
            "{} does not speak as perimeter's bench: {what}",
            self.peer
        ))
    }

    /// What to make of a message that is not expected now.
    pub fn unexpected(&self, message: Message) -> Error {
        match message {
            Message::Refused { why } => {
                Error::Unavailable(format!("{}: {}", self.peer, printable(&why)))
            }
            _ => self.wrong("a message out of turn"),
        }
    }
}

/// Whether nothing has come in time, or a signal came.
pub fn is_pause(e: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(e.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Text of the other end's as it may be printed.
pub fn printable(text: &str) -> String {
    let fit = |c: &char| !c.is_control();
    text.chars().filter(fit).take(PRINTED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    /// What a channel makes of `bytes` from the other end, which then hangs up if it is to.
    fn hears(bytes: &[u8], hangs_up: bool) -> Result<Option<Message>, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, _) = listener.accept().unwrap();
        let bytes = bytes.to_vec();
        let writer = thread::spawn(move || {
            // The reader may have had enough.
            let _ = far.write_all(&bytes);
            (!hangs_up).then_some(far)
        });
        let mut channel = Channel::new(near, "there".into()).unwrap();
        let heard = channel.poll(Duration::from_millis(200));
        drop(channel);
        drop(writer.join());
        heard
    }

    #[test]
    fn messages_come_through() {
        let work = Work::of(&Settings::default(), 7);
        for message in [
            Message::Hello {
                protocol: PROTOCOL,
                version: "1".into(),
                work,
            },
            Message::Warm,
            Message::Done(Counted {
                goodput: 1.5,
                ..Counted::default()
            }),
        ] {
            let line = serde_json::to_string(&message).unwrap() + "\n";
            assert_eq!(hears(line.as_bytes(), false).unwrap(), Some(message));
        }
        assert_eq!(hears(b"\"warm\"", false).unwrap(), None);
    }

    #[test]
    fn nonsense_is_one_line() {
        let endless = vec![b'x'; 1 << 20];
        let table: &[(&[u8], &str)] = &[
            (b"", "gone"),
            (b"\"warm\"", "gone"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no JSON"),
            (b"{\"hello\":{\"protocol\":2,\"more\":1}}\n", "protocol 2"),
            (b"{\"hello\":{\"protocol\":1}}\n", "missing field"),
            (b"\"dance\\u001b[2J\"\n", "unknown variant"),
            (&[0xff, 0xfe, b'\n'], "no JSON"),
            (&endless, "without an end"),
        ];
        for (bytes, says) in table {
            let error = hears(bytes, true).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            assert!(error.len() < 400 && !error.contains(char::is_control));
        }
    }

    #[test]
    fn work_is_checked() {
        let good = Work::of(&Settings::default(), 6);
        good.settings().unwrap();
        let damages: [fn(&mut Work); 6] = [
            |w| w.connections = 0,
            |w| w.connections = u32::MAX,
            |w| w.buffer = usize::MAX,
            |w| w.write_size = 0,
            |w| w.seconds = f64::NAN,
            |w| w.exchange = Some("9".parse().unwrap()),
        ];
        for (i, damage) in damages.iter().enumerate() {
            let mut work = good.clone();
            damage(&mut work);
            assert!(matches!(work.settings(), Err(Error::Input(_))), "{i}");
        }
    }
}
