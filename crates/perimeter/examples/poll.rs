//! An event loop on one thread: an echo server for thousands of connections, under any
//! organization.
//!
//! `cargo run --release --example poll` over memory, with 200 connections at once; over TAP,
//! as root: `poll --device tap --org up --port 7`.

mod common;

use clap::Parser;
use common::{Ends, Result};
use perimeter::{Events, Interest, Poll, Registry, Stack, TcpListener, TcpStream, Token};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::ExitCode;

const LISTENER: Token = Token(usize::MAX);

#[derive(Parser)]
#[command(about = "Echoes on one thread, for many connections")]
struct Args {
    #[command(flatten)]
    net: common::Net,
    /// Port to listen on
    #[arg(long, default_value_t = 7)]
    port: u16,
    /// End after this many connections
    #[arg(long)]
    connections: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    common::main(args.net.open(), |ends| run(&args, &ends))
}

fn run(args: &Args, ends: &Ends) -> Result<()> {
    let listener = ends.stack.listen(ends.at(args.port))?;
    println!(
        "listening on {} ({})",
        listener.local_addr()?,
        ends.stack.organization()
    );
    let client = ends.peer.clone().map(|peer| {
        let at = ends.at(args.port);
        std::thread::spawn(move || visit(&peer, at))
    });
    let most = if client.is_some() {
        Some(200)
    } else {
        args.connections
    };
    let mut server = Server::new(&ends.stack, listener)?;
    server.run(most.unwrap_or(usize::MAX))?;
    println!(
        "{} connections, at most {} at once, {} bytes",
        server.seen, server.most, server.bytes
    );
    common::end(&ends.stack, client)
}

/// A connection and what is still to be sent back on it.
struct Conn {
    stream: TcpStream,
    pending: Vec<u8>,
    /// How much of `pending` has gone.
    at: usize,
    /// The peer has closed; close when everything has gone back.
    ended: bool,
    /// Sent back so far.
    bytes: u64,
}

enum Turn {
    Wait(Interest),
    Done,
}

impl Conn {
    /// Reads and writes until neither goes on.
    fn turn(&mut self, buf: &mut [u8]) -> io::Result<Turn> {
        loop {
            while self.at < self.pending.len() {
                match self.stream.write(&self.pending[self.at..]) {
                    Ok(n) => {
                        self.at += n;
                        self.bytes += n as u64;
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        return Ok(Turn::Wait(Interest::WRITABLE));
                    }
                    Err(e) => return Err(e),
                }
            }
            if self.ended {
                self.stream.shutdown(Shutdown::Write)?;
                return Ok(Turn::Done);
            }
            match self.stream.read(buf) {
                Ok(0) => self.ended = true,
                Ok(n) => {
                    self.pending.clear();
                    self.pending.extend_from_slice(&buf[..n]);
                    self.at = 0;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    return Ok(Turn::Wait(Interest::READABLE));
                }
                Err(e) => return Err(e),
            }
        }
    }
}

struct Server {
    poll: Poll,
    registry: Registry,
    listener: TcpListener,
    conns: HashMap<usize, (Conn, Interest)>,
    buf: Vec<u8>,
    seen: usize,
    most: usize,
    done: usize,
    bytes: u64,
}

impl Server {
    fn new(stack: &Stack, listener: TcpListener) -> io::Result<Server> {
        let poll = stack.poll()?;
        let registry = poll.registry();
        listener.set_nonblocking(true)?;
        registry.register(&listener, LISTENER, Interest::READABLE)?;
        let buf = vec![0; 64 * 1024];
        let conns = HashMap::new();
        Ok(Server {
            poll,
            registry,
            listener,
            conns,
            buf,
            seen: 0,
            most: 0,
            done: 0,
            bytes: 0,
        })
    }

    fn run(&mut self, connections: usize) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        while self.done < connections {
            self.poll.poll(&mut events, None)?;
            for e in events.iter() {
                if e.token() == LISTENER {
                    self.accept()?;
                } else {
                    self.serve(e.token());
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((s, _)) => s,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            };
            stream.set_nonblocking(true)?;
            let (token, want) = (Token(self.seen), Interest::READABLE);
            self.registry.register(&stream, token, want)?;
            let conn = Conn {
                stream,
                pending: Vec::new(),
                at: 0,
                ended: false,
                bytes: 0,
            };
            self.conns.insert(self.seen, (conn, want));
            self.seen += 1;
            self.most = self.most.max(self.conns.len());
        }
    }

    fn serve(&mut self, token: Token) {
        let Some((conn, want)) = self.conns.get_mut(&token.0) else {
            return;
        };
        let outcome = match conn.turn(&mut self.buf) {
            Ok(Turn::Wait(new)) if new == *want => return,
            Ok(Turn::Wait(new)) => {
                *want = new;
                match self.registry.reregister(&conn.stream, token, new) {
                    Ok(()) => return,
                    Err(e) => Err(e),
                }
            }
            Ok(Turn::Done) => Ok(()),
            Err(e) => Err(e),
        };
        if let Err(e) = outcome {
            println!("connection {}: {e}", token.0);
        }
        self.bytes += conn.bytes;
        self.conns.remove(&token.0);
        self.done += 1;
    }
}

fn visit(stack: &Stack, at: SocketAddr) -> io::Result<()> {
    let mut open = Vec::new();
    for _ in 0..200 {
        open.push(stack.connect(at)?);
    }
    let sent: Vec<u8> = (0..20_000).map(|i| (i % 251) as u8).collect();
    for s in &mut open {
        s.write_all(&sent)?;
        s.shutdown(Shutdown::Write)?;
    }
    for mut s in open {
        let mut back = Vec::new();
        s.read_to_end(&mut back)?;
        if back != sent {
            return Err(io::Error::other("the echo differs"));
        }
    }
    Ok(())
}
