//! AF_XDP on one end of a veth pair, the kernel on the other.

use crate::common::{
    LIMIT, Load, accept, alone, each_of, finish, peer_accepts, peer_connects, some, until, wind_up,
};
use crate::transfer::{python_on, receive, send};
use crate::weather::both_ways;
use perimeter::link::fault::{FaultConfig, Faulty};
use perimeter::link::host::{self, Feature};
use perimeter::link::xdp::{Xdp, XdpConfig, XdpCopy, XdpError, XdpHandle, XdpMode, XdpProgram};
use perimeter::link::{Device, MacAddr};
use perimeter::{OrgSpec, Stack};
use perimeter_interop::program::{self, Program, python};
use perimeter_interop::veths::{self, OURS, THEIRS};
use perimeter_interop::{examples, namespace, taps};
use std::io::Read;
use std::net::Shutdown;
use std::time::{Duration, Instant};

const PROGRAMS: [&str; 2] = ["ip", "python3"];

fn open(config: &XdpConfig) -> (Xdp, XdpHandle) {
    let xdp = Xdp::open(config).unwrap_or_else(|e| panic!("{e}"));
    let handle = xdp.handle();
    (xdp, handle)
}

/// A pair whose other end sends frames that fit, whatever the mode.
fn veths_cut(mtu: u32, queues: usize) {
    veths::make(mtu, queues);
    host::set_feature(THEIRS, Feature::Tso, false).expect("off");
}

fn nothing_lost(handle: &XdpHandle) {
    let counts = handle.counts();
    println!("{counts:?}");
    assert!(counts.received > 0 && counts.sent > 0);
    assert_eq!((counts.unusable, counts.refused), (0, 0));
}

/// In the driver and behind it; the pair leaves checksums partial.
#[test]
fn python_over_xdp_in_either_mode() {
    let modes = [XdpMode::Driver, XdpMode::Generic];
    let both = |org: OrgSpec| modes.iter().map(move |m| (org.clone(), *m));
    let all: Vec<_> = some().into_iter().flat_map(both).collect();
    each_of(&PROGRAMS, Load::Works, &all, |(org, mode)| {
        veths_cut(1500, 1);
        let (xdp, handle) = open(&XdpConfig::new(OURS).with_mode(*mode));
        assert_eq!(xdp.is_generic(), *mode == XdpMode::Generic);
        python_on(&taps::stack_on(org, xdp));
        nothing_lost(&handle);
    });
}

/// Each of the interface's queues has a socket, all in one region; frames of a page.
#[test]
fn python_over_several_xdp_queues() {
    each_of(&PROGRAMS, Load::Works, &some(), |org| {
        veths_cut(3000, 3);
        let (xdp, handle) = open(&XdpConfig::new(OURS));
        assert_eq!((xdp.queues(), xdp.is_zero_copy()), (3, false));
        let stack = taps::stack_on(org, xdp);
        python_on(&stack);
        assert_eq!(stack.stats().count("rx_out_of_order"), 0, "{org}");
        nothing_lost(&handle);
    });
}

/// The stack shares the interface's own link-layer address with the kernel, which keeps what is
/// for its IP address; both hear frames to groups.
#[test]
fn an_xdp_interface_is_shared_with_the_kernel() {
    const ASK: &str = "import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x806))
s.bind((sys.argv[1], 0x806))
s.settimeout(10)
mac, own = bytes.fromhex(sys.argv[2].replace(':', '')), s.getsockname()[4]
def ask(to, ip):
    ip = socket.inet_aton(ip)
    # A third host's address: of its own the kernel would know better.
    s.send(to + own + bytes.fromhex('0806000108000604') + bytes([0, 1]) + own
           + ip[:3] + bytes([9]) + bytes(6) + ip + bytes(18))
    while True:
        f = s.recv(100)
        if f[20:22] == bytes([0, 2]) and f[28:32] == ip:
            return f[22:28] == mac
print([ask(to, ip) for to in [mac, b'\\xff' * 6] for ip in sys.argv[3:]])
";
    each_of(&PROGRAMS, Load::Waits, &some()[..1], |org| {
        veths_cut(1500, 1);
        veths::ip(&["address", "add", "10.99.1.3/24", "dev", OURS]);
        let own = host::mac(OURS).expect("an address");
        let (xdp, handle) = open(
            &XdpConfig::new(OURS)
                .with_mac(Some(own))
                .with_addresses(vec![taps::STACK.into()]),
        );
        let stack = taps::stack_on(org, xdp);
        let (mac, ours) = (own.to_string(), taps::STACK.to_string());
        let args = ["-I", "-S", "-c", ASK, THEIRS, &mac, &ours, "10.99.1.3"];
        let p = Program::start(python(), args, LIMIT);
        assert_eq!(finish(&stack, p), "[True, True, True, True]");
        let counts = handle.counts();
        println!("{counts:?}");
        assert_eq!(counts.received, 1, "only what was for the stack alone");
        assert!(counts.groups.received >= 2);
        python_on(&stack);
    });
}

