//! The program that decides, in the interface's driver, what is a stack's and what is the kernel's.

use perimeter_wire::MacAddr;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use super::{XdpError, XdpMode};
use crate::bpf::asm::{Alu, Asm, Cmp, Helper, Insn, Reg, STACK, Size};
use crate::bpf::{AttachMode, Map, MapKind, Program, ProgramKind};
use crate::host;

/// Most stations, which is to say stacks, behind one program.
pub(super) const STATIONS: u32 = 16;

/// Most queues of a station.
pub(super) const QUEUES: u32 = 256;

/// Most addresses of all stations together.
const ADDRESSES: u32 = 1024;

/// What the program returns for frames that are the kernel's (`XDP_PASS`).
const PASS: i32 = 2;

/// A program on an interface, which several stacks can share: each has a link-layer address of its
/// own, and queues of its own. Cheap to clone. It is detached with the last clone and the last
/// device that uses it, and when the process ends, however it does.
#[derive(Clone)]
pub struct XdpProgram(Arc<Attached>);

struct Attached {
    name: String,
    index: u32,
    generic: bool,
    sockets: Map,
    stations: Map,
    addresses: Map,
    /// Which numbers of stations are taken.
    taken: Mutex<[bool; STATIONS as usize]>,
    _link: OwnedFd,
}

impl XdpProgram {
    /// Attaches a program to that interface, which passes everything to the kernel for now.
    ///
    /// # Errors
    /// See [`XdpError`].
    pub fn attach(name: &str, mode: XdpMode) -> Result<XdpProgram, XdpError> {
        super::check_name(name)?;
        let of = |e| XdpError::from_io("reading the settings of", name, e);
        let index = host::index(name).map_err(of)?;
        let err = |e| XdpError::from_io("loading a program for", name, e);
        let sockets = Map::new("perimeter_xsk", MapKind::Xsk, (4, 4), STATIONS * QUEUES);
        let sockets = sockets.map_err(err)?;
        let stations = Map::new("perimeter_mac", MapKind::Hash, (8, 8), STATIONS);
        let stations = stations.map_err(err)?;
        let addresses = Map::new("perimeter_ip", MapKind::Hash, (24, 4), ADDRESSES);
        let addresses = addresses.map_err(err)?;
        let insns = program(&sockets, &stations, &addresses, PASS);
        let program = Program::load("perimeter", ProgramKind::Xdp, &insns).map_err(err)?;
        let (generic, link) = link(&program, name, index, mode)?;
        Ok(XdpProgram(Arc::new(Attached {
            name: name.to_owned(),
            index,
            generic,
            sockets,
            stations,
            addresses,
            taken: Mutex::default(),
            _link: link,
        })))
    }

    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether it runs behind the driver, on what that has made of frames for the kernel.
    pub fn is_generic(&self) -> bool {
        self.0.generic
    }

    pub(super) fn index(&self) -> u32 {
        self.0.index
    }

    /// Has the program bring what is for `mac` to the sockets that are set in the station that is
    /// returned; of that, if `only` are any, what is for one of these addresses.
    pub(super) fn station(&self, mac: MacAddr, only: &[IpAddr]) -> Result<Station, XdpError> {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(n) = taken.iter().position(|t| !t) else {
            return Err(XdpError::TooManyStacks(self.0.name.clone()));
        };
        taken[n] = true;
        drop(taken);
        // What is set is taken out again when it goes, whatever fails.
        let mut station = Station {
            program: self.clone(),
            n,
            mac: None,
            keys: Vec::new(),
        };
        let base = (n as u32 * QUEUES).to_ne_bytes();
        let err = |e| XdpError::from_io("setting the addresses of", &self.0.name, e);
        for &address in only {
            let key = address_key(n, address);
            self.0.addresses.set(&key, &base).map_err(err)?;
            station.keys.push(key);
        }
        let named = station.named(mac, base, !only.is_empty());
        named.map_err(|e| match e.raw_os_error() {
            Some(libc::EEXIST) => XdpError::MacTaken {
                name: self.0.name.clone(),
                mac,
            },
            _ => err(e),
        })
    }
}

/// A stack's share of a program.
pub(super) struct Station {
    program: XdpProgram,
    n: usize,
    mac: Option<[u8; 8]>,
    keys: Vec<[u8; 24]>,
}

impl Station {
    fn named(mut self, mac: MacAddr, base: [u8; 4], only: bool) -> io::Result<Station> {
        let key = station_key(mac);
        let mut value = [0; 8];
        value[..4].copy_from_slice(&base);
        value[4] = u8::from(only);
        self.program.0.stations.add(&key, &value)?;
        self.mac = Some(key);
        Ok(self)
    }

    /// Frames that come by the interface's queue `queue` go to this socket from now on. The kernel
    /// takes it out when it is closed.
    pub(super) fn set(&self, queue: u32, socket: &OwnedFd) -> io::Result<()> {
        let key = (self.n as u32 * QUEUES + queue).to_ne_bytes();
        let fd = (socket.as_raw_fd() as u32).to_ne_bytes();
        self.program.0.sockets.set(&key, &fd)
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        let all = &self.program.0;
        if let Some(mac) = &self.mac {
            all.stations.remove(mac);
        }
        for key in &self.keys {
            all.addresses.remove(key);
        }
        let mut taken = all.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken[self.n] = false;
    }
}

