//! What one send does under an organization, step by step: the locks that it takes, the layers
//! that it runs in, the threads that it wakes. Recorded from the stack's own code on virtual cores,
//! where every lock is seen and nothing else happens meanwhile.

mod order;

pub use order::{Agreement, compare};

use crate::{Error, workload::SEGMENT};
use perimeter::{
    Guards, LockClass, OrgSpec, Platform, Stack, Virtual, Work,
    link::mem::{Nic, NicConfig},
    virt::{Act, Entry, VirtualConfig},
};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, fmt::Write as _, io::Write as _, time::Duration};

/// Round trip of the peer, ns: its acknowledgment comes long after the send.
const RTT: u64 = 100_000_000;
/// For how long what others do for the send is recorded, ns: less than the round trip.
const AFTER: u64 = 5_000_000;

/// The layers of the paper's figure, and the device below them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Calls and buffers.
    Socket,
    /// The protocol, and the tables that lead to its connections.
    Tcp,
    /// Routes.
    Ip,
    /// Rings and doorbells.
    Driver,
}

impl Layer {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Socket => "socket",
            Layer::Tcp => "TCP",
            Layer::Ip => "IP, route",
            Layer::Driver => "driver",
        }
    }
}

/// What happens in a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// Takes this lane's lock.
    Take(usize),
    /// Gives it back.
    Release(usize),
    /// Runs a part of the protocol.
    Work(String),
    /// Wakes this thread, or sets an event for which nobody sleeps.
    Wake(Option<usize>),
    /// Falls asleep.
    Park,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Index of the thread.
    pub thread: usize,
    /// In which layer.
    pub layer: Layer,
    /// What.
    pub doing: Doing,
}

/// A send, recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The organization.
    pub org: String,
    /// Names of the threads; the first one calls.
    pub threads: Vec<String>,
    /// The locks in the order in which they are met: class, and number within the class from 1.
    pub locks: Vec<(String, usize)>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Takings of innermost locks of the platform, which are left out.
    pub innermost: usize,
}

impl Trace {
    /// Takings and returns by class, `+sndbuf` and `-sndbuf`, in order.
    pub fn locking(&self) -> Vec<String> {
        let one = |s: &Step| match s.doing {
            Doing::Take(lane) => Some(format!("+{}", self.locks[lane].0)),
            Doing::Release(lane) => Some(format!("-{}", self.locks[lane].0)),
            _ => None,
        };
        self.steps.iter().filter_map(one).collect()
    }

    /// A lock's name; with its number where there are several of its class.
    pub fn lock(&self, lane: usize) -> String {
        let (class, number) = &self.locks[lane];
        match self.locks.iter().filter(|l| l.0 == *class).count() {
            1 => class.clone(),
            _ => format!("{class} {number}"),
        }
    }

    /// A step in words.
    pub fn words(&self, step: &Step) -> String {
        match &step.doing {
            Doing::Take(lane) => format!("take {}", self.lock(*lane)),
            Doing::Release(lane) => format!("release {}", self.lock(*lane)),
            Doing::Work(name) => name.replace('_', " "),
            Doing::Wake(Some(thread)) => format!("wake {}", self.threads[*thread]),
            Doing::Wake(None) => "set an event".into(),
            Doing::Park => "sleep".into(),
        }
    }

    /// A line for each step: thread, layer, and what, indented by the locks that are held.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let width = self.threads.iter().map(String::len).max().unwrap_or(0);
        let mut held = vec![0usize; self.threads.len()];
        for s in &self.steps {
            if matches!(s.doing, Doing::Release(_)) {
                held[s.thread] = held[s.thread].saturating_sub(1);
            }
            let _ = writeln!(
                out,
                "{:width$}  {:9}  {:indent$}{}",
                self.threads[s.thread],
                s.layer.name(),
                "",
                self.words(s),
                indent = 2 * held[s.thread],
            );
            held[s.thread] += usize::from(matches!(s.doing, Doing::Take(_)));
        }
        out
    }
}

