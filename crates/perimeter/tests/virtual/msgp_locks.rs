//! The locks of message parallelism, one event at a time: what a run takes and gives back is what
//! the table in the organization's header says (Willmann, Rixner, Cox, section 3.1). Nothing else
//! protects the coupling of the locks: memory is safe without it.

use crate::packet::{header, tcp};
use core::mem::take;
use perimeter::link::script::{ScriptHandle, script};
use perimeter::{Config, Keepalive, Stack, State, TcpConfig, TcpStream, Virtual};
use perimeter_sync::virt::{Act, VirtualConfig};
use perimeter_sync::{LockClass, Platform};
use perimeter_wire::{Seq, TcpFlags, TcpHdr};
use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

/// The table as the documentation shows it.
const TABLE: &str = include_str!("../../../org/src/msgp/trace.md");

/// A segment on its way, with one lock for all of a connection and with more; its route; a look
/// at the ring.
const SHORT: [(&str, &str); 4] = [
    ("SEG", "+tx -tx +s -s +RH +R -RH -R +tx -tx"),
    ("SEG", "+tx -tx +RH +R -RH -R +tx -tx"),
    ("ROUTE", "+RH +R -RH -R"),
    ("TX", "+tx -tx"),
];

/// Looks at a timer that has been moved, or has gone.
const MOVED: [&str; 2] = ["+ht +c -c -ht", "+c -c"];

fn name(class: LockClass) -> Option<&'static str> {
    Some(match class {
        LockClass::ConnHashtable => "ht",
        LockClass::Connection => "c",
        LockClass::Sndbuf => "s",
        LockClass::Rcvbuf => "r",
        LockClass::Listener => "l",
        LockClass::RouteHashtable => "RH",
        LockClass::Route => "R",
        LockClass::TxRing => "tx",
        _ => return None,
    })
}

/// Who does it.
#[derive(Copy, Clone, PartialEq)]
enum By {
    Caller,
    Inbound,
}

/// A stack whose network is this test, and what was recorded of it.
struct Lab {
    p: Virtual,
    s: Stack,
    wire: ScriptHandle<Virtual>,
    seen: RefCell<Vec<(String, String)>>,
}

impl Lab {
    fn pass(&self, ms: u64) {
        self.p.sleep_until(self.p.now().plus(ms * 1_000_000));
    }

    /// Records what `by` does while `f` runs and for `ms` afterwards.
    fn record<R>(&self, what: &str, by: By, ms: u64, f: impl FnOnce() -> R) -> R {
        self.p.record();
        let out = f();
        self.pass(ms);
        let here = self.p.lane();
        // From where nothing is held to where nothing is held again, and how often in a row.
        let mut parts: Vec<(String, u32)> = Vec::new();
        let (mut part, mut depth, mut inside, mut work) = (Vec::new(), 0, false, false);
        for e in self.p.recorded() {
            if (e.lane == here) != (by == By::Caller) {
                continue;
            }
            let (sign, class) = match e.act {
                Act::Lock { class, .. } => ('+', class),
                Act::Unlock { class, .. } => ('-', class),
                Act::Work { .. } => {
                    work |= depth > 0;
                    continue;
                }
                _ => continue,
            };
            let Some(n) = name(class) else { continue };
            part.push(format!("{sign}{n}"));
            inside |= class.level() <= LockClass::Listener.level();
            depth += if sign == '+' { 1 } else { -1 };
            if depth > 0 {
                continue;
            }
            let (text, inside) = (take(&mut part).join(" "), take(&mut inside));
            let moved = by == By::Inbound && !take(&mut work) && MOVED.contains(&&*text);
            // Doorbells and chores come before and after.
            if !inside || moved {
                continue;
            }
            match parts.last_mut() {
                Some((last, n)) if *last == text => *n += 1,
                _ => parts.push((text, 1)),
            }
        }
        let part = |(text, n)| match n {
            1 => text,
            n => format!("{n} × ({text})"),
        };
        let mut text = parts.into_iter().map(part).collect::<Vec<_>>().join(" ");
        for (short, long) in SHORT {
            text = text.replace(long, short);
        }
        self.seen.borrow_mut().push((what.to_string(), text));
        out
    }

    /// The next segment of the stack.
    fn sent(&self) -> TcpHdr {
        for _ in 0..1000 {
            if let Some(p) = self.wire.next() {
                return TcpHdr::parse(&p.bytes[20..]).unwrap().0;
            }
            self.pass(1);
        }
        panic!("nothing was sent");
    }

    fn forget_sent(&self) {
        while self.wire.next().is_some() {}
    }

    fn inject(&self, hdr: &TcpHdr, payload: &[u8]) {
        assert!(self.wire.inject(self.p.now(), &tcp(hdr, payload)));
    }
}

