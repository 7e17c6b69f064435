use super::*;
use crate::workload::{Inside, Phase, Side};
use std::{sync::Arc, time::Duration};

/// One connection of the far end that a [`Script`] plays.
#[derive(Debug, Default)]
struct Conn {
    got: usize,
    sent: usize,
    open: bool,
}

/// A far end for the side that opens: answers whole requests with `answer` bytes of `response` and
/// ends the stream.
struct Script {
    conns: Vec<Conn>,
    content: Content,
    sizes: Option<Exchange>,
    answer: usize,
    opened: u64,
    closed: u64,
    turns: u64,
    control: Arc<Control>,
}

impl Endpoint for Script {
    fn connections(&self) -> usize {
        self.conns.len()
    }
    fn wait(&mut self, ready: &mut Vec<Ready>, _: Duration) -> std::io::Result<()> {
        self.turns += 1;
        match self.turns {
            50 => self.control.advance(Phase::Measure),
            150 => self.control.advance(Phase::Stop),
            _ => {}
        }
        ready.clear();
        ready.extend((0..self.conns.len()).map(|connection| Ready {
            connection,
            readable: true,
            writable: true,
        }));
        Ok(())
    }
    fn send_file(&mut self, c: usize, _: usize, len: usize) -> std::io::Result<usize> {
        // In two pieces.
        let n = len.div_ceil(2);
        self.conns[c].got += n;
        Ok(n)
    }
    fn discard(&mut self, c: usize, max: usize) -> std::io::Result<usize> {
        let conn = &mut self.conns[c];
        if conn.got < self.sizes.map_or(0, |s| s.request) {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        let n = (self.answer - conn.sent).min(max).min(7);
        conn.sent += n;
        Ok(n)
    }
    fn read(&mut self, c: usize, buffer: &mut [u8]) -> std::io::Result<usize> {
        let at = self.conns[c].sent;
        let n = self.discard(c, buffer.len())?;
        buffer[..n].copy_from_slice(&self.content.bytes()[at..at + n]);
        Ok(n)
    }
    fn inside(&self) -> Option<Inside> {
        Some(Inside::default())
    }
}

impl Reconnects for Script {
    fn open(&mut self, c: usize) -> Result<(), Error> {
        assert!(!self.conns[c].open, "opened twice");
        self.conns[c] = Conn {
            open: true,
            ..Conn::default()
        };
        self.opened += 1;
        Ok(())
    }
    fn opened(&mut self, _: usize) -> Result<(), Error> {
        Ok(())
    }
    fn accept(&mut self) -> Result<Option<usize>, Error> {
        Ok(None)
    }
    fn close(&mut self, c: usize) {
        assert!(self.conns[c].open, "closed twice");
        self.conns[c].open = false;
        self.closed += 1;
    }
}

fn run(sizes: Option<Exchange>, answer: usize) -> (Script, Result<Tally, Error>) {
    let control = Arc::new(Control::default());
    let content = Content::new(4096);
    let mut script = Script {
        conns: (0..5).map(|_| Conn::default()).collect(),
        content: content.clone(),
        sizes,
        answer,
        opened: 0,
        closed: 0,
        turns: 0,
        control: control.clone(),
    };
    let roles = Roles {
        source: false,
        sink: true,
        write_size: 1000,
        read_size: 1000,
        talk: sizes.map(|sizes| Side { sizes, opens: true }),
        part: Some(Part::Opens),
    };
    control.advance(Phase::Warm);
    let tally = drive_any(&mut script, roles, &content, &control);
    (script, tally)
}

#[test]
fn connections_are_counted_when_all_is_done() {
    for (sizes, answer) in [(None, 0), ("10:40".parse().ok(), 40)] {
        let (script, tally) = run(sizes, answer);
        let tally = tally.unwrap();
        let (done, latency) = tally.talked.unwrap();
        assert_eq!(done, latency.len());
        // Of about 150 turns 100 count.
        assert!(done > 0 && done < script.closed, "{done} {}", script.closed);
        assert_eq!(script.opened, script.closed + 5, "five at a time");
        if answer > 0 {
            // A window begins and ends within some response.
            let bytes: u64 = tally.received.iter().sum();
            assert!(bytes.abs_diff(done * 40) <= 5 * 40, "{bytes} {done}");
            assert!(tally.verified > 0);
        }
    }
}

/// A response that is too short or too long is an error and no connection.
#[test]
fn half_a_response_is_an_error() {
    for answer in [0, 39, 41] {
        let (script, tally) = run("10:40".parse().ok(), answer);
        let error = tally.unwrap_err().to_string();
        assert!(error.contains("of 40 bytes of the response"), "{error}");
        assert_eq!(script.closed, 0);
    }
}
