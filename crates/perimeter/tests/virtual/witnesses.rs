//! What each organization does for one send, one receive, one accept, one timer and one close:
//! the locks taken, the hand-overs made, and the thread that ran each layer. Compared with
//! `witnesses/<organization>.txt`; `PERIMETER_WITNESSES=update` writes those anew.
//!
//! Two organizations with equal witnesses are one organization with two names, unless
//! [`ALIKE`] says why not.

use crate::packet::{header, tcp};
use perimeter::link::script::{ScriptHandle, script};
use perimeter::{Config, Offload, OrgSpec, Stack, State, TcpStream, Virtual};
use perimeter_base::Time;
use perimeter_sync::virt::{Act, Entry, Schedule, VirtualConfig, VirtualThread};
use perimeter_sync::{Layer, LockClass, Platform, Thread, Work};
use perimeter_wire::{Seq, TcpFlags, TcpHdr};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const ACK: TcpFlags = TcpFlags::ACK;

/// Organizations that may do the same for all five, and why.
const ALIKE: &[(&str, &str, &str)] = &[
    (
        "pef:random",
        "pef:vertical",
        "all layers of a connection share one squeue under both; how it is chosen differs, and the \
         draw may fall on the one that FireEngine would choose",
    ),
    (
        "pef:vertical",
        "pef:vertical:events=fine",
        "which events there are matters where a list is altered or its layers have squeues of their \
         own",
    ),
    ("pef:random", "pef:vertical:events=fine", "as the two above"),
];

/// One organization under observation: the test is its network.
struct Lab {
    p: Virtual,
    s: Stack,
    wire: ScriptHandle<Virtual>,
    /// Locks by the order in which they were first seen, by class.
    known: HashMap<u32, usize>,
    count: HashMap<LockClass, usize>,
    text: String,
}

/// The test's end of a connection.
struct End {
    hdr: TcpHdr,
}

impl Lab {
    fn single(&self) -> bool {
        self.s.organization().single_threaded()
    }

    /// Time passes; a stack of one thread is served by this one.
    fn pass(&self, ms: u64) {
        let end = self.p.now().plus(ms * 1_000_000);
        while self.p.now() < end {
            if self.single() {
                self.s.drive().unwrap();
            }
            let step = self.p.now().plus(1_000_000);
            self.p.sleep_until(step.min(end));
        }
    }

    fn send(&self, end: &mut End, flags: TcpFlags, payload: &[u8]) {
        let hdr = &mut end.hdr;
        hdr.flags = flags;
        assert!(self.wire.inject(self.p.now(), &tcp(hdr, payload)));
        let control = u32::from(flags.intersects(TcpFlags::FIN | TcpFlags::SYN));
        let next = hdr.seq.0.wrapping_add(payload.len() as u32 + control);
        hdr.seq = Seq(next);
    }

    /// What the stack sent since it was asked last; all of it is acknowledged from here on.
    fn sent(&self, end: &mut End) -> Vec<TcpHdr> {
        let mut all = Vec::new();
        while let Some(p) = self.wire.next() {
            let (hdr, _) = TcpHdr::parse(&p.bytes[20..]).unwrap();
            let payload = p.bytes.len() - 20 - hdr.header_len();
            let control = u32::from(hdr.flags.intersects(TcpFlags::FIN | TcpFlags::SYN));
            if (hdr.src_port, hdr.dst_port) == (end.hdr.dst_port, end.hdr.src_port) {
                end.hdr.ack = Seq(hdr.seq.0.wrapping_add(payload as u32 + control));
            }
            all.push(hdr);
        }
        all
    }

    /// Runs `f` on a thread of the application's, which has time to block before this returns;
    /// where there is one thread only, nothing yet.
    fn application(
        &self,
        name: &str,
        f: impl FnOnce() + Send + 'static,
    ) -> Result<VirtualThread, Box<dyn FnOnce()>> {
        if self.single() {
            return Err(Box::new(f));
        }
        let t = self.p.spawn(name, Some(2), Box::new(f));
        self.pass(5);
        Ok(t)
    }

    /// Records what happens while `f` runs and for some time afterwards.
    fn witness<R>(&mut self, what: &str, ms: u64, f: impl FnOnce(&Lab) -> R) -> R {
        self.p.record();
        let out = f(self);
        self.pass(ms);
        let entries = self.p.recorded();
        let lines = self.tell(&entries);
        writeln!(self.text, "{what}").unwrap();
        self.text.push_str(&lines);
        self.text.push('\n');
        out
    }

