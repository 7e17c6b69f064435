//! Backend: Perimeter's own organizations over the memory NIC with its ideal peer (`mem`), over
//! devices of the host with its kernel's sockets (`tap`, `tun`, `packet`, `xdp`), or back to back with a second stack of the
//! same organization (`pair`).
//!
//! A stack is built for each run. The application's threads, one [`crate::workload::Endpoint`]
//! each, open their connections to the ideal peer and then send to it, receive from it, or both.
//! The peer's work is done in the transmit doorbell and in polling, on the thread that does those,
//! and is timed apart by the device. Goodput is what the peer has acknowledged, and what the stack
//! has acknowledged to the peer.

mod datagrams;
mod end;
mod endpoint;
mod floor;
pub(crate) mod kernel;
mod listening;
mod mem;
pub(crate) mod network;
mod pair;
mod raw;
mod raw_tcp;
mod times;
#[cfg(feature = "virtual")]
pub mod virtual_cores;

use crate::{
    Error,
    session::{Backend, Session, Traits},
    workload::{Configuration, Device, Settings, reconnect},
};
use end::spec;
pub use floor::Floor;
pub use listening::Listening;
use perimeter::{Lending, Native};
pub use raw_tcp::RawLoop;
use std::time::Instant;

/// The backend of our organizations.
#[derive(Debug, Default)]
pub struct Perimeter {}

impl Backend for Perimeter {
    fn check(
        &mut self,
        settings: &Settings,
        configurations: &[Configuration],
    ) -> Result<(), Error> {
        match settings.device {
            Device::Mem | Device::Pair => Ok(()),
            _ => kernel::check(settings, configurations),
        }
    }

    fn traits(&self, settings: &Settings, configuration: &Configuration) -> Traits {
        let mut notes = match settings.device {
            Device::Mem => Vec::new(),
            Device::Pair => pair::notes(settings, configuration),
            _ => kernel::notes(settings),
        };
        notes.extend(lending(settings));
        notes.extend(reconnect::note(settings));
        notes.extend(settings.udp.into_iter().flat_map(|_| datagrams::notes()));
        Traits {
            device: settings.device.to_string(),
            inbound: settings.inbound.to_string(),
            comparable: true,
            notes,
        }
    }

    fn prepare(
        &mut self,
        settings: &Settings,
        configuration: &Configuration,
        deadline: Option<Instant>,
    ) -> Result<Box<dyn Session>, Error> {
        let org = spec(configuration)?;
        if let Some(size) = settings.udp {
            return datagrams::prepare(org, settings, configuration, size);
        }
        match settings.device {
            Device::Mem => mem::prepare(org, settings, configuration, deadline),
            Device::Pair => pair::prepare(org, settings, configuration, deadline),
            _ => kernel::prepare(org, settings, configuration, deadline),
        }
    }
}