#[test]
fn everything_arrives_over_lossy_xdp() {
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
        veths_cut(1500, 1);
        // Checksums complete on the wire: damage must be found.
        host::set_feature(THEIRS, Feature::TxChecksum, false).expect("off");
        let (xdp, _) = open(&XdpConfig::new(OURS));
        let other = FaultConfig::clone(faults).with_seed(4);
        let (device, handle) = Faulty::new(Box::new(xdp), FaultConfig::clone(faults), other);
        both_ways(&taps::stack_on(org, device), 4 << 20);
        println!("{org}: {:?} {:?}", handle.tx(), handle.rx());
    });
}

/// Readers that come late keep frames; the device goes on, and all of them are right.
#[test]
fn late_readers_do_not_stop_an_xdp_device() {
    each_of(&PROGRAMS, Load::Waits, &some(), |org| {
        veths_cut(1500, 1);
        let (xdp, handle) = open(&XdpConfig::new(OURS).with_ring(64));
        let stack = taps::stack_on(org, xdp);
        let l = stack.listen(taps::stack_at(7060)).expect("a listener");
        let late: Vec<_> = (0..4)
            .map(|_| {
                let p = peer_connects(7060, &["transfer", "send", "3000000"]);
                (accept(&l), p)
            })
            .collect();
        until(&stack, "copies", || handle.counts().copied > 0);
        // Nobody reads, and yet there is room for others.
        let p = peer_accepts(9060, &["transfer", "receive"]);
        let s = stack.connect(taps::kernel_at(9060)).expect("connected");
        let digest = send(&s, 1 << 20);
        s.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(finish(&stack, p), format!("{} {digest}", 1 << 20));
        drop((s, l));
        for (s, p) in late {
            let (digest, n) = receive(&s);
            drop(s);
            assert_eq!(finish(&stack, p), format!("{n} {digest}"));
        }
        wind_up(&stack);
    });
}

/// What `ip` says of the program on our end, or nothing.
fn program() -> Option<String> {
    let text = veths::ip(&["-details", "link", "show", "dev", OURS]);
    let line = text.lines().find(|l| l.contains("prog/xdp"))?;
    Some(line.trim().to_owned())
}

