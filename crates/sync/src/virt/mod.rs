//! To be written.
/// placeholder
pub struct Virtual;
