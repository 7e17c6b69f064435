//! Runs a configuration in a program that writes a trace, and reads it: a backend that models and
//! measures nothing.

use super::{
    instrumented,
    model::System,
    observer::{Locate, Locator, Observer},
    places::Places,
    subject::{self, Extent},
};
use crate::{
    Error, counted,
    error::Context as _,
    misses::{Counts, Modelled, geometry::Caches},
    organizations::Organization,
    session::{self, Session, Traits},
    workload::{Configuration, Device, Direction, SEGMENT, Sample, Settings},
};
use perimeter_sync::virt::trace::{Reader, Record};
use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The word of `perimeter-lab`'s command line that makes it the subject of a trace.
const SUBJECT: &str = "cache-subject";

/// Longest line that is looked at, bytes.
const LONGEST: u64 = 4096;
/// Lines of the program that are kept, to tell what went wrong.
const KEPT: usize = 12;
/// Longest time of one run.
const LIMIT: Duration = Duration::from_secs(3600);
/// How many records are read between two looks at the clock.
const LOOK: u64 = 1 << 20;

/// First guess of what a run takes besides its slot: the making of the stack, and the payload of
/// each connection.
pub fn first_guess(configuration: &Configuration) -> Duration {
    Duration::from_millis(500) + Duration::from_millis(4) * configuration.connections
}

/// The backend.
#[derive(Debug)]
pub struct Backend {
    /// Least payload while counting, bytes.
    payload: u64,
}

impl Backend {
    /// For runs that count while so many bytes of payload are sent, and a write on every fourth
    /// connection at least. Before that as much is sent that is not counted, and a write on each
    /// connection at least; and before that a window on each, by which slow start is over, that is
    /// not even traced.
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
        if settings.direction == Direction::Both || settings.udp.is_some() || settings.reconnect {
            return Err(Error::Unavailable(
                "only sending, receiving and exchanges over connections that stay can be traced"
                    .into(),
            ));
        }
        instrumented::available()
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

/// What a subject says besides its trace.
#[derive(Debug, Default)]
struct Said {
    /// From which sources it was built.
    sources: Option<String>,
    /// Payload that was acknowledged while counting.
    bytes: Option<u64>,
    /// How many items went from core to core while counting.
    moved: Vec<u64>,
    /// The last of all else.
    last: VecDeque<String>,
}

impl Said {
    fn hear(&mut self, line: &str) {
        if let Some(sources) = line.strip_prefix(subject::SOURCES) {
            self.sources = Some(sources.into());
        } else if let Some(bytes) = line.strip_prefix(subject::BYTES) {
            self.bytes = bytes.parse().ok();
        } else if let Some(moved) = line.strip_prefix(subject::MOVED) {
            let numbers = moved.split(' ').filter_map(|n| n.parse().ok());
            self.moved = numbers.collect();
        } else if !line.is_empty() {
            if self.last.len() == KEPT {
                self.last.pop_front();
            }
            self.last.push_back(line.into());
        }
    }

    /// All that it says, to its end.
    fn read(from: impl Read) -> Said {
        let mut said = Said::default();
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        // Bounded: a longer line is taken in pieces.
        while let Ok(1..) = (&mut from).take(LONGEST).read_until(b'\n', &mut line) {
            said.hear(String::from_utf8_lossy(&line).trim());
            line.clear();
        }
        said
    }
}

/// Runs a subject and hands on each record of its trace; what it said.
///
/// # Errors
/// It can't be run, fails, or is not of these sources; those of `take`.
fn each_record(
    program: &Path,
    words: &[String],
    take: &mut dyn FnMut(Record) -> Result<(), Error>,
) -> Result<Said, Error> {
    let mut command = Command::new(program);
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = Killed(command.spawn().context("starting a program to trace")?);
    let (Some(trace), Some(errors)) = (child.0.stdout.take(), child.0.stderr.take()) else {
        return Err(Error::Run("the traced program has no outputs".into()));
    };
    let said = thread::spawn(move || Said::read(errors));
    let mut reader = Reader::new(trace);
    while let Some(record) = reader.read().context("the trace")? {
        take(record)?;
    }
    let status = child.0.wait().context("waiting for the traced program")?;
    let said = said.join().unwrap_or_default();
    if !status.success() {
        let last: Vec<&str> = said.last.iter().map(|l| l.as_str()).collect();
        return Err(Error::Run(format!(
            "the traced run failed: {}",
            last.join(" ")
        )));
    }
    let own = perimeter_command::build().commit;
    if said.sources.as_deref() != Some(own.as_deref().unwrap_or_default()) {
        return Err(Error::Unavailable(
            "modelling cache misses needs the sources that this program was built from; those in \
             their place are others: build it again"
                .into(),
        ));
    }
    Ok(said)
}

/// All data accesses of a traced run of a subject through the caches of one core, as cachegrind
/// counts them: by that the model can be checked.
///
/// # Errors
/// The program can't be run, or fails.
pub fn on_one_core(program: &Path, words: &[String], caches: &Caches) -> Result<Counts, Error> {
    let mut system = System::new(caches, 1);
    let mut counts = Counts::default();
    each_record(program, words, &mut |record| {
        if let Record::Access {
            address,
            len,
            write,
            ..
        } = record
        {
            counts.add(system.access(0, address, len, write));
        }
        Ok(())
    })?;
    Ok(counts)
}

impl Traced {
    /// How much is sent.
    fn extent(&self) -> Extent {
        let each = |bytes: usize| u64::from(self.configuration.connections) * bytes as u64;
        Extent {
            untraced: each(self.settings.buffer),
            warm: self.payload.max(each(self.settings.write_size)),
            payload: self.payload.max(each(self.settings.write_size) / 4),
            all: false,
        }
    }

