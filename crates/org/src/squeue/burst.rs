//! What a burst of received packets is to the squeues: runs of one flow, and a chain for each
//! squeue.

use perimeter_stack::{Seg, SockId};
use perimeter_wire::Seq;

/// What the classifier found.
#[derive(Copy, Clone, Debug)]
pub(crate) enum To {
    /// A connection, to which a reference is held.
    Conn(SockId),
    /// A connection that is about to be made.
    Soon,
    /// The same; it came by way of the listener's squeue, so before what did not.
    Before,
    /// A listener, perhaps. The squeue that a new connection is to belong to, and the initial
    /// sequence number if it takes a flow over from TIME-WAIT.
    Listener(u16, Option<Seq>),
}

/// Packets of one flow that follow each other in a burst, and where they go. `None`: nowhere, or
/// they are there.
pub(super) struct Run {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) to: Option<(u16, To)>,
}

/// What a burst has for squeue `n`.
pub(super) struct Chain<'a> {
    pub(super) n: u16,
    pub(super) runs: &'a mut [Run],
    pub(super) segs: &'a mut [Seg],
}

impl Chain<'_> {
    /// Runs `f` on what is for the squeue, in order.
    #[inline]
    pub(super) fn each(&mut self, mut f: impl FnMut(To, &mut [Seg])) {
        for run in &mut *self.runs {
            if let Some((n, to)) = run.to
                && n == self.n
            {
                run.to = None;
                f(to, &mut self.segs[run.start..run.end]);
            }
        }
    }
}

/// Sends a flow that was handed over while a burst was classified one way: its packets that were
/// found to be for the listener could otherwise come behind later ones of the same burst, whose
/// squeue has its turn first.
pub(super) fn rejoin(runs: &mut [Run], segs: &[Seg]) {
    let flow = |run: &Run| (segs[run.start].hash, &segs[run.start].frame.key);
    for i in 0..runs.len() {
        let (head, later) = runs.split_at_mut(i + 1);
        let run = &mut head[i];
        if let Some((_, To::Listener(..))) = run.to {
            let moved = later.iter().find_map(|r| match r.to {
                Some((n, To::Soon | To::Conn(_))) if flow(r) == flow(run) => Some(n),
                _ => None,
            });
            run.to = moved.map_or(run.to, |n| Some((n, To::Soon)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Run, To, rejoin};
    use core::net::{IpAddr, Ipv4Addr};
    use perimeter_stack::{Seg, SockId};
    use perimeter_wire::FlowKey;

    fn from_port(remote_port: u16) -> Seg {
        let host = |n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
        let mut seg = Seg::default();
        seg.frame.key = FlowKey {
            local: host(1),
            local_port: 80,
            remote: host(2),
            remote_port,
        };
        seg
    }

    /// Which squeues the runs of a burst go to, of which each is one packet: its flow's port, its
    /// squeue and what was found.
    fn squeues(found: &[(u16, u16, To)]) -> Vec<u16> {
        let segs: Vec<Seg> = found.iter().map(|f| from_port(f.0)).collect();
        let mut runs: Vec<Run> = (found.iter().enumerate())
            .map(|(i, &(_, n, to))| Run {
                start: i,
                end: i + 1,
                to: Some((n, to)),
            })
            .collect();
        rejoin(&mut runs, &segs);
        runs.iter().filter_map(|r| Some(r.to?.0)).collect()
    }

    #[test]
    fn a_flow_goes_one_way_in_a_burst() {
        let listener = To::Listener(3, None);
        let conn = To::Conn(SockId::conn(3, 0, 1));
        // Flow 2 was handed from the listener's squeue 1 to squeue 3 while its packets were
        // classified; flow 1 has its connection in squeue 3, whose turn is first.
        for later in [To::Soon, conn] {
            let burst = [(1, 3, conn), (2, 1, listener), (1, 3, conn), (2, 3, later)];
            assert_eq!(squeues(&burst), [3, 3, 3, 3]);
        }
        let others = [(1, 1, listener), (2, 3, To::Soon), (1, 1, listener)];
        assert_eq!(squeues(&others), [1, 3, 1]);
    }
}
