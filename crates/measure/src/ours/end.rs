//! One stack of ours and the threads of its application: how both are made.

use super::{
    endpoint::{Far, Founder, StackEndpoint, Task},
    times::{self, Marks, divide},
};
use crate::{
    Error, host, linux,
    live::Seen,
    organizations::Organization,
    session::Worker,
    workload::{
        Coalescing, Configuration, Content, Inbound, Roles, Settings, Tally, drive_any, spread,
    },
};
use perimeter::{Config, Ipv6Config, Native, OrgSpec, Stack, TcpConfig};
use std::{
    net::IpAddr,
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

/// Bound on the memory that all sockets pin, bytes. Every connection's buffer refers to the same
/// file, but is charged as if it were alone.
const MEMORY: u64 = 64 << 30;

/// The organization of a configuration of this backend.
pub(super) fn spec(configuration: &Configuration) -> Result<OrgSpec, Error> {
    match &configuration.organization {
        Organization::Ours(spec) => Ok(spec.clone()),
        other => Err(Error::Run(format!("{other} is not one of ours"))),
    }
}

/// A builder without interfaces yet, on `native`.
pub(super) fn builder(org: &OrgSpec, settings: &Settings, native: Native) -> perimeter::Builder {
    let inbound = match settings.inbound {
        Inbound::Thread => perimeter::Inbound::Thread,
        Inbound::Nic | Inbound::Affine => perimeter::Inbound::Inline,
    };
    Stack::builder()
        .on_native(native)
        .org(org.clone())
        .config(stack_config(settings))
        .lock_policy(settings.locks)
        .profile(settings.profile)
        .inbound(inbound)
}

/// With a control socket, if one is asked for.
pub(super) fn with_control(builder: perimeter::Builder, settings: &Settings) -> perimeter::Builder {
    match &settings.control {
        Some(path) => builder.control(path),
        None => builder,
    }
}

/// How each thread comes by the stack.
pub(super) fn founders(
    org: &OrgSpec,
    builder: perimeter::Builder,
    configuration: &Configuration,
) -> Result<Vec<Founder>, Error> {
    if org.single_threaded() {
        return Ok(vec![Founder::Build(Box::new(builder))]);
    }
    let stack = builder.build().map_err(|e| Error::Run(e.to_string()))?;
    let join = |_| Founder::Join(stack.clone());
    Ok((0..configuration.threads).map(join).collect())
}

pub(super) fn stack_config(settings: &Settings) -> Config {
    Config::default()
        // Nobody else is on the links.
        .with_ipv6(Ipv6Config::default().with_dad_transmits(0))
        .with_tcp(
            TcpConfig::default()
                .with_snd_buf(settings.buffer as u32)
                .with_rcv_buf(settings.buffer as u32)
                .with_cork(settings.coalescing == Coalescing::Cork)
                .with_nodelay(settings.coalescing == Coalescing::NoDelay),
        )
        .with_memory(MEMORY)
        // What was to be measured has been by the time that a stack ends.
        .with_drain(Duration::ZERO)
        .with_offload(settings.offload)
        .with_stretch_acks(settings.stretch_acks)
        .with_steering(settings.steering)
        .with_look_around(settings.look_around)
        .with_budget(settings.budget)
        .with_preemptive(settings.preemptive)
        .with_snd_lowat(settings.snd_lowat)
}

/// Queues of each NIC: one, or with affine steering one for each application thread.
pub(super) fn queues(settings: &Settings, configuration: &Configuration) -> usize {
    match settings.inbound {
        Inbound::Affine => configuration.threads,
        Inbound::Nic | Inbound::Thread => 1,
    }
}

/// One stack and the threads of its application.
pub(super) struct End {
    /// What the threads are called, before their number.
    pub name: &'static str,
    /// How each comes by the stack.
    pub founders: Vec<Founder>,
    /// How each comes by its connections.
    pub fars: Vec<Far>,
    /// The stack's address on each NIC.
    pub hosts: Vec<IpAddr>,
    /// What both ends send.
    pub content: Content,
    /// What the threads do.
    pub roles: Roles,
    /// Core of the first thread; the others follow.
    pub first_core: usize,
    /// How many connections are established, of `all`; shared where both ends are ours.
    pub established: Arc<AtomicUsize>,
    /// Connections, once for each end that is ours.
    pub all: usize,
    /// What each connection begins with.
    pub greeting: Arc<[u8]>,
    /// Where readings of the stack's counters go.
    pub marks: Marks,
    /// The threads are the machine's: they are bound to its cores, and read its counters.
    pub on_machine: bool,
}

impl End {
    /// The near end of a run, as the only one that is ours.
    pub(super) fn near(
        settings: &Settings,
        configuration: &Configuration,
        founders: Vec<Founder>,
        fars: Vec<Far>,
        hosts: Vec<IpAddr>,
        content: Content,
    ) -> End {
        End {
            name: "app",
            founders,
            fars,
            hosts,
            content,
            roles: linux::roles(settings).0,
            first_core: 0,
            established: Arc::default(),
            all: configuration.connections as usize,
            greeting: Arc::default(),
            marks: Marks::default(),
            on_machine: true,
        }
    }
}

/// The NICs of each thread's connections.
pub(super) fn nics_by_thread(
    settings: &Settings,
    configuration: &Configuration,
) -> Vec<Vec<usize>> {
    let threads = configuration.threads;
    let mut nics = vec![Vec::new(); threads];
    for place in spread(configuration.connections as usize, threads, settings.nics) {
        nics[place.thread].push(place.nic);
    }
    nics
}

/// The receive queues that an application thread serves while it waits.
pub(super) fn serve(settings: &Settings, configuration: &Configuration, thread: usize) -> Vec<u16> {
    let (threads, queues) = (configuration.threads, queues(settings, configuration));
    match settings.inbound {
        Inbound::Thread if threads > 1 || !configuration.organization.single_threaded() => {
            Vec::new()
        }
        Inbound::Affine => (0..settings.nics)
            .map(|nic| (nic * queues + thread) as u16)
            .collect(),
        Inbound::Nic | Inbound::Thread => (0..settings.nics)
            .filter(|nic| nic % threads == thread)
            .map(|nic| nic as u16)
            .collect(),
    }
}

/// One worker for each application thread of an end.
pub(super) fn workers(
    settings: &Settings,
    configuration: &Configuration,
    end: End,
    deadline: Option<Instant>,
) -> Vec<(String, Worker)> {
    let threads = configuration.threads;
    let nics = nics_by_thread(settings, configuration);
    let (roles, first_core, on_machine) = (end.roles, end.first_core, end.on_machine);
    let mut list = Vec::new();
    let sides = end.founders.into_iter().zip(end.fars);
    for (thread, ((founder, far), nics)) in sides.zip(nics).enumerate() {
        let serve = serve(settings, configuration, thread);
        let task = Task {
            thread,
            threads,
            nics,
            hosts: end.hosts.clone(),
            steered: settings.inbound == Inbound::Affine && threads > 1,
            serve,
            roles,
            in_place: settings.in_place,
            all: end.all,
            established: end.established.clone(),
            greeting: end.greeting.clone(),
            marks: (thread == 0 && on_machine).then(|| end.marks.clone()),
            deadline,
        };
        let (content, batch) = (end.content.clone(), settings.batch);
        let worker: Worker = Box::new(move |control, set| {
            if on_machine {
                host::pin(first_core + thread);
            }
            let mut endpoint = StackEndpoint::establish(founder, far, task, &content, control)?;
            let stack = endpoint.stack().clone();
            let _batch = batch.then(|| stack.batch());
            set();
            drive_any(&mut endpoint, roles, &content, control)
        });
        list.push((format!("{}-{thread}", end.name), worker));
    }
    list
}

/// What the counters of a stack, and the near end's threads if all have told, say of what was seen.
pub(super) fn seen(near: &[Option<Tally>], counted: Option<times::Counted>) -> Seen {
    let Some(counted) = counted else {
        return Seen::default();
    };
    let near: Option<Vec<Tally>> = near.iter().cloned().collect();
    Seen {
        window_ns: counted.window_ns,
        times: near.map(|near| divide(&near, &counted)),
        protocol_ns: counted.protocol_ns,
        locks: counted.locks,
        ..Seen::default()
    }
}