/// What there is to say of priorities.
fn lending(settings: &Settings) -> impl Iterator<Item = String> {
    let native = Native::default().with_policy(settings.locks);
    let not = native.lending() == Lending::NotPermitted;
    not.then(|| "waiters lend no priority: SCHED_FIFO is not permitted".to_string())
        .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        organizations::Organization,
        workload::{Coalescing, Direction, Family, Inbound, Sample},
    };
    use perimeter::Offload;
    use std::time::Duration;

    fn measure(org: &str, change: impl FnOnce(&mut Settings)) -> Sample {
        measure_for(Duration::from_millis(200), org, change)
    }

    fn measure_for(time: Duration, org: &str, change: impl FnOnce(&mut Settings)) -> Sample {
        let mut settings = Settings {
            organizations: vec![crate::backends::parse(org).unwrap()],
            connections: vec![6],
            threads: 2,
            nics: 2,
            ..Settings::default()
        };
        change(&mut settings);
        let grid = crate::bench::grid::grid(&settings);
        let ours = |c: &&Configuration| c.organization != Organization::Null;
        let configuration = grid.iter().find(ours).unwrap();
        let mut backend = Perimeter::default();
        backend
            .check(&settings, std::slice::from_ref(configuration))
            .unwrap();
        let deadline = Some(Instant::now() + Duration::from_secs(20));
        let mut session = backend
            .prepare(&settings, configuration, deadline)
            .unwrap_or_else(|e| panic!("{org}: {e}"));
        session.warm_up(Duration::from_millis(50)).unwrap();
        session.measure(time).unwrap()
    }

    fn measure_until(
        org: &str,
        seen: impl Fn(&Sample) -> bool,
        change: impl Fn(&mut Settings),
    ) -> Sample {
        Sample::once_seen(seen, |time| measure_for(time, org, &change))
    }

    #[test]
    fn every_organization_in_every_direction() {
        for org in perimeter::OrgSpec::tested() {
            let org = &*org.to_string();
            for (direction, family) in [
                (Direction::Send, Family::Ipv4),
                (Direction::Receive, Family::Ipv4),
                (Direction::Both, Family::Ipv4),
                (Direction::Both, Family::Ipv6),
            ] {
                let sample = measure_until(org, Sample::all_moved, |s| {
                    (s.direction, s.family) = (direction, family);
                });
                let what = format!("{org} {direction} {family}: {sample:?}");
                assert!(sample.goodput > 1e6, "{what}");
                assert!(sample.connection_min > 0, "{what}");
                assert!(sample.verified_bytes > 0, "{what}");
                assert!(sample.times.stack.is_some(), "{what}");
                assert!(sample.times.peer.unwrap() > 0, "{what}");
                if org.starts_with("connp-l") {
                    assert!(sample.locks.iter().any(|l| l.class == "group"), "{what}");
                }
            }
        }
    }

    #[test]
    fn what_is_received_can_be_read_in_place() {
        let handed_on = |s: &mut Settings| (s.device, s.hand_on) = (Device::Pair, true);
        for setting in [|_: &mut Settings| (), handed_on] {
            let sample = measure_until("connp-l:8", Sample::all_moved, |s| {
                (s.direction, s.in_place) = (Direction::Receive, true);
                setting(s);
            });
            assert!(sample.connection_min > 0, "{sample:?}");
            assert!(sample.verified_bytes > 0, "{sample:?}");
        }
    }

    /// With the kernel as the peer, over each device of the host, in each direction and inbound
    /// mode, if the machine permits.
    #[test]
    fn every_organization_over_devices_of_the_host() {
        let ipv4 = [
            (Device::Tap, "up", Direction::Send, Inbound::Nic),
            (Device::Tap, "up:shared", Direction::Receive, Inbound::Nic),
            (Device::Tap, "connp-l:8", Direction::Both, Inbound::Thread),
            (Device::Tap, "connp-l:8", Direction::Send, Inbound::Affine),
            (Device::Tun, "up:shared", Direction::Both, Inbound::Nic),
            (Device::Packet, "up", Direction::Both, Inbound::Nic),
            (
                Device::Packet,
                "connp-l:8",
                Direction::Send,
                Inbound::Affine,
            ),
            (Device::Xdp, "up", Direction::Both, Inbound::Nic),
            (
                Device::Xdp,
                "connp-l:8",
                Direction::Receive,
                Inbound::Affine,
            ),
        ];
        let ipv6 = [
            (Device::Tap, "up", Direction::Both, Inbound::Nic),
            (Device::Tap, "connp-l:8", Direction::Both, Inbound::Affine),
            (Device::Tun, "up:shared", Direction::Receive, Inbound::Nic),
            (Device::Xdp, "up", Direction::Both, Inbound::Nic),
        ];
        let ipv4 = ipv4.map(|run| (run, Family::Ipv4));
        let ipv6 = ipv6.map(|run| (run, Family::Ipv6));
        for ((device, org, direction, inbound), family) in ipv4.into_iter().chain(ipv6) {
            let settings = Settings {
                device,
                family,
                ..Settings::default()
            };
            if let Err(e) = kernel::check(&settings, &crate::bench::grid::grid(&settings)[..1]) {
                eprintln!("skipped: {e}");
                continue;
            }
            let sample = measure_until(org, Sample::all_moved, |s| {
                s.device = device;
                s.family = family;
                s.direction = direction;
                s.inbound = inbound;
                s.connections = vec![40];
            });
            let what = format!("{device} {family} {org} {direction} {inbound}: {sample:?}");
            assert!(sample.goodput > 1e6, "{what}");
            assert!(sample.connection_min > 0, "{what}");
            assert!(sample.verified_bytes > 0, "{what}");
            assert!(sample.times.stack.is_none() && sample.cpu_ns > 0, "{what}");
        }
    }

    /// A row without a stack, of three connections if it has any; `None`: the machine does not permit
    /// it.
    fn raw(
        backend: &mut dyn Backend,
        organization: Organization,
        (device, direction, offload): (Device, Direction, Offload),
    ) -> Option<(Settings, Configuration)> {
        let settings = Settings {
            organizations: vec![organization.clone()],
            connections: vec![3],
            device,
            direction,
            offload,
            ..Settings::default()
        };
        settings.check().unwrap();
        let configuration = crate::bench::grid::grid(&settings).remove(0);
        assert_eq!(configuration.organization, organization);
        match backend.check(&settings, std::slice::from_ref(&configuration)) {
            Ok(()) => Some((settings, configuration)),
            Err(e) => {
                eprintln!("skipped: {e}");
                None
            }
        }
    }

    /// Beside each device of the host: what it carries without a stack.
    #[test]
    fn devices_of_the_host_have_a_raw_loop() {
        for device in [Device::Tap, Device::Packet, Device::Xdp] {
            for (direction, offload) in [
                (Direction::Send, Offload::Off),
                (Direction::Receive, Offload::Off),
                (Direction::Send, Offload::Device),
                (Direction::Receive, Offload::Device),
            ] {
                let what = (device, direction, offload);
                let Some((settings, configuration)) = raw(&mut Floor, Organization::Null, what)
                else {
                    continue;
                };
                let mut session = Floor.prepare(&settings, &configuration, None).unwrap();
                session.warm_up(Duration::from_millis(20)).unwrap();
                let sample = session.measure(Duration::from_millis(150)).unwrap();
                let what = format!("{device} {direction} {offload}: {sample:?}");
                assert!(sample.goodput > 1e6 && sample.segments > 0.0, "{what}");
            }
        }
    }

    /// And with the kernel's TCP at the other end, which tells what it was sent wrong.
    #[test]
    fn devices_of_the_host_have_a_raw_loop_with_tcp() {
        let ways = [Direction::Send, Direction::Receive];
        let offloads = [Offload::Off, Offload::Device];
        let devices = [Device::Tap, Device::Tun, Device::Packet, Device::Xdp];
        let all = devices.into_iter().flat_map(|d| ways.map(|way| (d, way)));
        for ((device, direction), offload) in all.flat_map(|run| offloads.map(|o| (run, o))) {
            let what = (device, direction, offload);
            let Some((settings, configuration)) = raw(&mut RawLoop, Organization::NullTcp, what)
            else {
                continue;
            };
            let moved = |s: &Sample| {
                let verified = s.verified_bytes > 0 || direction == Direction::Receive;
                s.goodput > 1e6 && s.connection_min > 0 && verified
            };
            let sample = Sample::once_seen(moved, |time| {
                let mut session = RawLoop.prepare(&settings, &configuration, None).unwrap();
                session.warm_up(Duration::from_millis(20)).unwrap();
                session.measure(time).unwrap()
            });
            let what = format!("{device} {direction} {offload}: {sample:?}");
            assert!(moved(&sample) && sample.valid, "{what}");
        }
    }

    /// Both ends ours: bytes arrive whatever the organization, and the threads and locks of both
    /// ends are in the account.
    #[test]
    fn every_organization_back_to_back() {
        for org in perimeter::OrgSpec::tested() {
            let org = &*org.to_string();
            for (direction, inbound, family) in [
                (Direction::Send, Inbound::Nic, Family::Ipv4),
                (Direction::Both, Inbound::Thread, Family::Ipv4),
                (Direction::Both, Inbound::Nic, Family::Ipv6),
            ] {
                let sample = measure_until(org, Sample::all_moved, |s| {
                    s.device = Device::Pair;
                    s.family = family;
                    s.direction = direction;
                    s.inbound = inbound;
                });
                let what = format!("{org} {direction} {inbound} {family}: {sample:?}");
                assert!(sample.goodput > 1e6, "{what}");
                assert!(sample.connection_min > 0, "{what}");
                assert!(sample.verified_bytes > 0, "{what}");
                assert!(sample.times.stack.unwrap() > 0, "{what}");
                assert_eq!(sample.times.peer, Some(0), "{what}");
            }
        }
    }

    /// Datagrams both ways over the memory NIC, in a pair, and to the kernel's sockets, by every
    /// organization and over both families: they arrive, are right, and what is lost is told.
    #[test]
    fn every_organization_with_datagrams() {
        let orgs = perimeter::OrgSpec::tested();
        for (i, org) in orgs.iter().enumerate() {
            let org = &*org.to_string();
            let one_way = [Direction::Send, Direction::Receive][i % 2];
            let family = [Family::Ipv4, Family::Ipv6][i / 2 % 2];
            for (device, direction) in [
                (Device::Mem, Direction::Send),
                (Device::Mem, Direction::Receive),
                (Device::Pair, Direction::Both),
                (Device::Tap, one_way),
            ] {
                let asked = |s: &mut Settings| {
                    (s.device, s.direction, s.family) = (device, direction, family);
                    (s.udp, s.nics) = (Some(64), 1);
                };
                let mut settings = Settings::default();
                asked(&mut settings);
                if device == Device::Tap
                    && let Err(e) = kernel::possible(device, 1, 1, (settings.mtu, family))
                {
                    eprintln!("skipped: {e}");
                    continue;
                }
                let seen = |s: &Sample| s.rounds > 1000 && s.verified_bytes > 0;
                let sample = measure_until(org, seen, asked);
                let what = format!("{org} {device} {direction} {family}: {sample:?}");
                assert!(sample.rounds > 1000 && sample.verified_bytes > 0, "{what}");
                assert!(sample.lost.is_some_and(|l| l < 1.0), "{what}");
                assert!(sample.segments >= 1000.0 && sample.cpu_ns > 0, "{what}");
                assert_eq!(
                    sample.times.stack.is_some(),
                    device != Device::Tap,
                    "{what}"
                );
                // The peer takes what is sent to it, whatever happens.
                if (device, direction) == (Device::Mem, Direction::Send) {
                    assert!(sample.lost.is_some_and(|l| l < 0.2), "{what}");
                }
            }
        }
    }

    /// Steering holds at both ends of a wire: with a queue for each thread, every connection is
    /// served by the thread that it belongs to.
    #[test]
    fn a_pair_is_steered_and_paced() {
        let sample = measure("connp-l:8", |s| {
            s.device = Device::Pair;
            s.inbound = Inbound::Affine;
            s.connections = vec![40];
            s.nics = 1;
            s.link_gbps = Some(0.5);
        });
        assert!(sample.goodput * 8.0 < 0.55e9, "{sample:?}");
        assert!(sample.goodput > 1e5, "{sample:?}");
    }

    /// Ping-pong over both devices: a round takes at least the peer's round trip.
    #[test]
    fn exchanges_are_counted_and_timed() {
        let exchange = |s: &mut Settings| {
            s.exchange = Some("64:200".parse().unwrap());
            s.coalescing = Coalescing::NoDelay;
        };
        for org in ["up", "connp-l:8", "pef:vertical"] {
            let sample = measure(org, exchange);
            let latency = sample.latency.unwrap();
            assert!(sample.rounds > 100, "{org}: {sample:?}");
            assert!(latency.p50_ns >= 50_000, "{org}: {sample:?}");
            let bytes = sample.goodput * sample.elapsed.as_secs_f64();
            let ratio = bytes / (sample.rounds * 264) as f64;
            assert!((0.8..1.2).contains(&ratio), "{org}: {ratio} {sample:?}");
        }
        // Writes of 64 bytes are segments of 64 bytes between two stacks of ours.
        let sample = measure("connp-l:8", |s| {
            exchange(s);
            s.device = Device::Pair;
            s.rtt = Some(Duration::from_millis(2));
        });
        assert!(sample.rounds > 50, "{sample:?}");
        assert!(sample.latency.unwrap().p50_ns >= 2_000_000, "{sample:?}");
        let settings = Settings {
            device: Device::Tap,
            ..Settings::default()
        };
        if kernel::check(&settings, &crate::bench::grid::grid(&settings)[..1]).is_err() {
            return;
        }
        let sample = measure("connp-l:8", |s| {
            exchange(s);
            s.device = Device::Tap;
        });
        assert!(
            sample.rounds > 100 && sample.latency.is_some(),
            "{sample:?}"
        );
        assert!(sample.verified_bytes > 0, "{sample:?}");
    }

    /// Connections are opened and closed over and over, by every organization.
    #[test]
    fn connections_are_opened_anew() {
        let once = |s: &mut Settings| {
            s.reconnect = true;
            s.device = Device::Pair;
            s.exchange = Some("64:200".parse().unwrap());
            s.coalescing = Coalescing::NoDelay;
        };
        for org in perimeter::OrgSpec::tested() {
            let org = &*org.to_string();
            let sample = measure_until(org, |s| s.rounds > 20, once);
            assert!(sample.rounds > 20, "{org}: {sample:?}");
            assert!(sample.latency.unwrap().p50_ns > 1000, "{org}: {sample:?}");
        }
        // Without a byte.
        let many = |s: &Sample| s.rounds > 20;
        let sample = measure_until("up:shared", many, |s| {
            once(s);
            s.exchange = None;
            s.inbound = Inbound::Thread;
        });
        assert!(sample.rounds > 20 && sample.segments == 0.0, "{sample:?}");
        let settings = Settings {
            device: Device::Tap,
            ..Settings::default()
        };
        if kernel::check(&settings, &crate::bench::grid::grid(&settings)[..1]).is_err() {
            return;
        }
        let sample = measure_until("connp-l:8", many, |s| {
            once(s);
            s.device = Device::Tap;
        });
        assert!(sample.rounds > 20, "{sample:?}");
    }

    #[test]
    fn the_floor_is_below() {
        let settings = Settings::default();
        let configuration = &crate::bench::grid::grid(&settings)[0];
        let mut session = Floor.prepare(&settings, configuration, None).unwrap();
        session.warm_up(Duration::from_millis(20)).unwrap();
        let sample = session.measure(Duration::from_millis(50)).unwrap();
        assert!(sample.times.stack.unwrap() > 0, "{sample:?}");
        assert!(sample.times.valid(), "{sample:?}");
        assert!(sample.goodput > 1e6, "{sample:?}");
    }

    #[test]
    fn every_inbound_mode_moves_many_connections() {
        for inbound in [Inbound::Nic, Inbound::Thread, Inbound::Affine] {
            // A busy machine may keep one thread, and so its connections, off the cores for a
            // whole short window; who starves does so in a long one.
            let least = [200, 1000, 3000].into_iter().find_map(|ms| {
                let sample = measure_for(Duration::from_millis(ms), "connp-l:16", |s| {
                    s.inbound = inbound;
                    s.connections = vec![300];
                });
                (sample.connection_min > 0).then_some(sample.connection_min)
            });
            assert!(least.is_some(), "{inbound}");
        }
    }

    #[test]
    fn pacing_bounds_goodput() {
        // A busy machine comes near only in a longer run.
        let near = |s: &Sample| s.goodput * 8.0 > 0.38e9;
        let sample = measure_until("up", near, |s| {
            s.link_gbps = Some(0.5);
            s.nics = 1;
        });
        assert!(sample.goodput * 8.0 < 0.55e9, "{sample:?}");
        // Headers, preamble and gap leave 0.47 of the 0.5 Gb/s; a busy machine some less.
        assert!(sample.goodput * 8.0 > 0.38e9, "{sample:?}");
    }

    /// A switched-on profile tells of every acquisition; without it nothing is timed.
    #[test]
    fn locks_and_hand_overs_are_timed_when_asked() {
        let plain = measure("connp-t:2", |_| {});
        assert!(plain.paths.is_empty() && plain.locks.iter().all(|l| l.times.is_none()));
        for (org, class) in [("connp-l:4", "group"), ("connp-t:2", "sndbuf")] {
            let sample = measure(org, |s| s.profile = true);
            let locks = sample.locks.iter().find(|l| l.class == class).unwrap();
            let times = locks.times.as_ref().unwrap();
            // All of them and not a sample; the two are read one after the other while threads
            // go on.
            let held = times.hold.count();
            assert!(3 * held > locks.acquisitions, "{org}: {held} {locks:?}");
            let path = |name: &str| sample.paths.iter().find(|p| p.path == name).unwrap();
            let handed = path("queue").count > 0;
            assert_eq!(handed, org == "connp-t:2", "{org}: {:?}", sample.paths);
            if handed {
                assert!(
                    path("park").count > 0 && path("wake").ns > 0,
                    "{:?}",
                    sample.paths
                );
            }
        }
    }
}
