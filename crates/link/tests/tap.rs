//! TAP and TUN against the host's kernel, in network namespaces that the tests make. They need
//! privilege (or unprivileged user namespaces) and say so when they lack it.
#![cfg(target_os = "linux")]

mod common;

use common::refer;
use core::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use perimeter_base::desc::Offload;
use perimeter_base::{PktBuf, PktPool, Time, TxRing};
use perimeter_link::rss::Rss;
use perimeter_link::tap::{Tap, TapConfig, TapError, host};
use perimeter_link::{Device, Medium, RxFrame, RxQueue, TxQueue};
use perimeter_wire::{
    ArpOp, ArpPacket, Csum, EtherHdr, FlowKey, Frame, Icmpv4, Ipv4Hdr, MacAddr, SegOut, Seq,
    TcpFlags, Template, checksum,
};
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const STACK: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Runs `test` on a thread of its own in a network namespace of its own; a note if that is not
/// allowed here.
fn in_namespace(name: &str, test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let body = move || {
        // SAFETY: no memory is passed; only this thread's namespaces change.
        let mut refused = unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0;
        if !refused && std::fs::File::open("/dev/net/tun").is_err() {
            refused = true;
        }
        if refused {
            println!(
                "skipped: no privilege for a network namespace and /dev/net/tun ({})",
                std::io::Error::last_os_error()
            );
            return;
        }
        test();
    };
    thread
        .spawn(body)
        .expect("a thread")
        .join()
        .expect("no panic");
}

struct Port {
    rx: Vec<Box<dyn RxQueue>>,
    tx: Vec<Box<dyn TxQueue>>,
    ring: TxRing,
    pool: PktPool,
    mac: MacAddr,
    kernel_mac: MacAddr,
    queue: Vec<RxFrame>,
}

fn open(config: &TapConfig) -> Port {
    let config = config.clone().with_host_address(Some((KERNEL, 24)));
    let tap = Tap::open(&config).expect("opened");
    let name = tap.name().to_owned();
    assert!(host::is_up(&name).expect("asked"), "up");
    let caps = tap.capabilities();
    assert_eq!(caps.mtu, host::mtu(&name).expect("an MTU"));
    let kernel_mac = host::mac(&name).unwrap_or_default();
    let (rx, tx) = Box::new(tap).open();
    assert_eq!((rx.len(), tx.len()), (config.queues, config.queues));
    Port {
        rx,
        tx,
        ring: TxRing::new(64),
        pool: PktPool::default(),
        mac: caps.mac,
        kernel_mac,
        queue: Vec::new(),
    }
}

impl Port {
    fn send(&mut self, queue: usize, bytes: &[u8]) {
        let mut d = self.ring.push().expect("room");
        d.hdr_len = 0;
        d.owned = Some(PktBuf::copy_of(bytes));
        self.tx[queue].doorbell(Time(0), &mut self.ring);
        assert!(self.ring.is_empty());
    }

    /// The next frame for which `pick` gives something, within two seconds. Sleeps on the
    /// descriptors in between.
    fn await_frame<T>(&mut self, mut pick: impl FnMut(&RxFrame, usize) -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(2);
        loop {
            for q in 0..self.rx.len() {
                let mut out = Vec::new();
                self.rx[q].poll(Time(0), &mut self.pool, &mut out, 16);
                for f in out {
                    if let Some(t) = pick(&f, q) {
                        return t;
                    }
                    self.queue.push(f);
                }
            }
            assert!(Instant::now() < end, "nothing came; only {:?}", self.queue);
            let mut fds: Vec<libc::pollfd> = self
                .rx
                .iter()
                .map(|rx| libc::pollfd {
                    fd: rx.fd().expect("a descriptor"),
                    events: libc::POLLIN,
                    revents: 0,
                })
                .collect();
            // SAFETY: the array is valid for reads and writes of its length.
            unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 100) };
        }
    }

    /// Answers the kernel's question for our address.
    fn resolve(&mut self) {
        let (mac, kernel_mac) = (self.mac, self.kernel_mac);
        let reply =
            self.await_frame(
                |f, _| match Frame::parse_ethernet(f.buf.as_slice(), Csum::Trust) {
                    Ok(Frame::Arp(a)) if a.op == ArpOp::Request && a.target_ip == STACK => {
                        Some(a.reply(mac))
                    }
                    _ => None,
                },
            );
        let mut out = [0; 42];
        let eth = EtherHdr {
            dst: kernel_mac,
            src: mac,
            ethertype: 0x0806,
        };
        eth.emit(&mut out);
        reply.emit(&mut out[14..]);
        self.send(0, &out);
    }

    /// Tells the kernel our link-layer address before it asks.
    fn announce(&mut self) {
        let mut out = [0; 42];
        let eth = EtherHdr {
            dst: self.kernel_mac,
            src: self.mac,
            ethertype: 0x0806,
        };
        eth.emit(&mut out);
        let arp = ArpPacket {
            op: ArpOp::Request,
            sender_mac: self.mac,
            sender_ip: STACK,
            target_mac: MacAddr::default(),
            target_ip: KERNEL,
        };
        arp.emit(&mut out[14..]);
        self.send(0, &out);
        self.await_frame(
            |f, _| match Frame::parse_ethernet(f.buf.as_slice(), Csum::Trust) {
                Ok(Frame::Arp(a)) if a.op == ArpOp::Reply => Some(()),
                _ => None,
            },
        );
    }
}

