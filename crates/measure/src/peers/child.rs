//! The protocol with an adapter, a program that runs a stack under test.
//!
//! The lab starts it with settings as `key=value` arguments, writes commands to its standard input
//! and reads answers from its standard output, a line each. It ends with `stop`, or with its input.
//!
//! | lab | adapter | |
//! |---|---|---|
//! | | `hello 1 NAME VERSION` | the protocol's version, and the stack's |
//! | | `interface` | its TAP interface, or its pair of stacks, is there |
//! | `connect ADDRESS:PORT N` | N times `opened` | that many connections are to be opened |
//! | `warm` | | traffic may flow |
//! | `measure` | `counting` | what is counted begins here |
//! | `stop` | lines of what was counted, `end` | and ends here |
//! | | `error WHY` | at any time, and the last line |

use super::kernel::Gate;
use crate::{
    Error,
    error::Context as _,
    session::Worker,
    workload::{Control, Phase, Tally},
};
use std::{
    io::{BufRead, BufReader, Write as _},
    net::SocketAddrV4,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Version of the protocol.
const VERSION: &str = "1";
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a worker looks at the phase while traffic flows.
const TICK: Duration = Duration::from_millis(1);
/// Longest line that is read, bytes: counts of very many connections.
const LONGEST: usize = 64 << 20;

/// What a run cost an adapter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Costs {
    /// Processor time, ns.
    pub cpu_ns: u64,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary ones.
    pub involuntary: u64,
    /// Segments sent again.
    pub retransmits: u64,
}

/// Where a worker leaves the costs.
pub(super) type Told = Arc<Mutex<Costs>>;

/// What the adapter's connections lead to.
pub(super) enum Ends {
    /// Its own second stack, at this address.
    Pair(SocketAddrV4, usize),
    /// The kernel: for each of its threads the way there, and how many connections.
    Kernel(Vec<(Gate, usize)>),
}

/// What is to be started.
pub(super) struct Start {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// When establishing has to be over.
    pub deadline: Option<Instant>,
}

/// A worker that has an adapter do the work.
pub(super) fn worker(start: Start, ends: Ends, told: Told) -> Worker {
    Box::new(move |control, set| {
        if let Ends::Kernel(gates) = &ends
            && let Some((gate, _)) = gates.first()
        {
            gate.enter()?;
        }
        let deadline = start.deadline;
        let mut adapter = Adapter::start(start)?;
        adapter.establish(ends, deadline, control)?;
        set();
        adapter.run(control, &told)
    })
}

/// How long what an adapter has left behind may take to be read.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A running adapter. Dropping it kills it.
struct Adapter {
    child: Child,
    commands: ChildStdin,
    answers: mpsc::Receiver<String>,
    /// The first line of its stderr, if there was one, when that is known.
    complaint: mpsc::Receiver<String>,
}

