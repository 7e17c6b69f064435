//! What listen and close cost as the number of groups grows: under `connp-t` each thread has a
//! wildcard entry to be made and shot down, one after another; under `connp-l` the caller visits
//! each group.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use perimeter::Stack;
use perimeter_bench::device::Sink;
use std::hint::black_box;
use std::time::Duration;

fn listen(c: &mut Criterion) {
    let mut group = c.benchmark_group("listen and close");
    group.sample_size(20);
    group.warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_millis(600));
    for (family, rest) in [
        ("connp-t", ""),
        ("connp-t", ":wait=spin"),
        ("connp-t", ":wait=spin:fold"),
        ("connp-l", ""),
    ] {
        for n in [1, 2, 4, 8, 32, 128] {
            let name = format!("{family}:{n}{rest}");
            let b = Stack::builder().organization(&name).expect("a name");
            let b = b.interface(Sink, &["10.0.0.1/24"]).expect("an address");
            let stack = b.build().expect("a stack");
            let id = BenchmarkId::new(format!("{family}{rest}"), n);
            group.bench_function(id, |b| {
                b.iter(|| drop(black_box(stack.listen("10.0.0.1:80").expect("a listener"))));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, listen);
criterion_main!(benches);
