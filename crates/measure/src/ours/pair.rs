//! The benchmark with both ends ours: two stacks of one organization in this process, back to back
//! over wires in memory, one for each NIC.
//!
//! The near stack opens the connections and the far one accepts them; each has as many application
//! threads as are asked for, and its own protocol threads where it has some. Everything that is
//! involved runs on this machine and is under test: stack and application times are those of both
//! ends, and so are the locks. A wire copies each frame once, as a NIC's DMA does; that is part of
//! the sender's stack time. Or it hands on the memory of large segments, as a veth pair hands on
//! pages. What a receiver's ring has no room for is lost, and sent again.
//!
//! Small writes really are small here, and their segments are made and taken by our own code at
//! both ends. The counterpart is the host's kernel over veth, whose both ends share the machine
//! likewise.

use super::{
    end::{self, End, builder, founders, nics_by_thread, queues, with_control},
    endpoint::Far,
    times::{Marks, divide},
};
use crate::{
    Error, host,
    linux::{
        self,
        sockets::sides,
        veth::{far_end, near_end, prefix},
    },
    live::{self, Seen, Watch},
    session::{Session, Window, Workers},
    workload::{Configuration, Content, FILE_SIZE, Phase, Sample, Settings, Tally},
};
use perimeter::{
    Native, Offload, OrgSpec,
    link::wire::{EndConfig, WireConfig, pair},
};
use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

/// What the report says about a row: which cores the ends have, as that decides what it means.
pub(super) fn notes(settings: &Settings, configuration: &Configuration) -> Vec<String> {
    let (threads, cores) = (configuration.threads, host::cores());
    let range = |first: usize| match threads {
        1 => format!("core {}", first % cores),
        n if n >= cores => format!("all {cores} cores"),
        n if first % cores + n <= cores => {
            format!("cores {} to {}", first % cores, (first % cores) + n - 1)
        }
        n => format!(
            "cores {} to {}, around",
            first % cores,
            (first + n - 1) % cores
        ),
    };
    let (near, far) = (range(0), range(threads));
    let shared = match 2 * threads > cores {
        true => ", so the ends share cores",
        false => "",
    };
    let wire = match settings.hand_on {
        true => "; the wire hands on the memory of large segments",
        false => "",
    };
    vec![format!(
        "pair: both ends are ours; threads of the near end on {near}, of the far end on {far}{shared}; \
         stack, app and locks are those of both{wire}"
    )]
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
    // One clock for both stacks and the wires between them.
    let native = Native::default().with_policy(settings.locks);
    let mut near = with_control(builder(&org, settings, native), settings);
    let mut far = builder(&org, settings, native);
    let (mut near_hosts, mut far_hosts) = (Vec::new(), Vec::new());
    for nic in 0..settings.nics {
        let ([a, b], _) = pair(&native, wire(settings, configuration, nic));
        let add = |builder: perimeter::Builder, end, host: IpAddr| {
            builder
                .interface(end, &[&format!("{host}/{}", prefix(host))])
                .map_err(|e| Error::Run(e.to_string()))
        };
        let (here, there) = (
            near_end(settings.family, nic),
            far_end(settings.family, nic),
        );
        near = add(near, a, here)?;
        far = add(far, b, there)?;
        near_hosts.push(here);
        far_hosts.push(there);
    }
    let (mut openers, mut accepters) = (Vec::new(), Vec::new());
    for nics in nics_by_thread(settings, configuration) {
        let (a, b) = sides(nics, settings.nics);
        openers.push(Far::Stack(a));
        accepters.push(Far::Opener(b));
    }
    let content = Content::new(FILE_SIZE);
    let end = |builder, fars, hosts| {
        let founders = founders(&org, builder, configuration)?;
        let content = content.clone();
        Ok::<_, Error>(End {
            all: 2 * configuration.connections as usize,
            ..End::near(settings, configuration, founders, fars, hosts, content)
        })
    };
    let near = end(near, openers, near_hosts)?;
    let far = End {
        name: "far",
        roles: linux::roles(settings).1,
        first_core: configuration.threads,
        established: near.established.clone(),
        ..end(far, accepters, far_hosts)?
    };
    let marks = [&near, &far].map(|end| end.marks.clone());
    let mut all = end::workers(settings, configuration, near, deadline);
    all.append(&mut end::workers(settings, configuration, far, deadline));
    Ok(Box::new(PairSession {
        workers: Workers::start(all)?,
        marks,
    }))
}

/// The wire of one NIC.
pub(super) fn wire(settings: &Settings, configuration: &Configuration, nic: usize) -> WireConfig {
    let queues = queues(settings, configuration);
    let end = |side: usize| {
        EndConfig::new(2 * nic + side)
            .with_rx_queues(queues)
            .with_tx_queues(queues)
    };
    WireConfig::default()
        .with_ends([end(0), end(1)])
        .with_mtu(settings.mtu)
        .with_latency_ns(settings.rtt().as_nanos() as u64 / 2)
        .with_gbps(settings.link_gbps)
        .with_interrupt_delay_ns(settings.interrupt_delay.as_nanos() as u64)
        .with_large(settings.offload == Offload::Device)
        .with_hand_on(settings.hand_on)
}

struct PairSession {
    workers: Workers,
    marks: [Marks; 2],
}

impl Session for PairSession {
    fn watch(&mut self, watch: Watch) {
        let marks = self.marks.clone();
        let view = move |told: &[Option<Tally>]| {
            let [near, far] = &marks;
            let both = near.seen().zip(far.seen());
            Seen {
                goodput: live::rate(told, Tally::sunk),
                ..end::seen(told, both.map(|(near, far)| near.with(far)))
            }
        };
        self.workers.watch(watch, Box::new(view));
    }

    fn warm_up(&mut self, time: Duration) -> Result<(), Error> {
        self.workers.run(Phase::Warm, time)
    }

    fn measure(mut self: Box<Self>, time: Duration) -> Result<Sample, Error> {
        let window = Window::open();
        self.workers.run(Phase::Measure, time)?;
        let window = window.close();
        let tallies = self.workers.finish()?;
        let [near, far] = &self.marks;
        let counted = near.counted()?.with(far.counted()?);
        let times = divide(&tallies, &counted);
        Ok(counted.sample(&tallies, window, times))
    }
}