/// Records one send of a full segment under `org`, over a connection on which nothing is under
/// way.
///
/// # Errors
/// The simulation failed; or the send did.
pub fn record(org: &OrgSpec) -> Result<Trace, Error> {
    let name = org.to_string();
    let failed = |what: String| Error::Run(format!("{name}: {what}"));
    let cfg = VirtualConfig::default().with_cores(2);
    let spec = org.clone();
    let run = Virtual::run(cfg, move |p| send(&p, spec));
    let sent = match run {
        Ok((sent, _)) => sent.map_err(failed)?,
        Err(f) => return Err(failed(f.to_string())),
    };
    let mut reader = Reader::new(name, sent.caller);
    sent.call.iter().for_each(|e| reader.read(e));
    // What the caller does from here on is not the send's.
    let others = sent.after.iter().filter(|e| e.lane != sent.caller);
    others.for_each(|e| reader.read(e));
    Ok(reader.trace)
}

/// What was recorded of a send: while the call ran, and of what others did for it afterwards.
struct Sent {
    caller: usize,
    call: Vec<Entry>,
    after: Vec<Entry>,
}

/// Runs the send on virtual cores.
fn send(p: &Virtual, org: OrgSpec) -> Result<Sent, String> {
    let mut config = NicConfig::new(0);
    config.peer.rtt_ns = RTT;
    let address = format!("{}/{}", config.host, config.prefix);
    let (nic, _peer) = Nic::new(p, config);
    // Nobody looks around for want of anything else to do.
    let settings = perimeter::Config::default().with_service(Duration::from_secs(1000));
    let built = Stack::builder().on_virtual(p.clone()).org(org);
    let built = built.config(settings);
    let built = built.interface(nic, &[&address]);
    let stack = built.and_then(perimeter::Builder::build);
    let stack = stack.map_err(|e| e.to_string())?;
    let run = || -> std::io::Result<Sent> {
        let mut c = stack.connect("10.1.0.2:80")?;
        c.set_nodelay(true)?;
        pass(p, &stack)?;
        p.record();
        c.write_all(&[7; SEGMENT as usize])?;
        let call = p.recorded();
        p.record();
        pass(p, &stack)?;
        let after = p.recorded();
        Ok(Sent {
            caller: p.lane(),
            call,
            after,
        })
    };
    let sent = run().map_err(|e| e.to_string());
    stack.stop();
    sent
}

/// Time passes; a stack of one thread is served by this one.
fn pass(p: &Virtual, stack: &Stack) -> std::io::Result<()> {
    if stack.organization().single_threaded() {
        stack.drive()?;
    }
    p.sleep_until(p.now().plus(AFTER));
    Ok(())
}

/// A thread that does something for the send.
struct Actor {
    lane: usize,
    layer: Layer,
    held: Vec<LockClass>,
    /// Woken for it, and not asleep again.
    awake: bool,
}

/// Makes steps of what was recorded: of the caller, and of whom it wakes until they sleep again.
struct Reader {
    trace: Trace,
    actors: Vec<Actor>,
    /// Lane of each lock, by its number.
    lanes: HashMap<u32, usize>,
}

impl Reader {
    fn new(org: String, caller: usize) -> Reader {
        Reader {
            trace: Trace {
                org,
                threads: vec!["caller".into()],
                locks: Vec::new(),
                steps: Vec::new(),
                innermost: 0,
            },
            actors: vec![Actor {
                lane: caller,
                layer: Layer::Socket,
                held: Vec::new(),
                awake: true,
            }],
            lanes: HashMap::new(),
        }
    }

