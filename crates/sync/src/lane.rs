//! To be written.
/// placeholder
pub struct PerLane;
