//! The states of a connection and the transitions between them (RFC 9293, section 3.3.2).

/// State of a connection. LISTEN has no TCB: it is the
/// [`SynCache`](crate::syncache::SynCache)'s business.
///
/// ```
/// use perimeter_tcp::State;
///
/// // What a connection waits for.
/// let waits = |state: State| match state {
///     s if !s.is_synchronized() => "the handshake",
///     s if s.may_receive() => "data",
///     State::TimeWait => "the end",
///     _ => "acknowledgments, or us",
/// };
/// assert_eq!(waits(State::SynSent), "the handshake");
/// assert_eq!(waits(State::FinWait2), "data");
/// assert_eq!(waits(State::CloseWait), "acknowledgments, or us");
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// No connection, or none any more.
    Closed,
    /// A SYN was sent.
    SynSent,
    /// SYNs have crossed (simultaneous open); ours is not acknowledged yet.
    SynReceived,
    /// Open both ways.
    Established,
    /// We have closed; our FIN is queued, sent or lost, but not acknowledged.
    FinWait1,
    /// Our FIN is acknowledged; the peer may still send.
    FinWait2,
    /// The peer has closed; we may still send.
    CloseWait,
    /// Both have closed; our FIN is not acknowledged.
    Closing,
    /// The peer closed first, then we; our FIN is not acknowledged.
    LastAck,
    /// Both FINs are acknowledged; waiting for old segments to die.
    TimeWait,
}

/// What moves a connection from one state to another.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An acceptable SYN-ACK to our SYN.
    SynAcked,
    /// A SYN without ACK to our SYN.
    SynCrossed,
    /// Our SYN was acknowledged after the peers' crossed.
    HandshakeAcked,
    /// The application will send no more.
    CloseSend,
    /// The peer's FIN is in order.
    FinIn,
    /// Our FIN is acknowledged.
    FinAcked,
    /// 2 MSL have passed, the connection was reset, or it failed.
    Gone,
}

impl State {
    /// All states.
    pub const ALL: [State; 10] = [
        State::Closed,
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
        State::TimeWait,
    ];

    /// The state after `step`; `None` where it has no effect.
    pub(crate) fn after(self, step: Step) -> Option<State> {
        use State::*;
        Some(match (self, step) {
            (SynSent, Step::SynAcked) => Established,
            (SynSent, Step::SynCrossed) => SynReceived,
            (SynReceived, Step::HandshakeAcked) => Established,

            (SynSent, Step::CloseSend) => Closed,
            // Our SYN is not acknowledged yet: the FIN waits behind it.
            (SynReceived | Established, Step::CloseSend) => FinWait1,
            (CloseWait, Step::CloseSend) => LastAck,

            (SynReceived | Established, Step::FinIn) => CloseWait,
            (FinWait1, Step::FinIn) => Closing,
            (FinWait2, Step::FinIn) => TimeWait,

            (FinWait1, Step::FinAcked) => FinWait2,
            (Closing, Step::FinAcked) => TimeWait,
            (LastAck, Step::FinAcked) => Closed,

            (_, Step::Gone) => Closed,
            _ => return None,
        })
    }

    /// Both SYNs have been seen (RFC 9293's "synchronized").
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, State::Closed | State::SynSent | State::SynReceived)
    }

    /// The peer may still send data.
    pub const fn may_receive(self) -> bool {
        matches!(
            self,
            State::SynSent
                | State::SynReceived
                | State::Established
                | State::FinWait1
                | State::FinWait2
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of RFC 9293, figure 5, row by row; whatever is not in it changes nothing.
    #[test]
    fn transitions() {
        use State::*;
        use Step::*;
        let steps = [
            SynAcked,
            SynCrossed,
            HandshakeAcked,
            CloseSend,
            FinIn,
            FinAcked,
            Gone,
        ];
        #[rustfmt::skip]
        let rows: [(State, [Option<State>; 7]); 10] = [
            //            syn-acked          crossed            hs-acked           close            fin-in            fin-acked       gone
            (Closed,      [None,             None,              None,              None,            None,             None,           Some(Closed)]),
            (SynSent,     [Some(Established),Some(SynReceived), None,              Some(Closed),    None,             None,           Some(Closed)]),
            (SynReceived, [None,             None,              Some(Established), Some(FinWait1),  Some(CloseWait),  None,           Some(Closed)]),
            (Established, [None,             None,              None,              Some(FinWait1),  Some(CloseWait),  None,           Some(Closed)]),
            (FinWait1,    [None,             None,              None,              None,            Some(Closing),    Some(FinWait2), Some(Closed)]),
            (FinWait2,    [None,             None,              None,              None,            Some(TimeWait),   None,           Some(Closed)]),
            (CloseWait,   [None,             None,              None,              Some(LastAck),   None,             None,           Some(Closed)]),
            (Closing,     [None,             None,              None,              None,            None,             Some(TimeWait), Some(Closed)]),
            (LastAck,     [None,             None,              None,              None,            None,             Some(Closed),   Some(Closed)]),
            (TimeWait,    [None,             None,              None,              None,            None,             None,           Some(Closed)]),
        ];
        assert_eq!(rows.map(|(s, _)| s), State::ALL);
        for (state, row) in rows {
            for (step, want) in steps.into_iter().zip(row) {
                assert_eq!(state.after(step), want, "{state:?} {step:?}");
            }
        }
    }
}