    fn read(&mut self, e: &Entry) {
        // A thread that was woken has no lane here before its first act.
        let named = |(i, a): (usize, &Actor)| {
            let mine =
                a.lane == e.lane || (a.lane == usize::MAX && self.trace.threads[i] == *e.thread);
            (mine && a.awake).then_some(i)
        };
        let found = self.actors.iter().enumerate().find_map(named);
        // Protocol threads have nothing else to do, and may be awake already.
        let own = || {
            e.thread
                .starts_with("protocol-")
                .then(|| self.wake(&e.thread))
        };
        let Some(thread) = found.or_else(own) else {
            return;
        };
        self.actors[thread].lane = e.lane;
        let doing = match &e.act {
            Act::Lock { class, id } => self.take(thread, *class, *id),
            Act::Unlock { class, id } => self.release(thread, *class, *id),
            Act::Work { work, .. } => {
                if let Some(layer) = layer_of_work(*work) {
                    self.actors[thread].layer = layer;
                }
                Some(Doing::Work(work.name().into()))
            }
            // The device's own, towards whoever serves it.
            Act::Set { .. } if self.actors[thread].held.contains(&LockClass::NicTx) => None,
            Act::Set { woke, .. } => {
                let woken = woke.as_ref().map(|name| self.wake(name));
                Some(Doing::Wake(woken))
            }
            Act::Wait { .. } => {
                self.actors[thread].awake = thread == 0;
                Some(Doing::Park)
            }
            // Seen as the sleeper's own next step; or a detail of waiting.
            Act::Woken { .. } | Act::Took { .. } | Act::LockWait { .. } | Act::LockAgain { .. } => {
                None
            }
        };
        if let Some(doing) = doing {
            let layer = self.actors[thread].layer;
            self.trace.steps.push(Step {
                thread,
                layer,
                doing,
            });
        }
    }

    /// The thread of that name, awake from now on.
    fn wake(&mut self, name: &str) -> usize {
        let known = self.trace.threads.iter().position(|t| t == name);
        // The caller's own name is that of the simulation's first thread.
        let thread = match (known, name) {
            (Some(i), _) => i,
            (None, "main") => 0,
            (None, _) => {
                self.trace.threads.push(name.into());
                self.actors.push(Actor {
                    lane: usize::MAX,
                    layer: Layer::Socket,
                    held: Vec::new(),
                    awake: true,
                });
                self.actors.len() - 1
            }
        };
        self.actors[thread].awake = true;
        thread
    }

    fn take(&mut self, thread: usize, class: LockClass, id: Option<u32>) -> Option<Doing> {
        // A lock without number excludes nobody.
        let id = id?;
        if class == LockClass::Leaf {
            self.trace.innermost += 1;
            return None;
        }
        let locks = &mut self.trace.locks;
        let lane = *self.lanes.entry(id).or_insert_with(|| {
            let number = 1 + locks.iter().filter(|l| l.0 == class.name()).count();
            locks.push((class.name().into(), number));
            locks.len() - 1
        });
        let actor = &mut self.actors[thread];
        if let Some(layer) = layer_of_lock(class, &actor.held) {
            actor.layer = layer;
        }
        actor.held.push(class);
        Some(Doing::Take(lane))
    }

    fn release(&mut self, thread: usize, class: LockClass, id: Option<u32>) -> Option<Doing> {
        let lane = *self.lanes.get(&id?)?;
        let actor = &mut self.actors[thread];
        if let Some(i) = actor.held.iter().rposition(|c| *c == class) {
            actor.held.remove(i);
        }
        if let Some(layer) = layer_of_lock(class, &actor.held) {
            actor.layer = layer;
        }
        Some(Doing::Release(lane))
    }
}

/// The layer that a thread is in when it takes or returns a lock, by the lock and by what it holds
/// besides; `None`: as before.
fn layer_of_lock(class: LockClass, held: &[LockClass]) -> Option<Layer> {
    let tcp = |g: Guards| g.is_shared() || g.is_around_tcp();
    Some(match class.guards()? {
        Guards::Ip => Layer::Ip,
        Guards::Driver => Layer::Driver,
        Guards::Socket if !held.iter().any(|c| c.guards().is_some_and(tcp)) => Layer::Socket,
        _ => Layer::Tcp,
    })
}

fn layer_of_work(work: Work) -> Option<Layer> {
    use perimeter::WorkLayer;
    match (work, work.layer()) {
        (Work::Doorbell | Work::Peer | Work::PeerBytes, _) => Some(Layer::Driver),
        (_, Some(WorkLayer::Socket)) => Some(Layer::Socket),
        (_, Some(WorkLayer::Tcp)) => Some(Layer::Tcp),
        (_, Some(WorkLayer::Ip)) => Some(Layer::Ip),
        (_, None) => None,
    }
}

#[cfg(test)]
mod tests;
