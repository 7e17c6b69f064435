//! Runs over memory NICs on virtual cores.

use super::{
    end::{End, builder, spec, stack_config, workers},
    mem::{ideal, with_nics},
};
use crate::{
    Error,
    session::Worker,
    workload::{Configuration, Content, Control, Phase, Settings},
};
use perimeter::{
    Native, Virtual,
    link::{mem::PeerHandle, pattern::PERIOD},
};
use perimeter_sync::Platform;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// A thread's name, and what it does.
pub type Named = (String, Worker);

/// The workers of a run over the memory NIC on virtual cores, and the peers. Connections begin with
/// `initial_window` segments, or with what is usual.
pub fn open(
    platform: &Virtual,
    (settings, initial_window): (&Settings, Option<u32>),
    configuration: &Configuration,
    deadline: Instant,
) -> Result<(Vec<Named>, Vec<PeerHandle<Virtual>>), Error> {
    let org = spec(configuration)?;
    // Nobody listens: caches for those who do need no room, whose making would be traced.
    let mut config = stack_config(settings).with_syn_buckets(16);
    if let Some(segments) = initial_window {
        config.tcp.initial_window = segments;
    }
    let builder = builder(&org, settings, Native::default())
        .on_virtual(platform.clone())
        .config(config);
    let (builder, peers) = with_nics(platform, builder, settings, configuration)?;
    // Nothing reads the file, and copying it takes time under observation.
    let content = Content::pattern_of(settings.write_size.max(PERIOD));
    let end = End {
        on_machine: false,
        ..ideal(&org, builder, &peers, settings, configuration, content)?
    };
    Ok((workers(settings, configuration, end, Some(deadline)), peers))
}

/// Starts the workers of [`open`], each bound to a core of its own or to none. One that is set counts in
/// `ready`, and waits until the phase goes on, looking each time `look` has passed; of what goes
/// wrong `failed` is told.
pub fn start(
    platform: &Virtual,
    workers: Vec<Named>,
    (control, ready): (&Arc<Control>, &Arc<AtomicUsize>),
    (look, bound): (Duration, bool),
    failed: impl Fn(Error) + Clone + Send + 'static,
) -> Vec<<Virtual as Platform>::Thread> {
    let start = |(index, (name, worker)): (usize, Named)| {
        let (p, control, ready) = (platform.clone(), control.clone(), ready.clone());
        let failed = failed.clone();
        let body = move || {
            let set = || {
                ready.fetch_add(1, Ordering::AcqRel);
                while control.phase() == Phase::Set {
                    p.sleep_until(p.now() + look);
                }
            };
            if let Err(e) = worker(&control, &set) {
                failed(e);
            }
        };
        platform.spawn(&name, bound.then_some(index), Box::new(body))
    };
    workers.into_iter().enumerate().map(start).collect()
}
