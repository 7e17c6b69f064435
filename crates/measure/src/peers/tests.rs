use super::*;
use crate::{
    backends::backend_for,
    bench::grid,
    organizations::Organization,
    workload::{Coalescing, Direction, Exchange, Family, MTU},
};

fn settings(peer: Peer, connections: u32) -> Settings {
    Settings {
        organizations: vec![Organization::Other(peer.stack())],
        connections: vec![connections],
        device: Device::Pair,
        threads: 1,
        nics: 1,
        ..Settings::default()
    }
}

/// A run of a peer in which every connection moves bytes.
fn moved(settings: &Settings) -> Sample {
    Sample::once_seen(Sample::all_moved, |time| run(settings, time))
}

/// One whole run of a peer.
fn run(settings: &Settings, time: Duration) -> Sample {
    settings.check().unwrap();
    let configuration = &grid::grid(settings)[0];
    let mut backend = backend_for(settings, configuration);
    backend
        .check(settings, std::slice::from_ref(configuration))
        .unwrap();
    let mut session = backend.prepare(settings, configuration, None).unwrap();
    session.warm_up(Duration::from_millis(50)).unwrap();
    session.measure(time).unwrap()
}

#[test]
fn smoltcp_talks_to_itself() {
    // More than may be opening at a time, too.
    for (direction, connections) in [
        (Direction::Send, 150),
        (Direction::Receive, 6),
        (Direction::Both, 6),
    ] {
        let settings = Settings {
            direction,
            ..settings(Peer::Smoltcp, connections)
        };
        let sample = moved(&settings);
        assert!(sample.goodput > 1e6, "{direction}: {sample:?}");
        assert!(sample.verified_bytes > 0, "{direction}: {sample:?}");
        assert!(sample.connection_min > 0, "{direction}: {sample:?}");
        assert!(sample.cpu_ns > 0 && sample.times.stack.is_none());
    }
}

#[test]
fn smoltcp_plays_ping_pong() {
    let settings = Settings {
        exchange: Some("1000".parse::<Exchange>().unwrap()),
        coalescing: Coalescing::NoDelay,
        ..settings(Peer::Smoltcp, 3)
    };
    let sample = Sample::once_seen(|s| s.rounds > 100, |time| run(&settings, time));
    assert!(sample.rounds > 100, "{sample:?}");
    assert!(sample.latency.is_some() && sample.verified_bytes > 0);
}

#[test]
fn smoltcp_talks_to_the_kernel() {
    if let Err(e) = ours::kernel::possible(Device::Tap, 1, 1, (MTU, Family::Ipv4)) {
        eprintln!("skipped: {e}");
        return;
    }
    for direction in [Direction::Send, Direction::Receive] {
        let settings = Settings {
            device: Device::Tap,
            direction,
            ..settings(Peer::Smoltcp, 6)
        };
        let sample = moved(&settings);
        assert!(sample.goodput > 1e6, "{direction}: {sample:?}");
        assert!(sample.verified_bytes > 0, "{direction}: {sample:?}");
        assert!(sample.connection_min > 0, "{direction}: {sample:?}");
    }
}

#[test]
fn smoltcp_says_what_it_cannot_do() {
    let settings = settings(Peer::Smoltcp, 16_384);
    let configuration = &grid::grid(&settings)[0];
    smoltcp::setup::fits(&settings, configuration, 64 << 30).unwrap();
    let error = smoltcp::setup::fits(&settings, configuration, 4 << 30).unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)));
    // 256 KB and 4 KB at each end of each connection.
    assert!(error.to_string().contains("8.1 GiB"), "{error}");
    let many = Settings {
        connections: vec![60_000],
        buffer: 4096,
        ..settings
    };
    let error = smoltcp::setup::fits(&many, &grid::grid(&many)[0], 64 << 30).unwrap_err();
    assert!(error.to_string().contains("ports"), "{error}");
}

/// Whether what has to be got and built first is to be tested.
fn asked_for(peer: Peer) -> bool {
    let asked = std::env::var_os("PERIMETER_TEST_PEERS").is_some();
    if !asked {
        eprintln!("skipped: PERIMETER_TEST_PEERS is not set, so {peer} is not built");
    }
    asked
}

/// An adapter's stack with both ends, in every direction.
fn talks_to_itself_and_to_the_kernel(peer: Peer) {
    if !asked_for(peer) {
        return;
    }
    let devices = match ours::kernel::possible(Device::Tap, 1, 1, (MTU, Family::Ipv4)) {
        Ok(()) => vec![Device::Pair, Device::Tap],
        Err(_) => vec![Device::Pair],
    };
    for device in devices {
        for direction in [Direction::Send, Direction::Receive, Direction::Both] {
            let settings = Settings {
                device,
                direction,
                threads: 2,
                ..settings(peer, 6)
            };
            let sample = moved(&settings);
            let what = format!("{device} {direction}: {sample:?}");
            assert!(sample.goodput > 1e6 && sample.connection_min > 0, "{what}");
            assert!(sample.verified_bytes > 0, "{what}");
            assert!(sample.valid && sample.cpu_ns > 0, "{what}");
        }
    }
}

#[test]
fn gvisor_talks_to_itself_and_to_the_kernel() {
    talks_to_itself_and_to_the_kernel(Peer::Gvisor);
}

#[test]
fn lwip_talks_to_itself_and_to_the_kernel() {
    talks_to_itself_and_to_the_kernel(Peer::Lwip);
}
