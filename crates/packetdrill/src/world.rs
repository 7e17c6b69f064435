//! A stack of any organization on virtual cores, with a script at the other end of its device.
//!
//! Everything runs inside the simulation, and the simulation runs only while somebody calls into
//! it. Organizations with threads of their own get them: an inbound thread that the device
//! wakes, and a fresh virtual thread for each call. `up` has one thread by definition, so calls
//! and packets go to one virtual thread that stands for the application, which serves the device
//! whenever it has nothing else to do.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use perimeter_base::Time;
use perimeter_link::script::{ScriptDevice, ScriptHandle, script};
use perimeter_org::{Engine, Inbound, OrgSpec};
use perimeter_stack::{Cidr, Config, IfaceSpec, Offload, Route};
use perimeter_sync::virt::{Embedded, Schedule, Virtual, VirtualConfig};
use perimeter_sync::{Event, Platform};
use perimeter_tcp::Config as TcpConfig;

use crate::backend::Emitted;
use crate::flags::Flags;

/// How long the stack's own threads sleep without looking around. Packets wake them, and
/// [`World::advance`] sees to timers, so it would only be another event for the clock to stop at.
const LOOK_AROUND: Duration = Duration::from_secs(3600);

/// Where the thread is that looks after timers.
const CORE: usize = 0;

type Job = Box<dyn FnOnce(&dyn Engine) + Send>;

/// The one thread of an organization that has one.
struct Application {
    jobs: Mutex<VecDeque<Job>>,
    work: <Virtual as Platform>::Event,
}

/// The simulation.
pub struct World {
    embedded: Embedded,
    /// Never dropped: stopping joins threads, which takes virtual time that nobody would let
    /// pass. The simulation's end unwinds them.
    engine: ManuallyDrop<Arc<dyn Engine>>,
    script: ScriptHandle<Virtual>,
    application: Option<Arc<Application>>,
}

impl World {
    /// Opens the stack that `flags` describe, its connections made with `tcp`.
    pub fn new(flags: &Flags, tcp: TcpConfig) -> Result<World, String> {
        let org: OrgSpec = flags.org.parse().map_err(|e| format!("{e}"))?;
        let embedded = Embedded::new(
            VirtualConfig::default()
                .with_seed(flags.seed)
                .with_cores(usize::from(flags.cores))
                .with_schedule(Schedule::Time { jitter_percent: 0 })
                .with_max_time(Time::NEVER),
        );
        let platform = embedded.platform();
        let (device, script) = script(&platform, "script", flags.mtu);
        let (application, engine) = if org.single_threaded() {
            let (application, engine) = start_application(&embedded, org, flags, tcp, device);
            (Some(application), engine)
        } else {
            let flags = flags.clone();
            let make = move || make(platform, org, &flags, tcp, device);
            (None, embedded.call(make))
        };
        embedded.settle();
        Ok(World {
            embedded,
            engine: ManuallyDrop::new(engine),
            script,
            application,
        })
    }

    /// What connections are made with unless told otherwise.
    pub fn tcp_config(&self) -> TcpConfig {
        self.engine.tcp_config()
    }

    /// The virtual time.
    pub fn now(&self) -> Time {
        self.embedded.now()
    }

    /// When somebody inside wants to be woken at the latest, or a timer is due.
    pub fn next_deadline(&self) -> Option<Time> {
        let at = self.embedded.next_deadline().unwrap_or(Time::NEVER);
        Some(at.min(self.next_due())).filter(|&at| at < Time::NEVER)
    }

    /// The earliest timer. A thread that sleeps until a packet comes does not learn of timers
    /// that another thread arms meanwhile: it looks around now and then, which would be late by
    /// scripts' standards.
    ///
    /// What is due, and who may run it, can depend on the core: a thread that does both does them
    /// on one.
    fn next_due(&self) -> Time {
        if self.application.is_some() {
            return Time::NEVER;
        }
        let engine = Arc::clone(&self.engine);
        self.embedded.call_on(CORE, move || engine.next_due())
    }

