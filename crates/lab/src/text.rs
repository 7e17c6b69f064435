//! Values that a TOML file writes as text.

use serde::{Deserialize, Deserializer, de::Error};
use std::{fmt::Display, str::FromStr};

/// Reads one.
///
/// # Errors
/// What its parser says.
pub(crate) fn from_str<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    String::deserialize(d)?.parse().map_err(D::Error::custom)
}

/// The same, for what may be absent.
///
/// # Errors
/// What its parser says.
pub(crate) fn optional_from_str<'de, D, T>(d: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    from_str(d).map(Some)
}
