//! Times of the hot paths.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use perimeter_bench::paths::{Path, Visitor, all};
use std::hint::black_box;
use std::time::{Duration, Instant};

struct Timed<'a>(&'a mut Criterion);

impl Visitor for Timed<'_> {
    fn visit<P: Path>(&mut self) {
        let mut path = P::new();
        path.prepare();
        path.step();
        let units = path.units();
        let mut group = self.0.benchmark_group(P::NAME);
        group.throughput(Throughput::Elements(units));
        group.bench_function(format!("{units} x {}", P::UNIT), |b| {
            b.iter_custom(|n| {
                let mut time = Duration::ZERO;
                for _ in 0..n {
                    path.prepare();
                    let start = Instant::now();
                    path.step();
                    time += start.elapsed();
                    black_box(path.units());
                }
                time
            });
        });
        group.finish();
    }
}

fn paths(c: &mut Criterion) {
    all(&mut Timed(c));
}

criterion_group!(benches, paths);
criterion_main!(benches);