    /// Lets time pass until `to`, with everything that is due.
    pub fn advance(&self, to: Time) {
        self.embedded.advance_to(to);
        self.embedded.settle();
        if self.next_due() <= to {
            // What an application thread does that polls without serving a queue.
            let engine = Arc::clone(&self.engine);
            // An organization with threads takes anybody's.
            let _ = self.embedded.call_on(CORE, move || engine.drive(&[]));
            self.embedded.settle();
        }
    }

    /// Runs `f` on the stack, and all that follows from it.
    pub fn call<R: Send + 'static>(&self, f: impl FnOnce(&dyn Engine) -> R + Send + 'static) -> R {
        let Some(application) = &self.application else {
            let engine = Arc::clone(&self.engine);
            let out = self.embedded.call(move || f(&*engine));
            self.embedded.settle();
            return out;
        };
        let slot = Arc::new(Mutex::new(None));
        let fill = slot.clone();
        let job: Job = Box::new(move |engine| {
            let out = f(engine);
            *lock(&fill) = Some(out);
        });
        let application = application.clone();
        self.embedded.call(move || {
            lock(&application.jobs).push_back(job);
            application.work.set();
        });
        self.embedded.settle();
        let out = lock(&slot).take();
        match out {
            Some(out) => out,
            None => panic!(
                "the stack's thread has ended: {}",
                self.embedded
                    .failure()
                    .map_or_else(|| "no failure known".to_owned(), |f| f.to_string())
            ),
        }
    }

    /// A packet arrives.
    pub fn inject(&self, packet: &[u8]) {
        let (script, packet, now) = (self.script.clone(), packet.to_vec(), self.now());
        self.call(move |_| script.inject(now, &packet));
    }

    /// The oldest packet that the stack sent and nobody took.
    pub fn take_packet(&self) -> Option<Emitted> {
        let script = self.script.clone();
        let sent = self.embedded.call(move || script.next())?;
        Some(Emitted {
            packet: sent.bytes,
            at: sent.at,
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread that owns a stack of one thread, and waits until there is the stack.
fn start_application(
    embedded: &Embedded,
    org: OrgSpec,
    flags: &Flags,
    tcp: TcpConfig,
    device: ScriptDevice<Virtual>,
) -> (Arc<Application>, Arc<dyn Engine>) {
    let platform = embedded.platform();
    let application = Arc::new(Application {
        jobs: Mutex::default(),
        work: platform.event(),
    });
    let made: Arc<OnceLock<Arc<dyn Engine>>> = Arc::default();
    let (mine, tell, flags) = (application.clone(), made.clone(), flags.clone());
    let body = move || {
        let engine = tell.get_or_init(|| make(platform, org, &flags, tcp, device));
        let queues = engine.queues();
        loop {
            let job = lock(&mine.jobs).pop_front();
            if let Some(job) = job {
                job(&**engine);
            }
            while engine.drive(&queues).is_ok_and(|frames| frames > 0) {}
            if lock(&mine.jobs).is_empty() {
                mine.work.wait(engine.next_due());
            }
        }
    };
    let spawner = embedded.platform();
    embedded.call(move || drop(spawner.spawn("application", Some(0), Box::new(body))));
    embedded.settle();
    let engine = made.get().cloned();
    (application, engine.expect("the stack's thread made none"))
}

fn make(
    platform: Virtual,
    org: OrgSpec,
    flags: &Flags,
    tcp: TcpConfig,
    device: ScriptDevice<Virtual>,
) -> Arc<dyn Engine> {
    let addr = Cidr {
        addr: IpAddr::V4(flags.ipv4),
        prefix: flags.prefix,
    };
    let everywhere = Cidr {
        addr: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        prefix: 0,
    };
    let options = perimeter_org::Options {
        profiling: None,
        org,
        config: Config::default()
            .with_tcp(tcp)
            // Scripts tell every segment; whoever cuts, the wire has the same.
            .with_offload(Offload::Off)
            .with_service(LOOK_AROUND),
        ifaces: vec![IfaceSpec {
            device: Box::new(device),
            addrs: vec![addr],
            accept: perimeter_stack::net::Accept::Own,
            dhcp: None,
        }],
        routes: vec![Route {
            dst: everywhere,
            iface: 0,
            via: flags.gateway.map(IpAddr::V4),
        }],
        inbound: Inbound::Thread,
    };
    perimeter_virtual::open(platform, options)
}
