//! Links between two network namespaces: veth pairs without segmentation offload.

use super::netlink::{NLM_F_CREATE, NLM_F_EXCL, Netlink, Request, attributes, find};
use crate::{Error, error::Context as _, workload::Family};
use nix::sched::CloneFlags;
use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

// linux/rtnetlink.h, linux/if_link.h, linux/veth.h, linux/if_addr.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_OPERSTATE: u16 = 16;
const IF_OPER_UP: u8 = 6;
/// Octets of a link message before its attributes.
const LINK_HEADER: usize = 16;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFF_UP: u32 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// The address is used at once: nobody else is there to have it (RFC 4862, section 5.4).
const IFA_F_NODAD: u8 = 2;
// linux/genetlink.h, linux/ethtool_netlink.h
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;

/// Offloads that would let one pass through the stack carry several segments.
const OFFLOADS: [&str; 7] = [
    "tx-generic-segmentation",
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp-accecn-segmentation",
    "rx-gro",
    "rx-lro",
];

/// Runs `work` on a thread of its own, which takes its change of namespace with it, and waits for
/// it.
///
/// # Errors
/// Those of `work`, or that it panicked.
pub fn aside<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let done = scope.spawn(work).join();
        done.unwrap_or_else(|_| Err(Error::Run("a set-up thread panicked".into())))
    })
}

/// A network namespace, held by a descriptor. It vanishes, with its links, when the last thread,
/// socket and descriptor in it is gone, however the process ends.
#[derive(Debug)]
pub struct Namespace {
    handle: File,
}

impl Namespace {
    /// Makes one and moves the calling thread into it.
    ///
    /// # Errors
    /// What the system says.
    pub fn enter_new() -> Result<Namespace, Error> {
        nix::sched::unshare(CloneFlags::CLONE_NEWNET).context("making a network namespace")?;
        let handle = File::open("/proc/thread-self/ns/net").context("opening the namespace")?;
        Ok(Namespace { handle })
    }

    /// Moves the calling thread into it.
    ///
    /// # Errors
    /// What the system says.
    pub fn enter(&self) -> Result<(), Error> {
        nix::sched::setns(&self.handle, CloneFlags::CLONE_NEWNET)
            .context("entering a network namespace")
    }

    /// Runs `work` on a thread inside the namespace and waits for it.
    ///
    /// # Errors
    /// Those of `work`, or that the namespace can't be entered.
    pub fn within<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        aside(|| {
            self.enter()?;
            work()
        })
    }

    /// Retransmitted TCP segments since the namespace was made.
    ///
    /// # Errors
    /// The counters can't be read.
    pub fn retransmits(&self) -> Result<u64, Error> {
        self.within(retransmitted_here)
    }
}

/// Segments that the kernel sent again, in the calling thread's namespace since that was made.
///
/// # Errors
/// The counters can't be read.
pub fn retransmitted_here() -> Result<u64, Error> {
    let text = fs::read_to_string("/proc/thread-self/net/snmp").context("reading TCP counters")?;
    Ok(retransmitted(&text))
}

/// `RetransSegs` from the text of an snmp file: a line of names, then one of values.
pub fn retransmitted(text: &str) -> u64 {
    let mut tcp = text.lines().filter(|l| l.starts_with("Tcp:"));
    let (Some(names), Some(values)) = (tcp.next(), tcp.next()) else {
        return 0;
    };
    names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(n, _)| *n == "RetransSegs")
        .and_then(|(_, v)| v.parse().ok())
        .unwrap_or(0)
}

/// Two namespaces joined by one veth pair per NIC.
#[derive(Debug)]
pub struct Links {
    /// The side under test.
    pub near: Arc<Namespace>,
    /// The peer's side.
    pub far: Arc<Namespace>,
}

impl Links {
    /// Makes both namespaces and their links of this maximum transmission unit, in bytes. Segments
    /// pass one by one, unless they may be `large`.
    ///
    /// # Errors
    /// The first step that the system refused; nothing is left behind.
    pub fn make(nics: usize, mtu: u32, large: bool, family: Family) -> Result<Links, Error> {
        aside(|| Self::make_here(nics, (mtu, 1), large, (family, true)))
    }

    /// The same for a stack beside the kernel at the near end, which therefore has no address
    /// there, with so many queues.
    ///
    /// # Errors
    /// As for [`Links::make`].
    pub fn beside(
        nics: usize,
        mtu: u32,
        large: bool,
        queues: usize,
        family: Family,
    ) -> Result<Links, Error> {
        aside(|| Self::make_here(nics, (mtu, queues as u32), large, (family, false)))
    }

    fn make_here(
        nics: usize,
        (mtu, queues): (u32, u32),
        large: bool,
        (family, near_has_addresses): (Family, bool),
    ) -> Result<Links, Error> {
        let far = Arc::new(Namespace::enter_new()?);
        let near = Arc::new(Namespace::enter_new()?);
        let route = Netlink::route()?;
        for nic in 0..nics {
            create_pair(&route, nic, mtu, queues, &far)?;
        }
        let near_end = |nic| near_has_addresses.then(|| near_end(family, nic));
        let near_links = configure(&route, nics, (near_name, large), near_end)?;
        far.enter()?;
        let far_route = Netlink::route()?;
        let far_links = configure(&far_route, nics, (far_name, large), |nic| {
            Some(far_end(family, nic))
        })?;
        await_links(&route, &near_links)?;
        await_links(&far_route, &far_links)?;
        Ok(Links { near, far })
    }
}