impl Adapter {
    fn start(start: Start) -> Result<Adapter, Error> {
        let mut child = Command::new(&start.program)
            .args(&start.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(format!("starting {}", start.program.display()))?;
        let (commands, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(commands), Some(out), Some(err)) = (commands, out, err) else {
            return Err(Error::Run("an adapter has no pipes".into()));
        };
        let (tell, answers) = mpsc::channel();
        thread::spawn(move || {
            let mut out = BufReader::new(out);
            while let Some(line) = line(&mut out) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let (complain, complaint) = mpsc::sync_channel(1);
        thread::spawn(move || {
            let mut err = BufReader::new(err);
            // The first line says what went wrong; a program's backtrace follows it. Read to the
            // end all the same, or the adapter would block.
            while let Some(line) = line(&mut err) {
                let _ = complain.try_send(line);
            }
        });
        Ok(Adapter {
            child,
            commands,
            answers,
            complaint,
        })
    }

    fn say(&mut self, line: &str) -> Result<(), Error> {
        let written = writeln!(self.commands, "{line}").and_then(|()| self.commands.flush());
        // Who doesn't listen any more has said why.
        match written {
            Ok(()) => Ok(()),
            Err(_) => Err(self.gone()),
        }
    }

    /// Why it ended.
    fn gone(&mut self) -> Error {
        while let Ok(line) = self.answers.recv_timeout(LAST_WORDS) {
            if let Some(why) = line.strip_prefix("error ") {
                return Error::Run(why.into());
            }
        }
        // Its stderr ends with it, but is read by another thread.
        Error::Run(match self.complaint.recv_timeout(LAST_WORDS) {
            Err(_) => "the adapter ended without a word".into(),
            Ok(why) => format!("the adapter ended: {why}"),
        })
    }

    /// The next answer, by `until`.
    fn answer(&mut self, until: Instant) -> Result<String, Error> {
        let left = until.saturating_duration_since(Instant::now());
        match self.answers.recv_timeout(left) {
            Ok(line) => match line.strip_prefix("error ") {
                Some(why) => Err(Error::Run(why.into())),
                None => Ok(line),
            },
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.gone()),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(Error::Late(
                "the adapter gives no answer and is killed".into(),
            )),
        }
    }

    /// The next answer, which must be `wanted`.
    fn expect(&mut self, wanted: &str, until: Instant) -> Result<(), Error> {
        match self.answer(until)? {
            line if line == wanted => Ok(()),
            line => Err(unexpected(&line)),
        }
    }

    fn establish(
        &mut self,
        ends: Ends,
        deadline: Option<Instant>,
        control: &Control,
    ) -> Result<(), Error> {
        let soon = || Instant::now() + PATIENCE;
        let until = || deadline.map_or_else(soon, |d| d.min(soon()));
        let hello = self.answer(until())?;
        let mut words = hello.split(' ');
        if (words.next(), words.next()) != (Some("hello"), Some(VERSION)) {
            return Err(unexpected(&hello));
        }
        self.expect("interface", until())?;
        let gates = match ends {
            Ends::Pair(to, connections) => {
                self.say(&format!("connect {to} {connections}"))?;
                for _ in 0..connections {
                    self.expect("opened", until())?;
                }
                return Ok(());
            }
            Ends::Kernel(gates) => gates,
        };
        if let Some((gate, _)) = gates.first() {
            gate.interface_is_there()?;
        }
        for (gate, connections) in gates {
            let kernel = gate.open(control)?;
            for k in 0..connections {
                self.say(&format!("connect {} 1", kernel.address(k)))?;
                self.expect("opened", until())?;
                kernel.connected(k, control)?;
            }
        }
        Ok(())
    }

    /// Moves with the phases of the run; what was counted.
    fn run(&mut self, control: &Control, told: &Told) -> Result<Tally, Error> {
        let mut phase = Phase::Set;
        while phase != Phase::Stop {
            let now = control.phase();
            if now == phase {
                match self.answers.try_recv() {
                    Err(mpsc::TryRecvError::Empty) => thread::park_timeout(TICK),
                    Err(mpsc::TryRecvError::Disconnected) => return Err(self.gone()),
                    Ok(line) => return Err(unexpected(&line)),
                }
                continue;
            }
            phase = now;
            match phase {
                Phase::Warm => self.say("warm")?,
                Phase::Measure => {
                    self.say("measure")?;
                    self.expect("counting", Instant::now() + PATIENCE)?;
                    control.begins_to_count();
                }
                Phase::Set | Phase::Stop => {}
            }
        }
        self.say("stop")?;
        let (tally, costs) = self.counted()?;
        *told.lock().unwrap_or_else(PoisonError::into_inner) = costs;
        Ok(tally)
    }

    /// Reads what was counted.
    fn counted(&mut self) -> Result<(Tally, Costs), Error> {
        let until = Instant::now() + PATIENCE;
        let (mut tally, mut costs) = (Tally::default(), Costs::default());
        loop {
            let line = self.answer(until)?;
            let (key, rest) = line.split_once(' ').unwrap_or((&line, ""));
            let numbers: Result<Vec<u64>, _> = rest.split_whitespace().map(str::parse).collect();
            let numbers = numbers.map_err(|_| unexpected(&line))?;
            match (key, numbers.as_slice()) {
                ("elapsed", [n]) => tally.elapsed_ns = *n,
                ("cpu", [n]) => costs.cpu_ns = *n,
                ("switches", [v, i]) => (costs.voluntary, costs.involuntary) = (*v, *i),
                ("retransmits", [n]) => costs.retransmits = *n,
                ("verified", [n]) => tally.verified = *n,
                ("sent", _) => tally.sent = numbers,
                ("received", _) => tally.received = numbers,
                ("end", []) => break,
                _ => return Err(unexpected(&line)),
            }
        }
        tally.cpu_ns = costs.cpu_ns;
        tally.sink = !tally.received.is_empty();
        Ok((tally, costs))
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unexpected(line: &str) -> Error {
    let start: String = line.chars().take(80).collect();
    match line.strip_prefix("error ") {
        Some(why) => Error::Run(why.into()),
        None => Error::Run(format!(
            "the adapter says `{start}`, which was not expected"
        )),
    }
}

/// The next line without its end; `None` at the end, or if it is far too long.
fn line(from: &mut impl BufRead) -> Option<String> {
    let mut bytes = Vec::new();
    let limited = &mut std::io::Read::take(&mut *from, LONGEST as u64);
    match limited.read_until(b'\n', &mut bytes) {
        Ok(n) if n > 0 && bytes.last() == Some(&b'\n') => {
            bytes.pop();
            Some(String::from_utf8_lossy(&bytes).into_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Workers;

    /// Runs a worker whose adapter is a shell script.
    fn fake(script: &str) -> Result<(Tally, Costs), Error> {
        let start = Start {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            deadline: Some(Instant::now() + Duration::from_millis(1500)),
        };
        let told = Told::default();
        let to = SocketAddrV4::new([198, 18, 0, 2].into(), 5001);
        let worker = worker(start, Ends::Pair(to, 2), told.clone());
        let mut workers = Workers::start(vec![("app-0".into(), worker)])?;
        workers.run(Phase::Warm, Duration::from_millis(20))?;
        workers.run(Phase::Measure, Duration::from_millis(20))?;
        let tallies = workers.finish()?;
        let costs = *told.lock().unwrap();
        Ok((tallies[0].clone(), costs))
    }

    const SET_UP: &str = "echo 'hello 1 fake 7'; echo interface; read c; \
        [ \"$c\" = 'connect 198.18.0.2:5001 2' ] || { echo \"error $c\"; exit 1; }; \
        echo opened; echo opened; ";

    #[test]
    fn a_whole_run() {
        let script = format!(
            "{SET_UP} read c; [ $c = warm ] || exit 1; read c; [ $c = measure ] || exit 1; \
             echo counting; read c; [ $c = stop ] || exit 1; \
             echo elapsed 1000; echo cpu 1500; echo switches 3 4; echo retransmits 5; \
             echo verified 6; echo sent 10 20; echo received 9 19; echo end"
        );
        let (tally, costs) = fake(&script).unwrap();
        assert_eq!((tally.elapsed_ns, tally.cpu_ns), (1000, 1500));
        assert_eq!((tally.sent, tally.received), (vec![10, 20], vec![9, 19]));
        assert!(tally.sink && tally.verified == 6);
        let expected = Costs {
            cpu_ns: 1500,
            voluntary: 3,
            involuntary: 4,
            retransmits: 5,
        };
        assert_eq!(costs, expected);
    }

    #[test]
    fn whatever_goes_wrong_is_said() {
        let run = format!("{SET_UP} read c; read c; echo counting; read c; ");
        let table = [
            ("exit 0".to_string(), "without a word"),
            ("echo oops >&2; exit 1".into(), "ended: oops"),
            ("echo 'hello 2 fake 7'; read c".into(), "hello 2"),
            ("echo 'error no such device'".into(), "no such device"),
            ("sleep 60".into(), "no answer"),
            (
                format!("{SET_UP} echo surprise; read c; read c"),
                "surprise",
            ),
            (format!("{SET_UP} read c; echo 'error sick'"), "sick"),
            (format!("{run} echo elapsed x; read c"), "elapsed x"),
            (format!("{run} echo elapsed 1"), "without a word"),
        ];
        for (script, says) in table {
            let begun = Instant::now();
            let error = fake(&script).unwrap_err().to_string();
            assert!(error.contains(says), "{script}: {error}");
            assert!(begun.elapsed() < Duration::from_secs(10), "{script}");
        }
    }
}
