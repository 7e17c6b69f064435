//! Runs a configuration under valgrind and reads its trace: a backend that models and measures
//! nothing.

use super::{
    lackey::{Line, parse},
    model::System,
    observer::{Locate, Locator, Observer},
    places::Places,
};
use crate::{
    Error, counted,
    error::Context as _,
    misses::{Counts, Modelled, geometry::Caches},
    organizations::Organization,
    session::{self, Session, Traits},
    workload::{Configuration, Device, Direction, SEGMENT, Sample, Settings},
};
use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The word of `perimeter-lab`'s command line that makes it the subject of a trace.
const SUBJECT: &str = "cache-subject";

/// Longest line that is looked at, bytes.
const LONGEST: u64 = 4096;
/// Room for the trace between two reads.
const BUFFER: usize = 1 << 20;
/// Longest time of one run.
const LIMIT: Duration = Duration::from_secs(3600);
/// How many lines are read between two looks at the clock.
const LOOK: u64 = 1 << 20;

/// Whether runs can be traced here.
///
/// # Errors
/// [`Error::Unavailable`] with why not.
pub fn available() -> Result<(), Error> {
    let status = Command::new("valgrind")
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => Err(Error::Unavailable(
            "modelling cache misses needs valgrind, which is not installed".into(),
        )),
    }
}

/// First guess of what a run takes besides its slot: the making of the stack, and about 100 ms for
/// each connection that is opened.
pub fn first_guess(configuration: &Configuration) -> Duration {
    Duration::from_secs(8) + Duration::from_millis(100) * configuration.connections
}

/// The backend.
#[derive(Debug)]
pub struct Backend {
    /// Payload bytes before counting, and while counting.
    payload: u64,
}

impl Backend {
    /// For runs that count while so much payload is sent, after as much that is not counted.
    pub fn new(payload: u64) -> Backend {
        Backend { payload }
    }
}

impl session::Backend for Backend {
    fn check(
        &mut self,
        settings: &Settings,
        configurations: &[Configuration],
    ) -> Result<(), Error> {
        let ours = |c: &Configuration| matches!(c.organization, Organization::Ours(_));
        if !configurations.iter().all(ours) {
            return Err(Error::Unavailable(
                "only organizations of ours can be traced".into(),
            ));
        }
        if settings.device != Device::Mem {
            return Err(Error::Unavailable(
                "only runs over the memory NIC can be traced".into(),
            ));
        }
        if settings.direction != Direction::Send || settings.exchange.is_some() {
            return Err(Error::Unavailable("only sending can be traced".into()));
        }
        available()
    }

    fn traits(&self, settings: &Settings, _: &Configuration) -> Traits {
        Traits {
            device: settings.device.to_string(),
            inbound: settings.inbound.to_string(),
            comparable: true,
            notes: vec![match counted::available() {
                Ok(()) => "What the processor counts is in the plan `cache-counted`.".into(),
                Err(why) => format!("Hardware counters: {why}."),
            }],
        }
    }

    fn prepare(
        &mut self,
        settings: &Settings,
        configuration: &Configuration,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Box::new(Traced {
            settings: settings.clone(),
            configuration: configuration.clone(),
            payload: self.payload,
            seed: since.map_or(0, |d| d.as_nanos() as u64),
            deadline: deadline.unwrap_or_else(|| Instant::now() + LIMIT),
        }))
    }
}

/// A run that is to be traced.
struct Traced {
    settings: Settings,
    configuration: Configuration,
    payload: u64,
    seed: u64,
    deadline: Instant,
}

impl Session for Traced {
    fn warm_up(&mut self, _: Duration) -> Result<(), Error> {
        Ok(())
    }

    fn measure(self: Box<Self>, _: Duration) -> Result<Sample, Error> {
        let begun = Instant::now();
        let modelled = self.trace()?;
        Ok(Sample {
            elapsed: begun.elapsed(),
            segments: modelled.bytes as f64 / SEGMENT as f64,
            valid: modelled.bytes > 0,
            modelled: Some(modelled),
            ..Sample::default()
        })
    }
}

