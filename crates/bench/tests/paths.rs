//! The paths take the way that they are named after: what is counted is what is meant.

use perimeter_bench::paths::{Path, Visitor, all};

struct Works;

impl Visitor for Works {
    fn visit<P: Path>(&mut self) {
        let mut path = P::new();
        let mut units = Vec::new();
        for _ in 0..8 {
            path.prepare();
            path.step();
            units.push(path.units());
        }
        let want = match P::NAME {
            // A page is 45 segments and a part, which waits for the next page.
            "send" | "send ipv6" => 45..=46,
            "ack" | "ack ipv6" => 32..=32,
            "ack+send" => 62..=64,
            n if n.starts_with("receive") || n.starts_with("udp") => 32..=32,
            "forward" => 32..=32,
            "lookup" => 1024..=1024,
            // Pages for up to three connections, sometimes for none.
            n if n.starts_with("busy") => 0..=138,
            _ => 256..=256,
        };
        for n in &units {
            assert!(want.contains(n), "{}: {units:?}", P::NAME);
        }
    }
}

#[test]
fn every_step_does_what_it_says() {
    all(&mut Works);
}
