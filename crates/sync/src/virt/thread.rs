//! Starting and joining virtual threads.

use std::sync::Arc;

use super::shared::Shared;
use super::state::{Body, Doing, On, Op};
use crate::platform::Thread;
use crate::policy::Priority;

/// A started virtual thread.
pub struct VirtualThread {
    shared: Arc<Shared>,
    slot: u32,
    serial: u64,
}

pub(super) fn spawn(
    shared: &Arc<Shared>,
    priority: Priority,
    name: &str,
    on: On,
    body: Body,
) -> VirtualThread {
    let inside = shared.inside();
    let handle = |(slot, serial)| VirtualThread {
        shared: shared.clone(),
        slot,
        serial,
    };
    if inside && shared.tearing() {
        // Nothing starts any more; serial 0 belongs to no thread, so joining it returns.
        drop(body);
        return handle((0, 0));
    }
    let thread = handle(shared.with(|st| {
        let ns = u64::from(st.cfg.costs.spawn_ns);
        if st.clocked {
            st.spend(ns);
        }
        st.add(priority, name, on, body)
    }));
    if inside {
        shared.point(Op::Spawn, thread.slot);
    } else {
        shared.kick();
    }
    thread
}

impl VirtualThread {
    fn result(&self, torn: bool) -> Result<(), String> {
        if torn {
            return Err("the simulation has failed".to_owned());
        }
        Ok(())
    }
}

impl Thread for VirtualThread {
    /// Waits for its end. A panic of any virtual thread fails the whole simulation, so an error
    /// is seen only by destructors that run then, and by OS threads outside.
    fn join(self) -> Result<(), String> {
        let sh = &*self.shared;
        if !sh.inside() {
            let torn = sh.outside("joining", |st| {
                let ended = st.thread(self.slot).serial != self.serial;
                (ended || st.finished).then_some(st.teardown)
            });
            return self.result(torn);
        }
        sh.point(Op::Join, self.slot);
        if sh.tearing() {
            sh.step_aside();
            return self.result(true);
        }
        {
            // SAFETY: inside; the reference ends before the suspension.
            let st = unsafe { sh.st() };
            if st.thread(self.slot).serial != self.serial {
                return Ok(());
            }
            st.park(Doing::Join(self.serial), u64::MAX);
        }
        sh.suspend();
        Ok(())
    }
}
