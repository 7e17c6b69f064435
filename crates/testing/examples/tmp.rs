use perimeter_testing::*;
use std::time::{Duration, Instant};
fn main() {
    let t = Instant::now();
    for seed in 0..200 {
        let mut sim = Sim::new(seed);
        sim.host("server", || async { std::future::pending().await });
        sim.client("client", async { Ok(()) });
        sim.run().unwrap();
    }
    println!("{:?} a seed", t.elapsed() / 200);
    let mut sim = Sim::new(1);
    sim.host("server", || async { std::future::pending().await });
    sim.client("client", async { for _ in 0..60 { tokio::time::sleep(Duration::from_secs(1)).await } Ok(()) });
    let t = Instant::now();
    sim.run().unwrap();
    println!("{:?} for {:?}", t.elapsed(), sim.elapsed());
}
