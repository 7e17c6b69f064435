//! `pef`: the Packet Event Framework.

pub mod event;
pub mod trace;
