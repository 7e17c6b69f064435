//! CUBIC's window function (RFC 9438, sections 4.2 to 4.5).

/// State of the current epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {}