#[test]
fn the_kernel_answers_arp_and_echo() {
    in_namespace("tap-echo", || {
        let mut p = open(&TapConfig::new("pt%d"));
        p.announce();
        let body = [0x5a; 1000];
        let mut ping = vec![0; 14 + 20 + 8 + body.len()];
        let eth = EtherHdr {
            dst: p.kernel_mac,
            src: p.mac,
            ethertype: 0x0800,
        };
        eth.emit(&mut ping);
        let ip = Ipv4Hdr {
            src: STACK,
            dst: KERNEL,
            protocol: 1,
            ttl: 64,
            tos: 0,
            ident: 1,
            total_len: (ping.len() - 14) as u16,
            header_len: 20,
            dont_fragment: true,
            more_fragments: false,
            frag_offset: 0,
        };
        ip.emit(&mut ping[14..]);
        Icmpv4::EchoRequest { ident: 3, seq: 4 }.emit(&body, &mut ping[34..]);
        p.send(0, &ping);
        p.await_frame(
            |f, _| match Frame::parse_ethernet(f.buf.as_slice(), Csum::Verify) {
                Ok(Frame::Icmp {
                    msg: Icmpv4::EchoReply { ident: 3, seq: 4 },
                    body: b,
                    ..
                }) => {
                    assert_eq!(b, body);
                    Some(())
                }
                _ => None,
            },
        );
    });
}

/// The kernel's datagram reaches us with a checksum that is partial or right, as flagged.
#[test]
fn datagrams_of_the_kernel_arrive() {
    for checksum_offload in [true, false] {
        in_namespace("tap-udp", move || {
            let mut p = open(&TapConfig::new("ptudp").with_checksum_offload(checksum_offload));
            let socket = UdpSocket::bind((KERNEL, 9000)).expect("bound");
            socket.send_to(b"hello", (STACK, 7)).expect("sent");
            p.resolve();
            p.await_frame(
                |f, _| match Frame::parse_ethernet(f.buf.as_slice(), Csum::Trust) {
                    Ok(Frame::Ip { ip, payload }) if ip.protocol == 17 => {
                        assert_eq!(&payload[8..], b"hello");
                        let (IpAddr::V4(src), IpAddr::V4(dst)) = ip.ends() else {
                            unreachable!("an IPv4 datagram")
                        };
                        let pseudo = checksum::pseudo_v4(src, dst, 17, 13);
                        let right = checksum::fold(checksum::sum(payload, pseudo)) == 0xffff;
                        assert!(right || f.csum_ok);
                        assert!(checksum_offload || !f.csum_ok);
                        Some(())
                    }
                    _ => None,
                },
            );
        });
    }
}