    /// Lines of `thread@core: …`, each as long as one thread goes on.
    fn tell(&mut self, entries: &[Entry]) -> String {
        let mut words: Vec<(String, String)> = Vec::new();
        let mut layer: HashMap<usize, Layer> = HashMap::new();
        for e in entries {
            let who = format!("{}@{}", e.thread, e.core);
            let word = match &e.act {
                Act::Lock { class, id } => {
                    // Another structure was entered: the layer is said again.
                    layer.remove(&e.lane);
                    self.lock('+', *class, *id)
                }
                Act::Unlock { class, id } => {
                    layer.remove(&e.lane);
                    self.lock('-', *class, *id)
                }
                Act::Work {
                    work: Work::HandOver | Work::Mail,
                    units,
                } => Some(format!("hands over {units}")),
                Act::Work { work, .. } => work.layer().and_then(|l| {
                    let before = layer.insert(e.lane, l);
                    (before != Some(l)).then(|| format!("{l:?}").to_uppercase())
                }),
                Act::Set { woke: Some(w), .. } => Some(format!("wakes {w}")),
                Act::LockWait { class, .. } => Some(format!("waits for {}", class.name())),
                _ => None,
            };
            let Some(word) = word else { continue };
            // Somebody has looked whether there is something to do, and there was not.
            let back = word.strip_prefix('-').map(|w| format!("+{w}"));
            let idle = |w: &str| {
                let looked = ["nic_rx", "control", "group(flag)"];
                looked.iter().any(|c| w[1..].starts_with(c))
            };
            if let Some(back) = back
                && idle(&word)
                && words.last().is_some_and(|l| *l == (who.clone(), back))
            {
                words.pop();
                continue;
            }
            words.push((who, word));
        }
        let mut text = String::new();
        let mut last = String::new();
        for (who, word) in words {
            if who == last {
                text.push(' ');
            } else {
                if !text.is_empty() {
                    text.push('\n');
                }
                write!(text, "  {who}: ").unwrap();
            }
            text.push_str(&word);
            last = who;
        }
        text + "\n"
    }

    /// The lock by class and order of appearance; a plain flag in place of a lock says so.
    /// Innermost ones, of queues, devices and allocation, are left out.
    fn lock(&mut self, sign: char, class: LockClass, id: Option<u32>) -> Option<String> {
        if class == LockClass::Leaf {
            return None;
        }
        let Some(id) = id else {
            return Some(format!("{sign}{}(flag)", class.name()));
        };
        let n = *self.known.entry(id).or_insert_with(|| {
            let n = self.count.entry(class).or_default();
            *n += 1;
            *n
        });
        Some(format!("{sign}{}{n}", class.name()))
    }
}

/// Runs what could not run on a thread of its own, then waits for its thread.
fn end(t: Result<VirtualThread, Box<dyn FnOnce()>>) {
    match t {
        Ok(t) => t.join().unwrap(),
        Err(f) => f(),
    }
}

/// A connection that the stack opens.
fn open(lab: &Lab) -> (Arc<TcpStream>, End) {
    let c = lab.s.start_connect("10.0.0.2:80".parse().unwrap()).unwrap();
    lab.pass(2);
    let mut end = End {
        hdr: header((80, 0), 1000, 0),
    };
    let syn = lab.sent(&mut end).remove(0);
    end.hdr.dst_port = syn.src_port;
    end.hdr.ack = Seq(syn.seq.0.wrapping_add(1));
    lab.send(&mut end, TcpFlags::SYN | ACK, b"");
    lab.pass(5);
    assert_eq!(c.info().unwrap().tcp.state, State::Established);
    // The first segments of a connection are acknowledged at once; let that pass.
    for _ in 0..40 {
        lab.send(&mut end, ACK | TcpFlags::PSH, &[1; 100]);
        lab.pass(100);
    }
    (&c).read_exact(&mut [0; 4000]).unwrap();
    lab.sent(&mut end);
    (Arc::new(c), end)
}

fn observe(lab: &mut Lab) {
    let (c, mut a) = open(lab);
    lab.witness("send", 2, |_| {
        assert_eq!((&*c).write(&[7; 100]).unwrap(), 100)
    });
    lab.sent(&mut a);
    lab.send(&mut a, ACK, b"");
    lab.pass(100);

    let reader = c.clone();
    let read = move || assert_eq!((&*reader).read(&mut [0; 1000]).unwrap(), 100);
    let reading = lab.application("reader", read);
    lab.witness("receive", 2, |lab| {
        lab.send(&mut a, ACK, &[1; 100]);
        if lab.single() {
            lab.pass(2);
        }
        end(reading);
    });
    lab.pass(100);
    lab.sent(&mut a);

    let l = Arc::new(lab.s.listen("10.0.0.1:9").unwrap());
    let listener = l.clone();
    let accepted = Arc::new(std::sync::Mutex::new(None));
    let place = accepted.clone();
    let accept = move || {
        let s = listener.accept().unwrap().0;
        *place.lock().unwrap() = Some(s);
    };
    let accepting = lab.application("acceptor", accept);
    let mut b = End {
        hdr: header((5001, 9), 1000, 0),
    };
    lab.witness("accept", 2, |lab| {
        lab.send(&mut b, TcpFlags::SYN, b"");
        lab.pass(2);
        assert_eq!(lab.sent(&mut b).len(), 1, "a SYN-ACK");
        lab.send(&mut b, ACK, b"");
        if lab.single() {
            lab.pass(2);
        }
        end(accepting);
    });
    let b_stream = accepted.lock().unwrap().take().expect("accepted");

    assert_eq!((&*c).write(&[7; 100]).unwrap(), 100);
    lab.pass(5);
    lab.sent(&mut a);
    lab.witness("timer (retransmission)", 400, |_| ());
    assert!(!lab.sent(&mut a).is_empty(), "sent again");
    lab.send(&mut a, ACK, b"");
    lab.pass(100);

    lab.witness("close", 2, |lab| {
        drop(b_stream);
        lab.pass(2);
        let fin = lab.sent(&mut b);
        assert!(fin.iter().any(|h| h.flags.contains(TcpFlags::FIN)));
        lab.send(&mut b, ACK | TcpFlags::FIN, b"");
    });
    lab.sent(&mut b);
}