/// The test's end of a connection.
struct End<'a> {
    lab: &'a Lab,
    hdr: TcpHdr,
}

impl End<'_> {
    /// Sends a segment; `fresh` octets of the stack's are acknowledged by it.
    fn send(&mut self, flags: TcpFlags, fresh: u32, payload: &[u8]) {
        self.hdr.flags = flags;
        self.hdr.ack = Seq(self.hdr.ack.0.wrapping_add(fresh));
        self.lab.inject(&self.hdr, payload);
        let fin = u32::from(flags.intersects(TcpFlags::FIN | TcpFlags::SYN));
        let next = self.hdr.seq.0.wrapping_add(payload.len() as u32 + fin);
        self.hdr.seq = Seq(next);
    }
}

/// A connection that the stack opens.
fn open<'a>(lab: &'a Lab, what: &str, config: &TcpConfig) -> (TcpStream, End<'a>) {
    let to = "10.0.0.2:80".parse().unwrap();
    let c = lab.record(what, By::Caller, 0, || {
        lab.s.connect_with(None, to, config).unwrap()
    });
    c.set_nonblocking(true).unwrap();
    let syn = lab.sent();
    let mut end = End {
        lab,
        hdr: header((80, syn.src_port), 1000, syn.seq.0.wrapping_add(1)),
    };
    end.send(TcpFlags::SYN | TcpFlags::ACK, 0, b"");
    lab.pass(20);
    assert_eq!(c.info().unwrap().tcp.state, State::Established);
    lab.forget_sent();
    (c, end)
}

const ACK: TcpFlags = TcpFlags::ACK;

/// Data both ways, predicted and not.
fn transfers(lab: &Lab, config: &TcpConfig) {
    let (c, mut end) = open(lab, "connect", config);
    let mut buf = vec![0; 65_536];
    // The first segments of a connection are acknowledged at once; let that pass.
    for _ in 0..40 {
        end.send(ACK | TcpFlags::PSH, 0, &[1; 100]);
        lab.pass(100);
    }
    while (&c).read(&mut buf).is_ok() {}
    lab.record("send", By::Caller, 0, || (&c).write(&[7; 100]).unwrap());
    lab.record("ACK, predicted", By::Inbound, 5, || end.send(ACK, 100, b""));
    lab.record("data, predicted", By::Inbound, 5, || {
        end.send(ACK, 0, &[1; 100])
    });
    lab.forget_sent();
    lab.record("delayed-ACK timer", By::Inbound, 300, || ());
    assert_eq!(lab.sent().ack, end.hdr.seq, "acknowledged by its timer");
    lab.record("receive", By::Caller, 0, || (&c).read(&mut buf).unwrap());
    // Half of the receive buffer, so that the window's opening is worth telling.
    for _ in 0..24 {
        end.send(ACK, 0, &[1; 1400]);
        lab.pass(1);
    }
    lab.pass(300);
    lab.forget_sent();
    lab.record("receive, opens the window", By::Caller, 0, || {
        (&c).read(&mut buf).unwrap()
    });
    lab.record("option", By::Caller, 0, || c.set_nodelay(true).unwrap());
    // A hole, so that prediction gives up.
    end.hdr.seq = Seq(end.hdr.seq.0.wrapping_add(100));
    lab.record("data out of order", By::Inbound, 5, || {
        end.send(ACK, 0, &[1; 100]);
    });
    end.hdr.seq = Seq(end.hdr.seq.0.wrapping_sub(200));
    lab.record("data that fills a hole", By::Inbound, 5, || {
        end.send(ACK, 0, &[1; 100]);
    });
    end.hdr.seq = Seq(end.hdr.seq.0.wrapping_add(100));
    // Both ends close, the stack first: TIME-WAIT.
    lab.record("shutdown", By::Caller, 0, || {
        c.shutdown(Shutdown::Write).unwrap();
    });
    while (&c).read(&mut buf).is_ok_and(|n| n > 0) {}
    lab.forget_sent();
    end.send(ACK, 1, b"");
    lab.pass(5);
    lab.record("FIN", By::Inbound, 5, || {
        end.send(ACK | TcpFlags::FIN, 0, b"")
    });
    assert_eq!(c.info().unwrap().tcp.state, State::TimeWait);
    lab.record("close, in TIME-WAIT", By::Caller, 0, || drop(c));
    lab.record("2MSL timer", By::Inbound, 3000, || ());
    assert!(lab.s.connections().is_empty());
}