fn station_key(mac: MacAddr) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac.0;
    [a, b, c, d, e, f, 0, 0]
}

/// An address, as IPv6 has it, and whose it is.
fn address_key(station: usize, address: IpAddr) -> [u8; 24] {
    let mut key = [0; 24];
    let octets = match address {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    };
    key[..16].copy_from_slice(&octets);
    key[16..20].copy_from_slice(&(station as u32 * QUEUES).to_ne_bytes());
    key
}

/// Attaches it: in the driver, behind it, or as can be. Whether that is behind it.
fn link(
    program: &Program,
    name: &str,
    index: u32,
    mode: XdpMode,
) -> Result<(bool, OwnedFd), XdpError> {
    let attach = |mode| super::patiently(|| program.attach_xdp(index, mode));
    let driver = match mode {
        XdpMode::Generic => None,
        XdpMode::Driver | XdpMode::Any => Some(attach(AttachMode::Driver)),
    };
    let error = match driver {
        Some(Ok(link)) => return Ok((false, link)),
        Some(Err(e)) => Some(e),
        None => None,
    };
    // Somebody's program is there, or there is no permission: it would be so in the other mode.
    let final_one = |e: &io::Error| {
        let code = e.raw_os_error();
        matches!(code, Some(libc::EBUSY | libc::EEXIST | libc::EPERM))
    };
    match error {
        Some(e) if mode == XdpMode::Driver || final_one(&e) => {
            Err(XdpError::from_attach(name, "the driver", e))
        }
        _ => match attach(AttachMode::Generic) {
            Ok(link) => Ok((true, link)),
            Err(e) => Err(XdpError::from_attach(name, "the kernel", e)),
        },
    }
}

