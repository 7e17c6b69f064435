//! What is resident follows what is charged: connections take no more memory than they count
//! for, also those that only wait, under every organization.
//!
//! Each organization is measured in a process of its own, which holds little else: the peer is a
//! script that keeps one number for each connection.

#[path = "common/apart.rs"]
mod apart;
mod common;
#[path = "common/packet.rs"]
mod packet;

use apart::{measured, under_each};
use packet::{header, tcp};
use perimeter::link::script::ScriptHandle;
use perimeter::{Config, Stack, TcpListener, TcpStream, Virtual};
use perimeter_stack::memory::{CONNECTION, WAITING};
use perimeter_sync::Platform;
use perimeter_wire::{Seq, TcpFlags, TcpHdr};
use std::time::Duration;

/// Says to a process which organization it is to measure.
const ORG: &str = "PERIMETER_TEST_WEIGHED";

/// The port that clients connect to.
const PORT: u16 = 80;

/// Connections of each measurement.
const MANY: u16 = 8192;

#[test]
fn connections_take_no_more_memory_than_they_count_for() {
    under_each("weighed", ORG);
}

/// What such a process does; elsewhere nothing.
#[test]
fn weighed() {
    let config = Config::default().with_memory(256 << 20);
    measured(ORG, config, |org, p, s, wire| {
        let l = s.listen(("10.0.0.1", PORT)).unwrap();
        l.set_nonblocking(true).unwrap();
        let acks = vec![Seq(0); 65_536];
        let mut net = Net {
            p,
            s,
            l,
            wire,
            acks,
        };
        // What there is however few connections there are: stocks of threads, rings.
        let few = net.open(1024, 960);
        net.stock(1024, 64);
        drop(few);
        net.pass(Duration::from_millis(100));
        let before = net.weigh();
        let all = net.open(2000, MANY);
        let open = net.weigh();
        for (i, c) in all.into_iter().enumerate() {
            drop(c);
            if i % 32 == 0 {
                net.turn();
            }
        }
        net.pass(Duration::from_millis(300));
        let closed = net.weigh();
        net.close(2000, MANY);
        net.pass(Duration::from_millis(300));
        let waiting = net.weigh();
        // Nothing of what is set aside for them is in use.
        for (what, then) in [("open", open), ("closed", closed), ("waiting", waiting)] {
            let each = (then.0 as i64 - before.0 as i64) / i64::from(MANY);
            println!("{org}: {each} bytes {what}");
            assert!(each <= WAITING as i64, "{org}: {each} bytes {what}");
        }
        // The same is charged.
        let charged = waiting.1 - before.1;
        assert_eq!(charged, (WAITING * usize::from(MANY)) as u64);
        assert_eq!(open.1 - before.1, (CONNECTION * usize::from(MANY)) as u64);
    });
}

/// A stack whose network is this test.
struct Net {
    p: Virtual,
    s: Stack,
    l: TcpListener,
    wire: ScriptHandle<Virtual>,
    /// What each port has acknowledged.
    acks: Vec<Seq>,
}

/// Where peers' sequence numbers begin.
const FIRST: u32 = 1000;

impl Net {
    /// What the process has resident, and what is charged, bytes.
    fn weigh(&self) -> (usize, u64) {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
        (pages * 4096, self.s.stats().memory)
    }

    fn pass(&mut self, d: Duration) {
        let end = self.p.now() + d;
        while self.p.now() < end {
            self.turn();
        }
    }

    /// Whatever the stack sends is answered as `answer` says.
    fn turn(&mut self) {
        self.s.drive().unwrap();
        while let Some(sent) = self.wire.next() {
            let (hdr, _) = TcpHdr::parse(&sent.bytes[20..]).unwrap();
            if hdr.flags.intersects(TcpFlags::SYN | TcpFlags::FIN) {
                self.acks[usize::from(hdr.dst_port)] = hdr.seq + 1;
                self.inject(hdr.dst_port, TcpFlags::ACK, FIRST + 1, hdr.seq + 1);
            }
        }
        self.s.drive().unwrap();
        self.p.sleep_until(self.p.now().plus(100_000));
    }

    fn inject(&self, port: u16, flags: TcpFlags, seq: u32, ack: Seq) {
        let hdr = TcpHdr {
            flags,
            ..header((port, PORT), seq, ack.0)
        };
        assert!(self.wire.inject(self.p.now(), &tcp(&hdr, b"")));
    }

    /// Acknowledgments on these connections, until each thread has its stock of packet buffers.
    fn stock(&mut self, first: u16, n: u16) {
        for _ in 0..300 {
            for port in first..first + n {
                let ack = self.acks[usize::from(port)];
                self.inject(port, TcpFlags::ACK, FIRST + 1, ack);
            }
            self.turn();
        }
    }

    /// Connections from so many ports, from `first` on.
    fn open(&mut self, first: u16, n: u16) -> Vec<TcpStream> {
        let mut all = Vec::with_capacity(n.into());
        let end = self.p.now() + Duration::from_secs(60);
        let mut next = first;
        while all.len() < usize::from(n) {
            assert!(self.p.now() < end);
            for _ in 0..32 {
                if next < first + n {
                    self.inject(next, TcpFlags::SYN, FIRST, Seq(0));
                    next += 1;
                }
            }
            self.turn();
            while let Ok((s, _)) = self.l.accept() {
                all.push(s);
            }
        }
        all
    }

    /// The peers of these, which the stack has closed, close too.
    fn close(&mut self, first: u16, n: u16) {
        for port in first..first + n {
            let ack = self.acks[usize::from(port)];
            self.inject(port, TcpFlags::FIN | TcpFlags::ACK, FIRST + 1, ack);
            if port % 32 == 0 {
                self.turn();
            }
        }
    }
}
