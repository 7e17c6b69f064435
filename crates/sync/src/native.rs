//! To be written.
/// placeholder
pub struct Native;