/// What is for a station and comes by a queue that has a socket goes there; what is for groups and
/// all else is the kernel's. What is for a station without a socket on that queue is `missed`.
fn program(sockets: &Map, stations: &Map, addresses: &Map, missed: i32) -> Vec<Insn> {
    let mut a = Asm::default();
    let [r0, r1, r2, r3] = [0, 1, 2, 3].map(Reg);
    let (context, data, end, base) = (Reg(6), Reg(7), Reg(8), Reg(9));
    let [pass, redirect, v4, v6, arp, mapped, lookup] = [(); 7].map(|()| a.label());
    // Behind the stack's end: the key of an address (24 octets), and of a station (8).
    const ADDRESS: i16 = -32;
    const STATION: i16 = -8;
    // Whether the frame has `n` octets.
    let need = |a: &mut Asm, n: i32| {
        a.alu_reg(Alu::Mov, r1, data);
        a.alu(Alu::Add, r1, n);
        a.jump_if_reg(Cmp::Greater, r1, end, pass);
    };
    a.alu_reg(Alu::Mov, context, r1);
    a.load(Size::Word, data, context, 0);
    a.load(Size::Word, end, context, 4);
    need(&mut a, 14);
    a.load(Size::Byte, r1, data, 0);
    a.alu(Alu::And, r1, 1);
    a.jump_if(Cmp::NotEqual, r1, 0, pass);
    a.load(Size::Word, r1, data, 0);
    a.store(Size::Word, STACK, STATION, r1);
    a.load(Size::Half, r1, data, 4);
    a.store(Size::Word, STACK, STATION + 4, r1);
    a.map(r1, stations);
    a.alu_reg(Alu::Mov, r2, STACK);
    a.alu(Alu::Add, r2, STATION.into());
    a.call(Helper::MapLookup);
    a.jump_if(Cmp::Equal, r0, 0, pass);
    a.load(Size::Word, base, r0, 0);
    a.load(Size::Word, r1, r0, 4);
    a.jump_if(Cmp::Equal, r1, 0, redirect);

    a.store_imm(Size::Double, STACK, ADDRESS, 0);
    a.store(Size::Word, STACK, ADDRESS + 16, base);
    a.store_imm(Size::Word, STACK, ADDRESS + 20, 0);
    a.load(Size::Half, r1, data, 12);
    let kind = |octets: [u8; 2]| i32::from(u16::from_ne_bytes(octets));
    a.jump_if(Cmp::Equal, r1, kind([0x08, 0x00]), v4);
    a.jump_if(Cmp::Equal, r1, kind([0x86, 0xdd]), v6);
    a.jump_if(Cmp::Equal, r1, kind([0x08, 0x06]), arp);
    a.jump(pass);
    a.place(v4);
    need(&mut a, 34);
    a.load(Size::Word, r1, data, 30);
    a.jump(mapped);
    a.place(arp);
    need(&mut a, 42);
    a.load(Size::Word, r1, data, 38);
    a.place(mapped);
    let prefix = i32::from_ne_bytes([0, 0, 0xff, 0xff]);
    a.store_imm(Size::Word, STACK, ADDRESS + 8, prefix);
    a.store(Size::Word, STACK, ADDRESS + 12, r1);
    a.jump(lookup);
    a.place(v6);
    need(&mut a, 54);
    a.load(Size::Double, r1, data, 38);
    a.store(Size::Double, STACK, ADDRESS, r1);
    a.load(Size::Double, r1, data, 46);
    a.store(Size::Double, STACK, ADDRESS + 8, r1);
    a.place(lookup);
    a.map(r1, addresses);
    a.alu_reg(Alu::Mov, r2, STACK);
    a.alu(Alu::Add, r2, ADDRESS.into());
    a.call(Helper::MapLookup);
    a.jump_if(Cmp::Equal, r0, 0, pass);

    a.place(redirect);
    // The queue that the frame came by.
    a.load(Size::Word, r2, context, 16);
    a.jump_if(Cmp::Greater, r2, QUEUES as i32 - 1, pass);
    a.alu_reg(Alu::Add, r2, base);
    a.map(r1, sockets);
    a.alu(Alu::Mov, r3, missed);
    a.call(Helper::RedirectMap);
    a.exit();
    a.place(pass);
    a.alu(Alu::Mov, r0, PASS);
    a.exit();
    a.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame to `mac` of this type, with these octets at these places.
    fn frame(mac: MacAddr, kind: u16, more: &[(usize, &[u8])]) -> Vec<u8> {
        let mut f = vec![0; 64];
        f[..6].copy_from_slice(&mac.0);
        f[12..14].copy_from_slice(&kind.to_be_bytes());
        for (at, octets) in more {
            f[*at..at + octets.len()].copy_from_slice(octets);
        }
        f
    }

    #[test]
    fn the_program_takes_what_is_ours() {
        let make = || -> io::Result<_> {
            let maps = (
                Map::new("test_xsk", MapKind::Xsk, (4, 4), STATIONS * QUEUES)?,
                Map::new("test_mac", MapKind::Hash, (8, 8), STATIONS)?,
                Map::new("test_ip", MapKind::Hash, (24, 4), ADDRESSES)?,
            );
            // There are no sockets, so that is what it says of frames that are ours.
            const OURS: i32 = 3;
            let insns = program(&maps.0, &maps.1, &maps.2, OURS);
            let program = Program::load("test", ProgramKind::Xdp, &insns)?;
            Ok((maps, program))
        };
        let ((_sockets, stations, addresses), program) = match make() {
            Ok(made) => made,
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                eprintln!("skipped: no permission for bpf(2)");
                return;
            }
            Err(e) => panic!("{e}"),
        };
        let ours = |f: &[u8]| program.test(f).expect("a verdict") == 3;
        let any = MacAddr([2, 3, 4, 5, 0xf6, 7]);
        let some = MacAddr([2, 3, 4, 5, 0xf6, 8]);
        stations.add(&station_key(any), &[0; 8]).expect("set");
        let by_address = [&[0, 1, 0, 0][..], &[1, 0, 0, 0]].concat();
        stations.add(&station_key(some), &by_address).expect("set");
        let again = stations.add(&station_key(some), &by_address);
        assert_eq!(again.expect_err("there").raw_os_error(), Some(libc::EEXIST));
        let (v4, v6) = ("10.99.0.2", "fd00::2:3");
        for a in [v4, v6] {
            let key = address_key(1, a.parse().expect("an address"));
            addresses.set(&key, &[0, 1, 0, 0]).expect("set");
        }
        let v4 = [10, 99, 0, 2];
        let v6 = "fd00::2:3".parse::<std::net::Ipv6Addr>().expect("one");
        let v6 = v6.octets();

        assert!(ours(&frame(any, 0x88b5, &[])), "whatever it is");
        for i in 0..6 {
            let mut other = any;
            other.0[i] ^= 0x20;
            assert!(!ours(&frame(other, 0x0800, &[])), "octet {i}");
        }
        for group in [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1])] {
            assert!(!ours(&frame(group, 0x0806, &[(38, &v4)])));
        }
        for (kind, at, address) in [(0x0800, 30, &v4[..]), (0x0806, 38, &v4), (0x86dd, 38, &v6)] {
            assert!(ours(&frame(some, kind, &[(at, address)])), "{kind:x}");
            let mut other = address.to_vec();
            *other.last_mut().expect("an address") ^= 1;
            assert!(!ours(&frame(some, kind, &[(at, &other)])), "{kind:x}");
            assert!(!ours(&frame(some, kind, &[(at, address)])[..at + 3]));
        }
        assert!(!ours(&frame(some, 0x88b5, &[(30, &v4)])));
        // What is another station's address is not ours.
        let key = address_key(2, [10, 99, 0, 3].into());
        addresses.set(&key, &[0, 2, 0, 0]).expect("set");
        assert!(!ours(&frame(some, 0x0800, &[(30, &[10, 99, 0, 3])])));
        stations.remove(&station_key(any));
        assert!(!ours(&frame(any, 0x88b5, &[])));
    }
}
