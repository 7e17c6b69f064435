//! Small programs in the host's kernel: maps, programs made instruction by instruction, and what
//! attaches them. No compiler and no library is needed where this runs.

pub(crate) mod asm;

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use asm::Insn;

/// Commands of bpf(2) (linux/bpf.h).
const MAP_CREATE: c_int = 0;
const MAP_UPDATE_ELEM: c_int = 2;
const MAP_DELETE_ELEM: c_int = 3;
const PROG_LOAD: c_int = 5;
#[cfg(test)]
const PROG_TEST_RUN: c_int = 10;
const LINK_CREATE: c_int = 28;

/// Where an XDP program is attached.
const ATTACH_XDP: u32 = 37;

/// Kinds of maps (linux/bpf.h).
#[derive(Clone, Copy)]
pub(crate) enum MapKind {
    Hash = 1,
    Array = 2,
    Xsk = 17,
}

/// Kinds of programs (linux/bpf.h).
#[derive(Clone, Copy)]
pub(crate) enum ProgramKind {
    SocketFilter = 1,
    Xdp = 6,
}

/// How an XDP program is attached (linux/if_link.h).
#[derive(Clone, Copy)]
pub(crate) enum AttachMode {
    Generic = 1 << 1,
    Driver = 1 << 2,
}

/// Arguments of one command: the first octets of `union bpf_attr`.
trait Attr: Copy {}

#[derive(Clone, Copy)]
#[repr(C)]
struct MapAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    name: [u8; 16],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ElemAttr {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ProgAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct LinkAttr {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

#[cfg(test)]
#[derive(Clone, Copy)]
#[repr(C)]
struct TestAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx: [u32; 6],
    flags: u32,
    cpu: u32,
    batch_size: u32,
    _pad: u32,
}

impl Attr for MapAttr {}
impl Attr for ElemAttr {}
impl Attr for ProgAttr {}
impl Attr for LinkAttr {}
#[cfg(test)]
impl Attr for TestAttr {}

/// The system call.
///
/// # Safety
/// Addresses in `attr` are those of memory that is valid, during the call, for what the command
/// does with it.
unsafe fn bpf<T: Attr>(command: c_int, attr: &mut T) -> io::Result<c_int> {
    let at = std::ptr::from_mut(attr).cast::<c_void>();
    // SAFETY: `attr` is valid for reads and writes of its size, and the caller answers for what it
    // refers to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as c_int)
}

fn owned(fd: c_int) -> OwnedFd {
    // SAFETY: the call before has just given us this descriptor.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn address<T: ?Sized>(of: &T) -> u64 {
    std::ptr::from_ref(of).expose_provenance() as u64
}

fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    let n = text.len().min(15);
    name[..n].copy_from_slice(&text.as_bytes()[..n]);
    name
}

/// A map in the kernel.
pub(crate) struct Map {
    fd: OwnedFd,
    key: usize,
    value: usize,
}

impl Map {
    /// Makes one, of at most `entries`, with keys and values of so many octets.
    pub(crate) fn new(
        what: &str,
        kind: MapKind,
        (key, value): (usize, usize),
        entries: u32,
    ) -> io::Result<Map> {
        let mut attr = MapAttr {
            map_type: kind as u32,
            key_size: key as u32,
            value_size: value as u32,
            max_entries: entries,
            map_flags: 0,
            inner_map_fd: 0,
            numa_node: 0,
            name: name(what),
        };
        // SAFETY: no addresses.
        let fd = owned(unsafe { bpf(MAP_CREATE, &mut attr) }?);
        Ok(Map { fd, key, value })
    }

    /// Sets an entry.
    ///
    /// # Panics
    /// Key or value have another length than the map's.
    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.update(key, value, 0)
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// `EEXIST`: there is one.
    ///
    /// # Panics
    /// As for [`Map::set`].
    pub(crate) fn add(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        const BPF_NOEXIST: u64 = 1;
        self.update(key, value, BPF_NOEXIST)
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
        assert!(key.len() == self.key && value.len() == self.value);
        let mut attr = self.elem(key);
        (attr.value, attr.flags) = (address(value), flags);
        // SAFETY: key and value are as long as the map's, which reads them.
        unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
    }

