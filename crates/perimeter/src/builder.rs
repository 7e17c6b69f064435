//! What a stack is made of.

use crate::check;
use crate::control::Server;
use crate::error::BuildError;
use crate::metrics;
use crate::names::Names;
use crate::platforms::Platforms;
use crate::poll::Events;
use crate::stack::Stack;
use perimeter_link::capture::Captures;
use perimeter_link::{Device, Medium};
use perimeter_org::engine::Engine;
use perimeter_org::{Inbound, Options, Org, OrgSpec, open_as};
use perimeter_stack::net::Accept;
use perimeter_stack::{Cidr, Config, DhcpConfig, IfaceSpec, Kind, Route};
use perimeter_sync::native::Profiling;
use perimeter_sync::{Lending, LockPolicy, Native};
use perimeter_tcp::Config as TcpConfig;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Collects what a stack is made of.
///
/// ```
/// use perimeter::{Native, Stack, link};
///
/// let native = Native::default();
/// let ([device, _wire], _) = link::wire::pair(&native, Default::default());
/// let stack = Stack::builder()
///     .on_native(native)
///     .organization("connp-l:4")?
///     .interface(device, &["10.0.0.1/24", "fd00::1/64"])?
///     .route("0.0.0.0/0", Some("10.0.0.254"), 0)?
///     .build()?;
/// assert_eq!(stack.organization().to_string(), "connp-l:4");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Builder {
    platform: Platforms,
    org: OrgSpec,
    config: Config,
    ifaces: Vec<IfaceSpec>,
    routes: Vec<Route>,
    inbound: Inbound,
    control: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    profile: bool,
    loopback: bool,
    /// How threads wait for locks, if that was said; of the platform, whichever it will be.
    policy: Option<LockPolicy>,
    #[cfg(feature = "dns")]
    dns: (perimeter_dns::DnsConfig, Vec<SocketAddr>),
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder {
            platform: Platforms::Native(Native::default()),
            org: OrgSpec::default(),
            config: Config::default(),
            ifaces: Vec::new(),
            routes: Vec::new(),
            inbound: Inbound::default(),
            control: None,
            metrics: None,
            profile: false,
            loopback: false,
            policy: None,
            #[cfg(feature = "dns")]
            dns: Default::default(),
        }
    }

    /// Chooses the organization by name, as `perimeter orgs` prints them. Default `up:shared`.
    ///
    /// ```
    /// # use perimeter::Stack;
    /// let builder = Stack::builder().organization("squeue:2")?;
    /// let error = Stack::builder().organization("squeu:2").expect_err("there is none of that name");
    /// println!("{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is none of that name.
    pub fn organization(self, name: &str) -> Result<Builder, BuildError> {
        let org = name.parse()?;
        Ok(self.org(org))
    }

    /// What the organization is called so far.
    pub(crate) fn named(&self) -> String {
        self.org.to_string()
    }

    /// Chooses the organization.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// // From the command line, say: parsing tells what is wrong with it.
    /// let org: OrgSpec = "msgp".parse()?;
    /// let stack = builder.org(org).build()?;
    /// assert_eq!(stack.organization().to_string(), "msgp");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn org(mut self, org: OrgSpec) -> Builder {
        self.org = org;
        self
    }

    /// Runs on virtual cores instead of this machine: tests in virtual time, every schedule of
    /// which can be had again by its seed.
    ///
    /// Needs the feature `virtual`.
    ///
    /// ```
    /// # use perimeter::{Stack, Virtual, link, virt::VirtualConfig};
    /// let run = Virtual::run(VirtualConfig::default(), |platform| {
    ///     let ([device, _wire], _) = link::wire::pair(&platform, Default::default());
    ///     let stack = Stack::builder().on_virtual(platform).interface(device, &["10.0.0.1/24"])?;
    ///     let stack = stack.build()?;
    ///     let listener = stack.listen("10.0.0.1:80")?;
    ///     let client = stack.connect("10.0.0.1:80")?;
    ///     Ok::<_, std::io::Error>(listener.accept()?.1 == client.local_addr()?)
    /// });
    /// let (connected, _report) = run?;
    /// assert!(connected?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "virtual")]
    pub fn on_virtual(mut self, platform: perimeter_sync::Virtual) -> Builder {
        self.platform = Platforms::Virtual(platform);
        self
    }

    /// Runs on this machine, with a clock that is shared with the given platform's other users
    /// (a memory device, say).
    ///
    /// ```
    /// # use perimeter::{Native, Stack, link};
    /// let native = Native::default();
    /// let ([a, b], _) = link::wire::pair(&native, Default::default());
    /// let build = |device, addr| Stack::builder().on_native(native).interface(device, &[addr])?.build();
    /// let (near, far) = (build(a, "10.0.0.1/24")?, build(b, "10.0.0.2/24")?);
    /// let listener = far.listen("10.0.0.2:80")?;
    /// let client = near.connect("10.0.0.2:80")?;
    /// assert_eq!(listener.accept()?.1, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_native(mut self, platform: Native) -> Builder {
        self.platform = Platforms::Native(platform);
        self
    }

    /// How threads wait for locks on this machine. Default: that of the platform given with
    /// [`Builder::on_native`], else [`LockPolicy::Modern`]. Virtual cores have a setting of their
    /// own.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let builder = builder.lock_policy(LockPolicy::Turnstile);
    /// // Whether it can lend priorities is a matter of privilege.
    /// assert_ne!(builder.lending(), Lending::None);
    /// let stack = builder.build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_policy(mut self, policy: LockPolicy) -> Builder {
        self.policy = Some(policy);
        self
    }

    /// The platform as far as it has been said.
    fn platform(&self) -> Platforms {
        match (self.platform.clone(), self.policy) {
            (Platforms::Native(p), Some(policy)) => Platforms::Native(p.with_policy(policy)),
            (platform, _) => platform,
        }
    }

    /// Whether threads that wait for a lock of this stack will lend their priority to its owner.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// // Does a thread that holds a lock get the priority of one that waits for it?
    /// let builder = builder.lock_policy(LockPolicy::Modern);
    /// match builder.lending() {
    ///     Lending::None => println!("no"),
    ///     how => println!("yes: {how:?}"),
    /// }
    /// assert_eq!(builder.lending(), Lending::None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lending(&self) -> Lending {
        self.platform().lending()
    }

    /// Whether to time every acquisition of a lock, every visit to a queue between threads, every
    /// park and every wake, for [`Stats::profile`](crate::Stats::profile). Off by default, as
    /// reading the clock costs: two readings for each of these, which is some 40 ns. On this
    /// machine only; up to eight stacks of a process at once.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let stack = builder.profile(true).build()?;
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let client = stack.connect("10.0.0.1:80")?;
    /// let profile = stack.stats().profile.ok_or("not profiled")?;
    /// println!("{:?}", profile.locks(LockClass::Group));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn profile(mut self, on: bool) -> Builder {
        self.profile = on;
        self
    }

    /// Adds an interface: a device and its addresses, `address/prefix` each, of either family. The
    /// first of IPv4 is the preferred source there; that of IPv6 is chosen as RFC 6724 has it.
    ///
    /// Interfaces are numbered from 0 in the order in which they are added. A link-local address
    /// of IPv6 belongs to its interface's link: a `SocketAddrV6` names it by its `scope_id`, which
    /// is that number plus 1 (0 will do if there is one interface only).
    ///
    /// ```
    /// # use perimeter::{Native, Stack, link};
    /// let ([device, _wire], _) = link::wire::pair(&Native::default(), Default::default());
    /// let builder = Stack::builder().interface(device, &["10.0.0.1/24", "fd00::1/64"])?;
    /// assert_eq!(builder.build()?.addresses()[0].len(), 2);
    ///
    /// let ([device, _wire], _) = link::wire::pair(&Native::default(), Default::default());
    /// let error = Stack::builder().interface(device, &["10.0.0.0/24"]).expect_err("no host's");
    /// assert_eq!(
    ///     error.to_string(),
    ///     "10.0.0.0/24 is the network address of its prefix, not a host's",
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An address does not parse, or is not that of a host: loopback, multicast, reserved
    /// and broadcast addresses and those of networks are none.
    pub fn interface(
        self,
        device: impl Device + 'static,
        addrs: &[&str],
    ) -> Result<Builder, BuildError> {
        self.interface_accepting(device, addrs, Accept::Own)
    }

    /// As [`Builder::interface`], and says which other destinations it takes. One that takes any
    /// needs no address of its own.
    ///
    /// ```
    /// # use perimeter::{Accept, Listen, Native, Stack, link};
    /// let native = Native::default();
    /// let ([a, b], _) = link::wire::pair(&native, Default::default());
    /// // A gateway, which stands for all hosts there are.
    /// let gateway = Stack::builder().on_native(native);
    /// let gateway = gateway.interface_accepting(a, &["10.0.0.1/24"], Accept::Any { echo: false })?.build()?;
    /// let listener = gateway.listen_as(&Listen::any())?;
    ///
    /// let host = Stack::builder().on_native(native).interface(b, &["10.0.0.2/24"])?;
    /// let host = host.route("0.0.0.0/0", Some("10.0.0.1"), 0)?.build()?;
    /// let client = host.connect("192.0.2.7:443")?;
    /// let (_server, wanted, _peer) = listener.accept_ends()?;
    /// assert_eq!(wanted.to_string(), "192.0.2.7:443");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Builder::interface`].
    pub fn interface_accepting(
        mut self,
        device: impl Device + 'static,
        addrs: &[&str],
        accept: Accept,
    ) -> Result<Builder, BuildError> {
        let addrs = addrs.iter().map(|a| a.parse().map_err(BuildError::Address));
        let addrs = addrs.collect::<Result<Vec<Cidr>, _>>()?;
        for a in &addrs {
            check::interface(a).map_err(BuildError::Address)?;
        }
        self.ifaces.push(IfaceSpec {
            device: Box::new(device),
            addrs,
            accept,
            dhcp: None,
        });
        Ok(self)
    }

    /// Adds an interface that gets its IPv4 address from a server of its link, by DHCP (RFC 2131), and
    /// with it the network's prefix, the default route, the link's MTU, and name servers
    /// ([`Stack::leases`]). The lease is renewed while the stack lives, by whoever serves its devices;
    /// when it is over the address goes, and connections from it fail. Building waits for the
    /// address as long as [`DhcpConfig::wait`] says. With the feature `dns`, and without
    /// [`Builder::name_servers`], names are looked up by the name servers that came along.
    ///
    /// ```no_run
    /// # use perimeter::{DhcpConfig, Stack};
    /// # fn example(device: impl perimeter::link::Device + 'static) -> Result<(), Box<dyn std::error::Error>> {
    /// let stack = Stack::builder().interface_dhcp(device, DhcpConfig::default())?.build()?;
    /// println!("{} from {}", stack.leases()[0].addr, stack.leases()[0].server);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The device has no stations (TUN), or the name or the identifier is too long.
    pub fn interface_dhcp(
        mut self,
        device: impl Device + 'static,
        dhcp: DhcpConfig,
    ) -> Result<Builder, BuildError> {
        if device.capabilities().medium != Medium::Ethernet {
            return Err(BuildError::Missing(
                "DHCP needs a device with stations, such as TAP",
            ));
        }
        if dhcp.hostname.len() > 63 || dhcp.client_id.len() > 64 {
            let what = "`dhcp.hostname` has at most 63 octets, and `dhcp.client_id` 64";
            return Err(BuildError::Setting(what.to_string()));
        }
        self.ifaces.push(IfaceSpec {
            device: Box::new(device),
            addrs: Vec::new(),
            accept: Accept::Own,
            dhcp: Some(dhcp),
        });
        Ok(self)
    }

    /// Makes it a stack that talks to itself: at 127.0.0.1 and ::1, without a device, and without any
    /// other interface. For tests and first steps; any other stack also reaches its own addresses
    /// past its devices.
    ///
    /// ```
    /// # use perimeter::{Stack, link};
    /// use std::io::{Read, Write};
    ///
    /// let stack = Stack::builder().loopback().build()?;
    /// let listener = stack.listen("127.0.0.1:80")?;
    /// let mut client = stack.connect("127.0.0.1:80")?;
    /// client.write_all(b"hello")?;
    /// let mut text = [0; 5];
    /// listener.accept()?.0.read_exact(&mut text)?;
    /// assert_eq!(&text, b"hello");
    ///
    /// // Loopback addresses are nobody else's, so nothing from elsewhere may come to them.
    /// let both = Stack::builder().loopback().interface(link::nowhere::Nowhere, &["10.0.0.1/24"])?;
    /// let error = both.build().expect_err("one or the other");
    /// assert_eq!(error.to_string(), "a stack with `loopback` has no other interface");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn loopback(mut self) -> Builder {
        // Of 127.0.0.0/8 this one only: others lead nowhere.
        let v4 = (IpAddr::from(Ipv4Addr::LOCALHOST), 32);
        let v6 = (IpAddr::from(Ipv6Addr::LOCALHOST), 128);
        self.loopback = true;
        self.ifaces.push(IfaceSpec {
            device: Box::new(perimeter_link::nowhere::Nowhere),
            addrs: [v4, v6]
                .map(|(addr, prefix)| Cidr { addr, prefix })
                .to_vec(),
            accept: Accept::Own,
            dhcp: None,
        });
        self
    }

    /// Adds an interface on a device of the host's, which is opened at once with the default
    /// [options](perimeter_link::named::HostOptions): `tap`, `tap:NAME` or `tun:NAME` (the host's
    /// kernel is the other end, and needs an address there), `packet:INTERFACE` or `xdp:INTERFACE`
    /// (any Ethernet interface). For other settings open the device yourself, and use
    /// [`Builder::interface`].
    ///
    /// ```no_run
    /// # use perimeter::Stack;
    /// // The kernel's end: ip tuntap add tap0 mode tap; ip addr add 192.0.2.1/24 dev tap0; ip link set tap0 up
    /// let stack = Stack::builder().device("tap:tap0", &["192.0.2.2/24"])?.build()?;
    /// let listener = stack.listen("192.0.2.2:80")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As there; or the device does not parse, or can't be opened.
    #[cfg(target_os = "linux")]
    pub fn device(self, device: &str, addrs: &[&str]) -> Result<Builder, BuildError> {
        use perimeter_link::named::{HostDevice, HostOptions};
        let device: HostDevice = device.parse().map_err(BuildError::Setting)?;
        let opened = device.open(&HostOptions::default())?;
        self.interface(opened, addrs)
    }

    /// Adds a route to `prefix` by `gateway` on the interface added as number `iface`.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let stack = builder.route("0.0.0.0/0", Some("10.0.0.254"), 0)?.build()?;
    /// // It sets out, and waits for the gateway's station.
    /// let stream = stack.start_connect("192.0.2.7:80".parse()?)?;
    /// assert_eq!(stream.local_addr()?.ip().to_string(), "10.0.0.1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The prefix or the gateway does not parse or can't be meant, or there is no such interface.
    pub fn route(
        mut self,
        prefix: &str,
        gateway: Option<&str>,
        iface: usize,
    ) -> Result<Builder, BuildError> {
        let dst = prefix.parse().map_err(BuildError::Address)?;
        let via = match gateway {
            None => None,
            Some(g) => Some(
                g.parse::<IpAddr>()
                    .map_err(|_| BuildError::Address(format!("`{g}` is not an address")))?,
            ),
        };
        let Some(spec) = self.ifaces.get(iface) else {
            return Err(BuildError::Missing(
                "a route needs an interface that was added before",
            ));
        };
        check::route(&dst, via, &spec.addrs).map_err(BuildError::Address)?;
        self.routes.push(Route {
            dst,
            iface: iface as u16,
            via,
        });
        Ok(self)
    }

    /// Settings of the stack.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let config = Config::default().with_memory(64 << 20).with_ttl(32);
    /// let stack = builder.config(config).build()?;
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// assert_eq!(stack.connect("10.0.0.1:80")?.ttl()?, 32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn config(mut self, config: Config) -> Builder {
        self.config = config;
        self
    }

    /// What connections are made with unless told otherwise.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let stack = builder.tcp(TcpConfig::default().with_nodelay(true)).build()?;
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// assert!(stack.connect("10.0.0.1:80")?.nodelay()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tcp(mut self, tcp: TcpConfig) -> Builder {
        self.config.tcp = tcp;
        self
    }

    /// Who takes packets from the devices. Default: threads of the stack's own; under `up`
    /// always the one thread that calls.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// // The threads that wait in `accept` and `read` take packets themselves meanwhile.
    /// let stack = builder.inbound(Inbound::Inline).build()?;
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let client = stack.connect("10.0.0.1:80")?;
    /// assert_eq!(listener.accept()?.1, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn inbound(mut self, inbound: Inbound) -> Builder {
        self.inbound = inbound;
        self
    }

    /// Opens a control socket at `path` by which `perimeter ss`, `stat`, `top`, `pcap` and `trace`
    /// can ask about the stack ([`crate::control`]). There is none by default.
    ///
    /// ```
    #[doc = include_str!("examples/control.txt")]
    /// let stack = builder.control(&path).build()?;
    /// // Whoever runs the stack can ask it, as `perimeter ss` does.
    /// let client = Client::connect(&path)?;
    /// assert_eq!(client.greeting().pid, std::process::id());
    /// drop((client, stack));
    /// assert!(!path.exists(), "it goes with the stack");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn control(mut self, path: impl AsRef<Path>) -> Builder {
        self.control = Some(path.as_ref().to_path_buf());
        self
    }

    /// Answers HTTP requests for `/metrics` at an address of the host's (not of the stack's own; port
    /// 0 picks a free one, which [`Stack::metrics`] tells) with what the stack has counted, in
    /// Prometheus' text format. Whoever can reach that address can read it. There is none by
    /// default.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let stack = builder.metrics("127.0.0.1:0".parse()?).build()?;
    /// let at = stack.metrics().ok_or("no metrics")?;
    /// let mut scrape = std::net::TcpStream::connect(at)?;
    /// scrape.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    /// let mut text = String::new();
    /// scrape.read_to_string(&mut text)?;
    /// assert!(text.contains("perimeter_connections"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn metrics(mut self, addr: SocketAddr) -> Builder {
        self.metrics = Some(addr);
        self
    }

    /// Whom the stack asks for the addresses of names, in this order, over the stack itself: usually
    /// at port 53. Then [`Stack::lookup_host`], [`Stack::connect`] and whatever else takes a name ask
    /// these, and never the host's resolver. The one that has answered last is asked first the next
    /// time. Needs the feature `dns`.
    ///
    /// ```
    #[doc = include_str!("examples/name_server.txt")]
    /// // `name_server` is the address of one that knows `www.example.org`, on the stack `far`.
    /// let stack = builder.name_servers(&[name_server]).build()?;
    /// let all: Vec<_> = stack.lookup_host("www.example.org:80")?.collect();
    /// assert_eq!(all, ["10.0.0.2:80".parse()?]);
    ///
    /// let listener = far.listen("10.0.0.2:80")?;
    /// let stream = stack.connect("www.example.org:80")?;
    /// assert_eq!(listener.accept()?.1, stream.local_addr()?);
    ///
    /// let error = stack.connect("nobody.example.org:80").expect_err("there is no such name");
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "dns")]
    pub fn name_servers(mut self, servers: &[SocketAddr]) -> Builder {
        self.dns.1 = servers.to_vec();
        self
    }

    /// How names are looked up, where there are name servers. Needs the feature `dns`.
    ///
    /// ```
    #[doc = include_str!("examples/name_server.txt")]
    /// // Nobody has this address; so `name_server` is asked half a second later.
    /// let silent = "10.0.0.9:53".parse()?;
    /// let dns = DnsConfig::default().with_timeout(Duration::from_millis(500));
    /// let stack = builder.name_servers(&[silent, name_server]).dns(dns).build()?;
    /// assert!(stack.lookup_host("www.example.org:80")?.next().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "dns")]
    pub fn dns(mut self, config: perimeter_dns::DnsConfig) -> Builder {
        self.dns.0 = config;
        self
    }

    /// The stack's own resolver, if it is to have one.
    #[cfg(feature = "dns")]
    fn names(&mut self) -> Result<Names, BuildError> {
        let (config, servers) = std::mem::take(&mut self.dns);
        config.check().map_err(BuildError::Setting)?;
        let learns = self.ifaces.iter().any(|i| i.dhcp.is_some());
        if servers.is_empty() && !learns {
            return Ok(Names::default());
        }
        let secret = self.platform.secret();
        let ports = self.config.ephemeral.clone();
        let own = perimeter_dns::Resolver::new(config, &servers, secret, ports);
        Ok(Names::of(Arc::new(own), servers.is_empty()))
    }

    #[cfg(not(feature = "dns"))]
    fn names(&mut self) -> Result<Names, BuildError> {
        Ok(Names::default())
    }

    /// Builds and starts the stack.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// let stack = builder.build()?;
    /// assert_eq!(stack.organization().to_string(), "up:shared");
    ///
    /// let error = Stack::builder().build().expect_err("it would reach nobody");
    /// assert_eq!(error.to_string(), "a stack needs an interface");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no interface, a setting is out of its range, no control socket can be had, or no
    /// profile.
    pub fn build(self) -> Result<Stack, BuildError> {
        if self.org.is_outside() {
            return Err(BuildError::Missing(
                "an organization from outside is built with `build_as`",
            ));
        }
        self.start(|platform, options| Ok(platform.open(options)))
    }

    /// Builds and starts a stack of organization `O`, which may come from outside this library,
    /// on this machine. What was set with [`Builder::org`] is what it is called;
    /// [`OrgSpec::outside`] is for that.
    ///
    /// ```
    #[doc = include_str!("examples/builder.txt")]
    /// // In place of a type of your own, such as `examples/tiny_org.rs` has.
    /// type Mine = perimeter::seam::org::up::UpShared<Native>;
    /// let stack = builder.org(OrgSpec::outside("mine")).build_as::<Mine>()?;
    /// assert_eq!(stack.organization().to_string(), "mine");
    /// let listener = stack.listen("10.0.0.1:80")?;
    /// let client = stack.connect("10.0.0.1:80")?;
    /// assert_eq!(listener.accept()?.1, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Builder::build`]; and on virtual cores.
    pub fn build_as<O>(self) -> Result<Stack, BuildError>
    where
        O: Org,
        O::K: Kind<P = Native>,
    {
        self.start(|platform, options| match platform.native() {
            Some(p) => Ok(open_as::<O>(p, options)),
            None => Err(BuildError::Missing(
                "an organization for this machine does not run on virtual cores",
            )),
        })
    }

    fn start(
        mut self,
        open: impl FnOnce(Platforms, Options) -> Result<Arc<dyn Engine>, BuildError>,
    ) -> Result<Stack, BuildError> {
        if self.ifaces.is_empty() {
            return Err(BuildError::Missing("a stack needs an interface"));
        }
        if self.loopback && self.ifaces.len() > 1 {
            let alone = "a stack with `loopback` has no other interface";
            return Err(BuildError::Setting(alone.to_string()));
        }
        let found = self.config.ipv6.autoconf;
        let lost = |i: &IfaceSpec| i.addrs.is_empty() && !i.accept.is_any() && i.dhcp.is_none();
        if !found && self.ifaces.iter().any(lost) {
            return Err(BuildError::Missing(
                "an interface needs an address, or `interface_dhcp` or `ipv6.autoconf` to find one",
            ));
        }
        let given = self.ifaces.iter().enumerate();
        let given = given.flat_map(|(n, i)| i.addrs.iter().map(move |a| (n, a)));
        check::apart(given).map_err(BuildError::Address)?;
        check::stack(&self.config).map_err(BuildError::Setting)?;
        let asked = self.control.is_some() || self.metrics.is_some();
        if asked && self.platform.native().is_none() {
            return Err(BuildError::Missing(
                "a stack on virtual cores has no control socket and no metrics",
            ));
        }
        let names = self.names()?;
        let captures = Captures::new();
        if self.control.is_some() {
            self.ifaces = self
                .ifaces
                .into_iter()
                .map(|i| IfaceSpec {
                    device: Box::new(captures.wrap(i.device)),
                    ..i
                })
                .collect();
        }
        let waits = self.ifaces.iter().enumerate();
        let waits = waits.filter_map(|(n, i)| Some((n, i.dhcp.as_ref()?.wait?)));
        let waits: Vec<(usize, Duration)> = waits.collect();
        let platform = self.platform();
        let (platform, profiling) = match self.profile {
            false => (platform, None),
            true => profiled(platform)?,
        };
        let options = Options {
            org: self.org,
            config: self.config,
            ifaces: self.ifaces,
            routes: self.routes,
            inbound: self.inbound,
            profiling,
        };
        let engine = open(platform, options)?;
        let control = match self.control {
            Some(path) => Some(Arc::new(Server::start(&path, &engine, captures)?)),
            None => None,
        };
        let metrics = match self.metrics {
            Some(addr) => Some(Arc::new(metrics::Server::start(addr, &engine)?)),
            None => None,
        };
        let stack = Stack {
            _control: control,
            metrics,
            engine,
            names,
        };
        for (n, wait) in waits {
            leased(&stack, n, wait)?;
        }
        Ok(stack)
    }
}

