//! What a device of the host carries each way without a stack, by the same system calls as with
//! one: the row `null` beside its rows.
//!
//! To send, frames of TCP go to a host that is not there: the kernel drops them at its first look.
//! To receive, packet sockets at the kernel's end of the link send them as fast as they can.

use super::kernel::{Interfaces, far_name};
use crate::{
    Error,
    error::Context as _,
    host,
    linux::veth::{far_address, near_address},
    session::{Session, Window},
    workload::{
        Configuration, Device, Direction, Sample, Settings, Times, sample::disturbances,
        settings::SEGMENT,
    },
};
use perimeter::{
    Native, Offload,
    link::{
        self, Capabilities, Queues, host as interface,
        packet::{Packet, PacketConfig},
        raw::{self, RawFlow, RawReport},
    },
};
use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Octets of a segment's headers: IPv4, and TCP with timestamps.
const HEADERS: u32 = 52;

/// What the row says.
pub(super) fn notes(settings: &Settings) -> Vec<String> {
    let device = settings.device;
    vec![format!(
        "null: what {device} carries without TCP, by the same system calls, on one queue and one \
         thread; no row of {device} can exceed it by much"
    )]
}

/// Makes the device and, to receive, who sends.
///
/// # Errors
/// What can't be had.
pub(super) fn prepare(
    settings: &Settings,
    configuration: &Configuration,
) -> Result<Box<dyn Session>, Error> {
    let (kind, large) = (settings.device, settings.offload == Offload::Device);
    let (interfaces, device) = one(settings)?;
    let device = Opened::new(device);
    let mac = station(&interfaces, kind, device.is.medium)?;
    let sender = match settings.direction {
        Direction::Receive => Some(interfaces.namespace.within(|| {
            let config = PacketConfig::new(&far_name(kind, 0)).with_large(large);
            let packet = Packet::open(&config).map_err(|e| Error::Unavailable(e.to_string()))?;
            Ok(Opened::new(Box::new(packet)))
        })?),
        _ => None,
    };
    // A neighbour of the kernel's that is not there.
    let nobody = Ipv4Addr::from_bits(far_address(0).to_bits() + 50);
    let here = (near_address(0), device.is.mac);
    let flow = match &sender {
        Some(s) => RawFlow {
            from: (nobody, s.is.mac),
            to: here,
            segment: (settings.mtu - HEADERS) as u16,
        },
        None => RawFlow {
            from: here,
            to: (nobody, mac),
            segment: (settings.mtu - HEADERS) as u16,
        },
    };
    Ok(Box::new(RawSession {
        device,
        sender,
        flow,
        threads: configuration.threads,
        _interfaces: interfaces,
    }))
}

/// A device of one queue, and what it needs.
pub(super) fn one(settings: &Settings) -> Result<(Interfaces, Box<dyn link::Device>), Error> {
    let (large, link) = (
        settings.offload == Offload::Device,
        (settings.mtu, settings.family),
    );
    let mut interfaces = Interfaces::make(settings.device, 1, 1, link, large)?;
    match interfaces.devices.pop() {
        Some(device) => Ok((interfaces, device)),
        None => Err(Error::Run("no device".into())),
    }
}

/// Link-layer address of the kernel's end of the first NIC.
pub(super) fn station(
    interfaces: &Interfaces,
    kind: Device,
    medium: link::Medium,
) -> Result<link::MacAddr, Error> {
    interfaces.namespace.within(|| match medium {
        link::Medium::Ethernet => interface::mac(&far_name(kind, 0)).context("reading an address"),
        link::Medium::Ip => Ok(link::MacAddr::default()),
    })
}

/// A device that was taken apart.
struct Opened {
    is: Capabilities,
    queues: Queues,
}

impl Opened {
    fn new(device: Box<dyn link::Device>) -> Opened {
        Opened {
            is: device.capabilities(),
            queues: device.open(),
        }
    }

    fn send(&mut self, flow: &RawFlow, done: impl FnMut() -> bool) -> RawReport {
        match self.queues.1.first_mut() {
            Some(tx) => raw::send(&Native::default(), &mut **tx, &self.is, flow, done),
            None => RawReport::default(),
        }
    }

    fn receive(&mut self, flow: &RawFlow, done: impl FnMut() -> bool) -> RawReport {
        let (platform, segment) = (Native::default(), flow.segment);
        match self.queues.0.first_mut() {
            Some(rx) => raw::receive(&platform, &mut **rx, &self.is, segment, done),
            None => RawReport::default(),
        }
    }
}

/// The device comes first: its interface goes with the namespace.
struct RawSession {
    device: Opened,
    sender: Option<Opened>,
    flow: RawFlow,
    threads: usize,
    _interfaces: Interfaces,
}

/// What the thread at the device did.
struct Done {
    report: RawReport,
    elapsed: Duration,
    scheduled: host::Scheduled,
}

impl RawSession {
    fn run(&mut self, time: Duration) -> Result<Done, Error> {
        let (device, flow) = (&mut self.device, &self.flow);
        let stop = AtomicBool::new(false);
        let (sender, stop) = (self.sender.as_mut(), &stop);
        let receives = sender.is_some();
        thread::scope(|scope| {
            let far = sender.map(|far| {
                scope.spawn(move || {
                    host::pin(1);
                    far.send(flow, || stop.load(Ordering::Relaxed))
                })
            });
            let near = scope.spawn(move || {
                host::pin(0);
                let (start, before) = (Instant::now(), host::Scheduled::here());
                let cpu = host::thread_cpu_ns();
                let done = || start.elapsed() >= time;
                let report = match receives {
                    true => device.receive(flow, done),
                    false => device.send(flow, done),
                };
                let mut scheduled = host::Scheduled::here().since(&before);
                scheduled.cpu_ns = host::thread_cpu_ns() - cpu;
                let elapsed = start.elapsed();
                Done {
                    report,
                    elapsed,
                    scheduled,
                }
            });
            let done = near.join();
            stop.store(true, Ordering::Relaxed);
            let sent = far.map(|f| f.join());
            match (done, sent) {
                (Ok(done), None | Some(Ok(_))) => Ok(done),
                _ => Err(Error::Run("the raw loop panicked".into())),
            }
        })
    }
}

impl Session for RawSession {
    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.run(time).map(drop)
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let window = Window::open();
        let done = self.run(time)?;
        let (machine, elapsed) = window.close();
        let octets = done.report.octets as f64;
        let wall = done.elapsed.as_nanos() as u64;
        let times = Times {
            elapsed: wall,
            cpu: done.scheduled.cpu_ns,
            preempted: done.scheduled.delay_ns,
            idle: wall.saturating_sub(done.scheduled.cpu_ns + done.scheduled.delay_ns),
            ..Times::default()
        };
        Ok(Sample {
            elapsed,
            goodput: octets / done.elapsed.as_secs_f64(),
            segments: octets / SEGMENT as f64,
            times,
            cpu_ns: machine.cpu_ns(),
            context_switches: machine.voluntary + machine.involuntary,
            involuntary_switches: machine.involuntary,
            migrations: machine.migrations,
            valid: times.valid() && done.report.octets > 0,
            disturbances: disturbances(&machine, elapsed, self.threads, &times),
            ..Sample::default()
        })
    }
}

/// Whether the device can do what is asked of it without a stack.
///
/// # Errors
/// [`Error::Unavailable`] with one line.
pub(super) fn check(settings: &Settings) -> Result<(), Error> {
    super::kernel::possible(settings.device, 1, 1, (settings.mtu, settings.family))
}
