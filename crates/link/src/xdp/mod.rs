//! AF_XDP: a stack of its own on an Ethernet interface of the host, past most of its kernel (Linux
//! 5.11 and later).
//!
//! A small program in the interface's driver, or behind it ([`XdpMode`]), brings the frames that
//! are for the stack to sockets whose memory the stack shares with the kernel; all others go on to
//! the kernel, which goes on using the interface. Received frames stay in that memory until the
//! stack is done with them; what is sent is copied into it, once, and its checksum completed there.
//!
//! *Addresses* are as with [packet sockets](crate::packet): by default the stack is a second
//! station at the interface's port. Frames to groups (ARP requests, IPv6's multicast) go to both
//! the kernel and the stack, which gets them by a packet socket beside. With the interface's own
//! link-layer address ([`XdpConfig::mac`]) all frames to it are the stack's, or those to its IP
//! addresses only ([`XdpConfig::addresses`]).
//!
//! *Queues* are the interface's: each has a socket, all in one region of memory, and the interface
//! divides the flows. A frame that comes by a queue without a socket is the kernel's. By
//! [`XdpProgram`] several stacks share an interface.
//!
//! *Dropped* are frames that are longer than the memory of one (large segments from the other end
//! of a veth pair in generic mode: `ethtool -K IF tso off` there). There are no large segments in
//! either direction, as AF_XDP has none.
//!
//! A veth pair passes frames on with partial checksums, as they have been on no wire, and its
//! driver does not say which: see [`XdpConfig::partial`].
//!
//! The kernel undoes everything when the sockets are closed: so when the process ends, however it
//! does.

mod program;
mod queue;
mod sys;

use perimeter_base::region;
use perimeter_wire::MacAddr;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::device::{Capabilities, Device, Medium, Queues, RxQueue, TxQueue};
use crate::ifreq::{self, is_name};
use crate::packet::{Groups, PacketError};
use crate::{host, packet};
pub use program::XdpProgram;
use program::{QUEUES, STATIONS};
use queue::{Counts, Socket, XdpRx, XdpTx};
use sys::{Bind, Which};

/// Octets in front of each received frame that the kernel keeps for programs.
const HEADROOM: usize = 256;

/// How long a queue, or an interface's place for a program, that was in use a moment ago is waited
/// for. The kernel lets go of a queue some time after its socket is closed, and of a program when no
/// process has its descriptor any more; between fork and exec a child has copies of all of them.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpMode {
    /// In the driver if it can, else behind it.
    #[default]
    Any,
    /// In the driver ("native"), before the kernel has done anything to the frame.
    Driver,
    /// Behind the driver, on the kernel's buffers ("SKB mode"): with any interface.
    Generic,
}

/// Whose memory the interface reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpCopy {
    /// The stack's, if the driver can, else the kernel's, which copies.
    #[default]
    Any,
    /// The kernel's, which copies.
    Copy,
    /// The stack's.
    ZeroCopy,
}

/// Which interface to use, and how.
#[derive(Clone)]
#[non_exhaustive]
pub struct XdpConfig {
    /// Name of the interface, which exists and is up.
    pub name: String,
    /// Queues, each for both directions; 0: all that the interface has. Fewer than it has is an
    /// error unless `program` is given, as their frames would be the kernel's.
    pub queues: usize,
    /// The first of them, as the interface numbers them.
    pub first_queue: u32,
    /// Link-layer address of the stack; `None`: one of its own, that of a
    /// [packet device](crate::packet) on the same interface.
    pub mac: Option<MacAddr>,
    /// Addresses of the stack: of the frames to its link-layer address only those for them are the
    /// stack's. Empty: all are.
    pub addresses: Vec<IpAddr>,
    /// Where the program runs.
    pub mode: XdpMode,
    /// Whose memory the interface uses.
    pub copy: XdpCopy,
    /// A program that is there already; `None`: one of its own, and no other stack.
    pub program: Option<XdpProgram>,
    /// Takes frames of TCP and UDP whose checksum is that of the pseudo-header only for frames that
    /// have been on no wire. `None`: on a veth pair.
    pub partial: Option<bool>,
    /// Frames in each ring, a power of two from 64 to 32,768. A queue has three times as many
    /// frames of memory.
    pub ring: u32,
}

impl XdpConfig {
    /// All queues of that interface, as well as can be, with rings of 2048 frames.
    pub fn new(name: &str) -> XdpConfig {
        XdpConfig {
            name: name.to_owned(),
            queues: 0,
            first_queue: 0,
            mac: None,
            addresses: Vec::new(),
            mode: XdpMode::Any,
            copy: XdpCopy::Any,
            program: None,
            partial: None,
            ring: 2048,
        }
    }
}

