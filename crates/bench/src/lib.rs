//! What the hot paths of the stack cost, in instructions, and what an idle connection costs, in
//! bytes.
//!
//! | file | what |
//! |---|---|
//! | `device.rs` | devices that do next to nothing, so that what is measured is the stack |
//! | `world.rs` | a stack with a peer, and a clock that stands still |
//! | `paths.rs` | the paths: each prepares a step, and runs it |
//!
//! `benches/paths.rs` times the paths; `benches/listen.rs` listen and close over the number of
//! groups. `src/bin/counts.rs` runs one path under callgrind, for `cargo xtask counts`, which
//! gates the instructions in CI.
//! `src/bin/idle.rs` counts the memory of idle connections.
#![forbid(unsafe_code)]

pub mod device;
pub mod paths;
pub mod world;