/// Waits until a server has given interface number `n` an address. A stack of one thread is served
/// meanwhile.
fn leased(stack: &Stack, n: usize, wait: Duration) -> Result<(), BuildError> {
    const LOOK: Duration = Duration::from_millis(10);
    let end = stack.engine.now() + wait;
    let poll = stack
        .poll()
        .map_err(|e| BuildError::NoLease(e.to_string()))?;
    let mut events = Events::with_capacity(1);
    loop {
        if stack.leases().iter().any(|l| usize::from(l.iface) == n) {
            return Ok(());
        }
        let now = stack.engine.now();
        if now >= end {
            let name = stack.interfaces().into_iter().nth(n).unwrap_or_default();
            return Err(BuildError::NoLease(format!(
                "no DHCP server has given interface {n} ({name}) an address within {wait:?}: look \
                 whether one is on the link and whether it gets frames from there, wait longer \
                 (`DhcpConfig::wait`), or give an address"
            )));
        }
        let step = LOOK.min(end.since(now));
        poll.poll(&mut events, Some(step))
            .map_err(|e| BuildError::NoLease(e.to_string()))?;
    }
}

/// The platform, noting for a profile.
fn profiled(platform: Platforms) -> Result<(Platforms, Option<Profiling>), BuildError> {
    let Some(native) = platform.native() else {
        return Err(BuildError::Missing("virtual cores are not profiled"));
    };
    let profiling =
        Profiling::begin().ok_or(BuildError::Missing("eight stacks are profiled already"))?;
    let native = native.with_profiling(&profiling);
    Ok((Platforms::Native(native), Some(profiling)))
}
