//! A stub resolver (RFC 1034, section 5.3.1) as a pure state machine: it says whom to ask what, is
//! told what came back, and keeps what was learnt. It has no socket, no clock and no thread: who
//! drives a [`Lookup`] has those, and may block or await.
//!
//! ```
//! use perimeter_base::Time;
//! use perimeter_dns::{DnsConfig, Families, Resolver, Step};
//! use std::sync::Arc;
//!
//! let servers = ["192.0.2.53:53".parse()?];
//! let resolver = Arc::new(Resolver::new(DnsConfig::default(), &servers, [1, 2], 32_768..=60_999));
//! let mut lookup = resolver.lookup("example.org", Families::BOTH, Time::ZERO);
//! let Step::Ask(queries) = lookup.step(Time::ZERO) else { unreachable!("nothing is known yet") };
//! // One for each family: each is sent from a port of its own, and waited for until a time.
//! assert_eq!(queries.len(), 2);
//! assert_eq!(queries[0].server, servers[0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What is believed of an answer: it repeats the identification, which is drawn at random for each
//! query, and the question; records count only along the chain of aliases that begins at the
//! question's name. That it comes from the server that was asked, to a port drawn at random, is
//! its driver's part (RFC 5452): [`Resolver::port`] draws.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod cache;
mod config;
mod error;
mod lookup;
mod message;
mod name;
mod order;
mod resolver;

pub use config::DnsConfig;
pub use error::LookupError;
pub use lookup::{Lookup, MAX_STRAY, Query, Step};
pub use order::Families;
pub use resolver::Resolver;
