//! Runs with smoltcp: what they need, and their threads.

use super::{
    super::kernel::{self, Site},
    MOST, Remote, Setting, SmoltcpEndpoint, link,
};
use crate::{
    Error, host,
    linux::{self, sockets},
    session::Worker,
    workload::{Coalescing, Configuration, Content, FILE_SIZE, MTU, Settings, drive},
};
use std::{sync::mpsc, time::Instant};

/// Share of the free memory that sockets' buffers may take.
const MEMORY: f64 = 0.75;

/// What the reader of a row has to know about how it is compared.
pub fn notes(settings: &Settings, tap: bool) -> Vec<String> {
    let mut notes = vec![
        "smoltcp: copies what is sent into its socket's buffer; ours and Linux refer to the file's \
         pages"
            .to_string(),
        "smoltcp: does not count what it sends again".into(),
    ];
    notes.push(
        match tap {
            true => {
                "smoltcp: its own TAP interface, one system call a frame, checksums by smoltcp \
                 and the kernel; ours leaves them to the kernel"
            }
            false => "smoltcp: no checksums on its memory link, as on our memory NIC",
        }
        .into(),
    );
    if settings.coalescing == Coalescing::Cork {
        notes.push("smoltcp: has no cork; Nagle's algorithm is in its place".into());
    }
    notes
}

/// How the ends of smoltcp are set up: the near one, and the far one if it is smoltcp too.
fn ends(
    settings: &Settings,
    configuration: &Configuration,
    deadline: Option<Instant>,
) -> (Setting, Setting) {
    let (near, far) = linux::roles(settings);
    let of = |roles, address| Setting {
        address,
        prefix: kernel::PREFIX,
        connections: configuration.connections as usize,
        roles,
        buffer: settings.buffer,
        coalescing: settings.coalescing,
        deadline,
    };
    (
        of(near, linux::veth::near_address(0)),
        of(far, linux::veth::far_address(0)),
    )
}

/// Whether there is memory for all buffers, which smoltcp has whole from the beginning, and a port
/// for every connection.
///
/// # Errors
/// [`Error::Unavailable`] with what there is not.
pub fn fits(settings: &Settings, c: &Configuration, available: u64) -> Result<(), Error> {
    let (near, far) = ends(settings, c, None);
    let mut need = near.memory();
    if !settings.device.is_to_kernel() {
        need += far.memory();
    }
    if need as f64 > available as f64 * MEMORY {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        return Err(Error::Unavailable(format!(
            "smoltcp: the buffers of {} connections need {:.1} GiB, too much for the {:.1} GiB \
             that are free; list fewer connections or give a smaller --buffer",
            c.connections,
            gib(need),
            gib(available)
        )));
    }
    if c.connections > MOST {
        return Err(Error::Unavailable(format!(
            "smoltcp: {} connections are more than one address has ports here ({})",
            c.connections, MOST
        )));
    }
    Ok(())
}

/// The threads of a run: the near end first.
pub fn workers(
    site: Option<&Site>,
    settings: &Settings,
    configuration: &Configuration,
    deadline: Option<Instant>,
) -> Vec<(String, Worker)> {
    match site {
        Some(site) => tap(site, settings, configuration, deadline),
        None => pair(settings, configuration, deadline),
    }
}

/// Both ends on this machine, a thread each.
fn pair(
    settings: &Settings,
    configuration: &Configuration,
    deadline: Option<Instant>,
) -> Vec<(String, Worker)> {
    let content = Content::new(FILE_SIZE);
    let (near, far) = ends(settings, configuration, deadline);
    let (near_link, far_link) = link::pair(MTU as usize);
    let (listening, listens) = mpsc::sync_channel(1);
    let to = Remote::Smoltcp(far.address);
    let of_far = content.clone();
    let far: Worker = Box::new(move |control, set| {
        host::pin(1);
        let (roles, content) = (far.roles, of_far);
        let mut end = SmoltcpEndpoint::accept(far_link, far, &content, &listening, control)?;
        set();
        drive(&mut end, roles, &content, control)
    });
    let near: Worker = Box::new(move |control, set| {
        host::pin(0);
        if listens.recv().is_err() {
            return Err(sockets::give_up(control));
        }
        let roles = near.roles;
        let mut end = SmoltcpEndpoint::connect(near_link, near, &content, &to, control)?;
        set();
        drive(&mut end, roles, &content, control)
    });
    vec![("app-0".into(), near), ("peer-0".into(), far)]
}

/// smoltcp here, the kernel there.
fn tap(
    site: &Site,
    settings: &Settings,
    configuration: &Configuration,
    deadline: Option<Instant>,
) -> Vec<(String, Worker)> {
    let (near, far) = ends(settings, configuration, deadline);
    let (gate, kernel) = site.far(settings, far.roles, far.connections, deadline);
    let content = site.job.content.clone();
    let near: Worker = Box::new(move |control, set| {
        host::pin(0);
        gate.enter()?;
        let link = super::tap(kernel::INTERFACE)?;
        gate.interface_is_there()?;
        let to = Remote::Kernel(gate.open(control)?);
        let roles = near.roles;
        let mut end = SmoltcpEndpoint::connect(link, near, &content, &to, control)?;
        set();
        drive(&mut end, roles, &content, control)
    });
    vec![("app-0".into(), near), ("peer-0".into(), kernel)]
}