/// A process that is killed when nobody reads it any more.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It has ended, or is to.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program under lackey and hands on each line of its trace, without its end. Returns
/// whether it succeeded.
fn each_line(
    program: &Path,
    words: &[String],
    take: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<bool, Error> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"])
        .arg(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = Killed(command.spawn().context("starting valgrind")?);
    let Some(trace) = child.0.stderr.take() else {
        return Err(Error::Run("valgrind has no standard error".into()));
    };
    let mut trace = BufReader::with_capacity(BUFFER, trace);
    let mut line = Vec::new();
    // Bounded: what valgrind writes has short lines, what the program writes is cut.
    while (&mut trace)
        .take(LONGEST)
        .read_until(b'\n', &mut line)
        .context("the trace")?
        > 0
    {
        take(line.trim_ascii_end())?;
        line.clear();
    }
    Ok(child.0.wait().context("waiting for valgrind")?.success())
}

/// All data accesses of a program, from its first instruction to its last, through the caches of
/// one core: what cachegrind counts, by which the model can be checked.
///
/// # Errors
/// The program can't be run, or fails.
pub fn of_program(program: &Path, words: &[String], caches: &Caches) -> Result<Counts, Error> {
    let mut system = System::new(caches, 1);
    let mut counts = Counts::default();
    let succeeded = each_line(program, words, &mut |line| {
        if let Line::Access {
            address,
            len,
            write,
        } = parse(line)
        {
            counts.add(system.access(0, address, len, write));
        }
        Ok(())
    })?;
    match succeeded {
        true => Ok(counts),
        false => Err(Error::Run(format!("{} failed", program.display()))),
    }
}

impl Traced {
    fn trace(&self) -> Result<Modelled, Error> {
        let program = std::env::current_exe().context("finding this program")?;
        let cores = self.configuration.threads;
        let mut machines = vec![Caches::opteron_275()];
        machines.extend(Caches::of_this_machine().ok());
        let mut observer = Observer::new(cores, machines, locate(program.clone()));
        let words = arguments(&self.settings, &self.configuration, self.payload, self.seed);
        let succeeded = each_line(&program, &words, &mut |line| {
            observer.line(line)?;
            let lines = observer.lines();
            if lines.is_multiple_of(LOOK) && Instant::now() > self.deadline {
                return Err(Error::Late(format!(
                    "out of time after {lines} lines of trace"
                )));
            }
            Ok(())
        })?;
        match observer.bytes() {
            Some(bytes) if succeeded => Ok(Modelled {
                cores,
                bytes,
                seed: self.seed,
                lines: observer.lines(),
                instructions: observer.instructions(),
                items: observer.items(),
                machines: observer.machines(),
            }),
            _ => Err(Error::Run(format!(
                "the traced run failed: {}",
                observer.said()
            ))),
        }
    }
}

fn locate(program: PathBuf) -> Locate {
    Box::new(move |there| {
        let here = perimeter_sync::virt::beacon::address() as u64;
        let mut places = Places::of_this_program(&program, here, there)?;
        Ok(Box::new(move |address| places.of(address)) as Locator)
    })
}

fn nanos(d: Duration) -> String {
    format!("{}ns", d.as_nanos())
}

/// This program's command line for a subject, as far as it heeds the settings.
pub fn arguments(
    settings: &Settings,
    configuration: &Configuration,
    payload: u64,
    seed: u64,
) -> Vec<String> {
    let mut words = vec![SUBJECT.to_string()];
    let mut add = |flag: &str, value: String| words.extend([flag.to_string(), value]);
    add("--org", configuration.organization.to_string());
    add("--conns", configuration.connections.to_string());
    add("--threads", settings.threads.to_string());
    add("--nics", settings.nics.to_string());
    add("--inbound", settings.inbound.to_string());
    add("--rtt", nanos(settings.rtt()));
    add("--mtu", settings.mtu.to_string());
    add("--write-size", settings.write_size.to_string());
    add("--buffer", settings.buffer.to_string());
    add("--coalescing", settings.coalescing.to_string());
    add("--locks", settings.locks.to_string());
    add("--offload", settings.offload.to_string());
    if let Some(gbps) = settings.link_gbps {
        add("--link-gbps", gbps.to_string());
    }
    add("--payload", payload.to_string());
    add("--seed", seed.to_string());
    if settings.family.is_ipv6() {
        words.push("--ipv6".into());
    }
    if !settings.stretch_acks {
        words.push("--no-stretch-acks".into());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_traced_is_refused() {
        use session::Backend as _;
        let mut settings = Settings::default();
        let linux = Configuration {
            organization: Organization::LINUX,
            connections: 6,
            threads: 2,
        };
        let mut backend = Backend::new(1);
        let error = backend
            .check(&settings, std::slice::from_ref(&linux))
            .unwrap_err();
        assert!(
            error.to_string().contains("organizations of ours"),
            "{error}"
        );
        settings.direction = Direction::Receive;
        let error = backend.check(&settings, &[]).unwrap_err();
        assert!(error.to_string().contains("only sending"), "{error}");
    }
}