perimeter_base::setters! {
    XdpConfig {
        with_name(name: impl Into<String>),
        with_queues(queues: usize),
        with_first_queue(first_queue: u32),
        with_mac(mac: Option<MacAddr>),
        with_addresses(addresses: Vec<IpAddr>),
        with_mode(mode: XdpMode),
        with_copy(copy: XdpCopy),
        with_program(program: Option<XdpProgram>),
        with_partial(partial: Option<bool>),
        with_ring(ring: u32),
    }
}

/// Why an interface can't be used by AF_XDP.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum XdpError {
    /// The name can't be one of an interface.
    #[error("'{0}' is no interface name: 1 to 15 bytes, no '/', no spaces, not '.' or '..'")]
    BadName(String),
    /// More queues than the interface has, or than a device can have.
    #[error(
        "queues {first} to {last} of '{name}': it has {has} (ethtool -L {name} combined N sets how \
         many)"
    )]
    BadQueues {
        /// The interface.
        name: String,
        /// The first that was asked for.
        first: u32,
        /// The last.
        last: u32,
        /// How many there are.
        has: u32,
    },
    /// Fewer queues than the interface has.
    #[error(
        "{queues} queues of '{name}', which has {has}: what comes by the others would not reach \
         the stack; ask for all, or lower their number (ethtool -L {name} combined {queues})"
    )]
    TooFewQueues {
        /// The interface.
        name: String,
        /// How many were asked for.
        queues: usize,
        /// How many there are.
        has: u32,
    },
    /// The link-layer address is a group's, or none.
    #[error("{0} is no station's address: the first octet must be even, and not all may be zero")]
    BadMac(MacAddr),
    /// The size of the rings.
    #[error("rings of {0} frames: a power of two from 64 to 32768 is expected")]
    BadRing(u32),
    /// More addresses than the program keeps.
    #[error("{0} addresses: 256 are possible")]
    TooManyAddresses(usize),
    /// A program that is attached to another interface.
    #[error("the program is attached to '{0}'")]
    OtherInterface(String),
    /// Frames that do not fit a page.
    #[error(
        "'{name}' has an MTU of {mtu}: AF_XDP takes one page for each frame, so {most} at most (ip \
         link set {name} mtu {most})"
    )]
    Mtu {
        /// The interface.
        name: String,
        /// Its MTU.
        mtu: u32,
        /// The largest that is possible.
        most: u32,
    },
    /// No such interface.
    #[error("no interface '{0}' in this network namespace: 'ip link' lists them")]
    NoInterface(String),
    /// The interface is down.
    #[error("'{0}' is down: ip link set {0} up")]
    Down(String),
    /// The interface has no Ethernet frames.
    #[error("'{name}' is no Ethernet interface (ARPHRD {kind}): AF_XDP devices need one")]
    NotEthernet {
        /// The interface.
        name: String,
        /// What it is, as `linux/if_arp.h` numbers it.
        kind: u16,
    },
    /// The kernel was built without AF_XDP, or is too old.
    #[error(
        "this kernel has no AF_XDP sockets: it needs CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL \
         (Linux 5.11 and later)"
    )]
    NoSockets,
    /// No privilege.
    #[error(
        "no permission for {what} '{name}': run as root or with CAP_NET_RAW, CAP_NET_ADMIN and \
         CAP_BPF (setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM)"
    )]
    Permission {
        /// What was tried.
        what: &'static str,
        /// The interface.
        name: String,
    },
    /// Too little memory may be locked.
    #[error(
        "{octets} octets of memory for '{name}' are more than may be locked: raise the limit \
         (ulimit -l {kib}), run with CAP_IPC_LOCK, or ask for smaller rings"
    )]
    Locked {
        /// The interface.
        name: String,
        /// How much was asked for.
        octets: usize,
        /// The same in KiB.
        kib: usize,
    },
    /// Another program is attached to the interface.
    #[error(
        "another XDP program is attached to '{0}': 'ip link show dev {0}' tells which; stacks of \
         one process can share one (XdpProgram)"
    )]
    Busy(String),
    /// Somebody else's socket has the queue.
    #[error("queue {queue} of '{name}' is in use by another AF_XDP socket")]
    BusyQueue {
        /// The interface.
        name: String,
        /// The queue.
        queue: u32,
    },
    /// The driver can't run programs.
    #[error(
        "{who} of '{name}'{driver} can't run XDP programs here ({source}): use generic mode, or a \
         driver with native XDP (and on a veth pair as many receive queues as the other end has \
         transmit queues)"
    )]
    NoDriver {
        /// Who was to run it.
        who: &'static str,
        /// The interface.
        name: String,
        /// Its driver, in brackets, where known.
        driver: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The driver can't use the stack's memory.
    #[error(
        "the driver of '{name}'{driver} has no zero-copy mode for AF_XDP (XDP_ZEROCOPY): use copy \
         mode"
    )]
    NoZeroCopy {
        /// The interface.
        name: String,
        /// Its driver, in brackets, where known.
        driver: String,
    },
    /// Another stack of the same program has that link-layer address.
    #[error("another stack on '{name}' has the station address {mac}: each needs one of its own")]
    MacTaken {
        /// The interface.
        name: String,
        /// The address.
        mac: MacAddr,
    },
    /// The program has no place for another stack.
    #[error("16 stacks share '{0}' already")]
    TooManyStacks(String),
    /// The packet socket for frames to groups.
    #[error("{0}")]
    Groups(#[from] PacketError),
    /// Anything else.
    #[error("{what} '{name}': {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The interface.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
}