    /// Removes an entry, if there is one.
    ///
    /// # Panics
    /// The key has another length than the map's.
    pub(crate) fn remove(&self, key: &[u8]) {
        assert_eq!(key.len(), self.key);
        // SAFETY: the key is as long as the map's, which reads it.
        let _ = unsafe { bpf(MAP_DELETE_ELEM, &mut self.elem(key)) };
    }

    fn elem(&self, key: &[u8]) -> ElemAttr {
        ElemAttr {
            map_fd: self.fd.as_raw_fd() as u32,
            _pad: 0,
            key: address(key),
            value: 0,
            flags: 0,
        }
    }
}

impl AsRawFd for Map {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A program that the kernel has verified.
pub(crate) struct Program(OwnedFd);

impl Program {
    /// Loads it.
    ///
    /// # Errors
    /// Without privilege, or if the kernel won't have it: then with what its verifier says.
    pub(crate) fn load(what: &str, kind: ProgramKind, insns: &[Insn]) -> io::Result<Program> {
        let mut log = [];
        match Program::load_with(what, kind, insns, &mut log) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) => {
                // Again, to hear why.
                let mut log = vec![0u8; 1 << 16];
                let again = Program::load_with(what, kind, insns, &mut log);
                let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
                let log = String::from_utf8_lossy(&log[..end]);
                match log.trim().lines().rev().nth(1) {
                    Some(line) if again.is_err() => {
                        Err(io::Error::new(e.kind(), format!("{e}: {line}")))
                    }
                    _ => again,
                }
            }
            other => other,
        }
    }

    fn load_with(
        what: &str,
        kind: ProgramKind,
        insns: &[Insn],
        log: &mut [u8],
    ) -> io::Result<Program> {
        let mut attr = ProgAttr {
            prog_type: kind as u32,
            insn_cnt: insns.len() as u32,
            insns: address(insns),
            license: c"MIT".as_ptr().expose_provenance() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log_buf: match log.len() {
                0 => 0,
                _ => log.as_mut_ptr().expose_provenance() as u64,
            },
            kern_version: 0,
            prog_flags: 0,
            name: name(what),
            prog_ifindex: 0,
            expected_attach_type: match kind {
                ProgramKind::Xdp => ATTACH_XDP,
                ProgramKind::SocketFilter => 0,
            },
        };
        // SAFETY: instructions, licence and log are valid for as long as the attributes say.
        Ok(Program(owned(unsafe { bpf(PROG_LOAD, &mut attr) }?)))
    }

    /// Attaches an XDP program to an interface, for as long as what is returned is kept: when the
    /// process ends, however it does, the kernel detaches it.
    pub(crate) fn attach_xdp(&self, ifindex: u32, mode: AttachMode) -> io::Result<OwnedFd> {
        let mut attr = LinkAttr {
            prog_fd: self.0.as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: ATTACH_XDP,
            flags: mode as u32,
        };
        // SAFETY: no addresses.
        Ok(owned(unsafe { bpf(LINK_CREATE, &mut attr) }?))
    }

    /// What it returns for these octets.
    #[cfg(test)]
    pub(crate) fn test(&self, data: &[u8]) -> io::Result<u32> {
        let mut attr = TestAttr {
            prog_fd: self.0.as_raw_fd() as u32,
            retval: 0,
            data_size_in: data.len() as u32,
            data_size_out: 0,
            data_in: address(data),
            data_out: 0,
            repeat: 1,
            duration: 0,
            ctx: [0; 6],
            flags: 0,
            cpu: 0,
            batch_size: 0,
            _pad: 0,
        };
        // SAFETY: the kernel reads the data, and writes only to `attr`.
        unsafe { bpf(PROG_TEST_RUN, &mut attr) }?;
        Ok(attr.retval)
    }
}

impl AsRawFd for Program {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
