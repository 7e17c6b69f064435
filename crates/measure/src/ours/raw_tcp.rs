//! The row `null:tcp`: what a device of the host leaves to a stack where the kernel's TCP is at the
//! other end. A loop that does the least which that TCP needs ([`RawTcp`]) takes a stack's place.
//!
//! Beside `null`, whose frames the kernel drops at its first look, it has the kernel's work for
//! each frame within the loop's system calls, as rows of stacks have it.

use super::{kernel::Interfaces, raw};
use crate::{
    Error, host,
    linux::{
        self, Job,
        sockets::{self, Worksite},
        veth::{self, Namespace},
    },
    session::{Backend, Session, Traits, Workers},
    workload::{
        Configuration, Content, Control, Direction, FILE_SIZE, Phase, Sample, Settings, Tally,
        Times,
    },
};
use perimeter::{
    Native,
    link::{
        self,
        raw::{RawEnd, RawTcp},
    },
};
use perimeter_sync::{Event, Platform};
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long the loop looks for frames before it sleeps until some come.
const SPIN: Duration = Duration::from_micros(20);
/// Longest sleep. Frames end it; that the run enters its next phase does not.
const NAP: Duration = Duration::from_millis(1);
/// Longest time until a connection is open.
const PATIENCE: Duration = Duration::from_secs(10);

/// The backend of the row `null:tcp`.
#[derive(Debug, Default)]
pub struct RawLoop;

impl Backend for RawLoop {
    fn check(
        &mut self,
        settings: &Settings,
        configurations: &[Configuration],
    ) -> Result<(), Error> {
        sockets::allow_all(configurations)?;
        raw::check(settings)
    }

    fn traits(&self, settings: &Settings, _: &Configuration) -> Traits {
        let device = settings.device;
        Traits {
            device: device.to_string(),
            inbound: "none".into(),
            comparable: false,
            notes: vec![format!(
                "null:tcp: what {device} carries between the kernel's TCP and a loop that only \
                 counts and acknowledges, on one queue and one thread; compare CPU, too"
            )],
        }
    }

    fn prepare(
        &mut self,
        settings: &Settings,
        configuration: &Configuration,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        let (interfaces, device) = raw::one(settings)?;
        let end = RawEnd {
            address: veth::near_address(0),
            station: raw::station(&interfaces, settings.device, device.capabilities().medium)?,
            window: settings.buffer as u32,
        };
        let namespace = interfaces.namespace.clone();
        let job = Job::new(false)?;
        let (_, roles) = linux::roles(settings);
        let (near, far) = sockets::sides(vec![0; configuration.connections as usize], 1);
        let site = Worksite {
            namespace: Some(namespace.clone()),
            options: sockets::Options::of(settings),
            deadline,
        };
        let make = move |control: &Control| far.establish(&site, control);
        let peer = job.worker(roles, None, make);
        let sends = settings.direction == Direction::Send;
        let here = Box::new(move |control: &Control, set: &dyn Fn()| {
            host::pin(0);
            let mut carried = Carried::new(device, &end, sends)?;
            carried.establish(near, control)?;
            set();
            Ok(carried.run(control))
        });
        Ok(Box::new(RawSession {
            workers: Workers::start(vec![("app-0".into(), here), ("peer-0".into(), peer)])?,
            _file: job.file,
            namespace,
            _interfaces: interfaces,
        }))
    }
}

/// The loop.
struct Carried {
    raw: RawTcp,
    sends: bool,
    platform: Native,
    event: <Native as Platform>::Event,
    /// Since when it has found nothing to do.
    idle: Option<Instant>,
}

impl Carried {
    fn new(device: Box<dyn link::Device>, end: &RawEnd, sends: bool) -> Result<Carried, Error> {
        let content = Content::new(FILE_SIZE);
        let raw = RawTcp::new(device, end, content.bytes());
        let raw = raw.ok_or_else(|| Error::Run("the device has no queue".into()))?;
        let platform = Native::default();
        Ok(Carried {
            raw,
            sends,
            event: platform.event(),
            platform,
            idle: None,
        })
    }

    /// Opens all connections, one after another: the other end accepts them in that order.
    fn establish(&mut self, near: sockets::Near, control: &Control) -> Result<(), Error> {
        let Ok(listening) = near.listening.recv() else {
            return Err(sockets::give_up(control));
        };
        for (k, nic) in near.nics.iter().enumerate() {
            let listener = near.listener(k, *nic);
            let SocketAddr::V4(to) = listening[listener] else {
                return Err(Error::Run("a listener that is not of IPv4".into()));
            };
            if !self.raw.add(to) {
                return Err(Error::Run(format!("no port is left for connection {k}")));
            }
            let since = Instant::now();
            while self.raw.open() <= k {
                if since.elapsed() > PATIENCE {
                    return Err(Error::Late(format!("nobody has answered connection {k}")));
                }
                self.turn(false);
            }
            if near.connected.send(listener).is_err() {
                return Err(sockets::give_up(control));
            }
        }
        Ok(())
    }

    /// One turn; sleeps if there has been nothing to do for some time.
    fn turn(&mut self, sends: bool) {
        if self.raw.turn(self.platform.now(), sends) > 0 {
            self.idle = None;
            return;
        }
        let since = *self.idle.get_or_insert_with(Instant::now);
        if since.elapsed() < SPIN {
            return std::hint::spin_loop();
        }
        let now = self.platform.now();
        if let Some(fd) = self.raw.sleeps_on(now) {
            self.event.wait_fds(&[fd], now + NAP);
        }
    }

    fn run(&mut self, control: &Control) -> Tally {
        let mut from = self.count();
        let mut counting = false;
        loop {
            match control.phase() {
                Phase::Stop => break,
                Phase::Measure if !counting => {
                    counting = true;
                    from = self.count();
                    control.begins_to_count();
                }
                _ => {}
            }
            self.turn(self.sends);
        }
        self.count().since(from, !self.sends)
    }

    fn count(&self) -> Count {
        Count {
            at: Instant::now(),
            cpu: host::thread_cpu_ns(),
            delay: host::Scheduled::here().delay_ns,
            octets: self.raw.octets().collect(),
        }
    }
}

/// What the loop has done up to some moment.
struct Count {
    at: Instant,
    cpu: u64,
    delay: u64,
    /// Of each connection: octets that the other end has acknowledged, and octets that it sent.
    octets: Vec<(u64, u64)>,
}

impl Count {
    fn since(&self, from: Count, sink: bool) -> Tally {
        let each = || self.octets.iter().zip(&from.octets);
        Tally {
            elapsed_ns: self.at.duration_since(from.at).as_nanos() as u64,
            cpu_ns: self.cpu - from.cpu,
            delay_ns: self.delay - from.delay,
            sent: each().map(|(now, then)| now.0 - then.0).collect(),
            received: each().map(|(now, then)| now.1 - then.1).collect(),
            sink,
            ..Tally::default()
        }
    }
}

/// The workers come first: their threads have ended before what they share is dropped.
struct RawSession {
    workers: Workers,
    _file: Arc<rustix::fd::OwnedFd>,
    namespace: Arc<Namespace>,
    _interfaces: Interfaces,
}

impl Session for RawSession {
    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.workers.run(Phase::Warm, time)
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let s = &mut *self;
        let (window, retransmits) = s.workers.measure(time, || s.namespace.retransmits())?;
        let tallies = self.workers.finish()?;
        let times = Times::of(&tallies[..1]);
        Ok(Sample {
            retransmits,
            ..Sample::received(&tallies, window, tallies.len(), times)
        })
    }
}