perimeter_base::debug_is_text!(XdpError);

impl XdpError {
    /// Whether more privilege would help.
    pub fn is_permission(&self) -> bool {
        match self {
            XdpError::Permission { .. } | XdpError::Locked { .. } => true,
            XdpError::Groups(e) => e.is_permission(),
            _ => false,
        }
    }

    fn from_io(what: &'static str, name: &str, source: io::Error) -> XdpError {
        let name = name.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => XdpError::Permission { what, name },
            Some(libc::ENODEV | libc::ENXIO) => XdpError::NoInterface(name),
            Some(libc::ENETDOWN) => XdpError::Down(name),
            Some(libc::EAFNOSUPPORT | libc::ENOSYS) => XdpError::NoSockets,
            _ => XdpError::Io { what, name, source },
        }
    }

    /// The program could not be attached.
    fn from_attach(name: &str, who: &'static str, source: io::Error) -> XdpError {
        match source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => XdpError::Busy(name.to_owned()),
            Some(libc::EPERM | libc::EACCES | libc::ENODEV) => {
                XdpError::from_io("attaching a program to", name, source)
            }
            _ => XdpError::NoDriver {
                who,
                name: name.to_owned(),
                driver: driver(name),
                source,
            },
        }
    }
}

/// The interface's driver, in brackets, if it is known.
fn driver(name: &str) -> String {
    ifreq::driver(name).map_or(String::new(), |d| format!(" ({d})"))
}

/// Frames of a device since it was opened.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct XdpCounts {
    /// Came by the sockets and were handed over; frames to groups come besides.
    pub received: u64,
    /// Of these, copied, since so many others were still in use that the kernel might have run out.
    pub copied: u64,
    /// Dropped by the kernel: the stack came too late, or a frame was longer than its memory.
    pub no_room: u64,
    /// Dropped on receipt: in several pieces.
    pub unusable: u64,
    /// Given to the kernel to send.
    pub sent: u64,
    /// Not sent: longer than the memory of a frame.
    pub refused: u64,
    /// Frames to groups, by a packet socket.
    pub groups: packet::PacketCounts,
}

/// Reads what happened on an [`Xdp`] device. Cheap to clone; keeps nothing open.
#[derive(Clone)]
pub struct XdpHandle {
    queues: Vec<(Weak<Socket>, Arc<Counts>)>,
    groups: packet::PacketHandle,
}

impl XdpHandle {
    /// All so far; what was, when the device has been closed.
    pub fn counts(&self) -> XdpCounts {
        let mut all = XdpCounts {
            groups: self.groups.counts(),
            ..XdpCounts::default()
        };
        for (socket, counts) in &self.queues {
            if let Some(socket) = socket.upgrade() {
                socket.count();
            }
            let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            all.received += of(&counts.received);
            all.copied += of(&counts.copied);
            all.no_room += of(&counts.no_room);
            all.unusable += of(&counts.unusable);
            all.sent += of(&counts.sent);
            all.refused += of(&counts.refused);
        }
        all
    }
}

/// An interface that was opened by AF_XDP. A [`Device`].
pub struct Xdp {
    queues: Vec<(XdpRx, XdpTx)>,
    handle: XdpHandle,
    name: String,
    mac: MacAddr,
    mtu: u32,
    generic: bool,
    zero_copy: bool,
}