/// Address of the near end of NIC `nic`. RFC 2544, C.2.2: 198.18.0.0/15 is set aside for
/// benchmarks.
pub fn near_address(nic: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, nic as u8, 1)
}

/// Address of the far end of NIC `nic`.
pub fn far_address(nic: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, nic as u8, 2)
}

/// The same over that family. RFC 5180, section 8: 2001:2::/48 is set aside for benchmarks.
pub fn near_end(family: Family, nic: usize) -> IpAddr {
    match family {
        Family::Ipv4 => near_address(nic).into(),
        Family::Ipv6 => Ipv6Addr::new(0x2001, 2, 0, nic as u16, 0, 0, 0, 1).into(),
    }
}

/// The same of the far end.
pub fn far_end(family: Family, nic: usize) -> IpAddr {
    match family {
        Family::Ipv4 => far_address(nic).into(),
        Family::Ipv6 => Ipv6Addr::new(0x2001, 2, 0, nic as u16, 0, 0, 0, 2).into(),
    }
}

/// Prefix length of each NIC's subnet.
pub fn prefix(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 24,
        IpAddr::V6(_) => 64,
    }
}

/// Name of the near end of NIC `nic`, in its namespace.
pub fn near_name(nic: usize) -> String {
    format!("near{nic}")
}

/// Name of the far end of NIC `nic`, in its namespace.
pub fn far_name(nic: usize) -> String {
    format!("far{nic}")
}