/// The other timers.
fn timers(lab: &Lab, config: &TcpConfig) {
    lab.forget_sent();
    let (c, mut end) = open(lab, "connect", config);
    (&c).write_all(&[7; 100]).unwrap();
    lab.forget_sent();
    lab.record("retransmission timer", By::Inbound, 350, || ());
    lab.sent();
    // The window shuts, and there is more to send.
    end.hdr.window = 0;
    end.send(ACK, 100, b"");
    lab.pass(5);
    (&c).write_all(&[7; 100]).unwrap();
    lab.forget_sent();
    lab.record("persist timer", By::Inbound, 1000, || ());
    lab.sent();
    end.hdr.window = 60_000;
    end.send(ACK, 0, b"");
    lab.pass(20);
    end.send(ACK, 100, b"");
    lab.pass(20);
    let keepalive = Keepalive::default()
        .with_idle(Duration::from_secs(2))
        .with_interval(Duration::from_secs(10))
        .with_probes(3);
    c.set_keepalive(Some(keepalive)).unwrap();
    lab.forget_sent();
    lab.record("keepalive timer", By::Inbound, 3000, || ());
    lab.sent();
    end.send(ACK, 0, b"");
    lab.pass(5);
    lab.record("close", By::Caller, 0, || drop(c));
    lab.record("reset", By::Inbound, 5, || {
        end.send(ACK | TcpFlags::RST, 0, b"");
    });
}

/// The other side of a handshake.
fn passive(lab: &Lab) {
    lab.forget_sent();
    let l = lab.record("listen", By::Caller, 0, || {
        lab.s.listen("10.0.0.1:9").unwrap()
    });
    let mut end = End {
        lab,
        hdr: header((5000, 9), 1000, 0),
    };
    lab.record("SYN", By::Inbound, 5, || end.send(TcpFlags::SYN, 0, b""));
    let syn_ack = lab.sent();
    end.hdr.ack = Seq(syn_ack.seq.0.wrapping_add(1));
    lab.record("ACK of a SYN-ACK", By::Inbound, 5, || end.send(ACK, 0, b""));
    let (c, _) = lab.record("accept", By::Caller, 0, || l.accept().unwrap());
    lab.record("abort", By::Caller, 0, || c.abort().unwrap());
    lab.pass(5);
    lab.record("segment of no connection", By::Inbound, 5, || {
        end.send(ACK, 0, b"");
    });
    let mut other = End {
        lab,
        hdr: header((5001, 9), 1000, 0),
    };
    other.send(TcpFlags::SYN, 0, b"");
    lab.pass(5);
    lab.record("SYN-ACK timer", By::Inbound, 1500, || ());
    lab.record("close of a listener", By::Caller, 0, || drop(l));
}

fn recorded(org: &'static str) -> Vec<(String, String)> {
    let cfg = VirtualConfig::default().with_cores(2);
    let result = Virtual::run(cfg, move |p| {
        let (device, wire) = script(&p, "script", 1500);
        let mut config = Config::default();
        let tcp = &mut config.tcp;
        (tcp.loss_probe, tcp.reorder_timer) = (false, false);
        (tcp.rcv_buf, tcp.rcv_buf_max) = (65_536, 65_536);
        tcp.time_wait = Duration::from_secs(2);
        let tcp = tcp.clone();
        let s = Stack::builder().on_virtual(p.clone()).config(config);
        let s = s.organization(org).unwrap();
        let s = s.interface(device, &["10.0.0.1/24"]).unwrap();
        let lab = Lab {
            p,
            s: s.build().unwrap(),
            wire,
            seen: RefCell::default(),
        };
        transfers(&lab, &tcp);
        timers(&lab, &tcp);
        passive(&lab);
        lab.s.stop();
        lab.seen.take()
    });
    result.unwrap_or_else(|f| panic!("{org}: {f}")).0
}

/// The row of the table, and its cell in the column.
fn row(what: &str, column: usize) -> Option<&'static str> {
    TABLE.lines().find_map(|line| {
        let mut cells = line.trim().trim_matches('|').split('|').map(str::trim);
        (cells.next() == Some(what)).then_some(())?;
        Some(cells.nth(column)?.trim_matches('`'))
    })
}

/// Checks an organization against its column.
fn check(org: &'static str, column: usize) {
    let seen = recorded(org);
    let mut wrong = Vec::new();
    for (what, got) in &seen {
        if row(what, column) != Some(got) {
            wrong.push(format!("| {what} | `{got}` |"));
        }
    }
    assert!(wrong.is_empty(), "{org}: otherwise\n{}", wrong.join("\n"));
    let rows = TABLE.lines().filter(|l| l.contains('`')).count();
    let mut names: Vec<_> = seen.iter().map(|(what, _)| what).collect();
    names.sort();
    names.dedup();
    assert_eq!(rows, names.len(), "{org}: every row was seen");
}

#[test]
fn locks_are_those_of_the_table() {
    check("msgp", 0);
    check("msgp:locks=coarse", 1);
    check("msgp-modern", 2);
}

#[test]
fn workers_take_the_locks_that_the_nic_s_thread_would() {
    check("msgp:netisr", 0);
    check("msgp:workers=3", 0);
    check("msgp-modern:netisr", 2);
}