impl Xdp {
    /// Opens the interface. It receives from now on.
    ///
    /// # Errors
    /// See [`XdpError`].
    pub fn open(config: &XdpConfig) -> Result<Xdp, XdpError> {
        check(config)?;
        let name = &config.name;
        let of = |e| XdpError::from_io("reading the settings of", name, e);
        let own = host::mac(name).map_err(of)?;
        let kind = host::kind(name).map_err(of)?;
        if kind != libc::ARPHRD_ETHER {
            return Err(XdpError::NotEthernet {
                name: name.clone(),
                kind,
            });
        }
        if !host::is_up(name).map_err(of)? {
            return Err(XdpError::Down(name.clone()));
        }
        let mtu = host::mtu(name).map_err(of)?;
        let frame = frame_for(name, mtu)?;
        let queues = queues(config)?;
        let program = match &config.program {
            Some(program) => program.clone(),
            None => XdpProgram::attach(name, config.mode)?,
        };
        let mac = config.mac.unwrap_or_else(|| packet::mac_of(name, own));
        let joined = (mac != own).then_some(mac);
        let groups = Groups::open(name, program.index(), joined)?;
        let station = Arc::new(program.station(mac, &config.addresses)?);
        let mut xdp = Xdp {
            queues: Vec::new(),
            handle: XdpHandle {
                queues: Vec::new(),
                groups: groups.handle(),
            },
            name: name.clone(),
            mac,
            mtu,
            generic: program.is_generic(),
            zero_copy: false,
        };
        xdp.open_queues(config, frame, queues, program.index(), &station)?;
        if let Some((rx, _)) = xdp.queues.first_mut() {
            rx.with_groups(groups)
                .map_err(|e| XdpError::from_io("waiting for", name, e))?;
        }
        Ok(xdp)
    }

