//! One host: its stack, and the programs on it.

use super::runtime::Runtime;
use super::world::{Here, Known, World, enter};
use crate::error::{Result, What, panic_message};
use perimeter::{Config, Stack, TcpConfig, Virtual};
use perimeter_base::{Time, rng};
use perimeter_tokio::Net;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// A program, before it runs.
pub(super) type Program = Pin<Box<dyn Future<Output = Result>>>;

/// How a host's program is made.
pub(super) enum Software {
    /// Each time that the host starts. It is there to serve; the simulation does not wait for it.
    Host(Box<dyn Fn() -> Program>),
    /// Once. The simulation runs until it has ended.
    Client(Option<Program>),
}

/// Programs while they run.
struct Running {
    runtime: Runtime<Result>,
    /// When the runtime began.
    born: Time,
}

/// A stack while its host is up.
struct Up {
    here: Rc<Here>,
    queues: Vec<u16>,
    running: Option<Running>,
}

/// A host, up or not.
pub(super) struct Host {
    number: usize,
    pub(super) known: Known,
    software: Software,
    tcp: TcpConfig,
    up: Option<Up>,
    /// How often it has been started.
    starts: u64,
    /// A task may be able to run now.
    pub(super) ready: bool,
}

impl Host {
    pub(super) fn new(number: usize, known: Known, software: Software, tcp: TcpConfig) -> Host {
        Host {
            number,
            known,
            software,
            tcp,
            up: None,
            starts: 0,
            ready: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.is_some()
    }

    /// Whether the simulation has to wait for it.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.software, Software::Client(_)) && self.running().is_some()
    }

    fn running(&self) -> Option<&Running> {
        self.up.as_ref()?.running.as_ref()
    }

    /// Starts the host: a new stack, and its program.
    pub(super) fn start(&mut self, world: &Rc<World>) {
        assert!(self.up.is_none(), "`{}` is up already", self.known.name);
        self.starts += 1;
        let own = rng::mix(self.starts << 32 | self.number as u64);
        let seed = rng::mix(world.seed ^ own);
        let stack = stack(world, &self.known, seed, &self.tcp);
        let here = Rc::new(Here {
            world: world.clone(),
            host: self.number,
            net: Net::new(stack).with_resolver(world.names.clone()),
        });
        let program = match &mut self.software {
            Software::Host(make) => Some(enter(&here, make)),
            Software::Client(program) => program.take(),
        };
        let running = program.map(|program| Running {
            runtime: enter(&here, || Runtime::new(seed, || program)).expect("a runtime"),
            born: world.now(),
        });
        self.up = Some(Up {
            queues: here.net.stack().engine().queues(),
            here,
            running,
        });
        self.ready = true;
    }

    /// Power fails: whatever ran here is gone, and nobody is told.
    pub(super) fn crash(&mut self) {
        let Some(mut up) = self.up.take() else {
            return;
        };
        up.here.world.network.unplug(self.known.port);
        enter(&up.here, || drop(up.running.take()));
        up.here.net.stack().stop();
    }

    /// The program ends here, if it runs, and what it had open is closed; the stack goes on.
    pub(super) fn end_program(&mut self) {
        if let Some(up) = &mut self.up {
            enter(&up.here, || drop(up.running.take()));
        }
    }

    /// When its stack has something to do.
    pub(super) fn stack_due(&self) -> Time {
        self.up.as_ref().map_or(Time::NEVER, |up| {
            let arrival = up.here.world.network.next_arrival(self.known.port);
            arrival.min(up.here.net.stack().engine().next_due())
        })
    }

    /// Lets the stack do what is due at `now`, to which its programs have come.
    pub(super) fn drive(&mut self, now: Time) {
        let woken = |host: &Host| host.running().is_some_and(|r| r.runtime.is_local_woken());
        let before = woken(self);
        let Some(up) = &self.up else { return };
        enter(&up.here, || {
            let engine = up.here.net.stack().engine();
            engine.drive(&up.queues).expect("the stack's own thread");
        });
        let news = !before && woken(self);
        debug_assert!(!news || self.clock() <= Some(now), "it went too far ahead");
        self.ready |= self.running().is_some_and(|r| r.runtime.is_woken());
    }

    /// Until when its programs have run; `None` if there are none.
    pub(super) fn clock(&self) -> Option<Time> {
        let r = self.running()?;
        Some(r.born.plus(crate::link::nanos(r.runtime.age())))
    }

    /// Lets its programs' time pass until one of them has something to do, but at most until
    /// `until`.
    pub(super) fn advance(&mut self, until: Time) {
        if let Some(up) = &self.up
            && let Some(r) = &up.running
        {
            enter(&up.here, || r.runtime.advance(until.since(r.born)));
            self.ready |= r.runtime.is_woken();
        }
    }

    /// Lets its programs run until none can any more.
    pub(super) fn run(&mut self) -> std::result::Result<(), What> {
        let Some(up) = &mut self.up else {
            return Ok(());
        };
        let Some(r) = &mut up.running else {
            return Ok(());
        };
        let ended = enter(&up.here, || {
            r.runtime.run();
            r.runtime.ended()
        });
        let Some(result) = ended else {
            return Ok(());
        };
        self.end_program();
        let host = self.known.name.clone();
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(What::Program {
                host,
                error: error.to_string(),
            }),
            Err(panic) => Err(What::Panic {
                host,
                message: match panic.try_into_panic() {
                    Ok(payload) => panic_message(&*payload),
                    Err(error) => error.to_string(),
                },
            }),
        }
    }

    /// What is left in its stack.
    pub(super) fn left(&self) -> Vec<String> {
        let Some(up) = &self.up else {
            return Vec::new();
        };
        let name = &self.known.name;
        let of = |c: &perimeter::ConnInfo| crate::error::left(name, c);
        let mut left: Vec<String> = up.here.net.stack().connections().iter().map(of).collect();
        if let Err(what) = up.here.net.stack().engine().quiescent() {
            left.push(format!("`{name}`: {what}"));
        }
        left
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.crash();
    }
}

/// A stack of one thread at that host's place in the network.
fn stack(world: &World, known: &Known, seed: u64, tcp: &TcpConfig) -> Stack {
    let platform = Virtual::by_clock(seed, world.clock.clone());
    let mtu = 1500;
    let plug = world.network.plug(&platform, known.port, &known.name, mtu);
    let own = match known.addr.is_ipv4() {
        true => format!("{}/32", known.addr),
        false => format!("{}/128", known.addr),
    };
    let everywhere = if known.addr.is_ipv4() {
        "0.0.0.0/0"
    } else {
        "::/0"
    };
    let config = Config::default()
        .with_tcp(tcp.clone())
        // Who crashes waits for nobody, and nothing else ends a stack here.
        .with_drain(std::time::Duration::ZERO);
    Stack::builder()
        .on_virtual(platform)
        .organization("up")
        .and_then(|b| b.config(config).interface(plug, &[&own]))
        .and_then(|b| b.route(everywhere, None, 0))
        .and_then(perimeter::Builder::build)
        .unwrap_or_else(|e| panic!("`{}`: {e}", known.name))
}
