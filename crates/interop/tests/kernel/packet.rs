//! Packet sockets on one end of a veth pair, the kernel on the other.

use crate::common::{
    LIMIT, Load, accept, alone, each_of, peer, peer_accepts, some, until, wind_up,
};
use crate::transfer::{python_on, send};
use crate::weather::both_ways;
use perimeter::link::fault::{FaultConfig, Faulty};
use perimeter::link::host::{self, Feature};
use perimeter::link::packet::{Packet, PacketConfig, PacketError, PacketHandle};
use perimeter::link::{Device, MacAddr};
use perimeter::{Config, Offload, OrgSpec, Stack};
use perimeter_interop::program::{self, Program, python};
use perimeter_interop::veths::{self, OURS, THEIRS};
use perimeter_interop::{examples, namespace, taps};
use std::io::Read;
use std::time::{Duration, Instant};

const PROGRAMS: [&str; 2] = ["ip", "python3"];

fn open(config: &PacketConfig) -> (Packet, PacketHandle) {
    let packet = Packet::open(config).unwrap_or_else(|e| panic!("{e}"));
    let handle = packet.handle();
    (packet, handle)
}

/// A stack that leaves large segments to its device, if that can.
fn stack_on(org: &OrgSpec, device: impl Device + 'static) -> Stack {
    let config = Config::default().with_offload(Offload::Device);
    taps::stack_with(org, config, device)
}

fn nothing_lost(handle: &PacketHandle) {
    let counts = handle.counts();
    println!("{counts:?}");
    assert_eq!((counts.unusable, counts.tagged, counts.refused), (0, 0, 0));
}

/// The veth pair passes large segments on; what we send is cut nowhere, either.
#[test]
fn python_over_packet_sockets_in_large_segments() {
    each_of(&PROGRAMS, Load::Works, &some(), |org| {
        veths::make(1500, 1);
        let (packet, handle) = open(&PacketConfig::new(OURS).with_large(true));
        let stack = stack_on(org, packet);
        python_on(&stack);
        let stats = stack.stats();
        for name in ["tx_large", "rx_merged"] {
            let n = stats.count(name);
            assert!(n > 100, "{org}: {name} {n}");
        }
        nothing_lost(&handle);
    });
}

/// Segment by segment, both ways, with checksums of our own.
#[test]
fn python_over_packet_sockets_segment_by_segment() {
    each_of(&PROGRAMS, Load::Works, &some(), |org| {
        veths::make(1500, 1);
        for feature in [Feature::Tso, Feature::TxChecksum] {
            host::set_feature(THEIRS, feature, false).expect("off");
        }
        let (packet, handle) = open(
            &PacketConfig::new(OURS)
                .with_checksum_offload(false)
                .with_bypass_qdisc(true),
        );
        python_on(&taps::stack_on(org, packet));
        nothing_lost(&handle);
    });
}

/// The kernel divides the flows; each stays where it is, and all that belongs to it.
#[test]
fn python_over_several_packet_sockets() {
    each_of(&PROGRAMS, Load::Works, &some(), |org| {
        veths::make(9000, 2);
        let (packet, handle) = open(&PacketConfig::new(OURS).with_queues(3).with_large(true));
        let stack = stack_on(org, packet);
        python_on(&stack);
        assert_eq!(stack.stats().count("rx_out_of_order"), 0, "{org}");
        nothing_lost(&handle);
    });
}

/// The stack as the only station behind the interface, with that one's own address.
#[test]
fn python_over_packet_sockets_with_the_own_address() {
    each_of(&PROGRAMS, Load::Works, &some()[..1], |org| {
        veths::make(1500, 1);
        let (packet, handle) =
            open(&PacketConfig::new(OURS).with_mac(Some(host::mac(OURS).expect("an address"))));
        assert_eq!(promiscuity(), 0, "{org}");
        python_on(&taps::stack_on(org, packet));
        nothing_lost(&handle);
    });
}