/// A connection by hand, payload by reference, checksums left to the kernel.
fn connect_to_kernel(p: &mut Port, medium: Medium, queue: usize, port: u16) {
    let listener = TcpListener::bind((KERNEL, port)).expect("bound");
    let key = FlowKey {
        local: IpAddr::V4(STACK),
        remote: IpAddr::V4(KERNEL),
        local_port: 5000 + port,
        remote_port: port,
    };
    let (l2, start) = match medium {
        Medium::Ethernet => (Some((p.mac, p.kernel_mac)), 34),
        Medium::Ip => (None, 20),
    };
    let template = Template::new_v4(l2, &key, 64, 0, true);
    let send = |p: &mut Port, seg: &SegOut, payload: &[u8]| {
        let mut d = p.ring.push().expect("room");
        d.hdr_len = template.emit(&mut d.hdr, 0, seg, payload.len() as u32) as u8;
        let (a, b) = payload.split_at(payload.len() / 2);
        refer(&mut d, &[a, b]);
        d.offload = Offload {
            csum_start: start,
            csum_offset: 16,
            segment_size: 0,
        };
        p.tx[queue].doorbell(Time(0), &mut p.ring);
        assert!(p.ring.is_empty());
    };
    let await_tcp = |p: &mut Port| {
        p.await_frame(|f, q| {
            let csum = if f.csum_ok { Csum::Trust } else { Csum::Verify };
            let bytes = f.buf.as_slice();
            let frame = match medium {
                Medium::Ethernet => Frame::parse_ethernet(bytes, csum),
                Medium::Ip => Frame::parse_ip(bytes, 0, csum),
            };
            match frame {
                Ok(Frame::Tcp(t)) if t.key.remote_port == port => {
                    let at = t.payload_off as usize;
                    Some((t, bytes[at..at + t.payload_len as usize].to_vec(), q))
                }
                _ => None,
            }
        })
    };
    let mut seg = SegOut {
        seq: Seq(100),
        flags: TcpFlags::SYN,
        window: 60_000,
        ..SegOut::default()
    };
    send(p, &seg, &[]);
    let (synack, ..) = await_tcp(p);
    assert_eq!(synack.hdr.flags, TcpFlags::SYN | TcpFlags::ACK);
    seg.seq = Seq(101);
    seg.ack = synack.hdr.seq + 1;
    seg.flags = TcpFlags::ACK | TcpFlags::PSH;
    let payload: Vec<u8> = (0..1401u32).map(|i| i as u8).collect();
    send(p, &seg, &payload);
    let (mut stream, from) = listener.accept().expect("accepted");
    assert_eq!(from, SocketAddrV4::new(STACK, 5000 + port).into());
    let mut got = vec![0; payload.len()];
    stream.read_exact(&mut got).expect("read");
    assert_eq!(got, payload);
    stream.write_all(b"thanks").expect("written");
    loop {
        let (t, data, q) = await_tcp(p);
        assert!(t.hdr.ack.le(Seq(101) + 1401));
        if !data.is_empty() {
            assert_eq!(data, b"thanks");
            // The kernel learns a flow's queue while it takes a frame, so its answer to the SYN
            // may still come elsewhere.
            assert_eq!(q, queue, "the kernel answers where it was asked");
            break;
        }
    }
    seg.flags = TcpFlags::RST;
    seg.seq = Seq(101) + 1401;
    send(p, &seg, &[]);
}

#[test]
fn a_connection_with_the_kernel_over_every_queue() {
    in_namespace("tap-tcp", || {
        let mut p = open(&TapConfig::new("ptmq").with_queues(3).with_steering(false));
        p.announce();
        for queue in 0..3 {
            connect_to_kernel(&mut p, Medium::Ethernet, queue, 100 + queue as u16);
        }
    });
}

/// Each flow comes by the queue that its hash names, from its first frame on.
#[test]
fn flows_come_by_the_queue_of_their_hash() {
    for medium in [Medium::Ethernet, Medium::Ip] {
        in_namespace("tap-steer", move || {
            let config = TapConfig::new("ptsteer").with_medium(medium).with_queues(3);
            let tap = Tap::open(&config).expect("opened");
            let steered = tap.is_steered();
            drop(tap);
            if !steered {
                println!("skipped: no permission for bpf(2)");
                return;
            }
            let mut p = open(&config);
            if medium == Medium::Ethernet {
                p.announce();
            }
            let rss = Rss::even(3);
            let mut seen = [0; 3];
            for n in 0..60u16 {
                let socket = UdpSocket::bind((KERNEL, 0)).expect("bound");
                socket
                    .send_to(&n.to_be_bytes(), (STACK, 7000 + n))
                    .expect("sent");
                p.await_frame(|f, q| {
                    let bytes = f.buf.as_slice();
                    let ip = match medium {
                        Medium::Ethernet => 14,
                        Medium::Ip => 0,
                    };
                    let udp = bytes.get(ip + 9) == Some(&17) && bytes[ip] == 0x45;
                    if !udp || bytes[ip + 28..ip + 30] != n.to_be_bytes() {
                        return None;
                    }
                    let hash = rss.hash_ip(&bytes[ip..]).expect("a datagram");
                    assert_eq!(q, rss.queue(hash), "{n}");
                    seen[q] += 1;
                    Some(())
                });
            }
            assert!(seen.iter().all(|&n| n > 0), "{seen:?}");
        });
    }
}