/// `struct ifinfomsg`.
fn link_header(index: u32, flags: u32, change: u32) -> [u8; LINK_HEADER] {
    let mut header = [0; LINK_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

fn create_pair(
    route: &Netlink,
    nic: usize,
    mtu: u32,
    queues: u32,
    far: &Namespace,
) -> Result<(), Error> {
    let (mtu, queues) = (mtu.to_ne_bytes(), queues.to_ne_bytes());
    let with_queues = |r: Request| {
        r.attribute(IFLA_NUM_TX_QUEUES, &queues)
            .attribute(IFLA_NUM_RX_QUEUES, &queues)
    };
    let far_fd = (far.handle.as_raw_fd() as u32).to_ne_bytes();
    let peer = |r: Request| {
        let r = r
            .raw(&link_header(0, 0, 0))
            .string(IFLA_IFNAME, &far_name(nic));
        with_queues(r)
            .attribute(IFLA_MTU, &mtu)
            .attribute(IFLA_NET_NS_FD, &far_fd)
    };
    let request = Request::new(
        RTM_NEWLINK,
        NLM_F_CREATE | NLM_F_EXCL,
        &link_header(0, 0, 0),
    )
    .string(IFLA_IFNAME, &near_name(nic))
    .attribute(IFLA_MTU, &mtu);
    let request = with_queues(request).nested(IFLA_LINKINFO, |r| {
        r.string(IFLA_INFO_KIND, "veth")
            .nested(IFLA_INFO_DATA, |r| r.nested(VETH_INFO_PEER, peer))
    });
    route.call(request).context("making a veth pair")?;
    Ok(())
}

/// Gives the links of one side their addresses, if they have any, switches offloads off unless segments may be
/// `large`, and brings them up.
fn configure(
    route: &Netlink,
    nics: usize,
    (name, large): (fn(usize) -> String, bool),
    address: impl Fn(usize) -> Option<IpAddr>,
) -> Result<Vec<u32>, Error> {
    let ethtool = Ethtool::open()?;
    let mut links = Vec::new();
    for nic in 0..nics {
        let name = name(nic);
        let index = index_of(&name)?;
        if !large {
            ethtool.switch_off(&name)?;
        }
        if let Some(ip) = address(nic) {
            give(route, index, ip)?;
        }
        let up = Request::new(RTM_NEWLINK, 0, &link_header(index, IFF_UP, IFF_UP));
        route.call(up).context("bringing a link up")?;
        links.push(index);
    }
    Ok(links)
}

/// Waits until links pass packets. The kernel lets them do so some time after they came up, up to a
/// second if others have just done the same, and drops what is sent before: a first SYN then is
/// sent again after a second.
fn await_links(route: &Netlink, links: &[u32]) -> Result<(), Error> {
    let end = Instant::now() + Duration::from_secs(10);
    for &index in links {
        loop {
            let ask = Request::new(RTM_GETLINK, 0, &link_header(index, 0, 0));
            let answers = route.call(ask).context("asking for a link")?;
            let state = |a: &Vec<u8>| {
                find(a.get(LINK_HEADER..)?, IFLA_OPERSTATE)?
                    .first()
                    .copied()
            };
            if answers.iter().find_map(state) == Some(IF_OPER_UP) {
                break;
            }
            if Instant::now() > end {
                return Err(Error::Run("a link does not come up".into()));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(())
}

/// Gives an interface of the calling thread's namespace that address.
///
/// # Errors
/// What the system says.
pub fn give_address(name: &str, ip: IpAddr) -> Result<(), Error> {
    give(&Netlink::route()?, index_of(name)?, ip)
}

fn give(route: &Netlink, index: u32, ip: IpAddr) -> Result<(), Error> {
    let (family, flags, octets) = match ip {
        IpAddr::V4(ip) => (AF_INET, 0, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AF_INET6, IFA_F_NODAD, ip.octets().to_vec()),
    };
    let mut header = [family, prefix(ip), flags, 0, 0, 0, 0, 0];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    let request = Request::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &header)
        .attribute(IFA_LOCAL, &octets)
        .attribute(IFA_ADDRESS, &octets);
    let given = route.call(request).map(drop);
    given.context("giving a link its address")
}

/// Index of interface `name` in the calling thread's namespace.
fn index_of(name: &str) -> Result<u32, Error> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )
    .context("opening a socket")?;
    rustix::net::netdevice::name_to_index(&socket, name).context("finding a link")
}

/// Switches off, on a device of the calling thread's namespace, what would let one pass through
/// the kernel's stack carry several segments.
///
/// # Errors
/// What the system says, or that it can't be switched off.
pub fn segments_one_by_one(device: &str) -> Result<(), Error> {
    Ethtool::open()?.switch_off(device)
}

/// The ethtool family of generic netlink (Linux 5.6 and later).
struct Ethtool {
    socket: Netlink,
    family: u16,
}

impl Ethtool {
    fn open() -> Result<Ethtool, Error> {
        let socket = Netlink::generic()?;
        let request = Request::new(GENL_ID_CTRL, 0, &[CTRL_CMD_GETFAMILY, 1, 0, 0])
            .string(CTRL_ATTR_FAMILY_NAME, "ethtool");
        let answers = socket
            .call(request)
            .context("finding the kernel's ethtool interface")?;
        let family = answers
            .first()
            .and_then(|a| find(a.get(4..)?, CTRL_ATTR_FAMILY_ID))
            .and_then(|v| v.first_chunk())
            .map(|v| u16::from_ne_bytes(*v))
            .ok_or_else(|| Error::Run("the kernel's ethtool interface gave no answer".into()))?;
        Ok(Ethtool { socket, family })
    }

    /// Switches all [`OFFLOADS`] of a device off, and makes sure that they are.
    fn switch_off(&self, device: &str) -> Result<(), Error> {
        for feature in OFFLOADS {
            let request = self.request(ETHTOOL_MSG_FEATURES_SET, device).nested(
                ETHTOOL_A_FEATURES_WANTED,
                |r| {
                    r.nested(ETHTOOL_A_BITSET_BITS, |r| {
                        r.nested(ETHTOOL_A_BITSET_BITS_BIT, |r| {
                            r.string(ETHTOOL_A_BITSET_BIT_NAME, feature)
                        })
                    })
                },
            );
            // Kernels differ in which features they know; what counts is checked below.
            let _ = self.socket.call(request);
        }
        let active = self.active(device)?;
        match OFFLOADS.iter().find(|f| active.iter().any(|a| a == *f)) {
            None => Ok(()),
            Some(f) => Err(Error::Unavailable(format!(
                "{f} can't be switched off on {device}"
            ))),
        }
    }

    /// Names of the features that are on.
    fn active(&self, device: &str) -> Result<Vec<String>, Error> {
        let request = self.request(ETHTOOL_MSG_FEATURES_GET, device);
        let answers = self
            .socket
            .call(request)
            .context("reading the offloads of a link")?;
        let answer = answers.first().and_then(|a| a.get(4..)).unwrap_or_default();
        let bits = find(answer, ETHTOOL_A_FEATURES_ACTIVE)
            .and_then(|set| find(set, ETHTOOL_A_BITSET_BITS))
            .ok_or_else(|| Error::Run("the kernel doesn't tell a link's offloads".into()))?;
        Ok(attributes(bits)
            .into_iter()
            .filter_map(|(_, bit)| find(bit, ETHTOOL_A_BITSET_BIT_NAME))
            .map(|name| String::from_utf8_lossy(name).trim_end_matches('\0').into())
            .collect())
    }

    fn request(&self, command: u8, device: &str) -> Request {
        Request::new(self.family, 0, &[command, 1, 0, 0]).nested(ETHTOOL_A_FEATURES_HEADER, |r| {
            r.string(ETHTOOL_A_HEADER_DEV_NAME, device)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snmp_text() {
        let text = "Ip: A B\nIp: 1 2\nTcp: InSegs RetransSegs OutRsts\nTcp: 5 42 7\n";
        assert_eq!(retransmitted(text), 42);
        assert_eq!(retransmitted("Tcp: RetransSegs\n"), 0);
        assert_eq!(retransmitted(""), 0);
    }
}
