//! Prints what the null stack and the ideal peer cost, by number of connections.

use perimeter_link::null::{NullConfig, run};
use perimeter_sync::Native;

fn main() {
    let platform = Native::new();
    println!("connections  burst  null ns/seg  peer ns/seg  acks/seg");
    for connections in [1, 6, 192, 16_384] {
        for burst in [2, 32] {
            let config = NullConfig::default()
                .with_connections(connections)
                .with_burst(burst)
                .with_segments(600_000);
            // The best of many short runs: what the code costs when nothing else runs.
            let mut best: Option<perimeter_link::null::NullReport> = None;
            for _ in 0..15 {
                match run(&platform, &config) {
                    Ok(r) => {
                        if best.is_none_or(|b| r.peer_ns + r.stack_ns < b.peer_ns + b.stack_ns) {
                            best = Some(r);
                        }
                    }
                    Err(e) => println!("{connections}: {e}"),
                }
            }
            if let Some(r) = best {
                println!(
                    "{connections:11}  {burst:5}  {:11.1}  {:11.1}  {:8.3}",
                    r.stack_ns, r.peer_ns, r.acks
                );
            }
        }
    }
}
