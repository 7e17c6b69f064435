//! The program by which a TAP or TUN interface with several queues chooses one for each frame: that
//! of [`Rss::even`](crate::rss::Rss::even), so that all of a flow comes by one queue from its first
//! segment on, whatever the stack has sent before.

use perimeter_wire::Toeplitz;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::bpf::asm::{Alu, Asm, Cmp, Helper, Insn, Label, Reg, STACK, Size};
use crate::bpf::{Map, MapKind, Program, ProgramKind};
use crate::device::Medium;
use crate::ifreq::check;
use crate::rss::Rss;

/// `_IOR('T', 224, int)` (linux/if_tun.h).
const TUNSETSTEERINGEBPF: libc::Ioctl = 0x8004_54e0;

/// Octets of a row of the hash's table: what a byte of the input contributes.
const ROW: usize = 256 * size_of::<u32>();

// Behind the stack's end: the IP header, both ports, the type of the frame, and what is hashed.
const HEADER: i16 = -64;
const PORTS: i16 = -24;
const KIND: i16 = -16;
const INPUT: i16 = -104;

/// Has the interface of this queue steer so from now on. Nothing is to be kept.
///
/// # Errors
/// Without privilege for bpf(2), or if the kernel has no such programs (before Linux 4.16).
pub(super) fn steer(fd: &OwnedFd, medium: Medium) -> io::Result<()> {
    let (_table, program) = load(medium)?;
    set(fd, program.as_raw_fd())
}

/// Takes the program of somebody before out of a persistent interface.
pub(super) fn plain(fd: &OwnedFd) {
    // A kernel without programs has none.
    let _ = set(fd, -1);
}

fn set(fd: &OwnedFd, program: RawFd) -> io::Result<()> {
    // SAFETY: the request reads a descriptor's number, which is valid during the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETSTEERINGEBPF, &raw const program) })
}

fn load(medium: Medium) -> io::Result<(Map, Program)> {
    let toeplitz = Toeplitz::default();
    let rows = toeplitz.rows();
    let table = Map::new("perimeter_hash", MapKind::Array, (4, rows.len() * ROW), 1)?;
    let words = rows.iter().flatten();
    let octets: Vec<u8> = words.flat_map(|w| w.to_ne_bytes()).collect();
    table.set(&0u32.to_ne_bytes(), &octets)?;
    let insns = program(&table, medium);
    let program = Program::load("perimeter_steer", ProgramKind::SocketFilter, &insns)?;
    Ok((table, program))
}

/// A program under construction, with what all its parts use.
struct Steer {
    a: Asm,
    /// Where the IP header begins.
    ip: i32,
    /// Frames without a flow: the first queue.
    none: Label,
}

const CONTEXT: Reg = Reg(6);
const TABLE: Reg = Reg(7);
const HASH: Reg = Reg(8);
const AT: Reg = Reg(9);
const R0: Reg = Reg(0);
const R1: Reg = Reg(1);
const R2: Reg = Reg(2);
const R3: Reg = Reg(3);
const R4: Reg = Reg(4);

fn program(table: &Map, medium: Medium) -> Vec<Insn> {
    let mut a = Asm::default();
    let (v4, v6, none) = (a.label(), a.label(), a.label());
    a.alu_reg(Alu::Mov, CONTEXT, R1);
    a.map_value(TABLE, table);
    let mut s = Steer { a, ip: 0, none };
    match medium {
        Medium::Ethernet => {
            s.ip = 14;
            s.read(12, KIND, 2);
            s.a.load(Size::Half, R1, STACK, KIND);
            let kind = |octets: [u8; 2]| i32::from(u16::from_ne_bytes(octets));
            s.a.jump_if(Cmp::Equal, R1, kind([0x08, 0x00]), v4);
            s.a.jump_if(Cmp::Equal, R1, kind([0x86, 0xdd]), v6);
        }
        Medium::Ip => {
            s.read(0, KIND, 1);
            s.a.load(Size::Byte, R1, STACK, KIND);
            s.a.alu(Alu::Shr, R1, 4);
            s.a.jump_if(Cmp::Equal, R1, 4, v4);
            s.a.jump_if(Cmp::Equal, R1, 6, v6);
        }
    }
    s.a.jump(none);
    s.a.place(v4);
    s.v4();
    s.a.place(v6);
    s.v6();
    s.a.place(none);
    s.a.alu(Alu::Mov, R0, 0);
    s.a.exit();
    s.a.finish()
}

