//! Two stacks back to back, and runtimes for them.
#![allow(dead_code, reason = "each test crate uses a part of this")]

use perimeter::link::wire::{WireConfig, pair};
use perimeter::{Native, OrgSpec, Stack};
use perimeter_tokio::Net;
use std::time::Duration;
use tokio::task::LocalSet;

/// How long a test may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A server at 10.0.0.1 under `org`, and a client at 10.0.0.2 under `other`, over a wire in memory.
pub fn nets(org: &OrgSpec, other: &OrgSpec) -> (Net, Net) {
    let native = Native::default();
    let ([a, b], _) = pair(&native, WireConfig::default());
    let net = |org: &OrgSpec, end, addr| {
        let builder = Stack::builder().on_native(native).org(org.clone());
        Net::new(builder.interface(end, &[addr]).unwrap().build().unwrap())
    };
    (net(org, a, "10.0.0.1/24"), net(other, b, "10.0.0.2/24"))
}

/// Runs `test` with a server and a client of every organization, on a runtime of one thread; also
/// stacks of one thread take part so.
pub fn each_organization(test: impl AsyncFn(Net, Net)) {
    for org in OrgSpec::tested() {
        eprintln!("{org}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(LocalSet::new().run_until(async {
            let (server, client) = nets(&org, &org);
            for net in [&server, &client] {
                let net = net.clone();
                tokio::task::spawn_local(async move { net.drive().await });
            }
            let done = tokio::time::timeout(LIMIT, test(server, client)).await;
            assert!(done.is_ok(), "{org}: not done in {LIMIT:?}");
        }));
    }
}

/// Data that tells its stream and place.
pub fn pattern(stream: u64, len: usize) -> Vec<u8> {
    let mut x = stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    })
    .take(len)
    .collect()
}
