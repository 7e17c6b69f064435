//! Looking around for a moment before going to sleep: [`perimeter_stack::patience`].

use super::{Ev, Instance};
use crate::Org;
use perimeter_base::Time;
use perimeter_stack::Count;
use perimeter_stack::patience::LOST;
use perimeter_sync::{Event, Platform};

impl<O: Org> Instance<O> {
    /// The longest that a thread looks around, ns.
    fn most_patience(&self) -> u32 {
        match self.sh.p.may_look_around() {
            true => u32::try_from(self.sh.config.look_around.as_nanos()).unwrap_or(u32::MAX),
            false => 0,
        }
    }

    /// Lets the calling thread sleep in `sleep`, until `event` is set, one of `queues` has frames,
    /// something is due, or `deadline` has passed; unless it finds that by looking around first.
    /// Frames are taken.
    pub(crate) fn patiently(
        &self,
        event: &Ev<O>,
        queues: &[u16],
        deadline: Time,
        sleep: impl FnOnce(),
    ) {
        let most = self.most_patience();
        if most == 0 {
            return sleep();
        }
        let start = self.sh.p.now();
        let patience = self.with(|_, cx| cx.patience.at(start));
        let until = deadline.min(start.plus(patience.into()));
        if patience > 0 && self.look_around(event, queues, start, until) {
            return;
        }
        sleep();
        let waited = self.sh.p.now().nanos_since(start);
        self.with(|_, cx| cx.patience.slept(waited, most));
    }

    /// Looks around from `start` to `end`; whether there was something.
    fn look_around(&self, event: &Ev<O>, queues: &[u16], start: Time, end: Time) -> bool {
        let mut now = start;
        let found = loop {
            if event.take() || self.with(|i, cx| i.drive(cx, queues)) > 0 {
                break true;
            }
            let looked = self.sh.p.now();
            if looked >= end {
                break false;
            }
            // The thread that is waited for may share the core.
            self.sh.p.yield_now();
            // A look that finds something was none in vain.
            now = self.sh.p.now();
            if now.nanos_since(looked) > LOST {
                self.with(|_, cx| cx.patience.lost(now));
                // Whatever has come meanwhile is there at once.
                break false;
            }
        };
        let vain = now.nanos_since(start);
        self.sh.count(self.sh.p.lane(), Count::LookNs, vain);
        found
    }
}