impl Steer {
    /// Reads octets of the frame, or goes to `none`.
    fn read(&mut self, from: i32, to: i16, len: i32) {
        self.a.alu(Alu::Mov, AT, from);
        self.read_at(to, len);
    }

    /// The same from where `AT` says.
    fn read_at(&mut self, to: i16, len: i32) {
        self.a.alu_reg(Alu::Mov, R1, CONTEXT);
        self.a.alu_reg(Alu::Mov, R2, AT);
        self.a.alu_reg(Alu::Mov, R3, STACK);
        self.a.alu(Alu::Add, R3, to.into());
        self.a.alu(Alu::Mov, R4, len);
        self.a.call(Helper::SkbLoadBytes);
        self.a.jump_if(Cmp::NotEqual, R0, 0, self.none);
    }

    /// Goes on only with TCP and UDP.
    fn transport(&mut self, at: i16) {
        let yes = self.a.label();
        self.a.load(Size::Byte, R1, STACK, at);
        self.a.jump_if(Cmp::Equal, R1, 6, yes);
        self.a.jump_if(Cmp::NotEqual, R1, 17, self.none);
        self.a.place(yes);
    }

    fn v4(&mut self) {
        let (long, swapped, hash) = (self.a.label(), self.a.label(), self.a.label());
        self.read(self.ip, HEADER, 20);
        self.a.load(Size::Half, R1, STACK, HEADER + 6);
        self.a.swap_be(R1, 16);
        self.a.alu(Alu::And, R1, 0x3fff);
        self.a.jump_if(Cmp::NotEqual, R1, 0, self.none);
        self.transport(HEADER + 9);
        self.a.load(Size::Byte, AT, STACK, HEADER);
        self.a.alu(Alu::And, AT, 15);
        self.a.alu(Alu::Shl, AT, 2);
        self.a.jump_if(Cmp::Greater, AT, 19, long);
        self.a.jump(self.none);
        self.a.place(long);
        self.a.alu(Alu::Add, AT, self.ip);
        self.read_at(PORTS, 4);
        // Each end as a number: address, then port.
        for (reg, address, port) in [(R1, HEADER + 12, PORTS), (R2, HEADER + 16, PORTS + 2)] {
            self.a.load(Size::Word, reg, STACK, address);
            self.a.swap_be(reg, 32);
            self.a.alu(Alu::Shl, reg, 16);
            self.a.load(Size::Half, R3, STACK, port);
            self.a.swap_be(R3, 16);
            self.a.alu_reg(Alu::Add, reg, R3);
        }
        self.a.jump_if_reg(Cmp::Greater, R1, R2, swapped);
        self.input(4, [HEADER + 12, HEADER + 16], [PORTS, PORTS + 2]);
        self.a.jump(hash);
        self.a.place(swapped);
        self.input(4, [HEADER + 16, HEADER + 12], [PORTS + 2, PORTS]);
        self.a.place(hash);
        self.hash(12);
    }

    fn v6(&mut self) {
        let [swapped, straight, hash] = [(); 3].map(|()| self.a.label());
        self.read(self.ip, HEADER, 40);
        self.transport(HEADER + 6);
        self.read(self.ip + 40, PORTS, 4);
        let parts = [
            (Size::Double, 64, HEADER + 8, HEADER + 24),
            (Size::Double, 64, HEADER + 16, HEADER + 32),
            (Size::Half, 16, PORTS, PORTS + 2),
        ];
        for (size, bits, source, destination) in parts {
            for (reg, at) in [(R1, source), (R2, destination)] {
                self.a.load(size, reg, STACK, at);
                self.a.swap_be(reg, bits);
            }
            self.a.jump_if_reg(Cmp::Greater, R1, R2, swapped);
            self.a.jump_if_reg(Cmp::Greater, R2, R1, straight);
        }
        self.a.place(straight);
        self.input(16, [HEADER + 8, HEADER + 24], [PORTS, PORTS + 2]);
        self.a.jump(hash);
        self.a.place(swapped);
        self.input(16, [HEADER + 24, HEADER + 8], [PORTS + 2, PORTS]);
        self.a.place(hash);
        self.hash(36);
    }

    /// Puts together what is hashed: both addresses of `len` octets, and both ports.
    fn input(&mut self, len: i16, addresses: [i16; 2], ports: [i16; 2]) {
        let mut to = INPUT;
        for from in addresses {
            for i in (0..len).step_by(4) {
                self.a.load(Size::Word, R1, STACK, from + i);
                self.a.store(Size::Word, STACK, to, R1);
                to += 4;
            }
        }
        for from in ports {
            self.a.load(Size::Half, R1, STACK, from);
            self.a.store(Size::Half, STACK, to, R1);
            to += 2;
        }
    }

