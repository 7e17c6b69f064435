//! Stub.
use super::*;
use perimeter_base::PktBuf;
use perimeter_wire::TcpHdr;
use super::types::*;
impl Tcb {
    /// A segment for this connection.
    #[inline]
    pub fn input(&mut self, seg: &TcpHdr, mut data: Option<PktBuf>, now: Time) -> Input {
        match self.input_light(seg, &mut data, now) { Some(i) => i, None => self.input_full(seg, data, now) }
    }
    /// Header prediction.
    pub fn input_light(&mut self, _seg: &TcpHdr, _data: &mut Option<PktBuf>, _now: Time) -> Option<Input> { None }
    /// Complete processing.
    pub fn input_full(&mut self, _seg: &TcpHdr, _data: Option<PktBuf>, _now: Time) -> Input { Input::none() }
    /// Next data in order.
    pub fn next_in_order(&mut self) -> Option<PktBuf> { None }
    /// Next segment.
    pub fn plan(&mut self, _q: Queued, _now: Time) -> Option<SegPlan> { None }
    /// Space.
    pub fn app_read(&mut self, _space: u32, _now: Time) -> bool { false }
    /// Timer.
    pub fn on_timer(&mut self, _now: Time) -> TimerOutcome { TimerOutcome::default() }
    pub(super) fn arm_keepalive(&mut self, _now: Time) {}
}