#[test]
fn a_killed_process_leaves_no_xdp_program() {
    examples::build();
    alone(&PROGRAMS, || {
        veths_cut(1500, 2);
        assert_eq!(program(), None);
        let device = format!("xdp:{OURS}");
        for _ in 0..2 {
            // The second time the queues have just been let go of.
            let args = ["--device", &device];
            let mut echo = Program::start(examples::path("echo"), args, LIMIT);
            assert!(echo.line().starts_with("listening on 10.99.0.2:7"));
            assert!(program().is_some());
            drop(echo);
            let end = Instant::now() + Duration::from_secs(5);
            while let Some(left) = program() {
                assert!(Instant::now() < end, "left: {left}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
}

#[test]
fn an_interface_of_xdp_goes_down_and_away() {
    each_of(&PROGRAMS, Load::Waits, &some(), |org| {
        veths_cut(1500, 1);
        let (xdp, _) = open(&XdpConfig::new(OURS));
        let stack = taps::stack_on(org, xdp);
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
        t.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(finish(&stack, q), format!("{} {digest}", 1 << 20));
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

/// Two stacks behind one program, each with an address and a queue of its own. What comes for one
/// by the other's queue is nobody's. The sender's core decides by which queue.
#[test]
fn two_stacks_share_the_queues_of_an_interface() {
    const PING: &str = "import os, socket, struct, sys
if len(os.sched_getaffinity(0)) < 2:
    sys.exit('one core')
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x800))
s.setsockopt(263, 20, 1)
s.bind((sys.argv[1], 0x800))
own = s.getsockname()[4]
def sum16(b):
    n = sum(struct.unpack('!%dH' % (len(b) // 2), b))
    n = (n & 0xffff) + (n >> 16)
    return ~((n & 0xffff) + (n >> 16)) & 0xffff
def ping(core, mac, ip, wait):
    os.sched_setaffinity(0, {core})
    s.settimeout(wait)
    mac, to, ip = bytes.fromhex(mac.replace(':', '')), ip, socket.inet_aton(ip)
    icmp = struct.pack('!BBHHH', 8, 0, 0, 7, core) + bytes(20)
    icmp = icmp[:2] + struct.pack('!H', sum16(icmp)) + icmp[4:]
    head = struct.pack('!BBHHHBBH', 0x45, 0, 48, 0, 0, 64, 1, 0) + socket.inet_aton('10.99.0.1') + ip
    head = head[:10] + struct.pack('!H', sum16(head)) + head[12:]
    s.send(mac + own + bytes([8, 0]) + head + icmp)
    try:
        while True:
            f = s.recv(200)
            if f[26:30] == ip and f[34] == 0:
                return True
    except TimeoutError:
        return False
a, b = sys.argv[2:4], sys.argv[4:6]
print([ping(0, *a, 10), ping(1, *b, 10), ping(1, *a, 0.2), ping(0, *b, 0.2)])
";
    alone(&PROGRAMS, || {
        veths_cut(1500, 2);
        let program = XdpProgram::attach(OURS, XdpMode::Any).expect("attached");
        let config = XdpConfig::new(OURS)
            .with_program(Some(program))
            .with_queues(1);
        let first = open(&config).0;
        let e = Xdp::open(&config.clone().with_first_queue(1));
        let e = e.expect_err("the same address");
        assert!(matches!(e, XdpError::MacTaken { .. }), "{e}");
        let second = open(
            &config
                .clone()
                .with_first_queue(1)
                .with_mac(Some(MacAddr([2, 0, 0, 0, 0, 7]))),
        );
        let e = Xdp::open(&config.with_mac(Some(MacAddr([2, 0, 0, 0, 0, 8]))));
        let e = e.expect_err("the same queue");
        assert!(matches!(e, XdpError::BusyQueue { queue: 0, .. }), "{e}");
        let macs = [first.capabilities().mac, second.0.capabilities().mac].map(|m| m.to_string());
        let first = taps::stack_on(&OrgSpec::default(), first);
        let second = Stack::builder()
            .interface(second.0, &["10.99.0.7/24"])
            .expect("an interface")
            .build()
            .expect("a stack");
        let args = [
            "-I",
            "-S",
            "-c",
            PING,
            THEIRS,
            &macs[0],
            "10.99.0.2",
            &macs[1],
            "10.99.0.7",
        ];
        let p = Program::start(python(), args, LIMIT);
        let turn = || {
            if first.drive().expect("driven") + second.drive().expect("driven") == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        };
        let done = p.finish_with(turn);
        if done.err.contains("one core") {
            return println!("skipped: one core");
        }
        assert_eq!(done.ok().trim(), "[True, True, False, False]");
    });
}

/// A stack on a device has all of its sockets, until it has gone.
#[test]
fn xdp_refuses_clearly() {
    alone(&["ip"], || {
        veths::make(1500, 2);
        let config = XdpConfig::new(OURS);
        let refused = |config: &XdpConfig| Xdp::open(config).expect_err("refused");
        let e = refused(&XdpConfig::new("lo"));
        assert!(matches!(e, XdpError::NotEthernet { .. }), "{e:?}");
        let e = refused(&config.clone().with_copy(XdpCopy::ZeroCopy));
        assert!(
            e.to_string().contains("(veth) has no zero-copy mode"),
            "{e}"
        );
        let e = refused(&config.clone().with_queues(1));
        assert!(e.to_string().contains("which has 2"), "{e}");
        let e = refused(&config.clone().with_queues(3));
        assert!(matches!(e, XdpError::BadQueues { has: 2, .. }), "{e:?}");
        let first = open(&config).0;
        let e = refused(&config);
        assert!(matches!(e, XdpError::Busy(_)), "{e:?}");
        drop(first);
        // Nothing was left behind, and what is let go of just now is waited for.
        drop(open(&config));
        host::set_mtu(OURS, 9000).expect("set");
        let e = refused(&config);
        assert!(matches!(e, XdpError::Mtu { most: 3822, .. }), "{e:?}");
        host::set_mtu(OURS, 1500).expect("set");
        host::set_up(OURS, false).expect("down");
        let e = refused(&config);
        assert!(e.to_string().contains("ip link set ours0 up"), "{e}");
        assert_eq!(program(), None);
    });
    alone(&["ip", "setpriv"], || {
        examples::build();
        veths::make(1500, 1);
        let dir = tempfile::tempdir_in("/tmp").expect("a directory");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).expect("opened");
        let copy = dir.path().join("echo");
        program::copy(examples::path("echo"), &copy);
        let device = format!("xdp:{OURS}");
        let echo = [copy.to_str().expect("text"), "--device", &device];
        let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
        let caps = "-all,+net_raw,+net_admin,+bpf";
        let some = [&nobody[..], &["--ambient-caps", caps, "--inh-caps", caps]].concat();
        let o = Program::start("setpriv", [&nobody[..], &echo].concat(), LIMIT).finish();
        assert_eq!(o.status.code(), Some(2), "{o:?}");
        for capability in ["CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF"] {
            assert!(o.err.contains(capability), "{}", o.err);
        }
        assert_eq!(o.err.trim_end().lines().count(), 1, "{}", o.err);
        // With these, but little memory that may be locked.
        let words = [
            &["-c", "ulimit -l 64; exec setpriv \"$@\"", "sh"],
            &some[..],
            &echo,
        ]
        .concat();
        let o = Program::start("sh", words, LIMIT).finish();
        assert_eq!(o.status.code(), Some(2), "{o:?}");
        assert!(o.err.contains("ulimit -l"), "{}", o.err);
    });
}