    fn trace(&self) -> Result<Modelled, Error> {
        let program = instrumented::this_program()?;
        let cores = self.configuration.threads;
        let mut machines = vec![Caches::opteron_275()];
        machines.extend(Caches::of_this_machine().ok());
        let mut observer = Observer::new(cores, machines, locate(program.clone()));
        let extent = self.extent();
        let words = arguments(&self.settings, &self.configuration, extent, self.seed);
        let said = each_record(&program, &words, &mut |record| {
            observer.take(record)?;
            let records = observer.records();
            if records.is_multiple_of(LOOK) && Instant::now() > self.deadline {
                return Err(Error::Late(format!(
                    "out of time after {records} records of the trace"
                )));
            }
            Ok(())
        })?;
        let Some(bytes) = said.bytes else {
            return Err(Error::Run("the traced run did not say what it sent".into()));
        };
        let modelled = Modelled {
            cores,
            bytes,
            seed: self.seed,
            records: observer.records(),
            items: observer.items(&said.moved),
            machines: observer.machines(),
        };
        match modelled.machines[0]
            .parts
            .iter()
            .any(|p| p.counts.accesses > 0)
        {
            true => Ok(modelled),
            false => Err(Error::Run(
                "no access of the traced run is from a known place: its program has no line tables"
                    .into(),
            )),
        }
    }
}

fn locate(program: PathBuf) -> Locate {
    Box::new(move |base| {
        let mut places = Places::of_program(&program, base)?;
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
    extent: Extent,
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
    add("--read-size", settings.read_size.to_string());
    add("--buffer", settings.buffer.to_string());
    add("--direction", settings.direction.to_string());
    add("--coalescing", settings.coalescing.to_string());
    add("--locks", settings.locks.to_string());
    add("--offload", settings.offload.to_string());
    if let Some(exchange) = settings.exchange {
        add("--exchange", exchange.to_string());
    }
    if let Some(gbps) = settings.link_gbps {
        add("--link-gbps", gbps.to_string());
    }
    add("--untraced", extent.untraced.to_string());
    add("--warm", extent.warm.to_string());
    add("--payload", extent.payload.to_string());
    add("--seed", seed.to_string());
    if settings.family.is_ipv6() {
        words.push("--ipv6".into());
    }
    if !settings.stretch_acks {
        words.push("--no-stretch-acks".into());
    }
    if settings.in_place {
        words.push("--in-place".into());
    }
    if settings.batch {
        words.push("--batch".into());
    }
    if extent.all {
        words.push("--all".into());
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
        settings.direction = Direction::Both;
        let error = backend.check(&settings, &[]).unwrap_err();
        assert!(error.to_string().contains("only sending"), "{error}");
    }

    #[test]
    fn what_is_said() {
        let mut text =
            String::from("perimeter-sources abc\nperimeter-bytes 4096\n\nthread panicked\n");
        text += "perimeter-moved 1 0 7\n";
        let said = Said::read(text.as_bytes());
        assert_eq!(said.sources.as_deref(), Some("abc"));
        assert_eq!((said.bytes, &said.moved[..]), (Some(4096), &[1, 0, 7][..]));
        assert_eq!(said.last, ["thread panicked"]);
        let many: String = (0..100).map(|i| format!("line {i}\n")).collect();
        let said = Said::read(many.as_bytes());
        assert_eq!(said.last.len(), KEPT);
        assert_eq!(said.last.back().unwrap(), "line 99");
    }

    #[test]
    fn each_connection_has_its_window_and_its_write() {
        let traced = |connections, payload| Traced {
            settings: Settings::default(),
            configuration: Configuration {
                organization: Organization::ours("up"),
                connections,
                threads: 1,
            },
            payload,
            seed: 1,
            deadline: Instant::now(),
        };
        let extent = |untraced, warm, payload| Extent {
            untraced,
            warm,
            payload,
            all: false,
        };
        let few = extent(6 << 18, 4_000_000, 4_000_000);
        assert_eq!(traced(6, 4_000_000).extent(), few);
        let many = extent(1 << 28, 1 << 26, 1 << 24);
        assert_eq!(traced(1024, 1).extent(), many);
    }
}
