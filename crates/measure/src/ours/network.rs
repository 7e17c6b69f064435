//! A stack of ours on an interface of the host's, for benchmarks between machines.

use super::{
    end::{self, End, builder, founders, with_control},
    endpoint::Far,
    kernel::Counters,
};
use crate::{
    Error,
    linux::sockets::{self, ESTABLISHING},
    session::Worker,
    workload::settings,
    workload::{Configuration, Content, FILE_SIZE, Settings},
};
use perimeter::{Native, Offload, OrgSpec, link::named::HostOptions};
use std::{net::SocketAddrV4, time::Instant};

/// Where the data connections go, and how.
pub(crate) struct Way<'a> {
    /// The device and the stack's addresses.
    pub place: &'a settings::Place,
    /// The other end.
    pub to: SocketAddrV4,
    /// What each connection begins with.
    pub token: String,
}

/// Threads of a stack that open the connections.
///
/// # Errors
/// [`Error::Unavailable`]: the interface can't be had, or the addresses make no sense.
pub(crate) fn workers(
    org: &OrgSpec,
    settings: &Settings,
    configuration: &Configuration,
    way: Way<'_>,
    deadline: Option<Instant>,
) -> Result<(Vec<(String, Worker)>, Counters), Error> {
    let settings = &Settings {
        nics: 1,
        ..settings.clone()
    };
    let unavailable = |e: &dyn std::fmt::Display| Error::Unavailable(format!("--device: {e}"));
    let options = HostOptions::default()
        .with_queues(end::queues(settings, configuration))
        .with_large(settings.offload == Offload::Device)
        .with_mtu(None);
    let device = way.place.device.open(&options);
    let device = device.map_err(|e| unavailable(&e))?;
    let (host, prefix) = way.place.address;
    let mut builder = with_control(builder(org, settings, Native::default()), settings)
        .interface(device, &[&format!("{host}/{prefix}")])
        .map_err(|e| unavailable(&e))?;
    if let Some(gateway) = way.place.gateway {
        let gateway = gateway.to_string();
        builder = builder
            .route("0.0.0.0/0", Some(&gateway), 0)
            .map_err(|e| unavailable(&e))?;
    }
    let fars = end::nics_by_thread(settings, configuration).into_iter();
    let fars = fars.map(|nics| {
        let (near, far) = sockets::sides(nics, 1);
        let places = sockets::ports(near.nics.len());
        // Both ends of the channel are here, which has room for one.
        let _ = far.listening.send(vec![way.to.into(); places]);
        Far::Stack(near)
    });
    let founders = founders(org, builder, configuration)?;
    let (fars, hosts, content) = (fars.collect(), vec![host.into()], Content::new(FILE_SIZE));
    let end = End {
        greeting: way.token.into_bytes().into(),
        ..End::near(settings, configuration, founders, fars, hosts, content)
    };
    let counters = Counters {
        marks: end.marks.clone(),
        threads: configuration.threads,
    };
    let deadline = deadline.or(Some(Instant::now() + ESTABLISHING));
    Ok((
        end::workers(settings, configuration, end, deadline),
        counters,
    ))
}