#[test]
fn tun_carries_ip() {
    in_namespace("tun", || {
        let mut p = open(
            &TapConfig::new("ptun%d")
                .with_medium(Medium::Ip)
                .with_mtu(Some(1400 + 41)),
        );
        connect_to_kernel(&mut p, Medium::Ip, 0, 100);
    });
}

/// An interface as `ip tuntap add dev X mode tap` makes it: one queue. TUN likewise.
#[test]
fn an_interface_with_one_queue_is_taken() {
    for (name, mode, medium) in [
        ("ptone", "tap", Medium::Ethernet),
        ("puone", "tun", Medium::Ip),
    ] {
        in_namespace(name, move || {
            let ip = |args: &[&str]| std::process::Command::new("ip").args(args).status();
            let made = ip(&["tuntap", "add", "dev", name, "mode", mode]);
            if !made.as_ref().is_ok_and(|s| s.success()) {
                println!("skipped: ip tuntap add: {made:?}");
                return;
            }
            let config = TapConfig::new(name).with_medium(medium);
            let many = config.clone().with_queues(2);
            // Refused, and left as it was.
            let e = Tap::open(&many).expect_err("refused");
            assert!(matches!(e, TapError::OneQueue { .. }), "{e:?}");
            assert!(e.to_string().contains("multi_queue"), "{e}");
            let other = config.clone().with_medium(match medium {
                Medium::Ethernet => Medium::Ip,
                Medium::Ip => Medium::Ethernet,
            });
            let e = Tap::open(&other).expect_err("refused");
            assert!(matches!(e, TapError::Mismatch(..)), "{e:?}");
            let len = host::queue_len(name).expect("a length");
            for port in [100, 101] {
                let mut p = open(&config);
                assert_eq!(host::queue_len(name).expect("a length"), len);
                assert!(matches!(Tap::open(&config), Err(TapError::Busy(_))));
                if medium == Medium::Ethernet {
                    p.announce();
                }
                connect_to_kernel(&mut p, medium, 0, port);
            }
            assert!(host::mtu(name).is_ok(), "not ours to delete");
        });
    }
}

#[test]
fn refusals_are_clear() {
    in_namespace("tap-busy", || {
        let config = TapConfig::new("lo");
        let e = Tap::open(&config).expect_err("refused");
        assert!(
            matches!(e, TapError::Mismatch(..) | TapError::Busy(_)),
            "{e:?}"
        );
        let config = TapConfig::new("ptlen").with_queue_len(Some(7));
        let tap = Tap::open(&config).expect("opened");
        assert_eq!(host::queue_len("ptlen").expect("a length"), 7);
        drop(tap);
        let config = TapConfig::new("ptlen").with_queue_len(Some(1 << 31));
        let e = Tap::open(&config).expect_err("refused");
        assert!(e.to_string().contains("queue length"), "{e}");
        let mut config = TapConfig::new("ptmtu");
        config.mtu = Some(1_000_000);
        let e = Tap::open(&config).expect_err("refused");
        assert!(e.to_string().contains("MTU"), "{e}");
        assert!(host::mtu("ptmtu").is_err(), "nothing is left behind");
        // A second opener of other kind.
        let tap = Tap::open(&TapConfig::new("ptkind")).expect("opened");
        assert_eq!(host::queue_len("ptkind").expect("a length"), 10_000);
        let mut config = TapConfig::new("ptkind");
        config.medium = Medium::Ip;
        let e = Tap::open(&config).expect_err("refused");
        assert!(matches!(e, TapError::Mismatch(..)), "{e:?}");
        drop(tap);
    });
}

/// Without capabilities: what the message says.
#[test]
fn without_privilege_the_message_says_what_to_do() {
    in_namespace("tap-nobody", || {
        // SAFETY: no memory is passed. The raw call, as libc's wrapper would change all threads.
        let dropped = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) } == 0;
        assert!(dropped);
        let e = Tap::open(&TapConfig::new("ptnone")).expect_err("refused");
        assert!(e.is_permission(), "{e:?}");
        assert!(e.to_string().contains("ptnone"), "{e}");
        // Where the device node is open to all, the interface is what is lacking.
        let mode = std::fs::metadata("/dev/net/tun").expect("there").mode();
        let said = match mode & 0o006 == 0o006 {
            true => "ip tuntap add",
            false => "chmod 666 /dev/net/tun",
        };
        assert!(e.to_string().contains(said), "{e}");
    });
}
