//! Five hundred connections at once, each way.

use crate::common::{LIMIT, Load, each, finish, peer, wind_up};
use perimeter::{Events, Interest, OrgSpec, TcpStream, Token};
use perimeter_interop::program::Program;
use perimeter_interop::{examples, taps};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

const COUNT: usize = 500;
const SIZE: usize = 64 * 1024;

#[test]
fn python_opens_five_hundred() {
    examples::build();
    each(&["python3"], Load::Works, |org| {
        let (name, count, size) = (org.to_string(), COUNT.to_string(), SIZE.to_string());
        let args = ["--device", "tap", "--org", &name, "--connections", &count];
        let mut server = Program::start(examples::path("poll"), args, LIMIT);
        assert!(server.line().starts_with("listening on 10.99.0.2:7 "));
        let client = peer(&["many", "10.99.0.2", "7", &count, &size]);
        assert_eq!(client.finish().ok(), format!("connected\n{count}\n"));
        let told = format!(
            "{COUNT} connections, at most {COUNT} at once, {} bytes",
            COUNT * SIZE
        );
        assert_eq!(server.finish().ok().trim(), told);
    });
}

struct Conn {
    stream: TcpStream,
    data: Vec<u8>,
    sent: usize,
    back: usize,
}

impl Conn {
    /// Goes on as far as it can; whether everything has come back.
    fn turn(&mut self, buf: &mut [u8]) -> bool {
        while self.sent < self.data.len() {
            match self.stream.write(&self.data[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("after {} bytes: {e}", self.sent),
            }
            if self.sent == self.data.len() {
                self.stream.shutdown(Shutdown::Write).expect("shut down");
            }
        }
        loop {
            match self.stream.read(buf) {
                Ok(0) => {
                    assert_eq!(self.back, self.data.len(), "the end came early");
                    return true;
                }
                Ok(n) => {
                    assert!(
                        self.data[self.back..].starts_with(&buf[..n]),
                        "another's bytes"
                    );
                    self.back += n;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                Err(e) => panic!("after {} bytes: {e}", self.back),
            }
        }
    }
}

fn we_open(org: &OrgSpec) {
    let stack = taps::stack(org);
    let mut server = peer(&["echo_server", "10.99.0.1", "9007", &COUNT.to_string()]);
    assert_eq!(server.line(), "ready");
    let poll = stack.poll().expect("a poller");
    // All at once, none waited for.
    let mut open: Vec<Option<Conn>> = (0..COUNT)
        .map(|i| {
            let stream = stack
                .start_connect(taps::kernel_at(9007))
                .expect("under way");
            stream.set_nonblocking(true).expect("set");
            poll.registry()
                .register(&stream, Token(i), Interest::WRITABLE)
                .expect("registered");
            let data = (0..SIZE)
                .map(|j| (j * 31 + i * 7 + j / 251) as u8)
                .collect();
            Some(Conn {
                stream,
                data,
                sent: 0,
                back: 0,
            })
        })
        .collect();
    let mut events = Events::with_capacity(64);
    let mut buf = vec![0; SIZE];
    let end = Instant::now() + Duration::from_secs(60);
    // First all are established, then all are used.
    let mut established = 0;
    while established < COUNT {
        assert!(Instant::now() < end, "{established} of {COUNT} established");
        poll.poll(&mut events, Some(Duration::from_millis(100)))
            .expect("polled");
        for e in events.iter() {
            let c = open[e.token().0].as_ref().expect("open");
            assert!(c.stream.take_error().expect("a socket").is_none());
            poll.registry().deregister(&c.stream).expect("registered");
            established += 1;
        }
    }
    for (i, c) in open.iter().enumerate() {
        let c = &c.as_ref().expect("open").stream;
        poll.registry()
            .register(c, Token(i), Interest::BOTH.edge())
            .expect("registered");
    }
    let mut left = COUNT;
    while left > 0 {
        assert!(Instant::now() < end, "{left} of {COUNT} not done");
        poll.poll(&mut events, Some(Duration::from_millis(100)))
            .expect("polled");
        for e in events.iter() {
            let place = &mut open[e.token().0];
            if place.as_mut().is_some_and(|c| c.turn(&mut buf)) {
                *place = None;
                left -= 1;
            }
        }
    }
    assert_eq!(finish(&stack, server), COUNT.to_string());
    wind_up(&stack);
}

#[test]
fn we_open_five_hundred() {
    each(&["python3"], Load::Works, we_open);
}