    fn open_queues(
        &mut self,
        config: &XdpConfig,
        frame: usize,
        queues: u32,
        ifindex: u32,
        station: &Arc<program::Station>,
    ) -> Result<(), XdpError> {
        let name = &config.name;
        let err = |what| move |e| XdpError::from_io(what, name, e);
        let ring = config.ring;
        let each = [2 * ring as usize, ring as usize];
        let stocks: Vec<usize> = (0..queues).flat_map(|_| each).collect();
        let memory = sys::memory(frame, stocks.iter().sum()).map_err(err("memory for"))?;
        let mut stocks = region::divide(memory, frame, &stocks).into_iter();
        let partial = config.partial.unwrap_or_else(|| {
            let driver = ifreq::driver(name);
            driver.is_some_and(|d| queue::leaves_partial(&d))
        });
        let gone = Arc::new(AtomicBool::new(false));
        let mut first: Option<Arc<Socket>> = None;
        for (n, queue) in (config.first_queue..).take(queues as usize).enumerate() {
            let fd = sys::open().map_err(err("opening an AF_XDP socket for"))?;
            let socket = Arc::new(Socket::new(fd, station.clone(), gone.clone()));
            let (Some(to_receive), Some(to_send)) = (stocks.next(), stocks.next()) else {
                break;
            };
            if n == 0 {
                let frames = to_receive.frames();
                sys::register(&socket.fd, frames, frame).map_err(|e| locked(name, frames, e))?;
            }
            let sizes = [Which::Receive, Which::Fill].map(|w| (w, ring));
            let rx = XdpRx::new(socket.clone(), sizes, to_receive, partial);
            let sizes = [Which::Transmit, Which::Completion].map(|w| (w, ring));
            let tx = XdpTx::new(socket.clone(), sizes, to_send);
            let (rx, tx) = (rx.map_err(err("rings for"))?, tx.map_err(err("rings for"))?);
            sys::budget(&socket.fd, ring.min(256));
            let to = Bind {
                ifindex,
                queue,
                flags: flags(config.copy, self.generic),
                shared: first.as_ref().map(|s| &s.fd),
            };
            bind(config, &socket.fd, &to)?;
            station.set(queue, &socket.fd).map_err(err("taking over"))?;
            if n == 0 {
                self.zero_copy = sys::is_zero_copy(&socket.fd).unwrap_or(false);
            }
            let watch = (Arc::downgrade(&socket), socket.counts.clone());
            self.handle.queues.push(watch);
            self.queues.push((rx, tx));
            first.get_or_insert(socket);
        }
        Ok(())
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many queues it has.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Whether the driver reads and writes the stack's memory itself.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Whether the program runs behind the driver.
    pub fn is_generic(&self) -> bool {
        self.generic
    }

    /// A handle that counts frames.
    pub fn handle(&self) -> XdpHandle {
        self.handle.clone()
    }
}

/// How a socket is bound. Wake-ups are asked for only where they are needed.
fn flags(copy: XdpCopy, generic: bool) -> u16 {
    let copy = match copy {
        XdpCopy::Any if generic => libc::XDP_COPY,
        XdpCopy::Any => 0,
        XdpCopy::Copy => libc::XDP_COPY,
        XdpCopy::ZeroCopy => libc::XDP_ZEROCOPY,
    };
    copy | libc::XDP_USE_NEED_WAKEUP
}

/// Calls `f` until it finds what it needs no longer in use, for [`PATIENCE`] at most.
fn patiently<T>(mut f: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match f() {
            Err(e) if is_busy(&e) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

fn is_busy(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

/// Binds a socket to its queue.
fn bind(config: &XdpConfig, fd: &OwnedFd, to: &Bind<'_>) -> Result<(), XdpError> {
    let name = &config.name;
    patiently(|| sys::bind(fd, to)).map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) => XdpError::BusyQueue {
            name: name.clone(),
            queue: to.queue,
        },
        Some(libc::EOPNOTSUPP | libc::EINVAL) if config.copy == XdpCopy::ZeroCopy => {
            XdpError::NoZeroCopy {
                name: name.clone(),
                driver: driver(name),
            }
        }
        _ => XdpError::from_io("binding to", name, e),
    })
}

fn locked(name: &str, frames: *mut [u8], e: io::Error) -> XdpError {
    if e.raw_os_error() != Some(libc::ENOBUFS) {
        return XdpError::from_io("sharing memory for", name, e);
    }
    XdpError::Locked {
        name: name.to_owned(),
        octets: frames.len(),
        kib: frames.len() / 1024,
    }
}

fn check_name(name: &str) -> Result<(), XdpError> {
    match is_name(name) {
        true => Ok(()),
        false => Err(XdpError::BadName(name.to_owned())),
    }
}

/// What can be told without asking the kernel.
fn check(config: &XdpConfig) -> Result<(), XdpError> {
    check_name(&config.name)?;
    let bad = |mac: &MacAddr| mac.is_multicast() || *mac == MacAddr::UNSPECIFIED;
    if let Some(mac) = config.mac.filter(bad) {
        return Err(XdpError::BadMac(mac));
    }
    if !config.ring.is_power_of_two() || !(64..=32_768).contains(&config.ring) {
        return Err(XdpError::BadRing(config.ring));
    }
    if config.addresses.len() > 256 {
        return Err(XdpError::TooManyAddresses(config.addresses.len()));
    }
    match &config.program {
        Some(p) if p.name() != config.name => Err(XdpError::OtherInterface(p.name().to_owned())),
        _ => Ok(()),
    }
}

/// Octets of a frame's memory, for this MTU.
fn frame_for(name: &str, mtu: u32) -> Result<usize, XdpError> {
    let need = HEADROOM + 18 + mtu as usize;
    match need {
        0..=2048 => Ok(2048),
        2049..=4096 => Ok(4096),
        _ => Err(XdpError::Mtu {
            name: name.to_owned(),
            mtu,
            most: (4096 - HEADROOM - 18) as u32,
        }),
    }
}

/// How many queues to use, all of which the interface has.
fn queues(config: &XdpConfig) -> Result<u32, XdpError> {
    let name = &config.name;
    // What does not say how many it has, has one.
    let has = ifreq::receive_queues(name).unwrap_or(1).max(1);
    let first = config.first_queue;
    let queues = match u32::try_from(config.queues) {
        Ok(0) => has.saturating_sub(first),
        Ok(n) => n,
        Err(_) => u32::MAX,
    };
    let last = first.saturating_add(queues.max(1) - 1);
    if queues == 0 || last >= has || last >= QUEUES {
        return Err(XdpError::BadQueues {
            name: name.clone(),
            first,
            last,
            has,
        });
    }
    if config.program.is_none() && queues < has {
        return Err(XdpError::TooFewQueues {
            name: name.clone(),
            queues: config.queues.max(queues as usize),
            has,
        });
    }
    Ok(queues)
}

impl Device for Xdp {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: self.name.clone(),
            medium: Medium::Ethernet,
            mac: self.mac,
            mtu: self.mtu,
            tx_checksum: true,
            large: 0,
            large_datagrams: 0,
            hands_on: false,
        }
    }

    fn open(self: Box<Self>) -> Queues {
        let mut rx: Vec<Box<dyn RxQueue>> = Vec::new();
        let mut tx: Vec<Box<dyn TxQueue>> = Vec::new();
        for (receive, send) in self.queues {
            rx.push(Box::new(receive));
            tx.push(Box::new(send));
        }
        (rx, tx)
    }
}

const _: () = assert!(STATIONS == 16, "the message says so");

#[cfg(test)]
mod tests;