#[test]
fn everything_arrives_over_lossy_packet_sockets() {
    let clean = FaultConfig::default().with_seed(3);
    let faults = [
        clean.clone().with_loss(0.01),
        clean
            .with_reorder(0.2)
            .with_reorder_ns(300_000)
            .with_duplicate(0.05)
            .with_corrupt(0.01),
    ];
    let both = |org: OrgSpec| faults.iter().map(move |f| (org.clone(), f));
    let all: Vec<_> = some().into_iter().flat_map(both).collect();
    each_of(&PROGRAMS, Load::Waits, &all, |(org, faults)| {
        veths::make(1500, 1);
        // Segment by segment, as damage is done to frames.
        host::set_feature(THEIRS, Feature::TxChecksum, false).expect("off");
        let (packet, _) = open(&PacketConfig::new(OURS));
        let other = FaultConfig::clone(faults).with_seed(4);
        let (device, handle) = Faulty::new(Box::new(packet), FaultConfig::clone(faults), other);
        both_ways(&taps::stack_on(org, device), 4 << 20);
        println!("{org}: {:?} {:?}", handle.tx(), handle.rx());
    });
}

/// How many users have the interface take frames for others.
fn promiscuity() -> u32 {
    let text = veths::ip(&["-details", "link", "show", "dev", OURS]);
    let mut words = text.split_whitespace();
    words.find(|w| *w == "promiscuity").expect("told");
    words.next().and_then(|n| n.parse().ok()).expect("a number")
}

/// Packet sockets in this namespace.
fn sockets() -> usize {
    let text = std::fs::read_to_string("/proc/thread-self/net/packet").expect("a list");
    text.lines().count() - 1
}