    /// Returns the hash of `n` octets, as far as the queue depends on it.
    fn hash(&mut self, n: usize) {
        self.a.alu(Alu::Mov, HASH, 0);
        for i in 0..n {
            self.a.load(Size::Byte, R1, STACK, INPUT + i as i16);
            self.a.alu(Alu::Shl, R1, 2);
            self.a.alu(Alu::Add, R1, (i * ROW) as i32);
            self.a.alu_reg(Alu::Mov, R2, TABLE);
            self.a.alu_reg(Alu::Add, R2, R1);
            self.a.load(Size::Word, R1, R2, 0);
            self.a.alu_reg(Alu::Xor, HASH, R1);
        }
        self.a.alu(Alu::And, HASH, Rss::TABLE as i32 - 1);
        self.a.alu_reg(Alu::Mov, R0, HASH);
        self.a.exit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::IpAddr;
    use perimeter_wire::FlowKey;

    /// A packet with these ends; of IPv4, with so many octets of options.
    fn packet(key: &FlowKey, protocol: u8, options: usize) -> Vec<u8> {
        let mut p = match (key.remote, key.local) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = 20 + options;
                let mut p = vec![0; header];
                (p[0], p[9]) = (0x40 | (header / 4) as u8, protocol);
                p[12..16].copy_from_slice(&src.octets());
                p[16..20].copy_from_slice(&dst.octets());
                p
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let mut p = vec![0; 40];
                (p[0], p[6]) = (0x60, protocol);
                p[8..24].copy_from_slice(&src.octets());
                p[24..40].copy_from_slice(&dst.octets());
                p
            }
            _ => panic!("one family"),
        };
        p.extend(key.remote_port.to_be_bytes());
        p.extend(key.local_port.to_be_bytes());
        p.extend([0; 16]);
        p
    }

    #[test]
    fn the_program_has_the_hash_of_the_stack() {
        let (_table, program) = match load(Medium::Ip) {
            Ok(loaded) => loaded,
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                eprintln!("skipped: no permission for bpf(2)");
                return;
            }
            Err(e) => panic!("{e}"),
        };
        // The kernel's way to try such programs takes an Ethernet header off first.
        let run = |packet: &[u8]| {
            let kind = if packet[0] >> 4 == 4 {
                [8, 0]
            } else {
                [0x86, 0xdd]
            };
            let frame = [&[0; 12][..], &kind, packet].concat();
            program.test(&frame).expect("a queue")
        };
        let toeplitz = Toeplitz::default();
        let mut rng = crate::rng::SplitMix64::new(7);
        let mut seen = std::collections::HashSet::new();
        for i in 0..300 {
            let mut end = || -> IpAddr {
                let (a, b) = (rng.next(), rng.next());
                match i % 2 {
                    0 => core::net::Ipv4Addr::from_bits(a as u32).into(),
                    // Some differ in their lower half only, and some not at all.
                    _ => core::net::Ipv6Addr::from_bits(0x2001_0db8_u128 << 96 | u128::from(b % 3))
                        .into(),
                }
            };
            let (local, remote) = (end(), end());
            let ports = rng.next();
            let key = FlowKey {
                local,
                remote,
                local_port: ports as u16,
                remote_port: (ports >> 16) as u16,
            };
            let queue = toeplitz.hash(&key) & 127;
            let options = (i % 3) * 8;
            let protocol = if i % 5 == 0 { 17 } else { 6 };
            assert_eq!(run(&packet(&key, protocol, options)), queue, "{key:?}");
            seen.insert(queue);
        }
        assert!(seen.len() > 64, "{}", seen.len());
        let key = FlowKey {
            local: IpAddr::V4([10, 0, 0, 1].into()),
            remote: IpAddr::V4([10, 0, 0, 2].into()),
            local_port: 80,
            remote_port: 5001,
        };
        assert_ne!(run(&packet(&key, 6, 0)), 0);
        assert_eq!(run(&packet(&key, 1, 0)), 0, "no ports");
        let mut fragment = packet(&key, 6, 0);
        fragment[6] = 0x20;
        assert_eq!(run(&fragment), 0);
        assert_eq!(run(&packet(&key, 6, 0)[..22]), 0, "too short");
        let mut short = packet(&key, 6, 0);
        short[0] = 0x44;
        assert_eq!(run(&short), 0, "no header");
    }
}
