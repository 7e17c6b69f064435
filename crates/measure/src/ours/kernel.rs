//! The benchmark over devices of the host: a namespace with the kernel's sockets as sink and source,
//! and for each NIC a TAP or TUN interface in there, or one end of a veth pair, whose other end, in
//! a namespace beside, has packet sockets or AF_XDP.
//!
//! The kernel does its part of the work inside the stack's system calls, so only the whole
//! machine's CPU is reported. The namespaces have no name and are held by descriptors: they go, with
//! their interfaces, however the process ends.

use super::{
    end::{self, End, builder, founders, nics_by_thread, queues, with_control, workers},
    endpoint::Far,
    times::{Marks, divide},
};
use crate::{
    Error,
    error::Context as _,
    host::Machine,
    linux::{
        self, Job,
        sockets::{self, Worksite},
        veth::{self, Links, Namespace},
    },
    live::{self, Seen, Watch},
    session::{Session, Workers},
    workload::{Configuration, Control, Device, Family, Phase, Sample, Settings, Tally, Times},
};
use perimeter::{
    Native, Offload, OrgSpec,
    link::{
        self, host,
        named::{HostDevice, HostOptions},
    },
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// What the report says about a row.
pub(super) fn notes(settings: &Settings) -> Vec<String> {
    let device = settings.device;
    let mut notes = vec![format!(
        "{device}: the kernel does the peer's work inside our calls; compare CPU, which is the \
         whole machine's"
    )];
    if settings.link_gbps.is_some() || settings.rtt.is_some() {
        notes.push(format!("{device}: --link-gbps and --rtt have no effect"));
    }
    if device == Device::Xdp && settings.offload == Offload::Device {
        notes.push("xdp: has no large segments; the stack cuts them".into());
    }
    notes
}

/// Whether the interfaces can be made here. Leaves nothing behind.
///
/// # Errors
/// [`Error::Unavailable`] with one line.
pub(super) fn check(settings: &Settings, configurations: &[Configuration]) -> Result<(), Error> {
    sockets::allow_all(configurations)?;
    for c in configurations {
        let queues = queues(settings, c);
        let (device, mtu) = (settings.device, settings.mtu);
        possible(device, settings.nics, queues, (mtu, settings.family))?;
    }
    Ok(())
}

/// Whether such interfaces can be made here. Leaves nothing behind.
///
/// # Errors
/// [`Error::Unavailable`] with one line.
pub(crate) fn possible(
    device: Device,
    nics: usize,
    queues: usize,
    link: (u32, Family),
) -> Result<(), Error> {
    let made = Interfaces::make(device, nics, queues, link, false);
    made.map_err(|e| Error::Unavailable(format!("--device {device}: {e}")))?;
    Ok(())
}

/// Devices, and the namespace of the kernel's side.
pub(super) struct Interfaces {
    /// Where the kernel's sockets are.
    pub namespace: Arc<Namespace>,
    /// One for each NIC.
    pub devices: Vec<Box<dyn link::Device>>,
    /// Where the device's own end is, if that is another.
    _near: Option<Arc<Namespace>>,
}

/// What has to be there for as long as the devices are used.
pub(super) struct Held {
    /// Where the kernel's sockets are.
    pub namespace: Arc<Namespace>,
    _near: Option<Arc<Namespace>>,
}

impl Interfaces {
    /// The devices, and what they need.
    pub(super) fn split(self) -> (Vec<Box<dyn link::Device>>, Held) {
        let held = Held {
            namespace: self.namespace,
            _near: self._near,
        };
        (self.devices, held)
    }

    pub(super) fn make(
        device: Device,
        nics: usize,
        queues: usize,
        link: (u32, Family),
        large: bool,
    ) -> Result<Interfaces, Error> {
        let options = HostOptions::default()
            .with_queues(queues)
            .with_large(large)
            .with_mtu(None);
        match device {
            Device::Packet | Device::Xdp => Self::over_veth(device, nics, link, &options),
            _ => veth::aside(|| Self::in_kernel(device, nics, link, &options)),
        }
    }

    /// TAP or TUN interfaces in a new namespace.
    fn in_kernel(
        device: Device,
        nics: usize,
        (mtu, family): (u32, Family),
        options: &HostOptions,
    ) -> Result<Interfaces, Error> {
        let namespace = Arc::new(Namespace::enter_new()?);
        let options = options.clone().with_mtu(Some(mtu));
        let mut devices = Vec::new();
        for nic in 0..nics {
            let name = far_name(device, nic);
            let device = match device {
                Device::Tun => HostDevice::Tun(name.clone()),
                _ => HostDevice::Tap(name.clone()),
            };
            devices.push(open(&device, &options)?);
            kernel_side(&name, (family, nic), options.large)?;
        }
        Ok(Interfaces {
            namespace,
            devices,
            _near: None,
        })
    }

    /// Sockets on one end of each veth pair.
    fn over_veth(
        device: Device,
        nics: usize,
        (mtu, family): (u32, Family),
        options: &HostOptions,
    ) -> Result<Interfaces, Error> {
        let links = Links::beside(nics, mtu, options.large, options.queues, family)?;
        let devices = links.near.within(|| {
            let each = (0..nics).map(|nic| {
                let name = veth::near_name(nic);
                let device = match device {
                    Device::Xdp => HostDevice::Xdp(name),
                    _ => HostDevice::Packet(name),
                };
                open(&device, options)
            });
            each.collect()
        })?;
        Ok(Interfaces {
            namespace: links.far,
            devices,
            _near: Some(links.near),
        })
    }
}

/// Name of the kernel's interface of NIC `nic`, in its namespace.
pub(super) fn far_name(device: Device, nic: usize) -> String {
    match device {
        Device::Packet | Device::Xdp => veth::far_name(nic),
        other => format!("{other}{nic}"),
    }
}

fn open(device: &HostDevice, options: &HostOptions) -> Result<Box<dyn link::Device>, Error> {
    let opened = device.open(options);
    opened.map_err(|e| Error::Unavailable(e.to_string()))
}

/// Sets up the kernel's side of a TAP or TUN interface in the calling thread's namespace: no segmentation
/// offload unless segments may be `large`, the far address of NIC `nic`, up.
///
/// # Errors
/// What the system says.
pub(crate) fn kernel_side(
    name: &str,
    (family, nic): (Family, usize),
    large: bool,
) -> Result<(), Error> {
    if !large {
        veth::segments_one_by_one(name)?;
    }
    veth::give_address(name, veth::far_end(family, nic))?;
    host::set_up(name, true).context("bringing an interface up")
}

/// Establishes the connections of one run.
///
/// # Errors
/// What went wrong; nothing is left behind.
pub(super) fn prepare(
    org: OrgSpec,
    settings: &Settings,
    configuration: &Configuration,
    deadline: Option<Instant>,
) -> Result<Box<dyn Session>, Error> {
    let queues = queues(settings, configuration);
    let large = settings.offload == Offload::Device;
    let device = settings.device;
    let Interfaces {
        namespace,
        devices,
        _near: near,
    } = Interfaces::make(
        device,
        settings.nics,
        queues,
        (settings.mtu, settings.family),
        large,
    )?;
    let mut builder = with_control(builder(&org, settings, Native::default()), settings);
    let mut hosts = Vec::new();
    for (nic, device) in devices.into_iter().enumerate() {
        let address = veth::near_end(settings.family, nic);
        let prefix = veth::prefix(address);
        builder = builder
            .interface(device, &[&format!("{address}/{prefix}")])
            .map_err(|e| Error::Run(e.to_string()))?;
        hosts.push(address);
    }
    let job = Job::new(false)?;
    let (_, roles) = linux::roles(settings);
    let (mut fars, mut peers) = (Vec::new(), Vec::new());
    for (i, nics) in nics_by_thread(settings, configuration)
        .into_iter()
        .enumerate()
    {
        let (near, far) = sockets::sides(nics, settings.nics);
        fars.push(Far::Kernel(near));
        let site = Worksite {
            namespace: Some(namespace.clone()),
            options: sockets::Options::of(settings),
            deadline,
        };
        let make = move |control: &Control| far.establish(&site, control);
        peers.push((format!("peer-{i}"), job.worker(roles, None, make)));
    }
    let founders = founders(&org, builder, configuration)?;
    let end = End::near(settings, configuration, founders, fars, hosts, job.content);
    let counters = Counters {
        marks: end.marks.clone(),
        threads: configuration.threads,
    };
    let mut all = workers(settings, configuration, end, deadline);
    all.append(&mut peers);
    Ok(Box::new(KernelSession {
        workers: Workers::start(all)?,
        _file: job.file,
        _near: near,
        namespace,
        counters,
    }))
}

/// The counters of a stack on a device of the host.
#[derive(Clone)]
pub(crate) struct Counters {
    /// Their readings.
    pub(super) marks: Marks,
    /// Threads of the application that are under test; they come first.
    pub(super) threads: usize,
}

impl Counters {
    /// What they say of what was seen.
    pub(crate) fn seen(&self, told: &[Option<Tally>]) -> Seen {
        Seen {
            times: None,
            ..end::seen(&told[..self.threads], self.marks.seen())
        }
    }

    /// What the threads received, with the stack's counters. What the stack and the kernel do
    /// inside our calls can't be told apart.
    ///
    /// # Errors
    /// The counters were not read.
    pub(crate) fn sample(
        &self,
        tallies: &[Tally],
        window: (Machine, Duration),
    ) -> Result<Sample, Error> {
        let counted = self.marks.counted()?;
        let times = Times {
            stack: None,
            peer: None,
            ..divide(&tallies[..self.threads], &counted)
        };
        Ok(counted.sample(tallies, window, times))
    }
}

/// A prepared run. The workers come first, so that their threads, which have descriptor tables of
/// their own, have ended before what they share is dropped.
struct KernelSession {
    workers: Workers,
    _file: Arc<rustix::fd::OwnedFd>,
    _near: Option<Arc<Namespace>>,
    namespace: Arc<Namespace>,
    counters: Counters,
}

impl Session for KernelSession {
    fn watch(&mut self, watch: Watch) {
        let counters = self.counters.clone();
        let view = move |told: &[Option<Tally>]| Seen {
            goodput: live::rate(told, Tally::sunk),
            ..counters.seen(told)
        };
        self.workers.watch(watch, Box::new(view));
    }

    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.workers.run(Phase::Warm, time)
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let s = &mut *self;
        let (window, retransmits) = s.workers.measure(time, || s.namespace.retransmits())?;
        let KernelSession {
            workers, counters, ..
        } = *self;
        let mut sample = counters.sample(&workers.finish()?, window)?;
        sample.retransmits += retransmits;
        Ok(sample)
    }
}