#[test]
fn a_killed_process_leaves_no_packet_socket() {
    examples::build();
    alone(&PROGRAMS, || {
        veths::make(1500, 1);
        assert_eq!((promiscuity(), sockets()), (0, 0));
        let device = format!("packet:{OURS}");
        let args = ["--device", &device, "--queues", "2"];
        let mut echo = Program::start(examples::path("echo"), args, LIMIT);
        assert!(echo.line().starts_with("listening on 10.99.0.2:7"));
        assert_eq!(sockets(), 2);
        assert!(promiscuity() > 0, "veth can't filter");
        drop(echo);
        let end = Instant::now() + Duration::from_secs(5);
        while (promiscuity(), sockets()) != (0, 0) {
            assert!(
                Instant::now() < end,
                "left: {} {}",
                promiscuity(),
                sockets()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

/// Frames of another network, by their tag, are dropped and counted; one of network 0 has a
/// priority only. Frames to others do not even come.
#[test]
fn tagged_frames_are_dropped_and_counted() {
    const SEND: &str = "import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0))
ours, other = bytes.fromhex(sys.argv[2].replace(':', '')), bytes([2, 0, 0, 0, 0, 9])
for to, tag in [(ours, 5), (other, 5), (ours, 0), (ours, 4095)]:
    for _ in range(5):
        head = to + bytes([2, 0, 0, 0, 0, 8, 0x81, 0, 0xe0 | tag >> 8, tag & 255, 0x88, 0xb5])
        s.send(head + bytes(60))
";
    alone(&PROGRAMS, || {
        veths::make(1500, 1);
        let (packet, handle) = open(&PacketConfig::new(OURS));
        let mac = packet.capabilities().mac.to_string();
        let stack = taps::stack_on(&OrgSpec::default(), packet);
        let args = ["-I", "-S", "-c", SEND, THEIRS, &mac];
        let p = Program::start(python(), args, LIMIT);
        assert_eq!(crate::common::finish(&stack, p), "");
        until(&stack, "all tagged frames", || handle.counts().tagged >= 10);
        assert_eq!(handle.counts().tagged, 10);
        // EtherType 0x88b5, or others that the kernel sends: none is of ours.
        let other = |stack: &Stack| stack.stats().count("drop_other_protocol");
        until(&stack, "frames with a priority", || other(&stack) >= 5);
        assert_eq!(stack.stats().count("drop_other_station"), 0);
    });
}

#[test]
fn an_interface_of_packet_sockets_goes_down_and_away() {
    each_of(&PROGRAMS, Load::Waits, &some(), |org| {
        veths::make(1500, 1);
        let (packet, _) = open(&PacketConfig::new(OURS));
        let stack = taps::stack_on(org, packet);
        let p = peer_accepts(9050, &["linger"]);
        let mut s = stack.connect(taps::kernel_at(9050)).expect("connected");
        s.read_exact(&mut [0; 1]).expect("a byte");
        let down = Instant::now();
        host::set_up(OURS, false).expect("down");
        until(&stack, "some time", || {
            down.elapsed() > Duration::from_millis(300)
        });
        host::set_up(OURS, true).expect("up");
        // As good as before.
        let q = peer_accepts(9051, &["transfer", "receive"]);
        let t = stack.connect(taps::kernel_at(9051)).expect("connected");
        let digest = send(&t, 1 << 20);
        t.shutdown(std::net::Shutdown::Write).expect("shut down");
        assert_eq!(
            crate::common::finish(&stack, q),
            format!("{} {digest}", 1 << 20)
        );
        drop(t);
        veths::ip(&["link", "delete", OURS]);
        s.set_read_timeout(Some(Duration::from_secs(2)))
            .expect("a limit");
        let before = namespace::cpu();
        let e = s.read(&mut [0; 1]).expect_err("the interface has gone");
        assert_eq!(e.kind(), std::io::ErrorKind::NetworkDown, "{org}");
        std::thread::sleep(Duration::from_secs(1));
        let used = namespace::cpu().saturating_sub(before);
        assert!(
            used < Duration::from_millis(300),
            "{org}: {used:?} in a second of silence"
        );
        drop(p);
    });
}

/// Two stacks on one interface, each with an address of its own.
#[test]
fn two_stacks_share_an_interface() {
    alone(&PROGRAMS, || {
        veths::make(1500, 1);
        let first = taps::stack_on(&OrgSpec::default(), open(&PacketConfig::new(OURS)).0);
        let second = PacketConfig::new(OURS).with_mac(Some(MacAddr([2, 0, 0, 0, 0, 7])));
        let second = Stack::builder()
            .interface(open(&second).0, &["10.99.0.7/24"])
            .expect("an interface")
            .build()
            .expect("a stack");
        for (stack, address) in [(&first, "10.99.0.2"), (&second, "10.99.0.7")] {
            let l = stack.listen(format!("{address}:7050")).expect("a listener");
            let p = peer(&["connect", address, "7050", "transfer", "send", "1000000"]);
            let (digest, n) = crate::transfer::receive(&accept(&l));
            drop(l);
            assert_eq!(crate::common::finish(stack, p), format!("{n} {digest}"));
            wind_up(stack);
        }
    });
}

#[test]
fn packet_sockets_refuse_clearly() {
    alone(&["ip"], || {
        veths::make(1500, 1);
        host::set_up(OURS, false).expect("down");
        let e = Packet::open(&PacketConfig::new(OURS)).expect_err("down");
        assert!(matches!(e, PacketError::Down(_)), "{e:?}");
        assert!(e.to_string().contains("ip link set ours0 up"), "{e}");
        let e = Packet::open(&PacketConfig::new("lo")).expect_err("lo");
        assert!(matches!(e, PacketError::NotEthernet { .. }), "{e:?}");
        assert_eq!(sockets(), 0);
    });
    alone(&["ip", "setpriv"], || {
        examples::build();
        veths::make(1500, 1);
        let dir = tempfile::tempdir_in("/tmp").expect("a directory");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("opened");
        let copy = dir.path().join("echo");
        program::copy(examples::path("echo"), &copy);
        let device = format!("packet:{OURS}");
        let mut args = vec!["--reuid", "65534", "--regid", "65534", "--clear-groups"];
        args.extend([copy.to_str().expect("text"), "--device", &device]);
        let o = Program::start("setpriv", args, LIMIT).finish();
        assert_eq!(o.status.code(), Some(2), "{o:?}");
        assert!(o.err.contains("CAP_NET_RAW"), "{}", o.err);
        assert_eq!(o.err.trim_end().lines().count(), 1, "{}", o.err);
    });
}