/// The witness of an organization.
fn witness(org: &OrgSpec) -> String {
    let cfg = VirtualConfig::default()
        .with_cores(4)
        .with_schedule(Schedule::Time { jitter_percent: 0 })
        .with_max_time(Time::from_millis(10_000_000));
    let spec = org.clone();
    let result = Virtual::run(cfg, move |p| {
        let (device, wire) = script(&p, "script", 1500);
        let mut config = Config::default();
        (config.tcp.loss_probe, config.tcp.reorder_timer) = (false, false);
        config.offload = Offload::Off;
        // Nobody looks around for want of anything else to do: who arms a timer wakes who would
        // sleep for longer.
        config.service = Duration::from_secs(1000);
        let s = Stack::builder()
            .on_virtual(p.clone())
            .org(spec)
            .config(config);
        let s = s.interface(device, &["10.0.0.1/24"]).unwrap();
        let mut lab = Lab {
            p,
            s: s.build().unwrap(),
            wire,
            known: HashMap::new(),
            count: HashMap::new(),
            text: String::new(),
        };
        observe(&mut lab);
        lab.s.stop();
        lab.text
    });
    result.unwrap_or_else(|f| panic!("{org}: {f}")).0
}

fn file(org: &OrgSpec) -> PathBuf {
    let name = org.to_string().replace(':', "_") + ".txt";
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/virtual/witnesses")
        .join(name)
}

/// Those of the suites, but the one that exists to test the seam.
fn organizations() -> Vec<OrgSpec> {
    let all = OrgSpec::tested().into_iter();
    all.filter(|o| o.to_string() != "split").collect()
}

#[test]
fn every_organization_does_what_its_witness_says() {
    let update = std::env::var("PERIMETER_WITNESSES").is_ok_and(|v| v == "update");
    let mut wrong = Vec::new();
    for org in organizations() {
        let (now, path) = (witness(&org), file(&org));
        if update {
            std::fs::write(&path, &now).unwrap();
            continue;
        }
        match std::fs::read_to_string(&path) {
            Ok(before) if before == now => {}
            Ok(before) => wrong.push(format!(
                "{org} does otherwise:\n{}",
                differences(&before, &now)
            )),
            Err(e) if e.kind() == ErrorKind::NotFound => wrong.push(format!("{org} has none yet")),
            Err(e) => panic!("{}: {e}", path.display()),
        }
    }
    assert!(
        wrong.is_empty(),
        "witnesses (PERIMETER_WITNESSES=update writes them anew, to be looked at):\n{}",
        wrong.join("\n")
    );
}

/// Lines of one and not of the other.
fn differences(before: &str, now: &str) -> String {
    let mut out = String::new();
    let lines = |s: &str| s.lines().map(str::to_string).collect::<Vec<_>>();
    let (old, new) = (lines(before), lines(now));
    for l in old.iter().filter(|l| !new.contains(l)) {
        writeln!(out, "- {l}").unwrap();
    }
    for l in new.iter().filter(|l| !old.contains(l)) {
        writeln!(out, "+ {l}").unwrap();
    }
    out
}

#[test]
fn no_two_organizations_do_the_same() {
    let all: Vec<(String, String)> = organizations()
        .iter()
        .map(|o| (o.to_string(), witness(o)))
        .collect();
    let mut alike = Vec::new();
    for (i, (a, one)) in all.iter().enumerate() {
        for (b, other) in &all[i + 1..] {
            let both = [a.as_str(), b.as_str()];
            let allowed = |(x, y, _): &(&str, &str, &str)| both.contains(x) && both.contains(y);
            if one == other && !ALIKE.iter().any(allowed) {
                alike.push(format!("{a} and {b} do the same"));
            }
        }
    }
    assert!(alike.is_empty(), "{}", alike.join("\n"));
}
